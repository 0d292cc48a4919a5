/* SPDX-License-Identifier: MIT */
#include "bench/program.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char program_output[1 << 16];

static char folder[64];

void program_enter(void)
{
    strcpy(folder, "/tmp/attune-program-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

void program_leave(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
}

int program_run(const char *arguments)
{
    static char command[8192];
    const char *program = getenv("ATTUNE_PROGRAM");
    cr_assert_not_null(program, "ATTUNE_PROGRAM is not set: run the suite with meson test");
    snprintf(command, sizeof command, "%s %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t length = fread(program_output, 1, sizeof program_output - 1, pipe);
    program_output[length] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void program_expect(const char *arguments, int status, const char *words)
{
    int got = program_run(arguments);
    cr_expect(got == status, "attune %s exits with %d, expected %d:\n%s", arguments, got, status, program_output);
    cr_expect(strstr(program_output, words), "attune %s does not say \"%s\":\n%s", arguments, words, program_output);
}

void program_expect_complaint(const char *arguments, int status, const char *words)
{
    char redirected[1024];
    snprintf(redirected, sizeof redirected, "%s 2>err >/dev/null; code=$?; cat err; exit $code", arguments);
    program_expect(redirected, status, words);
}

void program_save(const char *path, attune_dtype dtype, uint32_t rank, const int64_t *size, uint64_t seed)
{
    array a;
    failure why;
    random_state r = {seed};
    cr_assert(array_create(&a, dtype, rank, size, &why));
    if (dtype == ATTUNE_I32)
        for (int64_t i = 0; i < array_count(&a); i++)
            array_set(&a, i, (double)(i / 30));
    else
        array_fill_normal(&a, &r, 1);
    FILE *stream = fopen(path, "wb");
    cr_assert(stream && npy_write(stream, &a));
    cr_assert_eq(fclose(stream), 0);
    array_free(&a);
}

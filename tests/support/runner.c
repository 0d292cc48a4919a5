/* SPDX-License-Identifier: MIT */
/*
 * Runs a program's tests in processes of their own, in place of Criterion's main: its sandbox executes the program
 * again and traces it, which an emulator of user programs cannot do, and it is not packaged for Windows. The limits of
 * time that tests have are not kept, as an emulator is ten times slower; `meson test` has one for the program.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* FNM_EXTMATCH, which Criterion's filters have */
#endif
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef _WIN32
#include <process.h>
#include <windows.h>
#else
#include <fnmatch.h>
#include <sys/wait.h>
#endif

/* Where the linker puts what Test and TestSuite define: pointers, and NULL where it filled up. */
typedef struct range {
    void **begin, **end;
} range;

#ifdef _WIN32
/* The linker names no beginning and end, the header of the running program does. */
static range section(const char *name)
{
    char *base = (char *)GetModuleHandleA(NULL);
    const IMAGE_NT_HEADERS *header = (const IMAGE_NT_HEADERS *)(base + ((const IMAGE_DOS_HEADER *)base)->e_lfanew);
    const IMAGE_SECTION_HEADER *s = IMAGE_FIRST_SECTION(header);
    for (int i = 0; i < header->FileHeader.NumberOfSections; i++, s++)
        if (!strncmp((const char *)s->Name, name, sizeof s->Name)) {
            void **begin = (void **)(base + s->VirtualAddress);
            return (range){begin, begin + s->Misc.VirtualSize / sizeof(void *)};
        }
    return (range){NULL, NULL};
}
#define TESTS  section("cr_tst")
#define SUITES section("cr_sts")
#else
extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[];
extern struct criterion_suite *__start_cr_sts[] __attribute__((weak)), *__stop_cr_sts[] __attribute__((weak));
#define TESTS  ((range){(void **)__start_cr_tst, (void **)__stop_cr_tst})
#define SUITES ((range){(void **)__start_cr_sts, (void **)__stop_cr_sts})
#endif

enum { PASSED, FAILED, SKIPPED, CRASHED };

/* The exit status of a process that ended its test: one that a test leaves by itself has another status. */
#define STATUS 40

/* ------------------------------------------------------------------------------------------ in the process of a test
 */

static const struct criterion_test *test;
static bool failed;

static void end(int how)
{
    (void)fflush(NULL);
    _exit(STATUS + how);
}

static const struct criterion_test_extra_data *suite(void)
{
    static const struct criterion_test_extra_data none;
    const range all = SUITES;
    for (void **at = all.begin; at < all.end; at++) {
        const struct criterion_suite *s = *at;
        if (s && !strcmp(s->name, test->category))
            return s->data;
    }
    return &none;
}

void criterion_internal_test_setup(void)
{
    if (suite()->init)
        suite()->init();
    if (test->data->init)
        test->data->init();
}

void criterion_internal_test_main(void (*function)(void))
{
    function();
}

void criterion_internal_test_teardown(void)
{
    if (test->data->fini)
        test->data->fini();
    if (suite()->fini)
        suite()->fini();
}

void cr_log(enum criterion_severity severity, const char *format, ...)
{
    static const char *const names[] = {"----", "WARN", "ERR "};
    va_list list;
    va_start(list, format);
    printf("[%s] %s::%s: ", names[severity], test->category, test->name);
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

void criterion_send_assert(struct criterion_assert_stats *stats)
{
    cr_log(CR_LOG_ERROR, "%s:%u: %s", stats->file, stats->line, stats->message);
}

void cri_asserts_passed_incr(void)
{
}

void criterion_continue_test(void)
{
    failed = true;
}

void criterion_abort_test(void)
{
    end(FAILED);
    abort();
}

void criterion_skip_test(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("[SKIP] %s::%s: ", test->category, test->name);
    vprintf(format, list);
    printf("\n");
    va_end(list);
    end(SKIPPED);
    abort();
}

#ifdef _WIN32
/* Elsewhere the programs are linked with Criterion's library, which has them. */
struct criterion_options criterion_options;

int cr_asprintf(char **text, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const int size = vsnprintf(NULL, 0, format, list);
    *text = size < 0 ? NULL : malloc((size_t)size + 1);
    const int written = *text ? vsnprintf(*text, (size_t)size + 1, format, again) : -1;
    va_end(again);
    va_end(list);
    return written;
}

void cr_asprintf_free(char *text)
{
    free(text);
}

/* The texts are the assertion's own. */
char *cr_translate_assert_msg(int index, ...)
{
    char *text;
    return cr_asprintf(&text, "assertion %d", index) < 0 ? NULL : text;
}
#endif

/* --------------------------------------------------------------------------------------------------- the tests' parent
 */

/* The program executes itself for one test. */
#define ONE "--one"

#ifdef _WIN32
static int run(const char *program)
{
    (void)fflush(NULL);
    char quoted[MAX_PATH + 2];
    (void)snprintf(quoted, sizeof quoted, "\"%s\"", program);
    const intptr_t status = _spawnl(_P_WAIT, program, quoted, ONE, test->data->identifier_, NULL);
    if (status >= STATUS && status <= STATUS + SKIPPED)
        return (int)status - STATUS;
    printf("[CRASH] %s::%s: exit status %lld\n", test->category, test->name, (long long)status);
    return CRASHED;
}

static bool matches(const char *filter)
{
    return !strcmp(filter, "*") || !strcmp(filter, test->data->identifier_);
}
#else
static int run(const char *program)
{
    int status;
    (void)program;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        test->test();
        end(failed ? FAILED : PASSED);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror(test->name);
        exit(2);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) >= STATUS && WEXITSTATUS(status) <= STATUS + SKIPPED)
        return WEXITSTATUS(status) - STATUS;
    printf("[CRASH] %s::%s: %s %d\n", test->category, test->name, WIFSIGNALED(status) ? "signal" : "exit status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return CRASHED;
}

static bool matches(const char *filter)
{
    return !fnmatch(filter, test->data->identifier_, FNM_EXTMATCH);
}
#endif

int main(int count, char **arguments)
{
    const char *filter = "*";
    bool verbose = false, one = false;
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], "--filter") && i + 1 < count) {
            filter = arguments[++i];
        } else if (!strcmp(arguments[i], ONE) && i + 1 < count) {
            filter = arguments[++i];
            one = true;
        } else if (!strcmp(arguments[i], "--verbose")) {
            verbose = true;
        } else {
            (void)fprintf(stderr, "%s [--verbose] [--filter SUITE/TEST]\n", arguments[0]);
            return 2;
        }
    int results[CRASHED + 1] = {0}, tests = 0;
    const range all = TESTS;
    for (void **at = all.begin; at < all.end; at++) {
        test = *at;
        if (!test || !matches(filter))
            continue;
        if (one) {
            test->test();
            end(failed ? FAILED : PASSED);
        }
        if (verbose)
            printf("[RUN ] %s::%s\n", test->category, test->name);
        struct timespec start, stop;
        clock_gettime(CLOCK_MONOTONIC, &start);
        const int result = run(arguments[0]);
        clock_gettime(CLOCK_MONOTONIC, &stop);
        const double seconds = (double)(stop.tv_sec - start.tv_sec) + (double)(stop.tv_nsec - start.tv_nsec) * 1e-9;
        if (result == FAILED || result == CRASHED || (verbose && result == PASSED))
            printf("[%s] %s::%s: (%.2fs)\n", result == PASSED ? "PASS" : "FAIL", test->category, test->name, seconds);
        results[result]++;
        tests++;
    }
    printf("[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: %d\n", tests - results[SKIPPED],
           results[PASSED], results[FAILED], results[CRASHED]);
    return results[FAILED] || results[CRASHED] || !tests;
}

/* SPDX-License-Identifier: MIT */
/*
 * Runs a program's tests in processes made by fork, in place of Criterion's own main: its sandbox executes the program
 * again and traces it, which an emulator of user programs cannot do. The limits of time that tests have are not kept,
 * as an emulator is ten times slower; `meson test` has one for the program.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* FNM_EXTMATCH, which Criterion's filters have */
#endif
#include <criterion/criterion.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Where the linker puts what Test and TestSuite define. */
extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[];
extern struct criterion_suite *__start_cr_sts[] __attribute__((weak)), *__stop_cr_sts[] __attribute__((weak));

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
    for (struct criterion_suite **s = __start_cr_sts; s < __stop_cr_sts; s++)
        if (!strcmp((*s)->name, test->category))
            return (*s)->data;
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

/* --------------------------------------------------------------------------------------------------- the tests' parent
 */

static int run(void)
{
    int status;
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

int main(int count, char **arguments)
{
    const char *filter = "*";
    bool verbose = false;
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], "--filter") && i + 1 < count) {
            filter = arguments[++i];
        } else if (!strcmp(arguments[i], "--verbose")) {
            verbose = true;
        } else {
            (void)fprintf(stderr, "%s [--verbose] [--filter SUITE/TEST]\n", arguments[0]);
            return 2;
        }
    int results[CRASHED + 1] = {0}, tests = 0;
    for (struct criterion_test **t = __start_cr_tst; t < __stop_cr_tst; t++) {
        test = *t;
        if (fnmatch(filter, test->data->identifier_, FNM_EXTMATCH))
            continue;
        if (verbose)
            printf("[RUN ] %s::%s\n", test->category, test->name);
        struct timespec start, stop;
        clock_gettime(CLOCK_MONOTONIC, &start);
        const int result = run();
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

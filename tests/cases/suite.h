/* SPDX-License-Identifier: MIT */
/*
 * Suites of cases: rows of the table as named tests, and random cases. The test SUITE/ROW runs one row in each of the
 * suite's dtypes, in a process of its own: `test_cases --filter 'forward_cpu/causal_*'`.
 */
#ifndef TESTS_CASES_SUITE_H
#define TESTS_CASES_SUITE_H

#include <criterion/criterion.h>

#include "cases/cases.h"

/* Indices of the table's rows. */
enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

typedef struct case_job {
    attention_case c;
    attune_dtype dtype;
    uint64_t seed;
    case_storage storage; /* of a random case's strings */
} case_job;

typedef struct case_suite case_suite;
struct case_suite {
    const char *backend;
    uint32_t matrix;      /* ATTUNE_MATRIX_* that the device needs */
    uint32_t cpu_threads; /* 0 = as many as there are cores */
    bool gradients;       /* case_run_gradients, not case_run */
    const attune_dtype *dtypes;
    uint32_t dtype_count;
    /* Makes run `variant` of a row. Returns false where the suite leaves it out. */
    bool (*row)(const case_suite *suite, uint32_t row, uint32_t variant, case_job *job);
    bool subgroups;                         /* needs a device whose subgroups shuffle */
    bool bf16;                              /* needs matrices of bf16 */
    void (*prepare)(attune_device *device); /* the device before its plans; NULL = as it is */
    uint32_t variants;                      /* of each row */
    uint64_t sample; /* runs at scale 1 where the table is sampled (test_sampled); 0 = never sampled */
    /* Makes a random case, likewise. */
    bool (*draw)(const case_suite *suite, uint64_t number, case_job *job);
    uint64_t random; /* random cases at scale 1 */
};

typedef struct case_row {
    const case_suite *suite;
    uint32_t row;
} case_row;

/* Bodies of tests: each case that fails is reported. */
void case_suite_row(const case_row *test);
void case_suite_random(const case_suite *suite);

/* The test SUITE/NAME, for a row of the table. */
#define ROW_TEST(suite, name)                                                                                          \
    static const case_row suite##_##name = {&suite, CASE_##name};                                                      \
    Test(suite, name, .data = (void *)&suite##_##name)                                                                 \
    {                                                                                                                  \
        case_suite_row(&suite##_##name);                                                                               \
    }

#endif

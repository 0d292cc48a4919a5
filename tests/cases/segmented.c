/* SPDX-License-Identifier: MIT */
/* The case table and random cases with their keys cut into segments, against the same references as whole. */
#include "cases/suite.h"

#include <string.h>

#include "support/devices.h"

static bool finish(const case_suite *s, uint64_t number, case_job *job)
{
    const bool cpu = !strcmp(s->backend, "cpu");
    job->dtype = s->dtypes[number % s->dtype_count];
    /* Options name tiles that fit the whole. */
    job->c.options = NULL;
    if (s->gradients && !cpu)
        job->c = case_unmixed(&job->c);
    job->c.segments = 1 + (uint32_t)(job->seed * 7 % 11);
    /* A row with NaN and +inf has either, by the order. */
    if (s->gradients ? !case_has_gradients(&job->c) : job->c.input == INPUT_MIXED || job->c.o_alone)
        return false;
    /* Sums that are exactly 0 are so no more where each segment's is rounded. */
    return job->c.input != INPUT_CONSTANT || cpu || job->dtype == ATTUNE_F32;
}

/* Each variant has other inputs and segments, and the next dtype. */
static bool make_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    const uint64_t number = (uint64_t)row * s->variants + 1 + variant;
    job->seed = test_seed() * 1000003 + number;
    job->c = attention_cases[row];
    return finish(s, number, job);
}

static bool draw(const case_suite *s, uint64_t number, case_job *job)
{
    number += (uint64_t)CASE_COUNT * s->variants + 1;
    job->seed = test_seed() * 1000003 + number;
    job->c = attention_case_random(job->seed, &job->storage);
    return finish(s, number, job);
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};

/* One thread cannot write into another's part of the workspace. case_run allows for the rounding of each segment's o;
 * that of d_q is not known to case_run_gradients, which therefore has f32 alone on devices. */
#define SUITES(backend_name, forward_dtypes, gradient_dtypes, forward_variants, rows, forward_random,                  \
               gradients_random)                                                                                       \
    static const case_suite segments_##backend_name = {.backend = #backend_name,                                       \
                                                       .cpu_threads = 1,                                               \
                                                       .dtypes = dtypes,                                               \
                                                       .dtype_count = forward_dtypes,                                  \
                                                       .row = make_row,                                                \
                                                       .variants = forward_variants,                                   \
                                                       .sample = rows,                                                 \
                                                       .draw = draw,                                                   \
                                                       .random = forward_random};                                      \
    static const case_suite segments_gradients_##backend_name = {.backend = #backend_name,                             \
                                                                 .cpu_threads = 1,                                     \
                                                                 .gradients = true,                                    \
                                                                 .dtypes = dtypes,                                     \
                                                                 .dtype_count = gradient_dtypes,                       \
                                                                 .row = make_row,                                      \
                                                                 .variants = 2,                                        \
                                                                 .sample = rows,                                       \
                                                                 .draw = draw,                                         \
                                                                 .random = gradients_random};                          \
    Test(segments_random, backend_name)                                                                                \
    {                                                                                                                  \
        case_suite_random(&segments_##backend_name);                                                                   \
    }                                                                                                                  \
    Test(segments_random, gradients_##backend_name)                                                                    \
    {                                                                                                                  \
        case_suite_random(&segments_gradients_##backend_name);                                                         \
    }

/* At the scale of the quick suite and of the sanitizers: every row, in one dtype. */
SUITES(cpu, 4, 4, 4, 20 * CASE_COUNT, 600, 120)
SUITES(vulkan, 3, 1, 2, 8, 4, 4)
SUITES(cuda, 3, 1, 2, 2 * CASE_COUNT, 300, 300)
SUITES(opencl, 3, 1, 2, 2, 1, 1)

#define ROW(name, ...)                                                                                                 \
    ROW_TEST(segments_cpu, name)                                                                                       \
    ROW_TEST(segments_vulkan, name)                                                                                    \
    ROW_TEST(segments_cuda, name)                                                                                      \
    ROW_TEST(segments_opencl, name)                                                                                    \
    ROW_TEST(segments_gradients_cpu, name)                                                                             \
    ROW_TEST(segments_gradients_vulkan, name)                                                                          \
    ROW_TEST(segments_gradients_cuda, name)                                                                            \
    ROW_TEST(segments_gradients_opencl, name)
#include "cases/table.h"
#undef ROW

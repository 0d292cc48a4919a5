/* SPDX-License-Identifier: MIT */
/* NaN and infinity in inputs and captures, against the references: each kernel, and segments. */
#include "cases/suite.h"

#include <string.h>

#include "support/devices.h"

/* Successive cases take successive ones, those too that the planner does not take. */
static const char *const vulkan_options[] = {
    NULL,
    "{\"KERNEL\": \"vulkan_portable\"}",
    "{\"KERNEL\": \"vulkan_subgroup\"}",
    "{\"KERNEL\": \"vulkan_lanes\"}",
    "{\"KERNEL\": \"vulkan_coopmat\"}",
    "{\"KERNEL\": \"vulkan_decode\"}",
    NULL,
    "{\"SPLIT_KV\": 3}",
};
static const char *const opencl_options[] = {NULL, "{\"KERNEL\": \"opencl_decode\"}", "{\"SPLIT_KV\": 3}"};
static const char *const split_options[] = {NULL, NULL, "{\"SPLIT_KV\": 3}"};

static const char *options_of(const char *backend, uint64_t i)
{
    return !strcmp(backend, "vulkan")   ? vulkan_options[i % (sizeof vulkan_options / sizeof *vulkan_options)]
           : !strcmp(backend, "opencl") ? opencl_options[i % (sizeof opencl_options / sizeof *opencl_options)]
                                        : split_options[i % (sizeof split_options / sizeof *split_options)];
}

static bool draw(const case_suite *s, uint64_t number, case_job *job)
{
    job->seed = test_seed() * 1000003 + number;
    job->c = attention_case_nonfinite(job->seed, &job->storage);
    /* By the seed, so that neither the dtype nor the segments go with a kernel. */
    job->c.preferred = options_of(s->backend, job->seed / 3);
    job->dtype = s->dtypes[number % s->dtype_count];
    return true;
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};

static const case_suite on_cpu = {.backend = "cpu", .dtypes = dtypes, .dtype_count = 4, .draw = draw, .random = 300};
static const case_suite on_vulkan = {
    .backend = "vulkan", .dtypes = dtypes, .dtype_count = 3, .draw = draw, .random = 10};
static const case_suite on_cuda = {.backend = "cuda", .dtypes = dtypes, .dtype_count = 3, .draw = draw, .random = 300};
static const case_suite on_opencl = {
    .backend = "opencl", .dtypes = dtypes, .dtype_count = 3, .draw = draw, .random = 4};

Test(nonfinite, cpu)
{
    case_suite_random(&on_cpu);
}

Test(nonfinite, vulkan)
{
    case_suite_random(&on_vulkan);
}

Test(nonfinite, cuda)
{
    case_suite_random(&on_cuda);
}

Test(nonfinite, opencl)
{
    case_suite_random(&on_opencl);
}

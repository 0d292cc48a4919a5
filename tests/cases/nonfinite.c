/* SPDX-License-Identifier: MIT */
/* NaN and infinity in inputs and captures, against the references: each kernel, and segments. */
#include <criterion/criterion.h>

#include <string.h>

#include "cases/cases.h"
#include "support/devices.h"

/* Each in turn: those too that a planner does not take. */
static const char *const vulkan_options[] = {
    NULL,
    "{\"KERNEL\": \"vulkan_portable\"}",
    "{\"KERNEL\": \"vulkan_subgroup\"}",
    "{\"KERNEL\": \"vulkan_lanes\"}",
    "{\"KERNEL\": \"vulkan_coopmat\"}",
    NULL,
    "{\"SPLIT_KV\": 3}",
};
static const char *const split_options[] = {NULL, NULL, "{\"SPLIT_KV\": 3}"};

static const char *options_of(const char *backend, uint64_t i)
{
    return !strcmp(backend, "vulkan") ? vulkan_options[i % (sizeof vulkan_options / sizeof *vulkan_options)]
                                      : split_options[i % (sizeof split_options / sizeof *split_options)];
}

static void run_nonfinite(const char *backend, uint64_t full, const attune_dtype *dtypes, size_t dtype_count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    const uint64_t count = scaled(full);
    uint64_t failed = 0, ran = 0;
    for (uint64_t i = 0; i < count; i++) {
        case_storage storage;
        const uint64_t seed = test_seed() * 1000003 + i;
        if (!test_part(i))
            continue;
        attention_case c = attention_case_nonfinite(seed, &storage);
        /* By the seed, so that neither the dtype nor the segments go with a kernel. */
        c.preferred = options_of(backend, seed / 3);
        failure why;
        ran++;
        if (!case_run(instance, device, &c, dtypes[i % dtype_count], seed, &why)) {
            failed++;
            cr_log_error("%s\n  options %s segments %u batch %lld/%lld heads %lld/%lld lengths %lld x %lld head_dim "
                         "%u/%u mask \"%s\" score \"%s\" layout %d blocks %u x %u longer %lld",
                         why.message, c.preferred ? c.preferred : "", c.segments, (long long)c.batch,
                         (long long)c.kv_batch, (long long)c.heads, (long long)c.kv_heads, (long long)c.q_len,
                         (long long)c.kv_len, c.head_dim, c.head_dim_v, c.mask ? c.mask : "", c.score ? c.score : "",
                         (int)c.layout, c.q_block, c.kv_block, (long long)c.mask_longer);
        }
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%llu cases", (unsigned long long)ran);
    cr_assert_eq(failed, 0, "%llu of %llu cases failed", (unsigned long long)failed, (unsigned long long)ran);
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};

Test(nonfinite, cpu)
{
    run_nonfinite("cpu", 300, dtypes, 4);
}

Test(nonfinite, vulkan)
{
    run_nonfinite("vulkan", 10, dtypes, 3);
}

Test(nonfinite, cuda)
{
    run_nonfinite("cuda", 300, dtypes, 3);
}

/* SPDX-License-Identifier: MIT */
/* The case table and random cases with their keys cut into segments, against the same references as whole. */
#include <criterion/criterion.h>
#include <string.h>

#include "cases/segments.h"
#include "support/devices.h"

typedef bool (*runner)(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
                       uint64_t seed, failure *why);

static void run_segmented(const char *backend, runner run, bool gradients, uint64_t table, uint64_t random,
                          const attune_dtype *dtypes, size_t dtype_count)
{
    attune_instance *instance;
    /* One thread has no other's room in the workspace to fall back on. */
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    const uint64_t share = scaled(table), count = share + scaled(random);
    uint64_t failed = 0, ran = 0;
    for (uint64_t i = 0; i < count; i++) {
        case_storage storage;
        const uint64_t seed = test_seed() * 1000003 + i;
        if (!test_part(i))
            continue;
        attention_case c =
            i < share ? attention_cases[i * attention_case_count / share] : attention_case_random(seed, &storage);
        /* Options name tiles that fit the whole; a row with NaN and +inf has either, by the order. */
        c.options = NULL;
        if (gradients && strcmp(backend, "cpu") != 0)
            c = case_unmixed(&c);
        c.segments = 1 + (uint32_t)(seed * 7 % 11);
        if (gradients ? !case_has_gradients(&c) : c.input == INPUT_MIXED)
            continue;
        /* Sums that are exactly 0 are so no more where each segment's is rounded. */
        const attune_dtype dtype = dtypes[i % dtype_count];
        if (c.input == INPUT_CONSTANT && strcmp(backend, "cpu") != 0 && dtype != ATTUNE_F32)
            continue;
        failure why;
        ran++;
        if (!run(instance, device, &c, dtype, seed, &why)) {
            failed++;
            cr_log_error("%u segments: %s\n  mask \"%s\" score \"%s\" lengths %lld x %lld input %d layout %d",
                         c.segments, why.message, c.mask ? c.mask : "", c.score ? c.score : "", (long long)c.q_len,
                         (long long)c.kv_len, (int)c.input, (int)c.layout);
        }
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%llu cases", (unsigned long long)ran);
    cr_assert_eq(failed, 0, "%llu of %llu cases failed", (unsigned long long)failed, (unsigned long long)ran);
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};

Test(segments, forward_cpu)
{
    run_segmented("cpu", case_run, false, 4 * attention_case_count + 1, 600, dtypes, 4);
}

Test(segments, gradients_cpu)
{
    run_segmented("cpu", case_run_gradients, true, 2 * attention_case_count + 1, 120, dtypes, 4);
}

/* case_run allows for the rounding of each segment's o; that of d_q is not known to case_run_gradients. */
#define BACKEND(name, table, random)                                                                                   \
    Test(segments, forward_##name)                                                                                     \
    {                                                                                                                  \
        run_segmented(#name, case_run, false, table, random, dtypes, 3);                                               \
    }                                                                                                                  \
    Test(segments, gradients_##name)                                                                                   \
    {                                                                                                                  \
        run_segmented(#name, case_run_gradients, true, table, random, dtypes, 1);                                      \
    }

BACKEND(vulkan, 8, 4)
BACKEND(cuda, 2 * attention_case_count + 1, 300)

/* SPDX-License-Identifier: MIT */
/* The case table, golden cases and random cases on each backend. A backend joins by its line at the end. */
#include <criterion/criterion.h>

#include <string.h>

#include "cases/cases.h"
#include "support/devices.h"

/* Without: what the planner takes. With: cooperative matrices wherever the mask's blocks allow, in decode too. */
typedef enum kernels { KERNELS_ANY, KERNELS_MATRIX } kernels;

static attune_device *open_device(attune_instance *instance, const char *backend, kernels which)
{
    attune_device *device = device_or_skip(instance, backend);
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    if (which == KERNELS_MATRIX && !(info.limits.matrix & ATTUNE_MATRIX_COOPMAT)) {
        attune_device_destroy(device);
        attune_instance_destroy(instance);
        cr_skip_test("the first device of %s has no cooperative matrices, or they were not compiled", backend);
    }
    return device;
}

static attention_case with_kernels(const attention_case *c, kernels which)
{
    attention_case made = *c;
    /* Q and O of any type, but f16 keys and values. */
    if (which == KERNELS_MATRIX)
        made.kv_dtype = ATTUNE_F16;
    /* A part's keys are bounded on a driver that runs on the CPU: long cases take what the planner does. */
    if (which == KERNELS_MATRIX && !c->options && c->kv_len <= 2048 &&
        (!c->mask || (c->q_block % 16 == 0 && c->kv_block % 16 == 0)))
        made.options = "{\"KERNEL\": \"vulkan_coopmat\"}";
    return made;
}

/* Backward passes but the CPU's have one type: there a mixed case runs without its others. */
static attention_case for_gradients(const attention_case *c, const char *backend)
{
    return strcmp(backend, "cpu") != 0 ? case_unmixed(c) : *c;
}

/* Case i in dtype j: a share of one in three takes each dtype in its turn, not one alone. */
static uint64_t turned(uint64_t i, size_t j, size_t dtype_count)
{
    return i * dtype_count + (i + j) % dtype_count;
}

static void run_table(const char *backend, kernels which, const attune_dtype *dtypes, size_t dtype_count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = open_device(instance, backend, which);
    uint32_t failed = 0, run = 0;
    /* A driver that compiles on the CPU takes a second for a case: a scaled run has that share of them. */
    const uint64_t all = attention_case_count * (uint64_t)dtype_count;
    const uint64_t share = strcmp(backend, "cpu") != 0 ? scaled(all) : all, step = share < all ? all / share : 1;
    for (uint32_t i = 0; i < attention_case_count; i++)
        for (size_t j = 0; j < dtype_count; j++) {
            failure why;
            const uint64_t number = turned(i, j, dtype_count);
            if (number % step || !test_part(number / step) || !test_case(attention_cases[i].name) ||
                (dtypes[j] == ATTUNE_F64 && case_mixed(&attention_cases[i])))
                continue;
            run++;
            const attention_case c = with_kernels(&attention_cases[i], which);
            if (!case_run(instance, device, &c, dtypes[j], test_seed() + i, &why)) {
                failed++;
                cr_log_error("%s", why.message);
            }
        }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%u cases", run);
    cr_assert_eq(failed, 0, "%u of %u cases failed", failed, run);
}

static void run_random(const char *backend, kernels which, uint32_t cpu_threads, uint64_t full,
                       const attune_dtype *dtypes, size_t dtype_count)
{
    attune_instance *instance;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = cpu_threads};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    attune_device *device = open_device(instance, backend, which);
    uint64_t count = scaled(full);
    uint32_t failed = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!test_part(i))
            continue;
        case_storage storage;
        const uint64_t seed = test_seed() * 1000003 + i;
        attention_case c = attention_case_random(seed, &storage);
        c = with_kernels(&c, which);
        failure why;
        if (!case_run(instance, device, &c, dtypes[i % dtype_count], seed, &why)) {
            failed++;
            cr_log_error(
                "%s\n  batch %lld/%lld heads %lld/%lld lengths %lld x %lld head_dim %u/%u mask \"%s\" score \"%s\" "
                "input %d layout %d blocks %u x %u longer %lld plan for %lld queries more",
                why.message, (long long)c.batch, (long long)c.kv_batch, (long long)c.heads, (long long)c.kv_heads,
                (long long)c.q_len, (long long)c.kv_len, c.head_dim, c.head_dim_v, c.mask ? c.mask : "",
                c.score ? c.score : "", (int)c.input, (int)c.layout, c.q_block, c.kv_block, (long long)c.mask_longer,
                (long long)c.plan_more);
        }
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%llu random cases", (unsigned long long)count);
    cr_assert_eq(failed, 0, "%u of %llu random cases failed", failed, (unsigned long long)count);
}

/* Every kernel in turn, those too that the planner does not take. */
static const char *const vulkan_kernels[] = {NULL, NULL, "{\"KERNEL\": \"vulkan_portable\"}",
                                             "{\"KERNEL\": \"vulkan_subgroup\"}"};

static const char *const cuda_kernels[] = {
    NULL, "{\"DETERMINISTIC\": true}", NULL,
    "{\"KERNEL\": \"cuda_sm80\", \"BLOCK_M1\": 16, \"BLOCK_N1\": 16, \"BLOCK_M2\": 16, \"BLOCK_N2\": 16}"};

/* shared: cases of the table at scale 1, spread over it; 0 = all of it at any scale */
static void run_gradients(const char *backend, uint64_t shared, uint64_t random, const attune_dtype *dtypes,
                          size_t dtype_count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    uint64_t failed = 0, run = 0;
    const uint64_t table = attention_case_count, count = table + scaled(random), all = table * dtype_count;
    const uint64_t share = shared ? scaled(shared) : all, step = share < all ? all / share : 1;
    for (uint64_t i = 0; i < count; i++) {
        case_storage storage;
        const uint64_t seed = test_seed() * 1000003 + i;
        attention_case c = i < table ? attention_cases[i] : attention_case_random(seed, &storage);
        c = for_gradients(&c, backend);
        for (size_t j = 0; j < (i < table ? dtype_count : 1) && case_has_gradients(&c); j++) {
            c.backward_options = !strcmp(backend, "vulkan") ? vulkan_kernels[run % 4]
                                 : !strcmp(backend, "cuda") ? cuda_kernels[run % 4]
                                                            : NULL;
            failure why;
            const uint64_t number = i < table ? turned(i, j, dtype_count) : all + i - table;
            if ((i < table && number % step != test_seed() % step) || !test_part(i < table ? number / step : number) ||
                !test_case(c.name))
                continue;
            const attune_dtype dtype = dtypes[i < table ? j : i % dtype_count];
            if (dtype == ATTUNE_F64 && case_mixed(&c))
                continue;
            run++;
            cr_log_info("%s %s", c.name, attune_dtype_string(dtype));
            if (!case_run_gradients(instance, device, &c, dtype, seed, &why)) {
                failed++;
                cr_log_error("%s\n  mask \"%s\" score \"%s\" head_dim %u/%u lengths %lld x %lld input %d layout %d",
                             why.message, c.mask ? c.mask : "", c.score ? c.score : "", c.head_dim, c.head_dim_v,
                             (long long)c.q_len, (long long)c.kv_len, (int)c.input, (int)c.layout);
            }
        }
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%llu cases", (unsigned long long)run);
    cr_assert_eq(failed, 0, "%llu of %llu cases failed", (unsigned long long)failed, (unsigned long long)run);
}

static const attune_dtype with_f64[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
static const attune_dtype without_f64[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};

/* random: cases at scale 1, as many as continuous integration has time for */
#define BACKEND(name, dtypes, random)                                                                                  \
    Test(forward_table, name)                                                                                          \
    {                                                                                                                  \
        run_table(#name, KERNELS_ANY, dtypes, sizeof(dtypes) / sizeof((dtypes)[0]));                                   \
    }                                                                                                                  \
    Test(forward_random, name)                                                                                         \
    {                                                                                                                  \
        run_random(#name, KERNELS_ANY, 0, random, dtypes, sizeof(dtypes) / sizeof((dtypes)[0]));                       \
    }

Test(gradients, cpu)
{
    run_gradients("cpu", 0, 200, with_f64, sizeof with_f64 / sizeof with_f64[0]);
}

Test(gradients, cuda)
{
    run_gradients("cuda", 3 * attention_case_count, 600, without_f64, sizeof without_f64 / sizeof without_f64[0]);
}

Test(gradients, vulkan)
{
    run_gradients("vulkan", 16, 4, without_f64, sizeof without_f64 / sizeof without_f64[0]);
}

/* Rows past the call's last, which a tile has too and whose scores are NaN, add nothing to captures: each kernel. */
static void run_rows_past(const char *backend, attune_dtype dtype, const char *const *options, int count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    uint32_t i = 0;
    while (strcmp(attention_cases[i].name, "rows_past_the_call") != 0)
        i++;
    for (int j = 0; j < count; j++) {
        attention_case c = attention_cases[i];
        failure why;
        c.backward_options = options[j];
        cr_expect(case_run_gradients(instance, device, &c, dtype, test_seed() + i, &why), "%s: %s",
                  options[j] ? options[j] : "", why.message);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(gradients, rows_past_vulkan)
{
    run_rows_past("vulkan", ATTUNE_F32, vulkan_kernels + 2, 2);
}

Test(gradients, rows_past_cuda)
{
    run_rows_past("cuda", ATTUNE_F16, cuda_kernels, 4);
}

BACKEND(cpu, with_f64, 1200)
/* One thread has no other's room in the workspace to fall back on. */
Test(forward_random, cpu_one_thread)
{
    run_random("cpu", KERNELS_ANY, 1, 100, with_f64, sizeof with_f64 / sizeof with_f64[0]);
}

BACKEND(vulkan, without_f64, 30)
BACKEND(cuda, without_f64, 1200)
BACKEND(opencl, without_f64, 60)

/* Of Q: with_kernels. */
static const attune_dtype matrix_dtypes[] = {ATTUNE_F16, ATTUNE_F32};

Test(forward_table, cooperative_matrix)
{
    run_table("vulkan", KERNELS_MATRIX, matrix_dtypes, 2);
}

Test(forward_random, cooperative_matrix)
{
    run_random("vulkan", KERNELS_MATRIX, 0, 60, matrix_dtypes, 1);
}

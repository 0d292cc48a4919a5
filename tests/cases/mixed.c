/* SPDX-License-Identifier: MIT */
/*
 * q, k, v and o of different types, bit for bit, where the error rule would let a rounding too many pass: float32
 * queries that 16 bits hold give what the plan of those 16 bits gives, before its O is rounded; kernels that compute in
 * float32 give what they give for keys and values that were widened before.
 */
#include <criterion/criterion.h>

#include <math.h>

#include "cases/cases.h"
#include "support/devices.h"

static const attention_case shapes[] = {
    {"prefill", 2, 2, 4, 2, 140, 150, 64, 40, .mask = "q >= kv", .score = "score + slope[h] * (kv - q)"},
    {"decode", 1, 1, 4, 2, 3, 701, 64, 0, .mask = "kv % 5 != 2"},
};

typedef struct results {
    array o, lse;
} results;

static void run(attune_instance *instance, attune_device *device, const attention *a, const char *json, results *r)
{
    attune_kernel_options options = {.struct_size = sizeof options};
    cr_assert_eq(attune_kernel_options_parse(json, &options), ATTUNE_OK, "%s", attune_last_error());
    attention_run job = {.options = &options, .o = &r->o, .lse = &r->lse};
    cr_assert_eq(attention_forward(instance, device, a, &job), ATTUNE_OK, "%s", attune_last_error());
}

/* The same problem with q, k and v converted. */
static attention converted(const attention *a, attune_dtype q, attune_dtype kv, attune_dtype o)
{
    attention made = *a;
    failure why;
    made.o_dtype = o;
    cr_assert(array_convert(&a->q, q, &made.q, &why) && array_convert(&a->k, kv, &made.k, &why) &&
                  array_convert(&a->v, kv, &made.v, &why),
              "%s", why.message);
    return made;
}

static void release(attention *a)
{
    array_free(&a->q);
    array_free(&a->k);
    array_free(&a->v);
}

static void expect_same(const char *what, const attention_case *c, const array *a, const array *b)
{
    int64_t differ = 0;
    for (int64_t i = 0; i < array_count(a); i++)
        differ += array_get(a, i) != array_get(b, i);
    cr_expect_eq(differ, 0, "%s %s: %lld of %lld differ", c->name, what, (long long)differ, (long long)array_count(a));
}

static void check(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype narrow,
                  const char *options, bool computes_in_f32)
{
    attention base;
    failure why;
    cr_assert(case_instantiate(instance, c, narrow, test_seed(), &base, &why), "%s", why.message);
    attention mixed = converted(&base, ATTUNE_F32, narrow, ATTUNE_F32),
              widened = converted(&base, ATTUNE_F32, ATTUNE_F32, ATTUNE_F32);
    results r[3];
    run(instance, device, &base, options, &r[0]);
    run(instance, device, &mixed, options, &r[1]);
    expect_same("lse", c, &r[0].lse, &r[1].lse);
    array rounded;
    cr_assert(array_convert(&r[1].o, narrow, &rounded, &why), "%s", why.message);
    int64_t finer = 0;
    for (int64_t i = 0; i < array_count(&rounded); i++)
        finer += array_get(&rounded, i) != array_get(&r[1].o, i);
    cr_expect_gt(finer, array_count(&rounded) / 2, "%s: o was rounded to %s", c->name, attune_dtype_string(narrow));
    expect_same("o, rounded", c, &r[0].o, &rounded);
    array_free(&rounded);
    if (computes_in_f32) {
        run(instance, device, &widened, options, &r[2]);
        expect_same("lse of widened keys", c, &r[1].lse, &r[2].lse);
        expect_same("o of widened values", c, &r[1].o, &r[2].o);
    }
    for (int i = 0; i < (computes_in_f32 ? 3 : 2); i++) {
        array_free(&r[i].o);
        array_free(&r[i].lse);
    }
    release(&mixed);
    release(&widened);
    case_release(&base);
}

typedef struct kernel {
    const char *options;
    attune_dtype narrow; /* of keys and values; 0 = f16 and bf16 alternately */
    bool f32;            /* computes in float32 */
    bool host;           /* of devices that run kernels on the CPU alone */
    uint32_t matrix;     /* ATTUNE_MATRIX_* that it needs */
} kernel;

static void run_all(const char *backend, const kernel *kernels, uint32_t count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t j = 0; j < count; j++) {
            const kernel *k = &kernels[j];
            if ((k->host && !info.limits.host) || (k->matrix & ~info.limits.matrix))
                continue;
            const attune_dtype narrow = k->narrow ? k->narrow : (i + j) % 2 ? ATTUNE_BF16 : ATTUNE_F16;
            check(instance, device, &shapes[i], narrow, k->options, k->f32);
        }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(mixed, cpu)
{
    static const kernel kernels[] = {
        {.options = "{\"KERNEL\": \"cpu\"}", .f32 = true},
        {.options = "{\"KERNEL\": \"cpu\", \"BLOCK_M\": 16, \"BLOCK_N\": 32}", .f32 = true}};
    run_all("cpu", kernels, 2);
}

Test(mixed, vulkan)
{
    static const kernel kernels[] = {
        {.options = "{\"KERNEL\": \"vulkan_portable\", \"BLOCK_M\": 16, \"BLOCK_N\": 32}", .f32 = true},
        {.options = "{\"KERNEL\": \"vulkan_subgroup\", \"BLOCK_M\": 16, \"BLOCK_N\": 32}", .f32 = true},
        {.options = "{\"KERNEL\": \"vulkan_lanes\", \"BLOCK_M\": 8, \"BLOCK_N\": 16}", .f32 = true, .host = true},
        {.options = "{\"KERNEL\": \"vulkan_coopmat\"}", .narrow = ATTUNE_F16, .matrix = ATTUNE_MATRIX_COOPMAT},
    };
    run_all("vulkan", kernels, sizeof kernels / sizeof kernels[0]);
}

Test(mixed, cuda)
{
    static const kernel kernels[] = {{.options = "{\"KERNEL\": \"cuda_sm80\"}"}};
    run_all("cuda", kernels, 1);
}

Test(mixed, opencl)
{
    static const kernel kernels[] = {{.options = "{\"BLOCK_M\": 16, \"BLOCK_N\": 32}", .f32 = true}};
    run_all("opencl", kernels, 1);
}

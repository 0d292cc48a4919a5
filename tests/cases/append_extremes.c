/* SPDX-License-Identifier: MIT */
/* New rows of a cache whose values are extreme: denormal, infinite, NaN, or beside the middle of two others. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/devices.h"
#include "tests/oracle/array.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

/* Kernels of the model are not those of a device. */
static const attune_instance_desc without_cache = {.struct_size = sizeof without_cache, .cache_folder = ""};

/* Bits of binary16 that a driver's conversions may lose, and blocks of values that are not finite. */
static void draw_extremes(random_state *r, uint16_t rows[8][32])
{
    for (int row = 0; row < 8; row++)
        for (int c = 0; c < 32; c++) {
            const uint16_t bits = (uint16_t)random_u64(r), sign = bits & 0x8000u, normal = (bits & 0xbfffu) | 0x2000u;
            const bool denormal = row == 1 || (row == 2 && c % 3);
            rows[row][c] = row == 0 ? sign : denormal ? bits & 0x83ffu : normal;
        }
    rows[3][5] = 0x7c00;
    rows[4][31] = 0xfc00;
    rows[5][0] = 0x7e00;
    rows[6][7] = 0xfe00;
    rows[6][8] = 0x7c00;
}

/* Values of f32 whose blocks have factors without a finite inverse, and some with. Where a device may lose denormals
 * there are none. */
static void draw_tiny(random_state *r, float rows[8][32])
{
    static const float most[8] = {1e-37f, 3e-37f, 4e-37f, 1.3e-38f, 2.3e-38f, 2.4e-38f, 1e-36f, 1e-30f};
    for (int row = 0; row < 8; row++)
        for (int c = 0; c < 32; c++) {
            const float x = (float)(1.2e-38 + ((double)most[row] - 1.2e-38) * random_uniform(r));
            rows[row][c] = (random_u64(r) & 1 ? 1.0f : -1.0f) * (c == row ? most[row] : c % 5 == 4 ? 0 : x);
        }
}

/* Bytes of a row of 32 columns. */
static uint64_t extreme_size(attune_dtype dtype)
{
    return 32 / attune_dtype_block(dtype) * attune_dtype_size(dtype);
}

/* Eight rows in a cache of the device, as keys and as values. */
static void append_extremes(attune_device *device, attune_dtype dtype, const attune_dtype dtypes[2], const void *rows,
                            uint8_t bytes[2][8 * 32 * sizeof(float)])
{
    const uint64_t size = 8 * extreme_size(dtype);
    const int64_t places[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = dtype,
                                    .kv_dtype = dtypes[0],
                                    .v_dtype = dtypes[1],
                                    .head_dim = 32,
                                    .q_len = 8,
                                    .kv_len = 8,
                                    .tokens = 8};
    attune_plan *plan;
    attune_buffer *k, *v, *from, *slots;
    OK(attune_plan_create(device, &problem, NULL, &plan));
    OK(attune_buffer_create(device, 8 * extreme_size(dtypes[0]), &k));
    OK(attune_buffer_create(device, 8 * extreme_size(dtypes[1]), &v));
    OK(attune_buffer_create(device, size, &from));
    OK(attune_buffer_create(device, sizeof places, &slots));
    OK(attune_buffer_write(from, 0, rows, size));
    OK(attune_buffer_write(slots, 0, places, sizeof places));
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = {.buffer = k, .dtype = dtypes[0], .rank = 4, .size = {1, 1, 8, 32}},
                                .v = {.buffer = v, .dtype = dtypes[1], .rank = 4, .size = {1, 1, 8, 32}}};
    const attune_tensor tensor = {.buffer = from, .dtype = dtype, .rank = 3, .size = {8, 1, 32}};
    const attune_append_args args = {.struct_size = sizeof args,
                                     .k = tensor,
                                     .v = tensor,
                                     .cache = &cache,
                                     .slots = {.buffer = slots, .dtype = ATTUNE_I64, .rank = 1, .size = {8}}};
    attune_completion done;
    OK(attune_append(plan, attune_device_queue(device), &args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    OK(attune_buffer_read(k, 0, bytes[0], 8 * extreme_size(dtypes[0])));
    OK(attune_buffer_read(v, 0, bytes[1], 8 * extreme_size(dtypes[1])));
    attune_buffer_destroy(k);
    attune_buffer_destroy(v);
    attune_buffer_destroy(from);
    attune_buffer_destroy(slots);
    attune_plan_destroy(plan);
}

/* A NaN stays one; its sign and payload are the device's, so that a cache's NaNs are compared as one NaN. */
static void canonical_nans(attune_dtype dtype, uint8_t *bytes, uint64_t size)
{
    const size_t each = attune_dtype_size(dtype);
    if (dtype != ATTUNE_F32 && dtype != ATTUNE_F16)
        return;
    for (uint64_t at = 0; at < size; at += each) {
        uint32_t bits = 0;
        memcpy(&bits, bytes + at, each);
        if (dtype == ATTUNE_F32 ? (bits & 0x7fffffffu) > 0x7f800000u : (bits & 0x7fffu) > 0x7c00u)
            memset(bytes + at, 0xff, each);
    }
}

/* Rows that are neither normalised nor rotated have the CPU's bits, whatever is in them. */
static void run_extremes(const char *backend)
{
    static const attune_dtype dtypes[][2] = {
        {ATTUNE_F32, ATTUNE_F16}, {ATTUNE_Q8_0, ATTUNE_Q4_0}, {ATTUNE_Q8_0, ATTUNE_Q4_0}};
    attune_instance *instance;
    attune_device *cpu;
    OK(attune_instance_create(&without_cache, &instance));
    attune_device *device = device_or_skip(instance, backend);
    OK(attune_device_open(instance, "cpu", &cpu));
    random_state r = {test_seed() + 3};
    uint16_t rows[8][32];
    float tiny[8][32];
    draw_extremes(&r, rows);
    draw_tiny(&r, tiny);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        uint8_t got[2][8 * 32 * sizeof(float)], expected[2][8 * 32 * sizeof(float)];
        const attune_dtype dtype = i < 2 ? ATTUNE_F16 : ATTUNE_F32;
        const void *from = i < 2 ? (const void *)rows : tiny;
        append_extremes(device, dtype, dtypes[i], from, got);
        append_extremes(cpu, dtype, dtypes[i], from, expected);
        for (int v = 0; v < 2; v++) {
            const size_t row = extreme_size(dtypes[i][v]);
            canonical_nans(dtypes[i][v], got[v], 8 * row);
            canonical_nans(dtypes[i][v], expected[v], 8 * row);
            for (size_t at = 0; at < 8 * row; at++)
                cr_expect_eq(got[v][at], expected[v][at], "%s from %s, row %zu, byte %zu: %02x, on the CPU %02x",
                             attune_dtype_string(dtypes[i][v]), attune_dtype_string(dtype), at / row, at % row,
                             got[v][at], expected[v][at]);
        }
    }
    attune_device_destroy(cpu);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(append, cuda_of_extremes)
{
    run_extremes("cuda");
}

Test(append, model_of_extremes)
{
    model_or_skip();
    run_extremes("cuda");
}

Test(append, vulkan_of_extremes)
{
    run_extremes("vulkan");
}

Test(append, opencl_of_extremes)
{
    run_extremes("opencl");
}

/* A double just below the middle of two f16 is nearer to the lower one; rounded to f32 first it would be the middle. */
Test(append, rounded_once)
{
    const uint16_t ones[8] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00};
    const int64_t slot = 0;
    float weights[8];
    uint16_t got[2][8];
    attune_instance *instance;
    attune_device *device;
    attune_plan *plan;
    attune_buffer *buffers[5];
    const attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = 8, .q_len = 1, .kv_len = 1, .tokens = 1};
    for (int i = 0; i < 8; i++)
        weights[i] = 1 + 3 * 0x1p-11f;
    OK(attune_instance_create(NULL, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    OK(attune_plan_create(device, &problem, NULL, &plan));
    for (int i = 0; i < 5; i++)
        OK(attune_buffer_create(device, 64, &buffers[i]));
    OK(attune_buffer_write(buffers[0], 0, ones, sizeof ones));
    OK(attune_buffer_write(buffers[1], 0, weights, sizeof weights));
    OK(attune_buffer_write(buffers[2], 0, &slot, sizeof slot));
    const attune_tensor row = {.buffer = buffers[0], .dtype = ATTUNE_F16, .rank = 3, .size = {1, 1, 8}},
                        norm = {.buffer = buffers[1], .dtype = ATTUNE_F32, .rank = 1, .size = {8}};
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = {.buffer = buffers[3], .dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, 1, 8}}};
    attune_append_args args = {.struct_size = sizeof args,
                               .k = row,
                               .cache = &cache,
                               .slots = {.buffer = buffers[2], .dtype = ATTUNE_I64, .rank = 1, .size = {1}},
                               .k_norm = norm,
                               .q_norm = norm,
                               .norm_epsilon = 0x1p-30,
                               .q = row,
                               .q_out = row};
    args.q_out.buffer = buffers[4];
    OK(attune_append(plan, attune_device_queue(device), &args, NULL));
    for (int i = 0; i < 2; i++)
        OK(attune_buffer_read(buffers[3 + i], 0, got[i], sizeof got[i]));
    for (int i = 0; i < 16; i++)
        cr_expect_eq(got[i / 8][i % 8], 0x3c01, "%s, column %d: %04x", i / 8 ? "q_out" : "k", i % 8, got[i / 8][i % 8]);
    for (int i = 0; i < 5; i++)
        attune_buffer_destroy(buffers[i]);
    attune_plan_destroy(plan);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

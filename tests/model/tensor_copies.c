/* SPDX-License-Identifier: MIT */
/* tcgen05.cp of the model itself: tests/model/tensor_copies.cu, and what the model says of its misuse. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/machine.h"
#include "tests/model/own.h"

/* Of tensor_copies.cu. */
#define NOTHING 0
#define FILL    0x5eedu
#define COLUMNS 16
#define FIRST   4

typedef struct shape {
    int rows, bits, multicast;
} shape;

static const shape shapes[] = {{128, 256, MODEL_MULTICAST_NONE}, {128, 128, MODEL_MULTICAST_NONE},
                               {64, 128, MODEL_MULTICAST_02_13}, {64, 128, MODEL_MULTICAST_01_23},
                               {32, 128, MODEL_MULTICAST_4},     {4, 256, MODEL_MULTICAST_NONE}};

static void *load(const char *name, int ctas)
{
    char cluster[32];
    (void)snprintf(cluster, sizeof cluster, "-DATTUNE_CLUSTER=%d", ctas);
    const char *const options[] = {cluster};
    return own_load("tensor_copies.cu", name, options, 1);
}

static void set_seed(int seed)
{
    char text[8];
    (void)snprintf(text, sizeof text, "%d", seed);
    cr_assert_eq(setenv("ATTUNE_MODEL_SEED", text, 1), 0);
}

static uint32_t word_of(int rank, int row, int word)
{
    return 0x10000000u + (uint32_t)rank * 0x1000000u + (uint32_t)row * 0x100u + (uint32_t)word;
}

/* The row that a lane has, or -1: of each warp's 32 lanes. */
static int row_of(const shape *s, int lane, int first)
{
    static const int halves[][4] = {[MODEL_MULTICAST_02_13] = {0, 1, 0, 1}, [MODEL_MULTICAST_01_23] = {0, 0, 1, 1}};
    if (s->rows == 4)
        return lane % 32 == first ? lane / 32 : -1;
    if (s->rows == 32)
        return lane % 32;
    return s->rows == 64 ? halves[s->multicast][lane / 32] * 32 + lane % 32 : lane;
}

/* Copies and compares. What is said of a launch that fails, or NULL. */
static const char *copy(void *kernel, int ctas, shape s, int format, int swizzle, int first, int misuse)
{
    const int words = s.bits / 32;
    uint32_t *const from = own_memory((size_t)(ctas * s.rows * words) * sizeof *from),
                    *const to = own_memory((size_t)(ctas * 128 * COLUMNS) * sizeof *to);
    for (int i = 0; i < ctas * s.rows * words; i++)
        from[i] = word_of(i / words / s.rows, i / words % s.rows, i % words);
    void *parameters[] = {(void *)&from, (void *)&to, &s.rows, &s.bits, &s.multicast,
                          &format,       &swizzle,    &first,  &misuse};
    const char *const why = own_launch(kernel, (unsigned)ctas, parameters);
    for (int i = 0; !why && i < ctas * 128 * COLUMNS; i++) {
        const int rank = i / COLUMNS / 128, lane = i / COLUMNS % 128, word = i % COLUMNS - FIRST;
        const int row = word >= 0 && word < words ? row_of(&s, lane, first) : -1;
        const uint32_t expected = row < 0 ? FILL : word_of(rank, row, word);
        cr_assert_eq(to[i], expected, "%d x %d: rank %d lane %d column %d: %08x, expected %08x", s.rows, s.bits, rank,
                     lane, i % COLUMNS, to[i], expected);
    }
    return why;
}

Test(tensor_copies, shapes)
{
    own_open();
    for (int ctas = 1; ctas <= 2; ctas++) {
        void *const kernel = load("attune_tensor_copy", ctas);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int seed = 1; seed <= 3; seed++)
                for (int swizzle = 0; swizzle <= 2; swizzle += 2) {
                    set_seed(seed);
                    const char *const why =
                        copy(kernel, ctas, shapes[i], 0, swizzle, shapes[i].rows == 4 ? seed % 4 * 8 : 0, NOTHING);
                    cr_expect_null(why, "%d x %d: %s", shapes[i].rows, shapes[i].bits, why);
                }
    }
}

Test(tensor_copies, refused)
{
    static const struct {
        shape shape;
        int format, swizzle, first;
        const char *report;
    } table[] = {
        {{64, 128, MODEL_MULTICAST_NONE}, 0, 0, 0, ".64x128b with .warpx2"},
        {{32, 128, MODEL_MULTICAST_02_13}, 0, 0, 0, ".32x128b with .warpx4"},
        {{64, 256, MODEL_MULTICAST_NONE}, 0, 0, 0, "of the shape .64x256b"},
        {{128, 128, MODEL_MULTICAST_NONE}, MODEL_FORMAT_B6X16_P32, 0, 0, ".b6x16_p32: the model does not decompress"},
        {{128, 128, MODEL_MULTICAST_NONE}, MODEL_FORMAT_B4X16_P64, 0, 0, ".b4x16_p64: the model does not decompress"},
        {{128, 128, MODEL_MULTICAST_NONE}, 0, 4, 0, "another layout"},
        {{32, 128, MODEL_MULTICAST_4}, 0, 0, 32, "to lane 32"},
        {{4, 256, MODEL_MULTICAST_NONE}, 0, 0, 32, "one of lanes 0 to 31"},
    };
    own_open();
    void *const kernel = load("attune_tensor_copy", 1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *const why =
            copy(kernel, 1, table[i].shape, table[i].format, table[i].swizzle, table[i].first, NOTHING);
        cr_expect(why && strstr(why, table[i].report), "%zu: %s", i, why);
    }
}

/* Each is found under every schedule. */
Test(tensor_copies, misuse)
{
    static const struct {
        int misuse, ctas;
        const char *report;
    } table[] = {
        {1, 2, "the CTA of odd rank issues tcgen05 instructions of its pair"},
        {2, 2, "of shared memory, which"},
        {3, 1, "without a fence of the asynchronous proxy"},
        {3, 2, "without a fence of the asynchronous proxy"},
        {4, 1, "of shared memory, which"},
        {5, 1, "which a tcgen05.st writes that its thread has not waited for"},
        {6, 1, "of tensor memory, which was written without tcgen05.fence between"},
        {7, 1, "of tensor memory, which was written without a barrier between"},
        {7, 2, "of tensor memory, which was written without a barrier between"},
        {8, 1, "of tensor memory, which"},
        {8, 2, "of tensor memory, which"},
        {9, 1, "of tensor memory, which was written without tcgen05.fence between"},
        {10, 1, "of tensor memory, which"},
    };
    own_open();
    void *const kernels[] = {load("attune_tensor_copy", 1), load("attune_tensor_copy", 2)};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int seed = 1; seed <= 3; seed++) {
            set_seed(seed);
            const int ctas = table[i].ctas;
            const char *const why = copy(kernels[ctas - 1], ctas, shapes[0], 0, 0, 0, table[i].misuse);
            cr_expect(why && strstr(why, table[i].report), "misuse %d, seed %d: %s", table[i].misuse, seed, why);
        }
}

/* Small integers, in bf16 and float32. */
static int element(int i, int j)
{
    return (i * 7 + j * 3) % 5 - 2;
}

static uint32_t bits_of(int x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint32_t *pairs_of(int rows, int factor)
{
    uint32_t *const made = own_memory((size_t)rows * 8 * sizeof *made);
    for (int i = 0; i < rows * 8; i++)
        made[i] = bits_of(element(i / 8 * factor, i % 8 * 2)) >> 16 |
                  (bits_of(element(i / 8 * factor, i % 8 * 2 + 1)) & 0xffff0000u);
    return made;
}

/* A product of what the same thread copied before it. What is said of a launch that fails, or NULL. */
static const char *multiply(void *kernel, int misuse)
{
    const uint32_t *const a = pairs_of(128, 1), *const b = pairs_of(16, 3);
    uint32_t *const before = own_memory((size_t)128 * 16 * sizeof *before);
    const float *const d = own_memory((size_t)128 * 16 * sizeof *d);
    for (int i = 0; i < 128 * 16; i++) /* [half of the columns][row] */
        before[i] = bits_of(i / 8 % 128 - i % 8 - i / 1024 * 8);
    void *parameters[] = {(void *)&a, (void *)&b, (void *)&before, (void *)&d, &misuse};
    const char *const why = own_launch(kernel, 1, parameters);
    for (int i = 0; !why && i < 128 * 16; i++) {
        int sum = i / 16 - i % 16;
        for (int k = 0; k < 16; k++)
            sum += element(i / 16, k) * element(i % 16 * 3, k);
        cr_assert(d[i] == (float)sum, "row %d column %d: %g, expected %d", i / 16, i % 16, (double)d[i], sum);
    }
    return why;
}

Test(tensor_copies, products)
{
    static const struct {
        int misuse;
        const char *report;
    } table[] = {
        {11, "of tensor memory, which was read without a barrier between"},
        {12, "of tensor memory, which"},
    };
    own_open();
    void *const kernel = load("attune_tensor_copy_product", 1);
    for (int seed = 1; seed <= 3; seed++) {
        set_seed(seed);
        const char *why = multiply(kernel, NOTHING);
        cr_expect_null(why, "seed %d: %s", seed, why);
        for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
            why = multiply(kernel, table[i].misuse);
            cr_expect(why && strstr(why, table[i].report), "misuse %d, seed %d: %s", table[i].misuse, seed, why);
        }
    }
}

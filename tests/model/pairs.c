/* SPDX-License-Identifier: MIT */
/* Products by pairs of CTAs, .cta_group::2, of the model itself: tests/model/pairs.cu, and what it says of their
 * misuse. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/model/own.h"

#define DEPTH 64

#define NOTHING 0 /* of pairs.cu's misuse */

static void *load(int rows, int columns, int misuse)
{
    char own[3][32];
    (void)snprintf(own[0], sizeof own[0], "-DPAIR_ROWS=%d", rows);
    (void)snprintf(own[1], sizeof own[1], "-DPAIR_COLUMNS=%d", columns);
    (void)snprintf(own[2], sizeof own[2], "-DPAIR_MISUSE=%d", misuse);
    const char *const options[] = {"-DATTUNE_CLUSTER=2", own[0], own[1], own[2]};
    return own_load("pairs.cu", "attune_pair_product", options, 4);
}

/* Small integers, in bf16. */
static int element(int i, int j)
{
    return (i * 7 + j * 3) % 5 - 2;
}

static uint16_t brain(int x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t *device_matrix(int rows, int factor)
{
    uint16_t *made = own_memory((size_t)rows * DEPTH * 2);
    for (int i = 0; i < rows * DEPTH; i++)
        made[i] = brain(element(i / DEPTH * factor, i % DEPTH));
    return made;
}

/* Runs the product and compares it. What is said of a launch that fails, or NULL. */
static const char *multiply(int rows, int columns, int misuse)
{
    void *const kernel = load(rows, columns, misuse);
    const uint16_t *const a = device_matrix(rows, 1), *const b = device_matrix(columns, 3);
    const float *const d = own_memory((size_t)(256 * columns) * sizeof(float));
    void *parameters[] = {(void *)&a, (void *)&b, (void *)&d};
    const char *const why = own_launch(kernel, 2, parameters);
    if (why)
        return why;
    const int halves = rows == 128 ? 2 : 1; /* of the columns, in lanes 0 to 63 and 64 to 127 */
    for (int rank = 0; rank < 2; rank++)
        for (int lane = 0; lane < 128; lane++)
            for (int column = 0; column < columns / halves; column++) {
                const int i = rank * rows / 2 + lane % (rows / 2), j = column + lane / (rows / 2) * (columns / halves);
                int sum = 0;
                for (int k = 0; k < DEPTH; k++)
                    sum += element(i, k) * element(j * 3, k);
                const float found = d[(rank * 128 + lane) * columns + column];
                cr_assert(found == (float)sum, "rank %d lane %d column %d: %g, expected %d", rank, lane, column,
                          (double)found, sum);
            }
    return NULL;
}

Test(pairs, products)
{
    static const int shapes[][2] = {{256, 64}, {256, 96}, {256, 128}, {128, 64}, {128, 96}};
    own_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const char *const why = multiply(shapes[i][0], shapes[i][1], NOTHING);
        cr_expect_null(why, "%d x %d: %s", shapes[i][0], shapes[i][1], why);
    }
}

Test(pairs, shapes_that_do_not_exist)
{
    own_open();
    const char *const why = multiply(256, 48, NOTHING);
    cr_expect(why && strstr(why, "columns are multiples of 32"), "%s", why);
}

/* Each is found under every schedule. */
Test(pairs, misuse)
{
    static const struct {
        int misuse;
        const char *report;
    } table[] = {
        {1, "the CTA of odd rank issues tcgen05 instructions of its pair"},
        {2, "the tcgen05.alloc or dealloc of the pair's other CTA"},
        {3, "the CTAs of a pair allocate or free other tensor memory"},
        {4, "of shared memory, which"},
        {5, "without a fence of the asynchronous proxy"},
        {6, "phase of an mbarrier"},
        {7, "of tensor memory, which"},
        {8, "of tensor memory, which was written without tcgen05.fence between"},
        {9, "frees lane"},
        {10, "of shared memory, which"},
    };
    own_open();
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int seed = 1; seed <= 3; seed++) {
            char text[8];
            (void)snprintf(text, sizeof text, "%d", seed);
            cr_assert_eq(setenv("ATTUNE_MODEL_SEED", text, 1), 0);
            const char *const why = multiply(256, 64, table[i].misuse);
            cr_expect(why && strstr(why, table[i].report), "misuse %d, seed %d: %s", table[i].misuse, seed, why);
        }
}

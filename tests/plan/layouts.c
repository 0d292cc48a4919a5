/* SPDX-License-Identifier: MIT */
/* The layouts of Vulkan's and OpenCL's kernels cover their tiles and waste nothing; the bounds on loops count each one.
 */
#include <criterion/criterion.h>

#include "attune/attune.h"
#include "plan/layout.h"

static const uint32_t dims[] = {8, 24, 64, 72, 128, 136, 192, 256};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* parts of `each` are the fewest that hold `all`. */
static bool is_ceil(uint32_t parts, uint32_t each, uint32_t all)
{
    return parts && (uint64_t)parts * each >= all && (uint64_t)(parts - 1) * each < all;
}

static void check_backward(uint32_t outer, uint32_t inner, uint32_t threads, uint32_t d, uint32_t dv, bool keys)
{
    attune__backward_layout l;
    if (attune__backward_layout_make(outer, inner, threads, d, dv, keys, &l))
        return;
#define HOLDS(...)                                                                                                     \
    cr_assert((__VA_ARGS__), "%u x %u, %u threads, %u, %u, keys %d: %s", outer, inner, threads, d, dv, keys,           \
              #__VA_ARGS__)
    HOLDS(4 * l.TX == inner && l.TX * l.TY == threads);
    HOLDS(l.TM * l.TY >= outer && (l.TM == 1 || l.TM * l.TY == outer));
    HOLDS(is_ceil(l.TO, 4 * l.TX, d));
    HOLDS(keys ? is_ceil(l.TO_V, 4 * l.TX, dv) : l.TO_V == 1);
    HOLDS(l.X_SIZE == l.TM * l.TO && l.Y_SIZE == l.TM * l.TO_V);
    HOLDS(l.X_STRIDE == d / 4 + 1 && l.Y_STRIDE == dv / 4 + 1);
    HOLDS(is_ceil(l.FETCH_A, 8 * threads, outer * l.SLICE) && is_ceil(l.FETCH_B, 8 * threads, inner * l.SLICE));
    HOLDS(is_ceil(l.FETCH_X, 8 * threads, l.CHUNK * d) && is_ceil(l.FETCH_Y, 8 * threads, l.CHUNK * dv));
    HOLDS(l.CHUNK >= 4 && l.CHUNK <= inner && l.CHUNK * l.X_STRIDE <= l.SLICE_SIZE);
    HOLDS(!keys || l.CHUNK * l.Y_STRIDE <= l.SLICE_SIZE);
#undef HOLDS
}

Test(layouts, of_backward)
{
    for (uint32_t outer = 4; outer <= 64; outer *= 2)
        for (uint32_t inner = 4; inner <= 64; inner *= 2)
            for (uint32_t threads = 32; threads <= 256; threads *= 2)
                for (size_t i = 0; i < COUNT(dims); i++)
                    for (size_t j = 0; j < COUNT(dims); j++)
                        for (int keys = 0; keys < 2; keys++)
                            check_backward(outer, inner, threads, dims[i], dims[j], keys);
}

/* The keys, columns, pairs and results of opencl/decode.cl each have an item, and none has two. */
static void check_few_rows(uint32_t m, uint32_t n, uint32_t threads, uint32_t d, uint32_t dv)
{
    attune__few_rows_layout l;
    if (attune__few_rows_layout_make(m, n, threads, (attune__few_rows_shape){d, dv, false, false}, &l))
        return;
    const uint32_t widest = d > dv ? d : dv;
#define HOLDS(...) cr_assert((__VA_ARGS__), "%u x %u, %u threads, %u, %u: %s", m, n, threads, d, dv, #__VA_ARGS__)
    HOLDS(l.KEY_LANES * l.TEAMS == threads && l.TEAMS * l.KEYS == n);
    HOLDS(8 * l.KEY_LANES >= widest && (l.KEY_LANES == 1 || 4 * l.KEY_LANES < widest));
    HOLDS(l.PAIRS == m * l.KEYS && is_ceil(l.PAIR_GROUPS, 4, l.PAIRS) && is_ceil(l.SCORES, threads, l.PAIRS * l.TEAMS));
    HOLDS(is_ceil(l.FINDS, threads, n) && l.S_STRIDE % 2 == 1 && l.S_STRIDE >= l.PAIR_GROUPS);
    HOLDS(4 * l.POOL_SIZE >= l.PAIRS * threads && m % l.ROUND_ROWS == 0);
    HOLDS(l.POOL_SIZE >= l.ROUND_ROWS * l.TEAMS * (dv / 4) && is_ceil(l.ROUND_SIZE, threads, l.ROUND_ROWS * dv / 4));
    HOLDS(l.SUM_SIZE == m / l.ROUND_ROWS * l.ROUND_SIZE);
#undef HOLDS
}

Test(layouts, of_few_rows_on_opencl)
{
    for (uint32_t m = 1; m <= 8; m *= 2)
        for (uint32_t n = 1; n <= 1024; n *= 2)
            for (uint32_t threads = 1; threads <= 512; threads *= 2)
                for (size_t i = 0; i < COUNT(dims); i++)
                    for (size_t j = 0; j < COUNT(dims); j++)
                        check_few_rows(m, n, threads, dims[i], dims[j]);
}

/* As devices report them: NVIDIA's, Intel's, AMD's, llvmpipe's. */
static const attune__matrix_shape shapes[] = {{16, 16, 16, 32, ATTUNE_FRAGMENT_QUADS},
                                              {8, 16, 16, 16, 0},
                                              {16, 16, 16, 64, 0},
                                              {8, 8, 8, 8, ATTUNE_FRAGMENT_COLUMNS}};

static uint32_t up(uint32_t value, uint32_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Regions of `memory`, in groups of eight elements: where Q is held in registers, it passes through those of K and V.
 */
static void check_matrices(uint32_t m, uint32_t n, uint32_t warps, attune__matrix_shape x, uint32_t d, uint32_t dv)
{
    attune__matrix_layout l;
    attune__registers_layout r;
#define HOLDS(...)                                                                                                     \
    cr_assert((__VA_ARGS__), "%u x %u, %u warps, %u, %u, matrices %u x %u x %u: %s", m, n, warps, d, dv, x.m, x.n,     \
              x.k, #__VA_ARGS__)
    if (!attune__matrix_layout_make(m, n, warps, x, d, dv, &l)) {
        const uint32_t k_row = up(d, x.k) / 8 | 1, v_row = up(dv, x.n) / 8 | 1;
        const uint32_t kv = n * larger(k_row, v_row), q = m * k_row;
        HOLDS(l.HOLD_Q == (up(d, x.k) <= 128));
        HOLDS(l.HELD_COUNT == (l.HOLD_Q ? m / warps / x.m * (up(d, x.k) / x.k) : 1));
        HOLDS(l.Q_OFFSET == (l.HOLD_Q ? 0 : kv));
        HOLDS(l.WARPS_OFFSET == (l.HOLD_Q ? larger(kv, q) : kv + q));
        HOLDS(l.O_COUNT == m / warps / x.m * (up(dv, x.n) / x.n) && l.S_COUNT == m / warps / x.m * (n / x.n));
    }
    if (x.fragment_layout && !attune__registers_layout_make(m, n, warps, x, d, dv, &r)) {
        const uint32_t k_row = up(d, x.n) / 8 | 1, v_row = up(dv, x.n) / 8 | 1;
        const uint32_t kv = n * larger(k_row, v_row);
        HOLDS(r.HELD_COUNT == m / warps / x.m * (up(d, x.n) / x.n));
        HOLDS(r.O_COUNT == m / warps / x.m * (up(dv, x.n) / x.n) && r.S_COUNT == m / warps / x.m * (n / x.n));
        HOLDS(r.SLOT == kv && r.MEMORY_SIZE >= 69 + larger(4 * kv, r.Q_ROWS * k_row));
        HOLDS(m % r.Q_ROWS == 0 && r.Q_ROWS % (m / warps) == 0);
        /* The loops of a step: products, copies of K and V, and the codes' products. */
        const uint32_t loops = up(d, x.n) / x.n + n / x.n + (n * (2 * k_row + 2 * v_row) / (warps * x.lanes) + 5) +
                               m / warps / x.m * (up(dv, x.n) / x.n) * (n / x.n + 2) + 4;
        const uint32_t bound = attune__matrix_most_steps(m, n, warps, x, d, dv), tested = 2048 / n;
        HOLDS(bound == (32000 / loops < tested ? 32000 / loops : tested));
    }
#undef HOLDS
}

/* Regions of `memory` lie behind one another, hold their tiles, and are in the registers' budget where they are held.
 */
static void check_backward_matrices(uint32_t outer, uint32_t inner, uint32_t warps, attune__matrix_shape x, uint32_t d,
                                    uint32_t dv, bool keys)
{
    attune__backward_matrix_layout l;
    if (!x.fragment_layout || attune__backward_matrix_layout_make(outer, inner, warps, x, d, dv, keys, &l))
        return;
#define HOLDS(...)                                                                                                     \
    cr_assert((__VA_ARGS__), "%u x %u, %u warps, %u, %u, keys %d, matrices %u x %u x %u: %s", outer, inner, warps, d,  \
              dv, keys, x.m, x.n, x.k, #__VA_ARGS__)
    HOLDS(l.ROW_TILES * l.MATRIX_M * (warps / l.TEAM) == outer);
    HOLDS(l.S_TILES * (l.SPLIT_DEPTH ? 1 : l.TEAM) * l.MATRIX_N == inner);
    HOLDS(is_ceil(l.A_TILES, (l.SPLIT_DEPTH ? l.TEAM : 1) * x.n, up(d, x.n)));
    HOLDS(is_ceil(l.A2_TILES, (l.SPLIT_DEPTH ? l.TEAM : 1) * x.n, up(dv, x.n)));
    HOLDS(is_ceil(l.X_TILES, l.TEAM * x.n, up(d, x.n)) && (!keys || is_ceil(l.Y_TILES, l.TEAM * x.n, up(dv, x.n))));
    HOLDS(8 * l.B_GROUPS >= l.X_TILES * l.TEAM * x.n && 8 * l.B_GROUPS >= up(d, x.n));
    HOLDS(8 * l.B2_GROUPS >= l.Y_TILES * l.TEAM * x.n && 8 * l.B2_GROUPS >= up(dv, x.n));
    HOLDS(l.B_STRIDE % 2 && l.B2_STRIDE % 2 && l.P_STRIDE % 2 && 8 * l.P_STRIDE >= inner);
    HOLDS(l.B2_OFFSET == inner * l.B_STRIDE);
    uint32_t end = l.B2_OFFSET + inner * l.B2_STRIDE;
    HOLDS(l.A_OFFSET == (l.HOLD_A ? 0 : end));
    end += l.HOLD_A ? 0 : outer * l.B_STRIDE;
    HOLDS(l.A2_OFFSET == (l.HOLD_A2 ? 0 : end));
    end += l.HOLD_A2 ? 0 : outer * l.B2_STRIDE;
    HOLDS(l.P_OFFSET == end && l.DS_OFFSET == end + (keys ? outer * l.P_STRIDE : 0));
    HOLDS(l.STATE_OFFSET == l.DS_OFFSET + outer * l.P_STRIDE);
    HOLDS(l.SUM_OFFSET == l.STATE_OFFSET + (keys ? inner / 2 : 0) && 4 * l.SUM_STRIDE > x.n);
    HOLDS(l.MEMORY_SIZE >=
          l.SUM_OFFSET + (l.SPLIT_DEPTH ? warps * 2 * l.ROW_TILES * l.S_TILES * x.m * l.SUM_STRIDE : 0));
    HOLDS(!l.HOLD_A || l.MEMORY_SIZE >= outer * l.B_STRIDE);
    HOLDS(!l.HOLD_A2 || l.MEMORY_SIZE >= outer * l.B2_STRIDE);
    HOLDS(l.OUT_CHUNK && l.MEMORY_SIZE >= l.TEAM * outer * l.OUT_STRIDE && 4 * l.OUT_STRIDE > l.OUT_CHUNK * x.n);
    HOLDS(!(l.HOLD_A || l.HOLD_A2) || l.registers <= ATTUNE__MOST_MATRIX_REGISTERS);
#undef HOLDS
}

Test(layouts, of_backward_matrices)
{
    for (uint32_t outer = 8; outer <= 128; outer *= 2)
        for (uint32_t inner = 8; inner <= 128; inner *= 2)
            for (uint32_t warps = 1; warps <= 16; warps *= 2)
                for (size_t s = 0; s < COUNT(shapes); s++)
                    for (size_t i = 0; i < COUNT(dims); i++)
                        for (size_t j = 0; j < COUNT(dims); j++)
                            for (int keys = 0; keys < 2; keys++)
                                check_backward_matrices(outer, inner, warps, shapes[s], dims[i], dims[j], keys);
}

Test(layouts, of_matrices)
{
    for (uint32_t m = 8; m <= 256; m *= 2)
        for (uint32_t n = 8; n <= 256; n *= 2)
            for (uint32_t warps = 1; warps <= 8; warps *= 2)
                for (size_t s = 0; s < COUNT(shapes); s++)
                    for (size_t i = 0; i < COUNT(dims); i++)
                        for (size_t j = 0; j < COUNT(dims); j++)
                            check_matrices(m, n, warps, shapes[s], dims[i], dims[j]);
}

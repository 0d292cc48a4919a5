/* SPDX-License-Identifier: MIT */
#include "plan/layout.h"

#include <attune/attune.h>
#include <stddef.h>

/* Groups of four scores of one invocation, whose permissions are the bits of a word, or of two. */
#define MOST_PART      8
#define MOST_LONG_PART 16

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Slices of Q and K, and what they leave to V. */
static void set_slices(attune__scalar_layout *l, uint32_t slice, uint32_t most_chunk)
{
    const uint32_t slice_row = slice / 4 + 1, chunk_row = l->head_dim_v / 4 + 1;
    l->slice = slice;
    l->slice_size = most((l->block_m + l->block_n) * slice_row, 4 * chunk_row);
    for (l->chunk = 4; 2 * l->chunk <= most_chunk && 2 * l->chunk * chunk_row <= l->slice_size;)
        l->chunk *= 2;
    l->fetch_q = (l->block_m * (slice / 8) + l->threads - 1) / l->threads;
    l->fetch_k = (l->block_n * (slice / 8) + l->threads - 1) / l->threads;
    l->fetch_v = (l->chunk * (l->head_dim_v / 8) + l->threads - 1) / l->threads;
    l->bytes = UINT64_C(16) * (2 * l->slice_size + l->s_size) + UINT64_C(4) * (l->rows_size + l->reduce_size + 4);
}

void attune__scalar_layout_flatten(attune__scalar_layout *layout)
{
    set_slices(layout, 8, 4);
}

const char *attune__scalar_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                       uint32_t head_dim_v, bool subgroups, attune__scalar_layout *layout)
{
    attune__scalar_layout l = {
        .threads = threads, .block_m = block_m, .block_n = block_n, .head_dim = head_dim, .head_dim_v = head_dim_v};
    if (block_n < 4 || threads < block_n / 4)
        return "four of its columns belong to each invocation of a row";
    if (threads < block_m || (uint64_t)block_m * block_n > (uint64_t)threads * 4 * MOST_LONG_PART)
        return "an invocation has at most 64 scores, all of one row";
    /* 8 x 8 scores of an invocation take two thirds of the reads that twice 8 x 4 would. */
    l.tn = block_n >= 8 && (uint64_t)block_m * block_n >= (uint64_t)threads * 64 ? 2 : 1;
    l.tx = block_n / 4 / l.tn;
    l.ty = threads / l.tx;
    l.tm = most(block_m / l.ty, 1);
    l.to = (head_dim_v / 4 + l.tx - 1) / l.tx;
    l.o_size = l.tm * l.to;
    l.parts = least(threads / block_m, block_n / 4);
    l.part = block_n / 4 / l.parts;
    /* Rows of S begin on other banks for the invocations that read them together. */
    l.s_stride = block_n / 4 + (subgroups ? least(l.parts, 4) : 1);
    l.s_size = block_m * l.s_stride;
    l.rows_size = block_m;
    l.reduce_size = subgroups ? 0 : block_m * l.parts;
    set_slices(&l, head_dim % 16 == 0 ? 16 : 8, block_n);
    *layout = l;
    return NULL;
}

const char *attune__backward_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t threads, uint32_t head_dim,
                                         uint32_t head_dim_v, bool keys, attune__backward_layout *layout)
{
    attune__backward_layout l = {.threads = threads,
                                 .outer_rows = outer_rows,
                                 .inner_rows = inner_rows,
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim_v};
    if (inner_rows < 4 || threads < inner_rows / 4)
        return "four of its columns belong to each invocation of a row";
    if ((uint64_t)outer_rows * inner_rows > (uint64_t)threads * 4 * MOST_PART)
        return "an invocation has at most 32 scores";
    l.tx = inner_rows / 4;
    l.ty = threads / l.tx;
    l.tm = most(outer_rows / l.ty, 1);
    l.to = (head_dim / 4 + l.tx - 1) / l.tx;
    l.to_v = keys ? (head_dim_v / 4 + l.tx - 1) / l.tx : 1;
    l.slice = head_dim % 16 || head_dim_v % 16 ? 8 : 16;
    l.s_stride = inner_rows / 4 + 1;
    const uint32_t slice_row = l.slice / 4 + 1, chunk_row = (keys ? most(head_dim, head_dim_v) : head_dim) / 4 + 1;
    l.slice_size = most((outer_rows + inner_rows) * slice_row, 4 * chunk_row);
    for (l.chunk = 4; 2 * l.chunk <= inner_rows && 2 * l.chunk * chunk_row <= l.slice_size;)
        l.chunk *= 2;
    l.fetch_a = (outer_rows * (l.slice / 8) + threads - 1) / threads;
    l.fetch_b = (inner_rows * (l.slice / 8) + threads - 1) / threads;
    l.fetch_x = (l.chunk * (head_dim / 8) + threads - 1) / threads;
    l.fetch_y = (l.chunk * (head_dim_v / 8) + threads - 1) / threads;
    l.fetch = most(l.fetch_a + l.fetch_b, most(l.fetch_x, l.fetch_y));
    l.s_size = outer_rows * l.s_stride;
    l.bytes = UINT64_C(16) * (2 * l.slice_size + l.s_size) + UINT64_C(4) * 4;
    *layout = l;
    return NULL;
}

#define MOST_HELD  128 /* of the head dimension: longer rows of Q would leave O too few registers */
#define MOST_FETCH 8

const char *attune__matrix_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                       uint32_t head_dim, uint32_t head_dim_v, attune__matrix_layout *layout)
{
    const uint32_t lanes = matrix.lanes;
    attune__matrix_layout l = {.threads = warps * lanes,
                               .block_m = block_m,
                               .block_n = block_n,
                               .head_dim = head_dim,
                               .head_dim_v = head_dim_v,
                               .m = matrix.m,
                               .n = matrix.n,
                               .k = matrix.k,
                               .rows = block_m / warps};
    if (block_m % warps || l.rows < matrix.m || l.rows % matrix.m)
        return "each of the num_warps subgroups has the rows of at least one matrix";
    if (l.rows > lanes || lanes % l.rows)
        return "a subgroup has at most as many rows as lanes";
    if (block_n % matrix.n || block_n % matrix.k)
        return "it must be a multiple of the device's matrices";
    l.parts = lanes / l.rows;
    l.part = block_n / 4 / l.parts;
    if (!l.part || l.part > MOST_PART)
        return "a lane has 4 to 32 scores, all of one row";
    l.row_tiles = l.rows / matrix.m;
    l.s_tiles = block_n / matrix.n;
    l.q_tiles = (head_dim + matrix.k - 1) / matrix.k;
    l.o_tiles = (head_dim_v + matrix.n - 1) / matrix.n;
    l.hold_q = l.q_tiles * matrix.k <= MOST_HELD;
    /* An odd number of groups from one row to the next: eight rows lie in different banks. */
    const uint32_t k_groups = l.q_tiles * matrix.k / 8, v_groups = l.o_tiles * matrix.n / 8;
    l.k_stride = k_groups | 1;
    l.v_stride = v_groups | 1;
    l.s_stride = block_n / 4 + 1;
    l.p_stride = block_n / 8 + 1;
    l.fetch = least((block_n * most(k_groups, v_groups) + l.threads - 1) / l.threads, MOST_FETCH);
    const uint32_t kv_size = block_n * most(l.k_stride, l.v_stride), q_size = block_m * l.k_stride;
    l.q_at = l.hold_q ? 0 : kv_size;
    l.warps_at = l.hold_q ? most(kv_size, q_size) : kv_size + q_size;
    l.extra_at = l.rows * l.s_stride;
    l.warp_size = l.extra_at + l.rows * matrix.n / 4;
    l.memory_size = l.warps_at + warps * l.warp_size;
    l.bytes = UINT64_C(16) * l.memory_size + 4;
    *layout = l;
    return NULL;
}

#define MOST_SHARED  128 /* of the head dimension: longer rows of Q would leave K and V too little shared memory */
#define MOST_COUNTED 128 /* keys of a tile, whose codes of NaN and infinity a sum still tells apart */

const char *attune__registers_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps,
                                          attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                          attune__registers_layout *layout)
{
    const uint32_t rows = block_m / warps;
    if (block_m % warps || rows < matrix.m || rows % matrix.m)
        return "each of the num_warps subgroups has the rows of at least one matrix";
    if (block_n % matrix.n || block_n % matrix.k)
        return "it must be a multiple of the device's matrices";
    if (block_n > MOST_COUNTED)
        return "it must be at most 128";
    attune__registers_layout l = {.threads = warps * matrix.lanes,
                                  .block_m = block_m,
                                  .block_n = block_n,
                                  .head_dim = head_dim,
                                  .head_dim_v = head_dim_v,
                                  .m = matrix.m,
                                  .n = matrix.n,
                                  .lanes = matrix.lanes,
                                  .row_tiles = rows / matrix.m,
                                  .s_tiles = block_n / matrix.n,
                                  .q_tiles = (head_dim + matrix.n - 1) / matrix.n,
                                  .o_tiles = (head_dim_v + matrix.n - 1) / matrix.n,
                                  .quads = matrix.fragment_layout == ATTUNE_FRAGMENT_QUADS};
    l.row_count = l.quads ? 2 : matrix.m;
    l.length = matrix.m * matrix.n / matrix.lanes;
    /* An odd number of groups from one row to the next: eight rows lie in different banks. */
    const uint32_t k_groups = l.q_tiles * matrix.n / 8, v_groups = l.o_tiles * matrix.n / 8;
    l.k_stride = k_groups | 1;
    l.v_stride = v_groups | 1;
    l.fetch = least((block_n * most(k_groups, v_groups) + l.threads - 1) / l.threads, MOST_FETCH);
    l.v_at = block_n * most(l.k_stride, l.v_stride);
    /* Where Q is held, K and V take its place. */
    l.hold_q = l.q_tiles * matrix.n > MOST_SHARED;
    l.q_at = l.hold_q ? 0 : 2 * l.v_at;
    l.p_at = l.hold_q ? most(2 * l.v_at, block_m * l.k_stride) : l.q_at + block_m * l.k_stride;
    l.memory_size = l.p_at + block_m * (block_n / 8 + 1);
    /* O leaves in as few pieces as there is room for. */
    for (l.o_chunk = l.o_tiles;; l.o_chunk = (l.o_chunk + 1) / 2) {
        l.o_stride = l.o_chunk * matrix.n / 4 + 1;
        if (block_m * l.o_stride <= l.memory_size || l.o_chunk == 1)
            break;
    }
    l.memory_size = most(l.memory_size, block_m * l.o_stride);
    l.bytes = UINT64_C(16) * l.memory_size + 4;
    *layout = l;
    return NULL;
}

uint32_t attune__lanes_most_steps(uint32_t block_m, uint32_t block_n, uint32_t lanes, uint32_t head_dim,
                                  uint32_t head_dim_v, uint32_t element_bytes)
{
    const uint32_t elements = 8 / element_bytes, groups = block_n / lanes, parts = head_dim / lanes;
    const uint32_t pieces = (head_dim_v + lanes * elements - 1) / (lanes * elements);
    const uint32_t before = block_m * (parts + pieces * elements + 3) + 1;
    const uint32_t after = block_m * (pieces * (elements / 2 + 2) + 2) + 1;
    const uint32_t score = block_m * (3 * groups + 2) + 1, softmax = block_m + 1;
    const uint32_t step = 4 + parts + 1 + score + softmax + pieces * (groups + block_n + 5) + 1;
    const uint32_t all = 65535, rest = 2 * (before + after);
    return rest < all ? (all - rest) / (2 * step) : 0;
}

uint32_t attune__matrix_most_steps(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                   uint32_t head_dim, uint32_t head_dim_v)
{
    const uint32_t seen = 2048 / block_n;
    attune__registers_layout l;
    if (!matrix.fragment_layout ||
        attune__registers_layout_make(block_m, block_n, warps, matrix, head_dim, head_dim_v, &l))
        return seen;
    const uint32_t copies = l.block_n * (l.k_stride + 2 * l.v_stride) / l.threads + 3;
    const uint32_t codes = l.row_tiles * l.o_tiles * (l.s_tiles + 2);
    const uint32_t most = 32000 / (l.q_tiles + l.s_tiles + copies + codes + 4);
    return most < seen ? most : seen;
}

uint32_t attune__lanes_backward_most_steps(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, uint32_t head_dim,
                                           uint32_t head_dim_v, uint32_t element_bytes)
{
    const uint32_t elements = 8 / element_bytes, groups = inner_rows / lanes, parts = (head_dim + head_dim_v) / lanes;
    const uint32_t columns = lanes * elements;
    const uint32_t pieces = (head_dim + columns - 1) / columns + (head_dim_v + columns - 1) / columns;
    const uint32_t before = outer_rows * (parts + pieces * elements + 5) + 8;
    const uint32_t after = outer_rows * (pieces * (elements / 2 + 2) + 4) + 2;
    const uint32_t score = outer_rows * (5 * groups + 2) + 1;
    const uint32_t step = 8 + parts + score + pieces * (groups + inner_rows + 5) + 2;
    const uint32_t all = 65535, rest = 2 * (before + after);
    return rest < all ? (all - rest) / (2 * step) : 0;
}

/* SPDX-License-Identifier: MIT */
#include "plan/layout.h"

#include <stddef.h>

#define MOST_PART 8 /* groups of four scores of one invocation: their permissions are the bits of a word */

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

const char *attune__scalar_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                       uint32_t head_dim_v, bool subgroups, attune__scalar_layout *layout)
{
    attune__scalar_layout l = {
        .threads = threads, .block_m = block_m, .block_n = block_n, .head_dim = head_dim, .head_dim_v = head_dim_v};
    if (block_n < 4 || threads < block_n / 4)
        return "four of its columns belong to each invocation of a row";
    if (threads < block_m || (uint64_t)block_m * block_n > (uint64_t)threads * 4 * MOST_PART)
        return "an invocation has at most 32 scores, all of one row";
    l.tx = block_n / 4;
    l.ty = threads / l.tx;
    l.tm = most(block_m / l.ty, 1);
    l.to = (head_dim_v / 4 + l.tx - 1) / l.tx;
    l.o_size = l.tm * l.to;
    l.slice = head_dim % 16 == 0 ? 16 : 8;
    l.parts = least(threads / block_m, block_n / 4);
    l.part = block_n / 4 / l.parts;
    /* Rows of S begin on other banks for the invocations that read them together. */
    l.s_stride = block_n / 4 + (subgroups ? least(l.parts, 4) : 1);

    const uint32_t slice_row = l.slice / 4 + 1, chunk_row = head_dim_v / 4 + 1;
    l.slice_size = most((block_m + block_n) * slice_row, 4 * chunk_row);
    for (l.chunk = 4; 2 * l.chunk <= block_n && 2 * l.chunk * chunk_row <= l.slice_size;)
        l.chunk *= 2;
    l.fetch_q = (block_m * (l.slice / 8) + threads - 1) / threads;
    l.fetch_k = (block_n * (l.slice / 8) + threads - 1) / threads;
    l.fetch_v = (l.chunk * (head_dim_v / 8) + threads - 1) / threads;
    l.s_size = block_m * l.s_stride;
    l.rows_size = block_m;
    l.reduce_size = subgroups ? 0 : block_m * l.parts;
    l.bytes = UINT64_C(16) * (2 * l.slice_size + l.s_size) + UINT64_C(4) * (l.rows_size + l.reduce_size + 4);
    *layout = l;
    return NULL;
}

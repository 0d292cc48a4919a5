/* SPDX-License-Identifier: MIT */
/*
 * How a kernel lays its tile over invocations and shared memory: what follows from a choice, computed once for the
 * planner, which counts the bytes, and for the backend, which specialises the kernel with the numbers.
 */
#ifndef ATTUNE_PLAN_LAYOUT_H
#define ATTUNE_PLAN_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* shaders/forward.comp; its comment says what the numbers are. Sizes of slices and s are in groups of four floats. */
typedef struct attune__scalar_layout {
    uint32_t threads, block_m, block_n, head_dim, head_dim_v;
    uint32_t slice, chunk;
    uint32_t tx, ty, tm, to;
    uint32_t parts, part;
    uint32_t s_stride, o_size;
    uint32_t fetch_q, fetch_k, fetch_v; /* groups of eight elements of an invocation in one slice, or chunk */
    uint32_t slice_size;                /* of one of the two buffers */
    uint32_t s_size, rows_size, reduce_size;
    uint64_t bytes; /* of shared memory */
} attune__scalar_layout;

/* Returns NULL, or why the kernel cannot have the tile; all numbers are powers of two. */
const char *attune__scalar_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                       uint32_t head_dim_v, bool subgroups, attune__scalar_layout *layout);

#endif

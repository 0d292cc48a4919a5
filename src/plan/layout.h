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
    uint32_t tx, ty, tm, tn, to;
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

/* The least slices: a third of the code, which is slower, and compiled sooner. */
void attune__scalar_layout_flatten(attune__scalar_layout *layout);

/* One of the two kernels of shaders/backward.comp. The rows of its outer and inner tiles are BLOCK_N1 and BLOCK_M1 with
 * `keys`, BLOCK_M2 and BLOCK_N2 without. */
typedef struct attune__backward_layout {
    uint32_t threads, outer_rows, inner_rows, head_dim, head_dim_v;
    uint32_t slice, chunk;
    uint32_t tx, ty, tm, to, to_v; /* to_v: of dV, 1 without keys */
    uint32_t s_stride;
    uint32_t fetch_a, fetch_b, fetch_x, fetch_y, fetch;
    uint32_t slice_size, s_size;
    uint64_t bytes; /* of shared memory */
} attune__backward_layout;

/* As attune__scalar_layout_make. */
const char *attune__backward_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t threads, uint32_t head_dim,
                                         uint32_t head_dim_v, bool keys, attune__backward_layout *layout);

/* shaders/forward_matrix.comp; groups are 16 bytes, counts of matrices are called tiles. */
typedef struct attune__matrix_layout {
    uint32_t threads, block_m, block_n, head_dim, head_dim_v;
    uint32_t m, n, k;
    uint32_t rows; /* of a subgroup */
    uint32_t row_tiles, s_tiles, q_tiles, o_tiles;
    uint32_t parts, part;
    bool hold_q;
    uint32_t fetch;
    uint32_t k_stride, v_stride, s_stride, p_stride;
    uint32_t q_at, warps_at, warp_size, extra_at, memory_size;
    uint64_t bytes; /* of shared memory */
} attune__matrix_layout;

typedef struct attune__matrix_shape {
    uint32_t m, n, k, lanes;  /* the device's; lanes of a subgroup */
    uint32_t fragment_layout; /* ATTUNE_FRAGMENT_* */
} attune__matrix_shape;

/* shaders/forward_registers.comp */
typedef struct attune__registers_layout {
    uint32_t threads, block_m, block_n, head_dim, head_dim_v;
    uint32_t m, n, lanes;
    uint32_t row_tiles, s_tiles, q_tiles, o_tiles;
    bool quads;
    uint32_t row_count, length; /* of a lane: rows in a matrix, and elements */
    uint32_t fetch;
    bool hold_q;
    uint32_t k_stride, v_stride, v_at, q_at, p_at;
    uint32_t o_chunk, o_stride, memory_size;
    uint64_t bytes; /* of shared memory */
} attune__registers_layout;

/* Returns NULL, or why the kernel cannot have the tile; all numbers but the head dimensions are powers of two. */
const char *attune__matrix_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                       uint32_t head_dim, uint32_t head_dim_v, attune__matrix_layout *layout);

/* Likewise, of matrices whose fragment layout is known. */
const char *attune__registers_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps,
                                          attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                          attune__registers_layout *layout);

/*
 * Steps of block_n keys that shaders/lanes.comp can walk on Mesa's llvmpipe, which leaves all loops of a shader after
 * 65,535 turns of any of them together, silently. Each loop's last test is counted, and all twice: compilers unroll as
 * they like.
 */
uint32_t attune__lanes_most_steps(uint32_t block_m, uint32_t block_n, uint32_t lanes, uint32_t head_dim,
                                  uint32_t head_dim_v, uint32_t element_bytes);

/* The same of shaders/forward_matrix.comp, whose loops are not counted: a bound far below what was seen to be right;
 * and of shaders/forward_registers.comp, with NaN in every tile of V, where half of the budget is for what is not in
 * steps.
 */
uint32_t attune__matrix_most_steps(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                   uint32_t head_dim, uint32_t head_dim_v);

/* The same of shaders/lanes_backward.comp; a step is one inner tile. */
uint32_t attune__lanes_backward_most_steps(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, uint32_t head_dim,
                                           uint32_t head_dim_v, uint32_t element_bytes);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * How a kernel lays its tile over invocations and shared memory: what follows from a choice, computed once for the
 * planner, which counts the bytes, and for the backend, which specialises the kernel with the numbers.
 */
#ifndef ATTUNE_PLAN_LAYOUT_H
#define ATTUNE_PLAN_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* The members are the specialisation constants of a shader, by their names, and the bytes of its shared memory. */
#define CONSTANT(id, type, name, value) uint32_t name;
#define SHARED(type, name, count)

typedef struct attune__forward_layout {
#include "shaders/layout_forward.h"
    uint64_t bytes;
} attune__forward_layout;

typedef struct attune__backward_layout {
#include "shaders/layout_backward.h"
    uint64_t bytes;
} attune__backward_layout;

typedef struct attune__matrix_layout {
#include "shaders/layout_matrix.h"
    uint64_t bytes;
} attune__matrix_layout;

typedef struct attune__registers_layout {
#include "shaders/layout_registers.h"
    uint64_t bytes;
} attune__registers_layout;

#undef CONSTANT
#undef SHARED

/* The functions return NULL, or why the kernel cannot have the tile; all numbers but the head dimensions are powers of
 * two. */

/* `flat`: the least slices, a third of the code, which is slower, and compiled sooner. */
const char *attune__forward_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                        uint32_t head_dim_v, bool subgroups, bool flat, attune__forward_layout *layout);

/* One of the two kernels of shaders/backward.comp. The rows of its outer and inner tiles are BLOCK_N1 and BLOCK_M1 with
 * `keys`, BLOCK_M2 and BLOCK_N2 without. */
const char *attune__backward_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t threads, uint32_t head_dim,
                                         uint32_t head_dim_v, bool keys, attune__backward_layout *layout);

typedef struct attune__matrix_shape {
    uint32_t m, n, k, lanes;  /* the device's; lanes of a subgroup */
    uint32_t fragment_layout; /* ATTUNE_FRAGMENT_* */
} attune__matrix_shape;

const char *attune__matrix_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                       uint32_t head_dim, uint32_t head_dim_v, attune__matrix_layout *layout);

/* Of matrices whose fragment layout is known. */
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

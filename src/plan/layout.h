/* SPDX-License-Identifier: MIT */
/* How a kernel distributes its tile over invocations and shared memory. The planner counts the bytes, and the backend
 * specialises the kernel with the same numbers. */
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

typedef struct attune__decode_layout {
#include "shaders/layout_decode.h"
    uint64_t bytes;
    uint32_t registers; /* of a lane, about */
} attune__decode_layout;

typedef struct attune__few_rows_layout {
#include "shaders/layout_few_rows.h"
    uint64_t bytes;
    uint32_t registers; /* of an item, about */
} attune__few_rows_layout;

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

typedef struct attune__backward_matrix_layout {
#include "shaders/layout_backward_matrix.h"
    uint64_t bytes;
    uint32_t registers; /* of a lane, that its matrices take */
} attune__backward_matrix_layout;

typedef struct attune__lanes_layout {
#include "shaders/layout_lanes.h"
    uint64_t bytes;
} attune__lanes_layout;

#undef CONSTANT
#undef SHARED

/* The functions return NULL, or why the kernel does not support the tile. All numbers except the head dimensions are
 * powers of two. */

enum {
    ATTUNE__FORWARD_SUBGROUPS = 1, /* the invocations of a row exchange its maximum and sum without shared memory */
    ATTUNE__FORWARD_FLAT = 2,      /* the smallest slices, with a third of the code: slower, and compiles faster */
    ATTUNE__FORWARD_COLUMNS = 4,   /* eight columns of an invocation, not four, from 32 scores on, not from 64 */
    ATTUNE__FORWARD_ONE_HALF = 8,  /* one half of slices: a barrier more for each, before it is overwritten */
};
/* `form`: bits of the above. */
const char *attune__forward_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                        uint32_t head_dim_v, uint32_t form, attune__forward_layout *layout);

/* shaders/decode.comp: `lanes` of each of the `warps` subgroups. is_f32: elements of 32 bits. */
const char *attune__decode_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, uint32_t lanes,
                                       uint32_t head_dim, uint32_t head_dim_v, bool is_f32,
                                       attune__decode_layout *layout);

typedef struct attune__few_rows_shape {
    uint32_t head_dim, head_dim_v;
    bool is_f32, has_factors; /* elements of 32 bits; rows of K or V with a factor of their own */
} attune__few_rows_shape;

/* shaders/opencl/decode.cl. */
const char *attune__few_rows_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads,
                                         attune__few_rows_shape shape, attune__few_rows_layout *layout);

/* Bytes of shared memory that a kernel over a cache has besides. */
uint64_t attune__serving_layout_bytes(uint32_t block_n);
/* And where a tile may have rows of several sequences. */
uint64_t attune__members_layout_bytes(uint32_t members);

/* One of the two kernels of shaders/backward.comp. The rows of its outer and inner tiles are BLOCK_N1 and BLOCK_M1 with
 * `keys`, BLOCK_M2 and BLOCK_N2 without. */
const char *attune__backward_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t threads, uint32_t head_dim,
                                         uint32_t head_dim_v, bool keys, attune__backward_layout *layout);

/*
 * shaders/opencl/lanes.h: `lanes` are the items of a workgroup with `shuffles`, or those of a vector, 4, 8 or 16.
 */
const char *attune__lanes_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, bool shuffles,
                                      uint32_t head_dim, uint32_t head_dim_v, uint32_t element_bytes,
                                      attune__lanes_layout *layout);
/* shaders/opencl/serving.cl, which has the arrays of attune__serving_layout_bytes too: `width` rows in a vector of each
 * item, 1 where there are several items. `shares`: and those of attune__members_layout_bytes. */
const char *attune__lanes_serving_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t width,
                                              uint32_t threads, uint32_t head_dim, uint32_t head_dim_v, bool shares,
                                              attune__lanes_layout *layout);

typedef struct attune__matrix_shape {
    uint32_t m, n, k, lanes;  /* of the device; lanes of a subgroup */
    uint32_t fragment_layout; /* ATTUNE_FRAGMENT_* */
} attune__matrix_shape;

const char *attune__matrix_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                       uint32_t head_dim, uint32_t head_dim_v, attune__matrix_layout *layout);

/* For matrices of a known fragment layout. */
const char *attune__registers_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps,
                                          attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                          attune__registers_layout *layout);

/* A lane's registers for matrices: the rest is for addresses and operands. */
#define ATTUNE__MOST_MATRIX_REGISTERS 208
/* One of the two kernels of shaders/backward_matrix.comp, as attune__backward_layout_make; for matrices of a known
 * fragment layout. */
const char *attune__backward_matrix_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t warps,
                                                attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                                bool keys, attune__backward_matrix_layout *layout);

/*
 * The limit on steps of block_n keys of shaders/lanes.comp on Mesa's llvmpipe, which silently ends all loops of a
 * shader after 65,535 iterations in total. The last test of each loop is counted, and the sum is doubled, since
 * compilers unroll differently.
 */
uint32_t attune__lanes_most_steps(uint32_t block_m, uint32_t block_n, uint32_t lanes, uint32_t head_dim,
                                  uint32_t head_dim_v, uint32_t element_bytes);

/*
 * The same for shaders/forward_matrix.comp, whose loops are not counted: a bound far below the largest number that was
 * correct in tests; and for shaders/forward_registers.comp, with NaN in every tile of V, where half of the budget is
 * for iterations outside of the steps.
 */
uint32_t attune__matrix_most_steps(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                   uint32_t head_dim, uint32_t head_dim_v);

/* The same for shaders/lanes_backward.comp; a step is one inner tile. */
uint32_t attune__lanes_backward_most_steps(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, uint32_t head_dim,
                                           uint32_t head_dim_v, uint32_t element_bytes);

/* The same for a kernel of shaders/backward_matrix.comp, with NaN in every inner tile. */
uint32_t attune__backward_matrix_most_steps(const attune__backward_matrix_layout *layout, uint32_t outer_rows,
                                            uint32_t inner_rows, uint32_t threads);

#endif

/* SPDX-License-Identifier: MIT */
/* What CUDA's families share; and of the backward pass what its planner, its launch and its packs agree upon. */
#ifndef ATTUNE_PLAN_FAMILY_CUDA_H
#define ATTUNE_PLAN_FAMILY_CUDA_H

#include "plan/family.h"

typedef struct attune__cuda_tiles {
    const attune__tile *tiles;
    uint32_t count;
} attune__cuda_tiles;
#define ATTUNE__CUDA_TILES(array) ((attune__cuda_tiles){array, sizeof(array) / sizeof((array)[0])})

/* The options that every loop reads. */
#define ATTUNE__CUDA_LOOP                                                                                              \
    (ATTUNE__BIT(ATTUNE__NUM_STAGES) | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__BIT(ATTUNE__PRESCALE_QK) |             \
     ATTUNE__BIT(ATTUNE__USE_TMA) | ATTUNE__BIT(ATTUNE__BLOCKS_ARE_CONTIGUOUS) |                                       \
     ATTUNE__BIT(ATTUNE__APPROXIMATE_TANH))

/* That of the larger head dimension: up to 64, 128, 192, 256. */
static inline attune__cuda_tiles attune__cuda_by_head_dim(const attune__shape *shape,
                                                          const attune__cuda_tiles tables[4])
{
    const uint32_t d = shape->head_dim > shape->head_dim_v ? shape->head_dim : shape->head_dim_v;
    return tables[d <= 64 ? 0 : d <= 128 ? 1 : d <= 192 ? 2 : 3];
}

/* The registers that addresses, fragments and inlined expressions take, of the busiest thread: an estimate. */
static inline uint32_t attune__cuda_registers(const attune__shape *s)
{
    return 48 + (s->score_expr ? 4u : 0u) + (s->mask_expr ? 3u : 0u);
}

/* The families' workspace and variant functions. */
uint64_t attune__cuda_workspace_bytes(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                                      uint32_t split);
void attune__cuda_variant(const attune__shape *shape, const attune_plan_choice *choice, attune__variant *variant);

/* For kernels with one tile, BLOCK_M1 x BLOCK_N1: why it does not fit the mask's blocks, or NULL. */
const char *attune__cuda_refuse_blocks(const attune__shape *s, const uint32_t *v, attune__option *option);

/* The rows of every head are padded to a multiple in the workspace; no tile of rows is larger. */
#define ATTUNE__CUDA_ROW_BLOCK 128
/* An exact sum for each element of a capture whose gradient is wanted (cuda/sums.cuh). */
#define ATTUNE__CUDA_SUM_BYTES 64
/* The parts of a tile's dK and dV, each a warp's. */
#define ATTUNE__CUDA_TAIL_COUNTS 16

/*
 * Workspace, in bytes from its beginning. Everything is float32 but the sums:
 *
 *     lse   [batch][heads][row_stride]   as the kernels subtract it, +inf for empty rows and those past q_len
 *     delta [batch][heads][row_stride]   dot(o, d_o) - d_lse; 0 there
 *     sums  [elements][8] int64
 */
typedef struct attune__cuda_workspace {
    uint64_t row_stride; /* elements */
    uint64_t delta, sums, size;
} attune__cuda_workspace;
attune__cuda_workspace attune__cuda_backward_workspace(int64_t batch, int64_t heads, int64_t q_len, uint64_t elements);

/* Whether the kernels of cuda_sm80 stand behind a choice's own: for tensors that TMA cannot read, and in the backward
 * pass, where the own one adds dQ up, for sums that are no number. */
bool attune__cuda_has_fallback(const attune_plan_choice *choice);

/* Whether dK and dV are made by workgroups of their own: together they would fill the registers. */
bool attune__cuda_backward_apart(const attune__shape *shape);

/* Shared memory of the kernel for dK and dV, and of that for dQ. */
void attune__cuda_sm80_backward_bytes(const attune__shape *shape, const attune_plan_choice *choice, uint32_t bytes[2]);

/*
 * sm90a and sm80_atomic have one kernel, which adds dQ up in float32 in the workspace, where the sums of captures are
 * otherwise, and has those behind:
 *
 *     sums     [batch][heads][row_stride][columns], in tiles of BLOCK_M1 rows as the kernel holds them
 *     turns    u32 [batch][heads][row tiles][4]: how often a warp group's part of a tile was added to, where that has
 *              an order
 *     counter  int32 [2]: the next tile of keys, where that has one
 *     redo     int32: the sm80 kernels start over
 *     captures [elements][8] int64
 *
 * The bytes of the sums, and of what follows them but for the captures, multiples of 8.
 */
uint64_t attune__cuda_backward_sums(const attune__cuda_workspace *w, int64_t batch, int64_t heads, uint32_t head_dim,
                                    uint32_t head_dim_v);
uint64_t attune__cuda_backward_order(const attune__cuda_workspace *w, int64_t batch, int64_t heads);

/*
 * sm90a without a mask's blocks and without an order: tiles of keys take equally long, and those left over from whole
 * rounds of the workgroups (`ctas`) would have most of these wait. They come in pieces of rows, whose dK and dV are
 * added up in the workspace, before the turns:
 *
 *     pieces   [left] float [BLOCK_N][D + Dv], D and Dv padded to 16, past 128 to 128, as the threads hold them; then
 *              u32 [16]: how often each warp's part was added to
 */
typedef struct attune__cuda_tail {
    int64_t full_wave_tiles, left; /* tiles as they are, and such as come in pieces */
    int64_t each, rows;            /* pieces of a tile, rows of a piece */
} attune__cuda_tail;
/* ctas: 0 = no tile is divided; heads: whose rows a tile of keys meets, over the batch too. */
attune__cuda_tail attune__cuda_sm90_tail(int64_t tiles, int64_t ctas, int64_t q_len, int64_t heads, uint32_t block_m);
/* Of a tile. */
uint64_t attune__cuda_sm90_tail_bytes(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n);

/* The workspace of a backward plan, and what a kernel that adds dQ up has of it for the sums and the turns. */
uint64_t attune__cuda_backward_bytes(const attune__shape *shape, const attune__cost *cost);
uint64_t attune__cuda_backward_added(const attune__shape *shape);
/* The columns of the sums, with tiles of block_m rows. */
uint32_t attune__cuda_backward_dq_columns(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_m);
/* The shared memory of the kernels that round dQ. */
uint32_t attune__cuda_sm90_backward_dq_bytes(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_m);
uint32_t attune__cuda_sm80_backward_dq_bytes(uint32_t head_dim, uint32_t block_m, uint32_t block_n, uint32_t threads);

/* Whether the warp groups share the columns, and the kernel that rounds dQ has two workgroups for each tile. */
bool attune__cuda_sm90_backward_wide(uint32_t head_dim, uint32_t head_dim_v);
/* Whether a tile of keys has two workgroups, in a cluster, with half of it each. */
bool attune__cuda_sm90_backward_paired(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The workspace of the CPU's kernels. The arrays of a thread are in lists, from which the planner counts the bytes and
 * a kernel has its pointers: ARRAY(type, name, rows, columns), where REAL is the compute type (float; double for f64)
 * and `z` is an attune__cpu_sizes. Each array begins at a multiple of ATTUNE__CPU_ALIGNMENT.
 */
#ifndef ATTUNE_PLAN_LAYOUT_CPU_H
#define ATTUNE_PLAN_LAYOUT_CPU_H

#include "plan/plan.h"

/* Columns of a packed panel: a cache line of float. */
#define ATTUNE__PANEL ((size_t)16)
/* For the widest vector and the expressions' scratch. The caller's memory need not be aligned, so that a plan's bytes
 * include the padding. */
#define ATTUNE__CPU_ALIGNMENT ((size_t)64)

/* The most rows, and columns, of a tile that is sorted (cpu/order.h). */
#define ATTUNE__CPU_SORTED 128
/* Bytes of the orders that a thread keeps. */
#define ATTUNE__CPU_ORDERS 37888

/* Sizes are padded to whole panels. */
static inline size_t attune__cpu_pad(size_t n)
{
    return (n + ATTUNE__PANEL - 1) / ATTUNE__PANEL * ATTUNE__PANEL;
}

/* The distance of rows of s and o in elements: rows that are a power of two apart would lie in few sets of the L1
 * cache. */
static inline size_t attune__cpu_stride(size_t columns)
{
    return columns % 32 ? columns : columns + ATTUNE__PANEL;
}

typedef struct attune__cpu_sizes {
    uint64_t m, n, d, dv; /* of a tile, and the head dimensions, padded */
    uint64_t lds, ldo;    /* attune__cpu_stride of n and dv */
    uint64_t bits;        /* attune__cpu_tile_words */
    uint64_t widest;      /* elements of a row of k or of v */
    uint64_t expr;        /* shape->expr_scratch */
    uint64_t bounds;      /* shape->bounds_scratch */
    uint64_t cache;       /* 1 over a cache, else 0 */
    uint64_t kept;        /* attune__cpu_kept_tiles */
    uint64_t longest;     /* of m and n */
    uint64_t masked;      /* 1 with a mask, else 0 */
    uint64_t sorted;      /* 1 if tiles may be sorted (attune__cpu_sorts), else 0 */
    uint64_t staged;      /* 1 if rows of k and v are copied, for that or for pairs by themselves, else 0 */
} attune__cpu_sizes;

/* Forward and decode: what the core's cache should hold. */
#define ATTUNE__CPU_TILE(ARRAY)                                                                                        \
    ARRAY(REAL, q, z.m, z.d)                                                                                           \
    ARRAY(REAL, k, z.n, z.d)                                                                                           \
    ARRAY(REAL, v, z.n, z.dv)                                                                                          \
    ARRAY(REAL, s, z.m, z.lds)                                                                                         \
    ARRAY(REAL, o, z.m, z.ldo)                                                                                         \
    ARRAY(REAL, m, z.m, 1)     /* the running maximum, */                                                              \
    ARRAY(REAL, l, z.m, 1)     /* the sum of exp(s - m), */                                                            \
    ARRAY(REAL, valid, z.m, 1) /* and 1 if any pair was allowed */                                                     \
    ARRAY(uint8_t, allowed, 1, z.n)

/* The rest: for the allowed pairs of a tile; of a call over a cache; for bits that heads share. */
#define ATTUNE__CPU_THREAD(ARRAY)                                                                                      \
    ARRAY(uint16_t, at, 1, z.n)                       /* columns of one row */                                         \
    ARRAY(uint16_t, bits, 1, z.bits)                  /* of a partial tile */                                          \
    ARRAY(void, orders, z.sorted, ATTUNE__CPU_ORDERS) /* attune__known_orders */                                       \
    ARRAY(REAL, sorted_q, (z.sorted * z.m), z.d)      /* rows of q and o, and of k and v, of a sorted tile */          \
    ARRAY(REAL, sorted_o, (z.sorted * z.m), z.ldo)                                                                     \
    ARRAY(REAL, sorted_m, (z.sorted * z.m), 1)                                                                         \
    ARRAY(REAL, sorted_l, (z.sorted * z.m), 1)                                                                         \
    ARRAY(REAL, sorted_k, (z.sorted * z.n), z.d)                                                                       \
    ARRAY(REAL, sorted_v, (z.sorted * z.n), z.dv)                                                                      \
    ARRAY(void, expr, 1, z.expr)                                                                                       \
    ARRAY(void, bounds, z.cache, z.bounds)        /* of the mask over a tile */                                        \
    ARRAY(REAL, stage, (z.cache * z.n), z.widest) /* the rows of k, or v, of a tile */                                 \
    ARRAY(REAL, sum_o, (z.cache * z.m), z.ldo)    /* o, m, l and valid of the splits before this one */                \
    ARRAY(REAL, sum_m, (z.cache * z.m), 1)                                                                             \
    ARRAY(REAL, sum_l, (z.cache * z.m), 1)                                                                             \
    ARRAY(REAL, sum_valid, (z.cache * z.m), 1)                                                                         \
    ARRAY(uint8_t, absent, z.cache, z.n) /* of each key of a tile: it is in no page */                                 \
    ARRAY(uint32_t, kept_pairs, z.kept, 1)                                                                             \
    ARRAY(uint16_t, kept_bits, z.kept, z.bits)

/* Backward, for either loop: what the core's cache should hold, and the rest. */
#define ATTUNE__CPU_BACKWARD_TILE(ARRAY)                                                                               \
    ARRAY(REAL, q, z.m, z.d)                                                                                           \
    ARRAY(REAL, d_q, z.m, z.d)                                                                                         \
    ARRAY(REAL, d_o, z.m, z.dv)                                                                                        \
    ARRAY(REAL, o_panels, z.m, z.dv) /* dO, packed */                                                                  \
    ARRAY(REAL, k, z.n, z.d)                                                                                           \
    ARRAY(REAL, d_k, z.n, z.d)                                                                                         \
    ARRAY(REAL, v, z.n, z.dv)                                                                                          \
    ARRAY(REAL, d_v, z.n, z.dv)                                                                                        \
    ARRAY(REAL, p, z.m, z.n)                                                                                           \
    ARRAY(REAL, d_s, z.m, z.n)                                                                                         \
    ARRAY(REAL, transposed, z.n, z.m)                                                                                  \
    ARRAY(REAL, raw, 1, z.n) /* one row of scores, before the score expression */                                      \
    ARRAY(REAL, lse, z.m, 1)                                                                                           \
    ARRAY(REAL, delta, z.m, 1)                                                                                         \
    ARRAY(uint8_t, allowed, 1, z.n)
#define ATTUNE__CPU_BACKWARD_THREAD(ARRAY)                                                                             \
    ARRAY(uint16_t, at, z.masked, z.longest)                     /* columns of one row, or rows of one column */       \
    ARRAY(uint16_t, panel_rows, (z.masked * ATTUNE__PANEL), z.m) /* rows of each column of a panel */                  \
    ARRAY(uint16_t, bits, z.masked, z.bits)                      /* of a partial tile */                               \
    ARRAY(void, expr, 1, z.expr)                                                                                       \
    ARRAY(REAL, k_rows, (z.staged * z.n), z.d) /* of a tile of keys, for its allowed pairs or in another order */      \
    ARRAY(REAL, v_rows, (z.staged * z.n), z.dv)                                                                        \
    ARRAY(void, orders, z.sorted, ATTUNE__CPU_ORDERS) /* attune__known_orders */                                       \
    ARRAY(REAL, sorted_q, (z.sorted * z.m), z.d)      /* rows of q, d_o and their gradient, of a sorted tile */        \
    ARRAY(REAL, sorted_d_o, (z.sorted * z.m), z.dv)                                                                    \
    ARRAY(REAL, sorted_d_q, (z.sorted * z.m), z.d)                                                                     \
    ARRAY(REAL, sorted_lse, (z.sorted * z.m), 1)                                                                       \
    ARRAY(REAL, sorted_delta, (z.sorted * z.m), 1)                                                                     \
    ARRAY(REAL, sorted_d_k, (z.sorted * z.n), z.d) /* likewise of keys */                                              \
    ARRAY(REAL, sorted_d_v, (z.sorted * z.n), z.dv)                                                                    \
    ARRAY(uint32_t, kept_pairs, z.kept, 1)                                                                             \
    ARRAY(uint16_t, kept_bits, z.kept, z.bits)

/* A partial result of a call over a cache. */
#define ATTUNE__CPU_PART(ARRAY)                                                                                        \
    ARRAY(REAL, o, z.m, z.dv)                                                                                          \
    ARRAY(REAL, state, z.m, 3) /* m, l and valid */

/* Where each array begins; the bytes of the arrays of tiles, and all of them. */
#define ARRAY(type, name, rows, columns) uint64_t name;
typedef struct attune__cpu_layout {
    ATTUNE__CPU_TILE(ARRAY)
    ATTUNE__CPU_THREAD(ARRAY)
    uint64_t tile_bytes, bytes;
} attune__cpu_layout;
typedef struct attune__cpu_backward_layout {
    ATTUNE__CPU_BACKWARD_TILE(ARRAY)
    ATTUNE__CPU_BACKWARD_THREAD(ARRAY)
    uint64_t tile_bytes, bytes;
} attune__cpu_backward_layout;
typedef struct attune__cpu_part_layout {
    ATTUNE__CPU_PART(ARRAY)
    uint64_t bytes;
} attune__cpu_part_layout;
#undef ARRAY

attune__cpu_layout attune__cpu_layout_make(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
attune__cpu_backward_layout attune__cpu_backward_layout_make(const attune__shape *shape, uint32_t block_m,
                                                             uint32_t block_n);
/* The bytes of a thread, for the tiles of either loop. */
uint64_t attune__cpu_backward_thread_size(const attune__shape *shape, uint32_t block_m1, uint32_t block_n1,
                                          uint32_t block_m2, uint32_t block_n2);
attune__cpu_part_layout attune__cpu_part_layout_make(const attune__shape *shape, uint32_t block_m);

/* Whether rows and columns of a partial tile may be brought into another order (cpu/order.h): with a mask, and not over
 * a cache. */
bool attune__cpu_sorts(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
/* Of a partial tile: words of a panel's columns for each row, and for a sorted one the places of rows and columns. */
uint64_t attune__cpu_tile_words(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
/* The tiles of a row of blocks, or in backward of a column, whose bits a thread keeps, for the heads that share them.
 */
uint32_t attune__cpu_kept_tiles(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
/* Calls over a cache: 64 bytes, and 32 for each sequence and one more (cpu/cpu.h); the keys of a part; and how many
 * partial results a call can have. */
uint64_t attune__cpu_schedule_size(const attune__shape *shape);
uint32_t attune__cpu_split_keys(const attune__shape *shape);
uint64_t attune__cpu_parts(const attune__shape *shape, uint32_t block_m, uint32_t threads);

/* Where the workspace of a forward or decode call has its partial results, after the schedule of a call over a cache,
 * and the arrays of its first thread. `units` are those that the plan is for. */
typedef struct attune__cpu_workspace {
    uint64_t partials, threads;
} attune__cpu_workspace;
attune__cpu_workspace attune__cpu_workspace_make(const attune__shape *shape, uint32_t block_m, uint32_t split,
                                                 uint32_t units);

/*
 * Kernels that multiply 16-bit matrices keep each tile of k and v packed, for all threads: k[N][D] and v[N][Dv], D
 * padded to 32, in one or two bf16 for an element, and a byte for what is known of each tile. tiles = 0: rows of q are
 * so few, or keys so many, that each thread packs for itself.
 */
typedef struct attune__cpu_packed {
    uint64_t tiles, of_head; /* of a call with the plan's lengths; of a head of keys */
    uint64_t v, tile_bytes;  /* in a tile, where v begins */
    uint64_t states, bytes;  /* where the bytes of the tiles begin */
} attune__cpu_packed;
attune__cpu_packed attune__cpu_packed_make(const attune__shape *shape, uint32_t block_m, uint32_t block_n);

/* Likewise of a backward call with `rows` rows: REAL delta[rows] is at the beginning, then are double
 * sums[ATTUNE__CPU_GRADIENT_SLOTS][elements], if gradients of captures are requested. */
#define ATTUNE__CPU_GRADIENT_SLOTS 8
typedef struct attune__cpu_backward_workspace {
    uint64_t sums, threads;
} attune__cpu_backward_workspace;
attune__cpu_backward_workspace attune__cpu_backward_workspace_make(const attune__shape *shape, uint64_t rows,
                                                                   uint64_t elements);

#endif

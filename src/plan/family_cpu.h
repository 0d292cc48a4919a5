/* SPDX-License-Identifier: MIT */
/* The workspace of the CPU's kernels, on which planner and calls must agree. */
#ifndef ATTUNE_PLAN_FAMILY_CPU_H
#define ATTUNE_PLAN_FAMILY_CPU_H

#include "plan/plan.h"

/*
 * CPU: the bytes of one thread's scratch in a forward or decode pass, a multiple of 64. With M and N the block sizes, D
 * and Dv the head dimensions, all rounded up to multiples of 16, and T the compute type (float; double for f64), it
 * holds in this order, each rounded up to 64 bytes:
 *
 *     T q[M][D]   T k[N][D]   T v[N][Dv]   T s[M][N]   T o[M][Dv]   T state[3][M] (m, l, alpha)   uint8_t allowed[N]
 *
 * A thread has uint16_t at[N] and uint16_t bits[M][N / 16] behind it, for the allowed pairs of a partial tile. With
 * shape->tokens, it also has T stage[N][max(D, Dv)], uint8_t absent[N] and the sum of parts, T o[M][Dv] and
 * T state[3][M], after the scratch of expressions and shape->bounds_scratch, and the workspace begins with
 * attune__cpu_schedule_size bytes and attune__cpu_parts times attune__cpu_part_size.
 *
 * The workspace of a plan is attune__split_size(shape, split_kv, sizeof T), then compute_units times
 * attune__cpu_thread_size: these, then shape->expr_scratch, rounded up to a multiple of 256. Its arrays begin at
 * a multiple of ATTUNE__CPU_ALIGNMENT, in forward and backward, for the widest vector and the expressions' scratch. The
 * caller's memory need not be aligned, so that a plan's bytes include the padding.
 */
#define ATTUNE__CPU_ALIGNMENT ((size_t)64)
uint64_t attune__cpu_scratch_size(uint32_t block_m, uint32_t block_n, uint32_t head_dim, uint32_t head_dim_v,
                                  attune_dtype dtype);
/* 64 bytes, and 32 for each sequence and one more (cpu/cpu.h). */
uint64_t attune__cpu_schedule_size(const attune__shape *shape);
/* Calls over a cache: the keys of a part, the bytes of a part's partial result, and how many of them a call can have.
 */
uint32_t attune__cpu_split_keys(const attune__shape *shape);
uint64_t attune__cpu_part_size(const attune__shape *shape, uint32_t block_m);
uint64_t attune__cpu_parts(const attune__shape *shape, uint32_t block_m, uint32_t threads);
uint64_t attune__cpu_thread_size(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
/* At its end: the tiles of a row of blocks whose bits a thread keeps for the heads that share them, and their bytes:
 * uint32_t pairs[tiles], uint16_t bits[tiles][M][N / 16]. */
uint32_t attune__cpu_kept_tiles(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
uint64_t attune__cpu_kept_size(const attune__shape *shape, uint32_t block_m, uint32_t block_n);
/*
 * CPU, backward: likewise q[M][D] dq[M][D] do[M][Dv] do[M][Dv] (packed) k[N][D] dk[N][D] v[N][Dv] dv[N][Dv] p[M][N]
 * ds[M][N] transposed[N][M] raw[N] state[2][M] (lse, delta) allowed[N], for either loop. The workspace begins with T
 * delta[batch][heads][q_len], rounded up to 256, and double sums[ATTUNE__CPU_GRADIENT_SLOTS][elements], rounded up to
 * 64, if capture gradients are requested.
 */
#define ATTUNE__CPU_GRADIENT_SLOTS 8
uint64_t attune__cpu_backward_scratch_size(uint32_t block_m, uint32_t block_n, uint32_t head_dim, uint32_t head_dim_v,
                                           attune_dtype dtype);
/* The same, followed by the scratch of the expressions. */
uint64_t attune__cpu_backward_thread_size(const attune__shape *shape, uint64_t scratch);

#endif

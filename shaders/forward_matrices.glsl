/* SPDX-License-Identifier: MIT */
/* What the forward kernels on cooperative matrices share. A kernel has declared FETCH, THREADS and `memory`. */
#ifndef ATTUNE_FORWARD_MATRICES_GLSL
#define ATTUNE_FORWARD_MATRICES_GLSL

#include "forward_tile.glsl"

#define ROW_MAJOR    gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

const uint FETCHED = FETCH * THREADS;

uint lane, warp, tid;
float factor;
Group fetched[FETCH]; /* loads in flight */

/* O is rescaled only when the row maximum rises by more than this power of two. That is rare, and weights stay far
 * below the largest f16. */
const float RESCALE_THRESHOLD = SCORE ? 8.0 * LN2 : 8.0;

/* subgroupBarrier orders images and buffers too, for which some drivers wait. */
void wait_subgroup()
{
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

/* Groups that FETCH does not cover, or that are not aligned, are loaded here. SCAN looks for NaN and
 * infinity. */
#define WRITE_ROWS(where, from, stride, kv, groups, dim, row_stride, SCAN)                                             \
    {                                                                                                                  \
        if (aligned)                                                                                                   \
            [[unroll]] for (uint f = 0u; f < FETCH; f++) {                                                             \
                uint i = tid + f * THREADS, n = i / (groups), g = i % (groups);                                        \
                SCAN(fetched[f])                                                                                       \
                if (FETCHED <= BLOCK_N * (groups) || n < BLOCK_N)                                                      \
                    memory[(where) + n * (row_stride) + g] = fetched[f].low;                                           \
            }                                                                                                          \
        if (!aligned || FETCHED < BLOCK_N * (groups))                                                                  \
            [[dont_unroll]] for (uint i = tid + (aligned ? FETCHED : 0u); i < BLOCK_N * (groups); i += THREADS) {      \
                uint n = i / (groups), g = i % (groups);                                                               \
                Group late = fetch(address_add(address_step(from, (kv) + n, stride), g * 16u), aligned,                \
                                   g < (dim) / 8u && (kv) + n < kv_len);                                               \
                SCAN(late)                                                                                             \
                memory[(where) + n * (row_stride) + g] = late.low;                                                     \
            }                                                                                                          \
    }

#define NO_SCAN(group)

#endif

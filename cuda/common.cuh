/* SPDX-License-Identifier: MIT */
/* What the forward kernels share: types, the walk over a mask's blocks, tiles in shared memory, small arithmetic. */
#ifndef ATTUNE_CUDA_COMMON_CUH
#define ATTUNE_CUDA_COMMON_CUH

#include "arguments.h"

#if ATTUNE_HAVE_MASK || ATTUNE_HAVE_MASK_RANGE || ATTUNE_HAVE_SCORE
#include "mods.cuh"
#endif
/* What of a score is not recognised (arguments.h). */
#ifndef ATTUNE_HAVE_SCORE_LINE
#define ATTUNE_HAVE_SCORE_LINE 0
#endif
#ifndef ATTUNE_HAVE_SCORE_NEAR
#define ATTUNE_HAVE_SCORE_NEAR 0
#endif
#ifndef ATTUNE_SCORE_IS_LONG
#define ATTUNE_SCORE_IS_LONG 0
#endif
#ifndef ATTUNE_DELTA_LATE
#define ATTUNE_DELTA_LATE 0
#endif
#ifndef ATTUNE_READS_LATE
#define ATTUNE_READS_LATE 0
#endif
#ifndef ATTUNE_MASK_IS_LONG
#define ATTUNE_MASK_IS_LONG 0
#endif

#define ATTUNE_LOG2E 1.4426950408889634f
#define ATTUNE_LN2   0.6931471805599453f
#define ATTUNE_INF   __int_as_float(0x7f800000)

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

/* How a type lies in memory. */
template <int DTYPE> struct storage {
    typedef unsigned short type;
};
template <> struct storage<ATTUNE_CUDA_F32> {
    typedef float type;
};

/* Those of q and o are of their own; products are in that of k and v. */
#ifndef ATTUNE_Q_DTYPE
#define ATTUNE_Q_DTYPE ATTUNE_DTYPE
#endif
#ifndef ATTUNE_O_DTYPE
#define ATTUNE_O_DTYPE ATTUNE_DTYPE
#endif
typedef storage<ATTUNE_DTYPE>::type element;
typedef storage<ATTUNE_Q_DTYPE>::type q_element;
typedef storage<ATTUNE_O_DTYPE>::type o_element;

constexpr int HEAD_DIM = ATTUNE_HEAD_DIM, HEAD_DIM_V = ATTUNE_HEAD_DIM_V;
constexpr int BLOCK_M = ATTUNE_BLOCK_M, BLOCK_N = ATTUNE_BLOCK_N, STAGES = ATTUNE_NUM_STAGES;
constexpr int THREADS = 32 * ATTUNE_NUM_WARPS;
/* Does any pair need more than the product: then scores are in natural units, else raw products. */
constexpr bool HAVE_SCORE = ATTUNE_HAVE_SCORE;
constexpr bool HAVE_MASK = ATTUNE_HAVE_MASK || ATTUNE_HAVE_MASK_RANGE;

__device__ __forceinline__ constexpr int round_up(int value, int multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

#ifndef ATTUNE_SHARED_MEMORY
#define ATTUNE_SHARED_MEMORY 0 /* not given: not held against */
#endif
/* Whether a kernel's layout of shared memory has the bytes that the planner counts and the launch asks for. */
__device__ __forceinline__ constexpr bool planned(u64 layout, u64 over_it)
{
    return !ATTUNE_SHARED_MEMORY || (layout > over_it ? layout : over_it) == ATTUNE_SHARED_MEMORY;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The value of a 16-bit input in the low half. */
template <int DTYPE = ATTUNE_DTYPE> __device__ __forceinline__ float unpack(u32 bits)
{
    if constexpr (DTYPE == ATTUNE_CUDA_F16) {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
        return x;
    } else
        return __uint_as_float(bits << 16);
}

/* Two values in a 16-bit type, the first in the low half. */
template <int DTYPE = ATTUNE_DTYPE> __device__ __forceinline__ u32 pack(float low, float high)
{
    u32 two;
    if constexpr (DTYPE == ATTUNE_CUDA_F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

__device__ __forceinline__ u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

/* x, which cannot be known before y: the threads of a CTA stand in a row, so that %tid.y is 0. */
__device__ __forceinline__ int after(int x, float y)
{
    int zero;
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(zero));
    return x + (__float_as_int(y) & zero);
}

/* ------------------------------------------------------------------------------------------------ tiles of the work */

/* Which rows of which head a CTA has. */
struct tile_coord {
    int b, h, h_kv, q; /* q: the first row */
};

__device__ __forceinline__ int tile_count(const attune_cuda_arguments &a)
{
    return a.batch * a.heads * ((a.q_len + BLOCK_M - 1) / BLOCK_M);
}

/*
 * Heads next to one another share keys in the L2 cache. With lists the last rows of all heads come first: they are the
 * longest under a causal mask.
 */
__device__ __forceinline__ tile_coord tile_coord_of(const attune_cuda_arguments &a, int tile)
{
    int rows = (a.q_len + BLOCK_M - 1) / BLOCK_M, row, plane;
    if (a.order) {
        tile = ((const int *)a.order)[tile];
        plane = tile / rows;
        row = tile - plane * rows;
    } else {
        plane = tile / rows;
        row = tile - plane * rows;
        if (ATTUNE_HAVE_BLOCKS)
            row = rows - 1 - row;
    }
    tile_coord p;
    p.b = plane / a.heads;
    p.h = plane - p.b * a.heads;
    p.h_kv = p.h / (a.heads / a.kv_heads);
    p.q = row * BLOCK_M;
    return p;
}

/* ------------------------------------------------------------------------------------------- the walk over the keys */

/* A tile of keys. */
struct keys {
    int kv;     /* the first key; -1 = there are no more */
    bool full; /* every pair is allowed, but for the edge */
};

/* Whether its scores must be looked at one by one. */
__device__ __forceinline__ bool keys_masked(const keys &k, const attune_cuda_arguments &a)
{
    return (HAVE_MASK && !k.full) || k.kv + BLOCK_N > a.kv_len;
}

/* Where a kernel says that it may, walks begin with the last keys if the score has a slope along the keys: under a causal
 * mask with ALiBi a row's largest scores are its last ones, and maxima seen first need not be corrected. */
#if ATTUNE_SLOPES_GO_DOWN && ATTUNE_HAVE_SCORE_LINE
constexpr bool DOWN = ATTUNE_SCORE_LINE_SLOPED;
#else
constexpr bool DOWN = false;
#endif

#define NO_BLOCK (DOWN ? -1 : 0x7fffffff)

/* A row of both of a mask's lists, merged: ascending, or descending. */
struct lists {
    const int *partial, *full;
    int partials, fulls;         /* blocks left, past the next ones */
    int next_partial, next_full; /* NO_BLOCK at the end */
};

__device__ __forceinline__ void lists_open(lists &l, const attune_cuda_list &partial, const attune_cuda_list &full,
                                           i64 row)
{
    const i64 *partials = (const i64 *)partial.offsets + row, *fulls = (const i64 *)full.offsets + row;
    l.partial = (const int *)partial.indices + partials[0];
    l.partials = (int)(partials[1] - partials[0]);
    l.full = (const int *)full.indices + fulls[0];
    l.fulls = (int)(fulls[1] - fulls[0]);
    if (DOWN) {
        l.partial += l.partials - 1;
        l.full += l.fulls - 1;
    }
}

__device__ __forceinline__ void lists_next(lists &l, bool full)
{
    if (full)
        l.next_full = l.fulls-- > 0 ? *(DOWN ? l.full-- : l.full++) : NO_BLOCK;
    else
        l.next_partial = l.partials-- > 0 ? *(DOWN ? l.partial-- : l.partial++) : NO_BLOCK;
}

__device__ __forceinline__ void lists_begin(lists &l)
{
    lists_next(l, false);
    lists_next(l, true);
}

/* The tiles of keys that a block of rows meets, in the same order. */
struct block_iterator {
    keys next;
#if ATTUNE_HAVE_BLOCKS
    lists left;
    int end; /* of the block that `next` is in; if the walk goes down, its begin */
#endif
};

__device__ __forceinline__ void block_iterator_enter(block_iterator &w, const attune_cuda_arguments &a)
{
#if ATTUNE_HAVE_BLOCKS
    int block = DOWN ? max(w.left.next_partial, w.left.next_full) : min(w.left.next_partial, w.left.next_full);
    w.next.full = block == w.left.next_full;
    if (block == NO_BLOCK) {
        w.next.kv = -1;
    } else {
        w.next.kv = block * a.kv_block;
        w.end = min(w.next.kv + a.kv_block, a.kv_len);
        if (DOWN) {
            int first = w.next.kv;
            w.next.kv += max(w.end - 1 - first, 0) / BLOCK_N * BLOCK_N;
            w.end = first;
        }
        lists_next(w.left, w.next.full);
    }
#endif
}

__device__ __forceinline__ void block_iterator_begin(block_iterator &w, const attune_cuda_arguments &a, const tile_coord &p)
{
#if ATTUNE_HAVE_BLOCKS
    i64 row = p.b * a.mask_batch_rows + p.h * a.mask_head_rows + p.q / a.q_block;
    lists_open(w.left, a.partial, a.full, row);
    lists_begin(w.left);
    block_iterator_enter(w, a);
#else
    w.next.kv = DOWN ? (a.kv_len - 1) / BLOCK_N * BLOCK_N : 0;
    w.next.full = true;
#endif
}

/* The next tile; after the last one, -1 for ever. */
__device__ __forceinline__ keys block_iterator_next(block_iterator &w, const attune_cuda_arguments &a)
{
    keys taken = w.next;
    if (taken.kv >= 0) {
        w.next.kv += DOWN ? -BLOCK_N : BLOCK_N;
#if ATTUNE_HAVE_BLOCKS
        if (DOWN ? w.next.kv < w.end : w.next.kv >= w.end)
            block_iterator_enter(w, a);
#else
        if (w.next.kv >= a.kv_len || w.next.kv < 0)
            w.next.kv = -1;
#endif
    }
    return taken;
}

/* ----------------------------------------------------------------------------------------------------------- scores */

/*
 * Without a score expression S stays the raw product, and the scale is folded into the exponent: fold * s. That needs
 * a positive factor, or the largest product would not be the largest score: the sign goes to the product.
 */
__device__ __forceinline__ float fold_factor(float scale)
{
    return HAVE_SCORE ? ATTUNE_LOG2E : scale == 0.0f ? 1.0f : fabsf(scale) * ATTUNE_LOG2E;
}

/* A row's maximum. A NaN among the scores is lost on the way to it but not in the sum, which +inf makes NaN as well. */
__device__ __forceinline__ float nan_or(float top, float sum)
{
    return sum != sum && top != ATTUNE_INF ? sum : top;
}

/* What multiplies the product only when the scale is not positive. */
__device__ __forceinline__ float fold_sign(float scale)
{
    return scale < 0.0f ? -1.0f : 0.0f;
}

/* Whether every row begins at a multiple of 16 bytes. */
template <typename T = element> __device__ __forceinline__ bool view_aligned(const attune_cuda_view &v)
{
    u64 bytes = sizeof(T);
    return ((v.address | (u64)v.batch * bytes | (u64)v.head * bytes | (u64)v.row * bytes) & 15) == 0;
}

/* The thread, hidden from the compiler: addresses made from it are computed where they are used and not kept in
 * registers from one tile to the next. */
__device__ __forceinline__ int thread_index_remat()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* The CTA, likewise: what follows from it is computed once more instead of being kept. */
__device__ __forceinline__ int block_here()
{
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* x, known only here: its reciprocal, say, is not kept for a division. */
__device__ __forceinline__ int known_here(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

#endif

/* SPDX-License-Identifier: MIT */
/* Shared by all attention kernels: types, tile coordinates, the block iterator over a mask's lists, small arithmetic.
 */
#ifndef ATTUNE_CUDA_COMMON_CUH
#define ATTUNE_CUDA_COMMON_CUH

#include "config.cuh"
#include "layout.h"

constexpr float ATTUNE_LOG2E = 1.4426950408889634f, ATTUNE_LN2 = 0.6931471805599453f;
#define ATTUNE_INF __int_as_float(0x7f800000)

typedef long long i64;

/* The storage type of a dtype: 16-bit types are kept as their bits. */
template <int DTYPE> struct storage {
    typedef unsigned short type;
};
template <> struct storage<ATTUNE_CUDA_F32> {
    typedef float type;
};

typedef storage<config::DTYPE>::type element;
typedef storage<config::Q_DTYPE>::type q_element;
typedef storage<config::O_DTYPE>::type o_element;
constexpr bool O_FLOAT32 = config::O_DTYPE == ATTUNE_CUDA_F32; /* the outputs are f32 */

constexpr int HEAD_DIM = config::HEAD_DIM, HEAD_DIM_V = config::HEAD_DIM_V;
constexpr int BLOCK_M = config::BLOCK_M, BLOCK_N = config::BLOCK_N, STAGES = config::NUM_STAGES;
constexpr int WARPS = config::NUM_WARPS, THREADS = 32 * WARPS;
/* With a score expression S holds scaled scores; without one it holds raw products (fold_factor). */
constexpr bool HAVE_SCORE = config::HAVE_SCORE;
/* Partial blocks have forbidden pairs. */
constexpr bool HAVE_MASK = config::HAVE_MASK_PAIRS || config::HAVE_MASK_RANGE;
/* K and V of a cache are quantised: the products have their codes, exact in bf16, and parts of Q and P in bf16. */
constexpr bool CODES = config::K_TYPE >= ATTUNE_CUDA_F8E4M3 && config::V_TYPE >= ATTUNE_CUDA_F8E4M3;
/* Terms of a key (terms.cuh): those of the score, then those of the mask. */
constexpr int KEY_TERMS = config::SCORE_KEYS + config::MASK_KEYS;

__device__ __forceinline__ constexpr int round_up(int value, int multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/*
 * A row's maximum times the factor is rounded by up to half of its last place. Past 2^22 that is an error of the
 * weights' logarithms that P in f16 may not hold: of -1e9, which some add to pairs that they mean to forbid, P was
 * infinite or 0. Where scores may be as large, a maximum that is gets subtracted first, which is exact near it. bf16
 * holds errors of up to 64, those of maxima up to 2^31 / log2(e); past them, as of -1e10, weights were infinite. So
 * exponents subtract no less than LEAST_BASE there, by which weights of scores below it are 0.
 */
constexpr bool SCORES_ARE_FREE = HAVE_SCORE && !config::HAVE_SCORE_CAP;
constexpr bool SCORES_MAY_BE_LARGE = SCORES_ARE_FREE && config::DTYPE == ATTUNE_CUDA_F16;
constexpr float LARGE_SCORE = 4194304.0f, LEAST_BASE = -1.4e9f;

/* The number that the exponents of a row subtract: 0 without an allowed pair so far, since -inf - -inf is NaN. */
__device__ __forceinline__ float base_of(float row_max)
{
    float base = row_max == -ATTUNE_INF ? 0.0f : row_max;
    return SCORES_ARE_FREE && config::DTYPE == ATTUNE_CUDA_BF16 ? fmaxf(base, LEAST_BASE) : base;
}

/* The parameters of the layout of shared memory (layout_sm80.h, layout_sm90.h). */
constexpr attune_cuda_tile TILE = {
    sizeof(element), HEAD_DIM, HEAD_DIM_V, BLOCK_M, BLOCK_N, WARPS, STAGES, KEY_TERMS, 0, 0, 0, 0, config::SCORE_TILE};

/* Whether a layout has the size that the planner computed and the launch requests. */
__device__ constexpr bool planned(u32 size)
{
    return !config::SHARED_MEMORY || size == config::SHARED_MEMORY;
}

/* The value of a 16-bit input in the low half. */
template <int DTYPE = config::DTYPE> __device__ __forceinline__ float unpack(u32 bits)
{
    if constexpr (DTYPE == ATTUNE_CUDA_F16)
        return half_to_float((unsigned short)bits);
    else
        return __uint_as_float(bits << 16);
}

/* Two values in a 16-bit type, the first in the low half. */
template <int DTYPE = config::DTYPE> __device__ __forceinline__ u32 pack(float low, float high)
{
    if constexpr (DTYPE == ATTUNE_CUDA_F16)
        return pack_f16(low, high);
    else
        return pack_bf16(low, high);
}

/* Returns x with a false dependency on y, so that the compiler cannot compute with x before y is known. */
__device__ __forceinline__ int after(int x, float y)
{
    int zero = opaque_zero();
    return x + (__float_as_int(y) & zero);
}

/* ------------------------------------------------------------------------------------------------ tile coordinates */

/* The tile of query rows that a CTA computes. */
struct tile_coord {
    int b, h, h_kv, q; /* q: the first row */
};

__device__ __forceinline__ int tile_count(const attune_cuda_arguments &a)
{
    return a.batch * a.heads * ((a.q_len + BLOCK_M - 1) / BLOCK_M);
}

/*
 * Neighbouring heads share keys in the L2 cache. With block lists the last rows of all heads are scheduled first: under
 * a causal mask they meet the most keys, and long tiles at the end would leave compute units idle.
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
        if (config::HAVE_BLOCKS)
            row = rows - 1 - row;
    }
    tile_coord p;
    p.b = plane / a.heads;
    p.h = plane - p.b * a.heads;
    p.h_kv = p.h / (a.heads / a.kv_heads);
    p.q = row * BLOCK_M;
    return p;
}

/* -------------------------------------------------------------------------------------------- the block iterator */

/* A tile of BLOCK_N keys. */
struct keys {
    int kv;    /* the first key; -1 after the last tile */
    bool full; /* the mask allows every pair; only kv_len may cut the tile */
};

/* Whether its scores need a mask: for forbidden pairs, or for keys past kv_len. */
__device__ __forceinline__ bool keys_masked(const keys &k, const attune_cuda_arguments &a)
{
    return (HAVE_MASK && !k.full) || k.kv + BLOCK_N > a.kv_len;
}

/* Whether tiles are taken in descending order, since the score has a slope along the keys: under a causal mask with
 * ALiBi a row's largest scores are the last ones. Meeting the maximum first saves rescaling O. */
constexpr bool DESCENDING = config::DESCENDING;

constexpr int NO_BLOCK = DESCENDING ? -1 : 0x7fffffff;

/* Merges a row's lists of partial and of full blocks, ascending or descending. */
struct lists {
    const int *partial, *full;
    int partials, fulls;         /* blocks left after the next ones */
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
    if (DESCENDING) {
        l.partial += l.partials - 1;
        l.full += l.fulls - 1;
    }
}

__device__ __forceinline__ void lists_next(lists &l, bool full)
{
    if (full)
        l.next_full = l.fulls-- > 0 ? *(DESCENDING ? l.full-- : l.full++) : NO_BLOCK;
    else
        l.next_partial = l.partials-- > 0 ? *(DESCENDING ? l.partial-- : l.partial++) : NO_BLOCK;
}

__device__ __forceinline__ void lists_begin(lists &l)
{
    lists_next(l, false);
    lists_next(l, true);
}

/* Iterates over the tiles of keys that a tile of rows meets, in the order of the lists. */
struct block_iterator {
    keys next;
    /* With block lists. */
    lists left;
    int end; /* end of the current block; its begin in descending order */
};

__device__ __forceinline__ void block_iterator_enter(block_iterator &w, const attune_cuda_arguments &a)
{
    int block = DESCENDING ? max(w.left.next_partial, w.left.next_full) : min(w.left.next_partial, w.left.next_full);
    w.next.full = block == w.left.next_full;
    if (block == NO_BLOCK) {
        w.next.kv = -1;
    } else {
        w.next.kv = block * a.kv_block;
        w.end = min(w.next.kv + a.kv_block, a.kv_len);
        if (DESCENDING) {
            int first = w.next.kv;
            w.next.kv += max(w.end - 1 - first, 0) / BLOCK_N * BLOCK_N;
            w.end = first;
        }
        lists_next(w.left, w.next.full);
    }
}

__device__ __forceinline__ void block_iterator_begin(block_iterator &w, const attune_cuda_arguments &a,
                                                     const tile_coord &p)
{
    if constexpr (config::HAVE_BLOCKS) {
        i64 row = p.b * a.mask_batch_rows + p.h * a.mask_head_rows + p.q / a.q_block;
        lists_open(w.left, a.partial, a.full, row);
        lists_begin(w.left);
        block_iterator_enter(w, a);
    } else {
        w.next.kv = DESCENDING ? (a.kv_len - 1) / BLOCK_N * BLOCK_N : 0;
        w.next.full = true;
    }
}

/* Returns the next tile; kv is -1 from the end on. */
__device__ __forceinline__ keys block_iterator_next(block_iterator &w, const attune_cuda_arguments &a)
{
    keys taken = w.next;
    if (taken.kv >= 0) {
        w.next.kv += DESCENDING ? -BLOCK_N : BLOCK_N;
        if constexpr (config::HAVE_BLOCKS) {
            if (DESCENDING ? w.next.kv < w.end : w.next.kv >= w.end)
                block_iterator_enter(w, a);
        } else if (w.next.kv >= a.kv_len || w.next.kv < 0)
            w.next.kv = -1;
    }
    return taken;
}

/* ----------------------------------------------------------------------------------------------------------- scores */

/*
 * Without a score expression S stays the raw product, and the softmax folds the scale into its exponent:
 * exp2(factor * s). The factor must be positive, or the largest product would not be the largest score; fold_sign has
 * the sign for the product.
 */
__device__ __forceinline__ float fold_factor(float scale)
{
    return HAVE_SCORE ? ATTUNE_LOG2E : scale == 0.0f ? 1.0f : fabsf(scale) * ATTUNE_LOG2E;
}

/* A row's maximum, or NaN. max() drops a NaN score, but the row's sum keeps it. A maximum of +inf makes the sum NaN
 * too, and stays. */
__device__ __forceinline__ float nan_or(float row_max, float sum)
{
    return sum != sum && row_max != ATTUNE_INF ? sum : row_max;
}

/* The factor of the raw product for a scale that is not positive. */
__device__ __forceinline__ float fold_sign(float scale)
{
    return scale < 0.0f ? -1.0f : 0.0f;
}

/* Whether every row begins at a multiple of 16 bytes, as 16-byte copies need. */
template <typename T = element> __device__ __forceinline__ bool view_aligned(const attune_cuda_view &v)
{
    u64 bytes = sizeof(T);
    return ((v.address | (u64)v.batch * bytes | (u64)v.head * bytes | (u64)v.row * bytes) & 15) == 0;
}

/* Whether every element of even index begins at a multiple of two elements, as stores of two need. */
template <typename T> __device__ __forceinline__ bool view_paired(const attune_cuda_view &v)
{
    constexpr u64 BYTES = sizeof(T);
    return ((v.address | (u64)(v.batch | v.head | v.row) * BYTES) & (2 * BYTES - 1)) == 0;
}

/* Stores x as an output. */
__device__ __forceinline__ void store_output(o_element *to, float x)
{
    if constexpr (O_FLOAT32)
        *to = x;
    else
        *to = (o_element)pack<config::O_DTYPE>(x, 0.0f);
}

/* Stores two adjacent outputs. paired: of view_paired. */
__device__ __forceinline__ void store_outputs(o_element *to, float x, float y, bool paired)
{
    if constexpr (O_FLOAT32) {
        if (paired)
            *(float2 *)to = make_float2(x, y);
        else
            to[0] = x, to[1] = y;
    } else {
        u32 two = pack<config::O_DTYPE>(x, y);
        if (paired)
            *(u32 *)to = two;
        else
            to[0] = (o_element)two, to[1] = (o_element)(two >> 16);
    }
}

/* Stores eight adjacent outputs, from a multiple of 16 bytes on. */
__device__ __forceinline__ void store_eight(o_element *to, const float *x)
{
    if constexpr (O_FLOAT32) {
        ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
        ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *(uint4 *)to = make_uint4(pack<config::O_DTYPE>(x[0], x[1]), pack<config::O_DTYPE>(x[2], x[3]),
                                  pack<config::O_DTYPE>(x[4], x[5]), pack<config::O_DTYPE>(x[6], x[7]));
    }
}

/* A value that is the same in the whole warp: the shuffle lets the compiler keep it in a uniform register. */
__device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

__device__ __forceinline__ float uniform(float x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

template <typename T> __device__ __forceinline__ T *uniform(T *p)
{
    u32 low = (u32)uniform((int)(u64)p), high = (u32)uniform((int)((u64)p >> 32));
    return (T *)((u64)high << 32 | low);
}

/* x, opaque to the compiler: values that follow from it, such as the reciprocal for a division, are not kept in
 * registers across tiles. */
__device__ __forceinline__ int known_here(int x)
{
    make_opaque(x);
    return x;
}

#endif

/* SPDX-License-Identifier: MIT */
/* A tile over a cache: its item, and the keys that its rows see. */
#ifndef ATTUNE_CUDA_SERVING_TILE_CUH
#define ATTUNE_CUDA_SERVING_TILE_CUH

#include "serving_keys.cuh"
#include "serving_parts.cuh"
#include "serving_shared_schedule.cuh"

/* Finds the rows of item or tile `index`, and with config::PARTS && TAKEN its keys. */
__device__ __forceinline__ bool find_tile(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          int index)
{
    if constexpr (config::PARTS && TAKEN)
        return find_item_and_keys(t, a, s, index);
    else if constexpr (config::PARTS)
        return find_item(t, a, s, index);
    else
        return find_rows(t, a, s, index);
}

/* Whether V is a part of K, whose rows begin where V's do. */
__device__ __forceinline__ bool v_begins_with_k(const attune_cuda_arguments &a)
{
    return a.v.address == a.k.address && a.v.batch == a.k.batch && a.v.head == a.k.head && a.v.row == a.k.row;
}

/* The interval of keys that a row may see. */
struct range {
    int low, high;
};

__device__ __forceinline__ range row_range(const attune_cuda_arguments &a, const sequence &t, const tile_coord &at)
{
    range r = {t.kv_first, t.kv_len};
    if constexpr (config::HAVE_MASK_RANGE) {
        int low, high;
        attune_mask_range(t.b, at.h, t.position + at.q, t.h_kv, t.q_len, t.kv_len, &low, &high, a.mask_symbols, 0,
                          t.token0 - t.position);
        r.low = max(r.low, low);
        r.high = min(r.high, high);
    }
    return r;
}

/* That of all rows of the tile. Each warp computes it. */
__device__ __forceinline__ range tile_range(const attune_cuda_arguments &a, const tile &t)
{
    if (!config::HAVE_MASK_RANGE)
        return {t.kv_first, t.kv_len};
    range all = {t.kv_len, 0};
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; i < BLOCK_M && t.kv_len > 0; i += 32)
        if (t.row + i < t.rows && is_computed(a, t, t.row + i)) {
            range r = row_range(a, sequence_of(a, t, t.row + i), row_coord(a, t, t.row + i));
            if (r.low < r.high) {
                all.low = min(all.low, r.low);
                all.high = max(all.high, r.high);
            }
        }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        all.low = min(all.low, __shfl_xor_sync(0xffffffffu, all.low, i));
        all.high = max(all.high, __shfl_xor_sync(0xffffffffu, all.high, i));
    }
    return all;
}

/* The keys that every row of the tile sees, whose tiles need no mask: by their intervals, which `HAVE` asks for. */
template <bool HAVE> __device__ __forceinline__ range inner_range(const attune_cuda_arguments &a, const tile &t)
{
    range inner = {0, 0x7fffffff};
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; HAVE && i < BLOCK_M; i += 32)
        if (t.row + i < t.rows) {
            range r = row_range(a, sequence_of(a, t, t.row + i), row_coord(a, t, t.row + i));
            inner.low = max(inner.low, r.low);
            inner.high = min(inner.high, r.high);
        }
#pragma unroll
    for (int i = 16; HAVE && i > 0; i /= 2) {
        inner.low = max(inner.low, __shfl_xor_sync(0xffffffffu, inner.low, i));
        inner.high = min(inner.high, __shfl_xor_sync(0xffffffffu, inner.high, i));
    }
    return inner;
}

/* The fixed parts of the tile that have keys of the range; one, if none has. The one that is computed: an item's, or
 * one after another. */
__device__ __forceinline__ void find_fixed(tile &t, const range &all, bool next)
{
    int first = t.kv_first / part_keys(t);
    bool some = all.low < all.high;
    t.fixed_first = some ? all.low / part_keys(t) : first;
    t.fixed_last = some ? (all.high - 1) / part_keys(t) : first;
    t.fixed = next ? t.fixed + 1 : t.parts > 1 ? first + t.part : t.fixed_first;
}

/* That of the tile's part: the tiles of keys are divided evenly, if parts are not fixed. */
__device__ __forceinline__ range part_range(const range &all, const tile &t)
{
    if (FIXED) {
        i64 low = (i64)t.fixed * part_keys(t);
        return {(int)max((i64)all.low, low), (int)min((i64)all.high, low + part_keys(t))};
    }
    if (t.parts == 1)
        return all;
    int first = all.low / BLOCK_N, tiles = max((all.high + BLOCK_N - 1) / BLOCK_N - first, 0);
    if constexpr (STAGES > 1) {
        /* The same in 32 bits, whose divisions are short. */
        int parts = known_here(t.parts), each = tiles / parts, rest = tiles - each * parts;
        int low = first + each * t.part + rest * t.part / parts,
            high = first + each * (t.part + 1) + rest * (t.part + 1) / parts;
        return {max(all.low, low * BLOCK_N), min(all.high, high * BLOCK_N)};
    }
    int low = first + (int)((i64)tiles * t.part / t.parts), high = first + (int)((i64)tiles * (t.part + 1) / t.parts);
    return {max(all.low, low * BLOCK_N), min(all.high, high * BLOCK_N)};
}

/* Whether a row sees a key, by the bits of its tree; keys before the drafts are seen. */
__device__ __forceinline__ bool sees_draft(const attune_cuda_serving &s, const sequence &t, int query, int kv)
{
    int draft = kv - t.position;
    if (draft < 0)
        return true;
    if (draft / 32 >= s.tree_words || query >= t.q_len)
        return false;
    const u32 *words = (const u32 *)s.tree.address + t.batch * s.tree.stride[0] + (t.row0 + query) * s.tree.stride[1];
    return words[draft / 32 * s.tree.stride[2]] >> draft % 32 & 1;
}

/* Whether the expression allows a pair, where it has no intervals. */
__device__ __forceinline__ bool sees_pair(const attune_cuda_arguments &a, const sequence &t, const tile_coord &at,
                                          int kv)
{
    return attune_mask(t.b, at.h, t.position + at.q, kv, t.h_kv, t.q_len, t.kv_len, 0.0f, a.mask_symbols, 0,
                       t.token0 - t.position);
}

/* Whether the expression and the tree allow a pair; `range`: of the row. */
__device__ __forceinline__ bool allows(const attune_cuda_arguments &a, const attune_cuda_serving &s, const sequence &t,
                                       const tile_coord &at, const range &r, int kv)
{
    bool allowed = true;
    if constexpr (config::HAVE_MASK_RANGE)
        allowed = kv >= r.low && kv < r.high;
    else if constexpr (config::HAVE_MASK_PAIRS)
        allowed = sees_pair(a, t, at, kv);
    if constexpr (config::TREE)
        allowed = allowed && (!s.tree.address || sees_draft(s, t, at.q, kv));
    return allowed;
}

__device__ __forceinline__ float score_of(const attune_cuda_arguments &a, const sequence &t, const tile_coord &at,
                                          int kv, float x)
{
    if constexpr (HAVE_SCORE)
        return attune_score(t.b, at.h, t.position + at.q, kv, t.h_kv, t.q_len, t.kv_len, x * a.scale, a.score_symbols,
                            0, t.token0 - t.position);
    return a.scale <= 0.0f ? x * fold_sign(a.scale) : x;
}

#endif

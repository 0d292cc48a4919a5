/* SPDX-License-Identifier: MIT */
/* A tile over a cache: how the warps divide it, which keys its rows see, its tiles of K and V. Included by
 * serving_sm80.cu. */
#ifndef ATTUNE_CUDA_SERVING_TILE_CUH
#define ATTUNE_CUDA_SERVING_TILE_CUH

#include "serving_loads.cuh"
#include "serving_parts.cuh"
#include "serving_shared_schedule.cuh"

/* With codes: addends of Q and of P, which together have the bits of the type of q and of o; factors of a row. */
constexpr int Q_ADDENDS = !CODES || config::Q_DTYPE == ATTUNE_CUDA_BF16 ? 1
                          : config::Q_DTYPE == ATTUNE_CUDA_F16          ? 2
                                                                        : 3;
constexpr int P_ADDENDS = config::O_DTYPE == ATTUNE_CUDA_F32 ? 3 : 2;
constexpr int K_FACTORS = !CODES ? 0 : HAS_BLOCKS<K_TYPE> ? HEAD_DIM / 32 : 1;
constexpr int V_FACTORS = !CODES ? 0 : HAS_BLOCKS<V_TYPE> ? HEAD_DIM_V / 32 : 1;
constexpr attune_cuda_tile SERVED = {sizeof(element), HEAD_DIM,  HEAD_DIM_V, BLOCK_M,   BLOCK_N,   WARPS,
                                     STAGES,          KEY_TERMS, Q_ADDENDS,  K_FACTORS, V_FACTORS, SHARES};
/* GROUPS warps share rows: KEY_GROUPS of them divide the keys, and with SHARED_P all divide the columns of O. */
constexpr bool SHARED_P = attune_cuda_serving_sm80_shares_p(SERVED),
               ONE_BUFFER = attune_cuda_serving_sm80_one_buffer(SERVED);
constexpr int ROW_GROUPS = BLOCK_M / 16, GROUPS = (int)attune_cuda_serving_sm80_groups(SERVED);
constexpr int KEY_GROUPS = (int)attune_cuda_serving_sm80_key_groups(SERVED), O_GROUPS = SHARED_P ? 1 : GROUPS;
constexpr int SERVED_DV = (int)attune_cuda_serving_sm80_dv(SERVED), CHUNKS_V = SERVED_DV / PER_CHUNK;
constexpr int KEYS = BLOCK_N / KEY_GROUPS, N_TILES = KEYS / 8, DV_TILES = SERVED_DV / 8 / (SHARED_P ? GROUPS : 1);
constexpr int P_PITCH = (int)attune_cuda_serving_sm80_p_pitch(SERVED);
static_assert(!SHARES || sizeof(group_of_rows) <= attune_cuda_serving_sm80_rows(SERVED), "the layout has space for it");
static_assert(GROUPS * ROW_GROUPS == WARPS, "warps divide the rows, then the keys");
static_assert(SHARED_P || KEY_GROUPS == GROUPS, "a warp without keys has columns of O");
static_assert(KEYS % 16 == 0, "a warp computes 16 columns or a multiple");
static_assert(FLOAT32 || CODES || (K_TYPE == config::DTYPE && V_TYPE == config::DTYPE),
              "other types are converted to float32");
static_assert(STAGES == 1 || (K_TYPE == config::DTYPE && V_TYPE == config::DTYPE && !ONE_BUFFER),
              "only asynchronous copies are several tiles ahead");
/* Tiles whose keys are known, past this one; with one stage also those that are being copied. */
constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;

/* With several stages: whether V may be a part of K, of which each row is then copied once. The columns past V's, which
 * are not stored, are those of K. */
constexpr bool V_OF_K =
    STAGES > 1 && SHARED_P &&K_TYPE == V_TYPE &&SERVED_DV <= PAD_D &&CHUNKS_D % 8 == 0 && CHUNKS_V % 8 == 0;

/* The stages have K alone: V of a tile that is not of K is copied in its place. */
constexpr bool V_IN_K = attune_cuda_serving_sm80_v_in_k(SERVED);
static_assert(!V_IN_K || V_OF_K, "V fits in the place of K");

__device__ __forceinline__ bool v_is_of_k(const attune_cuda_arguments &a)
{
    return V_OF_K && a.v.address == a.k.address && a.v.batch == a.k.batch && a.v.head == a.k.head && a.v.row == a.k.row;
}

/* Where the head's rows of K and V begin in a page 0. */
struct heads {
    const byte *k, *v;
};

/* K and V of a tile, as one group of copies; an empty one past the last tile. */
__device__ __forceinline__ void copy_tile(u32, u32, const attune_cuda_arguments &, const heads &, const int2 *, bool,
                                          bool)
{
}

__device__ __forceinline__ void copy_tile(u32 k, u32 v, const attune_cuda_arguments &a, const heads &from,
                                          const key_place *places, bool v_of_k, bool more)
{
    if (more) {
        copy_rows<HEAD_DIM, CHUNKS_D>(k, from.k, &places->k, view_aligned(a.k));
        if (!V_IN_K && (!V_OF_K || !v_of_k))
            copy_rows<HEAD_DIM_V, CHUNKS_V>(v, from.v, &places->v, view_aligned(a.v));
    }
    copy_commit();
}

/* V of a tile, in the place of its K. */
__device__ __forceinline__ void copy_v(u32, const attune_cuda_arguments &, const heads &, const int2 *)
{
}

__device__ __forceinline__ void copy_v(u32 v, const attune_cuda_arguments &a, const heads &from,
                                       const key_place *places)
{
    copy_rows<HEAD_DIM_V, CHUNKS_V>(v, from.v, &places->v, view_aligned(a.v));
    copy_commit();
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* The warp's first row and column in the tile, rematerialised. */
__device__ __forceinline__ int warp_row()
{
    return thread_index_remat() / 32 % ROW_GROUPS * 16;
}

__device__ __forceinline__ int warp_group()
{
    return thread_index_remat() / (32 * ROW_GROUPS);
}

__device__ __forceinline__ int warp_column()
{
    return warp_group() * KEYS;
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

/* With several stages: the keys that every row of the tile sees, whose tiles need no mask. */
constexpr bool HAVE_INNER = STAGES > 1 && config::HAVE_MASK_RANGE && !config::TREE && !HAVE_SCORE;

__device__ __forceinline__ range inner_range(const attune_cuda_arguments &a, const tile &t)
{
    range inner = {0, 0x7fffffff};
#pragma unroll 1
    for (int i = (int)threadIdx.x % 32; HAVE_INNER && i < BLOCK_M; i += 32)
        if (t.row + i < t.rows) {
            range r = row_range(a, sequence_of(a, t, t.row + i), row_coord(a, t, t.row + i));
            inner.low = max(inner.low, r.low);
            inner.high = min(inner.high, r.high);
        }
#pragma unroll
    for (int i = 16; HAVE_INNER && i > 0; i /= 2) {
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

/* Whether the expression and the tree allow a pair; `range`: of the row. */
__device__ __forceinline__ bool allows(const attune_cuda_arguments &a, const attune_cuda_serving &s, const sequence &t,
                                       const tile_coord &at, const range &r, int kv)
{
    bool allowed = true;
    if constexpr (config::HAVE_MASK_RANGE)
        allowed = kv >= r.low && kv < r.high;
    else if constexpr (config::HAVE_MASK_PAIRS)
        allowed = attune_mask(t.b, at.h, t.position + at.q, kv, t.h_kv, t.q_len, t.kv_len, 0.0f, a.mask_symbols, 0,
                              t.token0 - t.position);
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

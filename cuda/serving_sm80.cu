/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache with mma.sync and cp.async: prompts, chunks of prompts and single queries of a ragged batch. A CTA
 * computes tiles of the packed rows of the query heads that share keys (row = q * heads of the group + head), over all
 * keys of their sequence. Its warps divide the rows by 16, then the columns of each tile of keys, as in decode_sm80.cu.
 *
 * Kernels walk logical tiles of keys; pages are translated for addresses alone, so that results do not depend on them.
 * What the caller's integers hold is checked here, where they are read (docs/serving.md has the results).
 */
#include "layout_sm80.h"
#include "mma.cuh"
#include "non_finite.cuh"

constexpr int ROW_GROUPS = BLOCK_M / 16, KEY_GROUPS = WARPS / ROW_GROUPS;
constexpr int KEYS = BLOCK_N / KEY_GROUPS, N_TILES = KEYS / 8, DV_TILES = PAD_DV / 8;
static_assert(KEY_GROUPS * ROW_GROUPS == WARPS, "warps divide the rows, then the keys");
static_assert(KEYS % 16 == 0, "a warp computes 16 columns or a multiple");
static_assert(STAGES == 1, "K and V have one buffer each");

/* -------------------------------------------------------------------------------------------------------- sequences */

__device__ __forceinline__ int integer_at(const attune_cuda_array &x, i64 i)
{
    return ((const int *)x.address)[i * x.stride[0]];
}

/* The rows of a sequence are those from `first` on of q and o; 0 where the batch has none, or none that are valid. */
struct sequence_rows {
    int first, count;
};

__device__ __forceinline__ sequence_rows rows_of(const attune_cuda_arguments &a, const attune_cuda_serving &s, int b,
                                                 int live)
{
    sequence_rows r = {0, 0};
    if (b >= live)
        return r;
    if (!s.q_start.address)
        return {0, a.q_len};
    int first = integer_at(s.q_start, b), end = integer_at(s.q_start, b + 1);
    if (first >= 0 && first <= end && end <= s.tokens && end - first <= a.q_len)
        r = {first, end - first};
    return r;
}

/* A tile of rows, and its sequence. Row i of a sequence is at q = position + i of the keys. In shared memory, since the
 * accumulators leave no registers for it. */
struct tile {
    int b, h, h_kv;          /* h: the first head */
    int row, rows;           /* its first packed row; packed rows of the sequence */
    int batch, row0, token0; /* where the sequence's rows are in q and o, and among those of all sequences */
    int q_len, kv_len, kv_first, position;
    const int *table; /* of the pages */
    i64 entry_stride;
    int entries;
};
static_assert(sizeof(tile) <= ATTUNE_CUDA_SERVING_TILE, "the layout has space for the tile");

/* Finds the sequence and the rows of tile `index`: a scan over the sequences, 32 at a time. False past the last. */
__device__ __forceinline__ bool find_rows(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          int index)
{
    int group = known_here(a.heads / known_here(a.kv_heads)), lane = (int)threadIdx.x % 32;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    t.h_kv = index % known_here(a.kv_heads);
    t.h = t.h_kv * group;
    u32 left = (u32)(index / known_here(a.kv_heads)); /* tiles of 32 sequences fit 32 bits */
#pragma unroll 1
    for (int b = 0; b < live; b += 32) {
        sequence_rows mine = rows_of(a, s, b + lane, live);
        u32 tiles = (u32)(((i64)mine.count * group + BLOCK_M - 1) / BLOCK_M), sum = tiles;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, i);
            sum += lane >= i ? other : 0;
        }
        u32 past = __ballot_sync(0xffffffffu, sum > left);
        if (past) {
            int found = __ffs((int)past) - 1;
            t.b = b + found;
            t.row0 = __shfl_sync(0xffffffffu, mine.first, found);
            t.q_len = __shfl_sync(0xffffffffu, mine.count, found);
            t.rows = t.q_len * group;
            t.row = (int)(left - __shfl_sync(0xffffffffu, sum - tiles, found)) * BLOCK_M;
            return true;
        }
        left -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

__device__ __forceinline__ void find_keys(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s)
{
    bool packed = s.q_start.address != 0;
    t.batch = packed ? 0 : t.b;
    t.token0 = packed ? t.row0 : t.b * a.q_len;
    t.table = (const int *)s.pages.address + t.b * s.pages.stride[0];
    t.entry_stride = s.pages.stride[1];
    t.entries = s.pages.address ? s.entries : 1;
    if (s.pages_start.address) {
        int first = integer_at(s.pages_start, t.b), end = integer_at(s.pages_start, t.b + 1);
        bool valid = first >= 0 && first <= end && end <= s.entries;
        t.entries = valid ? end - first : 0;
        t.entry_stride = s.pages.stride[0];
        t.table = (const int *)s.pages.address + (valid ? first : 0) * t.entry_stride;
    }
    int most = (int)min((i64)a.kv_len, (i64)t.entries * s.page), length = integer_at(s.kv_len, t.b);
    t.kv_len = length >= 0 && length <= most ? length : 0;
    t.position = t.kv_len - t.q_len;
    t.kv_first = s.kv_first.address ? min(max(integer_at(s.kv_first, t.b), 0), t.kv_len) : 0;
}

/* A packed row's head and query of its sequence. */
__device__ __forceinline__ tile_coord row_coord(const attune_cuda_arguments &a, const tile &t, int row)
{
    int group = known_here(a.heads / known_here(a.kv_heads)), q = row / group;
    return {t.b, t.h + row - q * group, t.h_kv, q};
}

/* ------------------------------------------------------------------------------------------------------------- keys */

/* Where a key is: a page, -1 = there is none, and the row in it. */
__device__ __forceinline__ int2 key_of(const tile &t, const attune_cuda_serving &s, int kv)
{
    if (kv < t.kv_first || kv >= t.kv_len)
        return make_int2(-1, 0);
    if (!s.pages.address)
        return make_int2(t.b, kv);
    int entry = kv / known_here(s.page), page = entry < t.entries ? t.table[entry * t.entry_stride] : -1;
    return make_int2(page >= 0 && page < s.pool ? page : -1, kv - entry * s.page);
}

/* The keys of the next tile: fetched while this one is computed, stored when all have read those of the one before. */
struct next_keys {
    static constexpr int COUNT = (BLOCK_N + THREADS - 1) / THREADS; /* a thread's keys */
    int2 key[COUNT];
};

__device__ __forceinline__ void fetch_keys(next_keys &n, const tile &t, const attune_cuda_serving &s, int kv0)
{
#pragma unroll
    for (int i = 0; i < n.COUNT; i++)
        n.key[i] = key_of(t, s, kv0 + i * THREADS + thread_index_remat());
}

/* Returns whether one of the thread's keys is absent. */
__device__ __forceinline__ bool store_keys(const next_keys &n, int2 *keys)
{
    bool absent = false;
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        int column = i * THREADS + thread_index_remat();
        if (BLOCK_N % THREADS == 0 || column < BLOCK_N) {
            keys[column] = n.key[i];
            absent = absent || n.key[i].x < 0;
        }
    }
    return absent;
}

/* Copies the rows of a tile's keys; those of absent ones, and columns from DIM on, become 0. */
template <int DIM, int CHUNKS>
__device__ __forceinline__ void load_rows(u32 to, const attune_cuda_view &v, const tile &t, const int2 *keys)
{
    const element *from = (const element *)v.address + t.h_kv * v.head;
    constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS>, STEP = THREADS / ROW_LANES;
    int thread = thread_index_remat(), chunk = thread % ROW_LANES;
    bool aligned = view_aligned(v);
#pragma unroll 4
    for (int row = thread / ROW_LANES; row < BLOCK_N; row += STEP) {
        int2 key = keys[row];
        const element *source = from + (key.x < 0 ? 0 : key.x * v.batch + key.y * v.row) + chunk * PER_CHUNK;
#pragma unroll
        for (int i = 0; i < CHUNKS; i += ROW_LANES)
            copy_chunk(to + chunk_offset<CHUNKS>(row, chunk + i), source + i * PER_CHUNK,
                       key.x >= 0 && (chunk + i) * PER_CHUNK < DIM, aligned);
    }
    copy_commit();
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* The warp's first row and column in the tile, rematerialised. */
__device__ __forceinline__ int warp_row()
{
    return thread_index_remat() / 32 % ROW_GROUPS * 16;
}

__device__ __forceinline__ int warp_column()
{
    return thread_index_remat() / (32 * ROW_GROUPS) * KEYS;
}

/* The interval of keys that a row may see. */
struct range {
    int low, high;
};

__device__ __forceinline__ range row_range(const attune_cuda_arguments &a, const tile &t, const tile_coord &at)
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
        if (t.row + i < t.rows) {
            range r = row_range(a, t, row_coord(a, t, t.row + i));
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

/* Whether a row sees a key, by the bits of its tree; keys before the drafts are seen. */
__device__ __forceinline__ bool sees_draft(const attune_cuda_serving &s, const tile &t, int query, int kv)
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
__device__ __forceinline__ bool allows(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
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

__device__ __forceinline__ float score_of(const attune_cuda_arguments &a, const tile &t, const tile_coord &at, int kv,
                                          float x)
{
    if constexpr (HAVE_SCORE)
        return attune_score(t.b, at.h, t.position + at.q, kv, t.h_kv, t.q_len, t.kv_len, x * a.scale, a.score_symbols,
                            0, t.token0 - t.position);
    return a.scale <= 0.0f ? x * fold_sign(a.scale) : x;
}

/* 1: the packed rows of Q. */
__device__ __forceinline__ void load_q(u32 to, const attune_cuda_arguments &a, const tile &t)
{
    const q_element *base = (const q_element *)a.q.address + t.batch * a.q.batch + t.row0 * a.q.row;
    bool aligned = view_aligned<q_element>(a.q);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS_D; i += THREADS) {
        int row = i / CHUNKS_D, chunk = i % CHUNKS_D;
        tile_coord at = row_coord(a, t, t.row + row);
        bool valid = chunk * PER_CHUNK < HEAD_DIM && t.row + row < t.rows;
        const q_element *from = valid ? base + at.h * a.q.head + at.q * a.q.row + chunk * PER_CHUNK : base;
        copy_q(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
    }
}

/* 4: the score and mask hook, for both of the thread's rows. column: the warp's first in the tile of keys at kv0. */
__device__ __forceinline__ void hook(float (&x)[1][N_TILES][4], const attune_cuda_arguments &a,
                                     const attune_cuda_serving &s, const tile &t, int kv0, int row, int column,
                                     const int2 *keys, bool absent)
{
    column += thread_index_remat() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        tile_coord at = row_coord(a, t, row + half * 8);
        range r = row_range(a, t, at);
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &score = x[0][n][half * 2 + i];
                int kv = kv0 + column + n * 8 + i;
                score = score_of(a, t, at, kv, score);
                if (!allows(a, s, t, at, r, kv))
                    score = -ATTUNE_INF;
            }
    }
    if (absent)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (keys[column + n * 8 + i].x < 0)
                    x[0][n][i] = x[0][n][2 + i] = -ATTUNE_INF;
}

/* Column d of O of a row, from the pairs that are allowed alone (non_finite.cuh). */
__device__ __forceinline__ recomputed_element recompute(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                        const tile &t, const tile_coord &at, int d)
{
    const q_element *q =
        (const q_element *)a.q.address + t.batch * a.q.batch + at.h * a.q.head + (t.row0 + at.q) * a.q.row;
    const element *k = (const element *)a.k.address + t.h_kv * a.k.head,
                  *v = (const element *)a.v.address + t.h_kv * a.v.head + d;
    float factor = fold_factor(a.scale);
    recomputed_element r = {0.0f, -ATTUNE_INF, 0.0f};
    range seen = row_range(a, t, at);
#pragma unroll 1
    for (int kv = seen.low; kv < seen.high; kv++) {
        int2 key = key_of(t, s, kv);
        if (key.x < 0 || !allows(a, s, t, at, seen, kv))
            continue;
        float x = 0.0f;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM; i++)
            x = __fmaf_rn(widen_q(q[i]), widen(k[key.x * a.k.batch + key.y * a.k.row + i]), x);
        x = score_of(a, t, at, kv, x);
        float row_max = fmaxf(r.m, x), base = row_max == -ATTUNE_INF ? 0.0f : row_max;
        float alpha = exp2_fast((r.m - base) * factor), weight = exp2_fast((x - base) * factor);
        r.o = __fmaf_rn(weight, widen(v[key.x * a.v.batch + key.y * a.v.row]), r.o * alpha);
        r.l = r.l * alpha + weight;
        r.m = row_max;
        if (r.o != r.o)
            break; /* it remains NaN */
    }
    return r;
}

/* 7: the warps' results replace the operands in shared memory: O[groups][BLOCK_M][PAD_DV], then m and l. */
__device__ __forceinline__ void save_groups(float *o_groups, float *ml_groups, const float (&o)[1][DV_TILES][4],
                                            const float (&m)[1][2], const float (&l)[1][2])
{
    int lane = (int)threadIdx.x % 32;
    int to = (int)threadIdx.x / (32 * ROW_GROUPS) * BLOCK_M + warp_row() + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[0][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
        for (int d = 0; d < DV_TILES; d++)
            *(float2 *)&o_groups[(to + half * 8) * PAD_DV + d * 8 + lane % 4 * 2] =
                make_float2(o[0][d][half * 2], o[0][d][half * 2 + 1]);
        if (lane % 4 == 0)
            *(float2 *)&ml_groups[(to + half * 8) * 2] = make_float2(m[0][half], sum);
    }
}

__device__ __forceinline__ recomputed_element merge_groups(const float *o, const float *ml, int row, int d,
                                                           float factor)
{
    recomputed_element x = {0.0f, -ATTUNE_INF, 0.0f};
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++)
        x.m = fmaxf(x.m, ml[(g * BLOCK_M + row) * 2]);
    float base = x.m == -ATTUNE_INF ? 0.0f : x.m;
#pragma unroll
    for (int g = 0; g < KEY_GROUPS; g++) {
        float weight = exp2_fast((ml[(g * BLOCK_M + row) * 2] - base) * factor);
        x.l += ml[(g * BLOCK_M + row) * 2 + 1] * weight;
        x.o += o[(g * BLOCK_M + row) * PAD_DV + d] * weight;
    }
    return x;
}

/* Merges the warps' results, and stores O and LSE. */
__device__ __forceinline__ void store(const float *o, const float *ml, const attune_cuda_arguments &a,
                                      const attune_cuda_serving &s, const tile &t, float factor)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (t.row + row >= t.rows)
            break;
        tile_coord at = row_coord(a, t, t.row + row);
        recomputed_element x = merge_groups(o, ml, row, d, factor);
        if ((HAVE_MASK || config::TREE) && !finite(x.o) && finite(x.l)) {
            recomputed_element again = recompute(a, s, t, at, d);
            /* Scalar products round differently than the tensor cores: divide by the sum of the recomputed weights, and
             * scale by the one that the row is normalised with. */
            x.o = again.l == 0.0f ? again.o : again.o * (x.l / again.l);
        }
        store_element(a, {t.batch, at.h, at.h_kv, t.row0 + at.q}, d, x.o, x.m, x.l, factor);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_serving_sm80(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr attune_cuda_forward_sm80_layout AT = attune_cuda_serving_sm80(TILE);
    static_assert(planned(AT.size));
    u32 q_tile = shared_address(memory) + AT.q, k_tile = q_tile + (AT.k - AT.q), v_tile = k_tile + (AT.v - AT.k);
    int2 *keys = (int2 *)(memory + AT.state); /* of two tiles */
    tile &t = *(tile *)(memory + AT.size - ATTUNE_CUDA_SERVING_TILE);
    float factor = uniform(fold_factor(a.scale));
    tile found;
    /* A grid has fewer than 2^31 CTAs: tiles from there on are of sequences that claim the same rows. */
    for (u32 index = (u32)block_here(); (int)index >= 0 && find_rows(found, a, s, (int)index);
         index += (u32)grid_here()) {
        find_keys(found, a, s);
        if (threadIdx.x == 0)
            t = found;
        range seen = tile_range(a, found);
        int kv = uniform(seen.low / BLOCK_N * BLOCK_N), end = uniform(seen.high), parity = 0;
        float o[1][DV_TILES][4] = {}, m[1][2] = {{-ATTUNE_INF, -ATTUNE_INF}}, l[1][2] = {};

        load_q(q_tile, a, found);
        next_keys next;
        fetch_keys(next, found, s, kv);
        bool absent_next = __syncthreads_or(store_keys(next, keys));
        load_rows<HEAD_DIM, CHUNKS_D>(k_tile, a.k, t, keys);
        fetch_keys(next, t, s, kv + BLOCK_N);
        for (; kv < end; kv += BLOCK_N) {
            const int2 *here = keys + parity;
            bool absent = absent_next;
            float x[1][N_TILES][4];
            parity = BLOCK_N - parity;
            /* 2: K is loaded; the copies of V start. */
            copy_wait<0>();
            bool some = store_keys(next, keys + parity);
            absent_next = __syncthreads_or(some);
            load_rows<HEAD_DIM_V, CHUNKS_DV>(v_tile, a.v, t, here);
            fetch_keys(next, t, s, kv + 2 * BLOCK_N);
            /* 3, 4: S, then score and mask. */
            multiply_qk(x, q_tile, k_tile + (u32)(warp_column() * CHUNKS_D * 16), warp_row());
            hook(x, a, s, t, kv, t.row + warp_row() + thread_index_remat() % 32 / 4, warp_column(), here, absent);
            copy_wait<0>();
            __syncthreads();
            if (kv + BLOCK_N < end)
                load_rows<HEAD_DIM, CHUNKS_D>(k_tile, a.k, t, keys + parity);
            /* 5, 6: online softmax, O += P V. */
            softmax(x, o, m, l, factor);
            multiply_pv(o, x, v_tile + (u32)(warp_column() * CHUNKS_DV * 16));
        }
        copy_wait<0>();
        __syncthreads();
        save_groups((float *)memory, (float *)(memory + AT.ml), o, m, l);
        __syncthreads();
        store((const float *)memory, (const float *)(memory + AT.ml), a, s, t, factor);
        __syncthreads();
    }
}

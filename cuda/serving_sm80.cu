/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache with mma.sync and cp.async: prompts, chunks of prompts and single queries of a ragged batch. A CTA
 * computes tiles of the packed rows of the query heads that share keys (row = q * heads of the group + head), over all
 * keys of their sequence or a part of them (serving_schedule.cuh). Its warps divide the rows by 16, then the columns of
 * each tile of keys, as in decode_sm80.cu.
 *
 * Kernels walk logical tiles of keys; pages are translated for addresses alone, so that results do not depend on them.
 */
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

/* With several stages: K and V of a tile, as two groups of copies; none of a tile past the last. */
__device__ __forceinline__ void copy_tile(u32 k, u32 v, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          const tile &t, const int2 *keys, bool more)
{
    if (more) {
        load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k, a.k, s.k_scale, t, keys, nullptr);
        load_rows<V_TYPE, HEAD_DIM_V, CHUNKS_V>(v, a.v, s.v_scale, t, keys, nullptr);
    } else {
        copy_commit();
        copy_commit();
    }
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

/* The first bits of a NaN may be those of an infinity. */
__device__ __forceinline__ float whole_nan(float x)
{
    return x == x ? x : __int_as_float(0x7fffffff);
}

/* Eight elements of Q, as addends. */
__device__ __forceinline__ void copy_q_addends(u32 to, const q_element *from, bool valid, bool aligned)
{
    eight<config::Q_DTYPE> x = {};
    u32 word[Q_ADDENDS][4];
    if (valid)
        load_eight(x, (const byte *)from, 0, 1.0f, aligned);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low[Q_ADDENDS], high[Q_ADDENDS];
        split_bf16(low, whole_nan(value_of(x, 2 * i)));
        split_bf16(high, whole_nan(value_of(x, 2 * i + 1)));
#pragma unroll
        for (int addend = 0; addend < Q_ADDENDS; addend++)
            word[addend][i] = high_halves(low[addend], high[addend]);
    }
#pragma unroll
    for (int addend = 0; addend < Q_ADDENDS; addend++)
        store_shared_4(to + (u32)(addend * BLOCK_M * CHUNKS_D * 16), word[addend][0], word[addend][1], word[addend][2],
                       word[addend][3]);
}

__device__ __forceinline__ const q_element *rows_of_q(const attune_cuda_arguments &a, const sequence &t)
{
    return (const q_element *)a.q.address + t.batch * a.q.batch + t.row0 * a.q.row;
}

/* 1: the packed rows of Q. */
__device__ __forceinline__ void load_q(u32 to, const attune_cuda_arguments &a, const tile &t)
{
    const q_element *base = rows_of_q(a, t);
    bool aligned = view_aligned<q_element>(a.q);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS_D; i += THREADS) {
        int row = i / CHUNKS_D, chunk = i % CHUNKS_D;
        tile_coord at = row_coord(a, t, t.row + row);
        bool valid = chunk * PER_CHUNK < HEAD_DIM && t.row + row < t.rows;
        if (SHARES && valid)
            base = rows_of_q(a, sequence_of(a, t, t.row + row));
        const q_element *from = valid ? base + at.h * a.q.head + at.q * a.q.row + chunk * PER_CHUNK : base;
        if constexpr (CODES)
            copy_q_addends(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
        else
            copy_q(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
    }
}

/* 3, of codes: the sums of 32 columns, which may have a factor of their own, are added in float32. factors: of the
 * warp's first key. */
__device__ __forceinline__ void multiply_codes(float (&s)[1][N_TILES][4], u32 q, u32 k, int row, const float *factors)
{
    int lane = thread_index_remat() % 32;
    factors += lane % 4 * 2 * K_FACTORS;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = 0.0f;
#pragma unroll 1
    for (int block = 0; block < CHUNKS_D; block += 4) {
        u32 a[2][Q_ADDENDS][4];
#pragma unroll
        for (int step = 0; step < 2; step++)
            if (CHUNKS_D % 4 == 0 || block + 2 * step < CHUNKS_D)
#pragma unroll
                for (int addend = 0; addend < Q_ADDENDS; addend++)
                    load_matrices(a[step][addend],
                                  q + (u32)(addend * BLOCK_M * CHUNKS_D * 16) +
                                      chunk_offset<CHUNKS_D>(row + lane % 16, block + 2 * step + lane / 16));
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            float sum[2][4] = {};
#pragma unroll
            for (int step = 0; step < 2; step++)
                if (CHUNKS_D % 4 == 0 || block + 2 * step < CHUNKS_D) {
                    u32 b[4];
                    load_matrices(b, k + chunk_offset<CHUNKS_D>(n * 8 + lane % 8 + lane / 16 * 8,
                                                                block + 2 * step + lane / 8 % 2));
#pragma unroll
                    for (int addend = Q_ADDENDS - 1; addend > 0; addend--) {
                        multiply(sum[0], a[step][addend], finite_codes<K_TYPE>(b[0]), finite_codes<K_TYPE>(b[1]));
                        multiply(sum[1], a[step][addend], finite_codes<K_TYPE>(b[2]), finite_codes<K_TYPE>(b[3]));
                    }
                    multiply(sum[0], a[step][0], b[0], b[1]);
                    multiply(sum[1], a[step][0], b[2], b[3]);
                }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float factor = HAS_BLOCKS<K_TYPE> ? factors[((n + j) * 8 + i % 2) * K_FACTORS + block / 4] : 1.0f;
                    s[0][n + j][i] = __fmaf_rn(sum[j][i], factor, s[0][n + j][i]);
                }
        }
    }
    if (!HAS_BLOCKS<K_TYPE>)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[0][n][i] *= factors[n * 8 + i % 2];
}

/* 6, of codes: P times the factors of V, as addends. The arguments are those of multiply_pv; factors: of the first key.
 */
template <int COUNT>
__device__ __forceinline__ void multiply_weighted_codes(float (&o)[1][DV_TILES][4], const float (&p)[1][COUNT][4],
                                                        u32 v, int first, const float *factors)
{
    constexpr int TILES = !HAS_BLOCKS<V_TYPE> ? DV_TILES : DV_TILES % 4 == 0 ? 4 : 2; /* that share factors */
    int lane = thread_index_remat() % 32;
    factors += lane % 4 * 2 * V_FACTORS;
#pragma unroll
    for (int n = 0; n < COUNT; n += 2)
#pragma unroll
        for (int from = 0; from < DV_TILES; from += TILES) {
            u32 a[P_ADDENDS][4];
#pragma unroll
            for (int i = 0; i < 4; i++) { /* rows of i % 2, keys of i / 2 */
                float low[P_ADDENDS], high[P_ADDENDS];
                const float *of = factors + (n + i / 2) * 8 * V_FACTORS;
                if (HAS_BLOCKS<V_TYPE>)
                    of += (first + from) / 4;
                split_bf16(low, p[0][n + i / 2][i % 2 * 2] * of[0]);
                split_bf16(high, p[0][n + i / 2][i % 2 * 2 + 1] * of[V_FACTORS]);
#pragma unroll
                for (int addend = 0; addend < P_ADDENDS; addend++)
                    a[addend][i] = high_halves(low[addend], high[addend]);
            }
#pragma unroll
            for (int d = from; d < from + TILES; d += 2) {
                u32 b[4];
                load_matrices_transposed(b, v + chunk_offset<CHUNKS_V>(n * 8 + lane % 16, first + d + lane / 16));
                float sum[2][4] = {};
#pragma unroll
                for (int addend = P_ADDENDS - 1; addend > 0; addend--) {
                    multiply(sum[0], a[addend], finite_codes<V_TYPE>(b[0]), finite_codes<V_TYPE>(b[1]));
                    multiply(sum[1], a[addend], finite_codes<V_TYPE>(b[2]), finite_codes<V_TYPE>(b[3]));
                }
                multiply(sum[0], a[0], b[0], b[1]);
                multiply(sum[1], a[0], b[2], b[3]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[0][d][i] += sum[0][i];
                    o[0][d + 1][i] += sum[1][i];
                }
            }
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
        const sequence &of = sequence_of(a, t, row + half * 8);
        range r = row_range(a, of, at);
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &score = x[0][n][half * 2 + i];
                int kv = kv0 + column + n * 8 + i;
                score = score_of(a, of, at, kv, score);
                if (!allows(a, s, of, at, r, kv))
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
    const byte *k = cached_head<K_TYPE>(a.k, t), *v = cached_head<V_TYPE>(a.v, t);
    float factor = fold_factor(a.scale);
    recomputed_element r = {0.0f, -ATTUNE_INF, 0.0f};
    range seen = row_range(a, t, at);
#pragma unroll 1
    for (int kv = seen.low; kv < seen.high; kv++) {
        int2 key = key_of(t, s, kv);
        if (key.x < 0 || !allows(a, s, t, at, seen, kv))
            continue;
        float x = 0.0f, factor_k = factor_of<K_TYPE>(s.k_scale, t, key),
              factor_v = factor_of<V_TYPE>(s.v_scale, t, key);
        const byte *k_row = k + row_at(a.k, key) * TYPE_BYTES<K_TYPE>,
                   *v_row = v + row_at(a.v, key) * TYPE_BYTES<V_TYPE>;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM; i++)
            x = __fmaf_rn(widen_q(q[i]), load_value<K_TYPE>(k_row, i, factor_k), x);
        x = score_of(a, t, at, kv, x);
        float row_max = fmaxf(r.m, x), base = row_max == -ATTUNE_INF ? 0.0f : row_max;
        float alpha = exp2_fast((r.m - base) * factor), weight = exp2_fast((x - base) * factor);
        r.o = __fmaf_rn(weight, load_value<V_TYPE>(v_row, d, factor_v), r.o * alpha);
        r.l = r.l * alpha + weight;
        r.m = row_max;
        if (r.o != r.o)
            break; /* it remains NaN */
    }
    return r;
}

/* 5, where warps divide the columns of O: the maxima of the warp's keys, for the others. */
__device__ __forceinline__ void store_maxima(float *maxima, const float (&x)[1][N_TILES][4])
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row_max = -ATTUNE_INF;
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
            row_max = fmaxf(row_max, fmaxf(x[0][n][2 * half], x[0][n][2 * half + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 2));
        if (lane % 4 == 0)
            maxima[warp_group() * BLOCK_M + warp_row() + lane / 4 + half * 8] = row_max;
    }
}

/* The rows' maxima over all keys of the tile; O is rescaled. */
__device__ __forceinline__ void share_maxima(const float *maxima, float (&o)[1][DV_TILES][4], float (&m)[1][2],
                                             float (&l)[1][2], float (&base)[1][2], float factor)
{
    int row = warp_row() + thread_index_remat() % 32 / 4;
    float top[1][1][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row_max = -ATTUNE_INF;
#pragma unroll
        for (int g = 0; g < KEY_GROUPS; g++)
            row_max = fmaxf(row_max, maxima[g * BLOCK_M + row + half * 8]);
        top[0][0][2 * half] = top[0][0][2 * half + 1] = row_max;
    }
    softmax_maxima(top, o, m, l, base, factor);
}

/* The warp's part of P goes to shared memory, from which each warp loads all of its rows. */
__device__ __forceinline__ void store_p(float *p, const float (&x)[1][N_TILES][4])
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
            *(float2 *)&p[(warp_row() + lane / 4 + half * 8) * P_PITCH + warp_column() + n * 8 + lane % 4 * 2] =
                make_float2(x[0][n][2 * half], x[0][n][2 * half + 1]);
}

__device__ __forceinline__ void load_p(float (&x)[1][BLOCK_N / 8][4], const float *p)
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++) {
            float2 two = *(const float2 *)&p[(warp_row() + lane / 4 + half * 8) * P_PITCH + n * 8 + lane % 4 * 2];
            x[0][n][2 * half] = two.x, x[0][n][2 * half + 1] = two.y;
        }
}

/* 7: the warps' results replace the operands in shared memory: O[O_GROUPS][BLOCK_M][SERVED_DV], then m and l. */
__device__ __forceinline__ void save_groups(float *o_groups, float *ml_groups, const float (&o)[1][DV_TILES][4],
                                            const float (&m)[1][2], const float (&l)[1][2])
{
    int lane = (int)threadIdx.x % 32;
    int group = (int)threadIdx.x / (32 * ROW_GROUPS), row = warp_row() + lane / 4;
    int to = SHARED_P ? row : group * BLOCK_M + row, column = (SHARED_P ? group * DV_TILES * 8 : 0) + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[0][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
        for (int d = 0; d < DV_TILES; d++)
            *(float2 *)&o_groups[(to + half * 8) * SERVED_DV + d * 8 + column] =
                make_float2(o[0][d][half * 2], o[0][d][half * 2 + 1]);
        if (lane % 4 == 0 && group < KEY_GROUPS)
            *(float2 *)&ml_groups[(group * BLOCK_M + row + half * 8) * 2] = make_float2(m[0][half], sum);
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
        if (g < O_GROUPS)
            x.o += o[(g * BLOCK_M + row) * SERVED_DV + d] * weight;
    }
    return x;
}

/* Stores an element of O, and LSE. */
__device__ __forceinline__ void finish(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                       const tile_coord &at, int d, recomputed_element x, float factor)
{
    if ((HAVE_MASK || config::TREE) && !finite(x.o) && finite(x.l)) {
        recomputed_element again = recompute(a, s, t, at, d);
        /* Scalar products round differently than the tensor cores: divide by the sum of the recomputed weights, and
         * scale by the one that the row is normalised with. */
        x.o = again.l == 0.0f ? again.o : again.o * (x.l / again.l);
    }
    tile_coord to = {t.batch, at.h, at.h_kv, t.row0 + at.q};
    float row_max = x.m * (factor * ATTUNE_LN2);
    row_total total = row_total_of(a, at.h, row_max, x.l);
    store_column(a, to, d, x.o * total.weight, total.sum);
    if (!d)
        store_state(a, to, total.most, total.sum, row_max, x.l);
}

/* Whether this CTA adds the fixed parts of a tile. */
__device__ __forceinline__ bool adds_fixed(const tile &t)
{
    return FIXED && t.parts == 1 && t.fixed_first < t.fixed_last;
}

/* The result of a fixed part, with those before it. */
__device__ __forceinline__ recomputed_element with_sum(const attune_cuda_serving &s, const tile &t, int row, int d,
                                                       const recomputed_element &x, float factor)
{
    if (t.fixed == t.fixed_first)
        return x;
    const float *sum = sum_of_parts(s);
    float2 ml = *(const float2 *)(sum + PART_ML + row * 2);
    return add_fixed({sum[row * HEAD_DIM_V + d], ml.x, ml.y}, x, factor);
}

/* Adds a fixed part, which is not the last, to the sum. Maxima and sums are stored when all threads have read them. */
__device__ __forceinline__ void store_sum(const float *o, const float *ml, const attune_cuda_serving &s, const tile &t,
                                          float factor)
{
    float *to = sum_of_parts(s);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        to[i] = with_sum(s, t, row, d, merge_groups(o, ml, row, d, factor), factor).o;
    }
    static_assert(BLOCK_M <= THREADS, "a thread has one row's");
    int row = (int)threadIdx.x < BLOCK_M ? (int)threadIdx.x : 0;
    recomputed_element mine = with_sum(s, t, row, 0, merge_groups(o, ml, row, 0, factor), factor);
    __syncthreads();
    if ((int)threadIdx.x < BLOCK_M)
        *(float2 *)(to + PART_ML + row * 2) = make_float2(mine.m, mine.l);
}

/* Merges the warps' results, and stores those of the tile, or of its part. Returns whether the part of a group has an
 * element that is not finite. */
__device__ __forceinline__ bool store(const float *o, const float *ml, const attune_cuda_arguments &a,
                                      const attune_cuda_serving &s, const tile &t, float factor)
{
    bool bad = false;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (t.row + row >= t.rows)
            break;
        if (!is_computed(a, t, t.row + row))
            continue;
        recomputed_element x = merge_groups(o, ml, row, d, factor);
        if (SHARES)
            bad = bad || (!finite(x.o) && finite(x.l));
        if (adds_fixed(t))
            x = with_sum(s, t, row, d, x, factor);
        if (config::PARTS && t.parts > 1)
            store_partial(part_at(s, t, t.part), row, d, x);
        else
            finish(a, s, t, row_coord(a, t, t.row + row), d, x, factor);
    }
    return bad;
}

/* Stores the sums of the parts. */
__device__ __forceinline__ void store_parts(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                            float factor)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4; i < BLOCK_M * HEAD_DIM_V; i += THREADS * 4) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (t.row + row >= t.rows)
            break;
        tile_coord at = row_coord(a, t, t.row + row);
        four_columns sum = FIXED ? add_fixed_parts(a, s, t, row, d, factor) : add_parts(s, t, row, d, factor);
        finish(a, s, t, at, d, {sum.o.x, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 1, {sum.o.y, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 2, {sum.o.z, sum.m, sum.l}, factor);
        finish(a, s, t, at, d + 3, {sum.o.w, sum.m, sum.l}, factor);
    }
}

/* With config::SHARES, the end of a part of an item: rows of which this was the last part are stored. */
template <typename TILE>
__device__ __forceinline__ void finish_members(const attune_cuda_arguments &a, const attune_cuda_serving &s, TILE &t,
                                               float factor)
{
    if constexpr (SHARES) {
        int members = t.members;
        if (members == 1) {
            if (last_of_parts(a, s, t))
                store_parts(a, s, t, factor);
            return;
        }
        group_of_rows &g = group_of(t);
        count_parts(g, members, a, s);
#pragma unroll 1
        for (int i = 0; i < members; i++) {
            if (!g.finished[i])
                continue;
            /* In shared memory alone: the addresses of its rows are taken. */
            if (threadIdx.x == 0)
                find_member(t, g.member[i], a, s);
            __syncthreads();
            range seen = tile_range(a, t);
            if (threadIdx.x == 0)
                find_fixed(t, seen, false);
            __syncthreads();
            store_parts(a, s, t, factor);
            __syncthreads();
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

/* The place in the ring of STAGES + 1 tiles' keys that is `tiles` past `place`. */
__device__ __forceinline__ int key_place(int place, int tiles)
{
    place += tiles * BLOCK_N;
    return place < (STAGES + 1) * BLOCK_N ? place : place - (STAGES + 1) * BLOCK_N;
}

/* Finds the rows of item or tile `index`. */
__device__ __forceinline__ bool find_tile(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          int index)
{
    if constexpr (config::PARTS)
        return find_item(t, a, s, index);
    else
        return find_rows(t, a, s, index);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_serving_sm80(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr attune_cuda_serving_sm80_layout AT = attune_cuda_serving_sm80(SERVED);
    static_assert(planned(AT.size));
    u32 q_tile = shared_address(memory), k_tile = q_tile + AT.k, v_tile = q_tile + AT.v;
    int2 *keys = (int2 *)(memory + AT.keys);
    float *maxima = (float *)(memory + AT.maxima), *p = (float *)(memory + AT.p);
    float *k_factors = (float *)(memory + AT.k_factors), *v_factors = (float *)(memory + AT.v_factors);
    tile &t = *(tile *)(memory + AT.rows);
    float factor = uniform(fold_factor(a.scale));
    tile found;
    /* A grid has fewer than 2^31 CTAs: tiles from there on are of sequences that claim the same rows. */
    for (u32 index = (u32)block_here(); (int)index >= 0 && find_tile(found, a, s, (int)index);
         index += (u32)grid_here()) {
        if (config::PARTS && found.row >= found.rows)
            continue;
        find_keys(found, a, s);
        begin_rows(t, found, a, s);
        const tile &rows = SHARES ? t : found;
        bool more = false; /* fixed parts of the tile, of which this is not the first */
        do {
            range seen = tile_range(a, rows);
            if (FIXED)
                find_fixed(found, seen, more && (!SHARES || found.parts == 1));
            if (config::PARTS)
                seen = part_range(seen, found);
            if (threadIdx.x == 0)
                publish(t, found);
            int kv = uniform(seen.low / BLOCK_N * BLOCK_N), end = uniform(seen.high), place = 0;
            u32 stage = 0;
            float o[1][DV_TILES][4] = {}, m[1][2] = {{-ATTUNE_INF, -ATTUNE_INF}}, l[1][2] = {};

            /* 1: load Q, and the first tiles of K. */
            load_q(q_tile, a, rows);
            next_keys next;
            bool absent_next[AHEAD];
            fetch_keys(next, found, s, kv);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                absent_next[i] = __syncthreads_or(store_keys(next, keys + i * BLOCK_N));
                if (STAGES == 1)
                    load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, keys, k_factors);
                else
                    copy_tile(k_tile + i * AT.k_stage, v_tile + i * AT.v_stage, a, s, t, keys + i * BLOCK_N,
                              kv + i * BLOCK_N < end);
                fetch_keys(next, t, s, kv + (i + 1) * BLOCK_N);
            }
            for (; kv < end; kv += BLOCK_N) {
                int2 *here = keys + place, *later = keys + key_place(place, AHEAD);
                bool absent = absent_next[0];
                float x[1][N_TILES][4];
                u32 k = k_tile + stage * AT.k_stage, v = v_tile + stage * AT.v_stage;
                place = key_place(place, 1);
#pragma unroll
                for (int i = 0; i + 1 < AHEAD; i++)
                    absent_next[i] = absent_next[i + 1];
                /* 2: K is loaded, with several stages V too; the copies of V, or of a later tile, start. */
                copy_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();
                bool some = store_keys(next, later);
                absent_next[AHEAD - 1] = __syncthreads_or(some);
                if constexpr (STAGES > 1) {
                    u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;
                    copy_tile(k_tile + free_stage * AT.k_stage, v_tile + free_stage * AT.v_stage, a, s, t, later,
                              kv + AHEAD * BLOCK_N < end);
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                } else if (!ONE_BUFFER)
                    load_rows<V_TYPE, HEAD_DIM_V, CHUNKS_V>(v, a.v, s.v_scale, t, here, v_factors);
                fetch_keys(next, t, s, kv + (AHEAD + 1) * BLOCK_N);
                /* 3, 4: S, then score and mask. */
                if (!SHARED_P || warp_group() < KEY_GROUPS) {
                    k += (u32)(warp_column() * CHUNKS_D * 16);
                    if constexpr (CODES)
                        multiply_codes(x, q_tile, k, warp_row(), k_factors + warp_column() * K_FACTORS);
                    else
                        multiply_qk(x, q_tile, k, warp_row());
                    hook(x, a, s, t, kv, t.row + warp_row() + thread_index_remat() % 32 / 4, warp_column(), here,
                         absent);
                    if (SHARED_P)
                        store_maxima(maxima, x);
                }
                if constexpr (STAGES == 1) {
                    copy_wait<0>();
                    __syncthreads();
                    if (ONE_BUFFER)
                        load_rows<V_TYPE, HEAD_DIM_V, CHUNKS_V>(v, a.v, s.v_scale, t, here, v_factors);
                    else if (kv + BLOCK_N < end)
                        load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, later, k_factors);
                } else if (SHARED_P)
                    __syncthreads();
                /* 5, 6: online softmax, O += P V. */
                if constexpr (SHARED_P) {
                    float base[1][2], all[1][BLOCK_N / 8][4];
                    share_maxima(maxima, o, m, l, base, factor);
                    if (warp_group() < KEY_GROUPS) {
#pragma unroll
                        for (int n = 0; n < N_TILES; n++)
                            softmax_exp(x, l, base, factor, n);
                        store_p(p, x);
                    }
                    if (ONE_BUFFER)
                        copy_wait<0>();
                    __syncthreads();
                    load_p(all, p);
                    if constexpr (CODES)
                        multiply_weighted_codes(o, all, v, warp_group() * DV_TILES, v_factors);
                    else
                        multiply_pv<CHUNKS_V>(o, all, v, warp_group() * DV_TILES);
                } else {
                    softmax(x, o, m, l, factor);
                    v += (u32)(warp_column() * CHUNKS_V * 16);
                    if constexpr (CODES)
                        multiply_weighted_codes(o, x, v, 0, v_factors + warp_column() * V_FACTORS);
                    else
                        multiply_pv(o, x, v);
                }
                if (ONE_BUFFER) {
                    __syncthreads();
                    if (kv + BLOCK_N < end)
                        load_rows<K_TYPE, HEAD_DIM, CHUNKS_D>(k_tile, a.k, s.k_scale, t, later, k_factors);
                }
            }
            /* 7: store O and LSE, or a partial result. */
            copy_wait<0>();
            __syncthreads();
            save_groups((float *)memory, (float *)(memory + AT.ml), o, m, l);
            __syncthreads();
            more = adds_fixed(t) && t.fixed < t.fixed_last;
            if (more)
                store_sum((const float *)memory, (const float *)(memory + AT.ml), s, t, factor);
            else
                more =
                    computes_again(t, store((const float *)memory, (const float *)(memory + AT.ml), a, s, t, factor));
            if (SHARES && !more && t.parts > 1)
                finish_members(a, s, t, factor);
            else if (!SHARES && config::PARTS && t.parts > 1 && last_of_parts(a, s, t))
                store_parts(a, s, t, factor);
            __syncthreads();
            if (more) {
                found = t;
                __syncthreads();
            }
        } while (more);
    }
}

/* The schedule of a step, with config::PARTS. */
extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    attune_schedule_sm80(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    if constexpr (SHARES)
        make_shared_schedule(a, s, memory);
    else
        make_schedule(a, s, (schedule_sums *)memory);
}

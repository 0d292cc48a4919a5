/* SPDX-License-Identifier: MIT */
/*
 * Decode with mma.sync and cp.async: few query rows, many keys (Flash-Decoding). A CTA computes the packed rows of the
 * query heads that share keys (row = head in the group * q_len + q) over one split of the keys. Its warps divide the
 * rows by 16, then the columns of each tile of keys; each has its own running maximum and sum, which are merged through
 * shared memory at the end. Partial results of several splits are combined by the CTAs of a cluster, which exchange
 * them in shared memory, or in global memory by attune_combine_sm80.
 */
#include "layout_sm80.h"
#include "mma.cuh"
#include "non_finite.cuh"
#include "terms.cuh"

constexpr int ROW_GROUPS = BLOCK_M / 16, KEY_GROUPS = WARPS / ROW_GROUPS;
constexpr int KEYS = BLOCK_N / KEY_GROUPS, N_TILES = KEYS / 8, DV_TILES = PAD_DV / 8;
constexpr bool CLUSTERS = __CUDA_ARCH__ >= 900; /* that the device has them */
static_assert(KEY_GROUPS * ROW_GROUPS == WARPS, "warps divide the rows, then the keys");
static_assert(KEYS % 16 == 0, "a warp computes 16 columns or a multiple");

/* A CTA's split: its first packed row, its heads and its keys. */
struct part {
    int b, h, h_kv;       /* h: the first head */
    int row, rows;        /* its first packed row; rows of all packed heads */
    int index;            /* of the split */
    int step, steps, end; /* its first block (or tile) of keys, the one after its last, and the key after its last */
};

/* Finds the heads and rows of a CTA; returns where their keys begin. */
__device__ __forceinline__ source part_heads(part &p, const attune_cuda_arguments &a, const attune_cuda_parts &parts,
                                             int index)
{
    p.rows = parts.packed * a.q_len;
    int tiles = known_here((p.rows + BLOCK_M - 1) / BLOCK_M), planes = known_here(a.heads / known_here(parts.packed));
    int split = known_here(parts.split);
    p.index = index % split;
    index /= split;
    p.row = index % tiles * BLOCK_M;
    index /= tiles;
    p.b = index / planes;
    p.h = (index - p.b * planes) * parts.packed;
    p.h_kv = p.h / known_here(a.heads / known_here(a.kv_heads));
    return source_of(a, p.b, p.h_kv);
}

__device__ __forceinline__ part part_of(const attune_cuda_arguments &a, const attune_cuda_parts &parts, int index)
{
    part p;
    part_heads(p, a, parts, index);
    /* The first splits have one step more, where the steps do not divide. */
    int keys = config::HAVE_BLOCKS ? a.kv_block : BLOCK_N, split = known_here(parts.split);
    int all = (int)(((u32)a.kv_len + (u32)keys - 1) / (u32)keys), each = all / split, rest = all - each * split;
    p.step = each * p.index + min(p.index, rest);
    p.steps = p.step + each + (p.index < rest);
    p.end = (int)min((i64)p.steps * keys, (i64)a.kv_len);
    return p;
}

/* The warp's first row and column in the tile, rematerialised. */
__device__ __forceinline__ int warp_row()
{
    return thread_index_remat() / 32 % ROW_GROUPS * 16;
}

__device__ __forceinline__ int warp_column()
{
    return thread_index_remat() / (32 * ROW_GROUPS) * KEYS;
}

/* A packed row's head and query. */
__device__ __forceinline__ tile_coord row_coord(const attune_cuda_arguments &a, const part &p, int row)
{
    int head = row / known_here(a.q_len);
    return {p.b, p.h + head, p.h_kv, row - head * a.q_len};
}

/* -------------------------------------------------------------------------------------------- the block iterator */

/* Position of the first of `count` ascending indices that is not less than `block`. */
__device__ __forceinline__ int first_from(const int *indices, int count, int block)
{
    int low = 0;
    while (low < count) {
        int middle = (low + count) / 2;
        if (indices[middle] < block)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

__device__ __forceinline__ void list_skip(const int *&indices, int &count, int from)
{
    int skipped = first_from(indices, count, from);
    indices += skipped;
    count -= skipped;
}

/* Decode's rows are all in the first block row of the mask. */
__device__ __forceinline__ void part_iterator_begin(block_iterator &w, const attune_cuda_arguments &a, const part &p)
{
    if constexpr (config::HAVE_BLOCKS) {
        i64 row = p.b * a.mask_batch_rows + p.h * a.mask_head_rows;
        lists_open(w.left, a.partial, a.full, row);
        list_skip(w.left.partial, w.left.partials, p.step);
        list_skip(w.left.full, w.left.fulls, p.step);
        lists_begin(w.left);
        block_iterator_enter(w, a);
    } else {
        w.next.kv = p.step * BLOCK_N;
        w.next.full = true;
    }
}

__device__ __forceinline__ keys part_iterator_next(block_iterator &w, const attune_cuda_arguments &a, const part &p)
{
    keys taken = block_iterator_next(w, a);
    if (taken.kv >= p.end)
        taken.kv = -1;
    return taken;
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* 1: the packed rows of Q. */
__device__ __forceinline__ void load_q(u32 to, const attune_cuda_arguments &a, const part &p)
{
    const q_element *base = (const q_element *)a.q.address + p.b * a.q.batch;
    bool aligned = view_aligned<q_element>(a.q);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS_D; i += THREADS) {
        int row = i / CHUNKS_D, chunk = i % CHUNKS_D;
        tile_coord at = row_coord(a, p, p.row + row);
        bool valid = chunk * PER_CHUNK < HEAD_DIM && p.row + row < p.rows;
        const q_element *from = valid ? base + at.h * a.q.head + at.q * a.q.row + chunk * PER_CHUNK : base;
        copy_q(to + chunk_offset<CHUNKS_D>(row, chunk), from, valid, aligned);
    }
}

/* 4, with key terms, which all heads of the tile share. */
__device__ __forceinline__ void hook_terms(float (&s)[1][N_TILES][4], const attune_cuda_arguments &a, const part &p,
                                           const keys &w, int row, int column, u32 terms)
{
    column += thread_index_remat() % 4 * 2;
    row_terms rows[2];
    tile_coord at[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        at[half] = row_coord(a, p, row + half * 8);
        row_terms_make(rows[half], a, at[half], !w.full);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[0][n][i];
            int key[KEY_TERMS + 1];
            key_terms_load<0, KEY_TERMS>(key, terms, column + n * 8 + i % 2);
            const tile_coord &t = at[i / 2];
            int kv = w.kv + column + n * 8 + i % 2;
            if constexpr (HAVE_SCORE)
                x = score_of_pair<false>(a, t.b, t.h, t.q, kv, t.h_kv, x * a.scale, key, rows[i / 2].score);
            else if (a.scale <= 0.0f)
                x *= fold_sign(a.scale);
            if constexpr (config::MASK_KEYS > 0) {
                if (!w.full && !mask_of_pair(a, t.b, t.h, t.q, kv, key + config::SCORE_KEYS, rows[i / 2].mask))
                    x = -ATTUNE_INF;
            } else if (HAVE_MASK && !w.full && !pair_allowed(a, t, kv))
                x = -ATTUNE_INF;
            if (kv >= p.end)
                x = -ATTUNE_INF;
        }
}

/* 4: the score and mask hook, for both of the thread's rows. column: the warp's first in the tile of keys w. */
__device__ __forceinline__ void hook(float (&s)[1][N_TILES][4], const attune_cuda_arguments &a, const part &p,
                                     const keys &w, int row, int column)
{
    column += w.kv + thread_index_remat() % 4 * 2;
    float sign = fold_sign(a.scale);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        tile_coord at = row_coord(a, p, row + half * 8);
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[0][n][half * 2 + i];
                int kv = column + n * 8 + i;
                if constexpr (HAVE_SCORE)
                    x = attune_score(at.b, at.h, at.q, kv, at.h_kv, a.q_len, a.kv_len, x * a.scale, a.score_symbols);
                else if (a.scale <= 0.0f)
                    x *= sign;
                if (HAVE_MASK && !w.full && !pair_allowed(a, at, kv))
                    x = -ATTUNE_INF;
                if (kv >= p.end)
                    x = -ATTUNE_INF;
            }
        /* With 256 columns of O no registers are left for the second row's coordinates before the first row is done. */
        if constexpr (PAD_DV > 192)
            row = after(row, s[0][N_TILES - 1][half * 2 + 1]);
    }
}

/* Parts of a row's keys, those of warps or splits: ml_of gives m and l of one, o_of its O; COUNT are on their way at
 * once. Their largest maximum, and what they add up to: */
template <int COUNT, typename ml_source>
__device__ __forceinline__ float largest_maximum(int parts, const ml_source &ml_of)
{
    float row_max = -ATTUNE_INF;
#pragma unroll 1
    for (int i = 0; i < parts; i += COUNT) {
        float x[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            x[j] = ml_of(min(i + j, parts - 1)).x;
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            row_max = fmaxf(row_max, x[j]);
    }
    return row_max;
}

template <int COUNT, typename ml_source, typename o_source>
__device__ __forceinline__ void add_parts(float &value, float &sum, int parts, float row_max, float factor,
                                          const ml_source &ml_of, const o_source &o_of)
{
    float base = row_max == -ATTUNE_INF ? 0.0f : row_max;
    value = 0.0f;
    sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < parts; i += COUNT) {
        float2 ml[COUNT];
        float o[COUNT];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            ml[j] = ml_of(min(i + j, parts - 1));
            o[j] = o_of(min(i + j, parts - 1));
        }
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (i + j < parts) {
                float weight = exp2_fast((ml[j].x - base) * factor);
                sum += ml[j].y * weight;
                value += o[j] * weight;
            }
    }
}

/* m and l of the warps that share a row. */
struct warps_ml {
    const float *ml;
    int row;

    __device__ __forceinline__ float2 operator()(int group) const
    {
        return ((const float2 *)ml)[group * BLOCK_M + row];
    }
};

/* 7: merges the warps' results and stores O and LSE, or the split's partial result: in a cluster that goes where the
 * first warps' O was. */
__device__ __forceinline__ void store(float *o, const float *ml, const attune_cuda_arguments &a,
                                      const attune_cuda_parts &parts, const part &p, float factor)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < BLOCK_M * HEAD_DIM_V; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        if (p.row + row >= p.rows)
            break;
        tile_coord at = row_coord(a, p, p.row + row);
        const warps_ml ml_of = {ml, row};
        float value, sum, row_max = largest_maximum<KEY_GROUPS>(KEY_GROUPS, ml_of);
        add_parts<KEY_GROUPS>(value, sum, KEY_GROUPS, row_max, factor, ml_of,
                              [&](int group) { return o[(group * BLOCK_M + row) * PAD_DV + d]; });
        if (HAVE_MASK && !finite(value) && finite(sum)) {
            block_iterator w;
            part_iterator_begin(w, a, p);
            recomputed_element again = recompute_element(a, at, w, p.end, d);
            /* Scalar products round differently than the tensor cores: divide by the sum of the recomputed weights, and
             * scale by the one that the row is normalised with. */
            value = again.l == 0.0f ? again.o : again.o * (sum / again.l);
        }
        if (CLUSTERS && parts.clustered) {
            o[row * PAD_DV + d] = value;
        } else if (parts.split > 1) {
            i64 to = (((i64)at.b * a.heads + at.h) * a.q_len + at.q) * parts.split + p.index;
            ((float *)parts.o)[to * config::O_COLUMNS + d] = value;
            if (d == 0)
                ((float2 *)parts.ml)[to] = make_float2(row_max, sum);
        } else
            store_element(a, at, d, value, row_max, sum, factor);
    }
}

/* 7, in a cluster: each CTA has a part of the elements, and reads them of all splits. The split's m and l replace those
 * of the first warps. */
__device__ __forceinline__ void combine_cluster(const float *o, float *ml, const attune_cuda_arguments &a,
                                                const attune_cuda_parts &parts, const part &p, float factor)
{
    int all = min(BLOCK_M, p.rows - p.row) * HEAD_DIM_V, each = (all + parts.split - 1) / parts.split;
    int end = min((p.index + 1) * each, all);
    __syncthreads();
#pragma unroll 1
    for (int row = (int)threadIdx.x; row < BLOCK_M; row += THREADS) {
        const warps_ml ml_of = {ml, row};
        float none, sum, row_max = largest_maximum<KEY_GROUPS>(KEY_GROUPS, ml_of);
        add_parts<KEY_GROUPS>(none, sum, KEY_GROUPS, row_max, factor, ml_of, [](int) { return 0.0f; });
        ((float2 *)ml)[row] = make_float2(row_max, sum);
    }
    cluster_sync();
#pragma unroll 1
    for (int i = p.index * each + (int)threadIdx.x; i < end; i += THREADS) {
        int row = i / HEAD_DIM_V, d = i - row * HEAD_DIM_V;
        auto ml_of = [&](int rank) {
            float2 of;
            load_rank_2(of.x, of.y, shared_address(ml + row * 2), (u32)rank);
            return of;
        };
        auto o_of = [&](int rank) {
            float of;
            load_rank(of, shared_address(o + row * PAD_DV + d), (u32)rank);
            return of;
        };
        float value, sum, row_max = largest_maximum<ATTUNE_CUDA_CLUSTER_SPLITS>(parts.split, ml_of);
        add_parts<ATTUNE_CUDA_CLUSTER_SPLITS>(value, sum, parts.split, row_max, factor, ml_of, o_of);
        store_element(a, row_coord(a, p, p.row + row), d, value, row_max, sum, factor);
    }
    /* No CTA ends before each has read its split. */
    cluster_sync();
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;
/* With more than 128 columns of float32 the accumulators leave no registers for coordinates across tiles: they are
 * computed again. */
constexpr bool SAVED_STATE = config::SAVED_STATE;
static_assert(SAVED_STATE == attune_cuda_decode_sm80_saves_state(TILE), "the layout has space for the state");

/* Nor do they leave any for the rows' maxima and sums, and for the iterator: during P V these are saved in shared
 * memory. */
__device__ __forceinline__ void save_state(u32 to, const float (&m)[1][2], const float (&l)[1][2], const keys &next,
                                           const keys &after)
{
    to += (u32)thread_index_remat() * 16;
    store_shared_4(to, m[0][0], m[0][1], l[0][0], l[0][1]);
    store_shared_4(to + THREADS * 16, (u32)next.kv, (u32)next.full, (u32)after.kv, (u32)after.full);
}

__device__ __forceinline__ void restore_rows(u32 from, float (&m)[1][2], float (&l)[1][2])
{
    load_shared_4_ordered(m[0][0], m[0][1], l[0][0], l[0][1], from + (u32)thread_index_remat() * 16);
}

__device__ __forceinline__ void restore_keys(u32 from, keys &next, keys &after)
{
    int full, after_full;
    load_shared_4_ordered(next.kv, full, after.kv, after_full, from + (u32)(THREADS + thread_index_remat()) * 16);
    next.full = full;
    after.full = after_full;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_decode_sm80(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_parts parts)
{
    extern __shared__ __align__(128) unsigned char memory[];
    constexpr attune_cuda_forward_sm80_layout AT = attune_cuda_decode_sm80(TILE);
    constexpr u32 K_BYTES = AT.k_stage, V_BYTES = AT.v_stage;
    static_assert(planned(AT.size) && TERM_BYTES == AT.terms_buffer);
    u32 q_tile = shared_address(memory) + AT.q, k_tiles = q_tile + (AT.k - AT.q), v_tiles = k_tiles + (AT.v - AT.k),
        terms = v_tiles + (AT.terms - AT.v), rows = terms + (AT.state - AT.terms);
    wait_for_launches();
    part p = part_of(a, parts, (int)blockIdx.x);
    p = {uniform(p.b),     uniform(p.h),    uniform(p.h_kv),  uniform(p.row), uniform(p.rows),
         uniform(p.index), uniform(p.step), uniform(p.steps), uniform(p.end)};
    source from = source_of(a, p.b, p.h_kv);

    float o[1][DV_TILES][4] = {}, m[1][2] = {{-ATTUNE_INF, -ATTUNE_INF}}, l[1][2] = {};
    float factor = uniform(fold_factor(a.scale));

    block_iterator ahead;
    part_iterator_begin(ahead, a, p);
    load_q(q_tile, a, p);
    keys next[AHEAD]; /* tiles being copied */
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        next[i] = part_iterator_next(ahead, a, p);
        load_k(k_tiles + i * K_BYTES, from, a, next[i]);
        if (STAGES > 1)
            load_v(v_tiles + i * V_BYTES, from, a, next[i]);
    }

    next_terms next_key_terms;
    make_terms(next_key_terms, a, {p.b, p.h, p.h_kv, 0}, next[0]);
    store_terms(next_key_terms, terms);

    if (SAVED_STATE)
        save_state(rows, m, l, next[0], ahead.next);
    u32 stage = 0, terms_offset = 0; /* terms_offset: this tile's key terms, double-buffered */
    while (next[0].kv >= 0) {
        keys now = next[0];
#pragma unroll
        for (int i = 0; i + 1 < AHEAD; i++)
            next[i] = next[i + 1];
        next[AHEAD - 1] = part_iterator_next(ahead, a, p);
        u32 k_tile = k_tiles + stage * K_BYTES, v_tile = v_tiles + stage * V_BYTES;
        float s[1][N_TILES][4];
        /* 2: this tile is loaded; the copies of a later one start. */
        copy_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();
        __syncthreads();
        if (SAVED_STATE)
            from = part_heads(p, a, parts, block_here());
        if constexpr (STAGES == 1) {
            load_v(v_tile, from, a, now);
        } else {
            u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;
            load_k(k_tiles + free_stage * K_BYTES, from, a, next[AHEAD - 1]);
            load_v(v_tiles + free_stage * V_BYTES, from, a, next[AHEAD - 1]);
        }
        make_terms(next_key_terms, a, {p.b, p.h, p.h_kv, 0}, next[0]);
        /* 3, 4: S, then score and mask. */
        multiply_qk(s, q_tile, k_tile + (u32)(warp_column() * CHUNKS_D * 16), warp_row());
        if (SAVED_STATE)
            from = part_heads(p, a, parts, block_here());
        int row = p.row + warp_row() + thread_index_remat() % 32 / 4;
        if constexpr (KEY_TERMS > 0)
            hook_terms(s, a, p, now, row, warp_column(), terms + terms_offset);
        else
            hook(s, a, p, now, row, warp_column());
        terms_offset = TERM_BYTES - terms_offset;
        store_terms(next_key_terms, terms + terms_offset);
        if constexpr (STAGES == 1) {
            copy_wait<0>();
            __syncthreads();
            load_k(k_tile, from, a, next[0]);
        }
        /* 5, 6: online softmax, O += P V. */
        if (SAVED_STATE)
            restore_rows(rows, m, l);
        softmax(s, o, m, l, factor);
        if (SAVED_STATE)
            save_state(rows, m, l, next[0], ahead.next);
        multiply_pv(o, s, v_tile + (u32)(warp_column() * CHUNKS_DV * 16));
        if (SAVED_STATE)
            restore_keys(rows, next[0], ahead.next);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    if (SAVED_STATE)
        restore_rows(rows, m, l);
    __syncthreads();
    p = part_of(a, parts, block_here());

    /* 7. The warps' results replace the operands in shared memory: O[groups][BLOCK_M][PAD_DV], then m and l. */
    float *o_groups = (float *)memory, *ml_groups = (float *)(memory + AT.ml);
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
    __syncthreads();
    store(o_groups, ml_groups, a, parts, p, factor);
    if constexpr (CLUSTERS)
        if (parts.clustered)
            combine_cluster(o_groups, ml_groups, a, parts, p, factor);
}

/* Combines the splits of a row: a grid of batch x heads x q_len CTAs. As many splits are on their way at once: */
constexpr int AT_ONCE = ATTUNE_CUDA_COMBINED_AT_ONCE;

extern "C" __global__ void attune_combine_sm80(const __grid_constant__ attune_cuda_arguments a,
                                               const __grid_constant__ attune_cuda_parts parts)
{
    int row = (int)blockIdx.x, plane = row / a.q_len, b = plane / a.heads;
    tile_coord at = {b, plane - b * a.heads, 0, row - plane * a.q_len};
    const float2 *ml = (const float2 *)parts.ml + (i64)row * parts.split;
    const float *o = (const float *)parts.o + (i64)row * parts.split * config::O_COLUMNS;
    wait_for_launches();
    float factor = fold_factor(a.scale);
    auto ml_of = [&](int part) { return ml[part]; };
    float row_max = largest_maximum<AT_ONCE>(parts.split, ml_of);
#pragma unroll 1
    for (int d = (int)threadIdx.x; d < HEAD_DIM_V; d += (int)blockDim.x) {
        float value, sum;
        add_parts<AT_ONCE>(value, sum, parts.split, row_max, factor, ml_of,
                           [&](int part) { return o[(i64)part * config::O_COLUMNS + d]; });
        store_element(a, at, d, value, row_max, sum, factor);
    }
}

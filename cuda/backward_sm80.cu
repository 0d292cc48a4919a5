/* SPDX-License-Identifier: MIT */
/*
 * Backward with mma.sync and cp.async, every dtype and head dimension. This file compiles to two kernels. Each keeps an
 * outer tile, loops over the inner tiles, and recomputes P and dS, so that a single CTA sums each gradient and the
 * result is deterministic:
 *
 *     DK_DV          outer tile   inner tiles   S and dP                      gradients
 *     1              K, V         Q, dO         S^T = K Q^T, dP^T = V dO^T    dV += P^T dO, dK += dS^T Q
 *     0              Q, dO        K, V          S = Q K^T, dP = dO V^T        dQ += dS K, capture gradients
 *
 * A warp has 16 rows of the outer tile, or a multiple, and all columns of the inner tile: P and dS go from registers to
 * the next product without a shuffle (mma.cuh). With p = exp(score(s) - lse): dS = p (dP - delta) score'(s), and 0
 * where p is 0. The products multiply that 0 with Q, K or dO, and 0 times an infinity or NaN is NaN. If a sum is not
 * finite, the CTA therefore runs again on the slow path, where the last products read 0 for elements that are not
 * finite. P and dS carry the NaN of allowed pairs, since the first products read the inputs unchanged.
 */
#include "stages_backward_sm80.cuh"

constexpr int D_TILES = PAD_D / 8, DV_TILES = PAD_DV / 8;

/* multiply_qk with the outer operand read from global memory. `row` is the thread's first row. */
template <int CHUNKS, int DIM>
__device__ __forceinline__ void multiply_qk_direct(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_view &outer,
                                                   int b, int h, int row, int limit, u32 inner_tile)
{
    const element *base = (const element *)outer.address + b * outer.batch + h * outer.head;
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        u32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row + i % 2 * 8, column = (chunk + i / 2) * 4 + lane % 4;
            x[i] = at < limit && column < DIM ? __float_as_uint(base[at * outer.row + column]) : 0u;
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            u32 y[4];
            load_matrices(y, inner_tile + chunk_offset<CHUNKS>(n * 8 + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
            multiply_rounded(s[0][n], x, y[0], y[1]);
            multiply_rounded(s[0][n + 1], x, y[2], y[3]);
        }
    }
}

__device__ __forceinline__ float sum_lanes(float x, int from, int to)
{
    for (int step = from; step <= to; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

#define READ_GRADIENT(n_, r, n, i)                                                                                     \
    (dp[r][n][i] == 0.0f                                                                                               \
         ? 0.0f                                                                                                        \
         : dp[r][n][i] * attune_capture_read_##n_(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len, \
                                                  a.kv_len, s[r][n][i], a.score_symbols))
#define ADD_READ_GRADIENT(n_, r, n, i, x)                                                                              \
    do {                                                                                                               \
        i64 at_ = attune_capture_read_##n_##_at(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len,   \
                                                a.kv_len, s[r][n][i], a.score_symbols);                                \
        float x_ = x;                                                                                                  \
        if (at_ >= 0 && x_ != 0.0f)                                                                                    \
            sum_add(sums + at_ * ATTUNE_CUDA_SUM_WORDS, x_);                                                           \
    } while (0)

/* The gradient of one capture read. Pairs that read the same element are summed in registers first: `how` is 0 if all
 * pairs of the tile read the same one, 1 those of a row, 2 those of a column, else each its own. */
#define ADD_READ_GRADIENTS(n_, symbol, how)                                                                            \
    if (u64 *sums = (u64 *)back.symbol_sums[symbol]) {                                                                 \
        if constexpr (how == 0) {                                                                                      \
            float x = 0.0f;                                                                                            \
            FOR_PAIRS(r, n, i) x += READ_GRADIENT(n_, r, n, i);                                                        \
            x = sum_lanes(x, 1, 16);                                                                                   \
            if (lane == 0)                                                                                             \
                ADD_READ_GRADIENT(n_, 0, 0, 0, x);                                                                     \
        } else if constexpr (how == 1) {                                                                               \
            _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int i = 0; i < 4; i += 2)     \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int n = 0; n < N_TILES; n++) x +=                                               \
                    READ_GRADIENT(n_, r, n, i) + READ_GRADIENT(n_, r, n, i + 1);                                       \
                x = sum_lanes(x, 1, 2);                                                                                \
                if (lane % 4 == 0)                                                                                     \
                    ADD_READ_GRADIENT(n_, r, 0, i, x);                                                                 \
            }                                                                                                          \
        } else if constexpr (how == 2) {                                                                               \
            _Pragma("unroll") for (int n = 0; n < N_TILES; n++) _Pragma("unroll") for (int i = 0; i < 2; i++)          \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) x +=                                             \
                    READ_GRADIENT(n_, r, n, i) + READ_GRADIENT(n_, r, n, i + 2);                                       \
                x = sum_lanes(x, 4, 16);                                                                               \
                if (lane < 4)                                                                                          \
                    ADD_READ_GRADIENT(n_, 0, n, i, x);                                                                 \
            }                                                                                                          \
        } else                                                                                                         \
            FOR_PAIRS(r, n, i) ADD_READ_GRADIENT(n_, r, n, i, READ_GRADIENT(n_, r, n, i));                             \
    }

/* Adds the capture gradients, then applies the chain rule: dS becomes the gradient of the raw score. The slow path
 * must not add the captures a second time. */
__device__ __forceinline__ void chain_rule(scores &s, scores &dp, const attune_cuda_arguments &a,
                                           const attune_cuda_backward &back, const pair_coord &p, bool slow_path)
{
    [[maybe_unused]] int lane = (int)threadIdx.x % 32;
    if (!slow_path) {
        ATTUNE_CAPTURE_READS(ADD_READ_GRADIENTS)
    }
    FOR_PAIRS(r, n, i)
    {
        if (dp[r][n][i] != 0.0f)
            dp[r][n][i] *= attune_score_slope(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len,
                                              a.kv_len, s[r][n][i], a.score_symbols);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* Slow path: replaces elements of an inner tile that are not finite by 0. */
__device__ __forceinline__ void zero_non_finite(u32 tile)
{
    for (u32 i = threadIdx.x * 4; i < INNER_BYTES; i += THREADS * 4) {
        u32 two;
        load_shared(two, tile + i);
        if constexpr (FLOAT32) {
            two = (two & 0x7f800000) == 0x7f800000 ? 0 : two;
        } else {
            constexpr u32 TOP = config::DTYPE == ATTUNE_CUDA_F16 ? 0x7c00 : 0x7f80;
            two = (two & TOP) == TOP ? two & 0xffff0000 : two;
            two = (two >> 16 & TOP) == TOP ? two & 0xffff : two;
        }
        store_shared(tile + i, two);
    }
}

/* The lse and delta of a thread's rows. volatile: read again for each tile, since the sums need their registers. */
__device__ __forceinline__ void read_rows(float (&lse)[HELD_ROWS], float (&delta)[HELD_ROWS],
                                          const attune_cuda_backward &back, i64 row)
{
#pragma unroll
    for (int i = 0; i < HELD_ROWS; i++) {
        i64 at = row + i / 2 * 16 + i % 2 * 8;
        load_global(lse[i], (const float *)back.lse + at);
        load_global(delta[i], (const float *)back.delta + at);
    }
}

/* SUM_1: computes dK, or dQ; SUM_2: dV. Stores if every sum is finite, or on the slow path; else returns false. */
template <bool SUM_1, bool SUM_2>
__device__ __forceinline__ bool run_pass(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                         unsigned char *bytes)
{
    u32 memory = shared_address(bytes), inner_tiles = memory + INNER_OFFSET, row_data = memory + ROW_DATA_OFFSET;
    unsigned char *work = bytes + WORK_OFFSET;
    pair_coord mine = load_first_tiles(bytes, a, back);
    int b = mine.b, h = mine.h, first = mine.row, limit = DK_DV ? a.kv_len : a.q_len;
    const attune_cuda_view &outer_1 = DK_DV ? a.k : a.q, &outer_2 = DK_DV ? a.v : back.d_o;
    float factor = uniform(FLOAT32 && !HAVE_SCORE ? (a.scale == 0.0f ? 1.0f : fabsf(a.scale)) : fold_factor(a.scale));

    float sum_1[SUM_1 ? ROW_TILES : 1][D_TILES][4], sum_2[ROW_TILES][DV_TILES][4];
    if constexpr (SUM_1)
        clear(sum_1);
    if constexpr (SUM_2)
        clear(sum_2);
    u32 stage = 0;
#pragma unroll 1
    for (int index = 0;; index++) {
        inner_tile now = tile_desc(work, index), next = tile_desc(work, index + AHEAD);
        if (now.first < 0)
            break;
        u32 tile = inner_tiles + stage * INNER_BYTES, data = row_data + stage * ROW_DATA_BYTES;
        /* 1, 2: this tile is loaded, a later one starts. */
        wait_tile(work, index, stage, inner_tiles, row_data, a, back, next);
        int warp = thread_index_remat() / 32 * (OUTER_ROWS / WARPS), row = first + warp + thread_index_remat() % 32 / 4;
        /* 3: S and dP. */
        scores s, dp;
        if constexpr (OUTER_DIRECT) {
            multiply_qk_direct<CHUNKS_D, HEAD_DIM>(s, outer_1, b, h, row, limit, tile);
            if constexpr (SUM_1)
                multiply_qk_direct<CHUNKS_DV, HEAD_DIM_V>(dp, outer_2, b, h, row, limit, tile + SECOND_OFFSET);
        } else {
            multiply_qk<CHUNKS_D, false>(s, memory, tile, warp);
            if constexpr (SUM_1)
                multiply_qk<CHUNKS_DV, false>(dp, memory + OUTER_SECOND_OFFSET, tile + SECOND_OFFSET, warp);
        }
        if constexpr (!SUM_1)
            FOR_PAIRS(r, n, i) dp[r][n][i] = 0.0f;
        int lane = thread_index_remat() % 32;
        pair_coord p = {now.b, now.h, now.h_kv, row, now.first + lane % 4 * 2};
        bool edge = on_edge(a, first, now.first);
        float lse[HELD_ROWS], delta[HELD_ROWS];
        if constexpr (!DK_DV)
            read_rows(lse, delta, back, ((i64)now.b * a.heads + now.h) * back.row_stride + row);
        /* 4, 5: mask, P and dS. */
        compute_p_ds(s, dp, a, p, now, edge, lse, delta, data, factor, work);
        if constexpr (config::HAVE_CAPTURE_GRADIENTS)
            chain_rule(s, dp, a, back, p, on_slow_path(work));
        if (on_slow_path(work)) {
            __syncthreads();
            zero_non_finite(tile);
            __syncthreads();
        }
        /* 6: dV += P^T dO; dK += dS^T Q, or dQ += dS K. */
        if constexpr (SUM_2)
            multiply_pv<CHUNKS_DV>(sum_2, s, tile + SECOND_OFFSET);
        if constexpr (SUM_1)
            multiply_pv<CHUNKS_D>(sum_1, dp, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            load_inner(tile, data, a, back, next);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    /* 7. The coordinates are read again, since the loop needs their registers. */
    mine = ((const work_item *)work)->coord();
    b = mine.b, h = mine.h, first = mine.row;
    int row = first + thread_index_remat() / 32 * (OUTER_ROWS / WARPS) + thread_index_remat() % 32 / 4;
    bool finite_sums = true;
    if constexpr (SUM_1)
        finite_sums = is_finite(sum_1);
    if constexpr (SUM_2)
        finite_sums = finite_sums && is_finite(sum_2);
    if (__syncthreads_or(!finite_sums) && !on_slow_path(work))
        return false;
    if constexpr (SUM_1)
        store<D_TILES, HEAD_DIM>(sum_1, DK_DV ? back.d_k : back.d_q, b, h, row, limit, 0, a.scale);
    if constexpr (SUM_2)
        store<DV_TILES, HEAD_DIM_V>(sum_2, back.d_v, b, h, row, limit, 0, 1.0f);
    return true;
}

template <bool SUM_1, bool SUM_2>
__device__ __forceinline__ void run_until_finite(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                                 unsigned char *memory)
{
    work_item *work = (work_item *)(memory + WORK_OFFSET);
    if (threadIdx.x == 0) {
        work->slow_path = false;
        work->find(a, back);
    }
#pragma unroll 1
    while (!run_pass<SUM_1, SUM_2>(a, back, memory)) {
        __syncthreads();
        if (threadIdx.x == 0)
            work->slow_path = true;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_backward_sm80(const __grid_constant__ attune_cuda_arguments a,
                         const __grid_constant__ attune_cuda_backward back)
{
    extern __shared__ __align__(128) unsigned char memory[];
    if (back.redo && !*(const int *)back.redo)
        return;
    if constexpr (ROLES == 2) {
        if (blockIdx.x % 2)
            run_until_finite<true, false>(a, back, memory);
        else
            run_until_finite<false, true>(a, back, memory);
    } else
        run_until_finite<true, DK_DV>(a, back, memory);
}

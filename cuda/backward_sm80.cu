/* SPDX-License-Identifier: MIT */
/*
 * Backward with mma.sync and cp.async, every dtype and head dimension. One text makes two kernels. Each owns a tile of
 * one side, walks over the tiles of the other, and computes P and dS again, so that nothing is added to from two sides:
 *
 *     ATTUNE_DK_DV   owns    walks over    S and dP                    gives
 *     1                 K, V    Q, dO         S^T = K Q^T, dP^T = V dO^T  dV += P^T dO, dK += dS^T Q
 *     0                 Q, dO   K, V          S = Q K^T, dP = dO V^T      dQ += dS K, and what captures are due
 *
 * A warp owns 16 rows of its side, or a multiple, and all columns of the other: P and dS go from registers to the next
 * product as they are (mma.cuh). With p = exp(score(s) - lse): dS = p (dP - delta) score'(s), and 0 where p is 0,
 * whatever stands there. The products multiply such a 0 with Q, K or dO: if a sum came out as no number, the CTA
 * starts over, carefully: what is not finite counts as 0 in the last products, where p or dS say so already.
 */
#include "common.cuh"

constexpr bool DK_DV = ATTUNE_DK_DV;
constexpr int OWN = DK_DV ? BLOCK_N : BLOCK_M, OTHER = DK_DV ? BLOCK_M : BLOCK_N;
constexpr int ROW_TILES = OWN / (16 * ATTUNE_NUM_WARPS), KEYS = OTHER;
static_assert(ROW_TILES * 16 * ATTUNE_NUM_WARPS == OWN, "a warp owns 16 rows or a multiple");

/* Where dK, dV, S and dP of 32 pairs have three quarters of a thread's registers, what is read for each pair at once does
 * not fit the rest. */
constexpr bool IN_TURN = DK_DV && ATTUNE_SCORE_IS_LONG && !ATTUNE_APART && ROW_TILES * KEYS >= 64 &&
                         ROW_TILES * (HEAD_DIM + HEAD_DIM_V + 2 * KEYS) / 2 >= 192;

#include "pairs.cuh"

constexpr int D_TILES = PAD_D / 8;
constexpr int ROLES = DK_DV && ATTUNE_APART ? 2 : 1;
/* The least tile of float32 reads what it owns where it lies, so that wide heads fit little shared memory. */
constexpr bool OWN_DIRECT = WIDE && OWN == 16;
constexpr u32 OWN_BYTES = OWN_DIRECT ? 0 : OWN * (PAD_D + PAD_DV) * sizeof(element);

#include "loads_backward_sm80.cuh"

constexpr u32 WALK = OWN_BYTES + STAGES * (OTHER_BYTES + ROW_BYTES);

/* multiply_qk with rows of one's own from memory. The thread's first is `row`. */
template <int CHUNKS, int DIM>
__device__ __forceinline__ void multiply_direct(float (&s)[ROW_TILES][N_TILES][4], const attune_cuda_view &consume, int b,
                                                int h, int row, int limit, u32 other)
{
    const element *base = (const element *)consume.address + b * consume.batch + h * consume.head;
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
            x[i] = at < limit && column < DIM ? __float_as_uint(base[at * consume.row + column]) : 0u;
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            u32 y[4];
            load_matrices(y, other + chunk_offset<CHUNKS>(n * 8 + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
            multiply_rounded(s[0][n], x, y[0], y[1]);
            multiply_rounded(s[0][n + 1], x, y[2], y[3]);
        }
    }
}

#if ATTUNE_HAVE_READS
__device__ __forceinline__ float over_lanes(float x, int from, int to)
{
    for (int step = from; step <= to; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

#define READ(n_, r, n, i)                                                                                              \
    (dp[r][n][i] == 0.0f ? 0.0f                                                                                        \
                         : dp[r][n][i] * attune_read_##n_(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv,  \
                                                          a.q_len, a.kv_len, s[r][n][i], a.score_symbols))
#define READ_ADD(n_, r, n, i, x)                                                                                       \
    do {                                                                                                               \
        i64 at_ = attune_read_##n_##_at(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len, a.kv_len, \
                                        s[r][n][i], a.score_symbols);                                                  \
        float x_ = x;                                                                                                  \
        if (at_ >= 0 && x_ != 0.0f)                                                                                    \
            sum_add(sums + at_ * ATTUNE_CUDA_SUM_WORDS, x_);                                                           \
    } while (0)

/* What one read of a capture is due, summed first over the pairs that read the same element. */
#define ADD_READ(n_, symbol, how)                                                                                      \
    if (u64 *sums = (u64 *)back.symbol_sums[symbol]) {                                                                 \
        if constexpr (how == 0) {                                                                                      \
            float x = 0.0f;                                                                                            \
            FOR_PAIRS(r, n, i) x += READ(n_, r, n, i);                                                                 \
            x = over_lanes(x, 1, 16);                                                                                  \
            if (lane == 0)                                                                                             \
                READ_ADD(n_, 0, 0, 0, x);                                                                              \
        } else if constexpr (how == 1) {                                                                               \
            _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) _Pragma("unroll") for (int i = 0; i < 4; i += 2)     \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int n = 0; n < N_TILES; n++) x += READ(n_, r, n, i) + READ(n_, r, n, i + 1);    \
                x = over_lanes(x, 1, 2);                                                                               \
                if (lane % 4 == 0)                                                                                     \
                    READ_ADD(n_, r, 0, i, x);                                                                          \
            }                                                                                                          \
        } else if constexpr (how == 2) {                                                                               \
            _Pragma("unroll") for (int n = 0; n < N_TILES; n++) _Pragma("unroll") for (int i = 0; i < 2; i++)          \
            {                                                                                                          \
                float x = 0.0f;                                                                                        \
                _Pragma("unroll") for (int r = 0; r < ROW_TILES; r++) x += READ(n_, r, n, i) + READ(n_, r, n, i + 2);  \
                x = over_lanes(x, 4, 16);                                                                              \
                if (lane < 4)                                                                                          \
                    READ_ADD(n_, 0, n, i, x);                                                                          \
            }                                                                                                          \
        } else                                                                                                         \
            FOR_PAIRS(r, n, i) READ_ADD(n_, r, n, i, READ(n_, r, n, i));                                               \
    }

/* What captures are due, then dS with respect to the score before its expression. */
__device__ __forceinline__ void chain(scores &s, scores &dp, const attune_cuda_arguments &a,
                                      const attune_cuda_backward &back, const spot &p, bool again)
{
    int lane = (int)threadIdx.x % 32;
    if (!again) {
        ATTUNE_READS(ADD_READ)
    }
    FOR_PAIRS(r, n, i)
    {
        if (dp[r][n][i] != 0.0f)
            dp[r][n][i] *= attune_score_slope(p.b, p.h, query_of(p, r, n, i), key_of(p, r, n, i), p.h_kv, a.q_len,
                                              a.kv_len, s[r][n][i], a.score_symbols);
    }
}
#endif

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* Zeros for what is not finite in a tile. */
__device__ __forceinline__ void clean(u32 tile)
{
    for (u32 i = threadIdx.x * 4; i < OTHER_BYTES; i += THREADS * 4) {
        u32 two;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(two) : "r"(tile + i));
        if constexpr (WIDE) {
            two = (two & 0x7f800000) == 0x7f800000 ? 0 : two;
        } else {
            constexpr u32 TOP = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x7c00 : 0x7f80;
            two = (two & TOP) == TOP ? two & 0xffff0000 : two;
            two = (two >> 16 & TOP) == TOP ? two & 0xffff : two;
        }
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + i), "r"(two) : "memory");
    }
}

/* The lse and delta of a thread's own rows, for each tile anew: between tiles their registers are for sums. */
__device__ __forceinline__ void read_rows(float (&lse)[ROWS_HELD], float (&delta)[ROWS_HELD],
                                          const attune_cuda_backward &back, i64 row)
{
#pragma unroll
    for (int i = 0; i < ROWS_HELD; i++) {
        i64 at = row + i / 2 * 16 + i % 2 * 8;
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(lse[i]) : "l"((const float *)back.lse + at));
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(delta[i]) : "l"((const float *)back.delta + at));
    }
}

/* FIRST: dK, or dQ; BOTH or not FIRST: dV. Returns whether every sum is finite; only then, or if careful, it stores. */
template <bool FIRST, bool SECOND_TOO>
__device__ __forceinline__ bool run(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                    unsigned char *bytes)
{
    u32 memory = shared_address(bytes), others = memory + OWN_BYTES, row_data = others + STAGES * OTHER_BYTES;
    unsigned char *walk = bytes + WALK;
    if (threadIdx.x == 0)
        feed_first(walk, a, back);
    __syncthreads();
    spot mine = feed_place(*(const feed *)walk);
    int b = mine.b, h = mine.h, first = mine.consume, limit = DK_DV ? a.kv_len : a.q_len;
    const attune_cuda_view &consume = DK_DV ? a.k : a.q, &own_2 = DK_DV ? a.v : back.d_o;
    if constexpr (!OWN_DIRECT)
        load_both<OWN>(memory, consume, own_2, b, h, first, limit);
    float factor = uniform(WIDE && !HAVE_SCORE ? (a.scale == 0.0f ? 1.0f : fabsf(a.scale)) : fold_factor(a.scale));

    float sum_1[FIRST ? ROW_TILES : 1][D_TILES][4], sum_2[ROW_TILES][DV_TILES][4];
    if constexpr (FIRST)
        clear(sum_1);
    if constexpr (SECOND_TOO)
        clear(sum_2);
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++)
        load_other(others + i * OTHER_BYTES, row_data + i * ROW_BYTES, a, back, noted(walk, (int)i));
    u32 stage = 0;
#pragma unroll 1
    for (int index = 0;; index++) {
        other now = noted(walk, index), next = noted(walk, index + AHEAD);
        if (now.first < 0)
            break;
        u32 tile = others + stage * OTHER_BYTES, data = row_data + stage * ROW_BYTES;
        feed_wait(walk, index, stage, others, row_data, a, back, next);
        int warp = thread_index_remat() / 32 * (OWN / ATTUNE_NUM_WARPS), row = first + warp + thread_index_remat() % 32 / 4;
        scores s, dp;
        forbidden f_pairs;
        if constexpr (OWN_DIRECT) {
            multiply_direct<CHUNKS_D, HEAD_DIM>(s, consume, b, h, row, limit, tile);
            if constexpr (FIRST)
                multiply_direct<CHUNKS_DV, HEAD_DIM_V>(dp, own_2, b, h, row, limit, tile + SECOND);
        } else {
            multiply_qk<CHUNKS_D, false>(s, memory, tile, warp);
            if constexpr (FIRST)
                multiply_qk<CHUNKS_DV, false>(dp, memory + (u32)(OWN * PAD_D * sizeof(element)), tile + SECOND, warp);
        }
        if constexpr (!FIRST)
            FOR_PAIRS(r, n, i) dp[r][n][i] = 0.0f;
        int lane = thread_index_remat() % 32;
        spot p = {now.b, now.h, now.h_kv, row, now.first + lane % 4 * 2};
        /* Not first + OWN > ..., which is kept from one tile to the next. */
        bool edge = first > limit - OWN || now.first > (DK_DV ? a.q_len : a.kv_len) - OTHER;
        float lse[ROWS_HELD], delta[ROWS_HELD];
        if constexpr (!DK_DV)
            read_rows(lse, delta, back, ((i64)now.b * a.heads + now.h) * back.row_stride + row);
        fold(s, a.scale);
        mask_pairs(f_pairs, s, a, p, now, edge);
#if HAVE_NEAR
        if (near_zero(s))
            normalise_all<true>(s, dp, f_pairs, a, p, lse, delta, data, factor, feed_careful(walk));
        else
#endif
            normalise_all<false>(s, dp, f_pairs, a, p, lse, delta, data, factor, feed_careful(walk));
#if ATTUNE_HAVE_READS
        chain(s, dp, a, back, p, feed_careful(walk));
#endif
        if (feed_careful(walk)) {
            __syncthreads();
            clean(tile);
            __syncthreads();
        }
        if constexpr (SECOND_TOO)
            multiply_pv<DV_TILES, CHUNKS_DV>(sum_2, s, tile + SECOND);
        if constexpr (FIRST)
            multiply_pv<D_TILES, CHUNKS_D>(sum_1, dp, tile);
        if constexpr (STAGES == 1) {
            __syncthreads();
            load_other(tile, data, a, back, next);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    /* The place once more: in the loop its registers are needed. */
    mine = feed_place(*(const feed *)walk);
    b = mine.b, h = mine.h, first = mine.consume;
    int row = first + thread_index_remat() / 32 * (OWN / ATTUNE_NUM_WARPS) + thread_index_remat() % 32 / 4;
    bool good = true;
    if constexpr (FIRST)
        good = is_finite(sum_1);
    if constexpr (SECOND_TOO)
        good = good && is_finite(sum_2);
    if (__syncthreads_or(!good) && !feed_careful(walk))
        return false;
    if constexpr (FIRST)
        store<D_TILES, HEAD_DIM>(sum_1, DK_DV ? back.d_k : back.d_q, b, h, row, limit, 0, a.scale);
    if constexpr (SECOND_TOO)
        store<DV_TILES, HEAD_DIM_V>(sum_2, back.d_v, b, h, row, limit, 0, 1.0f);
    return true;
}

template <bool FIRST, bool SECOND_TOO>
__device__ __forceinline__ void run_until_good(const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                               unsigned char *memory)
{
    feed *consume = (feed *)(memory + WALK);
    if (threadIdx.x == 0) {
        consume->recomputed = false;
        feed_find(*consume, a, back);
    }
#pragma unroll 1
    while (!run<FIRST, SECOND_TOO>(a, back, memory)) {
        __syncthreads();
        if (threadIdx.x == 0)
            consume->recomputed = true;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_backward_sm80(const __grid_constant__ attune_cuda_arguments a,
                         const __grid_constant__ attune_cuda_backward back)
{
    extern __shared__ __align__(128) unsigned char memory[];
    static_assert(planned(WALK + WALK_BYTES + NOTE_BYTES, 0));
    if (back.redo && !*(const int *)back.redo)
        return;
    if constexpr (ROLES == 2) {
        if (blockIdx.x % 2)
            run_until_good<true, false>(a, back, memory);
        else
            run_until_good<false, true>(a, back, memory);
    } else
        run_until_good<true, DK_DV>(a, back, memory);
}

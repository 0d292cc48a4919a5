/* SPDX-License-Identifier: MIT */
/*
 * Backward with mma.sync and cp.async in 16 bits, as FlashAttention-2 has it: five products of matrices, and sums of dQ
 * that CTAs add to in no order. A CTA owns keys and goes over the tiles of rows that the transposed lists
 * name:
 *
 *     S^T = K Q^T, dP^T = V dO^T     of 32 keys and a SPLIT-th of the rows: a warp
 *     dV += P^T dO, dK += dS^T Q     of 32 keys and a SPLIT-th of the columns: a warp
 *     dQ += dS K                     by all warps, splits of their rows and columns
 *
 * P and dS go through shared memory, where other warps read them: a warp's 32 keys share each operand that is read, and
 * its registers hold sums of fewer columns. What a warp gets of dQ is added to float32 sums in the workspace as it lies
 * in registers; attune_backward_dq_sm80 rounds them. If a sum comes out as no number, `redo` is set, and the kernels of
 * backward_sm80.cu, which are launched behind, start over.
 */
#include "common.cuh"

constexpr bool DK_DV = true;
constexpr int OWN = BLOCK_N, OTHER = BLOCK_M, ROW_TILES = 2;
constexpr int GROUPS = OWN / 32, SPLIT = ATTUNE_NUM_WARPS / GROUPS, KEYS = OTHER / SPLIT;
static_assert(GROUPS * 32 == OWN && GROUPS * SPLIT == ATTUNE_NUM_WARPS && KEYS % 16 == 0, "a warp owns 32 keys");
#define ATTUNE_PADDING (16 * SPLIT)

constexpr int ROLES = 1;
constexpr bool IN_TURN = false;

#include "loads_backward_sm80.cuh"

constexpr int D_TILES = PAD_D / 8 / SPLIT, V_TILES = PAD_DV / 8 / SPLIT; /* of a warp's columns */
constexpr u32 OWN_BYTES = OWN * (PAD_D + PAD_DV) * sizeof(element);
constexpr u32 OWN_SECOND = OWN * PAD_D * sizeof(element);
constexpr int CHUNKS_P = OTHER / 8;
constexpr u32 P_BYTES = OWN * OTHER * sizeof(element); /* and as many for dS */

/* A warp's piece of dQ: 32 rows, or 16 where columns of 32 rows cannot be dealt out in sixteens. */
constexpr int DQ_ROWS = PAD_D * (OTHER / 32) % (16 * ATTUNE_NUM_WARPS) == 0 ? 32 : 16;
constexpr int DQ_SHARES = ATTUNE_NUM_WARPS * DQ_ROWS / OTHER; /* of the columns */
constexpr int DQ_WIDTH = PAD_D / DQ_SHARES, DQ_TILES = DQ_WIDTH / 8;
static_assert(DQ_SHARES * DQ_WIDTH == PAD_D && DQ_WIDTH % 16 == 0, "warps share dQ");
constexpr bool VECTOR_ADD = __CUDA_ARCH__ >= 900;

/* ----------------------------------------------------------------------------------------------------------- stages */

/* A warp's part of P or dS, into [key][row]. */
__device__ __forceinline__ void put_down(u32 to, const scores &x, int warp_row, int warp_column)
{
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 at = to + chunk_offset<CHUNKS_P>(warp_row + r * 16 + half * 8 + lane / 4, warp_column / 8 + n) +
                         (u32)(lane % 4) * 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack(x[r][n][half * 2], x[r][n][half * 2 + 1]))
                             : "memory");
            }
}

/* dV += P^T dO or dK += dS^T Q: 32 keys from warp_row on, TILES * 8 columns from warp_column on. */
template <int TILES, int CHUNKS>
__device__ __forceinline__ void multiply_own(float (&sum)[ROW_TILES][TILES][4], u32 p, u32 rows, int warp_row,
                                             int warp_column)
{
    int lane = thread_index_remat() % 32;
    u32 p_start = p + chunk_offset<CHUNKS_P>(warp_row + lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < OTHER; k += 16) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
            load_matrices(a[r], chunk_address<CHUNKS_P>(p_start, k / 8) + (u32)(r * CHUNKS_P * 256));
#pragma unroll
        for (int d = 0; d < TILES; d += 2) {
            u32 b[4];
            load_matrices_transposed(b, rows + chunk_offset<CHUNKS>(k + lane % 16, warp_column / 8 + d + lane / 16));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply(sum[r][d], a[r], b[0], b[1]);
                multiply(sum[r][d + 1], a[r], b[2], b[3]);
            }
        }
    }
}

/* What a thread has of a 16 x 8 fragment, added to sums: four in a row where the architecture adds them at once, else
 * those of a warp's threads in a row. */
__device__ __forceinline__ void add_tail_split(float *to, const float (&x)[4])
{
    if constexpr (VECTOR_ADD)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                     "f"(x[2]), "f"(x[3])
                     : "memory");
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i * 32), "f"(x[i]) : "memory");
}

/* A warp's piece of dQ = dS K, added to the sums of the tile; beside a score's values half of the columns at a time. */
__device__ __forceinline__ void add_dq(float *sums, u32 ds, u32 keys)
{
    constexpr int R = DQ_ROWS / 16, TILES = HAVE_SCORE && DQ_TILES % 8 == 0 ? DQ_TILES / 2 : DQ_TILES;
    int lane = thread_index_remat() % 32, warp = thread_index_remat() / 32;
    int row = warp / DQ_SHARES * DQ_ROWS, column = warp % DQ_SHARES * DQ_WIDTH;
    float *to = sums + warp * (DQ_ROWS * DQ_WIDTH) + lane * (VECTOR_ADD ? 4 : 1);
#pragma unroll
    for (int first = 0; first < DQ_TILES; first += TILES) {
        float dq[R][TILES][4] = {};
#pragma unroll
        for (int k = 0; k < OWN; k += 16) {
            u32 a[R][4];
#pragma unroll
            for (int r = 0; r < R; r++)
                load_matrices_transposed(
                    a[r], ds + chunk_offset<CHUNKS_P>(k + lane / 16 * 8 + lane % 8, row / 8 + r * 2 + lane / 8 % 2));
#pragma unroll
            for (int d = 0; d < TILES; d += 2) {
                u32 b[4];
                load_matrices_transposed(
                    b, keys + chunk_offset<CHUNKS_D>(k + lane % 16, column / 8 + first + d + lane / 16));
#pragma unroll
                for (int r = 0; r < R; r++) {
                    multiply(dq[r][d], a[r], b[0], b[1]);
                    multiply(dq[r][d + 1], a[r], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int d = 0; d < TILES; d++)
                add_tail_split(to + (r * DQ_TILES + first + d) * 128, dq[r][d]);
    }
}

/* Where the sums of a tile of rows stand. */
__device__ __forceinline__ float *sums_of(const attune_cuda_arguments &a, const attune_cuda_backward &back, int b,
                                          int h, int q)
{
    return (float *)back.sums + (((i64)b * a.heads + h) * back.row_stride + q) * PAD_D;
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_backward_atomic_sm80(const __grid_constant__ attune_cuda_arguments a,
                                const __grid_constant__ attune_cuda_backward back)
{
    extern __shared__ __align__(128) unsigned char bytes[];
    static_assert(planned(OWN_BYTES + STAGES * (OTHER_BYTES + ROW_BYTES) + 2 * P_BYTES + WALK_BYTES + NOTE_BYTES, 0));
    u32 memory = shared_address(bytes), others = memory + OWN_BYTES, p_at = others + STAGES * OTHER_BYTES;
    u32 row_data = p_at + 2 * P_BYTES;
    unsigned char *walk = bytes + OWN_BYTES + STAGES * (OTHER_BYTES + ROW_BYTES) + 2 * P_BYTES;
    if (threadIdx.x == 0) {
        feed_find(*(feed *)walk, a, back);
        feed_first(walk, a, back);
    }
    __syncthreads();
    spot mine = feed_place(*(const feed *)walk);
    int first = mine.consume;
    load_both<OWN>(memory, a.k, a.v, mine.b, mine.h, first, a.kv_len);
    float factor = uniform(fold_factor(a.scale));
    float d_k[ROW_TILES][D_TILES][4], d_v[ROW_TILES][V_TILES][4];
    clear(d_k);
    clear(d_v);
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
        int warp = thread_index_remat() / 32, consume = warp / SPLIT * 32, part = warp % SPLIT;
        {
            scores s, dp;
            forbidden f_pairs;
            float none[1];
            multiply_qk<CHUNKS_D, false>(s, memory, tile + (u32)(part * KEYS * CHUNKS_D * 16), consume);
            multiply_qk<CHUNKS_DV, false>(dp, memory + OWN_SECOND, tile + SECOND + (u32)(part * KEYS * CHUNKS_DV * 16),
                                          consume);
            int lane = thread_index_remat() % 32;
            spot p = {now.b, now.h, now.h_kv, first + consume + lane / 4, now.first + part * KEYS + lane % 4 * 2};
            /* Not first + OWN > ..., which is kept from one tile to the next. */
            bool edge = first > a.kv_len - OWN || now.first > a.q_len - OTHER;
            fold(s, a.scale);
            mask_pairs(f_pairs, s, a, p, now, edge);
            u32 columns = data + (u32)(part * KEYS) * 4;
#if HAVE_NEAR
            if (near_zero(s))
                normalise_all<true>(s, dp, f_pairs, a, p, none, none, columns, factor, false);
            else
#endif
                normalise_all<false>(s, dp, f_pairs, a, p, none, none, columns, factor, false);
            put_down(p_at, s, consume, part * KEYS);
            put_down(p_at + P_BYTES, dp, consume, part * KEYS);
        }
        __syncthreads();
        float *sums = sums_of(a, back, now.b, now.h, now.first);
        if constexpr (STAGES > 1) {
            multiply_own<V_TILES, CHUNKS_DV>(d_v, p_at, tile + SECOND, consume, part * V_TILES * 8);
            add_dq(sums, p_at + P_BYTES, memory);
            multiply_own<D_TILES, CHUNKS_D>(d_k, p_at + P_BYTES, tile, consume, part * D_TILES * 8);
        } else {
            /* The next tile comes as soon as this one's halves have been read, under the products left. */
            multiply_own<D_TILES, CHUNKS_D>(d_k, p_at + P_BYTES, tile, consume, part * D_TILES * 8);
            __syncthreads();
            if (next.first >= 0)
                load_rows<OTHER, HEAD_DIM, CHUNKS_D>(tile, a.q, next.b, next.h, next.first, a.q_len);
            multiply_own<V_TILES, CHUNKS_DV>(d_v, p_at, tile + SECOND, consume, part * V_TILES * 8);
            __syncthreads();
            if (next.first >= 0) {
                load_rows<OTHER, HEAD_DIM_V, CHUNKS_DV>(tile + SECOND, back.d_o, next.b, next.h, next.first, a.q_len);
                load_row_data(data, a, back, next);
            }
            copy_commit();
            add_dq(sums, p_at + P_BYTES, memory);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    if (!is_finite(d_k) || !is_finite(d_v))
        *(volatile int *)back.redo = 1;
    /* The place once more: in the loop its registers are needed. */
    mine = feed_place(*(const feed *)walk);
    int warp = thread_index_remat() / 32, part = warp % SPLIT, row = mine.consume + warp / SPLIT * 32 + thread_index_remat() % 32 / 4;
    store<D_TILES, HEAD_DIM>(d_k, back.d_k, mine.b, mine.h, row, a.kv_len, part * D_TILES * 8, a.scale);
    store<V_TILES, HEAD_DIM_V>(d_v, back.d_v, mine.b, mine.h, row, a.kv_len, part * V_TILES * 8, 1.0f);
}

/* dQ from its sums: a CTA for each tile of rows. */
extern "C" __global__ void __launch_bounds__(256)
    attune_backward_dq_sm80(const __grid_constant__ attune_cuda_arguments a,
                            const __grid_constant__ attune_cuda_backward back)
{
    constexpr int PITCH = PAD_D / 2 + 4, SPLIT_TAIL = OTHER * PAD_D / 128, HERE = PAD_D / 8;
    extern __shared__ __align__(128) unsigned char bytes[];
    u32 *tile = (u32 *)bytes; /* [OTHER][PITCH], pairs of elements */
    int tiles = (a.q_len + OTHER - 1) / OTHER, plane = (int)blockIdx.x / tiles;
    int q = ((int)blockIdx.x - plane * tiles) * OTHER, b = plane / a.heads, h = plane - b * a.heads;
    const float *sums = sums_of(a, back, b, h, q);
    float none = 0.0f; /* NaN once an element is not finite */
    int lane = (int)threadIdx.x % 32;
#pragma unroll 4
    for (int piece = (int)threadIdx.x / 32; piece < SPLIT_TAIL; piece += 8) {
        constexpr int EACH = DQ_ROWS / 16 * DQ_TILES;
        int warp = piece / EACH, r = piece % EACH / DQ_TILES, d = piece % DQ_TILES;
        int row = warp / DQ_SHARES * DQ_ROWS + r * 16 + lane / 4;
        int column = warp % DQ_SHARES * DQ_WIDTH + d * 8 + lane % 4 * 2;
        float x[4];
        if constexpr (VECTOR_ADD) {
            float4 four = *(const float4 *)(sums + piece * 128 + lane * 4);
            x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = sums[piece * 128 + i * 32 + lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            none = __fmaf_rn(x[i], 0.0f, none);
        tile[row * PITCH + column / 2] = pack(x[0] * a.scale, x[1] * a.scale);
        tile[(row + 8) * PITCH + column / 2] = pack(x[2] * a.scale, x[3] * a.scale);
    }
    if (none != 0.0f)
        *(volatile int *)back.redo = 1;
    __syncthreads();
    element *out = (element *)back.d_q.address + b * back.d_q.batch + h * back.d_q.head;
    bool vectors = view_aligned(back.d_q);
    for (int i = (int)threadIdx.x; i < OTHER * HERE; i += 256) {
        int row = i / HERE, d = i % HERE * 8;
        if (q + row >= a.q_len || d >= HEAD_DIM)
            continue;
        const u32 *from = tile + row * PITCH + d / 2;
        element *to = out + (q + row) * back.d_q.row + d;
        if (vectors && d + 8 <= HEAD_DIM)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int j = 0; j < 8 && d + j < HEAD_DIM; j++)
                to[j] = (element)(from[j / 2] >> j % 2 * 16);
    }
}

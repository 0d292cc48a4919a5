/* SPDX-License-Identifier: MIT */
/*
 * Backward with mma.sync and cp.async in 16 bits, after FlashAttention-2: five matrix products, and dQ added to global
 * memory with atomics, in no fixed order. A CTA has a tile of keys and loops over the tiles of rows of the transposed
 * lists. The warps divide each product:
 *
 *     S^T = K Q^T, dP^T = V dO^T     a warp has 32 keys and 1 / SPLIT of the rows
 *     dV += P^T dO, dK += dS^T Q     a warp has 32 keys and 1 / SPLIT of the columns
 *     dQ += dS K                     all warps divide the rows and columns
 *
 * P and dS pass through shared memory, where the other warps read them: each operand that a warp loads serves 32
 * keys, and its accumulators have fewer columns. dQ is added to float32 sums in the workspace in fragment layout;
 * attune_backward_dq_sm80 converts them. If a sum is not finite, `redo` is set, and the fallback kernels of
 * backward_sm80.cu, which are launched afterwards, compute everything again.
 */
#include "stages_backward_sm80.cuh"

static_assert(DK_DV && ROW_TILES == 2, "a warp has 32 keys");
constexpr int D_TILES = PAD_D / 8 / SPLIT, V_TILES = PAD_DV / 8 / SPLIT; /* fragments of a warp's columns */
constexpr int CHUNKS_P = INNER_ROWS / 8;
constexpr u32 P_OFFSET = LAYOUT.p, P_BYTES = LAYOUT.ds - LAYOUT.p; /* dS has as many */

/* A warp's part of dQ: 32 rows, or 16 where with 32 the columns do not divide into multiples of 16. */
constexpr int DQ_ROWS = PAD_D * (INNER_ROWS / 32) % (16 * WARPS) == 0 ? 32 : 16;
constexpr int DQ_COLUMN_GROUPS = WARPS * DQ_ROWS / INNER_ROWS;
constexpr int DQ_WIDTH = PAD_D / DQ_COLUMN_GROUPS, DQ_TILES = DQ_WIDTH / 8;
static_assert(DQ_COLUMN_GROUPS * DQ_WIDTH == PAD_D && DQ_WIDTH % 16 == 0, "warps divide dQ");
constexpr bool VECTOR_ADD = __CUDA_ARCH__ >= 900;

/* ----------------------------------------------------------------------------------------------------------- stages */

/* Stores a warp's part of P or dS to shared memory, as [key][row]. */
__device__ __forceinline__ void store_fragments(u32 to, const scores &x, int warp_row, int warp_column)
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
                store_shared(at, pack(x[r][n][half * 2], x[r][n][half * 2 + 1]));
            }
}

/* 6: dV += P^T dO or dK += dS^T Q: 32 keys from warp_row on, TILES x 8 columns from warp_column on. */
template <int TILES, int CHUNKS>
__device__ __forceinline__ void multiply_dk_dv(float (&sum)[ROW_TILES][TILES][4], u32 p, u32 rows, int warp_row,
                                               int warp_column)
{
    int lane = thread_index_remat() % 32;
    u32 p_start = p + chunk_offset<CHUNKS_P>(warp_row + lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < INNER_ROWS; k += 16) {
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

/* Adds a thread's elements of a 16 x 8 fragment to the sums. With vector atomics a thread's four elements are adjacent,
 * else the same element of all lanes, so that accesses coalesce. */
__device__ __forceinline__ void add_fragment(float *to, const float (&x)[4])
{
    if constexpr (VECTOR_ADD)
        add_global_4(to, x[0], x[1], x[2], x[3]);
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            add_global(to + i * 32, x[i]);
}

/* 6: adds a warp's part of dQ = dS K to the sums of the tile. With a score expression registers suffice for half of the
 * columns at a time. */
__device__ __forceinline__ void add_dq(float *sums, u32 ds, u32 keys)
{
    constexpr int R = DQ_ROWS / 16, TILES = HAVE_SCORE && DQ_TILES % 8 == 0 ? DQ_TILES / 2 : DQ_TILES;
    int lane = thread_index_remat() % 32, warp = thread_index_remat() / 32;
    int row = warp / DQ_COLUMN_GROUPS * DQ_ROWS, column = warp % DQ_COLUMN_GROUPS * DQ_WIDTH;
    float *to = sums + warp * (DQ_ROWS * DQ_WIDTH) + lane * (VECTOR_ADD ? 4 : 1);
#pragma unroll
    for (int first = 0; first < DQ_TILES; first += TILES) {
        float dq[R][TILES][4] = {};
#pragma unroll
        for (int k = 0; k < OUTER_ROWS; k += 16) {
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
                add_fragment(to + (r * DQ_TILES + first + d) * 128, dq[r][d]);
    }
}

/* The sums of the tile of rows that begins at q. */
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
    u32 memory = shared_address(bytes), inner_tiles = memory + INNER_OFFSET, p_at = memory + P_OFFSET;
    u32 row_data = memory + ROW_DATA_OFFSET;
    unsigned char *work = bytes + WORK_OFFSET;
    if (threadIdx.x == 0)
        ((work_item *)work)->find(a, back);
    pair_coord mine = load_first_tiles(bytes, a, back);
    int first = mine.row;
    float factor = uniform(fold_factor(a.scale));
    float d_k[ROW_TILES][D_TILES][4], d_v[ROW_TILES][V_TILES][4];
    clear(d_k);
    clear(d_v);
    u32 stage = 0;
#pragma unroll 1
    for (int index = 0;; index++) {
        inner_tile now = tile_desc(work, index), next = tile_desc(work, index + AHEAD);
        if (now.first < 0)
            break;
        u32 tile = inner_tiles + stage * INNER_BYTES, data = row_data + stage * ROW_DATA_BYTES;
        /* 1, 2: this tile is loaded, a later one starts. */
        wait_tile(work, index, stage, inner_tiles, row_data, a, back, next);
        int warp = thread_index_remat() / 32, key = warp / SPLIT * 32, part = warp % SPLIT;
        {
            /* 3: S^T and dP^T. */
            scores s, dp;
            float unused[1];
            multiply_qk<CHUNKS_D, false>(s, memory, tile + (u32)(part * KEYS * CHUNKS_D * 16), key);
            multiply_qk<CHUNKS_DV, false>(dp, memory + OUTER_SECOND_OFFSET,
                                          tile + SECOND_OFFSET + (u32)(part * KEYS * CHUNKS_DV * 16), key);
            int lane = thread_index_remat() % 32;
            pair_coord p = {now.b, now.h, now.h_kv, first + key + lane / 4, now.first + part * KEYS + lane % 4 * 2};
            /* 4, 5: mask, P and dS. */
            compute_p_ds(s, dp, a, p, now, on_edge(a, first, now.first), unused, unused, data + (u32)(part * KEYS) * 4,
                         factor, work);
            store_fragments(p_at, s, key, part * KEYS);
            store_fragments(p_at + P_BYTES, dp, key, part * KEYS);
        }
        __syncthreads();
        /* 6: dV, dK and dQ. */
        float *sums = sums_of(a, back, now.b, now.h, now.first);
        if constexpr (STAGES > 1) {
            multiply_dk_dv<V_TILES, CHUNKS_DV>(d_v, p_at, tile + SECOND_OFFSET, key, part * V_TILES * 8);
            add_dq(sums, p_at + P_BYTES, memory);
            multiply_dk_dv<D_TILES, CHUNKS_D>(d_k, p_at + P_BYTES, tile, key, part * D_TILES * 8);
        } else {
            /* One stage: Q and dO of the next tile are each loaded once this tile's have been read, and overlap with
             * the remaining products. */
            multiply_dk_dv<D_TILES, CHUNKS_D>(d_k, p_at + P_BYTES, tile, key, part * D_TILES * 8);
            __syncthreads();
            if (next.first >= 0)
                load_rows<INNER_ROWS, HEAD_DIM, CHUNKS_D>(tile, a.q, next.b, next.h, next.first, a.q_len);
            multiply_dk_dv<V_TILES, CHUNKS_DV>(d_v, p_at, tile + SECOND_OFFSET, key, part * V_TILES * 8);
            __syncthreads();
            if (next.first >= 0) {
                load_rows<INNER_ROWS, HEAD_DIM_V, CHUNKS_DV>(tile + SECOND_OFFSET, back.d_o, next.b, next.h, next.first,
                                                             a.q_len);
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
    /* 7. The coordinates are read again, since the loop needs their registers. */
    mine = ((const work_item *)work)->coord();
    int warp = thread_index_remat() / 32, part = warp % SPLIT,
        row = mine.row + warp / SPLIT * 32 + thread_index_remat() % 32 / 4;
    store<D_TILES, HEAD_DIM>(d_k, back.d_k, mine.b, mine.h, row, a.kv_len, part * D_TILES * 8, a.scale);
    store<V_TILES, HEAD_DIM_V>(d_v, back.d_v, mine.b, mine.h, row, a.kv_len, part * V_TILES * 8, 1.0f);
}

/* Converts the sums of dQ: a CTA for each tile of rows. Shared memory transposes fragments into rows. */
extern "C" __global__ void __launch_bounds__(256)
    attune_backward_dq_sm80(const __grid_constant__ attune_cuda_arguments a,
                            const __grid_constant__ attune_cuda_backward back)
{
    constexpr int PITCH = attune_cuda_backward_dq_sm80_pitch(TILE) / 4, FRAGMENTS = INNER_ROWS * PAD_D / 128,
                  ROW_VECTORS = PAD_D / 8;
    extern __shared__ __align__(128) unsigned char bytes[];
    u32 *tile = (u32 *)bytes; /* [INNER_ROWS][PITCH], pairs of elements */
    int tiles = (a.q_len + INNER_ROWS - 1) / INNER_ROWS, plane = (int)blockIdx.x / tiles;
    int q = ((int)blockIdx.x - plane * tiles) * INNER_ROWS, b = plane / a.heads, h = plane - b * a.heads;
    const float *sums = sums_of(a, back, b, h, q);
    o_element *out = (o_element *)back.d_q.address + b * back.d_q.batch + h * back.d_q.head;
    bool vectors = view_aligned<o_element>(back.d_q), paired = view_paired<o_element>(back.d_q);
    float probe = 0.0f; /* becomes NaN with the first element that is not finite */
    int lane = (int)threadIdx.x % 32;
#pragma unroll 4
    for (int fragment = (int)threadIdx.x / 32; fragment < FRAGMENTS; fragment += 8) {
        constexpr int WARP_FRAGMENTS = DQ_ROWS / 16 * DQ_TILES;
        int warp = fragment / WARP_FRAGMENTS, r = fragment % WARP_FRAGMENTS / DQ_TILES, d = fragment % DQ_TILES;
        int row = warp / DQ_COLUMN_GROUPS * DQ_ROWS + r * 16 + lane / 4;
        int column = warp % DQ_COLUMN_GROUPS * DQ_WIDTH + d * 8 + lane % 4 * 2;
        float x[4];
        if constexpr (VECTOR_ADD) {
            float4 four = *(const float4 *)(sums + fragment * 128 + lane * 4);
            x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = sums[fragment * 128 + i * 32 + lane];
#pragma unroll
        for (int i = 0; i < 4; i++)
            probe = __fmaf_rn(x[i], 0.0f, probe);
        if constexpr (O_FLOAT32) { /* four lanes store 32 bytes, which need no transposition */
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (q + row + half * 8 < a.q_len && column < HEAD_DIM)
                    store_outputs(out + (q + row + half * 8) * back.d_q.row + column, x[half * 2] * a.scale,
                                  x[half * 2 + 1] * a.scale, paired);
        } else {
            tile[row * PITCH + column / 2] = pack(x[0] * a.scale, x[1] * a.scale);
            tile[(row + 8) * PITCH + column / 2] = pack(x[2] * a.scale, x[3] * a.scale);
        }
    }
    if (probe != 0.0f)
        *(volatile int *)back.redo = 1;
    __syncthreads();
    if constexpr (O_FLOAT32)
        return;
    for (int i = (int)threadIdx.x; i < INNER_ROWS * ROW_VECTORS; i += 256) {
        int row = i / ROW_VECTORS, d = i % ROW_VECTORS * 8;
        if (q + row >= a.q_len || d >= HEAD_DIM)
            continue;
        const u32 *from = tile + row * PITCH + d / 2;
        o_element *to = out + (q + row) * back.d_q.row + d;
        if (vectors && d + 8 <= HEAD_DIM)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int j = 0; j < 8 && d + j < HEAD_DIM; j++)
                to[j] = (o_element)(from[j / 2] >> j % 2 * 16);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Shared by the mma.sync kernels: instructions, tiles in shared memory, both matrix products and the online softmax.
 *
 * A warp holds ROW_TILES x 16 rows and KEYS columns of S, and its rows of O, in registers. Of each 16 x 8 fragment a
 * thread holds rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next one. P has the layout of a left
 * operand, so that it goes to the second product without a shuffle. Arrays have the sizes [ROW_TILES][N_TILES][4], with
 * N_TILES = KEYS / 8, and [ROW_TILES][DV_TILES][4].
 */
#ifndef ATTUNE_CUDA_MMA_CUH
#define ATTUNE_CUDA_MMA_CUH

#include "chunks.cuh"

constexpr int PAD_D = round_up(HEAD_DIM, config::PADDING), PAD_DV = round_up(HEAD_DIM_V, config::PADDING);
constexpr int CHUNKS_D = PAD_D / PER_CHUNK, CHUNKS_DV = PAD_DV / PER_CHUNK;

/* ----------------------------------------------------------------------------------------------------- instructions */

/*
 * 3xTF32: x = high + low, both tf32. The products high * high, high * low and low * high give a float32 product within
 * 2^-22. An infinity or NaN is in `high` alone. Its products with low parts would have arbitrary signs, so that those
 * use `safe`, which is high where x is finite, else 0.
 */
struct split {
    u32 high, low, safe;
};

__device__ __forceinline__ split split_tf32(u32 x)
{
    split s;
    float value = __uint_as_float(x), low;
    s.high = round_tf32(value);
    bool finite = fabsf(value) < ATTUNE_INF;
    low = finite ? value - __uint_as_float(s.high) : 0.0f;
    s.low = round_tf32(low);
    s.safe = finite ? s.high : 0;
    return s;
}

/* c += a b over two 16-byte chunks of the inner dimension: 16 elements of 16 bits, or 8 of 32. */
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if constexpr (FLOAT32) {
        u32 high[4], low[4], safe[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            split s = split_tf32(a[i]);
            high[i] = s.high;
            low[i] = s.low;
            safe[i] = s.safe;
        }
        split x = split_tf32(b0), y = split_tf32(b1);
        multiply_tf32(c, low, x.safe, y.safe);
        multiply_tf32(c, safe, x.low, y.low);
        multiply_tf32(c, high, x.high, y.high);
    } else if constexpr (config::DTYPE == ATTUNE_CUDA_F16)
        multiply_f16(c, a, b0, b1);
    else
        multiply_bf16(c, a, b0, b1);
}

/* Tensor cores truncate when they accumulate. In float32 the product is therefore summed from 0 and added to c with one
 * rounded addition. */
__device__ __forceinline__ void multiply_rounded(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    if constexpr (FLOAT32) {
        float sum[4] = {};
        multiply(sum, a, b0, b1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[i] += sum[i];
    } else
        multiply(c, a, b0, b1);
}

/* ---------------------------------------------------------------------------------------------------- shared memory */

/* The offset of a row's chunk, with an XOR swizzle: 8 rows of one chunk are in 8 different sets of banks, so that
 * ldmatrix has no bank conflicts. */
template <int CHUNKS> __device__ __forceinline__ u32 chunk_offset(int row, int chunk)
{
    int swizzle = CHUNKS % 8 == 0 ? row & 7 : CHUNKS % 4 == 0 ? row >> 1 & 3 : row >> 2 & 1;
    return (u32)(row * CHUNKS + (chunk ^ swizzle)) * 16;
}

/* The chunks that the swizzle permutes among themselves. */
template <int CHUNKS> constexpr int CHUNK_GROUP = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;

/* The address of chunk `chunk` + c of a row, from start = to + chunk_offset(row, c), c less than CHUNK_GROUP and
 * `chunk` a multiple of the chunks of one step. 8 rows further are CHUNKS * 128 bytes further. */
template <int CHUNKS> __device__ __forceinline__ u32 chunk_address(u32 start, int chunk)
{
    constexpr int GROUP = CHUNK_GROUP<CHUNKS>;
    return (start ^ (u32)(chunk % GROUP * 16)) + (u32)(chunk / GROUP * GROUP * 16);
}

/* Copies ROWS rows from `first` on into shared memory; rows from `limit` on and columns from DIM on are zero. */
template <int ROWS, int DIM, int CHUNKS>
__device__ __forceinline__ void load_tile(u32 to, const element *from, i64 stride, int first, int limit, bool aligned)
{
    int thread = thread_index_remat();
    if (aligned) {
        /* Neighbouring threads copy neighbouring chunks, so that accesses coalesce. A thread's rows are a multiple of 8
         * apart: the swizzle is the same for all of them. */
        constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS>, STEP = THREADS / ROW_LANES;
        if constexpr (ROW_LANES > 2 && STEP % 8 == 0 && ROWS % STEP == 0) {
            int row = thread / ROW_LANES, chunk = thread % ROW_LANES;
            const element *source = from + (first + row) * stride + chunk * PER_CHUNK;
            u32 target = to + chunk_offset<CHUNKS>(row, chunk);
#pragma unroll
            for (int i = 0; i < ROWS / STEP; i++) {
                bool valid = first + row + i * STEP < limit;
#pragma unroll
                for (int j = 0; j < CHUNKS; j += ROW_LANES)
                    copy_async(target + (u32)((i * STEP * CHUNKS + j) * 16), source + j * PER_CHUNK,
                               valid && (chunk + j) * PER_CHUNK < DIM);
                source += STEP * stride;
            }
        } else {
#pragma unroll 4
            for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
                int row = i / CHUNKS, chunk = i % CHUNKS;
                bool valid = chunk * PER_CHUNK < DIM && first + row < limit;
                const element *source = from + (first + row) * stride + chunk * PER_CHUNK;
                copy_async(to + chunk_offset<CHUNKS>(row, chunk), source, valid);
            }
        }
        return;
    }
    /* Rows without alignment: cp.async cannot copy them. */
#pragma unroll 1
    for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool valid = chunk * PER_CHUNK < DIM && first + row < limit;
        copy_chunk(to + chunk_offset<CHUNKS>(row, chunk), from + (first + row) * stride + chunk * PER_CHUNK, valid,
                   false);
    }
}

/* Copies a chunk of Q, converted where its type is not that of the products. */
__device__ __forceinline__ void copy_q(u32 to, const q_element *from, bool valid, bool aligned)
{
    if constexpr (config::Q_DTYPE == config::DTYPE)
        copy_chunk(to, (const element *)from, valid, aligned);
    else {
        constexpr bool Q_WIDE = config::Q_DTYPE == ATTUNE_CUDA_F32;
        constexpr int WORDS = PER_CHUNK * (int)sizeof(q_element) / 4;
        u32 in[WORDS] = {}, word[4];
        if (valid) {
            if (aligned) {
#pragma unroll
                for (int j = 0; j < WORDS; j += 2) {
                    uint2 two = *(const uint2 *)((const u32 *)from + j);
                    in[j] = two.x, in[j + 1] = two.y;
                }
            } else {
#pragma unroll
                for (int j = 0; j < WORDS; j++) {
                    if constexpr (Q_WIDE)
                        in[j] = __float_as_uint((float)from[j]);
                    else
                        in[j] = (u32)from[2 * j] | (u32)from[2 * j + 1] << 16;
                }
            }
        }
        float value[PER_CHUNK];
#pragma unroll
        for (int j = 0; j < PER_CHUNK; j++) {
            if constexpr (Q_WIDE)
                value[j] = __uint_as_float(in[j]);
            else
                value[j] = unpack<config::Q_DTYPE>(in[j / 2] >> j % 2 * 16 & 0xffffu);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (FLOAT32)
                word[j] = __float_as_uint(value[j]);
            else
                word[j] = pack(value[2 * j], value[2 * j + 1]);
        }
        store_shared_4(to, word[0], word[1], word[2], word[3]);
    }
}

/* Where K and V of a head begin. */
struct source {
    const element *k, *v;
};

__device__ __forceinline__ source source_of(const attune_cuda_arguments &a, i64 b, i64 h_kv)
{
    return {uniform((const element *)a.k.address + b * a.k.batch + h_kv * a.k.head),
            uniform((const element *)a.v.address + b * a.v.batch + h_kv * a.v.head)};
}

__device__ __forceinline__ void load_k(u32 to, const source &from, const attune_cuda_arguments &a, const keys &w)
{
    if (w.kv >= 0)
        load_tile<BLOCK_N, HEAD_DIM, CHUNKS_D>(to, from.k, a.k.row, w.kv, a.kv_len, view_aligned(a.k));
    copy_commit();
}

__device__ __forceinline__ void load_v(u32 to, const source &from, const attune_cuda_arguments &a, const keys &w)
{
    if (w.kv >= 0)
        load_tile<BLOCK_N, HEAD_DIM_V, CHUNKS_DV>(to, from.v, a.v.row, w.kv, a.kv_len, view_aligned(a.v));
    copy_commit();
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* Steps of Q K^T that are unrolled: more would keep too many operands in registers, fewer would wait for ldmatrix at
 * the beginning of each iteration. keep_addresses: registers suffice to keep the addresses, and to unroll further. */
__device__ constexpr int qk_unroll(int row_tiles, int n_tiles, bool keep_addresses)
{
    if (!keep_addresses)
        return FLOAT32 || row_tiles * n_tiles > (config::HAVE_MASK_PAIRS ? 8 : 16) ? 2 : 4;
    if (FLOAT32)
        return PAD_DV > 128 ? 1 : 2;
    if (HAVE_SCORE)
        return !config::HAVE_MASK_PAIRS ? 4 : __CUDA_ARCH__ >= 1200 ? 1 : 2;
    return config::HAVE_MASK_PAIRS && n_tiles > 8 ? 1 : 16;
}

/* 3: S = Q K^T, over CHUNKS of the head dimension. The warp's rows begin at `row`. */
template <int CHUNKS = CHUNKS_D, bool KEEP_ADDRESSES = true, int ROW_TILES, int N_TILES>
__device__ __forceinline__ void multiply_qk(float (&s)[ROW_TILES][N_TILES][4], u32 q, u32 k, int row)
{
    constexpr int UNROLL = qk_unroll(ROW_TILES, N_TILES, KEEP_ADDRESSES);
    int lane = thread_index_remat() % 32;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[r][n][i] = 0.0f;
    u32 q_start = q + chunk_offset<CHUNKS>(row + lane % 16, lane / 16);
    u32 k_start = k + chunk_offset<CHUNKS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll(UNROLL)
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
        u32 a[ROW_TILES][4];
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
            load_matrices(a[r], KEEP_ADDRESSES ? chunk_address<CHUNKS>(q_start, chunk) + (u32)(r * CHUNKS * 256)
                                               : q + chunk_offset<CHUNKS>(row + r * 16 + lane % 16, chunk + lane / 16));
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            u32 b[4];
            load_matrices(b, KEEP_ADDRESSES
                                 ? chunk_address<CHUNKS>(k_start, chunk) + (u32)(n * CHUNKS * 128)
                                 : k + chunk_offset<CHUNKS>(n * 8 + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply_rounded(s[r][n], a[r], b[0], b[1]);
                multiply_rounded(s[r][n + 1], a[r], b[2], b[3]);
            }
        }
    }
}

/* Subtracts maxima that are large from the scores; `base` of these rows is 0 then. With config::SHARES a warp may have
 * rows of several sequences, whose bits do not follow from each other's maxima. */
template <int ROW_TILES, int N_TILES>
__device__ __forceinline__ void subtract_large(float (&s)[ROW_TILES][N_TILES][4], const float (&m)[ROW_TILES][2],
                                               float (&base)[ROW_TILES][2], float largest)
{
    if (SCORES_MAY_BE_LARGE && !FLOAT32 && !CODES && __any_sync(0xffffffffu, largest >= LARGE_SCORE)) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float safe_max = m[r][half] == -ATTUNE_INF ? 0.0f : m[r][half];
                if (config::SHARES && fabsf(base[r][half]) < LARGE_SCORE)
                    continue;
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
                    s[r][n][2 * half] -= safe_max;
                    s[r][n][2 * half + 1] -= safe_max;
                }
                base[r][half] = 0.0f;
            }
    }
}

/*
 * 5: online softmax, in two halves. m and l are of rows lane / 4 and lane / 4 + 8; l is the sum over the thread's own
 * columns. The first half updates the row maxima and rescales O and l; base is what the exponents subtract. all: s has
 * all scores that the second half is given, so that it may subtract maxima that are large.
 */
template <int ROW_TILES, int N_TILES, int DV_TILES>
__device__ __forceinline__ void softmax_maxima(float (&s)[ROW_TILES][N_TILES][4], float (&o)[ROW_TILES][DV_TILES][4],
                                               float (&m)[ROW_TILES][2], float (&l)[ROW_TILES][2],
                                               float (&base)[ROW_TILES][2], float factor, bool all = true)
{
    float alpha[ROW_TILES][2], largest = 0.0f;
    bool rescaled = false;
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_max = m[r][half];
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
                row_max = fmaxf(row_max, fmaxf(s[r][n][2 * half], s[r][n][2 * half + 1]));
            base[r][half] = row_max;
        }
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_max = base[r][half];
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 1));
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 2));
            float safe_max = !CODES ? base_of(row_max) : row_max == -ATTUNE_INF ? 0.0f : row_max;
            alpha[r][half] = exp2_fast((m[r][half] - safe_max) * factor);
            rescaled = rescaled || alpha[r][half] != 1.0f;
            m[r][half] = row_max;
            l[r][half] *= alpha[r][half];
            base[r][half] = FLOAT32 || CODES ? safe_max : safe_max * factor;
            largest = fmaxf(largest, fabsf(base[r][half]));
        }
    if (all)
        subtract_large(s, m, base, largest);
    /* Maxima seldom rise after the first tiles: skip the rescaling if no row of the warp needs it. */
    if (__any_sync(0xffffffffu, rescaled)) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
            for (int d = 0; d < DV_TILES; d++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[r][d][i] *= alpha[r][i / 2];
    }
}

/* The second half, for the 8 keys of fragment n: S becomes P. */
template <int ROW_TILES, int N_TILES>
__device__ __forceinline__ void softmax_exp(float (&s)[ROW_TILES][N_TILES][4], float (&l)[ROW_TILES][2],
                                            const float (&base)[ROW_TILES][2], float factor, int n)
{
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[r][n][i];
            /* In float32 subtract first: near the maximum, where P is large, the difference is exact. */
            x = exp2_fast(FLOAT32 || CODES ? (x - base[r][i / 2]) * factor : __fmaf_rn(x, factor, -base[r][i / 2]));
            l[r][i / 2] += x;
        }
}

template <int ROW_TILES, int N_TILES, int DV_TILES>
__device__ __forceinline__ void softmax(float (&s)[ROW_TILES][N_TILES][4], float (&o)[ROW_TILES][DV_TILES][4],
                                        float (&m)[ROW_TILES][2], float (&l)[ROW_TILES][2], float factor)
{
    float base[ROW_TILES][2];
    softmax_maxima(s, o, m, l, base, factor);
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
        softmax_exp(s, l, base, factor, n);
}

/* 16 keys of P, rounded to 16 bits, as a left operand. */
template <int ROW_TILES, int N_TILES>
__device__ __forceinline__ void pack_weights(u32 (&a)[ROW_TILES][4], const float (&p)[ROW_TILES][N_TILES][4], int n)
{
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        a[r][0] = pack(p[r][n][0], p[r][n][1]);
        a[r][1] = pack(p[r][n][2], p[r][n][3]);
        a[r][2] = pack(p[r][n + 1][0], p[r][n + 1][1]);
        a[r][3] = pack(p[r][n + 1][2], p[r][n + 1][3]);
    }
}

/* 6: O += P V, of TILES x 8 columns from fragment `first` on. */
template <int CHUNKS = CHUNKS_DV, int ROW_TILES, int N_TILES, int TILES>
__device__ __forceinline__ void multiply_pv(float (&o)[ROW_TILES][TILES][4], const float (&p)[ROW_TILES][N_TILES][4],
                                            u32 v, int first = 0)
{
    int lane = thread_index_remat() % 32;
    if constexpr (FLOAT32) {
        /*
         * The order of the inner dimension is free if both operands share it: keys 0 2 4 6 1 3 5 7 leave P in its
         * registers. A tile's sum is added to O with one rounded addition, as in multiply_rounded.
         */
        constexpr int COLUMN_GROUP = TILES % 4 == 0 && TILES <= 16 ? 4 : 2;
#pragma unroll
        for (int d = 0; d < TILES; d += COLUMN_GROUP) {
            int here = thread_index_remat() % 32;
            u32 start[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                start[i] = v + chunk_offset<CHUNKS>(here % 4 * 2 + i, here / 16) + (u32)(here / 4 % 4) * 4;
            float sum[ROW_TILES][COLUMN_GROUP][4] = {};
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                u32 a[ROW_TILES][4];
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        a[r][i] = __float_as_uint(p[r][n][i % 2 * 2 + i / 2]);
                        make_opaque(a[r][i]); /* do not keep the tf32 splits across columns */
                    }
#pragma unroll
                for (int j = 0; j < COLUMN_GROUP; j++) {
                    u32 b[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        load_shared(b[i],
                                    chunk_address<CHUNKS>(start[i], (first + d + j) * 2) + (u32)(n * CHUNKS * 128));
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++)
                        multiply(sum[r][j], a[r], b[0], b[1]);
                }
            }
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int j = 0; j < COLUMN_GROUP; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        o[r][d + j][i] += sum[r][j][i];
        }
    } else {
#pragma unroll
        for (int n = 0; n < N_TILES; n += 2) {
            u32 a[ROW_TILES][4];
            pack_weights(a, p, n);
#pragma unroll
            for (int d = 0; d < TILES; d += 2) {
                u32 b[4];
                load_matrices_transposed(b, v + chunk_offset<CHUNKS>(n * 8 + lane % 16, first + d + lane / 16));
#pragma unroll
                for (int r = 0; r < ROW_TILES; r++) {
                    multiply(o[r][d], a[r], b[0], b[1]);
                    multiply(o[r][d + 1], a[r], b[2], b[3]);
                }
            }
        }
    }
}

/* 5, second half, and 6, interleaved: exponentials overlap with the matrix products. */
template <int ROW_TILES, int N_TILES, int DV_TILES>
__device__ __forceinline__ void multiply_weights(float (&o)[ROW_TILES][DV_TILES][4], float (&s)[ROW_TILES][N_TILES][4],
                                                 float (&l)[ROW_TILES][2], const float (&base)[ROW_TILES][2],
                                                 float factor, u32 v)
{
    int lane = thread_index_remat() % 32;
    u32 start = v + chunk_offset<CHUNKS_DV>(lane % 16, lane / 16);
    softmax_exp(s, l, base, factor, 0);
    softmax_exp(s, l, base, factor, 1);
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
        u32 a[ROW_TILES][4];
        pack_weights(a, s, n);
        if (n + 2 < N_TILES) {
            softmax_exp(s, l, base, factor, n + 2);
            softmax_exp(s, l, base, factor, n + 3);
        }
#pragma unroll
        for (int d = 0; d < DV_TILES; d += 2) {
            u32 b[4];
            load_matrices_transposed(b, chunk_address<CHUNKS_DV>(start, d) + (u32)(n * CHUNKS_DV * 128));
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
                multiply(o[r][d], a[r], b[0], b[1]);
                multiply(o[r][d + 1], a[r], b[2], b[3]);
            }
        }
    }
}

#endif

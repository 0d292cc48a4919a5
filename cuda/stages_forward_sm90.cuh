/* SPDX-License-Identifier: MIT */
/*
 * Stages that Hopper's forward kernels share, of dense tensors and over a cache: both products, the online softmax, and
 * the order in which consumers issue products. The kernel's configuration is `sm90`, and BARRIER_PING_PONG the first of
 * its named barriers for them.
 */
#ifndef ATTUNE_CUDA_STAGES_FORWARD_SM90_CUH
#define ATTUNE_CUDA_STAGES_FORWARD_SM90_CUH

/* The dense kernel's configuration, unless the source has included that of the kernel over a cache. */
#ifndef ATTUNE_CUDA_LAYOUT_SERVING_SM90_CUH
#include "layout_forward_sm90.cuh"
#endif
#define WGMMA_FORWARD 1
#include "wgmma.cuh"

/* Ping-pong: a consumer issues its products after a wait at its own named barrier, and then arrives at the next one's.
 * Each barrier is of 256 threads: those of the warp group that waits and of the one that arrives. */
__device__ __forceinline__ void ping_pong_wait(int group)
{
    if (sm90::PING_PONG)
        named_sync<256>(BARRIER_PING_PONG + group);
}

__device__ __forceinline__ void ping_pong_arrive(int group)
{
    if (sm90::PING_PONG)
        named_arrive<256>(BARRIER_PING_PONG + (group + 1 == sm90::GROUPS ? 0 : group + 1));
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* Four products in one statement compile faster (wgmma.cuh). FOURS: the steps that do, where the machine code stays the
 * same: ptxas orders the descriptors' instructions otherwise in other tiles. */

/* 3: S = Q K^T; issued, not waited for. */
template <int COUNT> __device__ __forceinline__ void multiply_qk(float (&s)[COUNT], u64 q, u64 k)
{
    constexpr int FOURS = sm90::STEPS_D % 4 ? 0 : sm90::STEPS_D;
#pragma unroll
    for (int step = 0; step < FOURS; step += 4)
        wgmma<COUNT * 2>::ss4(s, q + step / 4 * sm90::Q_SLAB / 16, k + step / 4 * sm90::KV_SLAB / 16, step);
#pragma unroll
    for (int step = FOURS; step < sm90::STEPS_D; step++)
        wgmma<COUNT * 2>::ss(s, q + (step / 4 * sm90::Q_SLAB + step % 4 * 32) / 16,
                             k + (step / 4 * sm90::KV_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* The largest of `most` and of a row's scores in this thread. half: which of the thread's rows. */
template <int COUNT> __device__ __forceinline__ float largest_of_thread(const float (&s)[COUNT], int half, float most)
{
#pragma unroll
    for (int n = 0; n < COUNT / 4; n++)
        most = fmaxf(most, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
    return most;
}

/* The largest of a row's threads. */
__device__ __forceinline__ float largest_of_threads(float most)
{
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    return fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

/* The factor of O and of a row's sum where `most` takes the place of row_max. */
__device__ __forceinline__ float rescale_factor(float row_max, float most, float factor)
{
    return exp2_fast((row_max - base_of(most)) * factor);
}

/* A row's scores become weights beside its maximum `most`, which takes row_max's place. */
template <int COUNT>
__device__ __forceinline__ void weigh_row(float (&s)[COUNT], int half, float most, float &row_max, float &row_sum,
                                          float &alpha, float factor)
{
    float base = base_of(most), shift = base * factor;
    alpha = rescale_factor(row_max, most, factor);
    row_max = most;
    if (SCORES_MAY_BE_LARGE && __any_sync(0xffffffffu, fabsf(shift) >= LARGE_SCORE)) {
#pragma unroll
        for (int n = 0; n < COUNT / 4; n++) {
            s[n * 4 + half * 2] -= base;
            s[n * 4 + half * 2 + 1] -= base;
        }
        shift = 0.0f;
    }
    float even = row_sum * alpha, odd = 0.0f;
#pragma unroll
    for (int n = 0; n < COUNT / 4; n++) {
        float &x = s[n * 4 + half * 2], &y = s[n * 4 + half * 2 + 1];
        x = exp2_fast(__fmaf_rn(x, factor, -shift));
        y = exp2_fast(__fmaf_rn(y, factor, -shift));
        even += x;
        odd += y;
    }
    row_sum = even + odd;
}

/* 5: online softmax: S becomes P. row_sum is the sum over the thread's own columns. alpha: the rescale factors. */
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], float (&row_max)[2], float (&row_sum)[2],
                                        float (&alpha)[2], float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = largest_of_threads(largest_of_thread(s, half, row_max[half]));
        weigh_row(s, half, largest, row_max[half], row_sum[half], alpha[half], factor);
    }
}

/*
 * 5: online softmax with the row maxima so far, not updated: exponentials need no reduction first, and O no rescale. P,
 * the row sums and O are floating-point, so weights above 1 lose nothing, up to RESCALE_THRESHOLD. Leaves S as it is.
 * Returns false, with row_sum unchanged, if a weight is larger, or a row had no key so far (a maximum of -inf makes
 * weights infinite or NaN). The bits of the weights' logarithms are compared as integers: negative ones are below 0,
 * and NaN are the largest.
 */
constexpr float RESCALE_THRESHOLD = 256.0f, RESCALE_THRESHOLD_LOG2 = 8.0f;

__device__ __forceinline__ bool softmax_without_rescale(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2],
                                                        const float (&row_max)[2], float (&row_sum)[2], float factor)
{
    float shift[2] = {row_max[0] * factor, row_max[1] * factor};
    float sum[2][2] = {{row_sum[0], 0.0f}, {row_sum[1], 0.0f}};
    int largest[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = __fmaf_rn(s[n * 4 + half * 2], factor, -shift[half]);
            float y = __fmaf_rn(s[n * 4 + half * 2 + 1], factor, -shift[half]);
            int &chain = largest[half % sm90::CHAINS];
            chain = __vimax3_s32(chain, __float_as_int(x), __float_as_int(y));
            x = exp2_fast(x);
            y = exp2_fast(y);
            sum[half][0] += x;
            sum[half][1 % sm90::CHAINS] += y;
            p[n / 2][n % 2 * 2 + half] = pack(x, y);
        }
    if (__any_sync(0xffffffffu, max(largest[0], largest[1]) > __float_as_int(RESCALE_THRESHOLD_LOG2)))
        return false;
    row_sum[0] = sum[0][0] + sum[0][1];
    row_sum[1] = sum[1][0] + sum[1][1];
    return true;
}

/* Whether a row's maximum is one that softmax subtracts first. That of a row without a key so far counts as one: for it
 * an attempt without rescale fails in any case. */
__device__ __forceinline__ bool has_large_scores(const float (&row_max)[2], float factor)
{
    return SCORES_MAY_BE_LARGE &&
           __any_sync(0xffffffffu, fmaxf(fabsf(row_max[0]), fabsf(row_max[1])) * factor >= LARGE_SCORE);
}

/* P in 16 bits. The accumulators' fragment layout is that of wgmma's left operand, so nothing moves between threads. */
__device__ __forceinline__ void round_p(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2])
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[step][i] = pack(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
}

__device__ __forceinline__ void rescale(float (&o)[sm90::WIDTH_DV / 2], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
        o[i] *= alpha[i / 2 % 2];
}

/* 6: O += P V; issued, not waited for. KEYS: bytes from eight keys to the next. */
template <u32 KEYS = 1024>
__device__ __forceinline__ void multiply_pv(float (&o)[sm90::WIDTH_DV / 2], const u32 (&p)[BLOCK_N / 16][4], u64 v)
{
    constexpr int FOURS = sm90::WIDTH_DV < 128 || KEYS != 1024 ? 0 : BLOCK_N / 64 * 4;
#pragma unroll
    for (int step = 0; step < FOURS; step += 4)
        wgmma<sm90::WIDTH_DV>::rs4(o, p + step, v + step * (16 * 128 / 16));
#pragma unroll
    for (int step = FOURS; step < BLOCK_N / 16; step++)
        wgmma<sm90::WIDTH_DV>::rs(o, p[step], v + step * (2 * KEYS / 16));
    wgmma_commit();
}

/* Transposes the 4 x 4 words of four lanes: lane i gets word i of each lane. */
__device__ __forceinline__ void transpose_4x4(u32 (&w)[4])
{
#pragma unroll
    for (int by = 1; by <= 2; by *= 2) {
        bool upper = threadIdx.x & by;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & by)
                continue;
            u32 sent = upper ? w[i] : w[i + by], received = __shfl_xor_sync(0xffffffffu, sent, by);
            w[i] = upper ? received : w[i];
            w[i + by] = upper ? w[i + by] : received;
        }
    }
}

#endif

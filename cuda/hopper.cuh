/* SPDX-License-Identifier: MIT */
/* On Hopper's instructions (ptx.cuh): arrivals of warps, the descriptors of wgmma, pipelines made of mbarriers. */
#ifndef ATTUNE_CUDA_HOPPER_CUH
#define ATTUNE_CUDA_HOPPER_CUH

#include "common.cuh"

/* The heads of keys of a section, of so many bytes each: those whose keys and values fit in the L2 cache together. */
constexpr i64 SECTION_BYTES = 24 << 20;

__device__ __forceinline__ int section_heads(i64 bytes)
{
    return bytes > SECTION_BYTES ? 1 : (int)((u32)SECTION_BYTES / (u32)max((int)bytes, 1));
}

/* The threads of a warp that arrive at a barrier. One is enough; compute-sanitizer's racecheck needs all 32, because it
 * does not see that __syncwarp orders the others before that one (docs/cuda.md). */
constexpr int ARRIVALS = config::ARRIVALS;

/* Without __syncwarp: for a warp that has converged since its last access to the buffer that this releases. */
__device__ __forceinline__ void lane_arrive(u64 *barrier)
{
    if (threadIdx.x % 32 < ARRIVALS)
        barrier_arrive(barrier);
}

/* An arrival orders the accesses of its own thread only, so __syncwarp orders the warp's accesses before it. */
__device__ __forceinline__ void warp_arrive(u64 *barrier)
{
    __syncwarp();
    lane_arrive(barrier);
}

/* wgmma's descriptors of operands in shared memory with the 128-byte swizzle. K-major: groups of 8 rows are `rows`
 * bytes apart. N-major: groups of 8 keys are `keys` bytes apart, slabs of 64 columns `slab` bytes. */
__device__ __forceinline__ u64 describe_k_major(u32 address, u32 rows = 1024)
{
    return 1ull << 62 | (u64)(rows >> 4) << 32 | 1ull << 16 | (address >> 4 & 0x3fff);
}

__device__ __forceinline__ u64 describe_n_major(u32 address, u32 slab, u32 keys = 1024)
{
    return 1ull << 62 | (u64)(keys >> 4) << 32 | (u64)(slab >> 4) << 16 | (address >> 4 & 0x3fff);
}

/* Where row `row` of an operand's slab is, whose groups of 8 rows are EIGHT bytes apart. */
template <u32 EIGHT, typename integer> __device__ __forceinline__ integer row_offset(integer row)
{
    return EIGHT == 1024 ? row * 128 : row / 8 * (integer)EIGHT + row % 8 * 128;
}

/*
 * Pipelines, as in CUTLASS: a ring of SIZE stages, each with a barrier that says that it is full and one that says that
 * it is empty. Each producer and consumer keeps its own state. A consumer begins with {0, 0}, a producer with {0, 1}:
 * its first waits are for the phase before the first, which is complete, since all stages are empty.
 */
struct pipeline_state {
    u32 stage, phase;
};

template <int SIZE = STAGES> __device__ __forceinline__ void advance(pipeline_state &r)
{
    if (++r.stage == SIZE) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

template <int SIZE = STAGES> __device__ __forceinline__ pipeline_state before(const pipeline_state &r)
{
    return r.stage == 0 ? pipeline_state{SIZE - 1, r.phase ^ 1} : pipeline_state{r.stage - 1, r.phase};
}

/* Barriers of a pipeline. The buffers themselves are elsewhere in shared memory. */
template <int SIZE> struct pipeline {
    u64 full[SIZE], empty[SIZE];
};

/*
 * Operations on a pipeline that is a member of a struct in shared memory: consumer_wait<&control::k>(c, state). They
 * take the struct and not the pipeline, so that the compiler has one base address for all pipelines of the struct.
 */

/* The arrivals that complete a phase of a stage's barriers. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void pipeline_init(barriers &c, int stage, int producer_arrivals, int consumer_arrivals)
{
    barrier_init(&(c.*PIPELINE).full[stage], producer_arrivals);
    barrier_init(&(c.*PIPELINE).empty[stage], consumer_arrivals);
}

/* Waits until the consumers have released the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void producer_acquire(barriers &c, const pipeline_state &r)
{
    barrier_wait(&(c.*PIPELINE).empty[r.stage], r.phase);
}

/* The stage is full once TMA has written `bytes`, with loads that signal the stage's full barrier. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void producer_expect(barriers &c, const pipeline_state &r, u32 bytes)
{
    barrier_expect(&(c.*PIPELINE).full[r.stage], bytes);
}

/* The calling thread has written its part of the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void producer_commit(barriers &c, const pipeline_state &r)
{
    barrier_arrive(&(c.*PIPELINE).full[r.stage]);
}

/* The calling warp has written its part of the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void producer_commit_warp(barriers &c, const pipeline_state &r)
{
    warp_arrive(&(c.*PIPELINE).full[r.stage]);
}

/* Waits until the stage is full. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void consumer_wait(barriers &c, const pipeline_state &r)
{
    barrier_wait(&(c.*PIPELINE).full[r.stage], r.phase);
}

/* The calling warp has read the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void consumer_release(barriers &c, const pipeline_state &r)
{
    warp_arrive(&(c.*PIPELINE).empty[r.stage]);
}

/* The same without __syncwarp: the calling warp has converged since its last read of the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void consumer_release_converged(barriers &c, const pipeline_state &r)
{
    lane_arrive(&(c.*PIPELINE).empty[r.stage]);
}

/* The calling thread, the only consumer, has read the stage. */
template <auto PIPELINE, typename barriers>
__device__ __forceinline__ void consumer_release_thread(barriers &c, const pipeline_state &r)
{
    barrier_arrive(&(c.*PIPELINE).empty[r.stage]);
}

#endif

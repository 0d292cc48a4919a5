/* SPDX-License-Identifier: MIT */
/* Hopper's instructions: mbarriers, clusters, TMA, the fences and descriptors of wgmma; pipelines made of mbarriers. */
#ifndef ATTUNE_CUDA_HOPPER_CUH
#define ATTUNE_CUDA_HOPPER_CUH

#include "common.cuh"

/* A CUtensorMap, which the host encodes. TMA needs it at a multiple of 64 bytes. */
struct __align__(64) tensor_map
{
    u64 opaque[16];
};

__device__ __forceinline__ void barrier_init(u64 *barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

/* One arrival, and `bytes` that TMA has to write before the phase is complete. */
__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* More bytes for the phase, without an arrival. */
__device__ __forceinline__ void barrier_expect_more(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
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

/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* Clusters have two CTAs: 0 or 1. */
__device__ __forceinline__ u32 cluster_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address, in the peer CTA's shared memory, of the same byte. */
__device__ __forceinline__ u32 peer_address(u32 address)
{
    u32 peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(cluster_rank() ^ 1));
    return peer;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* Arrives at the same barrier of the peer CTA. */
__device__ __forceinline__ void barrier_arrive_peer(u64 *barrier)
{
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_address(shared_address(barrier)))
        : "memory");
}

/* Waits at this CTA's barrier with acquire at cluster scope: for arrivals and writes of the peer CTA. */
__device__ __forceinline__ void barrier_wait_peer(u64 *barrier, u32 phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* TMA: loads the map's box at [b][h][row][column] to shared memory; its bytes count at `barrier`. */
__device__ __forceinline__ void tensor_load(u32 to, const tensor_map *map, u64 *barrier, int column, int row, int h,
                                            int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(h), "r"(b)
                 : "memory");
}

/* Loads contiguous bytes to shared memory; they count at `barrier`. */
__device__ __forceinline__ void bulk_load(u32 to, const void *from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* Adds float32 values in shared memory to global memory. */
__device__ __forceinline__ void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Copies to the same address of the cluster peer, whose barrier counts the bytes. */
__device__ __forceinline__ void copy_peer(u32 to, u32 from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     peer_address(to)),
                 "r"(from), "r"(bytes), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

/* The same with one word. */
__device__ __forceinline__ void store_peer(int *to, int value, u64 *barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     peer_address(shared_address(to))),
                 "r"(value), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

/* Orders stores to shared memory before later reads by TMA, bulk copies and wgmma. */
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* After wgmma_wait: keeps the compiler from moving reads of the accumulators before the wait. */
template <int COUNT> __device__ __forceinline__ void accumulators_done(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* wgmma's descriptors of operands in shared memory with the 128-byte swizzle. K-major: groups of 8 rows are 1024 bytes
 * apart. N-major: groups of 8 keys are 1024 bytes apart, slabs of 64 columns `slab` bytes. */
__device__ __forceinline__ u64 describe_k_major(u32 address)
{
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | 1ull << 16 | (address >> 4 & 0x3fff);
}

__device__ __forceinline__ u64 describe_n_major(u32 address, u32 slab)
{
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(slab >> 4) << 16 | (address >> 4 & 0x3fff);
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

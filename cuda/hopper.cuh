/* SPDX-License-Identifier: MIT */
/* Hopper's instructions: mbarriers, TMA, and what stands around wgmma. */
#ifndef ATTUNE_CUDA_HOPPER_CUH
#define ATTUNE_CUDA_HOPPER_CUH

#include "common.cuh"

struct __align__(64) tensor_map
{
    u64 opaque[16];
};

__device__ __forceinline__ void barrier_init(u64 *barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Bytes more, without an arrival. */
__device__ __forceinline__ void barrier_expect_more(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* How many of a warp's threads arrive: 1. 32 is for racecheck, which does not understand the one (docs/cuda.md). */
#ifndef ATTUNE_ARRIVALS
#define ATTUNE_ARRIVALS 1
#endif

/* For a warp that has come together since it read what this gives back. */
__device__ __forceinline__ void lane_arrive(u64 *barrier)
{
    if (threadIdx.x % 32 < ATTUNE_ARRIVALS)
        barrier_arrive(barrier);
}

/* An arrival speaks for its own thread alone: the warp comes together before one of it arrives. */
__device__ __forceinline__ void warp_arrive(u64 *barrier)
{
    __syncwarp();
    lane_arrive(barrier);
}

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

/* Of two CTAs in a cluster. */
__device__ __forceinline__ u32 cluster_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where the other CTA has what lies at `address` here. */
__device__ __forceinline__ u32 peer_address(u32 address)
{
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cluster_rank() ^ 1));
    return there;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* At the other CTA's barrier. */
__device__ __forceinline__ void barrier_arrive_peer(u64 *barrier)
{
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     peer_address(shared_address(barrier)))
                 : "memory");
}

/* For what the other CTA did. */
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

__device__ __forceinline__ void tensor_load(u32 to, const tensor_map *map, u64 *barrier, int column, int row, int h,
                                            int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(h), "r"(b)
                 : "memory");
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

/* Keeps the compiler from touching accumulators before the wait that this stands behind. */
template <int COUNT> __device__ __forceinline__ void accumulators_done(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptors of operands with the 128-byte swizzle. K-major: 8 rows are 1024 bytes. N-major: 8 keys are 1024 bytes,
 * and 64 columns a slab. */
__device__ __forceinline__ u64 describe_k_major(u32 address)
{
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | 1ull << 16 | (address >> 4 & 0x3fff);
}

__device__ __forceinline__ u64 describe_n_major(u32 address, u32 slab)
{
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(slab >> 4) << 16 | (address >> 4 & 0x3fff);
}

/* A place in the ring of stages. */
struct pipeline_state {
    u32 stage, phase;
};

__device__ __forceinline__ void advance(pipeline_state &r)
{
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

#endif

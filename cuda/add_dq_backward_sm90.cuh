/* SPDX-License-Identifier: MIT */
/* The warps of the producer warp group of Hopper's backward kernel that add dQ to its sums in global memory: one warp
 * for each consumer warp group, whose fragments it adds. */
#ifndef ATTUNE_CUDA_ADD_DQ_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_ADD_DQ_BACKWARD_SM90_CUH

#include "dq_backward_sm90.cuh"
#include "ordered_sums.cuh"

/* Cluster: the sums of both warp groups of a rank are contiguous. */
__device__ __forceinline__ float *pair_dq_sums_of(const attune_cuda_backward &g, i64 row, u32 rank, int group)
{
    return dq_sums_of(g, row, (int)rank) + group * (sm90::GROUP_DQ_BYTES<0> / 4);
}

__device__ __forceinline__ u32 pair_dq_buffer(u32 memory, u32 stage, int group)
{
    return memory + sm90::DO_OFFSET + stage * sm90::DO_BYTES + group * (sm90::FIRST_GROUP_DV / 64) * sm90::ROW_SLAB;
}

/* DQ_ADD_IN_PLACE: the buffer of half a warp group's dQ, over its columns of dO (first half) or Q. */
__device__ __forceinline__ u32 dq_buffer(u32 memory, u32 stage, int group, int half)
{
    return memory +
           (half ? sm90::Q_OFFSET + stage * sm90::Q_BYTES + group * (sm90::FIRST_GROUP_D / 64) * sm90::ROW_SLAB
                 : sm90::DO_OFFSET + stage * sm90::DO_BYTES + group * (sm90::FIRST_GROUP_DV / 64) * sm90::ROW_SLAB);
}

/* 7: dQ += dS^T K in global memory: adds one consumer warp group's fragments with bulk reductions. In a fixed order a
 * whole warp calls this, since it searches the block lists together; else one thread is enough. */
__device__ __forceinline__ void add_dq(const attune_cuda_arguments &a, const attune_cuda_backward &g, control &c,
                                       u32 memory, int group)
{
    constexpr bool IN_PLACE = sm90::DQ_ADD == DQ_ADD_IN_PLACE;
    bool first = threadIdx.x % 32 == 0;
    if (!sm90::ORDERED && !first)
        return;
    u32 bytes = group ? sm90::GROUP_DQ_BYTES<1> : sm90::GROUP_DQ_BYTES<0>;
    pipeline_state pipe = {0, 0};
    u32 phase = 0, rank = sm90::PAIRED ? cluster_rank() : 0;
    for (;; advance(pipe)) {
        consumer_wait<&control::queries>(c, pipe);
        tile_desc desc = c.descs[pipe.stage];
        if (sm90::ORDERED)
            __syncwarp();
        bool rows = !(desc.flags & (TILE_END | TILE_STOP));
        if (!(first && IN_PLACE && rows))
            consumer_release_converged<&control::queries>(c, pipe);
        if (desc.flags & TILE_STOP)
            break;
        if (!rows) {
            if (first)
                count_bulk_additions(a, g, desc.q);
            continue;
        }
        i64 row = workspace_row(a, g, desc.b, desc.h, desc.q);
        int tile = desc.flags / TILE_KEYS;
        u32 *word =
            (u32 *)g.order_counts + (sm90::PAIRED ? (row / BLOCK_M * 2 + rank) : row / BLOCK_M) * sm90::GROUPS + group;
        if (sm90::ORDERED)
            order_wait(a, desc.b, desc.h, desc.q, tile, word);
        if (first) {
            float *to = sm90::PAIRED ? pair_dq_sums_of(g, row, rank, group) : dq_sums_of(g, row, group);
            consumer_wait<&control::dq>(c, {(u32)group, phase});
            if (sm90::PAIRED) {
                bulk_add(to, pair_dq_buffer(memory, pipe.stage, group), bytes);
            } else if (IN_PLACE) {
                bulk_add(to, dq_buffer(memory, pipe.stage, group, 0), bytes / 2);
                bulk_add(to + bytes / 8, dq_buffer(memory, pipe.stage, group, 1), bytes / 2);
            } else
                bulk_add(to, memory + sm90::DQ_OFFSET + group * sm90::GROUP_DQ_BYTES<0>, bytes);
            bulk_wait_read();
            if (IN_PLACE)
                consumer_release_thread<&control::queries>(c, pipe);
            else
                consumer_release_thread<&control::dq>(c, {(u32)group, phase});
            if (sm90::ORDERED)
                order_release(word, tile);
        }
        phase ^= 1;
    }
    bulk_wait();
}

#endif

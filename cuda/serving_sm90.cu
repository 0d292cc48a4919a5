/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache for Hopper, of batches with prompts, chunks of prompts or drafts, and of latent attention: wgmma
 * over tiles of the packed rows of the query heads that share keys (row = q * heads of the group + head), with the
 * schedule and the partial results of serving_sm80.cu. The stages are those of docs/algorithm.md.
 *
 * A persistent CTA has a producer warp group, and one or two of consumers. The next tile of rows is found, and its
 * operands loaded, while this one is computed.
 *
 *     layout_serving_sm90.cuh      tile, layout of shared memory, barriers
 *     producer_serving_sm90.cuh    stages 1 and 2: tiles of rows, loads of Q, K and V
 *     narrow_serving_sm90.cuh      stages 3 to 6: a consumer for each 64 rows
 *     wide_serving_sm90.cuh        ... of more than 256 columns: two consumers for 64 rows
 *     scores_serving_sm90.cuh      stage 4, with the mask and the score expression
 *     results_serving_sm90.cuh     stage 7
 *
 * Kernels walk logical tiles of keys; pages are translated for addresses alone, so that results do not depend on them.
 */
#include "narrow_serving_sm90.cuh"
#include "producer_serving_sm90.cuh"
#include "results_serving_sm90.cuh"
#include "serving_shared_schedule.cuh"
#include "wide_serving_sm90.cuh"

/* Releases the key tiles of rows that are none of the warp group's. */
__device__ __forceinline__ void skip_tiles(control &c, row_states &r, pipeline_state &k, int kv, int end)
{
    consumer_wait<&control::q>(c, r.q());
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
#pragma unroll 1
    for (; kv < end; kv += BLOCK_N) {
        consumer_wait<&control::k>(c, k);
        consumer_release<&control::k>(c, k);
        consumer_wait<&control::v>(c, k);
        consumer_release<&control::v>(c, k);
        advance(k);
    }
}

template <typename sm90>
__device__ __forceinline__ void consume(const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                        u32 memory)
{
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0);
    float factor = fold_factor(a.scale);
    row_states r = {0};
    pipeline_state k = {0, 0}; /* also V's, whose stages are those of K */
    if (group == sm90::GROUPS - 1)
        ping_pong_arrive(group); /* group 0 is the first to issue */
    for (;; r.advance_work()) {
        consumer_wait<&control::work>(c, r.work());
        const work &here = c.items[r.work().stage];
        const tile &t = here.of;
        int kv = uniform(here.kv), end = uniform(here.end), first = uniform(t.row) + group * 64;
        if (kv < 0)
            break;
        bool any = sm90::WIDE || uniform(first < t.rows);
        float row_max[2] = {-ATTUNE_INF, -ATTUNE_INF}, row_sum[2] = {0.0f, 0.0f}, o[sm90::WIDTH_DV / 2];
#pragma unroll
        for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        if (kv < end && !any)
            skip_tiles(c, r, k, kv, end);
        else if (kv < end) {
            if constexpr (sm90::WIDE)
                compute_wide<sm90>(o, row_max, row_sum, a, s, c, memory, here, kv, end, group, r, k, factor);
            else
                compute_narrow<sm90>(o, row_max, row_sum, a, s, c, memory, here, kv, end, group, r, k, factor);
        }
        if (!config::PARTS || uniform(t.parts) == 1)
            store(o, row_max, row_sum, a, s, t, factor);
        else if constexpr (config::PARTS) {
            store_part(o, row_max, row_sum, s, t);
            if (last_of_parts<consumers>(a, s, t)) {
                if constexpr (sm90::WIDE)
                    store_parts_together<consumers>(a, s, t, factor);
                else
                    store_parts<consumers>(a, s, t, factor);
            }
        }
        consumer_release<&control::work>(c, r.work());
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_serving_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + sm90::CONTROL_OFFSET);
    if (threadIdx.x == 0) {
        /* Of the warps of the producers, and of the consumers. */
        constexpr int COMMITS = sm90::PRODUCERS / 32 * ARRIVALS, RELEASES = sm90::GROUPS * 4 * ARRIVALS;
        for (int i = 0; i < 2; i++)
            pipeline_init<&control::work>(c, i, 1, RELEASES);
        pipeline_init<&control::q>(c, 0, COMMITS, RELEASES);
        for (int i = 0; i < STAGES; i++) {
            pipeline_init<&control::k>(c, i, COMMITS, RELEASES);
            pipeline_init<&control::v>(c, i, COMMITS, RELEASES);
        }
        fence_barrier_init();
    }
    __syncthreads();
    wait_for_launches();
    if (threadIdx.x < sm90::PRODUCERS) {
        registers_release<sm90::PRODUCER_REGISTERS>();
        produce(a, s, &k_map, &v_map, c, shared_address(memory));
    } else {
        registers_take<sm90::CONSUMER_REGISTERS>();
        consume<sm90>(a, s, c, shared_address(memory));
    }
}

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    attune_schedule(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    schedule_step(a, s, memory);
}

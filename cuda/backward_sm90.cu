/* SPDX-License-Identifier: MIT */
/*
 * The backward pass on Hopper. attune_delta runs before it; for clusters
 * attune_backward_dq_sm90 rounds dQ after it.
 *
 * A CTA computes dK and dV of one tile of keys at a time, over all queries of all heads that attend to it. Warp group 0
 * is the producer (producer_backward_sm90.cuh); warp groups 1 and 2 are consumers, which keep dK and dV in registers.
 * The stages, which are marked where they run:
 *
 *     1  load K V; for each query tile: load Q dO, LSE, delta       producer
 *     2  S^T = K Q^T                                                issue_s_dp
 *     3  dP^T = V dO^T                                              issue_s_dp
 *     4  P = exp(S - LSE)                                           compute_p
 *     5  dS = P * (dP - delta)                                      compute_ds
 *     6  dV += P dO                                                 issue_dk_dv
 *     7  dQ += dS^T K                                               issue_dq, add_dq
 *     8  dK += dS Q                                                 issue_dk_dv
 *     9  store dK dV                                                store_dk_dv
 *    10  scale and round dQ                                         round_dq
 *
 *     config_backward_sm90.cuh      tile and layout of shared memory
 *     layout_backward_sm90.cuh      barriers, tile descriptors, tile coordinates
 *     stages_backward_sm90.cuh      the stages that the algorithms share
 *     dq_backward_sm90.cuh          stage 10
 *     scores_backward_sm90.cuh      stages 4 and 5, with the mask and the score expression
 *     capture_gradients_sm90.cuh    gradients of the score expression's captures
 *     narrow_backward_sm90.cuh      consumers for head dimensions up to 128
 *     wide_backward_sm90.cuh        ... over 128
 *     pair_backward_sm90.cuh        ... both over 192: a cluster of two CTAs
 *
 * Without ATTUNE_DETERMINISTIC the order of the additions to dQ is not fixed, and dQ may differ in its last bits from
 * run to run.
 *
 * A value in K, V, Q or dO that is not finite gives NaN even at forbidden pairs. Then a flag makes the kernels of
 * backward_sm80.cu, launched after this one, recompute all gradients; otherwise they return at once.
 *
 * A thread holds of each 16 x 8 fragment of an accumulator rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and
 * + 1.
 */
#include "add_dq_backward_sm90.cuh"
#include "narrow_backward_sm90.cuh"
#include "pair_backward_sm90.cuh"
#include "producer_backward_sm90.cuh"
#include "wide_backward_sm90.cuh"

extern "C" __global__ void ATTUNE_CLUSTER_DIMENSIONS __launch_bounds__(THREADS, 1)
    attune_backward_sm90(const __grid_constant__ attune_cuda_arguments a,
                         const __grid_constant__ attune_cuda_backward g, const __grid_constant__ tensor_map q_map,
                         const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map,
                         const __grid_constant__ tensor_map do_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + sm90::CONTROL_OFFSET);
    if (threadIdx.x == 0) {
        pipeline_init<&control::keys>(c, 0, 1, sm90::GROUPS * 4 * ARRIVALS);
        for (int i = 0; i < STAGES; i++) {
            pipeline_init<&control::queries>(
                c, i, 1,
                (sm90::PAIRED && sm90::ORDERED ? 0 : sm90::GROUPS * 4 * ARRIVALS) + sm90::PAIRED +
                    (sm90::DQ_ADD == DQ_ADD_ATOMIC ? 0 : sm90::GROUPS * (sm90::ORDERED ? ARRIVALS : 1)));
            barrier_init(&c.q_empty[i], sm90::GROUPS * 4 * ARRIVALS);
        }
        barrier_init(&c.ds_ready, 1);
        barrier_init(&c.peer_p_empty, sm90::GROUPS * 4 * ARRIVALS);
        barrier_init(&c.peer_ds_full, 1);
        barrier_init(&c.ds_empty, 1);
        pipeline_init<&control::next>(c, 0, 1, 1);
        for (int i = 0; i < sm90::GROUPS; i++)
            pipeline_init<&control::dq>(c, i, 4 * ARRIVALS, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (sm90::PAIRED)
        cluster_sync();
    if (threadIdx.x < 128) {
        registers_release<sm90::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            produce(a, g, c, shared_address(memory), &q_map, &k_map, &v_map, &do_map);
        else if (sm90::DQ_ADD != DQ_ADD_ATOMIC && threadIdx.x >= 32 && threadIdx.x / 32 <= sm90::GROUPS)
            add_dq(a, g, c, shared_address(memory), (int)threadIdx.x / 32 - 1);
        else if (sm90::PAIRED && threadIdx.x >= 96) {
            if (threadIdx.x == 96)
                exchange_ds(c, shared_address(memory));
        } else if (sm90::ROUND_DQ && threadIdx.x >= 32)
            round_dq<1>(a, g);
    } else {
        registers_take<sm90::CONSUMER_REGISTERS>();
        if constexpr (sm90::ALGORITHM == BACKWARD_NARROW)
            consume_narrow<sm90>(a, g, c, shared_address(memory));
        else if constexpr (sm90::ALGORITHM == BACKWARD_PAIR)
            consume_pair<sm90>(a, g, c, shared_address(memory));
        else if (sm90::EQUAL_GROUPS || threadIdx.x < 256)
            consume_wide<sm90, 0>(a, g, c, shared_address(memory));
        else
            consume_wide<sm90, sm90::EQUAL_GROUPS ? 0 : 1>(a, g, c, shared_address(memory));
        if constexpr (sm90::ROUND_DQ)
            round_dq<4>(a, g);
    }
    if (sm90::PAIRED)
        cluster_sync(); /* a CTA may not exit while its peer can still write to its shared memory */
}

/* ----------------------------------------------------------------------------------------------------------- dQ */

constexpr int DQ_TILE = sm90::GROUPS * sm90::DQ_BYTES / 4;

/* Scales and rounds dQ from its sums, where attune_backward_sm90 does not. One CTA of 256 threads for each tile of
 * rows; wide heads: one for each half of its columns. */
__device__ __forceinline__ void round_dq_tile(const attune_cuda_arguments &a, const attune_cuda_backward &g)
{
    constexpr int HALVES = sm90::WIDE ? 2 : 1, COLUMNS = sm90::DQ_COLUMNS / HALVES,
                  PITCH = attune_cuda_backward_dq_sm90_pitch(HEAD_DIM, HEAD_DIM_V, BLOCK_M) / 4;
    extern __shared__ __align__(16) float tile[]; /* [BLOCK_M][PITCH] */
    int tiles = query_tiles_per_head(a), index = (int)blockIdx.x / HALVES, half = (int)blockIdx.x % HALVES;
    int plane = index / tiles, q0 = (index - plane * tiles) * BLOCK_M, b = plane / a.heads, h = plane - b * a.heads;
    const float4 *sums = (const float4 *)dq_sums_of(g, workspace_row(a, g, b, h, q0), half);
    float nan_if_non_finite = 0.0f;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < DQ_TILE / HALVES / 4; i += 256) {
        float4 four = sums[i];
        int thread = i % 128, fragment = i / 128 % (sm90::DQ_WIDTH / 8), group = i / 128 / (sm90::DQ_WIDTH / 8);
        int row = (sm90::DQ_TRANSPOSED || sm90::DQ_SPLIT_ROWS ? group * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
        int column =
            (sm90::DQ_TRANSPOSED || sm90::DQ_SPLIT_ROWS ? 0 : group * sm90::DQ_WIDTH) + fragment * 8 + thread % 4 * 2;
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row + j / 2 * 8, at = column + j % 2;
            nan_if_non_finite = __fmaf_rn(x[j], 0.0f, nan_if_non_finite);
            tile[sm90::DQ_TRANSPOSED ? at * PITCH + r : r * PITCH + at] = x[j] * a.scale;
        }
    }
    if (nan_if_non_finite != 0.0f)
        *(volatile int *)g.redo = 1;
    __syncthreads();
    o_element *out = (o_element *)g.d_q.address + b * g.d_q.batch + h * g.d_q.head;
    bool vector = view_aligned<o_element>(g.d_q);
    constexpr int CHUNKS = (sm90::WIDE ? COLUMNS : HEAD_DIM + 7) / 8;
    for (int i = (int)threadIdx.x; i < BLOCK_M * CHUNKS; i += 256) {
        int row = i / CHUNKS, d = i % CHUNKS * 8 + half * COLUMNS;
        if (q0 + row >= a.q_len || d >= HEAD_DIM)
            continue;
        const float *from = tile + row * PITCH + d - half * COLUMNS;
        o_element *to = out + (q0 + row) * g.d_q.row + d;
        if (vector && d + 8 <= HEAD_DIM) {
            store_eight(to, from);
        } else {
            for (int j = 0; j < 8 && d + j < HEAD_DIM; j++)
                store_output(to + j, from[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    attune_backward_dq_sm90(const __grid_constant__ attune_cuda_arguments a,
                            const __grid_constant__ attune_cuda_backward g)
{
    if constexpr (!sm90::ROUND_DQ)
        round_dq_tile(a, g);
}

/* SPDX-License-Identifier: MIT */
/* The configuration of serving_sm90.cu, the layout of its shared memory, and its barriers. */
#ifndef ATTUNE_CUDA_LAYOUT_SERVING_SM90_CUH
#define ATTUNE_CUDA_LAYOUT_SERVING_SM90_CUH

#include "hopper.cuh"
#include "layout_sm90.h"
#include "serving_tile.cuh"

struct serving_config {
    /* Wide values: both consumer warp groups have the same 64 rows, and half of O's columns each. */
    static constexpr bool WIDE = attune_cuda_serving_sm90_wide(HEAD_DIM_V);
    static constexpr int GROUPS = WIDE ? 2 : BLOCK_M / 64; /* consumer warp groups */
    static constexpr int COLUMNS = WIDE ? HEAD_DIM_V / 2 : HEAD_DIM_V;
    static constexpr int STEPS_D = (HEAD_DIM + 15) / 16, WIDTH_DV = round_up(COLUMNS, 16);
    /* Consumers issue their products in turn, so that one's run under the other's softmax. */
    static constexpr bool PING_PONG = GROUPS > 1 && !WIDE && HEAD_DIM_V <= 128;
    static constexpr int CHAINS = 2; /* independent chains of sums, and of maxima, which hide latency */
    static constexpr int PRODUCERS = 128, CONSUMERS = 128 * GROUPS;
    /* A warp of the producers loads as many keys of each tile, and as many rows of Q. */
    static constexpr int WARP_KEYS = BLOCK_N / 4, WARP_ROWS = BLOCK_M / 4;
    /* setmaxnreg's; together the warp groups have the 65536 of an SM. The producers find tiles of rows. */
    static constexpr int PRODUCER_REGISTERS = WIDE          ? 72
                                              : GROUPS == 2 ? 88
                                                            : 104,
                         CONSUMER_REGISTERS = WIDE          ? 216
                                              : GROUPS == 2 ? ATTUNE_CUDA_SERVING_SM90_PAIR_REGISTERS
                                                            : 248;

    /* Shared memory (layout_sm90.h). */
    static constexpr attune_cuda_serving_sm90_layout LAYOUT = attune_cuda_serving_sm90(TILE);
    static constexpr u32 Q_SLAB = BLOCK_M * 128;
    /* From a slab of 64 columns of K and V to the next, and from eight keys. Eight keys of wide values have all of
     * their slabs together, so that TMA loads them at once. */
    static constexpr u32 KV_SLAB = WIDE ? 1024 : BLOCK_N * 128, KV_KEYS = WIDE ? HEAD_DIM / 64 * 1024 : 1024;
    static constexpr u32 K_STAGE = LAYOUT.k_stage, V_STAGE = LAYOUT.v_stage;
    static constexpr u32 K_OFFSET = LAYOUT.k, V_OFFSET = LAYOUT.v, CONTROL_OFFSET = LAYOUT.control;
    static constexpr u32 P_OFFSET = LAYOUT.p, MAXIMA_OFFSET = LAYOUT.maxima; /* of wide values */

    static_assert(THREADS == PRODUCERS + CONSUMERS,
                  "a producer warp group, and a consumer warp group for each 64 rows");
    static_assert(!WIDE || (BLOCK_M == 64 && BLOCK_N == 64 && HEAD_DIM_V % 128 == 0 && HEAD_DIM_V <= HEAD_DIM &&
                            HEAD_DIM % 64 == 0),
                  "a warp group has whole slabs of V, which fit in K's, and P is one slab");
    static_assert(BLOCK_N == 64 || BLOCK_N == 128, "a warp loads 16 or 32 keys");
    static_assert(!WIDE || STAGES == 2, "a warp group computes P of the keys in its stage");
    static_assert(STAGES > 1 && TAKEN, "keys are loaded ahead, and parts are not fixed");
    static_assert(K_TYPE == config::DTYPE && V_TYPE == config::DTYPE && config::Q_DTYPE == config::DTYPE &&
                      sizeof(element) == 2,
                  "operands are copied as they are");
    static_assert(planned(LAYOUT.size));
};
typedef serving_config sm90;

/* The named barriers of bar.sync; __syncthreads has number 0. */
enum named_barrier {
    BARRIER_PING_PONG = 1, /* to 2: one for each consumer warp group */
    BARRIER_PRODUCERS = 3,
    BARRIER_CONSUMERS = 4,
    /* Of wide values, one for each consumer warp group: its P is there, and it has read the other's. */
    BARRIER_GIVEN = 5,
    BARRIER_READ = 7,
};

/* A tile of rows, the keys of its part, and those that all of its rows see. */
struct work {
    tile of;
    range inner;
    int kv, end; /* kv < 0: there are no more tiles */
};

/* After the tiles in shared memory. */
struct control {
    pipeline<2> work;
    pipeline<1> q;
    pipeline<STAGES> k, v;
    alignas(16) u32 there[STAGES][BLOCK_N / 32]; /* with k's stages: a bit for each key, 0 = absent */
    struct work items[2];                        /* with work's stages */
};
static_assert(sizeof(control) <= sm90::LAYOUT.control_bytes);

/* The states of the pipelines of tiles of rows and of Q, in a register: few of them are left beside the accumulators.
 */
struct row_states {
    u32 bits; /* the stage, its phase, and Q's */

    __device__ __forceinline__ pipeline_state work() const
    {
        return {bits & 1, bits >> 1 & 1};
    }
    __device__ __forceinline__ pipeline_state q() const
    {
        return {0, bits >> 2};
    }
    __device__ __forceinline__ void advance_work()
    {
        bits = (bits & 4) | ((bits + 1) & 3);
    }
    __device__ __forceinline__ void advance_q()
    {
        bits ^= 4;
    }
};

/* The threads that compute a tile. */
struct consumers {
    static constexpr int COUNT = sm90::CONSUMERS;

    static __device__ __forceinline__ int thread()
    {
        return thread_index_remat() - sm90::PRODUCERS;
    }
    static __device__ __forceinline__ void sync()
    {
        named_sync<BARRIER_CONSUMERS, COUNT>();
    }
    static __device__ __forceinline__ int sync_or(int x)
    {
        return named_sync_or<BARRIER_CONSUMERS, COUNT>(x);
    }
};

#endif

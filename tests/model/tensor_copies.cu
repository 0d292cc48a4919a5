/* SPDX-License-Identifier: MIT */
/*
 * tcgen05.cp, for tests/model/tensor_copies.c, which says what is copied and what is done wrong. Tensor memory is
 * filled with FILL before.
 */
#include "hopper.cuh"
#include "rows_sm100.cuh"

enum misuse {
    NOTHING,
    ODD_ISSUES,       /* the CTA of rank 1 of a pair issues the copy */
    NO_CLUSTER_SYNC,  /* the other CTA's source is not waited for */
    NO_PROXY_FENCE,   /* nor ordered before the asynchronous proxy */
    STORES_TO_SOURCE, /* while it is copied */
    NO_WAIT_STORE,    /* for the stores of FILL */
    NO_FENCE,         /* after them */
    TWICE,            /* to the same columns, which copies alone do not order */
    NO_WAIT,          /* the columns are loaded before the commit */
    NO_FENCE_AFTER,   /* ... without tcgen05.fence */
    FREES_EARLY,      /* before the commit */
    AFTER_PRODUCT,    /* of copies that were waited for; another one overwrites its operand */
    OTHER_WARP        /* issues the product of what is copied */
};

/* Without a swizzle groups of 8 rows are STRIDE apart and the halves of rows of 256 bits LEADING; with it the source
 * begins at byte START of rows of 128. */
constexpr u32 STRIDE = 160, LEADING = 2560, START = 32, BARRIER_OFFSET = 32768, FILL = 0x5eed;

/* Of a thread of either kernel. */
struct state {
    u32 base, tmem;
    u64 *done;
    int rank, lane;
};

__device__ __forceinline__ void sync()
{
    if (TENSOR_CTAS == 2)
        cluster_sync();
    else
        __syncthreads();
}

__device__ __forceinline__ state begin(unsigned char *memory)
{
    state s = {shared_address(memory), 0, (u64 *)(memory + BARRIER_OFFSET), TENSOR_CTAS == 2 ? (int)cluster_rank() : 0,
               (int)threadIdx.x};
    const u32 *tmem = (const u32 *)(memory + BARRIER_OFFSET + 16);
    if (s.lane == 0) {
        barrier_init(s.done, 1);
        barrier_init(s.done + 1, 1);
        fence_barrier_init();
    }
    if (s.lane < 32) {
        tmem_allocate<64>(shared_address(tmem));
        tmem_relinquish();
    }
    sync();
    s.tmem = *tmem;
    return s;
}

__device__ __forceinline__ void end(const state &s)
{
    tmem_fence_before();
    sync();
    tmem_fence_after();
    if (s.lane < 32)
        tmem_free<64>(s.tmem);
    sync();
}

/* Rows of chunks of 16 bytes. */
__device__ __forceinline__ void put(u32 to, const u32 *from, int rows, int chunks, int swizzle)
{
    for (int i = (int)threadIdx.x; i < rows * chunks; i += 128) {
        const u32 row = (u32)(i / chunks), chunk = (u32)(i % chunks);
        const u32 plain = to + row / 8 * STRIDE + row % 8 * 16 + chunk * LEADING,
                  dense = to + START + row * 128 + chunk * 16;
        const u32 *four = from + i * 4;
        store_shared_4(swizzle ? dense ^ (dense >> 7 & 7) << 4 : plain, four[0], four[1], four[2], four[3]);
    }
}

__device__ __forceinline__ u64 describe(u32 at, int swizzle)
{
    return swizzle ? (u64)swizzle << 61 | 1ull << 46 | (u64)(1024 >> 4) << 32 | 1ull << 16 | (at + START) >> 4
                   : 1ull << 46 | (u64)(STRIDE >> 4) << 32 | (u64)(LEADING >> 4) << 16 | at >> 4;
}

/* The instruction, which no kernel of cuda/ has. */
__device__ __forceinline__ void copy_to_tensor(u32 to, u64 from, int rows, int bits, int multicast, int format)
{
    const model_tensor_copy c = {to,         from, rows, bits, (model_multicast)multicast, (model_source_format)format,
                                 TENSOR_CTAS};
    model->tcgen05_copy(&c);
}

/* `to`: 16 columns of [CTA][lane], of which the copy begins at the fifth. */
extern "C" __global__ void ATTUNE_CLUSTER_DIMENSIONS __launch_bounds__(128, 1)
    attune_tensor_copy(const u32 *from, u32 *to, int rows, int bits, int multicast, int format, int swizzle, int first,
                       int misuse)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const state s = begin(memory);
    const u32 own_lanes = s.tmem + ((u32)(s.lane / 32 * 32) << 16);
    u32 words[16];
    for (int i = 0; i < 16; i++)
        words[i] = FILL;
    tmem_store(own_lanes, words);
    if (misuse != NO_WAIT_STORE)
        tmem_wait_store();
    put(s.base, from + s.rank * rows * bits / 32, rows, bits / 128, swizzle);
    if (misuse != NO_FENCE)
        tmem_fence_before();
    if (misuse != NO_PROXY_FENCE)
        fence_async();
    if (misuse != NO_CLUSTER_SYNC)
        sync();
    else
        __syncthreads();
    if (s.lane == 0 && s.rank == (misuse == ODD_ISSUES)) {
        if (misuse != NO_FENCE)
            tmem_fence_after();
        for (int i = 0; i < (misuse == TWICE ? 2 : 1); i++)
            copy_to_tensor(s.tmem + ((u32)first << 16) + 4, describe(s.base, swizzle), rows, bits, multicast, format);
        if (TENSOR_CTAS == 2)
            tcgen05_commit_pair(s.done);
        else
            tcgen05_commit(s.done);
    }
    if (misuse == STORES_TO_SOURCE)
        store_shared_4(s.base + (u32)s.lane * 16, 0u, 0u, 0u, 0u);
    if (misuse != FREES_EARLY) {
        if (misuse != NO_WAIT)
            barrier_wait_peer(s.done, 0);
        if (misuse != NO_FENCE_AFTER)
            tmem_fence_after();
        tmem_load(words, own_lanes);
        tmem_wait_load(words);
        for (int i = 0; i < 16; i++)
            to[(s.rank * 128 + s.lane) * 16 + i] = words[i];
    }
    end(s);
}

/* D += A B of 128 x 16 x 16, where copies bring A, and D in two halves, to tensor memory, and no commit is between. */
extern "C" __global__ void __launch_bounds__(128, 1)
    attune_tensor_copy_product(const u32 *a, const u32 *b, const u32 *before, float *d, int misuse)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const state s = begin(memory);
    const u32 left = s.base + 16384, right = s.base + 24576;
    put(left, a, 128, 2, 0);
    put(s.base, before, 128, 2, 0);
    put(s.base + 8192, before + 128 * 8, 128, 2, 0);
    if (s.lane < 32) {
        const u32 *four = b + s.lane * 4;
        store_shared_4(right + (u32)(s.lane / 2 * 128 + (s.lane % 2 ^ s.lane / 2 % 8) * 16), four[0], four[1], four[2],
                       four[3]);
    }
    fence_async();
    __syncthreads();
    const bool other = misuse == OTHER_WARP;
    if (s.lane == 0) {
        copy_to_tensor(s.tmem, describe(left, 0), 128, 256, MODEL_MULTICAST_NONE, MODEL_FORMAT_NONE);
        copy_to_tensor(s.tmem + 16, describe(s.base, 0), 128, 256, MODEL_MULTICAST_NONE, MODEL_FORMAT_NONE);
        copy_to_tensor(s.tmem + 24, describe(s.base + 8192, 0), 128, 256, MODEL_MULTICAST_NONE, MODEL_FORMAT_NONE);
    }
    if (other)
        __syncthreads();
    const bool after = misuse == AFTER_PRODUCT;
    if (after && s.lane == 0) {
        tcgen05_commit(s.done + 1);
        barrier_wait(s.done + 1, 0);
        tmem_fence_after();
    }
    if (s.lane == (other ? 32 : 0)) {
        tcgen05_ts(s.tmem + 16, s.tmem, tcgen05_descriptor(describe_k_major(right)),
                   tcgen05_instruction(16, false, false, 128), 1);
        if (after)
            copy_to_tensor(s.tmem, describe(left, 0), 128, 256, MODEL_MULTICAST_NONE, MODEL_FORMAT_NONE);
        tcgen05_commit(s.done);
    }
    barrier_wait(s.done, 0);
    tmem_fence_after();
    float x[16];
    load_columns(x, s.tmem + ((u32)(s.lane / 32 * 32) << 16) + 16);
    for (int i = 0; i < 16; i++)
        d[s.lane * 16 + i] = x[i];
    end(s);
}

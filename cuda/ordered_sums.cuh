/* SPDX-License-Identifier: MIT */
/*
 * Turns: sums that several CTAs add to in a fixed order. Of the tiles of keys that a tile of rows meets the last
 * goes first; a word holds the number of the tile that was added last, plus one, and 0 before the first. Tiles of keys
 * are taken up in the same order, so that whoever waits waits for one that was begun before.
 */
#ifndef ATTUNE_CUDA_TURNS_CUH
#define ATTUNE_CUDA_TURNS_CUH

#include "common.cuh"

#if ATTUNE_HAVE_BLOCKS
/* The first block of a row past `block`; NO_BLOCK if there is none. By a whole warp, half of it for each list: each turn
 * of the loop leaves a 16th. */
__device__ __forceinline__ int next_block_after(const attune_cuda_arguments &a, i64 row, int block)
{
    int lane = (int)threadIdx.x % 32, half = lane / 16;
    const i64 *offsets = (const i64 *)(half ? a.full.offsets : a.partial.offsets) + row;
    const int *list = (const int *)(half ? a.full.indices : a.partial.indices) + offsets[0];
    int low = 0, high = (int)(offsets[1] - offsets[0]), step, found;
    do {
        step = (high - low + 15) / 16;
        int at = low + (lane % 16 + 1) * step - 1;
        found = at >= 0 && at < high ? list[at] : NO_BLOCK;
        /* The last lane's is past it, or the end: some lane's is. */
        u32 past = (__ballot_sync(0xffffffffu, found > block) >> half * 16 | 0x8000) & 0xffff;
        int chunk = __ffs((int)past) - 1;
        found = __shfl_sync(0xffffffffu, found, half * 16 + chunk);
        if (step > 1) {
            low += chunk * step;
            high = min(high, low + step);
        }
    } while (__any_sync(0xffffffffu, step > 1));
    found = found > block ? found : NO_BLOCK;
    return min(found, __shfl_xor_sync(0xffffffffu, found, 16));
}
#endif

/* What the word holds when the turn of a tile of keys has come. By a whole warp. */
__device__ __forceinline__ u32 order_expected(const attune_cuda_arguments &a, int b, int h, int q, int tile)
{
    int next = tile + 1, tiles = (a.kv_len + BLOCK_N - 1) / BLOCK_N;
#if ATTUNE_HAVE_BLOCKS
    int each = a.kv_block / BLOCK_N, block = tile / each;
    if (next == (block + 1) * each) {
        block = next_block_after(a, b * a.mask_batch_rows + h * a.mask_head_rows + q / a.q_block, block);
        next = block == NO_BLOCK ? tiles : block * each;
    }
#endif
    return next < tiles ? (u32)next + 1 : 0; /* a mask may be longer than the call */
}

__device__ __forceinline__ u32 order_load(const u32 *word)
{
    u32 now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now;
}

/* Waits for the turn. By a whole warp. Nearly everywhere the tile's neighbour goes before it, and the word says that it
 * has; only otherwise are the mask's lists asked, which are several reads one after another, longer than the addition. */
__device__ __forceinline__ void order_wait(const attune_cuda_arguments &a, int b, int h, int q, int tile, const u32 *word)
{
    u32 now = __shfl_sync(0xffffffffu, order_load(word), 0);
    if (now != (u32)tile + 2) {
        u32 expected = order_expected(a, b, h, q, tile);
        while (now != expected)
            now = order_load(word);
    }
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* Once the thread's bulk additions are done. */
__device__ __forceinline__ void order_release(u32 *word, int tile)
{
    asm volatile("cp.async.bulk.wait_group 0;\n"
                 "fence.proxy.async.global;\n"
                 "st.release.gpu.global.u32 [%0], %1;" ::"l"(word),
                 "r"(tile + 1)
                 : "memory");
}

#endif

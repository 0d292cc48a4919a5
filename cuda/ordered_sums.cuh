/* SPDX-License-Identifier: MIT */
/*
 * Ordered accumulation: CTAs add to the same sums in a fixed order, so that results repeat bit for bit. A tile of rows
 * receives its tiles of keys from the last to the first. A word in global memory holds the index plus one of the tile
 * of keys that was added last, 0 before the first. CTAs take tiles of keys in the same order, so that a CTA waits only
 * for tiles that were started before its own.
 */
#ifndef ATTUNE_CUDA_ORDERED_SUMS_CUH
#define ATTUNE_CUDA_ORDERED_SUMS_CUH

#include "common.cuh"

/* The first block of a row after `block`, or NO_BLOCK. A whole warp searches, half of it in each list: every iteration
 * narrows the list to a 16th. */
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
        /* The last lane of each half always counts as after `block`, so that some bit is set. */
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

/* The value of the word at which a tile of keys may be added. Called by a whole warp. */
__device__ __forceinline__ u32 order_expected(const attune_cuda_arguments &a, int b, int h, int q, int tile)
{
    int next = tile + 1, tiles = (a.kv_len + BLOCK_N - 1) / BLOCK_N;
    if constexpr (config::HAVE_BLOCKS) {
        if (BLOCK_N > 128 && a.kv_block < BLOCK_N) { /* of the two CTAs of a pair */
            int half = next_block_after(a, b * a.mask_batch_rows + h * a.mask_head_rows + q / a.q_block, tile * 2 + 1);
            return half != NO_BLOCK && half / 2 < tiles ? (u32)(half / 2) + 1 : 0;
        }
        int each = a.kv_block / BLOCK_N, block = tile / each;
        if (next == (block + 1) * each) {
            block = next_block_after(a, b * a.mask_batch_rows + h * a.mask_head_rows + q / a.q_block, block);
            next = block == NO_BLOCK ? tiles : block * each;
        }
    }
    return next < tiles ? (u32)next + 1 : 0; /* the block lists may cover more keys than the call has */
}

/* Waits until a tile of keys may be added. Called by a whole warp. The predecessor is nearly always the next tile,
 * and then the first load of the word shows that it was added. Otherwise the predecessor is searched in the block
 * lists, with several dependent loads that take longer than the addition. */
__device__ __forceinline__ void order_wait(const attune_cuda_arguments &a, int b, int h, int q, int tile,
                                           const u32 *word)
{
    u32 now = __shfl_sync(0xffffffffu, load_acquire(word), 0);
    if (now != (u32)tile + 2) {
        u32 expected = order_expected(a, b, h, q, tile);
        while (now != expected)
            now = load_acquire(word);
    }
    fence_async_global();
}

/* Allows the next tile of keys, after the thread's bulk additions have completed. */
__device__ __forceinline__ void order_release(u32 *word, int tile)
{
    bulk_wait_release(word, tile + 1);
}

#endif

/* SPDX-License-Identifier: MIT */
/* Copies of 16 bytes of a capture's rows to shared memory, for the tiles of elements of Hopper's kernels. */
#ifndef ATTUNE_CUDA_CAPTURE_COPIES_CUH
#define ATTUNE_CUDA_CAPTURE_COPIES_CUH

#include "common.cuh"

/* The bytes of an element, and the elements of a copy. */
constexpr int CAPTURE_WIDTH = config::SCORE_TILE ? (int)config::SCORE_TILE : 16, COPY_ELEMENTS = 16 / CAPTURE_WIDTH;

/* A row's address and elements, from the lane that has them. */
__device__ __forceinline__ attune_capture_row row_of_lane(u64 address, int count, int lane)
{
    u32 low = __shfl_sync(0xffffffffu, (u32)address, lane), high = __shfl_sync(0xffffffffu, (u32)(address >> 32), lane);
    return {(u64)high << 32 | low, __shfl_sync(0xffffffffu, count, lane)};
}

/* 16 bytes of a row that is not aligned, from element `first`. */
__device__ __forceinline__ void copy_elements(u32 to, u64 address, int first, int count, long long stride)
{
    u32 w[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < COPY_ELEMENTS; i++) {
        u64 from = address + (first + i) * stride;
        bool there = first + i < count;
        u32 bits = CAPTURE_WIDTH == 2 ? load_element_16(from, there) : load_element_32(from, there);
        w[i * CAPTURE_WIDTH / 4] |= bits << i * CAPTURE_WIDTH % 4 * 8;
    }
    store_shared_4(to, w[0], w[1], w[2], w[3]);
}

/* 16 bytes of a row of `count` elements that is aligned. */
__device__ __forceinline__ void copy_chunk(u32 to, u64 address, int first, int count)
{
    copy_async_some(to, (const void *)(address + (u64)((long long)first * CAPTURE_WIDTH)),
                    (u32)(min(max(count - first, 0), COPY_ELEMENTS) * CAPTURE_WIDTH));
}

#endif

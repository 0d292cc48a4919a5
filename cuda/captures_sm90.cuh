/* SPDX-License-Identifier: MIT */
/*
 * Tiles of a capture in Hopper's forward kernel: the elements that the pairs of a tile read. In wgmma's layout a
 * consumer warp has 16 rows of a tile, whose elements it alone reads. It copies them to shared memory itself, one tile
 * of keys ahead, so that a wait for its own cp.async and __syncwarp are all the order that they need.
 */
#ifndef ATTUNE_CUDA_CAPTURES_SM90_CUH
#define ATTUNE_CUDA_CAPTURES_SM90_CUH

#include "capture_copies.cuh"
#include "layout_forward_sm90.cuh"

/* Copies of 16 bytes for a row: as many lanes as divide them are in a row at a time. */
constexpr int ROW_COPIES = BLOCK_N * CAPTURE_WIDTH / 16, ROW_DIVISOR = ROW_COPIES & -ROW_COPIES;
constexpr int ROW_LANES = ROW_DIVISOR < 32 ? ROW_DIVISOR : 32, ROWS_AT_ONCE = 32 / ROW_LANES;
constexpr int WARP_ROWS = 16;

/* A warp's rows of a query tile. They are even if their addresses are `step` apart for each ROWS_AT_ONCE rows, begin at
 * multiples of 16 bytes, and have as many elements: the address is that of the lane's first row then, and else that of
 * row lane % 16. */
struct capture_rows {
    u64 address;
    long long step;
    int count;
    bool even;
};

/* The warp's first row of a tile. */
__device__ __forceinline__ int first_row_of_warp()
{
    return ((int)threadIdx.x - 128) / 32 * WARP_ROWS;
}

__device__ __forceinline__ void find_capture_rows(capture_rows &t, const attune_cuda_arguments &a, const tile_coord &p)
{
    int lane = (int)threadIdx.x % 32, q = p.q + first_row_of_warp() + lane % WARP_ROWS;
    attune_capture_row own = attune_score_tile_row(p.b, p.h, q, p.h_kv, a.q_len, a.kv_len, a.score_symbols);
    attune_capture_row first = row_of_lane(own.address, own.count, 0);
    long long stride = (long long)(row_of_lane(own.address, own.count, 1).address - first.address);
    t.address = first.address + (u64)(lane % WARP_ROWS * stride);
    t.count = own.count;
    t.even = __all_sync(0xffffffffu, own.address == t.address && own.count == first.count) &&
             attune_score_tile_aligned(a.score_symbols);
    t.step = stride * ROWS_AT_ONCE;
    t.address = t.even ? first.address + (u64)(lane / ROW_LANES * stride) : own.address;
}

/* The address in shared memory of a tile's row. r: the tile's stage of K; if K has only one, tiles alternate. */
__device__ __forceinline__ u32 capture_row_at(unsigned char *memory, const pipeline_state &r, int row)
{
    u32 stage = STAGES == 1 ? r.phase : r.stage;
    return shared_address(memory) + forward::CAPTURE_TILES_OFFSET + sizeof(capture_tiles_control) +
           stage * forward::CAPTURE_STAGE + (u32)row * forward::CAPTURE_PITCH;
}

/* Begins the copies of the tile whose first key is kv, or none if that is -1, as a group of cp.async: 16 bytes a lane
 * at a time. Elements out of range are 0. r: the tile's stage of K. */
__device__ __forceinline__ void copy_capture_tile(const capture_rows &t, const attune_cuda_arguments &a,
                                                  unsigned char *memory, int kv, const pipeline_state &r)
{
    constexpr int STEPS = WARP_ROWS / ROWS_AT_ONCE, CHUNKS = ROW_COPIES / ROW_LANES;
    constexpr u32 STEP_PITCH = ROWS_AT_ONCE * forward::CAPTURE_PITCH;
    __syncwarp();
    if (kv >= 0) {
        int lane = (int)threadIdx.x % 32, first = kv + lane % ROW_LANES * COPY_ELEMENTS;
        u32 to = capture_row_at(memory, r, first_row_of_warp() + lane / ROW_LANES);
        u32 own = (u32)(lane % ROW_LANES * 16) ^ capture_swizzle((u32)(lane / ROW_LANES));
        u64 from = t.address;
        if (t.even && t.count >= kv + BLOCK_N) {
            from += (u64)((long long)first * CAPTURE_WIDTH);
#pragma unroll
            for (int j = 0; j < STEPS; j++, from += (u64)t.step)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++)
                    copy_async(to + j * STEP_PITCH + k * ROW_LANES * 16 + (own ^ capture_swizzle(j * ROWS_AT_ONCE)),
                               (const void *)(from + k * ROW_LANES * 16), true);
        } else if (t.even) {
#pragma unroll 1
            for (int j = 0; j < STEPS; j++, from += (u64)t.step, to += STEP_PITCH)
#pragma unroll
                for (int k = 0; k < CHUNKS; k++)
                    copy_chunk(to + k * ROW_LANES * 16 + (own ^ capture_swizzle(j * ROWS_AT_ONCE)), from,
                               first + k * ROW_LANES * COPY_ELEMENTS, t.count);
        } else {
            long long stride = attune_score_tile_stride(a.score_symbols);
            bool aligned = attune_score_tile_aligned(a.score_symbols);
#pragma unroll 1
            for (int j = 0; j < WARP_ROWS; j += ROWS_AT_ONCE, to += STEP_PITCH) {
                attune_capture_row row = row_of_lane(t.address, t.count, j + lane / ROW_LANES);
                u32 at = to + (own ^ capture_swizzle(j));
#pragma unroll 1
                for (int k = 0; k < CHUNKS; k++)
                    if (aligned)
                        copy_chunk(at + k * ROW_LANES * 16, row.address, first + k * ROW_LANES * COPY_ELEMENTS,
                                   row.count);
                    else
                        copy_elements(at + k * ROW_LANES * 16, row.address, first + k * ROW_LANES * COPY_ELEMENTS,
                                      row.count, stride);
            }
        }
    }
    copy_commit();
}

/* Likewise of the tile after the one whose stage of K is k, which is full. */
__device__ __forceinline__ void copy_next_capture_tile(const capture_rows &t, const attune_cuda_arguments &a,
                                                       control &c, unsigned char *memory, const pipeline_state &k)
{
    pipeline_state next = k;
    advance(next);
    copy_capture_tile(t, a, memory, captures_of(c).next[k.stage], next);
}

/* Begins the copies of a query tile's second tile of keys, and unless `begun` those of its first one. k: the first
 * one's stage of K, which is full. */
__device__ __forceinline__ void begin_capture_tiles(capture_rows &t, const attune_cuda_arguments &a, control &c,
                                                    unsigned char *memory, const tile_coord &p, const pipeline_state &k,
                                                    bool begun)
{
    pipeline_state to = k;
    if (!begun)
        find_capture_rows(t, a, p);
    else
        advance(to);
#pragma unroll 1
    for (int i = begun; i < 2; i++, advance(to))
        copy_capture_tile(t, a, memory, i ? captures_of(c).next[k.stage] : c.key_tiles[k.stage].index, to);
}

/* Waits for the elements of the tile's pairs, and returns the address of the thread's first but for its swizzle, in
 * `row` of the tile. The copies of the next tile may be on their way. r: the tile's stage. */
__device__ __forceinline__ u32 wait_capture_tile(unsigned char *memory, int row, const pipeline_state &r)
{
    if (!config::SCORE_TILE)
        return 0;
    copy_wait<1>();
    __syncwarp();
    return capture_row_at(memory, r, row) + (u32)forward::first_column() * config::SCORE_TILE;
}

#endif

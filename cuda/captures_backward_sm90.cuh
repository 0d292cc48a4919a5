/* SPDX-License-Identifier: MIT */
/*
 * Tiles of a capture in Hopper's backward kernel for head dimensions up to 128: the elements that the pairs of a tile
 * read. S is transposed, so that a consumer warp has 16 keys of all rows of a tile, whose elements it alone reads. It
 * copies those of the next tile of rows into the same place after consumers_sync, before which all lanes have read the
 * present one's. Before it reads them, a wait for its own cp.async and __syncwarp are all the order that they need.
 */
#ifndef ATTUNE_CUDA_CAPTURES_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_CAPTURES_BACKWARD_SM90_CUH

#include "capture_copies.cuh"
#include "layout_backward_sm90.cuh"

/*
 * A warp's elements are [BLOCK_M][16], in an order in which a warp reads one of each of four rows' eight keys from
 * different banks: elements of 4 bytes have rows 4 to 7 of eight exchanged in pairs, and halves of a row exchanged in
 * every other pair of rows; those of 2 bytes have halves of a row exchanged in rows 4 to 7.
 */
constexpr int WARP_KEYS = 16, ELEMENT_PITCH = WARP_KEYS * CAPTURE_WIDTH;

static_assert(!config::SCORE_TILE || BLOCK_M == 64, "a lane finds two rows of a tile");

/* The warp's elements. */
__device__ __forceinline__ u32 capture_tile_at(u32 memory)
{
    return memory + backward::CAPTURE_TILE_OFFSET +
           (u32)(thread_index() / 32 - backward::FIRST_WARP) * (BLOCK_M * ELEMENT_PITCH);
}

/* Begins the copies of a tile of rows, whose warp has the keys from kv on, as a group of cp.async. Elements out of
 * range are 0. */
__device__ __forceinline__ void copy_capture_tile(const attune_cuda_arguments &a, const tile_desc &desc, int kv,
                                                  u32 memory)
{
    constexpr int ROW_LANES = ELEMENT_PITCH / 16, ROWS_AT_ONCE = 32 / ROW_LANES;
    int lane = thread_index() % 32, own = lane / ROW_LANES, first = kv + lane % ROW_LANES * COPY_ELEMENTS;
    int exchanged = CAPTURE_WIDTH == 4 ? own / 4 % 2 : 0, half = (CAPTURE_WIDTH == 4 ? own / 2 : own / 4) % 2;
    u32 to = capture_tile_at(memory) + (u32)((own ^ exchanged) * ELEMENT_PITCH) +
             (u32)(lane % ROW_LANES * 16 ^ half * (ELEMENT_PITCH / 2));
    attune_capture_row rows[BLOCK_M / 32];
#pragma unroll
    for (int i = 0; i < BLOCK_M / 32; i++)
        rows[i] = attune_score_tile_row(desc.b, desc.h, desc.q + i * 32 + lane, desc.h / (a.heads / a.kv_heads),
                                        a.q_len, a.kv_len, a.score_symbols);
    if (attune_score_tile_aligned(a.score_symbols)) {
#pragma unroll
        for (int row = 0; row < BLOCK_M; row += ROWS_AT_ONCE) {
            const attune_capture_row &of = rows[row / 32];
            attune_capture_row from = row_of_lane(of.address, of.count, row % 32 + own);
            copy_chunk(to + row * ELEMENT_PITCH, from.address, first, from.count);
        }
    } else {
        long long stride = attune_score_tile_stride(a.score_symbols);
#pragma unroll 1
        for (int row = 0; row < BLOCK_M; row += ROWS_AT_ONCE) {
            const attune_capture_row &of = row < 32 ? rows[0] : rows[BLOCK_M / 32 - 1];
            attune_capture_row from = row_of_lane(of.address, of.count, row % 32 + own);
            copy_elements(to + row * ELEMENT_PITCH, from.address, first, from.count, stride);
        }
    }
    copy_commit();
}

/* Waits for the elements, and returns the address of those of the thread's rows from row `first` of the tile on. */
__device__ __forceinline__ u32 wait_capture_tile(u32 memory, int first)
{
    if (!config::SCORE_TILE)
        return 0;
    int lane = thread_index() % 32, pair = lane % 4, half = CAPTURE_WIDTH == 4 ? pair % 2 : pair / 2;
    copy_wait<0>();
    __syncwarp();
    int exchanged = CAPTURE_WIDTH == 4 ? pair / 2 : 0;
    return capture_tile_at(memory) + (u32)((first + pair * 2 + exchanged) * ELEMENT_PITCH + half * (ELEMENT_PITCH / 2) +
                                           lane / 4 * CAPTURE_WIDTH);
}

/* The bits of the element of the thread's score i. elements: what wait_capture_tile returned. */
__device__ __forceinline__ u32 capture_element(u32 elements, int i)
{
    u32 at = (elements ^ (u32)(i % 2 * ELEMENT_PITCH) ^ (u32)(i / 2 % 2 * (ELEMENT_PITCH / 2))) +
             (u32)(i / 4 * 8 * ELEMENT_PITCH);
    u32 word;
    load_shared(word, at & ~3u);
    return CAPTURE_WIDTH == 2 ? word >> at % 4 * 8 & 0xffffu : word;
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * How tiles come into shared memory in the backward kernels on mma.sync: what a CTA owns once, the tiles of the
 * other side by copies that are under way while it works. The walk over them and what it found stand in shared memory
 * too, written by the first thread: registers are for the sums. The kernel that includes this defines ROLES.
 */
#ifndef ATTUNE_CUDA_FEED_BACKWARD_SM80_CUH
#define ATTUNE_CUDA_FEED_BACKWARD_SM80_CUH

#include "backward.cuh"
#include "pairs.cuh"

constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;
constexpr int NOTES = AHEAD > 5 ? 16 : AHEAD > 1 ? 8 : 4; /* a power of two, of at least AHEAD + 3 */
constexpr u32 WALK_BYTES = 256, NOTE_BYTES = round_up(NOTES * 16, 128);
constexpr u32 OTHER_BYTES = OTHER * (PAD_D + PAD_DV) * sizeof(element), ROW_BYTES = DK_DV ? OTHER * 8 : 0;
constexpr u32 SECOND = OTHER * PAD_D * sizeof(element); /* where V or dO stands behind K or Q */

/* What a CTA owns, and its walk, which its first thread walks. */
#if ATTUNE_DK_DV
struct feed {
    int recomputed; /* first: feed_careful */
    column c;
    column_iterator w;
};

__device__ __forceinline__ void feed_find(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    f.c = column_place(a, back, (int)blockIdx.x, ROLES);
}

__device__ __forceinline__ void feed_begin(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    column_begin(f.w, a, back, f.c);
}

__device__ __forceinline__ other feed_take(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    rows r = column_take(f.w, a, back, f.c);
    return {r.b, r.h, f.c.h_kv, r.q, r.full};
}

__device__ __forceinline__ spot feed_place(const feed &f)
{
    return {uniform(f.c.b), uniform(f.c.h_kv), uniform(f.c.h_kv), uniform(f.c.kv), 0};
}
#else
struct feed {
    int recomputed;
    tile_coord p;
    block_iterator w;
};

__device__ __forceinline__ void feed_find(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    f.p = tile_coord_of(a, (int)blockIdx.x);
}

__device__ __forceinline__ void feed_begin(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    block_iterator_begin(f.w, a, f.p);
}

__device__ __forceinline__ other feed_take(feed &f, const attune_cuda_arguments &a, const attune_cuda_backward &back)
{
    keys k = block_iterator_next(f.w, a);
    return {f.p.b, f.p.h, f.p.h_kv, k.kv, k.full};
}

__device__ __forceinline__ spot feed_place(const feed &f)
{
    return {uniform(f.p.b), uniform(f.p.h), uniform(f.p.h_kv), uniform(f.p.q), 0};
}
#endif
static_assert(sizeof(feed) <= WALK_BYTES);

/* Notes the next tile; by the first thread alone. */
__device__ __forceinline__ void feed_note(unsigned char *walk, int index, const attune_cuda_arguments &a,
                                          const attune_cuda_backward &back)
{
    other t = feed_take(*(feed *)walk, a, back);
    *(int4 *)(walk + WALK_BYTES + index % NOTES * 16) = make_int4(t.b, t.h, t.first, t.h_kv * 2 + t.full);
}

__device__ __forceinline__ other noted(const unsigned char *walk, int index)
{
    int b, h, first, rest;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b), "=r"(h), "=r"(first), "=r"(rest)
                 : "r"(shared_address(walk) + WALK_BYTES + (u32)(index % NOTES) * 16));
    return {b, h, rest >> 1, first, (bool)(rest & 1)};
}

/* Whether the CTA has started over. */
__device__ __forceinline__ bool feed_careful(const unsigned char *walk)
{
    int recomputed;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(recomputed) : "r"(shared_address(walk)));
    return recomputed;
}

template <int ROWS, int DIM, int CHUNKS>
__device__ __forceinline__ void load_rows(u32 to, const attune_cuda_view &x, int b, int h, int first, int limit)
{
    load_tile<ROWS, DIM, CHUNKS>(to, (const element *)x.address + b * x.batch + h * x.head, x.row, first, limit,
                                 view_aligned(x));
}

template <int ROWS>
__device__ __forceinline__ void load_both(u32 to, const attune_cuda_view &x, const attune_cuda_view &y, int b, int h,
                                          int first, int limit)
{
    load_rows<ROWS, HEAD_DIM, CHUNKS_D>(to, x, b, h, first, limit);
    load_rows<ROWS, HEAD_DIM_V, CHUNKS_DV>(to + (u32)(ROWS * PAD_D * sizeof(element)), y, b, h, first, limit);
}

__device__ __forceinline__ void copy_float(u32 to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

/* With keys of one's own: the rows' lse and delta. */
__device__ __forceinline__ void load_row_data(u32 to, const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                              const other &t)
{
    i64 row = ((i64)t.b * a.heads + t.h) * back.row_stride + t.first;
    for (int i = thread_index_remat(); i < OTHER; i += THREADS) {
        copy_float(to + (u32)i * 4, (const float *)back.lse + row + i);
        copy_float(to + (u32)(OTHER + i) * 4, (const float *)back.delta + row + i);
    }
}

/* 1, 2: a tile of the other side, as one group of copies; with keys of one's own the rows' lse and delta too. */
__device__ __forceinline__ void load_other(u32 to, u32 row_data, const attune_cuda_arguments &a,
                                           const attune_cuda_backward &back, const other &t)
{
    if (t.first >= 0) {
        if constexpr (DK_DV) {
            load_both<OTHER>(to, a.q, back.d_o, t.b, t.h, t.first, a.q_len);
            load_row_data(row_data, a, back, t);
        } else
            load_both<OTHER>(to, a.k, a.v, t.b, t.h_kv, t.first, a.kv_len);
    }
    copy_commit();
}

/* What the walk names first. By one thread. */
__device__ __forceinline__ void feed_first(unsigned char *walk, const attune_cuda_arguments &a,
                                           const attune_cuda_backward &back)
{
    feed_begin(*(feed *)walk, a, back);
#pragma unroll 1
    for (int i = 0; i <= AHEAD + 1; i++)
        feed_note(walk, i, a, back);
}

/* Until a tile is there; then the one to come is begun in the stage that is free, and the walk goes on. */
__device__ __forceinline__ void feed_wait(unsigned char *walk, int index, u32 stage, u32 others, u32 row_data,
                                          const attune_cuda_arguments &a, const attune_cuda_backward &back,
                                          const other &next)
{
    copy_wait<AHEAD - 1>();
    __syncthreads();
    if constexpr (STAGES > 1) {
        u32 free = stage == 0 ? STAGES - 1 : stage - 1;
        load_other(others + free * OTHER_BYTES, row_data + free * ROW_BYTES, a, back, next);
    }
    if (threadIdx.x == 0)
        feed_note(walk, index + AHEAD + 2, a, back);
}

#endif

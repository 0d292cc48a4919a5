/* SPDX-License-Identifier: MIT */
/*
 * dQ of the backward kernels with TMA: scaled and rounded from its sums within the kernel, while other heads are
 * computed.
 *
 * A plane is one head of K and V, with the heads of Q that attend to it. Its word in plane_counts counts what has been
 * added to its sums; it is complete once every tile of keys has been. Tickets number the parts of dQ, in the order in
 * which planes are begun. A warp takes a ticket, waits until the ticket's plane is complete, and converts it.
 *
 * Idle warps of the producer, if there are any, convert while the consumers compute; the consumers convert once no
 * tiles of keys are left, so that the last planes are converted by all. Nobody waits for a conversion. A warp of the
 * producer that waits does not delay its CTA, and a consumer waits only after all tiles of keys have been taken, by
 * CTAs that run already, since every tile comes from the counter. So all planes become complete, whether or not all
 * CTAs are resident.
 */
#ifndef ATTUNE_CUDA_DQ_BACKWARD_SM90_CUH
#define ATTUNE_CUDA_DQ_BACKWARD_SM90_CUH

#include "layout_backward_sm90.cuh"

/* By pairs of CTAs on sm_100a a CTA has half of a tile's rows: [CTA][DQ_WIDTH / 4][half of the columns][64][4]. The
 * preprocessor leaves Hopper without these lines: even a constant that it does not use changes its code. */
#ifdef ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH
constexpr bool DQ_FOLDED = backward::PAIRED;
constexpr int PLANE_SHARES = backward::CTAS; /* the counts of a tile of keys: one for each CTA */
#else
/* The counts of a tile of keys: one for each warp group of which a thread adds its fragments, or for each warp. */
constexpr int PLANE_SHARES = backward::DQ_GROUPS * (backward::DQ_ATOMIC ? 4 : 1) * config::CLUSTER;
#endif

/* One share of a tile of keys is in the sums. The split of a tail tile counts as such; other tiles as all splits. */
__device__ __forceinline__ void count_key_tile(const attune_cuda_arguments &a, const attune_cuda_backward &g, int tile)
{
    key_tile at = key_tile_of(a, g, tile);
    u32 splits = backward::SPLIT_TAIL && tile < g.full_wave_tiles ? (u32)g.tail_splits : 1;
    add_release((u32 *)g.plane_counts + at.b * a.kv_heads + at.h_kv, splits);
}

/* After the calling warp's own additions to a tile of keys. */
__device__ __forceinline__ void count_warp_additions(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                     int tile)
{
    if constexpr (backward::ROUND_DQ && backward::DQ_ATOMIC) {
        __threadfence();
        __syncwarp();
        if (thread_index() % 32 == 0)
            count_key_tile(a, g, tile);
    }
}

/* After the calling thread's bulk additions to a tile of keys. */
__device__ __forceinline__ void count_bulk_additions(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                     int tile)
{
    if constexpr (backward::ROUND_DQ) {
        bulk_wait();
        fence_async_global();
        count_key_tile(a, g, tile);
    }
}

/* A transposition of 4 x 4 words by each four lanes. */
__device__ __forceinline__ void transpose_words(u32 (&x)[4], int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 other = __shfl_xor_sync(0xffffffffu, lane & 1 ? x[i] : x[i + 1], 1);
        x[i] = lane & 1 ? other : x[i];
        x[i + 1] = lane & 1 ? x[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 other = __shfl_xor_sync(0xffffffffu, lane & 2 ? x[i] : x[i + 2], 2);
        x[i] = lane & 2 ? other : x[i];
        x[i + 2] = lane & 2 ? x[i + 2] : other;
    }
}

/* Eight columns of a row, from d on. */
__device__ __forceinline__ void store_dq_words(o_element *to, const u32 (&x)[4], int d, bool vector)
{
    if (vector && d + 8 <= HEAD_DIM) {
        *(uint4 *)to = make_uint4(x[0], x[1], x[2], x[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (d + i < HEAD_DIM)
            to[i] = (o_element)(x[i / 2] >> i % 2 * 16);
}

/* Parts of a tile of rows: the fragments of one warp of each consumer warp group. */
constexpr int DQ_PARTS = 4;

/* In f32: what the thread has of a fragment of 8 columns, or of 8 rows, which fills 32 bytes of a row without an
 * exchange; or four columns that it has. row, d: of the first value. One address at a time: the warps of the producer
 * have few registers. */
__device__ __forceinline__ void store_fragment(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                               const float4 &x, o_element *to, int row, int d)
{
    constexpr bool THREAD_ROWS = backward::DQ_THREAD_ROWS, BY_ROWS = backward::DQ_TRANSPOSED;
    constexpr int ROWS = THREAD_ROWS ? 1 : 2, EACH = 4 / ROWS; /* rows that it has values of, and these */
    const float values[4] = {x.x, x.y, x.z, x.w};
    to += row * g.d_q.row + d;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        make_opaque(to);
        if (row < a.q_len)
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                int along = !THREAD_ROWS && BY_ROWS ? i * 8 : i;
                if (d + along < HEAD_DIM)
                    store_output(to + along, values[!THREAD_ROWS && BY_ROWS ? i * 2 + r : r * 2 + i] * a.scale);
            }
        int step = BY_ROWS ? 1 : 8; /* to the other row */
        to += step * g.d_q.row;
        row += step;
    }
}

/* A step: from two fragments of 8 columns the lane's 8 columns of a row, whose words four lanes exchange; or the 8
 * columns that the thread has. */
__device__ __forceinline__ void round_fragments(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                                const float4 &x, const float4 &y, o_element *to, int row, int d)
{
    u32 words[4];
    float nan_if_non_finite = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 &z = i ? y : x;
        words[i * 2] = pack(z.x * a.scale, z.y * a.scale);
        words[i * 2 + 1] = pack(z.z * a.scale, z.w * a.scale);
        nan_if_non_finite = __fmaf_rn(z.x, 0.0f, __fmaf_rn(z.y, 0.0f, nan_if_non_finite));
        nan_if_non_finite = __fmaf_rn(z.z, 0.0f, __fmaf_rn(z.w, 0.0f, nan_if_non_finite));
    }
    if (nan_if_non_finite != 0.0f)
        *(volatile int *)g.redo = 1;
    if constexpr (backward::DQ_TRANSPOSED)
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = transpose_matrix(words[i]);
    if constexpr (!backward::DQ_THREAD_ROWS)
        transpose_words(words, thread_index_remat() % 32);
    if (row < a.q_len && d < HEAD_DIM)
        store_dq_words(to + row * g.d_q.row + d, words, d, view_aligned<o_element>(g.d_q));
}

/* 16 rows from sums of which a lane has four rows of a column: four lanes exchange them for four columns of a row. */
__device__ __forceinline__ void round_columns(const attune_cuda_arguments &a, const attune_cuda_backward &g,
                                              const float4 *from, o_element *out, int row)
{
    int lane = thread_index_remat() % 32;
    row += lane % 4;
    bool vector = view_aligned<o_element>(g.d_q);
#pragma unroll 1
    for (int i = 0; i < 4; i++, row += 4)
#pragma unroll 1
        for (int d = lane / 4 * 4; d < backward::DQ_WIDTH; d += 32, from += 32) {
            float4 x = __ldcg(from);
            u32 words[4] = {__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)};
            float y[4], nan_if_non_finite = 0.0f;
            transpose_words(words, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                y[j] = __uint_as_float(words[j]);
                nan_if_non_finite = __fmaf_rn(y[j], 0.0f, nan_if_non_finite);
                y[j] *= a.scale;
            }
            if (nan_if_non_finite != 0.0f)
                *(volatile int *)g.redo = 1;
            if (row >= a.q_len || d >= HEAD_DIM)
                continue;
            o_element *to = out + row * g.d_q.row + d;
            if (vector && d + 4 <= HEAD_DIM) {
                if constexpr (O_FLOAT32)
                    *(float4 *)to = make_float4(y[0], y[1], y[2], y[3]);
                else
                    *(uint2 *)to = make_uint2(pack(y[0], y[1]), pack(y[2], y[3]));
                continue;
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (d + j < HEAD_DIM)
                    store_output(to + j, y[j]);
        }
}

/* 10: scale and round dQ. MOST: steps whose loads are in flight together. The warps of the producer have few registers:
 * what follows from the arguments is computed again for each part. */
template <int MOST>
__device__ __forceinline__ void round_dq(const attune_cuda_arguments &a, const attune_cuda_backward &g)
{
    constexpr int COLUMNS = backward::DQ_THREAD_ROWS ? 8 : 16; /* of a step */
    constexpr int STEPS = backward::DQ_WIDTH / COLUMNS;        /* of a warp group */
    constexpr int MANY = STEPS % MOST ? 1 : MOST;
    constexpr bool BY_ROWS = backward::DQ_TRANSPOSED; /* steps advance along the rows, else along the columns */
    for (;;) {
        int ticket = 0, *counter = (int *)a.counter;
        make_opaque(counter);
        if (thread_index_remat() % 32 == 0)
            ticket = atomicAdd(counter + 1, 1);
        ticket = __shfl_sync(0xffffffffu, ticket, 0);
        int tiles = (known_here(a.q_len) + BLOCK_M - 1) / BLOCK_M, tile = ticket / DQ_PARTS, part = ticket % DQ_PARTS;
        if (tile >= known_here(a.batch) * a.heads * tiles)
            break;
        int head = tile / tiles, row = (tile - head * tiles) * BLOCK_M;
        int group = known_here(a.heads) / a.kv_heads;
        int heads_of_plane = group * (known_here(g.kv_batch) == 1 ? a.batch : 1), plane = head / heads_of_plane;
        head -= plane * heads_of_plane;
        int b = plane / a.kv_heads, h = (plane - b * a.kv_heads) * group + head % group;
        b += head / group;
        u32 complete = (u32)key_tiles_per_head(a) * PLANE_SHARES * (u32)(backward::SPLIT_TAIL ? g.tail_splits : 1);
        const u32 *count = (const u32 *)g.plane_counts + plane;
        while (load_relaxed(count) != complete) /* an acquire would drop the L1 cache's lines each time */
            __nanosleep(200);
        load_acquire(count);
        int lane = thread_index_remat() % 32;
        const float4 *from = (const float4 *)dq_sums_of(g, workspace_row(a, g, b, h, row), 0) + lane;
        o_element *out = (o_element *)g.d_q.address + b * g.d_q.batch + h * g.d_q.head;
        if constexpr (backward::DQ_THREAD_COLUMNS) {
            round_columns(a, g, from + part * (4 * backward::DQ_WIDTH), out, row + part * 16);
            continue;
        }
#ifdef ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH
        from += DQ_FOLDED ? part / 2 * (STEPS * 256) + part % 2 * 32 : part * 32;
#else
        from += part * 32;
#endif
        make_opaque(from);
        /* The lane's columns after the exchange: fragment lane % 4 / 2 of the two, half lane % 2 of the warp's 16. In
         * f32, without one: the first value of its fragments. */
        row += backward::DQ_THREAD_ROWS ? part * 32 + lane
               : O_FLOAT32              ? (BY_ROWS ? lane % 4 * 2 : part * 16 + lane / 4)
                                        : lane / 4 + (BY_ROWS ? lane % 4 / 2 * 8 : part * 16 + lane % 2 * 8);
        int d = backward::DQ_THREAD_ROWS ? 0
                : O_FLOAT32              ? (BY_ROWS ? part * 16 + lane / 4 : lane % 4 * 2)
                : BY_ROWS                ? part * 16 + lane % 2 * 8
                                         : lane % 4 / 2 * 8;
        make_opaque(out);
#pragma unroll 1
        for (int step = 0; step < backward::DQ_GROUPS * STEPS; step += MANY) {
            constexpr int TOGETHER = O_FLOAT32 && MOST == 1 ? 1 : MANY * 2; /* fragments */
#pragma unroll(O_FLOAT32 ? 1 : 2)
            for (int first = 0; first < MANY * 2; first += TOGETHER) {
                float4 x[TOGETHER];
                float nan_if_non_finite = 0.0f;
#pragma unroll
                for (int i = 0; i < TOGETHER; i++)
                    x[i] = __ldcg(from + (first + i) * 128);
                if constexpr (O_FLOAT32) {
#pragma unroll
                    for (int i = 0; i < TOGETHER; i++) {
                        nan_if_non_finite = __fmaf_rn(x[i].x, 0.0f, __fmaf_rn(x[i].y, 0.0f, nan_if_non_finite));
                        nan_if_non_finite = __fmaf_rn(x[i].z, 0.0f, __fmaf_rn(x[i].w, 0.0f, nan_if_non_finite));
                        store_fragment(a, g, x[i], out, row + (BY_ROWS ? (first + i) * 8 : 0),
                                       d + (BY_ROWS ? 0 : (first + i) * (COLUMNS / 2)));
                    }
                    if (nan_if_non_finite != 0.0f)
                        *(volatile int *)g.redo = 1;
                } else {
#pragma unroll
                    for (int i = 0; i < MANY; i++)
                        round_fragments(a, g, x[i * 2], x[i * 2 + 1], out, row + (BY_ROWS ? i * 16 : 0),
                                        d + (BY_ROWS ? 0 : i * COLUMNS));
                }
            }
            from += MANY * 256;
            row += BY_ROWS ? MANY * 16 : 0;
            d += BY_ROWS ? 0 : MANY * COLUMNS;
#ifdef ATTUNE_CUDA_CONFIG_BACKWARD_SM100_CUH
            if (DQ_FOLDED && step + MANY == STEPS) /* the other half of the columns */
                from += 64 - STEPS * 256;
#endif
            if (step + MANY == STEPS && BY_ROWS) { /* the other warp group's part */
                row -= STEPS * 16;
                d += 64;
            } else if (step + MANY == STEPS && backward::DQ_SPLIT_ROWS) {
                row += 64;
                d -= STEPS * 16;
            }
        }
    }
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Backward attention without matrix units. Two kernels from one text: a workgroup computes the gradients of one outer
 * tile and loops over the inner tiles that the mask lists. With KEYS the outer tile has keys, the inner ones the
 * queries of every head that reads them, and the results are dK and dV. Without, the outer tile has queries, the inner
 * ones keys, and the results are dQ and the capture gradients. Both kernels recompute P and dS, so that each gradient
 * is written by one workgroup alone and does not depend on the order of workgroups. The stages are numbered as in
 * docs/algorithm.md.
 *
 * With A, B the rows of q and k (KEYS: of k and q) and A2, B2 those of dO and v (v and dO), S = A B^T and dP = A2 B2^T
 * stay in registers of a grid of TY x TX invocations, each with TM rows (ty + TY i) and four columns (4 tx + j).
 * Weights then go through shared memory: X += dS B and, with KEYS, Y += P B2, with TO groups of four columns (4 (tx +
 * TX t)) each. In shared memory inner row 4 tx + j is row TX j + tx, so that neighbouring invocations read neighbouring
 * rows.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "arguments.glsl"
#include "elements.glsl"
#include "gradient.glsl"

layout(local_size_x_id = ATTUNE_VULKAN_THREADS_ID) in;

#include "layout_backward.h"
#include "backward_tiles.glsl"

const uint SLICE_GROUPS = SLICE / 8u; /* of eight elements */

#ifdef SUBGROUPS
#define UNROLL_CHUNK [[unroll]]
#else
#define UNROLL_CHUNK [[dont_unroll]]
#endif

#ifdef KEYS
#define PRESCALE_A 1.0
#define PRESCALE_B prescale
#else
#define PRESCALE_A prescale
#define PRESCALE_B 1.0
#endif

/* An inner tile: its plane, first row and addresses; whether the mask's expression is evaluated. */
struct InnerTile {
    uint b, h, row0;
    bool is_partial;
    uvec2 b_plane, b2_plane;
};

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
OuterTile outer;
uint tid, tx, ty, inner_len;
uint side = 0u, chunk = 0u; /* offset of the half of slices in use; chunks so far */
uvec2 a_plane, a2_plane, a_stride, b_stride, a2_stride, b2_stride;
bool aligned;
float prescale, factor;
Group fetched[FETCH]; /* loads in flight */
vec4 p[TM], ds[TM];   /* S, then P; dP, then dS */
vec4 x[X_SIZE];       /* dK or dQ */
#ifdef KEYS
vec4 y[Y_SIZE]; /* dV */
#else
float lse[TM], delta[TM];
vec4 d_uniform = vec4(0.0); /* gradients of capture elements that all pairs read */
#endif

/*
 * While a slice or chunk is computed, the loads of the next one are in flight. It is stored to the other half of
 * `slices` after the arithmetic, so that one barrier for each step is enough.
 */
#define FETCH_SLICE(a_plane, a_stride, b_plane, b_stride, inner0, d0)                                                  \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < FETCH_A; f++) {                                                               \
            uint i = tid + f * THREADS, r = i / SLICE_GROUPS;                                                          \
            uvec2 at = address_step(a_plane, outer.row0 + r, a_stride);                                                \
            fetched[f] = fetch(address_add(at, (d0 + i % SLICE_GROUPS * 8u) * ELEMENT_BYTES), aligned,                 \
                               r < outer.rows);                                                                        \
        }                                                                                                              \
        [[unroll]] for (uint f = 0u; f < FETCH_B; f++) {                                                               \
            uint i = tid + f * THREADS, n = i / SLICE_GROUPS;                                                          \
            uvec2 at = address_step(b_plane, inner0 + n, b_stride);                                                    \
            fetched[FETCH_A + f] = fetch(address_add(at, (d0 + i % SLICE_GROUPS * 8u) * ELEMENT_BYTES), aligned,       \
                                         n < BLOCK_N && inner0 + n < inner_len);                                       \
        }                                                                                                              \
    }

#define STORE_SLICE(side, factor_a, factor_b)                                                                          \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < FETCH_A; f++) {                                                               \
            uint i = tid + f * THREADS, r = i / SLICE_GROUPS, to = side + r * SLICE_STRIDE + i % SLICE_GROUPS * 2u;    \
            vec4 low, high;                                                                                            \
            widen(fetched[f], low, high);                                                                              \
            if (r < BLOCK_M) {                                                                                         \
                slices[to] = low * factor_a;                                                                           \
                slices[to + 1u] = high * factor_a;                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        [[unroll]] for (uint f = 0u; f < FETCH_B; f++) {                                                               \
            uint i = tid + f * THREADS, n = i / SLICE_GROUPS;                                                          \
            uint to = side + (BLOCK_M + n % 4u * TX + n / 4u) * SLICE_STRIDE + i % SLICE_GROUPS * 2u;                  \
            vec4 low, high;                                                                                            \
            widen(fetched[FETCH_A + f], low, high);                                                                    \
            if (n < BLOCK_N) {                                                                                         \
                slices[to] = low * factor_b;                                                                           \
                slices[to + 1u] = high * factor_b;                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }

#define MULTIPLY_SLICE(to)                                                                                             \
    if (ty < BLOCK_M) {                                                                                                \
        uint a_at = side + ty * SLICE_STRIDE, b_at = side + (BLOCK_M + tx) * SLICE_STRIDE;                             \
        [[unroll]] for (uint d = 0u; d < SLICE / 4u; d++) {                                                            \
            vec4 b0 = slices[b_at + d], b1 = slices[b_at + TX * SLICE_STRIDE + d],                                     \
                 b2 = slices[b_at + 2u * TX * SLICE_STRIDE + d], b3 = slices[b_at + 3u * TX * SLICE_STRIDE + d];       \
            [[unroll]] for (uint i = 0u; i < TM; i++) {                                                                \
                vec4 a = slices[a_at + i * TY * SLICE_STRIDE + d];                                                     \
                to[i].x = fma(a.x, b0.x, fma(a.y, b0.y, fma(a.z, b0.z, fma(a.w, b0.w, to[i].x))));                     \
                to[i].y = fma(a.x, b1.x, fma(a.y, b1.y, fma(a.z, b1.z, fma(a.w, b1.w, to[i].y))));                     \
                to[i].z = fma(a.x, b2.x, fma(a.y, b2.y, fma(a.z, b2.z, fma(a.w, b2.w, to[i].z))));                     \
                to[i].w = fma(a.x, b3.x, fma(a.y, b3.y, fma(a.z, b3.z, fma(a.w, b3.w, to[i].w))));                     \
            }                                                                                                          \
        }                                                                                                              \
    }

#define FETCH_CHUNK(count, groups, b_plane, b_stride, inner0)                                                          \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < count; f++) {                                                                 \
            uint i = tid + f * THREADS, n = i / (groups);                                                              \
            uvec2 at = address_step(b_plane, inner0 + n, b_stride);                                                    \
            fetched[f] = fetch(address_add(at, (i % (groups)) * 8u * ELEMENT_BYTES), aligned,                          \
                               n < CHUNK && inner0 + n < inner_len);                                                   \
        }                                                                                                              \
    }

#define STORE_CHUNK(count, groups, row_size)                                                                           \
    [[unroll]] for (uint f = 0u; f < count; f++) {                                                                     \
        uint i = tid + f * THREADS, n = i / (groups), to = side + n * row_size + (i % (groups)) * 2u;                  \
        vec4 low, high;                                                                                                \
        widen(fetched[f], low, high);                                                                                  \
        if (is_non_finite(fetched[f]))                                                                                 \
            non_finite[chunk & 3u] = 1u;                                                                               \
        if (n < CHUNK) {                                                                                               \
            slices[to] = low;                                                                                          \
            slices[to + 1u] = high;                                                                                    \
        }                                                                                                              \
    }

/* The non-finite slow path skips weights of 0, since 0 times NaN or infinity is NaN. */
#define MULTIPLY_CHUNK(to, columns, row_size, size)                                                                    \
    if (tid == 0u)                                                                                                     \
        non_finite[chunk + 2u & 3u] = 0u;                                                                              \
    if (ty < BLOCK_M) {                                                                                                \
        if (non_finite[chunk & 3u] != 0u) {                                                                            \
            [[dont_unroll]] for (uint n = 0u; n < CHUNK; n++)                                                          \
                [[unroll]] for (uint t = 0u; t < columns; t++) {                                                       \
                    vec4 b = slices[side + n * row_size + min(tx + TX * t, size / 4u - 1u)];                           \
                    [[unroll]] for (uint i = 0u; i < TM; i++) {                                                        \
                        float w = s[(ty + TY * i) * S_STRIDE + (n0 + n) / 4u][n & 3u];                                 \
                        vec4 with = fma(vec4(w), b, to[i * columns + t]);                                              \
                        to[i * columns + t] = is_zero(w) ? to[i * columns + t] : with;                                 \
                    }                                                                                                  \
                }                                                                                                      \
        } else                                                                                                         \
            UNROLL_CHUNK for (uint n = 0u; n < CHUNK; n += 4u)                                                         \
            {                                                                                                          \
                vec4 w[TM];                                                                                            \
                [[unroll]] for (uint i = 0u; i < TM; i++)                                                              \
                    w[i] = s[(ty + TY * i) * S_STRIDE + (n0 + n) / 4u];                                                \
                [[unroll]] for (uint t = 0u; t < columns; t++) {                                                       \
                    uint at = side + n * row_size + min(tx + TX * t, size / 4u - 1u);                                  \
                    vec4 b0 = slices[at], b1 = slices[at + row_size], b2 = slices[at + 2u * row_size],                 \
                         b3 = slices[at + 3u * row_size];                                                              \
                    [[unroll]] for (uint i = 0u; i < TM; i++)                                                          \
                        to[i * columns + t] = fma(                                                                     \
                            w[i].xxxx, b0,                                                                             \
                            fma(w[i].yyyy, b1, fma(w[i].zzzz, b2, fma(w[i].wwww, b3, to[i * columns + t]))));          \
                }                                                                                                      \
            }                                                                                                          \
    }

#define STORE_WEIGHTS(from)                                                                                            \
    if (ty < BLOCK_M)                                                                                                  \
        [[unroll]] for (uint i = 0u; i < TM; i++)                                                                      \
            s[(ty + TY * i) * S_STRIDE + tx] = from[i];

/* Through shared memory, so that the code which narrows and stores exists once, not for each register. */
#define STORE_OUTPUT(tensor, from, columns, size, factor)                                                              \
    {                                                                                                                  \
        uvec2 out_plane = plane(tensor, outer.b, outer.h);                                                             \
        [[unroll]] for (uint t = 0u; t < columns; t++) {                                                               \
            barrier();                                                                                                 \
            if (ty < BLOCK_M)                                                                                          \
                [[unroll]] for (uint i = 0u; i < TM; i++)                                                              \
                    s[(ty + TY * i) * S_STRIDE + tx] = from[i * columns + t];                                          \
            barrier();                                                                                                 \
            [[dont_unroll]] for (uint i = tid; i < outer.rows * TX; i += THREADS) {                                    \
                uint r = i / TX, column = 4u * (i % TX + TX * t);                                                      \
                if (column < size)                                                                                     \
                    store4(O_TYPE,                                                                                     \
                           address_add(address_step(out_plane, outer.row0 + r, tensor.stride_row),                     \
                                       (column * bytes_of(O_TYPE))),                                                   \
                           out_aligned, s[r * S_STRIDE + i % TX] * factor);                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

/* 1, 2: load Q and K, a slice of them */
void load_qk(const in uvec2 b_plane, const in uint row0, const in uint d0)
{
    FETCH_SLICE(a_plane, a_stride, b_plane, b_stride, row0, d0)
}

void write_qk()
{
    STORE_SLICE(side, PRESCALE_A, PRESCALE_B)
}

/* Likewise dO and V. */
void load_dov(const in InnerTile tile, const in uint d0)
{
    FETCH_SLICE(a2_plane, a2_stride, tile.b2_plane, b2_stride, tile.row0, d0)
}

void write_dov()
{
    STORE_SLICE(side, 1.0, 1.0)
}

/* For stage 6, a chunk of Q or K (KEYS: Q), and of dO. */
void load_chunk_x(const in InnerTile tile, const in uint n0)
{
    FETCH_CHUNK(FETCH_X, HEAD_DIM / 8u, tile.b_plane, b_stride, tile.row0 + n0)
}

void write_chunk_x()
{
    STORE_CHUNK(FETCH_X, HEAD_DIM / 8u, X_STRIDE)
}

#ifdef KEYS
void load_chunk_y(const in InnerTile tile, const in uint n0)
{
    FETCH_CHUNK(FETCH_Y, HEAD_DIM_V / 8u, tile.b2_plane, b2_stride, tile.row0 + n0)
}

void write_chunk_y()
{
    STORE_CHUNK(FETCH_Y, HEAD_DIM_V / 8u, Y_STRIDE)
}
#endif

/* 3: S = Q K^T, a slice of the sum */
void compute_s()
{
    MULTIPLY_SLICE(p)
}

/* 3, of the backward pass: dP = dO V^T, likewise */
void compute_dp()
{
    MULTIPLY_SLICE(ds)
}

/* 4: score and mask; 5: P, and dS with respect to scale q k */
void apply_mods(const in InnerTile tile)
{
#ifdef KEYS
    vec4 column_lse, column_delta;
    [[unroll]] for (uint j = 0u; j < 4u; j++) {
        uint q = min(tile.row0 + 4u * tx + j, inner_len - 1u);
        column_lse[j] = load_lse(args.lse, tile.b, tile.h, q);
        column_delta[j] = load_delta(args, tile.b, tile.h, q);
    }
#endif
    uint allowed = 0xffffffffu; /* TM is at most 8 */
#ifndef KEYS
    /* For rows past the end: an infinite LSE does not zero a NaN score, and capture gradients sum over all rows. */
    if (CAPTURES)
        [[unroll]] for (uint i = 0u; i < TM; i++)
            allowed &= ty + TY * i < outer.rows ? ~0u : ~(15u << 4u * i);
#endif
    if (tile.row0 + BLOCK_N > inner_len)
        [[unroll]] for (uint j = 0u; j < 4u; j++)
            allowed &= tile.row0 + 4u * tx + j < inner_len ? ~0u : ~(0x11111111u << j);
    if (tile.is_partial && ty < BLOCK_M)
        /* A loop, so that the expression's code exists once. */
        [[dont_unroll]] for (uint e = 0u; e < 4u * TM; e++) {
            uint outer_row = outer.row0 + ty + TY * (e / 4u), row = tile.row0 + 4u * tx + e % 4u;
#ifdef KEYS
            bool may = attune_mask(int(tile.b), int(tile.h), int(row), int(outer_row), args.mask_mod);
#else
            bool may = attune_mask(int(tile.b), int(tile.h), int(outer_row), int(row), args.mask_mod);
#endif
            allowed &= may ? ~0u : ~(1u << e);
        }
    if (SCORE && ty < BLOCK_M) {
        vec4 to_p[TM], to_ds[TM];
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            to_p[i] = p[i] * factor;
            to_ds[i] = ds[i];
        }
        [[dont_unroll]] for (uint e = 0u; e < 4u * TM; e++) {
            uint i = e / 4u, j = e % 4u, outer_row = outer.row0 + ty + TY * i, row = tile.row0 + 4u * tx + j;
#ifdef KEYS
            uint q = row, kv = outer_row;
            float l = column_lse[j], subtract = column_delta[j];
#else
            uint q = outer_row, kv = row;
            float l = lse[i], subtract = delta[i];
#endif
            float raw = to_p[i][j];
            float value = attune_score(raw, int(tile.b), int(tile.h), int(q), int(kv), args.score_mod);
            float weight = (allowed >> e & 1u) != 0u ? exp2((value - l) * LOG2E) : 0.0;
            float d = is_zero(weight) ? 0.0 : weight * (to_ds[i][j] - subtract);
            float slope = attune_d_score(raw, int(tile.b), int(tile.h), int(q), int(kv), args.score_mod);
#ifndef KEYS
            if (CAPTURES && !is_zero(d)) {
                d_uniform += d * attune_d_uniform(raw, int(tile.b), int(tile.h), int(q), int(kv), args.score_mod);
                attune_d_add(raw, int(tile.b), int(tile.h), int(q), int(kv), args.score_mod, d);
            }
#endif
            to_p[i][j] = weight;
            to_ds[i][j] = is_zero(d) ? 0.0 : d * slope;
        }
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            p[i] = to_p[i];
            ds[i] = to_ds[i];
        }
    } else
        [[unroll]] for (uint i = 0u; i < TM; i++)
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
#ifdef KEYS
                float l = column_lse[j], subtract = column_delta[j];
#else
                float l = lse[i], subtract = delta[i];
#endif
                float weight = exp2((p[i][j] * factor - l) * LOG2E);
                weight = (allowed >> (4u * i + j) & 1u) != 0u ? weight : 0.0;
                ds[i][j] = is_zero(weight) ? 0.0 : weight * (ds[i][j] - subtract);
                p[i][j] = weight;
            }
}

#ifdef KEYS
void write_p()
{
    STORE_WEIGHTS(p)
}

/* 6: dV += P^T dO, a chunk of inner rows from n0 on */
void accumulate_dv(const in uint n0)
{
    MULTIPLY_CHUNK(y, TO_V, Y_STRIDE, HEAD_DIM_V)
}
#endif

void write_ds()
{
    STORE_WEIGHTS(ds)
}

/* 6: dK += dS^T Q, or dQ += dS K, likewise */
void accumulate_dx(const in uint n0)
{
    MULTIPLY_CHUNK(x, TO, X_STRIDE, HEAD_DIM)
}

/* 7: store dK and dV, or dQ and capture gradients */
void store_gradients()
{
#ifdef KEYS
    const uint outputs = ATTUNE_VULKAN_ALIGNED_D_K | ATTUNE_VULKAN_ALIGNED_D_V;
    bool out_aligned = ALIGNED || (args.flags & outputs) == outputs;
    STORE_OUTPUT(args.d_k, x, TO, HEAD_DIM, args.scale)
    STORE_OUTPUT(args.d_v, y, TO_V, HEAD_DIM_V, 1.0)
#else
    bool out_aligned = ALIGNED || (args.flags & ATTUNE_VULKAN_ALIGNED_D_Q) != 0u;
    STORE_OUTPUT(args.d_q, x, TO, HEAD_DIM, args.scale)
    if (CAPTURES)
        attune_d_uniform_add(d_uniform, int(outer.b), int(outer.h), args.score_mod);
#endif
}

void begin()
{
    const uint inputs = ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V |
                        ATTUNE_VULKAN_ALIGNED_D_O;
    tid = gl_LocalInvocationIndex;
    tx = tid % TX;
    ty = tid / TX;
    outer = outer_tile_of(args, push.first + gl_WorkGroupID.x);
    aligned = ALIGNED || (args.flags & inputs) == inputs;
    a_plane = plane(TENSOR_A, outer.b, outer.h);
    a2_plane = plane(TENSOR_A2, outer.b, outer.h);
    a_stride = TENSOR_A.stride_row;
    b_stride = TENSOR_B.stride_row;
    a2_stride = TENSOR_A2.stride_row;
    b2_stride = TENSOR_B2.stride_row;
    prescale = PRESCALE ? args.scale : 1.0;
    factor = PRESCALE ? 1.0 : args.scale;
    [[unroll]] for (uint i = 0u; i < X_SIZE; i++)
        x[i] = vec4(0.0);
#ifdef KEYS
    inner_len = args.q_len;
    [[unroll]] for (uint i = 0u; i < Y_SIZE; i++)
        y[i] = vec4(0.0);
#else
    inner_len = args.kv_len;
    /* Rows past the end get weights of 0. */
    [[unroll]] for (uint i = 0u; i < TM; i++) {
        uint r = min(ty + TY * i, outer.rows - 1u);
        bool valid = ty + TY * i < outer.rows;
        lse[i] = valid ? load_lse(args.lse, outer.b, outer.h, outer.row0 + r) : uintBitsToFloat(0x7f800000u);
        delta[i] = load_delta(args, outer.b, outer.h, outer.row0 + r);
    }
#endif
}

void main()
{
    begin();
    InnerTiles next;
    next.plane = 0u;
    inner_tiles_begin(next, args, outer);
    bool more = inner_tiles_next(next, args, outer, inner_len);
    if (more) {
        load_qk(next.b_plane, next.blocks.row0, 0u);
        write_qk();
    }
    if (tid < 4u)
        non_finite[tid] = 0u;
    barrier();
    while (more) {
        const InnerTile tile = InnerTile(next.b, next.h, next.blocks.row0, MASK && next.blocks.kind != 0u, next.b_plane,
                                         next.b2_plane);
        more = inner_tiles_next(next, args, outer, inner_len);

        /* 1, 2: load Q and K, a slice at a time; 3: S = Q K^T */
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            p[i] = vec4(0.0);
            ds[i] = vec4(0.0);
        }
        for (uint d0 = 0u; d0 < HEAD_DIM; d0 += SLICE) {
            bool last = d0 + SLICE >= HEAD_DIM;
            if (!last)
                load_qk(tile.b_plane, tile.row0, d0 + SLICE);
            else
                load_dov(tile, 0u);
            compute_s();
            side = SLICE_SIZE - side;
            if (!last)
                write_qk();
            else
                write_dov();
            barrier();
        }

        /* 3, of the backward pass: dP = dO V^T */
        for (uint d0 = 0u; d0 < HEAD_DIM_V; d0 += SLICE) {
            bool last = d0 + SLICE >= HEAD_DIM_V;
            if (!last)
                load_dov(tile, d0 + SLICE);
            else
#ifdef KEYS
                load_chunk_y(tile, 0u);
#else
                load_chunk_x(tile, 0u);
#endif
            compute_dp();
            side = SLICE_SIZE - side;
            if (!last) {
                write_dov();
                barrier();
            }
        }
#ifdef KEYS
        write_chunk_y();
#else
        write_chunk_x();
#endif

        apply_mods(tile); /* 4: score and mask; 5: P and dS */

        /* 6: dV += P^T dO and dK += dS^T Q, or dQ += dS K, a chunk of inner rows at a time */
#ifdef KEYS
        write_p();
        barrier();
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            bool last = n0 + CHUNK >= BLOCK_N;
            if (!last)
                load_chunk_y(tile, n0 + CHUNK);
            else
                load_chunk_x(tile, 0u);
            accumulate_dv(n0);
            side = SLICE_SIZE - side;
            chunk++;
            if (!last)
                write_chunk_y();
            else
                write_chunk_x();
            barrier();
        }
#endif
        write_ds();
        barrier();
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            bool last = n0 + CHUNK >= BLOCK_N;
            if (!last)
                load_chunk_x(tile, n0 + CHUNK);
            else if (more)
                load_qk(next.b_plane, next.blocks.row0, 0u);
            accumulate_dx(n0);
            side = SLICE_SIZE - side;
            chunk++;
            if (!last)
                write_chunk_x();
            else if (more)
                write_qk();
            barrier();
        }
    }

    store_gradients(); /* 7 */
}

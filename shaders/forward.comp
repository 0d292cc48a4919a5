/* SPDX-License-Identifier: MIT */
/*
 * Forward attention and decode without matrix units. A workgroup owns the rows of one tile and walks the tiles of the
 * keys that its mask lists; operands stream through shared memory in slices, O stays in registers. The stages carry the
 * numbers of docs/algorithm.md. With SUBGROUPS, the invocations of a row speak through subgroup shuffles; without, through
 * shared memory alone.
 *
 * S = Q K^T is computed by a grid of TY x TX invocations, each with TM rows (ty + TY i) and TN groups of four columns
 * (4 (tx + TX g) + j); O likewise, with TO groups of four columns. Between the two, PARTS invocations take a row each.
 * Keys stand in shared memory so that key 4 x + j is row BLOCK_N / 4 j + x: neighbours read neighbouring rows.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#include "arguments.glsl"
#include "elements.glsl"
#include "mods.glsl"

layout(local_size_x_id = 0) in;

/* Most are attune__scalar_layout's (src/plan/layout.h). */
layout(constant_id = 0) const uint THREADS = 128;
layout(constant_id = 1) const uint BLOCK_M = 32;
layout(constant_id = 2) const uint BLOCK_N = 32;
layout(constant_id = 3) const uint HEAD_DIM = 64;
layout(constant_id = 4) const uint HEAD_DIM_V = 64;
layout(constant_id = 5) const uint SLICE = 32;      /* of the head dimension, in shared memory at once */
layout(constant_id = 6) const uint CHUNK = 32;      /* rows of V in shared memory at once */
layout(constant_id = 7) const uint TX = 8;
layout(constant_id = 8) const uint TY = 16;
layout(constant_id = 9) const uint TM = 2;
layout(constant_id = 10) const uint TO = 2;
layout(constant_id = 11) const uint PARTS = 4;      /* invocations of a row in stages 4 and 5 */
layout(constant_id = 12) const uint PART = 2;       /* groups of four columns of each */
layout(constant_id = 13) const uint S_STRIDE = 9;   /* groups of four from one row of S to the next */
layout(constant_id = 14) const uint O_SIZE = 4;     /* TM * TO */
layout(constant_id = 15) const uint SLICE_SIZE = 320; /* groups of four in a buffer of slices, S, the rows' values */
layout(constant_id = 16) const uint S_SIZE = 288;
layout(constant_id = 17) const uint ROWS_SIZE = 32;
layout(constant_id = 18) const uint REDUCE_SIZE = 128;
layout(constant_id = 19) const bool BLOCKS = false; /* a block mask's lists */
layout(constant_id = 20) const bool MASK = false;   /* partial blocks evaluate an expression */
layout(constant_id = 22) const bool PRESCALE = false; /* the scale is in Q */
layout(constant_id = 23) const bool ALIGNED = false;  /* q, k, v and o all are: a seventh faster than asking */
layout(constant_id = 24) const bool PACKED = false;   /* tiles have rows of several heads */
layout(constant_id = 25) const uint FETCH_Q = 1;      /* groups of eight that an invocation has on their way */
layout(constant_id = 26) const uint FETCH_K = 1;
layout(constant_id = 27) const uint FETCH_V = 2;
layout(constant_id = 28) const uint FETCH = 2;        /* the larger of FETCH_Q + FETCH_K and FETCH_V */
layout(constant_id = 29) const uint TN = 1;
layout(constant_id = 30) const uint ACC_SIZE = 2;     /* TM * TN */
/* The types of q and o; k and v have ELEMENT. */
layout(constant_id = 34) const uint Q_TYPE = ELEMENT;
layout(constant_id = 35) const uint O_TYPE = ELEMENT;

shared vec4 slices[2u * SLICE_SIZE]; /* twice: Q[M] and K[N] of SLICE + 4, or V[CHUNK] of HEAD_DIM_V + 4 */
shared vec4 s[S_SIZE];          /* S, then P: [M][S_STRIDE] */
/* In P, a pair that the mask forbids: -0, which weighs nothing and no exponential gives. Set and compared as bits. */
const uint FORBIDDEN = 0x80000000u;
shared float rows[ROWS_SIZE];   /* the factor of each row of O; at the end 1 / l */
#ifndef SUBGROUPS
shared float reduce[REDUCE_SIZE]; /* [PARTS][M] */
#endif
/* V has NaN or infinity in a chunk of a tile with forbidden pairs: one for each of the chunks that are under way. */
shared uint special[4];

/* Of GPUs' compilers; to a CPU's, which inlines far more for each operation, it costs time to compile and gains nothing. */
#ifdef SUBGROUPS
#define UNROLL_CHUNK [[unroll]]
#else
#define UNROLL_CHUNK [[dont_unroll]]
#endif

#include "tiles.glsl"

const uint SLICE_GROUPS = SLICE / 8u, CHUNK_GROUPS = HEAD_DIM_V / 8u; /* of eight elements */
const uint COLUMNS = BLOCK_N / 4u; /* groups of four */
const uint slice_row = SLICE / 4u + 1u, chunk_row = HEAD_DIM_V / 4u + 1u;

/*
 * While a slice or chunk is computed, the next one is on its way from memory; it is stored to the other half of slices
 * behind the arithmetic. One barrier then ends the step.
 */
#define FETCH_QK_SLICE(kv, d0)                                                                                         \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < FETCH_Q; f++)                                                                 \
        {                                                                                                              \
            uint i = tid + f * THREADS, r = i / SLICE_GROUPS;                                                          \
            uvec2 at = PACKED ? address_step(q_plane, head_of(r, it.queries), q_stride_h) : q_plane;                   \
            at = address_step(at, it.q0 + query_of(r, it.queries), q_stride);                                          \
            fetched[f] = fetch(Q_TYPE, address_add(at, (d0 + i % SLICE_GROUPS * 8u) * bytes_of(Q_TYPE)), aligned,      \
                               r < it.rows);                                                                           \
        }                                                                                                              \
        [[unroll]] for (uint f = 0u; f < FETCH_K; f++)                                                                 \
        {                                                                                                              \
            uint i = tid + f * THREADS, n = i / SLICE_GROUPS;                                                          \
            uvec2 at = address_step(k_plane, kv + n, k_stride);                                                        \
            fetched[FETCH_Q + f] = fetch(address_add(at, (d0 + i % SLICE_GROUPS * 8u) * ELEMENT_BYTES), aligned,       \
                                         n < BLOCK_N && kv + n < kv_len);                                              \
        }                                                                                                              \
    }

#define STORE_QK_SLICE(side)                                                                                           \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < FETCH_Q; f++)                                                                 \
        {                                                                                                              \
            uint i = tid + f * THREADS, r = i / SLICE_GROUPS, to = side + r * slice_row + i % SLICE_GROUPS * 2u;       \
            vec4 low, high;                                                                                            \
            widen(Q_TYPE, fetched[f], low, high);                                                                      \
            if (r < BLOCK_M) {                                                                                         \
                slices[to] = PRESCALE ? low * args.scale : low;                                                        \
                slices[to + 1u] = PRESCALE ? high * args.scale : high;                                                 \
            }                                                                                                          \
        }                                                                                                              \
        [[unroll]] for (uint f = 0u; f < FETCH_K; f++)                                                                 \
        {                                                                                                              \
            uint i = tid + f * THREADS, n = i / SLICE_GROUPS;                                                          \
            uint to = side + (BLOCK_M + n % 4u * COLUMNS + n / 4u) * slice_row + i % SLICE_GROUPS * 2u;                     \
            vec4 low, high;                                                                                            \
            widen(fetched[FETCH_Q + f], low, high);                                                                    \
            if (n < BLOCK_N) {                                                                                         \
                slices[to] = low;                                                                                      \
                slices[to + 1u] = high;                                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }

#define FETCH_V_CHUNK(kv)                                                                                              \
    {                                                                                                                  \
        [[unroll]] for (uint f = 0u; f < FETCH_V; f++)                                                                 \
        {                                                                                                              \
            uint i = tid + f * THREADS, n = i / CHUNK_GROUPS;                                                          \
            uvec2 at = address_step(v_plane, kv + n, v_stride);                                                        \
            fetched[f] = fetch(address_add(at, i % CHUNK_GROUPS * 8u * ELEMENT_BYTES), aligned,                        \
                               n < CHUNK && kv + n < kv_len);                                                          \
        }                                                                                                              \
    }

#define STORE_V_CHUNK(side, chunk)                                                                                     \
    [[unroll]] for (uint f = 0u; f < FETCH_V; f++)                                                                     \
    {                                                                                                                  \
        uint i = tid + f * THREADS, n = i / CHUNK_GROUPS, to = side + n * chunk_row + i % CHUNK_GROUPS * 2u;           \
        vec4 low, high;                                                                                                \
        widen(fetched[f], low, high);                                                                                  \
        if (some && is_special(fetched[f]))                                                                            \
            special[(chunk) & 3u] = 1u;                                                                                \
        if (n < CHUNK) {                                                                                               \
            slices[to] = low;                                                                                          \
            slices[to + 1u] = high;                                                                                    \
        }                                                                                                              \
    }

/*
 * An invocation's tx and ty. A group of 32 is 8 x 4, and of four neighbours two have the same tx and two the same ty: shared
 * memory then serves sixteen of NVIDIA's lanes at once, where 16 neighbours in a row would be served in eights.
 */
uvec2 place_of(const in uint tid)
{
    if (TX < 8u || TY < 4u)
        return uvec2(tid % TX, tid / TX);
    uint group = tid / 32u, lane = tid % 32u, wide = TX / 8u;
    return uvec2(group % wide * 8u + lane / 2u % 8u, group / wide * 4u + lane / 16u * 2u + lane % 2u);
}

void main()
{
    Arguments args = Arguments(push.arguments);
#ifdef SUBGROUPS
    uint tid = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    uint tid = gl_LocalInvocationIndex;
#endif
    uvec2 place = place_of(tid);
    uint tx = place.x, ty = place.y;
    Item it = item_of(args, push.first + gl_WorkGroupID.x);
    uvec2 q_plane = plane(args.q, it.b, it.h0), k_plane = plane(args.k, it.b, it.kv_h),
          v_plane = plane(args.v, it.b, it.kv_h);
    uvec2 q_stride_h = args.q.stride_h, q_stride = args.q.stride_row, k_stride = args.k.stride_row,
          v_stride = args.v.stride_row;
    bool aligned = ALIGNED || (args.flags & (ALIGNED_Q | ALIGNED_K | ALIGNED_V)) == (ALIGNED_Q | ALIGNED_K | ALIGNED_V),
         o_aligned = ALIGNED || (args.flags & ALIGNED_O) != 0u;
    uint kv_len = args.kv_len, kv_block = args.kv_block;
    float factor = (PRESCALE ? 1.0 : args.scale) * (SCORE ? 1.0 : LOG2E);

    /* The row that this invocation has in stages 4 and 5. */
    bool has_row = tid < BLOCK_M * PARTS && tid / PARTS < it.rows;
    uint row = tid / PARTS, part = tid % PARTS;
    uint row_q = it.q0 + query_of(row, it.queries), row_h = it.h0 + head_of(row, it.queries);
    float m = LOWEST, l = 0.0;

    vec4 o[O_SIZE];
    [[unroll]] for (uint i = 0u; i < O_SIZE; i++)
        o[i] = vec4(0.0);

    /* The blocks of this row of blocks: entries, or all. */
    uvec2 entries = uvec2(0u);
    uint blocks;
    if (BLOCKS) {
        uint at = it.b * args.mask_rows_b + it.h0 * args.mask_rows_h + it.q0 / args.q_block;
        uvec4 head = Uvec4(address_step(args.mask_rows, at, uvec2(16u, 0u))).value;
        entries = head.xy;
        blocks = head.z;
    } else
        blocks = (kv_len + kv_block - 1u) / kv_block;
    uint first = 0u;
    if (args.splits > 1u) {
        /* blocks * split / splits, without overflow */
        first = blocks / args.splits * it.split + blocks % args.splits * it.split / args.splits;
        blocks = blocks / args.splits * (it.split + 1u) + blocks % args.splits * (it.split + 1u) / args.splits;
    }

    Group fetched[FETCH];
    Tile next = Tile(0u - BLOCK_N, 0u, 0u, first);
    bool more = advance(next, entries, blocks, kv_block, kv_len);
    uint side = 0u, chunk = 0u; /* of slices, that is computed; of all chunks of V */
    if (more) {
        FETCH_QK_SLICE(next.kv0, 0u)
        STORE_QK_SLICE(0u)
    }
    if (tid < 4u)
        special[tid] = 0u;
    barrier();
    while (more) {
        const uint kv0 = next.kv0, kind = next.kind;
        more = advance(next, entries, blocks, kv_block, kv_len);
        bool some = (MASK && kind != 0u) || kv0 + BLOCK_N > kv_len; /* some pairs may be forbidden */

        /* 1, 2: load Q and K, a slice at a time; 3: S = Q K^T */
        vec4 acc[ACC_SIZE];
        [[unroll]] for (uint i = 0u; i < ACC_SIZE; i++)
            acc[i] = vec4(0.0);
        for (uint d0 = 0u; d0 < HEAD_DIM; d0 += SLICE) {
            if (d0 + SLICE < HEAD_DIM)
                FETCH_QK_SLICE(kv0, d0 + SLICE)
            else
                FETCH_V_CHUNK(kv0)
            if (ty < BLOCK_M) {
                uint q_at = side + ty * slice_row, k_at = side + (BLOCK_M + tx) * slice_row;
                [[unroll]] for (uint d = 0u; d < SLICE / 4u; d++) {
                    vec4 a[TM];
                    [[unroll]] for (uint i = 0u; i < TM; i++)
                        a[i] = slices[q_at + i * TY * slice_row + d];
                    [[unroll]] for (uint g = 0u; g < TN; g++) {
                        uint at = k_at + g * TX * slice_row + d;
                        vec4 k0 = slices[at], k1 = slices[at + COLUMNS * slice_row],
                             k2 = slices[at + 2u * COLUMNS * slice_row], k3 = slices[at + 3u * COLUMNS * slice_row];
                        [[unroll]] for (uint i = 0u; i < TM; i++) {
                            vec4 c = acc[i * TN + g];
                            c.x = fma(a[i].x, k0.x, fma(a[i].y, k0.y, fma(a[i].z, k0.z, fma(a[i].w, k0.w, c.x))));
                            c.y = fma(a[i].x, k1.x, fma(a[i].y, k1.y, fma(a[i].z, k1.z, fma(a[i].w, k1.w, c.y))));
                            c.z = fma(a[i].x, k2.x, fma(a[i].y, k2.y, fma(a[i].z, k2.z, fma(a[i].w, k2.w, c.z))));
                            c.w = fma(a[i].x, k3.x, fma(a[i].y, k3.y, fma(a[i].z, k3.z, fma(a[i].w, k3.w, c.w))));
                            acc[i * TN + g] = c;
                        }
                    }
                }
            }
            side = SLICE_SIZE - side;
            if (d0 + SLICE < HEAD_DIM)
                STORE_QK_SLICE(side)
            else {
                STORE_V_CHUNK(side, chunk)
                if (ty < BLOCK_M)
                    [[unroll]] for (uint i = 0u; i < TM; i++)
                        [[unroll]] for (uint g = 0u; g < TN; g++)
                            s[(ty + TY * i) * S_STRIDE + tx + TX * g] = acc[i * TN + g] * factor;
            }
            barrier();
        }

        /* 4: score and mask; 5: online softmax */
        {
            vec4 x[PART];
            float most = LOWEST;
            bool mine = tid < BLOCK_M * PARTS;
            uint s_at = row * S_STRIDE + part;
            [[unroll]] for (uint e = 0u; e < PART; e++)
                x[e] = mine ? s[s_at + e * PARTS] : vec4(0.0);
            uvec2 allowed = uvec2(0xffffffffu); /* PART is at most 16 */
            if (SCORE && has_row)
                [[unroll]] for (uint e = 0u; e < PART; e++)
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        uint kv = kv0 + 4u * (part + e * PARTS) + j;
                        x[e][j] = attune_score(x[e][j], int(it.b), int(row_h), int(row_q), int(kv), args.score_mod);
                    }
            if (some) {
                /* A loop, so that an expression's code stands here once. */
                if (MASK && kind != 0u)
                    [[dont_unroll]] for (uint e = 0u; e < 4u * PART; e++) {
                        uint kv = kv0 + 4u * (part + e / 4u * PARTS) + e % 4u;
                        bool may = attune_mask(int(it.b), int(row_h), int(row_q), int(kv), args.mask_mod);
                        uint bit = may ? 0u : 1u << e % 32u;
                        allowed &= ~(e < 32u ? uvec2(bit, 0u) : uvec2(0u, bit));
                    }
                [[unroll]] for (uint e = 0u; e < PART; e++)
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        uint kv = kv0 + 4u * (part + e * PARTS) + j;
                        allowed[e / 8u] &= has_row && kv < kv_len ? ~0u : ~(1u << (e % 8u * 4u + j));
                        x[e][j] = (allowed[e / 8u] >> (e % 8u * 4u + j) & 1u) != 0u ? x[e][j] : LOWEST;
                    }
            }
            [[unroll]] for (uint e = 0u; e < PART; e++)
                most = max(most, max(max(x[e].x, x[e].y), max(x[e].z, x[e].w)));
#ifdef SUBGROUPS
            [[unroll]] for (uint step = 1u; step < PARTS; step *= 2u)
                most = max(most, subgroupShuffleXor(most, step));
#else
            if (PARTS > 1u) {
                if (mine)
                    reduce[part * BLOCK_M + row] = most;
                barrier();
                if (mine)
                    [[unroll]] for (uint i = 0u; i < PARTS; i++)
                        most = max(most, reduce[i * BLOCK_M + row]);
            }
#endif
            float next = max(m, most), alpha = exp2((m - next) * TO_LOG2);
            m = next;
            l *= alpha;
            [[unroll]] for (uint e = 0u; e < PART; e++) {
                vec4 p = exp2((x[e] - vec4(m)) * TO_LOG2);
                if (some)
                    [[unroll]] for (uint j = 0u; j < 4u; j++) {
                        bool may = (allowed[e / 8u] >> (e % 8u * 4u + j) & 1u) != 0u;
                        l += may ? p[j] : 0.0;
                        p[j] = uintBitsToFloat(may ? floatBitsToUint(p[j]) : FORBIDDEN);
                    }
                else
                    l += p.x + p.y + p.z + p.w;
                if (mine)
                    s[s_at + e * PARTS] = p;
            }
            if (mine && part == 0u)
                rows[row] = alpha;
        }
        barrier();

        /* 6: O += P V, a chunk of keys at a time */
        if (ty < BLOCK_M)
            [[unroll]] for (uint i = 0u; i < TM; i++) {
                float alpha = rows[ty + TY * i];
                [[unroll]] for (uint t = 0u; t < TO; t++)
                    o[i * TO + t] *= alpha;
            }
        for (uint n0 = 0u; n0 < BLOCK_N; n0 += CHUNK) {
            if (n0 + CHUNK < BLOCK_N)
                FETCH_V_CHUNK(kv0 + n0 + CHUNK)
            else if (more)
                FETCH_QK_SLICE(next.kv0, 0u)
            if (tid == 0u)
                special[chunk + 2u & 3u] = 0u;
            if (ty < BLOCK_M) {
                if (some && special[chunk & 3u] != 0u) {
                    /* Rare: weight by weight, since 0 times NaN is NaN where the pair is forbidden. */
                    [[dont_unroll]] for (uint n = 0u; n < CHUNK; n++)
                        [[unroll]] for (uint t = 0u; t < TO; t++) {
                            vec4 v = slices[side + n * chunk_row + min(tx + TX * t, HEAD_DIM_V / 4u - 1u)];
                            [[unroll]] for (uint i = 0u; i < TM; i++) {
                                float p = s[(ty + TY * i) * S_STRIDE + (n0 + n) / 4u][n & 3u];
                                o[i * TO + t] = floatBitsToUint(p) == FORBIDDEN ? o[i * TO + t] : fma(vec4(p), v, o[i * TO + t]);
                            }
                        }
                } else
                    UNROLL_CHUNK for (uint n = 0u; n < CHUNK; n += 4u) {
                        vec4 p[TM];
                        [[unroll]] for (uint i = 0u; i < TM; i++)
                            p[i] = s[(ty + TY * i) * S_STRIDE + (n0 + n) / 4u];
                        [[unroll]] for (uint t = 0u; t < TO; t++) {
                            uint at = side + n * chunk_row + min(tx + TX * t, HEAD_DIM_V / 4u - 1u);
                            vec4 v0 = slices[at], v1 = slices[at + chunk_row], v2 = slices[at + 2u * chunk_row],
                                 v3 = slices[at + 3u * chunk_row];
                            [[unroll]] for (uint i = 0u; i < TM; i++)
                                o[i * TO + t] =
                                    fma(p[i].xxxx, v0, fma(p[i].yyyy, v1,
                                        fma(p[i].zzzz, v2, fma(p[i].wwww, v3, o[i * TO + t]))));
                        }
                    }
            }
            side = SLICE_SIZE - side;
            chunk++;
            if (n0 + CHUNK < BLOCK_N)
                STORE_V_CHUNK(side, chunk)
            else if (more)
                STORE_QK_SLICE(side)
            barrier();
        }
    }

    /* 7: store O and LSE, or the part of a split */
#ifdef SUBGROUPS
    [[unroll]] for (uint step = 1u; step < PARTS; step *= 2u)
        l += subgroupShuffleXor(l, step);
#else
    if (PARTS > 1u) {
        barrier();
        if (tid < BLOCK_M * PARTS)
            reduce[part * BLOCK_M + row] = l;
        barrier();
        if (tid < BLOCK_M * PARTS) {
            l = 0.0;
            [[unroll]] for (uint i = 0u; i < PARTS; i++)
                l += reduce[i * BLOCK_M + row];
        }
    }
#endif
    barrier();
    bool split = args.splits > 1u, keeps = split || (args.flags & IS_PART) != 0u;
    if (has_row && part == 0u) {
        rows[row] = is_zero(l) ? keeps ? 1.0 : 0.0 : split ? 1.0 : 1.0 / l;
        if (split) {
            uint at = ((it.b * args.heads + row_h) * args.q_len + row_q) * args.splits + it.split;
            uvec2 to = address_step(args.parts_ml, at, uvec2(8u, 0u));
            OutWord(to).value = floatBitsToUint(m);
            OutWord(address_add(to, 4u)).value = floatBitsToUint(l);
        } else {
            store_row(args.lse, it.b, row_h, row_q, lse_bits(m, l));
            store_row(args.row_max, it.b, row_h, row_q, row_max_bits(m, l));
        }
    }
    /* Through shared memory, so that the code which narrows and stores stands here once for all registers. */
    [[unroll]] for (uint t = 0u; t < TO; t++) {
        barrier();
        if (ty < BLOCK_M)
            [[unroll]] for (uint i = 0u; i < TM; i++)
                s[(ty + TY * i) * S_STRIDE + tx] = o[i * TO + t];
        barrier();
        [[dont_unroll]] for (uint i = tid; i < it.rows * TX; i += THREADS) {
            uint r = i / TX, column = 4u * (i % TX + TX * t);
            uint q = it.q0 + query_of(r, it.queries), h = it.h0 + head_of(r, it.queries);
            vec4 value = s[r * S_STRIDE + i % TX] * rows[r];
            if (is_zero(rows[r]))
                value = vec4(0.0);
            if (column < HEAD_DIM_V) {
                if (split) {
                    uint at = ((it.b * args.heads + h) * args.q_len + q) * args.splits + it.split;
                    OutVec4(address_add(address_step(args.parts, at, uvec2(HEAD_DIM_V * 4u, 0u)), column * 4u)).value =
                        value;
                } else
                    store4(O_TYPE,
                           address_add(address_step(plane(args.o, it.b, h), q, args.o.stride_row),
                                       column * bytes_of(O_TYPE)),
                           o_aligned, value);
            }
        }
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * What captures are due, in Hopper's backward kernel: of each read of a capture the sum over all pairs of dS times the
 * read's factor, dS being with respect to what the score expression gave.
 *
 * A read of a head's element or a key's is summed in registers over all rows of a head, and added once; that of a row's
 * or a diagonal's over a warp's 16 keys. These sums have a fixed order, and are added exactly (sums.cuh).
 */
#ifndef ATTUNE_CUDA_READS_SM90_CUH
#define ATTUNE_CUDA_READS_SM90_CUH

#include "producer_backward_sm90.cuh"

#if ATTUNE_HAVE_READS
#include "sums.cuh"

enum { READ_ONE, READ_ROW, READ_KEY, READ_PAIR, READ_DIAGONAL }; /* src/expr/print.h */

/* Where a thread's part of a tile stands. */
struct reader {
    const attune_cuda_arguments &a;
    const attune_cuda_backward &g;
    int b, h, q, kv; /* the first pair's */
};

/* Of factors that do not depend on the score the cheaper form holds everywhere, or is not there. */
#if ATTUNE_HAVE_SCORE_NEAR && !defined(ATTUNE_SCORE_NEAR)
constexpr bool READS_NEAR = true;
#else
constexpr bool READS_NEAR = false;
#endif

#define READ_HOW(n_, symbol, how) how,
constexpr int READ_HOWS[] = {ATTUNE_READS(READ_HOW) READ_PAIR};
constexpr int READS = sizeof READ_HOWS / sizeof READ_HOWS[0] - 1;

/* Floats of shared memory for a read's sums over a head's rows, of a warp or of its 16 keys, and where they begin.
 * Those of many reads find no room, and are added tile by tile. */
template <int READ> constexpr bool OF_KEYS = READ_HOWS[READ] == READ_KEY;
template <int READ>
constexpr int HELD = OF_KEYS<READ> ? GROUPS * 64 : READ_HOWS[READ] == READ_ONE ? GROUPS * 4 : 0;
template <int READ> constexpr int HELD_AT = HELD_AT<READ - 1> + HELD<READ - 1>;
template <> constexpr int HELD_AT<0> = 0;
template <int READ> constexpr bool IS_HELD = HELD<READ> && (HELD_AT<READ> + HELD<READ>) * 4 <= (int)READ_BYTES;

/* The thread's, of which a warp's first lane, or each fourth, has some; key 0 or 1 of its two. */
template <int READ> __device__ __forceinline__ volatile float &held(u32 memory, int key)
{
    int warp = thread_index() / 32 - 4;
    int at = OF_KEYS<READ> ? warp * 16 + thread_index() % 32 / 4 + key * 8 : warp;
    return *(volatile float *)__cvta_shared_to_generic(memory + READS_OFFSET + (u32)(HELD_AT<READ> + at) * 4);
}

template <int READ> __device__ __forceinline__ bool holds()
{
    return thread_index() % (OF_KEYS<READ> ? 4 : 32) == 0;
}

template <int READ> constexpr int HOLDS = OF_KEYS<READ> ? 2 : 1;

#define CLEAR_READ(n_, symbol, how)                                                                                    \
    if constexpr (IS_HELD<n_>) {                                                                                       \
        if (holds<n_>())                                                                                               \
            for (int key = 0; key < HOLDS<n_>; key++)                                                                  \
                held<n_>(memory, key) = 0.0f;                                                                          \
    }

__device__ __forceinline__ void clear_reads(u32 memory)
{
    ATTUNE_READS(CLEAR_READ)
}

__device__ __forceinline__ float over_lanes(float x, int from, int to)
{
    for (int step = from; step <= to; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ void add_read(u64 *sums, i64 at, float x)
{
    if (at >= 0 && x != 0.0f)
        sum_add(sums + at * ATTUNE_CUDA_SUM_WORDS, x);
}

/* The arguments of a read's functions; raw: the score before its expression. */
#define READ_OF(q_, kv_, raw) t.b, t.h, q_, kv_, t.h / (t.a.heads / t.a.kv_heads), t.a.q_len, t.a.kv_len, raw
#define READ_PLACE(n_, q_, kv_) attune_read_##n_##_at(READ_OF(q_, kv_, 0.0f), t.a.score_symbols)
#if ATTUNE_HAVE_SCORE_NEAR
#define READ_FACTOR(n_, q_, kv_, raw)                                                                                  \
    (NEAR ? attune_read_##n_##_near(READ_OF(q_, kv_, raw), t.a.score_symbols, t.kv)                                    \
          : attune_read_##n_(READ_OF(q_, kv_, raw), t.a.score_symbols))
#else
#define READ_FACTOR(n_, q_, kv_, raw) attune_read_##n_(READ_OF(q_, kv_, raw), t.a.score_symbols)
#endif
/* What a pair is due. */
#define READ(n_, d, q_, kv_, raw) ((d) == 0.0f ? 0.0f : (d)*READ_FACTOR(n_, q_, kv_, raw))

/* A thread's sums over a tile: of each of its keys; of each of its rows; of each of its diagonals, share_diagonals. */
template <int TILE> struct read_sums {
    float of[READS ? READS : 1][TILE / 2 + 2];
};

template <int TILE> __device__ __forceinline__ void clear_sums(read_sums<TILE> &sums)
{
#pragma unroll
    for (int n = 0; n < READS; n++)
#pragma unroll
        for (int i = 0; i < TILE / 2 + 2; i++)
            sums.of[n][i] = 0.0f;
}

#define SUM_READ(n_, symbol, how)                                                                                      \
    if constexpr (how != READ_PAIR) {                                                                                  \
        int at = how == READ_ROW ? piece * 2 + j % 2 : how == READ_DIAGONAL ? (piece - j / 2) * 2 + 2 + j % 2 : j / 2; \
        sums.of[n_][at] += READ(n_, d, t.q + piece * 8 + j % 2, t.kv + j / 2 * 8, raw);                                \
    }

/* Pair j of a piece: key j / 2, row j % 2. d: dS with respect to what the score expression gave. */
template <bool NEAR, int TILE>
__device__ __forceinline__ void sum_reads(read_sums<TILE> &sums, const reader &t, int piece, int j, float d, float raw)
{
    ATTUNE_READS(SUM_READ)
}

/* A warp's sums of rows, in x those of a lane's keys: each lane is left with an eighth, from lane / 4 * COUNT / 8 on. */
template <int COUNT, int STEP = 16, int SIZE> __device__ __forceinline__ void share_rows(float (&x)[SIZE])
{
    constexpr int HALF = COUNT * STEP / 32;
    bool upper = thread_index() & STEP;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + HALF], STEP);
        x[i] = (upper ? x[i + HALF] : x[i]) + other;
    }
    if constexpr (STEP > 4)
        share_rows<COUNT, STEP / 2>(x);
}

/*
 * A warp's sums of diagonals. Lane 4 r + c holds rows 8 m + 2 c + j and keys r + 8 k: diagonal 8 (m - k) + 2 c + j - r
 * from that of the first pair. With r = 2 r' + r'', four lanes have the same e = (c - r') mod 4 and the same r'', and so
 * the same diagonals 8 (g - 2) + 2 e + j - r'', which they share: by g, then by j. x: [m - k + 1][j], COUNT of them.
 */
template <int COUNT> struct diagonals {
    static constexpr int GROUPS_LEFT = (COUNT / 2 + 2) / 2; /* of g, that a lane is left with */
    float x[GROUPS_LEFT];
    int first; /* the first one's distance from that of the warp's first pair; then every eighth */
};

template <int COUNT> __device__ __forceinline__ diagonals<COUNT> share_diagonals(const float (&x)[COUNT])
{
    constexpr int LEFT = diagonals<COUNT>::GROUPS_LEFT;
    diagonals<COUNT> share;
    int lane = thread_index() % 32, c = lane % 4, r = lane / 8;
    bool after = c < r, upper = lane & 16, odd = lane & 8;
    int beside = (lane ^ 8) - c + (c + (odd ? 3 : 1)) % 4;
    float y[LEFT][2];
#pragma unroll
    for (int i = 0; i < LEFT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float of[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int g = i + k * LEFT;
                float here = g * 2 < COUNT ? x[g * 2 + j] : 0.0f;
                float before = g > 0 && g * 2 - 2 < COUNT ? x[g * 2 - 2 + j] : 0.0f;
                of[k] = after ? here : before;
            }
            y[i][j] = (upper ? of[1] : of[0]) + __shfl_xor_sync(0xffffffffu, upper ? of[0] : of[1], 18);
        }
#pragma unroll
    for (int i = 0; i < LEFT; i++)
        share.x[i] = (odd ? y[i][1] : y[i][0]) + __shfl_sync(0xffffffffu, odd ? y[i][0] : y[i][1], beside);
    share.first = ((upper ? LEFT : 0) - 2) * 8 + (c - r & 3) * 2 + odd - lane / 4 % 2;
    return share;
}

/* Adds a warp's diagonals, at once where all read one element, as those do that lie past a limit. */
template <int COUNT> __device__ __forceinline__ void add_diagonals(u64 *to, const i64 (&at)[COUNT], float (&x)[COUNT])
{
    i64 first = __shfl_sync(0xffffffffu, at[0], 0);
    bool same = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        same = same && (at[i] == first || x[i] == 0.0f);
    if (__all_sync(0xffffffffu, same)) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum += x[i];
        sum = over_lanes(sum, 1, 16);
        if (thread_index() % 32 == 0)
            add_read(to, first, sum);
    } else
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            add_read(to, at[i], x[i]);
}

/* Of pairs that share nothing: those of eight rows at a time, for which the others rotate. */
template <int TILE> __device__ __forceinline__ void rotate_chunks(float (&x)[TILE])
{
    float first[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
    for (int i = 0; i < TILE - 4; i++)
        x[i] = x[i + 4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[TILE - 4 + i] = first[i];
}

#define ADD_PAIRS(n_, symbol, how)                                                                                     \
    if constexpr (how == READ_PAIR) {                                                                                  \
        if (u64 *sums = (u64 *)t.g.symbol_sums[symbol]) {                                                              \
            _Pragma("unroll 1") for (int row = 0; row < TILE * 2; row += 8)                                            \
            {                                                                                                          \
                _Pragma("unroll") for (int i = 0; i < 4; i++)                                                          \
                    add_read(sums, READ_PLACE(n_, t.q + row + i % 2, t.kv + i / 2 * 8),                                \
                             READ(n_, d[i], t.q + row + i % 2, t.kv + i / 2 * 8,                                       \
                                  ATTUNE_READS_OF_SCORE ? s[i] * t.a.scale : 0.0f));                                   \
                rotate_chunks(d);                                                                                           \
                if (ATTUNE_READS_OF_SCORE)                                                                             \
                    rotate_chunks(s);                                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }

/* s: the scores, where a factor depends on them. */
template <bool NEAR, int TILE>
__device__ __forceinline__ void add_pairs(float (&d)[TILE], float (&s)[TILE], const reader &t)
{
    ATTUNE_READS(ADD_PAIRS)
}

#define ADD_READ(n_, symbol, how)                                                                                      \
    if (u64 *to = (u64 *)t.g.symbol_sums[symbol]) {                                                                    \
        float(&x)[TILE / 2 + 2] = sums.of[n_];                                                                         \
        if constexpr (how == READ_ONE || how == READ_KEY) {                                                            \
            if constexpr (how == READ_ONE)                                                                             \
                x[0] += x[1];                                                                                          \
            _Pragma("unroll") for (int key = 0; key < HOLDS<n_>; key++)                                                \
            {                                                                                                          \
                x[key] = over_lanes(x[key], 1, how == READ_KEY ? 2 : 16);                                              \
                if (holds<n_>()) {                                                                                     \
                    if constexpr (IS_HELD<n_>)                                                                         \
                        held<n_>(memory, key) = held<n_>(memory, key) + x[key];                                        \
                    else                                                                                               \
                        add_read(to, READ_PLACE(n_, 0, t.kv + key * 8), x[key]);                                       \
                }                                                                                                      \
            }                                                                                                          \
        } else if constexpr (how == READ_ROW) {                                                                        \
            share_rows<TILE / 2>(x);                                                                                   \
            int row = thread_index() % 32 / 4 * (TILE / 16);                                                         \
            _Pragma("unroll") for (int i = 0; i < TILE / 16; i++)                                                      \
                add_read(to, READ_PLACE(n_, t.q + (row + i) / 2 * 8 + (row + i) % 2, t.kv), x[i]);                     \
        } else if constexpr (how == READ_DIAGONAL) {                                                                   \
            auto share = share_diagonals(x);                                                                           \
            int lane = thread_index() % 32, kv = t.kv - lane / 4, q = t.q - lane % 4 * 2 + share.first;              \
            i64 at[share.GROUPS_LEFT];                                                                                 \
            _Pragma("unroll") for (int i = 0; i < share.GROUPS_LEFT; i++) at[i] = READ_PLACE(n_, q + i * 8, kv);       \
            add_diagonals(to, at, share.x);                                                                            \
        }                                                                                                              \
    }

/* A tile's sums. */
template <int TILE> __device__ __forceinline__ void add_reads(read_sums<TILE> &sums, const reader &t, u32 memory)
{
    ATTUNE_READS(ADD_READ)
}

#define FLUSH_READ(n_, symbol, how)                                                                                    \
    if constexpr (IS_HELD<n_>) {                                                                                       \
        u64 *sums = (u64 *)t.g.symbol_sums[symbol];                                                                    \
        if (sums && holds<n_>())                                                                                       \
            for (int key = 0; key < HOLDS<n_>; key++)                                                                  \
                add_read(sums, READ_PLACE(n_, 0, t.kv + key * 8), held<n_>(memory, key));                              \
    }

/* A head's rows are done: adds what was held of them. */
__device__ __forceinline__ void flush_reads(const reader &t, u32 memory)
{
    ATTUNE_READS(FLUSH_READ)
    clear_reads(memory);
}

#endif
#endif

/* SPDX-License-Identifier: MIT */
/*
 * Capture gradients in the backward kernels with TMA. The gradient of a capture read is the sum over all pairs of dS,
 * with respect to the result of the score expression, times the derivative of that result with respect to the element
 * read.
 *
 * Reads that depend on the head or the key alone are summed in shared memory over all rows of a head and added to
 * global memory once. Reads of a row or a diagonal are summed over a warp's keys, 16 on Hopper, and 32 where a thread
 * has one key (backward::THREAD_KEYS). The order of these sums is fixed, and the additions to global memory are exact
 * (sums.cuh), so that results repeat bit for bit. Reads of single pairs of a large capture are added in float32, four
 * keys at a time where these are adjacent elements.
 */
#ifndef ATTUNE_CUDA_CAPTURE_GRADIENTS_SM90_CUH
#define ATTUNE_CUDA_CAPTURE_GRADIENTS_SM90_CUH

#include "layout_backward_sm90.cuh"
#include "sums.cuh"

enum { READ_ONE, READ_ROW, READ_KEY, READ_PAIR, READ_DIAGONAL }; /* src/expr/print.h */

/* The coordinates of a thread's first pair in a tile. */
struct pair_origin {
    const attune_cuda_arguments &a;
    const attune_cuda_backward &g;
    int b, h, q, kv; /* of the first pair */
};

/* Derivatives that do not depend on the score have a near-zero form only if it holds for all scores. */
constexpr bool READS_NEAR_ZERO = config::HAVE_SCORE_NEAR && !config::SCORE_NEAR_BOUNDED;

#define READ_KIND(n_, symbol, kind) kind,
constexpr int READ_KINDS[] = {ATTUNE_REQUESTED_CAPTURE_READS(READ_KIND) READ_PAIR};
constexpr int READS = sizeof READ_KINDS / sizeof READ_KINDS[0] - 1;

/* A lane has a key of its own; else four lanes share two. */
constexpr bool LANE_KEYS = backward::THREAD_KEYS == 1;

/* Floats of shared memory for the sum of a capture read over a head's rows, one for each warp or for each of its 16
 * keys, and the index of the first. Reads that do not fit are added to global memory in every tile. */
template <int INDEX> constexpr bool BY_KEY = READ_KINDS[INDEX] == READ_KEY;
template <int INDEX>
constexpr int HEAD_SUMS = BY_KEY<INDEX>                   ? backward::GROUP_KEYS *backward::GROUPS
                          : READ_KINDS[INDEX] == READ_ONE ? backward::GROUPS * 4
                                                          : 0;
template <int INDEX> constexpr int HEAD_SUM_INDEX = HEAD_SUM_INDEX<INDEX - 1> + HEAD_SUMS<INDEX - 1>;
template <> constexpr int HEAD_SUM_INDEX<0> = 0;
template <int INDEX>
constexpr bool IN_SHARED = HEAD_SUMS<INDEX> &&
                           (HEAD_SUM_INDEX<INDEX> + HEAD_SUMS<INDEX>)*4 <= (int)backward::HEAD_SUMS_BYTES;

/* The sum of a warp, or of key 0 or 1 of the thread. Only threads with has_head_sum() have one. */
template <int INDEX> __device__ __forceinline__ volatile float &head_sum(u32 memory, int key)
{
    int warp = thread_index() / 32 - backward::FIRST_WARP;
    int at = !BY_KEY<INDEX> ? warp
             : LANE_KEYS    ? warp * 32 + thread_index() % 32
                            : warp * 16 + thread_index() % 32 / 4 + key * 8;
    return *(volatile float *)__cvta_shared_to_generic(memory + backward::HEAD_SUMS_OFFSET +
                                                       (u32)(HEAD_SUM_INDEX<INDEX> + at) * 4);
}

template <int INDEX> __device__ __forceinline__ bool has_head_sum()
{
    return thread_index() % (!BY_KEY<INDEX> ? 32 : LANE_KEYS ? 1 : 4) == 0;
}

template <int INDEX> constexpr int HEAD_SUM_KEYS = BY_KEY<INDEX> ? backward::THREAD_KEYS : 1;

#define CLEAR_HEAD_SUM(n_, symbol, kind)                                                                               \
    if constexpr (IN_SHARED<n_>) {                                                                                     \
        if (has_head_sum<n_>())                                                                                        \
            for (int key = 0; key < HEAD_SUM_KEYS<n_>; key++)                                                          \
                head_sum<n_>(memory, key) = 0.0f;                                                                      \
    }

__device__ __forceinline__ void clear_head_sums(u32 memory){ATTUNE_REQUESTED_CAPTURE_READS(CLEAR_HEAD_SUM)}

__device__ __forceinline__ float reduce_lanes(float x, int from, int to)
{
    for (int step = from; step <= to; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* floats: the sums are float32, which pairs of distinct elements add to in any order. An exact sum of each is 64 bytes,
 * so that those of a bias for each pair are more than the L2 cache holds. */
__device__ __forceinline__ void add_gradient(u64 *sums, i64 at, float x, bool floats)
{
    if (at >= 0 && x != 0.0f) {
        if (floats)
            add_global((float *)sums + at, x);
        else
            sum_add(sums + at * ATTUNE_CUDA_SUM_WORDS, x);
    }
}

/* Whether the sums of a symbol are float32. */
#define FLOAT_SUMS(symbol) (t.g.float_sums >> (symbol)&1)

/* The arguments of the functions of a capture read. raw: the score before its expression. */
#define READ_OF(q_, kv_, raw)          t.b, t.h, q_, kv_, t.h / (t.a.heads / t.a.kv_heads), t.a.q_len, t.a.kv_len, raw
#define READ_INDEX(n_, q_, kv_, raw)   attune_capture_read_##n_##_at(READ_OF(q_, kv_, raw), t.a.score_symbols)
#define READ_PADDED_INDEX(n_, q_, kv_) attune_capture_read_##n_##_padded_at(READ_OF(q_, kv_, 0.0f), t.a.score_symbols)
#define READ_FACTOR(n_, q_, kv_, raw)                                                                                  \
    (NEAR_ZERO ? ATTUNE_CAPTURE_READ_NEAR(n_)(READ_OF(q_, kv_, raw), t.a.score_symbols, t.kv)                          \
               : attune_capture_read_##n_(READ_OF(q_, kv_, raw), t.a.score_symbols))
/* The contribution of one pair. */
#define READ_GRADIENT(n_, d, q_, kv_, raw) ((d) == 0.0f ? 0.0f : (d)*READ_FACTOR(n_, q_, kv_, raw))

/* A thread's sums over a tile, indexed by its key, its row, or its diagonal (reduce_diagonals). */
template <int S_FRAGMENT> constexpr int SUM_COUNT = LANE_KEYS ? S_FRAGMENT : S_FRAGMENT / 2 + 2;

template <int S_FRAGMENT> struct capture_sums {
    float of[READS ? READS : 1][SUM_COUNT<S_FRAGMENT>];
};

template <int S_FRAGMENT> __device__ __forceinline__ void clear_sums(capture_sums<S_FRAGMENT> &sums)
{
#pragma unroll
    for (int n = 0; n < READS; n++)
#pragma unroll
        for (int i = 0; i < SUM_COUNT<S_FRAGMENT>; i++)
            sums.of[n][i] = 0.0f;
}

#define SUM_GRADIENT(n_, symbol, kind)                                                                                 \
    if constexpr (kind != READ_PAIR) {                                                                                 \
        int at = kind == READ_ONE || kind == READ_KEY ? (LANE_KEYS ? 0 : j / 2)                                        \
                 : LANE_KEYS                          ? fragment * 4 + j                                               \
                 : kind == READ_ROW                   ? fragment * 2 + j % 2                                           \
                                                      : (fragment - j / 2) * 2 + 2 + j % 2;                                              \
        sums.of[n_][at] += READ_GRADIENT(n_, d, t.q + backward::row_of(fragment * 4) + j % backward::FOUR_ROWS,        \
                                         t.kv + backward::key_of(j), raw);                                             \
    }

/* Pair j of the four from fragment * 4 on. d: dS with respect to the result of the score expression. */
template <bool NEAR_ZERO, int S_FRAGMENT>
__device__ __forceinline__ void sum_capture_gradients(capture_sums<S_FRAGMENT> &sums, const pair_origin &t,
                                                      int fragment, int j, float d, float raw)
{
    ATTUNE_REQUESTED_CAPTURE_READS(SUM_GRADIENT)
}

/* Reduces sums of rows over the lanes that hold other keys of the same rows: those that differ in the bits of their
 * number from LAST on. Each lane returns with a share of the rows, from lane / LAST * COUNT * LAST / 32 on. */
template <int COUNT, int LAST = LANE_KEYS ? 1 : 4, int STEP = 16, int SIZE>
__device__ __forceinline__ void reduce_rows(float (&x)[SIZE])
{
    constexpr int HALF = COUNT * STEP / 32;
    bool upper = thread_index() & STEP;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + HALF], STEP);
        x[i] = (upper ? x[i + HALF] : x[i]) + other;
    }
    if constexpr (STEP > LAST)
        reduce_rows<COUNT, LAST, STEP / 2>(x);
}

/* Where a lane has a key of its own: the sums of the diagonals of a warp's 32 keys and 32 rows, counted from that of
 * the last key and the first row. A lane returns with two, from lane * 2 on. */
struct lane_diagonals {
    float x[64];
};

template <int COUNT>
__device__ __forceinline__ void reduce_lane_diagonals(lane_diagonals &sums, const float (&x)[COUNT])
{
    static_assert(COUNT == 32, "a row for each lane");
    int up = 31 - thread_index() % 32; /* the diagonal of the lane's key and the first row */
#pragma unroll
    for (int i = 0; i < 64; i++)
        sums.x[i] = i < COUNT ? x[i] : 0.0f;
#pragma unroll
    for (int step = 16; step; step /= 2)
#pragma unroll
        for (int i = 63; i >= 0; i--)
            sums.x[i] = up & step ? (i >= step ? sums.x[i - step] : 0.0f) : sums.x[i];
    reduce_rows<64, 1>(sums.x);
}

/*
 * Reduces sums of diagonals over a warp. Lane 4 r + c has rows 8 m + 2 c + j and keys r + 8 k, and thus the diagonals
 * 8 (m - k) + 2 c + j - r, counted from that of the warp's first pair. With r = 2 r' + r'', four lanes have the same
 * e = (c - r') mod 4 and the same r'', and so the same diagonals 8 (g - 2) + 2 e + j - r''. They reduce by g, then by
 * j. x: [m - k + 1][j], COUNT elements.
 */
template <int COUNT> struct diagonals {
    static constexpr int GROUPS_LEFT = (COUNT / 2 + 2) / 2; /* values of g that one lane has after the reduction */
    float x[GROUPS_LEFT];
    int first; /* the first diagonal, counted from that of the warp's first pair; the others follow every 8 */
};

template <int COUNT> __device__ __forceinline__ diagonals<COUNT> reduce_diagonals(const float (&x)[COUNT])
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

/* Adds a warp's diagonals. All may read one element, such as the last of a clamped distance; these are reduced to one
 * addition, since 32 lanes that add to one address would be serialised. */
template <int COUNT>
__device__ __forceinline__ void add_diagonals(u64 *to, const i64 (&at)[COUNT], float (&x)[COUNT], bool floats)
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
        sum = reduce_lanes(sum, 1, 16);
        if (thread_index() % 32 == 0)
            add_gradient(to, first, sum, floats);
    } else
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            add_gradient(to, at[i], x[i], floats);
}

/* Rotates the registers by CHUNK. The loops over reads of single pairs are not unrolled over all, and rotation keeps
 * their register indices constant. */
template <int CHUNK, int S_FRAGMENT> __device__ __forceinline__ void rotate_chunks(float (&x)[S_FRAGMENT])
{
    float first[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        first[i] = x[i];
#pragma unroll
    for (int i = 0; i < S_FRAGMENT - CHUNK; i++)
        x[i] = x[i + CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        x[S_FRAGMENT - CHUNK + i] = first[i];
}

/* Whether the gradients of a read of single pairs may be added as vectors of four keys: four lanes of a warp have
 * adjacent keys, which read adjacent elements. The sums must be padded besides (padded_sums). */
template <int INDEX>
constexpr bool VECTORS_OF_KEYS = !LANE_KEYS && !backward::ORDERED && ATTUNE_CAPTURE_READS_IN_ORDER(INDEX);
/* Pairs of a thread in an iteration of the loop over them, which is unrolled unless the derivatives may be long; and
 * those whose shuffles are issued together. More of these take registers that kernels of D128 do not have. */
template <int S_FRAGMENT> constexpr int VECTOR_CHUNK = config::SCORE_CHUNKS ? 4 : S_FRAGMENT < 32 ? S_FRAGMENT : 32;
template <int S_FRAGMENT> constexpr int VECTOR_BATCH = VECTOR_CHUNK<S_FRAGMENT> < 16 ? VECTOR_CHUNK<S_FRAGMENT> : 16;

/* Which a lane is of the four that have adjacent keys and the same rows. */
__device__ __forceinline__ int lane_of_keys()
{
    return thread_index() / 4 % 4;
}

/* Transposes the pairs of these lanes, of which each has two rows of two keys: a lane returns with pair lane_of_keys()
 * of all of them, which are four adjacent keys of one row. */
__device__ __forceinline__ void exchange_keys(float (&x)[4])
{
    bool upper = lane_of_keys() & 2, odd = lane_of_keys() & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + 2], 8);
        x[i] = upper ? other : x[i];
        x[i + 2] = upper ? x[i + 2] : other;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        float other = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + 1], 4);
        x[i] = odd ? other : x[i];
        x[i + 1] = odd ? x[i + 1] : other;
    }
}

/* Adds the gradients of four adjacent keys of a row to float32 sums, of which `at` is the first one's; -1 = none. */
__device__ __forceinline__ void add_four_gradients(float *sums, i64 at, const float (&x)[4])
{
    if (at >= 0 && (x[0] != 0.0f || x[1] != 0.0f || x[2] != 0.0f || x[3] != 0.0f))
        add_global_4(sums + at, x[0], x[1], x[2], x[3]);
}

/* kv_own: the first of a lane's four keys, a multiple of four, so that a vector that begins in a row ends in its
 * padding at the latest. */
#define ADD_VECTORS_OF_KEYS(n_, symbol)                                                                                \
    constexpr int CHUNK = VECTOR_CHUNK<S_FRAGMENT>, BATCH = VECTOR_BATCH<S_FRAGMENT>;                                  \
    int own = lane_of_keys(), kv_own = t.kv - own + own / 2 * 8;                                                       \
    _Pragma("unroll 1") for (int first = 0; first < S_FRAGMENT; first += CHUNK)                                        \
    {                                                                                                                  \
        _Pragma("unroll") for (int from = 0; from < CHUNK; from += BATCH)                                              \
        {                                                                                                              \
            float x[BATCH / 4][4];                                                                                     \
            _Pragma("unroll") for (int i = 0; i < BATCH; i++)                                                          \
            {                                                                                                          \
                int at = from + i, q = t.q + (first + at / 4 * 4) * 2 + at % 2;                                        \
                float raw = config::GRADIENTS_USE_SCORE ? s[at] * t.a.scale : 0.0f;                                    \
                x[i / 4][i % 4] = READ_GRADIENT(n_, d[at], q, t.kv + backward::key_of(at), raw);                       \
            }                                                                                                          \
            _Pragma("unroll") for (int i = 0; i < BATCH / 4; i++) exchange_keys(x[i]);                                 \
            _Pragma("unroll") for (int i = 0; i < BATCH / 4; i++)                                                      \
            {                                                                                                          \
                int q = t.q + (first + from + i * 4) * 2 + own % 2;                                                    \
                add_four_gradients((float *)sums, READ_PADDED_INDEX(n_, q, kv_own), x[i]);                             \
            }                                                                                                          \
        }                                                                                                              \
        rotate_chunks<CHUNK>(d);                                                                                       \
        if (config::GRADIENTS_USE_SCORE)                                                                               \
            rotate_chunks<CHUNK>(s);                                                                                   \
    }

#define ADD_SINGLE_PAIRS(n_, symbol)                                                                                   \
    _Pragma("unroll 1") for (int first = 0; first < S_FRAGMENT; first += 4)                                            \
    {                                                                                                                  \
        int row = t.q + (LANE_KEYS ? first : first * 2);                                                               \
        _Pragma("unroll") for (int i = 0; i < 4; i++)                                                                  \
        {                                                                                                              \
            float raw = config::GRADIENTS_USE_SCORE ? s[i] * t.a.scale : 0.0f;                                         \
            int q = row + i % backward::FOUR_ROWS, kv = t.kv + backward::key_of(i);                                    \
            add_gradient(sums, READ_INDEX(n_, q, kv, raw), READ_GRADIENT(n_, d[i], q, kv, raw), FLOAT_SUMS(symbol));   \
        }                                                                                                              \
        rotate_chunks<4>(d);                                                                                           \
        if (config::GRADIENTS_USE_SCORE)                                                                               \
            rotate_chunks<4>(s);                                                                                       \
    }

#define ADD_PAIR_GRADIENTS(n_, symbol, kind)                                                                           \
    if constexpr (kind == READ_PAIR) {                                                                                 \
        if (u64 *sums = (u64 *)t.g.symbol_sums[symbol]) {                                                              \
            bool vectors = false;                                                                                      \
            if constexpr (VECTORS_OF_KEYS<n_>) {                                                                       \
                vectors = t.g.padded_sums >> (symbol)&1;                                                               \
                if (vectors) {                                                                                         \
                    ADD_VECTORS_OF_KEYS(n_, symbol)                                                                    \
                }                                                                                                      \
            }                                                                                                          \
            if (!vectors) {                                                                                            \
                ADD_SINGLE_PAIRS(n_, symbol)                                                                           \
            }                                                                                                          \
        }                                                                                                              \
    }

/* s: the products Q K^T; read only if a derivative or an index depends on the score. */
template <bool NEAR_ZERO, int S_FRAGMENT>
__device__ __forceinline__ void add_pair_gradients(float (&d)[S_FRAGMENT], float (&s)[S_FRAGMENT], const pair_origin &t)
{
    ATTUNE_REQUESTED_CAPTURE_READS(ADD_PAIR_GRADIENTS)
}

#define ADD_GRADIENT(n_, symbol, kind)                                                                                 \
    if (u64 *to = (u64 *)t.g.symbol_sums[symbol]) {                                                                    \
        float(&x)[SUM_COUNT<S_FRAGMENT>] = sums.of[n_];                                                                \
        if constexpr (kind == READ_ONE || kind == READ_KEY) {                                                          \
            if constexpr (kind == READ_ONE && !LANE_KEYS)                                                              \
                x[0] += x[1];                                                                                          \
            _Pragma("unroll") for (int key = 0; key < HEAD_SUM_KEYS<n_>; key++)                                        \
            {                                                                                                          \
                if constexpr (kind == READ_ONE || !LANE_KEYS)                                                          \
                    x[key] = reduce_lanes(x[key], 1, kind == READ_KEY ? 2 : 16);                                       \
                if (has_head_sum<n_>()) {                                                                              \
                    if constexpr (IN_SHARED<n_>)                                                                       \
                        head_sum<n_>(memory, key) = head_sum<n_>(memory, key) + x[key];                                \
                    else                                                                                               \
                        add_gradient(to, READ_INDEX(n_, 0, t.kv + key * 8, 0.0f), x[key], FLOAT_SUMS(symbol));         \
                }                                                                                                      \
            }                                                                                                          \
        } else if constexpr (kind == READ_ROW && LANE_KEYS) {                                                          \
            reduce_rows<S_FRAGMENT>(x);                                                                                \
            add_gradient(to, READ_INDEX(n_, t.q + thread_index() % 32, t.kv, 0.0f), x[0], FLOAT_SUMS(symbol));         \
        } else if constexpr (kind == READ_DIAGONAL && LANE_KEYS) {                                                     \
            lane_diagonals share;                                                                                      \
            reduce_lane_diagonals(share, x);                                                                           \
            int lane = thread_index() % 32, kv = t.kv - lane, q = t.q + lane * 2 - 31;                                 \
            float two[2] = {share.x[0], share.x[1]};                                                                   \
            i64 at[2] = {READ_INDEX(n_, q, kv, 0.0f), READ_INDEX(n_, q + 1, kv, 0.0f)};                                \
            add_diagonals(to, at, two, FLOAT_SUMS(symbol));                                                            \
        } else if constexpr (kind == READ_ROW) {                                                                       \
            reduce_rows<S_FRAGMENT / 2>(x);                                                                            \
            int row = thread_index() % 32 / 4 * (S_FRAGMENT / 16);                                                     \
            _Pragma("unroll") for (int i = 0; i < S_FRAGMENT / 16; i++) add_gradient(                                  \
                to, READ_INDEX(n_, t.q + (row + i) / 2 * 8 + (row + i) % 2, t.kv, 0.0f), x[i], FLOAT_SUMS(symbol));    \
        } else if constexpr (kind == READ_DIAGONAL) {                                                                  \
            auto share = reduce_diagonals(x);                                                                          \
            int lane = thread_index() % 32, kv = t.kv - lane / 4, q = t.q - lane % 4 * 2 + share.first;                \
            i64 at[share.GROUPS_LEFT];                                                                                 \
            _Pragma("unroll") for (int i = 0; i < share.GROUPS_LEFT; i++) at[i] = READ_INDEX(n_, q + i * 8, kv, 0.0f); \
            add_diagonals(to, at, share.x, FLOAT_SUMS(symbol));                                                        \
        }                                                                                                              \
    }

/* Reduces the sums of a tile and adds them, to shared memory or to global memory. */
template <int S_FRAGMENT>
__device__ __forceinline__ void add_capture_gradients(capture_sums<S_FRAGMENT> &sums, const pair_origin &t, u32 memory)
{
    ATTUNE_REQUESTED_CAPTURE_READS(ADD_GRADIENT)
}

#define FLUSH_HEAD_SUM(n_, symbol, kind)                                                                               \
    if constexpr (IN_SHARED<n_>) {                                                                                     \
        u64 *sums = (u64 *)t.g.symbol_sums[symbol];                                                                    \
        if (sums && has_head_sum<n_>())                                                                                \
            for (int key = 0; key < HEAD_SUM_KEYS<n_>; key++)                                                          \
                add_gradient(sums, READ_INDEX(n_, 0, t.kv + key * 8, 0.0f), head_sum<n_>(memory, key),                 \
                             FLOAT_SUMS(symbol));                                                                      \
    }

/* Adds the sums of a head's rows to global memory, after its last tile, and clears them. */
__device__ __forceinline__ void flush_head_sums(const pair_origin &t, u32 memory)
{
    ATTUNE_REQUESTED_CAPTURE_READS(FLUSH_HEAD_SUM)
    clear_head_sums(memory);
}

#endif

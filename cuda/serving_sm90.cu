/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache for Hopper, of batches with prompts, chunks of prompts or drafts: wgmma over tiles of the packed
 * rows of the query heads that share keys (row = q * heads of the group + head), with the schedule and the partial
 * results of serving_sm80.cu. The stages are those of docs/algorithm.md.
 *
 * A persistent CTA has a producer warp group (producer_serving_sm90.cuh), and a consumer warp group for each 64 rows of
 * a tile. As in forward_sm90.cu a consumer issues Q K of key tile j + 1 before P V of tile j, and two of them issue
 * products in turn. The next tile of rows is found, and its operands loaded, while this one is computed.
 *
 * Kernels walk logical tiles of keys; pages are translated for addresses alone, so that results do not depend on them.
 */
#include "producer_serving_sm90.cuh"
#include "serving_results.cuh"
#include "serving_shared_schedule.cuh"
#include "stages_forward_sm90.cuh"

/* ----------------------------------------------------------------------------------------------------------- stages */

/* The first of the thread's two packed rows, rematerialised. */
__device__ __forceinline__ int thread_row(const tile &t)
{
    int thread = thread_index_remat() - sm90::PRODUCERS;
    return t.row + (sm90::WIDE ? thread % 128 : thread) / 32 * 16 + thread % 32 / 4;
}

/* The first column of O that the thread's warp group has. */
__device__ __forceinline__ int first_column()
{
    return sm90::WIDE ? (thread_index_remat() - sm90::PRODUCERS) / 128 * sm90::COLUMNS : 0;
}

/* A bit for each key of a tile that the warp group has scores of. */
typedef u32 key_bits[sm90::KEYS / 32];

/* The first `count` bits of a word, of any number. */
__device__ __forceinline__ u32 first_bits(int count)
{
    return (u32)((1ull << min(max(count, 0), 32)) - 1);
}

/* A word of a row's bits of its tree: keys before the drafts are seen. */
__device__ __forceinline__ u32 tree_word(const attune_cuda_serving &s, const u32 *words, int i)
{
    return i < 0 ? ~0u : i < s.tree_words ? words[i * s.tree.stride[2]] : 0;
}

/* Removes the keys that the row does not see by its interval and its tree. */
__device__ __forceinline__ void remove_unseen(key_bits &keys, const attune_cuda_arguments &a,
                                              const attune_cuda_serving &s, const tile &t, const tile_coord &at, int kv)
{
    range seen = row_range(a, t, at);
    const u32 *words =
        (const u32 *)s.tree.address + t.batch * s.tree.stride[0] + (t.row0 + min(at.q, t.q_len - 1)) * s.tree.stride[1];
#pragma unroll
    for (int i = 0; i < sm90::KEYS / 32; i++, kv += 32) {
        if (config::HAVE_MASK_RANGE)
            keys[i] &= first_bits(seen.high - kv) & ~first_bits(seen.low - kv);
        if (config::TREE && s.tree.address) {
            int draft = kv - t.position;
            keys[i] &= __funnelshift_r(tree_word(s, words, draft >> 5), tree_word(s, words, (draft >> 5) + 1),
                                       (u32)draft & 31);
        }
    }
}

/* The scores of COUNT keys from `kv` on, the first of x; keys: which of them are there, and are seen by the rows. */
template <int COUNT>
__device__ __forceinline__ void modify_some(float (&x)[sm90::KEYS / 2], const attune_cuda_arguments &a, const tile &t,
                                            int kv, const u32 (&keys)[2][COUNT / 32])
{
    constexpr bool PAIRS = config::HAVE_MASK_PAIRS && !config::HAVE_MASK_RANGE;
    int column = thread_index_remat() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        tile_coord at = row_coord(a, t, thread_row(t) + half * 8);
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &score = x[n * 4 + half * 2 + i];
                int key = kv + column + n * 8 + i;
                bool seen = keys[half][n / 4] >> column >> (n % 4 * 8 + i) & 1;
                if constexpr (HAVE_SCORE)
                    score = score_of(a, t, at, key, score);
                if constexpr (PAIRS)
                    seen = seen && sees_pair(a, t, at, key);
                if (!seen)
                    score = -ATTUNE_INF;
            }
    }
}

/* 4: the score and mask hook. kv: the first key; there: the keys that are there. inner: all rows see those.
 * Expressions are evaluated for 32 keys at once: those of all leave no registers. */
__device__ __forceinline__ void modify_scores(float (&x)[sm90::KEYS / 2], const attune_cuda_arguments &a,
                                              const attune_cuda_serving &s, const tile &t, int kv,
                                              const key_bits &there, bool inner)
{
    constexpr int WORDS = sm90::KEYS / 32;
    u32 keys[2][WORDS];
    bool all = inner;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        all = all && there[i] == ~0u;
    if (!HAVE_SCORE && a.scale <= 0.0f)
#pragma unroll
        for (int i = 0; i < sm90::KEYS / 2; i++)
            x[i] *= fold_sign(a.scale);
    if (!HAVE_SCORE && all)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            keys[half][i] = there[i];
        if (!inner)
            remove_unseen(keys[half], a, s, t, row_coord(a, t, thread_row(t) + half * 8), kv);
    }
    if constexpr (HAVE_SCORE || config::HAVE_MASK_PAIRS) {
#pragma unroll 1
        for (int word = 0; word < WORDS; word++) {
            u32 one[2][1] = {{keys[0][0]}, {keys[1][0]}};
            float done[16];
            modify_some<32>(x, a, t, kv + word * 32, one);
            /* They rotate, so that indices are constants. */
#pragma unroll
            for (int i = 0; i < 16; i++)
                done[i] = x[i];
#pragma unroll
            for (int i = 0; i < sm90::KEYS / 2; i++)
                x[i] = i + 16 < sm90::KEYS / 2 ? x[i + 16] : done[i + 16 - sm90::KEYS / 2];
#pragma unroll
            for (int i = 0; i + 1 < WORDS; i++)
                keys[0][i] = keys[0][i + 1], keys[1][i] = keys[1][i + 1];
        }
    } else
        modify_some<sm90::KEYS>(x, a, t, kv, keys);
}

/* 7, where a forbidden pair may have made elements of a row NaN: those that were stored as NaN or infinities are
 * computed again. bad: whether the thread's row may have some; sum: of its weights; scale: what O is multiplied with.
 */
__device__ __forceinline__ void store_again(const attune_cuda_arguments &a, const attune_cuda_serving &s, const tile &t,
                                            int row, u32 bad, float sum, float scale)
{
    if (!__any_sync(0xffffffffu, bad & 15))
        return;
    __syncwarp(); /* other threads of the row stored them */
    tile_coord at = row_coord(a, t, row);
    o_element *o = (o_element *)a.o.address + t.batch * a.o.batch + at.h * a.o.head + (t.row0 + at.q) * a.o.row;
#pragma unroll 1
    for (int d = first_column() + thread_index_remat() % 4; (bad & 15) && d < first_column() + sm90::COLUMNS; d += 4) {
        if (finite(widen<config::O_DTYPE>(((volatile o_element *)o)[d])))
            continue;
        recomputed_element again = recompute(a, s, t, at, d);
        store_output(o + d, (again.l == 0.0f ? again.o : again.o * (sum / again.l)) * scale);
    }
}

/* 7: store O and LSE. */
__device__ __forceinline__ void store(float (&o)[sm90::WIDTH_DV / 2], const float (&row_max)[2],
                                      const float (&row_sum)[2], const attune_cuda_arguments &a,
                                      const attune_cuda_serving &s, const tile &t, float factor)
{
    int lane = thread_index_remat() % 32, row = thread_row(t);
    bool paired = view_paired<o_element>(a.o), vectors = O_FLOAT32 ? paired : view_aligned<o_element>(a.o);
    constexpr int TOGETHER = O_FLOAT32 ? 1 : 4, FRAGMENTS = sm90::COLUMNS / 8; /* those that are stored at once */
    constexpr int AT_ONCE = FRAGMENTS / TOGETHER * TOGETHER;
    u32 bad = 0;
    float sum[2], scale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool valid = row + half * 8 < t.rows;
        sum[half] = row_sum[half];
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        tile_coord at = row_coord(a, t, row + half * 8), to = {t.batch, at.h, at.h_kv, t.row0 + at.q};
        row_total total = row_total_of(a, at.h, row_max[half] * (factor * ATTUNE_LN2), sum[half]);
        bool kept = total.sum != 0.0f || a.is_partial;
        scale[half] = total.sum == 0.0f ? total.weight : total.weight / total.sum;
        if (HAVE_MASK || config::TREE) {
            /* The sum is NaN if one of them is not finite. */
            float products = 0.0f;
#pragma unroll
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++)
                products += o[d * 4 + half * 2] * 0.0f + o[d * 4 + half * 2 + 1] * 0.0f;
            u32 lanes = __ballot_sync(0xffffffffu, products != 0.0f && valid && finite(sum[half]));
            bad |= (lanes >> (lane & ~3) & 15) << 4 * half;
        }
#pragma unroll
        for (int i = 0; i < sm90::WIDTH_DV / 4; i++) { /* not by the factor 0: O may be NaN */
            float &x = o[i / 2 * 4 + half * 2 + i % 2];
            x = kept ? x * scale[half] : 0.0f;
        }
        o_element *base =
            (o_element *)a.o.address + to.b * a.o.batch + to.h * a.o.head + to.q * a.o.row + first_column();
#pragma unroll
        for (int d = 0; d < AT_ONCE; d += TOGETHER)
            if constexpr (O_FLOAT32) {
                if (valid && vectors)
                    store_outputs(base + d * 8 + lane % 4 * 2, o[d * 4 + half * 2], o[d * 4 + half * 2 + 1], true);
            } else {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = pack<config::O_DTYPE>(o[(d + i) * 4 + half * 2], o[(d + i) * 4 + half * 2 + 1]);
                transpose_4x4(w);
                if (valid && vectors)
                    *(uint4 *)(base + (d + lane % 4) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        if (!vectors || FRAGMENTS % TOGETHER)
        /* Seldom needed, so short: O rotates in a loop that is not unrolled. */
#pragma unroll 1
            for (int d = 0; d < sm90::WIDTH_DV / 8; d++) {
                if (valid && d < FRAGMENTS && (!vectors || d >= AT_ONCE))
                    store_outputs(base + d * 8 + lane % 4 * 2, o[half * 2], o[half * 2 + 1], paired);
                float first[4] = {o[0], o[1], o[2], o[3]};
#pragma unroll
                for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
                    o[i] = i + 4 < sm90::WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - sm90::WIDTH_DV / 2];
            }
        if (valid && lane % 4 == 0 && first_column() == 0)
            store_state(a, to, total.most, total.sum, row_max[half] * (factor * ATTUNE_LN2), sum[half]);
    }
    if (HAVE_MASK || config::TREE)
#pragma unroll 1
        for (int half = 0; half < 2; half++)
            store_again(a, s, t, thread_row(t) + half * 8, bad >> 4 * half, half ? sum[1] : sum[0],
                        half ? scale[1] : scale[0]);
}

/* 7, of a part of the keys. */
__device__ __forceinline__ void store_part(const float (&o)[sm90::WIDTH_DV / 2], const float (&row_max)[2],
                                           const float (&row_sum)[2], const attune_cuda_serving &s, const tile &t)
{
    int column = thread_index_remat() % 4 * 2, row = thread_row(t);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int local = row - t.row + half * 8;
        if (row + half * 8 >= t.rows)
            continue;
        float *to = part_at(s, t, t.part);
#pragma unroll
        for (int d = 0; d < sm90::COLUMNS / 8; d++)
            *(float2 *)(to + local * HEAD_DIM_V + first_column() + d * 8 + column) =
                make_float2(o[d * 4 + half * 2], o[d * 4 + half * 2 + 1]);
        if (column == 0 && first_column() == 0)
            *(float2 *)(to + PART_ML + local * 2) = make_float2(row_max[half], sum);
    }
}

/* ------------------------------------------------------------------------------------------------------- consumers */

/* Releases the key tiles of rows that are none of the warp group's. */
__device__ __forceinline__ void skip_tiles(control &c, row_states &r, pipeline_state &k, int kv, int end)
{
    consumer_wait<&control::q>(c, r.q());
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
#pragma unroll 1
    for (; kv < end; kv += BLOCK_N) {
        consumer_wait<&control::k>(c, k);
        consumer_release<&control::k>(c, k);
        consumer_wait<&control::v>(c, k);
        consumer_release<&control::v>(c, k);
        advance(k);
    }
}

/* first: of the warp group's keys in the tile. */
__device__ __forceinline__ void load_there(key_bits &there, const control &c, u32 stage, int first = 0)
{
#pragma unroll
    for (int i = 0; i < sm90::KEYS / 32; i++)
        there[i] = c.there[stage][first / 32 + i];
}

/* Whether all rows of the tile see the keys of one that are there. */
__device__ __forceinline__ bool sees_all(const work &here, int kv)
{
    return kv >= here.inner.low && kv + BLOCK_N <= here.inner.high;
}

/* The descriptors of a stage, which are uniform in a warp: the compiler would move them to uniform registers before
 * each product otherwise. */
__device__ __forceinline__ u64 describe_k(u32 memory, const pipeline_state &k)
{
    return describe_k_major(memory + sm90::K_OFFSET + (u32)uniform((int)k.stage) * sm90::K_STAGE);
}

__device__ __forceinline__ u64 describe_v(u32 memory, const pipeline_state &v)
{
    u32 slabs = sm90::WIDE ? (u32)uniform(first_column()) / 64 * sm90::KV_SLAB : 0;
    return describe_n_major(memory + sm90::V_OFFSET + slabs + (u32)uniform((int)v.stage) * sm90::V_STAGE,
                            sm90::KV_SLAB);
}

/* O, the row maxima and sums of a tile's rows. A template, as the next two, so that only what is called is compiled. */
template <typename sm90>
__device__ __forceinline__ void compute(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                        const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                        u32 memory, const work &here, int kv, int end, int group, row_states &r,
                                        pipeline_state &k, float factor)
{
    const tile &t = here.of;
    bool in_turn = uniform(t.row + 64 < t.rows); /* the other warp group has rows too */
    u64 q_tile = describe_k_major(memory + (u32)group * 64 * 128), k_tile = describe_k(memory, k), v_tile;
    float x[sm90::KEYS / 2], alpha[2];
    u32 p[BLOCK_N / 16][4];
    key_bits there;
    /* 1, 2: wait for Q, and for K */
    consumer_wait<&control::q>(c, r.q());
    consumer_wait<&control::k>(c, k);
    if (in_turn)
        ping_pong_wait(group);
    wgmma_fence();
    /* 3: S = Q K^T */
    multiply_qk(x, q_tile, k_tile);
    if (in_turn)
        ping_pong_arrive(group);
    load_there(there, c, k.stage);
    wgmma_wait<0>();
    accumulators_done(x);
    consumer_release<&control::k>(c, k);
    advance(k);
    /* 4: score and mask hook */
    modify_scores(x, a, s, t, kv, there, sees_all(here, kv));
    /* 5: online softmax */
    softmax(x, row_max, row_sum, alpha, factor);
    round_p(p, x);
    /* As in forward_sm90.cu: no attempt without rescale. */
    bool rising = has_large_scores(row_max, factor);
#pragma unroll 1
    for (kv += BLOCK_N; kv < end; kv += BLOCK_N) {
        k_tile = describe_k(memory, k);
        pipeline_state v = before(k); /* of the tile before, as V's stages are those of K */
        v_tile = describe_v(memory, v);
        /* 2: wait for K of the next key tile */
        consumer_wait<&control::k>(c, k);
        if (in_turn)
            ping_pong_wait(group);
        wgmma_fence();
        /* 3: S = Q K^T */
        multiply_qk(x, q_tile, k_tile);
        /* 2: wait for V of this key tile */
        consumer_wait<&control::v>(c, v);
        wgmma_fence();
        /* 6: O += P V */
        multiply_pv(o, p, v_tile);
        if (in_turn)
            ping_pong_arrive(group);
        load_there(there, c, k.stage);
        wgmma_wait<1>(); /* S is done, O may not be */
        accumulators_done(x);
        consumer_release<&control::k>(c, k);
        advance(k);
        /* 4: score and mask hook */
        modify_scores(x, a, s, t, kv, there, sees_all(here, kv));
        wgmma_wait<0>();
        accumulators_done(o);
        consumer_release<&control::v>(c, v);
        /* 5: online softmax. Row maxima that are a result have to be exact. */
        if (rising || a.row_max.address || !softmax_without_rescale(p, x, row_max, row_sum, factor)) {
            softmax(x, row_max, row_sum, alpha, factor);
            rescale(o, alpha);
            round_p(p, x);
            rising = __any_sync(0xffffffffu, fminf(alpha[0], alpha[1]) < 1.0f / RESCALE_THRESHOLD) ||
                     has_large_scores(row_max, factor);
        }
    }
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
    pipeline_state v = before(k);
    v_tile = describe_v(memory, v);
    /* 2: wait for the last V */
    consumer_wait<&control::v>(c, v);
    if (in_turn)
        ping_pong_wait(group);
    wgmma_fence();
    /* 6: O += P V */
    multiply_pv(o, p, v_tile);
    if (in_turn)
        ping_pong_arrive(group);
    wgmma_wait<0>();
    accumulators_done(o);
    consumer_release<&control::v>(c, v);
}

/* ----------------------------------------------------------------------------------------------------- wide values */

/* 3: S = Q K^T of the warp group's keys; issued, not waited for. */
__device__ __forceinline__ void multiply_qk_wide(float (&s)[sm90::KEYS / 2], u64 q, u64 k)
{
#pragma unroll
    for (int step = 0; step < sm90::STEPS_D; step += 4)
        wgmma<sm90::KEYS>::ss4(s, q + step / 4 * sm90::Q_SLAB / 16, k + step / 4 * sm90::KV_SLAB / 16, step);
    wgmma_commit();
}

/* 6: O += P V of the warp group's columns, and all keys; issued, not waited for. */
__device__ __forceinline__ void multiply_pv_wide(float (&o)[sm90::WIDTH_DV / 2], u64 p, u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<sm90::WIDTH_DV>::template ss<0, 1>(o, p + step * 2, v + step * (16 * 128 / 16), 1);
    wgmma_commit();
}

/* The descriptor of Q, found again for each tile of keys: those of all steps of a product would be kept in registers
 * otherwise. */
__device__ __forceinline__ u64 describe_q(u32 memory)
{
    return describe_k_major((u32)uniform((int)memory));
}

/* The other warp group's value for each of the thread's rows, of which the lanes of a row give one. which: 0 or 1, of
 * two places, which are used in turn. */
__device__ __forceinline__ void exchange_rows(float (&x)[2], u32 memory, int group, int which)
{
    u32 row = (u32)(thread_index_remat() % 128 / 32 * 16 + thread_index_remat() % 32 / 4);
    u32 places = memory + sm90::MAXIMA_OFFSET + (u32)which * (2 * BLOCK_M * 4) + row * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (thread_index_remat() % 4 == 0)
            store_shared(places + (u32)(group * BLOCK_M + half * 8) * 4, __float_as_uint(x[half]));
    consumers::sync();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 bits;
        load_shared(bits, places + (u32)((group ^ 1) * BLOCK_M + half * 8) * 4);
        x[half] = __uint_as_float(bits);
    }
}

/* 5: online softmax. A row's maximum is raised where a score passes it by so much that weights may become too large, or
 * where maxima are a result (exact), as softmax_without_rescale does; both warp groups come to the same. */
__device__ __forceinline__ void softmax_wide(float (&s)[sm90::KEYS / 2], float (&row_max)[2], float (&row_sum)[2],
                                             float (&alpha)[2], u32 memory, int group, bool exact, float factor)
{
    float largest[2], other[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float &x = largest[half];
        x = -ATTUNE_INF;
#pragma unroll
        for (int n = 0; n < sm90::KEYS / 8; n++)
            x = fmaxf(x, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        other[half] = x;
    }
    exchange_rows(other, memory, group, 0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = fmaxf(fmaxf(largest[half], other[half]), row_max[half]);
        bool raised = exact || !((most - row_max[half]) * factor <= RESCALE_THRESHOLD_LOG2);
        most = raised ? most : row_max[half];
        float base = base_of(most), shift = base * factor;
        alpha[half] = exp2_fast((row_max[half] - base) * factor);
        row_max[half] = most;
        if (SCORES_MAY_BE_LARGE && __any_sync(0xffffffffu, fabsf(shift) >= LARGE_SCORE)) {
#pragma unroll
            for (int n = 0; n < sm90::KEYS / 8; n++) {
                s[n * 4 + half * 2] -= base;
                s[n * 4 + half * 2 + 1] -= base;
            }
            shift = 0.0f;
        }
        float even = row_sum[half] * alpha[half], odd = 0.0f;
#pragma unroll
        for (int n = 0; n < sm90::KEYS / 8; n++) {
            float &x = s[n * 4 + half * 2], &y = s[n * 4 + half * 2 + 1];
            x = exp2_fast(__fmaf_rn(x, factor, -shift));
            y = exp2_fast(__fmaf_rn(y, factor, -shift));
            even += x;
            odd += y;
        }
        row_sum[half] = even + odd;
    }
}

/* P of the warp group's keys in 16 bits, for the products of both. */
__device__ __forceinline__ void share_p(const float (&s)[sm90::KEYS / 2], u32 memory, int group)
{
    int lane = thread_index_remat() % 32;
    u32 row = (u32)(thread_index_remat() % 128 / 32 * 16 + lane / 4);
    u32 to = memory + sm90::P_OFFSET + row * 128 + (u32)lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < sm90::KEYS / 8; n++)
            store_shared(to + (u32)half * (8 * 128) + (((u32)(group * (sm90::KEYS / 8) + n) ^ row % 8) * 16),
                         pack(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
    fence_async();
    consumers::sync();
}

/* As compute. V is in the stages of K, of which there are two: one is loaded while the other one is computed. */
template <typename sm90>
__device__ __forceinline__ void compute_wide(float (&o)[sm90::WIDTH_DV / 2], float (&row_max)[2], float (&row_sum)[2],
                                             const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                             u32 memory, const work &here, int kv, int end, int group, row_states &r,
                                             pipeline_state &k, float factor)
{
    const tile &t = here.of;
    bool replaces = !v_is_of_k(a); /* V takes the place of K */
    /* 1: wait for Q */
    consumer_wait<&control::q>(c, r.q());
#pragma unroll 1
    for (; kv < end; kv += BLOCK_N) {
        float x[sm90::KEYS / 2], alpha[2];
        key_bits there;
        u64 q_tile = describe_q(memory), k_tile = describe_k(memory, k) + (u64)(group * sm90::KEYS * 128 / 16);
        u64 v_tile = describe_v(memory, k);
        /* 2: wait for K */
        consumer_wait<&control::k>(c, k);
        wgmma_fence();
        /* 3: S = Q K^T */
        multiply_qk_wide(x, q_tile, k_tile);
        load_there(there, c, k.stage, group * sm90::KEYS);
        wgmma_wait<0>();
        accumulators_done(x);
        if (replaces)
            consumer_release<&control::v>(c, k);
        /* 4: score and mask hook */
        modify_scores(x, a, s, t, kv + group * sm90::KEYS, there, sees_all(here, kv));
        /* 5: online softmax. Row maxima that are a result have to be exact. */
        softmax_wide(x, row_max, row_sum, alpha, memory, group, a.row_max.address != 0, factor);
        if (__any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f))
            rescale(o, alpha);
        share_p(x, memory, group);
        /* 2: wait for V */
        if (replaces)
            consumer_wait<&control::v>(c, k);
        wgmma_fence();
        /* 6: O += P V */
        multiply_pv_wide(o, describe_k_major((u32)uniform((int)(memory + sm90::P_OFFSET))), v_tile);
        wgmma_wait<0>();
        accumulators_done(o);
        consumer_release<&control::k>(c, k);
        advance(k);
    }
    consumer_release<&control::q>(c, r.q());
    r.advance_q();
    /* The sums of both warp groups, in one of the lanes of a row. */
    float other[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 1);
        row_sum[half] += __shfl_xor_sync(0xffffffffu, row_sum[half], 2);
        other[half] = row_sum[half];
    }
    exchange_rows(other, memory, group, 1);
#pragma unroll
    for (int half = 0; half < 2; half++)
        row_sum[half] = thread_index_remat() % 4 == 0 ? row_sum[half] + other[half] : 0.0f;
}

template <typename sm90>
__device__ __forceinline__ void consume(const attune_cuda_arguments &a, const attune_cuda_serving &s, control &c,
                                        u32 memory)
{
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128 - 1, 0);
    float factor = fold_factor(a.scale);
    row_states r = {0};
    pipeline_state k = {0, 0}; /* also V's, whose stages are those of K */
    if (group == sm90::GROUPS - 1)
        ping_pong_arrive(group); /* group 0 is the first to issue */
    for (;; r.advance_work()) {
        consumer_wait<&control::work>(c, r.work());
        const work &here = c.items[r.work().stage];
        const tile &t = here.of;
        int kv = uniform(here.kv), end = uniform(here.end), first = uniform(t.row) + group * 64;
        if (kv < 0)
            break;
        bool any = sm90::WIDE || uniform(first < t.rows);
        float row_max[2] = {-ATTUNE_INF, -ATTUNE_INF}, row_sum[2] = {0.0f, 0.0f}, o[sm90::WIDTH_DV / 2];
#pragma unroll
        for (int i = 0; i < sm90::WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        if (kv < end && !any)
            skip_tiles(c, r, k, kv, end);
        else if (kv < end) {
            if constexpr (sm90::WIDE)
                compute_wide<sm90>(o, row_max, row_sum, a, s, c, memory, here, kv, end, group, r, k, factor);
            else
                compute<sm90>(o, row_max, row_sum, a, s, c, memory, here, kv, end, group, r, k, factor);
        }
        if (!config::PARTS || uniform(t.parts) == 1)
            store(o, row_max, row_sum, a, s, t, factor);
        else if constexpr (config::PARTS) {
            store_part(o, row_max, row_sum, s, t);
            if (last_of_parts<consumers>(a, s, t)) {
                if constexpr (sm90::WIDE)
                    store_parts_together<consumers>(a, s, t, factor);
                else
                    store_parts<consumers>(a, s, t, factor);
            }
        }
        consumer_release<&control::work>(c, r.work());
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_serving_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + sm90::CONTROL_OFFSET);
    if (threadIdx.x == 0) {
        /* Of the warps of the producers, and of the consumers. */
        constexpr int COMMITS = sm90::PRODUCERS / 32 * ARRIVALS, RELEASES = sm90::GROUPS * 4 * ARRIVALS;
        for (int i = 0; i < 2; i++)
            pipeline_init<&control::work>(c, i, 1, RELEASES);
        pipeline_init<&control::q>(c, 0, COMMITS, RELEASES);
        for (int i = 0; i < STAGES; i++) {
            pipeline_init<&control::k>(c, i, COMMITS, RELEASES);
            pipeline_init<&control::v>(c, i, COMMITS, RELEASES);
        }
        fence_barrier_init();
    }
    __syncthreads();
    wait_for_launches();
    if (threadIdx.x < sm90::PRODUCERS) {
        registers_release<sm90::PRODUCER_REGISTERS>();
        produce(a, s, &k_map, &v_map, c, shared_address(memory));
    } else {
        registers_take<sm90::CONSUMER_REGISTERS>();
        consume<sm90>(a, s, c, shared_address(memory));
    }
}

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    attune_schedule(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ attune_cuda_serving s)
{
    extern __shared__ __align__(128) unsigned char memory[];
    schedule_step(a, s, memory);
}

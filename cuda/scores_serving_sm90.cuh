/* SPDX-License-Identifier: MIT */
/* The score and mask hook (stage 4) of serving_sm90.cu. */
#ifndef ATTUNE_CUDA_SCORES_SERVING_SM90_CUH
#define ATTUNE_CUDA_SCORES_SERVING_SM90_CUH

#include "stages_serving_sm90.cuh"

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
    for (int i = 0; i < BLOCK_N / 32; i++, kv += 32) {
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
__device__ __forceinline__ void modify_some(float (&x)[BLOCK_N / 2], const attune_cuda_arguments &a, const tile &t,
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
__device__ __forceinline__ void modify_scores(float (&x)[BLOCK_N / 2], const attune_cuda_arguments &a,
                                              const attune_cuda_serving &s, const tile &t, int kv,
                                              const key_bits &there, bool inner)
{
    constexpr int WORDS = BLOCK_N / 32;
    u32 keys[2][WORDS];
    bool all = inner;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        all = all && there[i] == ~0u;
    if (!HAVE_SCORE && a.scale <= 0.0f)
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
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
            for (int i = 0; i < BLOCK_N / 2; i++)
                x[i] = i + 16 < BLOCK_N / 2 ? x[i + 16] : done[i + 16 - BLOCK_N / 2];
#pragma unroll
            for (int i = 0; i + 1 < WORDS; i++)
                keys[0][i] = keys[0][i + 1], keys[1][i] = keys[1][i + 1];
        }
    } else
        modify_some<BLOCK_N>(x, a, t, kv, keys);
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache: the sequence of a tile, and where its keys are. Kernels walk logical tiles of keys; pages are
 * translated for addresses alone, so that results do not depend on them. What the caller's integers hold is checked
 * here, where they are read (docs/serving.md has the results). Addresses are chosen before loads, so
 * that no function here loads in a branch; arrays that are absent are zeros.
 */
#ifndef ATTUNE_SERVING_H
#define ATTUNE_SERVING_H

#include "quantised.h"

/* Where the attune_opencl_cache is: in the workspace, or a kernel's argument, whose text says so. */
#ifndef ATTUNE_CACHE_SPACE
#define ATTUNE_CACHE_SPACE __global
#endif

/* A kernel's parameters after ATTUNE_KERNEL_PARAMETERS: where the arrays of attune_opencl_serving are. */
#define ATTUNE_SERVING_PARAMETERS                                                                                      \
    , __global const uchar *restrict q_start, __global const uchar *restrict kv_lens,                                  \
        __global const uchar *restrict kv_first, __global const uchar *restrict count,                                 \
        __global const uchar *restrict pages, __global const uchar *restrict pages_start,                              \
        __global const uchar *restrict tree, __global const uchar *restrict k_scale,                                   \
        __global const uchar *restrict v_scale, __global const uchar *restrict schedule

#define NO_PAGE 0xffffffffu

/* Where a workgroup has one item, it meets no other. */
#if THREADS > 1u
#define MEET() barrier(CLK_LOCAL_MEM_FENCE)
#else
#define MEET()
#endif

/* The rows of a sequence are those from row0 on of `batch` of q and o, and those from token0 on of all sequences'. Row
 * i is at q = position + i of the keys. */
typedef struct sequence {
    uint b, kv_h, batch, row0, token0, q_len, kv_len, kv_first, entries;
    int position;
#if SHARES
    __local const uint4 *members; /* layout_members.h */
    __local const uint2 *queries;
#endif
    __global const uchar *table; /* of its first entry */
    long entry_stride;
    ATTUNE_CACHE_SPACE const attune_opencl_cache *of;
} sequence;

ATTUNE_FUNCTION __global const uchar *array_at(__global const uchar *memory,
                                               ATTUNE_CACHE_SPACE const attune_opencl_array *a, uint i)
{
    return memory + a->offset + (long)i * a->stride[0];
}

ATTUNE_FUNCTION int integer_at(__global const uchar *memory, ATTUNE_CACHE_SPACE const attune_opencl_array *a, uint i)
{
    return *(__global const int *)array_at(memory, a, i);
}

/* q_len: the most rows of a sequence. */
ATTUNE_FUNCTION void begin_rows(sequence *s, uint q_len, __global const uchar *q_start, __global const uchar *count)
{
    ATTUNE_CACHE_SPACE const attune_opencl_cache *of = s->of;
    const int first = integer_at(q_start, &of->q_start, s->b), end = integer_at(q_start, &of->q_start, s->b + 1u);
    const int packed = (of->has & ATTUNE_OPENCL_HAS_Q_START) != 0u, live = integer_at(count, &of->count, 0u);
    const int valid = first >= 0 && first <= end && (uint)end <= of->tokens && (uint)(end - first) <= q_len;
    s->batch = packed ? 0u : s->b;
    s->row0 = packed && valid ? (uint)first : 0u;
    s->token0 = packed ? s->row0 : s->b * q_len;
    s->q_len = !packed ? q_len : valid ? (uint)(end - first) : 0u;
    if (of->has & ATTUNE_OPENCL_HAS_COUNT && (int)s->b >= live)
        s->q_len = 0u;
}

/* The block table's row. */
ATTUNE_FUNCTION void begin_table(sequence *s, __global const uchar *pages, __global const uchar *pages_start)
{
    ATTUNE_CACHE_SPACE const attune_opencl_cache *of = s->of;
    const int first = integer_at(pages_start, &of->pages_start, s->b);
    const int end = integer_at(pages_start, &of->pages_start, s->b + 1u);
    const int list = (of->has & ATTUNE_OPENCL_HAS_PAGES_START) != 0u;
    const int valid = first >= 0 && first <= end && (uint)end <= of->entries;
    /* A sequence without entries has another's table, which key_of may load. */
    s->table = array_at(pages, &of->pages, !list ? s->b : valid && first < end ? (uint)first : 0u);
    s->entry_stride = list ? of->pages.stride[0] : of->pages.stride[1];
    s->entries = !list ? of->entries : valid ? (uint)(end - first) : 0u;
    if (!(of->has & ATTUNE_OPENCL_HAS_PAGES))
        s->entries = 1u;
}

/* kv_len: the most keys of a sequence. */
ATTUNE_FUNCTION void begin_length(sequence *s, uint kv_len, __global const uchar *kv_lens)
{
    ATTUNE_CACHE_SPACE const attune_opencl_cache *of = s->of;
    const uint page = max(of->page, 1u); /* 0: the launch that has nothing to do */
    const uint most = s->entries > kv_len / page ? kv_len : s->entries * page;
    const uint length = (uint)integer_at(kv_lens, &of->kv_len, s->b); /* a negative one is above all limits */
    s->kv_len = length <= most ? length : 0u;
    s->position = (int)s->kv_len - (int)s->q_len;
    s->kv_first = 0u;
}

ATTUNE_FUNCTION void begin_first(sequence *s, __global const uchar *kv_first)
{
    s->kv_first = (uint)clamp(integer_at(kv_first, &s->of->kv_first, s->b), 0, (int)s->kv_len);
}

/* The page of a key and its row there, of a sequence that has keys. */
ATTUNE_FUNCTION uint2 key_of(const sequence *s, uint kv)
{
    const int there = kv >= s->kv_first && kv < s->kv_len;
    const uint index = there ? kv / s->of->page : 0u;
    uint page = *(__global const uint *)(s->table + (long)index * s->entry_stride);
    if (!(s->of->has & ATTUNE_OPENCL_HAS_PAGES))
        page = s->b;
    return (uint2)(there && page < s->of->pool ? page : NO_PAGE, kv - index * s->of->page);
}

/* The factor of a key's row: 1 without factors. */
ATTUNE_FUNCTION float factor_of(const sequence *s, __global const uchar *scale,
                                ATTUNE_CACHE_SPACE const attune_opencl_array *a, uint has, uint2 key)
{
    const float factor = *(__global const float *)(array_at(scale, a, key.x) + (long)s->kv_h * a->stride[1] +
                                                   (long)key.y * a->stride[2]);
    return s->of->has & has ? factor : 1.0f;
}

/* Whether a tile of keys that ends before `end` has drafts of a tree. */
ATTUNE_FUNCTION int sees_some(const sequence *s, uint end)
{
    return (s->of->has & ATTUNE_OPENCL_HAS_TREE) != 0u && (s->position < 0 || end > (uint)s->position);
}

/* Whether a row sees a key, by the bits of its tree; keys before the drafts are seen. */
ATTUNE_FUNCTION int sees_draft(const sequence *s, __global const uchar *tree, uint query, uint kv)
{
    const int draft = (int)kv - s->position;
    const uint word = (uint)draft / 32u;
    const int known = draft >= 0 && word < s->of->tree_words;
    const uint bits = *(__global const uint *)(array_at(tree, &s->of->tree, s->batch) +
                                               (long)(s->row0 + query) * s->of->tree.stride[1] +
                                               (long)(known ? word : 0u) * s->of->tree.stride[2]);
    return draft < 0 || (known && (bits >> ((uint)draft & 31u) & 1u) != 0u);
}

#endif

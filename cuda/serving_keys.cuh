/* SPDX-License-Identifier: MIT */
/* Where the keys of a cache are. */
#ifndef ATTUNE_CUDA_SERVING_KEYS_CUH
#define ATTUNE_CUDA_SERVING_KEYS_CUH

#include "cached.cuh"
#include "serving_sequences.cuh"

/* Where a key is: a page, -1 = there is none, and the row in it. */
__device__ __forceinline__ int2 key_of(const tile &t, const attune_cuda_serving &s, int kv)
{
    if (kv < t.kv_first || kv >= t.kv_len)
        return make_int2(-1, 0);
    if (!s.pages.address)
        return make_int2(t.b, kv);
    int entry = kv / known_here(s.page), page = entry < t.entries ? t.table[entry * t.entry_stride] : -1;
    return make_int2(page >= 0 && page < s.pool ? page : -1, kv - entry * s.page);
}

/* The head's first row in a page 0. */
template <int TYPE> __device__ __forceinline__ const byte *cached_head(const attune_cuda_view &v, const tile &t)
{
    return (const byte *)v.address + t.h_kv * v.head * TYPE_BYTES<TYPE>;
}

__device__ __forceinline__ i64 row_at(const attune_cuda_view &v, int2 key)
{
    return key.x * v.batch + key.y * v.row;
}

/* The factor of a key's row. */
template <int TYPE> __device__ __forceinline__ float factor_of(const attune_cuda_array &scale, const tile &t, int2 key)
{
    if (!HAS_FACTORS<TYPE> || !scale.address)
        return 1.0f;
    return ((const float *)scale.address)[key.x * scale.stride[0] + t.h_kv * scale.stride[1] + key.y * scale.stride[2]];
}

#endif

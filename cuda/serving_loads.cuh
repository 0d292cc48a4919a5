/* SPDX-License-Identifier: MIT */
/* Tiles of K and V of a cache: where their keys are, and their rows to shared memory. Included by serving_sm80.cu. */
#ifndef ATTUNE_CUDA_SERVING_LOADS_CUH
#define ATTUNE_CUDA_SERVING_LOADS_CUH

#include "mma.cuh"
#include "serving_keys.cuh"

/* The keys of a tile to come: fetched while this one is computed, stored where none reads those of the one before. */
struct next_keys {
    static constexpr int COUNT = (BLOCK_N + THREADS - 1) / THREADS; /* a thread's keys */
    int2 key[COUNT];
};

__device__ __forceinline__ void fetch_keys(next_keys &n, const tile &t, const attune_cuda_serving &s, int kv0)
{
#pragma unroll
    for (int i = 0; i < n.COUNT; i++)
        n.key[i] = key_of(t, s, kv0 + i * THREADS + thread_index_remat());
}

__device__ __forceinline__ void begin_keys(next_keys &, const attune_cuda_serving &, int)
{
}

__device__ __forceinline__ void advance_keys(next_keys &, const attune_cuda_serving &)
{
}

/* Negative if the key is absent. */
__device__ __forceinline__ int presence(const int2 &key)
{
    return key.x;
}

/* Returns whether one of the thread's keys is absent. */
__device__ __forceinline__ bool store_keys(const next_keys &n, int2 *keys, const attune_cuda_arguments &,
                                           const attune_cuda_serving &)
{
    bool absent = false;
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        int column = i * THREADS + thread_index_remat();
        if (BLOCK_N % THREADS == 0 || column < BLOCK_N) {
            keys[column] = n.key[i];
            absent = absent || n.key[i].x < 0;
        }
    }
    return absent;
}

/* Copies the rows of a tile's keys; those of absent ones, and columns from DIM on, become 0. */
template <int TYPE, int DIM, int CHUNKS>
__device__ __forceinline__ void load_rows(u32 to, const attune_cuda_view &v, const attune_cuda_array &scale,
                                          const tile &t, const int2 *keys, float *factors)
{
    const byte *from = cached_head<TYPE>(v, t);
    int thread = thread_index_remat();
    if constexpr (TYPE == config::DTYPE) {
        constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS>, STEP = THREADS / ROW_LANES;
        int chunk = thread % ROW_LANES;
        bool aligned = view_aligned(v);
#pragma unroll 4
        for (int row = thread / ROW_LANES; row < BLOCK_N; row += STEP) {
            int2 key = keys[row];
            const element *source = (const element *)from + (key.x < 0 ? 0 : row_at(v, key)) + chunk * PER_CHUNK;
#pragma unroll
            for (int i = 0; i < CHUNKS; i += ROW_LANES)
                copy_chunk(to + chunk_offset<CHUNKS>(row, chunk + i), source + i * PER_CHUNK,
                           key.x >= 0 && (chunk + i) * PER_CHUNK < DIM, aligned);
        }
    } else if constexpr (CODES) {
        /* The loads of some chunks, then their codes and factors. */
        constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS>, STEP = THREADS / ROW_LANES, ALL = CHUNKS / ROW_LANES;
        constexpr int EACH = ALL <= 4 ? ALL : ALL % 4 == 0 ? 4 : ALL % 3 == 0 ? 3 : ALL % 2 == 0 ? 2 : 1;
        constexpr int ROWS = EACH < 4 && ALL == EACH && 4 / EACH * STEP <= BLOCK_N ? 4 / EACH : 1;
        constexpr int FACTORS = HAS_BLOCKS<TYPE> ? DIM / 32 : 1;
        bool aligned = cache_aligned<TYPE>(v, 8);
#pragma unroll 1
        for (int index = thread / ROW_LANES; index < BLOCK_N * (ALL / EACH); index += ROWS * STEP) {
            int first = index / (ALL / EACH), lane = index % (ALL / EACH) * EACH * ROW_LANES + thread % ROW_LANES;
            eight<TYPE> x[ROWS][EACH];
            bool there[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int row = first + r * STEP;
                int2 key = row < BLOCK_N ? keys[row] : make_int2(-1, 0);
                there[r] = key.x >= 0;
                const byte *source = from + (there[r] ? row_at(v, key) : 0) * TYPE_BYTES<TYPE>;
                float factor = there[r] ? factor_of<TYPE>(scale, t, key) : 0.0f;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (there[r] && (lane + i * ROW_LANES) * 8 < DIM)
                        load_eight(x[r][i], source, (lane + i * ROW_LANES) * 8, factor, aligned);
                    else
                        x[r][i].factor = 0.0f;
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int row = first + r * STEP;
                if (row >= BLOCK_N)
                    break;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    int chunk = lane + i * ROW_LANES;
                    bool valid = there[r] && chunk * 8 < DIM;
                    u32 word[4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        word[j] = valid ? codes_of(x[r][i], 2 * j) : 0;
                    store_shared_4(to + chunk_offset<CHUNKS>(row, chunk), word[0], word[1], word[2], word[3]);
                    if (HAS_BLOCKS<TYPE> ? chunk % 4 == 0 && chunk * 8 < DIM : chunk == 0)
                        factors[row * FACTORS + chunk / 4] = x[r][i].factor;
                }
            }
        }
    } else {
        /* Eight elements at a time, of float32: two chunks. */
        constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS> / 2, STEP = THREADS / ROW_LANES;
        int lane = thread % ROW_LANES;
        bool aligned = cache_aligned<TYPE>(v, 8);
#pragma unroll 1
        for (int row = thread / ROW_LANES; row < BLOCK_N; row += STEP) {
            int2 key = keys[row];
            const byte *source = from + (key.x < 0 ? 0 : row_at(v, key)) * TYPE_BYTES<TYPE>;
            float factor = key.x < 0 ? 0.0f : factor_of<TYPE>(scale, t, key);
#pragma unroll 4
            for (int i = lane; i < CHUNKS / 2; i += ROW_LANES) {
                u32 x[8] = {};
                if (key.x >= 0 && i * 8 < DIM) {
                    eight<TYPE> loaded;
                    load_eight(loaded, source, i * 8, factor, aligned);
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        x[j] = __float_as_uint(value_of(loaded, j));
                }
                store_shared_4(to + chunk_offset<CHUNKS>(row, i * 2), x[0], x[1], x[2], x[3]);
                store_shared_4(to + chunk_offset<CHUNKS>(row, i * 2 + 1), x[4], x[5], x[6], x[7]);
            }
        }
    }
    copy_commit();
}

/* ---------------------------------------------------------------------------------------------------- several stages
 */

/* Where a key is in the tensors of K and V: bytes after the head's first row in page 0. */
struct key_place {
    i64 k, v;
};

/* That of a key that is absent, of which the second half is looked at alone. */
constexpr u32 ABSENT = 0x80000000u;

__device__ __forceinline__ bool is_absent(i64 place)
{
    return (u32)((u64)place >> 32) == ABSENT;
}

__device__ __forceinline__ int presence(const key_place &place)
{
    return is_absent(place.k) ? -1 : 0;
}

/* The keys of a tile to come, a thread's: an entry of the table and the row in its page, which follow from those of the
 * tile before without a division, and what the table says, which is looked at when the next tile begins, so that no
 * thread waits for it. */
struct next_places {
    static constexpr int COUNT = next_keys::COUNT;
    int entries, rows; /* from a tile's to the next one's */
    int entry[COUNT], row[COUNT], page[COUNT];
};

__device__ __forceinline__ void begin_keys(next_places &n, const attune_cuda_serving &s, int kv0)
{
    int page = known_here(s.page), kv = kv0 + thread_index_remat();
    n.entries = BLOCK_N / page;
    n.rows = BLOCK_N - n.entries * page;
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        n.entry[i] = (kv + i * THREADS) / page;
        n.row[i] = kv + i * THREADS - n.entry[i] * page;
    }
}

/* To the keys of the next tile. */
__device__ __forceinline__ void advance_keys(next_places &n, const attune_cuda_serving &s)
{
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        n.entry[i] += n.entries;
        n.row[i] += n.rows;
        if (n.row[i] >= s.page) {
            n.row[i] -= s.page;
            n.entry[i]++;
        }
    }
}

__device__ __forceinline__ void fetch_keys(next_places &n, const tile &t, const attune_cuda_serving &s, int kv0)
{
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        int kv = kv0 + i * THREADS + thread_index_remat();
        n.page[i] = -1;
        if (kv >= t.kv_first && kv < t.kv_len)
            n.page[i] = !s.pages.address ? t.b : n.entry[i] < t.entries ? t.table[n.entry[i] * t.entry_stride] : -1;
    }
}

__device__ __forceinline__ bool store_keys(const next_places &n, key_place *places, const attune_cuda_arguments &a,
                                           const attune_cuda_serving &s)
{
    bool absent = false;
#pragma unroll
    for (int i = 0; i < n.COUNT; i++) {
        int column = i * THREADS + thread_index_remat(), page = n.page[i];
        if (BLOCK_N % THREADS == 0 || column < BLOCK_N) {
            bool there = page >= 0 && (!s.pages.address || page < s.pool);
            key_place at = {(i64)((u64)ABSENT << 32), (i64)((u64)ABSENT << 32)};
            if (there)
                at = {(page * a.k.batch + n.row[i] * a.k.row) * TYPE_BYTES<K_TYPE>,
                      (page * a.v.batch + n.row[i] * a.v.row) * TYPE_BYTES<V_TYPE>};
            places[column] = at;
            absent = absent || !there;
        }
    }
    return absent;
}

template <bool SEVERAL_STAGES> struct next_of_tile {
    typedef next_keys type;
};
template <> struct next_of_tile<true> {
    typedef next_places type;
};
template <bool SEVERAL_STAGES> struct key_of_tile {
    typedef int2 type;
};
template <> struct key_of_tile<true> {
    typedef key_place type;
};

/* The kernel, which is no template, has calls of both in statements that are discarded. */
template <int TYPE, int DIM, int CHUNKS>
__device__ __forceinline__ void load_rows(u32, const attune_cuda_view &, const attune_cuda_array &, const tile &,
                                          const key_place *, float *)
{
}

/* Copies the rows of a tile's keys, as load_rows. */
template <int DIM, int CHUNKS>
__device__ __forceinline__ void copy_rows(u32 to, const byte *from, const i64 *places, bool aligned)
{
    constexpr int ROW_LANES = CHUNK_GROUP<CHUNKS>, STEP = THREADS / ROW_LANES, PLACES = sizeof(key_place) / sizeof(i64);
    int thread = thread_index_remat(), first = thread / ROW_LANES, chunk = thread % ROW_LANES;
    from += chunk * 16;
    if constexpr (STEP % 8 == 0 && BLOCK_N % STEP == 0)
        if (aligned) {
            /* A thread's rows are a multiple of 8 apart: the swizzle is the same for all of them. */
            u32 target = to + chunk_offset<CHUNKS>(first, chunk);
            i64 place[BLOCK_N / STEP];
            places += first * PLACES;
#pragma unroll
            for (int i = 0; i < BLOCK_N / STEP; i++)
                place[i] = places[i * STEP * PLACES];
#pragma unroll
            for (int i = 0; i < BLOCK_N / STEP; i++) {
                bool there = !is_absent(place[i]);
                const byte *source = from + (there ? place[i] : 0);
#pragma unroll
                for (int j = 0; j < CHUNKS; j += ROW_LANES)
                    copy_async(target + (u32)((i * STEP * CHUNKS + j) * 16), source + j * 16,
                               there && (CHUNKS * PER_CHUNK == DIM || (chunk + j) * PER_CHUNK < DIM));
            }
            return;
        }
#pragma unroll 1
    for (int row = first; row < BLOCK_N; row += STEP) {
        i64 place = places[row * PLACES];
        bool there = !is_absent(place);
        const byte *source = from + (there ? place : 0);
#pragma unroll
        for (int j = 0; j < CHUNKS; j += ROW_LANES)
            copy_chunk(to + chunk_offset<CHUNKS>(row, chunk + j), (const element *)(source + j * 16),
                       there && (chunk + j) * PER_CHUNK < DIM, aligned);
    }
}

#endif

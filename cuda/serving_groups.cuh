/* SPDX-License-Identifier: MIT */
/* Tiles with rows of several sequences that share keys (config::SHARES). Such a tile has the queries of its members one
 * after another, over a part of the keys that all of them have; its results are partial. */
#ifndef ATTUNE_CUDA_SERVING_GROUPS_CUH
#define ATTUNE_CUDA_SERVING_GROUPS_CUH

#include "serving_schedule.cuh"

/* In shared memory. Of a member, `row` is its first query in the tile. */
struct group_of_rows {
    tile of;
    sequence member[BLOCK_M];
    unsigned char of_query[BLOCK_M]; /* the member of each query of the tile */
    unsigned char finished[BLOCK_M]; /* whether this CTA computed the last part of a member */
};

__device__ __forceinline__ group_of_rows &group_of(const tile &t)
{
    return *(group_of_rows *)&t;
}

/* The sequence of a packed row; with config::SHARES of a tile in shared memory. */
template <typename TILE>
__device__ __forceinline__ const sequence &sequence_of(const attune_cuda_arguments &a, const TILE &t, int row)
{
    if constexpr (config::SHARES)
        if (t.members > 1) {
            const group_of_rows &g = group_of(t);
            return g.member[g.of_query[row / known_here(a.heads / known_here(a.kv_heads))]];
        }
    return t;
}

/* A packed row's head and query of its sequence. */
template <typename TILE>
__device__ __forceinline__ tile_coord row_coord(const attune_cuda_arguments &a, const TILE &t, int row)
{
    int group = known_here(a.heads / known_here(a.kv_heads)), q = row / group;
    if constexpr (config::SHARES)
        if (t.members > 1) {
            const group_of_rows &g = group_of(t);
            const sequence &of = g.member[g.of_query[q]];
            return {of.b, t.h + row - q * group, t.h_kv, q - of.row};
        }
    return {t.b, t.h + row - q * group, t.h_kv, q};
}

/* Whether a packed row is computed: that of another member need not be, computes_again(). */
template <typename TILE>
__device__ __forceinline__ bool is_computed(const attune_cuda_arguments &a, const TILE &t, int row)
{
    if constexpr (SHARES)
        return t.only < 0 || group_of(t).of_query[row / known_here(a.heads / known_here(a.kv_heads))] == t.only;
    return true;
}

/* After a part of a group: whether its members are now computed one after another. Over the union of their intervals
 * of keys a tile may have values that no row of a member sees, and that its own tile would not read: where they are not
 * finite, their products with 0 are NaN (`bad`), and a member's results would depend on the others'. */
template <typename TILE> __device__ __forceinline__ bool computes_again(TILE &t, bool bad)
{
    if constexpr (SHARES && config::HAVE_MASK_RANGE) {
        if (t.members == 1)
            return false;
        int next = t.only + 1;
        if (!__syncthreads_or(next ? next < t.members : bad))
            return false;
        if (threadIdx.x == 0)
            t.only = next;
        return true;
    }
    return false;
}

/* Finds the members of an item: the sequences after its own whose first parts, which others compute, include its part.
 * Each warp finds them, and the first one stores them. */
template <typename TILE>
__device__ __forceinline__ void find_members(group_of_rows &g, TILE &t, const attune_cuda_arguments &a,
                                             const attune_cuda_serving &s)
{
    const attune_cuda_shared_scheduled *of = (const attune_cuda_shared_scheduled *)scheduled_of(s);
    int group = known_here(a.heads / known_here(a.kv_heads)), lane = (int)threadIdx.x % 32;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    int room = BLOCK_M / group, members = 0, queries = 0;
    bool more = t.parts > 1 && t.q_len <= room, writes = threadIdx.x < 32;
    if (more && writes) {
#pragma unroll 1
        for (int i = lane; i < BLOCK_M; i += 32)
            g.of_query[i] = 0;
        __syncwarp();
    }
#pragma unroll 1
    for (int j = 0; j < BLOCK_M && more; j += 32) {
        tile mine;
        mine.b = (int)min((i64)t.b + j + lane, (i64)MOST_INT);
        sequence_rows rows = rows_of(a, s, mine.b, j + lane < BLOCK_M ? live : 0);
        bool ends = rows.count > 0 && j + lane > 0 && t.part >= of[mine.b].others;
        u32 end = __ballot_sync(0xffffffffu, ends);
        int count = lane < (end ? __ffs((int)end) - 1 : 32) ? min(rows.count, room + 1) : 0, sum = count;
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            int other = __shfl_up_sync(0xffffffffu, sum, i);
            sum += lane >= i ? other : 0;
        }
        bool is_member = count > 0 && queries + sum <= room;
        u32 all = __ballot_sync(0xffffffffu, is_member);
        int index = members + __popc(all & ((1u << lane) - 1));
        if (is_member && writes) {
            mine.row0 = rows.first;
            mine.q_len = rows.count;
            find_keys(mine, a, s);
            mine.h = t.h;
            mine.h_kv = t.h_kv;
            mine.row = queries + sum - count;
            mine.rows = count * group;
            g.member[index] = mine;
#pragma unroll 1
            for (int i = 0; i < count; i++)
                g.of_query[mine.row + i] = (unsigned char)index;
        }
        members += __popc(all);
        queries = all ? queries + __shfl_sync(0xffffffffu, sum, 31 - __clz((int)all)) : queries;
        more = !end;
    }
    t.members = max(members, 1);
    if (members > 1)
        t.rows = queries * group;
}

/* With config::SHARES, the rows of an item are in shared memory before any of them is looked up. */
template <typename TILE>
__device__ __forceinline__ void begin_rows(TILE &t, TILE &found, const attune_cuda_arguments &a,
                                           const attune_cuda_serving &s)
{
    if constexpr (SHARES) {
        find_members(group_of(t), found, a, s);
        if (threadIdx.x == 0)
            t = found;
        __syncthreads();
    }
}

/* Stores the tile; where that was done before, the fixed part that is computed. */
__device__ __forceinline__ void publish(tile &t, const tile &found)
{
    if constexpr (SHARES) {
        t.fixed = found.fixed;
        t.fixed_first = found.fixed_first;
        t.fixed_last = found.fixed_last;
    } else
        t = found;
}

/* Counts a part of each member; g.finished of a member is then whether it was the last, and the CTA sees the results of
 * all its parts. */
__device__ __forceinline__ void count_parts(group_of_rows &g, int members, const attune_cuda_arguments &a,
                                            const attune_cuda_serving &s)
{
    static_assert(BLOCK_M <= THREADS, "a thread counts for one member");
    __threadfence();
    __syncthreads();
    if ((int)threadIdx.x < members) {
        const sequence &mine = g.member[threadIdx.x];
        attune_cuda_shared_scheduled of = ((const attune_cuda_shared_scheduled *)scheduled_of(s))[mine.b];
        bool last = false;
        if (of.parts > 1 && of.counter >= 0 && of.counter + (i64)mine.h_kv < counter_count(s)) {
            int *counter = counters_of(a, s) + of.counter + mine.h_kv;
            last = atomicAdd(counter, 1) == of.parts - 1;
            if (last)
                *counter = 0;
        }
        g.finished[threadIdx.x] = last;
    }
    __syncthreads();
    __threadfence();
}

/* The tile of a member's own rows, of whose parts this CTA computed the last. */
template <typename TILE>
__device__ __forceinline__ void find_member(TILE &t, const sequence &member, const attune_cuda_arguments &a,
                                            const attune_cuda_serving &s)
{
    t.b = member.b;
    t.h = member.h;
    t.h_kv = member.h_kv;
    t.row = 0;
    t.rows = member.rows;
    t.row0 = member.row0;
    t.q_len = member.q_len;
    find_keys(t, a, s);
    place_item(t, s, ((const attune_cuda_shared_scheduled *)scheduled_of(s))[t.b], t.h_kv, 0);
}

/* Where the partial results of the parts before `end` are: that of part i in slot + i, with the tile's first row at
 * `row`. */
struct parts_place {
    int end;
    i64 slot;
    int row;
};

/* Of part i. A schedule of other lengths may say anything. */
template <typename TILE>
__device__ __forceinline__ parts_place place_of(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                const TILE &t, int i)
{
    const attune_cuda_shared_scheduled *all = (const attune_cuda_shared_scheduled *)scheduled_of(s);
    attune_cuda_shared_scheduled of = all[t.b];
    int b = t.b, query0 = of.query0;
    parts_place p = {t.parts, t.slot, 0};
#pragma unroll 1
    while (i < of.others && of.leader >= 0 && of.leader < b) {
        p.end = of.others;
        b = of.leader;
        of = all[b];
        p.slot = of.slot + (i64)t.h_kv * max(of.items, 1) - of.others;
        p.row = (query0 - of.query0) * (a.heads / a.kv_heads);
    }
    p.end = max(p.end, i + 1);
    return p;
}

#endif

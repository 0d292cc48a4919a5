/* SPDX-License-Identifier: MIT */
/*
 * The schedule of a step over a cache whose tiles may have rows of several sequences (config::SHARES). Sequences one
 * after another that share a part of their keys, and whose rows one tile has room for, are a group: a part that several
 * of them share is an item of the first, with the rows of all. Parts are fixed; without config::SPLIT_KEYS they are as
 * long as the keys of all items divided by the CTAs. What is shared is computed together if these are fewer keys and no
 * more time, which is that of the longest item, or of all items and merges, divided by the CTAs.
 */
#ifndef ATTUNE_CUDA_SERVING_SHARED_SCHEDULE_CUH
#define ATTUNE_CUDA_SERVING_SHARED_SCHEDULE_CUH

#include "serving_schedule.cuh"

constexpr int GATHERED = 64; /* sequences that are searched for groups at once; no group has some of two such runs */

/* Of a sequence: its tiles; the first key and the end; the keys that it has in common with the one before it in its
 * group, and the one after it with this one; its rows, and those before its own in a tile of the group. It is kept in
 * the place of the sequence's entry. */
struct shared_work {
    int tiles, first, end;
    int shared, leads;
    int q_len, query0;
};

__device__ __forceinline__ shared_work work_of(const attune_cuda_shared_scheduled &of)
{
    return {of.item, of.items, of.slot, of.counter, of.parts, of.others, of.query0};
}

__device__ __forceinline__ void store_work(attune_cuda_shared_scheduled &to, const shared_work &w)
{
    to.item = w.tiles, to.items = w.first, to.slot = w.end, to.counter = w.shared, to.parts = w.leads;
    to.others = w.q_len, to.leader = 0, to.query0 = w.query0;
}

/* A way to divide the work. */
struct division {
    int part_keys;
    i64 least;      /* tiles with more keys are split */
    i64 keys, time; /* of all items; the time in keys of an item */
};

/* The parts of each of a sequence's tiles, and how many of them, the first, items of sequences before it have.
 * TOGETHER: sequences compute the parts that they share together. */
struct shared_parts {
    int parts, others;
};

template <bool TOGETHER = true>
__device__ __forceinline__ shared_parts parts_of(const division &d, const shared_work &w)
{
    int first = w.first / d.part_keys, shared = w.shared / d.part_keys;
    bool joined = TOGETHER && max(w.shared, w.leads) / d.part_keys > first;
    if (w.end - w.first <= d.least && !joined)
        return {1, 0};
    return {(w.end - 1) / d.part_keys + 1 - first, TOGETHER ? max(shared - first, 0) : 0};
}

/* Over all sequences: the partial results; the keys of all items, of sequences that share parts those of the first and
 * what the others have more; the keys of the longest item; the most keys that two sequences share. */
struct division_sums {
    i64 slots, keys;
    int longest, shared;
};

__device__ __forceinline__ void add_to(division_sums &x, i64 slots, i64 keys, int longest, int shared)
{
    x.slots += slots;
    x.keys += keys;
    x.longest = max(x.longest, longest);
    x.shared = max(x.shared, shared);
}

/* By all threads. of_warps: of SCHEDULE_WARPS. */
template <bool TOGETHER>
__device__ __forceinline__ division_sums sum_sequences(const division &d, const attune_cuda_shared_scheduled *of,
                                                       int batch, division_sums *of_warps)
{
    division_sums x = {0, 0, 0, 0};
#pragma unroll 1
    for (int b = (int)threadIdx.x; b < batch; b += SCHEDULE_THREADS) {
        shared_work w = work_of(of[b]);
        shared_parts p = parts_of<TOGETHER>(d, w);
        int shared = TOGETHER ? w.shared / d.part_keys * d.part_keys : 0, keys = w.end - w.first;
        add_to(x, p.parts > 1 ? (i64)w.tiles * (p.parts - p.others) : 0, (i64)w.tiles * (w.end - max(w.first, shared)),
               !w.tiles      ? 0
               : p.parts > 1 ? min(keys, d.part_keys)
                             : keys,
               w.shared);
    }
#pragma unroll 1
    for (int i = 16; i > 0; i /= 2)
        add_to(x, __shfl_xor_sync(0xffffffffu, x.slots, i), __shfl_xor_sync(0xffffffffu, x.keys, i),
               __shfl_xor_sync(0xffffffffu, x.longest, i), __shfl_xor_sync(0xffffffffu, x.shared, i));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = {0, 0, 0, 0};
#pragma unroll 1
    for (int w = 0; w < SCHEDULE_WARPS; w++)
        add_to(x, of_warps[w].slots, of_warps[w].keys, of_warps[w].longest, of_warps[w].shared);
    return x;
}

/* Returns whether there are as many slots as partial results. */
template <bool TOGETHER>
__device__ __forceinline__ bool choose_division(division &d, const attune_cuda_shared_scheduled *of, int batch,
                                                const attune_cuda_serving &s, division_sums *of_warps)
{
    i64 resident = max(s.resident, 1), least_blocks = (ATTUNE_CUDA_SERVING_PART_KEYS + BLOCK_N - 1) / BLOCK_N;
    d.part_keys = 1;
    division_sums sums = sum_sequences<TOGETHER>(d, of, batch, of_warps);
    i64 share = sums.keys / resident, blocks = share / BLOCK_N + 1;
    /* Only whole parts are shared: the longest prefix has four. */
    if (TOGETHER)
        blocks = min(blocks, (i64)(sums.shared / 4 / BLOCK_N));
    blocks = max(blocks, least_blocks);
    d.least = config::SPLIT_KEYS ? share : 0;
    bool fit = false;
#pragma unroll 1
    for (int i = 0; i < 33 && !fit; i++) {
        d.part_keys = config::SPLIT_KEYS ? SPLIT_KEYS : (int)min(blocks, (i64)(MOST_INT / BLOCK_N)) * BLOCK_N;
        d.least = max(d.least, (i64)d.part_keys);
        sums = sum_sequences<TOGETHER>(d, of, batch, of_warps);
        fit = sums.slots <= s.slots;
        blocks *= fit ? 1 : 2;
        d.least *= fit ? 1 : 2;
    }
    d.keys = sums.keys;
    d.time = max((i64)sums.longest, (sums.keys + sums.slots * ATTUNE_CUDA_MERGE_KEYS) / resident);
    return fit;
}

/* Which sequences have their queries in one tile: each warp does this for runs of GATHERED, one sequence after another.
 * Those without rows are passed over. */
__device__ __forceinline__ void gather(attune_cuda_shared_scheduled *of, int batch, int group)
{
    constexpr int HALVES = GATHERED / 32;
    int lane = (int)threadIdx.x % 32, least = max(config::SPLIT_KEYS, ATTUNE_CUDA_SERVING_PART_KEYS);
    int room = BLOCK_M / group;
#pragma unroll 1
    for (int run = (int)threadIdx.x / 32 * GATHERED; run < batch; run += SCHEDULE_WARPS * GATHERED) {
        int joined[HALVES] = {}, leads[HALVES] = {}, query0[HALVES] = {}; /* of sequences of the lane */
        int before = -1, begin = 0, queries = 0, shared = MOST_INT, last_first = 0, last_position = 0;
#pragma unroll 1
        for (int i = 0; i < min(GATHERED, batch - run); i++) {
            shared_work w = work_of(of[run + i]);
            shared = min(shared, w.shared);
            if (w.q_len <= 0)
                continue;
            shared = min(shared, last_position);
            if (before >= 0 && shared >= least && last_first == w.first && i - begin < room &&
                queries + w.q_len <= room) {
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    if (i == half * 32 + lane)
                        joined[half] = shared, query0[half] = queries;
                    if (before == half * 32 + lane)
                        leads[half] = shared;
                }
            } else {
                begin = i;
                queries = 0;
            }
            queries = min(queries + w.q_len, room);
            before = i;
            shared = MOST_INT;
            last_first = w.first;
            last_position = max(w.end - w.q_len, 0);
        }
        __syncwarp();
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int b = run + half * 32 + lane;
            if (b < batch) {
                shared_work w = work_of(of[b]);
                w.shared = joined[half], w.leads = leads[half], w.query0 = query0[half];
                store_work(of[b], w);
            }
        }
    }
}

/* The sequence before b whose items have the last of the parts that others have. */
__device__ __forceinline__ int leader_of(const division &d, const attune_cuda_shared_scheduled *of, int b, int others)
{
    int leader = b;
#pragma unroll 1
    for (int i = b - 1; others && i >= max(b - GATHERED, 0) && leader == b; i--) {
        shared_work w = work_of(of[i]);
        if (w.tiles && parts_of(d, w).others < others)
            leader = i;
    }
    return leader;
}

/* Items, slots and counters of sequences. */
struct entry_counts {
    i64 items, slots, split;
};

__device__ __forceinline__ void add_counts(entry_counts &x, const entry_counts &y)
{
    x.items += y.items;
    x.slots += y.slots;
    x.split += y.split;
}

__device__ __forceinline__ entry_counts counts_of(const shared_work &w, const shared_parts &p)
{
    i64 items = (i64)w.tiles * (p.parts - p.others);
    return {items, p.parts > 1 ? items : 0, p.parts > 1 ? w.tiles : 0};
}

/* Each thread has a run of sequences, and begins after the sums of the threads before it. */
__device__ __forceinline__ void write_shared_items(attune_cuda_shared_scheduled *of, const attune_cuda_arguments &a,
                                                   const attune_cuda_serving &s, const division &d,
                                                   entry_counts *of_threads)
{
    entry_counts *of_warps = of_threads + SCHEDULE_THREADS, sum = {0, 0, 0};
    int thread = (int)threadIdx.x, warp = thread / 32, each = (a.batch + SCHEDULE_THREADS - 1) / SCHEDULE_THREADS;
    int first = (int)min((i64)thread * each, (i64)a.batch), end = (int)min((i64)first + each, (i64)a.batch);
    /* The work is there until all threads have seen that of others. */
#pragma unroll 1
    for (int b = first; b < end; b++) {
        shared_work w = work_of(of[b]);
        shared_parts p = parts_of(d, w);
        add_counts(sum, counts_of(w, p));
        of[b].leader = leader_of(d, of, b, p.others);
    }
    of_threads[thread] = sum;
    __syncthreads();
    if (thread % 32 == 0) {
#pragma unroll 1
        for (int i = 1; i < 32; i++)
            add_counts(sum, of_threads[thread + i]);
        of_warps[warp] = sum;
    }
    __syncthreads();
    sum = {0, 0, 0};
#pragma unroll 1
    for (int w = 0; w < warp; w++)
        add_counts(sum, of_warps[w]);
#pragma unroll 1
    for (int i = warp * 32; i < thread; i++)
        add_counts(sum, of_threads[i]);
#pragma unroll 1
    for (int b = first; b < end; b++) {
        shared_work w = work_of(of[b]);
        shared_parts p = parts_of(d, w);
        of[b] = {clamped(sum.items),
                 p.parts - p.others,
                 clamped(sum.slots),
                 clamped(sum.split),
                 p.parts,
                 p.others,
                 of[b].leader,
                 w.query0};
        add_counts(sum, counts_of(w, p));
    }
    if (thread == SCHEDULE_THREADS - 1) {
        of[a.batch] = {clamped(sum.items), 1, 0, 0, 1, 0, 0, 0};
        *(attune_cuda_schedule *)s.schedule = {s.schedule_key, clamped(sum.items), d.part_keys, 0};
    }
}

__device__ __forceinline__ void make_shared_schedule(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                                     unsigned char *memory)
{
    static_assert(SCHEDULE_WARPS * sizeof(division_sums) + sizeof(division) +
                      (SCHEDULE_THREADS + SCHEDULE_WARPS) * sizeof(entry_counts) <=
                  ATTUNE_CUDA_SHARED_SCHEDULE_SHARED);
    attune_cuda_shared_scheduled *of = (attune_cuda_shared_scheduled *)scheduled_of(s);
    division_sums *of_warps = (division_sums *)memory;
    int *counters = counters_of(a, s), group = a.heads / a.kv_heads;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    for (int i = (int)threadIdx.x; i < counter_count(s); i += SCHEDULE_THREADS)
        counters[i] = 0;
#pragma unroll 1
    for (i64 i = (int)threadIdx.x; i < a.batch; i += SCHEDULE_THREADS) {
        tile t;
        t.b = (int)i;
        sequence_rows rows = rows_of(a, s, t.b, live);
        t.row0 = rows.first;
        t.q_len = rows.count;
        find_keys(t, a, s);
        i64 tiles = ((i64)rows.count * group + BLOCK_M - 1) / BLOCK_M * a.kv_heads;
        /* Rows of this call are nowhere else. */
        int shared = s.shared.address ? integer_at(s.shared, i) : 0;
        shared = min(max(shared, 0), max(t.position, 0));
        store_work(of[i], {clamped(tiles), t.kv_first, t.kv_len, shared, 0, rows.count, 0});
    }
    __syncthreads();
    gather(of, a.batch, group);
    __syncthreads();
    /* In shared memory, since registers would spill. */
    division &apart = *(division *)(of_warps + SCHEDULE_WARPS), d = {1, 0, 0, 0};
    choose_division<false>(d, of, a.batch, s, of_warps);
    if (s.shared.address) {
        if (threadIdx.x == 0)
            apart = d;
        bool fit = choose_division<true>(d, of, a.batch, s, of_warps);
        if (!fit || d.keys >= apart.keys || d.time > apart.time) {
            d = apart;
#pragma unroll 1
            for (int b = (int)threadIdx.x; b < a.batch; b += SCHEDULE_THREADS) {
                shared_work w = work_of(of[b]);
                w.shared = w.leads = 0;
                store_work(of[b], w);
            }
            __syncthreads();
        }
    }
    write_shared_items(of, a, s, d, (entry_counts *)(&apart + 1));
}

/* The schedule of a step, with config::PARTS: what attune_schedule of each kernel over a cache does. */
__device__ __forceinline__ void schedule_step(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                              unsigned char *memory)
{
    if (TAKEN)
        let_next_launch();
    if constexpr (SHARES)
        make_shared_schedule(a, s, memory);
    else
        make_schedule(a, s, (schedule_sums *)memory);
}

#endif

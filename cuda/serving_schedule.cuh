/* SPDX-License-Identifier: MIT */
/*
 * The schedule of a step over a cache, which depends on the lengths alone: in how many parts the keys of each sequence
 * are computed, so that the resident CTAs have equal shares. A sequence has ceil(keys / most) parts, with the smallest
 * `most` whose parts fit the CTAs and the space for partial results.
 *
 * Fixed parts (config::SPLIT_KEYS) are what they are: of sequences with more than `most` each is an item of its own,
 * with the smallest `most` for which there is space, and one CTA computes those of a shorter one. Where tiles may have
 * rows of several sequences, serving_shared_schedule.cuh has another schedule.
 */
#ifndef ATTUNE_CUDA_SERVING_SCHEDULE_CUH
#define ATTUNE_CUDA_SERVING_SCHEDULE_CUH

#include "serving_sequences.cuh"

constexpr int SCHEDULE_THREADS = ATTUNE_CUDA_SCHEDULE_THREADS, SCHEDULE_WARPS = SCHEDULE_THREADS / 32;
constexpr bool SHARES = config::SHARES, FIXED = config::SPLIT_KEYS > 0 || SHARES;
constexpr int SPLIT_KEYS = config::SPLIT_KEYS > 0 ? config::SPLIT_KEYS : 1;
static_assert(!config::SPLIT_KEYS || SPLIT_KEYS % BLOCK_N == 0, "a part has whole tiles");
/* The least of what a part may have: keys, or with fixed parts of a sequence in items of their own, those parts. */
constexpr int LEAST = FIXED        ? 1
                      : STAGES > 1 ? ATTUNE_CUDA_SERVING_LEAST_KEYS
                                   : ATTUNE_CUDA_SERVING_PART_KEYS,
              MOST_PARTS = ATTUNE_CUDA_SERVING_PARTS;
constexpr int MOST_INT = 0x7fffffff;

/* Whether CTAs take the items one after another, so that there may be more of them than run at once. */
constexpr bool TAKEN = STAGES > 1 && !FIXED;

template <bool SHARES> struct scheduled_type {
    typedef attune_cuda_scheduled type;
};
template <> struct scheduled_type<true> {
    typedef attune_cuda_shared_scheduled type;
};
typedef scheduled_type<SHARES>::type scheduled;

__device__ __forceinline__ scheduled *scheduled_of(const attune_cuda_serving &s)
{
    return (scheduled *)(s.schedule + sizeof(attune_cuda_schedule));
}

__device__ __forceinline__ int counter_count(const attune_cuda_serving &s)
{
    return SHARES ? s.slots : s.slots / 2;
}

__device__ __forceinline__ int *counters_of(const attune_cuda_arguments &a, const attune_cuda_serving &s)
{
    return (int *)(scheduled_of(s) + a.batch + 1);
}

/* The keys of a fixed part. */
template <typename TILE> __device__ __forceinline__ int part_keys(const TILE &t)
{
    if constexpr (SHARES && !config::SPLIT_KEYS)
        return t.part_keys;
    return SPLIT_KEYS;
}

/* ------------------------------------------------------------------------------------------------------------ items */

/* Of an item: its part and partial result, from the entry of its sequence. at: of its tiles; part: of a tile's items.
 */
__device__ __forceinline__ void place_item(tile &t, const attune_cuda_serving &s, const attune_cuda_scheduled &of,
                                           int at, int part)
{
    t.part = part;
    t.parts = max(of.parts, 1);
    t.slot = of.slot + at * t.parts;
    t.counter = of.counter + at;
}

/* Slots are those of all of the tile's parts, of which its items have those after `others`. */
template <typename TILE>
__device__ __forceinline__ void place_item(TILE &t, const attune_cuda_serving &s,
                                           const attune_cuda_shared_scheduled &of, int at, int part)
{
    t.part = of.others + part;
    t.parts = max(of.parts, 1);
    t.slot = of.slot + at * max(of.items, 1) - of.others;
    t.counter = of.counter + at;
    t.members = 1;
    t.only = -1;
    t.part_keys = max(((const attune_cuda_schedule *)s.schedule)->part_keys, BLOCK_N);
}

__device__ __forceinline__ int items_of(const attune_cuda_scheduled &of)
{
    return max(of.parts, 1);
}

__device__ __forceinline__ int items_of(const attune_cuda_shared_scheduled &of)
{
    return max(of.items, 1);
}

/* Of item `index`: the rows of its tile, and its part, from its sequence and that one's entry. */
template <typename SCHEDULED>
__device__ __forceinline__ void place_rows(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                           int index, int b, const SCHEDULED &found, const sequence_rows &rows,
                                           int group)
{
    int items = items_of(found), local = index - found.item, at = local / items, row = at / known_here(a.kv_heads);
    bool fits = max(found.parts, 1) == 1 || (found.slot >= 0 && found.slot + (i64)(at + 1) * items <= s.slots &&
                                             found.counter >= 0 && found.counter + (i64)at < counter_count(s));
    t.b = b;
    t.h_kv = at - row * a.kv_heads;
    t.h = t.h_kv * group;
    t.row0 = rows.first;
    t.q_len = rows.count;
    t.rows = rows.count * group;
    t.row = fits && local >= 0 && (i64)row * BLOCK_M < t.rows ? ordered_row(t, row) : t.rows;
    place_item(t, s, found, at, local - at * items);
}

/* Of the `left` sequences from `low` on, whose first items ascend, keeps at most MOST, of which one has item `index`.
 * The lanes of a warp look at 32 at a time. */
template <int MOST, typename SCHEDULED>
__device__ __forceinline__ void narrow_sequences(int &low, int &left, const SCHEDULED *of, int index)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    while (left > MOST) {
        int step = (left + 31) / 32, probe = lane * step;
        u32 before = __ballot_sync(0xffffffffu, probe < left && of[low + probe].item <= index);
        int last = max(31 - __clz((int)before), 0) * step;
        low += last;
        left = min(step, left - last);
    }
}

/* Finds the tile and the part of item `index`, by the sequences' first items. A tile of a schedule that is not of this
 * call may have no rows. False past the last. */
__device__ __forceinline__ bool find_item(tile &t, const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                          int index)
{
    const attune_cuda_schedule *schedule = (const attune_cuda_schedule *)s.schedule;
    const scheduled *of = scheduled_of(s);
    if (schedule->key != s.schedule_key || index >= schedule->items)
        return false;
    int group = known_here(a.heads / known_here(a.kv_heads)), low = 0, left = a.batch;
    narrow_sequences<1>(low, left, of, index);
    scheduled found = of[low];
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    sequence_rows rows = rows_of(a, s, low, live);
    place_rows(t, a, s, index, low, found, rows, group);
    return true;
}

/* The same and find_keys, for short calls: all that it reads is on its way at once. The last 32 sequences that may have
 * the item are a lane's each, with their entries and integers, of which all lanes receive those of the one. */
__device__ __forceinline__ bool find_item_and_keys(tile &t, const attune_cuda_arguments &a,
                                                   const attune_cuda_serving &s, int index)
{
    const attune_cuda_scheduled *of = (const attune_cuda_scheduled *)scheduled_of(s);
    int4 header = *(const int4 *)s.schedule;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    int lane = (int)threadIdx.x % 32, low = 0, left = max(a.batch, 1);
    narrow_sequences<32>(low, left, of, index);
    int mine = low + min(lane, left - 1);
    int4 entry = *(const int4 *)(of + mine);
    integers_here x = load_integers(s, mine);
    u32 before = __ballot_sync(0xffffffffu, lane < left && entry.x <= index);
    int from = max(31 - __clz((int)before), 0), b = low + from;
    attune_cuda_scheduled found = {__shfl_sync(0xffffffffu, entry.x, from), __shfl_sync(0xffffffffu, entry.y, from),
                                   __shfl_sync(0xffffffffu, entry.z, from), __shfl_sync(0xffffffffu, entry.w, from)};
    x = {{__shfl_sync(0xffffffffu, x.rows[0], from), __shfl_sync(0xffffffffu, x.rows[1], from)},
         {__shfl_sync(0xffffffffu, x.pages[0], from), __shfl_sync(0xffffffffu, x.pages[1], from)},
         __shfl_sync(0xffffffffu, x.keys, from),
         __shfl_sync(0xffffffffu, x.keys_first, from)};
    int group = known_here(a.heads / known_here(a.kv_heads));
    place_rows(t, a, s, index, b, found, rows_of(a, s, b, live, x), group);
    find_keys(t, a, s, x);
    return header.x == s.schedule_key && index < header.y;
}

/* Of a call with more items than CTAs, which compute the first ones, a thread takes the next one that none has taken,
 * and the last to find none left lets the next call begin anew: all of them together take one more than there are. */
__device__ __forceinline__ u32 take_item(attune_cuda_schedule *schedule, u32 grid)
{
    int taken = atomicAdd(&schedule->taken, 1);
    if (taken == schedule->items - 1)
        schedule->taken = 0;
    return grid + (u32)taken;
}

/* The item that a CTA computes after item `index`. place: in shared memory, not in use. */
__device__ __forceinline__ u32 next_item(const attune_cuda_serving &s, u32 index, int *place)
{
    attune_cuda_schedule *schedule = (attune_cuda_schedule *)s.schedule;
    u32 grid = (u32)grid_here();
    if (schedule->items <= (int)grid)
        return index + grid;
    if (threadIdx.x == 0)
        *place = (int)take_item(schedule, grid);
    __syncthreads();
    index = (u32)*place;
    __syncthreads();
    return index;
}

/* --------------------------------------------------------------------------------------------------------- schedule */

/* Sums over sequences. */
struct schedule_sums {
    i64 tiles, items;
    i64 slots, split; /* of those in several parts: the parts of all tiles, and the tiles */
};

/* keys: of the sequence; fixed parts, instead. */
__device__ __forceinline__ int parts_of(int keys, int most)
{
    if (FIXED)
        return keys > most ? keys : 1;
    if (TAKEN) /* in 32 bits, whose division is no function */
        return min(max((int)(((u32)keys + (u32)most - 1) / (u32)most), 1), MOST_PARTS);
    return min(max((int)(((i64)keys + most - 1) / most), 1), MOST_PARTS);
}

/* An entry has the tiles and the keys of its sequence in the place of item and parts. */
__device__ __forceinline__ void add_sequence(schedule_sums &sums, const attune_cuda_scheduled &of, int most)
{
    int parts = parts_of(of.parts, most);
    sums.tiles += of.item;
    sums.items += (i64)of.item * parts;
    sums.slots += parts > 1 ? (i64)of.item * parts : 0;
    sums.split += parts > 1 ? of.item : 0;
}

/* The sums over the lanes of a warp. */
__device__ __forceinline__ schedule_sums sum_lanes(schedule_sums x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        x.tiles += __shfl_xor_sync(0xffffffffu, x.tiles, i);
        x.items += __shfl_xor_sync(0xffffffffu, x.items, i);
        x.slots += __shfl_xor_sync(0xffffffffu, x.slots, i);
        x.split += __shfl_xor_sync(0xffffffffu, x.split, i);
    }
    return x;
}

/* Whether parts of `most` keys fit. If the tiles alone are more than the CTAs, these take several, and further parts
 * are for the longest sequences. */
__device__ __forceinline__ bool parts_fit(const attune_cuda_scheduled *of, int batch, const attune_cuda_serving &s,
                                          int most)
{
    schedule_sums sums = {0, 0, 0, 0};
#pragma unroll 1
    for (int b = (int)threadIdx.x % 32; b < batch; b += 32)
        add_sequence(sums, of[b], most);
    if (TAKEN) {
        /* Numbers that are too large remain so. */
        constexpr int LARGE = 1 << 26;
        int tiles = (int)min(sums.tiles, (i64)LARGE), items = (int)min(sums.items, (i64)LARGE),
            slots = (int)min(sums.slots, (i64)LARGE);
#pragma unroll
        for (int i = 16; i > 0; i /= 2) {
            tiles += __shfl_xor_sync(0xffffffffu, tiles, i);
            items += __shfl_xor_sync(0xffffffffu, items, i);
            slots += __shfl_xor_sync(0xffffffffu, slots, i);
        }
        return items <= (tiles <= s.resident ? s.resident : tiles + s.resident) && slots <= s.slots;
    }
    sums = sum_lanes(sums);
    i64 wanted = sums.tiles <= s.resident ? s.resident : sums.tiles + s.resident;
    return (FIXED || sums.items <= wanted) && sums.slots <= s.slots;
}

/* The candidates of the first search: LEAST times 1, 1.5, 2, 3, 4, 6 and so on, then everything. */
constexpr int CANDIDATES = 32;
/* Those of the second search, between two of the first. */
constexpr int FINE = TAKEN ? SCHEDULE_WARPS : CANDIDATES;

__device__ __forceinline__ int candidate(int k)
{
    return k >= CANDIDATES ? MOST_INT : ((2 + k % 2) << k / 2) * LEAST / 2;
}

/* The first of `count` candidates that fits, by all warps; `count` if there is none. */
template <typename KEYS>
__device__ __forceinline__ int first_that_fits(int count, const KEYS &keys, const attune_cuda_scheduled *of, int batch,
                                               const attune_cuda_serving &s, int *of_warps)
{
    int found = count;
    __syncthreads();
#pragma unroll 1
    for (int k = (int)threadIdx.x / 32; k < count && found == count; k += SCHEDULE_WARPS)
        if (parts_fit(of, batch, s, keys(k)))
            found = k;
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = found;
    __syncthreads();
    for (int w = 0; w < SCHEDULE_WARPS; w++)
        found = min(found, of_warps[w]);
    return found;
}

struct coarse {
    __device__ __forceinline__ int operator()(int k) const
    {
        return candidate(k);
    }
};

/* Between two candidates. */
struct fine {
    int low, high;
    __device__ __forceinline__ int operator()(int k) const
    {
        return low + (int)((i64)(high - low) * (k + 1) / FINE);
    }
};

/* The keys of a part. */
__device__ __forceinline__ int choose_keys(const attune_cuda_scheduled *of, int batch, const attune_cuda_serving &s,
                                           int *of_warps)
{
    int k = first_that_fits(CANDIDATES, coarse{}, of, batch, s, of_warps);
    if (k == 0 || k == CANDIDATES)
        return candidate(k);
    fine between = {candidate(k - 1), candidate(k)};
    return between(min(first_that_fits(FINE, between, of, batch, s, of_warps), FINE - 1));
}

/* The time of a call whose parts have at most `most` keys, in the keys of a CTA: the longest part, if all run at once,
 * else all keys over the CTAs and half of the longest part, for the last ones. */
__device__ __forceinline__ int time_of(const attune_cuda_scheduled *of, int batch, const attune_cuda_serving &s,
                                       int most)
{
    schedule_sums sums = {0, 0, 0, 0};
    i64 keys = 0;
    int longest = 0;
#pragma unroll 1
    for (int b = (int)threadIdx.x % 32; b < batch; b += 32) {
        int parts = parts_of(of[b].parts, most);
        add_sequence(sums, of[b], most);
        keys += of[b].item * (of[b].parts + (parts > 1 ? (i64)parts * ATTUNE_CUDA_MERGE_KEYS : 0));
        longest = max(longest, of[b].item ? (of[b].parts + parts - 1) / parts : 0);
    }
    sums = sum_lanes(sums);
#pragma unroll 1
    for (int i = 16; i > 0; i /= 2) {
        keys += __shfl_xor_sync(0xffffffffu, keys, i);
        longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, i));
    }
    if (sums.slots > s.slots)
        return MOST_INT;
    /* In 32 bits, whose division is no function. */
    u32 each = (u32)min(keys, (i64)0xffffffff) / (u32)max(s.resident, 1);
    return sums.items <= s.resident ? longest : (int)min(each, (u32)MOST_INT / 2) + longest / 2;
}

/* The keys of a part, of which `one` is what lets all run at once, if that is possible: that, or a share of it. */
__device__ __forceinline__ int choose_shorter(const attune_cuda_scheduled *of, int batch, const attune_cuda_serving &s,
                                              int one, int *of_warps)
{
    constexpr int LEAST_TAKEN = 512;
    /* Parts have whole tiles. */
    one = one < MOST_INT - BLOCK_N ? (one + BLOCK_N - 1) / BLOCK_N * BLOCK_N : one;
    int longest = 0, warp = (int)threadIdx.x / 32;
#pragma unroll 1
    for (int b = (int)threadIdx.x % 32; b < batch; b += 32)
        longest = max(longest, of[b].item ? of[b].parts : 0);
#pragma unroll 1
    for (int i = 16; i > 0; i /= 2)
        longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, i));
    longest = min(longest, one);
    int time = time_of(of, batch, s, warp == 0 ? one : max(longest / (2 * warp), LEAST_TAKEN)), best = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warps[warp] = time;
    __syncthreads();
#pragma unroll 1
    for (int w = 1; w < SCHEDULE_WARPS; w++)
        best = of_warps[w] < of_warps[best] ? w : best;
    return best == 0 ? one : max(longest / (2 * best), LEAST_TAKEN);
}

/* The sum of the lanes up to this one. Unrolled, ptxas 13.0 makes a function of the shuffles, which spills. */
__device__ __forceinline__ i64 scan_lanes(i64 x)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int i = 1; i < 32; i *= 2) {
        i64 other = __shfl_up_sync(0xffffffffu, x, i);
        x += lane >= i ? other : 0;
    }
    return x;
}

__device__ __forceinline__ int clamped(i64 x)
{
    return (int)min(x, (i64)MOST_INT);
}

/* Each warp has a run of sequences, and begins after the sums of the warps before it. */
__device__ __forceinline__ void write_items(attune_cuda_scheduled *to, const attune_cuda_scheduled *of,
                                            const attune_cuda_arguments &a, const attune_cuda_serving &s, int most,
                                            schedule_sums *of_warps)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int run = (a.batch + 32 * SCHEDULE_WARPS - 1) / (32 * SCHEDULE_WARPS) * 32;
    int first = (int)min((i64)warp * run, (i64)a.batch), end = (int)min((i64)first + run, (i64)a.batch);
    schedule_sums sums = {0, 0, 0, 0};
#pragma unroll 1
    for (int b = first + lane; b < end; b += 32)
        add_sequence(sums, of[b], most);
    sums = sum_lanes(sums);
    if (lane == 0)
        of_warps[warp] = sums;
    __syncthreads();
    i64 items = 0, slots = 0, split = 0;
#pragma unroll 1
    for (int w = 0; w < warp; w++) {
        items += of_warps[w].items;
        slots += of_warps[w].slots;
        split += of_warps[w].split;
    }
#pragma unroll 1
    for (int b = first; b < end; b += 32) {
        attune_cuda_scheduled mine = {0, 0, 0, 0};
        if (b + lane < end)
            mine = of[b + lane];
        int parts = parts_of(mine.parts, most);
        i64 own_items = (i64)mine.item * parts, own_slots = parts > 1 ? own_items : 0,
            own_split = parts > 1 ? mine.item : 0;
        i64 to_items = scan_lanes(own_items), to_slots = scan_lanes(own_slots), to_split = scan_lanes(own_split);
        if (b + lane < end)
            to[b + lane] = {clamped(items + to_items - own_items), parts, clamped(slots + to_slots - own_slots),
                            clamped(split + to_split - own_split)};
        items += __shfl_sync(0xffffffffu, to_items, 31);
        slots += __shfl_sync(0xffffffffu, to_slots, 31);
        split += __shfl_sync(0xffffffffu, to_split, 31);
    }
    if (warp == SCHEDULE_WARPS - 1 && lane == 0) {
        to[a.batch] = {clamped(items), 1, 0, 0};
        *(attune_cuda_schedule *)s.schedule = {s.schedule_key, clamped(items), 0, 0}; /* none is taken */
    }
}

__device__ __forceinline__ void make_schedule(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                              schedule_sums *sums)
{
    static_assert(SCHEDULE_WARPS * (sizeof(schedule_sums) + sizeof(int)) <= ATTUNE_CUDA_SCHEDULE_SHARED);
    attune_cuda_scheduled *to = (attune_cuda_scheduled *)scheduled_of(s), *of = to;
    /* The searches read tiles and keys many times: of batches that are not very large from shared memory. */
    if (TAKEN && a.batch <= ATTUNE_CUDA_SCHEDULE_HERE)
        of = (attune_cuda_scheduled *)((unsigned char *)sums + ATTUNE_CUDA_SCHEDULE_SHARED);
    int *counters = counters_of(a, s), group = a.heads / a.kv_heads;
    int live = s.count.address ? min(integer_at(s.count, 0), a.batch) : a.batch;
    for (int i = (int)threadIdx.x; i < s.slots / 2; i += SCHEDULE_THREADS)
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
        int parts = (int)(((i64)t.kv_len + SPLIT_KEYS - 1) / SPLIT_KEYS) - t.kv_first / SPLIT_KEYS;
        of[i] = {clamped(tiles), FIXED ? parts : t.kv_len - t.kv_first, 0, 0};
    }
    int *of_warps = (int *)(sums + SCHEDULE_WARPS), most = choose_keys(of, a.batch, s, of_warps);
    if constexpr (TAKEN)
        most = choose_shorter(of, a.batch, s, most, of_warps);
    write_items(to, of, a, s, most, sums);
}

#endif

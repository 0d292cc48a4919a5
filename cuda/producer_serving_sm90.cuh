/* SPDX-License-Identifier: MIT */
/*
 * The producer warp group of serving_sm90.cu. Its first warp finds tiles of rows, and all of its warps load rows of Q
 * and the tiles' keys and values, each a quarter of them: with TMA where boxes of eight or more keys lie in pages, else
 * with cp.async. Pages may be of any size and anywhere. Loads that take a warp longer than products take the consumers
 * would be the limit, so that what a tile of keys needs of them is kept short.
 */
#ifndef ATTUNE_CUDA_PRODUCER_SERVING_SM90_CUH
#define ATTUNE_CUDA_PRODUCER_SERVING_SM90_CUH

#include "chunks.cuh"
#include "layout_serving_sm90.cuh"

/* ------------------------------------------------------------------------------------------------------------- items
 */

/* The item after `index`, in each lane. */
__device__ __forceinline__ u32 next_index(const attune_cuda_serving &s, u32 index)
{
    u32 grid = (u32)grid_here();
    if constexpr (config::PARTS) {
        attune_cuda_schedule *schedule = (attune_cuda_schedule *)s.schedule;
        if (schedule->items > (int)grid) {
            index = 0;
            if (thread_index_remat() % 32 == 0)
                index = take_item(schedule, grid);
            return __shfl_sync(0xffffffffu, index, 0);
        }
    }
    return index + grid;
}

/* Puts the tiles of a sequence in the order of sections of heads: CTAs compute the rows of one, and then those of the
 * next. */
__device__ __forceinline__ void order_heads(tile &t, const attune_cuda_arguments &a)
{
    int rows = (t.rows + BLOCK_M - 1) / BLOCK_M, heads = a.kv_heads;
    i64 bytes = max(t.kv_len, 1) * (i64)((HEAD_DIM + HEAD_DIM_V) * sizeof(element));
    if (rows == 1 || bytes * heads <= SECTION_BYTES)
        return;
    int width = section_heads(bytes);
    int at = (rows - 1 - t.row / BLOCK_M) * heads + t.h_kv, section = at / (width * rows), first = section * width;
    at -= first * rows;
    width = min(width, heads - first);
    t.row = ordered_row(t, at / width);
    t.h_kv = first + at % width;
    t.h = t.h_kv * (a.heads / heads);
}

/* Finds the next tile that has rows, and the keys of its part. */
__device__ __forceinline__ bool find_work(tile &t, range &seen, range &inner, u32 &index,
                                          const attune_cuda_arguments &a, const attune_cuda_serving &s)
{
    for (;; index = next_index(s, index)) {
        if ((int)index < 0 || !find_tile(t, a, s, (int)index))
            return false;
        if (t.row < t.rows)
            break;
    }
    if (!config::PARTS)
        find_keys(t, a, s);
    order_heads(t, a);
    seen = tile_range(a, t);
    if (config::PARTS)
        seen = part_range(seen, t);
    inner = {0, 0};
    if (config::HAVE_MASK_RANGE || !config::HAVE_MASK_PAIRS)
        inner = inner_range<config::HAVE_MASK_RANGE>(a, t);
    if (config::TREE && s.tree.address)
        inner.high = min(inner.high, t.position);
    return true;
}

/* Publishes the CTA's next tile of rows, or that there are no more. The first warp calls it. */
__device__ __forceinline__ void publish_work(control &c, const pipeline_state &r, u32 &index,
                                             const attune_cuda_arguments &a, const attune_cuda_serving &s)
{
    tile t;
    range seen = {0, 0}, inner = {0, 0};
    bool more = find_work(t, seen, inner, index, a, s);
    producer_acquire<&control::work>(c, r);
    if (thread_index_remat() == 0) {
        work &to = c.items[r.stage];
        if (more)
            to.of = t;
        to.inner = inner;
        to.kv = more ? max(seen.low, 0) / BLOCK_N * BLOCK_N : -1;
        to.end = seen.high;
        producer_commit<&control::work>(c, r);
    }
    if (more)
        index = next_index(s, index);
}

/* ------------------------------------------------------------------------------------------------------------ copies
 */

/* Copies rows of DIM elements, of which each lane has the place of one: bytes after `from`. SLAB and EIGHT: bytes from
 * a slab to the next, and from eight rows. first: the first one's number in the tile. there: a bit for each that is not
 * zeros. */
template <int ROWS, int DIM, u32 SLAB, u32 EIGHT, bool ALIGNED>
__device__ __forceinline__ void copy_rows(u32 to, int first, const byte *from, i64 place, u32 there)
{
    constexpr int CHUNKS = round_up(DIM, 16) / PER_CHUNK, LANES = 8;
    int lane = thread_index_remat() % 32, chunk = lane % LANES;
    from += chunk * 16;
#pragma unroll(ALIGNED ? 2 : 1)
    for (int i = 0; i < ROWS; i += 32 / LANES) {
        int r = i + lane / LANES, row = first + r;
        u32 low = __shfl_sync(0xffffffffu, (u32)(u64)place, r),
            high = __shfl_sync(0xffffffffu, (u32)((u64)place >> 32), r);
        bool valid = there >> r & 1;
        const byte *source = from + (valid ? (i64)((u64)high << 32 | low) : 0);
        u32 target = to + (u32)(row_offset<EIGHT>(row) + (chunk ^ (row & 7)) * 16);
#pragma unroll(ALIGNED ? CHUNKS : 1)
        for (int j = 0; j < CHUNKS; j += LANES)
            if (CHUNKS % LANES == 0 || chunk + j < CHUNKS)
                copy_chunk(target + j / LANES * SLAB, (const element *)(source + j * 16),
                           valid && (CHUNKS * PER_CHUNK == DIM || (chunk + j) * PER_CHUNK < DIM), ALIGNED);
    }
}

/*
 * Stages whose copies are in flight. cp.async writes as threads do, wgmma reads by the asynchronous proxy, and the
 * fence between belongs after the copies: in a consumer it would delay products. So a warp commits a stage some copies
 * after it has begun those of the stage, when they are complete, as a rule. With two stages no more than one: the next
 * copy waits until the consumers have released a stage, which they do not before they have read the one before it.
 */
struct in_flight {
    static constexpr int COUNT = STAGES > 2 ? 2 : 1;
    int left; /* groups until none of a stage is in flight */
    u64 *full[COUNT];
};

/* A group of copies begins, of a stage or of none, and the one that has been in flight for longest is committed. */
__device__ __forceinline__ void push(in_flight &f, u64 *full)
{
    copy_commit();
    copy_wait<in_flight::COUNT>();
    if (f.full[0]) {
        fence_async();
        warp_arrive(f.full[0]);
    }
#pragma unroll
    for (int i = 0; i + 1 < in_flight::COUNT; i++)
        f.full[i] = f.full[i + 1];
    f.full[in_flight::COUNT - 1] = full;
    f.left = full ? in_flight::COUNT : f.left - 1;
}

__device__ __forceinline__ void commit_all(in_flight &f)
{
#pragma unroll 1
    while (f.left > 0)
        push(f, nullptr);
}

/* Begins to copy a warp's rows of a stage. */
template <auto PIPELINE, int ROWS, int DIM, u32 SLAB, u32 EIGHT>
__device__ __forceinline__ void copy_stage(in_flight &f, control &c, u32 stage, u32 to, const byte *from, i64 place,
                                           u32 there, bool aligned)
{
    int first = thread_index_remat() / 32 * ROWS;
    if (aligned)
        copy_rows<ROWS, DIM, SLAB, EIGHT, true>(to, first, from, place, there);
    else
        copy_rows<ROWS, DIM, SLAB, EIGHT, false>(to, first, from, place, there);
    push(f, &(c.*PIPELINE).full[stage]);
}

/* 1: the packed rows of Q. */
__device__ __forceinline__ void load_q(in_flight &f, control &c, u32 q, row_states &r, const attune_cuda_arguments &a,
                                       const tile &t)
{
    int row = t.row + thread_index_remat() / 32 * sm90::WARP_ROWS + thread_index_remat() % 32;
    const element *from = (const element *)a.q.address + t.batch * a.q.batch + t.row0 * a.q.row;
    bool valid = thread_index_remat() % 32 < sm90::WARP_ROWS && row < t.rows;
    tile_coord at = row_coord(a, t, row);
    i64 place = (at.h * a.q.head + at.q * a.q.row) * (i64)sizeof(element);
    u32 there = __ballot_sync(0xffffffffu, valid);
    producer_acquire<&control::q>(c, r.q());
    copy_stage<&control::q, sm90::WARP_ROWS, HEAD_DIM, sm90::Q_SLAB, 1024>(f, c, 0, q, (const byte *)from, place, there,
                                                                           view_aligned(a.q));
    r.advance_q();
}

/* Values of a tile of rows that a warp reads for each tile of keys. */
struct key_table {
    int kv_first, kv_len, b, h_kv, entries;
    const int *table;
    i64 entry_stride;
    bool paged;
};

/* The lane's key of a tile to come: an entry of the table and the row in its page, which follow from those of the tile
 * before without a division, and what the table says, which is looked at a tile later, so that no thread waits for it.
 */
struct next_key {
    int kv, entry, row, page;
    int entries, rows; /* from a tile's to the next one's */
};

__device__ __forceinline__ void fetch_page(next_key &n, const key_table &t)
{
    n.page = -1;
    if (n.kv >= t.kv_first && n.kv < t.kv_len)
        n.page = !t.paged ? t.b : n.entry < t.entries ? t.table[n.entry * t.entry_stride] : -1;
}

__device__ __forceinline__ void begin_key(next_key &n, const key_table &t, const attune_cuda_serving &s, int kv0)
{
    int page = known_here(s.page);
    n.kv = kv0 + thread_index_remat() / 32 * sm90::WARP_KEYS + thread_index_remat() % 32 % sm90::WARP_KEYS;
    n.entries = BLOCK_N / page;
    n.rows = BLOCK_N - n.entries * page;
    n.entry = n.kv / page;
    n.row = n.kv - n.entry * page;
    fetch_page(n, t);
}

__device__ __forceinline__ void advance_key(next_key &n, const key_table &t, const attune_cuda_serving &s)
{
    n.kv += BLOCK_N;
    n.entry += n.entries;
    n.row += n.rows;
    if (n.row >= s.page) {
        n.row -= s.page;
        n.entry++;
    }
    fetch_page(n, t);
}

/* The lane's key of a tile, and which of the warp's are there. */
struct tile_key {
    int page, row;
    u32 there;
};

/* The lane's box of the warp's keys with TMA: the lane that has its first key, its place in a stage, and its first
 * column. A box of wide values has all of them. */
struct lane_box {
    int source, column;
    u32 place;
    bool loads_k, loads_v;
};

__device__ __forceinline__ lane_box box_of_lane(const attune_cuda_serving &s)
{
    int lane = thread_index_remat() % 32, boxes = s.box ? sm90::WARP_KEYS / s.box : 1, box = lane % boxes,
        slab = lane / boxes;
    u32 first = (u32)(thread_index_remat() / 32 * sm90::WARP_KEYS + box * s.box);
    return {box * s.box, slab * 64, slab * sm90::KV_SLAB + row_offset<sm90::KV_KEYS>(first),
            slab < (sm90::WIDE ? 1 : (HEAD_DIM + 63) / 64), slab < (sm90::WIDE ? 1 : (HEAD_DIM_V + 63) / 64)};
}

/* TMA loads the warp's keys of a stage, all of which are there. */
template <auto PIPELINE, int DIM>
__device__ __forceinline__ void load_boxes(in_flight &f, control &c, u32 stage, u32 to, const tensor_map *map,
                                           const tile_key &box, int h_kv, const lane_box &mine, bool loads)
{
    u64 *full = &(c.*PIPELINE).full[stage];
    int lane = thread_index_remat() % 32;
    if (lane == 0)
        barrier_expect(full, sm90::WARP_KEYS * ((DIM + 63) / 64) * 128);
    else if (lane < ARRIVALS)
        barrier_arrive(full);
    __syncwarp();
    if (loads) {
        if constexpr (sm90::WIDE)
            tensor_load_slabs(to + mine.place, map, full, box.row, h_kv, box.page);
        else
            tensor_load(to + mine.place, map, full, mine.column, box.row, h_kv, box.page);
    }
    if (f.left > 0)
        push(f, nullptr);
}

/* The warp's rows of K or V of a stage. boxed: key is the lane's box; else the lane's key. */
template <auto PIPELINE, int DIM>
__device__ __forceinline__ void load_stage(in_flight &f, control &c, u32 stage, u32 to, const attune_cuda_view &view,
                                           const tensor_map *map, const tile &t, const tile_key &key, bool boxed,
                                           int h_kv, const lane_box &mine, bool loads)
{
    if (boxed)
        load_boxes<PIPELINE, DIM>(f, c, stage, to, map, key, h_kv, mine, loads);
    else
        copy_stage<PIPELINE, sm90::WARP_KEYS, DIM, sm90::KV_SLAB, sm90::KV_KEYS>(
            f, c, stage, to, cached_head<config::DTYPE>(view, t),
            row_at(view, make_int2(key.page, key.row)) * (i64)sizeof(element), key.there, view_aligned(view));
}

/* ---------------------------------------------------------------------------------------------------------- producers
 */

/* A bit for each of the warp's keys. */
__device__ __forceinline__ void store_there(u32 *words, u32 there)
{
    int warp = thread_index_remat() / 32;
    if (sm90::WARP_KEYS == 32)
        words[warp] = there;
    else
        ((unsigned short *)words)[warp] = (unsigned short)there;
}

/* Waits for the copies of a stage. Wide values: K of the next tile is waited for before V of this one is read and its
 * stage released, so that no stage may be left in flight until the producers have acquired another. */
__device__ __forceinline__ void complete_stage(in_flight &f)
{
    if (sm90::WIDE)
        commit_all(f);
}

/* The keys and values of a tile of rows. V trails K by one tile, because consumers release a stage of V one tile later
 * than that of K. Wide values that are no part of K replace it, once S is done. */
__device__ __forceinline__ void load_keys(in_flight &f, control &c, u32 memory, const attune_cuda_arguments &a,
                                          const attune_cuda_serving &s, const tensor_map *k_map,
                                          const tensor_map *v_map, const work &here, pipeline_state &k)
{
    u32 k_tiles = memory + sm90::K_OFFSET, v_tiles = memory + sm90::V_OFFSET;
    const tile &t = here.of;
    key_table table = {t.kv_first, t.kv_len, t.b, t.h_kv, t.entries, t.table, t.entry_stride, s.pages.address != 0};
    lane_box mine = box_of_lane(s);
    next_key next;
    tile_key key = {0, 0, 0}, key_of_v = key;
    int kv = here.kv, end = here.end;
    pipeline_state v = k;
    bool loads_v = !sm90::WIDE || !v_begins_with_k(a);
    begin_key(next, table, s, kv);
    for (bool first = true;; kv += BLOCK_N, first = false) {
        if (kv < end) {
            /* 2: K */
            bool there = next.page >= 0 && (!table.paged || next.page < s.pool);
            key = {next.page, next.row, __ballot_sync(0xffffffffu, there)};
            advance_key(next, table, s);
            bool boxed = s.box && key.there == 0xffffffffu;
            if (boxed) {
                key.page = __shfl_sync(0xffffffffu, key.page, mine.source);
                key.row = __shfl_sync(0xffffffffu, key.row, mine.source);
            }
            producer_acquire<&control::k>(c, k);
            if (thread_index_remat() % 32 == 0)
                store_there(c.there[k.stage], key.there);
            load_stage<&control::k, HEAD_DIM>(f, c, k.stage, k_tiles + k.stage * sm90::K_STAGE, a.k, k_map, t, key,
                                              boxed, table.h_kv, mine, mine.loads_k);
            complete_stage(f);
        }
        if (!first && loads_v) {
            /* 2: V of the tile before */
            producer_acquire<&control::v>(c, {v.stage, v.phase ^ (u32)sm90::WIDE});
            load_stage<&control::v, HEAD_DIM_V>(f, c, v.stage, v_tiles + v.stage * sm90::V_STAGE, a.v, v_map, t,
                                                key_of_v, s.box && key_of_v.there == 0xffffffffu, table.h_kv, mine,
                                                mine.loads_v);
            complete_stage(f);
        }
        if (kv >= end)
            break;
        key_of_v = key;
        v = k;
        advance(k);
    }
}

__device__ __forceinline__ void produce(const attune_cuda_arguments &a, const attune_cuda_serving &s,
                                        const tensor_map *k_map, const tensor_map *v_map, control &c, u32 memory)
{
    row_states r = {6};
    pipeline_state k = {0, 1}; /* also V's, whose stages are those of K */
    u32 index = (u32)block_here();
    for (;; r.advance_work()) {
        if (thread_index_remat() < 32)
            publish_work(c, r.work(), index, a, s);
        named_sync<BARRIER_PRODUCERS, sm90::PRODUCERS>();
        const work &here = c.items[r.work().stage];
        if (here.kv < 0)
            break;
        if (here.kv >= here.end)
            continue;
        in_flight f = {};
        load_q(f, c, memory, r, a, here.of);
        load_keys(f, c, memory, a, s, k_map, v_map, here, k);
        commit_all(f);
    }
}

#endif

/* SPDX-License-Identifier: MIT */
#include "plan/layout_cpu.h"

#include "base/round.h"

/* The most partial results of a call over a cache: a part is a tile of rows. */
#define PARTS_BYTES UINT64_C(0x800000)
/* The most bits that a thread keeps. */
#define KEPT_BYTES UINT64_C(0x80000)

/* Adds an array of a list to a layout. */
enum { SIZE_void = 1, SIZE_uint8_t = 1, SIZE_uint16_t = 2, SIZE_uint32_t = 4 };
#define SIZE_REAL real
#define ARRAY(type, name, rows, columns)                                                                               \
    l.name = bytes;                                                                                                    \
    bytes += attune__round_up64((rows) * (columns)*SIZE_##type, ATTUNE__CPU_ALIGNMENT);

static uint64_t real_bytes(const attune__shape *shape)
{
    return attune_dtype_size(attune__shape_real(shape));
}

static attune__cpu_sizes sizes_of(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    const uint64_t n = attune__cpu_pad(block_n);
    return (attune__cpu_sizes){
        .m = attune__cpu_pad(block_m),
        .n = n,
        .d = attune__cpu_pad(shape->head_dim),
        .dv = attune__cpu_pad(shape->head_dim_v),
        .lds = attune__cpu_stride(n),
        .ldo = attune__cpu_stride(attune__cpu_pad(shape->head_dim_v)),
        .bits = attune__cpu_tile_words(shape, block_m, block_n),
        .widest = shape->head_dim > shape->head_dim_v ? shape->head_dim : shape->head_dim_v,
        .expr = shape->expr_scratch,
        .bounds = shape->bounds_scratch,
        .cache = shape->tokens != 0,
        .longest = attune__cpu_pad(block_m > block_n ? block_m : block_n),
        .masked = shape->block_mask,
        .sorted = attune__cpu_sorts(shape, block_m, block_n),
        .staged = shape->block_mask &&
                  (attune__cpu_sorts(shape, block_m, block_n) || shape->k_dtype != attune__shape_real(shape)),
    };
}

attune__cpu_layout attune__cpu_layout_make(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    attune__cpu_sizes z = sizes_of(shape, block_m, block_n);
    const uint64_t real = real_bytes(shape);
    attune__cpu_layout l;
    uint64_t bytes = 0;
    z.kept = attune__cpu_kept_tiles(shape, block_m, block_n);
    ATTUNE__CPU_TILE(ARRAY)
    l.tile_bytes = bytes;
    ATTUNE__CPU_THREAD(ARRAY)
    l.bytes = attune__round_up64(bytes, 256);
    return l;
}

attune__cpu_backward_layout attune__cpu_backward_layout_make(const attune__shape *shape, uint32_t block_m,
                                                             uint32_t block_n)
{
    attune__cpu_sizes z = sizes_of(shape, block_m, block_n);
    const uint64_t real = real_bytes(shape);
    attune__cpu_backward_layout l;
    uint64_t bytes = 0;
    z.kept = attune__cpu_kept_tiles(shape, block_m, block_n);
    ATTUNE__CPU_BACKWARD_TILE(ARRAY)
    l.tile_bytes = bytes;
    ATTUNE__CPU_BACKWARD_THREAD(ARRAY)
    l.bytes = attune__round_up64(bytes, 256);
    return l;
}

uint64_t attune__cpu_backward_thread_size(const attune__shape *shape, uint32_t block_m1, uint32_t block_n1,
                                          uint32_t block_m2, uint32_t block_n2)
{
    const uint64_t one = attune__cpu_backward_layout_make(shape, block_m1, block_n1).bytes;
    const uint64_t two = attune__cpu_backward_layout_make(shape, block_m2, block_n2).bytes;
    return one > two ? one : two;
}

attune__cpu_part_layout attune__cpu_part_layout_make(const attune__shape *shape, uint32_t block_m)
{
    const attune__cpu_sizes z = sizes_of(shape, block_m, 0);
    const uint64_t real = real_bytes(shape);
    attune__cpu_part_layout l;
    uint64_t bytes = 0;
    ATTUNE__CPU_PART(ARRAY)
    l.bytes = bytes;
    return l;
}

bool attune__cpu_sorts(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    return shape->block_mask && !shape->tokens && block_m <= ATTUNE__CPU_SORTED && block_n <= ATTUNE__CPU_SORTED;
}

uint64_t attune__cpu_tile_words(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    const uint64_t m = attune__cpu_pad(block_m), n = attune__cpu_pad(block_n);
    return block_m * (n / ATTUNE__PANEL) + (attune__cpu_sorts(shape, block_m, block_n) ? m + n : 0);
}

uint32_t attune__cpu_kept_tiles(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    if (!shape->block_mask || shape->expr.mask.reads_head || shape->heads < 2 || shape->tokens)
        return 0;
    const uint64_t one = sizeof(uint16_t) * attune__cpu_tile_words(shape, block_m, block_n) + sizeof(uint32_t);
    const uint64_t keys = ((uint64_t)shape->kv_len + block_n - 1) / block_n;
    const uint64_t rows = ((uint64_t)shape->q_len + block_m - 1) / block_m;
    const uint64_t most = KEPT_BYTES / one, tiles = shape->direction == ATTUNE_BACKWARD && rows > keys ? rows : keys;
    return (uint32_t)(tiles < most ? tiles : most);
}

uint64_t attune__cpu_schedule_size(const attune__shape *shape)
{
    return shape->tokens ? attune__round_up64(64 + ((uint64_t)shape->batch + 1) * 32, 256) : 0;
}

uint32_t attune__cpu_split_keys(const attune__shape *shape)
{
    return shape->split_keys ? shape->split_keys : 1024;
}

uint64_t attune__cpu_parts(const attune__shape *shape, uint32_t block_m, uint32_t threads)
{
    const uint64_t keys = attune__cpu_split_keys(shape), splits = ((uint64_t)shape->kv_len + keys - 1) / keys;
    if (!shape->tokens || threads < 2 || splits < 2)
        return 0;
    const uint64_t part = attune__cpu_part_layout_make(shape, block_m).bytes, most = PARTS_BYTES / (part ? part : 1);
    const uint64_t rows = (uint64_t)(shape->tokens * shape->heads);
    return rows < most / splits ? rows * splits : most;
}

attune__cpu_workspace attune__cpu_workspace_make(const attune__shape *shape, uint32_t block_m, uint32_t split,
                                                 uint32_t units)
{
    attune__cpu_workspace w = {.partials = attune__cpu_schedule_size(shape)};
    w.threads = w.partials + attune__split_size(shape, split, (uint32_t)real_bytes(shape)) +
                attune__cpu_parts(shape, block_m, units) * attune__cpu_part_layout_make(shape, block_m).bytes;
    return w;
}

/* Tiles of rows that read a tile of keys, from which on it pays to keep it; and bytes that a plan may take for that. */
#define PACKED_ROW_TILES 4
#define PACKED_BYTES     (UINT64_C(128) << 20)

attune__cpu_packed attune__cpu_packed_make(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    const uint64_t element = shape->k_dtype == ATTUNE_F16 ? 4 : 2;
    const int64_t rows = shape->q_len * (shape->heads / shape->kv_heads);
    attune__cpu_packed p = {.of_head = ((uint64_t)shape->kv_len + block_n - 1) / block_n};
    p.v = block_n * (uint64_t)attune__round_up(shape->head_dim, 32) * element;
    p.tile_bytes = attune__round_up64(p.v + block_n * attune__cpu_pad(shape->head_dim_v) * element, 64);
    p.tiles = (uint64_t)(shape->kv_batch * shape->kv_heads) * p.of_head;
    if (rows < (int64_t)PACKED_ROW_TILES * block_m || p.tiles > PACKED_BYTES / p.tile_bytes)
        return (attune__cpu_packed){0};
    p.states = p.tiles * p.tile_bytes;
    p.bytes = attune__round_up64(p.states + p.tiles, 256);
    return p;
}

attune__cpu_backward_workspace attune__cpu_backward_workspace_make(const attune__shape *shape, uint64_t rows,
                                                                   uint64_t elements)
{
    attune__cpu_backward_workspace w = {.sums = attune__round_up64(rows * real_bytes(shape), 256)};
    w.threads = w.sums + attune__round_up64(elements * ATTUNE__CPU_GRADIENT_SLOTS * sizeof(double), 64);
    return w;
}

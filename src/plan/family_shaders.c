/* SPDX-License-Identifier: MIT */
/*
 * The scalar kernels that Vulkan and OpenCL share. Operands stream in slices of the head dimension, so that shared
 * memory grows little with it; O (in backward dK, dV, dQ) stays in registers. Counts are of elements, rows padded by
 * the few that keep columns off one bank. No option sets the stages: these interfaces have no asynchronous copy.
 */
#include "plan/family_shaders.h"

#include <math.h>

#include "base/round.h"
#include "plan/layout.h"
#include "plan/partition.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --------------------------------------------------------------------------------------------------------- few rows */

static const attune__tile few_rows[] = {ATTUNE__TILE(8, 64, 1, 0), ATTUNE__TILE(4, 64, 1, 0), ATTUNE__TILE(2, 64, 1, 0),
                                        ATTUNE__TILE(1, 64, 1, 0)};

const attune__tile *attune__shaders_few_rows_tiles(const attune__search *search, uint32_t *count)
{
    (void)search;
    *count = COUNT(few_rows);
    return few_rows;
}

const char *attune__shaders_few_rows_problem(const attune__search *search)
{
    return search->pass == ATTUNE__PASS_FORWARD && !search->shape->tokens
               ? "it is for decode, and for calls over a cache (problem.tokens)"
               : NULL;
}

const char *attune__shaders_few_rows_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option)
{
    const uint32_t *v = tile->value;
    const char *why = attune__reject_numbers(search, tile, 0, 1024, option);
    if (why)
        return why;
    *option = ATTUNE__BLOCK_M;
    if (v[ATTUNE__BLOCK_M] > few_rows[0].value[ATTUNE__BLOCK_M])
        return "it must be at most 8";
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(v[ATTUNE__NUM_WARPS]))
        return "it must be a power of two";
    *option = ATTUNE__BLOCK_N;
    return search->shape->split_keys % v[ATTUNE__BLOCK_N] ? "it must divide problem.split_keys" : NULL;
}

/* ---------------------------------------------------------------------------------------------- portable, subgroup */

static const attune__tile scalar_forward[] = {
    ATTUNE__TILE(64, 64, 1, 0), ATTUNE__TILE(32, 64, 1, 0), ATTUNE__TILE(32, 32, 1, 0),
    ATTUNE__TILE(16, 64, 1, 0), ATTUNE__TILE(16, 32, 1, 0), ATTUNE__TILE(8, 32, 1, 0),
    ATTUNE__TILE(4, 32, 1, 0),  ATTUNE__TILE(4, 16, 1, 0),  ATTUNE__TILE(1, 4, 1, 0),
};
static const attune__tile scalar_decode[] = {
    ATTUNE__TILE(16, 64, 1, 0), ATTUNE__TILE(8, 64, 1, 0), ATTUNE__TILE(4, 64, 1, 0), ATTUNE__TILE(2, 64, 1, 0),
    ATTUNE__TILE(1, 64, 1, 0),  ATTUNE__TILE(1, 16, 1, 0), ATTUNE__TILE(1, 4, 1, 0),
};
const attune__tile *attune__shaders_tiles(const attune__search *search, uint32_t *count)
{
    switch (search->pass) {
    case ATTUNE__PASS_DECODE:
        *count = COUNT(scalar_decode);
        return scalar_decode;
    case ATTUNE__PASS_BACKWARD:
        return attune__shaders_backward_tiles(search, count);
    default: {
        /* Wider O than 256 of the largest tile would not stay in registers. */
        const uint32_t skip = search->shape->head_dim_v > 256;
        *count = COUNT(scalar_forward) - skip;
        return scalar_forward + skip;
    }
    }
}

/* Measured on an H200 (decision 0055): NVIDIA's OpenCL compiler gives the kernel 255 registers, of which four columns
 * with eight rows of O of 128 columns need more than eight with four. */
static uint32_t opencl_form(const attune__shape *shape)
{
    return shape->head_dim_v > 64 && shape->head_dim_v <= 128 ? ATTUNE__FORWARD_COLUMNS : 0;
}

static uint64_t serving_shared(const attune__shape *s, uint32_t block_m, uint32_t block_n)
{
    return s->tokens ? attune__serving_layout_bytes(block_n) +
                           attune__members_layout_bytes(s->shared_sequences > 1 ? block_m : 1)
                     : 0;
}

/* Two halves with four rows of 512 columns of V are more than the 16 KiB that every Vulkan device has. Such a problem
 * has one half, of every tile, since not even the smallest fits otherwise. */
static uint32_t vulkan_form(const attune_limits *limits, const attune__shape *shape)
{
    attune__forward_layout l;
    const bool made = !attune__forward_layout_make(1, 4, 1, shape->head_dim, shape->head_dim_v, 0, &l);
    return made && l.bytes + serving_shared(shape, 1, 4) > limits->shared_memory ? ATTUNE__FORWARD_ONE_HALF : 0;
}

uint32_t attune__shaders_form(const attune_limits *limits, const attune__shape *shape)
{
    return limits->backend == ATTUNE_BACKEND_OPENCL ? opencl_form(shape) : vulkan_form(limits, shape);
}

/* The portable kernel's workgroup: 128 threads, or what the device has, or on OpenCL what num_warps says. 256 have O of
 * 64 columns in half the registers; where those of a unit are known, two such workgroups share it and not three, and a
 * short call has fewer that end alone (decision 0055). */
static uint32_t portable_invocations(const attune__search *search, const attune__tile *tile)
{
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return tile->value[ATTUNE__NUM_WARPS] * attune__shaders_lanes(search->limits);
    const attune_limits *limits = search->limits;
    const bool wide = limits->backend == ATTUNE_BACKEND_OPENCL && limits->registers &&
                      search->pass == ATTUNE__PASS_FORWARD && search->shape->head_dim_v <= 64 &&
                      tile->value[ATTUNE__BLOCK_M] * tile->value[ATTUNE__BLOCK_N] >= 64 * 64;
    const uint32_t most = attune__floor2(limits->workgroup_invocations), wanted = wide ? 256 : 128;
    return most < wanted ? most : wanted;
}

/* Of a tile with rows of several sequences: the fastest on an H200, docs/decisions/0065-shared-prefixes-in-tiles.md. */
#define SHARED_ROWS 32

static void clamp_rows(const attune__search *search, attune__tile *tile)
{
    if (search->shape->tokens) {
        /* A tile has the rows of a group of heads, of one sequence. */
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N, 1024, search->shape->kv_len, 4);
        attune__clamp_decode(search, tile, 1);
        /* More rows of other sequences would make the items longer in which a sequence is alone. */
        const int64_t own = search->shape->q_len * attune__shape_packed_heads(search->shape);
        uint32_t *m = &tile->value[ATTUNE__BLOCK_M];
        while (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && *m > SHARED_ROWS && *m / 2 >= own)
            *m /= 2;
        return;
    }
    attune__clamp_tile(search, tile, search->pass == ATTUNE__PASS_BACKWARD ? 16 : 4);
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
}

/* layout.h */
static uint64_t scalar_shared(const attune__search *search, const attune__tile *tile, uint32_t threads, uint32_t form)
{
    const uint32_t *v = tile->value;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__shaders_backward_shared(search, tile, threads);
    attune__forward_layout layout;
    if (attune__forward_layout_make(v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], threads, search->shape->head_dim,
                                    search->shape->head_dim_v, form, &layout))
        return UINT64_MAX;
    return layout.bytes + serving_shared(search->shape, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N]);
}

/* NULL if the invocations can share the tile. */
static const char *scalar_reject_tile(const attune__search *search, const attune__tile *tile, uint32_t threads,
                                      uint32_t form, attune__option *option)
{
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__shaders_backward_reject(search, tile, threads, option);
    *option = ATTUNE__BLOCK_N;
    if (search->shape->split_keys % tile->value[ATTUNE__BLOCK_N])
        return "it must divide problem.split_keys";
    attune__forward_layout layout;
    why = attune__forward_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N], threads,
                                      search->shape->head_dim, search->shape->head_dim_v, form, &layout);
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N) ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    return why;
}

void attune__shaders_portable_clamp(const attune__search *search, attune__tile *tile)
{
    clamp_rows(search, tile);
    uint32_t width = attune__shaders_lanes(search->limits);
    tile->value[ATTUNE__NUM_WARPS] = (portable_invocations(search, tile) + width - 1) / width;
}

const char *attune__shaders_portable_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option)
{
    const uint32_t threads = portable_invocations(search, tile);
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(threads))
        return "it must be a power of two";
    return scalar_reject_tile(search, tile, threads, attune__shaders_form(search->limits, search->shape), option);
}

attune__cost attune__shaders_portable_cost(const attune__search *search, const attune__tile *tile)
{
    uint32_t threads = portable_invocations(search, tile);
    return (attune__cost){.shared =
                              scalar_shared(search, tile, threads, attune__shaders_form(search->limits, search->shape)),
                          .invocations = threads};
}

/* Eight subgroups, and at most 128 invocations: each then has 8 rows of a tile of 64, on an H200 a seventh faster than
 * twice as many with 4. */
void attune__shaders_subgroup_clamp(const attune__search *search, attune__tile *tile)
{
    clamp_rows(search, tile);
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], width = attune__floor2(attune__shaders_lanes(search->limits));
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) || *warps)
        return;
    uint32_t most = attune__floor2(search->limits->workgroup_invocations);
    for (*warps = 8; *warps > 1 && (*warps * width > 128 || *warps * width > most);)
        *warps /= 2;
}

/* The invocations of one row lie in one subgroup. */
const char *attune__shaders_subgroup_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option)
{
    uint32_t warps = tile->value[ATTUNE__NUM_WARPS], width = attune__shaders_lanes(search->limits);
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(warps))
        return "it must be a power of two";
    const char *why = scalar_reject_tile(search, tile, warps * width, ATTUNE__FORWARD_SUBGROUPS, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return NULL;
    uint32_t parts = warps * width / tile->value[ATTUNE__BLOCK_M], columns = tile->value[ATTUNE__BLOCK_N] / 4;
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
    return (parts < columns ? parts : columns) > width ? "the invocations of a row lie in one subgroup" : NULL;
}

attune__cost attune__shaders_subgroup_cost(const attune__search *search, const attune__tile *tile)
{
    uint32_t threads = tile->value[ATTUNE__NUM_WARPS] * attune__shaders_lanes(search->limits);
    return (attune__cost){.shared = scalar_shared(search, tile, threads, ATTUNE__FORWARD_SUBGROUPS),
                          .invocations = threads};
}

/* Items for each compute unit, bytes of partial results, and tiles of calls that are not bounded by their rows. */
#define ITEMS_PER_UNIT 4
#define MOST_PARTIALS  (UINT64_C(16) << 20)
/* More of them where sequences share keys: for the parts that each has besides. */
#define MOST_SHARED (UINT64_C(64) << 20)
#define MOST_OWN    8
#define FEW_TILES   16384
#define MOST_ITEMS  (INT64_C(1) << 27)

static attune__partition serving_partition(const attune__shape *s, uint32_t block_m)
{
    return attune__partition_make(&(attune__partition_desc){
        .batch = s->batch,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .q_len = s->q_len,
        .block_m = block_m,
        .decode = true,
        .one_list = true,
    });
}

/* The most tiles of a batch: sequences have a tile that is not full, or each has all of its rows. Only starts that are
 * out of order name more rows than there are. */
static int64_t most_serving_tiles(const attune__shape *s, uint32_t block_m)
{
    const attune__partition c = serving_partition(s, block_m);
    const int64_t planes = s->kv_heads * c.head_chunks, all = c.q_chunks * s->batch;
    if (all > UINT32_MAX / planes)
        return INT64_MAX; /* their numbers have 32 bits */
    int64_t most = s->tokens / c.q_step + s->batch;
    if (most < FEW_TILES / planes)
        most = FEW_TILES / planes;
    return (most < all ? most : all) * planes;
}

attune__shaders_parts attune__shaders_parts_make(const attune__shape *shape, const attune_limits *limits,
                                                 uint32_t block_m)
{
    attune__shaders_parts p = {0};
    const uint32_t least = shape->split_keys ? shape->split_keys : 2 * ATTUNE__SHADERS_PART_KEYS;
    if (!shape->tokens || shape->kv_len <= least)
        return p;
    const uint64_t part = block_m * (uint64_t)shape->head_dim_v * sizeof(float), fit = MOST_PARTIALS / 2 / part;
    const uint64_t wanted = ITEMS_PER_UNIT * (uint64_t)(limits->compute_units ? limits->compute_units : 1);
    const int64_t tiles = most_serving_tiles(shape, block_m);
    p.wanted = (uint32_t)(wanted < fit ? wanted : fit ? fit : 1);
    if (tiles > MOST_ITEMS)
        return (attune__shaders_parts){0};
    p.slots = 2 * p.wanted;
    p.shares = shape->shared_sequences > 1;
    if (p.shares) {
        const int64_t parts = shape->kv_len / least + 1;
        const uint64_t most = MOST_SHARED / part;
        const double planes = (double)(shape->kv_heads * serving_partition(shape, block_m).head_chunks),
                     own = (double)shape->batch * planes * fmin((double)parts, MOST_OWN), room = (double)most;
        p.slots += (uint32_t)(own < room ? own : room);
    }
    p.items = (uint32_t)tiles + p.slots;
    p.partials = attune__round_up64(p.slots * part, 256);
    p.partials_ml = attune__round_up64((uint64_t)p.slots * block_m * 2 * sizeof(float), 256);
    /* A tile in parts has two partial results, or one and those of another sequence; where to find them, and what is
     * known of each sequence, is then in the schedule too. */
    p.merges = p.shares ? p.slots : p.slots / 2;
    const uint64_t shared = p.shares ? p.merges + 2 * (uint64_t)shape->batch : 0;
    p.schedule = attune__round_up64(16 * (1 + (uint64_t)p.items + p.merges + shared), 256);
    return p;
}

uint64_t attune__shaders_workspace_bytes(const attune__search *search, const attune__tile *tile,
                                         const attune__cost *cost, uint32_t split)
{
    (void)cost;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__shaders_backward_workspace(search->shape).size;
    if (search->shape->tokens) {
        const attune__shaders_parts p =
            attune__shaders_parts_make(search->shape, search->limits, tile->value[ATTUNE__BLOCK_M]);
        return p.partials + p.partials_ml + p.schedule + ATTUNE__SHADERS_ARGUMENTS;
    }
    return attune__workspace_parts(search, split) + ATTUNE__SHADERS_ARGUMENTS;
}

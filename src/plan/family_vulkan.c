/* SPDX-License-Identifier: MIT */
/*
 * Vulkan, and OpenCL, whose one kernel is Vulkan's portable one. Operands stream in slices of the head dimension, so
 * that shared memory grows little with it; O (in backward dK, dV, dQ) stays in registers. Counts are of elements, rows
 * padded by the few that keep columns off one bank. No option sets the stages: these interfaces have no asynchronous
 * copy.
 */
#include "base/round.h"
#include "plan/family.h"
#include "plan/layout.h"
#include "plan/partition.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint32_t lanes(const attune_limits *limits)
{
    return limits->subgroup_size ? limits->subgroup_size : 1;
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
static const attune__tile *scalar_tiles(const attune__search *search, uint32_t *count)
{
    switch (search->pass) {
    case ATTUNE__PASS_DECODE:
        *count = COUNT(scalar_decode);
        return scalar_decode;
    case ATTUNE__PASS_BACKWARD:
        return attune__vulkan_backward_tiles(search, count);
    default: {
        /* Wider O than 256 of the largest tile would not stay in registers. */
        const uint32_t skip = search->shape->head_dim_v > 256;
        *count = COUNT(scalar_forward) - skip;
        return scalar_forward + skip;
    }
    }
}

/* The portable kernel's workgroup: 128 threads, or what the device has, or on OpenCL what num_warps says. */
static uint32_t portable_invocations(const attune__search *search, const attune__tile *tile)
{
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return tile->value[ATTUNE__NUM_WARPS] * lanes(search->limits);
    uint32_t most = attune__floor2(search->limits->workgroup_invocations);
    return most < 128 ? most : 128;
}

static void clamp_rows(const attune__search *search, attune__tile *tile)
{
    if (search->shape->tokens) {
        /* A tile has the rows of a group of heads, of one sequence. */
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N, 1024, search->shape->kv_len, 4);
        attune__clamp_decode(search, tile, 1);
        return;
    }
    attune__clamp_tile(search, tile, search->pass == ATTUNE__PASS_BACKWARD ? 16 : 4);
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
}

/* layout.h */
static uint64_t scalar_shared(const attune__search *search, const attune__tile *tile, uint32_t threads, bool subgroups)
{
    const uint32_t *v = tile->value;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_backward_shared(search, tile, threads);
    attune__forward_layout layout;
    if (attune__forward_layout_make(v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], threads, search->shape->head_dim,
                                    search->shape->head_dim_v, subgroups, false, &layout))
        return UINT64_MAX;
    return layout.bytes + (search->shape->tokens ? attune__serving_layout_bytes(v[ATTUNE__BLOCK_N]) : 0);
}

/* NULL if the invocations can share the tile. */
static const char *scalar_reject_tile(const attune__search *search, const attune__tile *tile, uint32_t threads,
                                      bool subgroups, attune__option *option)
{
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_backward_reject(search, tile, threads, option);
    *option = ATTUNE__BLOCK_N;
    if (search->shape->split_keys % tile->value[ATTUNE__BLOCK_N])
        return "it must divide problem.split_keys";
    attune__forward_layout layout;
    why = attune__forward_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N], threads,
                                      search->shape->head_dim, search->shape->head_dim_v, subgroups, false, &layout);
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N) ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    return why;
}

static void portable_clamp(const attune__search *search, attune__tile *tile)
{
    clamp_rows(search, tile);
    uint32_t width = lanes(search->limits);
    tile->value[ATTUNE__NUM_WARPS] = (portable_invocations(search, tile) + width - 1) / width;
}

static const char *portable_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const uint32_t threads = portable_invocations(search, tile);
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(threads))
        return "it must be a power of two";
    return scalar_reject_tile(search, tile, threads, false, option);
}

static attune__cost portable_cost(const attune__search *search, const attune__tile *tile)
{
    uint32_t threads = portable_invocations(search, tile);
    return (attune__cost){.shared = scalar_shared(search, tile, threads, false), .invocations = threads};
}

#define VULKAN_OPTIONS(more)                                                                                           \
    {                                                                                                                  \
        ATTUNE__VULKAN_LOOP | (more) | ATTUNE__FORWARD_TILE,                                                           \
            ATTUNE__VULKAN_LOOP | (more) | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),                       \
            ATTUNE__VULKAN_LOOP | (more) | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)                      \
    }
#define MIXES (1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE)

/* Items for each compute unit, bytes of partial results, and tiles of calls that are not bounded by their rows. */
#define ITEMS_PER_UNIT 4
#define MOST_PARTIALS  (UINT64_C(16) << 20)
#define FEW_TILES      16384
#define MOST_ITEMS     (INT64_C(1) << 27)

/* The most tiles of a batch: sequences have a tile that is not full, or each has all of its rows. Only starts that are
 * out of order name more rows than there are. */
static int64_t most_serving_tiles(const attune__shape *s, uint32_t block_m)
{
    const attune__partition c = attune__partition_make(&(attune__partition_desc){
        .batch = s->batch,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .q_len = s->q_len,
        .block_m = block_m,
        .decode = true,
        .one_list = true,
    });
    const int64_t planes = s->kv_heads * c.head_chunks, all = c.q_chunks * s->batch;
    if (all > UINT32_MAX / planes)
        return INT64_MAX; /* their numbers have 32 bits */
    int64_t most = s->tokens / c.q_step + s->batch;
    if (most < FEW_TILES / planes)
        most = FEW_TILES / planes;
    return (most < all ? most : all) * planes;
}

attune__vulkan_parts attune__vulkan_parts_make(const attune__shape *shape, const attune_limits *limits,
                                               uint32_t block_m)
{
    attune__vulkan_parts p = {0};
    const int64_t least = shape->split_keys ? shape->split_keys : 2 * ATTUNE__VULKAN_PART_KEYS;
    if (!shape->tokens || shape->kv_len <= least)
        return p;
    const uint64_t part = block_m * (uint64_t)shape->head_dim_v * sizeof(float), fit = MOST_PARTIALS / 2 / part;
    const uint64_t wanted = ITEMS_PER_UNIT * (uint64_t)(limits->compute_units ? limits->compute_units : 1);
    const int64_t tiles = most_serving_tiles(shape, block_m);
    p.wanted = (uint32_t)(wanted < fit ? wanted : fit ? fit : 1);
    if (tiles > MOST_ITEMS)
        return (attune__vulkan_parts){0};
    p.slots = 2 * p.wanted;
    p.items = (uint32_t)tiles + p.slots;
    p.partials = attune__round_up64(p.slots * part, 256);
    p.partials_ml = attune__round_up64((uint64_t)p.slots * block_m * 2 * sizeof(float), 256);
    p.schedule = attune__round_up64(16 * (1 + (uint64_t)p.items + p.slots / 2), 256);
    return p;
}

uint64_t attune__vulkan_workspace_bytes(const attune__search *search, const attune__tile *tile,
                                        const attune__cost *cost, uint32_t split)
{
    (void)cost;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_backward_workspace(search->shape).size;
    if (search->shape->tokens) {
        const attune__vulkan_parts p =
            attune__vulkan_parts_make(search->shape, search->limits, tile->value[ATTUNE__BLOCK_M]);
        return p.partials + p.partials_ml + p.schedule + ATTUNE__VULKAN_ARGUMENTS;
    }
    return attune__workspace_parts(search, split) + ATTUNE__VULKAN_ARGUMENTS;
}

/* Sinks and head dimensions above 256 are of forward and decode. */
static const char *vulkan_reject_problem(const attune__search *search)
{
    const attune__shape *s = search->shape;
    if (search->pass != ATTUNE__PASS_BACKWARD)
        return NULL;
    if (s->sinks)
        return "its backward pass has no gradient of sinks (problem.sinks)";
    return s->head_dim > 256 || s->head_dim_v > 256 ? "the head dimensions of its backward pass are at most 256" : NULL;
}

const attune__family attune__vulkan_portable = {
    .name = "vulkan_portable",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .wide_heads = true,
    .reject_problem = vulkan_reject_problem,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(0),
    .tiles = scalar_tiles,
    .clamp = portable_clamp,
    .reject_tile = portable_reject_tile,
    .cost = portable_cost,
    .workspace = attune__vulkan_workspace_bytes,
    .variant = attune__vulkan_variant,
};

const attune__family attune__opencl_portable = {
    .name = "opencl_portable",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = MIXES,
    .options = {ATTUNE__VULKAN_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE,
                ATTUNE__VULKAN_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE |
                    ATTUNE__BIT(ATTUNE__SPLIT_KV),
                ATTUNE__VULKAN_LOOP | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = scalar_tiles,
    .clamp = portable_clamp,
    .reject_tile = portable_reject_tile,
    .cost = portable_cost,
    .workspace = attune__vulkan_workspace_bytes,
};

/* Four subgroups, as many as make 32 lanes, and no more than a workgroup has. */
static void clamp_warps(const attune__search *search, attune__tile *tile)
{
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], width = lanes(search->limits);
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    if (!*warps)
        *warps = 4;
    while (*warps > 1 && *warps * width > search->limits->workgroup_invocations)
        *warps /= 2;
}

/* Eight subgroups, and at most 128 invocations: each then has 8 rows of a tile of 64, on an H200 a seventh faster than
 * twice as many with 4. */
static void subgroup_clamp(const attune__search *search, attune__tile *tile)
{
    clamp_rows(search, tile);
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], width = attune__floor2(lanes(search->limits));
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) || *warps)
        return;
    uint32_t most = attune__floor2(search->limits->workgroup_invocations);
    for (*warps = 8; *warps > 1 && (*warps * width > 128 || *warps * width > most);)
        *warps /= 2;
}

/* The invocations of one row lie in one subgroup. */
static const char *subgroup_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    uint32_t warps = tile->value[ATTUNE__NUM_WARPS], width = lanes(search->limits);
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(warps))
        return "it must be a power of two";
    const char *why = scalar_reject_tile(search, tile, warps * width, true, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return NULL;
    uint32_t parts = warps * width / tile->value[ATTUNE__BLOCK_M], columns = tile->value[ATTUNE__BLOCK_N] / 4;
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
    return (parts < columns ? parts : columns) > width ? "the invocations of a row lie in one subgroup" : NULL;
}

static attune__cost subgroup_cost(const attune__search *search, const attune__tile *tile)
{
    uint32_t threads = tile->value[ATTUNE__NUM_WARPS] * lanes(search->limits);
    return (attune__cost){.shared = scalar_shared(search, tile, threads, true), .invocations = threads};
}

const attune__family attune__vulkan_subgroup = {
    .name = "vulkan_subgroup",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .wide_heads = true,
    .reject_problem = vulkan_reject_problem,
    .subgroups = true,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(ATTUNE__BIT(ATTUNE__NUM_WARPS)),
    .tiles = scalar_tiles,
    .clamp = subgroup_clamp,
    .reject_tile = subgroup_reject_tile,
    .cost = subgroup_cost,
    .workspace = attune__vulkan_workspace_bytes,
    .variant = attune__vulkan_variant,
};

/* Forward and decode alone: no device has shown what subgroups save in backward. */
const attune__family attune__opencl_subgroup = {
    .name = "opencl_subgroup",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .subgroups = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = MIXES,
    .options = {ATTUNE__VULKAN_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE,
                ATTUNE__VULKAN_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE |
                    ATTUNE__BIT(ATTUNE__SPLIT_KV)},
    .tiles = scalar_tiles,
    .clamp = subgroup_clamp,
    .reject_tile = subgroup_reject_tile,
    .cost = subgroup_cost,
    .workspace = attune__vulkan_workspace_bytes,
};

/* ----------------------------------------------------------------------------------------------------------- lanes */

/* Of drivers that run on a CPU: a workgroup is one subgroup, shares no memory and has no barriers. More rows would
 * spare reads of K and V, and cost the driver's compiler more time: it unrolls all rows and columns. */
#define MOST_LANES_ROWS 16

static const attune__tile lanes_forward[] = {ATTUNE__TILE(16, 64, 1, 1), ATTUNE__TILE(16, 32, 1, 1),
                                             ATTUNE__TILE(16, 16, 1, 1), ATTUNE__TILE(16, 8, 1, 1)};

static const attune__tile *lanes_tiles(const attune__search *search, uint32_t *count)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_lanes_backward_tiles(count);
    *count = COUNT(lanes_forward);
    return lanes_forward;
}

static void lanes_clamp(const attune__search *search, attune__tile *tile)
{
    const attune__shape *s = search->shape;
    tile->value[ATTUNE__NUM_WARPS] = 1;
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        attune__clamp_tile(search, tile, lanes(search->limits));
        return;
    }
    uint32_t q = s->block_mask ? s->mask_q_block : 1024, kv = s->block_mask ? s->mask_kv_block : 1024;
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
    else
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M, q, s->q_len, 1);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, kv, s->kv_len, lanes(search->limits));
}

/* layout.h */
static uint32_t lanes_most_steps(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    return attune__lanes_most_steps(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N], lanes(search->limits),
                                    s->head_dim, s->head_dim_v, attune__dtype_bytes(s));
}

/* Decode is divided into parts whose loops a workgroup may run. */
static const char *reject_parts(const attune__search *search, uint32_t n, uint32_t most, attune__option *option)
{
    const bool forced = search->forced & ATTUNE__BIT(ATTUNE__SPLIT_KV);
    const uint32_t fewest = attune__decode_fewest(search->shape, n, most);
    *option = forced ? ATTUNE__SPLIT_KV : ATTUNE__BLOCK_N;
    return fewest > (forced ? search->options.split_kv : ATTUNE__MOST_SPLITS)
               ? "its parts have more keys than the driver lets one workgroup read"
               : NULL;
}

static const char *lanes_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const char *why = attune__reject_numbers(search, tile, 0, 128, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_lanes_backward_reject(search, tile, lanes(search->limits), option);
    const uint32_t width = lanes(search->limits), m = tile->value[ATTUNE__BLOCK_M], n = tile->value[ATTUNE__BLOCK_N];
    *option = ATTUNE__BLOCK_M;
    if (m > MOST_LANES_ROWS)
        return "it must be at most 16";
    *option = ATTUNE__BLOCK_N;
    if (n % width || n > 4 * width)
        return "each lane of the subgroup has one to four of its columns";
    if (search->shape->head_dim % width)
        return "the head dimension is no multiple of the subgroup";
    const uint32_t most = lanes_most_steps(search, tile);
    if (search->pass == ATTUNE__PASS_FORWARD)
        return (search->shape->kv_len + n - 1) / n > most
                   ? "there are more keys than the driver lets one workgroup read"
                   : NULL;
    return reject_parts(search, n, most, option);
}

static attune__cost lanes_cost(const attune__search *search, const attune__tile *tile)
{
    (void)tile;
    return (attune__cost){.invocations = lanes(search->limits)};
}

const attune__family attune__vulkan_lanes = {
    .name = "vulkan_lanes",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .wide_heads = true,
    .reject_problem = vulkan_reject_problem,
    .subgroups = true,
    .host = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(0),
    .tiles = lanes_tiles,
    .clamp = lanes_clamp,
    .reject_tile = lanes_reject_tile,
    .cost = lanes_cost,
    .workspace = attune__vulkan_workspace_bytes,
    .variant = attune__vulkan_variant,
    .most_steps = lanes_most_steps,
};

/* ---------------------------------------------------------------------------------------------- cooperative matrix */

static const attune__tile coopmat_forward[] = {
    ATTUNE__TILE(64, 64, 1, 0), ATTUNE__TILE(64, 32, 1, 0), ATTUNE__TILE(32, 64, 1, 0),
    ATTUNE__TILE(32, 32, 1, 0), ATTUNE__TILE(16, 64, 1, 0), ATTUNE__TILE(16, 32, 1, 0),
    ATTUNE__TILE(16, 16, 1, 0), ATTUNE__TILE(8, 32, 1, 0),  ATTUNE__TILE(8, 16, 1, 0),
};

static const attune__tile *coopmat_tiles(const attune__search *search, uint32_t *count)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_matrix_backward_tiles(search, count);
    *count = COUNT(coopmat_forward);
    return coopmat_forward;
}

static attune__matrix_shape coopmat_shape(const attune_limits *l)
{
    return (attune__matrix_shape){l->matrix_m, l->matrix_n, l->matrix_k, attune__floor2(lanes(l)), l->fragment_layout};
}

/* layout.h; a driver that runs kernels on the CPU is Mesa's. */
static uint32_t coopmat_most_steps(const attune__search *search, const attune__tile *tile)
{
    const uint32_t *v = tile->value;
    return search->limits->host ? attune__matrix_most_steps(v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N],
                                                            v[ATTUNE__NUM_WARPS], coopmat_shape(search->limits),
                                                            search->shape->head_dim, search->shape->head_dim_v)
                                : INT32_MAX;
}

/* NULL and the bytes of shared memory, or why the kernel that these matrices have cannot have the tile. */
static const char *coopmat_layout(const attune__search *search, const attune__tile *tile, uint64_t *bytes)
{
    const attune__matrix_shape matrix = coopmat_shape(search->limits);
    const uint32_t *v = tile->value;
    const uint32_t m = v[ATTUNE__BLOCK_M], n = v[ATTUNE__BLOCK_N], warps = v[ATTUNE__NUM_WARPS];
    const uint32_t d = search->shape->head_dim, dv = search->shape->head_dim_v;
    attune__matrix_layout layout = {0};
    attune__registers_layout registers = {0};
    const char *why = matrix.fragment_layout ? attune__registers_layout_make(m, n, warps, matrix, d, dv, &registers)
                                             : attune__matrix_layout_make(m, n, warps, matrix, d, dv, &layout);
    *bytes = why ? UINT64_MAX : matrix.fragment_layout ? registers.bytes : layout.bytes;
    return why;
}

/* A tile's columns are P V's depth too. */
static uint32_t coopmat_columns(const attune_limits *l)
{
    return l->matrix_n > l->matrix_k ? l->matrix_n : l->matrix_k;
}

/* Subgroups that the matrices of a tile keep busy: one for each row of them. */
static uint32_t coopmat_most_warps(const attune__search *search, const attune__tile *tile)
{
    return tile->value[ATTUNE__BLOCK_M] / search->limits->matrix_m;
}

static void coopmat_clamp(const attune__search *search, attune__tile *tile)
{
    attune__clamp_tile(search, tile, 16);
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        attune__vulkan_matrix_backward_clamp(search, tile);
        return;
    }
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, search->limits->matrix_m);
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], most = coopmat_most_warps(search, tile);
    if (!*warps)
        *warps = attune__floor2(most ? most : 1);
    clamp_warps(search, tile);
    while (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) && *warps > 1 && *warps > most)
        *warps /= 2;
    if (search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N))
        return;
    /* At most 16 scores for each lane, or 32 in registers: expressions stand in the code once for every one of them. */
    const uint32_t most_scores = search->limits->fragment_layout ? 32 : 16, columns = coopmat_columns(search->limits);
    const uint64_t threads = (uint64_t)*warps * lanes(search->limits);
    uint32_t *n = &tile->value[ATTUNE__BLOCK_N];
    while (*n > columns && (uint64_t)tile->value[ATTUNE__BLOCK_M] * *n > threads * most_scores)
        *n /= 2;
}

static const char *coopmat_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const uint32_t *v = tile->value, warps = v[ATTUNE__NUM_WARPS];
    const char *why = attune__reject_numbers(search, tile, 0, 256, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_matrix_backward_reject(search, tile, option);
    *option = v[ATTUNE__BLOCK_M] % search->limits->matrix_m ? ATTUNE__BLOCK_M : ATTUNE__BLOCK_N;
    if (*option == ATTUNE__BLOCK_M || v[ATTUNE__BLOCK_N] % coopmat_columns(search->limits))
        return "it must be a multiple of the device's matrices";
    *option = ATTUNE__NUM_WARPS;
    if (!attune__is_power2(warps))
        return "it must be a power of two";
    if (warps > coopmat_most_warps(search, tile)) {
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
        return "each of the num_warps subgroups takes at least one matrix of the tile";
    }
    uint64_t bytes;
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_N;
    why = coopmat_layout(search, tile, &bytes);
    if (why || search->pass != ATTUNE__PASS_DECODE)
        return why;
    return reject_parts(search, v[ATTUNE__BLOCK_N], coopmat_most_steps(search, tile), option);
}

/* layout.h */
static attune__cost coopmat_cost(const attune__search *search, const attune__tile *tile)
{
    attune__cost c = {.invocations = tile->value[ATTUNE__NUM_WARPS] * lanes(search->limits)};
    if (search->pass == ATTUNE__PASS_BACKWARD)
        c.shared = attune__vulkan_matrix_backward_shared(search, tile);
    else
        (void)coopmat_layout(search, tile, &c.shared);
    return c;
}

/* Where it was measured it is faster than the subgroup kernel: docs/decisions/0012-vulkan-matrices-in-registers.md. */
static const char *coopmat_reject_automatic(const attune__search *search)
{
    if (search->limits->host)
        return "the driver runs on the CPU, where matrices are slow";
    if (search->limits->fragment_layout != ATTUNE_FRAGMENT_QUADS)
        return "its matrices lie in the lanes in a way that is not known, and then it is not faster: by name alone";
    return search->pass == ATTUNE__PASS_DECODE ? "in decode it is not measured: by name alone" : NULL;
}

static const char *coopmat_reject_problem(const attune__search *search)
{
    if (search->pass != ATTUNE__PASS_BACKWARD)
        return NULL;
    if (!search->limits->fragment_layout)
        return "its matrices lie in the lanes in a way that is not known, and its backward pass needs to know";
    return vulkan_reject_problem(search);
}

const attune__family attune__vulkan_coopmat = {
    .name = "vulkan_coopmat",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .matrix = ATTUNE_MATRIX_COOPMAT,
    .subgroups = true,
    .dtypes = 1u << ATTUNE_F16,
    .mixes = MIXES,
    .reject_problem = coopmat_reject_problem,
    .reject_automatic = coopmat_reject_automatic,
    .options = VULKAN_OPTIONS(ATTUNE__BIT(ATTUNE__NUM_WARPS)),
    .tiles = coopmat_tiles,
    .clamp = coopmat_clamp,
    .reject_tile = coopmat_reject_tile,
    .cost = coopmat_cost,
    .workspace = attune__vulkan_workspace_bytes,
    .variant = attune__vulkan_variant,
    .most_steps = coopmat_most_steps,
};

/* SPDX-License-Identifier: MIT */
/* Vulkan. No option sets the stages: the interface has no asynchronous copy. */
#include "plan/family_vulkan.h"
#include "plan/layout.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define VULKAN_OPTIONS(more)                                                                                           \
    {                                                                                                                  \
        ATTUNE__SHADERS_LOOP | (more) | ATTUNE__FORWARD_TILE,                                                          \
            ATTUNE__SHADERS_LOOP | (more) | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),                      \
            ATTUNE__SHADERS_LOOP | (more) | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)                     \
    }
#define MIXES (1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE)

const attune__family attune__vulkan_portable = {
    .name = "vulkan_portable",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .shares = true,
    .heads_above_256 = true,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(0),
    .tiles = attune__shaders_tiles,
    .clamp = attune__shaders_portable_clamp,
    .reject_tile = attune__shaders_portable_reject,
    .cost = attune__shaders_portable_cost,
    .workspace = attune__shaders_workspace_bytes,
    .variant = attune__vulkan_variant,
};

/* Four subgroups, as many as make 32 lanes, and no more than a workgroup has. */
static void clamp_warps(const attune__search *search, attune__tile *tile)
{
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], width = attune__shaders_lanes(search->limits);
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    if (!*warps)
        *warps = 4;
    while (*warps > 1 && *warps * width > search->limits->workgroup_invocations)
        *warps /= 2;
}

const attune__family attune__vulkan_subgroup = {
    .name = "vulkan_subgroup",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .shares = true,
    .heads_above_256 = true,
    .subgroups = true,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(ATTUNE__BIT(ATTUNE__NUM_WARPS)),
    .tiles = attune__shaders_tiles,
    .clamp = attune__shaders_subgroup_clamp,
    .reject_tile = attune__shaders_subgroup_reject,
    .cost = attune__shaders_subgroup_cost,
    .workspace = attune__shaders_workspace_bytes,
    .variant = attune__vulkan_variant,
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
        attune__clamp_tile(search, tile, attune__shaders_lanes(search->limits));
        return;
    }
    uint32_t q = s->block_mask ? s->mask_q_block : 1024, kv = s->block_mask ? s->mask_kv_block : 1024;
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 1);
    else
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M, q, s->q_len, 1);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, kv, s->kv_len, attune__shaders_lanes(search->limits));
}

/* layout.h */
static uint32_t lanes_most_steps(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    return attune__lanes_most_steps(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N],
                                    attune__shaders_lanes(search->limits), s->head_dim, s->head_dim_v,
                                    attune__dtype_bytes(s));
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
        return attune__vulkan_lanes_backward_reject(search, tile, attune__shaders_lanes(search->limits), option);
    const uint32_t width = attune__shaders_lanes(search->limits), m = tile->value[ATTUNE__BLOCK_M],
                   n = tile->value[ATTUNE__BLOCK_N];
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
    return (attune__cost){.invocations = attune__shaders_lanes(search->limits)};
}

const attune__family attune__vulkan_lanes = {
    .name = "vulkan_lanes",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .heads_above_256 = true,
    .subgroups = true,
    .host = true,
    .dtypes = ATTUNE__DENSE_DTYPES,
    .mixes = MIXES,
    .options = VULKAN_OPTIONS(0),
    .tiles = lanes_tiles,
    .clamp = lanes_clamp,
    .reject_tile = lanes_reject_tile,
    .cost = lanes_cost,
    .workspace = attune__shaders_workspace_bytes,
    .variant = attune__vulkan_variant,
    .most_steps = lanes_most_steps,
};

/* ---------------------------------------------------------------------------------------------- cooperative matrix */

/* The first two where S stays in registers, with eight subgroups: docs/decisions/0066-vulkan-forward-pipelined.md. */
static const attune__tile coopmat_forward[] = {
    ATTUNE__TILE(128, 32, 1, 0), ATTUNE__TILE(128, 16, 1, 0), ATTUNE__TILE(64, 64, 1, 0), ATTUNE__TILE(64, 32, 1, 0),
    ATTUNE__TILE(32, 64, 1, 0),  ATTUNE__TILE(32, 32, 1, 0),  ATTUNE__TILE(16, 64, 1, 0), ATTUNE__TILE(16, 32, 1, 0),
    ATTUNE__TILE(16, 16, 1, 0),  ATTUNE__TILE(8, 32, 1, 0),   ATTUNE__TILE(8, 16, 1, 0),  ATTUNE__TILE(8, 8, 1, 0),
};
#define LARGE_TILES 2

static const attune__tile *coopmat_tiles(const attune__search *search, uint32_t *count)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__vulkan_matrix_backward_tiles(search, count);
    const uint32_t skipped = search->limits->fragment_layout == ATTUNE_FRAGMENT_QUADS ? 0 : LARGE_TILES;
    *count = COUNT(coopmat_forward) - skipped;
    return coopmat_forward + skipped;
}

static attune__matrix_shape coopmat_shape(const attune_limits *l)
{
    return (attune__matrix_shape){l->matrix_m, l->matrix_n, l->matrix_k, attune__floor2(attune__shaders_lanes(l)),
                                  l->fragment_layout};
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
    /* Narrow rows of O leave registers for two matrices of rows, for which K and V are read from shared memory once. */
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) &&
        search->limits->fragment_layout == ATTUNE_FRAGMENT_QUADS && *warps == 8 && search->shape->head_dim <= 64 &&
        search->shape->head_dim_v <= 64)
        *warps = 4;
    clamp_warps(search, tile);
    while (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) && *warps > 1 && *warps > most)
        *warps /= 2;
    if (search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N))
        return;
    /* At most 16 scores for each lane, or 32 in registers: expressions stand in the code once for every one of them. */
    const uint32_t most_scores = search->limits->fragment_layout ? 32 : 16, columns = coopmat_columns(search->limits);
    const uint64_t threads = (uint64_t)*warps * attune__shaders_lanes(search->limits);
    uint32_t *n = &tile->value[ATTUNE__BLOCK_N];
    while (*n > columns && (uint64_t)tile->value[ATTUNE__BLOCK_M] * *n > threads * most_scores)
        *n /= 2;
}

/* Whether tiles of so many rows would leave more than a quarter of the compute units without one. */
static bool leaves_units(const attune__search *search, uint32_t rows)
{
    const attune__shape *s = search->shape;
    return 4 * s->batch * s->heads * ((s->q_len + rows - 1) / rows) < 3 * (int64_t)search->limits->compute_units;
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
    *option = ATTUNE__BLOCK_M;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && v[ATTUNE__BLOCK_M] > 64 &&
        leaves_units(search, v[ATTUNE__BLOCK_M]))
        return "there are too few tiles of so many rows for the compute units";
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
    attune__cost c = {.invocations = tile->value[ATTUNE__NUM_WARPS] * attune__shaders_lanes(search->limits)};
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
    const attune__shape *s = search->shape;
    if (s->k_dtype != s->v_dtype)
        return "its matrices of k and of v have one type";
    if (s->k_dtype == ATTUNE_BF16 && !search->limits->fragment_layout)
        return "its matrices lie in the lanes in a way that is not known, and then it multiplies f16 alone";
    if (search->pass != ATTUNE__PASS_BACKWARD)
        return NULL;
    if (s->k_dtype == ATTUNE_BF16)
        return "its backward pass multiplies f16 alone";
    if (!search->limits->fragment_layout)
        return "its matrices lie in the lanes in a way that is not known, and its backward pass needs to know";
    return NULL;
}

const attune__family attune__vulkan_coopmat = {
    .name = "vulkan_coopmat",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .matrix = ATTUNE_MATRIX_COOPMAT,
    .subgroups = true,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .mixes = MIXES,
    .reject_problem = coopmat_reject_problem,
    .reject_automatic = coopmat_reject_automatic,
    .options = VULKAN_OPTIONS(ATTUNE__BIT(ATTUNE__NUM_WARPS)),
    .tiles = coopmat_tiles,
    .clamp = coopmat_clamp,
    .reject_tile = coopmat_reject_tile,
    .cost = coopmat_cost,
    .workspace = attune__shaders_workspace_bytes,
    .variant = attune__vulkan_variant,
    .most_steps = coopmat_most_steps,
};

/* SPDX-License-Identifier: MIT */
/*
 * OpenCL's kernel of few rows (shaders/opencl/decode.cl). BLOCK_N follows from the threads, and from how many keys a
 * thread has in flight: as many as registers and local memory allow, up to eight.
 */
#include "plan/family_opencl.h"
#include "plan/layout.h"

#define MOST_KEYS      8     /* that a thread has in flight */
#define MOST_HOST_KEYS 2     /* of drivers on the CPU, which keep registers in memory */
#define THREADS        256   /* whose loads are enough for a compute unit */
#define HOST_THREADS   64    /* which a driver on the CPU computes one after another */
#define MOST_REGISTERS 192   /* of a thread, by the layout's estimate */
#define MOST_16_BIT    216   /* likewise, of 16-bit tensors, whose kernels need fewer others; not over a cache */
#define MOST_ROWS      16    /* of a sequence and a head of keys, unless named: more are for larger tiles */
#define MOST_DEVICE    232   /* without spills */
#define MOST_SHARED    46080 /* of the 48 KiB that most GPUs let a workgroup have */

static uint32_t threads_of(const attune__search *search, const attune__tile *tile)
{
    return tile->value[ATTUNE__NUM_WARPS] * attune__floor2(attune__shaders_lanes(search->limits));
}

static bool has_factor(attune_dtype dtype)
{
    return dtype == ATTUNE_F8E4M3 || dtype == ATTUNE_F8E5M2 || dtype == ATTUNE_I8;
}

attune__few_rows_shape attune__opencl_few_rows_shape(const attune__shape *s)
{
    return (attune__few_rows_shape){
        .head_dim = s->head_dim,
        .head_dim_v = s->head_dim_v,
        .is_f32 = s->k_dtype == ATTUNE_F32 || s->v_dtype == ATTUNE_F32,
        .has_factors = has_factor(s->k_dtype) || has_factor(s->v_dtype),
    };
}

static const char *make(const attune__search *search, const attune__tile *tile, attune__few_rows_layout *layout)
{
    return attune__few_rows_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N],
                                        threads_of(search, tile), attune__opencl_few_rows_shape(search->shape), layout);
}

/* Whether a thread has room for the tile's loads, and a workgroup for its products. */
static bool has_room(const attune__search *search, const attune__tile *tile)
{
    const attune_limits *limits = search->limits;
    const attune__few_rows_shape shape = attune__opencl_few_rows_shape(search->shape);
    const uint32_t registers = search->shape->tokens || shape.is_f32 ? MOST_REGISTERS : MOST_16_BIT;
    attune__few_rows_layout layout;
    return !make(search, tile, &layout) && layout.KEYS <= (limits->host ? MOST_HOST_KEYS : MOST_KEYS) &&
           layout.registers <= registers && layout.bytes <= MOST_SHARED && layout.bytes <= limits->shared_memory;
}

/* Whether the tiles of keys fit the lengths, and the blocks and parts that they may not cross. */
static bool fits_keys(const attune__search *search, uint32_t n)
{
    const attune__shape *s = search->shape;
    const bool blocks = s->block_mask && !s->tokens && s->mask_kv_block % n;
    return !blocks && s->split_keys % n == 0 && n / 2 < s->kv_len;
}

static void clamp(const attune__search *search, attune__tile *tile)
{
    const attune_limits *limits = search->limits;
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], *n = &tile->value[ATTUNE__BLOCK_N];
    const uint32_t lanes = attune__floor2(attune__shaders_lanes(limits));
    const bool free_warps = !(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS));
    attune__clamp_decode(search, tile, 1);
    if (free_warps) {
        /* A thread for each eight elements of a row, at least. */
        const uint32_t dim =
            search->shape->head_dim > search->shape->head_dim_v ? search->shape->head_dim : search->shape->head_dim_v;
        uint32_t wanted = limits->host ? HOST_THREADS : THREADS;
        while (wanted < dim / 8)
            wanted *= 2;
        for (*warps = 1; *warps * 2 * lanes <= wanted && *warps * 2 * lanes <= limits->workgroup_invocations;)
            *warps *= 2;
    }
    attune__few_rows_layout layout;
    if (search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N)) {
        while (free_warps && *warps > 1 && make(search, tile, &layout))
            *warps /= 2;
        return;
    }
    /* The largest that there is room for; fewer threads where one round of their loads is too much. */
    for (;; *warps /= 2) {
        for (*n = 1024; *n > 1; *n /= 2)
            if (fits_keys(search, *n) && has_room(search, tile))
                return;
        if (*warps <= 1 || !free_warps)
            break;
    }
    /* The smallest that the threads can have. */
    for (*n = 1; *n < 1024; *n *= 2)
        if (!make(search, tile, &layout))
            return;
}

/* Mesa's llvmpipe, below rusticl, silently ends all loops of a kernel after 65,535 iterations in total. Those that are
 * not unrolled there are counted, with the last test of each, and doubled. */
static uint32_t most_steps(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    attune__few_rows_layout l;
    if (!search->limits->host || attune__opencl_serving_width(search->limits) > 1)
        return INT32_MAX;
    if (make(search, tile, &l))
        return 0;
    const uint64_t m = tile->value[ATTUNE__BLOCK_M];
    /* Loads, products, weights and sums; the search for the next tile, and its keys; sums of pairs. */
    const uint64_t step = 16 + 2 * (l.KEYS + 1) + 3 * l.KEYS * (m + 2) + m * (l.KEYS + 3) + 2 * (l.FINDS + 1) +
                          l.SCORES * (l.KEY_LANES / 4 + 3) + l.PAIR_GROUPS;
    const uint64_t part = 2 * m + m / l.ROUND_ROWS * (l.ROUND_ROWS + l.ROUND_SIZE * (2 * l.TEAMS + 3) + 3) + 8;
    const uint64_t parts = s->tokens && s->split_keys ? (uint64_t)s->kv_len / s->split_keys + 1 : 1;
    const uint64_t outside = 2 * (parts * part + 4 * m + l.SUM_SIZE + 8), all = 65535;
    return outside < all ? (uint32_t)((all - outside) / (2 * step)) : 0;
}

/* Decode is divided into parts whose loops a workgroup may run; an item of a batch may have all keys. */
static bool loops_fit(const attune__search *search, const attune__tile *tile)
{
    const uint32_t n = tile->value[ATTUNE__BLOCK_N], most = most_steps(search, tile);
    if (search->pass != ATTUNE__PASS_DECODE)
        return (search->shape->kv_len + n - 1) / n <= most;
    const bool forced = search->forced & ATTUNE__BIT(ATTUNE__SPLIT_KV);
    return attune__decode_fewest(search->shape, n, most) <= (forced ? search->options.split_kv : ATTUNE__MOST_SPLITS);
}

static const char *reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const char *why = attune__shaders_few_rows_reject(search, tile, option);
    if (why)
        return why;
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N) ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    attune__few_rows_layout layout;
    why = make(search, tile, &layout);
    if (why)
        return why;
    if (!search->limits->host && layout.registers > MOST_DEVICE)
        return "a thread has too few registers";
    *option = search->forced & ATTUNE__BIT(ATTUNE__SPLIT_KV) ? ATTUNE__SPLIT_KV : ATTUNE__BLOCK_N;
    return loops_fit(search, tile) ? NULL : "there are more keys than the driver lets one workgroup read";
}

/* As many parts of the keys as workgroups of THREADS have: fewer threads are as many more. */
static attune__cost cost(const attune__search *search, const attune__tile *tile)
{
    const uint32_t threads = threads_of(search, tile);
    attune__cost c = {
        .shared = UINT64_MAX,
        .invocations = threads,
        .most_resident = threads < THREADS ? THREADS / threads : 1,
    };
    attune__few_rows_layout layout;
    if (!make(search, tile, &layout))
        c.shared = layout.bytes;
    return c;
}

static const char *reject_automatic(const attune__search *search)
{
    /* Only NVIDIA's driver tells them. */
    if (!search->limits->registers)
        return "it takes most registers of a thread, and of GPUs ran on NVIDIA's alone: by name alone";
    const attune__shape *s = search->shape;
    return s->q_len * attune__shape_packed_heads(s) > MOST_ROWS
               ? "a sequence has, or may have, more than 16 rows for each head of keys: by name alone"
               : NULL;
}

const attune__family attune__opencl_few_rows = {
    .name = "opencl_decode",
    .backend = ATTUNE_BACKEND_OPENCL,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .heads_above_256 = true,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .reject_problem = attune__shaders_few_rows_problem,
    .reject_automatic = reject_automatic,
    .options = {ATTUNE__SHADERS_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE,
                ATTUNE__SHADERS_LOOP | ATTUNE__BIT(ATTUNE__NUM_WARPS) | ATTUNE__FORWARD_TILE |
                    ATTUNE__BIT(ATTUNE__SPLIT_KV),
                0},
    .tiles = attune__shaders_few_rows_tiles,
    .clamp = clamp,
    .reject_tile = reject_tile,
    .cost = cost,
    .workspace = attune__shaders_workspace_bytes,
    .most_steps = most_steps,
};

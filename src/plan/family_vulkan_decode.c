/* SPDX-License-Identifier: MIT */
/*
 * Vulkan's kernel of few rows (shaders/decode.comp). BLOCK_N follows from the subgroups and from how many keys a lane
 * has in flight: as many as registers allow, up to eight, and over a cache fewer.
 */
#include "plan/family_vulkan.h"
#include "plan/layout.h"

#define FEW_ROWS       4   /* of a tile, where more have several tiles, which read the keys again from the L2 cache */
#define FEW_PAIRS      8   /* over a cache: of a row of a tile and a key that a lane has in flight */
#define MOST_KEYS      8   /* that a lane has in flight */
#define MOST_HOST_KEYS 2   /* of drivers on the CPU, whose compile time grows with them */
#define WARPS          8   /* subgroups, whose loads are enough for a compute unit */
#define FEWER_WARPS    4   /* where tiles of keys are too small for eight with all of their loads; drivers on the CPU */
#define MOST_REGISTERS 208 /* of a lane, by the layout's estimate; NVIDIA's compiler takes up to 40 more */
#define MOST_DEVICE    232 /* without spills */
#define MOST_ROWS      16  /* of a sequence and a head of keys, unless named: more are for larger tiles */

static uint32_t lanes(const attune_limits *limits)
{
    return attune__floor2(limits->subgroup_size ? limits->subgroup_size : 1);
}

static const char *make(const attune__search *search, const attune__tile *tile, attune__decode_layout *layout)
{
    return attune__decode_layout_make(tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N],
                                      tile->value[ATTUNE__NUM_WARPS], lanes(search->limits), search->shape->head_dim,
                                      search->shape->head_dim_v, attune__dtype_bytes(search->shape) == 4, layout);
}

static bool is_wide(const attune__shape *s)
{
    return s->head_dim > 128 || s->head_dim_v > 128;
}

/* Over a cache, or with more than 128 columns, several tiles are faster than one of more rows (on an H200:
 * docs/decisions/0090-rows-of-vulkan-decode.md). */
static bool has_few_rows(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return !search->limits->host && (s->tokens || is_wide(s));
}

/* The keys that a lane has in flight. Over a cache two rows or more were fastest with eight pairs of a row and a key, a
 * row alone with two keys, and four rows of more than 128 columns with as many keys as there may be. */
static uint32_t most_keys(const attune__search *search, uint32_t m)
{
    const attune__shape *s = search->shape;
    if (search->limits->host)
        return MOST_HOST_KEYS;
    if (!s->tokens || m > FEW_ROWS || (is_wide(s) && m > 2))
        return MOST_KEYS;
    return m > 1 ? FEW_PAIRS / m : 2;
}

/* Whether a lane has room for the tile's loads, and a workgroup for its subgroups' results. */
static bool has_room(const attune__search *search, const attune__tile *tile)
{
    attune__decode_layout layout;
    const uint32_t keys = most_keys(search, tile->value[ATTUNE__BLOCK_M]);
    return !make(search, tile, &layout) && layout.KEYS <= keys && layout.registers <= MOST_REGISTERS &&
           layout.bytes <= search->limits->shared_memory;
}

/* Whether the tiles of keys fit the lengths, and the blocks and parts that they may not cross. */
static bool fits_keys(const attune__search *search, uint32_t n)
{
    const attune__shape *s = search->shape;
    const bool blocks = s->block_mask && !s->tokens && s->mask_kv_block % n;
    return !blocks && s->split_keys % n == 0 && n / 2 < s->kv_len;
}

/* Half of the subgroups, where each then has twice the loads in flight. */
static void prefer_loads(const attune__search *search, attune__tile *tile)
{
    attune__tile half = *tile;
    half.value[ATTUNE__NUM_WARPS] = FEWER_WARPS;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) && tile->value[ATTUNE__NUM_WARPS] > FEWER_WARPS &&
        has_room(search, &half))
        *tile = half;
}

static void clamp(const attune__search *search, attune__tile *tile)
{
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS], *n = &tile->value[ATTUNE__BLOCK_N];
    attune__clamp_decode(search, tile, 1);
    if (has_few_rows(search) && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) &&
        tile->value[ATTUNE__BLOCK_M] > FEW_ROWS)
        tile->value[ATTUNE__BLOCK_M] = FEW_ROWS;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)))
        for (*warps = search->limits->host ? FEWER_WARPS : WARPS;
             *warps > 1 && *warps * lanes(search->limits) > search->limits->workgroup_invocations;)
            *warps /= 2;
    attune__decode_layout layout;
    if (search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N)) {
        while (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) && *warps > 1 && make(search, tile, &layout))
            *warps /= 2;
        return;
    }
    /* The largest that a lane has room for; fewer subgroups where one round of their loads is too much. */
    for (;; *warps /= 2) {
        for (*n = 1024; *n > 1; *n /= 2)
            if (fits_keys(search, *n) && has_room(search, tile)) {
                prefer_loads(search, tile);
                return;
            }
        if (*warps <= 1 || search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
            break;
    }
    /* The smallest that the lanes can have. */
    for (*n = 1; *n < 1024; *n *= 2)
        if (!make(search, tile, &layout))
            return;
}

static const char *reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const char *why = attune__shaders_few_rows_reject(search, tile, option);
    if (why)
        return why;
    *option = search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N) ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
    attune__decode_layout layout;
    why = make(search, tile, &layout);
    if (why)
        return why;
    return !search->limits->host && layout.registers > MOST_DEVICE ? "a lane has too few registers" : NULL;
}

static attune__cost cost(const attune__search *search, const attune__tile *tile)
{
    const uint32_t warps = tile->value[ATTUNE__NUM_WARPS];
    attune__cost c = {
        .shared = UINT64_MAX,
        .invocations = warps * lanes(search->limits),
        .most_resident = warps < WARPS ? WARPS / warps : 1,
    };
    attune__decode_layout layout;
    if (!make(search, tile, &layout))
        c.shared = layout.bytes;
    return c;
}

/* On an H200 it is three to four times as fast as the subgroup kernel: docs/decisions/0067-vulkan-decode.md. */
static const char *reject_automatic(const attune__search *search)
{
    /* The layout of NVIDIA's driver. */
    if (search->limits->fragment_layout != ATTUNE_FRAGMENT_QUADS)
        return "it takes most registers of a lane, and of GPUs ran on NVIDIA's alone: by name alone";
    const attune__shape *s = search->shape;
    const int64_t rows = s->q_len * attune__shape_packed_heads(s);
    if (rows > MOST_ROWS)
        return "a sequence has, or may have, more than 16 rows for each head of keys: by name alone";
    const bool widest = s->head_dim > 256 || s->head_dim_v > 256;
    /* In several tiles of few rows only what was timed. */
    const bool several = !s->tokens && attune__dtype_bytes(s) == 2 && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M));
    return widest || (is_wide(s) && rows > FEW_ROWS && !several)
               ? "with so many rows and columns a lane has registers for few loads: by name alone"
               : NULL;
}

const attune__family attune__vulkan_few_rows = {
    .name = "vulkan_decode",
    .backend = ATTUNE_BACKEND_VULKAN,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .heads_above_256 = true,
    .subgroups = true,
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
    .variant = attune__vulkan_variant,
};

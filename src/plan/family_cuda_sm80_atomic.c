/* SPDX-License-Identifier: MIT */
/*
 * CUDA, mma.sync, backward in one kernel of five products: a CTA computes dK and dV of a tile of keys, and adds to
 * float32 sums of dQ with atomics, in no fixed order.
 */
#include "plan/family_cuda.h"

#include "cuda/layout_sm80.h"

#define TILES ATTUNE__CUDA_TILES

/* A warp has 32 keys. Warps with the same keys divide the rows of S and dP, and the columns of dK and dV. By the larger
 * head dimension: up to 64, 128, 256. */
static const attune__tile atomic_64[] = {
    ATTUNE__TILES(128, 128, 128, 128, 2, 8),
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
};
/* With a score expression, or key terms, the accumulators of 128 rows spill. */
static const attune__tile atomic_64_score[] = {ATTUNE__TILES(64, 128, 64, 128, 2, 8)};
static const attune__tile atomic_128[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
    ATTUNE__TILES(64, 64, 64, 64, 1, 4),
    ATTUNE__TILES(32, 128, 32, 128, 1, 8),
};
/* Nor do four warps have registers for 64 x 128 of dQ. */
static const attune__tile atomic_128_score[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
    ATTUNE__TILES(32, 128, 32, 128, 1, 8),
};
static const attune__tile atomic_256[] = {
    ATTUNE__TILES(64, 64, 64, 64, 1, 8),
    ATTUNE__TILES(64, 32, 64, 32, 1, 4),
};

static const attune__tile *atomic_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    const attune__cuda_tiles tables[4] = {
        s->score_expr || attune__analysis_key_terms(&s->expr, ATTUNE__ONE_HEAD) ? TILES(atomic_64_score)
                                                                                : TILES(atomic_64),
        s->score_expr ? TILES(atomic_128_score) : TILES(atomic_128), TILES(atomic_256), TILES(atomic_256)};
    const attune__cuda_tiles t = attune__cuda_by_head_dim(s, tables);
    *count = t.count;
    return t.tiles;
}

/* The number of warps with the same keys. */
static uint32_t atomic_split(const uint32_t *v)
{
    return v[ATTUNE__NUM_WARPS] * 32 / v[ATTUNE__BLOCK_N1];
}

static void atomic_clamp(const attune__search *search, attune__tile *tile)
{
    (void)search;
    /* A single kernel computes all gradients: the second tile equals the first. */
    tile->value[ATTUNE__BLOCK_M2] = tile->value[ATTUNE__BLOCK_M1];
    tile->value[ATTUNE__BLOCK_N2] = tile->value[ATTUNE__BLOCK_N1];
}

static const char *atomic_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint32_t count;
    const attune__tile *tiles = atomic_tiles(search, &count);
    bool known = false;
    for (uint32_t i = 0; i < count; i++)
        known = known || (tiles[i].value[ATTUNE__BLOCK_M1] == v[ATTUNE__BLOCK_M1] &&
                          tiles[i].value[ATTUNE__BLOCK_N1] == v[ATTUNE__BLOCK_N1] &&
                          tiles[i].value[ATTUNE__NUM_WARPS] == v[ATTUNE__NUM_WARPS]);
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)  ? ATTUNE__NUM_WARPS
              : search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N1) ? ATTUNE__BLOCK_N1
                                                               : ATTUNE__BLOCK_M1;
    if (!known)
        return "it has a few tiles, by head dimension, with warps for each: docs/planning.md";
    if (attune__round_up(s->head_dim, 16 * atomic_split(v)) * v[ATTUNE__BLOCK_M1] % (256 * v[ATTUNE__NUM_WARPS]))
        return "its warps cannot share so few columns of dQ";
    return attune__cuda_reject_blocks(s, v, option);
}

static attune__cost atomic_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, split = atomic_split(v), stages = v[ATTUNE__NUM_STAGES];
    const uint32_t m = v[ATTUNE__BLOCK_M1], n = v[ATTUNE__BLOCK_N1];
    const uint32_t both = attune__round_up(s->head_dim, 16 * split) + attune__round_up(s->head_dim_v, 16 * split);
    return (attune__cost){
        .shared = attune_cuda_backward_atomic_sm80(attune__cuda_tile(s, m, n, v[ATTUNE__NUM_WARPS], stages)).size,
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = attune__cuda_registers(s) + (2 * m + both) / split,
        .launched_registers = 255,
        .workspace = attune__cuda_backward_added(s),
    };
}

static const char *atomic_reject_problem(const attune__search *search)
{
    uint32_t count;
    const attune__tile *tiles = atomic_tiles(search, &count);
    attune__tile least = tiles[count - 1];
    least.value[ATTUNE__NUM_STAGES] = 1;
    if (search->shape->capture_gradient_elements)
        return "it gives no gradients of captures";
    if (search->limits->shared_memory < atomic_cost(search, &least).shared)
        return "no tile of it fits the device's shared memory with heads this wide";
    return NULL;
}

static void atomic_variant(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    static const attune__cuda_traits traits = {0};
    attune__cuda_variant(s, choice, &traits, variant);
}

const attune__family attune__cuda_sm80_atomic = {
    .name = "cuda_sm80_atomic",
    .backend = ATTUNE_BACKEND_CUDA,
    .sinks = true,
    .matrix = ATTUNE_MATRIX_MMA_SYNC,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .unordered = 1u << ATTUNE__PASS_BACKWARD,
    .reject_problem = atomic_reject_problem,
    .options = {0, 0,
                ATTUNE__CUDA_LOOP | ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) |
                    ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = atomic_tiles,
    .clamp = atomic_clamp,
    .reject_tile = atomic_reject_tile,
    .cost = atomic_cost,
    .workspace = attune__cuda_workspace_bytes,
    .variant = atomic_variant,
};

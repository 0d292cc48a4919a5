/* SPDX-License-Identifier: MIT */
/*
 * CUDA, tcgen05. In forward a tile has 128 rows for each softmax warp group, since the products have 128 rows; S, P and
 * O are in tensor memory, and shared memory has Q, K and V as Hopper's kernel has them. Backward has one tile, and all
 * sums in tensor memory. They have run under the model of tests/model and never on hardware: the automatic choice skips
 * them, and KERNEL selects them.
 */
#include "plan/family_cuda.h"

#include "cuda/layout_sm100.h"

/* --------------------------------------------------------------------------------------------------------- backward */

/* A tile of 128 keys with 128 rows: four warps that load, issue products and round dQ, four that add dQ to its sums,
 * and eight that compute P and dS. The second tile equals the first. By pairs of CTAs 256 keys. With a head dimension
 * past 128, where tensor memory has fewer columns for S and dP, 64 rows, and one stage where shared memory has no space
 * for two. */
static const attune__tile sm100_backward[] = {
    ATTUNE__TILES(128, 128, 128, 128, 2, 16),
    ATTUNE__TILES(128, 256, 128, 256, 2, 16),
};
static const attune__tile sm100_backward_pairs[] = {
    ATTUNE__TILES(128, 256, 128, 256, 2, 16),
    ATTUNE__TILES(128, 128, 128, 128, 2, 16),
};
static const attune__tile sm100_backward_wide[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 16),
    ATTUNE__TILES(64, 128, 64, 128, 1, 16),
};

/* Each CTA of a pair has one block of the mask's keys, or both have the same. */
static bool pairs_fit_mask(const attune__shape *s)
{
    return !s->block_mask || s->mask_kv_block == 128 || s->mask_kv_block % 256 == 0;
}

bool attune__sm100_pairs_pay(const attune__shape *s)
{
    /* Of n tiles of 128 keys under a causal mask a pair computes one of n + 1 in vain. */
    return !attune_cuda_backward_sm100_wide(s->head_dim, s->head_dim_v) && s->kv_len >= 1024 && pairs_fit_mask(s);
}

static attune__cuda_tiles backward_tiles(const attune__shape *s)
{
    const attune__cuda_tiles narrow = ATTUNE__CUDA_TILES(sm100_backward),
                             pairs = ATTUNE__CUDA_TILES(sm100_backward_pairs),
                             wide = ATTUNE__CUDA_TILES(sm100_backward_wide);
    if (attune_cuda_backward_sm100_wide(s->head_dim, s->head_dim_v))
        return wide;
    return attune__sm100_pairs_pay(s) ? pairs : narrow;
}

static bool backward_is_deterministic(const attune__search *search)
{
    (void)search;
    return true;
}

static const char *backward_reject_tile(const attune__shape *s, const attune__tile *tile, attune__option *option)
{
    static const attune__option options[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_N1, ATTUNE__NUM_STAGES, ATTUNE__NUM_WARPS};
    const attune__cuda_tiles tiles = backward_tiles(s);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        *option = options[i];
        if (tile->value[*option] != tiles.tiles[0].value[*option] &&
            tile->value[*option] != tiles.tiles[tiles.count - 1].value[*option])
            return attune_cuda_backward_sm100_wide(s->head_dim, s->head_dim_v)
                       ? "the tile of tcgen05's backward kernel is fixed with a head dimension past 128: 64 x 128, "
                         "num_stages 1 or 2, num_warps 16"
                       : "the tile of tcgen05's backward kernel is fixed: 128 x 128, or 128 x 256 by pairs of CTAs, "
                         "num_stages 2, num_warps 16; with a head dimension past 128, 64 x 128";
    }
    const bool paired = attune_cuda_backward_sm100_paired(tile->value[ATTUNE__BLOCK_N1]);
    attune__tile of_cta = *tile;
    of_cta.value[ATTUNE__BLOCK_N1] /= paired ? 2 : 1;
    const char *const why = attune__cuda_reject_blocks(s, of_cta.value, option);
    if (why || !paired || pairs_fit_mask(s))
        return why;
    *option = ATTUNE__BLOCK_N1;
    return "with 256 keys, of a pair of CTAs, the block of the mask has 128 or a multiple of 256";
}

static attune__cost backward_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    const attune_cuda_tile t =
        attune__cuda_tile(s, v[ATTUNE__BLOCK_M1], v[ATTUNE__BLOCK_N1], v[ATTUNE__NUM_WARPS], v[ATTUNE__NUM_STAGES]);
    return (attune__cost){
        .shared = attune_cuda_backward_sm100(t, s->capture_gradient_elements > 0).size,
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = 192, /* of the warps that compute: 64 rows each of S and dP, and P and dS in 16 bits */
        .launched_registers = 128,
        .workspace = attune__cuda_backward_added(s),
    };
}

/* ---------------------------------------------------------------------------------------------------------- forward */

static const attune__tile sm100_64[] = {
    ATTUNE__TILE(256, 128, 2, 20),
    ATTUNE__TILE(128, 128, 2, 12),
    ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(128, 32, 1, 12),
};
/* With two groups of rows the products of one run under the softmax of the other. Shared memory then has space for 64
 * keys, and tensor memory for 64 and 192 columns of values. */
static const attune__tile sm100_256[] = {
    ATTUNE__TILE(256, 64, 2, 20), ATTUNE__TILE(128, 128, 2, 12), ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(128, 32, 2, 12), ATTUNE__TILE(128, 32, 1, 12),
};

static const attune__tile *sm100_tiles(const attune__search *search, uint32_t *count)
{
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        const attune__cuda_tiles t = backward_tiles(search->shape);
        *count = t.count;
        return t.tiles;
    }
    const attune__cuda_tiles narrow = ATTUNE__CUDA_TILES(sm100_64), wide = ATTUNE__CUDA_TILES(sm100_256);
    const attune__cuda_tiles tables[4] = {narrow, narrow, wide, wide};
    const attune__cuda_tiles t = attune__cuda_by_head_dim(search->shape, tables);
    *count = t.count;
    return t.tiles;
}

static uint32_t sm100_warps(const attune__tile *tile)
{
    return attune_cuda_forward_sm100_warps(tile->value[ATTUNE__BLOCK_M]);
}

static bool sm100_has_key_terms(const attune__shape *s)
{
    return attune__analysis_key_terms(&s->expr, ATTUNE__ONE_HEAD) > 0;
}

/* 256 rows are in at most two blocks of a mask, and the 128 rows of a softmax warp group in one. Terms of keys are
 * computed for one list of blocks. */
static bool sm100_may_have_256(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return !s->block_mask || (s->mask_q_block % 128 == 0 && !sm100_has_key_terms(s));
}

static void sm100_clamp(const attune__search *search, attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return;
    uint32_t *v = tile->value;
    const bool free_m = !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M));
    const bool two = v[ATTUNE__BLOCK_M] == 256 && search->shape->q_len > 128 && sm100_may_have_256(search);
    /* One group of rows leaves space for more keys, or the next tile of the table has fewer. */
    if (v[ATTUNE__BLOCK_M] == 256 && free_m && !two && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N)))
        v[ATTUNE__BLOCK_N] = 128;
    attune__clamp_tile(search, tile, 32);
    /* The products have 128 rows whatever the lengths. sm100_reject_tile rejects masks with smaller blocks. */
    if (free_m)
        v[ATTUNE__BLOCK_M] = two ? 256 : 128;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)))
        v[ATTUNE__NUM_WARPS] = sm100_warps(tile);
}

static attune_cuda_forward_tma_layout layout_of(const attune__search *search, const attune__tile *tile)
{
    const uint32_t *v = tile->value;
    attune_cuda_tile t = attune__cuda_tile(search->shape, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], v[ATTUNE__NUM_WARPS],
                                           v[ATTUNE__NUM_STAGES]);
    t.key_terms = attune__analysis_key_terms(&search->shape->expr, ATTUNE__ONE_HEAD);
    return attune_cuda_forward_sm100(t);
}

static const char *sm100_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_reject_tile(s, tile, option);
    *option = ATTUNE__BLOCK_M;
    if (v[*option] != 128 && v[*option] != 256)
        return "tcgen05 takes 128 or 256 rows";
    if (s->block_mask && s->mask_q_block % 128)
        return "tcgen05 takes 128 rows, which must divide the block of the mask";
    if (v[*option] == 256 && !sm100_may_have_256(search))
        return "with terms of keys, 256 rows would be in two blocks of the mask";
    *option = ATTUNE__BLOCK_N;
    if (v[*option] % 32 || v[*option] < 32 || v[*option] > 128 || !attune__is_power2(v[*option]))
        return "tcgen05 takes 32, 64 or 128 keys";
    if (s->block_mask && s->mask_kv_block % v[*option])
        return "it must divide the block of the mask";
    if (layout_of(search, tile).columns > ATTUNE_CUDA_TENSOR_COLUMNS)
        return "tensor memory has 512 columns, for each 128 rows BLOCK_N and those of O";
    if (v[ATTUNE__NUM_WARPS] != sm100_warps(tile)) {
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
        return "there are 4 warps for each 128 rows, 4 that load, 4 for the products, and 4 that correct 256 rows";
    }
    return NULL;
}

static attune__cost sm100_cost(const attune__search *search, const attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_cost(search, tile);
    attune__cost c = {.invocations = 32 * tile->value[ATTUNE__NUM_WARPS]};
    c.launched_registers = c.invocations ? 65536 / c.invocations / 8 * 8 : 0;
    c.shared = layout_of(search, tile).size;
    /* Of S and O a softmax thread has 32 columns at once. */
    c.registers = attune__cuda_registers(search->shape) + 64;
    return c;
}

static const char *sm100_reject_automatic(const attune__search *search)
{
    if (search->limits->matrix & ATTUNE_MATRIX_UNTRIED)
        return NULL;
    return "it has never run on hardware, so that only KERNEL selects it, or ATTUNE_UNTRIED_KERNELS=1 in the "
           "environment";
}

/* The reduction has 4, the scale 2. */
uint32_t attune__sm100_polynomial_instructions(uint32_t degree)
{
    return degree + 5;
}

/* The share of exponentials, in eighths, with which the unit and the instructions are done first. */
static uint32_t polynomial_share(uint32_t pair, uint32_t degree)
{
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t n = 0; n <= 4; n++) {
        /* Of eight pairs, in units of 1 / ATTUNE__SM100_INSTRUCTIONS of a clock. */
        const uint32_t unit = (8 - n) * (ATTUNE__SM100_INSTRUCTIONS / ATTUNE__SM100_EXPONENTIALS),
                       issue = 8 * pair + n * attune__sm100_polynomial_instructions(degree),
                       most = unit > issue ? unit : issue;
        if (most < least)
            least = most, best = n;
    }
    return best;
}

/* LSE and the row's maximum are float32 results, for which the sum has to have float32's digits. P is rounded to 16
 * bits. A score's own functions take the place of the instructions. */
static void choose_polynomials(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    const bool back = choice->direction == ATTUNE_BACKWARD;
    if (s->score_expr)
        return;
    const uint32_t degree = !back && (s->lse || s->row_max) ? 5 : s->k_dtype == ATTUNE_F16 ? 4 : 3;
    variant->polynomials = polynomial_share(back ? ATTUNE__SM100_P_PAIR : ATTUNE__SM100_FORWARD_PAIR, degree);
    variant->polynomial_degree = variant->polynomials ? degree : 0;
}

static void sm100_variant(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    /* Fast functions were not tried in backward. */
    static const attune__cuda_traits traits = {
        .both_masks = true, .key_intervals = true, .few_registers = true, .exact_slope = true, .near_reads = true};
    attune__cuda_variant(s, choice, &traits, variant);
    attune__cuda_tma_variant(s, choice, 16, variant);
    choose_polynomials(s, choice, variant);
}

const attune__family attune__cuda_sm100a = {
    .name = "cuda_sm100a",
    .backend = ATTUNE_BACKEND_CUDA,
    .matrix = ATTUNE_MATRIX_TCGEN05,
    .tma = true,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reject_automatic = sm100_reject_automatic,
    .caveat = "it has never run on hardware",
    .unordered = 1u << ATTUNE__PASS_BACKWARD,
    .is_deterministic = backward_is_deterministic,
    .options = {ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE), 0,
                ATTUNE__CUDA_LOOP | ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) |
                    ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = sm100_tiles,
    .clamp = sm100_clamp,
    .reject_tile = sm100_reject_tile,
    .cost = sm100_cost,
    .workspace = attune__cuda_workspace_bytes,
    .variant = sm100_variant,
};

/* SPDX-License-Identifier: MIT */
/* Chooses the variants of CUDA's kernels for the expressions. docs/decisions has the measurements behind each rule. */
#include "plan/family_cuda.h"

#include <math.h>

#include "cuda/layout_sm90.h"

/* Integers less than this, and sums of two, are exact in float32. */
#define EXACT_FLOATS (INT64_C(1) << 23)

/* From this many instructions for a pair on, loops over pairs are not fully unrolled. A thread has 32 to 64 pairs of a
 * tile, and the compiler takes 0.3 ms for each instruction; more where exact functions branch (decision 0037). */
#define CHUNK_WEIGHT 40

/* Whether many capture gradients and the accumulators of dK and dV for 64 keys leave no registers for the values that
 * each pair reads (decision 0034). */
static bool registers_full(const attune__shape *s)
{
    const uint32_t d = s->head_dim, dv = s->head_dim_v;
    return s->capture_gradient_elements && s->expr.capture_reads > 2 && !attune_cuda_backward_sm90_wide(d, dv) &&
           attune__round_up(d, 16) + attune__round_up(dv, 16) > 192;
}

static void choose_mask(const attune__shape *s, const attune_plan_choice *choice, const attune__cuda_traits *traits,
                        attune__variant *variant)
{
    const attune__mask_analysis *mask = &s->expr.mask;
    const attune__tile_heads heads = choice->decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD;
    const bool back = choice->direction == ATTUNE_BACKWARD;
    /* Intervals that depend on runs of equal elements are known to hold only in the call. */
    variant->row_intervals = mask->row_intervals && (!mask->row_runs || traits->both_masks);
    variant->mask_pairs = !variant->row_intervals || mask->row_runs;
    variant->key_intervals = mask->row_intervals && back && traits->key_intervals && mask->key_intervals &&
                             !(mask->key_runs & ~mask->row_runs);
    variant->mask_chunks = mask->weight >= CHUNK_WEIGHT;
    variant->mask = mask->terms[heads];
}

/* The instructions of a pair in the form that the kernel has. */
static uint32_t pair_weight(const attune__value_analysis *value, bool polynomials, bool fast)
{
    const uint32_t weight = polynomials ? value->near_weight : value->weight;
    return fast && value->fast_weight < weight ? value->fast_weight : weight;
}

/* On Hopper, forward: approximate functions beside terms of a row or key that have exact ones, and sines and cosines
 * without branches, where their arguments are small. */
static void choose_functions(const attune__analysis *e, bool narrow, bool exact, attune__variant *variant)
{
    variant->exact_terms =
        narrow && !e->smooth && e->smooth_pairs && variant->score.key_count + variant->score.row_count > 0;
    variant->fast_functions = variant->fast_functions || variant->exact_terms;
    variant->fused_sums = variant->fast_functions && !variant->soft_cap && variant->near > 0;
    variant->near_sines = variant->fast_functions && exact && e->score.near_sines > 0;
    if (variant->near_sines && (variant->near == 0 || e->score.near_sines < variant->near))
        variant->near = e->score.near_sines;
}

static void choose_score(const attune__shape *s, const attune_plan_choice *choice, const attune__cuda_traits *traits,
                         attune__variant *variant)
{
    const attune__analysis *e = &s->expr;
    const bool back = choice->direction == ATTUNE_BACKWARD;
    const bool exact = s->q_len < EXACT_FLOATS && s->kv_len < EXACT_FLOATS;
    const attune__tile_heads heads = choice->decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD;
    const bool staged = traits->capture_tiles && attune__cuda_capture_tile(s);
    variant->score = staged ? e->score.tiled : e->score.terms[heads];
    /* On their own terms of rows do not pay for the shuffles between a warp's lanes, nor beside a linear score. */
    if (!variant->score.key_count && (back || !traits->score_rows || (exact && e->linear)))
        variant->score.row_count = 0;
    if (back) {
        const bool full = traits->few_registers && registers_full(s);
        variant->slope = e->slope.terms[heads];
        /* With captures that are read by pair, adding the gradients late costs a quarter of the speed: subtract delta
         * late instead. */
        variant->late_delta = full && e->reads_pairs;
        variant->late_captures = full && !variant->late_delta;
        if (!variant->slope.key_count && !full)
            variant->slope.row_count = 0;
    }
    variant->soft_cap = e->soft_cap;
    /* Where P is rounded to 16 bits, the score's functions need not have all digits of float32. A soft-cap's slope
     * follows from its value, and is slower with an approximate tanh in chunks (decision 0059). */
    variant->fast_functions =
        (back ? e->smooth_slope && !e->soft_cap && !traits->exact_slope : e->smooth) && s->k_dtype != ATTUNE_F32;
    variant->linear = exact && e->linear;
    if (exact && !choice->approximate_tanh)
        variant->near = back && e->slope.near < e->score.near ? e->slope.near : e->score.near;
    if (!back && traits->score_rows && !choice->approximate_tanh)
        choose_functions(e, s->k_dtype != ATTUNE_F32, exact, variant);
    variant->near_reads = back && traits->near_reads && variant->near > 0;
    /* With a near-zero form the exact form is in a loop anyway, and a soft-cap has its own code. */
    const bool polynomials = variant->near > 0 && isfinite(variant->near);
    uint32_t weight = pair_weight(&e->score, polynomials, variant->fast_functions);
    if (variant->near_sines && e->score.sines_weight < weight)
        weight = e->score.sines_weight;
    if (back)
        weight += pair_weight(&e->slope, polynomials, variant->fast_functions);
    /* The values that all pairs of a thread read do not fit the registers at once. Nor, beside the accumulators of
     * TMA's kernels, do those of several captures, or of one with polynomials, unless their gradients are computed too.
     */
    const uint32_t held = (polynomials ? 0u : 1u) + (staged && !e->reads_more);
    const bool reads = back && traits->few_registers ? !s->capture_gradient_elements && e->capture_reads > held
                       : staged                      ? e->reads_more
                                                     : e->reads_pairs;
    variant->score_chunks = !variant->soft_cap && (weight >= CHUNK_WEIGHT || reads);
}

/* Scores of a thread in a chunk where registers are few. */
#define SMALL_CHUNK 8

/* Hopper's forward kernel has 160 registers for each of three consumer warp groups, else 232 or 248. */
static void choose_tma_forward(const attune__shape *s, const attune_plan_choice *choice, uint32_t large_chunk,
                               attune__variant *variant)
{
    const uint32_t d = s->head_dim, dv = s->head_dim_v;
    const bool polynomials = variant->near > 0 && isfinite(variant->near), wide = d > 128 || dv > 128;
    /* Under a causal mask with a slope along the keys a row's largest scores are the last. */
    variant->descending = variant->linear && s->expr.sloped;
    /* Beside three accumulators the hook would spill while P is live. */
    variant->late_hook = choice->block_m == 192 && s->block_mask;
    /* A linear score is evaluated pair by pair only where a coefficient is not finite. Other scores spill unless they
     * are computed in chunks: with wide heads, beside terms of keys and two forms of a score; with wide values and
     * narrow heads, in soft-caps. */
    if (s->score_expr &&
        (variant->linear || (wide && variant->score.key_count && polynomials) || (d <= 64 && dv > 192)))
        variant->score_chunks = true;
    /* The compiler begins many approximate functions at once: those of a whole tile spill. */
    if (s->score_expr) {
        variant->first_score_chunk = variant->score_chunks ? SMALL_CHUNK : large_chunk;
        /* Beside small accumulators more elements are under way at once. */
        if (variant->score_chunks && variant->predicated_loads && s->expr.reads_more && !variant->linear && !wide &&
            (choice->block_n % 128 == 0 || (variant->score.tile_bytes && choice->block_n == 64)))
            variant->first_score_chunk =
                d <= 64 && dv <= 64 && !variant->score.key_count ? 4 * SMALL_CHUNK : 2 * SMALL_CHUNK;
        /* Elements of a tile of a capture are read like those of later tiles: moves of scores beside narrow heads would
         * be a large part of the first tile. */
        if (variant->score.tile_bytes && !variant->score_chunks && !variant->fast_functions && d <= 64 && dv <= 64)
            variant->first_score_chunk = choice->block_n / 2;
        /* Those of functions that do not depend on the product do not, but with narrow heads. */
        const bool all = !s->expr.product_functions && !wide && d > 64 && dv > 64 && choice->block_m == 128 &&
                         !variant->score.key_count && (isinf(variant->near) || variant->near == 0);
        if (variant->score_chunks || (variant->fast_functions && !variant->soft_cap && !all))
            variant->score_chunk = variant->first_score_chunk;
    }
    /* All elements of a tile at once spill. */
    if (variant->predicated_loads && s->mask_expr && s->expr.mask.reads_pairs)
        variant->mask_chunks = true;
    /* A mask whose rows have intervals is seldom evaluated pair by pair. With terms of keys the code is short. */
    if (variant->row_intervals && variant->mask_pairs && !variant->mask.key_count)
        variant->mask_chunks = true;
}

static void choose_tma_backward(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    const uint32_t d = s->head_dim, dv = s->head_dim_v;
    const bool wide = attune_cuda_backward_sm90_wide(d, dv), ordered = choice->deterministic;
    const bool gradients = s->capture_gradient_elements && s->expr.capture_reads;
    /* The compiler begins many approximate functions at once, for which accumulators of 128 columns leave too few
     * registers. */
    if (variant->fast_functions && !wide && (d > 64 || dv > 64))
        variant->score_chunks = true;
    /* P alone does not give a gradient that depends on the score. */
    variant->fused_gradients = gradients && (s->expr.gradients_of_score || ordered);
    /* One pass needs S, dP and the captures' sums at once. */
    variant->half_tiles = variant->fused_gradients && !wide &&
                          (s->expr.capture_reads > 2 || attune__round_up(d, 16) + attune__round_up(dv, 16) > 192);
    /* A score expression leaves no registers for the accumulators of dP beside more than 64 columns, or in a cluster of
     * dQ. An ordered accumulation of dQ must not delay the next load of dO. */
    variant->late_dp = s->score_expr && !wide && !variant->fused_gradients && (d > 64 || dv > 64);
    variant->early_dq = attune_cuda_backward_sm90_paired(d, dv, choice->block_n1) && (s->score_expr || ordered);
    variant->rematerialise = gradients || variant->score_chunks ||
                             (s->score_expr && (variant->score.key_count || variant->score.row_count || ordered ||
                                                (variant->mask_pairs && variant->row_intervals)));
}

void attune__cuda_variant(const attune__shape *s, const attune_plan_choice *choice, const attune__cuda_traits *traits,
                          attune__variant *variant)
{
    if (s->mask_expr)
        choose_mask(s, choice, traits, variant);
    if (s->tokens) { /* one form of each expression, without terms, for all pairs of a tile at once */
        variant->soft_cap = s->score_expr && s->expr.soft_cap;
        variant->mask_chunks = false;
        variant->mask = (attune__terms){0};
    } else if (s->score_expr)
        choose_score(s, choice, traits, variant);
}

void attune__cuda_tma_variant(const attune__shape *s, const attune_plan_choice *choice, uint32_t large_chunk,
                              attune__variant *variant)
{
    if (choice->direction == ATTUNE_BACKWARD)
        choose_tma_backward(s, choice, variant);
    else
        choose_tma_forward(s, choice, large_chunk, variant);
}

/* SPDX-License-Identifier: MIT */
/* How CUDA's kernels have the expressions: docs/decisions has the measurements behind each rule. */
#include "plan/family_cuda.h"

#include <math.h>

/* Whole numbers below it, and their sums, are floats. */
#define EXACT_FLOATS (INT64_C(1) << 23)

/* Instructions of a pair from which on loops take a few pairs at a time. A thread has 32 to 64 pairs of a tile, and a
 * compiler takes 0.3 ms for each instruction; more where exact functions branch (decision 0037). */
#define LONG_TEXT 40

/* Whether the gradients of many captures beside dK and dV of 64 keys leave no registers for what is read for each pair
 * (decision 0034). */
static bool registers_full(const attune__shape *s, const attune_plan_choice *choice)
{
    const uint32_t d = s->head_dim, dv = s->head_dim_v;
    return choice->use_tma && s->capture_gradient_elements && s->expr.capture_reads > 2 &&
           !attune__cuda_sm90_backward_wide(d, dv) && attune__round_up(d, 16) + attune__round_up(dv, 16) > 192;
}

static void choose_mask(const attune__shape *s, const attune_plan_choice *choice, bool hopper_backward,
                        attune__variant *variant)
{
    const attune__mask_analysis *mask = &s->expr.mask;
    const attune__tile_heads heads = choice->decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD;
    /* Where an interval rests on runs of equal elements, which a call alone knows, the mask itself stays beside it:
     * Hopper's kernels have both. */
    variant->row_intervals = mask->row_intervals && (!mask->row_runs || choice->use_tma);
    variant->mask_pairs = !variant->row_intervals || mask->row_runs;
    variant->key_intervals =
        mask->row_intervals && hopper_backward && mask->key_intervals && !(mask->key_runs & ~mask->row_runs);
    variant->mask_chunks = mask->weight >= LONG_TEXT;
    variant->mask = mask->terms[heads];
}

static void choose_score(const attune__shape *s, const attune_plan_choice *choice, bool hopper_backward,
                         attune__variant *variant)
{
    const attune__analysis *e = &s->expr;
    const bool back = choice->direction == ATTUNE_BACKWARD;
    const bool exact = s->q_len < EXACT_FLOATS && s->kv_len < EXACT_FLOATS;
    const attune__tile_heads heads = choice->decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD;
    variant->score = e->score.terms[heads];
    if (back) {
        const bool full = registers_full(s, choice);
        variant->slope = e->slope.terms[heads];
        /* Late captures cost a quarter of the speed beside reads of pairs: such have delta late instead. */
        variant->late_delta = full && e->reads_pairs;
        variant->late_captures = full && !variant->late_delta;
        if (!variant->slope.key_count && !full)
            variant->slope.row_count = 0;
    }
    variant->soft_cap = e->soft_cap;
    variant->linear = exact && e->linear;
    if (exact && !choice->approximate_tanh)
        variant->near = back && e->slope.near < e->score.near ? e->slope.near : e->score.near;
    /* Beside a cheaper form the text itself is in a loop anyway, and a soft-cap has text of its own. */
    const bool polynomials = variant->near > 0 && isfinite(variant->near);
    uint32_t weight = polynomials ? e->score.near_weight : e->score.weight;
    if (back)
        weight += polynomials ? e->slope.near_weight : e->slope.weight;
    /* What a kernel reads for each pair of a thread at once does not fit its registers; nor, in Hopper's backward pass,
     * what it reads of several captures, or of one beside polynomials, unless their gradients are computed too. */
    const bool reads =
        hopper_backward ? !s->capture_gradient_elements && e->capture_reads > (polynomials ? 0 : 1) : e->reads_pairs;
    variant->score_chunks = !variant->soft_cap && (weight >= LONG_TEXT || reads);
}

void attune__cuda_variant(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    const bool hopper_backward = choice->direction == ATTUNE_BACKWARD && choice->use_tma;
    if (s->mask_expr)
        choose_mask(s, choice, hopper_backward, variant);
    if (s->score_expr)
        choose_score(s, choice, hopper_backward, variant);
}

/* SPDX-License-Identifier: MIT */
/*
 * Random expressions, with the captures and parameters that they name. The same seed gives the same expression on every
 * machine.
 *
 *     static random_expr e;                                  (large: not on the stack)
 *     random_expr_make(&e, seed, ATTUNE_EXPR_MASK, 12);
 *     attune_expr_create(instance, e.kind, e.text, e.symbols, e.symbol_count, &expr);
 *     attune_mask_create(instance, &desc, expr, e.captures, e.capture_count, e.parameters, e.parameter_count, &mask);
 *
 * Half of the masks are what people write (causal, windows, documents, lengths, presets, joined by && || !), the other
 * half anything that the grammar allows. Captures have every dtype, ranks 1 to 4, and sizes that indices of the first
 * few hundred positions often miss.
 */
#ifndef TESTS_SUPPORT_RANDOM_EXPR_H
#define TESTS_SUPPORT_RANDOM_EXPR_H

#include <attune/attune.h>

#define RANDOM_EXPR_POSITIONS 192 /* captures along q and kv have up to so many entries */
#define RANDOM_EXPR_CAPTURES  10
#define RANDOM_EXPR_ELEMENTS  2048

typedef struct random_expr {
    attune_expr_kind kind;
    char text[ATTUNE_EXPR_MAX_LENGTH + 1];
    attune_symbol symbols[RANDOM_EXPR_CAPTURES + 2];
    uint32_t symbol_count;
    attune_host_capture captures[RANDOM_EXPR_CAPTURES];
    uint32_t capture_count;
    attune_parameter parameters[2]; /* width: i32, heat: f32 */
    uint32_t parameter_count;
    uint64_t storage[RANDOM_EXPR_CAPTURES][RANDOM_EXPR_ELEMENTS];
} random_expr;

/* complexity: about the number of operators of the expressions that anything goes in, 1 to 60. */
void random_expr_make(random_expr *e, uint64_t seed, attune_expr_kind kind, uint32_t complexity);

/* The next of a seed's numbers, and one in lo ... hi. */
uint64_t random_expr_next(uint64_t *state);
int64_t random_expr_between(uint64_t *state, int64_t lo, int64_t hi);

#endif

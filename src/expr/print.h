/* SPDX-License-Identifier: MIT */
/* Expressions as text: the language itself, and C. */
#ifndef ATTUNE_EXPR_PRINT_H
#define ATTUNE_EXPR_PRINT_H

#include "base/text.h"
#include "expr/expr.h"
#include "expr/gradient.h"

/* Prints a node. UNSUPPORTED if shared nodes make it longer than 1 MiB. */
attune_status attune__print_node(const attune_expr *expr, uint32_t node, attune__text *text);

/* Prints the functions that the emitted text calls, in C99. */
void attune__ctext_prelude(attune__text *text);
attune_status attune__ctext_function(const attune_expr *expr, const char *name, attune__text *text);

/*
 * void NAME(int b, int h, int q, int h_kv, int q_len, int kv_len, int *low, int *high ATTUNE_SYMBOLS): computes the
 * keys [low, high) that row q allows; only for masks of attune__interval_rows. For the symbols in its runs it calls
 * attune_run(capture, row or -1, i, &low, &high), which returns the range of elements equal to element i, and requires
 * that they are contiguous.
 */
void attune__ctext_rows(const attune_expr *expr, const char *name, attune__text *text);
/* Likewise the rows [low, high) of a key, for masks of attune__interval_keys: void NAME(int b, int h, int kv, ...). */
void attune__ctext_columns(const attune_expr *expr, const char *name, attune__text *text);

/*
 * The terms of an expression, and the function of a pair that takes their values:
 *
 *     void NAME_key_terms(int b, int h, int kv, int h_kv, int q_len, int kv_len, int *key ATTUNE_SYMBOLS)
 *     void NAME_row_terms(int b, int h, int q, int h_kv, int q_len, int kv_len, int *row ATTUNE_SYMBOLS)
 *     int or float NAME_of(as attune__ctext_function, but const int *key, const int *row ATTUNE_SYMBOLS)
 *
 *     with a tile, in CUDA alone: attune_capture_row NAME_tile_row(as NAME_row_terms, but without row),
 *     bool NAME_tile_aligned(symbols), long long NAME_tile_stride(symbols), and int NAME_tile_value(unsigned bits)
 *
 * key has the pair's element of the tile behind the key's terms. A term is stored in an int: ATTUNE_BITS_* converts its
 * value to the int, ATTUNE_TERM_F32 and ATTUNE_TERM_I32 convert back.
 */
void attune__ctext_terms(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text);
void attune__ctext_with_terms(const attune_expr *expr, uint32_t root, const char *name, const attune__terms *terms,
                              attune__text *text);

/*
 * The near-zero form of a score: cheaper than that of attune__ctext_function, and valid only for |score| <=
 * attune__near_limit. tanh of a score times or divided by a constant becomes attune_tanh_near, which need be accurate
 * only for |x| <= 0.5, and a sine whose argument is between -1.57 and 1.57 attune_sin_small. Conversions of kv, kv - q
 * and q - kv to float become ATTUNE_FLOAT_KV, ATTUNE_FLOAT_KV_Q and ATTUNE_FLOAT_Q_KV, which a kernel may compute by
 * float additions where lengths are below 2^23. With terms, the function takes their values.
 * fused: sums with products are one operation each, quotients by what a row's pairs share a product, and integers are
 * added to distances before the conversion.
 */
void attune__ctext_near(const attune_expr *expr, const char *name, const attune__terms *terms, bool fused,
                        attune__text *text);

/*
 * void NAME(int b, int h, int q, int h_kv, int q_len, int kv_len, float *factor, float *slope, float *base, int *origin
 * ATTUNE_SYMBOLS), where a score of attune__is_linear is factor * score + base + slope * (float)(kv - origin) in every
 * row, and ATTUNE_LINEAR_SCORE_HAS_SLOPE, which is 0 if slope always is.
 */
void attune__ctext_linear(const attune_expr *expr, const char *name, attune__text *text);

/*
 * Prints a score of attune__is_soft_cap as a function, and its derivative as another (NULL = none), without divisions.
 */
void attune__ctext_soft_cap(const attune_expr *expr, const char *name, const char *slope, attune__text *text);

/*
 * The derivatives, for kernels of the backward pass, with the parameters of the score's function:
 *
 *     float attune_score_slope(int b, ... float score ATTUNE_SYMBOLS)     d result / d score
 *     float attune_capture_read_0(the same)                               d result / d the first read of a capture
 *     attune_index attune_capture_read_0_at(the same)                     its element in row-major order, -1 = none:
 *                                                                         attune_at_RANK(capture, indices), of 64 bits
 *     attune_index attune_capture_read_0_padded_at(the same)              with ATTUNE_HAVE_PADDED_ROWS: likewise
 *                                                                         attune_padded_at_RANK
 *     #define ATTUNE_CAPTURE_READS(X) X(0, symbol, sharing) X(1, ...)     sharing: the least of these that holds
 *     #define ATTUNE_CAPTURE_READS_IN_ORDER(i)                            whether attune__expr_reads_keys_in_order
 *     #define ATTUNE_CAPTURE_GRADIENTS_USE_SCORE 0 or 1                   whether a derivative or an index uses score
 */
#define ATTUNE__READ_ONE      0 /* all pairs of a head read the same element */
#define ATTUNE__READ_ROW      1 /* all pairs of a row */
#define ATTUNE__READ_KEY      2 /* all pairs of a column */
#define ATTUNE__READ_PAIR     3
#define ATTUNE__READ_DIAGONAL 4 /* like PAIR, but all pairs of the same q - kv read the same element */
void attune__ctext_gradient(const attune__gradient *gradient, attune__text *text);
/* Bits of the captures that are read with ATTUNE__READ_PAIR. */
uint32_t attune__ctext_pair_captures(const attune_expr *expr);
/* Of those which have no other reads, and none without attune__expr_reads_keys_in_order. */
uint32_t attune__ctext_ordered_captures(const attune_expr *expr);
/* attune_score_slope in the near-zero form. */
void attune__ctext_near_slope(const attune__gradient *gradient, const char *name, const attune__terms *terms,
                              attune__text *text);
/* Likewise attune_capture_read_0_near and so on. */
void attune__ctext_near_reads(const attune__gradient *gradient, attune__text *text);

/*
 * The bounds of a mask over a box, with functions of a prelude for attune_range (shaders/opencl/bounds.h): low 1 = it
 * is true at all pairs, high 0 = at none.
 *
 *     attune_range NAME(int b, attune_range h, attune_range q, attune_range kv, int h_kv, int q_len, int kv_len,
 *                       attune_range row ATTUNE_SYMBOLS)
 */
void attune__ctext_mask_bounds(const attune_expr *expr, const char *name, attune__text *text);

/* Helpers for printing C. Bounds are valid for every index. values declares constants t0, t1, ... for the nodes that
 * use none of the variables `without`, each with declare; operand returns the text that refers to a node. */
#define ATTUNE__CTEXT_NAME 40
#define ATTUNE__CTEXT_END  "2147483648ll" /* larger than every index */
void attune__ctext_bounds(const attune_expr *expr, attune__interval *bounds);
/* Whether a power is printed as a square root: of 0.5, and a base above 0. */
bool attune__ctext_is_root(const attune__node *exponent, const attune__interval *base);
void attune__ctext_values(const attune_expr *expr, const attune__interval *bounds, uint16_t without,
                          attune__text *text);
/* Declares row, if the expression reads it, as ATTUNE_ROW_INDEX, a macro of the prelude: a function of b, q and q_len
 * in dense calls, and of q and a parameter in ATTUNE_SYMBOLS over a cache. */
void attune__ctext_declare_row(const attune_expr *expr, attune__text *text);
void attune__ctext_declare(const attune_expr *expr, uint32_t n, const attune__interval *bounds, attune__text *text);
/* Marks the nodes in `roots` and their operands, recursively; stops at terms, if not NULL. */
void attune__ctext_needed(const attune_expr *expr, const uint32_t *roots, uint32_t count, const attune__terms *terms,
                          bool needed[ATTUNE_EXPR_MAX_NODES]);
const char *attune__ctext_operand(const attune_expr *expr, uint32_t n, char name[ATTUNE__CTEXT_NAME]);

#endif

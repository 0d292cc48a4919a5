/* SPDX-License-Identifier: MIT */
/* Text out of expressions. */
#ifndef ATTUNE_EXPR_PRINT_H
#define ATTUNE_EXPR_PRINT_H

#include "base/text.h"
#include "expr/expr.h"
#include "expr/gradient.h"

/* A node as text. UNSUPPORTED if sharing makes it longer than 1 MiB. */
attune_status attune__print_node(const attune_expr *expr, uint32_t node, attune__text *text);

/* The functions that the emitted text calls, in C99. */
void attune__ctext_prelude(attune__text *text);
attune_status attune__ctext_function(const attune_expr *expr, const char *name, attune__text *text);

/*
 * void NAME(int b, int h, int q, int h_kv, int q_len, int kv_len, int *low, int *high ATTUNE_SYMBOLS): the keys from
 * low to before high are those that row q may attend; for masks of attune__interval_rows alone. For the symbols in its
 * runs it calls attune_run(capture, row or -1, i, &low, &high), which gives where the elements equal to element i begin
 * and end: it may be called only if they stand together.
 */
void attune__ctext_rows(const attune_expr *expr, const char *name, attune__text *text);
/* Likewise for a key of a mask of attune__interval_keys: void NAME(int b, int h, int kv, ...), the rows from low to
 * before high. */
void attune__ctext_columns(const attune_expr *expr, const char *name, attune__text *text);

/*
 * What the terms of an expression are, and the function of a pair that is given them:
 *
 *     void NAME_key_terms(int b, int h, int kv, int h_kv, int q_len, int kv_len, int *key ATTUNE_SYMBOLS)
 *     void NAME_row_terms(int b, int h, int q, int h_kv, int q_len, int kv_len, int *row ATTUNE_SYMBOLS)
 *     int or float NAME_of(as attune__ctext_function, but const int *key, const int *row ATTUNE_SYMBOLS)
 *
 * A term is a word, whose value is ATTUNE_TERM_F32(word) or ATTUNE_TERM_I32(word), and which ATTUNE_BITS_* makes of it.
 */
void attune__ctext_terms(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text);
void attune__ctext_of_terms(const attune_expr *expr, uint32_t root, const char *name, const attune__terms *terms,
                            attune__text *text);

/*
 * The same function as attune__ctext_function writes for a score, but right only for scores of at most
 * attune__near_limit in magnitude, where it is cheaper: tanh of a score divided or multiplied by a constant becomes
 * attune_tanh_near, which need be right for |x| <= 0.5 only, and the float of kv, kv - q or q - kv is ATTUNE_FLOAT_KV,
 * ATTUNE_FLOAT_KV_Q or ATTUNE_FLOAT_Q_KV, which a kernel may add up where lengths are below 2^23. With terms it is
 * given those.
 */
void attune__ctext_near(const attune_expr *expr, const char *name, const attune__terms *terms, attune__text *text);

/*
 * void NAME(int b, int h, int q, int h_kv, int q_len, int kv_len, float *factor, float *slope, float *base, int *origin
 * ATTUNE_SYMBOLS), where a score of attune__is_linear is factor * score + base + slope * (float)(kv - origin) in every
 * row, and ATTUNE_SCORE_LINE_SLOPED, which is 0 if slope always is.
 */
void attune__ctext_line(const attune_expr *expr, const char *name, attune__text *text);

/* A score of attune__is_soft_cap as a function, and its derivative as another (NULL = none), without the divisions that
 * their texts may have. */
void attune__ctext_capped(const attune_expr *expr, const char *name, const char *slope, attune__text *text);

/*
 * Derivatives, for kernels of the backward pass; the variables are those of the score's own function:
 *
 *     float attune_score_slope(int b, ... float score ATTUNE_SYMBOLS)     d result / d score
 *     float attune_read_0(the same)                                       d result / d the first read of a capture
 *     long long attune_read_0_at(the same)                                its element in row-major order, -1 = none:
 *                                                                         attune_at_RANK(capture, indices)
 *     #define ATTUNE_READS(X) X(0, symbol, how) X(1, ...) ...             how: the least of these that holds
 *     #define ATTUNE_READS_OF_SCORE 0 or 1                                whether one of these values depends on score
 */
#define ATTUNE__READ_ONE      0 /* all pairs of a head read one element */
#define ATTUNE__READ_ROW      1 /* those of a row */
#define ATTUNE__READ_KEY      2 /* those of a column */
#define ATTUNE__READ_PAIR     3
#define ATTUNE__READ_DIAGONAL 4 /* beside PAIR: those whose q is as far from kv */
void attune__ctext_gradient(const attune__gradient *gradient, attune__text *text);
/* attune_score_slope as attune__ctext_near writes the score. */
void attune__ctext_near_slope(const attune__gradient *gradient, const char *name, const attune__terms *terms,
                              attune__text *text);
/* Likewise attune_read_0_near and so on. */
void attune__ctext_near_reads(const attune__gradient *gradient, attune__text *text);

/* For writers of text. Bounds hold for every index; values are constants t0, t1, ... for each node that uses none of
 * the variables `without`, which declare writes one by one; an operand is what names such a node. */
#define ATTUNE__CTEXT_NAME 40
#define ATTUNE__CTEXT_END  "2147483648ll" /* past every index */
void attune__ctext_bounds(const attune_expr *expr, attune__interval *bounds);
void attune__ctext_values(const attune_expr *expr, const attune__interval *bounds, uint16_t without,
                          attune__text *text);
void attune__ctext_declare(const attune_expr *expr, uint32_t n, const attune__interval *bounds, attune__text *text);
/* Marks what the nodes in `roots` are made of, and them; nothing that terms, if not NULL, are made of. */
void attune__ctext_needed(const attune_expr *expr, const uint32_t *roots, uint32_t count, const attune__terms *terms,
                          bool needed[ATTUNE_EXPR_MAX_NODES]);
const char *attune__ctext_operand(const attune_expr *expr, uint32_t n, char name[ATTUNE__CTEXT_NAME]);

#endif

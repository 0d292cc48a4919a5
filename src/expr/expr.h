/* SPDX-License-Identifier: MIT */
/*
 * The IR of expressions: a small immutable DAG, typed, simplified and hash-consed. Nodes stand in topological order
 * (operands before their users; the root is the last), so that every pass is one loop over an array.
 *
 *     lex.c       text -> tokens, messages    parse.c      tokens -> IR
 *     names.c     the language's names        preset.c     expressions with names
 *     simplify.c  rewriting while nodes are made           expr.c       life, order, hash, joining
 *     bind.c      arrays for symbols          eval.c       IR -> values
 *     bounds.c    IR -> intervals             ranges.c     captures -> intervals
 *     print.c     IR -> text, node list       ctext.c      IR -> C text
 *     intervals.c masks that are intervals    line.c       scores that are lines
 *     terms.c     what keys and rows have once     weight.c     how much code a pair is
 *     analysis.c  all that a planner asks          reads.c      captures that are too short
 *
 * Semantics that every back end keeps:
 *   i32 wraps; / and % floor; x / 0 = 0 and x % 0 = 0 for i32. f32 is IEEE binary32, each operation rounded, nothing
 * fused or re-associated. f32 % is a - floor(a / b) * b. min(a, b) = b < a ? b : a; max(a, b) = a < b ? b : a; clamp(x,
 * lo, hi) = min(max(x, lo), hi). A capture index out of range reads 0 (false). && and || evaluate both sides: nothing
 *   can fault. i32 -> f32 conversion rounds to nearest. Masks are always evaluated in f32, also by the float64 oracle,
 *   so that one pair is never allowed by one kernel and forbidden by another; scores follow the precision of the
 * kernel, literals included: f64 takes a literal as the nearest double, f32 as that double rounded. An operation on
 * constants is folded only where f32 and f64 give the same number, rounded: every constant is one double, and what is
 * left unfolded each kernel computes in its own precision. A mask's constants are f32.
 */
#ifndef ATTUNE_EXPR_EXPR_H
#define ATTUNE_EXPR_EXPR_H

#include <attune/attune.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "expr/analysis.h"

typedef enum attune__type {
    ATTUNE__BOOL = 1,
    ATTUNE__INT = 2,  /* i32 */
    ATTUNE__FLOAT = 3 /* f32 */
} attune__type;

typedef enum attune__op {
    /* leaves */
    ATTUNE__OP_CONST,   /* value.i (bool: 0 or 1; int) or value.f */
    ATTUNE__OP_VAR,     /* value.i: an attune__var; int, or float for score */
    ATTUNE__OP_PARAM,   /* value.i: index of the symbol */
    ATTUNE__OP_CAPTURE, /* value.i: index of the symbol; operands: the indices (int), outermost first */
    /* int and float, both operands of one type */
    ATTUNE__OP_ADD,
    ATTUNE__OP_SUB,
    ATTUNE__OP_MUL,
    ATTUNE__OP_DIV,
    ATTUNE__OP_MOD,
    ATTUNE__OP_NEG,
    ATTUNE__OP_ABS,
    ATTUNE__OP_MIN,
    ATTUNE__OP_MAX,
    /* comparisons: bool; operands int, float, or (EQ and NE) bool. a > b is b < a */
    ATTUNE__OP_EQ,
    ATTUNE__OP_NE,
    ATTUNE__OP_LT,
    ATTUNE__OP_LE,
    /* bool */
    ATTUNE__OP_AND,
    ATTUNE__OP_OR,
    ATTUNE__OP_NOT,
    /* select(bool, a, b): any type */
    ATTUNE__OP_SELECT,
    /* int -> float */
    ATTUNE__OP_FLOAT,
    /* float */
    ATTUNE__OP_FLOOR,
    ATTUNE__OP_CEIL,
    ATTUNE__OP_EXP,
    ATTUNE__OP_EXP2,
    ATTUNE__OP_LOG,
    ATTUNE__OP_LOG2,
    ATTUNE__OP_SQRT,
    ATTUNE__OP_RSQRT,
    ATTUNE__OP_TANH,
    ATTUNE__OP_SIGMOID,
    ATTUNE__OP_SIN,
    ATTUNE__OP_COS,
    ATTUNE__OP_POW
} attune__op;

typedef enum attune__var {
    ATTUNE__VAR_B,
    ATTUNE__VAR_H,
    ATTUNE__VAR_Q,
    ATTUNE__VAR_KV,
    ATTUNE__VAR_H_KV,
    ATTUNE__VAR_Q_LEN,
    ATTUNE__VAR_KV_LEN,
    ATTUNE__VAR_SCORE
} attune__var;

typedef union attune__value {
    int32_t i; /* also bool: 0 or 1 */
    float f;
} attune__value;

typedef struct attune__node {
    uint8_t op;    /* attune__op */
    uint8_t type;  /* attune__type */
    uint16_t uses; /* bits 1 << attune__var: the variables that the value depends on */
    attune__value value;
    double real; /* of a float constant: the number itself, which value.f is rounded to f32 */
    uint32_t arg[ATTUNE_MAX_RANK];
    uint32_t arg_count;
} attune__node;

typedef struct attune__symbol {
    char name[64];
    attune_symbol_kind kind;
    attune_dtype dtype;
    uint32_t rank;
} attune__symbol;

struct attune_expr {
    atomic_uint references;
    attune_allocator allocator; /* a copy: an expression may outlive its instance */
    attune_expr_kind kind;
    uint32_t node_count;
    attune__node *nodes;
    uint32_t symbol_count; /* only those that nodes use, in order of first use */
    attune__symbol *symbols;
    uint16_t uses; /* of the root */
    attune__hash hash;
};

/* The root node. */
static inline const attune__node *attune__expr_root(const attune_expr *expr)
{
    return &expr->nodes[expr->node_count - 1];
}

attune_status attune__expr_parse(const attune_allocator *allocator, attune_expr_kind kind, const char *text,
                                 const attune_symbol *symbols, uint32_t symbol_count, attune_expr **expr);
attune_expr *attune__expr_retain(const attune_expr *expr); /* accepts NULL */
void attune__expr_release(const attune_expr *expr);        /* accepts NULL */

/*
 * Joins two mask expressions: op is ATTUNE__OP_AND or ATTUNE__OP_OR; or, with b NULL, ATTUNE__OP_NOT. Symbols of one
 * name become one; INVALID_ARGUMENT if their kind, dtype or rank differ. INVALID_ARGUMENT past the caps on nodes and
 * symbols.
 */
attune_status attune__expr_combine(const attune_allocator *allocator, attune__op op, const attune_expr *a,
                                   const attune_expr *b, attune_expr **expr);

/*
 * The expression over one segment of the keys: kv becomes kv + ATTUNE__KV_START and kv_len ATTUNE__KV_TOTAL, i32
 * parameters behind its other symbols, so that the IR is the same for segments of any length. Gives the expression
 * itself, retained, if it reads neither, or was shifted before.
 */
#define ATTUNE__KV_START "segment_kv_start"
#define ATTUNE__KV_TOTAL "segment_kv_total"
attune_status attune__expr_shift(const attune_allocator *allocator, const attune_expr *expr, attune_expr **shifted);

/* Of each capture's dimensions, as bits 1 << attune__var: the variables that index it as they stand (doc[kv]). */
typedef struct attune__direct_reads {
    uint8_t vars[ATTUNE_EXPR_MAX_SYMBOLS][ATTUNE_MAX_RANK];
} attune__direct_reads;
attune__direct_reads attune__expr_direct_reads(const attune_expr *expr);

/* One more than the largest value of each attune__var; 0 = any value is fine. */
typedef struct attune__extents {
    int64_t of[8];
} attune__extents;
typedef struct attune__short_read {
    uint32_t dimension;
    attune__var var;
} attune__short_read;
/* Whether one of them goes past the capture's end. */
bool attune__reads_past(const attune__direct_reads *reads, uint32_t symbol, const int64_t *size,
                        const attune__extents *extents, attune__short_read *found);

/*
 * The largest nodes of which the value `root` is made that read captures and are the same for every row of a key, or
 * for every key of a row. `without`: bits 1 << attune__var of what the terms of keys
 * may not depend on either, besides q and score.
 */
attune__terms attune__expr_terms(const attune_expr *expr, uint32_t root, uint16_t without);
/* The same, but none of rows where there are none of keys: rows alone share little that is worth asking other lanes
 * for. */
attune__terms attune__expr_terms_with_keys(const attune_expr *expr, uint32_t root, uint16_t without);
/* Whether it reads captures for each pair, which no term holds. */
bool attune__expr_reads_pairs(const attune_expr *expr);

/*
 * Whether each row of a mask may attend to one interval of keys; and each key to one of rows. runs: bits of the symbols
 * for which that holds only where equal elements stand together.
 */
bool attune__interval_rows(const attune_expr *mask, uint32_t *runs);
bool attune__interval_keys(const attune_expr *mask, uint32_t *runs);
/* Whether the score is factor * score + base + slope * (kv - origin), where only score and kv are not the row's. */
bool attune__is_linear(const attune_expr *score);
/* Whether it is outer * tanh(inner * score), of constants. */
bool attune__is_soft_cap(const attune_expr *score, float *inner, float *outer);
/* The largest score up to which all of its values have a cheaper form (attune__ctext_near); infinity: always; 0: never.
 */
float attune__near_limit(const attune_expr *expr);

/* About how many instructions `root` takes for each pair, what is the same for all keys of a row left out. near: tanh
 * is a polynomial. */
uint32_t attune__expr_weight(const attune_expr *expr, uint32_t root, bool near);

/* All of it (analysis.h). Each may be NULL; gradient: of score, in backward. */
struct attune__gradient;
attune__analysis attune__analyse(const attune_expr *mask, const attune_expr *score,
                                 const struct attune__gradient *gradient);

/* The IR as C text. For CUDA and OpenCL a kernel writes its own prelude: the functions that the text calls
 * (docs/expressions.md). */
attune_status attune__expr_ctext(const attune_expr *expr, const char *function_name, char *buffer, size_t size,
                                 size_t *needed);

/* What attune_expr_print gives, but for derivatives (gradient.h). UNSUPPORTED if sharing makes the text longer than 1
 * MiB. */
attune_status attune__expr_print(const attune_expr *expr, attune_expr_format format, char *buffer, size_t size,
                                 size_t *needed);

/* ------------------------------------------------------------------------------------------------------- evaluation */

/* The arrays and scalars that an expression's symbols stand for. Both have symbol_count entries; entry i serves
 * symbols[i]. Strides are resolved (never "all 0 = contiguous"). */
typedef struct attune__bindings {
    const attune_array *captures;
    const attune__value *parameters;
} attune__bindings;

/* Finds the host captures and parameters for each symbol; both arrays have symbol_count entries. Checks names, dtype,
 * rank, sizes; an i64 value that does not fit i32 is INVALID_ARGUMENT; a parameter must be a whole number in range if
 * it is i32. Host captures may be NULL when capture arrays come from elsewhere (then only parameters are resolved and
 * `arrays` may be NULL). */
attune_status attune__bindings_resolve(const attune_expr *expr, const attune_host_capture *captures,
                                       uint32_t capture_count, const attune_parameter *parameters,
                                       uint32_t parameter_count, attune_array *arrays, attune__value *values);

/* One point: everything that is constant along a row of the q x kv plane. */
typedef struct attune__row {
    int32_t b, h, q, h_kv, q_len, kv_len;
} attune__row;

/* A device's own functions of f32 on columns: to[i] = f(x[i]). `to` may be an operand; NULL = libm's. */
typedef struct attune__functions {
    void (*of[ATTUNE__OP_POW])(float *to, const float *x, size_t count); /* by attune__op: those of one operand */
    void (*pow)(float *to, const float *x, const float *y, size_t count);
} attune__functions;

/*
 * Evaluates a row at a time: nodes that do not depend on kv or score once, the others in loops over columns that
 * compilers vectorise. `scratch` is attune__expr_scratch_size(expr, columns) bytes, aligned to 64, of the calling
 * thread; no call allocates. Columns are kv0 ... kv0 + count - 1, count at most what scratch was sized for.
 */
size_t attune__expr_scratch_size(const attune_expr *expr, size_t columns);
void attune__expr_mask_row(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                           int32_t kv0, size_t count, void *scratch, uint8_t *allowed);

typedef struct attune__interval attune__interval;
/* The nodes whose values vary over a box, and which the root depends on there, ascending: what remains of an expression
 * once bounds over the box have decided the others (Keeter, "Massively Parallel Rendering of Complex Closed-Form
 * Implicit Surfaces", 2020). */
typedef struct attune__open_nodes {
    const uint16_t *nodes;
    uint32_t count;
} attune__open_nodes;
/* As attune__expr_mask_row for rows and columns of a box: begin once for the box, with the bounds over it, then any
 * rows of it. */
void attune__expr_open_begin(const attune_expr *expr, const attune__interval *bounds, void *scratch);
void attune__expr_open_row(const attune_expr *expr, const attune__open_nodes *open, const attune__bindings *bindings,
                           const attune__row *row, int32_t kv0, size_t count, void *scratch, uint8_t *allowed);

/* In place: scores in, modified scores out. Without `functions` f32 has libm's, as masks and f64 always have: what a
 * mask allows must not depend on the device. */
void attune__expr_score_row_f32(const attune__functions *functions, const attune_expr *expr,
                                const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                                void *scratch, float *score);
void attune__expr_score_row_f64(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                                int32_t kv0, size_t count, void *scratch, double *score);

/* One point, by a scalar walk of the nodes: slow, simple, independent of the row evaluator. */
attune__value attune__expr_point(const attune_expr *expr, const attune__bindings *bindings, const attune_point *point);

/* ----------------------------------------------------------------------------------------------------------- bounds */

/* A closed interval. Integers in [lo, hi]; bool 0..1; float in [flo, fhi], and may_nan if NaN is possible. */
struct attune__interval {
    int32_t lo, hi;
    float flo, fhi;
    bool may_nan;
};

/* A box of indices, all closed. */
typedef struct attune__box {
    attune__interval var[8]; /* by attune__var */
} attune__box;

/* Per-capture tables of minima and maxima over power-of-two runs, from which the range of any index box is read in
 * logarithmic time. */
typedef struct attune__ranges attune__ranges;
attune_status attune__ranges_create(const attune_allocator *allocator, const attune_expr *expr,
                                    const attune__bindings *bindings, attune__ranges **ranges);
void attune__ranges_destroy(attune__ranges *ranges); /* accepts NULL */

/* Bounds of the root over a box: every value that evaluation can give at a point of the box lies inside. `scratch` has
 * node_count entries, and receives the bounds of each node. */
attune__interval attune__expr_bounds(const attune_expr *expr, const attune__bindings *bindings,
                                     const attune__ranges *ranges, const attune__box *box, attune__interval *scratch);
/* The same for a box inside one whose bounds `scratch` had when attune__expr_prune left these nodes open. *looked grows
 * by the elements of captures that were looked at. */
attune__interval attune__expr_open_bounds(const attune_expr *expr, const attune__open_nodes *open,
                                          const attune__bindings *bindings, const attune__ranges *ranges,
                                          const attune__box *box, attune__interval *scratch, uint64_t *looked);
/* Of the open nodes those that are open under `bounds`, which they had last: writes them, at most open->count, and
 * returns how many they are. The root is not decided. */
uint32_t attune__expr_prune(const attune_expr *expr, const attune__open_nodes *open, const attune__interval *bounds,
                            uint16_t *nodes);

#endif

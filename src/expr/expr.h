/* SPDX-License-Identifier: MIT */
/*
 * The IR of expressions: a small immutable DAG, typed, simplified and hash-consed. Nodes are in topological order
 * (operands before their users, the root last), so that every pass is one loop over an array.
 *
 *     lex.c        text -> tokens, messages     parse.c      tokens -> IR
 *     names.c      names of the language        preset.c     named expressions
 *     simplify.c   simplification of new nodes  expr.c       finished expressions: order, hash, combination
 *     bind.c       values of symbols            eval.c       IR -> values
 *     bounds.c     IR -> intervals              ranges.c     captures -> intervals
 *     gradient.c   derivatives                  print.c      IR -> text, node list
 *     ctext*.c     IR -> C                      intervals.c  interval masks
 *     linear.c     linear scores                terms.c      terms of keys and rows
 *     weight.c     cost                         reads.c      captures that are too short
 *     analysis.c   the planner's analysis
 *
 * Semantics of every backend:
 *
 * - i32 wraps. / and % floor; x / 0 = 0 and x % 0 = 0 for i32.
 * - f32 is IEEE binary32: each operation is rounded, nothing is fused or re-associated. f32 a % b is
 *   a - floor(a / b) * b.
 * - min(a, b) = b < a ? b : a; max(a, b) = a < b ? b : a; clamp(x, lo, hi) = min(max(x, lo), hi).
 * - A capture index out of range reads 0 (false). && and || evaluate both sides: nothing can fault.
 * - i32 -> f32 conversion rounds to nearest.
 * - Masks are always evaluated in f32, also by the float64 oracle, so that all kernels allow the same pairs. A mask's
 *   constants are f32.
 * - Scores are evaluated in the precision of the kernel, including literals: in f64 a literal is the nearest double, in
 *   f32 that double rounded. Every constant is a double. An operation on constants is folded only if its result rounds
 *   to the same float in f32 and f64; each kernel computes the others in its own precision.
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
    ATTUNE__VAR_SCORE,
    ATTUNE__VAR_ROW /* of all sequences' rows; depends on b and q too */
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
    bool ragged;   /* of attune__expr_ragged */
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
 * Combines mask expressions: op is ATTUNE__OP_AND or ATTUNE__OP_OR, or ATTUNE__OP_NOT with b NULL. Symbols of the same
 * name are merged. INVALID_ARGUMENT if their kind, dtype or rank differ, or if a limit on nodes or symbols is exceeded.
 */
attune_status attune__expr_combine(const attune_allocator *allocator, attune__op op, const attune_expr *a,
                                   const attune_expr *b, attune_expr **expr);

/*
 * Creates the expression for a segment of the keys: kv becomes kv + ATTUNE__KV_START, and kv_len becomes
 * ATTUNE__KV_TOTAL. Both are i32 parameters after the other symbols, so that segments of any length share one IR.
 * Returns the expression itself, retained, if it reads neither or was shifted before.
 */
#define ATTUNE__KV_START "segment_kv_start"
#define ATTUNE__KV_TOTAL "segment_kv_total"
attune_status attune__expr_shift(const attune_allocator *allocator, const attune_expr *expr, attune_expr **shifted);

/*
 * Creates the expression for calls whose sequences all have q_len rows: row becomes b * q_len + q. Returns the
 * expression itself, retained, if it does not read row. Kernels see row only in plans with problem.tokens.
 */
attune_status attune__expr_dense(const attune_allocator *allocator, const attune_expr *expr, attune_expr **dense);

/* Creates the expression for one q_len, as a constant. Returns the expression itself, retained, if it does not read
 * q_len. */
attune_status attune__expr_of_q_len(const attune_allocator *allocator, const attune_expr *expr, int32_t q_len,
                                    attune_expr **made);

/*
 * Creates the expression for calls over a cache, where q is negative if a sequence has more rows than keys, and row is
 * no function of the others: its text in C (print.h) is valid for these.
 */
attune_status attune__expr_ragged(const attune_allocator *allocator, const attune_expr *expr, attune_expr **ragged);

/*
 * Creates the expression for rows and keys that stand at other positions in the call than in the sequence: q and kv
 * become elements of two i32 captures of rank 1, q_len and kv_len two i32 parameters, where the expression reads them.
 * Symbols that are added come after the others. Returns the expression itself, retained, if it reads none.
 */
#define ATTUNE__GATHER_Q      "gather_q"
#define ATTUNE__GATHER_KV     "gather_kv"
#define ATTUNE__GATHER_Q_LEN  "gather_q_len"
#define ATTUNE__GATHER_KV_LEN "gather_kv_len"
attune_status attune__expr_gather(const attune_allocator *allocator, const attune_expr *expr, attune_expr **gathered);

/*
 * Creates the mask kv >= row_from[q] && kv < row_to[q], of the captures below; with `keys` what it says of keys is
 * added, q >= key_from[kv] && q < key_to[kv], which must allow the same pairs: the intervals of rows are read from the
 * one half, those of keys from the other.
 */
#define ATTUNE__ROW_FROM "gather_row_from"
#define ATTUNE__ROW_TO   "gather_row_to"
#define ATTUNE__KEY_FROM "gather_key_from"
#define ATTUNE__KEY_TO   "gather_key_to"
attune_status attune__expr_spans(const attune_allocator *allocator, bool keys, attune_expr **expr);

/* For each dimension of each capture, as bits 1 << attune__var: the variables that are an index by themselves
 * (doc[kv]). */
typedef struct attune__direct_reads {
    uint16_t vars[ATTUNE_EXPR_MAX_SYMBOLS][ATTUNE_MAX_RANK];
} attune__direct_reads;
attune__direct_reads attune__expr_direct_reads(const attune_expr *expr);
/* Whether index d of every read of a capture is one of the variables `vars`, bits 1 << attune__var, by itself. */
bool attune__reads_only(const attune_expr *expr, uint32_t symbol, uint32_t d, uint16_t vars);

/* One more than the largest value of each attune__var; 0 = not checked. */
typedef struct attune__extents {
    int64_t of[9];
} attune__extents;
typedef struct attune__short_read {
    uint32_t dimension;
    attune__var var;
} attune__short_read;
/* Whether one of them exceeds the capture's size. */
bool attune__reads_past(const attune__direct_reads *reads, uint32_t symbol, const int64_t *size,
                        const attune__extents *extents, attune__short_read *found);

/* Finds the largest nodes below `root` that read captures and have one value per key, or one per row. `without`: bits 1
 * << attune__var of variables that terms of keys must not depend on, besides q and score. */
attune__terms attune__expr_terms(const attune_expr *expr, uint32_t root, uint16_t without);
/* The same, and a tile of a capture, if one has such rows. */
attune__terms attune__expr_terms_with_tile(const attune_expr *expr, uint32_t root);
/* Whether a node reads a capture of which the last index is kv, and no other depends on kv or the score: consecutive
 * keys of a row read consecutive elements. */
bool attune__expr_reads_keys_in_order(const attune_expr *expr, uint32_t n);
/* The same, but without terms of rows if there are none of keys: on their own they do not pay for the shuffles between
 * lanes. */
attune__terms attune__expr_terms_with_keys(const attune_expr *expr, uint32_t root, uint16_t without);
/* Whether the expression reads captures for each pair, outside of any term. */
bool attune__expr_reads_pairs(const attune_expr *expr);
/* The same, but for a terms' tile. */
bool attune__expr_reads_beside(const attune_expr *expr, const attune__terms *terms);

/* Whether each row of a mask allows one interval of keys, and each key one of rows. runs: bits of the symbols whose
 * equal elements must be contiguous for this to hold. */
bool attune__interval_rows(const attune_expr *mask, uint32_t *runs);
bool attune__interval_keys(const attune_expr *mask, uint32_t *runs);
/* Whether the score is linear: factor * score + base + slope * (kv - origin), where everything except score and kv
 * depends on the row only. */
bool attune__is_linear(const attune_expr *score);
/* Whether it is, and depends on kv. */
bool attune__linear_has_slope(const attune_expr *score);
/* Whether the score is a soft-cap: outer * tanh(inner * score), with constants inner and outer. */
bool attune__is_soft_cap(const attune_expr *score, float *inner, float *outer);
/* The largest |score| for which the near-zero form (attune__ctext_near) is valid; infinity: always; 0: never. */
float attune__near_limit(const attune_expr *expr);
/* The largest |score| for which the arguments of all sines and cosines outside of the terms are at most
 * ATTUNE__SINE_LIMIT where q and kv are below 2^23; infinity: always; 0: it is not known, or there are none. */
#define ATTUNE__SINE_LIMIT 4194304.0f
float attune__sine_limit(const attune_expr *expr, const attune__terms *terms);

/* Whether the score has functions or divisions and is continuous in their results, so that those may be approximate:
 * none is compared, rounded to an integer, the operand of a remainder, or near the edge of a function's domain. */
bool attune__is_smooth(const attune_expr *score);

/* The estimated instructions of `root` per pair, without those that depend on the row only. */
typedef enum attune__form {
    ATTUNE__FORM_EXACT,
    ATTUNE__FORM_NEAR, /* tanh is a polynomial */
    ATTUNE__FORM_FAST, /* functions need not have all digits of float32 */
    ATTUNE__FORM_SINES /* nor have sines and cosines arguments past ATTUNE__SINE_LIMIT */
} attune__form;
/* terms: those that read no capture count as one each; NULL = none. */
uint32_t attune__expr_weight(const attune_expr *expr, uint32_t root, attune__form form, const attune__terms *terms);
/* Of one node. */
uint32_t attune__node_weight(const attune_expr *expr, uint32_t n, attune__form form);

/* The whole analysis (analysis.h). Any argument may be NULL; gradient: of score, in backward. */
struct attune__gradient;
attune__analysis attune__analyse(const attune_expr *mask, const attune_expr *score,
                                 const struct attune__gradient *gradient);

/* Prints the IR as C. A CUDA or OpenCL kernel has its own prelude, with the functions that the text calls
 * (docs/expressions.md). */
attune_status attune__expr_ctext(const attune_expr *expr, const char *function_name, char *buffer, size_t size,
                                 size_t *needed);

/* attune_expr_print without derivatives (gradient.h). UNSUPPORTED if shared nodes make the text longer than 1 MiB. */
attune_status attune__expr_print(const attune_expr *expr, attune_expr_format format, char *buffer, size_t size,
                                 size_t *needed);

/* ------------------------------------------------------------------------------------------------------- evaluation */

/* The values of an expression's symbols. Both arrays have symbol_count entries; entry i is for symbols[i]. Strides are
 * resolved (never "all 0 = contiguous"). */
typedef struct attune__bindings {
    const attune_array *captures;
    const attune__value *parameters;
} attune__bindings;

/*
 * Resolves host captures and parameters by name; both arrays have symbol_count entries. Checks names, dtype, rank and
 * sizes. INVALID_ARGUMENT for an i64 value that is outside the range of i32, and for an i32 parameter that is not an
 * integer in range. `arrays` NULL = resolve parameters only.
 */
attune_status attune__bindings_resolve(const attune_expr *expr, const attune_host_capture *captures,
                                       uint32_t capture_count, const attune_parameter *parameters,
                                       uint32_t parameter_count, attune_array *arrays, attune__value *values);

/* The variables that are constant along a row of the q x kv plane. */
typedef struct attune__row {
    int32_t b, h, q, h_kv, q_len, kv_len;
    int32_t row;         /* read by expressions over ragged batches only */
    const int32_t *keys; /* kv of each column, of scores and gradients alone; NULL = kv0 and those after it */
} attune__row;

/* A device's own f32 functions over arrays, by attune__op: to[i] = f(x[i]), or f(x[i], y[i]), where an array of NULL
 * stands for the number after them. `to` may equal x or y; an entry of NULL = the evaluator's own, and libm's. */
typedef struct attune__functions {
    void (*of[ATTUNE__OP_POW])(float *to, const float *x, size_t count);
    void (*of_two[ATTUNE__OP_POW + 1])(float *to, const float *x, const float *y, float every_x, float every_y,
                                       size_t count);
} attune__functions;

/*
 * Evaluates one row: nodes that depend on neither kv nor score once, the others in loops over columns that compilers
 * vectorise. `scratch` has attune__expr_scratch_size(expr, columns) bytes, aligned to 64, and is used by one thread at
 * a time; nothing is allocated. Columns are kv0 ... kv0 + count - 1, or row->keys, with count <= columns.
 */
size_t attune__expr_scratch_size(const attune_expr *expr, size_t columns);
void attune__expr_mask_row(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                           int32_t kv0, size_t count, void *scratch, uint8_t *allowed);

/*
 * Rows row->q ... row->q + rows - 1 of a mask, in any order after begin: nodes that depend on q or on kv alone, or on
 * the distance q - kv alone, are evaluated once for all of them. rows is at most ATTUNE__TILE_ROWS, and r counts from
 * row->q. `scratch` has attune__expr_tile_size(expr, columns) bytes, and is not used otherwise in between.
 * attune__expr_tile_row is false, and `allowed` left as it is, if the row is like the one that was evaluated before it.
 */
#define ATTUNE__TILE_ROWS 128
size_t attune__expr_tile_size(const attune_expr *expr, size_t columns);
void attune__expr_tile_begin(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                             uint32_t rows, int32_t kv0, size_t count, void *scratch);
bool attune__expr_tile_row(const attune_expr *expr, const attune__bindings *bindings, uint32_t r, void *scratch,
                           uint8_t *allowed);

typedef struct attune__interval attune__interval;
/* The nodes, ascending, that the root depends on in a box and whose values bounds over the box do not decide (Keeter,
 * "Massively Parallel Rendering of Complex Closed-Form Implicit Surfaces", 2020). */
typedef struct attune__open_nodes {
    const uint16_t *nodes;
    uint32_t count;
} attune__open_nodes;
/* attune__expr_mask_row for a box: call begin once with the bounds over the box, then evaluate any of its rows. */
void attune__expr_open_begin(const attune_expr *expr, const attune__interval *bounds, void *scratch);
void attune__expr_open_row(const attune_expr *expr, const attune__open_nodes *open, const attune__bindings *bindings,
                           const attune__row *row, int32_t kv0, size_t count, void *scratch, uint8_t *allowed);

/* Replaces scores by modified scores. functions NULL = libm's, which masks and f64 always use: what a mask allows must
 * not depend on the device. */
void attune__expr_score_row_f32(const attune__functions *functions, const attune_expr *expr,
                                const attune__bindings *bindings, const attune__row *row, int32_t kv0, size_t count,
                                void *scratch, float *score);
void attune__expr_score_row_f64(const attune_expr *expr, const attune__bindings *bindings, const attune__row *row,
                                int32_t kv0, size_t count, void *scratch, double *score);

/* Evaluates one point with a scalar loop over the nodes: slow, simple, and independent of the row evaluator. */
attune__value attune__expr_point(const attune_expr *expr, const attune__bindings *bindings, const attune_point *point);

/* ----------------------------------------------------------------------------------------------------------- bounds */

/* A closed interval. Integers in [lo, hi]; bool 0..1; float in [flo, fhi], and may_nan if NaN is possible. No larger
 * than what processors move between registers: bounds of one node are read as soon as they are written. */
struct attune__interval {
    union {
        int32_t lo;
        float flo;
    };
    union {
        int32_t hi;
        float fhi;
    };
    int32_t may_nan;
};

/* A box of indices, all closed. */
typedef struct attune__box {
    attune__interval var[9]; /* by attune__var */
} attune__box;

/* Tables of minima and maxima over power-of-two runs of each capture, which give the range over any box of indices in
 * logarithmic time. */
typedef struct attune__ranges attune__ranges;
attune_status attune__ranges_create(const attune_allocator *allocator, const attune_expr *expr,
                                    const attune__bindings *bindings, attune__ranges **ranges);
void attune__ranges_destroy(attune__ranges *ranges); /* accepts NULL */

/* Returns bounds of the root over a box: they contain its value at every point of the box. `scratch` has node_count
 * entries, and receives the bounds of each node. */
attune__interval attune__expr_bounds(const attune_expr *expr, const attune__bindings *bindings,
                                     const attune__ranges *ranges, const attune__box *box, attune__interval *scratch);
/* The same for a part of a box, evaluating only the nodes that attune__expr_prune left open for the box; `scratch` has
 * the box's bounds. *looked is incremented by the capture elements that were read. */
attune__interval attune__expr_open_bounds(const attune_expr *expr, const attune__open_nodes *open,
                                          const attune__bindings *bindings, const attune__ranges *ranges,
                                          const attune__box *box, attune__interval *scratch, uint64_t *looked);
/* Writes those of the open nodes that `bounds`, the last bounds of all nodes, do not decide, and returns their number,
 * at most open->count. The root must be undecided. */
uint32_t attune__expr_prune(const attune_expr *expr, const attune__open_nodes *open, const attune__interval *bounds,
                            uint16_t *nodes);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The random tester: problems drawn from everything that the public header allows, run through the public API alone,
 * and held against an oracle of its own (README.md). Nothing here is shared with the library or its program: not the
 * language, not the oracle, not the half floats.
 */
#ifndef TESTS_RANDOM_RANDOM_H
#define TESTS_RANDOM_RANDOM_H

#include <attune/attune.h>
#include <stdio.h>

/* ---------------------------------------------------------------------------------------------------------- numbers */

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
/* From lo to hi, both included. */
int64_t rng_range(rng *r, int64_t lo, int64_t hi);
bool rng_chance(rng *r, int percent);
/* The same for the same words, whatever was drawn before. */
uint64_t mix(uint64_t a, uint64_t b);

/* One element of a tensor in host memory, as float64, and back, rounded to nearest, ties to even. */
double element_get(attune_dtype dtype, const void *data, int64_t index);
void element_set(attune_dtype dtype, void *data, int64_t index, double value);
double rounded_to(attune_dtype dtype, double value);
/* The largest relative error of one rounding. */
double unit_of(attune_dtype dtype);

/* ------------------------------------------------------------------------------------------------------ expressions */

typedef enum node_type { TYPE_BOOL, TYPE_INT, TYPE_FLOAT } node_type;

typedef enum node_op {
    OP_B,
    OP_H,
    OP_Q,
    OP_KV,
    OP_H_KV,
    OP_Q_LEN,
    OP_KV_LEN,
    OP_ROW, /* of calls over a cache */
    OP_SCORE,
    OP_INT,
    OP_FLOAT,
    OP_BOOL,
    OP_CAPTURE,
    OP_PARAMETER,
    OP_CONVERT, /* i32 to f32, which the language does by itself */
    OP_NEG,
    OP_NOT,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_MOD,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_EQ,
    OP_NE,
    OP_AND,
    OP_OR,
    OP_CHOICE,
    OP_SELECT, /* c ? a : b, and select(c, a, b) */
    OP_ABS,
    OP_MIN,
    OP_MAX,
    OP_CLAMP,
    OP_FLOOR,
    OP_CEIL,
    OP_EXP,
    OP_EXP2,
    OP_LOG,
    OP_LOG2,
    OP_SQRT,
    OP_RSQRT,
    OP_TANH,
    OP_SIGMOID,
    OP_SIN,
    OP_COS,
    OP_POW
} node_op;

#define TREE_NODES 120
#define KIDS       4
#define SYMBOLS    4

typedef struct node {
    node_op op;
    node_type type;
    int count, kid[KIDS];
    int32_t i; /* OP_INT, OP_BOOL; the symbol of OP_CAPTURE and OP_PARAMETER */
    double f;  /* OP_FLOAT: f32 kernels round it */
} node;

/* A name of a tree: what its array's dimensions are sized by is the variable that its index is mostly of. */
typedef struct tree_symbol {
    char name[16];
    attune_symbol_kind kind;
    attune_dtype dtype;
    int rank;
    node_op by[ATTUNE_MAX_RANK]; /* OP_B ... OP_KV, OP_ROW, or OP_INT: a few elements */
    bool declared_rank;          /* else its declaration has 0 */
    bool of_mask;                /* the tensor that the mask follows */
} tree_symbol;

/* Operands come before their operators; the root is the last. */
typedef struct tree {
    int count;
    node nodes[TREE_NODES];
    int symbol_count;
    tree_symbol symbols[SYMBOLS];
} tree;

/* Values of a tree's symbols: an array (logical, contiguous, row-major) or a number for each. */
typedef struct binding {
    int64_t size[ATTUNE_MAX_RANK];
    double *values; /* a capture's, as the language reads them: i32, f32 or bool */
    double number;  /* a parameter's */
} binding;

typedef struct point {
    int32_t b, h, q, kv, h_kv, q_len, kv_len, row;
} point;

/* bare: functions, quotients and integers of any operands. */
void tree_draw_mask(rng *r, const char *suffix, bool lengths, bool divide, bool bare, tree *t);
void tree_draw_score(rng *r, bool wild, bool bare, tree *t);
/* Of calls over a cache, which have rows of all sequences. */
void tree_draw_served(rng *r, bool score, bool divide, bool bare, tree *t);
/* `score + bias[b, h, q, kv]` of a score, or of nothing; bias is the mask's tensor, which all batches or heads may
 * share. */
void tree_add_bias(attune_dtype dtype, bool by_batch, bool by_head, tree *t);
/* The text, as attune takes it. */
void tree_print(const tree *t, char *text, size_t size);
bool tree_uses(const tree *t, node_op op);
bool tree_uses_symbol(const tree *t, int symbol);
/* Puts `with` (a node of the same type below `at`, or a literal where it is -1) in the place of `at`. False if that
 * changes nothing. */
bool tree_replace(tree *t, int at, int with);

/* Operations of i32, which wrap; comparisons; the element of a capture that the indices name, -1 = outside. */
int32_t int_value(node_op op, int64_t a, int64_t b);
bool compared(node_op op, double a, double b);
int64_t element_at(const binding *array, int rank, const int32_t *index);
int32_t variable_at(node_op op, const point *p);

/* A mask, in f32 and i32. */
bool tree_allows(const tree *t, const binding *bindings, const point *p);

/* A value, and the interval of the kernel's by its roundings. undecided: anything. */
typedef struct interval {
    double v, lo, hi;
    bool undecided;
} interval;

/* How far functions may be off, in units of the last place. */
typedef struct precision {
    double unit; /* of one rounding */
    bool vulkan; /* Vulkan's own bounds of functions */
    double tanh; /* what the device's own tanh is off, at most */
    double log;  /* what its own logarithms are off near 1, at most */
} precision;

/* Partial derivatives by elements of captures: at[n] has the derivative by element `index[n]` of symbol `symbol[n]`. */
#define READS 16
typedef struct derivatives {
    interval by_score;
    bool open; /* which elements were read is not known */
    int reads;
    int symbol[READS];
    int64_t index[READS];
    interval by_element[READS];
} derivatives;

/* A score, of a scaled product known within an interval; `d` may be NULL. */
interval tree_score(const tree *t, const binding *bindings, const point *p, interval product, precision how,
                    derivatives *d);

/* ---------------------------------------------------------------------------------------------------------- threads */

/* The threads that run the loops of the CPU device: its own; the caller, last index first; a pool. */
typedef enum loop_order { LOOPS_OWN, LOOPS_CALLER, LOOPS_POOL, LOOPS_COUNT } loop_order;

/* Threads for attune_parallel_for, and what was wrong with how it was called. */
#define POOL_MOST 4
typedef struct pool pool;
pool *pool_create(void);
void pool_destroy(pool *c);
attune_parallel_for pool_parallel_for(pool *c);
/* From here on loops are run in this way, called by this thread. */
void pool_begin(pool *c, loop_order way);
/* NULL, or how the contract was broken since. */
const char *pool_end(pool *c);

/* --------------------------------------------------------------------------------------------------------- problems */

/* A tensor's layout in its buffer. */
typedef struct layout {
    uint8_t order;     /* which permutation of the dimensions before the last */
    uint8_t negative;  /* bits: dimensions whose stride is negative */
    uint8_t broadcast; /* bits: dimensions whose stride is 0 */
    uint8_t pad[ATTUNE_MAX_RANK];
    uint8_t offset; /* elements before it */
} layout;

typedef enum mask_kind {
    MASK_NONE,
    MASK_EXPR,
    MASK_DENSE,
    MASK_LISTS,
    MASK_AND,
    MASK_OR,
    MASK_NOT,
    MASK_SLICE,
    MASK_TENSOR
} mask_kind;
typedef enum data_kind {
    DATA_NORMAL,
    DATA_LARGE,
    DATA_EQUAL,
    DATA_NAN_HIDDEN,
    DATA_NONFINITE,
    DATA_SMALL,  /* values and d_o at the small end of their types */
    DATA_UNEVEN, /* of q and k, of v and d_o one is large and the other small */
    DATA_KINDS
} data_kind;

#define SEGMENTS 4
#define CALLS    24

typedef struct call {
    uint64_t seed; /* of all data */
    data_kind data;
    int64_t batch, q_len, kv_len;
    int segment_count;
    int64_t segment[SEGMENTS];
    bool segment_alone;                /* its mask is built without kv_total */
    bool segment_mixed;                /* of two combined masks the second is, and the first is not */
    int64_t mask_more_q, mask_more_kv; /* the mask is built for longer lengths */
    bool lists_broadcast_b, lists_broadcast_h, lists_offsets;
    int64_t slice_batch0, slice_heads0, slice_block0; /* heads0 in groups */
    layout q, k, v, o, lse, row_max, d_o, d_lse, d_q, d_k, d_v, captures[SYMBOLS], d_captures[SYMBOLS],
        host[2 * SYMBOLS], tensor, sinks, d_sinks;
    bool want_lse, want_row_max, want_d_lse, want_d_sinks;
    uint8_t want_captures; /* bits: symbols of the score whose gradients are asked for */
    int shrink_captures;   /* a dimension is that much shorter than its variable */
    bool repeat, seconds;
    bool more_names; /* captures and parameters that the score does not read, the mask's parameters among them */
    uint32_t workspace_offset; /* in 256 bytes */
    int mutation;              /* 0 = none */
} call;

typedef struct problem {
    uint64_t seed, index;
    attune_direction direction;
    attune_dtype dtype, kv_dtype, o_dtype;
    loop_order threads; /* on the CPU */
    uint32_t head_dim, head_dim_v;
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len;
    double scale;
    mask_kind mask;
    uint32_t q_block, kv_block;
    tree masks[2];             /* of a combination both */
    attune_dtype tensor_dtype; /* MASK_TENSOR */
    bool lists_whole;          /* MASK_LISTS: no block is partial, and there is no expression */
    bool mask_by_hand;         /* MASK_EXPR: the plan is told the expression and the block sizes */
    bool has_score;
    tree score;
    bool lse, row_max, sinks;
    uint32_t segments;
    bool has_options;
    bool options_of_pass; /* given for the pass, not for any */
    attune_pass_options options, options_of_other;
    int call_count;
    call calls[CALLS];
} problem;

/* The device and the limits that draws keep to. */
typedef struct draw_profile {
    attune_backend backend;
    int calls;          /* of one plan, at most */
    int64_t work;       /* pairs times heads times batch of a call, about at most */
    const char *kernel; /* of all problems, where it takes them; NULL: as drawn */
    uint32_t block_n1;  /* with it, backwards; 0: the planner's */
} draw_profile;

void problem_draw(uint64_t seed, uint64_t index, const draw_profile *profile, problem *p);
/* Shapes, options, expressions and data that problem_draw has seldom or never. */
void draw_rare_problem(rng *r, const draw_profile *profile, problem *p);
void draw_rare_call(rng *r, const problem *p, call *c);

/* ---------------------------------------------------------------------------------------------- data and the oracle */

/* Logical, contiguous float64 values that the dtype holds. */
typedef struct grid {
    int rank;
    int64_t size[ATTUNE_MAX_RANK], count;
    double *at;
} grid;

/* Admissible results: within `bound` of `at`; NaN and infinity exactly, unless undecided. */
typedef struct expected {
    grid value;
    double *bound; /* INFINITY = anything */
} expected;

/* The mask's parts of a segment, and a call's data as the caller has it. */
typedef struct call_data {
    grid q, k, v, o, lse, d_o, d_lse, sinks; /* k and v over all segments */
    binding mask[2][SYMBOLS], score[SYMBOLS];
    int64_t q_blocks, kv_blocks[SEGMENTS];
    uint8_t *lists[SEGMENTS]; /* MASK_LISTS: 0 none, 1 partial, 2 full, [lists_b, lists_h, q_blocks, kv_blocks] */
    uint8_t *dense[SEGMENTS]; /* [dense_b, dense_h, q_len, kv_len] of the mask */
    grid tensor[SEGMENTS];    /* MASK_TENSOR: likewise */
    int64_t lists_batch, lists_heads;
    uint8_t *allowed; /* [batch, heads, q_len, kv_len] */
    expected out_o, out_lse, out_row_max, out_d_q, out_d_k, out_d_v, out_d_sinks, out_d_captures[SYMBOLS];
} call_data;

double parameter_value(const tree_symbol *s, uint64_t way);
/* Of element `last` of `size` of a capture's last dimension. */
double capture_value(const tree_symbol *s, uint64_t word, uint64_t way, int64_t last, int64_t size);
bool data_create(const problem *p, const call *c, call_data *d);
void data_destroy(call_data *d);
/* The mask's own lengths, of one segment. */
int64_t mask_q_len(const problem *p, const call *c);
int64_t mask_kv_len(const problem *p, const call *c, int segment);
int64_t mask_batch(const problem *p, const call *c);
int64_t mask_heads(const problem *p, const call *c);
int64_t mask_kv_heads(const problem *p, const call *c);
int64_t capture_size(const problem *p, const call *c, const tree_symbol *s, int dimension);
/* Whether the mask, or the score, reads a tensor that the mask follows (or did before it was made smaller). */
bool reads_tensor(const problem *p);
int segments_of(const call *c);
int64_t segment_length(const call *c, int segment);
int64_t segment_start(const call *c, int segment);
void grid_create(grid *v, int rank, const int64_t *size);

/* The kernel's properties that decide how far it may be from the oracle. */
typedef struct kernel_kind {
    attune_backend backend;
    bool matrices; /* on the CPU: a family that multiplies pairs of bf16 */
} kernel_kind;

/* Fills what is expected of forward, and of backward: o and lse of `d` are then what backward is given. */
void oracle_forward(const problem *p, const call *c, kernel_kind kind, call_data *d);
void oracle_backward(const problem *p, const call *c, kernel_kind kind, call_data *d);

/* ---------------------------------------------------------------------------------------------------------- running */

typedef struct finding {
    int call; /* -1 = before the calls */
    char kernel[48];
    char what[1024]; /* empty = all as it should be */
    char kind[24];   /* a word for the class of the finding: shrinking keeps it */
    double got, wanted, bound;
    int64_t at;
} finding;

typedef struct runner {
    attune_instance *instance;
    attune_device *device;
    attune_instance *engine; /* of the CPU: one whose loops the pool runs; else NULL */
    attune_device *engine_device;
    pool *pool;
    attune_backend backend;
    char id[64];
    FILE *code; /* NULL, or where the calls are written down as C */
    uint64_t calls, elements, undecided, refused;
} runner;

bool runner_open(const char *id, runner *r);
void runner_close(runner *r);
/* True if nothing was found. */
bool run_problem(runner *r, const problem *p, finding *f);
/* Runs a problem, on the CPU with the threads of an engine where the problem says so. */
bool run_with_threads(runner *r, loop_order threads, bool (*run)(runner *r, const void *of, finding *f), const void *of,
                      finding *f);
/* The smallest problem that still has a finding of the same kind. */
void shrink_problem(runner *r, problem *p, finding *f, int tries, double seconds);
/* Describes the problem in a few lines. */
void problem_print(const problem *p, FILE *out);
/* Writes a program that makes the calls and says whether it was found again. */
bool write_reproduction(runner *r, const problem *p, const char *path);

/* Merging: problems of their own. */
bool run_merge(runner *r, uint64_t seed, uint64_t index, finding *f);

double now(void);

#endif

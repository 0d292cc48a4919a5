/* SPDX-License-Identifier: MIT */
/*
 * Masks by brute force: what each block and each pair of a mask should be, element by element, and the allocator that
 * counts and fails. For tests of src/mask.
 */
#ifndef TESTS_SUPPORT_MASK_ORACLE_H
#define TESTS_SUPPORT_MASK_ORACLE_H

#include "mask/mask.h"

/* ---------------------------------------------------------------------------------------------------------- random */

typedef struct oracle_random {
    uint64_t state;
} oracle_random;

uint64_t oracle_next(oracle_random *random);
/* lo to hi, both included. */
int oracle_between(oracle_random *random, int lo, int hi);

/* ----------------------------------------------------------------------------------------------------- expressions */

#define ORACLE_LENGTH 384 /* of captures along q and kv */

/* Captures and parameters that the random expressions use, with random values. */
typedef struct oracle_world {
    int32_t doc[ORACLE_LENGTH];    /* doc[i]: ascending runs */
    int32_t seg[3][ORACLE_LENGTH]; /* seg[b, i]: any */
    int32_t lim[4];                /* lim[h] */
    int64_t wide[ORACLE_LENGTH];   /* wide[i] */
    uint8_t flag[ORACLE_LENGTH];   /* flag[i]: bool */
    uint8_t grid[7][9];            /* grid[i, j]: u8 */
    float bias[64];                /* bias[i] */
    attune_host_capture captures[7];
    attune_parameter parameters[2]; /* n: i32, t: f32 */
} oracle_world;

void oracle_world_make(oracle_world *world, oracle_random *random);
/* Text of a mask expression over the world. */
void oracle_random_text(oracle_random *random, char *text, size_t size);
/* An expression over the world, or over no symbols; NULL if it does not parse (its text may be too long). */
attune_expr *oracle_parse(const char *text);

/* An expression with what it is bound to. */
typedef struct oracle_bound {
    attune_expr *expr;
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
} oracle_bound;

attune_status oracle_bind(oracle_bound *bound, attune_expr *expr, const attune_host_capture *captures, uint32_t count,
                          const attune_parameter *parameters, uint32_t parameter_count);
attune_status oracle_bind_world(oracle_bound *bound, const char *text, const oracle_world *world);

/* A description with defaults filled in. */
attune_mask_desc oracle_desc(int64_t q_len, int64_t kv_len, uint32_t q_block, uint32_t kv_block);

/* ---------------------------------------------------------------------------------------------------------- checks */

typedef bool (*oracle_element)(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv);

/* context: an oracle_expression. */
typedef struct oracle_expression {
    const oracle_bound *bound;
    attune_mask_desc desc;
} oracle_expression;
bool oracle_expression_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv);

/* The class of a block by its lists: 0 empty, 1 partial, 2 full. */
int oracle_block(const attune_mask *mask, int64_t b, int64_t h, int64_t r, int64_t c);
/* A kernel's decision on a pair: the lists, then the expression. */
bool oracle_mask_element(const void *mask, int64_t b, int64_t h, int64_t q, int64_t kv);

/*
 * Checks the form of the lists, the transposes, and every block against every element. With `pairs` it also checks
 * what kernels make of each pair of partial blocks. Returns false with a message.
 */
bool oracle_check(const attune_mask *mask, oracle_element element, const void *context, bool pairs, char message[256]);

/* Whether two masks have the same lists. */
bool oracle_same_lists(const attune_mask *a, const attune_mask *b);

/* ------------------------------------------------------------------------------------------------------- allocator */

/* Fails allocation number fail_at (from 0); never if negative. */
typedef struct oracle_memory {
    int64_t fail_at, calls, live;
} oracle_memory;

attune_allocator oracle_allocator(oracle_memory *memory);

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The one case table: what every backend, dtype and kernel variant must compute. A case is data; cases.c makes its
 * inputs, run.c runs it on a device and holds the result against the float64 oracle by the error rule.
 */
#ifndef TESTS_CASES_CASES_H
#define TESTS_CASES_CASES_H

#include <string.h>

#include "tests/oracle/reference.h"

typedef enum case_input {
    INPUT_RANDOM,      /* normal */
    INPUT_CONSTANT,    /* every score of a row equal */
    INPUT_LARGE,       /* logits of hundreds: softmax is one-hot, exp overflows if the maximum is not subtracted */
    INPUT_INFINITE,    /* infinities in k, so that scores are -inf, and some +inf */
    INPUT_NAN_VISIBLE, /* NaN in q and v where the mask allows: rows become NaN, and only those */
    INPUT_NAN_HIDDEN,  /* NaN and infinities in k and v where the mask forbids: no trace of them in the output */
    INPUT_MIXED,       /* scores of +inf, each followed by one of NaN: every row that has a NaN has +inf too */
    INPUT_NONFINITE,   /* NaN and infinities anywhere in q, k, v and captures; heads whose scores are all -inf */
    INPUT_INFINITE_V,  /* an infinity in v of every third key */
} case_input;

typedef enum case_layout {
    LAYOUT_CONTIGUOUS,
    LAYOUT_TOKEN_MAJOR, /* [b, l, h, d], as engines keep activations */
    LAYOUT_PACKED,      /* q, k and v in one buffer [b, l, 3h, d] */
    LAYOUT_PADDED,      /* rows and planes with gaps */
    LAYOUT_MISALIGNED,  /* offset of one element from any alignment */
    LAYOUT_BACKWARDS,   /* negative stride along the keys */
    LAYOUT_SHARED_K,    /* every batch reads the first one's k, by a stride of 0; v has its own */
    LAYOUT_SHARED_V,    /* likewise v */
} case_layout;

typedef struct attention_case {
    const char *name;
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len;
    uint32_t head_dim, head_dim_v; /* head_dim_v 0 = head_dim */
    const char *mask, *score;      /* NULL = none */
    case_input input;
    case_layout layout;
    uint32_t q_block, kv_block;   /* 0 = 128 */
    const char *options;          /* kernel options in JSON; NULL = automatic */
    const char *preferred;        /* likewise, where the plan takes them */
    int64_t mask_longer;          /* the mask is built for this many more rows and columns than the call has */
    const char *backward_options; /* as options, of case_run_gradients' plan */
    uint32_t segments;            /* k and v are cut into this many, which the seed places; 0 = not cut */
    const char *partial;          /* the mask is given as lists, whose partial blocks evaluate this; NULL = it is not */
    attune_dtype kv_dtype, o_dtype; /* 0 = the dtype that the case runs in; with f64 they do not count */
    int64_t plan_more;              /* the plan is made for this many more queries than the call has */
    bool sinks;
    bool o_alone; /* neither LSE nor row maxima */
} attention_case;

/* Whether it names types of its own, with which float64 has nothing to do; and the same with one dtype, for kernels
 * that have no more. */
static inline bool case_mixed(const attention_case *c)
{
    return c->kv_dtype || c->o_dtype;
}

static inline attention_case case_unmixed(const attention_case *c)
{
    attention_case made = *c;
    made.kv_dtype = made.o_dtype = (attune_dtype)0;
    return made;
}

/* Head dimensions above 256 are of forward and decode alone, but on the CPU. */
static inline bool case_supported(const attention_case *c, const char *backend, bool gradients)
{
    return !gradients || !strcmp(backend, "cpu") || (c->head_dim <= 256 && c->head_dim_v <= 256);
}

/* Not those whose outputs are NaN or infinite: their gradients are too; nor those without an LSE, which gradients need.
 */
static inline bool case_has_gradients(const attention_case *c)
{
    return c->input != INPUT_INFINITE && c->input != INPUT_NAN_VISIBLE && c->input != INPUT_MIXED &&
           c->input != INPUT_NONFINITE && c->input != INPUT_INFINITE_V && !c->o_alone;
}

/* table.h */
extern const attention_case attention_cases[];

/* A random case; its strings live in `storage`. The same seed gives the same case on every machine. */
typedef struct case_storage {
    char name[96], mask[512], score[256], options[96], partial[256];
} case_storage;
attention_case attention_case_random(uint64_t seed, case_storage *storage);

/* A random case of INPUT_NONFINITE, whose expressions compare and choose between what can be NaN. The seed decides
 * whether its keys are cut into segments. */
attention_case attention_case_nonfinite(uint64_t seed, case_storage *storage);

/* Makes inputs, captures and expressions: q in the dtype, k, v and o in the case's, if it names any. Free with
 * case_release. */
bool case_instantiate(attune_instance *instance, const attention_case *c, attune_dtype dtype, uint64_t seed,
                      attention *a, failure *why);
void case_release(attention *a);

/* The expression of a case that has `partial`. */
bool case_partial(attune_instance *instance, const attention_case *c, attune_expr **expr, failure *why);

/* Runs a case on a device and compares o, lse and row maxima. Returns false with the reason. */
bool case_run(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
              uint64_t seed, failure *why);

/* Runs a case forwards and backwards, in its layout too, and compares the gradients of q, k, v and of what the score
 * expression captures. The loss uses LSE if the seed is odd. */
bool case_run_gradients(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
                        uint64_t seed, failure *why);

/* Whether nothing was wrong: the case would run on another kernel than ATTUNE_TEST_KERNEL names, and so did not. */
bool case_is_skipped(const failure *why);

/* Gradients of a case that were computed elsewhere, whole, and what they were computed from. */
typedef struct case_gradients {
    array d_o, d_lse;                          /* inputs; d_lse.data NULL = the loss does not use LSE */
    const array *lse;                          /* of forward */
    array d_q, d_k, d_v;                       /* in the types of q, k and v */
    array d_sinks;                             /* if the case has sinks */
    array d_captures[ATTUNE_EXPR_MAX_SYMBOLS]; /* f32, of attention_differentiable; otherwise data NULL */
} case_gradients;

/* Compares them as case_run_gradients does. The device is the CPU. */
bool case_check_gradients(attune_instance *instance, attune_device *device, const attention_case *c, const attention *a,
                          const case_gradients *gradients, failure *why);

#endif

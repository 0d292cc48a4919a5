/* SPDX-License-Identifier: MIT */
/* A call over a paged cache with its data in host memory: on a device through the public API, and by the references, a
 * sequence at a time. */
#ifndef TESTS_ORACLE_SERVING_H
#define TESTS_ORACLE_SERVING_H

#include "tests/oracle/reference.h"

typedef struct serving {
    /*
     * q is [tokens, heads, head_dim] with q_start, [sequences, heads, rows, head_dim] without. k and v are the pool,
     * [pages, kv_heads, page, head_dim]; v empty = the first head_dim_v columns of k. They may be quantised.
     * Expressions, captures, sinks and scale as everywhere; b0, q0 and seen are not used.
     */
    attention a;
    int64_t head_dim_v; /* where v is empty */
    /* As in attune_cache and attune_batch, i32; an array without data is not given. kv_len is required. */
    array pages, pages_start, q_start, kv_len, kv_first, tree, count, shared;
    array k_scale, v_scale; /* f32 [kv_heads]: factors of F8E4M3, F8E5M2 and I8; without data 1 */
} serving;

void serving_free(serving *s); /* not the expressions, captures and parameters */

/* Whether shapes and contents are those of a call: what the device would not compute is an error here. Entries of the
 * block table may be outside of the pool: their keys are not there. */
bool serving_check(const serving *s, failure *why);

/* From here on for what serving_check accepts. */
int64_t serving_sequences(const serving *s); /* those of the call (count) */
int64_t serving_rows(const serving *s, int64_t b);
int64_t serving_keys(const serving *s, int64_t b);
int64_t serving_width(const serving *s); /* columns of o */
/* The index of a row in lse and row_max as they are in memory; times serving_width, that of its o. */
int64_t serving_index(const serving *s, const reference_row *row);
/* The most rows of q. */
int64_t serving_tokens(const serving *s);

/* The problem of a plan for calls like this one. */
attune_problem serving_problem(const serving *s, bool lse, bool row_max);

/* The call's tensors on a device. */
typedef struct serving_call {
    attune_buffer *buffers[20 + ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t buffer_count;
    uint64_t bytes;
    attune_cache cache;
    attune_batch batch;
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_forward_args args;
} serving_call;

/* Uploads everything, and space for the results that are asked for, which are NaN until they are written. `call` stays
 * where it is: args points into it. Release with serving_release, also after a failure. */
attune_status serving_upload(attune_device *device, const serving *s, const attune_plan *plan, bool lse, bool row_max,
                             serving_call *call);
void serving_release(serving_call *call); /* accepts a zeroed one */

/* Runs the call on a device. o, lse and row_max are float64 arrays in the shapes of memory, where rows outside of the
 * batch are 0; any may be NULL. */
attune_status serving_forward(attune_device *device, const serving *s, const attune_kernel_options *options, array *o,
                              array *lse, array *row_max);

/* Every row of the call, in order b, h, q; NULL without memory. */
reference_row *serving_all_rows(const serving *s, int64_t *count);
/* The references of these rows, of which those of one sequence are best together. */
bool serving_reference(attune_instance *instance, const serving *s, reference_precision precision,
                       const reference_row *rows, int64_t count, const reference_result *result, failure *why);
/* Computes both references of these rows, and compares `got`, their o of [count, serving_width], by the error rule. */
bool serving_compare(attune_instance *instance, const serving *s, const reference_row *rows, int64_t count,
                     const double *got, const reference_result *oracle, const reference_result *naive,
                     reference_error *error, failure *why);

#endif

/* SPDX-License-Identifier: MIT */
/* All that is on the device for one call. */
#ifndef TESTS_RANDOM_FIXTURE_H
#define TESTS_RANDOM_FIXTURE_H

#include "random/place.h"

enum { Q, K, V, O, LSE, ROW_MAX, D_O, D_LSE, SINKS, D_Q, D_K, D_V, D_SINKS, ROLES };

/* k, v, d_k and d_v are those of each segment. */
typedef struct fixture {
    placed tensors[ROLES][SEGMENTS], captures[SYMBOLS], d_captures[SYMBOLS];
    double *start[SYMBOLS];       /* what the gradients of captures are added to */
    placed followed[SEGMENTS];    /* MASK_TENSOR: what the masks follow */
    attune_mask **following;      /* and these masks, which are the plan's */
    bool *updated;                /* of each, whether it ever was */
    attune_mask *masks[SEGMENTS]; /* likewise, or the call's own */
    attune_buffer *workspace;
    attune_capture named[NAMES], wanted[SYMBOLS];
    attune_parameter parameters[NAMES];
    attune_segment segments[SEGMENTS];
    uint32_t capture_count, wanted_count, parameter_count;
    int mask_parameter; /* a parameter that the mask reads; -1 = none */
    uint64_t workspace_size;
    double seconds;
} fixture;

/* Places all tensors of a call, and names its captures and parameters. Masks and the workspace are the caller's to
 * make.
 */
bool fixture_place(runner *r, const problem *p, const call *c, const call_data *d, attune_expr *const exprs[3],
                   fixture *b, finding *f);
void fixture_clear(fixture *b);
/* Whether the expression reads a symbol: simplification may remove every read. */
bool read_by(const attune_expr *expr, const char *name);
/* Fails with a call's status. */
bool failed_call(finding *f, const char *what, attune_status status);

#endif

/* SPDX-License-Identifier: MIT */
/* One small use of everything, step by step, for tests that break it on purpose: document-causal attention with a
 * soft-cap. */
#ifndef TESTS_API_FLOW_H
#define TESTS_API_FLOW_H

#include <attune/attune.h>

#define FLOW_LENGTH   300
#define FLOW_HEADS    2
#define FLOW_DIM      32
#define FLOW_ELEMENTS (FLOW_HEADS * FLOW_LENGTH * FLOW_DIM)

/* A call must fail with the status and the message. */
#define EXPECT(call, status, words)                                                                                    \
    do {                                                                                                               \
        attune_status got_ = (call);                                                                                   \
        cr_expect(got_ == (status), "%s gives %s, expected %s: %s", #call, attune_status_string(got_),                 \
                  attune_status_string(status), attune_last_error());                                                  \
        cr_expect(strstr(attune_last_error(), words), "%s: \"%s\" does not say \"%s\"", #call, attune_last_error(),    \
                  words);                                                                                              \
    } while (0)

typedef struct flow {
    attune_instance *instance;
    attune_device *device;
    attune_expr *mask_expr, *score_expr;
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *q, *k, *v, *o, *lse, *caps, *workspace;
    attune_problem problem;
    attune_forward_args args;
    attune_capture captures[1];
    attune_parameter parameters[1];
    int32_t doc[FLOW_LENGTH];
} flow;

/* Makes everything up to the arguments; on failure what was made is there to be destroyed. */
attune_status flow_create(flow *f, const attune_instance_desc *desc);
attune_status flow_run(flow *f, float *o);
void flow_destroy(flow *f);

#endif

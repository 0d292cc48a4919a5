/* SPDX-License-Identifier: MIT */
/* A case's keys cut into segments: views of the tensors as they lie, with a mask of their own each. */
#ifndef TESTS_CASES_SEGMENTS_H
#define TESTS_CASES_SEGMENTS_H

#include "cases/cases.h"

#define MOST_SEGMENTS 24

typedef struct segments {
    uint32_t count; /* 0 = the case is not cut */
    int64_t start[MOST_SEGMENTS + 1];
    attune_mask *masks[MOST_SEGMENTS]; /* NULL without a mask */
} segments;

/* Cuts, builds and uploads the masks, and gives the problem its kv_len and mask. Returns NULL or what went wrong. */
const char *segments_prepare(attune_instance *instance, attune_device *device, const attention_case *c,
                             const attention *a, segments *s, attune_problem *problem);
/* d_k and d_v NULL: forward. */
void segments_views(const segments *s, const attune_tensor *k, const attune_tensor *v, const attune_tensor *d_k,
                    const attune_tensor *d_v, attune_segment *views);
void segments_finish(segments *s);

#endif

/* SPDX-License-Identifier: MIT */
/* Keys cut into segments: views of k and v in place, with a mask of its own each. */
#ifndef TESTS_ORACLE_SEGMENTS_H
#define TESTS_ORACLE_SEGMENTS_H

#include "tests/oracle/reference.h"

#define SEGMENTS_MAX 24

typedef struct segments {
    uint32_t count; /* 0 = not cut */
    int64_t start[SEGMENTS_MAX + 1];
    attune_mask *masks[SEGMENTS_MAX]; /* NULL without a mask */
} segments;

/* The places of segments of these lengths. */
void segments_cut(segments *s, const int64_t *lengths, uint32_t count);
/* Builds and uploads the masks, in place of those that are there; `whole` describes one over all keys. Gives the
 * problem its segments, kv_len and mask; problem NULL = masks alone. After a failure segments_finish is needed all the
 * same. */
attune_status segments_build(attune_instance *instance, attune_device *device, const attention *a,
                             const attune_mask_desc *whole, segments *s, attune_problem *problem);
/* d_k and d_v NULL: forward. */
void segments_views(const segments *s, const attune_tensor *k, const attune_tensor *v, const attune_tensor *d_k,
                    const attune_tensor *d_v, attune_segment *views);
/* The most that rounding each segment's o adds to the error of an element of o (docs/numerics.md). */
double segments_rounding(attune_device *device, const attention *a);
void segments_finish(segments *s); /* accepts a zeroed one */

#endif

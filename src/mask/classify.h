/* SPDX-License-Identifier: MIT */
/* Classifies boxes of q x kv indices: a mask expression is true everywhere, nowhere, or at some pairs. */
#ifndef ATTUNE_MASK_CLASSIFY_H
#define ATTUNE_MASK_CLASSIFY_H

#include "mask/rects.h"

/* A pair, relative to the first pair of a region. */
typedef struct attune__block_point {
    int32_t q, kv;
} attune__block_point;

typedef struct attune__classifier {
    const attune_allocator *allocator;
    const attune_expr *expr;
    attune__bindings bindings;
    attune__ranges *ranges;
    attune__interval *intervals; /* scratch of bounds */
    uint16_t *nodes;             /* lists of open nodes, each a subset of the one before it */
    attune__open_nodes open;     /* the last list: the nodes that bounds and rows evaluate */
    void *row_scratch;           /* of attune__expr_open_row */
    attune__row row;
    attune__box box;
    attune__work *work;          /* may be NULL; once its status is not OK, classes are invalid */
    attune__block_point hint[2]; /* pairs that are likely false and true in the next region */
} attune__classifier;

/* expr, the data of the bindings and work must outlive the classifier. A zeroed classifier may be finished. */
attune_status attune__classifier_init(attune__classifier *classifier, const attune_allocator *allocator,
                                      const attune_expr *expr, const attune__bindings *bindings, attune__work *work);
void attune__classifier_finish(attune__classifier *classifier);
/* Selects batch b and head h of the mask for the calls that follow. */
void attune__classifier_plane(attune__classifier *classifier, const attune_mask *mask, int64_t b, int64_t h);

/* Rows q0 to q1 and columns kv0 to kv1, both closed and counted in elements of the mask. */
typedef struct attune__region {
    int32_t q0, q1, kv0, kv1;
} attune__region;

/* The elements of block rows [r0, r1) and block columns [c0, c1), clipped to the lengths. */
attune__region attune__region_of(const attune_mask *mask, int32_t r0, int32_t r1, int32_t c0, int32_t c1);

/* Skips the nodes that the last bounds decided, for regions inside that of these bounds, until attune__classifier_widen
 * is called with the result. */
attune__open_nodes attune__classifier_narrow(attune__classifier *classifier);
void attune__classifier_widen(attune__classifier *classifier, attune__open_nodes before);

/* Classifies by interval analysis only: FULL, EMPTY or UNDECIDED. */
attune__class attune__classify_bounds(attune__classifier *classifier, const attune__region *region);
/* Classifies exactly, as if every element were evaluated. */
attune__class attune__classify(attune__classifier *classifier, const attune__region *region);
/* The same for a region whose bounds are the last ones, and undecided. */
attune__class attune__classify_undecided(attune__classifier *classifier, const attune__region *region);

#endif

/* SPDX-License-Identifier: MIT */
/* Decides whether a mask expression is true everywhere, nowhere or in places over a box of q x kv indices. */
#ifndef ATTUNE_MASK_CLASSIFY_H
#define ATTUNE_MASK_CLASSIFY_H

#include "mask/rects.h"

/* Relative to the first pair of a region. */
typedef struct attune__block_point {
    int32_t q, kv;
} attune__block_point;

typedef struct attune__classifier {
    const attune_allocator *allocator;
    const attune_expr *expr;
    attune__bindings bindings;
    attune__ranges *ranges;
    attune__interval *intervals; /* scratch of bounds */
    uint16_t *nodes;             /* lists of open nodes, each a part of the one before it */
    attune__open_nodes open;     /* the last of them: what bounds and rows look at */
    void *row_scratch;           /* of attune__expr_open_row */
    attune__row row;
    attune__box box;
    attune__work *work;          /* may be NULL; once its status is not OK classes mean nothing */
    attune__block_point hint[2]; /* where a region may have a false and a true pair; any places do */
} attune__classifier;

/* expr, what the bindings point to and work must outlive the classifier. One that is all zero may be finished. */
attune_status attune__classifier_init(attune__classifier *classifier, const attune_allocator *allocator,
                                      const attune_expr *expr, const attune__bindings *bindings, attune__work *work);
void attune__classifier_finish(attune__classifier *classifier);
/* What follows is about batch b and head h of the mask, as attune__mask_row sees them. */
void attune__classifier_plane(attune__classifier *classifier, const attune_mask *mask, int64_t b, int64_t h);

/* Rows q0 to q1 and columns kv0 to kv1, both closed and counted in elements of the mask. */
typedef struct attune__region {
    int32_t q0, q1, kv0, kv1;
} attune__region;

/* The elements of block rows [r0, r1) and block columns [c0, c1), cut at the lengths. */
attune__region attune__region_of(const attune_mask *mask, int32_t r0, int32_t r1, int32_t c0, int32_t c1);

/* Leaves out of what follows the nodes that the last bounds decided, those of a region that all later ones lie in
 * until attune__classifier_widen with what this returned. */
attune__open_nodes attune__classifier_narrow(attune__classifier *classifier);
void attune__classifier_widen(attune__classifier *classifier, attune__open_nodes before);

/* By interval analysis alone: FULL, EMPTY or UNDECIDED. */
attune__class attune__classify_bounds(attune__classifier *classifier, const attune__region *region);
/* Exactly what evaluation of every element gives. */
attune__class attune__classify(attune__classifier *classifier, const attune__region *region);
/* The same for a region whose bounds have just been found undecided. */
attune__class attune__classify_undecided(attune__classifier *classifier, const attune__region *region);

#endif

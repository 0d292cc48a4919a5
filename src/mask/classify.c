/* SPDX-License-Identifier: MIT */
/*
 * Regions are classified by three methods, the cheapest first. Interval analysis decides most. A few sample points,
 * beginning where earlier blocks had their values, find both values in most regions that have both. The remaining
 * regions are halved and analysed again and, when small, evaluated element by element. The search ends as soon as both
 * values are found.
 */
#include "mask/classify.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* Evaluating a region of this many elements costs about as much as two more analyses. */
#define TILE_ROWS    16
#define TILE_COLUMNS 64

/* A list of open nodes is at most this share of the list before it, so that all lists fit into four times the first. */
#define NARROWER(count) ((count)*3 / 4)

/* With fewer nodes, pruning costs more than it saves. */
#define WORTH_NARROWING 16

/* Sample points of a block before it is searched. */
#define SAMPLES 8

enum { SEEN_FALSE = 1, SEEN_TRUE = 2, SEEN_BOTH = 3 };

attune_status attune__classifier_init(attune__classifier *classifier, const attune_allocator *allocator,
                                      const attune_expr *expr, const attune__bindings *bindings, attune__work *work)
{
    *classifier = (attune__classifier){
        .allocator = allocator,
        .expr = expr,
        .bindings = *bindings,
        .work = work,
        /* The corners farthest above and below the diagonal, since most masks compare q with kv. */
        .hint = {{0, INT32_MAX}, {INT32_MAX, 0}},
    };
    attune_status status = attune__ranges_create(allocator, expr, bindings, &classifier->ranges);
    if (status != ATTUNE_OK)
        goto fail;
    status = ATTUNE_OUT_OF_HOST_MEMORY;
    classifier->intervals = attune__alloc_raw(allocator, expr->node_count, sizeof *classifier->intervals);
    if (!classifier->intervals)
        goto fail;
    classifier->nodes = attune__alloc_raw(allocator, 4 * (size_t)expr->node_count, sizeof *classifier->nodes);
    if (!classifier->nodes)
        goto fail;
    for (uint32_t n = 0; n < expr->node_count; n++)
        classifier->nodes[n] = (uint16_t)n;
    classifier->open = (attune__open_nodes){classifier->nodes, expr->node_count};
    classifier->row_scratch = attune__alloc_raw(allocator, attune__expr_scratch_size(expr, TILE_COLUMNS), 1);
    if (!classifier->row_scratch)
        goto fail;
    return ATTUNE_OK;
fail:
    attune__classifier_finish(classifier);
    return status;
}

void attune__classifier_finish(attune__classifier *classifier)
{
    if (!classifier->allocator)
        return;
    attune__ranges_destroy(classifier->ranges);
    attune__free(classifier->allocator, classifier->intervals);
    attune__free(classifier->allocator, classifier->nodes);
    attune__free(classifier->allocator, classifier->row_scratch);
    *classifier = (attune__classifier){0};
}

static attune__interval exactly(int32_t value)
{
    return (attune__interval){.lo = value, .hi = value};
}

void attune__classifier_plane(attune__classifier *classifier, const attune_mask *mask, int64_t b, int64_t h)
{
    classifier->row = attune__mask_row(mask, b, h, 0);
    const attune__row *row = &classifier->row;
    attune__interval *var = classifier->box.var;
    var[ATTUNE__VAR_B] = exactly(row->b);
    var[ATTUNE__VAR_H] = exactly(row->h);
    var[ATTUNE__VAR_H_KV] = exactly(row->h_kv);
    var[ATTUNE__VAR_Q_LEN] = exactly(row->q_len);
    var[ATTUNE__VAR_KV_LEN] = exactly(row->kv_len);
    var[ATTUNE__VAR_SCORE] = (attune__interval){0};
}

attune__region attune__region_of(const attune_mask *mask, int32_t r0, int32_t r1, int32_t c0, int32_t c1)
{
    const int64_t qb = mask->q_block, kvb = mask->kv_block;
    return (attune__region){
        .q0 = (int32_t)(r0 * qb),
        .q1 = (int32_t)(attune__min64(r1 * qb, mask->q_len) - 1),
        .kv0 = (int32_t)(c0 * kvb),
        .kv1 = (int32_t)(attune__min64(c1 * kvb, mask->kv_len) - 1),
    };
}

attune__open_nodes attune__classifier_narrow(attune__classifier *classifier)
{
    const attune__open_nodes before = classifier->open;
    if (before.count < WORTH_NARROWING)
        return before;
    uint16_t *nodes = classifier->nodes + (before.nodes - classifier->nodes) + before.count;
    const uint32_t count = attune__expr_prune(classifier->expr, &before, classifier->intervals, nodes);
    if (count <= NARROWER(before.count))
        classifier->open = (attune__open_nodes){nodes, count};
    return before;
}

void attune__classifier_widen(attune__classifier *classifier, attune__open_nodes before)
{
    classifier->open = before;
}

static bool count_work(const attune__classifier *classifier, uint64_t units)
{
    return attune__work_add(classifier->work, units) == ATTUNE_OK;
}

attune__class attune__classify_bounds(attune__classifier *classifier, const attune__region *region)
{
    if (!count_work(classifier, classifier->open.count))
        return ATTUNE__UNDECIDED;
    attune__interval *var = classifier->box.var;
    var[ATTUNE__VAR_Q].lo = region->q0;
    var[ATTUNE__VAR_Q].hi = region->q1;
    var[ATTUNE__VAR_KV].lo = region->kv0;
    var[ATTUNE__VAR_KV].hi = region->kv1;
    uint64_t looked = 0;
    const attune__interval bounds =
        attune__expr_open_bounds(classifier->expr, &classifier->open, &classifier->bindings, classifier->ranges,
                                 &classifier->box, classifier->intervals, &looked);
    if (!count_work(classifier, looked))
        return ATTUNE__UNDECIDED;
    return bounds.lo >= 1 ? ATTUNE__FULL : bounds.hi <= 0 ? ATTUNE__EMPTY : ATTUNE__UNDECIDED;
}

/* A block that is being classified: its region, and the values found. */
typedef struct block_search {
    attune__classifier *classifier;
    const attune__region *block;
    int seen;
} block_search;

/* Records where a value was found: the neighbouring blocks, which are next, often have it at the same position. */
static void record(block_search *h, int32_t q, int32_t kv, bool value)
{
    const int bit = value ? SEEN_TRUE : SEEN_FALSE;
    if (h->seen & bit)
        return;
    h->seen |= bit;
    h->classifier->hint[value] = (attune__block_point){q - h->block->q0, kv - h->block->kv0};
}

static bool sample(const block_search *h, int32_t q, int32_t kv)
{
    attune__classifier *classifier = h->classifier;
    if (!count_work(classifier, classifier->expr->node_count))
        return false;
    const attune__row *row = &classifier->row;
    const attune_point point = {row->b, row->h, q, kv, row->h_kv, row->q_len, row->kv_len, 0.0f};
    return attune__expr_point(classifier->expr, &classifier->bindings, &point).i;
}

/* A coordinate from 0 to last. With multiples of the two constants below for the two coordinates (2^32 / g and 2^32 /
 * g^2, g^3 = g + 1: Roberts' R2 sequence), points are spread evenly over a box. */
static int32_t spread_coordinate(int32_t last, uint32_t fraction)
{
    return (int32_t)(((uint64_t)last + 1) * fraction >> 32);
}

static void try_samples(block_search *h)
{
    const attune__region *block = h->block;
    const int32_t rows = block->q1 - block->q0, columns = block->kv1 - block->kv0;
    for (int value = 0; value < 2; value++) {
        const attune__block_point at = h->classifier->hint[value];
        const int32_t q = block->q0 + (at.q < rows ? at.q : rows),
                      kv = block->kv0 + (at.kv < columns ? at.kv : columns);
        h->seen |= sample(h, q, kv) ? SEEN_TRUE : SEEN_FALSE;
    }
    const attune__block_point corners[] = {{0, columns}, {rows, 0}, {0, 0}, {rows, columns}};
    for (int i = 0; i < 4 && h->seen != SEEN_BOTH; i++) {
        const int32_t q = block->q0 + corners[i].q, kv = block->kv0 + corners[i].kv;
        record(h, q, kv, sample(h, q, kv));
    }
    for (uint32_t i = 1; i <= SAMPLES && h->seen != SEEN_BOTH; i++) {
        const int32_t q = block->q0 + spread_coordinate(rows, i * UINT32_C(0xc13fa9a9));
        const int32_t kv = block->kv0 + spread_coordinate(columns, i * UINT32_C(0x91e10da5));
        record(h, q, kv, sample(h, q, kv));
    }
}

static void evaluate(block_search *h, const attune__region *region)
{
    attune__classifier *classifier = h->classifier;
    uint8_t allowed[TILE_COLUMNS];
    const int32_t count = region->kv1 - region->kv0 + 1;
    attune__row row = classifier->row;
    const uint64_t units = (uint64_t)count * classifier->open.count;
    attune__expr_open_begin(classifier->expr, classifier->intervals, classifier->row_scratch);
    for (int32_t q = region->q0; q <= region->q1 && h->seen != SEEN_BOTH && count_work(classifier, units); q++) {
        row.q = q;
        attune__expr_open_row(classifier->expr, &classifier->open, &classifier->bindings, &row, region->kv0,
                              (size_t)count, classifier->row_scratch, allowed);
        for (int value = 0; value < 2; value++) {
            const uint8_t *found = memchr(allowed, value, (size_t)count);
            if (found)
                record(h, q, region->kv0 + (int32_t)(found - allowed), value);
        }
    }
}

static void search(block_search *h, const attune__region *region);

/* Searches a region whose bounds are the last ones, and undecided. */
static void search_undecided(block_search *h, const attune__region *region)
{
    /* Differences of closed bounds, which do not overflow for a length of 2^31 - 1. */
    const int32_t rows = region->q1 - region->q0, columns = region->kv1 - region->kv0;
    if (rows < TILE_ROWS && columns < TILE_COLUMNS) {
        evaluate(h, region);
        return;
    }
    attune__region first = *region, second = *region;
    if (rows >= TILE_ROWS && (rows >= columns || columns < TILE_COLUMNS)) {
        first.q1 = region->q0 + rows / 2;
        second.q0 = first.q1 + 1;
    } else {
        first.kv1 = region->kv0 + columns / 2;
        second.kv0 = first.kv1 + 1;
    }
    search(h, &first);
    if (h->seen != SEEN_BOTH && !attune__work_stopped(h->classifier->work))
        search(h, &second);
}

static void search_narrowed(block_search *h, const attune__region *region)
{
    const attune__open_nodes before = attune__classifier_narrow(h->classifier);
    search_undecided(h, region);
    attune__classifier_widen(h->classifier, before);
}

static void search(block_search *h, const attune__region *region)
{
    const attune__class class = attune__classify_bounds(h->classifier, region);
    if (attune__work_stopped(h->classifier->work))
        return;
    if (class == ATTUNE__UNDECIDED)
        search_narrowed(h, region);
    else
        record(h, region->q0, region->kv0, class == ATTUNE__FULL);
}

attune__class attune__classify_undecided(attune__classifier *classifier, const attune__region *region)
{
    block_search h = {classifier, region, 0};
    if (attune__work_stopped(classifier->work))
        return ATTUNE__EMPTY;
    try_samples(&h);
    const bool one_point = region->q0 == region->q1 && region->kv0 == region->kv1;
    if (h.seen != SEEN_BOTH && !one_point)
        search_narrowed(&h, region);
    return h.seen == SEEN_BOTH ? ATTUNE__PARTIAL : h.seen == SEEN_TRUE ? ATTUNE__FULL : ATTUNE__EMPTY;
}

attune__class attune__classify(attune__classifier *classifier, const attune__region *region)
{
    attune__class class = attune__classify_bounds(classifier, region);
    return class == ATTUNE__UNDECIDED ? attune__classify_undecided(classifier, region) : class;
}

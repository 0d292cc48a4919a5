/* SPDX-License-Identifier: MIT */
/*
 * The smallest and largest value of a capture over boxes of indices. One dimension, the last that the expression
 * indexes with q or kv, has segment trees: leaves of LEAF elements, stored bottom-up, so that a run is the union of at
 * most two entries of each level. The other dimensions are iterated over; if a box has too many combinations of them,
 * the extremes of the whole array are used.
 */
#include "expr/ranges.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "expr/capture.h"
#include "expr/ops.h"

#define LEAF             32
#define MAX_COMBINATIONS 128

typedef union extremes {
    struct {
        int32_t lo, hi;
    } i;
    struct {
        float lo, hi;
    } f;
} extremes;

typedef struct capture_ranges {
    bool present;
    bool real;
    bool nan;                       /* some element is NaN */
    bool empty;                     /* no elements: every read is 0 */
    uint32_t along;                 /* the dimension of the trees */
    int64_t leaves;                 /* of one tree, which has 2 * leaves entries, with leaf i at leaves + i */
    int64_t place[ATTUNE_MAX_RANK]; /* of a tree: sum of index * place over the other dimensions */
    extremes *trees;
    extremes whole;
} capture_ranges;

struct attune__ranges {
    attune_allocator allocator;
    uint32_t count;
    capture_ranges capture[ATTUNE_EXPR_MAX_SYMBOLS];
};

static extremes nothing(bool real)
{
    return real ? (extremes){.f = {INFINITY, -INFINITY}} : (extremes){.i = {INT32_MAX, INT32_MIN}};
}

static inline extremes join(extremes a, extremes b, bool real)
{
    if (real)
        return (extremes){.f = {b.f.lo < a.f.lo ? b.f.lo : a.f.lo, b.f.hi > a.f.hi ? b.f.hi : a.f.hi}};
    return (extremes){.i = {b.i.lo < a.i.lo ? b.i.lo : a.i.lo, b.i.hi > a.i.hi ? b.i.hi : a.i.hi}};
}

/* The extremes of a run of elements. NaN sets *nan and is otherwise ignored. */
static extremes run(const attune_array *array, int64_t offset, int64_t step, int64_t count, bool *nan)
{
    if (array->dtype == ATTUNE_I32 && step == 1) {
        const int32_t *data = (const int32_t *)array->data + offset;
        int32_t lo = INT32_MAX, hi = INT32_MIN;
        for (int64_t i = 0; i < count; i++) {
            lo = data[i] < lo ? data[i] : lo;
            hi = data[i] > hi ? data[i] : hi;
        }
        return (extremes){.i = {lo, hi}};
    }
    bool real = attune__capture_type(array->dtype) == ATTUNE__FLOAT;
    extremes all = nothing(real);
    for (int64_t i = 0; i < count; i++) {
        attune__value value = attune__capture_load(array, offset + i * step);
        if (!real) {
            all.i.lo = value.i < all.i.lo ? value.i : all.i.lo;
            all.i.hi = value.i > all.i.hi ? value.i : all.i.hi;
        } else if (value.f == value.f) {
            all.f.lo = value.f < all.f.lo ? value.f : all.f.lo;
            all.f.hi = value.f > all.f.hi ? value.f : all.f.hi;
        } else {
            *nan = true;
        }
    }
    return all;
}

static uint32_t walked_dimension(const attune_expr *expr, uint32_t symbol)
{
    uint32_t along = expr->symbols[symbol].rank - 1;
    bool found = false;
    for (uint32_t n = 0; n < expr->node_count; n++) {
        const attune__node *node = &expr->nodes[n];
        if (node->op != ATTUNE__OP_CAPTURE || (uint32_t)node->value.i != symbol)
            continue;
        for (uint32_t d = 0; d < node->arg_count; d++)
            if (expr->nodes[node->arg[d]].uses & ((1u << ATTUNE__VAR_Q) | (1u << ATTUNE__VAR_KV)))
                if (!found || d > along) {
                    along = d;
                    found = true;
                }
    }
    return along;
}

static attune_status build(const attune_allocator *allocator, const attune_array *array, uint32_t along,
                           capture_ranges *ranges)
{
    ranges->present = true;
    ranges->real = attune__capture_type(array->dtype) == ATTUNE__FLOAT;
    ranges->along = along;
    ranges->whole = nothing(ranges->real);
    for (uint32_t d = 0; d < array->rank; d++)
        ranges->empty |= array->size[d] == 0;
    if (ranges->empty)
        return ATTUNE_OK;
    int64_t trees = 1;
    for (uint32_t d = array->rank; d-- > 0;) {
        if (d == along)
            continue;
        ranges->place[d] = trees;
        trees *= array->size[d];
    }
    int64_t size = array->size[along], step = array->stride[along];
    int64_t leaves = ranges->leaves = (size + LEAF - 1) / LEAF;
    ranges->trees = attune__alloc_raw(allocator, (size_t)(2 * leaves * trees), sizeof *ranges->trees);
    if (!ranges->trees)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    int64_t index[ATTUNE_MAX_RANK] = {0};
    for (int64_t t = 0; t < trees; t++) {
        int64_t offset = 0;
        for (uint32_t d = 0; d < array->rank; d++)
            offset += index[d] * array->stride[d];
        extremes *tree = ranges->trees + 2 * leaves * t;
        for (int64_t i = 0; i < leaves; i++) {
            int64_t first = i * LEAF, count = size - first < LEAF ? size - first : LEAF;
            tree[leaves + i] = run(array, offset + first * step, step, count, &ranges->nan);
        }
        for (int64_t i = leaves - 1; i > 0; i--)
            tree[i] = join(tree[2 * i], tree[2 * i + 1], ranges->real);
        for (int64_t i = leaves; i < 2 * leaves; i++)
            ranges->whole = join(ranges->whole, tree[i], ranges->real);
        for (uint32_t d = array->rank; d-- > 0;) {
            if (d == along)
                continue;
            if (++index[d] < array->size[d])
                break;
            index[d] = 0;
        }
    }
    return ATTUNE_OK;
}

attune_status attune__ranges_create(const attune_allocator *allocator, const attune_expr *expr,
                                    const attune__bindings *bindings, attune__ranges **out)
{
    *out = NULL;
    attune__ranges *ranges = attune__alloc(allocator, 1, sizeof *ranges);
    if (!ranges)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    ranges->allocator = *allocator;
    ranges->count = expr->symbol_count;
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        if (expr->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE)
            continue;
        attune_status status = build(allocator, &bindings->captures[i], walked_dimension(expr, i), &ranges->capture[i]);
        if (status != ATTUNE_OK) {
            attune__ranges_destroy(ranges);
            return status;
        }
    }
    *out = ranges;
    return ATTUNE_OK;
}

void attune__ranges_destroy(attune__ranges *ranges)
{
    if (!ranges)
        return;
    attune_allocator allocator = ranges->allocator;
    for (uint32_t i = 0; i < ranges->count; i++)
        attune__free(&allocator, ranges->capture[i].trees);
    attune__free(&allocator, ranges);
}

/* The extremes of elements lo ... hi of one tree. Partial leaves are read from the array. */
static extremes query(const capture_ranges *ranges, const attune_array *array, const extremes *tree, int64_t offset,
                      int64_t lo, int64_t hi, uint64_t *looked)
{
    bool nan = false;
    int64_t step = array->stride[ranges->along], size = array->size[ranges->along];
    int64_t first = (lo + LEAF - 1) / LEAF, end = hi == size - 1 ? ranges->leaves : (hi + 1) / LEAF;
    extremes all = nothing(ranges->real);
    if (first >= end) {
        *looked += (uint64_t)(hi - lo + 1);
        return run(array, offset + lo * step, step, hi - lo + 1, &nan);
    }
    *looked += (uint64_t)(first * LEAF - lo);
    if (end * LEAF <= hi)
        *looked += (uint64_t)(hi - end * LEAF + 1);
    if (lo < first * LEAF)
        all = run(array, offset + lo * step, step, first * LEAF - lo, &nan);
    if (end * LEAF <= hi)
        all = join(all, run(array, offset + end * LEAF * step, step, hi - end * LEAF + 1, &nan), ranges->real);
    int64_t l = first + ranges->leaves, r = end + ranges->leaves;
    for (; l < r; l /= 2, r /= 2) {
        *looked += 2;
        if (l & 1)
            all = join(all, tree[l++], ranges->real);
        if (r & 1)
            all = join(all, tree[--r], ranges->real);
    }
    return all;
}

/* The extremes over a box that is inside the array. */
static extremes inside(const capture_ranges *ranges, const attune_array *array, const int64_t *lo, const int64_t *hi,
                       uint64_t *looked)
{
    int64_t combinations = 1;
    for (uint32_t d = 0; d < array->rank; d++)
        if (d != ranges->along) {
            combinations *= hi[d] - lo[d] + 1;
            if (combinations > MAX_COMBINATIONS)
                return ranges->whole;
        }
    int64_t index[ATTUNE_MAX_RANK];
    memcpy(index, lo, sizeof index);
    index[ranges->along] = 0;
    extremes all = nothing(ranges->real);
    for (int64_t c = 0; c < combinations; c++) {
        int64_t offset = 0, tree = 0;
        for (uint32_t d = 0; d < array->rank; d++) {
            offset += index[d] * array->stride[d];
            tree += index[d] * ranges->place[d];
        }
        all = join(all,
                   query(ranges, array, ranges->trees + 2 * ranges->leaves * tree, offset, lo[ranges->along],
                         hi[ranges->along], looked),
                   ranges->real);
        for (uint32_t d = array->rank; d-- > 0;) {
            if (d == ranges->along)
                continue;
            if (++index[d] <= hi[d])
                break;
            index[d] = lo[d];
        }
    }
    return all;
}

attune__interval attune__ranges_query(const attune__ranges *ranges, const attune__bindings *bindings, uint32_t symbol,
                                      const attune__interval *index, uint64_t *looked)
{
    const capture_ranges *r = &ranges->capture[symbol];
    const attune_array *array = &bindings->captures[symbol];
    int64_t lo[ATTUNE_MAX_RANK] = {0}, hi[ATTUNE_MAX_RANK] = {0};
    bool outside = r->empty, all_outside = r->empty;
    for (uint32_t d = 0; d < array->rank; d++) {
        lo[d] = index[d].lo < 0 ? 0 : index[d].lo;
        hi[d] = index[d].hi < array->size[d] ? index[d].hi : array->size[d] - 1;
        outside |= index[d].lo < 0 || index[d].hi >= array->size[d];
        all_outside |= lo[d] > hi[d];
    }
    extremes all = all_outside ? nothing(r->real) : inside(r, array, lo, hi, looked);
    if (outside)
        all = join(all, (extremes){{0, 0}}, r->real);
    attune__interval result = {0};
    if (!r->real) {
        result.lo = all.i.lo;
        result.hi = all.i.hi;
        return result;
    }
    result.may_nan = r->nan && !all_outside;
    /* only NaN: bounds cannot express that, so all values */
    result.flo = all.f.lo <= all.f.hi ? all.f.lo : -INFINITY;
    result.fhi = all.f.lo <= all.f.hi ? all.f.hi : INFINITY;
    return result;
}

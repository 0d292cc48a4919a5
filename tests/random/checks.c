/* SPDX-License-Identifier: MIT */
/* Results of the library beside calls: values of expressions, lists and counts of masks, planner choices. */
#include "random/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ expressions */

/* The text of the simplified expression means the same. */
static bool check_text(runner *r, const attune_expr *expr, attune_expr_kind kind, finding *f)
{
    static char text[1 << 16];
    attune_symbol symbols[ATTUNE_EXPR_MAX_SYMBOLS];
    const uint32_t count = attune_expr_symbol_count(expr);
    size_t needed;
    attune_expr *again;
    for (uint32_t i = 0; i < count; i++)
        if (attune_expr_symbol_get(expr, i, &symbols[i]) != ATTUNE_OK)
            return fail(f, "expr", "attune_expr_symbol_get: %s", attune_last_error());
    if (attune_expr_print(expr, ATTUNE_EXPR_TEXT, text, sizeof text, &needed) != ATTUNE_OK ||
        needed != strlen(text) + 1)
        return fail(f, "expr", "attune_expr_print: %zu bytes needed for \"%s\"", needed, text);
    if (needed > ATTUNE_EXPR_MAX_LENGTH)
        return true;
    const attune_status status = attune_expr_create(r->instance, kind, text, symbols, count, &again);
    if (status != ATTUNE_OK)
        return fail(f, "expr", "printed as %s, which is refused: %s", text, attune_last_error());
    uint64_t hash[2], other[2];
    attune_expr_hash(expr, hash);
    attune_expr_hash(again, other);
    attune_expr_destroy(again);
    return !memcmp(hash, other, sizeof hash) || fail(f, "expr", "printed as %s, whose hash is another", text);
}

static int32_t draw_index(rng *r, int64_t most)
{
    return (int32_t)(rng_chance(r, 5) ? rng_range(r, INT32_MIN, INT32_MAX) : rng_range(r, 0, most + 2));
}

/* Values at points, and along rows, in both precisions. */
static bool check_values(const tree *t, const binding *bindings, const attune_expr *expr, attune_expr_kind kind,
                         const host_bindings *b, const problem *p, const call *c, rng *g, finding *f)
{
    for (int i = 0; i < 4; i++) {
        const attune_dtype type = rng_chance(g, 50) ? ATTUNE_F32 : ATTUNE_F64;
        double row[3], products[3];
        point at = {.b = draw_index(g, p->batch),
                    .h = draw_index(g, p->heads),
                    .q = draw_index(g, p->q_len),
                    .kv = (int32_t)rng_range(g, 0, p->kv_len),
                    .h_kv = draw_index(g, p->kv_heads),
                    .q_len = (int32_t)c->q_len,
                    .kv_len = (int32_t)c->kv_len};
        for (int k = 0; k < 3; k++)
            row[k] = products[k] = (double)(float)((double)rng_range(g, -4000, 4000) / 500);
        const attune_point first = {at.b, at.h, at.q, at.kv, at.h_kv, at.q_len, at.kv_len, (float)row[0]};
        float one;
        if (attune_expr_evaluate_row(expr, type, &first, 3, b->captures, b->capture_count, b->parameters,
                                     b->parameter_count, row) != ATTUNE_OK ||
            attune_expr_evaluate(expr, &first, b->captures, b->capture_count, b->parameters, b->parameter_count,
                                 &one) != ATTUNE_OK)
            return fail(f, "value", "evaluating: %s", attune_last_error());
        for (int k = 0; k < 4; k++, at.kv++) {
            /* The last is the value of the one point. */
            const bool f32 = k == 3 || type == ATTUNE_F32;
            at.kv = k == 3 ? first.kv : at.kv;
            const double got = k == 3 ? (double)one : row[k], product = products[k % 3];
            if (kind == ATTUNE_EXPR_MASK) {
                if (got != tree_allows(t, bindings, &at))
                    return fail(f, "value", "a mask is %g at q %d kv %d", got, (int)at.q, (int)at.kv);
                continue;
            }
            const interval wanted = tree_score(t, bindings, &at, (interval){product, product, product, false},
                                               (precision){.unit = f32 ? 0x1p-24 : 0x1p-53}, NULL);
            const double error = 1.25 * fmax(wanted.hi - wanted.v, wanted.v - wanted.lo);
            const bool right = wanted.undecided     ? true
                               : isnan(wanted.v)    ? isnan(got)
                               : isfinite(wanted.v) ? fabs(got - wanted.v) <= error
                                                    : got == wanted.v;
            if (!right)
                return fail(f, "value", "a score is %.17g at q %d kv %d of %.9g, expected %.17g within %.3g", got,
                            (int)at.q, (int)at.kv, product, wanted.v, error);
        }
    }
    return true;
}

bool check_expressions(runner *r, const problem *p, const call *c, const call_data *d, attune_expr *const exprs[3],
                       finding *f)
{
    const tree *const trees[] = {&p->masks[0], &p->masks[1], &p->score};
    const binding *const bindings[] = {d->mask[0], d->mask[1], d->score};
    const layout *const layouts[] = {c->host, c->host + SYMBOLS, c->captures};
    rng g = {mix(c->seed, 4711)};
    bool ok = true;
    FILE *code = r->code;
    r->code = NULL;
    for (int i = 0; ok && i < 3; i++) {
        const attune_expr_kind kind = i < 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
        host_bindings b;
        if (!exprs[i])
            continue;
        bind_tree(r, trees[i], bindings[i], layouts[i], "", &b);
        ok = check_text(r, exprs[i], kind, f) && check_values(trees[i], bindings[i], exprs[i], kind, &b, p, c, &g, f);
        unbind(&b);
    }
    r->code = code;
    return ok;
}

/* ------------------------------------------------------------------------------------------------------------ masks */

/* Rows of blocks as lists have them, and which class of blocks they are of. */
typedef struct listed {
    const int32_t *count, *index;
    const int64_t *offset;
} listed;

static bool has(const listed *l, int64_t row, int64_t column)
{
    for (int32_t i = 0; i < l->count[row]; i++)
        if (l->index[l->offset[row] + i] == column)
            return true;
    return false;
}

/* How many pairs of a block may attend, and how many it has. */
static int64_t count_allowed(const call *c, const call_data *d, const attune_mask_lists *l, int64_t plane, int segment,
                             int64_t q_block, int64_t kv_block, int64_t *pairs)
{
    int64_t allowed = 0;
    *pairs = 0;
    for (int64_t q = q_block * l->q_block; q < l->q_len && q < (q_block + 1) * l->q_block; q++)
        for (int64_t kv = kv_block * l->kv_block; kv < l->kv_len && kv < (kv_block + 1) * l->kv_block; kv++, ++*pairs)
            allowed += d->allowed[(plane * c->q_len + q) * c->kv_len + segment_start(c, segment) + kv];
    return allowed;
}

static bool check_lists(const problem *p, const call *c, const call_data *d, int segment, const attune_mask_lists *l,
                        finding *f)
{
    const listed kv = {l->kv_num_blocks, l->kv_indices, l->kv_offsets},
                 full_kv = {l->full_kv_num_blocks, l->full_kv_indices, l->full_kv_offsets},
                 q = {l->q_num_blocks, l->q_indices, l->q_offsets},
                 full_q = {l->full_q_num_blocks, l->full_q_indices, l->full_q_offsets};
    for (int64_t plane = 0; plane < c->batch * p->heads; plane++) {
        const int64_t b = l->batch == 1 ? 0 : plane / p->heads, h = l->heads == 1 ? 0 : plane % p->heads;
        const int64_t stored = b * l->heads + h;
        for (int64_t i = 0; i < l->q_blocks; i++)
            for (int64_t j = 0; j < l->kv_blocks; j++) {
                const int64_t row = stored * l->q_blocks + i, column = stored * l->kv_blocks + j;
                const bool partial = has(&kv, row, j), full = has(&full_kv, row, j);
                if (partial != has(&q, column, i) || full != has(&full_q, column, i) || (partial && full))
                    return fail(f, "lists", "block %lld, %lld of plane %lld: lists and transposes differ", (long long)i,
                                (long long)j, (long long)plane);
                int64_t pairs;
                const int64_t allowed = count_allowed(c, d, l, plane, segment, i, j, &pairs);
                /* Lists that were given need not be the tightest. */
                const bool given = p->mask == MASK_LISTS;
                if (full ? allowed < pairs : partial ? !given && (!allowed || allowed == pairs) : allowed > 0)
                    return fail(f, "lists", "block %lld, %lld of plane %lld is %s, but %lld of %lld pairs are allowed",
                                (long long)i, (long long)j, (long long)plane,
                                full      ? "full"
                                : partial ? "partial"
                                          : "empty",
                                (long long)allowed, (long long)pairs);
            }
    }
    return true;
}

/* A mask of the call's lengths: its lists, and how many pairs it counts. */
bool check_mask(const problem *p, const call *c, const call_data *d, int segment, const attune_mask *mask, finding *f)
{
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune_mask_stats stats = {.struct_size = sizeof stats};
    if (p->mask == MASK_TENSOR)
        return attune_mask_lists_get(mask, &lists) == ATTUNE_UNSUPPORTED ||
               fail(f, "lists", "the lists of a mask that follows a tensor");
    if (c->mask_more_q || c->mask_more_kv)
        return true;
    if (attune_mask_lists_get(mask, &lists) != ATTUNE_OK || attune_mask_stats_get(mask, true, &stats) != ATTUNE_OK)
        return fail(f, "lists", "reading a mask: %s", attune_last_error());
    int64_t pairs = 0, all = 0;
    for (int64_t row = 0; row < c->batch * p->heads * c->q_len; row++)
        for (int64_t kv = 0; kv < segment_length(c, segment); kv++, all++)
            pairs += d->allowed[row * c->kv_len + segment_start(c, segment) + kv];
    if (stats.pairs != pairs || fabs(stats.density - (double)pairs / (double)all) > 1e-9)
        return fail(f, "stats", "%lld pairs, a density of %g: %lld of %lld are allowed", (long long)stats.pairs,
                    stats.density, (long long)pairs, (long long)all);
    return check_lists(p, c, d, segment, &lists, f);
}

/* Progress never falls, and ends what it is told to end. */
typedef struct watch {
    double done;
    int left;
    bool stops, broken;
} watch;

static int watch_progress(void *user, double done)
{
    watch *w = user;
    w->broken |= !(done >= w->done && done <= 1);
    w->done = done;
    return w->stops && w->left-- == 0;
}

/* The same mask within a budget, or stopped: it is built, or it is not and says so. */
bool check_budget(runner *r, const call *c, attune_mask_desc desc, const attune_expr *expr, const host_bindings *b,
                  finding *f)
{
    rng g = {mix(c->seed, 4712)};
    watch w = {.stops = rng_chance(&g, 50)};
    attune_mask *mask;
    if (rng_chance(&g, 80))
        desc.max_work = (uint64_t)rng_range(&g, 1, INT64_C(1) << rng_range(&g, 1, 24));
    desc.progress = watch_progress;
    desc.progress_user = &w;
    const attune_status status = attune_mask_create(r->instance, &desc, expr, b->captures, b->capture_count,
                                                    b->parameters, b->parameter_count, &mask);
    if (w.broken)
        return fail(f, "progress", "progress falls, or passes 1: %g", w.done);
    if (status != ATTUNE_OK && (status != ATTUNE_CANCELLED || mask || !*attune_last_error()))
        return fail(f, "progress", "a mask with max_work %llu: %s: %s", (unsigned long long)desc.max_work,
                    attune_status_string(status), attune_last_error());
    attune_mask_destroy(mask);
    return true;
}

/* Limits of one call, of which some are too few. */
static attune_mask_work draw_work(rng *g, watch *w)
{
    *w = (watch){.stops = rng_chance(g, 20)};
    return (attune_mask_work){.struct_size = sizeof(attune_mask_work),
                              .progress = watch_progress,
                              .progress_user = w,
                              .max_work = rng_chance(g, 70) ? (uint64_t)1 << rng_range(g, 0, 24) : 0};
}

/* Whether a call within limits was stopped as it should be, or not; why = NULL then. A budget alone decides the same
 * each time. */
static const char *stopped(attune_status status, attune_status again, const attune_mask_work *work, const watch *w)
{
    if (w->broken)
        return "progress falls, or passes 1";
    if (status != ATTUNE_OK && (status != ATTUNE_CANCELLED || !*attune_last_error()))
        return attune_last_error();
    if (!w->stops && status != again)
        return "the same budget stops one call and not another";
    return !work->max_work && !w->stops && status != ATTUNE_OK ? "stopped without a limit" : NULL;
}

/* Counting within limits gives the same numbers, or none. */
static bool check_count(const call *c, const attune_mask *mask, finding *f)
{
    rng g = {mix(c->seed, 4716)};
    watch w;
    const attune_mask_work work = draw_work(&g, &w);
    attune_mask_stats exact = {.struct_size = sizeof exact}, counted, before;
    memset(&counted, 0xa5, sizeof counted);
    counted.struct_size = sizeof counted;
    before = counted;
    if (attune_mask_stats_count(mask, NULL, &exact) != ATTUNE_OK)
        return fail(f, "count", "attune_mask_stats_count: %s", attune_last_error());
    attune_mask_stats again = exact;
    const attune_status status = attune_mask_stats_count(mask, &work, &counted);
    watch other = {.stops = false};
    attune_mask_work same = work;
    same.progress_user = &other;
    const char *why = stopped(status, attune_mask_stats_count(mask, &same, &again), &work, &w);
    const attune_mask_stats *wanted = status == ATTUNE_OK ? &exact : &before;
    if (why)
        return fail(f, "count", "attune_mask_stats_count with max_work %llu: %s", (unsigned long long)work.max_work,
                    why);
    if (counted.pairs != wanted->pairs || counted.full_blocks != wanted->full_blocks ||
        counted.partial_blocks != wanted->partial_blocks || counted.blocks != wanted->blocks ||
        counted.bytes != wanted->bytes || memcmp(&counted.density, &wanted->density, sizeof counted.density) != 0 ||
        memcmp(&counted.block_density, &wanted->block_density, sizeof counted.block_density) != 0)
        return fail(f, "count", "attune_mask_stats_count: %s: %lld pairs, expected %lld", attune_status_string(status),
                    (long long)counted.pairs, (long long)wanted->pairs);
    return true;
}

static bool same_rows(const listed *a, const listed *b, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++)
        if (a->count[row] != b->count[row] ||
            memcmp(a->index + a->offset[row], b->index + b->offset[row], (size_t)a->count[row] * sizeof *a->index) != 0)
            return false;
    return true;
}

/* That of a mask which was built in one step. */
static bool same_lists(const attune_mask *a, const attune_mask *b)
{
    attune_mask_lists l[2] = {{.struct_size = sizeof *l}, {.struct_size = sizeof *l}};
    listed rows[2][4];
    if (attune_mask_lists_get(a, &l[0]) != ATTUNE_OK || attune_mask_lists_get(b, &l[1]) != ATTUNE_OK)
        return false;
    for (int i = 0; i < 2; i++) {
        rows[i][0] = (listed){l[i].kv_num_blocks, l[i].kv_indices, l[i].kv_offsets};
        rows[i][1] = (listed){l[i].full_kv_num_blocks, l[i].full_kv_indices, l[i].full_kv_offsets};
        rows[i][2] = (listed){l[i].q_num_blocks, l[i].q_indices, l[i].q_offsets};
        rows[i][3] = (listed){l[i].full_q_num_blocks, l[i].full_q_indices, l[i].full_q_offsets};
    }
    bool same = l[0].batch == l[1].batch && l[0].heads == l[1].heads && l[0].q_len == l[1].q_len &&
                l[0].kv_len == l[1].kv_len && l[0].q_block == l[1].q_block && l[0].kv_block == l[1].kv_block;
    const int64_t planes = l[0].batch * l[0].heads;
    for (int i = 0; same && i < 4; i++)
        same = same_rows(&rows[0][i], &rows[1][i], planes * (i < 2 ? l[0].q_blocks : l[0].kv_blocks));
    return same;
}

static bool check_combined(const problem *p, const call *c, const attune_mask *a, const attune_mask *b,
                           const attune_mask *mask, finding *f)
{
    rng g = {mix(c->seed, 4717)};
    watch w, other = {.stops = false};
    const attune_mask_op op = p->mask == MASK_AND  ? ATTUNE_MASK_AND
                              : p->mask == MASK_OR ? ATTUNE_MASK_OR
                                                   : ATTUNE_MASK_NOT;
    const attune_mask_work work = draw_work(&g, &w);
    attune_mask_work same = work;
    attune_mask *made = NULL, *again = NULL;
    same.progress_user = &other;
    const attune_status status = attune_mask_combine(op, a, b, &work, &made);
    const char *why = stopped(status, attune_mask_combine(op, a, b, &same, &again), &work, &w);
    if (!why && (status == ATTUNE_OK ? !same_lists(made, mask) : made != NULL))
        why = status == ATTUNE_OK ? "other lists than without limits" : "a mask in spite of the error";
    attune_mask_destroy(made);
    attune_mask_destroy(again);
    return !why ||
           fail(f, "combine", "attune_mask_combine with max_work %llu: %s", (unsigned long long)work.max_work, why);
}

/* Of what a mask was built with when it was shorter: parts of the arrays, of which one may have had another element.
 * `grown` receives those that differ. */
static uint32_t shorten(rng *g, bool changed, const host_bindings *after, host_bindings *before,
                        attune_host_capture *grown)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < before->capture_count; i++) {
        attune_array *array = &before->captures[i].array;
        bool differs = changed;
        for (uint32_t k = 0; k < array->rank; k++)
            if (array->size[k] > 1 && rng_chance(g, 40)) {
                array->size[k] = rng_range(g, 1, array->size[k] - 1);
                differs = true;
            }
        if (differs || rng_chance(g, 30))
            grown[count++] = after->captures[i];
    }
    return count;
}

/* A mask that grows to these lengths has the lists that it has if it is built at once. */
static bool check_extended(runner *r, const problem *p, const call *c, const call_data *d, int segment,
                           attune_mask_desc desc, const attune_expr *expr, const attune_mask *mask, finding *f)
{
    rng g = {mix(c->seed, 4718)};
    attune_mask *shorter = NULL, *extended = NULL;
    if (p->mask != MASK_EXPR || desc.kv_total) {
        const attune_status status =
            attune_mask_extend(mask, desc.q_len + 1, desc.kv_len + 1, NULL, 0, NULL, &extended);
        attune_mask_destroy(extended);
        return (status == ATTUNE_UNSUPPORTED && !extended && *attune_last_error()) ||
               fail(f, "extend", "a mask of another kind grows: %s", attune_status_string(status));
    }
    const int64_t q_len = desc.q_len, kv_len = desc.kv_len;
    binding old[SYMBOLS];
    double *values = NULL;
    const int symbols = p->masks[0].symbol_count, which = symbols ? (int)rng_range(&g, 0, symbols - 1) : 0;
    memcpy(old, d->mask[0], sizeof old);
    if (symbols && old[which].values && rng_chance(&g, 25)) {
        int64_t count = 1;
        for (int k = 0; k < p->masks[0].symbols[which].rank; k++)
            count *= old[which].size[k];
        values = malloc((size_t)count * sizeof *values);
        if (!values)
            abort();
        memcpy(values, old[which].values, (size_t)count * sizeof *values);
        double *changed = &values[rng_range(&g, 0, count - 1)];
        *changed = *changed != 0 ? 0 : 1;
        old[which].values = values;
    }
    host_bindings before, after;
    attune_host_capture grown[SYMBOLS];
    FILE *code = r->code;
    r->code = NULL;
    bind_tree(r, &p->masks[0], old, c->host, "", &before);
    bind_tree(r, &p->masks[0], d->mask[0], c->host, "", &after);
    r->code = code;
    const uint32_t count = shorten(&g, values != NULL, &after, &before, grown);
    desc.q_len = rng_chance(&g, 30) ? q_len : rng_range(&g, 1, q_len);
    desc.kv_len = rng_chance(&g, 30) ? kv_len : rng_range(&g, 1, kv_len);
    bool ok = attune_mask_create(r->instance, &desc, expr, before.captures, before.capture_count, before.parameters,
                                 before.parameter_count, &shorter) == ATTUNE_OK &&
              attune_mask_extend(shorter, q_len, kv_len, grown, count, NULL, &extended) == ATTUNE_OK;
    if (!ok)
        (void)fail(f, "extend", "from %lld x %lld: %s", (long long)desc.q_len, (long long)desc.kv_len,
                   attune_last_error());
    else if (!same_lists(extended, mask))
        ok = fail(f, "extend", "from %lld x %lld it has other lists than at once", (long long)desc.q_len,
                  (long long)desc.kv_len);
    ok = ok && check_mask(p, c, d, segment, extended, f);
    attune_mask_destroy(shorter);
    shorter = NULL;
    if (ok && (attune_mask_extend(extended, q_len, kv_len - 1, NULL, 0, NULL, &shorter) != ATTUNE_INVALID_ARGUMENT ||
               shorter || !*attune_last_error()))
        ok = fail(f, "extend", "a mask becomes shorter");
    attune_mask_destroy(shorter);
    attune_mask_destroy(extended);
    unbind(&before);
    unbind(&after);
    free(values);
    return ok;
}

/* The masks that are made of a mask's operands and counted of it within limits, and a shorter one that grows. */
bool check_made(runner *r, const problem *p, const call *c, const call_data *d, int segment,
                const attune_mask_desc *desc, const attune_expr *expr, attune_mask *const operands[2],
                const attune_mask *mask, finding *f)
{
    const bool combined = p->mask == MASK_AND || p->mask == MASK_OR || p->mask == MASK_NOT;
    return check_count(c, mask, f) && (!combined || check_combined(p, c, operands[0], operands[1], mask, f)) &&
           check_extended(r, p, c, d, segment, *desc, expr, mask, f);
}

/* A mask of other keys than those of `mask` is refused beside it. */
bool check_segments(runner *r, const call *c, attune_mask_desc desc, const attune_expr *expr, const host_bindings *b,
                    const attune_mask *mask, finding *f)
{
    rng g = {mix(c->seed, 4713)};
    const bool swapped = rng_chance(&g, 50), either = rng_chance(&g, 50);
    if (desc.kv_start && rng_chance(&g, 50))
        desc.kv_start--;
    else
        desc.kv_total++;
    attune_mask *other, *made = NULL;
    if (attune_mask_create(r->instance, &desc, expr, b->captures, b->capture_count, b->parameters, b->parameter_count,
                           &other) != ATTUNE_OK)
        return fail(f, "segments", "a mask of keys %lld of %lld: %s", (long long)desc.kv_start,
                    (long long)desc.kv_total, attune_last_error());
    const attune_mask *first = swapped ? other : mask, *second = swapped ? mask : other;
    const attune_status status = either ? attune_mask_or(first, second, &made) : attune_mask_and(first, second, &made);
    attune_mask_destroy(other);
    if (status == ATTUNE_INVALID_ARGUMENT && !made && strstr(attune_last_error(), "kv_"))
        return true;
    attune_mask_destroy(made);
    return fail(f, "segments", "masks of two segments, one of keys %lld of %lld: %s", (long long)desc.kv_start,
                (long long)desc.kv_total, attune_status_string(status));
}

/* ------------------------------------------------------------------------------------------------------------ plans */

/* The planner's choice without a device is that of the device's plan. */
bool check_choice(runner *r, const attune_problem *wanted, const attune_kernel_options *options,
                  const attune_plan *plan, finding *f)
{
    attune_plan_choice a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
    attune_device_info info = {.struct_size = sizeof info};
    char text[64] = "";
    size_t needed = 0;
    if (attune_device_info_get(r->device, &info) != ATTUNE_OK || attune_plan_choice_get(plan, &a) != ATTUNE_OK ||
        attune_plan_choose(&info.limits, wanted, options, &b) != ATTUNE_OK)
        return fail(f, "choice", "choosing again: %s", attune_last_error());
    const uint32_t of_a[] = {a.decode,   a.block_m,   a.block_n,    a.block_m1, a.block_n1,      a.block_m2,
                             a.block_n2, a.num_warps, a.num_stages, a.split_kv, a.deterministic, a.prescale_qk};
    const uint32_t of_b[] = {b.decode,   b.block_m,   b.block_n,    b.block_m1, b.block_n1,      b.block_m2,
                             b.block_n2, b.num_warps, b.num_stages, b.split_kv, b.deterministic, b.prescale_qk};
    if (strcmp(a.kernel, b.kernel) != 0 || memcmp(of_a, of_b, sizeof of_a) != 0 || a.workspace != b.workspace)
        return fail(f, "choice", "attune_plan_choose has %s %ux%u/%u and %llu bytes, the plan %s %ux%u/%u and %llu",
                    b.kernel, b.block_m, b.block_n, b.split_kv, (unsigned long long)b.workspace, a.kernel, a.block_m,
                    a.block_n, a.split_kv, (unsigned long long)a.workspace);
    if (attune_plan_explain(plan, ATTUNE_JSON, text, sizeof text, &needed) != ATTUNE_OK || text[0] != '{' ||
        needed < sizeof text || strlen(text) != sizeof text - 1)
        return fail(f, "choice", "attune_plan_explain: %zu bytes: %s", needed, text);
    return true;
}

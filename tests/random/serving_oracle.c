/* SPDX-License-Identifier: MIT */
/* Attention over a cache by the text of attune.h, in float64, and how far a kernel may be from it: the bounds are those
 * of oracle.c, for each row by itself. */
#include "random/serving.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct rules {
    precision exact;
    double sum, weight, weight_at, largest;
    attune_dtype factor; /* what q may be rounded to */
    double parts;        /* that are added, at most */
} rules;

static bool is_narrow(attune_dtype dtype)
{
    return dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
}

static double smallest_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F16 ? 0x1p-25 : 1e-36;
}

static rules rules_of(const serving *s, kernel_kind kind)
{
    rules r = {
        .exact = {.unit = s->dtype == ATTUNE_F64 ? 0x1p-53 : 0x1p-24, .vulkan = kind.backend == ATTUNE_BACKEND_VULKAN}};
    r.exact.log = r.exact.vulkan ? 0x1p-20 : 0;
    r.sum = 2 * r.exact.unit;
    r.weight_at = s->dtype == ATTUNE_F64 ? 0 : 0x1p-126; /* what is less is 0 */
    r.largest = kind.backend == ATTUNE_BACKEND_CUDA ? 0x1p22 : INFINITY;
    r.factor = s->dtype;
    r.parts = (double)(s->kv_len / 256 + 1);
    if (kind.backend == ATTUNE_BACKEND_CPU) {
        r.weight = !kind.matrices ? 0 : s->v_dtype == ATTUNE_BF16 ? unit_of(ATTUNE_BF16) : 0x1p-17;
        return r;
    }
    if (kind.backend != ATTUNE_BACKEND_CUDA)
        return r;
    /* CUDA's matrix units: the 16 bits of k and v; of codes as many parts as o has bits. */
    if (is_narrow(s->k_dtype))
        r.factor = s->k_dtype;
    const attune_dtype narrow = is_narrow(s->v_dtype) ? s->v_dtype : s->o_dtype;
    if (is_narrow(narrow)) {
        r.weight = unit_of(narrow);
        if (narrow == ATTUNE_F16)
            r.weight_at = 0x1p-24;
    }
    return r;
}

/* One row: of the keys that it may see, scores and values. The last is the sink, with a value of 0. */
typedef struct row {
    int count;
    bool sink;
    double sink_at;
    interval *score;
    double *k, *v; /* of one key; of all */
} row;

static interval product_of(const serving *s, const double *q, const double *k, const rules *how)
{
    const double scale = s->scale != 0 ? s->scale : 1 / sqrt((double)s->head_dim);
    double sum = 0, rounded = 0, magnitude = 0;
    for (uint32_t i = 0; i < s->head_dim; i++) {
        sum += q[i] * k[i];
        magnitude += fabs(q[i] * k[i]);
        rounded += (how->factor == s->dtype ? q[i] : rounded_to(how->factor, q[i])) * k[i];
    }
    interval p = {sum * scale, fmin(sum * scale, rounded * scale), fmax(sum * scale, rounded * scale), false};
    if (!isfinite(p.v)) {
        p.lo = p.hi = p.v;
        return p;
    }
    const double error = magnitude * fabs(scale) * (s->head_dim + 10) * how->sum;
    p.lo -= error;
    p.hi += error;
    p.undecided = how->exact.unit > 1e-12 && fabs(p.v) + error > 1e37;
    return p;
}

static void set(expected *e, int64_t at, double value, double bound)
{
    e->value.at[at] = value;
    e->bound[at] = isnan(bound) ? INFINITY : bound;
}

static double error_of(const interval *s)
{
    return fmax(s->hi - s->v, s->v - s->lo);
}

static double exponential_error(const interval *s, double m, const rules *how)
{
    const double u = how->exact.unit * (how->exact.vulkan ? 2 : 1);
    return u * (16 + 4 * fabs(s->v - m) + 3 * (fabs(s->v) + fabs(m)));
}

/* Sums of exp(score - the largest), of the scores, and of the least and the most that they may be. */
typedef struct weights {
    double m, sum, lo, below, hi, above;
} weights;

/* The smaller of two bounds of what roundings of scores move, as in oracle.c. */
static double moved_by(const rules *how, const row *r, const weights *w, const double *v, int64_t stride, double o)
{
    double few = 0, many = 0;
    for (int i = 0; i < r->count; i++) {
        const interval *s = &r->score[i];
        if (s->v == -INFINITY)
            continue;
        const double p = exp(s->v - w->m) / w->sum, rounding = exponential_error(s, w->m, how);
        const double most = fmin(1, exp(s->hi - w->lo) / w->below), least = exp(s->lo - w->hi) / w->above;
        const double distance = fabs(v[i * stride] - o);
        few += p * (expm1(error_of(s)) + rounding) * distance;
        many += fmin(1, fmax(most - p, p - least) + 2 * rounding * most) * distance;
    }
    few *= exp(w->m - w->lo) * w->sum / w->below;
    return few < many ? few : many;
}

static void row_values(const serving *s, const rules *how, const row *r, const weights *w, int64_t at, expected *e)
{
    const int64_t width = s->head_dim_v;
    for (int64_t i = 0; i < width; i++) {
        const double *v = r->v + i;
        double o = 0, magnitude = 0, least = 0;
        bool nan = false, up = false, down = false, open = false;
        for (int j = 0; j < r->count; j++) {
            const double weight = exp(r->score[j].v - w->m) / w->sum, x = v[j * width];
            if (!isfinite(x)) {
                nan |= isnan(x) || r->score[j].v == -INFINITY;
                open |= weight * w->sum < 1e-2;
                up |= x > 0;
                down |= x < 0;
                continue;
            }
            o += weight * x;
            magnitude += weight * fabs(x);
            least += how->weight_at * fabs(x) / w->sum;
        }
        if (nan || (up && down))
            set(e, at + i, NAN, 0);
        else if (up || down)
            set(e, at + i, up ? INFINITY : -INFINITY, open ? INFINITY : 0);
        else
            set(e, at + i, o,
                moved_by(how, r, w, v, width, o) +
                    magnitude * (how->weight + 2 * ((double)r->count + 16 + 8 * how->parts) * how->sum) + least +
                    fabs(o) * unit_of(s->o_dtype) + smallest_of(s->o_dtype));
    }
}

static void whole_row(const serving *s, int64_t at, double value, double bound, expected *e)
{
    for (int64_t i = 0; i < s->head_dim_v; i++)
        set(e, at * s->head_dim_v + i, value, bound);
}

/* Without an allowed pair, or with scores of -inf alone: the sink is all that LSE has. */
static void empty_row(const serving *s, const row *r, int64_t at, step_data *d)
{
    const bool sink = r->sink && r->sink_at != -INFINITY, wrong = sink && !isfinite(r->sink_at);
    bool finite = true;
    for (int64_t i = 0; sink && i < (r->count - 1) * (int64_t)s->head_dim_v; i++)
        finite &= isfinite(r->v[i]);
    whole_row(s, at, 0, wrong || !finite ? INFINITY : 0, &d->o);
    set(&d->lse, at, sink ? r->sink_at : -INFINITY,
        wrong  ? INFINITY
        : sink ? 4 * 0x1p-24 * fabs(r->sink_at) + 1e-36
               : 0);
    set(&d->row_max, at, -INFINITY, 0);
}

static void expect_row(const serving *s, const rules *how, row *r, int64_t at, step_data *d)
{
    bool undecided = false, nan = false, infinite = false;
    double largest = -INFINITY, least = -INFINITY, most = -INFINITY;
    for (int i = 0; i < r->count; i++) {
        const interval *score = &r->score[i];
        undecided |= score->undecided || (isfinite(score->v) && fabs(score->v) > how->largest);
        nan |= isnan(score->v);
        infinite |= score->v == INFINITY;
        largest = score->v > largest ? score->v : largest;
        least = score->lo > least ? score->lo : least;
        most = score->hi > most ? score->hi : most;
    }
    const bool spoiled = r->sink && (isnan(r->sink_at) || r->sink_at == INFINITY);
    if (undecided || nan || infinite || (spoiled && largest != -INFINITY)) {
        whole_row(s, at, NAN, undecided ? INFINITY : 0, &d->o);
        set(&d->lse, at, NAN, undecided ? INFINITY : 0);
        set(&d->row_max, at,
            nan        ? NAN
            : infinite ? INFINITY
                       : largest,
            undecided || (nan && infinite) ? INFINITY
            : nan || infinite              ? 0
                                           : fmax(most - largest, largest - least) + 1e-36);
        return;
    }
    const double row_max = largest;
    if (r->sink) {
        r->score[r->count] = (interval){r->sink_at, r->sink_at, r->sink_at, false};
        memset(r->v + (int64_t)r->count * s->head_dim_v, 0, s->head_dim_v * sizeof *r->v);
        r->count++;
    }
    if (row_max == -INFINITY) {
        empty_row(s, r, at, d);
        return;
    }
    weights w = {row_max, 0, least, 0, most, 0};
    if (r->sink) {
        w.m = fmax(w.m, r->sink_at);
        w.lo = fmax(w.lo, r->sink_at);
        w.hi = fmax(w.hi, r->sink_at);
    }
    double moved = 0;
    for (int i = 0; i < r->count; i++) {
        if (r->score[i].v == -INFINITY)
            continue;
        const double weight = exp(r->score[i].v - w.m);
        w.sum += weight;
        moved += weight * exponential_error(&r->score[i], w.m, how);
        w.below += exp(r->score[i].lo - w.lo);
        w.above += exp(r->score[i].hi - w.hi);
    }
    const double lse = w.m + log(w.sum), u = how->exact.unit;
    const double scores = fmax(w.hi + log(w.above) - lse, lse - w.lo - log(w.below));
    set(&d->lse, at, lse,
        scores + moved / w.sum + 2 * ((double)r->count + 32) * u + 4 * (1 + how->parts) * u * (fabs(lse) + fabs(w.m)));
    set(&d->row_max, at, row_max, fmax(most - row_max, row_max - least) + 2 * u * fabs(row_max) + 1e-36);
    row_values(s, how, r, &w, at * s->head_dim_v, &d->o);
}

static void one_row(const serving *s, const step *c, const rules *how, const sequence *of, int b, int64_t i, int64_t h,
                    row *r, step_data *d)
{
    const int64_t kv_head = h / (s->heads / s->kv_heads), index = row_index(s, d, of, b, i),
                  at = lse_index(s, d, index, h);
    const double *q = d->q.at + at * s->head_dim;
    point where = {.b = b,
                   .h = (int32_t)h,
                   .q = (int32_t)(of->keys - of->rows + i),
                   .h_kv = (int32_t)kv_head,
                   .q_len = (int32_t)of->rows,
                   .kv_len = (int32_t)of->keys,
                   .row = (int32_t)index};
    r->count = 0;
    r->sink = s->sinks;
    r->sink_at = d->sinks[h];
    for (int64_t kv = 0; !of->masked && kv < of->keys; kv++) {
        if (!pair_allowed(s, c, d, of, b, i, h, kv))
            continue;
        const int64_t entry = of->entry + kv / d->page, slot = kv % d->page;
        const size_t cell = (size_t)((entry * s->kv_heads + kv_head) * d->page + slot);
        const double k_scale = scale_at(&d->k, s->kv_heads, d->page, entry, kv_head, slot);
        double *v = r->v + (int64_t)r->count * s->head_dim_v;
        cache_values(&d->k, d->k.at + cell * d->k.bytes, k_scale, r->k);
        if (s->latent)
            memcpy(v, r->k, s->head_dim_v * sizeof *v);
        else
            cache_values(&d->v, d->v.at + cell * d->v.bytes,
                         scale_at(&d->v, s->kv_heads, d->page, entry, kv_head, slot), v);
        where.kv = (int32_t)kv;
        interval score = product_of(s, q, r->k, how);
        if (s->has_score)
            score = tree_score(&s->score, d->score, &where, score, how->exact, NULL);
        r->score[r->count++] = score;
    }
    expect_row(s, how, r, at, d);
}

void step_expect(const serving *s, const step *c, kernel_kind kind, step_data *d)
{
    const rules how = rules_of(s, kind);
    row r = {.score = calloc((size_t)s->kv_len + 1, sizeof *r.score),
             .k = calloc(s->head_dim, sizeof(double)),
             .v = calloc(((size_t)s->kv_len + 1) * s->head_dim_v, sizeof(double))};
    bool *written = calloc((size_t)d->rows + 1, sizeof *written);
    if (!r.score || !r.k || !r.v || !written)
        abort();
    for (int b = 0; b < c->sequences; b++) {
        const sequence of = sequence_of(s, c, d, b);
        for (int64_t i = 0; of.written && i < of.rows; i++) {
            const int64_t at = row_index(s, d, &of, b, i);
            d->contested[at] = written[at];
            written[at] = true;
            for (int64_t h = 0; h < s->heads; h++)
                one_row(s, c, &how, &of, b, i, h, &r, d);
        }
    }
    for (int64_t i = 0; i < d->rows * s->heads; i++) {
        const int64_t token = i / s->heads, at = lse_index(s, d, token, i % s->heads);
        if (written[token] && !d->contested[token])
            continue;
        /* A row of no sequence is left as it was, which a bound of -1 says. */
        const double bound = written[token] ? INFINITY : -1;
        whole_row(s, at, 0, bound, &d->o);
        set(&d->lse, at, 0, bound);
        set(&d->row_max, at, 0, bound);
    }
    free(written);
    free(r.score);
    free(r.k);
    free(r.v);
}

/* SPDX-License-Identifier: MIT */
/*
 * Attention and its gradients by the definition in attune.h, in float64, and how far a kernel may be from it. The bound
 * is that of an analysis to first order, element by element: what each product, sum, function and rounding to the dtype
 * may add, carried to the results by the magnitudes of what was summed. So what cancels has the bound of its terms, and
 * a score near a kink that of both sides.
 */
#include "random/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct rules {
    precision exact;
    double sum;          /* one rounding of a sum */
    double weight;       /* of P or dS, relative */
    double weight_at;    /* and absolute: what is less is 0 */
    double range;        /* of what is summed */
    double part_at;      /* of a segment's result, beside what is relative */
    double largest;      /* a row with a score past it is not decided: docs/numerics.md, large scores on CUDA */
    attune_dtype factor; /* what q may be rounded to before it is multiplied by k */
    bool segments;
} rules;

static bool is_narrow(attune_dtype dtype)
{
    return dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
}

/* The largest absolute error of one rounding where numbers are small: f16 has few exponents. */
static double smallest_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F16 ? 0x1p-25 : 1e-36;
}

/* Numbers past it are not decided: a kernel may have them as infinite, and NaN in all that is made of them. Some
 * thousand terms below it have a finite sum in f32. */
static double range_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? 1e300 : dtype == ATTUNE_F16 ? 3e4 : 1e34;
}

static rules rules_of(const problem *p, kernel_kind kind)
{
    const bool f64 = p->dtype == ATTUNE_F64;
    rules r = {.exact = {.unit = f64 ? 0x1p-53 : 0x1p-24, .vulkan = kind.backend == ATTUNE_BACKEND_VULKAN}};
    /* CUDA: lg2.approx, of PTX, in kernels over 16-bit keys and values (docs/numerics.md). */
    r.exact.log = r.exact.vulkan                                                  ? 0x1p-20
                  : kind.backend == ATTUNE_BACKEND_CUDA && is_narrow(p->kv_dtype) ? 0x1p-22
                                                                                  : 0;
    r.sum = 2 * r.exact.unit; /* matrix units truncate */
    r.weight_at = f64 ? 0 : 0x1p-126;
    r.range = range_of(f64 ? ATTUNE_F64 : ATTUNE_F32);
    r.largest = kind.backend == ATTUNE_BACKEND_CUDA ? 0x1p22 : INFINITY;
    if (p->has_options && p->options.approximate_tanh == ATTUNE_ON)
        r.exact.tanh = 0x1p-11;
    r.factor = p->dtype;
    r.segments = p->segments > 0;
    /* The CPU multiplies in f32, but its matrix instructions, P as one bf16, or as two where v is f16. Others multiply
     * in the 16 bits of k and v. */
    if (kind.backend == ATTUNE_BACKEND_CPU) {
        r.weight = !kind.matrices ? 0 : p->kv_dtype == ATTUNE_BF16 ? unit_of(ATTUNE_BF16) : 0x1p-17;
        return r;
    }
    if (is_narrow(p->kv_dtype)) {
        r.factor = p->kv_dtype;
        r.weight = unit_of(p->kv_dtype);
        if (p->kv_dtype == ATTUNE_F16)
            r.weight_at = 0x1p-24;
    }
    /* Each segment's result is rounded. */
    if (is_narrow(p->o_dtype) && p->segments) {
        r.weight += 2 * unit_of(p->o_dtype);
        r.part_at = smallest_of(p->o_dtype);
    }
    return r;
}

/* One row: its scores, and whether they are to be believed. */
typedef struct row {
    int64_t b, h, q, group, at; /* group: of k and v; at: the row's number */
    double sink;                /* -inf = none */
    const uint8_t *allowed;
    interval *score;
    derivatives *derivative; /* NULL = forward */
} row;

static double error_of(const interval *s)
{
    return fmax(s->hi - s->v, s->v - s->lo);
}

static interval product_of(const problem *p, const call_data *d, const row *r, int64_t kv, const rules *how)
{
    const double *q = d->q.at + r->at * p->head_dim, *k = d->k.at + (r->group * d->k.size[2] + kv) * p->head_dim;
    const double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)p->head_dim);
    double sum = 0, rounded = 0, magnitude = 0;
    for (uint32_t i = 0; i < p->head_dim; i++) {
        sum += q[i] * k[i];
        magnitude += fabs(q[i] * k[i]);
    }
    /* Kernels that multiply in f32 take q as it is. */
    for (uint32_t i = 0; i < p->head_dim; i++)
        rounded += (how->factor == p->dtype ? q[i] : rounded_to(how->factor, q[i])) * k[i];
    interval s = {sum * scale, fmin(sum, rounded) * scale, fmax(sum, rounded) * scale, false};
    if (!isfinite(s.v))
        return s.lo = s.hi = s.v, s;
    magnitude *= fabs(scale);
    if (s.lo > s.hi)
        s = (interval){s.v, s.hi, s.lo, false};
    double error = magnitude * (p->head_dim + 8) * how->sum;
    if (p->has_options && p->options.prescale_qk == ATTUNE_ON)
        error += magnitude * fmax(unit_of(p->dtype), unit_of(how->factor));
    s.lo -= error;
    s.hi += error;
    s.undecided = how->exact.unit > 1e-12 && fabs(s.v) + error > 1e37;
    return s;
}

static void row_scores(const problem *p, const call *c, const call_data *d, const rules *how, row *r)
{
    point at = {.b = (int32_t)r->b,
                .h = (int32_t)r->h,
                .q = (int32_t)r->q,
                .h_kv = (int32_t)(r->h / (p->heads / p->kv_heads)),
                .q_len = (int32_t)c->q_len,
                .kv_len = (int32_t)c->kv_len};
    for (int64_t kv = 0; kv < c->kv_len; kv++) {
        if (!r->allowed[kv])
            continue;
        interval s = product_of(p, d, r, kv, how);
        at.kv = (int32_t)kv;
        if (p->has_score)
            s = tree_score(&p->score, d->score, &at, s, how->exact, r->derivative ? &r->derivative[kv] : NULL);
        else if (r->derivative)
            r->derivative[kv] = (derivatives){.by_score = {1, 1, 1, false}};
        r->score[kv] = s;
    }
}

static void set(expected *e, int64_t at, double value, double bound)
{
    e->value.at[at] = value;
    e->bound[at] = isnan(bound) ? INFINITY : bound;
}

/* The relative error of exp(s - m) beyond that of s. */
static double exponential_error(const interval *s, double m, const rules *how)
{
    const double u = how->exact.unit * (how->exact.vulkan ? 2 : 1);
    return u * (16 + 4 * fabs(s->v - m) + 3 * (fabs(s->v) + fabs(m)));
}

/* A row's weights: of the scores, and of the least and the most that they may be; sums are of exp(score - the largest).
 */
typedef struct weights {
    double m, sum, lo, below, hi, above;
} weights;

/* How far roundings of scores and exponentials move a row of sum(w v) / sum(w) = o: two bounds, of which the smaller
 * counts. Of w' in the place of w, sum((w' - w) (v - o)) / sum(w'), where weights move little; and with p = w / sum(w),
 * sum((p' - p) (v - o)), where a rounding decides which keys have the row. */
typedef struct movement {
    double few, many;
} movement;

static void add_movement(const rules *how, const interval *s, const weights *w, double distance, movement *moved)
{
    if (s->v == -INFINITY)
        return;
    const double p = exp(s->v - w->m) / w->sum, rounding = exponential_error(s, w->m, how);
    const double most = fmin(1, exp(s->hi - w->lo) / w->below), least = exp(s->lo - w->hi) / w->above;
    moved->few += p * (expm1(error_of(s)) + rounding) * distance;
    moved->many += fmin(1, fmax(most - p, p - least) + 2 * rounding * most) * distance;
}

/* The sink is a key whose v is 0. */
static double moved_by(const call *c, const rules *how, const row *r, const weights *w, const double *v, int64_t stride,
                       double o)
{
    const interval sink = {r->sink, r->sink, r->sink, false};
    movement moved = {0, 0};
    for (int64_t kv = 0; kv < c->kv_len; kv++)
        if (r->allowed[kv])
            add_movement(how, &r->score[kv], w, fabs(v[kv * stride] - o), &moved);
    add_movement(how, &sink, w, fabs(o), &moved);
    moved.few *= exp(w->m - w->lo) * w->sum / w->below;
    return moved.few < moved.many ? moved.few : moved.many;
}

static void row_values(const problem *p, const call *c, call_data *d, const rules *how, const row *r, const weights *w)
{
    const int64_t n = c->kv_len;
    const double unit = unit_of(p->o_dtype), m = w->m, sum = w->sum;
    for (uint32_t i = 0; i < p->head_dim_v; i++) {
        const double *v = d->v.at + r->group * n * p->head_dim_v + i;
        double o = 0, magnitude = 0, least = 0;
        bool nan = false, up = false, down = false, open = false;
        for (int64_t kv = 0; kv < n; kv++) {
            if (!r->allowed[kv])
                continue;
            const double weight = exp(r->score[kv].v - m) / sum, x = v[kv * p->head_dim_v];
            if (!isfinite(x)) {
                /* Zero times infinity is NaN, and so it is where the kernel's weight is 0 by underflow, or was when the
                 * maximum rose. */
                nan |= isnan(x) || r->score[kv].v == -INFINITY;
                open |= weight * sum < 1e-2;
                up |= x > 0;
                down |= x < 0;
                continue;
            }
            o += weight * x;
            magnitude += weight * fabs(x);
            least += how->weight_at * fabs(x) / sum;
        }
        if (nan || (up && down)) {
            set(&d->out_o, r->at * p->head_dim_v + i, NAN, 0);
            continue;
        }
        if (up || down) {
            set(&d->out_o, r->at * p->head_dim_v + i, up ? INFINITY : -INFINITY, open ? INFINITY : 0);
            continue;
        }
        const double moved = moved_by(c, how, r, w, v, p->head_dim_v, o);
        const double terms = 2 * ((double)n + 16 + 8 * segments_of(c)) * how->sum;
        const double bound =
            moved + magnitude * (how->weight + terms) + least + fabs(o) * unit + smallest_of(p->o_dtype) + how->part_at;
        /* A sink alone gives 0 and nothing else. */
        set(&d->out_o, r->at * p->head_dim_v + i, o, magnitude + least > 0 ? bound : 0);
    }
}

static void set_row_max(call_data *d, const row *r, const interval *largest, double unit)
{
    const double m = largest->v;
    set(&d->out_row_max, r->at, m,
        m == -INFINITY ? 0 : fmax(largest->hi - m, m - largest->lo) + 2 * unit * fabs(m) + 1e-36);
}

static void row_forward(const problem *p, const call *c, call_data *d, const rules *how, const row *r)
{
    bool undecided = false, nan = false, infinite = false;
    const interval sink = {r->sink, r->sink, r->sink, false};
    interval largest = {-INFINITY, -INFINITY, -INFINITY, false};
    for (int64_t kv = 0; kv < c->kv_len; kv++) {
        if (!r->allowed[kv])
            continue;
        const interval *s = &r->score[kv];
        undecided |= s->undecided || (isfinite(s->v) && fabs(s->v) > how->largest);
        nan |= isnan(s->v);
        infinite |= s->v == INFINITY;
        largest.v = s->v > largest.v ? s->v : largest.v;
        largest.lo = s->lo > largest.lo ? s->lo : largest.lo;
        largest.hi = s->hi > largest.hi ? s->hi : largest.hi;
    }
    const double u = how->exact.unit;
    const bool sunk = !(sink.v < INFINITY);
    double *o = d->out_o.value.at + r->at * p->head_dim_v, *bound = d->out_o.bound + r->at * p->head_dim_v;
    if (undecided || nan || infinite || sunk) {
        for (uint32_t i = 0; i < p->head_dim_v; i++) {
            o[i] = NAN;
            bound[i] = undecided ? INFINITY : 0;
        }
        set(&d->out_lse, r->at, NAN, undecided ? INFINITY : 0);
        if (undecided || nan || infinite)
            set(&d->out_row_max, r->at, nan ? NAN : INFINITY, undecided || (nan && infinite) ? INFINITY : 0);
        else
            set_row_max(d, r, &largest, u);
        return;
    }
    set_row_max(d, r, &largest, u);
    const double m = fmax(largest.v, sink.v), lo = fmax(largest.lo, sink.v), hi = fmax(largest.hi, sink.v);
    if (m == -INFINITY) {
        for (uint32_t i = 0; i < p->head_dim_v; i++) {
            o[i] = 0;
            bound[i] = 0;
        }
        set(&d->out_lse, r->at, -INFINITY, 0);
        return;
    }
    double sum = 0, moved = 0, below = 0, above = 0;
    for (int64_t kv = 0; kv <= c->kv_len; kv++) {
        const interval *s = kv < c->kv_len ? &r->score[kv] : &sink;
        if ((kv < c->kv_len && !r->allowed[kv]) || s->v == -INFINITY)
            continue;
        const double weight = exp(s->v - m);
        sum += weight;
        moved += weight * exponential_error(s, m, how);
        below += exp(s->lo - lo);
        above += exp(s->hi - hi);
    }
    const double lse = m + log(sum);
    const double scores = fmax(hi + log(above) - lse, lse - lo - log(below));
    set(&d->out_lse, r->at, lse,
        scores + moved / sum + 2 * ((double)c->kv_len + 32) * u + 4 * (1 + segments_of(c)) * u * (fabs(lse) + fabs(m)));
    const weights w = {m, sum, lo, below, hi, above};
    row_values(p, c, d, how, r, &w);
}

static row row_at(const problem *p, const call *c, const call_data *d, int64_t at)
{
    const int64_t b = at / c->q_len / p->heads, h = at / c->q_len % p->heads;
    return (row){.b = b,
                 .h = h,
                 .q = at % c->q_len,
                 .at = at,
                 .group = (d->k.size[0] == 1 ? 0 : b) * p->kv_heads + h / (p->heads / p->kv_heads),
                 .sink = d->sinks.at ? d->sinks.at[h] : -INFINITY,
                 .allowed = d->allowed + at * c->kv_len};
}

void oracle_forward(const problem *p, const call *c, kernel_kind kind, call_data *d)
{
    const rules how = rules_of(p, kind);
    interval *scores = calloc((size_t)c->kv_len, sizeof *scores);
    if (!scores)
        abort();
    for (int64_t i = 0; i < c->batch * p->heads * c->q_len; i++) {
        row r = row_at(p, c, d, i);
        r.score = scores;
        row_scores(p, c, d, &how, &r);
        row_forward(p, c, d, &how, &r);
    }
    free(scores);
}

/* --------------------------------------------------------------------------------------------------------- backward */

static void add(expected *e, int64_t at, double value, double bound)
{
    e->value.at[at] += value;
    e->bound[at] += isnan(bound) ? INFINITY : bound;
}

/* One pair: p, what flows into its score, and how far off each may be. */
typedef struct flow {
    double p, p_error, g, g_error;
} flow;

static void pair_captures(call_data *d, const derivatives *v, const flow *f, bool open, const rules *how)
{
    /* Each segment's sum is rounded to the caller's f32. */
    const double terms = 64 * how->exact.unit + (how->segments ? 0x1p-23 : 0);
    for (int s = 0; s < SYMBOLS && v->open; s++)
        for (int64_t at = 0; at < d->out_d_captures[s].value.count; at++)
            d->out_d_captures[s].bound[at] = INFINITY;
    for (int i = 0; i < v->reads; i++) {
        expected *e = &d->out_d_captures[v->symbol[i]];
        const interval *by = &v->by_element[i];
        const double value = f->g * by->v,
                     error = f->g_error * (fabs(by->v) + error_of(by)) + fabs(f->g) * error_of(by);
        const bool past = !(fabs(value) + error < range_of(ATTUNE_F32));
        /* CUDA cuts off a term's part below 2^-96. */
        const double bound = value == 0 && error == 0 ? 0 : error + terms * fabs(value) + 1e-28;
        add(e, v->index[i], value, open || past || by->undecided ? INFINITY : bound);
    }
}

static void pair_backward(const problem *p, const call *c, call_data *d, const rules *how, const row *r, int64_t kv,
                          const flow *f)
{
    const double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)p->head_dim);
    const derivatives *v = &r->derivative[kv];
    const int64_t key = r->group * c->kv_len + kv;
    const double *q = d->q.at + r->at * p->head_dim, *k = d->k.at + key * p->head_dim,
                 *d_o = d->d_o.at + r->at * p->head_dim_v;
    const double ds = f->g * v->by_score.v;
    const double ds_error =
        f->g_error * (fabs(v->by_score.v) + error_of(&v->by_score)) + fabs(f->g) * error_of(&v->by_score);
    const int64_t rows = c->q_len * (p->heads / p->kv_heads) * (d->k.size[0] == 1 ? c->batch : 1);
    const double few = how->weight + 2 * ((double)c->kv_len + 32) * how->sum,
                 many = how->weight + 2 * ((double)rows + 32) * how->sum;
    /* dS is rounded to f16, which ends at 65,504. */
    const bool past = !(fabs(ds) + ds_error < range_of(p->dtype));
    const bool open = v->by_score.undecided || r->score[kv].undecided || past;
    for (uint32_t i = 0; i < p->head_dim; i++) {
        const double to_q = scale * ds * k[i], to_k = scale * ds * q[i];
        const double least = fabs(scale) * how->weight_at;
        add(&d->out_d_q, r->at * p->head_dim + i, to_q,
            open ? INFINITY : fabs(scale) * ds_error * fabs(k[i]) + few * fabs(to_q) + least * fabs(k[i]));
        add(&d->out_d_k, key * p->head_dim + i, to_k,
            open ? INFINITY : fabs(scale) * ds_error * fabs(q[i]) + many * fabs(to_k) + least * fabs(q[i]));
    }
    for (uint32_t i = 0; i < p->head_dim_v; i++)
        add(&d->out_d_v, key * p->head_dim_v + i, f->p * d_o[i],
            r->score[kv].undecided
                ? INFINITY
                : f->p_error * fabs(d_o[i]) + many * f->p * fabs(d_o[i]) + how->weight_at * fabs(d_o[i]));
    if (p->has_score)
        pair_captures(d, v, f, r->score[kv].undecided, how);
}

/* delta's error is that of its terms. */
static void sink_backward(const call *c, call_data *d, const rules *how, const row *r, double delta, double error)
{
    const interval sink = {r->sink, r->sink, r->sink, false};
    const double lse = d->lse.at[r->at], p = exp(r->sink - lse);
    const double value = -p * delta, p_error = p * exponential_error(&sink, lse, how) + 1e-36;
    const double sums = 2 * ((double)(c->batch * c->q_len) + 32) * how->sum;
    const double bound = p * error + p_error * (fabs(delta) + error) + sums * fabs(value);
    add(&d->out_d_sinks, r->h, value, fabs(value) + bound < how->range ? bound : INFINITY);
}

static bool all_finite(const double *at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!isfinite(at[i]))
            return false;
    return true;
}

static void open_all(expected *e, int64_t at, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        e->bound[at + i] = INFINITY;
}

/* Of a row with NaN or infinity in it or in a key that it sees nothing is decided, and of what it adds to. What it does
 * not see it has no influence on, nor they on it. */
static bool row_open(const problem *p, const call *c, call_data *d, const row *r)
{
    const int64_t keys = r->group * c->kv_len;
    const uint32_t n = p->head_dim, n_v = p->head_dim_v;
    bool finite = isfinite(d->lse.at[r->at]) && all_finite(d->q.at + r->at * n, n) &&
                  all_finite(d->o.at + r->at * n_v, n_v) && all_finite(d->d_o.at + r->at * n_v, n_v);
    for (int64_t kv = 0; kv < c->kv_len && finite; kv++)
        finite = !r->allowed[kv] || (isfinite(r->score[kv].v) && all_finite(d->k.at + (keys + kv) * n, n) &&
                                     all_finite(d->v.at + (keys + kv) * n_v, n_v));
    if (finite)
        return false;
    open_all(&d->out_d_q, r->at * n, n);
    for (int64_t kv = 0; kv < c->kv_len; kv++)
        if (r->allowed[kv]) {
            open_all(&d->out_d_k, (keys + kv) * n, n);
            open_all(&d->out_d_v, (keys + kv) * n_v, n_v);
        }
    if (d->out_d_sinks.bound)
        open_all(&d->out_d_sinks, r->h, 1);
    for (int s = 0; s < SYMBOLS; s++)
        open_all(&d->out_d_captures[s], 0, d->out_d_captures[s].value.count);
    return true;
}

static void row_backward(const problem *p, const call *c, call_data *d, const rules *how, const row *r)
{
    const double lse = d->lse.at[r->at], u = how->exact.unit;
    if (lse == -INFINITY || (c->data == DATA_NONFINITE && row_open(p, c, d, r)))
        return;
    /* Gradients under NaN are specified only for pairs whose p is 0. */
    for (int s = 0; s < SYMBOLS && !isfinite(lse); s++)
        for (int64_t at = 0; at < d->out_d_captures[s].value.count; at++)
            d->out_d_captures[s].bound[at] = INFINITY;
    for (int64_t kv = 0; kv < c->kv_len && !isfinite(lse); kv++)
        if (r->allowed[kv])
            r->score[kv] = (interval){0, 0, 0, true};
    const double *o = d->o.at + r->at * p->head_dim_v, *d_o = d->d_o.at + r->at * p->head_dim_v;
    const double d_lse = c->want_d_lse ? d->d_lse.at[r->at] : 0;
    double delta = -d_lse, magnitude = fabs(d_lse);
    for (uint32_t i = 0; i < p->head_dim_v; i++) {
        delta += o[i] * d_o[i];
        magnitude += fabs(o[i] * d_o[i]);
    }
    const double terms = (p->head_dim_v + 16) * how->sum;
    if (r->sink > -INFINITY)
        sink_backward(c, d, how, r, delta, terms * magnitude + 2 * u * fabs(delta));
    for (int64_t kv = 0; kv < c->kv_len; kv++) {
        const interval *s = &r->score[kv];
        if (!r->allowed[kv] || s->v == -INFINITY)
            continue;
        const double *v = d->v.at + (r->group * c->kv_len + kv) * p->head_dim_v;
        double d_p = 0, d_p_magnitude = 0;
        for (uint32_t i = 0; i < p->head_dim_v; i++) {
            d_p += d_o[i] * v[i];
            d_p_magnitude += fabs(d_o[i] * v[i]);
        }
        flow f = {.p = isfinite(lse) ? exp(s->v - lse) : 0};
        const double t = d_p - delta, t_error = terms * (d_p_magnitude + magnitude) + 2 * u * fabs(t);
        /* exp(s - lse) of the kernel's s and the lse that was given: their roundings are in the exponent. */
        const double most = exp(s->hi - lse);
        f.p_error = fmax(most - f.p, f.p - exp(s->lo - lse)) + most * exponential_error(s, lse, how) + 1e-36;
        f.g = f.p * t;
        f.g_error = f.p * t_error + f.p_error * (fabs(t) + t_error) + 4 * u * fabs(f.g);
        if (!(f.p + f.p_error < range_of(p->kv_dtype) && fabs(f.g) + f.g_error < how->range))
            r->score[kv].undecided = true;
        pair_backward(p, c, d, how, r, kv, &f);
    }
}

/* Rounds sums, as the outputs are. parts_at: what their parts' roundings add. */
static void round_outputs(expected *e, attune_dtype dtype, double parts_at)
{
    const double unit = unit_of(dtype), range = dtype == ATTUNE_F16 ? 65000 : range_of(dtype);
    for (int64_t i = 0; i < e->value.count; i++)
        if (!(fabs(e->value.at[i]) + e->bound[i] < range))
            e->bound[i] = INFINITY;
        else if (e->bound[i] > 0)
            e->bound[i] += fabs(e->value.at[i]) * unit + smallest_of(dtype) + parts_at;
}

void oracle_backward(const problem *p, const call *c, kernel_kind kind, call_data *d)
{
    const rules how = rules_of(p, kind);
    interval *scores = calloc((size_t)c->kv_len, sizeof *scores);
    derivatives *derivative = calloc((size_t)c->kv_len, sizeof *derivative);
    if (!scores || !derivative)
        abort();
    for (int64_t i = 0; i < d->o.count; i++)
        d->o.at[i] = rounded_to(p->o_dtype, d->out_o.value.at[i]);
    for (int64_t i = 0; i < d->lse.count; i++)
        d->lse.at[i] = p->dtype == ATTUNE_F64 ? d->out_lse.value.at[i] : (double)(float)d->out_lse.value.at[i];
    for (int64_t i = 0; i < c->batch * p->heads * c->q_len; i++) {
        row r = row_at(p, c, d, i);
        r.score = scores;
        r.derivative = derivative;
        row_scores(p, c, d, &how, &r);
        row_backward(p, c, d, &how, &r);
    }
    round_outputs(&d->out_d_q, p->dtype, segments_of(c) * how.part_at);
    round_outputs(&d->out_d_k, p->kv_dtype, 0);
    round_outputs(&d->out_d_v, p->kv_dtype, 0);
    round_outputs(&d->out_d_sinks, p->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 0);
    free(scores);
    free(derivative);
}

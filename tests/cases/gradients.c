/* SPDX-License-Identifier: MIT */
#include "cases/gradients.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "expr/gradient.h"

typedef struct computation {
    const attention *a;
    const array *d_lse;
    array q, k, v, d_o; /* in float64 */
    bool naive;
    int64_t batch, heads, q_len, d, kv_heads, kv_len, dv;
    attune__gradient *gradient;
    attune_array captures[2][ATTUNE_EXPR_MAX_SYMBOLS]; /* of mask and score */
    attune__value parameters[2][ATTUNE_EXPR_MAX_SYMBOLS];
    double *sums[ATTUNE_EXPR_MAX_SYMBOLS]; /* by symbol of the score expression */
    double *cancelled[ATTUNE_EXPR_MAX_SYMBOLS];
    double *raw, *s, *d_s, *o, *terms; /* of a row */
    uint8_t *allowed;
    void *scratch;
} computation;

static const double *row_at(const array *t, int64_t b, int64_t h, int64_t row)
{
    const int64_t batch = t->size[0] == 1 ? 0 : b;
    return (const double *)t->data + ((batch * t->size[1] + h) * t->size[2] + row) * t->size[3];
}

/* As a dtype keeps it. */
static double narrow(const computation *c, attune_dtype dtype, double value)
{
    if (!c->naive)
        return value;
    uint64_t storage;
    array one = {.dtype = dtype, .rank = 1, .size = {1}, .data = &storage};
    array_set(&one, 0, value);
    return array_get(&one, 0);
}

/* A sum as float32 keeps it. */
static double single(const computation *c, double value)
{
    return c->naive ? (double)(float)value : value;
}

static bool bind(computation *c, const array *d_o, failure *why)
{
    const attune_expr *exprs[2] = {c->a->mask, c->a->score};
    size_t capacity = 64;
    if (!array_convert(&c->a->q, ATTUNE_F64, &c->q, why) || !array_convert(&c->a->k, ATTUNE_F64, &c->k, why) ||
        !array_convert(&c->a->v, ATTUNE_F64, &c->v, why) || !array_convert(d_o, ATTUNE_F64, &c->d_o, why))
        return false;
    for (int i = 0; i < 2; i++) {
        if (!exprs[i])
            continue;
        if (attune__bindings_resolve(exprs[i], c->a->captures, c->a->capture_count, c->a->parameters,
                                     c->a->parameter_count, c->captures[i], c->parameters[i]) != ATTUNE_OK)
            return failure_set(why, "%s", attune_last_error());
        const size_t size = attune__expr_scratch_size(exprs[i], (size_t)c->kv_len);
        capacity = size > capacity ? size : capacity;
    }
    if (c->a->score) {
        if (attune__gradient_create(c->a->score, &c->gradient) != ATTUNE_OK)
            return failure_set(why, "%s", attune_last_error());
        const size_t size = attune__expr_scratch_size(c->gradient->expr, (size_t)c->kv_len);
        capacity = size > capacity ? size : capacity;
    }
    c->scratch = aligned_alloc(64, (capacity + 63) / 64 * 64);
    c->raw = calloc((size_t)(4 * c->kv_len + c->dv), sizeof *c->raw);
    c->allowed = calloc((size_t)c->kv_len, 1);
    if (!c->scratch || !c->raw || !c->allowed)
        return failure_set(why, "out of memory in the test");
    c->s = c->raw + c->kv_len;
    c->d_s = c->s + c->kv_len;
    c->terms = c->d_s + c->kv_len;
    c->o = c->terms + c->kv_len;
    return true;
}

/* S, mask and softmax of a row: s becomes P. False if the mask empties it. */
static bool forward_row(computation *c, int64_t b, int64_t h, int64_t q, const attune__row *row, double *sink_p)
{
    const double sink = c->a->sinks.data ? array_get(&c->a->sinks, h) : -INFINITY;
    const int64_t kv_h = h / (c->heads / c->kv_heads);
    for (int64_t j = 0; j < c->kv_len; j++) {
        double sum = 0;
        const double *x = row_at(&c->q, b, h, q), *y = row_at(&c->k, b, kv_h, j);
        for (int64_t d = 0; d < c->d; d++)
            sum = single(c, sum + x[d] * y[d]);
        c->raw[j] = c->s[j] = single(c, sum * c->a->scale);
    }
    if (c->a->score)
        attune__expr_score_row_f64(c->a->score, &(attune__bindings){c->captures[1], c->parameters[1]}, row, 0,
                                   (size_t)c->kv_len, c->scratch, c->s);
    memset(c->allowed, 1, (size_t)c->kv_len);
    if (c->a->mask)
        attune__expr_mask_row(c->a->mask, &(attune__bindings){c->captures[0], c->parameters[0]}, row, 0,
                              (size_t)c->kv_len, c->scratch, c->allowed);
    double m = sink, l = 0;
    *sink_p = 0;
    for (int64_t j = 0; j < c->kv_len; j++)
        if (c->allowed[j] && c->s[j] > m)
            m = c->s[j];
    if (m == -INFINITY)
        return false;
    for (int64_t j = 0; j < c->kv_len; j++)
        l = single(c, l + (c->allowed[j] ? single(c, exp(c->s[j] - m)) : 0));
    l = sink == -INFINITY ? l : single(c, l + single(c, exp(sink - m)));
    const double lse = single(c, m + log(l)); /* what forward leaves */
    *sink_p = sink == -INFINITY ? 0 : single(c, exp(single(c, sink - lse)));
    for (int64_t j = 0; j < c->kv_len; j++)
        c->s[j] = c->allowed[j] ? single(c, exp(single(c, c->s[j] - lse))) : 0;
    return true;
}

static void backward_row(computation *c, int64_t b, int64_t h, int64_t q, const gradient_result *r)
{
    const attune__row row = {.b = (int32_t)b,
                             .h = (int32_t)h,
                             .q = (int32_t)q,
                             .h_kv = (int32_t)(h / (c->heads / c->kv_heads)),
                             .q_len = (int32_t)c->q_len,
                             .kv_len = (int32_t)c->kv_len};
    double sink_p;
    if (!forward_row(c, b, h, q, &row, &sink_p))
        return;
    const int64_t kv_h = row.h_kv, kv_b = c->a->k.size[0] == 1 ? 0 : b, keys = (kv_b * c->kv_heads + kv_h) * c->kv_len;
    const double *d_o = row_at(&c->d_o, b, h, q), *query = row_at(&c->q, b, h, q);
    memset(c->o, 0, (size_t)c->dv * sizeof *c->o);
    for (int64_t j = 0; j < c->kv_len; j++) {
        const double p = narrow(c, c->a->v.dtype, c->s[j]), *v = row_at(&c->v, b, kv_h, j);
        for (int64_t d = 0; d < c->dv && c->s[j] != 0; d++)
            c->o[d] = single(c, c->o[d] + p * v[d]);
    }
    /* Delta has another rounding than each d_p, as wherever it is made from O: rows of one key do not cancel exactly.
     */
    double delta = 0, delta_terms = 0, squares = 0, top = 0;
    for (int64_t d = 0; d < c->dv; d++) {
        delta += narrow(c, attention_o_dtype(c->a), c->o[d]) * d_o[d];
        const double product = c->o[d] * d_o[d];
        delta_terms += fabs(product);
        squares += product * product;
    }
    /* Where the plain computation rounds a row's largest weight to 1, its O is that key's V and has no rounding.
     * Another one's has, of each element, and delta is their sum: three times what it scatters by. */
    const double unit = reference_epsilon(attention_rule_dtype(c->a));
    for (int64_t j = 0; j < c->kv_len; j++)
        top = fmax(top, c->s[j]);
    if (top > 1 - unit)
        delta_terms += sqrt(3 * squares) * unit / FLT_EPSILON;
    if (c->d_lse)
        delta -= array_get(c->d_lse, (b * c->heads + h) * c->q_len + q);
    delta = single(c, delta);
    if (r->d_sinks)
        r->d_sinks[h] = single(c, r->d_sinks[h] - sink_p * delta);
    if (r->d_sinks && r->sinks_moved) {
        const double d_lse = c->d_lse ? fabs(array_get(c->d_lse, (b * c->heads + h) * c->q_len + q)) : 0;
        const double moved =
            2 * sink_p *
            (unit * sqrt(3 * squares) + (2 + fabs(log(sink_p))) * (double)FLT_EPSILON * (delta_terms + d_lse));
        r->sinks_moved[h] = sqrt(r->sinks_moved[h] * r->sinks_moved[h] + (sink_p > 0 ? moved * moved : 0));
    }
    for (int64_t j = 0; j < c->kv_len; j++) {
        const double p = narrow(c, c->a->v.dtype, c->s[j]), *v = row_at(&c->v, b, kv_h, j);
        double d_p = 0, terms = delta_terms, *d_v = &r->d_v[(keys + j) * c->dv];
        for (int64_t d = 0; d < c->dv && c->s[j] != 0; d++) {
            d_p = single(c, d_p + d_o[d] * v[d]);
            terms += fabs(d_o[d] * v[d]);
            d_v[d] = single(c, d_v[d] + p * d_o[d]);
        }
        c->d_s[j] = c->s[j] == 0 ? 0 : single(c, c->s[j] * (d_p - delta));
        c->terms[j] = c->s[j] == 0 ? 0 : c->s[j] * terms;
    }
    if (c->gradient && r->cancelled[0])
        attune__gradient_row_f64(c->gradient, &(attune__bindings){c->captures[1], c->parameters[1]}, &row, 0,
                                 (size_t)c->kv_len, c->scratch, c->raw, c->terms, c->cancelled);
    if (c->gradient)
        attune__gradient_row_f64(c->gradient, &(attune__bindings){c->captures[1], c->parameters[1]}, &row, 0,
                                 (size_t)c->kv_len, c->scratch, c->raw, c->d_s, c->sums);
    for (int64_t j = 0; j < c->kv_len; j++) {
        const double d_s = narrow(c, c->a->k.dtype, c->d_s[j]), *key = row_at(&c->k, b, kv_h, j);
        double *d_q = &r->d_q[((b * c->heads + h) * c->q_len + q) * c->d], *d_k = &r->d_k[(keys + j) * c->d];
        for (int64_t d = 0; d < c->d && d_s != 0; d++) {
            d_q[d] = single(c, d_q[d] + d_s * key[d]);
            d_k[d] = single(c, d_k[d] + d_s * query[d]);
        }
        for (int64_t d = 0; d < c->d && r->cancelled[0] && c->terms[j] != 0; d++) {
            const double terms = fabs(c->terms[j] * c->a->scale);
            r->cancelled[0][d_q - r->d_q + d] += terms * fabs(key[d]);
            r->cancelled[1][d_k - r->d_k + d] += terms * fabs(query[d]);
        }
    }
}

bool gradients_compute(const attention *a, const array *d_o, const array *d_lse, reference_precision precision,
                       const gradient_result *result, failure *why)
{
    computation *c = calloc(1, sizeof *c);
    if (!c)
        return failure_set(why, "out of memory in the test");
    *c = (computation){.a = a,

                       .d_lse = d_lse,
                       .naive = precision == REFERENCE_NAIVE,
                       .batch = a->q.size[0],
                       .heads = a->q.size[1],
                       .q_len = a->q.size[2],
                       .d = a->q.size[3],
                       .kv_heads = a->k.size[1],
                       .kv_len = a->k.size[2],
                       .dv = a->v.size[3]};
    const int64_t queries = array_count(&a->q), keys = array_count(&a->k), values = array_count(&a->v);
    memset(result->d_q, 0, (size_t)queries * sizeof(double));
    memset(result->d_k, 0, (size_t)keys * sizeof(double));
    memset(result->d_v, 0, (size_t)values * sizeof(double));
    for (int64_t h = 0; result->d_sinks && h < c->heads; h++) {
        result->d_sinks[h] = 0;
        if (result->sinks_moved)
            result->sinks_moved[h] = 0;
    }
    for (uint32_t i = 0; i < a->capture_count; i++) {
        if (!result->d_captures[i])
            continue;
        memset(result->d_captures[i], 0, (size_t)attention_capture_elements(a, 1u << i) * sizeof(double));
        for (uint32_t s = 0; a->score && s < a->score->symbol_count; s++)
            if (!strcmp(a->score->symbols[s].name, a->captures[i].name)) {
                c->sums[s] = result->d_captures[i];
                c->cancelled[s] = result->cancelled[2 + i];
            }
    }
    bool ok = bind(c, d_o, why);
    for (int64_t b = 0; ok && b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t q = 0; q < c->q_len; q++)
                backward_row(c, b, h, q, result);
    for (int64_t i = 0; ok && i < queries; i++)
        result->d_q[i] = narrow(c, a->q.dtype, result->d_q[i] * a->scale);
    for (int64_t i = 0; ok && i < keys; i++)
        result->d_k[i] = narrow(c, a->k.dtype, result->d_k[i] * a->scale);
    for (int64_t i = 0; ok && i < values; i++)
        result->d_v[i] = narrow(c, a->v.dtype, result->d_v[i]);
    attune__gradient_destroy(c->gradient);
    array_free(&c->q);
    array_free(&c->k);
    array_free(&c->v);
    array_free(&c->d_o);
    free(c->scratch);
    free(c->raw);
    free(c->allowed);
    free(c);
    return ok;
}

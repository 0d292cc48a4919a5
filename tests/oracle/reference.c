/* SPDX-License-Identifier: MIT */
/* Attention by the definition, row by row, and the error rule. Plain on
 * purpose: this is what everything else is held against. */
#include "tests/oracle/reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounds to a dtype's precision. */
static double rounded(attune_dtype dtype, double value)
{
    uint64_t storage;
    array one = {.dtype = dtype, .rank = 1, .size = {1}, .data = &storage};
    array_set(&one, 0, value);
    return array_get(&one, 0);
}

attune_dtype attention_o_dtype(const attention *a)
{
    return a->o_dtype ? a->o_dtype : a->q.dtype;
}

attune_dtype attention_rule_dtype(const attention *a)
{
    const attune_dtype dtypes[] = {a->k.dtype, a->v.dtype, attention_o_dtype(a)};
    attune_dtype coarsest = dtypes[0];
    for (size_t i = 1; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (reference_epsilon(dtypes[i]) > reference_epsilon(coarsest))
            coarsest = dtypes[i];
    return coarsest;
}

typedef struct shape {
    int64_t batch, heads, q_len, d, kv_heads, kv_len, dv;
} shape;

static bool check_shape(const attention *a, shape *s, failure *why)
{
    if (a->q.rank != 4 || a->k.rank != 4 || a->v.rank != 4)
        return failure_set(why,
                           "q, k and v have ranks %u, %u and %u, expected 4: "
                           "batch, heads, length, head_dim",
                           a->q.rank, a->k.rank, a->v.rank);
    *s = (shape){a->q.size[0], a->q.size[1], a->q.size[2], a->q.size[3], a->k.size[1], a->k.size[2], a->v.size[3]};
    if (a->k.dtype != a->v.dtype)
        return failure_set(why, "k and v are %s and %s, expected one dtype", attune_dtype_string(a->k.dtype),
                           attune_dtype_string(a->v.dtype));
    if (a->k.size[3] != s->d)
        return failure_set(why, "k has head_dim %lld, q has %lld", (long long)a->k.size[3], (long long)s->d);
    if (s->heads % s->kv_heads)
        return failure_set(why, "k has %lld heads, which do not divide the %lld of q", (long long)s->kv_heads,
                           (long long)s->heads);
    if (a->k.size[0] != s->batch && a->k.size[0] != 1)
        return failure_set(why, "k has batch %lld, q has %lld: expected the same or 1", (long long)a->k.size[0],
                           (long long)s->batch);
    if (memcmp(a->k.size, a->v.size, 3 * sizeof a->k.size[0]))
        return failure_set(why, "v is [%lld, %lld, %lld], k is [%lld, %lld, %lld]: expected the same",
                           (long long)a->v.size[0], (long long)a->v.size[1], (long long)a->v.size[2],
                           (long long)a->k.size[0], (long long)a->k.size[1], (long long)a->k.size[2]);
    return true;
}

/* The keys and values of one batch and head in float64, decoded once for all
 * rows that read them, and storage for a row. */
typedef struct plane {
    int64_t b, h; /* of k; -1 = none yet */
    double *k, *v, *q, *score, *allowed, *o;
    float *o_plain;
} plane;

static bool plane_create(const shape *s, plane *p, failure *why)
{
    size_t count = (size_t)(s->kv_len * (s->d + s->dv + 2) + s->d + 2 * s->dv);
    double *fixture = calloc(count, sizeof *fixture);
    if (!fixture)
        return failure_set(why, "out of memory: %zu bytes for the reference", count * sizeof *fixture);
    *p = (plane){.b = -1, .h = -1, .k = fixture};
    p->v = p->k + s->kv_len * s->d;
    p->score = p->v + s->kv_len * s->dv;
    p->allowed = p->score + s->kv_len;
    p->q = p->allowed + s->kv_len;
    p->o = p->q + s->d;
    p->o_plain = (float *)(p->o + s->dv);
    return true;
}

static void plane_load(const attention *a, const shape *s, bool naive, const reference_row *row, plane *p)
{
    const int64_t b = a->k.size[0] == 1 ? 0 : row->b, h = row->h / (s->heads / s->kv_heads);
    const int64_t q = ((row->b * s->heads + row->h) * s->q_len + row->q) * s->d;
    for (int64_t i = 0; i < s->d; i++)
        p->q[i] = naive ? rounded(a->k.dtype, array_get(&a->q, q + i)) : array_get(&a->q, q + i);
    if (p->b == b && p->h == h)
        return;
    const int64_t first = (b * s->kv_heads + h) * s->kv_len;
    for (int64_t i = 0; i < s->kv_len * s->d; i++)
        p->k[i] = array_get(&a->k, first * s->d + i);
    for (int64_t i = 0; i < s->kv_len * s->dv; i++)
        p->v[i] = array_get(&a->v, first * s->dv + i);
    p->b = b;
    p->h = h;
}

static double dot(const double *x, const double *y, int64_t count, bool naive)
{
    if (naive) {
        float sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += (float)x[i] * (float)y[i];
        return (double)sum;
    }
    double sum[4] = {0};
    for (int64_t i = 0; i < count; i++)
        sum[i % 4] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The scaled products of a row. */
static void row_products(const attention *a, const shape *s, bool naive, const plane *p, double *score)
{
    for (int64_t kv = 0; kv < s->kv_len; kv++) {
        double product = dot(p->q, p->k + kv * s->d, s->d, naive);
        score[kv] = naive ? (double)((float)product * (float)a->scale) : product * a->scale;
    }
}

/* An expression along a row, in place of the scaled products. */
static bool row_evaluate(const attention *a, const shape *s, bool naive, const reference_row *row,
                         const attune_expr *expr, double *values, failure *why)
{
    const attune_point point = {
        .b = (int32_t)(a->b0 + row->b),
        .h = (int32_t)row->h,
        .q = (int32_t)(a->q0 + row->q),
        .h_kv = (int32_t)(row->h / (s->heads / s->kv_heads)),
        .q_len = (int32_t)s->q_len,
        .kv_len = (int32_t)s->kv_len,
    };
    return attune_expr_evaluate_row(expr, naive ? ATTUNE_F32 : ATTUNE_F64, &point, (size_t)s->kv_len, a->captures,
                                    a->capture_count, a->parameters, a->parameter_count, values) == ATTUNE_OK ||
           failure_set(why, "%s", attune_last_error());
}

/* The scores of a row, after the score expression, and which pairs the mask
 * allows. */
static bool row_scores(const attention *a, const shape *s, bool naive, const reference_row *row, plane *p, failure *why)
{
    row_products(a, s, naive, p, p->score);
    for (int64_t kv = 0; kv < s->kv_len; kv++)
        p->allowed[kv] = 1;
    if ((a->score && !row_evaluate(a, s, naive, row, a->score, p->score, why)) ||
        (a->mask && !row_evaluate(a, s, naive, row, a->mask, p->allowed, why)))
        return false;
    for (int64_t kv = 0; a->seen && kv < s->kv_len; kv++)
        p->allowed[kv] = a->seen[row->q * s->kv_len + kv] ? p->allowed[kv] : 0;
    return true;
}

/* Softmax and P V of one row. Forbidden pairs take no part: their v may be
 * anything. */
static void row_output(const attention *a, const shape *s, bool naive, int64_t h, plane *p, double *o, double *lse,
                       double *row_max)
{
    const double sink = a->sinks.data ? array_get(&a->sinks, h) : -INFINITY;
    const attune_dtype o_dtype = attention_o_dtype(a);
    double m = -INFINITY, sum = 0;
    float plain_sum = 0;
    bool nan = false;
    for (int64_t kv = 0; kv < s->kv_len; kv++)
        if (p->allowed[kv] != 0) {
            nan |= isnan(p->score[kv]);
            m = p->score[kv] > m ? p->score[kv] : m;
        }
    m = nan ? NAN : m;
    *row_max = naive ? (double)(float)m : m;
    /* A sink is a key with v = 0. */
    m = sink > m || isnan(sink) ? sink : m;
    memset(p->o, 0, (size_t)s->dv * sizeof *p->o);
    memset(p->o_plain, 0, (size_t)s->dv * sizeof *p->o_plain);
    for (int64_t kv = 0; kv < s->kv_len; kv++) {
        if (p->allowed[kv] == 0)
            continue;
        /* A row of nothing but -inf has no weights: exp(-inf - -inf) would be NaN.
         */
        double weight = m == -INFINITY ? 0 : naive ? (double)expf((float)(p->score[kv] - m)) : exp(p->score[kv] - m);
        const double *v = p->v + kv * s->dv;
        sum += weight;
        plain_sum += (float)weight;
        if (naive) {
            float rounded_weight = (float)rounded(a->v.dtype, weight);
            for (int64_t i = 0; i < s->dv; i++)
                p->o_plain[i] += rounded_weight * (float)v[i];
        } else {
            for (int64_t i = 0; i < s->dv; i++)
                p->o[i] += weight * v[i];
        }
    }
    if (sink != -INFINITY) {
        const double weight = naive ? (double)expf((float)(sink - m)) : exp(sink - m);
        sum += weight;
        plain_sum += (float)weight;
    }
    if (naive)
        sum = (double)plain_sum;
    for (int64_t i = 0; i < s->dv; i++) {
        double value = naive ? (double)p->o_plain[i] : p->o[i];
        /* A weight of zero times an infinite v is NaN; a row without weights is 0
         * whatever its v. */
        value = sum == 0 ? 0 : value / sum;
        o[i] = naive ? rounded(o_dtype, value) : value;
    }
    double l = sum == 0 ? -INFINITY : m + (naive ? (double)logf((float)sum) : log(sum));
    *lse = naive ? (double)(float)l : l;
}

/* By what O moves, at most, where a key's weight changes by `change` of the sum. */
static void key_moved(const shape *s, const plane *p, int64_t kv, const double *o, double change, double *moved)
{
    for (int64_t i = 0; i < s->dv; i++) {
        const double distance = fabs(p->v[kv * s->dv + i] - o[i]);
        moved[i] += isfinite(distance) ? change * distance : 0;
    }
}

/* A score's rounding changes its weight by as much, relatively, and O by that share of the key's distance from it. Both
 * references may round two competing keys the same way by luck; a kernel whose sums have another order does not. In 16
 * bits the weights' own rounding is far more; the naive computation has the largest as 1, without any, and a kernel
 * that takes exponentials against an earlier maximum has not. */
static void row_moved(const shape *s, const plane *p, attune_dtype dtype, const double *o, double lse, double largest,
                      double *moved)
{
    const bool coarse = dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
    memset(moved, 0, (size_t)s->dv * sizeof *moved);
    if (!isfinite(lse))
        return;
    for (int64_t kv = 0; kv < s->kv_len; kv++) {
        const double score = p->score[kv];
        if (p->allowed[kv] == 0 || !isfinite(score))
            continue;
        if (!coarse) {
            key_moved(s, p, kv, o, exp(score - lse) * fabs(score) * reference_epsilon(ATTUNE_F32), moved);
        } else if (score == largest) {
            key_moved(s, p, kv, o, exp(score - lse) * reference_epsilon(dtype), moved);
            return;
        }
    }
}

bool reference_compute(const attention *a, reference_precision precision, const reference_row *rows, int64_t count,
                       const reference_result *result, failure *why)
{
    shape s = {0};
    plane p = {0};
    if (!check_shape(a, &s, why) || !plane_create(&s, &p, why))
        return false;
    if (!rows)
        count = s.batch * s.heads * s.q_len;
    const bool naive = precision == REFERENCE_NAIVE;
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i++) {
        const reference_row row =
            rows ? rows[i] : (reference_row){i / (s.heads * s.q_len), i / s.q_len % s.heads, i % s.q_len};
        plane_load(a, &s, naive, &row, &p);
        ok = row_scores(a, &s, naive, &row, &p, why);
        if (ok)
            row_output(a, &s, naive, row.h, &p, result->o + i * s.dv, &result->lse[i], &result->row_max[i]);
        if (ok && result->moved && !naive)
            row_moved(&s, &p, a->v.dtype, result->o + i * s.dv, result->lse[i], result->row_max[i],
                      result->moved + i * s.dv);
    }
    free(p.k);
    return ok;
}

/* The largest relative error of one rounding. */
double reference_epsilon(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? 0x1p-53 : dtype == ATTUNE_F32 ? 0x1p-24 : dtype == ATTUNE_F16 ? 0x1p-11 : 0x1p-8;
}

/* One rounding of a number below the normal ones of f16. Those of other types are too small to matter. */
static double least_rounding(const attention *a)
{
    const bool f16 = a->q.dtype == ATTUNE_F16 || a->k.dtype == ATTUNE_F16 || a->v.dtype == ATTUNE_F16 ||
                     attention_o_dtype(a) == ATTUNE_F16;
    return f16 ? 0x1p-25 : 0;
}

/* Twice the largest ((x + 0.3) - 0.3) - x in the output's precision: a rounding or two of an output, as the tests of
 * FlashAttention-4 allow. Over few values that can be 0 by luck: it is never less than one rounding of the largest. */
static double absolute_term(attune_dtype dtype, int64_t count, const double *oracle)
{
    double largest = 0, magnitude = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(oracle[i]))
            continue;
        double x = rounded(dtype, oracle[i]);
        double moved = rounded(dtype, rounded(dtype, x + 0.3) - rounded(dtype, 0.3));
        largest = fmax(largest, fabs(moved - x));
        magnitude = fmax(magnitude, fabs(oracle[i]));
    }
    return fmax(2 * largest, reference_epsilon(dtype) * magnitude);
}

/* NaN and infinity are where the oracle has them; a zero that the naive computation gives too is that of a masked
 * row, which no rounding moves. */
static bool same_pattern(double got, double oracle, double naive)
{
    if (isnan(got) || isnan(oracle))
        return isnan(got) && isnan(oracle);
    if (isinf(got) || isinf(oracle) || (oracle == 0 && naive == 0))
        return got == oracle;
    return true;
}

/* By how much a kernel's mean error may exceed the naive one in 16 bits. */
#define MEAN_FACTOR 1.1

static bool within(const reference_error *error)
{
    return !error->pattern_errors && error->max <= error->bound_max && error->mean <= error->bound_mean;
}

void reference_compare(attune_dtype dtype, int64_t count, const double *got, const double *oracle, const double *naive,
                       reference_error *error)
{
    *error = (reference_error){0};
    double largest = 0, magnitude = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!same_pattern(got[i], oracle[i], naive[i])) {
            if (!error->pattern_errors++)
                error->worst = i;
            continue;
        }
        if (!isfinite(oracle[i]))
            continue;
        finite++;
        double off = fabs(got[i] - oracle[i]), plain = fabs(naive[i] - oracle[i]);
        error->mean += off;
        magnitude += fabs(oracle[i]);
        largest = fabs(oracle[i]) > largest ? fabs(oracle[i]) : largest;
        if (isfinite(plain)) {
            error->naive_mean += plain;
            error->naive_max = plain > error->naive_max ? plain : error->naive_max;
        }
        if (off > error->max) {
            error->max = off;
            if (!error->pattern_errors)
                error->worst = i;
        }
    }
    if (finite) {
        error->mean /= (double)finite;
        error->naive_mean /= (double)finite;
        magnitude /= (double)finite;
    }
    if (dtype == ATTUNE_F64) {
        error->bound_max = error->bound_mean = 1e-12 * (1 + largest);
    } else {
        const bool f32 = dtype == ATTUNE_F32;
        /* The floor of the mean: one part in 64 of a rounding, so that a naive
         * result that happens to be exact does not ask for an exact one. */
        error->bound_max = (f32 ? 10 : 2) * error->naive_max + absolute_term(dtype, count, oracle);
        error->bound_mean =
            (f32 ? 10 : MEAN_FACTOR) * error->naive_mean + (f32 ? 1 : 1.0 / 64) * reference_epsilon(dtype) * magnitude;
    }
    error->pass = within(error);
}

void reference_allow(reference_error *error, double more_max, double more_mean)
{
    error->bound_max += more_max;
    error->bound_mean += more_mean;
    error->pass = within(error);
}

/* By how much roundings of the largest weights raise the mean: one draw a row, of half the largest on average, and
 * `scatter`, three times what the rows' mean scatters by. In a row it adds to the other roundings as independent ones
 * do; rows differ far too much in both for their means to be added so. */
static double drawn_weights(int64_t rows, int64_t columns, const reference_result *oracle,
                            const reference_result *naive, double scatter)
{
    double more = 0;
    for (int64_t i = 0; i < rows; i++) {
        double drawn = scatter, plain = 0;
        for (int64_t k = i * columns; k < (i + 1) * columns; k++) {
            const double off = fabs(naive->o[k] - oracle->o[k]);
            drawn += oracle->moved[k] / 2;
            plain += isfinite(off) ? MEAN_FACTOR * off : 0;
        }
        more += hypot(plain, drawn) - plain;
    }
    return more / fmax(1, (double)(rows * columns));
}

/* By what the means of two computations scatter whose elements of a row share the roundings of P: each row is one draw
 * of both, which scatters by its mean over the root of 3 at most, as a single rounding does. Three times that. */
static double scatter_of_rows(int64_t rows, int64_t columns, const reference_result *oracle,
                              const reference_result *naive)
{
    double squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        double plain = 0;
        for (int64_t k = i * columns; k < (i + 1) * columns; k++) {
            const double off = fabs(naive->o[k] - oracle->o[k]);
            plain += isfinite(off) ? off : 0;
        }
        squares += plain * plain;
    }
    return 3 * sqrt(squares * 2 / 3) / fmax(1, (double)(rows * columns));
}

void reference_compare_o(attune_dtype dtype, attune_dtype o_dtype, int64_t rows, int64_t columns, const double *got,
                         const reference_result *oracle, const reference_result *naive, reference_error *error)
{
    reference_compare(dtype, rows * columns, got, oracle->o, naive->o, error);
    if (!oracle->moved || dtype == ATTUNE_F64)
        return;
    double most = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        double row = 0;
        for (int64_t k = 0; k < columns; k++) {
            most = fmax(most, oracle->moved[i * columns + k]);
            row += oracle->moved[i * columns + k];
        }
        squares += row * row;
    }
    if (dtype == ATTUNE_F32)
        error->bound_max += most;
    else
        error->bound_mean +=
            drawn_weights(rows, columns, oracle, naive, 3 * sqrt(squares / 12) / fmax(1, (double)rows));
    if (dtype != ATTUNE_F32 && o_dtype == ATTUNE_F32)
        error->bound_mean += scatter_of_rows(rows, columns, oracle, naive);
    error->pass = within(error);
}

/* -------------------------------------------------------------------------------------------------------- gradients */

/* A read of a capture: where, and by what the score changes with it. */
typedef struct capture_read {
    uint32_t capture, rank;
    attune_expr *index[ATTUNE_MAX_RANK], *factor;
} capture_read;

/* The derivatives of a score expression, each an expression of its own; slope NULL = 1. */
typedef struct derivatives {
    attune_expr *slope;
    capture_read *reads;
    uint32_t count;
} derivatives;

static void derivatives_free(derivatives *d)
{
    attune_expr_destroy(d->slope);
    for (uint32_t i = 0; i < d->count; i++) {
        for (uint32_t j = 0; j < ATTUNE_MAX_RANK; j++)
            attune_expr_destroy(d->reads[i].index[j]);
        attune_expr_destroy(d->reads[i].factor);
    }
    free(d->reads);
}

static bool parse_again(attune_instance *instance, const attention *a, const char *text, attune_expr **expr,
                        failure *why)
{
    attune_symbol symbols[ATTUNE_EXPR_MAX_SYMBOLS];
    const uint32_t count = attune_expr_symbol_count(a->score);
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++)
        status = attune_expr_symbol_get(a->score, i, &symbols[i]);
    if (status == ATTUNE_OK)
        status = attune_expr_create(instance, ATTUNE_EXPR_SCORE, text, symbols, count, expr);
    return status == ATTUNE_OK || failure_set(why, "a derivative: %s", attune_last_error());
}

/* "name[i, j] = factor"; indices may hold brackets. */
static bool parse_read(attune_instance *instance, const attention *a, char *line, char *factor, capture_read *read,
                       failure *why)
{
    char *index = strchr(line, '[');
    *index++ = '\0';
    while (read->capture < a->capture_count && strcmp(a->captures[read->capture].name, line) != 0)
        read->capture++;
    int depth = 0;
    for (char *c = index; depth >= 0; c++) {
        depth += (*c == '[' || *c == '(') - (*c == ']' || *c == ')');
        if (depth < 0 || (depth == 0 && *c == ',')) {
            *c = '\0';
            if (!parse_again(instance, a, index, &read->index[read->rank++], why))
                return false;
            index = c + 1;
        }
    }
    return parse_again(instance, a, factor, &read->factor, why);
}

/* From their text, a line each. */
static bool derivatives_parse(attune_instance *instance, const attention *a, char *text, derivatives *d, failure *why)
{
    uint32_t lines = 0;
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    /* The first line is of the score, so that one of these at least is spare. */
    d->reads = calloc(lines + 1, sizeof *d->reads);
    if (!d->reads)
        return failure_set(why, "out of memory");
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n');
        *next++ = '\0';
        char *value = strstr(line, " = ");
        *value = '\0';
        value += 3;
        line += 2; /* "d " */
        const bool ok = strcmp(line, "score") != 0 ? parse_read(instance, a, line, value, &d->reads[d->count++], why)
                                                   : parse_again(instance, a, value, &d->slope, why);
        if (!ok)
            return false;
    }
    return true;
}

static bool derivatives_make(attune_instance *instance, const attention *a, derivatives *d, failure *why)
{
    size_t size = 0;
    if (!a->score)
        return true;
    if (attune_expr_print(a->score, ATTUNE_EXPR_GRADIENT, NULL, 0, &size) != ATTUNE_OK)
        return failure_set(why, "%s", attune_last_error());
    char *text = malloc(size);
    if (!text)
        return failure_set(why, "out of memory");
    const bool ok = attune_expr_print(a->score, ATTUNE_EXPR_GRADIENT, text, size, NULL) == ATTUNE_OK &&
                    derivatives_parse(instance, a, text, d, why);
    free(text);
    return ok;
}

/* The terms of each element of a gradient: their sum and that of their squares. */
typedef struct element_sums {
    double *sum, *square;
} element_sums;

/* State of the sums over rows, beside a plane's. Of each element: the squares of what rows leave, summed. */
typedef struct gradient_sums {
    const attention *a;
    const shape *s;
    const array *d_o, *d_lse;
    plane p;
    derivatives d;
    double *raw, *slope, *rounding, *d_s, *index[ATTUNE_MAX_RANK], *o, *d_q; /* of a row */
    element_sums of_q, of_k, of_v;                                           /* of_q: of a row */
    double *rows;                                                            /* that see each key */
    double *d_k, *d_v, *d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    double *row[ATTUNE_EXPR_MAX_SYMBOLS]; /* what a row leaves in d_captures; else 0 */
} gradient_sums;

/* Evaluates a derivative along the row, at its scaled products. */
static bool derive(gradient_sums *g, const reference_row *row, const attune_expr *expr, double *values, failure *why)
{
    memcpy(values, g->raw, (size_t)g->s->kv_len * sizeof *values);
    return row_evaluate(g->a, g->s, false, row, expr, values, why);
}

static double finite_magnitude(double x)
{
    return isfinite(x) ? fabs(x) : 0;
}

static void add_term(element_sums *e, int64_t at, double term)
{
    if (!isfinite(term))
        return;
    e->sum[at] += term;
    e->square[at] += term * term;
}

/* Three times the root of the sum of squares of the roundings of n additions, each up to `single` of its partial sum.
 * On average over all orders the square of the t-th of these is t / n sum x^2 + (t / n)^2 (sum x)^2. */
static double sum_rounding(const element_sums *e, int64_t at, double n, double single)
{
    return 3 * single * sqrt(n * (e->square[at] / 2 + e->sum[at] * e->sum[at] / 3));
}

static double single_of(const attention *a)
{
    return reference_epsilon(attention_rule_dtype(a) == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32);
}

static void row_roundings(gradient_sums *g, const reference_row *row, double lse)
{
    const shape *s = g->s;
    const attune_dtype dtype = attention_rule_dtype(g->a);
    const double unit = reference_epsilon(dtype), least = least_rounding(g->a), single = single_of(g->a);
    const int64_t place = (row->b * s->heads + row->h) * s->q_len + row->q;
    const int64_t head = (g->p.b * s->kv_heads + g->p.h) * s->kv_len;
    const double d_lse = g->d_lse ? array_get(g->d_lse, place) : 0;
    double delta = fabs(d_lse), exact = -d_lse, squares = 0;
    for (int64_t i = 0; i < s->dv; i++) {
        const double product = g->o[i] * array_get(g->d_o, place * s->dv + i);
        delta += fabs(product);
        exact += product;
        const double rounding = fmax(unit * fabs(g->o[i]), least) * array_get(g->d_o, place * s->dv + i);
        squares += rounding * rounding;
    }
    for (int64_t kv = 0; kv < s->kv_len; kv++) {
        const double weight = g->p.allowed[kv] != 0 ? exp(g->p.score[kv] - lse) : 0;
        /* exp(s - lse) has the roundings of both in its exponent. */
        const double moved = (2 + fabs(g->p.score[kv])) * single;
        double terms = delta, d_p = 0;
        for (int64_t i = 0; i < s->dv && weight != 0; i++) {
            const double d_o = array_get(g->d_o, place * s->dv + i);
            const double rounding = finite_magnitude((2 * (unit + moved) * weight + least) * d_o);
            terms += fabs(d_o * g->p.v[kv * s->dv + i]);
            d_p += d_o * g->p.v[kv * s->dv + i];
            g->d_v[(head + kv) * s->dv + i] += rounding * rounding;
            add_term(&g->of_v, (head + kv) * s->dv + i, weight * d_o);
        }
        g->d_s[kv] = weight * (d_p - exact);
        g->rows[head + kv] += weight != 0;
        g->rounding[kv] = weight == 0 ? 0 : 2 * weight * (sqrt(3 * squares) + moved * terms) + least;
    }
}

/* The element that a read has at each key, in row-major order; -1 = none. In place of the first index. */
static bool read_places(gradient_sums *g, const reference_row *row, const capture_read *read, failure *why)
{
    const int64_t *size = g->a->captures[read->capture].array.size;
    for (uint32_t j = 0; j < read->rank; j++)
        if (!derive(g, row, read->index[j], g->index[j], why))
            return false;
    for (int64_t kv = 0; kv < g->s->kv_len; kv++) {
        double place = 0;
        for (uint32_t j = 0; j < read->rank && place >= 0; j++) {
            const double at = g->index[j][kv];
            place = at >= 0 && at < (double)size[j] ? place * (double)size[j] + at : -1;
        }
        g->index[0][kv] = place;
    }
    return true;
}

/* A row's pairs share the rounding of delta: what they leave in one element adds up. */
static bool row_read(gradient_sums *g, const reference_row *row, const capture_read *read, failure *why)
{
    double *sums = g->row[read->capture], *squares = g->d_captures[read->capture];
    if (!read_places(g, row, read, why) || !derive(g, row, read->factor, g->slope, why))
        return false;
    for (int64_t kv = 0; kv < g->s->kv_len; kv++)
        if (g->index[0][kv] >= 0)
            sums[(int64_t)g->index[0][kv]] += finite_magnitude(g->rounding[kv] * g->slope[kv]);
    for (int64_t kv = 0; kv < g->s->kv_len; kv++) {
        if (g->index[0][kv] < 0)
            continue;
        double *sum = &sums[(int64_t)g->index[0][kv]];
        squares[(int64_t)g->index[0][kv]] += *sum * *sum;
        *sum = 0;
    }
    return true;
}

static bool row_gradients(gradient_sums *g, const reference_row *row, double *largest, failure *why)
{
    const attention *a = g->a;
    const shape *s = g->s;
    double lse, row_max;
    plane_load(a, s, false, row, &g->p);
    row_products(a, s, false, &g->p, g->raw);
    if (!row_scores(a, s, false, row, &g->p, why))
        return false;
    row_output(a, s, false, row->h, &g->p, g->o, &lse, &row_max);
    if (!isfinite(lse))
        return true;
    row_roundings(g, row, lse);
    for (uint32_t i = 0; i < g->d.count; i++)
        if (g->d_captures[g->d.reads[i].capture] && !row_read(g, row, &g->d.reads[i], why))
            return false;
    for (int64_t kv = 0; kv < s->kv_len; kv++)
        g->slope[kv] = 1;
    if (g->d.slope && !derive(g, row, g->d.slope, g->slope, why))
        return false;
    memset(g->d_q, 0, (size_t)s->d * sizeof *g->d_q);
    memset(g->of_q.sum, 0, (size_t)s->d * sizeof *g->of_q.sum);
    memset(g->of_q.square, 0, (size_t)s->d * sizeof *g->of_q.square);
    const int64_t head = (g->p.b * s->kv_heads + g->p.h) * s->kv_len * s->d;
    double *d_k = g->d_k + head, keys = 0;
    for (int64_t kv = 0; kv < s->kv_len; kv++) {
        keys += g->rounding[kv] != 0;
        for (int64_t i = 0; i < s->d && g->rounding[kv] != 0; i++) {
            const double term = g->d_s[kv] * g->slope[kv] * a->scale;
            add_term(&g->of_q, i, term * g->p.k[kv * s->d + i]);
            add_term(&g->of_k, head + kv * s->d + i, term * g->p.q[i]);
            const double rounding = g->rounding[kv] * g->slope[kv] * a->scale;
            const double key = finite_magnitude(rounding * g->p.q[i]);
            g->d_q[i] += finite_magnitude(rounding * g->p.k[kv * s->d + i]);
            d_k[kv * s->d + i] += key * key;
        }
    }
    for (int64_t i = 0; i < s->d; i++)
        *largest = fmax(*largest, g->d_q[i] + sum_rounding(&g->of_q, i, keys, single_of(a)));
    return true;
}

/* The largest root of what rows leave, with what the sums over them do; e NULL = these are exact. */
static double largest_rounding(const gradient_sums *g, const double *squares, const element_sums *e, int64_t count,
                               int64_t columns)
{
    const double single = single_of(g->a);
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, sqrt(squares[i]) + (e ? sum_rounding(e, i, g->rows[i / columns], single) : 0));
    return largest;
}

bool reference_cancelled(attune_instance *instance, const attention *a, const array *d_o, const array *d_lse,
                         uint32_t captures, reference_cancellation *out, failure *why)
{
    shape s = {0};
    *out = (reference_cancellation){0};
    if (!check_shape(a, &s, why))
        return false;
    gradient_sums g = {.a = a, .s = &s, .d_o = d_o, .d_lse = d_lse};
    const int64_t keys = array_count(&a->k), values = array_count(&a->v);
    int64_t elements[ATTUNE_EXPR_MAX_SYMBOLS] = {0},
            fixture = (4 + ATTUNE_MAX_RANK) * s.kv_len + s.dv + 3 * s.d + 3 * keys + 3 * values + keys / s.d;
    for (uint32_t i = 0; i < a->capture_count; i++) {
        elements[i] = captures >> i & 1;
        for (uint32_t j = 0; j < a->captures[i].array.rank; j++)
            elements[i] *= a->captures[i].array.size[j];
        fixture += 2 * elements[i];
    }
    double *next = calloc((size_t)fixture, sizeof *next), *all = next;
    bool ok = next || failure_set(why, "out of memory: %lld terms", (long long)fixture);
    if (ok) {
        double **const rows[] = {&g.raw,      &g.slope,    &g.rounding, &g.d_s,
                                 &g.index[0], &g.index[1], &g.index[2], &g.index[3]};
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++, next += s.kv_len)
            *rows[i] = next;
        g.o = next;
        g.d_q = g.o + s.dv;
        g.d_k = g.d_q + s.d;
        g.d_v = g.d_k + keys;
        g.of_q = (element_sums){g.d_v + values, g.d_v + values + s.d};
        g.of_k = (element_sums){g.of_q.square + s.d, g.of_q.square + s.d + keys};
        g.of_v = (element_sums){g.of_k.square + keys, g.of_k.square + keys + values};
        g.rows = g.of_v.square + values;
        next = g.rows + keys / s.d;
        for (uint32_t i = 0; i < a->capture_count; next += 2 * elements[i++]) {
            g.d_captures[i] = elements[i] ? next : NULL;
            g.row[i] = next + elements[i];
        }
    }
    ok = ok && plane_create(&s, &g.p, why) && derivatives_make(instance, a, &g.d, why);
    for (int64_t i = 0; ok && i < s.batch * s.heads * s.q_len; i++) {
        const reference_row row = {i / (s.heads * s.q_len), i / s.q_len % s.heads, i % s.q_len};
        ok = row_gradients(&g, &row, &out->d_q, why);
    }
    if (ok) {
        const double least = least_rounding(a); /* of the element itself */
        out->d_q += least;
        out->d_k = largest_rounding(&g, g.d_k, &g.of_k, keys, s.d) + least;
        out->d_v = largest_rounding(&g, g.d_v, &g.of_v, values, s.dv) + least;
        for (uint32_t i = 0; i < a->capture_count; i++)
            out->d_captures[i] = largest_rounding(&g, g.d_captures[i], NULL, elements[i], 1);
    } else
        *out = (reference_cancellation){0};
    derivatives_free(&g.d);
    free(g.p.k);
    free(all);
    return ok;
}

void reference_compare_gradient(attune_dtype dtype, int64_t count, const double *got, const double *oracle,
                                double cancelled, reference_error *error)
{
    *error = (reference_error){0};
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const double off = fabs(got[i] - oracle[i]);
        largest = fmax(largest, fabs(oracle[i]));
        error->pattern_errors += !isfinite(got[i]);
        error->mean += isfinite(off) ? off / (double)count : 0;
        if (off > error->max) {
            error->max = off;
            error->worst = i;
        }
    }
    const double unit = 2 * reference_epsilon(dtype);
    error->bound_max = (dtype == ATTUNE_F64 ? 4096 : dtype == ATTUNE_F32 ? 64 : 4) * unit * largest + cancelled;
    error->bound_mean = error->bound_max;
    error->pass = within(error);
}

/* SPDX-License-Identifier: MIT */
/* New rows of a cache, by an own computation in float64: normalised, rotated, rounded or quantised. */
#include "random/serving_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_WEIGHTS = 300 };

/* The tensors of a call of attune_append beside the cache. */
typedef struct append_tensors {
    placed k, v, q, q_out, slots, positions, cosine, sine, k_norm, q_norm;
    grid out; /* of q */
} append_tensors;

static bool failed(finding *f, const char *what, attune_status status)
{
    return fail(f, "status", "%s: %s: %s", what, attune_status_string(status), attune_last_error());
}

static double weight_at(const serving *s, const step *c, bool of_q, int64_t i)
{
    const uint64_t word = mix(mix(c->seed, SEED_WEIGHTS + of_q), (uint64_t)i);
    const attune_dtype dtype = c->append.own_weights || s->dtype == ATTUNE_F64 ? s->dtype : ATTUNE_F32;
    return rounded_to(dtype, 0.5 + (double)(word % 1024) / 1024);
}

static double angle_at(const serving *s, const step *c, bool sine, int64_t position, int64_t pair)
{
    const double angle = (double)position * pow(10000, -2.0 * (double)pair / c->append.rotary_columns);
    return rounded_to(s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, sine ? sin(angle) : cos(angle));
}

#define NORM_EPSILON 0x1p-17

/* A head's row, and of what size the terms of each column are. */
static void transform(const serving *s, const step *c, bool of_q, int64_t position, const double *x, double *y,
                      double *magnitude)
{
    const appending *a = &c->append;
    const uint32_t half = a->rotary_columns / 2;
    double mean = 0;
    for (uint32_t i = 0; i < a->norm_columns; i++)
        mean += x[i] * x[i] / a->norm_columns;
    const bool norm = of_q ? a->q_norm : a->norm;
    for (uint32_t i = 0; i < s->head_dim; i++) {
        y[i] = norm && i < a->norm_columns ? x[i] / sqrt(mean + NORM_EPSILON) * weight_at(s, c, of_q, i) : x[i];
        magnitude[i] = fabs(y[i]);
    }
    for (uint32_t i = 0; a->rotate && i < half; i++) {
        double *first = y + a->rotary_first + (a->interleaved ? 2 * i : i),
               *second = y + a->rotary_first + (a->interleaved ? 2 * i + 1 : i + half);
        const double cosine = angle_at(s, c, false, position, i), sine = angle_at(s, c, true, position, i);
        const double p = *first, q = *second;
        *first = p * cosine - q * sine;
        *second = p * sine + q * cosine;
        magnitude[first - y] = fabs(p * cosine) + fabs(q * sine);
        magnitude[second - y] = fabs(p * sine) + fabs(q * cosine);
    }
}

/* --------------------------------------------------------------------------------------------------------- comparing
 */

/* ggml's quantize_row_q8_0_ref and quantize_row_q4_0_ref of one block. */
static void quantise(attune_dtype dtype, const double *x, unsigned char *block)
{
    float largest = 0, value = 0;
    for (int i = 0; i < 32; i++)
        if (largest < fabsf((float)x[i])) {
            largest = fabsf((float)x[i]);
            value = (float)x[i];
        }
    const float d = dtype == ATTUNE_Q8_0 ? largest / 127 : value / -8, inverse = d != 0 ? 1 / d : 0;
    element_set(ATTUNE_F16, block, 0, (double)d);
    for (int i = 0; i < 32 && dtype == ATTUNE_Q8_0; i++)
        block[2 + i] = (unsigned char)(int)roundf((float)x[i] * inverse);
    for (int i = 0; i < 16 && dtype == ATTUNE_Q4_0; i++) {
        const float low = (float)x[i] * inverse + 8.5f, high = (float)x[i + 16] * inverse + 8.5f;
        block[2 + i] = (unsigned char)((low < 15 ? (int)low : 15) | (high < 15 ? (int)high : 15) << 4);
    }
}

static bool in_blocks(const rows_of_cache *of, const unsigned char *row, const double *y, const double *error,
                      int64_t *at)
{
    const size_t size = attune_dtype_size(of->dtype);
    for (int64_t i = 0; i < of->columns; i++) {
        const unsigned char *block = row + i / 32 * (int64_t)size;
        unsigned char own[40];
        *at = i;
        if (error[i] == 0) {
            quantise(of->dtype, y + i / 32 * 32, own);
            if (memcmp(own, block, size) != 0)
                return false;
            continue;
        }
        const double unit = fabs(element_get(ATTUNE_F16, block, 0)) * (of->dtype == ATTUNE_Q8_0 ? 0.51 : 1.02);
        if (!(fabs(code_get(of->dtype, row, i) - y[i]) <= unit + error[i] + fabs(y[i]) * 0x1p-10 + 0x1p-16))
            return false;
    }
    return true;
}

/* Whether a value within `error` may be stored so. */
static bool in_codes(const rows_of_cache *of, const unsigned char *row, double factor, const double *y,
                     const double *error, int64_t *at)
{
    const bool plain =
        of->dtype == ATTUNE_F32 || of->dtype == ATTUNE_F16 || of->dtype == ATTUNE_BF16 || of->dtype == ATTUNE_F64;
    for (int64_t i = 0; i < of->columns; i++) {
        unsigned char bounds[2][8];
        /* The quotient may be rounded to f32 first. */
        const double off = error[i] / factor + (plain ? 0 : fabs(y[i] / factor) * 0x1p-24);
        *at = i;
        code_set(of->dtype, bounds[0], y[i] / factor - off);
        code_set(of->dtype, bounds[1], y[i] / factor + off);
        const double got = code_get(of->dtype, row, i);
        if (factor == 0 ? got * factor != 0
                        : !(got >= code_get(of->dtype, bounds[0], 0) && got <= code_get(of->dtype, bounds[1], 0)))
            return false;
    }
    return true;
}

/* A key's factor: the largest magnitude over that of the codes. */
static bool right_factor(const rows_of_cache *of, double factor, const double *y, const double *error)
{
    const double codes = of->dtype == ATTUNE_F8E4M3 ? 448 : of->dtype == ATTUNE_F8E5M2 ? 57344 : 127;
    double largest = 0, off = 0;
    for (int64_t i = 0; i < of->columns; i++) {
        largest = fmax(largest, fabs(y[i]));
        off = fmax(off, error[i]);
    }
    return off == 0 ? factor == (double)((float)largest / (float)codes)
                    : fabs(factor - largest / codes) <= (off + largest * 0x1p-22) / codes;
}

static bool compare_row(const rows_of_cache *of, const char *name, int64_t token, const unsigned char *row,
                        double factor, const double *y, const double *error, finding *f)
{
    int64_t at = 0;
    if (of->kind == SCALE_KEYS && !right_factor(of, factor, y, error))
        return fail(f, "factor", "%s: the factor of row %lld is %.9g", name, (long long)token, factor);
    if (attune_dtype_block(of->dtype) > 1 ? in_blocks(of, row, y, error, &at)
                                          : in_codes(of, row, factor, y, error, &at))
        return true;
    return fail(f, name, "appended %s, row %lld, column %lld: got %.9g, expected %.9g within %.3g", name,
                (long long)token, (long long)at, code_get(of->dtype, row, at) * factor, y[at], error[at]);
}

/* One head's new row of K or V. Without a norm and a rotation it has no error. */
static bool compare_new(const runner *r, const serving *s, const step *c, const step_data *d, bool values, int64_t row,
                        int64_t h, const unsigned char *got, double factor, finding *f)
{
    double y[576] = {0}, magnitude[576], error[576] = {0};
    const appending *a = &c->append;
    const grid *from = values ? &d->new_v : &d->new_k;
    const int64_t columns = values ? s->head_dim_v : s->head_dim, rows = s->packed ? 0 : d->q.size[2];
    const int64_t at = s->packed ? row * s->kv_heads + h : (row / rows * s->kv_heads + h) * rows + row % rows;
    if (values) {
        memcpy(y, from->at + at * columns, (size_t)columns * sizeof *y);
        return compare_row(&d->v, "v", row, got, factor, y, error, f);
    }
    int64_t key = 0;
    for (int b = 0; b < c->sequences; b++) {
        const sequence of = sequence_of(s, c, d, b);
        if (of.written && row >= of.row && row < of.row + of.rows)
            key = of.keys - of.rows + row - of.row;
    }
    transform(s, c, false, position_of(c, row, key), from->at + at * columns, y, magnitude);
    const bool cpu = r->backend == ATTUNE_BACKEND_CPU,
               plain = d->k.kind == SCALE_NONE && attune_dtype_block(s->k_dtype) == 1;
    for (int64_t i = 0; i < columns && (a->norm || a->rotate); i++)
        error[i] = magnitude[i] * (!cpu ? 0x1p-24 * (double)(columns + 16) : plain ? 0x1p-44 : 0x1p-23) + 1e-300;
    return compare_row(&d->k, "k", row, got, factor, y, error, f);
}

/* The cache's bytes: new rows are right, and all others as they were. */
static bool compare_cache(const runner *r, const serving *s, const step *c, step_data *d, bool values, int which,
                          const fixture *b, slab *memory, const double *factors, finding *f)
{
    rows_of_cache *of = values ? &d->v : &d->k;
    const attune_tensor *t = values ? &b->cache.v : &b->cache.k;
    unsigned char *after = malloc(memory->bytes + 1);
    if (!after)
        abort();
    const attune_status status = attune_buffer_read(memory->buffer, 0, after, memory->bytes);
    bool ok = status == ATTUNE_OK || failed(f, "reading the cache", status);
    for (int64_t i = 0; ok && i < d->rows * s->kv_heads; i++) {
        const int64_t row = i / s->kv_heads, h = i % s->kv_heads;
        if (!d->new_rows[row])
            continue;
        const int64_t page = b->page_of[d->entry_of[row]],
                      cell = (d->entry_of[row] * s->kv_heads + h) * d->page + d->key_of[row];
        const size_t at = cell_at(t, page, h, d->key_of[row]);
        const double factor = factors ? factors[(page * s->kv_heads + h) * d->page + d->key_of[row]]
                                      : scale_at(of, s->kv_heads, d->page, 0, h, 0);
        unsigned char *kept = of->at + (size_t)cell * of->bytes;
        ok = compare_new(r, s, c, d, values, row, h, after + at, factor, f);
        if (ok && which && memcmp(kept, after + at, of->bytes) != 0)
            ok = fail(f, "bits", "a new row of %s has other bits in another page", values ? "v" : "k");
        memcpy(kept, after + at, of->bytes);
        memcpy(memory->image + at, after + at, of->bytes);
        if (factors)
            of->scale[cell] = factor;
    }
    /* V may be beside K: its rows are compared first, and all bytes with those of K. */
    if (ok && (!values || memory != &b->k) && memcmp(after, memory->image, memory->bytes) != 0)
        ok = fail(f, "canary", "bytes of the cache beside the new rows were written");
    free(after);
    return ok;
}

/* Factors of keys, which the call writes: those of other keys are as they were. */
static bool collect_factors(const serving *s, const step_data *d, const fixture *b, const rows_of_cache *of,
                            const placed *p, double **factors, finding *f)
{
    *factors = NULL;
    if (of->kind != SCALE_KEYS)
        return true;
    const int64_t count = b->pages * s->kv_heads * d->page;
    double *before = calloc((size_t)count, sizeof *before), *after = calloc((size_t)count, sizeof *after);
    bool untouched = true, ok = true;
    if (!before || !after)
        abort();
    for (int64_t i = 0; i < count; i++)
        before[i] = element_get(ATTUNE_F32, p->image, (int64_t)p->tensor.offset / 4 + element_place(&p->tensor, i));
    const attune_status status = collect(p, after, &untouched);
    *factors = after;
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t h = 0; d->new_rows[row] && h < s->kv_heads; h++) {
            const int64_t at = (b->page_of[d->entry_of[row]] * s->kv_heads + h) * d->page + d->key_of[row];
            before[at] = after[at];
        }
    for (int64_t i = 0; i < count && ok; i++)
        ok = before[i] == after[i] || (isnan(before[i]) && isnan(after[i]));
    free(before);
    if (status != ATTUNE_OK)
        return failed(f, "reading factors", status);
    return (ok && untouched) || fail(f, "canary", "%s: factors of other keys were written", p->name);
}

/* ----------------------------------------------------------------------------------------------------------- calling
 */

static attune_status place_numbers(runner *r, const serving *s, const step *c, const step_data *d, const fixture *b,
                                   bool slots, placed *p)
{
    const attune_dtype dtype = slots ? ATTUNE_I64 : ATTUNE_I32;
    const int64_t size[2] = {s->packed ? d->rows : c->sequences, s->packed ? 0 : d->q.size[2]};
    double *values = calloc((size_t)d->rows + 1, sizeof *values);
    if (!values)
        abort();
    for (int64_t row = 0; row < d->rows; row++) {
        const double nowhere[] = {-1, (double)(b->pages * d->page), 0x1p62, -0x1p62};
        values[row] = !slots             ? (double)position_of(c, row, 0)
                      : d->new_rows[row] ? (double)(b->page_of[d->entry_of[row]] * d->page + d->key_of[row])
                                         : nowhere[mix(c->seed, (uint64_t)row) & 3];
    }
    const attune_status status = place(r, slots ? "slots" : "positions", dtype, s->packed ? 1 : 2, size,
                                       slots ? &c->append.slot : &c->append.position, values, false, p);
    free(values);
    return status;
}

static attune_status place_angles(runner *r, const serving *s, const step *c, bool sine, placed *p)
{
    const int64_t size[2] = {c->append.rotary_positions, c->append.rotary_columns / 2};
    double *values = calloc((size_t)(size[0] * size[1]), sizeof *values);
    if (!values)
        abort();
    for (int64_t i = 0; i < size[0] * size[1]; i++)
        values[i] = angle_at(s, c, sine, i / size[1], i % size[1]);
    const attune_status status = place(r, sine ? "sine" : "cosine", s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 2,
                                       size, &c->append.cosine, values, false, p);
    free(values);
    return status;
}

static attune_status place_weights(runner *r, const serving *s, const step *c, bool of_q, placed *p)
{
    const int64_t size = c->append.norm_columns;
    double values[576];
    for (int64_t i = 0; i < size; i++)
        values[i] = weight_at(s, c, of_q, i);
    return place(r, of_q ? "q_norm" : "k_norm", c->append.own_weights || s->dtype == ATTUNE_F64 ? s->dtype : ATTUNE_F32,
                 1, &size, &c->append.cosine, values, false, p);
}

static bool compare_queries(const runner *r, const serving *s, const step *c, const step_data *d,
                            const append_tensors *t, finding *f)
{
    const appending *a = &c->append;
    double y[576], magnitude[576];
    double *got = calloc((size_t)d->q.count + 1, sizeof *got);
    bool untouched = true;
    if (!got)
        abort();
    const attune_status status = collect(&t->q_out, got, &untouched);
    bool ok = status == ATTUNE_OK || failed(f, "reading q_out", status);
    if (ok && !untouched)
        ok = fail(f, "canary", "bytes outside of q_out were written");
    for (int b = 0; ok && b < c->sequences; b++) {
        const sequence of = sequence_of(s, c, d, b);
        for (int64_t i = 0; ok && of.written && i < of.rows * s->heads; i++) {
            const int64_t row = of.row + i / s->heads, at = lse_index(s, d, row, i % s->heads) * s->head_dim;
            if (!d->new_rows[row])
                continue;
            transform(s, c, true, position_of(c, row, of.keys - of.rows + i / s->heads), d->q.at + at, y, magnitude);
            for (int64_t k = 0; ok && k < s->head_dim; k++) {
                const double own =
                    magnitude[k] * (r->backend == ATTUNE_BACKEND_CPU ? 0x1p-44 : 0x1p-24 * (s->head_dim + 16));
                const double error = a->q_norm || a->rotate ? own + 1e-300 : 0, lo = rounded_to(s->dtype, y[k] - error),
                             hi = rounded_to(s->dtype, y[k] + error);
                if (isfinite(y[k]) ? got[at + k] >= lo && got[at + k] <= hi : true)
                    continue;
                ok = fail(f, "q_out", "q_out of row %lld, head %lld, column %lld: got %.9g, expected %.9g within %.3g",
                          (long long)row, (long long)(i % s->heads), (long long)k, got[at + k], y[k], error);
            }
        }
    }
    free(got);
    return ok;
}

static bool compare_all(runner *r, const serving *s, const step *c, step_data *d, int which, fixture *b,
                        const append_tensors *t, finding *f)
{
    double *k_factors = NULL, *v_factors = NULL;
    slab *const values = b->v.bytes ? &b->v : &b->k;
    const bool ok = collect_factors(s, d, b, &d->k, &b->k_scale, &k_factors, f) &&
                    (s->latent || collect_factors(s, d, b, &d->v, &b->v_scale, &v_factors, f)) &&
                    (s->latent || compare_cache(r, s, c, d, true, which, b, values, v_factors, f)) &&
                    compare_cache(r, s, c, d, false, which, b, &b->k, k_factors, f) &&
                    (!c->append.queries || compare_queries(r, s, c, d, t, f));
    free(k_factors);
    free(v_factors);
    return ok;
}

bool append_rows(runner *r, const serving *s, const step *c, step_data *d, const attune_plan *plan, int which,
                 fixture *b, finding *f)
{
    const appending *a = &c->append;
    append_tensors t = {.out = d->q};
    attune_append_args args = {.struct_size = sizeof args, .cache = &b->cache};
    attune_status status = ATTUNE_OK;
    bool ok = place_rows(r, s, "k", s->dtype, &d->new_k, &a->k, false, &t.k, &args.k, f) &&
              (s->latent || place_rows(r, s, "v", s->dtype, &d->new_v, &a->v, false, &t.v, &args.v, f)) &&
              (!a->queries || (place_rows(r, s, "q", s->dtype, &d->q, &a->q, false, &t.q, &args.q, f) &&
                               place_rows(r, s, "q_out", s->dtype, &d->q, &a->q_out, true, &t.q_out, &args.q_out, f)));
    if (ok && a->slots)
        status = place_numbers(r, s, c, d, b, true, &t.slots);
    if (ok && status == ATTUNE_OK && a->rotate && a->positions)
        status = place_numbers(r, s, c, d, b, false, &t.positions);
    for (int i = 0; i < 2 && ok && status == ATTUNE_OK && a->rotate; i++)
        status = place_angles(r, s, c, i, i ? &t.sine : &t.cosine);
    if (ok && status == ATTUNE_OK && a->norm)
        status = place_weights(r, s, c, false, &t.k_norm);
    if (ok && status == ATTUNE_OK && a->queries && a->q_norm)
        status = place_weights(r, s, c, true, &t.q_norm);
    args.slots = t.slots.tensor;
    args.positions = t.positions.tensor;
    args.cosine = t.cosine.tensor;
    args.sine = t.sine.tensor;
    args.rotary_first = a->rotate ? a->rotary_first : 0;
    args.interleaved = a->rotate && a->interleaved;
    args.k_norm = t.k_norm.tensor;
    args.q_norm = t.q_norm.tensor;
    args.norm_epsilon = t.k_norm.bytes || t.q_norm.bytes ? NORM_EPSILON : 0;
    /* Slots alone say where rows go, but not where they are, if they are not packed. */
    const bool batch = !a->slots || !s->packed || (a->rotate && !a->positions) || c->seed % 2;
    args.batch = batch ? &b->batch : NULL;
    attune_completion done;
    if (ok && status == ATTUNE_OK)
        status = attune_append(plan, attune_device_queue(r->device), &args, &done);
    if (ok && status == ATTUNE_OK)
        status = attune_completion_wait(done, UINT64_MAX);
    r->calls++;
    ok = ok && (status == ATTUNE_OK || failed(f, "attune_append", status)) && compare_all(r, s, c, d, which, b, &t, f);
    placed *const all[] = {&t.k,         &t.v,      &t.q,    &t.q_out,  &t.slots,
                           &t.positions, &t.cosine, &t.sine, &t.k_norm, &t.q_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        displace(all[i]);
    return ok;
}

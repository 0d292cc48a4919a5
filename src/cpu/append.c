/* SPDX-License-Identifier: MIT */
/* New rows of a cache: normalised, rotated, quantised and written where their keys are. A head's row at a time, in
 * double, rounded once. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/quant.h"
#include "cpu/cpu.h"

#define MOST_COLUMNS 576
#define CHUNK        8 /* rows that a thread takes */

typedef struct run {
    const attune__append *call;
    atomic_llong next; /* the next chunk, over all sequences */
} run;

/* Where a row is, and what is known of it. */
typedef struct place {
    int64_t batch, row; /* of the tensors */
    int64_t position;   /* of the rotation */
    bool found;         /* its key has a place in the cache */
    attune__cpu_key key;
} place;

static place place_at(const attune__append *call, int64_t b, const attune__cpu_sequence *s, int64_t i)
{
    place p = {.batch = s->batch, .row = s->row0 + i, .position = s->position + i};
    const attune_tensor *cache = &call->forward->k;
    if (call->slots.buffer) {
        const int64_t page = cache->size[2];
        int64_t slot;
        memcpy(&slot, attune__cpu_at(&call->slots, sizeof slot, p.batch, p.row, 0), sizeof slot);
        p.found = slot >= 0 && slot / page < cache->size[0];
        p.key = (attune__cpu_key){.page = slot / page, .row = slot % page};
    } else
        p.found = p.position >= 0 && attune__cpu_key_at(call->forward, b, p.position, &p.key);
    if (call->positions.buffer) {
        int32_t position;
        memcpy(&position, attune__cpu_at(&call->positions, sizeof position, p.batch, p.row, 0), sizeof position);
        p.position = position;
    }
    return p;
}

/* The root mean square of the first columns becomes 1, times the weights. */
static void normalise(double *row, const attune_tensor *weights, double epsilon)
{
    const int64_t columns = weights->size[0];
    double sum = 0;
    for (int64_t i = 0; i < columns; i++)
        sum += row[i] * row[i];
    const double factor = 1 / sqrt(sum / (double)columns + epsilon);
    const size_t element = attune_dtype_size(weights->dtype);
    for (int64_t i = 0; i < columns; i++)
        row[i] *= factor * attune__cpu_load(attune__cpu_element(weights, element, i), weights->dtype);
}

static void rotate(double *row, const attune__append *call, int64_t position)
{
    const attune_tensor *cosine = &call->cosine, *sine = &call->sine;
    const int64_t pairs = cosine->size[1];
    const size_t element = attune_dtype_size(cosine->dtype);
    row += call->rotary_first;
    for (int64_t i = 0; i < pairs; i++) {
        double *x = row + (call->interleaved ? 2 * i : i), *y = call->interleaved ? x + 1 : x + pairs;
        const double c = attune__cpu_load(attune__cpu_at(cosine, element, position, i, 0), cosine->dtype),
                     s = attune__cpu_load(attune__cpu_at(sine, element, position, i, 0), sine->dtype);
        const double rotated = *x * c - *y * s;
        *y = *x * s + *y * c;
        *x = rotated;
    }
}

/* Loads a head's row, normalised and rotated. */
static void prepare(const attune__append *call, const attune_tensor *from, const attune_tensor *norm, int64_t h,
                    const place *p, double *row)
{
    const size_t element = attune_dtype_size(from->dtype);
    const char *at = attune__cpu_at(from, element, p->batch, h, p->row);
    for (int64_t i = 0; i < from->size[3]; i++)
        row[i] = attune__cpu_load(at + (size_t)i * element, from->dtype);
    if (norm && norm->buffer)
        normalise(row, norm, call->norm_epsilon);
    if (norm && call->cosine.buffer)
        rotate(row, call, p->position);
}

/* The f32 whose rounding to 16 bits is that of the value: to odd, if it is not one of f32. */
static double narrowed(double value)
{
    const float nearest = (float)value;
    if (isnan(value) || (double)nearest == value)
        return value;
    uint32_t bits = attune__f32_to_bits(nearest);
    bits -= fabs((double)nearest) > fabs(value);
    return (double)attune__f32_from_bits(bits | 1);
}

static void store_row(char *to, attune_dtype dtype, const double *row, int64_t columns)
{
    const size_t element = attune_dtype_size(dtype);
    const bool narrow = dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
    for (int64_t i = 0; i < columns; i++)
        attune__cpu_store(to + (size_t)i * element, dtype, narrow ? narrowed(row[i]) : row[i]);
}

/* A row of K or V into the cache. scale_rows: the factor is the row's, and written too. */
static void write(const attune_tensor *cache, const attune_tensor *scale, bool scale_rows, int64_t h,
                  const attune__cpu_key *key, const double *row)
{
    const size_t element = attune_dtype_size(cache->dtype);
    const int64_t columns = cache->size[3];
    char *to = attune__cpu_at(cache, element, key->page, h, key->row);
    if (!attune__is_quantised(cache->dtype)) {
        store_row(to, cache->dtype, row, columns);
        return;
    }
    float values[MOST_COLUMNS], factor = 1;
    for (int64_t i = 0; i < columns; i++)
        values[i] = (float)row[i];
    char *at = scale->buffer ? attune__cpu_at(scale, sizeof factor, key->page, h, key->row) : NULL;
    if (at && scale_rows) {
        factor = attune__quantise_scale(values, cache->dtype, (size_t)columns);
        memcpy(at, &factor, sizeof factor);
    } else if (at)
        memcpy(&factor, at, sizeof factor);
    attune__quantise(to, values, cache->dtype, (size_t)columns, factor);
}

static void append_row(const attune__append *call, int64_t b, const attune__cpu_sequence *s, int64_t i)
{
    const attune__forward *forward = call->forward;
    const attune__serving *serving = forward->serving;
    const place p = place_at(call, b, s, i);
    double row[MOST_COLUMNS];
    if (call->cosine.buffer && (p.position < 0 || p.position >= call->cosine.size[0]))
        return;
    for (int64_t h = 0; forward->q.buffer && h < forward->heads; h++) {
        const attune_tensor *out = &call->q_out;
        const size_t element = attune_dtype_size(out->dtype);
        prepare(call, &forward->q, &call->q_norm, h, &p, row);
        store_row(attune__cpu_at(out, element, p.batch, h, p.row), out->dtype, row, out->size[3]);
    }
    for (int64_t h = 0; p.found && h < forward->kv_heads; h++) {
        prepare(call, &call->k, &call->k_norm, h, &p, row);
        write(&forward->k, &serving->k_scale, call->k_scale_rows, h, &p.key, row);
        if (!call->v.buffer)
            continue;
        prepare(call, &call->v, NULL, h, &p, row);
        write(&forward->v, &serving->v_scale, call->v_scale_rows, h, &p.key, row);
    }
}

/* Without a batch, all rows are those of one sequence. */
static attune__cpu_sequence sequence_at(const attune__forward *forward, int64_t b)
{
    if (forward->serving->kv_len.buffer)
        return attune__cpu_sequence_at(forward, b);
    return (attune__cpu_sequence){.q_len = forward->q_len};
}

static void rows(void *user, uint32_t thread)
{
    (void)thread;
    run *r = user;
    const attune__forward *forward = r->call->forward;
    int64_t b = 0, before = 0; /* chunks of the sequences before b */
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        attune__cpu_sequence s;
        for (;; b++) {
            if (b >= forward->batch)
                return;
            s = sequence_at(forward, b);
            const int64_t chunks = (s.q_len + CHUNK - 1) / CHUNK;
            if (index - before < chunks)
                break;
            before += chunks;
        }
        for (int64_t i = (index - before) * CHUNK; i < (index - before + 1) * CHUNK && i < s.q_len; i++)
            append_row(r->call, b, &s, i);
    }
}

attune_status attune__cpu_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                 uint64_t *value)
{
    (void)queue;
    const attune__cpu_device *device = (const attune__cpu_device *)program->device;
    const attune__forward *forward = call->forward;
    const double start = forward->seconds ? attune__cpu_now() : 0;
    run r = {.call = call};
    atomic_init(&r.next, 0);
    /* In double and an element at a time, as merging. */
    const int64_t all = call->k.size[0] * call->k.size[2];
    const int64_t columns = forward->kv_heads * (call->k.size[3] + (call->v.buffer ? call->v.size[3] : 0)) +
                            (forward->q.buffer ? forward->heads * forward->q.size[3] : 0);
    const uint32_t threads = attune__cpu_threads(device, false, (double)all * (double)columns, 4 * device->f32.lanes, 0,
                                                 (uint64_t)(all + CHUNK - 1) / CHUNK);
    attune__pool_run(device->pool, threads, rows, &r);
    if (forward->seconds)
        *forward->seconds = attune__cpu_now() - start;
    *value = 0;
    return ATTUNE_OK;
}

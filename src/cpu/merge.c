/* SPDX-License-Identifier: MIT */
/* Merging, a row at a time: w_i = exp(lse_i - lse), o = sum of w_i o_i; backwards d_o_i = w_i d_o and d_lse_i = w_i
 * (dot(d_o, o_i - o) + d_lse). Sums are double. A part whose weight is 0 is not read, unless the merge is strict. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cpu/cpu.h"

#define COLUMNS 64 /* of a row, summed at a time */

typedef struct run {
    const attune__merge *call;
    bool backward;
    atomic_llong next;
} run;

typedef struct row_index {
    int64_t b, h, q;
} row_index;

static char *row_at(const attune_tensor *tensor, const row_index *p)
{
    return attune__cpu_at(tensor, attune_dtype_size(tensor->dtype), p->b, p->h, p->q);
}

static double load_row(const attune_tensor *tensor, const row_index *p)
{
    return attune__cpu_load(row_at(tensor, p), tensor->dtype);
}

/* Computes the weights of the parts; returns the row's LSE. */
static double compute_weights(const attune__merge *call, const row_index *p, double *weights)
{
    double lse[ATTUNE__MERGE_PARTS], m = -INFINITY, sum = 0;
    if (!call->parts[0].lse.buffer) {
        for (uint32_t i = 0; i < call->part_count; i++)
            weights[i] = 1;
        return 0;
    }
    for (uint32_t i = 0; i < call->part_count; i++) {
        lse[i] = load_row(&call->parts[i].lse, p);
        if (lse[i] > m || isnan(lse[i]))
            m = lse[i];
    }
    for (uint32_t i = 0; i < call->part_count; i++) {
        weights[i] = m == -(double)INFINITY ? 0 : exp(lse[i] - m);
        sum += weights[i];
    }
    if (sum == 0)
        return -(double)INFINITY;
    for (uint32_t i = 0; i < call->part_count; i++)
        weights[i] /= sum;
    return m + log(sum);
}

static void merge_row(const attune__merge *call, const row_index *p)
{
    double weights[ATTUNE__MERGE_PARTS];
    const double lse = compute_weights(call, p, weights);
    const bool empty = lse == -(double)INFINITY && !call->part;
    const int64_t columns = call->o.size[3];
    const size_t element = attune_dtype_size(call->o.dtype);
    char *o = row_at(&call->o, p);
    for (int64_t c0 = 0; c0 < columns; c0 += COLUMNS) {
        double sums[COLUMNS] = {0};
        const int64_t count = columns - c0 < COLUMNS ? columns - c0 : COLUMNS;
        for (uint32_t i = 0; i < call->part_count; i++) {
            const attune_tensor *part = &call->parts[i].o;
            const size_t size = attune_dtype_size(part->dtype);
            const char *from = row_at(part, p) + (size_t)c0 * size;
            for (int64_t c = 0; (weights[i] != 0 || call->strict) && c < count; c++)
                sums[c] += weights[i] * attune__cpu_load(from + (size_t)c * size, part->dtype);
        }
        for (int64_t c = 0; c < count; c++)
            attune__cpu_store(o + (size_t)(c0 + c) * element, call->o.dtype, empty ? 0 : sums[c]);
    }
    if (call->lse.buffer)
        attune__cpu_store(row_at(&call->lse, p), call->lse.dtype, lse);
}

static void merge_row_backward(const attune__merge *call, const row_index *p)
{
    const double lse = load_row(&call->lse, p), d_lse = call->d_lse.buffer ? load_row(&call->d_lse, p) : 0;
    const int64_t columns = call->o.size[3];
    const size_t o_size = attune_dtype_size(call->o.dtype), d_o_size = attune_dtype_size(call->d_o.dtype);
    const char *o = row_at(&call->o, p), *d_o = row_at(&call->d_o, p);
    for (uint32_t i = 0; i < call->part_count; i++) {
        const attune__merge_part *part = &call->parts[i];
        const double part_lse = load_row(&part->lse, p);
        const double weight = part_lse == -(double)INFINITY || lse == -(double)INFINITY ? 0 : exp(part_lse - lse);
        const size_t size = attune_dtype_size(part->o.dtype), d_size = attune_dtype_size(part->d_o.dtype);
        const char *from = row_at(&part->o, p);
        char *to = part->d_o.buffer ? row_at(&part->d_o, p) : NULL;
        double dot = 0;
        for (int64_t c = 0; c < columns; c++) {
            const double d = weight != 0 ? attune__cpu_load(d_o + (size_t)c * d_o_size, call->d_o.dtype) : 0;
            if (weight != 0 && part->d_lse.buffer)
                dot += d * (attune__cpu_load(from + (size_t)c * size, part->o.dtype) -
                            attune__cpu_load(o + (size_t)c * o_size, call->o.dtype));
            if (to)
                attune__cpu_store(to + (size_t)c * d_size, part->d_o.dtype, weight * d);
        }
        if (part->d_lse.buffer)
            attune__cpu_store(row_at(&part->d_lse, p), part->d_lse.dtype, weight != 0 ? weight * (dot + d_lse) : 0);
    }
}

static void rows(void *user, uint32_t thread)
{
    (void)thread;
    run *r = user;
    const int64_t *size = r->call->o.size;
    for (;;) {
        const int64_t row = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (row >= size[0] * size[1] * size[2])
            return;
        const row_index p = {.b = row / size[2] / size[1], .h = row / size[2] % size[1], .q = row % size[2]};
        if (r->backward)
            merge_row_backward(r->call, &p);
        else
            merge_row(r->call, &p);
    }
}

static attune_status launch(const attune__program *merger, const attune__merge *call, bool backward, uint64_t *value)
{
    const attune__cpu_device *device = (const attune__cpu_device *)merger->device;
    const double start = call->seconds ? attune__cpu_now() : 0;
    run r = {.call = call, .backward = backward};
    atomic_init(&r.next, 0);
    /* In double and an element at a time: the loop is bound by conversions. */
    const int64_t *size = call->o.size;
    const double count = (double)size[0] * (double)size[1] * (double)size[2];
    const uint32_t flop = (uint32_t)size[3] * call->part_count * 2;
    const uint32_t threads =
        attune__cpu_threads(device, false, count, flop * device->f32.lanes, 0, (uint64_t)(size[0] * size[1] * size[2]));
    attune__pool_run(device->pool, threads, rows, &r);
    if (call->seconds)
        *call->seconds = attune__cpu_now() - start;
    *value = 0;
    return ATTUNE_OK;
}

attune_status attune__cpu_merger_create(attune_device *device, attune__program **merger)
{
    attune__program *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->device = device;
    *merger = made;
    return ATTUNE_OK;
}

void attune__cpu_merger_destroy(attune__program *merger)
{
    const attune_allocator allocator = merger->device->host.allocator;
    attune__free(&allocator, merger);
}

attune_status attune__cpu_merge(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                uint64_t *value)
{
    (void)queue;
    return launch(merger, call, false, value);
}

attune_status attune__cpu_merge_backward(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                         uint64_t *value)
{
    (void)queue;
    return launch(merger, call, true, value);
}

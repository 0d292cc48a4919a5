/* SPDX-License-Identifier: MIT */
/* Runs a case on a device in its layout, between canaries, and holds the result against the oracle. */
#include "cases/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in device memory, in the layout that the case asks for. */
typedef struct placed {
    attune_tensor tensor;
    unsigned char *image; /* what the whole buffer held before the call */
    uint64_t bytes;
} placed;

/* Bytes that no dtype's random data has in a row. */
#define CANARY 0xa5
#define GUARD  256

static const char *try_call(attune_status status)
{
    return status == ATTUNE_OK ? NULL : attune_last_error();
}

/* Strides of one tensor [b, h, l, d] and the elements that it spans. */
static int64_t layout_strides(case_layout layout, const int64_t size[4], int64_t stride[4])
{
    int64_t b = size[0], h = size[1], l = size[2], d = size[3];
    switch (layout) {
    case LAYOUT_TOKEN_MAJOR:
        stride[0] = l * h * d, stride[1] = d, stride[2] = h * d, stride[3] = 1;
        return b * l * h * d;
    case LAYOUT_PACKED:
        stride[0] = l * 3 * h * d, stride[1] = d, stride[2] = 3 * h * d, stride[3] = 1;
        return b * l * 3 * h * d;
    case LAYOUT_PADDED:
        stride[2] = d + 5, stride[1] = l * stride[2] + 13, stride[0] = h * stride[1] + 31, stride[3] = 1;
        return b * stride[0];
    case LAYOUT_BACKWARDS:
        stride[2] = -d, stride[1] = l * d, stride[0] = h * l * d, stride[3] = 1;
        return b * h * l * d;
    case LAYOUT_CONTIGUOUS:
    case LAYOUT_MISALIGNED:
        break;
    }
    stride[2] = d, stride[1] = l * d, stride[0] = h * l * d, stride[3] = 1;
    return b * h * l * d;
}

static int64_t element_of(const attune_tensor *t, int64_t i)
{
    int64_t at = 0;
    for (uint32_t k = t->rank; k-- > 0; i /= t->size[k])
        at += i % t->size[k] * t->stride[k];
    return at;
}

/* Makes a buffer for a tensor of `rank` dimensions, filled with canaries, and then with `data` if there is any. */
static const char *place(attune_device *device, case_layout layout, attune_dtype dtype, uint32_t rank,
                         const int64_t *size, const array *data, placed *p)
{
    *p = (placed){0};
    attune_tensor *t = &p->tensor;
    t->dtype = dtype;
    t->rank = rank;
    int64_t span;
    if (rank == 4) {
        span = layout_strides(layout, size, t->stride);
    } else {
        /* Row outputs and captures take the padding only. */
        span = 1;
        for (uint32_t i = rank; i-- > 0;) {
            t->stride[i] = span;
            span *= size[i] + (layout == LAYOUT_PADDED && i == rank - 1 ? 3 : 0);
        }
    }
    memcpy(t->size, size, rank * sizeof *size);
    uint64_t element = attune_dtype_size(dtype);
    t->offset = GUARD + (layout == LAYOUT_MISALIGNED ? element : 0);
    p->bytes = t->offset + (uint64_t)span * element + GUARD;
    if (rank == 4 && layout == LAYOUT_BACKWARDS)
        t->offset += (uint64_t)((size[2] - 1) * size[3]) * element;
    p->image = malloc(p->bytes);
    if (!p->image)
        return "out of memory in the test";
    memset(p->image, CANARY, p->bytes);
    if (data)
        for (int64_t i = 0; i < array_count(data); i++)
            memcpy(p->image + t->offset + (uint64_t)element_of(t, i) * element,
                   (const unsigned char *)data->data + (uint64_t)i * element, element);
    const char *error = try_call(attune_buffer_create(device, p->bytes, &t->buffer));
    return error ? error : try_call(attune_buffer_write(t->buffer, 0, p->image, p->bytes));
}

static void displace(placed *p)
{
    attune_buffer_destroy(p->tensor.buffer);
    free(p->image);
}

/* Reads an output back: its elements into `values`; every byte outside them must be as before. */
static const char *collect(const placed *p, double *values)
{
    const attune_tensor *t = &p->tensor;
    size_t element = attune_dtype_size(t->dtype);
    unsigned char *after = malloc(p->bytes);
    if (!after)
        return "out of memory in the test";
    const char *error = try_call(attune_buffer_read(t->buffer, 0, after, p->bytes));
    int64_t count = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        count *= t->size[i];
    array one = {.dtype = t->dtype, .rank = 1, .size = {1}};
    for (int64_t i = 0; !error && i < count; i++) {
        unsigned char *at = after + t->offset + (uint64_t)element_of(t, i) * element;
        one.data = at;
        values[i] = array_get(&one, 0);
        memset(at, CANARY, element);
    }
    for (uint64_t i = 0; !error && i < p->bytes; i++)
        if (after[i] != CANARY)
            error = "a byte outside the output was written";
    free(after);
    return error;
}

static bool compare(const attention_case *c, attune_dtype dtype, const char *what, attune_dtype output, int64_t count,
                    const double *got, const double *oracle, const double *naive, failure *why)
{
    reference_error error;
    reference_compare(output, count, got, oracle, naive, &error);
    if (error.pass)
        return true;
    return failure_set(
        why,
        "%s %s %s: max error %.3g (bound %.3g), mean %.3g (bound %.3g), %lld wrong patterns; worst at %lld of "
        "%lld: got %.9g, oracle %.9g, naive %.9g",
        c->name, attune_dtype_string(dtype), what, error.max, error.bound_max, error.mean, error.bound_mean,
        (long long)error.pattern_errors, (long long)error.worst, (long long)count, got[error.worst],
        oracle[error.worst], naive[error.worst]);
}

typedef struct running {
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *workspace;
    placed q, k, v, o, lse, row_max;
    placed captures[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t capture_count;
} running;

static const char *prepare(attune_instance *instance, attune_device *device, const attention_case *c,
                           attune_dtype dtype, const attention *a, running *r)
{
    const char *error;
    attune_problem problem = {
        .struct_size = sizeof problem,
        .dtype = dtype,
        .head_dim = c->head_dim,
        .head_dim_v = c->head_dim_v,
        .batch = c->batch,
        .kv_batch = c->kv_batch,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .q_len = c->q_len,
        .kv_len = c->kv_len,
        .score = a->score,
        .lse = true,
        .row_max = true,
    };
    if (a->mask) {
        const attune_mask_desc desc = {sizeof desc,
                                       c->q_block,
                                       c->kv_block,
                                       c->batch,
                                       c->heads,
                                       c->kv_heads,
                                       c->q_len + c->mask_longer,
                                       c->kv_len + c->mask_longer};
        if ((error = try_call(attune_mask_create(instance, &desc, a->mask, a->captures, a->capture_count, a->parameters,
                                                 a->parameter_count, &r->mask))) ||
            (error = try_call(attune_mask_upload(r->mask, device))) ||
            (error = try_call(attune_problem_set_mask(&problem, r->mask))))
            return error;
    }
    attune_kernel_options options = {.struct_size = sizeof options};
    if (c->options && (error = try_call(attune_kernel_options_parse(c->options, &options))))
        return error;
    if ((error = try_call(attune_plan_create(device, &problem, &options, &r->plan))))
        return error;
    if (attune_plan_workspace_size(r->plan) &&
        (error = try_call(attune_buffer_create(device, attune_plan_workspace_size(r->plan), &r->workspace))))
        return error;
    case_layout outputs = c->layout == LAYOUT_BACKWARDS || c->layout == LAYOUT_PACKED ? LAYOUT_PADDED : c->layout;
    const int64_t o_size[4] = {c->batch, c->heads, c->q_len, a->v.size[3]};
    attune_dtype rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    if ((error = place(device, c->layout == LAYOUT_BACKWARDS ? LAYOUT_CONTIGUOUS : c->layout, dtype, 4, a->q.size,
                       &a->q, &r->q)) ||
        (error = place(device, c->layout, dtype, 4, a->k.size, &a->k, &r->k)) ||
        (error = place(device, c->layout, dtype, 4, a->v.size, &a->v, &r->v)) ||
        (error = place(device, outputs, dtype, 4, o_size, NULL, &r->o)) ||
        (error = place(device, outputs, rows, 3, o_size, NULL, &r->lse)) ||
        (error = place(device, outputs, rows, 3, o_size, NULL, &r->row_max)))
        return error;
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        array data = {.dtype = h->dtype, .rank = h->rank, .data = (void *)(uintptr_t)h->data};
        memcpy(data.size, h->size, sizeof data.size);
        r->capture_count = i + 1;
        if ((error = place(device, LAYOUT_CONTIGUOUS, h->dtype, h->rank, h->size, &data, &r->captures[i])))
            return error;
    }
    return NULL;
}

static const char *launch(attune_device *device, const attention *a, const running *r)
{
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    for (uint32_t i = 0; i < a->capture_count; i++)
        captures[i] = (attune_capture){a->captures[i].name, r->captures[i].tensor};
    const attune_forward_args args = {
        .struct_size = sizeof args,
        .q = r->q.tensor,
        .k = r->k.tensor,
        .v = r->v.tensor,
        .o = r->o.tensor,
        .lse = r->lse.tensor,
        .row_max = r->row_max.tensor,
        .mask = r->mask,
        .captures = captures,
        .capture_count = a->capture_count,
        .parameters = a->parameters,
        .parameter_count = a->parameter_count,
        .workspace = r->workspace,
    };
    attune_completion completion;
    const char *error = try_call(attune_forward(r->plan, attune_device_queue(device), &args, &completion));
    return error ? error : try_call(attune_completion_wait(completion, UINT64_MAX));
}

static void finish(running *r)
{
    attune_mask_destroy(r->mask);
    attune_plan_destroy(r->plan);
    attune_buffer_destroy(r->workspace);
    placed *all[] = {&r->q, &r->k, &r->v, &r->o, &r->lse, &r->row_max};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        displace(all[i]);
    for (uint32_t i = 0; i < r->capture_count; i++)
        displace(&r->captures[i]);
}

bool case_run(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
              uint64_t seed, failure *why)
{
    attention a;
    if (!case_instantiate(instance, c, dtype, seed, &a, why))
        return false;
    running r = {0};
    const int64_t dv = a.v.size[3], rows = c->batch * c->heads * c->q_len;
    /* got, oracle, naive: o, lse and row maxima each. */
    double *values = calloc((size_t)(3 * rows * (dv + 2)), sizeof *values);
    const char *error = values ? prepare(instance, device, c, dtype, &a, &r) : "out of memory in the test";
    if (!error)
        error = launch(device, &a, &r);
    reference_result result[3];
    bool ok = !error;
    if (ok) {
        for (int i = 0; i < 3; i++) {
            double *base = values + i * rows * (dv + 2);
            result[i] = (reference_result){base, base + rows * dv, base + rows * (dv + 1)};
        }
        if ((error = collect(&r.o, result[0].o)) || (error = collect(&r.lse, result[0].lse)) ||
            (error = collect(&r.row_max, result[0].row_max)))
            ok = false;
    }
    if (error)
        failure_set(why, "%s %s: %s", c->name, attune_dtype_string(dtype), error);
    attune_dtype row_type = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    ok = ok && reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result[1], why) &&
         reference_compute(&a, REFERENCE_NAIVE, NULL, 0, &result[2], why);
    /* docs/numerics.md: of a row that has both, NaN or +inf. */
    for (int64_t i = 0; ok && c->input == INPUT_MIXED && i < rows; i++)
        if (isnan(result[1].row_max[i]) && result[0].row_max[i] == INFINITY)
            result[0].row_max[i] = NAN;
    ok = ok && compare(c, dtype, "o", dtype, rows * dv, result[0].o, result[1].o, result[2].o, why) &&
         compare(c, dtype, "lse", row_type, rows, result[0].lse, result[1].lse, result[2].lse, why) &&
         compare(c, dtype, "row_max", row_type, rows, result[0].row_max, result[1].row_max, result[2].row_max, why);
    finish(&r);
    case_release(&a);
    free(values);
    return ok;
}

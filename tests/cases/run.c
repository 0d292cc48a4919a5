/* SPDX-License-Identifier: MIT */
/* Runs a case on a device in its layout, between canaries, and holds the result against the oracle. */
#include "cases/cases.h"
#include "cases/gradients.h"
#include "cases/segments.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in device memory, in the layout of the case. */
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
    case LAYOUT_SHARED_K:
    case LAYOUT_SHARED_V:
        stride[2] = d, stride[1] = l * d, stride[0] = 0, stride[3] = 1;
        return h * l * d;
    case LAYOUT_CONTIGUOUS:
    case LAYOUT_MISALIGNED:
        break;
    }
    stride[2] = d, stride[1] = l * d, stride[0] = h * l * d, stride[3] = 1;
    return b * h * l * d;
}

/* The layout of an output, whose elements must not overlap. */
static case_layout output_layout(const attention_case *c)
{
    return c->layout == LAYOUT_BACKWARDS || c->layout == LAYOUT_PACKED ? LAYOUT_PADDED
           : c->layout >= LAYOUT_SHARED_K                              ? LAYOUT_CONTIGUOUS
                                                                       : c->layout;
}

/* Of k or v, whose batches are one in the layout `shared`; of q, whose batches never are, with LAYOUT_CONTIGUOUS. */
static case_layout input_layout(const attention_case *c, case_layout shared)
{
    return c->layout >= LAYOUT_SHARED_K && c->layout != shared ? LAYOUT_CONTIGUOUS : c->layout;
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

/* Terms that happen to cancel in both references need not cancel in a kernel. */
static void may_cancel(int64_t count, const double *oracle, double *naive)
{
    for (int64_t i = 0; i < count; i++)
        if (oracle[i] == 0 && naive[i] == 0)
            naive[i] = DBL_MIN;
}

/* Whether a kernel rounds the weights to the type of v. */
static bool rounds_weights(const attune_plan *plan)
{
    attune_plan_choice choice = {.struct_size = sizeof choice};
    (void)attune_plan_choice_get(plan, &choice);
    return !strncmp(choice.kernel, "cuda_", 5) || !strcmp(choice.kernel, "vulkan_coopmat");
}

/* docs/numerics.md: a weight that f16 rounds to 0 makes an infinite v NaN, as it does in the plain computation. */
static void may_be_weightless(int64_t count, const double *got, double *oracle, const double *naive)
{
    for (int64_t i = 0; i < count; i++)
        if (isinf(oracle[i]) && isnan(naive[i]) && isnan(got[i]))
            oracle[i] = NAN;
}

/* The error rule's finding, with a term more for the largest error and one for the mean. */
static bool accept(const attention_case *c, attune_dtype dtype, const char *what, reference_error error, int64_t count,
                   const double *got, const double *oracle, const double *naive, double more_max, double more_mean,
                   failure *why)
{
    reference_allow(&error, more_max, more_mean);
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

static bool compare(const attention_case *c, attune_dtype dtype, const char *what, attune_dtype output, int64_t count,
                    const double *got, const double *oracle, const double *naive, failure *why)
{
    reference_error error;
    reference_compare(output, count, got, oracle, naive, &error);
    return accept(c, dtype, what, error, count, got, oracle, naive, 0, 0, why);
}

/* A workspace of exactly the bytes that a plan requires. */
typedef struct lent {
    attune_buffer *buffer;
    void *memory; /* of the CPU: as ill aligned as an engine's may be */
} lent;

static const char *lend(attune_device *device, const attune_plan *plan, lent *w)
{
    enum { ALIGNED = 64, AWAY = 1 };
    const uint64_t bytes = attune_plan_workspace_size(plan);
    attune_device_info info = {.struct_size = sizeof info};
    const char *error = try_call(attune_device_info_get(device, &info));
    if (error || !bytes)
        return error;
    if (info.backend != ATTUNE_BACKEND_CPU)
        return try_call(attune_buffer_create(device, bytes, &w->buffer));
    if (posix_memalign(&w->memory, ALIGNED, bytes + AWAY))
        return "out of memory in the test";
    memset(w->memory, CANARY, bytes + AWAY);
    return try_call(attune_buffer_wrap(device, (char *)w->memory + AWAY, bytes, &w->buffer));
}

static void take_back(lent *w)
{
    attune_buffer_destroy(w->buffer);
    free(w->memory);
}

typedef struct running {
    attune_mask *mask;
    attune_plan *plan, *backward;
    lent workspace, scratch;
    placed d_o, d_lse, d_q, d_k, d_v, d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    array upstream, upstream_lse; /* what d_o and d_lse hold; the latter's data may be NULL */
    uint32_t wanted;              /* captures whose gradients are, as bits 1 << index */
    placed q, k, v, o, lse, row_max, sinks, d_sinks;
    placed captures[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t capture_count;
    segments cut;
    bool has_lse, has_row_max; /* of forward */
    bool refused;              /* by ATTUNE_TEST_KERNEL */
    attune_completion forward; /* of a launch, whose queue is NULL before */
} running;

/* Asks for the kernel of ATTUNE_TEST_KERNEL, which the automatic choice may skip, with what the options have for any
 * kernel; and backwards for tiles of ATTUNE_TEST_BLOCK_N1 keys. */
static void name_kernel(const char *kernel, bool back, attune_kernel_options *options)
{
    const bool other = options->any.kernel[0] || options->fwd.kernel[0] || options->bwd.kernel[0];
    if (other)
        *options = (attune_kernel_options){.struct_size = sizeof *options};
    attune_pass_options *pass = back ? &options->bwd : &options->fwd;
    (void)snprintf(pass->kernel, sizeof pass->kernel, "%s", kernel);
    const char *const keys = getenv("ATTUNE_TEST_BLOCK_N1");
    if (back && keys)
        pass->block_n1 = (uint32_t)strtoul(keys, NULL, 10);
}

/* A plan with the case's options or, where it has none, with those that it prefers. `only`: there is none where its
 * kernel is another one than ATTUNE_TEST_KERNEL. */
static const char *make_plan(attune_device *device, const attune_problem *problem, const char *options,
                             const char *preferred, bool only, running *r, attune_plan **plan)
{
    const char *const kernel = getenv("ATTUNE_TEST_KERNEL"), *const text = options ? options : preferred;
    const bool named = kernel && *kernel;
    attune_kernel_options parsed = {.struct_size = sizeof parsed};
    const char *const error = text ? try_call(attune_kernel_options_parse(text, &parsed)) : NULL;
    if (error)
        return error;
    if (named)
        name_kernel(kernel, problem->direction == ATTUNE_BACKWARD, &parsed);
    attune_status status = attune_plan_create(device, problem, &parsed, plan);
    const bool refused =
        status == ATTUNE_UNSUPPORTED || status == ATTUNE_DOES_NOT_FIT || status == ATTUNE_INVALID_ARGUMENT;
    r->refused = named && only && refused;
    if (refused && !r->refused && !options)
        status = attune_plan_create(device, problem, NULL, plan);
    return try_call(status);
}

static const char *plan_backward(attune_device *device, const attention_case *c, const attention *a,
                                 const attune_problem *forward, running *r)
{
    attune_problem problem = *forward;
    problem.direction = ATTUNE_BACKWARD;
    problem.lse = problem.row_max = false;
    r->wanted = attention_differentiable(a);
    problem.capture_gradient_elements = attention_capture_elements(a, r->wanted);
    const char *const error = make_plan(device, &problem, c->backward_options, NULL, true, r, &r->backward);
    return error ? error : lend(device, r->backward, &r->scratch);
}

/* Backward's tensors, in the case's layouts; gradients of captures begin at 0. */
static const char *place_gradients(attune_device *device, const attention_case *c, attune_dtype dtype,
                                   const attention *a, running *r)
{
    const char *error;
    const case_layout outputs = output_layout(c);
    if ((error = place(device, outputs, a->o_dtype, 4, r->upstream.size, &r->upstream, &r->d_o)) ||
        (r->upstream_lse.data &&
         (error = place(device, outputs, r->upstream_lse.dtype, 3, r->upstream.size, &r->upstream_lse, &r->d_lse))) ||
        (error = place(device, outputs, dtype, 4, a->q.size, NULL, &r->d_q)) ||
        (error = place(device, outputs, a->k.dtype, 4, a->k.size, NULL, &r->d_k)) ||
        (error = place(device, outputs, a->v.dtype, 4, a->v.size, NULL, &r->d_v)) ||
        (c->sinks && (error = place(device, outputs, a->sinks.dtype, 1, a->sinks.size, NULL, &r->d_sinks))))
        return error;
    for (uint32_t i = 0; i < a->capture_count; i++) {
        failure why;
        array zeros = {0};
        const attune_array *h = &a->captures[i].array;
        if (!(r->wanted >> i & 1))
            continue;
        if (!array_create(&zeros, ATTUNE_F32, h->rank, h->size, &why))
            return "out of memory in the test";
        memset(zeros.data, 0, (size_t)array_count(&zeros) * sizeof(float));
        error = place(device, outputs, ATTUNE_F32, h->rank, h->size, &zeros, &r->d_captures[i]);
        array_free(&zeros);
        if (error)
            return error;
    }
    return NULL;
}

/* The mask's own lists, with another expression for their partial blocks. */
static const char *make_listed(attune_instance *instance, attune_device *device, const attention_case *c,
                               const attention *a, const attune_mask_desc *desc, attune_problem *problem,
                               attune_mask **mask)
{
    static failure why;
    attune_mask *whole = NULL;
    attune_expr *expr = NULL;
    attune_mask_lists lists = {.struct_size = sizeof lists};
    const char *error = case_partial(instance, c, &expr, &why) ? NULL : why.message;
    if (!error)
        error = try_call(attention_mask(instance, device, a, desc, NULL, &whole));
    if (!error)
        error = try_call(attune_mask_lists_get(whole, &lists));
    if (!error)
        error = try_call(attune_mask_create_lists(instance, desc, &lists, expr, a->captures, a->capture_count,
                                                  a->parameters, a->parameter_count, mask));
    if (!error)
        error = try_call(attune_mask_upload(*mask, device));
    if (!error)
        error = try_call(attune_problem_set_mask(problem, *mask));
    attune_mask_destroy(whole);
    attune_expr_destroy(expr);
    return error;
}

static const char *prepare(attune_instance *instance, attune_device *device, const attention_case *c,
                           attune_dtype dtype, const attention *a, running *r)
{
    const char *error;
    r->has_lse = !c->o_alone;
    r->has_row_max = !c->o_alone && !c->segments;
    attune_problem problem = {
        .struct_size = sizeof problem,
        .dtype = dtype,
        .kv_dtype = a->k.dtype,
        .o_dtype = a->o_dtype,
        .head_dim = c->head_dim,
        .head_dim_v = c->head_dim_v,
        .batch = c->batch,
        .kv_batch = c->kv_batch,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .q_len = c->q_len + c->plan_more,
        .kv_len = c->kv_len,
        .score = a->score,
        .lse = r->has_lse,
        .row_max = r->has_row_max,
        .segments = c->segments,
        .sinks = c->sinks,
    };
    if (c->segments && (error = segments_prepare(instance, device, c, a, &r->cut, &problem)))
        return error;
    if (a->mask && !c->segments) {
        const attune_mask_desc desc = {.struct_size = sizeof desc,
                                       .q_block = c->q_block,
                                       .kv_block = c->kv_block,
                                       .batch = c->batch,
                                       .heads = c->heads,
                                       .kv_heads = c->kv_heads,
                                       .q_len = c->q_len + c->mask_longer,
                                       .kv_len = c->kv_len + c->mask_longer};
        if ((error = c->partial ? make_listed(instance, device, c, a, &desc, &problem, &r->mask)
                                : try_call(attention_mask(instance, device, a, &desc, &problem, &r->mask))))
            return error;
    }
    /* Gradients are those of the backward kernel, whatever has computed O. */
    const bool back = r->upstream.data != NULL;
    if ((error = make_plan(device, &problem, c->options, c->preferred, !back, r, &r->plan)))
        return error;
    if (back && (error = plan_backward(device, c, a, &problem, r)))
        return error;
    if ((error = lend(device, r->plan, &r->workspace)))
        return error;
    const case_layout outputs = output_layout(c);
    const int64_t o_size[4] = {c->batch, c->heads, c->q_len, a->v.size[3]};
    attune_dtype rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const case_layout q_layout = c->layout == LAYOUT_BACKWARDS ? LAYOUT_CONTIGUOUS : input_layout(c, LAYOUT_CONTIGUOUS);
    if ((error = place(device, q_layout, dtype, 4, a->q.size, &a->q, &r->q)) ||
        (error = place(device, input_layout(c, LAYOUT_SHARED_K), a->k.dtype, 4, a->k.size, &a->k, &r->k)) ||
        (error = place(device, input_layout(c, LAYOUT_SHARED_V), a->v.dtype, 4, a->v.size, &a->v, &r->v)) ||
        (error = place(device, outputs, a->o_dtype, 4, o_size, NULL, &r->o)) ||
        (error = place(device, outputs, rows, 3, o_size, NULL, &r->lse)) ||
        (error = place(device, outputs, rows, 3, o_size, NULL, &r->row_max)) ||
        (c->sinks && (error = place(device, c->layout, rows, 1, a->sinks.size, &a->sinks, &r->sinks))))
        return error;
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        array data = {.dtype = h->dtype, .rank = h->rank, .data = (void *)(uintptr_t)h->data};
        memcpy(data.size, h->size, sizeof data.size);
        r->capture_count = i + 1;
        if ((error = place(device, LAYOUT_CONTIGUOUS, h->dtype, h->rank, h->size, &data, &r->captures[i])))
            return error;
    }
    return r->upstream.data ? place_gradients(device, c, dtype, a, r) : NULL;
}

static const char *launch_backward(attune_device *device, const attention *a, const running *r,
                                   const attune_capture *captures)
{
    attune_capture wanted[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_segment parts[SEGMENTS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->capture_count; i++)
        if (r->wanted >> i & 1)
            wanted[count++] = (attune_capture){a->captures[i].name, r->d_captures[i].tensor};
    const attune_backward_args args = {
        .struct_size = sizeof args,
        .q = r->q.tensor,
        .k = r->k.tensor,
        .v = r->v.tensor,
        .o = r->o.tensor,
        .lse = r->lse.tensor,
        .d_o = r->d_o.tensor,
        .d_lse = r->d_lse.tensor,
        .d_q = r->d_q.tensor,
        .d_k = r->d_k.tensor,
        .d_v = r->d_v.tensor,
        .mask = r->mask,
        .captures = captures,
        .capture_count = a->capture_count,
        .capture_gradients = wanted,
        .capture_gradient_count = count,
        .parameters = a->parameters,
        .parameter_count = a->parameter_count,
        .workspace = r->scratch.buffer,
        .segments = r->cut.count ? parts : NULL,
        .segment_count = r->cut.count,
        .sinks = r->sinks.tensor,
        .d_sinks = r->d_sinks.tensor,
    };
    segments_views(&r->cut, &r->k.tensor, &r->v.tensor, &r->d_k.tensor, &r->d_v.tensor, parts);
    attune_completion completion;
    const char *error = try_call(attune_backward(r->backward, attune_device_queue(device), &args, &completion));
    return error ? error : try_call(attune_completion_wait(completion, UINT64_MAX));
}

static const char *launch(attune_device *device, const attention *a, running *r)
{
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    for (uint32_t i = 0; i < a->capture_count; i++)
        captures[i] = (attune_capture){a->captures[i].name, r->captures[i].tensor};
    attune_segment parts[SEGMENTS_MAX];
    attune_forward_args args = {
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
        .workspace = r->workspace.buffer,
        .segments = r->cut.count ? parts : NULL,
        .segment_count = r->cut.count,
        .sinks = r->sinks.tensor,
    };
    if (!r->has_lse)
        args.lse.buffer = NULL;
    if (!r->has_row_max)
        args.row_max.buffer = NULL;
    segments_views(&r->cut, &r->k.tensor, &r->v.tensor, NULL, NULL, parts);
    const char *error = try_call(attune_forward(r->plan, attune_device_queue(device), &args, &r->forward));
    if (!error && r->upstream.data)
        error = launch_backward(device, a, r, captures);
    return error ? error : try_call(attune_completion_wait(r->forward, UINT64_MAX));
}

static void finish(running *r)
{
    /* Where backward was refused, forward may still run. The error was said before: this wait may have another one. */
    if (r->forward.queue)
        (void)attune_completion_wait(r->forward, UINT64_MAX);
    segments_finish(&r->cut);
    attune_mask_destroy(r->mask);
    attune_plan_destroy(r->plan);
    attune_plan_destroy(r->backward);
    take_back(&r->workspace);
    take_back(&r->scratch);
    array_free(&r->upstream);
    array_free(&r->upstream_lse);
    placed *all[] = {&r->q,     &r->k,   &r->v,   &r->o,   &r->lse,   &r->row_max, &r->d_o,
                     &r->d_lse, &r->d_q, &r->d_k, &r->d_v, &r->sinks, &r->d_sinks};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        displace(all[i]);
    for (uint32_t i = 0; i < r->capture_count; i++) {
        displace(&r->captures[i]);
        displace(&r->d_captures[i]);
    }
}

#define NOT_RUN "does not run on ATTUNE_TEST_KERNEL"
/* llvmpipe ends a loop after 65,535 iterations, which a plan knows and a call of random lengths may need. */
#define TOO_LONG ", stops a workgroup of "

bool case_is_skipped(const failure *why)
{
    return strstr(why->message, NOT_RUN) != NULL;
}

static bool fail_running(const attention_case *c, attune_dtype dtype, const running *r, const char *error, failure *why)
{
    const bool refused = r->refused || (!strncmp(c->name, "random ", 7) && strstr(error, TOO_LONG));
    return failure_set(why, "%s %s%s: %s", c->name, attune_dtype_string(dtype), refused ? " " NOT_RUN : "", error);
}

bool case_run(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
              uint64_t seed, failure *why)
{
    attention a;
    if (!case_instantiate(instance, c, dtype, seed, &a, why))
        return false;
    running r = {0};
    const int64_t dv = a.v.size[3], rows = c->batch * c->heads * c->q_len;
    /* got, oracle, naive: o, lse and row maxima each; then how far o may move. */
    double *values = calloc((size_t)(3 * rows * (dv + 2) + rows * dv), sizeof *values);
    const char *error = values ? prepare(instance, device, c, dtype, &a, &r) : "out of memory in the test";
    if (!error)
        error = launch(device, &a, &r);
    reference_result result[3];
    bool ok = !error;
    if (ok) {
        for (int i = 0; i < 3; i++) {
            double *base = values + i * rows * (dv + 2);
            result[i] = (reference_result){base, base + rows * dv, base + rows * (dv + 1), NULL};
        }
        if (dtype != ATTUNE_F64)
            result[1].moved = values + 3 * rows * (dv + 2);
        if ((error = collect(&r.o, result[0].o)) || (r.has_lse && (error = collect(&r.lse, result[0].lse))) ||
            (r.has_row_max && (error = collect(&r.row_max, result[0].row_max))))
            ok = false;
    }
    if (error)
        fail_running(c, dtype, &r, error, why);
    attune_dtype row_type = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    ok = ok && reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result[1], why) &&
         reference_compute(&a, REFERENCE_NAIVE, NULL, 0, &result[2], why);
    /* docs/numerics.md: of a row that has both, NaN or +inf. */
    const bool both = c->input == INPUT_MIXED || c->input == INPUT_NONFINITE;
    for (int64_t i = 0; ok && both && i < rows; i++)
        if (isnan(result[1].row_max[i]) && result[0].row_max[i] == INFINITY)
            result[0].row_max[i] = NAN;
    /* Rows without keys cannot cancel. */
    for (int64_t i = 0; ok && i < rows; i++)
        if (isfinite(result[1].lse[i]))
            may_cancel(dv, result[1].o + i * dv, result[2].o + i * dv);
    if (ok && a.v.dtype == ATTUNE_F16 && rounds_weights(r.plan))
        may_be_weightless(rows * dv, result[0].o, result[1].o, result[2].o);
    const double more = c->segments ? segments_rounding(device, &a) : 0;
    reference_error error_o = {0};
    if (ok)
        reference_compare_o(attention_rule_dtype(&a), attention_o_dtype(&a), rows, dv, result[0].o, &result[1],
                            &result[2], &error_o);
    ok = ok && accept(c, dtype, "o", error_o, rows * dv, result[0].o, result[1].o, result[2].o, more, more / 8, why) &&
         (!r.has_lse || compare(c, dtype, "lse", row_type, rows, result[0].lse, result[1].lse, result[2].lse, why)) &&
         (!r.has_row_max ||
          compare(c, dtype, "row_max", row_type, rows, result[0].row_max, result[1].row_max, result[2].row_max, why));
    finish(&r);
    case_release(&a);
    free(values);
    return ok;
}

/* One gradient, with rows of `columns` elements, against the two references; `values` has the results as got,
 * oracle, naive, and what cancelled. P is made from scores that are computed again: it moves by their rounding,
 * whatever sums the references happened to round the same way. `rounded_o`: of a capture, what rounding O moves it by.
 */
static bool compare_gradient(const attention_case *c, const attention *a, const char *what, const placed *p,
                             int64_t columns, double largest_score, double rounded_o, double *values, failure *why)
{
    const attune_dtype dtype = a->q.dtype, rule = attention_rule_dtype(a);
    const bool capture = columns == 1;
    int64_t count = 1;
    for (uint32_t i = 0; i < p->tensor.rank; i++)
        count *= p->tensor.size[i];
    const char *error = collect(p, values);
    if (error)
        return failure_set(why, "%s %s %s: %s", c->name, attune_dtype_string(dtype), what, error);
    may_cancel(count, values + count, values + 2 * count);
    double largest = 0, sum = 0, squares = 0, row = 0, row_squares = 0, terms = 0, most_terms = 0;
    for (int64_t i = 0; i < count; i++) {
        const double value = fabs(values[count + i]);
        largest = fmax(largest, value);
        sum += value;
        squares += value * value;
        row = i % columns ? row + value : value;
        row_squares += (i + 1) % columns ? 0 : row * row;
        terms += fabs(values[3 * count + i]);
        most_terms = fmax(most_terms, fabs(values[3 * count + i]));
    }
    /* The mean of roundings, of dS and of O, that a row's elements share and rows do not: of few rows, two computations
     * that are as good have other ones. Three times what such a mean scatters by. */
    const double mean = sum / (double)count, epsilon = dtype == ATTUNE_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    const double coarser = fmax(reference_epsilon(rule), reference_epsilon(p->tensor.dtype));
    const double scatter = 3 * coarser * sqrt(row_squares) / (double)count, unit = epsilon * (1 + largest_score);
    /* A capture's gradient comes from differences to O, as its dtype keeps it: one element alone is no statistic. */
    const bool drawn = capture && p->tensor.dtype != rule && largest > 0;
    const double most_drawn = drawn ? fmax(coarser * sqrt(squares / (double)count), rounded_o) : 0;
    reference_error found;
    reference_compare(p->tensor.dtype, count, values, values + count, values + 2 * count, &found);
    return accept(c, dtype, what, found, count, values, values + count, values + 2 * count,
                  unit * largest + most_drawn + epsilon * most_terms,
                  unit * mean + scatter + (drawn ? rounded_o * mean / largest : 0) + epsilon * terms / (double)count,
                  why);
}

/* A random d_o, and d_lse in half of the cases. */
static bool make_upstream(const attention *a, attune_dtype dtype, uint64_t seed, running *r, failure *why)
{
    const int64_t size[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    random_state random = {seed};
    if (!array_create(&r->upstream, a->o_dtype, 4, size, why))
        return false;
    array_fill_normal(&r->upstream, &random, 1);
    if (seed % 2 == 0)
        return true;
    if (!array_create(&r->upstream_lse, dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 3, size, why))
        return false;
    array_fill_normal(&r->upstream_lse, &random, 1);
    return true;
}

/* Rows that the mask empties have gradients of exactly 0. Gives the largest LSE. */
static bool check_empty_rows(const attention_case *c, attune_dtype dtype, const running *r, double *largest,
                             failure *why)
{
    const int64_t rows = c->batch * c->heads * c->q_len, d = c->head_dim;
    double *values = calloc((size_t)(rows * (d + 1)), sizeof *values);
    bool ok = values && !collect(&r->lse, values) && !collect(&r->d_q, values + rows);
    for (int64_t i = 0; ok && i < rows * d; i++)
        ok = values[i / d] != -INFINITY || values[rows + i] == 0;
    for (int64_t i = 0; ok && i < rows; i++)
        *largest = isfinite(values[i]) ? fmax(*largest, fabs(values[i])) : *largest;
    free(values);
    return ok || failure_set(why, "%s %s: dq of an empty row is not 0, or an output was overrun", c->name,
                             attune_dtype_string(dtype));
}

/* By the rule, and by what roundings of O may move, of the head where that is most. */
static bool compare_sinks(const attention_case *c, attune_dtype dtype, const running *r, double *values, failure *why)
{
    const int64_t heads = c->heads;
    const char *error = collect(&r->d_sinks, values);
    if (error)
        return failure_set(why, "%s %s d_sinks: %s", c->name, attune_dtype_string(dtype), error);
    may_cancel(heads, values + heads, values + 2 * heads);
    double most = 0;
    for (int64_t h = 0; h < heads; h++)
        most = fmax(most, values[3 * heads + h]);
    if (dtype == ATTUNE_F64)
        most *= DBL_EPSILON / FLT_EPSILON;
    reference_error found;
    reference_compare(r->d_sinks.tensor.dtype, heads, values, values + heads, values + 2 * heads, &found);
    return accept(c, dtype, "d_sinks", found, heads, values, values + heads, values + 2 * heads, most, most, why);
}

static bool compare_gradients(attune_instance *instance, const attention_case *c, attune_dtype dtype,
                              const attention *a, const running *r, failure *why)
{
    const placed *outputs[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {&r->d_q, &r->d_k, &r->d_v};
    const char *names[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {"dq", "dk", "dv"};
    int64_t columns[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {a->q.size[3], a->k.size[3], a->v.size[3]};
    double *values[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    int64_t counts[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {array_count(&a->q), array_count(&a->k), array_count(&a->v)};
    for (uint32_t i = 0; i < a->capture_count; i++) {
        outputs[3 + i] = r->wanted >> i & 1 ? &r->d_captures[i] : NULL;
        names[3 + i] = a->captures[i].name;
        columns[3 + i] = 1;
        counts[3 + i] = attention_capture_elements(a, 1u << i);
    }
    /* got, oracle, naive, and how far it may move */
    double *sinks = a->sinks.data ? calloc(4 * (size_t)c->heads, sizeof *sinks) : NULL;
    bool ok = !a->sinks.data || sinks || failure_set(why, "out of memory in the test");
    for (uint32_t i = 0; i < 3 + a->capture_count && ok; i++)
        if (outputs[i] && !(values[i] = calloc(4 * (size_t)counts[i], sizeof(double))))
            ok = failure_set(why, "out of memory in the test");
    for (int precision = 1; precision < 3 && ok; precision++) {
        gradient_result result = {values[0] + precision * counts[0],
                                  values[1] + precision * counts[1],
                                  values[2] + precision * counts[2],
                                  {NULL},
                                  {NULL},
                                  sinks ? sinks + precision * c->heads : NULL,
                                  sinks && precision == 1 ? sinks + 3 * c->heads : NULL};
        for (int i = 0; i < 2 && precision == 1; i++)
            result.cancelled[i] = values[i] + 3 * counts[i];
        for (uint32_t i = 0; i < a->capture_count; i++)
            if (outputs[3 + i])
                result.d_captures[i] = values[3 + i] + precision * counts[3 + i];
        for (uint32_t i = 0; i < a->capture_count && precision == 1; i++)
            if (outputs[3 + i])
                result.cancelled[2 + i] = values[3 + i] + 3 * counts[3 + i];
        ok = gradients_compute(a, &r->upstream, r->upstream_lse.data ? &r->upstream_lse : NULL,
                               precision == 1 ? REFERENCE_ORACLE : REFERENCE_NAIVE, &result, why);
    }
    double largest = 0;
    reference_cancellation rounded = {0};
    failure too_long;
    ok = ok && check_empty_rows(c, dtype, r, &largest, why);
    /* Nothing more is allowed where a derivative has more text than an expression may. */
    if (ok && r->wanted &&
        !reference_cancelled(instance, a, &r->upstream, r->upstream_lse.data ? &r->upstream_lse : NULL, r->wanted,
                             &rounded, &too_long))
        rounded = (reference_cancellation){0};
    for (uint32_t i = 0; i < 3 + a->capture_count && ok; i++)
        if (outputs[i])
            ok = compare_gradient(c, a, names[i], outputs[i], columns[i], largest,
                                  i < 3 ? 0 : rounded.d_captures[i - 3], values[i], why);
    ok = ok && (!sinks || compare_sinks(c, dtype, r, sinks, why));
    for (uint32_t i = 0; i < 3 + a->capture_count; i++)
        free(values[i]);
    free(sinks);
    return ok;
}

bool case_run_gradients(attune_instance *instance, attune_device *device, const attention_case *c, attune_dtype dtype,
                        uint64_t seed, failure *why)
{
    attention a;
    /* Options name the forward pass. */
    attention_case plain = *c;
    plain.options = NULL;
    if (!case_instantiate(instance, &plain, dtype, seed, &a, why))
        return false;
    running r = {0};
    bool ok = make_upstream(&a, dtype, seed, &r, why);
    if (ok) {
        const char *error = prepare(instance, device, &plain, dtype, &a, &r);
        if (!error)
            error = launch(device, &a, &r);
        ok = !error || fail_running(c, dtype, &r, error, why);
    }
    ok = ok && compare_gradients(instance, &plain, dtype, &a, &r, why);
    finish(&r);
    case_release(&a);
    return ok;
}

bool case_check_gradients(attune_instance *instance, attune_device *device, const attention_case *c, const attention *a,
                          const case_gradients *g, failure *why)
{
    running r = {.upstream = g->d_o,
                 .upstream_lse = g->d_lse,
                 .wanted = attention_differentiable(a),
                 .capture_count = a->capture_count};
    const struct {
        const array *from;
        placed *to;
    } results[] = {
        {g->lse, &r.lse}, {&g->d_q, &r.d_q}, {&g->d_k, &r.d_k}, {&g->d_v, &r.d_v}, {&g->d_sinks, &r.d_sinks}};
    const char *error = NULL;
    for (size_t i = 0; i < sizeof results / sizeof *results && !error; i++) {
        const array *from = results[i].from;
        if (from->data)
            error = place(device, LAYOUT_CONTIGUOUS, from->dtype, from->rank, from->size, from, results[i].to);
    }
    for (uint32_t i = 0; i < a->capture_count && !error; i++) {
        const array *from = &g->d_captures[i];
        if (from->data)
            error = place(device, LAYOUT_CONTIGUOUS, from->dtype, from->rank, from->size, from, &r.d_captures[i]);
    }
    const bool ok =
        error ? failure_set(why, "%s: %s", c->name, error) : compare_gradients(instance, c, a->q.dtype, a, &r, why);
    r.upstream.data = r.upstream_lse.data = NULL;
    finish(&r);
    return ok;
}

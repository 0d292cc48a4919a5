/* SPDX-License-Identifier: MIT */
/* GGML_OP_FLASH_ATTN_EXT as a problem of attune's (operation.h). */
#include "operation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 1024, MAX_BATCH = 256, MAX_LENGTHS = 1 << 24, TEXT = OPERATION_TEXT };

/* All that a plan depends on: two operations with the same bytes share one. */
typedef struct shape {
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len; /* lengths rounded up to powers of two */
    int64_t head_dim, head_dim_v, mask_batch, mask_heads;    /* 0 heads = no mask */
    float scale, max_bias, softcap;
    enum ggml_type k_type, v_type;
    int32_t sinks;
} shape;

/* An operation and what its arguments are made of. */
typedef struct entry {
    operation base;
    struct entry *next;
    shape shape;
    bool serving; /* types that only a cache has: attune reads K and V as one page of each sequence */
    attune_expr *score;
    attune_buffer *slopes;  /* ALiBi: a factor of the mask for each head */
    attune_buffer *lengths; /* serving: for each number n up to kv_len, n for each sequence: the keys of a call's */
} entry;

/* The planner's answer for a shape. */
typedef struct answer {
    struct answer *next;
    shape shape;
    const char *kernel; /* NULL = none, for the reason */
    char reason[TEXT];
} answer;

struct operation_plans {
    attune_instance *instance;
    attune_device *device;
    attune_limits limits;
    int64_t block_rows;
    entry *entries;
    answer *answers;
};

static int refuse(char *reason, const char *text)
{
    snprintf(reason, TEXT, "%s", text);
    return -1;
}

static void entry_destroy(entry *x)
{
    if (!x)
        return;
    attune_plan_destroy(x->base.plan);
    attune_mask_destroy(x->base.mask);
    attune_buffer_destroy(x->base.scratch);
    attune_expr_destroy(x->score);
    attune_buffer_destroy(x->slopes);
    attune_buffer_destroy(x->lengths);
    free(x);
}

operation_plans *operation_plans_create(attune_instance *instance, attune_device *device, int64_t block_rows)
{
    operation_plans *plans = calloc(1, sizeof *plans);
    attune_device_info info = {.struct_size = sizeof info};
    if (!plans || attune_device_info_get(device, &info)) {
        free(plans);
        return NULL;
    }
    plans->instance = instance;
    plans->device = device;
    plans->limits = info.limits;
    plans->block_rows = block_rows;
    return plans;
}

void operation_plans_destroy(operation_plans *plans)
{
    if (!plans)
        return;
    for (entry *x = plans->entries, *next; x; x = next) {
        next = x->next;
        entry_destroy(x);
    }
    for (answer *a = plans->answers, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    free(plans);
}

/* ------------------------------------------------------------------------------------------------------------ shapes
 */

static attune_dtype dtype_of(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return ATTUNE_F32;
    case GGML_TYPE_F16:
        return ATTUNE_F16;
    case GGML_TYPE_BF16:
        return ATTUNE_BF16;
    case GGML_TYPE_Q8_0:
        return ATTUNE_Q8_0;
    case GGML_TYPE_Q4_0:
        return ATTUNE_Q4_0;
    default:
        return 0;
    }
}

static int64_t round_up(int64_t n)
{
    int64_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* ggml's dimensions are innermost first, its strides in bytes. False if a stride is not a whole number of blocks. */
static bool tensor_of(const struct ggml_tensor *t, attune_tensor *out)
{
    const size_t block = ggml_type_size(t->type);
    *out = (attune_tensor){.dtype = dtype_of(t->type), .rank = 4};
    for (int i = 0; i < 4; i++) {
        if (t->nb[i] % block || (i == 0 && t->nb[0] != block))
            return false;
        out->size[3 - i] = t->ne[i];
        out->stride[3 - i] = (int64_t)(t->nb[i] / block);
    }
    return true;
}

static bool is_serving(const shape *s)
{
    return s->k_type != s->v_type || ggml_is_quantized(s->k_type);
}

/* The shape of an operation, or why attune cannot have it. */
static int shape_of(const struct ggml_tensor *op, shape *s, char *reason)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    attune_tensor view;
    memset(s, 0, sizeof *s); /* compared by memcmp */
    memcpy(&s->scale, (const float *)op->op_params + 0, sizeof(float));
    memcpy(&s->max_bias, (const float *)op->op_params + 1, sizeof(float));
    memcpy(&s->softcap, (const float *)op->op_params + 2, sizeof(float));
    s->batch = q->ne[3], s->kv_batch = k->ne[3];
    s->heads = q->ne[2], s->kv_heads = k->ne[2];
    s->q_len = round_up(q->ne[1]), s->kv_len = round_up(k->ne[1]);
    s->head_dim = q->ne[0], s->head_dim_v = v->ne[0];
    s->k_type = k->type, s->v_type = v->type;
    s->sinks = op->src[4] != NULL;
    if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32)
        return refuse(reason, "q or the result is not f32");
    if (s->scale == 0)
        return refuse(reason, "a scale of 0, which is attune's for the default");
    for (int i = 1; i < 3; i++)
        if (!dtype_of(op->src[i]->type)) {
            snprintf(reason, TEXT, "no %s keys or values", ggml_type_name(op->src[i]->type));
            return -1;
        }
    if (!tensor_of(q, &view) || !tensor_of(k, &view) || !tensor_of(v, &view))
        return refuse(reason, "a row of q, k or v is not contiguous");
    if (v->ne[2] != k->ne[2] || v->ne[3] != k->ne[3])
        return refuse(reason, "k and v have different numbers of heads or sequences");
    if (s->heads > MAX_HEADS || s->batch > MAX_BATCH)
        return refuse(reason, "more heads or sequences than this example has space for");
    if (is_serving(s) && (s->kv_len + 1) * s->batch > MAX_LENGTHS)
        return refuse(reason, "more keys in all sequences than this example has space for");
    if (mask) {
        s->mask_batch = mask->ne[3], s->mask_heads = mask->ne[2];
        if (mask->type != GGML_TYPE_F16 || !tensor_of(mask, &view))
            return refuse(reason, "the mask is not f16 with contiguous rows");
        if (mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1])
            return refuse(reason, "the mask is smaller than q x k");
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- plans
 */

/* softcap(s) + slope[h] * mask[b, h, q, kv]. In a batch of sequences q is the position, in a call without one the row.
 */
static attune_status score_create(const operation_plans *p, const shape *s, bool serving, attune_expr **score)
{
    const attune_symbol symbols[] = {{"m", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 4},
                                     {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1}};
    char text[TEXT] = "score";
    if (s->softcap != 0)
        snprintf(text, sizeof text, "%.9g * tanh(score / %.9g)", (double)s->softcap, (double)s->softcap);
    const size_t used = strlen(text);
    if (s->mask_heads)
        snprintf(text + used, sizeof text - used, " + %sm[b %% %lld, h %% %lld, %s, kv]",
                 s->max_bias > 0 ? "slope[h] * " : "", (long long)s->mask_batch, (long long)s->mask_heads,
                 serving ? "q - (kv_len - q_len)" : "q");
    else if (s->softcap == 0)
        return ATTUNE_OK;
    return attune_expr_create(p->instance, ATTUNE_EXPR_SCORE, text, symbols, 2, score);
}

/* ggml's: the slopes of a power of two of heads, then those between them. */
static void slopes_fill(const shape *s, float *slope)
{
    const int64_t power = (int64_t)1 << (int)floor(log2((double)s->heads));
    const float m0 = powf(2, -s->max_bias / (float)power), m1 = powf(2, -s->max_bias / 2 / (float)power);
    for (int64_t h = 0; h < s->heads; h++)
        slope[h] = h < power ? powf(m0, (float)(h + 1)) : powf(m1, (float)(2 * (h - power) + 1));
}

/* A mask tensor that a block mask can follow. */
static bool has_blocks(const operation_plans *p, const shape *s)
{
    return s->q_len >= p->block_rows && !is_serving(s) && s->mask_heads &&
           (s->mask_batch == 1 || s->mask_batch == s->batch) && (s->mask_heads == 1 || s->mask_heads == s->heads);
}

static attune_problem problem_of(const shape *s, const attune_expr *score)
{
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = (uint32_t)s->head_dim,
                              .head_dim_v = (uint32_t)s->head_dim_v,
                              .batch = s->batch,
                              .kv_batch = s->kv_batch,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .q_len = s->q_len,
                              .kv_len = s->kv_len,
                              .scale = (double)s->scale,
                              .score = score,
                              .kv_dtype = dtype_of(s->k_type),
                              .sinks = s->sinks != 0};
    if (is_serving(s)) {
        problem.tokens = s->batch * s->q_len;
        problem.v_dtype = dtype_of(s->v_type);
    }
    return problem;
}

static attune_status upload(const operation_plans *p, const void *data, uint64_t size, attune_buffer **buffer)
{
    const attune_status status = attune_buffer_create(p->device, size, buffer);
    return status ? status : attune_buffer_write(*buffer, 0, data, size);
}

static attune_status upload_lengths(const operation_plans *p, entry *x)
{
    const int64_t batch = x->shape.batch, count = (x->shape.kv_len + 1) * batch;
    int32_t *lengths = malloc((size_t)count * sizeof *lengths);
    if (!lengths)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (int64_t i = 0; i < count; i++)
        lengths[i] = (int32_t)(i / batch);
    const attune_status status = upload(p, lengths, (uint64_t)count * sizeof *lengths, &x->lengths);
    free(lengths);
    return status;
}

static attune_status entry_fill(const operation_plans *p, entry *x)
{
    const shape *s = &x->shape;
    float slope[MAX_HEADS];
    attune_status status = score_create(p, s, x->serving, &x->score);
    attune_problem problem = problem_of(s, x->score);
    if (!status && x->serving)
        status = upload_lengths(p, x);
    if (!status && has_blocks(p, s)) {
        const attune_mask_desc desc = {.struct_size = sizeof desc,
                                       .batch = s->batch,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .q_len = s->q_len,
                                       .kv_len = s->kv_len};
        status = attune_mask_create_tensor(p->device, &desc, ATTUNE_F16, s->mask_batch, s->mask_heads, &x->base.mask);
        if (!status)
            status = attune_problem_set_mask(&problem, x->base.mask);
    }
    if (!status)
        status = attune_plan_create(p->device, &problem, NULL, &x->base.plan);
    slopes_fill(s, slope);
    if (!status)
        status = upload(p, slope, (uint64_t)s->heads * sizeof *slope, &x->slopes);
    return status;
}

static void answer_fill(const operation_plans *plans, answer *a)
{
    attune_expr *score = NULL;
    attune_plan_choice choice = {.struct_size = sizeof choice};
    attune_status status = score_create(plans, &a->shape, is_serving(&a->shape), &score);
    const attune_problem problem = problem_of(&a->shape, score);
    if (!status)
        status = attune_plan_choose(&plans->limits, &problem, NULL, &choice);
    if (status)
        refuse(a->reason, attune_last_error());
    else
        a->kernel = choice.kernel;
    attune_expr_destroy(score);
}

const char *operation_kernel(operation_plans *plans, const struct ggml_tensor *op, char reason[OPERATION_TEXT])
{
    shape s;
    if (shape_of(op, &s, reason))
        return NULL;
    answer *a = plans->answers;
    while (a && memcmp(&a->shape, &s, sizeof s))
        a = a->next;
    if (!a) {
        a = calloc(1, sizeof *a);
        if (!a) {
            refuse(reason, "no memory");
            return NULL;
        }
        a->shape = s;
        answer_fill(plans, a);
        a->next = plans->answers;
        plans->answers = a;
    }
    if (!a->kernel)
        refuse(reason, a->reason);
    return a->kernel;
}

bool operation_is_made(const operation_plans *plans, const struct ggml_tensor *op)
{
    shape s;
    char reason[TEXT];
    if (shape_of(op, &s, reason))
        return false;
    const entry *x = plans->entries;
    while (x && memcmp(&x->shape, &s, sizeof s))
        x = x->next;
    return x != NULL;
}

operation *operation_find(operation_plans *plans, const struct ggml_tensor *op, char reason[OPERATION_TEXT])
{
    shape s;
    if (shape_of(op, &s, reason))
        return NULL;
    for (entry *x = plans->entries; x; x = x->next)
        if (!memcmp(&x->shape, &s, sizeof s))
            return &x->base;
    entry *x = calloc(1, sizeof *x);
    if (!x) {
        refuse(reason, "no memory");
        return NULL;
    }
    x->shape = s;
    x->serving = is_serving(&s);
    if (entry_fill(plans, x)) {
        refuse(reason, attune_last_error());
        entry_destroy(x);
        return NULL;
    }
    x->next = plans->entries;
    plans->entries = x;
    return &x->base;
}

/* ----------------------------------------------------------------------------------------------------------- the call
 */

static attune_status lend_tensor(operation_lend lend, void *user, const struct ggml_tensor *t, attune_tensor *out)
{
    tensor_of(t, out);
    return lend(user, t, &out->buffer, &out->offset);
}

attune_status operation_call_fill(const operation *base, const struct ggml_tensor *op, operation_lend lend, void *user,
                                  operation_call *call)
{
    const entry *x = (const entry *)base;
    const shape *s = &x->shape;
    const int64_t q_len = op->src[0]->ne[1], kv_len = op->src[1]->ne[1];
    attune_tensor k, v, mask = {.rank = 4};
    *call = (operation_call){.args.struct_size = sizeof call->args};
    attune_forward_args *args = &call->args;
    attune_status status = lend_tensor(lend, user, op->src[0], &args->q);
    if (!status)
        status = lend_tensor(lend, user, op->src[1], &k);
    if (!status)
        status = lend_tensor(lend, user, op->src[2], &v);
    if (!status)
        status = lend_tensor(lend, user, op, &args->o);
    if (!status && op->src[3])
        status = lend_tensor(lend, user, op->src[3], &mask);
    if (!status && op->src[4]) {
        status = lend_tensor(lend, user, op->src[4], &args->sinks);
        args->sinks.rank = 1;
        args->sinks.size[0] = s->heads;
        args->sinks.stride[0] = 1;
    }
    if (status)
        return status;

    /* The result is [batch, q_len, heads, head_dim_v]. */
    const int64_t stride = args->o.stride[1];
    args->o.size[1] = s->heads;
    args->o.size[2] = q_len;
    args->o.stride[1] = args->o.stride[2];
    args->o.stride[2] = stride;

    const attune_tensor slopes = {x->slopes, 0, ATTUNE_F32, 1, {s->heads}, {1}};
    call->captures[0] = (attune_capture){"m", mask};
    call->captures[1] = (attune_capture){"slope", slopes};
    args->captures = call->captures;
    args->capture_count = 2;
    if (x->serving) {
        const uint64_t offset = (uint64_t)(kv_len * s->batch) * sizeof(int32_t);
        const attune_tensor lengths = {x->lengths, offset, ATTUNE_I32, 1, {s->batch}, {1}};
        call->cache = (attune_cache){.struct_size = sizeof call->cache, .k = k, .v = v};
        call->batch = (attune_batch){.struct_size = sizeof call->batch, .kv_len = lengths};
        args->cache = &call->cache;
        args->batch = &call->batch;
    } else {
        args->k = k;
        args->v = v;
        args->mask = base->mask;
    }
    call->lists = mask;
    call->lists.size[2] = q_len;
    call->lists.size[3] = kv_len;
    return ATTUNE_OK;
}

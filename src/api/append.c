/* SPDX-License-Identifier: MIT */
/* New rows of a cache: checks what the host can know. */
#include "api/api.h"

/* A call and the part of it that is checked. */
typedef struct append {
    const attune_plan *plan;
    const attune_append_args *args;
    attune__append call;
    attune__forward_call forward;
} append;

/* The rank of rows without their columns is 2 if they are packed, else 3. */
static bool packed(const append *a)
{
    return !a->args->batch || a->forward.serving.packed;
}

/* Rows of some heads, which become [batch or 1, heads, rows, columns]; `like` has the batch and the rows, NULL = any.
 */
static attune_status check_rows(const append *a, const char *name, int64_t heads, const char *what, int64_t columns,
                                const char *whose, bool writable, const attune_tensor *like, attune_tensor *tensor)
{
    const attune__tensor_rule rule = {name, a->plan->device, a->plan->shape.q_dtype, packed(a) ? 3 : 4, writable, true};
    ATTUNE__TRY(attune__tensor_check(tensor, &rule));
    ATTUNE__TRY(attune__check_size(name, tensor, 1, what, heads));
    ATTUNE__TRY(attune__check_size(name, tensor, rule.rank - 1, whose, columns));
    if (like) {
        const uint32_t rows = packed(a) ? 0 : 2;
        ATTUNE__TRY(attune__check_size(name, tensor, rows, "the rows of k", like->size[2]));
        if (!packed(a))
            ATTUNE__TRY(attune__check_size(name, tensor, 0, "the sequences of k", like->size[0]));
    }
    if (packed(a))
        attune__unpack(tensor);
    return ATTUNE_OK;
}

static attune_status check_keys(append *a)
{
    const attune__shape *s = &a->plan->shape;
    a->call.k = a->args->k;
    ATTUNE__TRY(check_rows(a, "k", s->kv_heads, "the plan's kv_heads", s->head_dim, "the plan's head_dim", false, NULL,
                           &a->call.k));
    const int64_t *size = a->call.k.size;
    if (packed(a))
        ATTUNE__TRY(attune__check_at_most("tokens (k.size[0])", size[2], s->tokens));
    else {
        ATTUNE__TRY(attune__check_at_most("q_len (k.size[2])", size[2], s->q_len));
        ATTUNE__TRY(attune__check_at_most("batch (k.size[0])", size[0], s->batch));
    }
    a->call.v = a->args->v;
    if ((a->call.v.buffer != NULL) != (a->args->cache->v.buffer != NULL))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "v.buffer is %s, but cache.v.buffer is %s: %s",
                            a->call.v.buffer ? "set" : "NULL", a->call.v.buffer ? "NULL" : "set",
                            a->call.v.buffer ? "v is a part of k, and is written with it" : "v has a place of its own");
    if (!a->call.v.buffer)
        return ATTUNE_OK;
    return check_rows(a, "v", s->kv_heads, "the plan's kv_heads", s->head_dim_v, "the plan's head_dim_v", false,
                      &a->call.k, &a->call.v);
}

static attune_status check_queries(append *a)
{
    const attune__shape *s = &a->plan->shape;
    attune_tensor *q = &a->forward.call.q;
    if (!a->args->q.buffer != !a->args->q_out.buffer)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "q.buffer is %s and q_out.buffer is %s: set both or neither",
                            a->args->q.buffer ? "set" : "NULL", a->args->q_out.buffer ? "set" : "NULL");
    *q = a->call.k; /* the rows, also without queries */
    q->buffer = NULL;
    if (!a->args->q.buffer)
        return ATTUNE_OK;
    *q = a->args->q;
    a->call.q_out = a->args->q_out;
    ATTUNE__TRY(
        check_rows(a, "q", s->heads, "the plan's heads", s->head_dim, "the plan's head_dim", false, &a->call.k, q));
    return check_rows(a, "q_out", s->heads, "the plan's heads", s->head_dim, "the plan's head_dim", true, &a->call.k,
                      &a->call.q_out);
}

/* Outputs: no two elements are one. */
static attune_status check_distinct(const append *a, const char *name, attune_tensor tensor)
{
    tensor.size[tensor.rank - 1] /= attune_dtype_block(tensor.dtype);
    return attune__tensor_check(&tensor,
                                &(attune__tensor_rule){name, a->plan->device, tensor.dtype, tensor.rank, true, false});
}

static attune_status check_cache(append *a, attune_cache *cache, attune_batch *batch)
{
    attune__forward *call = &a->forward.call;
    ATTUNE__TRY(attune__cache_resolve(a->plan, cache, batch, &a->forward));
    ATTUNE__TRY(check_distinct(a, "cache.k", call->k));
    if (cache->v.buffer)
        ATTUNE__TRY(check_distinct(a, "cache.v", call->v));
    else
        call->v.buffer = NULL;
    a->call.k_scale_rows = cache->k_scale.buffer && cache->k_scale.rank == 3;
    if (a->call.k_scale_rows)
        ATTUNE__TRY(check_distinct(a, "cache.k_scale", cache->k_scale));
    a->call.v_scale_rows = cache->v_scale.buffer && cache->v_scale.rank == 3;
    if (a->call.v_scale_rows)
        ATTUNE__TRY(check_distinct(a, "cache.v_scale", cache->v_scale));
    return ATTUNE_OK;
}

/* Integers of each row, which become [batch or 1, rows]. */
static attune_status check_row_integers(const append *a, const char *name, attune_dtype dtype, attune_tensor *tensor)
{
    if (!tensor->buffer)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__integers_check(a->plan, name, dtype, packed(a) ? 1 : 2, tensor));
    ATTUNE__TRY(attune__check_size(name, tensor, packed(a) ? 0 : 1, "the rows of k", a->call.k.size[2]));
    if (!packed(a))
        return attune__check_size(name, tensor, 0, "the sequences of k", a->call.k.size[0]);
    tensor->rank = 2;
    tensor->size[1] = tensor->size[0];
    tensor->stride[1] = tensor->stride[0];
    tensor->size[0] = 1;
    tensor->stride[0] = 0;
    return ATTUNE_OK;
}

static attune_status check_norm(const append *a, const char *name, attune_tensor *norm)
{
    const attune__shape *s = &a->plan->shape;
    if (!norm->buffer)
        return ATTUNE_OK;
    const bool own = norm->dtype == s->q_dtype;
    const attune__tensor_rule rule = {name, a->plan->device, own ? s->q_dtype : attune__shape_real(s), 1, false, false};
    ATTUNE__TRY(attune__tensor_check(norm, &rule));
    if (norm->size[0] > s->head_dim)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.size[0] is %lld, expected at most the plan's head_dim, %u",
                            name, (long long)norm->size[0], s->head_dim);
    return ATTUNE_OK;
}

static attune_status check_rotation(append *a)
{
    const attune__shape *s = &a->plan->shape;
    attune_tensor *tables[] = {&a->call.cosine, &a->call.sine};
    static const char *const names[] = {"cosine", "sine"};
    if (!a->args->cosine.buffer != !a->args->sine.buffer)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.buffer is NULL: set cosine and sine, or neither",
                            a->args->cosine.buffer ? "sine" : "cosine");
    const char *unread = a->args->positions.buffer ? "positions"
                         : a->args->rotary_first   ? "rotary_first"
                         : a->args->interleaved    ? "interleaved"
                                                   : NULL;
    if (!a->args->cosine.buffer && unread)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.%s is set without cosine and sine, which it belongs to",
                            unread);
    if (!a->args->cosine.buffer)
        return ATTUNE_OK;
    for (uint32_t i = 0; i < 2; i++) {
        const attune__tensor_rule rule = {names[i], a->plan->device, attune__shape_real(s), 2, false, false};
        ATTUNE__TRY(attune__tensor_check(tables[i], &rule));
        for (uint32_t j = 0; j < 2 && i; j++)
            ATTUNE__TRY(attune__check_size(names[i], tables[i], j, "that of cosine", tables[0]->size[j]));
    }
    if (tables[0]->size[1] > ((int64_t)s->head_dim - (int64_t)a->args->rotary_first) / 2)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "cosine.size[1] is %lld pairs of columns from rotary_first %u on, but head_dim is %u",
                            (long long)tables[0]->size[1], a->args->rotary_first, s->head_dim);
    if (!a->args->positions.buffer && !a->args->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "positions.buffer and batch are NULL, but cosine is set: a rotation needs positions");
    return ATTUNE_OK;
}

static attune_status resolve(append *a, attune_cache *cache, attune_batch *batch)
{
    const attune_append_args *args = a->args;
    attune__forward *call = &a->forward.call;
    *call = (attune__forward){.serving = &a->forward.serving,
                              .heads = a->plan->shape.heads,
                              .kv_heads = a->plan->shape.kv_heads,
                              .seconds = args->seconds};
    a->forward.serving = (attune__serving){.packed = batch && batch->q_start.buffer};
    a->call = (attune__append){.forward = call,
                               .slots = args->slots,
                               .positions = args->positions,
                               .q_norm = args->q_norm,
                               .k_norm = args->k_norm,
                               .cosine = args->cosine,
                               .sine = args->sine,
                               .norm_epsilon = args->norm_epsilon,
                               .rotary_first = args->rotary_first,
                               .interleaved = args->interleaved};
    if (!args->slots.buffer && !batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "slots.buffer and batch are NULL: one of them says where rows go");
    ATTUNE__TRY(check_keys(a));
    ATTUNE__TRY(check_queries(a));
    call->batch = 1;
    call->q_len = a->forward.serving.packed ? a->plan->shape.q_len : a->call.k.size[2];
    ATTUNE__TRY(check_cache(a, cache, batch));
    ATTUNE__TRY(check_row_integers(a, "slots", ATTUNE_I64, &a->call.slots));
    ATTUNE__TRY(check_row_integers(a, "positions", ATTUNE_I32, &a->call.positions));
    ATTUNE__TRY(check_norm(a, "k_norm", &a->call.k_norm));
    ATTUNE__TRY(check_norm(a, "q_norm", &a->call.q_norm));
    if (args->q_norm.buffer && !args->q.buffer)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.q_norm is set, but q.buffer is NULL");
    if (!(args->norm_epsilon >= 0) || (args->norm_epsilon > 0 && !args->k_norm.buffer && !args->q_norm.buffer))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.norm_epsilon is %g, expected at least 0, and 0 without %s",
                            args->norm_epsilon, "k_norm and q_norm");
    return check_rotation(a);
}

attune_status attune_append(const attune_plan *plan, attune_queue *queue, const attune_append_args *args,
                            attune_completion *completion)
{
    ATTUNE__TRY(attune__check_not_null(plan, "plan"));
    ATTUNE__TRY(attune__queue_check(queue, plan->device, "plan"));
    if (!plan->shape.tokens)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the plan reads no cache: set problem.tokens");
    attune_append_args copy;
    attune_cache cache;
    attune_batch batch;
    ATTUNE__TRY(attune__desc_read(&copy, sizeof copy, args, sizeof copy, "args"));
    ATTUNE__TRY(attune__desc_read(&cache, sizeof cache, copy.cache, sizeof cache, "args.cache"));
    copy.cache = &cache;
    if (copy.batch)
        ATTUNE__TRY(attune__desc_read(&batch, sizeof batch, copy.batch, sizeof batch, "args.batch"));
    append a = {.plan = plan, .args = &copy};
    ATTUNE__TRY(resolve(&a, &cache, copy.batch ? &batch : NULL));
    const attune__backend *backend = plan->device->backend;
    if (!backend->append)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s has no kernel that appends to a cache: use the CPU",
                            plan->device->info.id);
    uint64_t value = 0;
    ATTUNE__TRY(backend->append(plan->programs[0], queue, &a.call, &value));
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

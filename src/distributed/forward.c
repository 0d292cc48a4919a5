/* SPDX-License-Identifier: MIT */
/* Forward over several ranks: keys are sent, the own ones are computed meanwhile, then those of others; the results are
 * merged. Nothing here allocates. */
#include "distributed/distributed.h"

#include <string.h>

/* The arguments of one call, checked. */
typedef struct call {
    attune_distributed *d;
    attune_queue *queue;
    attune_forward_args args;
    attune_tensor k[ATTUNE__DISTRIBUTED_PARTS], v[ATTUNE__DISTRIBUTED_PARTS];
    double seconds;
} call;

/* ---------------------------------------------------------------------------------------------------------- tensors */

/* k or v of others, in the workspace, in the layout of the own ones. */
static attune_tensor received(const call *c, uint64_t at, attune_dtype dtype, uint32_t head_dim)
{
    const attune__shape *s = &c->d->shape;
    const int64_t keys = c->d->parts[ATTUNE__OTHERS].keys, columns = head_dim;
    attune_tensor t = {.buffer = c->args.workspace,
                       .offset = c->args.workspace_offset + at,
                       .dtype = dtype,
                       .rank = 4,
                       .size = {s->kv_batch, s->kv_heads, keys, columns},
                       .stride = {s->kv_heads * keys * columns, keys * columns, columns, 1}};
    if (c->d->token_major) {
        t.stride[1] = columns;
        t.stride[2] = s->kv_heads * columns;
    }
    return t;
}

/* Rows of k or v that are sent must be adjacent in memory. */
static attune_status check_keys(const call *c, const char *name, attune_dtype dtype, uint32_t head_dim,
                                attune_tensor *t)
{
    const attune_distributed *d = c->d;
    const attune__tensor_rule rule = {name, d->device, dtype, 4, false, true};
    ATTUNE__TRY(attune__tensor_check(t, &rule));
    const int64_t size[4] = {d->shape.kv_batch, d->shape.kv_heads, d->own_keys, head_dim};
    for (uint32_t i = 0; i < 4; i++)
        ATTUNE__TRY(attune__check_size(name, t, i, "this rank's", size[i]));
    const bool heads = !d->token_major || size[1] == 1 || t->stride[1] == size[3];
    const bool rows = size[2] == 1 || t->stride[2] == attune__transfer_row(d, head_dim);
    if (d->send_count && !(heads && rows))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.stride is %lld, %lld, %lld, but rows that are sent have no gaps with desc.token_major "
                            "%s: expected a row stride of %lld%s",
                            name, (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2],
                            d->token_major ? "true" : "false", (long long)attune__transfer_row(d, head_dim),
                            d->token_major ? " and a head stride of head_dim" : "");
    return ATTUNE_OK;
}

static attune_status check(call *c)
{
    const attune_distributed *d = c->d;
    const attune__shape *s = &d->shape;
    attune_forward_args *a = &c->args;
    if (a->mask || a->segments || a->segment_count || a->row_max.buffer || a->cache || a->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.%s is set, which several ranks do not have: leave it NULL",
                            a->mask             ? "mask (that of the description is used)"
                            : a->row_max.buffer ? "row_max"
                            : a->cache          ? "cache"
                            : a->batch          ? "batch"
                                                : "segments");
    if (d->workspace)
        ATTUNE__TRY(attune__workspace_check(d->device, a->workspace, a->workspace_offset, d->workspace, "the rank"));
    if (d->workspace && a->workspace->misalignment)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.workspace begins %u bytes after a multiple of 8, expected memory aligned to 8 bytes",
                            a->workspace->misalignment);
    c->k[ATTUNE__OWN] = a->k;
    c->v[ATTUNE__OWN] = a->v;
    if (d->own_keys) {
        ATTUNE__TRY(check_keys(c, "k", s->k_dtype, s->head_dim, &c->k[ATTUNE__OWN]));
        ATTUNE__TRY(check_keys(c, "v", s->v_dtype, s->head_dim_v, &c->v[ATTUNE__OWN]));
    }
    c->k[ATTUNE__OTHERS] = received(c, d->k_at, s->k_dtype, s->head_dim);
    c->v[ATTUNE__OTHERS] = received(c, d->v_at, s->v_dtype, s->head_dim_v);
    return ATTUNE_OK;
}

/* --------------------------------------------------------------------------------------------------------- exchange */

/* Adds the messages of one transfer of k or v. */
static uint32_t add_messages(const call *c, const attune__transfer *transfer, const attune_tensor *t,
                             attune_message *to)
{
    const attune_distributed *d = c->d;
    const uint64_t element = attune_dtype_size(t->dtype);
    const int64_t row = attune__transfer_row(d, (uint32_t)t->size[3]);
    const int64_t heads = d->token_major ? 1 : t->size[1];
    uint32_t count = 0;
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = b * t->stride[0] + h * t->stride[1] + transfer->start * row;
            attune_message *m = &to[count++];
            *m = (attune_message){.peer = transfer->peer,
                                  .buffer = t->buffer,
                                  .offset = t->offset + (uint64_t)at * element,
                                  .size = (uint64_t)(transfer->count * row) * element};
            if (d->device->backend->buffer_memory)
                m->memory = (char *)d->device->backend->buffer_memory(t->buffer) + m->offset;
        }
    return count;
}

/* k, then v, of each peer in turn. */
static uint32_t list_messages(const call *c, const attune__transfer *transfers, size_t count, int part,
                              attune_message *to)
{
    uint32_t listed = 0;
    for (size_t first = 0, end = 0; first < count; first = end) {
        while (end < count && transfers[end].peer == transfers[first].peer)
            end++;
        for (size_t i = first; i < end; i++)
            listed += add_messages(c, &transfers[i], &c->k[part], to + listed);
        for (size_t i = first; i < end; i++)
            listed += add_messages(c, &transfers[i], &c->v[part], to + listed);
    }
    return listed;
}

static attune_status exchange_failed(const attune_transport *t, const char *name, attune_status status)
{
    return attune__fail(status, "transport.%s failed on rank %u with %s", name, t->rank, attune_status_string(status));
}

static attune_status begin_exchange(const call *c)
{
    attune_distributed *d = c->d;
    const attune_transport *t = &d->transport;
    const uint32_t sends = list_messages(c, d->sends, d->send_count, ATTUNE__OWN, d->messages);
    attune_message *receive = d->messages + sends;
    const uint32_t receives = list_messages(c, d->receives, d->receive_count, ATTUNE__OTHERS, receive);
    const attune_status status = t->exchange(t->user, d->messages, sends, receive, receives, c->queue);
    return status == ATTUNE_OK ? status : exchange_failed(t, "exchange", status);
}

static attune_status finish_exchange(const call *c)
{
    const attune_transport *t = &c->d->transport;
    const attune_status status = t->finish ? t->finish(t->user, c->queue) : ATTUNE_OK;
    return status == ATTUNE_OK ? status : exchange_failed(t, "finish", status);
}

/* ---------------------------------------------------------------------------------------------------------- compute */

/* The symbols of the score expression: the engine's and those of attune__expr_gather. */
typedef struct symbols {
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t capture_count, parameter_count;
} symbols;

static attune_tensor positions_tensor(attune_buffer *buffer, int64_t count)
{
    return (attune_tensor){.buffer = buffer, .dtype = ATTUNE_I32, .rank = 1, .size = {count}, .stride = {1}};
}

/* Whether a name is of attune__expr_gather: the engine does not pass it. */
static bool own_capture(const call *c, int part, const char *name, attune_capture *capture)
{
    const attune_distributed *d = c->d;
    if (!strcmp(name, ATTUNE__GATHER_Q) && d->positions)
        *capture = (attune_capture){ATTUNE__GATHER_Q, positions_tensor(d->positions, d->rows)};
    else if (!strcmp(name, ATTUNE__GATHER_KV) && d->positions)
        *capture = (attune_capture){ATTUNE__GATHER_KV, positions_tensor(d->parts[part].positions, d->parts[part].keys)};
    else
        return false;
    return true;
}

static bool own_parameter(const call *c, const char *name, attune_parameter *parameter)
{
    if (!strcmp(name, ATTUNE__GATHER_Q_LEN))
        *parameter = (attune_parameter){ATTUNE__GATHER_Q_LEN, (double)c->d->q_len};
    else if (!strcmp(name, ATTUNE__GATHER_KV_LEN))
        *parameter = (attune_parameter){ATTUNE__GATHER_KV_LEN, (double)c->d->kv_len};
    else
        return false;
    return true;
}

static void find_symbol(const call *c, int part, const attune__symbol *symbol, symbols *found)
{
    const attune_forward_args *a = &c->args;
    if (symbol->kind == ATTUNE_SYMBOL_CAPTURE) {
        if (own_capture(c, part, symbol->name, &found->captures[found->capture_count])) {
            found->capture_count++;
            return;
        }
        for (uint32_t i = 0; a->captures && i < a->capture_count; i++)
            if (a->captures[i].name && !strcmp(a->captures[i].name, symbol->name)) {
                found->captures[found->capture_count++] = a->captures[i];
                return;
            }
        return;
    }
    if (own_parameter(c, symbol->name, &found->parameters[found->parameter_count])) {
        found->parameter_count++;
        return;
    }
    for (uint32_t i = 0; a->parameters && i < a->parameter_count; i++)
        if (a->parameters[i].name && !strcmp(a->parameters[i].name, symbol->name)) {
            found->parameters[found->parameter_count++] = a->parameters[i];
            return;
        }
}

static attune_tensor workspace_result(const call *c, int part, uint64_t at, const attune_tensor *like, uint32_t rank)
{
    const uint64_t offset = c->args.workspace_offset + c->d->part_at + (uint64_t)part * c->d->part_size + at;
    return attune__workspace_tensor(c->args.workspace, offset, attune__shape_real(&c->d->shape), like, rank);
}

/* Computes the keys of a part: into o and lse, or into a partial result if there are two. */
static attune_status compute(call *c, int part, uint64_t *value)
{
    const attune_distributed *d = c->d;
    attune__forward_call resolved;
    attune_forward_args a = c->args;
    symbols found = {.capture_count = 0};
    double seconds = 0;
    const attune_expr *score = d->plan->score;
    for (uint32_t i = 0; score && i < score->symbol_count; i++)
        find_symbol(c, part, &score->symbols[i], &found);
    a.captures = found.captures;
    a.capture_count = found.capture_count;
    a.parameters = found.parameters;
    a.parameter_count = found.parameter_count;
    a.k = c->k[part];
    a.v = c->v[part];
    a.mask = d->parts[part].mask;
    a.workspace_offset += d->plan_at;
    ATTUNE__TRY(attune__forward_resolve_at(d->plan, &a, NULL, &resolved));
    if (d->merger) {
        const attune_tensor o = resolved.call.o;
        resolved.call.o = workspace_result(c, part, 0, &o, 4);
        resolved.call.lse = workspace_result(c, part, d->lse_at, &o, 3);
        resolved.call.part = true;
        /* Only backends without f32 results keep those of 16 bits. */
        if (!d->device->backend->f32_outputs)
            resolved.call.o.dtype = o.dtype;
    }
    /* Of two parts, the first has the sinks, so that the result counts them once. */
    if (part == ATTUNE__OTHERS && d->parts[ATTUNE__OWN].keys)
        resolved.call.sinks.buffer = NULL;
    resolved.call.seconds = a.seconds ? &seconds : NULL;
    ATTUNE__TRY(attune__plan_forward(d->plan, c->queue, &resolved.call, value));
    c->seconds += seconds;
    return ATTUNE_OK;
}

/* attune__merge_part_fn */
static attune__merge_part result_at(const void *user, uint32_t index)
{
    const call *c = user;
    attune__merge_part part = {.o = workspace_result(c, (int)index, 0, &c->args.o, 4),
                               .lse = workspace_result(c, (int)index, c->d->lse_at, &c->args.o, 3)};
    if (!c->d->device->backend->f32_outputs)
        part.o.dtype = c->args.o.dtype;
    return part;
}

static attune_status merge(call *c, uint64_t *value)
{
    const attune_distributed *d = c->d;
    const attune_forward_args *a = &c->args;
    double seconds = 0;
    attune_tensor o = a->o, lse = a->lse;
    const attune__tensor_rule o_rule = {"o", d->device, d->shape.o_dtype, 4, true, true},
                              lse_rule = {"lse", d->device, attune__shape_real(&d->shape), 3, true, false};
    ATTUNE__TRY(attune__tensor_check(&o, &o_rule));
    if (lse.buffer)
        ATTUNE__TRY(attune__tensor_check(&lse, &lse_rule));
    const attune__merge step = {.o = o,
                                .lse = lse,
                                .workspace = a->workspace,
                                .workspace_offset = a->workspace_offset + d->merge_at,
                                .seconds = a->seconds ? &seconds : NULL,
                                .strict = true};
    ATTUNE__TRY(attune__merge_run(d->merger, c->queue, &step, ATTUNE__DISTRIBUTED_PARTS, result_at, c, value));
    c->seconds += seconds;
    return ATTUNE_OK;
}

static attune_status run(call *c, uint64_t *value)
{
    const attune_distributed *d = c->d;
    ATTUNE__TRY(check(c));
    ATTUNE__TRY(begin_exchange(c));
    if (d->parts[ATTUNE__OWN].keys)
        ATTUNE__TRY(compute(c, ATTUNE__OWN, value));
    ATTUNE__TRY(finish_exchange(c));
    if (d->parts[ATTUNE__OTHERS].keys)
        ATTUNE__TRY(compute(c, ATTUNE__OTHERS, value));
    if (d->merger)
        ATTUNE__TRY(merge(c, value));
    if (c->args.seconds)
        *c->args.seconds = c->seconds;
    return ATTUNE_OK;
}

attune_status attune_distributed_forward(attune_distributed *distributed, attune_queue *queue,
                                         const attune_forward_args *args, attune_completion *completion)
{
    ATTUNE__TRY(attune__check_not_null(distributed, "distributed"));
    attune_distributed *d = distributed;
    if (d->aborted)
        return attune__fail(ATTUNE_CANCELLED, "an earlier call failed and aborted the transport: make both anew");
    call c = {.d = d, .queue = queue};
    uint64_t value = 0;
    attune_status status = attune__queue_check(queue, d->device, "distributed");
    if (status == ATTUNE_OK)
        status = attune__desc_read(&c.args, sizeof c.args, args, sizeof c.args, "args");
    if (status == ATTUNE_OK)
        status = run(&c, &value);
    if (status != ATTUNE_OK) {
        d->aborted = true;
        d->transport.abort(d->transport.user);
        return status;
    }
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

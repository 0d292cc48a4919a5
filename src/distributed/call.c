/* SPDX-License-Identifier: MIT */
/* Both directions of calls over several ranks: checks, messages, symbols and merges. Nothing here allocates. */
#include "distributed/ranks.h"

#include <string.h>

attune_status attune__distributed_usable(const attune_distributed *d)
{
    ATTUNE__TRY(attune__check_not_null(d, "distributed"));
    if (d->aborted)
        return attune__fail(ATTUNE_CANCELLED, "an earlier call failed and aborted the transport: make both anew");
    return ATTUNE_OK;
}

attune_status attune__distributed_begin(const attune__distributed_call *c, attune_direction direction)
{
    const attune_direction made = c->d->shape.direction;
    ATTUNE__TRY(attune__queue_check(c->queue, c->d->device, "distributed"));
    if (made != direction)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT, "problem.direction is %s, this call is %s: make an object of this direction",
            made == ATTUNE_FORWARD ? "forward" : "backward", direction == ATTUNE_FORWARD ? "forward" : "backward");
    return ATTUNE_OK;
}

attune_status attune__distributed_end(attune__distributed_call *c, attune_status status, attune_completion *completion)
{
    if (status != ATTUNE_OK) {
        c->d->aborted = true;
        c->d->transport.abort(c->d->transport.user);
        return status;
    }
    if (completion)
        *completion = (attune_completion){c->queue, c->value};
    return ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

attune_tensor attune__distributed_keys(const attune__distributed_call *c, uint64_t at, int64_t keys, attune_dtype dtype,
                                       uint32_t head_dim)
{
    const attune__shape *s = &c->d->shape;
    const int64_t columns = head_dim;
    attune_tensor t = {.buffer = c->workspace,
                       .offset = c->workspace_offset + at,
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

attune_tensor attune__distributed_slice(const attune_tensor *t, int64_t start, int64_t count)
{
    attune_tensor slice = *t;
    slice.offset = (uint64_t)((int64_t)t->offset + start * t->stride[2] * (int64_t)attune_dtype_size(t->dtype));
    slice.size[2] = count;
    return slice;
}

attune_status attune__distributed_check_keys(const attune__distributed_call *c, const char *name, attune_dtype dtype,
                                             uint32_t head_dim, bool writable, attune_tensor *t)
{
    const attune_distributed *d = c->d;
    const attune__tensor_rule rule = {name, d->device, dtype, 4, writable, true};
    ATTUNE__TRY(attune__tensor_check(t, &rule));
    const int64_t size[4] = {d->shape.kv_batch, d->shape.kv_heads, d->own_keys, head_dim};
    for (uint32_t i = 0; i < 4; i++)
        ATTUNE__TRY(attune__check_size(name, t, i, "this rank's", size[i]));
    return ATTUNE_OK;
}

/* Rows of k or v that are sent must be adjacent in memory. */
static attune_status check_sent(const attune__distributed_call *c, const char *name, attune_dtype dtype,
                                uint32_t head_dim, attune_tensor *t)
{
    const attune_distributed *d = c->d;
    ATTUNE__TRY(attune__distributed_check_keys(c, name, dtype, head_dim, false, t));
    const bool heads = !d->token_major || t->size[1] == 1 || t->stride[1] == t->size[3];
    const bool rows = t->size[2] == 1 || t->stride[2] == attune__transfer_row(d, head_dim);
    if (d->send_count && !(heads && rows))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.stride is %lld, %lld, %lld, but rows that are sent have no gaps with desc.token_major "
                            "%s: expected a row stride of %lld%s",
                            name, (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2],
                            d->token_major ? "true" : "false", (long long)attune__transfer_row(d, head_dim),
                            d->token_major ? " and a head stride of head_dim" : "");
    return ATTUNE_OK;
}

attune_status attune__distributed_check_args(const attune_forward_args *a, const char *mask)
{
    const char *name = a->mask                           ? mask
                       : a->row_max.buffer               ? "row_max"
                       : a->cache                        ? "cache"
                       : a->batch                        ? "batch"
                       : a->schedule                     ? "schedule"
                       : a->segments || a->segment_count ? "segments"
                                                         : NULL;
    return name ? attune__fail(ATTUNE_INVALID_ARGUMENT,
                               "args.%s is set, which several ranks do not have: leave it NULL", name)
                : ATTUNE_OK;
}

attune_status attune__distributed_check_workspace(const attune__distributed_call *c)
{
    const attune_distributed *d = c->d;
    if (!d->workspace)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__workspace_check(d->device, c->workspace, c->workspace_offset, d->workspace, "the rank"));
    if (c->workspace->misalignment)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.workspace begins %u bytes after a multiple of 8, expected memory aligned to 8 bytes",
                            c->workspace->misalignment);
    return ATTUNE_OK;
}

attune_status attune__distributed_check(attune__distributed_call *c, const attune_tensor *k, const attune_tensor *v)
{
    const attune_distributed *d = c->d;
    const attune__shape *s = &d->shape;
    ATTUNE__TRY(attune__distributed_check_workspace(c));
    if (c->parameters)
        ATTUNE__TRY(attune__check_mask_parameters(d->mask_expr, d->mask_parameters, c->parameters, c->parameter_count));
    const int64_t others = d->parts[ATTUNE__OTHERS].keys;
    c->k[ATTUNE__OWN] = *k;
    c->v[ATTUNE__OWN] = *v;
    if (d->own_keys) {
        ATTUNE__TRY(check_sent(c, "k", s->k_dtype, s->head_dim, &c->k[ATTUNE__OWN]));
        ATTUNE__TRY(check_sent(c, "v", s->v_dtype, s->head_dim_v, &c->v[ATTUNE__OWN]));
    }
    c->k[ATTUNE__OTHERS] = attune__distributed_keys(c, d->k_at, others, s->k_dtype, s->head_dim);
    c->v[ATTUNE__OTHERS] = attune__distributed_keys(c, d->v_at, others, s->v_dtype, s->head_dim_v);
    return ATTUNE_OK;
}

/* --------------------------------------------------------------------------------------------------------- exchange */

void *attune__distributed_memory(const attune_buffer *buffer, uint64_t offset)
{
    const attune__backend *backend = buffer->device->backend;
    return backend->buffer_memory ? (char *)backend->buffer_memory(buffer) + offset : NULL;
}

/* Adds the messages of one transfer of k or v. */
static uint32_t add_messages(const attune__distributed_call *c, const attune__transfer *transfer,
                             const attune_tensor *t, attune_message *to)
{
    const attune_distributed *d = c->d;
    const uint64_t element = attune_dtype_size(t->dtype);
    const int64_t row = attune__transfer_row(d, (uint32_t)t->size[3]);
    const int64_t first = d->token_major ? 0 : c->kv_head, heads = d->token_major ? 1 : c->kv_heads;
    uint32_t count = 0;
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = first; h < first + heads; h++) {
            const int64_t at = b * t->stride[0] + h * t->stride[1] + transfer->start * row;
            attune_message *m = &to[count++];
            *m = (attune_message){.peer = transfer->peer,
                                  .buffer = t->buffer,
                                  .offset = t->offset + (uint64_t)at * element,
                                  .size = (uint64_t)(transfer->count * row) * element};
            m->memory = attune__distributed_memory(t->buffer, m->offset);
        }
    return count;
}

uint32_t attune__distributed_list(const attune__distributed_call *c, const attune__transfer *transfers, size_t count,
                                  size_t *next, uint32_t peer, const attune_tensor *k, const attune_tensor *v,
                                  attune_message *to)
{
    const size_t first = *next;
    uint32_t listed = 0;
    while (*next < count && transfers[*next].peer == peer)
        ++*next;
    for (size_t i = first; i < *next; i++)
        listed += add_messages(c, &transfers[i], k, to + listed);
    for (size_t i = first; i < *next; i++)
        listed += add_messages(c, &transfers[i], v, to + listed);
    return listed;
}

attune_status attune__distributed_callback_failed(const attune_transport *t, const char *name, attune_status status,
                                                  uint64_t failures)
{
    const char *why = attune__failures() == failures ? "" : attune_last_error();
    return attune__fail(status, "transport.%s failed on rank %u with %s%s%s", name, t->rank,
                        attune_status_string(status), *why ? ": " : "", why);
}

/* Gives messages their memory, and copies what is sent to it. */
static attune_status stage(const attune__distributed_call *c, uint32_t sends, uint32_t receives)
{
    attune_distributed *d = c->d;
    char *memory = d->staging;
    d->received = receives;
    for (uint32_t i = 0; i < sends + receives; i++) {
        attune_message *m = &d->messages[i];
        /* Receives are the first of the copies, as `finish` needs them. */
        attune__copy *copy = &d->copies[i < sends ? receives + i : i - sends];
        *copy = (attune__copy){m->buffer, m->offset, m->size, memory};
        m->memory = memory;
        memory += m->size;
    }
    return sends ? d->device->backend->copy(c->queue, d->copies + receives, sends, false) : ATTUNE_OK;
}

attune_status attune__distributed_exchange(const attune__distributed_call *c, uint32_t sends, uint32_t receives)
{
    const attune_transport *t = &c->d->transport;
    const attune_message *messages = c->d->messages;
    /* A device that was lost since the last launch: others must not wait for what comes after this exchange. */
    ATTUNE__TRY(attune__device_check(c->d->device));
    if (c->d->staging)
        ATTUNE__TRY(stage(c, sends, receives));
    const uint64_t failures = attune__failures();
    const attune_status status = t->exchange(t->user, messages, sends, messages + sends, receives, c->queue);
    return status == ATTUNE_OK ? status : attune__distributed_callback_failed(t, "exchange", status, failures);
}

attune_status attune__distributed_lend(const attune__distributed_call *c, attune_message *messages, uint32_t sends,
                                       uint32_t receives)
{
    const attune_transport *t = &c->d->transport;
    ATTUNE__TRY(attune__device_check(c->d->device));
    const uint64_t failures = attune__failures();
    const attune_status status = t->lend(t->user, messages, sends, messages + sends, receives, c->queue);
    return status == ATTUNE_OK ? status : attune__distributed_callback_failed(t, "lend", status, failures);
}

static uint32_t list_keys(const attune__distributed_call *c, const attune__transfer *transfers, size_t count, int part,
                          attune_message *to)
{
    uint32_t listed = 0;
    for (size_t next = 0; next < count;)
        listed += attune__distributed_list(c, transfers, count, &next, transfers[next].peer, &c->k[part], &c->v[part],
                                           to + listed);
    return listed;
}

/* Of some heads. */
static attune_status exchange_keys(attune__distributed_call *c, int64_t first, int64_t heads)
{
    const attune_distributed *d = c->d;
    c->kv_head = first;
    c->kv_heads = heads;
    const uint32_t sends = list_keys(c, d->sends, d->send_count, ATTUNE__OWN, d->messages);
    const uint32_t receives = list_keys(c, d->receives, d->receive_count, ATTUNE__OTHERS, d->messages + sends);
    return attune__distributed_exchange(c, sends, receives);
}

attune_status attune__distributed_finish(const attune__distributed_call *c)
{
    const attune_transport *t = &c->d->transport;
    const uint64_t failures = attune__failures();
    const attune_status status = t->finish ? t->finish(t->user, c->queue) : ATTUNE_OK;
    const attune_distributed *d = c->d;
    if (status != ATTUNE_OK)
        return attune__distributed_callback_failed(t, "finish", status, failures);
    ATTUNE__TRY(attune__device_check(d->device));
    return d->staging && d->received ? d->device->backend->copy(c->queue, d->copies, d->received, true) : ATTUNE_OK;
}

attune__merge_part attune__distributed_part_at(const void *user, uint32_t index)
{
    const attune_tensor *parts = user;
    return (attune__merge_part){.o = parts[index]};
}

/* Copies the own keys to their places among all keys. */
static attune_status copy_own(attune__distributed_call *c)
{
    attune__copied parts[ATTUNE__MERGE_PARTS];
    uint32_t listed = 0;
    for (size_t i = 0; i < c->d->own_copy_count; i++) {
        const attune__own_copy *copy = &c->d->own_copies[i];
        for (int of_v = 0; of_v < 2; of_v++) {
            const attune_tensor *tensors = of_v ? c->v : c->k;
            parts[listed++] =
                (attune__copied){.from = attune__distributed_slice(&tensors[ATTUNE__OWN], copy->start, copy->count),
                                 .to = attune__distributed_slice(&tensors[ATTUNE__OTHERS], copy->at, copy->count)};
        }
        if (listed == ATTUNE__MERGE_PARTS || i + 1 == c->d->own_copy_count) {
            ATTUNE__TRY(attune__distributed_copy(c, parts, listed));
            listed = 0;
        }
    }
    return ATTUNE_OK;
}

/* --------------------------------------------------------------------------------------------------- keys in place */

/* Copies that one launch makes. */
typedef struct copies {
    attune__distributed_call *call;
    attune__copied parts[ATTUNE__MERGE_PARTS];
    uint32_t count;
} copies;

static attune_status flush(copies *w)
{
    const attune_distributed *d = w->call->d;
    const attune__backend *backend = d->device->backend;
    const uint32_t count = w->count;
    w->count = 0;
    if (count && backend->copy_lent && !w->call->seconds)
        return backend->copy_lent(d->merger, w->call->queue, w->parts, count, NULL);
    return count ? attune__distributed_copy(w->call, w->parts, count) : ATTUNE_OK;
}

static attune_status add_copy(copies *w, attune_tensor from, attune_tensor to)
{
    w->parts[w->count++] = (attune__copied){.from = from, .to = to};
    return w->count == ATTUNE__MERGE_PARTS ? flush(w) : ATTUNE_OK;
}

/* Whether the planes of k or v of a transfer, each of which a message has, are evenly spaced; sets their strides. */
static bool find_strides(const attune_message *m, int64_t heads, attune_tensor *t)
{
    const int64_t element = (int64_t)attune_dtype_size(t->dtype), first = (int64_t)m[0].offset;
    const int64_t head = heads > 1 ? (int64_t)m[1].offset - first : 0,
                  batch = t->size[0] > 1 ? (int64_t)m[heads].offset - first : 0;
    bool even = head % element == 0 && batch % element == 0;
    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < heads; h++) {
            const attune_message *plane = &m[b * heads + h];
            even = even && plane->buffer == m->buffer && (int64_t)plane->offset - first == b * batch + h * head;
        }
    t->stride[0] = batch / element;
    t->stride[1] = heads > 1 ? head / element : t->stride[1];
    return even;
}

/* Copies k or v of a transfer from where another rank has it. */
static attune_status copy_lent(copies *w, const attune_message *m, attune_tensor to)
{
    const attune_distributed *d = w->call->d;
    const int64_t heads = d->token_major ? 1 : to.size[1], columns = to.size[3];
    attune_tensor from = to;
    from.buffer = m->buffer;
    from.offset = m->offset;
    from.stride[1] = columns;
    from.stride[2] = attune__transfer_row(d, (uint32_t)columns);
    if (find_strides(m, heads, &from))
        return add_copy(w, from, to);
    for (int64_t b = 0; b < to.size[0]; b++)
        for (int64_t h = 0; h < heads; h++) {
            attune_tensor plane = from, place = to;
            plane.buffer = m[b * heads + h].buffer;
            plane.offset = m[b * heads + h].offset;
            plane.stride[1] = columns;
            place.offset += (uint64_t)((b * to.stride[0] + h * to.stride[1]) * (int64_t)attune_dtype_size(to.dtype));
            plane.size[0] = place.size[0] = 1;
            if (!d->token_major)
                plane.size[1] = place.size[1] = 1;
            ATTUNE__TRY(add_copy(w, plane, place));
        }
    return ATTUNE_OK;
}

/* Those of others first, which take longer. */
static attune_status copy_all_keys(attune__distributed_call *c, const attune_message *lent)
{
    const attune_distributed *d = c->d;
    const size_t planes = (size_t)attune__transfer_planes(d);
    copies w = {.call = c};
    for (size_t i = 0, end; i < d->receive_count; i = end) {
        for (end = i; end < d->receive_count && d->receives[end].peer == d->receives[i].peer;)
            end++;
        for (int of_v = 0; of_v < 2; of_v++)
            for (size_t j = i; j < end; j++, lent += planes)
                ATTUNE__TRY(copy_lent(&w, lent,
                                      attune__distributed_slice(of_v ? &c->v[ATTUNE__OTHERS] : &c->k[ATTUNE__OTHERS],
                                                                d->receives[j].start, d->receives[j].count)));
    }
    for (size_t i = 0; i < d->own_copy_count; i++) {
        const attune__own_copy *copy = &d->own_copies[i];
        for (int of_v = 0; of_v < 2; of_v++) {
            const attune_tensor *t = of_v ? c->v : c->k;
            ATTUNE__TRY(add_copy(&w, attune__distributed_slice(&t[ATTUNE__OWN], copy->start, copy->count),
                                 attune__distributed_slice(&t[ATTUNE__OTHERS], copy->at, copy->count)));
        }
    }
    return flush(&w);
}

/* Nothing is sent. The second loan, of nothing that anyone reads, has the queue wait until the ranks that read this
 * one's keys have read them. */
static attune_status read_keys(attune__distributed_call *c)
{
    const attune_distributed *d = c->d;
    c->kv_head = 0;
    c->kv_heads = d->shape.kv_heads;
    const uint32_t sends = list_keys(c, d->sends, d->send_count, ATTUNE__OWN, d->messages);
    attune_message *lent = d->messages + sends;
    const uint32_t receives = list_keys(c, d->receives, d->receive_count, ATTUNE__OTHERS, lent);
    ATTUNE__TRY(attune__distributed_lend(c, d->messages, sends, receives));
    ATTUNE__TRY(copy_all_keys(c, lent));
    ATTUNE__TRY(attune__distributed_finish(c));
    ATTUNE__TRY(attune__distributed_lend(c, d->messages, sends, 0));
    return attune__distributed_finish(c);
}

/* --------------------------------------------------------------------------------------------------------- launches */

/* Some heads of k and v are sent first, and computed while the others arrive. On a rank whose own keys have a launch of
 * their own, all arrive before it. */
static attune_status compute_in_turn(attune__distributed_call *c, attune__distributed_compute_fn compute)
{
    const attune_distributed *d = c->d;
    const int64_t heads = d->shape.kv_heads, first = d->first_heads;
    const bool one_launch = d->own_copy_count > 0;
    ATTUNE__TRY(exchange_keys(c, 0, first));
    ATTUNE__TRY(copy_own(c));
    ATTUNE__TRY(attune__distributed_finish(c));
    ATTUNE__TRY(exchange_keys(c, first, heads - first));
    for (int part = 0; part < ATTUNE__DISTRIBUTED_PARTS; part++) {
        c->kv_head = 0;
        c->kv_heads = one_launch ? first : heads;
        if (part == ATTUNE__OTHERS && !one_launch)
            ATTUNE__TRY(attune__distributed_finish(c));
        if (d->parts[part].keys)
            ATTUNE__TRY(compute(c, part));
    }
    if (!one_launch)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__distributed_finish(c));
    c->kv_head = first;
    c->kv_heads = heads - first;
    return compute(c, ATTUNE__OTHERS);
}

attune_status attune__distributed_compute(attune__distributed_call *c, attune__distributed_compute_fn compute)
{
    const attune_distributed *d = c->d;
    if (d->first_heads)
        return compute_in_turn(c, compute);
    if (d->reads) {
        ATTUNE__TRY(read_keys(c));
    } else {
        ATTUNE__TRY(exchange_keys(c, 0, d->shape.kv_heads));
        ATTUNE__TRY(copy_own(c));
    }
    if (d->parts[ATTUNE__OWN].keys)
        ATTUNE__TRY(compute(c, ATTUNE__OWN));
    if (!d->reads)
        ATTUNE__TRY(attune__distributed_finish(c));
    if (d->parts[ATTUNE__OTHERS].keys)
        ATTUNE__TRY(compute(c, ATTUNE__OTHERS));
    return ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- symbols */

static attune_tensor positions_tensor(attune_buffer *buffer, int64_t count)
{
    return (attune_tensor){.buffer = buffer, .dtype = ATTUNE_I32, .rank = 1, .size = {count}, .stride = {1}};
}

/* Whether a name is of attune__expr_gather: the engine does not pass it. */
static bool own_capture(const attune_distributed *d, int part, const char *name, attune_capture *capture)
{
    if (!strcmp(name, ATTUNE__GATHER_Q) && d->positions)
        *capture = (attune_capture){ATTUNE__GATHER_Q, positions_tensor(d->positions, d->rows)};
    else if (!strcmp(name, ATTUNE__GATHER_KV) && d->positions)
        *capture = (attune_capture){ATTUNE__GATHER_KV, positions_tensor(d->parts[part].positions, d->parts[part].keys)};
    else
        return false;
    return true;
}

static bool own_parameter(const attune_distributed *d, const char *name, attune_parameter *parameter)
{
    if (!strcmp(name, ATTUNE__GATHER_Q_LEN))
        *parameter = (attune_parameter){ATTUNE__GATHER_Q_LEN, (double)d->q_len};
    else if (!strcmp(name, ATTUNE__GATHER_KV_LEN))
        *parameter = (attune_parameter){ATTUNE__GATHER_KV_LEN, (double)d->kv_len};
    else
        return false;
    return true;
}

static void find_symbol(const attune__distributed_call *c, int part, const attune__symbol *symbol,
                        attune__distributed_symbols *found)
{
    if (symbol->kind == ATTUNE_SYMBOL_CAPTURE) {
        if (own_capture(c->d, part, symbol->name, &found->captures[found->capture_count])) {
            found->capture_count++;
            return;
        }
        for (uint32_t i = 0; c->captures && i < c->capture_count; i++)
            if (c->captures[i].name && !strcmp(c->captures[i].name, symbol->name)) {
                found->captures[found->capture_count++] = c->captures[i];
                return;
            }
        return;
    }
    if (own_parameter(c->d, symbol->name, &found->parameters[found->parameter_count])) {
        found->parameter_count++;
        return;
    }
    for (uint32_t i = 0; c->parameters && i < c->parameter_count; i++)
        if (c->parameters[i].name && !strcmp(c->parameters[i].name, symbol->name)) {
            found->parameters[found->parameter_count++] = c->parameters[i];
            return;
        }
}

void attune__distributed_find_symbols(const attune__distributed_call *c, int part, attune__distributed_symbols *found)
{
    const attune_expr *score = c->d->plan->score;
    found->capture_count = found->parameter_count = 0;
    for (uint32_t i = 0; score && i < score->symbol_count; i++)
        find_symbol(c, part, &score->symbols[i], found);
}

/* ----------------------------------------------------------------------------------------------------------- merges */

static attune_tensor result(const attune__distributed_call *c, int part, uint64_t at, attune_dtype dtype,
                            const attune_tensor *like, uint32_t rank)
{
    const attune_distributed *d = c->d;
    const uint64_t index = attune__distributed_split(d) ? (uint64_t)part : 0,
                   offset = c->workspace_offset + d->part_at + index * d->part_size + at;
    return attune__workspace_tensor(c->workspace, offset, dtype, like, rank);
}

attune_tensor attune__distributed_result(const attune__distributed_call *c, int part, const attune_tensor *like)
{
    return result(c, part, 0, attune__shape_real(&c->d->shape), like, 4);
}

attune_tensor attune__distributed_result_lse(const attune__distributed_call *c, int part, const attune_tensor *like)
{
    return result(c, part, c->d->lse_at, attune__shape_real(&c->d->shape), like, 3);
}

attune_status attune__distributed_merge(attune__distributed_call *c, const attune_tensor *o, const attune_tensor *lse,
                                        uint32_t count, attune__merge_part_fn part, const void *user)
{
    double seconds = 0;
    attune__merge step = {.o = *o,
                          .workspace = c->workspace,
                          .workspace_offset = c->workspace_offset + c->d->merge_at,
                          .seconds = c->seconds ? &seconds : NULL,
                          .strict = true};
    if (lse)
        step.lse = *lse;
    ATTUNE__TRY(attune__merge_run(c->d->merger, c->queue, &step, count, part, user, &c->value));
    if (c->seconds)
        *c->seconds += seconds;
    return ATTUNE_OK;
}

attune_status attune__distributed_copy(attune__distributed_call *c, const attune__copied *parts, uint32_t count)
{
    const attune__backend *backend = c->d->device->backend;
    if (backend->copy_tensors && !c->seconds)
        return backend->copy_tensors(c->d->merger, c->queue, parts, count, backend->merge_splits ? NULL : &c->value);
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(attune__distributed_merge(c, &parts[i].to, NULL, 1, attune__distributed_part_at, &parts[i].from));
    return ATTUNE_OK;
}

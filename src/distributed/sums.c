/* SPDX-License-Identifier: MIT */
/*
 * Gradients that several ranks contribute to, summed in the order of ranks. Those of keys go to the rank that has them.
 * Those of captures and sinks are summed a slice on each rank, and the slices go to all.
 */
#include "distributed/ranks.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------- prepare */

/* Where this rank's gradients of own keys from `start` on are, among those of the launch; -1 = there are none. */
static int64_t own_gradient(const attune_distributed *d, int64_t start)
{
    for (size_t i = 0; i < d->own_copy_count; i++) {
        const attune__own_copy *copy = &d->own_copies[i];
        if (start >= copy->start && start < copy->start + copy->count)
            return copy->at + start - copy->start;
    }
    return d->parts[ATTUNE__OWN].keys ? start : -1;
}

/* The gradients of own keys from `start` on that ranks contribute, in the order of ranks. Returns their number; `to`
 * may be NULL. */
static size_t list_contributions(const attune_distributed *d, int64_t start, attune__contribution *to)
{
    size_t count = 0;
    const int64_t mine = own_gradient(d, start);
    bool own = mine >= 0;
    for (size_t i = 0; i <= d->send_count; i++) {
        if (own && (i == d->send_count || d->sends[i].peer > d->transport.rank)) {
            if (to)
                to[count] = (attune__contribution){false, mine};
            count++;
            own = false;
        }
        if (i == d->send_count || start < d->sends[i].start || start >= d->sends[i].start + d->sends[i].count)
            continue;
        if (to)
            to[count] = (attune__contribution){true, d->returns[i].start + start - d->sends[i].start};
        count++;
    }
    return count;
}

static int compare_positions(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Cuts the own keys where the ranks that contribute change, and where they are not adjacent among all keys. */
static attune_status make_key_sums(attune_distributed *d)
{
    const attune_allocator *allocator = &d->device->host.allocator;
    const size_t most = 2 * d->send_count + d->own_copy_count + 2;
    size_t contributions = 0;
    int64_t *cuts = attune__alloc(allocator, most, sizeof *cuts);
    d->sums = attune__alloc(allocator, most, sizeof *d->sums);
    if (!cuts || !d->sums) {
        attune__free(allocator, cuts);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    cuts[1] = d->own_keys;
    for (size_t i = 0; i < d->send_count; i++) {
        cuts[2 * i + 2] = d->sends[i].start;
        cuts[2 * i + 3] = d->sends[i].start + d->sends[i].count;
    }
    for (size_t i = 0; i < d->own_copy_count; i++)
        cuts[2 * d->send_count + 2 + i] = d->own_copies[i].start;
    qsort(cuts, most, sizeof *cuts, compare_positions);
    for (size_t i = 0; i + 1 < most; i++) {
        if (cuts[i] == cuts[i + 1])
            continue;
        const size_t count = list_contributions(d, cuts[i], NULL);
        d->sums[d->sum_count++] = (attune__key_sum){cuts[i], cuts[i + 1] - cuts[i], contributions, count};
        contributions += count;
    }
    attune__free(allocator, cuts);
    d->contributions = attune__alloc(allocator, contributions, sizeof *d->contributions);
    if (!d->contributions)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (size_t i = 0; i < d->sum_count; i++)
        list_contributions(d, d->sums[i].start, d->contributions + d->sums[i].first);
    return ATTUNE_OK;
}

static int64_t lines_of(uint64_t elements)
{
    return (int64_t)((elements + ATTUNE__REDUCTION_LINE - 1) / ATTUNE__REDUCTION_LINE);
}

attune_status attune__distributed_make_sums(attune_distributed *d, const attune_expr *score)
{
    const attune__shape *s = &d->shape;
    const attune_allocator *allocator = &d->device->host.allocator;
    int64_t *returned = &d->gradients[ATTUNE__RETURNED].keys;
    d->score = attune__expr_retain(score);
    d->returns = attune__alloc(allocator, d->send_count, sizeof *d->returns);
    if (!d->returns)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (size_t i = 0; i < d->send_count; i++) {
        d->returns[i] = (attune__transfer){d->sends[i].peer, *returned, d->sends[i].count};
        *returned += d->sends[i].count;
    }
    d->gradients[ATTUNE__OTHERS].keys = d->parts[ATTUNE__OTHERS].keys;
    if (d->own_keys) {
        d->gradients[ATTUNE__OWN].keys = d->parts[ATTUNE__OWN].keys;
        ATTUNE__TRY(make_key_sums(d));
    }
    d->reductions[ATTUNE__OF_CAPTURES] =
        (attune__reduction){.dtype = ATTUNE_F32, .lines = lines_of(s->capture_gradient_elements)};
    d->reductions[ATTUNE__OF_SINKS] =
        (attune__reduction){.dtype = attune__shape_real(s), .lines = s->sinks ? lines_of((uint64_t)s->heads) : 0};
    const uint32_t columns = s->head_dim > s->head_dim_v ? s->head_dim : s->head_dim_v;
    const uint64_t bytes = (columns > ATTUNE__REDUCTION_LINE ? columns : ATTUNE__REDUCTION_LINE) * sizeof(double);
    void *zeros = attune__alloc(allocator, 1, bytes);
    if (!zeros)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune_buffer_create(d->device, bytes, &d->zeros);
    if (status == ATTUNE_OK)
        status = attune_buffer_write(d->zeros, 0, zeros, bytes);
    attune__free(allocator, zeros);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- sums */

/* Zeros of any size. */
static attune_tensor zeros_like(const attune_distributed *d, const attune_tensor *t)
{
    attune_tensor zeros = {
        .buffer = d->zeros, .dtype = attune__shape_real(&d->shape), .rank = 4, .stride = {0, 0, 0, 1}};
    memcpy(zeros.size, t->size, sizeof zeros.size);
    return zeros;
}

static attune_status set_to_zero(attune__distributed_call *c, const attune_tensor *t)
{
    const attune_tensor zeros = zeros_like(c->d, t);
    return attune__distributed_merge(c, t, NULL, 1, attune__distributed_part_at, &zeros);
}

/* `count` lines from `at` on in the workspace. */
static attune_tensor lines_at(const attune__distributed_call *c, const attune__reduction *r, uint64_t at, int64_t line,
                              int64_t count)
{
    const int64_t columns = ATTUNE__REDUCTION_LINE;
    return (attune_tensor){.buffer = c->workspace,
                           .offset =
                               c->workspace_offset + at + (uint64_t)(line * columns) * attune_dtype_size(r->dtype),
                           .dtype = r->dtype,
                           .rank = 4,
                           .size = {1, 1, count, columns},
                           .stride = {0, 0, columns, 1}};
}

/* A tensor of any rank, checked, as one of rank 4 whose last dimension is contiguous. */
static attune_tensor as_rank_4(const attune_tensor *t)
{
    attune_tensor to = *t;
    const uint32_t last = t->rank - 1, behind = t->rank < 4 && t->stride[last] != 1;
    const uint32_t before = 4 - t->rank - behind;
    to.rank = 4;
    for (uint32_t i = 0; i < 4; i++) {
        const bool of_t = i >= before && i < before + t->rank;
        to.size[i] = of_t ? t->size[i - before] : 1;
        to.stride[i] = of_t ? t->stride[i - before] : i == 3;
    }
    return to;
}

/* ---------------------------------------------------------------------------------------------- captures and sinks */

static attune_status check_captures(const attune_distributed *d, const attune_backward_args *a)
{
    if (a->capture_gradient_count)
        ATTUNE__TRY(attune__check_not_null(a->capture_gradients, "args.capture_gradients"));
    for (uint32_t j = 0; j < a->capture_gradient_count; j++) {
        const char *name = a->capture_gradients[j].name;
        bool found = false;
        ATTUNE__TRY(attune__check_not_null(name, "args.capture_gradients[].name"));
        for (uint32_t i = 0; d->score && i < d->score->symbol_count; i++)
            found |= d->score->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE && !strcmp(d->score->symbols[i].name, name);
        if (!found)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "args.capture_gradients has \"%s\", which is not a capture of the score expression",
                                name);
        for (uint32_t i = 0; i < j; i++)
            if (!strcmp(a->capture_gradients[i].name, name))
                return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.capture_gradients has \"%s\" twice", name);
    }
    return ATTUNE_OK;
}

/* In the order of the expression's symbols, which is the same on every rank. */
static attune_status place_captures(const attune__distributed_call *c, const attune_backward_args *a,
                                    attune__shared_gradients *shared)
{
    const attune_distributed *d = c->d;
    const attune__reduction *r = &d->reductions[ATTUNE__OF_CAPTURES];
    uint64_t elements = 0;
    for (uint32_t i = 0; d->score && i < d->score->symbol_count; i++) {
        const attune__symbol *symbol = &d->score->symbols[i];
        for (uint32_t j = 0; j < a->capture_gradient_count; j++) {
            if (strcmp(a->capture_gradients[j].name, symbol->name) != 0)
                continue;
            attune_tensor *wanted = &shared->wanted[shared->capture_count];
            const attune__tensor_rule rule = {symbol->name, d->device, ATTUNE_F32,
                                              symbol->rank, true,      symbol->rank == 4};
            *wanted = a->capture_gradients[j].tensor;
            ATTUNE__TRY(attune__tensor_check(wanted, &rule));
            const attune_tensor mine = attune__workspace_tensor(
                c->workspace, c->workspace_offset + r->at + elements * sizeof(float), ATTUNE_F32, wanted, symbol->rank);
            shared->captures[shared->capture_count++] = (attune_capture){symbol->name, mine};
            uint64_t count = 1;
            for (uint32_t k = 0; k < symbol->rank; k++)
                count *= (uint64_t)wanted->size[k]; /* distinct elements of one buffer: no overflow */
            elements += count;
        }
    }
    if (elements > d->shape.capture_gradient_elements)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.capture_gradients have %llu elements, but the limit is %llu: raise "
                            "problem.capture_gradient_elements",
                            (unsigned long long)elements, (unsigned long long)d->shape.capture_gradient_elements);
    return ATTUNE_OK;
}

static attune_status place_sinks(const attune__distributed_call *c, const attune_backward_args *a,
                                 attune__shared_gradients *shared)
{
    const attune_distributed *d = c->d;
    const attune__reduction *r = &d->reductions[ATTUNE__OF_SINKS];
    if (a->d_sinks.buffer && !r->lines)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.d_sinks is set, but the problem has no sinks");
    if (!r->lines)
        return ATTUNE_OK;
    shared->sinks = (attune_tensor){.buffer = c->workspace,
                                    .offset = c->workspace_offset + r->at,
                                    .dtype = r->dtype,
                                    .rank = 1,
                                    .size = {d->shape.heads},
                                    .stride = {1}};
    shared->wanted_sinks = a->d_sinks;
    if (!a->d_sinks.buffer)
        return ATTUNE_OK;
    const attune__tensor_rule rule = {"d_sinks", d->device, r->dtype, 1, true, false};
    ATTUNE__TRY(attune__tensor_check(&shared->wanted_sinks, &rule));
    return attune__check_size("d_sinks", &shared->wanted_sinks, 0, "the problem's heads", d->shape.heads);
}

attune_status attune__distributed_begin_sums(attune__distributed_call *c, const attune_backward_args *a,
                                             attune__shared_gradients *shared)
{
    ATTUNE__TRY(check_captures(c->d, a));
    ATTUNE__TRY(place_captures(c, a, shared));
    ATTUNE__TRY(place_sinks(c, a, shared));
    for (int i = 0; i < ATTUNE__REDUCTIONS; i++) {
        const attune__reduction *r = &c->d->reductions[i];
        const attune_tensor all = lines_at(c, r, r->at, 0, r->lines);
        if (r->lines)
            ATTUNE__TRY(set_to_zero(c, &all));
    }
    return ATTUNE_OK;
}

/* Adds the message of a slice, if it has lines. */
static uint32_t add_slice(const attune__distributed_call *c, const attune__reduction *r, uint32_t peer, uint64_t at,
                          int64_t line, int64_t count, attune_message *to)
{
    const attune_tensor lines = lines_at(c, r, at, line, count);
    if (!count)
        return 0;
    *to = (attune_message){
        .peer = peer,
        .buffer = lines.buffer,
        .offset = lines.offset,
        .size = (uint64_t)(count * ATTUNE__REDUCTION_LINE) * attune_dtype_size(r->dtype),
        .memory = attune__distributed_memory(lines.buffer, lines.offset),
    };
    return 1;
}

/* Which slices are exchanged with a peer. */
typedef enum slices {
    PEERS,    /* the peer's own, as this rank has it */
    RECEIVED, /* this rank's own, as the peer has it */
    MINE,     /* this rank's own, the sum */
} slices;

static uint32_t list_slices(const attune__distributed_call *c, uint32_t peer, slices which, attune_message *to)
{
    const attune_distributed *d = c->d;
    const uint32_t owner = which == PEERS ? peer : d->transport.rank;
    uint32_t listed = 0;
    for (int i = 0; i < ATTUNE__REDUCTIONS && peer != d->transport.rank; i++) {
        const attune__reduction *r = &d->reductions[i];
        const int64_t first = attune__reduction_slice(d, r, owner);
        const int64_t count = attune__reduction_slice(d, r, owner + 1) - first;
        listed += which == RECEIVED ? add_slice(c, r, peer, r->slices_at, peer * count, count, to + listed)
                                    : add_slice(c, r, peer, r->at, first, count, to + listed);
    }
    return listed;
}

static attune_status exchange_sums(const attune__distributed_call *c)
{
    attune_message *to = c->d->messages;
    uint32_t sends = 0, receives = 0;
    for (uint32_t peer = 0; peer < c->d->transport.size; peer++)
        sends += list_slices(c, peer, MINE, to + sends);
    for (uint32_t peer = 0; peer < c->d->transport.size; peer++)
        receives += list_slices(c, peer, PEERS, to + sends + receives);
    return attune__distributed_exchange(c, sends, receives);
}

/* attune__merge_part_fn: this rank's slice as each rank has it. */
typedef struct slice_source {
    const attune__distributed_call *c;
    const attune__reduction *reduction;
    int64_t first, count;
} slice_source;

static attune__merge_part slice_at(const void *user, uint32_t rank)
{
    const slice_source *s = user;
    const attune__reduction *r = s->reduction;
    return (attune__merge_part){.o = rank == s->c->d->transport.rank
                                         ? lines_at(s->c, r, r->at, s->first, s->count)
                                         : lines_at(s->c, r, r->slices_at, rank * s->count, s->count)};
}

static attune_status sum_slices(attune__distributed_call *c)
{
    const attune_distributed *d = c->d;
    for (int i = 0; i < ATTUNE__REDUCTIONS; i++) {
        slice_source s = {.c = c, .reduction = &d->reductions[i]};
        s.first = attune__reduction_slice(d, s.reduction, d->transport.rank);
        s.count = attune__reduction_slice(d, s.reduction, d->transport.rank + 1) - s.first;
        if (!s.count)
            continue;
        const attune_tensor sum = lines_at(c, s.reduction, s.reduction->at, s.first, s.count);
        ATTUNE__TRY(attune__distributed_merge(c, &sum, NULL, d->transport.size, slice_at, &s));
    }
    return ATTUNE_OK;
}

/* Into the call's tensors. */
static attune_status store_sums(attune__distributed_call *c, const attune__shared_gradients *shared)
{
    for (uint32_t i = 0; i < shared->capture_count; i++) {
        const attune_tensor wanted = as_rank_4(&shared->wanted[i]);
        attune_tensor parts[2] = {wanted, shared->captures[i].tensor};
        parts[1] = attune__workspace_tensor(parts[1].buffer, parts[1].offset, parts[1].dtype, &wanted, 4);
        ATTUNE__TRY(attune__distributed_merge(c, &wanted, NULL, 2, attune__distributed_part_at, parts));
    }
    if (!shared->wanted_sinks.buffer)
        return ATTUNE_OK;
    const attune_tensor wanted = as_rank_4(&shared->wanted_sinks);
    const attune_tensor sinks =
        attune__workspace_tensor(shared->sinks.buffer, shared->sinks.offset, shared->sinks.dtype, &wanted, 4);
    return attune__distributed_merge(c, &wanted, NULL, 1, attune__distributed_part_at, &sinks);
}

/* ------------------------------------------------------------------------------------------------------------- keys */

attune_tensor attune__distributed_key_gradient(const attune__distributed_call *c, int which, bool of_v)
{
    const attune__shape *s = &c->d->shape;
    const attune__key_gradients *g = &c->d->gradients[which];
    return attune__distributed_keys(c, of_v ? g->v_at : g->k_at, g->keys, attune__shape_real(s),
                                    of_v ? s->head_dim_v : s->head_dim);
}

attune_status attune__distributed_return(const attune__distributed_call *c)
{
    const attune_distributed *d = c->d;
    attune_message *to = d->messages;
    const attune_tensor others[2] = {attune__distributed_key_gradient(c, ATTUNE__OTHERS, false),
                                     attune__distributed_key_gradient(c, ATTUNE__OTHERS, true)};
    const attune_tensor returned[2] = {attune__distributed_key_gradient(c, ATTUNE__RETURNED, false),
                                       attune__distributed_key_gradient(c, ATTUNE__RETURNED, true)};
    uint32_t sends = 0, receives = 0;
    size_t next = 0;
    for (uint32_t peer = 0; peer < d->transport.size; peer++) {
        sends +=
            attune__distributed_list(c, d->receives, d->receive_count, &next, peer, &others[0], &others[1], to + sends);
        sends += list_slices(c, peer, PEERS, to + sends);
    }
    to += sends;
    next = 0;
    for (uint32_t peer = 0; peer < d->transport.size; peer++) {
        receives += attune__distributed_list(c, d->returns, d->send_count, &next, peer, &returned[0], &returned[1],
                                             to + receives);
        receives += list_slices(c, peer, RECEIVED, to + receives);
    }
    return attune__distributed_exchange(c, sends, receives);
}

/* attune__merge_part_fn: gradients of the keys of a sum, as the ranks have them. */
typedef struct key_source {
    const attune__distributed_call *c;
    const attune__key_sum *sum;
    bool of_v;
} key_source;

static attune__merge_part gradient_at(const void *user, uint32_t index)
{
    const key_source *s = user;
    const attune__contribution *from = &s->c->d->contributions[s->sum->first + index];
    const int which = from->returned ? ATTUNE__RETURNED : s->c->d->own_copy_count ? ATTUNE__OTHERS : ATTUNE__OWN;
    const attune_tensor t = attune__distributed_key_gradient(s->c, which, s->of_v);
    return (attune__merge_part){.o = attune__distributed_slice(&t, from->start, s->sum->count)};
}

static attune_status sum_keys(attune__distributed_call *c, const attune_tensor *d_k, const attune_tensor *d_v)
{
    for (size_t i = 0; i < c->d->sum_count; i++)
        for (int of_v = 0; of_v < 2; of_v++) {
            const key_source s = {c, &c->d->sums[i], of_v};
            const attune_tensor to = attune__distributed_slice(of_v ? d_v : d_k, s.sum->start, s.sum->count);
            ATTUNE__TRY(s.sum->contributions
                            ? attune__distributed_merge(c, &to, NULL, (uint32_t)s.sum->contributions, gradient_at, &s)
                            : set_to_zero(c, &to));
        }
    return ATTUNE_OK;
}

attune_status attune__distributed_sum(attune__distributed_call *c, const attune_tensor *d_k, const attune_tensor *d_v,
                                      const attune__shared_gradients *shared)
{
    const bool reduce = c->d->reductions[ATTUNE__OF_CAPTURES].lines || c->d->reductions[ATTUNE__OF_SINKS].lines;
    if (reduce) {
        ATTUNE__TRY(sum_slices(c));
        ATTUNE__TRY(exchange_sums(c));
    }
    ATTUNE__TRY(sum_keys(c, d_k, d_v));
    if (!reduce)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__distributed_finish(c));
    return store_sums(c, shared);
}

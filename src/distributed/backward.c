/* SPDX-License-Identifier: MIT */
/* Backward over several ranks: keys are sent again, gradients of others' keys go back to their owners, and those of d_q
 * are summed. Nothing here allocates. */
#include "distributed/ranks.h"

/* The arguments of one call, checked. */
typedef struct call {
    attune__distributed_call base;
    attune_backward_args args;
    attune_tensor d_q, d_k, d_v;
    attune__shared_gradients shared;
    double seconds;
} call;

static attune_status check(call *c)
{
    const attune_distributed *d = c->base.d;
    const attune_backward_args *a = &c->args;
    if (a->mask || a->segments || a->segment_count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.%s is set, which several ranks do not have: leave it NULL",
                            a->mask ? "mask (that of the description is used)" : "segments");
    ATTUNE__TRY(attune__distributed_check(&c->base, &a->k, &a->v));
    c->d_q = a->d_q;
    c->d_k = a->d_k;
    c->d_v = a->d_v;
    if (!d->own_keys)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__distributed_check_keys(&c->base, "d_k", d->shape.k_dtype, d->shape.head_dim, true, &c->d_k));
    return attune__distributed_check_keys(&c->base, "d_v", d->shape.v_dtype, d->shape.head_dim_v, true, &c->d_v);
}

/* The gradient of a part's k or v as the call's, which is checked. */
static attune_tensor gradient(const call *c, int part, bool of_v)
{
    const attune__shape *s = &c->base.d->shape;
    if (part == ATTUNE__OWN)
        return of_v ? c->d_v : c->d_k;
    attune_tensor t = attune__distributed_key_gradient(&c->base, part, of_v);
    t.dtype = of_v ? s->v_dtype : s->k_dtype;
    return t;
}

/* attune__distributed_compute_fn */
static attune_status compute(attune__distributed_call *base, int part)
{
    call *c = (call *)base;
    const attune_distributed *d = base->d;
    attune__backward_call resolved;
    attune_backward_args a = c->args;
    attune__distributed_symbols found;
    double seconds = 0;
    attune__distributed_find_symbols(&c->base, part, &found);
    a.captures = found.captures;
    a.capture_count = found.capture_count;
    a.parameters = found.parameters;
    a.parameter_count = found.parameter_count;
    a.k = c->base.k[part];
    a.v = c->base.v[part];
    a.d_k = gradient(c, part, false);
    a.d_v = gradient(c, part, true);
    a.mask = d->parts[part].mask;
    a.workspace_offset += d->plan_at;
    if (d->zeros) {
        a.capture_gradients = c->shared.captures;
        a.capture_gradient_count = c->shared.capture_count;
        a.d_sinks = c->shared.sinks;
    }
    ATTUNE__TRY(attune__backward_resolve_at(d->plan, &a, NULL, &resolved));
    attune__backward *back = &resolved.call;
    c->d_q = back->d_q;
    if (attune__distributed_partial(d))
        back->d_q = attune__distributed_result(&c->base, part, &c->d_q);
    if (d->gradients[part].keys) {
        back->d_k = attune__distributed_key_gradient(&c->base, part, false);
        back->d_v = attune__distributed_key_gradient(&c->base, part, true);
    }
    /* Of two parts, the first has the sinks, as in forward. */
    if (part == ATTUNE__OTHERS && d->parts[ATTUNE__OWN].keys)
        back->forward.sinks.buffer = back->d_sinks.buffer = NULL;
    back->forward.seconds = a.seconds ? &seconds : NULL;
    ATTUNE__TRY(d->device->backend->backward(d->plan->programs[0], c->base.queue, back, &c->base.value));
    c->seconds += seconds;
    return ATTUNE_OK;
}

/* attune__merge_part_fn */
static attune__merge_part result_at(const void *user, uint32_t index)
{
    const call *c = user;
    return (attune__merge_part){.o = attune__distributed_result(&c->base, (int)index, &c->d_q)};
}

static attune_status run(call *c)
{
    const attune_distributed *d = c->base.d;
    ATTUNE__TRY(check(c));
    if (d->zeros)
        ATTUNE__TRY(attune__distributed_begin_sums(&c->base, &c->args, &c->shared));
    ATTUNE__TRY(attune__distributed_compute(&c->base, compute));
    if (d->zeros)
        ATTUNE__TRY(attune__distributed_return(&c->base));
    if (d->rows && attune__distributed_partial(d))
        ATTUNE__TRY(
            attune__distributed_merge(&c->base, &c->d_q, NULL, attune__distributed_part_count(d), result_at, c));
    if (d->zeros) {
        ATTUNE__TRY(attune__distributed_finish(&c->base));
        ATTUNE__TRY(attune__distributed_sum(&c->base, &c->d_k, &c->d_v, &c->shared));
    }
    if (c->args.seconds)
        *c->args.seconds = c->seconds;
    return ATTUNE_OK;
}

attune_status attune_distributed_backward(attune_distributed *distributed, attune_queue *queue,
                                          const attune_backward_args *args, attune_completion *completion)
{
    ATTUNE__TRY(attune__distributed_usable(distributed));
    call c = {.base = {.d = distributed, .queue = queue}};
    attune_status status = attune__distributed_begin(&c.base, ATTUNE_BACKWARD);
    if (status == ATTUNE_OK)
        status = attune__desc_read(&c.args, sizeof c.args, args, sizeof c.args, "args");
    if (status == ATTUNE_OK) {
        ATTUNE__DISTRIBUTED_ARGUMENTS(&c);
        status = run(&c);
    }
    return attune__distributed_end(&c.base, status, completion);
}

/* SPDX-License-Identifier: MIT */
/* Forward over several ranks: keys are sent, the own ones are computed meanwhile, then those of others; the results are
 * merged. Nothing here allocates. */
#include "distributed/ranks.h"

/* The arguments of one call, checked. */
typedef struct call {
    attune__distributed_call base;
    attune_forward_args args;
    double seconds;
} call;

static attune_status check(call *c)
{
    const attune_forward_args *a = &c->args;
    ATTUNE__TRY(attune__distributed_check_args(a, "mask (that of the description is used)"));
    return attune__distributed_check(&c->base, &a->k, &a->v);
}

/* Some heads of a tensor: all if its second dimension has as many. */
static attune_tensor heads_of(attune_tensor t, int64_t first, int64_t count)
{
    t.offset += (uint64_t)(first * t.stride[1] * (int64_t)attune_dtype_size(t.dtype));
    t.size[1] = count;
    return t;
}

static void take_heads(const attune__distributed_call *c, attune__forward *f)
{
    const int64_t group = f->heads / f->kv_heads, first = c->kv_head * group, count = c->kv_heads * group;
    if (count == f->heads)
        return;
    f->q = heads_of(f->q, first, count);
    f->o = heads_of(f->o, first, count);
    if (f->lse.buffer)
        f->lse = heads_of(f->lse, first, count);
    f->k = heads_of(f->k, c->kv_head, c->kv_heads);
    f->v = heads_of(f->v, c->kv_head, c->kv_heads);
    f->heads = count;
    f->kv_heads = c->kv_heads;
}

/* attune__distributed_compute_fn: into o and lse, or into a partial result if there are two. */
static attune_status compute(attune__distributed_call *base, int part)
{
    call *c = (call *)base;
    const attune_distributed *d = base->d;
    attune__forward_call resolved;
    attune_forward_args a = c->args;
    attune__distributed_symbols found;
    double seconds = 0;
    attune__distributed_find_symbols(&c->base, part, &found);
    a.captures = found.captures;
    a.capture_count = found.capture_count;
    a.parameters = found.parameters;
    a.parameter_count = found.parameter_count;
    a.k = c->base.k[part];
    a.v = c->base.v[part];
    a.mask = d->parts[part].mask;
    a.workspace_offset += d->plan_at;
    ATTUNE__TRY(attune__forward_resolve_at(d->plan, &a, NULL, &resolved));
    if (attune__distributed_split(d)) {
        const attune_tensor o = resolved.call.o;
        resolved.call.o = attune__distributed_result(&c->base, part, &o);
        resolved.call.lse = attune__distributed_result_lse(&c->base, part, &o);
        resolved.call.part = true;
    }
    /* Of two parts, the first has the sinks, so that the result counts them once. */
    if (part == ATTUNE__OTHERS && d->parts[ATTUNE__OWN].keys)
        resolved.call.sinks.buffer = NULL;
    take_heads(base, &resolved.call);
    resolved.call.seconds = a.seconds ? &seconds : NULL;
    ATTUNE__TRY(attune__plan_forward(d->plan, c->base.queue, &resolved.call, &c->base.value));
    c->seconds += seconds;
    return ATTUNE_OK;
}

/* attune__merge_part_fn */
static attune__merge_part result_at(const void *user, uint32_t index)
{
    const call *c = user;
    return (attune__merge_part){.o = attune__distributed_result(&c->base, (int)index, &c->args.o),
                                .lse = attune__distributed_result_lse(&c->base, (int)index, &c->args.o)};
}

static attune_status merge(call *c)
{
    const attune_distributed *d = c->base.d;
    attune_tensor o = c->args.o, lse = c->args.lse;
    const attune__tensor_rule o_rule = {"o", d->device, d->shape.o_dtype, 4, true, true},
                              lse_rule = {"lse", d->device, attune__shape_real(&d->shape), 3, true, false};
    ATTUNE__TRY(attune__tensor_check(&o, &o_rule));
    if (lse.buffer)
        ATTUNE__TRY(attune__tensor_check(&lse, &lse_rule));
    return attune__distributed_merge(&c->base, &o, &lse, ATTUNE__DISTRIBUTED_PARTS, result_at, c);
}

static attune_status run(call *c)
{
    const attune_distributed *d = c->base.d;
    ATTUNE__TRY(check(c));
    ATTUNE__TRY(attune__distributed_compute(&c->base, compute));
    if (attune__distributed_split(d))
        ATTUNE__TRY(merge(c));
    if (c->args.seconds)
        *c->args.seconds = c->seconds;
    return ATTUNE_OK;
}

attune_status attune_distributed_forward(attune_distributed *distributed, attune_queue *queue,
                                         const attune_forward_args *args, attune_completion *completion)
{
    ATTUNE__TRY(attune__distributed_usable(distributed));
    call c = {.base = {.d = distributed, .queue = queue}};
    attune_status status = attune__distributed_begin(&c.base, ATTUNE_FORWARD);
    if (status == ATTUNE_OK)
        status = attune__desc_read(&c.args, sizeof c.args, args, sizeof c.args, "args");
    if (status == ATTUNE_OK) {
        ATTUNE__DISTRIBUTED_ARGUMENTS(&c);
        status = run(&c);
    }
    return attune__distributed_end(&c.base, status, completion);
}

/* SPDX-License-Identifier: MIT */
/* Calls over a cache: checks what the host can know. The contents of tables and lengths are on the device, whose
 * kernels check them. */
#include "api/api.h"

/* q and o, and what they say of the call. */
static attune_status check_rows(const attune_plan *plan, attune__forward *call, bool packed)
{
    const attune__shape *s = &plan->shape;
    attune__tensor_rule rule = {"q", plan->device, s->q_dtype, packed ? 3 : 4, false, true};
    ATTUNE__TRY(attune__tensor_check(&call->q, &rule));
    rule = (attune__tensor_rule){"o", plan->device, s->o_dtype, packed ? 3 : 4, true, true};
    ATTUNE__TRY(attune__tensor_check(&call->o, &rule));
    const uint32_t last = packed ? 2 : 3;
    ATTUNE__TRY(attune__check_size("q", &call->q, 1, "the plan's heads", s->heads));
    ATTUNE__TRY(attune__check_size("q", &call->q, last, "the plan's head_dim", s->head_dim));
    for (uint32_t i = 0; i < last; i++)
        ATTUNE__TRY(attune__check_size("o", &call->o, i, "that of q", call->q.size[i]));
    ATTUNE__TRY(attune__check_size("o", &call->o, last, "the plan's head_dim_v", s->head_dim_v));
    if (packed) {
        ATTUNE__TRY(attune__check_at_most("tokens (q.size[0])", call->q.size[0], s->tokens));
        attune__unpack(&call->q);
        attune__unpack(&call->o);
    } else {
        ATTUNE__TRY(attune__check_at_most("q_len (q.size[2])", call->q.size[2], s->q_len));
        const int64_t most = s->tokens / call->q.size[2];
        if (call->q.size[0] > most)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "q has %lld sequences of %lld rows, but the plan's limit is %lld rows (problem.tokens)",
                                (long long)call->q.size[0], (long long)call->q.size[2], (long long)s->tokens);
    }
    call->heads = s->heads;
    call->kv_heads = s->kv_heads;
    call->q_len = packed ? s->q_len : call->q.size[2];
    call->scale = s->scale;
    return ATTUNE_OK;
}

/* Strides count blocks; the check of a tensor knows elements alone. */
static attune_status check_blocks(attune_tensor *tensor, const attune__tensor_rule *rule)
{
    const uint32_t block = attune_dtype_block(rule->dtype);
    if (tensor->rank == 4 && tensor->size[3] % block)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.size[3] is %lld, expected a multiple of the %u of a block of %s", rule->name,
                            (long long)tensor->size[3], block, attune_dtype_string(rule->dtype));
    if (tensor->rank == 4)
        tensor->size[3] /= block;
    ATTUNE__TRY(attune__tensor_check(tensor, rule));
    tensor->size[3] *= block;
    return ATTUNE_OK;
}

/* Factors of k or v, resolved to [pages, kv_heads, page]. */
static attune_status check_scale(const attune_plan *plan, const char *name, const attune_tensor *of,
                                 attune_tensor *scale)
{
    if (!scale->buffer)
        return ATTUNE_OK;
    if (of->dtype != ATTUNE_F8E4M3 && of->dtype != ATTUNE_F8E5M2 && of->dtype != ATTUNE_I8)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is set, but the keys or values are %s, which have no factors",
                            name, attune_dtype_string(of->dtype));
    if (scale->rank != 1 && scale->rank != 3)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.rank is %u, expected 1 ([1] or [kv_heads]) or 3 ([pages, kv_heads, page])", name,
                            scale->rank);
    const attune__tensor_rule rule = {name, plan->device, ATTUNE_F32, scale->rank, false, false};
    ATTUNE__TRY(attune__tensor_check(scale, &rule));
    if (scale->rank == 3) {
        for (uint32_t i = 0; i < 3; i++)
            ATTUNE__TRY(attune__check_size(name, scale, i, "that of the keys", of->size[i]));
        return ATTUNE_OK;
    }
    if (scale->size[0] != 1)
        ATTUNE__TRY(attune__check_size(name, scale, 0, "1 or the plan's kv_heads", of->size[1]));
    const int64_t stride = scale->size[0] == 1 ? 0 : scale->stride[0];
    *scale = (attune_tensor){.buffer = scale->buffer,
                             .offset = scale->offset,
                             .dtype = ATTUNE_F32,
                             .rank = 3,
                             .size = {of->size[0], of->size[1], of->size[2]},
                             .stride = {0, stride, 0}};
    return ATTUNE_OK;
}

static attune_status check_scales(const attune_plan *plan, const attune_cache *cache, attune__forward_call *resolved)
{
    attune__serving *serving = &resolved->serving;
    const attune__forward *call = &resolved->call;
    serving->k_scale = cache->k_scale;
    serving->v_scale = cache->v_scale;
    if (!cache->v.buffer && cache->v_scale.buffer)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "cache.v_scale is set, but v is a part of k (cache.v.buffer is NULL), whose factors it has");
    ATTUNE__TRY(check_scale(plan, "cache.k_scale", &call->k, &serving->k_scale));
    if (!cache->v.buffer)
        serving->v_scale = serving->k_scale;
    else
        ATTUNE__TRY(check_scale(plan, "cache.v_scale", &call->v, &serving->v_scale));
    return ATTUNE_OK;
}

static attune_status check_keys(const attune_plan *plan, const attune_cache *cache, attune__forward *call)
{
    const attune__shape *s = &plan->shape;
    call->k = cache->k;
    call->v = cache->v;
    attune__tensor_rule rule = {"cache.k", plan->device, s->k_dtype, 4, false, true};
    ATTUNE__TRY(check_blocks(&call->k, &rule));
    ATTUNE__TRY(attune__check_size("cache.k", &call->k, 1, "the plan's kv_heads", s->kv_heads));
    if (s->page)
        ATTUNE__TRY(attune__check_size("cache.k", &call->k, 2, "the plan's page", s->page));
    ATTUNE__TRY(attune__check_size("cache.k", &call->k, 3, "the plan's head_dim", s->head_dim));
    call->kv_len = s->kv_len;
    if (!call->v.buffer) {
        if (s->head_dim_v > s->head_dim)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "cache.v.buffer is NULL, so that v is the first %u columns of k, which has %u",
                                s->head_dim_v, s->head_dim);
        if (s->v_dtype != s->k_dtype)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "cache.v.buffer is NULL, so that v is part of k, but v is %s and k is %s",
                                attune_dtype_string(s->v_dtype), attune_dtype_string(s->k_dtype));
        call->v = call->k;
        call->v.size[3] = s->head_dim_v;
        return ATTUNE_OK;
    }
    rule.name = "cache.v";
    rule.dtype = s->v_dtype;
    ATTUNE__TRY(check_blocks(&call->v, &rule));
    for (uint32_t i = 0; i < 3; i++)
        ATTUNE__TRY(attune__check_size("cache.v", &call->v, i, "that of cache.k", call->k.size[i]));
    return attune__check_size("cache.v", &call->v, 3, "the plan's head_dim_v", s->head_dim_v);
}

attune_status attune__integers_check(const attune_plan *plan, const char *name, attune_dtype dtype, uint32_t rank,
                                     attune_tensor *tensor)
{
    return attune__tensor_check(tensor, &(attune__tensor_rule){name, plan->device, dtype, rank, false, false});
}

static attune_status check_integers(const attune_plan *plan, const char *name, uint32_t rank, attune_tensor *tensor)
{
    return attune__integers_check(plan, name, ATTUNE_I32, rank, tensor);
}

/* The number of sequences is that of kv_len. */
static attune_status check_lengths(const attune_plan *plan, const attune_batch *batch, attune__forward_call *resolved)
{
    attune__serving *serving = &resolved->serving;
    attune__forward *call = &resolved->call;
    serving->q_start = batch->q_start;
    serving->kv_len = batch->kv_len;
    serving->kv_first = batch->kv_first;
    serving->count = batch->count;
    ATTUNE__TRY(check_integers(plan, "batch.kv_len", 1, &serving->kv_len));
    call->batch = serving->kv_len.size[0];
    ATTUNE__TRY(attune__check_at_most("batch (kv_len.size[0])", call->batch, plan->shape.batch));
    if (serving->packed) {
        ATTUNE__TRY(check_integers(plan, "batch.q_start", 1, &serving->q_start));
        ATTUNE__TRY(
            attune__check_size("batch.q_start", &serving->q_start, 0, "one more than batch.kv_len", call->batch + 1));
    } else
        ATTUNE__TRY(attune__check_size("q", &call->q, 0, "the sequences of batch.kv_len", call->batch));
    if (serving->kv_first.buffer) {
        ATTUNE__TRY(check_integers(plan, "batch.kv_first", 1, &serving->kv_first));
        ATTUNE__TRY(
            attune__check_size("batch.kv_first", &serving->kv_first, 0, "the sequences of batch.kv_len", call->batch));
    }
    serving->shared = batch->shared;
    if (serving->shared.buffer) {
        ATTUNE__TRY(check_integers(plan, "batch.shared", 1, &serving->shared));
        ATTUNE__TRY(
            attune__check_size("batch.shared", &serving->shared, 0, "the sequences of batch.kv_len", call->batch));
    }
    if (serving->count.buffer) {
        ATTUNE__TRY(check_integers(plan, "batch.count", 1, &serving->count));
        ATTUNE__TRY(attune__check_size("batch.count", &serving->count, 0, "one number", 1));
    }
    return ATTUNE_OK;
}

static attune_status check_tree(const attune_plan *plan, const attune_batch *batch, attune__forward_call *resolved)
{
    attune_tensor *tree = &resolved->serving.tree;
    const attune_tensor *q = &resolved->call.q;
    const bool packed = resolved->serving.packed;
    *tree = batch->tree;
    if (!tree->buffer)
        return ATTUNE_OK;
    if (!plan->shape.tree)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "batch.tree is set, but the plan has no tree: set problem.tree");
    ATTUNE__TRY(check_integers(plan, "batch.tree", packed ? 2 : 3, tree));
    if (!packed)
        ATTUNE__TRY(attune__check_size("batch.tree", tree, 0, "the batch of q", q->size[0]));
    ATTUNE__TRY(attune__check_size("batch.tree", tree, packed ? 0 : 1, "the rows of q", q->size[2]));
    if (packed) {
        tree->rank = 3;
        for (uint32_t i = 2; i > 0; i--) {
            tree->size[i] = tree->size[i - 1];
            tree->stride[i] = tree->stride[i - 1];
        }
        tree->size[0] = 1;
        tree->stride[0] = 0;
    }
    return ATTUNE_OK;
}

static attune_status check_table(const attune_plan *plan, const attune_cache *cache, attune__forward_call *resolved)
{
    attune__serving *serving = &resolved->serving;
    const attune__forward *call = &resolved->call;
    const bool list = cache->pages_start.buffer != NULL;
    serving->pages = cache->pages;
    serving->pages_start = cache->pages_start;
    if (!plan->shape.page) {
        if (serving->pages.buffer || list)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "cache.%s is set, but the plan has one page for each sequence: set problem.page",
                                serving->pages.buffer ? "pages" : "pages_start");
        if (call->k.size[0] < call->batch)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "cache.k has %lld pages, one for each sequence, but the batch has %lld sequences",
                                (long long)call->k.size[0], (long long)call->batch);
        return ATTUNE_OK;
    }
    ATTUNE__TRY(check_integers(plan, "cache.pages", list ? 1 : 2, &serving->pages));
    if (!list) {
        if (serving->pages.size[0] < call->batch)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "cache.pages has %lld rows, but the batch has %lld sequences",
                                (long long)serving->pages.size[0], (long long)call->batch);
        return ATTUNE_OK;
    }
    ATTUNE__TRY(check_integers(plan, "cache.pages_start", 1, &serving->pages_start));
    if (serving->pages_start.size[0] <= call->batch)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "cache.pages_start has %lld numbers, expected one more than the %lld sequences of the batch",
            (long long)serving->pages_start.size[0], (long long)call->batch);
    return ATTUNE_OK;
}

attune_status attune__cache_resolve(const attune_plan *plan, const attune_cache *cache, const attune_batch *batch,
                                    attune__forward_call *resolved)
{
    ATTUNE__TRY(check_keys(plan, cache, &resolved->call));
    ATTUNE__TRY(check_scales(plan, cache, resolved));
    if (!batch)
        return ATTUNE_OK;
    ATTUNE__TRY(check_lengths(plan, batch, resolved));
    return check_table(plan, cache, resolved);
}

uint64_t attune_plan_schedule_size(const attune_plan *plan)
{
    if (!plan || !plan->shape.tokens || !plan->device->backend->schedule_size)
        return 0;
    return plan->device->backend->schedule_size(plan->programs[0]);
}

static attune_status check_schedule(const attune_plan *plan, const attune_forward_args *args, attune__serving *serving)
{
    const attune_buffer *buffer = serving->schedule = args->schedule;
    const uint64_t offset = serving->schedule_offset = args->schedule_offset, wanted = attune_plan_schedule_size(plan);
    if (!buffer)
        return ATTUNE_OK;
    if (!wanted)
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "args.schedule is set, but the plan has none on device %s (attune_plan_schedule_size): leave it NULL",
            plan->device->info.id);
    if (buffer->device != plan->device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.schedule belongs to device %s, the plan to device %s",
                            buffer->device->info.id, plan->device->info.id);
    if (offset % 256 || buffer->misalignment)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.schedule_offset is %llu, expected a multiple of 256%s",
                            (unsigned long long)offset,
                            buffer->misalignment ? ", and memory that begins at a multiple of 8" : "");
    if (buffer->size < offset || buffer->size - offset < wanted)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.schedule has %llu bytes, expected %llu from offset %llu on "
                            "(attune_plan_schedule_size)",
                            (unsigned long long)buffer->size, (unsigned long long)wanted, (unsigned long long)offset);
    return ATTUNE_OK;
}

attune_status attune__serving_resolve(const attune_plan *plan, const attune_forward_args *args,
                                      attune__forward_call *resolved)
{
    attune_cache cache;
    attune_batch batch;
    ATTUNE__TRY(attune__desc_read(&cache, sizeof cache, args->cache, sizeof cache, "args.cache"));
    ATTUNE__TRY(attune__desc_read(&batch, sizeof batch, args->batch, sizeof batch, "args.batch"));
    resolved->serving = (attune__serving){.packed = batch.q_start.buffer != NULL,
                                          .mask_captures = resolved->mask_captures,
                                          .mask_parameters = resolved->mask_parameters};
    resolved->call.serving = &resolved->serving;
    resolved->call.mask = NULL;
    ATTUNE__TRY(check_rows(plan, &resolved->call, resolved->serving.packed));
    ATTUNE__TRY(attune__cache_resolve(plan, &cache, &batch, resolved));
    ATTUNE__TRY(check_tree(plan, &batch, resolved));
    ATTUNE__TRY(check_schedule(plan, args, &resolved->serving));
    if (!plan->mask)
        return ATTUNE_OK;
    ATTUNE__TRY(attune__resolve_captures(plan, plan->mask, "mask", args->captures, args->capture_count,
                                         resolved->mask_captures));
    return attune__bind_host(plan->mask, NULL, 0, args->parameters, args->parameter_count, NULL,
                             resolved->mask_parameters);
}

/* SPDX-License-Identifier: MIT */
/* Merging: argument checks, and the split of any number of parts into launches. */
#include "api/api.h"

struct attune_merger {
    attune_device *device;
    attune__program *program;
};

attune_status attune__merger_make(attune_device *device, attune__program **program)
{
    if (!device->backend->merger_create)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s has no merge kernels: merge on the CPU", device->info.id);
    return device->backend->merger_create(device, program);
}

attune_status attune_merger_create(attune_device *device, attune_merger **merger)
{
    ATTUNE__TRY(attune__check_not_null(merger, "merger"));
    *merger = NULL;
    ATTUNE__TRY(attune__device_check(device));
    attune_merger *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = attune__merger_make(device, &made->program);
    if (status != ATTUNE_OK) {
        attune__free(&device->host.allocator, made);
        return status;
    }
    made->device = attune__device_retain(device);
    *merger = made;
    return ATTUNE_OK;
}

void attune_merger_destroy(attune_merger *merger)
{
    if (!merger)
        return;
    attune_device *device = merger->device;
    device->backend->merger_destroy(merger->program);
    const attune_allocator allocator = device->host.allocator;
    attune__free(&allocator, merger);
    attune__device_release(device);
}

/* -------------------------------------------------------------------------------------------------------- workspace */

attune_dtype attune__merge_dtype(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
}

uint64_t attune_merger_workspace_size(const attune_merger *merger, const attune_tensor *o, uint32_t part_count)
{
    if (!merger || !o || o->rank != 4)
        return 0;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < 4; i++) {
        if (o->size[i] < 1)
            return 0;
        if ((uint64_t)o->size[i] > UINT64_MAX / 1024 / elements)
            return UINT64_MAX; /* larger than any buffer */
        elements *= (uint64_t)o->size[i];
    }
    const uint64_t columns = (uint64_t)o->size[3];
    return attune__merge_workspace(o->dtype, elements / columns, columns, part_count);
}

attune_tensor attune__workspace_tensor(attune_buffer *buffer, uint64_t offset, attune_dtype dtype,
                                       const attune_tensor *like, uint32_t rank)
{
    attune_tensor tensor = {.buffer = buffer, .offset = offset, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0; stride *= like->size[i]) {
        tensor.size[i] = like->size[i];
        tensor.stride[i] = stride;
    }
    return tensor;
}

attune_status attune__merge_run(const attune__program *merger, attune_queue *queue, const attune__merge *call,
                                uint32_t part_count, attune__merge_part_fn part, const void *user, uint64_t *value)
{
    attune__merge_part parts[ATTUNE__MERGE_PARTS];
    attune__merge step = *call;
    double seconds = 0, total = 0;
    step.parts = parts;
    step.seconds = call->seconds ? &seconds : NULL;
    for (uint32_t next = 0; next < part_count;) {
        step.part_count = 0;
        /* The result so far is the first part of the next launch. */
        if (next)
            parts[step.part_count++] = (attune__merge_part){.o = step.o, .lse = step.lse};
        while (step.part_count < ATTUNE__MERGE_PARTS && next < part_count)
            parts[step.part_count++] = part(user, next++);
        step.o = call->o;
        step.lse = call->lse;
        step.part = next < part_count;
        if (step.part) {
            const attune_dtype dtype = attune__merge_dtype(call->o.dtype);
            const int64_t *size = call->o.size;
            const uint64_t o_bytes = (uint64_t)(size[0] * size[1] * size[2] * size[3]) * attune_dtype_size(dtype);
            const uint64_t at = call->workspace_offset + ATTUNE__MERGE_WORKSPACE;
            step.o = attune__workspace_tensor(call->workspace, at, dtype, &call->o, 4);
            step.lse = (attune_tensor){.buffer = NULL};
            if (parts[0].lse.buffer)
                step.lse = attune__workspace_tensor(call->workspace, at + attune__round_up64(o_bytes, 256), dtype,
                                                    &call->o, 3);
        }
        ATTUNE__TRY(queue->device->backend->merge(merger, queue, &step, value));
        total += seconds;
    }
    if (call->seconds)
        *call->seconds = total;
    return ATTUNE_OK;
}

/* ----------------------------------------------------------------------------------------------------------- checks */

/* Checks a tensor of a merge; `like` has the expected sizes of its first dimensions, NULL = any. */
static attune_status check_tensor(const attune_merger *merger, const char *name, attune_dtype dtype, uint32_t rank,
                                  bool writable, const attune_tensor *like, attune_tensor *tensor)
{
    if (tensor->buffer && tensor->buffer->device != merger->device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.buffer belongs to device %s, the merger to device %s", name,
                            tensor->buffer->device->info.id, merger->device->info.id);
    ATTUNE__TRY(
        attune__tensor_check(tensor, &(attune__tensor_rule){name, merger->device, dtype, rank, writable, rank == 4}));
    for (uint32_t i = 0; like && i < rank; i++)
        if (tensor->size[i] != like->size[i])
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.size[%u] is %lld, expected that of o, %lld", name, i,
                                (long long)tensor->size[i], (long long)like->size[i]);
    return ATTUNE_OK;
}

static attune_status check_o(const attune_merger *merger, bool writable, attune_tensor *o)
{
    ATTUNE__TRY(check_tensor(merger, "o", 0, 4, writable, NULL, o));
    if (o->dtype != ATTUNE_F32 && o->dtype != ATTUNE_F16 && o->dtype != ATTUNE_BF16 && o->dtype != ATTUNE_F64)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "o.dtype is %s, expected f32, f16, bf16 or f64",
                            attune_dtype_string(o->dtype));
    for (uint32_t i = 0; i < 4; i++)
        if (o->size[i] > INT32_MAX)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "o.size[%u] is %lld, expected at most %d", i,
                                (long long)o->size[i], INT32_MAX);
    if (o->dtype == ATTUNE_F64 && !merger->device->info.limits.f64)
        return attune__fail(ATTUNE_UNSUPPORTED, "o.dtype is f64, which device %s does not merge: use the CPU",
                            merger->device->info.id);
    return ATTUNE_OK;
}

static attune_status check_part(const attune_merger *merger, const attune_tensor *o, attune__merge_part *part)
{
    const attune_dtype real = attune__merge_dtype(o->dtype);
    ATTUNE__TRY(check_tensor(merger, "part.o", part->o.dtype == real ? real : o->dtype, 4, false, o, &part->o));
    ATTUNE__TRY(check_tensor(merger, "part.lse", real, 3, false, o, &part->lse));
    if (part->d_o.buffer)
        ATTUNE__TRY(check_tensor(merger, "part.d_o", part->o.dtype, 4, true, o, &part->d_o));
    if (part->d_lse.buffer)
        ATTUNE__TRY(check_tensor(merger, "part.d_lse", real, 3, true, o, &part->d_lse));
    return ATTUNE_OK;
}

static attune_status check_workspace(const attune_merger *merger, const attune__merge *call, uint64_t wanted)
{
    return attune__workspace_check(merger->device, call->workspace, call->workspace_offset, wanted,
                                   "the merge (attune_merger_workspace_size)");
}

static attune_status check_parts(const attune_merge_part *parts, uint32_t count)
{
    if (!count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.part_count is 0, expected at least 1");
    return attune__check_not_null(parts, "args.parts");
}

static attune_status check_queue(const attune_merger *merger, const attune_queue *queue)
{
    ATTUNE__TRY(attune__check_not_null(merger, "merger"));
    return attune__queue_check(queue, merger->device, "merger");
}

/* The parts of a call. Their strides are resolved again at each access, since nothing is allocated to hold them. */
typedef struct part_source {
    const attune_merger *merger;
    const attune_tensor *o;
    const attune_merge_part *parts;
} part_source;

static attune_status resolve_part(const part_source *g, uint32_t index, bool backward, attune__merge_part *part)
{
    *part = (attune__merge_part){.o = g->parts[index].o, .lse = g->parts[index].lse};
    if (backward) {
        part->d_o = g->parts[index].d_o;
        part->d_lse = g->parts[index].d_lse;
    }
    const attune_status status = check_part(g->merger, g->o, part);
    return status == ATTUNE_OK ? ATTUNE_OK : attune__fail_context(status, "args.parts[%u]", index);
}

/* attune__merge_part_fn. The part was checked before. */
static attune__merge_part get_part(const void *user, uint32_t index)
{
    attune__merge_part part;
    resolve_part(user, index, false, &part);
    return part;
}

/* ------------------------------------------------------------------------------------------------------- execution */

attune_status attune_merge(const attune_merger *merger, attune_queue *queue, const attune_merge_args *args,
                           attune_completion *completion)
{
    ATTUNE__TRY(check_queue(merger, queue));
    attune_merge_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    ATTUNE__TRY(check_parts(a.parts, a.part_count));
    attune__merge call = {
        .o = a.o, .lse = a.lse, .workspace = a.workspace, .workspace_offset = a.workspace_offset, .seconds = a.seconds};
    ATTUNE__TRY(check_o(merger, true, &call.o));
    if (call.lse.buffer)
        ATTUNE__TRY(check_tensor(merger, "lse", attune__merge_dtype(call.o.dtype), 3, true, &call.o, &call.lse));
    const part_source g = {merger, &call.o, a.parts};
    attune__merge_part part;
    for (uint32_t i = 0; i < a.part_count; i++)
        ATTUNE__TRY(resolve_part(&g, i, false, &part));
    ATTUNE__TRY(check_workspace(merger, &call, attune_merger_workspace_size(merger, &call.o, a.part_count)));
    uint64_t value = 0;
    ATTUNE__TRY(attune__merge_run(merger->program, queue, &call, a.part_count, get_part, &g, &value));
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

attune_status attune_merge_backward(const attune_merger *merger, attune_queue *queue,
                                    const attune_merge_backward_args *args, attune_completion *completion)
{
    ATTUNE__TRY(check_queue(merger, queue));
    attune_merge_backward_args a;
    ATTUNE__TRY(attune__desc_read(&a, sizeof a, args, sizeof a, "args"));
    ATTUNE__TRY(check_parts(a.parts, a.part_count));
    attune__merge_part parts[ATTUNE__MERGE_PARTS];
    double seconds = 0, total = 0;
    attune__merge call = {.parts = parts,
                          .o = a.o,
                          .lse = a.lse,
                          .d_o = a.d_o,
                          .d_lse = a.d_lse,
                          .workspace = a.workspace,
                          .workspace_offset = a.workspace_offset,
                          .seconds = a.seconds ? &seconds : NULL};
    ATTUNE__TRY(check_o(merger, false, &call.o));
    const attune_dtype real = attune__merge_dtype(call.o.dtype);
    ATTUNE__TRY(check_tensor(merger, "lse", real, 3, false, &call.o, &call.lse));
    ATTUNE__TRY(check_tensor(merger, "d_o", call.o.dtype, 4, false, &call.o, &call.d_o));
    if (call.d_lse.buffer)
        ATTUNE__TRY(check_tensor(merger, "d_lse", real, 3, false, &call.o, &call.d_lse));
    const part_source g = {merger, &call.o, a.parts};
    for (uint32_t i = 0; i < a.part_count; i++)
        ATTUNE__TRY(resolve_part(&g, i, true, parts));
    ATTUNE__TRY(check_workspace(merger, &call, ATTUNE__MERGE_WORKSPACE));
    uint64_t value = 0;
    for (uint32_t next = 0; next < a.part_count; next += call.part_count) {
        const uint32_t left = a.part_count - next;
        call.part_count = left < ATTUNE__MERGE_PARTS ? left : ATTUNE__MERGE_PARTS;
        for (uint32_t i = 0; i < call.part_count; i++)
            ATTUNE__TRY(resolve_part(&g, next + i, true, &parts[i]));
        ATTUNE__TRY(queue->device->backend->merge_backward(merger->program, queue, &call, &value));
        total += seconds;
    }
    if (a.seconds)
        *a.seconds = total;
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

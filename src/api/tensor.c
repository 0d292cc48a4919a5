/* SPDX-License-Identifier: MIT */
/*
 * Checks of tensors and host arrays. Sizes and strides are untrusted: their products and sums are checked for overflow.
 */
#include "api/api.h"

#include <string.h>

#include "base/checked.h"

/* Resolves "all strides zero", and computes the lowest and highest element offset. */
static attune_status resolve(const char *name, uint32_t rank, const int64_t *size, int64_t *stride, int64_t *lowest,
                             int64_t *highest)
{
    bool zero = true;
    for (uint32_t i = 0; i < rank; i++) {
        if (size[i] < 1)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.size[%u] is %lld, expected at least 1", name, i,
                                (long long)size[i]);
        if (stride[i])
            zero = false;
    }
    /* Also with other strides: a stride of 0 lets a small buffer describe a tensor of any size. */
    int64_t count = 1;
    for (uint32_t i = rank; i-- > 0;) {
        if (zero)
            stride[i] = count;
        if (!attune__multiply(&count, size[i]))
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s has more than 2^63 elements", name);
    }
    *lowest = *highest = 0;
    for (uint32_t i = 0; i < rank; i++) {
        /* The stride of a dimension of size 1 is not used; 0 does not affect alignment checks. */
        if (size[i] == 1)
            stride[i] = 0;
        if (!attune__reach(size[i], stride[i], lowest, highest))
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.size[%u] %lld times its stride %lld exceeds 64 bits", name,
                                i, (long long)size[i], (long long)stride[i]);
    }
    return ATTUNE_OK;
}

/* Elements are distinct if, in ascending order of strides, each stride is larger than the reach of the dimensions
 * before it. */
static attune_status check_distinct(const attune_tensor *tensor, const char *name)
{
    bool used[ATTUNE_MAX_RANK] = {false};
    uint64_t reach = 0;
    for (uint32_t round = 0; round < tensor->rank; round++) {
        uint32_t next = ATTUNE_MAX_RANK;
        uint64_t step = 0;
        for (uint32_t i = 0; i < tensor->rank; i++) {
            const uint64_t magnitude = attune__magnitude(tensor->stride[i]);
            if (!used[i] && (next == ATTUNE_MAX_RANK || magnitude < step)) {
                next = i;
                step = magnitude;
            }
        }
        used[next] = true;
        if (tensor->size[next] == 1)
            continue;
        if (step <= reach)
            return attune__fail(
                ATTUNE_INVALID_ARGUMENT,
                "%s is an output and its stride[%u] %lld makes elements overlap: the inner dimensions reach "
                "%lld elements",
                name, next, (long long)tensor->stride[next], (long long)reach + 1);
        reach += step * (uint64_t)(tensor->size[next] - 1); /* distinct elements of one buffer: no overflow */
    }
    return ATTUNE_OK;
}

/* For tensors [batch, heads, length, head_dim]. */
static attune_status fail_row(const attune_tensor *tensor, const char *name)
{
    const int64_t *stride = tensor->stride;
    if (stride[2] != 1 || tensor->size[2] == 1)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s.stride[3] is %lld, expected 1: the last dimension is contiguous", name,
                            (long long)stride[3]);
    return attune__fail(ATTUNE_INVALID_ARGUMENT,
                        "%s is transposed: stride[2] is 1 and stride[3] %lld, so that its length (size[2] %lld) is "
                        "contiguous, expected its rows of %lld (size[3]), with stride[3] 1: keep it with each key's "
                        "row contiguous, or copy it so before the call",
                        name, (long long)stride[3], (long long)tensor->size[2], (long long)tensor->size[3]);
}

attune_status attune__tensor_check(attune_tensor *tensor, const attune__tensor_rule *rule)
{
    const char *name = rule->name;
    if (!tensor->buffer)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.buffer is NULL", name);
    if (tensor->buffer->device != rule->device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.buffer belongs to device %s, the plan to device %s%s", name,
                            tensor->buffer->device->info.id, rule->device->info.id,
                            tensor->buffer->device->backend == rule->device->backend ? " (opened separately)" : "");
    size_t element = attune_dtype_size(tensor->dtype);
    if (!element || (rule->dtype && tensor->dtype != rule->dtype))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.dtype is %s (%d), expected %s", name,
                            attune_dtype_string(tensor->dtype), (int)tensor->dtype,
                            rule->dtype ? attune_dtype_string(rule->dtype) : "a dtype");
    if (tensor->rank != rule->rank)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.rank is %u, expected %u", name, tensor->rank, rule->rank);
    const size_t align = attune_dtype_block(tensor->dtype) > 1 ? 2 : element; /* of a block's f16 */
    if (tensor->offset % align)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.offset is %llu, expected a multiple of the %zu bytes of %s",
                            name, (unsigned long long)tensor->offset, align, attune_dtype_string(tensor->dtype));
    if ((tensor->buffer->misalignment + tensor->offset) % align)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s begins at an address that is no multiple of the %zu bytes of %s: its buffer's memory "
                            "begins %u bytes past a multiple of 8, and offset is %llu",
                            name, align, attune_dtype_string(tensor->dtype), tensor->buffer->misalignment,
                            (unsigned long long)tensor->offset);
    int64_t lowest, highest;
    ATTUNE__TRY(resolve(name, tensor->rank, tensor->size, tensor->stride, &lowest, &highest));

    const uint64_t first = tensor->offset / element, size = tensor->buffer->size;
    const uint64_t elements = first + (tensor->offset < size ? (size - tensor->offset) / element : 0);
    const uint64_t before = attune__magnitude(lowest);
    if (before > first)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s begins %llu elements before its buffer: raise offset %llu",
                            name, (unsigned long long)(before - first), (unsigned long long)tensor->offset);
    if (first >= elements || (uint64_t)highest > elements - 1 - first)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "%s ends at element %llu of its buffer, which has %llu (%llu bytes of %s): check size, stride "
            "and offset",
            name, (unsigned long long)(first + (uint64_t)highest + 1), (unsigned long long)elements,
            (unsigned long long)tensor->buffer->size, attune_dtype_string(tensor->dtype));
    uint32_t last = tensor->rank - 1;
    if (rule->contiguous_row && tensor->size[last] > 1 && tensor->stride[last] != 1)
        return fail_row(tensor, name);
    if (rule->writable)
        ATTUNE__TRY(check_distinct(tensor, name));
    return ATTUNE_OK;
}

attune_status attune__workspace_check(const attune_device *device, const attune_buffer *workspace, uint64_t offset,
                                      uint64_t wanted, const char *who)
{
    if (!workspace)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "args.workspace is NULL, but %s needs %llu bytes: create a buffer of this size", who,
                            (unsigned long long)wanted);
    if (workspace->device != device)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.workspace belongs to device %s, %s to device %s",
                            workspace->device->info.id, who, device->info.id);
    if (offset % 256)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.workspace_offset is %llu, expected a multiple of 256",
                            (unsigned long long)offset);
    const uint64_t left = workspace->size > offset ? workspace->size - offset : 0;
    if (wanted > left)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.workspace has %llu bytes from offset %llu on, %s needs %llu",
                            (unsigned long long)left, (unsigned long long)offset, who, (unsigned long long)wanted);
    return ATTUNE_OK;
}

attune_status attune__array_check(attune_array *array, const char *name)
{
    if (!array->data)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.data is NULL", name);
    if (!attune_dtype_size(array->dtype))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.dtype is %d, which is not a dtype", name, (int)array->dtype);
    if (array->rank < 1 || array->rank > ATTUNE_MAX_RANK)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.rank is %u, expected 1 to %d", name, array->rank,
                            ATTUNE_MAX_RANK);
    int64_t lowest, highest;
    ATTUNE__TRY(resolve(name, array->rank, array->size, array->stride, &lowest, &highest));
    /* Larger than any array in memory, and small enough that no byte offset overflows. */
    const uint64_t most = INT64_MAX / 16;
    if (attune__magnitude(lowest) > most || (uint64_t)highest > most)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s exceeds the address space: check size and stride", name);
    return ATTUNE_OK;
}

void attune__unpack(attune_tensor *tensor)
{
    const attune_tensor packed = *tensor;
    tensor->rank++;
    tensor->size[0] = 1;
    tensor->stride[0] = 0;
    tensor->size[1] = packed.size[1];
    tensor->stride[1] = packed.stride[1];
    tensor->size[2] = packed.size[0];
    tensor->stride[2] = packed.stride[0];
    if (packed.rank == 3) {
        tensor->size[3] = packed.size[2];
        tensor->stride[3] = packed.stride[2];
    }
}

attune_status attune__check_size(const char *name, const attune_tensor *tensor, uint32_t dimension, const char *what,
                                 int64_t wanted)
{
    if (tensor->size[dimension] != wanted)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s.size[%u] is %lld, expected %s, %lld", name, dimension,
                            (long long)tensor->size[dimension], what, (long long)wanted);
    return ATTUNE_OK;
}

attune_status attune__check_at_most(const char *what, int64_t value, int64_t limit)
{
    if (value > limit)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s is %lld, but the plan's limit is %lld: make a plan for the largest calls", what,
                            (long long)value, (long long)limit);
    return ATTUNE_OK;
}

attune_status attune__resolve_captures(const attune_plan *plan, const attune_expr *expr, const char *whose,
                                       const attune_capture *captures, uint32_t count,
                                       attune_tensor tensors[ATTUNE_EXPR_MAX_SYMBOLS])
{
    if (count)
        ATTUNE__TRY(attune__check_not_null(captures, "args.captures"));
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const attune__symbol *symbol = &expr->symbols[i];
        if (symbol->kind != ATTUNE_SYMBOL_CAPTURE)
            continue;
        uint32_t found = count;
        for (uint32_t j = 0; j < count && found == count; j++)
            if (captures[j].name && !strcmp(captures[j].name, symbol->name))
                found = j;
        if (found == count)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "args.captures has no \"%s\", which the %s expression uses",
                                symbol->name, whose);
        tensors[i] = captures[found].tensor;
        ATTUNE__TRY(attune__tensor_check(&tensors[i], &(attune__tensor_rule){symbol->name, plan->device, symbol->dtype,
                                                                             symbol->rank, false, false}));
    }
    return ATTUNE_OK;
}

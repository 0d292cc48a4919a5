/* SPDX-License-Identifier: MIT */
/*
 * The arguments of a call's kernels that Vulkan and OpenCL have alike: shaders/arguments.h and
 * shaders/opencl/arguments.h, whose members have the same names. Included once by each backend, with
 *
 *     NAME(x)                    the backend's function x
 *     TENSOR, ARGUMENTS, SUMS    its structs
 *     PLACE                      the member of a tensor that says where it is, of type PLACE_TYPE
 *     place_of                   the function that finds it
 */
#include "backend.h"

/* Describes a tensor, and sets the flag if every group of elements in it begins at a multiple of `alignment`. */
TENSOR NAME(tensor_describe)(const attune_tensor *tensor, uint64_t alignment, uint32_t flag, uint32_t *flags)
{
    TENSOR t = {0};
    if (!tensor->buffer)
        return t;
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    t.PLACE = place_of(tensor);
    t.stride_b = tensor->size[0] == 1 ? 0 : tensor->stride[0] * bytes; /* a batch of one serves all */
    t.stride_h = tensor->stride[1] * bytes;
    t.stride_row = tensor->stride[2] * bytes;
    if (((uint64_t)t.PLACE | (uint64_t)t.stride_b | (uint64_t)t.stride_h | (uint64_t)t.stride_row) % alignment == 0)
        *flags |= flag;
    return t;
}

/* Lengths and blocks, which have kv_block keys and inner_q_block queries if there is no mask. */
static void describe_sizes(const attune__forward *call, uint32_t kv_block, uint32_t inner_q_block, ARGUMENTS *a)
{
    const attune_mask *mask = call->mask;
    a->batch = (uint32_t)call->batch;
    a->kv_batch = (uint32_t)call->k.size[0];
    a->heads = (uint32_t)call->heads;
    a->kv_heads = (uint32_t)call->kv_heads;
    a->q_len = (uint32_t)call->q_len;
    a->kv_len = (uint32_t)call->kv_len;
    a->scale = (float)call->scale;
    a->kv_block = kv_block;
    a->inner_q_block = inner_q_block;
    if (!mask)
        return;
    const uint32_t heads = mask->stored_heads > 1, batch = mask->stored_batch > 1;
    const uint32_t stored_heads = (uint32_t)mask->stored_heads;
    a->kv_block = mask->kv_block;
    a->inner_q_block = mask->q_block;
    a->mask_rows_h = heads * (uint32_t)mask->q_blocks;
    a->mask_rows_b = batch * (uint32_t)mask->q_blocks * stored_heads;
    a->mask_columns_h = heads * (uint32_t)mask->kv_blocks;
    a->mask_columns_b = batch * (uint32_t)mask->kv_blocks * stored_heads;
}

/* The tiles of queries. */
void NAME(arguments_partition)(const attune__partition *partition, ARGUMENTS *a)
{
    a->head_step = partition->head_step;
    a->q_step = partition->q_step;
    a->head_chunks = (uint32_t)partition->head_chunks;
    a->q_block = partition->q_block;
    a->in_block = partition->in_block;
    a->q_chunks = (uint32_t)partition->q_chunks;
    a->section = partition->section;
    a->splits = partition->splits;
}

/* The kernels count in 32 bits: tiles, and groups of four columns of partial results. */
attune_status NAME(counts_check)(const attune__forward *call, uint64_t tiles, uint32_t block_m, uint32_t splits)
{
    const char *id = call->q.buffer->device->info.id;
    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    const uint64_t columns = (uint64_t)call->v.size[3];
    if (tiles > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu tiles of %u rows, %s takes fewer than 2^32",
                            (unsigned long long)tiles, block_m, id);
    if (splits > 1 && rows > UINT32_MAX / splits / (columns / 4))
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "the call has %llu rows of %llu columns in %u parts, %s takes fewer than 2^34 partial "
                            "results: use a smaller SPLIT_KV",
                            (unsigned long long)rows, (unsigned long long)columns, splits, id);
    return ATTUNE_OK;
}

/* The gradient of the capture `name`, whose exact sums are at `sums`. The kernels count its elements in 32 bits. */
attune_status NAME(sums_describe)(const attune_tensor *out, const char *name, PLACE_TYPE sums, SUMS *described)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < out->rank; d++)
        count *= (uint64_t)out->size[d]; /* distinct elements of one buffer: no overflow */
    if (count > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the gradient of \"%s\" has %llu elements, %s takes fewer than 2^32",
                            name, (unsigned long long)count, out->buffer->device->info.id);
    SUMS s = {.sums = sums, .to = place_of(out), .size = {1, 1, 1, 1}, .count = (uint32_t)count};
    for (uint32_t d = 0; d < out->rank; d++) {
        const uint32_t to = ATTUNE_MAX_RANK - out->rank + d;
        s.size[to] = (uint32_t)out->size[d];
        s.stride[to] = out->size[d] > 1 ? out->stride[d] * (int64_t)sizeof(float) : 0;
    }
    *described = s;
    return ATTUNE_OK;
}

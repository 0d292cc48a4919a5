/* SPDX-License-Identifier: MIT */
#include "vulkan/arguments.h"

#include <string.h>

#include "base/quant.h"
#include "base/round.h"
#include "vulkan/launch.h"

uint64_t attune__vulkan_tensor_address(const attune_tensor *tensor)
{
    return tensor->buffer ? attune__vulkan_address(tensor->buffer, tensor->offset) : 0;
}

attune_vulkan_tensor attune__vulkan_tensor_describe(const attune_tensor *tensor, uint64_t alignment, uint32_t flag,
                                                    uint32_t *flags)
{
    attune_vulkan_tensor t = {.address = attune__vulkan_tensor_address(tensor)};
    if (!tensor->buffer)
        return t;
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    if (attune__is_quantised(tensor->dtype))
        alignment = 1;                                                 /* of codes, which are read at any address */
    t.stride_b = tensor->size[0] == 1 ? 0 : tensor->stride[0] * bytes; /* a batch of one serves all */
    t.stride_h = tensor->stride[1] * bytes;
    t.stride_row = tensor->stride[2] * bytes;
    if ((t.address | (uint64_t)t.stride_b | (uint64_t)t.stride_h | (uint64_t)t.stride_row) % alignment == 0)
        *flags |= flag;
    return t;
}

static void describe_mask(const attune__forward *call, attune_vulkan_arguments *a)
{
    const attune_mask *mask = call->mask;
    const attune__vulkan_mask *uploaded = (const attune__vulkan_mask *)call->device_mask;
    const uint32_t heads = mask->stored_heads > 1, batch = mask->stored_batch > 1;
    const uint32_t stored_heads = (uint32_t)mask->stored_heads;
    a->kv_block = mask->kv_block;
    a->inner_q_block = mask->q_block;
    a->mask_rows = uploaded->rows;
    a->mask_columns = uploaded->columns;
    a->mask_mod = uploaded->mod;
    a->mask_rows_h = heads * (uint32_t)mask->q_blocks;
    a->mask_rows_b = batch * (uint32_t)mask->q_blocks * stored_heads;
    a->mask_columns_h = heads * (uint32_t)mask->kv_blocks;
    a->mask_columns_b = batch * (uint32_t)mask->kv_blocks * stored_heads;
}

void attune__vulkan_arguments_describe(const attune__forward *call, uint64_t o_alignment, uint32_t kv_block,
                                       uint32_t inner_q_block, attune_vulkan_arguments *arguments)
{
    attune_vulkan_arguments *a = arguments;
    a->q = attune__vulkan_tensor_describe(&call->q, 16, ATTUNE_VULKAN_ALIGNED_Q, &a->flags);
    a->k = attune__vulkan_tensor_describe(&call->k, 16, ATTUNE_VULKAN_ALIGNED_K, &a->flags);
    a->v = attune__vulkan_tensor_describe(&call->v, 16, ATTUNE_VULKAN_ALIGNED_V, &a->flags);
    a->o = attune__vulkan_tensor_describe(&call->o, o_alignment, ATTUNE_VULKAN_ALIGNED_O, &a->flags);
    a->lse = attune__vulkan_tensor_describe(&call->lse, 1, 0, &a->flags);
    a->row_max = attune__vulkan_tensor_describe(&call->row_max, 1, 0, &a->flags);
    a->sinks = attune__vulkan_tensor_address(&call->sinks);
    a->sinks_h = call->sinks.stride[0] * (int64_t)sizeof(float);
    a->batch = (uint32_t)call->batch;
    a->kv_batch = (uint32_t)call->k.size[0];
    a->heads = (uint32_t)call->heads;
    a->kv_heads = (uint32_t)call->kv_heads;
    a->q_len = (uint32_t)call->q_len;
    a->kv_len = (uint32_t)call->kv_len;
    a->scale = (float)call->scale;
    a->kv_block = kv_block;
    a->inner_q_block = inner_q_block;
    if (call->mask)
        describe_mask(call, a);
}

void attune__vulkan_arguments_partition(const attune__partition *partition, attune_vulkan_arguments *arguments)
{
    arguments->head_step = partition->head_step;
    arguments->q_step = partition->q_step;
    arguments->head_chunks = (uint32_t)partition->head_chunks;
    arguments->q_block = partition->q_block;
    arguments->in_block = partition->in_block;
    arguments->q_chunks = (uint32_t)partition->q_chunks;
    arguments->splits = partition->splits;
}

/* The table of an expression, whose captures and parameters are by symbol. */
static void pack_table(const attune__vulkan_arguments_block *block, const attune_expr *expr,
                       const attune_tensor *captures, const attune__value *parameters, void *out)
{
    const attune__forward *call = block->call;
    attune__mods_table table = {
        .q_len = (int32_t)call->q_len,
        .kv_len = (int32_t)call->kv_len,
        .group = (int32_t)(call->heads / call->kv_heads),
    };
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        if (expr->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE) {
            table.parameters[i] = parameters[i];
            continue;
        }
        const attune_tensor *tensor = &captures[i];
        attune__mods_capture *capture = &table.captures[i];
        capture->address = attune__vulkan_tensor_address(tensor);
        capture->sums = block->sum_addresses ? block->sum_addresses[i] : 0;
        capture->dtype = tensor->dtype;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            capture->size[d] = tensor->size[d];
            capture->stride[d] = tensor->stride[d];
        }
    }
    attune__mods_table_pack(expr, &table, out);
}

void attune__vulkan_arguments_record(const attune__vulkan_arguments_block *block, const attune__vulkan_device *device,
                                     VkCommandBuffer commands)
{
    const attune__forward *call = block->call;
    const attune__vulkan_buffer *buffer = (const attune__vulkan_buffer *)block->buffer;
    union {
        uint32_t words[ATTUNE__SHADERS_ARGUMENTS / 4];
        char bytes[ATTUNE__SHADERS_ARGUMENTS];
    } packed = {{0}};
    size_t size = sizeof *block->arguments;
    memcpy(packed.bytes, block->arguments, size);
    if (block->score) {
        pack_table(block, block->score, call->captures, call->parameters, packed.bytes + size);
        size += attune__mods_table_size(block->score);
    }
    if (block->mask) {
        pack_table(block, block->mask, call->serving->mask_captures, call->serving->mask_parameters,
                   packed.bytes + size);
        size += attune__mods_table_size(block->mask);
    }
    if (block->serving) {
        memcpy(packed.bytes + size, block->serving, sizeof *block->serving);
        size += sizeof *block->serving;
    }
    if (block->sum_count)
        memcpy(packed.bytes + size, block->sums, block->sum_count * sizeof *block->sums);
    size += block->sum_count * sizeof *block->sums;
    device->vk.CmdUpdateBuffer(commands, buffer->handle, buffer->offset + block->offset, attune__round_up64(size, 4),
                               packed.words);
}

/* SPDX-License-Identifier: MIT */
#include "vulkan/arguments.h"

#include <string.h>

#include "base/error.h"
#include "base/quant.h"
#include "base/round.h"
#include "vulkan/launch.h"

uint64_t attune__vulkan_tensor_address(const attune_tensor *tensor)
{
    return tensor->buffer ? attune__vulkan_address(tensor->buffer, tensor->offset) : 0;
}

#define NAME(x)    attune__vulkan_##x
#define TENSOR     attune_vulkan_tensor
#define ARGUMENTS  attune_vulkan_arguments
#define SUMS       attune_vulkan_sums
#define PLACE      address
#define PLACE_TYPE uint64_t
#define place_of   attune__vulkan_tensor_address
#include "arguments/call_tmpl.h"

/* Codes are read at any address. */
static uint64_t alignment_of(const attune_tensor *keys)
{
    return attune__is_quantised(keys->dtype) ? 1 : 16;
}

void attune__vulkan_arguments_describe(const attune__forward *call, uint64_t o_alignment, uint32_t kv_block,
                                       uint32_t inner_q_block, attune_vulkan_arguments *arguments)
{
    attune_vulkan_arguments *a = arguments;
    a->q = attune__vulkan_tensor_describe(&call->q, 16, ATTUNE_VULKAN_ALIGNED_Q, &a->flags);
    a->k = attune__vulkan_tensor_describe(&call->k, alignment_of(&call->k), ATTUNE_VULKAN_ALIGNED_K, &a->flags);
    a->v = attune__vulkan_tensor_describe(&call->v, alignment_of(&call->v), ATTUNE_VULKAN_ALIGNED_V, &a->flags);
    a->o = attune__vulkan_tensor_describe(&call->o, o_alignment, ATTUNE_VULKAN_ALIGNED_O, &a->flags);
    a->lse = attune__vulkan_tensor_describe(&call->lse, 1, 0, &a->flags);
    a->row_max = attune__vulkan_tensor_describe(&call->row_max, 1, 0, &a->flags);
    a->sinks = attune__vulkan_tensor_address(&call->sinks);
    a->sinks_h = call->sinks.stride[0] * (int64_t)sizeof(float);
    describe_sizes(call, kv_block, inner_q_block, a);
    if (call->mask) {
        const attune__vulkan_mask *uploaded = (const attune__vulkan_mask *)call->device_mask;
        a->mask_rows = uploaded->rows;
        a->mask_columns = uploaded->columns;
        a->mask_mod = uploaded->mod;
    }
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
        table.captures[i] = attune__mods_capture_of(tensor->dtype, tensor->rank, tensor->size, tensor->stride,
                                                    attune__vulkan_tensor_address(tensor));
        table.captures[i].sums = block->sum_addresses ? block->sum_addresses[i] : 0;
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

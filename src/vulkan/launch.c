/* SPDX-License-Identifier: MIT */
/*
 * A call: its arguments go into the caller's workspace by vkCmdUpdateBuffer, its tiles into dispatches. Submissions are
 * bounded, so that no driver's watchdog takes a long call for a hung one; a call that is recorded into the caller's
 * command buffer is bounded by the caller.
 */
#include <string.h>

#include "base/error.h"
#include "base/round.h"
#include "plan/cut.h"
#include "vulkan/launch.h"
#include "vulkan/mods.h"

#define COMBINE_COLUMNS 64 /* of shaders/combine.comp: invocations, each four columns */

/* A call cut into tiles. */
typedef struct run {
    const attune__vulkan_program *program;
    const attune__forward *call;
    attune__vulkan_arguments arguments;
    uint64_t place; /* of the arguments, in the workspace: after the partial results of splits */
    uint64_t tiles;
    uint64_t combine; /* workgroups; 0 = no splits */
    double tile_flops;
} run;

uint64_t attune__vulkan_tensor_address(const attune_tensor *tensor)
{
    return tensor->buffer ? attune__vulkan_address(tensor->buffer, tensor->offset) : 0;
}

attune__vulkan_tensor attune__vulkan_tensor_describe(const attune_tensor *tensor)
{
    attune__vulkan_tensor t = {.address = attune__vulkan_tensor_address(tensor)};
    if (!tensor->buffer)
        return t;
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    t.stride_b = tensor->size[0] == 1 ? 0 : tensor->stride[0] * bytes; /* a batch of one serves all */
    t.stride_h = tensor->stride[1] * bytes;
    t.stride_row = tensor->stride[2] * bytes;
    return t;
}

bool attune__vulkan_tensor_is_aligned(const attune__vulkan_tensor *t, uint64_t bytes)
{
    return (t->address | (uint64_t)t->stride_b | (uint64_t)t->stride_h | (uint64_t)t->stride_row) % bytes == 0;
}

static void cut(run *r, bool decode)
{
    const attune__forward *call = r->call;
    const attune_mask *mask = call->mask;
    const attune_plan_choice *choice = &r->program->choice;
    attune__vulkan_arguments *a = &r->arguments;
    const attune__cut c = attune__cut_make(&(attune__cut_desc){
        .batch = call->batch,
        .heads = call->heads,
        .kv_heads = call->kv_heads,
        .q_len = call->q_len,
        .block_m = choice->block_m,
        .split_kv = choice->split_kv,
        .decode = decode,
        .mask_q_block = mask ? mask->q_block : 0,
        .one_list = !mask || mask->stored_heads == 1,
    });
    a->head_step = c.head_step;
    a->q_step = c.q_step;
    a->head_chunks = (uint32_t)c.head_chunks;
    a->q_block = c.q_block;
    a->in_block = c.in_block;
    a->q_chunks = (uint32_t)c.q_chunks;
    a->kv_block = mask ? mask->kv_block : choice->block_n;
    a->splits = c.splits;
    r->tiles = (uint64_t)c.items;
    r->tile_flops = 2.0 * choice->block_m * (double)call->kv_len / a->splits *
                    (r->program->shape.head_dim + r->program->shape.head_dim_v);
}

void attune__vulkan_score_table(const attune__vulkan_program *program, const attune__forward *call,
                                attune__mods_table *table)
{
    const attune_expr *score = program->score;
    *table = (attune__mods_table){
        .q_len = (int32_t)call->q_len,
        .kv_len = (int32_t)call->kv_len,
        .group = (int32_t)(call->heads / call->kv_heads),
    };
    for (uint32_t i = 0; i < score->symbol_count; i++) {
        if (score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE) {
            table->parameters[i] = call->parameters[i];
            continue;
        }
        const attune_tensor *tensor = &call->captures[i];
        attune__mods_capture *capture = &table->captures[i];
        capture->address = attune__vulkan_tensor_address(tensor);
        capture->dtype = tensor->dtype;
        for (uint32_t d = 0; d < tensor->rank; d++) {
            capture->size[d] = tensor->size[d];
            capture->stride[d] = tensor->stride[d];
        }
    }
}

/* Loops that the driver would cut short are refused: a wrong result is worse than none. */
static attune_status check_steps(const run *r)
{
    const attune__forward *call = r->call;
    const attune__vulkan_program *program = r->program;
    const uint32_t block_n = program->choice.block_n;
    const attune__vulkan_mask *mask = (const attune__vulkan_mask *)call->device_mask;
    const uint64_t listed = mask ? (uint64_t)mask->longest * call->mask->kv_block : UINT64_MAX;
    const uint64_t keys = listed < (uint64_t)call->kv_len ? listed : (uint64_t)call->kv_len;
    const uint64_t steps = (keys + block_n - 1) / block_n, splits = r->arguments.splits;
    if (!program->most_steps || steps <= program->most_steps * splits)
        return ATTUNE_OK;
    return attune__fail(
        ATTUNE_UNSUPPORTED,
        "device %s: its driver, llvmpipe, stops a workgroup after %u steps of %u keys, this call has %llu "
        "in %llu parts: use device cpu%s",
        program->base.device->info.id, program->most_steps, block_n, (unsigned long long)steps,
        (unsigned long long)splits, program->choice.decode ? " or a larger SPLIT_KV" : "");
}

static attune_status prepare(run *r, bool decode)
{
    const attune__forward *call = r->call;
    attune__vulkan_arguments *a = &r->arguments;
    a->q = attune__vulkan_tensor_describe(&call->q);
    a->k = attune__vulkan_tensor_describe(&call->k);
    a->v = attune__vulkan_tensor_describe(&call->v);
    a->o = attune__vulkan_tensor_describe(&call->o);
    a->lse = attune__vulkan_tensor_describe(&call->lse);
    a->row_max = attune__vulkan_tensor_describe(&call->row_max);
    a->batch = (uint32_t)call->batch;
    a->heads = (uint32_t)call->heads;
    a->kv_heads = (uint32_t)call->kv_heads;
    a->q_len = (uint32_t)call->q_len;
    a->kv_len = (uint32_t)call->kv_len;
    a->scale = (float)call->scale;
    const uint64_t store = 4 * attune_dtype_size(call->o.dtype);
    a->flags = (attune__vulkan_tensor_is_aligned(&a->q, 16) ? ATTUNE__VULKAN_ALIGNED_Q : 0) |
               (attune__vulkan_tensor_is_aligned(&a->k, 16) ? ATTUNE__VULKAN_ALIGNED_K : 0) |
               (attune__vulkan_tensor_is_aligned(&a->v, 16) ? ATTUNE__VULKAN_ALIGNED_V : 0) |
               (attune__vulkan_tensor_is_aligned(&a->o, store) ? ATTUNE__VULKAN_ALIGNED_O : 0) |
               (call->part ? ATTUNE__VULKAN_IS_PARTIAL : 0);
    cut(r, decode);
    ATTUNE__TRY(check_steps(r));

    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    if (r->tiles > UINT32_MAX || (a->splits > 1 && rows > UINT32_MAX / a->splits / ((uint64_t)call->v.size[3] / 4)))
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu tiles of %u rows, %s takes fewer than 2^32",
                            (unsigned long long)r->tiles, r->program->choice.block_m, r->program->base.device->info.id);
    if (call->mask) {
        const attune__vulkan_mask *mask = (const attune__vulkan_mask *)call->device_mask;
        a->mask_rows = mask->rows;
        a->mask_mod = mask->mod;
        a->mask_rows_h = call->mask->stored_heads == 1 ? 0 : (uint32_t)call->mask->q_blocks;
        a->mask_rows_b =
            call->mask->stored_batch == 1 ? 0 : (uint32_t)(call->mask->q_blocks * call->mask->stored_heads);
    }
    const uint64_t base = attune__vulkan_address(call->workspace, call->workspace_offset);
    r->place = attune__split_size(&r->program->shape, a->splits, sizeof(float));
    a->score_mod = base + r->place + sizeof *a;
    if (a->splits > 1) {
        a->partials = base;
        a->partials_ml = base + attune__round_up64(rows * a->splits * (uint64_t)call->v.size[3] * sizeof(float), 256);
        const uint64_t groups = rows * (uint64_t)call->v.size[3] / 4;
        r->combine = (groups + COMBINE_COLUMNS - 1) / COMBINE_COLUMNS;
    }
    return ATTUNE_OK;
}

void attune__vulkan_update(const attune__vulkan_device *device, VkCommandBuffer commands, const attune__forward *call,
                           uint64_t place, const uint32_t *words, uint64_t bytes)
{
    const attune__vulkan_buffer *workspace = (const attune__vulkan_buffer *)call->workspace;
    device->vk.CmdUpdateBuffer(commands, workspace->handle, workspace->offset + call->workspace_offset + place,
                               attune__round_up64(bytes, 4), words);
}

/* After a barrier on earlier commands: successive calls share a workspace. */
static void record_arguments(const run *r, const attune__vulkan_device *device, VkCommandBuffer commands)
{
    const attune__forward *call = r->call;
    union {
        uint32_t words[ATTUNE__VULKAN_ARGUMENTS / 4];
        char bytes[ATTUNE__VULKAN_ARGUMENTS];
    } block = {{0}};
    size_t size = sizeof r->arguments;
    memcpy(block.bytes, &r->arguments, size);
    if (r->program->score) {
        attune__mods_table table;
        attune__vulkan_score_table(r->program, r->call, &table);
        attune__mods_table_pack(r->program->score, &table, block.bytes + size);
        size += attune__mods_table_size(r->program->score);
    }
    attune__vulkan_update(device, commands, call, r->place, block.words, size);
    attune__vulkan_barrier(device, commands);
}

static const attune__vulkan_pipeline *forward_pipeline(const run *r)
{
    const uint32_t all =
        ATTUNE__VULKAN_ALIGNED_Q | ATTUNE__VULKAN_ALIGNED_K | ATTUNE__VULKAN_ALIGNED_V | ATTUNE__VULKAN_ALIGNED_O;
    return r->program->aligned.handle && (r->arguments.flags & all) == all ? &r->program->aligned
                                                                           : &r->program->forward;
}

void attune__vulkan_dispatch(const attune__vulkan_device *device, VkCommandBuffer commands,
                             const attune__vulkan_pipeline *pipeline, uint64_t arguments, uint64_t first, uint64_t end)
{
    attune__vulkan_push push = {.arguments = arguments};
    device->vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->handle);
    const uint64_t most = device->physical.max_workgroups[0];
    while (first < end) {
        const uint64_t count = end - first < most ? end - first : most;
        push.first = (uint32_t)first;
        device->vk.CmdPushConstants(commands, pipeline->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
        device->vk.CmdDispatch(commands, (uint32_t)count, 1, 1);
        first += count;
    }
}

/* Tiles `first` to before `end`; the arguments before the first, the merge of splits after the last. */
static void record_part(const run *r, const attune__vulkan_device *device, VkCommandBuffer commands, uint64_t first,
                        uint64_t end)
{
    if (first == 0)
        record_arguments(r, device, commands);
    const uint64_t arguments = attune__vulkan_address(r->call->workspace, r->call->workspace_offset + r->place);
    attune__vulkan_dispatch(device, commands, forward_pipeline(r), arguments, first, end);
    if (end < r->tiles || !r->combine)
        return;
    attune__vulkan_barrier(device, commands);
    attune__vulkan_dispatch(device, commands, &r->program->combine, arguments, 0, r->combine);
}

double attune__vulkan_submission_flops(const attune__vulkan_device *device)
{
    const double each = device->physical.type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 20e9 : 2e9;
    return each * device->base.info.limits.compute_units;
}

attune_status attune__vulkan_end(attune__vulkan_device *device, attune__vulkan_slot *slot, double *total,
                                 uint64_t *value)
{
    double seconds;
    if (!total)
        return attune__vulkan_submit(device, slot, value);
    ATTUNE__TRY(attune__vulkan_finish(device, slot, value, &seconds));
    *total += seconds;
    return ATTUNE_OK;
}

static attune_status submit_all(const run *r, attune__vulkan_device *device, uint64_t *value)
{
    const double budget = attune__vulkan_submission_flops(device) / r->tile_flops;
    uint64_t most = budget > (double)r->tiles ? r->tiles : budget < 1 ? 1 : (uint64_t)budget;
    /* Equal parts: the device idles between submissions, and a short last one would occupy few of its units. */
    const uint64_t parts = most ? (r->tiles + most - 1) / most : 1;
    most = (r->tiles + parts - 1) / parts;
    double *total = r->call->seconds;
    if (total)
        *total = 0;
    for (uint64_t first = 0; first < r->tiles; first += most) {
        attune__vulkan_slot *slot;
        ATTUNE__TRY(attune__vulkan_begin(device, total != NULL, &slot));
        record_part(r, device, slot->commands, first, r->tiles - first < most ? r->tiles : first + most);
        ATTUNE__TRY(attune__vulkan_end(device, slot, total, value));
    }
    return ATTUNE_OK;
}

static attune_status launch(const attune__program *program, const attune__forward *call, bool decode, uint64_t *value)
{
    run r = {.program = (const attune__vulkan_program *)program, .call = call};
    ATTUNE__TRY(prepare(&r, decode));
    return submit_all(&r, attune__vulkan_of(program->device), value);
}

attune_status attune__vulkan_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                     uint64_t *value)
{
    (void)queue; /* a device has one */
    return launch(program, call, false, value);
}

attune_status attune__vulkan_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value)
{
    (void)queue;
    return launch(program, call, true, value);
}

attune_status attune__vulkan_record(const attune__program *program, const void *commands, const attune__forward *call)
{
    run r = {.program = (const attune__vulkan_program *)program, .call = call};
    ATTUNE__TRY(prepare(&r, r.program->choice.decode));
    const attune__vulkan_device *device = attune__vulkan_of(program->device);
    const VkCommandBuffer theirs = *(const VkCommandBuffer *)commands;
    /* The queue's command buffers begin with a barrier. */
    attune__vulkan_barrier(device, theirs);
    record_part(&r, device, theirs, 0, r.tiles);
    return ATTUNE_OK;
}

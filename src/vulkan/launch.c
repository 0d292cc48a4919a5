/* SPDX-License-Identifier: MIT */
/*
 * A call: its arguments go into the caller's workspace by vkCmdUpdateBuffer, its tiles into dispatches. Submissions are
 * bounded, so that no driver's watchdog takes a long call for a hung one; a call that is recorded into the caller's
 * command buffer is bounded by the caller.
 */
#include <string.h>

#include "base/error.h"
#include "base/round.h"
#include "vulkan/launch.h"
#include "vulkan/mods.h"

/* A call, divided into tiles. */
typedef struct run {
    const attune__vulkan_program *program;
    const attune__forward *call;
    attune_vulkan_arguments arguments;
    attune_vulkan_serving serving; /* of a call over a cache */
    uint64_t place;                /* of the arguments, in the workspace: after the partial results of splits */
    uint64_t tiles;                /* or items of a schedule */
    bool schedules;                /* it computes its own */
    uint64_t combine;              /* workgroups; 0 = no splits */
    double tile_flops;
} run;

static void divide(run *r, bool decode)
{
    /* Results of splits and items of a schedule have their place by a tile's number. */
    const uint32_t section = decode || r->call->serving ? 0 : attune__vulkan_section(r->program->base.device);
    const attune__partition c = attune__forward_partition(r->call, &r->program->choice, decode, section);
    attune__vulkan_arguments_partition(&c, &r->arguments);
    r->tiles = (uint64_t)c.items;
    r->tile_flops = 2.0 * r->program->choice.block_m * (double)r->call->kv_len / r->arguments.splits *
                    (r->program->shape.head_dim + r->program->shape.head_dim_v);
}

/* Of a call over a cache, after its tiles: where they may have parts, items of a schedule take their place. */
static void divide_parts(run *r, uint64_t base)
{
    const attune__forward *call = r->call;
    const attune__shaders_parts *parts = &r->program->parts;
    attune_vulkan_arguments *a = &r->arguments;
    r->place = parts->partials + parts->partials_ml + parts->schedule;
    a->partials = base;
    a->partials_ml = base + parts->partials;
    a->score_mod = base + r->place + sizeof *a;
    a->mask_mod = a->score_mod + (r->program->score ? attune__mods_table_size(r->program->score) : 0);
    a->serving = a->mask_mod + (r->program->mask ? attune__mods_table_size(r->program->mask) : 0);
    attune__vulkan_serving_describe(call, a->serving, &r->serving);
    if (!attune__vulkan_has_parts(parts, call))
        return;
    const attune_buffer *schedule = call->serving->schedule;
    r->schedules = !schedule;
    attune__vulkan_schedule_describe(&r->program->shape, parts,
                                     schedule ? attune__vulkan_address(schedule, call->serving->schedule_offset)
                                              : base + parts->partials + parts->partials_ml,
                                     a, &r->serving);
    const uint64_t items = r->tiles + parts->slots;
    r->tile_flops *= (double)r->tiles / (double)items;
    r->tiles = items < parts->items ? items : parts->items;
    r->combine = parts->merges;
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
    attune_vulkan_arguments *a = &r->arguments;
    attune__vulkan_arguments_describe(call, 4 * attune_dtype_size(call->o.dtype), r->program->choice.block_n, 0, a);
    a->flags |= call->part ? ATTUNE_VULKAN_IS_PARTIAL : 0;
    divide(r, decode);
    ATTUNE__TRY(check_steps(r));

    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    ATTUNE__TRY(attune__vulkan_counts_check(call, r->tiles, r->program->choice.block_m, a->splits));
    const uint64_t base = attune__vulkan_address(call->workspace, call->workspace_offset);
    if (call->serving) {
        divide_parts(r, base);
        return ATTUNE_OK;
    }
    r->place = attune__split_size(&r->program->shape, a->splits, sizeof(float));
    a->score_mod = base + r->place + sizeof *a;
    if (a->splits > 1) {
        a->partials = base;
        a->partials_ml = base + attune__split_ml(rows, a->splits, (uint64_t)call->v.size[3], sizeof(float));
        const uint64_t groups = rows * (uint64_t)call->v.size[3] / 4;
        const uint32_t each = ATTUNE_VULKAN_COMBINE_THREADS / ATTUNE_VULKAN_COMBINE_LANES(a->splits);
        r->combine = (groups + each - 1) / each;
    }
    return ATTUNE_OK;
}

/* Whether the rows of each head lie in the 2 GiB after its first: then an offset in bytes is a positive number of 32
 * bits, signed or not. */
static bool is_near(const attune_vulkan_tensor *t, uint32_t rows, uint32_t row_bytes)
{
    const int64_t most = INT64_C(1) << 31;
    return t->stride_row >= 0 && t->stride_row <= most && (int64_t)(rows - 1) * t->stride_row + row_bytes <= most;
}

static const attune__vulkan_pipeline *forward_pipeline(const run *r)
{
    const attune_vulkan_arguments *a = &r->arguments;
    const attune__vulkan_program *program = r->program;
    const uint32_t all =
        ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V | ATTUNE_VULKAN_ALIGNED_O;
    const uint32_t bytes = (uint32_t)attune_dtype_size(program->shape.k_dtype);
    if (!program->aligned.handle || (a->flags & all) != all)
        return &program->forward;
    if (program->near_keys && (!a->kv_len || !is_near(&a->k, a->kv_len, program->shape.head_dim * bytes) ||
                               !is_near(&a->v, a->kv_len, program->shape.head_dim_v * bytes)))
        return &program->forward;
    return &program->aligned;
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
    if (first == 0) {
        attune__vulkan_arguments_record(
            &(attune__vulkan_arguments_block){.call = r->call,
                                              .score = r->program->score,
                                              .mask = r->program->mask,
                                              .serving = r->call->serving ? &r->serving : NULL,
                                              .arguments = &r->arguments,
                                              .buffer = r->call->workspace,
                                              .offset = r->call->workspace_offset + r->place},
            device, commands);
        attune__vulkan_barrier(device, commands);
    }
    const uint64_t arguments = attune__vulkan_address(r->call->workspace, r->call->workspace_offset + r->place);
    if (first == 0 && r->schedules) {
        attune__vulkan_dispatch(device, commands, &r->program->schedule, arguments, 0, 1);
        attune__vulkan_barrier(device, commands);
    }
    attune__vulkan_dispatch(device, commands, forward_pipeline(r), arguments, first, end);
    if (end < r->tiles || !r->combine)
        return;
    attune__vulkan_barrier(device, commands);
    attune__vulkan_dispatch(device, commands, r->call->serving ? &r->program->merge : &r->program->combine, arguments,
                            0, r->combine);
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
    const VkCommandBuffer borrowed = *(const VkCommandBuffer *)commands;
    /* The queue's command buffers begin with a barrier. */
    attune__vulkan_barrier(device, borrowed);
    record_part(&r, device, borrowed, 0, r.tiles);
    return ATTUNE_OK;
}

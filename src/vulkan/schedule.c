/* SPDX-License-Identifier: MIT */
/*
 * Schedules (shaders/serving_schedule.comp): the work of a batch, divided by the lengths that the device reads. A call
 * without one computes it in its workspace. A schedule of the caller's is followed by the arguments of the kernel that
 * writes it.
 */
#include "base/error.h"
#include "vulkan/launch.h"

#include "shaders/serving_combine.h"
#include "shaders/serving_schedule.h"

_Static_assert(ATTUNE__SHADERS_PART_KEYS == ATTUNE_VULKAN_PART_KEYS, "the planner's and the kernel's");

attune_status attune__vulkan_schedule_pipelines(attune_device *device, const attune__vulkan_kernel *kernel,
                                                attune__vulkan_program *program, attune__vulkan_pipelines *list)
{
    static const attune__vulkan_module schedule = ATTUNE__VULKAN_MODULE(attune__spirv_serving_schedule),
                                       combine = ATTUNE__VULKAN_MODULE(attune__spirv_serving_combine);
    ATTUNE__TRY(attune__vulkan_pipelines_prebuilt(device, list, &schedule, "serving_schedule", kernel->constants,
                                                  &program->schedule));
    return attune__vulkan_pipelines_prebuilt(device, list, &combine, "serving_combine", kernel->constants,
                                             &program->merge);
}

void attune__vulkan_schedule_describe(const attune__shape *shape, const attune__shaders_parts *parts, uint64_t schedule,
                                      attune_vulkan_arguments *arguments, attune_vulkan_serving *serving)
{
    /* Tiles are numbered by the plan's rows: the calls that share a schedule may have other rows of q. */
    arguments->q_chunks = (uint32_t)((shape->q_len + arguments->q_step - 1) / arguments->q_step);
    serving->items = parts->items;
    serving->slots = parts->slots;
    serving->wanted = parts->wanted;
    serving->split_keys = shape->split_keys;
    serving->merges = parts->merges;
    serving->shares = parts->shares;
    serving->schedule = schedule;
}

/* Plans without parts have schedules too, which no call reads. */
uint64_t attune__vulkan_schedule_size(const attune__program *program)
{
    return ((const attune__vulkan_program *)program)->parts.schedule + ATTUNE__SHADERS_ARGUMENTS;
}

attune_status attune__vulkan_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                      uint64_t *value)
{
    (void)queue; /* a device has one */
    const attune__vulkan_program *mine = (const attune__vulkan_program *)program;
    attune__vulkan_device *device = attune__vulkan_of(program->device);
    const attune__serving *s = call->serving;
    const uint64_t address = attune__vulkan_address(s->schedule, s->schedule_offset) + mine->parts.schedule;
    attune_vulkan_arguments a = {0};
    attune_vulkan_serving serving;
    const attune__partition c = attune__forward_partition(call, &mine->choice, false, 0);
    attune__vulkan_arguments_describe(call, 16, mine->choice.block_n, 0, &a);
    attune__vulkan_arguments_partition(&c, &a);
    a.serving = address + sizeof a;
    attune__vulkan_serving_describe(call, a.serving, &serving);
    attune__vulkan_schedule_describe(&mine->shape, &mine->parts, address - mine->parts.schedule, &a, &serving);
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, call->seconds != NULL, &slot));
    if (attune__vulkan_has_parts(&mine->parts, call)) {
        attune__vulkan_arguments_record(
            &(attune__vulkan_arguments_block){.call = call,
                                              .serving = &serving,
                                              .arguments = &a,
                                              .buffer = s->schedule,
                                              .offset = s->schedule_offset + mine->parts.schedule},
            device, slot->commands);
        attune__vulkan_barrier(device, slot->commands);
        attune__vulkan_dispatch(device, slot->commands, &mine->schedule, address, 0, 1);
    }
    if (call->seconds)
        *call->seconds = 0;
    return attune__vulkan_end(device, slot, call->seconds, value);
}

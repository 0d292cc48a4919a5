/* SPDX-License-Identifier: MIT */
/*
 * Schedules (shaders/opencl/schedule.cl): the work of a batch, divided by the lengths that the device reads. A call
 * without one computes it in its workspace. And the program that all plans over a cache share.
 */
#include "shaders/opencl/schedule.h"
#include "base/error.h"
#include "opencl/program.h"

#define POINTERS 8 /* the kernel's parameters after the struct */

_Static_assert(ATTUNE__SHADERS_PART_KEYS == ATTUNE_OPENCL_PART_KEYS, "the planner's and the kernel's");
_Static_assert(sizeof(attune_opencl_schedule) + POINTERS * sizeof(uint64_t) <= ATTUNE__OPENCL_ARGUMENTS,
               "every device takes the arguments");

static void set_arguments(attune__opencl_setter *setter, const attune_opencl_schedule *a, const attune__serving *s,
                          const attune_buffer *schedule)
{
    const attune_buffer *const memory[POINTERS] = {
        s->q_start.buffer, s->kv_len.buffer, s->kv_first.buffer,    s->count.buffer,
        s->shared.buffer,  s->pages.buffer,  s->pages_start.buffer, schedule,
    };
    attune__opencl_set(setter, sizeof *a, a);
    for (uint32_t i = 0; i < POINTERS; i++)
        attune__opencl_set_memory(setter, memory[i]);
}

/* The launch for a batch without sequences. */
static attune_status launch_nothing(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    static const attune__serving none = {.packed = false};
    const attune_opencl_schedule a = {.cache = {.page = 1},
                                      .parts = {.wanted = 1},
                                      .kv_heads = 1,
                                      .q_step = 1,
                                      .q_chunks = 1,
                                      .head_chunks = 1,
                                      .block = 1};
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    set_arguments(&setter, &a, &none, NULL);
    return attune__opencl_kernel_first(device, kernel, setter.error);
}

attune_status attune__opencl_step_build(attune__opencl_device *device, const attune__program_desc *desc,
                                        attune__opencl_program *program)
{
    const attune_limits *limits = &device->base.info.limits;
    const uint32_t most = limits->workgroup_invocations;
    const uint32_t threads = attune__opencl_serving_width(limits) > 1 ? 1 : most < 64 ? most : 64;
    attune__opencl_text text = {.file = "step.cl", .host = limits->host, .fma = device->fma};
    attune__opencl_add_define(&text, "THREADS", threads);
    attune__opencl_add_define(&text, "TYPE", 0);
    ATTUNE__TRY(
        attune__opencl_kernel_build(device, &text, "attune_append", threads, desc->invocations, &program->append));
    ATTUNE__TRY(attune__opencl_kernel_also(device, &program->append, "attune_schedule", threads, &program->schedule));
    ATTUNE__TRY(launch_nothing(device, &program->schedule));
    return attune__opencl_append_first(device, &program->append);
}

bool attune__opencl_has_parts(const attune__opencl_program *program, const attune__forward *call)
{
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
    const uint64_t keys = (uint64_t)sizes.page * (call->serving->pages.buffer ? sizes.entries : 1);
    return program->parts.slots && keys > 2 * ATTUNE__SHADERS_PART_KEYS;
}

attune_opencl_parts attune__opencl_parts_describe(const attune__opencl_program *program, int64_t schedule)
{
    return (attune_opencl_parts){
        .schedule = schedule,
        .items = program->parts.items,
        .slots = program->parts.slots,
        .wanted = program->parts.wanted,
        .split_keys = program->shape.split_keys,
        .merges = program->parts.merges,
        .shares = program->parts.shares,
    };
}

void attune__opencl_schedule_launch(attune__opencl_program *program, const attune__forward *call,
                                    const attune_opencl_arguments *tiles, const attune_opencl_parts *parts,
                                    const attune_buffer *schedule, attune__opencl_call *commands)
{
    attune__opencl_device *device = attune__opencl_of(program->base.device);
    attune_opencl_schedule a = {
        .parts = *parts,
        .batch = tiles->batch,
        .kv_heads = tiles->kv_heads,
        .q_len = tiles->q_len,
        .kv_len = tiles->kv_len,
        .q_step = tiles->q_step,
        .q_chunks = tiles->q_chunks,
        .head_chunks = tiles->head_chunks,
        .block = program->choice.block_n,
    };
    attune__opencl_serving_describe(call, &a.cache);
    attune__opencl_setter setter = {.device = device, .kernel = program->schedule.handle};
    set_arguments(&setter, &a, call->serving, schedule);
    if (commands->status == ATTUNE_OK)
        commands->status = attune__opencl_check(device, setter.error, "clSetKernelArg");
    attune__opencl_launch(commands, program->schedule.handle, 1, program->schedule.threads);
}

uint64_t attune__opencl_schedule_size(const attune__program *program)
{
    return ((const attune__opencl_program *)program)->parts.schedule;
}

attune_status attune__opencl_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                      uint64_t *value)
{
    attune__opencl_program *mine = (attune__opencl_program *)(uintptr_t)program;
    const attune__serving *s = call->serving;
    attune_opencl_arguments tiles = {0};
    attune__opencl_call commands;
    pthread_mutex_lock(&mine->lock);
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    if (attune__opencl_has_parts(mine, call)) {
        const int64_t offset = (int64_t)(attune__opencl_buffer_of(s->schedule)->offset + s->schedule_offset);
        const attune_opencl_parts parts = attune__opencl_parts_describe(mine, offset);
        attune__opencl_tiles_describe(mine, call, &tiles);
        attune__opencl_schedule_launch(mine, call, &tiles, &parts, s->schedule, &commands);
    }
    pthread_mutex_unlock(&mine->lock);
    return attune__opencl_end(&commands, value, call->seconds);
}

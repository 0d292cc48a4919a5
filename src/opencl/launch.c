/* SPDX-License-Identifier: MIT */
/* The hot call: arguments, the table of the score expression, launches of bounded length, the merge of splits. */
#include "opencl/program.h"

#include "base/error.h"
#include "base/round.h"

/* A call divided into tiles. */
typedef struct run {
    attune__opencl_program *program;
    const attune__forward *call;
    attune_opencl_arguments arguments;
    uint64_t tiles;   /* or items of a schedule */
    uint64_t combine; /* workgroups; 0 = no splits, or parts */
    /* of a call over a cache that may have parts */
    attune_opencl_parts parts;
    const attune_buffer *schedule; /* the call's, or its workspace */
    double tile_flops;
} run;

double attune__opencl_launch_flops(const attune__opencl_device *device)
{
    const double each = device->unified ? 0.4e9 : 20e9;
    return each * device->base.info.limits.compute_units;
}

uint64_t attune__opencl_launch_most(const attune__opencl_device *device, uint64_t workgroups, double flops)
{
    const double budget = attune__opencl_launch_flops(device) / flops;
    uint64_t most = budget > (double)workgroups || device->base.info.limits.host ? workgroups
                    : budget < 1                                                 ? 1
                                                                                 : (uint64_t)budget;
    if (device->early_pocl && most > ATTUNE__OPENCL_EARLY_POCL_GROUPS)
        most = ATTUNE__OPENCL_EARLY_POCL_GROUPS;
    /* Equal parts: a short last one would occupy few of the device's units. */
    const uint64_t parts = most ? (workgroups + most - 1) / most : 1;
    return (workgroups + parts - 1) / parts;
}

static attune__partition partition_of(const attune__opencl_program *program, const attune__forward *call, bool decode)
{
    return attune__forward_partition(call, &program->choice, decode, attune__opencl_section(program->base.device));
}

static void divide(run *r, bool decode)
{
    const attune__partition c = partition_of(r->program, r->call, decode);
    attune__opencl_arguments_partition(&c, &r->arguments);
    r->tiles = (uint64_t)c.items;
    r->tile_flops = 2.0 * r->program->choice.block_m * (double)r->call->kv_len / r->arguments.splits *
                    (r->program->shape.head_dim + r->program->shape.head_dim_v);
}

static void number_tiles(const attune__opencl_program *program, attune_opencl_arguments *arguments)
{
    arguments->q_chunks = (uint32_t)((program->shape.q_len + arguments->q_step - 1) / arguments->q_step);
}

void attune__opencl_tiles_describe(const attune__opencl_program *program, const attune__forward *call,
                                   attune_opencl_arguments *arguments)
{
    const attune__partition c = partition_of(program, call, false);
    attune__opencl_arguments_describe(call, 16, program->choice.block_n, 0, arguments);
    attune__opencl_arguments_partition(&c, arguments);
    number_tiles(program, arguments);
}

/* Of a call over a cache, after its tiles: where they may have parts, items of a schedule take their place. */
static void divide_parts(run *r, uint64_t base)
{
    const attune__forward *call = r->call;
    const attune__shaders_parts *parts = &r->program->parts;
    attune_opencl_arguments *a = &r->arguments;
    a->partials = (int64_t)base;
    a->partials_ml = (int64_t)(base + parts->partials);
    a->serving = (int64_t)(base + parts->partials + parts->partials_ml + parts->schedule);
    if (!attune__opencl_has_parts(r->program, call))
        return;
    const attune__serving *s = call->serving;
    r->schedule = s->schedule ? s->schedule : call->workspace;
    r->parts = attune__opencl_parts_describe(
        r->program, s->schedule ? (int64_t)(attune__opencl_buffer_of(s->schedule)->offset + s->schedule_offset)
                                : a->partials_ml + (int64_t)parts->partials_ml);
    number_tiles(r->program, a);
    const uint64_t items = r->tiles + parts->slots;
    r->tile_flops *= (double)r->tiles / (double)items;
    r->tiles = items < parts->items ? items : parts->items;
    r->combine = parts->merges;
}

static attune_status prepare(run *r, bool decode)
{
    const attune__forward *call = r->call;
    attune_opencl_arguments *a = &r->arguments;
    attune__opencl_arguments_describe(call, 4 * attune_dtype_size(call->o.dtype), r->program->choice.block_n, 0, a);
    a->flags |= call->part ? ATTUNE_OPENCL_IS_PARTIAL : 0;
    divide(r, decode);
    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    ATTUNE__TRY(attune__opencl_counts_check(call, r->tiles, r->program->choice.block_m, a->splits));
    if (!call->workspace)
        return ATTUNE_OK;
    const attune__opencl_buffer *workspace = attune__opencl_buffer_of(call->workspace);
    const uint64_t base = workspace->offset + call->workspace_offset;
    if (call->serving) {
        divide_parts(r, base);
        return ATTUNE_OK;
    }
    a->partials = (int64_t)base;
    a->score_table = (int64_t)(base + attune__split_size(&r->program->shape, a->splits, sizeof(float)));
    if (a->splits > 1) {
        const uint64_t threads = r->program->combine.threads / r->program->combine_items;
        const uint64_t groups = rows * (uint64_t)call->v.size[3] / 4;
        a->partials_ml = (int64_t)(base + attune__split_ml(rows, a->splits, (uint64_t)call->v.size[3], sizeof(float)));
        r->combine = (groups + threads - 1) / threads;
    }
    return ATTUNE_OK;
}

static const attune__opencl_kernel *forward_kernel(const run *r)
{
    const uint32_t all =
        ATTUNE_OPENCL_ALIGNED_Q | ATTUNE_OPENCL_ALIGNED_K | ATTUNE_OPENCL_ALIGNED_V | ATTUNE_OPENCL_ALIGNED_O;
    return r->program->aligned.handle && (r->arguments.flags & all) == all ? &r->program->aligned
                                                                           : &r->program->forward;
}

/* Under the program's lock. Workgroups 0 to before `count`, at most `most` in a launch. */
static void launch_all(run *r, const attune__opencl_kernel *kernel, uint64_t count, uint64_t most,
                       attune__opencl_call *commands)
{
    attune__opencl_device *device = attune__opencl_of(r->program->base.device);
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    r->arguments.first = 0;
    attune__opencl_set_forward(&setter, &r->arguments, r->call);
    const bool over_cache = r->call->serving != NULL, merges = kernel == &r->program->combine;
    if (over_cache)
        attune__opencl_serving_set(&setter, r->call->serving, r->schedule);
    if (over_cache && !merges)
        attune__opencl_set_captures(&setter, r->program->mask, r->call->serving->mask_captures);
    if (!over_cache || !merges)
        attune__opencl_set_captures(&setter, r->program->score, r->call->captures);
    for (uint64_t first = 0; first < count; first += most) {
        if (first) {
            r->arguments.first = (uint32_t)first;
            setter.index = 0;
            attune__opencl_set(&setter, sizeof r->arguments, &r->arguments);
        }
        if (commands->status == ATTUNE_OK)
            commands->status = attune__opencl_check(device, setter.error, "clSetKernelArg");
        attune__opencl_launch(commands, kernel->handle, count - first < most ? count - first : most, kernel->threads);
    }
}

/* Copies to the workspace what the kernels read besides their arguments. */
static void copy_tables(const run *r, attune__opencl_call *commands)
{
    const attune__opencl_program *program = r->program;
    const attune__forward *call = r->call;
    attune_opencl_serving serving = {0};
    attune_opencl_table table;
    if (call->serving) {
        attune__opencl_serving_describe(call, &serving.cache);
        serving.parts = r->parts;
        if (program->mask)
            attune__opencl_table_of(call, program->mask, call->serving->mask_captures, call->serving->mask_parameters,
                                    NULL, &serving.mask);
        if (program->score)
            attune__opencl_table_of(call, program->score, call->captures, call->parameters, NULL, &serving.score);
        attune__opencl_table(commands, attune__opencl_buffer_of(call->workspace)->memory,
                             (uint64_t)r->arguments.serving, &serving, sizeof serving);
    } else if (program->score) {
        attune__opencl_table_of(call, program->score, call->captures, call->parameters, NULL, &table);
        attune__opencl_table(commands, attune__opencl_buffer_of(call->workspace)->memory,
                             (uint64_t)r->arguments.score_table, &table, sizeof table);
    }
}

static void enqueue(run *r, attune__opencl_call *commands)
{
    const attune__opencl_program *program = r->program;
    attune__opencl_device *device = attune__opencl_of(program->base.device);
    copy_tables(r, commands);
    if (r->parts.items && !r->call->serving->schedule)
        attune__opencl_schedule_launch(r->program, r->call, &r->arguments, &r->parts, r->schedule, commands);
    const uint64_t most = attune__opencl_launch_most(device, r->tiles, r->tile_flops);
    launch_all(r, forward_kernel(r), r->tiles, most, commands);
    if (r->combine) {
        /* The time of its loads, as operations: of a tile with two parts, or of four columns for each work-item. */
        const double loads = r->parts.items ? 2.0 * program->choice.block_m * program->shape.head_dim_v
                                            : 4.0 * program->combine.threads * r->arguments.splits;
        const uint64_t merges = attune__opencl_launch_most(device, r->combine, 16 * loads);
        launch_all(r, &program->combine, r->combine, merges, commands);
    }
}

static attune_status launch(const attune__program *program, attune_queue *queue, const attune__forward *call,
                            bool decode, uint64_t *value)
{
    attune__opencl_program *mine = (attune__opencl_program *)(uintptr_t)program;
    run r = {.program = mine, .call = call};
    attune__opencl_call commands;
    ATTUNE__TRY(prepare(&r, decode));
    pthread_mutex_lock(&mine->lock);
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    enqueue(&r, &commands);
    pthread_mutex_unlock(&mine->lock);
    return attune__opencl_end(&commands, value, call->seconds);
}

attune_status attune__opencl_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                     uint64_t *value)
{
    return launch(program, queue, call, false, value);
}

attune_status attune__opencl_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value)
{
    return launch(program, queue, call, true, value);
}

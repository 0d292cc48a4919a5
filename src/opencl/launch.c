/* SPDX-License-Identifier: MIT */
/* The hot call: arguments, the table of the score expression, launches of bounded length, the merge of splits. */
#include "opencl/program.h"

#include "base/error.h"
#include "base/round.h"

/* A call cut into tiles. */
typedef struct run {
    attune__opencl_program *program;
    const attune__forward *call;
    attune_opencl_arguments arguments;
    uint64_t tiles;
    uint64_t combine; /* workgroups; 0 = no splits */
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
    const uint64_t most = budget > (double)workgroups || device->base.info.limits.host ? workgroups
                          : budget < 1                                                 ? 1
                                                                                       : (uint64_t)budget;
    /* Equal parts: a short last one would occupy few of the device's units. */
    const uint64_t parts = most ? (workgroups + most - 1) / most : 1;
    return (workgroups + parts - 1) / parts;
}

static void cut(run *r, bool decode)
{
    const attune__forward *call = r->call;
    const attune_mask *mask = call->mask;
    const attune_plan_choice *choice = &r->program->choice;
    const attune__partition c = attune__partition_make(&(attune__partition_desc){
        .batch = call->batch,
        .heads = call->heads,
        .kv_heads = call->kv_heads,
        .q_len = attune__forward_rows(call),
        .block_m = choice->block_m,
        .split_kv = choice->split_kv,
        .decode = decode || call->serving, /* a tile has the rows of a group of heads */
        .mask_q_block = mask ? mask->q_block : 0,
        .one_list = !mask || mask->stored_heads == 1,
    });
    attune__opencl_arguments_cut(&c, &r->arguments);
    r->tiles = (uint64_t)c.items;
    r->tile_flops = 2.0 * choice->block_m * (double)call->kv_len / r->arguments.splits *
                    (r->program->shape.head_dim + r->program->shape.head_dim_v);
}

static attune_status prepare(run *r, bool decode)
{
    const attune__forward *call = r->call;
    attune_opencl_arguments *a = &r->arguments;
    attune__opencl_arguments_describe(call, 4 * attune_dtype_size(call->o.dtype), r->program->choice.block_n, 0, a);
    a->flags |= call->part ? ATTUNE_OPENCL_IS_PARTIAL : 0;
    cut(r, decode);
    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    if (r->tiles > UINT32_MAX || (a->splits > 1 && rows > UINT32_MAX / a->splits / ((uint64_t)call->v.size[3] / 4)))
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu tiles of %u rows, %s takes fewer than 2^32",
                            (unsigned long long)r->tiles, r->program->choice.block_m, r->program->base.device->info.id);
    if (!call->workspace)
        return ATTUNE_OK;
    const attune__opencl_buffer *workspace = attune__opencl_buffer_of(call->workspace);
    const uint64_t base = workspace->offset + call->workspace_offset;
    a->partials = (int64_t)base;
    a->score_table = (int64_t)(base + attune__split_size(&r->program->shape, a->splits, sizeof(float)));
    a->serving = a->score_table;
    if (a->splits > 1) {
        const uint64_t threads = r->program->combine.threads, groups = rows * (uint64_t)call->v.size[3] / 4;
        a->partials_ml =
            (int64_t)(base + attune__round_up64(rows * a->splits * (uint64_t)call->v.size[3] * sizeof(float), 256));
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
    if (r->call->serving) {
        attune__opencl_serving_set(&setter, r->call->serving);
        attune__opencl_set_captures(&setter, r->program->mask, r->call->serving->mask_captures);
    }
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

/* What the kernels read besides their arguments, to the workspace. */
static void copy_tables(const run *r, attune__opencl_call *commands)
{
    const attune__opencl_program *program = r->program;
    const attune__forward *call = r->call;
    attune_opencl_serving serving;
    attune_opencl_table table;
    if (call->serving) {
        attune__opencl_serving_describe(call, &serving.cache);
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
    const uint64_t most = attune__opencl_launch_most(device, r->tiles, r->tile_flops);
    launch_all(r, forward_kernel(r), r->tiles, most, commands);
    if (r->combine)
        launch_all(r, &program->combine, r->combine, r->combine, commands);
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

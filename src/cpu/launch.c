/* SPDX-License-Identifier: MIT */
/* A call: it is divided into items, which the threads of the pool take from a counter. Each thread has scratch memory
 * in the caller's workspace. The work is done on return. */
#include "cpu/cpu.h"

#include <string.h>
#include <time.h>

#include "base/error.h"

double attune__cpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void attune__cpu_divide(attune__cpu_run *run, bool decode)
{
    const attune__partition c = attune__forward_partition(run->call, &run->program->choice, decode, 0);
    run->head_step = c.head_step;
    run->q_step = c.q_step;
    run->head_chunks = c.head_chunks;
    run->q_block = c.q_block;
    run->q_chunks = c.q_chunks;
    run->splits = c.splits;
    run->items = c.items;
}

int64_t attune__cpu_adjacent(const attune__cpu_run *run, int64_t heads, uint32_t threads)
{
    const attune__cpu_program *mine = run->program;
    if (run->call->serving || run->splits > 1 || !run->call->mask ||
        !attune__cpu_kept_tiles(&mine->shape, (uint32_t)run->block_m, (uint32_t)run->block_n))
        return 1;
    int64_t adjacent = run->items / (threads * 4);
    adjacent = adjacent > heads ? heads : adjacent > 1 ? adjacent : 1;
    while (heads % adjacent)
        adjacent--;
    return adjacent;
}

void attune__cpu_bind(const attune_expr *score, const attune_tensor *tensors, attune_array *captures)
{
    for (uint32_t i = 0; score && i < score->symbol_count; i++) {
        const attune_tensor *tensor = &tensors[i];
        captures[i] = (attune_array){.data = NULL};
        if (score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE)
            continue;
        captures[i].data = attune__cpu_memory(tensor->buffer) + tensor->offset;
        captures[i].dtype = tensor->dtype;
        captures[i].rank = tensor->rank;
        for (uint32_t j = 0; j < tensor->rank; j++) {
            captures[i].size[j] = tensor->size[j];
            captures[i].stride[j] = tensor->stride[j];
        }
    }
}

uint32_t attune__cpu_threads(const attune__cpu_device *device, bool f64, double pairs, uint32_t flop, uint32_t weight,
                             uint64_t most)
{
    const uint32_t all = attune__pool_threads(device->pool), some = most < all ? (uint32_t)most : all;
    const attune__loop_cost cost = {pairs, flop, weight, f64 ? device->f64.lanes : device->f32.lanes};
    return attune__loop_threads(&cost, some);
}

static attune__cpu_run run_of(const attune__program *program, const attune__forward *call, bool decode)
{
    const attune__cpu_program *mine = (const attune__cpu_program *)program;
    attune__cpu_run run = {
        .device = (const attune__cpu_device *)program->device,
        .program = mine,
        .call = call,
        .block_m = mine->choice.block_m,
        .block_n = mine->choice.block_n,
    };
    run.layout = attune__cpu_layout_make(&mine->shape, mine->choice.block_m, mine->choice.block_n);
    attune__cpu_divide(&run, decode);
    if (!call->serving)
        return run;
    run.split_keys = attune__cpu_split_keys(&mine->shape);
    run.part = attune__cpu_part_layout_make(&mine->shape, mine->choice.block_m);
    run.part_limit =
        (int64_t)attune__cpu_parts(&mine->shape, mine->choice.block_m, program->device->info.limits.compute_units);
    return run;
}

/* The schedule of the caller, or this call's own, at `own`. */
static attune_status find_schedule(attune__cpu_run *run, char *own)
{
    const attune__serving *serving = run->call->serving;
    if (!serving->schedule) {
        run->schedule = (attune__cpu_schedule *)(void *)own;
        attune__cpu_schedule_fill(run);
    } else {
        run->schedule =
            (attune__cpu_schedule *)(void *)(attune__cpu_memory(serving->schedule) + serving->schedule_offset);
        if (run->schedule->key != attune__cpu_schedule_key(run))
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "args.schedule was not written by attune_schedule for %lld sequences of a plan like "
                                "this one",
                                (long long)run->call->batch);
    }
    run->items = run->schedule->items;
    return ATTUNE_OK;
}

uint64_t attune__cpu_schedule_bytes(const attune__program *program)
{
    return attune__cpu_schedule_size(&((const attune__cpu_program *)program)->shape);
}

attune_status attune__cpu_schedule_write(const attune__program *program, attune_queue *queue,
                                         const attune__forward *call, uint64_t *value)
{
    (void)queue;
    attune__cpu_run run = run_of(program, call, true);
    const attune__serving *serving = call->serving;
    const double start = call->seconds ? attune__cpu_now() : 0;
    run.schedule = (attune__cpu_schedule *)(void *)(attune__cpu_memory(serving->schedule) + serving->schedule_offset);
    attune__cpu_schedule_fill(&run);
    if (call->seconds)
        *call->seconds = attune__cpu_now() - start;
    *value = 0;
    return ATTUNE_OK;
}

/* The results of items that are parts of a row's. */
static void merge(attune__cpu_run *run, bool f64, double rows, uint64_t most)
{
    const attune__cpu_device *device = run->device;
    const bool serving = run->call->serving;
    const uint32_t threads =
        attune__cpu_threads(device, f64, rows * run->splits, 2 * run->program->shape.head_dim_v, 0, most);
    atomic_store_explicit(&run->next, 0, memory_order_relaxed);
    if (serving)
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_fold_f64 : attune__cpu_fold_f32, run);
    else
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_merge_f64 : attune__cpu_merge_f32, run);
}

/* A thread's items: its tile registers are configured for these alone, since the thread may be the engine's. */
static void items_f32(void *user, uint32_t thread)
{
    const attune__cpu_matrix *matrix = ((const attune__cpu_run *)user)->program->matrix;
    if (matrix)
        matrix->begin();
    attune__cpu_items_f32(user, thread);
    if (matrix)
        matrix->end();
}

static attune_status launch(const attune__program *program, const attune__forward *call, bool decode, uint64_t *value)
{
    const attune__cpu_program *mine = (const attune__cpu_program *)program;
    const attune__cpu_device *device = (const attune__cpu_device *)program->device;
    const double start = call->seconds ? attune__cpu_now() : 0;
    const bool f64 = attune__shape_real(&mine->shape) == ATTUNE_F64;
    const size_t real = f64 ? sizeof(double) : sizeof(float);
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS], mask_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__cpu_run run = run_of(program, call, decode);
    run.score = (attune__bindings){captures, call->parameters};
    attune__cpu_bind(mine->score, call->captures, captures);
    if (call->serving) {
        run.mask = (attune__bindings){mask_captures, call->serving->mask_parameters};
        attune__cpu_bind(mine->mask, call->serving->mask_captures, mask_captures);
    }

    /* The workspace: partial results of splits, then scratch for as many threads as fit. It may be caller's memory of
     * any alignment. */
    run.scratch_bytes = (size_t)run.layout.bytes;
    const size_t rows = (size_t)(call->batch * call->heads * call->q_len);
    const attune__cpu_workspace workspace = attune__cpu_workspace_make(&mine->shape, mine->choice.block_m, run.splits,
                                                                       device->base.info.limits.compute_units);
    if (mine->matrix)
        run.packing = attune__cpu_packed_make(&mine->shape, mine->choice.block_m, mine->choice.block_n);
    const size_t parts_bytes = (size_t)(workspace.threads + run.packing.bytes);
    char *base = call->workspace ? attune__cpu_memory(call->workspace) + call->workspace_offset : NULL;
    const size_t skew = (ATTUNE__CPU_ALIGNMENT - (uintptr_t)base % ATTUNE__CPU_ALIGNMENT) % ATTUNE__CPU_ALIGNMENT;
    const uint64_t left = call->workspace ? call->workspace->size - call->workspace_offset : 0;
    if (left < skew + parts_bytes + run.scratch_bytes)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the workspace has %llu bytes at %p, but one thread needs %llu from a multiple of %zu on",
                            (unsigned long long)left, (void *)base, (unsigned long long)parts_bytes + run.scratch_bytes,
                            ATTUNE__CPU_ALIGNMENT);
    run.parts = base + skew + workspace.partials;
    run.ml = run.parts + attune__split_ml(rows, run.splits, mine->shape.head_dim_v, real);
    run.scratch = base + skew + parts_bytes;
    if (run.packing.bytes) {
        run.packed = base + skew + workspace.threads;
        memset(run.packed + run.packing.states, ATTUNE__PACK_NONE, run.packing.tiles);
    }
    if (call->serving)
        ATTUNE__TRY(find_schedule(&run, base + skew));
    /* Two threads must not write a row that two sequences claim. */
    const uint64_t fit =
        call->serving && !attune__cpu_in_order(call) ? 1 : (left - skew - parts_bytes) / run.scratch_bytes;
    const double pairs = call->serving ? run.schedule->pairs : (double)rows * (double)call->kv_len;
    const uint64_t items = (uint64_t)run.items;
    const uint32_t columns = mine->shape.head_dim_v, flop = 2 * (mine->shape.head_dim + columns);
    const uint32_t threads = attune__cpu_threads(device, f64, pairs, flop, mine->weight, fit < items ? fit : items);
    if (run.items && call->serving) {
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_serve_f64 : attune__cpu_serve_f32, &run);
    } else if (run.items) {
        run.adjacent = attune__cpu_adjacent(&run, call->kv_heads * run.head_chunks, threads);
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_items_f64 : items_f32, &run);
    }
    const uint64_t merged = call->serving ? (uint64_t)run.schedule->split_items : run.splits > 1 ? rows : 0;
    if (merged)
        merge(&run, f64, call->serving ? (double)merged * (double)run.block_m : (double)rows,
              fit < merged ? fit : merged);
    if (call->seconds)
        *call->seconds = attune__cpu_now() - start;
    if (value)
        *value = 0;
    return ATTUNE_OK;
}

attune_status attune__cpu_forward(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                  uint64_t *value)
{
    (void)queue;
    return launch(program, call, false, value);
}

attune_status attune__cpu_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                 uint64_t *value)
{
    (void)queue;
    return launch(program, call, true, value);
}

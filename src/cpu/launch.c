/* SPDX-License-Identifier: MIT */
/* A call: it is divided into items, which the threads of the pool take from a counter. Each thread has scratch memory
 * in the caller's workspace. The work is done on return. */
#include "cpu/cpu.h"

#include <time.h>

#include "base/error.h"
#include "plan/partition.h"

static size_t align(size_t bytes)
{
    return (bytes + ATTUNE__CPU_ALIGNMENT - 1) / ATTUNE__CPU_ALIGNMENT * ATTUNE__CPU_ALIGNMENT;
}

double attune__cpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void divide(attune__cpu_run *run, bool decode)
{
    const attune__forward *call = run->call;
    const attune_mask *mask = call->mask;
    const attune__partition c = attune__partition_make(&(attune__partition_desc){
        .batch = call->batch,
        .heads = call->heads,
        .kv_heads = call->kv_heads,
        .q_len = call->q_len,
        .block_m = (uint32_t)run->block_m,
        .split_kv = run->program->choice.split_kv,
        .decode = decode,
        .mask_q_block = mask ? mask->q_block : 0,
        .one_list = !mask || mask->stored_heads == 1,
    });
    run->head_step = c.head_step;
    run->q_step = c.q_step;
    run->head_chunks = c.head_chunks;
    run->q_block = c.q_block;
    run->q_chunks = c.q_chunks;
    run->splits = c.splits;
    run->items = c.items;
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

static attune_status launch(const attune__program *program, const attune__forward *call, bool decode, uint64_t *value)
{
    const attune__cpu_program *mine = (const attune__cpu_program *)program;
    attune__cpu_device *device = (attune__cpu_device *)program->device;
    const double start = call->seconds ? attune__cpu_now() : 0;
    const bool f64 = attune__shape_real(&mine->shape) == ATTUNE_F64;
    const size_t real = f64 ? sizeof(double) : sizeof(float);
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS], mask_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__cpu_run run = {
        .device = device,
        .program = mine,
        .call = call,
        .score = {captures, call->parameters},
        .block_m = mine->choice.block_m,
        .block_n = mine->choice.block_n,
    };
    attune__cpu_bind(mine->score, call->captures, captures);
    if (call->serving) {
        run.mask = (attune__bindings){mask_captures, call->serving->mask_parameters};
        attune__cpu_bind(mine->mask, call->serving->mask_captures, mask_captures);
    }
    divide(&run, decode || call->serving);

    /* The workspace: partial results of splits, then scratch for as many threads as fit. It may be caller's memory of
     * any alignment. */
    run.scratch_bytes = (size_t)attune__cpu_thread_size(&mine->shape, mine->choice.block_m, mine->choice.block_n);
    const size_t rows = (size_t)(call->batch * call->heads * call->q_len);
    const size_t schedule_bytes = (size_t)attune__cpu_schedule_size(&mine->shape);
    const size_t parts_bytes = schedule_bytes + (size_t)attune__split_size(&mine->shape, run.splits, (uint32_t)real);
    char *base = call->workspace ? attune__cpu_memory(call->workspace) + call->workspace_offset : NULL;
    const size_t skew = (ATTUNE__CPU_ALIGNMENT - (uintptr_t)base % ATTUNE__CPU_ALIGNMENT) % ATTUNE__CPU_ALIGNMENT;
    const uint64_t left = call->workspace ? call->workspace->size - call->workspace_offset : 0;
    if (left < skew + parts_bytes + run.scratch_bytes)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the workspace has %llu bytes at %p, but one thread needs %llu from a multiple of %zu on",
                            (unsigned long long)left, (void *)base, (unsigned long long)parts_bytes + run.scratch_bytes,
                            ATTUNE__CPU_ALIGNMENT);
    run.schedule = (int64_t *)(void *)(base + skew);
    run.parts = base + skew + schedule_bytes;
    run.ml = run.parts + align(rows * run.splits * mine->shape.head_dim_v * real);
    run.scratch = base + skew + parts_bytes;
    const uint64_t fit = (left - skew - parts_bytes) / run.scratch_bytes;
    const double pairs = call->serving ? attune__cpu_schedule(&run) : (double)rows * (double)call->kv_len;
    const uint64_t items = (uint64_t)run.items;
    const uint32_t columns = mine->shape.head_dim_v, flop = 2 * (mine->shape.head_dim + columns);
    const double parts = (double)rows * run.splits;
    uint32_t threads = attune__cpu_threads(device, f64, pairs, flop, mine->weight, fit < items ? fit : items);
    if (run.items)
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_items_f64 : attune__cpu_items_f32, &run);
    if (run.splits > 1) {
        atomic_store_explicit(&run.next, 0, memory_order_relaxed);
        threads = attune__cpu_threads(device, f64, parts, 2 * columns, 0, fit < rows ? fit : rows);
        attune__pool_run(device->pool, threads, f64 ? attune__cpu_merge_f64 : attune__cpu_merge_f32, &run);
    }
    if (call->seconds)
        *call->seconds = attune__cpu_now() - start;
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

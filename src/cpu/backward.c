/* SPDX-License-Identifier: MIT */
/* A backward call: its workspace, and its passes with their items. */
#include "cpu/backward.h"

#include <string.h>

#include "base/error.h"

/* Whether the gradient of this symbol is requested. */
static bool is_requested(const attune__cpu_backward_run *run, uint32_t symbol)
{
    const attune_expr *score = run->base.program->score;
    return score->symbols[symbol].kind == ATTUNE_SYMBOL_CAPTURE && run->call->d_captures[symbol].buffer;
}

static uint64_t elements_of(const attune_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        elements *= (uint64_t)tensor->size[i];
    return elements;
}

static void count_elements(attune__cpu_backward_run *run)
{
    const attune_expr *score = run->base.program->score;
    for (uint32_t i = 0; score && i < score->symbol_count; i++)
        if (is_requested(run, i))
            run->elements += elements_of(&run->call->d_captures[i]);
    run->slots = run->elements ? ATTUNE__CPU_GRADIENT_SLOTS : 0;
}

void attune__cpu_backward_slot(const attune__cpu_backward_run *run, int64_t slot, double **sums)
{
    const attune_expr *score = run->base.program->score;
    double *next = run->sums + (uint64_t)slot * run->elements;
    memset(next, 0, run->elements * sizeof *next);
    for (uint32_t i = 0; i < score->symbol_count; i++) {
        sums[i] = is_requested(run, i) ? next : NULL;
        if (sums[i])
            next += elements_of(&run->call->d_captures[i]);
    }
}

/* Adds all slots, in a fixed order, to the caller's tensors. */
static void add_sums(const attune__cpu_backward_run *run)
{
    const attune_expr *score = run->base.program->score;
    const double *from = run->sums;
    for (uint32_t i = 0; score && i < score->symbol_count; i++) {
        if (!is_requested(run, i))
            continue;
        const attune_tensor *out = &run->call->d_captures[i];
        const uint64_t elements = elements_of(out);
        for (uint64_t e = 0; e < elements; e++, from++) {
            double sum = 0;
            for (int64_t slot = 0; slot < run->slots; slot++)
                sum += from[(uint64_t)slot * run->elements];
            int64_t index = 0;
            uint64_t rest = e;
            for (uint32_t d = out->rank; d-- > 0; rest /= (uint64_t)out->size[d])
                index += (int64_t)(rest % (uint64_t)out->size[d]) * out->stride[d];
            char *at = attune__cpu_memory(out->buffer) + out->offset + index * (int64_t)sizeof(float);
            float value;
            memcpy(&value, at, sizeof value);
            value = (float)((double)value + sum);
            memcpy(at, &value, sizeof value);
        }
    }
}

/* The workspace may be caller's memory of any alignment, so that it may fit one thread less than planned. */
static attune_status divide_workspace(attune__cpu_backward_run *run, uint64_t *fit)
{
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const attune_plan_choice *c = &run->base.program->choice;
    const attune__cpu_backward_workspace workspace =
        attune__cpu_backward_workspace_make(shape, (uint64_t)(call->batch * call->heads * call->q_len), run->elements);
    run->base.scratch_bytes =
        (size_t)attune__cpu_backward_thread_size(shape, c->block_m1, c->block_n1, c->block_m2, c->block_n2);
    char *base = attune__cpu_memory(call->workspace) + call->workspace_offset;
    const size_t skew = (ATTUNE__CPU_ALIGNMENT - (uintptr_t)base % ATTUNE__CPU_ALIGNMENT) % ATTUNE__CPU_ALIGNMENT;
    const uint64_t head = skew + workspace.threads;
    const uint64_t left = call->workspace->size - call->workspace_offset;
    if (left < head + run->base.scratch_bytes)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the workspace has %llu bytes at %p, but one thread needs %llu from a multiple of %zu on",
                            (unsigned long long)left, (void *)base,
                            (unsigned long long)(head - skew + run->base.scratch_bytes), ATTUNE__CPU_ALIGNMENT);
    run->delta = base + skew;
    run->sums = (double *)(void *)(run->delta + workspace.sums);
    run->base.scratch = base + head;
    *fit = (left - head) / run->base.scratch_bytes;
    return ATTUNE_OK;
}

/* Runs a pass of `items` over `pairs`, each of which costs flop and weight. heads: adjacent items of equal tiles. */
static void run_pass(attune__cpu_backward_run *run, attune__pool_fn pass, uint64_t items, int64_t heads, double pairs,
                     uint32_t flop, uint32_t weight, uint64_t fit)
{
    const bool f64 = attune__shape_real(&run->base.program->shape) == ATTUNE_F64;
    const uint32_t threads = attune__cpu_threads(run->base.device, f64, pairs, flop, weight, fit < items ? fit : items);
    atomic_store_explicit(&run->base.next, 0, memory_order_relaxed);
    run->base.adjacent = attune__cpu_adjacent(&run->base, heads, threads);
    attune__pool_run(run->base.device->pool, threads, pass, run);
}

static void set_tile(attune__cpu_backward_run *run, uint32_t block_m, uint32_t block_n)
{
    run->base.block_m = block_m;
    run->base.block_n = block_n;
    run->layout = attune__cpu_backward_layout_make(&run->base.program->shape, block_m, block_n);
}

static void divide_rows(attune__cpu_backward_run *run)
{
    const attune_plan_choice *choice = &run->base.program->choice;
    set_tile(run, choice->block_m2, choice->block_n2);
    attune__cpu_divide(&run->base, false);
}

static void divide_keys(attune__cpu_backward_run *run)
{
    const attune__forward *call = &run->call->forward;
    attune__cpu_run *base = &run->base;
    set_tile(run, base->program->choice.block_m1, base->program->choice.block_n1);
    const int64_t step = (int64_t)base->block_n;
    base->items = (call->kv_len + step - 1) / step * call->k.size[0] * call->kv_heads;
}

attune_status attune__cpu_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                   uint64_t *value)
{
    (void)queue;
    const attune__cpu_program *mine = (const attune__cpu_program *)program;
    attune__cpu_device *device = (attune__cpu_device *)program->device;
    const double start = call->forward.seconds ? attune__cpu_now() : 0;
    const bool f64 = attune__shape_real(&mine->shape) == ATTUNE_F64;
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__cpu_backward_run run = {
        .base = {.device = device,
                 .program = mine,
                 .call = &call->forward,
                 .score = {captures, call->forward.parameters},
                 .splits = 1},
        .call = call,
    };
    attune__cpu_bind(mine->score, call->forward.captures, captures);
    count_elements(&run);
    uint64_t fit = 0;
    ATTUNE__TRY(divide_workspace(&run, &fit));
    divide_rows(&run);
    const int64_t rows = call->forward.batch * call->forward.heads * call->forward.q_len;
    const double pairs = (double)rows * (double)call->forward.kv_len;
    const uint32_t d = 2 * mine->shape.head_dim, dv = 2 * mine->shape.head_dim_v;
    run_pass(&run, f64 ? attune__cpu_backward_delta_f64 : attune__cpu_backward_delta_f32, (uint64_t)rows, 1,
             (double)rows, dv, 0, fit);
    if (call->d_sinks.buffer)
        run_pass(&run, f64 ? attune__cpu_backward_sinks_f64 : attune__cpu_backward_sinks_f32,
                 (uint64_t)call->forward.heads, 1, (double)rows, dv, 0, fit);
    run_pass(&run, f64 ? attune__cpu_backward_rows_f64 : attune__cpu_backward_rows_f32,
             (uint64_t)(run.slots ? run.slots : run.base.items), call->forward.heads, pairs, 2 * d + dv, mine->weight,
             fit);
    divide_keys(&run);
    run_pass(&run, f64 ? attune__cpu_backward_keys_f64 : attune__cpu_backward_keys_f32, (uint64_t)run.base.items,
             call->forward.kv_heads, pairs, 2 * d + 2 * dv, mine->weight, fit);
    add_sums(&run);
    if (call->forward.seconds)
        *call->forward.seconds = attune__cpu_now() - start;
    if (value)
        *value = 0;
    return ATTUNE_OK;
}

/* SPDX-License-Identifier: MIT */
/* The hot call of the backward pass: lse and delta, dK and dV, dQ, and what captures are due, one after another. */
#include "base/error.h"
#include "cuda/cuda.h"
#include "plan/family_cuda.h"

#define DELTA_THREADS 256
#define DELTA_ROWS    8 /* of a block: a warp each */
#define SUMS_THREADS  256

attune_status attune__cuda_backward_load(attune__cuda_program *program, const attune__program_desc *desc)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    program->apart = attune__cuda_backward_apart(desc->shape);
    ATTUNE__TRY(attune__cuda_enter(device));
    const attune_status status =
        attune__cuda_check(device, device->driver.module_function(&program->sums, program->delta.module, "attune_sums"),
                           "cuModuleGetFunction");
    attune__cuda_leave(device);
    return status;
}

/* The gradients that are wanted, and where each one's sums begin. */
static attune_cuda_sums sums_of(const attune__cuda_program *program, const attune__backward *call,
                                attune__cu_pointer memory, unsigned long long begin[ATTUNE_CUDA_SYMBOLS])
{
    attune_cuda_sums sums = {.sums = memory};
    for (uint32_t i = 0; program->score && i < program->score->symbol_count; i++) {
        const attune_tensor *t = &call->d_captures[i];
        begin[i] = 0;
        if (program->score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE || !t->buffer)
            continue;
        begin[i] = memory + (unsigned long long)sums.elements * ATTUNE__CUDA_SUM_BYTES;
        sums.to[sums.count].address = attune__cuda_pointer(t->buffer) + t->offset;
        sums.to[sums.count].elements = 1;
        for (uint32_t d = 0; d < ATTUNE_MAX_RANK; d++) {
            const bool there = d < t->rank;
            sums.to[sums.count].size[d] = there ? t->size[d] : 1;
            sums.to[sums.count].stride[d] = there ? t->stride[d] : 0;
            sums.to[sums.count].elements *= there ? t->size[d] : 1;
        }
        sums.elements += sums.to[sums.count++].elements;
    }
    return sums;
}

static attune_cuda_backward backward_of(const attune__cuda_program *program, const attune__backward *call,
                                        attune_cuda_sums *sums)
{
    const attune__forward *f = &call->forward;
    const attune__cu_pointer workspace = attune__cuda_pointer(f->workspace) + f->workspace_offset;
    const attune__cuda_workspace w = attune__cuda_backward_workspace(f->batch, f->heads, f->q_len, 0);
    attune_cuda_backward b = {
        .d_o = attune__cuda_view_of(&call->d_o),
        .d_q = attune__cuda_view_of(&call->d_q),
        .d_k = attune__cuda_view_of(&call->d_k),
        .d_v = attune__cuda_view_of(&call->d_v),
        .d_lse = attune__cuda_view_of(&call->d_lse),
        .kv_batch = (int)f->k.size[0],
        .lse = workspace,
        .delta = workspace + w.delta,
        .row_stride = (long long)w.row_stride,
        .sums = workspace + w.sums,
    };
    *sums = sums_of(program, call, workspace + w.sums, b.symbol_sums);
    b.sum_words = (unsigned long long)sums->elements * ATTUNE_CUDA_SUM_WORDS;
    if (f->mask) {
        const attune_mask *mask = f->mask;
        const attune__cuda_mask *uploaded = (const attune__cuda_mask *)f->device_mask;
        b.partial = (attune_cuda_list){uploaded->column_offsets[0], uploaded->column_indices[0]};
        b.full = (attune_cuda_list){uploaded->column_offsets[1], uploaded->column_indices[1]};
        b.column_head_rows = mask->stored_heads == 1 ? 0 : mask->kv_blocks;
        b.column_batch_rows = mask->stored_batch == 1 ? 0 : mask->stored_heads * mask->kv_blocks;
    }
    return b;
}

/* Workgroups, or 0 if there are too many. */
static int64_t blocks(int64_t length, int64_t tile, int64_t planes)
{
    const int64_t tiles = (length + tile - 1) / tile;
    return tiles > ATTUNE__CUDA_MOST_BLOCKS / planes ? 0 : tiles * planes;
}

typedef struct launches {
    int64_t delta, keys, rows, sums;
} launches;

static attune__cu_result launch(const attune__cuda_program *program, attune__cu_stream stream, const launches *n,
                                attune_cuda_arguments *arguments, attune_cuda_backward *backward,
                                attune_cuda_sums *sums)
{
    const attune__cuda_driver *driver = &attune__cuda_of(program->base.device)->driver;
    const attune__cuda_loaded *keys = &program->kernel, *rows = &program->rows;
    void *parameters[] = {arguments, backward}, *sums_parameters[] = {sums};
    attune__cu_result result = driver->launch(program->delta.function, (unsigned)n->delta, 1, 1, DELTA_THREADS, 1, 1, 0,
                                              stream, parameters, NULL);
    if (result == CU_SUCCESS)
        result = driver->launch(keys->function, (unsigned)n->keys, 1, 1, keys->threads, 1, 1, keys->shared_memory,
                                stream, parameters, NULL);
    if (result == CU_SUCCESS)
        result = driver->launch(rows->function, (unsigned)n->rows, 1, 1, rows->threads, 1, 1, rows->shared_memory,
                                stream, parameters, NULL);
    if (result == CU_SUCCESS && n->sums)
        result = driver->launch(program->sums, (unsigned)n->sums, 1, 1, SUMS_THREADS, 1, 1, 0, stream, sums_parameters,
                                NULL);
    return result;
}

attune_status attune__cuda_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                    uint64_t *value)
{
    const attune__cuda_program *mine = (const attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    const attune__forward *f = &call->forward;
    attune_cuda_arguments arguments = attune__cuda_arguments_of(mine, f);
    attune_cuda_sums sums;
    attune_cuda_backward backward = backward_of(mine, call, &sums);
    const launches n = {
        .delta = blocks(backward.row_stride, DELTA_ROWS, f->batch * f->heads),
        .keys = blocks(f->kv_len, mine->kernel.block_n, f->kv_heads * f->k.size[0] * (mine->apart ? 2 : 1)),
        .rows = blocks(f->q_len, mine->rows.block_m, f->batch * f->heads),
        .sums = blocks(sums.elements, SUMS_THREADS, 1),
    };
    if (!n.delta || !n.keys || !n.rows || (sums.elements && !n.sums))
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "batch %lld, heads %lld, q_len %lld and kv_len %lld make more than %d workgroups: cut the batch",
            (long long)f->batch, (long long)f->heads, (long long)f->q_len, (long long)f->kv_len,
            ATTUNE__CUDA_MOST_BLOCKS);
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, f->seconds != NULL);
    if (status == ATTUNE_OK) {
        const attune__cu_result result = launch(mine, stream->stream, &n, &arguments, &backward, &sums);
        status = attune__cuda_check(device, result, "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, f->seconds);
    }
    attune__cuda_leave(device);
    return status;
}

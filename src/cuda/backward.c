/* SPDX-License-Identifier: MIT */
/* The hot call of the backward pass. Its launches, in order: lse and delta; dK and dV; dQ; capture gradients; gradients
 * of sinks. A kernel with a fallback computes dK, dV and the sums of dQ, which it or another kernel converts; the
 * kernels of cuda_sm80 follow, and run only if a sum is not finite. */
#include <string.h>

#include "base/error.h"
#include "cuda/cuda.h"
#include "cuda/family.h"
#include "expr/print.h"
#include "plan/family_cuda.h"

#define DELTA_THREADS 256
#define DELTA_ROWS    32 /* rows of a CTA: cuda/delta.cu */
#define SUMS_THREADS  256
#define SINKS_THREADS 256
#define DQ_THREADS    256
#define L2_BYTES      (INT64_C(32) << 20)
/* Elements of a capture from which on its gradients may be summed in float32. Pairs that add to few elements wait for
 * each other, longer in float32 than in integers. */
#define FLOAT_ELEMENTS 65536
#define FLOAT_PAIRS    4 /* of a head, for each element at most */
#define FLOAT_VECTOR   4 /* adjacent elements that are added at once */

attune_status attune__cuda_backward_load(attune__cuda_program *program, const attune__program_desc *desc)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    program->head_dim = desc->shape->head_dim;
    program->head_dim_v = desc->shape->head_dim_v;
    program->ordered = desc->choice->deterministic;
    program->float_sums = program->family->float_sums && !program->ordered && program->score
                              ? attune__ctext_pair_captures(program->score)
                              : 0;
    if (program->family->padded_sums && program->float_sums)
        program->padded_sums = attune__ctext_ordered_captures(program->score);
    ATTUNE__TRY(attune__cuda_function(device, program->delta.module, "attune_sums", &program->sums));
    ATTUNE__TRY(attune__cuda_function(device, program->delta.module, "attune_sinks", &program->sinks));
    return program->family->dq_name
               ? attune__cuda_function(device, program->kernel.module, program->family->dq_name, &program->dq)
               : ATTUNE_OK;
}

/* The capture gradients that the call requests, and in *b where the sums of each begin and which are float32, of the
 * captures `floats`. They end at *memory. */
static attune_cuda_sums sums_of(const attune__cuda_program *program, const attune__backward *call, uint32_t floats,
                                attune__cu_pointer *memory, attune_cuda_backward *b)
{
    const long long pairs = (long long)call->forward.q_len * call->forward.kv_len;
    attune_cuda_sums sums = {0};
    for (uint32_t i = 0; program->score && i < program->score->symbol_count; i++) {
        const attune_tensor *t = &call->d_captures[i];
        if (program->score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE || !t->buffer)
            continue;
        sums.to[sums.count].address = attune__cuda_pointer(t->buffer) + t->offset;
        sums.to[sums.count].elements = 1;
        for (uint32_t d = 0; d < ATTUNE_MAX_RANK; d++) {
            const bool present = d < t->rank;
            sums.to[sums.count].size[d] = present ? t->size[d] : 1;
            sums.to[sums.count].stride[d] = present ? t->stride[d] : 0;
            sums.to[sums.count].elements *= present ? t->size[d] : 1;
        }
        const long long elements = sums.to[sums.count].elements;
        const bool is_float = (floats >> i & 1) && elements >= FLOAT_ELEMENTS && elements >= pairs / FLOAT_PAIRS;
        const bool is_padded = is_float && program->padded_sums >> i & 1;
        const long long row = t->rank ? t->size[t->rank - 1] : 1;
        const long long pitch = is_padded ? (row + FLOAT_VECTOR - 1) / FLOAT_VECTOR * FLOAT_VECTOR : row;
        if (is_padded) /* the workspace has more space by far: that of exact sums */
            *memory = attune__round_up64(*memory, FLOAT_VECTOR * sizeof(float));
        b->symbol_sums[i] = sums.to[sums.count].sums = *memory;
        b->float_sums |= (unsigned)is_float << i;
        b->padded_sums |= (unsigned)is_padded << i;
        sums.to[sums.count].row = row;
        sums.to[sums.count].pitch = pitch;
        sums.to[sums.count++].is_float = is_float;
        sums.elements += elements;
        *memory += is_float ? attune__round_up64((uint64_t)(elements / row * pitch) * sizeof(float), 8)
                            : (uint64_t)elements * ATTUNE__CUDA_SUM_BYTES;
    }
    return sums;
}

/* How many heads' q, d_o and sums of dQ fit the L2 cache at once. */
static int resident_heads(const attune__forward *f)
{
    const int64_t each = f->heads / f->kv_heads * f->q_len * (f->q.size[3] * 6 + f->v.size[3] * 2);
    return each > L2_BYTES ? 1 : (int)(L2_BYTES / each);
}

/* The number of CTAs, or 0 if a grid cannot have so many. */
static int64_t blocks(int64_t length, int64_t tile, int64_t planes)
{
    const int64_t tiles = (length + tile - 1) / tile;
    return tiles > ATTUNE__CUDA_MOST_BLOCKS / planes ? 0 : tiles * planes;
}

static attune_cuda_tile tile_of(const attune__cuda_program *program)
{
    const attune__cuda_loaded *adds = &program->kernel;
    return (attune_cuda_tile){.head_dim = program->head_dim,
                              .head_dim_v = program->head_dim_v,
                              .block_m = adds->block_m,
                              .block_n = adds->block_n,
                              .warps = adds->threads / 32};
}

/* CTAs that compute one tile of keys. */
static uint32_t workgroups(const attune__cuda_program *program)
{
    return program->family->cluster(tile_of(program));
}

/* Tiles of keys of a kernel that adds dQ to sums. */
static attune__cuda_tail tail_of(const attune__cuda_program *program, const attune__forward *f)
{
    const attune__cuda_loaded *adds = &program->kernel;
    const int64_t tiles = blocks(f->kv_len, adds->block_n, f->kv_heads * f->k.size[0]);
    const bool divided = program->family->splits_tail && !program->ordered && !f->mask;
    return attune__cuda_sm90_tail(tiles, divided ? adds->resident / workgroups(program) : 0, f->q_len,
                                  f->heads / f->kv_heads * (f->batch / f->k.size[0]), adds->block_m);
}

/* tail: NULL if no kernel adds dQ to sums. */
static attune_cuda_backward backward_of(const attune__cuda_program *program, const attune__backward *call,
                                        const attune__cuda_tail *tail, attune_cuda_sums *sums)
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
        .d_sinks = call->d_sinks.buffer ? attune__cuda_pointer(call->d_sinks.buffer) + call->d_sinks.offset : 0,
        .d_sinks_head = call->d_sinks.stride[0],
    };
    attune__cu_pointer captures = b.sums;
    if (tail) {
        b.full_wave_tiles = (int)tail->full_wave_tiles;
        b.tail_splits = (int)tail->each;
        b.tail_split_rows = (int)tail->rows;
        b.tail_sums =
            b.sums + attune__cuda_backward_sums(&w, f->batch, f->heads, program->head_dim, program->head_dim_v);
        b.order_counts =
            b.tail_sums + (uint64_t)tail->left * attune__cuda_sm90_tail_bytes(program->head_dim, program->head_dim_v,
                                                                              program->kernel.block_n);
        captures = b.order_counts + attune__cuda_backward_order(&w, f->batch, f->heads);
        b.redo = captures - 8;
        b.plane_counts = b.order_counts + (captures - 16 - b.order_counts) / 2;
        b.resident_heads = resident_heads(f);
    }
    *sums = sums_of(program, call, tail ? program->float_sums : 0, &captures, &b);
    b.sum_words = (captures - b.sums) / 8;
    if (f->mask) {
        const attune_mask *mask = f->mask;
        const attune__cuda_mask *uploaded = (const attune__cuda_mask *)f->device_mask;
        b.partial = (attune_cuda_list){uploaded->column_offsets[0], uploaded->column_indices[0]};
        b.full = (attune_cuda_list){uploaded->column_offsets[1], uploaded->column_indices[1]};
        b.column_head_rows = mask->stored_heads == 1 ? 0 : mask->kv_blocks;
        b.column_batch_rows = mask->stored_batch == 1 ? 0 : mask->stored_heads * mask->kv_blocks;
        const int64_t keys = mask->kv_blocks * mask->kv_block, tile = program->kernel.block_n;
        if (tail && f->kv_len <= keys && f->kv_len > keys - tile && mask->kv_block <= 2 * tile &&
            (mask->stored_batch == 1 || f->k.size[0] == f->batch))
            b.column_order = uploaded->column_order;
    }
    return b;
}

typedef struct launches {
    int64_t delta, adds, dq, keys, rows, sums, sinks; /* CTAs; 0 = not launched */
} launches;

static attune__cu_result launch(const attune__cuda_program *program, attune__cu_stream stream, const launches *n,
                                attune_cuda_arguments *arguments, attune_cuda_backward *backward,
                                attune_cuda_sums *sums, attune__cu_tensor_map maps[4])
{
    /* Fallback kernels must not add capture gradients: the first kernel has added them. */
    attune_cuda_backward fallback_backward = *backward;
    if (n->adds)
        memset(fallback_backward.symbol_sums, 0, sizeof fallback_backward.symbol_sums);
    const attune__cuda_loaded *keys = program->family->has_fallback ? &program->fallback : &program->kernel,
                              *rows = &program->rows;
    const attune__cuda_loaded *adds = &program->kernel;
    void *parameters[] = {arguments, backward, &maps[0], &maps[1], &maps[2], &maps[3]}, *sums_parameters[] = {sums};
    void *rest_parameters[] = {arguments, &fallback_backward};
    const struct {
        attune__cu_function function;
        int64_t blocks;
        uint32_t threads, shared_memory;
        void **parameters;
    } steps[] = {
        {program->delta.function, n->delta, DELTA_THREADS, 0, parameters},
        {adds->function, n->adds, adds->threads, adds->shared_memory, parameters},
        {program->dq, n->dq, DQ_THREADS, n->dq ? program->family->dq_shared_memory(tile_of(program)) : 0, parameters},
        {keys->function, n->keys, keys->threads, keys->shared_memory, rest_parameters},
        {rows->function, n->rows, rows->threads, rows->shared_memory, rest_parameters},
        {program->sums, n->sums, SUMS_THREADS, 0, sums_parameters},
        {program->sinks, n->sinks, SINKS_THREADS, SINKS_THREADS / 32 * sizeof(double), parameters},
    };
    attune__cu_result result = CU_SUCCESS;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && result == CU_SUCCESS; i++)
        if (steps[i].blocks)
            result = attune__cuda_of(program->base.device)
                         ->driver.launch(steps[i].function, (unsigned)steps[i].blocks, 1, 1, steps[i].threads, 1, 1,
                                         steps[i].shared_memory, stream, steps[i].parameters, NULL);
    return result;
}

static bool encode_all(const attune__cuda_program *program, const attune__backward *call, attune__cu_tensor_map maps[4])
{
    const attune__cuda_driver *driver = &attune__cuda_of(program->base.device)->driver;
    const uint32_t each = workgroups(program), keys = program->kernel.block_n / each,
                   rows = program->kernel.block_m / (program->family->divides_rows ? each : 1);
    const attune__forward *f = &call->forward;
    return attune__cuda_encode(driver, &f->q, rows, false, &maps[0]) &&
           attune__cuda_encode(driver, &f->k, keys, true, &maps[1]) &&
           attune__cuda_encode(driver, &f->v, keys, true, &maps[2]) &&
           attune__cuda_encode(driver, &call->d_o, rows, false, &maps[3]);
}

/* Needs the current context: the driver encodes tensor maps only within one. */
static attune_status run(const attune__cuda_program *program, attune__cuda_queue *queue, const attune__backward *call,
                         uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    const attune__forward *f = &call->forward;
    const attune__cuda_loaded *keys = program->family->has_fallback ? &program->fallback : &program->kernel;
    attune__cu_tensor_map maps[4];
    const bool adds = program->family->has_fallback && (!program->family->plan->tma || encode_all(program, call, maps));
    const uint32_t dq_ctas = adds ? program->family->dq_ctas(tile_of(program)) : 0;
    attune_cuda_arguments arguments = attune__cuda_arguments_of(program, f);
    attune_cuda_sums sums;
    const attune__cuda_tail p = tail_of(program, f);
    attune_cuda_backward backward = backward_of(program, call, adds ? &p : NULL, &sums);
    launches n = {
        .delta = blocks(backward.row_stride, DELTA_ROWS, f->batch * f->heads),
        .keys = blocks(f->kv_len, keys->block_n, f->kv_heads * f->k.size[0] * (program->separate_dk_dv ? 2 : 1)),
        .rows = blocks(f->q_len, program->rows.block_m, f->batch * f->heads),
        .sums = blocks(sums.elements, SUMS_THREADS, 1),
        .sinks = backward.d_sinks ? f->heads : 0,
    };
    if (adds) {
        const int64_t items = program->family->items ? program->family->items(tile_of(program)) : 1;
        const int64_t tiles = (p.full_wave_tiles + p.left * p.each) * items;
        const uint32_t each = workgroups(program), most = program->kernel.resident / each;
        n.adds = (most && tiles > most ? most : tiles) * each;
        if (dq_ctas)
            n.dq = blocks(f->q_len, program->kernel.block_m, f->batch * f->heads * dq_ctas);
    }
    if (!n.delta || !n.keys || !n.rows || (sums.elements && !n.sums) || (adds && !n.adds) || (dq_ctas && !n.dq))
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "batch %lld, heads %lld, q_len %lld and kv_len %lld make more than %d workgroups: cut the batch",
            (long long)f->batch, (long long)f->heads, (long long)f->q_len, (long long)f->kv_len,
            ATTUNE__CUDA_MOST_BLOCKS);
    ATTUNE__TRY(attune__cuda_queue_begin(queue, f->seconds != NULL));
    if (adds)
        arguments.counter = backward.redo - 8;
    const attune__cu_result result = launch(program, queue->stream, &n, &arguments, &backward, &sums, maps);
    return attune__cuda_queue_end(queue, attune__cuda_check(device, result, "cuLaunchKernel"), value, f->seconds);
}

attune_status attune__cuda_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                    uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->device);
    ATTUNE__TRY(attune__cuda_enter(device));
    const attune_status status = run((const attune__cuda_program *)program, (attune__cuda_queue *)queue, call, value);
    attune__cuda_leave(device);
    return status;
}

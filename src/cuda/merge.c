/* SPDX-License-Identifier: MIT */
/* Merging of partial results, and copies of tensors: cuda/merge*.cu, one launch of a kernel that suits the call's
 * tensors. */
#include "cuda/cuda.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"
#include "cuda/merge.h"

_Static_assert(ATTUNE_CUDA_MERGE_PARTS == ATTUNE__MERGE_PARTS, "what a launch takes");
_Static_assert(ATTUNE_CUDA_MERGE_SPLITS == ATTUNE__MERGE_SPLITS, "likewise");

/* The kernels, forward and backward: a general one, and vector ones by type and number of parts. Forward alone: of f32
 * parts to an o of f16 or bf16. */
enum { KIND_ROWS, KIND_VECTORS, KIND_ROUNDED = KIND_VECTORS + 7, KINDS = KIND_ROUNDED + 2 };
static const char *const kinds[KINDS] = {
    "", "_any_8", "_f16_2", "_f16_8", "_bf16_2", "_bf16_8", "_f32_2", "_f32_8", "_f16_of_f32_2", "_bf16_of_f32_2",
};

/* The kernels are three modules, which compile side by side: rows of any layout, copies and splits; and the vector ones
 * of each direction. */
enum { MODULE_ROWS, MODULE_FORWARD, MODULE_BACKWARD, MODULES };
static const char *const files[MODULES] = {"merge.cu", "merge_forward.cu", "merge_backward.cu"};

typedef struct merger {
    attune__program base;
    attune__cu_module modules[MODULES];
    attune__cu_function functions[2][KINDS];
    attune__cu_function copy_tensors, copy_lent, merge_splits;
} merger;

static attune__cuda_kernel describe_kernel(uint32_t architecture, uint32_t module)
{
    attune__cuda_kernel kernel = {.file = files[module]};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_%u", architecture);
    snprintf(kernel.options[1], sizeof kernel.options[1], "--fmad=false");
    snprintf(kernel.options[2], sizeof kernel.options[2], "-std=c++17");
    kernel.option_count = 3;
    return kernel;
}

static attune_status load(attune__cuda_device *device, const attune__cuda_job *jobs, merger *made)
{
    const attune__cuda_driver *driver = &device->driver;
    for (uint32_t i = 0; i < MODULES; i++)
        ATTUNE__TRY(
            attune__cuda_check(device, driver->module_load(&made->modules[i], jobs[i].cubin), "cuModuleLoadData"));
    for (int i = 0; i < 2 * KINDS; i++) {
        char name[48];
        if (i % 2 && i / 2 >= KIND_ROUNDED)
            continue;
        const attune__cu_module module = made->modules[i / 2 == KIND_ROWS ? MODULE_ROWS
                                                       : i % 2            ? MODULE_BACKWARD
                                                                          : MODULE_FORWARD];
        snprintf(name, sizeof name, "attune_merge%s%s", i % 2 ? "_backward" : "", kinds[i / 2]);
        ATTUNE__TRY(attune__cuda_function(device, module, name, &made->functions[i % 2][i / 2]));
    }
    const attune__cu_module rows = made->modules[MODULE_ROWS];
    ATTUNE__TRY(attune__cuda_function(device, rows, "attune_merge_splits", &made->merge_splits));
    ATTUNE__TRY(attune__cuda_function(device, rows, "attune_copy_lent", &made->copy_lent));
    return attune__cuda_function(device, rows, "attune_copy_tensors", &made->copy_tensors);
}

attune_status attune__cuda_merger_create(attune_device *device, attune__program **program)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    merger *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    attune__cuda_kernel kernels[MODULES];
    attune__cuda_job jobs[MODULES] = {0};
    for (uint32_t i = 0; i < MODULES; i++) {
        kernels[i] = describe_kernel(device->info.limits.architecture, i);
        jobs[i].kernel = &kernels[i];
    }
    attune_status status = attune__cuda_compile_all(&device->host, jobs, MODULES);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = load(mine, jobs, made);
        attune__cuda_leave(mine);
    }
    for (uint32_t i = 0; i < MODULES; i++)
        attune__free(&device->host.allocator, jobs[i].cubin);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__cuda_merger_destroy(&made->base);
    return status;
}

void attune__cuda_merger_destroy(attune__program *program)
{
    merger *mine = (merger *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    if (device->driver.context_push(device->context) == CU_SUCCESS) {
        for (uint32_t i = 0; i < MODULES; i++)
            if (mine->modules[i])
                device->driver.module_unload(mine->modules[i]);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}

attune_status attune__cuda_merger_pack(const attune__host *host, const attune_limits *limits, attune__pack *to)
{
    for (uint32_t i = 0; i < MODULES; i++) {
        const attune__cuda_kernel kernel = describe_kernel(limits->architecture, i);
        ATTUNE__TRY(attune__cuda_pack_kernel(host, &kernel, to));
    }
    return ATTUNE_OK;
}

/* The properties of a call that decide which kernel suits it. */
typedef struct demand {
    attune_cuda_merge arguments;
    bool vectors; /* every stride is a whole number of 16-byte units and fits an int */
    int dtype;    /* of all o and d_o; 0 if they differ */
    int rounded;  /* 0, or the 16-bit dtype of o, where all parts are f32 */
} demand;

static attune_cuda_merge_view view(demand *d, const attune_tensor *tensor, int64_t unit)
{
    if (!tensor->buffer)
        return (attune_cuda_merge_view){.address = 0};
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    const int64_t strides[3] = {tensor->stride[0] * bytes, tensor->stride[1] * bytes, tensor->stride[2] * bytes};
    attune_cuda_merge_view v = {
        .address = attune__cuda_pointer(tensor->buffer) + tensor->offset,
        .batch = strides[0],
        .head = strides[1],
        .row = strides[2],
        .dtype = tensor->dtype == ATTUNE_F16    ? 1
                 : tensor->dtype == ATTUNE_BF16 ? 2
                                                : 3,
    };
    v.pair = (v.address | (uint64_t)v.batch | (uint64_t)v.head | (uint64_t)v.row) % (2 * (uint64_t)bytes) == 0;
    d->vectors = d->vectors && v.address % (uint64_t)unit == 0;
    for (int i = 0; i < 3; i++) {
        const int64_t step = strides[i] / unit;
        d->vectors = d->vectors && strides[i] % unit == 0 && step >= INT32_MIN && step <= INT32_MAX;
        v.steps[i] = (int)step;
    }
    return v;
}

static attune_cuda_merge_view view_rows(demand *d, const attune_tensor *tensor)
{
    const attune_cuda_merge_view v = view(d, tensor, 16);
    if (v.address && v.dtype != d->dtype)
        d->dtype = 0;
    return v;
}

/* The multiplier of a divisor less than 2^31. */
static attune_cuda_divisor divisor(int64_t by)
{
    attune_cuda_divisor d = {.shift = 0};
    while (INT64_C(1) << d.shift < by)
        d.shift++;
    d.multiplier = (unsigned)(((UINT64_C(1) << (31 + d.shift)) + (uint64_t)by - 1) / (uint64_t)by);
    return d;
}

static demand describe_call(const attune__merge *call)
{
    const int64_t *size = call->o.size;
    demand d = {.vectors = size[3] % 8 == 0 && size[3] <= ATTUNE_CUDA_MERGE_COLUMNS};
    d.dtype = view(&d, &call->o, 16).dtype;
    attune_cuda_merge *a = &d.arguments;
    *a = (attune_cuda_merge){
        .o = view_rows(&d, &call->o),
        .lse = view(&d, &call->lse, 4),
        .d_o = view_rows(&d, &call->d_o),
        .d_lse = view(&d, &call->d_lse, 4),
        .rows = size[0] * size[1] * size[2],
        .heads = (int)size[1],
        .q_len = (int)size[2],
        .columns = (int)size[3],
        .part_count = (int)call->part_count,
        .weighted = call->parts[0].lse.buffer != NULL,
        .strict = call->strict,
        .is_partial = call->part,
        .by_q_len = divisor(size[2]),
        .by_heads = divisor(size[1]),
    };
    while (8 << a->lane_bits < a->columns)
        a->lane_bits++;
    for (uint32_t i = 0; i < call->part_count; i++) {
        a->parts[i].o = view_rows(&d, &call->parts[i].o);
        a->parts[i].lse = view(&d, &call->parts[i].lse, 4);
        a->parts[i].d_o = view_rows(&d, &call->parts[i].d_o);
        a->parts[i].d_lse = view(&d, &call->parts[i].d_lse, 4);
    }
    d.vectors = d.vectors && a->rows <= INT32_MAX;
    d.rounded = a->o.dtype < 3 ? a->o.dtype : 0;
    for (uint32_t i = 0; i < call->part_count; i++)
        d.rounded = a->parts[i].o.dtype == 3 ? d.rounded : 0;
    return d;
}

static int choose_kind(const demand *d, bool backward)
{
    if (!d->vectors)
        return KIND_ROWS;
    if (d->rounded && d->arguments.part_count <= 2 && !backward)
        return KIND_ROUNDED + d->rounded - 1;
    return d->dtype ? KIND_VECTORS + 2 * d->dtype - (d->arguments.part_count <= 2) : KIND_VECTORS;
}

/* seconds may be NULL. */
static attune_status launch_grid(const merger *mine, attune__cu_function function, attune_queue *queue, uint64_t x,
                                 uint64_t y, void *arguments, double *seconds, uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(mine->base.device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    void *parameters[] = {arguments};
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, seconds != NULL);
    if (status == ATTUNE_OK) {
        status =
            attune__cuda_check(device,
                               device->driver.launch(function, (unsigned)x, (unsigned)y, 1, ATTUNE_CUDA_MERGE_THREADS,
                                                     1, 1, 0, stream->stream, parameters, NULL),
                               "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, seconds);
    }
    attune__cuda_leave(device);
    return status;
}

static attune_status launch(const attune__program *program, attune_queue *queue, const attune__merge *call,
                            bool backward, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    demand d = describe_call(call);
    const int kind = choose_kind(&d, backward);
    const int64_t rows = d.arguments.rows,
                  share =
                      kind == KIND_ROWS ? ATTUNE_CUDA_MERGE_ROWS : ATTUNE_CUDA_MERGE_THREADS >> d.arguments.lane_bits,
                  blocks = (rows + share - 1) / share;
    if (blocks > ATTUNE__CUDA_MOST_BLOCKS)
        return attune__fail(ATTUNE_UNSUPPORTED, "the merge has %lld rows, expected at most %lld: cut the batch",
                            (long long)rows, (long long)ATTUNE__CUDA_MOST_BLOCKS * ATTUNE_CUDA_MERGE_ROWS);
    return launch_grid(mine, mine->functions[backward][kind], queue, (uint64_t)blocks, 1, &d.arguments, call->seconds,
                       value);
}

attune_status attune__cuda_merge(const attune__program *program, attune_queue *queue, const attune__merge *call,
                                 uint64_t *value)
{
    return launch(program, queue, call, false, value);
}

attune_status attune__cuda_merge_backward(const attune__program *program, attune_queue *queue,
                                          const attune__merge *call, uint64_t *value)
{
    return launch(program, queue, call, true, value);
}

/* ln 2 times this is the factor of natural exponents: as fold_factor in cuda/common.cuh. */
static float splits_factor(const attune__merge_splits *call)
{
    const float log2e = 1.44269504088896340736f, scale = fabsf((float)call->scale);
    return call->has_score ? log2e : scale == 0.0f ? 1.0f : scale * log2e;
}

attune_status attune__cuda_merge_splits(const attune__program *program, attune_queue *queue,
                                        const attune__merge_splits *call, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    const int64_t *size = call->o.size, rows = size[0] * size[1] * size[2];
    const uint64_t ml = attune__split_ml((uint64_t)(call->batch * call->heads * size[2]), call->split,
                                         (uint64_t)size[3], sizeof(float));
    demand d = {.vectors = false};
    attune_cuda_merge_splits a = {
        .o = view(&d, &call->o, 16),
        .lse = view(&d, &call->lse, 4),
        .part_count = (int)call->part_count,
        .split = (int)call->split,
        .columns = (int)size[3],
        .heads = (int)size[1],
        .q_len = (int)size[2],
        .all_heads = (int)call->heads,
        .first_batch = (int)call->first_batch,
        .first_head = (int)call->first_head,
        .factor = splits_factor(call),
        .by_split = divisor(call->split),
    };
    for (uint32_t i = 0; i < call->part_count; i++) {
        a.parts[i].o = attune__cuda_pointer(call->parts[i].buffer) + call->parts[i].offset;
        a.parts[i].ml = a.parts[i].o + ml;
    }
    return launch_grid(mine, mine->merge_splits, queue, (uint64_t)rows, (uint64_t)((size[3] + 31) / 32), &a,
                       call->seconds, value);
}

/* The widest unit that is aligned in both tensors. */
static uint32_t copy_unit(const attune__copied *parts, uint32_t count)
{
    const uint64_t element = attune_dtype_size(parts->to.dtype);
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; i++) {
        const attune_tensor *tensors[] = {&parts[i].from, &parts[i].to};
        bits |= (uint64_t)parts[i].to.size[3] * element;
        for (int j = 0; j < 2; j++) {
            bits |= attune__cuda_pointer(tensors[j]->buffer) + tensors[j]->offset;
            for (int k = 0; k < 3; k++)
                bits |= (uint64_t)tensors[j]->stride[k] * element;
        }
    }
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

static attune_cuda_copy describe_copy(const attune__copied *part, uint32_t unit)
{
    const int64_t *size = part->to.size, element = (int64_t)attune_dtype_size(part->to.dtype);
    attune_cuda_copy c = {.from = attune__cuda_pointer(part->from.buffer) + part->from.offset,
                          .to = attune__cuda_pointer(part->to.buffer) + part->to.offset,
                          .heads = (int)size[1],
                          .q_len = (int)size[2],
                          .row_units = (int)(size[3] * element / unit)};
    c.units = size[0] * size[1] * size[2] * c.row_units;
    for (int i = 0; i < 3; i++) {
        c.from_strides[i] = part->from.stride[i] * element / unit;
        c.to_strides[i] = part->to.stride[i] * element / unit;
    }
    return c;
}

/* Of a copy: more threads have several units. */
#define MOST_COPY_BLOCKS 512

/* The CTAs of each copy, for the one that has most units. */
static int64_t copy_blocks(int64_t units)
{
    const int64_t blocks = (units + ATTUNE_CUDA_MERGE_THREADS - 1) / ATTUNE_CUDA_MERGE_THREADS;
    return blocks < 1 ? 1 : blocks < MOST_COPY_BLOCKS ? blocks : MOST_COPY_BLOCKS;
}

attune_status attune__cuda_copy_tensors(const attune__program *program, attune_queue *queue,
                                        const attune__copied *parts, uint32_t count, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    attune_cuda_copies arguments = {.unit = (int)copy_unit(parts, count)};
    int64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        arguments.parts[i] = describe_copy(&parts[i], (uint32_t)arguments.unit);
        most = arguments.parts[i].units > most ? arguments.parts[i].units : most;
    }
    return launch_grid(mine, mine->copy_tensors, queue, (uint64_t)copy_blocks(most), count, &arguments, NULL, value);
}

attune_status attune__cuda_copy_lent(const attune__program *program, attune_queue *queue, const attune__copied *parts,
                                     uint32_t count, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    attune_cuda_lent_copies arguments = {.unit = (int)copy_unit(parts, count)};
    int64_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        attune_cuda_lent_copy *c = &arguments.parts[i];
        c->copy = describe_copy(&parts[i], (uint32_t)arguments.unit);
        c->by_heads = divisor(c->copy.heads);
        c->by_q_len = divisor(c->copy.q_len);
        c->by_row_units = divisor(c->copy.row_units);
        most = c->copy.units > most ? c->copy.units : most;
    }
    if (most > ATTUNE_CUDA_COPY_UNITS)
        return attune__cuda_copy_tensors(program, queue, parts, count, value);
    return launch_grid(mine, mine->copy_lent, queue, (uint64_t)copy_blocks(most), count, &arguments, NULL, value);
}

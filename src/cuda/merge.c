/* SPDX-License-Identifier: MIT */
/* Merging: cuda/merge.cu, one launch. */
#include "cuda/cuda.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"
#include "cuda/merge.h"

_Static_assert(ATTUNE_CUDA_MERGE_PARTS == ATTUNE__MERGE_PARTS, "what a launch takes");

typedef struct merger {
    attune__program base;
    attune__cu_module module;
    attune__cu_function forward, backward;
} merger;

static attune__cuda_kernel describe_kernel(uint32_t architecture)
{
    attune__cuda_kernel kernel = {.file = "merge.cu"};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_%u", architecture);
    snprintf(kernel.options[1], sizeof kernel.options[1], "--fmad=false");
    snprintf(kernel.options[2], sizeof kernel.options[2], "-std=c++17");
    kernel.option_count = 3;
    return kernel;
}

static attune_status load(attune__cuda_device *device, const void *cubin, merger *made)
{
    const attune__cuda_driver *driver = &device->driver;
    ATTUNE__TRY(attune__cuda_check(device, driver->module_load(&made->module, cubin), "cuModuleLoadData"));
    ATTUNE__TRY(attune__cuda_check(device, driver->module_function(&made->forward, made->module, "attune_merge"),
                                   "cuModuleGetFunction"));
    return attune__cuda_check(device, driver->module_function(&made->backward, made->module, "attune_merge_backward"),
                              "cuModuleGetFunction");
}

attune_status attune__cuda_merger_create(attune_device *device, attune__program **program)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    merger *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    const attune__cuda_kernel kernel = describe_kernel(device->info.limits.architecture);
    void *cubin = NULL;
    size_t size = 0;
    attune_status status = attune__cuda_compile(&device->host, &kernel, &cubin, &size);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = load(mine, cubin, made);
        attune__cuda_leave(mine);
    }
    attune__free(&device->host.allocator, cubin);
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
    if (mine->module && device->driver.context_push(device->context) == CU_SUCCESS) {
        device->driver.module_unload(mine->module);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, mine);
}

attune_status attune__cuda_merger_pack(const attune__host *host, const attune_limits *limits, attune__pack *to)
{
    const attune__cuda_kernel kernel = describe_kernel(limits->architecture);
    return attune__cuda_pack_kernel(host, &kernel, to);
}

static attune_cuda_merge_view view(const attune_tensor *tensor)
{
    if (!tensor->buffer)
        return (attune_cuda_merge_view){.address = 0};
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    attune_cuda_merge_view v = {
        .address = attune__cuda_pointer(tensor->buffer) + tensor->offset,
        .batch = tensor->stride[0] * bytes,
        .head = tensor->stride[1] * bytes,
        .row = tensor->stride[2] * bytes,
        .dtype = tensor->dtype == ATTUNE_F16    ? 1
                 : tensor->dtype == ATTUNE_BF16 ? 2
                                                : 3,
    };
    v.pair = (v.address | (uint64_t)v.batch | (uint64_t)v.head | (uint64_t)v.row) % (2 * (uint64_t)bytes) == 0;
    return v;
}

static attune_cuda_merge describe_call(const attune__merge *call)
{
    const int64_t *size = call->o.size;
    attune_cuda_merge a = {
        .o = view(&call->o),
        .lse = view(&call->lse),
        .d_o = view(&call->d_o),
        .d_lse = view(&call->d_lse),
        .rows = size[0] * size[1] * size[2],
        .heads = (int)size[1],
        .q_len = (int)size[2],
        .columns = (int)size[3],
        .part_count = (int)call->part_count,
        .weighted = call->parts[0].lse.buffer != NULL,
    };
    for (uint32_t i = 0; i < call->part_count; i++) {
        a.parts[i].o = view(&call->parts[i].o);
        a.parts[i].lse = view(&call->parts[i].lse);
        a.parts[i].d_o = view(&call->parts[i].d_o);
        a.parts[i].d_lse = view(&call->parts[i].d_lse);
    }
    return a;
}

static attune_status launch(const attune__program *program, attune_queue *queue, const attune__merge *call,
                            bool backward, uint64_t *value)
{
    const merger *mine = (const merger *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    attune_cuda_merge a = describe_call(call);
    const int64_t blocks = (a.rows + ATTUNE_CUDA_MERGE_ROWS - 1) / ATTUNE_CUDA_MERGE_ROWS;
    if (blocks > ATTUNE__CUDA_MOST_BLOCKS)
        return attune__fail(ATTUNE_UNSUPPORTED, "the merge has %lld rows, expected at most %lld: cut the batch",
                            (long long)a.rows, (long long)ATTUNE__CUDA_MOST_BLOCKS * ATTUNE_CUDA_MERGE_ROWS);
    void *parameters[] = {&a};
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, call->seconds != NULL);
    if (status == ATTUNE_OK) {
        status = attune__cuda_check(device,
                                    device->driver.launch(backward ? mine->backward : mine->forward, (unsigned)blocks,
                                                          1, 1, ATTUNE_CUDA_MERGE_THREADS, 1, 1, 0, stream->stream,
                                                          parameters, NULL),
                                    "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, call->seconds);
    }
    attune__cuda_leave(device);
    return status;
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

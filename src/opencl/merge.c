/* SPDX-License-Identifier: MIT */
/* Merging: one workgroup for each row. */
#include "opencl/program.h"

#include "base/alloc.h"
#include "base/error.h"
#include "shaders/opencl/merge.h"

_Static_assert(ATTUNE_OPENCL_MERGE_PARTS == ATTUNE__MERGE_PARTS, "the parts of a launch");
_Static_assert(sizeof(attune_opencl_merge) <= ATTUNE__MERGE_WORKSPACE, "the workspace of a launch");
_Static_assert(sizeof(attune_opencl_merge) <= ATTUNE__OPENCL_TABLE, "a table of the queue");

typedef struct merger {
    attune__program base;
    pthread_mutex_t lock; /* of the kernels' arguments */
    attune__opencl_kernel forward, backward;
} merger;

static int32_t set_arguments(const attune__opencl_device *device, const attune__opencl_kernel *kernel,
                             const attune__merge *call, int64_t offset, uint32_t first)
{
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    attune__opencl_set_memory(&setter, call->workspace);
    attune__opencl_set(&setter, sizeof offset, &offset);
    attune__opencl_set(&setter, sizeof first, &first);
    attune__opencl_set_memory(&setter, call->o.buffer);
    attune__opencl_set_memory(&setter, call->lse.buffer);
    attune__opencl_set_memory(&setter, call->d_o.buffer);
    attune__opencl_set_memory(&setter, call->d_lse.buffer);
    for (uint32_t i = 0; i < ATTUNE__MERGE_PARTS; i++) {
        static const attune__merge_part none = {.o.buffer = NULL};
        const attune__merge_part *part = i < call->part_count ? &call->parts[i] : &none;
        attune__opencl_set_memory(&setter, part->o.buffer);
        attune__opencl_set_memory(&setter, part->lse.buffer);
        attune__opencl_set_memory(&setter, part->d_o.buffer);
        attune__opencl_set_memory(&setter, part->d_lse.buffer);
    }
    return setter.error;
}

/* The first launch: of a table of zeros, a row without columns and parts. */
static attune_status launch_empty(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    static const attune__merge none = {.part_count = 0};
    return attune__opencl_kernel_first(device, kernel, set_arguments(device, kernel, &none, 0, 0));
}

static attune_status build(attune__opencl_device *device, merger *made)
{
    attune__opencl_text text = {.file = "merge.cl", .host = device->base.info.limits.host, .fma = device->fma};
    const uint32_t threads = ATTUNE_OPENCL_MERGE_THREADS;
    attune__opencl_add_define(&text, "TYPE", 0);
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, "attune_merge", threads, NULL, &made->forward));
    ATTUNE__TRY(attune__opencl_kernel_also(device, &made->forward, "attune_merge_backward", threads, &made->backward));
    ATTUNE__TRY(launch_empty(device, &made->backward));
    return launch_empty(device, &made->forward);
}

attune_status attune__opencl_merger_create(attune_device *device, attune__program **program)
{
    merger *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.device = device;
    if (pthread_mutex_init(&made->lock, NULL)) {
        attune__free(&device->host.allocator, made);
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "the system has no mutex for a program");
    }
    const attune_status status = build(attune__opencl_of(device), made);
    if (status == ATTUNE_OK)
        *program = &made->base;
    else
        attune__opencl_merger_destroy(&made->base);
    return status;
}

void attune__opencl_merger_destroy(attune__program *program)
{
    merger *mine = (merger *)program;
    attune__opencl_device *device = attune__opencl_of(program->device);
    attune__opencl_kernel_release(device, &mine->forward);
    attune__opencl_kernel_release(device, &mine->backward);
    pthread_mutex_destroy(&mine->lock);
    attune__free(&device->base.host.allocator, mine);
}

static attune_opencl_merge_view describe(const attune_tensor *tensor)
{
    if (!tensor->buffer)
        return (attune_opencl_merge_view){.present = 0};
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    return (attune_opencl_merge_view){
        .offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset),
        .stride_b = tensor->stride[0] * bytes,
        .stride_h = tensor->stride[1] * bytes,
        .stride_row = tensor->stride[2] * bytes,
        .type = attune__opencl_dtype_index(tensor->dtype),
        .present = 1,
    };
}

#define MERGE attune_opencl_merge
#include "arguments/merge_tmpl.h"

/* Under the merger's lock, in launches of bounded length. */
static void launch_rows(const attune__opencl_kernel *kernel, const attune__merge *call, int64_t offset, uint64_t rows,
                        attune__opencl_call *commands)
{
    attune__opencl_device *device = attune__opencl_of(commands->queue->base.device);
    /* The time of a row's loads and stores, as operations. */
    const double flops = 64.0 * (double)call->o.size[3] * (call->part_count + 1);
    const uint64_t most = attune__opencl_launch_most(device, rows, flops);
    for (uint64_t first = 0; first < rows; first += most) {
        const int32_t error = set_arguments(device, kernel, call, offset, (uint32_t)first);
        if (commands->status == ATTUNE_OK)
            commands->status = attune__opencl_check(device, error, "clSetKernelArg");
        attune__opencl_launch(commands, kernel->handle, rows - first < most ? rows - first : most, kernel->threads);
    }
}

static attune_status launch(const attune__program *program, attune_queue *queue, const attune__merge *call,
                            bool backward, uint64_t *value)
{
    merger *mine = (merger *)(uintptr_t)program;
    const attune__opencl_kernel *kernel = backward ? &mine->backward : &mine->forward;
    const attune__opencl_buffer *workspace = attune__opencl_buffer_of(call->workspace);
    const uint64_t rows = (uint64_t)(call->o.size[0] * call->o.size[1] * call->o.size[2]);
    if (rows > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the merge has %llu rows, device %s takes fewer than 2^32",
                            (unsigned long long)rows, program->device->info.id);
    const attune_opencl_merge a = describe_call(call);
    const uint64_t offset = workspace->offset + call->workspace_offset;
    attune__opencl_call commands;
    pthread_mutex_lock(&mine->lock);
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    attune__opencl_table(&commands, workspace->memory, offset, &a, sizeof a);
    launch_rows(kernel, call, (int64_t)offset, rows, &commands);
    pthread_mutex_unlock(&mine->lock);
    return attune__opencl_end(&commands, value, call->seconds);
}

attune_status attune__opencl_merge(const attune__program *program, attune_queue *queue, const attune__merge *call,
                                   uint64_t *value)
{
    return launch(program, queue, call, false, value);
}

attune_status attune__opencl_merge_backward(const attune__program *program, attune_queue *queue,
                                            const attune__merge *call, uint64_t *value)
{
    return launch(program, queue, call, true, value);
}

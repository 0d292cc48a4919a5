/* SPDX-License-Identifier: MIT */
/* New rows of a cache (shaders/opencl/append.cl). A call has no workspace: all that the kernel reads of it is in its
 * arguments. */
#include "base/error.h"
#include "opencl/program.h"
#include "shaders/opencl/append.h"

#define POINTERS 19 /* the kernel's parameters after the struct */

_Static_assert(sizeof(attune_opencl_append) + POINTERS * sizeof(uint64_t) <= ATTUNE__OPENCL_ARGUMENTS,
               "every device takes the arguments");
_Static_assert(ATTUNE_OPENCL_APPEND_COLUMNS >= 576, "the widest head");

/* Workgroups that fill a device. */
#define ENOUGH 2048

static attune_opencl_rows rows_of(const attune_tensor *tensor, uint32_t flag, uint32_t *flags)
{
    attune_opencl_rows r = {0};
    if (!tensor->buffer)
        return r;
    const int64_t bytes = (int64_t)attune_dtype_size(tensor->dtype);
    r.offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset);
    for (uint32_t i = 0; i < 2; i++)
        r.stride[i] = tensor->stride[i] * bytes;
    *flags |= flag;
    return r;
}

static attune_opencl_norm norm_of(const attune_tensor *tensor)
{
    if (!tensor->buffer)
        return (attune_opencl_norm){0};
    return (attune_opencl_norm){
        .offset = (int64_t)(attune__opencl_buffer_of(tensor->buffer)->offset + tensor->offset),
        .stride = tensor->stride[0] * (int64_t)attune_dtype_size(tensor->dtype),
        .columns = (uint32_t)tensor->size[0],
        .type = attune__opencl_dtype_index(tensor->dtype),
    };
}

static void describe(const attune__shape *shape, const attune__append *call, attune_opencl_append *a)
{
    const attune__forward *forward = call->forward;
    uint32_t flags = 0;
    *a = (attune_opencl_append){
        .q = attune__opencl_tensor_describe(&forward->q, 1, ATTUNE_OPENCL_APPEND_Q, &flags),
        .k = attune__opencl_tensor_describe(&call->k, 1, 0, &flags),
        .v = attune__opencl_tensor_describe(&call->v, 1, ATTUNE_OPENCL_APPEND_V, &flags),
        .q_out = attune__opencl_tensor_describe(&call->q_out, 1, 0, &flags),
        .cache_k = attune__opencl_tensor_describe(&forward->k, 1, 0, &flags),
        .cache_v = attune__opencl_tensor_describe(&forward->v, 1, 0, &flags),
        .slots = rows_of(&call->slots, ATTUNE_OPENCL_APPEND_SLOTS, &flags),
        .positions = rows_of(&call->positions, ATTUNE_OPENCL_APPEND_POSITIONS, &flags),
        .cosine = rows_of(&call->cosine, ATTUNE_OPENCL_APPEND_ROTATES, &flags),
        .sine = rows_of(&call->sine, 0, &flags),
        .q_norm = norm_of(&call->q_norm),
        .k_norm = norm_of(&call->k_norm),
        .batch = forward->serving->kv_len.buffer ? (uint32_t)forward->batch : 0,
        .heads = forward->q.buffer ? (uint32_t)forward->heads : 0,
        .kv_heads = (uint32_t)forward->kv_heads,
        .q_len = (uint32_t)forward->q_len,
        .kv_len = (uint32_t)forward->kv_len,
        .rows = (uint32_t)call->k.size[2],
        .columns_k = shape->head_dim,
        .columns_v = shape->head_dim_v,
        .type = attune__opencl_dtype_index(shape->q_dtype),
        .k_type = attune__key_type(shape->k_dtype),
        .v_type = attune__key_type(shape->v_dtype),
        .positions_count = (uint32_t)(call->cosine.size[0] < INT32_MAX ? call->cosine.size[0] : INT32_MAX),
        .pairs = (uint32_t)call->cosine.size[1],
        .rotary_first = call->rotary_first,
        .epsilon = (float)call->norm_epsilon,
    };
    a->flags = flags | (call->interleaved ? ATTUNE_OPENCL_APPEND_INTERLEAVED : 0) |
               (call->k_scale_rows ? ATTUNE_OPENCL_APPEND_K_SCALE_ROWS : 0) |
               (call->v_scale_rows ? ATTUNE_OPENCL_APPEND_V_SCALE_ROWS : 0);
    attune__opencl_serving_describe(forward, &a->cache);
}

static void set_arguments(attune__opencl_setter *setter, const attune_opencl_append *a, const attune__append *call)
{
    const attune__forward *forward = call->forward;
    const attune__serving *s = forward->serving;
    const attune_buffer *const memory[POINTERS] = {
        forward->q.buffer,   call->k.buffer,        call->v.buffer,         call->q_out.buffer,  forward->k.buffer,
        forward->v.buffer,   call->slots.buffer,    call->positions.buffer, call->cosine.buffer, call->sine.buffer,
        call->q_norm.buffer, call->k_norm.buffer,   s->q_start.buffer,      s->kv_len.buffer,    s->count.buffer,
        s->pages.buffer,     s->pages_start.buffer, s->k_scale.buffer,      s->v_scale.buffer,
    };
    attune__opencl_set(setter, sizeof *a, a);
    for (uint32_t i = 0; i < POINTERS; i++)
        attune__opencl_set_memory(setter, memory[i]);
}

attune_status attune__opencl_append_first(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    static const attune__serving serving = {.packed = false};
    static const attune__forward forward = {.serving = &serving};
    static const attune__append call = {.forward = &forward};
    /* A row without heads. */
    const attune_opencl_append a = {.rows = 1, .workgroups = 1, .cache = {.page = 1}};
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    set_arguments(&setter, &a, &call);
    return attune__opencl_kernel_first(device, kernel, setter.error);
}

attune_status attune__opencl_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                    uint64_t *value)
{
    attune__opencl_program *mine = (attune__opencl_program *)(uintptr_t)program;
    attune__opencl_device *device = attune__opencl_of(program->device);
    const attune__forward *forward = call->forward;
    const uint64_t rows = attune__append_rows(call), workgroups = attune__append_workgroups(call, 1, ENOUGH);
    if (rows * workgroups > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu rows, device %s takes fewer than 2^32",
                            (unsigned long long)rows, program->device->info.id);
    attune_opencl_append a;
    describe(&mine->shape, call, &a);
    a.workgroups = (uint32_t)workgroups;
    /* Some twenty operations for each column, and the search of the row's sequence. */
    const uint64_t columns = (attune__append_heads(call) + workgroups - 1) / workgroups * mine->shape.head_dim;
    const double flops = 20.0 * (double)columns + 20.0 * (double)forward->batch;
    const uint64_t most = attune__opencl_launch_most(device, rows * workgroups, flops);
    attune__opencl_setter setter = {.device = device, .kernel = mine->append.handle};
    attune__opencl_call commands;
    pthread_mutex_lock(&mine->lock);
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    for (uint64_t first = 0; first < rows * workgroups; first += most) {
        a.first = (uint32_t)first;
        setter.index = 0;
        set_arguments(&setter, &a, call);
        if (commands.status == ATTUNE_OK)
            commands.status = attune__opencl_check(device, setter.error, "clSetKernelArg");
        attune__opencl_launch(&commands, mine->append.handle,
                              rows * workgroups - first < most ? rows * workgroups - first : most,
                              mine->append.threads);
    }
    pthread_mutex_unlock(&mine->lock);
    return attune__opencl_end(&commands, value, forward->seconds);
}

/* SPDX-License-Identifier: MIT */
/* New rows of a cache: cuda/append.cu, one launch, of whose integers the host reads none. */
#include "cuda/append.h"
#include "base/error.h"
#include "cuda/cuda.h"

/* CTAs that fill a device. */
#define ENOUGH 1024

static bool is_f32(const attune_tensor *tensor)
{
    return tensor->dtype == ATTUNE_F32;
}

static attune_cuda_append describe(const attune__append *call)
{
    const attune__forward *forward = call->forward;
    return (attune_cuda_append){
        .q = attune__cuda_view_of(&forward->q),
        .k = attune__cuda_view_of(&call->k),
        .v = attune__cuda_view_of(&call->v),
        .q_out = attune__cuda_view_of(&call->q_out),
        .cache_k = attune__cuda_view_of(&forward->k),
        .cache_v = attune__cuda_view_of(&forward->v),
        .slots = attune__cuda_array_of(&call->slots),
        .positions = attune__cuda_array_of(&call->positions),
        .q_norm = attune__cuda_array_of(&call->q_norm),
        .k_norm = attune__cuda_array_of(&call->k_norm),
        .cosine = attune__cuda_array_of(&call->cosine),
        .sine = attune__cuda_array_of(&call->sine),
        .pool = forward->k.size[0],
        .page = forward->k.size[2],
        .table_positions = call->cosine.size[0],
        .batch = (int)forward->batch,
        .heads = (int)forward->heads,
        .kv_heads = (int)forward->kv_heads,
        .q_len = (int)forward->q_len,
        .kv_len = (int)forward->kv_len,
        .rows = (int)call->k.size[2],
        .whole = !forward->serving->kv_len.buffer,
        .q_norm_columns = (int)call->q_norm.size[0],
        .k_norm_columns = (int)call->k_norm.size[0],
        .q_norm_f32 = is_f32(&call->q_norm),
        .k_norm_f32 = is_f32(&call->k_norm),
        .pairs = (int)call->cosine.size[1],
        .rotary_first = (int)call->rotary_first,
        .interleaved = call->interleaved,
        .k_scale_rows = call->k_scale_rows,
        .v_scale_rows = call->v_scale_rows,
        .epsilon = (float)call->norm_epsilon,
    };
}

attune_status attune__cuda_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                  uint64_t *value)
{
    const attune__cuda_program *mine = (const attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    const int64_t rows = (int64_t)attune__append_rows(call);
    attune_cuda_append arguments = describe(call);
    attune_cuda_serving serving = attune__cuda_serving_of(call->forward);
    void *parameters[] = {&arguments, &serving};
    arguments.ctas = (int)attune__append_workgroups(call, ATTUNE_CUDA_APPEND_THREADS / 32, ENOUGH);
    /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a row has heads */
    if (rows > ATTUNE__CUDA_MOST_BLOCKS / arguments.ctas)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %lld rows, the kernel takes at most %d: cut it",
                            (long long)rows, ATTUNE__CUDA_MOST_BLOCKS / arguments.ctas);
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, call->forward->seconds != NULL);
    if (status == ATTUNE_OK) {
        const attune__cu_result result = device->driver.launch(
            mine->append.function, (unsigned)(rows * arguments.ctas), 1, 1, ATTUNE_CUDA_APPEND_THREADS, 1, 1,
            mine->append.shared_memory, stream->stream, parameters, NULL);
        status = attune__cuda_queue_end(stream, attune__cuda_check(device, result, "cuLaunchKernel"), value,
                                        call->forward->seconds);
    }
    attune__cuda_leave(device);
    return status;
}

/* SPDX-License-Identifier: MIT */
/* The hot call over a cache: one launch, of whose integers the host reads none. */
#include "cuda/cuda.h"

#include "base/error.h"

static attune_cuda_array array_of(const attune_tensor *tensor)
{
    attune_cuda_array a = {0};
    if (!tensor->buffer)
        return a;
    a.address = attune__cuda_pointer(tensor->buffer) + tensor->offset;
    for (uint32_t i = 0; i < tensor->rank && i < 3; i++)
        a.stride[i] = tensor->stride[i];
    return a;
}

static int at_most(int64_t x)
{
    return x < INT32_MAX ? (int)x : INT32_MAX;
}

static attune_cuda_serving serving_of(const attune__forward *call)
{
    const attune__serving *s = call->serving;
    return (attune_cuda_serving){
        .q_start = array_of(&s->q_start),
        .kv_len = array_of(&s->kv_len),
        .kv_first = array_of(&s->kv_first),
        .count = array_of(&s->count),
        .pages = array_of(&s->pages),
        .pages_start = array_of(&s->pages_start),
        .tree = array_of(&s->tree),
        .tokens = at_most(call->q.size[2]),
        .pool = at_most(call->k.size[0]),
        .page = at_most(call->k.size[2]),
        .entries = at_most(s->pages.size[s->pages_start.buffer ? 0 : 1]),
        .tree_words = at_most(s->tree.size[2]),
    };
}

/* A tile for each BLOCK_M rows of a sequence, and one for the rest: those of a packed call have all its rows together.
 * Where the batch has fewer, the CTAs that are too many leave at once; where its integers are not valid, and there are
 * more, CTAs take several. */
static int64_t most_tiles(const attune__forward *call, int64_t block_m)
{
    const int64_t packed = call->heads / call->kv_heads, each = (call->q_len * packed + block_m - 1) / block_m;
    const int64_t all = call->q.size[2] * packed / block_m + call->batch;
    return call->serving->packed && all < each * call->batch ? all : each * call->batch;
}

attune_status attune__cuda_serve(const attune__cuda_program *program, attune__cuda_queue *queue,
                                 const attune__forward *call, uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    const attune__cuda_loaded *kernel = &program->kernel;
    const int64_t packed = call->heads / call->kv_heads;
    if (call->q_len > INT32_MAX / packed / call->batch / call->kv_heads)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "batch %lld, heads %lld and q_len %lld make more than %d rows: cut the batch",
                            (long long)call->batch, (long long)call->heads, (long long)call->q_len, INT32_MAX);
    attune_cuda_arguments arguments = attune__cuda_arguments_of(program, call);
    attune_cuda_serving serving = serving_of(call);
    void *parameters[] = {&arguments, &serving};
    attune_status status = attune__cuda_queue_begin(queue, call->seconds != NULL);
    if (status != ATTUNE_OK)
        return status;
    status = attune__cuda_check(
        device,
        device->driver.launch(kernel->function, (unsigned)(most_tiles(call, kernel->block_m) * call->kv_heads), 1, 1,
                              kernel->threads, 1, 1, kernel->shared_memory, queue->stream, parameters, NULL),
        "cuLaunchKernel");
    return attune__cuda_queue_end(queue, status, value, call->seconds);
}

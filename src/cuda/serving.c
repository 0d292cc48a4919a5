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

static attune_cuda_serving serving_of(const attune__forward *call)
{
    const attune__serving *s = call->serving;
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
    return (attune_cuda_serving){
        .q_start = array_of(&s->q_start),
        .kv_len = array_of(&s->kv_len),
        .kv_first = array_of(&s->kv_first),
        .count = array_of(&s->count),
        .pages = array_of(&s->pages),
        .pages_start = array_of(&s->pages_start),
        .tree = array_of(&s->tree),
        .tokens = (int)attune__serving_size(call->q.size[2]),
        .pool = (int)sizes.pool,
        .page = (int)sizes.page,
        .entries = (int)sizes.entries,
        .tree_words = (int)sizes.tree_words,
    };
}

/* Of one sequence: packed rows of the query heads that share keys. */
static int64_t most_rows(const attune__forward *call)
{
    return attune__forward_rows(call) * (call->heads / call->kv_heads);
}

/* Those of the plan, or of the block table. */
static int64_t most_keys(const attune__forward *call, const attune_cuda_serving *serving)
{
    const int64_t keys = (serving->pages.address ? serving->entries : 1) * (int64_t)serving->page;
    return keys < call->kv_len ? keys : call->kv_len;
}

/* The kernel counts rows, keys and sequences past the last tile in 32 bits. */
static attune_status check_counts(const attune__forward *call, const attune_cuda_serving *serving)
{
    const int most = INT32_MAX - 4096;
    const int64_t rows = most_rows(call), keys = most_keys(call, serving);
    if (rows > most)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "a sequence may have %lld rows of the %lld heads for each of k, the kernel takes at most "
                            "%d: cut the rows of q",
                            (long long)rows, (long long)(call->heads / call->kv_heads), most);
    if (keys > most)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "a sequence may have %lld keys, the kernel takes at most %d: lower problem.kv_len",
                            (long long)keys, most);
    if (call->batch > most)
        return attune__fail(ATTUNE_UNSUPPORTED, "the batch has %lld sequences, the kernel takes at most %d: cut it",
                            (long long)call->batch, most);
    return ATTUNE_OK;
}

/* A tile for each BLOCK_M rows of a sequence, and one for the rest: those of a packed call have all its rows together.
 * Where the batch has fewer, the CTAs that are too many leave at once; where its integers are not valid, and there are
 * more, CTAs take several. */
static int64_t most_tiles(const attune__forward *call, int64_t block_m)
{
    const int64_t packed = call->heads / call->kv_heads, each = (most_rows(call) + block_m - 1) / block_m;
    const int64_t all = call->q.size[2] * packed / block_m + call->batch;
    return call->serving->packed && all < each * call->batch ? all : each * call->batch;
}

attune_status attune__cuda_serve(const attune__cuda_program *program, attune__cuda_queue *queue,
                                 const attune__forward *call, uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    const attune__cuda_loaded *kernel = &program->kernel;
    const int64_t tiles = most_tiles(call, kernel->block_m);
    attune_cuda_arguments arguments = attune__cuda_arguments_of(program, call);
    attune_cuda_serving serving = serving_of(call);
    void *parameters[] = {&arguments, &serving};
    attune_status status = check_counts(call, &serving);
    if (status == ATTUNE_OK && tiles > ATTUNE__CUDA_MOST_BLOCKS / call->kv_heads)
        status = attune__fail(
            ATTUNE_UNSUPPORTED, "batch %lld, heads %lld and %lld rows of q make more than %d workgroups: cut the batch",
            (long long)call->batch, (long long)call->heads, (long long)call->q.size[2], ATTUNE__CUDA_MOST_BLOCKS);
    if (status == ATTUNE_OK)
        status = attune__cuda_queue_begin(queue, call->seconds != NULL);
    if (status != ATTUNE_OK)
        return status;
    status = attune__cuda_check(device,
                                device->driver.launch(kernel->function, (unsigned)(tiles * call->kv_heads), 1, 1,
                                                      kernel->threads, 1, 1, kernel->shared_memory, queue->stream,
                                                      parameters, NULL),
                                "cuLaunchKernel");
    return attune__cuda_queue_end(queue, status, value, call->seconds);
}

/* SPDX-License-Identifier: MIT */
/* The hot call over a cache: one launch, of whose integers the host reads none. Where the keys may be computed in
 * parts, a second one before it makes the schedule, unless the caller has it from attune_schedule. */
#include "cuda/cuda.h"

#include "base/error.h"
#include "base/hash.h"
#include "cuda/family.h"
#include "cuda/layout_sm80.h"
#include "cuda/layout_sm90.h"

attune_status attune__cuda_serving_load(attune__cuda_program *program, const attune__program_desc *desc)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    program->resident = device->base.info.limits.compute_units * desc->choice->occupancy;
    program->parts =
        attune__cuda_serving_parts(desc->shape, desc->choice->block_m, desc->choice->num_stages, program->resident);
    if (!program->parts.slots)
        return ATTUNE_OK;
    if (program->parts.workspace > desc->choice->workspace)
        return attune__fail(ATTUNE_INTERNAL,
                            "the parts of keys need a workspace of %llu bytes, the plan has %llu: it was made for a "
                            "device of fewer compute units",
                            (unsigned long long)program->parts.workspace, (unsigned long long)desc->choice->workspace);
    return attune__cuda_function(device, program->kernel.module, "attune_schedule", &program->schedule);
}

attune_cuda_array attune__cuda_array_of(const attune_tensor *tensor)
{
    attune_cuda_array a = {0};
    if (!tensor->buffer)
        return a;
    a.address = attune__cuda_pointer(tensor->buffer) + tensor->offset;
    for (uint32_t i = 0; i < tensor->rank && i < 3; i++)
        a.stride[i] = tensor->stride[i];
    return a;
}

attune_cuda_serving attune__cuda_serving_of(const attune__forward *call)
{
    const attune__serving *s = call->serving;
    const attune__serving_sizes sizes = attune__serving_sizes_of(call);
    return (attune_cuda_serving){
        .q_start = attune__cuda_array_of(&s->q_start),
        .kv_len = attune__cuda_array_of(&s->kv_len),
        .kv_first = attune__cuda_array_of(&s->kv_first),
        .count = attune__cuda_array_of(&s->count),
        .pages = attune__cuda_array_of(&s->pages),
        .pages_start = attune__cuda_array_of(&s->pages_start),
        .tree = attune__cuda_array_of(&s->tree),
        .k_scale = attune__cuda_array_of(&s->k_scale),
        .v_scale = attune__cuda_array_of(&s->v_scale),
        .tokens = (int)attune__serving_size(call->q.size[2]),
        .pool = (int)sizes.pool,
        .page = (int)sizes.page,
        .entries = (int)sizes.entries,
        .tree_words = (int)sizes.tree_words,
    };
}

/* The rows of one sequence at most: packed rows of the query heads that share keys. */
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

/* A schedule depends on these besides the lengths. */
static int key_of(const attune__cuda_program *program, const attune__forward *call)
{
    const int64_t all[] = {call->batch,
                           call->heads,
                           call->kv_heads,
                           call->q_len,
                           program->kernel.block_m,
                           program->parts.slots,
                           program->resident,
                           program->parts.split_keys,
                           program->parts.shares};
    attune__hash hash = attune__hash_begin();
    attune__hash_bytes(&hash, all, sizeof all);
    return (int)(hash.lane[0] & INT32_MAX);
}

static void set_parts(const attune__cuda_program *program, const attune__forward *call, attune_cuda_serving *serving)
{
    const attune__serving *s = call->serving;
    if (!program->parts.slots)
        return;
    const attune__cu_pointer own = call->workspace ? attune__cuda_pointer(call->workspace) + call->workspace_offset : 0;
    serving->schedule = s->schedule ? attune__cuda_pointer(s->schedule) + s->schedule_offset : own;
    serving->parts = own + program->parts.schedule;
    serving->slots = (int)program->parts.slots;
    serving->resident = (int)program->resident;
    serving->schedule_key = key_of(program, call);
    if (program->parts.shares)
        serving->shared = attune__cuda_array_of(&s->shared);
}

static attune_status check(const attune__cuda_program *program, const attune__forward *call,
                           const attune_cuda_serving *serving)
{
    ATTUNE__TRY(check_counts(call, serving));
    const int64_t most = ATTUNE__CUDA_MOST_BLOCKS - (int64_t)program->resident;
    if (most_tiles(call, program->kernel.block_m) > most / call->kv_heads)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "batch %lld, heads %lld and %lld rows of q make more than %lld workgroups: cut the batch",
                            (long long)call->batch, (long long)call->heads, (long long)call->q.size[2],
                            (long long)most);
    return ATTUNE_OK;
}

static attune__cu_result launch_schedule(const attune__cuda_program *program, const attune__cuda_queue *queue,
                                         void **parameters)
{
    return attune__cuda_of(program->base.device)
        ->driver.launch(program->schedule, 1, 1, 1, ATTUNE_CUDA_SCHEDULE_THREADS, 1, 1,
                        program->parts.shares
                            ? ATTUNE_CUDA_SHARED_SCHEDULE_SHARED
                            : ATTUNE_CUDA_SCHEDULE_SHARED + ATTUNE_CUDA_SCHEDULE_HERE * sizeof(attune_cuda_scheduled),
                        queue->stream, parameters, NULL);
}

/* The keys of a box, and the tensor maps of K and V. A warp loads a quarter of a tile's keys, as boxes that lie in one
 * page each: of at least 8 keys, which is what the swizzle repeats after. Boxes of wide values are of 8 keys and all
 * columns. */
static int encode_boxes(const attune__cuda_program *program, const attune__forward *call,
                        const attune_cuda_serving *serving, attune__cu_tensor_map maps[2])
{
    const attune__cuda_driver *driver = &attune__cuda_of(program->base.device)->driver;
    const bool wide = attune_cuda_serving_sm90_wide((unsigned)call->v.size[3]);
    const attune_tensor *tensors[] = {&call->k, &call->v};
    uint32_t box = wide ? 8 : program->kernel.block_n / 4;
    while (serving->pages.address && box >= 8 && (uint32_t)serving->page % box)
        box /= 2;
    bool can = box >= 8;
    for (int i = 0; can && i < 2; i++)
        can = wide ? attune__cuda_encode_slabs(driver, tensors[i], box, &maps[i])
                   : attune__cuda_encode(driver, tensors[i], box, false, &maps[i]);
    return can ? (int)box : 0;
}

attune_status attune__cuda_serve(const attune__cuda_program *program, attune__cuda_queue *queue,
                                 const attune__forward *call, uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    const attune__cuda_loaded *kernel = &program->kernel;
    attune_cuda_arguments arguments = attune__cuda_arguments_of(program, call);
    attune_cuda_serving serving = attune__cuda_serving_of(call);
    attune__cu_tensor_map maps[2] = {0};
    void *parameters[] = {&arguments, &serving, &maps[0], &maps[1]};
    set_parts(program, call, &serving);
    ATTUNE__TRY(check(program, call, &serving));
    if (program->family->boxes)
        serving.box = encode_boxes(program, call, &serving, maps);
    /* The schedule makes at most as many further items of parts. Of fixed parts there may be any number, and each CTA
     * has memory for the sum of its tile's. */
    const int64_t all =
        most_tiles(call, kernel->block_m) * call->kv_heads + (serving.slots ? (int64_t)program->resident : 0);
    const int64_t grid = program->parts.fixed || kernel->resident ? (int64_t)program->resident : all;
    ATTUNE__TRY(attune__cuda_queue_begin(queue, call->seconds != NULL));
    attune__cu_result result = CU_SUCCESS;
    const bool schedules = serving.slots && !call->serving->schedule;
    if (schedules)
        result = launch_schedule(program, queue, parameters);
    if (result == CU_SUCCESS)
        result = attune__cuda_launch_early(device, kernel->function, (unsigned)grid, 1, kernel->threads,
                                           kernel->shared_memory, queue->stream, parameters);
    return attune__cuda_queue_end(queue, attune__cuda_check(device, result, "cuLaunchKernel"), value, call->seconds);
}

uint64_t attune__cuda_schedule_size(const attune__program *program)
{
    return ((const attune__cuda_program *)program)->parts.schedule;
}

attune_status attune__cuda_schedule(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                    uint64_t *value)
{
    const attune__cuda_program *mine = (const attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    attune_cuda_arguments arguments = attune__cuda_arguments_of(mine, call);
    attune_cuda_serving serving = attune__cuda_serving_of(call);
    void *parameters[] = {&arguments, &serving};
    set_parts(mine, call, &serving);
    ATTUNE__TRY(check(mine, call, &serving));
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, call->seconds != NULL);
    if (status == ATTUNE_OK) {
        status = attune__cuda_check(device, launch_schedule(mine, stream, parameters), "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, call->seconds);
    }
    attune__cuda_leave(device);
    return status;
}

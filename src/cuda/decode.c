/* SPDX-License-Identifier: MIT */
/* The hot call of decode: one launch, and where no clusters have the splits of a row a second one that combines them.
 */
#include "cuda/cuda.h"

#include "base/error.h"
#include "base/round.h"
#include "cuda/layout_sm80.h"

#define COMBINE_THREADS 128

attune_status attune__cuda_decode_load(attune__cuda_program *program, const attune__program_desc *desc)
{
    attune__cuda_device *device = attune__cuda_of(program->base.device);
    program->packed_heads = attune__shape_packed_heads(desc->shape);
    program->split = desc->choice->split_kv;
    if (program->split < 2)
        return ATTUNE_OK;
    if (program->split <= ATTUNE_CUDA_CLUSTER_SPLITS) {
        ATTUNE__TRY(attune__cuda_enter(device));
        program->clusters = attune__cuda_most_clusters(device, program->kernel.function, program->split,
                                                       program->kernel.threads, program->kernel.shared_memory);
        attune__cuda_leave(device);
    }
    return attune__cuda_function(device, program->kernel.module, "attune_combine_sm80", &program->combine);
}

/* A mask's lists may differ by head although its expression does not. The plan knows the expression only, so that the
 * call must check the mask: a tile of several heads would use the first one's lists for all. */
static uint32_t packed_heads(const attune__cuda_program *program, const attune__forward *call)
{
    return call->mask && call->mask->stored_heads != 1 ? 1 : program->packed_heads;
}

/* The partial results are at the beginning of the workspace (src/plan/plan.h). */
static attune_cuda_parts parts_of(const attune__cuda_program *program, const attune__forward *call, bool clustered)
{
    attune_cuda_parts parts = {
        .packed = (int)packed_heads(program, call), .split = (int)program->split, .clustered = clustered};
    if (parts.split > 1 && !clustered) {
        const uint64_t rows = (uint64_t)(call->batch * call->heads * call->q_len) * program->split;
        const uint64_t o_bytes = rows * (uint64_t)call->v.size[3] * sizeof(float);
        parts.o = attune__cuda_pointer(call->workspace) + call->workspace_offset;
        parts.ml = parts.o + attune__round_up64(o_bytes, 256);
    }
    return parts;
}

/* All splits of the rows, and what combines them where neither clusters do nor the caller. */
static attune__cu_result launch_splits(attune__cuda_device *device, const attune__cuda_program *program, int64_t tiles,
                                       int64_t combined, bool clustered, attune__cu_stream stream, void **parameters)
{
    attune__cu_result result = attune__cuda_launch_early(
        device, program->kernel.function, (unsigned)(tiles * program->split), clustered ? program->split : 1,
        program->kernel.threads, program->kernel.shared_memory, stream, parameters);
    if (result == CU_SUCCESS && combined)
        result = attune__cuda_launch_early(device, program->combine, (unsigned)combined, 1, COMBINE_THREADS, 0, stream,
                                           parameters);
    return result;
}

attune_status attune__cuda_decode(const attune__program *program, attune_queue *queue, const attune__forward *call,
                                  uint64_t *value)
{
    const attune__cuda_program *mine = (const attune__cuda_program *)program;
    attune__cuda_device *device = attune__cuda_of(program->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    const int64_t packed = packed_heads(mine, call), rows = call->q_len * packed,
                  tiles = (rows + mine->kernel.block_m - 1) / mine->kernel.block_m;
    const int64_t planes = call->heads / packed * call->batch;
    const int64_t all = call->batch * call->heads * call->q_len;
    if (tiles * mine->split > ATTUNE__CUDA_MOST_BLOCKS / planes || all > ATTUNE__CUDA_MOST_BLOCKS)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "batch %lld, heads %lld and %u parts make more than %d workgroups: cut the batch",
                            (long long)call->batch, (long long)call->heads, mine->split, ATTUNE__CUDA_MOST_BLOCKS);
    attune_cuda_arguments arguments = attune__cuda_arguments_of(mine, call);
    const bool clustered = !call->splits && tiles * planes <= (int64_t)mine->clusters;
    attune_cuda_parts parts = parts_of(mine, call, clustered);
    void *parameters[] = {&arguments, &parts};
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, call->seconds != NULL);
    if (status == ATTUNE_OK) {
        const int64_t combined = mine->split > 1 && !clustered && !call->splits ? all : 0;
        attune__cu_result result =
            launch_splits(device, mine, tiles * planes, combined, clustered, stream->stream, parameters);
        if (result == CU_SUCCESS && attune__cuda_take_last_columns(mine, call, &arguments)) {
            parts.o += parts.o ? (uint64_t)(call->v.size[3] - mine->columns) * sizeof(float) : 0;
            result = launch_splits(device, mine, tiles * planes, combined, clustered, stream->stream, parameters);
        }
        status = attune__cuda_check(device, result, "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, call->seconds);
    }
    attune__cuda_leave(device);
    return status;
}

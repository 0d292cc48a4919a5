/* SPDX-License-Identifier: MIT */
/*
 * Masks that follow a tensor: cuda/mask_lists.cu, three launches. One allocation holds a byte for each block, and lists
 * with space for every block.
 */
#include "cuda/cuda.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/round.h"
#include "cuda/compiler.h"
#include "cuda/mask_lists.h"

#define ALIGNMENT UINT64_C(256)

enum { CLASSIFY, OFFSETS, INDICES };
static const char *const entries[] = {"attune_mask_classify", "attune_mask_offsets", "attune_mask_indices"};

struct attune__cuda_follow {
    attune__cu_module module;
    attune__cu_function functions[3];
    attune__cu_pointer classes;
};

static attune__cuda_kernel describe_kernel(uint32_t architecture)
{
    attune__cuda_kernel kernel = {.file = "mask_lists.cu"};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_%u", architecture);
    snprintf(kernel.options[1], sizeof kernel.options[1], "-std=c++17");
    kernel.option_count = 2;
    return kernel;
}

static uint64_t append(uint64_t *end, uint64_t size)
{
    const uint64_t at = *end;
    *end = attune__round_up64(at + size, ALIGNMENT);
    return at;
}

/* Sets the addresses of all arrays, from made->memory on, and returns their size. */
static uint64_t lay_out(const attune_mask *mask, attune__cuda_mask *made)
{
    const uint64_t planes = (uint64_t)(mask->stored_batch * mask->stored_heads);
    const uint64_t rows = planes * (uint64_t)mask->q_blocks, columns = planes * (uint64_t)mask->kv_blocks;
    const uint64_t blocks = rows * (uint64_t)mask->kv_blocks;
    uint64_t end = 0;
    made->follow->classes = made->memory + append(&end, blocks);
    for (int i = 0; i < 2; i++) {
        made->offsets[i] = made->memory + append(&end, (rows + 1) * sizeof(int64_t));
        made->indices[i] = made->memory + append(&end, blocks * sizeof(int32_t));
        made->column_offsets[i] = made->memory + append(&end, (columns + 1) * sizeof(int64_t));
        made->column_indices[i] = made->memory + append(&end, blocks * sizeof(int32_t));
    }
    return end;
}

/* Needs the current context. */
static attune_status load(attune__cuda_device *device, const void *cubin, const attune_mask *mask,
                          attune__cuda_mask *made)
{
    const attune__cuda_driver *driver = &device->driver;
    struct attune__cuda_follow *follow = made->follow;
    ATTUNE__TRY(attune__cuda_check(device, driver->module_load(&follow->module, cubin), "cuModuleLoadData"));
    for (int i = 0; i < 3; i++)
        ATTUNE__TRY(attune__cuda_check(
            device, driver->module_function(&follow->functions[i], follow->module, entries[i]), "cuModuleGetFunction"));
    ATTUNE__TRY(attune__cuda_check(device, driver->memory_alloc(&made->memory, lay_out(mask, made)), "a mask"));
    lay_out(mask, made);
    return ATTUNE_OK;
}

attune_status attune__cuda_mask_create_tensor(attune_device *device, const attune_mask *mask,
                                              attune__device_mask **device_mask)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    const attune_allocator *allocator = &device->host.allocator;
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    if (planes * mask->q_blocks > INT32_MAX / mask->kv_blocks)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "the mask has %lld x %lld blocks, %s takes fewer than 2^31: make the blocks larger",
                            (long long)(planes * mask->q_blocks), (long long)mask->kv_blocks, device->info.id);
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    void *cubin = NULL;
    size_t size = 0;
    attune__cuda_mask *made = attune__alloc(allocator, 1, sizeof *made);
    if (made)
        made->follow = attune__alloc(allocator, 1, sizeof *made->follow);
    if (!made || !made->follow)
        goto done;
    made->base.device = device;
    const attune__cuda_kernel kernel = describe_kernel(device->info.limits.architecture);
    status = attune__cuda_compile(&device->host, &kernel, &cubin, &size);
    if (status == ATTUNE_OK)
        status = attune__cuda_enter(mine);
    if (status == ATTUNE_OK) {
        status = load(mine, cubin, mask, made);
        attune__cuda_leave(mine);
    }
done:
    attune__free(allocator, cubin);
    if (status == ATTUNE_OK)
        *device_mask = &made->base;
    else if (made && made->follow)
        attune__cuda_mask_release(&made->base);
    else
        attune__free(allocator, made);
    return status;
}

attune_status attune__cuda_mask_pack(const attune__host *host, const attune_limits *limits, attune__pack *to)
{
    const attune__cuda_kernel kernel = describe_kernel(limits->architecture);
    return attune__cuda_pack_kernel(host, &kernel, to);
}

/* Needs the current context. */
void attune__cuda_follow_destroy(attune__cuda_device *device, struct attune__cuda_follow *follow)
{
    if (follow->module)
        device->driver.module_unload(follow->module);
}

static attune_cuda_mask_lists describe(const attune_mask *mask, const attune__cuda_mask *made,
                                       const attune_tensor *tensor)
{
    attune_cuda_mask_lists a = {
        .tensor = attune__cuda_pointer(tensor->buffer) + tensor->offset,
        .classes = made->follow->classes,
        .planes = (int)(mask->stored_batch * mask->stored_heads),
        .heads = (int)mask->stored_heads,
        .q_len = (int)mask->q_len,
        .kv_len = (int)mask->kv_len,
        .q_block = (int)mask->q_block,
        .kv_block = (int)mask->kv_block,
        .q_blocks = (int)mask->q_blocks,
        .kv_blocks = (int)mask->kv_blocks,
        .element = (int)attune_dtype_size(tensor->dtype),
        .forbidden = attune__mask_forbidden(tensor->dtype),
    };
    for (int i = 0; i < 4; i++)
        a.stride[i] = tensor->stride[i];
    for (int i = 0; i < 2; i++) {
        a.offsets[i] = made->offsets[i];
        a.indices[i] = made->indices[i];
        a.offsets[ATTUNE_CUDA_MASK_COLUMNS + i] = made->column_offsets[i];
        a.indices[ATTUNE_CUDA_MASK_COLUMNS + i] = made->column_indices[i];
    }
    return a;
}

attune_status attune__cuda_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                       const attune_tensor *tensor, uint64_t *value)
{
    attune__cuda_device *device = attune__cuda_of(queue->device);
    attune__cuda_queue *stream = (attune__cuda_queue *)queue;
    attune__cuda_mask *made = (attune__cuda_mask *)device_mask;
    attune_cuda_mask_lists a = describe(mask, made, tensor);
    const unsigned lines = (unsigned)(a.planes * (a.q_blocks + a.kv_blocks)), warps = ATTUNE_CUDA_MASK_THREADS / 32;
    const struct {
        unsigned grid, threads;
    } launches[3] = {
        [CLASSIFY] = {(unsigned)(a.planes * a.q_blocks * a.kv_blocks), ATTUNE_CUDA_MASK_THREADS},
        [OFFSETS] = {ATTUNE_CUDA_MASK_LISTS, ATTUNE_CUDA_MASK_SCAN},
        [INDICES] = {(lines + warps - 1) / warps, ATTUNE_CUDA_MASK_THREADS},
    };
    void *parameters[] = {&a};
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_queue_begin(stream, false);
    if (status == ATTUNE_OK) {
        for (int i = 0; i < 3 && status == ATTUNE_OK; i++)
            status = attune__cuda_check(device,
                                        device->driver.launch(made->follow->functions[i], launches[i].grid, 1, 1,
                                                              launches[i].threads, 1, 1, 0, stream->stream, parameters,
                                                              NULL),
                                        "cuLaunchKernel");
        status = attune__cuda_queue_end(stream, status, value, NULL);
    }
    attune__cuda_leave(device);
    made->captures[0] = a.tensor;
    return status;
}

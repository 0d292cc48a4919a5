/* SPDX-License-Identifier: MIT */
/* New rows of a cache (shaders/append.comp). The arguments are in a buffer of the program's: a call has no workspace,
 * and begins after the calls before it. */
#include "base/error.h"
#include "vulkan/launch.h"

#include "shaders/append.h"
#include "shaders/append_rows.h"

/* Workgroups that fill a device. */
#define ENOUGH 2048

typedef struct arguments {
    attune_vulkan_append append;
    attune_vulkan_serving serving;
} arguments;

attune_status attune__vulkan_append_pipeline(attune_device *device, const attune__vulkan_kernel *kernel,
                                             attune__vulkan_program *program, attune__vulkan_pipelines *list)
{
    ATTUNE__TRY(attune__vulkan_buffer_create(device, sizeof(arguments), &program->append_arguments));
    static const attune__vulkan_module module = ATTUNE__VULKAN_MODULE(attune__spirv_append_rows);
    return attune__vulkan_pipelines_prebuilt(device, list, &module, "append", kernel->constants, &program->append);
}

static attune_vulkan_tensor describe_tensor(const attune_tensor *tensor)
{
    uint32_t unused = 0;
    return attune__vulkan_tensor_describe(tensor, 1, 0, &unused);
}

static uint32_t is_f32(const attune_tensor *tensor)
{
    return tensor->dtype == ATTUNE_F32;
}

static arguments describe(const attune__append *call, uint64_t address)
{
    const attune__forward *forward = call->forward;
    const uint64_t serving = address + offsetof(arguments, serving);
    arguments a = {
        .append =
            {
                .q = describe_tensor(&forward->q),
                .k = describe_tensor(&call->k),
                .v = describe_tensor(&call->v),
                .q_out = describe_tensor(&call->q_out),
                .cache_k = describe_tensor(&forward->k),
                .cache_v = describe_tensor(&forward->v),
                .slots = attune__vulkan_array_describe(&call->slots, serving),
                .positions = attune__vulkan_array_describe(&call->positions, serving),
                .q_norm = attune__vulkan_array_describe(&call->q_norm, serving),
                .k_norm = attune__vulkan_array_describe(&call->k_norm, serving),
                .cosine = attune__vulkan_array_describe(&call->cosine, serving),
                .sine = attune__vulkan_array_describe(&call->sine, serving),
                .serving = serving,
                .batch = (uint32_t)forward->batch,
                .heads = (uint32_t)forward->heads,
                .kv_heads = (uint32_t)forward->kv_heads,
                .q_len = (uint32_t)forward->q_len,
                .kv_len = (uint32_t)forward->kv_len,
                .rows = (uint32_t)call->k.size[2],
                .whole = !forward->serving->kv_len.buffer,
                .q_norm_columns = (uint32_t)call->q_norm.size[0],
                .k_norm_columns = (uint32_t)call->k_norm.size[0],
                .q_norm_f32 = is_f32(&call->q_norm),
                .k_norm_f32 = is_f32(&call->k_norm),
                .positions_count = call->cosine.size[0] < INT32_MAX ? (uint32_t)call->cosine.size[0] : INT32_MAX,
                .pairs = (uint32_t)call->cosine.size[1],
                .rotary_first = call->rotary_first,
                .interleaved = call->interleaved,
                .k_scale_rows = call->k_scale_rows,
                .v_scale_rows = call->v_scale_rows,
                .epsilon = (float)call->norm_epsilon,
            },
    };
    attune__vulkan_serving_describe(forward, serving, &a.serving);
    return a;
}

attune_status attune__vulkan_append(const attune__program *program, attune_queue *queue, const attune__append *call,
                                    uint64_t *value)
{
    (void)queue; /* a device has one */
    const attune__vulkan_program *mine = (const attune__vulkan_program *)program;
    attune__vulkan_device *device = attune__vulkan_of(program->device);
    const attune__forward *forward = call->forward;
    const attune__vulkan_buffer *buffer = (const attune__vulkan_buffer *)mine->append_arguments;
    const uint64_t rows = attune__append_rows(call), workgroups = attune__append_workgroups(call, 1, ENOUGH);
    if (rows * workgroups > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu rows, device %s takes fewer than 2^32",
                            (unsigned long long)rows, program->device->info.id);
    arguments a = describe(call, attune__vulkan_address(mine->append_arguments, 0));
    a.append.workgroups = (uint32_t)workgroups;
    attune__vulkan_slot *slot;
    ATTUNE__TRY(attune__vulkan_begin(device, forward->seconds != NULL, &slot));
    device->vk.CmdUpdateBuffer(slot->commands, buffer->handle, buffer->offset, sizeof a, &a);
    attune__vulkan_barrier(device, slot->commands);
    attune__vulkan_dispatch(device, slot->commands, &mine->append, buffer->address, 0, rows * workgroups);
    return forward->seconds ? attune__vulkan_finish(device, slot, value, forward->seconds)
                            : attune__vulkan_submit(device, slot, value);
}

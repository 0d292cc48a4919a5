/* SPDX-License-Identifier: MIT */
/*
 * The backward pass: the kernels of shaders/backward*.comp and a call's launches. Delta comes first; then dQ with the
 * capture gradients, dK with dV, and the gradients of sinks, which do not depend on one another; then the sums of
 * captures are added to the caller's tensors.
 */
#include "vulkan/launch.h"

#include <string.h>

#include "base/error.h"
#include "vulkan/family.h"

#include "shaders/backward_delta_bf16.h"
#include "shaders/backward_delta_f16.h"
#include "shaders/backward_delta_f32.h"
#include "shaders/backward_sinks.h"
#include "shaders/backward_sums.h"

/* Rows of an invocation of backward_sinks.comp under llvmpipe's bound on loops (family.h), beside its loop over the
 * invocations. */
#define MOST_SINKS_STEPS (UINT32_C(60000) / 2 - ATTUNE_VULKAN_SINKS_THREADS)

/* --------------------------------------------------------------------------------------------------------- programs */

attune_status attune__vulkan_specialise_backward(const attune_limits *limits, const attune__program_desc *desc,
                                                 bool keys, bool aligned, attune__vulkan_kernel *kernel)
{
    const attune_plan_choice *c = desc->choice;
    const attune__vulkan_family *family = NULL;
    ATTUNE__TRY(attune__vulkan_family_find(c, &family));
    const attune__vulkan_common common = {
        .THREADS = c->workgroup_invocations,
        .BLOCK_M = attune__vulkan_outer_rows(c, keys),
        .BLOCK_N = attune__vulkan_inner_rows(c, keys),
        .HEAD_DIM = desc->shape->head_dim,
        .HEAD_DIM_V = desc->shape->head_dim_v,
        .BLOCKS = desc->shape->block_mask,
        .MASK = desc->mask != NULL,
        .SCORE = desc->score != NULL,
        .CAPTURES = attune__requests_captures(desc->shape, desc->gradient),
        .PRESCALE = c->prescale_qk,
        .ALIGNED = aligned,
        .O_TYPE = attune__vulkan_dtype_index(attune__shape_output(desc->shape)),
    };
    memset(kernel, 0, sizeof *kernel);
    attune__vulkan_set_common(&common, kernel->constants);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): family_find succeeded */
    const char *why = family->set_backward ? family->set_backward(limits, desc, keys, kernel->constants) : NULL;
    if (why)
        return attune__fail(ATTUNE_INTERNAL, "%s: BLOCK_M1 %u, BLOCK_N1 %u, BLOCK_M2 %u, BLOCK_N2 %u: %s", c->kernel,
                            c->block_m1, c->block_n1, c->block_m2, c->block_n2, why);
    const attune__vulkan_module prebuilt = family->backward(keys, desc->shape->k_dtype);
    if (!prebuilt.words)
        return attune__fail(ATTUNE_UNSUPPORTED, "%s was not compiled into this library", c->kernel);
    kernel->words = prebuilt.words;
    kernel->word_count = prebuilt.count;
    kernel->subgroups = family->backward_subgroups;
    return ATTUNE_OK;
}

attune_status attune__vulkan_backward_pipelines(attune_device *device, const attune__program_desc *desc,
                                                attune__vulkan_program *program, attune__vulkan_pipelines *list)
{
    static const attune__vulkan_module deltas[3] = ATTUNE__VULKAN_MODULES(backward_delta);
    static const attune__vulkan_module sums = ATTUNE__VULKAN_MODULE(attune__spirv_backward_sums);
    static const attune__vulkan_module sinks = ATTUNE__VULKAN_MODULE(attune__spirv_backward_sinks);
    const attune_limits *limits = &device->info.limits;
    attune__vulkan_kernel queries[2], keys[2];
    for (int aligned = 0; aligned < 2; aligned++) {
        ATTUNE__TRY(attune__vulkan_specialise_backward(limits, desc, false, aligned, &queries[aligned]));
        ATTUNE__TRY(attune__vulkan_specialise_backward(limits, desc, true, aligned, &keys[aligned]));
    }
    ATTUNE__TRY(attune__vulkan_pipelines_pair(device, list, desc, queries, &program->forward, &program->aligned));
    ATTUNE__TRY(attune__vulkan_pipelines_pair(device, list, desc, keys, &program->keys, &program->keys_aligned));
    ATTUNE__TRY(attune__vulkan_pipelines_prebuilt(device, list,
                                                  &deltas[attune__vulkan_dtype_index(desc->shape->k_dtype)], "delta",
                                                  keys[0].constants, &program->delta));
    if (desc->shape->sinks)
        ATTUNE__TRY(
            attune__vulkan_pipelines_prebuilt(device, list, &sinks, "sinks", keys[0].constants, &program->sinks));
    if (!attune__requests_captures(desc->shape, desc->gradient))
        return ATTUNE_OK;
    return attune__vulkan_pipelines_prebuilt(device, list, &sums, "sums", keys[0].constants, &program->sums);
}

/* --------------------------------------------------------------------------------------------------------- launches */

typedef struct pass {
    const attune__vulkan_pipeline *pipeline;
    uint64_t arguments; /* address */
    uint64_t workgroups;
    double flops;     /* of a workgroup */
    bool waits;       /* for the passes before */
    const char *what; /* a workgroup has */
} pass;

typedef struct run {
    const attune__vulkan_program *program;
    const attune__backward *call;
    attune_vulkan_arguments arguments;
    attune_vulkan_sums sums[ATTUNE_EXPR_MAX_SYMBOLS];
    uint64_t sum_at[ATTUNE_EXPR_MAX_SYMBOLS]; /* by symbol, in the workspace; read where sums are requested */
    uint32_t sum_count;
    attune__shaders_workspace place; /* of the workspace's parts */
    uint64_t sums_size;
    pass passes[4 + ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t pass_count;
} run;

/* The capture gradients that this call requests. */
static attune_status list_sums(run *r)
{
    const attune_expr *score = r->program->score;
    const uint64_t base = attune__vulkan_address(r->call->forward.workspace, r->call->forward.workspace_offset);
    if (!attune__requests_captures(&r->program->shape, r->program->gradient))
        return ATTUNE_OK;
    for (uint32_t i = 0; i < score->symbol_count; i++) {
        const attune_tensor *out = &r->call->d_captures[i];
        if (score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE || !out->buffer)
            continue;
        attune_vulkan_sums *s = &r->sums[r->sum_count++];
        ATTUNE__TRY(attune__vulkan_sums_describe(out, score->symbols[i].name, base + r->place.sums + r->sums_size, s));
        r->sum_at[i] = s->sums;
        r->sums_size += s->count * ATTUNE__SHADERS_SUM;
    }
    return ATTUNE_OK;
}

static void describe(run *r)
{
    const attune__backward *back = r->call;
    const attune__forward *call = &back->forward;
    const attune_plan_choice *choice = &r->program->choice;
    attune_vulkan_arguments *a = &r->arguments;
    const uint64_t store = 4 * attune_dtype_size(back->d_q.dtype);
    attune__vulkan_arguments_describe(call, 16, choice->block_n2, choice->block_m1, a);
    a->d_o = attune__vulkan_tensor_describe(&back->d_o, 16, ATTUNE_VULKAN_ALIGNED_D_O, &a->flags);
    a->d_q = attune__vulkan_tensor_describe(&back->d_q, store, ATTUNE_VULKAN_ALIGNED_D_Q, &a->flags);
    a->d_k = attune__vulkan_tensor_describe(&back->d_k, store, ATTUNE_VULKAN_ALIGNED_D_K, &a->flags);
    a->d_v = attune__vulkan_tensor_describe(&back->d_v, store, ATTUNE_VULKAN_ALIGNED_D_V, &a->flags);
    a->d_lse = attune__vulkan_tensor_describe(&back->d_lse, 1, 0, &a->flags);
    a->d_sinks = attune__vulkan_tensor_address(&back->d_sinks);
    a->d_sinks_h = back->d_sinks.stride[0] * (int64_t)sizeof(float);
    const uint64_t base = attune__vulkan_address(call->workspace, call->workspace_offset);
    a->delta = base;
    a->score_mod = base + r->place.arguments + sizeof *a;
}

static attune_status check_steps(const run *r, const char *what, uint64_t steps, uint32_t most)
{
    if (!most || steps <= most)
        return ATTUNE_OK;
    return attune__fail(ATTUNE_UNSUPPORTED,
                        "device %s: its driver, llvmpipe, stops a workgroup of %s after %u steps, this call has %llu: "
                        "use device cpu",
                        r->program->base.device->info.id, what, most, (unsigned long long)steps);
}

/* Inner rows of a workgroup in one plane, at most; block 0 = there are no lists. */
static uint64_t longest_list(uint32_t blocks, uint32_t block, int64_t length)
{
    const uint64_t listed = (uint64_t)blocks * block;
    return block && listed < (uint64_t)length ? listed : (uint64_t)length;
}

/* Loops that the driver would cut short are refused: a wrong result is worse than none. */
static attune_status check_loops(const run *r)
{
    const attune__forward *call = &r->call->forward;
    const attune__vulkan_program *program = r->program;
    const attune__vulkan_mask *mask = (const attune__vulkan_mask *)call->device_mask;
    const uint64_t keys = longest_list(mask ? mask->longest : 0, mask ? call->mask->kv_block : 0, call->kv_len);
    const uint64_t queries = longest_list(mask ? mask->longest_column : 0, mask ? call->mask->q_block : 0, call->q_len);
    const uint64_t planes =
        (uint64_t)(call->heads / call->kv_heads) * (call->k.size[0] < call->batch ? (uint64_t)call->batch : 1);
    const uint32_t n2 = program->choice.block_n2, m1 = program->choice.block_m1;
    ATTUNE__TRY(check_steps(r, "queries", (keys + n2 - 1) / n2, program->most_steps));
    ATTUNE__TRY(check_steps(r, "keys", planes * ((queries + m1 - 1) / m1 + 1), program->most_key_steps));
    const uint64_t rows = r->call->d_sinks.buffer ? (uint64_t)call->batch * (uint64_t)call->q_len : 0;
    return check_steps(r, "a head's rows", (rows + ATTUNE_VULKAN_SINKS_THREADS - 1) / ATTUNE_VULKAN_SINKS_THREADS,
                       program->most_steps ? MOST_SINKS_STEPS : 0);
}

static attune_status add_pass(run *r, const pass *p)
{
    if (p->workgroups > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu %s, %s takes fewer than 2^32",
                            (unsigned long long)p->workgroups, p->what, r->program->base.device->info.id);
    r->passes[r->pass_count++] = *p;
    return ATTUNE_OK;
}

static attune_status add_passes(run *r)
{
    const attune__forward *call = &r->call->forward;
    const attune__vulkan_program *program = r->program;
    const attune_plan_choice *choice = &program->choice;
    attune_vulkan_arguments *a = &r->arguments;
    const uint64_t base = attune__vulkan_address(call->workspace, call->workspace_offset) + r->place.arguments;
    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    const double d = program->shape.head_dim, dv = program->shape.head_dim_v;
    const bool aligned = a->flags == (1u << 8) - 1;
    const attune__partition c =
        attune__forward_partition(call, choice, false, attune__vulkan_section(program->base.device));
    attune__vulkan_arguments_partition(&c, a);
    const uint64_t key_tiles = (uint64_t)((call->kv_len + choice->block_n1 - 1) / choice->block_n1);
    const double queries = (double)rows / (double)(call->k.size[0] * call->kv_heads);
    ATTUNE__TRY(add_pass(r, &(pass){
                                .pipeline = &program->delta,
                                .arguments = base,
                                .workgroups = (rows + ATTUNE_VULKAN_DELTA_ROWS - 1) / ATTUNE_VULKAN_DELTA_ROWS,
                                .flops = ATTUNE_VULKAN_DELTA_ROWS * 16 * dv, /* the time of its loads, as operations */
                                .what = "rows",
                            }));
    ATTUNE__TRY(add_pass(r, &(pass){
                                .pipeline = aligned ? &program->aligned : &program->forward,
                                .arguments = base,
                                .workgroups = (uint64_t)c.items,
                                .flops = 2.0 * choice->block_m2 * (double)call->kv_len * (2 * d + dv),
                                .waits = true,
                                .what = "tiles of queries",
                            }));
    ATTUNE__TRY(add_pass(r, &(pass){
                                .pipeline = aligned ? &program->keys_aligned : &program->keys,
                                .arguments = base,
                                .workgroups = key_tiles * (uint64_t)(call->k.size[0] * call->kv_heads),
                                .flops = 2.0 * choice->block_n1 * queries * 2 * (d + dv),
                                .what = "tiles of keys",
                            }));
    if (r->call->d_sinks.buffer)
        ATTUNE__TRY(add_pass(r, &(pass){
                                    .pipeline = &program->sinks,
                                    .arguments = base,
                                    .workgroups = (uint64_t)call->heads,
                                    .flops = (double)(call->batch * call->q_len) * 32,
                                    .what = "heads",
                                }));
    const uint64_t table = program->score ? attune__mods_table_size(program->score) : 0;
    for (uint32_t i = 0; i < r->sum_count; i++)
        ATTUNE__TRY(add_pass(
            r, &(pass){
                   .pipeline = &program->sums,
                   .arguments = base + sizeof *a + table + i * sizeof r->sums[0],
                   .workgroups = (r->sums[i].count + ATTUNE_VULKAN_SUMS_ELEMENTS - 1) / ATTUNE_VULKAN_SUMS_ELEMENTS,
                   .flops = ATTUNE_VULKAN_SUMS_ELEMENTS * 256,
                   .waits = i == 0,
                   .what = "elements of captures",
               }));
    return ATTUNE_OK;
}

static attune_status prepare(run *r)
{
    const attune__forward *call = &r->call->forward;
    if ((uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has 2^32 rows or more, device %s takes fewer",
                            r->program->base.device->info.id);
    r->place = attune__shaders_backward_workspace(&r->program->shape);
    ATTUNE__TRY(list_sums(r));
    describe(r);
    ATTUNE__TRY(check_loops(r));
    return add_passes(r);
}

static void record_arguments(const run *r, const attune__vulkan_device *device, VkCommandBuffer commands)
{
    const attune__forward *call = &r->call->forward;
    const attune__vulkan_buffer *workspace = (const attune__vulkan_buffer *)call->workspace;
    attune__vulkan_arguments_record(
        &(attune__vulkan_arguments_block){.call = call,
                                          .score = r->program->score,
                                          .arguments = &r->arguments,
                                          .sums = r->sums,
                                          .sum_count = r->sum_count,
                                          .sum_addresses = r->sum_at,
                                          .buffer = call->workspace,
                                          .offset = call->workspace_offset + r->place.arguments},
        device, commands);
    if (r->sums_size)
        device->vk.CmdFillBuffer(commands, workspace->handle,
                                 workspace->offset + call->workspace_offset + r->place.sums, r->sums_size, 0);
    attune__vulkan_barrier(device, commands);
}

/* Each submission has the launches that its budget allows, and at least one. */
static attune_status submit_all(const run *r, attune__vulkan_device *device, uint64_t *value)
{
    const double budget = attune__vulkan_submission_flops(device);
    double *total = r->call->forward.seconds, left = budget;
    attune__vulkan_slot *slot;
    if (total)
        *total = 0;
    ATTUNE__TRY(attune__vulkan_begin(device, total != NULL, &slot));
    record_arguments(r, device, slot->commands);
    for (uint32_t i = 0; i < r->pass_count; i++) {
        const pass *p = &r->passes[i];
        if (p->waits)
            attune__vulkan_barrier(device, slot->commands);
        for (uint64_t first = 0; first < p->workgroups;) {
            if (left < p->flops && left < budget) {
                ATTUNE__TRY(attune__vulkan_end(device, slot, total, value));
                ATTUNE__TRY(attune__vulkan_begin(device, total != NULL, &slot));
                left = budget;
            }
            const double fit = left / p->flops, rest = (double)(p->workgroups - first);
            const uint64_t count = fit >= rest ? p->workgroups - first : fit < 1 ? 1 : (uint64_t)fit;
            attune__vulkan_dispatch(device, slot->commands, p->pipeline, p->arguments, first, first + count);
            first += count;
            left -= (double)count * p->flops;
        }
    }
    return attune__vulkan_end(device, slot, total, value);
}

attune_status attune__vulkan_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                      uint64_t *value)
{
    (void)queue; /* a device has one */
    run r = {.program = (const attune__vulkan_program *)program, .call = call};
    ATTUNE__TRY(prepare(&r));
    return submit_all(&r, attune__vulkan_of(program->device), value);
}

attune_status attune__vulkan_backward_record(const attune__program *program, const void *commands,
                                             const attune__backward *call)
{
    run r = {.program = (const attune__vulkan_program *)program, .call = call};
    ATTUNE__TRY(prepare(&r));
    const attune__vulkan_device *device = attune__vulkan_of(program->device);
    const VkCommandBuffer borrowed = *(const VkCommandBuffer *)commands;
    /* The queue's command buffers begin with a barrier. */
    attune__vulkan_barrier(device, borrowed);
    record_arguments(&r, device, borrowed);
    for (uint32_t i = 0; i < r.pass_count; i++) {
        if (r.passes[i].waits)
            attune__vulkan_barrier(device, borrowed);
        attune__vulkan_dispatch(device, borrowed, r.passes[i].pipeline, r.passes[i].arguments, 0,
                                r.passes[i].workgroups);
    }
    return ATTUNE_OK;
}

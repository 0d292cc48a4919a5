/* SPDX-License-Identifier: MIT */
/*
 * The backward pass: the kernels of shaders/opencl/backward*.cl and a call's launches. Delta comes first; then dQ with
 * the capture gradients, and dK with dV; then the sums of captures are added to the caller's tensors.
 */
#include "opencl/program.h"

#include "base/error.h"
#include "opencl/family.h"

/* Pointers of backward kernels between those of all kernels and the captures. */
#define MORE_POINTERS 6

_Static_assert(sizeof(attune_opencl_arguments) +
                       (ATTUNE__OPENCL_POINTERS + MORE_POINTERS + ATTUNE_EXPR_MAX_SYMBOLS) * sizeof(uint64_t) <=
                   ATTUNE__OPENCL_ARGUMENTS,
               "every device takes the arguments, with the captures of a score");

/* --------------------------------------------------------------------------------------------------------- programs */

/* The tile of the kernel for dK and dV (`keys`) or of the one for dQ: the outer rows and the inner ones. */
static attune__opencl_tile tile_of(const attune_plan_choice *c, bool keys)
{
    return keys ? (attune__opencl_tile){c->workgroup_invocations, c->block_n1, c->block_m1}
                : (attune__opencl_tile){c->workgroup_invocations, c->block_m2, c->block_n2};
}

static attune__opencl_text begin_text(const attune__opencl_device *device, const attune__program_desc *desc,
                                      const char *file, const attune__opencl_tile *tile, bool keys, bool aligned)
{
    attune__opencl_text text = attune__opencl_text_begin(device, desc, file, tile, aligned);
    attune__opencl_add_define(&text, "KEYS", keys);
    /* The kernel for dQ alone adds them. */
    attune__opencl_add_define(&text, "CAPTURES", !keys && attune__requests_captures(desc->shape, desc->gradient));
    return text;
}

static attune_status build_pass(attune__opencl_device *device, const attune__program_desc *desc,
                                const attune__opencl_family *family, bool keys, bool aligned,
                                attune__opencl_kernel *kernel)
{
    const attune__opencl_tile tile = tile_of(desc->choice, keys);
    attune__opencl_text text = begin_text(device, desc, family->backward.file, &tile, keys, aligned);
    ATTUNE__TRY(family->define_backward(device, desc, &tile, keys, &text));
    ATTUNE__TRY(
        attune__opencl_kernel_build(device, &text, family->backward.name, tile.threads, desc->invocations, kernel));
    return attune__opencl_launch_empty(device, kernel, MORE_POINTERS, desc->score);
}

static attune_status build_delta(attune__opencl_device *device, const attune__program_desc *desc,
                                 attune__opencl_program *program)
{
    attune__opencl_kernel *delta = &program->delta;
    const attune__opencl_tile tile = {ATTUNE_OPENCL_DELTA_THREADS, desc->choice->block_m2, desc->choice->block_n2};
    attune__opencl_text text = begin_text(device, desc, "backward_delta.cl", &tile, false, false);
    text.mask = NULL;
    text.gradient = NULL;
    attune__opencl_add_define(&text, "SINKS", desc->shape->sinks);
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, "attune_backward_delta", tile.threads, NULL, delta));
    if (desc->shape->sinks) {
        ATTUNE__TRY(attune__opencl_kernel_also(device, delta, "attune_backward_sinks", tile.threads, &program->sinks));
        ATTUNE__TRY(attune__opencl_launch_empty(device, &program->sinks, MORE_POINTERS, desc->score));
    }
    return attune__opencl_launch_empty(device, delta, MORE_POINTERS, desc->score);
}

static void set_sums(attune__opencl_setter *setter, const attune_opencl_sums *sums, const attune_buffer *workspace,
                     const attune_buffer *to)
{
    attune__opencl_set(setter, sizeof *sums, sums);
    attune__opencl_set_memory(setter, workspace);
    attune__opencl_set_memory(setter, to);
}

static attune_status first_sums(attune__opencl_device *device, attune__opencl_kernel *kernel)
{
    const attune_opencl_sums none = {.count = 0};
    attune__opencl_setter setter = {.device = device, .kernel = kernel->handle};
    set_sums(&setter, &none, NULL, NULL);
    return attune__opencl_kernel_first(device, kernel, setter.error);
}

static attune_status build_sums(attune__opencl_device *device, attune__opencl_program *program)
{
    attune__opencl_text text = {.file = "backward_sums.cl", .host = device->base.info.limits.host, .fma = device->fma};
    attune__opencl_add_define(&text, "THREADS", ATTUNE_OPENCL_SUMS_ELEMENTS);
    ATTUNE__TRY(attune__opencl_kernel_build(device, &text, "attune_clear_sums", ATTUNE_OPENCL_SUMS_ELEMENTS, NULL,
                                            &program->clear_sums));
    ATTUNE__TRY(attune__opencl_kernel_also(device, &program->clear_sums, "attune_add_sums", ATTUNE_OPENCL_SUMS_ELEMENTS,
                                           &program->add_sums));
    ATTUNE__TRY(first_sums(device, &program->clear_sums));
    return first_sums(device, &program->add_sums);
}

attune_status attune__opencl_backward_build(attune__opencl_device *device, const attune__program_desc *desc,
                                            const attune__opencl_family *family, attune__opencl_program *program)
{
    ATTUNE__TRY(build_pass(device, desc, family, false, false, &program->forward));
    ATTUNE__TRY(build_pass(device, desc, family, true, false, &program->keys));
    if (attune__opencl_has_aligned(device, family)) {
        ATTUNE__TRY(build_pass(device, desc, family, false, true, &program->aligned));
        ATTUNE__TRY(build_pass(device, desc, family, true, true, &program->keys_aligned));
    }
    ATTUNE__TRY(build_delta(device, desc, program));
    return attune__requests_captures(desc->shape, desc->gradient) ? build_sums(device, program) : ATTUNE_OK;
}

/* --------------------------------------------------------------------------------------------------------- launches */

typedef struct pass {
    const attune__opencl_kernel *kernel;
    attune_opencl_sums *sums; /* NULL: an attention kernel */
    const attune_buffer *to;  /* of the sums */
    uint64_t workgroups;
    double flops;     /* of a workgroup */
    const char *what; /* a workgroup has */
} pass;

typedef struct run {
    attune__opencl_program *program;
    const attune__backward *call;
    attune_opencl_arguments arguments;
    attune_opencl_sums sums[ATTUNE_EXPR_MAX_SYMBOLS];
    const attune_buffer *sums_to[ATTUNE_EXPR_MAX_SYMBOLS];
    int64_t sums_at[ATTUNE_EXPR_MAX_SYMBOLS]; /* by symbol, in the workspace's object; -1 = not requested */
    uint32_t sum_count;
    pass passes[4 + 2 * ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t pass_count;
} run;

static int64_t workspace_at(const run *r, uint64_t offset)
{
    const attune__forward *call = &r->call->forward;
    return (int64_t)(attune__opencl_buffer_of(call->workspace)->offset + call->workspace_offset + offset);
}

/* The capture gradients that this call requests, whose sums are in the workspace from `offset` on. */
static attune_status list_sums(run *r, uint64_t offset)
{
    const attune_expr *score = r->program->score;
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        r->sums_at[i] = -1;
    if (!attune__requests_captures(&r->program->shape, r->program->gradient))
        return ATTUNE_OK;
    for (uint32_t i = 0; i < score->symbol_count; i++) {
        const attune_tensor *out = &r->call->d_captures[i];
        if (score->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE || !out->buffer)
            continue;
        r->sums_to[r->sum_count] = out->buffer;
        attune_opencl_sums *s = &r->sums[r->sum_count++];
        ATTUNE__TRY(attune__opencl_sums_describe(out, score->symbols[i].name, workspace_at(r, offset), s));
        r->sums_at[i] = s->sums;
        offset += s->count * ATTUNE__SHADERS_SUM;
    }
    return ATTUNE_OK;
}

static attune_status describe(run *r)
{
    const attune__backward *back = r->call;
    const attune__forward *call = &back->forward;
    const attune_plan_choice *choice = &r->program->choice;
    const attune__shaders_workspace place = attune__shaders_backward_workspace(&r->program->shape);
    attune_opencl_arguments *a = &r->arguments;
    const uint64_t store = 4 * attune_dtype_size(back->d_q.dtype);
    attune__opencl_arguments_describe(call, 16, choice->block_n2, choice->block_m1, a);
    a->d_o = attune__opencl_tensor_describe(&back->d_o, 16, ATTUNE_OPENCL_ALIGNED_D_O, &a->flags);
    a->d_q = attune__opencl_tensor_describe(&back->d_q, store, ATTUNE_OPENCL_ALIGNED_D_Q, &a->flags);
    a->d_k = attune__opencl_tensor_describe(&back->d_k, store, ATTUNE_OPENCL_ALIGNED_D_K, &a->flags);
    a->d_v = attune__opencl_tensor_describe(&back->d_v, store, ATTUNE_OPENCL_ALIGNED_D_V, &a->flags);
    a->d_lse = attune__opencl_tensor_describe(&back->d_lse, 1, ATTUNE_OPENCL_HAS_D_LSE, &a->flags);
    if (back->d_sinks.buffer) {
        a->d_sinks = (int64_t)(attune__opencl_buffer_of(back->d_sinks.buffer)->offset + back->d_sinks.offset);
        a->d_sinks_h = back->d_sinks.stride[0] * (int64_t)sizeof(float);
    }
    a->delta = workspace_at(r, 0);
    a->score_table = workspace_at(r, place.arguments);
    return list_sums(r, place.sums);
}

static attune_status add_pass(run *r, const pass *p)
{
    if (p->workgroups > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has %llu %s, %s takes fewer than 2^32",
                            (unsigned long long)p->workgroups, p->what, r->program->base.device->info.id);
    r->passes[r->pass_count++] = *p;
    return ATTUNE_OK;
}

static attune_status add_sums(run *r, const attune__opencl_kernel *kernel)
{
    for (uint32_t i = 0; i < r->sum_count; i++)
        ATTUNE__TRY(add_pass(
            r, &(pass){
                   .kernel = kernel,
                   .sums = &r->sums[i],
                   .to = r->sums_to[i],
                   .workgroups = (r->sums[i].count + ATTUNE_OPENCL_SUMS_ELEMENTS - 1) / ATTUNE_OPENCL_SUMS_ELEMENTS,
                   .flops = ATTUNE_OPENCL_SUMS_ELEMENTS * 256,
                   .what = "elements of captures",
               }));
    return ATTUNE_OK;
}

static attune_status add_passes(run *r)
{
    const attune__forward *call = &r->call->forward;
    const attune__opencl_program *program = r->program;
    const attune_plan_choice *choice = &program->choice;
    const uint64_t rows = (uint64_t)call->batch * (uint64_t)call->heads * (uint64_t)call->q_len;
    const double d = program->shape.head_dim, dv = program->shape.head_dim_v;
    const uint32_t all = (1u << 8) - 1; /* the ALIGNED flags */
    const bool aligned = program->aligned.handle && (r->arguments.flags & all) == all;
    const attune__partition c =
        attune__forward_partition(call, choice, false, attune__opencl_section(program->base.device));
    attune__opencl_arguments_partition(&c, &r->arguments);
    const uint64_t key_tiles = (uint64_t)((call->kv_len + choice->block_n1 - 1) / choice->block_n1);
    const double queries = (double)rows / (double)(call->k.size[0] * call->kv_heads);
    ATTUNE__TRY(add_sums(r, &program->clear_sums));
    ATTUNE__TRY(add_pass(r, &(pass){
                                .kernel = &program->delta,
                                .workgroups = (rows + ATTUNE_OPENCL_DELTA_ROWS - 1) / ATTUNE_OPENCL_DELTA_ROWS,
                                .flops = ATTUNE_OPENCL_DELTA_ROWS * 16 * dv, /* the time of its loads, as operations */
                                .what = "rows",
                            }));
    if (r->call->d_sinks.buffer)
        ATTUNE__TRY(add_pass(r, &(pass){
                                    .kernel = &program->sinks,
                                    .workgroups = (uint64_t)call->heads,
                                    .flops = (double)(call->batch * call->q_len) * 32,
                                    .what = "heads",
                                }));
    ATTUNE__TRY(add_pass(r, &(pass){
                                .kernel = aligned ? &program->aligned : &program->forward,
                                .workgroups = (uint64_t)c.items,
                                .flops = 2.0 * choice->block_m2 * (double)call->kv_len * (2 * d + dv),
                                .what = "tiles of queries",
                            }));
    ATTUNE__TRY(add_pass(r, &(pass){
                                .kernel = aligned ? &program->keys_aligned : &program->keys,
                                .workgroups = key_tiles * (uint64_t)(call->k.size[0] * call->kv_heads),
                                .flops = 2.0 * choice->block_n1 * queries * 2 * (d + dv),
                                .what = "tiles of keys",
                            }));
    return add_sums(r, &program->add_sums);
}

static void set_arguments(run *r, const pass *p, attune__opencl_setter *setter)
{
    const attune__backward *back = r->call;
    if (p->sums) {
        set_sums(setter, p->sums, back->forward.workspace, p->to);
        return;
    }
    attune__opencl_set_forward(setter, &r->arguments, &back->forward);
    attune__opencl_set_memory(setter, back->d_o.buffer);
    attune__opencl_set_memory(setter, back->d_lse.buffer);
    attune__opencl_set_memory(setter, back->d_q.buffer);
    attune__opencl_set_memory(setter, back->d_k.buffer);
    attune__opencl_set_memory(setter, back->d_v.buffer);
    attune__opencl_set_memory(setter, back->d_sinks.buffer);
    attune__opencl_set_captures(setter, r->program->score, back->forward.captures);
}

/* Under the program's lock. */
static void launch_pass(run *r, const pass *p, attune__opencl_call *commands)
{
    attune__opencl_device *device = attune__opencl_of(r->program->base.device);
    const uint64_t most = attune__opencl_launch_most(device, p->workgroups, p->flops);
    for (uint64_t first = 0; first < p->workgroups; first += most) {
        const uint64_t count = p->workgroups - first < most ? p->workgroups - first : most;
        attune__opencl_setter setter = {.device = device, .kernel = p->kernel->handle};
        *(p->sums ? &p->sums->first : &r->arguments.first) = (uint32_t)first;
        set_arguments(r, p, &setter);
        if (commands->status == ATTUNE_OK)
            commands->status = attune__opencl_check(device, setter.error, "clSetKernelArg");
        attune__opencl_launch(commands, p->kernel->handle, count, p->kernel->threads);
    }
}

attune_status attune__opencl_backward(const attune__program *program, attune_queue *queue, const attune__backward *call,
                                      uint64_t *value)
{
    attune__opencl_program *mine = (attune__opencl_program *)(uintptr_t)program;
    const attune__forward *forward = &call->forward;
    run r = {.program = mine, .call = call};
    attune__opencl_call commands;
    if ((uint64_t)forward->batch * (uint64_t)forward->heads * (uint64_t)forward->q_len > UINT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the call has 2^32 rows or more, device %s takes fewer",
                            program->device->info.id);
    ATTUNE__TRY(describe(&r));
    ATTUNE__TRY(add_passes(&r));
    pthread_mutex_lock(&mine->lock);
    attune__opencl_begin((attune__opencl_queue *)queue, &commands);
    if (mine->score) {
        attune_opencl_table table;
        attune__opencl_table_of(forward, mine->score, forward->captures, forward->parameters, r.sums_at, &table);
        attune__opencl_table(&commands, attune__opencl_buffer_of(forward->workspace)->memory,
                             (uint64_t)r.arguments.score_table, &table, sizeof table);
    }
    for (uint32_t i = 0; i < r.pass_count; i++)
        launch_pass(&r, &r.passes[i], &commands);
    pthread_mutex_unlock(&mine->lock);
    return attune__opencl_end(&commands, value, forward->seconds);
}

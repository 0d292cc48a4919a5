/* SPDX-License-Identifier: MIT */
/* A problem's calls through the public API, each held against what the oracle expects. */
#include "random/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------- calling */

/* Fields that both passes have. */
#define COMMON_ARGUMENTS(p, c, b)                                                                                      \
    .q = (b)->tensors[Q][0].tensor, .k = (b)->tensors[K][0].tensor, .v = (b)->tensors[V][0].tensor,                    \
    .o = (b)->tensors[O][0].tensor, .lse = (b)->tensors[LSE][0].tensor, .mask = (p)->segments ? NULL : (b)->masks[0],  \
    .captures = (b)->named, .capture_count = (b)->capture_count, .parameters = (b)->parameters,                        \
    .parameter_count = (b)->parameter_count, .workspace = (b)->workspace,                                              \
    .workspace_offset = (uint64_t)(c)->workspace_offset * 256, .seconds = (c)->seconds ? &(b)->seconds : NULL,         \
    .segments = (p)->segments ? (b)->segments : NULL,                                                                  \
    .segment_count = (p)->segments ? (uint32_t)(c)->segment_count : 0, .sinks = (b)->tensors[SINKS][0].tensor

static void arguments_of(const problem *p, const call *c, fixture *b, arguments *a)
{
    a->back = p->direction == ATTUNE_BACKWARD;
    a->workspace = b->workspace_size;
    a->forward = (attune_forward_args){
        .struct_size = sizeof a->forward, COMMON_ARGUMENTS(p, c, b), .row_max = b->tensors[ROW_MAX][0].tensor};
    a->backward = (attune_backward_args){.struct_size = sizeof a->backward,
                                         COMMON_ARGUMENTS(p, c, b),
                                         .d_o = b->tensors[D_O][0].tensor,
                                         .d_lse = b->tensors[D_LSE][0].tensor,
                                         .d_q = b->tensors[D_Q][0].tensor,
                                         .d_k = b->tensors[D_K][0].tensor,
                                         .d_v = b->tensors[D_V][0].tensor,
                                         .d_sinks = b->tensors[D_SINKS][0].tensor,
                                         .capture_gradients = b->wanted,
                                         .capture_gradient_count = b->wanted_count};
}

/* Arrays of their own, which may change. */
static void own_arrays(const fixture *b, arguments *a)
{
    memcpy(a->segments, b->segments, sizeof a->segments);
    memcpy(a->captures, b->named, sizeof a->captures);
    memcpy(a->parameters, b->parameters, sizeof a->parameters);
    if (a->forward.segments)
        a->forward.segments = a->backward.segments = a->segments;
    a->forward.captures = a->backward.captures = a->captures;
    a->forward.parameters = a->backward.parameters = a->parameters;
}

static void say_call(const runner *r, const problem *p, const call *c, const fixture *b)
{
    const bool back = p->direction == ATTUNE_BACKWARD;
    if (!r->code)
        return;
    for (int which = 0; which < 2; which++) {
        say(r, "    attune_capture %s[] = {", which ? "gradients" : "captures");
        const attune_capture *list = which ? b->wanted : b->named;
        for (uint32_t i = 0; i < (which ? b->wanted_count : b->capture_count); i++)
            if (list[i].tensor.rank)
                say(r, "{\"%s\", %s%s}, ", list[i].name, which ? "d_" : "", list[i].name);
            else
                say(r, "{\"%s\", {0}}, ", list[i].name);
        say(r, "{NULL, {0}}};\n");
    }
    say(r, "    attune_parameter parameters[] = {");
    for (uint32_t i = 0; i < b->parameter_count; i++)
        say(r, "{\"%s\", %.17g}, ", b->parameters[i].name, b->parameters[i].value);
    say(r, "{NULL, 0}};\n    (void)captures, (void)gradients, (void)parameters;\n");
    if (p->segments) {
        say(r, "    attune_segment segments[] = {");
        for (int s = 0; s < c->segment_count; s++) {
            say(r, "{.k = k%d, .v = v%d, ", s, s);
            if (p->mask)
                say(r, ".mask = mask%d, ", s);
            say(r, back ? ".d_k = d_k%d, .d_v = d_v%d}, " : "}, ", s, s);
        }
        say(r, "};\n");
    }
    say(r, "    attune_%s_args args = {.struct_size = sizeof args, .q = q, .k = k0, .v = v0, .o = o,\n",
        back ? "backward" : "forward");
    if (back)
        say(r,
            "        .lse = lse, .d_o = d_o, .d_q = d_q, .d_k = d_k0, .d_v = d_v0,%s .capture_gradients = gradients, "
            ".capture_gradient_count = %u,\n",
            c->want_d_lse ? " .d_lse = d_lse," : "", b->wanted_count);
    else
        say(r, "        %s%s\n", c->want_lse ? ".lse = lse, " : "", c->want_row_max ? ".row_max = row_max," : "");
    if (p->mask && !p->segments)
        say(r, "        .mask = mask0,\n");
    if (p->sinks)
        say(r, "        .sinks = sinks,%s\n", back && c->want_d_sinks ? " .d_sinks = d_sinks," : "");
    if (p->segments)
        say(r, "        .segments = segments, .segment_count = %d,\n", c->segment_count);
    say(r,
        "        .captures = captures, .capture_count = %u, .parameters = parameters, .parameter_count = %u,\n"
        "        .workspace = workspace, .workspace_offset = %u};\n",
        b->capture_count, b->parameter_count, c->workspace_offset * 256);
    say(r,
        "    attune_completion done;\n    TRY(attune_%s(plan, attune_device_queue(device), &args, &done));\n"
        "    TRY(attune_completion_wait(done, UINT64_MAX));\n",
        back ? "backward" : "forward");
}

static attune_status launch(runner *r, const attune_plan *plan, const arguments *a)
{
    attune_completion done;
    attune_queue *queue = attune_device_queue(r->device);
    const attune_status status =
        a->back ? attune_backward(plan, queue, &a->backward, &done) : attune_forward(plan, queue, &a->forward, &done);
    return status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
}

/* -------------------------------------------------------------------------------------------------------- comparing */

static bool right(double got, double wanted, double bound)
{
    if (bound == INFINITY)
        return true;
    if (isnan(wanted))
        return isnan(got);
    return isinf(wanted) ? got == wanted : fabs(got - wanted) <= 1.25 * bound;
}

static void say_check(const runner *r, const char *name, int64_t at, double wanted, double bound)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.17g", wanted);
    const char *value = isnan(wanted) ? "NAN" : isinf(wanted) ? (wanted > 0 ? "INFINITY" : "-INFINITY") : text;
    say(r, "    failures += check(\"%s\", &%s, %lld, %s, %.17g);\n", name, name, (long long)at, value,
        isnan(wanted) ? -1 : bound);
}

/* `first` counts along dimension 2 of what is expected, `start` (if not NULL) is what the output held before. */
static bool compare(runner *r, const placed *t, const expected *e, int64_t first, const double *start, finding *f)
{
    int64_t count = 1, wrong = 0, worst = 0;
    for (uint32_t i = 0; i < t->tensor.rank; i++)
        count *= t->tensor.size[i];
    double *got = calloc((size_t)count, sizeof *got), ratio = -1;
    bool untouched;
    if (!got)
        abort();
    const attune_status status = collect(t, got, &untouched);
    if (status != ATTUNE_OK || !untouched) {
        free(got);
        return status != ATTUNE_OK ? failed_call(f, "reading a result", status)
                                   : fail(f, "canary", "%s: bytes outside the output were written", t->name);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        if (t->tensor.rank == 4 && e->value.size[2] != t->tensor.size[2]) {
            const int64_t width = t->tensor.size[3], length = t->tensor.size[2];
            at = ((i / width / length) * e->value.size[2] + first + i / width % length) * width + i % width;
        }
        const double wanted = e->value.at[at] + (start ? start[i] : 0);
        const double bound = e->bound[at] + (start && isfinite(wanted) ? 4 * 0x1p-24 * fabs(wanted) : 0);
        r->undecided += bound == INFINITY;
        if (right(got[i], wanted, bound))
            continue;
        const double off = isfinite(wanted) && isfinite(got[i]) ? fabs(got[i] - wanted) / (bound + 1e-300) : INFINITY;
        if (!wrong++ || off > ratio) {
            ratio = off;
            worst = i;
            f->got = got[i];
            f->wanted = wanted;
            f->bound = bound;
        }
        if (wrong <= 8)
            say_check(r, t->name, i, wanted, bound);
    }
    r->elements += (uint64_t)count;
    free(got);
    if (!wrong)
        return true;
    f->at = worst;
    int64_t index[ATTUNE_MAX_RANK] = {0}, rest = worst;
    for (uint32_t i = t->tensor.rank; i-- > 0; rest /= t->tensor.size[i])
        index[i] = rest % t->tensor.size[i];
    return fail(f, t->name, "%s[%lld,%lld,%lld,%lld]: got %.9g, expected %.9g within %.3g; %lld of %lld elements wrong",
                t->name, (long long)index[0], (long long)index[1], (long long)index[2], (long long)index[3], f->got,
                f->wanted, f->bound, (long long)wrong, (long long)count);
}

static bool same_inputs(fixture *b, bool outputs_too, bool back, finding *f)
{
    for (int role = 0; role < ROLES; role++) {
        const bool output = back ? role >= D_Q : role == O || role == LSE || role == ROW_MAX;
        for (int s = 0; s < SEGMENTS; s++) {
            bool same = true;
            if (!b->tensors[role][s].bytes || (output && !outputs_too))
                continue;
            if (unchanged(&b->tensors[role][s], &same) != ATTUNE_OK || !same)
                return fail(f, "touched", "%s was written to", b->tensors[role][s].name);
        }
    }
    for (int s = 0; s < SYMBOLS; s++) {
        bool same = true;
        if (b->captures[s].bytes && (unchanged(&b->captures[s], &same) != ATTUNE_OK || !same))
            return fail(f, "touched", "%s was written to", b->captures[s].name);
        if (outputs_too && b->d_captures[s].bytes && (unchanged(&b->d_captures[s], &same) != ATTUNE_OK || !same))
            return fail(f, "touched", "%s was written to", b->d_captures[s].name);
    }
    return true;
}

static bool compare_all(runner *r, const problem *p, const call *c, const call_data *d, fixture *b, finding *f)
{
    bool ok = true;
    finding none = *f;
    if (p->direction == ATTUNE_FORWARD) {
        ok = compare(r, &b->tensors[O][0], &d->out_o, 0, NULL, f);
        if (c->want_lse)
            ok &= compare(r, &b->tensors[LSE][0], &d->out_lse, 0, NULL, ok ? f : &none);
        if (c->want_row_max)
            ok &= compare(r, &b->tensors[ROW_MAX][0], &d->out_row_max, 0, NULL, ok ? f : &none);
        return ok && same_inputs(b, false, false, f);
    }
    ok = compare(r, &b->tensors[D_Q][0], &d->out_d_q, 0, NULL, f);
    for (int s = 0; s < segments_of(c); s++) {
        ok &= compare(r, &b->tensors[D_K][s], &d->out_d_k, segment_start(c, s), NULL, ok ? f : &none);
        ok &= compare(r, &b->tensors[D_V][s], &d->out_d_v, segment_start(c, s), NULL, ok ? f : &none);
    }
    if (b->tensors[D_SINKS][0].bytes)
        ok &= compare(r, &b->tensors[D_SINKS][0], &d->out_d_sinks, 0, NULL, ok ? f : &none);
    for (int s = 0; s < SYMBOLS; s++)
        if (b->d_captures[s].bytes)
            ok &= compare(r, &b->d_captures[s], &d->out_d_captures[s], 0, b->start[s], ok ? f : &none);
    return ok && same_inputs(b, false, true, f);
}

/* The same call again: the same bits. */
static bool repeat(runner *r, const problem *p, const call *c, const attune_plan *plan, fixture *b, finding *f)
{
    attune_plan_choice choice = {.struct_size = sizeof choice};
    if (attune_plan_choice_get(plan, &choice) != ATTUNE_OK)
        return fail(f, "choice", "attune_plan_choice_get: %s", attune_last_error());
    if (p->direction == ATTUNE_BACKWARD && (!choice.deterministic || b->wanted_count))
        return true;
    arguments a;
    arguments_of(p, c, b, &a);
    const attune_status status = launch(r, plan, &a);
    if (status != ATTUNE_OK)
        return failed_call(f, "a repeated call", status);
    finding other = {0};
    return same_inputs(b, true, p->direction == ATTUNE_BACKWARD, &other) ||
           fail(f, "repeat", "the same call gives other bits: %s", other.what);
}

/* Something of the call is changed: it is refused with a message and nothing is written, or harmless. */
static bool mutated(runner *r, const problem *p, const call *c, const attune_plan *plan, const attune_expr *score,
                    fixture *b, finding *f)
{
    int live = -1;
    for (uint32_t i = 0; i < b->capture_count; i++)
        live = read_by(score, b->named[i].name) ? (int)i : live;
    for (int i = 0; i < 6; i++) {
        arguments a;
        const char *what = "";
        arguments_of(p, c, b, &a);
        own_arrays(b, &a);
        a.capture = live;
        a.mask_parameter = b->mask_parameter;
        if (!mutate(p, c, mix(c->seed, (uint64_t)(100 + c->mutation * 8 + i)), &a, &what))
            continue;
        const attune_status status = launch(r, plan, &a);
        if (status == ATTUNE_OK)
            return fail(f, "accepted", "a call is accepted that must not be: %s", what);
        if (!*attune_last_error() || status == ATTUNE_INTERNAL)
            return fail(f, "message", "%s: %s, \"%s\"", what, attune_status_string(status), attune_last_error());
        if (!same_inputs(b, true, p->direction == ATTUNE_BACKWARD, f))
            return false;
        r->refused++;
    }
    return true;
}

/* Before its first tensor a mask is in no call. An update that is refused leaves it as it was. */
static bool update_masks(runner *r, const call *c, const attune_plan *plan, const arguments *a, fixture *b, finding *f)
{
    attune_queue *queue = attune_device_queue(r->device);
    for (int s = 0; s < segments_of(c); s++) {
        if (!b->updated[s]) {
            const attune_status early = launch(r, plan, a);
            if (early == ATTUNE_OK)
                return fail(f, "accepted", "a call is accepted before its mask's first update");
            if (!same_inputs(b, true, a->back, f))
                return false;
        }
        attune_status status = attune_mask_update(b->masks[s], queue, &b->followed[s].tensor, NULL);
        say(r, "    TRY(attune_mask_update(mask%d, attune_device_queue(device), &followed%d, NULL));\n", s, s);
        if (status != ATTUNE_OK)
            return failed_call(f, "attune_mask_update", status);
        b->updated[s] = true;
        attune_tensor wrong = b->followed[s].tensor;
        if (c->seed % 5 == 0)
            wrong.size[c->seed / 5 % 4] += c->seed / 20 % 2 ? 1 << 20 : -wrong.size[c->seed / 5 % 4];
        else if (c->seed % 5 == 1)
            wrong.dtype = wrong.dtype == ATTUNE_I32 ? ATTUNE_I64 : ATTUNE_I32;
        else if (c->seed % 5 == 2)
            wrong.buffer = NULL;
        else
            continue;
        status = attune_mask_update(b->masks[s], queue, &wrong, NULL);
        if (status == ATTUNE_OK || !*attune_last_error())
            return fail(f, "accepted", "a tensor is accepted that its mask was not made for");
        r->refused++;
    }
    return true;
}

static bool run_call(runner *r, const problem *p, const call *c, attune_expr *const exprs[3], const attune_plan *plan,
                     call_data *d, fixture *b, finding *f)
{
    for (int s = 0; s < segments_of(c); s++)
        if (p->mask && !b->masks[s] && !make_mask(r, p, c, d, s, exprs, &b->masks[s], f))
            return false;
    if (!fixture_place(r, p, c, d, exprs, b, f))
        return false;
    for (int s = 0; s < segments_of(c); s++)
        b->segments[s] = (attune_segment){b->tensors[K][s].tensor, b->tensors[V][s].tensor, b->masks[s],
                                          b->tensors[D_K][s].tensor, b->tensors[D_V][s].tensor};
    b->workspace_size = attune_plan_workspace_size(plan);
    say(r, "    attune_buffer *workspace = NULL;\n");
    if (b->workspace_size) {
        const uint64_t size = b->workspace_size + (uint64_t)c->workspace_offset * 256;
        attune_status status = attune_buffer_create(r->device, size, &b->workspace);
        say(r, "    TRY(attune_buffer_create(device, attune_plan_workspace_size(plan) + %u, &workspace));\n",
            c->workspace_offset * 256);
        /* A workspace's contents must not matter: it is all NaN. */
        unsigned char *noise = malloc(size < 1 << 22 ? size : 1 << 22);
        if (noise)
            memset(noise, 0xff, size < 1 << 22 ? size : 1 << 22);
        for (uint64_t at = 0; noise && status == ATTUNE_OK && at < size; at += 1 << 22)
            status = attune_buffer_write(b->workspace, at, noise, size - at < 1 << 22 ? size - at : 1 << 22);
        free(noise);
        if (status != ATTUNE_OK)
            return failed_call(f, "the workspace", status);
        say(r, "    fill(workspace, %llu);\n", (unsigned long long)size);
    }
    arguments a;
    arguments_of(p, c, b, &a);
    if (p->mask == MASK_TENSOR && !update_masks(r, c, plan, &a, b, f))
        return false;
    say_call(r, p, c, b);
    const attune_status status = launch(r, plan, &a);
    r->calls++;
    if (status != ATTUNE_OK)
        return failed_call(f, p->direction == ATTUNE_FORWARD ? "attune_forward" : "attune_backward", status);
    return compare_all(r, p, c, d, b, f) && (!c->repeat || repeat(r, p, c, plan, b, f)) &&
           (!c->mutation || mutated(r, p, c, plan, exprs[2], b, f));
}

/* -------------------------------------------------------------------------------------------------------------
 * problems */

static int64_t capture_elements(const problem *p)
{
    int64_t elements = 0;
    for (int i = 0; i < p->call_count; i++) {
        const call *c = &p->calls[i];
        int64_t sum = 0;
        for (int s = 0; s < p->score.symbol_count; s++) {
            const tree_symbol *symbol = &p->score.symbols[s];
            int64_t count = symbol->kind == ATTUNE_SYMBOL_CAPTURE;
            for (int k = 0; k < symbol->rank; k++)
                count *= capture_size(p, c, symbol, k);
            sum += count;
        }
        elements = sum > elements ? sum : elements;
    }
    return elements;
}

/* Whether the plan is told the mask's expression. That of a segment's mask that sees the whole is the mask's own. */
static bool told_by_hand(const problem *p)
{
    return p->mask == MASK_EXPR && p->mask_by_hand && (!p->segments || p->calls[0].segment_alone);
}

static void say_plan(const runner *r, const problem *p, const attune_problem *d, const attune_kernel_options *options,
                     bool forced)
{
    if (!r->code)
        return;
    say(r,
        "    attune_problem problem = {.struct_size = sizeof problem, .direction = %d, .dtype = %d, .kv_dtype = %d, "
        ".o_dtype = %d, .head_dim = %u, "
        ".head_dim_v = "
        "%u, .batch = %lld, .kv_batch = %lld,\n        .heads = %lld, .kv_heads = %lld, .q_len = %lld, .kv_len = %lld, "
        ".scale "
        "= %.17g, .lse = %d, .row_max = %d, .capture_gradient_elements = %lld, .segments = %u, .sinks = "
        "%d};\n",
        (int)d->direction, (int)d->dtype, (int)d->kv_dtype, (int)d->o_dtype, d->head_dim, d->head_dim_v,
        (long long)d->batch, (long long)d->kv_batch, (long long)d->heads, (long long)d->kv_heads, (long long)d->q_len,
        (long long)d->kv_len, d->scale, d->lse, d->row_max, (long long)d->capture_gradient_elements, d->segments,
        d->sinks);
    if (p->has_score)
        say(r, "    problem.score = score;\n");
    if (told_by_hand(p))
        say(r,
            "    problem.mask = mask_a, problem.block_mask = %d, problem.mask_q_block = %u, problem.mask_kv_block = "
            "%u;\n",
            d->block_mask, d->mask_q_block, d->mask_kv_block);
    else if (p->mask)
        say(r, "    TRY(attune_problem_set_mask(&problem, mask0));\n");
    const attune_pass_options *const all[] = {&options->any, &options->fwd, &options->bwd};
    static const char *const names[] = {"any", "fwd", "bwd"};
    say(r, "    attune_kernel_options options = {.struct_size = sizeof options};\n");
    for (int i = 0; i < 3; i++) {
        const attune_pass_options *o = all[i];
        say(r,
            "    options.%s = (attune_pass_options){%u, %u, %u, %u, %u, %u, %u, %u, %u, %d, %d, %d, %d, %d, %d, %d, "
            "%d, "
            "\"%s\"};\n",
            names[i], o->block_m, o->block_n, o->block_m1, o->block_n1, o->block_m2, o->block_n2, o->num_warps,
            o->num_stages, o->split_kv, (int)o->force_use_flex_attention, (int)o->prescale_qk,
            (int)o->rows_guaranteed_safe, (int)o->blocks_are_contiguous, (int)o->write_dq, (int)o->use_tma,
            (int)o->deterministic, (int)o->approximate_tanh, o->kernel);
    }
    say(r, "    attune_plan *plan;\n    TRY(attune_plan_create(device, &problem, %s, &plan));\n",
        forced ? "&options" : "NULL");
}

/* NULL, or what no kernel of the backend has: it must be refused. */
static const char *lacking_of(attune_backend backend, const problem *p)
{
    if (backend == ATTUNE_BACKEND_CPU || p->direction != ATTUNE_BACKWARD)
        return NULL;
    if (p->kv_dtype != p->dtype || p->o_dtype != p->dtype)
        return "gradients of mixed types";
    return p->head_dim > 256 || p->head_dim_v > 256 ? "gradients of head dimensions above 256" : NULL;
}

static bool make_plan(runner *r, const problem *p, const attune_mask *mask, attune_expr *const exprs[3],
                      attune_plan **plan, finding *f)
{
    attune_problem d = {.struct_size = sizeof d,
                        .direction = p->direction,
                        .dtype = p->dtype,
                        .kv_dtype = p->kv_dtype == p->dtype && p->seed % 2 ? (attune_dtype)0 : p->kv_dtype,
                        .o_dtype = p->o_dtype == p->dtype && p->seed % 2 ? (attune_dtype)0 : p->o_dtype,
                        .head_dim = p->head_dim,
                        .head_dim_v = p->head_dim_v,
                        .batch = p->batch,
                        .kv_batch = p->kv_batch,
                        .heads = p->heads,
                        .kv_heads = p->kv_heads,
                        .q_len = p->q_len,
                        .kv_len = p->kv_len,
                        .scale = p->scale,
                        .score = p->has_score ? exprs[2] : NULL,
                        .lse = p->lse && p->direction == ATTUNE_FORWARD,
                        .row_max = p->row_max && p->direction == ATTUNE_FORWARD,
                        .capture_gradient_elements = p->direction == ATTUNE_BACKWARD ? capture_elements(p) : 0,
                        .segments = p->segments,
                        .sinks = p->sinks};
    const bool by_hand = told_by_hand(p);
    attune_status status = mask && !by_hand ? attune_problem_set_mask(&d, mask) : ATTUNE_OK;
    if (status != ATTUNE_OK)
        return failed_call(f, "attune_problem_set_mask", status);
    if (by_hand) {
        d.block_mask = p->q_block % 32 == 0;
        d.mask_q_block = p->q_block == 128 && p->kv_block % 32 ? 0 : p->q_block;
        d.mask_kv_block = p->kv_block;
        d.mask = exprs[0];
    }
    const bool back = p->direction == ATTUNE_BACKWARD;
    const attune_pass_options none = {0}, *of_pass = p->options_of_pass ? &p->options : &none,
                              *of_other = p->options_of_pass ? &p->options_of_other : &none;
    attune_kernel_options options = {.struct_size = sizeof options,
                                     .any = p->options_of_pass ? none : p->options,
                                     .fwd = back ? *of_other : *of_pass,
                                     .bwd = back ? *of_pass : *of_other};
    bool forced = p->has_options;
    status = attune_plan_create(r->device, &d, forced ? &options : NULL, plan);
    if (forced && status != ATTUNE_OK) {
        /* Options are drawn without knowledge of what fits: they may be refused, in words. */
        if ((status != ATTUNE_DOES_NOT_FIT && status != ATTUNE_UNSUPPORTED && status != ATTUNE_INVALID_ARGUMENT) ||
            !*attune_last_error())
            return failed_call(f, "attune_plan_create with options", status);
        forced = false;
        r->refused++;
        status = attune_plan_create(r->device, &d, NULL, plan);
    }
    say_plan(r, p, &d, &options, forced);
    const char *lacking = lacking_of(r->backend, p);
    if (lacking) {
        if (status != ATTUNE_UNSUPPORTED || !*attune_last_error())
            return fail(f, "accepted", "%s: %s", lacking, attune_status_string(status));
        r->refused++;
        return true;
    }
    if (status != ATTUNE_OK)
        return failed_call(f, "attune_plan_create", status);
    return check_choice(r, &d, forced ? &options : NULL, *plan, f);
}

/* The call's kernel, for its finding. */
static void name_kernel(const problem *p, const call *c, const attune_plan *plan, finding *f)
{
    attune_plan_choice choice = {.struct_size = sizeof choice};
    /* Each segment's choice is by its own length. */
    if (attune_plan_choice_at(plan, c->q_len, p->segments ? c->segment[0] : c->kv_len, &choice) != ATTUNE_OK)
        return;
    if (p->direction == ATTUNE_FORWARD)
        (void)snprintf(f->kernel, sizeof f->kernel, "%.20s%s %ux%u/%u", choice.kernel, choice.decode ? " decode" : "",
                       choice.block_m, choice.block_n, choice.split_kv);
    else
        (void)snprintf(f->kernel, sizeof f->kernel, "%.20s %ux%u %ux%u", choice.kernel, choice.block_m1,
                       choice.block_n1, choice.block_m2, choice.block_n2);
}

/* The results expected of the plan's kernel. Each segment has a kernel by its own length. */
static void compute_expected(const runner *r, const problem *p, const call *c, const attune_plan *plan, call_data *d)
{
    kernel_kind kind = {.backend = r->backend};
    for (int s = 0; s < segments_of(c) && r->backend == ATTUNE_BACKEND_CPU; s++) {
        attune_plan_choice choice = {.struct_size = sizeof choice};
        if (attune_plan_choice_at(plan, c->q_len, segment_length(c, s), &choice) == ATTUNE_OK)
            kind.matrices = kind.matrices || strcmp(choice.kernel, "cpu") != 0;
    }
    oracle_forward(p, c, kind, d);
    if (p->direction == ATTUNE_BACKWARD)
        oracle_backward(p, c, kind, d);
}

static bool run_on(runner *r, const void *of, finding *f)
{
    const problem *p = of;
    attune_expr *exprs[3] = {NULL};
    attune_plan *plan = NULL;
    attune_mask *following[SEGMENTS] = {NULL};
    bool updated[SEGMENTS] = {false};
    *f = (finding){.call = -1};
    bool ok = make_expressions(r, p, exprs, f), refused = false;
    for (int i = 0; ok && !refused && i < p->call_count; i++) {
        const call *c = &p->calls[i];
        fixture b = {.following = following, .updated = updated};
        call_data d;
        say(r, i ? "    {\n" : "");
        ok = data_create(p, c, &d);
        for (int s = 0; ok && !plan && p->mask == MASK_TENSOR && s < (p->segments ? (int)p->segments : 1); s++)
            ok = make_mask(r, p, c, &d, s, exprs, &following[s], f);
        for (int s = 0; ok && p->mask == MASK_TENSOR && s < SEGMENTS; s++)
            b.masks[s] = following[s];
        if (ok && !plan) {
            ok = check_expressions(r, p, c, &d, exprs, f) &&
                 (!p->mask || b.masks[0] || make_mask(r, p, c, &d, p->segments ? 0 : -1, exprs, &b.masks[0], f)) &&
                 make_plan(r, p, b.masks[0], exprs, &plan, f);
            refused = ok && !plan;
        }
        if (ok && plan) {
            f->call = i;
            name_kernel(p, c, plan, f);
            compute_expected(r, p, c, plan, &d);
            ok = run_call(r, p, c, exprs, plan, &d, &b, f);
        }
        say(r, i ? "    }\n" : "");
        fixture_clear(&b);
        data_destroy(&d);
    }
    attune_plan_destroy(plan);
    for (int s = 0; s < SEGMENTS; s++)
        attune_mask_destroy(following[s]);
    for (int i = 0; i < 3; i++)
        attune_expr_destroy(exprs[i]);
    return ok;
}

bool run_with_threads(runner *r, loop_order threads, bool (*run)(runner *r, const void *of, finding *f), const void *of,
                      finding *f)
{
    if (threads == LOOPS_OWN || !r->pool)
        return run(r, of, f);
    runner engine = *r;
    engine.instance = r->engine;
    engine.device = r->engine_device;
    pool_begin(r->pool, threads);
    bool ok = run(&engine, of, f);
    const char *broken = pool_end(r->pool);
    if (ok && broken)
        ok = fail(f, "parallel_for", "%s", broken);
    r->calls = engine.calls;
    r->elements = engine.elements;
    r->undecided = engine.undecided;
    r->refused = engine.refused;
    return ok;
}

bool run_problem(runner *r, const problem *p, finding *f)
{
    return run_with_threads(r, p->threads, run_on, p, f);
}

bool runner_open(const char *id, runner *r)
{
    *r = (runner){.code = NULL};
    (void)snprintf(r->id, sizeof r->id, "%s", id);
    attune_device_info info = {.struct_size = sizeof info};
    attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 2};
    if (attune_instance_create(&desc, &r->instance) != ATTUNE_OK ||
        attune_device_open(r->instance, id, &r->device) != ATTUNE_OK ||
        attune_device_info_get(r->device, &info) != ATTUNE_OK)
        return false;
    r->backend = info.backend;
    if (r->backend != ATTUNE_BACKEND_CPU)
        return true;
    r->pool = pool_create();
    desc.cpu_threads = POOL_MOST;
    desc.parallel_for = pool_parallel_for(r->pool);
    return attune_instance_create(&desc, &r->engine) == ATTUNE_OK &&
           attune_device_open(r->engine, id, &r->engine_device) == ATTUNE_OK;
}

void runner_close(runner *r)
{
    attune_device_destroy(r->device);
    attune_instance_destroy(r->instance);
    attune_device_destroy(r->engine_device);
    attune_instance_destroy(r->engine);
    pool_destroy(r->pool);
}

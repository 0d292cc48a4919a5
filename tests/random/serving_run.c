/* SPDX-License-Identifier: MIT */
/* Calls over a cache through the public API. Each step is placed twice, with other pages and other garbage, and must
 * have the same bits; those of the first placement are held against the oracle. */
#include "random/serving_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool failed(finding *f, const char *what, attune_status status)
{
    return fail(f, "status", "%s: %s: %s", what, attune_status_string(status), attune_last_error());
}

/* ------------------------------------------------------------------------------------------------------------- plans
 */

static bool make_expression(runner *r, const tree *t, attune_expr_kind kind, attune_expr **expr, finding *f)
{
    static char text[1 << 14];
    attune_symbol symbols[SYMBOLS];
    for (int i = 0; i < t->symbol_count; i++) {
        const tree_symbol *s = &t->symbols[i];
        symbols[i] = (attune_symbol){s->name, s->kind, s->dtype, s->declared_rank ? (uint32_t)s->rank : 0};
    }
    tree_print(t, text, sizeof text);
    const attune_status status = attune_expr_create(r->instance, kind, text, symbols, (uint32_t)t->symbol_count, expr);
    return status == ATTUNE_OK || failed(f, text, status);
}

/* A device refuses in words what it lacks; the CPU lacks nothing. */
static bool make_plan(runner *r, const serving *s, attune_expr *const exprs[2], double scale, attune_plan **plan,
                      finding *f)
{
    const bool short_names = s->seed % 2;
    const attune_problem d = {.struct_size = sizeof d,
                              .dtype = s->dtype,
                              .kv_dtype = s->k_dtype == s->dtype && short_names ? (attune_dtype)0 : s->k_dtype,
                              .v_dtype = s->v_dtype == s->k_dtype && short_names ? (attune_dtype)0 : s->v_dtype,
                              .o_dtype = s->o_dtype == s->dtype && short_names ? (attune_dtype)0 : s->o_dtype,
                              .head_dim = s->head_dim,
                              .head_dim_v = s->head_dim_v,
                              .batch = s->batch,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .q_len = s->q_len,
                              .kv_len = s->kv_len,
                              .scale = scale,
                              .mask = exprs[0],
                              .score = exprs[1],
                              .lse = s->lse,
                              .row_max = s->row_max,
                              .sinks = s->sinks,
                              .tokens = s->tokens,
                              .page = s->page,
                              .tree = s->tree,
                              .split_keys = s->split_keys,
                              .shared_sequences = s->together < s->batch ? s->together : (uint32_t)s->batch};
    const attune_kernel_options options = {.struct_size = sizeof options, .any = s->options};
    attune_status status = ATTUNE_DOES_NOT_FIT;
    if (s->has_options) {
        status = attune_plan_create(r->device, &d, &options, plan);
        r->refused += status != ATTUNE_OK;
        if ((status != ATTUNE_OK && status != ATTUNE_DOES_NOT_FIT && status != ATTUNE_UNSUPPORTED &&
             status != ATTUNE_INVALID_ARGUMENT) ||
            (status != ATTUNE_OK && !*attune_last_error()))
            return failed(f, "attune_plan_create with options", status);
    }
    if (status != ATTUNE_OK)
        status = attune_plan_create(r->device, &d, NULL, plan);
    if (status == ATTUNE_UNSUPPORTED && r->backend != ATTUNE_BACKEND_CPU && *attune_last_error()) {
        (void)snprintf(f->kernel, sizeof f->kernel, "refused");
        r->refused++;
        return true;
    }
    return status == ATTUNE_OK || failed(f, "attune_plan_create", status);
}

static bool same_choice(const attune_plan *a, const attune_plan *b)
{
    attune_plan_choice x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
    return attune_plan_choice_get(a, &x) == ATTUNE_OK && attune_plan_choice_get(b, &y) == ATTUNE_OK &&
           !strcmp(x.kernel, y.kernel) && x.decode == y.decode && x.block_m == y.block_m && x.block_n == y.block_n &&
           x.num_warps == y.num_warps && x.num_stages == y.num_stages && x.split_kv == y.split_kv &&
           x.workspace == y.workspace && x.prescale_qk == y.prescale_qk;
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

static bool launch(runner *r, const attune_plan *plan, const attune_forward_args *args, finding *f)
{
    attune_completion done;
    attune_status status = attune_forward(plan, attune_device_queue(r->device), args, &done);
    status = status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
    r->calls++;
    return status == ATTUNE_OK || failed(f, "attune_forward", status);
}

/* Makes the schedule of a step in a buffer of garbage, if the plan has one. */
static bool schedule(runner *r, const step *c, const attune_plan *plan, fixture *b, finding *f)
{
    const uint64_t size = attune_plan_schedule_size(plan), offset = c->seed % 3 * 256;
    if (!size || b->schedule.bytes)
        return true;
    if (!slab_create(r, size + offset, (int)(c->seed % 2), &b->schedule, f) || !slab_write(&b->schedule, f))
        return false;
    b->args.schedule = b->schedule.buffer;
    b->args.schedule_offset = offset;
    const attune_status status = attune_schedule(plan, attune_device_queue(r->device), &b->args, NULL);
    return status == ATTUNE_OK || failed(f, "attune_schedule", status);
}

/* Outputs as numbers; those of rows that no sequence has must be what the canaries are. */
typedef struct outputs {
    double *at[3];
    int64_t count[3];
} outputs;

static const char *const names[3] = {"o", "lse", "row_max"};

static void outputs_free(outputs *o)
{
    for (int i = 0; i < 3; i++)
        free(o->at[i]);
}

static bool collect_outputs(const fixture *b, outputs *o, finding *f)
{
    *o = (outputs){.count = {0}};
    for (int i = 0; i < 3; i++) {
        const placed *p = &b->out[i];
        bool untouched = true;
        if (!p->bytes)
            continue;
        o->count[i] = 1;
        for (uint32_t k = 0; k < p->tensor.rank; k++)
            o->count[i] *= p->tensor.size[k];
        o->at[i] = calloc((size_t)o->count[i] + 1, sizeof(double));
        if (!o->at[i])
            abort();
        const attune_status status = collect(p, o->at[i], &untouched);
        if (status != ATTUNE_OK)
            return failed(f, "reading a result", status);
        if (!untouched)
            return fail(f, "canary", "%s: bytes outside the output were written", names[i]);
    }
    return true;
}

/* All outputs as no call has written them. */
static bool reset(fixture *b, finding *f)
{
    for (int i = 0; i < 3; i++) {
        placed *p = &b->out[i];
        if (!p->bytes)
            continue;
        memset(p->image, 0xa5, p->bytes);
        const attune_status status = attune_buffer_write(p->tensor.buffer, 0, p->image, p->bytes);
        if (status != ATTUNE_OK)
            return failed(f, "writing an output", status);
    }
    return true;
}

static int64_t row_of(const serving *s, const step_data *d, int64_t at)
{
    if (s->packed)
        return at / s->heads;
    const int64_t rows = d->q.size[2];
    return at / rows / s->heads * rows + at % rows;
}

static double canary_of(attune_dtype dtype)
{
    unsigned char bytes[8];
    memset(bytes, 0xa5, sizeof bytes);
    return element_get(dtype, bytes, 0);
}

static bool right(double got, double wanted, double bound, double canary)
{
    if (bound == INFINITY)
        return true;
    if (bound < 0)
        return got == canary;
    if (isnan(wanted))
        return isnan(got);
    return isinf(wanted) ? got == wanted : fabs(got - wanted) <= 1.25 * bound;
}

static bool compare(runner *r, const serving *s, const step_data *d, const fixture *b, const outputs *o, finding *f)
{
    const expected *const all[3] = {&d->o, &d->lse, &d->row_max};
    for (int i = 0; i < 3; i++) {
        const double canary = o->count[i] ? canary_of(b->out[i].tensor.dtype) : 0;
        const int64_t width = i ? 1 : s->head_dim_v;
        int64_t wrong = 0, worst = 0;
        double ratio = -1;
        for (int64_t k = 0; k < o->count[i]; k++) {
            const double wanted = all[i]->value.at[k], bound = all[i]->bound[k], got = o->at[i][k];
            r->undecided += bound == INFINITY;
            if (right(got, wanted, bound, canary))
                continue;
            const double off =
                isfinite(wanted) && isfinite(got) ? fabs(got - wanted) / (fabs(bound) + 1e-300) : INFINITY;
            worst = !wrong++ || off > ratio ? k : worst;
            ratio = off > ratio ? off : ratio;
        }
        r->elements += (uint64_t)o->count[i];
        if (!wrong)
            continue;
        f->got = o->at[i][worst];
        f->wanted = all[i]->value.at[worst];
        f->bound = all[i]->bound[worst];
        if (f->bound < 0)
            return fail(f, "written", "%s: row %lld belongs to no sequence and was written", names[i],
                        (long long)row_of(s, d, worst / width));
        return fail(f, names[i],
                    "%s of row %lld, column %lld: got %.9g, expected %.9g within %.3g; %lld of %lld elements wrong",
                    names[i], (long long)row_of(s, d, worst / width), (long long)(worst % width), f->got, f->wanted,
                    f->bound, (long long)wrong, (long long)o->count[i]);
    }
    return true;
}

/* The same bits, but in rows that several sequences claim. Of one sequence alone (only >= 0): others are canaries. */
static bool same_bits(const serving *s, const step_data *d, const fixture *b, const outputs *x, const outputs *y,
                      const sequence *only, const char *what, finding *f)
{
    for (int i = 0; i < 3; i++) {
        const int64_t width = i ? 1 : s->head_dim_v;
        const double canary = x->count[i] ? canary_of(b->out[i].tensor.dtype) : 0;
        for (int64_t k = 0; k < x->count[i]; k++) {
            const int64_t row = row_of(s, d, k / width);
            const bool own = !only || (row >= only->row && row < only->row + only->rows);
            const double wanted = own ? x->at[i][k] : canary, got = y->at[i][k];
            if (d->contested[row] || (isnan(wanted) && isnan(got)) || !memcmp(&wanted, &got, sizeof got))
                continue;
            f->got = got;
            f->wanted = wanted;
            return fail(f, "bits", "%s: %s of row %lld, column %lld is %.9g, was %.9g", what, names[i], (long long)row,
                        (long long)(k % width), got, wanted);
        }
    }
    return true;
}

/* Once more, after all outputs were reset. */
static bool again(runner *r, const serving *s, const step_data *d, const attune_plan *plan,
                  const attune_forward_args *args, fixture *b, const outputs *first, const sequence *only,
                  const char *what, finding *f)
{
    outputs o = {.count = {0}};
    const bool ok = reset(b, f) && launch(r, plan, args, f) && collect_outputs(b, &o, f) &&
                    same_bits(s, d, b, first, &o, only, what, f);
    outputs_free(&o);
    return ok;
}

static void advance(attune_tensor *t, int64_t by, int64_t size)
{
    if (!t->buffer)
        return;
    t->offset = (uint64_t)((int64_t)t->offset + by * t->stride[0] * (int64_t)attune_dtype_size(t->dtype));
    t->size[0] = size;
}

/* A sequence in a batch of its own has the same bits, where parts of keys begin at the same keys. */
static bool alone(runner *r, const serving *s, const step *c, const step_data *d, const attune_plan *plan, fixture *b,
                  const outputs *first, finding *f)
{
    const bool numbered = (s->has_mask && tree_uses(&s->mask, OP_B)) || (s->has_score && tree_uses(&s->score, OP_B));
    if (!s->alone || !s->packed || numbered || (!s->split_keys && r->backend != ATTUNE_BACKEND_CPU))
        return true;
    for (int i = 0; i < c->sequences; i++) {
        const sequence of = sequence_of(s, c, d, i);
        attune_cache cache = b->cache;
        attune_batch batch = b->batch;
        attune_forward_args args = b->args;
        if (!of.written)
            continue;
        advance(&batch.kv_len, i, 1);
        advance(&batch.q_start, i, 2);
        advance(&batch.kv_first, i, 1);
        batch.shared = batch.count = (attune_tensor){.rank = 0};
        if (!s->page) {
            advance(&cache.k, i, b->pages - i);
            advance(&cache.v, i, b->pages - i);
            advance(&cache.k_scale, cache.k_scale.rank == 3 ? i : 0,
                    cache.k_scale.rank == 3 ? b->pages - i : cache.k_scale.size[0]);
            advance(&cache.v_scale, cache.v_scale.rank == 3 ? i : 0,
                    cache.v_scale.rank == 3 ? b->pages - i : cache.v_scale.size[0]);
        } else if (s->list) {
            advance(&cache.pages_start, i, 2);
        } else {
            advance(&cache.pages, i, 1);
        }
        args.cache = &cache;
        args.batch = &batch;
        args.schedule = NULL;
        args.schedule_offset = 0;
        if (!again(r, s, d, plan, &args, b, first, &of, "a sequence alone", f))
            return false;
    }
    return true;
}

/* Another layer: a plan of another scale takes the schedule of the first. */
static bool layer(runner *r, const serving *s, const step_data *d, const attune_plan *plan, const attune_plan *other,
                  fixture *b, finding *f)
{
    attune_forward_args args = b->args;
    outputs o = {.count = {0}};
    if (!other || !args.schedule || !same_choice(plan, other))
        return true;
    args.schedule = NULL;
    args.schedule_offset = 0;
    const bool ok = reset(b, f) && launch(r, other, &args, f) && collect_outputs(b, &o, f) &&
                    again(r, s, d, other, &b->args, b, &o, NULL, "another plan's schedule", f);
    outputs_free(&o);
    return ok;
}

static kernel_kind kind_of(const runner *r, const attune_plan *plan, finding *f)
{
    attune_plan_choice choice = {.struct_size = sizeof choice};
    kernel_kind kind = {.backend = r->backend};
    if (attune_plan_choice_get(plan, &choice) != ATTUNE_OK)
        return kind;
    kind.matrices = r->backend == ATTUNE_BACKEND_CPU && strcmp(choice.kernel, "cpu") != 0;
    (void)snprintf(f->kernel, sizeof f->kernel, "%.20s serving %ux%u/%u", choice.kernel, choice.block_m, choice.block_n,
                   choice.split_kv);
    return kind;
}

static bool run_step(runner *r, const serving *s, const step *c, const attune_plan *plan, const attune_plan *other,
                     finding *f)
{
    fixture b[2] = {{.pages = 0}};
    outputs first = {.count = {0}}, second = {.count = {0}};
    step_data d;
    bool ok = step_create(s, c, &d);
    for (int i = 0; i < 2 && ok; i++)
        ok = fixture_create(r, s, c, &d, plan, i, &b[i], f) &&
             (!c->append.used || append_rows(r, s, c, &d, plan, i, &b[i], f));
    if (ok) {
        step_expect(s, c, kind_of(r, plan, f), &d);
        ok = launch(r, plan, &b[0].args, f) && collect_outputs(&b[0], &first, f) &&
             compare(r, s, &d, &b[0], &first, f) && fixture_unchanged(&b[0], f);
    }
    ok = ok && schedule(r, c, plan, &b[1], f) && launch(r, plan, &b[1].args, f) && collect_outputs(&b[1], &second, f) &&
         same_bits(s, &d, &b[1], &first, &second, NULL, b[1].schedule.bytes ? "other pages, a schedule" : "other pages",
                   f) &&
         fixture_unchanged(&b[1], f) && again(r, s, &d, plan, &b[1].args, &b[1], &first, NULL, "the same call", f) &&
         alone(r, s, c, &d, plan, &b[0], &first, f) && layer(r, s, &d, plan, other, &b[1], f);
    outputs_free(&first);
    outputs_free(&second);
    fixture_destroy(&b[0]);
    fixture_destroy(&b[1]);
    step_destroy(&d);
    return ok;
}

static bool run_on(runner *r, const void *of, finding *f)
{
    const serving *s = of;
    attune_expr *exprs[2] = {NULL};
    attune_plan *plan = NULL, *other = NULL;
    *f = (finding){.call = -1};
    bool ok = (!s->has_mask || make_expression(r, &s->mask, ATTUNE_EXPR_MASK, &exprs[0], f)) &&
              (!s->has_score || make_expression(r, &s->score, ATTUNE_EXPR_SCORE, &exprs[1], f)) &&
              make_plan(r, s, exprs, s->scale, &plan, f);
    if (ok && plan && s->layers)
        ok = make_plan(r, s, exprs, s->scale != 0 ? s->scale / 2 : 0.25, &other, f);
    for (int i = 0; ok && plan && i < s->step_count; i++) {
        f->call = i;
        ok = run_step(r, s, &s->steps[i], plan, other, f);
    }
    attune_plan_destroy(plan);
    attune_plan_destroy(other);
    attune_expr_destroy(exprs[0]);
    attune_expr_destroy(exprs[1]);
    return ok;
}

bool run_serving(runner *r, const serving *s, finding *f)
{
    return run_with_threads(r, s->threads, run_on, s, f);
}

/* SPDX-License-Identifier: MIT */
/* Merging and its backward pass, against their definitions. */
#include "random/place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 32
#define FEW   12 /* parts, where there are not many */

typedef struct merge {
    attune_dtype dtype, row_dtype, part_dtype[PARTS];
    int64_t size[4];
    int parts;
    bool want_lse, want_d_lse, nonfinite, seconds;
    uint32_t want_d_parts, want_d_rows; /* bits: parts whose gradients are asked for */
    int onto;                           /* the part that the merged o and lse replace; -1 = none */
    double far;                         /* some LSE are so many times a number up to 4 */
    uint64_t workspace_offset;
    placed o, lse, d_o, d_lse, part_o[PARTS], part_lse[PARTS], part_d_o[PARTS], part_d_lse[PARTS];
    grid in_o[PARTS], in_lse[PARTS], out_o, out_lse, in_d_o, in_d_lse;
    attune_buffer *workspace;
} merge;

static double drawn(rng *r)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)rng_range(r, -1000, 1000) / 1000;
    return sum;
}

static void draw_row(rng *r, merge *m, int64_t row, int part)
{
    grid *o = &m->in_o[part], *lse = &m->in_lse[part];
    const int64_t width = m->size[3];
    lse->at[row] = rounded_to(m->row_dtype, drawn(r) * (rng_chance(r, 10) ? m->far : 4));
    if (rng_chance(r, 15))
        lse->at[row] = -INFINITY;
    if (m->nonfinite && rng_chance(r, 3))
        lse->at[row] = rng_chance(r, 50) ? NAN : INFINITY;
    for (int64_t i = 0; i < width; i++)
        o->at[row * width + i] =
            lse->at[row] == -INFINITY && rng_chance(r, 30) ? NAN : rounded_to(m->part_dtype[part], drawn(r));
}

static void draw_random_layout(rng *r, bool input, layout *l)
{
    *l = (layout){.order = (uint8_t)rng_range(r, 0, 5), .offset = (uint8_t)rng_range(r, 0, 5)};
    for (int i = 0; i < 3; i++)
        l->pad[i] = (uint8_t)(rng_chance(r, 30) ? rng_range(r, 0, 7) : 0);
    l->negative = (uint8_t)(input && rng_chance(r, 20) ? rng_range(r, 0, 3) : 0);
}

/* A tensor of a merge's size; v NULL = an output. */
static bool put(runner *r, rng *g, const char *name, attune_dtype dtype, int rank, const grid *v, bool written,
                const merge *m, placed *p)
{
    layout l;
    displace(p);
    draw_random_layout(g, !written, &l);
    return place(r, name, dtype, rank, m->size, &l, v ? v->at : NULL,
                 r->backend == ATTUNE_BACKEND_CPU && rng_chance(g, 30), p) == ATTUNE_OK;
}

/* Forward's results for one part, which a merge may overwrite. */
static bool put_part(runner *r, rng *g, merge *m, int p)
{
    return put(r, g, "part_o", m->part_dtype[p], 4, &m->in_o[p], p == m->onto, m, &m->part_o[p]) &&
           put(r, g, "part_lse", m->row_dtype, 3, &m->in_lse[p], p == m->onto, m, &m->part_lse[p]);
}

static bool near(finding *f, const char *what, const placed *p, const double *wanted, const double *bound)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < p->tensor.rank; i++)
        count *= p->tensor.size[i];
    double *got = calloc((size_t)count, sizeof *got);
    bool untouched, ok = true;
    if (!got)
        abort();
    if (collect(p, got, &untouched) != ATTUNE_OK || !untouched)
        ok = fail(f, "canary", "%s: bytes outside the output were written", what);
    for (int64_t i = 0; ok && i < count; i++)
        if (bound[i] != INFINITY && (isnan(wanted[i])   ? !isnan(got[i])
                                     : isinf(wanted[i]) ? got[i] != wanted[i]
                                                        : !(fabs(got[i] - wanted[i]) <= bound[i])))
            ok = fail(f, what, "%s[%lld] is %.9g, expected %.9g within %.3g", what, (long long)i, got[i], wanted[i],
                      bound[i]);
    free(got);
    return ok;
}

/* lse and o of a row, with bounds. */
static bool forward_row(const merge *m, int64_t row, double *o, double *o_bound, double *lse, double *lse_bound)
{
    const double u = m->row_dtype == ATTUNE_F64 ? 0x1p-53 : 0x1p-24;
    double most = -INFINITY, sum = 0;
    bool bad = false;
    for (int p = 0; p < m->parts; p++) {
        const double l = m->in_lse[p].at[row];
        bad |= isnan(l) || l == INFINITY;
        most = l > most ? l : most;
    }
    const int64_t width = m->size[3];
    for (int p = 0; p < m->parts && !bad && most > -INFINITY; p++)
        sum += exp(m->in_lse[p].at[row] - most);
    *lse = bad ? NAN : most > -INFINITY ? most + log(sum) : -INFINITY;
    double spread = 0;
    for (int p = 0; p < m->parts && isfinite(*lse); p++)
        if (m->in_lse[p].at[row] > -INFINITY)
            spread += exp(m->in_lse[p].at[row] - *lse) * fabs(m->in_lse[p].at[row] - most);
    *lse_bound = isfinite(*lse) ? 16 * u * (fabs(*lse) + fabs(most) + 2 + spread) * (1 + m->parts / 7) : 0;
    for (int64_t i = 0; i < width; i++) {
        double value = 0, magnitude = 0, moved = 0;
        for (int p = 0; p < m->parts && isfinite(*lse); p++) {
            const double l = m->in_lse[p].at[row], w = exp(l - *lse), x = m->in_o[p].at[row * width + i];
            if (l == -INFINITY)
                continue;
            value += w * x;
            magnitude += w * fabs(x);
            moved += w * fabs(x) * (fabs(l) + fabs(*lse) + 8 + 2 * fabs(l - most));
        }
        o[i] = bad ? NAN : value;
        o_bound[i] = isfinite(*lse) ? 16 * u * (moved + magnitude) * (1 + m->parts / 7) +
                                          unit_of(m->dtype) * fabs(value) + (m->dtype == ATTUNE_F16 ? 0x1p-24 : 1e-36)
                                    : 0;
    }
    return !bad;
}

static bool compare_forward(const merge *m, finding *f)
{
    const int64_t rows = m->size[0] * m->size[1] * m->size[2], width = m->size[3];
    grid bound_o, bound_lse;
    grid_create(&bound_o, 4, m->size);
    grid_create(&bound_lse, 3, m->size);
    for (int64_t row = 0; row < rows; row++)
        (void)forward_row(m, row, m->out_o.at + row * width, bound_o.at + row * width, &m->out_lse.at[row],
                          &bound_lse.at[row]);
    const placed *o = m->onto < 0 ? &m->o : &m->part_o[m->onto], *lse = m->onto < 0 ? &m->lse : &m->part_lse[m->onto];
    const bool ok = near(f, "merged o", o, m->out_o.at, bound_o.at) &&
                    (!m->want_lse || near(f, "merged lse", lse, m->out_lse.at, bound_lse.at));
    free(bound_o.at);
    free(bound_lse.at);
    return ok;
}

/* d_o and d_lse of one part. */
static void backward_part(const merge *m, int p, const grid *o, const grid *lse, grid *d_o, grid *d_lse, grid *bound_o,
                          grid *bound_lse)
{
    const int64_t rows = lse->count, width = m->size[3];
    const double u = m->row_dtype == ATTUNE_F64 ? 0x1p-53 : 0x1p-24;
    for (int64_t row = 0; row < rows; row++) {
        const double l = m->in_lse[p].at[row], total = lse->at[row];
        if (!isfinite(total) && total != -INFINITY) {
            for (int64_t i = 0; i < width; i++)
                bound_o->at[row * width + i] = INFINITY;
            bound_lse->at[row] = INFINITY;
            continue;
        }
        if (l == -INFINITY)
            continue;
        const double w = exp(l - total), e = 16 * u * (1 + fabs(l) + fabs(total));
        double dot = m->want_d_lse ? m->in_d_lse.at[row] : 0, magnitude = fabs(dot);
        for (int64_t i = 0; i < width; i++) {
            const double up = m->in_d_o.at[row * width + i], mine = m->in_o[p].at[row * width + i],
                         all = o->at[row * width + i];
            dot += up * (mine - all);
            magnitude += fabs(up) * (fabs(mine) + fabs(all));
            d_o->at[row * width + i] = w * up;
            bound_o->at[row * width + i] =
                w * fabs(up) * (e + unit_of(m->part_dtype[p])) + (m->part_dtype[p] == ATTUNE_F16 ? 0x1p-24 : 1e-36);
        }
        d_lse->at[row] = w * dot;
        bound_lse->at[row] = w * (magnitude * u * ((double)width + 16) * 2 + fabs(dot) * e) + 1e-36;
    }
}

static bool compare_backward(const merge *m, finding *f)
{
    bool ok = true;
    for (int p = 0; p < m->parts && ok; p++) {
        grid d_o, d_lse, bound_o, bound_lse;
        grid_create(&d_o, 4, m->size);
        grid_create(&d_lse, 3, m->size);
        grid_create(&bound_o, 4, m->size);
        grid_create(&bound_lse, 3, m->size);
        backward_part(m, p, &m->out_o, &m->out_lse, &d_o, &d_lse, &bound_o, &bound_lse);
        ok = (!m->part_d_o[p].bytes || near(f, "a part's d_o", &m->part_d_o[p], d_o.at, bound_o.at)) &&
             (!m->part_d_lse[p].bytes || near(f, "a part's d_lse", &m->part_d_lse[p], d_lse.at, bound_lse.at));
        free(d_o.at);
        free(d_lse.at);
        free(bound_o.at);
        free(bound_lse.at);
    }
    return ok;
}

/* The tensors that the pass does not share with the parts: backward reads what forward should have given. */
static bool place_pass(runner *r, rng *g, merge *m, bool back)
{
    for (int64_t i = 0; back && i < m->out_o.count; i++)
        m->out_o.at[i] = rounded_to(m->dtype, m->out_o.at[i]);
    for (int64_t i = 0; back && i < m->out_lse.count; i++)
        m->out_lse.at[i] = rounded_to(m->row_dtype, m->out_lse.at[i]);
    bool ok = put(r, g, "o", m->dtype, 4, back ? &m->out_o : NULL, !back, m, &m->o) &&
              put(r, g, "lse", m->row_dtype, 3, back ? &m->out_lse : NULL, !back, m, &m->lse);
    if (!back)
        return ok;
    ok = ok && put(r, g, "d_o", m->dtype, 4, &m->in_d_o, false, m, &m->d_o) &&
         put(r, g, "d_lse", m->row_dtype, 3, &m->in_d_lse, false, m, &m->d_lse) &&
         (m->onto < 0 || put_part(r, g, m, m->onto));
    for (int p = 0; p < m->parts && ok; p++)
        ok = (!(m->want_d_parts >> p & 1) ||
              put(r, g, "part_d_o", m->part_dtype[p], 4, NULL, true, m, &m->part_d_o[p])) &&
             (!(m->want_d_rows >> p & 1) || put(r, g, "part_d_lse", m->row_dtype, 3, NULL, true, m, &m->part_d_lse[p]));
    return ok;
}

/* One thing wrong that both passes have. */
#define MERGE_WRONGS 6
static bool make_wrong(int which, attune_merge_args *a, attune_merge_part *parts)
{
    switch (which) {
    case 0:
        a->struct_size = 0;
        return true;
    case 1:
        a->part_count = 0;
        return true;
    case 2:
        a->workspace_offset += a->workspace ? 128 : 0;
        return a->workspace != NULL;
    case 3:
        parts[a->part_count - 1].o.size[3] += 8;
        return true;
    case 4:
        parts[0].lse.dtype = ATTUNE_I32;
        return true;
    default:
        a->o.rank = 3;
        return true;
    }
}

/* One pass, `wrong` < 0, or one that must be refused. */
static attune_status pass(runner *r, const attune_merger *merger, merge *m, bool back, int wrong, bool *asked)
{
    attune_merge_part parts[PARTS];
    attune_completion done;
    double seconds = 0;
    for (int p = 0; p < m->parts; p++)
        parts[p] = (attune_merge_part){m->part_o[p].tensor, m->part_lse[p].tensor, m->part_d_o[p].tensor,
                                       m->part_d_lse[p].tensor};
    attune_merge_args a = {.struct_size = sizeof a,
                           .parts = parts,
                           .part_count = (uint32_t)m->parts,
                           .o = !back && m->onto >= 0 ? m->part_o[m->onto].tensor : m->o.tensor,
                           .lse = !back && m->onto >= 0 ? m->part_lse[m->onto].tensor : m->lse.tensor,
                           .workspace = m->workspace,
                           .workspace_offset = m->workspace_offset,
                           .seconds = m->seconds ? &seconds : NULL};
    if (!back && !m->want_lse)
        a.lse = (attune_tensor){.rank = 0};
    *asked = wrong < 0 || make_wrong(wrong, &a, parts);
    if (!*asked)
        return ATTUNE_OK;
    attune_queue *queue = attune_device_queue(r->device);
    attune_merge_backward_args b = {.struct_size = a.struct_size ? (uint32_t)sizeof b : 0,
                                    .parts = parts,
                                    .part_count = a.part_count,
                                    .o = a.o,
                                    .lse = a.lse,
                                    .d_o = m->d_o.tensor,
                                    .workspace = a.workspace,
                                    .workspace_offset = a.workspace_offset,
                                    .seconds = a.seconds};
    if (m->want_d_lse)
        b.d_lse = m->d_lse.tensor;
    const attune_status status =
        back ? attune_merge_backward(merger, queue, &b, &done) : attune_merge(merger, queue, &a, &done);
    return status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
}

static bool run_pass(runner *r, rng *g, const attune_merger *merger, merge *m, bool back, finding *f)
{
    const char *name = back ? "attune_merge_backward" : "attune_merge";
    bool asked;
    if (!place_pass(r, g, m, back))
        return fail(f, "status", "placing: %s", attune_last_error());
    const attune_status refused = pass(r, merger, m, back, (int)rng_range(g, 0, MERGE_WRONGS - 1), &asked);
    if (asked && (refused == ATTUNE_OK || refused == ATTUNE_INTERNAL || !*attune_last_error()))
        return fail(f, "accepted", "%s: arguments that are wrong: %s", name, attune_status_string(refused));
    r->refused += asked;
    const attune_status status = pass(r, merger, m, back, -1, &asked);
    r->calls++;
    if (status != ATTUNE_OK)
        return fail(f, "status", "%s: %s: %s", name, attune_status_string(status), attune_last_error());
    return back ? compare_backward(m, f) : compare_forward(m, f);
}

static void merge_draw(rng *g, attune_backend backend, merge *m)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    m->dtype = dtypes[rng_range(g, 0, backend == ATTUNE_BACKEND_CPU ? 3 : 2)];
    m->row_dtype = m->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    m->parts = (int)rng_range(g, 1, FEW);
    m->far = 40;
    m->nonfinite = rng_chance(g, 25);
    m->want_lse = rng_chance(g, 70);
    m->want_d_lse = rng_chance(g, 70);
    m->want_d_parts = (uint32_t)(rng_chance(g, 70) ? UINT32_MAX : rng_next(g));
    m->want_d_rows = (uint32_t)(rng_chance(g, 70) ? UINT32_MAX : rng_next(g));
    m->onto = rng_chance(g, 25) ? (int)rng_range(g, 0, m->parts - 1) : -1;
    m->seconds = rng_chance(g, 5);
    m->workspace_offset = rng_chance(g, 30) ? 256 * (uint64_t)rng_range(g, 1, 3) : 0;
    m->size[0] = rng_range(g, 1, 3);
    m->size[1] = rng_range(g, 1, 4);
    m->size[2] = rng_range(g, 1, 40);
    m->size[3] = 8 * rng_range(g, 1, 17);
    rng rare = {mix(g->state, 8125)};
    if (rng_chance(&rare, 30)) {
        m->parts = (int)rng_range(&rare, 1, PARTS);
        m->far = rng_chance(&rare, 50) ? 4 : 2000;
        m->size[2] = rng_range(&rare, 1, 300);
        m->size[3] = 8 * rng_range(&rare, 1, 64);
        m->onto = m->onto < m->parts ? m->onto : -1;
    }
    grid_create(&m->out_o, 4, m->size);
    grid_create(&m->out_lse, 3, m->size);
    grid_create(&m->in_d_o, 4, m->size);
    grid_create(&m->in_d_lse, 3, m->size);
    for (int64_t i = 0; i < m->in_d_o.count; i++)
        m->in_d_o.at[i] = rounded_to(m->dtype, drawn(g));
    for (int64_t i = 0; i < m->in_d_lse.count; i++)
        m->in_d_lse.at[i] = rounded_to(m->row_dtype, drawn(g));
    for (int p = 0; p < m->parts; p++) {
        m->part_dtype[p] = p != m->onto && m->dtype != ATTUNE_F64 && rng_chance(g, 30) ? ATTUNE_F32 : m->dtype;
        grid_create(&m->in_o[p], 4, m->size);
        grid_create(&m->in_lse[p], 3, m->size);
        for (int64_t row = 0; row < m->in_lse[p].count; row++)
            draw_row(g, m, row, p);
    }
}

bool run_merge(runner *r, uint64_t seed, uint64_t index, finding *f)
{
    rng g = {mix(seed, index)};
    attune_merger *merger;
    merge *m = calloc(1, sizeof *m);
    *f = (finding){.call = -1};
    if (!m)
        abort();
    if (attune_merger_create(r->device, &merger) != ATTUNE_OK) {
        free(m);
        return fail(f, "status", "attune_merger_create: %s", attune_last_error());
    }
    merge_draw(&g, r->backend, m);
    bool ok = true;
    for (int p = 0; p < m->parts && ok; p++)
        ok = put_part(r, &g, m, p);
    const attune_tensor like = {.dtype = m->dtype, .rank = 4, .size = {m->size[0], m->size[1], m->size[2], m->size[3]}};
    const uint64_t workspace = attune_merger_workspace_size(merger, &like, (uint32_t)m->parts);
    if (ok && workspace)
        ok = attune_buffer_create(r->device, workspace + m->workspace_offset, &m->workspace) == ATTUNE_OK;
    m->workspace_offset = m->workspace ? m->workspace_offset : 0;
    if (!ok)
        (void)fail(f, "status", "placing: %s", attune_last_error());
    ok = ok && run_pass(r, &g, merger, m, false, f) && run_pass(r, &g, merger, m, true, f);
    placed *all[] = {&m->o, &m->lse, &m->d_o, &m->d_lse};
    grid *sets[] = {&m->out_o, &m->out_lse, &m->in_d_o, &m->in_d_lse};
    for (int i = 0; i < 4; i++) {
        displace(all[i]);
        free(sets[i]->at);
    }
    for (int p = 0; p < PARTS; p++) {
        placed *four[] = {&m->part_o[p], &m->part_lse[p], &m->part_d_o[p], &m->part_d_lse[p]};
        for (int i = 0; i < 4; i++)
            displace(four[i]);
        free(m->in_o[p].at);
        free(m->in_lse[p].at);
    }
    attune_buffer_destroy(m->workspace);
    attune_merger_destroy(merger);
    free(m);
    return ok;
}

/* SPDX-License-Identifier: MIT */
#include "random/fixture.h"

#include <stdlib.h>
#include <string.h>

static const char *const role_names[ROLES] = {"q",     "k",     "v",   "o",   "lse", "row_max", "d_o",
                                              "d_lse", "sinks", "d_q", "d_k", "d_v", "d_sinks"};

bool failed_call(finding *f, const char *what, attune_status status)
{
    return fail(f, "status", "%s: %s: %s", what, attune_status_string(status), attune_last_error());
}

/* Keys are those of one segment. */
static bool place_role(runner *r, const problem *p, const call *c, int role, const grid *v, bool output,
                       const layout *l, fixture *b, finding *f)
{
    const bool keys = role == K || role == V || role == D_K || role == D_V;
    const bool rows = role == LSE || role == ROW_MAX || role == D_LSE || role == SINKS || role == D_SINKS;
    const attune_dtype dtype = rows                       ? (p->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32)
                               : keys                     ? p->kv_dtype
                               : role == O || role == D_O ? p->o_dtype
                                                          : p->dtype;
    for (int s = 0; s < (keys ? segments_of(c) : 1); s++) {
        grid part = *v;
        double *copy = NULL;
        if (keys) {
            part.size[2] = segment_length(c, s);
            const int64_t width = part.size[3], planes = part.size[0] * part.size[1], length = part.size[2];
            copy = malloc((size_t)(planes * length * width) * sizeof *copy);
            for (int64_t i = 0; copy && !output && i < planes; i++)
                memcpy(copy + i * length * width, v->at + (i * v->size[2] + segment_start(c, s)) * width,
                       (size_t)(length * width) * sizeof *copy);
        }
        char name[24];
        (void)snprintf(name, sizeof name, keys ? "%s%d" : "%s", role_names[role], s);
        const attune_status status =
            place(r, name, dtype, part.rank, part.size, l,
                  output ? NULL
                  : keys ? copy
                         : v->at,
                  r->backend == ATTUNE_BACKEND_CPU && mix(c->seed, (uint64_t)role) % 3 == 0, &b->tensors[role][s]);
        free(copy);
        if (status != ATTUNE_OK)
            return failed_call(f, "placing a tensor", status);
    }
    return true;
}

bool read_by(const attune_expr *expr, const char *name)
{
    attune_symbol symbol;
    for (uint32_t i = 0; i < attune_expr_symbol_count(expr); i++)
        if (attune_expr_symbol_get(expr, i, &symbol) == ATTUNE_OK && !strcmp(symbol.name, name))
            return true;
    return false;
}

static bool place_captures(runner *r, const problem *p, const call *c, const call_data *d, const attune_expr *score,
                           fixture *b, finding *f)
{
    for (int s = 0; p->has_score && s < p->score.symbol_count; s++) {
        const tree_symbol *symbol = &p->score.symbols[s];
        const binding *bound = &d->score[s];
        if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
            b->parameters[b->parameter_count++] = (attune_parameter){symbol->name, bound->number};
            continue;
        }
        attune_status status = ATTUNE_OK;
        if (symbol->of_mask)
            say(r, "    attune_tensor bias = followed0;\n");
        else
            status = place(r, symbol->name, symbol->dtype, symbol->rank, bound->size, &c->captures[s], bound->values,
                           false, &b->captures[s]);
        if (status != ATTUNE_OK)
            return failed_call(f, "placing a capture", status);
        b->named[b->capture_count++] =
            (attune_capture){symbol->name, symbol->of_mask ? b->followed[0].tensor : b->captures[s].tensor};
        const bool real = symbol->dtype == ATTUNE_F32 || symbol->dtype == ATTUNE_F16 || symbol->dtype == ATTUNE_BF16;
        if (p->direction != ATTUNE_BACKWARD || !real || !(c->want_captures >> s & 1) || !read_by(score, symbol->name))
            continue;
        char name[24];
        (void)snprintf(name, sizeof name, "d_%s", symbol->name);
        const int64_t count = d->out_d_captures[s].value.count;
        b->start[s] = calloc((size_t)count, sizeof(double));
        for (int64_t i = 0; b->start[s] && i < count; i++)
            b->start[s][i] = (double)(mix(c->seed, (uint64_t)i) % 7) / 4;
        status = place(r, name, ATTUNE_F32, symbol->rank, bound->size, &c->d_captures[s], b->start[s], false,
                       &b->d_captures[s]);
        if (status != ATTUNE_OK)
            return failed_call(f, "placing a gradient", status);
        b->wanted[b->wanted_count++] = (attune_capture){symbol->name, b->d_captures[s].tensor};
    }
    return true;
}

/* The tensors that masks follow. */
static bool place_followed(runner *r, const problem *p, const call *c, const call_data *d, fixture *b, finding *f)
{
    for (int s = 0; s < segments_of(c) && reads_tensor(p); s++) {
        char name[24];
        (void)snprintf(name, sizeof name, "followed%d", s);
        const attune_status status = place(r, name, p->tensor_dtype, 4, d->tensor[s].size, &c->tensor, d->tensor[s].at,
                                           r->backend == ATTUNE_BACKEND_CPU && c->seed % 3 == 0, &b->followed[s]);
        if (status != ATTUNE_OK)
            return failed_call(f, "placing a mask's tensor", status);
    }
    return true;
}

/* Names that the score does not read. A mask's parameters may be repeated; its captures are the mask's own. */
static void name_more(const problem *p, const call *c, const call_data *d, attune_expr *const exprs[3], fixture *b)
{
    b->mask_parameter = -1;
    for (int i = 0; i < 2 && c->more_names && p->mask; i++)
        for (int s = 0; s < p->masks[i].symbol_count; s++) {
            const tree_symbol *symbol = &p->masks[i].symbols[s];
            if (symbol->kind == ATTUNE_SYMBOL_CAPTURE) {
                b->named[b->capture_count++] = (attune_capture){.name = symbol->name};
                continue;
            }
            /* Two masks combined may read less than each does. */
            if (p->mask != MASK_AND && p->mask != MASK_OR && p->mask != MASK_DENSE && p->mask != MASK_TENSOR &&
                exprs[i] && read_by(exprs[i], symbol->name))
                b->mask_parameter = (int)b->parameter_count;
            b->parameters[b->parameter_count++] = (attune_parameter){symbol->name, d->mask[i][s].number};
        }
    if (c->more_names) {
        b->named[b->capture_count++] = (attune_capture){.name = "unread"};
        b->parameters[b->parameter_count++] = (attune_parameter){"nothing", 1e300};
    }
}

static bool place_all(runner *r, const problem *p, const call *c, const call_data *d, const attune_expr *score,
                      fixture *b, finding *f)
{
    const bool back = p->direction == ATTUNE_BACKWARD;
    return place_role(r, p, c, Q, &d->q, false, &c->q, b, f) && place_role(r, p, c, K, &d->k, false, &c->k, b, f) &&
           place_role(r, p, c, V, &d->v, false, &c->v, b, f) &&
           place_role(r, p, c, O, back ? &d->o : &d->out_o.value, !back, &c->o, b, f) &&
           (!(back || c->want_lse) ||
            place_role(r, p, c, LSE, back ? &d->lse : &d->out_lse.value, !back, &c->lse, b, f)) &&
           (!p->sinks || (place_role(r, p, c, SINKS, &d->sinks, false, &c->sinks, b, f) &&
                          (!back || !c->want_d_sinks ||
                           place_role(r, p, c, D_SINKS, &d->out_d_sinks.value, true, &c->d_sinks, b, f)))) &&
           (back || !c->want_row_max || place_role(r, p, c, ROW_MAX, &d->out_row_max.value, true, &c->row_max, b, f)) &&
           (!back || (place_role(r, p, c, D_O, &d->d_o, false, &c->d_o, b, f) &&
                      (!c->want_d_lse || place_role(r, p, c, D_LSE, &d->d_lse, false, &c->d_lse, b, f)) &&
                      place_role(r, p, c, D_Q, &d->out_d_q.value, true, &c->d_q, b, f) &&
                      place_role(r, p, c, D_K, &d->out_d_k.value, true, &c->d_k, b, f) &&
                      place_role(r, p, c, D_V, &d->out_d_v.value, true, &c->d_v, b, f))) &&
           place_followed(r, p, c, d, b, f) && place_captures(r, p, c, d, score, b, f);
}

bool fixture_place(runner *r, const problem *p, const call *c, const call_data *d, attune_expr *const exprs[3],
                   fixture *b, finding *f)
{
    if (!place_all(r, p, c, d, exprs[2], b, f))
        return false;
    name_more(p, c, d, exprs, b);
    return true;
}

void fixture_clear(fixture *b)
{
    for (int role = 0; role < ROLES; role++)
        for (int s = 0; s < SEGMENTS; s++)
            displace(&b->tensors[role][s]);
    for (int s = 0; s < SYMBOLS; s++) {
        displace(&b->captures[s]);
        displace(&b->d_captures[s]);
        free(b->start[s]);
    }
    for (int s = 0; s < SEGMENTS; s++) {
        if (b->masks[s] != b->following[s])
            attune_mask_destroy(b->masks[s]);
        displace(&b->followed[s]);
    }
    attune_buffer_destroy(b->workspace);
}

/* SPDX-License-Identifier: MIT */
/* The smallest calls over a cache with the same failure. */
#include "random/serving.h"

#include <string.h>

typedef struct search {
    runner *r;
    serving *best;
    finding *f;
    int tries;
    double until;
} search;

/* Keeps `smaller` if it still fails in the same way. */
static bool keep(search *s, const serving *smaller)
{
    finding f;
    if (s->tries <= 0 || now() > s->until || !memcmp(smaller, s->best, sizeof *smaller))
        return false;
    s->tries--;
    if (run_serving(s->r, smaller, &f) || strcmp(f.kind, s->f->kind) != 0)
        return false;
    *s->best = *smaller;
    *s->f = f;
    return true;
}

#define TRY_FIELD(s, field, value)                                                                                     \
    do {                                                                                                               \
        serving try_ = *(s)->best;                                                                                     \
        step *c_ = &try_.steps[0];                                                                                     \
        (void)c_;                                                                                                      \
        (field) = (value);                                                                                             \
        (void)keep((s), &try_);                                                                                        \
    } while (0)

static void shrink_steps(search *s)
{
    serving one = *s->best;
    if (s->f->call < 0)
        return;
    one.steps[0] = s->best->steps[s->f->call];
    one.step_count = 1;
    (void)keep(s, &one);
}

static void shrink_kinds(search *s)
{
    TRY_FIELD(s, try_.has_options, false);
    TRY_FIELD(s, try_.has_mask, false);
    TRY_FIELD(s, try_.has_score, false);
    TRY_FIELD(s, try_.layers, false);
    TRY_FIELD(s, try_.alone, false);
    TRY_FIELD(s, try_.threads, LOOPS_OWN);
    TRY_FIELD(s, try_.sinks, false);
    TRY_FIELD(s, try_.split_keys, 0);
    TRY_FIELD(s, try_.together, 0);
    TRY_FIELD(s, try_.scale, 0);
    TRY_FIELD(s, c_->append.used, false);
    TRY_FIELD(s, c_->append.queries, false);
    TRY_FIELD(s, c_->append.norm, false);
    TRY_FIELD(s, c_->append.q_norm, false);
    TRY_FIELD(s, c_->append.rotate, false);
    TRY_FIELD(s, c_->append.positions, false);
    TRY_FIELD(s, c_->append.slots, false);
    TRY_FIELD(s, c_->data, DATA_NORMAL);
    TRY_FIELD(s, c_->has_tree, false);
    TRY_FIELD(s, c_->has_first, false);
    TRY_FIELD(s, c_->has_shared, false);
    TRY_FIELD(s, c_->has_count, false);
    TRY_FIELD(s, c_->holes, 0);
    TRY_FIELD(s, c_->table_more, 0);
    TRY_FIELD(s, c_->pool_more, 0);
    TRY_FIELD(s, c_->before, 0);
    TRY_FIELD(s, c_->after, 0);
    TRY_FIELD(s, c_->want_lse, false);
    TRY_FIELD(s, c_->want_row_max, false);
    TRY_FIELD(s, c_->shrink_captures, 0);
    TRY_FIELD(s, c_->workspace_offset, 0);
    for (int i = 0; i <= SEQUENCES; i++) {
        TRY_FIELD(s, c_->nudge[i], 0);
        TRY_FIELD(s, c_->page_nudge[i], 0);
    }
    if (!s->best->steps[0].has_tree)
        TRY_FIELD(s, try_.tree, false);
    TRY_FIELD(s, try_.list, false);
    TRY_FIELD(s, try_.latent, false);
    TRY_FIELD(s, try_.o_dtype, s->best->dtype);
    serving plain = *s->best;
    plain.k_dtype = plain.v_dtype = plain.dtype;
    plain.k_scale = plain.v_scale = SCALE_NONE;
    (void)keep(s, &plain);
    if (plain.dtype != ATTUNE_F32) {
        plain.dtype = plain.k_dtype = plain.v_dtype = plain.o_dtype = ATTUNE_F32;
        (void)keep(s, &plain);
    }
    TRY_FIELD(s, try_.k_scale, SCALE_NONE);
    TRY_FIELD(s, try_.v_scale, SCALE_NONE);
}

static void shrink_layouts(search *s)
{
    serving plain = *s->best;
    step *c = &plain.steps[0];
    memset(c->cache, 0, sizeof c->cache);
    c->q = c->o = c->lse = c->row_max = c->ints = (layout){0};
    memset(c->captures, 0, sizeof c->captures);
    appending *a = &c->append;
    a->k = a->v = a->q = a->q_out = a->slot = a->position = a->cosine = (layout){0};
    if (keep(s, &plain))
        return;
    TRY_FIELD(s, c_->q, ((layout){0}));
    TRY_FIELD(s, c_->o, ((layout){0}));
    TRY_FIELD(s, c_->ints, ((layout){0}));
    TRY_FIELD(s, c_->cache[0], ((cache_layout){0}));
    TRY_FIELD(s, c_->cache[1], ((cache_layout){0}));
}

/* Without the sequence. */
static bool leave_out(search *s, int b)
{
    serving p = *s->best;
    step *c = &p.steps[0];
    if (c->sequences == 1)
        return false;
    c->sequences--;
    c->count -= c->count > c->sequences;
    for (int i = b; i < c->sequences; i++) {
        c->rows[i] = c->rows[i + 1];
        c->keys[i] = c->keys[i + 1];
        c->first[i] = c->first[i + 1];
        c->shared[i] = c->shared[i + 1];
    }
    return keep(s, &p);
}

static bool shorter(search *s, int b, int64_t rows, int64_t keys)
{
    serving p = *s->best;
    step *c = &p.steps[0];
    if (rows < 0 || (!p.packed && rows < 1))
        return false;
    for (int i = p.packed ? b : 0; i < (p.packed ? b + 1 : c->sequences); i++)
        c->rows[i] = rows;
    c->keys[b] = keys;
    c->first[b] = c->first[b] > keys && keys >= 0 ? keys : c->first[b];
    for (int i = 1; i < c->sequences; i++)
        for (int k = i - 1; k <= i; k++)
            c->shared[i] = c->shared[i] > c->keys[k] ? c->keys[k] : c->shared[i];
    return keep(s, &p);
}

static void shrink_sizes(search *s)
{
    for (bool less = true; less;) {
        const step *c = &s->best->steps[0];
        less = false;
        for (int b = c->sequences; b-- > 0;)
            less |= leave_out(s, b);
        for (int b = 0; b < c->sequences; b++) {
            less |= shorter(s, b, c->rows[b] / 2, c->keys[b]);
            less |= c->rows[b] > 1 && shorter(s, b, c->rows[b] - 1, c->keys[b]);
            if (c->keys[b] > 0) {
                less |= shorter(s, b, c->rows[b], c->keys[b] / 2);
                less |= shorter(s, b, c->rows[b], c->keys[b] - 1);
            }
        }
        serving p = *s->best;
        p.heads /= p.kv_heads;
        p.kv_heads = 1;
        less |= keep(s, &p);
        p = *s->best;
        p.heads = p.kv_heads;
        less |= keep(s, &p);
        const uint32_t unit =
            attune_dtype_block(s->best->k_dtype) > 1 || attune_dtype_block(s->best->v_dtype) > 1 ? 32 : 8;
        p = *s->best;
        p.head_dim = p.head_dim / 2 / unit * unit;
        p.head_dim_v = p.latent && p.head_dim_v > p.head_dim ? p.head_dim : p.head_dim_v;
        less |= p.head_dim && keep(s, &p);
        p = *s->best;
        p.head_dim_v = p.head_dim_v / 2 / unit * unit;
        less |= p.head_dim_v && keep(s, &p);
        less &= s->tries > 0 && now() < s->until;
    }
}

static void shrink_tree(search *s, bool score)
{
    for (bool less = true; less;) {
        less = false;
        const tree *t = score ? &s->best->score : &s->best->mask;
        for (int at = t->count - 1; at >= 0 && !less; at--) {
            const node *n = &t->nodes[at];
            for (int k = -1; k < n->count && !less; k++) {
                serving p = *s->best;
                less = tree_replace(score ? &p.score : &p.mask, at, k < 0 ? -1 : n->kid[k]) && keep(s, &p);
            }
        }
    }
}

void shrink_serving(runner *r, serving *p, finding *f, int tries, double seconds)
{
    search s = {r, p, f, tries, now() + seconds};
    shrink_steps(&s);
    for (int before = -1; before != s.tries && s.tries > 0 && now() < s.until;) {
        static serving start;
        start = *p;
        before = s.tries;
        shrink_kinds(&s);
        shrink_layouts(&s);
        shrink_sizes(&s);
        if (p->has_mask)
            shrink_tree(&s, false);
        if (p->has_score)
            shrink_tree(&s, true);
        if (!memcmp(&start, p, sizeof start))
            break;
    }
}

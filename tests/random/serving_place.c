/* SPDX-License-Identifier: MIT */
/* A step's data on the device: pages in any order, what no sequence reads full of garbage. */
#include "random/serving_place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool failed(finding *f, const char *what, attune_status status)
{
    return fail(f, "status", "%s: %s: %s", what, attune_status_string(status), attune_last_error());
}

/* ---------------------------------------------------------------------------------------------------------- buffers */

bool slab_create(runner *r, size_t bytes, int garbage, slab *s, finding *f)
{
    *s = (slab){.bytes = bytes, .image = malloc(bytes + 8)};
    if (!s->image)
        abort();
    memset(s->image, 0xff, bytes);
    for (size_t i = 0; garbage && i < bytes; i += 8) {
        const uint64_t word = mix((uint64_t)garbage, i);
        memcpy(s->image + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
    const attune_status status = attune_buffer_create(r->device, bytes, &s->buffer);
    return status == ATTUNE_OK || failed(f, "a buffer", status);
}

bool slab_write(slab *s, finding *f)
{
    const attune_status status = attune_buffer_write(s->buffer, 0, s->image, s->bytes);
    return status == ATTUNE_OK || failed(f, "writing a buffer", status);
}

void slab_destroy(slab *s)
{
    attune_buffer_destroy(s->buffer);
    free(s->image);
    *s = (slab){.bytes = 0};
}

static bool slab_same(const slab *s)
{
    unsigned char *after = malloc(s->bytes + 1);
    if (!after)
        abort();
    const bool same =
        attune_buffer_read(s->buffer, 0, after, s->bytes) == ATTUNE_OK && !memcmp(after, s->image, s->bytes);
    free(after);
    return same;
}

size_t cell_at(const attune_tensor *t, int64_t page, int64_t h, int64_t slot)
{
    return (size_t)t->offset +
           (size_t)(page * t->stride[0] + h * t->stride[1] + slot * t->stride[2]) * attune_dtype_size(t->dtype);
}

/* ------------------------------------------------------------------------------------------------------------ caches
 */

/* Each entry's page: those of keys in common have one, or one each. */
static void choose_pages(const serving *s, const step *c, const step_data *d, int which, fixture *b)
{
    int64_t next = 0;
    b->page_of = calloc((size_t)d->entries + 1, sizeof *b->page_of);
    if (!b->page_of)
        abort();
    for (int i = 0; i < c->sequences; i++)
        for (int64_t e = d->entry_start[i]; e < d->entry_start[i + 1]; e++) {
            const int64_t page = e - d->entry_start[i];
            int from = i;
            while (which == 0 && s->page && c->has_shared && from > 0 && (page + 1) * d->page <= d->shared[from])
                from--;
            const bool common = from != i && d->entry_start[from] + page < d->entry_start[from + 1];
            b->page_of[e] = common ? b->page_of[d->entry_start[from] + page] : next++;
        }
    b->pages = s->page ? (next ? next : 1) + c->pool_more : c->sequences + c->pool_more;
    if (!s->page)
        return;
    /* In any order: the pages' numbers are permuted. */
    int64_t *order = calloc((size_t)b->pages, sizeof *order);
    if (!order)
        abort();
    for (int64_t i = 0; i < b->pages; i++)
        order[i] = i;
    for (int64_t i = b->pages - 1; i > 0; i--) {
        const int64_t j = (int64_t)(mix(mix(c->seed, (uint64_t)(900 + which)), (uint64_t)i) % (uint64_t)(i + 1));
        const int64_t swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
    for (int64_t e = 0; e < d->entries; e++)
        b->page_of[e] = order[b->page_of[e]];
    free(order);
}

/* Strides in elements, or blocks; the units from one page to the next. */
static int64_t lay_rows(const serving *s, const step_data *d, const cache_layout *l, const rows_of_cache *of,
                        int64_t pages, attune_tensor *t)
{
    const int64_t row = of->units + l->pad_row;
    *t = (attune_tensor){.dtype = of->dtype, .rank = 4, .size = {pages, s->kv_heads, d->page, of->columns}};
    t->stride[3] = 1;
    t->stride[1] = l->nhd ? row : d->page * row + l->pad_plane;
    t->stride[2] = l->nhd ? s->kv_heads * row + l->pad_plane : row;
    t->stride[0] = (l->nhd ? d->page * t->stride[2] : s->kv_heads * t->stride[1]) + l->pad_page;
    /* Offsets of blocks are even. */
    const size_t size = attune_dtype_size(of->dtype);
    t->offset = l->offset * (attune_dtype_block(of->dtype) > 1 ? 2 : size);
    return t->stride[0];
}

/* The rows that some sequence reads. New ones are left out: attune_append writes them. */
static void write_rows(const serving *s, const step_data *d, const fixture *b, const rows_of_cache *of,
                       const attune_tensor *t, unsigned char *image)
{
    for (int64_t i = 0; i < d->entries * s->kv_heads * d->page; i++) {
        const int64_t entry = i / d->page / s->kv_heads;
        if (d->used[i])
            memcpy(image + cell_at(t, b->page_of[entry], i / d->page % s->kv_heads, i % d->page),
                   of->at + (size_t)i * of->bytes, of->bytes);
    }
}

static void forget_new(const serving *s, const step_data *d, const fixture *b, const rows_of_cache *of,
                       const attune_tensor *t, unsigned char *image)
{
    for (int64_t row = 0; row < d->rows; row++)
        for (int64_t h = 0; d->new_rows[row] && h < s->kv_heads; h++)
            memset(image + cell_at(t, b->page_of[d->entry_of[row]], h, d->key_of[row]), 0xff, of->bytes);
}

static bool place_scale(runner *r, const serving *s, const step *c, const step_data *d, const rows_of_cache *of,
                        const char *name, int which, fixture *b, placed *p, attune_tensor *t, finding *f)
{
    if (of->kind == SCALE_NONE)
        return true;
    const int64_t size[3] = {of->kind == SCALE_TENSOR  ? 1
                             : of->kind == SCALE_HEADS ? s->kv_heads
                                                       : b->pages,
                             s->kv_heads, d->page};
    const int rank = of->kind == SCALE_KEYS ? 3 : 1;
    const int64_t count = rank == 1 ? size[0] : size[0] * size[1] * size[2];
    double *values = calloc((size_t)count + 1, sizeof *values);
    if (!values)
        abort();
    for (int64_t i = 0; i < count; i++)
        values[i] = rank == 1 ? of->scale[i] : which ? 1e30 : NAN;
    for (int64_t i = 0; rank == 3 && i < d->entries * s->kv_heads * d->page; i++)
        if (d->used[i])
            values[b->page_of[i / d->page / s->kv_heads] * s->kv_heads * d->page + i % (s->kv_heads * d->page)] =
                of->scale[i];
    /* Strides of one, two or three dimensions, none negative: they may be outputs. */
    layout l = c->ints;
    l.negative = 0;
    const attune_status status = place(r, name, ATTUNE_F32, rank, size, &l, values, false, p);
    free(values);
    *t = p->tensor;
    return status == ATTUNE_OK || failed(f, name, status);
}

static bool place_cache(runner *r, const serving *s, const step *c, const step_data *d, int which, fixture *b,
                        finding *f)
{
    const cache_layout *l = &c->cache[which];
    attune_tensor k, v = {.rank = 0};
    choose_pages(s, c, d, which, b);
    int64_t units = lay_rows(s, d, l, &d->k, b->pages, &k), v_units = 0;
    const bool beside = l->beside && !s->latent && s->k_dtype == s->v_dtype;
    if (!s->latent)
        v_units = lay_rows(s, d, l, &d->v, b->pages, &v);
    if (beside) {
        v.offset += (uint64_t)units * attune_dtype_size(s->k_dtype);
        units = k.stride[0] = v.stride[0] = units + v_units;
    }
    if (!slab_create(r, (size_t)k.offset + (size_t)(b->pages * units) * attune_dtype_size(k.dtype), which, &b->k, f))
        return false;
    if (!s->latent && !beside &&
        !slab_create(r, (size_t)v.offset + (size_t)(b->pages * v_units) * attune_dtype_size(v.dtype), 2 * which, &b->v,
                     f))
        return false;
    slab *const values = beside ? &b->k : &b->v;
    k.buffer = b->k.buffer;
    write_rows(s, d, b, &d->k, &k, b->k.image);
    forget_new(s, d, b, &d->k, &k, b->k.image);
    if (!s->latent) {
        v.buffer = values->buffer;
        write_rows(s, d, b, &d->v, &v, values->image);
        forget_new(s, d, b, &d->v, &v, values->image);
    }
    b->cache.struct_size = sizeof b->cache;
    b->cache.k = k;
    b->cache.v = v;
    return slab_write(&b->k, f) && (!b->v.bytes || slab_write(&b->v, f)) &&
           place_scale(r, s, c, d, &d->k, "k_scale", which, b, &b->k_scale, &b->cache.k_scale, f) &&
           (s->latent || place_scale(r, s, c, d, &d->v, "v_scale", which, b, &b->v_scale, &b->cache.v_scale, f));
}

/* ---------------------------------------------------------------------------------------------------------- integers
 */

static bool place_ints(runner *r, const char *name, int rank, const int64_t *size, const layout *l,
                       const int32_t *values, placed *p, attune_tensor *t, finding *f)
{
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= size[i];
    double *copy = calloc((size_t)count + 1, sizeof *copy);
    if (!copy)
        abort();
    for (int64_t i = 0; i < count; i++)
        copy[i] = values[i];
    const attune_status status = place(r, name, ATTUNE_I32, rank, size, l, copy, false, p);
    free(copy);
    *t = p->tensor;
    return status == ATTUNE_OK || failed(f, name, status);
}

/* Entries that no sequence looks at hold anything; those without a page, a number outside of the pool. */
static bool place_table(runner *r, const serving *s, const step *c, const step_data *d, int which, fixture *b,
                        finding *f)
{
    if (!s->page)
        return true;
    int32_t *table = calloc((size_t)d->entries + 1, sizeof *table);
    if (!table)
        abort();
    for (int64_t e = 0; e < d->entries; e++) {
        const uint64_t word = mix(mix(c->seed, (uint64_t)(950 + which)), (uint64_t)e);
        const int32_t outside[] = {-1, (int32_t)b->pages, INT32_MAX, INT32_MIN};
        table[e] = d->hole[e]     ? outside[word & 3]
                   : d->mapped[e] ? (int32_t)b->page_of[e]
                   : word & 1     ? (int32_t)(word >> 8 & 0xffffff)
                                  : -(int32_t)(word >> 8 & 0xffffff);
    }
    for (int64_t row = 0; row < d->rows; row++)
        if (d->new_rows[row])
            table[d->entry_of[row]] = (int32_t)b->page_of[d->entry_of[row]];
    const int64_t size[2] = {s->list ? d->entries : c->sequences, d->columns};
    bool ok = place_ints(r, "pages", s->list ? 1 : 2, size, &c->ints, table, &b->table, &b->cache.pages, f);
    free(table);
    if (ok && s->list)
        ok = place_ints(r, "pages_start", 1, (const int64_t[]){c->sequences + 1}, &c->ints, d->pages_start, &b->starts,
                        &b->cache.pages_start, f);
    return ok;
}

static bool place_batch(runner *r, const serving *s, const step *c, const step_data *d, fixture *b, finding *f)
{
    attune_batch *t = &b->batch;
    const int64_t n = c->sequences, more = n + 1, one = 1;
    t->struct_size = sizeof *t;
    const int32_t count = c->count;
    bool ok = place_ints(r, "kv_len", 1, &n, &c->ints, d->kv_len, &b->kv_len, &t->kv_len, f);
    if (ok && s->packed)
        ok = place_ints(r, "q_start", 1, &more, &c->ints, d->q_start, &b->q_start, &t->q_start, f);
    if (ok && c->has_first)
        ok = place_ints(r, "kv_first", 1, &n, &c->ints, d->kv_first, &b->kv_first, &t->kv_first, f);
    if (ok && c->has_shared)
        ok = place_ints(r, "shared", 1, &n, &c->ints, d->shared, &b->shared, &t->shared, f);
    if (ok && c->has_count)
        ok = place_ints(r, "count", 1, &one, &c->ints, &count, &b->count, &t->count, f);
    if (!ok || !c->has_tree)
        return ok;
    const int64_t size[3] = {s->packed ? d->rows : c->sequences, s->packed ? c->words : c->rows[0], c->words};
    return place_ints(r, "tree", s->packed ? 2 : 3, size, &c->ints, (const int32_t *)d->tree, &b->tree, &t->tree, f);
}

/* -------------------------------------------------------------------------------------------------------------- rows
 */

/* The last dimension is contiguous: rows of rank 3 are placed as those of a batch of one. */
bool place_rows(runner *r, const serving *s, const char *name, attune_dtype dtype, const grid *v, const layout *l,
                bool output, placed *p, attune_tensor *t, finding *f)
{
    int64_t size[4] = {1, v->size[0], v->size[1], v->size[2]};
    const attune_status status =
        place(r, name, dtype, 4, s->packed ? size : v->size, l, output ? NULL : v->at, false, p);
    *t = p->tensor;
    for (int i = 0; s->packed && i < 4; i++) {
        t->size[i] = i < 3 ? t->size[i + 1] : 0;
        t->stride[i] = i < 3 ? t->stride[i + 1] : 0;
    }
    t->rank = s->packed ? 3 : 4;
    return status == ATTUNE_OK || failed(f, name, status);
}

static bool place_outputs(runner *r, const serving *s, const step *c, const step_data *d, fixture *b, finding *f)
{
    const attune_dtype real = s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    if (!place_rows(r, s, "o", s->o_dtype, &d->o.value, &c->o, true, &b->out[0], &b->args.o, f))
        return false;
    attune_status status = ATTUNE_OK;
    if (c->want_lse)
        status = place(r, "lse", real, d->lse.value.rank, d->lse.value.size, &c->lse, NULL, false, &b->out[1]);
    if (status == ATTUNE_OK && c->want_row_max)
        status = place(r, "row_max", real, d->lse.value.rank, d->lse.value.size, &c->row_max, NULL, false, &b->out[2]);
    b->args.lse = b->out[1].tensor;
    b->args.row_max = b->out[2].tensor;
    return status == ATTUNE_OK || failed(f, "an output", status);
}

static bool place_names(runner *r, const serving *s, const step *c, const step_data *d, fixture *b, finding *f)
{
    for (int which = 0; which < 2; which++) {
        const tree *t = which ? &s->score : &s->mask;
        for (int i = 0; (which ? s->has_score : s->has_mask) && i < t->symbol_count; i++) {
            const tree_symbol *symbol = &t->symbols[i];
            const binding *bound = which ? &d->score[i] : &d->mask[i];
            placed *p = &b->captures[which * SYMBOLS + i];
            if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
                b->parameters[b->args.parameter_count++] = (attune_parameter){symbol->name, bound->number};
                continue;
            }
            const attune_status status = place(r, symbol->name, symbol->dtype, symbol->rank, bound->size,
                                               &c->captures[which * SYMBOLS + i], bound->values, false, p);
            if (status != ATTUNE_OK)
                return failed(f, "a capture", status);
            b->named[b->args.capture_count++] = (attune_capture){symbol->name, p->tensor};
        }
    }
    b->args.captures = b->named;
    b->args.parameters = b->parameters;
    return true;
}

bool fixture_create(runner *r, const serving *s, const step *c, const step_data *d, const attune_plan *plan, int which,
                    fixture *b, finding *f)
{
    *b = (fixture){.args = {.struct_size = sizeof b->args}};
    const uint64_t workspace = attune_plan_workspace_size(plan), offset = (uint64_t)c->workspace_offset * 256;
    const int64_t heads = s->heads;
    if (!place_cache(r, s, c, d, which, b, f) || !place_table(r, s, c, d, which, b, f) ||
        !place_batch(r, s, c, d, b, f) || !place_rows(r, s, "q", s->dtype, &d->q, &c->q, false, &b->q, &b->args.q, f) ||
        !place_outputs(r, s, c, d, b, f) || !place_names(r, s, c, d, b, f))
        return false;
    if (s->sinks) {
        const attune_status status = place(r, "sinks", s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 1, &heads,
                                           &c->ints, d->sinks, false, &b->sinks);
        b->args.sinks = b->sinks.tensor;
        if (status != ATTUNE_OK)
            return failed(f, "sinks", status);
    }
    if (workspace && (!slab_create(r, workspace + offset, 0, &b->workspace, f) || !slab_write(&b->workspace, f)))
        return false;
    b->args.workspace = b->workspace.buffer;
    b->args.workspace_offset = offset;
    b->args.cache = &b->cache;
    b->args.batch = &b->batch;
    return true;
}

void fixture_destroy(fixture *b)
{
    slab *const slabs[] = {&b->k, &b->v, &b->workspace, &b->schedule};
    placed *const all[] = {&b->k_scale, &b->v_scale, &b->q,      &b->out[0],   &b->out[1],
                           &b->out[2],  &b->q_start, &b->kv_len, &b->kv_first, &b->shared,
                           &b->count,   &b->table,   &b->starts, &b->tree,     &b->sinks};
    for (size_t i = 0; i < sizeof slabs / sizeof *slabs; i++)
        slab_destroy(slabs[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        displace(all[i]);
    for (int i = 0; i < 2 * SYMBOLS; i++)
        displace(&b->captures[i]);
    free(b->page_of);
    *b = (fixture){.pages = 0};
}

bool fixture_unchanged(const fixture *b, finding *f)
{
    const placed *const all[] = {&b->k_scale, &b->v_scale, &b->q,     &b->q_start, &b->kv_len, &b->kv_first,
                                 &b->shared,  &b->count,   &b->table, &b->starts,  &b->tree,   &b->sinks};
    if (!slab_same(&b->k) || (b->v.bytes && !slab_same(&b->v)))
        return fail(f, "touched", "the cache was written to");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool same = true;
        if (all[i]->bytes && (unchanged(all[i], &same) != ATTUNE_OK || !same))
            return fail(f, "touched", "%s was written to", all[i]->name);
    }
    for (int i = 0; i < 2 * SYMBOLS; i++) {
        bool same = true;
        if (b->captures[i].bytes && (unchanged(&b->captures[i], &same) != ATTUNE_OK || !same))
            return fail(f, "touched", "%s was written to", b->captures[i].name);
    }
    return true;
}

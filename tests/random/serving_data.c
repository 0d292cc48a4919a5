/* SPDX-License-Identifier: MIT */
/* A step's data: integers as the device reads them, what they mean, keys and values, queries and captures. Each element
 * follows from the seed and its indices alone. */
#include "random/serving.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEED_Q = 1,
    SEED_K,
    SEED_V,
    SEED_HOLE,
    SEED_TREE,
    SEED_SINKS,
    SEED_NEW_K,
    SEED_NEW_V,
    SEED_DROP,
    SEED_POSITION,
    SEED_SYMBOL
};

static void *zeroed(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory)
        abort();
    return memory;
}

static int64_t clamped(int64_t value, int64_t lo, int64_t hi)
{
    return value < lo ? lo : value > hi ? hi : value;
}

/* ------------------------------------------------------------------------------------------------------ its numbers */

static int32_t told(int64_t value)
{
    return (int32_t)clamped(value, INT32_MIN, INT32_MAX);
}

/* Entries of each sequence's table, and the numbers of the batch. */
static void number(const serving *s, const step *c, step_data *d)
{
    int64_t keys[SEQUENCES], longest = 0, row = c->before;
    for (int b = 0; b < c->sequences; b++) {
        keys[b] = clamped(c->keys[b], 0, s->kv_len);
        longest = keys[b] > longest ? keys[b] : longest;
    }
    d->page = s->page ? s->page : clamped(longest + c->table_more, 1, INT64_MAX);
    d->columns = s->page ? clamped((longest + s->page - 1) / s->page + c->table_more, 1, INT64_MAX) : 1;
    for (int b = 0; b < c->sequences; b++) {
        int64_t count = d->columns;
        if (s->list) {
            const int64_t more = c->table_more > 0 ? (int64_t)(mix(c->seed, (uint64_t)b) % 3) : c->table_more;
            count = clamped((keys[b] + s->page - 1) / s->page + more, 0, INT64_MAX);
        }
        d->entry_start[b + 1] = d->entry_start[b] + count;
        d->kv_len[b] = told(c->keys[b]);
        d->kv_first[b] = told(c->first[b]);
        d->shared[b] = told(c->shared[b]);
    }
    d->entries = clamped(d->entry_start[c->sequences], 1, INT64_MAX);
    for (int b = 0; b <= c->sequences; b++) {
        d->q_start[b] = told(row + c->nudge[b]);
        d->pages_start[b] = told(d->entry_start[b] + c->page_nudge[b]);
        row += b < c->sequences ? c->rows[b] : 0;
    }
    d->rows = s->packed ? clamped(row + c->after, 1, s->tokens) : c->sequences * c->rows[0];
}

sequence sequence_of(const serving *s, const step *c, const step_data *d, int b)
{
    const bool live = !c->has_count || b < c->count;
    const int64_t start = s->packed ? d->q_start[b] : b * c->rows[0],
                  end = s->packed ? d->q_start[b + 1] : start + c->rows[0];
    sequence of = {.row = start, .rows = end - start, .entry = d->entry_start[b]};
    of.written = live && start >= 0 && start <= end && end <= d->rows && end - start <= s->q_len;
    int64_t capacity = d->page * d->columns;
    if (s->list) {
        const int64_t first = d->pages_start[b], last = d->pages_start[b + 1];
        of.entry = first;
        capacity = first >= 0 && first <= last && last <= d->entries ? (last - first) * d->page : -1;
    }
    of.keys = d->kv_len[b];
    of.masked = of.keys < 0 || of.keys > s->kv_len || of.keys > capacity;
    of.first = c->has_first ? clamped(d->kv_first[b], 0, of.keys < 0 ? 0 : of.keys) : 0;
    return of;
}

int64_t row_index(const serving *s, const step_data *d, const sequence *of, int b, int64_t i)
{
    (void)s, (void)d, (void)b;
    return of->row + i;
}

int64_t lse_index(const serving *s, const step_data *d, int64_t row, int64_t h)
{
    if (s->packed)
        return row * s->heads + h;
    const int64_t rows = d->q.size[2];
    return (row / rows * s->heads + h) * rows + row % rows;
}

int owner_of(const step *c, const step_data *d, int b, int64_t kv)
{
    while (c->has_shared && b > 0 && kv < d->shared[b])
        b--;
    return b;
}

static bool in_tree(const step *c, const step_data *d, int64_t row, int64_t bit)
{
    return bit / 32 < c->words && d->tree[row * c->words + bit / 32] >> bit % 32 & 1;
}

bool pair_allowed(const serving *s, const step *c, const step_data *d, const sequence *of, int b, int64_t i, int64_t h,
                  int64_t kv)
{
    const int64_t row = row_index(s, d, of, b, i), draft = kv - (of->keys - of->rows);
    if (of->masked || kv < of->first || kv >= of->keys || d->hole[of->entry + kv / d->page])
        return false;
    if (c->has_tree && draft >= 0 && !in_tree(c, d, row, draft))
        return false;
    const point at = {.b = b,
                      .h = (int32_t)h,
                      .q = (int32_t)(of->keys - of->rows + i),
                      .kv = (int32_t)kv,
                      .h_kv = (int32_t)(h / (s->heads / s->kv_heads)),
                      .q_len = (int32_t)of->rows,
                      .kv_len = (int32_t)of->keys,
                      .row = (int32_t)row};
    return !s->has_mask || tree_allows(&s->mask, d->mask, &at);
}

/* ---------------------------------------------------------------------------------------------------- keys and values
 */

static void mark_holes(const serving *s, const step *c, step_data *d)
{
    d->hole = zeroed(d->entries, sizeof *d->hole);
    for (int b = 0; b < c->sequences && s->page; b++)
        for (int64_t e = d->entry_start[b]; e < d->entry_start[b + 1]; e++) {
            const int64_t first = (e - d->entry_start[b]) * d->page;
            const bool common =
                c->has_shared && (first < d->shared[b] || (b + 1 < c->sequences && first < d->shared[b + 1]));
            const uint64_t word = mix(mix(c->seed, SEED_HOLE), (uint64_t)(e * 8 + b));
            d->hole[e] = !common && (int)(word % 100) < c->holes;
        }
}

/* Keys that something reads; others may hold anything. Of keys in common every sequence has them. */
static void mark_used(const serving *s, const step *c, step_data *d)
{
    const int64_t heads = s->kv_heads, ratio = s->heads / s->kv_heads, most = s->kv_len;
    d->used = zeroed(d->entries * heads * d->page, sizeof *d->used);
    d->mapped = zeroed(d->entries, sizeof *d->mapped);
    bool *seen = c->data == DATA_NAN_HIDDEN ? zeroed(c->sequences * heads * most, sizeof *seen) : NULL;
    for (int pass = seen ? 0 : 1; pass < 2; pass++)
        for (int b = 0; b < c->sequences; b++) {
            const sequence of = sequence_of(s, c, d, b);
            if (of.masked || (c->has_count && b >= c->count) || (!c->has_shared && !(of.written && of.rows > 0)))
                continue;
            for (int64_t kv = c->has_shared ? 0 : of.first; kv < of.keys; kv++) {
                const int64_t entry = of.entry + kv / d->page;
                d->mapped[entry] = !d->hole[entry];
                for (int64_t h = 0; h < heads; h++) {
                    bool *one = seen ? &seen[(owner_of(c, d, b, kv) * heads + h) * most + kv] : NULL;
                    uint8_t *use = &d->used[(entry * heads + h) * d->page + kv % d->page];
                    if (pass && *use != KEY_READ)
                        *use = !seen || *one ? KEY_READ : KEY_HIDDEN;
                    for (int64_t i = 0; !pass && of.written && i < of.rows * ratio && !*one; i++)
                        *one = pair_allowed(s, c, d, &of, b, i / ratio, h * ratio + i % ratio, kv);
                }
            }
        }
    free(seen);
}

static void fill_cache(const serving *s, const step *c, const step_data *d, uint64_t seed, attune_dtype dtype,
                       int64_t columns, scale_kind kind, rows_of_cache *of)
{
    const int64_t block = (int64_t)attune_dtype_block(dtype), heads = s->kv_heads;
    *of = (rows_of_cache){.dtype = dtype, .columns = columns, .units = columns / block, .kind = kind};
    of->bytes = (size_t)of->units * attune_dtype_size(dtype);
    of->at = zeroed(d->entries * heads * d->page, of->bytes);
    const int64_t factors = kind == SCALE_KEYS ? d->entries * heads * d->page : kind == SCALE_HEADS ? heads : 1;
    of->scale = zeroed(factors, sizeof *of->scale);
    const double far = c->data == DATA_SMALL    ? 0x1p-20
                       : c->data == DATA_UNEVEN ? (seed == SEED_K ? 0x1p-10 : 0x1p10)
                                                : 1,
                 unit = dtype == ATTUNE_I8 ? far / 40 : far;
    for (int64_t i = 0; i < factors && kind != SCALE_KEYS; i++)
        of->scale[i] =
            (double)(float)(unit * (0.5 + (double)(mix(mix(c->seed, seed + 50), (uint64_t)i) % 1000) / 1000));
    for (int b = 0; b < c->sequences; b++)
        for (int64_t e = d->entry_start[b]; e < d->entry_start[b + 1]; e++)
            for (int64_t i = 0; i < heads * d->page; i++) {
                const int64_t kv = (e - d->entry_start[b]) * d->page + i % d->page, at = e * heads * d->page + i;
                if (!d->used[at])
                    continue;
                if (d->used[at] == KEY_HIDDEN) {
                    memset(of->at + (size_t)at * of->bytes, 0xff, of->bytes);
                    if (kind == SCALE_KEYS)
                        of->scale[at] = NAN;
                    continue;
                }
                uint64_t word = mix(mix(c->seed, seed), (uint64_t)owner_of(c, d, b, kv));
                word = mix(mix(word, (uint64_t)kv), (uint64_t)(i / d->page));
                row_draw(of, word, c->data, of->at + (size_t)at * of->bytes);
                if (kind == SCALE_KEYS)
                    of->scale[at] = (double)(float)(unit * (0.5 + (double)(mix(word, 7) % 1000) / 1000));
            }
}

/* ----------------------------------------------------------------------------------------------------------- the rest
 */

static void fill_rows(const serving *s, const step *c, const step_data *d, int seed, int64_t heads, int64_t columns,
                      grid *v)
{
    if (s->packed)
        grid_create(v, 3, (const int64_t[]){d->rows, heads, columns});
    else
        grid_create(v, 4, (const int64_t[]){c->sequences, heads, c->rows[0], columns});
    const double factor = c->data == DATA_LARGE                      ? 3
                          : c->data == DATA_SMALL && seed != SEED_Q  ? 0x1p-18
                          : c->data == DATA_UNEVEN && seed == SEED_Q ? 0x1p8
                                                                     : 1;
    for (int64_t i = 0; i < v->count; i++) {
        const uint64_t word = mix(mix(c->seed, (uint64_t)seed), (uint64_t)i);
        const double value = c->data == DATA_EQUAL ? (double)(word >> 20 & 3) - 1.0 : normal_of(word) * factor;
        v->at[i] = rounded_to(s->dtype, value);
        if (c->data == DATA_NONFINITE && seed == SEED_Q && word >> 30 & 1 && word % 4096 == 0)
            v->at[i] = word >> 50 & 1 ? NAN : INFINITY;
    }
}

static int64_t capture_length(const serving *s, const step *c, const step_data *d, const tree_symbol *symbol, int k)
{
    static const int64_t most[] = {INT64_MAX, INT64_MAX, 300, 40, 16};
    const node_op by = symbol->by[k];
    int64_t keys = 1;
    for (int b = 0; b < c->sequences; b++)
        keys = d->kv_len[b] > keys && d->kv_len[b] <= s->kv_len ? d->kv_len[b] : keys;
    const int64_t full = by == OP_Q || by == OP_KV ? keys
                         : by == OP_H              ? s->heads
                         : by == OP_B              ? c->sequences
                         : by == OP_H_KV           ? s->kv_heads
                         : by == OP_ROW            ? d->rows
                                                   : 6;
    return clamped(full - c->shrink_captures, 1, most[symbol->rank]);
}

static void bind(const serving *s, const step *c, const step_data *d, const tree *t, int which, binding *bindings)
{
    for (int i = 0; i < t->symbol_count; i++) {
        const tree_symbol *symbol = &t->symbols[i];
        const uint64_t seed = mix(c->seed, (uint64_t)(SEED_SYMBOL + which * SYMBOLS + i)), way = mix(seed, 77);
        binding *b = &bindings[i];
        if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
            b->number = parameter_value(symbol, way);
            continue;
        }
        grid v;
        for (int k = 0; k < symbol->rank; k++)
            b->size[k] = capture_length(s, c, d, symbol, k);
        grid_create(&v, symbol->rank, b->size);
        b->values = v.at;
        const int64_t last = b->size[symbol->rank - 1];
        for (int64_t k = 0; k < v.count; k++)
            v.at[k] = rounded_to(symbol->dtype, capture_value(symbol, mix(seed, (uint64_t)k), way, k % last, last));
    }
}

static void draw_tree(const step *c, step_data *d)
{
    d->tree = zeroed(d->rows * c->words, sizeof *d->tree);
    for (int64_t i = 0; i < d->rows * c->words; i++) {
        const uint64_t word = mix(mix(c->seed, SEED_TREE), (uint64_t)i);
        d->tree[i] = (uint32_t)(word | word >> 32);
    }
}

static void draw_sinks(const serving *s, const step *c, step_data *d)
{
    for (int64_t h = 0; h < s->heads; h++) {
        const uint64_t word = mix(mix(c->seed, SEED_SINKS), (uint64_t)h);
        d->sinks[h] = (double)(int64_t)(word & 1023) / 128 - 4;
        if (word >> 20 & 1 && word >> 21 & 1)
            d->sinks[h] = word >> 22 & 1 ? -INFINITY : (double)(int64_t)(word >> 30 & 127) - 60;
        if (c->data == DATA_NONFINITE && word >> 40 & 1)
            d->sinks[h] = word >> 41 & 1 ? NAN : INFINITY;
    }
}

int64_t position_of(const step *c, int64_t row, int64_t key)
{
    const uint64_t word = mix(mix(c->seed, SEED_POSITION), (uint64_t)row);
    return c->append.positions ? (int64_t)(word % (uint64_t)(c->append.rotary_positions + 2)) - 1 : key;
}

/* Rows that attune_append writes, and where. In lists of slots some are left out. */
static void place_new(const serving *s, const step *c, step_data *d)
{
    d->new_rows = zeroed(d->rows, sizeof *d->new_rows);
    d->entry_of = zeroed(d->rows, sizeof *d->entry_of);
    d->key_of = zeroed(d->rows, sizeof *d->key_of);
    for (int b = 0; b < c->sequences && c->append.used; b++) {
        const sequence of = sequence_of(s, c, d, b);
        for (int64_t i = 0; of.written && !of.masked && i < of.rows; i++) {
            const int64_t kv = of.keys - of.rows + i, row = row_index(s, d, &of, b, i);
            const bool dropped = c->append.slots && mix(mix(c->seed, SEED_DROP), (uint64_t)row) % 6 == 0;
            const int64_t position = position_of(c, row, kv);
            if (c->append.rotate && (position < 0 || position >= c->append.rotary_positions))
                continue;
            if (kv < 0 || dropped || d->hole[of.entry + kv / d->page])
                continue;
            d->entry_of[row] = of.entry + kv / d->page;
            d->key_of[row] = kv % d->page;
            d->new_rows[row] = true;
        }
    }
}

static void expect(int rank, const int64_t *size, expected *e)
{
    grid_create(&e->value, rank, size);
    e->bound = zeroed(e->value.count, sizeof *e->bound);
}

bool step_create(const serving *s, const step *c, step_data *d)
{
    *d = (step_data){.page = 0};
    number(s, c, d);
    mark_holes(s, c, d);
    draw_tree(c, d);
    draw_sinks(s, c, d);
    bind(s, c, d, &s->mask, 0, d->mask);
    bind(s, c, d, &s->score, 1, d->score);
    fill_rows(s, c, d, SEED_Q, s->heads, s->head_dim, &d->q);
    place_new(s, c, d);
    mark_used(s, c, d);
    fill_cache(s, c, d, SEED_K, s->k_dtype, s->head_dim, s->k_scale, &d->k);
    if (!s->latent)
        fill_cache(s, c, d, SEED_V, s->v_dtype, s->head_dim_v, s->v_scale, &d->v);
    if (c->append.used) {
        fill_rows(s, c, d, SEED_NEW_K, s->kv_heads, s->head_dim, &d->new_k);
        fill_rows(s, c, d, SEED_NEW_V, s->kv_heads, s->head_dim_v, &d->new_v);
    }
    const int64_t *size = d->q.size;
    if (s->packed) {
        expect(3, (const int64_t[]){size[0], size[1], s->head_dim_v}, &d->o);
        expect(2, size, &d->lse);
        expect(2, size, &d->row_max);
    } else {
        expect(4, (const int64_t[]){size[0], size[1], size[2], s->head_dim_v}, &d->o);
        expect(3, size, &d->lse);
        expect(3, size, &d->row_max);
    }
    d->contested = zeroed(d->rows, sizeof *d->contested);
    return true;
}

void step_destroy(step_data *d)
{
    for (int i = 0; i < SYMBOLS; i++) {
        free(d->mask[i].values);
        free(d->score[i].values);
    }
    void *const all[] = {d->hole,     d->mapped,    d->used,          d->k.at,         d->k.scale,
                         d->v.at,     d->v.scale,   d->q.at,          d->tree,         d->new_k.at,
                         d->new_v.at, d->new_rows,  d->entry_of,      d->key_of,       d->o.value.at,
                         d->o.bound,  d->lse.bound, d->row_max.bound, d->lse.value.at, d->row_max.value.at,
                         d->contested};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    *d = (step_data){.page = 0};
}

/* SPDX-License-Identifier: MIT */
/* A call's data: what the mask allows, tensors and captures. Each element follows from the seed and its indices alone,
 * so that a problem which shrinks keeps the data of what is left. */
#include "random/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEED_Q = 1,
    SEED_K,
    SEED_V,
    SEED_D_O,
    SEED_D_LSE,
    SEED_LISTS,
    SEED_DENSE,
    SEED_NONFINITE,
    SEED_TENSOR,
    SEED_SINKS,
    SEED_SYMBOL = 16
};

int segments_of(const call *c)
{
    return c->segment_count ? c->segment_count : 1;
}

int64_t segment_length(const call *c, int segment)
{
    return c->segment_count ? c->segment[segment] : c->kv_len;
}

bool reads_tensor(const problem *p)
{
    bool reads = p->mask == MASK_TENSOR;
    for (int s = 0; s < p->score.symbol_count; s++)
        reads |= p->score.symbols[s].of_mask;
    return reads;
}

int64_t segment_start(const call *c, int segment)
{
    int64_t start = 0;
    for (int i = 0; i < segment; i++)
        start += segment_length(c, i);
    return start;
}

int64_t mask_q_len(const problem *p, const call *c)
{
    const int64_t before = p->mask == MASK_SLICE ? c->slice_block0 * p->q_block : 0;
    const int64_t length = before + c->q_len + c->mask_more_q;
    return reads_tensor(p) && length > p->q_len ? p->q_len : length;
}

int64_t mask_kv_len(const problem *p, const call *c, int segment)
{
    const int64_t length = segment_length(c, segment) + c->mask_more_kv;
    return reads_tensor(p) && length > p->kv_len ? p->kv_len : length;
}

int64_t mask_batch(const problem *p, const call *c)
{
    return p->mask == MASK_TENSOR ? p->batch : c->batch + (p->mask == MASK_SLICE ? c->slice_batch0 : 0);
}

int64_t mask_kv_heads(const problem *p, const call *c)
{
    return p->kv_heads + (p->mask == MASK_SLICE ? c->slice_heads0 : 0);
}

int64_t mask_heads(const problem *p, const call *c)
{
    return mask_kv_heads(p, c) * (p->heads / p->kv_heads);
}

void grid_create(grid *v, int rank, const int64_t *size)
{
    *v = (grid){.rank = rank, .count = 1};
    for (int i = 0; i < rank; i++)
        v->count *= v->size[i] = size[i];
    v->at = calloc((size_t)v->count + 1, sizeof *v->at);
    if (!v->at)
        abort();
}

/* Near enough to a normal one: a sum of four. */
static double normal(uint64_t word)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(word >> 16 * i & 0xffff) / 65536;
    return (sum - 2) * 1.7320508;
}

/* Indices of a dimension that is broadcast count as 0. */
static uint64_t word_at(uint64_t seed, const grid *v, const layout *l, int64_t flat)
{
    uint64_t word = seed;
    int64_t index[ATTUNE_MAX_RANK];
    for (int i = v->rank; i-- > 0; flat /= v->size[i])
        index[i] = l->broadcast >> i & 1 ? 0 : flat % v->size[i];
    for (int i = 0; i < v->rank; i++)
        word = mix(word, (uint64_t)index[i]);
    return word;
}

/* Powers of two, so that O and products stay in the range of all the types. */
static double factor_of(const problem *p, data_kind data, int seed)
{
    const bool f16 = p->dtype == ATTUNE_F16 || p->kv_dtype == ATTUNE_F16 || p->o_dtype == ATTUNE_F16;
    if (data == DATA_LARGE && seed <= SEED_K)
        return 3;
    if (data == DATA_SMALL && (seed == SEED_V || seed == SEED_D_O))
        return f16 ? 0x1p-18 : 0x1p-100;
    if (data == DATA_UNEVEN)
        return seed == SEED_Q ? 0x1p8 : seed == SEED_K ? 0x1p-8 : (seed == SEED_V) == f16 ? 0x1p12 : 0x1p-12;
    return 1;
}

static void fill(const problem *p, attune_dtype dtype, const call *c, int seed, const layout *l, grid *v)
{
    const bool few = c->data == DATA_EQUAL;
    const double factor = factor_of(p, c->data, seed);
    for (int64_t i = 0; i < v->count; i++) {
        const uint64_t word = word_at(mix(c->seed, (uint64_t)seed), v, l, i);
        const double value = few ? (double)(word >> 20 & 3) - 1.0 : normal(word) * factor;
        v->at[i] = rounded_to(dtype, value);
    }
}

/* NaN and infinity here and there. */
static void make_nonfinite(const call *c, int seed, const layout *l, int64_t rarity, grid *v)
{
    static const double what[] = {NAN, INFINITY, -INFINITY, NAN};
    for (int64_t i = 0; i < v->count; i++) {
        const uint64_t word = word_at(mix(c->seed, (uint64_t)(SEED_NONFINITE * 64 + seed)), v, l, i);
        if (word % (uint64_t)rarity == 0)
            v->at[i] = what[word >> 40 & 3];
    }
}

/* Logits: some that add nothing, and some that have nearly all of their rows. */
static void fill_sinks(const problem *p, const call *c, grid *v)
{
    for (int64_t i = 0; i < v->count; i++) {
        const uint64_t word = word_at(mix(c->seed, SEED_SINKS), v, &c->sinks, i), way = mix(word, 77) % 8;
        const double value = way == 0 ? -INFINITY : way == 1 ? 40 * normal(word) : 1 + 3 * normal(word);
        v->at[i] = rounded_to(p->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, value);
    }
    if (c->data == DATA_NONFINITE && c->seed % 3 == 0)
        make_nonfinite(c, SEED_SINKS, &c->sinks, 1 + v->count / 2, v);
}

int64_t capture_size(const problem *p, const call *c, const tree_symbol *s, int dimension)
{
    /* Arrays of many dimensions are short in each: reads past their end give 0. */
    static const int64_t most[] = {INT64_MAX, INT64_MAX, 300, 40, 16};
    if (s->of_mask) {
        const int64_t size[4] = {c->lists_broadcast_b ? 1 : mask_batch(p, c), c->lists_broadcast_h ? 1 : p->heads,
                                 mask_q_len(p, c), mask_kv_len(p, c, 0)};
        return size[dimension];
    }
    const node_op by = s->by[dimension];
    const int64_t full = by == OP_Q      ? c->q_len
                         : by == OP_KV   ? c->kv_len
                         : by == OP_H    ? p->heads
                         : by == OP_B    ? c->batch
                         : by == OP_H_KV ? p->kv_heads
                                         : 6;
    const int64_t size = full - c->shrink_captures < 1 ? 1 : full - c->shrink_captures;
    return size < most[s->rank] ? size : most[s->rank];
}

double parameter_value(const tree_symbol *s, uint64_t way)
{
    static const double ends[] = {INT32_MIN, INT32_MAX, -1, -7};
    if (s->dtype != ATTUNE_I32)
        return (double)(way % 512) / 64 - 4;
    return way >> 20 & 15 ? (double)(way % 50) : ends[way & 3];
}

/* Integers that index nothing or wrap, and floats whose products do not fit f16 or are its subnormal numbers. */
static double rare_value(attune_dtype dtype, uint64_t word)
{
    static const double ends[] = {INT32_MIN, INT32_MAX, -1, -2, INT32_MIN + 1, 1 << 16, 0x7fffff, -100};
    const double value = (double)((int64_t)(word >> 8 & 255) - 128);
    if (dtype == ATTUNE_F16)
        return value * (word & 1 ? 0x1p-24 : 256);
    if (dtype == ATTUNE_F32 || dtype == ATTUNE_BF16)
        return value * (word & 1 ? 0x1p-40 : 0x1p20);
    return dtype == ATTUNE_U8 ? 255 : ends[word & 7];
}

double capture_value(const tree_symbol *s, uint64_t word, uint64_t way, int64_t last, int64_t size)
{
    if (s->dtype != ATTUNE_BOOL && (way >> 20 & 7) == 0 && (word >> 40 & 7) == 0)
        return rare_value(s->dtype, word);
    switch (s->dtype) {
    case ATTUNE_BOOL:
        return word % 10 < 6;
    case ATTUNE_F32:
    case ATTUNE_F16:
    case ATTUNE_BF16:
        return (double)((int64_t)(word >> 8 & 255) - 128) / (way % 2 ? 16 : 64);
    default:
        break;
    }
    switch (way % 3) {
    case 0: /* packed documents */
        return (double)(last / 9);
    case 1:
        return (double)(word % 5);
    default:
        return (double)(word % (uint64_t)(s->dtype == ATTUNE_U8 ? 200 : size + 3));
    }
}

static void bind(const problem *p, const call *c, const call_data *d, const tree *t, int which, const layout *layouts,
                 binding *bindings)
{
    for (int s = 0; s < t->symbol_count; s++) {
        const tree_symbol *symbol = &t->symbols[s];
        const uint64_t seed = mix(c->seed, (uint64_t)(SEED_SYMBOL + which * SYMBOLS + s)), way = mix(seed, 77);
        binding *b = &bindings[s];
        if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
            b->number = parameter_value(symbol, way);
            continue;
        }
        grid v;
        for (int i = 0; i < symbol->rank; i++)
            b->size[i] = capture_size(p, c, symbol, i);
        grid_create(&v, symbol->rank, b->size);
        b->values = v.at;
        if (symbol->of_mask) {
            memcpy(v.at, d->tensor[0].at, (size_t)v.count * sizeof *v.at);
            continue;
        }
        const int64_t row = b->size[symbol->rank - 1];
        for (int64_t i = 0; i < v.count; i++) {
            const int64_t last = layouts[s].broadcast >> (symbol->rank - 1) & 1 ? 0 : i % row;
            v.at[i] =
                rounded_to(symbol->dtype, capture_value(symbol, word_at(seed, &v, &layouts[s], i), way, last, row));
        }
        const bool real = symbol->dtype == ATTUNE_F32 || symbol->dtype == ATTUNE_F16 || symbol->dtype == ATTUNE_BF16;
        if (c->data == DATA_NONFINITE && real && way % 4 == 0)
            make_nonfinite(c, SEED_SYMBOL + s, &layouts[s], 1 + v.count / 2, &v);
    }
}

/* ------------------------------------------------------------------------------------------------------------ masks */

static int64_t blocks(int64_t length, uint32_t block)
{
    return (length + block - 1) / block;
}

static void draw_lists(const problem *p, const call *c, call_data *d)
{
    d->lists_batch = c->lists_broadcast_b ? 1 : mask_batch(p, c);
    d->lists_heads = c->lists_broadcast_h ? 1 : mask_heads(p, c);
    d->q_blocks = blocks(mask_q_len(p, c), p->q_block);
    for (int s = 0; s < segments_of(c); s++) {
        d->kv_blocks[s] = blocks(mask_kv_len(p, c, s), p->kv_block);
        const int64_t count = d->lists_batch * d->lists_heads * d->q_blocks * d->kv_blocks[s];
        d->lists[s] = malloc((size_t)count + 1);
        for (int64_t i = 0; d->lists[s] && i < count; i++) {
            const uint64_t word = mix(mix(c->seed, SEED_LISTS + (uint64_t)s * 1000), (uint64_t)i) % 10;
            d->lists[s][i] = word < 3 ? 0 : word < 7 && !p->lists_whole ? 1 : 2;
        }
    }
}

static void draw_dense(const problem *p, const call *c, call_data *d)
{
    d->lists_batch = c->lists_broadcast_b ? 1 : mask_batch(p, c);
    d->lists_heads = c->lists_broadcast_h ? 1 : mask_heads(p, c);
    const int64_t rows = d->lists_batch * d->lists_heads * mask_q_len(p, c);
    for (int s = 0; s < segments_of(c); s++) {
        const int64_t columns = mask_kv_len(p, c, s);
        d->dense[s] = malloc((size_t)(rows * columns) + 1);
        for (int64_t i = 0; d->dense[s] && i < rows * columns; i++) {
            const int64_t row = i / columns, column = i % columns;
            const uint64_t seed = mix(c->seed, SEED_DENSE + (uint64_t)s * 1000);
            const uint64_t area = mix(seed, (uint64_t)(row / 24 * 4096 + column / 40)) % 4,
                           word = mix(seed, (uint64_t)i);
            d->dense[s][i] = area == 0 ? 0 : area == 1 ? (uint8_t)(1 + word % 255) : word % 3 == 0;
        }
    }
}

/* Areas that are forbidden, whole, or mixed. Of a bias negative infinity forbids, whatever else it holds. */
static void draw_tensor(const problem *p, const call *c, call_data *d)
{
    const bool truth = p->tensor_dtype == ATTUNE_BOOL || p->tensor_dtype == ATTUNE_U8;
    d->lists_batch = c->lists_broadcast_b ? 1 : mask_batch(p, c);
    d->lists_heads = c->lists_broadcast_h ? 1 : mask_heads(p, c);
    for (int s = 0; s < segments_of(c); s++) {
        const int64_t size[4] = {d->lists_batch, d->lists_heads, mask_q_len(p, c), mask_kv_len(p, c, s)};
        const uint64_t seed = mix(c->seed, SEED_TENSOR + (uint64_t)s * 1000);
        grid *v = &d->tensor[s];
        grid_create(v, 4, size);
        for (int64_t i = 0; i < v->count; i++) {
            const uint64_t word = word_at(seed, v, &c->tensor, i);
            const int64_t row = c->tensor.broadcast & 4 ? 0 : i / size[3] % size[2], column = i % size[3];
            const uint64_t area = mix(seed, (uint64_t)(row / 24 * 4096 + column / 40)) % 4;
            const bool allowed = area == 1 || (area > 1 && word % 3 == 0);
            const double bias = word >> 40 & 63 ? (double)(word >> 8 & 255) / 32 - 4 : -60000;
            v->at[i] = truth     ? allowed ? 1 + (double)(word >> 8 & 127) : 0
                       : allowed ? rounded_to(p->tensor_dtype, bias)
                                 : -INFINITY;
            if (p->tensor_dtype == ATTUNE_BOOL)
                v->at[i] = allowed;
        }
        if (c->data == DATA_NONFINITE && !truth && c->seed % 4 == 0)
            make_nonfinite(c, SEED_TENSOR, &c->tensor, 1 + v->count / 2, v);
    }
}

static bool allows(const problem *p, const call *c, const call_data *d, int segment, int64_t b, int64_t h, int64_t q,
                   int64_t kv)
{
    const int64_t ratio = p->heads / p->kv_heads;
    const bool alone = c->segment_alone || !c->segment_count;
    if (p->mask == MASK_SLICE) {
        b += c->slice_batch0;
        h += c->slice_heads0 * ratio;
        q += c->slice_block0 * p->q_block;
    }
    const int64_t plane = (d->lists_batch == 1 ? 0 : b) * d->lists_heads + (d->lists_heads == 1 ? 0 : h);
    if (p->mask == MASK_DENSE)
        return d->dense[segment][(plane * mask_q_len(p, c) + q) * mask_kv_len(p, c, segment) + kv];
    if (p->mask == MASK_TENSOR) {
        const double value = d->tensor[segment].at[(plane * mask_q_len(p, c) + q) * mask_kv_len(p, c, segment) + kv];
        return p->tensor_dtype == ATTUNE_BOOL || p->tensor_dtype == ATTUNE_U8 ? value != 0 : value != -INFINITY;
    }
    if (p->mask == MASK_LISTS) {
        const uint8_t class =
            d->lists[segment][(plane * d->q_blocks + q / p->q_block) * d->kv_blocks[segment] + kv / p->kv_block];
        if (class != 1)
            return class == 2;
    }
    const point at = {.b = (int32_t)b,
                      .h = (int32_t)h,
                      .q = (int32_t)q,
                      .kv = (int32_t)(kv + (alone ? 0 : segment_start(c, segment))),
                      .h_kv = (int32_t)(h / ratio),
                      .q_len = (int32_t)mask_q_len(p, c),
                      .kv_len = (int32_t)(alone ? mask_kv_len(p, c, segment) : c->kv_len)};
    point second_at = at;
    if (c->segment_mixed) {
        second_at.kv = (int32_t)kv;
        second_at.kv_len = (int32_t)mask_kv_len(p, c, segment);
    }
    const bool first = tree_allows(&p->masks[0], d->mask[0], &at);
    switch (p->mask) {
    case MASK_AND:
        return tree_allows(&p->masks[1], d->mask[1], &second_at) && first;
    case MASK_OR:
        return tree_allows(&p->masks[1], d->mask[1], &second_at) || first;
    case MASK_NOT:
        return !first;
    default:
        return first;
    }
}

static void allow(const problem *p, const call *c, call_data *d)
{
    const int64_t rows = c->batch * p->heads * c->q_len;
    d->allowed = malloc((size_t)(rows * c->kv_len) + 1);
    if (!d->allowed)
        abort();
    for (int64_t row = 0; row < rows; row++)
        for (int s = 0; s < segments_of(c); s++)
            for (int64_t kv = 0; kv < segment_length(c, s); kv++)
                d->allowed[row * c->kv_len + segment_start(c, s) + kv] =
                    p->mask == MASK_NONE ||
                    allows(p, c, d, s, row / c->q_len / p->heads, row / c->q_len % p->heads, row % c->q_len, kv);
}

/* NaN in keys and values that no query sees, and in queries that see nothing. */
static void hide(const problem *p, const call *c, call_data *d)
{
    const int64_t ratio = p->heads / p->kv_heads, kv_batch = d->k.size[0], groups = kv_batch * p->kv_heads;
    uint8_t *seen = calloc((size_t)(groups * c->kv_len) + 1, 1);
    for (int64_t row = 0; seen && row < c->batch * p->heads * c->q_len; row++) {
        const int64_t b = row / c->q_len / p->heads, h = row / c->q_len % p->heads;
        const int64_t group = (kv_batch == 1 ? 0 : b) * p->kv_heads + h / ratio;
        bool any = false;
        for (int64_t kv = 0; kv < c->kv_len; kv++) {
            seen[group * c->kv_len + kv] |= d->allowed[row * c->kv_len + kv];
            any |= d->allowed[row * c->kv_len + kv];
        }
        for (int64_t i = 0; !any && !c->q.broadcast && i < p->head_dim; i++)
            d->q.at[row * p->head_dim + i] = NAN;
        for (int64_t i = 0; !any && !c->d_o.broadcast && d->d_o.at && i < p->head_dim_v; i++)
            d->d_o.at[row * p->head_dim_v + i] = NAN;
    }
    for (int64_t i = 0; seen && i < groups * c->kv_len; i++) {
        if (seen[i])
            continue;
        for (int64_t j = 0; !c->k.broadcast && j < p->head_dim; j++)
            d->k.at[i * p->head_dim + j] = j % 2 ? NAN : INFINITY;
        for (int64_t j = 0; !c->v.broadcast && j < p->head_dim_v; j++)
            d->v.at[i * p->head_dim_v + j] = j % 3 ? NAN : -INFINITY;
    }
    free(seen);
}

static void expect(expected *e, int rank, const int64_t *size)
{
    grid_create(&e->value, rank, size);
    e->bound = calloc((size_t)e->value.count + 1, sizeof *e->bound);
    if (!e->bound)
        abort();
}

bool data_create(const problem *p, const call *c, call_data *d)
{
    *d = (call_data){.q_blocks = 0};
    const int64_t kv_batch = p->kv_batch == 1 ? 1 : c->batch;
    const int64_t q[4] = {c->batch, p->heads, c->q_len, p->head_dim},
                  k[4] = {kv_batch, p->kv_heads, c->kv_len, p->head_dim},
                  v[4] = {kv_batch, p->kv_heads, c->kv_len, p->head_dim_v},
                  o[4] = {c->batch, p->heads, c->q_len, p->head_dim_v};
    if (reads_tensor(p))
        draw_tensor(p, c, d);
    for (int i = 0; i < 2; i++)
        bind(p, c, d, &p->masks[i], i, c->host + i * SYMBOLS, d->mask[i]);
    bind(p, c, d, &p->score, 2, c->captures, d->score);
    if (p->mask == MASK_LISTS)
        draw_lists(p, c, d);
    if (p->mask == MASK_DENSE)
        draw_dense(p, c, d);
    allow(p, c, d);
    grid_create(&d->q, 4, q);
    grid_create(&d->k, 4, k);
    grid_create(&d->v, 4, v);
    fill(p, p->dtype, c, SEED_Q, &c->q, &d->q);
    fill(p, p->kv_dtype, c, SEED_K, &c->k, &d->k);
    fill(p, p->kv_dtype, c, SEED_V, &c->v, &d->v);
    if (p->sinks) {
        grid_create(&d->sinks, 1, &p->heads);
        fill_sinks(p, c, &d->sinks);
        expect(&d->out_d_sinks, 1, &p->heads);
    }
    expect(&d->out_o, 4, o);
    expect(&d->out_lse, 3, o);
    expect(&d->out_row_max, 3, o);
    if (p->direction == ATTUNE_BACKWARD) {
        grid_create(&d->o, 4, o);
        grid_create(&d->lse, 3, o);
        grid_create(&d->d_o, 4, o);
        grid_create(&d->d_lse, 3, o);
        fill(p, p->o_dtype, c, SEED_D_O, &c->d_o, &d->d_o);
        for (int64_t i = 0; i < d->d_lse.count; i++)
            d->d_lse.at[i] = (double)(float)normal(word_at(mix(c->seed, SEED_D_LSE), &d->d_lse, &c->d_lse, i));
        expect(&d->out_d_q, 4, q);
        expect(&d->out_d_k, 4, k);
        expect(&d->out_d_v, 4, v);
        for (int s = 0; s < p->score.symbol_count; s++)
            if (p->score.symbols[s].kind == ATTUNE_SYMBOL_CAPTURE)
                expect(&d->out_d_captures[s], p->score.symbols[s].rank, d->score[s].size);
    }
    if (c->data == DATA_NAN_HIDDEN)
        hide(p, c, d);
    if (c->data == DATA_NONFINITE) {
        make_nonfinite(c, SEED_Q, &c->q, 1 + d->q.count / (1 + (int64_t)(c->seed % 2)), &d->q);
        make_nonfinite(c, SEED_K, &c->k, 1 + d->k.count / (1 + (int64_t)(c->seed / 2 % 3)), &d->k);
        make_nonfinite(c, SEED_V, &c->v, 1 + d->v.count / (1 + (int64_t)(c->seed / 8 % 3)), &d->v);
        if (d->d_o.at)
            make_nonfinite(c, SEED_D_O, &c->d_o, 1 + d->d_o.count / (1 + (int64_t)(c->seed / 32 % 2)), &d->d_o);
    }
    return true;
}

static void free_expected(expected *e)
{
    free(e->value.at);
    free(e->bound);
}

void data_destroy(call_data *d)
{
    grid *all[] = {&d->q, &d->k, &d->v, &d->o, &d->lse, &d->d_o, &d->d_lse, &d->sinks};
    expected *out[] = {&d->out_o, &d->out_lse, &d->out_row_max, &d->out_d_q, &d->out_d_k, &d->out_d_v, &d->out_d_sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->at);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        free_expected(out[i]);
    for (int s = 0; s < SYMBOLS; s++) {
        free(d->mask[0][s].values);
        free(d->mask[1][s].values);
        free(d->score[s].values);
        free_expected(&d->out_d_captures[s]);
    }
    for (int s = 0; s < SEGMENTS; s++) {
        free(d->lists[s]);
        free(d->dense[s]);
        free(d->tensor[s].at);
    }
    free(d->allowed);
}

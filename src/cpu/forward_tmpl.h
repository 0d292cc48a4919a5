/* SPDX-License-Identifier: MIT */
/*
 * Forward and decode, one item at a time: the rows (h, q) of some query heads that share a head of k and v, with the
 * tiles of one split. Included once for each arithmetic type, with REAL, NAME, KERNELS, REAL_DTYPE, REAL_EXP and
 * SCORE_ROW defined, and MATRIX where there are kernels for 16-bit matrices.
 *
 * The online softmax is that of Milakov & Gimelshein (2018), the tiling that of Dao et al., FlashAttention (2022).
 */
#include <string.h>

#include "base/quant.h"
#include "cpu/block_iterator.h"
#include "cpu/nonfinite_tmpl.h"

/* Up to this many rows, products read k and v in place: packing pays only if enough rows share it. */
#define DIRECT_ROWS 12
/* Rows of 16-bit storage that are converted at a time, so that they stay in the L1 cache. */
#define STAGE_ROWS 8

/* A thread's arrays. */
#define ARRAY(type, name, rows, columns) type *name;
typedef struct state {
    ATTUNE__CPU_TILE(ARRAY)
    ATTUNE__CPU_THREAD(ARRAY)
    uint32_t *pairs;           /* the number of allowed pairs in bits; UNKNOWN_PAIRS = bits are not evaluated yet */
    size_t ldq, lds, ldo, ldb; /* ldb: words of bits of a row */
    size_t dv;                 /* columns of v and o, padded */
    const uint16_t *row_of;    /* of a sorted tile: the row that each of its rows is; NULL = in order */
    const int32_t *keys;       /* and the key of each column */
} state;
#undef ARRAY

#include "cpu/bits_tmpl.h"

/* Rows r = 0 ... heads * queries - 1 are (h0 + r / queries, q0 + r % queries). */
typedef struct item {
    int64_t b, h0, kv_h, q0;
    size_t heads, queries, rows;
    uint32_t split;
    attune__cpu_sequence sequence;
} item;

static state state_at(const attune__cpu_run *run, uint32_t thread)
{
    const attune__shape *shape = &run->program->shape;
    const size_t n = attune__cpu_pad(run->block_n);
    char *const scratch = run->scratch + thread * run->scratch_bytes;
    state st = {.ldq = attune__cpu_pad(shape->head_dim),
                .lds = attune__cpu_stride(n),
                .dv = attune__cpu_pad(shape->head_dim_v),
                .ldo = attune__cpu_stride(attune__cpu_pad(shape->head_dim_v)),
                .ldb = n / ATTUNE__PANEL};
#define ARRAY(type, name, rows, columns) st.name = (type *)(void *)(scratch + run->layout.name);
    ATTUNE__CPU_TILE(ARRAY)
    ATTUNE__CPU_THREAD(ARRAY)
#undef ARRAY
    return st;
}

/* The last rows first: with a causal mask they are the longest, and short items balance the end. */
static item item_at(const attune__cpu_run *run, int64_t index)
{
    const attune__forward *call = run->call;
    int64_t group = call->heads / call->kv_heads;
    int64_t chunk = run->q_chunks - 1 - index / (run->items / run->q_chunks);
    int64_t rest = index % (run->items / run->q_chunks);
    item it = {.split = (uint32_t)(rest % run->splits)};
    rest /= run->splits;
    int64_t head_chunk = rest % run->head_chunks;
    rest /= run->head_chunks;
    it.kv_h = rest % call->kv_heads;
    it.b = rest / call->kv_heads;
    int64_t head0 = head_chunk * (int64_t)run->head_step;
    it.h0 = it.kv_h * group + head0;
    it.heads = group - head0 < (int64_t)run->head_step ? (size_t)(group - head0) : run->head_step;

    int64_t in_block = (run->q_block + (int64_t)run->q_step - 1) / (int64_t)run->q_step;
    int64_t block0 = chunk / in_block * run->q_block;
    int64_t end = block0 + run->q_block < call->q_len ? block0 + run->q_block : call->q_len;
    it.q0 = block0 + chunk % in_block * (int64_t)run->q_step;
    it.queries = end - it.q0 < (int64_t)run->q_step ? (size_t)(end - it.q0) : run->q_step;
    it.rows = it.heads * it.queries;
    it.sequence = (attune__cpu_sequence){.q_len = call->q_len, .kv_len = call->kv_len, .batch = it.b};
    return it;
}

static int64_t row_head(const item *it, size_t r)
{
    return it->h0 + (int64_t)(r / it->queries);
}

static int64_t row_query(const item *it, size_t r)
{
    return it->q0 + (int64_t)(r % it->queries);
}

/* The variables of a row in expressions, but for those of a mask that is a part of another. */
static attune__row variables(const item *it, size_t r)
{
    const attune__cpu_sequence *s = &it->sequence;
    return (attune__row){.b = (int32_t)it->b,
                         .h = (int32_t)row_head(it, r),
                         .q = (int32_t)(s->position + row_query(it, r)),
                         .h_kv = (int32_t)it->kv_h,
                         .q_len = (int32_t)s->q_len,
                         .kv_len = (int32_t)s->kv_len,
                         .row = (int32_t)(s->row + row_query(it, r))};
}

/* Before the first tile. */
static void begin_rows(const item *it, const state *st)
{
    memset(st->o, 0, it->rows * st->ldo * sizeof(REAL));
    for (size_t r = 0; r < it->rows; r++) {
        st->m[r] = -(REAL)INFINITY;
        st->l[r] = 0;
        st->valid[r] = 0;
    }
}

/* 1: load Q, prescaled if the plan has prescale_qk. */
static void load_q(const attune__cpu_run *run, const item *it, const state *st)
{
    const attune_tensor *q = &run->call->q;
    const attune__shape *shape = &run->program->shape;
    size_t element = attune_dtype_size(q->dtype);
    REAL factor = run->program->choice.prescale_qk ? (REAL)run->call->scale : 1;
    for (size_t h = 0; h < it->heads; h++)
        run->device->KERNELS.load_rows(
            st->q + h * it->queries * st->ldq, st->ldq,
            attune__cpu_at(q, element, it->sequence.batch, it->h0 + (int64_t)h, it->sequence.row0 + it->q0),
            (ptrdiff_t)(q->stride[2] * (int64_t)element), q->dtype, it->queries, shape->head_dim, factor);
}

#include "cpu/cache_tmpl.h"

static source source_at(const attune_tensor *tensor, const item *it, const attune__kv_tile *tile)
{
    size_t element = attune_dtype_size(tensor->dtype);
    /* A batch of one broadcasts. */
    int64_t b = tensor->size[0] == 1 ? 0 : it->b;
    return (source){attune__cpu_at(tensor, element, b, it->kv_h, tile->kv0),
                    (ptrdiff_t)(tensor->stride[2] * (int64_t)element), tensor->dtype};
}

/* 2 and 3: load K; S = Q K^T * scale. */
static void scores(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile, source k)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const size_t d = run->program->shape.head_dim;
    const REAL scale = run->program->choice.prescale_qk ? 1 : (REAL)run->call->scale;
    if (it->rows > DIRECT_ROWS) {
        kernels->pack_k(st->k, k.rows, k.stride, k.dtype, tile->count, d);
        kernels->multiply(st->s, st->lds, st->q, st->ldq, it->rows, d, st->k, ATTUNE__PANEL * d,
                          attune__cpu_pad(tile->count) / ATTUNE__PANEL, scale);
    } else if (k.dtype == REAL_DTYPE) {
        kernels->dots(st->s, st->lds, st->q, st->ldq, it->rows, k.rows, k.stride, NULL, tile->count, d, scale);
    } else {
        for (size_t c = 0; c < tile->count; c += STAGE_ROWS) {
            size_t n = tile->count - c < STAGE_ROWS ? tile->count - c : STAGE_ROWS;
            kernels->load_rows(st->k, d, k.rows + (ptrdiff_t)c * k.stride, k.stride, k.dtype, n, d, 1);
            kernels->dots(st->s + c, st->lds, st->q, st->ldq, it->rows, st->k, (ptrdiff_t)(d * sizeof(REAL)), NULL, n,
                          d, scale);
        }
    }
}

/* 4: the score expression, then the mask. */
static void modify_row(const attune__cpu_run *run, const item *it, const state *st, size_t r,
                       const attune__kv_tile *tile, span c)
{
    REAL *s = st->s + r * st->lds + c.first;
    if (run->program->score) {
        attune__row row = variables(it, st->row_of ? st->row_of[r] : r);
        row.keys = st->keys ? st->keys + c.first : NULL;
        SCORE_ROW(run->device, run->program->score, &run->score, &row, (int32_t)(tile->kv0 + (int64_t)c.first),
                  c.end - c.first, st->expr, s);
    }
    if (tile->partial)
        run->device->KERNELS.row_mask(s, st->bits + r * st->ldb + c.first / ATTUNE__PANEL,
                                      attune__cpu_pad(c.end) - c.first);
}

/* In serving the mask is evaluated here; else attend_partial did. */
static void modify(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile)
{
    for (size_t r = 0; r < it->rows; r++) {
        if (!tile->partial || (run->call->serving && allow_served(run, it, st, r, tile)))
            st->valid[r] = 1;
        modify_row(run, it, st, r, tile, (span){0, tile->count});
    }
}

/* 5: online softmax of a row of scores in `count` spans of whole panels; S becomes P. */
static void softmax_row(const attune__cpu_run *run, const state *st, size_t r, REAL *s, const span *spans, size_t count)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const REAL old = st->m[r];
    REAL m = old, sum = 0;
    for (size_t i = 0; i < count; i++) {
        const REAL max = kernels->row_max(s + spans[i].first, spans[i].end - spans[i].first);
        m = max > m ? max : m;
    }
    /* While the maximum is -inf, a finite reference avoids exp(-inf + inf). */
    const REAL reference = m == -(REAL)INFINITY ? 0 : m;
    for (size_t i = 0; i < count; i++)
        sum += kernels->row_exp(s + spans[i].first, spans[i].end - spans[i].first, reference);
    if (m != old) {
        const REAL factor = REAL_EXP(old - reference);
        kernels->row_scale(st->o + r * st->ldo, st->dv, factor);
        st->l[r] *= factor;
        st->m[r] = m;
    }
    st->l[r] += sum;
}

static void softmax(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile)
{
    const span all = {0, attune__cpu_pad(tile->count)};
    for (size_t r = 0; r < it->rows; r++) {
        REAL *s = st->s + r * st->lds;
        for (size_t c = tile->count; c < all.end; c++)
            s[c] = -(REAL)INFINITY;
        softmax_row(run, st, r, s, &all, 1);
    }
}

/* Adds the non-finite elements of a partial tile's V, from column `first` of P on, to the rows that attend to them. */
static void take_values(const item *it, const state *st, size_t first, const operand *v)
{
    take_nonfinite(st->o, st->ldo, st->s + first, st->lds, it->rows, v, st->bits, st->ldb, first);
}

/* 6: O += P V from rows in place. Rows with non-finite elements are copied. */
static void accumulate_direct(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                              source v)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const size_t dv = run->program->shape.head_dim_v;
    const bool taken = tile->partial && !kernels->finite(v.rows, v.stride, v.dtype, tile->count, dv);
    const bool copied = taken || v.dtype != REAL_DTYPE;
    const size_t step = v.dtype == REAL_DTYPE ? tile->count : STAGE_ROWS;
    for (size_t c = 0; c < tile->count; c += step) {
        const size_t n = tile->count - c < step ? tile->count - c : step;
        source rows = {v.rows + (ptrdiff_t)c * v.stride, v.stride, v.dtype};
        if (copied) {
            kernels->load_rows(st->v, dv, rows.rows, rows.stride, rows.dtype, n, dv, 1);
            rows = (source){(const char *)st->v, (ptrdiff_t)(dv * sizeof(REAL)), REAL_DTYPE};
        }
        if (taken)
            take_values(it, st, c, &(operand){st->v, n, dv, dv, ATTUNE__PANEL});
        kernels->axpys(st->o, st->ldo, st->s + c, st->lds, it->rows, rows.rows, rows.stride, NULL, n, dv);
    }
}

/* 6: O += P V. */
static void accumulate(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                       source v)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const size_t dv = run->program->shape.head_dim_v;
    const size_t panel_stride = ATTUNE__PANEL * attune__cpu_pad(run->block_n);
    if (it->rows <= DIRECT_ROWS) {
        accumulate_direct(run, it, st, tile, v);
        return;
    }
    if (!kernels->pack_v(st->v, panel_stride, v.rows, v.stride, v.dtype, tile->count, dv) && tile->partial)
        take_values(it, st, 0, &(operand){st->v, tile->count, dv, ATTUNE__PANEL, panel_stride});
    kernels->multiply_add(st->o, st->ldo, st->s, st->lds, it->rows, tile->count, st->v, panel_stride,
                          st->dv / ATTUNE__PANEL);
}

/* The contents of st->q: nothing yet, Q in REAL, Q packed for products of 16-bit matrices. */
typedef enum form { FORM_NONE, FORM_REAL, FORM_PACKED } form;

static void load_q_once(const attune__cpu_run *run, const item *it, const state *st, form *held)
{
    if (*held != FORM_REAL)
        load_q(run, it, st);
    *held = FORM_REAL;
}

#include "cpu/partial_tmpl.h"
#ifdef MATRIX
#include "cpu/matrix.h"
#endif
#include "cpu/sorted_tmpl.h"

/* Evaluates the mask of a tile. Returns true if that, or one of the functions above, was all that there is to do. */
static bool attend_partial(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                           source k, source v, form *held)
{
    const size_t pairs = allow_tile(run, it, st, tile);
    if (!pairs)
        return true;
    if (it->rows <= DIRECT_ROWS)
        return false;
    if (is_sorted(st)) {
        attend_sorted(run, it, st, tile, k, v, held);
        return true;
    }
    const costs c = costs_of(run, it, st, tile);
    const bool by_pairs = least_cost(c, pairs) < (c.cells < c.whole ? c.cells : c.whole);
    if (!by_pairs && c.cells >= c.whole)
        return false;
    load_q_once(run, it, st, held);
    if (by_pairs)
        attend_pairs(run, it, st, tile, k, v);
    else
        attend_cells(run, it, st, tile, k, v);
    return true;
}

static void attend_tile(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                        form *held)
{
    const source k = source_at(&run->call->k, it, tile), v = source_at(&run->call->v, it, tile);
    if (tile->partial && attend_partial(run, it, st, tile, k, v, held))
        return;
#ifdef MATRIX
    if (run->program->matrix && it->rows > DIRECT_ROWS && attend_matrix(run, it, st, tile, k, v, held))
        return;
#endif
    load_q_once(run, it, st, held);
    scores(run, it, st, tile, k);
    modify(run, it, st, tile);
    softmax(run, it, st, tile);
    accumulate(run, it, st, tile, v);
}

/* Stores lse or row_max of a row; the buffer is NULL if it is not requested. */
static void store_value(const attune_tensor *tensor, int64_t b, int64_t h, int64_t q, REAL value)
{
    if (tensor->buffer)
        memcpy(attune__cpu_at(tensor, sizeof value, b, h, q), &value, sizeof value);
}

/* The sink of a head; -inf = none. */
static REAL sink_of(const attune__cpu_run *run, int64_t h)
{
    const attune_tensor *sinks = &run->call->sinks;
    REAL sink = -(REAL)INFINITY;
    if (sinks->buffer)
        memcpy(&sink, attune__cpu_element(sinks, sizeof sink, h), sizeof sink);
    return sink;
}

/* Adds a sink to the denominator, as a part of o = 0 and lse = sink. Returns the maximum of both. */
static REAL add_sink(const attune__cpu_run *run, REAL sink, REAL *o, REAL m, REAL *l)
{
    if (sink == -(REAL)INFINITY)
        return m;
    const REAL top = sink <= m || isnan(m) ? m : sink;
    if (top != m) {
        const REAL factor = REAL_EXP(m - top);
        run->device->KERNELS.row_scale(o, run->program->shape.head_dim_v, factor);
        *l *= factor;
    }
    *l += REAL_EXP(sink - top);
    return top;
}

/* 7: store O and LSE. */
static void store(const attune__cpu_run *run, int64_t b, int64_t h, int64_t q, REAL *o, REAL m, REAL l, bool valid)
{
    const attune__forward *call = run->call;
    const attune_tensor *out = &call->o;
    const size_t dv = run->program->shape.head_dim_v;
    /* The sum is 0 only if every allowed score is -inf: otherwise the maximum contributes 1. */
    const bool empty = !valid || l == 0;
    const REAL sink = sink_of(run, h);
    if (empty) {
        if (!call->part && sink == -(REAL)INFINITY)
            memset(o, 0, dv * sizeof *o);
        m = -(REAL)INFINITY;
        l = 1;
    } else if (isnan(l) && m != (REAL)INFINITY) {
        m = l; /* a score is NaN, and so is the maximum */
    }
    const REAL top = add_sink(run, sink, o, m, &l);
    /* A sum that is zero is +0: it is -0 where a weight underflowed, and a forbidden pair's +0 would change that. */
    for (size_t d = 0; d < dv; d++)
        o[d] += 0;
    run->device->KERNELS.store_row(attune__cpu_at(out, attune_dtype_size(out->dtype), b, h, q), out->dtype, o, dv, l);
    store_value(&call->lse, b, h, q, (REAL)((double)top + log((double)l)));
    store_value(&call->row_max, b, h, q, m);
}

/* o, and m and l, of a row's first split; those of the other splits follow. */
static REAL *part_o(const attune__cpu_run *run, int64_t row)
{
    return (REAL *)(void *)run->parts + (size_t)row * run->splits * run->program->shape.head_dim_v;
}

static REAL *part_ml(const attune__cpu_run *run, int64_t row)
{
    return (REAL *)(void *)run->ml + (size_t)row * run->splits * 2;
}

/* 7, split: store the partial result O, m, l. */
static void store_part(const attune__cpu_run *run, const item *it, const state *st, size_t r)
{
    const attune__forward *call = run->call;
    const int64_t row = (it->b * call->heads + row_head(it, r)) * call->q_len + row_query(it, r);
    const size_t dv = run->program->shape.head_dim_v;
    memcpy(part_o(run, row) + it->split * dv, st->o + r * st->ldo, dv * sizeof(REAL));
    REAL *ml = part_ml(run, row) + 2 * it->split;
    ml[0] = st->m[r];
    ml[1] = st->l[r];
}

#include "cpu/serving_tmpl.h"

static void attend_item(const attune__cpu_run *run, const item *it, state *st, kept_bits *kept)
{
    form held = FORM_NONE;
    begin_rows(it, st);
    const attune_mask *mask = run->call->mask;
    if (mask)
        kept_begin(kept, &(strip){.batch = it->b,
                                  .list = attune__mask_at(mask, it->b, it->h0).row0 + it->q0 / mask->q_block,
                                  .first = it->q0,
                                  .count = it->rows,
                                  .split = it->split});
    attune__block_iterator iterator = attune__block_iterator_begin(run, it->b, it->h0, it->q0, it->split);
    attune__kv_tile tile;
    while (attune__block_iterator_next_tile(&iterator, &tile)) {
        if (tile.partial)
            kept_next(kept, st);
        attend_tile(run, it, st, &tile, &held);
    }
    for (size_t r = 0; r < it->rows; r++)
        if (run->splits > 1)
            store_part(run, it, st, r);
        else
            store(run, it->sequence.batch, row_head(it, r), it->sequence.row0 + row_query(it, r), st->o + r * st->ldo,
                  st->m[r], st->l[r], st->valid[r] != 0);
}

void NAME(cpu_items)(void *user, uint32_t thread)
{
    attune__cpu_run *run = user;
    state st = state_at(run, thread);
    kept_bits kept = kept_at(run, &st);
    for (;;) {
        const int64_t first = atomic_fetch_add_explicit(&run->next, run->adjacent, memory_order_relaxed);
        if (first >= run->items)
            return;
        const int64_t left = run->items - first;
        for (int64_t i = 0; i < (left < run->adjacent ? left : run->adjacent); i++) {
            const item it = item_at(run, first + i);
            attend_item(run, &it, &st, &kept);
        }
    }
}

/* 7, split: merge the partial results, in place of the first split's o. */
void NAME(cpu_merge)(void *user, uint32_t thread)
{
    (void)thread;
    attune__cpu_run *run = user;
    const attune__forward *call = run->call;
    const size_t dv = run->program->shape.head_dim_v;
    for (;;) {
        const int64_t row = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed);
        if (row >= call->batch * call->heads * call->q_len)
            return;
        REAL *first = part_o(run, row);
        const REAL *ml = part_ml(run, row);
        REAL m = -(REAL)INFINITY, l = 0;
        for (uint32_t i = 0; i < run->splits; i++)
            m = ml[2 * i] > m ? ml[2 * i] : m;
        const REAL reference = m == -(REAL)INFINITY ? 0 : m;
        for (uint32_t i = 0; i < run->splits; i++) {
            /* A split without allowed pairs has m = -inf, and adds 0. */
            const REAL factor = REAL_EXP(ml[2 * i] - reference);
            REAL *o = first + i * dv;
            run->device->KERNELS.row_scale(o, dv, factor);
            l += ml[2 * i + 1] * factor;
            if (i)
                for (size_t d = 0; d < dv; d++)
                    first[d] += o[d];
        }
        const int64_t plane = row / call->q_len;
        /* No flag is needed here: without an allowed pair every split has a sum of 0. */
        store(run, plane / call->heads, plane % call->heads, row % call->q_len, first, m, l, l != 0);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Backward: two passes over the same tiles. Each pass recomputes P and dS, so that no output is written by two threads
 * and results do not depend on the number of threads. The pass over rows of Q computes dQ and the capture gradients;
 * the pass over rows of K computes dK and dV, with the transposed lists. Included once for each arithmetic type, like
 * forward_tmpl.h.
 *
 * With p = exp(score(s) - lse), delta = dot(o, d_o) - d_lse:
 *
 *     dV = P^T dO      dS = P * (dO V^T - delta) * score'(s)      dQ = scale dS K      dK = scale dS^T Q
 *
 * The recomputation is that of Dao et al., FlashAttention (2022). A pair whose p is 0 contributes nothing, even if Q,
 * K, V or dO are non-finite there.
 */
#include <string.h>

#include "cpu/backward.h"
#include "cpu/block_iterator.h"
#include "cpu/nonfinite_tmpl.h"

/* A thread's arrays. */
#define ARRAY(type, name, rows, columns) type *name;
typedef struct state {
    ATTUNE__CPU_BACKWARD_TILE(ARRAY)
    ATTUNE__CPU_BACKWARD_THREAD(ARRAY)
    uint32_t *pairs; /* the number of allowed pairs in bits, or UNKNOWN_PAIRS */
    bool packed;     /* in the pass over rows of K: k and v are, in the order of keys */
    size_t ldq, ldo, lds, ldt, ldb;
    const uint16_t *row_of; /* of a sorted tile: the row that each of its rows is; NULL = in order */
    const int32_t *keys;    /* and the key of each column */
} state;
#undef ARRAY

#include "cpu/bits_tmpl.h"

static state state_at(const attune__cpu_backward_run *run, uint32_t thread)
{
    const attune__shape *shape = &run->base.program->shape;
    char *const scratch = run->base.scratch + thread * run->base.scratch_bytes;
    state st = {.ldq = attune__cpu_pad(shape->head_dim),
                .ldo = attune__cpu_pad(shape->head_dim_v),
                .lds = attune__cpu_pad(run->base.block_n),
                .ldt = attune__cpu_pad(run->base.block_m),
                .ldb = attune__cpu_pad(run->base.block_n) / ATTUNE__PANEL};
#define ARRAY(type, name, rows, columns) st.name = (type *)(void *)(scratch + run->layout.name);
    ATTUNE__CPU_BACKWARD_TILE(ARRAY)
    ATTUNE__CPU_BACKWARD_THREAD(ARRAY)
#undef ARRAY
    return st;
}

/* Rows of one head of q, in one block row of the mask. */
typedef struct rows {
    int64_t b, h, kv_h, q0;
    size_t count;
} rows;

static const char *row_at(const attune_tensor *tensor, int64_t b, int64_t h, int64_t row)
{
    return attune__cpu_at(tensor, attune_dtype_size(tensor->dtype), tensor->size[0] == 1 ? 0 : b, h, row);
}

static ptrdiff_t row_stride(const attune_tensor *tensor)
{
    return (ptrdiff_t)(tensor->stride[2] * (int64_t)attune_dtype_size(tensor->dtype));
}

/* The variables of a row in the score expression. */
static attune__row variables(const attune__cpu_run *run, const rows *it, size_t r)
{
    return (attune__row){.b = (int32_t)it->b,
                         .h = (int32_t)it->h,
                         .q = (int32_t)(it->q0 + (int64_t)r),
                         .h_kv = (int32_t)it->kv_h,
                         .q_len = (int32_t)run->call->q_len,
                         .kv_len = (int32_t)run->call->kv_len};
}

/* No gradients of captures. */
static double *const no_sums[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};

#include "cpu/backward_partial_tmpl.h"

/* 1: load LSE and delta of all rows, and Q and dO of those in a span. */
static void load_values(const attune__cpu_backward_run *run, const rows *it, const state *st)
{
    const attune__forward *call = &run->call->forward;
    const REAL *delta = (const REAL *)(const void *)run->delta + (it->b * call->heads + it->h) * call->q_len + it->q0;
    for (size_t r = 0; r < it->count; r++) {
        memcpy(&st->lse[r], attune__cpu_at(&call->lse, sizeof(REAL), it->b, it->h, it->q0 + (int64_t)r), sizeof(REAL));
        st->delta[r] = delta[r];
    }
}

static void load_rows(const attune__cpu_backward_run *run, const rows *it, const state *st, span of)
{
    const attune__forward *call = &run->call->forward;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const attune__shape *shape = &run->base.program->shape;
    const REAL factor = run->base.program->choice.prescale_qk ? (REAL)call->scale : 1;
    const int64_t q0 = it->q0 + (int64_t)of.first;
    kernels->load_rows(st->q + of.first * st->ldq, st->ldq, row_at(&call->q, it->b, it->h, q0), row_stride(&call->q),
                       call->q.dtype, of.end - of.first, shape->head_dim, factor);
    kernels->load_rows(st->d_o + of.first * st->ldo, st->ldo, row_at(&run->call->d_o, it->b, it->h, q0),
                       row_stride(&run->call->d_o), run->call->d_o.dtype, of.end - of.first, shape->head_dim_v, 1);
}

/* 2: load K and V, transposed for the products with Q and dO. */
static void load_keys(const attune__cpu_backward_run *run, const attune__kv_tile *tile, const state *st, source k,
                      source v, span of)
{
    const attune__shape *shape = &run->base.program->shape;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t count = columns_in(of, tile), d = shape->head_dim, dv = shape->head_dim_v;
    const ptrdiff_t first = (ptrdiff_t)of.first;
    kernels->pack_k(st->k + of.first * d, k.rows + first * k.stride, k.stride, k.dtype, count, d);
    kernels->pack_k(st->v + of.first * dv, v.rows + first * v.stride, v.stride, v.dtype, count, dv);
}

/* 4 and 5 for some columns of a row: P from the scores and LSE, and dS with respect to scale * dot(q, k). Capture
 * gradients are added to `sums`. */
static void normalise(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                      size_t r, span c, double *const *sums)
{
    const attune__cpu_program *program = run->base.program;
    attune__row row = variables(&run->base, it, st->row_of ? st->row_of[r] : r);
    row.keys = st->keys ? st->keys + c.first : NULL;
    const int32_t kv0 = (int32_t)(tile->kv0 + (int64_t)c.first);
    const size_t count = columns_in(c, tile);
    REAL *p = st->p + r * st->lds + c.first, *d_s = st->d_s + r * st->lds + c.first;
    if (st->lse[r] == -(REAL)INFINITY) {
        memset(p, 0, (c.end - c.first) * sizeof *p);
        memset(d_s, 0, (c.end - c.first) * sizeof *d_s);
        return;
    }
    if (program->score) {
        memcpy(st->raw, p, count * sizeof *p);
        SCORE_ROW(run->base.device, program->score, &run->base.score, &row, kv0, count, st->expr, p);
    }
    run->base.device->KERNELS.row_gradient(p, d_s,
                                           tile->partial ? st->bits + r * st->ldb + c.first / ATTUNE__PANEL : NULL,
                                           c.end - c.first, st->lse[r], st->delta[r]);
    if (program->gradient)
        GRADIENT_ROW(run->base.device, program->gradient, &run->base.score, &row, kv0, count, st->expr, st->raw, d_s,
                     sums);
}

/* 3 to 5 for a tile. */
static void recompute(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                      extent of, double *const *sums)
{
    const attune__cpu_program *program = run->base.program;
    const size_t d = program->shape.head_dim, dv = program->shape.head_dim_v;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const REAL scale = program->choice.prescale_qk ? 1 : (REAL)run->call->forward.scale;
    span spans[MOST_SPANS];
    for (size_t r0 = 0, n, count; r0 < it->count; r0 += n) {
        n = spans_from(st, it, tile, of, r0, &count, spans);
        for (size_t i = 0; i < count; i++) {
            const span c = spans[i];
            const size_t panels = (c.end - c.first) / ATTUNE__PANEL;
            kernels->multiply(st->p + r0 * st->lds + c.first, st->lds, st->q + r0 * st->ldq, st->ldq, n, d,
                              st->k + c.first * d, ATTUNE__PANEL * d, panels, scale);
            kernels->multiply(st->d_s + r0 * st->lds + c.first, st->lds, st->d_o + r0 * st->ldo, st->ldo, n, dv,
                              st->v + c.first * dv, ATTUNE__PANEL * dv, panels, 1);
            for (size_t r = r0; r < r0 + n; r++)
                normalise(run, it, tile, st, r, c, sums);
        }
    }
}

/* 7: store rows of a gradient. */
static void store(const attune__cpu_backward_run *run, const attune_tensor *out, int64_t b, int64_t h, int64_t row0,
                  size_t count, REAL *from, size_t ld, size_t columns, REAL factor)
{
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    for (size_t r = 0; r < count; r++) {
        kernels->row_scale(from + r * ld, ld, factor);
        /* A zero is +0, as in forward: else a forbidden pair's 0 decides its sign. */
        for (size_t c = 0; c < columns; c++)
            from[r * ld + c] += 0;
        kernels->store_row(attune__cpu_at(out, attune_dtype_size(out->dtype), b, h, row0 + (int64_t)r), out->dtype,
                           from + r * ld, columns, 1);
    }
}

/* delta = dot(o, d_o) - d_lse, a row at a time. */
void NAME(cpu_backward_delta)(void *user, uint32_t thread)
{
    attune__cpu_backward_run *run = user;
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const state st = state_at(run, thread);
    const size_t dv = shape->head_dim_v;
    REAL *o = st.o_panels, *d_o = st.d_o;
    for (;;) {
        const int64_t row = atomic_fetch_add_explicit(&run->base.next, 1, memory_order_relaxed);
        if (row >= call->batch * call->heads * call->q_len)
            return;
        const int64_t q = row % call->q_len, h = row / call->q_len % call->heads, b = row / call->q_len / call->heads;
        kernels->load_rows(o, dv, row_at(&call->o, b, h, q), 0, call->o.dtype, 1, dv, 1);
        kernels->load_rows(d_o, dv, row_at(&run->call->d_o, b, h, q), 0, run->call->d_o.dtype, 1, dv, 1);
        double sum = 0;
        for (size_t d = 0; d < dv; d++)
            sum += (double)o[d] * (double)d_o[d];
        if (run->call->d_lse.buffer) {
            REAL d_lse;
            memcpy(&d_lse, attune__cpu_at(&run->call->d_lse, sizeof d_lse, b, h, q), sizeof d_lse);
            sum -= (double)d_lse;
        }
        ((REAL *)(void *)run->delta)[row] = (REAL)sum;
    }
}

/* d_sinks = -sum of exp(sink - lse) delta, a head at a time. */
void NAME(cpu_backward_sinks)(void *user, uint32_t thread)
{
    (void)thread;
    attune__cpu_backward_run *run = user;
    const attune__forward *call = &run->call->forward;
    const attune_tensor *sinks = &call->sinks, *out = &run->call->d_sinks;
    for (;;) {
        const int64_t h = atomic_fetch_add_explicit(&run->base.next, 1, memory_order_relaxed);
        if (h >= call->heads)
            return;
        REAL sink;
        memcpy(&sink, attune__cpu_element(sinks, sizeof sink, h), sizeof sink);
        double sum = 0;
        for (int64_t b = 0; b < call->batch && sink != -(REAL)INFINITY; b++)
            for (int64_t q = 0; q < call->q_len; q++) {
                REAL lse;
                memcpy(&lse, attune__cpu_at(&call->lse, sizeof lse, b, h, q), sizeof lse);
                const double p = exp((double)sink - (double)lse);
                const REAL delta = ((const REAL *)(const void *)run->delta)[(b * call->heads + h) * call->q_len + q];
                sum -= p == 0 ? 0 : p * (double)delta;
            }
        const REAL value = (REAL)sum;
        memcpy(attune__cpu_element(out, sizeof value, h), &value, sizeof value);
    }
}

static rows rows_at(const attune__cpu_backward_run *run, int64_t index)
{
    const attune__forward *call = &run->call->forward;
    const int64_t planes = call->batch * call->heads, plane = index % planes;
    const int64_t chunk = run->base.q_chunks - 1 - index / planes;
    const int64_t step = (int64_t)run->base.q_step, in_block = (run->base.q_block + step - 1) / step;
    const int64_t block0 = chunk / in_block * run->base.q_block;
    const int64_t end = block0 + run->base.q_block < call->q_len ? block0 + run->base.q_block : call->q_len;
    rows it = {.b = plane / call->heads, .h = plane % call->heads, .q0 = block0 + chunk % in_block * step};
    it.kv_h = it.h / (call->heads / call->kv_heads);
    it.count = end - it.q0 < step ? (size_t)(end - it.q0) : (size_t)step;
    return it;
}

/* 6: dQ += dS K. */
static void add_keys(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                     extent of, source k)
{
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t d = run->base.program->shape.head_dim;
    const size_t panel_stride = ATTUNE__PANEL * attune__cpu_pad(run->base.block_n);
    span spans[MOST_SPANS];
    size_t count = all_spans(st, it, tile, of, spans);
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite &= kernels->pack_v(st->d_k + spans[i].first * ATTUNE__PANEL, panel_stride,
                                  k.rows + (ptrdiff_t)spans[i].first * k.stride, k.stride, k.dtype,
                                  columns_in(spans[i], tile), d);
    if (!finite) {
        clear_others(st, it, tile, of, st->d_s);
        for (size_t i = 0; i < count; i++)
            take_nonfinite(st->d_q, st->ldq, st->d_s + spans[i].first, st->lds, it->count,
                           &(operand){st->d_k + spans[i].first * ATTUNE__PANEL, columns_in(spans[i], tile), st->ldq,
                                      ATTUNE__PANEL, panel_stride},
                           NULL, 0, 0);
    }
    for (size_t r0 = 0, n; r0 < it->count; r0 += n) {
        n = spans_from(st, it, tile, of, r0, &count, spans);
        for (size_t i = 0; i < count; i++)
            kernels->multiply_add(st->d_q + r0 * st->ldq, st->ldq, st->d_s + r0 * st->lds + spans[i].first, st->lds, n,
                                  columns_in(spans[i], tile), st->d_k + spans[i].first * ATTUNE__PANEL, panel_stride,
                                  st->ldq / ATTUNE__PANEL);
    }
}

/* One tile of the pass over rows of Q. */
static void rows_and_keys(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                          const state *st, extent of, source k, source v, double *const *sums)
{
    span spans[MOST_SPANS];
    const size_t count = all_spans(st, it, tile, of, spans);
    for (size_t i = 0; i < count; i++)
        load_keys(run, tile, st, k, v, spans[i]);
    recompute(run, it, tile, st, of, sums);
    add_keys(run, it, tile, st, of, k);
}

/* The rows and keys of a sorted tile, without those that have no allowed pair: they are the last. */
static void find_sorted(const state *st, const rows *it, const attune__kv_tile *tile, rows *some, attune__kv_tile *part)
{
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    span r;
    *some = *it;
    *part = *tile;
    next_rows(st, it, EXTENT_CELLS, 0, words, 0, &r);
    some->count = r.end;
    part->count = last_column(st, it->count, tile);
}

static void rows_sorted(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                        const state *st, source k, source v, double *const *sums)
{
    const attune__shape *shape = &run->base.program->shape;
    const uint16_t *places = row_places(&run->base, st), *columns = column_places(&run->base, st);
    int32_t keys[ATTUNE__CPU_SORTED];
    state sorted = *st;
    attune__kv_tile part;
    rows some;
    find_sorted(st, it, tile, &some, &part);
    find_places(st, columns, tile->count);
    find_keys(tile, columns, part.count, keys);
    sorted.row_of = places;
    sorted.keys = keys;
    k = sorted_rows(st, k, st->k_rows, tile->count, part.count, shape->head_dim);
    v = sorted_rows(st, v, st->v_rows, tile->count, part.count, shape->head_dim_v);
    sorted.q = st->sorted_q;
    sorted.d_o = st->sorted_d_o;
    sorted.d_q = st->sorted_d_q;
    sorted.lse = st->sorted_lse;
    sorted.delta = st->sorted_delta;
    take_rows(sorted.q, st->q, places, some.count, st->ldq);
    take_rows(sorted.d_o, st->d_o, places, some.count, st->ldo);
    take_rows(sorted.d_q, st->d_q, places, some.count, st->ldq);
    take_values_at(sorted.lse, st->lse, places, some.count);
    take_values_at(sorted.delta, st->delta, places, some.count);
    rows_and_keys(run, &some, &part, &sorted, EXTENT_CELLS, k, v, sums);
    return_rows(st->d_q, sorted.d_q, places, some.count, st->ldq);
}

static void rows_item(const attune__cpu_backward_run *run, const rows *it, state *st, kept_bits *kept,
                      double *const *sums)
{
    const attune__forward *call = &run->call->forward;
    const attune_mask *mask = call->mask;
    load_values(run, it, st);
    load_rows(run, it, st, (span){0, it->count});
    memset(st->d_q, 0, it->count * st->ldq * sizeof(REAL));
    if (mask)
        kept_begin(kept, &(strip){.batch = it->b,
                                  .list = attune__mask_at(mask, it->b, it->h).row0 + it->q0 / mask->q_block,
                                  .first = it->q0,
                                  .count = it->count});
    attune__block_iterator iterator = attune__block_iterator_begin(&run->base, it->b, it->h, it->q0, 0);
    attune__kv_tile tile;
    while (attune__block_iterator_next_tile(&iterator, &tile)) {
        if (tile.partial)
            kept_next(kept, st);
        const extent of = extent_of(&run->base, it, &tile, st);
        if (of == EXTENT_NONE)
            continue;
        const source k = source_of(&call->k, it->b, it->kv_h, tile.kv0);
        const source v = source_of(&call->v, it->b, it->kv_h, tile.kv0);
        if (of == EXTENT_PAIRS)
            rows_by_pairs(run, it, &tile, st, k, v, sums);
        else if (of == EXTENT_SORTED)
            rows_sorted(run, it, &tile, st, k, v, sums);
        else
            rows_and_keys(run, it, &tile, st, of, k, v, sums);
    }
    store(run, &run->call->d_q, it->b, it->h, it->q0, it->count, st->d_q, st->ldq, run->base.program->shape.head_dim,
          (REAL)call->scale);
}

void NAME(cpu_backward_rows)(void *user, uint32_t thread)
{
    attune__cpu_backward_run *run = user;
    state st = state_at(run, thread);
    kept_bits kept = kept_at(&run->base, &st);
    double *sums[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    for (;;) {
        /* A slot always has the same items in the same order, and so the same sums. */
        const int64_t step = run->slots ? 1 : run->base.adjacent;
        int64_t index = atomic_fetch_add_explicit(&run->base.next, step, memory_order_relaxed);
        if (index >= (run->slots ? run->slots : run->base.items))
            return;
        if (run->slots)
            attune__cpu_backward_slot(run, index, sums);
        const int64_t end = run->slots || run->base.items - index < step ? run->base.items : index + step;
        for (; index < end; index += run->slots ? run->slots : 1) {
            const rows it = rows_at(run, index);
            rows_item(run, &it, &st, &kept, sums);
        }
    }
}

/* st->transposed[c][r] = from[r][c], for some rows and columns. */
static void transpose(const state *st, const REAL *from, span r, span c)
{
    for (size_t r0 = r.first; r0 < r.end; r0 += ATTUNE__PANEL) {
        const size_t end = r0 + ATTUNE__PANEL < r.end ? r0 + ATTUNE__PANEL : r.end;
        for (size_t j = c.first; j < c.end; j++)
            for (size_t i = r0; i < end; i++)
                st->transposed[j * st->ldt + i] = from[i * st->lds + j];
    }
}

/* A gradient of a tile of keys += from^T b, where b is rows of q or d_o, to be packed: those that have an allowed pair.
 */
static void add_rows(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                     extent of, REAL *to, size_t ldto, size_t columns, REAL *from, REAL *b, source rows_of_b)
{
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t panel_stride = ATTUNE__PANEL * st->ldt, words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    span r;
    bool finite = true;
    for (size_t next = 0; next_rows(st, it, of, 0, words, next, &r); next = r.end)
        finite &= kernels->pack_v(b + r.first * ATTUNE__PANEL, panel_stride,
                                  rows_of_b.rows + (ptrdiff_t)r.first * rows_of_b.stride, rows_of_b.stride,
                                  rows_of_b.dtype, r.end - r.first, columns);
    if (!finite) {
        clear_others(st, it, tile, of, from);
        transpose(st, from, (span){0, it->count}, (span){0, tile->count});
        for (size_t next = 0; next_rows(st, it, of, 0, words, next, &r); next = r.end)
            take_nonfinite(to, ldto, st->transposed + r.first, st->ldt, tile->count,
                           &(operand){b + r.first * ATTUNE__PANEL, r.end - r.first, ldto, ATTUNE__PANEL, panel_stride},
                           NULL, 0, 0);
    }
    for (size_t word = 0, step; word < words; word += step) {
        step = of == EXTENT_WHOLE ? words : 1;
        const size_t first = word * ATTUNE__PANEL, end = first + step * ATTUNE__PANEL;
        const span c = {first, end < tile->count ? end : tile->count};
        for (size_t next = 0; next_rows(st, it, of, word, step, next, &r); next = r.end) {
            transpose(st, from, r, c);
            kernels->multiply_add(to + c.first * ldto, ldto, st->transposed + c.first * st->ldt + r.first, st->ldt,
                                  c.end - c.first, r.end - r.first, b + r.first * ATTUNE__PANEL, panel_stride,
                                  ldto / ATTUNE__PANEL);
        }
    }
}

/* 6: dV += P^T dO, dK += dS^T Q. */
static void add_all_rows(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                         const state *st, extent of)
{
    const attune__shape *shape = &run->base.program->shape;
    /* A scaled Q is not the one of dK. */
    const source q = run->base.program->choice.prescale_qk ? source_of(&run->call->forward.q, it->b, it->h, it->q0)
                                                           : source_in(st->q, st->ldq);
    add_rows(run, it, tile, st, of, st->d_v, st->ldo, shape->head_dim_v, st->p, st->o_panels,
             source_in(st->d_o, st->ldo));
    add_rows(run, it, tile, st, of, st->d_k, st->ldq, shape->head_dim, st->d_s, st->d_q, q);
}

static void keys_sorted(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, state *st,
                        source k, source v)
{
    const attune__shape *shape = &run->base.program->shape;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const uint16_t *places = row_places(&run->base, st), *columns = column_places(&run->base, st);
    const source q = source_of(&run->call->forward.q, it->b, it->h, it->q0);
    const source d_o = source_of(&run->call->d_o, it->b, it->h, it->q0);
    int32_t keys[ATTUNE__CPU_SORTED];
    state sorted = *st;
    attune__kv_tile part;
    rows some;
    find_sorted(st, it, tile, &some, &part);
    find_places(st, columns, tile->count);
    find_keys(tile, columns, part.count, keys);
    sorted.row_of = places;
    sorted.keys = keys;
    k = sorted_rows(st, k, st->k_rows, tile->count, part.count, shape->head_dim);
    v = sorted_rows(st, v, st->v_rows, tile->count, part.count, shape->head_dim_v);
    load_keys(run, &part, st, k, v, (span){0, attune__cpu_pad(part.count)});
    st->packed = false;
    find_places(st, places, it->count);
    for (size_t r = 0; r < it->count; r++) {
        const size_t place = st->at[r];
        if (place >= some.count)
            continue;
        kernels->load_rows(st->q + place * st->ldq, st->ldq, q.rows + (ptrdiff_t)r * q.stride, q.stride, q.dtype, 1,
                           shape->head_dim, 1);
        kernels->load_rows(st->d_o + place * st->ldo, st->ldo, d_o.rows + (ptrdiff_t)r * d_o.stride, d_o.stride,
                           d_o.dtype, 1, shape->head_dim_v, 1);
    }
    sorted.lse = st->sorted_lse;
    sorted.delta = st->sorted_delta;
    sorted.d_k = st->sorted_d_k;
    sorted.d_v = st->sorted_d_v;
    take_values_at(sorted.lse, st->lse, places, some.count);
    take_values_at(sorted.delta, st->delta, places, some.count);
    take_rows(sorted.d_k, st->d_k, columns, part.count, st->ldq);
    take_rows(sorted.d_v, st->d_v, columns, part.count, st->ldo);
    recompute(run, &some, &part, &sorted, EXTENT_CELLS, no_sums);
    add_all_rows(run, &some, &part, &sorted, EXTENT_CELLS);
    return_rows(st->d_k, sorted.d_k, columns, part.count, st->ldq);
    return_rows(st->d_v, sorted.d_v, columns, part.count, st->ldo);
}

/* One tile of keys with rows of one head of q. */
static void keys_and_rows(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, state *st,
                          source k, source v)
{
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    const extent of = extent_of(&run->base, it, tile, st);
    span r;
    if (of == EXTENT_NONE)
        return;
    load_values(run, it, st);
    if (of == EXTENT_SORTED) {
        keys_sorted(run, it, tile, st, k, v);
        return;
    }
    for (size_t next = 0; next_rows(st, it, of, 0, words, next, &r); next = r.end)
        load_rows(run, it, st, r);
    if (of == EXTENT_PAIRS) {
        keys_by_pairs(run, it, tile, st, k, v);
        return;
    }
    if (!st->packed)
        load_keys(run, tile, st, k, v, (span){0, attune__cpu_pad(tile->count)});
    st->packed = true;
    recompute(run, it, tile, st, of, no_sums);
    add_all_rows(run, it, tile, st, of);
}

/* A tile of keys of one head of k and v, with every row that attends to it: of all heads of the group, and of all
 * batches if k and v broadcast. */
static void keys_item(const attune__cpu_backward_run *run, int64_t index, state *st, kept_bits *kept)
{
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const int64_t kv_batch = call->k.size[0], group = call->heads / call->kv_heads;
    const int64_t planes = kv_batch * call->kv_heads, plane = index % planes, chunk = index / planes;
    const int64_t kv_b = plane / call->kv_heads, kv_h = plane % call->kv_heads;
    attune__kv_tile tile = {.kv0 = chunk * (int64_t)run->base.block_n};
    tile.count =
        call->kv_len - tile.kv0 < (int64_t)run->base.block_n ? (size_t)(call->kv_len - tile.kv0) : run->base.block_n;
    const source k = source_of(&call->k, kv_b, kv_h, tile.kv0), v = source_of(&call->v, kv_b, kv_h, tile.kv0);
    st->packed = false;
    memset(st->d_k, 0, tile.count * st->ldq * sizeof(REAL));
    memset(st->d_v, 0, tile.count * st->ldo * sizeof(REAL));
    const int64_t first = kv_batch == 1 ? 0 : kv_b, end = kv_batch == 1 ? call->batch : kv_b + 1;
    for (int64_t b = first; b < end; b++)
        for (int64_t h = kv_h * group; h < (kv_h + 1) * group; h++) {
            if (call->mask)
                kept_begin(kept,
                           &(strip){.batch = b,
                                    .list = attune__mask_at(call->mask, b, h).col0 + tile.kv0 / call->mask->kv_block,
                                    .first = tile.kv0,
                                    .count = tile.count});
            attune__block_iterator iterator = attune__block_iterator_begin_columns(&run->base, b, h, tile.kv0);
            attune__kv_tile part;
            while (attune__block_iterator_next_tile(&iterator, &part)) {
                const rows it = {.b = b, .h = h, .kv_h = kv_h, .q0 = part.kv0, .count = part.count};
                tile.partial = part.partial;
                if (tile.partial)
                    kept_next(kept, st);
                keys_and_rows(run, &it, &tile, st, k, v);
            }
        }
    store(run, &run->call->d_k, kv_b, kv_h, tile.kv0, tile.count, st->d_k, st->ldq, shape->head_dim, (REAL)call->scale);
    store(run, &run->call->d_v, kv_b, kv_h, tile.kv0, tile.count, st->d_v, st->ldo, shape->head_dim_v, 1);
}

void NAME(cpu_backward_keys)(void *user, uint32_t thread)
{
    attune__cpu_backward_run *run = user;
    state st = state_at(run, thread);
    kept_bits kept = kept_at(&run->base, &st);
    for (;;) {
        const int64_t first = atomic_fetch_add_explicit(&run->base.next, run->base.adjacent, memory_order_relaxed);
        if (first >= run->base.items)
            return;
        const int64_t left = run->base.items - first;
        for (int64_t i = 0; i < (left < run->base.adjacent ? left : run->base.adjacent); i++)
            keys_item(run, first + i, &st, &kept);
    }
}

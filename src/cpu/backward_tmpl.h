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
    size_t ldq, ldo, lds, ldt;
} state;
#undef ARRAY

static state state_at(const attune__cpu_backward_run *run, uint32_t thread)
{
    const attune__shape *shape = &run->base.program->shape;
    char *const scratch = run->base.scratch + thread * run->base.scratch_bytes;
    state st = {.ldq = attune__cpu_pad(shape->head_dim),
                .ldo = attune__cpu_pad(shape->head_dim_v),
                .lds = attune__cpu_pad(run->base.block_n),
                .ldt = attune__cpu_pad(run->base.block_m)};
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

/* 1: load Q, dO, LSE and delta. */
static void load_rows(const attune__cpu_backward_run *run, const rows *it, const state *st)
{
    const attune__forward *call = &run->call->forward;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const attune__shape *shape = &run->base.program->shape;
    const REAL factor = run->base.program->choice.prescale_qk ? (REAL)call->scale : 1;
    kernels->load_rows(st->q, st->ldq, row_at(&call->q, it->b, it->h, it->q0), row_stride(&call->q), call->q.dtype,
                       it->count, shape->head_dim, factor);
    kernels->load_rows(st->d_o, st->ldo, row_at(&run->call->d_o, it->b, it->h, it->q0), row_stride(&run->call->d_o),
                       run->call->d_o.dtype, it->count, shape->head_dim_v, 1);
    const REAL *delta = (const REAL *)(const void *)run->delta + (it->b * call->heads + it->h) * call->q_len + it->q0;
    for (size_t r = 0; r < it->count; r++) {
        memcpy(&st->lse[r], attune__cpu_at(&call->lse, sizeof(REAL), it->b, it->h, it->q0 + (int64_t)r), sizeof(REAL));
        st->delta[r] = delta[r];
    }
}

/* 2: load K and V, transposed for the products with Q and dO. */
static void load_keys(const attune__cpu_backward_run *run, int64_t b, int64_t kv_h, const attune__kv_tile *tile,
                      const state *st)
{
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    kernels->pack_k(st->k, row_at(&call->k, b, kv_h, tile->kv0), row_stride(&call->k), call->k.dtype, tile->count,
                    shape->head_dim);
    kernels->pack_k(st->v, row_at(&call->v, b, kv_h, tile->kv0), row_stride(&call->v), call->v.dtype, tile->count,
                    shape->head_dim_v);
}

/* 5: P from the scores and LSE, and dS with respect to the modified scores. */
static void normalise(const NAME(cpu_kernels) * kernels, const state *st, size_t r, const attune__kv_tile *tile)
{
    REAL *p = st->p + r * st->lds, *d_s = st->d_s + r * st->lds;
    const REAL lse = st->lse[r], delta = st->delta[r];
    const bool empty = lse == -(REAL)INFINITY;
    /* A score above LSE is that of a forbidden pair, or a rounding error. */
    kernels->row_exp(p, attune__cpu_pad(tile->count), lse);
    for (size_t c = 0; c < tile->count; c++) {
        const bool none = empty || (tile->partial && !st->allowed[c]);
        const REAL value = none ? 0 : p[c], product = value * (d_s[c] - delta);
        p[c] = value;
        d_s[c] = value == 0 ? 0 : product;
    }
}

/* 3 to 5 for a tile: P, and dS with respect to scale * dot(q, k). Capture gradients are added to `sums`. */
static void recompute(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                      double *const *sums)
{
    const attune__forward *call = &run->call->forward;
    const attune__cpu_program *program = run->base.program;
    const attune__shape *shape = &program->shape;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t panels = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    kernels->multiply(st->p, st->lds, st->q, st->ldq, it->count, shape->head_dim, st->k,
                      ATTUNE__PANEL * (size_t)shape->head_dim, panels,
                      program->choice.prescale_qk ? 1 : (REAL)call->scale);
    kernels->multiply(st->d_s, st->lds, st->d_o, st->ldo, it->count, shape->head_dim_v, st->v,
                      ATTUNE__PANEL * (size_t)shape->head_dim_v, panels, 1);
    for (size_t r = 0; r < it->count; r++) {
        const int64_t q = it->q0 + (int64_t)r;
        const attune__row row = {.b = (int32_t)it->b,
                                 .h = (int32_t)it->h,
                                 .q = (int32_t)q,
                                 .h_kv = (int32_t)it->kv_h,
                                 .q_len = (int32_t)call->q_len,
                                 .kv_len = (int32_t)call->kv_len};
        REAL *s = st->p + r * st->lds;
        if (program->score) {
            memcpy(st->raw, s, tile->count * sizeof *s);
            SCORE_ROW(run->base.device, program->score, &run->base.score, &row, (int32_t)tile->kv0, tile->count,
                      st->expr, s);
        }
        if (tile->partial) {
            const attune_mask *mask = call->mask;
            const attune__bindings bindings = {mask->captures, mask->parameters};
            const attune__row mask_row = attune__mask_row(mask, it->b, it->h, q);
            attune__expr_mask_row(mask->expr, &bindings, &mask_row, (int32_t)tile->kv0, tile->count, st->expr,
                                  st->allowed);
        }
        normalise(kernels, st, r, tile);
        if (program->gradient)
            GRADIENT_ROW(run->base.device, program->gradient, &run->base.score, &row, (int32_t)tile->kv0, tile->count,
                         st->expr, st->raw, st->d_s + r * st->lds, sums);
    }
}

/* c += a b, with b packed. Where a is 0, non-finite elements of b add nothing. */
static void multiply_add(const NAME(cpu_kernels) * kernels, REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m,
                         size_t k, REAL *b, size_t panel_stride, bool finite)
{
    if (!finite)
        take_nonfinite(c, ldc, a, lda, m, &(operand){b, k, ldc, ATTUNE__PANEL, panel_stride}, NULL, 0, 0);
    kernels->multiply_add(c, ldc, a, lda, m, k, b, panel_stride, ldc / ATTUNE__PANEL);
}

/* 7: store rows of a gradient. */
static void store(const attune__cpu_backward_run *run, const attune_tensor *out, int64_t b, int64_t h, int64_t row0,
                  size_t count, REAL *from, size_t ld, size_t columns, REAL factor)
{
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    for (size_t r = 0; r < count; r++) {
        kernels->row_scale(from + r * ld, ld, factor);
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

static void rows_item(const attune__cpu_backward_run *run, const rows *it, const state *st, double *const *sums)
{
    const attune__forward *call = &run->call->forward;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t d = run->base.program->shape.head_dim;
    const size_t panel_stride = ATTUNE__PANEL * attune__cpu_pad(run->base.block_n);
    load_rows(run, it, st);
    memset(st->d_q, 0, it->count * st->ldq * sizeof(REAL));
    attune__block_iterator iterator = attune__block_iterator_begin(&run->base, it->b, it->h, it->q0, 0);
    attune__kv_tile tile;
    while (attune__block_iterator_next_tile(&iterator, &tile)) {
        load_keys(run, it->b, it->kv_h, &tile, st);
        recompute(run, it, &tile, st, sums);
        /* 6: dQ += dS K. */
        const bool finite = kernels->pack_v(st->d_k, panel_stride, row_at(&call->k, it->b, it->kv_h, tile.kv0),
                                            row_stride(&call->k), call->k.dtype, tile.count, d);
        multiply_add(kernels, st->d_q, st->ldq, st->d_s, st->lds, it->count, tile.count, st->d_k, panel_stride, finite);
    }
    store(run, &run->call->d_q, it->b, it->h, it->q0, it->count, st->d_q, st->ldq, d, (REAL)call->scale);
}

void NAME(cpu_backward_rows)(void *user, uint32_t thread)
{
    attune__cpu_backward_run *run = user;
    const state st = state_at(run, thread);
    double *sums[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&run->base.next, 1, memory_order_relaxed);
        if (index >= (run->slots ? run->slots : run->base.items))
            return;
        if (run->slots)
            attune__cpu_backward_slot(run, index, sums);
        /* A slot always has the same items in the same order, and so the same sums. */
        for (; index < run->base.items; index += run->slots ? run->slots : run->base.items) {
            const rows it = rows_at(run, index);
            rows_item(run, &it, &st, sums);
        }
    }
}

/* to[c][r] = from[r][c]. */
static void transpose(const state *st, const REAL *from, size_t count_m, size_t count_n)
{
    for (size_t c = 0; c < count_n; c++)
        for (size_t r = 0; r < count_m; r++)
            st->transposed[c * st->ldt + r] = from[r * st->lds + c];
}

/* One tile of keys with rows of one head of q. */
static void keys_and_rows(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                          const state *st)
{
    static double *const none[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    const attune__forward *call = &run->call->forward;
    const attune_tensor *q = &call->q, *d_o = &run->call->d_o;
    const NAME(cpu_kernels) *kernels = &run->base.device->KERNELS;
    const size_t panel_stride = ATTUNE__PANEL * st->ldt;
    load_rows(run, it, st);
    recompute(run, it, tile, st, none);
    /* 6: dV += P^T dO, dK += dS^T Q. */
    bool finite = kernels->pack_v(st->o_panels, panel_stride, row_at(d_o, it->b, it->h, it->q0), row_stride(d_o),
                                  d_o->dtype, it->count, run->base.program->shape.head_dim_v);
    transpose(st, st->p, it->count, tile->count);
    multiply_add(kernels, st->d_v, st->ldo, st->transposed, st->ldt, tile->count, it->count, st->o_panels, panel_stride,
                 finite);
    finite = kernels->pack_v(st->d_q, panel_stride, row_at(q, it->b, it->h, it->q0), row_stride(q), q->dtype, it->count,
                             run->base.program->shape.head_dim);
    transpose(st, st->d_s, it->count, tile->count);
    multiply_add(kernels, st->d_k, st->ldq, st->transposed, st->ldt, tile->count, it->count, st->d_q, panel_stride,
                 finite);
}

/* A tile of keys of one head of k and v, with every row that attends to it: of all heads of the group, and of all
 * batches if k and v broadcast. */
static void keys_item(const attune__cpu_backward_run *run, int64_t index, const state *st)
{
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const int64_t kv_batch = call->k.size[0], group = call->heads / call->kv_heads;
    const int64_t planes = kv_batch * call->kv_heads, plane = index % planes, chunk = index / planes;
    const int64_t kv_b = plane / call->kv_heads, kv_h = plane % call->kv_heads;
    attune__kv_tile tile = {.kv0 = chunk * (int64_t)run->base.block_n};
    tile.count =
        call->kv_len - tile.kv0 < (int64_t)run->base.block_n ? (size_t)(call->kv_len - tile.kv0) : run->base.block_n;
    load_keys(run, kv_b, kv_h, &tile, st);
    memset(st->d_k, 0, tile.count * st->ldq * sizeof(REAL));
    memset(st->d_v, 0, tile.count * st->ldo * sizeof(REAL));
    const int64_t first = kv_batch == 1 ? 0 : kv_b, end = kv_batch == 1 ? call->batch : kv_b + 1;
    for (int64_t b = first; b < end; b++)
        for (int64_t h = kv_h * group; h < (kv_h + 1) * group; h++) {
            attune__block_iterator iterator = attune__block_iterator_begin_columns(&run->base, b, h, tile.kv0);
            attune__kv_tile part;
            while (attune__block_iterator_next_tile(&iterator, &part)) {
                const rows it = {.b = b, .h = h, .kv_h = kv_h, .q0 = part.kv0, .count = part.count};
                tile.partial = part.partial;
                keys_and_rows(run, &it, &tile, st);
            }
        }
    store(run, &run->call->d_k, kv_b, kv_h, tile.kv0, tile.count, st->d_k, st->ldq, shape->head_dim, (REAL)call->scale);
    store(run, &run->call->d_v, kv_b, kv_h, tile.kv0, tile.count, st->d_v, st->ldo, shape->head_dim_v, 1);
}

void NAME(cpu_backward_keys)(void *user, uint32_t thread)
{
    attune__cpu_backward_run *run = user;
    const state st = state_at(run, thread);
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&run->base.next, 1, memory_order_relaxed);
        if (index >= run->base.items)
            return;
        keys_item(run, index, &st);
    }
}

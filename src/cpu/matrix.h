/* SPDX-License-Identifier: MIT */
/*
 * A tile of 16-bit q, k and v by a kernel that multiplies them as they are (attune__cpu_matrix): S in float, P rounded
 * to bf16, or to two of them for f16. Included by forward_tmpl.h for float. The arrays of a thread have 16-bit contents
 * here, with at most the bytes of those in float.
 *
 * A tile takes the path in float if it has few rows, or an element of it is infinite or NaN. Of a partial tile, each
 * MATRIX_ROWS rows have the columns from the first to the last that one of them allows.
 */

static size_t blocks_of(size_t columns)
{
    return (columns + ATTUNE__BLOCK_K - 1) / ATTUNE__BLOCK_K;
}

/* The distance of packed rows of q, in 16-bit elements, of which rows of one summand need half of the array. */
static size_t packed_stride(const attune__cpu_run *run, const state *st)
{
    const size_t columns = blocks_of(run->program->shape.head_dim) * ATTUNE__BLOCK_K;
    return run->call->q.dtype == ATTUNE_F16 ? 2 * st->ldq : 2 * attune__cpu_stride(columns / 2);
}

/* Loads q for the products. False if an element is infinite or NaN. */
static bool pack_q(const attune__cpu_run *run, const item *it, const state *st)
{
    const attune_tensor *q = &run->call->q;
    const size_t element = attune_dtype_size(q->dtype), ld = packed_stride(run, st);
    bool finite = true;
    for (size_t h = 0; h < it->heads; h++)
        finite &= run->program->matrix->pack_q(
            (uint16_t *)(void *)st->q + h * it->queries * ld, ld,
            attune__cpu_at(q, element, it->sequence.batch, it->h0 + (int64_t)h, it->sequence.row0 + it->q0),
            (ptrdiff_t)(q->stride[2] * (int64_t)element), q->dtype, it->queries, run->program->shape.head_dim);
    return finite;
}

static bool pack_q_once(const attune__cpu_run *run, const item *it, const state *st, form *held)
{
    if (*held != FORM_PACKED)
        *held = pack_q(run, it, st) ? FORM_PACKED : FORM_NONE;
    return *held == FORM_PACKED;
}

/* Applies the scale, the score expression and the mask to a row of scores, where the kernels do not. */
static void modify_scaled(const attune__cpu_run *run, const item *it, const state *st, size_t r,
                          const attune__kv_tile *tile, span c, size_t end)
{
    float *s = st->s + r * st->lds + c.first;
    run->device->f32.row_scale(s, attune__cpu_pad(end) - c.first, (float)run->call->scale);
    modify_row(run, it, st, r, tile, (span){c.first, end});
    for (size_t i = end; i < c.end; i++)
        s[i - c.first] = -INFINITY;
}

/* Rows of the softmax whose kernels are called at once. */
#define SOFTMAX_ROWS 8

/* Online softmax of rows of scores, which become P in place. */
static void softmax_matrix(const attune__cpu_run *run, const item *it, const state *st, size_t first, size_t rows,
                           const attune__kv_tile *tile, span c, size_t summands)
{
    const attune__cpu_matrix *matrix = run->program->matrix;
    const size_t n = c.end - c.first, end = c.end < tile->count ? c.end : tile->count;
    /* -inf stands for forbidden pairs: the factor must be applied first. */
    const bool plain = !tile->partial && !run->program->score && end == c.end;
    const float scale = plain ? (float)run->call->scale : 1;
    for (size_t r = first, count; r < first + rows; r += count) {
        float *s = st->s + r * st->lds + c.first, *m = st->m + r, *l = st->l + r;
        float max[SOFTMAX_ROWS], reference[SOFTMAX_ROWS], sum[SOFTMAX_ROWS];
        count = first + rows - r < SOFTMAX_ROWS ? first + rows - r : SOFTMAX_ROWS;
        for (size_t i = 0; i < count; i++) {
            if (!tile->partial)
                st->valid[r + i] = 1;
            if (!plain)
                modify_scaled(run, it, st, r + i, tile, c, end);
        }
        matrix->rows_max(s, st->lds, count, n, scale, max);
        for (size_t i = 0; i < count; i++) {
            max[i] = max[i] > m[i] ? max[i] : m[i];
            /* While the maximum is -inf, a finite reference avoids exp(-inf + inf). */
            reference[i] = max[i] == -INFINITY ? 0 : max[i];
        }
        matrix->rows_exp((uint16_t *)(void *)s, 2 * st->lds, s, st->lds, count, n, scale, reference, sum, summands);
        for (size_t i = 0; i < count; i++) {
            if (max[i] != m[i]) {
                const float factor = expf(m[i] - reference[i]);
                if (m[i] != -INFINITY)
                    run->device->f32.row_scale(st->o + (r + i) * st->ldo, st->dv, factor);
                l[i] *= factor;
                m[i] = max[i];
            }
            l[i] += sum[i];
        }
    }
}

/* k and v of a tile, packed. */
typedef struct packed_tile {
    uint16_t *k, *v;
} packed_tile;

static bool pack_tile(const attune__cpu_run *run, packed_tile to, source k, source v, size_t count, size_t k_stride,
                      size_t v_stride)
{
    const attune__cpu_matrix *matrix = run->program->matrix;
    const attune__shape *shape = &run->program->shape;
    return matrix->pack_k(to.k, k_stride, k.rows, k.stride, k.dtype, count, shape->head_dim) &&
           matrix->pack_v(to.v, v_stride, v.rows, v.stride, v.dtype, count, shape->head_dim_v);
}

/* The first thread that needs a tile packs it for all, but a sorted one, whose order is its rows'. False if an element
 * is infinite or NaN. */
static bool find_packed(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                        source k, source v, size_t k_stride, size_t v_stride, packed_tile *found)
{
    const packed_tile own = {(uint16_t *)(void *)st->k, (uint16_t *)(void *)st->v};
    *found = own;
    if (!run->packed || st->keys)
        return pack_tile(run, own, k, v, tile->count, k_stride, v_stride);
    const attune_tensor *tensor = &run->call->k;
    const int64_t head = (tensor->size[0] == 1 ? 0 : it->b) * run->call->kv_heads + it->kv_h;
    const uint64_t i = (uint64_t)head * run->packing.of_head + (uint64_t)tile->kv0 / run->block_n;
    char *const at = run->packed + i * run->packing.tile_bytes;
    const packed_tile shared = {(uint16_t *)(void *)at, (uint16_t *)(void *)(at + run->packing.v)};
    atomic_uchar *const begun = (atomic_uchar *)(void *)(run->packed + run->packing.states) + i;
    unsigned char known = atomic_load_explicit(begun, memory_order_acquire);
    if (known == ATTUNE__PACK_NONE &&
        atomic_compare_exchange_strong_explicit(begun, &known, ATTUNE__PACK_BEGUN, memory_order_acquire,
                                                memory_order_acquire)) {
        known =
            pack_tile(run, shared, k, v, tile->count, k_stride, v_stride) ? ATTUNE__PACK_DONE : ATTUNE__PACK_REFUSED;
        atomic_store_explicit(begun, known, memory_order_release);
    }
    if (known == ATTUNE__PACK_BEGUN)
        return pack_tile(run, own, k, v, tile->count, k_stride, v_stride);
    *found = shared;
    return known == ATTUNE__PACK_DONE;
}

static bool attend_matrix(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                          source k, source v, form *held)
{
    const attune__cpu_matrix *matrix = run->program->matrix;
    const size_t summands = k.dtype == ATTUNE_F16 ? 2 : 1, d = run->program->shape.head_dim;
    const size_t ldq = packed_stride(run, st), d_blocks = blocks_of(d), n = blocks_of(tile->count) * ATTUNE__BLOCK_K;
    const size_t k_stride = d_blocks * ATTUNE__BLOCK_K * ATTUNE__PANEL * summands;
    const size_t v_stride = blocks_of(run->block_n) * ATTUNE__BLOCK_K * ATTUNE__PANEL * summands;
    packed_tile packed;
    if (!pack_q_once(run, it, st, held) || !find_packed(run, it, st, tile, k, v, k_stride, v_stride, &packed))
        return false;
    for (size_t r = 0, rows; r < it->rows; r += rows) {
        const size_t left = it->rows - r;
        rows = tile->partial && left > MATRIX_ROWS ? MATRIX_ROWS : left;
        const span c = tile->partial ? matrix_span(st, r, rows, tile) : (span){0, n};
        if (c.first == c.end)
            continue;
        float *s = st->s + r * st->lds + c.first;
        const size_t end = c.end < tile->count ? c.end : attune__cpu_pad(tile->count);
        matrix->multiply(s, st->lds, (const uint16_t *)(const void *)st->q + r * ldq, ldq, rows, d_blocks,
                         packed.k + c.first / ATTUNE__PANEL * k_stride, k_stride, (end - c.first) / ATTUNE__PANEL,
                         summands, false, true);
        softmax_matrix(run, it, st, r, rows, tile, c, summands);
        matrix->multiply(st->o + r * st->ldo, st->ldo, (const uint16_t *)(const void *)s, 2 * st->lds, rows,
                         (c.end - c.first) / ATTUNE__BLOCK_K, packed.v + c.first * ATTUNE__PANEL * summands, v_stride,
                         st->dv / ATTUNE__PANEL, summands, true, false);
    }
    return true;
}

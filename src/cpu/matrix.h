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

/* Loads q for the products. False if an element is infinite or NaN. */
static bool pack_q(const attune__cpu_run *run, const item *it, const state *st)
{
    const attune_tensor *q = &run->call->q;
    const size_t element = attune_dtype_size(q->dtype), ld = 2 * st->ldq;
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

/* Online softmax of rows of scores, which become P in place. */
static void softmax_matrix(const attune__cpu_run *run, const item *it, const state *st, size_t first, size_t rows,
                           const attune__kv_tile *tile, span c, size_t summands)
{
    const attune__cpu_matrix *matrix = run->program->matrix;
    const size_t n = c.end - c.first, end = c.end < tile->count ? c.end : tile->count;
    /* -inf stands for forbidden pairs: the factor must be applied first. */
    const bool plain = !tile->partial && !run->program->score && end == c.end;
    const float scale = plain ? (float)run->call->scale : 1;
    for (size_t r = first; r < first + rows; r++) {
        float *s = st->s + r * st->lds + c.first;
        if (!tile->partial)
            st->valid[r] = 1;
        if (!plain) {
            run->device->f32.row_scale(s, attune__cpu_pad(end) - c.first, (float)run->call->scale);
            modify_row(run, it, st, r, tile, (span){c.first, end});
            for (size_t i = end; i < c.end; i++)
                s[i - c.first] = -INFINITY;
        }
        const float old = st->m[r], max = matrix->row_max(s, n, scale), m = max > old ? max : old;
        /* While the maximum is -inf, a finite reference avoids exp(-inf + inf). */
        const float reference = m == -INFINITY ? 0 : m;
        const float sum = matrix->row_exp((uint16_t *)(void *)s, s, n, scale, reference, summands);
        if (m != old) {
            const float factor = expf(old - reference);
            if (old != -INFINITY)
                run->device->f32.row_scale(st->o + r * st->ldo, st->ldo, factor);
            st->l[r] *= factor;
            st->m[r] = m;
        }
        st->l[r] += sum;
    }
}

static bool attend_matrix(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                          source k, source v, form *held)
{
    const attune__cpu_matrix *matrix = run->program->matrix;
    const size_t summands = k.dtype == ATTUNE_F16 ? 2 : 1, d = run->program->shape.head_dim;
    const size_t d_blocks = blocks_of(d), n = blocks_of(tile->count) * ATTUNE__BLOCK_K;
    const size_t k_stride = d_blocks * ATTUNE__BLOCK_K * ATTUNE__PANEL * summands;
    const size_t v_stride = blocks_of(run->block_n) * ATTUNE__BLOCK_K * ATTUNE__PANEL * summands;
    uint16_t *packed_k = (uint16_t *)(void *)st->k, *packed_v = (uint16_t *)(void *)st->v;
    if (!pack_q_once(run, it, st, held))
        return false;
    if (!matrix->pack_k(packed_k, k_stride, k.rows, k.stride, k.dtype, tile->count, d) ||
        !matrix->pack_v(packed_v, v_stride, v.rows, v.stride, v.dtype, tile->count, run->program->shape.head_dim_v))
        return false;
    for (size_t r = 0, rows; r < it->rows; r += rows) {
        const size_t left = it->rows - r;
        rows = tile->partial && left > MATRIX_ROWS ? MATRIX_ROWS : left;
        const span c = tile->partial ? matrix_span(st, r, rows, tile) : (span){0, n};
        if (c.first == c.end)
            continue;
        float *s = st->s + r * st->lds + c.first;
        const size_t end = c.end < tile->count ? c.end : attune__cpu_pad(tile->count);
        matrix->multiply(s, st->lds, (const uint16_t *)(const void *)(st->q + r * st->ldq), 2 * st->ldq, rows, d_blocks,
                         packed_k + c.first / ATTUNE__PANEL * k_stride, k_stride, (end - c.first) / ATTUNE__PANEL,
                         summands, false, true);
        softmax_matrix(run, it, st, r, rows, tile, c, summands);
        matrix->multiply(st->o + r * st->ldo, st->ldo, (const uint16_t *)(const void *)s, 2 * st->lds, rows,
                         (c.end - c.first) / ATTUNE__BLOCK_K, packed_v + c.first * ATTUNE__PANEL * summands, v_stride,
                         st->ldo / ATTUNE__PANEL, summands, true, false);
    }
    return true;
}

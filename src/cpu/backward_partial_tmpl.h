/* SPDX-License-Identifier: MIT */
/*
 * Backward: partial tiles of which the mask leaves little, as in partial_tmpl.h. Their products skip the cells that
 * have no allowed pair, or the pairs are computed one by one. Included by backward_tmpl.h.
 */

/* A pair by itself costs about as much as this many in a product. */
#define PAIR_COST 5
/* Fewer pairs take no time in either way. */
#define LEAST_PAIRS 16

/* The part of a tile that is computed. */
typedef enum extent { EXTENT_NONE, EXTENT_WHOLE, EXTENT_CELLS, EXTENT_SORTED, EXTENT_PAIRS } extent;

/* Evaluates the mask of a partial tile, unless an earlier head did. */
static extent extent_of(const attune__cpu_run *run, const rows *it, const attune__kv_tile *tile, const state *st)
{
    if (!tile->partial)
        return EXTENT_WHOLE;
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL, whole = it->count * words * ATTUNE__PANEL;
    const bool unknown = *st->pairs == UNKNOWN_PAIRS;
    if (unknown)
        *st->pairs = (uint32_t)allow_head(run, it->b, it->h, it->q0, it->count, st, tile, 0);
    const size_t pairs = allowed_pairs(st);
    if (!pairs)
        return EXTENT_NONE;
    const size_t cells = attune__order_cells(st->bits, st->ldb, it->count, words);
    const bool by_pairs = pairs >= LEAST_PAIRS && pairs * PAIR_COST < cells;
    /* Q is packed from the rows that S takes, which must not be scaled. */
    if (unknown && !run->program->choice.prescale_qk)
        sort_tile(run, st, it->count, tile, by_pairs ? pairs * PAIR_COST : cells,
                  3 * (run->program->shape.expr.mask.reads_head ? 1 : (size_t)run->call->heads));
    if (is_sorted(st))
        return EXTENT_SORTED;
    return by_pairs ? EXTENT_PAIRS : cells < whole ? EXTENT_CELLS : EXTENT_WHOLE;
}

/* The rows from r on that have the same spans, and their spans of columns. */
static size_t spans_from(const state *st, const rows *it, const attune__kv_tile *tile, extent of, size_t r,
                         size_t *count, span *spans)
{
    if (of == EXTENT_WHOLE) {
        spans[0] = (span){0, attune__cpu_pad(tile->count)};
        *count = 1;
        return it->count;
    }
    const size_t n = rows_of_cells(it->count, r);
    *count = spans_of(st, r, n, tile, spans);
    return n;
}

/* The spans of columns of all rows together. */
static size_t all_spans(const state *st, const rows *it, const attune__kv_tile *tile, extent of, span *spans)
{
    if (of != EXTENT_WHOLE)
        return spans_of(st, 0, it->count, tile, spans);
    spans[0] = (span){0, attune__cpu_pad(tile->count)};
    return 1;
}

static size_t columns_in(span c, const attune__kv_tile *tile)
{
    return (c.end < tile->count ? c.end : tile->count) - c.first;
}

/* The next span of rows, of whole cells, from r on that allow some of the columns of `words` words from `word` on.
 * False if there is none. */
static bool next_rows(const state *st, const rows *it, extent of, size_t word, size_t words, size_t r, span *found)
{
    *found = (span){0, 0};
    if (of == EXTENT_WHOLE) {
        found->end = r ? 0 : it->count;
        return !r;
    }
    for (; r < it->count; r += CELL_ROWS) {
        const size_t n = rows_of_cells(it->count, r);
        uint16_t any = 0;
        for (size_t i = 0; i < n; i++)
            for (size_t w = word; w < word + words; w++)
                any |= st->bits[(r + i) * st->ldb + w];
        if (any && !found->end)
            found->first = r;
        if (any)
            found->end = r + n;
        else if (found->end)
            break;
    }
    return found->end != 0;
}

/* Elements of a tile that were not computed become 0. */
static void clear_others(const state *st, const rows *it, const attune__kv_tile *tile, extent of, REAL *x)
{
    for (size_t r = 0, n; r < it->count; r += n) {
        span spans[MOST_SPANS];
        size_t count;
        n = spans_from(st, it, tile, of, r, &count, spans);
        for (size_t i = r; i < r + n; i++) {
            size_t c = 0;
            for (size_t j = 0; j <= count; j++) {
                const size_t end = j < count ? spans[j].first : attune__cpu_pad(tile->count);
                memset(x + i * st->lds + c, 0, (end - c) * sizeof *x);
                c = j < count ? spans[j].end : end;
            }
        }
    }
}

static source source_of(const attune_tensor *tensor, int64_t b, int64_t h, int64_t row)
{
    return (source){row_at(tensor, b, h, row), row_stride(tensor), tensor->dtype};
}

static source source_in(const REAL *from, size_t ld)
{
    return (source){(const char *)from, (ptrdiff_t)(ld * sizeof(REAL)), REAL_DTYPE};
}

/* Rows in REAL, which are copied to `to` if they are not. */
static source real_rows(const attune__cpu_run *run, source from, size_t count, REAL *to, size_t columns)
{
    if (from.dtype == REAL_DTYPE)
        return from;
    run->device->KERNELS.load_rows(to, columns, from.rows, from.stride, from.dtype, count, columns, 1);
    return source_in(to, columns);
}

/* 3 to 5 for the allowed pairs of a row, in the order of st->at. Returns their number. keys: of a row of them. */
static size_t recompute_pairs(const attune__cpu_run *run, const rows *it, const attune__kv_tile *tile, const state *st,
                              source k, source v, size_t r, REAL *p, REAL *d_s, int32_t *keys, double *const *sums)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const attune__shape *shape = &run->program->shape;
    const REAL scale = run->program->choice.prescale_qk ? 1 : (REAL)run->call->scale;
    const size_t count = st->lse[r] == -(REAL)INFINITY ? 0 : columns_of(st, r, tile), padded = attune__cpu_pad(count);
    if (!count)
        return 0;
    kernels->dots(p, st->lds, st->q + r * st->ldq, st->ldq, 1, k.rows, k.stride, st->at, count, shape->head_dim, scale);
    kernels->dots(d_s, st->lds, st->d_o + r * st->ldo, st->ldo, 1, v.rows, v.stride, st->at, count, shape->head_dim_v,
                  1);
    for (size_t i = count; i < padded; i++)
        p[i] = d_s[i] = 0;
    attune__row row = {0};
    if (run->program->score) {
        row = variables(run, it, r);
        row.keys = keys;
        find_keys(tile, st->at, count, keys);
        memcpy(st->raw, p, count * sizeof *p);
        SCORE_ROW(run->device, run->program->score, &run->score, &row, 0, count, st->expr, p);
    }
    kernels->row_gradient(p, d_s, NULL, padded, st->lse[r], st->delta[r]);
    if (run->program->gradient)
        GRADIENT_ROW(run->device, run->program->gradient, &run->score, &row, 0, count, st->expr, st->raw, d_s, sums);
    return count;
}

/* The pass over rows of Q: dQ += dS K. */
static void rows_by_pairs(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                          const state *st, source k, source v, double *const *sums)
{
    const attune__shape *shape = &run->base.program->shape;
    k = real_rows(&run->base, k, tile->count, st->k, shape->head_dim);
    v = real_rows(&run->base, v, tile->count, st->v, shape->head_dim_v);
    REAL *p = st->p, *d_s = st->d_s;
    int32_t *keys = (int32_t *)(void *)(st->p + st->lds);
    for (size_t r = 0; r < it->count; r++) {
        const size_t count = recompute_pairs(&run->base, it, tile, st, k, v, r, p, d_s, keys, sums);
        size_t some = 0;
        for (size_t i = 0; i < count; i++) {
            /* 0 adds nothing, even to a non-finite element. */
            st->at[some] = st->at[i];
            d_s[some] = d_s[i];
            some += d_s[i] != 0;
        }
        run->base.device->KERNELS.axpys(st->d_q + r * st->ldq, st->ldq, d_s, st->lds, 1, k.rows, k.stride, st->at, some,
                                        shape->head_dim);
    }
}

/* Adds the rows of b in `at`, in the order of rows, with weights from column c of x, unless they are 0. */
static void add_column(const attune__cpu_run *run, const state *st, REAL *to, const REAL *x, const uint16_t *at,
                       size_t count, source b, size_t columns)
{
    REAL *weights = st->transposed;
    size_t some = 0;
    for (size_t i = 0; i < count; i++) {
        const REAL weight = x[at[i] * st->lds];
        st->at[some] = at[i];
        weights[some] = weight;
        some += weight != 0;
    }
    run->device->KERNELS.axpys(to, columns, weights, st->ldt, 1, b.rows, b.stride, st->at, some, columns);
}

/* The pass over rows of K: dV += P^T dO, dK += dS^T Q. */
static void keys_by_pairs(const attune__cpu_backward_run *run, const rows *it, const attune__kv_tile *tile,
                          const state *st, source k, source v)
{
    const attune__forward *call = &run->call->forward;
    const attune__shape *shape = &run->base.program->shape;
    const size_t d = shape->head_dim, dv = shape->head_dim_v;
    k = real_rows(&run->base, k, tile->count, st->k_rows, d);
    v = real_rows(&run->base, v, tile->count, st->v_rows, dv);
    REAL *row_p = st->transposed, *row_d_s = st->transposed + st->lds;
    int32_t *keys = (int32_t *)(void *)(st->transposed + 2 * st->lds);
    for (size_t r = 0; r < it->count; r++) {
        const size_t count = recompute_pairs(&run->base, it, tile, st, k, v, r, row_p, row_d_s, keys, no_sums);
        for (size_t i = 0; i < count; i++) {
            st->p[r * st->lds + st->at[i]] = row_p[i];
            st->d_s[r * st->lds + st->at[i]] = row_d_s[i];
        }
    }
    const source d_o = source_in(st->d_o, st->ldo);
    const source q = run->base.program->choice.prescale_qk
                         ? real_rows(&run->base, source_of(&call->q, it->b, it->h, it->q0), it->count, st->d_q, d)
                         : source_in(st->q, st->ldq);
    for (size_t w = 0; w * ATTUNE__PANEL < tile->count; w++) {
        size_t counts[ATTUNE__PANEL] = {0};
        for (size_t r = 0; r < it->count; r++)
            for (uint32_t word = st->lse[r] == -(REAL)INFINITY ? 0 : st->bits[r * st->ldb + w]; word;
                 word &= word - 1) {
                const size_t c = (size_t)__builtin_ctz(word);
                st->panel_rows[c * st->ldt + counts[c]++] = (uint16_t)r;
            }
        for (size_t i = 0, c = w * ATTUNE__PANEL; i < ATTUNE__PANEL && c < tile->count; i++, c++) {
            const uint16_t *at = st->panel_rows + i * st->ldt;
            add_column(&run->base, st, st->d_v + c * st->ldo, st->p + c, at, counts[i], d_o, dv);
            add_column(&run->base, st, st->d_k + c * st->ldq, st->d_s + c, at, counts[i], q, d);
        }
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Partial tiles of which the mask leaves little. The mask is evaluated first. Where few pairs are allowed, each is
 * computed by itself, from rows of k and v in place; else the products skip the cells, of CELL_ROWS rows and a panel of
 * columns, that have no allowed pair. Included by forward_tmpl.h.
 */

/* A pair by itself costs about as much as this many in a product. */
#define PAIR_COST 6
/* Fewer pairs take no time in either way: they are summed in the order of whole tiles. */
#define LEAST_PAIRS 16
/* Rows whose columns the product of 16-bit matrices takes together, and by how much it is faster. */
#define MATRIX_ROWS 32
#define MATRIX_GAIN 2

/* The columns from the first to the last that some of `rows` rows from r on allows, in blocks of ATTUNE__BLOCK_K. */
static span matrix_span(const state *st, size_t r, size_t rows, const attune__kv_tile *tile)
{
    span spans[MOST_SPANS];
    const size_t count = spans_of(st, r, rows, tile, spans);
    if (!count)
        return (span){0, 0};
    return (span){spans[0].first / ATTUNE__BLOCK_K * ATTUNE__BLOCK_K,
                  (spans[count - 1].end + ATTUNE__BLOCK_K - 1) / ATTUNE__BLOCK_K * ATTUNE__BLOCK_K};
}

/* The cost of the product of 16-bit matrices, in pairs of cells. */
static size_t matrix_cost(const item *it, const state *st, const attune__kv_tile *tile)
{
    size_t pairs = 0;
    for (size_t r = 0; r < it->rows; r += MATRIX_ROWS) {
        const size_t rows = it->rows - r < MATRIX_ROWS ? it->rows - r : MATRIX_ROWS;
        const span c = matrix_span(st, r, rows, tile);
        pairs += rows * (c.end - c.first);
    }
    return pairs / MATRIX_GAIN;
}

/* The rows of k, or v, of a tile in REAL. */
static source whole_rows(const attune__cpu_run *run, const attune__kv_tile *tile, source from, REAL *to, size_t columns)
{
    if (from.dtype == REAL_DTYPE)
        return from;
    run->device->KERNELS.load_rows(to, columns, from.rows, from.stride, from.dtype, tile->count, columns, 1);
    return (source){(const char *)to, (ptrdiff_t)(columns * sizeof(REAL)), REAL_DTYPE};
}

/* The score expression for the columns in st->at; their keys are where other rows of S would be. */
static void modify_pairs(const attune__cpu_run *run, const item *it, const state *st, size_t r,
                         const attune__kv_tile *tile, REAL *s, size_t count)
{
    int32_t *keys = (int32_t *)(void *)(st->s + st->lds);
    attune__row row = variables(it, r);
    find_keys(tile, st->at, count, keys);
    row.keys = keys;
    SCORE_ROW(run->device, run->program->score, &run->score, &row, (int32_t)tile->kv0, count, st->expr, s);
}

static void attend_pairs(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                         source k, source v)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const size_t d = run->program->shape.head_dim, dv = run->program->shape.head_dim_v;
    const REAL scale = run->program->choice.prescale_qk ? 1 : (REAL)run->call->scale;
    k = whole_rows(run, tile, k, st->k, d);
    v = whole_rows(run, tile, v, st->v, dv);
    for (size_t r = 0; r < it->rows; r++) {
        const size_t count = columns_of(st, r, tile);
        const span all = {0, attune__cpu_pad(count)};
        REAL *s = st->s;
        if (!count)
            continue;
        kernels->dots(s, st->lds, st->q + r * st->ldq, st->ldq, 1, k.rows, k.stride, st->at, count, d, scale);
        if (run->program->score)
            modify_pairs(run, it, st, r, tile, s, count);
        for (size_t c = count; c < all.end; c++)
            s[c] = -(REAL)INFINITY;
        softmax_row(run, st, r, s, &all, 1);
        kernels->axpys(st->o + r * st->ldo, st->ldo, s, st->lds, 1, v.rows, v.stride, st->at, count, dv);
    }
}

static size_t span_rows(span c, const attune__kv_tile *tile)
{
    return (c.end < tile->count ? c.end : tile->count) - c.first;
}

/* 6: O += P V for some rows from r0 on, over their spans. */
static void add_spans(const attune__cpu_run *run, const state *st, const attune__kv_tile *tile, size_t r0, size_t rows,
                      const span *spans, size_t count)
{
    const size_t panel_stride = ATTUNE__PANEL * attune__cpu_pad(run->block_n);
    for (size_t i = 0; i < count; i++) {
        const size_t c = spans[i].first;
        run->device->KERNELS.multiply_add(st->o + r0 * st->ldo, st->ldo, st->s + r0 * st->lds + c, st->lds, rows,
                                          span_rows(spans[i], tile), st->v + c * ATTUNE__PANEL, panel_stride,
                                          st->dv / ATTUNE__PANEL);
    }
}

static void attend_cells(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                         source k, source v)
{
    const NAME(cpu_kernels) *kernels = &run->device->KERNELS;
    const size_t d = run->program->shape.head_dim, dv = run->program->shape.head_dim_v;
    const size_t panel_stride = ATTUNE__PANEL * attune__cpu_pad(run->block_n);
    const REAL scale = run->program->choice.prescale_qk ? 1 : (REAL)run->call->scale;
    span spans[MOST_SPANS];
    bool finite = true;
    size_t count = spans_of(st, 0, it->rows, tile, spans);
    for (size_t i = 0; i < count; i++) {
        const size_t c = spans[i].first, n = span_rows(spans[i], tile);
        kernels->pack_k(st->k + c * d, k.rows + (ptrdiff_t)c * k.stride, k.stride, k.dtype, n, d);
        finite &= kernels->pack_v(st->v + c * ATTUNE__PANEL, panel_stride, v.rows + (ptrdiff_t)c * v.stride, v.stride,
                                  v.dtype, n, dv);
    }
    for (size_t r0 = 0; r0 < it->rows; r0 += CELL_ROWS) {
        const size_t rows = rows_of_cells(it->rows, r0);
        count = spans_of(st, r0, rows, tile, spans);
        for (size_t i = 0; i < count; i++) {
            const size_t c = spans[i].first;
            kernels->multiply(st->s + r0 * st->lds + c, st->lds, st->q + r0 * st->ldq, st->ldq, rows, d, st->k + c * d,
                              ATTUNE__PANEL * d, (spans[i].end - c) / ATTUNE__PANEL, scale);
            for (size_t r = r0; r < r0 + rows; r++)
                modify_row(run, it, st, r, tile, (span){c, c + span_rows(spans[i], tile)});
        }
        for (size_t r = r0; r < r0 + rows; r++)
            softmax_row(run, st, r, st->s + r * st->lds, spans, count);
        if (finite)
            add_spans(run, st, tile, r0, rows, spans, count);
    }
    if (finite)
        return;
    /* Every row has its weights before an element is taken. */
    count = spans_of(st, 0, it->rows, tile, spans);
    for (size_t i = 0; i < count; i++) {
        const size_t c = spans[i].first;
        take_values(it, st, c,
                    &(operand){st->v + c * ATTUNE__PANEL, span_rows(spans[i], tile), dv, ATTUNE__PANEL, panel_stride});
    }
    for (size_t r0 = 0; r0 < it->rows; r0 += CELL_ROWS) {
        const size_t rows = rows_of_cells(it->rows, r0);
        count = spans_of(st, r0, rows, tile, spans);
        add_spans(run, st, tile, r0, rows, spans, count);
    }
}

/* Whether rows of a tile have an allowed pair. */
static void mark_rows(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile)
{
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    const uint16_t *places = is_sorted(st) ? row_places(run, st) : NULL;
    for (size_t r = 0; r < it->rows; r++) {
        uint32_t any = 0;
        for (size_t w = 0; w < words; w++)
            any |= st->bits[r * st->ldb + w];
        if (any)
            st->valid[places ? places[r] : r] = 1;
    }
}

/* The cost of a tile's products, in pairs, of cells alone or of the whole tile. */
typedef struct costs {
    size_t cells, whole;
} costs;

static costs costs_of(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile)
{
    const size_t words = attune__cpu_pad(tile->count) / ATTUNE__PANEL;
    return (costs){
        .cells = attune__order_cells(st->bits, st->ldb, it->rows, words),
        .whole = run->program->matrix ? matrix_cost(it, st, tile) : it->rows * words * ATTUNE__PANEL,
    };
}

static size_t least_cost(costs c, size_t pairs)
{
    const size_t least = c.cells < c.whole ? c.cells : c.whole;
    return pairs >= LEAST_PAIRS && pairs * PAIR_COST < least ? pairs * PAIR_COST : least;
}

/* Evaluates the mask of a tile, unless an earlier head did, and returns the number of allowed pairs. */
static size_t allow_tile(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile)
{
    if (*st->pairs == UNKNOWN_PAIRS) {
        const size_t words = it->queries * st->ldb;
        const bool alike = !run->program->shape.expr.mask.reads_head;
        size_t pairs = 0, of_head = 0;
        for (size_t h = 0; h < it->heads; h++) {
            if (!h || !alike)
                of_head = allow_head(run, it->b, it->h0 + (int64_t)h, it->q0, it->queries, st, tile, h * it->queries);
            else
                memcpy(st->bits + h * words, st->bits, words * sizeof *st->bits);
            pairs += of_head;
        }
        *st->pairs = (uint32_t)pairs;
        if (pairs && it->rows > DIRECT_ROWS)
            sort_tile(run, st, it->rows, tile, least_cost(costs_of(run, it, st, tile), pairs),
                      2 * (alike ? (size_t)run->call->heads / it->heads : 1));
    }
    mark_rows(run, it, st, tile);
    return allowed_pairs(st);
}

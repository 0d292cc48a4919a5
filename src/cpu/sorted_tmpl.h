/* SPDX-License-Identifier: MIT */
/*
 * Partial tiles whose rows and keys are brought into another order first (cpu/order.h), so that their products skip
 * more. Included by forward_tmpl.h.
 */

/* A sorted tile: its rows and keys are brought into that order, and rows of the result back. */
static void attend_sorted(const attune__cpu_run *run, const item *it, const state *st, const attune__kv_tile *tile,
                          source k, source v, form *held)
{
    const uint16_t *rows = row_places(run, st), *columns = column_places(run, st);
    const size_t count = last_column(st, it->rows, tile);
    int32_t keys[ATTUNE__CPU_SORTED];
    find_places(st, columns, tile->count);
    find_keys(tile, columns, count, keys);
    const source sorted_k = sorted_rows(st, k, st->sorted_k, tile->count, count, run->program->shape.head_dim);
    const source sorted_v = sorted_rows(st, v, st->sorted_v, tile->count, count, run->program->shape.head_dim_v);
    attune__kv_tile sorted_tile = *tile;
    state sorted = *st;
    sorted_tile.count = count;
    sorted.row_of = rows;
    sorted.keys = keys;
    sorted.q = st->sorted_q;
    sorted.o = st->sorted_o;
    sorted.m = st->sorted_m;
    sorted.l = st->sorted_l;
    take_rows(sorted.o, st->o, rows, it->rows, st->ldo);
    take_values_at(sorted.m, st->m, rows, it->rows);
    take_values_at(sorted.l, st->l, rows, it->rows);
    bool done = false;
#ifdef MATRIX
    const costs c = costs_of(run, it, st, tile);
    if (run->program->matrix && c.whole <= c.cells && pack_q_once(run, it, st, held)) {
        form packed = FORM_PACKED;
        take_rows(sorted.q, st->q, rows, it->rows, packed_stride(run, st) / 2);
        done = attend_matrix(run, it, &sorted, &sorted_tile, sorted_k, sorted_v, &packed);
    }
#endif
    if (!done) {
        load_q_once(run, it, st, held);
        take_rows(sorted.q, st->q, rows, it->rows, st->ldq);
        attend_cells(run, it, &sorted, &sorted_tile, sorted_k, sorted_v);
    }
    return_rows(st->o, sorted.o, rows, it->rows, st->ldo);
    for (size_t r = 0; r < it->rows; r++) {
        st->m[rows[r]] = sorted.m[r];
        st->l[rows[r]] = sorted.l[r];
    }
}

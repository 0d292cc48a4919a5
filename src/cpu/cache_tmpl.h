/* SPDX-License-Identifier: MIT */
/*
 * The keys of a sequence, from a cache: which tiles of them an item has, their rows, and which pairs are allowed.
 * Included by forward_tmpl.h. Tiles begin at multiples of block_n of the sequence's keys, and rows are copied into the
 * same place wherever their pages are, so that results do not depend on the pages.
 */

/* Copies rows that are in one page, dequantised. */
static void copy_rows(const attune__cpu_run *run, const attune_tensor *tensor, const attune_tensor *scale, int64_t kv_h,
                      const attune__cpu_key *key, size_t count, REAL *to)
{
    const size_t columns = (size_t)tensor->size[3], element = attune_dtype_size(tensor->dtype);
    const ptrdiff_t stride = (ptrdiff_t)(tensor->stride[2] * (int64_t)element);
    const char *rows = attune__cpu_at(tensor, element, key->page, kv_h, key->row);
    if (!attune__is_quantised(tensor->dtype)) {
        run->device->KERNELS.load_rows(to, columns, rows, stride, tensor->dtype, count, columns, 1);
        return;
    }
    for (size_t r = 0; r < count; r++, to += columns) {
        float factor = 1;
        if (scale->buffer)
            memcpy(&factor, attune__cpu_at(scale, sizeof factor, key->page, kv_h, key->row + (int64_t)r),
                   sizeof factor);
        run->device->KERNELS.dequantise(to, rows + (ptrdiff_t)r * stride, tensor->dtype, columns, factor);
    }
}

/* Copies the rows of a tile; those that are in no page become 0. */
static source gather(const attune__cpu_run *run, const attune_tensor *tensor, const item *it, const state *st,
                     attune__kv_tile *tile)
{
    const size_t columns = (size_t)tensor->size[3];
    const attune__serving *serving = run->call->serving;
    const bool is_v = tensor == &run->call->v;
    attune__cpu_key key;
    for (int64_t c = 0, count; c < (int64_t)tile->count; c += count) {
        const bool found = attune__cpu_key_at(run->call, it->b, tile->kv0 + c, &key);
        count = key.count < (int64_t)tile->count - c ? key.count : (int64_t)tile->count - c;
        REAL *to = st->stage + (size_t)c * columns;
        if (found)
            copy_rows(run, tensor, is_v ? &serving->v_scale : &serving->k_scale, it->kv_h, &key, (size_t)count, to);
        else
            memset(to, 0, (size_t)count * columns * sizeof *to);
        if (is_v)
            continue;
        memset(st->absent + c, !found, (size_t)count);
        tile->absent |= !found;
    }
    tile->partial |= tile->absent;
    return (source){(const char *)st->stage, (ptrdiff_t)(columns * sizeof(REAL)), REAL_DTYPE};
}

static attune__interval closed(int64_t low, int64_t high)
{
    return (attune__interval){.lo = (int32_t)low, .hi = (int32_t)high};
}

/* The mask over all pairs of a tile: lo 1 = every pair is allowed, hi 0 = none is. */
static attune__interval bound_mask(const attune__cpu_run *run, const item *it, const state *st,
                                   const attune__kv_tile *tile)
{
    const attune__cpu_sequence *s = &it->sequence;
    const int64_t q0 = s->position + it->q0, row0 = s->row + it->q0, last = (int64_t)it->queries - 1;
    attune__box box;
    box.var[ATTUNE__VAR_B] = closed(it->b, it->b);
    box.var[ATTUNE__VAR_H] = closed(it->h0, it->h0 + (int64_t)it->heads - 1);
    box.var[ATTUNE__VAR_Q] = closed(q0, q0 + last);
    box.var[ATTUNE__VAR_KV] = closed(tile->kv0, tile->kv0 + (int64_t)tile->count - 1);
    box.var[ATTUNE__VAR_H_KV] = closed(it->kv_h, it->kv_h);
    box.var[ATTUNE__VAR_Q_LEN] = closed(s->q_len, s->q_len);
    box.var[ATTUNE__VAR_KV_LEN] = closed(s->kv_len, s->kv_len);
    box.var[ATTUNE__VAR_SCORE] = closed(0, 0);
    box.var[ATTUNE__VAR_ROW] = closed(row0, row0 + last);
    return attune__expr_bounds(run->program->mask, &run->mask, NULL, &box, st->bounds);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The next tile that the mask leaves before `limit`; tile->kv0 is where it may begin. False at the end. */
static bool next_served_tile(const attune__cpu_run *run, const item *it, const state *st, int64_t limit,
                             attune__kv_tile *tile)
{
    const attune__cpu_sequence *s = &it->sequence;
    const int64_t block = (int64_t)run->block_n, part = run->split_keys, drafts = s->kv_len - s->q_len;
    limit = least(limit, s->kv_len);
    for (int64_t kv = tile->kv0 + (int64_t)tile->count; kv < limit; kv = tile->kv0 + (int64_t)tile->count) {
        const int64_t end = least(least(kv / block * block + block, kv / part * part + part), limit);
        *tile = (attune__kv_tile){.kv0 = kv, .count = (size_t)(end - kv)};
        if (run->program->mask) {
            const attune__interval any = bound_mask(run, it, st, tile);
            if (any.hi == 0)
                continue;
            tile->masked = any.lo == 0;
        }
        tile->tree = run->call->serving->tree.buffer && end > drafts;
        tile->partial = tile->masked || tile->tree;
        return true;
    }
    return false;
}

/* Forbids the drafts that a row does not see. */
static void allow_tree(const attune__cpu_run *run, const item *it, const state *st, size_t r,
                       const attune__kv_tile *tile)
{
    const attune_tensor *tree = &run->call->serving->tree;
    const attune__cpu_sequence *s = &it->sequence;
    const char *words = attune__cpu_memory(tree->buffer) + tree->offset +
                        (s->batch * tree->stride[0] + (s->row0 + row_query(it, r)) * tree->stride[1]) * 4;
    for (size_t c = 0; c < tile->count; c++) {
        const int64_t draft = tile->kv0 + (int64_t)c - (s->kv_len - s->q_len);
        uint32_t word = 0;
        if (draft < 0)
            continue;
        if (draft / 32 < tree->size[2])
            memcpy(&word, words + draft / 32 * tree->stride[2] * 4, sizeof word);
        st->allowed[c] &= word >> draft % 32 & 1;
    }
}

/* The bits of a row of a partial tile. Returns the number of allowed pairs. */
static size_t allow_served(const attune__cpu_run *run, const item *it, const state *st, size_t r,
                           const attune__kv_tile *tile)
{
    const attune__row row = variables(it, r);
    if (tile->masked)
        attune__expr_mask_row(run->program->mask, &run->mask, &row, (int32_t)tile->kv0, tile->count, st->expr,
                              st->allowed);
    else
        memset(st->allowed, 1, tile->count);
    for (size_t c = 0; c < tile->count && tile->absent; c++)
        st->allowed[c] &= !st->absent[c];
    if (tile->tree)
        allow_tree(run, it, st, r, tile);
    return run->device->KERNELS.row_bits(st->bits + r * st->ldb, st->allowed, tile->count);
}

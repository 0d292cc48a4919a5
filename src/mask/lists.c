/* SPDX-License-Identifier: MIT */
/* Masks from the caller's lists, which are checked entry by entry, and slices of masks. */
#include "mask/rects.h"

#include "base/error.h"

/* One of the caller's two lists. */
typedef struct caller_list {
    const char *name; /* "kv", "full_kv" */
    const int32_t *num_blocks;
    const int64_t *offsets; /* NULL = rows are contiguous */
    const int32_t *indices;
    int64_t next; /* start of the next row, without offsets */
} caller_list;

/* The entries of one row, valid once checked. */
typedef struct entries {
    const int32_t *index;
    int32_t count;
} entries;

static attune_status check_row(caller_list *list, int64_t row, int64_t kv_blocks, entries *found)
{
    *found = (entries){NULL, 0};
    if (!list->num_blocks)
        return ATTUNE_OK;
    const int32_t count = list->num_blocks[row];
    if (count < 0 || count > kv_blocks)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "lists.%s_num_blocks[%lld] is %d, expected 0 to %lld", list->name,
                            (long long)row, count, (long long)kv_blocks);
    int64_t start = list->next;
    if (list->offsets) {
        start = list->offsets[row];
        if (start < 0)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "lists.%s_offsets[%lld] is %lld, expected at least 0",
                                list->name, (long long)row, (long long)start);
        const int64_t end = list->offsets[row + 1];
        if (end < start || end - start < count)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "lists.%s_offsets[%lld] is %lld, expected at least %llu: row %lld starts at %lld and "
                                "has %d blocks",
                                list->name, (long long)row + 1, (long long)end,
                                (unsigned long long)start + (unsigned)count, (long long)row, (long long)start, count);
    }
    list->next = start + count;
    if (!count)
        return ATTUNE_OK;
    if (!list->indices)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "lists.%s_indices is NULL, but row %lld has %d blocks", list->name,
                            (long long)row, count);
    const int32_t *index = list->indices + start;
    for (int32_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= kv_blocks)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "lists.%s_indices: entry %d of row %lld is %d, expected 0 to %lld", list->name, i,
                                (long long)row, index[i], (long long)kv_blocks - 1);
        if (i && index[i] <= index[i - 1])
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "lists.%s_indices: entry %d of row %lld is %d after %d, expected ascending order",
                                list->name, i, (long long)row, index[i], index[i - 1]);
    }
    *found = (entries){index, count};
    return ATTUNE_OK;
}

static attune_status check_disjoint(const entries *partial, const entries *full, int64_t row)
{
    int32_t p = 0, f = 0;
    while (p < partial->count && f < full->count) {
        if (partial->index[p] == full->index[f])
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "lists: block %d of row %lld is in kv_indices (entry %d) and in full_kv_indices (entry "
                                "%d), expected in one only",
                                partial->index[p], (long long)row, p, f);
        if (partial->index[p] < full->index[f])
            p++;
        else
            f++;
    }
    return ATTUNE_OK;
}

static bool add_entries(attune__rects *rects, int32_t r, const entries *list, attune__class class)
{
    for (int32_t i = 0; i < list->count;) {
        const int32_t c0 = list->index[i];
        int32_t c1 = c0;
        while (i < list->count && list->index[i] == c1) {
            i++;
            c1++;
        }
        if (!attune__rects_add(rects, r, r + 1, c0, c1, class))
            return false;
    }
    return true;
}

static attune_status read_rows(const attune_mask *mask, caller_list *partial, caller_list *full, attune__rects *rects)
{
    for (int64_t p = 0, row = 0; p < mask->stored_batch * mask->stored_heads; p++) {
        attune__rects_begin_plane(rects);
        for (int32_t r = 0; r < mask->q_blocks; r++, row++) {
            entries some, all;
            ATTUNE__TRY(check_row(partial, row, mask->kv_blocks, &some));
            ATTUNE__TRY(check_row(full, row, mask->kv_blocks, &all));
            ATTUNE__TRY(check_disjoint(&some, &all, row));
            if (some.count && !mask->expr)
                return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                    "expr is NULL, but lists.kv_num_blocks[%lld] is %d: give the expression that "
                                    "partial blocks evaluate, or list the blocks in full_kv_indices",
                                    (long long)row, some.count);
            if (!add_entries(rects, r, &some, ATTUNE__PARTIAL) || !add_entries(rects, r, &all, ATTUNE__FULL))
                return ATTUNE_OUT_OF_HOST_MEMORY;
        }
        attune__rects_end_plane(rects);
    }
    return ATTUNE_OK;
}

static attune_status check_broadcast(const char *name, int64_t value, int64_t whole)
{
    if (value != 1 && value != whole)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "lists.%s is %lld, expected 1 or desc.%s, which is %lld", name,
                            (long long)value, name, (long long)whole);
    return ATTUNE_OK;
}

attune_status attune__mask_from_lists(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      const attune_mask_lists *lists, const attune_expr *expr,
                                      const attune_array *captures, const attune__value *parameters, attune_mask **mask)
{
    caller_list partial = {"kv", lists->kv_num_blocks, lists->kv_offsets, lists->kv_indices, 0};
    caller_list full = {"full_kv", lists->full_kv_num_blocks, lists->full_kv_offsets, lists->full_kv_indices, 0};
    attune__rects rects = {0};
    attune_mask *made = NULL;
    attune_status status = check_broadcast("batch", lists->batch, desc->batch);
    if (status == ATTUNE_OK)
        status = check_broadcast("heads", lists->heads, desc->heads);
    if (status == ATTUNE_OK && !partial.num_blocks)
        status = attune__fail(ATTUNE_INVALID_ARGUMENT,
                              "lists.kv_num_blocks is NULL: give a count for each row, 0 where no block is partial");
    if (status != ATTUNE_OK)
        goto done;
    status = attune__mask_new(allocator, desc, lists->batch, lists->heads, expr,
                              &(attune__bindings){captures, parameters}, &made);
    if (status != ATTUNE_OK)
        goto done;
    status = attune__rects_init(&rects, allocator, made->stored_batch * made->stored_heads);
    if (status == ATTUNE_OK)
        status = read_rows(made, &partial, &full, &rects);
    if (status == ATTUNE_OK)
        status = attune__mask_store(made, &rects, NULL);
done:
    attune__rects_finish(&rects);
    if (status != ATTUNE_OK) {
        attune__mask_free(made);
        made = NULL;
    }
    *mask = made;
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- slices */

/* Checks a range; a count of 0 becomes the rest. */
static attune_status check_range(const char *first_name, int64_t first, const char *count_name, int64_t *count,
                                 int64_t whole)
{
    if (first < 0 || first >= whole)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "range.%s is %lld, expected 0 to %lld", first_name,
                            (long long)first, (long long)whole - 1);
    if (*count < 0 || *count > whole - first)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "range.%s is %lld, expected 1 to %lld from %s %lld on, or 0 for all", count_name,
                            (long long)*count, (long long)(whole - first), first_name, (long long)first);
    if (!*count)
        *count = whole - first;
    return ATTUNE_OK;
}

static bool slice_lists(const attune_mask *mask, const attune_mask_range *range, const attune_mask *slice,
                        attune__rects *rects)
{
    for (int64_t b = 0; b < slice->stored_batch; b++)
        for (int64_t h = 0; h < slice->stored_heads; h++) {
            const int64_t row0 = attune__mask_at(mask, range->batch0 + b, range->head0 + h).row0 + range->q_block0;
            attune__rects_begin_plane(rects);
            for (int32_t r = 0; r < slice->q_blocks; r++)
                for (attune__runs run = attune__runs_begin(mask, row0 + r); !attune__runs_done(&run);
                     attune__runs_next(&run))
                    if (!attune__rects_add(rects, r, r + 1, run.c0, run.c1, run.class))
                        return false;
            attune__rects_end_plane(rects);
        }
    return true;
}

attune_status attune__mask_slice(const attune_mask *mask, const attune_mask_range *range, attune_mask **slice)
{
    attune_mask_range r = *range;
    attune__rects rects = {0};
    attune_mask *made = NULL;
    attune_mask_desc desc = attune__mask_describe(mask);
    attune_status status = check_range("batch0", r.batch0, "batch", &r.batch, mask->batch);
    if (status == ATTUNE_OK)
        status = check_range("head0", r.head0, "heads", &r.heads, mask->heads);
    if (status == ATTUNE_OK)
        status = check_range("q_block0", r.q_block0, "q_blocks", &r.q_blocks, mask->q_blocks);
    if (status != ATTUNE_OK)
        goto done;

    const int64_t group = mask->expr_heads / mask->expr_kv_heads, first_head = mask->h0 + r.head0;
    desc.batch = r.batch;
    desc.heads = r.heads;
    if (first_head % group == 0 && r.heads % group == 0)
        desc.kv_heads = r.heads / group;
    else /* a part of one group, or of several: no grouping of the slice's heads is equivalent */
        desc.kv_heads = first_head / group == (first_head + r.heads - 1) / group ? 1 : r.heads;
    desc.q_len = attune__min64(r.q_blocks * mask->q_block, mask->q_len - r.q_block0 * mask->q_block);
    status = attune__mask_new(&mask->allocator, &desc, mask->stored_batch == 1 ? 1 : r.batch,
                              mask->stored_heads == 1 ? 1 : r.heads, mask->expr,
                              &(attune__bindings){mask->captures, mask->parameters}, &made);
    if (status != ATTUNE_OK)
        goto done;
    made->b0 = mask->b0 + (int32_t)r.batch0;
    made->h0 = mask->h0 + (int32_t)r.head0;
    made->q0 = mask->q0 + (int32_t)(r.q_block0 * mask->q_block);
    made->expr_heads = mask->expr_heads;
    made->expr_kv_heads = mask->expr_kv_heads;
    made->expr_q_len = mask->expr_q_len;
    made->expr_kv_len = mask->expr_kv_len;
    made->uses = mask->uses;
    status = attune__rects_init(&rects, &mask->allocator, made->stored_batch * made->stored_heads);
    if (status == ATTUNE_OK)
        status =
            slice_lists(mask, &r, made, &rects) ? attune__mask_store(made, &rects, NULL) : ATTUNE_OUT_OF_HOST_MEMORY;
done:
    attune__rects_finish(&rects);
    if (status != ATTUNE_OK) {
        attune__mask_free(made);
        made = NULL;
    }
    *slice = made;
    return status;
}

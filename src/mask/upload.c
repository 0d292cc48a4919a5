/* SPDX-License-Identifier: MIT */
#include "mask/upload.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/round.h"

/* Parts begin at multiples of it. */
#define ALIGNMENT 16

attune__upload_lists attune__upload_lists_make(uint64_t first, uint64_t rows, uint64_t columns, uint64_t entries)
{
    attune__upload_lists l = {.rows = attune__round_up64(first, ALIGNMENT)};
    l.entries = l.rows + rows * sizeof(attune__upload_row);
    l.columns = attune__round_up64(l.entries + entries * sizeof(uint32_t), ALIGNMENT);
    l.column_entries = l.columns + columns * sizeof(attune__upload_row);
    l.end = attune__round_up64(l.column_entries + entries * sizeof(uint32_t), ALIGNMENT);
    return l;
}

static bool is_capture(const attune_mask *mask, uint32_t symbol)
{
    return mask->expr->symbols[symbol].kind == ATTUNE_SYMBOL_CAPTURE;
}

attune_status attune__upload_make(const attune_allocator *allocator, const attune_mask *mask, const char *device,
                                  uint64_t table_size, attune__upload *upload)
{
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    const int64_t rows = planes * mask->q_blocks, columns = planes * mask->kv_blocks;
    if (rows > UINT32_MAX || columns > UINT32_MAX || mask->kv_blocks > INT32_MAX || mask->q_blocks > INT32_MAX)
        return attune__fail(ATTUNE_UNSUPPORTED, "the mask has %lld rows of blocks, %s takes at most 2^32",
                            (long long)rows, device);
    const uint64_t entries = (uint64_t)(mask->kv.offsets[rows] + mask->full_kv.offsets[rows]);
    *upload = (attune__upload){.lists = attune__upload_lists_make(0, (uint64_t)rows, (uint64_t)columns, entries)};
    upload->table = upload->lists.end;
    upload->size = attune__round_up64(upload->table + table_size, ALIGNMENT);
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++)
        if (is_capture(mask, i)) {
            upload->captures[i] = upload->size;
            upload->size = attune__round_up64(upload->size + attune__array_bytes(&mask->captures[i]), ALIGNMENT);
        }
    upload->memory = attune__alloc(allocator, (size_t)upload->size, 1);
    return upload->memory ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
}

/* Returns the most blocks of a row. */
static uint32_t write_lists(const attune__block_list *partials, const attune__block_list *fulls, int64_t rows,
                            uint64_t base, char *rows_out, uint32_t *entries)
{
    uint32_t *next = entries, longest = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *partial = partials->indices + partials->offsets[r];
        const int32_t *partial_end = partials->indices + partials->offsets[r + 1];
        const int32_t *full = fulls->indices + fulls->offsets[r];
        const int32_t *full_end = fulls->indices + fulls->offsets[r + 1];
        const attune__upload_row row = {
            .at = base + (uint64_t)(next - entries) * sizeof *entries,
            .count = (uint32_t)((partial_end - partial) + (full_end - full)),
        };
        memcpy(rows_out + (size_t)r * sizeof row, &row, sizeof row);
        while (partial != partial_end || full != full_end) {
            const bool take = full == full_end || (partial != partial_end && *partial < *full);
            *next++ = take ? (uint32_t)*partial++ << 1 | 1u : (uint32_t)*full++ << 1;
        }
        longest = row.count > longest ? row.count : longest;
    }
    return longest;
}

void attune__upload_write(const attune_mask *mask, uint64_t base, attune__upload *upload)
{
    const attune__upload_lists *l = &upload->lists;
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    char *const memory = upload->memory;
    /* NOLINTBEGIN(bugprone-casting-through-void): aligned to 64, and entries begin at a multiple of 16 */
    upload->longest = write_lists(&mask->kv, &mask->full_kv, planes * mask->q_blocks, base + l->entries,
                                  memory + l->rows, (uint32_t *)(void *)(memory + l->entries));
    upload->longest_column = write_lists(&mask->q, &mask->full_q, planes * mask->kv_blocks, base + l->column_entries,
                                         memory + l->columns, (uint32_t *)(void *)(memory + l->column_entries));
    /* NOLINTEND(bugprone-casting-through-void) */
    /* The captures are the mask's own copies, contiguous. */
    for (uint32_t i = 0; mask->expr && i < mask->expr->symbol_count; i++)
        if (is_capture(mask, i))
            memcpy(memory + upload->captures[i], mask->captures[i].data,
                   (size_t)attune__array_bytes(&mask->captures[i]));
}

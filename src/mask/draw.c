/* SPDX-License-Identifier: MIT */
/* Statistics of masks, and drawing as text and pixels. */
#include "mask/classify.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

/* ------------------------------------------------------------------------------------------------------ statistics */

static uint64_t list_bytes(const attune__block_list *list, int64_t rows)
{
    const uint64_t r = (uint64_t)rows;
    return (r + 1) * sizeof *list->offsets + r * sizeof *list->num_blocks +
           (uint64_t)list->offsets[rows] * sizeof *list->indices;
}

static uint64_t mask_bytes(const attune_mask *mask)
{
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    uint64_t bytes = sizeof *mask;
    bytes += list_bytes(&mask->kv, planes * mask->q_blocks) + list_bytes(&mask->full_kv, planes * mask->q_blocks);
    bytes += list_bytes(&mask->q, planes * mask->kv_blocks) + list_bytes(&mask->full_q, planes * mask->kv_blocks);
    if (mask->expr)
        for (uint32_t i = 0; i < mask->expr->symbol_count; i++) {
            bytes += sizeof *mask->captures + sizeof *mask->parameters;
            if (mask->captures[i].data)
                bytes += (uint64_t)attune__array_count(&mask->captures[i]) * attune_dtype_size(mask->captures[i].dtype);
        }
    return bytes;
}

/* Counts saturate: heads x lengths of 2^31 can exceed 64 bits. */
static int64_t plus(int64_t a, int64_t b)
{
    return attune__add(&a, b) ? a : INT64_MAX;
}

static int64_t times(int64_t a, int64_t b)
{
    return attune__multiply(&a, b) ? a : INT64_MAX;
}

/* The elements of a list's blocks, in one row of elements. Only the last block column may be narrower. */
static int64_t row_elements(const attune_mask *mask, const attune__block_list *list, int64_t row)
{
    const int64_t entries = list->num_blocks[row];
    int64_t elements = entries * mask->kv_block;
    if (entries && list->indices[list->offsets[row + 1] - 1] == mask->kv_blocks - 1)
        elements -= mask->kv_blocks * mask->kv_block - mask->kv_len;
    return elements;
}

static int64_t row_height(const attune_mask *mask, int64_t r)
{
    return attune__min64(mask->q_block, mask->q_len - r * mask->q_block);
}

/* Counts the allowed pairs in the partial blocks of block row r. `scratch` and `allowed` are for kv_block columns. -1:
 * stopped. */
static int64_t count_partial(const attune_mask *mask, int64_t b, int64_t h, int64_t r, void *scratch, uint8_t *allowed,
                             attune__work *work)
{
    const attune__bindings bindings = {mask->captures, mask->parameters};
    const int64_t row = attune__mask_at(mask, b, h).row0 + r;
    int64_t pairs = 0;
    for (int64_t q = r * mask->q_block; q < r * mask->q_block + row_height(mask, r); q++) {
        const attune__row at = attune__mask_row(mask, b, h, q);
        for (int64_t i = mask->kv.offsets[row]; i < mask->kv.offsets[row + 1]; i++) {
            const int64_t kv0 = mask->kv.indices[i] * (int64_t)mask->kv_block;
            const int64_t count = attune__min64(mask->kv_block, mask->kv_len - kv0);
            if (attune__work_add(work, (uint64_t)count * mask->expr->node_count) != ATTUNE_OK)
                return -1;
            attune__expr_mask_row(mask->expr, &bindings, &at, (int32_t)kv0, (size_t)count, scratch, allowed);
            for (int64_t j = 0; j < count; j++)
                pairs += allowed[j];
        }
    }
    return pairs;
}

attune_status attune__mask_stats(const attune_mask *mask, bool exact, attune__work *work, attune_mask_stats *stats)
{
    void *scratch = NULL;
    uint8_t *allowed = NULL;
    attune_status status = ATTUNE_OK;
    const int64_t planes = mask->stored_batch * mask->stored_heads, rows = planes * mask->q_blocks;
    attune_mask_stats found = {
        .struct_size = stats->struct_size,
        .pairs = -1,
        .full_blocks = mask->full_kv.offsets[rows],
        .partial_blocks = mask->kv.offsets[rows],
        .blocks = times(rows, mask->kv_blocks),
        .bytes = mask_bytes(mask),
    };
    found.block_density = (double)(found.full_blocks + found.partial_blocks) / (double)found.blocks;

    int64_t full = 0;
    double estimate = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t height = row_height(mask, row % mask->q_blocks);
        const int64_t all_full = height * row_elements(mask, &mask->full_kv, row);
        full = plus(full, all_full);
        estimate += (double)all_full + 0.5 * (double)height * (double)row_elements(mask, &mask->kv, row);
    }
    const int64_t copies = mask->batch / mask->stored_batch * (mask->heads / mask->stored_heads);
    const double all = (double)mask->batch * (double)mask->heads * (double)mask->q_len * (double)mask->kv_len;
    found.density = estimate * (double)copies / all;
    if (!exact)
        goto done;

    found.pairs = times(full, copies);
    if (found.partial_blocks) {
        /* The expression may use an index over which the lists broadcast (attune__mask_from_lists). */
        const bool uses_b = mask->expr->uses & 1u << ATTUNE__VAR_B;
        const bool uses_h = mask->expr->uses & (1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV);
        const int64_t batch = uses_b ? mask->batch : mask->stored_batch;
        const int64_t heads = uses_h ? mask->heads : mask->stored_heads;
        status = ATTUNE_OUT_OF_HOST_MEMORY;
        scratch = attune__alloc_raw(&mask->allocator, attune__expr_scratch_size(mask->expr, mask->kv_block), 1);
        allowed = attune__alloc_raw(&mask->allocator, mask->kv_block, 1);
        if (!scratch || !allowed)
            goto done;
        status = ATTUNE_OK;
        int64_t pairs = 0;
        const double all_rows = (double)batch * (double)heads * (double)mask->q_blocks;
        double passed = 0;
        for (int64_t b = 0; b < batch; b++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t r = 0; r < mask->q_blocks; r++) {
                    attune__work_share(work, passed++ / all_rows);
                    const int64_t row = count_partial(mask, b, h, r, scratch, allowed, work);
                    if (row < 0) {
                        status = work->status;
                        goto done;
                    }
                    pairs = plus(pairs, row);
                }
        found.pairs = plus(found.pairs, times(pairs, mask->batch / batch * (mask->heads / heads)));
    }
    found.density = (double)found.pairs / all;
done:
    attune__free(&mask->allocator, allowed);
    attune__free(&mask->allocator, scratch);
    if (status == ATTUNE_OK)
        *stats = found;
    return status;
}

/* -------------------------------------------------------------------------------------------------------- pictures */

/* A picture of at most width x height cells, each of `across` x `down` blocks. */
typedef struct grid {
    int64_t across, down, width, height;
} grid;

static grid grid_of(const attune_mask *mask, int64_t width, int64_t height)
{
    grid g = {.across = (mask->kv_blocks + width - 1) / width, .down = (mask->q_blocks + height - 1) / height};
    g.width = (mask->kv_blocks + g.across - 1) / g.across;
    g.height = (mask->q_blocks + g.down - 1) / g.down;
    return g;
}

static int64_t entries_below(const attune__block_list *list, int64_t row, int64_t c)
{
    int64_t low = list->offsets[row], high = list->offsets[row + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (list->indices[middle] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct cell {
    int64_t blocks, full, partial;
} cell;

static cell cell_at(const attune_mask *mask, int64_t row0, const grid *g, int64_t x, int64_t y)
{
    const int64_t c0 = x * g->across, c1 = attune__min64(c0 + g->across, mask->kv_blocks);
    const int64_t r0 = y * g->down, r1 = attune__min64(r0 + g->down, mask->q_blocks);
    cell found = {.blocks = (r1 - r0) * (c1 - c0)};
    for (int64_t r = row0 + r0; r < row0 + r1; r++) {
        found.full += entries_below(&mask->full_kv, r, c1) - entries_below(&mask->full_kv, r, c0);
        found.partial += entries_below(&mask->kv, r, c1) - entries_below(&mask->kv, r, c0);
    }
    return found;
}

void attune__mask_draw_text(const attune_mask *mask, int64_t b, int64_t h, uint32_t columns, uint32_t rows,
                            char *buffer, size_t size, size_t *needed)
{
    const grid g = grid_of(mask, columns, rows);
    const int64_t row0 = attune__mask_at(mask, b, h).row0;
    attune__text text = attune__text_begin(buffer, size);
    for (int64_t y = 0; y < g.height; y++) {
        if (y)
            attune__text_add(&text, "\n");
        for (int64_t x = 0; x < g.width; x++) {
            const cell c = cell_at(mask, row0, &g, x, y);
            attune__text_add(&text, "%s", c.full == c.blocks ? "\u2588" : c.full + c.partial ? "\u2592" : " ");
        }
    }
    attune__text_end(&text, needed);
}

void attune__mask_draw_pixels(const attune_mask *mask, int64_t b, int64_t h, uint8_t *pixels, uint32_t *width,
                              uint32_t *height)
{
    static const uint8_t dark[3] = {24, 48, 96}, middle[3] = {88, 128, 192}, light[3] = {200, 216, 240};
    const grid g = grid_of(mask, *width, *height);
    const int64_t row0 = attune__mask_at(mask, b, h).row0;
    *width = (uint32_t)g.width;
    *height = (uint32_t)g.height;
    if (!pixels)
        return;
    for (int64_t y = 0; y < g.height; y++)
        for (int64_t x = 0; x < g.width; x++) {
            const cell c = cell_at(mask, row0, &g, x, y);
            for (int i = 0; i < 3; i++) {
                int64_t level = 255;
                if (c.full == c.blocks)
                    level = dark[i];
                else if (c.full + c.partial)
                    level = light[i] - (light[i] - middle[i]) * c.full / c.blocks;
                *pixels++ = (uint8_t)level;
            }
        }
}

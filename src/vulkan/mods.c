/* SPDX-License-Identifier: MIT */
#include "vulkan/mods.h"

#include <string.h>

#define HEAD       2 /* groups of four words before the parameters */
#define DESCRIPTOR 4 /* of a capture */

static uint32_t parameter_groups(const attune_expr *expr)
{
    return (expr->symbol_count + 3) / 4;
}

uint32_t attune__mods_capture_at(const attune_expr *expr, uint32_t symbol)
{
    uint32_t at = HEAD + parameter_groups(expr);
    for (uint32_t i = 0; i < symbol; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            at += DESCRIPTOR;
    return at;
}

size_t attune__mods_table_size(const attune_expr *expr)
{
    return (size_t)16 * attune__mods_capture_at(expr, expr->symbol_count);
}

static void pack_capture(const attune__mods_capture *capture, uint32_t rank, uint32_t *words)
{
    const int64_t bytes = (int64_t)attune_dtype_size(capture->dtype);
    memcpy(words, &capture->address, sizeof capture->address);
    memcpy(words + 2, &capture->sums, sizeof capture->sums);
    for (uint32_t d = 0; d < rank; d++) {
        /* The stride of a dimension of one entry is not used, and may not fit in bytes. */
        const int64_t stride = capture->size[d] > 1 ? capture->stride[d] * bytes : 0;
        /* Indices are i32: elements past them are never read. */
        words[4 + d] = capture->size[d] > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)capture->size[d];
        memcpy(words + 8 + (size_t)2 * d, &stride, sizeof stride);
    }
}

attune__mods_capture attune__mods_capture_of(attune_dtype dtype, uint32_t rank, const int64_t *size,
                                             const int64_t *stride, uint64_t address)
{
    attune__mods_capture capture = {.address = address, .dtype = dtype};
    for (uint32_t d = 0; d < rank; d++) {
        capture.size[d] = size[d];
        capture.stride[d] = stride[d];
    }
    return capture;
}

void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out)
{
    const int32_t head[] = {values->q_len, values->kv_len, values->group, values->b0, values->h0, values->q0};
    uint32_t *words = out;
    memset(out, 0, attune__mods_table_size(expr));
    memcpy(words, head, sizeof head);
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            pack_capture(&values->captures[i], expr->symbols[i].rank,
                         words + (size_t)4 * attune__mods_capture_at(expr, i));
        else
            memcpy(words + 4 * HEAD + i, &values->parameters[i], sizeof values->parameters[i]);
}

/* SPDX-License-Identifier: MIT */
/* Tables of expressions: sizes, places, packing. */
#include <string.h>

#include "vulkan/mods.h"
#include "vulkan/splice.h"

#define PARAMETERS    32 /* bytes before the parameters */
#define CAPTURE_BYTES 64

size_t attune__mods_places(const attune_expr *expr, uint32_t *place)
{
    uint32_t parameters = 0;
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind != ATTUNE_SYMBOL_CAPTURE)
            place[i] = PARAMETERS + 4 * parameters++;
    uint32_t end = (PARAMETERS + 4 * parameters + 15) & ~15u;
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE) {
            place[i] = end;
            end += CAPTURE_BYTES;
        }
    return end;
}

size_t attune__mods_table_size(const attune_expr *expr)
{
    uint32_t place[ATTUNE_EXPR_MAX_SYMBOLS];
    return expr ? attune__mods_places(expr, place) : 0;
}

static void pack_capture(const attune__symbol *symbol, const attune__mods_capture *capture, unsigned char *out)
{
    int64_t element = (int64_t)attune_dtype_size(symbol->dtype);
    int32_t size[ATTUNE_MAX_RANK] = {0};
    int64_t stride[ATTUNE_MAX_RANK] = {0};
    for (uint32_t d = 0; d < symbol->rank; d++) {
        size[d] = capture->size[d] > INT32_MAX ? INT32_MAX : (int32_t)capture->size[d];
        /* of one entry, a stride is never stepped: whatever it says must not overflow */
        stride[d] = capture->size[d] > 1 ? capture->stride[d] * element : 0;
    }
    memcpy(out, &capture->address, sizeof capture->address);
    memcpy(out + 16, size, sizeof size);
    memcpy(out + 32, stride, sizeof stride);
}

void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out)
{
    uint32_t place[ATTUNE_EXPR_MAX_SYMBOLS];
    unsigned char *bytes = out;
    if (!expr)
        return;
    memset(out, 0, attune__mods_places(expr, place));
    const int32_t head[] = {values->q_len, values->kv_len, values->group < 1 ? 1 : values->group, 0,
                            values->b0,    values->h0,     values->q0};
    memcpy(out, head, sizeof head);
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            pack_capture(&expr->symbols[i], &values->captures[i], bytes + place[i]);
        else
            memcpy(bytes + place[i], &values->parameters[i], 4);
    }
}

/* SPDX-License-Identifier: MIT */
/* Masks computed from a tensor on a device: created once for the longest lengths, then filled for each tensor. */
#include "mask/rects.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

uint32_t attune__mask_forbidden(attune_dtype dtype)
{
    switch (dtype) {
    case ATTUNE_F32:
        return 0xff800000u;
    case ATTUNE_F16:
        return 0xfc00u;
    case ATTUNE_BF16:
        return 0xff80u;
    default:
        return 0;
    }
}

/* The expression of partial blocks. Only negative infinity is below the lowest finite float; NaN is not, so that a bias
 * of NaN makes its row NaN. */
static attune_status parse(const attune_allocator *allocator, attune_dtype dtype, int64_t batch, int64_t heads,
                           attune_expr **expr)
{
    const attune_symbol symbol = {"tensor", ATTUNE_SYMBOL_CAPTURE, dtype, 4};
    const char *form = dtype == ATTUNE_BOOL ? "tensor[%s, %s, q, kv]"
                       : dtype == ATTUNE_U8 ? "tensor[%s, %s, q, kv] != 0"
                                            : "!(tensor[%s, %s, q, kv] < -3.4028234663852886e38)";
    char text[80];
    snprintf(text, sizeof text, form, batch == 1 ? "0" : "b", heads == 1 ? "0" : "h");
    return attune__expr_parse(allocator, ATTUNE_EXPR_MASK, text, &symbol, 1, expr);
}

/* Allocates for every block. */
static bool list_reserve(const attune_allocator *allocator, attune__block_list *list, int64_t rows, int64_t columns)
{
    list->offsets = attune__alloc(allocator, (size_t)rows + 1, sizeof *list->offsets);
    list->num_blocks = attune__alloc(allocator, (size_t)rows, sizeof *list->num_blocks);
    list->indices = attune__alloc(allocator, (size_t)(rows * columns), sizeof *list->indices);
    return list->offsets && list->num_blocks && list->indices;
}

static bool reserve(attune_mask *mask)
{
    const attune_allocator *allocator = &mask->allocator;
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    const int64_t rows = planes * mask->q_blocks, columns = planes * mask->kv_blocks;
    int64_t blocks = rows;
    if (!attune__multiply(&blocks, mask->kv_blocks)) {
        attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "lists of %lld x %lld x %lld blocks exceed the address space",
                     (long long)planes, (long long)mask->q_blocks, (long long)mask->kv_blocks);
        return false;
    }
    mask->classes = attune__alloc(allocator, (size_t)blocks, sizeof *mask->classes);
    return mask->classes && list_reserve(allocator, &mask->kv, rows, mask->kv_blocks) &&
           list_reserve(allocator, &mask->full_kv, rows, mask->kv_blocks) &&
           list_reserve(allocator, &mask->q, columns, mask->q_blocks) &&
           list_reserve(allocator, &mask->full_q, columns, mask->q_blocks);
}

attune_status attune__mask_new_tensor(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      attune_dtype dtype, int64_t tensor_batch, int64_t tensor_heads, bool host_lists,
                                      attune_mask **mask)
{
    attune_expr *expr;
    *mask = NULL;
    ATTUNE__TRY(parse(allocator, dtype, tensor_batch, tensor_heads, &expr));
    const attune_array none = {.dtype = dtype, .rank = 4};
    const attune__value unused = {0};
    attune_status status =
        attune__mask_new(allocator, desc, tensor_batch, tensor_heads, expr, &(attune__bindings){&none, &unused}, mask);
    attune__expr_release(expr);
    if (status != ATTUNE_OK)
        return status;
    attune_mask *made = *mask;
    attune__free(allocator, (void *)(uintptr_t)made->captures[0].data);
    made->captures[0].data = NULL;
    made->from_tensor = true;
    made->most_q_len = desc->q_len;
    made->most_kv_len = desc->kv_len;
    if (host_lists && !reserve(made)) {
        attune__mask_free(made);
        *mask = NULL;
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    return ATTUNE_OK;
}

void attune__mask_resize(attune_mask *mask, const int64_t size[ATTUNE_MAX_RANK], const int64_t stride[ATTUNE_MAX_RANK])
{
    attune_array *capture = &mask->captures[0];
    for (uint32_t i = 0; i < ATTUNE_MAX_RANK; i++) {
        capture->size[i] = size[i];
        capture->stride[i] = stride[i];
    }
    mask->q_len = size[2];
    mask->kv_len = size[3];
    mask->q_blocks = (mask->q_len + mask->q_block - 1) / mask->q_block;
    mask->kv_blocks = (mask->kv_len + mask->kv_block - 1) / mask->kv_block;
    mask->expr_q_len = (int32_t)mask->q_len;
    mask->expr_kv_len = (int32_t)mask->kv_len;
}

/*
 * Counts the elements whose bits are `forbidden`. Contiguous ones are a loop of their own, which compilers vectorise.
 */
#define COUNT_FORBIDDEN(type)                                                                                          \
    static int64_t count_forbidden_##type(const char *data, int64_t stride, int64_t count, uint32_t forbidden)         \
    {                                                                                                                  \
        const type *elements = (const type *)(const void *)data, wanted = (type)forbidden;                             \
        int64_t found = 0;                                                                                             \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < count; i++)                                                                        \
                found += elements[i] == wanted;                                                                        \
        else                                                                                                           \
            for (int64_t i = 0; i < count; i++)                                                                        \
                found += elements[i * stride] == wanted;                                                               \
        return found;                                                                                                  \
    }
COUNT_FORBIDDEN(uint8_t)
COUNT_FORBIDDEN(uint16_t)
COUNT_FORBIDDEN(uint32_t)

static int64_t count_forbidden(attune_dtype dtype, const char *data, int64_t stride, int64_t count)
{
    const uint32_t forbidden = attune__mask_forbidden(dtype);
    switch (attune_dtype_size(dtype)) {
    case 1:
        return count_forbidden_uint8_t(data, stride, count, forbidden);
    case 2:
        return count_forbidden_uint16_t(data, stride, count, forbidden);
    default:
        return count_forbidden_uint32_t(data, stride, count, forbidden);
    }
}

static attune__class class_of_block(const attune_array *tensor, const char *first, int64_t rows, int64_t columns)
{
    const int64_t element = (int64_t)attune_dtype_size(tensor->dtype);
    int64_t forbidden = 0;
    for (int64_t r = 0; r < rows; r++) {
        forbidden +=
            count_forbidden(tensor->dtype, first + r * tensor->stride[2] * element, tensor->stride[3], columns);
        if (forbidden > 0 && forbidden < (r + 1) * columns)
            return ATTUNE__PARTIAL;
    }
    return forbidden ? ATTUNE__EMPTY : ATTUNE__FULL;
}

void attune__mask_classify(attune_mask *mask, int64_t row, const char *data)
{
    const attune_array *tensor = &mask->captures[0];
    const int64_t element = (int64_t)attune_dtype_size(tensor->dtype);
    const int64_t plane = row / mask->q_blocks, q = row % mask->q_blocks * (int64_t)mask->q_block;
    const int64_t b = plane / mask->stored_heads, h = plane % mask->stored_heads;
    const char *line = data + (b * tensor->stride[0] + h * tensor->stride[1] + q * tensor->stride[2]) * element;
    for (int64_t c = 0; c < mask->kv_blocks; c++) {
        const int64_t kv = c * mask->kv_block;
        mask->classes[row * mask->kv_blocks + c] = (uint8_t)class_of_block(
            tensor, line + kv * tensor->stride[3] * element, attune__min64(mask->q_block, mask->q_len - q),
            attune__min64(mask->kv_block, mask->kv_len - kv));
    }
}

/* Fills a list with the blocks of one class: `rows` rows in each plane, of `count` classes at distance `step`; rows are
 * at distance `row_step`. */
static void fill_list(const attune_mask *mask, attune__block_list *list, attune__class class, int64_t rows,
                      int64_t row_step, int64_t count, int64_t step)
{
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    int64_t end = 0;
    for (int64_t r = 0; r < planes * rows; r++) {
        const uint8_t *classes = mask->classes + r / rows * mask->q_blocks * mask->kv_blocks + r % rows * row_step;
        list->offsets[r] = end;
        for (int64_t c = 0; c < count; c++)
            if (classes[c * step] == class)
                list->indices[end++] = (int32_t)c;
        list->num_blocks[r] = (int32_t)(end - list->offsets[r]);
    }
    list->offsets[planes * rows] = end;
}

void attune__mask_fill(attune_mask *mask)
{
    fill_list(mask, &mask->kv, ATTUNE__PARTIAL, mask->q_blocks, mask->kv_blocks, mask->kv_blocks, 1);
    fill_list(mask, &mask->full_kv, ATTUNE__FULL, mask->q_blocks, mask->kv_blocks, mask->kv_blocks, 1);
    fill_list(mask, &mask->q, ATTUNE__PARTIAL, mask->kv_blocks, 1, mask->q_blocks, mask->kv_blocks);
    fill_list(mask, &mask->full_q, ATTUNE__FULL, mask->kv_blocks, 1, mask->q_blocks, mask->kv_blocks);
}

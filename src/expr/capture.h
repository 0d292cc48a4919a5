/* SPDX-License-Identifier: MIT */
/* Reading one element of a capture. */
#ifndef ATTUNE_EXPR_CAPTURE_H
#define ATTUNE_EXPR_CAPTURE_H

#include "base/half.h"
#include "expr/expr.h"

static inline int32_t attune__clamp_i64(int64_t value)
{
    return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

/* Loads the element at `offset`, in elements; .i for int and bool, .f for float. */
static inline attune__value attune__capture_load(const attune_array *array, int64_t offset)
{
    switch (array->dtype) {
    case ATTUNE_I32:
        return (attune__value){.i = ((const int32_t *)array->data)[offset]};
    case ATTUNE_I64:
        return (attune__value){.i = attune__clamp_i64(((const int64_t *)array->data)[offset])};
    case ATTUNE_U8:
        return (attune__value){.i = ((const uint8_t *)array->data)[offset]};
    case ATTUNE_BOOL:
        return (attune__value){.i = ((const uint8_t *)array->data)[offset] != 0};
    case ATTUNE_F32:
        return (attune__value){.f = ((const float *)array->data)[offset]};
    case ATTUNE_F16:
        return (attune__value){.f = attune__f32_from_f16(((const uint16_t *)array->data)[offset])};
    case ATTUNE_BF16:
        return (attune__value){.f = attune__f32_from_bf16(((const uint16_t *)array->data)[offset])};
    default:
        break;
    }
    return (attune__value){0};
}

/* Bounds-checked: 0, 0.0 or false out of range. */
static inline attune__value attune__capture_read(const attune_array *array, uint32_t rank, const int32_t *index)
{
    int64_t offset = 0;
    for (uint32_t d = 0; d < rank; d++) {
        if (index[d] < 0 || index[d] >= array->size[d])
            return (attune__value){0};
        offset += index[d] * array->stride[d];
    }
    return attune__capture_load(array, offset);
}

#endif

/* SPDX-License-Identifier: MIT */
#include "support/arena.h"

#include <criterion/criterion.h>
#include <string.h>

#include "support/random_expr.h"

void arena_reset(arena *a, uint64_t address, uint64_t seed)
{
    a->used = 0;
    a->address = address;
    memset(a->bytes, (int)(seed % 254 + 1), sizeof a->bytes);
}

size_t arena_take(arena *a, size_t size, size_t alignment)
{
    const size_t at = (a->used + alignment - 1) / alignment * alignment;
    cr_assert(at + size <= ARENA_SIZE);
    a->used = at + size;
    return at;
}

uint64_t arena_place(arena *a, const attune_array *array, uint64_t *state)
{
    const size_t element = attune_dtype_size(array->dtype);
    int64_t lo = 0, hi = 0;
    for (uint32_t d = 0; d < array->rank; d++) {
        if (!array->size[d])
            return 0;
        const int64_t reach = (array->size[d] - 1) * array->stride[d];
        lo += reach < 0 ? reach : 0;
        hi += reach > 0 ? reach : 0;
    }
    const size_t size = (size_t)(hi - lo + 1) * element;
    a->used += (size_t)random_expr_between(state, 0, 16);
    const size_t at = arena_take(a, size, element);
    memcpy(a->bytes + at, (const char *)array->data + lo * (int64_t)element, size);
    return a->address + at - (uint64_t)(lo * (int64_t)element);
}

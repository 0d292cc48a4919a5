/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/api.h"

#include <string.h>

void api_expect(bool condition)
{
    if (!condition)
        abort();
}

uint32_t api_take(api_tape *t)
{
    return t->at < t->end ? *t->at++ : 0;
}

uint32_t api_below(api_tape *t, uint32_t count)
{
    return api_take(t) % count;
}

int64_t api_length(api_tape *t)
{
    static const int64_t odd[] = {0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 31, INT64_C(1) << 62, -128, UINT32_MAX};
    const uint32_t byte = api_take(t);
    return byte < 232 ? 1 + byte % 40 : byte < 248 ? 1 + (byte - 232) * 16 : odd[byte - 248];
}

void api_failed_well(attune_status status, const void *handle)
{
    api_expect(status != ATTUNE_INTERNAL);
    api_expect(status == ATTUNE_OK ? handle != NULL : handle == NULL && attune_last_error()[0] != '\0');
}

void api_launched(attune_status status, attune_completion done)
{
    api_expect(status != ATTUNE_INTERNAL && (status == ATTUNE_OK || attune_last_error()[0]));
    if (status == ATTUNE_OK)
        api_expect(attune_completion_wait(done, UINT64_MAX) != ATTUNE_INTERNAL);
}

static attune_tensor bent(attune_buffer *buffer, api_tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype)
{
    attune_tensor x = {.buffer = buffer, .dtype = dtype, .rank = rank};
    memcpy(x.size, size, rank * sizeof *size);
    switch (api_below(t, 24)) {
    case 0:
        x.offset = (uint64_t)api_length(t);
        break;
    case 1:
        x.size[api_below(t, 4)] = api_length(t);
        break;
    case 2:
        x.rank = api_take(t);
        break;
    case 3:
        x.dtype = (attune_dtype)api_take(t);
        break;
    case 4:
        for (int i = 0; i < 4; i++)
            x.stride[i] = api_length(t);
        break;
    case 5:
        x.stride[api_below(t, 4)] = api_length(t);
        break;
    default:
        break;
    }
    return x;
}

attune_tensor api_tensor(api_world *w, api_tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype)
{
    return bent(w->buffers[api_below(t, API_SLOTS)], t, rank, size, dtype);
}

attune_tensor api_integers(api_world *w, api_tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype)
{
    return bent(w->integers, t, rank, size, dtype);
}

/* SPDX-License-Identifier: MIT */
/* Tensors in buffers, in any layout that the header allows. */
#include "random/place.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CANARY 0xa5

void say(const runner *r, const char *format, ...)
{
    if (!r->code)
        return;
    va_list list;
    va_start(list, format);
    (void)vfprintf(r->code, format, list);
    va_end(list);
}

bool fail(finding *f, const char *kind, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(f->what, sizeof f->what, format, list);
    va_end(list);
    (void)snprintf(f->kind, sizeof f->kind, "%s", kind);
    return false;
}

int64_t element_place(const attune_tensor *t, int64_t flat)
{
    int64_t at = 0;
    for (uint32_t i = t->rank; i-- > 0; flat /= t->size[i])
        at += flat % t->size[i] * t->stride[i];
    return at;
}

/* Strides, and the elements from the first to the last; *first is that of index 0. */
static int64_t lay(int rank, const int64_t *size, const layout *l, bool contiguous_last, int64_t *stride,
                   int64_t *first)
{
    static const uint8_t orders[6][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};
    int64_t run = 1;
    int order[ATTUNE_MAX_RANK], count = 0;
    /* The last dimension is innermost, but for captures and rows whose order is drawn. */
    if (rank == 4) {
        order[count++] = 3;
        for (int i = 0; i < 3; i++)
            order[count++] = orders[l->order][i];
    } else if (rank == 3) {
        for (int i = 0; i < 3; i++)
            order[count++] = orders[l->order][i];
    } else {
        for (int i = rank; i-- > 0;)
            order[count++] = i;
    }
    *first = 0;
    for (int i = 0; i < rank; i++) {
        const int dimension = order[i];
        const bool plain = contiguous_last && dimension == rank - 1;
        if (!plain && l->broadcast >> dimension & 1) {
            stride[dimension] = 0;
            continue;
        }
        if (i == 0 && !contiguous_last)
            run += l->pad[3] % 3;
        stride[dimension] = run;
        run = run * size[dimension] + l->pad[dimension];
        if (!plain && l->negative >> dimension & 1) {
            *first += (size[dimension] - 1) * stride[dimension];
            stride[dimension] = -stride[dimension];
        }
    }
    int64_t last = *first + 1;
    for (int i = 0; i < rank; i++)
        last += stride[i] > 0 ? (size[i] - 1) * stride[i] : 0;
    return last;
}

static void say_bytes(const runner *r, const char *name, const unsigned char *bytes, size_t count)
{
    say(r, "    static uint64_t %s_data[] = {", name);
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i < 8 ? count - i : 8);
        say(r, "%s0x%llxu,", i % 48 ? " " : "\n        ", (unsigned long long)word);
    }
    say(r, "};\n");
}

attune_status place(runner *r, const char *name, attune_dtype dtype, int rank, const int64_t *size, const layout *l,
                    const double *initial, bool wrap, placed *p)
{
    *p = (placed){.tensor = {.dtype = dtype, .rank = (uint32_t)rank}};
    (void)snprintf(p->name, sizeof p->name, "%s", name);
    const size_t element = attune_dtype_size(dtype);
    attune_tensor *t = &p->tensor;
    int64_t count = 1, first;
    for (int i = 0; i < rank; i++)
        count *= t->size[i] = size[i];
    const bool matrix = rank == 4 && strncmp(name, "cap", 3) != 0 && strncmp(name, "d_cap", 5) != 0;
    const int64_t span = lay(rank, size, l, matrix, t->stride, &first);
    p->bytes = (size_t)(l->offset + span + l->pad[0]) * element;
    t->offset = (uint64_t)(l->offset + first) * element;
    p->image = malloc(p->bytes);
    if (!p->image)
        abort();
    memset(p->image, CANARY, p->bytes);
    for (int64_t i = 0; initial && i < count; i++)
        element_set(dtype, p->image, (int64_t)(t->offset / element) + element_place(t, i), initial[i]);
    if (r->code) {
        say_bytes(r, name, p->image, p->bytes);
        say(r, "    attune_tensor %s = {.offset = %llu, .dtype = %d, .rank = %d, .size = {", name,
            (unsigned long long)t->offset, (int)dtype, rank);
        for (int i = 0; i < rank; i++)
            say(r, "%lld%s", (long long)t->size[i], i + 1 < rank ? ", " : "}, .stride = {");
        for (int i = 0; i < rank; i++)
            say(r, "%lld%s", (long long)t->stride[i], i + 1 < rank ? ", " : "}};\n");
        say(r, "    TRY(attune_buffer_create(device, %zu, &%s.buffer));\n", p->bytes, name);
        say(r, "    TRY(attune_buffer_write(%s.buffer, 0, %s_data, %zu));\n", name, name, p->bytes);
    }
    if (wrap) {
        p->memory = malloc(p->bytes);
        if (!p->memory)
            abort();
        memcpy(p->memory, p->image, p->bytes);
        return attune_buffer_wrap(r->device, p->memory, p->bytes, &t->buffer);
    }
    const attune_status status = attune_buffer_create(r->device, p->bytes, &t->buffer);
    return status == ATTUNE_OK ? attune_buffer_write(t->buffer, 0, p->image, p->bytes) : status;
}

void displace(placed *p)
{
    attune_buffer_destroy(p->tensor.buffer);
    free(p->image);
    free(p->memory);
    *p = (placed){.bytes = 0};
}

attune_status collect(const placed *p, double *elements, bool *untouched)
{
    const attune_tensor *t = &p->tensor;
    const size_t element = attune_dtype_size(t->dtype);
    unsigned char *after = malloc(p->bytes);
    if (!after)
        abort();
    const attune_status status = attune_buffer_read(t->buffer, 0, after, p->bytes);
    int64_t count = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        count *= t->size[i];
    /* The elements become part of the image; nothing else may differ. */
    for (int64_t i = 0; status == ATTUNE_OK && i < count; i++) {
        const int64_t at = (int64_t)(t->offset / element) + element_place(t, i);
        elements[i] = element_get(t->dtype, after, at);
        memcpy(p->image + (size_t)at * element, after + (size_t)at * element, element);
    }
    *untouched = !memcmp(p->image, after, p->bytes);
    free(after);
    return status;
}

attune_status unchanged(const placed *p, bool *same)
{
    unsigned char *after = malloc(p->bytes);
    if (!after)
        abort();
    const attune_status status = attune_buffer_read(p->tensor.buffer, 0, after, p->bytes);
    *same = status == ATTUNE_OK && !memcmp(p->image, after, p->bytes);
    free(after);
    return status;
}

void host_array(runner *r, const char *name, attune_dtype dtype, int rank, const int64_t *size, const layout *l,
                const double *values, void **memory, attune_array *array)
{
    *array = (attune_array){.dtype = dtype, .rank = (uint32_t)rank};
    const size_t element = attune_dtype_size(dtype);
    int64_t first, count = 1;
    for (int i = 0; i < rank; i++)
        count *= array->size[i] = size[i];
    const int64_t span = lay(rank, size, l, false, array->stride, &first);
    const attune_tensor t = {.rank = (uint32_t)rank,
                             .size = {array->size[0], array->size[1], array->size[2], array->size[3]},
                             .stride = {array->stride[0], array->stride[1], array->stride[2], array->stride[3]}};
    unsigned char *bytes = malloc((size_t)span * element);
    if (!bytes)
        abort();
    memset(bytes, CANARY, (size_t)span * element);
    for (int64_t i = 0; i < count; i++)
        element_set(dtype, bytes, first + element_place(&t, i), values[i]);
    array->data = bytes + (size_t)first * element;
    *memory = bytes;
    if (!r->code)
        return;
    say_bytes(r, name, bytes, (size_t)span * element);
    say(r,
        "    attune_host_capture %s = {\"%s\", {.data = (unsigned char *)%s_data + %zu, .dtype = %d, .rank = %d, .size "
        "= {",
        name, name, name, (size_t)first * element, (int)dtype, rank);
    for (int i = 0; i < rank; i++)
        say(r, "%lld%s", (long long)array->size[i], i + 1 < rank ? ", " : "}, .stride = {");
    for (int i = 0; i < rank; i++)
        say(r, "%lld%s", (long long)array->stride[i], i + 1 < rank ? ", " : "}}};\n");
}

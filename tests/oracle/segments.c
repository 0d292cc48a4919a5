/* SPDX-License-Identifier: MIT */
#include "tests/oracle/segments.h"

#include <math.h>

void segments_cut(segments *s, const int64_t *lengths, uint32_t count)
{
    s->count = count;
    s->start[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        s->start[i + 1] = s->start[i] + lengths[i];
}

attune_status segments_build(attune_instance *instance, attune_device *device, const attention *a,
                             const attune_mask_desc *whole, segments *s, attune_problem *problem)
{
    attune_status status = ATTUNE_OK;
    if (problem) {
        problem->kv_len = 1;
        problem->segments = s->count;
    }
    for (uint32_t i = 0; i < s->count && status == ATTUNE_OK; i++) {
        attune_mask_desc desc = *whole;
        desc.kv_start = s->start[i];
        desc.kv_total = whole->kv_len;
        desc.kv_len = s->start[i + 1] - s->start[i];
        if (problem && desc.kv_len > problem->kv_len)
            problem->kv_len = desc.kv_len;
        if (a->mask)
            status = attention_mask(instance, device, a, &desc, problem, &s->masks[i]);
    }
    return status;
}

static attune_tensor view(const attune_tensor *whole, int64_t start, int64_t end)
{
    attune_tensor part = *whole;
    const int64_t *size = whole->size;
    if (!part.stride[3]) {
        part.stride[3] = 1;
        part.stride[2] = size[3];
        part.stride[1] = size[2] * size[3];
        part.stride[0] = size[1] * size[2] * size[3];
    }
    part.size[2] = end - start;
    part.offset = (uint64_t)((int64_t)part.offset + start * part.stride[2] * (int64_t)attune_dtype_size(part.dtype));
    return part;
}

void segments_views(const segments *s, const attune_tensor *k, const attune_tensor *v, const attune_tensor *d_k,
                    const attune_tensor *d_v, attune_segment *views)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const int64_t start = s->start[i], end = s->start[i + 1];
        views[i] = (attune_segment){.k = view(k, start, end), .v = view(v, start, end), .mask = s->masks[i]};
        if (!d_k)
            continue;
        views[i].d_k = view(d_k, start, end);
        views[i].d_v = view(d_v, start, end);
    }
}

/* But on the CPU, each is rounded to the dtype of o before they merge. It is at most the largest v. */
double segments_rounding(attune_device *device, const attention *a)
{
    attune_device_info info = {.struct_size = sizeof info};
    double largest = 0;
    if (attune_device_info_get(device, &info) != ATTUNE_OK || info.backend == ATTUNE_BACKEND_CPU ||
        attention_o_dtype(a) == ATTUNE_F32)
        return 0;
    for (int64_t i = 0; i < array_count(&a->v); i++) {
        const double value = fabs(array_get(&a->v, i));
        largest = isfinite(value) && value > largest ? value : largest;
    }
    return largest * reference_epsilon(attention_o_dtype(a));
}

void segments_finish(segments *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        attune_mask_destroy(s->masks[i]);
    s->count = 0;
}

/* SPDX-License-Identifier: MIT */
/* One thing of a call made wrong. */
#include "random/place.h"

#include <math.h>
#include <stddef.h>

typedef struct target {
    attune_tensor *tensor;
    const char *name;
    bool output, matrix;
} target;

static int targets_of(const problem *p, const call *c, arguments *a, target *t)
{
    int n = 0;
    const bool keys = !p->segments;
    if (!a->back) {
        attune_forward_args *f = &a->forward;
        t[n++] = (target){&f->q, "q", false, true};
        t[n++] = (target){&f->o, "o", true, true};
        if (keys) {
            t[n++] = (target){&f->k, "k", false, true};
            t[n++] = (target){&f->v, "v", false, true};
        }
        if (c->want_lse)
            t[n++] = (target){&f->lse, "lse", true, false};
        if (c->want_row_max)
            t[n++] = (target){&f->row_max, "row_max", true, false};
        if (p->sinks)
            t[n++] = (target){&f->sinks, "sinks", false, false};
    } else {
        attune_backward_args *b = &a->backward;
        t[n++] = (target){&b->q, "q", false, true};
        t[n++] = (target){&b->o, "o", false, true};
        t[n++] = (target){&b->d_o, "d_o", false, true};
        t[n++] = (target){&b->lse, "lse", false, false};
        t[n++] = (target){&b->d_q, "d_q", true, true};
        if (c->want_d_lse)
            t[n++] = (target){&b->d_lse, "d_lse", false, false};
        if (p->sinks)
            t[n++] = (target){&b->sinks, "sinks", false, false};
        if (p->sinks && c->want_d_sinks)
            t[n++] = (target){&b->d_sinks, "d_sinks", true, false};
        if (keys) {
            t[n++] = (target){&b->k, "k", false, true};
            t[n++] = (target){&b->v, "v", false, true};
            t[n++] = (target){&b->d_k, "d_k", true, true};
            t[n++] = (target){&b->d_v, "d_v", true, true};
        }
    }
    for (int s = 0; !keys && s < c->segment_count; s++) {
        t[n++] = (target){&a->segments[s].k, "segment's k", false, true};
        t[n++] = (target){&a->segments[s].v, "segment's v", false, true};
        if (a->back) {
            t[n++] = (target){&a->segments[s].d_k, "segment's d_k", true, true};
            t[n++] = (target){&a->segments[s].d_v, "segment's d_v", true, true};
        }
    }
    return n;
}

static bool mutate_tensor(const target *t, rng *r, const char **what)
{
    static const int64_t sizes[] = {0, -1, INT64_MAX, INT64_MIN, INT32_MAX};
    static const int64_t strides[] = {INT64_MAX, INT64_MIN, INT64_MAX / 4, -(INT64_MAX / 2), INT32_MAX};
    static const uint64_t offsets[] = {UINT64_MAX, UINT64_MAX - 7, INT64_MAX, UINT64_C(1) << 40};
    static const attune_dtype dtypes[] = {ATTUNE_I32, ATTUNE_U8, (attune_dtype)0, (attune_dtype)99, ATTUNE_I64};
    attune_tensor *x = t->tensor;
    const int dimension = (int)rng_range(r, 0, x->rank - 1);
    switch (rng_range(r, 0, 8)) {
    case 0:
        *what = "a tensor's buffer is NULL";
        /* Rows that are not wanted. */
        if (!t->matrix)
            return false;
        x->buffer = NULL;
        return true;
    case 1:
        *what = "a tensor's dtype";
        x->dtype = dtypes[rng_range(r, 0, 4)];
        return true;
    case 2:
        *what = "a tensor's rank";
        x->rank = rng_chance(r, 50) ? x->rank - 1 : rng_chance(r, 50) ? 0 : rng_chance(r, 50) ? 5 : UINT32_MAX;
        return true;
    case 3:
        *what = "a tensor's size";
        x->size[dimension] = sizes[rng_range(r, 0, 4)];
        return true;
    case 4:
        *what = "a tensor's size, by one";
        x->size[dimension] += rng_chance(r, 50) ? 1 : -1;
        return true;
    case 5:
        *what = "a tensor's stride";
        if (x->size[dimension] < 2)
            return false;
        x->stride[dimension] = strides[rng_range(r, 0, 4)];
        return true;
    case 6:
        *what = "a tensor's offset";
        x->offset = rng_chance(r, 50) && attune_dtype_size(x->dtype) > 1 ? x->offset + 1 : offsets[rng_range(r, 0, 3)];
        return true;
    case 7:
        *what = "the last dimension's stride";
        if (!t->matrix)
            return false;
        x->stride[3] = rng_chance(r, 50) ? 2 : -1;
        return true;
    default:
        *what = "an output overlaps itself";
        if (!t->output || x->size[dimension] < 2 || dimension == 3)
            return false;
        x->stride[dimension] = 0;
        for (uint32_t i = 0; i < x->rank; i++)
            if (x->stride[i] != 0)
                return true;
        return false; /* all 0: contiguous */
    }
}

#define COMMON(a, field) ((a)->back ? (void *)&(a)->backward.field : (void *)&(a)->forward.field)

static bool mutate_rest(const problem *p, rng *r, arguments *a, const char **what)
{
    attune_tensor *sinks = COMMON(a, sinks);
    switch (rng_range(r, 0, 13)) {
    case 0:
        *what = "struct_size is 0";
        *(uint32_t *)COMMON(a, struct_size) = 0;
        return true;
    case 1:
        *what = "the mask is missing";
        if (!p->mask || p->segments)
            return false;
        *(const attune_mask **)COMMON(a, mask) = NULL;
        return true;
    case 2:
        *what = "the workspace is missing";
        if (!a->workspace)
            return false;
        *(attune_buffer **)COMMON(a, workspace) = NULL;
        return true;
    case 3:
        *what = "the workspace's offset is no multiple of 256";
        if (!a->workspace)
            return false;
        *(uint64_t *)COMMON(a, workspace_offset) += (uint64_t)rng_range(r, 1, 255);
        return true;
    case 4:
        *what = "the workspace is too short";
        if (!a->workspace)
            return false;
        *(uint64_t *)COMMON(a, workspace_offset) += rng_chance(r, 50) ? 256 : UINT64_MAX / 512 * 256;
        return true;
    case 5:
        *what = "the count of segments";
        if (p->segments && rng_chance(r, 50))
            *(uint32_t *)COMMON(a, segment_count) = 0;
        else
            *(uint32_t *)COMMON(a, segment_count) = p->segments + 1;
        return true;
    case 6:
        *what = "the array of segments is NULL";
        if (!p->segments)
            return false;
        *(const attune_segment **)COMMON(a, segments) = NULL;
        return true;
    case 7:
        *what = "a capture has another name";
        if (a->capture < 0)
            return false;
        a->captures[a->capture].name = "other";
        return true;
    case 8: {
        *what = "a capture's tensor";
        if (a->capture < 0)
            return false;
        const target t = {&a->captures[a->capture].tensor, "capture", false, false};
        t.tensor->dtype = (attune_dtype)0;
        return true;
    }
    case 9:
    case 10:
    case 11:
        *what = "a parameter of the mask's has another value";
        if (a->mask_parameter < 0)
            return false;
        a->parameters[a->mask_parameter].value += rng_chance(r, 50) ? 1 : -7;
        return true;
    case 12:
        *what = p->sinks ? "the sinks are missing" : "sinks of a plan that adds none";
        *sinks = (attune_tensor){.dtype = ATTUNE_F32, .rank = 1, .size = {p->heads}};
        sinks->buffer = p->sinks ? NULL : *(attune_buffer **)COMMON(a, q.buffer);
        return true;
    default:
        *what = "the array of captures is NULL";
        if (a->capture < 0)
            return false;
        *(const attune_capture **)COMMON(a, captures) = NULL;
        return true;
    }
}

bool mutate(const problem *p, const call *c, uint64_t seed, arguments *a, const char **what)
{
    rng r = {seed};
    target targets[TENSORS];
    const int count = targets_of(p, c, a, targets);
    if (rng_chance(&r, 75)) {
        static char text[96];
        const target *t = &targets[rng_range(&r, 0, count - 1)];
        const char *how = "";
        const bool refused = mutate_tensor(t, &r, &how);
        (void)snprintf(text, sizeof text, "%s: %s", t->name, how);
        *what = text;
        return refused;
    }
    return mutate_rest(p, &r, a, what);
}

/* SPDX-License-Identifier: MIT */
/* The family of few rows: shaders/opencl/decode.cl, for dense keys and for caches. */
#include "opencl/family.h"

#include "base/error.h"
#include "plan/family_opencl.h"
#include "plan/layout.h"

#define CONSTANT(id, type, name, value) attune__opencl_add_define(text, #name, layout->name);
#define SHARED(type, name, count)

static void add_constants(const attune__few_rows_layout *layout, attune__opencl_text *text)
{
#include "shaders/layout_few_rows.h"
}

#undef CONSTANT
#undef SHARED

static attune_status define(const attune__opencl_device *device, const attune__program_desc *desc,
                            const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text)
{
    (void)device;
    (void)aligned;
    const attune__shape *s = desc->shape;
    attune__few_rows_layout layout;
    ATTUNE__TRY(attune__opencl_layout_check(desc, tile,
                                            attune__few_rows_layout_make(tile->block_m, tile->block_n, tile->threads,
                                                                         attune__opencl_few_rows_shape(s), &layout)));
    text->bounds = true;
    add_constants(&layout, text);
    /* A sequence has the same bits alone and among others if it is summed in the same parts. */
    if (s->tokens)
        attune__opencl_add_define(text, "FOLDS", s->kv_len > s->split_keys ? s->split_keys : 0);
    return ATTUNE_OK;
}

const attune__opencl_family attune__opencl_family_decode = {
    .plan = &attune__opencl_few_rows,
    .forward = {"decode.cl", "attune_decode"},
    .serving = "decode_serving.cl",
    .combine = "attune_serving_combine",
    .combine_items = 8,
    .has_aligned = true,
    .define = define,
};

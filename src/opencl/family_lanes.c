/* SPDX-License-Identifier: MIT */
/* The families whose lanes have whole rows: shaders/opencl/lanes.cl, lanes_backward.cl and serving.cl. They are of one
 * alignment, since vectors are loaded at that of their elements. */
#include "opencl/family.h"

#include "base/error.h"
#include "plan/layout.h"

#define CONSTANT(id, type, name, value) attune__opencl_add_define(text, #name, layout->name);
#define SHARED(type, name, count)

static void add_constants(const attune__lanes_layout *layout, attune__opencl_text *text)
{
#include "shaders/layout_lanes.h"
}

#undef CONSTANT
#undef SHARED

/* Of either direction. */
static attune_status add_lanes(const attune__opencl_device *device, const attune__program_desc *desc,
                               const attune__opencl_tile *tile, attune__opencl_text *text)
{
    const attune_limits *limits = &device->base.info.limits;
    attune__lanes_layout layout;
    ATTUNE__TRY(attune__opencl_layout_check(
        desc, tile,
        attune__lanes_layout_make(tile->block_m, tile->block_n, limits->subgroup_size, limits->subgroup_operations,
                                  desc->shape->head_dim, desc->shape->head_dim_v,
                                  (uint32_t)attune_dtype_size(desc->shape->k_dtype), &layout)));
    add_constants(&layout, text);
    return ATTUNE_OK;
}

static attune_status define_lanes(const attune__opencl_device *device, const attune__program_desc *desc,
                                  const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text)
{
    (void)aligned;
    text->bounds = true;
    return add_lanes(device, desc, tile, text);
}

static attune_status define_backward(const attune__opencl_device *device, const attune__program_desc *desc,
                                     const attune__opencl_tile *tile, bool keys, attune__opencl_text *text)
{
    (void)keys;
    return add_lanes(device, desc, tile, text);
}

static attune_status define_serving(const attune__opencl_device *device, const attune__program_desc *desc,
                                    const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text)
{
    (void)aligned;
    const attune__shape *s = desc->shape;
    attune__lanes_layout layout;
    ATTUNE__TRY(attune__opencl_layout_check(
        desc, tile,
        attune__lanes_serving_layout_make(tile->block_m, tile->block_n,
                                          attune__opencl_serving_width(&device->base.info.limits), tile->threads,
                                          s->head_dim, s->head_dim_v, s->shared_sequences > 1, &layout)));
    add_constants(&layout, text);
    /* A sequence has the same bits alone and among others if it is summed in the same parts. */
    attune__opencl_add_define(text, "FOLDS", s->kv_len > s->split_keys ? s->split_keys : 0);
    attune__opencl_add_define(text, "SHARES", s->shared_sequences > 1);
    attune__opencl_add_define(text, "MEMBERS", s->shared_sequences > 1 ? tile->block_m : 1);
    return ATTUNE_OK;
}

const attune__opencl_family attune__opencl_family_lanes = {
    .plan = &attune__opencl_lanes,
    .forward = {"lanes.cl", "attune_lanes"},
    .backward = {"lanes_backward.cl", "attune_lanes_backward"},
    .define = define_lanes,
    .define_backward = define_backward,
};

const attune__opencl_family attune__opencl_family_serving = {
    .plan = &attune__opencl_serving,
    .forward = {"serving.cl", "attune_serving"},
    .combine = "attune_serving_combine",
    .define = define_serving,
};

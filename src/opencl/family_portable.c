/* SPDX-License-Identifier: MIT */
/* The families with a tile in shared memory: shaders/opencl/forward.cl and backward.cl. */
#include "opencl/family.h"

#include "base/error.h"
#include "plan/family_shaders.h"
#include "plan/layout.h"

#define CONSTANT(id, type, name, value) attune__opencl_add_define(text, #name, layout->name);
#define SHARED(type, name, count)

static void add_forward(const attune__forward_layout *layout, attune__opencl_text *text)
{
#include "shaders/layout_forward.h"
}

static void add_backward(const attune__backward_layout *layout, attune__opencl_text *text)
{
#include "shaders/layout_backward.h"
}

#undef CONSTANT
#undef SHARED

static attune_status define_forward(const attune__opencl_device *device, const attune__program_desc *desc,
                                    const attune__opencl_tile *tile, uint32_t form, bool aligned,
                                    attune__opencl_text *text)
{
    attune__forward_layout layout;
    /* The path for any alignment is rarely taken: a GPU's driver should not spend as long on it as on the other. */
    if (!aligned && !device->base.info.limits.host)
        form |= ATTUNE__FORWARD_FLAT;
    ATTUNE__TRY(attune__opencl_layout_check(desc, tile,
                                            attune__forward_layout_make(tile->block_m, tile->block_n, tile->threads,
                                                                        desc->shape->head_dim, desc->shape->head_dim_v,
                                                                        form, &layout)));
    text->bounds = true;
    add_forward(&layout, text);
    return ATTUNE_OK;
}

static attune_status define_portable(const attune__opencl_device *device, const attune__program_desc *desc,
                                     const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text)
{
    return define_forward(device, desc, tile, attune__shaders_form(&device->base.info.limits, desc->shape), aligned,
                          text);
}

static attune_status define_subgroup(const attune__opencl_device *device, const attune__program_desc *desc,
                                     const attune__opencl_tile *tile, bool aligned, attune__opencl_text *text)
{
    attune__opencl_add_define(text, "SUBGROUPS", 1);
    return define_forward(device, desc, tile, ATTUNE__FORWARD_SUBGROUPS, aligned, text);
}

static attune_status define_backward(const attune__opencl_device *device, const attune__program_desc *desc,
                                     const attune__opencl_tile *tile, bool keys, attune__opencl_text *text)
{
    attune__backward_layout layout;
    ATTUNE__TRY(attune__opencl_layout_check(desc, tile,
                                            attune__backward_layout_make(tile->block_m, tile->block_n, tile->threads,
                                                                         desc->shape->head_dim, desc->shape->head_dim_v,
                                                                         keys, &layout)));
    /* A CPU's driver takes three times as long to optimise it, longer than most calls. */
    text->literal = device->base.info.limits.host;
    add_backward(&layout, text);
    return ATTUNE_OK;
}

const attune__opencl_family attune__opencl_family_subgroup = {
    .plan = &attune__opencl_subgroup,
    .forward = {"forward.cl", "attune_forward"},
    .has_aligned = true,
    .define = define_subgroup,
};

const attune__opencl_family attune__opencl_family_portable = {
    .plan = &attune__opencl_portable,
    .forward = {"forward.cl", "attune_forward"},
    .backward = {"backward.cl", "attune_backward"},
    .has_aligned = true,
    .define = define_portable,
    .define_backward = define_backward,
};

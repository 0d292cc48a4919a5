/* SPDX-License-Identifier: MIT */
/* Shared by OpenCL's families and the backend. */
#ifndef ATTUNE_PLAN_FAMILY_OPENCL_H
#define ATTUNE_PLAN_FAMILY_OPENCL_H

#include "plan/family_shaders.h"
#include "plan/layout.h"

/* opencl_serving: the rows in a vector of each work-item; 1 where a workgroup has several items. */
uint32_t attune__opencl_serving_width(const attune_limits *limits);

/* opencl_decode: what its layout depends on. */
attune__few_rows_shape attune__opencl_few_rows_shape(const attune__shape *shape);

#endif

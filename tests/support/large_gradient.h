/* SPDX-License-Identifier: MIT */
/* The gradient of a capture of 2^32 elements, which the kernels of Vulkan and OpenCL do not count. */
#ifndef TESTS_SUPPORT_LARGE_GRADIENT_H
#define TESTS_SUPPORT_LARGE_GRADIENT_H

#include <attune/attune.h>

void large_gradient_plan(attune_instance *instance, attune_device *device, attune_expr **score, attune_plan **plan);
/* The call must be refused before it uses its buffers: `some` has 64 KiB, `huge` has 2 TiB or is said to. */
void large_gradient_refused(attune_device *device, const attune_plan *plan, attune_buffer *some, attune_buffer *huge);

#endif

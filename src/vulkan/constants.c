/* SPDX-License-Identifier: MIT */
/* Structs of specialisation constants, as the array that a pipeline is made with. */
#include "vulkan/launch.h"

#define CONSTANT(id, type, name, value)                                                                                \
    _Static_assert((id) < ATTUNE__VULKAN_CONSTANTS, #name);                                                            \
    constants[id] = from->name;
#define SHARED(type, name, count)

void attune__vulkan_set_common(const attune__vulkan_common *from, uint32_t *constants)
{
#include "shaders/constants.h"
}

void attune__vulkan_set_forward(const attune__forward_layout *from, uint32_t *constants)
{
#include "shaders/layout_forward.h"
}

void attune__vulkan_set_decode(const attune__decode_layout *from, uint32_t *constants)
{
#include "shaders/layout_decode.h"
}

void attune__vulkan_set_backward(const attune__backward_layout *from, uint32_t *constants)
{
#include "shaders/layout_backward.h"
}

void attune__vulkan_set_matrix(const attune__matrix_layout *from, uint32_t *constants)
{
#include "shaders/layout_matrix.h"
}

void attune__vulkan_set_registers(const attune__registers_layout *from, uint32_t *constants)
{
#include "shaders/layout_registers.h"
}

void attune__vulkan_set_backward_matrix(const attune__backward_matrix_layout *from, uint32_t *constants)
{
#include "shaders/layout_backward_matrix.h"
}

void attune__vulkan_set_measure(const attune__vulkan_measure_constants *from, uint32_t *constants)
{
#include "shaders/constants_measure.h"
}

void attune__vulkan_set_fragment_layout(const attune__vulkan_fragment_constants *from, uint32_t *constants)
{
#include "shaders/constants_fragment_layout.h"
}

/* SPDX-License-Identifier: MIT */
/* Declares local memory from a list of shaders/layout_*.h, whose constants the program has. Included by kernels, at the
 * beginning of their bodies, before the list. */
#ifndef ATTUNE_LAYOUT_H
#define ATTUNE_LAYOUT_H

#define vec4                            float4
#define uvec2                           uint2
#define uvec4                           uint4
#define CONSTANT(id, type, name, value) /* the families of src/opencl define it */
#define SHARED(type, name, count)       __local type name[count];
#define OF(name)                        name

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The types of the structs that host and kernels share. glslang and the C compiler both read these headers, so that a
 * member is written once. In GLSL 64-bit numbers are uvec2 (low, high word): some devices have no 64-bit integers.
 * Members are ordered so that C and std430 agree: arrays only of what is as large as its alignment, or a multiple.
 */
#ifndef ATTUNE_VULKAN_TYPES_H
#define ATTUNE_VULKAN_TYPES_H

#ifdef VULKAN /* glslang defines it */
#define ATTUNE_ADDRESS uvec2
#define ATTUNE_STRIDE  uvec2
#define ATTUNE_UINT    uint
/* BLOCK: what a kernel reads by its address. */
#define ATTUNE_STRUCT(name) struct name
#define ATTUNE_BLOCK(name)  layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer name
#else
#include <stdint.h>
#define ATTUNE_ADDRESS uint64_t
#define ATTUNE_STRIDE  int64_t
#define ATTUNE_UINT    uint32_t
#define ATTUNE_STRUCT(name)                                                                                            \
    typedef struct name name;                                                                                          \
    struct name
#define ATTUNE_BLOCK(name) ATTUNE_STRUCT(name)
#endif

/* The constant whose value is a workgroup's size, in constants.h. */
#define ATTUNE_VULKAN_THREADS_ID 0

/* Members of the push constants of every kernel that has a block of arguments: its address, and the number of the first
 * workgroup of a dispatch. */
#define ATTUNE_PUSH_LAUNCH                                                                                             \
    ATTUNE_ADDRESS arguments;                                                                                          \
    ATTUNE_UINT first;

/* Of measure.comp, copy.comp and fragment_layout.comp. */
#define ATTUNE_PUSH_MEASURE                                                                                            \
    ATTUNE_ADDRESS result;                                                                                             \
    ATTUNE_UINT rounds;                                                                                                \
    float factor, term;
#define ATTUNE_PUSH_COPY            ATTUNE_ADDRESS from, to;
#define ATTUNE_PUSH_FRAGMENT_LAYOUT ATTUNE_ADDRESS result;

/* The work of measure.comp, measure_matrix.comp and copy.comp, which src/vulkan/measure.c counts. Of a thread:
 * elements, and steps of a round. Of a subgroup: matrices A and B, each pair of which is multiplied, and steps of a
 * round. Of a workgroup: threads, and 16 bytes that each copies. */
#define ATTUNE_MEASURE_ELEMENTS     16u
#define ATTUNE_MEASURE_STEPS        8u
#define ATTUNE_MEASURE_MATRICES_A   2u
#define ATTUNE_MEASURE_MATRICES_B   4u
#define ATTUNE_MEASURE_MATRIX_STEPS 4u
#define ATTUNE_COPY_THREADS         128u
#define ATTUNE_COPY_STEPS           8u

#endif

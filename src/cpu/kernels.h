/* SPDX-License-Identifier: MIT */
/*
 * The inner kernels of the CPU backend as tables of functions. The portable C of kernel_generic_*.c fills every entry;
 * what the processor has besides overrides entries when the device is opened, so that a test can hold each against the
 * portable one.
 */
#ifndef ATTUNE_CPU_KERNELS_H
#define ATTUNE_CPU_KERNELS_H

#include <attune/attune.h>

/* Columns of a packed panel: a cache line of float. */
#define ATTUNE__PANEL ((size_t)16)

#define REAL    float
#define NAME(x) attune__##x##_f32
#include "cpu/kernels_tmpl.h"
#undef REAL
#undef NAME

#define REAL    double
#define NAME(x) attune__##x##_f64
#include "cpu/kernels_tmpl.h"
#undef REAL
#undef NAME

/* Each overrides what it has and returns true if this processor runs it; otherwise it leaves the table alone. */
bool attune__cpu_kernels_avx2(attune__cpu_kernels_f32 *kernels);
bool attune__cpu_kernels_avx512(attune__cpu_kernels_f32 *kernels); /* on top of AVX2 */

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The inner kernels of the CPU backend as tables of functions. The portable C of kernel_generic_*.c fills every entry;
 * opening the device overrides entries by those of the processor's instruction sets. Tests compare each with the
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

/* Overrides the entries that it implements and returns true if the processor has the instructions; otherwise the table
 * is unchanged. */
bool attune__cpu_kernels_avx2(attune__cpu_kernels_f32 *kernels);
bool attune__cpu_kernels_avx512(attune__cpu_kernels_f32 *kernels); /* on top of AVX2 */

#endif

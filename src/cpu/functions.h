/* SPDX-License-Identifier: MIT */
/*
 * The functions of score expressions over arrays of f32, in place of libm's: functions_tmpl.h, compiled once for each
 * instruction set. Each is within 2 ulp over all of f32 for every instruction set, and the value of an element does not
 * depend on its neighbours.
 */
#ifndef ATTUNE_CPU_FUNCTIONS_H
#define ATTUNE_CPU_FUNCTIONS_H

#include "expr/expr.h"

/* NULL if the processor does not have the instructions. */
const attune__functions *attune__cpu_functions_generic(void); /* never NULL */
const attune__functions *attune__cpu_functions_avx2(void);
const attune__functions *attune__cpu_functions_avx512(void);
const attune__functions *attune__cpu_functions_neon(void);

#endif

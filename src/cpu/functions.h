/* SPDX-License-Identifier: MIT */
/*
 * The functions of score expressions on columns of f32, in place of libm's: functions_tmpl.h, compiled once for each
 * instruction set. Every one is within 2 ulp over all of f32, whatever the set, and a column's value does
 * not depend on the columns beside it.
 */
#ifndef ATTUNE_CPU_FUNCTIONS_H
#define ATTUNE_CPU_FUNCTIONS_H

#include "expr/expr.h"

/* NULL if this processor does not run them. */
const attune__functions *attune__cpu_functions_generic(void); /* never NULL */
const attune__functions *attune__cpu_functions_avx2(void);
const attune__functions *attune__cpu_functions_avx512(void);

#endif

/* SPDX-License-Identifier: MIT */
/* The portable kernels in double: the arithmetic of the oracle, with the C library's exp. */
#include "cpu/kernels.h"

#include <math.h>

#define REAL       double
#define NAME(x)    attune__##x##_f64
#define REAL_DTYPE ATTUNE_F64
#define REAL_EXP   exp
#include "cpu/kernel_generic_tmpl.h"

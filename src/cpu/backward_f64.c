/* SPDX-License-Identifier: MIT */
/* Backward in double: the oracle. */
#include "cpu/backward.h"

#include <math.h>

#define REAL         double
#define NAME(x)      attune__##x##_f64
#define KERNELS      f64
#define REAL_EXP     exp
#define SCORE_ROW    attune__expr_score_row_f64
#define GRADIENT_ROW attune__gradient_row_f64
#include "cpu/backward_tmpl.h"

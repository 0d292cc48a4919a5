/* SPDX-License-Identifier: MIT */
/* Backward in float. */
#include "cpu/backward.h"

#include <math.h>

#define REAL         float
#define NAME(x)      attune__##x##_f32
#define KERNELS      f32
#define REAL_EXP     expf
#define SCORE_ROW    attune__expr_score_row_f32
#define GRADIENT_ROW attune__gradient_row_f32
#include "cpu/backward_tmpl.h"

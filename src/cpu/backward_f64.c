/* SPDX-License-Identifier: MIT */
/* Backward in double. */
#include "cpu/backward.h"

#include <math.h>

#define REAL                      double
#define NAME(x)                   attune__##x##_f64
#define REAL_DTYPE                ATTUNE_F64
#define KERNELS                   f64
#define SCORE_ROW(device, ...)    attune__expr_score_row_f64(__VA_ARGS__)
#define GRADIENT_ROW(device, ...) attune__gradient_row_f64(__VA_ARGS__)
#include "cpu/backward_tmpl.h"

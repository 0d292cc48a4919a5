/* SPDX-License-Identifier: MIT */
/* Forward in double. */
#include "cpu/cpu.h"

#include <math.h>

#define REAL                   double
#define NAME(x)                attune__##x##_f64
#define KERNELS                f64
#define REAL_DTYPE             ATTUNE_F64
#define REAL_EXP               exp
#define SCORE_ROW(device, ...) attune__expr_score_row_f64(__VA_ARGS__)
#include "cpu/forward_tmpl.h"

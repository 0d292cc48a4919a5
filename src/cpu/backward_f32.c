/* SPDX-License-Identifier: MIT */
/* Backward in float. */
#include "cpu/backward.h"

#include <math.h>

#define REAL                      float
#define NAME(x)                   attune__##x##_f32
#define REAL_DTYPE                ATTUNE_F32
#define KERNELS                   f32
#define SCORE_ROW(device, ...)    attune__expr_score_row_f32((device)->functions, __VA_ARGS__)
#define GRADIENT_ROW(device, ...) attune__gradient_row_f32((device)->functions, __VA_ARGS__)
#include "cpu/backward_tmpl.h"

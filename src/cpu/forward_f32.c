/* SPDX-License-Identifier: MIT */
/* Forward in float: f32, f16 and bf16 tensors. */
#include "cpu/cpu.h"

#include <math.h>

#define REAL       float
#define NAME(x)    attune__##x##_f32
#define KERNELS    f32
#define REAL_DTYPE ATTUNE_F32
#define REAL_EXP   expf
#define MATRIX
#define SCORE_ROW(device, ...) attune__expr_score_row_f32((device)->functions, __VA_ARGS__)
#include "cpu/forward_tmpl.h"

/* SPDX-License-Identifier: MIT */
/* The kernels for 16-bit matrices in plain C, with a model of the tile instructions under the product of AMX. */
#ifndef TESTS_CPU_MATRIX_MODEL_H
#define TESTS_CPU_MATRIX_MODEL_H

#include "cpu/kernels.h"

attune__cpu_matrix matrix_model(void);
/* Gives the CPU device these in place of AMX. */
void matrix_model_install(attune_device *device);

#endif

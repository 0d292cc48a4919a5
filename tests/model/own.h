/* SPDX-License-Identifier: MIT */
/* Kernels of tests/model itself, which the model compiles and runs as on a device of sm_100. */
#ifndef TESTS_MODEL_OWN_H
#define TESTS_MODEL_OWN_H

#include <stddef.h>

void own_open(void);
/* The kernel of that name in tests/model/`file`, compiled with cuda/ and these options more. */
void *own_load(const char *file, const char *name, const char *const *options, int option_count);
/* Global memory. */
void *own_memory(size_t size);
/* CTAs of 128 threads. What is said of a launch that fails, or NULL. */
const char *own_launch(void *kernel, unsigned ctas, void **parameters);

#endif

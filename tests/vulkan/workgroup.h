/* SPDX-License-Identifier: MIT */
/* The shared memory of a module, as its SPIR-V has it. */
#ifndef TESTS_VULKAN_WORKGROUP_H
#define TESTS_VULKAN_WORKGROUP_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of all variables of storage class Workgroup with these values of the specialization constants 0, 1, ...; or 0,
 * with what the reader does not know. */
uint64_t workgroup_bytes(const uint32_t *words, size_t count, const uint32_t *constants, uint32_t constant_count,
                         const char **why);

#endif

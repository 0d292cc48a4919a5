/* SPDX-License-Identifier: MIT */
/* The specialisation constants of measure.comp, which has the first alone, and of measure_matrix.comp; as constants.h.
 */
CONSTANT(ATTUNE_VULKAN_THREADS_ID, uint, THREADS, 256)
CONSTANT(1, uint, MATRIX_M, 16)
CONSTANT(2, uint, MATRIX_N, 16)
CONSTANT(3, uint, MATRIX_K, 16)

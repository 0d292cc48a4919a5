/* SPDX-License-Identifier: MIT */
/* The specialisation constants of fragment_layout.comp; as constants.h. */
CONSTANT(ATTUNE_VULKAN_THREADS_ID, uint, LANES, 32)
CONSTANT(1, uint, MATRIX_M, 16)
CONSTANT(2, uint, MATRIX_N, 16)
CONSTANT(3, uint, LENGTH, 8) /* elements that a lane has of a matrix */

/* SPDX-License-Identifier: MIT */
/* Kernels of a cubin, read without NVIDIA's tools: its ELF sections, and the instructions by their opcode (the
 * low 12 bits of each 16 bytes, from sm_70 on). */
#ifndef TESTS_SUPPORT_CUBIN_H
#define TESTS_SUPPORT_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cubin_figures {
    uint32_t kernels;   /* entry points */
    uint32_t registers; /* of a thread: the most of any kernel; the next ones likewise */
    uint32_t stack;     /* bytes of its frame */
    uint32_t shared;    /* static bytes, what the driver reserves included */
    uint32_t spills;    /* instructions that load or store local memory */
    uint32_t wgmma;     /* HGMMA instructions */
    uint32_t tcgen05;   /* UTCHMMA instructions */
    uint32_t mma;       /* HMMA instructions */
    uint32_t compares;  /* FSETP instructions */
} cubin_figures;

/* NULL, or what is wrong with the file. */
const char *cubin_read(const void *bytes, size_t size, cubin_figures *figures);

#endif

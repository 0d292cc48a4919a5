/* SPDX-License-Identifier: MIT */
/*
 * The inner kernels of the CPU backend as tables of functions. The portable C of kernel_generic_*.c fills every entry;
 * opening the device overrides entries by those of the processor's instruction sets. Tests compare each with the
 * portable one.
 */
#ifndef ATTUNE_CPU_KERNELS_H
#define ATTUNE_CPU_KERNELS_H

#include "plan/layout_cpu.h"

#define REAL    float
#define NAME(x) attune__##x##_f32
#include "cpu/kernels_tmpl.h"
#undef REAL
#undef NAME

#define REAL    double
#define NAME(x) attune__##x##_f64
#include "cpu/kernels_tmpl.h"
#undef REAL
#undef NAME

/* Overrides the entries that it implements and returns true if the processor has the instructions; otherwise the table
 * is unchanged. */
bool attune__cpu_kernels_avx2(attune__cpu_kernels_f32 *kernels);
bool attune__cpu_kernels_avx512(attune__cpu_kernels_f32 *kernels); /* on top of AVX2 */
bool attune__cpu_kernels_neon(attune__cpu_kernels_f32 *kernels);

/*
 * Products of 16-bit matrices with sums in float, by instructions that multiply pairs of bf16. An element is one bf16,
 * or for f16 the sum of two: the nearest, and the rest, which is exact. `summands` is 1 or 2.
 *
 * Rows, of q and of p, are blocks of ATTUNE__BLOCK_K columns: those of each summand in turn, with zeros after the last
 * column. Leading dimensions (ld) are in bf16.
 *
 * A packed matrix is a sequence of panels of ATTUNE__PANEL columns. A panel is a sequence of blocks of ATTUNE__BLOCK_K
 * rows, with zeros after the last row: those of each summand in turn, where elements (2 i, c) and (2 i + 1, c) are at
 * 32 i + 2 c and 32 i + 2 c + 1. panel_stride is in bf16.
 *
 * dtype is ATTUNE_F16 or ATTUNE_BF16. Packing returns false if an element is infinite or NaN: the sum of two bf16 is
 * then another number.
 */
#define ATTUNE__BLOCK_K ((size_t)32)

typedef struct attune__cpu_matrix {
    const char *name; /* of its kernel; NULL = the processor has no such instructions */

    /* columns is a multiple of 8. */
    bool (*pack_q)(uint16_t *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns);
    /* Packs the transpose: rows of `from` become columns of the packed matrix, zeros up to a whole panel. */
    bool (*pack_k)(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns);
    bool (*pack_v)(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns);

    /* c = a b, or with `add` c += a b, for a of m rows and packed b of `blocks` blocks and 16 * panels columns. c and a
     * may be used up to a multiple of 16 rows. With two summands, `exact` adds the products of both rests, which are
     * 2^-18 of the element's. */
    void (*multiply)(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t blocks, const uint16_t *b,
                     size_t panel_stride, size_t panels, size_t summands, bool add, bool exact);

    /* Rows of n scores, times scale: n is a multiple of ATTUNE__BLOCK_K. What a row has does not depend on others. */
    void (*rows_max)(const float *s, size_t lds, size_t rows, size_t n, float scale,
                     float *max); /* -inf if all are NaN */
    /* p = exp(s * scale - m), which must be <= 0 or NaN, as rows of n columns; p may begin at s, with rows as far
     * apart. Gives the sums before rounding. */
    void (*rows_exp)(uint16_t *p, size_t ldp, const float *s, size_t lds, size_t rows, size_t n, float scale,
                     const float *m, float *sum, size_t summands);

    /* Before the first product of a call by a thread, and after its last. */
    void (*begin)(void);
    void (*end)(void);
} attune__cpu_matrix;

/* Return true and fill the table if the processor has the instructions. */
bool attune__cpu_matrix_bf16(attune__cpu_matrix *matrix); /* AVX512-BF16: one summand only */
bool attune__cpu_matrix_neon(attune__cpu_matrix *matrix); /* Arm's BFDOT: likewise, and packing too */
bool attune__cpu_matrix_amx(attune__cpu_matrix *matrix);  /* AMX-BF16, which this process may use */

#endif

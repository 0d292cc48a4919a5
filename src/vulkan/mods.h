/* SPDX-License-Identifier: MIT */
/*
 * The caller's expressions in prebuilt modules. A kernel's SPIR-V has two stub functions (shaders/mods.glsl); splicing
 * puts functions emitted from the IR in their place, so that no shader compiler is needed at run time.
 *
 *     emit.c     IR -> the body of a function     splice.c   a module with other bodies     mods.c   tables
 *
 * A function reads the arguments of a launch from the expression's table in device memory, in 32-bit words:
 *
 *     0 q_len   1 kv_len   2 group (heads for each key head)   3, 4, 5 offsets of b, h and q   6, 7 zero
 *     8 + i     symbol i, if it is a parameter; rounded up to four words
 *     then for each capture, in the order of symbols: address[2] sums[2], size[4], stride[4][2] in bytes
 */
#ifndef ATTUNE_VULKAN_MODS_H
#define ATTUNE_VULKAN_MODS_H

#include "expr/gradient.h"

typedef struct attune__mods_capture {
    uint64_t address; /* of the first element, on the device */
    uint64_t sums;    /* of its gradient (shaders/gradient.glsl), contiguous in its shape; 0 = not requested */
    attune_dtype dtype;
    int64_t size[ATTUNE_MAX_RANK], stride[ATTUNE_MAX_RANK]; /* elements */
} attune__mods_capture;

typedef struct attune__mods_table {
    int32_t q_len, kv_len, group, b0, h0, q0;
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS]; /* both by symbol */
    attune__mods_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__mods_table;

/* Its gradient is not requested. */
attune__mods_capture attune__mods_capture_of(attune_dtype dtype, uint32_t rank, const int64_t *size,
                                             const int64_t *stride, uint64_t address);
/* Bytes, a multiple of 16. */
size_t attune__mods_table_size(const attune_expr *expr);
void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out);
/* Where the descriptor of a capture begins, in groups of four words. */
uint32_t attune__mods_capture_at(const attune_expr *expr, uint32_t symbol);

/* The expressions to splice in; NULL = the stub's default: true, the score itself, a derivative of 1. */
typedef struct attune__mods {
    const attune_expr *mask, *score;
    const attune__gradient *gradient;    /* of score; its nodes read the score's table */
    attune__uniform_reads uniform_reads; /* those that attune_d_uniform computes; attune_d_add has the others */
} attune__mods;

/*
 * A copy of the module with attune_mask and attune_score, and the stubs of shaders/gradient.glsl where it has them,
 * computing the expressions. Names and functions that are not called are left out. INTERNAL if the words are no module
 * with the stubs and the helpers of shaders/mods.glsl. Free *spliced with attune__free.
 */
attune_status attune__mods_splice(const attune_allocator *allocator, const uint32_t *words, size_t count,
                                  const attune__mods *mods, uint32_t **spliced, size_t *spliced_count);

#endif

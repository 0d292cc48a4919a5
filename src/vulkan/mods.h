/* SPDX-License-Identifier: MIT */
/*
 * The caller's expressions in Vulkan kernels. A kernel's module comes compiled with two stubs from shaders/mods.glsl,
 * attune_score and attune_mask; splicing gives a copy of the module in which they are functions made from the IR. No
 * shader compiler takes part. docs/vulkan.md says why, and lists the rules that the result keeps.
 *
 *     emit.c     IR -> the body of one function       splice.c   a module with the new bodies
 *     table.c    the values that the bodies read
 *
 * Thread-safety: any thread; nothing is shared.
 */
#ifndef ATTUNE_VULKAN_MODS_H
#define ATTUNE_VULKAN_MODS_H

#include "expr/expr.h"

/*
 * The module with the bodies of `mask` and `score`, NULL for "all allowed" and "the score as it is". Names and other
 * debug instructions are gone from it, and so are the helpers that the bodies do not call. Freed with attune__free.
 * INTERNAL if the module is damaged or lacks the stub of an expression that is not NULL; OUT_OF_HOST_MEMORY.
 */
attune_status attune__mods_splice(const attune_allocator *allocator, const uint32_t *words, size_t count,
                                  const attune_expr *mask, const attune_expr *score, uint32_t **spliced,
                                  size_t *spliced_count);

/*
 * The table of an expression, in device memory, aligned to 16, little-endian:
 *
 *     0   i32 q_len, kv_len, heads per kv head, 0
 *     16  i32 b0, h0, q0, 0                                  what b, h and q count from
 *     32  32 bits for each parameter, i32 or f32, in order of the symbols; filled up to a multiple of 16
 *     ..  64 bytes for each capture, in order of the symbols:
 *         0   u64 address, of the first element; 8 bytes 0
 *         16  i32 size[4], capped at 2^31 - 1 (no index is larger); 0 past the rank
 *         32  i64 stride[4] in bytes, 0 past the rank
 *
 * An address is aligned to the element. What lies in the 4 aligned bytes around an element is read with it.
 */
typedef struct attune__mods_capture {
    uint64_t address; /* of element 0; may be 0 if a size is 0 */
    int64_t size[ATTUNE_MAX_RANK];
    int64_t stride[ATTUNE_MAX_RANK]; /* elements; may be negative */
} attune__mods_capture;

typedef struct attune__mods_table {
    int32_t q_len, kv_len; /* of the whole, which q_len and kv_len stand for in the expression */
    int32_t group;         /* h_kv = (h + h0) / group; at least 1 */
    int32_t b0, h0, q0;
    const attune__mods_capture *captures; /* entry i serves symbols[i], as in attune__bindings */
    const attune__value *parameters;
} attune__mods_table;

/* Bytes, a multiple of 16. expr may be NULL: 0, no table is read. */
size_t attune__mods_table_size(const attune_expr *expr);

/* Writes attune__mods_table_size(expr) bytes. No call allocates or fails. */
void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out);

#endif

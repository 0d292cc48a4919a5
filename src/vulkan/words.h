/* SPDX-License-Identifier: MIT */
/* The words of a module under construction. */
#ifndef ATTUNE_VULKAN_WORDS_H
#define ATTUNE_VULKAN_WORDS_H

#include <attune/attune.h>

/* Words that grow. `status` keeps the first failure, so that emitting needs no check of each word. */
typedef struct attune__words {
    const attune_allocator *allocator;
    uint32_t *at;
    size_t count, capacity;
    attune_status status;
} attune__words;

/* Appends one instruction: the words after its first. */
void attune__words_add(attune__words *words, uint32_t opcode, const uint32_t *operands, size_t count);
void attune__words_copy(attune__words *words, const uint32_t *from, size_t count);

#endif

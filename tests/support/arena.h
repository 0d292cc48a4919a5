/* SPDX-License-Identifier: MIT */
/* Inputs and outputs of one launch: one device buffer, filled on the host. */
#ifndef TESTS_SUPPORT_ARENA_H
#define TESTS_SUPPORT_ARENA_H

#include <attune/attune.h>
#include <stddef.h>

#define ARENA_SIZE ((size_t)8 << 20)

typedef struct arena {
    unsigned char bytes[ARENA_SIZE];
    size_t used;
    uint64_t address; /* of the first byte, on the device */
} arena;

/* Empties it; every byte is noise of the seed, so that bytes before, between and after captures are never 0. */
void arena_reset(arena *a, uint64_t address, uint64_t seed);
/* The offset of `size` bytes that no other part has. */
size_t arena_take(arena *a, size_t size, size_t alignment);
/* Copies the bytes that a capture reaches, to an address that is aligned to its element and no more; returns the
 * device's address of its element 0. An empty one has address 0: reading it would fault. */
uint64_t arena_place(arena *a, const attune_array *array, uint64_t *state);

#endif

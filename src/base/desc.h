/* SPDX-License-Identifier: MIT */
/* Structs that begin with struct_size: a caller built against an older header has a shorter one, whose missing tail
 * reads as zero; one built against a newer header has a longer one, whose unknown tail must be zero. */
#ifndef ATTUNE_BASE_DESC_H
#define ATTUNE_BASE_DESC_H

#include <attune/attune.h>

/* Copies a caller's struct into ours. `smallest` is the size of its first published version; `name` is used in
 * messages. */
attune_status attune__desc_read(void *ours, size_t our_size, const void *theirs, size_t smallest, const char *name);
/* Copies ours to the caller's, up to its struct_size, which is kept. */
attune_status attune__desc_write(void *theirs, const void *ours, size_t our_size, size_t smallest, const char *name);

#endif

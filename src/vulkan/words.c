/* SPDX-License-Identifier: MIT */
#include "vulkan/words.h"

#include <spirv/unified1/spirv.h>
#include <string.h>

#include "base/alloc.h"

void attune__words_copy(attune__words *words, const uint32_t *from, size_t count)
{
    if (words->status != ATTUNE_OK || !count)
        return;
    if (!attune__grow(words->allocator, (void **)&words->at, &words->capacity, words->count, words->count + count,
                      sizeof *words->at)) {
        words->status = ATTUNE_OUT_OF_HOST_MEMORY;
        return;
    }
    memcpy(words->at + words->count, from, count * sizeof *from);
    words->count += count;
}

void attune__words_add(attune__words *words, uint32_t opcode, const uint32_t *operands, size_t count)
{
    const uint32_t first = (uint32_t)(count + 1) << SpvWordCountShift | opcode;
    attune__words_copy(words, &first, 1);
    attune__words_copy(words, operands, count);
}

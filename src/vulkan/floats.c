/* SPDX-License-Identifier: MIT */
/*
 * Float controls. Without them a driver may ignore NaN, infinities and the sign of zero: it may fold x * 0 to 0, and
 * replace a comparison by the negation of its opposite.
 */
#include <spirv/unified1/spirv.h>

#include "vulkan/vulkan.h"
#include "vulkan/words.h"

#define HEADER 5

attune_status attune__vulkan_preserve(const attune_allocator *allocator, const uint32_t *words, size_t count,
                                      uint32_t **preserving, size_t *preserving_count)
{
    static const uint32_t capability[] = {SpvCapabilitySignedZeroInfNanPreserve};
    attune__words out = {.allocator = allocator};
    attune__words_copy(&out, words, count < HEADER ? count : HEADER);
    attune__words_add(&out, SpvOpCapability, capability, 1);
    for (size_t at = HEADER, length; at < count; at += length) {
        length = words[at] >> SpvWordCountShift;
        if (!length || length > count - at)
            length = count - at; /* left to the driver, which refuses it */
        attune__words_copy(&out, words + at, length);
        /* Execution modes follow the entry points; our modules have one. */
        if ((words[at] & SpvOpCodeMask) == SpvOpEntryPoint && length > 2)
            attune__words_add(&out, SpvOpExecutionMode,
                              (uint32_t[]){words[at + 2], SpvExecutionModeSignedZeroInfNanPreserve, 32}, 3);
    }
    *preserving = out.at;
    *preserving_count = out.count;
    return out.status;
}

/* SPDX-License-Identifier: MIT */
/* One use of every preset, in the library's order. Symbols: captures i1 and i2 (integers), g1 and f2
 * (floating), b2 (bool), whose number is their rank; parameters x (f32) and n (i32). */
#ifndef TESTS_SUPPORT_PRESETS_H
#define TESTS_SUPPORT_PRESETS_H

#include <stdint.h>

extern const char *const preset_uses[];
extern const uint32_t preset_use_count;

#endif

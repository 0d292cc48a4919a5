/* SPDX-License-Identifier: MIT */
/* Decode: few rows over dense keys (decode.h). */
#define K_TYPE TYPE
#define V_TYPE TYPE
#define FOLDS  0u /* of parts that one item has: over a cache alone */
#include "key_tiles.h"

#include "decode.h"

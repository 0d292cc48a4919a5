/* SPDX-License-Identifier: MIT */
/* Calls over a cache of few rows (decode.h), with keys and values of any type. */
#define TYPE   F32 /* elements.h asks for one */
#define SHARES 0
#include "serving_items.h"

#include "decode.h"
#include "serving_combine.h"

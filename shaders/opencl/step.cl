/* SPDX-License-Identifier: MIT */
/* Kernels that a step over a cache launches once for all layers or that write for one: none knows a plan's sizes, types
 * or expressions, so that all plans share the program. */
#define ATTUNE_CACHE_SPACE /* the cache is in the arguments */
#include "append.cl"
#include "schedule.cl"

/* SPDX-License-Identifier: MIT */
/* A device's limits as text and as JSON. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <attune/attune.h>
#include <jansson.h>

void limits_print(const attune_limits *limits, const char *indent);
json_t *limits_json(const attune_limits *limits); /* new; NULL without memory */

#endif

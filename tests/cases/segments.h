/* SPDX-License-Identifier: MIT */
/* A case's keys cut into segments. */
#ifndef TESTS_CASES_SEGMENTS_H
#define TESTS_CASES_SEGMENTS_H

#include "tests/oracle/segments.h"
#include "cases/cases.h"

/* Cuts, builds and uploads the masks, and gives the problem its kv_len and mask. Returns NULL or what went wrong. */
const char *segments_prepare(attune_instance *instance, attune_device *device, const attention_case *c,
                             const attention *a, segments *s, attune_problem *problem);

#endif

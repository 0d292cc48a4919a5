/* SPDX-License-Identifier: MIT */
/* The byte formulas of docs/planning.md and of cuda/layout_*.h, written a second time. */
#ifndef TESTS_PLAN_FORMULAS_H
#define TESTS_PLAN_FORMULAS_H

#include <attune/attune.h>

/* The bytes of one workgroup that docs/planning.md gives for a choice; UINT64_MAX for a kernel that it does not have.
 */
uint64_t formula_bytes(const attune_limits *limits, const attune_problem *problem, const attune_plan_choice *choice);

#endif

/* SPDX-License-Identifier: MIT */
/* What the two readers of kernel options, the struct's and the JSON text's, share. prefix is "", "fwd_" or "bwd_". */
#ifndef ATTUNE_PLAN_OPTIONS_H
#define ATTUNE_PLAN_OPTIONS_H

#include "plan/family.h"

/* INVALID_ARGUMENT, naming the option, if the value is out of range. */
attune_status attune__check_option(const char *prefix, attune__option option, int64_t value);
/* INVALID_ARGUMENT if the prefix's pass has no such option. */
attune_status attune__check_prefix(const char *prefix, attune__option option);
/* INVALID_ARGUMENT, listing the names, if no family is called that. */
attune_status attune__check_kernel_name(const char *prefix, const char *name);
/* Insertions, removals and replacements from one text to another, without regard to case; 1 if b has a in it. */
size_t attune__edit_distance(const char *a, const char *b);

#endif

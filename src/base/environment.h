/* SPDX-License-Identifier: MIT */
/* Variables of the environment. A program with more rights than its caller must not use the caller's. */
#ifndef ATTUNE_BASE_ENVIRONMENT_H
#define ATTUNE_BASE_ENVIRONMENT_H

/* NULL if it is not set, or if the program has more rights than its caller. */
const char *attune__environment(const char *name);

#endif

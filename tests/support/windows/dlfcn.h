/* SPDX-License-Identifier: MIT */
/* For tests that are cross-built for Windows: no driver is opened there. */
#ifndef TESTS_SUPPORT_WINDOWS_DLFCN_H
#define TESTS_SUPPORT_WINDOWS_DLFCN_H

#include <stddef.h>

#define RTLD_NOW   2
#define RTLD_LOCAL 0

static inline void *dlopen(const char *path, int flags)
{
    (void)path, (void)flags;
    return NULL;
}

static inline const char *dlerror(void)
{
    return "there is no dlopen on Windows";
}

#endif

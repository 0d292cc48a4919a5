/* SPDX-License-Identifier: MIT */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* secure_getenv */
#endif
#include "base/environment.h"

#include <stdlib.h>
#include <unistd.h>

const char *attune__environment(const char *name)
{
#if defined(__APPLE__)
    return issetugid() ? NULL : getenv(name);
#elif defined(_WIN32)
    return getenv(name);
#else
    return secure_getenv(name);
#endif
}

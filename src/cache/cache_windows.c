/* SPDX-License-Identifier: MIT */
/* Windows' backend is the CPU's, which compiles nothing: there is no cache. */
#include "cache/cache.h"

attune__cache *attune__cache_open(const attune__cache_desc *desc)
{
    if (desc->log && desc->folder && desc->folder[0] && desc->log_level >= ATTUNE_LOG_WARNING)
        desc->log(desc->log_user, ATTUNE_LOG_WARNING,
                  "cache: none on Windows, where no backend compiles kernels: cache_folder names one");
    return NULL;
}

void attune__cache_close(attune__cache *cache)
{
    (void)cache;
}

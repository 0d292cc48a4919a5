/* SPDX-License-Identifier: MIT */
/* The calling thread's last error message. Nothing is allocated: a message that is too long is truncated. */
#ifndef ATTUNE_BASE_ERROR_H
#define ATTUNE_BASE_ERROR_H

#include <attune/attune.h>

#include "base/printf.h"

#define ATTUNE__MESSAGE_SIZE 2048

/* Sets the thread's message and returns the status, so that a check reads `return attune__fail(...)`. */
attune_status attune__fail(attune_status status, const char *format, ...) ATTUNE__PRINTF(2, 3);

/* Prepends context to the present message. Returns the status. */
attune_status attune__fail_context(attune_status status, const char *format, ...) ATTUNE__PRINTF(2, 3);

/* How many messages the thread has set, so that one of a callback can be told from an older one. */
uint64_t attune__failures(void);

/* Returns the status if it is not ATTUNE_OK. */
#define ATTUNE__TRY(call)                                                                                              \
    do {                                                                                                               \
        attune_status attune__try_status = (call);                                                                     \
        if (attune__try_status != ATTUNE_OK)                                                                           \
            return attune__try_status;                                                                                 \
    } while (0)

#endif

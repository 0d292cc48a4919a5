/* SPDX-License-Identifier: MIT */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static _Thread_local char message[ATTUNE__MESSAGE_SIZE];
static _Thread_local uint64_t failures;

attune_status attune__fail(attune_status status, const char *format, ...)
{
    /* Formats into a buffer first, because an argument may be the present message. */
    char text[ATTUNE__MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    failures++;
    return status;
}

uint64_t attune__failures(void)
{
    return failures;
}

attune_status attune__fail_context(attune_status status, const char *format, ...)
{
    char context[ATTUNE__MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    char text[ATTUNE__MESSAGE_SIZE];
    attune__text joined = attune__text_begin(text, sizeof text);
    attune__text_add(&joined, "%s: %s", context, message);
    memcpy(message, text, sizeof message);
    return status;
}

const char *attune_last_error(void)
{
    return message;
}

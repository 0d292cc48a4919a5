/* SPDX-License-Identifier: MIT */
/* The format's check of functions that print as C99 does. On Windows printf of the system's library is another
 * language. */
#ifndef ATTUNE_BASE_PRINTF_H
#define ATTUNE_BASE_PRINTF_H

#if defined(__MINGW32__) && !defined(__clang__)
#define ATTUNE__PRINTF(format_at, arguments_at) __attribute__((format(gnu_printf, format_at, arguments_at)))
#else
#define ATTUNE__PRINTF(format_at, arguments_at) __attribute__((format(printf, format_at, arguments_at)))
#endif

#endif

/* SPDX-License-Identifier: MIT */
/* Shared libraries that are opened at run time: drivers and compilers. POSIX and Windows differ here alone. */
#ifndef ATTUNE_BASE_LIBRARY_H
#define ATTUNE_BASE_LIBRARY_H

#include <stddef.h>

enum {
    ATTUNE__LIBRARY_KEEP = 1,  /* stays loaded until the process ends, after it is closed too */
    ATTUNE__LIBRARY_LOADED = 2 /* only if the process has loaded it already */
};

/*
 * NULL, with the reason, if the library cannot be opened. A program that is linked statically with the C library opens
 * none: what it would load needs a C library of its own, and ends the process.
 */
void *attune__library_open(const char *name, unsigned flags, char *reason, size_t reason_size);
void *attune__library_symbol(void *library, const char *name); /* NULL: it has none of that name */
void attune__library_close(void *library);                     /* accepts NULL */

#endif

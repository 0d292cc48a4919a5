/* SPDX-License-Identifier: MIT */
/* The files of shaders/opencl/ and the lists of shaders/, embedded when the library is built. */
#ifndef ATTUNE_OPENCL_SOURCES_H
#define ATTUNE_OPENCL_SOURCES_H

typedef struct attune__opencl_source {
    const char *name; /* as #include names it */
    const char *text;
} attune__opencl_source;

/* Ends with a NULL name. */
extern const attune__opencl_source attune__opencl_sources[];

#endif

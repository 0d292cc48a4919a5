/* SPDX-License-Identifier: MIT */
/* The files of cuda/, embedded when the library is built. */
#ifndef ATTUNE_CUDA_SOURCES_H
#define ATTUNE_CUDA_SOURCES_H

typedef struct attune__cuda_source {
    const char *name; /* as #include names it */
    const char *text;
} attune__cuda_source;

/* Ends with a NULL name. */
extern const attune__cuda_source attune__cuda_sources[];
/* BLAKE2s-256 of all names and texts, each with its final 0, as hexadecimal text. */
extern const char attune__cuda_sources_digest[];

#endif

/* SPDX-License-Identifier: MIT */
/* The driver's functions for graphs, which the library does not need. */
#ifndef TESTS_CUDA_GRAPHS_H
#define TESTS_CUDA_GRAPHS_H

typedef struct graphs {
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **made, void *graph, unsigned long long flags);
    int (*launch)(void *made, void *stream);
    int (*destroy)(void *graph), (*destroy_made)(void *made);
} graphs;

graphs graphs_find(void);

#endif

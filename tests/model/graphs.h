/* SPDX-License-Identifier: MIT */
/* The streams of the model, and what a stream that captures keeps for a CUDA graph. */
#ifndef TESTS_MODEL_GRAPHS_H
#define TESTS_MODEL_GRAPHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_PARAMETERS 16 /* of a kernel, at most */

/* The arguments of cuLaunchKernel, the CTAs of a cluster, and whether it may begin early. */
typedef struct launch_call {
    void *function;
    unsigned grid[3], block[3], shared;
    int ctas;
    bool early;
    void **parameters;
    const size_t *sizes; /* bytes of each */
    int count;
} launch_call;

/* Of driver.c. */
int model_launch_now(const launch_call *launch);
bool model_has_context(void); /* whether one is current in this thread */

int model_stream_create(void **made);
int model_stream_destroy(void *stream);
bool model_stream_captures(void *stream);
/* Of a stream that captures. Parameters are copied. */
int model_capture_launch(void *stream, const launch_call *launch);
int model_capture_copy(void *stream, unsigned long long to, unsigned long long from, size_t size);

#endif

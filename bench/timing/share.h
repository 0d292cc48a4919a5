/* SPDX-License-Identifier: MIT */
/* A rank's share of a problem: its tensors, cut from those of the whole sequence, and its calls. */
#ifndef BENCH_TIMING_SHARE_H
#define BENCH_TIMING_SHARE_H

#include <attune/distributed.h>

#include "tests/oracle/reference.h"

#define SHARE_BUFFERS (5 + ATTUNE_EXPR_MAX_SYMBOLS)

typedef struct share {
    attune_distributed *distributed;
    attune_queue *queue;
    attune_forward_args args;
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_buffer *buffers[SHARE_BUFFERS];
    uint32_t buffer_count;
    const attune_run *rows; /* of the partition, which must outlive the share */
    uint32_t row_runs;
    uint64_t bytes; /* on the device */
} share;

/* All ranks must call it. After a failure, of which attune_last_error or the status tells, share_free is still due. The
 * problem's score is a's; options NULL = automatic. */
attune_status share_make(attune_device *device, const attune_transport *transport, const attune_partition *partition,
                         const attune_mask *mask, const attune_problem *problem, const attune_kernel_options *options,
                         const attention *a, share *s);
attune_status share_call(share *s);
/* Writes the rank's rows of o to an array of all rows. */
attune_status share_read(const share *s, array *o);
void share_free(share *s); /* accepts a zeroed one */

#endif

/* SPDX-License-Identifier: MIT */
/* A rank's share of a problem: its tensors, cut from those of the whole sequence, and its calls. */
#ifndef BENCH_TIMING_SHARE_H
#define BENCH_TIMING_SHARE_H

#include <attune/distributed.h>

#include "tests/oracle/reference.h"

#define SHARE_CHUNK   256 /* keys of decode that are dealt at a time */
#define SHARE_BUFFERS (10 + 2 * ATTUNE_EXPR_MAX_SYMBOLS)

/* Gradients of the whole sequence: a share reads its rows of d_o, and writes its rows or keys of the others. */
typedef struct share_gradients {
    array d_o, d_q, d_k, d_v;
} share_gradients;

typedef struct share {
    attune_distributed *distributed, *backward; /* backward NULL = forward alone */
    attune_decode *decode;                      /* then they are NULL, and keys stay */
    int64_t kv_len;                             /* of decode: of all ranks */
    int64_t batches[2], heads[2];               /* of decode: the first of the rank's queries, and their number */
    attune_run *dealt;                          /* of decode: the keys; owned */
    attune_queue *queue;
    attune_forward_args args;
    attune_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_backward_args back;
    attune_capture gradients[ATTUNE_EXPR_MAX_SYMBOLS];
    bool called; /* forward was, once, if calls are of backward */
    attune_buffer *buffers[SHARE_BUFFERS];
    uint32_t buffer_count;
    const attune_run *rows, *keys; /* of the partition, which must outlive the share */
    uint32_t row_runs, key_runs;
    uint64_t bytes; /* on the device */
} share;

/* All ranks must call it. After a failure, of which attune_last_error or the status tells, share_free is still due. The
 * problem's score is a's; options NULL = automatic; gradients NULL = forward alone, otherwise calls are of backward. */
attune_status share_make(attune_device *device, const attune_transport *transport, const attune_partition *partition,
                         const attune_mask *mask, const attune_problem *problem, const attune_kernel_options *options,
                         attune_overlap overlap, const attention *a, const share_gradients *gradients, share *s);
/* Likewise of decode, whose queries are split by sequences if there is one for each rank, otherwise by heads. */
attune_status share_make_decode(attune_device *device, const attune_transport *transport, const attune_problem *problem,
                                const attune_kernel_options *options, const attention *a, share *s);
/* The first call of backward makes one of forward before. It does not wait for the device. */
attune_status share_call(share *s);
attune_status share_wait(const share *s);
/* Writes the rank's rows of o to an array of all rows. */
attune_status share_read(const share *s, array *o);
attune_status share_read_gradients(const share *s, share_gradients *gradients);
void share_free(share *s); /* accepts a zeroed one */

#endif

/* SPDX-License-Identifier: MIT */
/* A stream for messages beside a queue's, and the events between them: what transports of CUDA devices share. */
#ifndef ATTUNE_CUDA_EXCHANGE_H
#define ATTUNE_CUDA_EXCHANGE_H

#include <attune/distributed.h>

#include "cuda/cuda.h"

typedef struct attune__cuda_exchange {
    attune__cuda_device *device;
    attune__cu_stream stream;
    bool lent;
    attune__cu_event ready; /* the queue's work before the exchange, what is sent among it, is done */
    attune__cu_event done;  /* the messages are complete */
} attune__cuda_exchange;

/* Fails unless the device is CUDA's. Leaves nothing behind on failure. */
attune_status attune__cuda_exchange_init(attune_device *device, attune__cu_stream stream, attune__cuda_exchange *e);
void attune__cuda_exchange_finish(attune__cuda_exchange *e);
/* In the current context: records an event after the queue's work so far, for messages to wait for. */
attune__cu_result attune__cuda_exchange_ready(const attune__cuda_exchange *e, const attune_queue *queue);
static inline attune__cu_pointer attune__cuda_message(const attune_message *m)
{
    return attune__cuda_pointer(m->buffer) + m->offset;
}

#endif

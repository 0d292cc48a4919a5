/* SPDX-License-Identifier: MIT */
/* The messages of a call: a transport before another one, which notes the messages, so that they can be sent without
 * the call, and the call made without them. */
#ifndef BENCH_TIMING_MESSAGES_H
#define BENCH_TIMING_MESSAGES_H

#include <attune/distributed.h>

typedef enum messages_mode {
    MESSAGES_SENT,
    MESSAGES_NOTED, /* sent, and kept for messages_send */
    MESSAGES_LEFT   /* not sent: memory that receives keeps what it has */
} messages_mode;

typedef struct messages_exchange {
    attune_message *items; /* owned; sends, then receives */
    uint32_t sends, receives;
    bool lent; /* by transport.lend: receives are where they were read */
} messages_exchange;

/* Of a rank. */
typedef struct messages {
    attune_transport below;
    messages_mode mode;
    messages_exchange *exchanges; /* owned; of the calls that were noted */
    uint32_t count;
    uint32_t left;     /* exchanges of the calls without messages */
    uint64_t received; /* their bytes */
} messages;

/* The transport before `below`, which refers to *m. */
attune_transport messages_transport(messages *m, const attune_transport *below);
/* The exchanges that were noted, one after another: all ranks must call it. Through host memory they are between the
 * copies that attune makes. */
attune_status messages_send(const messages *m, attune_queue *queue);
void messages_free(messages *m); /* accepts a zeroed one */

#endif

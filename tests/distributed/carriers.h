/* SPDX-License-Identifier: MIT */
/* How messages go between the devices of ranks: through host memory, or by the transports of attune/cuda_ranks.h. */
#ifndef TESTS_DISTRIBUTED_CARRIERS_H
#define TESTS_DISTRIBUTED_CARRIERS_H

#include "distributed/sharing.h"

typedef enum carrier { THROUGH_HOST, PEERS, NCCL } carrier;

typedef struct connection connection;

/* Has NCCL in the process: libnccl.so.2, or the fake that ATTUNE_FAKE_NCCL names. Skips the test where it is missing.
 */
void nccl_or_skip(void);
void fake_nccl_or_skip(void);

/* Gives the ranks of a sharing their transports, after sharing_begin. NULL of ranks whose messages go through host
 * memory. */
connection *carriers_connect(sharing *s, carrier by);
void carriers_disconnect(connection *c); /* accepts NULL */

#endif

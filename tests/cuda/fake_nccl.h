/* SPDX-License-Identifier: MIT */
/*
 * NCCL without a GPU: a shared library with the soname of NVIDIA's, whose communicators are structs that a test makes,
 * and whose memory is the host's. Messages wait in the library until they are received. It refuses what NCCL would:
 * messages outside of a group or to oneself, peers that do not exist, sizes that differ, a second group of a thread,
 * other types than bytes.
 */
#ifndef TESTS_CUDA_FAKE_NCCL_H
#define TESTS_CUDA_FAKE_NCCL_H

#define FAKE_NCCL_CALLS 1024

typedef struct fake_nccl_state {
    int version;     /* 22800 */
    int fail_at;     /* the call that fails with ncclInternalError, from 1; 0 = none */
    int in_progress; /* so often group_end, and then the communicator, answers ncclInProgress */
    int async_error; /* of the communicators */
    int calls;       /* so far; of one thread where the log is read */
    int open;        /* groups that were begun and not ended, of all threads */
    int waiting;     /* messages that were sent and not received */
    /* A letter a call: ( group begun, ) group ended, s sent, r received, g gathered. */
    char log[FAKE_NCCL_CALLS + 1];
} fake_nccl_state;

typedef struct fake_nccl_comm {
    int rank, size;
} fake_nccl_comm;

#endif

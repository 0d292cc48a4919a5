/* SPDX-License-Identifier: MIT */
/* A case over several ranks, which are threads: each has its rows and keys, and makes the same calls, on the CPU or on
 * a device of its own. */
#ifndef TESTS_DISTRIBUTED_SHARING_H
#define TESTS_DISTRIBUTED_SHARING_H

#include "cases/cases.h"
#include "distributed/ranks.h"

/* Several ranks need different parts of a rank's keys; with all that is summed over ranks. */
extern const attention_case sharing_windows;

/* A tensor on a rank's device, and its bytes here: the same memory on the CPU. */
typedef struct local {
    attune_tensor tensor;
    char *data;
    size_t bytes;
    bool copied;
} local;

/* Makes data and the tensor's buffer, nothing if there are no bytes. The data is zero. */
bool local_allocate(attune_device *device, size_t bytes, local *l);
void local_upload(const local *l);
void local_download(const local *l);
void local_destroy(local *l);

typedef struct sharing {
    attune_instance *instance;
    attune_device *device;              /* of all ranks, or of the least precision */
    attune_device *devices[MOST_RANKS]; /* of ranks in turn; none = `device` */
    bool opened[MOST_RANKS];            /* not shared with a rank before */
    uint32_t device_count;
    bool one_at_a_time; /* ranks compute one after another */
    const attention_case *c;
    const attention *a;
    attune_mask *mask;
    uint32_t ranks, calls; /* calls: on each rank, with equal results */
    attune_layout layout;
    bool token_major, late;
    attune_overlap overlap;
    bool backward;          /* calls are of backward, after one of forward */
    bool fails_in_turn;     /* sharing_run_failure: some heads are computed while keys of others arrive */
    uint32_t other_problem; /* the rank that has another scale; none if not below ranks */
    uint32_t bad_call;      /* the rank whose call has a bad argument */
    rank_group group;
    array o, lse; /* whole */
    case_gradients gradients;
    attune_status created[MOST_RANKS], status[MOST_RANKS];
    char message[MOST_RANKS][256];
    bool differs[MOST_RANKS];    /* a repeated call gave other bits */
    uint64_t shared[MOST_RANKS]; /* a hash of the gradients that all ranks have */
} sharing;

/* Opens the CPU with one thread. */
void sharing_open(sharing *s);
/* And a device for each rank, of these backends in turn, one for all of OpenCL; skips the test if one is missing. */
void sharing_open_devices(sharing *s, const char *const *backends, uint32_t count);
attune_device *sharing_device(const sharing *s, uint32_t rank);
void sharing_close(sharing *s);

/* Makes the mask and the outputs; the number decides the layout and the transport. */
void sharing_begin(sharing *s, const attention *a, uint64_t number);
void sharing_end(sharing *s);

/* Holds o and lse against the references. */
void sharing_compare(const sharing *s, attune_dtype dtype);

/* The body of a rank, for rank_group_run. */
void sharing_run_rank(void *context, uint32_t rank);

/* A rank_fault's `lose`: every later call of the device fails. */
void sharing_lose(void *device);

/* Causal attention of 200 rows over 4 ranks, with a capture, of which one rank fails somewhere. */
void sharing_run_failure(sharing *s, const rank_fault *fault, uint32_t other_problem, uint32_t bad_call);

#endif

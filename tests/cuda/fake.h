/* SPDX-License-Identifier: MIT */
/*
 * A driver and a compiler without a GPU: shared libraries with the sonames of NVIDIA's. A test that opens them by path
 * before attune looks for them is what attune finds. They count, fail on demand and know what is still alive.
 */
#ifndef TESTS_CUDA_FAKE_H
#define TESTS_CUDA_FAKE_H

#define FAKE_CALLS 4096

typedef struct fake_state {
    int fail_at;      /* the call that fails, from 1; 0 = none */
    int fail_with;    /* a CUresult */
    int sticky;       /* from then on every call fails so, but for contexts */
    int capturing;    /* what cuStreamIsCapturing answers */
    int pool;         /* memory is of a pool ... */
    int pool_access;  /* ... to which a device has this access, ... */
    int pool_grants;  /* ... but can read it, so many answers say first */
    int mapped;       /* memory is of cuMemMap ... */
    int mapped_end;   /* ... of which devices read what lies below this address */
    int not_ready;    /* cuEventQuery answers CUDA_ERROR_NOT_READY so many times */
    int architecture; /* 90 */
    int calls;        /* so far */
    const char *names[FAKE_CALLS];
    int contexts, depth, streams, events, modules, memories; /* alive; depth: pushed, not yet popped */
    int lent_destroyed;           /* the primary context was released more often than retained */
    unsigned grid, block, shared; /* of the last launch */
    int hopper;                   /* it was attune_forward_sm90 */
    const char *kernel;           /* its name */
    _Alignas(8) unsigned char arguments[4096];
} fake_state;

typedef struct fake_compiler {
    int absent;   /* it opens, and is of no use */
    int compiled; /* kernels, so far */
} fake_compiler;

#endif

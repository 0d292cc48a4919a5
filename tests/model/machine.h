/* SPDX-License-Identifier: MIT */
/*
 * The machine, whose functions a kernel calls that the host's compiler compiled. C and C++ both read it. Threads of a
 * CTA are fibers of one thread of the host, and a function here may switch to another fiber before it returns.
 */
#ifndef TESTS_MODEL_MACHINE_H
#define TESTS_MODEL_MACHINE_H

#include <stddef.h>
#include <stdint.h>

typedef struct model_index {
    unsigned x, y, z;
} model_index;

/* Instructions that the lanes of a warp execute together. */
typedef enum model_collective {
    MODEL_SYNCWARP,
    MODEL_SHUFFLE,    /* uint32_t[3]: value, source lane, result */
    MODEL_SHUFFLE_UP, /* the same, with a distance */
    MODEL_VOTE,       /* uint32_t[2]: predicate, the lanes that had it */
    MODEL_LDMATRIX,   /* model_matrices */
    MODEL_LDMATRIX_TRANSPOSED,
    MODEL_STMATRIX_TRANSPOSED,
    MODEL_MMA_TF32, /* model_mma */
    MODEL_MMA_F16,
    MODEL_MMA_BF16,
    MODEL_WGMMA, /* model_wgmma */
    MODEL_WGMMA_FENCE,
    MODEL_WGMMA_COMMIT,
    MODEL_WGMMA_WAIT,        /* int: the groups that may be pending */
    MODEL_SETMAXNREG,        /* int: registers of each thread */
    MODEL_TENSOR_ALLOCATE,   /* uint32_t[3]: where the address is stored, columns, CTAs of the .cta_group */
    MODEL_TENSOR_RELINQUISH, /* the same: the first two are 0 */
    MODEL_TENSOR_FREE,       /* the same: address, columns, CTAs */
    MODEL_TENSOR_LOAD,       /* model_tensor_access */
    MODEL_TENSOR_STORE,
    MODEL_TENSOR_WAIT_LOAD,
    MODEL_TENSOR_WAIT_STORE,
    MODEL_COLLECTIVES
} model_collective;

typedef struct model_matrices {
    uint32_t address, r[4];
} model_matrices;

typedef struct model_mma {
    float c[4];
    uint32_t a[4], b[2];
} model_mma;

/* wgmma.mma_async of 64 x columns x 16. What it points to is read and written until the warp has waited. */
typedef struct model_wgmma {
    float *d;
    const uint32_t *a; /* registers; or NULL, and descriptor_a */
    uint64_t descriptor_a, descriptor_b;
    int columns, add, m_major, n_major, brain;
} model_wgmma;

/* tcgen05.ld and st, .32x32b: `count` columns of tensor memory, from or to registers. */
typedef struct model_tensor_access {
    uint32_t address, count;
    uint32_t *r;
} model_tensor_access;

/* tcgen05.mma, kind::f16, of 128 x N x 16, or by a pair of CTAs of 128 or 256 x N x 16: addresses of tensor memory, and
 * descriptors. */
typedef struct model_tcgen05 {
    uint32_t d, a;
    uint64_t descriptor_a, descriptor_b;
    uint32_t instruction;
    int tensor_a, add; /* tensor_a: A is in tensor memory */
    int ctas;          /* of the .cta_group */
} model_tcgen05;

/* The qualifier .multicast of tcgen05.cp, and its .src_fmt. */
typedef enum model_multicast {
    MODEL_MULTICAST_NONE,
    MODEL_MULTICAST_02_13,
    MODEL_MULTICAST_01_23,
    MODEL_MULTICAST_4
} model_multicast;
typedef enum model_source_format {
    MODEL_FORMAT_NONE,
    MODEL_FORMAT_B6X16_P32,
    MODEL_FORMAT_B4X16_P64
} model_source_format;

/* tcgen05.cp of `rows` rows of `bits` bits, to an address of tensor memory. */
typedef struct model_tensor_copy {
    uint32_t to;
    uint64_t descriptor;
    int rows, bits;
    model_multicast multicast;
    model_source_format format;
    int ctas;
} model_tensor_copy;

/* The CTA of a cluster whose shared memory an instruction names: its own, the other one, or that of rank 0. */
typedef enum model_owner { MODEL_OWN, MODEL_PEER, MODEL_FIRST } model_owner;

typedef struct model_machine {
    /* An access by the kernel's own code. */
    void (*access)(const void *p, size_t size, int write, void *pc);
    uint32_t (*to_shared)(const void *p);
    void *(*from_shared)(uint32_t address);
    /* By instructions that name shared memory. */
    void (*load_shared)(void *to, uint32_t from, uint32_t size);
    void (*store_shared)(uint32_t to, const void *from, uint32_t size);
    void (*collective)(model_collective kind, uint32_t mask, void *arguments);
    /* count 0: all threads of the CTA. Returns how many had a value other than 0; 0 for an arrival. */
    int (*barrier)(int number, int count, int arrive_only, int value);
    /* `valid` of the `size` bytes, the others zero. */
    void (*copy_async)(uint32_t to, const void *from, uint32_t size, uint32_t valid);
    void (*copy_commit)(void);
    void (*copy_wait)(int pending);
    uint32_t (*cluster_rank)(void);
    void (*cluster_sync)(void);
    void (*fence_async)(void);
    void (*fence_barrier_init)(void);
    void (*barrier_init)(uint32_t barrier, int count);
    void (*barrier_arrive)(uint32_t barrier, int at); /* at: a model_owner */
    /* `bytes` more for the phase, and an arrival or none. */
    void (*barrier_expect)(uint32_t barrier, uint32_t bytes, int arrives);
    void (*barrier_wait)(uint32_t barrier, uint32_t parity);
    /* A tile at the coordinates column, row, head, batch, whose bytes count at a barrier of this CTA, or of the pair's
     * first (.cta_group::2). */
    void (*tensor_load)(uint32_t to, const void *map, uint32_t barrier, int barrier_at, const int *at);
    void (*bulk_load)(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
    void (*bulk_add)(float *to, uint32_t from, uint32_t bytes);
    /* Until the thread's bulk additions and stores have read their sources, or are complete. */
    void (*bulk_wait)(int read_only);
    /* To the peer, whose barrier counts the bytes. */
    void (*copy_peer)(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier);
    void (*store_peer)(uint32_t to, uint32_t value, uint32_t barrier);
    /* st.shared::cluster to the peer, ld.shared::cluster from any rank. */
    void (*store_cluster)(uint32_t to, const void *from, uint32_t size);
    void (*load_cluster)(void *to, uint32_t from, uint32_t size, uint32_t rank);
    /* tcgen05.fence; mma, cp and commit, by one thread. mask: the ranks at whose barriers it arrives, or 0: at its own
     * CTA's. */
    void (*tensor_fence)(int after);
    void (*tcgen05)(const model_tcgen05 *m);
    void (*tcgen05_copy)(const model_tensor_copy *c);
    void (*tcgen05_commit)(uint32_t barrier, int ctas, uint32_t mask);
    void (*wait_for_launches)(void);
    /* For loops that wait for another thread. */
    void (*spin)(void);
    void (*tensor_store)(const void *map, uint32_t from, const int *at);
    /* red.global.add of a vector. */
    void (*add_vector)(float *to, const float *x, uint32_t count);
} model_machine;

/* Defined by the kernel's library. */
typedef struct model_kernel_library {
    model_machine *machine;
    model_index *thread, *block, *grid, *dimensions;
} model_kernel_library;

#endif

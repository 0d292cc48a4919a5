/* SPDX-License-Identifier: MIT */
/*
 * A kernel family in this backend: its sources, what they are compiled with, and what the launches of its backward pass
 * depend on. The planner's table of the same name (plan/family.h) has its tiles. Adding a family is adding a table, and
 * a line to the list in family.c.
 */
#ifndef ATTUNE_CUDA_FAMILY_H
#define ATTUNE_CUDA_FAMILY_H

#include "cuda/compiler.h"
#include "cuda/layout.h"

typedef struct attune__cuda_entry {
    const char *file, *name; /* of the source and of the entry point; NULL = the family has no such pass */
} attune__cuda_entry;

typedef struct attune__cuda_family {
    const attune__family *plan;
    const char *suffix; /* of the architecture that its sources are compiled for: "a" */
    attune__cuda_entry forward, decode, backward, serving;
    /* Persistent CTAs, all resident at once, take the tiles; else there is a CTA for each. */
    bool persistent;
    /* The kernels of cuda_sm80 are the fallback: for tensors that TMA cannot read, and, in a backward pass that adds dQ
     * to sums, for sums that are not finite. */
    bool has_fallback;
    /* Adds the options -D that other families do not have. */
    void (*define)(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role);
    /* A kernel's shared memory; NULL = the choice's, whatever the role. */
    uint32_t (*shared_memory)(const attune__program_desc *desc, attune__cuda_role role);
    /* Backward of a family with a fallback, for the tile of its kernel. The entry point that converts the sums of dQ,
     * if there is one, its shared memory, and its CTAs for each tile of queries, 0 if the kernel does it; the CTAs of a
     * cluster; whether tail tiles are split. */
    const char *dq_name;
    uint32_t (*dq_shared_memory)(attune_cuda_tile tile);
    uint32_t (*dq_ctas)(attune_cuda_tile tile);
    uint32_t (*cluster)(attune_cuda_tile tile);
    /* The items that CTAs take for each tile of keys; NULL = one. */
    uint32_t (*items)(attune_cuda_tile tile);
    bool splits_tail;
    /* Unless the order is fixed, gradients of large captures that each pair reads by itself are summed in float32. */
    bool float_sums;
    bool padded_sums; /* their rows have a multiple of four elements, where threads have as many adjacent keys */
    /* The forward kernel's parameters end with a tensor map of O, and whether TMA can store it. */
    bool stores_o;
    bool boxes;        /* the parameters over a cache end with tensor maps of K and V */
    bool divides_rows; /* each CTA of a cluster loads its part of a tile's rows */
} attune__cuda_family;

extern const attune__cuda_family attune__cuda_family_sm80, attune__cuda_family_sm80_atomic, attune__cuda_family_sm90a,
    attune__cuda_family_serving_sm90a, attune__cuda_family_sm100a;

/* NULL = this version has no kernel of that family. */
const attune__cuda_family *attune__cuda_family_find(const char *name);

#endif

/* SPDX-License-Identifier: MIT */
/* Kernel sources to cubins, through NVRTC, which is opened at run time; what was compiled before comes from packs or
 * the cache. Needs no GPU. */
#ifndef ATTUNE_CUDA_COMPILER_H
#define ATTUNE_CUDA_COMPILER_H

#include "backend.h"
#include "plan/family_cuda.h"

#define ATTUNE__CUDA_OPTIONS 24

typedef struct attune__cuda_kernel {
    const char *file; /* one of attune__cuda_sources, which it may include by name */
    const char *mods; /* the text of "mods.cuh"; NULL = none */
    uint32_t option_count;
    char options[ATTUNE__CUDA_OPTIONS][64];
} attune__cuda_kernel;

/* What entries in the cache and in packs are called, and found by: all that a cubin follows from but the compiler. */
#define ATTUNE__CUDA_KIND "cuda"
attune__hash attune__cuda_hash(const attune__cuda_kernel *kernel);

/* *cubin is given back with attune__free. UNAVAILABLE without NVRTC, COMPILE_FAILED with the compiler's words. */
attune_status attune__cuda_compile(const attune__host *host, const attune__cuda_kernel *kernel, void **cubin,
                                   size_t *size);

/* Loads NVRTC, if it is there, for the life of the process: some 10 ms that the first plan is spared. */
void attune__cuda_compiler_load(void);

/* One of several kernels that are compiled together. */
typedef struct attune__cuda_job {
    const attune__cuda_kernel *kernel;
    void *cubin; /* likewise */
    size_t size;
    attune__hash hash; /* of the kernel, filled in */
} attune__cuda_job;
#define ATTUNE__CUDA_JOBS 5

/* The same for up to ATTUNE__CUDA_JOBS, side by side as far as host->compile_threads allows. All or none. */
attune_status attune__cuda_compile_all(const attune__host *host, attune__cuda_job *jobs, uint32_t count);

/* The backend's program_compile. */
attune_status attune__cuda_pack(const attune__host *host, const attune_limits *limits, const attune__program_desc *desc,
                                attune__pack *pack);

/* The kernels of a program. */
typedef enum attune__cuda_role {
    ATTUNE__CUDA_MAIN,  /* forward, decode; in backward dK and dV */
    ATTUNE__CUDA_ROWS,  /* backward: dQ and the gradients of captures */
    ATTUNE__CUDA_DELTA, /* backward: what stands before and behind the others */
} attune__cuda_role;
#define ATTUNE__CUDA_ROLES 3
static inline bool attune__cuda_has_role(const attune_plan_choice *choice, attune__cuda_role role)
{
    return role == ATTUNE__CUDA_MAIN ||
           (choice->direction == ATTUNE_BACKWARD && (role == ATTUNE__CUDA_DELTA || !attune__cuda_has_fallback(choice)));
}

/* Compiles a kernel into a pack that has it not yet. */
attune_status attune__cuda_pack_kernel(const attune__host *host, const attune__cuda_kernel *kernel, attune__pack *pack);

/* What a choice is compiled as, for an architecture such as 86 or 90. kernel->mods is the caller's to free. */
attune_status attune__cuda_specialise(const attune_allocator *allocator, const attune__program_desc *desc,
                                      uint32_t architecture, attune__cuda_role role, attune__cuda_kernel *kernel);
/* The entry point of a choice's kernel. */
const char *attune__cuda_entry_name(const attune_plan_choice *choice, attune__cuda_role role);
/* What runs in the place of a kernel that uses TMA where a tensor's address or strides do not suit it: the sm80 kernel,
 * as the planner chooses it. A program has both, since tensors are known only in the hot call. */
attune_status attune__cuda_fallback(const attune_limits *limits, const attune__program_desc *desc,
                                    attune__decision *decision);

#endif

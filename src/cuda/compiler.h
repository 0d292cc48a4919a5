/* SPDX-License-Identifier: MIT */
/* Compiles kernels to cubins with NVRTC, which is opened at run time; packs and the cache hold earlier results. Needs
 * no GPU. */
#ifndef ATTUNE_CUDA_COMPILER_H
#define ATTUNE_CUDA_COMPILER_H

#include "backend.h"
#include "plan/family_cuda.h"

#define ATTUNE__CUDA_OPTIONS 40

typedef struct attune__cuda_kernel {
    const char *file; /* one of attune__cuda_sources, which it may include by name */
    const char *mods; /* the text of "mods.cuh"; NULL = none */
    bool full;        /* an option found no place */
    uint32_t option_count;
    char options[ATTUNE__CUDA_OPTIONS][64];
} attune__cuda_kernel;

/* The key of entries in the cache and in packs: all that determines a cubin except the compiler. */
#define ATTUNE__CUDA_KIND "cuda"
attune__hash attune__cuda_hash(const attune__cuda_kernel *kernel);

/* *cubin is freed with attune__free. UNAVAILABLE without NVRTC; COMPILE_FAILED has the compiler's log. */
attune_status attune__cuda_compile(const attune__host *host, const attune__cuda_kernel *kernel, void **cubin,
                                   size_t *size);

/* Loads NVRTC, if installed, for the life of the process: saves the first plan some 10 ms. */
void attune__cuda_compiler_load(void);

/* One of several kernels that are compiled together. */
typedef struct attune__cuda_job {
    const attune__cuda_kernel *kernel;
    void *cubin; /* likewise */
    size_t size;
    attune__hash hash; /* of the kernel, filled in */
} attune__cuda_job;
#define ATTUNE__CUDA_JOBS 5

/* The same for up to ATTUNE__CUDA_JOBS, on up to host->compile_threads threads. All succeed or none. */
attune_status attune__cuda_compile_all(const attune__host *host, attune__cuda_job *jobs, uint32_t count);

/* The backend's program_compile. */
attune_status attune__cuda_pack(const attune__host *host, const attune_limits *limits, const attune__program_desc *desc,
                                attune__pack *pack);

/* The kernels of a program. */
typedef enum attune__cuda_role {
    ATTUNE__CUDA_MAIN,   /* forward, decode; in backward dK and dV */
    ATTUNE__CUDA_ROWS,   /* backward: dQ and the gradients of captures */
    ATTUNE__CUDA_DELTA,  /* backward: lse and delta before, capture gradients after the others */
    ATTUNE__CUDA_APPEND, /* serving: new rows of the cache */
} attune__cuda_role;
#define ATTUNE__CUDA_ROLES 4
bool attune__cuda_has_role(const attune__program_desc *desc, attune__cuda_role role);
/* The bytes of a kernel's shared memory. */
uint32_t attune__cuda_shared_memory(const attune__program_desc *desc, attune__cuda_role role);

/* Compiles a kernel into a pack, unless the pack has it. */
attune_status attune__cuda_pack_kernel(const attune__host *host, const attune__cuda_kernel *kernel, attune__pack *pack);

/* The source and options of a choice's kernel, for an architecture such as 86 or 90. The caller frees kernel->mods. */
attune_status attune__cuda_specialise(const attune_allocator *allocator, const attune__program_desc *desc,
                                      uint32_t architecture, attune__cuda_role role, attune__cuda_kernel *kernel);
/* The family of a program, and the source and entry point of one of its kernels; UNSUPPORTED if it has none. */
struct attune__cuda_family;
struct attune__cuda_entry;
attune_status attune__cuda_entry_of(const attune__program_desc *desc, attune__cuda_role role,
                                    const struct attune__cuda_family **family, struct attune__cuda_entry *entry);
/* For families: adds -DATTUNE_name=value. */
void attune__cuda_define(attune__cuda_kernel *kernel, const char *name, uint32_t value);
/* ATTUNE_CUDA_F16 and so on (cuda/arguments.h). */
uint32_t attune__cuda_dtype_number(attune_dtype dtype);
/* The fallback of a kernel with TMA, for tensors whose address or strides TMA cannot read: the sm80 kernel that the
 * planner chooses. A program has both, since tensors are known only in the hot call. */
attune_status attune__cuda_fallback(const attune_limits *limits, const attune__program_desc *desc,
                                    attune__decision *decision);

#endif

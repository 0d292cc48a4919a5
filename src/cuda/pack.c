/* SPDX-License-Identifier: MIT */
/* Kernels compiled ahead: those that a program needs on its device, which need not be present. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"
#include "cuda/family.h"

attune_status attune__cuda_pack_kernel(const attune__host *host, const attune__cuda_kernel *kernel, attune__pack *pack)
{
    char identity[128];
    const int length = snprintf(identity, sizeof identity, "%s %s", kernel->file, kernel->options[0]);
    const attune__cache_key key = {ATTUNE__CUDA_KIND, attune__cuda_hash(kernel), identity, (size_t)length};
    if (attune__pack_has(pack, &key))
        return ATTUNE_OK;
    void *cubin = NULL;
    size_t size = 0;
    attune_status status = attune__cuda_compile(host, kernel, &cubin, &size);
    if (status == ATTUNE_OK)
        status = attune__pack_add(pack, &key, cubin, size);
    attune__free(&host->allocator, cubin);
    return status;
}

static attune_status pack_role(const attune__host *host, uint32_t architecture, const attune__program_desc *desc,
                               attune__cuda_role role, attune__pack *pack)
{
    attune__cuda_kernel kernel = {0};
    attune_status status = attune__cuda_specialise(&host->allocator, desc, architecture, role, &kernel);
    if (status == ATTUNE_OK)
        status = attune__cuda_pack_kernel(host, &kernel, pack);
    attune__free(&host->allocator, (void *)(uintptr_t)kernel.mods);
    return status;
}

static attune_status pack(const attune__host *host, uint32_t architecture, const attune__program_desc *desc,
                          attune__pack *pack)
{
    attune_status status = ATTUNE_OK;
    for (uint32_t role = 0; role < ATTUNE__CUDA_ROLES && status == ATTUNE_OK; role++)
        if (attune__cuda_has_role(desc, (attune__cuda_role)role))
            status = pack_role(host, architecture, desc, (attune__cuda_role)role, pack);
    return status;
}

attune_status attune__cuda_pack(const attune__host *host, const attune_limits *limits, const attune__program_desc *desc,
                                attune__pack *to)
{
    const attune__cuda_family *family = attune__cuda_family_find(desc->choice->kernel);
    if (family && family->has_fallback) {
        attune__decision decision;
        attune__program_desc second = *desc;
        second.choice = &decision.choice;
        second.variant = &decision.variant;
        ATTUNE__TRY(attune__cuda_fallback(limits, desc, &decision));
        ATTUNE__TRY(pack(host, limits->architecture, &second, to));
    }
    return pack(host, limits->architecture, desc, to);
}

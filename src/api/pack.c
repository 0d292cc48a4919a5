/* SPDX-License-Identifier: MIT */
/* Packs: kernels that are compiled without a device and loaded where there is no compiler. */
#include "api/api.h"

#include <stdio.h>

attune_status attune_pack_create(attune_instance *instance, attune_pack **pack)
{
    ATTUNE__TRY(attune__check_not_null(pack, "pack"));
    *pack = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    const attune_allocator *allocator = &instance->host.allocator;
    attune_pack *made = attune__alloc(allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = attune__pack_create(allocator, &made->content);
    if (status != ATTUNE_OK) {
        attune__free(allocator, made);
        return status;
    }
    made->instance = attune__instance_retain(instance);
    *pack = made;
    return ATTUNE_OK;
}

void attune_pack_destroy(attune_pack *pack)
{
    if (!pack)
        return;
    attune_instance *instance = pack->instance;
    attune__pack_destroy(pack->content);
    attune__free(&instance->host.allocator, pack);
    attune__instance_release(instance);
}

static attune_status add(attune_pack *pack, const attune_limits *limits, const attune_plan *plan)
{
    const attune__backend *backend = attune__backend_find(limits->backend);
    if (!backend)
        return ATTUNE_UNSUPPORTED;
    if (!backend->program_compile)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "packs do not support backend %s: it compiles no kernels, or only on its "
                            "device, and stores them in the cache",
                            backend->name);
    char who[32];
    snprintf(who, sizeof who, "backend %s", backend->name);
    ATTUNE__TRY(attune__plan_supported(plan, backend, who));
    if (plan->shape.segments > 1 && backend->merger_compile)
        ATTUNE__TRY(backend->merger_compile(&pack->instance->host, limits, pack->content));
    if (plan->shape.block_mask && backend->mask_compile)
        ATTUNE__TRY(backend->mask_compile(&pack->instance->host, limits, pack->content));
    attune__shape short_shape;
    attune__program_desc descs[ATTUNE__PLAN_PROGRAMS];
    const uint32_t count = attune__plan_programs(plan, &short_shape, descs);
    for (uint32_t i = 0; i < count; i++)
        ATTUNE__TRY(backend->program_compile(&pack->instance->host, limits, &descs[i], pack->content));
    return ATTUNE_OK;
}

attune_status attune_pack_add(attune_pack *pack, const attune_limits *limits, const attune_problem *problem,
                              const attune_kernel_options *options)
{
    ATTUNE__TRY(attune__check_not_null(pack, "pack"));
    ATTUNE__TRY(attune__check_not_null(limits, "limits"));
    ATTUNE__TRY(attune__check_not_null(problem, "problem"));
    attune_limits l;
    ATTUNE__TRY(attune__desc_read(&l, sizeof l, limits, sizeof l, "limits"));
    const attune_allocator *allocator = &pack->instance->host.allocator;
    attune_plan *plan = attune__alloc(allocator, 1, sizeof *plan);
    if (!plan)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune__plan_init(plan, &l, problem, options);
    if (status == ATTUNE_OK)
        status = add(pack, &l, plan);
    attune__plan_finish(plan);
    attune__free(allocator, plan);
    return status;
}

attune_status attune_pack_size(const attune_pack *pack, uint32_t *kernels, uint64_t *bytes)
{
    ATTUNE__TRY(attune__check_not_null(pack, "pack"));
    uint32_t entries;
    uint64_t size;
    attune__pack_measure(pack->content, &entries, &size);
    if (kernels)
        *kernels = entries;
    if (bytes)
        *bytes = size;
    return ATTUNE_OK;
}

attune_status attune_pack_write(const attune_pack *pack, const char *path)
{
    ATTUNE__TRY(attune__check_not_null(pack, "pack"));
    ATTUNE__TRY(attune__check_not_null(path, "path"));
    return attune__pack_write(pack->content, path);
}

attune_status attune_instance_pack_load(attune_instance *instance, const char *path)
{
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(path, "path"));
    return attune__packs_load(&instance->packs, &instance->host.allocator, path);
}

/* SPDX-License-Identifier: MIT */
/* Instances, status names and logging. */
#include "api/api.h"

#include <stdarg.h>
#include <stdio.h>

const char *attune_status_string(attune_status status)
{
    switch (status) {
    case ATTUNE_OK:
        return "ATTUNE_OK";
    case ATTUNE_INVALID_ARGUMENT:
        return "ATTUNE_INVALID_ARGUMENT";
    case ATTUNE_UNSUPPORTED:
        return "ATTUNE_UNSUPPORTED";
    case ATTUNE_UNAVAILABLE:
        return "ATTUNE_UNAVAILABLE";
    case ATTUNE_OUT_OF_HOST_MEMORY:
        return "ATTUNE_OUT_OF_HOST_MEMORY";
    case ATTUNE_OUT_OF_DEVICE_MEMORY:
        return "ATTUNE_OUT_OF_DEVICE_MEMORY";
    case ATTUNE_DEVICE_LOST:
        return "ATTUNE_DEVICE_LOST";
    case ATTUNE_COMPILE_FAILED:
        return "ATTUNE_COMPILE_FAILED";
    case ATTUNE_PARSE_ERROR:
        return "ATTUNE_PARSE_ERROR";
    case ATTUNE_DOES_NOT_FIT:
        return "ATTUNE_DOES_NOT_FIT";
    case ATTUNE_TIMEOUT:
        return "ATTUNE_TIMEOUT";
    case ATTUNE_IO:
        return "ATTUNE_IO";
    case ATTUNE_INTERNAL:
        return "ATTUNE_INTERNAL";
    case ATTUNE_CANCELLED:
        return "ATTUNE_CANCELLED";
    }
    return "ATTUNE_UNKNOWN";
}

attune_status attune__check_not_null(const void *argument, const char *name)
{
    return argument ? ATTUNE_OK : attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
}

void attune__log(const attune__host *host, attune_log_level level, const char *format, ...)
{
    if (!host->log || level > host->log_level)
        return;
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    host->log(host->log_user, level, message);
}

attune_status attune_instance_create(const attune_instance_desc *desc, attune_instance **instance)
{
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    *instance = NULL;
    attune_instance_desc d = {.struct_size = sizeof d};
    if (desc)
        ATTUNE__TRY(attune__desc_read(&d, sizeof d, desc, offsetof(attune_instance_desc, cache_folder), "desc"));
    if (!d.allocator.alloc != !d.allocator.release)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.allocator has %s but no %s: set both or neither",
                            d.allocator.alloc ? "alloc" : "release", d.allocator.alloc ? "release" : "alloc");
    if ((unsigned)d.log_level > ATTUNE_LOG_DEBUG)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.log_level is %d, expected 0 to %d", (int)d.log_level,
                            ATTUNE_LOG_DEBUG);
    if (d.cpu_threads > 4096)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.cpu_threads is %u, the limit is 4096; 0 uses every core",
                            d.cpu_threads);
    if (d.compile_threads > 64)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.compile_threads is %u, the limit is 64; 0 starts none",
                            d.compile_threads);
    attune_allocator allocator = d.allocator.alloc ? d.allocator : attune__default_allocator;
    attune_instance *made = attune__alloc(&allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    atomic_init(&made->references, 1);
    made->host = (attune__host){
        .allocator = allocator,
        .log = d.log,
        .log_user = d.log_user,
        .log_level = d.log_level ? d.log_level : ATTUNE_LOG_WARNING,
        .cpu_threads = d.cpu_threads,
        .compile_threads = d.compile_threads,
        .parallel_for = d.parallel_for,
    };
    made->host.packs = &made->packs;
    made->host.cache = attune__cache_open(&(attune__cache_desc){
        .allocator = allocator,
        .log = d.log,
        .log_user = d.log_user,
        .log_level = made->host.log_level,
        .folder = d.cache_folder,
    });
    *instance = made;
    return ATTUNE_OK;
}

attune_instance *attune__instance_retain(attune_instance *instance)
{
    atomic_fetch_add_explicit(&instance->references, 1, memory_order_relaxed);
    return instance;
}

void attune__instance_release(attune_instance *instance)
{
    if (atomic_fetch_sub_explicit(&instance->references, 1, memory_order_acq_rel) != 1)
        return;
    attune_allocator allocator = instance->host.allocator;
    attune__cache_close(instance->host.cache);
    attune__packs_finish(&instance->packs, &allocator);
    attune__free(&allocator, instance);
}

void attune_instance_destroy(attune_instance *instance)
{
    if (instance)
        attune__instance_release(instance);
}

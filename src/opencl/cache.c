/* SPDX-License-Identifier: MIT */
/*
 * Binaries of programs in the host's disk cache. Drivers build damaged ones without complaint: the entries have
 * checksums of their own.
 */
#include "opencl/program.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/digest.h"

#define KIND          "opencl-program"
#define IDENTITY_SIZE 320
#define MOST_BINARY   ((size_t)64 << 20)

/* From a cryptographic digest: nobody can construct an expression whose kernel collides with another's. */
attune__hash attune__opencl_hash(const char *source, const char *options)
{
    attune__digest digest = attune__digest_begin();
    attune__digest_add(&digest, source, strlen(source) + 1);
    attune__digest_add(&digest, options, strlen(options) + 1);
    return attune__digest_key(&digest);
}

static attune__cache_key key_of(const attune__opencl_device *device, attune__hash hash, char identity[IDENTITY_SIZE])
{
    const int length = snprintf(identity, IDENTITY_SIZE, "attune %u | %s", attune_version(), device->identity);
    return (attune__cache_key){KIND, hash, identity, (size_t)length};
}

attune__cl_program attune__opencl_cache_get(attune__opencl_device *device, attune__hash hash, const char *options)
{
    const attune__opencl_driver *driver = &device->driver;
    char identity[IDENTITY_SIZE];
    const attune__cache_key key = key_of(device, hash, identity);
    void *data = NULL;
    size_t size = 0;
    if (!attune__cache_get(device->base.host.cache, &key, &data, &size))
        return NULL;
    const unsigned char *binary = data;
    int32_t status = CL_SUCCESS, error = CL_SUCCESS;
    attune__cl_program program =
        driver->program_binary(device->context, 1, &device->device, &size, &binary, &status, &error);
    attune__free(&device->base.host.allocator, data);
    if (program && !error && !status &&
        driver->program_build(program, 1, &device->device, options, NULL, NULL) == CL_SUCCESS)
        return program;
    if (program)
        driver->program_release(program);
    return NULL;
}

/* PoCL before version 6 is not asked for binaries: it ends the process where another queue runs the kernel meanwhile,
 * for the reason that attune__opencl_launch gives. It has a cache of its own. */
void attune__opencl_cache_put(attune__opencl_device *device, attune__hash hash, attune__cl_program program)
{
    const attune__opencl_driver *driver = &device->driver;
    const attune_allocator *allocator = &device->base.host.allocator;
    size_t size = 0;
    if (!device->base.host.cache || device->many || device->early_pocl ||
        driver->program_info(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) != CL_SUCCESS || !size ||
        size > MOST_BINARY)
        return;
    unsigned char *binary = attune__alloc_raw(allocator, size, 1);
    if (binary && driver->program_info(program, CL_PROGRAM_BINARIES, sizeof(void *), &binary, NULL) == CL_SUCCESS) {
        char identity[IDENTITY_SIZE];
        const attune__cache_key key = key_of(device, hash, identity);
        attune__cache_put(device->base.host.cache, &key, binary, size);
    }
    attune__free(allocator, binary);
}

/* SPDX-License-Identifier: MIT */
/* Devices: enumeration, limits, contexts; the backend's table. */
#include "opencl/opencl.h"

#include <attune/opencl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"

#define MOST_PLATFORMS 32
#define MOST_DEVICES   64
#define NOTHING_BYTES  4096
#define LEAST_LOCAL    16384
#define MOST_TEXT      8192 /* bytes of a driver's name, version or extensions */

/* ----------------------------------------------------------------------------------------------------------- limits */

/* A device of the enumeration. */
typedef struct found {
    attune__cl_platform platform;
    attune__cl_device device;
    uint64_t type;
    attune_device_info info;
    uint64_t float_config;
    size_t argument_size;
    bool unified;
    bool subgroups;          /* the driver names them, with shuffles */
    uint32_t least_subgroup; /* of those that it lists; 0 = it lists none */
} found;

static uint64_t ask(const attune__opencl_driver *driver, attune__cl_device device, uint32_t name, size_t size)
{
    uint64_t value = 0;
    uint32_t narrow = 0;
    if (size == sizeof narrow)
        return driver->device_info(device, name, size, &narrow, NULL) == CL_SUCCESS ? narrow : 0;
    return driver->device_info(device, name, size, &value, NULL) == CL_SUCCESS ? value : 0;
}

static uint32_t ask32(const attune__opencl_driver *driver, attune__cl_device device, uint32_t name)
{
    return (uint32_t)ask(driver, device, name, sizeof(uint32_t));
}

static uint32_t fit32(uint64_t value)
{
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

/* Drivers give a text whole or not at all: here its beginning is kept. */
static void keep_text(char all[MOST_TEXT], int32_t error, char *text, size_t size)
{
    all[MOST_TEXT - 1] = '\0';
    snprintf(text, size, "%s", error == CL_SUCCESS ? all : "");
}

static void ask_text(const attune__opencl_driver *driver, attune__cl_device device, uint32_t name, char *text,
                     size_t size)
{
    char all[MOST_TEXT] = "";
    keep_text(all, driver->device_info(device, name, sizeof all, all, NULL), text, size);
}

static void ask_platform(const attune__opencl_driver *driver, attune__cl_platform platform, uint32_t name, char *text,
                         size_t size)
{
    char all[MOST_TEXT] = "";
    keep_text(all, driver->platform_info(platform, name, sizeof all, all, NULL), text, size);
}

static bool has_extension(const char *all, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = all; (at = strstr(at, name)); at += length)
        if ((at == all || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
            return true;
    return false;
}

static uint32_t group_limit(const attune__opencl_driver *driver, attune__cl_device device)
{
    size_t most = 0, sizes[8] = {0};
    if (driver->device_info(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof most, &most, NULL) != CL_SUCCESS)
        return 0;
    if (driver->device_info(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, NULL) == CL_SUCCESS &&
        sizes[0] && sizes[0] < most)
        most = sizes[0];
    return most > 1u << 16 ? 1u << 16 : (uint32_t)most;
}

/* "1.2 ..." as 102, also where the process's locale has another decimal point; 0: no number. */
static unsigned long version_of(const char *text)
{
    char *end;
    const unsigned long major = strtoul(text, &end, 10), minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
    return 100 * major + (minor < 100 ? minor : 99);
}

/* 0: another driver. */
static unsigned long pocl_version(const attune_device_info *info)
{
    static const char name[] = "Portable Computing Language ";
    return strncmp(info->driver, name, sizeof name - 1) ? 0 : version_of(info->driver + sizeof name - 1);
}

/* The own way of PoCL 5 and 6 to make loops of a workgroup: 5.0 ends the process while it compiles some kernels with
 * barriers, 6.0 compiles some wrong, one time in ten and not the next. */
static bool compiles_wrong(const attune_device_info *info)
{
    const unsigned long version = pocl_version(info);
    const char *method = getenv("POCL_WORK_GROUP_METHOD");
    return version >= 500 && version < 700 && (!method || strcmp(method, "cbs") != 0);
}

/* Why the kernels cannot run; NULL = they can. */
static const char *why_not(const attune__opencl_driver *driver, const found *f, char *text, size_t size)
{
    char version[128] = "";
    ask_text(driver, f->device, CL_DEVICE_VERSION, version, sizeof version);
    if (strncmp(version, "OpenCL ", 7) != 0 || version_of(version + 7) < 102) {
        snprintf(text, size, "%.60s: the kernels need OpenCL 1.2", version);
        return text;
    }
    if (!ask32(driver, f->device, CL_DEVICE_AVAILABLE))
        return "its driver says that it is not available";
    if (!ask32(driver, f->device, CL_DEVICE_COMPILER_AVAILABLE))
        return "its driver has no compiler";
    if (compiles_wrong(&f->info))
        return "PoCL 5 and 6 compile some kernels wrong or end the process meanwhile: set POCL_WORK_GROUP_METHOD=cbs "
               "in "
               "the environment, or install PoCL 7";
    if (!ask32(driver, f->device, CL_DEVICE_ENDIAN_LITTLE))
        return "its bytes are in the other order";
    if (!(f->float_config & CL_FP_INF_NAN))
        return "its floats have no infinities and NaN";
    if (f->info.limits.shared_memory < LEAST_LOCAL) {
        snprintf(text, size, "it has %u bytes of local memory, the smallest kernel needs %u",
                 f->info.limits.shared_memory, (unsigned)LEAST_LOCAL);
        return text;
    }
    if (f->argument_size < ATTUNE__OPENCL_ARGUMENTS) {
        snprintf(text, size, "its kernels take %zu bytes of arguments, attune's have up to %d", f->argument_size,
                 ATTUNE__OPENCL_ARGUMENTS);
        return text;
    }
    return NULL;
}

/* Of a driver that runs on the CPU: the floats of a vector in one item, or items that are the lanes of a vector. */
static void fill_lanes(const attune__opencl_driver *driver, attune__cl_device device, const char *extensions,
                       attune_limits *limits)
{
    const uint32_t width = ask32(driver, device, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT);
    const size_t lanes = ask(driver, device, CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, sizeof(size_t));
    limits->subgroup_size = width;
    if (width < 4 && (lanes == 4 || lanes == 8) && has_extension(extensions, "cl_khr_subgroup_shuffle")) {
        limits->subgroup_size = (uint32_t)lanes;
        limits->subgroup_operations = true;
    }
}

/* Compilers of some drivers take one of several widths for each kernel. */
static uint32_t least_subgroup(const attune__opencl_driver *driver, attune__cl_device device)
{
    size_t sizes[16] = {0}, bytes = 0, least = 0;
    if (driver->device_info(device, CL_DEVICE_SUB_GROUP_SIZES_INTEL, sizeof sizes, sizes, &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof sizes[0] && i < 16; i++)
        least = !least || sizes[i] < least ? sizes[i] : least;
    return fit32(least);
}

static void fill_info(const attune__opencl_driver *driver, found *f)
{
    attune_device_info *info = &f->info;
    char extensions[MOST_TEXT], platform[64], version[64];
    *info = (attune_device_info){.struct_size = sizeof *info, .backend = ATTUNE_BACKEND_OPENCL, .available = true};
    ask_text(driver, f->device, CL_DEVICE_NAME, info->name, sizeof info->name);
    ask_text(driver, f->device, CL_DRIVER_VERSION, version, sizeof version);
    ask_text(driver, f->device, CL_DEVICE_EXTENSIONS, extensions, sizeof extensions);
    ask_platform(driver, f->platform, CL_PLATFORM_NAME, platform, sizeof platform);
    snprintf(info->driver, sizeof info->driver, "%s %s", platform, version);
    uint8_t uuid[16];
    if (has_extension(extensions, "cl_khr_device_uuid") &&
        driver->device_info(f->device, CL_DEVICE_UUID_KHR, sizeof uuid, uuid, NULL) == CL_SUCCESS)
        for (size_t i = 0; i < sizeof uuid; i++)
            snprintf(info->uuid + 2 * i, 3, "%02x", uuid[i]);
    f->type = ask(driver, f->device, CL_DEVICE_TYPE, sizeof(uint64_t));
    f->float_config = ask(driver, f->device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(uint64_t));
    f->unified = ask32(driver, f->device, CL_DEVICE_HOST_UNIFIED_MEMORY);
    f->argument_size = (size_t)ask(driver, f->device, CL_DEVICE_MAX_PARAMETER_SIZE, sizeof(size_t));
    const uint32_t units = ask32(driver, f->device, CL_DEVICE_MAX_COMPUTE_UNITS);
    const bool nvidia = has_extension(extensions, "cl_nv_device_attribute_query");
    info->limits = (attune_limits){
        .struct_size = sizeof info->limits,
        .backend = ATTUNE_BACKEND_OPENCL,
        .compute_units = units ? units : 1,
        .shared_memory = fit32(ask(driver, f->device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(uint64_t))),
        .workgroup_invocations = group_limit(driver, f->device),
        .registers = nvidia ? ask32(driver, f->device, CL_DEVICE_REGISTERS_PER_BLOCK_NV) : 0,
        .subgroup_size = nvidia ? ask32(driver, f->device, CL_DEVICE_WARP_SIZE_NV) : 0,
        .f16 = has_extension(extensions, "cl_khr_fp16"),
        .storage_range = ask(driver, f->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(uint64_t)),
        .memory = ask(driver, f->device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(uint64_t)),
        .host = (f->type & CL_DEVICE_TYPE_CPU) != 0,
    };
    f->subgroups =
        has_extension(extensions, "cl_khr_subgroups") && has_extension(extensions, "cl_khr_subgroup_shuffle");
    if (f->subgroups && has_extension(extensions, "cl_intel_required_subgroup_size"))
        f->least_subgroup = least_subgroup(driver, f->device);
    if (info->limits.host)
        fill_lanes(driver, f->device, extensions, &info->limits);
    char text[200];
    const char *why = why_not(driver, f, text, sizeof text);
    info->available = !why;
    snprintf(info->reason, sizeof info->reason, "%s", why ? why : "");
}

/* ------------------------------------------------------------------------------------------------------ enumeration */

/* Usable devices first, then GPUs, then what is neither GPU nor CPU. */
static uint32_t rank(const found *f)
{
    const uint32_t order = f->type & CL_DEVICE_TYPE_GPU ? 0 : f->type & CL_DEVICE_TYPE_CPU ? 2 : 1;
    return order + (f->info.available ? 0 : 4);
}

/* Keeps `list` in order of rank, the loader's order within one. */
static void insert(found *list, uint32_t *count, const found *one)
{
    uint32_t at = (*count)++;
    for (; at > 0 && rank(&list[at - 1]) > rank(one); at--)
        list[at] = list[at - 1];
    list[at] = *one;
}

/* The errors of an enumeration, beside its devices. */
typedef struct enumeration {
    uint32_t platforms;
    const char *call; /* that failed last, where the driver does not just say that there is nothing */
    int32_t error;
} enumeration;

static void keep_error(enumeration *e, const char *call, int32_t error, int32_t nothing)
{
    if (error != CL_SUCCESS && error != nothing) {
        e->call = call;
        e->error = error;
    }
}

/* The devices of all platforms in list, of MOST_DEVICES. *e tells why there is none. */
static void enumerate(const attune__opencl_driver *driver, found *list, uint32_t *count, enumeration *e)
{
    attune__cl_platform platforms[MOST_PLATFORMS];
    *count = 0;
    *e = (enumeration){.call = NULL};
    int32_t error = driver->platforms(MOST_PLATFORMS, platforms, &e->platforms);
    keep_error(e, "clGetPlatformIDs", error, CL_PLATFORM_NOT_FOUND_KHR);
    if (error != CL_SUCCESS)
        e->platforms = 0;
    if (e->platforms > MOST_PLATFORMS)
        e->platforms = MOST_PLATFORMS;
    for (uint32_t p = 0; p < e->platforms; p++) {
        attune__cl_device devices[MOST_DEVICES];
        uint32_t here = 0;
        error = driver->devices(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &here);
        keep_error(e, "clGetDeviceIDs", error, CL_DEVICE_NOT_FOUND);
        if (error != CL_SUCCESS)
            continue;
        for (uint32_t d = 0; d < here && d < MOST_DEVICES && *count < MOST_DEVICES; d++) {
            found one = {.platform = platforms[p], .device = devices[d]};
            fill_info(driver, &one);
            insert(list, count, &one);
        }
    }
    for (uint32_t i = 0; i < *count; i++)
        snprintf(list[i].info.id, sizeof list[i].info.id, "opencl:%u", i);
}

static attune_status device_count(const attune__host *host, uint32_t *count, char *reason, size_t reason_size)
{
    attune__opencl_driver driver;
    *count = 0;
    if (!attune__opencl_driver_open(&driver, reason, reason_size))
        return ATTUNE_OK;
    found *list = attune__alloc(&host->allocator, MOST_DEVICES, sizeof *list);
    enumeration e = {.call = NULL};
    if (list)
        enumerate(&driver, list, count, &e);
    if (!*count && e.call)
        snprintf(reason, reason_size, "%s gave %s (%d)", e.call, attune__opencl_error_name(e.error), e.error);
    else if (!*count && !e.platforms)
        snprintf(reason, reason_size,
                 "the OpenCL loader finds no driver: install NVIDIA's or such as pocl-opencl-icd, mesa-opencl-icd or "
                 "intel-opencl-icd");
    else if (!*count)
        snprintf(reason, reason_size, "the OpenCL loader has %u platform%s, without a device", e.platforms,
                 e.platforms > 1 ? "s" : "");
    attune__opencl_driver_close(&driver);
    const bool made = list != NULL;
    attune__free(&host->allocator, list);
    return made ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
}

static attune_status find_device(const attune__host *host, attune__opencl_driver *driver, uint32_t index, found *one)
{
    char reason[256];
    if (!attune__opencl_driver_open(driver, reason, sizeof reason))
        return attune__fail(ATTUNE_UNAVAILABLE, "opencl:%u: %s", index, reason);
    found *list = attune__alloc(&host->allocator, MOST_DEVICES, sizeof *list);
    attune_status status = list ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
    if (list) {
        uint32_t count;
        enumeration e;
        enumerate(driver, list, &count, &e);
        if (index < count)
            *one = list[index];
        else if (e.call)
            status = attune__fail(ATTUNE_UNAVAILABLE, "opencl:%u: %s gave %s (%d)", index, e.call,
                                  attune__opencl_error_name(e.error), e.error);
        else
            status =
                attune__fail(ATTUNE_UNAVAILABLE, "opencl:%u: the OpenCL loader lists %u devices now", index, count);
        attune__free(&host->allocator, list);
    }
    if (status != ATTUNE_OK)
        attune__opencl_driver_close(driver);
    return status;
}

static attune_status device_describe(const attune__host *host, uint32_t index, attune_device_info *info)
{
    attune__opencl_driver driver;
    found one;
    ATTUNE__TRY(find_device(host, &driver, index, &one));
    *info = one.info;
    attune__opencl_driver_close(&driver);
    return ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- devices */

static void discard_device(attune__opencl_device *device)
{
    const attune_allocator allocator = device->base.host.allocator;
    attune__opencl_queue_finish(&device->queue);
    if (device->nothing)
        device->driver.memory_release(device->nothing);
    if (device->context)
        device->driver.context_release(device->context);
    attune__opencl_driver_close(&device->driver);
    attune__free(&allocator, device);
}

static void device_close(attune_device *device)
{
    discard_device(attune__opencl_of(device));
}

/* Programs are kept for one driver of one device: of names and versions, which can be long, all characters count. */
static void identify(attune__opencl_device *device)
{
    static const uint32_t names[] = {CL_DEVICE_NAME, CL_DEVICE_VERSION, CL_DRIVER_VERSION},
                          platform[] = {CL_PLATFORM_NAME, CL_PLATFORM_VERSION};
    char text[MOST_TEXT];
    attune__hash hash = attune__hash_begin();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ask_text(&device->driver, device->device, names[i], text, sizeof text);
        attune__hash_bytes(&hash, text, strlen(text));
    }
    for (size_t i = 0; i < sizeof platform / sizeof platform[0]; i++) {
        ask_platform(&device->driver, device->platform, platform[i], text, sizeof text);
        attune__hash_bytes(&hash, text, strlen(text));
    }
    snprintf(device->identity, sizeof device->identity, "%.90s | %.90s | %016llx%016llx", device->base.info.name,
             device->base.info.driver, (unsigned long long)hash.lane[0], (unsigned long long)hash.lane[1]);
}

static void take_found(attune__opencl_device *device, const found *one)
{
    device->platform = one->platform;
    device->device = one->device;
    device->base.info = one->info;
    device->fma = (one->float_config & CL_FP_FMA) != 0;
    device->round_div = (one->float_config & CL_FP_CORRECTLY_ROUNDED) != 0;
    device->unified = one->unified;
    const unsigned long pocl = pocl_version(&one->info);
    device->early_pocl = pocl > 0 && pocl < 600;
    identify(device);
}

/* The parts that need the context: a queue, an object of zeros, and what a kernel finds. */
static attune_status finish_device(attune__opencl_device *device, const found *one, attune__cl_queue lent)
{
    static const char zeros[NOTHING_BYTES];
    int32_t error = CL_SUCCESS;
    ATTUNE__TRY(attune__opencl_queue_init(device, &device->queue, lent));
    device->nothing = device->driver.memory_create(device->context, CL_MEM_READ_WRITE, sizeof zeros, NULL, &error);
    if (!device->nothing)
        return attune__opencl_check(device, error ? error : CL_OUT_OF_HOST_MEMORY, "a buffer");
    attune__opencl_call call;
    attune__opencl_begin(&device->queue, &call);
    attune__opencl_write(&call, device->nothing, 0, zeros, sizeof zeros);
    ATTUNE__TRY(attune__opencl_finish(&call));
    /* Of a driver on the CPU only where its lanes shuffle: others are vectors, and their subgroup the whole workgroup.
     */
    if (one->subgroups && (!one->info.limits.host || one->info.limits.subgroup_operations))
        return attune__opencl_subgroups_probe(device, one->least_subgroup);
    return ATTUNE_OK;
}

static attune_status make_device(const attune__host *host, attune__opencl_device **device)
{
    attune__opencl_device *made = attune__alloc(&host->allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.backend = &attune__opencl_backend;
    made->base.host = *host;
    made->base.queue = &made->queue.base;
    made->queue.base.device = &made->base;
    atomic_init(&made->base.lost, false);
    *device = made;
    return ATTUNE_OK;
}

static attune_status create_context(attune__opencl_device *device)
{
    const intptr_t properties[] = {CL_CONTEXT_PLATFORM, (intptr_t)device->platform, 0};
    int32_t error = CL_SUCCESS;
    device->context = device->driver.context_create(properties, 1, &device->device, NULL, NULL, &error);
    return device->context ? ATTUNE_OK
                           : attune__fail(ATTUNE_UNAVAILABLE, "device %s: clCreateContext gave %s (%d)",
                                          device->base.info.id, attune__opencl_error_name(error), error);
}

static attune_status device_open(const attune__host *host, uint32_t index, attune_device **device)
{
    attune__opencl_device *made;
    found one;
    ATTUNE__TRY(make_device(host, &made));
    attune_status status = find_device(host, &made->driver, index, &one);
    if (status == ATTUNE_OK) {
        take_found(made, &one);
        if (!one.info.available)
            status = attune__fail(ATTUNE_UNAVAILABLE, "opencl:%u: %s", index, one.info.reason);
    }
    if (status == ATTUNE_OK)
        status = create_context(made);
    if (status == ATTUNE_OK)
        status = finish_device(made, &one, NULL);
    if (status == ATTUNE_OK)
        *device = &made->base;
    else
        discard_device(made);
    return status;
}

static attune_status check_queue(attune__opencl_device *device, attune__cl_queue queue)
{
    const attune__opencl_driver *driver = &device->driver;
    attune__cl_context context = NULL;
    attune__cl_device of = NULL;
    if (!queue || (!driver->queue_info(queue, CL_QUEUE_CONTEXT, sizeof(void *), &context, NULL) &&
                   !driver->queue_info(queue, CL_QUEUE_DEVICE, sizeof(void *), &of, NULL) &&
                   context == device->context && of == device->device))
        return ATTUNE_OK;
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "the queue is not one of this context and device");
}

attune_status attune__opencl_queue_wrap(attune_device *device, void *handle, attune_queue **queue)
{
    attune__opencl_device *mine = attune__opencl_of(device);
    ATTUNE__TRY(check_queue(mine, handle));
    attune__opencl_queue *made = attune__alloc(&device->host.allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = attune__opencl_queue_init(mine, made, handle);
    if (status == ATTUNE_OK)
        *queue = &made->base;
    else
        attune__free(&device->host.allocator, made);
    return status;
}

/* Whether the device is one of the context's, which may have others. */
static attune_status check_context(attune__opencl_device *device)
{
    attune__cl_device devices[MOST_DEVICES];
    size_t bytes = 0;
    if (device->driver.context_info(device->context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes))
        bytes = 0; /* the driver does not say */
    const size_t count = bytes / sizeof(void *);
    bool one_of = !count;
    for (size_t i = 0; i < count && i < MOST_DEVICES; i++)
        one_of = one_of || devices[i] == device->device;
    device->many = count != 1;
    return one_of ? ATTUNE_OK
                  : attune__fail(ATTUNE_INVALID_ARGUMENT,
                                 "desc.device, %s, is not one of desc.context: create the context with it",
                                 device->base.info.name);
}

/* Takes the caller's context and device; the context is retained. */
static attune_status take_external(attune__opencl_device *device, const attune_opencl_device_desc *desc)
{
    const attune__opencl_driver *driver = &device->driver;
    found one = {.device = desc->device};
    if (driver->device_info(one.device, CL_DEVICE_PLATFORM, sizeof(void *), &one.platform, NULL) ||
        driver->context_retain(desc->context))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.context or desc.device is no object of this OpenCL loader");
    device->context = desc->context;
    fill_info(driver, &one);
    snprintf(one.info.id, sizeof one.info.id, "opencl");
    take_found(device, &one);
    if (!one.info.available)
        return attune__fail(ATTUNE_UNAVAILABLE, "opencl: %s", one.info.reason);
    ATTUNE__TRY(check_context(device));
    ATTUNE__TRY(check_queue(device, desc->queue));
    return finish_device(device, &one, desc->queue);
}

static attune_status device_open_external(const attune__host *host, const void *desc, attune_device **device)
{
    attune__opencl_device *made;
    char reason[256];
    ATTUNE__TRY(make_device(host, &made));
    attune_status status = attune__opencl_driver_open(&made->driver, reason, sizeof reason)
                               ? take_external(made, desc)
                               : attune__fail(ATTUNE_UNAVAILABLE, "opencl: %s", reason);
    if (status == ATTUNE_OK)
        *device = &made->base;
    else
        discard_device(made);
    return status;
}

static void device_handles(const attune_device *device, void *handles)
{
    const attune__opencl_device *mine = attune__opencl_of(device);
    attune_opencl_device_desc *h = handles;
    h->context = mine->context;
    h->device = mine->device;
    h->queue = mine->queue.handle;
}

const attune__backend attune__opencl_backend = {
    .kind = ATTUNE_BACKEND_OPENCL,
    .name = "opencl",
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .open_external = device_open_external,
    .handles = device_handles,
    .close = device_close,
    .measure = attune__opencl_measure,
    .buffer_create = attune__opencl_buffer_create,
    .buffer_wrap_device_name = "attune_opencl_buffer_wrap",
    .buffer_wrap_device = attune__opencl_buffer_wrap_device,
    .buffer_destroy = attune__opencl_buffer_destroy,
    .buffer_write = attune__opencl_buffer_write,
    .buffer_read = attune__opencl_buffer_read,
    .mask_upload = attune__opencl_mask_upload,
    .mask_release = attune__opencl_mask_release,
    .mask_create_tensor = attune__opencl_mask_create_tensor,
    .mask_update = attune__opencl_mask_update,
    .programs_create = attune__opencl_programs_create,
    .program_destroy = attune__opencl_program_destroy,
    .forward = attune__opencl_forward,
    .decode = attune__opencl_decode,
    .schedule_size = attune__opencl_schedule_size,
    .schedule = attune__opencl_schedule,
    .append = attune__opencl_append,
    .backward = attune__opencl_backward,
    .merger_create = attune__opencl_merger_create,
    .merger_destroy = attune__opencl_merger_destroy,
    .merge = attune__opencl_merge,
    .merge_backward = attune__opencl_merge_backward,
    .queue_wrap = attune__opencl_queue_wrap,
    .queue_destroy = attune__opencl_queue_destroy,
    .copy = attune__opencl_copy,
    .wait = attune__opencl_wait,
    .missing_reason = "the OpenCL backend has no kernel for that",
};

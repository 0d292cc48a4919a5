/* SPDX-License-Identifier: MIT */
/*
 * The model as a driver: libcuda.so.1 whose device is the machine. ATTUNE_MODEL_ARCHITECTURE is the device's compute
 * capability: 80, 86, 90, 100 or 120. Everything is done when a call returns, so that events have no state, and streams
 * have one only while they capture (graphs.c).
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "tests/model/graphs.h"
#include "tests/model/model.h"

#define CU_LAUNCH_FAILED       719
#define CU_CAPTURE_UNSUPPORTED 900

typedef struct function {
    loaded *from;
    char name[128];
    int ctas; /* of a cluster, if the launch does not say */
    void *entry[MODEL_CTAS];
    void (*enter[MODEL_CTAS])(void *function, void **parameters);
    size_t sizes[MODEL_PARAMETERS]; /* of its parameters */
    int count;
} function;

#define DECLARE(name, symbol, parameters) int symbol parameters;
ATTUNE__CUDA_FUNCTIONS(DECLARE)

static int some_object, contexts[2];

/* ATTUNE_MODEL_DEVICES: 1 or 2, whose memory is the same. */
static int devices(void)
{
    const char *text = getenv("ATTUNE_MODEL_DEVICES");
    return text && atoi(text) == 2 ? 2 : 1;
}

static int architecture(void)
{
    const char *text = getenv("ATTUNE_MODEL_ARCHITECTURE");
    return text ? atoi(text) : 80;
}

bool model_has_tensor_memory(void)
{
    return architecture() == 100 || architecture() == 103;
}

/* ---------------------------------------------------------------------------------------------------------- devices */

int cuInit(unsigned flags)
{
    (void)flags;
    return CU_SUCCESS;
}
int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CU_SUCCESS;
}
/* The fault, where a launch has found one. */
int cuGetErrorName(int error, const char **name)
{
    *name = error == CU_LAUNCH_FAILED && model_fault[0] ? model_fault
            : error == CU_OUT_OF_MEMORY                 ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                        : "CUDA_ERROR";
    return CU_SUCCESS;
}
int cuDeviceGetCount(int *count)
{
    *count = devices();
    return CU_SUCCESS;
}
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= devices() ? 101 : CU_SUCCESS;
}
int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    snprintf(name, (size_t)size, "model of sm_%d", architecture());
    return CU_SUCCESS;
}
int cuDeviceGetUuid(attune__cu_uuid *uuid, int device)
{
    memset(uuid->bytes, 11 + device, sizeof uuid->bytes);
    return CU_SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 31;
    return CU_SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    const int sm = architecture();
    const bool small = sm == 86 || sm == 89 || sm == 120;
    const int unit = sm == 80 ? 164 : small ? 100 : 228; /* KiB of shared memory of a compute unit */
    switch (attribute) {
    case CU_COMPUTE_CAPABILITY_MAJOR:
        *value = sm / 10;
        break;
    case CU_COMPUTE_CAPABILITY_MINOR:
        *value = sm % 10;
        break;
    case CU_MAX_THREADS_PER_BLOCK:
        *value = MODEL_THREADS;
        break;
    case CU_WARP_SIZE:
        *value = 32;
        break;
    case CU_MULTIPROCESSOR_COUNT:
        *value = 4; /* few: the threads of one CTA run at a time */
        break;
    case CU_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = small ? 1536 : 2048;
        break;
    case CU_MAX_REGISTERS_PER_MULTIPROCESSOR:
        *value = 65536;
        break;
    case CU_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = unit << 10;
        break;
    case CU_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 48 << 10;
        break;
    case CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = (unit - 1) << 10;
        break;
    case CU_RESERVED_SHARED_MEMORY_PER_BLOCK:
        *value = 1 << 10;
        break;
    default:
        return 1;
    }
    return CU_SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts[device];
    return CU_SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return CU_SUCCESS;
}
static _Thread_local void *current[16];
static _Thread_local unsigned depth;

int cuCtxPushCurrent_v2(void *context)
{
    if (context != &contexts[0] && context != &contexts[1])
        return CU_INVALID_CONTEXT;
    current[depth++ % 16] = context;
    return CU_SUCCESS;
}
int cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return CU_INVALID_CONTEXT;
    *context = current[--depth % 16];
    return CU_SUCCESS;
}
bool model_has_context(void)
{
    return depth > 0;
}
int cuCtxGetDevice(int *device)
{
    *device = depth && current[(depth - 1) % 16] == &contexts[1];
    return CU_SUCCESS;
}

/* ----------------------------------------------------------------------------------------------------------- memory */

/* The machine and its list of buffers are one for all threads: a kernel runs while no other thread changes them. */
static pthread_mutex_t machine = PTHREAD_MUTEX_INITIALIZER;

int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
    pthread_mutex_lock(&machine);
    void *memory = model_allocate(size);
    pthread_mutex_unlock(&machine);
    *pointer = (unsigned long long)(uintptr_t)memory;
    return memory ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}
int cuMemFree_v2(unsigned long long pointer)
{
    pthread_mutex_lock(&machine);
    model_release((void *)(uintptr_t)pointer);
    pthread_mutex_unlock(&machine);
    return CU_SUCCESS;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream)
{
    if (model_stream_captures(stream))
        return CU_CAPTURE_UNSUPPORTED;
    memcpy((void *)(uintptr_t)to, from, size);
    return CU_SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream)
{
    if (model_stream_captures(stream))
        return CU_CAPTURE_UNSUPPORTED;
    memcpy(to, (const void *)(uintptr_t)from, size);
    return CU_SUCCESS;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t size, void *stream)
{
    if (model_stream_captures(stream))
        return model_capture_copy(stream, to, from, size);
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    return CU_SUCCESS;
}

int cuMemcpyPeerAsync(unsigned long long to, void *to_context, unsigned long long from, void *from_context, size_t size,
                      void *stream)
{
    if (model_stream_captures(stream))
        return CU_CAPTURE_UNSUPPORTED;
    if (to_context == from_context)
        return CU_INVALID_CONTEXT;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    return CU_SUCCESS;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return CU_SUCCESS;
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer)
{
    (void)attribute, (void)device, (void)peer;
    *value = 1;
    return CU_SUCCESS;
}
int cuCtxEnablePeerAccess(void *peer, unsigned flags)
{
    (void)flags;
    return peer ? CU_SUCCESS : CU_INVALID_CONTEXT;
}

/* Of cuMemAlloc, the only one here. */
int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer)
{
    (void)pointer;
    if (attribute == CU_POINTER_LEGACY_IPC)
        *(int *)value = 1;
    else
        *(void **)value = NULL;
    return CU_SUCCESS;
}
int cuMemGetAccess(unsigned long long *flags, const attune__cu_location *location, attune__cu_pointer pointer)
{
    (void)location, (void)pointer;
    *flags = 0;
    return CU_INVALID_VALUE;
}
int cuMemPoolGetAccess(int *flags, void *pool, attune__cu_location *location)
{
    (void)pool, (void)location;
    *flags = 0;
    return CU_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------- streams and events */

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return CU_SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    return model_stream_create(stream);
}
int cuStreamDestroy_v2(void *stream)
{
    return model_stream_destroy(stream);
}
int cuStreamSynchronize(void *stream)
{
    return model_stream_captures(stream) ? CU_CAPTURE_UNSUPPORTED : CU_SUCCESS;
}
int cuStreamIsCapturing(void *stream, int *status)
{
    *status = model_stream_captures(stream);
    return CU_SUCCESS;
}
int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = &some_object;
    return CU_SUCCESS;
}
int cuEventDestroy_v2(void *event)
{
    (void)event;
    return CU_SUCCESS;
}
int cuEventRecord(void *event, void *stream)
{
    (void)event;
    (void)stream;
    return CU_SUCCESS;
}
int cuEventQuery(void *event)
{
    (void)event;
    return CU_SUCCESS;
}
int cuEventSynchronize(void *event)
{
    (void)event;
    return CU_SUCCESS;
}
int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    (void)start;
    (void)end;
    *milliseconds = 1;
    return CU_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

static int find_segments(struct dl_phdr_info *info, size_t size, void *user)
{
    loaded *l = user;
    (void)size;
    if (strcmp(info->dlpi_name, l->path) != 0)
        return 0;
    l->base = (void *)info->dlpi_addr;
    l->segment_begin = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD) {
            l->segment_begin = begin < l->segment_begin ? begin : l->segment_begin;
            l->segment_end = begin + part->p_memsz > l->segment_end ? begin + part->p_memsz : l->segment_end;
        } else if (part->p_type == PT_TLS) {
            l->tls_begin = (uintptr_t)info->dlpi_tls_data;
            l->tls_end = l->tls_begin + part->p_memsz;
        }
    }
    return 1;
}

static loaded *load(const char *path)
{
    loaded *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    snprintf(l->path, sizeof l->path, "%s", path);
    l->library = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
    if (!l->library) {
        fprintf(stderr, "model: %s\n", dlerror());
        free(l);
        return NULL;
    }
    l->kernel = dlsym(l->library, "model_library");
    /* Calls the library's own function, so that the thread has the storage. */
    unsigned char *(*shared)(int) = NULL;
    void *symbol = dlsym(l->library, "model_shared_array");
    memcpy(&shared, &symbol, sizeof shared);
    for (int i = 0; shared && i < 4 && shared(i); i++)
        l->shared[l->shared_count++] = shared(i);
    dl_iterate_phdr(find_segments, l);
    return l;
}

static void unload(loaded *l)
{
    if (!l)
        return;
    unload(l->peer);
    dlclose(l->library);
    free(l);
}

/* The image is the path of the kernel's library (compiler.c). */
int cuModuleLoadData(void **module, const void *image)
{
    pthread_mutex_lock(&machine);
    loaded *l = load(image);
    pthread_mutex_unlock(&machine);
    *module = l;
    return l && l->kernel && l->base ? CU_SUCCESS : CU_INVALID_IMAGE;
}
int cuModuleUnload(void *module)
{
    pthread_mutex_lock(&machine);
    unload(module);
    pthread_mutex_unlock(&machine);
    return CU_SUCCESS;
}

static bool find_entry(const loaded *l, const char *name, int rank, function *f)
{
    char enter[160];
    snprintf(enter, sizeof enter, "model_enter_%s", name);
    void *entry = dlsym(l->library, name), *by = dlsym(l->library, enter);
    if (!by)
        by = dlsym(l->library, "model_enter_any");
    char sizes[160];
    snprintf(sizes, sizeof sizes, "model_sizes_%s", name);
    void *sizes_of = dlsym(l->library, sizes);
    if (!sizes_of)
        sizes_of = dlsym(l->library, "model_sizes_any");
    int (*count)(size_t * sizes, int most);
    memcpy(&count, &sizes_of, sizeof count);
    f->count = count ? count(f->sizes, MODEL_PARAMETERS) : -1;
    f->entry[rank] = entry;
    memcpy(&f->enter[rank], &by, sizeof by);
    return entry && by && f->count >= 0;
}

/* The other CTA of a cluster has a copy of the library, and so its own shared memory and special registers. */
static bool load_peer(loaded *l)
{
    char path[sizeof l->path + 8], command[4 * sizeof path + 64];
    snprintf(path, sizeof path, "%s.peer", l->path);
    snprintf(command, sizeof command, "cp '%s' '%s.%ld' && mv '%s.%ld' '%s'", l->path, path, (long)getpid(), path,
             (long)getpid(), path);
    if (!l->peer && (access(path, R_OK) == 0 || system(command) == 0))
        l->peer = load(path);
    return l->peer != NULL;
}

/* Whether the function has the other CTA's entry, which is found at the first use. */
static bool has_peer(function *f)
{
    pthread_mutex_lock(&machine);
    const bool has = f->enter[1] || (load_peer(f->from) && find_entry(f->from->peer, f->name, 1, f));
    pthread_mutex_unlock(&machine);
    return has;
}

/* Functions live as long as the process: the driver has no call that frees one. */
int cuModuleGetFunction(void **found, void *module, const char *name)
{
    loaded *l = module;
    char cluster[160];
    snprintf(cluster, sizeof cluster, "model_cluster_%s", name);
    const int *ctas = dlsym(l->library, cluster);
    function *f = calloc(1, sizeof *f);
    if (!f)
        return CU_OUT_OF_MEMORY;
    f->from = l;
    f->ctas = ctas ? *ctas : 1;
    snprintf(f->name, sizeof f->name, "%s", name);
    *found = f;
    return find_entry(l, name, 0, f) && (f->ctas == 1 || (f->ctas <= MODEL_CTAS && has_peer(f))) ? CU_SUCCESS : 500;
}
int cuFuncGetAttribute(int *value, int attribute, void *of)
{
    (void)attribute;
    (void)of;
    *value = 0;
    return CU_SUCCESS;
}
int cuFuncSetAttribute(void *of, int attribute, int value)
{
    (void)of;
    (void)attribute;
    return value <= MODEL_SHARED ? CU_SUCCESS : 1;
}
/* Only for the type and layout that attune has: 16-bit elements, four or five dimensions, the 128-byte swizzle, no
 * gaps, zeros outside. */
int cuTensorMapEncodeTiled(attune__cu_tensor_map *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int l2_promotion, int fill)
{
    (void)l2_promotion;
    model_tensor_map made = {.magic = MODEL_TENSOR_MAP, .address = (uint64_t)(uintptr_t)address, .rank = rank};
    _Static_assert(sizeof made <= sizeof map->opaque, "it fits");
    bool valid = (type == CU_TENSOR_MAP_FLOAT16 || type == CU_TENSOR_MAP_BFLOAT16) && (rank == 4 || rank == 5) &&
                 !interleave && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && !fill && made.address % 16 == 0 &&
                 box[0] == 64;
    for (uint32_t i = 0; valid && i < rank; i++) {
        made.size[i] = sizes[i];
        made.box[i] = box[i];
        valid =
            valid && sizes[i] >= 1 && sizes[i] <= UINT64_C(1) << 32 && box[i] >= 1 && box[i] <= 256 && steps[i] == 1;
        if (i + 1 < rank)
            made.stride[i] = strides[i];
        if (i + 1 < rank)
            valid = valid && strides[i] % 16 == 0 && strides[i] < UINT64_C(1) << 40;
    }
    memcpy(map->opaque, &made, sizeof made);
    return valid ? CU_SUCCESS : 1;
}
int model_launch_now(const launch_call *of)
{
    const function *f = of->function;
    const launch l = {.from = f->from,
                      .kernel = f->name,
                      .grid = {of->grid[0], of->grid[1], of->grid[2]},
                      .dimensions = {of->block[0], of->block[1], of->block[2]},
                      .shared = of->shared,
                      .ctas = of->ctas,
                      .early = of->early,
                      .enter = {f->enter[0], f->enter[1]},
                      .function = {f->entry[0], f->entry[1]},
                      .parameters = of->parameters};
    pthread_mutex_lock(&machine);
    const bool right = model_run(&l);
    pthread_mutex_unlock(&machine);
    return right ? CU_SUCCESS : CU_LAUNCH_FAILED;
}

static int start(const launch_call *l, unsigned y, unsigned z, void *stream)
{
    function *f = l->function;
    if (y != 1 || z != 1 || l->shared > MODEL_SHARED || l->ctas > MODEL_CTAS || l->grid[0] % (unsigned)l->ctas)
        return CU_INVALID_VALUE;
    if (l->ctas > 1 && !has_peer(f))
        return CU_OUT_OF_MEMORY;
    return model_stream_captures(stream) ? model_capture_launch(stream, l) : model_launch_now(l);
}

int cuLaunchKernel(void *of, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra)
{
    (void)extra;
    const function *f = of;
    const launch_call l = {of, {x, y, z}, {bx, by, bz}, shared, f->ctas, false, parameters, f->sizes, f->count};
    return start(&l, by, bz, stream);
}

static const attune__cu_launch_attribute *attribute_of(const attune__cu_launch_config *c, int id)
{
    for (unsigned i = 0; i < c->attribute_count; i++)
        if (c->attributes[i].id == id)
            return &c->attributes[i];
    return NULL;
}

static int ctas_of(const function *f, const attune__cu_launch_config *c)
{
    const attune__cu_launch_attribute *cluster = attribute_of(c, CU_LAUNCH_CLUSTER_DIMENSION);
    return cluster ? (int)cluster->value.cluster[0] : f->ctas;
}

/* The launch before is over when a kernel begins, whatever the attributes allow. */
int cuLaunchKernelEx(const attune__cu_launch_config *c, void *of, void **parameters, void **extra);
int cuLaunchKernelEx(const attune__cu_launch_config *c, void *of, void **parameters, void **extra)
{
    (void)extra;
    const function *f = of;
    const attune__cu_launch_attribute *early = attribute_of(c, CU_LAUNCH_PROGRAMMATIC_SERIALIZATION);
    const launch_call l = {.function = of,
                           .grid = {c->grid_x, c->grid_y, c->grid_z},
                           .block = {c->block_x, c->block_y, c->block_z},
                           .shared = c->shared,
                           .ctas = ctas_of(f, c),
                           .early = early && early->value.allowed,
                           .parameters = parameters,
                           .sizes = f->sizes,
                           .count = f->count};
    return start(&l, c->block_y, c->block_z, c->stream);
}

/* Few, so that calls with more have others. */
int cuOccupancyMaxActiveClusters(int *count, void *of, const attune__cu_launch_config *c);
int cuOccupancyMaxActiveClusters(int *count, void *of, const attune__cu_launch_config *c)
{
    *count = 3;
    return ctas_of(of, c) <= MODEL_CTAS ? CU_SUCCESS : CU_INVALID_VALUE;
}

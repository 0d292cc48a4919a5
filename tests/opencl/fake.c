/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "opencl/driver.h"
#include "opencl/fake.h"

#define CL_INVALID_VALUE       (-30)
#define CL_INVALID_KERNEL_NAME (-46)

fake_state fake = {.platforms = 1, .devices = 1, .most_bytes = 1 << 26};

/* Every object begins so; handles are pointers to it. */
typedef struct object {
    int references;
    size_t size;
    char *data;
    void *context; /* of a queue or memory, the program of a kernel, the device of a context */
    pthread_t setter;
    bool setting;
} object;

static object platforms[4], devices[4];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int call(const char *name)
{
    pthread_mutex_lock(&lock);
    const int at = ++fake.calls;
    if (at < FAKE_CALLS)
        fake.names[at] = name;
    pthread_mutex_unlock(&lock);
    return at == fake.fail_at ? fake.fail_with : CL_SUCCESS;
}

#define CALL(name)                                                                                                     \
    do {                                                                                                               \
        const int result = call(name);                                                                                 \
        if (result)                                                                                                    \
            return result;                                                                                             \
    } while (0)

static void *create(const char *name, size_t size, void *context, int32_t *error)
{
    const int result = call(name);
    if (error)
        *error = result;
    if (result)
        return NULL;
    object *made = calloc(1, sizeof *made);
    made->references = 1;
    made->size = size;
    /* No test uses an object of terabytes. */
    made->data = size >> 40 ? NULL : calloc(1, size ? size : 1);
    made->context = context;
    pthread_mutex_lock(&lock);
    fake.live++;
    pthread_mutex_unlock(&lock);
    return made;
}

static int retain(void *handle)
{
    pthread_mutex_lock(&lock);
    ((object *)handle)->references++;
    fake.live++;
    pthread_mutex_unlock(&lock);
    return CL_SUCCESS;
}

static int release(void *handle)
{
    object *o = handle;
    pthread_mutex_lock(&lock);
    fake.live--;
    const bool last = --o->references == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        free(o->data);
        free(o);
    }
    return CL_SUCCESS;
}

static int put(const void *from, size_t have, size_t size, void *value, size_t *needed)
{
    if (needed)
        *needed = have;
    if (value && size < have)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, have);
    return CL_SUCCESS;
}

#define PUT(type, what)                                                                                                \
    do {                                                                                                               \
        const type it = (what);                                                                                        \
        return put(&it, sizeof it, size, value, needed);                                                               \
    } while (0)
#define PUT_TEXT(text) return put(text, strlen(text) + 1, size, value, needed)

int32_t clGetPlatformIDs(uint32_t count, attune__cl_platform *list, uint32_t *found)
{
    if (getenv("FAKE_OPENCL_CRASH"))
        abort();
    if (getenv("FAKE_OPENCL_HANG"))
        pause();
    if (getenv("FAKE_OPENCL_BUSY"))
        while (clock() < 3 * CLOCKS_PER_SEC) /* of processor time */
            ;
    CALL("clGetPlatformIDs");
    *found = fake.platforms;
    for (uint32_t i = 0; i < fake.platforms && i < count; i++)
        list[i] = (attune__cl_platform)&platforms[i];
    return fake.platforms ? CL_SUCCESS : CL_PLATFORM_NOT_FOUND_KHR;
}
int32_t clGetPlatformInfo(attune__cl_platform platform, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)platform;
    CALL("clGetPlatformInfo");
    PUT_TEXT(name == CL_PLATFORM_NAME ? fake.platform_name ? fake.platform_name : "Fake" : "OpenCL 1.2 fake");
}
int32_t clGetDeviceIDs(attune__cl_platform platform, uint64_t type, uint32_t count, attune__cl_device *list,
                       uint32_t *found)
{
    (void)type;
    CALL("clGetDeviceIDs");
    const uint32_t here = platform == (attune__cl_platform)&platforms[0] ? fake.devices : 0;
    *found = here;
    for (uint32_t i = 0; i < here && i < count; i++)
        list[i] = (attune__cl_device)&devices[i];
    return here ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}
int32_t clGetDeviceInfo(attune__cl_device device, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)device;
    CALL("clGetDeviceInfo");
    switch (name) {
    case CL_DEVICE_TYPE:
        PUT(uint64_t, CL_DEVICE_TYPE_GPU);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        PUT(uint32_t, 4);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        PUT(size_t, 256);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: {
        const size_t sizes[3] = {256, 256, 64};
        return put(sizes, sizeof sizes, size, value, needed);
    }
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        PUT(uint64_t, fake.most_bytes);
    case CL_DEVICE_MAX_PARAMETER_SIZE:
        PUT(size_t, 1024);
    case CL_DEVICE_SINGLE_FP_CONFIG:
        PUT(uint64_t, CL_FP_INF_NAN | CL_FP_FMA);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
        PUT(uint64_t, UINT64_C(1) << 30);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        PUT(uint64_t, 49152);
    case CL_DEVICE_ENDIAN_LITTLE:
    case CL_DEVICE_AVAILABLE:
    case CL_DEVICE_COMPILER_AVAILABLE:
        PUT(uint32_t, 1);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        PUT(uint32_t, fake.unified);
    case CL_DEVICE_PLATFORM:
        PUT(attune__cl_platform, (attune__cl_platform)&platforms[0]);
    case CL_DEVICE_NAME:
        PUT_TEXT("Fake device");
    case CL_DEVICE_VERSION:
        PUT_TEXT("OpenCL 1.2 fake");
    case CL_DEVICE_EXTENSIONS:
        if (fake.subgroups)
            PUT_TEXT("cl_khr_subgroups cl_khr_subgroup_shuffle");
        PUT_TEXT("cl_khr_fp16_not cl_khr_byte_addressable_store");
    default:
        PUT_TEXT(fake.driver_version ? fake.driver_version : "1.0");
    }
}
attune__cl_context clCreateContext(const intptr_t *properties, uint32_t count, const attune__cl_device *list,
                                   void (*notify)(const char *, const void *, size_t, void *), void *user,
                                   int32_t *error)
{
    (void)properties, (void)count, (void)notify, (void)user;
    return create("clCreateContext", 0, list[0], error);
}
int32_t clRetainContext(attune__cl_context context)
{
    CALL("clRetainContext");
    return retain(context);
}
int32_t clReleaseContext(attune__cl_context context)
{
    return release(context);
}
int32_t clGetContextInfo(attune__cl_context context, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)name; /* CL_CONTEXT_DEVICES */
    CALL("clGetContextInfo");
    PUT(void *, ((object *)context)->context);
}
attune__cl_queue clCreateCommandQueue(attune__cl_context context, attune__cl_device device, uint64_t properties,
                                      int32_t *error)
{
    (void)properties, (void)device;
    return create("clCreateCommandQueue", 0, context, error);
}
int32_t clRetainCommandQueue(attune__cl_queue queue)
{
    CALL("clRetainCommandQueue");
    return retain(queue);
}
int32_t clReleaseCommandQueue(attune__cl_queue queue)
{
    return release(queue);
}
int32_t clGetCommandQueueInfo(attune__cl_queue queue, uint32_t name, size_t size, void *value, size_t *needed)
{
    CALL("clGetCommandQueueInfo");
    if (name == CL_QUEUE_CONTEXT)
        PUT(void *, ((object *)queue)->context);
    if (name == CL_QUEUE_DEVICE)
        PUT(void *, &devices[0]);
    PUT(uint64_t, fake.out_of_order ? CL_QUEUE_OUT_OF_ORDER : 0);
}
attune__cl_memory clCreateBuffer(attune__cl_context context, uint64_t flags, size_t size, void *host, int32_t *error)
{
    (void)flags, (void)host;
    return create("clCreateBuffer", size, context, error);
}
int32_t clRetainMemObject(attune__cl_memory memory)
{
    CALL("clRetainMemObject");
    return retain(memory);
}
int32_t clReleaseMemObject(attune__cl_memory memory)
{
    return release(memory);
}
int32_t clGetMemObjectInfo(attune__cl_memory memory, uint32_t name, size_t size, void *value, size_t *needed)
{
    CALL("clGetMemObjectInfo");
    if (name == CL_MEM_CONTEXT)
        PUT(void *, ((object *)memory)->context);
    PUT(size_t, ((object *)memory)->size);
}
attune__cl_program clCreateProgramWithSource(attune__cl_context context, uint32_t count, const char **texts,
                                             const size_t *lengths, int32_t *error)
{
    (void)count, (void)texts, (void)lengths;
    fake.sources++;
    return create("clCreateProgramWithSource", 0, context, error);
}
attune__cl_program clCreateProgramWithBinary(attune__cl_context context, uint32_t count, const attune__cl_device *list,
                                             const size_t *sizes, const unsigned char **binaries, int32_t *status,
                                             int32_t *error)
{
    (void)count, (void)list, (void)sizes, (void)binaries;
    *status = CL_SUCCESS;
    fake.binaries++;
    return create("clCreateProgramWithBinary", fake.binaries_are_empty, context, error);
}
int32_t clBuildProgram(attune__cl_program program, uint32_t count, const attune__cl_device *list, const char *options,
                       void (*notify)(attune__cl_program, void *), void *user)
{
    (void)program, (void)count, (void)list, (void)notify, (void)user;
    CALL("clBuildProgram");
    if (strstr(options, "relaxed") || strstr(options, "finite"))
        abort();
    return fake.build_fails ? CL_BUILD_PROGRAM_FAILURE : CL_SUCCESS;
}
int32_t clGetProgramBuildInfo(attune__cl_program program, attune__cl_device device, uint32_t name, size_t size,
                              void *value, size_t *needed)
{
    (void)program, (void)device, (void)name;
    CALL("clGetProgramBuildInfo");
    PUT_TEXT("line 7: the fake does not like it");
}
int32_t clGetProgramInfo(attune__cl_program program, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)program;
    CALL("clGetProgramInfo");
    if (name == CL_PROGRAM_BINARY_SIZES)
        PUT(size_t, 100);
    memset(*(unsigned char **)value, 7, 100);
    fake.binaries_read++;
    return CL_SUCCESS;
}
int32_t clRetainProgram(attune__cl_program program)
{
    CALL("clRetainProgram");
    return retain(program);
}
int32_t clReleaseProgram(attune__cl_program program)
{
    return release(program);
}
attune__cl_kernel clCreateKernel(attune__cl_program program, const char *name, int32_t *error)
{
    (void)name;
    if (((object *)program)->size) { /* an empty one */
        *error = CL_INVALID_KERNEL_NAME;
        return NULL;
    }
    return create("clCreateKernel", 0, program, error);
}
int32_t clReleaseKernel(attune__cl_kernel kernel)
{
    return release(kernel);
}
int32_t clGetKernelWorkGroupInfo(attune__cl_kernel kernel, attune__cl_device device, uint32_t name, size_t size,
                                 void *value, size_t *needed)
{
    (void)kernel, (void)device, (void)name;
    CALL("clGetKernelWorkGroupInfo");
    PUT(size_t, fake.kernel_group ? fake.kernel_group : 256);
}
int32_t clSetKernelArg(attune__cl_kernel kernel, uint32_t index, size_t size, const void *value)
{
    object *o = (object *)kernel;
    (void)index, (void)size, (void)value;
    CALL("clSetKernelArg");
    pthread_mutex_lock(&lock);
    fake.interleaved += o->setting && !pthread_equal(o->setter, pthread_self());
    o->setter = pthread_self();
    o->setting = true;
    pthread_mutex_unlock(&lock);
    return CL_SUCCESS;
}

static int command(const char *name, uint32_t waits, attune__cl_event *event)
{
    int32_t error;
    *event = create(name, 0, NULL, &error);
    fake.unchained += !waits;
    return error;
}

int32_t clEnqueueNDRangeKernel(attune__cl_queue queue, attune__cl_kernel kernel, uint32_t dimensions,
                               const size_t *offset, const size_t *global, const size_t *local, uint32_t waits,
                               const attune__cl_event *wait, attune__cl_event *event)
{
    (void)queue, (void)offset, (void)wait;
    object *o = (object *)kernel;
    uint64_t groups = 1;
    for (uint32_t d = 0; d < dimensions; d++)
        groups *= global[d] / local[d];
    const int error = command("clEnqueueNDRangeKernel", waits, event);
    pthread_mutex_lock(&lock);
    fake.interleaved += o->setting && !pthread_equal(o->setter, pthread_self());
    o->setting = false;
    fake.launches++;
    fake.wide += global[0] > local[0];
    fake.groups += groups;
    pthread_mutex_unlock(&lock);
    return error;
}
int32_t clEnqueueWriteBuffer(attune__cl_queue queue, attune__cl_memory memory, uint32_t blocking, size_t offset,
                             size_t size, const void *from, uint32_t waits, const attune__cl_event *wait,
                             attune__cl_event *event)
{
    object *o = (object *)memory;
    (void)queue, (void)blocking, (void)wait;
    if (offset > o->size || size > o->size - offset)
        abort();
    memcpy(o->data + offset, from, size);
    return command("clEnqueueWriteBuffer", waits, event);
}
int32_t clEnqueueReadBuffer(attune__cl_queue queue, attune__cl_memory memory, uint32_t blocking, size_t offset,
                            size_t size, void *to, uint32_t waits, const attune__cl_event *wait,
                            attune__cl_event *event)
{
    object *o = (object *)memory;
    (void)queue, (void)blocking, (void)wait;
    if (offset > o->size || size > o->size - offset)
        abort();
    memcpy(to, o->data + offset, size);
    return command("clEnqueueReadBuffer", waits, event);
}
int32_t clEnqueueCopyBuffer(attune__cl_queue queue, attune__cl_memory from, attune__cl_memory to, size_t from_offset,
                            size_t to_offset, size_t size, uint32_t waits, const attune__cl_event *wait,
                            attune__cl_event *event)
{
    (void)queue, (void)wait;
    memmove(((object *)to)->data + to_offset, ((object *)from)->data + from_offset, size);
    return command("clEnqueueCopyBuffer", waits, event);
}
int32_t clFlush(attune__cl_queue queue)
{
    (void)queue;
    CALL("clFlush");
    return CL_SUCCESS;
}
int32_t clGetEventInfo(attune__cl_event event, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)event, (void)name;
    CALL("clGetEventInfo");
    PUT(int32_t, atomic_load(&fake.event_status));
}
int32_t clGetEventProfilingInfo(attune__cl_event event, uint32_t name, size_t size, void *value, size_t *needed)
{
    (void)event;
    CALL("clGetEventProfilingInfo");
    PUT(uint64_t, name == CL_PROFILING_COMMAND_END ? 2000 : 1000);
}
int32_t clRetainEvent(attune__cl_event event)
{
    CALL("clRetainEvent");
    return retain(event);
}
int32_t clReleaseEvent(attune__cl_event event)
{
    return release(event);
}

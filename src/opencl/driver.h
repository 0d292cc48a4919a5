/* SPDX-License-Identifier: MIT */
/*
 * Entry points of the OpenCL loader, which is opened at run time. The types are declared here, so that no headers of
 * OpenCL are needed: handles are pointers, and constants have the values of the OpenCL 1.2 specification.
 */
#ifndef ATTUNE_OPENCL_DRIVER_H
#define ATTUNE_OPENCL_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct _cl_platform_id *attune__cl_platform;
typedef struct _cl_device_id *attune__cl_device;
typedef struct _cl_context *attune__cl_context;
typedef struct _cl_command_queue *attune__cl_queue;
typedef struct _cl_mem *attune__cl_memory;
typedef struct _cl_program *attune__cl_program;
typedef struct _cl_kernel *attune__cl_kernel;
typedef struct _cl_event *attune__cl_event;

enum {
    CL_SUCCESS = 0,
    CL_DEVICE_NOT_FOUND = -1,
    CL_DEVICE_NOT_AVAILABLE = -2,
    CL_COMPILER_NOT_AVAILABLE = -3,
    CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
    CL_OUT_OF_RESOURCES = -5,
    CL_OUT_OF_HOST_MEMORY = -6,
    CL_BUILD_PROGRAM_FAILURE = -11,
    CL_EXEC_STATUS_ERROR = -14,
    CL_INVALID_CONTEXT = -34,
    CL_INVALID_COMMAND_QUEUE = -36,
    CL_INVALID_WORK_GROUP_SIZE = -54,
    CL_INVALID_BUFFER_SIZE = -61,
    CL_PLATFORM_NOT_FOUND_KHR = -1001,
};

enum {
    CL_PLATFORM_VERSION = 0x0901,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
    CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT = 0x100A,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017,
    CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
    CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_TYPE = 0x1022,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_DEVICE_PLATFORM = 0x1031,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE = 0x1067,
    CL_DEVICE_UUID_KHR = 0x106A,
    CL_DEVICE_REGISTERS_PER_BLOCK_NV = 0x4002,
    CL_DEVICE_WARP_SIZE_NV = 0x4003,
    CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108,
    CL_CONTEXT_DEVICES = 0x1081,
    CL_CONTEXT_PLATFORM = 0x1084,
    CL_QUEUE_CONTEXT = 0x1090,
    CL_QUEUE_DEVICE = 0x1091,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_MEM_SIZE = 0x1102,
    CL_MEM_CONTEXT = 0x1106,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283,
};

#define CL_DEVICE_TYPE_CPU      UINT64_C(2)
#define CL_DEVICE_TYPE_GPU      UINT64_C(4)
#define CL_DEVICE_TYPE_ALL      UINT64_C(0xffffffff)
#define CL_MEM_READ_WRITE       UINT64_C(1)
#define CL_FP_DENORM            UINT64_C(1)
#define CL_FP_INF_NAN           UINT64_C(2)
#define CL_FP_FMA               UINT64_C(32)
#define CL_FP_CORRECTLY_ROUNDED UINT64_C(128) /* division and square root */
#define CL_QUEUE_OUT_OF_ORDER   UINT64_C(1)
#define CL_QUEUE_PROFILING      UINT64_C(2)
#define CL_COMPLETE             0

/* X(return type, member, symbol, parameters) */
#define ATTUNE__OPENCL_FUNCTIONS(X)                                                                                    \
    X(int32_t, platforms, clGetPlatformIDs, (uint32_t count, attune__cl_platform * platforms, uint32_t * found))       \
    X(int32_t, platform_info, clGetPlatformInfo,                                                                       \
      (attune__cl_platform platform, uint32_t name, size_t size, void *value, size_t *needed))                         \
    X(int32_t, devices, clGetDeviceIDs,                                                                                \
      (attune__cl_platform platform, uint64_t type, uint32_t count, attune__cl_device * devices, uint32_t * found))    \
    X(int32_t, device_info, clGetDeviceInfo,                                                                           \
      (attune__cl_device device, uint32_t name, size_t size, void *value, size_t *needed))                             \
    X(attune__cl_context, context_create, clCreateContext,                                                             \
      (const intptr_t *properties, uint32_t count, const attune__cl_device *devices,                                   \
       void (*notify)(const char *, const void *, size_t, void *), void *user, int32_t *error))                        \
    X(int32_t, context_retain, clRetainContext, (attune__cl_context context))                                          \
    X(int32_t, context_release, clReleaseContext, (attune__cl_context context))                                        \
    X(attune__cl_queue, queue_create, clCreateCommandQueue,                                                            \
      (attune__cl_context context, attune__cl_device device, uint64_t properties, int32_t * error))                    \
    X(int32_t, queue_retain, clRetainCommandQueue, (attune__cl_queue queue))                                           \
    X(int32_t, queue_release, clReleaseCommandQueue, (attune__cl_queue queue))                                         \
    X(int32_t, context_info, clGetContextInfo,                                                                         \
      (attune__cl_context context, uint32_t name, size_t size, void *value, size_t *needed))                           \
    X(int32_t, queue_info, clGetCommandQueueInfo,                                                                      \
      (attune__cl_queue queue, uint32_t name, size_t size, void *value, size_t *needed))                               \
    X(attune__cl_memory, memory_create, clCreateBuffer,                                                                \
      (attune__cl_context context, uint64_t flags, size_t size, void *host, int32_t *error))                           \
    X(int32_t, memory_retain, clRetainMemObject, (attune__cl_memory memory))                                           \
    X(int32_t, memory_release, clReleaseMemObject, (attune__cl_memory memory))                                         \
    X(int32_t, memory_info, clGetMemObjectInfo,                                                                        \
      (attune__cl_memory memory, uint32_t name, size_t size, void *value, size_t *needed))                             \
    X(attune__cl_program, program_source, clCreateProgramWithSource,                                                   \
      (attune__cl_context context, uint32_t count, const char **texts, const size_t *lengths, int32_t *error))         \
    X(attune__cl_program, program_binary, clCreateProgramWithBinary,                                                   \
      (attune__cl_context context, uint32_t count, const attune__cl_device *devices, const size_t *sizes,              \
       const unsigned char **binaries, int32_t *status, int32_t *error))                                               \
    X(int32_t, program_build, clBuildProgram,                                                                          \
      (attune__cl_program program, uint32_t count, const attune__cl_device *devices, const char *options,              \
       void (*notify)(attune__cl_program, void *), void *user))                                                        \
    X(int32_t, program_build_info, clGetProgramBuildInfo,                                                              \
      (attune__cl_program program, attune__cl_device device, uint32_t name, size_t size, void *value, size_t *needed)) \
    X(int32_t, program_info, clGetProgramInfo,                                                                         \
      (attune__cl_program program, uint32_t name, size_t size, void *value, size_t *needed))                           \
    X(int32_t, program_retain, clRetainProgram, (attune__cl_program program))                                          \
    X(int32_t, program_release, clReleaseProgram, (attune__cl_program program))                                        \
    X(attune__cl_kernel, kernel_create, clCreateKernel,                                                                \
      (attune__cl_program program, const char *name, int32_t *error))                                                  \
    X(int32_t, kernel_release, clReleaseKernel, (attune__cl_kernel kernel))                                            \
    X(int32_t, kernel_group_info, clGetKernelWorkGroupInfo,                                                            \
      (attune__cl_kernel kernel, attune__cl_device device, uint32_t name, size_t size, void *value, size_t *needed))   \
    X(int32_t, kernel_argument, clSetKernelArg,                                                                        \
      (attune__cl_kernel kernel, uint32_t index, size_t size, const void *value))                                      \
    X(int32_t, launch, clEnqueueNDRangeKernel,                                                                         \
      (attune__cl_queue queue, attune__cl_kernel kernel, uint32_t dimensions, const size_t *offset,                    \
       const size_t *global, const size_t *local, uint32_t waits, const attune__cl_event *wait,                        \
       attune__cl_event *event))                                                                                       \
    X(int32_t, write, clEnqueueWriteBuffer,                                                                            \
      (attune__cl_queue queue, attune__cl_memory memory, uint32_t blocking, size_t offset, size_t size,                \
       const void *from, uint32_t waits, const attune__cl_event *wait, attune__cl_event *event))                       \
    X(int32_t, read, clEnqueueReadBuffer,                                                                              \
      (attune__cl_queue queue, attune__cl_memory memory, uint32_t blocking, size_t offset, size_t size, void *to,      \
       uint32_t waits, const attune__cl_event *wait, attune__cl_event *event))                                         \
    X(int32_t, copy, clEnqueueCopyBuffer,                                                                              \
      (attune__cl_queue queue, attune__cl_memory from, attune__cl_memory to, size_t from_offset, size_t to_offset,     \
       size_t size, uint32_t waits, const attune__cl_event *wait, attune__cl_event *event))                            \
    X(int32_t, flush, clFlush, (attune__cl_queue queue))                                                               \
    X(int32_t, event_info, clGetEventInfo,                                                                             \
      (attune__cl_event event, uint32_t name, size_t size, void *value, size_t *needed))                               \
    X(int32_t, event_profile, clGetEventProfilingInfo,                                                                 \
      (attune__cl_event event, uint32_t name, size_t size, void *value, size_t *needed))                               \
    X(int32_t, event_retain, clRetainEvent, (attune__cl_event event))                                                  \
    X(int32_t, event_release, clReleaseEvent, (attune__cl_event event))

typedef struct attune__opencl_driver {
    void *library;
#define MEMBER(type, name, symbol, parameters) type(*name) parameters;
    ATTUNE__OPENCL_FUNCTIONS(MEMBER)
#undef MEMBER
} attune__opencl_driver;

/*
 * Opens the loader and finds every function. False, with the reason, if that fails. The first time in a process, a
 * child process asks the loader for its platforms before: an installable driver that crashes there is named in the
 * reason, and nothing is loaded here. The library stays loaded until the process ends: drivers do not survive being
 * unloaded.
 */
bool attune__opencl_driver_open(attune__opencl_driver *driver, char *reason, size_t reason_size);
void attune__opencl_driver_close(attune__opencl_driver *driver);

/* "CL_OUT_OF_RESOURCES"; never NULL. */
const char *attune__opencl_error_name(int32_t error);

/* probe.c: whether a child process that loads `library` and asks it for its platforms and their devices survives; if
 * not, the reason. It is given up once it has not worked for `timeout` milliseconds. */
bool attune__opencl_probe(const char *library, int timeout, char *reason, size_t reason_size);

#endif

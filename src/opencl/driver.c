/* SPDX-License-Identifier: MIT */
#include "opencl/driver.h"

#include <stdio.h>
#include <string.h>

#include "base/library.h"

#define LIBRARY       "libOpenCL.so.1"
#define PROBE_TIMEOUT 20000 /* milliseconds */

/* By the negative code, as OpenCL 1.2 has them. */
const char *attune__opencl_error_name(int32_t error)
{
    static const char *const names[] = {
        [1] = "CL_DEVICE_NOT_FOUND",
        [2] = "CL_DEVICE_NOT_AVAILABLE",
        [3] = "CL_COMPILER_NOT_AVAILABLE",
        [4] = "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        [5] = "CL_OUT_OF_RESOURCES",
        [6] = "CL_OUT_OF_HOST_MEMORY",
        [7] = "CL_PROFILING_INFO_NOT_AVAILABLE",
        [8] = "CL_MEM_COPY_OVERLAP",
        [9] = "CL_IMAGE_FORMAT_MISMATCH",
        [10] = "CL_IMAGE_FORMAT_NOT_SUPPORTED",
        [11] = "CL_BUILD_PROGRAM_FAILURE",
        [12] = "CL_MAP_FAILURE",
        [13] = "CL_MISALIGNED_SUB_BUFFER_OFFSET",
        [14] = "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
        [15] = "CL_COMPILE_PROGRAM_FAILURE",
        [16] = "CL_LINKER_NOT_AVAILABLE",
        [17] = "CL_LINK_PROGRAM_FAILURE",
        [18] = "CL_DEVICE_PARTITION_FAILED",
        [19] = "CL_KERNEL_ARG_INFO_NOT_AVAILABLE",
        [30] = "CL_INVALID_VALUE",
        [31] = "CL_INVALID_DEVICE_TYPE",
        [32] = "CL_INVALID_PLATFORM",
        [33] = "CL_INVALID_DEVICE",
        [34] = "CL_INVALID_CONTEXT",
        [35] = "CL_INVALID_QUEUE_PROPERTIES",
        [36] = "CL_INVALID_COMMAND_QUEUE",
        [37] = "CL_INVALID_HOST_PTR",
        [38] = "CL_INVALID_MEM_OBJECT",
        [39] = "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR",
        [40] = "CL_INVALID_IMAGE_SIZE",
        [41] = "CL_INVALID_SAMPLER",
        [42] = "CL_INVALID_BINARY",
        [43] = "CL_INVALID_BUILD_OPTIONS",
        [44] = "CL_INVALID_PROGRAM",
        [45] = "CL_INVALID_PROGRAM_EXECUTABLE",
        [46] = "CL_INVALID_KERNEL_NAME",
        [47] = "CL_INVALID_KERNEL_DEFINITION",
        [48] = "CL_INVALID_KERNEL",
        [49] = "CL_INVALID_ARG_INDEX",
        [50] = "CL_INVALID_ARG_VALUE",
        [51] = "CL_INVALID_ARG_SIZE",
        [52] = "CL_INVALID_KERNEL_ARGS",
        [53] = "CL_INVALID_WORK_DIMENSION",
        [54] = "CL_INVALID_WORK_GROUP_SIZE",
        [55] = "CL_INVALID_WORK_ITEM_SIZE",
        [56] = "CL_INVALID_GLOBAL_OFFSET",
        [57] = "CL_INVALID_EVENT_WAIT_LIST",
        [58] = "CL_INVALID_EVENT",
        [59] = "CL_INVALID_OPERATION",
        [60] = "CL_INVALID_GL_OBJECT",
        [61] = "CL_INVALID_BUFFER_SIZE",
        [62] = "CL_INVALID_MIP_LEVEL",
        [63] = "CL_INVALID_GLOBAL_WORK_SIZE",
        [64] = "CL_INVALID_PROPERTY",
        [65] = "CL_INVALID_IMAGE_DESCRIPTOR",
        [66] = "CL_INVALID_COMPILER_OPTIONS",
        [67] = "CL_INVALID_LINKER_OPTIONS",
        [68] = "CL_INVALID_DEVICE_PARTITION_COUNT",
    };
    const char *name = error < 0 && error > -(int32_t)(sizeof names / sizeof names[0]) ? names[-error] : NULL;
    return name                                 ? name
           : error == CL_PLATFORM_NOT_FOUND_KHR ? "CL_PLATFORM_NOT_FOUND_KHR"
                                                : "an error without a name here";
}

bool attune__opencl_driver_open(attune__opencl_driver *driver, char *reason, size_t reason_size)
{
    /* Once this process has loaded the drivers, they did not crash. */
    char why[256];
    *driver =
        (attune__opencl_driver){.library = attune__library_open(LIBRARY, ATTUNE__LIBRARY_LOADED, why, sizeof why)};
    if (!driver->library) {
        void *const there = attune__library_open(LIBRARY, 0, why, sizeof why);
        if (!there) {
            snprintf(
                reason, reason_size,
                "the OpenCL loader (Debian: ocl-icd-libopencl1) and a driver, NVIDIA's or such as pocl-opencl-icd, "
                "mesa-opencl-icd or intel-opencl-icd, are needed: %s",
                why);
            return false;
        }
        attune__library_close(there);
        if (!attune__opencl_probe(LIBRARY, PROBE_TIMEOUT, reason, reason_size))
            return false;
        driver->library = attune__library_open(LIBRARY, ATTUNE__LIBRARY_KEEP, why, sizeof why);
        if (!driver->library) {
            snprintf(reason, reason_size, "%s", why);
            return false;
        }
    }
    void *symbol;
    /* ISO C has no cast from data to functions; POSIX promises that the bytes are the same. */
#define FIND(type, name, symbol_name, parameters)                                                                      \
    symbol = attune__library_symbol(driver->library, #symbol_name);                                                    \
    if (!symbol) {                                                                                                     \
        snprintf(reason, reason_size, LIBRARY " has no %s: it is older than OpenCL 1.2, update it", #symbol_name);     \
        attune__opencl_driver_close(driver);                                                                           \
        return false;                                                                                                  \
    }                                                                                                                  \
    memcpy(&driver->name, &symbol, sizeof symbol);
    ATTUNE__OPENCL_FUNCTIONS(FIND)
#undef FIND
    return true;
}

void attune__opencl_driver_close(attune__opencl_driver *driver)
{
    attune__library_close(driver->library);
    driver->library = NULL;
}

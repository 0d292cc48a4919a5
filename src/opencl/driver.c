/* SPDX-License-Identifier: MIT */
#include "opencl/driver.h"

#include <stdio.h>
#include <string.h>

#include "base/library.h"

#define LIBRARY  "libOpenCL.so.1"
#define PATIENCE 20000 /* milliseconds */

const char *attune__opencl_error_name(int32_t error)
{
    switch (error) {
#define NAME(code)                                                                                                     \
    case code:                                                                                                         \
        return #code;
        NAME(CL_DEVICE_NOT_FOUND)
        NAME(CL_DEVICE_NOT_AVAILABLE)
        NAME(CL_COMPILER_NOT_AVAILABLE)
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        NAME(CL_OUT_OF_RESOURCES)
        NAME(CL_OUT_OF_HOST_MEMORY)
        NAME(CL_BUILD_PROGRAM_FAILURE)
        NAME(CL_EXEC_STATUS_ERROR)
        NAME(CL_INVALID_CONTEXT)
        NAME(CL_INVALID_COMMAND_QUEUE)
        NAME(CL_INVALID_WORK_GROUP_SIZE)
        NAME(CL_INVALID_BUFFER_SIZE)
        NAME(CL_PLATFORM_NOT_FOUND_KHR)
#undef NAME
    default:
        return "an error without a name here";
    }
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
        if (!attune__opencl_probe(LIBRARY, PATIENCE, reason, reason_size))
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

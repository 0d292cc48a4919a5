/* SPDX-License-Identifier: MIT */
#include "cuda/driver.h"

#include <stdio.h>
#include <string.h>

#include "base/library.h"

#define LIBRARY  "libcuda.so.1"
#define OVERLAPS 12030 /* the first version whose graphs capture launches that overlap */

const char *attune__cuda_error_name(const attune__cuda_driver *driver, attune__cu_result result)
{
    const char *name = NULL;
    if (driver->error_name(result, &name) != CU_SUCCESS || !name)
        return "an error that the driver does not name";
    return name;
}

bool attune__cuda_driver_open(attune__cuda_driver *driver, char *reason, size_t reason_size)
{
    char why[256];
    *driver = (attune__cuda_driver){.library = attune__library_open(LIBRARY, ATTUNE__LIBRARY_KEEP, why, sizeof why)};
    if (!driver->library) {
        snprintf(reason, reason_size, "NVIDIA's driver is needed: %s", why);
        return false;
    }
    void *symbol;
    /* ISO C has no cast from data to functions; POSIX promises that the bytes are the same. */
#define FIND(name, symbol_name, parameters)                                                                            \
    symbol = attune__library_symbol(driver->library, #symbol_name);                                                    \
    if (!symbol) {                                                                                                     \
        snprintf(reason, reason_size, LIBRARY " has no %s: update NVIDIA's driver", #symbol_name);                     \
        goto failed;                                                                                                   \
    }                                                                                                                  \
    memcpy(&driver->name, &symbol, sizeof symbol);
    ATTUNE__CUDA_FUNCTIONS(FIND)
#undef FIND
    int version = 0;
    if (driver->driver_version(&version) == CU_SUCCESS && version >= OVERLAPS) {
        symbol = attune__library_symbol(driver->library, "cuLaunchKernelEx");
        memcpy(&driver->launch_ex, &symbol, sizeof symbol);
        symbol = attune__library_symbol(driver->library, "cuOccupancyMaxActiveClusters");
        memcpy(&driver->most_clusters, &symbol, sizeof symbol);
    }
    const attune__cu_result result = driver->init(0);
    if (result == CU_SUCCESS)
        return true;
    if (result == CU_NO_DEVICE)
        snprintf(reason, reason_size, "NVIDIA's driver finds no GPU");
    else
        snprintf(reason, reason_size, "NVIDIA's driver does not start: %s (%d)",
                 attune__cuda_error_name(driver, result), result);
failed:
    attune__cuda_driver_close(driver);
    return false;
}

void attune__cuda_driver_close(attune__cuda_driver *driver)
{
    attune__library_close(driver->library);
    driver->library = NULL;
}

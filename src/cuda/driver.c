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

/* A function of the library, to a pointer of any type: ISO C has no cast from data to functions; POSIX promises that
 * the bytes are the same. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = attune__library_symbol(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

bool attune__cuda_driver_open(attune__cuda_driver *driver, char *reason, size_t reason_size)
{
    char why[256];
    *driver = (attune__cuda_driver){.library = attune__library_open(LIBRARY, ATTUNE__LIBRARY_KEEP, why, sizeof why)};
    if (!driver->library) {
        snprintf(reason, reason_size, "NVIDIA's driver is needed: %s", why);
        return false;
    }
#define FIND(name, symbol_name, parameters)                                                                            \
    if (!find(driver->library, #symbol_name, &driver->name)) {                                                         \
        snprintf(reason, reason_size, LIBRARY " has no %s: update NVIDIA's driver", #symbol_name);                     \
        goto failed;                                                                                                   \
    }
    ATTUNE__CUDA_FUNCTIONS(FIND)
#undef FIND
    int version = 0;
    if (driver->driver_version(&version) == CU_SUCCESS && version >= OVERLAPS) {
        (void)find(driver->library, "cuLaunchKernelEx", &driver->launch_ex);
        (void)find(driver->library, "cuOccupancyMaxActiveClusters", &driver->most_clusters);
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

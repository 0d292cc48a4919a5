/* SPDX-License-Identifier: MIT */
/* Functions of a loaded module, and launches of them that may begin early. */
#include "cuda/cuda.h"

#include "base/error.h"

attune_status attune__cuda_function(attune__cuda_device *device, attune__cu_module module, const char *name,
                                    attune__cu_function *function)
{
    ATTUNE__TRY(attune__cuda_enter(device));
    const attune_status status =
        attune__cuda_check(device, device->driver.module_function(function, module, name), "cuModuleGetFunction");
    attune__cuda_leave(device);
    return status;
}

attune__cu_result attune__cuda_launch_early(attune__cuda_device *device, attune__cu_function function, unsigned grid,
                                            unsigned threads, unsigned shared, attune__cu_stream stream,
                                            void **parameters)
{
    const attune__cuda_driver *driver = &device->driver;
    if (!driver->launch_ex || device->base.info.limits.architecture < 90)
        return driver->launch(function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, NULL);
    attune__cu_launch_attribute early = {.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1};
    const attune__cu_launch_config config = {
        .grid_x = grid,
        .grid_y = 1,
        .grid_z = 1,
        .block_x = threads,
        .block_y = 1,
        .block_z = 1,
        .shared = shared,
        .stream = stream,
        .attributes = &early,
        .attribute_count = 1,
    };
    return driver->launch_ex(&config, function, parameters, NULL);
}

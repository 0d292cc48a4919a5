/* SPDX-License-Identifier: MIT */
/* Functions of a loaded module, launches of them that may begin early, and clusters. */
#include "cuda/cuda.h"

#include "base/error.h"

#define HOPPER 90 /* the first architecture with clusters, and with launches that wait themselves */

attune_status attune__cuda_function(attune__cuda_device *device, attune__cu_module module, const char *name,
                                    attune__cu_function *function)
{
    ATTUNE__TRY(attune__cuda_enter(device));
    const attune_status status =
        attune__cuda_check(device, device->driver.module_function(function, module, name), "cuModuleGetFunction");
    attune__cuda_leave(device);
    return status;
}

static attune__cu_launch_config config_of(unsigned grid, unsigned threads, unsigned shared, attune__cu_stream stream,
                                          attune__cu_launch_attribute *attributes, unsigned count)
{
    return (attune__cu_launch_config){
        .grid_x = grid,
        .grid_y = 1,
        .grid_z = 1,
        .block_x = threads,
        .block_y = 1,
        .block_z = 1,
        .shared = shared,
        .stream = stream,
        .attributes = attributes,
        .attribute_count = count,
    };
}

static bool has_attributes(const attune__cuda_device *device)
{
    return device->driver.launch_ex && device->base.info.limits.architecture >= HOPPER;
}

attune__cu_result attune__cuda_launch_early(attune__cuda_device *device, attune__cu_function function, unsigned grid,
                                            unsigned cluster, unsigned threads, unsigned shared,
                                            attune__cu_stream stream, void **parameters)
{
    const attune__cuda_driver *driver = &device->driver;
    if (!has_attributes(device))
        return driver->launch(function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, NULL);
    attune__cu_launch_attribute attributes[] = {
        {.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1},
        {.id = CU_LAUNCH_CLUSTER_DIMENSION, .value.cluster = {cluster, 1, 1}},
    };
    const attune__cu_launch_config config = config_of(grid, threads, shared, stream, attributes, cluster > 1 ? 2 : 1);
    return driver->launch_ex(&config, function, parameters, NULL);
}

uint32_t attune__cuda_most_clusters(attune__cuda_device *device, attune__cu_function function, unsigned cluster,
                                    unsigned threads, unsigned shared)
{
    const attune__cuda_driver *driver = &device->driver;
    attune__cu_launch_attribute attribute = {.id = CU_LAUNCH_CLUSTER_DIMENSION, .value.cluster = {cluster, 1, 1}};
    const attune__cu_launch_config config = config_of(cluster, threads, shared, NULL, &attribute, 1);
    int count = 0;
    if (!has_attributes(device) || !driver->most_clusters ||
        driver->most_clusters(&count, function, &config) != CU_SUCCESS || count < 0)
        return 0;
    return (uint32_t)count;
}

/* SPDX-License-Identifier: MIT */
/* Peaks, for reporting shares of them: the multiply-adds of cuda/measure.cu, and the bandwidth of a large copy. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cuda/compiler.h"

#define SECONDS        0.3
#define ENOUGH_SECONDS 2e-3 /* of a launch, so that its latency does not matter */
#define COPY_BYTES     (UINT64_C(1) << 30)
#define THREADS        256
#define BLOCKS         2 /* CTAs of a compute unit, at least */

/* Operations of a CTA's loop iteration in cuda/measure.cu; a multiply-add counts as two. */
#define WGMMA_ITERATION  (2.0 * 4 * 64 * 256 * 16 * 2) /* warp groups, steps, m, n, k */
#define MMA_ITERATION    (8.0 * 8 * 16 * 8 * 16 * 2)   /* warps, chains, m, n, k */
#define SCALAR_ITERATION (256.0 * 16 * 8 * 2)          /* threads, chains, steps */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void describe(attune__cuda_kernel *kernel, attune_dtype dtype, uint32_t architecture, bool wgmma)
{
    *kernel = (attune__cuda_kernel){.file = "measure.cu"};
    const struct {
        const char *name;
        uint32_t value;
    } macros[] = {
        {"USE_WGMMA", wgmma},
        {"DTYPE", dtype == ATTUNE_F16    ? 1
                  : dtype == ATTUNE_BF16 ? 2
                                         : 3},
    };
    snprintf(kernel->options[0], sizeof kernel->options[0], "-arch=sm_%u%s", architecture, wgmma ? "a" : "");
    snprintf(kernel->options[1], sizeof kernel->options[1], "-std=c++17");
    kernel->option_count = 2;
    for (size_t i = 0; i < sizeof macros / sizeof macros[0]; i++)
        snprintf(kernel->options[kernel->option_count++], sizeof kernel->options[0], "-DATTUNE_%s=%u", macros[i].name,
                 macros[i].value);
}

static attune_status launch(attune__cuda_device *device, attune__cu_function function, uint32_t grid, uint32_t rounds,
                            attune__cu_pointer result, double *seconds)
{
    uint64_t value;
    void *parameters[] = {&rounds, &result};
    ATTUNE__TRY(attune__cuda_queue_begin(&device->queue, true));
    const attune_status status = attune__cuda_check(
        device, device->driver.launch(function, grid, 1, 1, THREADS, 1, 1, 0, device->queue.stream, parameters, NULL),
        "cuLaunchKernel");
    return attune__cuda_queue_end(&device->queue, status, &value, seconds);
}

static attune_status repeat_launch(attune__cuda_device *device, attune__cu_function function, attune__cu_pointer result,
                                   double round, double *flops)
{
    const uint32_t grid = BLOCKS * 4 * device->base.info.limits.compute_units;
    uint32_t rounds = 64;
    double best = 0;
    for (const double start = now(); now() - start < SECONDS;) {
        double seconds;
        ATTUNE__TRY(launch(device, function, grid, rounds, result, &seconds));
        const double rate = round * rounds * grid / seconds;
        if (seconds < ENOUGH_SECONDS && rounds < UINT32_C(1) << 24)
            rounds *= 2;
        else if (rate > best)
            best = rate;
    }
    *flops = best;
    return ATTUNE_OK;
}

/* Needs the current context. */
static attune_status run(attune__cuda_device *device, const void *cubin, double round, double *flops)
{
    const attune__cuda_driver *driver = &device->driver;
    attune__cu_module module;
    attune__cu_function function;
    attune__cu_pointer result = 0;
    ATTUNE__TRY(attune__cuda_check(device, driver->module_load(&module, cubin), "cuModuleLoadData"));
    attune_status status =
        attune__cuda_check(device, driver->module_function(&function, module, "attune_measure"), "cuModuleGetFunction");
    if (status == ATTUNE_OK)
        status = attune__cuda_check(device, driver->memory_alloc(&result, sizeof(float)), "a buffer");
    if (status == ATTUNE_OK) {
        status = repeat_launch(device, function, result, round, flops);
        driver->memory_free(result);
    }
    driver->module_unload(module);
    return status;
}

static attune_status measure_flops(attune__cuda_device *device, attune_dtype dtype, double *flops)
{
    const attune_limits *limits = &device->base.info.limits;
    const bool scalar = dtype == ATTUNE_F32, wgmma = !scalar && (limits->matrix & ATTUNE_MATRIX_WGMMA);
    attune__cuda_kernel kernel;
    void *cubin;
    size_t size;
    describe(&kernel, dtype, limits->architecture, wgmma);
    ATTUNE__TRY(attune__cuda_compile(&device->base.host, &kernel, &cubin, &size));
    attune_status status = attune__cuda_enter(device);
    if (status == ATTUNE_OK) {
        status = run(device, cubin, wgmma ? WGMMA_ITERATION : scalar ? SCALAR_ITERATION : MMA_ITERATION, flops);
        attune__cuda_leave(device);
    }
    attune__free(&device->base.host.allocator, cubin);
    return status;
}

/* Needs the current context. */
static attune_status repeat_copy(attune__cuda_device *device, attune__cu_pointer to, attune__cu_pointer from,
                                 uint64_t size, double *bandwidth)
{
    double best = 0;
    for (const double start = now(); now() - start < SECONDS;) {
        uint64_t value;
        double seconds;
        ATTUNE__TRY(attune__cuda_queue_begin(&device->queue, true));
        attune_status status = attune__cuda_check(
            device, device->driver.copy_on_device(to, from, (size_t)size, device->queue.stream), "cuMemcpyDtoDAsync");
        status = attune__cuda_queue_end(&device->queue, status, &value, &seconds);
        if (status != ATTUNE_OK)
            return status;
        const double rate = 2.0 * (double)size / seconds;
        best = rate > best ? rate : best;
    }
    *bandwidth = best;
    return ATTUNE_OK;
}

static attune_status measure_bandwidth(attune__cuda_device *device, double *bandwidth)
{
    const attune__cuda_driver *driver = &device->driver;
    /* Larger than any cache, but a small part of the device's memory. */
    uint64_t size = COPY_BYTES;
    while (size > device->base.info.limits.memory / 16 && size > UINT64_C(1) << 20)
        size /= 2;
    attune__cu_pointer from = 0, to = 0;
    ATTUNE__TRY(attune__cuda_enter(device));
    attune_status status = attune__cuda_check(device, driver->memory_alloc(&from, (size_t)size), "a buffer");
    if (status == ATTUNE_OK)
        status = attune__cuda_check(device, driver->memory_alloc(&to, (size_t)size), "a buffer");
    if (status == ATTUNE_OK)
        status = repeat_copy(device, to, from, size, bandwidth);
    if (to)
        driver->memory_free(to);
    if (from)
        driver->memory_free(from);
    attune__cuda_leave(device);
    return status;
}

attune_status attune__cuda_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    if (dtype == ATTUNE_F64)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s: the CUDA kernels do not compute in f64", device->info.id);
    if (flops)
        ATTUNE__TRY(measure_flops(mine, dtype, flops));
    return bandwidth ? measure_bandwidth(mine, bandwidth) : ATTUNE_OK;
}

/* SPDX-License-Identifier: MIT */
/*
 * The peaks that shares are reported of: independent multiply-adds in f32, in which the kernels compute whatever the
 * type of their elements, and a large copy by the device: the better of its own and a kernel's.
 */
#include "opencl/program.h"

#include <time.h>

#include "base/error.h"
#include "base/round.h"

#define SECONDS        0.3
#define HOST_SECONDS   0.1
#define ENOUGH_SECONDS 2e-3 /* of a launch, against what starting it costs */
#define MOST_WAIT      16.0 /* from a call to its end, as a multiple of a launch's time */
#define MIB            (UINT64_C(1) << 20)

#define MOST_THREADS 256u
#define UNIT_GROUPS  32u /* workgroups of a compute unit */
#define CHAINS       16u /* of a work-item, in measure.cl */
#define STEPS        8u
#define COPY_STEPS   8u

typedef struct measurement {
    attune__opencl_device *device;
    attune__opencl_kernel arithmetic, copy;
    attune_buffer *from, *to;
    uint32_t width, groups;
    double seconds; /* of each of the two */
} measurement;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Events of some drivers have times without meaning: then the host's clock counts. */
static attune_status finish(attune__opencl_call *call, double begin, double *seconds)
{
    uint64_t value;
    ATTUNE__TRY(attune__opencl_end(call, &value, seconds));
    const double host = now() - begin;
    if (host > ENOUGH_SECONDS && *seconds < host / MOST_WAIT)
        *seconds = host;
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------- arithmetic */

static int32_t set_arithmetic(const measurement *m, uint32_t rounds)
{
    static const float factor = -1.0f, term = 0.25f;
    attune__opencl_setter setter = {.device = m->device, .kernel = m->arithmetic.handle};
    attune__opencl_set_memory(&setter, m->to);
    attune__opencl_set(&setter, sizeof rounds, &rounds);
    attune__opencl_set(&setter, sizeof factor, &factor);
    attune__opencl_set(&setter, sizeof term, &term);
    return setter.error;
}

static attune_status launch_arithmetic(const measurement *m, uint32_t rounds, double *seconds)
{
    attune__opencl_call call;
    const double begin = now();
    ATTUNE__TRY(attune__opencl_check(m->device, set_arithmetic(m, rounds), "clSetKernelArg"));
    attune__opencl_begin(&m->device->queue, &call);
    attune__opencl_launch(&call, m->arithmetic.handle, m->groups, m->arithmetic.threads);
    return finish(&call, begin, seconds);
}

static attune_status measure_arithmetic(const measurement *m, double *flops)
{
    const double round = 2.0 * CHAINS * STEPS * m->width * m->arithmetic.threads * m->groups;
    uint32_t rounds = 64;
    double best = 0;
    for (const double start = now(); best == 0 || now() - start < m->seconds;) {
        double seconds;
        ATTUNE__TRY(launch_arithmetic(m, rounds, &seconds));
        const double rate = round * rounds / seconds;
        /* A launch that is long by the host's clock alone gets no longer. */
        if (seconds < ENOUGH_SECONDS && now() - start < m->seconds && rounds < UINT32_C(1) << 20)
            rounds *= 2;
        else if (rate > best)
            best = rate;
    }
    *flops = best;
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- copy */

static int32_t set_copy(const measurement *m)
{
    attune__opencl_setter setter = {.device = m->device, .kernel = m->copy.handle};
    attune__opencl_set_memory(&setter, m->from);
    attune__opencl_set_memory(&setter, m->to);
    return setter.error;
}

static attune_status launch_copy(const measurement *m, bool by_kernel, double *seconds)
{
    const attune__cl_memory from = attune__opencl_buffer_of(m->from)->memory,
                            to = attune__opencl_buffer_of(m->to)->memory;
    const uint64_t size = m->from->size, group = UINT64_C(16) * COPY_STEPS * m->copy.threads;
    const double begin = now();
    attune__opencl_call call;
    attune__opencl_begin(&m->device->queue, &call);
    if (by_kernel)
        attune__opencl_launch(&call, m->copy.handle, size / group, m->copy.threads);
    else
        attune__opencl_copy_memory(&call, from, to, size);
    return finish(&call, begin, seconds);
}

static attune_status measure_copy(const measurement *m, double *bandwidth)
{
    double best = 0;
    uint32_t copies = 0;
    ATTUNE__TRY(attune__opencl_check(m->device, set_copy(m), "clSetKernelArg"));
    for (const double start = now(); copies < 4 || now() - start < m->seconds; copies++) {
        double seconds;
        ATTUNE__TRY(launch_copy(m, copies % 2 == 0, &seconds));
        const double rate = 2.0 * (double)m->from->size / seconds;
        best = rate > best ? rate : best;
    }
    *bandwidth = best;
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------- both */

/* Past every cache; on a small device, a little of its memory. */
static uint64_t copy_bytes(const attune_limits *limits)
{
    uint64_t size = limits->host ? 64 * MIB : 512 * MIB;
    while (size > MIB && (size > limits->memory / 16 || (limits->storage_range && size > limits->storage_range)))
        size /= 2;
    return size;
}

static void release(measurement *m)
{
    attune__opencl_kernel_release(m->device, &m->copy);
    attune__opencl_kernel_release(m->device, &m->arithmetic);
}

/* *fit: the work-items of a built kernel, if there are fewer. */
static attune_status build(measurement *m, uint32_t threads, uint32_t *fit)
{
    attune__opencl_text text = {.file = "measure.cl", .host = m->device->base.info.limits.host, .fma = m->device->fma};
    attune__opencl_add_define(&text, "THREADS", threads);
    attune__opencl_add_define(&text, "WIDTH", m->width);
    attune__opencl_add_define(&text, "STEPS", STEPS);
    attune__opencl_add_define(&text, "COPY_STEPS", COPY_STEPS);
    ATTUNE__TRY(attune__opencl_kernel_build(m->device, &text, "attune_measure", threads, fit, &m->arithmetic));
    return attune__opencl_kernel_also(m->device, &m->arithmetic, "attune_copy", threads, &m->copy);
}

static attune_status make_kernels(measurement *m)
{
    const uint32_t most = attune__floor2(m->device->base.info.limits.workgroup_invocations);
    uint32_t fit = 0;
    attune_status status = build(m, m->width > 1 ? 1 : most < MOST_THREADS ? most : MOST_THREADS, &fit);
    if (status == ATTUNE_COMPILE_FAILED && fit) {
        release(m);
        status = build(m, attune__floor2(fit), NULL);
    }
    if (status == ATTUNE_OK)
        status = attune__opencl_kernel_first(m->device, &m->copy, set_copy(m));
    return status == ATTUNE_OK ? attune__opencl_kernel_first(m->device, &m->arithmetic, set_arithmetic(m, 0)) : status;
}

static attune_status measure(measurement *m, double *flops, double *bandwidth)
{
    const attune_limits *limits = &m->device->base.info.limits;
    const uint64_t size = copy_bytes(limits), results = sizeof(float) * m->width * MOST_THREADS;
    m->groups = UNIT_GROUPS * limits->compute_units;
    if (m->groups > size / results)
        m->groups = (uint32_t)(size / results);
    ATTUNE__TRY(attune__opencl_buffer_create(&m->device->base, size, &m->from));
    ATTUNE__TRY(attune__opencl_buffer_create(&m->device->base, size, &m->to));
    ATTUNE__TRY(make_kernels(m));
    if (flops)
        ATTUNE__TRY(measure_arithmetic(m, flops));
    return bandwidth ? measure_copy(m, bandwidth) : ATTUNE_OK;
}

attune_status attune__opencl_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth)
{
    measurement m = {
        .device = attune__opencl_of(device),
        .width = attune__opencl_serving_width(&device->info.limits),
        .seconds = device->info.limits.host ? HOST_SECONDS : SECONDS,
    };
    if (dtype == ATTUNE_F64)
        return attune__fail(ATTUNE_UNSUPPORTED, "device %s: the OpenCL kernels do not compute in f64", device->info.id);
    const attune_status status = measure(&m, flops, bandwidth);
    release(&m);
    if (m.to)
        attune__opencl_buffer_destroy(m.to);
    if (m.from)
        attune__opencl_buffer_destroy(m.from);
    return status;
}

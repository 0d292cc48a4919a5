/* SPDX-License-Identifier: MIT */
/* The device: description of the machine, kernels, threads. */
#include "cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <unistd.h>
#endif

#include "base/alloc.h"
#include "base/error.h"

/* Larger numbers are assumed to be typing errors. */
#define MAX_THREADS 4096

#define MIN_L2 (UINT32_C(256) << 10)
#define ANY_L2 (UINT32_C(512) << 10)

/* Portable C first, overridden by the best instruction set of the processor. */
static void choose_kernels(attune__cpu_kernels_f32 *f32, attune__cpu_kernels_f64 *f64)
{
    attune__cpu_kernels_generic_f32(f32);
    attune__cpu_kernels_generic_f64(f64);
    if (attune__cpu_kernels_avx2(f32))
        attune__cpu_kernels_avx512(f32);
    attune__cpu_kernels_neon(f32);
}

/* The table of kernels for 16-bit matrices, as bits of limits.matrix. */
static uint32_t choose_matrices(attune__cpu_matrix *bf16, attune__cpu_matrix *amx)
{
    return (attune__cpu_matrix_bf16(bf16) || attune__cpu_matrix_neon(bf16) ? ATTUNE_MATRIX_CPU_BF16 : 0) |
           (attune__cpu_matrix_amx(amx) ? ATTUNE_MATRIX_AMX : 0);
}

static const attune__functions *choose_functions(void)
{
    const attune__functions *const sets[] = {attune__cpu_functions_avx512(), attune__cpu_functions_avx2(),
                                             attune__cpu_functions_neon()};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (sets[i])
            return sets[i];
    return attune__cpu_functions_generic();
}

static uint32_t thread_count(const attune__host *host)
{
    uint32_t count = host->cpu_threads ? host->cpu_threads : attune__pool_cores();
    return count < MAX_THREADS ? count : MAX_THREADS;
}

/* "model name : AMD EPYC 7763 64-Core Processor" */
static void processor_name(char *name, size_t size)
{
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        colon += 1 + strspn(colon + 1, " \t");
        if (*colon)
            snprintf(name, size, "%s", colon);
        break;
    }
    fclose(file);
}

static uint32_t l2_bytes(void)
{
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    if (bytes <= 0 || bytes > INT32_MAX)
        return ANY_L2;
    return (uint32_t)bytes < MIN_L2 ? MIN_L2 : (uint32_t)bytes;
}

static uint64_t memory_bytes(void)
{
#if defined(_WIN32)
    MEMORYSTATUSEX about = {.dwLength = sizeof about};
    return GlobalMemoryStatusEx(&about) ? about.ullTotalPhys : 0;
#else
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
#endif
}

static void fill_info(attune_device_info *info, uint32_t threads, uint32_t lanes, uint32_t matrix)
{
    *info = (attune_device_info){.struct_size = sizeof *info, .backend = ATTUNE_BACKEND_CPU, .available = true};
    snprintf(info->id, sizeof info->id, "cpu");
    processor_name(info->name, sizeof info->name);
    info->limits = (attune_limits){
        .struct_size = sizeof info->limits,
        .backend = ATTUNE_BACKEND_CPU,
        .compute_units = threads,
        .shared_memory = l2_bytes(),
        .workgroup_invocations = 1,
        .subgroup_size = lanes,
        .matrix = matrix,
        .f16 = true,
        .bf16 = true,
        .f64 = true,
        .memory = memory_bytes(),
    };
}

static attune_status device_count(const attune__host *host, uint32_t *count, char *reason, size_t reason_size)
{
    (void)host;
    *count = 1;
    if (reason_size)
        reason[0] = '\0';
    return ATTUNE_OK;
}

static attune_status device_describe(const attune__host *host, uint32_t index, attune_device_info *info)
{
    if (index > 0)
        return attune__fail(ATTUNE_UNAVAILABLE, "cpu:%u: there is one CPU device, cpu:0", index);
    attune__cpu_kernels_f32 f32;
    attune__cpu_kernels_f64 f64;
    attune__cpu_matrix bf16, amx;
    choose_kernels(&f32, &f64);
    fill_info(info, thread_count(host), f32.lanes, choose_matrices(&bf16, &amx));
    return ATTUNE_OK;
}

static void device_close(attune_device *device)
{
    attune__cpu_device *mine = (attune__cpu_device *)device;
    const attune_allocator allocator = device->host.allocator;
    attune__pool_destroy(mine->pool);
    attune__free(&allocator, mine);
}

static attune_status device_open(const attune__host *host, uint32_t index, attune_device **device)
{
    if (index > 0)
        return attune__fail(ATTUNE_UNAVAILABLE, "cpu:%u: there is one CPU device, cpu:0", index);
    attune__cpu_device *made = attune__alloc(&host->allocator, 1, sizeof *made);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    made->base.backend = &attune__cpu_backend;
    made->base.host = *host;
    made->queue.device = &made->base;
    made->base.queue = &made->queue;
    atomic_init(&made->base.lost, false);
    choose_kernels(&made->f32, &made->f64);
    const uint32_t matrix = choose_matrices(&made->bf16, &made->amx);
    made->functions = choose_functions();
    const uint32_t wanted = thread_count(host);
    made->pool = attune__pool_create(&host->allocator, wanted, &host->parallel_for);
    if (!made->pool) {
        attune__free(&host->allocator, made);
        return ATTUNE_OUT_OF_HOST_MEMORY;
    }
    const uint32_t threads = attune__pool_threads(made->pool);
    if (threads < wanted)
        attune__log(host, ATTUNE_LOG_WARNING, "cpu: the system started %u of %u threads", threads, wanted);
    fill_info(&made->base.info, threads, made->f32.lanes, matrix);
    *device = &made->base;
    return ATTUNE_OK;
}

const attune__backend attune__cpu_backend = {
    .kind = ATTUNE_BACKEND_CPU,
    .name = "cpu",
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .close = device_close,
    .measure = attune__cpu_measure,
    .buffer_create = attune__cpu_buffer_create,
    .buffer_wrap = attune__cpu_buffer_wrap,
    .buffer_destroy = attune__cpu_buffer_destroy,
    .buffer_write = attune__cpu_buffer_write,
    .buffer_read = attune__cpu_buffer_read,
    .buffer_memory = attune__cpu_buffer_memory,
    .mask_update = attune__cpu_mask_update,
    .programs_create = attune__cpu_programs_create,
    .program_destroy = attune__cpu_program_destroy,
    .forward = attune__cpu_forward,
    .decode = attune__cpu_decode,
    .schedule_size = attune__cpu_schedule_bytes,
    .schedule = attune__cpu_schedule_write,
    .append = attune__cpu_append,
    .backward = attune__cpu_backward,
    .merger_create = attune__cpu_merger_create,
    .fewer_heads = true,
    .merger_destroy = attune__cpu_merger_destroy,
    .merge = attune__cpu_merge,
    .merge_backward = attune__cpu_merge_backward,
    .f32_outputs = true,
    .missing_reason = "",
};

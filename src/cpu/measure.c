/* SPDX-License-Identifier: MIT */
/* Measures peaks on all threads: independent multiply-adds, or products of 16-bit matrices, and a large copy. */
#include "cpu/cpu.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"

#define SECONDS    0.3
#define COPY_BYTES ((size_t)64 << 20)

typedef struct measurement {
    const attune__cpu_device *device;
    bool f64;
    size_t rounds;                    /* of each thread */
    const attune__cpu_matrix *matrix; /* of 16-bit types; NULL = none */
    char *to, *from;
    uint32_t threads;
    atomic_uint next;    /* index of a thread's share */
    _Atomic double sink; /* keeps the arithmetic alive */
} measurement;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A product whose operands stay in the first cache, of as many terms as a head has. */
#define ROWS    32
#define COLUMNS 32
#define DEPTH   128

static double products(const attune__cpu_matrix *matrix, size_t rounds)
{
    _Alignas(64) uint16_t a[ROWS * DEPTH], b[COLUMNS * DEPTH];
    _Alignas(64) float c[ROWS * COLUMNS] = {0};
    for (size_t i = 0; i < ROWS * DEPTH; i++)
        a[i] = b[i] = (uint16_t)(0x3c00 + i % 251); /* about 2^-7: zeros would take less power */
    matrix->begin();
    for (size_t i = 0; i < rounds; i++)
        matrix->multiply(c, COLUMNS, a, DEPTH, ROWS, DEPTH / ATTUNE__BLOCK_K, b, ATTUNE__PANEL * DEPTH,
                         COLUMNS / ATTUNE__PANEL, 1, true, false);
    matrix->end();
    return (double)c[0];
}

static void multiply_adds(void *user, uint32_t thread)
{
    (void)thread;
    measurement *m = user;
    while (atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed) < m->threads) {
        double result = m->matrix ? products(m->matrix, m->rounds)
                        : m->f64  ? m->device->f64.peak(m->rounds)
                                  : (double)m->device->f32.peak(m->rounds);
        atomic_store_explicit(&m->sink, result, memory_order_relaxed);
    }
}

static void copy(void *user, uint32_t thread)
{
    (void)thread;
    measurement *m = user;
    for (;;) {
        const size_t share = atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed);
        if (share >= m->threads)
            return;
        const size_t begin = COPY_BYTES / m->threads * share;
        const size_t end = share + 1 == m->threads ? COPY_BYTES : COPY_BYTES / m->threads * (share + 1);
        memcpy(m->to + begin, m->from + begin, end - begin);
    }
}

static double run(measurement *m, attune__pool_fn fn)
{
    const double before = now();
    atomic_store_explicit(&m->next, 0, memory_order_relaxed);
    attune__pool_run(m->device->pool, m->threads, fn, m);
    return now() - before;
}

/* The kernels that the planner prefers. */
static const attune__cpu_matrix *matrix_of(const attune__cpu_device *device, attune_dtype dtype)
{
    if (device->amx.name && (dtype == ATTUNE_BF16 || dtype == ATTUNE_F16))
        return &device->amx;
    return dtype == ATTUNE_BF16 && device->bf16.name ? &device->bf16 : NULL;
}

attune_status attune__cpu_measure(attune_device *device, attune_dtype dtype, double *flops, double *bandwidth)
{
    attune__cpu_device *mine = (attune__cpu_device *)device;
    measurement m = {.device = mine, .f64 = dtype == ATTUNE_F64, .threads = attune__pool_threads(mine->pool)};
    if (bandwidth) {
        const attune_allocator *allocator = &device->host.allocator;
        m.from = attune__alloc_raw(allocator, COPY_BYTES, 1);
        m.to = m.from ? attune__alloc_raw(allocator, COPY_BYTES, 1) : NULL;
        if (!m.to) {
            attune__free(allocator, m.from);
            return ATTUNE_OUT_OF_HOST_MEMORY;
        }
        memset(m.from, 1, COPY_BYTES);
        memset(m.to, 2, COPY_BYTES);
        double best = 0;
        for (const double start = now(); now() - start < SECONDS;) {
            const double rate = 2.0 * (double)COPY_BYTES / run(&m, copy);
            best = rate > best ? rate : best;
        }
        attune__free(allocator, m.to);
        attune__free(allocator, m.from);
        *bandwidth = best;
    }
    if (flops) {
        m.matrix = matrix_of(mine, dtype);
        const double round = m.matrix ? 2.0 * ROWS * COLUMNS * DEPTH
                             : m.f64  ? mine->f64.peak_flops
                                      : mine->f32.peak_flops;
        double best = 0;
        m.rounds = 1000;
        for (const double start = now(); now() - start < SECONDS;) {
            const double seconds = run(&m, multiply_adds);
            const double rate = round * (double)m.rounds * m.threads / seconds;
            /* Shorter runs are dominated by waking the threads. */
            if (seconds < 0.02)
                m.rounds *= 2;
            else
                best = rate > best ? rate : best;
        }
        *flops = best;
    }
    return ATTUNE_OK;
}

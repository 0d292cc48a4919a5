/* SPDX-License-Identifier: MIT */
/* The workloads of training, shrunk, forwards and backwards against the dense computation in float64; those whose keys
 * are in two buffers also over segments. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/segments.h"
#include "bench/workloads/workload.h"
#include "cases/gradients.h"
#include "support/devices.h"

static const char *const names[] = {"dflash",
                                    "dflash_window",
                                    "domino",
                                    "eagle3_ttt",
                                    "p_eagle",
                                    "document_packing",
                                    "shared_prefix",
                                    "multi_image",
                                    "learned_relative_bias",
                                    "learned_temperature"};
#define SEGMENTED 4 /* the first, whose keys are in more than one buffer */

/* A few hundred keys, one batch and few heads. */
static workload shrink(const char *name, attune_dtype dtype)
{
    const workload *whole = workload_find(name);
    cr_assert_not_null(whole, "%s", name);
    const double pairs = (double)(whole->batch * whole->heads) * (double)whole->q_len * (double)whole->kv_len;
    workload w = workload_scaled(whole, 3e5 / pairs);
    w.dtype = dtype;
    return w;
}

/* As the error rule has it, and a rounding of each of the largest: sums of few elements cancel. */
static void compare(const char *name, attune_dtype dtype, const char *what, const array *got, const double *oracle,
                    const double *naive)
{
    const int64_t count = array_count(got);
    reference_error error;
    reference_compare(dtype, count, got->data, oracle, naive, &error);
    double largest = 0, scatter = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(oracle[i]));
        scatter += oracle[i] * oracle[i];
    }
    const double unit = reference_epsilon(dtype) * (dtype == ATTUNE_F64 ? 64 : 1);
    reference_allow(&error, unit * largest * 4, unit * sqrt(scatter) * 4 / (double)count);
    cr_expect(error.pass, "%s %s %s: max %.3g (bound %.3g) mean %.3g (bound %.3g), %lld wrong patterns", name,
              attune_dtype_string(dtype), what, error.max, error.bound_max, error.mean, error.bound_mean,
              (long long)error.pattern_errors);
}

typedef struct expected {
    gradient_result of[2]; /* oracle and naive */
    double *memory;
} expected;

static expected compute(const attention *a, const array *d_o, const array *d_lse, uint32_t wanted)
{
    expected e = {0};
    failure why;
    const int64_t queries = array_count(&a->q), keys = array_count(&a->k), values = array_count(&a->v);
    const int64_t each = queries + keys + values + attention_capture_elements(a, wanted);
    e.memory = calloc((size_t)(2 * each), sizeof *e.memory);
    cr_assert_not_null(e.memory);
    for (int i = 0; i < 2; i++) {
        double *next = e.memory + i * each;
        gradient_result *r = &e.of[i];
        *r = (gradient_result){.d_q = next, .d_k = next + queries, .d_v = next + queries + keys};
        next = r->d_v + values;
        for (uint32_t c = 0; c < a->capture_count; c++)
            if (wanted >> c & 1) {
                r->d_captures[c] = next;
                next += attention_capture_elements(a, 1u << c);
            }
        cr_assert(gradients_compute(a, d_o, d_lse, i ? REFERENCE_NAIVE : REFERENCE_ORACLE, r, &why), "%s", why.message);
    }
    return e;
}

static void run(attune_instance *instance, attune_device *device, const char *name, attune_dtype dtype, bool segmented)
{
    const workload w = shrink(name, dtype);
    attention a;
    failure why;
    array d_o, d_lse;
    cr_assert(workload_instantiate(instance, &w, test_seed(), &a, &why), "%s", why.message);
    const int64_t size[4] = {a.q.size[0], a.q.size[1], a.q.size[2], a.v.size[3]};
    random_state random = {test_seed()};
    cr_assert(array_create(&d_o, dtype, 4, size, &why));
    cr_assert(array_create(&d_lse, dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 3, size, &why));
    array_fill_normal(&d_o, &random, 1);
    array_fill_normal(&d_lse, &random, 1);
    attention_gradients g = {.d_o = &d_o, .d_lse = &d_lse, .captures = attention_differentiable(&a)};
    cr_assert(!strstr(name, "learned") || g.captures, "%s: no capture is learned", name);
    attention_run how = {.gradients = &g};
    int64_t lengths[SEGMENTS_MAX];
    if (segmented) {
        how.segments = lengths;
        how.segment_count = workload_cut(&w, lengths);
        cr_assert(how.segment_count, "%s: its keys are in one buffer", name);
    }
    cr_assert_eq(attention_forward(instance, device, &a, &how), ATTUNE_OK, "%s: %s", name, attune_last_error());
    expected e = compute(&a, &d_o, &d_lse, g.captures);
    compare(name, dtype, "dq", &g.d_q, e.of[0].d_q, e.of[1].d_q);
    compare(name, dtype, "dk", &g.d_k, e.of[0].d_k, e.of[1].d_k);
    compare(name, dtype, "dv", &g.d_v, e.of[0].d_v, e.of[1].d_v);
    for (uint32_t c = 0; c < a.capture_count; c++)
        if (g.captures >> c & 1)
            compare(name, dtype == ATTUNE_F64 ? ATTUNE_F32 : dtype, a.captures[c].name, &g.d_captures[c],
                    e.of[0].d_captures[c], e.of[1].d_captures[c]);
    free(e.memory);
    attention_gradients_free(&g);
    array_free(&d_o);
    array_free(&d_lse);
    workload_release(&a);
}

/* each: every workload with every dtype, else one dtype each. */
static void run_all(const char *backend, const attune_dtype *dtypes, size_t count, bool each, bool segmented)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    const size_t all = segmented ? SEGMENTED : sizeof names / sizeof names[0];
    /* A driver that compiles on the CPU takes seconds for a workload: a scaled run has a share of them. */
    const size_t share = test_sampled() && !strcmp(backend, "opencl") ? 2 : all;
    const size_t most = each ? all : (size_t)scaled(share);
    for (size_t i = 0; i < all && i < most; i++)
        for (size_t j = 0; j < (each ? count : 1); j++)
            run(instance, device, names[i], dtypes[each ? j : i % count], segmented);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

static const attune_dtype dtypes[] = {ATTUNE_F64, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};

Test(training, cpu)
{
    run_all("cpu", dtypes, sizeof dtypes / sizeof dtypes[0], true, false);
}

Test(training, segments_cpu)
{
    run_all("cpu", dtypes, sizeof dtypes / sizeof dtypes[0], true, true);
}

/* Elsewhere partial results of 16-bit plans are rounded: docs/numerics.md. */
#define BACKEND(name, every)                                                                                           \
    Test(training, name)                                                                                               \
    {                                                                                                                  \
        run_all(#name, dtypes + 1, 3, every, false);                                                                   \
    }                                                                                                                  \
    Test(training, segments_##name)                                                                                    \
    {                                                                                                                  \
        run_all(#name, dtypes + 1, 1, every, true);                                                                    \
    }

BACKEND(vulkan, false)
BACKEND(cuda, true)
BACKEND(opencl, false)

/* SPDX-License-Identifier: MIT */
/* The suite of public mods and masks (bench/workloads/shapes/mods.json): each row has its source, and is computed
 * forwards and backwards as the float64 oracle computes it. */
#include "bench/workloads/workload.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/gradients.h"
#include "support/devices.h"

static attune_instance *instance;
static attune_device *device;
static workload *list;
static uint32_t count;

static void setup(void)
{
    char path[4096];
    failure why = {{0}};
    const char *source = getenv("ATTUNE_SOURCE");
    (void)snprintf(path, sizeof path, "%s/bench/workloads/shapes/mods.json", source ? source : ".");
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    cr_assert(workload_load(path, &list, &count, &why), "%s", why.message);
}

static void teardown(void)
{
    workload_list_free(list, count);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

TestSuite(public_mods, .init = setup, .fini = teardown);

Test(public_mods, every_row_has_a_source)
{
    cr_assert_geq(count, 40);
    for (uint32_t i = 0; i < count; ++i) {
        const char *source = strstr(list[i].description, "https://");
        cr_assert(source && strchr(source + strlen("https://"), '/'), "%s: %s", list[i].name, list[i].description);
        for (uint32_t j = 0; j < i; ++j)
            cr_assert(strcmp(list[i].name, list[j].name) != 0, "%s", list[i].name);
    }
}

/* Some ninety rows and keys in two heads, so that heads differ. */
static workload shrink(const workload *whole)
{
    const double pairs = (double)(whole->batch * whole->heads) * (double)whole->q_len * (double)whole->kv_len;
    workload w = workload_scaled(whole, 8000 / pairs);
    cr_assert_lt(w.kv_len, 300, "%s does not shrink", w.name);
    w.heads = w.kv_heads = 2;
    w.head_dim = w.head_dim_v = 16;
    w.dtype = ATTUNE_F32;
    return w;
}

static void compare(const char *name, const char *what, const array *got, const double *oracle, double cancelled)
{
    reference_error error;
    reference_compare_gradient(ATTUNE_F32, array_count(got), got->data, oracle, cancelled, &error);
    cr_expect(error.pass, "%s d%s: max %.3g (bound %.3g), %lld wrong patterns", name, what, error.max, error.bound_max,
              (long long)error.pattern_errors);
}

static void check_gradients(const workload *w, const attention *a, const array *d_o, const attention_gradients *g)
{
    reference_cancellation cancelled = {0};
    gradient_result r = {0};
    failure why = {{0}};
    double *memory[3 + ATTUNE_EXPR_MAX_SYMBOLS] = {0};
    const array *got[] = {&g->d_q, &g->d_k, &g->d_v};
    for (int i = 0; i < 3; ++i)
        memory[i] = calloc((size_t)array_count(got[i]), sizeof **memory);
    r.d_q = memory[0], r.d_k = memory[1], r.d_v = memory[2];
    for (uint32_t c = 0; c < a->capture_count; ++c)
        if (g->captures >> c & 1)
            r.d_captures[c] = memory[3 + c] = calloc((size_t)attention_capture_elements(a, 1u << c), sizeof **memory);
    cr_assert(gradients_compute(a, d_o, NULL, REFERENCE_ORACLE, &r, &why), "%s: %s", w->name, why.message);
    cr_assert(reference_cancelled(instance, a, d_o, NULL, g->captures, &cancelled, &why), "%s: %s", w->name,
              why.message);
    compare(w->name, "q", &g->d_q, r.d_q, cancelled.d_q);
    compare(w->name, "k", &g->d_k, r.d_k, cancelled.d_k);
    compare(w->name, "v", &g->d_v, r.d_v, cancelled.d_v);
    for (uint32_t c = 0; c < a->capture_count; ++c)
        if (g->captures >> c & 1)
            compare(w->name, a->captures[c].name, &g->d_captures[c], r.d_captures[c], cancelled.d_captures[c]);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i)
        free(memory[i]);
}

static void check_o(const workload *w, const attention *a, const array *o)
{
    const int64_t rows = a->q.size[0] * a->q.size[1] * a->q.size[2], columns = a->v.size[3];
    const size_t elements = (size_t)(rows * columns);
    double *memory = calloc(3 * elements + 4 * (size_t)rows, sizeof *memory);
    cr_assert_not_null(memory);
    double *next = memory + 3 * elements;
    const reference_result oracle = {.o = memory, .moved = memory + elements, .lse = next, .row_max = next + rows};
    const reference_result naive = {.o = memory + 2 * elements, .lse = next + 2 * rows, .row_max = next + 3 * rows};
    reference_error error;
    failure why = {{0}};
    cr_assert(reference_compute(a, REFERENCE_ORACLE, NULL, 0, &oracle, &why), "%s", why.message);
    cr_assert(reference_compute(a, REFERENCE_NAIVE, NULL, 0, &naive, &why), "%s", why.message);
    reference_compare_o(ATTUNE_F32, ATTUNE_F32, rows, columns, o->data, &oracle, &naive, &error);
    cr_expect(error.pass, "%s: max %.3g (bound %.3g) mean %.3g (bound %.3g), %lld wrong patterns", w->name, error.max,
              error.bound_max, error.mean, error.bound_mean, (long long)error.pattern_errors);
    free(memory);
}

Test(public_mods, every_row_is_correct)
{
    for (uint32_t i = 0; i < count; ++i) {
        const workload w = shrink(&list[i]);
        attention a;
        array d_o, o;
        failure why = {{0}};
        random_state random = {test_seed()};
        cr_assert(workload_instantiate(instance, &w, test_seed(), &a, &why), "%s", why.message);
        const int64_t size[4] = {a.q.size[0], a.q.size[1], a.q.size[2], a.v.size[3]};
        cr_assert(array_create(&d_o, ATTUNE_F32, 4, size, &why));
        array_fill_normal(&d_o, &random, 1);
        attention_gradients g = {.d_o = &d_o, .captures = attention_differentiable(&a)};
        attention_run run = {.o = &o, .gradients = &g};
        cr_assert_eq(attention_forward(instance, device, &a, &run), ATTUNE_OK, "%s: %s", w.name, attune_last_error());
        check_o(&w, &a, &o);
        check_gradients(&w, &a, &d_o, &g);
        attention_gradients_free(&g);
        array_free(&d_o);
        array_free(&o);
        workload_release(&a);
    }
}

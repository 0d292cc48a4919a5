/* SPDX-License-Identifier: MIT */
/* Timing statistics: quantiles, the U test against published and enumerated values, and when a measurement ends. */
#include "bench/timing/measure.h"

#include "bench/timing/noise.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

Test(statistics, quantiles_are_type_7)
{
    const double sorted[] = {1, 2, 3, 4, 5};
    cr_assert_float_eq(statistics_quantile(sorted, 5, 0.5), 3, 1e-15);
    cr_assert_float_eq(statistics_quantile(sorted, 5, 0.1), 1.4, 1e-12); /* numpy.percentile([1..5], 10) */
    cr_assert_float_eq(statistics_quantile(sorted, 5, 0.9), 4.6, 1e-12);
    cr_assert_float_eq(statistics_quantile(sorted, 4, 0.5), 2.5, 1e-15);
    cr_assert_eq(statistics_quantile(sorted, 1, 0.9), 1);
    cr_assert_eq(statistics_quantile(sorted, 5, 1), 5);
    cr_assert_eq(statistics_quantile(sorted, 0, 0.5), 0);
}

Test(statistics, summary_of_unsorted_samples)
{
    double samples[] = {5, 1, 4, 2, 3};
    measurement m = {.samples = samples, .count = 5};
    statistics_finish(&m);
    cr_assert_eq(m.median, 3);
    cr_assert_eq(m.least, 1);
    cr_assert_eq(m.most, 5);
    cr_assert_eq(m.mean, 3);
    cr_assert_float_eq(m.deviation, sqrt(2.5), 1e-15);
    cr_assert_eq(samples[0], 5, "the order of measuring stays");
}

/* Every assignment of the ranks 1..n+m to two groups. */
static double enumerate_p(const double *a, uint32_t n, const double *b, uint32_t m)
{
    double all[16];
    uint32_t total = n + m, extreme = 0, count = 0;
    double observed = 0, middle = 0.5 * n * m;
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t j = 0; j < m; ++j)
            observed += a[i] > b[j];
    for (uint32_t i = 0; i < total; ++i)
        all[i] = i;
    for (uint32_t set = 0; set < 1u << total; ++set) {
        uint32_t bits = 0;
        double u = 0;
        for (uint32_t i = 0; i < total; ++i)
            bits += set >> i & 1;
        if (bits != n)
            continue;
        for (uint32_t i = 0; i < total; ++i)
            for (uint32_t j = 0; j < total; ++j)
                u += (set >> i & 1) && !(set >> j & 1) && all[i] > all[j];
        ++count;
        extreme += fabs(u - middle) >= fabs(observed - middle);
    }
    return (double)extreme / count;
}

Test(statistics, mann_whitney_is_exact_for_few_samples)
{
    const double a[] = {1.1, 2.2, 3.3, 4.4, 9.9}, b[] = {0.5, 5.5, 6.6, 7.7, 8.8, 10.1};
    for (uint32_t n = 1; n <= 5; ++n)
        for (uint32_t m = 1; m <= 6; ++m)
            cr_assert_float_eq(statistics_mann_whitney(a, n, b, m), enumerate_p(a, n, b, m), 1e-12, "n %u m %u", n, m);
}

Test(statistics, mann_whitney_with_ties_and_many_samples)
{
    const double a[] = {19, 22, 16, 29, 24}, b[] = {20, 11, 17, 12};
    cr_assert_float_eq(statistics_mann_whitney(a, 5, b, 4), 1.0 / 9, 1e-12); /* the example of SciPy's manual */
    const double c[] = {1, 2, 2, 3, 3, 3, 4, 5}, d[] = {2, 3, 4, 4, 5, 5, 6, 6};
    /* By hand from the formula, with half-ranks for ties and the continuity correction. */
    cr_assert_float_eq(statistics_mann_whitney(c, 8, d, 8), 0.05445716006458979, 1e-12);
    double e[60], f[60];
    for (int i = 0; i < 60; ++i) {
        e[i] = i;
        f[i] = i + 0.5;
    }
    cr_assert_float_eq(statistics_mann_whitney(e, 60, f, 60), 0.8770, 1e-3);
    for (int i = 0; i < 60; ++i)
        f[i] = i + 1000;
    cr_assert_lt(statistics_mann_whitney(e, 60, f, 60), 1e-15);
}

Test(statistics, mann_whitney_edges)
{
    const double a[] = {1, 1, 1}, b[] = {1, 1, 1};
    cr_assert_eq(statistics_mann_whitney(a, 3, b, 3), 1);
    cr_assert_eq(statistics_mann_whitney(a, 0, b, 3), 1);
    cr_assert_eq(statistics_mann_whitney(NULL, 0, NULL, 0), 1);
}

typedef struct fake {
    uint32_t calls, fail_at;
    double seconds;
    volatile sig_atomic_t *stop;
} fake;

static bool fake_call(void *context, double *seconds)
{
    fake *f = context;
    *seconds = f->seconds;
    if (f->stop && f->calls == 3)
        *f->stop = 1;
    return ++f->calls != f->fail_at;
}

Test(statistics, iterations_follow_the_shortest_time)
{
    fake f = {.seconds = 1e-3};
    measurement m;
    cr_assert(measure_run(&(measure_options){.repetitions = 10, .warmup = 2, .min_time = 0.1}, fake_call, &f, &m));
    cr_assert_eq(m.count, 10);
    cr_assert_eq(m.iterations, 10);
    cr_assert_eq(m.warmup, 2);
    cr_assert_eq(f.calls, 102);
    cr_assert_float_eq(m.median, 1e-3, 1e-12);
    statistics_free(&m);
    f = (fake){.seconds = 1};
    cr_assert(measure_run(&(measure_options){.repetitions = 3, .min_time = 0.1}, fake_call, &f, &m));
    cr_assert_eq(f.calls, 3);
    statistics_free(&m);
}

Test(statistics, stops_and_failures)
{
    volatile sig_atomic_t stop = 0;
    fake f = {.seconds = 1, .stop = &stop};
    measurement m;
    cr_assert(measure_run(&(measure_options){.repetitions = 10, .warmup = 1, .stop = &stop}, fake_call, &f, &m));
    cr_assert_eq(m.count, 3);
    cr_assert(m.cut);
    statistics_free(&m);
    /* Asked to stop before the first sample: there is none. */
    f = (fake){.seconds = 1};
    cr_assert_not(measure_run(&(measure_options){.repetitions = 10, .warmup = 1, .stop = &stop}, fake_call, &f, &m));
    cr_assert(m.cut);
    statistics_free(&m);
    f = (fake){.seconds = 1, .fail_at = 4};
    cr_assert_not(measure_run(&(measure_options){.repetitions = 10, .warmup = 1}, fake_call, &f, &m));
    cr_assert_eq(m.count, 2);
    statistics_free(&m);
}

Test(statistics, noise_of_the_machine)
{
    cr_expect_float_eq(noise_busy("cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2", 100), 1.71, 1e-12);
    cr_expect_eq(noise_busy("intr 5", 100), -1);
    cr_expect_eq(noise_busy("cpu 1 2 3 4 5 6 7", 100), -1, "before Linux 2.6.11");
    cr_expect_float_eq(noise_clock("cpu MHz\t\t: 2400.5\nflags\t: x\ncpu MHz\t\t: 3100.0\n"), 3.1e9, 1);
    cr_expect_eq(noise_clock("model name : Cortex-A76\n"), 0);

    double samples[12];
    for (int i = 0; i < 12; ++i)
        samples[i] = 1 + 0.001 * (i * 7 % 5) + (i >= 6 ? 0.2 : 0);
    measurement m = {.samples = samples, .count = 12};
    noise_mark begin = {.seconds = 10, .busy = 100, .own = 5, .clock = 3e9}, end = begin;
    end.seconds = 20;
    end.busy = 104;
    end.own = 9;
    noise_between(&begin, &end, &m);
    cr_expect_eq(m.others, 0, "all of it is its own");
    cr_expect_float_eq(m.drift, 0.2, 0.01);
    cr_expect_lt(m.drift_p, 0.01);
    end.busy = 1e6;
    noise_between(&begin, &end, &m);
    cr_expect_eq(m.others, 1);
    end.busy = -1;
    noise_between(&begin, &end, &m);
    cr_expect_eq(m.others, -1);
    m.count = 7; /* three in each half decide nothing */
    noise_between(&begin, &end, &m);
    cr_expect(m.drift == 0 && m.drift_p == 1);
}

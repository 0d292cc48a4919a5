/* SPDX-License-Identifier: MIT */
/* Repeated timing, quantiles and the U test. */
#include "bench/timing/measure.h"

#include "bench/timing/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXACT_LIMIT 20 /* samples on each side */

static double clock_seconds(clockid_t id)
{
    struct timespec t;
    if (clock_gettime(id, &t) != 0)
        return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double measure_clock(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double measure_cpu_clock(void)
{
    return clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

static bool add_sample(measurement *m, uint32_t *capacity, double seconds, double cpu)
{
    if (m->count == *capacity) {
        uint32_t larger = *capacity ? 2 * *capacity : 16;
        double *samples = realloc(m->samples, larger * sizeof *samples);
        if (samples)
            m->samples = samples;
        double *times = realloc(m->cpu, larger * sizeof *times);
        if (times)
            m->cpu = times;
        if (!samples || !times)
            return false;
        *capacity = larger;
    }
    m->samples[m->count] = seconds;
    m->cpu[m->count++] = cpu;
    return true;
}

static bool timed_out(const measure_options *o, double begin)
{
    return (o->stop && *o->stop) || (o->timeout > 0 && measure_clock() - begin > o->timeout);
}

bool measure_run(const measure_options *options, measure_call call, void *context, measurement *m)
{
    memset(m, 0, sizeof *m);
    double begin = measure_clock(), seconds = 0, total = 0;
    uint32_t capacity = 0, repetitions = options->repetitions ? options->repetitions : 1;
    bool good = true;
    noise_mark before = noise_now();
    for (; (m->warmup < options->warmup || (m->warmup && measure_clock() - begin < options->warmup_time)) &&
           !(m->warmup && timed_out(options, begin));
         ++m->warmup) {
        if (!call(context, &seconds))
            return false;
        /* Looking takes milliseconds: after the first call, so that no pause lies before the samples. */
        if (!m->warmup)
            before = noise_now();
    }
    m->iterations = 1;
    if (m->warmup && seconds > 0) {
        double wanted = ceil(options->min_time / (repetitions * seconds));
        m->iterations = wanted < 1 ? 1 : wanted > 1e6 ? 1000000 : (uint64_t)wanted;
    }
    /* At least one sample, even after the timeout; more than the repetitions only until min_time is reached. */
    while (m->count < repetitions || (total < options->min_time && m->count < 1000 + repetitions)) {
        if (m->count && timed_out(options, begin)) {
            m->cut = m->count < repetitions;
            break;
        }
        if (!m->count && options->stop && *options->stop) {
            m->cut = true;
            break;
        }
        double sum = 0, cpu = measure_cpu_clock();
        uint64_t done = 0;
        while (good && done < m->iterations && !(done && timed_out(options, begin))) {
            good = call(context, &seconds);
            sum += seconds;
            ++done;
        }
        if (!good)
            break;
        double share = 1 / (double)done;
        if (!add_sample(m, &capacity, sum * share, (measure_cpu_clock() - cpu) * share))
            break;
        total += sum;
    }
    const noise_mark after = noise_now();
    noise_between(&before, &after, m);
    measure_finish(m);
    return good && m->count > 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_quantile(const double *sorted, uint32_t count, double p)
{
    if (!count)
        return 0;
    double at = p * (double)(count - 1);
    uint32_t low = (uint32_t)at;
    if (low + 1 >= count)
        return sorted[count - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

void measure_finish(measurement *m)
{
    if (!m->count)
        return;
    double *sorted = malloc(m->count * sizeof *sorted);
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < m->count; ++i)
        sum += m->samples[i];
    m->mean = sum / m->count;
    for (uint32_t i = 0; i < m->count; ++i)
        squares += (m->samples[i] - m->mean) * (m->samples[i] - m->mean);
    m->deviation = m->count > 1 ? sqrt(squares / (m->count - 1)) : 0;
    m->median = m->p10 = m->p90 = m->least = m->most = m->mean; /* without memory for sorting */
    if (!sorted)
        return;
    memcpy(sorted, m->samples, m->count * sizeof *sorted);
    qsort(sorted, m->count, sizeof *sorted, compare_doubles);
    m->median = measure_quantile(sorted, m->count, 0.5);
    m->p10 = measure_quantile(sorted, m->count, 0.1);
    m->p90 = measure_quantile(sorted, m->count, 0.9);
    m->least = sorted[0];
    m->most = sorted[m->count - 1];
    free(sorted);
}

void measure_free(measurement *m)
{
    free(m->samples);
    free(m->cpu);
    memset(m, 0, sizeof *m);
}

/* P(U <= u) for samples of a and b without ties, by the recurrence of Mann & Whitney on the number of orderings. */
static double exact_tail(uint32_t a, uint32_t b, uint32_t u)
{
    static const uint32_t width = EXACT_LIMIT * EXACT_LIMIT + 1;
    double *ways = calloc((size_t)(b + 1) * width, sizeof *ways); /* of i and j: row j, after i rounds */
    if (!ways)
        return -1;
    for (uint32_t j = 0; j <= b; ++j)
        ways[j * width] = 1;
    /* ways(i, j, u) = ways(i - 1, j, u - j) + ways(i, j - 1, u); j ascends, so row j - 1 is already of round i. */
    for (uint32_t i = 1; i <= a; ++i)
        for (uint32_t j = 1; j <= b; ++j)
            for (uint32_t n = width; n-- > 0;)
                ways[j * width + n] = (n >= j ? ways[j * width + n - j] : 0) + ways[(j - 1) * width + n];
    double tail = 0, all = 0;
    for (uint32_t n = 0; n < width; ++n) {
        all += ways[b * width + n];
        tail += n <= u ? ways[b * width + n] : 0;
    }
    free(ways);
    return tail / all;
}

typedef struct ranked {
    double value;
    bool first;
} ranked;

static int compare_ranked(const void *a, const void *b)
{
    return compare_doubles(&((const ranked *)a)->value, &((const ranked *)b)->value);
}

double measure_mann_whitney(const double *a, uint32_t a_count, const double *b, uint32_t b_count)
{
    uint32_t count = a_count + b_count;
    ranked *all = a_count && b_count ? malloc(count * sizeof *all) : NULL;
    if (!all)
        return 1;
    for (uint32_t i = 0; i < count; ++i)
        all[i] = i < a_count ? (ranked){a[i], true} : (ranked){b[i - a_count], false};
    qsort(all, count, sizeof *all, compare_ranked);
    double rank_sum = 0, ties = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i + 1;
        while (end < count && all[end].value == all[i].value)
            ++end;
        double rank = 0.5 * (double)(i + 1 + end), size = (double)(end - i);
        ties += size * size * size - size;
        for (; i < end; ++i)
            rank_sum += all[i].first ? rank : 0;
    }
    free(all);
    double m = (double)a_count, n = (double)b_count, total = (double)count;
    double u = rank_sum - m * (m + 1) / 2;
    double smaller = u < m * n - u ? u : m * n - u;
    if (ties == 0 && a_count <= EXACT_LIMIT && b_count <= EXACT_LIMIT) {
        double tail = exact_tail(a_count, b_count, (uint32_t)smaller);
        if (tail >= 0)
            return tail < 0.5 ? 2 * tail : 1;
    }
    double variance = m * n / 12 * (total + 1 - ties / (total * (total - 1)));
    double distance = fabs(u - m * n / 2) - 0.5;
    if (!(variance > 0) || distance <= 0)
        return 1;
    return erfc(distance / sqrt(2 * variance));
}

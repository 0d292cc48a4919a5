/* SPDX-License-Identifier: MIT */
#include "bench/timing/measure.h"

#include "bench/timing/clock.h"
#include "bench/timing/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    return (o->stop && *o->stop) || (o->timeout > 0 && clock_seconds() - begin > o->timeout);
}

bool measure_run(const measure_options *options, measure_call call, void *context, measurement *m)
{
    memset(m, 0, sizeof *m);
    double begin = clock_seconds(), seconds = 0, total = 0;
    uint32_t capacity = 0, repetitions = options->repetitions ? options->repetitions : 1;
    bool good = true;
    noise_mark before = noise_now();
    for (; (m->warmup < options->warmup || (m->warmup && clock_seconds() - begin < options->warmup_time)) &&
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
        double sum = 0, cpu = clock_cpu_seconds();
        uint64_t done = 0;
        while (good && done < m->iterations && !(done && timed_out(options, begin))) {
            good = call(context, &seconds);
            sum += seconds;
            ++done;
        }
        if (!good)
            break;
        double share = 1 / (double)done;
        if (!add_sample(m, &capacity, sum * share, (clock_cpu_seconds() - cpu) * share))
            break;
        total += sum;
    }
    const noise_mark after = noise_now();
    noise_between(&before, &after, m);
    statistics_finish(m);
    return good && m->count > 0;
}

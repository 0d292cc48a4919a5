/* SPDX-License-Identifier: MIT */
#include "bench/timing/noise.h"

#include "bench/timing/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHORTEST 0.05 /* seconds: /proc/stat counts in hundredths */
#define HALF     4    /* samples in each half, for a test of significance */

double noise_busy(const char *stat, double ticks_per_second)
{
    double user, nice, kernel, idle, wait, irq, softirq, steal;
    if (sscanf(stat, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &kernel, &idle, &wait, &irq, &softirq,
               &steal) != 8 ||
        !(ticks_per_second > 0))
        return -1;
    return (user + nice + kernel + irq + softirq + steal) / ticks_per_second;
}

double noise_clock(const char *cpuinfo)
{
    static const char key[] = "cpu MHz";
    double fastest = 0;
    for (const char *at = strstr(cpuinfo, key); at; at = strstr(at + 1, key)) {
        const char *const colon = at + strcspn(at, ":\n");
        const double mhz = *colon == ':' ? strtod(colon + 1, NULL) : 0;
        fastest = mhz > fastest ? mhz : fastest;
    }
    return 1e6 * fastest;
}

/* The beginning of a file, NULL if it cannot be read; to be freed. */
static char *read_text(const char *path, size_t size)
{
    FILE *file = fopen(path, "r");
    char *text = file ? malloc(size) : NULL;
    if (text)
        text[fread(text, 1, size - 1, file)] = '\0';
    if (file)
        (void)fclose(file);
    return text;
}

noise_mark noise_now(void)
{
    noise_mark mark = {.seconds = clock_seconds(), .own = clock_cpu_seconds(), .busy = -1};
    char *stat = read_text("/proc/stat", 1 << 10), *cpuinfo = read_text("/proc/cpuinfo", 1 << 20);
    if (stat)
        mark.busy = noise_busy(stat, (double)sysconf(_SC_CLK_TCK));
    if (cpuinfo)
        mark.clock = noise_clock(cpuinfo);
    free(stat);
    free(cpuinfo);
    return mark;
}

/* How much the second half of the samples differs from the first. */
static void find_drift(measurement *m)
{
    const uint32_t half = m->count / 2;
    measurement first = {.samples = m->samples, .count = half};
    measurement second = {.samples = m->samples + (m->count - half), .count = half};
    m->drift = 0;
    m->drift_p = 1;
    if (half < HALF)
        return;
    statistics_finish(&first);
    statistics_finish(&second);
    m->drift = first.median > 0 ? second.median / first.median - 1 : 0;
    m->drift_p = statistics_mann_whitney(first.samples, half, second.samples, half);
}

void noise_between(const noise_mark *begin, const noise_mark *end, measurement *m)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const double seconds = end->seconds - begin->seconds;
    m->others = -1;
    if (begin->busy >= 0 && end->busy >= 0 && seconds >= SHORTEST && cpus > 0) {
        const double others = (end->busy - begin->busy - (end->own - begin->own)) / (seconds * (double)cpus);
        m->others = others < 0 ? 0 : others < 1 ? others : 1;
    }
    m->clock_begin = begin->clock;
    m->clock_end = end->clock;
    find_drift(m);
}

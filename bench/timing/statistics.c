/* SPDX-License-Identifier: MIT */
#include "bench/timing/statistics.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_LIMIT 20 /* samples on each side */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double statistics_quantile(const double *sorted, uint32_t count, double p)
{
    if (!count)
        return 0;
    double at = p * (double)(count - 1);
    uint32_t low = (uint32_t)at;
    if (low + 1 >= count)
        return sorted[count - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

void statistics_finish(measurement *m)
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
    m->median = statistics_quantile(sorted, m->count, 0.5);
    m->p10 = statistics_quantile(sorted, m->count, 0.1);
    m->p90 = statistics_quantile(sorted, m->count, 0.9);
    m->least = sorted[0];
    m->most = sorted[m->count - 1];
    free(sorted);
}

void statistics_free(measurement *m)
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

double statistics_mann_whitney(const double *a, uint32_t a_count, const double *b, uint32_t b_count)
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

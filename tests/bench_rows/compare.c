/* SPDX-License-Identifier: MIT */
/* Verdicts between two runs, and baselines from files good and bad. */
#include "bench/timing/compare.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void fill(double *samples, uint32_t count, double around, double noise)
{
    for (uint32_t i = 0; i < count; ++i)
        samples[i] = around * (1 + noise * ((double)(i * 7 % count) / count - 0.5));
}

static compare_verdict verdict(uint32_t n, double base, uint32_t m, double now, double noise)
{
    double a[32], b[32];
    fill(a, n, base, noise);
    fill(b, m, now * (1 + 1e-6), noise);
    return compare_samples(a, n, b, m, 0.02).verdict;
}

Test(compare, verdicts_with_enough_samples)
{
    cr_assert_eq(verdict(10, 1, 10, 1, 0.05), COMPARE_SAME);
    cr_assert_eq(verdict(10, 1, 10, 1.1, 0.05), COMPARE_SLOWER);
    cr_assert_eq(verdict(10, 1, 10, 0.9, 0.05), COMPARE_FASTER);
    cr_assert_eq(verdict(10, 1, 10, 1.05, 0.5), COMPARE_SAME, "noise hides it");
    cr_assert_eq(verdict(10, 1, 10, 1.01, 0.001), COMPARE_SAME, "significant, but below the floor");
}

Test(compare, verdicts_with_few_samples)
{
    cr_assert_eq(verdict(3, 1, 3, 1.2, 0.01), COMPARE_SLOWER);
    cr_assert_eq(verdict(3, 1, 3, 0.8, 0.01), COMPARE_FASTER);
    cr_assert_eq(verdict(3, 1, 3, 1.1, 0.5), COMPARE_UNKNOWN);
    cr_assert_eq(verdict(1, 1, 1, 1.5, 0), COMPARE_UNKNOWN);
    cr_assert_eq(verdict(1, 1, 1, 1.01, 0), COMPARE_SAME);
    cr_assert_eq(compare_samples(NULL, 0, NULL, 0, 0.02).verdict, COMPARE_UNKNOWN);
    cr_assert_str_eq(compare_verdict_string(COMPARE_UNKNOWN), "????");
    cr_assert_str_eq(compare_verdict_string(COMPARE_LOST), "LOST");
}

static report sample_report(double around)
{
    report r = {0};
    report_context_number(&r, "scale", 0.25);
    report_context_number(&r, "seed", 7);
    report_row row = {.density = 0.5};
    (void)snprintf(row.name, sizeof row.name, "causal/cpu/f32/b1");
    row.time.samples = calloc(10, sizeof(double));
    row.time.cpu = calloc(10, sizeof(double));
    row.time.count = 10;
    fill(row.time.samples, 10, around, 0.02);
    statistics_finish(&row.time);
    cr_assert(report_add(&r, &row));
    report_row bad = {.status = REPORT_FAILED};
    (void)snprintf(bad.name, sizeof bad.name, "broken/cpu/f32/b1");
    (void)snprintf(bad.message, sizeof bad.message, "it said \"no\"\n");
    cr_assert(report_add(&r, &bad));
    return r;
}

static char *json_of(const report *r, size_t *length)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, length);
    report_write_json(r, file);
    (void)fclose(file);
    return text;
}

Test(compare, a_report_reads_back_as_a_baseline)
{
    report r = sample_report(1e-3), later = sample_report(2e-3);
    size_t length, shown_length;
    char *text = json_of(&r, &length), *shown = NULL;
    baseline b;
    failure why;
    cr_assert(baseline_parse(text, length, "memory", &b, &why), "%s", why.message);
    cr_assert_eq(b.scale, 0.25);
    cr_assert_eq(baseline_scale(&b, "cpu", "f32"), 0.25);
    cr_assert_eq(b.seed, 7);
    const baseline_row *row = baseline_find(&b, "causal/cpu/f32/b1");
    cr_assert(row);
    cr_assert_eq(row->count, 10, "aggregates are not samples");
    cr_assert_float_eq(row->samples[3], r.rows[0].time.samples[3], 1e-12);
    cr_assert(baseline_find(&b, "broken/cpu/f32/b1")->failed);
    cr_assert_null(baseline_find(&b, "none"));
    for (int format = REPORT_TABLE; format <= REPORT_CSV; ++format) {
        FILE *file = open_memstream(&shown, &shown_length);
        uint32_t compared;
        cr_assert_eq(compare_write(&b, &later, 0.02, (report_format)format, file, &compared), 1);
        cr_assert_eq(compared, 1);
        (void)fclose(file);
        cr_assert(strstr(shown, "SLOWER"));
        cr_assert(strstr(shown, "????"));
        cr_assert(strstr(shown, "+100.0%"));
        free(shown);
    }
    /* A row that ran and has no time any more is lost; one that the run does not have was not asked for. */
    later.rows[0].status = REPORT_UNSUPPORTED;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t lost = 1 - i;
        FILE *file = open_memstream(&shown, &shown_length);
        uint32_t compared;
        cr_assert_eq(compare_write(&b, &later, 0.02, REPORT_TABLE, file, &compared), lost);
        (void)fclose(file);
        cr_assert_eq(strstr(shown, "LOST (has no time here)") != NULL, lost == 1, "%s", shown);
        cr_assert_eq(strstr(shown, ", 1 lost") != NULL, lost == 1, "%s", shown);
        free(shown);
        (void)snprintf(later.rows[0].name, sizeof later.rows[0].name, "other/cpu/f32/b1");
    }
    baseline_free(&b);
    report_free(&r);
    report_free(&later);
    free(text);
}

Test(compare, bad_baselines_have_a_reason)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"benchmarks\": 3}",
        "{\"benchmarks\": [{}]}",
        "{\"benchmarks\": [{\"name\": \"a\"}]}",
        "{\"benchmarks\": [{\"name\": \"a\", \"real_time\": -1, \"time_unit\": \"ms\"}]}",
        "{\"benchmarks\": [{\"name\": \"a\", \"real_time\": 1, \"time_unit\": \"years\"}]}",
        "{\"context\": {\"json_schema_version\": 9}, \"benchmarks\": []}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        baseline b;
        failure why = {{0}};
        cr_assert_not(baseline_parse(texts[i], strlen(texts[i]), "file.json", &b, &why), "%s", texts[i]);
        cr_assert(strstr(why.message, "file.json"), "%s", why.message);
    }
    baseline b;
    failure why;
    cr_assert_not(baseline_load("/nonexistent/baseline.json", &b, &why));
    const char *foreign = "{\"benchmarks\": [{\"name\": \"a\", \"real_time\": 5, \"cpu_time\": 5}]}";
    cr_assert(baseline_parse(foreign, strlen(foreign), "f", &b, &why), "Google Benchmark before run_type");
    cr_assert_float_eq(b.rows[0].samples[0], 5e-9, 1e-20);
    baseline_free(&b);
    /* Devices and types with scales of their own. */
    const char *parts = "{\"context\": {\"scale cpu f32\": 0.5, \"scale cpu f16\": 7}, \"benchmarks\": []}";
    cr_assert(baseline_parse(parts, strlen(parts), "f", &b, &why));
    cr_assert_eq(baseline_scale(&b, "cpu", "f32"), 0.5);
    cr_assert_eq(baseline_scale(&b, "cpu", "f16"), 0);
    baseline_free(&b);
}

/* SPDX-License-Identifier: MIT */
/* The four formats: figures, quoting, and rows that failed. */
#include "bench/timing/report.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static report_row timed_row(void)
{
    report_row row = {.share = 0.5,
                      .threads = 2,
                      .density = 0.5,
                      .block_density = 0.6,
                      .pairs = 100,
                      .flop = 4e9,
                      .bytes = 2e6,
                      .peak_flops = 8e10,
                      .peak_bandwidth = 1e10,
                      .checked = true,
                      .checked_rows = 64,
                      .error = 3e-6,
                      .naive_error = 2e-6,
                      .compile_cold = 0.01,
                      .compile_warm = 0.001,
                      .mask_seconds = 0.002,
                      .mask_bytes = 12345};
    (void)snprintf(row.name, sizeof row.name, "causal/cpu/f32/b1h4:1q128k128d64");
    (void)snprintf(row.workload, sizeof row.workload, "causal");
    (void)snprintf(row.kind, sizeof row.kind, "attention");
    (void)snprintf(row.device, sizeof row.device, "cpu");
    (void)snprintf(row.dtype, sizeof row.dtype, "f32");
    (void)snprintf(row.plan, sizeof row.plan, "cpu 32x|128, \"x\"");
    row.time.count = 3;
    row.time.iterations = 5;
    row.time.samples = calloc(3, sizeof(double));
    row.time.cpu = calloc(3, sizeof(double));
    for (int i = 0; i < 3; ++i)
        row.time.samples[i] = row.time.cpu[i] = 0.1;
    statistics_finish(&row.time);
    return row;
}

static report make_report(void)
{
    report r = {0};
    report_context(&r, "host_name", "bad \xff utf8 \xc3\xa9 \"q\"");
    report_context_number(&r, "num_cpus", 2);
    report_row row = timed_row();
    cr_assert(report_add(&r, &row));
    report_row failed = {.status = REPORT_WRONG, .density = -1, .block_density = -1, .pairs = -1};
    (void)snprintf(failed.name, sizeof failed.name, "alibi/cpu/f32/b1");
    (void)snprintf(failed.message, sizeof failed.message, "off by 3");
    failed.checked = true;
    failed.error = 1;
    cr_assert(report_add(&r, &failed));
    return r;
}

static char *written(const report *r, int format)
{
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    if (format < 0) {
        report_write_json(r, file);
    } else {
        report_begin(r, (report_format)format, file);
        for (uint32_t i = 0; i < r->row_count; ++i)
            report_write_row(&r->rows[i], (report_format)format, file);
        report_end(r, (report_format)format, file);
    }
    (void)fclose(file);
    return text;
}

Test(report, derived_figures)
{
    report_row row = timed_row();
    char text[16];
    cr_assert_float_eq(report_flops(&row), 4e10, 1);
    cr_assert_float_eq(report_bandwidth(&row), 2e7, 1e-3);
    cr_assert_float_eq(report_error_ratio(&row), 1.5, 1e-12);
    row.naive_error = 0;
    cr_assert(isinf(report_error_ratio(&row)));
    statistics_free(&row.time);
    cr_assert_eq(report_flops(&row), 0);
    cr_assert_str_eq(report_si(12345678, text), "12.3M");
    cr_assert_str_eq(report_si(999, text), "999");
    cr_assert_str_eq(report_si(999.6, text), "1.00k");
    cr_assert_str_eq(report_si(0, text), "0");
    cr_assert_str_eq(report_si(9.99e12, text), "9.99T");
    cr_assert_str_eq(report_si(INFINITY, text), "inf");
}

Test(report, table_has_figures_and_failures)
{
    report r = make_report();
    char *text = written(&r, REPORT_WIDE);
    cr_assert(strstr(text, "40.0G"), "%s", text);
    cr_assert(strstr(text, " 50 "), "share of the peak");
    cr_assert(strstr(text, "alibi/cpu/f32/b1: wrong: off by 3"));
    free(text);
    report_free(&r);
}

/* Every column of a row fits a terminal of 100 characters, as long as the longest workload's. */
Test(report, the_table_is_narrow)
{
    report r = make_report();
    (void)snprintf(r.rows[0].workload, sizeof r.rows[0].workload, "learned_relative_bias");
    (void)snprintf(r.rows[0].device, sizeof r.rows[0].device, "vulkan:0");
    (void)snprintf(r.rows[0].dtype, sizeof r.rows[0].dtype, "bf16");
    (void)snprintf(r.rows[0].shape, sizeof r.rows[0].shape, "b16h32:8q8192k8192d192:128");
    r.rows[0].shape[26] = '\0';
    r.rows[0].time.p90 = 2 * r.rows[0].time.p10;
    r.rows[0].time.others = 1;
    r.rows[0].time.clock_begin = 1e9;
    char *text = written(&r, REPORT_TABLE);
    cr_assert(strstr(text, "  wrong\n"), "%s", text);
    int rows = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (*line != '#' && !strchr(line, ':'))
            cr_assert_leq(strlen(line), 100, "%s", line);
        else if (!strncmp(line, "learned_relative_bias", 21)) {
            cr_assert(strlen(line) <= 100 && strstr(line, "40.0G"), "%s", line);
            rows++;
        }
    cr_assert_eq(rows, 1);
    free(text);
    report_free(&r);
}

/* Names and shapes that are longer than any of the program's are cut there, and whole everywhere else. The table of
 * ranks is wider: its head has 124 characters. */
Test(report, the_narrow_tables_cut_long_texts)
{
    static const char name[] = "a_workload_of_a_file_whose_name_has_fifty-eight_letters_ok",
                      shape[] = "b1h32:8q131072k131072d192:128";
    static const char *const devices[] = {"cpu", "vulkan:0", "vulkan:0@rtx4090"};
    cr_assert_eq(strlen(name), 58);
    for (size_t d = 0; d < sizeof devices / sizeof devices[0]; ++d) {
        report r = make_report();
        (void)snprintf(r.rows[0].workload, sizeof r.rows[0].workload, "%s", name);
        (void)snprintf(r.rows[0].shape, sizeof r.rows[0].shape, "%s", shape);
        (void)snprintf(r.rows[0].device, sizeof r.rows[0].device, "%s", devices[d]);
        (void)snprintf(r.rows[0].dtype, sizeof r.rows[0].dtype, "bf16");
        r.rows[0].time.p90 = 2 * r.rows[0].time.p10;
        for (int format = -1; format <= REPORT_CSV; ++format) {
            char *text = written(&r, format);
            if (format != REPORT_TABLE && format != REPORT_SERVING && format != REPORT_RANKS) {
                cr_assert(strstr(text, name) && strstr(text, shape), "format %d: %s", format, text);
                free(text);
                continue;
            }
            int rows = 0;
            for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
                if (!strncmp(line, "a_workload_of_a", 15)) {
                    cr_assert(strlen(line) <= (format == REPORT_RANKS ? 124 : 100) && strchr(line, '~') &&
                                  strstr(line, devices[d]),
                              "%zu: %s", strlen(line), line);
                    rows++;
                }
            cr_assert_eq(rows, 1);
            free(text);
        }
        report_free(&r);
    }
}

Test(report, the_summary_counts_and_compares)
{
    report r = make_report();
    report_row peer = timed_row();
    (void)snprintf(peer.kind, sizeof peer.kind, "peer");
    (void)snprintf(peer.workload, sizeof peer.workload, "peer: naive loop");
    (void)snprintf(peer.device, sizeof peer.device, "host");
    peer.flop = 1e9;
    cr_assert(report_add(&r, &peer));
    peer = timed_row();
    peer.flop = 8e9;
    (void)snprintf(peer.kind, sizeof peer.kind, "peer");
    (void)snprintf(peer.workload, sizeof peer.workload, "peer: sgemm");
    cr_assert(report_add(&r, &peer));
    r.seconds = 61;
    r.rows[0].time.others = 0.3;
    r.rows[0].time.p90 = 1.3 * r.rows[0].time.p10;
    char *text = written(&r, REPORT_TABLE);
    cr_expect(strstr(text, "4 rows in 61 s: 3 ok, 1 wrong"), "%s", text);
    cr_expect(strstr(text, "most FLOP/s: causal, cpu f32: 40.0GFLOP/s, 50 % of the measured peak"), "%s", text);
    cr_expect(strstr(text, "4.00 times faster than naive loop"), "%s", text);
    cr_expect(strstr(text, "2.00 times slower than sgemm"), "%s", text);
    cr_expect(strstr(text, "  nl\n") && strstr(text, "flag n, 1 row: ") && strstr(text, "flag l, 1 row: "), "%s", text);
    cr_expect(!strstr(text, "flag c") && !strstr(text, "flag d"), "%s", text);
    free(text);
    report_free(&r);
}

Test(report, markdown_has_as_many_cells_in_every_row)
{
    report r = make_report();
    char *text = written(&r, REPORT_MARKDOWN);
    int head = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int bars = 0;
        for (char *c = line; *c; ++c)
            bars += *c == '|' && (c == line || c[-1] != '\\');
        if (*line == '|' && !head)
            head = bars;
        if (*line == '|')
            cr_assert_eq(bars, head, "%s", line);
    }
    cr_assert_gt(head, 10);
    free(text);
    report_free(&r);
}

static int csv_fields(const char *line)
{
    int fields = 1;
    bool quoted = false;
    for (; *line && *line != '\n'; ++line) {
        quoted ^= *line == '"';
        fields += *line == ',' && !quoted;
    }
    return fields;
}

Test(report, csv_has_as_many_fields_in_every_row)
{
    report r = make_report();
    char *text = written(&r, REPORT_CSV);
    int head = csv_fields(text), lines = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL, ++lines)
        cr_assert_eq(csv_fields(line), head);
    cr_assert_eq(lines, 3);
    cr_assert(strstr(text, "\"cpu 32x|128, \"\"x\"\"\""));
    free(text);
    report_free(&r);
}

Test(report, json_is_google_benchmarks)
{
    report r = make_report();
    char *text = written(&r, -1);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    cr_assert(root, "%d: %s\n%s", error.line, error.text, text);
    json_t *context = json_object_get(root, "context"), *list = json_object_get(root, "benchmarks");
    cr_assert_eq(json_integer_value(json_object_get(context, "json_schema_version")), REPORT_SCHEMA_VERSION);
    cr_assert_eq(json_integer_value(json_object_get(context, "num_cpus")), 2);
    cr_assert_eq(json_array_size(list), 3 + 5 + 1);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        json_t *entry = json_array_get(list, i);
        static const char *const strings[] = {"name", "run_name", "run_type", "time_unit"};
        static const char *const numbers[] = {"real_time", "cpu_time", "iterations", "repetitions", "threads"};
        for (size_t k = 0; k < 4; ++k)
            cr_assert(json_is_string(json_object_get(entry, strings[k])), "%s", strings[k]);
        for (size_t k = 0; k < 5; ++k)
            cr_assert(json_is_number(json_object_get(entry, numbers[k])), "%s", numbers[k]);
    }
    json_t *sample = json_array_get(list, 0), *median = json_array_get(list, 4), *failed = json_array_get(list, 8);
    cr_assert_float_eq(json_number_value(json_object_get(sample, "real_time")), 100, 1e-9);
    cr_assert_eq(json_integer_value(json_object_get(sample, "iterations")), 5);
    cr_assert_str_eq(json_string_value(json_object_get(median, "aggregate_name")), "median");
    cr_assert_float_eq(json_number_value(json_object_get(median, "flop_per_second")), 4e10, 1);
    cr_assert_float_eq(json_number_value(json_object_get(median, "error_ratio")), 1.5, 1e-9);
    cr_assert(json_is_true(json_object_get(failed, "error_occurred")));
    cr_assert_str_eq(json_string_value(json_object_get(failed, "error_message")), "off by 3");
    cr_assert(json_is_null(json_object_get(failed, "error_ratio")), "JSON has no infinity");
    json_decref(root);
    free(text);
    report_free(&r);
}

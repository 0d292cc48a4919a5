/* SPDX-License-Identifier: MIT */
/* Files of results: what the page is given of them, and what of two files is compared. */
#include "bench/page/results.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void make_file(void)
{
    strcpy(path, "/tmp/attune-results-XXXXXX");
    const int file = mkstemp(path);
    cr_assert_geq(file, 0);
    close(file);
}

static void remove_file(void)
{
    unlink(path);
}

TestSuite(results, .init = make_file, .fini = remove_file);

static bool load(const char *text, bool any_device, results *r, failure *why)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
    return results_load(path, any_device, r, why);
}

/* A row of 12 samples around `ms`, and its median. */
static void add_row(char *text, size_t size, const char *device, double ms)
{
    size_t used = strlen(text);
    for (int i = 0; i < 12; i++)
        used += (size_t)snprintf(text + used, size - used,
                                 "{\"run_name\": \"a/%s/f16/s\", \"name\": \"a\", \"run_type\": \"iteration\", "
                                 "\"real_time\": %g, \"time_unit\": \"ms\"},",
                                 device, ms * (1 + 0.001 * i));
    snprintf(text + used, size - used,
             "{\"run_name\": \"a/%s/f16/s\", \"name\": \"m\", \"run_type\": \"aggregate\", \"status\": \"ok\", "
             "\"workload\": \"a\", \"device\": \"%s\", \"median_seconds\": %g, \"density\": \"none\", \"secret\": 1}",
             device, device, 1e-3 * ms);
}

Test(results, rows_of_two_files_are_compared)
{
    static char text[2][1 << 14];
    results r[2];
    failure why = {{0}};
    for (int i = 0; i < 2; i++) {
        strcpy(text[i], "{\"context\": {\"direction\": \"backward\"}, \"benchmarks\": [");
        add_row(text[i], sizeof text[i], i ? "cuda:0" : "vulkan:0", i ? 1 : 2);
        strcat(text[i], "]}");
    }
    for (int any = 0; any < 2; any++) {
        for (int i = 0; i < 2; i++)
            cr_assert(load(text[i], any, &r[i], &why), "%s", why.message);
        cr_expect_eq(r[0].rows[0].count, 12);
        FILE *out = tmpfile();
        uint32_t compared;
        cr_expect_eq(results_compare(&r[0], &r[1], 0.02, out, &compared), any ? 0 : 1, "the other's is missing");
        cr_expect_eq(compared, any ? 1 : 0, "rows of two devices");
        cr_expect_eq(results_compare(&r[1], &r[0], 0.02, out, &compared), 1, "slower, or missing");
        fclose(out);
        json_t *page = results_page(r, 2, 0.02);
        json_t *rows = json_object_get(json_array_get(json_object_get(page, "comparisons"), 0), "rows");
        cr_expect_eq(json_array_size(rows), any ? 1 : 2);
        cr_expect_str_eq(json_string_value(json_object_get(json_array_get(rows, 0), "verdict")),
                         any ? "FASTER" : "????");
        if (!any)
            cr_expect_str_eq(json_string_value(json_object_get(json_array_get(rows, 1), "verdict")), "LOST");
        /* Only known fields, and of the right type. */
        json_t *group = json_array_get(r[0].groups, 0), *row = json_array_get(json_object_get(group, "rows"), 0);
        cr_expect_str_eq(json_string_value(json_object_get(group, "title")), "Backward");
        cr_expect(!json_object_get(row, "density") && !json_object_get(row, "secret"));
        json_decref(page);
        results_free(&r[0]);
        results_free(&r[1]);
    }
}

/* measure.py keeps no samples: ranges that do not meet differ. */
Test(results, sections_are_compared_by_their_percentiles)
{
    static const char *const texts[] = {
        "{\"sections\": {\"forward\": {\"rows\": [{\"name\": \"a/x/f16/s\", \"status\": \"ok\", \"median_seconds\": 2, "
        "\"p10_seconds\": 1.9, \"p90_seconds\": 2.1, \"samples\": 5}]}, \"vulkan_decode\": {\"rows\": [{\"name\": "
        "\"a/x/f16/s\", \"status\": \"ok\", \"median_seconds\": 2, \"p10_seconds\": 1, \"p90_seconds\": 3, "
        "\"samples\": "
        "5}]}}}",
        "{\"sections\": {\"forward\": {\"rows\": [{\"name\": \"a/x/f16/s\", \"status\": \"ok\", \"median_seconds\": 3, "
        "\"p10_seconds\": 2.9, \"p90_seconds\": 3.1, \"samples\": 5}]}, \"vulkan_decode\": {\"rows\": [{\"name\": "
        "\"a/x/f16/s\", \"status\": \"ok\", \"median_seconds\": 2.5, \"p10_seconds\": 2, \"p90_seconds\": 3, "
        "\"samples\": 5}]}}}"};
    results r[2];
    failure why = {{0}};
    for (int i = 0; i < 2; i++)
        cr_assert(load(texts[i], false, &r[i], &why), "%s", why.message);
    cr_expect_str_eq(r[0].rows[1].group, "Vulkan decode");
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    uint32_t compared;
    cr_expect_eq(results_compare(&r[0], &r[1], 0.02, out, &compared), 1);
    fclose(out);
    cr_expect_eq(compared, 2);
    cr_expect(strstr(text, "0 same, 0 faster, 1 slower, 1 unknown"), "%s", text);
    free(text);
    results_free(&r[0]);
    results_free(&r[1]);
}

/* A row that was good and has no time, or is gone, is named and counted; one that failed before, or is new, is not. */
Test(results, a_row_that_is_lost)
{
#define ROW(name, status)                                                                                              \
    "{\"name\": \"" name "\", \"status\": \"" status "\", \"median_seconds\": 2, \"p10_seconds\": 1.9, "               \
    "\"p90_seconds\": 2.1, \"samples\": 5}"
#define FILE_OF(rows) "{\"sections\": {\"forward\": {\"rows\": [" rows "]}}}"
    static const struct {
        const char *base, *now, *words;
        uint32_t lost;
    } cases[] = {
        {ROW("a", "ok") "," ROW("b", "ok"), ROW("a", "ok") "," ROW("b", "failed"), "LOST (has no time here)", 1},
        {ROW("a", "ok") "," ROW("b", "ok"), ROW("a", "ok") "," ROW("b", "unsupported"), "LOST (has no time here)", 1},
        {ROW("a", "ok") "," ROW("b", "ok"), ROW("a", "ok"), "LOST (only in the baseline)", 1},
        {ROW("a", "ok") "," ROW("b", "failed"), ROW("a", "ok"), "???? (only in the baseline)", 0},
        {ROW("a", "ok") "," ROW("b", "failed"), ROW("a", "ok") "," ROW("b", "failed"), "???? (has no time here)", 0},
        {ROW("a", "ok"), ROW("a", "ok") "," ROW("b", "ok"), "???? (not in the baseline)", 0},
        {ROW("a", "ok"), ROW("a", "ok") "," ROW("b", "failed"), "???? (not in the baseline)", 0},
    };
#undef ROW
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        results r[2];
        failure why = {{0}};
        char file[2048], *text = NULL;
        for (int j = 0; j < 2; j++) {
            (void)snprintf(file, sizeof file, FILE_OF("%s"), j ? cases[i].now : cases[i].base);
            cr_assert(load(file, false, &r[j], &why), "%s", why.message);
        }
        size_t length;
        FILE *out = open_memstream(&text, &length);
        uint32_t compared;
        cr_expect_eq(results_compare(&r[0], &r[1], 0.02, out, &compared), cases[i].lost, "%zu: %s", i, text);
        fclose(out);
        cr_expect(strstr(text, cases[i].words), "%zu: %s", i, text);
        cr_expect_eq(strstr(text, ", 1 lost") != NULL, cases[i].lost == 1, "%zu: %s", i, text);
        free(text);
        results_free(&r[0]);
        results_free(&r[1]);
    }
#undef FILE_OF
}

/* No word of a file ends the element that holds the data. */
Test(results, the_page_escapes_its_data)
{
    results r;
    failure why = {{0}};
    cr_assert(load("{\"benchmarks\": [{\"name\": \"</script><b>\", \"real_time\": 1, \"time_unit\": \"ms\"}]}", false,
                   &r, &why));
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    cr_expect(results_write_page(&r, 1, 0.02, out));
    fclose(out);
    cr_expect(strstr(text, "\\u003c/script>\\u003cb>") && !strstr(text, "</script><b>"));
    cr_expect(strstr(text, "<!DOCTYPE html>") == text && strstr(text, "</html>"));
    free(text);
    results_free(&r);
}

Test(results, files_that_are_wrong_have_a_reason)
{
    static const char *const texts[][2] = {
        {"", "expected"},
        {"[]", "benchmarks"},
        {"{\"sections\": {}}", "has no row"},
        {"{\"sections\": {\"a\": {\"rows\": [{}]}}}", "row 0 of section a has no name"},
        {"{\"sections\": {\"a\": 3, \"b\": {\"rows\": 5}}}", "has no row"},
        {"{\"benchmarks\": []}", "has no row"},
    };
    results r;
    failure why;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_expect_not(load(texts[i][0], false, &r, &why));
        cr_expect(strstr(why.message, path) && strstr(why.message, texts[i][1]), "%s: %s", texts[i][0], why.message);
    }
    cr_expect_not(results_load("/nonexistent.json", false, &r, &why));
    static char text[1 << 14] = "{\"benchmarks\": [";
    add_row(text, sizeof text, "cuda:0", 1);
    strcat(text, ",");
    add_row(text, sizeof text, "cuda:1", 1);
    strcat(text, "]}");
    cr_expect_not(load(text, true, &r, &why));
    cr_expect(strstr(why.message, "more than one device"), "%s", why.message);
    cr_expect(load(text, false, &r, &why));
    results_free(&r);
}

Test(results, figures_of_serving_and_ranks_reach_the_page)
{
    results r;
    failure why = {{0}};
    cr_assert(
        load("{\"sections\": {\"x\": {\"rows\": [{\"name\": \"a\", \"status\": \"ok\", \"kind\": \"ranks\", "
             "\"median_seconds\": 1, \"tokens_per_second\": 2, \"ranks\": 4, \"one_rank_seconds\": 3, \"speedup\": 3, "
             "\"imbalance\": 1.25, \"most_fetched\": 0.5, \"received_bytes\": 6, \"ring_bytes\": 8, "
             "\"exchange_seconds\": 0.5, \"hidden_share\": 0.25, \"secret\": 1}]}}}",
             false, &r, &why),
        "%s", why.message);
    static const char *const kept[] = {"tokens_per_second", "ranks",        "one_rank_seconds", "speedup",
                                       "imbalance",         "most_fetched", "received_bytes",   "ring_bytes",
                                       "exchange_seconds",  "hidden_share"};
    cr_assert_eq(r.row_count, 1);
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        cr_assert(json_number_value(json_object_get(r.rows[0].row, kept[i])) > 0, "%s", kept[i]);
    cr_assert_null(json_object_get(r.rows[0].row, "secret"));
    results_free(&r);
}

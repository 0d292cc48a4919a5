/* SPDX-License-Identifier: MIT */
#include "bench/page/results.h"

#include "bench/page/page.h"
#include "bench/timing/json_text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The fields of a row that the page knows. */
static const char *const texts[] = {"name", "workload", "kind",    "device", "dtype", "shape",
                                    "plan", "status",   "message", "flags",  NULL};
static const char *const numbers[] = {"median_seconds",
                                      "p10_seconds",
                                      "p90_seconds",
                                      "samples",
                                      "density",
                                      "flop_per_second",
                                      "bytes_per_second",
                                      "share_of_peak_flops",
                                      "share_of_peak_bandwidth",
                                      "compile_cold_seconds",
                                      "compile_warm_seconds",
                                      "mask_seconds",
                                      "device_bytes",
                                      "error_ratio",
                                      "tokens_per_second",
                                      "ranks",
                                      "one_rank_seconds",
                                      "speedup",
                                      "imbalance",
                                      "most_fetched",
                                      "received_bytes",
                                      "ring_bytes",
                                      "exchange_seconds",
                                      "hidden_share",
                                      NULL};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* A copy with the known fields of the right types. */
static json_t *known_of(const json_t *entry, const char *name)
{
    json_t *row = json_object();
    for (size_t i = 0; texts[i]; i++)
        if (json_is_string(json_object_get(entry, texts[i])))
            (void)json_object_set(row, texts[i], json_object_get(entry, texts[i]));
    for (size_t i = 0; numbers[i]; i++)
        if (json_is_number(json_object_get(entry, numbers[i])))
            (void)json_object_set(row, numbers[i], json_object_get(entry, numbers[i]));
    (void)json_object_set_new(row, "name", json_text(name));
    if (!*text_of(row, "workload"))
        (void)json_object_set_new(row, "workload", json_text(name));
    return row;
}

/* Texts and numbers of the context. */
static json_t *context_of(const json_t *context)
{
    json_t *copy = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)context, key, value)
    {
        if (json_is_string(value) || json_is_number(value))
            (void)json_object_set(copy, key, value);
    }
    return copy;
}

/* ------------------------------------------------------------------------------------------------------------- keys */

/* The section and the name; without "/device/" if rows of different devices are to be compared. */
static char *key_of(const char *section, const char *name, const char *device, bool any_device)
{
    const size_t size = strlen(section) + strlen(name) + 3;
    char *key = malloc(size), part[80];
    if (!key)
        return NULL;
    (void)snprintf(key, size, "%s%s%s", section, *section ? ": " : "", name);
    if (!any_device || !*device || snprintf(part, sizeof part, "/%s/", device) >= (int)sizeof part)
        return key;
    char *found = strstr(key, part);
    if (found)
        memmove(found + 1, found + strlen(part), strlen(found + strlen(part)) + 1);
    return key;
}

static const results_row *find(const results *r, const char *key)
{
    for (uint32_t i = 0; i < r->row_count; i++)
        if (!strcmp(r->rows[i].key, key))
            return &r->rows[i];
    return NULL;
}

/* Adds a row and its samples; without any, the percentiles stand for them. `row` is a new reference. */
static bool add_row(results *r, const char *path, json_t *list, json_t *row, const char *section, const char *group,
                    const double *samples, uint32_t count, bool any_device, failure *why)
{
    const double quantiles[3] = {number_of(row, "p10_seconds"), number_of(row, "median_seconds"),
                                 number_of(row, "p90_seconds")};
    const bool ok = !strcmp(text_of(row, "status"), "ok") && quantiles[1] > 0;
    if (!count && ok && quantiles[0] > 0 && quantiles[2] > 0 && number_of(row, "samples") >= 3) {
        samples = quantiles;
        count = 3;
    }
    char *key = key_of(section, text_of(row, "name"), text_of(row, "device"), any_device);
    double *copy = count ? malloc(count * sizeof *copy) : NULL;
    results_row *rows = realloc(r->rows, (r->row_count + 1) * sizeof *rows);
    r->rows = rows ? rows : r->rows;
    bool good = key && rows && (copy || !count) && json_array_append_new(list, row) == 0;
    if (!good)
        (void)failure_set(why, "%s: out of memory", path);
    if (good && any_device && find(r, key))
        good = failure_set(why, "%s: %s is there for more than one device, which --any-device cannot tell apart", path,
                           key);
    if (!good) {
        free(key);
        free(copy);
        return false;
    }
    if (copy)
        memcpy(copy, samples, count * sizeof *copy);
    rows[r->row_count++] =
        (results_row){.key = key, .row = row, .group = group, .samples = copy, .count = count, .failed = !ok};
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ files */

static json_t *add_group(results *r, const char *title, const json_t *object, const char *command)
{
    json_t *group = json_object(), *list = json_array();
    (void)json_object_set_new(group, "title", json_text(title));
    (void)json_object_set_new(group, "command", json_text(command));
    (void)json_object_set_new(group, "context", context_of(json_object_get(object, "context")));
    (void)json_object_set_new(group, "rows", list);
    (void)json_array_append_new(r->groups, group);
    return list;
}

/* The entry of a row with its figures: the median, or the only one. */
static const json_t *entry_of(const json_t *benchmarks, const char *name)
{
    for (size_t i = 0; i < json_array_size(benchmarks); i++) {
        const json_t *entry = json_array_get(benchmarks, i);
        if (json_object_get(entry, "status") && !strcmp(text_of(entry, "run_name"), name))
            return entry;
    }
    return NULL;
}

/* A row of a program that is not attune has its samples alone. */
static json_t *foreign_row(const baseline_row *b)
{
    measurement m = {.samples = b->samples, .count = b->count};
    json_t *row = json_object();
    statistics_finish(&m);
    (void)json_object_set_new(row, "name", json_text(b->name));
    (void)json_object_set_new(row, "workload", json_text(b->name));
    (void)json_object_set_new(row, "status", json_string(b->failed || !b->count ? "failed" : "ok"));
    (void)json_object_set_new(row, "median_seconds", json_figure(m.median));
    (void)json_object_set_new(row, "p10_seconds", json_figure(m.p10));
    (void)json_object_set_new(row, "p90_seconds", json_figure(m.p90));
    (void)json_object_set_new(row, "samples", json_integer(m.count));
    return row;
}

static bool read_benchmarks(results *r, const char *path, const json_t *root, bool any_device, failure *why)
{
    const json_t *benchmarks = json_object_get(root, "benchmarks");
    baseline b;
    if (!baseline_load(path, &b, why))
        return false;
    const char *direction = text_of(json_object_get(root, "context"), "direction");
    json_t *list = add_group(r,
                             !strcmp(direction, "backward") ? "Backward"
                             : !strcmp(direction, "step")   ? "Steps"
                                                            : "",
                             root, "");
    bool good = true;
    for (uint32_t i = 0; i < b.row_count && good; i++) {
        const baseline_row *found = &b.rows[i];
        const json_t *entry = entry_of(benchmarks, found->name);
        good = add_row(r, path, list, entry ? known_of(entry, found->name) : foreign_row(found), "", "", found->samples,
                       found->failed ? 0 : found->count, any_device, why);
    }
    /* Rows of peers whose samples were not kept. */
    for (size_t i = 0; i < json_array_size(benchmarks) && good; i++) {
        const json_t *entry = json_array_get(benchmarks, i);
        const char *name = text_of(entry, "run_name");
        if (json_object_get(entry, "status") && *name && !baseline_find(&b, name))
            good = add_row(r, path, list, known_of(entry, name), "", "", NULL, 0, any_device, why);
    }
    baseline_free(&b);
    return good;
}

/* "vulkan_matrix" as "Vulkan matrix". */
static void title_of(const char *section, char *title, size_t size)
{
    (void)snprintf(title, size, "%s", strcmp(section, "cpu") ? section : "CPU");
    title[0] = (char)toupper((unsigned char)title[0]);
    for (char *at = title; *at; at++)
        *at = *at == '_' ? ' ' : *at;
}

static bool read_sections(results *r, const char *path, const json_t *sections, bool any_device, failure *why)
{
    const char *name;
    json_t *section;
    json_object_foreach((json_t *)(uintptr_t)sections, name, section)
    {
        char title[80];
        title_of(name, title, sizeof title);
        json_t *list = add_group(r, title, section, text_of(section, "command"));
        const char *kept = text_of(json_array_get(r->groups, json_array_size(r->groups) - 1), "title");
        const json_t *rows = json_object_get(section, "rows");
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            if (!*text_of(row, "name"))
                return failure_set(why, "%s: row %zu of section %.64s has no name", path, i, name);
            if (!add_row(r, path, list, known_of(row, text_of(row, "name")), name, kept, NULL, 0, any_device, why))
                return false;
        }
    }
    return true;
}

static char *label_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *label = strdup(slash && slash[1] ? slash + 1 : path);
    const size_t length = label ? strlen(label) : 0;
    if (length > 5 && !strcmp(label + length - 5, ".json"))
        label[length - 5] = '\0';
    return label;
}

bool results_load(const char *path, bool any_device, results *r, failure *why)
{
    json_error_t error;
    *r = (results){.label = label_of(path), .groups = json_array()};
    json_t *root = json_load_file(path, 0, &error);
    bool good = false;
    if (!r->label || !r->groups)
        (void)failure_set(why, "%s: out of memory", path);
    else if (!root && error.line < 0)
        (void)failure_set(why, "%s", error.text); /* an error about the file, with its name */
    else if (!root)
        (void)failure_set(why, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    else if (json_is_object(json_object_get(root, "sections")))
        good = read_sections(r, path, json_object_get(root, "sections"), any_device, why);
    else
        good = read_benchmarks(r, path, root, any_device, why);
    if (good && !r->row_count)
        good = failure_set(why, "%s: has no row", path);
    json_decref(root);
    if (!good)
        results_free(r);
    return good;
}

void results_free(results *r)
{
    for (uint32_t i = 0; i < r->row_count; i++) {
        free(r->rows[i].key);
        free(r->rows[i].samples);
    }
    free(r->rows);
    free(r->label);
    json_decref(r->groups);
    *r = (results){0};
}

/* ------------------------------------------------------------------------------------------------------- comparison */

/* Either side may be missing. */
static comparison compare_rows(const results_row *base, const results_row *now, double noise)
{
    comparison c = compare_samples(base ? base->samples : NULL, base && !base->failed ? base->count : 0,
                                   now ? now->samples : NULL, now && !now->failed ? now->count : 0, noise);
    compare_lose(&c);
    return c;
}

static void add_comparison(json_t *list, const results_row *base, const results_row *now, double noise)
{
    const results_row *any = now ? now : base;
    const comparison c = compare_rows(base, now, noise);
    const char *slash = strrchr(any->key, '/');
    const bool pass = slash && (!strcmp(slash, "/backward") || !strcmp(slash, "/step"));
    json_t *row = json_object();
    (void)json_object_set_new(row, "name", json_text(any->key));
    (void)json_object_set_new(row, "workload", json_text(text_of(any->row, "workload")));
    (void)json_object_set_new(row, "device", json_text(text_of(any->row, "device")));
    (void)json_object_set_new(row, "dtype", json_text(text_of(any->row, "dtype")));
    (void)json_object_set_new(row, "group", json_text(any->group));
    (void)json_object_set_new(row, "way", json_string(pass && !*any->group ? slash + 1 : ""));
    (void)json_object_set_new(row, "base", json_figure(c.base));
    (void)json_object_set_new(row, "now", json_figure(c.now));
    (void)json_object_set_new(row, "p", json_figure(c.p));
    (void)json_object_set_new(row, "verdict", json_string(compare_verdict_string(c.verdict)));
    (void)json_array_append_new(list, row);
}

static json_t *comparison_of(const results *list, uint32_t now, double noise)
{
    json_t *object = json_object(), *rows = json_array();
    for (uint32_t i = 0; i < list[now].row_count; i++)
        add_comparison(rows, find(&list[0], list[now].rows[i].key), &list[now].rows[i], noise);
    for (uint32_t i = 0; i < list[0].row_count; i++)
        if (!find(&list[now], list[0].rows[i].key))
            add_comparison(rows, &list[0].rows[i], NULL, noise);
    (void)json_object_set_new(object, "base", json_integer(0));
    (void)json_object_set_new(object, "now", json_integer(now));
    (void)json_object_set_new(object, "rows", rows);
    return object;
}

uint32_t results_compare(const results *base, const results *now, double noise, FILE *out, uint32_t *compared)
{
    uint32_t counts[COMPARE_VERDICTS] = {0};
    *compared = 0;
    compare_write_head(REPORT_TABLE, out);
    for (uint32_t i = 0; i < now->row_count; i++) {
        const results_row *row = &now->rows[i], *before = find(base, row->key);
        const comparison c = compare_rows(before, row, noise);
        compare_write_line(row->key, &c,
                           !before       ? " (not in the baseline)"
                           : row->failed ? " (has no time here)"
                                         : "",
                           REPORT_TABLE, out);
        ++counts[c.verdict];
        *compared += c.base > 0 && c.now > 0;
    }
    for (uint32_t i = 0; i < base->row_count; i++) {
        if (find(now, base->rows[i].key))
            continue;
        const comparison c = compare_rows(&base->rows[i], NULL, noise);
        compare_write_line(base->rows[i].key, &c, " (only in the baseline)", REPORT_TABLE, out);
        ++counts[c.verdict];
    }
    compare_write_counts(counts, out);
    return counts[COMPARE_SLOWER] + counts[COMPARE_LOST];
}

/* ------------------------------------------------------------------------------------------------------------- page */

json_t *results_page(const results *list, uint32_t count, double noise)
{
    json_t *root = json_object(), *files = json_array(), *comparisons = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *file = json_object();
        (void)json_object_set_new(file, "label", json_text(list[i].label));
        (void)json_object_set(file, "groups", list[i].groups);
        (void)json_array_append_new(files, file);
        if (i)
            (void)json_array_append_new(comparisons, comparison_of(list, i, noise));
    }
    (void)json_object_set_new(root, "files", files);
    (void)json_object_set_new(root, "comparisons", comparisons);
    if (json_object_set_new(root, "noise", json_figure(noise)) == 0)
        return root;
    json_decref(root);
    return NULL;
}

bool results_write_page(const results *list, uint32_t count, double noise, FILE *out)
{
    json_t *root = results_page(list, count, noise);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return false;
    (void)fwrite(page_before, 1, page_before_size, out);
    /* Within strings alone, where it could end the script's element. */
    for (const char *at = text; *at; at++)
        if (*at == '<')
            (void)fputs("\\u003c", out);
        else
            (void)fputc(*at, out);
    (void)fwrite(page_behind, 1, page_behind_size, out);
    free(text);
    return !ferror(out);
}

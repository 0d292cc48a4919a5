/* SPDX-License-Identifier: MIT */
/* Google Benchmark's schema: an entry for each sample, and aggregates. The median also has attune's own figures. */
#include "bench/timing/report.h"

#include <string.h>

#include "bench/timing/json_text.h"

static void set_text(void *object, const char *key, const char *text)
{
    (void)json_object_set_new(object, key, json_text(text));
}

static void set_number(void *object, const char *key, double value)
{
    /* Every entry already has Google Benchmark's own `threads`. */
    if (strcmp(key, "threads") != 0)
        (void)json_object_set_new(object, key, json_figure(value));
}

typedef struct entry {
    const char *aggregate; /* NULL = one sample */
    uint32_t index;        /* of the sample */
    double real, cpu;      /* seconds */
} entry;

static void add_entry(json_t *list, const report_row *row, uint32_t family, const entry *e)
{
    char name[320];
    json_t *object = json_object();
    (void)snprintf(name, sizeof name, "%s%s%s", row->name, e->aggregate ? "_" : "", e->aggregate ? e->aggregate : "");
    set_text(object, "name", name);
    (void)json_object_set_new(object, "family_index", json_integer(family));
    (void)json_object_set_new(object, "per_family_instance_index", json_integer(0));
    set_text(object, "run_name", row->name);
    set_text(object, "run_type", e->aggregate ? "aggregate" : "iteration");
    (void)json_object_set_new(object, "repetitions", json_integer(row->time.count ? row->time.count : 1));
    if (e->aggregate) {
        set_text(object, "aggregate_name", e->aggregate);
        set_text(object, "aggregate_unit", "time");
    } else {
        (void)json_object_set_new(object, "repetition_index", json_integer(e->index));
    }
    (void)json_object_set_new(object, "threads", json_integer(row->threads ? row->threads : 1));
    if (row->status != REPORT_OK) {
        (void)json_object_set_new(object, "error_occurred", json_true());
        set_text(object, "error_message", row->message);
    }
    (void)json_object_set_new(object, "iterations",
                              json_integer((json_int_t)(e->aggregate ? row->time.count : row->time.iterations)));
    (void)json_object_set_new(object, "real_time", json_figure(1e3 * e->real));
    (void)json_object_set_new(object, "cpu_time", json_figure(1e3 * e->cpu));
    set_text(object, "time_unit", "ms");
    /* All other figures once: with the median, or with the only entry of a failed row. */
    if (!e->aggregate ? row->status != REPORT_OK : !strcmp(e->aggregate, "median")) {
        report_each_text(row, set_text, object);
        report_each_number(row, set_number, object);
    }
    (void)json_array_append_new(list, object);
}

static void add_row(json_t *list, const report_row *row, uint32_t family)
{
    double cpu = 0;
    if (row->status != REPORT_OK || !row->time.count) {
        add_entry(list, row, family, &(entry){0});
        return;
    }
    for (uint32_t s = 0; s < row->time.count; s++) {
        add_entry(list, row, family, &(entry){NULL, s, row->time.samples[s], row->time.cpu[s]});
        cpu += row->time.cpu[s] / row->time.count;
    }
    add_entry(list, row, family, &(entry){"mean", 0, row->time.mean, cpu});
    add_entry(list, row, family, &(entry){"median", 0, row->time.median, cpu});
    add_entry(list, row, family, &(entry){"stddev", 0, row->time.deviation, 0});
    add_entry(list, row, family, &(entry){"p10", 0, row->time.p10, cpu});
    add_entry(list, row, family, &(entry){"p90", 0, row->time.p90, cpu});
}

bool report_write_json(const report *r, FILE *out)
{
    json_t *root = json_object(), *context = json_object(), *list = json_array();
    for (uint32_t i = 0; i < r->entry_count; i++) {
        const report_entry *e = &r->entries[i];
        (void)json_object_set_new(context, e->key,
                                  e->number ? json_loads(e->value, JSON_DECODE_ANY, NULL) : json_text(e->value));
    }
    (void)json_object_set_new(context, "caches", json_array());
    (void)json_object_set_new(context, "load_avg", json_array());
    (void)json_object_set_new(context, "json_schema_version", json_integer(REPORT_SCHEMA_VERSION));
    for (uint32_t i = 0; i < r->row_count; i++)
        add_row(list, &r->rows[i], i);
    (void)json_object_set_new(root, "context", context);
    bool written = json_object_set_new(root, "benchmarks", list) == 0;
    written = written && json_dumpf(root, out, JSON_INDENT(2)) == 0;
    (void)fputc('\n', out);
    json_decref(root);
    return written;
}

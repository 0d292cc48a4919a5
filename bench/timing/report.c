/* SPDX-License-Identifier: MIT */
/* Reports as table, Markdown, CSV and JSON. Numbers in CSV and JSON are in SI base units unless their name says
 * otherwise; the table rounds to three digits. */
#include "bench/timing/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Grows a list by one entry; NULL, with the list unchanged, if there is no memory. */
static void *grow(void *list, uint32_t count, uint32_t *capacity, size_t size)
{
    if (count < *capacity)
        return list;
    uint32_t larger = *capacity ? 2 * *capacity : 16;
    void *grown = realloc(list, larger * size);
    if (grown)
        *capacity = larger;
    return grown;
}

static void add_entry(report *r, const char *key, const char *value, bool number)
{
    report_entry *entries = grow(r->entries, r->entry_count, &r->entry_capacity, sizeof *entries);
    if (!entries)
        return;
    r->entries = entries;
    report_entry *e = &entries[r->entry_count++];
    (void)snprintf(e->key, sizeof e->key, "%s", key);
    (void)snprintf(e->value, sizeof e->value, "%s", value);
    e->number = number;
}

void report_context(report *r, const char *key, const char *format, ...)
{
    char value[512];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(value, sizeof value, format, list);
    va_end(list);
    add_entry(r, key, value, false);
}

void report_context_number(report *r, const char *key, double number)
{
    char value[64];
    (void)snprintf(value, sizeof value, "%.15g", isfinite(number) ? number : 0);
    add_entry(r, key, value, true);
}

const char *report_context_get(const report *r, const char *key)
{
    for (uint32_t i = 0; i < r->entry_count; ++i)
        if (!strcmp(r->entries[i].key, key))
            return r->entries[i].value;
    return NULL;
}

report_row *report_add(report *r, const report_row *row)
{
    report_row *rows = grow(r->rows, r->row_count, &r->row_capacity, sizeof *rows);
    if (!rows) {
        measurement time = row->time;
        measure_free(&time);
        return NULL;
    }
    r->rows = rows;
    rows[r->row_count] = *row;
    return &rows[r->row_count++];
}

void report_free(report *r)
{
    for (uint32_t i = 0; i < r->row_count; ++i)
        measure_free(&r->rows[i].time);
    free(r->rows);
    free(r->entries);
    memset(r, 0, sizeof *r);
}

/* ---------------------------------------------------------------------------------------------------------- figures */

double report_flops(const report_row *row)
{
    return row->time.median > 0 ? row->flop / row->time.median : 0;
}

double report_bandwidth(const report_row *row)
{
    return row->time.median > 0 ? row->bytes / row->time.median : 0;
}

double report_error_ratio(const report_row *row)
{
    if (!row->checked || row->error <= 0)
        return 0;
    return row->naive_error > 0 ? row->error / row->naive_error : INFINITY;
}

const char *report_status_string(report_status status)
{
    static const char *const names[] = {"ok", "wrong", "failed", "unsupported", "stopped"};
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "?";
}

const char *report_si(double value, char buffer[16])
{
    static const char units[] = " kMGTPE";
    int unit = 0;
    if (!(fabs(value) < 1e21)) {
        (void)snprintf(buffer, 16, "%s", isnan(value) ? "nan" : "inf");
        return buffer;
    }
    while (fabs(value) >= 999.5 && units[unit + 1]) {
        value /= 1000;
        ++unit;
    }
    double size = fabs(value);
    (void)snprintf(buffer, 16, "%.*f%.*s",
                   size == 0      ? 0
                   : size < 9.995 ? 2
                   : size < 99.95 ? 1
                                  : 0,
                   value, unit > 0, &units[unit]);
    return buffer;
}

/* Three digits, or a dash if the row does not have the figure. */
static const char *number(double value, bool there, char buffer[16])
{
    if (!there)
        return "-";
    double size = fabs(value);
    if (!(size < 1e6) || (size > 0 && size < 1e-3))
        (void)snprintf(buffer, 16, "%.1e", value);
    else
        (void)snprintf(buffer, 16, "%.*f", size < 9.995 ? 3 - (size >= 0.9995) : size < 99.95 ? 1 : 0, value);
    return buffer;
}

static const char *si(double value, char buffer[16])
{
    return value > 0 ? report_si(value, buffer) : "-";
}

static const char *percent(double part, double whole, char buffer[16])
{
    if (!(part > 0 && whole > 0))
        return "-";
    (void)snprintf(buffer, 16, "%.*f", 100 * part / whole < 9.95 ? 1 : 0, 100 * part / whole);
    return buffer;
}

/* -------------------------------------------------------------------------------------------------- table, Markdown */

/* The columns of the tables. Widths are those of the wide table, and of the table of 100 columns, where 0 omits the
 * column; negative widths are aligned left. */
static const struct {
    const char *head;
    int width, narrow;
} columns[] = {{"workload", -24, -21}, {"device", -9, -8}, {"type", -5, -4}, {"shape", -30, -24}, {"density", 7, 0},
               {"ms", 8, 8},           {"p10", 8, 0},      {"p90", 8, 0},    {"n", 4, 0},         {"FLOP/s", 7, 7},
               {"%peak", 5, 0},        {"B/s", 6, 6},      {"%copy", 5, 0},  {"error", 6, 6},     {"cold ms", 7, 0},
               {"warm ms", 7, 0},      {"mask ms", 7, 0},  {"mask B", 6, 0}, {"plan", -24, 0}};

#define COLUMNS (sizeof columns / sizeof columns[0])

/* 0: not in this format. */
static int width_of(size_t column, report_format format)
{
    return format == REPORT_TABLE ? columns[column].narrow : columns[column].width;
}

static bool is_text(report_format format)
{
    return format == REPORT_TABLE || format == REPORT_WIDE;
}

static void fill_cells(const report_row *row, report_format format, const char *cells[COLUMNS],
                       char buffers[COLUMNS][16])
{
    bool timed = row->time.count > 0 && row->status == REPORT_OK;
    bool attention = !strcmp(row->kind, "attention");
    (void)snprintf(buffers[8], 16, "%u", row->time.count);
    cells[0] = row->workload;
    cells[1] = row->device;
    cells[2] = row->dtype;
    cells[3] = row->shape;
    cells[4] = number(row->density, row->density >= 0, buffers[4]);
    cells[5] = format == REPORT_TABLE && row->status != REPORT_OK ? report_status_string(row->status)
                                                                  : number(1e3 * row->time.median, timed, buffers[5]);
    cells[6] = number(1e3 * row->time.p10, timed, buffers[6]);
    cells[7] = number(1e3 * row->time.p90, timed, buffers[7]);
    cells[8] = timed ? buffers[8] : "-";
    cells[9] = si(timed ? report_flops(row) : 0, buffers[9]);
    cells[10] = percent(timed ? report_flops(row) : 0, row->peak_flops, buffers[10]);
    cells[11] = si(timed ? report_bandwidth(row) : 0, buffers[11]);
    cells[12] = percent(timed ? report_bandwidth(row) : 0, row->peak_bandwidth, buffers[12]);
    cells[13] = number(report_error_ratio(row), row->checked, buffers[13]);
    cells[14] = number(1e3 * row->compile_cold, attention && row->compile_cold > 0, buffers[14]);
    cells[15] = number(1e3 * row->compile_warm, attention && row->compile_warm > 0, buffers[15]);
    cells[16] = number(1e3 * row->mask_seconds, row->mask_seconds > 0, buffers[16]);
    cells[17] = si((double)row->mask_bytes, buffers[17]);
    cells[18] = row->status == REPORT_OK ? row->plan : report_status_string(row->status);
}

/* Escapes bars, which would end a Markdown cell. */
static void write_cell(const char *text, FILE *out)
{
    for (; *text; ++text)
        if (*text == '|')
            (void)fputs("\\|", out);
        else
            (void)fputc(*text == '\n' ? ' ' : *text, out);
}

static void write_context(const report *r, const char *prefix, const char *suffix, FILE *out)
{
    for (uint32_t i = 0; i < r->entry_count; ++i)
        (void)fprintf(out, "%s%s: %s%s\n", prefix, r->entries[i].key, r->entries[i].value, suffix);
}

/* -------------------------------------------------------------------------------------------------------------- CSV */

static void write_csv_text(const char *text, FILE *out)
{
    if (!strpbrk(text, ",\"\r\n")) {
        (void)fputs(text, out);
        return;
    }
    (void)fputc('"', out);
    for (; *text; ++text) {
        if (*text == '"')
            (void)fputc('"', out);
        (void)fputc(*text, out);
    }
    (void)fputc('"', out);
}

/* The columns of CSV and the extra keys of JSON, from one list. */

void report_each_text(const report_row *row, report_text_sink text, void *context)
{
    text(context, "workload", row->workload);
    text(context, "kind", row->kind);
    text(context, "device", row->device);
    text(context, "dtype", row->dtype);
    text(context, "shape", row->shape);
    text(context, "plan", row->plan);
    text(context, "timer", row->timer);
    text(context, "status", report_status_string(row->status));
    text(context, "message", row->message);
}

void report_each_number(const report_row *row, report_number_sink sink, void *context)
{
    bool ok = row->status == REPORT_OK;
    sink(context, "median_seconds", row->time.median);
    sink(context, "p10_seconds", row->time.p10);
    sink(context, "p90_seconds", row->time.p90);
    sink(context, "samples", row->time.count);
    sink(context, "calls_per_sample", (double)row->time.iterations);
    sink(context, "warmup_calls", row->time.warmup);
    sink(context, "share_of_full_size", row->share);
    sink(context, "density", row->density);
    sink(context, "block_density", row->block_density);
    sink(context, "pairs", (double)row->pairs);
    sink(context, "flop", row->flop);
    sink(context, "flop_per_second", ok ? report_flops(row) : 0);
    sink(context, "share_of_peak_flops", ok && row->peak_flops > 0 ? report_flops(row) / row->peak_flops : 0);
    sink(context, "bytes", row->bytes);
    sink(context, "bytes_per_second", ok ? report_bandwidth(row) : 0);
    sink(context, "share_of_peak_bandwidth",
         ok && row->peak_bandwidth > 0 ? report_bandwidth(row) / row->peak_bandwidth : 0);
    sink(context, "checked_rows", row->checked ? (double)row->checked_rows : 0);
    sink(context, "max_error", row->error);
    sink(context, "naive_max_error", row->naive_error);
    sink(context, "error_ratio", report_error_ratio(row));
    sink(context, "compile_cold_seconds", row->compile_cold);
    sink(context, "compile_warm_seconds", row->compile_warm);
    sink(context, "mask_seconds", row->mask_seconds);
    sink(context, "mask_bytes", (double)row->mask_bytes);
    sink(context, "workspace_bytes", (double)row->workspace);
    sink(context, "device_bytes", (double)row->device_bytes);
    sink(context, "threads", row->threads);
    sink(context, "seed", (double)row->seed);
}

static void csv_key_text(void *out, const char *key, const char *text)
{
    (void)text;
    (void)fprintf(out, ",%s", key);
}

static void csv_key_number(void *out, const char *key, double value)
{
    (void)value;
    (void)fprintf(out, ",%s", key);
}

static void csv_text(void *out, const char *key, const char *text)
{
    (void)key;
    (void)fputc(',', out);
    write_csv_text(text, out);
}

static void csv_number(void *out, const char *key, double value)
{
    (void)key;
    (void)fprintf(out, ",%.9g", value);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

void report_begin(const report *r, report_format format, FILE *out)
{
    switch (format) {
    case REPORT_TABLE:
    case REPORT_WIDE:
        write_context(r, "# ", "", out);
        for (size_t i = 0; i < COLUMNS; ++i)
            if (width_of(i, format))
                (void)fprintf(out, "%s%*s", i ? "  " : "", width_of(i, format), columns[i].head);
        (void)fputc('\n', out);
        break;
    case REPORT_MARKDOWN:
        write_context(r, "", "  ", out);
        (void)fputc('\n', out);
        for (size_t i = 0; i < COLUMNS; ++i)
            (void)fprintf(out, "| %s ", columns[i].head);
        (void)fputs("|\n", out);
        for (size_t i = 0; i < COLUMNS; ++i)
            (void)fputs(columns[i].width < 0 ? "|---" : "|---:", out);
        (void)fputs("|\n", out);
        break;
    case REPORT_CSV: {
        report_row none = {0};
        (void)fputs("name", out);
        report_each_text(&none, csv_key_text, out);
        report_each_number(&none, csv_key_number, out);
        (void)fputc('\n', out);
        break;
    }
    }
    (void)fflush(out);
}

void report_write_row(const report_row *row, report_format format, FILE *out)
{
    const char *cells[COLUMNS];
    char buffers[COLUMNS][16];
    if (format == REPORT_CSV) {
        write_csv_text(row->name, out);
        report_each_text(row, csv_text, out);
        report_each_number(row, csv_number, out);
        (void)fputc('\n', out);
        (void)fflush(out);
        return;
    }
    fill_cells(row, format, cells, buffers);
    for (size_t i = 0; i < COLUMNS; ++i) {
        if (is_text(format)) {
            if (width_of(i, format))
                (void)fprintf(out, "%s%*s", i ? "  " : "", i + 1 < COLUMNS ? width_of(i, format) : 0, cells[i]);
        } else {
            (void)fputs("| ", out);
            write_cell(cells[i], out);
            (void)fputc(' ', out);
        }
    }
    (void)fputs(format == REPORT_MARKDOWN ? "|\n" : "\n", out);
    (void)fflush(out);
}

void report_end(const report *r, report_format format, FILE *out)
{
    bool first = true;
    if (format == REPORT_CSV)
        return;
    for (uint32_t i = 0; i < r->row_count; ++i) {
        const report_row *row = &r->rows[i];
        if (row->status == REPORT_OK)
            continue;
        if (first)
            (void)fputc('\n', out);
        first = false;
        if (is_text(format)) {
            (void)fprintf(out, "%s: %s: %s\n", row->name, report_status_string(row->status), row->message);
        } else {
            (void)fprintf(out, "- `%s`: %s: ", row->name, report_status_string(row->status));
            write_cell(row->message, out); /* on one line, since it is a list item */
            (void)fputc('\n', out);
        }
    }
    (void)fflush(out);
}

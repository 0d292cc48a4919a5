/* SPDX-License-Identifier: MIT */
/* Reports: context, rows and derived figures. Numbers are in SI base units unless their name says otherwise. */
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
        statistics_free(&time);
        return NULL;
    }
    r->rows = rows;
    rows[r->row_count] = *row;
    return &rows[r->row_count++];
}

void report_free(report *r)
{
    for (uint32_t i = 0; i < r->row_count; ++i)
        statistics_free(&r->rows[i].time);
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

double report_tokens(const report_row *row)
{
    return row->time.median > 0 ? (double)row->tokens / row->time.median : 0;
}

double report_speedup(const report_row *row)
{
    return row->time.median > 0 ? row->one_seconds / row->time.median : 0;
}

double report_hidden(const report_row *row)
{
    const double exchange = row->exchange_seconds;
    if (exchange <= 0)
        return 0;
    /* The three times are medians of samples of their own: noise alone takes their quotient out of 0 to 1. */
    const double hidden = (row->computing_seconds + exchange - row->time.median) / exchange;
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

double report_error_ratio(const report_row *row)
{
    if (!row->checked || row->error <= 0)
        return 0;
    return row->naive_error > 0 ? row->error / row->naive_error : INFINITY;
}

const char *report_flags(const report_row *row, char buffer[8])
{
    const measurement *m = &row->time;
    const bool timed = row->status == REPORT_OK && m->count > 0;
    size_t used = 0;
    if (timed && m->p90 > REPORT_SPREAD * m->p10)
        buffer[used++] = 'n';
    if (timed && m->others > REPORT_OTHERS)
        buffer[used++] = 'l';
    if (timed && m->clock_begin > 0 && fabs(m->clock_end / m->clock_begin - 1) > REPORT_CLOCK)
        buffer[used++] = 'c';
    if (timed && fabs(m->drift) > REPORT_DRIFT && m->drift_p < 0.05)
        buffer[used++] = 'd';
    buffer[used] = '\0';
    return buffer;
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
    char flags[8];
    text(context, "flags", report_flags(row, flags));
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
    sink(context, "load_of_others", row->time.others);
    sink(context, "clock_begin_hz", row->time.clock_begin);
    sink(context, "clock_end_hz", row->time.clock_end);
    sink(context, "drift", row->time.drift);
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
    sink(context, "tokens", (double)row->tokens);
    sink(context, "tokens_per_second", ok ? report_tokens(row) : 0);
    sink(context, "checked_rows", row->checked ? (double)row->checked_rows : 0);
    sink(context, "max_error", row->error);
    sink(context, "naive_max_error", row->naive_error);
    sink(context, "error_ratio", report_error_ratio(row));
    sink(context, "ranks", row->ranks);
    sink(context, "one_rank_seconds", row->one_seconds);
    sink(context, "speedup", ok ? report_speedup(row) : 0);
    sink(context, "imbalance", row->imbalance);
    sink(context, "most_fetched", row->fetched);
    sink(context, "received_bytes", row->received_bytes);
    sink(context, "ring_bytes", row->ring_bytes);
    sink(context, "exchanged_bytes", row->exchanged_bytes);
    sink(context, "computing_seconds", row->computing_seconds);
    sink(context, "exchange_seconds", row->exchange_seconds);
    sink(context, "hidden_share", ok ? report_hidden(row) : 0);
    sink(context, "predicted_seconds", row->predicted_seconds);
    sink(context, "link_bytes_per_second", row->link_rate);
    sink(context, "compile_cold_seconds", row->compile_cold);
    sink(context, "compile_warm_seconds", row->compile_warm);
    sink(context, "mask_seconds", row->mask_seconds);
    sink(context, "mask_bytes", (double)row->mask_bytes);
    sink(context, "workspace_bytes", (double)row->workspace);
    sink(context, "device_bytes", (double)row->device_bytes);
    sink(context, "threads", row->threads);
    sink(context, "seed", (double)row->seed);
}

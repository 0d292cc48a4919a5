/* SPDX-License-Identifier: MIT */
/* Verdicts, and the baseline file. */
#include "bench/timing/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void statistics(const double *samples, uint32_t count, measurement *m)
{
    *m = (measurement){.samples = (double *)(uintptr_t)samples, .count = count};
    statistics_finish(m);
}

comparison compare_samples(const double *base, uint32_t base_count, const double *now, uint32_t now_count, double floor)
{
    comparison c = {.verdict = COMPARE_UNKNOWN, .p = -1};
    measurement b, n;
    statistics(base, base_count, &b);
    statistics(now, now_count, &n);
    c.base = b.median;
    c.now = n.median;
    if (!(c.base > 0 && c.now > 0))
        return c;
    c.change = c.now / c.base - 1;
    compare_verdict direction = c.change < 0 ? COMPARE_FASTER : COMPARE_SLOWER;
    bool small = fabs(c.change) <= floor;
    if (base_count >= COMPARE_LEAST_SAMPLES && now_count >= COMPARE_LEAST_SAMPLES) {
        c.p = statistics_mann_whitney(base, base_count, now, now_count);
        c.verdict = small || c.p >= COMPARE_SIGNIFICANCE ? COMPARE_SAME : direction;
        return c;
    }
    /* Too few samples for a test: only disjoint ranges, or nearly equal medians, are significant. */
    bool apart = b.most < n.least || n.most < b.least;
    if (small)
        c.verdict = COMPARE_SAME;
    else if (apart && base_count >= 3 && now_count >= 3)
        c.verdict = direction;
    return c;
}

const char *compare_verdict_string(compare_verdict verdict)
{
    static const char *const names[] = {"SAME", "FASTER", "SLOWER", "????", "LOST"};
    return (unsigned)verdict < COMPARE_VERDICTS ? names[verdict] : "????";
}

void compare_lose(comparison *c)
{
    if (c->base > 0 && !(c->now > 0))
        c->verdict = COMPARE_LOST;
}

/* --------------------------------------------------------------------------------------------------------- baseline */

void baseline_free(baseline *b)
{
    for (uint32_t i = 0; i < b->row_count; ++i) {
        free(b->rows[i].name);
        free(b->rows[i].samples);
    }
    free(b->rows);
    memset(b, 0, sizeof *b);
}

const baseline_row *baseline_find(const baseline *b, const char *name)
{
    for (uint32_t i = 0; i < b->row_count; ++i)
        if (!strcmp(b->rows[i].name, name))
            return &b->rows[i];
    return NULL;
}

double baseline_scale(const baseline *b, const char *device, const char *dtype)
{
    char key[48];
    (void)snprintf(key, sizeof key, "%s %s", device, dtype);
    for (uint32_t i = 0; i < b->part_count; ++i)
        if (!strcmp(b->parts[i].key, key))
            return b->parts[i].scale;
    return b->scale;
}

static double valid_scale(const json_t *number)
{
    const double scale = json_number_value(number);
    return scale > 0 && scale <= 1 ? scale : 0;
}

static void read_parts(const json_t *context, baseline *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)context, key, value)
    {
        if (strncmp(key, "scale ", 6) != 0 || b->part_count == BASELINE_PARTS || !(valid_scale(value) > 0))
            continue;
        baseline_part *part = &b->parts[b->part_count++];
        (void)snprintf(part->key, sizeof part->key, "%s", key + 6);
        part->scale = valid_scale(value);
    }
}

static double unit_seconds(const json_t *unit)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    const char *name = json_string_value(unit);
    if (!name)
        return 1e-9; /* the schema's default is ns */
    for (size_t i = 0; i < sizeof units / sizeof units[0]; ++i)
        if (!strcmp(name, units[i].name))
            return units[i].seconds;
    return 0;
}

/* Finds or adds the row of a name. The entries of a row are adjacent, so the last row is tried first; rows is large
 * enough for all. */
static baseline_row *row_of(baseline *b, const char *name)
{
    /* Rows below row_count have names; the analyzer forgets it between entries. */
    if (b->row_count &&
        !strcmp(b->rows[b->row_count - 1].name, name)) // NOLINT(clang-analyzer-core.NonNullParamChecker)
        return &b->rows[b->row_count - 1];
    baseline_row *found = (baseline_row *)(uintptr_t)baseline_find(b, name);
    if (found)
        return found;
    size_t size = strlen(name) + 1;
    char *copy = malloc(size);
    if (!copy)
        return NULL;
    memcpy(copy, name, size);
    b->rows[b->row_count] = (baseline_row){.name = copy};
    return &b->rows[b->row_count++];
}

static bool add_entry(baseline *b, const json_t *entry, const char *file, size_t index, failure *why)
{
    const json_t *type = json_object_get(entry, "run_type"), *name = json_object_get(entry, "run_name");
    const json_t *time = json_object_get(entry, "real_time");
    if (!name)
        name = json_object_get(entry, "name");
    if (!json_is_string(name))
        return failure_set(why, "%s: benchmark %zu has no name", file, index);
    if (json_is_string(type) && strcmp(json_string_value(type), "iteration") != 0)
        return true; /* aggregates are computed from the samples */
    baseline_row *row = row_of(b, json_string_value(name));
    if (!row)
        return failure_set(why, "%s: out of memory", file);
    if (json_is_true(json_object_get(entry, "error_occurred"))) {
        row->failed = true;
        return true;
    }
    double unit = unit_seconds(json_object_get(entry, "time_unit"));
    double seconds = json_is_number(time) ? json_number_value(time) * unit : -1;
    if (unit <= 0 || !isfinite(seconds) || seconds < 0)
        return failure_set(why, "%s: benchmark %zu (%.128s): real_time and time_unit (ns, us, ms, s) must give a time",
                           file, index, json_string_value(name));
    double *samples = realloc(row->samples, (row->count + 1) * sizeof *samples);
    if (!samples)
        return failure_set(why, "%s: out of memory", file);
    row->samples = samples;
    row->samples[row->count++] = seconds;
    return true;
}

static bool read_root(const json_t *root, const char *name, baseline *b, failure *why)
{
    const json_t *context = json_object_get(root, "context"), *list = json_object_get(root, "benchmarks");
    size_t count = json_array_size(list);
    if (!json_is_array(list))
        return failure_set(why, "%s: no list \"benchmarks\": not a file that bench --json wrote", name);
    const json_t *version = json_object_get(context, "json_schema_version");
    if (version && json_integer_value(version) != REPORT_SCHEMA_VERSION)
        return failure_set(why, "%s: json_schema_version is not %d, the one that this program reads", name,
                           REPORT_SCHEMA_VERSION);
    double seed = json_number_value(json_object_get(context, "seed"));
    b->scale = valid_scale(json_object_get(context, "scale"));
    read_parts(context, b);
    b->seed = seed > 0 && seed < 0x1p53 ? (uint64_t)seed : 0;
    b->rows = calloc(count ? count : 1, sizeof *b->rows);
    if (!b->rows)
        return failure_set(why, "%s: out of memory", name);
    for (size_t i = 0; i < count; ++i)
        if (!add_entry(b, json_array_get(list, i), name, i, why))
            return false;
    return true;
}

static bool take_root(json_t *root, const json_error_t *error, const char *name, baseline *b, failure *why)
{
    memset(b, 0, sizeof *b);
    if (!root && error->line < 0)
        return failure_set(why, "%s", error->text); /* an error about the file, with its name */
    if (!root)
        return failure_set(why, "%s:%d:%d: %s", name, error->line, error->column, error->text);
    bool good = read_root(root, name, b, why);
    json_decref(root);
    if (!good)
        baseline_free(b);
    return good;
}

bool baseline_parse(const char *text, size_t length, const char *name, baseline *b, failure *why)
{
    json_error_t error;
    return take_root(json_loadb(text, length, 0, &error), &error, name, b, why);
}

bool baseline_load(const char *path, baseline *b, failure *why)
{
    json_error_t error;
    return take_root(json_load_file(path, 0, &error), &error, path, b, why);
}

/* ------------------------------------------------------------------------------------------------------------ table */

void compare_write_line(const char *name, const comparison *c, const char *note, report_format format, FILE *out)
{
    char base[32] = "-", now[32] = "-", change[32] = "-", p[32] = "-";
    if (c->base > 0)
        (void)snprintf(base, sizeof base, "%.4g", 1e3 * c->base);
    if (c->now > 0)
        (void)snprintf(now, sizeof now, "%.4g", 1e3 * c->now);
    if (c->base > 0 && c->now > 0)
        (void)snprintf(change, sizeof change, "%+.1f%%", 100 * c->change);
    if (c->p >= 0)
        (void)snprintf(p, sizeof p, "%.4f", c->p);
    if (!*note && c->verdict == COMPARE_UNKNOWN && c->base > 0 && c->now > 0)
        note = " (too few samples to decide: --repetitions 9)";
    (void)fprintf(out,
                  format == REPORT_MARKDOWN ? "| %s | %s | %s | %s | %s | %s%s |\n"
                  : format == REPORT_CSV    ? "%s,%s,%s,%s,%s,%s%s\n"
                                            : "%-64s  %10s  %10s  %8s  %7s  %s%s\n",
                  name, base, now, change, p, compare_verdict_string(c->verdict), note);
}

void compare_write_head(report_format format, FILE *out)
{
    (void)fputs(format == REPORT_MARKDOWN ? "\n| row | base ms | now ms | change | p | verdict |\n"
                                            "|---|---:|---:|---:|---:|---|\n"
                : format == REPORT_CSV    ? "\nrow,base_ms,now_ms,change,p,verdict\n"
                                          : "\n",
                out);
    if (format != REPORT_MARKDOWN && format != REPORT_CSV)
        (void)fprintf(out, "%-64s  %10s  %10s  %8s  %7s  %s\n", "compared with the baseline", "base ms", "now ms",
                      "change", "p", "verdict");
}

void compare_write_counts(const uint32_t counts[COMPARE_VERDICTS], FILE *out)
{
    (void)fprintf(out, "\n%u same, %u faster, %u slower, %u unknown", counts[COMPARE_SAME], counts[COMPARE_FASTER],
                  counts[COMPARE_SLOWER], counts[COMPARE_UNKNOWN]);
    if (counts[COMPARE_LOST])
        (void)fprintf(out, ", %u lost", counts[COMPARE_LOST]);
    (void)fputc('\n', out);
}

uint32_t compare_write(const baseline *b, const report *r, double floor, report_format format, FILE *out,
                       uint32_t *compared)
{
    uint32_t counts[COMPARE_VERDICTS] = {0};
    *compared = 0;
    compare_write_head(format, out);
    for (uint32_t i = 0; i < r->row_count; ++i) {
        const report_row *row = &r->rows[i];
        const baseline_row *base = baseline_find(b, row->name);
        bool usable = base && !base->failed && row->status == REPORT_OK;
        comparison c =
            compare_samples(base && !base->failed ? base->samples : NULL, base && !base->failed ? base->count : 0,
                            row->time.samples, row->status == REPORT_OK ? row->time.count : 0, floor);
        compare_lose(&c);
        const char *note = usable                     ? ""
                           : row->status != REPORT_OK ? " (has no time here)"
                           : !base                    ? " (not in the baseline)"
                                                      : " (failed in the baseline)";
        compare_write_line(row->name, &c, note, format, out);
        ++counts[c.verdict];
        *compared += usable;
    }
    for (uint32_t i = 0; i < b->row_count; ++i) {
        bool found = false;
        for (uint32_t j = 0; j < r->row_count && !found; ++j)
            found = !strcmp(r->rows[j].name, b->rows[i].name);
        if (found)
            continue;
        comparison c = compare_samples(b->rows[i].samples, b->rows[i].count, NULL, 0, floor);
        compare_write_line(b->rows[i].name, &c, " (only in the baseline)", format, out);
        ++counts[c.verdict];
    }
    if (format != REPORT_CSV)
        compare_write_counts(counts, out);
    (void)fflush(out);
    return counts[COMPARE_SLOWER] + counts[COMPARE_LOST];
}

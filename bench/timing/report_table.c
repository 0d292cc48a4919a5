/* SPDX-License-Identifier: MIT */
/* Reports as table, Markdown and CSV. The table rounds to three digits. */
#include "bench/timing/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Columns with their widths in the wide table, in the table of 100 characters and in those of serving and of ranks,
 * where 0 omits the column; negative widths are aligned left. */
typedef enum column {
    WORKLOAD,
    WHERE, /* device and type, in the narrow table */
    DEVICE,
    DTYPE,
    SHAPE,
    DENSITY,
    TIME,
    MICROSECONDS,
    P10,
    P90,
    COUNT,
    TOKENS,
    ONE,
    SPEEDUP,
    IMBALANCE,
    OF_RING,
    MOST_FETCHED,
    RECEIVED,
    HIDDEN,
    PREDICTED,
    FLOPS,
    OF_PEAK,
    BANDWIDTH,
    OF_COPY,
    ERROR,
    COLD,
    WARM,
    MASK_TIME,
    MASK_BYTES,
    PLAN,
    FLAGS,
    COLUMNS
} column;

static const struct {
    const char *head;
    int width, narrow, serving, ranks;
} columns[COLUMNS] = {
    [WORKLOAD] = {"workload", -24, -21, -16, -18},
    [WHERE] = {"device", 0, -12, -12, -13},
    [DEVICE] = {"device", -9, 0, 0, 0},
    [DTYPE] = {"type", -5, 0, 0, 0},
    [SHAPE] = {"shape", -30, -26, -31, -26},
    [DENSITY] = {"density", 7, 0, 0, 0},
    [TIME] = {"ms", 8, 7, 0, 7},
    [MICROSECONDS] = {"us", 0, 0, 7, 0},
    [P10] = {"p10", 8, 0, 0, 0},
    [P90] = {"p90", 8, 0, 0, 0},
    [COUNT] = {"n", 4, 0, 0, 0},
    [TOKENS] = {"tok/s", 6, 0, 6, 0},
    [ONE] = {"one ms", 8, 0, 0, 7},
    [SPEEDUP] = {"faster", 6, 0, 0, 6},
    [IMBALANCE] = {"imbal", 5, 0, 0, 5},
    [OF_RING] = {"%ring", 5, 0, 0, 5},
    [MOST_FETCHED] = {"%most", 5, 0, 0, 0},
    [RECEIVED] = {"recv B", 6, 0, 0, 0},
    [HIDDEN] = {"%hid", 5, 0, 0, 5},
    [PREDICTED] = {"pred ms", 8, 0, 0, 0},
    [FLOPS] = {"FLOP/s", 7, 6, 0, 0},
    [OF_PEAK] = {"%peak", 5, 0, 0, 0},
    [BANDWIDTH] = {"B/s", 6, 5, 5, 0},
    [OF_COPY] = {"%copy", 5, 0, 0, 0},
    [ERROR] = {"error", 6, 5, 5, 5},
    [COLD] = {"cold ms", 7, 0, 0, 0},
    [WARM] = {"warm ms", 7, 0, 0, 0},
    [MASK_TIME] = {"mask ms", 7, 0, 0, 0},
    [MASK_BYTES] = {"mask B", 6, 0, 0, 0},
    [PLAN] = {"plan", -24, 0, 0, 0},
    [FLAGS] = {"flag", -4, -4, -4, -4},
};

/* 0: not in this format. */
static int width_of(size_t index, report_format format)
{
    return format == REPORT_TABLE     ? columns[index].narrow
           : format == REPORT_SERVING ? columns[index].serving
           : format == REPORT_RANKS   ? columns[index].ranks
                                      : columns[index].width;
}

static bool is_text(report_format format)
{
    return format != REPORT_MARKDOWN && format != REPORT_CSV;
}

typedef char cell[48];

static void fill_cells(const report_row *row, const char *cells[COLUMNS], cell buffers[COLUMNS])
{
    const bool timed = row->time.count > 0 && row->status == REPORT_OK;
    const bool attention = !strcmp(row->kind, "attention") || !strcmp(row->kind, "serving");
    (void)snprintf(buffers[COUNT], sizeof(cell), "%u", row->time.count);
    (void)snprintf(buffers[WHERE], sizeof(cell), "%s%s%s", row->device, *row->dtype ? " " : "", row->dtype);
    cells[WORKLOAD] = row->workload;
    cells[WHERE] = buffers[WHERE];
    cells[DEVICE] = row->device;
    cells[DTYPE] = row->dtype;
    cells[SHAPE] = row->shape;
    cells[DENSITY] = number(row->density, row->density >= 0, buffers[DENSITY]);
    cells[TIME] = number(1e3 * row->time.median, timed, buffers[TIME]);
    cells[MICROSECONDS] = number(1e6 * row->time.median, timed, buffers[MICROSECONDS]);
    cells[P10] = number(1e3 * row->time.p10, timed, buffers[P10]);
    cells[P90] = number(1e3 * row->time.p90, timed, buffers[P90]);
    cells[COUNT] = timed ? buffers[COUNT] : "-";
    cells[TOKENS] = si(timed ? report_tokens(row) : 0, buffers[TOKENS]);
    cells[ONE] = number(1e3 * row->one_seconds, timed && row->ranks, buffers[ONE]);
    cells[SPEEDUP] = number(report_speedup(row), timed && row->ranks, buffers[SPEEDUP]);
    cells[IMBALANCE] = number(row->imbalance, row->ranks > 0, buffers[IMBALANCE]);
    cells[OF_RING] =
        number(row->ring_bytes > 0 ? 100 * row->received_bytes / row->ring_bytes : 0, row->ranks > 0, buffers[OF_RING]);
    cells[MOST_FETCHED] = number(100 * row->fetched, row->ranks > 0, buffers[MOST_FETCHED]);
    cells[RECEIVED] = si(row->received_bytes, buffers[RECEIVED]);
    /* Not where the call itself varies by more than its messages take. */
    cells[HIDDEN] = number(100 * report_hidden(row), timed && row->exchange_seconds > row->time.p90 - row->time.p10,
                           buffers[HIDDEN]);
    cells[PREDICTED] = number(1e3 * row->predicted_seconds, row->predicted_seconds > 0, buffers[PREDICTED]);
    cells[FLOPS] = si(timed ? report_flops(row) : 0, buffers[FLOPS]);
    cells[OF_PEAK] = percent(timed ? report_flops(row) : 0, row->peak_flops, buffers[OF_PEAK]);
    cells[BANDWIDTH] = si(timed ? report_bandwidth(row) : 0, buffers[BANDWIDTH]);
    cells[OF_COPY] = percent(timed ? report_bandwidth(row) : 0, row->peak_bandwidth, buffers[OF_COPY]);
    cells[ERROR] = number(report_error_ratio(row), row->checked, buffers[ERROR]);
    cells[COLD] = number(1e3 * row->compile_cold, attention && row->compile_cold > 0, buffers[COLD]);
    cells[WARM] = number(1e3 * row->compile_warm, attention && row->compile_warm > 0, buffers[WARM]);
    cells[MASK_TIME] = number(1e3 * row->mask_seconds, row->mask_seconds > 0, buffers[MASK_TIME]);
    cells[MASK_BYTES] = si((double)row->mask_bytes, buffers[MASK_BYTES]);
    cells[PLAN] = row->status == REPORT_OK ? row->plan : report_status_string(row->status);
    cells[FLAGS] = report_flags(row, buffers[FLAGS]);
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
    case REPORT_SERVING:
    case REPORT_RANKS:
    case REPORT_WIDE:
        write_context(r, "# ", "", out);
        for (size_t i = 0; i < COLUMNS; ++i)
            if (width_of(i, format))
                (void)fprintf(out, "%s%*s", i ? "  " : "", i + 1 < COLUMNS ? width_of(i, format) : 0, columns[i].head);
        (void)fputc('\n', out);
        break;
    case REPORT_MARKDOWN:
        write_context(r, "", "  ", out);
        (void)fputc('\n', out);
        for (size_t i = 0; i < COLUMNS; ++i)
            if (width_of(i, format))
                (void)fprintf(out, "| %s ", columns[i].head);
        (void)fputs("|\n", out);
        for (size_t i = 0; i < COLUMNS; ++i)
            if (width_of(i, format))
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

/* Cuts a text that is wider than its column, and marks it with a tilde. A letter of several bytes stays whole. */
static void write_cut(const char *text, int width, FILE *out)
{
    int size = (int)strlen(text);
    if (size <= width) {
        (void)fprintf(out, "%-*s", width, text);
        return;
    }
    for (size = width - 1; size > 0 && ((unsigned char)text[size] & 0xc0) == 0x80; --size)
        ;
    (void)fprintf(out, "%.*s~%*s", size, text, width - 1 - size, "");
}

/* A row without a time has its status in place of the figures. The tables of 100 characters cut texts that are wider
 * than their columns; a device and type stay whole, and the shape behind them has less room. */
static void write_text_row(const report_row *row, report_format format, FILE *out)
{
    const char *cells[COLUMNS];
    cell buffers[COLUMNS];
    int over = 0;
    fill_cells(row, cells, buffers);
    for (size_t i = 0; i < COLUMNS; ++i) {
        if (!width_of(i, format))
            continue;
        if ((((format == REPORT_TABLE || format == REPORT_RANKS) && i == TIME) ||
             (format == REPORT_SERVING && i == MICROSECONDS)) &&
            row->status != REPORT_OK) {
            (void)fprintf(out, "  %s", report_status_string(row->status));
            break;
        }
        const int width = width_of(i, format);
        (void)fputs(i && i + 1 < COLUMNS ? "  " : "", out);
        if (i + 1 < COLUMNS && (width > 0 || format == REPORT_WIDE)) {
            (void)fprintf(out, "%*s", width, cells[i]);
        } else if (i == WHERE) {
            (void)fprintf(out, "%*s", width, cells[i]);
            over = (int)strlen(cells[i]) + width;
        } else if (i + 1 < COLUMNS) {
            write_cut(cells[i], -width - (over > 0 ? over : 0), out);
            over = 0;
        } else if (*cells[i]) {
            (void)fprintf(out, "  %s", cells[i]);
        }
    }
    (void)fputc('\n', out);
}

static void write_markdown_row(const report_row *row, FILE *out)
{
    const char *cells[COLUMNS];
    cell buffers[COLUMNS];
    fill_cells(row, cells, buffers);
    for (size_t i = 0; i < COLUMNS; ++i) {
        if (!width_of(i, REPORT_MARKDOWN))
            continue;
        (void)fputs("| ", out);
        write_cell(cells[i], out);
        (void)fputc(' ', out);
    }
    (void)fputs("|\n", out);
}

void report_write_row(const report_row *row, report_format format, FILE *out)
{
    if (format == REPORT_CSV) {
        write_csv_text(row->name, out);
        report_each_text(row, csv_text, out);
        report_each_number(row, csv_number, out);
        (void)fputc('\n', out);
    } else if (is_text(format)) {
        write_text_row(row, format, out);
    } else {
        write_markdown_row(row, out);
    }
    (void)fflush(out);
}

/* ---------------------------------------------------------------------------------------------------------- summary */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Attention whose FLOP/s a peer's can be held against: on the same host, of the same type. */
static bool has_peer(const report_row *row, const report_row *peer)
{
    return row->status == REPORT_OK && !strcmp(row->kind, "attention") && !strcmp(row->device, "cpu") &&
           !strcmp(row->dtype, peer->dtype) && report_flops(row) > 0;
}

/* "by FLOP/s, 38.1 times faster than naive loop (7 rows, 9.2 to 51.3)". */
static void write_peer(const report *r, const report_row *peer, const char *bullet, double *ratios, FILE *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->row_count; ++i)
        if (has_peer(&r->rows[i], peer))
            ratios[count++] = report_flops(&r->rows[i]) / report_flops(peer);
    if (!count)
        return;
    qsort(ratios, count, sizeof *ratios, compare_doubles);
    const double median = statistics_quantile(ratios, count, 0.5);
    const bool faster = median >= 1;
    char middle[16], low[16], high[16];
    (void)fprintf(out, "%sby FLOP/s, %s times %s than %s %s", bullet,
                  number(faster ? median : 1 / median, true, middle), faster ? "faster" : "slower",
                  strncmp(peer->workload, "peer: ", 6) ? peer->workload : peer->workload + 6, peer->shape);
    if (count > 1)
        (void)fprintf(out, " (median of %u rows; %s to %s times its FLOP/s)", count, number(ratios[0], true, low),
                      number(ratios[count - 1], true, high));
    (void)fputc('\n', out);
}

static void write_peers(const report *r, const char *bullet, FILE *out)
{
    double *ratios = calloc(r->row_count ? r->row_count : 1, sizeof *ratios);
    for (uint32_t i = 0; i < r->row_count && ratios; ++i)
        if (!strcmp(r->rows[i].kind, "peer") && r->rows[i].status == REPORT_OK && report_flops(&r->rows[i]) > 0)
            write_peer(r, &r->rows[i], bullet, ratios, out);
    free(ratios);
}

static void write_fastest(const report *r, const char *bullet, FILE *out)
{
    const report_row *best = NULL;
    char buffer[16], share[16];
    for (uint32_t i = 0; i < r->row_count; ++i) {
        const report_row *row = &r->rows[i];
        if (row->status == REPORT_OK && !strcmp(row->kind, "attention") &&
            (!best || report_flops(row) > report_flops(best)))
            best = row;
    }
    if (!best || !(report_flops(best) > 0))
        return;
    (void)fprintf(out, "%smost FLOP/s: %s, %s %s: %sFLOP/s", bullet, best->workload, best->device, best->dtype,
                  report_si(report_flops(best), buffer));
    if (best->peak_flops > 0)
        (void)fprintf(out, ", %s %% of the measured peak", percent(report_flops(best), best->peak_flops, share));
    (void)fputc('\n', out);
}

static void write_flags(const report *r, const char *bullet, FILE *out)
{
    static const struct {
        char flag;
        const char *meaning;
    } flags[] = {{'n', "p90 is over 10 % above p10"},
                 {'l', "other processes used over 10 % of the CPUs"},
                 {'c', "the CPU's clock changed by over 5 %"},
                 {'d', "the later samples differ from the earlier ones by over 2 %"}};
    for (size_t f = 0; f < sizeof flags / sizeof flags[0]; ++f) {
        uint32_t count = 0;
        char text[8];
        for (uint32_t i = 0; i < r->row_count; ++i)
            count += strchr(report_flags(&r->rows[i], text), flags[f].flag) != NULL;
        if (count)
            (void)fprintf(out, "%sflag %c, %u row%s: %s\n", bullet, flags[f].flag, count, count > 1 ? "s" : "",
                          flags[f].meaning);
    }
}

static void write_counts(const report *r, FILE *out)
{
    uint32_t count[REPORT_STOPPED + 1] = {0};
    const char *separator = ": ";
    for (uint32_t i = 0; i < r->row_count; ++i)
        ++count[r->rows[i].status];
    (void)fprintf(out, "\n%u row%s", r->row_count, r->row_count == 1 ? "" : "s");
    if (r->seconds > 0)
        (void)fprintf(out, " in %.0f s", r->seconds);
    for (uint32_t i = 0; i <= REPORT_STOPPED; ++i)
        if (count[i]) {
            (void)fprintf(out, "%s%u %s", separator, count[i], report_status_string((report_status)i));
            separator = ", ";
        }
    (void)fputc('\n', out);
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
    const char *const bullet = is_text(format) ? "  " : "- ";
    write_counts(r, out);
    if (!is_text(format))
        (void)fputc('\n', out);
    write_fastest(r, bullet, out);
    write_peers(r, bullet, out);
    write_flags(r, bullet, out);
    (void)fflush(out);
}

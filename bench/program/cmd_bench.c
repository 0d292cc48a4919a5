/* SPDX-License-Identifier: MIT */
/* attune bench: checks and times named workloads, block masks and peers. docs/benchmarking.md explains columns and
 * options. */
#include "bench/program/cli.h"
#include "bench/peers/peers.h"
#include "bench/timing/compare.h"
#include "bench/timing/folder.h"
#include "bench/program/bench_options.h"
#include "bench/program/explain_ranks.h"
#include "bench/program/output.h"
#include "bench/program/progress.h"
#include "bench/timing/row.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define DEVICES_MAX   16
#define DTYPES_MAX    4
#define WORKLOADS_MAX 1024
#define PEAK_TRIES    3
#define RUN_SECONDS   50   /* target of the automatic scale */
#define LEAST_SERVING 2e8  /* a layer of serving, whose pattern has several, is not shrunk below this */
#define CPU_SHARE     0.15 /* of the measured peak, assumed by estimates of time */
#define GPU_SHARE     0.3
#define ROW_OVERHEAD  0.7 /* seconds: inputs, references, buffers */

typedef struct bench_device {
    attune_device *device;
    attune_device_info info;
    attune_dtype dtypes[DTYPES_MAX];
    double flops[DTYPES_MAX], bandwidth[DTYPES_MAX];
    double scale[DTYPES_MAX];
    uint32_t dtype_count;
} bench_device;

typedef struct bench_run {
    bench_options options;
    attune_instance *instance;
    folder kernels; /* kernel cache of this run */
    attune_kernel_options kernel;
    bench_device devices[DEVICES_MAX];
    uint32_t device_count;
    const workload *workloads[WORKLOADS_MAX];
    uint32_t workload_count;
    const serving_workload *serving[WORKLOADS_MAX];
    uint32_t serving_count;
    workload *own; /* of --file, or of options such as --q-len */
    uint32_t own_count;
    int64_t *doc_lengths;
    int64_t doc_length_count;
    baseline base;
    report report;
    uint32_t done, total; /* rows */
    FILE *out;            /* output of rows; NULL = none */
    output output;        /* of --json */
    progress progress;
} bench_run;

static volatile sig_atomic_t stopped;

/* The first Ctrl-C, or SIGTERM, ends the run after the current call, with a report; the second ends the program. */
static void on_interrupt(int number)
{
    (void)number;
    stopped = 1;
}

static bool error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints an error and returns false. */
static bool error(const char *format, ...)
{
    char text[2048];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    cli_error("%s", text);
    return false;
}

static void show_progress(bench_run *run, const char *what, const char *device, const char *dtype)
{
    progress_show(&run->progress, run->done, run->total, "%s %s %s", what, device, dtype);
}

static void keep_row(bench_run *run, const report_row *row)
{
    const report_row *kept = report_add(&run->report, row);
    progress_clear(&run->progress);
    ++run->done;
    if (kept && run->out)
        report_write_row(kept, run->options.format, run->out);
    if (row->status != REPORT_OK)
        (void)error("%s: %s: %s", row->name, report_status_string(row->status), row->message);
}

/* ------------------------------------------------------------------------------------------------------ what is run */

static void list_workload(const workload *w)
{
    (void)printf("%-20s %s\n", w->name, w->description);
    if (w->mask[0])
        (void)printf("%-20s   mask   %s\n", "", w->mask);
    if (w->score[0])
        (void)printf("%-20s   score  %s\n", "", w->score);
}

/* Only those of the file, if there is one. */
static bool list_workloads(const char *path)
{
    if (path) {
        workload *list;
        uint32_t count;
        failure why = {{0}};
        if (!workload_load(path, &list, &count, &why))
            return error("--file: %s", why.message);
        for (uint32_t i = 0; i < count; ++i)
            list_workload(&list[i]);
        workload_list_free(list, count);
        return true;
    }
    for (uint32_t i = 0; i < workload_count(); ++i)
        list_workload(workload_get(i));
    for (uint32_t i = 0; i < serving_workload_count(); ++i)
        (void)printf("%-20s %s\n", serving_workload_get(i)->name, serving_workload_get(i)->description);
    for (uint32_t i = 0; i < workload_mask_count(); ++i)
        (void)printf("%-20s %s\n", workload_mask_get(i)->name, workload_mask_get(i)->description);
    (void)printf("\nGenerators of captures (for --file):\n");
    for (uint32_t i = 0; workload_generator_get(i); ++i)
        (void)printf("%-20s %s\n", workload_generator_get(i)->name, workload_generator_get(i)->description);
    return true;
}

static bool add_workload(bench_run *run, const workload *w)
{
    if (run->workload_count == WORKLOADS_MAX)
        return error("more than %d workloads are chosen, the limit", WORKLOADS_MAX);
    run->workloads[run->workload_count++] = w;
    return true;
}

static bool add_serving(bench_run *run, const serving_workload *w)
{
    if (run->serving_count == WORKLOADS_MAX)
        return error("more than %d workloads are chosen, the limit", WORKLOADS_MAX);
    run->serving[run->serving_count++] = w;
    return true;
}

static bool add_named(bench_run *run, const char *name)
{
    const workload *w = workload_find(name);
    const serving_workload *s = serving_workload_find(name);
    if (w)
        return add_workload(run, w);
    if (s)
        return add_serving(run, s);
    for (uint32_t i = 0; !strcmp(name, "serving") && i < serving_workload_count(); ++i)
        if (!add_serving(run, serving_workload_get(i)))
            return false;
    if (!strcmp(name, "serving"))
        return true;
    if (strcmp(name, "all") != 0) {
        cli_unknown_workload(name, NULL);
        return false;
    }
    run->options.masks = !run->options.ranks.count;
    for (uint32_t i = 0; i < workload_count(); ++i)
        if (!add_workload(run, workload_get(i)))
            return false;
    return true;
}

/* Before the work: whether files can be made in the folder. */
static bool check_captures(const char *path)
{
    struct stat about;
    if (!stat(path, &about) && !S_ISDIR(about.st_mode))
        errno = ENOTDIR;
    else if (!access(path, W_OK | X_OK))
        return true;
    return error("--write-captures: %s cannot be written to: %s", path, strerror(errno));
}

static bool choose_workloads(bench_run *run)
{
    bench_options *o = &run->options;
    failure why = {{0}};
    char name[64];
    if (o->file && !workload_load(o->file, &run->own, &run->own_count, &why))
        return error("--file: %s", why.message);
    if (shapes_given(&o->shapes) && !shapes_load(&o->shapes, &run->own, &run->own_count))
        return false;
    for (uint32_t i = 0; i < run->own_count; ++i)
        if (!add_workload(run, &run->own[i]))
            return false;
    const char *list = o->workloads ? o->workloads : run->own || o->masks ? "" : "all";
    while (cli_next_word(&list, name, sizeof name))
        if (!add_named(run, name))
            return false;
    if (run->serving_count && o->row.pass != ROW_FORWARD)
        return error("--direction is %s, but workloads over a cache (%s) have a forward pass alone", o->direction,
                     run->serving[0]->name);
    if (run->serving_count && o->ranks.count)
        return error("--ranks is given, but workloads over a cache (%s) are on one device", run->serving[0]->name);
    if (o->write_captures && !run->workload_count)
        return error("--write-captures is given, but no workload: masks and batches over a cache write no captures");
    return run->workload_count || run->serving_count || o->masks ||
           error("--workload is \"%s\", expected names with commas", o->workloads);
}

static attune_status open_device(bench_run *run, const char *id)
{
    if (run->device_count == DEVICES_MAX) {
        (void)error("more than %d devices", DEVICES_MAX);
        return ATTUNE_INVALID_ARGUMENT;
    }
    bench_device *d = &run->devices[run->device_count];
    attune_status status = attune_device_open(run->instance, id, &d->device);
    if (status != ATTUNE_OK) {
        (void)error("--device: %s", attune_last_error());
        return status;
    }
    d->info.struct_size = sizeof d->info;
    (void)attune_device_info_get(d->device, &d->info);
    ++run->device_count;
    return ATTUNE_OK;
}

static attune_status open_devices(bench_run *run)
{
    char id[32];
    if (run->options.ranks.count)
        return open_device(run, run->options.ranks.devices[0]);
    for (const char *list = run->options.devices; cli_next_word(&list, id, sizeof id);) {
        if (strcmp(id, "all") != 0) {
            attune_status status = open_device(run, id);
            if (status != ATTUNE_OK)
                return status;
            continue;
        }
        uint32_t count = 0;
        (void)attune_device_count(run->instance, &count);
        for (uint32_t i = 0; i < count; ++i) {
            attune_device_info info = {.struct_size = sizeof info};
            if (attune_device_describe(run->instance, i, &info) == ATTUNE_OK && info.available)
                (void)open_device(run, info.id); /* one that does not open is reported, and the others are used */
        }
    }
    if (run->device_count)
        return ATTUNE_OK;
    (void)error("--device is \"%s\", expected ids with commas, or all", run->options.devices);
    return ATTUNE_UNAVAILABLE;
}

/* The best of a few: a peak that is too low because of other load would inflate all shares of it. Without a peak the
 * shares are omitted. */
static void measure_peak(bench_device *d, uint32_t t)
{
    for (int i = 0; i < PEAK_TRIES; ++i) {
        double flops = 0, bandwidth = 0;
        if (attune_device_measure(d->device, d->dtypes[t], &flops, &bandwidth) != ATTUNE_OK)
            return;
        d->flops[t] = flops > d->flops[t] ? flops : d->flops[t];
        d->bandwidth[t] = bandwidth > d->bandwidth[t] ? bandwidth : d->bandwidth[t];
    }
}

static bool choose_dtypes(bench_run *run)
{
    char name[16];
    bench_options *o = &run->options;
    if (!cli_cache_dtype("--kv-dtype", o->kv_dtype_text, &o->kv_dtype) ||
        !cli_optional_dtype("--o-dtype", o->o_dtype_text, &o->o_dtype))
        return false;
    for (uint32_t i = 0; i < run->device_count; ++i) {
        bench_device *d = &run->devices[i];
        if (!run->options.dtypes)
            d->dtypes[d->dtype_count++] =
                d->info.backend != ATTUNE_BACKEND_CPU && d->info.limits.f16 ? ATTUNE_F16 : ATTUNE_F32;
        for (const char *list = run->options.dtypes ? run->options.dtypes : "";
             cli_next_word(&list, name, sizeof name);) {
            attune_dtype dtype;
            if (!cli_dtype("--dtype", name, &dtype))
                return false;
            if (dtype > ATTUNE_F64 || d->dtype_count == DTYPES_MAX)
                return error("--dtype: %s: expected at most 4 of f32, f16, bf16 and f64", name);
            d->dtypes[d->dtype_count++] = dtype;
        }
    }
    return true;
}

static void measure_peaks(bench_run *run)
{
    const bench_options *o = &run->options;
    for (uint32_t i = 0; i < run->device_count; ++i) {
        bench_device *d = &run->devices[i];
        /* Those of one device say nothing about several. */
        const bool ranks = o->ranks.count && d->info.backend != ATTUNE_BACKEND_CPU;
        for (uint32_t t = 0;
             (run->workload_count || run->serving_count) && !o->no_peaks && !ranks && t < d->dtype_count; ++t) {
            progress_show(&run->progress, 0, 0, "measuring what %s reaches in %s", d->info.id,
                          attune_dtype_string(d->dtypes[t]));
            measure_peak(d, t);
            progress_clear(&run->progress);
        }
    }
}

/* The types of the command line, else those of a workload file. */
static void set_dtypes(const bench_run *run, const bench_device *d, uint32_t t, workload *w)
{
    const bench_options *o = &run->options;
    w->dtype = o->dtypes || !w->dtype ? d->dtypes[t] : w->dtype;
    w->kv_dtype = o->kv_dtype ? o->kv_dtype : w->kv_dtype;
    w->o_dtype = o->o_dtype ? o->o_dtype : w->o_dtype;
}

/* Types that no call may have together. */
static bool check_dtypes(const bench_run *run)
{
    const bench_options *o = &run->options;
    for (uint32_t i = 0; i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t) {
            const bench_device *d = &run->devices[i];
            for (uint32_t k = 0; k < run->workload_count; ++k) {
                workload w = *run->workloads[k];
                set_dtypes(run, d, t, &w);
                if (!cli_dtypes_agree(w.dtype, w.kv_dtype, w.o_dtype, false))
                    return false;
            }
            if (run->serving_count && !cli_dtypes_agree(d->dtypes[t], o->kv_dtype, o->o_dtype, true))
                return false;
        }
    return true;
}

/* Kernel options that not one row can have are an error of the command line. Where some rows can, the others fail. */
static bool check_kernel_options(const bench_run *run)
{
    const bench_options *o = &run->options;
    failure why = {{0}};
    uint32_t rows = 0, refused = 0;
    for (uint32_t i = 0; o->row.kernel && i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count && refused == rows; ++t) {
            const bench_device *d = &run->devices[i];
            for (uint32_t k = 0; k < run->workload_count && refused == rows; ++k, ++rows) {
                workload w = *run->workloads[k];
                set_dtypes(run, d, t, &w);
                refused += row_refuses_options(run->instance, d->device, &w, &o->row, &why);
            }
            for (uint32_t k = 0; k < run->serving_count && refused == rows; ++k, ++rows)
                refused += row_serving_refuses_options(run->instance, d->device, run->serving[k], d->dtypes[t],
                                                       o->kv_dtype, o->o_dtype, &o->row, &why);
        }
    return !rows || refused < rows || error("--kernel-options: %s", why.message);
}

/* Integers, one per line; # begins a comment. */
static bool load_lengths(bench_run *run)
{
    char line[256];
    int64_t capacity = 0;
    const char *path = run->options.doc_lengths;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (path && !file)
        return error("--doc-lengths: %s: %s", path, strerror(errno));
    for (uint64_t number = 1; file && fgets(line, sizeof line, file); ++number) {
        char *end;
        long long length = strtoll(line, &end, 10);
        if (end == line && (*line == '#' || *line == '\n'))
            continue;
        if (end == line || length < 1 || length > INT32_MAX || !strchr(" \t\r\n#", *end)) {
            (void)fclose(file);
            return error("%s:%llu: must be a length from 1 to 2147483647", path, (unsigned long long)number);
        }
        if (run->doc_length_count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            int64_t *larger = realloc(run->doc_lengths, (size_t)capacity * sizeof *larger);
            if (!larger) {
                (void)fclose(file);
                return error("out of memory");
            }
            run->doc_lengths = larger;
        }
        run->doc_lengths[run->doc_length_count++] = length;
    }
    if (file)
        (void)fclose(file);
    return !path || run->doc_length_count || error("%s: has no lengths", path);
}

/* ------------------------------------------------------------------------------------------------------------ scale */

/* Of all workloads on one device with one type: a row depends neither on the selected workloads nor on the other
 * devices and types. */
static double estimate_seconds(const bench_run *run, const bench_device *d, uint32_t t, double scale)
{
    const measure_options *m = &run->options.row.measure;
    const bool cpu = d->info.backend == ATTUNE_BACKEND_CPU;
    const double speed = (d->flops[t] > 0 ? d->flops[t] : cpu ? 2e10 : 1e12) * (cpu ? CPU_SHARE : GPU_SHARE);
    double seconds = 0;
    for (uint32_t k = 0; k < workload_count(); ++k) {
        const workload *w = workload_get(k);
        const double calls = m->repetitions + m->warmup + 1.0, flop = workload_flop(w) * workload_share(w, scale);
        const double time = calls * flop / speed;
        seconds += ROW_OVERHEAD + (time > m->min_time ? time : m->min_time);
    }
    return seconds;
}

/* Powers of two, so that repeated runs choose the same scale although the measured peak varies. */
static double automatic_scale(const bench_run *run, const bench_device *d, uint32_t t)
{
    double scale = 1;
    while (scale > 0x1p-12 && estimate_seconds(run, d, t, scale) > RUN_SECONDS)
        scale /= 2;
    return scale;
}

static void choose_scales(bench_run *run)
{
    const bench_options *o = &run->options;
    for (uint32_t i = 0; i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t) {
            bench_device *d = &run->devices[i];
            const double base = baseline_scale(&run->base, d->info.id, attune_dtype_string(d->dtypes[t]));
            d->scale[t] = o->scale_given             ? o->scale
                          : base > 0                 ? base
                          : shapes_given(&o->shapes) ? 1
                                                     : automatic_scale(run, d, t);
        }
}

/* The scale of all rows, 0 if devices or types differ in it. */
static double common_scale(const bench_run *run)
{
    const double first = run->devices[0].scale[0];
    for (uint32_t i = 0; i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t)
            if (run->devices[i].scale[t] != first)
                return 0;
    return first;
}

/* ---------------------------------------------------------------------------------------------------------- context */

static void cpu_name(char *name, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    (void)snprintf(name, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        (void)snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        name[strcspn(name, "\n")] = '\0';
        break;
    }
    if (file)
        (void)fclose(file);
}

static void add_context(bench_run *run, int argc, char **argv)
{
    report *r = &run->report;
    const bench_options *o = &run->options;
    char text[512] = "", buffer[2][16];
    struct utsname host;
    struct tm local;
    time_t now = time(NULL);
    if (localtime_r(&now, &local) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z", &local))
        report_context(r, "date", "%s", text);
    report_context(r, "host_name", "%s", uname(&host) == 0 ? host.nodename : "unknown");
    report_context(r, "executable", "attune");
    size_t used = (size_t)snprintf(text, sizeof text, "attune bench");
    for (int i = 1; i < argc && used < sizeof text; ++i) {
        int added = snprintf(text + used, sizeof text - used,
                             !*argv[i] || strpbrk(argv[i], " \"{}()[]*?<>|&;$") ? " '%s'" : " %s", argv[i]);
        used += added > 0 ? (size_t)added : 0;
    }
    report_context(r, "command_line", "%s", text);
    uint32_t version = attune_version();
    report_context(r, "library_version", "%u.%u.%u", version / 1000000, version / 1000 % 1000, version % 1000);
#ifdef NDEBUG
    report_context(r, "library_build_type", "release");
#else
    report_context(r, "library_build_type", "debug");
#endif
    cpu_name(text, sizeof text);
    report_context(r, "cpu_name", "%s", text);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    report_context_number(r, "num_cpus", cpus > 0 ? (double)cpus : 1);
    const double scale = common_scale(run);
    if (scale > 0)
        report_context_number(r, "scale", scale);
    report_context_number(r, "seed", (double)o->row.seed);
    report_context_number(r, "repetitions", o->row.measure.repetitions);
    report_context_number(r, "min_time", o->row.measure.min_time);
    report_context_number(r, "warmup", o->row.measure.warmup);
    report_context_number(r, "warmup_time", o->row.measure.warmup_time);
    if (o->row.layers)
        report_context_number(r, "layers", o->row.layers);
    if (o->row.graph)
        report_context_number(r, "graph", 1);
    report_context(r, "flop", "%s2 * pairs * (D + Dv); pairs = those that the mask allows, over batch and heads",
                   o->row.pass == ROW_BACKWARD ? "2.5 * "
                   : o->row.pass == ROW_STEP   ? "3.5 * "
                                               : "");
    report_context(r, "direction", "%s", o->direction);
    if (o->ranks.count && o->row.pass != ROW_DECODE)
        report_context(r, "layout", "%s", ranks_layout_name(o->ranks.layout));
    for (uint32_t i = 0; i < o->ranks.count; ++i) {
        char key[48];
        (void)snprintf(key, sizeof key, "rank %u", i);
        report_context(r, key, "%s", o->ranks.devices[i]);
    }
    report_context(r, "bytes", "q, k, v and o, each once%s",
                   run->serving_count ? "; of serving one layer's, with the keys that some row sees" : "");
    if (o->kernel)
        report_context(r, "kernel_options", "%s", o->kernel);
    for (uint32_t i = 0; i < run->device_count; ++i) {
        const bench_device *d = &run->devices[i];
        char key[48];
        (void)snprintf(key, sizeof key, "device %s", d->info.id);
        report_context(r, key, "%s; driver %s; uuid %s; %u compute units", d->info.name,
                       d->info.driver[0] ? d->info.driver : "none", d->info.uuid[0] ? d->info.uuid : "none",
                       d->info.limits.compute_units);
        for (uint32_t t = 0; t < d->dtype_count && !(scale > 0); ++t) {
            (void)snprintf(key, sizeof key, "scale %s %s", d->info.id, attune_dtype_string(d->dtypes[t]));
            report_context_number(r, key, d->scale[t]);
        }
        for (uint32_t t = 0; t < d->dtype_count && d->flops[t] > 0; ++t) {
            (void)snprintf(key, sizeof key, "peak %s %s", d->info.id, attune_dtype_string(d->dtypes[t]));
            report_context(r, key, "%sFLOP/s, copy %sB/s, measured, best of %d", report_si(d->flops[t], buffer[0]),
                           report_si(d->bandwidth[t], buffer[1]), PEAK_TRIES);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static bool write_capture(void *user, size_t index, FILE *stream)
{
    (void)index;
    return npy_write(stream, user);
}

static bool write_captures(bench_run *run, const workload *w)
{
    char path[1024];
    attention a;
    failure why = {{0}};
    if (!workload_bind(run->instance, w, run->options.row.seed, &a, &why))
        return error("--write-captures: %s", why.message);
    bool good = true;
    for (uint32_t i = 0; good && i < a.capture_count; ++i) {
        const attune_array *from = &a.captures[i].array;
        array to = {.dtype = from->dtype, .rank = from->rank, .data = (void *)(uintptr_t)from->data};
        memcpy(to.size, from->size, sizeof to.size);
        output file = {.option = "--write-captures", .path = path};
        const int length =
            snprintf(path, sizeof path, "%s/%s.%s.npy", run->options.write_captures, w->name, a.captures[i].name);
        good = length < (int)sizeof path || error("--write-captures: the path of %s.%s.npy has more than %zu bytes",
                                                  w->name, a.captures[i].name, sizeof path - 1);
        good = good && outputs_find(&file, 1) && outputs_write(&file, 1, write_capture, &to);
        outputs_drop(&file, 1);
    }
    workload_release(&a);
    return good;
}

static bool run_attention(bench_run *run)
{
    for (uint32_t i = 0; i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t)
            for (uint32_t k = 0; k < run->workload_count && !stopped; ++k) {
                const bench_device *d = &run->devices[i];
                const workload *full = run->workloads[k];
                report_row row = {.share = workload_share(full, d->scale[t]),
                                  .peak_flops = d->flops[t],
                                  .peak_bandwidth = d->bandwidth[t]};
                workload w = workload_scaled(full, row.share);
                set_dtypes(run, d, t, &w);
                if (w.dtype != d->dtypes[t])
                    row.peak_flops = row.peak_bandwidth = 0;
                row.share = workload_flop(&w) / workload_flop(full);
                if (run->options.write_captures && !write_captures(run, &w))
                    return false;
                show_progress(run, w.name, d->info.id, attune_dtype_string(w.dtype));
                if (run->options.ranks.count)
                    row_ranks(run->instance, d->device, &w, &run->options.ranks, &run->options.row, &row);
                else
                    row_attention(run->instance, d->device, &w, &run->options.row, &row);
                keep_row(run, &row);
            }
    return true;
}

static void run_serving(bench_run *run)
{
    for (uint32_t i = 0; i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t)
            for (uint32_t k = 0; k < run->serving_count && !stopped; ++k) {
                const bench_device *d = &run->devices[i];
                const serving_workload *full = run->serving[k];
                const double flop = serving_flop(full), least = LEAST_SERVING / flop;
                const serving_workload w = serving_scaled(full, least > d->scale[t] ? least : d->scale[t]);
                report_row row = {
                    .share = serving_flop(&w) / flop, .peak_flops = d->flops[t], .peak_bandwidth = d->bandwidth[t]};
                show_progress(run, w.name, d->info.id, attune_dtype_string(d->dtypes[t]));
                row_serving(run->instance, d->device, &w, d->dtypes[t], run->options.kv_dtype, run->options.o_dtype,
                            &run->options.row, &row);
                keep_row(run, &row);
            }
}

static void run_masks(bench_run *run)
{
    for (uint32_t i = 0; run->options.masks && i < workload_mask_count() && !stopped; ++i) {
        report_row row = {0};
        show_progress(run, workload_mask_get(i)->name, "host", "");
        row_mask(run->instance, workload_mask_get(i), run->doc_lengths, run->doc_length_count, &run->options.row, &row);
        keep_row(run, &row);
    }
}

/* The threads of peers: those of the CPU device with f32 rows, whose peak they share; 0 = no peers. */
static uint32_t peer_threads(const bench_run *run, double *peak)
{
    *peak = 0;
    for (uint32_t i = 0;
         !run->options.no_peers && !run->options.ranks.count && run->workload_count && i < run->device_count; ++i)
        for (uint32_t t = 0; t < run->devices[i].dtype_count; ++t)
            if (run->devices[i].info.backend == ATTUNE_BACKEND_CPU && run->devices[i].dtypes[t] == ATTUNE_F32) {
                *peak = run->devices[i].flops[t];
                return run->devices[i].info.limits.compute_units;
            }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return !run->options.peers ? 0 : cpus > 0 ? (uint32_t)cpus : 1;
}

static void run_peers(bench_run *run)
{
    double peak;
    uint32_t threads = peer_threads(run, &peak);
    if (threads && run->options.peers && !blas_peer_count())
        (void)error("--peers: libopenblas.so.0 cannot be opened: install OpenBLAS");
    for (uint32_t i = 0; threads && i <= blas_peer_count() && !stopped; ++i) {
        report_row row = {.peak_flops = peak};
        failure why = {{0}};
        peer p;
        bool made = i < blas_peer_count() ? blas_peer_create(i, threads, run->options.row.seed, &p, &why)
                                          : naive_peer_create(run->options.row.seed, &p, &why);
        if (!made) {
            (void)error("peer: %s", why.message);
            continue;
        }
        show_progress(run, p.name, "host", "f32");
        peer_row(&p, &run->options.row, &row);
        peer_release(&p);
        keep_row(run, &row);
    }
}

static bool write_report(void *user, size_t index, FILE *stream)
{
    (void)index;
    return report_write_json(user, stream);
}

/* Written atomically: an interrupted write leaves the old file. */
static bool write_json(bench_run *run)
{
    if (bench_options_json_alone(&run->options))
        return write_report(&run->report, 0, stdout);
    return outputs_write(&run->output, 1, write_report, &run->report);
}

static int run_all(bench_run *run, int argc, char **argv)
{
    const bench_options *o = &run->options;
    double ignored;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before, ended;
    run->progress = progress_begin();
    choose_scales(run);
    run->out = bench_options_json_alone(o) ? NULL : outputs_text(&run->output, 1);
    for (uint32_t i = 0; i < run->device_count; ++i)
        run->total += run->devices[i].dtype_count * (run->workload_count + run->serving_count);
    if (run->serving_count && !run->workload_count && !o->masks && !o->peers && run->options.format == REPORT_TABLE)
        run->options.format = REPORT_SERVING;
    if (o->ranks.count && run->options.format == REPORT_TABLE)
        run->options.format = REPORT_RANKS;
    run->total += o->masks ? workload_mask_count() : 0;
    run->total += peer_threads(run, &ignored) ? blas_peer_count() + 1 : 0;
    add_context(run, argc, argv);
    (void)sigaction(SIGINT, &action, &before);
    (void)sigaction(SIGTERM, &action, &ended);
    if (run->out)
        report_begin(&run->report, o->format, run->out);
    const bool written = run_attention(run);
    run_serving(run);
    run_masks(run);
    run_peers(run);
    (void)sigaction(SIGINT, &before, NULL);
    (void)sigaction(SIGTERM, &ended, NULL);
    if (stopped)
        report_context(&run->report, "stopped", "after %u of %u rows", run->done, run->total);
    run->report.seconds = progress_seconds(&run->progress);
    if (run->out)
        report_end(&run->report, o->format, run->out);
    uint32_t count[REPORT_STOPPED + 1] = {0};
    for (uint32_t i = 0; i < run->report.row_count; ++i)
        ++count[run->report.rows[i].status];
    int status = count[REPORT_FAILED] + count[REPORT_WRONG]       ? EXIT_FAILED
                 : count[REPORT_UNSUPPORTED] && !count[REPORT_OK] ? EXIT_UNAVAILABLE
                                                                  : EXIT_GOOD;
    if (!written)
        status = EXIT_FAILED;
    if (stopped) {
        (void)error("stopped after %u of %u rows", run->done, run->total);
        status = EXIT_FAILED;
    }
    if (o->json && !write_json(run))
        status = EXIT_FAILED;
    if (o->baseline) {
        uint32_t compared;
        uint32_t worse =
            compare_write(&run->base, &run->report, o->floor, o->format, run->out ? run->out : stderr, &compared);
        if (worse && o->fail_on_slower)
            status = EXIT_FAILED;
        if (!compared) {
            (void)error("--compare: not one row has a time here and in %s: nothing was compared", o->baseline);
            status = EXIT_FAILED;
        }
    }
    return status;
}

/* Returns an exit status: EXIT_GOOD = go on. */
static int prepare(bench_run *run)
{
    bench_options *o = &run->options;
    failure why = {{0}};
    run->output = (output){.option = "--json", .path = o->json && !bench_options_json_alone(o) ? o->json : ""};
    if (!outputs_find(&run->output, 1) || !outputs_spare(&run->output, 1, "--file", o->file) ||
        !outputs_spare(&run->output, 1, "--doc-lengths", o->doc_lengths) ||
        !outputs_spare(&run->output, 1, "--compare", o->baseline) ||
        !outputs_spare_list(&run->output, 1, "--capture", &o->shapes.captures, true) ||
        !outputs_spare_list(&run->output, 1, "--pack", &o->packs, false) || !choose_workloads(run) ||
        !load_lengths(run) || (o->write_captures && !check_captures(o->write_captures)))
        return EXIT_USAGE;
    if (o->doc_lengths && !o->masks) {
        (void)error("--doc-lengths requires --masks");
        return EXIT_USAGE;
    }
    if (o->baseline) {
        if (!baseline_load(o->baseline, &run->base, &why)) {
            (void)error("--compare: %s", why.message);
            return EXIT_USAGE;
        }
        if (!o->seed_given && run->base.seed)
            o->row.seed = run->base.seed;
    }
    if (!cli_kernel_options(o->kernel, &run->kernel, &o->row.kernel))
        return EXIT_USAGE;
    o->row.measure.stop = &stopped;
    /* An empty cache, so that compile times are cold in every run. */
    attune_status status = cli_instance(folder_make(&run->kernels) ? run->kernels.path : "", &run->instance);
    if (status != ATTUNE_OK) {
        (void)error("%s", attune_last_error());
        return cli_exit_of(status);
    }
    if (!cli_workloads_right(run->instance, run->own, run->own_count, o->file ? "--file" : NULL))
        return EXIT_USAGE;
    status = cli_packs_load(run->instance, &o->packs);
    if (status == ATTUNE_OK)
        status = open_devices(run);
    if (status != ATTUNE_OK)
        return cli_exit_of(status);
    if (!choose_dtypes(run) || !check_dtypes(run) || !check_kernel_options(run))
        return EXIT_USAGE;
    measure_peaks(run);
    return EXIT_GOOD;
}

int cmd_bench(int argc, char **argv)
{
    bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        (void)error("out of memory");
        return EXIT_FAILED;
    }
    stopped = 0;
    run->progress = progress_begin();
    cli_result parsed = bench_options_parse(&run->options, argc, argv);
    int status = parsed == CLI_WRONG ? EXIT_USAGE : EXIT_GOOD;
    if (parsed == CLI_GO && run->options.list)
        status = list_workloads(run->options.file) ? EXIT_GOOD : EXIT_USAGE;
    else if (parsed == CLI_GO && (status = prepare(run)) == EXIT_GOOD)
        status = run_all(run, argc, argv);
    for (uint32_t i = 0; i < run->device_count; ++i)
        attune_device_destroy(run->devices[i].device);
    attune_instance_destroy(run->instance);
    folder_remove(&run->kernels);
    outputs_drop(&run->output, 1);
    workload_list_free(run->own, run->own_count);
    baseline_free(&run->base);
    report_free(&run->report);
    free(run->doc_lengths);
    free(run);
    return status;
}

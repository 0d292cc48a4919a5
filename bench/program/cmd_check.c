/* SPDX-License-Identifier: MIT */
/* attune check: compares a device with the float64 oracle, on shrunk workloads, on the workloads of a file, or on a
 * case folder. */
#include "bench/program/files.h"
#include "bench/program/progress.h"

#include "tests/oracle/case.h"
#include "bench/workloads/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_options {
    file_options files;
    const char *folder, *file, *device, *dtype, *kv_dtype_text, *o_dtype_text, *kernel_options;
    attune_dtype kv_dtype, o_dtype; /* 0 = that of the run */
    bool gradients;
    const attune_kernel_options *kernel;
    cli_list packs;
    workload *list; /* of the file */
    uint32_t count;
    uint32_t codes[EXIT_UNAVAILABLE + 1]; /* number of problems by exit status */
    uint32_t total;                       /* of problems */
    progress progress;
} check_options;

/* Expected results: o, lse and row maxima in float64. */
typedef struct answers {
    double *memory;
    reference_result oracle, naive;
    int64_t rows, head_dim_v;
} answers;

static bool answers_compute(const attention *a, answers *out, failure *why)
{
    out->rows = a->q.size[0] * a->q.size[1] * a->q.size[2];
    out->head_dim_v = a->v.size[3];
    const int64_t o = out->rows * out->head_dim_v, each = o + 2 * out->rows;
    out->memory = calloc((size_t)(2 * each + o), sizeof *out->memory);
    if (!out->memory)
        return failure_set(why, "out of memory: %lld results", (long long)each);
    out->oracle = (reference_result){out->memory, out->memory + o, out->memory + o + out->rows, out->memory + 2 * each};
    out->naive =
        (reference_result){out->memory + each, out->memory + each + o, out->memory + each + o + out->rows, NULL};
    return reference_compute(a, REFERENCE_ORACLE, NULL, 0, &out->oracle, why) &&
           reference_compute(a, REFERENCE_NAIVE, NULL, 0, &out->naive, why);
}

static bool report(const char *name, const char *device, attune_dtype dtype, const char *field,
                   const reference_error *e)
{
    (void)printf("%-4s %-32s %-8s %-4s %-8s max %.3g (bound %.3g, naive %.3g)  mean %.3g (bound %.3g)",
                 e->pass ? "ok" : "FAIL", name, device, attune_dtype_string(dtype), field, e->max, e->bound_max,
                 e->naive_max, e->mean, e->bound_mean);
    if (e->pattern_errors)
        (void)printf("  %lld wrong NaN, infinity or masked rows", (long long)e->pattern_errors);
    (void)printf("\n");
    return e->pass;
}

static bool compare_o(const char *name, const char *device, attune_dtype dtype, const attention *a, const array *got,
                      const answers *expected)
{
    reference_error error;
    reference_compare_o(attention_rule_dtype(a), attention_o_dtype(a), expected->rows, expected->head_dim_v, got->data,
                        &expected->oracle, &expected->naive, &error);
    return report(name, device, dtype, "o", &error);
}

static bool compare(const char *name, const char *device, attune_dtype dtype, const char *field, attune_dtype output,
                    const array *got, const double *oracle, const double *naive)
{
    reference_error error;
    reference_compare(output, array_count(got), got->data, oracle, naive, &error);
    return report(name, device, dtype, field, &error);
}

/* The answer in a case folder is an independent oracle. The error of the naive computation is measured with our oracle:
 * with a wrong file it would allow any result. */
static bool compare_file(const char *name, const char *device, const char *field, const array *got, const array *answer,
                         const double *oracle, const double *naive)
{
    const int64_t count = array_count(got);
    double *moved = malloc((size_t)count * sizeof *moved);
    if (!moved) {
        cli_error("out of memory: %lld results", (long long)count);
        return false;
    }
    const double *file = answer->data;
    for (int64_t i = 0; i < count; i++)
        moved[i] = file[i] + (naive[i] - oracle[i]);
    bool ok = compare(name, device, ATTUNE_F32, field, ATTUNE_F32, got, file, moved);
    free(moved);
    return ok;
}

/* The present problem, and the results so far. */
static void show_progress(check_options *o, const char *name, const char *device, attune_dtype dtype)
{
    uint32_t done = 0;
    for (int i = 0; i <= EXIT_UNAVAILABLE; i++)
        done += o->codes[i];
    progress_show(&o->progress, done, o->total, "%s %s %s; %u good, %u failed", name, device,
                  attune_dtype_string(dtype), o->codes[EXIT_GOOD], o->codes[EXIT_FAILED]);
}

static int check_problem(attune_instance *instance, attune_device *device, check_options *o, const char *name,
                         const attention *a, const case_folder *file)
{
    attune_device_info info = {.struct_size = sizeof info};
    failure why;
    answers expected = {0};
    array out = {0}, lse = {0}, row_max = {0};
    attention_run job = {.options = o->kernel, .o = &out, .lse = &lse, .row_max = &row_max};
    const attune_dtype dtype = a->q.dtype, rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_status status = attune_device_info_get(device, &info);
    show_progress(o, name, info.id, dtype);
    if (status == ATTUNE_OK)
        status = attention_forward(instance, device, a, &job);
    if (status != ATTUNE_OK) {
        progress_clear(&o->progress);
        cli_error("%s on %s: %s", name, info.id, attune_last_error());
        return cli_exit_of(status);
    }
    int code = EXIT_FAILED;
    const bool computed = answers_compute(a, &expected, &why);
    progress_clear(&o->progress);
    if (!computed) {
        cli_error("%s: %s", name, why.message);
    } else {
        bool ok = compare_o(name, info.id, dtype, a, &out, &expected);
        ok &= compare(name, info.id, dtype, "lse", rows, &lse, expected.oracle.lse, expected.naive.lse);
        ok &= compare(name, info.id, dtype, "row_max", rows, &row_max, expected.oracle.row_max, expected.naive.row_max);
        /* The file's answer is for its f32 inputs, not for rounded ones. */
        if (file && dtype == ATTUNE_F32 && attention_rule_dtype(a) == ATTUNE_F32) {
            ok &= compare_file(name, info.id, "o file", &out, &file->o, expected.oracle.o, expected.naive.o);
            ok &= compare_file(name, info.id, "lse file", &lse, &file->lse, expected.oracle.lse, expected.naive.lse);
        }
        code = ok ? EXIT_GOOD : EXIT_FAILED;
    }
    free(expected.memory);
    array_free(&out);
    array_free(&lse);
    array_free(&row_max);
    return code;
}

/* Gradients are compared with the CPU's float64 gradients, which the tests compare with sums over all pairs, and with
 * the file. */
static bool compare_gradient(const char *name, const char *device, attune_dtype dtype, attune_dtype rule,
                             const char *field, const array *got, const array *oracle, double cancelled)
{
    if (!oracle->data)
        return true;
    reference_error e;
    reference_compare_gradient(rule, array_count(got), got->data, oracle->data, cancelled, &e);
    (void)printf("%-4s %-32s %-8s %-4s %-8s max %.3g (bound %.3g, of which %.3g for cancellation)%s\n",
                 e.pass ? "ok" : "FAIL", name, device, attune_dtype_string(dtype), field, e.max, e.bound_max, cancelled,
                 e.pattern_errors ? "  NaN or infinity" : "");
    return e.pass;
}

static bool compare_all(const char *name, const char *device, attune_dtype rule, const char *source, const attention *a,
                        const attention_gradients *got, const array *d_q, const array *d_k, const array *d_v,
                        const array *d_captures, const reference_cancellation *cancelled)
{
    char field[80];
    bool ok = true;
    const array *const pairs[3][2] = {{&got->d_q, d_q}, {&got->d_k, d_k}, {&got->d_v, d_v}};
    const double terms[3] = {cancelled->d_q, cancelled->d_k, cancelled->d_v};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(field, sizeof field, "d%c%s", "qkv"[i], source);
        ok &= compare_gradient(name, device, a->q.dtype, rule, field, pairs[i][0], pairs[i][1], terms[i]);
    }
    for (uint32_t i = 0; i < a->capture_count; i++)
        if (got->captures >> i & 1) {
            (void)snprintf(field, sizeof field, "d%s%s", a->captures[i].name, source);
            ok &= compare_gradient(name, device, a->q.dtype, rule, field, &got->d_captures[i], &d_captures[i],
                                   cancelled->d_captures[i]);
        }
    return ok;
}

/* q, k and v in float64. */
static bool widen(const attention *a, const array *d_o, attention *wide, array *wide_d_o, failure *why)
{
    *wide = *a;
    wide->q = wide->k = wide->v = wide->sinks = *wide_d_o = (array){0};
    wide->o_dtype = ATTUNE_F64;
    return array_convert(&a->q, ATTUNE_F64, &wide->q, why) && array_convert(&a->k, ATTUNE_F64, &wide->k, why) &&
           array_convert(&a->v, ATTUNE_F64, &wide->v, why) && array_convert(d_o, ATTUNE_F64, wide_d_o, why) &&
           (!a->sinks.data || array_convert(&a->sinks, ATTUNE_F64, &wide->sinks, why));
}

static int check_gradients(attune_instance *instance, attune_device *device, check_options *o, const char *name,
                           const attention *a, const array *d_o, const case_folder *file)
{
    attune_device_info info = {.struct_size = sizeof info};
    failure why;
    attention wide = {0};
    array wide_d_o = {0};
    reference_cancellation cancelled = {0};
    attune_device *cpu = NULL;
    attention_gradients got = {.d_o = d_o, .captures = attention_differentiable(a)};
    attention_gradients oracle = {.d_o = &wide_d_o, .captures = got.captures};
    attention_run job = {.options = o->kernel, .gradients = &got}, plain = {.gradients = &oracle};
    int code = EXIT_FAILED;
    attune_status status = attune_device_info_get(device, &info);
    show_progress(o, name, info.id, a->q.dtype);
    if (status == ATTUNE_OK)
        status = attention_forward(instance, device, a, &job);
    if (status == ATTUNE_OK)
        status = attune_device_open(instance, "cpu", &cpu);
    progress_clear(&o->progress);
    if (status != ATTUNE_OK) {
        cli_error("%s on %s: --grad: %s", name, info.id, attune_last_error());
        code = cli_exit_of(status);
    } else if (!widen(a, d_o, &wide, &wide_d_o, &why)) {
        cli_error("%s: %s", name, why.message);
    } else if (attention_forward(instance, cpu, &wide, &plain) != ATTUNE_OK) {
        cli_error("%s on cpu: --grad: %s", name, attune_last_error());
    } else {
        /* The derivatives exceed the limits of an expression, so that the magnitudes of their sums are unknown. */
        if (!reference_cancelled(instance, a, d_o, NULL, got.captures, &cancelled, &why))
            cli_error("%s: bounds have no term for cancellation: %s", name, why.message);
        bool ok = compare_all(name, info.id, attention_rule_dtype(a), "", a, &got, &oracle.d_q, &oracle.d_k,
                              &oracle.d_v, oracle.d_captures, &cancelled);
        /* The file's answers are for f32 inputs. */
        const attune_dtype rule = attention_rule_dtype(a);
        if (file && (rule == ATTUNE_F32 || rule == ATTUNE_F64))
            ok &= compare_all(name, info.id, ATTUNE_F32, " file", a, &got, &file->d_q, &file->d_k, &file->d_v,
                              file->d_captures, &cancelled);
        code = ok ? EXIT_GOOD : EXIT_FAILED;
    }
    attune_device_destroy(cpu);
    attention_gradients_free(&got);
    attention_gradients_free(&oracle);
    array_free(&wide.q);
    array_free(&wide.k);
    array_free(&wide.v);
    array_free(&wide.sinks);
    array_free(&wide_d_o);
    return code;
}

static bool in_place(attune_dtype dtype, array *a, failure *why)
{
    array made;
    if (!array_convert(a, dtype, &made, why))
        return false;
    array_free(a);
    *a = made;
    return true;
}

/* Converts k and v, and o with d_o, to the requested types. */
static bool retype(const check_options *o, attention *a, array *d_o, failure *why)
{
    if (o->kv_dtype && (!in_place(o->kv_dtype, &a->k, why) || !in_place(o->kv_dtype, &a->v, why)))
        return false;
    if (o->o_dtype)
        a->o_dtype = o->o_dtype;
    return !o->o_dtype || !d_o || !d_o->data || in_place(o->o_dtype, d_o, why);
}

static int check_folder(attune_instance *instance, attune_device *device, check_options *o, attune_dtype dtype)
{
    failure why;
    case_folder *c = malloc(sizeof *c);
    if (!c || !case_load(instance, o->folder, dtype, c, &why)) {
        cli_error("--case: %s", c ? why.message : "out of memory");
        free(c);
        return EXIT_USAGE;
    }
    if (!retype(o, &c->problem, &c->d_o, &why)) {
        cli_error("--case: %s", why.message);
        case_free(c);
        free(c);
        return EXIT_FAILED;
    }
    const char *name = strrchr(o->folder, '/');
    name = name && name[1] ? name + 1 : o->folder;
    int code = check_problem(instance, device, o, name, &c->problem, c);
    if (code == EXIT_GOOD && o->gradients && !c->gradients) {
        cli_error("--grad: %s has no dq.npy", o->folder);
        code = EXIT_USAGE;
    } else if (code == EXIT_GOOD && o->gradients) {
        code = check_gradients(instance, device, o, name, &c->problem, &c->d_o, c);
    }
    case_free(c);
    free(c);
    return code;
}

/* With a random d_o, normally distributed as q. */
static int check_random_gradients(attune_instance *instance, attune_device *device, check_options *o, const char *name,
                                  const attention *a)
{
    const int64_t size[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    failure why;
    array d_o;
    if (!array_create(&d_o, attention_o_dtype(a), 4, size, &why)) {
        cli_error("%s: %s", name, why.message);
        return EXIT_FAILED;
    }
    random_state random = {7};
    array_fill_normal(&d_o, &random, 1);
    int code = check_gradients(instance, device, o, name, a, &d_o, NULL);
    array_free(&d_o);
    return code;
}

/* Operations of a shrunk workload, and the limit: half an hour in the plain loops of the oracle. */
#define CHECK_FLOP 3e7
#define MOST_FLOP  1e12

static int check_workload(attune_instance *instance, attune_device *device, check_options *o, const workload *w)
{
    attention a;
    failure why;
    if (!workload_instantiate(instance, w, 1, &a, &why)) {
        cli_error("%s: %s", w->name, why.message);
        return EXIT_FAILED;
    }
    if (!retype(o, &a, NULL, &why)) {
        cli_error("%s: %s", w->name, why.message);
        workload_release(&a);
        return EXIT_FAILED;
    }
    int code = check_problem(instance, device, o, w->name, &a, NULL);
    if (code == EXIT_GOOD && o->gradients)
        code = check_random_gradients(instance, device, o, w->name, &a);
    workload_release(&a);
    return code;
}

/* A call over a cache: the references are those of each sequence. */
static int check_serving(attune_instance *instance, attune_device *device, check_options *o, const serving *s)
{
    attune_device_info info = {.struct_size = sizeof info};
    array got[3] = {{0}};
    failure why;
    int64_t count = 0;
    const attune_dtype dtype = s->a.q.dtype, rows_dtype = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_status status = attune_device_info_get(device, &info);
    show_progress(o, "files", info.id, dtype);
    if (status == ATTUNE_OK)
        status = serving_forward(device, s, o->kernel, &got[0], &got[1], &got[2]);
    progress_clear(&o->progress);
    if (status != ATTUNE_OK) {
        cli_error("files on %s: %s", info.id, attune_last_error());
        return cli_exit_of(status);
    }
    int code = EXIT_FAILED;
    reference_row *rows = serving_all_rows(s, &count);
    const int64_t width = serving_width(s), each = count * (width + 2);
    double *memory = calloc((size_t)(3 * each + count * width + 1), sizeof *memory);
    if (!rows || !memory) {
        cli_error("out of memory: %lld results", (long long)each);
    } else {
        double *const parts[3] = {memory, memory + each, memory + 2 * each};
        reference_result results[3];
        for (int i = 0; i < 3; i++)
            results[i] = (reference_result){parts[i], parts[i] + count * width, parts[i] + count * (width + 1), NULL};
        results[0].moved = memory + 3 * each;
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = serving_index(s, &rows[i]);
            memcpy(results[2].o + i * width, (double *)got[0].data + at * width, (size_t)width * sizeof *memory);
            results[2].lse[i] = ((double *)got[1].data)[at];
            results[2].row_max[i] = ((double *)got[2].data)[at];
        }
        reference_error e;
        if (!serving_compare(instance, s, rows, count, results[2].o, &results[0], &results[1], &e, &why)) {
            cli_error("files: %s", why.message);
        } else {
            const array column = {.rank = 1, .size = {count}};
            array lse = column, row_max = column;
            lse.data = results[2].lse;
            row_max.data = results[2].row_max;
            bool ok = report("files", info.id, dtype, "o", &e);
            ok &= compare("files", info.id, dtype, "lse", rows_dtype, &lse, results[0].lse, results[1].lse);
            ok &= compare("files", info.id, dtype, "row_max", rows_dtype, &row_max, results[0].row_max,
                          results[1].row_max);
            code = ok ? EXIT_GOOD : EXIT_FAILED;
        }
    }
    free(memory);
    free(rows);
    for (int i = 0; i < 3; i++)
        array_free(&got[i]);
    return code;
}

static int check_files(attune_instance *instance, attune_device *device, check_options *o, attune_dtype dtype)
{
    serving s = {.a.o_dtype = o->o_dtype};
    bindings *names = calloc(1, sizeof *names);
    int code = EXIT_USAGE;
    if (!names)
        cli_error("out of memory");
    else if (files_load(instance, &o->files, dtype, o->kv_dtype, names, &s)) {
        if (!files_serve(&o->files) && !(s.a.scale > 0))
            s.a.scale = 1 / sqrt((double)s.a.q.size[3]);
        code = files_serve(&o->files) ? check_serving(instance, device, o, &s)
                                      : check_problem(instance, device, o, "files", &s.a, NULL);
        if (code == EXIT_GOOD && o->gradients)
            code = check_random_gradients(instance, device, o, "files", &s.a);
    }
    if (names)
        bindings_free(names);
    files_free(&s);
    free(names);
    return code;
}

/* A failure outranks a problem that could not run. */
static int worst_of(int worst, int code)
{
    return code == EXIT_FAILED || worst == EXIT_GOOD ? code : worst;
}

/* Workloads of a file are not shrunk. */
static int check_workloads(attune_instance *instance, attune_device *device, check_options *o, attune_dtype dtype)
{
    int worst = EXIT_GOOD;
    const uint32_t count = *o->file ? o->count : workload_count();
    for (uint32_t i = 0; i < count; i++) {
        const workload *full = *o->file ? &o->list[i] : workload_get(i);
        const double flop = workload_flop(full);
        workload w = *o->file ? *full : workload_scaled(full, flop > CHECK_FLOP ? CHECK_FLOP / flop : 1);
        w.dtype = dtype;
        int code = EXIT_USAGE;
        if (*o->file && flop > MOST_FLOP)
            cli_error("%s: has %.3g operations, the limit of check's plain loops is %.3g: make it smaller", w.name,
                      flop, MOST_FLOP);
        else
            code = check_workload(instance, device, o, &w);
        o->codes[code]++;
        worst = worst_of(worst, code);
    }
    return worst;
}

/* Failures are also printed to standard error, since standard output may be a file. */
static void print_total(const check_options *o)
{
    uint32_t total = 0;
    for (int i = 0; i <= EXIT_UNAVAILABLE; i++)
        total += o->codes[i];
    if (!total)
        return;
    (void)printf("%u problems: %u good, %u failed, %u could not run, %u unsupported; %.0f s\n", total,
                 o->codes[EXIT_GOOD], o->codes[EXIT_FAILED], o->codes[EXIT_USAGE], o->codes[EXIT_UNAVAILABLE],
                 progress_seconds(&o->progress));
    if (o->codes[EXIT_FAILED])
        cli_error("%u of %u problems failed", o->codes[EXIT_FAILED], total);
}

int cmd_check(int argc, char **argv)
{
    check_options o = {.folder = "",
                       .file = "",
                       .device = "cpu",
                       .dtype = "",
                       .kv_dtype_text = "",
                       .o_dtype_text = "",
                       .kernel_options = ""};
    const cli_option options[] = {
        {"--case", "DIR", "a case folder: case.json and NPY files; shrunk workloads if not given", &o.folder, NULL,
         NULL},
        {"--file", "FILE.json", "workloads from a file, not shrunk", &o.file, NULL, NULL},
        {"--device", "ID", "cpu, vulkan:0, ... or all", &o.device, NULL, NULL},
        {"--dtype", "TYPE", "f32, f16, bf16 or f64; f32, f16 and bf16 if not given", &o.dtype, NULL, NULL},
        {"--kv-dtype", "TYPE", "type of k and v, if it differs from --dtype", &o.kv_dtype_text, NULL, NULL},
        {"--o-dtype", "TYPE", "type of o, if it differs from q", &o.o_dtype_text, NULL, NULL},
        {"--grad", NULL, "gradients too", NULL, &o.gradients, NULL},
        {"--kernel-options", "JSON", "forced options, {\"BLOCK_M\": 64}", &o.kernel_options, NULL, NULL},
        {"--pack", "FILE", "kernels made by attune compile; repeat for more", NULL, NULL, &o.packs},
        FILE_OPTIONS(o.files),
    };
    cli_result parsed = cli_parse("attune check [--case DIR | --q Q.npy --k K.npy --v V.npy] [OPTIONS]", options,
                                  sizeof options / sizeof options[0], argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    attune_dtype dtypes[3] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    uint32_t dtype_count = 3;
    attune_kernel_options storage;
    if (*o.dtype) {
        if (!cli_dtype("--dtype", o.dtype, &dtypes[0]))
            return EXIT_USAGE;
        dtype_count = 1;
    }
    if (!cli_optional_dtype("--kv-dtype", o.kv_dtype_text, &o.kv_dtype) ||
        !cli_optional_dtype("--o-dtype", o.o_dtype_text, &o.o_dtype) ||
        !cli_kernel_options(o.kernel_options, &storage, &o.kernel))
        return EXIT_USAGE;
    for (uint32_t i = 0; i < dtype_count; i++)
        if (!cli_dtypes_agree(dtypes[i], o.kv_dtype, o.o_dtype, false))
            return EXIT_USAGE;
    if (*o.file && *o.folder) {
        cli_error("--file and --case exclude each other");
        return EXIT_USAGE;
    }
    const bool files = o.files.q != NULL;
    if (files && (*o.file || *o.folder)) {
        cli_error("--q and %s exclude each other", *o.file ? "--file" : "--case");
        return EXIT_USAGE;
    }
    if (!files && files_given(&o.files)) {
        cli_error("--q is missing, with which a call from NPY files begins");
        return EXIT_USAGE;
    }
    if (files && !files_complete(&o.files))
        return EXIT_USAGE;
    if (files_serve(&o.files) && o.gradients) {
        cli_error("--grad is not for calls over a cache (--kv-len), which have a forward pass alone");
        return EXIT_USAGE;
    }
    failure why;
    if (*o.folder && !case_exists(o.folder, &why)) {
        cli_error("--case: %s", why.message);
        return EXIT_USAGE;
    }
    if (*o.file && !workload_load(o.file, &o.list, &o.count, &why)) {
        cli_error("--file: %s", why.message);
        return EXIT_USAGE;
    }
    attune_instance *instance = NULL;
    cli_devices devices = {0};
    attune_status status = cli_instance(NULL, &instance);
    if (status != ATTUNE_OK)
        cli_error("%s", attune_last_error());
    else if ((status = cli_packs_load(instance, &o.packs)) == ATTUNE_OK)
        status = cli_devices_open(instance, o.device, &devices);
    if (status == ATTUNE_OK && !cli_workloads_right(instance, o.list, o.count, "--file"))
        status = ATTUNE_INVALID_ARGUMENT;
    int worst = cli_exit_of(status);
    if (status != ATTUNE_OK)
        cli_devices_close(&devices);
    o.progress = progress_begin();
    o.total = devices.count * dtype_count * (*o.folder || files ? 1 : *o.file ? o.count : workload_count());
    for (uint32_t i = 0; i < devices.count; i++)
        for (uint32_t j = 0; j < dtype_count; j++) {
            int code = *o.folder ? check_folder(instance, devices.device[i], &o, dtypes[j])
                       : files   ? check_files(instance, devices.device[i], &o, dtypes[j])
                                 : check_workloads(instance, devices.device[i], &o, dtypes[j]);
            if (*o.folder || files)
                o.codes[code]++;
            worst = worst_of(worst, code);
        }
    print_total(&o);
    cli_devices_close(&devices);
    attune_instance_destroy(instance);
    workload_list_free(o.list, o.count);
    return worst;
}

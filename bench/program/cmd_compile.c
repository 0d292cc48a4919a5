/* SPDX-License-Identifier: MIT */
/* attune compile: writes a pack of kernels for machines without a compiler. Needs no device. */
#include "bench/program/output.h"
#include "bench/program/progress.h"

#include "tests/oracle/segments.h"
#include "bench/workloads/workload.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_TARGETS 32
#define MOST_THREADS 64
#define MOST_DTYPES  4
#define MOST_DIMS    16

typedef struct compile_options {
    const char *arch, *profiles, *workloads, *file, *dtypes, *kv_dtype, *o_dtype, *head_dims, *direction, *scale,
        *kernel_options, *threads, *out;
    bool segments;
} compile_options;

/* One plan to compile: a bound workload, for a device. */
typedef struct job {
    const attune_profile *profile;
    const workload *workload;
    const attention *bound;
    attune_dtype dtype;
    uint32_t head_dim, head_dim_v;
    attune_direction direction;
    attune_status status;
    double seconds;
    char message[512];
} job;

typedef struct compile_run {
    compile_options options;
    const attune_kernel_options *kernel;
    attune_instance *instance;
    attune_pack *pack;
    attune_profile targets[MOST_TARGETS];
    uint32_t target_count;
    workload *file_list, *workloads; /* workloads: shrunk copies */
    uint32_t file_count, workload_count;
    attention *bound; /* of each workload */
    bool directions[2];
    attune_dtype dtypes[MOST_DTYPES], kv_dtype, o_dtype; /* kv_dtype, o_dtype: 0 = the workload's */
    uint32_t dtype_count;
    int64_t dims[MOST_DIMS][2];
    uint32_t dim_count;
    job *jobs;
    uint32_t job_count;
    pthread_mutex_t lock; /* of next, done and progress */
    uint32_t next, done;
    progress progress;
} compile_run;

/* ---------------------------------------------------------------------------------------------------------- targets */

static bool add_target(compile_run *run, const attune_profile *profile)
{
    if (run->target_count == MOST_TARGETS) {
        cli_error("more than %d devices", MOST_TARGETS);
        return false;
    }
    for (uint32_t i = 0; i < run->target_count; i++)
        if (!strcmp(run->targets[i].name, profile->name))
            return true;
    run->targets[run->target_count++] = *profile;
    return true;
}

/* Every known device of an architecture, since the planner may choose different tiles for them. */
static bool add_architecture(compile_run *run, const char *word)
{
    char *end;
    const char *digits = !strncmp(word, "sm_", 3) ? word + 3 : word;
    const unsigned long number = strtoul(digits, &end, 10);
    bool found = false;
    if (end != digits && (!*end || !strcmp(end, "a")))
        for (uint32_t i = 0; i < attune_profile_count(); i++) {
            attune_profile profile = {.struct_size = sizeof profile};
            if (attune_profile_get(i, &profile) == ATTUNE_OK && profile.limits.backend == ATTUNE_BACKEND_CUDA &&
                profile.limits.architecture == number) {
                found = true;
                if (!add_target(run, &profile))
                    return false;
            }
        }
    if (!found)
        cli_error("--arch has \"%s\": expected sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100a or sm_120a", word);
    return found;
}

static bool choose_targets(compile_run *run)
{
    char word[64];
    for (const char *list = run->options.arch; cli_next_word(&list, word, sizeof word);)
        if (!add_architecture(run, word))
            return false;
    for (const char *list = run->options.profiles; cli_next_word(&list, word, sizeof word);) {
        attune_profile profile = {.struct_size = sizeof profile};
        if (attune_profile_find(word, &profile) != ATTUNE_OK) {
            cli_error("--device-profile: %s", attune_last_error());
            return false;
        }
        if (!add_target(run, &profile))
            return false;
    }
    if (!run->target_count)
        cli_error("no device: give --arch sm_86,sm_90a or --device-profile NAME");
    return run->target_count > 0;
}

/* -------------------------------------------------------------------------------------------------------- workloads */

static bool keep_workload(compile_run *run, const workload *w, double scale)
{
    workload *grown = realloc(run->workloads, (run->workload_count + 1) * sizeof *grown);
    if (!grown) {
        cli_error("out of memory");
        return false;
    }
    run->workloads = grown;
    run->workloads[run->workload_count++] = scale < 1 ? workload_scaled(w, scale) : *w;
    return true;
}

static bool choose_workloads(compile_run *run)
{
    const compile_options *o = &run->options;
    failure why = {{0}};
    double scale = 1;
    char name[64];
    if (*o->scale && (!cli_number("--scale", o->scale, &scale) || !(scale > 0 && scale <= 1))) {
        cli_error("--scale is \"%s\", expected more than 0 and at most 1", o->scale);
        return false;
    }
    if (*o->file) {
        if (!workload_load(o->file, &run->file_list, &run->file_count, &why)) {
            cli_error("--file: %s", why.message);
            return false;
        }
        for (uint32_t i = 0; i < run->file_count; i++)
            if (!keep_workload(run, &run->file_list[i], scale))
                return false;
    }
    for (const char *list = o->workloads; cli_next_word(&list, name, sizeof name);) {
        const workload *w = workload_find(name);
        const bool all = !strcmp(name, "all");
        if (!w && !all) {
            cli_unknown_workload(name, "cannot be compiled ahead of time: give a workload on tensors");
            return false;
        }
        for (uint32_t i = 0; i < (all ? workload_count() : 1); i++)
            if (!keep_workload(run, all ? workload_get(i) : w, scale))
                return false;
    }
    if (!run->workload_count)
        cli_error("no workload: give --workload NAME,... or --file FILE.json");
    return run->workload_count > 0;
}

static bool choose_directions(compile_run *run)
{
    const char *text = run->options.direction;
    const bool step = !strcmp(text, "step");
    run->directions[ATTUNE_FORWARD] = step || !strcmp(text, "forward");
    run->directions[ATTUNE_BACKWARD] = step || !strcmp(text, "backward");
    if (!run->directions[ATTUNE_FORWARD] && !run->directions[ATTUNE_BACKWARD])
        cli_error("--direction is \"%s\", expected forward, backward or step", text);
    return run->directions[ATTUNE_FORWARD] || run->directions[ATTUNE_BACKWARD];
}

/* Types and head dimensions; by default the workload's own, in bf16 if it has no type. */
static bool choose_types(compile_run *run)
{
    char word[32];
    for (const char *list = run->options.dtypes; cli_next_word(&list, word, sizeof word);) {
        if (run->dtype_count == MOST_DTYPES) {
            cli_error("--dtype has more than %d types", MOST_DTYPES);
            return false;
        }
        if (!cli_dtype("--dtype", word, &run->dtypes[run->dtype_count++]))
            return false;
    }
    if (!cli_optional_dtype("--kv-dtype", run->options.kv_dtype, &run->kv_dtype) ||
        !cli_optional_dtype("--o-dtype", run->options.o_dtype, &run->o_dtype))
        return false;
    for (uint32_t i = 0; i < run->dtype_count; i++)
        if (!cli_dtypes_agree(run->dtypes[i], run->kv_dtype, run->o_dtype, false))
            return false;
    for (const char *list = run->options.head_dims; cli_next_word(&list, word, sizeof word);) {
        if (run->dim_count == MOST_DIMS) {
            cli_error("--head-dim has more than %d dimensions", MOST_DIMS);
            return false;
        }
        if (!cli_pair_of("--head-dim", word, ':', 8, 256, run->dims[run->dim_count++], 0))
            return false;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------- compiling */

static void compile(compile_run *run, job *j)
{
    const workload *w = j->workload;
    attune_problem problem = {
        .struct_size = sizeof problem,
        .direction = j->direction,
        .dtype = j->dtype,
        .kv_dtype = run->kv_dtype ? run->kv_dtype : w->kv_dtype,
        .o_dtype = run->o_dtype ? run->o_dtype : w->o_dtype,
        .head_dim = j->head_dim,
        .head_dim_v = j->head_dim_v,
        .batch = w->batch,
        .kv_batch = w->kv_batch,
        .heads = w->heads > 0 ? w->heads : w->kv_heads,
        .kv_heads = w->kv_heads,
        .q_len = w->q_len,
        .kv_len = w->kv_len,
        .scale = w->scale,
        .mask = j->bound->mask,
        .score = j->bound->score,
        .lse = j->direction == ATTUNE_FORWARD && run->directions[ATTUNE_BACKWARD],
    };
    if (j->direction == ATTUNE_BACKWARD)
        problem.capture_gradient_elements = attention_capture_elements(j->bound, attention_differentiable(j->bound));
    int64_t lengths[SEGMENTS_MAX];
    problem.segments = run->options.segments ? workload_cut(w, lengths) : 0;
    for (uint32_t i = 0; i < problem.segments; i++)
        problem.kv_len = i && lengths[i] < problem.kv_len ? problem.kv_len : lengths[i];
    struct timespec start, stop;
    clock_gettime(CLOCK_MONOTONIC, &start);
    j->status = attune_pack_add(run->pack, &j->profile->limits, &problem, run->kernel);
    /* Without capture gradients the kernel is another one. */
    if (j->status == ATTUNE_OK && problem.capture_gradient_elements) {
        problem.capture_gradient_elements = 0;
        j->status = attune_pack_add(run->pack, &j->profile->limits, &problem, run->kernel);
    }
    clock_gettime(CLOCK_MONOTONIC, &stop);
    j->seconds = (double)(stop.tv_sec - start.tv_sec) + (double)(stop.tv_nsec - start.tv_nsec) * 1e-9;
    if (j->status != ATTUNE_OK)
        (void)snprintf(j->message, sizeof j->message, "%s", attune_last_error());
}

static void *work(void *user)
{
    compile_run *run = user;
    for (;;) {
        pthread_mutex_lock(&run->lock);
        const uint32_t at = run->next++;
        if (at < run->job_count)
            progress_show(&run->progress, run->done, run->job_count, "%s for %s", run->jobs[at].workload->name,
                          run->jobs[at].profile->name);
        pthread_mutex_unlock(&run->lock);
        if (at >= run->job_count)
            return NULL;
        compile(run, &run->jobs[at]);
        pthread_mutex_lock(&run->lock);
        run->done++;
        pthread_mutex_unlock(&run->lock);
    }
}

static bool make_jobs(compile_run *run)
{
    const uint32_t dtypes = run->dtype_count ? run->dtype_count : 1, dims = run->dim_count ? run->dim_count : 1;
    run->bound = calloc(run->workload_count, sizeof *run->bound);
    run->jobs = calloc((size_t)run->workload_count * run->target_count * dtypes * dims * 2, sizeof *run->jobs);
    if (!run->bound || !run->jobs) {
        cli_error("out of memory");
        return false;
    }
    for (uint32_t i = 0; i < run->workload_count; i++) {
        const workload *w = &run->workloads[i];
        failure why = {{0}};
        if (!workload_bind(run->instance, w, 1, &run->bound[i], &why)) {
            cli_error("%s: %s", w->name, why.message);
            return false;
        }
    }
    /* Devices are the outer loop: devices of one architecture share kernels, which are then in the pack already. */
    for (uint32_t t = 0; t < run->target_count; t++)
        for (uint32_t i = 0; i < run->workload_count; i++)
            for (uint32_t d = 0; d < dtypes; d++)
                for (uint32_t h = 0; h < 2 * dims; h++) {
                    const workload *w = &run->workloads[i];
                    const attune_direction direction = h % 2 ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
                    if (!run->directions[direction])
                        continue;
                    run->jobs[run->job_count++] = (job){
                        .profile = &run->targets[t],
                        .workload = w,
                        .bound = &run->bound[i],
                        .dtype = run->dtype_count ? run->dtypes[d]
                                 : w->dtype       ? w->dtype
                                                  : ATTUNE_BF16,
                        .direction = direction,
                        .head_dim = run->dim_count ? (uint32_t)run->dims[h / 2][0] : w->head_dim,
                        .head_dim_v = run->dim_count  ? (uint32_t)run->dims[h / 2][1]
                                      : w->head_dim_v ? w->head_dim_v
                                                      : w->head_dim,
                    };
                }
    return true;
}

static bool run_jobs(compile_run *run)
{
    int64_t count = sysconf(_SC_NPROCESSORS_ONLN);
    if (*run->options.threads && !cli_integer("--threads", run->options.threads, 1, MOST_THREADS, &count))
        return false;
    count = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
    pthread_t threads[MOST_THREADS];
    int64_t started = 0;
    run->progress = progress_begin();
    while (started < count - 1 && !pthread_create(&threads[started], NULL, work, run))
        started++;
    (void)work(run);
    for (int64_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    progress_clear(&run->progress);
    return true;
}

/* "bf16", or of mixed types those of q, of k and v, and of o: "f32,f16,bf16". */
static void print_dtypes(const compile_run *run, const job *j, char text[32])
{
    const attune_dtype kv = run->kv_dtype ? run->kv_dtype : j->workload->kv_dtype,
                       o = run->o_dtype ? run->o_dtype : j->workload->o_dtype;
    const char *q = attune_dtype_string(j->dtype);
    if ((!kv || kv == j->dtype) && (!o || o == j->dtype))
        (void)snprintf(text, 32, "%s", q);
    else
        (void)snprintf(text, 32, "%s,%s,%s", q, kv ? attune_dtype_string(kv) : q, o ? attune_dtype_string(o) : q);
}

/* Prints the result of each job, and returns the exit status. */
static int report(const compile_run *run, FILE *out)
{
    int code = EXIT_GOOD;
    uint32_t good = 0;
    for (uint32_t i = 0; i < run->job_count; i++) {
        const job *j = &run->jobs[i];
        char dtypes[32];
        print_dtypes(run, j, dtypes);
        (void)fprintf(out, "%-20s %-10s %-8s %-4s %3u,%-3u %7.2f s  %s\n", j->workload->name, j->profile->name,
                      j->direction == ATTUNE_BACKWARD ? "backward" : "forward", dtypes, j->head_dim, j->head_dim_v,
                      j->seconds,
                      j->status == ATTUNE_OK            ? "ok"
                      : j->status == ATTUNE_UNSUPPORTED ? "unsupported"
                                                        : "FAILED");
        if (j->status == ATTUNE_OK)
            good++;
        else
            cli_error("%s for %s: %s", j->workload->name, j->profile->name, j->message);
        if (j->status != ATTUNE_OK && j->status != ATTUNE_UNSUPPORTED && code == EXIT_GOOD)
            code = cli_exit_of(j->status);
    }
    return code == EXIT_GOOD && !good ? EXIT_UNAVAILABLE : code;
}

static int compile_all(compile_run *run, FILE *out)
{
    if (attune_instance_create(NULL, &run->instance) != ATTUNE_OK ||
        attune_pack_create(run->instance, &run->pack) != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
        return EXIT_FAILED;
    }
    if (!make_jobs(run) || !run_jobs(run))
        return EXIT_USAGE;
    const int code = report(run, out);
    if (code != EXIT_GOOD)
        return code;
    uint32_t kernels = 0;
    uint64_t bytes = 0;
    if (attune_pack_write(run->pack, run->options.out) != ATTUNE_OK ||
        attune_pack_size(run->pack, &kernels, &bytes) != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
        return EXIT_FAILED;
    }
    (void)fprintf(out, "%s: %u kernels, %llu bytes, %.0f s\n", run->options.out, kernels, (unsigned long long)bytes,
                  progress_seconds(&run->progress));
    return EXIT_GOOD;
}

/* Checked before the work, which may take hours. *text receives where words go. */
static bool writable(const compile_options *o, FILE **text)
{
    output out = {.option = "-o", .path = o->out};
    const bool ok = outputs_find(&out, 1) && outputs_spare(&out, 1, "--file", o->file);
    *text = outputs_text(&out, 1);
    outputs_drop(&out, 1);
    return ok;
}

int cmd_compile(int argc, char **argv)
{
    compile_run run = {.options = {.arch = "",
                                   .profiles = "",
                                   .workloads = "",
                                   .file = "",
                                   .dtypes = "",
                                   .kv_dtype = "",
                                   .o_dtype = "",
                                   .head_dims = "",
                                   .direction = "forward",
                                   .scale = "",
                                   .kernel_options = "",
                                   .threads = "",
                                   .out = ""},
                       .lock = PTHREAD_MUTEX_INITIALIZER};
    compile_options *o = &run.options;
    const cli_option options[] = {
        {"--arch", "SM,...", "sm_86,sm_90a: every known device of these architectures", &o->arch, NULL, NULL},
        {"--device-profile", "NAME,...", "known devices by name, see attune explain --list-profiles", &o->profiles,
         NULL, NULL},
        {"--workload", "NAME,...", "see attune bench --list; all = every one", &o->workloads, NULL, NULL},
        {"--file", "FILE.json", "workloads from a file", &o->file, NULL, NULL},
        {"--dtype", "TYPE,...", "f32, f16, bf16; the workload's if not given, else bf16", &o->dtypes, NULL, NULL},
        {"--kv-dtype", "TYPE", "type of k and v, if it differs from --dtype", &o->kv_dtype, NULL, NULL},
        {"--o-dtype", "TYPE", "type of o, if it differs from --dtype", &o->o_dtype, NULL, NULL},
        {"--head-dim", "D[:DV],...", "instead of the workload's", &o->head_dims, NULL, NULL},
        {"--direction", "WHICH", "forward, backward, or step: both, and forward with LSE", &o->direction, NULL, NULL},
        {"--segments", NULL, "compile workloads with segments for them, with the merge kernel", NULL, &o->segments,
         NULL},
        {"--scale", "S", "shrink the workloads, as attune bench does", &o->scale, NULL, NULL},
        {"--kernel-options", "JSON", "forced options, {\"num_stages\": 2}", &o->kernel_options, NULL, NULL},
        {"--threads", "N", "kernels compiled at once; every core if not given", &o->threads, NULL, NULL},
        {"-o", "PACK", "the file to write", &o->out, NULL, NULL},
    };
    attune_kernel_options storage;
    FILE *text;
    const cli_result parsed =
        cli_parse("attune compile [OPTIONS] -o PACK", options, sizeof options / sizeof options[0], argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    int code = EXIT_USAGE;
    if (!*o->out)
        cli_error("no output: give -o PACK");
    else if (choose_targets(&run) && choose_workloads(&run) && choose_types(&run) && choose_directions(&run) &&
             writable(o, &text) && cli_kernel_options(o->kernel_options, &storage, &run.kernel))
        code = compile_all(&run, text);
    for (uint32_t i = 0; run.bound && i < run.workload_count; i++)
        workload_release(&run.bound[i]);
    free(run.bound);
    free(run.jobs);
    free(run.workloads);
    workload_list_free(run.file_list, run.file_count);
    attune_pack_destroy(run.pack);
    attune_instance_destroy(run.instance);
    return code;
}

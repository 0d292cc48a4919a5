/* SPDX-License-Identifier: MIT */
/*
 * attune-bench-mpi: times calls over the processes of MPI, beside one of them alone. A program of its own, so that
 * attune links to no MPI.
 *
 *     mpirun -n 4 build/bench/attune-bench-mpi --workload causal,document_packing --scale 0.01
 */
#include <attune/mpi.h>

#include "bench/program/cli.h"
#include "bench/program/explain_ranks.h"
#include "bench/timing/clock.h"
#include "bench/timing/row_ranks.h"
#include "bench/timing/share.h"

typedef struct mpi_run {
    MPI_Comm comm;
    int rank, size;
    share share;
    attune_status status;
} mpi_run;

/* measure_call of rank 0; the others follow. */
static bool call_all(void *context, double *seconds)
{
    mpi_run *run = context;
    int go = 1;
    if (run->size > 1)
        MPI_Bcast(&go, 1, MPI_INT, 0, run->comm);
    const double begin = clock_seconds();
    run->status = share_call(&run->share);
    MPI_Barrier(run->comm);
    *seconds = clock_seconds() - begin;
    return run->status == ATTUNE_OK;
}

static void follow(mpi_run *run)
{
    for (;;) {
        int go = 0;
        MPI_Bcast(&go, 1, MPI_INT, 0, run->comm);
        if (!go)
            return;
        /* A failure has aborted all processes. */
        (void)share_call(&run->share);
        MPI_Barrier(run->comm);
    }
}

/* o of all ranks to rank 0: each has written its own rows into zeros. */
static void collect(const mpi_run *run, array *o)
{
    const uint64_t bytes = array_bytes(o);
    for (uint64_t at = 0; at < bytes; at += ATTUNE_MPI_PART) {
        const int part = (int)(bytes - at < ATTUNE_MPI_PART ? bytes - at : ATTUNE_MPI_PART);
        char *data = (char *)o->data + at;
        MPI_Reduce(run->rank ? data : MPI_IN_PLACE, data, part, MPI_BYTE, MPI_BOR, 0, run->comm);
    }
}

/* Measures on a communicator's ranks. o NULL, or receives the result. */
static bool measure(attune_device *device, MPI_Comm comm, const attune_partition *partition, const ranks_setup *s,
                    const row_options *options, array *o, measurement *time, report_row *row)
{
    mpi_run run = {.comm = comm};
    attune_mpi mpi;
    attune_transport transport;
    MPI_Comm_rank(comm, &run.rank);
    MPI_Comm_size(comm, &run.size);
    attune_status status = attune_mpi_transport(comm, 1, &mpi, &transport);
    if (status == ATTUNE_OK)
        status = share_make(device, &transport, partition, s->mask, &s->problem, options->kernel, ATTUNE_OVERLAP_AUTO,
                            &s->a, NULL, &run.share);
    if (status != ATTUNE_OK) {
        cli_error("%s: rank %d: %s: %s", row->name, run.rank, attune_status_string(status), attune_last_error());
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILED);
    }
    bool good = true;
    if (run.rank) {
        follow(&run);
    } else {
        int go = 0;
        good = measure_run(&options->measure, call_all, &run, time);
        if (!good)
            row_finish(row, false, "call", run.status);
        if (run.size > 1)
            MPI_Bcast(&go, 1, MPI_INT, 0, comm);
    }
    if (o) {
        status = share_read(&run.share, o);
        if (status != ATTUNE_OK)
            MPI_Abort(MPI_COMM_WORLD, EXIT_FAILED);
        collect(&run, o);
    }
    share_free(&run.share);
    attune_mpi_finish(&mpi);
    return good;
}

/* Every rank makes the same setup; rank 0 has the row. */
static bool run_workload(attune_instance *instance, attune_device *device, const workload *w, attune_layout layout,
                         const row_options *options, report_row *row)
{
    ranks_setup s;
    measurement alone = {0};
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    bool good = ranks_setup_make(instance, device, w, (uint32_t)size, layout, options, &s, row);
    if (!good) {
        cli_error("%s: rank %d: %s", row->name, rank, row->message);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILED);
    }
    row->threads *= (uint32_t)size;
    if (!rank)
        good = measure(device, MPI_COMM_SELF, s.one, &s, options, NULL, &alone, row);
    good = measure(device, MPI_COMM_WORLD, s.all, &s, options, &s.o, &row->time, row) && good;
    row->one_seconds = alone.median;
    if (!rank && good && options->check)
        good = row_check_o(&s.a, &s.o, options->seed, 0, row);
    statistics_free(&alone);
    ranks_setup_free(&s);
    return good;
}

typedef struct mpi_options {
    const char *workloads, *scale, *dtype, *layout, *repetitions, *threads;
    bool no_check;
} mpi_options;

static int run_all(const mpi_options *o)
{
    row_options options = {
        .measure = {.warmup = 1, .warmup_time = 0.1, .timeout = 60}, .check = !o->no_check, .seed = 1};
    attune_layout layout = ATTUNE_LAYOUT_BALANCED;
    attune_dtype dtype = ATTUNE_F32;
    attune_instance *instance = NULL;
    attune_device *device = NULL;
    report r = {.entries = NULL};
    int64_t repetitions, threads;
    double scale;
    char name[64];
    int rank, code = EXIT_GOOD;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!cli_number("--scale", o->scale, &scale) || !cli_dtype("--dtype", o->dtype, &dtype) ||
        !ranks_layout("--layout", o->layout, &layout) ||
        !cli_integer("--repetitions", o->repetitions, 1, 100000, &repetitions) ||
        !cli_integer("--threads", o->threads, 1, 1024, &threads))
        return EXIT_USAGE;
    if (!(scale > 0 && scale <= 1)) {
        cli_error("--scale is %s, expected a number above 0, at most 1", o->scale);
        return EXIT_USAGE;
    }
    for (const char *list = o->workloads; cli_next_word(&list, name, sizeof name);)
        if (!workload_find(name)) {
            cli_unknown_workload(name, "are on one device, not over ranks: give a workload on tensors");
            return EXIT_USAGE;
        }
    options.measure.repetitions = (uint32_t)repetitions;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = (uint32_t)threads};
    if (attune_instance_create(&desc, &instance) != ATTUNE_OK ||
        attune_device_open(instance, "cpu", &device) != ATTUNE_OK) {
        cli_error("rank %d: %s", rank, attune_last_error());
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILED);
    }
    if (!rank)
        report_begin(&r, REPORT_RANKS, stdout);
    for (const char *list = o->workloads; cli_next_word(&list, name, sizeof name);) {
        const workload *full = workload_find(name);
        workload w = workload_scaled(full, workload_share(full, scale));
        report_row row = {.share = workload_flop(&w) / workload_flop(full)};
        w.dtype = dtype;
        if (!run_workload(instance, device, &w, layout, &options, &row))
            code = EXIT_FAILED;
        const report_row *kept = report_add(&r, &row);
        if (!rank && kept)
            report_write_row(kept, REPORT_RANKS, stdout);
    }
    if (!rank)
        report_end(&r, REPORT_RANKS, stdout);
    report_free(&r);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    return code;
}

int main(int argc, char **argv)
{
    mpi_options o = {
        "causal,sliding_window,document_packing,shared_prefix", "0.001", "f32", "balanced", "10", "1", false};
    const cli_option options[] = {
        {"--workload", "NAME,...", "names of attune bench --list, with commas", &o.workloads, NULL, NULL},
        {"--scale", "S", "share (0 to 1] of each workload's work", &o.scale, NULL, NULL},
        {"--dtype", "TYPE", "f32, f16, bf16 or f64", &o.dtype, NULL, NULL},
        {"--layout", "NAME", "balanced, cut, contiguous, zigzag or striped", &o.layout, NULL, NULL},
        {"--repetitions", "N", "samples of a row", &o.repetitions, NULL, NULL},
        {"--threads", "N", "of each rank", &o.threads, NULL, NULL},
        {"--no-check", NULL, "do not compare results with the oracle", NULL, &o.no_check, NULL},
    };
    MPI_Init(&argc, &argv);
    const cli_result parsed =
        cli_parse("mpirun -n N attune-bench-mpi [OPTIONS]: time workloads over the processes of MPI", options,
                  sizeof options / sizeof options[0], argc, argv, NULL);
    const int code = parsed == CLI_GO ? run_all(&o) : parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    MPI_Finalize();
    return code;
}

/* SPDX-License-Identifier: MIT */
/*
 * An attention layer whose sequence is cut over the processes of MPI (docs/distributed.md).
 *
 *     mpicc ranks.c $(pkg-config --cflags --libs attune) -o ranks && mpirun -n 4 ./ranks
 *
 * Documents of a packed sequence, causal, with ALiBi: each rank has some rows of q and the keys of the same positions,
 * and receives the keys that its rows need. It then computes all rows alone, and compares its own: the exit status is
 * 1 if they differ.
 */
#include <attune/mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 3000, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 32, DOCUMENTS = 7 };

static void check(attune_status status)
{
    if (status == ATTUNE_OK)
        return;
    fprintf(stderr, "%s: %s\n", attune_status_string(status), attune_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The same numbers on every rank. */
static float number(int tensor, int64_t head, int64_t position, int64_t column)
{
    uint64_t x = (uint64_t)tensor << 56 ^ (uint64_t)head << 48 ^ (uint64_t)position << 16 ^ (uint64_t)column;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)(int32_t)(x >> 32) * 0x1p-31f;
}

/* A tensor [1, heads, positions, HEAD_DIM] of the positions of some runs, or of all with runs NULL. */
typedef struct values {
    float *data;
    attune_tensor tensor;
} values;

static values make(attune_device *device, int tensor, int64_t heads, const attune_run *runs, uint32_t count)
{
    const attune_run all = {0, LENGTH, 0};
    values v = {NULL, {.dtype = ATTUNE_F32, .rank = 4}};
    int64_t positions = 0;
    if (!runs) {
        runs = &all;
        count = 1;
    }
    for (uint32_t i = 0; i < count; i++)
        positions += runs[i].count;
    if (!positions)
        return v;
    const int64_t size[4] = {1, heads, positions, HEAD_DIM};
    for (int i = 0; i < 4; i++)
        v.tensor.size[i] = size[i];
    v.data = malloc((size_t)(heads * positions * HEAD_DIM) * sizeof *v.data);
    if (!v.data)
        MPI_Abort(MPI_COMM_WORLD, 1);
    float *to = v.data;
    for (int64_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < count; i++)
            for (int64_t p = runs[i].start; p < runs[i].start + runs[i].count; p++)
                for (int64_t c = 0; c < HEAD_DIM; c++)
                    *to++ = number(tensor, h, p, c);
    check(attune_buffer_wrap(device, v.data, (uint64_t)(heads * positions * HEAD_DIM) * sizeof *v.data,
                             &v.tensor.buffer));
    return v;
}

static void release(values *v)
{
    attune_buffer_destroy(v->tensor.buffer);
    free(v->data);
}

static attune_buffer *workspace(attune_device *device, uint64_t size)
{
    attune_buffer *buffer = NULL;
    if (size)
        check(attune_buffer_create(device, size, &buffer));
    return buffer;
}

/* The largest difference between the rows of a rank and the same rows of the whole. */
static double compare(const values *mine, const values *whole, const attune_run *runs, uint32_t count)
{
    double largest = 0;
    const float *got = mine->data;
    for (int64_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < count; i++)
            for (int64_t j = 0; j < runs[i].count * HEAD_DIM; j++, got++) {
                const double apart =
                    fabs((double)*got - (double)whole->data[(h * LENGTH + runs[i].start) * HEAD_DIM + j]);
                /* NaN counts. */
                largest = apart <= largest ? largest : apart;
            }
    return largest;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    attune_mpi mpi;
    attune_transport transport;
    check(attune_mpi_transport(MPI_COMM_WORLD, 77, &mpi, &transport));

    attune_instance *instance;
    attune_device *device;
    const attune_instance_desc instance_desc = {.struct_size = sizeof instance_desc, .cpu_threads = 1};
    check(attune_instance_create(&instance_desc, &instance));
    check(attune_device_open(instance, "cpu", &device));

    /* The same expressions as on one device: q and kv are positions in the whole sequence. */
    int32_t document[LENGTH];
    for (int i = 0; i < LENGTH; i++)
        document[i] = (int)((int64_t)i * i * DOCUMENTS / LENGTH / LENGTH);
    const attune_host_capture capture = {"doc", {document, ATTUNE_I32, 1, {LENGTH}, {1}}};
    const attune_symbol symbol = {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    attune_expr *allowed, *score;
    check(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv && doc[q] == doc[kv]", &symbol, 1, &allowed));
    check(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + exp2(-2.0 * (h + 1)) * (kv - q)", NULL, 0, &score));
    const attune_mask_desc mask_desc = {
        .struct_size = sizeof mask_desc, .heads = HEADS, .kv_heads = KV_HEADS, .q_len = LENGTH, .kv_len = LENGTH};
    attune_mask *mask;
    check(attune_mask_create(instance, &mask_desc, allowed, &capture, 1, NULL, 0, &mask));
    check(attune_mask_upload(mask, device));

    attune_partition *partition;
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = transport.size};
    attune_partition_stats stats = {.struct_size = sizeof stats};
    check(attune_partition_create(instance, &dealt, mask, &partition));
    check(attune_partition_stats_get(partition, &stats));

    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = HEAD_DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = LENGTH,
                              .score = score};
    const attune_distributed_desc desc = {
        .struct_size = sizeof desc, .transport = &transport, .partition = partition, .mask = mask, .problem = &problem};
    attune_distributed *distributed;
    check(attune_distributed_create(device, &desc, &distributed));

    const attune_run *rows, *keys;
    uint32_t row_runs, key_runs;
    check(attune_partition_runs(partition, transport.rank, ATTUNE_RUN_ROWS, &rows, &row_runs));
    check(attune_partition_runs(partition, transport.rank, ATTUNE_RUN_KEYS, &keys, &key_runs));
    values q = make(device, 1, HEADS, rows, row_runs), o = make(device, 4, HEADS, rows, row_runs);
    values k = make(device, 2, KV_HEADS, keys, key_runs), v = make(device, 3, KV_HEADS, keys, key_runs);
    attune_forward_args args = {.struct_size = sizeof args,
                                .q = q.tensor,
                                .k = k.tensor,
                                .v = v.tensor,
                                .o = o.tensor,
                                .workspace = workspace(device, attune_distributed_workspace_size(distributed))};
    check(attune_distributed_forward(distributed, attune_device_queue(device), &args, NULL));
    attune_buffer_destroy(args.workspace);

    /* All rows, on this rank alone. */
    values all_q = make(device, 1, HEADS, NULL, 0), all_o = make(device, 4, HEADS, NULL, 0);
    values all_k = make(device, 2, KV_HEADS, NULL, 0), all_v = make(device, 3, KV_HEADS, NULL, 0);
    attune_plan *plan;
    check(attune_problem_set_mask(&problem, mask));
    check(attune_plan_create(device, &problem, NULL, &plan));
    args.q = all_q.tensor;
    args.k = all_k.tensor;
    args.v = all_v.tensor;
    args.o = all_o.tensor;
    args.mask = mask;
    args.workspace = workspace(device, attune_plan_workspace_size(plan));
    check(attune_forward(plan, attune_device_queue(device), &args, NULL));
    attune_buffer_destroy(args.workspace);

    double apart = compare(&o, &all_o, rows, row_runs), most = 0;
    MPI_Allreduce(&apart, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (!transport.rank)
        printf("%u ranks: the most work is %.3f of the mean, %.0f %% of a ring's keys were sent; o differs by %.1e\n",
               transport.size, stats.imbalance, 100 * stats.fetched, most);

    values *tensors[] = {&q, &k, &v, &o, &all_q, &all_k, &all_v, &all_o};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        release(tensors[i]);
    attune_plan_destroy(plan);
    attune_distributed_destroy(distributed);
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_expr_destroy(allowed);
    attune_expr_destroy(score);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    attune_mpi_finish(&mpi);
    MPI_Finalize();
    return most < 1e-5 ? 0 : 1;
}

/* SPDX-License-Identifier: MIT */
/*
 * A rank of MPI that fails: no other rank may wait for it.
 *
 *     mpirun -n 4 ranks_fail differs    rank 1 has another mask: every rank is refused, and the exit status is 0
 *     mpirun -n 4 ranks_fail aborts     rank 1 makes a bad call, which ends all processes
 *     mpirun -n 4 ranks_fail dies       rank 1 ends before its call, and does not say so
 */
#include <attune/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1024, HEAD_DIM = 16 };

static void check(attune_status status)
{
    if (status == ATTUNE_OK)
        return;
    fprintf(stderr, "%s: %s\n", attune_status_string(status), attune_last_error());
    MPI_Abort(MPI_COMM_WORLD, 9);
}

static attune_tensor make(attune_device *device, int64_t positions, uint32_t seed)
{
    attune_tensor t = {.dtype = ATTUNE_F32, .rank = 4, .size = {1, 1, positions, HEAD_DIM}};
    float *data = malloc((size_t)(positions * HEAD_DIM) * sizeof *data);
    if (!data)
        MPI_Abort(MPI_COMM_WORLD, 9);
    for (int64_t i = 0; i < positions * HEAD_DIM; i++) {
        seed = seed * 1664525 + 1013904223;
        data[i] = (float)(seed >> 8) * 0x1p-24f - 0.5f;
    }
    check(attune_buffer_create(device, (uint64_t)(positions * HEAD_DIM) * sizeof *data, &t.buffer));
    check(attune_buffer_write(t.buffer, 0, data, (uint64_t)(positions * HEAD_DIM) * sizeof *data));
    free(data);
    return t;
}

static int64_t positions_of(const attune_partition *partition, uint32_t rank, attune_run_kind kind)
{
    const attune_run *runs;
    uint32_t count;
    int64_t sum = 0;
    check(attune_partition_runs(partition, rank, kind, &runs, &count));
    for (uint32_t i = 0; i < count; i++)
        sum += runs[i].count;
    return sum;
}

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    attune_mpi mpi;
    attune_transport transport;
    check(attune_mpi_transport(MPI_COMM_WORLD, 5, &mpi, &transport));
    const bool here = transport.rank == 1;
    const bool differs = !strcmp(how, "differs"), aborts = !strcmp(how, "aborts"), dies = !strcmp(how, "dies");
    if (!differs && !aborts && !dies)
        MPI_Abort(MPI_COMM_WORLD, 2);

    attune_instance *instance;
    attune_device *device;
    attune_expr *allowed;
    attune_mask *mask;
    attune_partition *partition;
    attune_distributed *distributed;
    const attune_instance_desc instance_desc = {.struct_size = sizeof instance_desc, .cpu_threads = 1};
    check(attune_instance_create(&instance_desc, &instance));
    check(attune_device_open(instance, "cpu", &device));
    check(attune_expr_create(instance, ATTUNE_EXPR_MASK, here && differs ? "q >= kv && q - kv < 300" : "q >= kv", NULL,
                             0, &allowed));
    const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = LENGTH, .kv_len = LENGTH};
    check(attune_mask_create(instance, &mask_desc, allowed, NULL, 0, NULL, 0, &mask));
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = transport.size};
    check(attune_partition_create(instance, &dealt, mask, &partition));
    const attune_problem problem = {.struct_size = sizeof problem, .head_dim = HEAD_DIM};
    const attune_distributed_desc desc = {
        .struct_size = sizeof desc, .transport = &transport, .partition = partition, .mask = mask, .problem = &problem};
    const attune_status created = attune_distributed_create(device, &desc, &distributed);
    if (differs) {
        if (created != ATTUNE_INVALID_ARGUMENT || !strstr(attune_last_error(), "rank 1 has another partition")) {
            fprintf(stderr, "rank %u: %s: %s\n", transport.rank, attune_status_string(created), attune_last_error());
            MPI_Abort(MPI_COMM_WORLD, 9);
        }
    } else {
        check(created);
        if (here && dies)
            _Exit(3);
        const int64_t rows = positions_of(partition, transport.rank, ATTUNE_RUN_ROWS);
        const int64_t keys = positions_of(partition, transport.rank, ATTUNE_RUN_KEYS);
        attune_forward_args args = {.struct_size = sizeof args,
                                    .q = make(device, rows, 1),
                                    .k = make(device, keys, 2),
                                    .v = make(device, keys, 3),
                                    .o = make(device, rows, 4)};
        const uint64_t size = attune_distributed_workspace_size(distributed);
        check(attune_buffer_create(device, size, &args.workspace));
        if (here)
            args.k.size[3] = HEAD_DIM / 2;
        const attune_status status = attune_distributed_forward(distributed, attune_device_queue(device), &args, NULL);
        /* Only where MPI_Abort returns. */
        fprintf(stderr, "rank %u: %s\n", transport.rank, attune_status_string(status));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    attune_distributed_destroy(distributed);
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    attune_expr_destroy(allowed);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    attune_mpi_finish(&mpi);
    MPI_Finalize();
    return 0;
}

/* SPDX-License-Identifier: MIT */
#include "bench/timing/predict.h"

#include <stdlib.h>
#include <string.h>

/* The input, and the rank of each block of rows and of keys. */
typedef struct predictor {
    const attune_partition *partition;
    attune_mask_lists lists;
    attune_partition_stats stats;
    uint32_t *row_rank, *key_rank;
    double *kept; /* keys of each rank */
    bool *met;    /* ranks that a rank receives from */
} predictor;

static bool allocate(predictor *p, prediction *made)
{
    p->row_rank = calloc((size_t)p->lists.q_blocks, sizeof *p->row_rank);
    p->key_rank = calloc((size_t)p->lists.kv_blocks, sizeof *p->key_rank);
    p->kept = calloc(p->stats.ranks, sizeof *p->kept);
    p->met = calloc(p->stats.ranks, sizeof *p->met);
    made->rank = calloc(p->stats.ranks, sizeof *made->rank);
    return p->row_rank && p->key_rank && p->kept && p->met && made->rank;
}

/* Chunks are whole blocks: a block has one rank. */
static void find_ranks(predictor *p, uint32_t rank)
{
    const attune_run *runs;
    uint32_t count;
    (void)attune_partition_runs(p->partition, rank, ATTUNE_RUN_ROWS, &runs, &count);
    for (uint32_t i = 0; i < count; i++)
        for (int64_t at = runs[i].start / p->lists.q_block; at * p->lists.q_block < runs[i].start + runs[i].count; at++)
            p->row_rank[at] = rank;
    (void)attune_partition_runs(p->partition, rank, ATTUNE_RUN_KEYS, &runs, &count);
    for (uint32_t i = 0; i < count; i++) {
        p->kept[rank] += (double)runs[i].count;
        for (int64_t at = runs[i].start / p->lists.kv_block; at * p->lists.kv_block < runs[i].start + runs[i].count;
             at++)
            p->key_rank[at] = rank;
    }
}

/* Adds the cost of the blocks of a list to the ranks of their rows. */
static void add_blocks(const predictor *p, const int64_t *offsets, const int32_t *indices, double cost,
                       prediction *made)
{
    const int64_t rows = p->lists.batch * p->lists.heads * p->lists.q_blocks;
    for (int64_t row = 0; row < rows; row++) {
        const uint32_t owner = p->row_rank[row % p->lists.q_blocks];
        predict_rank *r = &made->rank[owner];
        for (int64_t i = offsets[row]; i < offsets[row + 1]; i++)
            *(p->key_rank[indices[i]] == owner ? &r->own : &r->others) += cost;
    }
}

static void add_traffic(predictor *p, uint32_t rank, double key_bytes, prediction *made)
{
    const attune_run *runs;
    uint32_t count;
    predict_rank *r = &made->rank[rank];
    memset(p->met, 0, p->stats.ranks * sizeof *p->met);
    (void)attune_partition_runs(p->partition, rank, ATTUNE_RUN_NEEDS, &runs, &count);
    for (uint32_t i = 0; i < count; i++) {
        predict_rank *from = &made->rank[runs[i].rank];
        const double bytes = (double)runs[i].count * key_bytes;
        r->received += bytes;
        from->sent += bytes;
        if (p->met[runs[i].rank])
            continue;
        p->met[runs[i].rank] = true;
        r->senders++;
        from->peers++;
    }
    made->received += r->received;
    made->ring += ((double)p->lists.kv_len - p->kept[rank]) * key_bytes;
}

static void finish(const predict_machine *machine, prediction *made)
{
    double exchanges = 0, hidden = 0;
    for (uint32_t i = 0; i < made->ranks; i++) {
        predict_rank *r = &made->rank[i];
        made->one += r->own + r->others;
        if (r->senders || r->peers)
            r->exchange = machine->exchange + (r->received > r->sent ? r->received : r->sent) / machine->link;
        r->seconds = predict_seconds(r->own, r->exchange, r->others);
        exchanges += r->exchange;
        hidden += r->own < r->exchange ? r->own : r->exchange;
        if (r->seconds > made->rank[made->slowest].seconds)
            made->slowest = i;
    }
    made->seconds = made->rank[made->slowest].seconds;
    made->hidden = exchanges > 0 ? hidden / exchanges : 1;
}

static int64_t or_one(int64_t given)
{
    return given ? given : 1;
}

attune_status predict(const attune_partition *partition, const attune_mask *mask, const attune_problem *problem,
                      const predict_machine *machine, prediction *made)
{
    predictor p = {
        .partition = partition, .lists = {.struct_size = sizeof p.lists}, .stats = {.struct_size = sizeof p.stats}};
    *made = (prediction){0};
    attune_status status = attune_mask_lists_get(mask, &p.lists);
    if (status == ATTUNE_OK)
        status = attune_partition_stats_get(partition, &p.stats);
    if (status == ATTUNE_OK && !allocate(&p, made))
        status = ATTUNE_OUT_OF_HOST_MEMORY;
    if (status == ATTUNE_OK) {
        const attune_mask_lists *l = &p.lists;
        const int64_t batch = or_one(problem->batch), heads = or_one(problem->heads);
        const int64_t kv_batch = problem->kv_batch ? problem->kv_batch : batch;
        const int64_t kv_heads = problem->kv_heads ? problem->kv_heads : heads;
        const uint32_t head_dim_v = problem->head_dim_v ? problem->head_dim_v : problem->head_dim;
        const attune_dtype dtype = problem->kv_dtype ? problem->kv_dtype : problem->dtype ? problem->dtype : ATTUNE_F32;
        const double key_bytes =
            (double)(kv_batch * kv_heads) * (problem->head_dim + head_dim_v) * (double)attune_dtype_size(dtype);
        made->ranks = p.stats.ranks;
        made->block_seconds = 2.0 * l->q_block * l->kv_block * (problem->head_dim + head_dim_v) / machine->flops;
        /* Lists that broadcast are of all batches and heads. */
        const double cost = made->block_seconds * (double)(batch * heads) / (double)(l->batch * l->heads);
        for (uint32_t r = 0; r < made->ranks; r++)
            find_ranks(&p, r);
        add_blocks(&p, l->full_kv_offsets, l->full_kv_indices, cost, made);
        add_blocks(&p, l->kv_offsets, l->kv_indices, cost * p.stats.partial_cost, made);
        for (uint32_t r = 0; r < made->ranks; r++)
            add_traffic(&p, r, key_bytes, made);
        finish(machine, made);
    }
    free(p.row_rank);
    free(p.key_rank);
    free(p.kept);
    free(p.met);
    if (status != ATTUNE_OK)
        predict_free(made);
    return status;
}

void predict_free(prediction *made)
{
    free(made->rank);
    *made = (prediction){0};
}

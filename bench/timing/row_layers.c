/* SPDX-License-Identifier: MIT */
/* Calls in a row, as those of a model's layers. */
#include "bench/timing/clock.h"
#include "bench/timing/cuda_graph.h"
#include "bench/timing/row_parts.h"

typedef struct layers {
    row_queued call;
    void *context;
    attune_queue *queue;
    cuda_graph *graph; /* NULL = each call by itself */
    report_row *row;
    uint32_t count;
    attune_status status;
} layers;

static void make_calls(layers *l, double *last)
{
    l->status = ATTUNE_OK;
    for (uint32_t i = 0; i < l->count && l->status == ATTUNE_OK; i++)
        l->status = l->call(l->context, l->queue, i, i + 1 == l->count ? last : NULL);
}

static bool record(layers *l)
{
    if (!cuda_graph_begin(l->graph, l->row))
        return false;
    make_calls(l, NULL);
    /* Also where a call failed: the stream no longer captures when it is destroyed. */
    return cuda_graph_end(l->graph, l->row) && l->status == ATTUNE_OK;
}

static bool time_layers(void *state, double *seconds)
{
    layers *l = state;
    double last = 0;
    bool done = true;
    const double begin = clock_seconds();
    /* attune_completion_wait would look at ever longer intervals. */
    if (l->graph)
        done = cuda_graph_run(l->graph, l->row);
    else
        make_calls(l, &last);
    *seconds = (clock_seconds() - begin) / l->count;
    return done && l->status == ATTUNE_OK;
}

bool row_layers(attune_device *device, row_queued call, void *context, const row_options *options, report_row *row,
                attune_status *status)
{
    layers l = {
        .call = call, .context = context, .queue = attune_device_queue(device), .row = row, .count = options->layers};
    measure_options each = options->measure;
    each.min_time /= l.count;
    bool good = true;
    if (options->graph) {
        good = cuda_graph_open(device, &l.graph, row);
        l.queue = good ? cuda_graph_queue(l.graph) : NULL;
        good = good && record(&l);
    }
    (void)snprintf(row->timer, sizeof row->timer, "CLOCK_MONOTONIC around %s%u calls in a row",
                   options->graph ? "a CUDA graph of " : "", l.count);
    good = good && measure_run(&each, time_layers, &l, &row->time);
    cuda_graph_close(l.graph);
    *status = l.status;
    return good;
}

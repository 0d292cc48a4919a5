/* SPDX-License-Identifier: MIT */
#include "bench/peers/peers.h"

#include <stdio.h>

void peer_row(const peer *p, const row_options *options, report_row *row)
{
    (void)snprintf(row->workload, sizeof row->workload, "%s", p->name);
    (void)snprintf(row->kind, sizeof row->kind, "peer");
    (void)snprintf(row->device, sizeof row->device, "host");
    (void)snprintf(row->dtype, sizeof row->dtype, "f32");
    (void)snprintf(row->shape, sizeof row->shape, "%s", p->shape);
    (void)snprintf(row->name, sizeof row->name, "%s/host/f32/%s", row->workload, row->shape);
    (void)snprintf(row->plan, sizeof row->plan, "%s", p->plan);
    (void)snprintf(row->timer, sizeof row->timer, "%s", p->timer);
    row->share = 1;
    row->threads = p->threads;
    row->density = row->block_density = -1;
    row->pairs = -1;
    row->flop = p->flop;
    row->bytes = p->bytes;
    row_call(p->call, p->state, p->name, options, row);
}

/* SPDX-License-Identifier: MIT */
#include "bench/program/explain_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Printed in full up to this many ranks; beyond, the slowest alone. */
#define PRINTED_RANKS 16

static const char *const layouts[] = {[ATTUNE_LAYOUT_BALANCED] = "balanced",
                                      [ATTUNE_LAYOUT_CUT] = "cut",
                                      [ATTUNE_LAYOUT_CONTIGUOUS] = "contiguous",
                                      [ATTUNE_LAYOUT_ZIGZAG] = "zigzag",
                                      [ATTUNE_LAYOUT_STRIPED] = "striped"};

const char *ranks_layout_name(attune_layout layout)
{
    return layouts[layout];
}

bool ranks_layout(const char *option, const char *name, attune_layout *layout)
{
    for (uint32_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (!strcmp(name, layouts[i])) {
            *layout = (attune_layout)i;
            return true;
        }
    cli_error("%s is \"%s\", expected balanced, cut, contiguous, zigzag or striped", option, name);
    return false;
}

static bool read_rate(const char *option, const char *text, double unit, double *value)
{
    if (!cli_number(option, text, value))
        return false;
    if (!(*value >= 1e-6 && *value <= 1e9)) {
        cli_error("%s is %s, expected a number from 1e-06 to 1e+09", option, text);
        return false;
    }
    *value *= unit;
    return true;
}

bool ranks_read(const ranks_options *o, const attune_problem *problem, ranks_asked *asked)
{
    int64_t ranks;
    *asked = (ranks_asked){.partition = {.struct_size = sizeof asked->partition}};
    if (!*o->ranks) {
        const char *given = *o->link       ? "--link-gbps"
                            : *o->exchange ? "--link-us"
                            : *o->flops    ? "--tflops"
                            : *o->layout   ? "--layout"
                                           : NULL;
        if (given)
            cli_error("%s requires --ranks", given);
        return !given;
    }
    if (!*o->link) {
        cli_error("--ranks requires --link-gbps, the GB/s of a rank's link each way: 300 for NVLink of a pair of H200, "
                  "50 for a network of 400 Gb/s");
        return false;
    }
    if (problem->direction != ATTUNE_FORWARD) {
        cli_error("--direction is backward, but --ranks predicts a forward call alone");
        return false;
    }
    if (!cli_integer("--ranks", o->ranks, 1, ATTUNE_MAX_RANKS, &ranks) ||
        !read_rate("--link-gbps", o->link, 1e9, &asked->machine.link) ||
        !read_rate("--link-us", *o->exchange ? o->exchange : "10", 1e-6, &asked->machine.exchange) ||
        (*o->flops && !read_rate("--tflops", o->flops, 1e12, &asked->machine.flops)) ||
        (*o->layout && !ranks_layout("--layout", o->layout, &asked->partition.layout)))
        return false;
    asked->partition.ranks = (uint32_t)ranks;
    return true;
}

/* The mask of the problem's expression; every pair without one. */
static attune_status make_mask(attune_instance *instance, const attune_problem *problem, const bindings *names,
                               attune_mask **mask)
{
    attune_expr *every = NULL;
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .q_block = problem->mask_q_block,
                                   .kv_block = problem->mask_kv_block,
                                   .batch = problem->batch,
                                   .heads = problem->heads,
                                   .kv_heads = problem->kv_heads,
                                   .q_len = problem->q_len,
                                   .kv_len = problem->kv_len};
    attune_status status = ATTUNE_OK;
    if (!problem->mask)
        status = attune_expr_create(instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &every);
    if (status == ATTUNE_OK)
        status = attune_mask_create(instance, &desc, problem->mask ? problem->mask : every, names->captures,
                                    names->capture_count, names->parameters, names->parameter_count, mask);
    attune_expr_destroy(every);
    return status;
}

attune_status ranks_predict(attune_instance *instance, const attune_problem *problem, const bindings *names,
                            const ranks_asked *asked, prediction *made, attune_partition_stats *stats)
{
    attune_mask *mask = NULL;
    attune_partition *partition = NULL;
    *stats = (attune_partition_stats){.struct_size = sizeof *stats};
    attune_status status = make_mask(instance, problem, names, &mask);
    if (status == ATTUNE_OK)
        status = attune_partition_create(instance, &asked->partition, mask, &partition);
    if (status == ATTUNE_OK)
        status = attune_partition_stats_get(partition, stats);
    const bool prepared = status == ATTUNE_OK;
    if (prepared)
        status = predict(partition, mask, problem, &asked->machine, made);
    /* The prediction allocates by itself, and leaves no message of the library's. */
    if (status == ATTUNE_OUT_OF_HOST_MEMORY && prepared)
        cli_error("--ranks: out of memory for %u ranks: give fewer", asked->partition.ranks);
    else if (status != ATTUNE_OK)
        cli_error("--ranks: %s", attune_last_error());
    attune_partition_destroy(partition);
    attune_mask_destroy(mask);
    return status;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

void ranks_print(const ranks_asked *asked, const prediction *p, const attune_partition_stats *stats)
{
    (void)printf("ranks       %u, %s, chunks of %" PRId64
                 " rows; %.4g TFLOP/s and %.4g GB/s each, %.4g us an exchange\n",
                 p->ranks, ranks_layout_name(asked->partition.layout), stats->chunk, asked->machine.flops / 1e12,
                 asked->machine.link / 1e9, asked->machine.exchange * 1e6);
    (void)printf("imbalance   %.3f, the most work over the mean; a partial block costs %.2f of a full one\n",
                 stats->imbalance, stats->partial_cost);
    (void)printf("keys        %.3f of a ring's are fetched, %.3f by the rank with the most\n",
                 share(p->received, p->ring), stats->fetched);
    (void)printf("time        %.4g ms, %.4g ms on one device: %.2f times as fast; predicted, without merges, launches "
                 "and contention\n",
                 1e3 * p->seconds, 1e3 * p->one, share(p->one, p->seconds));
    (void)printf("hidden      %.0f %% of the time of exchanges is under own keys\n", 100 * p->hidden);
    (void)printf("            rank   own keys ms   exchange ms   others' ms   total ms   received MB   sent MB\n");
    for (uint32_t i = 0; i < p->ranks; i++) {
        const predict_rank *r = &p->rank[i];
        if (p->ranks <= PRINTED_RANKS || i == p->slowest)
            (void)printf("            %4u%c %12.4g %13.4g %12.4g %10.4g %13.4g %9.4g\n", i, i == p->slowest ? '*' : ' ',
                         1e3 * r->own, 1e3 * r->exchange, 1e3 * r->others, 1e3 * r->seconds, r->received / 1e6,
                         r->sent / 1e6);
    }
}

json_t *ranks_json(const ranks_asked *asked, const prediction *p, const attune_partition_stats *stats)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->ranks; i++) {
        const predict_rank *r = &p->rank[i];
        (void)json_array_append_new(list, json_pack("{sf sf sf sf sf sf si si}", "own_seconds", r->own,
                                                    "exchange_seconds", r->exchange, "others_seconds", r->others,
                                                    "seconds", r->seconds, "received_bytes", r->received, "sent_bytes",
                                                    r->sent, "senders", (int)r->senders, "receivers", (int)r->peers));
    }
    return json_pack("{si ss sI sf sf sf sf sf sf sf sf sf sf so}", "count", (int)p->ranks, "layout",
                     ranks_layout_name(asked->partition.layout), "chunk", (json_int_t)stats->chunk, "flops",
                     asked->machine.flops, "link_bytes_per_second", asked->machine.link, "exchange_seconds",
                     asked->machine.exchange, "imbalance", stats->imbalance, "fetched", stats->fetched, "partial_cost",
                     stats->partial_cost, "seconds", p->seconds, "one_seconds", p->one, "hidden", p->hidden,
                     "received_share", share(p->received, p->ring), "ranks", list);
}

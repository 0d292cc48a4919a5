/* SPDX-License-Identifier: MIT */
/* Draws beside those of draw.c: long rows of few heads, lengths beside the edges of tiles, many query heads of one key
 * head, other tiles, scales and blocks of a mask, expressions of any operands, and values far from 1. */
#include "random/random.h"

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One of the sides is long, the other short. */
static void draw_long(rng *r, int64_t pairs, problem *p)
{
    p->head_dim = 8 * (uint32_t)rng_range(r, 1, 4);
    p->head_dim_v = rng_chance(r, 50) ? p->head_dim : 8 * (uint32_t)rng_range(r, 1, 4);
    p->batch = p->kv_batch = 1;
    p->kv_heads = 1;
    p->heads = rng_range(r, 1, 2);
    const int64_t few = rng_chance(r, 40) ? 1 : rng_range(r, 1, 20), many = least_of(pairs / p->heads / few, 9000);
    const bool keys = rng_chance(r, 60);
    p->q_len = keys ? few : many;
    p->kv_len = keys ? many : few;
}

/* The last tile has one row or key, or all but one. */
static int64_t beside_edge(rng *r, int64_t most)
{
    static const int64_t edges[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 256, 384, 512};
    const int64_t length = edges[rng_range(r, 0, 13)] + rng_range(r, -1, 1);
    return length < most ? length : most < 1 ? 1 : most;
}

static void draw_edges(rng *r, int64_t pairs, problem *p)
{
    p->batch = 1;
    p->kv_batch = 1;
    p->kv_heads = 1;
    p->heads = rng_range(r, 1, 3);
    p->q_len = beside_edge(r, pairs / p->heads / 15);
    p->kv_len = beside_edge(r, pairs / p->heads / p->q_len);
}

static void draw_ratio(rng *r, int64_t pairs, problem *p)
{
    static const int64_t ratios[] = {5, 6, 7, 9, 10, 12, 16, 17, 24, 32};
    p->batch = rng_range(r, 1, 2);
    p->kv_batch = rng_chance(r, 70) ? p->batch : 1;
    p->kv_heads = rng_range(r, 1, 2);
    p->heads = p->kv_heads * ratios[rng_range(r, 0, 9)];
    const int64_t plane = pairs / p->batch / p->heads;
    p->q_len = rng_range(r, 1, plane < 40 ? plane < 1 ? 1 : plane : 40);
    p->kv_len = rng_range(r, 1, plane / p->q_len < 1 ? 1 : plane / p->q_len);
}

static void draw_tiles(rng *r, problem *p)
{
    static const uint32_t tiles[] = {1, 4, 12, 24, 80, 96, 112, 144, 160, 192, 224, 256, 320, 512},
                          warps[] = {3, 6, 12, 16};
    attune_pass_options *o = &p->options;
    uint32_t *const all[] = {&o->block_m, &o->block_n, &o->block_m1, &o->block_n1, &o->block_m2, &o->block_n2};
    const int first = p->direction == ATTUNE_FORWARD ? 0 : 2, count = p->direction == ATTUNE_FORWARD ? 2 : 4;
    for (int i = first; i < first + count; i++)
        if (rng_chance(r, 40))
            *all[i] = tiles[rng_range(r, 0, 13)];
    if (rng_chance(r, 10))
        o->num_warps = warps[rng_range(r, 0, 3)];
    p->has_options = true;
}

void draw_rare_problem(rng *r, const draw_profile *profile, problem *p)
{
    static const uint32_t blocks[] = {16, 48, 176, 208, 240, 256, 512, 1024};
    static const double scales[] = {0x1p-20, 0.001, 5, 30, -7, 0x1p-7};
    const bool cpu = profile->backend == ATTUNE_BACKEND_CPU;
    switch (rng_range(r, 0, 5)) {
    case 0:
        draw_long(r, profile->work, p);
        break;
    case 1:
    case 2:
        draw_edges(r, profile->work, p);
        break;
    case 3:
        draw_ratio(r, profile->work, p);
        break;
    default:
        break;
    }
    if (rng_chance(r, 25) && !profile->kernel)
        draw_tiles(r, p);
    if (rng_chance(r, 20))
        p->scale = scales[rng_range(r, 0, 5)];
    if (rng_chance(r, 20)) {
        p->q_block = blocks[rng_range(r, 0, 7)];
        p->kv_block = blocks[rng_range(r, 0, 7)];
    }
    const bool lengths = p->mask != MASK_SLICE;
    for (int i = 0; i < 2; i++)
        if (p->masks[i].count && rng_chance(r, 60))
            tree_draw_mask(r, i ? "B" : "A", lengths, cpu, true, &p->masks[i]);
    if (p->has_score && rng_chance(r, 60))
        tree_draw_score(r, rng_chance(r, 8), true, &p->score);
}

/* Arrays all of whose last dimension is one element, of which another dimension is not: all strides 0 would be
 * contiguous ones. */
static void broadcast_last(rng *r, const tree *t, layout *l)
{
    for (int i = 0; i < t->symbol_count; i++) {
        const int rank = t->symbols[i].rank;
        if (rank > 1 && !(l[i].broadcast & 1) && rng_chance(r, 25))
            l[i].broadcast |= (uint8_t)(1u << (rank - 1));
    }
}

void draw_rare_call(rng *r, const problem *p, call *c)
{
    if (c->data == DATA_NORMAL && rng_chance(r, 40))
        c->data = rng_chance(r, 50) ? DATA_SMALL : DATA_UNEVEN;
    if (p->direction == ATTUNE_BACKWARD && p->mask && p->dtype != ATTUNE_F64 && rng_chance(r, 20))
        c->data = DATA_NONFINITE;
    broadcast_last(r, &p->score, c->captures);
    broadcast_last(r, &p->masks[0], c->host);
    broadcast_last(r, &p->masks[1], c->host + SYMBOLS);
}

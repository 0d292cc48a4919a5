/* SPDX-License-Identifier: MIT */
/*
 * When to decode, and how far to split. A workgroup of the decode kernel has the rows of a whole group of query heads
 * and one part of the keys; partial results are merged. That is faster if the queries alone do not fill the device, and
 * slower otherwise: a training shape with short queries has its parallelism in batch and heads.
 */
#include "plan/family.h"

#include <stdio.h>

#include "base/error.h"

#define MOST_AUTOMATIC 16 /* queries of one head, including speculative decoding */
#define MOST_ALWAYS    8  /* up to here the forward kernel's tile would be nearly empty */
#define MOST_FORCED    64 /* rows of the largest decode tile */
#define FEWEST_KEYS    ATTUNE__DECODE_FEWEST_KEYS
#define FEWEST_TILES   4 /* of keys of a part, compared with whose time that of the merge is small */
/* Of short parts, on an H200: the merge takes as long as a workgroup reads so much of K and V. */
#define MERGE_BYTES   (112 * 1024)
#define CLUSTER_SAVES (72 * 1024) /* of which a merge in a cluster saves so much */
#define SHORT_KEYS    64 /* the fewest of a short part, whose partial result takes no more memory than its keys */

int64_t attune__decode_most_queries(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return s->batch * s->heads < search->limits->compute_units ? MOST_AUTOMATIC : MOST_ALWAYS;
}

bool attune__decision_is_short(const attune__decision *decision, int64_t q_len, int64_t kv_len)
{
    return q_len <= decision->choice.short_q_len && kv_len >= FEWEST_KEYS;
}

attune_status attune__decode_rule(const attune__search *search, attune__decode *rule, char *why, size_t size)
{
    const attune__shape *s = search->shape;
    long long q_len = s->q_len, kv_len = s->kv_len, tiles = s->batch * s->heads;
    uint32_t units = search->limits->compute_units;
    uint32_t force = search->options.force_use_flex_attention;
    *rule = ATTUNE__DECODE_NO;
    if (s->tokens && force == ATTUNE_OFF)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "FORCE_USE_FLEX_ATTENTION off forces the decode kernel, and over a cache "
                            "one kernel takes any mix of lengths: leave the option out");
    if (s->tokens)
        snprintf(why, size, "no: one kernel takes any mix of prompts and single queries");
    else if (s->direction == ATTUNE_BACKWARD)
        snprintf(why, size, "no: there is no decode kernel in backward");
    else if (force == ATTUNE_ON)
        snprintf(why, size, "no: FORCE_USE_FLEX_ATTENTION is on");
    else if (force == ATTUNE_OFF) {
        int64_t most = s->block_mask && s->mask_q_block < MOST_FORCED ? s->mask_q_block : MOST_FORCED;
        if (s->q_len > most)
            return attune__fail(ATTUNE_UNSUPPORTED,
                                "FORCE_USE_FLEX_ATTENTION off forces the decode kernel, which takes at most %lld "
                                "queries, and q_len is %lld: leave the option out",
                                (long long)most, q_len);
        *rule = ATTUNE__DECODE_FORCED;
        snprintf(why, size, "yes: FORCE_USE_FLEX_ATTENTION is off");
    } else if (q_len > MOST_AUTOMATIC)
        snprintf(why, size, "no: q_len %lld is more than %d", q_len, MOST_AUTOMATIC);
    else if (kv_len < FEWEST_KEYS)
        snprintf(why, size, "no: kv_len %lld is less than %d", kv_len, FEWEST_KEYS);
    else if (q_len <= MOST_ALWAYS) {
        *rule = ATTUNE__DECODE_YES;
        snprintf(why, size, "yes: q_len %lld is at most %d, and kv_len %lld at least %d", q_len, MOST_ALWAYS, kv_len,
                 FEWEST_KEYS);
    } else if (q_len <= attune__decode_most_queries(search)) {
        *rule = ATTUNE__DECODE_YES;
        snprintf(why, size, "yes: q_len %lld is at most %d, and batch x heads, %lld, would leave some of %u units idle",
                 q_len, MOST_AUTOMATIC, tiles, units);
    } else
        snprintf(why, size, "no: q_len %lld is more than %d, and batch x heads, %lld, fills the %u compute units",
                 q_len, MOST_ALWAYS, tiles, units);
    return ATTUNE_OK;
}

uint32_t attune__decode_step(const attune__shape *shape, uint32_t block_n)
{
    return shape->block_mask ? shape->mask_kv_block : block_n;
}

uint32_t attune__decode_steps(const attune__shape *shape, uint32_t block_n)
{
    uint32_t step = attune__decode_step(shape, block_n);
    return (uint32_t)((shape->kv_len + step - 1) / step);
}

uint32_t attune__decode_fewest(const attune__shape *shape, uint32_t block_n, uint32_t most)
{
    const uint32_t of_block = (attune__decode_step(shape, block_n) + block_n - 1) / block_n;
    const uint32_t blocks = attune__decode_steps(shape, block_n), each = most / of_block;
    return each ? (blocks + each - 1) / each : UINT32_MAX;
}

/* The most parts of the keys that are worth their merge, for tiles of n keys. */
static int64_t most_parts(const attune__shape *s, uint32_t n, uint32_t short_parts)
{
    const int64_t parts = (s->kv_len + FEWEST_TILES * n - 1) / (FEWEST_TILES * n);
    if (parts >= short_parts)
        return parts;
    const int64_t least = n < SHORT_KEYS ? SHORT_KEYS : n, most = (s->kv_len + least - 1) / least;
    return most < short_parts ? most : short_parts;
}

static int64_t key_bytes(const attune__shape *s)
{
    return (int64_t)attune__dtype_bytes(s) * (s->head_dim + s->head_dim_v);
}

/* Whether the keys that other workgroups have in `split` parts would take longer than the merge. */
static bool outweighs_merge(const attune__shape *s, int64_t split)
{
    const int64_t others = s->kv_len - (s->kv_len + split - 1) / split;
    return others * key_bytes(s) >= MERGE_BYTES;
}

/* Fewer parts, if a cluster merges them, and each then has at most one tile more. The clusters have all to run at once,
 * each in one GPC: those have 16 units or a few more, so that up to an eighth of the units are in none. */
static int64_t clustered(const attune__search *search, const attune__family *family, uint32_t n, int64_t groups,
                         int64_t split)
{
    const attune__shape *s = search->shape;
    const int64_t most = family->cluster_parts ? family->cluster_parts(search->limits) : 0;
    const int64_t units = search->limits->compute_units, steps = attune__decode_steps(s, n);
    if (!most || split <= most || groups * most > units - units / 8)
        return split;
    const int64_t more = (steps + most - 1) / most - (steps + split - 1) / split;
    return more <= 1 && more * attune__decode_step(s, n) * key_bytes(s) <= CLUSTER_SAVES ? most : split;
}

uint32_t attune__decode_split(const attune__search *search, const attune__found *found, uint32_t occupancy,
                              uint32_t fewest)
{
    const attune__shape *s = search->shape;
    const uint32_t m = found->tile.value[ATTUNE__BLOCK_M], n = found->tile.value[ATTUNE__BLOCK_N];
    int64_t packed = attune__shape_packed_heads(s), rows = s->q_len * packed;
    int64_t groups = s->batch * (s->heads / packed) * ((rows + m - 1) / m);
    int64_t slots = (int64_t)search->limits->compute_units * (occupancy < 2 ? 1 : 2);
    int64_t split = slots / groups, parts = most_parts(s, n, found->family->short_parts);
    int64_t steps = attune__decode_steps(s, n);
    split = split < parts ? split : parts;
    split = split < steps ? split : steps;
    split = split < ATTUNE__MOST_SPLITS ? split : ATTUNE__MOST_SPLITS;
    if (found->family->short_parts && split > 1 && !outweighs_merge(s, split))
        split = 1;
    split = clustered(search, found->family, n, groups, split);
    return split < fewest ? fewest : (uint32_t)split;
}

uint64_t attune__split_size(const attune__shape *shape, uint32_t split, uint32_t element)
{
    if (split <= 1)
        return 0;
    const uint64_t rows = (uint64_t)(shape->batch * shape->heads * shape->q_len);
    return attune__split_ml(rows, split, shape->head_dim_v, element) +
           attune__round_up64(rows * split * 2 * element, 256);
}

/* SPDX-License-Identifier: MIT */
/*
 * Deals chunks to ranks so that each has few runs, the same number of chunks and the same work.
 *
 * The chunks are a necklace, which two cuts divide: of all windows of half of the chunks, over the end to the beginning
 * too, one has about half of the work, because their mean does and neighbours differ by little. Both parts are divided
 * likewise until each has one rank: 2 * (ranks - 1) cuts in all (Goldberg and West, 1985). Of the windows that have
 * about the right work, the one is taken whose parts need the fewest keys of others.
 */
#include "distributed/ranks.h"

#include <string.h>

/* The part of a window's work by which it may be off, times the depth of the division: together about 1 %. */
#define TOLERANCE 100

/* Windows whose keys are counted, in each division. */
#define CANDIDATES 32

/* One division: `count` chunks, in ascending order, of `ranks` ranks from `rank` on. */
typedef struct division {
    attune__deal *deal;
    int64_t *chunks;
    int64_t count, window; /* window: chunks of the ranks below the middle */
    uint32_t rank, ranks, low;
} division;

static int64_t at(const division *d, int64_t i)
{
    return d->chunks[i < d->count ? i : i - d->count];
}

static int64_t count_bits(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int64_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

/* Keys, in chunks, that the chunks from `first` on need and their ranks do not have. */
static int64_t count_keys(const division *d, int64_t first, int64_t count, uint32_t rank, uint32_t ranks)
{
    const attune__deal *deal = d->deal;
    const attune__needs *n = deal->needs;
    int64_t keys = 0;
    memset(n->all, 0, (size_t)n->words * sizeof *n->all);
    for (int64_t i = first; i < first + count; i++) {
        const int64_t chunk = at(d, i);
        const uint64_t *bits = n->bits + chunk * n->words;
        for (int64_t w = n->span[2 * chunk]; w < n->span[2 * chunk + 1]; w++)
            n->all[w] |= bits[w];
    }
    /* Keys go with the rows, or are dealt contiguously. */
    const int64_t from = n->together ? first : attune__equal_share(n->keys, deal->ranks, rank),
                  to = n->together ? first + count : attune__equal_share(n->keys, deal->ranks, (int64_t)rank + ranks);
    for (int64_t i = from; i < to; i++) {
        const int64_t key = n->together ? at(d, i) : i;
        n->all[key / 64] &= ~(UINT64_C(1) << key % 64);
    }
    for (int64_t w = 0; w < n->words; w++)
        keys += count_bits(n->all[w]);
    return keys;
}

static int64_t count_traffic(const division *d, int64_t first)
{
    if (!d->deal->needs)
        return 0;
    return count_keys(d, first, d->window, d->rank, d->low) +
           count_keys(d, first + d->window, d->count - d->window, d->rank + d->low, d->ranks - d->low);
}

static int64_t off_by(int64_t work, int64_t target)
{
    return work < target ? target - work : work - target;
}

/* The window's first chunk. */
static int64_t find_window(const division *d, int depth)
{
    const attune__deal *deal = d->deal;
    int64_t total = 0, begin = 0, least = INT64_MAX, near = 0;
    for (int64_t i = 0; i < d->count; i++) {
        total += deal->work[d->chunks[i]];
        begin += i < d->window ? deal->work[d->chunks[i]] : 0;
    }
    /* Rounded down, without overflow. */
    const int64_t target = total / d->ranks * d->low + total % d->ranks * d->low / d->ranks;
    int64_t limit = target / TOLERANCE / depth;
    for (int pass = 0; pass < 2; pass++) {
        int64_t work = begin;
        near = 0;
        for (int64_t i = 0; i < d->count; i++) {
            const int64_t off = off_by(work, target);
            least = off < least ? off : least;
            near += off <= limit;
            work += deal->work[at(d, i + d->window)] - deal->work[d->chunks[i]];
        }
        if (near)
            break;
        limit = least;
    }
    const int64_t step = near / CANDIDATES + 1;
    int64_t work = begin, seen = 0, best = 0, best_traffic = INT64_MAX, best_off = INT64_MAX;
    for (int64_t i = 0; i < d->count; i++) {
        const int64_t off = off_by(work, target);
        work += deal->work[at(d, i + d->window)] - deal->work[d->chunks[i]];
        if (off > limit || seen++ % step)
            continue;
        const int64_t traffic = count_traffic(d, i);
        if (traffic < best_traffic || (traffic == best_traffic && off < best_off)) {
            best = i;
            best_traffic = traffic;
            best_off = off;
        }
    }
    return best;
}

/* Puts the chunks of the window in front, each part in ascending order. */
static void arrange(const division *d, int64_t first)
{
    int64_t *to = d->deal->chunks, put = 0;
    const int64_t over = first + d->window > d->count ? first + d->window - d->count : 0;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < d->count; i++) {
            const bool inside = i < over || (i >= first && i < first + d->window);
            if (inside == !part)
                to[put++] = d->chunks[i];
        }
    memcpy(d->chunks, to, (size_t)d->count * sizeof *to);
}

static void divide(attune__deal *deal, int64_t *chunks, int64_t count, uint32_t rank, uint32_t ranks, int depth)
{
    if (ranks == 1 || !count) {
        for (int64_t i = 0; i < count; i++)
            deal->rank[chunks[i]] = rank;
        return;
    }
    division d = {deal, chunks, count, 0, rank, ranks, ranks / 2};
    d.window = attune__equal_share(count, ranks, d.low);
    arrange(&d, find_window(&d, depth));
    divide(deal, chunks, d.window, rank, d.low, depth);
    divide(deal, chunks + d.window, count - d.window, rank + d.low, ranks - d.low, depth);
}

void attune__deal_split(attune__deal *deal)
{
    int depth = 1;
    while (deal->ranks >> depth)
        depth++;
    for (int64_t i = 0; i < deal->count; i++)
        deal->order[i] = i;
    divide(deal, deal->order, deal->count, 0, deal->ranks, depth);
}

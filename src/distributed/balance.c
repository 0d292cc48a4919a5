/* SPDX-License-Identifier: MIT */
/* Deals chunks to ranks. All arithmetic is on integers: every rank computes the same. */
#include "distributed/ranks.h"

#include <stdlib.h>
#include <string.h>

int64_t attune__equal_share(int64_t count, int64_t parts, int64_t part)
{
    return count / parts * part + (part < count % parts ? part : count % parts);
}

void attune__deal_contiguous(attune__deal *deal)
{
    for (uint32_t r = 0; r < deal->ranks; r++)
        for (int64_t i = attune__equal_share(deal->count, deal->ranks, r);
             i < attune__equal_share(deal->count, deal->ranks, (int64_t)r + 1); i++)
            deal->rank[i] = r;
}

void attune__deal_zigzag(attune__deal *deal)
{
    const int64_t parts = 2 * (int64_t)deal->ranks;
    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = attune__equal_share(deal->count, parts, p); i < attune__equal_share(deal->count, parts, p + 1);
             i++)
            deal->rank[i] = (uint32_t)(p < deal->ranks ? p : parts - 1 - p);
}

void attune__deal_striped(attune__deal *deal)
{
    for (int64_t i = 0; i < deal->count; i++)
        deal->rank[i] = (uint32_t)(i % deal->ranks);
}

/* Fills ranks one after another up to a load, with a chunk left for each that follows; false if chunks are left. */
static bool cut_at(attune__deal *deal, int64_t most, int64_t load)
{
    int64_t next = 0;
    for (uint32_t r = 0; r < deal->ranks; r++) {
        const int64_t first = next, spare = deal->count - (deal->ranks - 1 - r);
        const int64_t end = spare <= first ? first + 1 : spare < first + most ? spare : first + most;
        for (int64_t sum = 0; next < deal->count && next < end && deal->work[next] <= load - sum;) {
            sum += deal->work[next];
            deal->rank[next++] = r;
        }
    }
    return next == deal->count;
}

void attune__deal_cut(attune__deal *deal, int64_t most)
{
    int64_t low = 0, high = 0;
    for (int64_t i = 0; i < deal->count; i++)
        high += deal->work[i];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (cut_at(deal, most, middle))
            high = middle;
        else
            low = middle + 1;
    }
    cut_at(deal, most, high);
}

/* Lists the chunks of each rank in ascending order, and adds up their work. */
static void list_chunks(attune__deal *deal)
{
    memset(deal->first, 0, ((size_t)deal->ranks + 1) * sizeof *deal->first);
    memset(deal->load, 0, deal->ranks * sizeof *deal->load);
    for (int64_t i = 0; i < deal->count; i++) {
        deal->first[deal->rank[i] + 1]++;
        deal->load[deal->rank[i]] += deal->work[i];
    }
    for (uint32_t r = 0; r < deal->ranks; r++)
        deal->first[r + 1] += deal->first[r];
    /* first[r] is the cursor of rank r, and thereby becomes first[r + 1]. */
    for (int64_t i = 0; i < deal->count; i++)
        deal->chunks[deal->first[deal->rank[i]]++] = i;
    memmove(deal->first + 1, deal->first, deal->ranks * sizeof *deal->first);
    deal->first[0] = 0;
}

typedef struct swap {
    int64_t load, distance; /* the larger load of the two ranks afterwards; 0 if within the limit */
    int64_t *a, *b;
} swap;

static int64_t distance_of(int64_t a, int64_t b)
{
    return a < b ? b - a : a - b;
}

static int compare_spots(const void *a, const void *b)
{
    const attune__spot *x = a, *y = b;
    return x->work != y->work ? (x->work > y->work) - (x->work < y->work)
                              : (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* Sorts the chunks of a rank by work, then position; the first of equal work has the end of these. Returns their
 * number. */
static int64_t list_spots(const attune__deal *deal, uint32_t rank)
{
    attune__spot *spots = deal->spots;
    int64_t count = 0;
    for (int64_t *j = deal->chunks + deal->first[rank]; j < deal->chunks + deal->first[rank + 1]; j++)
        spots[count++] = (attune__spot){deal->work[*j], *j, j, 0};
    qsort(spots, (size_t)count, sizeof *spots, compare_spots);
    for (int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && spots[end].work == spots[i].work;)
            end++;
        spots[i].end = end;
    }
    return count;
}

/* The chunk of equal work that is closest to one; of two the first on the rank's list. */
static const attune__spot *find_closest(const attune__spot *spots, int64_t from, int64_t end, int64_t chunk)
{
    const int64_t first = from;
    for (int64_t to = end; from < to;) {
        const int64_t middle = from + (to - from) / 2;
        if (spots[middle].chunk < chunk)
            from = middle + 1;
        else
            to = middle;
    }
    if (from == first || from == end)
        return &spots[from == first ? from : from - 1];
    const attune__spot *below = &spots[from - 1], *above = &spots[from];
    const int64_t down = chunk - below->chunk, up = above->chunk - chunk;
    return down < up || (down == up && below->at < above->at) ? below : above;
}

/* The best swap of a chunk of rank a, whose load is the largest, for one of rank b: of those that leave both within the
 * limit, the one between the closest chunks; otherwise the one that leaves the smallest load. */
static void find_swap(const attune__deal *deal, uint32_t a, uint32_t b, int64_t limit, swap *best)
{
    const attune__spot *spots = deal->spots;
    const int64_t count = list_spots(deal, b);
    for (int64_t *i = deal->chunks + deal->first[a]; i < deal->chunks + deal->first[a + 1]; i++)
        for (int64_t j = 0; j < count; j = spots[j].end) {
            const int64_t moved = deal->work[*i] - spots[j].work;
            const int64_t load_a = deal->load[a] - moved, load_b = deal->load[b] + moved;
            const int64_t larger = load_a > load_b ? load_a : load_b, load = larger <= limit ? 0 : larger;
            if (load > best->load)
                continue;
            const attune__spot *to = find_closest(spots, j, spots[j].end, *i);
            const int64_t distance = distance_of(*i, to->chunk);
            const bool same = load == best->load && distance == best->distance && best->a == i;
            if (load < best->load || distance < best->distance || (same && to->at < best->b))
                *best = (swap){load, distance, i, to->at};
        }
}

bool attune__deal_swap(attune__deal *deal)
{
    const uint32_t ranks = deal->ranks;
    int64_t total = 0;
    list_chunks(deal);
    for (uint32_t r = 0; r < ranks; r++)
        total += deal->load[r];
    /* Rounded down, without overflow. */
    const int64_t mean = ranks ? total / ranks : 0, limit = mean + mean / 50;
    for (int64_t left = 4 * deal->count; left > 0; left--) {
        uint32_t a = 0, least = 0;
        for (uint32_t r = 1; r < ranks; r++) {
            if (deal->load[r] > deal->load[a])
                a = r;
            if (deal->load[r] < deal->load[least])
                least = r;
        }
        if (deal->load[a] <= limit)
            return true;
        swap best = {.load = deal->load[a], .distance = -1};
        find_swap(deal, a, least, limit, &best);
        for (uint32_t b = 0; b < ranks && !best.a; b++)
            if (deal->load[b] < deal->load[a])
                find_swap(deal, a, b, limit, &best);
        if (!best.a)
            return false;
        const uint32_t b = deal->rank[*best.b];
        const int64_t i = *best.a, j = *best.b;
        deal->load[a] += deal->work[j] - deal->work[i];
        deal->load[b] += deal->work[i] - deal->work[j];
        deal->rank[i] = b;
        deal->rank[j] = a;
        *best.a = j;
        *best.b = i;
    }
    return false;
}

/* SPDX-License-Identifier: MIT */
/* Partitions of a mask's rows and keys over ranks, and the keys that each rank needs of others. */
#include "distributed/ranks.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/desc.h"
#include "base/error.h"
#include "mask/rects.h"

/* The multiply-adds of a pair in q k^T and p v, with head_dim 128, that the instructions of a mask are related to. */
#define PAIR_INSTRUCTIONS 256

/* Automatic chunks: how many a rank has, where the sequence is long enough. */
#define CHUNKS_OF_A_RANK 64

/* The needs of more chunks are not counted. */
#define CHUNKS_WITH_NEEDS 8192

/* ------------------------------------------------------------------------------------------------------------- runs */

static bool runs_init(const attune_allocator *allocator, attune__run_lists *lists, uint32_t ranks)
{
    lists->offsets = attune__alloc(allocator, (size_t)ranks + 1, sizeof *lists->offsets);
    return lists->offsets != NULL;
}

static void runs_finish(const attune_allocator *allocator, attune__run_lists *lists)
{
    attune__free(allocator, lists->offsets);
    attune__free(allocator, lists->items);
}

/* Begins the list of rank r, after those of all ranks below it. */
static void runs_begin(attune__run_lists *lists, uint32_t r)
{
    lists->offsets[r] = lists->offsets[r + 1] = lists->count;
}

/* Appends positions [start, end) of a rank to the list of rank r, whose last run they extend if they follow it. */
static bool runs_add(const attune_allocator *allocator, attune__run_lists *lists, uint32_t r, int64_t start,
                     int64_t end, uint32_t rank)
{
    attune_run *last = lists->count > lists->offsets[r] ? &lists->items[lists->count - 1] : NULL;
    if (last && last->rank == rank && last->start + last->count == start) {
        last->count += end - start;
        return true;
    }
    if (lists->count == lists->capacity && !attune__grow(allocator, (void **)&lists->items, &lists->capacity,
                                                         lists->count, lists->count + 1, sizeof *lists->items))
        return false;
    lists->items[lists->count++] = (attune_run){start, end - start, rank};
    lists->offsets[r + 1] = lists->count;
    return true;
}

static bool runs_of_deal(const attune_allocator *allocator, attune__run_lists *lists, const attune__deal *deal,
                         int64_t chunk, int64_t length)
{
    lists->count = 0;
    for (uint32_t r = 0; r < deal->ranks; r++) {
        runs_begin(lists, r);
        for (int64_t i = 0; i < deal->count; i++)
            if (deal->rank[i] == r &&
                !runs_add(allocator, lists, r, i * chunk, attune__min64((i + 1) * chunk, length), r))
                return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- work */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t lowest_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static double estimate_partial_cost(const attune_mask *mask)
{
    if (!mask->expr)
        return 1;
    const uint32_t weight = attune__expr_weight(mask->expr, mask->expr->node_count - 1, ATTUNE__FORM_EXACT, NULL);
    return 1 + (double)weight / PAIR_INSTRUCTIONS;
}

/* The work of each block row, over all batches and heads as stored. */
static void row_work(const attune_mask *mask, double partial_cost, int64_t *work)
{
    const int64_t partial = llrint(partial_cost * ATTUNE__FULL_WORK);
    for (int64_t r = 0; r < mask->q_blocks; r++)
        work[r] = 0;
    for (int64_t plane = 0; plane < mask->stored_batch * mask->stored_heads; plane++)
        for (int64_t r = 0; r < mask->q_blocks; r++) {
            const int64_t row = plane * mask->q_blocks + r;
            work[r] += mask->full_kv.num_blocks[row] * (int64_t)ATTUNE__FULL_WORK + mask->kv.num_blocks[row] * partial;
        }
}

/* ------------------------------------------------------------------------------------------------------------- deal */

typedef struct maker {
    attune_partition *made;
    attune_partition_desc desc; /* with its defaults, except chunk */
    const attune_mask *mask;
    int64_t unit; /* rows: chunks are multiples of it */
    int64_t *row_work;
    int64_t *chunk_work;
    attune__deal deal;
} maker;

/* Sets the chunk, and the work of each. */
static void cut_chunks(maker *m, int64_t chunk)
{
    const int64_t blocks = chunk / m->mask->q_block;
    m->made->chunk = chunk;
    m->deal.count = ceil_div(m->mask->q_len, chunk);
    for (int64_t i = 0; i < m->deal.count; i++) {
        m->chunk_work[i] = 0;
        for (int64_t r = i * blocks; r < attune__min64((i + 1) * blocks, m->mask->q_blocks); r++)
            m->chunk_work[i] += m->row_work[r];
    }
}

static int64_t automatic_chunk(const maker *m)
{
    const int64_t all = ceil_div(m->mask->q_len, m->unit);
    int64_t units = 1;
    while (all / (2 * units) >= (int64_t)CHUNKS_OF_A_RANK * m->desc.ranks)
        units *= 2;
    return m->unit * units;
}

/* Deals keys, whose work is not known. */
static void deal_keys(attune_layout layout, attune__deal *deal)
{
    switch (layout) {
    case ATTUNE_LAYOUT_ZIGZAG:
        attune__deal_zigzag(deal);
        break;
    case ATTUNE_LAYOUT_STRIPED:
        attune__deal_striped(deal);
        break;
    case ATTUNE_LAYOUT_BALANCED:
    case ATTUNE_LAYOUT_CUT:
    case ATTUNE_LAYOUT_CONTIGUOUS:
        attune__deal_contiguous(deal);
        break;
    }
}

static void set_bits(uint64_t *bits, uint32_t first, uint32_t last)
{
    const uint64_t from = ~UINT64_C(0) << first % 64, to = ~UINT64_C(0) >> (63 - last % 64);
    if (first / 64 == last / 64) {
        bits[first / 64] |= from & to;
        return;
    }
    bits[first / 64] |= from;
    for (uint32_t w = first / 64 + 1; w < last / 64; w++)
        bits[w] = ~UINT64_C(0);
    bits[last / 64] |= to;
}

/* Entries that are looked at together: most lists have long runs of adjacent blocks. */
#define ADJACENT 32

/* Adds the blocks of a list, `blocks` to a bit. */
static inline void add_list(const attune__block_list *list, int64_t row, uint32_t blocks, uint64_t *bits)
{
    const int64_t end = list->offsets[row + 1];
    const int32_t *indices = list->indices;
    for (int64_t i = list->offsets[row]; i < end;) {
        const uint32_t first = (uint32_t)indices[i], bit = first / blocks, next = (bit + 1) * blocks;
        int64_t last = i;
        if ((uint32_t)indices[end - 1] - first == (uint32_t)(end - 1 - i))
            last = end - 1;
        else if (i + ADJACENT <= end && (uint32_t)indices[i + ADJACENT - 1] - first == ADJACENT - 1)
            last = i + ADJACENT - 1;
        if (last > i)
            set_bits(bits, bit, (uint32_t)indices[last] / blocks);
        else
            bits[bit / 64] |= UINT64_C(1) << bit % 64;
        for (i = last + 1; i < end && (uint32_t)indices[i] < next;)
            i++;
    }
}

/* Finds the keys that chunks need. */
static attune_status make_needs(const maker *m, attune__needs *needs)
{
    const attune_allocator *allocator = &m->made->allocator;
    const attune_mask *mask = m->mask;
    const int64_t blocks = m->made->chunk / mask->q_block, keys = ceil_div(mask->kv_len, m->made->chunk);
    const uint32_t kv_blocks = (uint32_t)(m->made->chunk / mask->kv_block);
    *needs = (attune__needs){.keys = keys, .words = ceil_div(keys, 64), .together = mask->q_len == mask->kv_len};
    needs->bits = attune__alloc(allocator, (size_t)(m->deal.count * needs->words), sizeof *needs->bits);
    needs->span = attune__alloc(allocator, (size_t)m->deal.count, 2 * sizeof *needs->span);
    needs->all = attune__alloc_raw(allocator, (size_t)needs->words, sizeof *needs->all);
    if (!needs->bits || !needs->span || !needs->all)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    for (int64_t plane = 0; plane < mask->stored_batch * mask->stored_heads; plane++)
        for (int64_t r = 0; r < mask->q_blocks; r++) {
            uint64_t *bits = needs->bits + r / blocks * needs->words;
            add_list(&mask->kv, plane * mask->q_blocks + r, kv_blocks, bits);
            add_list(&mask->full_kv, plane * mask->q_blocks + r, kv_blocks, bits);
        }
    for (int64_t i = 0; i < m->deal.count; i++) {
        const uint64_t *bits = needs->bits + i * needs->words;
        int64_t first = 0, end = needs->words;
        while (first < end && !bits[first])
            first++;
        while (end > first && !bits[end - 1])
            end--;
        needs->span[2 * i] = first;
        needs->span[2 * i + 1] = end;
    }
    return ATTUNE_OK;
}

static attune_status deal_balanced(maker *m)
{
    const attune_allocator *allocator = &m->made->allocator;
    const int64_t longest = m->mask->q_len > m->mask->kv_len ? m->mask->q_len : m->mask->kv_len;
    attune__needs needs = {.keys = 0};
    attune_status status = ATTUNE_OK;
    if (ceil_div(longest, m->made->chunk) <= CHUNKS_WITH_NEEDS) {
        status = make_needs(m, &needs);
        m->deal.needs = &needs;
    }
    if (status == ATTUNE_OK)
        attune__deal_split(&m->deal);
    m->deal.needs = NULL;
    attune__free(allocator, needs.bits);
    attune__free(allocator, needs.span);
    attune__free(allocator, needs.all);
    return status;
}

static attune_status deal_rows(maker *m)
{
    attune__deal *deal = &m->deal;
    int64_t chunk = m->desc.chunk ? m->desc.chunk : automatic_chunk(m);
    if (m->desc.layout == ATTUNE_LAYOUT_CUT) {
        cut_chunks(m, m->desc.chunk ? chunk : m->unit);
        const double mean = (double)deal->count / deal->ranks;
        int64_t most = (int64_t)(mean * m->desc.most_rows);
        if (most < ceil_div(deal->count, deal->ranks))
            most = ceil_div(deal->count, deal->ranks);
        attune__deal_cut(deal, most);
        return ATTUNE_OK;
    }
    if (m->desc.layout != ATTUNE_LAYOUT_BALANCED) {
        cut_chunks(m, chunk);
        deal_keys(m->desc.layout, deal);
        return ATTUNE_OK;
    }
    for (;; chunk = chunk / 2 / m->unit * m->unit) {
        cut_chunks(m, chunk);
        ATTUNE__TRY(deal_balanced(m));
        if (attune__deal_swap(deal) || m->desc.chunk || chunk / 2 < m->unit)
            return ATTUNE_OK;
    }
}

static attune_status deal_all(maker *m)
{
    const attune_allocator *allocator = &m->made->allocator;
    attune__deal *deal = &m->deal;
    ATTUNE__TRY(deal_rows(m));
    for (int64_t i = 0; i < deal->count; i++)
        m->made->work[deal->rank[i]] += m->chunk_work[i];
    if (!runs_of_deal(allocator, &m->made->rows, deal, m->made->chunk, m->mask->q_len))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (m->mask->kv_len != m->mask->q_len) {
        deal->count = ceil_div(m->mask->kv_len, m->made->chunk);
        deal_keys(m->desc.layout, deal);
    }
    if (!runs_of_deal(allocator, &m->made->keys, deal, m->made->chunk, m->mask->kv_len))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ needs */

size_t attune__needed_words(const attune_mask *mask)
{
    return (size_t)ceil_div(mask->kv_blocks, 64);
}

void attune__find_needed(const attune_mask *mask, attune__run_view rows, uint64_t *needed)
{
    memset(needed, 0, attune__needed_words(mask) * sizeof *needed);
    for (size_t i = 0; i < rows.count; i++) {
        const attune_run *run = &rows.items[i];
        const int64_t first = run->start / mask->q_block, end = ceil_div(run->start + run->count, mask->q_block);
        for (int64_t plane = 0; plane < mask->stored_batch * mask->stored_heads; plane++)
            for (int64_t row = first; row < end; row++) {
                add_list(&mask->kv, plane * mask->q_blocks + row, 1, needed);
                add_list(&mask->full_kv, plane * mask->q_blocks + row, 1, needed);
            }
    }
}

/* Lists the keys of other ranks in blocks that rank r's rows compute, whose bits are set in `needed`. */
static bool find_needs(maker *m, uint32_t r, uint64_t *needed)
{
    attune_partition *p = m->made;
    const attune_mask *mask = m->mask;
    attune__find_needed(mask, attune__runs_of(&p->rows, r), needed);
    runs_begin(&p->needs, r);
    const int64_t blocks = p->chunk / mask->kv_block;
    for (int64_t c = 0; c < mask->kv_blocks; c++) {
        const uint32_t rank = m->deal.rank[c / blocks];
        if (needed[c / 64] >> c % 64 & 1 && rank != r &&
            !runs_add(&p->allocator, &p->needs, r, c * mask->kv_block,
                      attune__min64((c + 1) * mask->kv_block, mask->kv_len), rank))
            return false;
    }
    /* A call has at least one key. */
    const bool supplied = p->rows.offsets[r] == p->rows.offsets[r + 1] || p->keys.offsets[r] < p->keys.offsets[r + 1];
    return supplied || p->needs.offsets[r] < p->needs.count ||
           runs_add(&p->allocator, &p->needs, r, 0, attune__min64(mask->kv_block, mask->kv_len), m->deal.rank[0]);
}

static attune_status find_all_needs(maker *m)
{
    const attune_allocator *allocator = &m->made->allocator;
    uint64_t *needed = attune__alloc_raw(allocator, attune__needed_words(m->mask), sizeof *needed);
    if (!needed)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    bool done = true;
    for (uint32_t r = 0; done && r < m->desc.ranks; r++)
        done = find_needs(m, r, needed);
    attune__free(allocator, needed);
    return done ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY;
}

static void hash_runs(attune__hash *hash, const attune__run_lists *lists, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        attune__hash_add(hash, lists->offsets[r + 1] - lists->offsets[r]);
        for (size_t i = lists->offsets[r]; i < lists->offsets[r + 1]; i++) {
            attune__hash_add(hash, (uint64_t)lists->items[i].start);
            attune__hash_add(hash, (uint64_t)lists->items[i].count);
            attune__hash_add(hash, lists->items[i].rank);
        }
    }
}

static attune__hash hash_of(const attune_partition *p, const attune_mask *mask)
{
    attune__hash hash = attune__hash_begin();
    const uint64_t words[] = {p->ranks,
                              p->q_block,
                              p->kv_block,
                              (uint64_t)p->q_len,
                              (uint64_t)p->kv_len,
                              mask->expr ? mask->expr->hash.lane[0] : 0,
                              mask->expr ? mask->expr->hash.lane[1] : 0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        attune__hash_add(&hash, words[i]);
    hash_runs(&hash, &p->rows, p->ranks);
    hash_runs(&hash, &p->keys, p->ranks);
    hash_runs(&hash, &p->needs, p->ranks);
    for (uint32_t r = 0; r < p->ranks; r++)
        attune__hash_add(&hash, (uint64_t)p->work[r]);
    return hash;
}

/* ----------------------------------------------------------------------------------------------------------- public */

static attune_status read_desc(const attune_partition_desc *given, const attune_mask *mask, int64_t unit,
                               attune_partition_desc *desc)
{
    ATTUNE__TRY(attune__desc_read(desc, sizeof *desc, given, sizeof *desc, "desc"));
    if (!desc->ranks || desc->ranks > ATTUNE_MAX_RANKS)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.ranks is %u, expected 1 to %d", desc->ranks,
                            ATTUNE_MAX_RANKS);
    if ((unsigned)desc->layout > ATTUNE_LAYOUT_STRIPED)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.layout is %d, which is no attune_layout", (int)desc->layout);
    if (desc->chunk < 0 || desc->chunk > INT32_MAX || desc->chunk % mask->q_block || desc->chunk % mask->kv_block)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.chunk is %lld, expected a multiple of %lld below 2^31, for the mask's blocks of %u x "
                            "%u, or 0",
                            (long long)desc->chunk, (long long)unit, mask->q_block, mask->kv_block);
    if (desc->partial_cost != 0 && !(desc->partial_cost >= 0.01 && desc->partial_cost <= 100))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.partial_cost is %g, expected 0.01 to 100, or 0",
                            desc->partial_cost);
    if (desc->most_rows != 0 && !(desc->most_rows >= 1))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.most_rows is %g, expected at least 1, or 0 for 4",
                            desc->most_rows);
    if (desc->most_rows != 0 && desc->layout != ATTUNE_LAYOUT_CUT)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.most_rows is %g, but only ATTUNE_LAYOUT_CUT has unequal rows: leave it 0",
                            desc->most_rows);
    if (desc->most_rows == 0)
        desc->most_rows = 4;
    /* More is no limit. */
    if (desc->most_rows > desc->ranks)
        desc->most_rows = desc->ranks;
    if (desc->partial_cost == 0)
        desc->partial_cost = estimate_partial_cost(mask);
    return ATTUNE_OK;
}

static attune_status make(maker *m)
{
    const attune_allocator *allocator = &m->made->allocator;
    const int64_t longest = m->mask->q_len > m->mask->kv_len ? m->mask->q_len : m->mask->kv_len;
    const size_t chunks = (size_t)ceil_div(longest, m->unit), ranks = m->desc.ranks;
    m->made->work = attune__alloc(allocator, ranks, sizeof *m->made->work);
    m->row_work = attune__alloc_raw(allocator, (size_t)m->mask->q_blocks, sizeof *m->row_work);
    m->chunk_work = attune__alloc_raw(allocator, chunks, sizeof *m->chunk_work);
    m->deal = (attune__deal){
        .ranks = m->desc.ranks,
        .work = m->chunk_work,
        .rank = attune__alloc_raw(allocator, chunks, sizeof *m->deal.rank),
        .load = attune__alloc_raw(allocator, ranks, sizeof *m->deal.load),
        .first = attune__alloc_raw(allocator, ranks + 1, sizeof *m->deal.first),
        .chunks = attune__alloc_raw(allocator, chunks, sizeof *m->deal.chunks),
        .spots = attune__alloc_raw(allocator, chunks, sizeof *m->deal.spots),
        .order = attune__alloc_raw(allocator, chunks, sizeof *m->deal.order),
    };
    if (!m->made->work || !m->row_work || !m->chunk_work || !m->deal.rank || !m->deal.load || !m->deal.first ||
        !m->deal.chunks || !m->deal.spots || !m->deal.order || !runs_init(allocator, &m->made->rows, m->desc.ranks) ||
        !runs_init(allocator, &m->made->keys, m->desc.ranks) || !runs_init(allocator, &m->made->needs, m->desc.ranks))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    row_work(m->mask, m->desc.partial_cost, m->row_work);
    ATTUNE__TRY(deal_all(m));
    ATTUNE__TRY(find_all_needs(m));
    m->made->hash = hash_of(m->made, m->mask);
    return ATTUNE_OK;
}

attune_status attune_partition_create(attune_instance *instance, const attune_partition_desc *desc,
                                      const attune_mask *mask, attune_partition **partition)
{
    if (!partition)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "partition is NULL");
    *partition = NULL;
    if (!instance)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "instance is NULL");
    if (!mask)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "mask is NULL: for every pair, pass a mask of the expression \"true\"");
    if (mask->from_tensor)
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "mask is computed from a tensor on a device: its lists cannot be dealt to ranks, make one of an "
            "expression, of lists or of an array in host memory");
    maker m = {.mask = mask, .unit = lowest_multiple(mask->q_block, mask->kv_block)};
    ATTUNE__TRY(read_desc(desc, mask, m.unit, &m.desc));
    const attune_allocator allocator = instance->host.allocator;
    m.made = attune__alloc(&allocator, 1, sizeof *m.made);
    if (!m.made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    *m.made = (attune_partition){
        .allocator = allocator,
        .ranks = m.desc.ranks,
        .q_block = mask->q_block,
        .kv_block = mask->kv_block,
        .q_len = mask->q_len,
        .kv_len = mask->kv_len,
        .partial_cost = m.desc.partial_cost,
    };
    const attune_status status = make(&m);
    attune__free(&allocator, m.row_work);
    attune__free(&allocator, m.chunk_work);
    attune__free(&allocator, m.deal.rank);
    attune__free(&allocator, m.deal.load);
    attune__free(&allocator, m.deal.first);
    attune__free(&allocator, m.deal.chunks);
    attune__free(&allocator, m.deal.spots);
    attune__free(&allocator, m.deal.order);
    if (status == ATTUNE_OK)
        *partition = m.made;
    else
        attune_partition_destroy(m.made);
    return status;
}

void attune_partition_destroy(attune_partition *partition)
{
    if (!partition)
        return;
    const attune_allocator allocator = partition->allocator;
    runs_finish(&allocator, &partition->rows);
    runs_finish(&allocator, &partition->keys);
    runs_finish(&allocator, &partition->needs);
    attune__free(&allocator, partition->work);
    attune__free(&allocator, partition);
}

attune_status attune_partition_runs(const attune_partition *partition, uint32_t rank, attune_run_kind kind,
                                    const attune_run **runs, uint32_t *count)
{
    if (!partition || !runs || !count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is NULL", !partition ? "partition" : !runs ? "runs" : "count");
    if (rank >= partition->ranks)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "rank is %u, expected 0 to %u", rank, partition->ranks - 1);
    const attune__run_lists *lists = kind == ATTUNE_RUN_ROWS    ? &partition->rows
                                     : kind == ATTUNE_RUN_KEYS  ? &partition->keys
                                     : kind == ATTUNE_RUN_NEEDS ? &partition->needs
                                                                : NULL;
    if (!lists)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "kind is %d, which is no attune_run_kind", (int)kind);
    *runs = lists->items ? lists->items + lists->offsets[rank] : NULL;
    *count = (uint32_t)(lists->offsets[rank + 1] - lists->offsets[rank]);
    return ATTUNE_OK;
}

attune_status attune_partition_stats_get(const attune_partition *partition, attune_partition_stats *stats)
{
    if (!partition)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "partition is NULL");
    attune_partition_stats s = {
        .ranks = partition->ranks, .chunk = partition->chunk, .partial_cost = partition->partial_cost};
    int64_t total = 0, most = 0;
    for (uint32_t r = 0; r < partition->ranks; r++) {
        const int64_t rows = attune__runs_length(attune__runs_of(&partition->rows, r)),
                      keys = attune__runs_length(attune__runs_of(&partition->keys, r));
        const int64_t fetched = attune__runs_length(attune__runs_of(&partition->needs, r)),
                      others = partition->kv_len - keys;
        total += partition->work[r];
        most = partition->work[r] > most ? partition->work[r] : most;
        s.most_rows = rows > s.most_rows ? rows : s.most_rows;
        s.most_keys = keys > s.most_keys ? keys : s.most_keys;
        s.most_fetched_keys = fetched > s.most_fetched_keys ? fetched : s.most_fetched_keys;
        s.fetched_keys += fetched;
        if (others && (double)fetched / (double)others > s.fetched)
            s.fetched = (double)fetched / (double)others;
    }
    s.imbalance = total ? (double)most * partition->ranks / (double)total : 1;
    return attune__desc_write(stats, &s, sizeof s, sizeof s, "stats");
}

double attune_partition_work(const attune_partition *partition, uint32_t rank)
{
    return partition && rank < partition->ranks ? (double)partition->work[rank] / ATTUNE__FULL_WORK : 0;
}

void attune_partition_hash(const attune_partition *partition, uint64_t hash[2])
{
    if (!hash)
        return;
    hash[0] = partition ? partition->hash.lane[0] : 0;
    hash[1] = partition ? partition->hash.lane[1] : 0;
}

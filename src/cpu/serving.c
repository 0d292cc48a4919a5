/* SPDX-License-Identifier: MIT */
/* The sequences of a batch and the pages of their keys. What the caller's integers hold is checked here, where they are
 * read: this device is the host. */
#include "cpu/cpu.h"

#include <string.h>

#include "base/hash.h"

static int64_t integer_at(const attune_tensor *tensor, int64_t i)
{
    int32_t value;
    memcpy(&value, attune__cpu_element(tensor, sizeof value, i), sizeof value);
    return value;
}

/* The first entry of a sequence in the block table, and their number; 0 if pages_start is invalid. */
static int64_t table_row(const attune__serving *serving, int64_t b, int64_t *entries)
{
    if (!serving->pages_start.buffer) {
        *entries = serving->pages.size[1];
        return b * serving->pages.stride[0];
    }
    const int64_t first = integer_at(&serving->pages_start, b), end = integer_at(&serving->pages_start, b + 1);
    const bool valid = first >= 0 && first <= end && end <= serving->pages.size[0];
    *entries = valid ? end - first : 0;
    return valid ? first * serving->pages.stride[0] : 0;
}

/* The most keys that a sequence can have. */
static int64_t capacity(const attune__forward *call, int64_t b)
{
    const int64_t page = call->k.size[2], most = call->kv_len;
    int64_t entries = 1;
    if (call->serving->pages.buffer)
        table_row(call->serving, b, &entries);
    return entries > most / page ? most : entries * page;
}

attune__cpu_sequence attune__cpu_sequence_at(const attune__forward *call, int64_t b)
{
    const attune__serving *serving = call->serving;
    attune__cpu_sequence s = {.batch = b, .row = b * call->q_len, .q_len = call->q_len};
    if (serving->packed) {
        const int64_t first = integer_at(&serving->q_start, b), end = integer_at(&serving->q_start, b + 1);
        const bool valid = first >= 0 && first <= end && end <= call->q.size[2] && end - first <= call->q_len;
        s.batch = 0;
        s.row = s.row0 = valid ? first : 0;
        s.q_len = valid ? end - first : 0;
    }
    if (serving->count.buffer && b >= integer_at(&serving->count, 0))
        s.q_len = 0;
    const int64_t kv_len = integer_at(&serving->kv_len, b);
    s.kv_len = kv_len >= 0 && kv_len <= capacity(call, b) ? kv_len : 0;
    s.position = s.kv_len - s.q_len;
    if (serving->kv_first.buffer) {
        const int64_t first = integer_at(&serving->kv_first, b);
        s.kv_first = first < 0 ? 0 : first < s.kv_len ? first : s.kv_len;
    }
    return s;
}

bool attune__cpu_in_order(const attune__forward *call)
{
    const attune__serving *serving = call->serving;
    bool ordered = true;
    for (int64_t b = 0; serving->packed && b < call->batch; b++)
        ordered &= integer_at(&serving->q_start, b) <= integer_at(&serving->q_start, b + 1);
    return ordered;
}

int64_t attune__cpu_shared(const attune__forward *call, int64_t b)
{
    const int64_t shared = call->serving->shared.buffer ? integer_at(&call->serving->shared, b) : 0;
    return shared > 0 ? shared : 0;
}

uint64_t attune__cpu_schedule_key(const attune__cpu_run *run)
{
    const attune__forward *call = run->call;
    const int64_t all[] = {call->batch,           call->heads,          call->kv_heads,  call->q_len,
                           (int64_t)run->q_step,  run->head_chunks,     run->split_keys, run->part_limit,
                           (int64_t)run->block_m, (int64_t)run->block_n};
    attune__hash hash = attune__hash_begin();
    attune__hash_bytes(&hash, all, sizeof all);
    return hash.lane[0];
}

/* The items of a group without splits. */
static int64_t items_of(const attune__cpu_run *run, int64_t rows)
{
    const int64_t step = (int64_t)run->q_step;
    return (rows + step - 1) / step * run->call->kv_heads * run->head_chunks;
}

/* Splits the longest groups, if an item of theirs takes more than half a thread's share, while there is room for
 * partial results. */
static void split(attune__cpu_run *run, attune__cpu_group *group, int64_t keys, double pairs, int64_t items,
                  int64_t *parts)
{
    const double share = run->schedule->pairs / attune__pool_threads(run->device->pool);
    const int64_t splits = (keys + run->split_keys - 1) / run->split_keys;
    if (splits < 2 || 2 * pairs <= share * (double)items || items * splits > run->part_limit - *parts)
        return;
    group->splits = (int32_t)splits;
    group->part = *parts;
    *parts += items * splits;
}

/* How many sequences may be computed together such that there are two items for each thread. */
static int64_t most_together(const attune__cpu_run *run)
{
    const uint32_t threads = attune__pool_threads(run->device->pool);
    int64_t items = 0;
    for (int64_t b = 0; b < run->call->batch; b++)
        items += items_of(run, attune__cpu_sequence_at(run->call, b).q_len);
    const int64_t most = threads > 1 ? items / (2 * (int64_t)threads) : ATTUNE__CPU_GROUP;
    return !run->call->serving->shared.buffer || most < 1 ? 1 : most < ATTUNE__CPU_GROUP ? most : ATTUNE__CPU_GROUP;
}

void attune__cpu_schedule_fill(attune__cpu_run *run)
{
    const attune__forward *call = run->call;
    attune__cpu_schedule *schedule = run->schedule;
    const int64_t most = most_together(run);
    int64_t parts = 0, items = 0, groups = 0;
    double pairs = 0;
    for (int64_t b = 0; b < call->batch; b++) {
        const attune__cpu_sequence s = attune__cpu_sequence_at(call, b);
        pairs += (double)s.q_len * (double)(s.kv_len - s.kv_first);
    }
    schedule->key = attune__cpu_schedule_key(run);
    schedule->pairs = pairs * (double)call->heads;
    schedule->split_items = 0;
    for (int64_t b = 0; b < call->batch;) {
        attune__cpu_group *group = &schedule->group[groups++];
        *group = (attune__cpu_group){.items = items, .b = (int32_t)b, .splits = 1};
        int64_t rows = 0, keys = 0;
        double work = 0;
        for (; b < call->batch && group->count < most; b++, group->count++) {
            const attune__cpu_sequence s = attune__cpu_sequence_at(call, b);
            if (group->count &&
                (rows + s.q_len > (int64_t)run->q_step || attune__cpu_shared(call, b) < (int64_t)run->block_n))
                break;
            rows += s.q_len;
            keys = s.kv_len > keys ? s.kv_len : keys;
            work += (double)s.q_len * (double)(s.kv_len - s.kv_first) * (double)call->heads;
        }
        const int64_t count = items_of(run, rows);
        split(run, group, keys, work, count, &parts);
        items += count * group->splits;
        schedule->split_items += group->splits > 1 ? count : 0;
    }
    schedule->groups = groups;
    schedule->group[groups] = (attune__cpu_group){.items = items};
    schedule->items = items;
}

const attune__cpu_group *attune__cpu_schedule_find(const attune__cpu_run *run, int64_t *index)
{
    const attune__cpu_group *group = run->schedule->group;
    int64_t low = 0, high = run->schedule->groups;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (group[middle].items <= *index)
            low = middle;
        else
            high = middle;
    }
    *index -= group[low].items;
    return &group[low];
}

bool attune__cpu_key_at(const attune__forward *call, int64_t b, int64_t kv, attune__cpu_key *key)
{
    const attune__serving *serving = call->serving;
    const int64_t page = call->k.size[2];
    *key = (attune__cpu_key){.page = b, .row = kv, .count = page - kv};
    if (!serving->pages.buffer)
        return true;
    int64_t entries;
    const attune_tensor *pages = &serving->pages;
    const int64_t at = table_row(serving, b, &entries);
    key->row = kv % page;
    key->count = page - key->row;
    int32_t entry = -1;
    if (kv / page < entries)
        memcpy(&entry,
               attune__cpu_memory(pages->buffer) + (int64_t)pages->offset +
                   (at + kv / page * pages->stride[pages->rank - 1]) * (int64_t)sizeof entry,
               sizeof entry);
    key->page = entry;
    return entry >= 0 && entry < call->k.size[0];
}

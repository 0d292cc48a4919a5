/* SPDX-License-Identifier: MIT */
/* The sequences of a batch and the pages of their keys. What the caller's integers hold is checked here, where they are
 * read: this device is the host. */
#include "cpu/cpu.h"

#include <string.h>

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

double attune__cpu_schedule(attune__cpu_run *run)
{
    double pairs = 0;
    const int64_t step = (int64_t)run->q_step, planes = run->call->kv_heads * run->head_chunks;
    int64_t items = 0;
    for (int64_t b = 0; b < run->call->batch; b++) {
        const attune__cpu_sequence s = attune__cpu_sequence_at(run->call, b);
        run->schedule[b] = items;
        items += (s.q_len + step - 1) / step * planes;
        pairs += (double)s.q_len * (double)(s.kv_len - s.kv_first);
    }
    run->schedule[run->call->batch] = run->items = items;
    return pairs * (double)run->call->heads;
}

int64_t attune__cpu_schedule_find(const attune__cpu_run *run, int64_t *index)
{
    int64_t low = 0, high = run->call->batch;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (run->schedule[middle] <= *index)
            low = middle;
        else
            high = middle;
    }
    *index -= run->schedule[low];
    return low;
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

/* SPDX-License-Identifier: MIT */
/* Calls over a cache: plans of serving, schedules, forward and new rows. */
#include "tests/fuzz/api.h"

#include <string.h>

/* Lengths, starts and tables, mostly as they could be: a sequence of small numbers that rises or does not. */
void api_fill(api_world *w, api_tape *t)
{
    const uint32_t first = api_below(t, 64) * 4, count = api_take(t), way = api_below(t, 4);
    int32_t sum = 0;
    for (uint32_t i = first; i < first + count && i < API_INTEGERS; i++) {
        const uint32_t byte = api_take(t);
        sum += (int32_t)(byte % 8);
        w->values[i] = way == 0      ? sum
                       : way == 1    ? (int32_t)byte
                       : way == 2    ? (int32_t)(byte % 8)
                       : byte == 255 ? INT32_MIN
                       : byte == 254 ? INT32_MAX
                                     : (int32_t)byte - 8;
    }
}

static attune_dtype cache_dtype(api_tape *t)
{
    static const attune_dtype dtypes[] = {
        0,         0,           0,           ATTUNE_F16,   ATTUNE_BF16, ATTUNE_F8E4M3, ATTUNE_F8E5M2,
        ATTUNE_I8, ATTUNE_Q8_0, ATTUNE_Q4_0, ATTUNE_MXFP4, ATTUNE_I32};
    return dtypes[api_below(t, sizeof dtypes / sizeof *dtypes)];
}

void api_make_serving(api_world *w, api_tape *t)
{
    static const uint32_t dims[] = {32, 8, 64, 96, 320, 0, 7};
    static const int64_t pages[] = {0, 16, 1, 5, 64, -1};
    attune_problem p = {.struct_size = sizeof p,
                        .dtype = (attune_dtype)(1 + api_below(t, 4)),
                        .head_dim = dims[api_below(t, 7)],
                        .batch = 1 + api_below(t, 6),
                        .heads = 1 + api_below(t, 8),
                        .kv_heads = 1 + api_below(t, 2),
                        .q_len = api_length(t),
                        .kv_len = api_length(t),
                        .lse = api_below(t, 2),
                        .row_max = api_below(t, 2),
                        .sinks = api_below(t, 4) == 0,
                        .tokens = api_length(t),
                        .page = pages[api_below(t, 6)],
                        .tree = api_below(t, 4) == 0,
                        .split_keys = api_below(t, 4) ? 0 : 256 * api_below(t, 3) + (api_below(t, 8) == 0),
                        .shared_sequences = api_below(t, 4) ? 0 : api_below(t, 4)};
    p.head_dim_v = api_below(t, 4) ? p.head_dim : dims[api_below(t, 7)];
    if (p.dtype != ATTUNE_F64 || api_below(t, 16) == 0) {
        p.kv_dtype = cache_dtype(t);
        p.v_dtype = cache_dtype(t);
        p.o_dtype = (attune_dtype)api_below(t, 4);
    }
    const uint32_t slot = api_below(t, API_SLOTS);
    w->problems[slot] = p;
    p.mask = api_below(t, 2) ? w->exprs[api_below(t, API_SLOTS)] : NULL;
    p.score = api_below(t, 2) ? w->exprs[api_below(t, API_SLOTS)] : NULL;
    attune_plan_destroy(w->serving[slot]);
    w->serving[slot] = NULL;
    api_failed_well(attune_plan_create(w->devices[api_below(t, API_SLOTS)], &p, NULL, &w->serving[slot]),
                    w->serving[slot]);
}

/* A call's cache and batch, of the plan's sizes. */
typedef struct served {
    const attune_plan *plan;
    attune_problem p;
    attune_dtype rows; /* of lse, sinks and tables */
    int64_t tokens, sequences;
    bool packed; /* with q_start */
    attune_cache cache;
    attune_batch batch;
} served;

static int64_t at_least(int64_t value, int64_t least)
{
    return value < least ? least : value > 4096 ? 4096 : value;
}

static attune_tensor scale(api_world *w, api_tape *t, const int64_t *k)
{
    const int64_t one[] = {1}, head[] = {k[1]};
    switch (api_below(t, 4)) {
    case 0:
        return (attune_tensor){0};
    case 1:
        return api_tensor(w, t, 1, one, ATTUNE_F32);
    case 2:
        return api_tensor(w, t, 1, head, ATTUNE_F32);
    default:
        return api_tensor(w, t, 3, k, ATTUNE_F32);
    }
}

/* Returns the device of the call; NULL = there is none, and nothing is drawn. */
static attune_device *draw(api_world *w, api_tape *t, served *s)
{
    const uint32_t slot = api_below(t, API_SLOTS);
    attune_device *device = w->devices[api_below(t, API_SLOTS)];
    memset(s, 0, sizeof *s);
    if (!device)
        return NULL;
    s->plan = w->serving[slot];
    s->p = w->problems[slot];
    s->rows = s->p.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    s->sequences = 1 + api_below(t, (uint32_t)at_least(s->p.batch, 1));
    s->packed = api_below(t, 4) != 0;
    s->tokens = s->packed ? at_least(s->p.tokens - api_below(t, 3), 1) : at_least(s->p.q_len - api_below(t, 2), 1);
    const int64_t page = s->p.page ? s->p.page : at_least(s->p.kv_len, 1),
                  pool = s->p.page ? 1 + api_below(t, 12) : s->sequences;
    const int64_t k[] = {pool, s->p.kv_heads, page, s->p.head_dim}, v[] = {pool, s->p.kv_heads, page, s->p.head_dim_v};
    const attune_dtype k_dtype = s->p.kv_dtype ? s->p.kv_dtype : s->p.dtype,
                       v_dtype = s->p.v_dtype ? s->p.v_dtype : k_dtype;
    const int64_t starts[] = {s->sequences + 1}, each[] = {s->sequences}, entries[] = {1 + api_below(t, 64)};
    const int64_t table[] = {s->sequences, 1 + api_below(t, 8)}, words[] = {s->tokens, 1 + api_below(t, 2)};
    const int64_t word_rows[] = {s->sequences, s->tokens, words[1]}, one[] = {1};
    s->cache = (attune_cache){.struct_size = sizeof s->cache, .k = api_tensor(w, t, 4, k, k_dtype)};
    if (api_below(t, 4))
        s->cache.v = api_tensor(w, t, 4, v, v_dtype);
    if (s->p.page && api_below(t, 4)) {
        s->cache.pages = api_integers(w, t, 2, table, ATTUNE_I32);
    } else if (s->p.page) {
        s->cache.pages = api_integers(w, t, 1, entries, ATTUNE_I32);
        s->cache.pages_start = api_integers(w, t, 1, starts, ATTUNE_I32);
    }
    if (api_below(t, 2))
        s->cache.k_scale = scale(w, t, k);
    if (api_below(t, 2))
        s->cache.v_scale = scale(w, t, v);
    s->batch = (attune_batch){.struct_size = sizeof s->batch, .kv_len = api_integers(w, t, 1, each, ATTUNE_I32)};
    if (s->packed)
        s->batch.q_start = api_integers(w, t, 1, starts, ATTUNE_I32);
    if (api_below(t, 4) == 0)
        s->batch.kv_first = api_integers(w, t, 1, each, ATTUNE_I32);
    if (s->p.tree && api_below(t, 2))
        s->batch.tree =
            s->packed ? api_integers(w, t, 2, words, ATTUNE_I32) : api_integers(w, t, 3, word_rows, ATTUNE_I32);
    if (api_below(t, 4) == 0)
        s->batch.count = api_integers(w, t, 1, one, ATTUNE_I32);
    if (api_below(t, 4) == 0)
        s->batch.shared = api_integers(w, t, 1, each, ATTUNE_I32);
    attune_tensor *const of[] = {&s->cache.pages,    &s->cache.pages_start, &s->batch.kv_len, &s->batch.q_start,
                                 &s->batch.kv_first, &s->batch.tree,        &s->batch.count,  &s->batch.shared};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i]->buffer)
            of[i]->offset += 16 * api_below(t, 64);
    return device;
}

/* Rows of q, o, lse: of all sequences, or of each. */
static attune_tensor rows_of(api_world *w, api_tape *t, const served *s, int64_t heads, int64_t columns,
                             attune_dtype dtype)
{
    const int64_t packed[] = {s->tokens, heads, columns}, each[] = {s->sequences, heads, s->tokens, columns};
    const uint32_t rank = columns ? 3 : 2;
    return s->packed ? api_tensor(w, t, rank, packed, dtype) : api_tensor(w, t, rank + 1, each, dtype);
}

void api_run_serving(api_world *w, api_tape *t)
{
    served s;
    attune_device *device = draw(w, t, &s);
    if (!device)
        return;
    const int64_t one[] = {64}, heads[] = {s.p.heads};
    attune_capture captures[] = {{"doc", api_tensor(w, t, 1, one, ATTUNE_I32)},
                                 {"bias", api_tensor(w, t, 1, one, ATTUNE_F32)}};
    const attune_parameter parameter = {"n", api_take(t)};
    attune_forward_args a = {.struct_size = sizeof a,
                             .q = rows_of(w, t, &s, s.p.heads, s.p.head_dim, s.p.dtype),
                             .o = rows_of(w, t, &s, s.p.heads, s.p.head_dim_v, s.p.o_dtype ? s.p.o_dtype : s.p.dtype),
                             .captures = captures,
                             .capture_count = api_below(t, 8) ? 2 : 0,
                             .parameters = &parameter,
                             .parameter_count = api_below(t, 8) ? 1 : 0,
                             .workspace = w->workspace,
                             .workspace_offset = api_below(t, 8) ? 0 : (uint64_t)api_length(t),
                             .cache = api_below(t, 32) ? &s.cache : NULL,
                             .batch = api_below(t, 32) ? &s.batch : NULL};
    if (s.p.lse && api_below(t, 2))
        a.lse = rows_of(w, t, &s, s.p.heads, 0, s.rows);
    if (s.p.row_max && api_below(t, 2))
        a.row_max = rows_of(w, t, &s, s.p.heads, 0, s.rows);
    if (s.p.sinks && api_below(t, 8))
        a.sinks = api_tensor(w, t, 1, heads, s.rows);
    attune_buffer *schedule = NULL;
    attune_completion done;
    attune_status status;
    /* A schedule of its own: what it holds is attune_schedule's, of these lengths or of others. */
    const uint64_t bytes = attune_plan_schedule_size(s.plan);
    if (bytes && api_below(t, 2) && attune_buffer_create(device, bytes, &schedule) == ATTUNE_OK) {
        a.schedule = schedule;
        status = attune_schedule(s.plan, attune_device_queue(device), &a, &done);
        api_launched(status, done);
        if (status != ATTUNE_OK)
            a.schedule = NULL;
        if (api_below(t, 4) == 0)
            api_fill(w, t);
    }
    status = attune_forward(s.plan, attune_device_queue(device), &a, &done);
    api_launched(status, done);
    attune_buffer_destroy(schedule);
}

void api_run_append(api_world *w, api_tape *t)
{
    served s;
    attune_device *device = draw(w, t, &s);
    if (!device)
        return;
    const int64_t columns = 2 * (int64_t)api_below(t, s.p.head_dim / 2 + 2),
                  normed = api_below(t, 4) ? s.p.head_dim : api_below(t, 80);
    const int64_t table[] = {1 + api_below(t, 100), columns / 2}, weights[] = {normed};
    const int64_t packed[] = {s.tokens}, each[] = {s.sequences, s.tokens};
    attune_append_args a = {.struct_size = sizeof a,
                            .k = rows_of(w, t, &s, s.p.kv_heads, s.p.head_dim, s.p.dtype),
                            .cache = api_below(t, 32) ? &s.cache : NULL,
                            .batch = api_below(t, 8) ? &s.batch : NULL,
                            .rotary_first = api_below(t, 4) ? 0 : api_below(t, 40),
                            .interleaved = api_below(t, 2),
                            .norm_epsilon = api_below(t, 2) ? 1e-6 : 0};
    if (s.cache.v.buffer || api_below(t, 8) == 0)
        a.v = rows_of(w, t, &s, s.p.kv_heads, s.p.head_dim_v, s.p.dtype);
    if (api_below(t, 2))
        a.slots = s.packed ? api_integers(w, t, 1, packed, ATTUNE_I64) : api_integers(w, t, 2, each, ATTUNE_I64);
    if (api_below(t, 2)) {
        a.cosine = api_tensor(w, t, 2, table, s.rows);
        a.sine = api_tensor(w, t, 2, table, s.rows);
        if (api_below(t, 2))
            a.positions =
                s.packed ? api_integers(w, t, 1, packed, ATTUNE_I32) : api_integers(w, t, 2, each, ATTUNE_I32);
    }
    if (api_below(t, 2))
        a.k_norm = api_tensor(w, t, 1, weights, api_below(t, 2) ? s.rows : s.p.dtype);
    if (api_below(t, 2)) {
        a.q = rows_of(w, t, &s, s.p.heads, s.p.head_dim, s.p.dtype);
        a.q_out = api_below(t, 2) ? a.q : rows_of(w, t, &s, s.p.heads, s.p.head_dim, s.p.dtype);
        if (api_below(t, 2))
            a.q_norm = api_tensor(w, t, 1, weights, api_below(t, 2) ? s.rows : s.p.dtype);
    }
    attune_completion done;
    const attune_status status = attune_append(s.plan, attune_device_queue(device), &a, &done);
    api_launched(status, done);
}

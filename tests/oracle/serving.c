/* SPDX-License-Identifier: MIT */
#include "tests/oracle/serving.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/quantised.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        attune_status status_ = (call);                                                                                \
        if (status_ != ATTUNE_OK)                                                                                      \
            return status_;                                                                                            \
    } while (0)

static int64_t at(const array *a, int64_t i)
{
    return ((const int32_t *)a->data)[i];
}

static bool packed(const serving *s)
{
    return s->q_start.data != NULL;
}

static int64_t heads_of(const serving *s)
{
    return s->a.q.size[1];
}

void serving_free(serving *s)
{
    array *const all[] = {&s->a.q,    &s->a.k,      &s->a.v,  &s->a.sinks, &s->pages,  &s->pages_start, &s->q_start,
                          &s->kv_len, &s->kv_first, &s->tree, &s->count,   &s->shared, &s->k_scale,     &s->v_scale};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(all[i]);
}

int64_t serving_sequences(const serving *s)
{
    return s->count.data ? at(&s->count, 0) : s->kv_len.size[0];
}

int64_t serving_rows(const serving *s, int64_t b)
{
    return packed(s) ? at(&s->q_start, b + 1) - at(&s->q_start, b) : s->a.q.size[2];
}

int64_t serving_keys(const serving *s, int64_t b)
{
    return at(&s->kv_len, b);
}

int64_t serving_width(const serving *s)
{
    return s->a.v.data ? s->a.v.size[3] : s->head_dim_v;
}

int64_t serving_tokens(const serving *s)
{
    return packed(s) ? s->a.q.size[0] : s->a.q.size[0] * s->a.q.size[2];
}

int64_t serving_index(const serving *s, const reference_row *row)
{
    if (packed(s))
        return (at(&s->q_start, row->b) + row->q) * heads_of(s) + row->h;
    return (row->b * heads_of(s) + row->h) * s->a.q.size[2] + row->q;
}

/* The entry of the block table for a page of a sequence. */
static int64_t entry(const serving *s, int64_t b, int64_t page)
{
    if (!s->pages.data)
        return b;
    const int64_t first = s->pages_start.data ? at(&s->pages_start, b) : b * s->pages.size[1];
    return at(&s->pages, first + page);
}

/* ------------------------------------------------------------------------------------------------------------ check */

static bool check_integers(const char *name, const array *a, uint32_t rank, int64_t size, const char *of, failure *why)
{
    if (!a->data)
        return true;
    if (a->dtype != ATTUNE_I32)
        return failure_set(why, "%s is %s, expected i32", name, attune_dtype_string(a->dtype));
    if (a->rank != rank)
        return failure_set(why, "%s has rank %u, expected %u", name, a->rank, rank);
    return size < 0 || a->size[0] == size ||
           failure_set(why, "%s has %lld entries, expected %lld: %s", name, (long long)a->size[0], (long long)size, of);
}

static bool is_quantised(attune_dtype dtype)
{
    return has_factors(dtype) || in_blocks(dtype);
}

static bool check_scale(const char *name, const array *scale, const array *of, failure *why)
{
    if (!scale->data)
        return true;
    if (!has_factors(of->dtype))
        return failure_set(why, "%s is given, but %s has no factors of rows", name, attune_dtype_string(of->dtype));
    return (scale->dtype == ATTUNE_F32 && scale->rank == 1 && scale->size[0] == of->size[1]) ||
           failure_set(why, "%s has %lld elements of %s, expected f32 for each of the %lld heads", name,
                       (long long)array_count(scale), attune_dtype_string(scale->dtype), (long long)of->size[1]);
}

static bool check_shapes(const serving *s, failure *why)
{
    const array *q = &s->a.q, *k = &s->a.k, *v = &s->a.v;
    const int64_t sequences = s->kv_len.size[0];
    const uint32_t rank = packed(s) ? 3 : 4;
    if (!s->kv_len.data)
        return failure_set(why, "the length of each sequence is missing");
    if (q->rank != rank)
        return failure_set(why, "q has rank %u, expected %u: %s", q->rank, rank,
                           packed(s) ? "tokens, heads, head_dim, with the start of each sequence"
                                     : "sequences, heads, rows, head_dim; packed rows need the start of each sequence");
    if (k->rank != 4 || (v->data && v->rank != 4))
        return failure_set(why, "%s has rank %u, expected 4: pages, kv heads, page, head_dim", k->rank != 4 ? "k" : "v",
                           k->rank != 4 ? k->rank : v->rank);
    if (!check_integers("the lengths", &s->kv_len, 1, -1, "", why) ||
        !check_integers("the starts", &s->q_start, 1, sequences + 1, "one more than the lengths", why) ||
        !check_integers("the first keys", &s->kv_first, 1, sequences, "as many as the lengths", why) ||
        !check_integers("the shared keys", &s->shared, 1, sequences, "as many as the lengths", why) ||
        !check_integers("the count", &s->count, 1, 1, "one number", why) ||
        !check_integers("the block table", &s->pages, s->pages_start.data ? 1 : 2, s->pages_start.data ? -1 : sequences,
                        "a row for each length", why) ||
        !check_integers("the pages' starts", &s->pages_start, 1, sequences + 1, "one more than the lengths", why) ||
        !check_integers("the tree", &s->tree, packed(s) ? 2 : 3, q->size[0], "as q", why))
        return false;
    if (!packed(s) && q->size[0] != sequences)
        return failure_set(why, "q has %lld sequences, and there are %lld lengths", (long long)q->size[0],
                           (long long)sequences);
    if (!packed(s) && s->tree.data && s->tree.size[1] != q->size[2])
        return failure_set(why, "the tree has %lld rows for each sequence, q has %lld", (long long)s->tree.size[1],
                           (long long)q->size[2]);
    if (k->size[3] != q->size[rank - 1])
        return failure_set(why, "k has head_dim %lld, q has %lld", (long long)k->size[3], (long long)q->size[rank - 1]);
    if (v->data && memcmp(k->size, v->size, 3 * sizeof *k->size))
        return failure_set(why, "v is [%lld, %lld, %lld] before its head_dim, k is [%lld, %lld, %lld]",
                           (long long)v->size[0], (long long)v->size[1], (long long)v->size[2], (long long)k->size[0],
                           (long long)k->size[1], (long long)k->size[2]);
    if (!v->data && (s->head_dim_v < 1 || s->head_dim_v > k->size[3]))
        return failure_set(why, "v is the first %lld columns of k, which has %lld", (long long)s->head_dim_v,
                           (long long)k->size[3]);
    if (q->size[1] % k->size[1])
        return failure_set(why, "k has %lld heads, which do not divide the %lld of q", (long long)k->size[1],
                           (long long)q->size[1]);
    if (s->pages_start.data && !s->pages.data)
        return failure_set(why, "the pages' starts need the block table");
    if (!s->pages.data && k->size[0] < sequences)
        return failure_set(why, "without a block table each of the %lld sequences is a page of k, which has %lld",
                           (long long)sequences, (long long)k->size[0]);
    if (!check_scale("k_scale", &s->k_scale, k, why) || !check_scale("v_scale", &s->v_scale, v->data ? v : k, why))
        return false;
    if (s->a.sinks.data && (s->a.sinks.rank != 1 || s->a.sinks.size[0] != q->size[1]))
        return failure_set(why, "the sinks have %lld elements and rank %u, expected one for each of the %lld heads",
                           (long long)array_count(&s->a.sinks), s->a.sinks.rank, (long long)q->size[1]);
    return true;
}

static int64_t capacity(const serving *s, int64_t b)
{
    const int64_t entries = !s->pages.data        ? 1
                            : s->pages_start.data ? at(&s->pages_start, b + 1) - at(&s->pages_start, b)
                                                  : s->pages.size[1];
    return entries * s->a.k.size[2];
}

bool serving_check(const serving *s, failure *why)
{
    if (!check_shapes(s, why))
        return false;
    if (s->count.data && (at(&s->count, 0) < 0 || at(&s->count, 0) > s->kv_len.size[0]))
        return failure_set(why, "the count is %lld, expected 0 to the %lld of the lengths", (long long)at(&s->count, 0),
                           (long long)s->kv_len.size[0]);
    for (int64_t b = 0; b < serving_sequences(s); b++) {
        if (packed(s) && (at(&s->q_start, b) < 0 || serving_rows(s, b) < 0 || at(&s->q_start, b + 1) > s->a.q.size[0]))
            return failure_set(why,
                               "sequence %lld has the rows %lld to %lld: starts must ascend, to at most the %lld of q",
                               (long long)b, (long long)at(&s->q_start, b), (long long)at(&s->q_start, b + 1),
                               (long long)s->a.q.size[0]);
        if (s->pages_start.data && (at(&s->pages_start, b) < 0 || at(&s->pages_start, b + 1) < at(&s->pages_start, b) ||
                                    at(&s->pages_start, b + 1) > s->pages.size[0]))
            return failure_set(
                why, "sequence %lld has the entries %lld to %lld: they must ascend, to at most the table's %lld",
                (long long)b, (long long)at(&s->pages_start, b), (long long)at(&s->pages_start, b + 1),
                (long long)s->pages.size[0]);
        if (serving_keys(s, b) < 0 || serving_keys(s, b) > capacity(s, b))
            return failure_set(why, "sequence %lld has %lld keys, expected 0 to the %lld of its pages", (long long)b,
                               (long long)serving_keys(s, b), (long long)capacity(s, b));
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- device */

attune_problem serving_problem(const serving *s, bool lse, bool row_max)
{
    const array *q = &s->a.q, *k = &s->a.k;
    int64_t rows = 1, keys = 1;
    for (int64_t b = 0; b < serving_sequences(s); b++) {
        rows = serving_rows(s, b) > rows ? serving_rows(s, b) : rows;
        keys = serving_keys(s, b) > keys ? serving_keys(s, b) : keys;
    }
    return (attune_problem){.struct_size = sizeof(attune_problem),
                            .dtype = q->dtype,
                            .kv_dtype = k->dtype,
                            .v_dtype = s->a.v.data ? s->a.v.dtype : k->dtype,
                            .o_dtype = s->a.o_dtype,
                            .head_dim = (uint32_t)k->size[3],
                            .head_dim_v = (uint32_t)serving_width(s),
                            .batch = s->kv_len.size[0],
                            .heads = q->size[1],
                            .kv_heads = k->size[1],
                            .q_len = packed(s) ? rows : q->size[2],
                            .kv_len = keys,
                            .scale = s->a.scale,
                            .mask = s->a.mask,
                            .score = s->a.score,
                            .lse = lse,
                            .row_max = row_max,
                            .sinks = s->a.sinks.data != NULL,
                            .tokens = serving_tokens(s),
                            .page = s->pages.data ? k->size[2] : 0,
                            .tree = s->tree.data != NULL,
                            .shared_sequences = s->shared.data ? (uint32_t)s->kv_len.size[0] : 0};
}

/* A contiguous tensor with the array's contents, or NaN in every element. An array that is not given has none. */
static attune_status put(attune_device *device, serving_call *call, const array *a, bool contents,
                         attune_tensor *tensor)
{
    unsigned char ones[1 << 12];
    attune_buffer **buffer = &call->buffers[call->buffer_count];
    const uint64_t bytes = array_bytes(a);
    if (contents && !a->data)
        return ATTUNE_OK;
    TRY(attune_buffer_create(device, bytes ? bytes : 1, buffer));
    call->buffer_count++;
    call->bytes += bytes;
    *tensor = (attune_tensor){.buffer = *buffer, .dtype = a->dtype, .rank = a->rank};
    memcpy(tensor->size, a->size, sizeof tensor->size);
    if (contents)
        return bytes ? attune_buffer_write(*buffer, 0, a->data, bytes) : ATTUNE_OK;
    memset(ones, 0xff, sizeof ones);
    for (uint64_t i = 0; i < bytes; i += sizeof ones)
        TRY(attune_buffer_write(*buffer, i, ones, bytes - i < sizeof ones ? bytes - i : sizeof ones));
    return ATTUNE_OK;
}

/* The shape of o, lse and row_max in memory. */
static array shape_of(const serving *s, bool o)
{
    const attune_dtype rows = s->a.q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    array shape = s->a.q;
    shape.data = NULL;
    shape.dtype = o ? attention_o_dtype(&s->a) : rows;
    shape.rank -= !o;
    shape.size[s->a.q.rank - 1] = o ? serving_width(s) : 0;
    return shape;
}

attune_status serving_upload(attune_device *device, const serving *s, const attune_plan *plan, bool lse, bool row_max,
                             serving_call *call)
{
    const array o = shape_of(s, true), rows = shape_of(s, false);
    attune_cache *cache = &call->cache;
    attune_batch *batch = &call->batch;
    attune_forward_args *args = &call->args;
    *call = (serving_call){.cache.struct_size = sizeof *cache,
                           .batch.struct_size = sizeof *batch,
                           .args = {.struct_size = sizeof *args, .cache = cache, .batch = batch}};
    const struct {
        const array *data;
        attune_tensor *to;
    } inputs[] = {{&s->a.q, &args->q},
                  {&s->a.k, &cache->k},
                  {&s->a.v, &cache->v},
                  {&s->a.sinks, &args->sinks},
                  {&s->pages, &cache->pages},
                  {&s->pages_start, &cache->pages_start},
                  {&s->q_start, &batch->q_start},
                  {&s->kv_len, &batch->kv_len},
                  {&s->kv_first, &batch->kv_first},
                  {&s->tree, &batch->tree},
                  {&s->count, &batch->count},
                  {&s->shared, &batch->shared},
                  {&s->k_scale, &cache->k_scale},
                  {&s->v_scale, &cache->v_scale}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        TRY(put(device, call, inputs[i].data, true, inputs[i].to));
    TRY(put(device, call, &o, false, &args->o));
    if (lse)
        TRY(put(device, call, &rows, false, &args->lse));
    if (row_max)
        TRY(put(device, call, &rows, false, &args->row_max));
    for (uint32_t i = 0; i < s->a.capture_count; i++) {
        const attune_array *h = &s->a.captures[i].array;
        array data = {.dtype = h->dtype, .rank = h->rank, .data = (void *)(uintptr_t)h->data};
        memcpy(data.size, h->size, sizeof data.size);
        call->captures[i].name = s->a.captures[i].name;
        TRY(put(device, call, &data, true, &call->captures[i].tensor));
    }
    args->captures = call->captures;
    args->capture_count = s->a.capture_count;
    args->parameters = s->a.parameters;
    args->parameter_count = s->a.parameter_count;
    const uint64_t workspace = attune_plan_workspace_size(plan);
    if (workspace) {
        TRY(attune_buffer_create(device, workspace, &call->buffers[call->buffer_count]));
        args->workspace = call->buffers[call->buffer_count++];
        call->bytes += workspace;
    }
    return ATTUNE_OK;
}

void serving_release(serving_call *call)
{
    for (uint32_t i = 0; i < call->buffer_count; i++)
        attune_buffer_destroy(call->buffers[i]);
    *call = (serving_call){.buffer_count = 0};
}

/* A result as float64, with 0 in the rows that the call does not have. */
static attune_status collect(const serving *s, const attune_tensor *from, int64_t columns, array *out)
{
    failure why;
    array raw, all = {0};
    if (!array_create(&raw, from->dtype, from->rank, from->size, &why))
        return ATTUNE_OUT_OF_HOST_MEMORY;
    attune_status status = attune_buffer_read(from->buffer, 0, raw.data, array_bytes(&raw));
    if (status == ATTUNE_OK &&
        (!array_convert(&raw, ATTUNE_F64, &all, &why) || !array_create(out, ATTUNE_F64, from->rank, from->size, &why)))
        status = ATTUNE_OUT_OF_HOST_MEMORY;
    for (int64_t b = 0; status == ATTUNE_OK && b < serving_sequences(s); b++)
        for (int64_t h = 0; h < heads_of(s); h++)
            for (int64_t q = 0; q < serving_rows(s, b); q++) {
                const int64_t first = serving_index(s, &(reference_row){b, h, q}) * columns;
                memcpy((double *)out->data + first, (double *)all.data + first, (size_t)columns * sizeof(double));
            }
    array_free(&raw);
    array_free(&all);
    return status;
}

static attune_status run(attune_device *device, const serving *s, const attune_plan *plan, array *o, array *lse,
                         array *row_max, serving_call *call)
{
    attune_completion done;
    TRY(serving_upload(device, s, plan, lse != NULL, row_max != NULL, call));
    TRY(attune_forward(plan, attune_device_queue(device), &call->args, &done));
    TRY(attune_completion_wait(done, UINT64_MAX));
    if (o)
        TRY(collect(s, &call->args.o, serving_width(s), o));
    if (lse)
        TRY(collect(s, &call->args.lse, 1, lse));
    return row_max ? collect(s, &call->args.row_max, 1, row_max) : ATTUNE_OK;
}

attune_status serving_forward(attune_device *device, const serving *s, const attune_kernel_options *options, array *o,
                              array *lse, array *row_max)
{
    const attune_problem problem = serving_problem(s, lse != NULL, row_max != NULL);
    attune_plan *plan;
    serving_call call = {.buffer_count = 0};
    TRY(attune_plan_create(device, &problem, options, &plan));
    const attune_status status = run(device, s, plan, o, lse, row_max, &call);
    serving_release(&call);
    attune_plan_destroy(plan);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- references */

reference_row *serving_all_rows(const serving *s, int64_t *count)
{
    int64_t n = 0;
    *count = 0;
    for (int64_t b = 0; b < serving_sequences(s); b++)
        *count += serving_rows(s, b) * heads_of(s);
    reference_row *rows = malloc((size_t)(*count + 1) * sizeof *rows);
    for (int64_t b = 0; rows && b < serving_sequences(s); b++)
        for (int64_t h = 0; h < heads_of(s); h++)
            for (int64_t q = 0; q < serving_rows(s, b); q++)
                rows[n++] = (reference_row){b, h, q};
    return rows;
}

/* Outside of serving `row` is another number: it is replaced by q and parameters of the sequence. */
#define ROW_PARAMETER "attune_first_row"

static bool without_row(attune_instance *instance, attune_expr_kind kind, const attune_expr *expr, attune_expr **out,
                        failure *why)
{
    static const char in_place[] = "(q + " ROW_PARAMETER ")";
    attune_symbol symbols[ATTUNE_EXPR_MAX_SYMBOLS + 1];
    uint32_t count = 0;
    char text[ATTUNE_EXPR_MAX_LENGTH + 1], replaced[ATTUNE_EXPR_MAX_LENGTH + 1];
    size_t used = 0;
    *out = NULL;
    if (!expr)
        return true;
    if (attune_expr_print(expr, ATTUNE_EXPR_TEXT, text, sizeof text, NULL) != ATTUNE_OK)
        return failure_set(why, "%s", attune_last_error());
    for (const char *c = text; *c;) {
        const char *word = c;
        while (isalnum((unsigned char)*c) || *c == '_')
            c++;
        const bool row = c - word == 3 && !strncmp(word, "row", 3);
        c += c == word;
        const size_t length = row ? sizeof in_place - 1 : (size_t)(c - word);
        if (used + length >= sizeof replaced)
            return failure_set(why, "an expression with row is too long for the reference");
        memcpy(replaced + used, row ? in_place : word, length);
        used += length;
    }
    replaced[used] = '\0';
    for (uint32_t i = 0; i < attune_expr_symbol_count(expr); i++)
        (void)attune_expr_symbol_get(expr, i, &symbols[count++]);
    symbols[count++] = (attune_symbol){ROW_PARAMETER, ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0};
    return attune_expr_create(instance, kind, replaced, symbols, count, out) == ATTUNE_OK ||
           failure_set(why, "%s", attune_last_error());
}

static bool sees(const serving *s, int64_t b, int64_t row, int64_t kv)
{
    const int64_t page = entry(s, b, kv / s->a.k.size[2]), draft = kv - (serving_keys(s, b) - serving_rows(s, b));
    if (page < 0 || page >= s->a.k.size[0] || (s->kv_first.data && kv < at(&s->kv_first, b)))
        return false;
    if (!s->tree.data || draft < 0)
        return true;
    const int64_t words = s->tree.size[s->tree.rank - 1];
    const int64_t first = packed(s) ? at(&s->q_start, b) : b * s->a.q.size[2];
    return draft < 32 * words && (uint32_t)at(&s->tree, (first + row) * words + draft / 32) >> draft % 32 & 1;
}

/* A row of the pool as the sequence has it, a quantised one as f32; zeros where the page is not there. */
static void copy_key(const serving *s, const array *pool, const array *scale, int64_t b, int64_t h, int64_t kv,
                     array *to)
{
    const int64_t page = entry(s, b, kv / pool->size[2]), columns = to->size[3];
    const size_t element = attune_dtype_size(pool->dtype);
    const int64_t from = ((page * pool->size[1] + h) * pool->size[2] + kv % pool->size[2]) * pool->size[3];
    if (page < 0 || page >= pool->size[0])
        return;
    if (is_quantised(pool->dtype))
        for (int64_t d = 0; d < columns; d++)
            array_set(to, (h * to->size[2] + kv) * columns + d,
                      array_get(pool, from + d) * (scale->data ? array_get(scale, h) : 1));
    else
        memcpy((char *)to->data + (size_t)((h * to->size[2] + kv) * columns) * element,
               (const char *)pool->data + (size_t)from * element, (size_t)columns * element);
}

static attune_dtype value_dtype(const array *pool)
{
    return is_quantised(pool->dtype) ? ATTUNE_F32 : pool->dtype;
}

/* One sequence as an attention of its own. */
static bool extract(const serving *s, int64_t b, attention *a, bool **seen, failure *why)
{
    const array *k = &s->a.k, *v = s->a.v.data ? &s->a.v : k, *v_scale = s->a.v.data ? &s->v_scale : &s->k_scale;
    const int64_t rows = serving_rows(s, b), keys = serving_keys(s, b), d = k->size[3];
    const size_t row_bytes = (size_t)d * attune_dtype_size(s->a.q.dtype);
    array wide;
    a->q = a->k = a->v = (array){0};
    if (!array_create(&a->q, s->a.q.dtype, 4, (int64_t[]){1, heads_of(s), rows, d}, why) ||
        !array_create(&a->k, value_dtype(k), 4, (int64_t[]){1, k->size[1], keys, d}, why) ||
        !array_create(&a->v, value_dtype(v), 4, (int64_t[]){1, k->size[1], keys, serving_width(s)}, why) ||
        !(*seen = malloc((size_t)(rows * keys) + 1)))
        return failure_set(why, "out of memory for the reference");
    for (int64_t h = 0; h < heads_of(s); h++)
        for (int64_t i = 0; i < rows; i++)
            memcpy((char *)a->q.data + (size_t)(h * rows + i) * row_bytes,
                   (const char *)s->a.q.data + (size_t)serving_index(s, &(reference_row){b, h, i}) * row_bytes,
                   row_bytes);
    for (int64_t h = 0; h < k->size[1]; h++)
        for (int64_t kv = 0; kv < keys; kv++) {
            copy_key(s, k, &s->k_scale, b, h, kv, &a->k);
            copy_key(s, v, v_scale, b, h, kv, &a->v);
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t kv = 0; kv < keys; kv++)
            (*seen)[i * keys + kv] = sees(s, b, i, kv);
    /* The reference has one type for both. */
    array *const both[2] = {&a->k, &a->v};
    for (int i = 0; a->k.dtype != a->v.dtype && i < 2; i++)
        if (both[i]->dtype != ATTUNE_F32) {
            if (!array_convert(both[i], ATTUNE_F32, &wide, why))
                return false;
            array_free(both[i]);
            *both[i] = wide;
        }
    a->b0 = b;
    a->q0 = keys - rows;
    a->seen = *seen;
    for (uint32_t i = 0; i < a->parameter_count; i++)
        if (!strcmp(a->parameters[i].name, ROW_PARAMETER))
            a->parameters[i].value = (double)((packed(s) ? at(&s->q_start, b) : b * rows) - a->q0);
    return true;
}

/* Rows of one sequence. */
static bool compute(const serving *s, attention *a, reference_precision precision, const reference_row *rows,
                    int64_t count, const reference_result *result, failure *why)
{
    bool *seen = NULL, good = true;
    reference_row *own = malloc((size_t)count * sizeof *own);
    if (!own)
        return failure_set(why, "out of memory for the reference");
    if (serving_keys(s, rows[0].b)) {
        for (int64_t i = 0; i < count; i++)
            own[i] = (reference_row){0, rows[i].h, rows[i].q};
        good = extract(s, rows[0].b, a, &seen, why) && reference_compute(a, precision, own, count, result, why);
        array_free(&a->q);
        array_free(&a->k);
        array_free(&a->v);
    }
    for (int64_t i = 0; !serving_keys(s, rows[0].b) && i < count; i++) {
        memset(result->o + i * serving_width(s), 0, (size_t)serving_width(s) * sizeof *result->o);
        if (result->moved)
            memset(result->moved + i * serving_width(s), 0, (size_t)serving_width(s) * sizeof *result->o);
        result->lse[i] = s->a.sinks.data ? array_get(&s->a.sinks, rows[i].h) : -INFINITY;
        result->row_max[i] = -INFINITY;
    }
    free(seen);
    free(own);
    return good;
}

bool serving_reference(attune_instance *instance, const serving *s, reference_precision precision,
                       const reference_row *rows, int64_t count, const reference_result *result, failure *why)
{
    const int64_t width = serving_width(s);
    attention a = s->a;
    a.mask = a.score = NULL;
    a.scale = s->a.scale > 0 ? s->a.scale : 1 / sqrt((double)s->a.k.size[3]);
    if (a.parameter_count == ATTUNE_EXPR_MAX_SYMBOLS)
        return failure_set(why, "the reference needs a parameter more than the %d there may be",
                           ATTUNE_EXPR_MAX_SYMBOLS);
    a.parameters[a.parameter_count++] = (attune_parameter){ROW_PARAMETER, 0};
    bool good = without_row(instance, ATTUNE_EXPR_MASK, s->a.mask, &a.mask, why) &&
                without_row(instance, ATTUNE_EXPR_SCORE, s->a.score, &a.score, why);
    for (int64_t i = 0, n; good && i < count; i += n) {
        for (n = 1; i + n < count && rows[i + n].b == rows[i].b;)
            n++;
        const reference_result part = {result->o + i * width, result->lse + i, result->row_max + i,
                                       result->moved ? result->moved + i * width : NULL};
        good = compute(s, &a, precision, rows + i, n, &part, why);
    }
    attune_expr_destroy(a.mask);
    attune_expr_destroy(a.score);
    return good;
}

bool serving_compare(attune_instance *instance, const serving *s, const reference_row *rows, int64_t count,
                     const double *got, const reference_result *oracle, const reference_result *naive,
                     reference_error *error, failure *why)
{
    const attention rule = {.k.dtype = value_dtype(&s->a.k),
                            .v.dtype = value_dtype(s->a.v.data ? &s->a.v : &s->a.k),
                            .o_dtype = attention_o_dtype(&s->a)};
    if (!serving_reference(instance, s, REFERENCE_ORACLE, rows, count, oracle, why) ||
        !serving_reference(instance, s, REFERENCE_NAIVE, rows, count, naive, why))
        return false;
    reference_compare_o(attention_rule_dtype(&rule), rule.o_dtype, count, serving_width(s), got, oracle, naive, error);
    return true;
}

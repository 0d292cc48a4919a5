/* SPDX-License-Identifier: MIT */
#include "bench/timing/share.h"

#include <stdlib.h>
#include <string.h>

/* Calls `row` with each row that a rank has: where it is in the array of all, and in the rank's. */
typedef void (*share_row)(char *all, char *mine, size_t bytes);

static void to_rank(char *all, char *mine, size_t bytes)
{
    memcpy(mine, all, bytes);
}

static void from_rank(char *all, char *mine, size_t bytes)
{
    memcpy(all, mine, bytes);
}

static int64_t count_positions(const attune_run *runs, uint32_t count)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += runs[i].count;
    return sum;
}

/* Runs of consecutive positions are adjacent in both. */
static void each_run(const array *all, const attune_run *runs, uint32_t count, char *mine, share_row row)
{
    const size_t bytes = (size_t)all->size[3] * attune_dtype_size(all->dtype);
    for (int64_t plane = 0; plane < all->size[0] * all->size[1]; plane++)
        for (uint32_t i = 0; i < count; i++) {
            row((char *)all->data + (size_t)(plane * all->size[2] + runs[i].start) * bytes, mine,
                (size_t)runs[i].count * bytes);
            mine += (size_t)runs[i].count * bytes;
        }
}

static attune_status make_buffer(attune_device *device, uint64_t size, const void *data, share *s,
                                 attune_buffer **buffer)
{
    attune_status status = attune_buffer_create(device, size, buffer);
    if (status != ATTUNE_OK)
        return status;
    s->buffers[s->buffer_count++] = *buffer;
    s->bytes += size;
    return data ? attune_buffer_write(*buffer, 0, data, size) : ATTUNE_OK;
}

/* The rank's part of an array; of its shape and dtype alone where fill is false. Without positions there is none. */
static attune_status make_part(attune_device *device, const array *all, const attune_run *runs, uint32_t count,
                               bool fill, share *s, attune_tensor *t)
{
    const int64_t positions = count_positions(runs, count);
    const size_t bytes =
        (size_t)(all->size[0] * all->size[1] * positions * all->size[3]) * attune_dtype_size(all->dtype);
    if (!positions)
        return ATTUNE_OK;
    char *data = calloc(bytes, 1);
    if (!data)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (fill)
        each_run(all, runs, count, data, to_rank);
    else
        memset(data, 0xff, bytes); /* NaN in every dtype: rows that no call writes are seen */
    *t = (attune_tensor){.dtype = all->dtype, .rank = 4, .size = {all->size[0], all->size[1], positions, all->size[3]}};
    const attune_status status = make_buffer(device, bytes, data, s, &t->buffer);
    free(data);
    return status;
}

/* A tensor of a capture's shape. */
static attune_status make_capture(attune_device *device, const attune_host_capture *like, attune_dtype dtype,
                                  const void *data, share *s, attune_capture *made)
{
    uint64_t bytes = attune_dtype_size(dtype);
    made->name = like->name;
    made->tensor = (attune_tensor){.dtype = dtype, .rank = like->array.rank};
    for (uint32_t d = 0; d < like->array.rank; d++)
        bytes *= (uint64_t)(made->tensor.size[d] = like->array.size[d]);
    return make_buffer(device, bytes, data, s, &made->tensor.buffer);
}

/* The captures and parameters of the score expression. */
static attune_status bind_score(attune_device *device, const attention *a, share *s)
{
    for (uint32_t i = 0, n = a->score ? attune_expr_symbol_count(a->score) : 0; i < n; i++) {
        attune_symbol symbol;
        attune_status status = attune_expr_symbol_get(a->score, i, &symbol);
        for (uint32_t p = 0; status == ATTUNE_OK && p < a->parameter_count; p++)
            if (!strcmp(a->parameters[p].name, symbol.name))
                s->parameters[s->args.parameter_count++] = a->parameters[p];
        for (uint32_t c = 0; status == ATTUNE_OK && c < a->capture_count; c++) {
            const attune_array *host = &a->captures[c].array;
            if (strcmp(a->captures[c].name, symbol.name) != 0)
                continue;
            status = make_capture(device, &a->captures[c], host->dtype, host->data, s,
                                  &s->captures[s->args.capture_count++]);
        }
        if (status != ATTUNE_OK)
            return status;
    }
    s->args.captures = s->captures;
    s->args.parameters = s->parameters;
    return ATTUNE_OK;
}

static attune_status make_arguments(attune_device *device, const attune_partition *partition, uint32_t rank,
                                    const attention *a, share *s)
{
    array o = {.dtype = attention_o_dtype(a), .rank = 4, .size = {0, 0, 0, a->v.size[3]}};
    memcpy(o.size, a->q.size, 3 * sizeof *o.size);
    s->queue = attune_device_queue(device);
    s->args.struct_size = sizeof s->args;
    attune_status status = attune_partition_runs(partition, rank, ATTUNE_RUN_ROWS, &s->rows, &s->row_runs);
    if (status == ATTUNE_OK)
        status = attune_partition_runs(partition, rank, ATTUNE_RUN_KEYS, &s->keys, &s->key_runs);
    if (status == ATTUNE_OK)
        status = make_part(device, &a->q, s->rows, s->row_runs, true, s, &s->args.q);
    if (status == ATTUNE_OK)
        status = make_part(device, &a->k, s->keys, s->key_runs, true, s, &s->args.k);
    if (status == ATTUNE_OK)
        status = make_part(device, &a->v, s->keys, s->key_runs, true, s, &s->args.v);
    if (status == ATTUNE_OK)
        status = make_part(device, &o, s->rows, s->row_runs, false, s, &s->args.o);
    if (status == ATTUNE_OK)
        status = bind_score(device, a, s);
    const uint64_t forward = attune_distributed_workspace_size(s->distributed),
                   backward = attune_distributed_workspace_size(s->backward);
    const uint64_t workspace = forward > backward ? forward : backward;
    if (status == ATTUNE_OK && workspace)
        status = make_buffer(device, workspace, NULL, s, &s->args.workspace);
    return status;
}

/* Backward also has f32 gradients of captures, and LSE. */
static attune_status make_gradients(attune_device *device, const attention *a, const share_gradients *g, share *s)
{
    attune_backward_args *b = &s->back;
    const int64_t rows = count_positions(s->rows, s->row_runs);
    const attune_dtype real = a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_status status = ATTUNE_OK;
    if (rows) {
        s->args.lse = (attune_tensor){.dtype = real, .rank = 3, .size = {a->q.size[0], a->q.size[1], rows}};
        status = make_buffer(device, (uint64_t)(a->q.size[0] * a->q.size[1] * rows) * attune_dtype_size(real), NULL, s,
                             &s->args.lse.buffer);
    }
    if (status == ATTUNE_OK)
        status = make_part(device, &g->d_o, s->rows, s->row_runs, true, s, &b->d_o);
    if (status == ATTUNE_OK)
        status = make_part(device, &g->d_q, s->rows, s->row_runs, false, s, &b->d_q);
    if (status == ATTUNE_OK)
        status = make_part(device, &g->d_k, s->keys, s->key_runs, false, s, &b->d_k);
    if (status == ATTUNE_OK)
        status = make_part(device, &g->d_v, s->keys, s->key_runs, false, s, &b->d_v);
    const uint32_t wanted = attention_differentiable(a);
    for (uint32_t c = 0; status == ATTUNE_OK && c < a->capture_count; c++) {
        if (!(wanted >> c & 1))
            continue;
        attune_capture *to = &s->gradients[b->capture_gradient_count++];
        status = make_capture(device, &a->captures[c], ATTUNE_F32, NULL, s, to);
    }
    b->struct_size = sizeof *b;
    b->q = s->args.q;
    b->k = s->args.k;
    b->v = s->args.v;
    b->o = s->args.o;
    b->lse = s->args.lse;
    b->captures = s->args.captures;
    b->capture_count = s->args.capture_count;
    b->capture_gradients = s->gradients;
    b->parameters = s->args.parameters;
    b->parameter_count = s->args.parameter_count;
    b->workspace = s->args.workspace;
    return status;
}

attune_status share_make(attune_device *device, const attune_transport *transport, const attune_partition *partition,
                         const attune_mask *mask, const attune_problem *problem, const attune_kernel_options *options,
                         attune_overlap overlap, const attention *a, const share_gradients *gradients, share *s)
{
    attune_problem backward = *problem;
    const attune_distributed_desc desc = {.struct_size = sizeof desc,
                                          .transport = transport,
                                          .partition = partition,
                                          .mask = mask,
                                          .problem = problem,
                                          .options = options,
                                          .overlap = overlap};
    *s = (share){0};
    attune_status status = attune_distributed_create(device, &desc, &s->distributed);
    if (status == ATTUNE_OK && gradients) {
        attune_distributed_desc back = desc;
        back.problem = &backward;
        backward.direction = ATTUNE_BACKWARD;
        backward.capture_gradient_elements = attention_capture_elements(a, attention_differentiable(a));
        status = attune_distributed_create(device, &back, &s->backward);
    }
    if (status == ATTUNE_OK)
        status = make_arguments(device, partition, transport->rank, a, s);
    return status == ATTUNE_OK && gradients ? make_gradients(device, a, gradients, s) : status;
}

/* ----------------------------------------------------------------------------------------------------------- decode */

/* The rows of a rank's sequences and heads, which are adjacent in each plane. */
static void each_plane(const share *s, const array *all, char *mine, share_row row)
{
    const size_t bytes = (size_t)(all->size[2] * all->size[3]) * attune_dtype_size(all->dtype);
    for (int64_t b = s->batches[0]; b < s->batches[0] + s->batches[1]; b++)
        for (int64_t h = s->heads[0]; h < s->heads[0] + s->heads[1]; h++, mine += bytes)
            row((char *)all->data + (size_t)(b * all->size[1] + h) * bytes, mine, bytes);
}

static uint64_t plane_bytes(const share *s, const array *all)
{
    return (uint64_t)(s->batches[1] * s->heads[1] * all->size[2] * all->size[3]) * attune_dtype_size(all->dtype);
}

/* The rank's queries, or their results where fill is false. */
static attune_status make_queries(attune_device *device, const array *all, bool fill, share *s, attune_tensor *t)
{
    const uint64_t bytes = plane_bytes(s, all);
    if (!bytes)
        return ATTUNE_OK;
    char *data = malloc(bytes);
    if (!data)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (fill)
        each_plane(s, all, data, to_rank);
    else
        memset(data, 0xff, bytes); /* NaN in every dtype */
    *t = (attune_tensor){
        .dtype = all->dtype, .rank = 4, .size = {s->batches[1], s->heads[1], all->size[2], all->size[3]}};
    const attune_status status = make_buffer(device, bytes, data, s, &t->buffer);
    free(data);
    return status;
}

/* The keys of a rank: every size-th chunk. */
static bool deal_keys(const attune_transport *transport, int64_t kv_len, share *s)
{
    const int64_t step = SHARE_CHUNK * (int64_t)transport->size;
    s->dealt = calloc((size_t)(kv_len / step + 1), sizeof *s->dealt);
    for (int64_t at = SHARE_CHUNK * (int64_t)transport->rank; s->dealt && at < kv_len; at += step)
        s->dealt[s->key_runs++] =
            (attune_run){.start = at, .count = kv_len - at < SHARE_CHUNK ? kv_len - at : SHARE_CHUNK};
    s->keys = s->dealt;
    return s->dealt != NULL;
}

attune_status share_make_decode(attune_device *device, const attune_transport *transport, const attune_problem *problem,
                                const attune_kernel_options *options, const attention *a, share *s)
{
    const int64_t size = transport->size, rank = transport->rank;
    const bool by_head = a->q.size[0] < size;
    const attune_decode_desc desc = {.struct_size = sizeof desc,
                                     .transport = transport,
                                     .problem = problem,
                                     .options = options,
                                     .split = by_head ? ATTUNE_QUERIES_BY_HEAD : ATTUNE_QUERIES_BY_SEQUENCE,
                                     .chunk = SHARE_CHUNK};
    const int64_t all = a->q.size[by_head], first = all * rank / size, count = all * (rank + 1) / size - first;
    array o = {.dtype = attention_o_dtype(a), .rank = 4, .size = {0, 0, 0, a->v.size[3]}};
    memcpy(o.size, a->q.size, 3 * sizeof *o.size);
    *s = (share){.queue = attune_device_queue(device),
                 .kv_len = a->k.size[2],
                 .batches = {by_head ? 0 : first, by_head ? a->q.size[0] : count},
                 .heads = {by_head ? first : 0, by_head ? count : a->q.size[1]}};
    s->args.struct_size = sizeof s->args;
    attune_status status = attune_decode_create(device, &desc, &s->decode);
    if (status == ATTUNE_OK && !deal_keys(transport, s->kv_len, s))
        status = ATTUNE_OUT_OF_HOST_MEMORY;
    if (status == ATTUNE_OK)
        status = make_queries(device, &a->q, true, s, &s->args.q);
    if (status == ATTUNE_OK)
        status = make_part(device, &a->k, s->keys, s->key_runs, true, s, &s->args.k);
    if (status == ATTUNE_OK)
        status = make_part(device, &a->v, s->keys, s->key_runs, true, s, &s->args.v);
    if (status == ATTUNE_OK)
        status = make_queries(device, &o, false, s, &s->args.o);
    if (status == ATTUNE_OK)
        status = bind_score(device, a, s);
    const uint64_t workspace = attune_decode_workspace_size(s->decode);
    if (status == ATTUNE_OK && workspace)
        status = make_buffer(device, workspace, NULL, s, &s->args.workspace);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

attune_status share_wait(const share *s)
{
    unsigned char byte;
    return s->buffer_count ? attune_buffer_read(s->buffers[0], 0, &byte, 1) : ATTUNE_OK;
}

attune_status share_call(share *s)
{
    if (s->decode)
        return attune_distributed_decode(s->decode, s->queue, &s->args, s->kv_len, NULL);
    if (!s->called || !s->backward) {
        const attune_status status = attune_distributed_forward(s->distributed, s->queue, &s->args, NULL);
        if (status != ATTUNE_OK || !s->backward)
            return status;
        s->called = true;
    }
    return attune_distributed_backward(s->backward, s->queue, &s->back, NULL);
}

static attune_status read_part(const attune_tensor *t, const attune_run *runs, uint32_t count, array *o)
{
    const int64_t positions = count_positions(runs, count);
    const size_t bytes = (size_t)(o->size[0] * o->size[1] * positions * o->size[3]) * attune_dtype_size(o->dtype);
    if (!positions)
        return ATTUNE_OK;
    char *data = malloc(bytes);
    if (!data)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = attune_buffer_read(t->buffer, 0, data, bytes);
    if (status == ATTUNE_OK)
        each_run(o, runs, count, data, from_rank);
    free(data);
    return status;
}

/* The results of the rank's queries. */
static attune_status read_queries(const share *s, array *o)
{
    const uint64_t bytes = plane_bytes(s, o);
    char *data = malloc(bytes ? bytes : 1);
    if (!data)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    const attune_status status = bytes ? attune_buffer_read(s->args.o.buffer, 0, data, bytes) : ATTUNE_OK;
    if (status == ATTUNE_OK)
        each_plane(s, o, data, from_rank);
    free(data);
    return status;
}

attune_status share_read(const share *s, array *o)
{
    if (s->decode)
        return read_queries(s, o);
    return read_part(&s->args.o, s->rows, s->row_runs, o);
}

attune_status share_read_gradients(const share *s, share_gradients *g)
{
    attune_status status = read_part(&s->back.d_q, s->rows, s->row_runs, &g->d_q);
    if (status == ATTUNE_OK)
        status = read_part(&s->back.d_k, s->keys, s->key_runs, &g->d_k);
    return status == ATTUNE_OK ? read_part(&s->back.d_v, s->keys, s->key_runs, &g->d_v) : status;
}

void share_free(share *s)
{
    attune_distributed_destroy(s->distributed);
    attune_distributed_destroy(s->backward);
    attune_decode_destroy(s->decode);
    free(s->dealt);
    for (uint32_t i = 0; i < s->buffer_count; i++)
        attune_buffer_destroy(s->buffers[i]);
    *s = (share){0};
}

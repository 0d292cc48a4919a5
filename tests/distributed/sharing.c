/* SPDX-License-Identifier: MIT */
#include "distributed/sharing.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "support/devices.h"

const attention_case sharing_windows = {.name = "windows",
                                        .batch = 1,
                                        .kv_batch = 1,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .q_len = 110,
                                        .kv_len = 110,
                                        .head_dim = 16,
                                        .mask = "q >= kv && q - kv < 37",
                                        .score = "score + slope[h] * (kv - q) + half_bias[kv]",
                                        .q_block = 16,
                                        .kv_block = 16};

static int64_t count_positions(const attune_run *runs, uint32_t count)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += runs[i].count;
    return sum;
}

bool local_allocate(attune_device *device, size_t bytes, local *l)
{
    attune_device_info info = {.struct_size = sizeof info};
    l->bytes = bytes;
    if (!bytes)
        return true;
    l->data = calloc(bytes, 1);
    l->copied = attune_device_info_get(device, &info) == ATTUNE_OK && info.backend != ATTUNE_BACKEND_CPU;
    return l->data && (l->copied ? attune_buffer_create(device, bytes, &l->tensor.buffer)
                                 : attune_buffer_wrap(device, l->data, bytes, &l->tensor.buffer)) == ATTUNE_OK;
}

/* A lost device fails in the calls. */
void local_upload(const local *l)
{
    if (l->copied)
        (void)attune_buffer_write(l->tensor.buffer, 0, l->data, l->bytes);
}

void local_download(const local *l)
{
    if (l->copied)
        (void)attune_buffer_read(l->tensor.buffer, 0, l->data, l->bytes);
}

/* Elements [b, h, positions, columns], of those of a whole array. */
static bool local_create(attune_device *device, const array *like, int64_t positions, bool token_major, local *l)
{
    attune_tensor *t = &l->tensor;
    memset(l, 0, sizeof *l);
    if (!positions)
        return true;
    const int64_t columns = like->rank == 4 ? like->size[3] : 1;
    *t = (attune_tensor){.dtype = like->dtype, .rank = like->rank};
    const int64_t size[4] = {like->size[0], like->size[1], positions, columns};
    memcpy(t->size, size, sizeof size);
    t->stride[0] = size[1] * positions * columns;
    t->stride[1] = token_major ? columns : positions * columns;
    t->stride[2] = token_major ? size[1] * columns : columns;
    t->stride[3] = 1;
    return local_allocate(device, (size_t)(size[0] * t->stride[0]) * attune_dtype_size(like->dtype), l);
}

void local_destroy(local *l)
{
    attune_buffer_destroy(l->tensor.buffer);
    free(l->data);
}

/* Copies rows between a rank's tensor and the whole array, if there is one. */
static void move(const local *l, const array *whole, const attune_run *runs, uint32_t count, bool out)
{
    if (!whole->data)
        return;
    const attune_tensor *t = &l->tensor;
    const size_t element = attune_dtype_size(whole->dtype);
    const int64_t columns = whole->rank == 4 ? whole->size[3] : 1;
    int64_t at = 0;
    for (uint32_t i = 0; i < count; i++)
        for (int64_t p = runs[i].start; p < runs[i].start + runs[i].count; p++, at++)
            for (int64_t b = 0; b < whole->size[0]; b++)
                for (int64_t h = 0; h < whole->size[1]; h++) {
                    char *mine = l->data + (size_t)(b * t->stride[0] + h * t->stride[1] + at * t->stride[2]) * element;
                    char *all = (char *)whole->data +
                                (size_t)(((b * whole->size[1] + h) * whole->size[2] + p) * columns) * element;
                    memcpy(out ? all : mine, out ? mine : all, (size_t)columns * element);
                }
    if (!out)
        local_upload(l);
}

typedef struct rank_data {
    attune_partition *partition;
    attune_distributed *distributed;
    local q, k, v, o, lse, sinks, captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_capture named[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_distributed *backward;
    local d_o, d_lse, d_q, d_k, d_v, d_sinks, d_captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_capture wanted[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t wanted_count;
    const attune_run *rows, *keys;
    uint32_t row_runs, key_runs;
    local workspace;
} rank_data;

static bool place_whole(attune_device *device, const void *data, attune_dtype dtype, uint32_t rank, const int64_t *size,
                        local *l)
{
    int64_t elements = 1;
    l->tensor = (attune_tensor){.dtype = dtype, .rank = rank};
    for (uint32_t i = 0; i < rank; i++) {
        l->tensor.size[i] = size[i];
        elements *= size[i];
    }
    if (!local_allocate(device, (size_t)elements * attune_dtype_size(dtype), l))
        return false;
    memcpy(l->data, data, l->bytes);
    local_upload(l);
    return true;
}

static attune_status prepare(sharing *s, uint32_t rank, rank_data *r)
{
    const attention *a = s->a;
    const attune_partition_desc dealt = {.struct_size = sizeof dealt, .ranks = s->ranks, .layout = s->layout};
    attune_status status = attune_partition_create(s->instance, &dealt, s->mask, &r->partition);
    if (status != ATTUNE_OK)
        return status;
    attune_partition_runs(r->partition, rank, ATTUNE_RUN_ROWS, &r->rows, &r->row_runs);
    attune_partition_runs(r->partition, rank, ATTUNE_RUN_KEYS, &r->keys, &r->key_runs);
    attune_problem problem = {
        .struct_size = sizeof problem,
        .dtype = a->q.dtype,
        .kv_dtype = a->k.dtype,
        .o_dtype = a->o_dtype,
        .head_dim = (uint32_t)a->q.size[3],
        .head_dim_v = (uint32_t)a->v.size[3],
        .batch = a->q.size[0],
        .kv_batch = a->k.size[0],
        .heads = a->q.size[1],
        .kv_heads = a->k.size[1],
        .scale = rank == s->other_problem ? 0.125 : a->scale,
        .score = a->score,
        .lse = true,
        .sinks = a->sinks.data != NULL,
    };
    const attune_transport transport = rank_transport(&s->group, rank, s->late);
    const attune_distributed_desc desc = {.struct_size = sizeof desc,
                                          .transport = &transport,
                                          .partition = r->partition,
                                          .mask = s->mask,
                                          .problem = &problem,
                                          .token_major = s->token_major,
                                          .overlap = s->overlap};
    status = attune_distributed_create(sharing_device(s, rank), &desc, &r->distributed);
    if (status != ATTUNE_OK || !s->backward)
        return status;
    problem.direction = ATTUNE_BACKWARD;
    problem.capture_gradient_elements = attention_capture_elements(a, attention_differentiable(a));
    return attune_distributed_create(sharing_device(s, rank), &desc, &r->backward);
}

static uint64_t workspace_size(const rank_data *r)
{
    const uint64_t forward = attune_distributed_workspace_size(r->distributed),
                   backward = attune_distributed_workspace_size(r->backward);
    return forward > backward ? forward : backward;
}

/* Tensors of backward alone. d_k and d_v have the other layout. */
static bool place_gradients(const sharing *s, attune_device *device, rank_data *r)
{
    const attention *a = s->a;
    const case_gradients *g = &s->gradients;
    const int64_t rows = count_positions(r->rows, r->row_runs), keys = count_positions(r->keys, r->key_runs);
    bool ok = local_create(device, &g->d_o, rows, false, &r->d_o) &&
              (!g->d_lse.data || local_create(device, &g->d_lse, rows, false, &r->d_lse)) &&
              local_create(device, &a->q, rows, false, &r->d_q) &&
              local_create(device, &a->k, keys, !s->token_major, &r->d_k) &&
              local_create(device, &a->v, keys, !s->token_major, &r->d_v);
    if (ok && a->sinks.data)
        ok = place_whole(device, a->sinks.data, a->sinks.dtype, 1, a->sinks.size, &r->d_sinks);
    for (uint32_t i = 0; ok && i < a->capture_count; i++) {
        const array *zeros = &g->d_captures[i];
        if (!zeros->data)
            continue;
        ok = place_whole(device, zeros->data, zeros->dtype, zeros->rank, zeros->size, &r->d_captures[i]);
        r->wanted[r->wanted_count++] = (attune_capture){a->captures[i].name, r->d_captures[i].tensor};
    }
    if (ok) {
        move(&r->d_o, &g->d_o, r->rows, r->row_runs, false);
        move(&r->d_lse, &g->d_lse, r->rows, r->row_runs, false);
    }
    return ok;
}

static bool place(const sharing *s, uint32_t rank, rank_data *r)
{
    attune_device *device = sharing_device(s, rank);
    const attention *a = s->a;
    const int64_t rows = count_positions(r->rows, r->row_runs), keys = count_positions(r->keys, r->key_runs);
    bool ok = local_create(device, &a->q, rows, false, &r->q) &&
              local_create(device, &a->k, keys, s->token_major, &r->k) &&
              local_create(device, &a->v, keys, s->token_major, &r->v) &&
              local_create(device, &s->o, rows, false, &r->o) && local_create(device, &s->lse, rows, false, &r->lse);
    if (ok && a->sinks.data)
        ok = place_whole(device, a->sinks.data, a->sinks.dtype, 1, a->sinks.size, &r->sinks);
    for (uint32_t i = 0; ok && i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        ok = place_whole(device, h->data, h->dtype, h->rank, h->size, &r->captures[i]);
        r->named[i] = (attune_capture){a->captures[i].name, r->captures[i].tensor};
    }
    ok = ok && local_allocate(device, workspace_size(r), &r->workspace);
    if (ok) {
        move(&r->q, &a->q, r->rows, r->row_runs, false);
        move(&r->k, &a->k, r->keys, r->key_runs, false);
        move(&r->v, &a->v, r->keys, r->key_runs, false);
    }
    return ok && (!s->backward || place_gradients(s, device, r));
}

static attune_status call_forward(const sharing *s, uint32_t rank, const rank_data *r)
{
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = r->q.tensor,
                                      .k = r->k.tensor,
                                      .v = r->v.tensor,
                                      .o = r->o.tensor,
                                      .lse = r->lse.tensor,
                                      .mask = rank == s->bad_call && !s->backward ? s->mask : NULL,
                                      .captures = r->named,
                                      .capture_count = s->a->capture_count,
                                      .parameters = s->a->parameters,
                                      .parameter_count = s->a->parameter_count,
                                      .sinks = r->sinks.tensor,
                                      .workspace = r->workspace.tensor.buffer};
    attune_completion done;
    const attune_status status =
        attune_distributed_forward(r->distributed, attune_device_queue(sharing_device(s, rank)), &args, &done);
    return status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
}

static attune_status call_backward(const sharing *s, uint32_t rank, const rank_data *r)
{
    const attune_backward_args args = {.struct_size = sizeof args,
                                       .q = r->q.tensor,
                                       .k = r->k.tensor,
                                       .v = r->v.tensor,
                                       .o = r->o.tensor,
                                       .lse = r->lse.tensor,
                                       .d_o = r->d_o.tensor,
                                       .d_lse = r->d_lse.tensor,
                                       .d_q = r->d_q.tensor,
                                       .d_k = r->d_k.tensor,
                                       .d_v = r->d_v.tensor,
                                       .mask = rank == s->bad_call ? s->mask : NULL,
                                       .captures = r->named,
                                       .capture_count = s->a->capture_count,
                                       .capture_gradients = r->wanted,
                                       .capture_gradient_count = r->wanted_count,
                                       .parameters = s->a->parameters,
                                       .parameter_count = s->a->parameter_count,
                                       .sinks = r->sinks.tensor,
                                       .d_sinks = r->d_sinks.tensor,
                                       .workspace = r->workspace.tensor.buffer};
    attune_completion done;
    const attune_status status =
        attune_distributed_backward(r->backward, attune_device_queue(sharing_device(s, rank)), &args, &done);
    return status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
}

static uint64_t hash_bytes(uint64_t hash, const local *l)
{
    for (size_t i = 0; i < l->bytes; i++)
        hash = (hash ^ (unsigned char)l->data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_downloaded(uint64_t hash, const local *l)
{
    local_download(l);
    return hash_bytes(hash, l);
}

static void fill(const local *l, int byte)
{
    if (l->bytes)
        memset(l->data, byte, l->bytes);
    local_upload(l);
}

/* Calls one after another, each in other memory; the bits of all outputs are the first's. */
static attune_status repeat(sharing *s, uint32_t rank, rank_data *r, bool backward, uint32_t calls)
{
    const local *const of_forward[] = {&r->o, &r->lse}, *const of_backward[] = {&r->d_q, &r->d_k, &r->d_v, &r->d_sinks};
    const local *const *outputs = backward ? of_backward : of_forward;
    const size_t count = backward ? 4 : 2;
    attune_status status = ATTUNE_OK;
    uint64_t first = 0;
    for (uint32_t i = 0; status == ATTUNE_OK && i < calls; i++) {
        uint64_t hash = 0;
        for (size_t j = 0; j < count; j++)
            fill(outputs[j], 0x5a);
        for (uint32_t j = 0; j < s->a->capture_count && backward; j++)
            fill(&r->d_captures[j], 0);
        fill(&r->workspace, 0xa5 + (int)i);
        status = backward ? call_backward(s, rank, r) : call_forward(s, rank, r);
        for (size_t j = 0; j < count; j++)
            hash = hash_downloaded(hash, outputs[j]);
        for (uint32_t j = 0; j < s->a->capture_count && backward; j++)
            hash = hash_downloaded(hash, &r->d_captures[j]);
        s->differs[rank] |= i && hash != first;
        first = hash;
    }
    return status;
}

/* Sums that are equal on all ranks. A further call adds as much again to gradients of captures, which is exact. */
static attune_status check_shared(sharing *s, uint32_t rank, rank_data *r)
{
    uint64_t hash = hash_bytes(1, &r->d_sinks);
    for (uint32_t i = 0; i < s->a->capture_count; i++) {
        local *l = &r->d_captures[i];
        hash = hash_bytes(hash, l);
        if (!rank && l->bytes)
            memcpy(s->gradients.d_captures[i].data, l->data, l->bytes);
    }
    if (!rank && r->d_sinks.bytes)
        memcpy(s->gradients.d_sinks.data, r->d_sinks.data, r->d_sinks.bytes);
    s->shared[rank] = hash;
    char *before[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
    for (uint32_t i = 0; i < s->a->capture_count; i++)
        if (r->d_captures[i].bytes)
            before[i] = memcpy(malloc(r->d_captures[i].bytes), r->d_captures[i].data, r->d_captures[i].bytes);
    const attune_status status = call_backward(s, rank, r);
    for (uint32_t i = 0; i < s->a->capture_count; i++) {
        local_download(&r->d_captures[i]);
        for (size_t j = 0; before[i] && j < r->d_captures[i].bytes / sizeof(float); j++) {
            const float once = ((const float *)(void *)before[i])[j];
            const float twice = ((const float *)(void *)r->d_captures[i].data)[j];
            s->differs[rank] |= status == ATTUNE_OK && twice != once + once && !(isnan(once) && isnan(twice));
        }
        free(before[i]);
    }
    return status;
}

static void rank_destroy(const sharing *s, rank_data *r)
{
    local *all[] = {&r->q,     &r->k,   &r->v,   &r->o,   &r->lse,     &r->sinks,    &r->d_o,
                    &r->d_lse, &r->d_q, &r->d_k, &r->d_v, &r->d_sinks, &r->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        local_destroy(all[i]);
    for (uint32_t i = 0; i < s->a->capture_count; i++) {
        local_destroy(&r->captures[i]);
        local_destroy(&r->d_captures[i]);
    }
    attune_distributed_destroy(r->distributed);
    attune_distributed_destroy(r->backward);
    attune_partition_destroy(r->partition);
}

void sharing_run_rank(void *context, uint32_t rank)
{
    sharing *s = context;
    rank_data r = {.partition = NULL};
    attune_status status = s->created[rank] = prepare(s, rank, &r);
    if (status == ATTUNE_OK && !place(s, rank, &r))
        abort();
    if (status == ATTUNE_OK)
        status = repeat(s, rank, &r, false, s->backward ? 1 : s->calls);
    if (status == ATTUNE_OK && s->backward)
        status = repeat(s, rank, &r, true, s->calls);
    if (status == ATTUNE_OK && s->backward)
        status = check_shared(s, rank, &r);
    s->status[rank] = status;
    if (status != ATTUNE_OK) {
        strncpy(s->message[rank], attune_last_error(), sizeof s->message[rank] - 1);
        local_download(&r.workspace); /* waits for what was launched before */
    } else {
        move(&r.o, &s->o, r.rows, r.row_runs, true);
        move(&r.lse, &s->lse, r.rows, r.row_runs, true);
        move(&r.d_q, &s->gradients.d_q, r.rows, r.row_runs, true);
        move(&r.d_k, &s->gradients.d_k, r.keys, r.key_runs, true);
        move(&r.d_v, &s->gradients.d_v, r.keys, r.key_runs, true);
    }
    rank_destroy(s, &r);
}

static attune_mask *make_mask(attune_instance *instance, const attention_case *c, const attention *a)
{
    const attune_mask_desc desc = {.struct_size = sizeof desc,
                                   .q_block = c->q_block ? c->q_block : 32,
                                   .kv_block = c->kv_block ? c->kv_block : 16,
                                   .batch = c->batch,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .q_len = c->q_len,
                                   .kv_len = c->kv_len};
    attune_mask *mask, *listed;
    attune_expr *expr = a->mask, *all = NULL;
    failure why;
    if (!expr) {
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &all), ATTUNE_OK);
        expr = all;
    }
    cr_assert_eq(attune_mask_create(instance, &desc, expr, a->captures, a->capture_count, a->parameters,
                                    a->parameter_count, &mask),
                 ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(all);
    if (!c->partial)
        return mask;
    attune_mask_lists lists = {.struct_size = sizeof lists};
    cr_assert(case_partial(instance, c, &expr, &why), "%s", why.message);
    cr_assert_eq(attune_mask_lists_get(mask, &lists), ATTUNE_OK);
    cr_assert_eq(attune_mask_create_lists(instance, &desc, &lists, expr, a->captures, a->capture_count, a->parameters,
                                          a->parameter_count, &listed),
                 ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(expr);
    attune_mask_destroy(mask);
    return listed;
}

/* A random d_o, and d_lse in half of the cases; outputs are zero. */
static bool make_gradients(const attention *a, const array *o, const array *lse, uint64_t number, case_gradients *g)
{
    failure why;
    random_state random = {number};
    bool ok = array_create(&g->d_o, o->dtype, 4, o->size, &why) &&
              (number % 2 == 0 || array_create(&g->d_lse, lse->dtype, 3, lse->size, &why)) &&
              array_create(&g->d_q, a->q.dtype, 4, a->q.size, &why) &&
              array_create(&g->d_k, a->k.dtype, 4, a->k.size, &why) &&
              array_create(&g->d_v, a->v.dtype, 4, a->v.size, &why) &&
              (!a->sinks.data || array_create(&g->d_sinks, a->sinks.dtype, 1, a->sinks.size, &why));
    for (uint32_t i = 0; ok && i < a->capture_count; i++)
        if (attention_differentiable(a) >> i & 1) {
            const attune_array *h = &a->captures[i].array;
            ok = array_create(&g->d_captures[i], ATTUNE_F32, h->rank, h->size, &why);
        }
    if (ok)
        array_fill_normal(&g->d_o, &random, 1);
    if (ok && g->d_lse.data)
        array_fill_normal(&g->d_lse, &random, 1);
    return ok;
}

void sharing_begin(sharing *s, const attention *a, uint64_t number)
{
    failure why;
    const int64_t size[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    s->a = a;
    s->layout = (attune_layout)(number % 5);
    s->token_major = number / 5 % 2;
    s->late = number / 3 % 2;
    s->overlap = number / 2 % 2 == 0 ? ATTUNE_OVERLAP_ON
                 : number % 7 < 3    ? ATTUNE_OVERLAP_OFF
                 : number % 7 < 5    ? ATTUNE_OVERLAP_HEADS
                 : number % 7 < 6    ? ATTUNE_OVERLAP_READ
                                     : ATTUNE_OVERLAP_AUTO;
    s->other_problem = s->bad_call = MOST_RANKS;
    memset(s->differs, 0, sizeof s->differs);
    s->mask = make_mask(s->instance, s->c, a);
    cr_assert(array_create(&s->o, attention_o_dtype(a), 4, size, &why));
    cr_assert(array_create(&s->lse, a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 3, size, &why));
    s->gradients = (case_gradients){.lse = &s->lse};
    cr_assert(!s->backward || make_gradients(a, &s->o, &s->lse, number, &s->gradients));
    rank_group_init(&s->group, s->ranks);
    s->group.one_at_a_time = s->one_at_a_time;
    const bool may_read = s->overlap == ATTUNE_OVERLAP_READ || s->overlap == ATTUNE_OVERLAP_AUTO;
    s->group.lends = may_read && !s->device_count;
}

void sharing_end(sharing *s)
{
    case_gradients *g = &s->gradients;
    array *all[] = {&s->o, &s->lse, &g->d_o, &g->d_lse, &g->d_q, &g->d_k, &g->d_v, &g->d_sinks};
    rank_group_finish(&s->group);
    attune_mask_destroy(s->mask);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(all[i]);
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        array_free(&g->d_captures[i]);
}

void sharing_open(sharing *s)
{
    /* On two GPUs a test compiles some 50 kernels. */
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1, .compile_threads = 4};
    cr_assert_eq(attune_instance_create(&desc, &s->instance), ATTUNE_OK);
    s->device = device_or_skip(s->instance, "cpu");
}

static bool is_rank(const sharing *s, const attune_device *device)
{
    bool any = false;
    for (uint32_t i = 0; i < s->device_count; i++)
        any = any || s->devices[i] == device;
    return any;
}

void sharing_open_devices(sharing *s, const char *const *backends, uint32_t count)
{
    sharing_open(s);
    memset(s->devices, 0, sizeof s->devices);
    s->device_count = count;
    s->one_at_a_time = getenv("ATTUNE_MODEL_CUDA"); /* the model has no threads */
    for (uint32_t i = 0; i < count; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        /* PoCL 3.1 miscounts the references to a kernel that two queues run at once: its ranks share a queue, and the
         * device beside which they are compared is theirs. */
        uint32_t same = 0;
        while (same < i && (strcmp(backends[i], "opencl") != 0 || strcmp(backends[same], backends[i]) != 0))
            same++;
        s->devices[i] = same < i ? s->devices[same] : device_or_skip(s->instance, backends[i]);
        s->opened[i] = same == i;
        cr_assert_eq(attune_device_info_get(s->devices[i], &info), ATTUNE_OK);
        if (info.backend == ATTUNE_BACKEND_CPU)
            continue;
        if (!is_rank(s, s->device))
            attune_device_destroy(s->device);
        if (info.backend == ATTUNE_BACKEND_OPENCL)
            s->device = s->devices[i];
        else
            cr_assert_eq(attune_device_open(s->instance, info.id, &s->device), ATTUNE_OK);
    }
}

attune_device *sharing_device(const sharing *s, uint32_t rank)
{
    return s->device_count ? s->devices[rank % s->device_count] : s->device;
}

void sharing_lose(void *device)
{
    atomic_store(&((attune_device *)device)->lost, true);
}

void sharing_close(sharing *s)
{
    if (!is_rank(s, s->device))
        attune_device_destroy(s->device);
    for (uint32_t i = 0; i < s->device_count; i++)
        if (s->opened[i])
            attune_device_destroy(s->devices[i]);
    s->device_count = 0;
    attune_instance_destroy(s->instance);
}

void sharing_compare(const sharing *s, attune_dtype dtype)
{
    const attention *a = s->a;
    const int64_t dv = a->v.size[3], rows = array_count(&s->lse);
    double *values = calloc((size_t)(3 * rows * (dv + 2) + rows * dv), sizeof *values);
    cr_assert(values);
    reference_result result[3];
    failure why;
    for (int i = 0; i < 3; i++) {
        double *base = values + i * rows * (dv + 2);
        result[i] = (reference_result){base, base + rows * dv, base + rows * (dv + 1), NULL};
    }
    if (dtype != ATTUNE_F64)
        result[1].moved = values + 3 * rows * (dv + 2);
    cr_assert(reference_compute(a, REFERENCE_ORACLE, NULL, 0, &result[1], &why), "%s", why.message);
    cr_assert(reference_compute(a, REFERENCE_NAIVE, NULL, 0, &result[2], &why), "%s", why.message);
    for (int64_t i = 0; i < rows * dv; i++) {
        result[0].o[i] = array_get(&s->o, i);
        if (isfinite(result[1].lse[i / dv]) && result[1].o[i] == 0 && result[2].o[i] == 0)
            result[2].o[i] = DBL_MIN;
    }
    for (int64_t i = 0; i < rows; i++)
        result[0].lse[i] = array_get(&s->lse, i);
    reference_error o, lse;
    reference_compare_o(attention_rule_dtype(a), attention_o_dtype(a), rows, dv, result[0].o, &result[1], &result[2],
                        &o);
    reference_compare(dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, rows, result[0].lse, result[1].lse, result[2].lse,
                      &lse);
    cr_expect(o.pass,
              "%s %s over %u ranks, layout %d: o: max error %.3g (bound %.3g), mean %.3g (bound %.3g), %lld "
              "wrong patterns; at %lld: %.9g, oracle %.9g",
              s->c->name, attune_dtype_string(dtype), s->ranks, (int)s->layout, o.max, o.bound_max, o.mean,
              o.bound_mean, (long long)o.pattern_errors, (long long)o.worst, result[0].o[o.worst],
              result[1].o[o.worst]);
    cr_expect(lse.pass, "%s %s over %u ranks: lse: max error %.3g (bound %.3g), %lld wrong patterns", s->c->name,
              attune_dtype_string(dtype), s->ranks, lse.max, lse.bound_max, (long long)lse.pattern_errors);
    free(values);
}

void sharing_run_failure(sharing *s, const rank_fault *fault, uint32_t other_problem, uint32_t bad_call)
{
    static const attention_case c = {.name = "fails",
                                     .batch = 1,
                                     .kv_batch = 1,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .q_len = 200,
                                     .kv_len = 200,
                                     .head_dim = 16,
                                     .mask = "q >= kv",
                                     .score = "score + slope[h] * (kv - q)"};
    static const attention_case in_turn = {.name = "fails_in_turn",
                                           .batch = 1,
                                           .kv_batch = 1,
                                           .heads = 2,
                                           .kv_heads = 2,
                                           .q_len = 200,
                                           .kv_len = 200,
                                           .head_dim = 16,
                                           .mask = "q >= kv"};
    static attention a;
    failure why;
    s->c = s->fails_in_turn ? &in_turn : &c;
    s->ranks = 4;
    s->calls = 3;
    memset(s->status, 0, sizeof s->status);
    cr_assert(case_instantiate(s->instance, s->c, ATTUNE_F32, 1, &a, &why), "%s", why.message);
    sharing_begin(s, &a, s->fails_in_turn ? 11 : 3);
    s->group.fault = *fault;
    s->other_problem = other_problem;
    s->bad_call = bad_call;
    rank_group_run(&s->group, sharing_run_rank, s);
    sharing_end(s);
    case_release(&a);
}

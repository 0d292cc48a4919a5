/* SPDX-License-Identifier: MIT */
/* Decode over keys that are dealt to ranks, which are threads: against float64, and ranks that fail. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "distributed/carriers.h"
#include "support/devices.h"

typedef struct decoding {
    sharing s;
    attune_query_split split;
    int64_t chunk;
    uint32_t other_o;  /* the rank whose o has another type */
    bool lends;        /* ranks of the CPU read each other's memory */
    uint32_t split_kv; /* of the plans; 0 = theirs */
} decoding;

/* Contiguous; nothing if a size is 0. */
static local place(attune_device *device, attune_dtype dtype, uint32_t rank, const int64_t *size)
{
    local p = {.tensor = {.dtype = dtype, .rank = rank}};
    int64_t elements = 1;
    for (uint32_t i = 0; i < rank; i++)
        elements *= p.tensor.size[i] = size[i];
    if (!local_allocate(device, (size_t)elements * attune_dtype_size(dtype), &p))
        abort();
    return p.bytes ? p : (local){.data = NULL};
}

/* Copies elements [b0 + b, h0 + h, index[row] or row] between a rank's tensor and the whole. */
static void move(const local *p, const array *whole, int64_t b0, int64_t h0, const int64_t *index, bool out)
{
    const size_t row = (size_t)(whole->rank == 4 ? whole->size[3] : 1) * attune_dtype_size(whole->dtype);
    const int64_t *size = p->tensor.size;
    char *mine = p->data;
    for (int64_t b = 0; p->data && b < size[0]; b++)
        for (int64_t h = 0; h < size[1]; h++)
            for (int64_t i = 0; i < size[2]; i++, mine += row) {
                const int64_t at = ((b0 + b) * whole->size[1] + h0 + h) * whole->size[2] + (index ? index[i] : i);
                char *all = (char *)whole->data + (size_t)at * row;
                memcpy(out ? all : mine, out ? mine : all, row);
            }
    if (!out)
        local_upload(p);
}

static void run_rank(void *context, uint32_t rank)
{
    decoding *d = context;
    sharing *s = &d->s;
    attune_device *device = sharing_device(s, rank);
    const attention *a = s->a;
    const bool by_head = d->split == ATTUNE_QUERIES_BY_HEAD;
    const int64_t *q_size = a->q.size, *k_size = a->k.size, ranks = (int64_t)s->ranks, r = (int64_t)rank;
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = a->q.dtype,
                                    .kv_dtype = a->k.dtype,
                                    .o_dtype = rank == d->other_o ? ATTUNE_BF16 : a->o_dtype,
                                    .head_dim = (uint32_t)q_size[3],
                                    .head_dim_v = (uint32_t)a->v.size[3],
                                    .batch = q_size[0],
                                    .kv_batch = k_size[0],
                                    .heads = q_size[1],
                                    .kv_heads = k_size[1],
                                    .q_len = q_size[2],
                                    .kv_len = k_size[2] + 70,
                                    .scale = rank == s->other_problem ? 0.125 : a->scale,
                                    .score = a->score,
                                    .sinks = a->sinks.data != NULL};
    const attune_transport transport = rank_transport(&s->group, rank, s->late);
    const attune_kernel_options options = {.struct_size = sizeof options, .any.split_kv = d->split_kv};
    const attune_decode_desc desc = {.struct_size = sizeof desc,
                                     .transport = &transport,
                                     .problem = &problem,
                                     .options = d->split_kv ? &options : NULL,
                                     .split = d->split,
                                     .chunk = d->chunk};
    attune_decode *decode;
    attune_status status = s->created[rank] = attune_decode_create(device, &desc, &decode);
    /* Whose queries and keys. */
    const int64_t all = q_size[by_head], first = all * r / ranks, count = all * (r + 1) / ranks - first;
    int64_t *index = malloc((size_t)(k_size[2] + 1) * sizeof *index), keys = 0;
    for (int64_t i = 0; i < k_size[2]; i++)
        if (i / d->chunk % ranks == r)
            index[keys++] = i;
    const int64_t q_local[4] = {by_head ? q_size[0] : count, by_head ? count : q_size[1], q_size[2], q_size[3]};
    const int64_t o_local[4] = {q_local[0], q_local[1], q_local[2], a->v.size[3]};
    const int64_t k_local[4] = {k_size[0], k_size[1], keys, k_size[3]};
    const int64_t v_local[4] = {k_size[0], k_size[1], keys, a->v.size[3]};
    const int64_t bytes = (int64_t)attune_decode_workspace_size(decode);
    local q = place(device, a->q.dtype, 4, q_local), o = place(device, s->o.dtype, 4, o_local),
          lse = place(device, s->lse.dtype, 3, o_local), k = place(device, a->k.dtype, 4, k_local),
          v = place(device, a->v.dtype, 4, v_local), workspace = place(device, ATTUNE_U8, 1, &bytes);
    local sinks = {.data = NULL}, captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_capture named[ATTUNE_EXPR_MAX_SYMBOLS];
    const int64_t b0 = by_head ? 0 : first, h0 = by_head ? first : 0;
    move(&q, &a->q, b0, h0, NULL, false);
    move(&k, &a->k, 0, 0, index, false);
    move(&v, &a->v, 0, 0, index, false);
    if (a->sinks.data) {
        sinks = place(device, a->sinks.dtype, 1, a->sinks.size);
        memcpy(sinks.data, a->sinks.data, sinks.bytes);
        local_upload(&sinks);
    }
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *h = &a->captures[i].array;
        captures[i] = place(device, h->dtype, h->rank, h->size);
        memcpy(captures[i].data, h->data, captures[i].bytes);
        local_upload(&captures[i]);
        named[i] = (attune_capture){a->captures[i].name, captures[i].tensor};
    }
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = q.tensor,
                                      .k = k.tensor,
                                      .v = v.tensor,
                                      .o = o.tensor,
                                      .lse = lse.tensor,
                                      .captures = named,
                                      .capture_count = a->capture_count,
                                      .parameters = a->parameters,
                                      .parameter_count = a->parameter_count,
                                      .sinks = sinks.tensor,
                                      .workspace = workspace.tensor.buffer};
    char *once = o.bytes ? malloc(o.bytes) : NULL;
    for (uint32_t i = 0; status == ATTUNE_OK && i < s->calls; i++) {
        if (workspace.data)
            memset(workspace.data, 0xa5 + (int)i, workspace.bytes);
        local_upload(&workspace);
        attune_completion done;
        status = attune_distributed_decode(decode, attune_device_queue(device), &args,
                                           rank == s->bad_call ? 0 : k_size[2], &done);
        if (status == ATTUNE_OK)
            status = attune_completion_wait(done, UINT64_MAX);
        local_download(&o);
        s->differs[rank] |= i && once && memcmp(once, o.data, o.bytes) != 0;
        if (once)
            memcpy(once, o.data, o.bytes);
    }
    s->status[rank] = status;
    if (status != ATTUNE_OK) {
        strncpy(s->message[rank], attune_last_error(), sizeof s->message[rank] - 1);
    } else {
        local_download(&lse);
        move(&o, &s->o, b0, h0, NULL, true);
        move(&lse, &s->lse, b0, h0, NULL, true);
    }
    local *const placed_tensors[] = {&q, &o, &lse, &k, &v, &workspace, &sinks};
    for (size_t i = 0; i < sizeof placed_tensors / sizeof placed_tensors[0]; i++)
        local_destroy(placed_tensors[i]);
    for (uint32_t i = 0; i < a->capture_count; i++)
        local_destroy(&captures[i]);
    free(once);
    free(index);
    attune_decode_destroy(decode);
}

static void run_case(decoding *d, const attention_case *given, attune_dtype dtype, uint32_t ranks, uint64_t number,
                     uint32_t calls, carrier by)
{
    static const int64_t chunks[] = {16, 1, 100, 37};
    attention_case c = dtype == ATTUNE_F64 ? case_unmixed(given) : *given;
    sharing *s = &d->s;
    attention a;
    failure why;
    s->c = &c;
    s->ranks = ranks;
    s->calls = calls;
    d->chunk = chunks[number / 6 % 4];
    d->split = number / 2 % 2 ? ATTUNE_QUERIES_BY_HEAD : ATTUNE_QUERIES_BY_SEQUENCE;
    cr_assert(case_instantiate(s->instance, &c, dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number);
    s->group.lends = d->lends;
    connection *between = carriers_connect(s, by);
    rank_group_run(&s->group, run_rank, d);
    carriers_disconnect(between);
    bool done = true;
    for (uint32_t r = 0; r < s->ranks; r++) {
        done = done && s->status[r] == ATTUNE_OK;
        cr_expect_eq(s->status[r], ATTUNE_OK, "%s, rank %u of %u: %s", c.name, r, s->ranks, s->message[r]);
        cr_expect_not(s->differs[r], "%s, rank %u of %u: a repeated call differs", c.name, r, s->ranks);
    }
    if (done)
        sharing_compare(s, dtype);
    sharing_end(s);
    case_release(&a);
}

#define DECODE(label, b, h, g, q, kv, d)                                                                               \
    .name = label, .batch = b, .kv_batch = b, .heads = h, .kv_heads = g, .q_len = q, .kv_len = kv, .head_dim = d

static const attention_case cases[] = {
    {DECODE("dense", 3, 4, 2, 1, 500, 64)},
    {DECODE("one_key", 2, 3, 3, 1, 1, 32)},
    {DECODE("drafts", 1, 8, 2, 5, 211, 32), .head_dim_v = 64, .score = "kv <= kv_len - q_len + q ? score : -1.0 / 0.0"},
    {DECODE("positions", 2, 4, 4, 2, 300, 32), .score = "kv % 3 == q ? score - 0.01 * (kv_len - kv) : -1.0 / 0.0"},
    {DECODE("captures", 2, 4, 2, 1, 97, 32), .score = "score + half_bias[kv] + slope[h]"},
    {DECODE("sinks", 2, 4, 2, 1, 150, 32), .sinks = true},
    {DECODE("mixed", 2, 2, 1, 1, 120, 32), .kv_dtype = ATTUNE_BF16, .o_dtype = ATTUNE_F32},
    /* Of so many keys that those of a rank are computed in several parts. */
    {DECODE("long", 1, 8, 2, 2, 2600, 128)},
    {DECODE("long_batches", 3, 2, 1, 1, 2100, 64), .head_dim_v = 136},
    {DECODE("long_drafts", 1, 4, 2, 3, 3900, 32), .score = "kv <= kv_len - q_len + q ? score : -1.0 / 0.0"},
};

Test(distributed_decode, cases)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F16};
    static const uint32_t ranks[] = {1, 2, 3, 4, 7, 11};
    static decoding d = {.other_o = MOST_RANKS};
    sharing_open(&d.s);
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t n = 0; n < 6; n++)
            run_case(&d, &cases[i], dtypes[(i + n) % 4], ranks[(n + 7 * i) % 6], n + 7 * i, 2, THROUGH_HOST);
    sharing_close(&d.s);
}

/* Queries and results are read where they are. */
Test(distributed_decode, lends)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F16};
    static const uint32_t ranks[] = {2, 3, 11, 4, 7, 1};
    static decoding d = {.other_o = MOST_RANKS, .lends = true};
    sharing_open(&d.s);
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t n = 0; n < 6; n++)
            run_case(&d, &cases[i], dtypes[(i + n) % 4], ranks[n], n + 7 * i, 3, THROUGH_HOST);
    sharing_close(&d.s);
}

/* 250 calls. */
Test(distributed_decode, repeats)
{
    static decoding d = {.other_o = MOST_RANKS};
    sharing_open(&d.s);
    for (int lends = 0; lends < 2; lends++) {
        d.lends = lends;
        run_case(&d, &cases[2], ATTUNE_BF16, 4, 9, (uint32_t)scaled(250), THROUGH_HOST);
    }
    sharing_close(&d.s);
}

/* Ranks on devices of their own. */
static void run_devices_by(carrier by, const char *const *backends, uint32_t count, uint32_t calls)
{
    static const attune_dtype dtypes[] = {ATTUNE_BF16, ATTUNE_F32, ATTUNE_F16};
    static const int rows[] = {4, 2, 0, 1, 7, 8, 9, 8, 7}; /* the fourth leaves ranks without keys */
    static decoding d = {.other_o = MOST_RANKS};
    sharing_open_devices(&d.s, backends, count);
    for (uint64_t i = 0; i < sizeof rows / sizeof *rows; i++)
        run_case(&d, &cases[rows[i]], dtypes[i % 3], i == 3 ? 2 : count, 6 * i + 2, calls, by);
    /* More parts than a thread of the merging kernel loads at first. */
    d.split_kv = 20;
    if (by != THROUGH_HOST)
        run_case(&d, &cases[7], ATTUNE_BF16, count, 2, calls, by);
    d.split_kv = 0;
    sharing_close(&d.s);
}

static void run_devices(const char *a, const char *b, const char *c)
{
    run_devices_by(THROUGH_HOST, (const char *const[]){a, b, c}, 3, 3);
}

Test(distributed_decode, vulkan)
{
    run_devices("vulkan", "vulkan", "vulkan");
}

Test(distributed_decode, cuda)
{
    run_devices("cuda", "cuda", "cuda");
}

Test(distributed_decode, opencl)
{
    run_devices("opencl", "opencl", "opencl");
}

Test(distributed_decode, mixed_devices)
{
    run_devices("cpu", "vulkan", "opencl");
}

Test(distributed_decode, model, .timeout = 3000)
{
    model_or_skip();
    run_devices("cuda", "cpu", "cuda");
}

#if ATTUNE_HAVE_CUDA
Test(distributed_decode, two_gpus, .timeout = 300)
{
    run_devices_by(PEERS, (const char *const[]){"cuda:0", "cuda:1"}, 2, (uint32_t)scaled(50));
}

Test(distributed_decode, two_gpus_nccl, .timeout = 300)
{
    nccl_or_skip();
    run_devices_by(NCCL, (const char *const[]){"cuda:0", "cuda:1"}, 2, (uint32_t)scaled(50));
}

/* The model's two devices, by copies and over a fake NCCL. */
Test(distributed_decode_two, model, .timeout = 3000)
{
    model_or_skip();
    fake_nccl_or_skip();
    cr_assert_eq(setenv("ATTUNE_MODEL_DEVICES", "2", 1), 0);
    run_devices_by(PEERS, (const char *const[]){"cuda:0", "cuda:1"}, 2, 2);
    run_devices_by(NCCL, (const char *const[]){"cuda:0", "cuda:1"}, 2, 2);
}
#endif

/* Every rank returns an error, and none waits for it. */
Test(distributed_decode, a_rank_fails, .timeout = 60)
{
    static const attention_case c = {DECODE("fails", 4, 2, 1, 1, 100, 16)};
    static const rank_fault faults[] = {
        {.gather = true, .rank = 1},
        {.exchange = true, .rank = 2},
        {.exchange = true, .rank = 0, .after = 1}, /* results */
        {.finish = true, .rank = 3},
        {.rank = 0}, /* a rank's argument */
        {.rank = 0}, /* a rank's problem */
        {.rank = 0}, /* a rank's type of o */
    };
    enum { COUNT = sizeof faults / sizeof *faults };
    static decoding d = {.chunk = 8};
    sharing *s = &d.s;
    attention a;
    failure why;
    sharing_open(s);
    s->c = &c;
    s->ranks = 4;
    s->calls = 2;
    cr_assert(case_instantiate(s->instance, &c, ATTUNE_F32, 1, &a, &why), "%s", why.message);
    for (int n = 0; n < 2 * COUNT; n++) {
        const int i = n % COUNT;
        sharing_begin(s, &a, 3);
        s->group.lends = n >= COUNT;
        s->group.fault = faults[i];
        s->bad_call = i == COUNT - 3 ? 1 : MOST_RANKS;
        s->other_problem = i == COUNT - 2 ? 2 : MOST_RANKS;
        d.other_o = i == COUNT - 1 ? 2 : MOST_RANKS;
        rank_group_run(&s->group, run_rank, &d);
        for (uint32_t r = 0; r < 4; r++)
            cr_expect_neq(s->status[r], ATTUNE_OK, "fault %d, rank %u", i, r);
        if (i == COUNT - 3)
            cr_expect(strstr(s->message[1], "kv_len is 0"), "%s", s->message[1]);
        if (i >= COUNT - 2)
            cr_expect(s->created[0] == ATTUNE_INVALID_ARGUMENT && strstr(s->message[0], "rank 2"), "%s", s->message[0]);
        sharing_end(s);
    }
    case_release(&a);
    sharing_close(s);
    /* A device that is lost while queries are sent or lent, or results. */
    for (int n = 0; n < 4; n++) {
        const int after = n % 2;
        sharing_open_devices(s, (const char *const[]){"cpu", "cpu", "cpu", "cpu"}, 4);
        cr_assert(case_instantiate(s->instance, &c, ATTUNE_F32, 1, &a, &why), "%s", why.message);
        d.other_o = MOST_RANKS;
        sharing_begin(s, &a, 3);
        s->group.lends = n >= 2;
        s->group.fault =
            (rank_fault){.exchange = true, .rank = 1, .after = after, .lose = sharing_lose, .device = s->devices[1]};
        rank_group_run(&s->group, run_rank, &d);
        for (uint32_t r = 0; r < 4; r++) {
            cr_expect_eq(s->created[r], ATTUNE_OK);
            cr_expect_eq(s->status[r], r == 1 ? ATTUNE_DEVICE_LOST : ATTUNE_UNAVAILABLE, "after %d, rank %u: %s", after,
                         r, s->message[r]);
        }
        sharing_end(s);
        case_release(&a);
        sharing_close(s);
    }
}

/* -------------------------------------------------------------------------------------------------------- arguments */

typedef enum argument {
    GOOD,
    MASK,
    SEGMENTS,
    ROW_MAX,
    CACHE,
    BATCH,
    SCHEDULE,
    Q_GAP,
    K_COUNT,
    WORKSPACE,
    ODD_WORKSPACE
} argument;

static void break_argument(argument which, const attune_mask *mask, attune_buffer *odd, attune_forward_args *a)
{
    static const attune_segment segment;
    static const attune_cache cache;
    static const attune_batch batch;
    if (which == MASK)
        a->mask = mask;
    if (which == SEGMENTS)
        a->segments = &segment;
    if (which == ROW_MAX)
        a->row_max = a->o;
    if (which == CACHE)
        a->cache = &cache;
    if (which == BATCH)
        a->batch = &batch;
    if (which == SCHEDULE)
        a->schedule = a->workspace;
    if (which == Q_GAP)
        a->q.stride[1] = 16 * 2;
    if (which == K_COUNT)
        a->k.size[2]--;
    if (which == WORKSPACE)
        a->workspace = NULL;
    if (which == ODD_WORKSPACE)
        a->workspace = odd;
}

/* The message says which argument is bad. */
Test(distributed_decode, arguments)
{
    static const struct {
        argument which;
        const char *words;
    } rows[] = {
        {GOOD, ""},
        {MASK, "args.mask (a score of -inf forbids a pair) is set"},
        {SEGMENTS, "args.segments is set"},
        {ROW_MAX, "args.row_max is set"},
        {CACHE, "args.cache is set"},
        {BATCH, "args.batch is set"},
        {SCHEDULE, "args.schedule is set"},
        {Q_GAP, "q.stride[1] is 32, expected 16"},
        {K_COUNT, "k has 49 keys, but of 50 keys rank 0 of 1 has 50"},
        {WORKSPACE, "args.workspace is NULL"},
        {ODD_WORKSPACE, "args.workspace begins 4 bytes after a multiple of 8"},
    };
    enum { HEADS = 2, KEYS = 50, COLUMNS = 16 };
    static float q[2 * HEADS * COLUMNS], k[HEADS * KEYS * COLUMNS], o[HEADS * COLUMNS];
    lone_rank lone = {.size = 1};
    int failed = 0;
    static sharing s;
    sharing_open(&s);
    attune_expr *all;
    attune_mask *mask;
    const attune_mask_desc mask_desc = {.struct_size = sizeof mask_desc, .q_len = 1, .kv_len = KEYS};
    cr_assert_eq(attune_expr_create(s.instance, ATTUNE_EXPR_MASK, "true", NULL, 0, &all), ATTUNE_OK);
    cr_assert_eq(attune_mask_create(s.instance, &mask_desc, all, NULL, 0, NULL, 0, &mask), ATTUNE_OK);
    const attune_transport transport = lone_transport(&lone);
    const attune_problem problem = {
        .struct_size = sizeof problem, .heads = HEADS, .head_dim = COLUMNS, .q_len = 1, .kv_len = KEYS};
    const attune_decode_desc desc = {.struct_size = sizeof desc, .transport = &transport, .problem = &problem};
    attune_tensor t_q = {.dtype = ATTUNE_F32, .rank = 4, .size = {1, HEADS, 1, COLUMNS}}, t_o = t_q, t_k = t_q;
    t_q.stride[0] = HEADS * COLUMNS;
    t_q.stride[1] = t_q.stride[2] = COLUMNS;
    t_q.stride[3] = 1;
    t_k.size[2] = KEYS;
    cr_assert_eq(attune_buffer_wrap(s.device, q, sizeof q, &t_q.buffer), ATTUNE_OK);
    cr_assert_eq(attune_buffer_wrap(s.device, k, sizeof k, &t_k.buffer), ATTUNE_OK);
    cr_assert_eq(attune_buffer_wrap(s.device, o, sizeof o, &t_o.buffer), ATTUNE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attune_decode *decode;
        attune_buffer *workspace, *odd;
        cr_assert_eq(attune_decode_create(s.device, &desc, &decode), ATTUNE_OK, "%s", attune_last_error());
        const uint64_t bytes = attune_decode_workspace_size(decode);
        char *memory = malloc(bytes + 8);
        cr_assert(memory);
        cr_assert_eq(attune_buffer_wrap(s.device, memory, bytes, &workspace), ATTUNE_OK);
        cr_assert_eq(attune_buffer_wrap(s.device, memory + 4, bytes, &odd), ATTUNE_OK);
        attune_forward_args args = {
            .struct_size = sizeof args, .q = t_q, .k = t_k, .v = t_k, .o = t_o, .workspace = workspace};
        break_argument(rows[i].which, mask, odd, &args);
        const attune_status status =
            attune_distributed_decode(decode, attune_device_queue(s.device), &args, KEYS, NULL);
        cr_expect_eq(status, *rows[i].words ? ATTUNE_INVALID_ARGUMENT : ATTUNE_OK, "%s: %s", rows[i].words,
                     attune_last_error());
        cr_expect(!*rows[i].words || strstr(attune_last_error(), rows[i].words), "%s", attune_last_error());
        cr_expect_eq(lone.aborts, failed += *rows[i].words != 0);
        attune_buffer_destroy(workspace);
        attune_buffer_destroy(odd);
        free(memory);
        attune_decode_destroy(decode);
    }
    attune_buffer_destroy(t_q.buffer);
    attune_buffer_destroy(t_k.buffer);
    attune_buffer_destroy(t_o.buffer);
    attune_mask_destroy(mask);
    attune_expr_destroy(all);
    sharing_close(&s);
}

/* SPDX-License-Identifier: MIT */
/* Ranks on other devices than the CPU, and on different ones: messages go through host memory. Rows of the case table,
 * forward and backward, against float64; each rank has a device of its own, but those of OpenCL share one. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "distributed/carriers.h"
#include "support/devices.h"

enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

/* The oracle takes most of the time. */
#define MOST_PAIRS 200000

typedef struct row {
    const attention_case *c;
    attune_dtype dtype;
    uint32_t ranks;
} row;

static void run_row(sharing *s, const row *r, uint64_t number, uint32_t calls, carrier by)
{
    attention a;
    failure why;
    s->c = r->c;
    s->ranks = r->ranks;
    s->calls = calls;
    /* Other devices than the CPU have no backward pass of mixed types, nor of larger heads. */
    s->backward = case_has_gradients(r->c) && !case_mixed(r->c) && r->c->head_dim <= 256 && r->c->head_dim_v <= 256;
    cr_assert(case_instantiate(s->instance, r->c, r->dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number);
    connection *c = carriers_connect(s, by);
    rank_group_run(&s->group, sharing_run_rank, s);
    carriers_disconnect(c);
    bool done = true;
    for (uint32_t i = 0; i < s->ranks; i++) {
        done = done && s->status[i] == ATTUNE_OK;
        cr_expect_eq(s->status[i], ATTUNE_OK, "%s, rank %u of %u: %s", r->c->name, i, s->ranks, s->message[i]);
        cr_expect_not(s->differs[i], "%s, rank %u of %u: a repeated call differs", r->c->name, i, s->ranks);
        cr_expect(!s->backward || s->shared[i] == s->shared[0], "%s: gradients of captures differ on rank %u of %u",
                  r->c->name, i, s->ranks);
    }
    if (done) {
        sharing_compare(s, r->dtype);
        cr_expect(!s->backward || case_check_gradients(s->instance, s->device, r->c, &a, &s->gradients, &why),
                  "over %u ranks, layout %d: %s", s->ranks, (int)s->layout, why.message);
    }
    sharing_end(s);
    case_release(&a);
}

static const row rows[] = {
    {&attention_cases[CASE_small_blocks], ATTUNE_BF16, 2},  {&sharing_windows, ATTUNE_F32, 3},
    {&attention_cases[CASE_relative_bias], ATTUNE_BF16, 3}, {&attention_cases[CASE_half_bias], ATTUNE_F16, 3},
    {&attention_cases[CASE_one_by_one], ATTUNE_F32, 2},     {&attention_cases[CASE_parameter], ATTUNE_F32, 1},
};

static void run_rows_by(carrier by, const char *const *backends, uint32_t count)
{
    static sharing s;
    sharing_open_devices(&s, backends, count);
    for (uint64_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (test_part(i))
            run_row(&s, &rows[i], i, 3, by);
    sharing_close(&s);
}

static void run_rows(const char *const *backends, uint32_t count)
{
    run_rows_by(THROUGH_HOST, backends, count);
}

#define BACKENDS(...)                                                                                                  \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

/* Enough work for messages to arrive while kernels run, in blocks as large as tiles. */
static const attention_case long_causal = {.name = "long_causal",
                                           .batch = 1,
                                           .kv_batch = 1,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .q_len = 1024,
                                           .kv_len = 1024,
                                           .head_dim = 128,
                                           .mask = "q >= kv",
                                           .q_block = 128,
                                           .kv_block = 128};

/* Documents of the case's captures, whose partial blocks are compared with the ends of intervals. */
static const attention_case long_documents = {.name = "long_documents",
                                              .batch = 1,
                                              .kv_batch = 1,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .q_len = 1000,
                                              .kv_len = 1000,
                                              .head_dim = 128,
                                              .mask = "q >= kv && doc[q] == doc[kv]",
                                              .q_block = 64,
                                              .kv_block = 64};

/* Head dimensions of every layout of the CUDA kernels, whose results over the keys of a rank are f32. */
static const attention_case head_dims[] = {
#define HEAD_DIM(d, dv)                                                                                                \
    {                                                                                                                  \
        .name = "d" #d "_" #dv, .batch = 1, .kv_batch = 1, .heads = 2, .kv_heads = 1, .q_len = 384, .kv_len = 384,     \
        .head_dim = (d), .head_dim_v = (dv), .mask = "q >= kv && q - kv < 170", .q_block = 64, .kv_block = 64          \
    }
    HEAD_DIM(128, 128), HEAD_DIM(192, 128), HEAD_DIM(256, 256), HEAD_DIM(64, 64), HEAD_DIM(40, 72),
#undef HEAD_DIM
};

static void run_head_dims(const char *const *backends, uint32_t count, uint64_t first)
{
    static sharing s;
    sharing_open_devices(&s, backends, count);
    for (uint64_t i = first; i < sizeof head_dims / sizeof head_dims[0]; i++)
        if (test_part(i))
            run_row(&s, &(row){&head_dims[i], i % 2 ? ATTUNE_F16 : ATTUNE_BF16, count}, i, 1, THROUGH_HOST);
    sharing_close(&s);
}

/* Ranks on two GPUs. */
static void run_pair(carrier by)
{
    /* After the rows: enough work for messages to arrive meanwhile; then two launches; one; one of each head; and,
     * in the last rows, one of keys that are read in place, by name or automatically (sharing_begin). */
    static const struct further {
        const attention_case *c;
        attune_dtype dtype;
        uint32_t calls;
        uint64_t number;
    } further[] = {
        {&long_causal, ATTUNE_BF16, 50, 5},    {&long_documents, ATTUNE_BF16, 10, 5},
        {&long_documents, ATTUNE_F16, 10, 2},  {&long_documents, ATTUNE_BF16, 10, 11},
        {&long_documents, ATTUNE_F16, 10, 62}, {&long_documents, ATTUNE_BF16, 10, 27},
        {&long_causal, ATTUNE_BF16, 50, 34},   {&attention_cases[CASE_relative_bias], ATTUNE_BF16, 10, 26},
        {&sharing_windows, ATTUNE_F32, 10, 6},
    };
    static sharing s;
    uint64_t part = 0;
    sharing_open_devices(&s, BACKENDS("cuda:0", "cuda:1"));
    for (uint64_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        row r = rows[i];
        r.ranks = r.ranks < 2 ? r.ranks : 2;
        if (test_part(part++))
            run_row(&s, &r, i, (uint32_t)scaled(10), by);
    }
    for (uint64_t i = 0; i < sizeof further / sizeof further[0]; i++)
        if (test_part(part++))
            run_row(&s, &(row){further[i].c, further[i].dtype, 2}, further[i].number,
                    (uint32_t)scaled(further[i].calls), by);
    sharing_close(&s);
}

Test(distributed_devices, vulkan)
{
    run_rows(BACKENDS("vulkan", "vulkan", "vulkan"));
}

/* The table on 1, 2, 3, 4 or 7 ranks in turn, which are three devices of lavapipe; forward alone without gradients. */
Test(distributed_devices, vulkan_table, .timeout = 3000)
{
    static const uint32_t ranks[] = {2, 3, 1, 4, 7};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F16};
    static sharing s;
    sharing_open_devices(&s, BACKENDS("vulkan", "vulkan", "vulkan"));
    const uint64_t cases = scaled(CASE_COUNT);
    for (uint64_t i = 0; i < cases; i++) {
        const attention_case *c = &attention_cases[i * CASE_COUNT / cases];
        if (test_part(i) && c->batch * c->heads * c->q_len * c->kv_len <= MOST_PAIRS && c->input != INPUT_MIXED &&
            c->input != INPUT_NONFINITE)
            run_row(&s, &(row){c, dtypes[i / 2 % 3], ranks[i % 5]}, i, 1, THROUGH_HOST);
    }
    sharing_close(&s);
}

Test(distributed_devices, cuda)
{
    run_rows(BACKENDS("cuda", "cuda", "cuda"));
}

Test(distributed_devices, opencl)
{
    run_rows(BACKENDS("opencl", "opencl", "opencl"));
}

/* A callback of one device's rank fails while gradients of keys are sent. */
Test(distributed_devices, a_rank_fails, .timeout = 500)
{
    static sharing s = {.backward = true};
    const rank_fault fault = {.exchange = true, .rank = 1, .after = 2};
    sharing_open_devices(&s, BACKENDS("cpu", "vulkan", "cpu", "opencl"));
    sharing_run_failure(&s, &fault, MOST_RANKS, MOST_RANKS);
    for (uint32_t r = 0; r < 4; r++)
        cr_expect_eq(s.status[r], r == 1 ? ATTUNE_IO : ATTUNE_UNAVAILABLE, "rank %u: %s", r, s.message[r]);
    sharing_close(&s);
}

/* The CUDA kernels of two ranks on the CPU (docs/model.md), beside a CPU. */
Test(distributed_devices, model, .timeout = 3000)
{
    model_or_skip();
    run_rows(BACKENDS("cuda", "cpu", "cuda"));
}

Test(distributed_devices, model_head_dims, .timeout = 3000)
{
    model_or_skip();
    run_head_dims(BACKENDS("cuda", "cuda"), 0);
}

/* As of head_dims, of a mask whose intervals depend on runs of equal elements. */
static const attention_case model_documents = {.name = "documents",
                                               .batch = 1,
                                               .kv_batch = 1,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .q_len = 300,
                                               .kv_len = 300,
                                               .head_dim = 64,
                                               .mask = "q >= kv && doc[q] == doc[kv]",
                                               .q_block = 64,
                                               .kv_block = 64};

Test(distributed_devices, model_documents, .timeout = 3000)
{
    static sharing s;
    model_or_skip();
    sharing_open_devices(&s, BACKENDS("cuda", "cuda"));
    for (uint64_t i = 0; i < 2; i++)
        run_row(&s, &(row){&model_documents, ATTUNE_BF16, 2}, 3 * i + 5, 2, THROUGH_HOST);
#if ATTUNE_HAVE_CUDA
    run_row(&s, &(row){&model_documents, ATTUNE_BF16, 2}, 11, 2, PEERS); /* one head after another */
    run_row(&s, &(row){&model_documents, ATTUNE_BF16, 2}, 62, 2, PEERS); /* keys are read in place */
#endif
    sharing_close(&s);
}

Test(distributed_devices, head_dims)
{
    run_head_dims(BACKENDS("vulkan", "opencl"), 3); /* the smaller ones */
}

#if ATTUNE_HAVE_CUDA
/* Copies between devices: of ranks on one GPU, on two, and of the model's two. */
Test(distributed_devices, peers, .timeout = 500)
{
    run_rows_by(PEERS, BACKENDS("cuda", "cuda", "cuda"));
}

Test(distributed_devices, two_gpus_head_dims, .timeout = 300)
{
    run_head_dims(BACKENDS("cuda:0", "cuda:1"), 0);
}

Test(distributed_devices, two_gpus, .timeout = 300)
{
    run_pair(PEERS);
}

Test(distributed_devices, two_gpus_through_host, .timeout = 300)
{
    run_pair(THROUGH_HOST);
}

Test(distributed_peers, model, .timeout = 3000)
{
    model_or_skip();
    cr_assert_eq(setenv("ATTUNE_MODEL_DEVICES", "2", 1), 0);
    run_rows_by(PEERS, BACKENDS("cuda:0", "cuda:1", "cuda:0"));
}

/* NVIDIA's library, which has a rank on each GPU. */
Test(distributed_devices, two_gpus_nccl, .timeout = 300)
{
    nccl_or_skip();
    run_pair(NCCL);
}

/* Over a fake NCCL, on Hopper's kernels. */
Test(distributed_nccl, model, .timeout = 3000)
{
    model_or_skip();
    fake_nccl_or_skip();
    cr_assert_eq(setenv("ATTUNE_MODEL_ARCHITECTURE", "90", 1), 0);
    cr_assert_eq(setenv("ATTUNE_MODEL_DEVICES", "2", 1), 0);
    run_rows_by(NCCL, BACKENDS("cuda:0", "cuda:1", "cuda:0"));
}
#endif

/* With 2 ranks the first two. */
Test(distributed_devices, mixed)
{
    run_rows(BACKENDS("cpu", "vulkan", "opencl"));
}

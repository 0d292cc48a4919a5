/* SPDX-License-Identifier: MIT */
/* Ranks on other devices than the CPU, and on different ones: messages go through host memory. Rows of the case table,
 * forward and backward, against float64; each rank has a device of its own, but those of OpenCL share one. */
#include <criterion/criterion.h>

#include "distributed/sharing.h"
#include "support/devices.h"

enum {
#define ROW(name, ...) CASE_##name,
#include "cases/table.h"
#undef ROW
    CASE_COUNT
};

typedef struct row {
    const attention_case *c;
    attune_dtype dtype;
    uint32_t ranks;
} row;

static void run_row(sharing *s, const row *r, uint64_t number, uint32_t calls)
{
    attention a;
    failure why;
    s->c = r->c;
    s->ranks = r->ranks;
    s->calls = calls;
    s->backward = true;
    cr_assert(case_instantiate(s->instance, r->c, r->dtype, test_seed() + number, &a, &why), "%s", why.message);
    sharing_begin(s, &a, number);
    rank_group_run(&s->group, sharing_run_rank, s);
    bool done = true;
    for (uint32_t i = 0; i < s->ranks; i++) {
        done = done && s->status[i] == ATTUNE_OK;
        cr_expect_eq(s->status[i], ATTUNE_OK, "%s, rank %u of %u: %s", r->c->name, i, s->ranks, s->message[i]);
        cr_expect_not(s->differs[i], "%s, rank %u of %u: a repeated call differs", r->c->name, i, s->ranks);
        cr_expect_eq(s->shared[i], s->shared[0], "%s: gradients of captures differ on rank %u of %u", r->c->name, i,
                     s->ranks);
    }
    if (done) {
        sharing_compare(s, r->dtype);
        cr_expect(case_check_gradients(s->instance, s->device, r->c, &a, &s->gradients, &why),
                  "over %u ranks, layout %d: %s", s->ranks, (int)s->layout, why.message);
    }
    sharing_end(s);
    case_release(&a);
}

static void run_rows(const char *const *backends, uint32_t count)
{
    static sharing s;
    const row rows[] = {
        {&attention_cases[CASE_small_blocks], ATTUNE_BF16, 2},  {&sharing_windows, ATTUNE_F32, 3},
        {&attention_cases[CASE_relative_bias], ATTUNE_BF16, 3}, {&attention_cases[CASE_half_bias], ATTUNE_F16, 3},
        {&attention_cases[CASE_one_by_one], ATTUNE_F32, 2},     {&attention_cases[CASE_parameter], ATTUNE_F32, 1},
    };
    sharing_open_devices(&s, backends, count);
    for (uint64_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (test_part(i))
            run_row(&s, &rows[i], i, 3);
    sharing_close(&s);
}

#define BACKENDS(...)                                                                                                  \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

Test(distributed_devices, vulkan)
{
    run_rows(BACKENDS("vulkan", "vulkan", "vulkan"));
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

/* With 2 ranks the first two. */
Test(distributed_devices, mixed)
{
    run_rows(BACKENDS("cpu", "vulkan", "opencl"));
}

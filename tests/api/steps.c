/* SPDX-License-Identifier: MIT */
/* One plan for a prompt and the steps after it: a short call has the bits of a plan for steps, a longer one, or one of
 * few keys, those of a plan without a decode kernel. */
#include <criterion/criterion.h>
#include <string.h>

#include "api/flow.h"
#include "tests/oracle/array.h"
#include "support/devices.h"

#define MAKE(call) cr_assert_eq((call), ATTUNE_OK, "%s", attune_last_error())

#define HEADS    6
#define KV_HEADS 2
#define DIM      40
#define QUERIES  40
#define KEYS     700

enum { ONE, LONG, FORWARD, PLANS };
enum { Q, K, V, O, LSE, TENSORS };

typedef struct steps {
    attune_instance *instance;
    attune_device *device;
    attune_plan *plans[PLANS];
    attune_buffer *workspaces[PLANS];
    attune_buffer *buffers[TENSORS];
} steps;

typedef struct results {
    float o[HEADS * QUERIES * DIM], lse[HEADS * QUERIES];
} results;

static attune_buffer *random_buffer(attune_device *device, int64_t elements, random_state *random)
{
    failure why;
    array values;
    attune_buffer *buffer;
    cr_assert(array_create(&values, ATTUNE_F32, 1, &elements, &why), "%s", why.message);
    array_fill_normal(&values, random, 1);
    MAKE(attune_buffer_create(device, (uint64_t)elements * sizeof(float), &buffer));
    MAKE(attune_buffer_write(buffer, 0, values.data, (uint64_t)elements * sizeof(float)));
    array_free(&values);
    return buffer;
}

static void open_steps(steps *s, const char *backend)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 4};
    const attune_kernel_options forward = {.struct_size = sizeof forward, .fwd.force_use_flex_attention = ATTUNE_ON};
    static const int64_t elements[TENSORS] = {HEADS * QUERIES * DIM, KV_HEADS * KEYS * DIM, KV_HEADS * KEYS * DIM,
                                              HEADS * QUERIES * DIM, HEADS * QUERIES};
    random_state random = {test_seed()};
    MAKE(attune_instance_create(&desc, &s->instance));
    s->device = device_or_skip(s->instance, backend);
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = QUERIES,
                              .kv_len = KEYS,
                              .lse = true};
    for (int i = 0; i < PLANS; i++) {
        problem.q_len = i == ONE ? 1 : QUERIES;
        MAKE(attune_plan_create(s->device, &problem, i == FORWARD ? &forward : NULL, &s->plans[i]));
        const uint64_t bytes = attune_plan_workspace_size(s->plans[i]);
        MAKE(attune_buffer_create(s->device, bytes ? bytes : 1, &s->workspaces[i]));
    }
    for (int i = 0; i < TENSORS; i++)
        s->buffers[i] = random_buffer(s->device, elements[i], &random);
}

static void close_steps(steps *s)
{
    for (int i = 0; i < TENSORS; i++)
        attune_buffer_destroy(s->buffers[i]);
    for (int i = 0; i < PLANS; i++) {
        attune_buffer_destroy(s->workspaces[i]);
        attune_plan_destroy(s->plans[i]);
    }
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

static void run(const steps *s, int plan, int64_t q_len, int64_t kv_len, results *r)
{
    const attune_tensor q = {s->buffers[Q], 0, ATTUNE_F32, 4, {1, HEADS, q_len, DIM}, {0}};
    attune_tensor k = {s->buffers[K], 0, ATTUNE_F32, 4, {1, KV_HEADS, kv_len, DIM}, {0}};
    attune_tensor v = k, o = q, lse = {s->buffers[LSE], 0, ATTUNE_F32, 3, {1, HEADS, q_len}, {0}};
    v.buffer = s->buffers[V];
    o.buffer = s->buffers[O];
    const attune_forward_args args = {
        .struct_size = sizeof args, .q = q, .k = k, .v = v, .o = o, .lse = lse, .workspace = s->workspaces[plan]};
    attune_completion completion;
    memset(r, 0, sizeof *r);
    MAKE(attune_forward(s->plans[plan], attune_device_queue(s->device), &args, &completion));
    MAKE(attune_completion_wait(completion, UINT64_MAX));
    MAKE(attune_buffer_read(s->buffers[O], 0, r->o, (uint64_t)(HEADS * q_len * DIM) * sizeof(float)));
    MAKE(attune_buffer_read(s->buffers[LSE], 0, r->lse, (uint64_t)(HEADS * q_len) * sizeof(float)));
}

static bool same(const steps *s, int a, int b, int64_t q_len, int64_t kv_len)
{
    static results of[2];
    run(s, a, q_len, kv_len, &of[0]);
    run(s, b, q_len, kv_len, &of[1]);
    return !memcmp(&of[0], &of[1], sizeof of[0]);
}

static void check_device(const char *backend)
{
    steps s = {.instance = NULL};
    open_steps(&s, backend);
    attune_plan_choice one = {.struct_size = sizeof one}, all = one, at = one;
    MAKE(attune_plan_choice_get(s.plans[ONE], &one));
    MAKE(attune_plan_choice_get(s.plans[LONG], &all));
    cr_assert(one.decode && !all.decode && all.short_q_len >= 8);
    cr_assert_geq(attune_plan_workspace_size(s.plans[LONG]), attune_plan_workspace_size(s.plans[ONE]));
    /* Calls of either kind alternate: they share a plan and a workspace. */
    for (int again = 0; again < 2; again++) {
        cr_expect(same(&s, LONG, ONE, 1, KEYS), "a step is not that of a plan for steps");
        cr_expect_not(same(&s, LONG, FORWARD, 1, KEYS), "a step runs the forward kernel");
        cr_expect(same(&s, LONG, FORWARD, all.short_q_len + 1, KEYS), "a longer call decodes");
        cr_expect(same(&s, LONG, FORWARD, QUERIES, KEYS), "the longest call decodes");
        cr_expect(same(&s, LONG, ONE, 1, 256), "256 keys do not decode");
        cr_expect(same(&s, LONG, FORWARD, 1, 255), "255 keys decode");
    }
    /* The kernel that a call runs is reported. */
    const struct {
        int64_t q_len, kv_len;
        bool decode;
    } table[] = {{1, KEYS, true},
                 {all.short_q_len, 256, true},
                 {all.short_q_len, 255, false},
                 {all.short_q_len + 1, KEYS, false},
                 {QUERIES, KEYS, false}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        MAKE(attune_plan_choice_at(s.plans[LONG], table[i].q_len, table[i].kv_len, &at));
        const attune_plan_choice *expected = table[i].decode ? &one : &all;
        cr_expect(at.decode == table[i].decode && !strcmp(at.kernel, expected->kernel) &&
                      at.block_m == expected->block_m && at.split_kv == expected->split_kv &&
                      at.workspace == attune_plan_workspace_size(s.plans[LONG]),
                  "%lld queries, %lld keys: %s, %u rows, %u parts", (long long)table[i].q_len,
                  (long long)table[i].kv_len, at.kernel, at.block_m, at.split_kv);
        MAKE(attune_plan_choice_at(s.plans[FORWARD], table[i].q_len, table[i].kv_len, &at));
        cr_expect(!at.decode && !at.short_q_len);
    }
    const int64_t wrong[][2] = {{0, 1}, {1, 0}, {QUERIES + 1, 1}, {1, KEYS + 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        EXPECT(attune_plan_choice_at(s.plans[LONG], wrong[i][0], wrong[i][1], &at), ATTUNE_INVALID_ARGUMENT,
               "the plan serves 1 to 40 and 700");
    close_steps(&s);
}

Test(steps, cpu)
{
    check_device("cpu");
}

Test(steps, vulkan, .timeout = 300)
{
    check_device("vulkan");
}

Test(steps, opencl, .timeout = 300)
{
    check_device("opencl");
}

Test(steps, cuda, .timeout = 300)
{
    check_device("cuda");
}

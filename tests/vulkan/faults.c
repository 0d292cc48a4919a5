/* SPDX-License-Identifier: MIT */
/* Kernels on a device that fails: while they are made, and while they run. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "support/devices.h"
#include "vulkan/fake.h"

#define LENGTH   64
#define DIM      32
#define ELEMENTS (LENGTH * DIM)

/* Causal attention of one head, with a score expression. */
typedef struct work {
    attune_expr *mask_expr, *score;
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *q, *o, *workspace;
    attune_forward_args args;
} work;

static attune_status work_create(attune_instance *instance, attune_device *device, work *w)
{
    *w = (work){0};
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = (float)sin(0.37 * i * i);
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = LENGTH, .kv_len = LENGTH};
    ATTUNE__TRY(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &w->mask_expr));
    ATTUNE__TRY(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "20 * tanh(score / 20)", NULL, 0, &w->score));
    ATTUNE__TRY(attune_mask_create(instance, &desc, w->mask_expr, NULL, 0, NULL, 0, &w->mask));
    ATTUNE__TRY(attune_mask_upload(w->mask, device));
    attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F32, .head_dim = DIM, .q_len = LENGTH, .score = w->score};
    ATTUNE__TRY(attune_problem_set_mask(&problem, w->mask));
    ATTUNE__TRY(attune_plan_create(device, &problem, NULL, &w->plan));
    ATTUNE__TRY(attune_buffer_create(device, sizeof values, &w->q));
    ATTUNE__TRY(attune_buffer_create(device, sizeof values, &w->o));
    ATTUNE__TRY(attune_buffer_create(device, attune_plan_workspace_size(w->plan), &w->workspace));
    ATTUNE__TRY(attune_buffer_write(w->q, 0, values, sizeof values));
    const attune_tensor t = {.buffer = w->q, .dtype = ATTUNE_F32, .rank = 4, .size = {1, 1, LENGTH, DIM}};
    w->args = (attune_forward_args){
        .struct_size = sizeof w->args, .q = t, .k = t, .v = t, .o = t, .mask = w->mask, .workspace = w->workspace};
    w->args.o.buffer = w->o;
    return ATTUNE_OK;
}

/* The first row of causal attention is the first value. */
static attune_status work_run(attune_device *device, const work *w)
{
    attune_completion completion;
    float o[ELEMENTS];
    ATTUNE__TRY(attune_forward(w->plan, attune_device_queue(device), &w->args, &completion));
    ATTUNE__TRY(attune_completion_wait(completion, UINT64_MAX));
    ATTUNE__TRY(attune_buffer_read(w->o, 0, o, sizeof o));
    for (int i = 0; i < DIM; i++)
        cr_assert_float_eq(o[i], (float)sin(0.37 * i * i), 1e-6);
    return ATTUNE_OK;
}

static void work_destroy(work *w)
{
    attune_plan_destroy(w->plan);
    attune_mask_destroy(w->mask);
    attune_expr_destroy(w->mask_expr);
    attune_expr_destroy(w->score);
    attune_buffer_destroy(w->q);
    attune_buffer_destroy(w->o);
    attune_buffer_destroy(w->workspace);
}

/* A device that is lost in the middle of attention; another one, and what was made of the lost one, are safe. */
static void expect_lost(bool *loses, bool at_wait)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    attune_instance *instance;
    attune_device *device, *other;
    work lost, good;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_device_open(instance, "vulkan", &other), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(work_create(instance, device, &lost), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(work_create(instance, other, &good), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(work_run(device, &lost), ATTUNE_OK, "%s", attune_last_error());
    attune_completion completion;
    *loses = true;
    attune_status status = attune_forward(lost.plan, attune_device_queue(device), &lost.args, &completion);
    cr_expect_eq(status, at_wait ? ATTUNE_OK : ATTUNE_DEVICE_LOST);
    if (status == ATTUNE_OK)
        cr_expect_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_DEVICE_LOST);
    *loses = false;
    cr_expect_eq(work_run(device, &lost), ATTUNE_DEVICE_LOST);
    cr_expect(strstr(attune_last_error(), "lost"), "%s", attune_last_error());
    work more;
    cr_expect_eq(work_create(instance, device, &more), ATTUNE_DEVICE_LOST);
    work_destroy(&more);
    cr_expect_eq(work_run(other, &good), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    work_destroy(&lost);
    cr_expect_eq(work_run(other, &good), ATTUNE_OK, "%s", attune_last_error());
    work_destroy(&good);
    attune_device_destroy(other);
    attune_instance_destroy(instance);
}

Test(vulkan_faults, lost_at_a_launch)
{
    expect_lost(&fake.lose_submit, false);
}

Test(vulkan_faults, lost_before_the_end)
{
    expect_lost(&fake.lose_wait, true);
}

/* Memory ends at every object that attention makes: a status, no leak, and the device goes on. */
static void expect_failures(uint32_t compile_threads)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .cache_folder = "", .compile_threads = compile_threads};
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    fake.fail_code = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    long failures = 0;
    for (fake.fail_at = 1;; fake.fail_at++, failures++) {
        work w;
        fake.created = 0;
        attune_status status = work_create(instance, device, &w);
        if (status == ATTUNE_OK)
            status = work_run(device, &w);
        const bool whole = fake.created < fake.fail_at;
        work_destroy(&w);
        if (whole) {
            cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
            break;
        }
        cr_assert_eq(status, ATTUNE_OUT_OF_DEVICE_MEMORY, "object %ld: %s", fake.fail_at, attune_last_error());
    }
    cr_log_info("%ld objects failed, one a run", failures);
    cr_assert_gt(failures, 5);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(vulkan_faults, memory_ends_at_every_object)
{
    expect_failures(0);
}

Test(vulkan_faults, memory_ends_on_several_threads)
{
    expect_failures(3);
}

/* A plan's pipelines are made side by side, and compute what they compute one after another. */
Test(vulkan_faults, pipelines_are_made_together)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = "", .compile_threads = 2};
    attune_instance *instance;
    attune_device *device;
    work w;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    fake.meet = 2;
    cr_assert_eq(work_create(instance, device, &w), ATTUNE_OK, "%s", attune_last_error());
    fake.meet = 0;
    cr_expect_geq(fake.met, 2);
    cr_expect_eq(fake.alone, 0);
    cr_expect_eq(work_run(device, &w), ATTUNE_OK, "%s", attune_last_error());
    work_destroy(&w);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* SPDX-License-Identifier: MIT */
/* The planner without a device says what a plan on one is. */
#include <criterion/criterion.h>
#include <string.h>

#include "api/flow.h"

static void expect_same(const flow *f, const attune_problem *problem)
{
    attune_device_info info = {.struct_size = sizeof info};
    attune_plan_choice without = {.struct_size = sizeof without}, with = {.struct_size = sizeof with};
    attune_plan *plan;
    char texts[2][4096];
    cr_assert_eq(attune_device_info_get(f->device, &info), ATTUNE_OK);
    cr_assert_eq(attune_plan_create(f->device, problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_plan_choice_get(plan, &with), ATTUNE_OK);
    cr_assert_eq(attune_plan_choose(&info.limits, problem, NULL, &without), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(without.workspace, with.workspace, "%llu without a device, %llu with it",
                 (unsigned long long)without.workspace, (unsigned long long)with.workspace);
    cr_expect_eq(without.workspace, attune_plan_workspace_size(plan));
    cr_expect(without.block_m == with.block_m && without.block_n == with.block_n && without.block_m1 == with.block_m1 &&
              without.block_n1 == with.block_n1 && without.split_kv == with.split_kv);
    cr_assert_eq(attune_plan_choose_explain(&info.limits, problem, NULL, ATTUNE_JSON, texts[0], sizeof texts[0], NULL),
                 ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_plan_explain(plan, ATTUNE_JSON, texts[1], sizeof texts[1], NULL), ATTUNE_OK);
    cr_expect_str_eq(texts[0], texts[1]);
    attune_plan_destroy(plan);
}

Test(plans, are_what_the_planner_says)
{
    flow f;
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    expect_same(&f, &f.problem);
    attune_problem backward = f.problem;
    backward.direction = ATTUNE_BACKWARD;
    backward.capture_gradient_elements = FLOW_HEADS;
    backward.lse = false;
    expect_same(&f, &backward);
    attune_problem segments = f.problem;
    segments.segments = 3;
    expect_same(&f, &segments);
    flow_destroy(&f);
}

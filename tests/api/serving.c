/* SPDX-License-Identifier: MIT */
/* What serving calls refuse, and what they promise beside values. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "api/flow.h"

#define OK(call)             cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())
#define REFUSED(call, words) EXPECT(call, ATTUNE_INVALID_ARGUMENT, words)

Test(serving, sinks_are_required_and_never_ignored)
{
    static flow f;
    static float plain[FLOW_ELEMENTS], with[FLOW_ELEMENTS];
    OK(flow_create(&f, NULL));
    OK(flow_run(&f, plain));
    attune_buffer *buffer;
    float sinks[FLOW_HEADS] = {-INFINITY, 2};
    OK(attune_buffer_create(f.device, sizeof sinks, &buffer));
    OK(attune_buffer_write(buffer, 0, sinks, sizeof sinks));
    f.args.sinks = (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}};
    REFUSED(flow_run(&f, NULL), "args.sinks is set, but the plan adds none: set problem.sinks");
    attune_plan_destroy(f.plan);
    f.problem.sinks = true;
    OK(attune_plan_create(f.device, &f.problem, NULL, &f.plan));
    OK(flow_run(&f, with));
    const size_t head = FLOW_ELEMENTS / FLOW_HEADS;
    cr_expect_eq(memcmp(plain, with, head * sizeof *plain), 0, "a sink of -inf changes nothing");
    for (size_t i = head; i < FLOW_ELEMENTS; i++)
        cr_assert_lt(fabsf(with[i]), fabsf(plain[i]), "a sink takes weight from every key");
    f.args.sinks.size[0] = FLOW_HEADS - 1;
    REFUSED(flow_run(&f, NULL), "sinks.size[0] is 1, expected the plan's heads, 2");
    f.args.sinks.size[0] = FLOW_HEADS;
    f.args.sinks.dtype = ATTUNE_F16;
    REFUSED(flow_run(&f, NULL), "sinks.dtype is f16");
    f.args.sinks.dtype = ATTUNE_F32;
    f.args.sinks.buffer = NULL;
    REFUSED(flow_run(&f, NULL), "sinks.buffer is NULL");
    attune_buffer_destroy(buffer);
    flow_destroy(&f);
}

/* A head's rows are NaN, and no other's. */
Test(serving, sinks_that_are_not_finite)
{
    static flow f;
    static float o[FLOW_ELEMENTS];
    OK(flow_create(&f, NULL));
    attune_plan_destroy(f.plan);
    f.problem.sinks = true;
    OK(attune_plan_create(f.device, &f.problem, NULL, &f.plan));
    attune_buffer *buffer;
    OK(attune_buffer_create(f.device, FLOW_HEADS * sizeof *o, &buffer));
    f.args.sinks = (attune_tensor){.buffer = buffer, .dtype = ATTUNE_F32, .rank = 1, .size = {FLOW_HEADS}};
    for (int i = 0; i < 2; i++) {
        const float sinks[FLOW_HEADS] = {0, i ? INFINITY : NAN};
        OK(attune_buffer_write(buffer, 0, sinks, sizeof sinks));
        OK(flow_run(&f, o));
        for (size_t j = 0; j < FLOW_ELEMENTS; j++)
            cr_assert_eq(isnan(o[j]) != 0, j >= FLOW_ELEMENTS / FLOW_HEADS);
    }
    attune_buffer_destroy(buffer);
    flow_destroy(&f);
}

/* SPDX-License-Identifier: MIT */
#include "support/large_gradient.h"

#include <criterion/criterion.h>
#include <string.h>

enum { LENGTH = 8, SIDE = 65536 };

void large_gradient_plan(attune_instance *instance, attune_device *device, attune_expr **score, attune_plan **plan)
{
    static const attune_symbol symbol = {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2};
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + bias[q, kv]", &symbol, 1, score), ATTUNE_OK,
                 "%s", attune_last_error());
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .direction = ATTUNE_BACKWARD,
                                    .dtype = ATTUNE_F32,
                                    .head_dim = 8,
                                    .q_len = LENGTH,
                                    .score = *score,
                                    .capture_gradient_elements = (int64_t)SIDE * SIDE};
    cr_assert_eq(attune_plan_create(device, &problem, NULL, plan), ATTUNE_OK, "%s", attune_last_error());
}

void large_gradient_refused(attune_device *device, const attune_plan *plan, attune_buffer *some, attune_buffer *huge)
{
    const attune_tensor rows = {.buffer = some, .dtype = ATTUNE_F32, .rank = 4, .size = {1, 1, LENGTH, 8}};
    const attune_tensor lse = {.buffer = some, .dtype = ATTUNE_F32, .rank = 3, .size = {1, 1, LENGTH}};
    const attune_tensor all = {.buffer = huge, .dtype = ATTUNE_F32, .rank = 2, .size = {SIDE, SIDE}};
    attune_capture capture = {"bias", all}, gradient = {"bias", all};
    gradient.tensor.offset = UINT64_C(1) << 40;
    attune_backward_args args = {.struct_size = sizeof args,
                                 .q = rows,
                                 .k = rows,
                                 .v = rows,
                                 .o = rows,
                                 .lse = lse,
                                 .d_o = rows,
                                 .d_q = rows,
                                 .d_k = rows,
                                 .d_v = rows,
                                 .captures = &capture,
                                 .capture_count = 1,
                                 .capture_gradients = &gradient,
                                 .capture_gradient_count = 1,
                                 .workspace = huge};
    args.d_q.offset = 1 << 12;
    args.d_k.offset = 1 << 13;
    args.d_v.offset = 1 << 14;
    cr_expect_eq(attune_backward(plan, attune_device_queue(device), &args, NULL), ATTUNE_UNSUPPORTED, "%s",
                 attune_last_error());
    cr_expect(strstr(attune_last_error(), "the gradient of \"bias\" has 4294967296 elements"), "%s",
              attune_last_error());
}

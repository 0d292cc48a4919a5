/* SPDX-License-Identifier: MIT */
/* Options from JSON and from the struct. */
#include <stdio.h>

#include "plan/plan_test.h"

Test(options, every_key_with_every_prefix)
{
    attune_kernel_options o = options(
        "{\"BLOCK_M\": 64, \"BLOCK_N\": 32, \"BLOCK_M1\": 16, \"BLOCK_N1\": 48, \"BLOCK_M2\": 80, \"BLOCK_N2\": 96, "
        "\"num_warps\": 8, \"num_stages\": 2, \"SPLIT_KV\": 7, \"FORCE_USE_FLEX_ATTENTION\": true, \"PRESCALE_QK\": "
        "false, \"ROWS_GUARANTEED_SAFE\": true, \"BLOCKS_ARE_CONTIGUOUS\": false, \"WRITE_DQ\": true, \"USE_TMA\": "
        "false, \"KERNEL\": \"cuda_sm80\", \"fwd_BLOCK_M\": 128, \"bwd_num_stages\": 1, \"bwd_WRITE_DQ\": false, "
        "\"bwd_KERNEL\": \"cpu\", \"APPROXIMATE_TANH\": true, \"bwd_APPROXIMATE_TANH\": false}");
    cr_assert_eq(o.struct_size, sizeof o);
    cr_assert(o.any.block_m == 64 && o.any.block_n == 32 && o.any.block_m1 == 16 && o.any.block_n1 == 48);
    cr_assert(o.any.block_m2 == 80 && o.any.block_n2 == 96 && o.any.num_warps == 8 && o.any.num_stages == 2);
    cr_assert(o.any.split_kv == 7 && o.any.force_use_flex_attention == ATTUNE_ON && o.any.prescale_qk == ATTUNE_OFF);
    cr_assert(o.any.rows_guaranteed_safe == ATTUNE_ON && o.any.blocks_are_contiguous == ATTUNE_OFF);
    cr_assert(o.any.write_dq == ATTUNE_ON && o.any.use_tma == ATTUNE_OFF);
    cr_assert(o.any.approximate_tanh == ATTUNE_ON && o.bwd.approximate_tanh == ATTUNE_OFF && !o.fwd.approximate_tanh);
    cr_assert_str_eq(o.any.kernel, "cuda_sm80");
    cr_assert(o.fwd.block_m == 128 && o.fwd.block_n == 0);
    cr_assert(o.bwd.num_stages == 1 && o.bwd.write_dq == ATTUNE_OFF);
    cr_assert_str_eq(o.bwd.kernel, "cpu");
    attune_kernel_options none = options(" {} ");
    attune_kernel_options zero = {.struct_size = sizeof zero};
    cr_assert_eq(memcmp(&none, &zero, sizeof zero), 0);
}

Test(options, errors_name_the_key)
{
    static const struct {
        const char *json;
        attune_status status;
        const char *words[4];
    } wrong[] = {
        {"", ATTUNE_PARSE_ERROR, {"not JSON", "line 1", "column"}},
        {"{\"BLOCK_M\": 64", ATTUNE_PARSE_ERROR, {"not JSON", "line 1"}},
        {"{\n\"BLOCK_M\": 64,\n}", ATTUNE_PARSE_ERROR, {"line 3"}},
        {"{} {}", ATTUNE_PARSE_ERROR, {"line 1"}},
        {"{\"BLOCK_M\": 64, \"BLOCK_M\": 64}", ATTUNE_INVALID_ARGUMENT, {"duplicate", "BLOCK_M"}},
        {"{\"BLOCKM\": 64}", ATTUNE_INVALID_ARGUMENT, {"unknown option \"BLOCKM\"", "did you mean BLOCK_M?"}},
        {"{\"block_n\": 64}", ATTUNE_INVALID_ARGUMENT, {"did you mean BLOCK_N?"}},
        {"{\"fwd_num_stage\": 64}", ATTUNE_INVALID_ARGUMENT, {"fwd_num_stage", "did you mean num_stages?"}},
        {"{\"tanh\": true}", ATTUNE_INVALID_ARGUMENT, {"unknown option \"tanh\"", "did you mean APPROXIMATE_TANH?"}},
        {"{\"KERNEL\": \"sm90\"}", ATTUNE_INVALID_ARGUMENT, {"did you mean \"cuda_sm90a\""}},
        {"{\"\": 64}", ATTUNE_INVALID_ARGUMENT, {"unknown option \"\""}},
        {"{\"BLOCK_M\": \"64\"}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M", "\"64\"", "an integer"}},
        {"{\"BLOCK_M\": 64.0}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is 64", "an integer"}},
        {"{\"BLOCK_M\": null}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is null", "an integer"}},
        {"{\"BLOCK_M\": [1]}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is an array"}},
        {"{\"BLOCK_M\": 0}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is 0", "1 to 1024"}},
        {"{\"BLOCK_M\": -1}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is -1"}},
        {"{\"BLOCK_M\": 4294967360}", ATTUNE_INVALID_ARGUMENT, {"BLOCK_M is 4294967360"}},
        {"{\"num_stages\": 9}", ATTUNE_INVALID_ARGUMENT, {"num_stages is 9", "1 to 8"}},
        {"{\"num_warps\": 33}", ATTUNE_INVALID_ARGUMENT, {"num_warps is 33", "1 to 32"}},
        {"{\"USE_TMA\": 1}", ATTUNE_INVALID_ARGUMENT, {"USE_TMA is 1", "true or false"}},
        {"{\"KERNEL\": \"portable\"}", ATTUNE_INVALID_ARGUMENT, {"did you mean \"vulkan_portable\""}},
        {"{\"KERNEL\": 1}", ATTUNE_INVALID_ARGUMENT, {"KERNEL is 1", "a string"}},
        {"{\"KERNEL\": \"\"}", ATTUNE_INVALID_ARGUMENT, {"KERNEL is \"\""}},
        {"{\"KERNEL\": \"cuda_sm8\"}", ATTUNE_INVALID_ARGUMENT, {"cuda_sm8", "did you mean \"cuda_sm80\""}},
        {"{\"bwd_BLOCK_M\": 64}", ATTUNE_INVALID_ARGUMENT, {"bwd_BLOCK_M", "forward pass only"}},
        {"{\"fwd_BLOCK_N2\": 64}", ATTUNE_INVALID_ARGUMENT, {"fwd_BLOCK_N2", "backward pass only"}},
        {"{\"kpack\": 2}", ATTUNE_INVALID_ARGUMENT, {"kpack", "FlexAttention", "leave it out"}},
        {"{\"matrix_instr_nonkdim\": 16}", ATTUNE_INVALID_ARGUMENT, {"matrix_instr_nonkdim", "AMD"}},
        {"{\"waves_per_eu\": 2}", ATTUNE_INVALID_ARGUMENT, {"waves_per_eu"}},
        {"{\"BACKEND\": \"FLASH\"}", ATTUNE_INVALID_ARGUMENT, {"BACKEND", "KERNEL"}},
        {"{\"OUTPUT_LOGSUMEXP\": true}", ATTUNE_INVALID_ARGUMENT, {"set lse in the problem"}},
        {"{\"fwd_SM_SCALE\": 1.0}", ATTUNE_INVALID_ARGUMENT, {"fwd_SM_SCALE", "set scale"}},
    };
    (void)options("{}");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attune_kernel_options o = {.struct_size = sizeof o, .bwd.num_warps = 5}, before = o;
        attune_status status = attune_kernel_options_parse(wrong[i].json, &o);
        cr_expect_eq(status, wrong[i].status, "%s gives %d: %s", wrong[i].json, (int)status, attune_last_error());
        for (int j = 0; j < 4 && wrong[i].words[j]; j++)
            cr_expect(strstr(attune_last_error(), wrong[i].words[j]), "%s: \"%s\" does not say \"%s\"", wrong[i].json,
                      attune_last_error(), wrong[i].words[j]);
        cr_expect_eq(memcmp(&o, &before, sizeof o), 0, "%s changed the output", wrong[i].json);
    }
    attune_kernel_options o = {0};
    cr_expect_eq(attune_kernel_options_parse(NULL, &o), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_kernel_options_parse("{}", NULL), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_kernel_options_parse("{}", &o), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "struct_size"));
}

Test(options, a_struct_is_checked_as_a_text_is)
{
    const attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 1024};
    attune_limits limits = device("a100");
    attune_plan_choice c = {.struct_size = sizeof c};
    const struct {
        attune_kernel_options options;
        const char *words;
    } wrong[] = {
        {{.struct_size = sizeof(attune_kernel_options), .any.block_m = 2000}, "BLOCK_M is 2000"},
        {{.struct_size = sizeof(attune_kernel_options), .bwd.block_m = 64}, "bwd_BLOCK_M"},
        {{.struct_size = sizeof(attune_kernel_options), .fwd.num_warps = 99}, "fwd_num_warps is 99"},
        {{.struct_size = sizeof(attune_kernel_options), .any.use_tma = (attune_choice)3}, "USE_TMA is 3"},
        {{.struct_size = sizeof(attune_kernel_options), .any.kernel = "nothing"}, "KERNEL is \"nothing\""},
        {{.struct_size = 0}, "struct_size is 0"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(attune_plan_choose(&limits, &problem, &wrong[i].options, &c), ATTUNE_INVALID_ARGUMENT);
        cr_expect(strstr(attune_last_error(), wrong[i].words), "%s", attune_last_error());
    }
    attune_kernel_options o = {.struct_size = sizeof o};
    memset(o.any.kernel, 'x', sizeof o.any.kernel);
    cr_expect_eq(attune_plan_choose(&limits, &problem, &o, &c), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "no NUL"), "%s", attune_last_error());
}

Test(options, a_prefix_overrides)
{
    attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 1024, .dtype = ATTUNE_F16};
    const char *json = "{\"num_warps\": 4, \"fwd_num_warps\": 2, \"KERNEL\": \"cuda_sm80\", \"PRESCALE_QK\": true, "
                       "\"bwd_PRESCALE_QK\": false}";
    attune_plan_choice c = plan("h100", &problem, json);
    cr_assert_eq(c.num_warps, 2);
    cr_assert(c.prescale_qk);
    problem.direction = ATTUNE_BACKWARD;
    c = plan("h100", &problem, json);
    cr_assert_eq(c.num_warps, 4);
    cr_assert(!c.prescale_qk);
}

Test(options, ranges)
{
    static attune_kernel_options o;
    const struct {
        const char *name;
        void *field;
        uint32_t least, most;
    } ranges[] = {
        {"BLOCK_M", &o.any.block_m, 1, 1024},
        {"BLOCK_N", &o.any.block_n, 1, 1024},
        {"bwd_BLOCK_M1", &o.bwd.block_m1, 1, 1024},
        {"bwd_BLOCK_N1", &o.bwd.block_n1, 1, 1024},
        {"bwd_BLOCK_M2", &o.bwd.block_m2, 1, 1024},
        {"bwd_BLOCK_N2", &o.bwd.block_n2, 1, 1024},
        {"num_warps", &o.any.num_warps, 1, 32},
        {"num_stages", &o.any.num_stages, 1, 8},
        {"SPLIT_KV", &o.any.split_kv, 1, 1024},
        {"FORCE_USE_FLEX_ATTENTION", &o.any.force_use_flex_attention, ATTUNE_ON, ATTUNE_OFF},
        {"PRESCALE_QK", &o.any.prescale_qk, ATTUNE_ON, ATTUNE_OFF},
        {"ROWS_GUARANTEED_SAFE", &o.any.rows_guaranteed_safe, ATTUNE_ON, ATTUNE_OFF},
        {"BLOCKS_ARE_CONTIGUOUS", &o.any.blocks_are_contiguous, ATTUNE_ON, ATTUNE_OFF},
        {"bwd_WRITE_DQ", &o.bwd.write_dq, ATTUNE_ON, ATTUNE_OFF},
        {"USE_TMA", &o.any.use_tma, ATTUNE_ON, ATTUNE_OFF},
        {"bwd_DETERMINISTIC", &o.bwd.deterministic, ATTUNE_ON, ATTUNE_OFF},
        {"APPROXIMATE_TANH", &o.any.approximate_tanh, ATTUNE_ON, ATTUNE_OFF},
    };
    const attune_limits limits = device("h100");
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const uint32_t values[] = {ranges[i].least, ranges[i].most, ranges[i].most + 1};
        for (size_t j = 0; j < 3; j++) {
            attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 64};
            problem.direction = strncmp(ranges[i].name, "bwd_", 4) ? ATTUNE_FORWARD : ATTUNE_BACKWARD;
            o = (attune_kernel_options){.struct_size = sizeof o};
            memcpy(ranges[i].field, &values[j], sizeof values[j]);
            attune_plan_choice c = {.struct_size = sizeof c};
            const attune_status status = attune_plan_choose(&limits, &problem, &o, &c);
            char words[64];
            snprintf(words, sizeof words, "%s is %u", ranges[i].name, values[j]);
            /* A value in range may still not fit. */
            const bool out_of_range = status == ATTUNE_INVALID_ARGUMENT && strstr(attune_last_error(), words) &&
                                      strstr(attune_last_error(), "expected");
            cr_expect_eq(out_of_range, j == 2, "%s: %s", words, status ? attune_last_error() : "planned");
        }
    }
}

Test(options, the_nearest_value_may_be_larger)
{
    const attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 64};
    EXPECT_ERROR("h100", &problem, "{\"BLOCK_N\": 1}", ATTUNE_INVALID_ARGUMENT, "BLOCK_N is 1,", "the nearest is 16");
    EXPECT_ERROR("h100", &problem, "{\"BLOCK_M\": 3}", ATTUNE_INVALID_ARGUMENT, "BLOCK_M is 3,", "the nearest is 16");
}

Test(options, a_kernel_of_another_backend)
{
    const attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 64};
    EXPECT_ERROR(
        "h100", &problem, "{\"KERNEL\": \"cpu\"}", ATTUNE_INVALID_ARGUMENT,
        "kernels for this device are cuda_sm100a, cuda_sm90a, cuda_serving_sm90a, cuda_sm80_atomic, cuda_sm80");
    EXPECT_ERROR("cpu", &problem, "{\"KERNEL\": \"cuda_sm80\"}", ATTUNE_INVALID_ARGUMENT,
                 "kernels for this device are cpu");
}

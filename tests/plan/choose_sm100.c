/* SPDX-License-Identifier: MIT */
/* The kernels with tcgen05: when they are chosen, and which tiles they have. */
#include "plan/plan_test.h"

/* It has never run on hardware. */
Test(choose, tcgen05_by_name_alone)
{
    static const char named[] = "{\"KERNEL\": \"cuda_sm100a\"}";
    attune_problem p = problem_of(ATTUNE_BF16, 128, 2048, 2048);
    attune_limits b200 = device("b200");
    char text[8192];
    cr_assert_str_eq(plan("b200", &p, NULL).kernel, "cuda_sm80");
    cr_assert_eq(attune_plan_choose_explain(&b200, &p, NULL, ATTUNE_TEXT, text, sizeof text, NULL), ATTUNE_OK);
    cr_assert(strstr(text, "cuda_sm100a: it has never run on hardware, so that only KERNEL selects it, or "), "%s",
              text);
    attune_limits untried = b200;
    untried.matrix |= ATTUNE_MATRIX_UNTRIED;
    attune_plan_choice chosen = {.struct_size = sizeof chosen};
    cr_assert_eq(attune_plan_choose(&untried, &p, NULL, &chosen), ATTUNE_OK);
    cr_assert_str_eq(chosen.kernel, "cuda_sm100a");
    p.direction = ATTUNE_BACKWARD;
    cr_assert_eq(attune_plan_choose(&untried, &p, NULL, &chosen), ATTUNE_OK);
    cr_assert_str_eq(chosen.kernel, "cuda_sm100a");
    p.direction = ATTUNE_FORWARD;
    const attune_kernel_options by_name = {.struct_size = sizeof by_name, .any = {.kernel = "cuda_sm100a"}};
    cr_assert_eq(attune_plan_choose_explain(&b200, &p, &by_name, ATTUNE_TEXT, text, sizeof text, NULL), ATTUNE_OK);
    cr_assert(strstr(text, "it has never run on hardware"), "%s", text);
    cr_assert(strstr(text, "exp         1 of each eight as polynomials of degree 3\n"), "%s", text);
    static const struct {
        uint32_t head_dim, head_dim_v, m, n, warps, stages;
    } table[] = {{64, 64, 256, 128, 20, 2},  {128, 128, 256, 128, 20, 2}, {96, 96, 256, 128, 20, 2},
                 {192, 128, 256, 64, 20, 2}, {256, 256, 128, 64, 12, 2},  {8, 72, 256, 128, 20, 2}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        p.head_dim = table[i].head_dim;
        p.head_dim_v = table[i].head_dim_v;
        const attune_plan_choice c = plan("b200", &p, named);
        cr_expect_str_eq(c.kernel, "cuda_sm100a");
        cr_expect(c.block_m == table[i].m && c.block_n == table[i].n && c.num_warps == table[i].warps &&
                      c.num_stages == table[i].stages && c.occupancy == 1,
                  "head dimensions %u and %u: %u x %u, %u warps, %u stages, occupancy %u", p.head_dim, p.head_dim_v,
                  c.block_m, c.block_n, c.num_warps, c.num_stages, c.occupancy);
        cr_expect_eq(c.short_q_len, 0);
    }
    p.head_dim = p.head_dim_v = 128;
    p.block_mask = true;
    p.mask_q_block = 64;
    EXPECT_ERROR("b200", &p, named, ATTUNE_UNSUPPORTED, "must divide the block of the mask");
    p.mask_q_block = 128;
    cr_expect_eq(plan("b200", &p, named).block_m, 256);
    EXPECT_ERROR("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"BLOCK_N\": 256}", ATTUNE_INVALID_ARGUMENT,
                 "32, 64 or 128 keys");
    EXPECT_ERROR("h200", &p, named, ATTUNE_UNSUPPORTED, "no tcgen05");
    p.sinks = true;
    EXPECT_ERROR("b200", &p, named, ATTUNE_UNSUPPORTED, "it adds no sinks (problem.sinks)");
    p.sinks = false;
    p.block_mask = false;
    p.mask_q_block = 0;
    p.direction = ATTUNE_BACKWARD;
    cr_assert_str_eq(plan("b200", &p, NULL).kernel, "cuda_sm80_atomic");
    static const struct {
        uint32_t head_dim, head_dim_v, rows, keys, stages;
    } backward[] = {{64, 64, 128, 256, 2},  {128, 128, 128, 256, 2}, {96, 40, 128, 256, 2},  {8, 128, 128, 256, 2},
                    {192, 128, 64, 128, 2}, {64, 136, 64, 128, 2},   {256, 128, 64, 128, 2}, {192, 192, 64, 128, 2},
                    {256, 256, 64, 128, 1}, {256, 136, 64, 128, 1}};
    for (size_t i = 0; i < sizeof backward / sizeof backward[0]; i++) {
        p.head_dim = backward[i].head_dim;
        p.head_dim_v = backward[i].head_dim_v;
        const attune_plan_choice c = plan("b200", &p, named);
        cr_expect(!strcmp(c.kernel, "cuda_sm100a") && c.block_m1 == backward[i].rows &&
                      c.block_n1 == backward[i].keys && c.num_warps == 16 && c.num_stages == backward[i].stages &&
                      c.occupancy == 1 && !c.deterministic,
                  "head dimensions %u and %u: %u x %u, %u stages", p.head_dim, p.head_dim_v, c.block_m1, c.block_n1,
                  c.num_stages);
        cr_expect(plan("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"DETERMINISTIC\": true}").deterministic);
    }
    p.head_dim = p.head_dim_v = 128;
    EXPECT_ERROR("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"bwd_BLOCK_M1\": 64}", ATTUNE_INVALID_ARGUMENT,
                 "128 x 128");
    p.head_dim = 256;
    EXPECT_ERROR("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"bwd_BLOCK_M1\": 128}", ATTUNE_INVALID_ARGUMENT,
                 "64 x 128, num_stages 1 or 2");
    p.head_dim = 128;
    /* Pairs of CTAs: from 1024 keys on, or by name. */
    static const struct {
        int64_t keys;
        uint32_t mask_kv_block, block_n;
    } pairs[] = {{1023, 0, 128},   {1024, 0, 256},   {1024, 128, 256},
                 {2048, 256, 256}, {2048, 512, 256}, {2048, 384, 128}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        p.kv_len = pairs[i].keys;
        p.block_mask = pairs[i].mask_kv_block > 0;
        p.mask_kv_block = pairs[i].mask_kv_block;
        cr_expect_eq(plan("b200", &p, named).block_n1, pairs[i].block_n, "%lld keys, blocks of %u", (long long)p.kv_len,
                     p.mask_kv_block);
    }
    EXPECT_ERROR("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"bwd_BLOCK_N1\": 256}", ATTUNE_INVALID_ARGUMENT,
                 "128 or a multiple of 256");
    p.block_mask = false;
    p.mask_kv_block = 0;
    p.kv_len = 300;
    cr_expect_eq(plan("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"bwd_BLOCK_N1\": 256}").block_n1, 256);
    p.kv_len = 2048;
    cr_expect_eq(plan("b200", &p, "{\"KERNEL\": \"cuda_sm100a\", \"bwd_BLOCK_N1\": 128}").block_n1, 128);
    p.block_mask = true;
    p.mask_kv_block = 64;
    EXPECT_ERROR("b200", &p, named, ATTUNE_UNSUPPORTED, "must divide the block of the mask");
}

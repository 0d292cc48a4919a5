/* SPDX-License-Identifier: MIT */
/*
 * Failures that users of FlexAttention reported: what it wanted of shared memory, or did with an option, on a device
 * that could not. Each is planned automatically here; forced, it is an error with the cure.
 */
#include "plan/plan_test.h"

/* 395,520 bytes wanted of 232,448: float32 at head dimension 256 on an H100. */
Test(reported, f32_head_dim_256_on_h100)
{
    const attune_problem problem = {
        .struct_size = sizeof problem, .head_dim = 256, .batch = 2, .heads = 8, .q_len = 4096};
    attune_plan_choice c = plan("h100", &problem, NULL);
    cr_assert_str_eq(c.kernel, "cuda_sm80");
    cr_assert_leq(c.shared_memory, 232448);
    EXPECT_ERROR("h100", &problem, "{\"BLOCK_M\": 128, \"BLOCK_N\": 64, \"num_stages\": 2}", ATTUNE_DOES_NOT_FIT,
                 "BLOCK_N 64 does not fit", "393216 bytes", "232448", "nearest that fits: BLOCK_N 16");
    EXPECT_ERROR("h100", &problem, "{\"BLOCK_M\": 64, \"BLOCK_N\": 64, \"num_stages\": 2}", ATTUNE_DOES_NOT_FIT,
                 "num_stages 2 does not fit", "327680 bytes", "232448",
                 "nearest that fits: num_stages 1, or BLOCK_N 32");
    attune_problem backward = problem;
    backward.direction = ATTUNE_BACKWARD;
    cr_assert_leq(plan("h100", &backward, NULL).shared_memory, 232448);
}

/* 312,320 bytes wanted of 232,448: a training shape with short queries went to the decode kernel. */
Test(reported, short_queries_in_training_do_not_decode)
{
    for (int64_t q_len = 16; q_len < 128; q_len++)
        for (uint32_t d = 64; d <= 256; d += 64) {
            attune_problem problem = {.struct_size = sizeof problem,
                                      .dtype = d % 128 ? ATTUNE_BF16 : ATTUNE_F32,
                                      .head_dim = d,
                                      .batch = 32,
                                      .heads = 16,
                                      .kv_heads = 4,
                                      .q_len = q_len,
                                      .kv_len = 2048,
                                      .lse = true};
            attune_plan_choice c = plan("h100", &problem, NULL);
            cr_assert(!c.decode, "q_len %lld decodes", (long long)q_len);
            cr_assert_leq(c.shared_memory, 232448);
            problem.direction = ATTUNE_BACKWARD;
            cr_assert(!plan("h100", &problem, NULL).decode);
        }
}

/* 131,074 bytes wanted of 101,376: the A100's tile on an RTX 4090 (sm_89). */
Test(reported, tile_of_a100_on_rtx4090)
{
    const attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_BF16, .head_dim = 128, .heads = 16, .q_len = 4096};
    cr_assert_leq(plan("rtx4090", &problem, NULL).shared_memory, 101376);
    EXPECT_ERROR("rtx4090", &problem, "{\"BLOCK_M\": 128, \"BLOCK_N\": 64, \"num_stages\": 3}", ATTUNE_DOES_NOT_FIT,
                 "num_stages 3", "131072 bytes", "101376", "num_stages 2", "BLOCK_N 32");
    /* The A100, which has 163 KiB, takes it. */
    cr_assert_eq(plan("a100", &problem, "{\"BLOCK_M\": 128, \"BLOCK_N\": 64, \"num_stages\": 3}").shared_memory,
                 131072);
}

/* 139,776 bytes wanted of 101,376: head dimensions 192 and 128 on an RTX A6000 (sm_86). */
Test(reported, head_dims_192_and_128_on_a6000)
{
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_BF16,
                              .head_dim = 192,
                              .head_dim_v = 128,
                              .heads = 16,
                              .q_len = 4096};
    cr_assert_leq(plan("a6000", &problem, NULL).shared_memory, 101376);
    problem.direction = ATTUNE_BACKWARD;
    cr_assert_leq(plan("a6000", &problem, NULL).shared_memory, 101376);
    EXPECT_ERROR("a6000", &problem,
                 "{\"BLOCK_M1\": 64, \"BLOCK_N1\": 64, \"BLOCK_M2\": 64, \"BLOCK_N2\": 64, \"num_stages\": 2}",
                 ATTUNE_DOES_NOT_FIT, "num_stages 2", "124288 bytes", "101376", "with the other tile options left out");
}

/* "Set num_stages to 2" was the cure on an RTX A6000, found by hand; the message says it, and automatic needs none. */
Test(reported, num_stages_2_on_a6000)
{
    const attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = 128, .heads = 16, .q_len = 4096};
    EXPECT_ERROR("a6000", &problem, "{\"BLOCK_M\": 128, \"BLOCK_N\": 64, \"num_stages\": 3, \"num_warps\": 4}",
                 ATTUNE_DOES_NOT_FIT, "num_stages 3 does not fit", "131072", "101376",
                 "nearest that fits: num_stages 2");
    attune_plan_choice c =
        plan("a6000", &problem, "{\"BLOCK_M\": 128, \"BLOCK_N\": 64, \"num_stages\": 2, \"num_warps\": 4}");
    cr_assert_eq(c.num_stages, 2);
    cr_assert_eq(c.shared_memory, 98304);
    plan("a6000", &problem, NULL);
    /* Alone, three stages are granted with a smaller tile. */
    cr_assert_eq(plan("a6000", &problem, "{\"num_stages\": 3}").num_stages, 3);
}

/* Where no tile fits, that is said, and no option is named that was not given. */
Test(reported, no_tile_fits)
{
    attune_problem problem = {.struct_size = sizeof problem, .head_dim = 576, .head_dim_v = 512, .q_len = 4096};
    attune_limits limits = device("a6000");
    limits.shared_memory = 49152;
    static const attune_kernel_options options[] = {{.struct_size = sizeof options[0]},
                                                    {.struct_size = sizeof options[0], .fwd = {.block_m = 128}}};
    for (int i = 0; i < 2; i++) {
        attune_plan_choice c = {.struct_size = sizeof c};
        cr_assert_eq(attune_plan_choose(&limits, &problem, &options[i], &c), ATTUNE_DOES_NOT_FIT);
        cr_expect_str_eq(attune_last_error(),
                         "cuda_sm80 does not fit (forward): with its smallest tile, BLOCK_M 16 BLOCK_N 16 num_stages 1 "
                         "num_warps 1, it needs 90112 bytes of shared memory, the device has 49152");
    }
}

/* Options that a backend cannot take were ignored in silence. */
Test(reported, options_that_a_kernel_does_not_read)
{
    attune_problem problem = {.struct_size = sizeof problem, .head_dim = 64, .q_len = 1024};
    static const char *const devices[] = {"cpu",        "rdna3",          "rdna4",          "arc-b580",
                                          "adreno-840", "mali-g720",      "apple-m3",       "v3d",
                                          "lavapipe",   "vulkan-minimum", "opencl-minimum", "h200-vulkan"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        EXPECT_ERROR(devices[i], &problem, "{\"num_stages\": 2}", ATTUNE_INVALID_ARGUMENT, "num_stages",
                     plan(devices[i], &problem, NULL).kernel, "does not read it", "cuda_sm80");
        EXPECT_ERROR(devices[i], &problem, "{\"USE_TMA\": true}", ATTUNE_INVALID_ARGUMENT, "USE_TMA",
                     "does not read it", "cuda_sm90a");
        EXPECT_ERROR(devices[i], &problem, "{\"ROWS_GUARANTEED_SAFE\": true}", ATTUNE_INVALID_ARGUMENT,
                     "ROWS_GUARANTEED_SAFE");
        EXPECT_ERROR(devices[i], &problem, "{\"BLOCKS_ARE_CONTIGUOUS\": true}", ATTUNE_INVALID_ARGUMENT,
                     "BLOCKS_ARE_CONTIGUOUS", "does not read it", "cuda_sm80");
        EXPECT_ERROR(devices[i], &problem, "{\"APPROXIMATE_TANH\": true}", ATTUNE_INVALID_ARGUMENT, "APPROXIMATE_TANH",
                     "does not read it", "cuda_sm80");
    }
    EXPECT_ERROR("cpu", &problem, "{\"num_warps\": 4}", ATTUNE_INVALID_ARGUMENT, "num_warps", "kernel cpu");
    EXPECT_ERROR("vulkan-minimum", &problem, "{\"num_warps\": 4}", ATTUNE_INVALID_ARGUMENT, "num_warps",
                 "vulkan_portable");
    EXPECT_ERROR("a6000", &problem, "{\"SPLIT_KV\": 4}", ATTUNE_INVALID_ARGUMENT, "SPLIT_KV", "cuda_sm80 (forward)",
                 "cuda_sm80 (decode)", "FORCE_USE_FLEX_ATTENTION off");
    EXPECT_ERROR("a6000", &problem, "{\"USE_TMA\": true}", ATTUNE_INVALID_ARGUMENT, "USE_TMA on", "does not use TMA");
    /* Options of the other direction wait for its plan. */
    plan("a6000", &problem, "{\"BLOCK_M1\": 32, \"bwd_num_stages\": 1}");
    problem.direction = ATTUNE_BACKWARD;
    cr_assert_eq(plan("a6000", &problem, "{\"BLOCK_M1\": 32, \"bwd_num_stages\": 1, \"num_stages\": 2}").num_stages, 1);
    plan("a6000", &problem, "{\"SPLIT_KV\": 4, \"FORCE_USE_FLEX_ATTENTION\": false}");
}

/* A promise about the lists, which changes nothing, and a tanh that 16 bits may have. */
Test(reported, what_cuda_takes_of_promises_and_of_tanh)
{
    static const char *const devices[] = {"h200", "a6000", "rtx5090"};
    const char *const approximate = "{\"APPROXIMATE_TANH\": true}";
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (int back = 0; back < 2; back++) {
            attune_problem problem = {.struct_size = sizeof problem,
                                      .direction = back ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                      .dtype = ATTUNE_BF16,
                                      .head_dim = 64,
                                      .q_len = 1024};
            cr_assert(plan(devices[i], &problem, "{\"BLOCKS_ARE_CONTIGUOUS\": true}").blocks_are_contiguous);
            cr_assert(plan(devices[i], &problem, approximate).approximate_tanh);
            cr_assert_not(plan(devices[i], &problem, "{\"APPROXIMATE_TANH\": false}").approximate_tanh);
            cr_assert_not(plan(devices[i], &problem, NULL).approximate_tanh);
            problem.dtype = ATTUNE_F32;
            EXPECT_ERROR(devices[i], &problem, approximate, ATTUNE_INVALID_ARGUMENT, "APPROXIMATE_TANH on", "cuda_sm80",
                         "the error bound of f32", "leave it out");
            plan(devices[i], &problem, "{\"APPROXIMATE_TANH\": false}");
        }
    attune_problem problem = {.struct_size = sizeof problem,
                              .direction = ATTUNE_BACKWARD,
                              .dtype = ATTUNE_BF16,
                              .head_dim = 256,
                              .head_dim_v = 128,
                              .q_len = 64};
    EXPECT_ERROR("h200", &problem, "{\"DETERMINISTIC\": true, \"KERNEL\": \"cuda_sm90a\"}", ATTUNE_INVALID_ARGUMENT,
                 "DETERMINISTIC on: cuda_sm90a", "order", "or KERNEL");
}

Test(reported, options_that_are_not_an_object)
{
    static const struct {
        const char *json, *what;
    } wrong[] = {{"[{\"BLOCK_M\": 64}]", "an array"},
                 {"\"BLOCK_M\"", "a string"},
                 {"64", "an integer"},
                 {"1.5", "a real number"},
                 {"true", "true"},
                 {"null", "null"}};
    (void)options("{}");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        attune_kernel_options o = {.struct_size = sizeof o, .any.block_m = 7};
        cr_assert_eq(attune_kernel_options_parse(wrong[i].json, &o), ATTUNE_PARSE_ERROR);
        cr_assert(strstr(attune_last_error(), wrong[i].what), "%s", attune_last_error());
        cr_assert(strstr(attune_last_error(), "one JSON object"), "%s", attune_last_error());
        cr_assert_eq(o.any.block_m, 7);
    }
}

/* SPDX-License-Identifier: MIT */
/* The rules one by one: families, decode, masks, workspace, limits, profiles. */
#include "plan/plan_test.h"

#include "plan/layout_cpu.h"
#include "plan/family_cuda.h"
#include "plan/layout.h"
#include "support/random_expr.h"

Test(choose, each_device_gets_its_fastest_kernel)
{
    static const struct {
        const char *device;
        attune_dtype dtype;
        const char *kernel;
    } table[] = {
        {"cpu", ATTUNE_F64, "cpu"},
        {"a6000", ATTUNE_F16, "cuda_sm80"},
        {"rtx5090", ATTUNE_BF16, "cuda_sm80"},
        {"h200", ATTUNE_BF16, "cuda_sm90a"},
        {"h200", ATTUNE_F32, "cuda_sm80"},
        {"b200", ATTUNE_BF16, "cuda_sm80"},
        {"h200-vulkan", ATTUNE_F16, "vulkan_coopmat"},
        {"h200-vulkan", ATTUNE_BF16, "vulkan_coopmat"},
        {"h200-vulkan", ATTUNE_F32, "vulkan_subgroup"},
        {"rdna3", ATTUNE_F16, "vulkan_subgroup"},
        {"lavapipe", ATTUNE_F16, "vulkan_lanes"},
        {"lavapipe", ATTUNE_BF16, "vulkan_lanes"},
        {"adreno-840", ATTUNE_F16, "vulkan_subgroup"},
        {"v3d", ATTUNE_F16, "vulkan_portable"},
        {"vulkan-minimum", ATTUNE_BF16, "vulkan_portable"},
        {"opencl-minimum", ATTUNE_F32, "opencl_portable"},
        {"opencl-nvidia", ATTUNE_F16, "opencl_portable"},
        {"opencl-adreno-830", ATTUNE_F16, "opencl_portable"},
        {"opencl-adreno-x2", ATTUNE_F16, "opencl_portable"},
        {"opencl-mali-g720", ATTUNE_F32, "opencl_portable"},
        {"opencl-xe2", ATTUNE_BF16, "opencl_subgroup"},
        {"pocl", ATTUNE_F32, "opencl_lanes"},
        {"pocl", ATTUNE_F16, "opencl_lanes"},
        {"rusticl", ATTUNE_BF16, "opencl_lanes"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        attune_problem p = problem_of(table[i].dtype, 128, 2048, 2048);
        cr_expect_str_eq(plan(table[i].device, &p, NULL).kernel, table[i].kernel, "%s", table[i].device);
    }
}

/* Half the threads have 8 x 8 scores of the same tile each. */
Test(choose, opencl_threads)
{
    attune_problem p = problem_of(ATTUNE_F16, 64, 2048, 2048);
    attune_plan_choice c = plan("opencl-nvidia", &p, "{\"num_warps\": 2}");
    cr_expect_str_eq(c.kernel, "opencl_portable");
    cr_expect(c.block_m == 64 && c.block_n == 64 && c.num_warps == 2, "%u x %u, %u", c.block_m, c.block_n, c.num_warps);
    cr_expect_eq(c.workgroup_invocations, 64);
    EXPECT_ERROR("opencl-nvidia", &p, "{\"num_warps\": 3}", ATTUNE_INVALID_ARGUMENT, "num_warps is 3", "power of two");
    EXPECT_ERROR("opencl-minimum", &p, "{\"num_warps\": 4}", ATTUNE_DOES_NOT_FIT, "needs 4 invocations", "num_warps 1");
}

/* A thread has eight keys of 16 bits in flight, with eight rows four, and a unit one workgroup. */
Test(choose, opencl_decode)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 1, 32768);
    p.heads = 32, p.kv_heads = 8, p.batch = 1;
    attune_plan_choice c = plan("opencl-nvidia", &p, NULL);
    cr_expect_str_eq(c.kernel, "opencl_decode");
    cr_expect(c.block_m == 4 && c.block_n == 128 && c.workgroup_invocations == 256, "%u x %u, %u", c.block_m, c.block_n,
              c.workgroup_invocations);
    cr_expect(c.split_kv == 16 && c.occupancy == 1, "%u parts, %u", c.split_kv, c.occupancy);
    p.heads = 64;
    c = plan("opencl-nvidia", &p, "{\"KERNEL\": \"opencl_decode\"}");
    cr_expect(c.block_m == 8 && c.block_n == 64, "%u x %u", c.block_m, c.block_n);
#define DECODES "{\"KERNEL\": \"opencl_decode\", \"FORCE_USE_FLEX_ATTENTION\": false, "
    /* Each eight columns of a key have a thread. */
    EXPECT_ERROR("opencl-nvidia", &p, DECODES "\"num_warps\": 1, \"BLOCK_N\": 1}", ATTUNE_INVALID_ARGUMENT,
                 "BLOCK_N is 1", "read more keys at once");
    EXPECT_ERROR("opencl-nvidia", &p, DECODES "\"BLOCK_M\": 16}", ATTUNE_INVALID_ARGUMENT, "BLOCK_M is 16",
                 "at most 8");
    /* So they are where the forward pass might be planned instead. */
    EXPECT_ERROR("opencl-nvidia", &p, "{\"KERNEL\": \"opencl_decode\", \"BLOCK_M\": 16}", ATTUNE_INVALID_ARGUMENT,
                 "BLOCK_M is 16", "at most 8");
    /* llvmpipe's bound on loops: parts of decode, and an item of a batch has all keys. */
    cr_expect_gt(plan("rusticl", &p, "{\"KERNEL\": \"opencl_decode\"}").split_kv, 10);
    EXPECT_ERROR("rusticl", &p, DECODES "\"SPLIT_KV\": 2}", ATTUNE_INVALID_ARGUMENT, "SPLIT_KV is 2", "more keys");
    p = problem_of(ATTUNE_F16, 128, 2048, 2048);
    EXPECT_ERROR("opencl-nvidia", &p, "{\"KERNEL\": \"opencl_decode\"}", ATTUNE_UNSUPPORTED, "opencl_decode",
                 "it is for decode");
#undef DECODES
}

/* A plan for long keys has the kernel that one for short keys has: its parts are as many as the driver's bound
 * requires. */
Test(choose, lanes_decode_any_number_of_keys)
{
    const attune_limits limits = device("lavapipe");
    static const int64_t lengths[] = {300, 2100, 2500, 4096, 32768, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (attune_dtype dtype = ATTUNE_F32; dtype <= ATTUNE_BF16; dtype++) {
            attune_problem p = problem_of(dtype, 128, 1, lengths[i]);
            const attune_plan_choice c = plan("lavapipe", &p, NULL);
            cr_assert_str_eq(c.kernel, "vulkan_lanes", "%lld keys", (long long)lengths[i]);
            cr_assert(c.decode);
            const uint32_t most = attune__lanes_most_steps(c.block_m, c.block_n, limits.subgroup_size, 128, 128,
                                                           dtype == ATTUNE_F32 ? 4 : 2);
            const int64_t steps = (lengths[i] + c.block_n - 1) / c.block_n;
            cr_assert((steps + c.split_kv - 1) / c.split_kv <= most, "%lld keys in %u parts", (long long)lengths[i],
                      c.split_kv);
        }
}

/* So it is with matrices that are named. */
Test(choose, matrices_decode_any_number_of_keys)
{
    const attune_limits limits = device("lavapipe");
    const attune__matrix_shape shape = {limits.matrix_m, limits.matrix_n, limits.matrix_k, limits.subgroup_size,
                                        limits.fragment_layout};
    static const int64_t lengths[] = {300, 2100, 4096, 32768, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        attune_problem p = problem_of(ATTUNE_F16, 128, 1, lengths[i]);
        const attune_plan_choice c = plan("lavapipe", &p, "{\"KERNEL\": \"vulkan_coopmat\"}");
        cr_assert_str_eq(c.kernel, "vulkan_coopmat");
        cr_assert(c.decode);
        const uint32_t most = attune__matrix_most_steps(c.block_m, c.block_n, c.num_warps, shape, 128, 128);
        const int64_t steps = (lengths[i] + c.block_n - 1) / c.block_n;
        cr_expect((steps + c.split_kv - 1) / c.split_kv <= most, "%lld keys in %u parts, most %u steps of %u",
                  (long long)lengths[i], c.split_kv, most, c.block_n);
    }
}

/* A kernel that is named and rejects every tile says why. */
Test(choose, a_named_kernel_that_rejects_says_why)
{
    attune_problem p = problem_of(ATTUNE_F32, 128, 300, 100000);
    EXPECT_ERROR("lavapipe", &p, "{\"KERNEL\": \"vulkan_lanes\"}", ATTUNE_UNSUPPORTED,
                 "there are more keys than the driver lets one workgroup read");
}

Test(choose, hopper_hands_what_it_lacks_in_backward_to_the_sm80_kernels)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 2048, 2048);
    p.direction = ATTUNE_BACKWARD;
    cr_expect_str_eq(plan("h200", &p, NULL).kernel, "cuda_sm90a");
    cr_expect(!plan("h200", &p, NULL).deterministic);
    cr_expect_str_eq(plan("h200", &p, "{\"bwd_DETERMINISTIC\": true}").kernel, "cuda_sm90a");
    cr_expect(plan("h200", &p, "{\"bwd_DETERMINISTIC\": true}").deterministic);
    p.head_dim = 256, p.head_dim_v = 128;
    cr_expect_str_eq(plan("h200", &p, "{\"bwd_DETERMINISTIC\": true}").kernel, "cuda_sm80");
    cr_expect(plan("h200", &p, "{\"bwd_DETERMINISTIC\": true}").deterministic);
    p.head_dim = p.head_dim_v = 128;
    p.capture_gradient_elements = 8;
    cr_expect_str_eq(plan("h200", &p, NULL).kernel, "cuda_sm90a");
    p.capture_gradient_elements = 0;
    static const struct {
        uint32_t head_dim, head_dim_v;
        const char *kernel;
    } table[] = {{64, 64, "cuda_sm90a"},      {40, 128, "cuda_sm90a"},  {256, 256, "cuda_sm90a"},
                 {200, 224, "cuda_sm90a"},    {192, 128, "cuda_sm90a"}, {192, 192, "cuda_sm90a"},
                 {256, 128, "cuda_sm90a"},    {72, 256, "cuda_sm90a"},  {64, 256, "cuda_sm80_atomic"},
                 {136, 8, "cuda_sm80_atomic"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        p.head_dim = table[i].head_dim;
        p.head_dim_v = table[i].head_dim_v;
        cr_expect_str_eq(plan("h200", &p, NULL).kernel, table[i].kernel, "%u, %u", p.head_dim, p.head_dim_v);
    }
}

/* The workspace of a DFlash step, beside 385 MiB of q, k, v, o, lse and gradients (docs/decisions/0039): float32 sums
 * of dQ, or, with dQ in a kernel of its own, two numbers for each row. */
Test(choose, workspace_of_a_dflash_step)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 8192, 16384);
    p.batch = 1, p.heads = 32, p.kv_heads = 8;
    p.block_mask = true;
    p.direction = ATTUNE_BACKWARD;
    static const char *const devices[] = {"h200", "h100", "a100", "a6000", "rtx4090"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const uint64_t rows = UINT64_C(32) * 8192, sums = rows * 128 * 4;
        const uint64_t quick = plan(devices[i], &p, NULL).workspace;
        cr_expect_leq(quick, sums + (UINT64_C(9) << 18), "%s: %llu", devices[i], (unsigned long long)quick);
        const attune_plan_choice least = plan(devices[i], &p, "{\"bwd_KERNEL\": \"cuda_sm80\"}");
        cr_expect_str_eq(least.kernel, "cuda_sm80");
        cr_expect_eq(least.workspace, 2 * rows * 4, "%s: %llu", devices[i], (unsigned long long)least.workspace);
    }
}

/* Tail splits cover every row of their tiles once, are no more than workgroups, and fit into the plan's workspace,
 * whatever is shorter in a call. */
Test(choose, the_last_tiles_are_shared_out)
{
    const attune__cuda_tail p = attune__cuda_sm90_tail(4096, 132, 16384, 1, 64);
    cr_assert(p.full_wave_tiles == 4092 && p.left == 4 && p.each == 32 && p.rows == 512);
    cr_assert_eq(attune__cuda_sm90_tail(4092, 132, 16384, 1, 64).each, 1, "whole rounds");
    cr_assert_eq(attune__cuda_sm90_tail(67, 132, 16384, 1, 64).each, 1, "more than half a round");
    cr_assert_eq(attune__cuda_sm90_tail(4, 132, 511, 1, 64).each, 2, "four tiles of rows at least");
    cr_assert_eq(attune__cuda_sm90_tail(4, 132, 64, 100, 64).each, 1, "one tile of rows");
    cr_assert_eq(attune__cuda_sm90_tail(4, 0, 4096, 1, 64).each, 1, "no workgroup at all");
    attune_problem problem = problem_of(ATTUNE_BF16, 128, 4096, 4096);
    problem.direction = ATTUNE_BACKWARD;
    const uint64_t one = attune__cuda_sm90_tail_bytes(128, 128, 128);
    cr_assert_eq(one, 128 * 256 * 4 + 64);
    const uint64_t with = plan("h200", &problem, NULL).workspace;
    cr_assert_eq(with - plan("h200", &problem, "{\"DETERMINISTIC\": true}").workspace, 64 * one, "every tile");
    uint64_t state = 7;
    for (int i = 0; i < 20000; i++) {
        const int64_t tiles = random_expr_between(&state, 1, 5000), ctas = random_expr_between(&state, 1, 200);
        const int64_t q_len = random_expr_between(&state, 1, 70000), heads = random_expr_between(&state, 1, 8);
        const uint32_t m = i % 2 ? 64 : 128;
        const attune__cuda_tail r = attune__cuda_sm90_tail(tiles, ctas, q_len, heads, m);
        cr_assert(r.full_wave_tiles + r.left == tiles && r.full_wave_tiles >= 0 && r.left >= 0);
        cr_assert_leq(r.left, ctas / 2);
        if (r.left)
            cr_assert(r.each > 1 && r.left * r.each <= ctas && r.full_wave_tiles % ctas == 0);
        cr_assert_geq(r.each * r.rows, q_len);
        cr_assert_lt((r.each - 1) * r.rows, q_len, "no split without a row");
        cr_assert(r.each == 1 || r.rows % m == 0);
        cr_assert(r.each == 1 || r.rows / m * heads >= 4);
    }
}

Test(choose, a_kernel_that_the_device_cannot_have_is_explained)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 2048, 2048);
    attune_limits b200 = device("b200");
    char text[8192];
    cr_assert_eq(attune_plan_choose_explain(&b200, &p, NULL, ATTUNE_TEXT, text, sizeof text, NULL), ATTUNE_OK);
    cr_assert(strstr(text, "cuda_sm90a: the device has no wgmma"), "%s", text);
    EXPECT_ERROR("b200", &p, "{\"KERNEL\": \"cuda_sm90a\"}", ATTUNE_UNSUPPORTED, "no wgmma");
    EXPECT_ERROR("a100", &p, "{\"KERNEL\": \"cuda_sm90a\"}", ATTUNE_UNSUPPORTED, "no wgmma");
    EXPECT_ERROR("a100", &p, "{\"KERNEL\": \"vulkan_coopmat\"}", ATTUNE_INVALID_ARGUMENT, "another backend",
                 "cuda_sm80");
    p.dtype = ATTUNE_F64;
    EXPECT_ERROR("rdna3", &p, "{}", ATTUNE_UNSUPPORTED, "f64");
}

Test(choose, decode_rule)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 1, 8192);
    attune_plan_choice c = plan("h100", &p, NULL);
    cr_assert(c.decode && c.split_kv == 16, "%u",
              c.split_kv); /* 132 units over 2 KV heads, four tiles a part at least */
    cr_assert_eq(c.workspace, 8 * 16 * 128 * 4 + 8 * 16 * 2 * 4);
    /* Up to 16 parts may have one tile, if that saves a workgroup more time than the merge takes. */
    p.kv_len = 2048;
    cr_assert_eq(plan("a100", &p, NULL).split_kv, 16);
    /* Of a cluster 8, if these have a tile more, and the clusters run at once. */
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 8);
    p.kv_len = 4096;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 16, "two tiles more");
    p.kv_len = 2048;
    p.head_dim = p.head_dim_v = 256;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 16, "a tile of 128 KiB");
    p.head_dim = p.head_dim_v = 64;
    p.batch = 8;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 16, "no place for 16 clusters of 8");
    p.batch = 1;
    p.head_dim = p.head_dim_v = 128;
    p.kv_len = 512;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 4);
    p.kv_len = 300;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 1);
    p.kv_len = 8192;
    p.q_len = 8;
    cr_assert(plan("h100", &p, NULL).decode);
    p.q_len = 16;
    cr_assert(plan("h100", &p, NULL).decode, "8 heads leave units idle");
    p.batch = 64;
    cr_assert(!plan("h100", &p, NULL).decode, "512 heads fill 132 units");
    p.q_len = 17, p.batch = 1;
    cr_assert(!plan("h100", &p, NULL).decode);
    p.q_len = 1, p.kv_len = 255;
    cr_assert(!plan("h100", &p, NULL).decode);
    p.kv_len = 8192;
    cr_assert(!plan("h100", &p, "{\"FORCE_USE_FLEX_ATTENTION\": true}").decode);
    cr_assert_eq(plan("h100", &p, "{\"SPLIT_KV\": 3}").split_kv, 3);
    EXPECT_ERROR("h100", &p, "{\"SPLIT_KV\": 1024}", ATTUNE_INVALID_ARGUMENT, "SPLIT_KV");
    p.q_len = 64, p.kv_len = 100;
    cr_assert(plan("h100", &p, "{\"FORCE_USE_FLEX_ATTENTION\": false}").decode);
    p.q_len = 65;
    EXPECT_ERROR("h100", &p, "{\"FORCE_USE_FLEX_ATTENTION\": false}", ATTUNE_UNSUPPORTED, "FORCE_USE_FLEX_ATTENTION",
                 "64", "65");
    /* A tile that decode cannot have goes to the forward kernel, unless decode is forced. */
    p.q_len = 1, p.kv_len = 8192;
    cr_assert(!plan("a100", &p, "{\"BLOCK_M\": 128}").decode);
    EXPECT_ERROR("a100", &p, "{\"BLOCK_M\": 128, \"FORCE_USE_FLEX_ATTENTION\": false}", ATTUNE_INVALID_ARGUMENT,
                 "BLOCK_M is 128", "decode", "64");
    p.direction = ATTUNE_BACKWARD;
    cr_assert(!plan("h100", &p, NULL).decode);
}

/* A plan for a prompt serves the steps after it as a plan for steps does. */
Test(choose, short_calls_of_a_long_plan_decode)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 2048, 8192);
    cr_assert_eq(plan("h100", &p, NULL).short_q_len, 16, "8 heads leave units idle");
    cr_assert_eq(plan("cpu", &p, NULL).short_q_len, 8, "8 heads fill 8 threads");
    p.batch = 64;
    cr_assert_eq(plan("h100", &p, NULL).short_q_len, 8, "512 heads fill 132 units");
    p.q_len = 12;
    cr_assert_eq(plan("h100", &p, NULL).short_q_len, 8, "the forward kernel is for 9 queries and more");
    p.q_len = 8;
    cr_assert(plan("h100", &p, NULL).decode && !plan("h100", &p, NULL).short_q_len);
    p.q_len = 2048, p.batch = 1;
    cr_assert_eq(plan("h100", &p, "{\"FORCE_USE_FLEX_ATTENTION\": true}").short_q_len, 0);
    /* Options hold for every kernel of the plan: where decode cannot have them, there is none. */
    cr_assert_eq(plan("h100", &p, "{\"KERNEL\": \"cuda_sm90a\"}").short_q_len, 0);
    cr_assert_eq(plan("h100", &p, "{\"ROWS_GUARANTEED_SAFE\": true}").short_q_len, 0);
    cr_assert_eq(plan("a100", &p, "{\"BLOCK_M\": 128}").short_q_len, 0);
    cr_assert_eq(plan("a100", &p, "{\"BLOCK_M\": 64}").short_q_len, 16);
    p.kv_len = 255;
    cr_assert_eq(plan("h100", &p, NULL).short_q_len, 0);
    p.kv_len = 8192, p.direction = ATTUNE_BACKWARD;
    cr_assert_eq(plan("h100", &p, NULL).short_q_len, 0);
}

/* The workspace is the larger kernel's, after the segments' part, which no kernel changes. */
Test(choose, short_calls_share_the_workspace)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 2048, 8192);
    cr_assert_eq(plan("h100", &p, NULL).workspace, 8 * 16 * 16 * (128 + 2) * 4, "16 queries in 16 parts");
    const uint64_t alone = plan("h100", &p, NULL).workspace;
    p.segments = 2;
    attune__shape s;
    cr_assert_eq(attune__shape_from_problem(&p, &s), ATTUNE_OK);
    cr_assert_eq(plan("h100", &p, NULL).workspace, alone + attune__segments_size(&s, 8 * 2048, 2));
    p.q_len = 1;
    cr_assert_eq(plan("h100", &p, NULL).split_kv, 16);
}

Test(choose, every_device_decodes)
{
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (uint32_t d = 8; d <= 256; d += 8) {
            attune_profile profile = {.struct_size = sizeof profile};
            cr_assert_eq(attune_profile_get(i, &profile), ATTUNE_OK);
            attune_problem p = problem_of(d % 16 ? ATTUNE_F32 : ATTUNE_F16, d, 1, 4096);
            cr_assert(plan(profile.name, &p, NULL).decode, "%s %u", profile.name, d);
        }
}

Test(choose, heads_pack_where_the_mask_lets_them)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 1, 8192);
    attune__shape s;
    cr_assert_eq(attune__shape_from_problem(&p, &s), ATTUNE_OK);
    cr_assert_eq(attune__shape_packed_heads(&s), 4);
    p.block_mask = true;
    cr_assert_eq(attune__shape_from_problem(&p, &s), ATTUNE_OK);
    cr_assert_eq(attune__shape_packed_heads(&s), 4, "no block is partial: the lists are most often one for all heads");
    s.expr.mask.reads_head = true;
    cr_assert_eq(attune__shape_packed_heads(&s), 1);
    cr_assert_eq(attune__decode_step(&s, 64), 128);
    s.block_mask = false;
    cr_assert_eq(attune__decode_step(&s, 64), 64);
}

/* Lists of whole blocks need no expression. They are planned for as no mask is: each head of a group by itself would
 * read its keys once more. */
Test(choose, whole_blocks_leave_the_tile_as_it_is)
{
    static const char *const devices[] = {"h200", "cpu"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        attune_problem p = problem_of(i ? ATTUNE_F32 : ATTUNE_BF16, 256, 1, 16384);
        p.batch = 32, p.heads = 8, p.kv_heads = 1;
        const attune_plan_choice plain = plan(devices[i], &p, NULL);
        p.block_mask = true;
        const attune_plan_choice whole = plan(devices[i], &p, NULL);
        cr_expect_eq(whole.split_kv, plain.split_kv, "%s: %u parts, without a mask %u", devices[i], whole.split_kv,
                     plain.split_kv);
        cr_expect_eq(whole.block_m, plain.block_m);
    }
}

Test(choose, cpu_scratch_and_workspace)
{
    /* q, k, v, s, o: 128 x 128 floats each, and 16 more in a row of s and o; three rows of state; a row of bytes */
    const attune__shape square = {.q_dtype = ATTUNE_F32, .head_dim = 128, .head_dim_v = 128};
    cr_assert_eq(attune__cpu_layout_make(&square, 128, 128).tile_bytes, 5 * 65536 + 2 * 8192 + 3 * 512 + 128);
    const attune__shape odd = {.q_dtype = ATTUNE_F64, .head_dim = 8, .head_dim_v = 24};
    cr_assert_eq(attune__cpu_layout_make(&odd, 1, 16).tile_bytes, 8 * (3 * 256 + 512 + 768 + 48) + 64);
    attune__shape small = {.q_dtype = ATTUNE_BF16, .head_dim = 16, .head_dim_v = 16};
    const uint64_t bf16 = attune__cpu_layout_make(&small, 16, 16).tile_bytes;
    small.q_dtype = ATTUNE_F32;
    cr_assert_eq(attune__cpu_layout_make(&small, 16, 16).tile_bytes, bf16);
    attune_problem p = problem_of(ATTUNE_F32, 128, 1024, 1024);
    attune_limits cpu = device("cpu");
    attune__shape s;
    attune__decision d;
    cr_assert_eq(attune__shape_from_problem(&p, &s), ATTUNE_OK);
    s.expr_scratch = 1000;
    cr_assert_eq(attune__plan_choose(&cpu, &s, NULL, &d), ATTUNE_OK);
    uint64_t one = attune__cpu_layout_make(&s, d.choice.block_m, d.choice.block_n).bytes;
    cr_assert_eq(d.choice.short_q_len, 8);
    const attune__shape few = attune__shape_of_short(&s, &d);
    const uint64_t parts = attune__split_size(&few, d.short_choice.split_kv, 4);
    const uint64_t other =
        parts + 8 * attune__cpu_layout_make(&s, d.short_choice.block_m, d.short_choice.block_n).bytes;
    cr_assert_eq(d.choice.workspace, (8 * one > other ? 8 * one : other) + 256, "256: for the alignment");
    cr_assert_eq(one % 256, 0);
    cr_assert_geq(one, attune__cpu_layout_make(&s, d.choice.block_m, d.choice.block_n).tile_bytes + 1024);
    /* decode: the parts come first */
    s.q_len = 1;
    cr_assert_eq(attune__plan_choose(&cpu, &s, NULL, &d), ATTUNE_OK);
    cr_assert(d.choice.decode && d.choice.split_kv > 1);
    cr_assert_eq(d.choice.workspace, attune__split_size(&s, d.choice.split_kv, 4) +
                                         8 * attune__cpu_layout_make(&s, d.choice.block_m, d.choice.block_n).bytes +
                                         256);
    cr_assert_eq(attune__split_size(&s, 1, 4), 0);
    /* Cache is no limit: the smallest tile does. A forced one is granted. */
    cpu.shared_memory = 1024;
    s.q_len = 1024;
    cr_assert_eq(attune__plan_choose(&cpu, &s, NULL, &d), ATTUNE_OK);
    cr_assert(d.choice.block_m == 16 && d.choice.block_n == 16);
    const attune_kernel_options o = {.struct_size = sizeof o, .any = {.block_m = 128, .block_n = 128}};
    cr_assert_eq(attune__plan_choose(&cpu, &s, &o, &d), ATTUNE_OK);
    cr_assert(d.choice.block_m == 128 && d.choice.block_n == 128);
}

Test(choose, tiles_divide_the_mask)
{
    static const uint32_t blocks[] = {16, 48, 64, 80, 128, 1024};
    static const char *const devices[] = {"cpu", "a100", "h100", "rdna3", "lavapipe", "v3d", "h200-vulkan"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (size_t j = 0; j < 36; j++)
            for (int direction = 0; direction < 2; direction++) {
                attune_problem p = problem_of(ATTUNE_F16, 128, 2048, 2048);
                p.direction = (attune_direction)direction;
                p.block_mask = true;
                p.mask_q_block = blocks[j % 6];
                p.mask_kv_block = blocks[j / 6];
                attune_plan_choice c = plan(devices[i], &p, NULL);
                if (direction)
                    cr_assert(p.mask_q_block % c.block_m1 == 0 && p.mask_q_block % c.block_m2 == 0 &&
                              p.mask_kv_block % c.block_n1 == 0 && p.mask_kv_block % c.block_n2 == 0);
                else
                    cr_assert(p.mask_q_block % c.block_m == 0 && p.mask_kv_block % c.block_n == 0);
            }
    attune_problem p = problem_of(ATTUNE_F16, 128, 2048, 2048);
    p.block_mask = true;
    p.mask_q_block = 64;
    EXPECT_ERROR("a100", &p, "{\"BLOCK_M\": 128}", ATTUNE_INVALID_ARGUMENT, "BLOCK_M is 128",
                 "divide the block of the mask", "the nearest is 64");
}

Test(choose, limits_are_checked)
{
    const attune_problem p = problem_of(ATTUNE_F16, 128, 2048, 2048);
    attune_plan_choice c = {.struct_size = sizeof c};
#define WRONG(profile, change, words)                                                                                  \
    do {                                                                                                               \
        attune_limits limits = device(profile);                                                                        \
        limits.change;                                                                                                 \
        attune_status status = attune_plan_choose(&limits, &p, NULL, &c);                                              \
        cr_expect(status == ATTUNE_INVALID_ARGUMENT || status == ATTUNE_UNSUPPORTED, #change);                         \
        cr_expect(strstr(attune_last_error(), words), "%s: %s", #change, attune_last_error());                         \
    } while (0)
    WRONG("a100", struct_size = 0, "limits.struct_size is 0");
    WRONG("a100", backend = (attune_backend)0, "limits.backend is 0");
    WRONG("a100", backend = (attune_backend)9, "limits.backend is 9");
    WRONG("a100", compute_units = 0, "limits.compute_units is 0");
    WRONG("cpu", compute_units = 0, "limits.compute_units is 0");
    WRONG("a100", workgroup_invocations = 0, "limits.workgroup_invocations is 0");
    WRONG("a100", workgroup_invocations = UINT32_MAX, "limits.workgroup_invocations is 4294967295");
    WRONG("a100", unit_invocations = 1, "limits.unit_invocations is 1");
    WRONG("a100", shared_memory = 0, "limits.shared_memory is 0");
    WRONG("v3d", shared_memory = 16383, "limits.shared_memory is 16383");
    WRONG("a100", shared_memory_unit = 5, "limits.shared_memory_unit is 5");
    WRONG("a100", subgroup_size = 64, "limits.subgroup_size is 64");
    WRONG("v3d", subgroup_size = 0, "limits.subgroup_size is 0");
    WRONG("rdna3", matrix_m = 0, "limits.matrix_m is 0");
    WRONG("rdna3", matrix_k = 3, "limits.matrix_k is 3");
    WRONG("rdna3", fragment_layout = 1, "limits.fragment_layout is 1");
    WRONG("rdna3", fragment_layout = 2, "limits.fragment_layout is 2");
    WRONG("h200-vulkan", fragment_layout = 3, "limits.fragment_layout is 3");
    WRONG("a100", fragment_layout = 1, "limits.fragment_layout is 1");
    cr_expect_eq(attune_plan_choose(NULL, &p, NULL, &c), ATTUNE_INVALID_ARGUMENT);
    attune_limits limits = device("a100");
    cr_expect_eq(attune_plan_choose(&limits, NULL, NULL, &c), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_plan_choose(&limits, &p, NULL, NULL), ATTUNE_INVALID_ARGUMENT);
}

Test(choose, problems_are_checked)
{
    attune_limits limits = device("a100");
    attune_plan_choice c = {.struct_size = sizeof c};
#undef WRONG
#define WRONG(change, words)                                                                                           \
    do {                                                                                                               \
        attune_problem p = problem_of(ATTUNE_F16, 128, 2048, 2048);                                                    \
        p.change;                                                                                                      \
        attune_status status = attune_plan_choose(&limits, &p, NULL, &c);                                              \
        cr_expect(status == ATTUNE_INVALID_ARGUMENT || status == ATTUNE_UNSUPPORTED, #change);                         \
        cr_expect(strstr(attune_last_error(), words), "%s: %s", #change, attune_last_error());                         \
    } while (0)
    WRONG(struct_size = 3, "problem.struct_size is 3");
    WRONG(direction = (attune_direction)2, "problem.direction is 2");
    WRONG(dtype = ATTUNE_I32, "problem.dtype is i32");
    WRONG(dtype = (attune_dtype)77, "problem.dtype is ? (77)");
    WRONG(head_dim = 0, "problem.head_dim is 0");
    WRONG(head_dim = 20, "problem.head_dim is 20");
    WRONG(head_dim = 584, "problem.head_dim is 584, expected a multiple of 8 from 8 to 576: no kernel has wider");
    WRONG(head_dim_v = 520, "problem.head_dim_v is 520, expected a multiple of 8 from 8 to 512");
    WRONG(head_dim_v = 4, "problem.head_dim_v is 4");
    WRONG(batch = -1, "problem.batch is -1");
    WRONG(kv_batch = 3, "problem.kv_batch is 3");
    WRONG(kv_heads = 3, "problem.kv_heads is 3, which does not divide heads, 8");
    WRONG(q_len = 0, "problem.q_len is 0");
    WRONG(q_len = INT64_C(1) << 31, "problem.q_len is 2147483648");
    WRONG(kv_len = -5, "problem.kv_len is -5");
    WRONG(batch = INT32_MAX, "at most 2^40");
    WRONG(mask_q_block = 8, "problem.mask_q_block is 8");
    WRONG(mask_kv_block = 2048, "problem.mask_kv_block is 2048");
    WRONG(scale = 1.0 / 0.0, "problem.scale is inf");
}

Test(choose, profiles)
{
    static const char *const names[] = {
        "cpu",      "a6000",       "a10g",           "a100",           "rtx4090",    "h100",      "h200",     "b200",
        "rtx5090",  "rdna3",       "rdna4",          "arc-b580",       "adreno-840", "mali-g720", "apple-m3", "v3d",
        "lavapipe", "h200-vulkan", "vulkan-minimum", "opencl-minimum", "pocl",       "rusticl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        device(names[i]);
    cr_assert_eq(device("A6000").shared_memory, 101376);
    cr_assert_eq(device("rtx4090").shared_memory, 101376);
    cr_assert_eq(device("a100").shared_memory, 166912);
    cr_assert_eq(device("h200").shared_memory, 232448);
    for (uint32_t i = 0; i < attune_profile_count(); i++) {
        attune_profile p = {.struct_size = sizeof p};
        cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
        cr_assert(p.name[0] && p.description[0] && p.source[0]);
        cr_assert_eq(p.limits.struct_size, sizeof p.limits);
        cr_assert(p.limits.backend != ATTUNE_BACKEND_CUDA ||
                  p.limits.shared_memory + p.limits.shared_memory_reserved == p.limits.shared_memory_unit);
        for (uint32_t j = 0; j < i; j++) {
            attune_profile other = {.struct_size = sizeof other};
            cr_assert_eq(attune_profile_get(j, &other), ATTUNE_OK);
            cr_assert_str_neq(p.name, other.name);
        }
    }
    attune_profile p = {.struct_size = sizeof p};
    cr_expect_eq(attune_profile_find("gtx1080", &p), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "a6000") && strstr(attune_last_error(), "opencl-minimum"), "%s",
              attune_last_error());
    cr_expect_eq(attune_profile_find(NULL, &p), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_profile_get(attune_profile_count(), &p), ATTUNE_INVALID_ARGUMENT);
}

Test(choose, occupancy_counts_what_the_driver_takes)
{
    /* 48 KiB and the driver's 1 KiB twice are 98 of the A6000's 100 KiB; 50 KiB and 1 KiB twice are not. */
    attune_problem p = problem_of(ATTUNE_F16, 128, 4096, 4096);
    p.batch = 8;
    attune_plan_choice c = plan("a6000", &p, "{\"BLOCK_M\": 64, \"BLOCK_N\": 64, \"num_stages\": 1, \"num_warps\": 4}");
    cr_assert_eq(c.shared_memory, 49152);
    cr_assert_eq(c.occupancy, 2);
    c = plan("a6000", &p, "{\"BLOCK_M\": 64, \"BLOCK_N\": 64, \"num_stages\": 2, \"num_warps\": 4}");
    cr_assert_eq(c.occupancy, 1);
}

Test(choose, the_drivers_kibibyte_is_counted)
{
    /* 50 KiB twice are exactly the 100 KiB of a compute unit, of which the driver takes 1 KiB each. */
    attune_problem p = problem_of(ATTUNE_F16, 80, 4096, 4096);
    attune_plan_choice c = plan("a6000", &p, "{\"BLOCK_M\": 64, \"BLOCK_N\": 64, \"num_stages\": 2, \"num_warps\": 4}");
    cr_assert_eq(c.shared_memory, 51200);
    cr_assert_eq(c.occupancy, 1);
}

Test(choose, matrices_whose_fragment_layout_is_known)
{
    attune_limits limits = device("h200-vulkan");
    attune_problem p = problem_of(ATTUNE_F16, 128, 2048, 2048);
    attune_plan_choice c = {.struct_size = sizeof c};
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_str_eq(c.kernel, "vulkan_coopmat");
    cr_expect_eq(c.block_m, 128);
    cr_expect_eq(c.block_n, 32);
    cr_expect_eq(c.num_warps, 8);
    /* Narrow rows: two matrices of rows for each subgroup; few rows: as many tiles as keep the compute units busy. */
    p.head_dim = p.head_dim_v = 64;
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(c.block_m, 128);
    cr_expect_eq(c.num_warps, 4);
    p.head_dim = p.head_dim_v = 128, p.q_len = 512;
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(c.block_m, 64);
    cr_expect_eq(c.num_warps, 4);
    p.q_len = 2048;
    p.direction = ATTUNE_BACKWARD;
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_str_eq(c.kernel, "vulkan_coopmat");
    p.direction = ATTUNE_FORWARD;
    /* Problems without a kernel of their own, with the reason. */
    const struct {
        attune_dtype dtype;
        int64_t q_len;
        uint32_t fragment_layout;
        const char *why;
    } table[] = {{ATTUNE_BF16, 2048, 0, "then it multiplies f16 alone"},
                 {ATTUNE_BF16, 8, 1, "in decode it is not measured"},
                 {ATTUNE_F32, 2048, 1, "vulkan_coopmat: no f32 kernel"},
                 {ATTUNE_F16, 2048, 0, "not known, and then it is not faster"},
                 {ATTUNE_F16, 8, 1, "in decode it is not measured"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        p.dtype = table[i].dtype, p.q_len = table[i].q_len, limits.fragment_layout = table[i].fragment_layout;
        char text[8192];
        cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
        cr_expect_str_eq(c.kernel, "vulkan_subgroup");
        cr_assert_eq(attune_plan_choose_explain(&limits, &p, NULL, ATTUNE_TEXT, text, sizeof text, NULL), ATTUNE_OK);
        cr_expect(strstr(text, table[i].why), "%s\n%s", table[i].why, text);
    }
}

Test(choose, few_rows_where_a_gpu_checked_their_kernel)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 4, 4096);
    p.heads = 32;
    p.kv_heads = 8;
    for (int cache = 0; cache < 2; cache++) {
        p.q_len = 4;
        p.tokens = cache ? 4 : 0;
        cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_decode");
        cr_expect_str_eq(plan("rdna3", &p, NULL).kernel, "vulkan_subgroup");
        cr_expect_str_eq(plan("opencl-nvidia", &p, NULL).kernel, "opencl_decode");
        cr_expect_str_eq(plan("opencl-adreno-830", &p, NULL).kernel, cache ? "opencl_serving" : "opencl_portable");
        p.q_len = 5;
        p.tokens = cache ? 5 : 0;
        cr_expect_str_eq(plan("opencl-nvidia", &p, NULL).kernel, cache ? "opencl_serving" : "opencl_portable");
        cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_subgroup");
    }
    /* With wide rows as many as a lane has registers for. */
    p = problem_of(ATTUNE_F16, 256, 1, 4096);
    p.heads = 32;
    p.kv_heads = 8;
    cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_decode");
    p.kv_heads = 4;
    cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_decode");
    cr_expect_eq(plan("h200-vulkan", &p, NULL).block_m, 4);
    cr_expect_str_eq(plan("h200-vulkan", &p, "{\"BLOCK_M\": 8}").kernel, "vulkan_subgroup");
    p.dtype = ATTUNE_F32;
    cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_subgroup", "not timed");
    p.dtype = ATTUNE_F16;
    p.tokens = 1;
    cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_subgroup");
    p.tokens = 0;
    p.kv_heads = 32;
    p.head_dim = p.head_dim_v = 264;
    cr_expect_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_subgroup");
}

/* Over a cache: no tiles of more than four rows, and few keys. */
Test(choose, tiles_of_vulkan_decode)
{
    static const struct {
        int64_t heads;
        uint32_t head_dim, tokens, block_m, block_n;
    } table[] = {{8, 128, 1, 1, 32},  {16, 128, 1, 2, 64},  {32, 128, 1, 4, 32}, {64, 128, 1, 4, 32},
                 {64, 64, 1, 4, 64},  {128, 128, 1, 4, 32}, {8, 256, 1, 1, 16},  {16, 256, 1, 2, 32},
                 {32, 256, 1, 4, 64}, {32, 128, 0, 4, 128}, {64, 128, 0, 8, 64}, {64, 256, 0, 4, 64}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        attune_problem p = problem_of(ATTUNE_F16, table[i].head_dim, 1, 8192);
        p.heads = table[i].heads;
        p.kv_heads = 8;
        p.tokens = table[i].tokens;
        const attune_plan_choice c = plan("h200-vulkan", &p, NULL);
        cr_expect_str_eq(c.kernel, "vulkan_decode", "row %zu", i);
        cr_expect(c.block_m == table[i].block_m && c.block_n == table[i].block_n, "row %zu: %u x %u", i, c.block_m,
                  c.block_n);
    }
}

Test(choose, matrices_are_planned_where_the_device_has_them)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 1, 4096);
    cr_assert_str_eq(plan("h200-vulkan", &p, NULL).kernel, "vulkan_decode");
    cr_assert_str_eq(plan("rdna3", &p, "{\"KERNEL\": \"vulkan_coopmat\"}").kernel, "vulkan_coopmat");
    p.q_len = 4096;
    p.direction = ATTUNE_BACKWARD;
    cr_assert_str_eq(plan("h200-vulkan", &p, "{\"KERNEL\": \"vulkan_coopmat\"}").kernel, "vulkan_coopmat");
    EXPECT_ERROR("rdna3", &p, "{\"KERNEL\": \"vulkan_coopmat\"}", ATTUNE_UNSUPPORTED, "vulkan_coopmat",
                 "its backward pass needs to know");
}

/* A kernel that would not run anyway does not turn a forced option into an error. */
Test(choose, options_go_to_the_kernel_that_has_room)
{
    attune_limits limits = device("adreno-840");
    limits.matrix = ATTUNE_MATRIX_COOPMAT;
    limits.matrix_m = 64, limits.matrix_n = limits.matrix_k = 16;
    const attune_problem p = problem_of(ATTUNE_F16, 256, 4096, 4096);
    attune_plan_choice c = {.struct_size = sizeof c};
    attune_kernel_options o = options("{\"BLOCK_N\": 32}");
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_str_eq(c.kernel, "vulkan_subgroup");
    cr_assert_eq(attune_plan_choose(&limits, &p, &o, &c), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_str_eq(c.kernel, "vulkan_subgroup");
    cr_assert_eq(c.block_n, 32);
    o = options("{\"KERNEL\": \"vulkan_coopmat\"}");
    cr_assert_eq(attune_plan_choose(&limits, &p, &o, &c), ATTUNE_DOES_NOT_FIT);
    cr_assert(strstr(attune_last_error(), "KERNEL vulkan_coopmat does not fit") &&
                  strstr(attune_last_error(), "nearest that fits: KERNEL vulkan_subgroup"),
              "%s", attune_last_error());
}

Test(choose, a_profile_laid_over_a_device)
{
    attune_limits h200 = device("h200"), limits = h200;
    cr_assert_eq(attune__profile_apply("a6000", &limits), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(limits.shared_memory, 99 * 1024);
    cr_assert_eq(limits.compute_units, 84);
    cr_assert_eq(limits.architecture, 90, "its kernels must run on it");
    const attune_problem p = problem_of(ATTUNE_BF16, 256, 4096, 4096);
    attune_plan_choice c = {.struct_size = sizeof c}, small = plan("a6000", &p, NULL);
    cr_assert_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK);
    cr_assert_str_eq(c.kernel, "cuda_sm80");
    cr_assert(c.block_m == small.block_m && c.block_n == small.block_n && c.shared_memory == small.shared_memory);
    limits = device("a6000");
    cr_assert_eq(attune__profile_apply("h200", &limits), ATTUNE_INVALID_ARGUMENT);
    cr_assert(strstr(attune_last_error(), "shared_memory"), "%s", attune_last_error());
    cr_assert_eq(attune__profile_apply("rdna3", &limits), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune__profile_apply("none", &limits), ATTUNE_INVALID_ARGUMENT);
}

/* Every device has plans under each profile that it takes: a smaller one may lack what limits depend on, as
 * matrices. */
Test(choose, smaller_profiles_leave_plans)
{
    const attune_problem p = problem_of(ATTUNE_F16, 64, 100, 100);
    uint32_t applied = 0;
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (uint32_t j = 0; j < attune_profile_count(); j++) {
            attune_profile of_device = {.struct_size = sizeof of_device}, other = of_device;
            cr_assert_eq(attune_profile_get(i, &of_device), ATTUNE_OK);
            cr_assert_eq(attune_profile_get(j, &other), ATTUNE_OK);
            attune_plan_choice c = {.struct_size = sizeof c};
            if (attune__profile_apply(other.name, &of_device.limits) != ATTUNE_OK)
                continue;
            cr_expect_eq(attune_plan_choose(&of_device.limits, &p, NULL, &c), ATTUNE_OK, "%s@%s: %s", of_device.name,
                         other.name, attune_last_error());
            applied++;
        }
    cr_assert_gt(applied, 2 * attune_profile_count());
}

/* Mixed types of each device, and the reason where it has none. */
Test(choose, mixed_types)
{
    static const struct {
        const char *profile;
        attune_dtype q, kv, o;
        attune_direction direction;
        const char *options, *kernel; /* kernel NULL: none */
        const char *words;            /* of the explanation, or of the error */
    } table[] = {
        {"a6000", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "cuda_sm80", "q f32, k and v f16, o f32"},
        {"h200", ATTUNE_F32, ATTUNE_BF16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "cuda_sm80",
         "cuda_sm90a: it has one dtype for q, k, v and o: here q is f32, k and v are bf16, o is f32"},
        {"h200", ATTUNE_BF16, ATTUNE_F32, ATTUNE_F16, ATTUNE_FORWARD, "{}", "cuda_sm80", "o f16"},
        {"h200", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_FORWARD, "{\"KERNEL\": \"cuda_sm90a\"}", NULL,
         "KERNEL cuda_sm90a cannot run this forward problem: it has one dtype for q, k, v and o"},
        {"h200", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_BACKWARD, "{}", NULL,
         "cuda_sm80 cannot run this backward problem: it has one dtype for q, k, v and o"},
        {"h200-vulkan", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "vulkan_coopmat", "k and v f16"},
        {"h200-vulkan", ATTUNE_F32, ATTUNE_BF16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "vulkan_coopmat", "k and v bf16"},
        {"h200-vulkan", ATTUNE_F32, ATTUNE_BF16, ATTUNE_F32, ATTUNE_FORWARD, "{\"KERNEL\": \"vulkan_coopmat\"}",
         "vulkan_coopmat", "k and v bf16"},
        {"lavapipe", ATTUNE_F16, ATTUNE_F16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "vulkan_lanes", "o f32"},
        {"vulkan-minimum", ATTUNE_F32, ATTUNE_F16, ATTUNE_F16, ATTUNE_FORWARD, "{}", "vulkan_portable", "q f32"},
        {"lavapipe", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_BACKWARD, "{}", NULL, "it has one dtype"},
        {"opencl-minimum", ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, ATTUNE_FORWARD, "{}", "opencl_portable", "q f32"},
        {"cpu", ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_BACKWARD, "{}", "cpu", "o bf16"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const attune_limits limits = device(table[i].profile);
        const attune_kernel_options o = options(table[i].options);
        attune_problem p = problem_of(table[i].q, 64, 256, 256);
        p.kv_dtype = table[i].kv;
        p.o_dtype = table[i].o;
        p.direction = table[i].direction;
        attune_plan_choice c = {.struct_size = sizeof c}, plain = c;
        char text[8192] = "";
        const attune_status status = attune_plan_choose(&limits, &p, &o, &c);
        if (!table[i].kernel) {
            cr_expect_eq(status, ATTUNE_UNSUPPORTED, "%zu: status %d", i, (int)status);
            cr_expect(strstr(attune_last_error(), table[i].words), "%zu: %s", i, attune_last_error());
            continue;
        }
        cr_assert_eq(status, ATTUNE_OK, "%zu: %s", i, attune_last_error());
        cr_expect_str_eq(c.kernel, table[i].kernel, "%zu: %s", i, c.kernel);
        cr_assert_eq(attune_plan_choose_explain(&limits, &p, &o, ATTUNE_TEXT, text, sizeof text, NULL), ATTUNE_OK);
        cr_expect(strstr(text, table[i].words), "%zu: %s", i, text);
        /* Tiles and memory are those of the products. */
        p.dtype = p.kv_dtype;
        p.kv_dtype = p.o_dtype = (attune_dtype)0;
        cr_assert_eq(attune_plan_choose(&limits, &p, &o, &plain), ATTUNE_OK);
        if (!strcmp(plain.kernel, c.kernel))
            cr_expect(c.block_m == plain.block_m && c.block_n == plain.block_n && c.workspace == plain.workspace &&
                          c.shared_memory == plain.shared_memory && c.num_stages == plain.num_stages,
                      "%zu", i);
    }
}

/* A fixed order needs a buffer for dQ, which wide heads have in the place of Q and dO if V is as wide as K. */
Test(choose, fixed_order_of_wide_heads_on_hopper)
{
    static const struct {
        uint32_t head_dim, head_dim_v;
        const char *kernel;
    } heads[] = {{256, 256, "cuda_sm90a"}, {200, 256, "cuda_sm90a"}, {256, 192, "cuda_sm80"}, {192, 192, "cuda_sm90a"}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .direction = ATTUNE_BACKWARD,
                                        .dtype = ATTUNE_BF16,
                                        .head_dim = heads[i].head_dim,
                                        .head_dim_v = heads[i].head_dim_v,
                                        .heads = 8,
                                        .q_len = 4096};
        cr_expect_str_eq(plan("h200", &problem, "{\"DETERMINISTIC\": true}").kernel, heads[i].kernel, "%u, %u",
                         heads[i].head_dim, heads[i].head_dim_v);
    }
}

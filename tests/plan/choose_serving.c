/* SPDX-License-Identifier: MIT */
/* Plans of calls over a cache: tiles, shared memory, splits. */
#include "plan/plan_test.h"

#include "base/alloc.h"
#include "expr/expr.h"

/* Over a cache the kernel evaluates the mask: its blocks and its heads change no tile. */
Test(choose, a_mask_over_a_cache_leaves_the_tile_as_it_is)
{
    static const char *const devices[] = {"h200", "rdna3", "vulkan-minimum", "opencl-minimum", "pocl", "rusticl"};
    static const uint32_t blocks[] = {16, 48, 80, 128};
    attune_expr *mask = NULL;
    cr_assert_eq(attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_MASK, "q >= kv + h", NULL, 0, &mask),
                 ATTUNE_OK);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (int64_t q_len = 1; q_len <= 64; q_len *= 4) {
            attune_problem p = problem_of(ATTUNE_F32, 64, q_len, 500);
            p.tokens = p.batch = 40, p.page = 16;
            const attune_plan_choice plain = plan(devices[i], &p, NULL);
            p.mask = mask;
            for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
                p.mask_q_block = p.mask_kv_block = blocks[b];
                const attune_plan_choice masked = plan(devices[i], &p, NULL);
                cr_expect_str_eq(masked.kernel, plain.kernel);
                cr_expect(masked.block_m == plain.block_m && masked.block_n == plain.block_n,
                          "%s, %lld rows, blocks of %u: %u x %u, without a mask %u x %u", devices[i], (long long)q_len,
                          blocks[b], masked.block_m, masked.block_n, plain.block_m, plain.block_n);
            }
        }
    attune__expr_release(mask);
}

/* The loops of a workgroup are those of its tile: more rows of a lane, fewer keys. */
Test(choose, a_tile_over_a_cache_has_as_many_keys_as_its_loops)
{
    attune_problem p = problem_of(ATTUNE_F32, 64, 100, 640);
    p.tokens = 100, p.page = 16;
    cr_expect_str_eq(plan("rusticl", &p, NULL).kernel, "opencl_serving");
    EXPECT_ERROR("rusticl", &p, "{\"BLOCK_M\": 128}", ATTUNE_INVALID_ARGUMENT,
                 "there are more keys than the driver lets one workgroup read", "the nearest is");
    cr_expect_eq(plan("pocl", &p, "{\"BLOCK_M\": 32}").block_m, 32, "vectors are no lanes of llvmpipe");
    p.kv_len = 64;
    cr_expect_eq(plan("rusticl", &p, "{\"BLOCK_M\": 128}").block_m, 128);
    p.kv_len = 700;
    EXPECT_ERROR("rusticl", &p, "{}", ATTUNE_UNSUPPORTED,
                 "there are more keys than the driver lets one workgroup read");
}

/* The widest heads, on the least local memory that a device may have. */
Test(choose, caches_of_wide_heads_fit_the_smallest_local_memory)
{
    static const char *const devices[] = {"opencl-minimum", "pocl", "opencl-nvidia"};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        for (uint32_t d = 8; d <= 576; d += 8) {
            attune_problem p = problem_of(ATTUNE_BF16, d, 1, 4096);
            p.head_dim_v = d < 512 ? d : 512;
            p.tokens = 1, p.page = 16;
            attune_limits limits = device(devices[i]);
            limits.shared_memory = 16384;
            attune_plan_choice c = {.struct_size = sizeof c};
            cr_expect_eq(attune_plan_choose(&limits, &p, NULL, &c), ATTUNE_OK, "%s, %u: %s", devices[i], d,
                         attune_last_error());
            cr_expect_leq(c.shared_memory, 16384);
        }
}

/* The cure for an option that the kernel does not read is one for this problem. */
Test(choose, splits_over_a_cache)
{
    attune_problem p = problem_of(ATTUNE_F32, 64, 1, 500);
    p.tokens = 4, p.page = 16;
    attune_limits limits = device("pocl");
    attune_kernel_options o = options("{\"SPLIT_KV\": 2}");
    attune_plan_choice c = {.struct_size = sizeof c};
    cr_assert_eq(attune_plan_choose(&limits, &p, &o, &c), ATTUNE_INVALID_ARGUMENT);
    cr_expect_str_eq(attune_last_error(),
                     "SPLIT_KV is given, but kernel opencl_serving (forward) does not read it: leave it out");
}

/* A tile has room for the rows of as many sequences as share keys, and the workspace for what each has besides. */
Test(choose, shared_keys_over_a_cache)
{
    attune_problem p = problem_of(ATTUNE_F16, 128, 1, 8192);
    p.heads = 8, p.kv_heads = 2;
    p.tokens = p.batch = 32, p.page = 16;
    const attune_plan_choice alone = plan("opencl-nvidia", &p, NULL);
    p.shared_sequences = 4;
    const attune_plan_choice few = plan("opencl-nvidia", &p, NULL);
    p.shared_sequences = 32;
    const attune_plan_choice many = plan("opencl-nvidia", &p, NULL);
    cr_expect(alone.block_m == 4 && few.block_m == 16 && many.block_m == 32, "%u, %u and %u rows", alone.block_m,
              few.block_m, many.block_m);
    cr_expect_gt(many.workspace, alone.workspace);
    cr_expect_eq(plan("opencl-nvidia", &p, "{\"BLOCK_M\": 8}").block_m, 8);
    p.shared_sequences = 2;
    cr_expect_eq(plan("h200-vulkan", &p, NULL).block_m, 8);
    p.shared_sequences = 32;
    cr_expect_eq(plan("h200-vulkan", &p, NULL).block_m, 32);
    p.shared_sequences = 1;
    cr_expect_eq(plan("opencl-nvidia", &p, NULL).workspace, alone.workspace);
    const attune_plan_choice cuda_alone = plan("h200", &p, NULL);
    p.shared_sequences = 4;
    const attune_plan_choice cuda_few = plan("h200", &p, NULL);
    p.shared_sequences = 32;
    const attune_plan_choice cuda_many = plan("h200", &p, NULL);
    /* Of few sequences an H200 takes longer for it. */
    cr_expect(cuda_alone.shared_memory == cuda_few.shared_memory && cuda_alone.num_stages == cuda_few.num_stages);
    cr_expect(cuda_many.block_m == 16 && cuda_many.block_n == 64 && cuda_many.num_stages == 3, "%u x %u, %u stages",
              cuda_many.block_m, cuda_many.block_n, cuda_many.num_stages);
    /* With fixed parts the hint is taken always; of narrow heads never else. */
    p.split_keys = 1024, p.shared_sequences = 4;
    const attune_plan_choice cuda_fixed = plan("h200", &p, NULL);
    p.shared_sequences = 1;
    cr_expect_gt(cuda_fixed.workspace, plan("h200", &p, NULL).workspace);
    p.split_keys = 0, p.shared_sequences = 32, p.head_dim = p.head_dim_v = 64;
    const attune_plan_choice cuda_narrow = plan("h200", &p, NULL);
    p.shared_sequences = 1;
    cr_expect_eq(cuda_narrow.workspace, plan("h200", &p, NULL).workspace);
    p.head_dim = p.head_dim_v = 128, p.shared_sequences = 32;
    /* Nor of sequences that have more than half of such a tile; with fixed parts these have larger ones. */
    p.heads = 32;
    cr_expect_eq(plan("h200", &p, NULL).num_stages, cuda_alone.num_stages);
    p.split_keys = 1024;
    cr_expect_eq(plan("h200", &p, NULL).block_m, 64);
    p.split_keys = 0, p.heads = 8;
    /* Of keys that are not divided none are shared. */
    p.kv_len = 512;
    const attune_plan_choice cuda_short = plan("h200", &p, NULL);
    p.shared_sequences = 0;
    cr_expect_eq(plan("h200", &p, NULL).shared_memory, cuda_short.shared_memory);
    p.shared_sequences = 4;
    EXPECT_ERROR("h200-vulkan", &p, "{\"KERNEL\": \"vulkan_decode\"}", ATTUNE_UNSUPPORTED,
                 "its tiles have the rows of one sequence (problem.shared_sequences)");
}

/* Of any tile that is forced, a plan or a refusal comes: a kernel's tables divide by what follows from it. */
Test(choose, forced_tiles_over_a_cache_are_planned_or_refused)
{
    static const uint32_t sizes[] = {1, 3, 4, 8, 12, 16, 24, 32, 48, 64, 128}, warps[] = {0, 1, 3, 4, 8, 32};
    static const uint32_t dims[] = {8, 64, 256, 320, 576};
    for (uint32_t i = 0; i < attune_profile_count(); i++) {
        attune_profile profile = {.struct_size = sizeof profile};
        cr_assert_eq(attune_profile_get(i, &profile), ATTUNE_OK);
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
            for (size_t n = 0; n < sizeof sizes / sizeof sizes[0] * (sizeof warps / sizeof warps[0]); n++) {
                attune_problem p = problem_of(ATTUNE_F16, dims[d], 1 + (int64_t)n % 30, 4096);
                p.head_dim_v = dims[d] < 512 ? dims[d] : 512;
                p.tokens = p.batch = 40, p.page = 16;
                p.shared_sequences = n % 3 ? 0 : (uint32_t)n % 41;
                attune_kernel_options o = {.struct_size = sizeof o};
                o.any.block_n = sizes[n % (sizeof sizes / sizeof sizes[0])];
                o.any.num_warps = warps[n / (sizeof sizes / sizeof sizes[0])];
                o.any.block_m = n % 2 ? sizes[n * 7 % (sizeof sizes / sizeof sizes[0])] : 0;
                attune_plan_choice c = {.struct_size = sizeof c};
                const attune_status status = attune_plan_choose(&profile.limits, &p, &o, &c);
                cr_expect(status == ATTUNE_OK || ((status == ATTUNE_INVALID_ARGUMENT || status == ATTUNE_DOES_NOT_FIT ||
                                                   status == ATTUNE_UNSUPPORTED) &&
                                                  *attune_last_error()),
                          "%s, D %u, %u x %u, %u warps: %s", profile.name, dims[d], o.any.block_m, o.any.block_n,
                          o.any.num_warps, attune_status_string(status));
            }
    }
}

/* A consumer warp group computes P of one of two stages. */
Test(choose, stages_of_wide_values_over_a_cache)
{
    attune_problem p = problem_of(ATTUNE_BF16, 384, 64, 4096);
    p.tokens = 64, p.page = 16;
    cr_expect_eq(plan("h200", &p, "{\"KERNEL\": \"cuda_serving_sm90a\"}").num_stages, 2);
    EXPECT_ERROR("h200", &p, "{\"KERNEL\": \"cuda_serving_sm90a\", \"num_stages\": 3}", ATTUNE_INVALID_ARGUMENT,
                 "num_stages", "in 2 stages");
}

/* Two consumer warp groups share the registers of an SM with the producers. */
Test(choose, rows_of_two_warp_groups_over_a_cache)
{
    attune_problem p = problem_of(ATTUNE_BF16, 256, 1024, 8192);
    p.tokens = 1024, p.page = 16;
    cr_expect_eq(plan("h200", &p, NULL).block_m, 64);
    EXPECT_ERROR("h200", &p, "{\"KERNEL\": \"cuda_serving_sm90a\", \"BLOCK_M\": 128}", ATTUNE_INVALID_ARGUMENT,
                 "BLOCK_M is 128", "do not have the registers");
}

/* The kernel with TMA over a cache is chosen, and left, by USE_TMA. */
Test(choose, tma_over_a_cache)
{
    attune_problem p = problem_of(ATTUNE_BF16, 128, 1024, 8192);
    p.tokens = 1024, p.page = 16;
    cr_expect_str_eq(plan("h200", &p, NULL).kernel, "cuda_serving_sm90a");
    cr_expect_str_eq(plan("h200", &p, "{\"USE_TMA\": true}").kernel, "cuda_serving_sm90a");
    cr_expect_str_eq(plan("h200", &p, "{\"USE_TMA\": false}").kernel, "cuda_sm80");
}

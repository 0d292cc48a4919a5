/* SPDX-License-Identifier: MIT */
/*
 * The CUDA kernels under the model: rows of the case table, held against the oracle as on a device, under schedules
 * that the seed draws; and faults that are put into the kernels' sources, each of which the model or the oracle must
 * find. ATTUNE_MODEL_SEED gives other schedules.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "cases/suite.h"
#include "support/devices.h"

#define SM80    "{\"KERNEL\": \"cuda_sm80\"}"
#define SM80_16 "{\"KERNEL\": \"cuda_sm80\", \"BLOCK_M1\": 16, \"BLOCK_N1\": 16, \"BLOCK_M2\": 16, \"BLOCK_N2\": 16}"

/* The base's logarithm is small, and its exponent large. */
#define SLOW_DECAY "score + 20 * pow(0.9999847412109375, 1000.0 * kv)"

#define TWO_SPLITS "{\"SPLIT_KV\": 2}" /* which a cluster combines, if there are at most three */
#define ORDERED    "{\"DETERMINISTIC\": true}"

typedef struct model_case {
    const char *architecture; /* NULL: 80 */
    int row;
    attune_dtype dtype;
    bool gradients;
    const char *score; /* NULL: the row's */
    const char *options, *backward_options;
    const char *fault;  /* FILE|TEXT|REPLACEMENT (compiler.c) */
    const char *report; /* a part of what is said of it */
} model_case;

/* Opens the driver and the compiler under NVIDIA's sonames, before attune looks for them. */
static attune_device *open_model(attune_instance **instance)
{
    cr_assert_not_null(dlopen(getenv("ATTUNE_MODEL_CUDA"), RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    cr_assert_not_null(dlopen(getenv("ATTUNE_MODEL_NVRTC"), RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = ""};
    attune_device *device;
    cr_assert_eq(attune_instance_create(&desc, instance), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_device_open(*instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
    return device;
}

static bool run(const model_case *m, failure *why)
{
    attune_instance *instance;
    cr_assert_eq(setenv("ATTUNE_MODEL_ARCHITECTURE", m->architecture ? m->architecture : "80", 1), 0);
    attune_device *device = open_model(&instance);
    attention_case c = attention_cases[m->row];
    c.backward_options = m->backward_options;
    c.options = m->options ? m->options : c.options;
    c.score = m->score ? m->score : c.score;
    const uint64_t seed = test_seed() + (uint64_t)m->row;
    const bool passed = m->gradients ? case_run_gradients(instance, device, &c, m->dtype, seed, why)
                                     : case_run(instance, device, &c, m->dtype, seed, why);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    return passed;
}

static const model_case cases[] = {
    {.row = CASE_causal_few_keys, .dtype = ATTUNE_F16},
    {.row = CASE_head_24, .dtype = ATTUNE_F32},
    {.row = CASE_relative_bias, .dtype = ATTUNE_BF16},
    {.row = CASE_nan_hidden_partial, .dtype = ATTUNE_F16},
    {.row = CASE_lists_of_heads, .dtype = ATTUNE_BF16},
    {.row = CASE_lists_of_heads_full, .dtype = ATTUNE_F16},
    {.row = CASE_infinite_part, .dtype = ATTUNE_F16},
    {.row = CASE_head_8, .dtype = ATTUNE_BF16, .gradients = true},
    {.row = CASE_half_bias, .dtype = ATTUNE_F16, .gradients = true, .backward_options = SM80},
    {.row = CASE_head_8, .dtype = ATTUNE_F32, .gradients = true, .backward_options = SM80_16},
};

static const model_case faults[] = {
    /* K is read before its copy is complete. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm80.cu|copy_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();|",
     .report = "cp.async writes that its thread has not waited for"},
    /* Each thread waits for its own copies, and reads those of others. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm80.cu|(AHEAD - 1)>();\n        __syncthreads();|(AHEAD - 1)>();",
     .report = "of shared memory, which"},
    /* Q K^T and the copies do not agree on the swizzle. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_F16,
     .fault = "mma.cuh|return (start ^ (u32)(chunk % GROUP * 16))|return (start ^ (u32)((chunk % GROUP ^ 1) * 16))",
     .report = "max error"},
    /* A copy past the end of shared memory. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_F16,
     .fault = "mma.cuh|copy_async(to + chunk_offset|copy_async(0x40000 + to + chunk_offset",
     .report = "of which the launch has"},
    /* A shuffle in which half of the lanes take no part. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm80.cu|    float factor = uniform(|    float factor = threadIdx.x & 1 ? 1.0f : uniform(",
     .report = "wait for others that never come"},
    /* Every head has the lists of the first one. */
    {.row = CASE_lists_of_heads_full,
     .dtype = ATTUNE_F16,
     .fault = "decode_sm80.cu|p.h * a.mask_head_rows|0 * a.mask_head_rows",
     .report = "max error"},
    /* P is overwritten while others read it. */
    {.row = CASE_head_8,
     .dtype = ATTUNE_BF16,
     .gradients = true,
     .fault = "backward_atomic_sm80.cu|        __syncthreads();|",
     .report = "of shared memory, which"},
};

static const model_case hopper[] = {
    {.architecture = "90", .row = CASE_gqa_3, .dtype = ATTUNE_BF16},
    {.architecture = "90", .row = CASE_causal_few_keys, .dtype = ATTUNE_F16, .score = SLOW_DECAY},
    {.architecture = "90", .row = CASE_causal_long_keys, .dtype = ATTUNE_F16},
    {.architecture = "90", .row = CASE_nan_hidden_partial, .dtype = ATTUNE_F16},
    {.architecture = "90", .row = CASE_window, .dtype = ATTUNE_F16, .gradients = true},
    {.architecture = "90", .row = CASE_head_8, .dtype = ATTUNE_BF16, .gradients = true, .backward_options = ORDERED},
    {.architecture = "90", .row = CASE_head_192_128, .dtype = ATTUNE_BF16, .gradients = true},
    {.architecture = "90", .row = CASE_head_256, .dtype = ATTUNE_F16, .gradients = true},
    {.architecture = "90", .row = CASE_decode_few, .dtype = ATTUNE_BF16},
    {.architecture = "90",
     .row = CASE_sinks_decode,
     .dtype = ATTUNE_BF16,
     .options = TWO_SPLITS}, /* too many clusters */
    {.architecture = "90", .row = CASE_infinite_split_masked, .dtype = ATTUNE_F16, .options = TWO_SPLITS},
    {.architecture = "90", .row = CASE_half_bias, .dtype = ATTUNE_F16, .gradients = true},
};

static const model_case hopper_faults[] = {
    /* A cluster reads the partial results of splits before they are there, and of a CTA that has ended. */
    {.architecture = "90",
     .row = CASE_decode_few,
     .dtype = ATTUNE_BF16,
     .options = TWO_SPLITS,
     .fault = "decode_sm80.cu|    cluster_sync();\n#pragma|#pragma",
     .report = "of shared memory, which"},
    {.architecture = "90",
     .row = CASE_decode_few,
     .dtype = ATTUNE_BF16,
     .options = TWO_SPLITS,
     .fault = "decode_sm80.cu|has read its split. */\n    cluster_sync();|has read its split. */",
     .report = "which has ended"},
    /* m and l of a split replace those of its first warps while others read these. */
    {.architecture = "90",
     .row = CASE_decode_few,
     .dtype = ATTUNE_BF16,
     .options = TWO_SPLITS,
     .fault = "decode_sm80.cu|, all);\n    __syncthreads();|, all);",
     .report = "of shared memory, which"},
    /* Launches that may begin early do not wait. */
    {.architecture = "90",
     .row = CASE_decode_few,
     .dtype = ATTUNE_BF16,
     .fault = "decode_sm80.cu|    wait_for_launches();\n    part p|    part p",
     .report = "has not waited for the launches before"},
    {.architecture = "90",
     .row = CASE_sinks_decode,
     .dtype = ATTUNE_BF16,
     .options = TWO_SPLITS,
     .fault = "decode_sm80.cu|    wait_for_launches();\n    float factor|    float factor",
     .report = "has not waited for the launches before"},
    /* V is multiplied before TMA has loaded it. */
    {.architecture = "90",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm90.cu|            consumer_wait<&control::v>(c, v);|",
     .report = "of shared memory, which"},
    /* Consumers wait for the phase of K before the first. */
    {.architecture = "90",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm90.cu|k = {0, 0}, v = {0, 0}; /* of Q|k = {0, 1}, v = {0, 0}; /* of Q",
     .report = "phase of an mbarrier"},
    /* V is released to the producer while products read it. */
    {.architecture = "90",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm90.cu|            wgmma_wait<0>();\n            accumulators_done(o);\n"
              "            consumer_release<&control::v>(c, v);|            consumer_release<&control::v>(c, v);\n"
              "            wgmma_wait<0>();",
     .report = "of shared memory, which"},
    /* O is stored before its products are complete. */
    {.architecture = "90",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .fault = "forward_sm90.cu|wgmma_wait<sm90::Q_BUFFERS == 1 ? 0 : 1>();|",
     .report = "accumulators of a wgmma that its thread has not waited for"},
    /* The scan warps' zeros are not ordered before the products that read them. */
    {.architecture = "90",
     .row = CASE_nan_hidden_partial,
     .dtype = ATTUNE_F16,
     .fault = "producer_sm90.cuh|    fence_async();|",
     .report = "without a fence of the asynchronous proxy"},
    /* The descriptors of Q and K leave out every second group of rows. */
    {.architecture = "90",
     .row = CASE_gqa_3,
     .dtype = ATTUNE_BF16,
     .fault = "hopper.cuh|(u64)(rows >> 4) << 32|(u64)(2 * rows >> 4) << 32",
     .report = "of shared memory, which nobody has written"},
    /* TMA writes more bytes than the barrier was told. */
    {.architecture = "90",
     .row = CASE_gqa_3,
     .dtype = ATTUNE_BF16,
     .fault = "producer_sm90.cuh|(c, k, forward::K_BYTES)|(c, k, forward::K_BYTES / 2)",
     .report = "phase of an mbarrier"},
    /* TMA signals a barrier that it may not see. */
    {.architecture = "90",
     .row = CASE_gqa_3,
     .dtype = ATTUNE_BF16,
     .fault = "forward_sm90.cu|        fence_barrier_init();|",
     .report = "without a fence.mbarrier_init"},
    /* dS is stored, and read by wgmma, without a fence. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "narrow_backward_sm90.cuh|            fence_async();|",
     .report = "without a fence of the asynchronous proxy"},
    /* A warp group reads the other one's dS before it is stored. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "narrow_backward_sm90.cuh|            consumers_sync();|",
     .report = "of shared memory, which"},
    /* dS is stored without the swizzle that its descriptor has. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "stages_backward_sm90.cuh|((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16|(warp * 2 + lane / 8 % 2) * 16",
     .report = "max error"},
    /* dQ is overwritten while its bulk addition reads it. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "add_dq_backward_sm90.cuh|            bulk_wait_read();|",
     .report = "which a bulk addition or store read"},
    /* A consumer waits for the wrong phase of dQ's buffer. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "narrow_backward_sm90.cuh|ds_stage = 0, dq_phase = 1;|ds_stage = 0, dq_phase = 0;",
     .report = "phase of an mbarrier"},
    /* dQ is rounded before all tiles of keys have been added. */
    {.architecture = "90",
     .row = CASE_window,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "dq_backward_sm90.cuh|while (load_relaxed(count) != complete)|while (false)",
     .report = "max error"},
    /* dS is overwritten while it is copied to the cluster's other CTA. */
    {.architecture = "90",
     .row = CASE_head_256,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "pair_backward_sm90.cuh|            barrier_wait_peer(&c.ds_empty, phase ^ 1);|",
     .report = "of shared memory, which"},
    /* dS is copied over the other CTA's P while that is read. */
    {.architecture = "90",
     .row = CASE_head_256,
     .dtype = ATTUNE_F16,
     .gradients = true,
     .fault = "pair_backward_sm90.cuh|        barrier_wait_peer(&c.peer_p_empty, phase);|",
     .report = "of shared memory, which"},
};

#define SM100           "{\"KERNEL\": \"cuda_sm100a\"}"
#define SM100_ONE_STAGE "{\"KERNEL\": \"cuda_sm100a\", \"num_stages\": 1}"

static const model_case blackwell[] = {
    {.architecture = "100", .row = CASE_gqa_3, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_causal_long_keys, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_nan_hidden_partial, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_alibi, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_softcap, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_relative_bias, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_document_scattered, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_many_key_terms, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_head_96, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_masked_rows, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_head_192_128, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_score_drops_rows, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_slope_falls, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_dense_128, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_key_documents, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_head_256, .dtype = ATTUNE_BF16, .options = SM100},
    {.architecture = "100", .row = CASE_infinite_part, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_infinite_v_weightless, .dtype = ATTUNE_F16, .options = SM100},
    {.architecture = "100", .row = CASE_nan_hidden_partial, .dtype = ATTUNE_BF16, .options = SM100_ONE_STAGE},
};

#define SM100_ORDERED "{\"KERNEL\": \"cuda_sm100a\", \"DETERMINISTIC\": true}"
#define BACKWARD(row_, dtype_, options_)                                                                               \
    {                                                                                                                  \
        .architecture = "100", .row = CASE_##row_, .dtype = ATTUNE_##dtype_, .gradients = true,                        \
        .backward_options = options_                                                                                   \
    }

static const model_case blackwell_backward[] = {
    BACKWARD(gqa_3, BF16, SM100),
    BACKWARD(window, F16, SM100),
    BACKWARD(softcap, F16, SM100),
    BACKWARD(document_scattered, BF16, SM100),
    BACKWARD(head_8, BF16, SM100_ORDERED),
    BACKWARD(masked_rows, BF16, SM100),
    BACKWARD(dense_128, F16, SM100),
    BACKWARD(head_96, F16, SM100),
    BACKWARD(causal_long_keys, F16, SM100_ORDERED),
    BACKWARD(many_key_terms, F16, SM100),
    BACKWARD(nan_hidden_partial, F16, SM100),
    BACKWARD(kv_broadcast, BF16, SM100),
    BACKWARD(head_mask, F16, SM100),
    BACKWARD(alibi, BF16, SM100),
    BACKWARD(relative_bias, BF16, SM100),
    BACKWARD(half_bias, F16, SM100),
    BACKWARD(alibi, F16, SM100_ORDERED),
    BACKWARD(score_drops_rows, F16, SM100),
    BACKWARD(relative_bias, F16, SM100_ORDERED),
};

/* Head dimensions past 128: dK and dV in one item and in two, with two stages and one. */
static const model_case blackwell_wide[] = {
    BACKWARD(head_192_128, F16, SM100),
    BACKWARD(head_256, BF16, SM100_ORDERED),
    BACKWARD(head_64_256, F16, SM100),
    BACKWARD(bias_of_pairs_wide, BF16, SM100),
    BACKWARD(key_softcap_wide, F16, SM100),
    BACKWARD(head_256_nan_hidden, BF16, SM100),
    BACKWARD(functions_wide, F16, SM100_ORDERED),
    BACKWARD(mqa, BF16, SM100),
};

static const model_case blackwell_faults[] = {
    /* The weight of an infinity of V is not regarded. */
    {.architecture = "100",
     .row = CASE_infinite_v_weightless,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|weightless >> (key - kv) & 1 ? 0.0f : 1.0f|1.0f",
     .report = "infinite_v_weightless"},
    /* The weight of a forbidden pair is not 0 where it is a polynomial. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "exponentials.cuh|    x = maximum_or_nan(x, -127.0f);|",
     .report = "causal_long_keys"},
    /* The exponent is that of 2^(n + 1). */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "exponentials.cuh|<< 23) + 0x3f800000u|<< 23) + 0x40000000u",
     .report = "max error"},
    /* The CTA ends before the commits that release stages have arrived. That is not in every schedule: seven launches.
     */
    {.architecture = "100",
     .row = CASE_infinite_part,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "config_forward_sm100.cuh|DRAINS = true|DRAINS = false",
     .report = "are in flight when the CTA ends"},
    /* S is loaded before the products' commit has arrived. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            barrier_wait(&own.s_full[t.stage], t.phase);|",
     .report = "of tensor memory, which"},
    /* The loads of S are not ordered after the products. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            barrier_wait(&own.s_full[t.stage], t.phase);\n            "
              "tmem_fence_after();|        "
              "    barrier_wait(&own.s_full[t.stage], t.phase);",
     .report = "without tcgen05.fence between"},
    /* P is not ordered before the products. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            tmem_fence_before();\n            warp_arrive(|            warp_arrive(",
     .report = "without tcgen05.fence between"},
    /* P is multiplied before it is stored. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            tmem_wait_store();\n            tmem_fence_before();|            "
              "tmem_fence_before();",
     .report = "which a tcgen05.st writes that its thread has not waited for"},
    /* S is used before it is loaded. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|    tmem_load(w, from);\n    tmem_wait_load(w);|    tmem_load(w, from);",
     .report = "uses registers of a tcgen05.ld that its thread has not waited for"},
    /* O is stored before its last products are complete. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            barrier_wait(&own.o_full, o_phase);\n            tmem_fence_after();\n     "
              "       /* 7|"
              "            /* 7",
     .report = "of tensor memory, which"},
    /* The next S overwrites P before it has been multiplied. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault =
         "forward_sm100.cu|            barrier_wait(&c.groups[g].o_full, o_phase);\n            tmem_fence_after();\n|",
     .report = "of tensor memory, which was read without"},
    /* P, which has columns of its own, is overwritten before it has been multiplied. */
    {.architecture = "100",
     .row = CASE_two_block_rows,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault =
         "forward_sm100.cu|                barrier_wait(&own.o_full, o_phase);\n                tmem_fence_after();|",
     .report = "of tensor memory, which was read without"},
    /* O is added to what nobody has written. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|            zero_o(o);|            ;",
     .report = "of tensor memory, which nobody has written"},
    /* The correction stores O before its last products are complete. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|        barrier_wait(&own.o_full, o_phase);\n        tmem_fence_after();\n        "
              "if|        if",
     .report = "of tensor memory, which"},
    /* O is rescaled while P V of the key tile before adds to it. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|    barrier_wait(&g.o_full, o_phase);\n    tmem_fence_after();|",
     .report = "of tensor memory, which was written without"},
    /* The rescaled O is not ordered before P V. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|        tmem_fence_before();\n        consumer_release<|        consumer_release<",
     .report = "without tcgen05.fence between"},
    /* The factor of O is overwritten before the correction has read it. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault =
         "correction_sm100.cuh|    producer_acquire<&group_control::rows>(g, r);\n    w.factor_or_sum[threadIdx.x % "
         "128] = (|    w.factor_or_sum[threadIdx.x % 128] = (",
     .report = "of shared memory, which"},
    /* O is staged, and read by TMA, without a fence. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|        fence_async();|",
     .report = "without a fence of the asynchronous proxy"},
    /* A tile of O is overwritten while TMA reads it. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|                bulk_wait_read();|",
     .report = "which a bulk addition or store read"},
    /* O is staged without the swizzle that its map has. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|to + (chunk ^ row % 8) * 16|to + chunk * 16",
     .report = "of shared memory, which nobody has written"},
    /* The first product is added to what nobody has written. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|int add = sm100::SCANS_V|int add = 1 + sm100::SCANS_V",
     .report = "of tensor memory, which nobody has written"},
    /* A later product takes O's place. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|tiles; first = false)|tiles;)",
     .report = "max error"},
    /* S has half of its columns. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|tcgen05_instruction(BLOCK_N, false)|tcgen05_instruction(BLOCK_N / 2, false)",
     .report = "of tensor memory, which nobody has written"},
    /* O is past the columns that are allocated. */
    {.architecture = "100",
     .row = CASE_dense_128,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|sm100::O_COLUMN);\n        int first|sm100::O_COLUMN + 512);\n        int first",
     .report = "of tensor memory, which is not allocated"},
    /* Every warp takes the lanes of the first. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "correction_sm100.cuh|return columns + (threadIdx.x % 128 / 32 * 32 << 16);|return columns;",
     .report = "those of this warp begin at"},
    /* P V leaves out every second step of P. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|p + step * 8|p + step % (sm100::STEPS_N / 2) * 16",
     .report = "max error"},
    /* Tensor memory is freed while the softmax warps use it. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|        named_sync<sm100::TMEM_THREADS>(BARRIER_TMEM);|",
     .report = "of tensor memory, which"},
    /* Tensor memory is not freed. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|        tmem_free<sm100::TMEM_COLUMNS>(c.tmem);|",
     .report = "is allocated when the CTA ends"},
    /* K is released to the producer while products read it. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|        tcgen05_commit(&c.tiles.k.empty[k.stage]);|        "
              "consumer_release_thread<&control::k>(c.tiles, k);",
     .report = "of shared memory, which"},
    /* A thread waits for the phase of O before the first. */
    {.architecture = "100",
     .row = CASE_causal_long_keys,
     .dtype = ATTUNE_F16,
     .options = SM100,
     .fault = "forward_sm100.cu|    u32 o_phase = 0;|    u32 o_phase = 1;",
     .report = "tensor memory, which"},
};

#define BACKWARD_FAULT(row_, fault_, report_)                                                                          \
    {                                                                                                                  \
        .architecture = "100", .row = CASE_##row_, .dtype = ATTUNE_F16, .gradients = true, .backward_options = SM100,  \
        .fault = "backward_sm100.cu|" fault_, .report = report_                                                        \
    }

static const model_case blackwell_backward_faults[] = {
    /* P is multiplied before it is stored. */
    BACKWARD_FAULT(window, "        wait_tensor(&c.p_full, m.phase);|", "of tensor memory, which"),
    /* S is loaded before its products are complete. */
    BACKWARD_FAULT(window, "* ATTUNE_LOG2E;\n    wait_tensor(&c.s_full, phase);|* ATTUNE_LOG2E;",
                   "of tensor memory, which"),
    /* dS is multiplied before it is stored. */
    BACKWARD_FAULT(window, "    wait_tensor(&c.ds_full, ds_phase(m));|", "which"),
    /* The next S overwrites P before it has been multiplied. */
    BACKWARD_FAULT(window, "    if (DV)\n        wait_tensor(&m.c.p_read, dv_phase(m));|",
                   "of tensor memory, which was read without"),
    /* The next dP overwrites dS before it has been multiplied. */
    BACKWARD_FAULT(window, "    if (!sm100::DQ_OVER_DP)\n        wait_tensor(&c.ds_read, ds_phase(m));|",
                   "of tensor memory, which was read without"),
    /* dQ overwrites dS, whose place it takes, before that has been multiplied. */
    BACKWARD_FAULT(dense_128,
                   "    if (sm100::DQ_OVER_DP)\n        wait_tensor(&c.ds_read, ds_phase(m));|    if "
                   "(sm100::DQ_OVER_DP)\n        ;",
                   "of tensor memory, which was read without"),
    /* The next dQ overwrites one that has not been read. */
    BACKWARD_FAULT(window,
                   "    else /* dQ of the tile before has been read */\n        wait_tensor(&c.tiles.dq.empty[0], "
                   "ds_phase(m) ^ 1);\n|",
                   "of tensor memory, which"),
    /* dQ is loaded before its products are complete. */
    BACKWARD_FAULT(window, "        wait_tensor(&c.tiles.dq.full[0], phase);|", "of tensor memory, which"),
    /* dQ is overwritten in shared memory while its bulk addition reads it. */
    BACKWARD_FAULT(window, "            if (row == 0)\n                bulk_wait_read();|",
                   "which a bulk addition or store read"),
    /* dK and dV are stored before their products are complete. */
    BACKWARD_FAULT(window, "            wait_tensor(&c.sums_full, sums_phase);|            ;",
                   "of tensor memory, which"),
    /* dS is stored, and read by products, without a fence. */
    BACKWARD_FAULT(
        window,
        "        store_ds(at, memory, chunk, d_s);\n        add_capture_gradients(sums, t, memory);\n        "
        "rotate(s);\n    }\n    fence_stores();|        "
        "store_ds(at, memory, chunk, d_s);\n        add_capture_gradients(sums, t, memory);\n        rotate(s);\n    }",
        "without a fence of the asynchronous proxy"),
    /* dS is stored without the swizzle that its descriptor has. */
    BACKWARD_FAULT(window, "((first + i) ^ key % 8)|(first + i)", "max error"),
    /* dQ takes the keys of dS for its rows. */
    BACKWARD_FAULT(window, "(sm100::WIDTH_D, true, true, BLOCK_M)|(sm100::WIDTH_D, true, false, BLOCK_M)", "max error"),
    /* dO is released to the producer while products read it. */
    BACKWARD_FAULT(dense_128,
                   "        commit_all(&c.tiles.outputs.empty[m.outputs.stage]);|        "
                   "consumer_release_thread<&control::outputs>(c.tiles, m.outputs);",
                   "of shared memory, which"),
    /* Q is released to the producer while products read it. */
    BACKWARD_FAULT(dense_128,
                   "    tcgen05_commit(&m.c.tiles.queries.empty[stage]);|    "
                   "consumer_release_thread<&control::queries>(m.c.tiles, {stage, 0});",
                   "of shared memory, which"),
    /* The lanes of dQ past the first 128 are those of its first columns. */
    BACKWARD_FAULT(head_192_128, "chunk++, k += 2 * sm100::KEY_SLAB / 16)|chunk++)", "max error"),
    /* The item of dV has the phases of the other one. */
    BACKWARD_FAULT(functions_wide, "dp_phase ^= !values;|dp_phase ^= 1;", "never come"),
};

#define SM100_PAIRS         "{\"KERNEL\": \"cuda_sm100a\", \"BLOCK_N1\": 256}"
#define SM100_PAIRS_ORDERED "{\"KERNEL\": \"cuda_sm100a\", \"BLOCK_N1\": 256, \"DETERMINISTIC\": true}"

/* By pairs of CTAs: of 256 keys one block or two, blocks that one CTA of the pair has alone, and keys of one alone. */
static const model_case blackwell_pairs[] = {
    BACKWARD(dense_128, BF16, SM100_PAIRS),
    BACKWARD(window, F16, SM100_PAIRS),
    BACKWARD(head_96, F16, SM100_PAIRS),
    BACKWARD(document_scattered, BF16, SM100_PAIRS_ORDERED),
    BACKWARD(gqa_3, BF16, SM100_PAIRS),
    BACKWARD(softcap, F16, SM100_PAIRS),
    BACKWARD(alibi, BF16, SM100_PAIRS),
    BACKWARD(relative_bias, F16, SM100_PAIRS_ORDERED),
    BACKWARD(half_bias, F16, SM100_PAIRS),
    BACKWARD(lists_of_heads_forward, F16, SM100_PAIRS),
    BACKWARD(causal_long_keys, F16, SM100_PAIRS_ORDERED),
    BACKWARD(nan_hidden_partial, F16, SM100_PAIRS),
    BACKWARD(kv_broadcast, BF16, SM100_PAIRS),
};

#define PAIR_FAULT(row_, options_, fault_, report_)                                                                    \
    {                                                                                                                  \
        .architecture = "100", .row = CASE_##row_, .dtype = ATTUNE_F16, .gradients = true,                             \
        .backward_options = options_, .fault = fault_, .report = report_                                               \
    }

static const model_case blackwell_pair_faults[] = {
    /* dS is multiplied before the other CTA has stored it. */
    PAIR_FAULT(window, SM100_PAIRS,
               "backward_sm100.cu|barrier_init(&c.ds_full, COMPUTE * CTAS);|barrier_init(&c.ds_full, COMPUTE);",
               "which"),
    /* The other CTA's dS is stored, and read by products, without a fence. */
    PAIR_FAULT(window, SM100_PAIRS, "pair_backward_sm100.cuh|        fence_async_all();|        ;",
               "without a fence of the asynchronous proxy"),
    /* Each CTA keeps the rows of dS that the other one multiplies. */
    PAIR_FAULT(window, SM100_PAIRS,
               "backward_sm100.cu|                 at.group != rank);|                 at.group == rank);",
               "max error"),
    /* dQ's right operand has the keys of the CTAs in the wrong order. */
    PAIR_FAULT(dense_128, SM100_PAIRS,
               "pair_backward_sm100.cuh|kv + half * backward::CTA_N|kv + (half ^ 1) * backward::CTA_N", "max error"),
    /* Both CTAs load the same columns of dO. */
    PAIR_FAULT(dense_128, SM100_PAIRS,
               "pair_backward_sm100.cuh|rank * (backward::WIDTH_DV / 2)|0 * (backward::WIDTH_DV / 2)", "max error"),
    /* The commits arrive in the CTA that issued the products alone. */
    PAIR_FAULT(window, SM100_PAIRS,
               "pair_backward_sm100.cuh|        tcgen05_commit_pair(barrier);|        tcgen05_commit(barrier);",
               "phase of an mbarrier"),
    /* The other CTA's operands are not waited for. */
    PAIR_FAULT(
        window, SM100_PAIRS,
        "pair_backward_sm100.cuh|producer_expect<PIPELINE>(c, r, 2 * bytes);|producer_expect<PIPELINE>(c, r, bytes);",
        "which"),
    /* The thread that issues is of the CTA of rank 1, where no operand is waited for. */
    PAIR_FAULT(window, SM100_PAIRS, "backward_sm100.cu|&& rank_in_pair() == 0)|&& rank_in_pair() == 1)", "never come"),
    /* Tensor memory is freed while the other CTA reads it. */
    PAIR_FAULT(window, SM100_PAIRS, "backward_sm100.cu|                barrier_wait_peer(&c.pair.freed, 0);|",
               "frees lane"),
    /* Rows of dQ are rounded with the first half of their columns twice. */
    PAIR_FAULT(window, SM100_PAIRS, "dq_backward_sm90.cuh|from += 64 - STEPS * 256;|from += 0 - STEPS * 256;",
               "max error"),
    /* Keys to which no row attends are computed without the mask, in the CTA whose block the lists have not. */
    PAIR_FAULT(window, SM100_PAIRS, "pair_backward_sm100.cuh|    return TILE_ABSENT;|    return 0;", "max error"),
    /* A tile of rows of a pair waits for the block after its first CTA's. */
    PAIR_FAULT(document_scattered, SM100_PAIRS_ORDERED,
               "ordered_sums.cuh|q / a.q_block, tile * 2 + 1);|q / a.q_block, tile * 2);", "never come"),
};

static void check_cases(const model_case *some, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        failure why;
        cr_expect(run(&some[i], &why), "%s: %s", attention_cases[some[i].row].name, why.message);
    }
}

/* The part of several; a single one is a sample. */
static void check_faults(const model_case *some, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        failure why;
        if (count > 1 && !test_part(i))
            continue;
        cr_assert_eq(setenv("ATTUNE_MODEL_FAULT", some[i].fault, 1), 0);
        cr_assert(!run(&some[i], &why), "not found: %s", some[i].fault);
        cr_expect(strstr(why.message, some[i].report), "%s\n  is said to be: %s", some[i].fault, why.message);
    }
}

/* The whole suite has time for these. */
Test(model, sample)
{
    check_cases(cases, 0, 1);
    check_cases(hopper, 0, 2);
    check_cases(blackwell, 0, 1);
    check_faults(hopper_faults, 1);
}

Test(model, forward)
{
    check_cases(cases, 0, 4);
}

Test(model, decode_and_merge)
{
    check_cases(cases, 4, 7);
}

Test(model, backward)
{
    check_cases(cases, 7, sizeof cases / sizeof cases[0]);
}

Test(model, faults)
{
    check_faults(faults, sizeof faults / sizeof faults[0]);
}

Test(model, hopper)
{
    check_cases(hopper, 0, sizeof hopper / sizeof hopper[0]);
}

Test(model, blackwell)
{
    check_cases(blackwell, 0, 6);
}

Test(model, blackwell_heads_and_terms)
{
    check_cases(blackwell, 6, 16);
}

Test(model, blackwell_non_finite)
{
    check_cases(blackwell, 16, sizeof blackwell / sizeof blackwell[0]);
}

Test(model, blackwell_backward)
{
    check_cases(blackwell_backward, 0, 6);
}

Test(model, blackwell_backward_heads_and_lists)
{
    check_cases(blackwell_backward, 6, 13);
}

Test(model, blackwell_backward_captures)
{
    check_cases(blackwell_backward, 13, sizeof blackwell_backward / sizeof blackwell_backward[0]);
}

Test(model, blackwell_wide)
{
    check_cases(blackwell_wide, 0, 4);
}

Test(model, blackwell_wide_scores)
{
    check_cases(blackwell_wide, 4, sizeof blackwell_wide / sizeof blackwell_wide[0]);
}

Test(model, blackwell_pairs)
{
    check_cases(blackwell_pairs, 0, 5);
}

Test(model, blackwell_pairs_captures)
{
    check_cases(blackwell_pairs, 5, 10);
}

Test(model, blackwell_pairs_lists)
{
    check_cases(blackwell_pairs, 10, sizeof blackwell_pairs / sizeof blackwell_pairs[0]);
}

Test(model, blackwell_pair_faults)
{
    check_faults(blackwell_pair_faults, sizeof blackwell_pair_faults / sizeof blackwell_pair_faults[0]);
}

Test(model, blackwell_faults)
{
    check_faults(blackwell_faults, sizeof blackwell_faults / sizeof blackwell_faults[0]);
}

Test(model, blackwell_backward_faults)
{
    check_faults(blackwell_backward_faults, sizeof blackwell_backward_faults / sizeof blackwell_backward_faults[0]);
}

Test(model, hopper_faults)
{
    check_faults(hopper_faults, sizeof hopper_faults / sizeof hopper_faults[0]);
}

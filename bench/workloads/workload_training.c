/* SPDX-License-Identifier: MIT */
/*
 * Training workloads, whose masks are built in each step: drafts for speculative decoding, and learned captures. The
 * rules of the drafts are from their papers and from SpecForge, which trains them (sgl-project/SpecForge,
 * specforge/core/dflash.py and specforge/modeling/draft/flex_attention.py). Also trained: document_packing,
 * shared_prefix and multi_image of workload.c.
 */
#include "bench/workloads/workload.h"

const workload workload_training[] = {
    {.name = "dflash",
     .description =
         "training of block-parallel drafts: 512 blocks of 16 queries at random anchors, each sees the context "
         "before its anchor and itself; Qwen3 8B, 32 query and 8 kv heads of 128 (Qwen/Qwen3-8B, config.json)",
     .mask =
         "kept[b, q / 16] && (kv < kv_len - q_len ? kv < anchors[b, q / 16] : (kv - (kv_len - q_len)) / 16 == q / 16)",
     .batch = 1,
     .heads = 32,
     .kv_heads = 8,
     .q_len = 8192,
     .kv_len = 16384,
     .segments = 2,
     .head_dim = 128,
     .density = 0.23,
     .capture_count = 2,
     .captures = {{.name = "anchors", .generator = "anchor", .count = 16},
                  {.name = "kept", .generator = "keep", .spread = 0.05, .count = 16}}},
    {.name = "eagle3_ttt",
     .description =
         "Eagle 3 training-time test: causal over 2048 tokens, then one diagonal for each of 6 further steps; "
         "Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .mask = "(q >= kv && q < valid_len[b]) || (kv >= q_len && kv % q_len < valid_len[b] && (kv - q) % q_len == 0)",
     .batch = 2,
     .heads = 32,
     .kv_heads = 8,
     .q_len = 2048,
     .kv_len = 14336,
     .segments = 7,
     .head_dim = 128,
     .density = 0.045,
     .capture_count = 1,
     .captures = {{.name = "valid_len", .generator = "length", .spread = 0.5}}},
    {.name = "dflash_window",
     .description =
         "a sliding-window layer of a DFlash draft: windows of 2048 up to each query's place, and causal within the "
         "block; SpecForge's rule; Qwen3 8B, 32 query and 8 kv heads of 128 (Qwen/Qwen3-8B, config.json)",
     .mask = "kept[b, q / 16] && (kv < kv_len - q_len ? kv < anchors[b, q / 16] && kv > anchors[b, q / 16] + q % 16 - "
             "width : (kv - (kv_len - q_len)) / 16 == q / 16 && (kv - (kv_len - q_len)) % 16 <= q % 16)",
     .batch = 1,
     .heads = 32,
     .kv_heads = 8,
     .q_len = 8192,
     .kv_len = 16384,
     .segments = 2,
     .head_dim = 128,
     .density = 0.11,
     .capture_count = 2,
     .captures = {{.name = "anchors", .generator = "anchor", .count = 16},
                  {.name = "kept", .generator = "keep", .spread = 0.05, .count = 16}},
     .parameter_count = 1,
     .parameters = {{.name = "width", .dtype = ATTUNE_I32, .value = 2048, .shrink = WORKLOAD_LENGTH}}},
    {.name = "domino",
     .description =
         "the parallel backbone of a Domino draft (arXiv 2605.29707), which attends as DFlash's does, two sequences of "
         "256 blocks; Qwen3 4B, 32 query and 8 kv heads of 128 (Qwen/Qwen3-4B, config.json)",
     .mask =
         "kept[b, q / 16] && (kv < kv_len - q_len ? kv < anchors[b, q / 16] : (kv - (kv_len - q_len)) / 16 == q / 16)",
     .batch = 2,
     .heads = 32,
     .kv_heads = 8,
     .q_len = 4096,
     .kv_len = 8192,
     .segments = 2,
     .head_dim = 128,
     .density = 0.23,
     .capture_count = 2,
     .captures = {{.name = "anchors", .generator = "anchor", .count = 16},
                  {.name = "kept", .generator = "keep", .spread = 0.1, .count = 16}}},
    {.name = "p_eagle",
     .description =
         "P-EAGLE (arXiv 2602.01469): 8 depths, each 0.8 of the last, in 16384 tokens; a token sees depth 0 up to its "
         "anchor, and its anchor's shallower ones; GPT-OSS 20B, 64 query and 8 kv heads of 64 (openai/gpt-oss-20b)",
     .mask = "(depth[kv] == 0 && anchor[q] >= anchor[kv] && anchor[kv] >= 0) || "
             "(anchor[q] == anchor[kv] && depth[q] >= depth[kv])",
     .batch = 1,
     .heads = 64,
     .kv_heads = 8,
     .q_len = 16384,
     .kv_len = 16384,
     .head_dim = 64,
     .density = 0.12,
     .capture_count = 2,
     .captures = {{.name = "depth", .generator = "rollout_depth", .spread = 0.8, .count = 8},
                  {.name = "anchor", .generator = "rollout_anchor", .spread = 0.8, .count = 8}}},
    {.name = "learned_relative_bias",
     .description =
         "a bias that is learned for each distance up to 128 and head, whose gradient is asked for (Shaw et al. 2018, "
         "arXiv 1803.02155); causal, 2048 tokens in the shape of T5 1.1 XL, 32 heads of 64 (google/t5-v1_1-xl)",
     .mask = "q >= kv",
     .score = "score + bias[min(q - kv, 127), h]",
     .batch = 4,
     .heads = 32,
     .kv_heads = 32,
     .q_len = 2048,
     .kv_len = 2048,
     .head_dim = 64,
     .density = 0.5,
     .capture_count = 1,
     .captures = {{.name = "bias", .generator = "bias", .spread = 0.5, .count = 128}}},
    {.name = "learned_temperature",
     .description =
         "a temperature that is learned for each head, whose gradient is asked for, as cosine attention has it (Swin "
         "V2, "
         "arXiv 2111.09883); causal, 4096 tokens, 32 query and 8 kv heads of 128 (Qwen/Qwen3-8B, config.json)",
     .mask = "q >= kv",
     .score = "score * heat[h]",
     .batch = 1,
     .heads = 32,
     .kv_heads = 8,
     .q_len = 4096,
     .kv_len = 4096,
     .head_dim = 128,
     .density = 0.5,
     .capture_count = 1,
     .captures = {{.name = "heat", .generator = "temperature", .spread = 0.3}}},
};

const uint32_t workload_training_count = sizeof workload_training / sizeof workload_training[0];

uint32_t workload_cut(const workload *w, int64_t *lengths)
{
    for (uint32_t i = 0; i < w->segments; i++)
        lengths[i] = i ? w->q_len : w->kv_len - (w->segments - 1) * w->q_len;
    return w->segments;
}

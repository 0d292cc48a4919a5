/* SPDX-License-Identifier: MIT */
#include "bench/workloads/serving.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAGE      16 /* keys, where a workload does not say */
#define NO_WINDOW 0x3fffffff

/* Latent attention after absorption; the scale is that of the 192 columns before. */
#define LATENT_HEADS .kv_heads = 1, .head_dim = 576, .head_dim_v = 512, .scale = 0.0721687836487032, .v_in_k = true

static const serving_workload workloads[] = {
    {.name = "serve_llama_8b",
     .description = "decode of 16 sequences of 8192 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 "
                    "(meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{16, 1, 8192, 8192}}},
    {.name = "serve_one_1k",
     .description =
         "decode of one sequence of 1024 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, "
         "config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 1, 1024, 1024}}},
    {.name = "serve_one_32k",
     .description =
         "decode of one sequence of 32768 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, "
         "config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 1, 32768, 32768}}},
    {.name = "serve_eight_1k",
     .description =
         "decode of 8 sequences of 1024 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, "
         "config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{8, 1, 1024, 1024}}},
    {.name = "serve_eight_4k",
     .description =
         "decode of 8 sequences of 4096 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, "
         "config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{8, 1, 4096, 4096}}},
    {.name = "serve_eight_32k",
     .description =
         "decode of 8 sequences of 32768 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, "
         "config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{8, 1, 32768, 32768}}},
    {.name = "serve_llama_70b",
     .description = "decode of one sequence of 131072 keys; Llama 3.1 70B, 64 query and 8 kv heads of 128 "
                    "(meta-llama/Llama-3.1-70B, config.json)",
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 1, 131072, 131072}}},
    {.name = "serve_qwen3",
     .description = "decode of 64 sequences of 1024 to 16384 keys; Qwen3 30B A3B, 32 query and 4 kv heads of 128 "
                    "(Qwen/Qwen3-30B-A3B, config.json)",
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .groups = {{64, 1, 1024, 16384}}},
    {.name = "serve_gemma3",
     .description = "decode of 16 sequences of 32768 keys, five layers with a window of 1024 for each one without; "
                    "Gemma 3 27B, 32 query and 16 kv heads of 128 (google/gemma-3-27b-it, config.json)",
     .heads = 32,
     .kv_heads = 16,
     .head_dim = 128,
     .scale = 0.0771516749810460,
     .window = 1024,
     .local = 5,
     .global = 1,
     .groups = {{16, 1, 32768, 32768}}},
    {.name = "serve_gpt_oss",
     .description = "decode of 32 sequences of 8192 keys with sinks, every other layer with a window of 128; GPT-OSS "
                    "120B, 64 query and 8 kv heads of 64 (openai/gpt-oss-120b, config.json)",
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .sinks = true,
     .window = 128,
     .local = 1,
     .global = 1,
     .groups = {{32, 1, 8192, 8192}}},
    {.name = "serve_deepseek",
     .description = "decode of 128 sequences of 4096 keys, latent attention after absorption: 128 heads of 576 on one, "
                    "whose first 512 columns are v; DeepSeek V3 (deepseek-ai/DeepSeek-V3, config.json)",
     .heads = 128,
     LATENT_HEADS,
     .groups = {{128, 1, 4096, 4096}}},
    {.name = "serve_deepseek_16",
     .description = "as serve_deepseek, 16 heads: one of eight devices that divide them",
     .heads = 16,
     LATENT_HEADS,
     .groups = {{128, 1, 4096, 4096}}},
    {.name = "serve_deepseek_few",
     .description = "as serve_deepseek, 4 sequences of 32768 keys",
     .heads = 128,
     LATENT_HEADS,
     .groups = {{4, 1, 32768, 32768}}},
    {.name = "serve_deepseek_chunk",
     .description = "as serve_deepseek, a chunk of 1024 rows of a prompt of 8192",
     .heads = 128,
     LATENT_HEADS,
     .groups = {{1, 1024, 8192, 8192}}},
    {.name = "serve_mix",
     .description = "124 sequences that are decoded, of 128 to 8192 keys, and chunks of 512 rows of 4 prompts; Llama "
                    "3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{124, 1, 128, 8192}, {4, 512, 512, 8192}}},
    {.name = "serve_prompt_2k",
     .description =
         "a prompt of 2048 rows; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 2048, 2048, 2048}}},
    {.name = "serve_prompt_8k",
     .description =
         "a prompt of 8192 rows; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 8192, 8192, 8192}}},
    {.name = "serve_prompt_32k",
     .description =
         "a prompt of 32768 rows; Llama 3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 32768, 32768, 32768}}},
    {.name = "serve_prompt_8k_64",
     .description = "as serve_prompt_8k, in pages of 64 keys",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .page = 64,
     .groups = {{1, 8192, 8192, 8192}}},
    {.name = "serve_chunk",
     .description = "a chunk of 512 rows of a prompt of 32768; Llama 3.1 8B, 32 query and 8 kv heads of 128 "
                    "(meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{1, 512, 32768, 32768}}},
    {.name = "serve_prompts_2k",
     .description = "two prompts of 2048 rows, and 8 sequences of 1024 keys that are decoded; Llama 3.1 8B, 32 query "
                    "and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{8, 1, 1024, 1024}, {2, 2048, 2048, 2048}}},
    {.name = "serve_prompts_4k",
     .description = "two prompts of 4096 rows, and 32 sequences of 1024 keys that are decoded; Llama 3.1 8B, 32 query "
                    "and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .groups = {{32, 1, 1024, 1024}, {2, 4096, 4096, 4096}}},
    {.name = "serve_tree",
     .description = "verification of trees of 64 drafts at the end of 8 sequences of 8192 keys; Llama 3.1 8B, 32 query "
                    "and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .tree = true,
     .groups = {{8, 64, 8192, 8192}}},
    {.name = "serve_prefix",
     .description = "decode of 32 sequences with 256 to 1024 keys after a system prompt of 4096 that all share; Llama "
                    "3.1 8B, 32 query and 8 kv heads of 128 (meta-llama/Llama-3.1-8B, config.json)",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .prefix = 4096,
     .groups = {{32, 1, 4352, 5120}}},
    {.name = "serve_prefix_unnamed",
     .description = "as serve_prefix, without batch.shared: the same keys in the same pages",
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .prefix = 4096,
     .unnamed = true,
     .groups = {{32, 1, 4352, 5120}}},
};

#define COUNT (uint32_t)(sizeof workloads / sizeof workloads[0])

uint32_t serving_workload_count(void)
{
    return COUNT;
}

const serving_workload *serving_workload_get(uint32_t index)
{
    return index < COUNT ? &workloads[index] : NULL;
}

const serving_workload *serving_workload_find(const char *name)
{
    for (uint32_t i = 0; i < COUNT; i++)
        if (!strcmp(workloads[i].name, name))
            return &workloads[i];
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------- pattern */

uint32_t serving_kinds(const serving_workload *w)
{
    return w->local && w->global ? 2 : 1;
}

uint32_t serving_layers(const serving_workload *w, uint32_t kind)
{
    return !w->local ? 1 : kind ? w->global : w->local;
}

double serving_window(const serving_workload *w, uint32_t kind)
{
    return w->local && !kind ? (double)w->window : NO_WINDOW;
}

/* ------------------------------------------------------------------------------------------------------------ scale */

static int64_t page_of(const serving_workload *w)
{
    return w->page ? w->page : PAGE;
}

static uint32_t width_of(const serving_workload *w)
{
    return w->head_dim_v ? w->head_dim_v : w->head_dim;
}

/* The pairs of a row at `position`, of a window. */
static double pairs_of(double position, double window)
{
    return position + 1 < window ? position + 1 : window;
}

double serving_flop(const serving_workload *w)
{
    double pairs = 0, layers = 0;
    for (uint32_t kind = 0; kind < serving_kinds(w); kind++) {
        const double times = serving_layers(w, kind), window = serving_window(w, kind);
        layers += times;
        for (int g = 0; g < SERVING_GROUPS; g++) {
            const serving_group *group = &w->groups[g];
            const double rows = (double)group->rows, keys = (double)(group->keys_least + group->keys_most) / 2;
            pairs += times * (double)group->sequences * rows * pairs_of(keys - rows / 2 - 0.5, window);
        }
    }
    return 2 * pairs / layers * (double)w->heads * ((double)w->head_dim + (double)width_of(w));
}

static int64_t shrunk(int64_t whole, double factor, int64_t least)
{
    const int64_t smaller = (int64_t)((double)whole * factor + 0.5);
    return smaller > least ? smaller : least < whole ? least : whole;
}

serving_workload serving_scaled(const serving_workload *w, double scale)
{
    serving_workload s = *w;
    const double target = scale * serving_flop(w);
    int64_t longest = 0;
    if (!(scale > 0 && scale < 1))
        return s;
    for (int g = 0; g < SERVING_GROUPS; g++)
        longest = w->groups[g].keys_most > longest ? w->groups[g].keys_most : longest;
    /* Rows of chunks shrink with the keys, so that their work does by the square; trees stay. */
    for (double factor = 0.5; serving_flop(&s) > target && factor * (double)longest >= 256; factor /= 2) {
        for (int g = 0; g < SERVING_GROUPS; g++) {
            const serving_group *whole = &w->groups[g];
            serving_group *group = &s.groups[g];
            group->rows = w->tree ? whole->rows : shrunk(whole->rows, factor, 16);
            group->keys_least = shrunk(whole->keys_least, factor, group->rows);
            group->keys_most = shrunk(whole->keys_most, factor, group->rows);
        }
        s.window = shrunk(w->window, factor, 16);
        s.prefix = shrunk(w->prefix, factor, 0);
    }
    double excess = serving_flop(&s) / target;
    for (int g = 0; g < SERVING_GROUPS && excess > 1; g++)
        s.groups[g].sequences = shrunk(s.groups[g].sequences, 1 / excess, s.groups[g].sequences > 2 ? 2 : 1);
    excess = serving_flop(&s) / target;
    if (excess > 1) {
        const int64_t group = s.heads / s.kv_heads;
        if (s.kv_heads > 1)
            s.kv_heads = shrunk(s.kv_heads, 1 / excess, 1);
        s.heads = s.kv_heads * group;
    }
    return s;
}

/* ---------------------------------------------------------------------------------------------------- instantiation */

static bool integers(array *a, uint32_t rank, int64_t rows, int64_t columns, failure *why)
{
    return array_create(a, ATTUNE_I32, rank, (int64_t[]){rows, columns}, why);
}

static int32_t *data_of(array *a)
{
    return a->data;
}

/* Rows and keys of each sequence. */
static bool draw_lengths(const serving_workload *w, random_state *r, serving *s, failure *why)
{
    int64_t sequences = 0, b = 0;
    for (int g = 0; g < SERVING_GROUPS; g++)
        sequences += w->groups[g].sequences;
    if (!integers(&s->q_start, 1, sequences + 1, 0, why) || !integers(&s->kv_len, 1, sequences, 0, why))
        return false;
    for (int g = 0; g < SERVING_GROUPS; g++)
        for (int64_t i = 0; i < w->groups[g].sequences; i++, b++) {
            const serving_group *group = &w->groups[g];
            const uint64_t spread = (uint64_t)(group->keys_most - group->keys_least + 1);
            data_of(&s->kv_len)[b] = (int32_t)(group->keys_least + (int64_t)(random_u64(r) % spread));
            data_of(&s->q_start)[b + 1] = data_of(&s->q_start)[b] + (int32_t)group->rows;
        }
    return true;
}

/* A block table whose pages are a random permutation, but for those of the prefix, which all have. */
static bool draw_pages(const serving_workload *w, random_state *r, serving *s, int64_t *pages, failure *why)
{
    const int64_t sequences = s->kv_len.size[0], shared = w->prefix / page_of(w);
    int64_t most = 1, used = shared;
    for (int64_t b = 0; b < sequences; b++) {
        const int64_t own = (serving_keys(s, b) + page_of(w) - 1) / page_of(w);
        most = own > most ? own : most;
        *pages = used += own > shared ? own - shared : 0;
    }
    int32_t *order = malloc((size_t)used * sizeof *order);
    if (!order || !integers(&s->pages, 2, sequences, most, why)) {
        free(order);
        return failure_set(why, "out of memory: a block table of %lld pages", (long long)used);
    }
    for (int64_t i = 0; i < used; i++) {
        const int64_t j = (int64_t)(random_u64(r) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (int64_t b = 0, next = shared; b < sequences; b++)
        for (int64_t i = 0; i < most; i++) {
            const bool has = i < (serving_keys(s, b) + page_of(w) - 1) / page_of(w);
            data_of(&s->pages)[b * most + i] = !has ? -1 : i < shared ? order[i] : order[next++];
        }
    free(order);
    if (!shared || w->unnamed)
        return true;
    if (!integers(&s->shared, 1, sequences, 0, why))
        return false;
    for (int64_t b = 1; b < sequences; b++)
        data_of(&s->shared)[b] = (int32_t)(shared * page_of(w));
    return true;
}

/* Each draft after the first has an earlier one as its parent, and sees what the parent sees and itself. */
static bool draw_tree(random_state *r, serving *s, failure *why)
{
    const int64_t rows = serving_rows(s, 0), words = (rows + 31) / 32;
    if (!integers(&s->tree, 2, s->a.q.size[0], words, why))
        return false;
    uint32_t *bits = s->tree.data;
    for (int64_t row = 0; row < s->a.q.size[0]; row++) {
        const int64_t draft = row % rows;
        const int64_t parent = draft ? row - 1 - (int64_t)(random_u64(r) % (uint64_t)(draft < 4 ? draft : 4)) : -1;
        for (int64_t i = 0; i < words && parent >= 0; i++)
            bits[row * words + i] = bits[parent * words + i];
        bits[row * words + draft / 32] |= UINT32_C(1) << draft % 32;
    }
    return true;
}

/* Rows of K or V, of about unit variance. Types with factors of rows have one for each head. */
static bool draw_rows(array *a, array *scale, attune_dtype dtype, const int64_t *size, random_state *r, failure *why)
{
    /* The codes' standard deviation. */
    const double codes = dtype == ATTUNE_I8 ? 32 : dtype == ATTUNE_F8E4M3 || dtype == ATTUNE_F8E5M2 ? 4 : 1;
    if (!array_create(a, dtype, 4, size, why))
        return false;
    array_fill_normal(a, r, codes);
    if (codes == 1)
        return true;
    if (!array_create(scale, ATTUNE_F32, 1, &size[1], why))
        return false;
    for (int64_t h = 0; h < size[1]; h++)
        array_set(scale, h, (0.75 + 0.5 * random_uniform(r)) / codes);
    return true;
}

static bool normal(array *a, attune_dtype dtype, uint32_t rank, const int64_t *size, random_state *r, failure *why)
{
    if (!array_create(a, dtype, rank, size, why))
        return false;
    array_fill_normal(a, r, 1);
    return true;
}

static bool draw(attune_instance *instance, const serving_workload *w, attune_dtype dtype, attune_dtype kv_dtype,
                 random_state *r, serving *s, failure *why)
{
    static const attune_symbol window = {"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0};
    const attune_dtype real = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    int64_t pages = 0;
    if (!draw_lengths(w, r, s, why) || !draw_pages(w, r, s, &pages, why))
        return false;
    const int64_t tokens = data_of(&s->q_start)[s->kv_len.size[0]];
    if (!normal(&s->a.q, dtype, 3, (int64_t[]){tokens, w->heads, w->head_dim}, r, why) ||
        !draw_rows(&s->a.k, &s->k_scale, kv_dtype, (int64_t[]){pages, w->kv_heads, page_of(w), w->head_dim}, r, why) ||
        (!w->v_in_k && !draw_rows(&s->a.v, &s->v_scale, kv_dtype,
                                  (int64_t[]){pages, w->kv_heads, page_of(w), width_of(w)}, r, why)) ||
        (w->sinks && !normal(&s->a.sinks, real, 1, &w->heads, r, why)) || (w->tree && !draw_tree(r, s, why)))
        return false;
    if (w->local)
        s->a.parameters[s->a.parameter_count++] = (attune_parameter){"width", serving_window(w, 0)};
    const char *const mask = w->tree ? NULL : w->local ? "q >= kv && q - kv < width" : "q >= kv";
    return !mask || attune_expr_create(instance, ATTUNE_EXPR_MASK, mask, &window, 1, &s->a.mask) == ATTUNE_OK ||
           failure_set(why, "mask of %s: %s", w->name, attune_last_error());
}

bool serving_instantiate(attune_instance *instance, const serving_workload *w, attune_dtype dtype,
                         attune_dtype kv_dtype, attune_dtype o_dtype, uint64_t seed, serving *s, failure *why)
{
    random_state r = {seed * UINT64_C(0x9e3779b97f4a7c15)};
    *s = (serving){.a = {.o_dtype = o_dtype, .scale = w->scale}, .head_dim_v = width_of(w)};
    if (draw(instance, w, dtype, kv_dtype ? kv_dtype : dtype, &r, s, why) && serving_check(s, why))
        return true;
    attune_expr_destroy(s->a.mask);
    serving_free(s);
    return false;
}

serving_work serving_measure(const serving_workload *w, const serving *s)
{
    serving_work work = {.sequences = serving_sequences(s), .rows = serving_tokens(s)};
    const double columns = (double)w->head_dim + (w->v_in_k ? 0 : (double)width_of(w));
    double layers = 0, keys = 0;
    for (uint32_t kind = 0; kind < serving_kinds(w); kind++) {
        const double times = serving_layers(w, kind), window = serving_window(w, kind);
        layers += times;
        for (int64_t b = 0; b < work.sequences; b++) {
            const int64_t length = serving_keys(s, b), rows = serving_rows(s, b);
            double seen = pairs_of((double)(length - 1), window + (double)(rows - 1));
            /* The first sequence reads the prefix. */
            seen -= b && seen > (double)(length - w->prefix) ? seen - (double)(length - w->prefix) : 0;
            keys += times * seen;
            work.keys = length > work.keys ? length : work.keys;
            for (int64_t row = 0; row < rows; row++)
                work.pairs += times * pairs_of((double)(length - rows + row), window) * (double)w->heads;
        }
    }
    if (s->tree.data) {
        const uint32_t *bits = s->tree.data;
        work.pairs = 0;
        for (int64_t b = 0; b < work.sequences; b++)
            work.pairs +=
                (double)((serving_keys(s, b) - serving_rows(s, b)) * serving_rows(s, b)) * (double)w->heads * layers;
        for (int64_t i = 0, n = array_count(&s->tree); i < n; i++)
            for (uint32_t word = bits[i]; word; word &= word - 1)
                work.pairs += (double)w->heads * layers;
    }
    work.pairs /= layers;
    work.flop = 2 * work.pairs * ((double)w->head_dim + (double)width_of(w));
    work.bytes =
        keys / layers * (double)w->kv_heads * columns * (double)attune_dtype_size(s->a.k.dtype) /
            attune_dtype_block(s->a.k.dtype) +
        (double)(work.rows * w->heads) * ((double)w->head_dim * (double)attune_dtype_size(s->a.q.dtype) +
                                          (double)width_of(w) * (double)attune_dtype_size(attention_o_dtype(&s->a)));
    return work;
}

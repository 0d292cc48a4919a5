/* SPDX-License-Identifier: MIT */
/* The table of named workloads, and the generators of their captures. Shapes are from the models' published
 * configuration files; lengths are a model's context or a common length within it. */
#include "bench/workloads/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lengths of web documents in tokens are close to log-normal with a heavy tail: a median of some 1,700 tokens, a mean
 * three times that, and one in a hundred beyond 45,000. Long ones are truncated at the end of the packed sequence. */
#define DOCUMENT_MEDIAN 1700
#define DOCUMENT_SPREAD 1.5

#define SHAPE(b, h, h_kv, l, l_kv, d)                                                                                  \
    .batch = b, .heads = h, .kv_heads = h_kv, .q_len = l, .kv_len = l_kv, .head_dim = d
#define LENGTH(n, v)                                                                                                   \
    {                                                                                                                  \
        .name = n, .dtype = ATTUNE_I32, .value = v, .shrink = WORKLOAD_LENGTH                                          \
    }

static const workload workloads[] = {
    {.name = "dense",
     .description = "every pair; FLUX.1 [dev] joint attention, 4096 image and 512 text tokens, 24 heads of 128 "
                    "(black-forest-labs/FLUX.1-dev, transformer/config.json)",
     SHAPE(1, 24, 24, 4608, 4608, 128),
     .density = 1},
    {.name = "causal",
     .description = "causal; Llama 3 8B prefill at its context of 8192, 32 query and 8 kv heads of 128 "
                    "(meta-llama/Meta-Llama-3-8B, config.json)",
     .mask = "q >= kv",
     SHAPE(1, 32, 8, 8192, 8192, 128),
     .density = 0.5},
    {.name = "sliding_window",
     .description = "causal window of 4096; Mistral 7B v0.1 at 16384, 32 query and 8 kv heads of 128 "
                    "(mistralai/Mistral-7B-v0.1, config.json)",
     .mask = "q >= kv && q - kv < width",
     SHAPE(1, 32, 8, 16384, 16384, 128),
     .density = 0.219,
     .parameter_count = 1,
     .parameters = {LENGTH("width", 4096)}},
    {.name = "sliding_window_1024",
     .description =
         "causal window of 1024; a local layer of Gemma 3 27B at 8192, 32 query and 16 kv heads of 128, scale "
         "168^-0.5 (google/gemma-3-27b-it, config.json)",
     .mask = "q >= kv && q - kv < width",
     SHAPE(1, 32, 16, 8192, 8192, 128),
     .scale = 0.0771516749810460,
     .density = 0.117,
     .parameter_count = 1,
     .parameters = {LENGTH("width", 1024)}},
    {.name = "document_packing",
     .description =
         "causal within each of the packed documents, 32768 tokens, heavy-tailed lengths; Llama 3 8B, 32 query "
         "and 8 kv heads of 128 (meta-llama/Meta-Llama-3-8B, config.json)",
     .mask = "q >= kv && doc[q] == doc[kv]",
     SHAPE(1, 32, 8, 32768, 32768, 128),
     .density = 0.12,
     .capture_count = 1,
     .captures = {{.name = "doc", .generator = "document", .length = DOCUMENT_MEDIAN, .spread = DOCUMENT_SPREAD}}},
    {.name = "shared_prefix",
     .description = "groups of a prompt and 8 answers packed into 16384 tokens: an answer sees itself and its prompt; "
                    "Llama 3 8B, 32 query and 8 kv heads of 128 (meta-llama/Meta-Llama-3-8B, config.json)",
     .mask = "q >= kv && (doc[q] == doc[kv] || owner[q] == doc[kv])",
     SHAPE(1, 32, 8, 16384, 16384, 128),
     .density = 0.06,
     .capture_count = 2,
     .captures = {{.name = "doc", .generator = "prefix_document", .length = 512, .spread = 0.7, .count = 8},
                  {.name = "owner", .generator = "prefix_owner", .length = 512, .spread = 0.7, .count = 8}}},
    {.name = "prefix_lm",
     .description =
         "everything sees the prefix, the rest is causal: 4096 image and 64 prompt tokens of 4608; PaliGemma 3B "
         "at 896 px, 8 query heads and 1 kv head of 256 (google/paligemma-3b-pt-896, config.json)",
     .mask = "q >= kv || kv < prefix_len",
     SHAPE(4, 8, 1, 4608, 4608, 256),
     .density = 0.95,
     .parameter_count = 1,
     .parameters = {LENGTH("prefix_len", 4160)}},
    {.name = "multi_image",
     .description = "causal text, and images whose tokens see their whole image (the rule of Gemma 3), 16384 tokens; "
                    "Qwen2-VL 7B, 28 query and 4 kv heads of 128 (Qwen/Qwen2-VL-7B-Instruct, config.json)",
     .mask = "q >= kv || (image_id[q] >= 0 && image_id[q] == image_id[kv])",
     SHAPE(1, 28, 4, 16384, 16384, 128),
     .density = 0.53,
     .capture_count = 1,
     .captures = {{.name = "image_id", .generator = "image", .length = 1024, .spread = 0.6}}},
    {.name = "softcap",
     .description =
         "causal with scores capped by 50 tanh(s / 50); a global layer of Gemma 2 9B at 8192, 16 query and 8 kv "
         "heads of 256 (google/gemma-2-9b, config.json)",
     .mask = "q >= kv",
     .score = "50.0 * tanh(score / 50.0)",
     SHAPE(1, 16, 8, 8192, 8192, 256),
     .density = 0.5},
    {.name = "softcap_window",
     .description =
         "causal window of 4096 with scores capped by 50 tanh(s / 50); a local layer of Gemma 2 9B at 8192, 16 "
         "query and 8 kv heads of 256 (google/gemma-2-9b, config.json)",
     .mask = "q >= kv && q - kv < width",
     .score = "50.0 * tanh(score / 50.0)",
     SHAPE(1, 16, 8, 8192, 8192, 256),
     .density = 0.375,
     .parameter_count = 1,
     .parameters = {LENGTH("width", 4096)}},
    {.name = "alibi",
     .description = "causal with a linear bias of distance and head; BLOOM 7B1 at 2048, 32 heads of 128 "
                    "(bigscience/bloom-7b1, config.json)",
     .mask = "q >= kv",
     .score = "score + slopes[h] * (kv - q)",
     SHAPE(4, 32, 32, 2048, 2048, 128),
     .density = 0.5,
     .capture_count = 1,
     .captures = {{.name = "slopes", .generator = "slopes"}}},
    {.name = "neighborhood_7x7",
     .description =
         "7 x 7 neighbours on a 64 x 64 grid, centres clamped to the edges as in NAT (arXiv 2204.07143); the "
         "latent of Stable Diffusion 3 medium at 1024 px, 24 heads of 64 (arXiv 2403.03206)",
     .mask = "abs(clamp(q / side, radius, side - 1 - radius) - kv / side) <= radius && "
             "abs(clamp(q % side, radius, side - 1 - radius) - kv % side) <= radius",
     SHAPE(2, 24, 24, 4096, 4096, 64),
     .side = 64,
     .density = 0.012,
     .parameter_count = 1,
     .parameters = {{.name = "radius", .dtype = ATTUNE_I32, .value = 3, .shrink = WORKLOAD_SIDE}}},
    {.name = "neighborhood_13x13",
     .description =
         "13 x 13 neighbours on a 64 x 64 grid, centres clamped to the edges as in NAT (arXiv 2204.07143); the "
         "latent of Stable Diffusion 3 medium at 1024 px, 24 heads of 64 (arXiv 2403.03206)",
     .mask = "abs(clamp(q / side, radius, side - 1 - radius) - kv / side) <= radius && "
             "abs(clamp(q % side, radius, side - 1 - radius) - kv % side) <= radius",
     SHAPE(2, 24, 24, 4096, 4096, 64),
     .side = 64,
     .density = 0.041,
     .parameter_count = 1,
     .parameters = {{.name = "radius", .dtype = ATTUNE_I32, .value = 6, .shrink = WORKLOAD_SIDE}}},
    {.name = "decode",
     .description = "one query against 32768 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 "
                    "(meta-llama/Llama-3.1-8B, config.json)",
     SHAPE(1, 32, 8, 1, 32768, 128),
     .density = 1},
    {.name = "decode_batch",
     .description = "one query in each of 16 sequences of 8192 keys; Llama 3.1 8B, 32 query and 8 kv heads of 128 "
                    "(meta-llama/Llama-3.1-8B, config.json)",
     SHAPE(16, 32, 8, 1, 8192, 128),
     .density = 1},
    {.name = "mla_prefill",
     .description =
         "causal multi-head latent attention before absorption, 4096 tokens: 128 heads of 192 for q and k, 128 "
         "for v; DeepSeek V3 (deepseek-ai/DeepSeek-V3, config.json)",
     .mask = "q >= kv",
     SHAPE(1, 128, 128, 4096, 4096, 192),
     .head_dim_v = 128,
     .density = 0.5},
};

static const workload mask_workloads[] = {
    {.name = "mask_causal",
     .description = "block mask of 131072 x 131072, causal",
     .mask = "q >= kv",
     SHAPE(1, 1, 1, 131072, 131072, 8),
     .density = 0.5},
    {.name = "mask_window",
     .description = "block mask of 131072 x 131072, causal window of 1024",
     .mask = "q >= kv && q - kv < width",
     SHAPE(1, 1, 1, 131072, 131072, 8),
     .density = 0.0078,
     .parameter_count = 1,
     .parameters = {LENGTH("width", 1024)}},
    {.name = "mask_document",
     .description = "block mask of 131072 x 131072, causal within packed documents of heavy-tailed lengths",
     .mask = "q >= kv && doc[q] == doc[kv]",
     SHAPE(1, 1, 1, 131072, 131072, 8),
     .density = 0.05,
     .capture_count = 1,
     .captures = {{.name = "doc", .generator = "document", .length = DOCUMENT_MEDIAN, .spread = DOCUMENT_SPREAD}}},
};

#define OWN_WORKLOADS (uint32_t)(sizeof workloads / sizeof workloads[0])

uint32_t workload_count(void)
{
    return OWN_WORKLOADS + workload_training_count;
}

const workload *workload_get(uint32_t index)
{
    if (index < OWN_WORKLOADS)
        return &workloads[index];
    return index < workload_count() ? &workload_training[index - OWN_WORKLOADS] : NULL;
}

const workload *workload_find(const char *name)
{
    for (uint32_t i = 0; i < workload_count(); ++i)
        if (!strcmp(workload_get(i)->name, name))
            return workload_get(i);
    return NULL;
}

uint32_t workload_mask_count(void)
{
    return (uint32_t)(sizeof mask_workloads / sizeof mask_workloads[0]);
}

const workload *workload_mask_get(uint32_t index)
{
    return index < workload_mask_count() ? &mask_workloads[index] : NULL;
}

/* ----------------------------------------------------------------------------------------------------------- shapes */

static double at_least_1(int64_t n)
{
    return n > 1 ? (double)n : 1;
}

static double all_pairs(const workload *w)
{
    return at_least_1(w->batch) * at_least_1(w->heads) * at_least_1(w->q_len) *
           at_least_1(w->kv_len ? w->kv_len : w->q_len);
}

double workload_flop(const workload *w)
{
    double density = w->density > 0 ? w->density : w->mask[0] ? 0.5 : 1;
    uint32_t dv = w->head_dim_v ? w->head_dim_v : w->head_dim;
    return 2 * density * all_pairs(w) * ((double)w->head_dim + (double)dv);
}

/* A length near `wanted`: a multiple of 128, or of 16 if it is short; at most `whole`. */
static int64_t round_length(double wanted, int64_t whole)
{
    int64_t step = wanted >= 1024 ? 128 : 16;
    int64_t length = step * (int64_t)floor(wanted / (double)step + 0.5);
    if (length < step)
        length = step;
    return length < whole ? length : whole;
}

/* Sets the lengths of s, a copy of w, so that it has about `target` pairs and at least `shortest` keys. */
static void shrink_lengths(workload *s, const workload *w, double target, int64_t shortest)
{
    double planes = at_least_1(s->batch) * at_least_1(s->heads);
    double factor = target / (planes * (double)w->q_len * (double)w->kv_len);
    bool decode = w->q_len <= 16; /* a few queries are not reduced, and the work is linear in the keys */
    if (!decode)
        factor = sqrt(factor);
    if (factor * (double)w->kv_len < (double)shortest)
        factor = (double)shortest / (double)w->kv_len;
    if (factor >= 1)
        return;
    if (w->side) {
        int64_t side = 4 * (int64_t)floor((double)w->side * sqrt(factor) / 4 + 0.5);
        s->side = side < 8 ? 8 : side;
        if (s->side > w->side)
            s->side = w->side;
        s->q_len = s->kv_len = s->side * s->side;
    } else if (decode) {
        s->kv_len = round_length(factor * (double)w->kv_len, w->kv_len);
    } else {
        s->q_len = round_length(factor * (double)w->q_len, w->q_len);
        s->kv_len = w->kv_len % w->q_len == 0 ? s->q_len * (w->kv_len / w->q_len)
                                              : round_length(factor * (double)w->kv_len, w->kv_len);
    }
    double share = (double)s->kv_len / (double)w->kv_len;
    for (uint32_t i = 0; i < s->parameter_count; ++i) {
        double ratio = w->parameters[i].shrink == WORKLOAD_LENGTH            ? share
                       : w->parameters[i].shrink == WORKLOAD_SIDE && w->side ? (double)s->side / (double)w->side
                                                                             : 1;
        if (ratio < 1) {
            double value = floor(w->parameters[i].value * ratio + 0.5);
            s->parameters[i].value = value < 1 ? 1 : value;
        }
    }
    for (uint32_t i = 0; i < s->capture_count; ++i)
        s->captures[i].length = w->captures[i].length * share;
}

/* Whether a capture has sizes of its own: the expressions may then hold for this shape alone. */
static bool keeps_shape(const workload *w)
{
    bool sized = false, follows = false;
    for (uint32_t i = 0; i < w->capture_count; ++i) {
        if (!w->captures[i].generator[0])
            return true;
        sized |= w->captures[i].values.rank > 0;
        for (uint32_t d = 0; d < w->captures[i].values.rank; ++d)
            follows |= w->captures[i].extent[d] != WORKLOAD_NUMBER;
    }
    return sized && !follows;
}

workload workload_scaled(const workload *w, double scale)
{
    workload s = *w;
    if (!(scale > 0 && scale < 1) || w->q_len < 1 || w->kv_len < 1 || w->kv_heads < 1 || w->heads < w->kv_heads ||
        keeps_shape(w))
        return s;
    double target = scale * all_pairs(w);
    shrink_lengths(&s, w, target, 1024);
    double excess = all_pairs(&s) / target;
    if (excess > 1 && s.batch > 1) {
        int64_t batch = (int64_t)((double)s.batch / excess);
        bool own = s.kv_batch == s.batch;
        s.batch = batch > 1 ? batch : 1;
        s.kv_batch = own ? s.batch : s.kv_batch > 1 ? 0 : s.kv_batch;
        excess = all_pairs(&s) / target;
    }
    if (excess > 1 && s.kv_heads > 1) {
        int64_t group = s.heads / s.kv_heads;
        int64_t kv_heads = (int64_t)((double)s.kv_heads / excess);
        s.kv_heads = kv_heads > 1 ? kv_heads : 1;
        s.heads = group * s.kv_heads;
        excess = all_pairs(&s) / target;
    }
    if (excess > 1.5)
        shrink_lengths(&s, w, target, 16);
    return s;
}

#define LEAST_FLOP   1e9
#define LEAST_DECODE 1e10

double workload_share(const workload *w, double scale)
{
    const double least = (w->q_len <= 16 ? LEAST_DECODE : LEAST_FLOP) / workload_flop(w);
    const double share = least > scale ? least : scale;
    return share < 1 ? share : 1;
}

/* ------------------------------------------------------------------------------------------------------- generators */

/* Each array has its own random stream, so that adding a capture does not change the others. */
static random_state stream(uint64_t seed, const char *tag)
{
    random_state r = {seed * UINT64_C(0x9e3779b97f4a7c15)};
    for (; *tag; ++tag) {
        r.state ^= (unsigned char)*tag;
        (void)random_u64(&r);
        r.state ^= random_u64(&r);
    }
    return r;
}

static int64_t random_length(random_state *r, double median, double spread)
{
    double length = median * exp(spread * random_normal(r));
    return length < 1 ? 1 : length > 1e9 ? 1000000000 : (int64_t)length;
}

typedef struct shape {
    const workload *w;
    int64_t tokens, batch, heads;
} shape;

typedef bool (*generate_fn)(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why);

static bool generate_document(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    int32_t *ids = out->data;
    random_state r = stream(seed, "document");
    int32_t id = 0;
    for (int64_t at = 0; at < s->tokens; ++id)
        for (int64_t length = random_length(&r, c->length, c->spread); length > 0 && at < s->tokens; --length)
            ids[at++] = id;
    return true;
}

/* Groups of one prompt, with a median length of twice `length`, and `count` answers. Every part has its own number;
 * `owner` is the number of the group's prompt. Both captures use the same lengths. */
static bool generate_prefix(const workload_capture *c, const shape *s, uint64_t seed, bool owner, array *out,
                            failure *why)
{
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    int32_t *ids = out->data;
    random_state r = stream(seed, "prefix");
    int64_t answers = c->count > 0 ? c->count : 8;
    int32_t id = 0, prompt = 0;
    int64_t part = 0;
    for (int64_t at = 0; at < s->tokens; ++id, ++part) {
        bool is_prompt = part % (answers + 1) == 0;
        if (is_prompt)
            prompt = id;
        int64_t length = random_length(&r, is_prompt ? 2 * c->length : c->length, c->spread);
        for (; length > 0 && at < s->tokens; --length)
            ids[at++] = owner ? prompt : id;
    }
    return true;
}

static bool generate_prefix_document(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    return generate_prefix(c, s, seed, false, out, why);
}

static bool generate_prefix_owner(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    return generate_prefix(c, s, seed, true, out, why);
}

static bool generate_image(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    int32_t *ids = out->data;
    random_state r = stream(seed, "image");
    int32_t image = 0;
    bool text = true;
    for (int64_t at = 0; at < s->tokens; text = !text) {
        int64_t length = random_length(&r, text ? c->length / 4 : c->length, c->spread);
        for (; length > 0 && at < s->tokens; --length)
            ids[at++] = text ? -1 : image;
        image += !text;
    }
    return true;
}

static int compare_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int64_t draft_blocks(const workload_capture *c, const shape *s)
{
    int64_t block = c->count > 0 ? c->count : 16;
    return (s->w->q_len + block - 1) / block;
}

static bool generate_anchor(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    int64_t blocks = draft_blocks(c, s), context = s->w->kv_len - s->w->q_len;
    if (!array_create(out, ATTUNE_I32, 2, (int64_t[]){s->batch, blocks}, why))
        return false;
    random_state r = stream(seed, "anchor");
    int32_t *anchors = out->data;
    for (int64_t b = 0; b < s->batch; ++b) {
        for (int64_t i = 0; i < blocks; ++i)
            anchors[b * blocks + i] = context > 0 ? 1 + (int32_t)(random_uniform(&r) * (double)context) : 0;
        qsort(anchors + b * blocks, (size_t)blocks, sizeof *anchors, compare_i32);
    }
    return true;
}

static bool generate_keep(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_BOOL, 2, (int64_t[]){s->batch, draft_blocks(c, s)}, why))
        return false;
    random_state r = stream(seed, "keep");
    for (int64_t i = 0, n = array_count(out); i < n; ++i)
        ((unsigned char *)out->data)[i] = random_uniform(&r) >= c->spread;
    return true;
}

/* Press, Smith & Lewis (2022): powers of 2^(-8 / n) for n heads; if n is not a power of two, those of the power below,
 * then every other one of the power above. */
static bool generate_slopes(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    (void)c, (void)seed;
    if (!array_create(out, ATTUNE_F32, 1, (int64_t[]){s->heads}, why))
        return false;
    int64_t power = 1;
    while (power * 2 <= s->heads)
        power *= 2;
    for (int64_t h = 0; h < s->heads; ++h)
        ((float *)out->data)[h] = (float)(h < power ? exp2(-8.0 * (double)(h + 1) / (double)power)
                                                    : exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power));
    return true;
}

static bool generate_length(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->batch}, why))
        return false;
    random_state r = stream(seed, "length");
    for (int64_t b = 0; b < s->batch; ++b) {
        double share = 1 - (1 - c->spread) * random_uniform(&r);
        ((int32_t *)out->data)[b] = (int32_t)ceil(share * (double)s->w->q_len);
    }
    return true;
}

static bool create_sized(const workload_capture *c, const shape *s, attune_dtype dtype, array *out, failure *why)
{
    const int64_t extents[] = {[WORKLOAD_TOKENS] = s->tokens, [WORKLOAD_BATCH] = s->batch, [WORKLOAD_HEADS] = s->heads};
    int64_t size[ATTUNE_MAX_RANK];
    if (!c->values.rank)
        return failure_set(why, "capture %s: the generator %s needs \"size\"", c->name, c->generator);
    double count = 1;
    for (uint32_t d = 0; d < c->values.rank; ++d) {
        size[d] = c->extent[d] == WORKLOAD_NUMBER ? c->values.size[d] : extents[c->extent[d]];
        count *= (double)size[d];
    }
    if (count > 0x1p31)
        return failure_set(why, "capture %s: size is %.0f elements, the limit is 2^31", c->name, count);
    return array_create(out, dtype, c->values.rank, size, why);
}

static bool generate_normal(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!create_sized(c, s, ATTUNE_F32, out, why))
        return false;
    random_state r = stream(seed, c->name);
    array_fill_normal(out, &r, c->spread > 0 ? c->spread : 1);
    return true;
}

static bool generate_positive(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!generate_normal(c, s, seed, out, why))
        return false;
    for (int64_t i = 0, n = array_count(out); i < n; ++i)
        ((float *)out->data)[i] = fabsf(((float *)out->data)[i]);
    return true;
}

static bool generate_integer(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!create_sized(c, s, ATTUNE_I32, out, why))
        return false;
    random_state r = stream(seed, c->name);
    for (int64_t i = 0, n = array_count(out); i < n; ++i)
        ((int32_t *)out->data)[i] = (int32_t)(random_uniform(&r) * (double)(c->count > 0 ? c->count : s->tokens));
    return true;
}

/* Raffel et al. (2020): half of the buckets for distances of their own, the others logarithmic up to `length`. */
static bool generate_bucket(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    (void)seed;
    const double count = c->count > 0 ? (double)c->count : 32, exact = floor(count / 2);
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    for (int64_t i = 0; i < s->tokens; ++i) {
        const double distance = (double)i, far = fmax(c->length / fmax(exact, 1), 2);
        const double log_bucket = exact + floor(log(fmax(distance / fmax(exact, 1), 1)) / log(far) * (count - exact));
        ((int32_t *)out->data)[i] = (int32_t)(distance < exact ? distance : fmin(log_bucket, count - 1));
    }
    return true;
}

/* Trees of a median of `length` tokens in depth-first order: a node has the next one as a child with probability
 * spread / (1 + spread), else one of its ancestors has. */
static bool generate_tree(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    int32_t *last = out->data, *parent = malloc((size_t)s->tokens * sizeof *parent);
    if (!parent)
        return failure_set(why, "capture %s: out of memory", c->name);
    random_state r = stream(seed, "tree");
    for (int64_t i = 0, left = 0; i < s->tokens; ++i) {
        int32_t p = (int32_t)i - 1;
        for (; left > 0 && parent[p] >= 0 && random_uniform(&r) * (1 + c->spread) >= c->spread;)
            p = parent[p];
        parent[i] = left > 0 ? p : -1;
        left = left > 0 ? left - 1 : random_length(&r, c->length, 0.5) - 1;
        last[i] = (int32_t)i;
    }
    for (int64_t i = s->tokens; i-- > 0;)
        if (parent[i] >= 0 && last[i] > last[parent[i]])
            last[parent[i]] = last[i];
    free(parent);
    return true;
}

static bool generate_bias(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_F32, 2, (int64_t[]){c->count > 0 ? c->count : 1, s->heads}, why))
        return false;
    random_state r = stream(seed, c->name);
    array_fill_normal(out, &r, c->spread);
    return true;
}

static bool generate_temperature(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!array_create(out, ATTUNE_F32, 1, (int64_t[]){s->heads}, why))
        return false;
    random_state r = stream(seed, c->name);
    for (int64_t h = 0; h < s->heads; ++h)
        ((float *)out->data)[h] = (float)exp(c->spread * random_normal(&r));
    return true;
}

/* At depth 0 every position is an anchor; each depth keeps a share of the previous anchors. Both captures make the same
 * choices. The remaining tokens are padding, which attends only to itself. */
static bool generate_rollout(const workload_capture *c, const shape *s, uint64_t seed, bool depth, array *out,
                             failure *why)
{
    double all = 0;
    if (!array_create(out, ATTUNE_I32, 1, (int64_t[]){s->tokens}, why))
        return false;
    for (int64_t i = 0; i < c->count; ++i)
        all += pow(c->spread, (double)i);
    int32_t *values = out->data, anchors = (int32_t)((double)s->tokens / all);
    random_state r = stream(seed, "rollout");
    int64_t at = 0, begin = 0;
    for (int32_t i = 0; i < anchors && at < s->tokens; ++i)
        values[at++] = depth ? 0 : i;
    for (int64_t level = 1, end = at; level < c->count; ++level, begin = end, end = at)
        for (int64_t i = begin; i < end && at < s->tokens; ++i)
            if (random_uniform(&r) < c->spread) {
                values[at] = depth ? (int32_t)level : values[i];
                ++at;
            }
    for (int32_t i = 1; at < s->tokens; ++at, ++i)
        values[at] = depth ? 1 : -i;
    return true;
}

static bool generate_rollout_anchor(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    return generate_rollout(c, s, seed, false, out, why);
}

static bool generate_rollout_depth(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    return generate_rollout(c, s, seed, true, out, why);
}

static const struct {
    workload_generator about;
    generate_fn generate;
} generators[] = {
    {{"document", "i32 [tokens]: the number of each token's document; log-normal lengths (median length, spread sigma)",
      false},
     generate_document},
    {{"prefix_document",
      "i32 [tokens]: groups of a prompt and count answers, each part with a number of its own; answers "
      "of length and spread, prompts twice as long",
      false},
     generate_prefix_document},
    {{"prefix_owner", "i32 [tokens]: the number that prefix_document gave to the prompt of each token's group", false},
     generate_prefix_owner},
    {{"image", "i32 [tokens]: the number of each token's image, -1 in the text between; log-normal lengths", false},
     generate_image},
    {{"anchor",
      "i32 [batch, blocks]: sorted random places in the context, kv_len - q_len long; blocks of count queries", false},
     generate_anchor},
    {{"keep", "bool [batch, blocks]: a share of spread is false; blocks of count queries", false}, generate_keep},
    {{"slopes", "f32 [heads]: ALiBi's", false}, generate_slopes},
    {{"length", "i32 [batch]: between spread times q_len and q_len", false}, generate_length},
    {{"bias", "f32 [count, heads]: normal, of standard deviation spread", false}, generate_bias},
    {{"temperature", "f32 [heads]: exp of a normal of standard deviation spread", false}, generate_temperature},
    {{"rollout_anchor",
      "i32 [tokens]: the anchor of each token of count depths, of which each keeps a share of spread of the last",
      false},
     generate_rollout_anchor},
    {{"rollout_depth", "i32 [tokens]: its depth", false}, generate_rollout_depth},
    {{"bucket", "i32 [tokens]: of each distance, the bucket of count that T5 has up to a distance of length", false},
     generate_bucket},
    {{"tree",
      "i32 [tokens]: trees of a median of length tokens in depth-first order: each node's last descendant; a "
      "larger spread makes longer branches",
      false},
     generate_tree},
    {{"normal", "f32 [size]: normal, of standard deviation spread", true}, generate_normal},
    {{"positive", "f32 [size]: absolute values of those", true}, generate_positive},
    {{"integer", "i32 [size]: uniform below count, or below the number of tokens", true}, generate_integer},
};

const workload_generator *workload_generator_get(uint32_t index)
{
    return index < sizeof generators / sizeof generators[0] ? &generators[index].about : NULL;
}

void workload_document_ids(int32_t *ids, int64_t total, const int64_t *lengths, int64_t count)
{
    int32_t id = 0;
    for (int64_t at = 0; at < total; ++id) {
        int64_t length = count > 0 ? lengths[id % count] : total;
        for (length = length < 1 ? 1 : length; length > 0 && at < total; --length)
            ids[at++] = id;
    }
}

/* ---------------------------------------------------------------------------------------------------- instantiation */

static char *copy_string(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

void workload_release(attention *a)
{
    array_free(&a->q);
    array_free(&a->k);
    array_free(&a->v);
    attune_expr_destroy(a->mask);
    attune_expr_destroy(a->score);
    for (uint32_t i = 0; i < a->capture_count; ++i) {
        array data = {.dtype = a->captures[i].array.dtype, .data = (void *)(uintptr_t)a->captures[i].array.data};
        array_free(&data);
        free((void *)(uintptr_t)a->captures[i].name);
    }
    for (uint32_t i = 0; i < a->parameter_count; ++i)
        free((void *)(uintptr_t)a->parameters[i].name);
    memset(a, 0, sizeof *a);
}

static bool make_capture(const workload_capture *c, const shape *s, uint64_t seed, array *out, failure *why)
{
    if (!c->generator[0]) {
        if (!array_create(out, c->values.dtype, c->values.rank, c->values.size, why))
            return false;
        memcpy(out->data, c->values.data, (size_t)array_count(out) * attune_dtype_size(out->dtype));
        return true;
    }
    for (size_t i = 0; i < sizeof generators / sizeof generators[0]; ++i)
        if (!strcmp(generators[i].about.name, c->generator))
            return generators[i].generate(c, s, seed, out, why);
    return failure_set(why, "capture %s: no generator is called %s (attune bench --list names them)", c->name,
                       c->generator);
}

static bool add_parameter(attention *a, attune_symbol *symbol, const char *name, attune_dtype dtype, double value,
                          failure *why)
{
    char *copy = copy_string(name);
    if (!copy)
        return failure_set(why, "out of memory");
    a->parameters[a->parameter_count++] = (attune_parameter){.name = copy, .value = value};
    *symbol = (attune_symbol){.name = copy, .kind = ATTUNE_SYMBOL_PARAMETER, .dtype = dtype};
    return true;
}

static bool bind(attune_instance *instance, const workload *w, uint64_t seed, attention *a, failure *why)
{
    shape s = {.w = w,
               .tokens = w->q_len > w->kv_len ? w->q_len : w->kv_len,
               .batch = w->batch > 0 ? w->batch : 1,
               .heads = w->heads > 0 ? w->heads : 1};
    attune_symbol symbols[WORKLOAD_MAX_CAPTURES + WORKLOAD_MAX_PARAMETERS + 1];
    uint32_t count = 0;
    a->scale = w->scale > 0 ? w->scale : 1 / sqrt((double)w->head_dim);
    for (uint32_t i = 0; i < w->capture_count; ++i) {
        array made = {0};
        char *name = copy_string(w->captures[i].name);
        if (!name)
            return failure_set(why, "out of memory");
        if (!make_capture(&w->captures[i], &s, seed, &made, why)) {
            free(name);
            return false;
        }
        a->captures[a->capture_count++] = (attune_host_capture){.name = name, .array = array_view(&made)};
        symbols[count++] =
            (attune_symbol){.name = name, .kind = ATTUNE_SYMBOL_CAPTURE, .dtype = made.dtype, .rank = made.rank};
    }
    if (w->side && !add_parameter(a, &symbols[count++], "side", ATTUNE_I32, (double)w->side, why))
        return false;
    for (uint32_t i = 0; i < w->parameter_count; ++i)
        if (!add_parameter(a, &symbols[count++], w->parameters[i].name,
                           w->parameters[i].dtype ? w->parameters[i].dtype : ATTUNE_F32, w->parameters[i].value, why))
            return false;
    if (w->mask[0] && attune_expr_create(instance, ATTUNE_EXPR_MASK, w->mask, symbols, count, &a->mask) != ATTUNE_OK)
        return failure_set(why, "mask of %s: %s", w->name, attune_last_error());
    if (w->score[0] &&
        attune_expr_create(instance, ATTUNE_EXPR_SCORE, w->score, symbols, count, &a->score) != ATTUNE_OK)
        return failure_set(why, "score of %s: %s", w->name, attune_last_error());
    return true;
}

bool workload_bind(attune_instance *instance, const workload *w, uint64_t seed, attention *a, failure *why)
{
    memset(a, 0, sizeof *a);
    if (bind(instance, w, seed, a, why))
        return true;
    workload_release(a);
    return false;
}

bool workload_bind_types(attune_instance *instance, const workload *w, attention *a, failure *why)
{
    workload few = *w;
    few.batch = few.kv_batch = 1;
    shrink_lengths(&few, w, 1, 16);
    for (uint32_t i = 0; i < few.capture_count; ++i)
        for (uint32_t d = 0; few.captures[i].generator[0] && d < few.captures[i].values.rank; ++d) {
            few.captures[i].values.size[d] = 1;
            few.captures[i].extent[d] = WORKLOAD_NUMBER;
        }
    return workload_bind(instance, &few, 1, a, why);
}

static bool make_input(array *a, const char *tag, attune_dtype dtype, const int64_t size[4], uint64_t seed,
                       failure *why)
{
    if (!array_create(a, dtype, 4, size, why))
        return false;
    random_state r = stream(seed, tag);
    array_fill_normal(a, &r, 1);
    return true;
}

bool workload_instantiate(attune_instance *instance, const workload *w, uint64_t seed, attention *a, failure *why)
{
    if (!workload_bind(instance, w, seed, a, why))
        return false;
    const attune_dtype dtype = w->dtype ? w->dtype : ATTUNE_F32, kv_dtype = w->kv_dtype ? w->kv_dtype : dtype;
    a->o_dtype = w->o_dtype;
    int64_t batch = w->batch > 0 ? w->batch : 1, heads = w->heads > 0 ? w->heads : 1;
    int64_t kv_batch = w->kv_batch > 0 ? w->kv_batch : batch, kv_heads = w->kv_heads > 0 ? w->kv_heads : heads;
    int64_t dim = w->head_dim, dim_v = w->head_dim_v ? w->head_dim_v : w->head_dim;
    if (make_input(&a->q, "q", dtype, (int64_t[]){batch, heads, w->q_len, dim}, seed, why) &&
        make_input(&a->k, "k", kv_dtype, (int64_t[]){kv_batch, kv_heads, w->kv_len, dim}, seed, why) &&
        make_input(&a->v, "v", kv_dtype, (int64_t[]){kv_batch, kv_heads, w->kv_len, dim_v}, seed, why))
        return true;
    workload_release(a);
    return false;
}

/* SPDX-License-Identifier: MIT */
/* The table, random cases, and the inputs of both. */
#include "cases/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAUSAL   "q >= kv"
#define DOCUMENT "doc[q] == doc[kv]"
#define SOFTCAP  "20 * tanh(score / 20)"

const attention_case attention_cases[] = {
#define ROW(name, ...) {#name, __VA_ARGS__},
#include "cases/table.h"
#undef ROW
};

/* ----------------------------------------------------------------------------------------------------- random cases */

static int64_t between(random_state *r, int64_t low, int64_t high)
{
    return low + (int64_t)(random_u64(r) % (uint64_t)(high - low + 1));
}

/* Lengths where kernels go wrong: 1, primes, a tile and one to either side. */
static int64_t random_length(random_state *r, int64_t longest)
{
    static const int64_t edges[] = {1,   2,   3,   7,   15,  16,  17,  31,  32,  33,  63,  64,  65,  97,
                                    113, 127, 128, 129, 191, 192, 193, 251, 255, 256, 257, 320, 383, 385};
    int64_t length =
        random_uniform(r) < 0.5 ? edges[random_u64(r) % (sizeof edges / sizeof edges[0])] : between(r, 1, longest);
    return length > longest ? longest : length;
}

attention_case attention_case_random(uint64_t seed, case_storage *storage)
{
    static const char *const masks[] = {
        "",
        CAUSAL,
        "q >= kv && q - kv < %d",
        "kv < %d || q >= kv",
        DOCUMENT,
        DOCUMENT " && " CAUSAL,
        "abs(q - kv) <= %d",
        "kv < used[b]",
        "docs[b, q] == docs[b, kv] && q >= kv",
        "(q + kv) %% %d != 0",
        "q %% %d != 1",
        "kv >= %d",
        "h %% 2 == 0 || q >= kv",
        "!(" DOCUMENT ") || kv < %d",
        "q / %d == kv / %d",
        "q * %d >= kv * 3",
        "h_kv == b || kv %% %d < 2",
    };
    static const char *const scores[] = {
        "",
        "",
        "",
        SOFTCAP,
        "score + slope[h] * (kv - q)",
        "score + bias[q - kv + %d, h]",
        "score * heat",
        "select(kv < %d, score, score - 1.5)",
        "score + half_bias[kv]",
        "min(score, 0.75)",
        "score - 0.01 * abs(q - kv)",
    };
    static const uint32_t heads[][2] = {{1, 1}, {2, 2}, {2, 1}, {3, 1}, {4, 2}, {6, 2}, {8, 2}, {5, 5}};
    static const uint32_t blocks[] = {0, 0, 0, 16, 32, 64, 48, 128, 256};
    random_state r = {seed};
    random_u64(&r);
    attention_case c = {.name = storage->name, .batch = between(&r, 1, 3)};
    const uint32_t *pair = heads[random_u64(&r) % (sizeof heads / sizeof heads[0])];
    c.heads = pair[0];
    c.kv_heads = pair[1];
    c.kv_batch = random_uniform(&r) < 0.2 ? 1 : c.batch;
    bool decode = random_uniform(&r) < 0.2;
    c.q_len = decode ? between(&r, 1, 8) : random_length(&r, 300);
    c.kv_len = random_length(&r, decode ? 900 : 400);
    c.head_dim = 8 * (uint32_t)between(&r, 1, random_uniform(&r) < 0.8 ? 16 : 32);
    c.head_dim_v = random_uniform(&r) < 0.7 ? 0 : 8 * (uint32_t)between(&r, 1, 32);
    int number = (int)between(&r, 2, 90);
    /* A template has one number or two; what it does not use is ignored. */
    snprintf(storage->partial, sizeof storage->partial, masks[random_u64(&r) % (sizeof masks / sizeof masks[0])],
             number, number);
    snprintf(storage->mask, sizeof storage->mask, "%s", storage->partial);
    snprintf(storage->score, sizeof storage->score, scores[random_u64(&r) % (sizeof scores / sizeof scores[0])],
             number);
    c.mask = storage->mask[0] ? storage->mask : NULL;
    c.score = storage->score[0] ? storage->score : NULL;
    if (random_uniform(&r) < 0.15)
        c.input = (case_input)between(&r, INPUT_CONSTANT, INPUT_NAN_HIDDEN);
    if (random_uniform(&r) < 0.3)
        c.layout = (case_layout)between(&r, LAYOUT_CONTIGUOUS, LAYOUT_SHARED_V);
    /* Hidden keys differ by batch. */
    if (c.layout >= LAYOUT_SHARED_K && c.input != INPUT_RANDOM && c.input != INPUT_LARGE)
        c.layout = LAYOUT_CONTIGUOUS;
    if (c.layout == LAYOUT_PACKED &&
        (c.kv_heads != c.heads || c.kv_batch != c.batch || c.q_len != c.kv_len || c.head_dim_v))
        c.layout = LAYOUT_TOKEN_MAJOR;
    c.q_block = blocks[random_u64(&r) % (sizeof blocks / sizeof blocks[0])];
    c.kv_block = blocks[random_u64(&r) % (sizeof blocks / sizeof blocks[0])];
    c.mask_longer = random_uniform(&r) < 0.2 ? between(&r, 1, 200) : 0;
    if (c.mask && random_uniform(&r) < 0.15) {
        /* Lists of each head, of an expression that may read none. */
        snprintf(storage->mask, sizeof storage->mask, "(%s) && (kv / %u + q / %u * 2 + h + b) %% 3 != 0",
                 storage->partial, c.kv_block ? c.kv_block : 128, c.q_block ? c.q_block : 128);
        c.partial = storage->partial;
    }
    if (random_uniform(&r) < 0.3) {
        c.kv_dtype = (attune_dtype)between(&r, 0, ATTUNE_BF16);
        c.o_dtype = (attune_dtype)between(&r, 0, ATTUNE_BF16);
    }
    c.plan_more = random_uniform(&r) < 0.3 ? between(&r, 1, 100) : 0;
    c.sinks = random_uniform(&r) < 0.2;
    snprintf(storage->name, sizeof storage->name, "random %#llx", (unsigned long long)seed);
    return c;
}

attention_case attention_case_nonfinite(uint64_t seed, case_storage *storage)
{
    static const char *const masks[] = {
        "",
        "",
        "",
        CAUSAL,
        "q >= kv && q - kv < 20",
        "kv % 3 != 0",
        "half_bias[kv] < slope[h]",
        "!(half_bias[kv] <= brain_bias[q])",
        "!(brain_bias[q] > half_bias[kv]) && " CAUSAL,
        "brain_bias[q] == brain_bias[q]",
        "half_bias[kv] != half_bias[kv] || " CAUSAL,
        "1.5 > clamp(bias[kv, h], half_bias[q], min(floor(2.046875), max(brain_bias[q], 0.75)))",
        "max(half_bias[kv], 0.25) > min(brain_bias[q], 0.5)",
        "half_bias[kv] > 0.0 ? brain_bias[q] < 1.0 : " CAUSAL,
        "half_bias[kv] * 0.0 == 0.0",
        "bias[kv, h] - bias[kv, h] == 0.0",
        "abs(gate[h]) >= brain_bias[kv]",
        "floor(half_bias[kv]) >= -1.0 && " CAUSAL,
        "(q < 9 || half_bias[kv] < 0.5) == (abs(bias[q, h] - 1.0) >= -6.5)",
    };
    static const char *const scores[] = {
        "",
        "",
        "",
        "",
        SOFTCAP,
        "score * heat",
        "score + half_bias[kv]",
        "score - half_bias[kv] * slope[h]",
        "score + bias[q - kv + 30, h]",
        "max(score, half_bias[kv])",
        "min(brain_bias[q], score)",
        "clamp(score, -2.0, bias[kv, h])",
        "score * 0.0",
        "score * half_bias[kv]",
        "score - score",
        "select(half_bias[kv] > brain_bias[q], score, 0.5)",
        ("select(!(q == h), score * 0.28125 - 2.1484375, 1.359375 + select(q >= 1 || (q <= kv && false), score, score))"
         " / 0.140625"),
        "sigmoid(score) * 3",
        "exp2(score * 0.25)",
        "sqrt(score)",
        "log(abs(score))",
        "log(half_bias[kv]) + score",
        "abs(score) / 2",
        "sin(score)",
        "pow(score, 3)",
        "score % 1.5",
        "floor(score)",
        "kv % 3 == 0 ? score : -1.0 / 0.0",
        "q % 2 == 0 ? log(0) : score",
        "score + gate[h]",
        "score <= 0.5 ? score : gate[h]",
    };
    random_state r = {seed};
    const attention_case random = attention_case_random(random_u64(&r), storage);
    attention_case c = {.name = storage->name,
                        .batch = random.batch,
                        .kv_batch = random.kv_batch,
                        .heads = random.heads,
                        .kv_heads = random.kv_heads,
                        .q_block = random.q_block,
                        .kv_block = random.kv_block,
                        .mask_longer = random.mask_longer,
                        .plan_more = random.plan_more};
    const bool decode = random_uniform(&r) < 0.25;
    c.q_len = decode ? between(&r, 1, 4) : random_length(&r, 80);
    c.kv_len = random_length(&r, decode ? 300 : 150);
    c.head_dim = 8 * (uint32_t)between(&r, 1, random_uniform(&r) < 0.8 ? 8 : 16);
    c.head_dim_v = random_uniform(&r) < 0.7 ? 0 : 8 * (uint32_t)between(&r, 1, 12);
    /* The means of 24 elements, the kernel's and the plain computation's, scatter by a sixth each: the rule's tenth
     * asks for a thousand. */
    const int64_t columns = c.head_dim_v ? c.head_dim_v : c.head_dim;
    for (; c.batch * c.heads * c.q_len * columns < 1000; c.heads *= 2)
        c.kv_heads *= 2;
    c.layout = random_uniform(&r) < 0.2 ? LAYOUT_PADDED : LAYOUT_CONTIGUOUS;
    c.input = INPUT_NONFINITE;
    c.segments = random_uniform(&r) < 0.25 ? (uint32_t)between(&r, 1, 5) : 0;
    snprintf(storage->mask, sizeof storage->mask, "%s", masks[random_u64(&r) % (sizeof masks / sizeof masks[0])]);
    snprintf(storage->score, sizeof storage->score, "%s", scores[random_u64(&r) % (sizeof scores / sizeof scores[0])]);
    c.mask = storage->mask[0] ? storage->mask : NULL;
    c.score = storage->score[0] ? storage->score : NULL;
    snprintf(storage->name, sizeof storage->name, "non-finite %#llx", (unsigned long long)seed);
    return c;
}

/* ----------------------------------------------------------------------------------------------------------- inputs */

/* The captures that the table's expressions name, in the shapes that a case gives them. */
typedef struct capture_kind {
    const char *name;
    attune_dtype dtype;
    uint32_t rank;
} capture_kind;

static const capture_kind capture_kinds[] = {
    {"doc", ATTUNE_I32, 1},     {"docs", ATTUNE_I64, 2},      {"used", ATTUNE_I32, 1},
    {"slope", ATTUNE_F32, 1},   {"bias", ATTUNE_F32, 2},      {"keep", ATTUNE_BOOL, 2},
    {"anchors", ATTUNE_I32, 2}, {"half_bias", ATTUNE_F16, 1}, {"brain_bias", ATTUNE_BF16, 1},
    {"piece", ATTUNE_I32, 1},   {"gate", ATTUNE_F32, 1},      {"holes", ATTUNE_F32, 1},
    {"pair", ATTUNE_F32, 2},    {"half_pair", ATTUNE_F16, 2}, {"narrow_pair", ATTUNE_F32, 2},
};
#define CAPTURE_KINDS (sizeof capture_kinds / sizeof capture_kinds[0])

static void capture_shape(const char *name, const attention_case *c, int64_t longest, int64_t size[2])
{
    size[0] = longest;
    size[1] = 1;
    if (!strcmp(name, "docs")) {
        size[0] = c->batch;
        size[1] = longest;
    } else if (!strcmp(name, "used")) {
        size[0] = c->batch;
    } else if (!strcmp(name, "slope") || !strcmp(name, "gate")) {
        size[0] = c->heads;
    } else if (!strcmp(name, "pair") || !strcmp(name, "half_pair")) {
        size[0] = c->q_len;
        size[1] = c->kv_len;
    } else if (!strcmp(name, "narrow_pair")) {
        size[0] = c->q_len;
        size[1] = c->kv_len - 10;
    } else if (!strcmp(name, "bias")) {
        size[0] = c->q_len + c->kv_len;
        size[1] = c->heads;
    } else if (!strcmp(name, "keep") || !strcmp(name, "anchors")) {
        size[0] = c->batch;
        size[1] = (c->q_len + 15) / 16;
    }
}

static void fill_capture(const char *name, const attention_case *c, array *a, random_state *r)
{
    int64_t count = array_count(a), id = 0;
    for (int64_t i = 0; i < count; i++) {
        double value;
        if (!strncmp(name, "doc", 3))
            value = (double)(id += random_uniform(r) < 0.02);
        else if (!strcmp(name, "used"))
            value = (double)between(r, 0, c->kv_len);
        else if (!strcmp(name, "slope"))
            value = exp2(-8.0 * (double)(i + 1) / (double)count);
        else if (!strcmp(name, "piece"))
            value = (double)between(r, 0, 3);
        else if (!strcmp(name, "gate"))
            value = i % 2 ? -INFINITY : random_normal(r);
        else if (!strcmp(name, "holes"))
            value = i % 3 == 2 ? NAN : random_normal(r);
        else if (!strcmp(name, "keep"))
            value = random_uniform(r) < 0.7;
        else if (!strcmp(name, "anchors"))
            value = (double)between(r, 0, 300);
        else
            value = random_normal(r);
        array_set(a, i, value);
    }
}

static bool make_expr(attune_instance *instance, attune_expr_kind kind, const char *text, attune_expr **expr,
                      failure *why)
{
    attune_symbol symbols[CAPTURE_KINDS + 2];
    for (size_t i = 0; i < CAPTURE_KINDS; i++)
        symbols[i] = (attune_symbol){capture_kinds[i].name, ATTUNE_SYMBOL_CAPTURE, capture_kinds[i].dtype,
                                     capture_kinds[i].rank};
    symbols[CAPTURE_KINDS] = (attune_symbol){"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0};
    symbols[CAPTURE_KINDS + 1] = (attune_symbol){"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0};
    if (attune_expr_create(instance, kind, text, symbols, CAPTURE_KINDS + 2, expr) != ATTUNE_OK)
        return failure_set(why, "%s", attune_last_error());
    return true;
}

bool case_partial(attune_instance *instance, const attention_case *c, attune_expr **expr, failure *why)
{
    return make_expr(instance, ATTUNE_EXPR_MASK, c->partial, expr, why);
}

static bool add_captures(const attention_case *c, const attune_expr *expr, random_state *r, attention *a, failure *why)
{
    for (uint32_t i = 0; i < attune_expr_symbol_count(expr); i++) {
        attune_symbol symbol;
        attune_expr_symbol_get(expr, i, &symbol);
        bool known = symbol.kind != ATTUNE_SYMBOL_CAPTURE;
        for (uint32_t j = 0; j < a->capture_count; j++)
            known |= !strcmp(a->captures[j].name, symbol.name);
        if (known)
            continue;
        const char *name = NULL;
        for (size_t j = 0; j < CAPTURE_KINDS; j++)
            if (!strcmp(capture_kinds[j].name, symbol.name))
                name = capture_kinds[j].name;
        int64_t longest = (c->q_len > c->kv_len ? c->q_len : c->kv_len) + c->mask_longer, size[2];
        capture_shape(name, c, longest, size);
        array made;
        if (!array_create(&made, symbol.dtype, symbol.rank, size, why))
            return false;
        fill_capture(name, c, &made, r);
        a->captures[a->capture_count++] = (attune_host_capture){name, array_view(&made)};
    }
    return true;
}

/* Evaluates the mask of a key column over every row: hidden columns are seen by none. */
static bool column_hidden(const attention *a, const attention_case *c, int64_t b, int64_t h_kv, int64_t kv)
{
    int64_t group = c->heads / c->kv_heads;
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
        for (int64_t q = 0; q < c->q_len; q++) {
            attune_point point = {(int32_t)b,    (int32_t)h,        (int32_t)q,         (int32_t)kv,
                                  (int32_t)h_kv, (int32_t)c->q_len, (int32_t)c->kv_len, 0};
            float allowed = 0;
            attune_expr_evaluate(a->mask, &point, a->captures, a->capture_count, a->parameters, a->parameter_count,
                                 &allowed);
            if (allowed != 0)
                return false;
        }
    return true;
}

/* One element in `rarity`, on average. */
static void sprinkle(array *a, uint64_t rarity, random_state *r)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, NAN};
    for (uint64_t i = random_u64(r) % rarity; i < (uint64_t)array_count(a); i += 1 + random_u64(r) % (2 * rarity))
        array_set(a, (int64_t)i, values[random_u64(r) % 4]);
}

static void make_nonfinite(const attention_case *c, attention *a, random_state *r)
{
    const int64_t d = c->head_dim;
    /* Rarely enough that most rows of most tensors have none. */
    if (random_uniform(r) < 0.4)
        sprinkle(&a->q, (uint64_t)d * 20, r);
    if (random_uniform(r) < 0.5)
        sprinkle(&a->k, (uint64_t)(d * (2 + c->kv_len)), r);
    if (random_uniform(r) < 0.4)
        sprinkle(&a->v, (uint64_t)(4 * (2 + c->kv_len)), r); /* a column in four has one */
    for (uint32_t i = 0; i < a->capture_count; i++) {
        const attune_array *made = &a->captures[i].array;
        array view = {.dtype = made->dtype, .rank = made->rank, .data = (void *)(uintptr_t)made->data};
        memcpy(view.size, made->size, sizeof view.size);
        if (made->dtype != ATTUNE_F32 && made->dtype != ATTUNE_F16 && made->dtype != ATTUNE_BF16)
            continue;
        if (random_uniform(r) < 0.7)
            sprinkle(&view, random_uniform(r) < 0.5 ? 4 : 40, r);
    }
    if (random_uniform(r) < 0.3) {
        const int64_t plane = c->q_len * d, first = (int64_t)(random_u64(r) % (uint64_t)(c->batch * c->heads)) * plane;
        /* All keys, or those at one end: what a segment or a split has. */
        const bool whole = random_uniform(r) < 0.5, last = random_uniform(r) < 0.5;
        const int64_t cut = between(r, 0, c->kv_len - 1);
        for (int64_t i = 0; i < c->q_len; i++)
            array_set(&a->q, first + i * d, 1.0);
        for (int64_t row = 0; row < array_count(&a->k) / d; row++)
            if (whole || (row % c->kv_len >= cut) == last)
                array_set(&a->k, row * d, -INFINITY);
    }
}

static void special_inputs(const attention_case *c, attention *a, random_state *r)
{
    int64_t d = c->head_dim, dv = a->v.size[3];
    if (c->input == INPUT_INFINITE)
        for (int64_t row = 0; row < array_count(&a->k) / d; row += 5)
            array_set(&a->k, row * d + between(r, 0, d - 1), random_uniform(r) < 0.9 ? -INFINITY : INFINITY);
    if (c->input == INPUT_NAN_VISIBLE) {
        for (int64_t row = 3; row < array_count(&a->q) / d; row += 17)
            array_set(&a->q, row * d + between(r, 0, d - 1), NAN);
        array_set(&a->v, 0, NAN);
        array_set(&a->v, array_count(&a->v) - 1, NAN);
    }
    if (c->input == INPUT_NONFINITE)
        make_nonfinite(c, a, r);
    if (c->input == INPUT_INFINITE_V)
        for (int64_t row = 0; row < array_count(&a->v) / dv; row += 3)
            array_set(&a->v, row * dv + between(r, 0, dv - 1), random_uniform(r) < 0.5 ? -INFINITY : INFINITY);
    if (c->input == INPUT_MIXED) {
        for (int64_t row = 0; row < array_count(&a->q) / d; row++)
            array_set(&a->q, row * d, 1);
        for (int64_t row = 0; row < array_count(&a->k) / d; row++)
            if (row % c->kv_len % 7 == 2 || row % c->kv_len % 7 == 4)
                array_set(&a->k, row * d, row % c->kv_len % 7 == 2 ? INFINITY : NAN);
    }
    if (c->input != INPUT_NAN_HIDDEN || !a->mask || c->kv_batch != c->batch)
        return;
    static const double poison[] = {NAN, INFINITY, -INFINITY};
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t kv = 0; kv < c->kv_len; kv++) {
                if (!column_hidden(a, c, b, h, kv))
                    continue;
                int64_t row = (b * c->kv_heads + h) * c->kv_len + kv;
                array_set(&a->k, row * d + between(r, 0, d - 1), poison[random_u64(r) % 3]);
                array_set(&a->v, row * dv + between(r, 0, dv - 1), poison[random_u64(r) % 3]);
            }
}

/* Every batch of a tensor becomes the first. */
static void share_batch(array *a)
{
    const int64_t count = array_count(a) / a->size[0];
    for (int64_t i = count; i < array_count(a); i++)
        array_set(a, i, array_get(a, i % count));
}

/* Sinks of any weight beside the scores; of some heads none, or with NaN in the inputs what makes their rows NaN. */
static bool make_sinks(const attention_case *c, attune_dtype dtype, random_state *r, attention *a, failure *why)
{
    if (!array_create(&a->sinks, dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32, 1, &c->heads, why))
        return false;
    for (int64_t h = 0; h < c->heads; h++)
        array_set(&a->sinks, h, h % 5 == 4 ? -INFINITY : 1 + 3 * random_normal(r));
    for (int64_t h = 2; c->input == INPUT_NAN_VISIBLE && h < c->heads; h++)
        if (h % 5 == 2 || h % 5 == 3)
            array_set(&a->sinks, h, h % 5 == 2 ? INFINITY : NAN);
    return true;
}

bool case_instantiate(attune_instance *instance, const attention_case *c, attune_dtype dtype, uint64_t seed,
                      attention *a, failure *why)
{
    *a = (attention){.scale = 1 / sqrt((double)c->head_dim)};
    random_state r = {seed};
    const int64_t dv = c->head_dim_v ? c->head_dim_v : c->head_dim;
    const int64_t q_size[4] = {c->batch, c->heads, c->q_len, c->head_dim};
    const int64_t k_size[4] = {c->kv_batch, c->kv_heads, c->kv_len, c->head_dim};
    const int64_t v_size[4] = {c->kv_batch, c->kv_heads, c->kv_len, dv};
    const bool mixes = dtype != ATTUNE_F64;
    const attune_dtype kv_dtype = mixes && c->kv_dtype ? c->kv_dtype : dtype;
    a->o_dtype = mixes && c->o_dtype ? c->o_dtype : dtype;
    bool ok = array_create(&a->q, dtype, 4, q_size, why) && array_create(&a->k, kv_dtype, 4, k_size, why) &&
              array_create(&a->v, kv_dtype, 4, v_size, why);
    if (ok) {
        array_fill_normal(&a->q, &r, c->input == INPUT_LARGE ? 20 : 1);
        array_fill_normal(&a->k, &r, c->input == INPUT_LARGE ? 20 : 1);
        array_fill_normal(&a->v, &r, 1);
        if (c->layout == LAYOUT_SHARED_K || c->layout == LAYOUT_SHARED_V)
            share_batch(c->layout == LAYOUT_SHARED_K ? &a->k : &a->v);
        if (c->input == INPUT_CONSTANT) {
            for (int64_t i = 0; i < array_count(&a->q); i++)
                array_set(&a->q, i, 0.5);
            for (int64_t i = 0; i < array_count(&a->k); i++)
                array_set(&a->k, i, 0.25);
        }
    }
    ok = ok && (!c->mask || make_expr(instance, ATTUNE_EXPR_MASK, c->mask, &a->mask, why)) &&
         (!c->score || make_expr(instance, ATTUNE_EXPR_SCORE, c->score, &a->score, why)) &&
         (!a->mask || add_captures(c, a->mask, &r, a, why)) && (!a->score || add_captures(c, a->score, &r, a, why));
    a->parameters[0] = (attune_parameter){"width", (double)(c->q_len / 3)};
    a->parameters[1] = (attune_parameter){"heat", 0.75};
    a->parameter_count = 2;
    ok = ok && (!c->sinks || make_sinks(c, dtype, &r, a, why));
    if (!ok) {
        case_release(a);
        return false;
    }
    special_inputs(c, a, &r);
    return true;
}

void case_release(attention *a)
{
    array_free(&a->q);
    array_free(&a->k);
    array_free(&a->v);
    array_free(&a->sinks);
    for (uint32_t i = 0; i < a->capture_count; i++) {
        array owner = {.data = (void *)(uintptr_t)a->captures[i].array.data};
        array_free(&owner);
    }
    attune_expr_destroy(a->mask);
    attune_expr_destroy(a->score);
    *a = (attention){0};
}

/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache: ragged batches against the oracle, a sequence at a time, from pools that hold NaN wherever no key
 * is, and once more with every page elsewhere, which must give the same bits.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/quantised.h"
#include "cuda/layout_sm80.h"
#include "support/devices.h"
#include "tests/oracle/reference.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

enum {
    LIST = 1, /* the block table is one list, with pages_start */
    SINKS = 2,
    TREE = 4,         /* every row sees some of its sequence's drafts */
    UNIFORM = 8,      /* q has the rows of each sequence in a dimension of its own */
    FIRST = 16,       /* the first keys of sequences are gone */
    COUNT = 32,       /* the last sequence is not of this call */
    VIEW = 64,        /* v is the first columns of k */
    HOLES = 128,      /* some entries of the block table are unmapped */
    SHARED = 256,     /* sequences have the first's first pages */
    BESIDE = 512,     /* k and v are in one buffer, page by page */
    TOKENS = 1024,    /* [pages, page, heads, head_dim] */
    SPLIT = 2048,     /* parts of 256 keys */
    PREFIX = 4096,    /* the call says which keys are shared */
    INFINITE = 8192,  /* of e5m2: an element of the first V and of the last K of each head */
    NAN_BITS = 16384, /* an element of each sequence's first q is NaN by its lowest bit alone */
};

typedef struct serving_case {
    const char *name;
    int64_t heads, kv_heads, d, dv, page;
    const char *mask, *score;
    unsigned flags;
    const int64_t (*lengths)[2]; /* rows and keys; 0 rows and 0 keys at the end */
    const char *options;
    attune_dtype kv_dtype, v_dtype; /* 0 = that of q, of k */
    int scales;                     /* of k and v: 0 none, 1 of the tensor, 2 of heads, 3 of keys and heads */
} serving_case;

#define SEQUENCES_MAX 24
#define CANARY        (-77.0)

/* Prompts, chunks of prompts and single queries; no key, no row, more rows than keys. */
static const int64_t mix[][2] = {{1, 130}, {70, 70}, {33, 301}, {1, 1},   {0, 40},
                                 {5, 0},   {9, 4},   {1, 257},  {17, 90}, {-1}};
static const int64_t decode[][2] = {{1, 700}, {1, 33}, {1, 64}, {1, 129}, {1, 5}, {-1}};
static const int64_t drafts[][2] = {{7, 200}, {40, 140}, {1, 65}, {7, 7}, {-1}};
static const int64_t even[][2] = {{3, 100}, {3, 3}, {3, 77}, {3, 0}, {3, 128}, {-1}};

/* Several splits; the first has the most keys. */
static const int64_t longer[][2] = {{1, 1500}, {5, 700}, {70, 900}, {1, 300}, {1, 40},
                                    {0, 600},  {3, 513}, {1, 1024}, {1, 257}, {-1}};

#define CAUSAL "q >= kv"

static const serving_case cases[] = {
    {"pages_16", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"pages_1", 4, 4, 64, 64, 1, CAUSAL, NULL, LIST, mix, NULL, 0, 0, 0},
    {"pages_5", 6, 2, 40, 72, 5, CAUSAL, "score + slope[h] * (kv - q)", TOKENS, mix, NULL, 0, 0, 0},
    {"pages_256", 2, 1, 128, 128, 256, CAUSAL, "20 * tanh(score / 20)", BESIDE, mix, NULL, 0, 0, 0},
    {"one_page", 4, 2, 64, 64, 0, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"no_mask", 3, 1, 32, 32, 32, NULL, NULL, TOKENS, mix, NULL, 0, 0, 0},
    {"window", 4, 2, 64, 64, 16, "q >= kv && q - kv < 40", NULL, FIRST | LIST, mix, NULL, 0, 0, 0},
    {"lengths", 2, 2, 64, 64, 8, "kv < kv_len / 2 || kv_len - q_len == kv",
     "score * 0.5 + q_len * 0.01 * (kv - kv_len)", 0, mix, NULL, 0, 0, 0},
    {"rows", 2, 2, 64, 64, 8, "depth[row] >= kv % 7", "score + depth[row] * slope[h]", 0, mix, NULL, 0, 0, 0},
    {"by_sequence", 2, 2, 64, 64, 8, "kv % (b + 2) != 1", "score + slope[h] * b", 0, mix, NULL, 0, 0, 0},
    {"group_5", 10, 2, 80, 80, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"group_6", 6, 1, 96, 96, 16, CAUSAL, NULL, SINKS, decode, NULL, 0, 0, 0},
    {"group_7", 28, 4, 112, 112, 7, CAUSAL, NULL, LIST, decode, NULL, 0, 0, 0},
    {"group_16", 16, 1, 64, 64, 16, NULL, NULL, SHARED, decode, NULL, 0, 0, 0},
    {"group_64", 64, 1, 72, 72, 16, CAUSAL, NULL, SINKS, decode, NULL, 0, 0, 0},
    {"group_3", 6, 2, 64, 64, 64, "kv + 100 > q", NULL, FIRST | SINKS, decode, NULL, 0, 0, 0},
    {"sinks", 4, 2, 64, 64, 16, "q >= kv && q - kv < 30", NULL, SINKS | FIRST, mix, NULL, 0, 0, 0},
    {"head_192_128", 4, 1, 192, 128, 16, CAUSAL, NULL, 0, mix, NULL, 0, 0, 0},
    {"head_320_256", 4, 2, 320, 256, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"head_512", 2, 1, 512, 512, 16, CAUSAL, NULL, 0, decode, NULL, 0, 0, 0},
    {"absorbed", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, decode, NULL, 0, 0, 0},
    {"absorbed_mix", 4, 1, 576, 512, 16, CAUSAL, NULL, VIEW | LIST, drafts, NULL, 0, 0, 0},
    {"tree", 4, 2, 64, 64, 16, NULL, NULL, TREE, drafts, NULL, 0, 0, 0},
    {"tree_window", 4, 2, 64, 64, 16, "q - kv < 60", NULL, TREE | SINKS | FIRST, drafts, NULL, 0, 0, 0},
    {"tree_uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, TREE | UNIFORM, even, NULL, 0, 0, 0},
    {"uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, UNIFORM, even, NULL, 0, 0, 0},
    {"uniform_one_page", 4, 1, 64, 64, 0, "q >= kv && row % 4 != kv % 4", NULL, UNIFORM, even, NULL, 0, 0, 0},
    {"count", 4, 2, 64, 64, 16, CAUSAL, NULL, COUNT, mix, NULL, 0, 0, 0},
    {"holes", 4, 2, 64, 64, 4, CAUSAL, NULL, HOLES, mix, NULL, 0, 0, 0},
    {"holes_no_mask", 4, 2, 64, 64, 4, NULL, NULL, HOLES | LIST, mix, NULL, 0, 0, 0},
    {"shared", 4, 2, 64, 64, 16, CAUSAL, NULL, SHARED | LIST, mix, NULL, 0, 0, 0},
    {"small_tile", 4, 2, 64, 64, 8, CAUSAL, NULL, 0, mix, "{\"BLOCK_M\": 16, \"BLOCK_N\": 16}", 0, 0, 0},
    {"f16_keys", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_F16, 0, 0},
    {"e4m3", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_F8E4M3, 0, 1},
    {"e5m2", 8, 1, 128, 128, 16, CAUSAL, NULL, LIST | SINKS, decode, NULL, ATTUNE_F8E5M2, 0, 2},
    {"e4m3_e5m2", 4, 4, 40, 24, 7, "q >= kv && q - kv < 40", NULL, FIRST, mix, NULL, ATTUNE_F8E4M3, ATTUNE_F8E5M2, 3},
    {"i8", 4, 2, 64, 64, 16, CAUSAL, "20 * tanh(score / 20)", TOKENS, mix, NULL, ATTUNE_I8, 0, 3},
    {"i8_f16", 6, 2, 96, 96, 1, CAUSAL, NULL, 0, decode, NULL, ATTUNE_I8, ATTUNE_F16, 2},
    {"q8_0", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_Q8_0, 0, 0},
    {"q8_0_one_page", 8, 2, 128, 128, 0, CAUSAL, NULL, SINKS, decode, NULL, ATTUNE_Q8_0, 0, 0},
    {"q8_0_q4_0", 4, 2, 128, 64, 16, CAUSAL, NULL, TOKENS | HOLES, mix, NULL, ATTUNE_Q8_0, ATTUNE_Q4_0, 0},
    {"q4_0", 8, 2, 64, 64, 16, "q >= kv && q - kv < 50", NULL, LIST, mix, NULL, ATTUNE_Q4_0, 0, 0},
    {"q4_0_f32", 2, 2, 32, 40, 5, NULL, NULL, 0, drafts, NULL, ATTUNE_Q4_0, ATTUNE_F32, 0},
    {"absorbed_e4m3", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, decode, NULL, ATTUNE_F8E4M3, 0, 3},
    {"bf16_keys", 8, 1, 128, 128, 16, CAUSAL, NULL, 0, decode, NULL, ATTUNE_BF16, 0, 0},
    {"split", 4, 2, 64, 64, 16, CAUSAL, NULL, SPLIT, longer, NULL, 0, 0, 0},
    {"split_window", 4, 2, 64, 64, 16, "q >= kv && q - kv < 300", NULL, SPLIT | FIRST | SINKS | LIST, longer, NULL, 0,
     0, 0},
    {"split_alibi", 8, 2, 40, 24, 5, CAUSAL, "score + slope[h] * (kv - q)", SPLIT | HOLES, longer,
     "{\"BLOCK_M\": 16, \"BLOCK_N\": 16}", 0, 0, 0},
    {"split_q8_0", 4, 1, 64, 64, 16, NULL, NULL, SPLIT | COUNT, longer, NULL, ATTUNE_Q8_0, 0, 0},
    {"prefix", 4, 2, 64, 64, 256, CAUSAL, NULL, SHARED | PREFIX, longer, NULL, 0, 0, 0},
    {"prefix_split", 8, 2, 64, 64, 256, "q >= kv && q - kv < 600", NULL, SHARED | PREFIX | SPLIT | SINKS, longer, NULL,
     0, 0, 0},
    {"prefix_e5m2", 6, 2, 64, 40, 256, CAUSAL, NULL, SHARED | PREFIX | LIST, decode, NULL, ATTUNE_F8E5M2, 0, 1},
    {"rows_before_keys", 2, 1, 32, 32, 8, "q % 3 != 1", "score + q / 2 * 0.25", 0, mix, NULL, 0, 0, 0},
    {"e5m2_infinite", 8, 4, 32, 40, 16, NULL, NULL, INFINITE, even, NULL, ATTUNE_F8E5M2, 0, 0},
    {"q8_0_nan", 8, 4, 32, 32, 16, NULL, NULL, NAN_BITS, mix, NULL, ATTUNE_Q8_0, 0, 0},
};

/* A case with its numbers drawn. */
typedef struct served {
    const serving_case *c;
    attune_dtype dtype, k_dtype, v_dtype;
    int64_t sequences, live, tokens, most_rows, most_keys;
    int64_t q_len[SEQUENCES_MAX], kv_len[SEQUENCES_MAX], first[SEQUENCES_MAX], row0[SEQUENCES_MAX];
    int64_t entry0[SEQUENCES_MAX + 1]; /* of the block table, as one list */
    /* What a cache holds of each sequence, [kv_heads][keys]: rows as bytes, and factors; k and v are their values. */
    unsigned char *k_bytes[SEQUENCES_MAX], *v_bytes[SEQUENCES_MAX];
    float *k_scale[SEQUENCES_MAX], *v_scale[SEQUENCES_MAX];
    array q, k[SEQUENCES_MAX], v[SEQUENCES_MAX], sinks, slope, depth, tree;
    bool *hole; /* of each entry */
    int64_t words;
} served;

static bool live(const served *s, int64_t b)
{
    return b < s->live && s->q_len[b] > 0;
}

static int64_t pages_of(const served *s, int64_t b)
{
    return s->c->page ? (s->kv_len[b] + s->c->page - 1) / s->c->page : 1;
}

/* A code of a small finite value. */
static unsigned char draw_byte(attune_dtype dtype, random_state *r)
{
    if (dtype == ATTUNE_I8)
        return (unsigned char)(int8_t)((int)(random_u64(r) % 255) - 127);
    /* From 2^-5 to 4, and some subnormals. */
    const unsigned bias = dtype == ATTUNE_F8E4M3 ? 7 : 15, bits = dtype == ATTUNE_F8E4M3 ? 3 : 2;
    const unsigned exponent = random_u64(r) % 16 ? bias - 5 + (unsigned)(random_u64(r) % 6) : 0;
    return (unsigned char)((random_u64(r) & 1) << 7 | exponent << bits | (random_u64(r) & ((1u << bits) - 1)));
}

static void draw_blocks(attune_dtype dtype, random_state *r, array *values, int64_t first, int64_t columns,
                        unsigned char *bytes)
{
    uint16_t half;
    array d = {.dtype = ATTUNE_F16, .rank = 1, .size = {1}, .data = &half};
    for (int64_t i = 0; i < columns; i += 32, bytes += attune_dtype_size(dtype)) {
        array_set(&d, 0,
                  (dtype == ATTUNE_Q8_0 ? 0.02 : 0.3) * (0.5 + random_uniform(r)) * (random_u64(r) & 1 ? 1 : -1));
        memcpy(bytes, &half, 2);
        for (size_t j = 2; j < attune_dtype_size(dtype); j++)
            bytes[j] = (unsigned char)random_u64(r);
        for (int j = 0; j < 32; j++) {
            const int code =
                dtype == ATTUNE_Q8_0 ? (int8_t)bytes[2 + j] : (j < 16 ? bytes[2 + j] & 15 : bytes[2 + j - 16] >> 4) - 8;
            array_set(values, first + i + j, array_get(&d, 0) * code);
        }
    }
}

/* Rows of K or V of a sequence: what the cache holds, and its values. Those of a quantised type are f32. */
static void draw_keys(const served *s, attune_dtype dtype, int64_t b, int64_t columns, random_state *r, array *values,
                      unsigned char **bytes, float **scale)
{
    failure why;
    const int64_t keys = s->kv_len[b] ? s->kv_len[b] : 1, heads = s->c->kv_heads;
    const bool codes = has_factors(dtype), blocks = in_blocks(dtype);
    cr_assert(
        array_create(values, codes || blocks ? ATTUNE_F32 : dtype, 4, (int64_t[]){1, heads, keys, columns}, &why));
    *bytes = malloc((size_t)(heads * keys) * row_bytes(dtype, columns));
    *scale = malloc((size_t)(heads * keys) * sizeof **scale);
    cr_assert(*bytes && *scale);
    array_fill_normal(values, r, 1);
    for (int64_t row = 0; row < heads * keys; row++) {
        const int64_t head = row / keys;
        unsigned char *to = *bytes + (size_t)row * row_bytes(dtype, columns);
        const float unit = dtype == ATTUNE_I8 ? 0.01f : 1;
        float *factor = *scale + row;
        *factor = s->c->scales == 1   ? 0.75f * unit
                  : s->c->scales == 2 ? unit * (float)(head + 1) * 0.625f
                  : s->c->scales == 3 ? unit * (float)(0.5 + random_uniform(r))
                                      : 1;
        if (blocks)
            draw_blocks(dtype, r, values, row * columns, columns, to);
        else if (!codes)
            memcpy(to, (char *)values->data + (size_t)row * row_bytes(dtype, columns), row_bytes(dtype, columns));
        for (int64_t i = 0; codes && i < columns; i++) {
            to[i] = draw_byte(dtype, r);
            array_set(values, row * columns + i, decode_byte(dtype, to[i]) * (double)*factor);
        }
    }
}

/* The keys of the first page become the first sequence's. */
static void share(served *s, int64_t b)
{
    const serving_case *c = s->c;
    array *of[2] = {s->k, s->v};
    for (int which = 0; which < 2; which++)
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t kv = 0; kv < c->page && kv < s->kv_len[0] && kv < s->kv_len[b]; kv++) {
                const array *values = &of[which][b];
                const size_t bytes = row_bytes(which ? s->v_dtype : s->k_dtype, values->size[3]),
                             size = (size_t)values->size[3] * attune_dtype_size(values->dtype),
                             to = (size_t)(h * s->kv_len[b] + kv), from = (size_t)(h * s->kv_len[0] + kv);
                unsigned char **codes = which ? s->v_bytes : s->k_bytes;
                memcpy((char *)values->data + to * size, (char *)of[which][0].data + from * size, size);
                memcpy(codes[b] + to * bytes, codes[0] + from * bytes, bytes);
            }
}

static void add_infinities(served *s, int64_t b)
{
    for (int64_t h = 0; h < s->c->kv_heads && s->kv_len[b]; h++) {
        const int64_t k = ((h + 1) * s->kv_len[b] - 1) * s->c->d, v = h * s->kv_len[b] * s->c->dv;
        s->k_bytes[b][k] = s->v_bytes[b][v] = 0x7c;
        array_set(&s->k[b], k, INFINITY);
        array_set(&s->v[b], v, INFINITY);
    }
}

static void draw(const serving_case *c, attune_dtype dtype, uint64_t seed, served *s)
{
    failure why;
    random_state r = {seed};
    *s = (served){.c = c, .dtype = dtype, .k_dtype = c->kv_dtype ? c->kv_dtype : dtype};
    s->v_dtype = c->v_dtype ? c->v_dtype : s->k_dtype;
    s->words = 2;
    for (; c->lengths[s->sequences][0] >= 0; s->sequences++) {
        const int64_t b = s->sequences;
        s->q_len[b] = c->lengths[b][0];
        s->kv_len[b] = c->lengths[b][1];
        s->first[b] = c->flags & FIRST ? s->kv_len[b] / 3 : 0;
        s->row0[b] = s->tokens;
        s->tokens += s->q_len[b];
        s->most_rows = s->q_len[b] > s->most_rows ? s->q_len[b] : s->most_rows;
        s->most_keys = s->kv_len[b] > s->most_keys ? s->kv_len[b] : s->most_keys;
        s->entry0[b + 1] = s->entry0[b] + pages_of(s, b);
        draw_keys(s, s->k_dtype, b, c->d, &r, &s->k[b], &s->k_bytes[b], &s->k_scale[b]);
        draw_keys(s, s->v_dtype, b, c->dv, &r, &s->v[b], &s->v_bytes[b], &s->v_scale[b]);
        for (int64_t row = 0; c->flags & VIEW && row < c->kv_heads * s->k[b].size[2]; row++)
            for (int64_t i = 0; i < c->dv; i++)
                array_set(&s->v[b], row * c->dv + i, array_get(&s->k[b], row * c->d + i));
        if (c->flags & INFINITE)
            add_infinities(s, b);
        if (c->flags & SHARED && b)
            share(s, b);
        /* The oracle has one type for both. */
        array *both[2] = {&s->k[b], &s->v[b]};
        for (int i = 0; s->k_dtype != s->v_dtype && i < 2; i++) {
            array wide;
            cr_assert(array_convert(both[i], ATTUNE_F32, &wide, &why));
            array_free(both[i]);
            *both[i] = wide;
        }
    }
    s->live = c->flags & COUNT ? s->sequences - 1 : s->sequences;
    s->hole = calloc((size_t)s->entry0[s->sequences] + 1, sizeof *s->hole);
    cr_assert(s->hole);
    for (int64_t i = 0; c->flags & HOLES && i < s->entry0[s->sequences]; i++)
        s->hole[i] = random_uniform(&r) < 0.2;
    const attune_dtype real = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    cr_assert(array_create(&s->q, dtype, 3, (int64_t[]){s->tokens, c->heads, c->d}, &why) &&
              array_create(&s->sinks, real, 1, &c->heads, &why) &&
              array_create(&s->slope, ATTUNE_F32, 1, &c->heads, &why) &&
              array_create(&s->depth, ATTUNE_I32, 1, &s->tokens, &why) &&
              array_create(&s->tree, ATTUNE_I32, 2, (int64_t[]){s->tokens, s->words}, &why));
    array_fill_normal(&s->q, &r, 1);
    for (int64_t b = 0; c->flags & NAN_BITS && dtype == ATTUNE_F32 && b < s->sequences; b++)
        for (int64_t h = 0; h < c->heads && s->q_len[b]; h++)
            ((uint32_t *)s->q.data)[(s->row0[b] * c->heads + h) * c->d] = 0x7f800001;
    array_fill_normal(&s->sinks, &r, 2);
    array_fill_normal(&s->slope, &r, 0.1);
    for (int64_t i = 0; i < s->tokens; i++)
        array_set(&s->depth, i, (double)(random_u64(&r) % 6));
    for (int64_t i = 0; i < s->tokens * s->words; i++)
        ((int32_t *)s->tree.data)[i] = (int32_t)(uint32_t)random_u64(&r);
}

static void undraw(served *s)
{
    for (int64_t b = 0; b < s->sequences; b++) {
        array_free(&s->k[b]);
        array_free(&s->v[b]);
        free(s->k_bytes[b]);
        free(s->v_bytes[b]);
        free(s->k_scale[b]);
        free(s->v_scale[b]);
    }
    array *all[] = {&s->q, &s->sinks, &s->slope, &s->depth, &s->tree};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(all[i]);
    free(s->hole);
}

static attune_buffer *upload(attune_device *device, const void *data, uint64_t bytes)
{
    attune_buffer *buffer;
    OK(attune_buffer_create(device, bytes, &buffer));
    OK(attune_buffer_write(buffer, 0, data, bytes));
    return buffer;
}

static attune_tensor integers(attune_device *device, const int32_t *data, uint32_t rank, int64_t size0, int64_t size1)
{
    return (attune_tensor){.buffer = upload(device, data, (uint64_t)(size0 * (rank > 1 ? size1 : 1)) * sizeof *data),
                           .dtype = ATTUNE_I32,
                           .rank = rank,
                           .size = {size0, size1}};
}

/* The pool of K and V, with NaN where there is no key, in pages that the seed shuffles. */
typedef struct pool {
    attune_tensor k, v, k_scale, v_scale, pages, pages_start;
    int64_t *place; /* the page of each entry */
} pool;

/* Copies a page's rows from the bytes of a sequence. */
static void fill_page(const served *s, const attune_tensor *t, const unsigned char *bytes, int64_t b, int64_t first,
                      int64_t page, unsigned char *image)
{
    const int64_t element = (int64_t)attune_dtype_size(t->dtype);
    const size_t row_size = row_bytes(t->dtype, t->size[t->rank - 1]);
    for (int64_t h = 0; h < s->c->kv_heads; h++)
        for (int64_t row = 0; row < t->size[2] && first + row < s->kv_len[b]; row++)
            if (first + row >= s->first[b])
                memcpy(image + t->offset + (page * t->stride[0] + h * t->stride[1] + row * t->stride[2]) * element,
                       bytes + (size_t)(h * s->kv_len[b] + first + row) * row_size, row_size);
}

static void lay_out(const served *s, attune_tensor *t, attune_dtype dtype, int64_t pages, int64_t page, int64_t d)
{
    const serving_case *c = s->c;
    const int64_t row = d / attune_dtype_block(dtype), padding = in_blocks(dtype) ? 1 : 8;
    *t = (attune_tensor){.dtype = dtype, .rank = 4, .size = {pages, c->kv_heads, page, d}, .stride = {0, 0, 0, 1}};
    if (c->flags & TOKENS) {
        t->stride[1] = row;
        t->stride[2] = c->kv_heads * row;
        t->stride[0] = page * c->kv_heads * row;
    } else {
        t->stride[2] = row + padding;
        t->stride[1] = page * t->stride[2];
        t->stride[0] = c->kv_heads * t->stride[1] + 2 * padding;
    }
    /* ggml's tensors begin anywhere that is even. */
    t->offset = in_blocks(dtype) ? 32 : 0;
}

/* Factors as the cache wants them, with NaN where there is no key. */
static attune_tensor place_scale(attune_device *device, const served *s, const attune_tensor *of, float *const *scale,
                                 const int64_t *place)
{
    const serving_case *c = s->c;
    attune_tensor t = {.dtype = ATTUNE_F32, .rank = c->scales == 3 ? 3 : 1, .size = {c->scales == 2 ? c->kv_heads : 1}};
    if (!c->scales || !has_factors(of->dtype))
        return (attune_tensor){.buffer = NULL};
    const int64_t page = of->size[2], count = c->scales == 3 ? of->size[0] * c->kv_heads * page : c->kv_heads;
    float *data = malloc((size_t)count * sizeof *data);
    cr_assert(data);
    memset(data, 0xff, (size_t)count * sizeof *data);
    for (int64_t h = 0; c->scales < 3 && h < c->kv_heads; h++)
        data[h] = scale[0][h * s->kv_len[0]];
    if (c->scales == 3) {
        memcpy(t.size, of->size, 3 * sizeof t.size[0]);
        t.stride[0] = c->kv_heads * page;
        t.stride[1] = page;
        t.stride[2] = 1;
    }
    const attune_tensor rows = {.dtype = ATTUNE_F32,
                                .rank = 4,
                                .size = {t.size[0], t.size[1], t.size[2], 1},
                                .stride = {t.stride[0], t.stride[1], t.stride[2], 1}};
    for (int64_t b = 0; c->scales == 3 && b < s->sequences; b++)
        for (int64_t i = 0; i < pages_of(s, b); i++)
            fill_page(s, &rows, (const unsigned char *)scale[b], b, i * page, c->page ? place[s->entry0[b] + i] : b,
                      (unsigned char *)data);
    t.buffer = upload(device, data, (uint64_t)count * sizeof *data);
    free(data);
    return t;
}

static pool place(attune_device *device, const served *s, uint64_t seed)
{
    const serving_case *c = s->c;
    random_state r = {seed};
    const int64_t entries = c->page ? s->entry0[s->sequences] : s->sequences, spare = c->page ? 5 : 0;
    const int64_t pages = entries + spare, page = c->page ? c->page : s->most_keys + (int64_t)(seed % 7);
    pool p = {.place = calloc((size_t)pages, sizeof *p.place)};
    cr_assert(p.place);
    for (int64_t i = 0; i < pages; i++)
        p.place[i] = i;
    for (int64_t i = pages - 1; c->page && i > 0; i--) {
        const int64_t j = (int64_t)(random_u64(&r) % (uint64_t)(i + 1)), kept = p.place[i];
        p.place[i] = p.place[j];
        p.place[j] = kept;
    }
    for (int64_t b = 1; c->flags & SHARED && b < s->sequences; b++)
        if (s->kv_len[b] && s->kv_len[b] <= s->kv_len[0])
            p.place[s->entry0[b]] = p.place[0];
    lay_out(s, &p.k, s->k_dtype, pages, page, c->d);
    lay_out(s, &p.v, s->v_dtype, pages, page, c->dv);
    const size_t bytes = attune_dtype_size(s->k_dtype) > attune_dtype_size(s->v_dtype) ? attune_dtype_size(s->k_dtype)
                                                                                       : attune_dtype_size(s->v_dtype);
    if (c->flags & BESIDE) {
        p.v.offset = (uint64_t)p.k.stride[0] * bytes;
        p.v.stride[0] = p.k.stride[0] = 2 * p.k.stride[0];
    }
    const int64_t widest = p.k.stride[0] > p.v.stride[0] ? p.k.stride[0] : p.v.stride[0];
    const size_t size = (size_t)((pages + 1) * widest) * bytes + 64;
    unsigned char *images[2] = {malloc(size), malloc(size)};
    cr_assert(images[0] && images[1]);
    memset(images[0], 0xff, size);
    memset(images[1], 0xff, size);
    unsigned char *v_image = images[c->flags & BESIDE ? 0 : 1];
    for (int64_t b = 0; b < s->sequences; b++)
        for (int64_t i = 0; i < pages_of(s, b); i++) {
            const int64_t entry = c->page ? s->entry0[b] + i : b;
            if (s->hole[entry])
                continue;
            fill_page(s, &p.k, s->k_bytes[b], b, i * page, p.place[entry], images[0]);
            if (!(c->flags & VIEW))
                fill_page(s, &p.v, s->v_bytes[b], b, i * page, p.place[entry], v_image);
        }
    p.k.buffer = upload(device, images[0], size);
    if (!(c->flags & VIEW))
        p.v.buffer = c->flags & BESIDE ? p.k.buffer : upload(device, images[1], size);
    free(images[0]);
    free(images[1]);
    p.k_scale = place_scale(device, s, &p.k, s->k_scale, p.place);
    if (!(c->flags & VIEW))
        p.v_scale = place_scale(device, s, &p.v, s->v_scale, p.place);
    if (!c->page)
        return p;
    /* Tails and holes have what an engine leaves there. */
    static const int32_t garbage[] = {-1, 2147480000, INT32_MIN, 0x7fffffff};
    const int64_t most = (s->most_keys + c->page - 1) / c->page + 2;
    int32_t *table = malloc((size_t)(s->sequences * most + entries) * sizeof *table),
            *list = table + s->sequences * most;
    int32_t start[SEQUENCES_MAX + 1] = {0};
    cr_assert(table);
    for (int64_t i = 0; i < s->sequences * most; i++)
        table[i] = garbage[i % 4];
    for (int64_t b = 0; b < s->sequences; b++)
        for (int64_t i = 0; i < pages_of(s, b); i++) {
            const int64_t entry = s->entry0[b] + i;
            list[entry] = table[b * most + i] = s->hole[entry] ? garbage[entry % 4] : (int32_t)p.place[entry];
        }
    for (int64_t b = 0; b <= s->sequences; b++)
        start[b] = (int32_t)s->entry0[b];
    if (c->flags & LIST) {
        p.pages = integers(device, list, 1, entries, 0);
        p.pages_start = integers(device, start, 1, s->sequences + 1, 0);
    } else
        p.pages = integers(device, table, 2, s->sequences, most);
    free(table);
    return p;
}

static void release(pool *p)
{
    if (p->v.buffer != p->k.buffer)
        attune_buffer_destroy(p->v.buffer);
    attune_buffer_destroy(p->k.buffer);
    attune_buffer_destroy(p->k_scale.buffer);
    attune_buffer_destroy(p->v_scale.buffer);
    attune_buffer_destroy(p->pages.buffer);
    attune_buffer_destroy(p->pages_start.buffer);
    free(p->place);
}

static attune_expr *parse(attune_instance *instance, attune_expr_kind kind, const char *text)
{
    static const attune_symbol symbols[] = {
        {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},       {"depth", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
        {"seen", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},       {"position", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
        {"first_row", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    };
    attune_expr *expr = NULL;
    if (text)
        OK(attune_expr_create(instance, kind, text, symbols, sizeof symbols / sizeof symbols[0], &expr));
    return expr;
}

/* row by its definition. */
static void without_row(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (const char *c = text; *c && used + 40 < size; c++)
        if (!strncmp(c, "row", 3)) {
            used += (size_t)snprintf(out + used, size - used, "(q - position + first_row)");
            c += 2;
        } else
            out[used++] = *c;
    out[used] = '\0';
}

/* Whether a row of a sequence sees a key, but for the mask expression. */
static bool sees(const served *s, int64_t b, int64_t i, int64_t kv)
{
    const int64_t draft = kv - (s->kv_len[b] - s->q_len[b]);
    if (kv < s->first[b] || (s->c->page && s->hole[s->entry0[b] + kv / s->c->page]))
        return false;
    if (!(s->c->flags & TREE) || draft < 0)
        return true;
    const uint32_t *words = (const uint32_t *)s->tree.data + (s->row0[b] + i) * s->words;
    return draft < 32 * s->words && (words[draft / 32] >> draft % 32 & 1);
}

/* Results of all rows, ordered by sequence, head, row. */
typedef struct results {
    double *o, *lse, *row_max, *moved;
} results;

static results results_create(const served *s)
{
    const int64_t rows = s->tokens * s->c->heads, dv = s->c->dv;
    double *all = calloc((size_t)(rows * (2 * dv + 2) + 1), sizeof *all);
    cr_assert(all);
    return (results){all, all + rows * dv, all + rows * (dv + 1), all + rows * (dv + 2)};
}

static void oracle(attune_instance *instance, const served *s, reference_precision precision, results *out)
{
    const serving_case *c = s->c;
    failure why;
    char mask[512], score[512], all[600];
    without_row(c->mask ? c->mask : "true", mask, sizeof mask);
    without_row(c->score ? c->score : "", score, sizeof score);
    snprintf(all, sizeof all, "(%s) && seen[q - position, kv]", mask);
    attune_expr *mask_expr = parse(instance, ATTUNE_EXPR_MASK, all);
    attune_expr *score_expr = parse(instance, ATTUNE_EXPR_SCORE, c->score ? score : NULL);
    for (int64_t b = 0; b < s->sequences; b++) {
        const int64_t base = s->row0[b] * c->heads, rows = s->q_len[b] * c->heads;
        if (!live(s, b))
            continue;
        if (!s->kv_len[b]) {
            for (int64_t i = 0; i < rows; i++) {
                out->lse[base + i] = c->flags & SINKS ? array_get(&s->sinks, i / s->q_len[b]) : -INFINITY;
                out->row_max[base + i] = -INFINITY;
            }
            continue;
        }
        attention a = {.o_dtype = s->dtype,
                       .k = s->k[b],
                       .v = s->v[b],
                       .scale = 1 / sqrt((double)c->d),
                       .b0 = b,
                       .q0 = s->kv_len[b] - s->q_len[b],
                       .mask = mask_expr,
                       .score = score_expr};
        array seen;
        cr_assert(array_create(&a.q, s->dtype, 4, (int64_t[]){1, c->heads, s->q_len[b], c->d}, &why) &&
                  array_create(&seen, ATTUNE_BOOL, 2, (int64_t[]){s->q_len[b], s->kv_len[b]}, &why));
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < s->q_len[b]; i++)
                for (int64_t j = 0; j < c->d; j++)
                    array_set(&a.q, (h * s->q_len[b] + i) * c->d + j,
                              array_get(&s->q, ((s->row0[b] + i) * c->heads + h) * c->d + j));
        for (int64_t i = 0; i < s->q_len[b]; i++)
            for (int64_t kv = 0; kv < s->kv_len[b]; kv++)
                array_set(&seen, i * s->kv_len[b] + kv, sees(s, b, i, kv));
        if (c->flags & SINKS)
            a.sinks = s->sinks;
        a.captures[a.capture_count++] = (attune_host_capture){"slope", array_view(&s->slope)};
        a.captures[a.capture_count++] = (attune_host_capture){"depth", array_view(&s->depth)};
        a.captures[a.capture_count++] = (attune_host_capture){"seen", array_view(&seen)};
        a.parameters[a.parameter_count++] = (attune_parameter){"position", (double)a.q0};
        a.parameters[a.parameter_count++] = (attune_parameter){"first_row", (double)s->row0[b]};
        const reference_result r = {out->o + base * c->dv, out->lse + base, out->row_max + base,
                                    precision == REFERENCE_ORACLE && s->dtype != ATTUNE_F64 ? out->moved + base * c->dv
                                                                                            : NULL};
        cr_assert(reference_compute(&a, precision, NULL, 0, &r, &why), "%s: %s", c->name, why.message);
        array_free(&a.q);
        array_free(&seen);
    }
    attune_expr_destroy(mask_expr);
    attune_expr_destroy(score_expr);
}

/* A buffer of CANARY for an output of [tokens + 3, heads, columns]; the rows begin at the second. */
static attune_tensor output(attune_device *device, const served *s, attune_dtype dtype, int64_t columns)
{
    failure why;
    array a;
    const int64_t heads = s->c->heads;
    cr_assert(array_create(&a, dtype, 3, (int64_t[]){s->tokens + 3, heads, columns}, &why));
    for (int64_t i = 0; i < array_count(&a); i++)
        array_set(&a, i, CANARY);
    attune_tensor t = {.buffer = upload(device, a.data, (uint64_t)array_count(&a) * attune_dtype_size(dtype)),
                       .offset = (uint64_t)(heads * columns) * attune_dtype_size(dtype),
                       .dtype = dtype,
                       .rank = columns > 1 ? 3 : 2,
                       .size = {s->tokens, heads, columns},
                       .stride = {heads * columns, columns, 1}};
    if (s->c->flags & UNIFORM) {
        const int64_t rows = s->q_len[0];
        t.rank++;
        memcpy(t.size, (int64_t[]){s->sequences, heads, rows, columns}, sizeof t.size);
        memcpy(t.stride, (int64_t[]){rows * heads * columns, columns, heads * columns, 1}, sizeof t.stride);
    }
    array_free(&a);
    return t;
}

/* In the order of results; rows that no live sequence has must be CANARY still, and are 0 then. */
static void collect(const served *s, const attune_tensor *t, int64_t columns, double *out)
{
    failure why;
    array a;
    const int64_t heads = s->c->heads;
    cr_assert(array_create(&a, t->dtype, 3, (int64_t[]){s->tokens + 3, heads, columns}, &why));
    OK(attune_buffer_read(t->buffer, 0, a.data, (uint64_t)array_count(&a) * attune_dtype_size(t->dtype)));
    for (int64_t b = 0; b < s->sequences; b++)
        for (int64_t i = 0; i < s->q_len[b]; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t j = 0; j < columns; j++) {
                    const int64_t at = ((s->row0[b] + i + 1) * heads + h) * columns + j;
                    double *to = &out[((s->row0[b] * heads) + h * s->q_len[b] + i) * columns + j];
                    *to = live(s, b) ? array_get(&a, at) : 0;
                    if (live(s, b))
                        array_set(&a, at, CANARY);
                }
    for (int64_t i = 0; i < array_count(&a); i++)
        cr_assert_eq(array_get(&a, i), CANARY, "%s: element %lld outside of the batch was written", s->c->name,
                     (long long)i);
    array_free(&a);
}

static void compute(attune_instance *instance, attune_device *device, const served *s, uint64_t seed, results *out)
{
    const serving_case *c = s->c;
    const attune_dtype real = s->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    attune_expr *mask = parse(instance, ATTUNE_EXPR_MASK, c->mask),
                *score = parse(instance, ATTUNE_EXPR_SCORE, c->score);
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = s->dtype,
                                    .kv_dtype = s->k_dtype,
                                    .v_dtype = s->v_dtype,
                                    .head_dim = (uint32_t)c->d,
                                    .head_dim_v = (uint32_t)c->dv,
                                    .batch = s->sequences,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .q_len = s->most_rows,
                                    .kv_len = s->most_keys,
                                    .mask = mask,
                                    .score = score,
                                    .lse = true,
                                    .row_max = true,
                                    .sinks = c->flags & SINKS,
                                    .tokens = s->tokens,
                                    .page = c->page,
                                    .tree = c->flags & TREE,
                                    .split_keys = c->flags & SPLIT ? 256 : 0};
    attune_kernel_options options = {.struct_size = sizeof options};
    if (c->options)
        OK(attune_kernel_options_parse(c->options, &options));
    attune_plan *plan;
    OK(attune_plan_create(device, &problem, &options, &plan));
    pool p = place(device, s, seed);
    int32_t start[SEQUENCES_MAX + 1], lengths[SEQUENCES_MAX], first[SEQUENCES_MAX], shared[SEQUENCES_MAX] = {0};
    for (int64_t b = 0; b < s->sequences; b++) {
        start[b] = (int32_t)s->row0[b];
        lengths[b] = (int32_t)s->kv_len[b];
        first[b] = (int32_t)s->first[b];
        for (int64_t i = b - 1; b && i <= b && (i == b - 1 || shared[b]); i++) {
            const int64_t most = s->kv_len[i] < c->page ? s->kv_len[i] : c->page;
            shared[b] = (int32_t)(i == b - 1 || most < shared[b] ? most : shared[b]);
        }
    }
    start[s->sequences] = (int32_t)s->tokens;
    const int32_t count = (int32_t)s->live;
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = p.k,
                                .v = p.v,
                                .pages = p.pages,
                                .pages_start = p.pages_start,
                                .k_scale = p.k_scale,
                                .v_scale = p.v_scale};
    attune_batch batch = {.struct_size = sizeof batch, .kv_len = integers(device, lengths, 1, s->sequences, 0)};
    if (!(c->flags & UNIFORM))
        batch.q_start = integers(device, start, 1, s->sequences + 1, 0);
    if (c->flags & FIRST)
        batch.kv_first = integers(device, first, 1, s->sequences, 0);
    if (c->flags & PREFIX)
        batch.shared = integers(device, shared, 1, s->sequences, 0);
    if (c->flags & COUNT)
        batch.count = integers(device, &count, 1, 1, 0);
    if (c->flags & TREE) {
        batch.tree = integers(device, s->tree.data, 2, s->tokens, s->words);
        if (c->flags & UNIFORM) {
            batch.tree.rank = 3;
            memcpy(batch.tree.size, (int64_t[]){s->sequences, s->q_len[0], s->words, 0}, sizeof batch.tree.size);
        }
    }
    const attune_capture captures[] = {
        {"slope",
         {.buffer = upload(device, s->slope.data, (uint64_t)c->heads * 4),
          .dtype = ATTUNE_F32,
          .rank = 1,
          .size = {c->heads}}},
        {"depth", integers(device, s->depth.data, 1, s->tokens, 0)},
    };
    attune_forward_args args = {.struct_size = sizeof args,
                                .o = output(device, s, s->dtype, c->dv),
                                .lse = output(device, s, real, 1),
                                .row_max = output(device, s, real, 1),
                                .captures = captures,
                                .capture_count = 2,
                                .cache = &cache,
                                .batch = &batch};
    args.q =
        (attune_tensor){.buffer = upload(device, s->q.data, (uint64_t)array_count(&s->q) * attune_dtype_size(s->dtype)),
                        .dtype = s->dtype,
                        .rank = 3,
                        .size = {s->tokens, c->heads, c->d}};
    if (c->flags & UNIFORM) {
        const int64_t rows = s->q_len[0];
        args.q.rank = 4;
        memcpy(args.q.size, (int64_t[]){s->sequences, c->heads, rows, c->d}, sizeof args.q.size);
        memcpy(args.q.stride, (int64_t[]){rows * c->heads * c->d, c->d, c->heads * c->d, 1}, sizeof args.q.stride);
    }
    if (c->flags & SINKS)
        args.sinks =
            (attune_tensor){.buffer = upload(device, s->sinks.data, (uint64_t)c->heads * attune_dtype_size(real)),
                            .dtype = real,
                            .rank = 1,
                            .size = {c->heads}};
    const uint64_t bytes = attune_plan_workspace_size(plan);
    if (bytes)
        OK(attune_buffer_create(device, bytes, &args.workspace));
    /* Without a schedule a call computes its own. */
    attune_completion completion;
    const uint64_t schedule_bytes = seed % 2 ? 0 : attune_plan_schedule_size(plan);
    if (schedule_bytes) {
        OK(attune_buffer_create(device, schedule_bytes, &args.schedule));
        OK(attune_schedule(plan, attune_device_queue(device), &args, &completion));
    }
    /* Another layer finds it as the first did. */
    if (schedule_bytes) {
        attune_forward_args layer = args;
        layer.o = output(device, s, s->dtype, c->dv);
        OK(attune_forward(plan, attune_device_queue(device), &layer, &completion));
        OK(attune_completion_wait(completion, UINT64_MAX));
        attune_buffer_destroy(layer.o.buffer);
    }
    OK(attune_forward(plan, attune_device_queue(device), &args, &completion));
    OK(attune_completion_wait(completion, UINT64_MAX));
    collect(s, &args.o, c->dv, out->o);
    collect(s, &args.lse, 1, out->lse);
    collect(s, &args.row_max, 1, out->row_max);
    attune_buffer *all[] = {args.q.buffer,
                            args.o.buffer,
                            args.lse.buffer,
                            args.row_max.buffer,
                            args.workspace,
                            args.schedule,
                            args.sinks.buffer,
                            batch.kv_len.buffer,
                            batch.q_start.buffer,
                            batch.kv_first.buffer,
                            batch.count.buffer,
                            batch.shared.buffer,
                            batch.tree.buffer,
                            captures[0].tensor.buffer,
                            captures[1].tensor.buffer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attune_buffer_destroy(all[i]);
    release(&p);
    attune_plan_destroy(plan);
    attune_expr_destroy(mask);
    attune_expr_destroy(score);
}

static void check(const served *s, const char *what, reference_error e, const double *got, const double *exact)
{
    cr_expect(e.pass,
              "%s %s %s: max error %.3g (bound %.3g), mean %.3g (bound %.3g), %lld wrong patterns; worst at %lld: got "
              "%.9g, oracle %.9g",
              s->c->name, attune_dtype_string(s->dtype), what, e.max, e.bound_max, e.mean, e.bound_mean,
              (long long)e.pattern_errors, (long long)e.worst, got[e.worst], exact[e.worst]);
}

static void run_case(attune_instance *instance, attune_device *device, const serving_case *c, attune_dtype dtype,
                     uint64_t index)
{
    served s;
    draw(c, dtype, test_seed() * 1000003 + index * 4 + (uint64_t)dtype, &s);
    results got = results_create(&s), again = results_create(&s), exact = results_create(&s),
            plain = results_create(&s);
    const int64_t rows = s.tokens * c->heads;
    compute(instance, device, &s, 1, &got);
    compute(instance, device, &s, 2, &again);
    cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                 "%s %s: other bits from other pages", c->name, attune_dtype_string(dtype));
    if (c->page && !(c->flags & (HOLES | SHARED))) {
        /* Nor from pages of another size. */
        serving_case other = *c;
        other.page = 3 * c->page + 1;
        s.c = &other;
        for (int64_t b = 0; b < s.sequences; b++)
            s.entry0[b + 1] = s.entry0[b] + pages_of(&s, b);
        compute(instance, device, &s, 3, &again);
        cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                     "%s %s: other bits from pages of another size", c->name, attune_dtype_string(dtype));
        s.c = c;
    }
    if (c->flags & PREFIX) {
        serving_case other = *c;
        other.flags &= ~(unsigned)PREFIX;
        s.c = &other;
        compute(instance, device, &s, 1, &again);
        cr_expect_eq(memcmp(got.o, again.o, (size_t)(rows * (c->dv + 2)) * sizeof *got.o), 0,
                     "%s %s: other bits where sequences share keys", c->name, attune_dtype_string(dtype));
        s.c = c;
    }
    oracle(instance, &s, REFERENCE_ORACLE, &exact);
    oracle(instance, &s, REFERENCE_NAIVE, &plain);
    const attention types = {.q = s.q, .k = s.k[0], .v = s.v[0], .o_dtype = s.dtype};
    const reference_result e = {exact.o, exact.lse, exact.row_max, dtype == ATTUNE_F64 ? NULL : exact.moved},
                           n = {plain.o, plain.lse, plain.row_max, NULL};
    reference_error error;
    reference_compare_o(attention_rule_dtype(&types), attention_o_dtype(&types), rows, c->dv, got.o, &e, &n, &error);
    check(&s, "o", error, got.o, exact.o);
    const attune_dtype real = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    reference_compare(real, rows, got.lse, exact.lse, plain.lse, &error);
    check(&s, "lse", error, got.lse, exact.lse);
    reference_compare(real, rows, got.row_max, exact.row_max, plain.row_max, &error);
    check(&s, "row_max", error, got.row_max, exact.row_max);
    free(got.o);
    free(again.o);
    free(exact.o);
    free(plain.o);
    undraw(&s);
}

/* Cases one after another, each of one type; `most` of them in a sampled run. */
static void run_some(const char *backend, const char *kernel, uint64_t most)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    const size_t count = sizeof cases / sizeof cases[0];
    /* A driver that compiles on the CPU takes seconds for a case: a sampled run has a share of them, of all types. */
    const size_t share = test_sampled() ? (size_t)scaled(most) : count, step = share < count ? count / share : 1;
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(NULL, &instance));
    device = device_or_skip(instance, backend);
    for (size_t i = test_seed() % step; i < count; i += step) {
        serving_case c = cases[i];
        if (!c.options)
            c.options = kernel;
        if (!test_part(i))
            continue;
        run_case(instance, device, &c, dtypes[i % 3], i);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, vulkan_portable)
{
    run_some("vulkan", "{\"KERNEL\": \"vulkan_portable\"}", 10);
}

Test(serving_cases, vulkan_subgroup)
{
    run_some("vulkan", "{\"KERNEL\": \"vulkan_subgroup\"}", 10);
}

Test(serving_cases, opencl)
{
    run_some("opencl", "{\"KERNEL\": \"opencl_serving\"}", 4);
}

/* Small enough for an interpreter of kernels (.ci/opencl): keys in parts, with a schedule of the step and the call's
 * own. */
Test(serving_cases, opencl_small)
{
    static const int64_t lengths[][2] = {{1, 600}, {2, 520}, {1, 9}, {-1}};
    static const serving_case small = {"small", 2,    1, 16, 16, 8, CAUSAL, NULL, SPLIT | SINKS | LIST,
                                       lengths, NULL, 0, 0,  0};
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_device *device = device_or_skip(instance, "opencl");
    for (uint64_t seed = 0; seed < 2; seed++)
        run_case(instance, device, &small, ATTUNE_F32, seed);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

static bool named(const char *names, const char *name)
{
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word);
}

/* Every one of the names is a case: a misspelt one would be left out in silence. */
static void check_names(const char *names)
{
    for (const char *at = names + strspn(names, " "); *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        bool found = false;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !found; i++)
            found = strlen(cases[i].name) == length && !memcmp(cases[i].name, at, length);
        cr_assert(found, "\"%.*s\" is no case of the table", (int)length, at);
    }
}

/* Options with which copies are several tiles ahead, where K and V are copied as they are; NULL elsewhere. */
static const char *stages_of(const serving_case *c, attune_dtype dtype, size_t index)
{
    if (c->options || c->kv_dtype || (dtype == ATTUNE_F32 && c->dv > 256))
        return NULL;
    return c->d > 256  ? "{\"num_stages\": 2, \"BLOCK_N\": 16}"
           : index % 2 ? "{\"num_stages\": 2}"
                       : "{\"num_stages\": 3}";
}

/* Every case; under the model those that `names` has, and without a cache of kernels. */
static void run_cuda(const char *names)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = names ? "" : NULL};
    attune_instance *instance;
    check_names(names ? names : "");
    OK(attune_instance_create(&desc, &instance));
    attune_device *device = device_or_skip(instance, "cuda");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attune_dtype dtype = dtypes[i % 3];
        if (!test_part(i) || (names && !named(names, cases[i].name)))
            continue;
        serving_case staged = cases[i];
        run_case(instance, device, &cases[i], dtype, i);
        if ((staged.options = stages_of(&cases[i], dtype, i)))
            run_case(instance, device, &staged, dtype, i);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(serving_cases, cuda)
{
    run_cuda(NULL);
}

/* Some of them under the model of the CUDA kernels (docs/model.md). */
Test(serving_cases, model)
{
    model_or_skip();
    run_cuda(" tree_window holes_no_mask q4_0 head_512 group_16 e5m2_infinite q8_0_nan split_q8_0 ");
}

Test(serving_cases, cpu)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    attune_instance *instance;
    attune_device *device;
    /* More than one thread, for which long sequences are split. */
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 3};
    OK(attune_instance_create(&desc, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < 4; j++)
            if (dtypes[j] != ATTUNE_F64 || !cases[i].kv_dtype)
                run_case(instance, device, &cases[i], dtypes[j], i);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* ------------------------------------------------------------------------------------------------------------- bits */

enum { MANY = 20, MANY_ROWS = 40, MANY_KEYS = 2000, MANY_PAGES = 900, MANY_TOKENS = 400 };

/* Twenty sequences of all kinds, with prefixes in two levels: the keys that each has in common with the one before. */
typedef struct many {
    attune_instance *instance;
    attune_device *device;
    attune_plan *plan;
    int32_t q_start[MANY + 1], kv_len[MANY], shared[MANY], table[MANY][MANY_KEYS / 16];
    float q[MANY_TOKENS * 4 * 32], pool[2 * MANY_PAGES * 2 * 16 * 32], o[MANY_TOKENS * 4 * 32];
    attune_buffer *buffers[8], *workspace, *schedule;
    uint32_t buffer_count;
    bool copies; /* the device does not read the host's memory */
    attune_cache cache;
    attune_batch batch;
    attune_forward_args args;
} many;

static attune_tensor wrapped(many *m, void *data, attune_dtype dtype, uint32_t rank, int64_t a, int64_t b, int64_t c,
                             int64_t d)
{
    attune_tensor t = {.dtype = dtype, .rank = rank, .size = {a, b, c, d}};
    uint64_t bytes = attune_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++)
        bytes *= (uint64_t)t.size[i];
    if (m->copies) {
        OK(attune_buffer_create(m->device, bytes, &m->buffers[m->buffer_count]));
        OK(attune_buffer_write(m->buffers[m->buffer_count], 0, data, bytes));
    } else
        OK(attune_buffer_wrap(m->device, data, bytes, &m->buffers[m->buffer_count]));
    t.buffer = m->buffers[m->buffer_count++];
    return t;
}

static void many_lengths(many *m, random_state *r)
{
    int32_t page = 0;
    for (int b = 0; b < MANY; b++) {
        const bool prompt = b % 7 == 3;
        m->q_start[b + 1] = m->q_start[b] + (prompt ? 5 + (int32_t)(random_u64(r) % 35) : b % 5 ? 1 : 3);
        m->shared[b] = b < 2 || b == 14 ? 0 : b > 5 && b < 10 ? 1040 : 640;
        m->kv_len[b] = 1041 + (int32_t)(random_u64(r) % (MANY_KEYS - 1041));
        if (b % 6 == 1) /* the next shares no more than these */
            m->kv_len[b] = 640 + b;
        if (m->shared[b] > m->kv_len[b] || (b && m->shared[b] > m->kv_len[b - 1]))
            m->shared[b] = 640;
        for (int i = 0; i < MANY_KEYS / 16; i++)
            m->table[b][i] = i < m->shared[b] / 16 ? m->table[b - 1][i] : -1;
        for (int i = m->shared[b] / 16; i < (m->kv_len[b] + 15) / 16; i++)
            m->table[b][i] = page++ % MANY_PAGES;
    }
    cr_assert(m->q_start[MANY] <= MANY_TOKENS);
}

static void many_create(many *m, const char *backend, uint32_t threads, int sequences)
{
    memset(m, 0, sizeof *m);
    random_state r = {test_seed()};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = threads, .cache_folder = ""};
    OK(attune_instance_create(&desc, &m->instance));
    m->device = device_or_skip(m->instance, backend);
    m->copies = strcmp(backend, "cpu") != 0;
    for (size_t i = 0; i < sizeof m->q / sizeof m->q[0]; i++)
        m->q[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof m->pool / sizeof m->pool[0]; i++)
        m->pool[i] = (float)random_uniform(&r) - 0.5f;
    many_lengths(m, &r);
    attune_expr *mask = parse(m->instance, ATTUNE_EXPR_MASK, "q >= kv && (q - kv < 900 || kv < 7)");
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .head_dim = 32,
                                    .batch = sequences,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .q_len = MANY_ROWS,
                                    .kv_len = MANY_KEYS,
                                    .mask = mask,
                                    .tokens = MANY_TOKENS,
                                    .page = 16,
                                    .split_keys = 256};
    OK(attune_plan_create(m->device, &problem, NULL, &m->plan));
    attune_expr_destroy(mask);
    const size_t half = sizeof m->pool / sizeof m->pool[0] / 2;
    m->cache = (attune_cache){.struct_size = sizeof m->cache,
                              .k = wrapped(m, m->pool, ATTUNE_F32, 4, MANY_PAGES, 2, 16, 32),
                              .v = wrapped(m, m->pool + half, ATTUNE_F32, 4, MANY_PAGES, 2, 16, 32),
                              .pages = wrapped(m, m->table, ATTUNE_I32, 2, sequences, MANY_KEYS / 16, 0, 0)};
    m->batch = (attune_batch){.struct_size = sizeof m->batch,
                              .q_start = wrapped(m, m->q_start, ATTUNE_I32, 1, sequences + 1, 0, 0, 0),
                              .kv_len = wrapped(m, m->kv_len, ATTUNE_I32, 1, sequences, 0, 0, 0)};
    m->args = (attune_forward_args){.struct_size = sizeof m->args,
                                    .q = wrapped(m, m->q, ATTUNE_F32, 3, MANY_TOKENS, 4, 32, 0),
                                    .o = wrapped(m, m->o, ATTUNE_F32, 3, MANY_TOKENS, 4, 32, 0),
                                    .cache = &m->cache,
                                    .batch = &m->batch};
    OK(attune_buffer_create(m->device, attune_plan_workspace_size(m->plan), &m->workspace));
    OK(attune_buffer_create(m->device, attune_plan_schedule_size(m->plan), &m->schedule));
    m->args.workspace = m->workspace;
}

static void many_destroy(many *m)
{
    for (uint32_t i = 0; i < m->buffer_count; i++)
        attune_buffer_destroy(m->buffers[i]);
    attune_buffer_destroy(m->workspace);
    attune_buffer_destroy(m->schedule);
    attune_plan_destroy(m->plan);
    attune_device_destroy(m->device);
    attune_instance_destroy(m->instance);
}

static void many_write(const many *m, const attune_tensor *tensor, const void *data, uint64_t bytes)
{
    if (m->copies)
        OK(attune_buffer_write(tensor->buffer, 0, data, bytes));
}

static void many_run(many *m)
{
    attune_completion done;
    memset(m->o, 0xff, sizeof m->o);
    many_write(m, &m->args.o, m->o, sizeof m->o);
    OK(attune_forward(m->plan, attune_device_queue(m->device), &m->args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    if (m->copies)
        OK(attune_buffer_read(m->args.o.buffer, 0, m->o, sizeof m->o));
}

/* Has the fixed parts of every second sequence computed by one CTA for each tile, as where there is no memory for
 * theirs. */
static void join_parts(many *m)
{
    const uint64_t bytes = attune_plan_schedule_size(m->plan);
    int *words = malloc(bytes), item = 0, several = 0;
    cr_assert(words);
    OK(attune_buffer_read(m->schedule, 0, words, bytes));
    attune_cuda_schedule *schedule = (attune_cuda_schedule *)words;
    attune_cuda_scheduled *of = (attune_cuda_scheduled *)(schedule + 1);
    for (int b = 0; b < (int)m->batch.kv_len.size[0]; b++) {
        const int tiles = (of[b + 1].item - of[b].item) / of[b].parts;
        several += of[b].parts > 1;
        of[b].parts = b % 2 ? 1 : of[b].parts;
        of[b].item = item;
        item += tiles * of[b].parts;
    }
    of[(int)m->batch.kv_len.size[0]].item = schedule->items = item;
    OK(attune_buffer_write(m->schedule, 0, words, bytes));
    free(words);
    cr_expect_gt(several, 1, "sequences in parts");
}

/* A sequence has the same bits alone and in a batch, with a schedule of the step or the call's own, and whether shared
 * keys are named; those of the first run. */
static void run_bits(const char *backend, uint32_t threads, bool first_run, int sequences)
{
    static many m;
    static float expected[sizeof m.o / sizeof m.o[0]];
    many_create(&m, backend, threads, sequences);
    many_run(&m);
    if (first_run)
        memcpy(expected, m.o, sizeof expected);
    cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads", threads);
    const attune_tensor shared = wrapped(&m, m.shared, ATTUNE_I32, 1, sequences, 0, 0, 0);
    m.batch.shared = shared;
    many_run(&m);
    cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads, shared keys", threads);
    /* The schedule of other lengths first, in the same memory. */
    m.args.schedule = m.schedule;
    int32_t kept[MANY + 1];
    memcpy(kept, m.q_start, sizeof kept);
    for (int b = 0; b <= MANY; b++)
        m.q_start[b] = b * 20;
    many_write(&m, &m.batch.q_start, m.q_start, (uint64_t)(sequences + 1) * 4);
    attune_completion done;
    OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, &done));
    OK(attune_completion_wait(done, UINT64_MAX));
    memcpy(m.q_start, kept, sizeof kept);
    many_write(&m, &m.batch.q_start, m.q_start, (uint64_t)(sequences + 1) * 4);
    many_run(&m); /* stale: anything, within bounds */
    OK(attune_schedule(m.plan, attune_device_queue(m.device), &m.args, NULL));
    for (int layer = 0; layer < 2; layer++) {
        many_run(&m);
        cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "%u threads, a schedule", threads);
    }
    if (!strcmp(backend, "cuda")) {
        join_parts(&m);
        many_run(&m);
        cr_expect_eq(memcmp(m.o, expected, sizeof expected), 0, "parts one after another");
    }
    m.args.schedule = NULL;
    m.batch.shared.buffer = NULL;
    /* One at a time: few items, whose keys are split. */
    m.batch.kv_len.size[0] = 1;
    m.batch.q_start.size[0] = 2;
    for (int b = 0; b < sequences; b++) {
        m.batch.kv_len.offset = m.batch.q_start.offset = (uint64_t)b * 4;
        m.cache.pages.size[0] = 1;
        m.cache.pages.offset = (uint64_t)b * sizeof m.table[0];
        many_run(&m);
        const size_t first = (size_t)m.q_start[b] * 128, count = (size_t)(m.q_start[b + 1] - m.q_start[b]) * 128;
        cr_expect_eq(memcmp(m.o + first, expected + first, count * sizeof *expected), 0, "sequence %d alone", b);
    }
    many_destroy(&m);
}

/* On any number of threads, too. */
Test(serving_bits, batch_threads_schedule_and_prefix)
{
    for (uint32_t threads = 1; threads < 6; threads += 2)
        run_bits("cpu", threads, threads == 1, MANY);
}

Test(serving_bits, opencl)
{
    run_bits("opencl", 1, true, MANY);
}

Test(serving_bits, cuda)
{
    run_bits("cuda", 1, true, MANY);
}

Test(serving_bits, model)
{
    model_or_skip();
    run_bits("cuda", 1, true, 5);
}

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

#include "support/devices.h"
#include "tests/oracle/reference.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

enum {
    LIST = 1, /* the block table is one list, with pages_start */
    SINKS = 2,
    TREE = 4,      /* every row sees some of its sequence's drafts */
    UNIFORM = 8,   /* q has the rows of each sequence in a dimension of its own */
    FIRST = 16,    /* the first keys of sequences are gone */
    COUNT = 32,    /* the last sequence is not of this call */
    VIEW = 64,     /* v is the first columns of k */
    HOLES = 128,   /* some entries of the block table are unmapped */
    SHARED = 256,  /* sequences have the first's first pages */
    BESIDE = 512,  /* k and v are in one buffer, page by page */
    TOKENS = 1024, /* [pages, page, heads, head_dim] */
};

typedef struct serving_case {
    const char *name;
    int64_t heads, kv_heads, d, dv, page;
    const char *mask, *score;
    unsigned flags;
    const int64_t (*lengths)[2]; /* rows and keys; 0 rows and 0 keys at the end */
    const char *options;
    attune_dtype kv_dtype; /* 0 = that of q */
} serving_case;

#define SEQUENCES_MAX 24
#define CANARY        (-77.0)

/* Prompts, chunks of prompts and single queries; no key, no row, more rows than keys. */
static const int64_t mix[][2] = {{1, 130}, {70, 70}, {33, 301}, {1, 1},   {0, 40},
                                 {5, 0},   {9, 4},   {1, 257},  {17, 90}, {-1}};
static const int64_t decode[][2] = {{1, 700}, {1, 33}, {1, 64}, {1, 129}, {1, 5}, {-1}};
static const int64_t drafts[][2] = {{7, 200}, {40, 140}, {1, 65}, {7, 7}, {-1}};
static const int64_t even[][2] = {{3, 100}, {3, 3}, {3, 77}, {3, 0}, {3, 128}, {-1}};

#define CAUSAL "q >= kv"

static const serving_case cases[] = {
    {"pages_16", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, 0},
    {"pages_1", 4, 4, 64, 64, 1, CAUSAL, NULL, LIST, mix, NULL, 0},
    {"pages_5", 6, 2, 40, 72, 5, CAUSAL, "score + slope[h] * (kv - q)", TOKENS, mix, NULL, 0},
    {"pages_256", 2, 1, 128, 128, 256, CAUSAL, "20 * tanh(score / 20)", BESIDE, mix, NULL, 0},
    {"one_page", 4, 2, 64, 64, 0, CAUSAL, NULL, 0, mix, NULL, 0},
    {"no_mask", 3, 1, 32, 32, 32, NULL, NULL, TOKENS, mix, NULL, 0},
    {"window", 4, 2, 64, 64, 16, "q >= kv && q - kv < 40", NULL, FIRST | LIST, mix, NULL, 0},
    {"lengths", 2, 2, 64, 64, 8, "kv < kv_len / 2 || kv_len - q_len == kv",
     "score * 0.5 + q_len * 0.01 * (kv - kv_len)", 0, mix, NULL, 0},
    {"rows", 2, 2, 64, 64, 8, "depth[row] >= kv % 7", "score + depth[row] * slope[h]", 0, mix, NULL, 0},
    {"by_sequence", 2, 2, 64, 64, 8, "kv % (b + 2) != 1", "score + slope[h] * b", 0, mix, NULL, 0},
    {"group_5", 10, 2, 80, 80, 16, CAUSAL, NULL, 0, decode, NULL, 0},
    {"group_6", 6, 1, 96, 96, 16, CAUSAL, NULL, SINKS, decode, NULL, 0},
    {"group_7", 28, 4, 112, 112, 7, CAUSAL, NULL, LIST, decode, NULL, 0},
    {"group_16", 16, 1, 64, 64, 16, NULL, NULL, SHARED, decode, NULL, 0},
    {"group_64", 64, 1, 72, 72, 16, CAUSAL, NULL, SINKS, decode, NULL, 0},
    {"group_3", 6, 2, 64, 64, 64, "kv + 100 > q", NULL, FIRST | SINKS, decode, NULL, 0},
    {"sinks", 4, 2, 64, 64, 16, "q >= kv && q - kv < 30", NULL, SINKS | FIRST, mix, NULL, 0},
    {"head_192_128", 4, 1, 192, 128, 16, CAUSAL, NULL, 0, mix, NULL, 0},
    {"head_320_256", 4, 2, 320, 256, 16, CAUSAL, NULL, 0, decode, NULL, 0},
    {"head_512", 2, 1, 512, 512, 16, CAUSAL, NULL, 0, decode, NULL, 0},
    {"absorbed", 16, 1, 576, 512, 64, CAUSAL, NULL, VIEW, decode, NULL, 0},
    {"absorbed_mix", 4, 1, 576, 512, 16, CAUSAL, NULL, VIEW | LIST, drafts, NULL, 0},
    {"tree", 4, 2, 64, 64, 16, NULL, NULL, TREE, drafts, NULL, 0},
    {"tree_window", 4, 2, 64, 64, 16, "q - kv < 60", NULL, TREE | SINKS | FIRST, drafts, NULL, 0},
    {"tree_uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, TREE | UNIFORM, even, NULL, 0},
    {"uniform", 4, 2, 64, 64, 16, CAUSAL, NULL, UNIFORM, even, NULL, 0},
    {"uniform_one_page", 4, 1, 64, 64, 0, "q >= kv && row % 4 != kv % 4", NULL, UNIFORM, even, NULL, 0},
    {"count", 4, 2, 64, 64, 16, CAUSAL, NULL, COUNT, mix, NULL, 0},
    {"holes", 4, 2, 64, 64, 4, CAUSAL, NULL, HOLES, mix, NULL, 0},
    {"holes_no_mask", 4, 2, 64, 64, 4, NULL, NULL, HOLES | LIST, mix, NULL, 0},
    {"shared", 4, 2, 64, 64, 16, CAUSAL, NULL, SHARED | LIST, mix, NULL, 0},
    {"small_tile", 4, 2, 64, 64, 8, CAUSAL, NULL, 0, mix, "{\"BLOCK_M\": 16, \"BLOCK_N\": 16}", 0},
    {"f16_keys", 4, 2, 64, 64, 16, CAUSAL, NULL, 0, mix, NULL, ATTUNE_F16},
    {"bf16_keys", 8, 1, 128, 128, 16, CAUSAL, NULL, 0, decode, NULL, ATTUNE_BF16},
};

/* A case with its numbers drawn. */
typedef struct served {
    const serving_case *c;
    attune_dtype dtype, kv_dtype;
    int64_t sequences, live, tokens, most_rows, most_keys;
    int64_t q_len[SEQUENCES_MAX], kv_len[SEQUENCES_MAX], first[SEQUENCES_MAX], row0[SEQUENCES_MAX];
    int64_t entry0[SEQUENCES_MAX + 1]; /* of the block table, as one list */
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

static void draw(const serving_case *c, attune_dtype dtype, uint64_t seed, served *s)
{
    failure why;
    random_state r = {seed};
    *s = (served){.c = c, .dtype = dtype, .kv_dtype = c->kv_dtype ? c->kv_dtype : dtype};
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
        const int64_t keys = s->kv_len[b] ? s->kv_len[b] : 1;
        cr_assert(array_create(&s->k[b], s->kv_dtype, 4, (int64_t[]){1, c->kv_heads, keys, c->d}, &why));
        cr_assert(array_create(&s->v[b], s->kv_dtype, 4, (int64_t[]){1, c->kv_heads, keys, c->dv}, &why));
        array_fill_normal(&s->k[b], &r, 1);
        array_fill_normal(&s->v[b], &r, 1);
        /* With SHARED, the first page has the first sequence's keys. */
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t kv = 0; kv < keys; kv++) {
                for (int64_t i = 0; c->flags & SHARED && b && kv < c->page && kv < s->kv_len[0] && i < c->d; i++)
                    array_set(&s->k[b], (h * keys + kv) * c->d + i,
                              array_get(&s->k[0], (h * s->kv_len[0] + kv) * c->d + i));
                for (int64_t i = 0; c->flags & SHARED && b && kv < c->page && kv < s->kv_len[0] && i < c->dv; i++)
                    array_set(&s->v[b], (h * keys + kv) * c->dv + i,
                              array_get(&s->v[0], (h * s->kv_len[0] + kv) * c->dv + i));
                for (int64_t i = 0; c->flags & VIEW && i < c->dv; i++)
                    array_set(&s->v[b], (h * keys + kv) * c->dv + i, array_get(&s->k[b], (h * keys + kv) * c->d + i));
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
    attune_tensor k, v, pages, pages_start;
    int64_t *place; /* the page of each entry */
} pool;

static int64_t element_of(const attune_tensor *t, int64_t page, int64_t h, int64_t row, int64_t i)
{
    return page * t->stride[0] + h * t->stride[1] + row * t->stride[2] + i;
}

static void fill_page(const served *s, const attune_tensor *t, const array *keys, int64_t b, int64_t first,
                      int64_t page, unsigned char *image)
{
    const size_t bytes = attune_dtype_size(t->dtype);
    const int64_t d = t->size[3];
    for (int64_t h = 0; h < s->c->kv_heads; h++)
        for (int64_t row = 0; row < t->size[2] && first + row < s->kv_len[b]; row++)
            if (first + row >= s->first[b])
                memcpy(image + t->offset + (size_t)element_of(t, page, h, row, 0) * bytes,
                       (const char *)keys->data + (size_t)((h * keys->size[2] + first + row) * d) * bytes,
                       (size_t)d * bytes);
}

static void lay_out(const served *s, attune_tensor *t, int64_t pages, int64_t page, int64_t d)
{
    const serving_case *c = s->c;
    *t =
        (attune_tensor){.dtype = s->kv_dtype, .rank = 4, .size = {pages, c->kv_heads, page, d}, .stride = {0, 0, 0, 1}};
    if (c->flags & TOKENS) {
        t->stride[1] = d;
        t->stride[2] = c->kv_heads * d;
        t->stride[0] = page * c->kv_heads * d;
    } else {
        t->stride[2] = d + 8;
        t->stride[1] = page * t->stride[2];
        t->stride[0] = c->kv_heads * t->stride[1] + 16;
    }
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
    lay_out(s, &p.k, pages, page, c->d);
    lay_out(s, &p.v, pages, page, c->dv);
    const size_t bytes = attune_dtype_size(s->kv_dtype);
    if (c->flags & BESIDE) {
        p.v.offset = (uint64_t)p.k.stride[0] * bytes;
        p.v.stride[0] = p.k.stride[0] = 2 * p.k.stride[0];
    }
    const int64_t widest = p.k.stride[0] > p.v.stride[0] ? p.k.stride[0] : p.v.stride[0];
    const size_t size = (size_t)((pages + 1) * widest) * bytes;
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
            fill_page(s, &p.k, &s->k[b], b, i * page, p.place[entry], images[0]);
            if (!(c->flags & VIEW))
                fill_page(s, &p.v, &s->v[b], b, i * page, p.place[entry], v_image);
        }
    p.k.buffer = upload(device, images[0], size);
    if (!(c->flags & VIEW))
        p.v.buffer = c->flags & BESIDE ? p.k.buffer : upload(device, images[1], size);
    free(images[0]);
    free(images[1]);
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
                                    .kv_dtype = s->kv_dtype,
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
                                    .tree = c->flags & TREE};
    attune_kernel_options options = {.struct_size = sizeof options};
    if (c->options)
        OK(attune_kernel_options_parse(c->options, &options));
    attune_plan *plan;
    OK(attune_plan_create(device, &problem, &options, &plan));
    pool p = place(device, s, seed);
    int32_t start[SEQUENCES_MAX + 1], lengths[SEQUENCES_MAX], first[SEQUENCES_MAX];
    for (int64_t b = 0; b < s->sequences; b++) {
        start[b] = (int32_t)s->row0[b];
        lengths[b] = (int32_t)s->kv_len[b];
        first[b] = (int32_t)s->first[b];
    }
    start[s->sequences] = (int32_t)s->tokens;
    const int32_t count = (int32_t)s->live;
    const attune_cache cache = {
        .struct_size = sizeof cache, .k = p.k, .v = p.v, .pages = p.pages, .pages_start = p.pages_start};
    attune_batch batch = {.struct_size = sizeof batch, .kv_len = integers(device, lengths, 1, s->sequences, 0)};
    if (!(c->flags & UNIFORM))
        batch.q_start = integers(device, start, 1, s->sequences + 1, 0);
    if (c->flags & FIRST)
        batch.kv_first = integers(device, first, 1, s->sequences, 0);
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
    OK(attune_buffer_create(device, bytes, &args.workspace));
    attune_completion completion;
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
                            args.sinks.buffer,
                            batch.kv_len.buffer,
                            batch.q_start.buffer,
                            batch.kv_first.buffer,
                            batch.count.buffer,
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

static void run_case(attune_instance *instance, attune_device *device, const serving_case *c, attune_dtype dtype)
{
    served s;
    draw(c, dtype, test_seed() * 1000003 + (uint64_t)(c - cases) * 4 + (uint64_t)dtype, &s);
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
    oracle(instance, &s, REFERENCE_ORACLE, &exact);
    oracle(instance, &s, REFERENCE_NAIVE, &plain);
    const attention types = {.q = s.q, .k = s.k[0], .v = s.v[0], .o_dtype = s.dtype};
    const reference_result e = {exact.o, exact.lse, exact.row_max, dtype == ATTUNE_F64 ? NULL : exact.moved},
                           n = {plain.o, plain.lse, plain.row_max, NULL};
    reference_error error;
    reference_compare_o(attention_rule_dtype(&types), rows, c->dv, got.o, &e, &n, &error);
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

Test(serving_cases, cpu)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(NULL, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < 4; j++)
            if (dtypes[j] != ATTUNE_F64 || !cases[i].kv_dtype)
                run_case(instance, device, &cases[i], dtypes[j]);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

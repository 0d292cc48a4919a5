/* SPDX-License-Identifier: MIT */
/*
 * New rows of a cache: every key against float64, and every byte that is no new key's as it was. Blocks of q8_0 and
 * q4_0 are those of the formats' quantisers, bit for bit, where nothing is computed before.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/quantised.h"
#include "support/devices.h"
#include "tests/oracle/array.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

enum {
    SLOTS = 1,   /* by slot; else by the batch */
    UNIFORM = 2, /* a dimension of sequences */
    VIEW = 4,    /* v is a part of k */
    TOKENS = 8,  /* [pages, page, heads, head_dim] */
    NORM = 16,   /* of k, and of q */
    ROPE = 32,   /* half-split */
    INTERLEAVED = 64,
    POSITIONS = 128, /* of their own */
    QUERIES = 256,
    IN_PLACE = 512,
};

typedef struct append_case {
    const char *name;
    attune_dtype dtype, k_dtype, v_dtype;
    int64_t heads, kv_heads, d, dv, page;
    unsigned flags;
    int scales;                         /* of k and v: 0 none, 1 of the tensor, 2 of heads, 3 of keys and heads */
    int64_t norm, rotary_first, rotary; /* columns; 0 = all */
} append_case;

static const append_case cases[] = {
    {"f32", ATTUNE_F32, ATTUNE_F32, ATTUNE_F32, 4, 2, 64, 64, 16, 0, 0, 0, 0, 0},
    {"f16_from_f32", ATTUNE_F32, ATTUNE_F16, ATTUNE_F16, 4, 2, 64, 40, 16, SLOTS | TOKENS, 0, 0, 0, 0},
    {"rope", ATTUNE_F16, ATTUNE_F16, ATTUNE_F16, 4, 2, 64, 64, 16, ROPE | QUERIES, 0, 0, 0, 0},
    {"rope_interleaved", ATTUNE_BF16, ATTUNE_BF16, ATTUNE_BF16, 4, 2, 64, 64, 1, INTERLEAVED | QUERIES | IN_PLACE, 0, 0,
     0, 0},
    {"rope_slots", ATTUNE_F32, ATTUNE_F32, ATTUNE_F32, 2, 1, 32, 32, 5, SLOTS | ROPE | POSITIONS | QUERIES, 0, 0, 0, 0},
    {"rope_some", ATTUNE_F32, ATTUNE_BF16, ATTUNE_F32, 2, 1, 96, 96, 5, ROPE | POSITIONS, 0, 0, 16, 40},
    {"norm", ATTUNE_BF16, ATTUNE_BF16, ATTUNE_BF16, 6, 2, 128, 128, 16, NORM | QUERIES, 0, 0, 0, 0},
    {"norm_rope", ATTUNE_F16, ATTUNE_F16, ATTUNE_F16, 6, 2, 80, 80, 7, NORM | ROPE | QUERIES | IN_PLACE, 0, 0, 0, 0},
    {"absorbed", ATTUNE_BF16, ATTUNE_BF16, ATTUNE_BF16, 4, 1, 576, 512, 64, VIEW | NORM | INTERLEAVED, 0, 512, 512, 64},
    {"uniform", ATTUNE_F32, ATTUNE_F32, ATTUNE_F32, 4, 2, 32, 32, 16, UNIFORM | ROPE | QUERIES | NORM, 0, 0, 0, 0},
    {"uniform_slots", ATTUNE_F32, ATTUNE_I8, ATTUNE_I8, 4, 2, 32, 32, 0, UNIFORM | SLOTS | ROPE | POSITIONS, 3, 0, 0,
     0},
    {"one_page", ATTUNE_F16, ATTUNE_F16, ATTUNE_F16, 4, 2, 64, 64, 0, ROPE, 0, 0, 0, 0},
    {"f64", ATTUNE_F64, ATTUNE_F64, ATTUNE_F64, 4, 2, 40, 40, 16, NORM | ROPE | QUERIES, 0, 0, 0, 0},
    {"e4m3", ATTUNE_F32, ATTUNE_F8E4M3, ATTUNE_F8E4M3, 4, 2, 64, 64, 16, SLOTS, 1, 0, 0, 0},
    {"e4m3_no_factor", ATTUNE_BF16, ATTUNE_F8E4M3, ATTUNE_F8E5M2, 4, 2, 64, 64, 16, 0, 0, 0, 0, 0},
    {"e5m2", ATTUNE_F16, ATTUNE_F8E5M2, ATTUNE_F8E5M2, 4, 2, 64, 64, 16, ROPE | TOKENS, 2, 0, 0, 0},
    {"e4m3_rows", ATTUNE_BF16, ATTUNE_F8E4M3, ATTUNE_F8E5M2, 4, 4, 64, 40, 3, ROPE | NORM, 3, 0, 0, 0},
    {"i8", ATTUNE_F32, ATTUNE_I8, ATTUNE_I8, 4, 2, 64, 64, 16, ROPE | QUERIES, 1, 0, 0, 0},
    {"i8_heads", ATTUNE_BF16, ATTUNE_I8, ATTUNE_BF16, 4, 2, 64, 64, 16, SLOTS, 2, 0, 0, 0},
    {"i8_rows", ATTUNE_F32, ATTUNE_I8, ATTUNE_I8, 4, 2, 64, 24, 16, INTERLEAVED | TOKENS, 3, 0, 0, 0},
    {"q8_0", ATTUNE_F32, ATTUNE_Q8_0, ATTUNE_Q8_0, 4, 2, 64, 64, 16, SLOTS, 0, 0, 0, 0},
    {"q4_0", ATTUNE_F32, ATTUNE_Q4_0, ATTUNE_Q4_0, 4, 2, 128, 64, 16, TOKENS, 0, 0, 0, 0},
    {"q8_0_q4_0", ATTUNE_F16, ATTUNE_Q8_0, ATTUNE_Q4_0, 4, 2, 96, 64, 1, NORM | ROPE | QUERIES, 0, 0, 0, 0},
    {"absorbed_e4m3", ATTUNE_F32, ATTUNE_F8E4M3, ATTUNE_F8E4M3, 4, 1, 576, 512, 64, VIEW, 3, 0, 0, 0},
};

#define SEQUENCES 7
#define PADDING   3 /* rows after those of the batch */
#define EPSILON   1e-5

/* Rows and keys: a prompt, a chunk, single queries, no row, more rows than keys, more keys than the table has. */
static const int64_t mix[SEQUENCES][2] = {{9, 9}, {5, 33}, {1, 40}, {0, 7}, {6, 2}, {1, 1}, {2, 5000}};

/* A case with its numbers drawn, and where each row goes. */
typedef struct appended {
    const append_case *c;
    int64_t sequences, rows_each, tokens, pages, page;
    int64_t *slot;     /* of each row; -1 = not written */
    int64_t *position; /* likewise; INT64_MIN = outside of all sequences */
    array k, v, q, k_norm, q_norm, cosine, sine;
    int32_t q_start[SEQUENCES + 1], kv_len[SEQUENCES], *table, *positions;
    int64_t *slots, entries;
    double error; /* of a norm and a rotation on the device, of the sum of the magnitudes of a result's terms */
} appended;

static void draw_batch(appended *a, random_state *r)
{
    const append_case *c = a->c;
    const bool uniform = c->flags & UNIFORM;
    a->sequences = uniform ? 3 : SEQUENCES;
    a->rows_each = uniform ? 4 : 0;
    for (int64_t b = 0; b < a->sequences; b++) {
        a->q_start[b + 1] = a->q_start[b] + (int32_t)(uniform ? a->rows_each : mix[b][0]);
        a->kv_len[b] = (int32_t)(uniform ? 3 + 11 * b : mix[b][1]);
    }
    a->tokens = a->q_start[a->sequences] + (uniform ? 0 : PADDING);
    a->page = c->page ? c->page : 48;
    a->entries = (48 + a->page - 1) / a->page;
    a->pages = c->page ? a->sequences * a->entries + 2 : a->sequences;
    a->table = calloc((size_t)(a->sequences * a->entries), sizeof *a->table);
    a->slots = calloc((size_t)a->tokens, sizeof *a->slots);
    a->slot = calloc((size_t)a->tokens, sizeof *a->slot);
    a->position = calloc((size_t)a->tokens, sizeof *a->position);
    a->positions = calloc((size_t)a->tokens, sizeof *a->positions);
    cr_assert(a->table && a->slots && a->slot && a->position && a->positions);
    /* Pages backwards; one entry is unmapped. */
    for (int64_t i = 0; i < a->sequences * a->entries; i++)
        a->table[i] = i == 2 ? -1 : (int32_t)(a->pages - 1 - i);
    for (int64_t i = 0; i < a->tokens; i++) {
        /* 7 is coprime to the rows: no two are equal. */
        a->slots[i] = i % 5 == 3 ? -1 : i % 11 == 10 ? a->pages * a->page + i : i * 7 % (a->pages * a->page);
        a->positions[i] = i == 6 ? 60 : i == 8 ? -2 : (int32_t)(random_u64(r) % 48);
        a->slot[i] = -1;
        a->position[i] = INT64_MIN;
    }
}

static void find_places(appended *a)
{
    const append_case *c = a->c;
    for (int64_t b = 0; b < a->sequences; b++)
        for (int64_t i = a->q_start[b]; i < a->q_start[b + 1]; i++) {
            const int64_t keys = a->kv_len[b] <= a->entries * a->page && a->kv_len[b] <= 48 ? a->kv_len[b] : 0,
                          kv = keys - (a->q_start[b + 1] - a->q_start[b]) + i - a->q_start[b];
            a->position[i] = kv;
            if (kv < 0)
                continue;
            const int64_t page = c->page ? a->table[b * a->entries + kv / a->page] : b;
            a->slot[i] = page < 0 ? -1 : page * a->page + kv % a->page;
        }
    for (int64_t i = 0; i < a->tokens; i++) {
        if (c->flags & SLOTS) {
            a->slot[i] = a->slots[i] < a->pages * a->page ? a->slots[i] : -1;
            a->position[i] = 0;
        }
        if (c->flags & POSITIONS && a->position[i] != INT64_MIN)
            a->position[i] = a->positions[i];
        if (c->flags & (ROPE | INTERLEAVED) && (a->position[i] < 0 || a->position[i] >= 48))
            a->slot[i] = -1;
    }
}

static void draw(const append_case *c, uint64_t seed, appended *a)
{
    failure why;
    random_state r = {seed};
    *a = (appended){.c = c};
    draw_batch(a, &r);
    find_places(a);
    const attune_dtype real = c->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const int64_t norm = c->norm ? c->norm : c->d, pairs = (c->rotary ? c->rotary : c->d) / 2;
    cr_assert(array_create(&a->k, c->dtype, 3, (int64_t[]){a->tokens, c->kv_heads, c->d}, &why) &&
              array_create(&a->v, c->dtype, 3, (int64_t[]){a->tokens, c->kv_heads, c->dv}, &why) &&
              array_create(&a->q, c->dtype, 3, (int64_t[]){a->tokens, c->heads, c->d}, &why) &&
              array_create(&a->k_norm, real, 1, &norm, &why) && array_create(&a->q_norm, c->dtype, 1, &c->d, &why) &&
              array_create(&a->cosine, real, 2, (int64_t[]){48, pairs}, &why) &&
              array_create(&a->sine, real, 2, (int64_t[]){48, pairs}, &why));
    array_fill_normal(&a->k, &r, 1.5);
    array_fill_normal(&a->v, &r, 0.7);
    array_fill_normal(&a->q, &r, 1);
    array_fill_normal(&a->k_norm, &r, 1);
    array_fill_normal(&a->q_norm, &r, 1);
    for (int64_t i = 0; i < 48 * pairs; i++) {
        const double angle = (double)(i / pairs) * pow(1e4, -(double)(i % pairs) / (double)pairs);
        array_set(&a->cosine, i, cos(angle));
        array_set(&a->sine, i, sin(angle));
    }
    /* A row of zeros, and values that saturate. */
    for (int64_t i = 0; i < c->d; i++)
        array_set(&a->k, c->kv_heads * c->d + i, 0);
    array_set(&a->k, 3, 900);
    array_set(&a->k, 5, -60000);
}

static void undraw(appended *a)
{
    array *all[] = {&a->k, &a->v, &a->q, &a->k_norm, &a->q_norm, &a->cosine, &a->sine};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(all[i]);
    free(a->table);
    free(a->slots);
    free(a->slot);
    free(a->position);
    free(a->positions);
}

/* ---------------------------------------------------------------------------------------------------------- oracle */

/* A head's row in float64, and the device's error; norm NULL = neither normalised nor rotated. */
static void exact_row(const appended *a, const array *from, const array *norm, int64_t row, int64_t h, double *to,
                      double *error)
{
    const append_case *c = a->c;
    const int64_t columns = from->size[2], pairs = (c->rotary ? c->rotary : c->d) / 2;
    for (int64_t i = 0; i < columns; i++) {
        to[i] = array_get(from, (row * from->size[1] + h) * columns + i);
        error[i] = 0;
    }
    if (norm && c->flags & NORM) {
        double square = EPSILON;
        for (int64_t i = 0; i < norm->size[0]; i++)
            square += to[i] * to[i] / (double)norm->size[0];
        for (int64_t i = 0; i < norm->size[0]; i++) {
            to[i] = to[i] / sqrt(square) * array_get(norm, i);
            error[i] = a->error * fabs(to[i]);
        }
    }
    for (int64_t i = 0; norm && c->flags & (ROPE | INTERLEAVED) && i < pairs; i++) {
        const int64_t x = c->rotary_first + (c->flags & INTERLEAVED ? 2 * i : i),
                      y = x + (c->flags & INTERLEAVED ? 1 : pairs), at = a->position[row] * pairs + i;
        const double re = to[x], im = to[y], cosine = array_get(&a->cosine, at), sine = array_get(&a->sine, at);
        to[x] = re * cosine - im * sine;
        to[y] = im * cosine + re * sine;
        error[x] = a->error * (fabs(re * cosine) + fabs(im * sine));
        error[y] = a->error * (fabs(im * cosine) + fabs(re * sine));
    }
}

static double half_value(const unsigned char *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, 2);
    const array d = {.dtype = ATTUNE_F16, .rank = 1, .size = {1}, .data = &half};
    return array_get(&d, 0);
}

/* ggml's quantisers, as their definitions have them. */
static void block_of(attune_dtype dtype, const double *row, unsigned char *block)
{
    float most = 0;
    uint16_t half;
    array d = {.dtype = ATTUNE_F16, .rank = 1, .size = {1}, .data = &half};
    for (int i = 0; i < 32; i++)
        if (fabsf((float)row[i]) > fabsf(most))
            most = (float)row[i];
    const float step = dtype == ATTUNE_Q8_0 ? fabsf(most) / 127.0f : most / -8.0f;
    const float inverse = step != 0 ? 1.0f / step : 0.0f;
    array_set(&d, 0, (double)step);
    memcpy(block, &half, 2);
    for (int i = 0; i < 32; i++) {
        const float x = (float)row[i] * inverse;
        if (dtype == ATTUNE_Q8_0) {
            block[2 + i] = (unsigned char)(signed char)lroundf(x);
            continue;
        }
        const int shifted = (int)(signed char)(x + 8.5f), code = shifted > 15 ? 15 : shifted;
        if (i < 16)
            block[2 + i] = (unsigned char)code;
        else
            block[2 + i - 16] |= (unsigned char)(code << 4);
    }
}

/* The largest finite value, the spacing of values near x, and half of it as the error of rounding. */
static double spacing(attune_dtype dtype, double x)
{
    static const int bits[] = {[ATTUNE_F32] = 23, [ATTUNE_F16] = 10,   [ATTUNE_BF16] = 7,
                               [ATTUNE_F64] = 52, [ATTUNE_F8E4M3] = 3, [ATTUNE_F8E5M2] = 2};
    static const int least[] = {[ATTUNE_F32] = -126,  [ATTUNE_F16] = -14,   [ATTUNE_BF16] = -126,
                                [ATTUNE_F64] = -1022, [ATTUNE_F8E4M3] = -6, [ATTUNE_F8E5M2] = -14};
    if (dtype == ATTUNE_I8)
        return 1;
    int exponent = x != 0 ? ilogb(x) : least[dtype];
    exponent = exponent < least[dtype] ? least[dtype] : exponent;
    return ldexp(1, exponent - bits[dtype]);
}

static double largest(attune_dtype dtype)
{
    return dtype == ATTUNE_I8 ? 127 : dtype == ATTUNE_F8E4M3 ? 448 : 57344;
}

static bool near(attune_dtype dtype, double got, double exact, double error)
{
    if (dtype == ATTUNE_F16 && fabs(exact) > 65520)
        return isinf(got);
    /* 16-bit types are rounded from f32, and that from a sum in double. */
    const double before = dtype == ATTUNE_F64 ? 8 * spacing(dtype, 4) : 0.5 * spacing(ATTUNE_F32, exact);
    return fabs(got - exact) <= 0.5 * spacing(dtype, exact) + (dtype == ATTUNE_F32 ? 0.01 : 1) * before + error;
}

/* Checks a row of the cache, and marks its bytes. */
static void check_row(const appended *a, const char *name, attune_dtype dtype, const double *row, const double *error,
                      int64_t columns, const unsigned char *bytes, float factor)
{
    const bool computed = a->c->flags & (NORM | ROPE | INTERLEAVED);
    unsigned char block[34];
    const array plain = {.dtype = dtype, .rank = 1, .size = {columns}, .data = (void *)(uintptr_t)bytes};
    for (int64_t i = 0; i < columns; i++) {
        double got, exact = row[i], bound = 0;
        if (in_blocks(dtype)) {
            const unsigned char *at = bytes + (size_t)(i / 32) * attune_dtype_size(dtype);
            block_of(dtype, row + i / 32 * 32, block);
            if (!computed)
                cr_assert_eq(memcmp(at, block, attune_dtype_size(dtype)), 0, "%s %s: other bits than ggml's",
                             a->c->name, name);
            const int code = dtype == ATTUNE_Q8_0 ? (int8_t)at[2 + i % 32]
                                                  : (i % 32 < 16 ? at[2 + i % 32] & 15 : at[2 + i % 16] >> 4) - 8;
            got = half_value(at) * code;
            /* Half a code, or one of q4_0, whose last is 7, and the rounding of the factor. */
            bound = fabs(half_value(at)) * (dtype == ATTUNE_Q8_0 ? 0.501 : 1.001) +
                    (abs(code) + 1) * 0.501 * spacing(ATTUNE_F16, half_value(at)) + error[i];
            cr_assert(fabs(got - exact) <= bound, "%s %s: %g, expected %g", a->c->name, name, got, exact);
        } else if (has_factors(dtype)) {
            const double most = largest(dtype), x = factor != 0 ? exact / (double)factor : 0;
            got = decode_byte(dtype, bytes[i]);
            exact = x > most ? most : x < -most ? -most : x;
            bound = 0.5001 * spacing(dtype, exact) + (factor != 0 ? error[i] / (double)factor : 0);
            cr_assert(fabs(got - exact) <= bound, "%s %s: code of %g, expected %g", a->c->name, name, got, exact);
        } else
            cr_assert(near(dtype, array_get(&plain, i), exact, error[i]), "%s %s: %.9g, expected %.9g", a->c->name,
                      name, array_get(&plain, i), exact);
    }
}

/* ------------------------------------------------------------------------------------------------------------ cache */

/* A tensor of the cache with what it held before, 0xff in every byte. */
typedef struct stored {
    attune_tensor tensor, scale;
    unsigned char *bytes;
    size_t size;
    float *factors;
    int64_t factor_count;
} stored;

static attune_buffer *upload(attune_device *device, const void *data, uint64_t bytes)
{
    attune_buffer *buffer;
    OK(attune_buffer_create(device, bytes, &buffer));
    OK(attune_buffer_write(buffer, 0, data, bytes));
    return buffer;
}

static void store_create(attune_device *device, const appended *a, attune_dtype dtype, int64_t columns, stored *s)
{
    const append_case *c = a->c;
    const int64_t row = columns / attune_dtype_block(dtype), padding = in_blocks(dtype) ? 1 : 8;
    attune_tensor *t = &s->tensor;
    *s = (stored){.bytes = NULL};
    *t = (attune_tensor){
        .dtype = dtype, .rank = 4, .size = {a->pages, c->kv_heads, a->page, columns}, .stride = {0, 0, 0, 1}};
    t->stride[c->flags & TOKENS ? 1 : 2] = row + padding;
    t->stride[c->flags & TOKENS ? 2 : 1] = (c->flags & TOKENS ? c->kv_heads : a->page) * (row + padding);
    t->stride[0] = a->page * c->kv_heads * (row + padding) + padding;
    t->offset = in_blocks(dtype) ? 2 : 0;
    s->size = (size_t)(a->pages * t->stride[0]) * attune_dtype_size(dtype) + 64;
    s->bytes = malloc(s->size);
    cr_assert(s->bytes);
    memset(s->bytes, 0xff, s->size);
    t->buffer = upload(device, s->bytes, s->size);
    if (!c->scales || !has_factors(dtype))
        return;
    s->factor_count = c->scales == 3 ? a->pages * c->kv_heads * a->page : c->scales == 2 ? c->kv_heads : 1;
    s->factors = malloc((size_t)s->factor_count * sizeof *s->factors);
    cr_assert(s->factors);
    for (int64_t i = 0; i < s->factor_count; i++)
        s->factors[i] = c->scales == 3 ? -5 : (dtype == ATTUNE_I8 ? 0.03f : 0.4f) * (float)(i + 1);
    s->scale = (attune_tensor){.dtype = ATTUNE_F32, .rank = c->scales == 3 ? 3 : 1, .size = {s->factor_count}};
    if (c->scales == 3)
        memcpy(s->scale.size, t->size, 3 * sizeof t->size[0]);
    s->scale.buffer = upload(device, s->factors, (uint64_t)s->factor_count * sizeof *s->factors);
}

static void store_check(const appended *a, const char *name, const array *from, const array *norm, stored *s)
{
    const append_case *c = a->c;
    const attune_tensor *t = &s->tensor;
    const size_t row_size = row_bytes(t->dtype, t->size[3]);
    double row[576], error[576];
    OK(attune_buffer_read(t->buffer, 0, s->bytes, s->size));
    if (s->factors)
        OK(attune_buffer_read(s->scale.buffer, 0, s->factors, (uint64_t)s->factor_count * sizeof *s->factors));
    for (int64_t i = 0; i < a->tokens; i++)
        for (int64_t h = 0; a->slot[i] >= 0 && h < c->kv_heads; h++) {
            const int64_t page = a->slot[i] / a->page, key = a->slot[i] % a->page;
            unsigned char *at =
                s->bytes + t->offset +
                (size_t)(page * t->stride[0] + h * t->stride[1] + key * t->stride[2]) * attune_dtype_size(t->dtype);
            float *factor = !s->factors      ? NULL
                            : c->scales == 3 ? &s->factors[(page * c->kv_heads + h) * a->page + key]
                                             : &s->factors[c->scales == 2 ? h : 0];
            exact_row(a, from, norm, i, h, row, error);
            if (c->scales == 3 && factor) {
                double most = 0;
                for (int64_t j = 0; j < t->size[3]; j++)
                    most = fabs(row[j]) > most ? fabs(row[j]) : most;
                const double wanted = most / largest(t->dtype);
                cr_assert(fabs((double)*factor - wanted) <= 1e-6 * most, "%s %s: factor %g, expected %g", c->name, name,
                          (double)*factor, wanted);
            }
            check_row(a, name, t->dtype, row, error, t->size[3], at, factor ? *factor : 1);
            memset(at, 0xff, row_size);
            if (c->scales == 3 && factor)
                *factor = -5;
        }
    for (size_t i = 0; i < s->size; i++)
        cr_assert_eq(s->bytes[i], 0xff, "%s %s: byte %zu, of no new row, was written", c->name, name, i);
    for (int64_t i = 0; c->scales == 3 && i < s->factor_count; i++)
        cr_assert_eq(s->factors[i], -5, "%s %s: a factor of no new row was written", c->name, name);
    attune_buffer_destroy(t->buffer);
    attune_buffer_destroy(s->scale.buffer);
    free(s->bytes);
    free(s->factors);
}

/* Rows of the call, in the rank of the batch. */
static attune_tensor rows_of(attune_device *device, const appended *a, const array *values)
{
    attune_tensor t = {
        .buffer = upload(device, values->data, (uint64_t)array_count(values) * attune_dtype_size(values->dtype)),
        .dtype = values->dtype,
        .rank = 3,
        .size = {values->size[0], values->size[1], values->size[2]}};
    if (a->c->flags & UNIFORM) {
        const int64_t heads = values->size[1], columns = values->size[2];
        t.rank = 4;
        memcpy(t.size, (int64_t[]){a->sequences, heads, a->rows_each, columns}, sizeof t.size);
        memcpy(t.stride, (int64_t[]){a->rows_each * heads * columns, columns, heads * columns, 1}, sizeof t.stride);
    }
    return t;
}

static attune_tensor integers(attune_device *device, const appended *a, attune_dtype dtype, const void *data,
                              int64_t count, bool of_rows)
{
    attune_tensor t = {.buffer = upload(device, data, (uint64_t)count * attune_dtype_size(dtype)),
                       .dtype = dtype,
                       .rank = 1,
                       .size = {count}};
    if (of_rows && a->c->flags & UNIFORM) {
        t.rank = 2;
        memcpy(t.size, (int64_t[]){a->sequences, a->rows_each, 0, 0}, sizeof t.size);
    }
    return t;
}

static attune_tensor table_of(attune_device *device, const array *values)
{
    attune_tensor t = {
        .buffer = upload(device, values->data, (uint64_t)array_count(values) * attune_dtype_size(values->dtype)),
        .dtype = values->dtype,
        .rank = values->rank};
    memcpy(t.size, values->size, values->rank * sizeof t.size[0]);
    return t;
}

static void check_queries(const appended *a, const attune_tensor *out)
{
    const append_case *c = a->c;
    failure why;
    array got;
    double row[576], error[576];
    cr_assert(array_create(&got, c->dtype, 3, (int64_t[]){a->tokens, c->heads, c->d}, &why));
    OK(attune_buffer_read(out->buffer, 0, got.data, (uint64_t)array_count(&got) * attune_dtype_size(c->dtype)));
    for (int64_t i = 0; i < a->tokens; i++) {
        const bool rotated = c->flags & (ROPE | INTERLEAVED);
        const bool written = a->position[i] != INT64_MIN && (!rotated || (a->position[i] >= 0 && a->position[i] < 48));
        for (int64_t h = 0; h < c->heads; h++) {
            if (written)
                exact_row(a, &a->q, &a->q_norm, i, h, row, error);
            for (int64_t j = 0; j < c->d; j++) {
                const int64_t at = (i * c->heads + h) * c->d + j;
                const double before = c->flags & IN_PLACE ? array_get(&a->q, at) : -77;
                cr_assert(written ? near(c->dtype, array_get(&got, at), row[j], error[j])
                                  : array_get(&got, at) == before,
                          "%s q_out: row %lld has %.9g, expected %.9g", c->name, (long long)i, array_get(&got, at),
                          written ? row[j] : before);
            }
        }
    }
    array_free(&got);
}

/* error: of arithmetic in f32 on the device; 0 = in double. */
static void run_case(attune_device *device, const append_case *c, double error)
{
    appended a;
    draw(c, test_seed() * 1000003 + (uint64_t)(c - cases), &a);
    a.error = error;
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = c->dtype,
                                    .kv_dtype = c->k_dtype,
                                    .v_dtype = c->v_dtype,
                                    .head_dim = (uint32_t)c->d,
                                    .head_dim_v = (uint32_t)c->dv,
                                    .batch = a.sequences,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .q_len = 9,
                                    .kv_len = 48,
                                    .tokens = a.tokens,
                                    .page = c->page};
    attune_plan *plan;
    OK(attune_plan_create(device, &problem, NULL, &plan));
    stored k, v = {.bytes = NULL};
    store_create(device, &a, c->k_dtype, c->d, &k);
    if (!(c->flags & VIEW))
        store_create(device, &a, c->v_dtype, c->dv, &v);
    const attune_cache cache = {
        .struct_size = sizeof cache,
        .k = k.tensor,
        .v = v.tensor,
        .k_scale = k.scale,
        .v_scale = v.scale,
        .pages = c->page ? (attune_tensor){.buffer = upload(device, a.table, (uint64_t)(a.sequences * a.entries) * 4),
                                           .dtype = ATTUNE_I32,
                                           .rank = 2,
                                           .size = {a.sequences, a.entries}}
                         : (attune_tensor){.buffer = NULL}};
    attune_batch batch = {.struct_size = sizeof batch,
                          .kv_len = integers(device, &a, ATTUNE_I32, a.kv_len, a.sequences, false)};
    if (!(c->flags & UNIFORM))
        batch.q_start = integers(device, &a, ATTUNE_I32, a.q_start, a.sequences + 1, false);
    attune_append_args args = {.struct_size = sizeof args,
                               .k = rows_of(device, &a, &a.k),
                               .cache = &cache,
                               .rotary_first = (uint32_t)c->rotary_first,
                               .interleaved = c->flags & INTERLEAVED};
    if (!(c->flags & VIEW))
        args.v = rows_of(device, &a, &a.v);
    if (c->flags & SLOTS)
        args.slots = integers(device, &a, ATTUNE_I64, a.slots, a.tokens, true);
    if (!(c->flags & SLOTS) || c->flags & UNIFORM)
        args.batch = &batch;
    if (c->flags & POSITIONS)
        args.positions = integers(device, &a, ATTUNE_I32, a.positions, a.tokens, true);
    if (c->flags & (ROPE | INTERLEAVED)) {
        args.cosine = table_of(device, &a.cosine);
        args.sine = table_of(device, &a.sine);
    }
    if (c->flags & NORM) {
        args.norm_epsilon = EPSILON;
        args.k_norm = table_of(device, &a.k_norm);
        if (c->flags & QUERIES)
            args.q_norm = table_of(device, &a.q_norm);
    }
    if (c->flags & QUERIES) {
        failure why;
        array canary;
        cr_assert(array_create(&canary, c->dtype, 3, a.q.size, &why));
        for (int64_t i = 0; i < array_count(&canary); i++)
            array_set(&canary, i, -77);
        args.q = rows_of(device, &a, &a.q);
        args.q_out = c->flags & IN_PLACE ? args.q : rows_of(device, &a, &canary);
        array_free(&canary);
    }
    attune_completion completion;
    OK(attune_append(plan, attune_device_queue(device), &args, &completion));
    OK(attune_completion_wait(completion, UINT64_MAX));
    store_check(&a, "k", &a.k, &a.k_norm, &k);
    if (!(c->flags & VIEW))
        store_check(&a, "v", &a.v, NULL, &v);
    if (c->flags & QUERIES)
        check_queries(&a, &args.q_out);
    attune_buffer *all[] = {args.k.buffer,       args.v.buffer,
                            args.slots.buffer,   args.positions.buffer,
                            args.cosine.buffer,  args.sine.buffer,
                            args.k_norm.buffer,  args.q_norm.buffer,
                            args.q.buffer,       c->flags & IN_PLACE ? NULL : args.q_out.buffer,
                            cache.pages.buffer,  batch.kv_len.buffer,
                            batch.q_start.buffer};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attune_buffer_destroy(all[i]);
    attune_plan_destroy(plan);
    undraw(&a);
}

Test(append, cpu)
{
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(NULL, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        run_case(device, &cases[i], 0);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Kernels of the model are not those of a device. */
static const attune_instance_desc without_cache = {.struct_size = sizeof without_cache, .cache_folder = ""};

/* A sum of squares has at most 16 roundings in a row, of which a root halves the error, and 10 are of the rest. */
static void run_device(const char *backend, unsigned flags)
{
    attune_instance *instance;
    attune_device *device;
    OK(attune_instance_create(&without_cache, &instance));
    device = device_or_skip(instance, backend);
    /* A driver that compiles on the CPU takes a second for a case. */
    const size_t step = test_sampled() ? 7 : 1;
    size_t ran = 0;
    for (size_t i = test_seed() % step; i < sizeof cases / sizeof cases[0]; i += step)
        if (cases[i].dtype != ATTUNE_F64 && (cases[i].flags & flags) == flags && test_part(i) &&
            test_case(cases[i].name)) {
            run_case(device, &cases[i], 0x18p-24);
            ran++;
        }
    test_case_found(ran);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(append, cuda)
{
    run_device("cuda", 0);
}

Test(append, model)
{
    model_or_skip();
    run_device("cuda", 0);
}

Test(append, vulkan)
{
    run_device("vulkan", 0);
}

Test(append, opencl)
{
    run_device("opencl", 0);
}

/* The smallest of them: an interpreter of kernels takes minutes for all (.ci/opencl). */
Test(append, opencl_uniform)
{
    run_device("opencl", UNIFORM);
}

/* SPDX-License-Identifier: MIT */
#include "cases/served.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/quantised.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

bool served_live(const served *s, int64_t b)
{
    return b < s->live && s->q_len[b] > 0;
}

int64_t served_pages(const served *s, int64_t b)
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

/* Of a type of floats. */
static void add_nans(served *s, int64_t b)
{
    for (int64_t h = 0; h < s->c->kv_heads && s->kv_len[b]; h++) {
        const int64_t at = h * s->kv_len[b] * s->c->dv, size = (int64_t)attune_dtype_size(s->v_dtype);
        array_set(&s->v[b], at, NAN);
        memcpy(s->v_bytes[b] + at * size, (char *)s->v[b].data + at * size, (size_t)size);
    }
}

void served_draw(const serving_case *c, attune_dtype dtype, uint64_t seed, served *s)
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
        s->entry0[b + 1] = s->entry0[b] + served_pages(s, b);
        draw_keys(s, s->k_dtype, b, c->d, &r, &s->k[b], &s->k_bytes[b], &s->k_scale[b]);
        draw_keys(s, s->v_dtype, b, c->dv, &r, &s->v[b], &s->v_bytes[b], &s->v_scale[b]);
        for (int64_t row = 0; c->flags & VIEW && row < c->kv_heads * s->k[b].size[2]; row++)
            for (int64_t i = 0; i < c->dv; i++)
                array_set(&s->v[b], row * c->dv + i, array_get(&s->k[b], row * c->d + i));
        if (c->flags & INFINITE)
            add_infinities(s, b);
        if (c->flags & NAN_V)
            add_nans(s, b);
        if (c->flags & SHARED && b)
            share(s, b);
        /* The oracle has one type for both. */
        array *both[2] = {&s->k[b], &s->v[b]};
        for (int i = 0; s->k_dtype != s->v_dtype && i < 2; i++) {
            array in_f32;
            cr_assert(array_convert(both[i], ATTUNE_F32, &in_f32, &why));
            array_free(both[i]);
            *both[i] = in_f32;
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

void served_free(served *s)
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

attune_buffer *served_upload(attune_device *device, const void *data, uint64_t bytes)
{
    attune_buffer *buffer;
    OK(attune_buffer_create(device, bytes, &buffer));
    OK(attune_buffer_write(buffer, 0, data, bytes));
    return buffer;
}

attune_tensor served_integers(attune_device *device, const int32_t *data, uint32_t rank, int64_t size0, int64_t size1)
{
    return (attune_tensor){.buffer =
                               served_upload(device, data, (uint64_t)(size0 * (rank > 1 ? size1 : 1)) * sizeof *data),
                           .dtype = ATTUNE_I32,
                           .rank = rank,
                           .size = {size0, size1}};
}

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
        for (int64_t i = 0; i < served_pages(s, b); i++)
            fill_page(s, &rows, (const unsigned char *)scale[b], b, i * page, c->page ? place[s->entry0[b] + i] : b,
                      (unsigned char *)data);
    t.buffer = served_upload(device, data, (uint64_t)count * sizeof *data);
    free(data);
    return t;
}

served_pool served_place(attune_device *device, const served *s, uint64_t seed)
{
    const serving_case *c = s->c;
    random_state r = {seed};
    const int64_t entries = c->page ? s->entry0[s->sequences] : s->sequences, spare = c->page ? 5 : 0;
    const int64_t pages = entries + spare, page = c->page ? c->page : s->most_keys + (int64_t)(seed % 7);
    served_pool p = {.place = calloc((size_t)pages, sizeof *p.place)};
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
        for (int64_t i = 0; i < served_pages(s, b); i++) {
            const int64_t entry = c->page ? s->entry0[b] + i : b;
            if (s->hole[entry])
                continue;
            fill_page(s, &p.k, s->k_bytes[b], b, i * page, p.place[entry], images[0]);
            if (!(c->flags & VIEW))
                fill_page(s, &p.v, s->v_bytes[b], b, i * page, p.place[entry], v_image);
        }
    p.k.buffer = served_upload(device, images[0], size);
    if (!(c->flags & VIEW))
        p.v.buffer = c->flags & BESIDE ? p.k.buffer : served_upload(device, images[1], size);
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
        for (int64_t i = 0; i < served_pages(s, b); i++) {
            const int64_t entry = s->entry0[b] + i;
            list[entry] = table[b * most + i] = s->hole[entry] ? garbage[entry % 4] : (int32_t)p.place[entry];
        }
    for (int64_t b = 0; b <= s->sequences; b++)
        start[b] = (int32_t)s->entry0[b];
    if (c->flags & LIST) {
        p.pages = served_integers(device, list, 1, entries, 0);
        p.pages_start = served_integers(device, start, 1, s->sequences + 1, 0);
    } else
        p.pages = served_integers(device, table, 2, s->sequences, most);
    free(table);
    return p;
}

void served_pool_free(served_pool *p)
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

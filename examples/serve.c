/* SPDX-License-Identifier: MIT */
/*
 * Serves a transformer of llama's architecture: sequences of different lengths at once, over a paged cache, with
 * continuous batching. Attention is attune's, everything else is plain C.
 *
 *     cc -O3 serve.c $(pkg-config --cflags --libs attune) -lm && ./a.out --device cpu --model MODEL.gguf PROMPTS
 *
 * PROMPTS has a line of token numbers for each request; without it prompts are random. Without --model the weights are
 * random too. A request that has a slot and pages for all of its tokens joins the batch, and leaves it with its last
 * token. Each step computes at most `rows` tokens in one batch: one of each sequence that is decoded, and chunks of
 * prompts in the rest. attune_append rotates queries and keys, and writes keys and values to the cache in the type of
 * --cache. With --check every token's logits are compared with those of the same model computed in float64,
 * without a cache and without attune.
 */
#include <attune/attune.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                                                      \
    if ((call) != ATTUNE_OK)                                                                                           \
    return fprintf(stderr, "%s\n", attune_last_error()), false

static bool fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return false;
}

static uint64_t random_state;

/* SplitMix64 (Steele et al., 2014). */
static uint64_t draw(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------------------ model */

typedef struct block {
    float *norm1, *q, *k, *v, *o, *norm2, *gate, *up, *down;
} block;

typedef struct model {
    int64_t layers, width, hidden, heads, kv_heads, head, vocabulary, context;
    double epsilon, base; /* of the norms, of RoPE's frequencies */
    float *embed, *norm, *out, *factors;
    block *blocks;
    float *cosines, *sines; /* [context, head / 2] */
} model;

/* Matrices are [outputs, inputs], and RoPE rotates neighbours, as in GGUF. */
typedef bool (*source)(void *context, const char *name, bool optional, int64_t rows, int64_t columns, float **weights);

static bool read_weights(model *m, source get, void *context)
{
    char name[64];
    m->blocks = calloc((size_t)m->layers, sizeof *m->blocks);
    if (!m->blocks)
        return fail("model", "no memory");
    for (int64_t i = 0; i < m->layers; i++) {
        block *l = &m->blocks[i];
        const struct {
            const char *name;
            int64_t rows, columns;
            float **weights;
        } all[] = {{"attn_norm", 1, m->width, &l->norm1},
                   {"attn_q", m->heads * m->head, m->width, &l->q},
                   {"attn_k", m->kv_heads * m->head, m->width, &l->k},
                   {"attn_v", m->kv_heads * m->head, m->width, &l->v},
                   {"attn_output", m->width, m->heads * m->head, &l->o},
                   {"ffn_norm", 1, m->width, &l->norm2},
                   {"ffn_gate", m->hidden, m->width, &l->gate},
                   {"ffn_up", m->hidden, m->width, &l->up},
                   {"ffn_down", m->width, m->hidden, &l->down}};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", (int)i, all[j].name);
            if (!get(context, name, false, all[j].rows, all[j].columns, all[j].weights))
                return false;
        }
    }
    if (!get(context, "token_embd.weight", false, m->vocabulary, m->width, &m->embed) ||
        !get(context, "output_norm.weight", false, 1, m->width, &m->norm) ||
        !get(context, "output.weight", true, m->vocabulary, m->width, &m->out) ||
        !get(context, "rope_freqs.weight", true, 1, m->head / 2, &m->factors))
        return false;
    const size_t count = (size_t)(m->context * m->head / 2);
    m->cosines = malloc(count * sizeof *m->cosines);
    m->sines = malloc(count * sizeof *m->sines);
    if (!m->cosines || !m->sines)
        return fail("model", "no memory");
    return true;
}

static double angle(const model *m, int64_t position, int64_t pair)
{
    const double frequency = pow(m->base, -2.0 * (double)pair / (double)m->head);
    return (double)position * frequency / (m->factors ? (double)m->factors[pair] : 1);
}

static void make_angles(model *m)
{
    for (int64_t i = 0; i < m->context * m->head / 2; i++) {
        m->cosines[i] = (float)cos(angle(m, i / (m->head / 2), i % (m->head / 2)));
        m->sines[i] = (float)sin(angle(m, i / (m->head / 2), i % (m->head / 2)));
    }
}

static void model_free(model *m)
{
    for (int64_t i = 0; m->blocks && i < m->layers; i++) {
        block *l = &m->blocks[i];
        float *all[] = {l->norm1, l->q, l->k, l->v, l->o, l->norm2, l->gate, l->up, l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            free(all[j]);
    }
    float *all[] = {m->embed, m->norm, m->out, m->factors, m->cosines, m->sines};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++)
        free(all[j]);
    free(m->blocks);
}

/* Norms near 1, matrices that keep the size of their inputs. */
static bool draw_weights(void *context, const char *name, bool optional, int64_t rows, int64_t columns, float **weights)
{
    (void)context;
    if (optional) /* the embedding is the output's matrix too */
        return true;
    *weights = malloc((size_t)(rows * columns) * sizeof **weights);
    if (!*weights)
        return fail(name, "no memory");
    for (int64_t i = 0; i < rows * columns; i++) {
        const double uniform = (double)(draw() >> 11) / (double)(1ll << 53) * 2 - 1;
        (*weights)[i] = (float)(rows == 1 ? 1 + 0.2 * uniform : uniform * sqrt(3 / (double)columns));
    }
    return true;
}

static bool model_draw(model *m)
{
    *m = (model){.layers = 2,
                 .width = 64,
                 .hidden = 160,
                 .heads = 4,
                 .kv_heads = 2,
                 .head = 32,
                 .vocabulary = 96,
                 .context = 256,
                 .epsilon = 1e-5,
                 .base = 10000};
    return read_weights(m, draw_weights, NULL);
}

/* ------------------------------------------------------------------------------------------------------------- GGUF */

enum {
    GGUF_U32 = 4,
    GGUF_F32 = 6,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q8_0 = 8,
    GGML_BF16 = 30
};

/* A file in memory, which is not trusted: every size is compared with what is left. */
typedef struct file {
    const char *path;
    unsigned char *bytes;
    uint64_t size, at, data; /* data: of the tensors */
    uint64_t tensors, tensors_at;
    bool ended; /* something was read past the end */
} file;

static uint64_t take(file *f, uint64_t size)
{
    f->ended |= size > f->size - f->at;
    f->at += f->ended ? 0 : size;
    return f->at - (f->ended ? 0 : size);
}

/* A little-endian integer. */
static uint64_t integer(file *f, uint64_t size)
{
    const uint64_t at = take(f, size);
    uint64_t value = 0;
    for (uint64_t i = 0; i < size && !f->ended; i++)
        value |= (uint64_t)f->bytes[at + i] << 8 * i;
    return value;
}

static bool text_is(file *f, const char *text)
{
    const uint64_t length = integer(f, 8), at = take(f, length);
    return !f->ended && length == strlen(text) && !memcmp(f->bytes + at, text, length);
}

static void skip(file *f, uint64_t type)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == GGUF_STRING) {
        (void)take(f, integer(f, 8));
    } else if (type == GGUF_ARRAY) {
        const uint64_t of = integer(f, 4), count = integer(f, 8);
        if (of == GGUF_STRING)
            for (uint64_t i = 0; i < count && !f->ended; i++)
                (void)take(f, integer(f, 8));
        else
            (void)take(f, of < sizeof sizes && sizes[of] && count <= f->size ? count * sizes[of] : UINT64_MAX);
    } else {
        (void)take(f, type < sizeof sizes ? sizes[type] : UINT64_MAX);
    }
}

static float half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexpf((float)(fraction + 1024), exponent - 25)
                                      : ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static void convert(const unsigned char *from, uint64_t type, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        if (type == GGML_F32) {
            memcpy(&to[i], from + 4 * i, 4);
        } else if (type == GGML_Q8_0) {
            const unsigned char *const quants = from + i / 32 * 34;
            to[i] = half((uint16_t)(quants[0] | quants[1] << 8)) * (float)(int8_t)quants[2 + i % 32];
        } else {
            bits = (uint32_t)(from[2 * i] | from[2 * i + 1] << 8);
            to[i] = half((uint16_t)bits);
            bits <<= 16;
            if (type == GGML_BF16)
                memcpy(&to[i], &bits, 4);
        }
    }
}

static bool load_weights(void *context, const char *name, bool optional, int64_t rows, int64_t columns, float **weights)
{
    file *f = context;
    f->at = f->tensors_at;
    for (uint64_t i = 0; i < f->tensors && !f->ended; i++) {
        const bool found = text_is(f, name);
        const uint64_t rank = integer(f, 4);
        uint64_t size[4] = {1, 1, 1, 1};
        for (uint64_t j = 0; j < rank && !f->ended; j++)
            size[j & 3] = integer(f, 8);
        const uint64_t type = integer(f, 4), offset = integer(f, 8);
        if (!found || f->ended)
            continue;
        const uint64_t count = (uint64_t)(rows * columns);
        const uint64_t bytes = type == GGML_F32 ? 4 * count : type == GGML_Q8_0 ? count / 32 * 34 : 2 * count;
        if (rank > 2 || size[0] != (uint64_t)columns || size[1] != (uint64_t)rows)
            return fail(name, "its shape is not the one that the metadata give");
        if ((type != GGML_F32 && type != GGML_F16 && type != GGML_BF16 && type != GGML_Q8_0) ||
            (type == GGML_Q8_0 && columns % 32))
            return fail(name, "its type is not F32, F16, BF16 or Q8_0");
        if (offset > f->size - f->data || bytes > f->size - f->data - offset)
            return fail(name, "it ends past the end of the file");
        if (!(*weights = malloc(count * sizeof **weights)))
            return fail(name, "no memory");
        convert(f->bytes + f->data + offset, type, (int64_t)count, *weights);
        return true;
    }
    return optional || fail(name, "the file has no such tensor");
}

/* The metadata that a llama has; the other entries are skipped. */
static bool load_metadata(file *f, model *m)
{
    const struct {
        const char *name;
        int64_t *integer;
        double *number;
    } wanted[] = {{"llama.block_count", &m->layers, NULL},
                  {"llama.embedding_length", &m->width, NULL},
                  {"llama.feed_forward_length", &m->hidden, NULL},
                  {"llama.attention.head_count", &m->heads, NULL},
                  {"llama.attention.head_count_kv", &m->kv_heads, NULL},
                  {"llama.attention.key_length", &m->head, NULL},
                  {"llama.context_length", &m->context, NULL},
                  {"llama.attention.layer_norm_rms_epsilon", NULL, &m->epsilon},
                  {"llama.rope.freq_base", NULL, &m->base}};
    uint64_t alignment = 32;
    if (integer(f, 4) != 0x46554747 || integer(f, 4) != 3)
        return fail(f->path, "not a GGUF file of version 3");
    f->tensors = integer(f, 8);
    for (uint64_t i = 0, count = integer(f, 8); i < count && !f->ended; i++) {
        const uint64_t key = f->at;
        size_t found = 0;
        for (bool same = false; found < sizeof wanted / sizeof *wanted && !same; found += !same) {
            f->at = key;
            same = text_is(f, wanted[found].name);
        }
        f->at = key;
        const bool aligned = text_is(f, "general.alignment");
        const uint64_t type = integer(f, 4);
        const bool known = found < sizeof wanted / sizeof *wanted;
        if (type == GGUF_U32 && (aligned || (known && wanted[found].integer))) {
            const uint64_t value = integer(f, 4);
            *(aligned ? (int64_t *)&alignment : wanted[found].integer) = (int64_t)value;
        } else if (type == GGUF_F32 && known && wanted[found].number) {
            const uint32_t bits = (uint32_t)integer(f, 4);
            float value;
            memcpy(&value, &bits, 4);
            *wanted[found].number = (double)value;
        } else {
            skip(f, type);
        }
    }
    f->tensors_at = f->at;
    for (uint64_t i = 0; i < f->tensors && !f->ended; i++) {
        const bool embedding = text_is(f, "token_embd.weight");
        for (uint64_t j = 0, rank = integer(f, 4); j < rank && !f->ended; j++) {
            const uint64_t size = integer(f, 8);
            m->vocabulary = embedding && j == 1 ? (int64_t)size : m->vocabulary;
        }
        (void)take(f, 12);
    }
    if (f->ended || !alignment || f->size - f->at < (alignment - f->at % alignment) % alignment)
        return fail(f->path, "the file ends before its tensors");
    f->data = f->at + (alignment - f->at % alignment) % alignment;
    return true;
}

static bool model_check(const char *path, const model *m)
{
    const int64_t limit = 1 << 20;
    const int64_t sizes[] = {m->layers, m->width, m->hidden, m->heads, m->kv_heads, m->head, m->vocabulary, m->context};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1 || sizes[i] > limit)
            return fail(path, "the metadata lack a size of a llama, or have one past 1,048,576");
    if (m->heads % m->kv_heads || m->head % 8 || !(m->epsilon > 0) || !(m->base > 0))
        return fail(path, "heads are not a multiple of kv heads, or a head's size not one of 8");
    return true;
}

static bool read_file(const char *path, unsigned char **bytes, uint64_t *size)
{
    FILE *in = fopen(path, "rb");
    long length = -1;
    if (in && !fseek(in, 0, SEEK_END) && (length = ftell(in)) >= 0 && !fseek(in, 0, SEEK_SET))
        *bytes = malloc((size_t)length + 1);
    const bool good = *bytes && fread(*bytes, 1, (size_t)length, in) == (size_t)length;
    if (in)
        fclose(in);
    if (!good)
        return fail(path, "cannot be read");
    (*bytes)[length] = 0;
    *size = (uint64_t)length;
    return true;
}

static bool model_load(const char *path, model *m)
{
    file f = {.path = path};
    *m = (model){.epsilon = 1e-5, .base = 10000};
    bool good = read_file(path, &f.bytes, &f.size) && load_metadata(&f, m);
    m->kv_heads = m->kv_heads ? m->kv_heads : m->heads;
    m->head = m->head ? m->head : m->heads ? m->width / m->heads : 0;
    good = good && model_check(path, m) && read_weights(m, load_weights, &f);
    free(f.bytes);
    return good;
}

/* --------------------------------------------------------------------------------------------------------- requests */

typedef struct request {
    int32_t *tokens; /* the prompt, and what has been generated */
    int64_t prompt, known, total;
    float *logits; /* with --check: of each generated token */
} request;

typedef struct requests {
    request *all;
    int64_t count;
} requests;

static bool request_add(requests *r, const int32_t *tokens, int64_t prompt, int64_t generate)
{
    request *all = realloc(r->all, (size_t)(r->count + 1) * sizeof *all);
    if (!all)
        return fail("prompts", "no memory");
    r->all = all;
    request *last = &all[r->count];
    *last = (request){.prompt = prompt, .known = prompt, .total = prompt + generate};
    if (!(last->tokens = malloc((size_t)last->total * sizeof *tokens)))
        return fail("prompts", "no memory");
    memcpy(last->tokens, tokens, (size_t)prompt * sizeof *tokens);
    r->count++;
    return true;
}

/* The n-th request generates between half of `generate` tokens and all of them, so that they end at different times. */
static int64_t generated(int64_t n, int64_t generate)
{
    return generate - n % (generate / 2 + 1);
}

static bool requests_draw(requests *r, const model *m, int64_t count, int64_t generate)
{
    int32_t tokens[64];
    for (int64_t i = 0; i < count; i++) {
        const int64_t prompt = 1 + (int64_t)(draw() % (sizeof tokens / sizeof *tokens));
        for (int64_t j = 0; j < prompt; j++)
            tokens[j] = (int32_t)(draw() % (uint64_t)m->vocabulary);
        if (!request_add(r, tokens, prompt, generated(i, generate)))
            return false;
    }
    return true;
}

static bool requests_load(const char *path, requests *r, const model *m, int64_t generate)
{
    unsigned char *text = NULL;
    uint64_t size;
    int32_t *tokens = NULL;
    bool good = read_file(path, &text, &size) && (tokens = malloc((size_t)size * sizeof *tokens + 1)) != NULL;
    char *at = (char *)text;
    while (good && *at) {
        char *const end = at + strcspn(at, "\n");
        int64_t prompt = 0;
        for (char *next; at < end; at = next) {
            const long token = strtol(at, &next, 10);
            if (next == at || next > end)
                break;
            if (token < 0 || token >= m->vocabulary)
                good = fail(path, "a token is not in the vocabulary");
            tokens[prompt++] = (int32_t)token;
        }
        if (at + strspn(at, " \t\r") < end)
            good = fail(path, "expected token numbers, with spaces between them");
        if (good && prompt)
            good = request_add(r, tokens, prompt, generated(r->count, generate));
        at = end + (*end == '\n');
    }
    free(text);
    free(tokens);
    return good && (r->count || fail(path, "it has no prompt"));
}

/* ----------------------------------------------------------------------------------------------------------- engine */

typedef struct settings {
    const char *device, *model, *prompts, *cache;
    int64_t seed, requests, generate, slots, rows, page, pages;
    bool check;
} settings;

/* K_ROWS and V_ROWS: the keys and values of a step, before they are in the cache. */
enum { Q, O, K_ROWS, V_ROWS, K, V, K_SCALE, V_SCALE, COSINE, SINE, TABLE, START, LENGTH, WORK, BUFFERS };

/* The types of the cache, and how far logits may be from those of a cache that keeps them exactly, of the
 * largest logit. */
static const struct {
    attune_dtype dtype;
    bool scales;
    double limit;
} cache_types[] = {{ATTUNE_F32, false, 1e-5},  {ATTUNE_F16, false, 2e-3},  {ATTUNE_BF16, false, 2e-2},
                   {ATTUNE_F8E4M3, true, 0.3}, {ATTUNE_F8E5M2, true, 0.4}, {ATTUNE_I8, true, 0.06},
                   {ATTUNE_Q8_0, false, 0.06}, {ATTUNE_Q4_0, false, 0.5}};

/* One of the sequences of the batch. */
typedef struct slot {
    request *request;     /* NULL = free */
    int64_t cached, rows; /* tokens in the cache, and of this step */
    int64_t first;        /* row of this step */
} slot;

typedef struct engine {
    const model *m;
    int64_t slots, rows, page, pages, table_width;
    attune_dtype cache;
    bool scales; /* the cache has a factor for each key and head */
    double limit;
    slot *slot;
    int32_t *table, *start, *length; /* as the device has them */
    int32_t *free_pages;
    int64_t free_count;
    /* The activations of a step, [rows, ...]. */
    float *x, *normed, *q, *k, *v, *attended, *gate, *up, *logits;
    attune_instance *instance;
    attune_device *device;
    attune_expr *causal;
    attune_plan *plan;
    attune_buffer *buffers[BUFFERS];
    int64_t steps, computed, generated, most_live;
    double seconds, attention_seconds;
    long allocations; /* of attune, until now */
} engine;

static void *count_alloc(void *user, size_t size, size_t alignment)
{
    ++*(long *)user;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void count_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* Keys of all heads in the cache of one layer, whose pages are [page, kv_heads, head]. */
static int64_t layer_keys(const engine *e)
{
    return e->pages * e->page * e->m->kv_heads;
}

/* Blocks, or elements, of one head's key. */
static int64_t row_blocks(const engine *e)
{
    return e->m->head / attune_dtype_block(e->cache);
}

static bool engine_plan(engine *e, const char *device)
{
    const model *m = e->m;
    const attune_instance_desc desc = {.struct_size = sizeof desc,
                                       .allocator = {count_alloc, count_release, &e->allocations}};
    TRY(attune_instance_create(&desc, &e->instance));
    TRY(attune_device_open(e->instance, device, &e->device));
    /* q and kv are positions in the sequence, so that this is causal for prompts, chunks of them and decode alike. */
    TRY(attune_expr_create(e->instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &e->causal));
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .kv_dtype = e->cache,
                                    .head_dim = (uint32_t)m->head,
                                    .batch = e->slots,
                                    .heads = m->heads,
                                    .kv_heads = m->kv_heads,
                                    .q_len = e->rows,
                                    .kv_len = e->table_width * e->page,
                                    .mask = e->causal,
                                    .tokens = e->rows,
                                    .page = e->page};
    TRY(attune_plan_create(e->device, &problem, NULL, &e->plan));
    const uint64_t work = attune_plan_workspace_size(e->plan);
    const uint64_t q = 4 * (uint64_t)(e->rows * m->heads * m->head), angles = 4 * (uint64_t)(m->context * m->head / 2);
    const uint64_t kv = 4 * (uint64_t)(e->rows * m->kv_heads * m->head), keys = (uint64_t)(m->layers * layer_keys(e));
    const uint64_t cache = keys * (uint64_t)row_blocks(e) * attune_dtype_size(e->cache),
                   scale = e->scales ? 4 * keys : 1;
    const uint64_t sizes[BUFFERS] = {[Q] = q,
                                     [O] = q,
                                     [K_ROWS] = kv,
                                     [V_ROWS] = kv,
                                     [K] = cache,
                                     [V] = cache,
                                     [K_SCALE] = scale,
                                     [V_SCALE] = scale,
                                     [COSINE] = angles,
                                     [SINE] = angles,
                                     [TABLE] = 4 * (uint64_t)(e->slots * e->table_width),
                                     [START] = 4 * (uint64_t)(e->slots + 1),
                                     [LENGTH] = 4 * (uint64_t)e->slots,
                                     [WORK] = work ? work : 1};
    for (int i = 0; i < BUFFERS; i++)
        TRY(attune_buffer_create(e->device, sizes[i], &e->buffers[i]));
    TRY(attune_buffer_write(e->buffers[COSINE], 0, m->cosines, angles));
    TRY(attune_buffer_write(e->buffers[SINE], 0, m->sines, angles));
    return true;
}

static bool choose_cache(engine *e, const char *name)
{
    for (size_t i = 0; i < sizeof cache_types / sizeof *cache_types; i++)
        if (!strcmp(name, attune_dtype_string(cache_types[i].dtype))) {
            e->cache = cache_types[i].dtype;
            e->scales = cache_types[i].scales;
            e->limit = cache_types[i].limit;
            return e->m->head % attune_dtype_block(e->cache) == 0 ||
                   fail("--cache", "a head's size is not a multiple of the type's block");
        }
    return fail("--cache", "expected f32, f16, bf16, f8e4m3, f8e5m2, i8, q8_0 or q4_0");
}

static void *zeros(int64_t count, size_t size)
{
    return calloc(count > 0 ? (size_t)count : 1, size);
}

static bool engine_create(engine *e, const model *m, const settings *s, int64_t longest)
{
    *e = (engine){
        .m = m, .slots = s->slots, .rows = s->rows, .page = s->page, .table_width = (longest + s->page - 1) / s->page};
    e->pages = s->pages ? s->pages : e->slots * e->table_width;
    e->slot = zeros(e->slots, sizeof *e->slot);
    e->table = zeros(e->slots * e->table_width, sizeof *e->table);
    e->start = zeros(e->slots + 1, sizeof *e->start);
    e->length = zeros(e->slots, sizeof *e->length);
    e->free_pages = zeros(e->pages, sizeof *e->free_pages);
    e->logits = zeros(m->vocabulary, sizeof *e->logits);
    bool good = e->slot && e->table && e->start && e->length && e->free_pages && e->logits;
    const struct {
        float **rows;
        int64_t width;
    } all[] = {{&e->x, m->width},
               {&e->normed, m->width},
               {&e->q, m->heads * m->head},
               {&e->k, m->kv_heads * m->head},
               {&e->v, m->kv_heads * m->head},
               {&e->attended, m->heads * m->head},
               {&e->gate, m->hidden},
               {&e->up, m->hidden}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        good &= (*all[i].rows = zeros(e->rows * all[i].width, sizeof(float))) != NULL;
    if (!good)
        return fail("engine", "no memory");
    for (int64_t i = 0; i < e->pages; i++)
        e->free_pages[e->free_count++] = (int32_t)i;
    return choose_cache(e, s->cache) && engine_plan(e, s->device);
}

static void engine_destroy(engine *e)
{
    void *all[] = {e->slot,   e->table, e->start, e->length, e->free_pages, e->logits, e->x,
                   e->normed, e->q,     e->k,     e->v,      e->attended,   e->gate,   e->up};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < BUFFERS; i++)
        attune_buffer_destroy(e->buffers[i]);
    attune_plan_destroy(e->plan);
    attune_expr_destroy(e->causal);
    attune_device_destroy(e->device);
    attune_instance_destroy(e->instance);
}

static void linear(float *to, const float *from, const float *m, int64_t rows, int64_t outputs, int64_t inputs)
{
    enum { LANES = 16 }; /* sums that do not wait for one another */
    for (int64_t i = 0; i < outputs; i++)
        for (int64_t r = 0; r < rows; r++) {
            const float *a = m + i * inputs, *b = from + r * inputs;
            float sums[LANES] = {0}, sum = 0;
            int64_t j = 0;
            for (; j + LANES <= inputs; j += LANES)
                for (int64_t lane = 0; lane < LANES; lane++)
                    sums[lane] += a[j + lane] * b[j + lane];
            for (; j < inputs; j++)
                sum += a[j] * b[j];
            for (int64_t lane = 0; lane < LANES; lane++)
                sum += sums[lane];
            to[r * outputs + i] = sum;
        }
}

static void rms_norm(float *to, const float *from, const float *gain, int64_t rows, const model *m)
{
    for (int64_t r = 0; r < rows; r++, to += m->width, from += m->width) {
        float squares = 0;
        for (int64_t j = 0; j < m->width; j++)
            squares += from[j] * from[j];
        const float scale = 1 / sqrtf(squares / (float)m->width + (float)m->epsilon);
        for (int64_t j = 0; j < m->width; j++)
            to[j] = gain[j] * scale * from[j];
    }
}

static attune_tensor rows_of(const engine *e, int buffer, int64_t rows, int64_t heads)
{
    return (attune_tensor){
        .buffer = e->buffers[buffer], .dtype = ATTUNE_F32, .rank = 3, .size = {rows, heads, e->m->head}};
}

static attune_tensor cache_of(const engine *e, int buffer, int64_t layer)
{
    const int64_t row = row_blocks(e), key = e->m->kv_heads * row;
    return (attune_tensor){.buffer = e->buffers[buffer],
                           .offset = (uint64_t)(layer * layer_keys(e) * row) * attune_dtype_size(e->cache),
                           .dtype = e->cache,
                           .rank = 4,
                           .size = {e->pages, e->m->kv_heads, e->page, e->m->head},
                           .stride = {e->page * key, row, key, 1}};
}

static attune_tensor scales_of(const engine *e, int buffer, int64_t layer)
{
    const int64_t heads = e->m->kv_heads;
    return (attune_tensor){.buffer = e->scales ? e->buffers[buffer] : NULL,
                           .offset = 4 * (uint64_t)(layer * layer_keys(e)),
                           .dtype = ATTUNE_F32,
                           .rank = 3,
                           .size = {e->pages, heads, e->page},
                           .stride = {e->page * heads, 1, heads}};
}

static attune_tensor angles_of(const engine *e, int buffer)
{
    return (attune_tensor){
        .buffer = e->buffers[buffer], .dtype = ATTUNE_F32, .rank = 2, .size = {e->m->context, e->m->head / 2}};
}

/* rows 0: a list. */
static attune_tensor integers_of(const engine *e, int buffer, int64_t rows, int64_t columns)
{
    return (attune_tensor){.buffer = e->buffers[buffer],
                           .dtype = ATTUNE_I32,
                           .rank = rows ? 2 : 1,
                           .size = {rows ? rows : columns, columns}};
}

static bool attend(engine *e, int64_t layer, int64_t rows)
{
    const model *m = e->m;
    const uint64_t q_bytes = 4 * (uint64_t)(rows * m->heads * m->head),
                   kv_bytes = q_bytes * (uint64_t)m->kv_heads / (uint64_t)m->heads;
    const attune_tensor q = rows_of(e, Q, rows, m->heads);
    const attune_cache cache = {.struct_size = sizeof cache,
                                .k = cache_of(e, K, layer),
                                .v = cache_of(e, V, layer),
                                .pages = integers_of(e, TABLE, e->slots, e->table_width),
                                .k_scale = scales_of(e, K_SCALE, layer),
                                .v_scale = scales_of(e, V_SCALE, layer)};
    const attune_batch batch = {.struct_size = sizeof batch,
                                .q_start = integers_of(e, START, 0, e->slots + 1),
                                .kv_len = integers_of(e, LENGTH, 0, e->slots)};
    /* The rows are the last keys of their sequences: pages and positions are those of the batch. */
    const attune_append_args append = {.struct_size = sizeof append,
                                       .k = rows_of(e, K_ROWS, rows, m->kv_heads),
                                       .v = rows_of(e, V_ROWS, rows, m->kv_heads),
                                       .cache = &cache,
                                       .batch = &batch,
                                       .cosine = angles_of(e, COSINE),
                                       .sine = angles_of(e, SINE),
                                       .interleaved = true,
                                       .q = q,
                                       .q_out = q};
    const attune_forward_args forward = {.struct_size = sizeof forward,
                                         .q = q,
                                         .o = rows_of(e, O, rows, m->heads),
                                         .workspace = e->buffers[WORK],
                                         .cache = &cache,
                                         .batch = &batch};
    attune_queue *queue = attune_device_queue(e->device);
    attune_completion done;
    const double begin = now();
    TRY(attune_buffer_write(e->buffers[Q], 0, e->q, q_bytes));
    TRY(attune_buffer_write(e->buffers[K_ROWS], 0, e->k, kv_bytes));
    TRY(attune_buffer_write(e->buffers[V_ROWS], 0, e->v, kv_bytes));
    TRY(attune_append(e->plan, queue, &append, NULL));
    TRY(attune_forward(e->plan, queue, &forward, &done));
    TRY(attune_completion_wait(done, UINT64_MAX));
    TRY(attune_buffer_read(e->buffers[O], 0, e->attended, q_bytes));
    e->attention_seconds += now() - begin;
    return true;
}

static void add(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

static bool transform(engine *e, int64_t layer, int64_t rows)
{
    const model *m = e->m;
    const block *l = &m->blocks[layer];
    const int64_t width = m->heads * m->head, kv_width = m->kv_heads * m->head;
    rms_norm(e->normed, e->x, l->norm1, rows, m);
    linear(e->q, e->normed, l->q, rows, width, m->width);
    linear(e->k, e->normed, l->k, rows, kv_width, m->width);
    linear(e->v, e->normed, l->v, rows, kv_width, m->width);
    if (!attend(e, layer, rows))
        return false;
    linear(e->normed, e->attended, l->o, rows, m->width, width);
    add(e->x, e->normed, rows * m->width);
    rms_norm(e->normed, e->x, l->norm2, rows, m);
    linear(e->gate, e->normed, l->gate, rows, m->hidden, m->width);
    linear(e->up, e->normed, l->up, rows, m->hidden, m->width);
    for (int64_t i = 0; i < rows * m->hidden; i++)
        e->gate[i] = e->gate[i] / (1 + expf(-e->gate[i])) * e->up[i];
    linear(e->normed, e->gate, l->down, rows, m->width, m->hidden);
    add(e->x, e->normed, rows * m->width);
    return true;
}

/* The next token, from the sequence's last row of this step: the most likely one. */
static void generate(engine *e, slot *s)
{
    const model *m = e->m;
    request *r = s->request;
    rms_norm(e->normed, e->x + (s->first + s->rows - 1) * m->width, m->norm, 1, m);
    linear(e->logits, e->normed, m->out ? m->out : m->embed, 1, m->vocabulary, m->width);
    if (r->logits)
        memcpy(r->logits + (r->known - r->prompt) * m->vocabulary, e->logits,
               (size_t)m->vocabulary * sizeof *e->logits);
    int32_t best = 0;
    for (int32_t i = 1; i < m->vocabulary; i++)
        best = e->logits[i] > e->logits[best] ? i : best;
    r->tokens[r->known++] = best;
    e->generated++;
}

/* The last token of a request is generated, but not fed. */
static int64_t pages_of(const engine *e, const request *r)
{
    return (r->total - 1 + e->page - 1) / e->page;
}

static void join(engine *e, int64_t b, request *r)
{
    e->slot[b] = (slot){.request = r};
    for (int64_t i = 0; i < pages_of(e, r); i++)
        e->table[b * e->table_width + i] = e->free_pages[--e->free_count];
}

static void leave(engine *e, int64_t b)
{
    for (int64_t i = 0; i < pages_of(e, e->slot[b].request); i++)
        e->free_pages[e->free_count++] = e->table[b * e->table_width + i];
    e->slot[b] = (slot){.request = NULL};
}

/* Sequences that are decoded first, then prompts, as far as the rows go. */
static int64_t schedule(engine *e)
{
    int64_t left = e->rows, rows = 0, live = 0;
    for (int64_t b = 0; b < e->slots; b++)
        e->slot[b].rows = 0;
    for (int prompts = 0; prompts < 2; prompts++)
        for (int64_t b = 0; b < e->slots; b++) {
            slot *s = &e->slot[b];
            const int64_t missing = s->request ? s->request->known - s->cached : 0;
            if ((missing > 1) != prompts)
                continue;
            s->rows = missing < left ? missing : left;
            left -= s->rows;
            live += s->request != NULL;
        }
    for (int64_t b = 0; b < e->slots; b++) {
        slot *s = &e->slot[b];
        s->first = rows;
        e->start[b] = (int32_t)rows;
        e->length[b] = (int32_t)(s->cached + s->rows);
        for (int64_t i = 0; i < s->rows; i++, rows++)
            memcpy(e->x + rows * e->m->width, e->m->embed + s->request->tokens[s->cached + i] * e->m->width,
                   (size_t)e->m->width * sizeof *e->x);
    }
    e->start[e->slots] = (int32_t)rows;
    e->most_live = live > e->most_live ? live : e->most_live;
    return rows;
}

static bool step(engine *e)
{
    const int64_t rows = schedule(e);
    TRY(attune_buffer_write(e->buffers[TABLE], 0, e->table, 4 * (uint64_t)(e->slots * e->table_width)));
    TRY(attune_buffer_write(e->buffers[START], 0, e->start, 4 * (uint64_t)(e->slots + 1)));
    TRY(attune_buffer_write(e->buffers[LENGTH], 0, e->length, 4 * (uint64_t)e->slots));
    for (int64_t layer = 0; layer < e->m->layers; layer++)
        if (!transform(e, layer, rows))
            return false;
    for (int64_t b = 0; b < e->slots; b++) {
        slot *s = &e->slot[b];
        s->cached += s->rows;
        if (s->rows && s->cached == s->request->known)
            generate(e, s);
        if (s->request && s->request->known == s->request->total)
            leave(e, b);
    }
    e->steps++;
    e->computed += rows;
    return true;
}

/* Requests join in their order, as soon as there is a slot and there are pages for the next one. */
static bool serve(engine *e, requests *r)
{
    int64_t waiting = 0;
    const int64_t all_pages = e->free_count;
    const double begin = now();
    const long before = e->allocations;
    for (int64_t live = 1; live;) {
        live = 0;
        for (int64_t b = 0; b < e->slots; b++) {
            if (!e->slot[b].request && waiting < r->count && pages_of(e, &r->all[waiting]) <= e->free_count)
                join(e, b, &r->all[waiting++]);
            live += e->slot[b].request != NULL;
        }
        if (live && !step(e))
            return false;
    }
    e->seconds = now() - begin;
    if (waiting < r->count)
        return fail("--pages", "too few for the longest request");
    if (e->free_count != all_pages || e->allocations != before)
        return fail("engine", "pages were lost, or attune allocated in a step");
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ check */

/* The model over a whole sequence, in float64. */
static void linear_f64(double *to, const double *from, const float *m, int64_t rows, int64_t outputs, int64_t inputs)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < outputs; i++) {
            to[r * outputs + i] = 0;
            for (int64_t j = 0; j < inputs; j++)
                to[r * outputs + i] += (double)m[i * inputs + j] * from[r * inputs + j];
        }
}

static void norm_f64(double *to, const double *from, const float *gain, int64_t rows, const model *m)
{
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t j = 0; j < m->width; j++)
            squares += from[r * m->width + j] * from[r * m->width + j];
        for (int64_t j = 0; j < m->width; j++)
            to[r * m->width + j] =
                (double)gain[j] * from[r * m->width + j] / sqrt(squares / (double)m->width + m->epsilon);
    }
}

static void rope_f64(const model *m, double *heads, int64_t rows, int64_t count)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < count * m->head; i += 2) {
            double *pair = heads + r * count * m->head + i;
            const double x = pair[0], y = pair[1], turn = angle(m, r, i % m->head / 2);
            pair[0] = x * cos(turn) - y * sin(turn);
            pair[1] = x * sin(turn) + y * cos(turn);
        }
}

static void attend_f64(const model *m, const double *q, const double *k, const double *v, double *weights, double *o,
                       int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < m->heads; h++) {
            const int64_t at = (r * m->heads + h) * m->head, kv_head = h / (m->heads / m->kv_heads);
            double most = -INFINITY, sum = 0;
            for (int64_t kv = 0; kv <= r; kv++) {
                weights[kv] = 0;
                for (int64_t j = 0; j < m->head; j++)
                    weights[kv] += q[at + j] * k[(kv * m->kv_heads + kv_head) * m->head + j] / sqrt((double)m->head);
                most = fmax(most, weights[kv]);
            }
            for (int64_t kv = 0; kv <= r; kv++)
                sum += weights[kv] = exp(weights[kv] - most);
            for (int64_t j = 0; j < m->head; j++) {
                o[at + j] = 0;
                for (int64_t kv = 0; kv <= r; kv++)
                    o[at + j] += weights[kv] / sum * v[(kv * m->kv_heads + kv_head) * m->head + j];
            }
        }
}

/* The largest difference of a logit, over the largest logit. */
static bool check_request(const model *m, const request *r, double *worst)
{
    const int64_t rows = r->total - 1, width = m->heads * m->head, kv_width = m->kv_heads * m->head;
    const int64_t widest = m->hidden > width ? m->hidden : width;
    double *const memory = calloc((size_t)(rows * (3 * m->width + 2 * widest + 2 * kv_width + 1) + m->vocabulary), 8);
    if (!memory)
        return fail("--check", "no memory");
    double *x = memory, *normed = x + rows * m->width, *sum = normed + rows * m->width, *a = sum + rows * m->width;
    double *b = a + rows * widest, *k = b + rows * widest, *v = k + rows * kv_width, *weights = v + rows * kv_width;
    double *logits = weights + rows, difference = 0, most = 0;
    for (int64_t i = 0; i < rows * m->width; i++)
        x[i] = (double)m->embed[r->tokens[i / m->width] * m->width + i % m->width];
    for (int64_t i = 0; i < m->layers; i++) {
        const block *l = &m->blocks[i];
        norm_f64(normed, x, l->norm1, rows, m);
        linear_f64(a, normed, l->q, rows, width, m->width);
        linear_f64(k, normed, l->k, rows, kv_width, m->width);
        linear_f64(v, normed, l->v, rows, kv_width, m->width);
        rope_f64(m, a, rows, m->heads);
        rope_f64(m, k, rows, m->kv_heads);
        attend_f64(m, a, k, v, weights, b, rows);
        linear_f64(sum, b, l->o, rows, m->width, width);
        for (int64_t j = 0; j < rows * m->width; j++)
            x[j] += sum[j];
        norm_f64(normed, x, l->norm2, rows, m);
        linear_f64(a, normed, l->gate, rows, m->hidden, m->width);
        linear_f64(b, normed, l->up, rows, m->hidden, m->width);
        for (int64_t j = 0; j < rows * m->hidden; j++)
            a[j] = a[j] / (1 + exp(-a[j])) * b[j];
        linear_f64(sum, a, l->down, rows, m->width, m->hidden);
        for (int64_t j = 0; j < rows * m->width; j++)
            x[j] += sum[j];
    }
    for (int64_t row = r->prompt - 1; row < rows; row++) {
        norm_f64(normed, x + row * m->width, m->norm, 1, m);
        linear_f64(logits, normed, m->out ? m->out : m->embed, 1, m->vocabulary, m->width);
        for (int64_t i = 0; i < m->vocabulary; i++) {
            const double apart = fabs(logits[i] - (double)r->logits[(row - r->prompt + 1) * m->vocabulary + i]);
            difference = apart <= difference ? difference : apart; /* NaN too */
            most = fmax(most, fabs(logits[i]));
        }
    }
    *worst = difference / most <= *worst ? *worst : difference / most;
    free(memory);
    return true;
}

static bool check(const model *m, const requests *r, double limit)
{
    double worst = 0;
    for (int64_t i = 0; i < r->count; i++)
        if (!check_request(m, &r->all[i], &worst))
            return false;
    printf("largest difference from float64: %.1e of the largest logit\n", worst);
    return worst <= limit || fail("--check", "the difference is more than the type of the cache explains");
}

/* ------------------------------------------------------------------------------------------------------------- main */

static void print(const engine *e, const requests *r, const char *device)
{
    int64_t prompts = 0;
    for (int64_t i = 0; i < r->count; i++) {
        prompts += r->all[i].prompt;
        printf("%3lld:", (long long)i);
        for (int64_t j = r->all[i].prompt; j < r->all[i].known; j++)
            printf(" %d", r->all[i].tokens[j]);
        printf("\n");
    }
    printf("%s: %lld requests, at most %lld at once, in %lld steps\n", device, (long long)r->count,
           (long long)e->most_live, (long long)e->steps);
    printf("%lld tokens of prompts, %lld generated: %.0f tokens/s, %.0f of them generated; %.0f %% of the time in "
           "attention\n",
           (long long)prompts, (long long)e->generated, (double)e->computed / e->seconds,
           (double)e->generated / e->seconds, 100 * e->attention_seconds / e->seconds);
}

static bool run(const settings *s, model *m, requests *r, engine *e)
{
    int64_t longest = 0;
    random_state = (uint64_t)s->seed;
    if (!(s->model ? model_load(s->model, m) : model_draw(m)))
        return false;
    make_angles(m);
    if (!(s->prompts ? requests_load(s->prompts, r, m, s->generate) : requests_draw(r, m, s->requests, s->generate)))
        return false;
    for (int64_t i = 0; i < r->count; i++) {
        request *one = &r->all[i];
        longest = one->total > longest ? one->total : longest;
        if (s->check && !(one->logits = calloc((size_t)((one->total - one->prompt) * m->vocabulary), 4)))
            return fail("--check", "no memory");
    }
    if (longest > m->context)
        return fail("prompts", "one is longer than the model's context, with what is to be generated");
    if (!engine_create(e, m, s, longest) || !serve(e, r))
        return false;
    print(e, r, s->device);
    return !s->check || check(m, r, e->limit);
}

static bool parse(int count, char **words, settings *s)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *number, low, high;
    } options[] = {{"--device", &s->device, NULL, 0, 0},
                   {"--model", &s->model, NULL, 0, 0},
                   {"--cache", &s->cache, NULL, 0, 0},
                   {"--seed", NULL, &s->seed, 0, INT32_MAX},
                   {"--requests", NULL, &s->requests, 1, 100000},
                   {"--generate", NULL, &s->generate, 1, 100000},
                   {"--slots", NULL, &s->slots, 1, 4096},
                   {"--rows", NULL, &s->rows, 1, 65536},
                   {"--page", NULL, &s->page, 1, 65536},
                   {"--pages", NULL, &s->pages, 1, INT32_MAX}};
    for (int i = 1; i < count; i++) {
        size_t o = 0;
        while (o < sizeof options / sizeof *options && strcmp(words[i], options[o].name) != 0)
            o++;
        if (!strcmp(words[i], "--check")) {
            s->check = true;
        } else if (o == sizeof options / sizeof *options) {
            if (s->prompts || !strncmp(words[i], "--", 2))
                return false;
            s->prompts = words[i];
        } else if (++i == count) {
            return false;
        } else if (options[o].text) {
            *options[o].text = words[i];
        } else {
            char *end;
            *options[o].number = strtoll(words[i], &end, 10);
            if (end == words[i] || *end || *options[o].number < options[o].low || *options[o].number > options[o].high)
                return false;
        }
    }
    return true;
}

int main(int count, char **words)
{
    settings s = {
        .device = "cpu", .cache = "f32", .seed = 1, .requests = 12, .generate = 24, .slots = 4, .rows = 32, .page = 16};
    if (!parse(count, words, &s))
        return fprintf(
                   stderr,
                   "usage: %s [--device cpu|vulkan:0|cuda:0|opencl:0] [--model FILE.gguf] [--cache f32|f16|q8_0|...]\n"
                   "       [--seed N] [--requests N] [--generate N] [--slots N] [--rows N] [--page N] [--pages N] "
                   "[--check] [PROMPTS]\n"
                   "Without PROMPTS, a file with a line of token numbers for each request, they are random, and so "
                   "are weights without --model.\n",
                   words[0]),
               2;
    model m = {.layers = 0};
    requests r = {NULL, 0};
    engine e = {.m = NULL};
    const bool good = run(&s, &m, &r, &e);
    engine_destroy(&e);
    for (int64_t i = 0; i < r.count; i++) {
        free(r.all[i].tokens);
        free(r.all[i].logits);
    }
    free(r.all);
    model_free(&m);
    return good ? 0 : 1;
}

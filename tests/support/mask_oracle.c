/* SPDX-License-Identifier: MIT */
#include "support/mask_oracle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* ---------------------------------------------------------------------------------------------------------- random */

uint64_t oracle_next(oracle_random *random)
{
    return attune__hash_mix(random->state += UINT64_C(0x9e3779b97f4a7c15));
}

int oracle_between(oracle_random *random, int lo, int hi)
{
    return lo + (int)(oracle_next(random) % (uint64_t)(hi - lo + 1));
}

/* ----------------------------------------------------------------------------------------------------- expressions */

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},   {"seg", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2},
    {"lim", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},   {"wide", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I64, 1},
    {"flag", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 1}, {"grid", ATTUNE_SYMBOL_CAPTURE, ATTUNE_U8, 2},
    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},  {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    {"t", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
};

void oracle_world_make(oracle_world *world, oracle_random *random)
{
    const int step = oracle_between(random, 1, 80), spread = oracle_between(random, 1, 300);
    int id = 0;
    for (int i = 0; i < ORACLE_LENGTH; i++) {
        id += oracle_between(random, 1, step) == 1;
        world->doc[i] = id;
        for (int b = 0; b < 3; b++)
            world->seg[b][i] = oracle_between(random, 0, 3) ? id + b : oracle_between(random, -spread, spread);
        world->wide[i] = oracle_between(random, 0, spread);
        world->flag[i] = oracle_between(random, 0, 9) < 6 ? 3 : 0;
    }
    for (int h = 0; h < 4; h++)
        world->lim[h] = oracle_between(random, 0, spread);
    for (int i = 0; i < 63; i++)
        world->grid[i / 9][i % 9] = (uint8_t)oracle_between(random, 0, 255);
    for (int i = 0; i < 64; i++)
        world->bias[i] = (float)oracle_between(random, -1000, 1000) / 8.0f;
    const int64_t n = ORACLE_LENGTH;
    const attune_host_capture captures[7] = {
        {"doc", {world->doc, ATTUNE_I32, 1, {n}, {1}}},
        {"seg", {world->seg, ATTUNE_I32, 2, {3, n}, {n, 1}}},
        {"lim", {world->lim, ATTUNE_I32, 1, {4}, {1}}},
        /* Backwards, and with gaps. */
        {"wide", {world->wide + n - 1, ATTUNE_I64, 1, {n / 2}, {-2}}},
        {"flag", {world->flag, ATTUNE_BOOL, 1, {n}, {1}}},
        {"grid", {world->grid, ATTUNE_U8, 2, {9, 7}, {1, 9}}},
        {"bias", {world->bias, ATTUNE_F32, 1, {64}, {1}}},
    };
    memcpy(world->captures, captures, sizeof captures);
    world->parameters[0] = (attune_parameter){"n", oracle_between(random, -20, spread)};
    world->parameters[1] = (attune_parameter){"t", oracle_between(random, -800, 800) / 8.0};
}

typedef struct writer {
    oracle_random *random;
    char *text;
    size_t size, used;
} writer;

static void put(writer *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(w->text + w->used, w->size - w->used, format, arguments);
    va_end(arguments);
    w->used += added > 0 ? (size_t)added : 0;
    if (w->used >= w->size)
        w->used = w->size - 1;
}

static const char *pick(writer *w, const char *const *list, int count)
{
    return list[oracle_between(w->random, 0, count - 1)];
}

static void write_int(writer *w, int depth)
{
    static const char *const leaves[] = {"q", "kv", "q",    "kv",    "q - kv", "kv - q",
                                         "b", "h",  "h_kv", "q_len", "kv_len", "n"};
    static const char *const operators[] = {"+", "-", "*", "/", "%"};
    const int kind = depth <= 0 ? oracle_between(w->random, 0, 1) : oracle_between(w->random, 0, 11);
    if (kind == 0) {
        put(w, "(%s)", pick(w, leaves, 12));
    } else if (kind == 1) {
        put(w, "%d",
            oracle_between(w->random, 0, 3) ? oracle_between(w->random, 0, 40) : oracle_between(w->random, 0, 400));
    } else if (kind <= 5) {
        put(w, "(");
        write_int(w, depth - 1);
        put(w, " %s ", pick(w, operators, kind == 2 ? 5 : 2));
        write_int(w, depth - 1);
        put(w, ")");
    } else if (kind == 6) {
        put(w, "%s(", oracle_between(w->random, 0, 1) ? "min" : "max");
        write_int(w, depth - 1);
        put(w, ", ");
        write_int(w, depth - 1);
        put(w, ")");
    } else if (kind == 7) {
        put(w, "abs(");
        write_int(w, depth - 1);
        put(w, ")");
    } else if (kind == 8) {
        static const char *const two[] = {"seg[b, ", "grid[h, ", "grid[q / 16, ", "seg[0, "};
        put(w, "%s", pick(w, two, 4));
        write_int(w, depth - 2);
        put(w, "]");
    } else {
        static const char *const one[] = {"doc[", "doc[", "lim[", "wide["};
        put(w, "%s", pick(w, one, 4));
        write_int(w, depth - 2);
        put(w, "]");
    }
}

static void write_float(writer *w, int depth)
{
    static const char *const operators[] = {"+", "-", "*", "/"};
    static const char *const functions[] = {"floor", "abs", "sqrt", "exp", "tanh", "sin"};
    const int kind = depth <= 0 ? oracle_between(w->random, 0, 1) : oracle_between(w->random, 0, 5);
    if (kind == 0) {
        put(w, "t");
    } else if (kind == 1) {
        put(w, "%d.25", oracle_between(w->random, 0, 100));
    } else if (kind == 2) {
        put(w, "bias[");
        write_int(w, depth - 1);
        put(w, "]");
    } else if (kind == 3) {
        put(w, "%s(", pick(w, functions, 6));
        write_float(w, depth - 1);
        put(w, ")");
    } else {
        put(w, "(");
        write_int(w, depth - 1);
        put(w, " %s ", pick(w, operators, 4));
        write_float(w, depth - 1);
        put(w, ")");
    }
}

static void write_bool(writer *w, int depth)
{
    static const char *const common[] = {
        "q >= kv", "doc[q] == doc[kv]", "q - kv < n", "abs(q - kv) < 40", "seg[b, q] == seg[b, kv]", "kv < lim[h]",
    };
    static const char *const comparisons[] = {"<", "<=", ">", ">=", "==", "!="};
    const int kind = depth <= 0 ? oracle_between(w->random, 0, 3) : oracle_between(w->random, 0, 9);
    if (kind <= 1) {
        put(w, "%s", pick(w, common, 6));
    } else if (kind <= 3) {
        put(w, "(");
        write_int(w, depth);
        put(w, " %s ", pick(w, comparisons, 6));
        write_int(w, depth);
        put(w, ")");
    } else if (kind <= 6) {
        put(w, "(");
        write_bool(w, depth - 1);
        put(w, kind == 4 ? " || " : " && ");
        write_bool(w, depth - 1);
        put(w, ")");
    } else if (kind == 7) {
        put(w, "!(");
        write_bool(w, depth - 1);
        put(w, ")");
    } else if (kind == 8) {
        put(w, "flag[");
        write_int(w, depth - 1);
        put(w, "]");
    } else {
        put(w, "(");
        write_float(w, depth);
        put(w, " %s ", pick(w, comparisons, 6));
        write_float(w, depth);
        put(w, ")");
    }
}

void oracle_random_text(oracle_random *random, char *text, size_t size)
{
    writer w = {random, text, size, 0};
    write_bool(&w, oracle_between(random, 0, 3));
}

attune_expr *oracle_parse(const char *text)
{
    attune_expr *expr = NULL;
    attune__expr_parse(&attune__default_allocator, ATTUNE_EXPR_MASK, text, symbols, sizeof symbols / sizeof *symbols,
                       &expr);
    return expr;
}

attune_status oracle_bind(oracle_bound *bound, attune_expr *expr, const attune_host_capture *captures, uint32_t count,
                          const attune_parameter *parameters, uint32_t parameter_count)
{
    bound->expr = expr;
    return expr ? attune__bindings_resolve(expr, captures, count, parameters, parameter_count, bound->arrays,
                                           bound->values)
                : ATTUNE_PARSE_ERROR;
}

attune_status oracle_bind_world(oracle_bound *bound, const char *text, const oracle_world *world)
{
    return oracle_bind(bound, oracle_parse(text), world->captures, 7, world->parameters, 2);
}

attune_mask_desc oracle_desc(int64_t q_len, int64_t kv_len, uint32_t q_block, uint32_t kv_block)
{
    return (attune_mask_desc){.struct_size = sizeof(attune_mask_desc),
                              .q_block = q_block,
                              .kv_block = kv_block,
                              .batch = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .q_len = q_len,
                              .kv_len = kv_len};
}

/* ---------------------------------------------------------------------------------------------------------- checks */

bool oracle_expression_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const oracle_expression *e = context;
    const attune__bindings bindings = {e->bound->arrays, e->bound->values};
    const attune_point point = {(int32_t)b,
                                (int32_t)h,
                                (int32_t)q,
                                (int32_t)kv,
                                (int32_t)(h / (e->desc.heads / e->desc.kv_heads)),
                                (int32_t)e->desc.q_len,
                                (int32_t)e->desc.kv_len,
                                0.0f};
    return attune__expr_point(e->bound->expr, &bindings, &point).i;
}

static bool listed(const attune__block_list *list, int64_t row, int64_t c)
{
    for (int64_t i = list->offsets[row]; i < list->offsets[row + 1]; i++)
        if (list->indices[i] == c)
            return true;
    return false;
}

int oracle_block(const attune_mask *mask, int64_t b, int64_t h, int64_t r, int64_t c)
{
    const int64_t row = attune__mask_at(mask, b, h).row0 + r;
    return listed(&mask->full_kv, row, c) ? 2 : listed(&mask->kv, row, c);
}

bool oracle_mask_element(const void *context, int64_t b, int64_t h, int64_t q, int64_t kv)
{
    const attune_mask *mask = context;
    const int class = oracle_block(mask, b, h, q / mask->q_block, kv / mask->kv_block);
    if (class != 1)
        return class == 2;
    const attune__bindings bindings = {mask->captures, mask->parameters};
    const attune__row row = attune__mask_row(mask, b, h, q);
    const attune_point point = {row.b, row.h, row.q, (int32_t)kv, row.h_kv, row.q_len, row.kv_len, 0.0f};
    return attune__expr_point(mask->expr, &bindings, &point).i;
}

static bool check_list(const attune__block_list *list, int64_t rows, int64_t columns)
{
    if (list->offsets[0] != 0)
        return false;
    for (int64_t r = 0; r < rows; r++) {
        if (list->offsets[r + 1] - list->offsets[r] != list->num_blocks[r])
            return false;
        for (int64_t i = list->offsets[r]; i < list->offsets[r + 1]; i++)
            if (list->indices[i] < 0 || list->indices[i] >= columns ||
                (i > list->offsets[r] && list->indices[i] <= list->indices[i - 1]))
                return false;
    }
    return true;
}

/* Every entry has its mirror image, and there are as many on both sides. */
static bool check_transpose(const attune_mask *mask, const attune__block_list *list, const attune__block_list *mirror)
{
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    if (list->offsets[planes * mask->q_blocks] != mirror->offsets[planes * mask->kv_blocks])
        return false;
    for (int64_t p = 0; p < planes; p++)
        for (int64_t r = 0; r < mask->q_blocks; r++) {
            const int64_t row = p * mask->q_blocks + r;
            for (int64_t i = list->offsets[row]; i < list->offsets[row + 1]; i++)
                if (!listed(mirror, p * mask->kv_blocks + list->indices[i], r))
                    return false;
        }
    return true;
}

static int wanted_class(const attune_mask *mask, oracle_element element, const void *context, int64_t b, int64_t h,
                        int64_t r, int64_t c)
{
    int seen = 0;
    for (int64_t q = r * mask->q_block; q < (r + 1) * mask->q_block && q < mask->q_len; q++)
        for (int64_t kv = c * mask->kv_block; kv < (c + 1) * mask->kv_block && kv < mask->kv_len; kv++) {
            seen |= element(context, b, h, q, kv) ? 2 : 1;
            if (seen == 3)
                return 1;
        }
    return seen == 2 ? 2 : 0;
}

bool oracle_check(const attune_mask *mask, oracle_element element, const void *context, bool pairs, char message[256])
{
    static const char *const names[] = {"empty", "partial", "full"};
    const int64_t planes = mask->stored_batch * mask->stored_heads;
    if (!check_list(&mask->kv, planes * mask->q_blocks, mask->kv_blocks) ||
        !check_list(&mask->full_kv, planes * mask->q_blocks, mask->kv_blocks) ||
        !check_list(&mask->q, planes * mask->kv_blocks, mask->q_blocks) ||
        !check_list(&mask->full_q, planes * mask->kv_blocks, mask->q_blocks)) {
        snprintf(message, 256, "a list is out of order");
        return false;
    }
    if (!check_transpose(mask, &mask->kv, &mask->q) || !check_transpose(mask, &mask->full_kv, &mask->full_q)) {
        snprintf(message, 256, "a transpose does not mirror its list");
        return false;
    }
    for (int64_t b = 0; b < mask->batch; b++)
        for (int64_t h = 0; h < mask->heads; h++) {
            for (int64_t r = 0; r < mask->q_blocks; r++)
                for (int64_t c = 0; c < mask->kv_blocks; c++) {
                    const int got = oracle_block(mask, b, h, r, c);
                    const int wanted = wanted_class(mask, element, context, b, h, r, c);
                    if (got != wanted) {
                        snprintf(message, 256, "block (%lld, %lld) of batch %lld, head %lld is %s, expected %s",
                                 (long long)r, (long long)c, (long long)b, (long long)h, names[got], names[wanted]);
                        return false;
                    }
                }
            for (int64_t q = 0; pairs && q < mask->q_len; q++)
                for (int64_t kv = 0; kv < mask->kv_len; kv++)
                    if (oracle_mask_element(mask, b, h, q, kv) != element(context, b, h, q, kv)) {
                        snprintf(message, 256, "pair (%lld, %lld) of batch %lld, head %lld is wrong", (long long)q,
                                 (long long)kv, (long long)b, (long long)h);
                        return false;
                    }
        }
    return true;
}

static bool same_list(const attune__block_list *a, const attune__block_list *b, int64_t rows)
{
    return !memcmp(a->offsets, b->offsets, (size_t)(rows + 1) * sizeof *a->offsets) &&
           !memcmp(a->indices, b->indices, (size_t)a->offsets[rows] * sizeof *a->indices);
}

bool oracle_same_lists(const attune_mask *a, const attune_mask *b)
{
    if (a->stored_batch != b->stored_batch || a->stored_heads != b->stored_heads || a->q_blocks != b->q_blocks ||
        a->kv_blocks != b->kv_blocks)
        return false;
    const int64_t planes = a->stored_batch * a->stored_heads;
    return same_list(&a->kv, &b->kv, planes * a->q_blocks) &&
           same_list(&a->full_kv, &b->full_kv, planes * a->q_blocks) &&
           same_list(&a->q, &b->q, planes * a->kv_blocks) && same_list(&a->full_q, &b->full_q, planes * a->kv_blocks);
}

/* ------------------------------------------------------------------------------------------------------- allocator */

static void *counted_alloc(void *user, size_t size, size_t alignment)
{
    oracle_memory *memory = user;
    if (memory->calls++ == memory->fail_at)
        return NULL;
    void *block = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    /* Bytes that were not written must not be read: zeros would hide that. */
    if (block)
        memset(block, 0xa5, size);
    memory->live += block != NULL;
    return block;
}

static void counted_release(void *user, void *block)
{
    oracle_memory *memory = user;
    memory->live--;
    free(block);
}

attune_allocator oracle_allocator(oracle_memory *memory)
{
    return (attune_allocator){counted_alloc, counted_release, memory};
}

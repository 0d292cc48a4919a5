/* SPDX-License-Identifier: MIT */
#include "support/random_expr.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct generator {
    random_expr *e;
    uint64_t state;
    size_t length;
    int32_t budget; /* operators still to be spent */
} generator;

uint64_t random_expr_next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

int64_t random_expr_between(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(random_expr_next(state) % (uint64_t)(hi - lo + 1));
}

static int between(generator *g, int lo, int hi)
{
    return (int)random_expr_between(&g->state, lo, hi);
}

static bool chance(generator *g, int percent)
{
    return between(g, 1, 100) <= percent;
}

__attribute__((format(printf, 2, 3))) static void add(generator *g, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(g->e->text + g->length, sizeof g->e->text - g->length, format, arguments);
    va_end(arguments);
    g->length += (size_t)n;
    if (g->length >= sizeof g->e->text)
        g->length = sizeof g->e->text - 1;
}

/* ----------------------------------------------------------------------------------------------------------- values */

typedef struct capture_kind {
    const char *name;
    attune_dtype dtype;
    uint32_t rank;
} capture_kind;

static const capture_kind kinds[RANDOM_EXPR_CAPTURES] = {
    {"doc", ATTUNE_I32, 1},   {"ids", ATTUNE_I64, 2},    {"used", ATTUNE_I32, 1}, {"tag", ATTUNE_U8, 1},
    {"keep", ATTUNE_BOOL, 2}, {"cube", ATTUNE_I32, 4},   {"bias", ATTUNE_F32, 2}, {"slope", ATTUNE_F32, 1},
    {"half", ATTUNE_F16, 1},  {"brain", ATTUNE_BF16, 3},
};

static void fill_int(generator *g, const capture_kind *kind, void *data, int64_t count)
{
    bool ascending = chance(g, 50), odd = chance(g, 10);
    int32_t value = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ascending)
            value += chance(g, 6);
        else
            value = between(g, 0, chance(g, 80) ? 5 : 200);
        int32_t stored = odd && chance(g, 10) ? (int32_t)random_expr_next(&g->state) : value;
        if (kind->dtype == ATTUNE_I32)
            ((int32_t *)data)[i] = stored;
        else if (kind->dtype == ATTUNE_I64)
            ((int64_t *)data)[i] = stored;
        else
            ((uint8_t *)data)[i] = (uint8_t)(kind->dtype == ATTUNE_BOOL ? chance(g, 60) * between(g, 1, 255) : stored);
    }
}

static void fill_float(generator *g, const capture_kind *kind, void *data, int64_t count)
{
    /* any bits at times, so that NaN, infinity and subnormals come up */
    bool wild = chance(g, 15);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)between(g, -4000, 4000) / 1000.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (wild && chance(g, 20))
            bits = (uint32_t)random_expr_next(&g->state);
        if (kind->dtype == ATTUNE_F32)
            ((uint32_t *)data)[i] = bits;
        else if (kind->dtype == ATTUNE_BF16)
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        else
            ((uint16_t *)data)[i] =
                (uint16_t)(wild ? bits >> 13 : (uint32_t)between(g, 0, 1) << 15 | (uint32_t)between(g, 0, 0x4500));
    }
}

static void make_capture(generator *g, uint32_t index)
{
    random_expr *e = g->e;
    const capture_kind *kind = &kinds[index];
    attune_array *array = &e->captures[index].array;
    e->captures[index].name = kind->name;
    *array = (attune_array){.dtype = kind->dtype, .rank = kind->rank};
    int64_t count = 1;
    for (uint32_t d = 0; d < kind->rank; d++) {
        bool last = d == kind->rank - 1;
        int most = kind->rank == 4 ? 6 : kind->rank == 3 ? 12 : kind->rank == 2 && !last ? 8 : RANDOM_EXPR_POSITIONS;
        array->size[d] = chance(g, 3) ? 1 : between(g, most / 2, most);
        count *= array->size[d];
    }
    unsigned char *data = (unsigned char *)e->storage[index];
    if (kind->dtype == ATTUNE_F32 || kind->dtype == ATTUNE_F16 || kind->dtype == ATTUNE_BF16)
        fill_float(g, kind, data, count);
    else
        fill_int(g, kind, data, count);
    array->data = data;
    /* contiguous as zeros, transposed, or backwards */
    int layout = between(g, 0, 5);
    int64_t stride = 1;
    if (layout == 1)
        for (uint32_t d = 0; d < kind->rank; d++) {
            array->stride[d] = stride;
            stride *= array->size[d];
        }
    if (layout == 2) {
        for (uint32_t d = kind->rank; d-- > 0;) {
            array->stride[d] = -stride;
            stride *= array->size[d];
        }
        array->data = data + (size_t)(count - 1) * attune_dtype_size(kind->dtype);
    }
}

static void make_world(generator *g)
{
    random_expr *e = g->e;
    e->capture_count = RANDOM_EXPR_CAPTURES;
    for (uint32_t i = 0; i < RANDOM_EXPR_CAPTURES; i++) {
        make_capture(g, i);
        e->symbols[i] =
            (attune_symbol){kinds[i].name, ATTUNE_SYMBOL_CAPTURE, kinds[i].dtype, chance(g, 50) ? kinds[i].rank : 0};
    }
    e->symbols[RANDOM_EXPR_CAPTURES] = (attune_symbol){"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0};
    e->symbols[RANDOM_EXPR_CAPTURES + 1] = (attune_symbol){"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0};
    e->symbol_count = RANDOM_EXPR_CAPTURES + 2;
    e->parameters[0] = (attune_parameter){"width", between(g, -3, 150)};
    e->parameters[1] = (attune_parameter){"heat", between(g, -300, 300) / 100.0};
    e->parameter_count = 2;
}

/* ---------------------------------------------------------------------------------------------------- anything goes */

static void add_int(generator *g);
static void add_float(generator *g);
static void add_bool(generator *g);

static bool spend(generator *g)
{
    return g->budget-- > 0;
}

static void add_read(generator *g, uint32_t index)
{
    add(g, "%s[", kinds[index].name);
    for (uint32_t d = 0; d < kinds[index].rank; d++) {
        if (d)
            add(g, ", ");
        static const char *const usual[] = {"kv", "q", "h", "b", "kv - q", "q - kv + 40", "h_kv", "kv + 3", "2 * kv"};
        if (chance(g, 75))
            add(g, "%s", usual[between(g, 0, 8)]);
        else
            add_int(g);
    }
    add(g, "]");
}

static void add_int_literal(generator *g)
{
    static const char *const edges[] = {"2147483647", "-2147483648", "65536", "-1", "0", "1", "16777217", "-7"};
    if (chance(g, 15))
        add(g, "%s", edges[between(g, 0, 7)]);
    else
        add(g, "%d", between(g, 0, chance(g, 70) ? 20 : 300));
}

static void add_int(generator *g)
{
    static const char *const vars[] = {"b", "h", "q", "kv", "h_kv", "q_len", "kv_len", "q", "kv", "kv"};
    static const char *const signs[] = {"+", "-", "*", "/", "%", "+", "-"};
    static const uint32_t reads[] = {0, 1, 2, 3, 5};
    if (!spend(g) || chance(g, 15)) {
        int pick = between(g, 0, 9);
        if (pick < 5)
            add(g, "%s", vars[between(g, 0, 9)]);
        else if (pick < 8)
            add_int_literal(g);
        else
            add(g, "width");
        return;
    }
    switch (between(g, 0, 9)) {
    case 0:
        add_read(g, reads[between(g, 0, 4)]);
        break;
    case 1:
        add(g, chance(g, 50) ? "abs(" : "-(");
        add_int(g);
        add(g, ")");
        break;
    case 2:
        add(g, chance(g, 50) ? "min(" : "max(");
        add_int(g);
        add(g, ", ");
        add_int(g);
        add(g, ")");
        break;
    case 3:
        add(g, "clamp(");
        add_int(g);
        add(g, ", ");
        add_int(g);
        add(g, ", ");
        add_int(g);
        add(g, ")");
        break;
    case 4:
        add(g, "(");
        add_bool(g);
        add(g, " ? ");
        add_int(g);
        add(g, " : ");
        add_int(g);
        add(g, ")");
        break;
    default: {
        bool brackets = chance(g, 60);
        add(g, brackets ? "(" : "");
        add_int(g);
        add(g, " %s ", signs[between(g, 0, 6)]);
        add_int(g);
        add(g, brackets ? ")" : "");
        break;
    }
    }
}

static void add_float(generator *g)
{
    static const char *const literals[] = {"0.0",  "1.0", "0.5",  "-0.0",      "3.25",
                                           "1e-3", ".1",  "1e20", "1.0 / 0.0", "2.0"};
    static const char *const signs[] = {"+", "-", "*", "/", "%", "+", "*"};
    static const char *const functions[] = {"floor", "ceil", "exp",     "exp2", "log", "log2", "sqrt",
                                            "rsqrt", "tanh", "sigmoid", "sin",  "cos", "abs",  "-"};
    static const uint32_t reads[] = {6, 7, 8, 9};
    if (!spend(g) || chance(g, 10)) {
        int pick = between(g, 0, 9);
        if (pick < 4 && g->e->kind == ATTUNE_EXPR_SCORE)
            add(g, "score");
        else if (pick < 7)
            add(g, "%s", literals[between(g, 0, 9)]);
        else if (pick < 8)
            add_int(g);
        else
            add(g, "heat");
        return;
    }
    int pick = between(g, 0, 13);
    if (pick < 2) {
        add_read(g, reads[between(g, 0, 3)]);
    } else if (pick < 6) {
        add(g, "%s(", functions[between(g, 0, 13)]);
        add_float(g);
        add(g, ")");
    } else if (pick < 8) {
        add(g, "%s(", pick == 6 ? "min" : "max");
        add_float(g);
        add(g, ", ");
        add_float(g);
        add(g, ")");
    } else if (pick == 8) {
        add(g, "pow(");
        add_float(g);
        add(g, ", ");
        add_float(g);
        add(g, ")");
    } else if (pick == 9) {
        add(g, "select(");
        add_bool(g);
        add(g, ", ");
        add_float(g);
        add(g, ", ");
        add_float(g);
        add(g, ")");
    } else {
        bool brackets = chance(g, 60);
        add(g, brackets ? "(" : "");
        add_float(g);
        add(g, " %s ", signs[between(g, 0, 6)]);
        add_float(g);
        add(g, brackets ? ")" : "");
    }
}

static void add_bool(generator *g)
{
    static const char *const compare[] = {"<", "<=", ">", ">=", "==", "!="};
    if (!spend(g)) {
        static const char *const plain[] = {"q >= kv", "kv < 17", "q % 2 == 0", "h > 1", "true", "false", "q == kv"};
        add(g, "(%s)", plain[between(g, 0, 6)]);
        return;
    }
    int pick = between(g, 0, 11);
    if (pick < 5) {
        bool ints = chance(g, 65);
        add(g, "(");
        (ints ? add_int : add_float)(g);
        add(g, " %s ", compare[between(g, 0, 5)]);
        (ints ? add_int : add_float)(g);
        add(g, ")");
    } else if (pick < 9) {
        add(g, "(");
        add_bool(g);
        add(g, " %s ", pick < 7 ? "&&" : pick < 8 ? "||" : chance(g, 50) ? "==" : "!=");
        add_bool(g);
        add(g, ")");
    } else if (pick == 9) {
        add(g, "!");
        add_bool(g);
    } else if (pick == 10) {
        add(g, "(");
        add_bool(g);
        add(g, " ? ");
        add_bool(g);
        add(g, " : ");
        add_bool(g);
        add(g, ")");
    } else {
        add_read(g, 4);
    }
}

/* ------------------------------------------------------------------------------------------------ what people write */

static void add_usual(generator *g)
{
    int n = between(g, 1, 120), m = between(g, 1, 24);
    switch (between(g, 0, 23)) {
    case 0:
    case 1:
        add(g, "causal");
        break;
    case 2:
        add(g, "causal(%d)", n);
        break;
    case 3:
        add(g, "window(%d)", n);
        break;
    case 4:
        add(g, "local(%d)", n);
        break;
    case 5:
        add(g, "dilated(%d, %d)", n, m);
        break;
    case 6:
        add(g, "prefix(%d)", n);
        break;
    case 7:
    case 8:
        add(g, "document(doc)");
        break;
    case 9:
        add(g, "shared_prefix(doc)");
        break;
    case 10:
        add(g, "multi_image(doc)");
        break;
    case 11:
        add(g, "length(used)");
        break;
    case 12:
        add(g, "neighborhood2d(%d, %d, %d)", m + 4, m + 3, between(g, 0, 3));
        break;
    case 13:
        add(g, "block_diffusion(%d, %d)", n, m);
        break;
    case 14:
        add(g, "dflash(%d, %d, used)", n, m);
        break;
    case 15:
        add(g, "eagle3(used)");
        break;
    case 16:
        add(g, "ids[b, q] == ids[b, kv]");
        break;
    case 17:
        add(g, "q - kv < width");
        break;
    case 18:
        add(g, "q / %d == kv / %d", m, m);
        break;
    case 19:
        add(g, "(q + kv) %% %d != %d", m, between(g, 0, 3));
        break;
    case 20:
        add(g, "keep[b, q / %d]", m);
        break;
    case 21:
        add(g, "q >= kv && kv >= doc[q]");
        break;
    case 22:
        add(g, "tag[kv] > %d", between(g, 0, 6));
        break;
    default:
        add(g, "q - kv < %d * (h + 1) && kv - q < %d", m, n);
        break;
    }
}

static void add_realistic(generator *g)
{
    int parts = between(g, 1, 4);
    for (int i = 0; i < parts; i++) {
        if (i)
            add(g, chance(g, 60) ? " && " : " || ");
        add(g, chance(g, 15) ? "!(" : "(");
        add_usual(g);
        add(g, ")");
    }
}

void random_expr_make(random_expr *e, uint64_t seed, attune_expr_kind kind, uint32_t complexity)
{
    generator g = {.e = e, .state = seed, .budget = (int32_t)complexity};
    e->kind = kind;
    e->text[0] = '\0';
    random_expr_next(&g.state);
    make_world(&g);
    if (kind == ATTUNE_EXPR_SCORE)
        add_float(&g);
    else if (chance(&g, 50))
        add_realistic(&g);
    else
        add_bool(&g);
}

/* SPDX-License-Identifier: MIT */
/* The tables of names, the check of declared symbols, and suggestions for unknown names. */
#include "expr/names.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "expr/builder.h"
#include "expr/ops.h"

static const attune__function functions[] = {
    {"abs", "abs(x)", ATTUNE__OP_ABS, 1, 1, false},
    {"min", "min(a, b, ...)", ATTUNE__OP_MIN, 2, UINT32_MAX, false},
    {"max", "max(a, b, ...)", ATTUNE__OP_MAX, 2, UINT32_MAX, false},
    {"clamp", "clamp(x, low, high)", ATTUNE__OP_MIN, 3, 3, true},
    {"floor", "floor(x)", ATTUNE__OP_FLOOR, 1, 1, false},
    {"ceil", "ceil(x)", ATTUNE__OP_CEIL, 1, 1, false},
    {"exp", "exp(x)", ATTUNE__OP_EXP, 1, 1, false},
    {"exp2", "exp2(x)", ATTUNE__OP_EXP2, 1, 1, false},
    {"log", "log(x)", ATTUNE__OP_LOG, 1, 1, false},
    {"log2", "log2(x)", ATTUNE__OP_LOG2, 1, 1, false},
    {"sqrt", "sqrt(x)", ATTUNE__OP_SQRT, 1, 1, false},
    {"rsqrt", "rsqrt(x)", ATTUNE__OP_RSQRT, 1, 1, false},
    {"tanh", "tanh(x)", ATTUNE__OP_TANH, 1, 1, false},
    {"sigmoid", "sigmoid(x)", ATTUNE__OP_SIGMOID, 1, 1, false},
    {"sin", "sin(x)", ATTUNE__OP_SIN, 1, 1, false},
    {"cos", "cos(x)", ATTUNE__OP_COS, 1, 1, false},
    {"pow", "pow(x, y)", ATTUNE__OP_POW, 2, 2, false},
    {"select", "select(condition, a, b)", ATTUNE__OP_SELECT, 3, 3, false},
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

/* Names in other languages and libraries, for suggestions. */
static const char *const aliases[][2] = {
    {"q_idx", "q"},
    {"qi", "q"},
    {"i", "q"},
    {"token", "row"},
    {"row_idx", "row"},
    {"m", "q"},
    {"kv_idx", "kv"},
    {"k_idx", "kv"},
    {"k", "kv"},
    {"j", "kv"},
    {"col", "kv"},
    {"n", "kv"},
    {"batch", "b"},
    {"batch_idx", "b"},
    {"b_idx", "b"},
    {"head", "h"},
    {"head_idx", "h"},
    {"h_idx", "h"},
    {"h_q", "h"},
    {"kv_head", "h_kv"},
    {"head_kv", "h_kv"},
    {"seqlen_q", "q_len"},
    {"Q_LEN", "q_len"},
    {"seqlen_k", "kv_len"},
    {"KV_LEN", "kv_len"},
    {"k_len", "kv_len"},
    {"s", "score"},
    {"qk", "score"},
    {"x", "score"},
    {"where", "select"},
    {"fabs", "abs"},
    {"maximum", "max"},
    {"minimum", "min"},
    {"fmax", "max"},
    {"fmin", "min"},
    {"power", "pow"},
    {"True", "true"},
    {"False", "false"},
    {"inf", "1.0 / 0.0"},
    {"infinity", "1.0 / 0.0"},
    {"INFINITY", "1.0 / 0.0"},
    {"nan", "0.0 / 0.0"},
    {"alibi_bias", "alibi"},
    {"sliding_window", "window"},
    {"doc_mask", "document"},
    {"ln", "log"},
};

const attune__function *attune__function_find(const char *name)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i].name, name))
            return &functions[i];
    return NULL;
}

int attune__var_find(const char *name)
{
    for (int i = 0; i < ATTUNE__VAR_COUNT; i++)
        if (!strcmp(attune__var_name((attune__var)i), name))
            return i;
    return -1;
}

/* ------------------------------------------------------------------------------------------------- declared symbols */

static const char *reserved(const char *name)
{
    if (attune__var_find(name) >= 0)
        return "a variable";
    if (attune__function_find(name))
        return "a function";
    if (attune__preset_exists(name))
        return "a preset";
    static const char *const words[] = {"true", "false", "and", "or", "not", "if", "else"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(words[i], name))
            return "a word";
    /* That attune__expr_shift, attune__expr_gather and attune__expr_spans declare. */
    static const char *const declared[] = {
        ATTUNE__KV_START,      ATTUNE__KV_TOTAL, ATTUNE__GATHER_Q, ATTUNE__GATHER_KV, ATTUNE__GATHER_Q_LEN,
        ATTUNE__GATHER_KV_LEN, ATTUNE__ROW_FROM, ATTUNE__ROW_TO,   ATTUNE__KEY_FROM,  ATTUNE__KEY_TO};
    for (size_t i = 0; i < sizeof declared / sizeof declared[0]; i++)
        if (!strcmp(declared[i], name))
            return "a symbol";
    return NULL;
}

static bool well_formed(const char *name)
{
    size_t n = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (n == ATTUNE__NAME_SIZE - 1 || !(letter || (n && c >= '0' && c <= '9')))
            return false;
    }
    return n > 0;
}

attune_status attune__symbols_check(const attune_symbol *symbols, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const attune_symbol *s = &symbols[i];
        if (!s->name)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "symbols[%u].name is NULL", i);
        if (!well_formed(s->name))
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "symbols[%u]: '%.80s' is no name: a letter or _, then letters, digits or _, at most %d "
                                "characters",
                                i, s->name, ATTUNE__NAME_SIZE - 1);
        const char *what = reserved(s->name);
        if (what)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "symbols[%u]: '%s' is %s of the language; rename it", i,
                                s->name, what);
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(symbols[j].name, s->name))
                return attune__fail(ATTUNE_INVALID_ARGUMENT, "symbols[%u] and symbols[%u] are both named '%s'", j, i,
                                    s->name);
        if (s->kind == ATTUNE_SYMBOL_PARAMETER) {
            if (s->dtype != ATTUNE_I32 && s->dtype != ATTUNE_F32)
                return attune__fail(ATTUNE_INVALID_ARGUMENT, "the parameter '%s' is %s; parameters are i32 or f32",
                                    s->name, attune_dtype_string(s->dtype));
            if (s->rank)
                return attune__fail(ATTUNE_INVALID_ARGUMENT, "the parameter '%s' has rank %u; parameters have rank 0",
                                    s->name, s->rank);
        } else if (s->kind == ATTUNE_SYMBOL_CAPTURE) {
            if (!attune__capture_type(s->dtype))
                return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                    "the capture '%s' is %s; captures are i32, i64, u8, bool, f32, f16 or bf16",
                                    s->name, attune_dtype_string(s->dtype));
            if (s->rank > ATTUNE_MAX_RANK)
                return attune__fail(ATTUNE_INVALID_ARGUMENT, "the capture '%s' has rank %u; the limit is %d", s->name,
                                    s->rank, ATTUNE_MAX_RANK);
        } else {
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "symbols[%u].kind is %d, expected ATTUNE_SYMBOL_CAPTURE or ATTUNE_SYMBOL_PARAMETER", i,
                                (int)s->kind);
        }
    }
    return ATTUNE_OK;
}

/* ------------------------------------------------------------------------------------------------------ suggestions */

/* The Levenshtein distance of two names shorter than ATTUNE__NAME_SIZE. */
static uint32_t distance(const char *a, const char *b)
{
    uint32_t row[ATTUNE__NAME_SIZE];
    size_t n = strlen(b);
    for (uint32_t j = 0; j <= n; j++)
        row[j] = j;
    for (uint32_t i = 0; a[i]; i++) {
        uint32_t diagonal = row[0];
        row[0] = i + 1;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t best = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j + 1] + 1 < best)
                best = row[j + 1] + 1;
            row[j + 1] = best;
        }
    }
    return row[n];
}

typedef struct nearest {
    const char *name;
    uint32_t distance;
    const char *best;
} nearest;

static void consider(nearest *n, const char *candidate)
{
    uint32_t d = distance(n->name, candidate);
    if (d < n->distance) {
        n->distance = d;
        n->best = candidate;
    }
}

void attune__names_suggest(const char *name, attune_expr_kind kind, const attune_symbol *symbols, uint32_t count,
                           char *hint, size_t size)
{
    static char const list[] = "b, h, q, kv, h_kv, q_len, kv_len, row";
    attune__text text = attune__text_begin(hint, size);
    /* A short name is close to every other name. */
    size_t length = strlen(name);
    nearest n = {name, length < 3 ? 1 : length < 5 ? 2 : 3, NULL};
    for (uint32_t i = 0; i < count; i++)
        consider(&n, symbols[i].name);
    if (!n.best)
        for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
            if (!strcmp(aliases[i][0], name) &&
                (kind == ATTUNE_EXPR_SCORE || strcmp(aliases[i][1], attune__var_name(ATTUNE__VAR_SCORE))))
                n.best = aliases[i][1];
    if (!n.best) {
        for (int i = 0; i < ATTUNE__VAR_COUNT; i++)
            if (kind == ATTUNE_EXPR_SCORE || i != ATTUNE__VAR_SCORE)
                consider(&n, attune__var_name((attune__var)i));
        for (size_t i = 0; i < FUNCTIONS; i++)
            consider(&n, functions[i].name);
        for (uint32_t i = 0; i < attune_preset_count(); i++) {
            attune_preset preset = {.struct_size = sizeof preset};
            attune_preset_get(i, &preset);
            char bare[ATTUNE__NAME_SIZE];
            size_t end = strcspn(preset.signature, "(");
            memcpy(bare, preset.signature, end);
            bare[end] = '\0';
            if (distance(name, bare) < n.distance) {
                n.distance = distance(name, bare);
                n.best = preset.signature;
            }
        }
    }
    if (n.best)
        attune__text_add(&text, "did you mean %s? ", n.best);
    attune__text_add(&text, "known are the variables %s%s", list, kind == ATTUNE_EXPR_SCORE ? ", score" : "");
    if (count)
        attune__text_add(&text, " and the symbols ");
    for (uint32_t i = 0; i < count && i < 8; i++)
        attune__text_add(&text, "%s%s", i ? ", " : "", symbols[i].name);
    if (count > 8)
        attune__text_add(&text, ", ...");
    if (!count)
        attune__text_add(&text, "; no captures or parameters were declared");
}

/* SPDX-License-Identifier: MIT */
/* A recursive-descent parser that creates simplified nodes. The limit on the nesting of calls, brackets and branches
 * bounds the recursion. A preset is parsed where it is named, with the nodes of its arguments. */
#include "expr/expr.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "expr/builder.h"
#include "expr/lex.h"
#include "expr/names.h"
#include "expr/ops.h"

#define MAX_SIGNS 16

/* Keeps a large frame out of the ones that recursion repeats. */
#define OWN_FRAME __attribute__((noinline))

#define MAX_LEVELS 6 /* of operator precedence, and so of operators that wait for their right operand */

/* The argument of a preset: a node, or a capture by name. */
typedef struct argument {
    char name[ATTUNE__NAME_SIZE];
    uint32_t node; /* ATTUNE__NONE: a capture */
    const attune_symbol *capture;
} argument;

/* A parsed subexpression and its position in the text. */
typedef struct operand {
    uint32_t node; /* ATTUNE__NONE: failed */
    uint32_t at;
} operand;

typedef struct infix {
    char sign[3];
    uint8_t level, op;
    bool swap; /* a > b is b < a */
} infix;

/* The arguments of a call. */
typedef struct call_arguments {
    operand arg[ATTUNE__MAX_ARGUMENTS];
    const attune_symbol *capture[ATTUNE__MAX_ARGUMENTS]; /* not NULL: the bare name of a capture */
    uint32_t count;
} call_arguments;

/* The state of one level of nesting. It is in heap memory, since the limit on stack is 64 KiB for all levels. */
typedef struct level {
    char name[ATTUNE__NAME_SIZE];
    call_arguments call;
    char sign[MAX_SIGNS];
    uint32_t sign_at[MAX_SIGNS];
    struct {
        operand left;
        const infix *infix;
    } waiting[MAX_LEVELS];
} level;

typedef struct parser {
    attune__builder *builder;
    level *levels; /* one for each depth */
    attune_expr_kind kind;
    const attune_symbol *symbols;
    uint32_t symbol_count;
    const attune__source *source;
    uint32_t position;
    attune__token token;
    uint32_t depth;
    const argument *arguments; /* of the preset under parsing */
    uint32_t argument_count;
    attune_status status; /* the first failure, after which all functions return at once */
} parser;

static const operand failed = {ATTUNE__NONE, 0};

#define FAIL(p, at, hint, ...) ((p)->status = attune__source_fail((p)->source, (at), (hint), __VA_ARGS__), failed)

static bool advance(parser *p)
{
    if (p->status == ATTUNE_OK)
        p->status = attune__lex(p->source, &p->position, &p->token);
    return p->status == ATTUNE_OK;
}

static bool at_sign(const parser *p, const char *sign)
{
    return p->token.kind == ATTUNE__TOKEN_SIGN && !strcmp(p->token.sign, sign);
}

static const char *token_text(const parser *p, char text[48])
{
    if (p->token.kind == ATTUNE__TOKEN_END)
        snprintf(text, 48, "the end");
    else
        snprintf(text, 48, "'%.*s'", p->token.length > 40 ? 40 : (int)p->token.length, p->source->text + p->token.at);
    return text;
}

static bool token_is(const parser *p, const char *word)
{
    return p->token.length == strlen(word) && !strncmp(p->source->text + p->token.at, word, p->token.length);
}

/* Hints for the syntax of other languages. */
static const char *syntax_hint(const parser *p)
{
    static const char *const hints[][2] = {
        {"&", "write && for and"},
        {"|", "write || for or"},
        {"=", "write == to compare"},
        {"~", "write ! for not"},
        {"**", "write pow(x, y) for a power"},
        {"^", "write pow(x, y) for a power"},
        {"//", "/ of two i32 floors already; there are no comments"},
        {"<<", "there are no shifts: multiply by a power of two"},
        {">>", "there are no shifts: divide by a power of two"},
        {"and", "write && for and"},
        {"or", "write || for or"},
        {"not", "write ! for not"},
        {"if", "write condition ? a : b"},
        {"else", "write condition ? a : b"},
        {";", "an expression is a single value, without statements"},
        {".", "there are no members; functions stand in front: tanh(score)"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (token_is(p, hints[i][0]))
            return hints[i][1];
    return NULL;
}

static bool expect(parser *p, const char *sign)
{
    if (at_sign(p, sign))
        return advance(p);
    char text[48];
    if (p->status == ATTUNE_OK)
        FAIL(p, p->token.at, syntax_hint(p), "expected '%s' but found %s", sign, token_text(p, text));
    return false;
}

static operand parse_expression(parser *p);

/* ------------------------------------------------------------------------------------------------------------ types */

static attune__type type_of(const parser *p, operand x)
{
    return attune__type_of(p->builder, x.node);
}

static const char *type_name(const parser *p, operand x)
{
    return attune__type_name(type_of(p, x));
}

static operand checked(parser *p, uint32_t node, uint32_t at)
{
    if (p->builder->overflow)
        return FAIL(p, at, NULL, "the expression makes more than %d nodes before it is simplified; the limit is %d",
                    ATTUNE__BUILDER_NODES, ATTUNE_EXPR_MAX_NODES);
    return (operand){node, at};
}

static operand to_float(parser *p, operand x)
{
    if (type_of(p, x) == ATTUNE__INT)
        x.node = attune__make1(p->builder, ATTUNE__OP_FLOAT, x.node);
    return x;
}

static void unify(parser *p, operand *a, operand *b)
{
    if (type_of(p, *a) != type_of(p, *b)) {
        *a = to_float(p, *a);
        *b = to_float(p, *b);
    }
}

static bool require_bool(parser *p, operand x, const char *what)
{
    if (type_of(p, x) == ATTUNE__BOOL)
        return true;
    FAIL(p, x.at, "compare it with something, as in x != 0", "%s must be bool, this is %s", what, type_name(p, x));
    return false;
}

static bool require_number(parser *p, operand x, const char *what)
{
    if (type_of(p, x) != ATTUNE__BOOL)
        return true;
    FAIL(p, x.at, "turn it into a number with select(condition, 1, 0)", "%s must be a number, this is bool", what);
    return false;
}

static operand binary(parser *p, attune__op op, operand a, operand b, const char *sign)
{
    char what[48];
    snprintf(what, sizeof what, "an operand of %s", sign);
    if (op == ATTUNE__OP_AND || op == ATTUNE__OP_OR) {
        if (!require_bool(p, a, what) || !require_bool(p, b, what))
            return failed;
    } else if (op == ATTUNE__OP_EQ || op == ATTUNE__OP_NE) {
        if ((type_of(p, a) == ATTUNE__BOOL) != (type_of(p, b) == ATTUNE__BOOL))
            return FAIL(p, a.at, "a bool stands by itself: x, or !x for its opposite", "cannot compare %s with %s",
                        type_name(p, a), type_name(p, b));
    } else if (!require_number(p, a, what) || !require_number(p, b, what)) {
        return failed;
    }
    unify(p, &a, &b);
    return checked(p, attune__make2(p->builder, op, a.node, b.node), a.at);
}

static operand choose(parser *p, operand c, operand a, operand b)
{
    if (!require_bool(p, c, "a condition"))
        return failed;
    if ((type_of(p, a) == ATTUNE__BOOL) != (type_of(p, b) == ATTUNE__BOOL))
        return FAIL(p, b.at, "both must be numbers or both bool", "the branches of a choice are %s and %s",
                    type_name(p, a), type_name(p, b));
    unify(p, &a, &b);
    return checked(p, attune__make(p->builder, ATTUNE__OP_SELECT, c.node, a.node, b.node), c.at);
}

/* ------------------------------------------------------------------------------------------------------------ names */

static bool copy_name(parser *p, char name[ATTUNE__NAME_SIZE])
{
    if (p->token.length >= ATTUNE__NAME_SIZE) {
        FAIL(p, p->token.at, NULL, "the name has %u characters; the limit is %d", p->token.length,
             ATTUNE__NAME_SIZE - 1);
        return false;
    }
    memcpy(name, p->source->text + p->token.at, p->token.length);
    name[p->token.length] = '\0';
    return true;
}

static const argument *find_argument(const parser *p, const char *name)
{
    for (uint32_t i = 0; i < p->argument_count; i++)
        if (!strcmp(p->arguments[i].name, name))
            return &p->arguments[i];
    return NULL;
}

/* A preset's text can use its own parameters, not the caller's symbols. */
static const attune_symbol *find_symbol(const parser *p, const char *name)
{
    if (p->source->caller) {
        const argument *a = find_argument(p, name);
        return a && a->node == ATTUNE__NONE ? a->capture : NULL;
    }
    for (uint32_t i = 0; i < p->symbol_count; i++)
        if (!strcmp(p->symbols[i].name, name))
            return &p->symbols[i];
    return NULL;
}

OWN_FRAME static operand unknown(parser *p, const char *name, uint32_t at)
{
    const char *words = syntax_hint(p);
    if (words)
        return FAIL(p, at, words, "'%s' is no name of the language", name);
    char hint[512];
    attune__names_suggest(name, p->kind, p->symbols, p->symbol_count, hint, sizeof hint);
    return FAIL(p, at, hint, "unknown name '%s'", name);
}

/* The symbol's number in the builder. */
static uint32_t use_symbol(parser *p, const attune_symbol *symbol, uint32_t rank, uint32_t at)
{
    attune__symbol made = {.kind = symbol->kind, .dtype = symbol->dtype, .rank = rank};
    memcpy(made.name, symbol->name, strlen(symbol->name) + 1);
    uint32_t index = attune__builder_symbol(p->builder, &made);
    if (index == ATTUNE__NONE)
        FAIL(p, at, NULL, "'%s' is symbol number %d; one expression may use %d captures and parameters", symbol->name,
             ATTUNE_EXPR_MAX_SYMBOLS + 1, ATTUNE_EXPR_MAX_SYMBOLS);
    return index;
}

static operand parse_capture(parser *p, const attune_symbol *symbol, uint32_t at)
{
    char hint[128];
    if (symbol->kind != ATTUNE_SYMBOL_CAPTURE)
        return FAIL(p, at, "write its name alone", "'%s' is a parameter, a single number without indices",
                    symbol->name);
    if (!advance(p))
        return failed;
    uint32_t index[ATTUNE_MAX_RANK] = {0}, count = 0;
    for (;;) {
        operand x = parse_expression(p);
        if (x.node == ATTUNE__NONE)
            return failed;
        if (type_of(p, x) != ATTUNE__INT)
            return FAIL(p, x.at, type_of(p, x) == ATTUNE__BOOL ? "use select(condition, 1, 0)" : NULL,
                        "an index must be i32, this is %s", type_name(p, x));
        if (count < ATTUNE_MAX_RANK)
            index[count] = x.node;
        count++;
        if (!at_sign(p, ","))
            break;
        if (!advance(p))
            return failed;
    }
    if (!expect(p, "]"))
        return failed;
    if (count > ATTUNE_MAX_RANK)
        return FAIL(p, at, NULL, "'%s' is read with %u indices; the limit is %d", symbol->name, count, ATTUNE_MAX_RANK);
    uint32_t number = use_symbol(p, symbol, symbol->rank ? symbol->rank : count, at);
    if (number == ATTUNE__NONE)
        return failed;
    uint32_t rank = p->builder->symbols[number].rank;
    if (rank != count) {
        snprintf(hint, sizeof hint,
                 symbol->rank ? "one index for each dimension, outermost first" : "its first use has %u", rank);
        return FAIL(p, at, hint, "'%s' has %u dimension%s but is read with %u %s", symbol->name, rank,
                    rank == 1 ? "" : "s", count, count == 1 ? "index" : "indices");
    }
    return checked(p, attune__make_symbol(p->builder, number, index), at);
}

/* ------------------------------------------------------------------------------------------------------------ calls */

/* A capture's bare name as an argument of a preset. */
static const attune_symbol *bare_capture(parser *p)
{
    char name[ATTUNE__NAME_SIZE];
    if (p->token.kind != ATTUNE__TOKEN_NAME || p->token.length >= ATTUNE__NAME_SIZE || !copy_name(p, name))
        return NULL;
    const attune_symbol *symbol = find_symbol(p, name);
    if (!symbol || symbol->kind != ATTUNE_SYMBOL_CAPTURE)
        return NULL;
    const char *next = p->source->text + p->position;
    next += strspn(next, " \t\r\n");
    return *next == ',' || *next == ')' ? symbol : NULL;
}

/* Parses the arguments after the opening parenthesis, and the closing one. */
static bool parse_arguments(parser *p, call_arguments *call, const char *name, bool captures)
{
    call->count = 0;
    if (at_sign(p, ")"))
        return advance(p);
    for (;;) {
        if (call->count == ATTUNE__MAX_ARGUMENTS) {
            FAIL(p, p->token.at, NULL, "%s has more than %d arguments, the limit", name, ATTUNE__MAX_ARGUMENTS);
            return false;
        }
        uint32_t i = call->count++;
        call->capture[i] = captures ? bare_capture(p) : NULL;
        if (call->capture[i]) {
            call->arg[i] = (operand){ATTUNE__NONE, p->token.at};
            if (!advance(p))
                return false;
        } else {
            call->arg[i] = parse_expression(p);
            if (call->arg[i].node == ATTUNE__NONE)
                return false;
        }
        if (!at_sign(p, ","))
            return expect(p, ")");
        if (!advance(p))
            return false;
    }
}

OWN_FRAME static operand apply_function(parser *p, const attune__function *f, call_arguments *call, uint32_t at)
{
    char what[48];
    operand *arg = call->arg;
    if (call->count < f->least || call->count > f->most)
        return FAIL(p, at, NULL, "%s takes %u argument%s%s but has %u: %s", f->name, f->least, f->least == 1 ? "" : "s",
                    f->most > f->least ? " or more" : "", call->count, f->usage);
    if (f->op == ATTUNE__OP_SELECT) {
        operand chosen = choose(p, arg[0], arg[1], arg[2]);
        return chosen.node == ATTUNE__NONE ? failed : (operand){chosen.node, at};
    }
    snprintf(what, sizeof what, "an argument of %s", f->name);
    for (uint32_t i = 0; i < call->count; i++)
        if (!require_number(p, arg[i], what))
            return failed;
    operand result = arg[0];
    if (f->clamp) {
        for (uint32_t i = 1; i < 3 && result.node != ATTUNE__NONE; i++)
            result = binary(p, i == 1 ? ATTUNE__OP_MAX : ATTUNE__OP_MIN, result, arg[i], f->name);
    } else if (f->op == ATTUNE__OP_MIN || f->op == ATTUNE__OP_MAX) {
        for (uint32_t i = 1; i < call->count && result.node != ATTUNE__NONE; i++)
            result = binary(p, f->op, result, arg[i], f->name);
    } else if (f->op == ATTUNE__OP_POW) {
        result.node = attune__make2(p->builder, f->op, to_float(p, arg[0]).node, to_float(p, arg[1]).node);
    } else if (f->op == ATTUNE__OP_ABS) {
        result.node = attune__make1(p->builder, f->op, result.node);
    } else if ((f->op != ATTUNE__OP_FLOOR && f->op != ATTUNE__OP_CEIL) || type_of(p, result) == ATTUNE__FLOAT) {
        /* floor and ceil of i32 are the number itself */
        result.node = attune__make1(p->builder, f->op, to_float(p, result).node);
    }
    return result.node == ATTUNE__NONE ? failed : checked(p, result.node, at);
}

OWN_FRAME static operand apply_preset(parser *p, const char *name, const call_arguments *call, uint32_t at)
{
    char known[256];
    attune__text list = attune__text_begin(known, sizeof known);
    attune_preset preset = {.struct_size = sizeof preset};
    uint32_t i = 0, count = attune_preset_count();
    argument arguments[ATTUNE__PRESET_PARAMETERS];
    for (; i < count; i++) {
        attune_preset_get(i, &preset);
        char names[ATTUNE__PRESET_PARAMETERS][ATTUNE__NAME_SIZE];
        if (!attune__preset_is(&preset, name))
            continue;
        uint32_t parameters = attune__preset_parameters(&preset, names);
        attune__text_add(&list, "%s%s", list.length ? ", " : "", preset.signature);
        if (parameters != call->count)
            continue;
        for (uint32_t j = 0; j < parameters; j++) {
            arguments[j] = (argument){.node = call->arg[j].node, .capture = call->capture[j]};
            memcpy(arguments[j].name, names[j], ATTUNE__NAME_SIZE);
        }
        break;
    }
    if (i == count)
        return FAIL(p, at, NULL, "the preset %s does not take %u argument%s: %s", name, call->count,
                    call->count == 1 ? "" : "s", known);
    if (preset.kind == ATTUNE_EXPR_SCORE && p->kind == ATTUNE_EXPR_MASK)
        return FAIL(p, at, "it belongs in the score expression", "%s changes a score; this is a mask",
                    preset.signature);
    if (p->depth == ATTUNE_EXPR_MAX_DEPTH)
        return FAIL(p, at, NULL, "the text nests more than %d levels deep, the limit", ATTUNE_EXPR_MAX_DEPTH);

    attune__source source = {preset.text, (uint32_t)strlen(preset.text), p->source, at, preset.signature};
    parser inner = {.builder = p->builder,
                    .levels = p->levels,
                    .kind = p->kind,
                    .symbols = p->symbols,
                    .symbol_count = p->symbol_count,
                    .source = &source,
                    .depth = p->depth + 1,
                    .arguments = arguments,
                    .argument_count = call->count};
    operand result = advance(&inner) ? parse_expression(&inner) : failed;
    p->status = inner.status;
    return inner.status == ATTUNE_OK ? (operand){result.node, at} : failed;
}

/* Parses a call, or a preset without arguments; the current token is the one after the name. */
static operand parse_call(parser *p, const char *name, uint32_t at, const attune__function *f)
{
    call_arguments *call = &p->levels[p->depth].call;
    call->count = 0;
    if (at_sign(p, "(")) {
        if (!advance(p) || !parse_arguments(p, call, name, !f))
            return failed;
    } else if (f) {
        return FAIL(p, at, NULL, "%s is a function and needs its arguments: %s", name, f->usage);
    }
    return f ? apply_function(p, f, call, at) : apply_preset(p, name, call, at);
}

OWN_FRAME static operand needs_index(parser *p, const attune_symbol *symbol, const char *name, uint32_t at)
{
    char hint[2 * ATTUNE__NAME_SIZE];
    snprintf(hint, sizeof hint, "write %s[...] with one index for each dimension", name);
    return p->source->caller ? FAIL(p, at, NULL, "%s must be a value, but '%s' is an array", name, symbol->name)
                             : FAIL(p, at, hint, "'%s' is an array and needs an index", name);
}

static operand parse_name(parser *p)
{
    char *name = p->levels[p->depth].name;
    uint32_t at = p->token.at;
    if (!copy_name(p, name))
        return failed;
    const argument *a = find_argument(p, name);
    const attune_symbol *symbol = find_symbol(p, name);
    const attune__function *f = attune__function_find(name);
    int var = attune__var_find(name);
    bool constant = !strcmp(name, "true") || !strcmp(name, "false");
    bool preset = attune__preset_exists(name);
    if (!a && !symbol && !f && var < 0 && !constant && !preset)
        return unknown(p, name, at);
    if (!advance(p))
        return failed;
    bool index = at_sign(p, "[");
    if (symbol && index)
        return parse_capture(p, symbol, at);
    if (symbol && symbol->kind == ATTUNE_SYMBOL_CAPTURE)
        return needs_index(p, symbol, name, at);
    if (a && index)
        return FAIL(p, at, "declare it as a capture and give its name", "%s must be the name of a capture", name);
    if (index)
        return FAIL(p, at, NULL, "'%s' is not an array", name);
    if (!a && (f || preset))
        return parse_call(p, name, at, f);
    if (at_sign(p, "("))
        return FAIL(p, at, NULL, "'%s' is not a function", name);
    if (a)
        return (operand){a->node, at};
    if (constant)
        return checked(p, attune__make_bool(p->builder, name[0] == 't'), at);
    if (symbol) {
        uint32_t number = use_symbol(p, symbol, 0, at);
        return number == ATTUNE__NONE ? failed : checked(p, attune__make_symbol(p->builder, number, NULL), at);
    }
    if (var == ATTUNE__VAR_SCORE && p->kind == ATTUNE_EXPR_MASK)
        return FAIL(p, at, "a mask decides before scores exist; change scores in the score expression",
                    "'score' stands in score expressions only; this is a mask");
    return checked(p, attune__make_var(p->builder, (attune__var)var), at);
}

/* ---------------------------------------------------------------------------------------------------------- grammar */

OWN_FRAME static operand no_value(parser *p)
{
    char text[48];
    return FAIL(p, p->token.at, syntax_hint(p), "expected a value but found %s", token_text(p, text));
}

static operand parse_primary(parser *p, bool negated)
{
    uint32_t at = p->token.at;
    if (p->token.kind == ATTUNE__TOKEN_INT) {
        if (p->token.integer > INT32_MAX && !negated)
            return FAIL(p, at, "write it with a decimal point to make it f32",
                        "2147483648 does not fit i32, which ends at 2147483647");
        int32_t value = (int32_t)p->token.integer;
        return advance(p) ? checked(p, attune__make_int(p->builder, value), at) : failed;
    }
    if (p->token.kind == ATTUNE__TOKEN_FLOAT) {
        double value = p->token.real;
        return advance(p) ? checked(p, attune__make_float(p->builder, value), at) : failed;
    }
    if (p->token.kind == ATTUNE__TOKEN_NAME)
        return parse_name(p);
    if (at_sign(p, "(")) {
        operand x = advance(p) ? parse_expression(p) : failed;
        return x.node != ATTUNE__NONE && expect(p, ")") ? (operand){x.node, at} : failed;
    }
    return no_value(p);
}

OWN_FRAME static operand apply_sign(parser *p, char sign, operand x, uint32_t at)
{
    char what[24];
    snprintf(what, sizeof what, "the operand of %c", sign);
    if (!(sign == '!' ? require_bool(p, x, what) : require_number(p, x, what)))
        return failed;
    if (sign != '+')
        x.node = attune__make1(p->builder, sign == '!' ? ATTUNE__OP_NOT : ATTUNE__OP_NEG, x.node);
    return checked(p, x.node, at);
}

/* Signs are collected in an array, so that they need no recursion. */
static operand parse_unary(parser *p)
{
    level *l = &p->levels[p->depth];
    uint32_t count = 0;
    while (at_sign(p, "-") || at_sign(p, "+") || at_sign(p, "!")) {
        if (count == MAX_SIGNS)
            return FAIL(p, p->token.at, NULL, "more than %d signs in a row, the limit", MAX_SIGNS);
        l->sign_at[count] = p->token.at;
        l->sign[count++] = p->token.sign[0];
        if (!advance(p))
            return failed;
    }
    operand x = parse_primary(p, count && l->sign[count - 1] == '-');
    while (count && x.node != ATTUNE__NONE) {
        count--;
        x = apply_sign(p, l->sign[count], x, l->sign_at[count]);
    }
    return x;
}

enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_EQUAL, LEVEL_ORDER, LEVEL_SUM, LEVEL_PRODUCT };

static const infix *current_infix(const parser *p)
{
    static const infix infixes[] = {
        {"||", LEVEL_OR, ATTUNE__OP_OR, false},      {"&&", LEVEL_AND, ATTUNE__OP_AND, false},
        {"==", LEVEL_EQUAL, ATTUNE__OP_EQ, false},   {"!=", LEVEL_EQUAL, ATTUNE__OP_NE, false},
        {"<", LEVEL_ORDER, ATTUNE__OP_LT, false},    {"<=", LEVEL_ORDER, ATTUNE__OP_LE, false},
        {">", LEVEL_ORDER, ATTUNE__OP_LT, true},     {">=", LEVEL_ORDER, ATTUNE__OP_LE, true},
        {"+", LEVEL_SUM, ATTUNE__OP_ADD, false},     {"-", LEVEL_SUM, ATTUNE__OP_SUB, false},
        {"*", LEVEL_PRODUCT, ATTUNE__OP_MUL, false}, {"/", LEVEL_PRODUCT, ATTUNE__OP_DIV, false},
        {"%", LEVEL_PRODUCT, ATTUNE__OP_MOD, false},
    };
    for (size_t i = 0; i < sizeof infixes / sizeof infixes[0]; i++)
        if (at_sign(p, infixes[i].sign))
            return &infixes[i];
    return NULL;
}

static operand apply_infix(parser *p, const infix *o, operand left, operand right)
{
    operand x = o->swap ? binary(p, (attune__op)o->op, right, left, o->sign)
                        : binary(p, (attune__op)o->op, left, right, o->sign);
    x.at = left.at;
    return x;
}

/* Parses operators and their operands by precedence. An operator waits for its right operand until one of at most its
 * own level follows, so that waiting operators have ascending levels. */
static operand parse_operators(parser *p)
{
    level *l = &p->levels[p->depth];
    uint32_t waiting = 0;
    for (;;) {
        operand x = parse_unary(p);
        if (x.node == ATTUNE__NONE)
            return failed;
        const infix *o = current_infix(p);
        bool compared = false;
        while (waiting && (!o || l->waiting[waiting - 1].infix->level >= o->level)) {
            waiting--;
            compared = l->waiting[waiting].infix->level == LEVEL_ORDER;
            x = apply_infix(p, l->waiting[waiting].infix, l->waiting[waiting].left, x);
            if (x.node == ATTUNE__NONE)
                return failed;
        }
        if (!o)
            return x;
        if (compared && o->level == LEVEL_ORDER)
            return FAIL(p, p->token.at, "write a < b && b < c", "comparisons do not chain");
        l->waiting[waiting].left = x;
        l->waiting[waiting].infix = o;
        waiting++;
        if (!advance(p))
            return failed;
    }
}

static operand parse_expression(parser *p)
{
    if (p->depth == ATTUNE_EXPR_MAX_DEPTH)
        return FAIL(p, p->token.at, NULL, "the text nests more than %d levels deep, the limit", ATTUNE_EXPR_MAX_DEPTH);
    p->depth++;
    operand x = parse_operators(p);
    if (x.node != ATTUNE__NONE && at_sign(p, "?")) {
        operand a = advance(p) ? parse_expression(p) : failed;
        operand b = a.node != ATTUNE__NONE && expect(p, ":") ? parse_expression(p) : failed;
        x = b.node != ATTUNE__NONE ? choose(p, x, a, b) : failed;
    }
    p->depth--;
    return x;
}

static attune_status parse_whole(parser *p, uint32_t *root)
{
    char text[48];
    if (!advance(p))
        return p->status;
    if (p->token.kind == ATTUNE__TOKEN_END) {
        FAIL(p, 0, p->kind == ATTUNE_EXPR_MASK ? "true allows every pair" : "score alone changes nothing",
             "the text is empty");
        return p->status;
    }
    operand x = parse_expression(p);
    if (x.node == ATTUNE__NONE)
        return p->status;
    if (p->token.kind != ATTUNE__TOKEN_END) {
        FAIL(p, p->token.at, syntax_hint(p), "expected an operator or the end but found %s", token_text(p, text));
        return p->status;
    }
    if (p->kind == ATTUNE_EXPR_MASK)
        require_bool(p, x, "a mask");
    else if (type_of(p, x) == ATTUNE__BOOL)
        FAIL(p, x.at, "choose between two scores with select(condition, a, b)", "a score must be f32, this is bool");
    else
        x = to_float(p, x);
    *root = x.node;
    return p->status;
}

attune_status attune__expr_parse(const attune_allocator *allocator, attune_expr_kind kind, const char *text,
                                 const attune_symbol *symbols, uint32_t symbol_count, attune_expr **expr)
{
    *expr = NULL;
    ATTUNE__TRY(attune__symbols_check(symbols, symbol_count));
    size_t length = strlen(text);
    if (length > ATTUNE_EXPR_MAX_LENGTH)
        return attune__fail(ATTUNE_PARSE_ERROR, "the text has %zu bytes; the limit is %d", length,
                            ATTUNE_EXPR_MAX_LENGTH);
    attune__builder builder;
    ATTUNE__TRY(attune__builder_init(&builder, allocator, kind));
    attune__source source = {.text = text, .length = (uint32_t)length};
    level *levels = attune__alloc_raw(allocator, ATTUNE_EXPR_MAX_DEPTH + 1, sizeof *levels);
    parser p = {.builder = &builder,
                .levels = levels,
                .kind = kind,
                .symbols = symbols,
                .symbol_count = symbol_count,
                .source = &source};
    uint32_t root = 0;
    attune_status status = levels ? parse_whole(&p, &root) : ATTUNE_OUT_OF_HOST_MEMORY;
    if (status == ATTUNE_OK)
        status = attune__builder_finish(&builder, root, ATTUNE_PARSE_ERROR, expr);
    attune__free(allocator, levels);
    attune__builder_free(&builder);
    return status;
}

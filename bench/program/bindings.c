/* SPDX-License-Identifier: MIT */
/* Names in expressions on the command line: with data, declared, or inferred from the text. */
#include "bench/program/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_declared(const bindings *names, const char *name)
{
    for (uint32_t i = 0; i < names->symbol_count; i++)
        if (!strcmp(names->symbols[i].name, name))
            return true;
    return false;
}

/* Adds a symbol, and returns the copy of its name in `names`; NULL if there are too many. */
static const char *add_symbol(bindings *names, const char *name, size_t length, attune_symbol symbol)
{
    const uint32_t capacity = sizeof names->symbols / sizeof names->symbols[0];
    if (names->symbol_count == capacity || length >= sizeof names->text[0])
        return NULL;
    char *copy = names->text[names->symbol_count];
    memcpy(copy, name, length);
    copy[length] = '\0';
    if (is_declared(names, copy))
        return NULL;
    symbol.name = copy;
    names->symbols[names->symbol_count++] = symbol;
    return copy;
}

/* Splits "NAME=VALUE" at a separator; prints an error on failure. */
static bool split(const char *option, const char *text, char separator, const char **value, size_t *length)
{
    const char *at = strchr(text, separator);
    *length = at ? (size_t)(at - text) : 0;
    *value = at ? at + 1 : "";
    if (!*length || !**value || *length > 63) {
        cli_error("%s is \"%s\", expected NAME%c%s with a name of at most 63 characters", option, text, separator,
                  separator == ':' ? "DTYPE" : "VALUE");
        return false;
    }
    return true;
}

static bool load_capture(bindings *names, const char *text)
{
    const char *path;
    size_t length;
    failure why;
    array *data = &names->data[names->capture_count];
    if (!split("--capture", text, '=', &path, &length))
        return false;
    if (!npy_read(path, data, &why)) {
        cli_error("--capture: %s", why.message);
        return false;
    }
    /* Expressions have no float64: a file of numpy's default type is read as f32. */
    if (data->dtype == ATTUNE_F64) {
        array narrow;
        if (!array_convert(data, ATTUNE_F32, &narrow, &why)) {
            array_free(data);
            cli_error("--capture: %s", why.message);
            return false;
        }
        array_free(data);
        *data = narrow;
    }
    const char *name =
        add_symbol(names, text, length, (attune_symbol){NULL, ATTUNE_SYMBOL_CAPTURE, data->dtype, data->rank});
    if (!name || data->rank < 1) {
        cli_error(name ? "--capture %s: a capture has at least one dimension" : "--capture %s: the name is given twice",
                  text);
        array_free(data);
        return false;
    }
    names->captures[names->capture_count++] = (attune_host_capture){name, array_view(data)};
    return true;
}

static bool load_parameter(bindings *names, const char *text)
{
    const char *value;
    size_t length;
    double number;
    if (!split("--param", text, '=', &value, &length) || !cli_parameter(text, length, value, &number))
        return false;
    const attune_dtype dtype = strpbrk(value, ".eEnN") ? ATTUNE_F32 : ATTUNE_I32;
    const char *name = add_symbol(names, text, length, (attune_symbol){NULL, ATTUNE_SYMBOL_PARAMETER, dtype, 0});
    if (!name) {
        cli_error("--param %s: the name is given twice", text);
        return false;
    }
    names->parameters[names->parameter_count++] = (attune_parameter){name, number};
    return true;
}

static bool load_declaration(bindings *names, const char *text)
{
    static const attune_dtype all[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_I32,
                                       ATTUNE_I64, ATTUNE_U8,  ATTUNE_BOOL};
    const char *type;
    size_t length;
    if (!split("--declare", text, ':', &type, &length))
        return false;
    const size_t word = strcspn(type, "[");
    attune_symbol symbol = {.kind = ATTUNE_SYMBOL_CAPTURE};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *name = attune_dtype_string(all[i]);
        if (strlen(name) == word && !strncmp(name, type, word))
            symbol.dtype = all[i];
    }
    const char *rank = type + word;
    bool ok = symbol.dtype && (!*rank || (strlen(rank) == 3 && rank[1] >= '0' && rank[1] <= '4' && rank[2] == ']'));
    if (ok && *rank)
        symbol.rank = (uint32_t)(rank[1] - '0');
    if (ok && *rank && !symbol.rank)
        symbol.kind = ATTUNE_SYMBOL_PARAMETER;
    if (ok && !add_symbol(names, text, length, symbol)) {
        cli_error("--declare %s: the name is given twice", text);
        return false;
    }
    if (!ok) {
        cli_error("--declare is \"%s\", expected NAME:DTYPE or NAME:DTYPE[RANK] with f32, f16, bf16, i32, "
                  "i64, u8 or bool and "
                  "rank 1 to 4, or 0 for a parameter",
                  text);
        return false;
    }
    return true;
}

bool cli_bindings_load(bindings *names, const cli_list *captures, const cli_list *parameters,
                       const cli_list *declarations)
{
    memset(names, 0, sizeof *names);
    bool ok = true;
    for (uint32_t i = 0; ok && captures && i < captures->count; i++)
        ok = load_capture(names, captures->value[i]);
    for (uint32_t i = 0; ok && parameters && i < parameters->count; i++)
        ok = load_parameter(names, parameters->value[i]);
    for (uint32_t i = 0; ok && declarations && i < declarations->count; i++)
        ok = load_declaration(names, declarations->value[i]);
    if (!ok)
        bindings_free(names);
    return ok;
}

static bool is_language(const char *name, size_t length)
{
    static const char *const words[] = {"b",     "h",    "q",     "kv",     "h_kv",   "q_len", "kv_len", "row",
                                        "score", "abs",  "min",   "max",    "clamp",  "floor", "ceil",   "exp",
                                        "exp2",  "log",  "log2",  "sqrt",   "rsqrt",  "tanh",  "sin",    "cos",
                                        "pow",   "true", "false", "select", "sigmoid"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i]) == length && !strncmp(words[i], name, length))
            return true;
    return false;
}

/* The uses of a name in a text: it is indexed (name[...]), or it is in an index. */
typedef struct name_use {
    bool capture, index;
} name_use;

static name_use use_in(const char *text, const char *name, size_t length)
{
    name_use use = {false, false};
    uint32_t depth = 0;
    for (const char *c = text; *c;) {
        const char *word = c;
        while (isalnum((unsigned char)*c) || *c == '_')
            c++;
        if ((size_t)(c - word) == length && !strncmp(word, name, length)) {
            use.capture |= *c == '[';
            use.index |= depth > 0;
        }
        if (c == word) {
            depth = *c == '[' ? depth + 1 : *c == ']' && depth ? depth - 1 : depth;
            c++;
        }
    }
    return use;
}

/* Whether a name is a preset, and how the presets of this name use their argument `index`. */
static bool is_preset(const char *name, size_t length, uint32_t index, name_use *use)
{
    bool found = false;
    for (uint32_t i = 0; i < attune_preset_count(); i++) {
        attune_preset p = {.struct_size = sizeof p};
        if (attune_preset_get(i, &p) != ATTUNE_OK || strcspn(p.signature, "(") != length ||
            strncmp(p.signature, name, length) != 0)
            continue;
        found = true;
        const char *argument = p.signature + length;
        for (uint32_t a = 0; *argument && a <= index; a++) {
            argument += strspn(argument, "(, ");
            size_t size = strcspn(argument, ",) ");
            if (a == index && size) {
                name_use here = use_in(p.text, argument, size);
                use->capture |= here.capture;
                use->index |= here.index;
            }
            argument += size;
        }
    }
    return found;
}

void cli_bindings_infer(bindings *names, attune_expr_kind kind, const char *text)
{
    const attune_dtype dtype = kind == ATTUNE_EXPR_MASK ? ATTUNE_I32 : ATTUNE_F32;
    /* The enclosing calls, to find the argument of the preset that a name is. */
    struct {
        const char *name;
        size_t length;
        uint32_t argument;
        bool index; /* inside brackets */
    } calls[64];
    uint32_t depth = 0;
    const char *word = "";
    size_t length = 0;
    for (const char *c = text; *c;) {
        if (isalpha((unsigned char)*c) || *c == '_') {
            word = c;
            while (isalnum((unsigned char)*c) || *c == '_')
                c++;
            length = (size_t)(c - word);
            const char *next = c + strspn(c, " \t\n");
            name_use use = {*next == '[', depth && calls[depth - 1].index}, ignored = {false, false};
            if (is_language(word, length) || is_preset(word, length, 0, &ignored) || *next == '(')
                continue;
            if (depth && calls[depth - 1].length)
                (void)is_preset(calls[depth - 1].name, calls[depth - 1].length, calls[depth - 1].argument, &use);
            attune_symbol symbol = {NULL, use.capture ? ATTUNE_SYMBOL_CAPTURE : ATTUNE_SYMBOL_PARAMETER,
                                    use.index ? ATTUNE_I32 : dtype, 0};
            names->inferred += add_symbol(names, word, length, symbol) != NULL;
            length = 0;
            continue;
        }
        if (isdigit((unsigned char)*c) || *c == '.') {
            while (isalnum((unsigned char)*c) || *c == '.' ||
                   ((*c == '+' || *c == '-') && (c[-1] == 'e' || c[-1] == 'E')))
                c++;
            length = 0;
            continue;
        }
        if ((*c == '(' || *c == '[') && depth < sizeof calls / sizeof calls[0]) {
            calls[depth].name = word;
            calls[depth].length = *c == '(' ? length : 0;
            calls[depth].index = *c == '[' || (depth && calls[depth - 1].index);
            calls[depth++].argument = 0;
        } else if ((*c == ')' || *c == ']') && depth) {
            depth--;
        } else if (*c == ',' && depth) {
            calls[depth - 1].argument++;
        }
        if (!isspace((unsigned char)*c))
            length = 0;
        c++;
    }
}

bool cli_expr(attune_instance *instance, attune_expr_kind kind, const char *text, const bindings *names,
              attune_expr **expr)
{
    char why[1024];
    *expr = NULL;
    if (!text || !*text ||
        attune_expr_create(instance, kind, text, names->symbols, names->symbol_count, expr) == ATTUNE_OK)
        return true;
    (void)snprintf(why, sizeof why, "%s", attune_last_error());
    /* A preset that is misspelt was taken for a parameter: without those the message says so. */
    if (names->inferred &&
        attune_expr_create(instance, kind, text, names->symbols, names->symbol_count - names->inferred, expr) !=
            ATTUNE_OK &&
        strstr(attune_last_error(), "did you mean"))
        (void)snprintf(why, sizeof why, "%s", attune_last_error());
    attune_expr_destroy(*expr);
    *expr = NULL;
    cli_error("%s: %s", kind == ATTUNE_EXPR_MASK ? "mask" : "score", why);
    return false;
}

bool cli_bindings_complete(const bindings *names, const attune_expr *expr)
{
    for (uint32_t i = 0; i < attune_expr_symbol_count(expr); i++) {
        attune_symbol symbol;
        bool bound = false;
        if (attune_expr_symbol_get(expr, i, &symbol) != ATTUNE_OK)
            continue;
        const bool capture = symbol.kind == ATTUNE_SYMBOL_CAPTURE;
        for (uint32_t c = 0; capture && c < names->capture_count; c++)
            bound |= !strcmp(names->captures[c].name, symbol.name);
        for (uint32_t p = 0; !capture && p < names->parameter_count; p++)
            bound |= !strcmp(names->parameters[p].name, symbol.name);
        if (!bound) {
            cli_error(capture ? "the expression reads %s[...]: give its data with --capture %s=FILE.npy"
                              : "the expression uses %s: give its value with --param %s=VALUE",
                      symbol.name, symbol.name);
            return false;
        }
    }
    return true;
}

bool cli_bindings_used(const bindings *names, const char *mask, const char *score)
{
    /* In the order of cli_bindings_load: captures, parameters, declarations. */
    const uint32_t given = names->capture_count + names->parameter_count;
    for (uint32_t i = 0; i < names->symbol_count - names->inferred; i++) {
        const char *name = names->symbols[i].name;
        if (!(mask && workload_text_has(mask, name)) && !(score && workload_text_has(score, name))) {
            cli_error("%s %s: no expression uses that name",
                      i < names->capture_count ? "--capture"
                      : i < given              ? "--param"
                                               : "--declare",
                      name);
            return false;
        }
    }
    return true;
}

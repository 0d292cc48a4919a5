/* SPDX-License-Identifier: MIT */
#include "bench/program/shapes.h"

#include "bench/timing/json_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX   64   /* numbers of one option */
#define SHAPES_MAX 1024 /* workloads of one run */

/* The fields of a workload that lists give. One that is not given has the default, or none: the field is then left out,
 * and has the default of a file. */
typedef enum field { BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, HEAD_DIM, HEAD_DIM_V, NUMBERS } field;

static const struct {
    const char *option, *key, *otherwise;
} fields[NUMBERS] = {
    [BATCH] = {"--batch", "batch", "1"},
    [HEADS] = {"--heads", "heads", "16"},
    [KV_HEADS] = {"--kv-heads", "kv_heads", NULL},
    [Q_LEN] = {"--q-len", "q_len", "4096"},
    [KV_LEN] = {"--kv-len", "kv_len", NULL},
    [HEAD_DIM] = {"--head-dim", "head_dim", "128"},
    [HEAD_DIM_V] = {"--head-dim-v", "head_dim_v", NULL},
};

typedef struct list {
    int64_t value[LIST_MAX];
    uint32_t count;
} list;

static void texts_of(const shape_options *o, const char *text[NUMBERS])
{
    text[BATCH] = o->batch;
    text[HEADS] = o->heads;
    text[KV_HEADS] = o->kv_heads;
    text[Q_LEN] = o->q_len;
    text[KV_LEN] = o->kv_len;
    text[HEAD_DIM] = o->head_dim;
    text[HEAD_DIM_V] = o->head_dim_v;
}

bool shapes_given(const shape_options *o)
{
    const char *text[NUMBERS];
    texts_of(o, text);
    bool given = o->masks.count || o->scores.count || o->captures.count || o->parameters.count;
    for (int i = 0; i < NUMBERS; i++)
        given |= text[i] != NULL;
    return given;
}

static bool read_number(const char **at, int64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    *value = strtoll(*at, &end, 10);
    *at = end;
    return errno == 0 && *value >= 1 && *value <= INT32_MAX;
}

static bool add(const char *option, int64_t value, list *out)
{
    if (out->count == LIST_MAX) {
        cli_error("%s has more than %d numbers, the limit", option, LIST_MAX);
        return false;
    }
    out->value[out->count++] = value;
    return true;
}

/* "1024", "1024..65536*2" or "128..512+128". */
static bool read_word(const char *option, const char *word, list *out)
{
    const char *at = word;
    int64_t first = 0, last = 0, step = 1;
    char kind = '+';
    bool good = read_number(&at, &first);
    last = first;
    if (good && !strncmp(at, "..", 2)) {
        at += 2;
        good = read_number(&at, &last) && (*at == '*' || *at == '+');
        kind = good ? *at++ : kind;
        good = good && read_number(&at, &step) && step > (kind == '*') && last >= first;
    }
    if (!good || *at) {
        cli_error("%s is \"%s\", expected whole numbers from 1 to %d with commas, and sweeps such as 1024..65536*2 and "
                  "128..512+128",
                  option, word, INT32_MAX);
        return false;
    }
    for (int64_t value = first; value <= last; value = kind == '*' ? value * step : value + step)
        if (!add(option, value, out))
            return false;
    return true;
}

static bool read_list(const char *option, const char *text, list *out)
{
    char word[80];
    while (text && cli_next_word(&text, word, sizeof word))
        if (!read_word(option, word, out))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------------ one workload
 */

/* "window(1024)" as "window-1024". */
static void add_name(char *name, size_t size, const char *text)
{
    size_t used = strlen(name);
    for (bool gap = false; *text && used + 2 < size; text++) {
        const bool letter = isalnum((unsigned char)*text) || *text == '_' || *text == '.';
        if (letter && gap && used && name[used - 1] != '.')
            name[used++] = '-';
        if (letter)
            name[used++] = *text;
        gap = !letter;
    }
    name[used] = '\0';
}

typedef char label[64];

/* Expressions that differ get names that differ: the earlier names are those of other expressions. */
static void name_of(const char *mask, const char *score, const label *earlier, uint32_t count, label name)
{
    char text[sizeof(label) - 5] = "";
    add_name(text, sizeof text, mask);
    if (*score && *text && strlen(text) + 2 < sizeof text)
        text[strlen(text)] = '.'; /* the rest is zeros */
    add_name(text, sizeof text, score);
    (void)snprintf(name, sizeof(label), "%s", *text ? text : "dense");
    for (uint32_t i = 0, copy = 1; i < count; i++)
        if (!strcmp(earlier[i], name)) {
            (void)snprintf(name, sizeof(label), "%s-%u", *text ? text : "dense", ++copy);
            i = UINT32_MAX; /* from the first one again */
        }
}

/* NAME=FILE.npy, or NAME=GENERATOR with a median length behind a colon. */
static bool add_capture(json_t *object, const char *text)
{
    const size_t length = strcspn(text, "=");
    const char *value = text + length + (text[length] == '='), *dot = strrchr(value, '.');
    if (!length || !*value) {
        cli_error("--capture is \"%s\", expected NAME=FILE.npy or NAME=GENERATOR[:LENGTH]", text);
        return false;
    }
    json_t *capture = json_object();
    char *name = strndup(text, length), *end = NULL;
    bool good = name != NULL;
    if (dot && !strcmp(dot, ".npy")) {
        (void)json_object_set_new(capture, "npy", json_text(value));
    } else if (good) {
        const size_t word = strcspn(value, ":");
        char generator[64];
        (void)snprintf(generator, sizeof generator, "%.*s", (int)word, value);
        (void)json_object_set_new(capture, "generator", json_text(generator));
        if (value[word]) {
            (void)json_object_set_new(capture, "length", json_real(strtod(value + word + 1, &end)));
            good = end != value + word + 1 && !*end;
        }
        if (!good)
            cli_error("--capture is \"%s\", expected a length behind the colon", text);
    }
    if (good && json_object_get(object, name)) {
        cli_error("--capture %s: the name is given twice", text);
        good = false;
    }
    if (good)
        (void)json_object_set(object, name, capture);
    json_decref(capture);
    free(name);
    return good;
}

static bool add_parameter(json_t *object, const char *text)
{
    const size_t length = strcspn(text, "=");
    double number;
    if (!length || !text[length]) {
        cli_error("--param is \"%s\", expected NAME=VALUE", text);
        return false;
    }
    const char *value = text + length + 1;
    char *name = strndup(text, length);
    bool good = name && cli_parameter(name, length, value, &number);
    if (good && json_object_get(object, name)) {
        cli_error("--param %s: the name is given twice", text);
        good = false;
    }
    const bool whole = good && !strpbrk(value, ".eEnN") && number >= INT32_MIN && number <= INT32_MAX;
    if (good)
        (void)json_object_set_new(object, name, whole ? json_integer((json_int_t)number) : json_figure(number));
    free(name);
    return good;
}

/* The entries whose names are words of the expressions. */
static json_t *used_of(const json_t *all, const char *mask, const char *score)
{
    json_t *used = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)all, key, value)
    {
        if (workload_text_has(mask, key) || workload_text_has(score, key))
            (void)json_object_set(used, key, value);
    }
    return used;
}

static json_t *one(const list lists[NUMBERS], const uint32_t at[NUMBERS], const char *name, const char *mask,
                   const char *score, const json_t *captures, const json_t *parameters)
{
    json_t *w = json_object();
    (void)json_object_set_new(w, "name", json_text(name));
    (void)json_object_set_new(w, "mask", json_text(mask));
    (void)json_object_set_new(w, "score", json_text(score));
    for (int i = 0; i < NUMBERS; i++)
        if (lists[i].count)
            (void)json_object_set_new(w, fields[i].key, json_integer(lists[i].value[at[i]]));
    (void)json_object_set_new(w, "captures", used_of(captures, mask, score));
    (void)json_object_set_new(w, "parameters", used_of(parameters, mask, score));
    return w;
}

/* --------------------------------------------------------------------------------------------------------------- all
 */

/* The next combination, the last list first; false after the last one. */
static bool next(const list lists[NUMBERS], uint32_t at[NUMBERS])
{
    for (int i = NUMBERS; i-- > 0;) {
        if (++at[i] < lists[i].count)
            return true;
        at[i] = 0;
    }
    return false;
}

static bool are_used(const char *option, const json_t *names, const cli_list *masks, const cli_list *scores)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)names, key, value)
    {
        bool used = false;
        for (uint32_t i = 0; i < masks->count; i++)
            used |= workload_text_has(masks->value[i], key);
        for (uint32_t i = 0; i < scores->count; i++)
            used |= workload_text_has(scores->value[i], key);
        if (!used) {
            cli_error("%s %s: no expression uses that name", option, key);
            return false;
        }
    }
    return true;
}

/* Whether each name that an expression reads has data. */
static bool are_given(attune_expr_kind kind, const char *text, const json_t *captures, const json_t *parameters)
{
    bindings names = {0};
    const attune_symbol *missing = NULL;
    cli_bindings_infer(&names, kind, text);
    for (uint32_t i = 0; i < names.symbol_count && !missing; i++)
        if (!json_object_get(captures, names.symbols[i].name) && !json_object_get(parameters, names.symbols[i].name))
            missing = &names.symbols[i];
    if (missing) {
        attune_instance *instance;
        attune_expr *expr = NULL;
        /* A preset that is misspelt is a missing name, too, and the parser says which is meant. */
        if (attune_instance_create(NULL, &instance) != ATTUNE_OK)
            cli_error("%s", attune_last_error());
        else if (cli_expr(instance, kind, text, &names, &expr) && missing->kind == ATTUNE_SYMBOL_CAPTURE)
            cli_error("the expression reads %s[...]: give its data with --capture %s=FILE.npy, or with --capture "
                      "%s=GENERATOR[:LENGTH] and a generator of attune bench --list",
                      missing->name, missing->name, missing->name);
        else if (expr)
            cli_error("the expression uses %s: give its value with --param %s=VALUE", missing->name, missing->name);
        attune_expr_destroy(expr);
        attune_instance_destroy(instance);
    }
    bindings_free(&names);
    return !missing;
}

static bool parse(const json_t *all, workload **out, uint32_t *count)
{
    failure why = {{0}};
    char *text = json_dumps(all, JSON_ENCODE_ANY);
    bool good = text && workload_parse(text, strlen(text), "the command line", true, out, count, &why);
    if (!good)
        cli_error("%s", text ? why.message : "out of memory");
    free(text);
    return good;
}

bool shapes_load(const shape_options *o, workload **out, uint32_t *count)
{
    static const cli_list none = {.value = {""}, .count = 1};
    const cli_list *masks = o->masks.count ? &o->masks : &none, *scores = o->scores.count ? &o->scores : &none;
    const char *text[NUMBERS];
    list lists[NUMBERS] = {0};
    double total = (double)masks->count * (double)scores->count;
    json_t *all = json_array(), *captures = json_object(), *parameters = json_object();
    bool good = true;
    *out = NULL;
    *count = 0;
    texts_of(o, text);
    for (int i = 0; i < NUMBERS && good; i++) {
        good = read_list(fields[i].option, text[i] ? text[i] : fields[i].otherwise, &lists[i]);
        if (good && text[i] && !lists[i].count) {
            cli_error("%s is \"%s\", expected numbers with commas", fields[i].option, text[i]);
            good = false;
        }
        total *= lists[i].count ? lists[i].count : 1;
    }
    if (good && total > SHAPES_MAX) {
        cli_error("the options have %.0f combinations, the limit is %d: shorten a list", total, SHAPES_MAX);
        good = false;
    }
    for (uint32_t i = 0; i < o->captures.count && good; i++)
        good = add_capture(captures, o->captures.value[i]);
    for (uint32_t i = 0; i < o->parameters.count && good; i++)
        good = add_parameter(parameters, o->parameters.value[i]);
    good = good && are_used("--capture", captures, masks, scores) && are_used("--param", parameters, masks, scores);
    for (uint32_t i = 0; i < masks->count && good; i++)
        good = are_given(ATTUNE_EXPR_MASK, masks->value[i], captures, parameters);
    for (uint32_t i = 0; i < scores->count && good; i++)
        good = are_given(ATTUNE_EXPR_SCORE, scores->value[i], captures, parameters);
    label *names = calloc((size_t)masks->count * scores->count, sizeof *names);
    for (uint32_t i = 0; i < masks->count * scores->count && good && names; i++) {
        const char *mask = masks->value[i / scores->count], *score = scores->value[i % scores->count];
        uint32_t at[NUMBERS] = {0};
        name_of(mask, score, (const label *)names, i, names[i]);
        do
            (void)json_array_append_new(all, one(lists, at, names[i], mask, score, captures, parameters));
        while (next(lists, at));
    }
    free(names);
    good = good && parse(all, out, count);
    json_decref(all);
    json_decref(captures);
    json_decref(parameters);
    return good;
}

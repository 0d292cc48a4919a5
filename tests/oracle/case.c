/* SPDX-License-Identifier: MIT */
/* Case folders, hostile until parsed: every key and every shape is checked, and every message names file and key. */
#include "tests/oracle/case.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "FOLDER/NAME.npy"; false if it is too long. */
static bool file_path(char *path, size_t size, const char *folder, const char *name, failure *why)
{
    int length = snprintf(path, size, "%s/%s", folder, name);
    return (length > 0 && (size_t)length < size) || failure_set(why, "%s: the path is too long", folder);
}

static bool read_array(const char *folder, const char *name, attune_dtype dtype, array *out, failure *why)
{
    char path[4096], file[80];
    array raw;
    (void)snprintf(file, sizeof file, "%s.npy", name);
    if (!file_path(path, sizeof path, folder, file, why) || !npy_read(path, &raw, why))
        return false;
    if (!dtype) {
        *out = raw;
        return true;
    }
    bool ok = array_convert(&raw, dtype, out, why);
    array_free(&raw);
    return ok;
}

static bool copy_text(const json_t *root, const char *key, const char *path, char *out, size_t size, failure *why)
{
    const json_t *value = json_object_get(root, key);
    if (!value)
        return true;
    if (!json_is_string(value) || json_string_length(value) >= size ||
        strlen(json_string_value(value)) != json_string_length(value))
        return failure_set(why, "%s: \"%s\" is no string of at most %zu bytes", path, key, size - 1);
    (void)snprintf(out, size, "%s", json_string_value(value));
    return true;
}

/* A name that is valid in a path and in an expression. */
static bool is_name(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length < 64 &&
           strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

static bool read_captures(const json_t *root, const char *folder, const char *path, case_folder *c, failure *why)
{
    const json_t *list = json_object_get(root, "captures");
    if (list && !json_is_array(list))
        return failure_set(why, "%s: \"captures\" is no array of names", path);
    if (json_array_size(list) > ATTUNE_EXPR_MAX_SYMBOLS)
        return failure_set(why, "%s: %zu captures, the limit is %d", path, json_array_size(list),
                           ATTUNE_EXPR_MAX_SYMBOLS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || !is_name(name))
            return failure_set(why, "%s: capture %zu is no name", path, i);
        bindings *n = &c->names;
        array *data = &n->data[n->capture_count];
        if (!read_array(folder, name, (attune_dtype)0, data, why))
            return false;
        char *copy = n->text[n->symbol_count];
        (void)snprintf(copy, sizeof n->text[0], "%s", name);
        n->symbols[n->symbol_count++] = (attune_symbol){copy, ATTUNE_SYMBOL_CAPTURE, data->dtype, data->rank};
        n->captures[n->capture_count] = (attune_host_capture){copy, array_view(data)};
        c->problem.captures[n->capture_count] = n->captures[n->capture_count];
        c->problem.capture_count = ++n->capture_count;
    }
    return true;
}

/* The gradients of the captures that the folder names. */
static bool read_capture_gradients(const json_t *root, const char *folder, const char *path, case_folder *c,
                                   failure *why)
{
    const json_t *list = json_object_get(root, "grad_captures");
    if (list && !json_is_array(list))
        return failure_set(why, "%s: \"grad_captures\" is no array of names", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        uint32_t k = 0;
        while (k < c->names.capture_count && !(name && !strcmp(c->names.captures[k].name, name)))
            k++;
        if (k == c->names.capture_count)
            return failure_set(why, "%s: \"grad_captures\"[%zu] is %.63s, expected one of \"captures\"", path, i,
                               name ? name : "no name");
        char file[80];
        (void)snprintf(file, sizeof file, "d_%s", name);
        const attune_array *capture = &c->names.captures[k].array;
        array *answer = &c->d_captures[k];
        array_free(answer);
        if (!read_array(folder, file, ATTUNE_F64, answer, why))
            return false;
        if (answer->rank != capture->rank ||
            memcmp(answer->size, capture->size, capture->rank * sizeof capture->size[0]) != 0)
            return failure_set(why, "%s: %s.npy does not have the shape of %s.npy", path, file, name);
    }
    return true;
}

/* An answer has the shape of what it is the gradient of. */
static bool read_gradient(const char *folder, const char *name, attune_dtype dtype, const array *like, array *out,
                          failure *why)
{
    if (!read_array(folder, name, dtype, out, why))
        return false;
    if (out->rank != like->rank || memcmp(out->size, like->size, like->rank * sizeof like->size[0]) != 0)
        return failure_set(why, "%s: %s.npy does not have the shape that goes with it", folder, name);
    return true;
}

static bool read_gradients(const char *folder, attune_dtype dtype, case_folder *c, failure *why)
{
    char path[4096];
    c->gradients = file_path(path, sizeof path, folder, "dq.npy", why) && access(path, R_OK) == 0;
    return !c->gradients || (read_gradient(folder, "do", dtype, &c->o, &c->d_o, why) &&
                             read_gradient(folder, "dq", ATTUNE_F64, &c->problem.q, &c->d_q, why) &&
                             read_gradient(folder, "dk", ATTUNE_F64, &c->problem.k, &c->d_k, why) &&
                             read_gradient(folder, "dv", ATTUNE_F64, &c->problem.v, &c->d_v, why));
}

static bool read_json(const json_t *root, const char *folder, const char *path, case_folder *c, failure *why)
{
    static const char *const keys[] = {"mask", "score", "captures", "grad_captures", "scale"};
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return failure_set(why, "%s: not a JSON object", path);
    json_object_foreach((json_t *)root, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            known |= !strcmp(keys[i], key);
        if (!known)
            return failure_set(why, "%s: unknown key \"%.40s\", expected mask, score, captures, grad_captures or scale",
                               path, key);
    }
    value = json_object_get(root, "scale");
    if (value && (!json_is_number(value) || !(json_number_value(value) > 0) || !isfinite(json_number_value(value))))
        return failure_set(why, "%s: \"scale\" is no positive number", path);
    c->problem.scale = value ? json_number_value(value) : 0;
    return copy_text(root, "mask", path, c->mask, sizeof c->mask, why) &&
           copy_text(root, "score", path, c->score, sizeof c->score, why) &&
           read_captures(root, folder, path, c, why) && read_capture_gradients(root, folder, path, c, why);
}

static bool make_expr(attune_instance *instance, attune_expr_kind kind, const char *path, const char *text,
                      const bindings *names, attune_expr **expr, failure *why)
{
    if (*text && attune_expr_create(instance, kind, text, names->symbols, names->symbol_count, expr) != ATTUNE_OK)
        return failure_set(why, "%s: \"%s\": %s", path, kind == ATTUNE_EXPR_MASK ? "mask" : "score",
                           attune_last_error());
    return true;
}

static bool check_answer(const char *folder, const case_folder *c, failure *why)
{
    const attention *a = &c->problem;
    if (a->q.rank != 4 || a->k.rank != 4 || a->v.rank != 4)
        return failure_set(why, "%s: q, k and v have ranks %u, %u and %u, expected 4", folder, a->q.rank, a->k.rank,
                           a->v.rank);
    const int64_t o[4] = {a->q.size[0], a->q.size[1], a->q.size[2], a->v.size[3]};
    if (c->o.rank != 4 || memcmp(c->o.size, o, sizeof o) != 0)
        return failure_set(why, "%s: o does not have the shape that q and v give", folder);
    if (c->lse.rank != 3 || memcmp(c->lse.size, o, 3 * sizeof o[0]) != 0)
        return failure_set(why, "%s: lse does not have the shape of q without head_dim", folder);
    return true;
}

bool case_exists(const char *folder, failure *why)
{
    char path[4096];
    if (!file_path(path, sizeof path, folder, "case.json", why))
        return false;
    return access(path, R_OK) == 0 || failure_set(why, "%s: %s", path, strerror(errno));
}

bool case_load(attune_instance *instance, const char *folder, attune_dtype dtype, case_folder *c, failure *why)
{
    char path[4096];
    json_error_t error;
    memset(c, 0, sizeof *c);
    if (!file_path(path, sizeof path, folder, "case.json", why))
        return false;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return failure_set(why, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    bool ok = read_json(root, folder, path, c, why);
    json_decref(root);
    ok = ok && read_array(folder, "q", dtype, &c->problem.q, why) &&
         read_array(folder, "k", dtype, &c->problem.k, why) && read_array(folder, "v", dtype, &c->problem.v, why) &&
         read_array(folder, "o", ATTUNE_F64, &c->o, why) && read_array(folder, "lse", ATTUNE_F64, &c->lse, why) &&
         check_answer(folder, c, why) && read_gradients(folder, dtype, c, why) &&
         make_expr(instance, ATTUNE_EXPR_MASK, path, c->mask, &c->names, &c->problem.mask, why) &&
         make_expr(instance, ATTUNE_EXPR_SCORE, path, c->score, &c->names, &c->problem.score, why);
    if (!ok) {
        case_free(c);
        return false;
    }
    if (c->problem.scale == 0)
        c->problem.scale = 1 / sqrt((double)c->problem.q.size[3]);
    return true;
}

void case_free(case_folder *c)
{
    attune_expr_destroy(c->problem.mask);
    attune_expr_destroy(c->problem.score);
    array_free(&c->problem.q);
    array_free(&c->problem.k);
    array_free(&c->problem.v);
    array_free(&c->o);
    array_free(&c->lse);
    array_free(&c->d_o);
    array_free(&c->d_q);
    array_free(&c->d_k);
    array_free(&c->d_v);
    for (uint32_t i = 0; i < ATTUNE_EXPR_MAX_SYMBOLS; i++)
        array_free(&c->d_captures[i]);
    bindings_free(&c->names);
    memset(c, 0, sizeof *c);
}

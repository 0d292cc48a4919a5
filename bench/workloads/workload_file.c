/* SPDX-License-Identifier: MIT */
/* Workloads from a JSON file. The text is untrusted: the type and range of every field are checked, unknown keys are
 * errors, and derived sizes are bounded before anything is allocated. */
#include "tests/oracle/segments.h"
#include "bench/workloads/workload.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT     (64 << 20) /* bytes of JSON */
#define WORKLOAD_LIMIT 1024       /* workloads in a file */
#define ROW_LIMIT      0x1p28     /* rows of q, k or v, over batch and heads: a thousand times a large model's */
#define ELEMENT_LIMIT  0x1p36     /* elements of q, k or v */

/* The position in the file, with which every message begins. */
typedef struct location {
    const char *file;
    size_t index;
    const char *name; /* of the workload; empty until it is known */
    failure *why;
} location;

static bool fail_field(const location *at, const char *key, const char *problem)
{
    if (at->name[0])
        return failure_set(at->why, "%s: workload %s: %s: %s", at->file, at->name, key, problem);
    return failure_set(at->why, "%s: workload %zu: %s: %s", at->file, at->index, key, problem);
}

static bool read_string(const location *at, const char *key, const json_t *value, char *out, size_t size)
{
    char problem[96];
    const char *text = json_string_value(value);
    if (!text)
        return fail_field(at, key, "must be a string");
    size_t length = json_string_length(value);
    if (strlen(text) != length)
        return fail_field(at, key, "contains a NUL");
    if (length >= size) {
        (void)snprintf(problem, sizeof problem, "has %zu bytes, the most is %zu", length, size - 1);
        return fail_field(at, key, problem);
    }
    memcpy(out, text, length + 1);
    return true;
}

static bool read_integer(const location *at, const char *key, const json_t *value, int64_t least, int64_t most,
                         int64_t *out)
{
    char problem[128];
    if (!json_is_integer(value))
        return fail_field(at, key, "must be a whole number");
    int64_t n = (int64_t)json_integer_value(value);
    if (n < least || n > most) {
        (void)snprintf(problem, sizeof problem, "is %lld, must be from %lld to %lld", (long long)n, (long long)least,
                       (long long)most);
        return fail_field(at, key, problem);
    }
    *out = n;
    return true;
}

static bool read_number(const location *at, const char *key, const json_t *value, double least, double most,
                        double *out)
{
    char problem[128];
    if (!json_is_number(value))
        return fail_field(at, key, "must be a number");
    double n = json_number_value(value);
    if (!(n >= least && n <= most)) {
        (void)snprintf(problem, sizeof problem, "is %g, must be from %g to %g", n, least, most);
        return fail_field(at, key, problem);
    }
    *out = n;
    return true;
}

/* One of the types that are words of `problem`, what is wrong with another one. */
static bool read_dtype(const location *at, const char *key, const json_t *value, const char *problem, attune_dtype *out)
{
    for (int d = ATTUNE_F32; json_is_string(value) && d <= ATTUNE_BOOL; ++d)
        if (!strcmp(json_string_value(value), attune_dtype_string((attune_dtype)d)) &&
            workload_text_has(problem, json_string_value(value))) {
            *out = (attune_dtype)d;
            return true;
        }
    return fail_field(at, key, problem);
}

static bool is_name(const char *text)
{
    if (!strlen(text) || strlen(text) > 63 || (*text >= '0' && *text <= '9'))
        return false;
    return strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == strlen(text);
}

static bool read_size(const location *at, const char *key, const json_t *value, array *out)
{
    size_t rank = json_array_size(value);
    if (!json_is_array(value) || rank < 1 || rank > ATTUNE_MAX_RANK)
        return fail_field(at, key, "size must be a list of 1 to 4 lengths");
    double count = 1;
    for (size_t i = 0; i < rank; ++i) {
        if (!read_integer(at, key, json_array_get(value, i), 1, INT32_MAX, &out->size[i]))
            return false;
        count *= (double)out->size[i];
    }
    if (count > 0x1p31)
        return fail_field(at, key, "size has more than 2^31 elements");
    out->rank = (uint32_t)rank;
    return true;
}

/* A generator's size: numbers, and names of the workload's own. */
static bool read_extents(const location *at, const char *name, const json_t *value, workload_capture *c)
{
    static const char *const names[] = {
        [WORKLOAD_TOKENS] = "tokens", [WORKLOAD_BATCH] = "batch", [WORKLOAD_HEADS] = "heads"};
    json_t *numbers = json_array();
    bool good = numbers != NULL || fail_field(at, name, "memory is short");
    for (size_t d = 0; good && d < json_array_size(value); ++d) {
        const json_t *size = json_array_get(value, d);
        workload_extent extent = WORKLOAD_NUMBER;
        for (workload_extent e = WORKLOAD_TOKENS; json_is_string(size) && e <= WORKLOAD_HEADS; ++e)
            if (!strcmp(json_string_value(size), names[e]))
                extent = e;
        if (json_is_string(size) && extent == WORKLOAD_NUMBER)
            good = fail_field(at, name, "a size is a number, tokens, batch or heads");
        if (d < ATTUNE_MAX_RANK)
            c->extent[d] = extent;
        good =
            good && (!json_array_append_new(numbers, extent ? json_integer(1) : json_copy((json_t *)(uintptr_t)size)) ||
                     fail_field(at, name, "memory is short"));
    }
    good = good && read_size(at, name, json_is_array(value) ? numbers : value, &c->values);
    json_decref(numbers);
    return good;
}

static double range_least(attune_dtype dtype)
{
    return dtype == ATTUNE_I32 ? -0x1p31 : dtype == ATTUNE_U8 || dtype == ATTUNE_BOOL ? 0 : -0x1p53;
}

static double range_most(attune_dtype dtype)
{
    return dtype == ATTUNE_I32 ? 0x1p31 - 1 : dtype == ATTUNE_U8 ? 255 : dtype == ATTUNE_BOOL ? 1 : 0x1p53;
}

/* "values", with "size" (default: a list) and "dtype" (default: i32 if every value is whole, else f32). */
static bool read_values(const location *at, const char *name, const json_t *object, workload_capture *c)
{
    const json_t *values = json_object_get(object, "values"), *dtype = json_object_get(object, "dtype");
    size_t count = json_array_size(values);
    if (!json_is_array(values) || !count)
        return fail_field(at, name, "values must be a list of numbers");
    array shape = {.rank = 1, .size = {(int64_t)count}};
    if (json_object_get(object, "size") && !read_size(at, name, json_object_get(object, "size"), &shape))
        return false;
    if (array_count(&shape) != (int64_t)count)
        return fail_field(at, name, "values has another count than size says");
    shape.dtype = ATTUNE_I32;
    for (size_t i = 0; i < count && !dtype; ++i)
        if (!json_is_integer(json_array_get(values, i)))
            shape.dtype = ATTUNE_F32;
    if (dtype && !read_dtype(at, name, dtype, "dtype must be one of f32 f16 bf16 i32 i64 u8 bool", &shape.dtype))
        return false;
    if (!array_create(&c->values, shape.dtype, shape.rank, shape.size, at->why))
        return false;
    bool whole = shape.dtype >= ATTUNE_I32;
    for (size_t i = 0; i < count; ++i) {
        const json_t *value = json_array_get(values, i);
        double number;
        if (json_is_boolean(value)) {
            number = json_is_true(value);
        } else if (!read_number(at, name, value, range_least(shape.dtype), range_most(shape.dtype), &number)) {
            return false;
        }
        if (whole && number != floor(number))
            return fail_field(at, name, "values must be whole numbers for this dtype");
        array_set(&c->values, (int64_t)i, number);
    }
    return true;
}

static bool has_only(const location *at, const char *name, const json_t *object, const char *const *keys)
{
    char problem[160];
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0)
            ++known;
        if (!*known) {
            (void)snprintf(problem, sizeof problem, "unknown key %.64s", key);
            return fail_field(at, name, problem);
        }
    }
    return true;
}

static bool read_capture(const location *at, const char *name, const json_t *object, bool files, workload_capture *c)
{
    if (!is_name(name))
        return fail_field(at, "captures", "a name has letters, digits and _, at most 63, and begins with no digit");
    if (!json_is_object(object))
        return fail_field(at, name,
                          "must be an object: {\"generator\": ...}, {\"values\": [...]} or {\"npy\": \"...\"}");
    memcpy(c->name, name, strlen(name) + 1);
    const json_t *generator = json_object_get(object, "generator"), *npy = json_object_get(object, "npy");
    if ((generator != NULL) + (npy != NULL) + (json_object_get(object, "values") != NULL) != 1)
        return fail_field(at, name, "must have one of generator, values and npy");
    if (npy) {
        char path[512];
        if (!has_only(at, name, object, (const char *const[]){"npy", NULL}) ||
            !read_string(at, name, npy, path, sizeof path))
            return false;
        if (!files)
            return fail_field(at, name, "names a file, which is not allowed here");
        return npy_read(path, &c->values, at->why) &&
               (c->values.rank || fail_field(at, name, "the array is a scalar: pass it as a parameter"));
    }
    if (!generator)
        return has_only(at, name, object, (const char *const[]){"values", "size", "dtype", NULL}) &&
               read_values(at, name, object, c);
    if (!has_only(at, name, object, (const char *const[]){"generator", "length", "spread", "count", "size", NULL}) ||
        !read_string(at, name, generator, c->generator, sizeof c->generator))
        return false;
    bool known = false, sized = false;
    for (uint32_t i = 0; workload_generator_get(i); ++i)
        if (!strcmp(workload_generator_get(i)->name, c->generator)) {
            known = true;
            sized = workload_generator_get(i)->sized;
        }
    if (!known) {
        char problem[160];
        (void)snprintf(problem, sizeof problem, "no such generator, \"%s\": attune bench --list names them",
                       c->generator);
        return fail_field(at, name, problem);
    }
    c->length = 1024;
    c->spread = !strcmp(c->generator, "keep") ? 0 : 1;
    const json_t *length = json_object_get(object, "length"), *spread = json_object_get(object, "spread");
    const json_t *count = json_object_get(object, "count"), *size = json_object_get(object, "size");
    if (sized != (size != NULL))
        return fail_field(at, name, sized ? "needs size" : "takes no size");
    return (!length || read_number(at, name, length, 1, 1e9, &c->length)) &&
           (!spread || read_number(at, name, spread, 0, 100, &c->spread)) &&
           (!count || read_integer(at, name, count, 1, 1 << 20, &c->count)) &&
           (!size || read_extents(at, name, size, c));
}

static bool read_parameter(const location *at, const char *name, const json_t *value, workload_parameter *p)
{
    if (!is_name(name))
        return fail_field(at, "parameters", "a name has letters, digits and _, at most 63, and begins with no digit");
    memcpy(p->name, name, strlen(name) + 1);
    const json_t *number = value, *dtype = NULL, *shrink = NULL;
    if (json_is_object(value)) {
        if (!has_only(at, name, value, (const char *const[]){"value", "dtype", "shrink", NULL}))
            return false;
        number = json_object_get(value, "value");
        dtype = json_object_get(value, "dtype");
        shrink = json_object_get(value, "shrink");
    }
    if (!number || !read_number(at, name, number, -3e38, 3e38, &p->value))
        return fail_field(at, name, "must be a number, or an object with value, dtype and shrink");
    p->dtype = json_is_integer(number) ? ATTUNE_I32 : ATTUNE_F32;
    if (dtype && !read_dtype(at, name, dtype, "dtype must be one of i32 f32", &p->dtype))
        return false;
    if (p->dtype == ATTUNE_I32 && (p->value != floor(p->value) || fabs(p->value) >= 0x1p31))
        return fail_field(at, name, "must be a whole number that fits i32");
    if (shrink) {
        const char *how = json_is_string(shrink) ? json_string_value(shrink) : "";
        if (strcmp(how, "fixed") && strcmp(how, "length") && strcmp(how, "side"))
            return fail_field(at, name, "shrink must be fixed, length or side");
        p->shrink = !strcmp(how, "length") ? WORKLOAD_LENGTH : !strcmp(how, "side") ? WORKLOAD_SIDE : WORKLOAD_FIXED;
    }
    return true;
}

static bool read_captures(const location *at, const json_t *object, bool files, workload *w)
{
    if (!json_is_object(object) || json_object_size(object) > WORKLOAD_MAX_CAPTURES)
        return fail_field(at, "captures", "must be an object of at most 8 captures");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        /* Counted before it is read, so that a failed capture is freed with the list. */
        if (!read_capture(at, name, value, files, &w->captures[w->capture_count++]))
            return false;
    }
    return true;
}

static bool read_parameters(const location *at, const json_t *object, workload *w)
{
    if (!json_is_object(object) || json_object_size(object) > WORKLOAD_MAX_PARAMETERS)
        return fail_field(at, "parameters", "must be an object of at most 7 parameters");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (!read_parameter(at, name, value, &w->parameters[w->parameter_count++]))
            return false;
    }
    return true;
}

static bool read_field(const location *at, const char *key, const json_t *value, bool files, workload *w)
{
    static const struct {
        const char *key;
        size_t offset;
        int64_t most;
    } integers[] = {
        {"batch", offsetof(workload, batch), 1 << 20},   {"kv_batch", offsetof(workload, kv_batch), 1 << 20},
        {"heads", offsetof(workload, heads), 1 << 16},   {"kv_heads", offsetof(workload, kv_heads), 1 << 16},
        {"q_len", offsetof(workload, q_len), INT32_MAX}, {"kv_len", offsetof(workload, kv_len), INT32_MAX},
        {"side", offsetof(workload, side), 1 << 15}};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; ++i)
        if (!strcmp(key, integers[i].key)) {
            int64_t n = 0;
            if (!read_integer(at, key, value, 1, integers[i].most, &n))
                return false;
            memcpy((char *)w + integers[i].offset, &n, sizeof n);
            return true;
        }
    if (!strcmp(key, "name"))
        return true; /* read first */
    if (!strcmp(key, "description"))
        return read_string(at, key, value, w->description, sizeof w->description);
    if (!strcmp(key, "mask"))
        return read_string(at, key, value, w->mask, sizeof w->mask);
    if (!strcmp(key, "score"))
        return read_string(at, key, value, w->score, sizeof w->score);
    if (!strcmp(key, "dtype"))
        return read_dtype(at, key, value, "must be one of f32 f16 bf16 f64", &w->dtype);
    if (!strcmp(key, "kv_dtype") || !strcmp(key, "o_dtype"))
        return read_dtype(at, key, value, "must be one of f32 f16 bf16", *key == 'k' ? &w->kv_dtype : &w->o_dtype);
    if (!strcmp(key, "head_dim") || !strcmp(key, "head_dim_v")) {
        int64_t n = 0;
        if (!read_integer(at, key, value, 1, 4096, &n))
            return false;
        *(key[8] ? &w->head_dim_v : &w->head_dim) = (uint32_t)n;
        return true;
    }
    if (!strcmp(key, "segments")) {
        int64_t n = 0;
        if (!read_integer(at, key, value, 2, SEGMENTS_MAX, &n))
            return false;
        w->segments = (uint32_t)n;
        return true;
    }
    if (!strcmp(key, "scale"))
        return read_number(at, key, value, 1e-30, 1e30, &w->scale);
    if (!strcmp(key, "density"))
        return read_number(at, key, value, 1e-9, 1, &w->density);
    if (!strcmp(key, "captures"))
        return read_captures(at, value, files, w);
    if (!strcmp(key, "parameters"))
        return read_parameters(at, value, w);
    return fail_field(at, key, "unknown key");
}

static double elements(int64_t batch, int64_t heads, int64_t length, uint32_t dim)
{
    return (double)batch * (double)heads * (double)length * (double)dim;
}

bool workload_text_has(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = text; *at;) {
        const size_t word = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        if (word == length && !strncmp(at, name, length))
            return true;
        at += word ? word : 1;
    }
    return false;
}

/* A name that no expression reads is misspelt, or the expression is. */
static bool is_read(const location *at, const workload *w, const char *what, const char *name)
{
    char problem[160];
    if (workload_text_has(w->mask, name) || workload_text_has(w->score, name))
        return true;
    (void)snprintf(problem, sizeof problem, "neither mask nor score uses %s: leave it out, or use it", name);
    return fail_field(at, what, problem);
}

/* Sets defaults, and checks the relations between fields. */
static bool finish(const location *at, workload *w)
{
    if (!w->head_dim)
        return fail_field(at, "head_dim", "is missing");
    if (w->side) {
        if ((w->q_len && w->q_len != w->side * w->side) || (w->kv_len && w->kv_len != w->side * w->side))
            return fail_field(at, "side", "q_len and kv_len must be its square, or be left out");
        w->q_len = w->kv_len = w->side * w->side;
    }
    if (!w->q_len)
        return fail_field(at, "q_len", "is missing");
    if (!w->kv_len)
        w->kv_len = w->q_len;
    if (!w->batch)
        w->batch = 1;
    if (!w->heads)
        w->heads = w->kv_heads ? w->kv_heads : 1;
    if (!w->kv_heads)
        w->kv_heads = w->heads;
    if (w->heads % w->kv_heads) {
        char problem[96];
        (void)snprintf(problem, sizeof problem, "is %lld, must divide heads, which is %lld", (long long)w->kv_heads,
                       (long long)w->heads);
        return fail_field(at, "kv_heads", problem);
    }
    if (w->kv_batch > 1 && w->kv_batch != w->batch)
        return fail_field(at, "kv_batch", "must be batch or 1");
    if (w->segments && w->kv_len <= (w->segments - 1) * w->q_len)
        return fail_field(at, "segments", "all but the first are q_len long: kv_len is too small for so many");
    if (elements(w->batch, w->heads, w->q_len, 1) > ROW_LIMIT)
        return fail_field(at, "q_len",
                          "q would have more than 2^28 rows over batch and heads, the limit: make them fewer");
    if (elements(w->batch, w->kv_heads, w->kv_len, 1) > ROW_LIMIT)
        return fail_field(at, "kv_len",
                          "k would have more than 2^28 rows over batch and heads, the limit: make them fewer");
    for (uint32_t i = 0; i < w->capture_count; ++i)
        if (!is_read(at, w, "captures", w->captures[i].name))
            return false;
    for (uint32_t i = 0; i < w->parameter_count; ++i)
        if (!is_read(at, w, "parameters", w->parameters[i].name))
            return false;
    uint32_t dim = w->head_dim > w->head_dim_v ? w->head_dim : w->head_dim_v;
    if (elements(w->batch, w->heads, w->q_len, dim) > ELEMENT_LIMIT ||
        elements(w->batch, w->kv_heads, w->kv_len, dim) > ELEMENT_LIMIT)
        return fail_field(at, "q_len", "q, k or v would have more than 2^36 elements");
    return true;
}

static bool read_workload(const char *file, size_t index, const json_t *object, bool files, workload *w, failure *why)
{
    location at = {.file = file, .index = index, .name = "", .why = why};
    if (!json_is_object(object))
        return fail_field(&at, "value", "must be an object");
    const json_t *name = json_object_get(object, "name");
    if (!name)
        return fail_field(&at, "name", "is missing");
    if (!read_string(&at, "name", name, w->name, sizeof w->name))
        return false;
    if (strspn(w->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") != strlen(w->name) ||
        !w->name[0])
        return fail_field(&at, "name", "must be made of letters, digits, _ - and .");
    at.name = w->name;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!read_field(&at, key, value, files, w))
            return false;
    }
    return finish(&at, w);
}

bool workload_parse(const char *text, size_t length, const char *name, bool files, workload **list, uint32_t *count,
                    failure *why)
{
    json_error_t error;
    *list = NULL;
    *count = 0;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return failure_set(why, "%s:%d:%d: %s", name, error.line, error.column, error.text);
    size_t n = json_is_array(root) ? json_array_size(root) : 1;
    bool good = n >= 1 && n <= WORKLOAD_LIMIT && (json_is_array(root) || json_is_object(root));
    if (!good)
        (void)failure_set(why, "%s: must be an object, or a list of 1 to %d objects", name, WORKLOAD_LIMIT);
    workload *made = good ? calloc(n, sizeof *made) : NULL;
    if (good && !made)
        good = failure_set(why, "%s: out of memory", name);
    for (size_t i = 0; good && i < n; ++i)
        good = read_workload(name, i, json_is_array(root) ? json_array_get(root, i) : root, files, &made[i], why);
    json_decref(root);
    if (!good) {
        workload_list_free(made, made ? (uint32_t)n : 0);
        return false;
    }
    *list = made;
    *count = (uint32_t)n;
    return true;
}

bool workload_load(const char *path, workload **list, uint32_t *count, failure *why)
{
    *list = NULL;
    *count = 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return failure_set(why, "%s: %s", path, strerror(errno));
    char *text = NULL;
    size_t used = 0, capacity = 0;
    bool good = true;
    while (good && !feof(file)) {
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 65536;
            char *larger = capacity <= FILE_LIMIT ? realloc(text, capacity) : NULL;
            if (!larger) {
                good = failure_set(why, "%s: has more than %d bytes, or memory is short", path, FILE_LIMIT);
                break;
            }
            text = larger;
        }
        used += fread(text + used, 1, capacity - used, file);
        if (ferror(file))
            good = failure_set(why, "%s: %s", path, strerror(errno));
    }
    (void)fclose(file);
    good = good && workload_parse(text ? text : "", used, path, true, list, count, why);
    free(text);
    return good;
}

void workload_list_free(workload *list, uint32_t count)
{
    for (uint32_t i = 0; list && i < count; ++i)
        for (uint32_t c = 0; c < list[i].capture_count; ++c)
            if (list[i].captures[c].values.data)
                array_free(&list[i].captures[c].values);
    free(list);
}

/* SPDX-License-Identifier: MIT */
/* Kernel options from JSON text: {"BLOCK_M": 64, "fwd_num_stages": 2, "KERNEL": "cuda_sm80"}. */
#include "plan/family.h"

#include <string.h>

#include "base/desc.h"
#include "base/error.h"

#ifndef ATTUNE_HAVE_JANSSON
#define ATTUNE_HAVE_JANSSON 0
#endif

#if ATTUNE_HAVE_JANSSON

#include <jansson.h>

/* Options of FlexAttention that attune does not have, with hints. */
static const struct {
    const char *name, *cure;
} foreign[] = {
    {"BACKEND", "name a kernel with KERNEL, or the decode kernel with FORCE_USE_FLEX_ATTENTION"},
    {"kpack", "it is for AMD's Triton compiler; leave it out"},
    {"matrix_instr_nonkdim", "it is for AMD's Triton compiler; leave it out"},
    {"waves_per_eu", "it is for AMD's Triton compiler; leave it out"},
    {"OUTPUT_LOGSUMEXP", "set lse in the problem"},
    {"OUTPUT_MAX", "set row_max in the problem"},
    {"SM_SCALE", "set scale in the problem"},
    {"GQA_SHARED_HEADS", "it follows from heads and kv_heads in the problem"},
    {"HAS_FULL_BLOCKS", "it follows from the mask"},
    {"SPARSE_Q_BLOCK_SIZE", "it is the mask's q_block"},
    {"SPARSE_KV_BLOCK_SIZE", "it is the mask's kv_block"},
    {"IS_DIVISIBLE", "any length is served; leave it out"},
    {"SAFE_HEAD_DIM", "any multiple of 8 is served; leave it out"},
    {"FLOAT32_PRECISION", "float32 is always computed in full; leave it out"},
    {"num_consumer_groups", "it follows from BLOCK_M; leave it out"},
    {"num_buffers_warp_spec", "write num_stages"},
    {"SKIP_MASK_SCORE", "full blocks always skip the mask; leave it out"},
    {"force_flash", "name a kernel with KERNEL"},
};

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

static attune_status wrong_type(const char *key, const json_t *value, const char *expected)
{
    if (json_is_integer(value))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is %lld, expected %s", key,
                            (long long)json_integer_value(value), expected);
    if (json_is_string(value))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is the string \"%.40s\", expected %s", key,
                            json_string_value(value), expected);
    if (json_is_real(value))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is %g, expected %s", key, json_real_value(value), expected);
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is %s, expected %s", key, type_name(value), expected);
}

static attune_status unknown_key(const char *key, const char *bare)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        if (!strcmp(bare, foreign[i].name))
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "%s is an option of FlexAttention that attune does not take: %s", key, foreign[i].cure);
    uint32_t nearest = 0;
    for (uint32_t i = 1; i < ATTUNE__OPTION_COUNT; i++)
        if (attune__edit_distance(bare, attune__option_name(i)) <
            attune__edit_distance(bare, attune__option_name(nearest)))
            nearest = i;
    if (!attune__resembles(bare, attune__option_name(nearest)))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "unknown option \"%.64s\": docs/planning.md lists them", key);
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "unknown option \"%.64s\": did you mean %s?", key,
                        attune__option_name(nearest));
}

static attune_status read_value(const char *prefix, const char *key, attune__option option, const json_t *value,
                                attune_pass_options *pass)
{
    if (option == ATTUNE__KERNEL) {
        if (!json_is_string(value))
            return wrong_type(key, value, "the name of a kernel, a string");
        ATTUNE__TRY(attune__check_kernel_name(prefix, json_string_value(value)));
        memcpy(pass->kernel, json_string_value(value), json_string_length(value) + 1);
        return ATTUNE_OK;
    }
    if (attune__option_range_of(option).choice) {
        if (!json_is_boolean(value))
            return wrong_type(key, value, "true or false");
        attune__option_set(pass, option, json_is_true(value) ? ATTUNE_ON : ATTUNE_OFF);
        return ATTUNE_OK;
    }
    if (!json_is_integer(value))
        return wrong_type(key, value, "an integer");
    ATTUNE__TRY(attune__check_option(prefix, option, json_integer_value(value)));
    attune__option_set(pass, option, (uint32_t)json_integer_value(value));
    return ATTUNE_OK;
}

static attune_status read_key(const char *key, const json_t *value, attune_kernel_options *options)
{
    const char *prefix = !strncmp(key, "fwd_", 4) ? "fwd_" : !strncmp(key, "bwd_", 4) ? "bwd_" : "";
    const char *bare = key + strlen(prefix);
    attune_pass_options *pass = !*prefix ? &options->any : *prefix == 'f' ? &options->fwd : &options->bwd;
    for (uint32_t i = 0; i < ATTUNE__OPTION_COUNT; i++)
        if (!strcmp(bare, attune__option_name(i))) {
            ATTUNE__TRY(attune__check_prefix(prefix, i));
            return read_value(prefix, key, i, value, pass);
        }
    return unknown_key(key, bare);
}

static attune_status read_object(const json_t *root, attune_kernel_options *options)
{
    if (!json_is_object(root))
        return attune__fail(
            ATTUNE_PARSE_ERROR,
            "kernel options are %s, expected one JSON object such as {\"BLOCK_M\": 64} (line 1, column 1)",
            type_name(root));
    /* jansson has no iterator for const objects. */
    for (void *i = json_object_iter((json_t *)(uintptr_t)root); i;
         i = json_object_iter_next((json_t *)(uintptr_t)root, i))
        ATTUNE__TRY(read_key(json_object_iter_key(i), json_object_iter_value(i), options));
    return ATTUNE_OK;
}

/* jansson's own limit of 2048 levels needs too much stack; options nest one level. */
#define MAX_DEPTH 16

static attune_status check_depth(const char *json)
{
    int depth = 0;
    bool in_string = false;
    for (const char *c = json; *c; c++) {
        if (in_string && *c == '\\' && c[1])
            c++;
        else if (*c == '"')
            in_string = !in_string;
        else if (!in_string && (*c == '[' || *c == '{') && ++depth > MAX_DEPTH)
            return attune__fail(ATTUNE_PARSE_ERROR,
                                "kernel options nest more than %d levels deep, the limit: they are one object of "
                                "numbers, strings and booleans",
                                MAX_DEPTH);
        else if (!in_string && (*c == ']' || *c == '}'))
            depth--;
    }
    return ATTUNE_OK;
}

attune_status attune_kernel_options_parse(const char *json, attune_kernel_options *options)
{
    if (!json)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "json is NULL");
    ATTUNE__TRY(check_depth(json));
    json_error_t error;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root && json_error_code(&error) == json_error_duplicate_key)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "kernel options: %s (line %d, column %d)", error.text, error.line,
                            error.column);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return attune__fail(ATTUNE_OUT_OF_HOST_MEMORY, "kernel options: no memory to read %zu bytes of JSON",
                            strlen(json));
    if (!root)
        return attune__fail(ATTUNE_PARSE_ERROR, "kernel options are not JSON: %s (line %d, column %d)", error.text,
                            error.line, error.column);
    attune_kernel_options read = {.struct_size = sizeof read};
    attune_status status = read_object(root, &read);
    json_decref(root);
    ATTUNE__TRY(status);
    return attune__desc_write(options, &read, sizeof read, sizeof read, "options");
}

#else

attune_status attune_kernel_options_parse(const char *json, attune_kernel_options *options)
{
    (void)json;
    (void)options;
    return attune__fail(
        ATTUNE_UNSUPPORTED,
        "this library was built without JSON: build it with -Djson=enabled, or fill attune_kernel_options "
        "in");
}

#endif

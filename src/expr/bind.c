/* SPDX-License-Identifier: MIT */
/* Resolves the arrays and scalars of an expression's symbols. All checks are here: evaluation trusts its input. */
#include "expr/expr.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

static attune_status missing(const attune__symbol *symbol, const char *given)
{
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "the expression uses the %s '%s', which is not among those given: %s",
                        symbol->kind == ATTUNE_SYMBOL_CAPTURE ? "capture" : "parameter", symbol->name,
                        *given ? given : "none");
}

/* Fails for an i64 outside the range of i32. */
static attune_status check_i64(const attune__symbol *symbol, const attune_array *array)
{
    int64_t index[ATTUNE_MAX_RANK] = {0};
    uint32_t last = array->rank - 1;
    for (;;) {
        int64_t offset = 0;
        for (uint32_t d = 0; d < array->rank; d++)
            offset += index[d] * array->stride[d];
        const int64_t *data = (const int64_t *)array->data + offset;
        for (int64_t i = 0; i < array->size[last]; i++) {
            int64_t value = data[i * array->stride[last]];
            if (value < INT32_MIN || value > INT32_MAX)
                return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                    "the capture '%s' holds %lld; captures of i64 are read as i32, so values lie in "
                                    "-2147483648 ... 2147483647",
                                    symbol->name, (long long)value);
        }
        uint32_t d = last;
        while (d > 0 && ++index[d - 1] == array->size[d - 1])
            index[--d] = 0;
        if (d == 0)
            return ATTUNE_OK;
    }
}

static attune_status resolve_capture(const attune__symbol *symbol, const attune_array *given, attune_array *array)
{
    if (given->dtype != symbol->dtype)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the capture '%s' is %s, but was declared as %s", symbol->name,
                            attune_dtype_string(given->dtype), attune_dtype_string(symbol->dtype));
    if (given->rank != symbol->rank)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the capture '%s' has rank %u, but the expression reads it with %u %s", symbol->name,
                            given->rank, symbol->rank, symbol->rank == 1 ? "index" : "indices");
    *array = *given;
    bool contiguous = true, empty = false;
    for (uint32_t d = 0; d < given->rank; d++) {
        if (given->size[d] < 0)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "the capture '%s' has size %lld in dimension %u", symbol->name,
                                (long long)given->size[d], d);
        contiguous &= given->stride[d] == 0;
        empty |= given->size[d] == 0;
    }
    int64_t count = 1, low = 0, high = 0;
    for (uint32_t d = given->rank; d-- > 0;) {
        const int64_t size = empty ? 1 : given->size[d];
        if (contiguous)
            array->stride[d] = count;
        /* The stride of a dimension of size 1 is not used. */
        if (size == 1)
            array->stride[d] = 1;
        const bool fits = attune__multiply(&count, size) && attune__reach(size, array->stride[d], &low, &high);
        if (!fits || count > INT64_MAX / 16 || high > INT64_MAX / 16 || low < INT64_MIN / 16)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "the capture '%s' exceeds the address space", symbol->name);
    }
    if (empty)
        return ATTUNE_OK;
    if (!given->data)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the capture '%s' has no data", symbol->name);
    if ((uintptr_t)given->data % attune_dtype_size(given->dtype))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "the data of the capture '%s' is not aligned to its %zu-byte %s",
                            symbol->name, attune_dtype_size(given->dtype), attune_dtype_string(given->dtype));
    return given->dtype == ATTUNE_I64 ? check_i64(symbol, array) : ATTUNE_OK;
}

static attune_status resolve_parameter(const attune__symbol *symbol, double given, attune__value *value)
{
    if (symbol->dtype == ATTUNE_I32) {
        /* the comparison is false for NaN */
        if (!(given >= INT32_MIN && given <= INT32_MAX && given == floor(given)))
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "the parameter '%s' is %g, expected a whole number in -2147483648 ... 2147483647",
                                symbol->name, given);
        value->i = (int32_t)given;
        return ATTUNE_OK;
    }
    value->f = (float)given;
    if (isinf(value->f) && !isinf(given))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "the parameter '%s' is %g, which does not fit f32, whose largest value is 3.40282347e+38",
                            symbol->name, given);
    return ATTUNE_OK;
}

attune_status attune__bindings_resolve(const attune_expr *expr, const attune_host_capture *captures,
                                       uint32_t capture_count, const attune_parameter *parameters,
                                       uint32_t parameter_count, attune_array *arrays, attune__value *values)
{
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const attune__symbol *symbol = &expr->symbols[i];
        char names[256];
        attune__text given = attune__text_begin(names, sizeof names);
        bool found = false;
        if (values)
            values[i].i = 0;
        if (arrays)
            memset(&arrays[i], 0, sizeof arrays[i]);
        if (symbol->kind == ATTUNE_SYMBOL_CAPTURE) {
            for (uint32_t j = 0; arrays && j < capture_count && !found; j++) {
                if (!captures[j].name)
                    return attune__fail(ATTUNE_INVALID_ARGUMENT, "captures[%u].name is NULL", j);
                attune__text_add(&given, "%s'%.64s'", j ? ", " : "", captures[j].name);
                found = !strcmp(captures[j].name, symbol->name);
                if (found)
                    ATTUNE__TRY(resolve_capture(symbol, &captures[j].array, &arrays[i]));
            }
            found |= !arrays;
        } else {
            for (uint32_t j = 0; values && j < parameter_count && !found; j++) {
                if (!parameters[j].name)
                    return attune__fail(ATTUNE_INVALID_ARGUMENT, "parameters[%u].name is NULL", j);
                attune__text_add(&given, "%s'%.64s'", j ? ", " : "", parameters[j].name);
                found = !strcmp(parameters[j].name, symbol->name);
                if (found)
                    ATTUNE__TRY(resolve_parameter(symbol, parameters[j].value, &values[i]));
            }
            found |= !values;
        }
        if (!found)
            return missing(symbol, names);
    }
    return ATTUNE_OK;
}

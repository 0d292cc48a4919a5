/* SPDX-License-Identifier: MIT */
/* Expressions. */
#include "api/api.h"

#include <string.h>

#include "expr/ops.h"

attune_status attune_expr_create(attune_instance *instance, attune_expr_kind kind, const char *text,
                                 const attune_symbol *symbols, uint32_t symbol_count, attune_expr **expr)
{
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    *expr = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(text, "text"));
    if (kind != ATTUNE_EXPR_MASK && kind != ATTUNE_EXPR_SCORE)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "kind is %d, expected ATTUNE_EXPR_MASK or ATTUNE_EXPR_SCORE",
                            (int)kind);
    if (symbol_count)
        ATTUNE__TRY(attune__check_not_null(symbols, "symbols"));
    return attune__expr_parse(&instance->host.allocator, kind, text, symbols, symbol_count, expr);
}

void attune_expr_destroy(attune_expr *expr)
{
    attune__expr_release(expr);
}

uint32_t attune_expr_symbol_count(const attune_expr *expr)
{
    return expr ? expr->symbol_count : 0;
}

attune_status attune_expr_symbol_get(const attune_expr *expr, uint32_t index, attune_symbol *symbol)
{
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    ATTUNE__TRY(attune__check_not_null(symbol, "symbol"));
    if (index >= expr->symbol_count)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "index is %u, but the expression uses %u symbols", index,
                            expr->symbol_count);
    const attune__symbol *s = &expr->symbols[index];
    *symbol = (attune_symbol){s->name, s->kind, s->dtype, s->rank};
    return ATTUNE_OK;
}

void attune_expr_hash(const attune_expr *expr, uint64_t hash[2])
{
    for (int i = 0; i < 2; i++)
        hash[i] = expr ? expr->hash.lane[i] : 0;
}

attune_status attune_expr_print(const attune_expr *expr, attune_expr_format format, char *buffer, size_t size,
                                size_t *needed)
{
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    if (size)
        ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    if (format < ATTUNE_EXPR_TEXT || format > ATTUNE_EXPR_GRADIENT)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "format is %d, expected ATTUNE_EXPR_TEXT, _IR, _C or _GRADIENT",
                            (int)format);
    if (format == ATTUNE_EXPR_GRADIENT)
        return attune__gradient_print(expr, buffer, size, needed);
    if (format != ATTUNE_EXPR_C)
        return attune__expr_print(expr, format, buffer, size, needed);
    attune_expr *dense;
    ATTUNE__TRY(attune__expr_dense(&expr->allocator, expr, &dense));
    const attune_status status = attune__expr_print(dense, format, buffer, size, needed);
    attune__expr_release(dense);
    return status;
}

attune_status attune__bind_host(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                const attune_parameter *parameters, uint32_t parameter_count, attune_array *arrays,
                                attune__value *values)
{
    if (capture_count)
        ATTUNE__TRY(attune__check_not_null(captures, "captures"));
    if (parameter_count)
        ATTUNE__TRY(attune__check_not_null(parameters, "parameters"));
    return attune__bindings_resolve(expr, captures, capture_count, parameters, parameter_count, arrays, values);
}

attune_status attune__bind_shifted(const attune_expr *expr, const attune_host_capture *captures, uint32_t capture_count,
                                   const attune_parameter *parameters, uint32_t parameter_count, int64_t kv_start,
                                   int64_t kv_total, attune_array *arrays, attune__value *values)
{
    attune_parameter all[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t count = 0;
    if (parameter_count)
        ATTUNE__TRY(attune__check_not_null(parameters, "parameters"));
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const char *name = expr->symbols[i].name;
        if (expr->symbols[i].kind != ATTUNE_SYMBOL_PARAMETER)
            continue;
        if (!strcmp(name, ATTUNE__KV_START))
            all[count++] = (attune_parameter){name, (double)kv_start};
        else if (!strcmp(name, ATTUNE__KV_TOTAL))
            all[count++] = (attune_parameter){name, (double)kv_total};
        else
            for (uint32_t j = 0; j < parameter_count; j++)
                if (parameters[j].name && !strcmp(parameters[j].name, name)) {
                    all[count++] = parameters[j];
                    break;
                }
    }
    return attune__bind_host(expr, captures, capture_count, all, count, arrays, values);
}

attune_status attune_expr_evaluate(const attune_expr *expr, const attune_point *point,
                                   const attune_host_capture *captures, uint32_t capture_count,
                                   const attune_parameter *parameters, uint32_t parameter_count, float *value)
{
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    ATTUNE__TRY(attune__check_not_null(point, "point"));
    ATTUNE__TRY(attune__check_not_null(value, "value"));
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    ATTUNE__TRY(attune__bind_host(expr, captures, capture_count, parameters, parameter_count, arrays, values));
    attune__value result = attune__expr_point(expr, &(attune__bindings){arrays, values}, point);
    *value = expr->kind == ATTUNE_EXPR_MASK ? (float)result.i : result.f;
    return ATTUNE_OK;
}

static void evaluate_row(const attune_expr *expr, bool f64, const attune__bindings *bindings, const attune__row *row,
                         int32_t kv, size_t count, void *scratch, void *row_values, double *values)
{
    if (expr->kind == ATTUNE_EXPR_MASK) {
        uint8_t *allowed = row_values;
        attune__expr_mask_row(expr, bindings, row, kv, count, scratch, allowed);
        for (size_t i = 0; i < count; i++)
            values[i] = allowed[i];
    } else if (f64) {
        attune__expr_score_row_f64(expr, bindings, row, kv, count, scratch, values);
    } else {
        float *scores = row_values;
        for (size_t i = 0; i < count; i++)
            scores[i] = (float)values[i];
        attune__expr_score_row_f32(NULL, expr, bindings, row, kv, count, scratch, scores);
        for (size_t i = 0; i < count; i++)
            values[i] = (double)scores[i];
    }
}

attune_status attune_expr_evaluate_row(const attune_expr *expr, attune_dtype precision, const attune_point *first,
                                       size_t count, const attune_host_capture *captures, uint32_t capture_count,
                                       const attune_parameter *parameters, uint32_t parameter_count, double *values)
{
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    ATTUNE__TRY(attune__check_not_null(first, "first"));
    ATTUNE__TRY(attune__check_not_null(values, "values"));
    if (precision != ATTUNE_F32 && precision != ATTUNE_F64)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "precision is %s (%d), expected f32 or f64",
                            attune_dtype_string(precision), (int)precision);
    if (first->kv < 0 || count > (size_t)INT32_MAX - (size_t)first->kv)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "keys %d to %d + %zu exceed the limit of %d", first->kv, first->kv,
                            count, INT32_MAX);
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value parameter_values[ATTUNE_EXPR_MAX_SYMBOLS];
    ATTUNE__TRY(
        attune__bind_host(expr, captures, capture_count, parameters, parameter_count, arrays, parameter_values));
    const attune__bindings bindings = {arrays, parameter_values};
    const attune__row row = {.b = first->b,
                             .h = first->h,
                             .q = first->q,
                             .h_kv = first->h_kv,
                             .q_len = first->q_len,
                             .kv_len = first->kv_len,
                             .row = attune__iadd(attune__imul(first->b, first->q_len), first->q)};
    enum { RUN = 1024 };
    void *scratch = attune__alloc_raw(&expr->allocator, attune__expr_scratch_size(expr, RUN), 1);
    if (!scratch)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    float row_values[RUN];
    for (size_t done = 0; done < count; done += RUN) {
        size_t run = count - done < RUN ? count - done : RUN;
        evaluate_row(expr, precision == ATTUNE_F64, &bindings, &row, first->kv + (int32_t)done, run, scratch,
                     row_values, values + done);
    }
    attune__free(&expr->allocator, scratch);
    return ATTUNE_OK;
}

bool attune__warn_short_capture(const attune__host *host, const char *whose, const attune__direct_reads *reads,
                                uint32_t symbol, const char *name, const int64_t *size, const attune__extents *extents)
{
    attune__short_read found;
    if (!attune__reads_past(reads, symbol, size, extents, &found))
        return false;
    attune__log(host, ATTUNE_LOG_WARNING,
                "the capture \"%s\" of %s has %lld elements in dimension %u, which %s indexes from 0 to %lld: elements "
                "out of range read as 0",
                name, whose, (long long)size[found.dimension], found.dimension, attune__var_name(found.var),
                (long long)extents->of[found.var] - 1);
    return true;
}

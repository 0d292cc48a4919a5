/* SPDX-License-Identifier: MIT */
/* Any bytes as an expression. What parses prints, parses back to the same hash, evaluates, and stays in its bounds. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "expr/expr.h"
#include "expr/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 0},    {"keep", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},
    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 0},   {"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
};
#define SYMBOLS (sizeof symbols / sizeof symbols[0])

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void bind(const attune_expr *expr, attune_array *arrays, attune__value *values)
{
    static int32_t numbers[256];
    for (int i = 0; i < 256; i++)
        numbers[i] = i * 7919 - 100000;
    attune_host_capture captures[3];
    attune_parameter parameters[] = {{"width", 5}, {"heat", 0.5}};
    for (uint32_t i = 0; i < 3; i++) {
        attune_array *a = &captures[i].array;
        captures[i].name = symbols[i].name;
        *a = (attune_array){.data = numbers, .dtype = symbols[i].dtype, .rank = symbols[i].rank};
        for (uint32_t s = 0; s < expr->symbol_count; s++)
            if (!strcmp(expr->symbols[s].name, symbols[i].name))
                a->rank = expr->symbols[s].rank;
        for (uint32_t d = 0; d < a->rank; d++)
            a->size[d] = a->rank == 1 ? 100 : 3;
    }
    check(attune__bindings_resolve(expr, captures, 3, parameters, 2, arrays, values) == ATTUNE_OK);
}

static bool inside(const attune_expr *expr, attune__interval bounds, attune__value value)
{
    if (attune__expr_root(expr)->type != ATTUNE__FLOAT)
        return bounds.lo <= value.i && value.i <= bounds.hi;
    return value.f != value.f ? bounds.may_nan : bounds.flo <= value.f && value.f <= bounds.fhi;
}

static void evaluate(const attune_expr *expr, uint32_t state)
{
    static attune__interval scratch[ATTUNE_EXPR_MAX_NODES];
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__bindings bindings = {arrays, values};
    bind(expr, arrays, values);
    attune__ranges *ranges;
    check(attune__ranges_create(&attune__default_allocator, expr, &bindings, &ranges) == ATTUNE_OK);
    int32_t q = (int32_t)(state % 150), kv = (int32_t)(state / 150 % 150), width = (int32_t)(state / 22500 % 20);
    attune__box box = {{{0}}};
    for (int i = 0; i < ATTUNE__VAR_COUNT; i++)
        box.var[i] = (attune__interval){.lo = 1, .hi = 1, .flo = -4, .fhi = 4};
    box.var[ATTUNE__VAR_Q] = (attune__interval){.lo = q, .hi = q + width};
    box.var[ATTUNE__VAR_KV] = (attune__interval){.lo = kv, .hi = kv + width};
    box.var[ATTUNE__VAR_ROW] = (attune__interval){.lo = 1 + q, .hi = 1 + q + width}; /* b * q_len + q */
    attune__interval bounds = attune__expr_bounds(expr, &bindings, ranges, &box, scratch);
    for (int32_t i = 0; i <= width; i += 3)
        for (int32_t j = 0; j <= width; j += 3) {
            attune_point p = {1, 1, q + i, kv + j, 1, 1, 1, (float)(i - j) / 5.0f};
            p.score = p.score > 4 ? 4 : p.score < -4 ? -4 : p.score;
            check(inside(expr, bounds, attune__expr_point(expr, &bindings, &p)));
        }
    attune__ranges_destroy(ranges);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[ATTUNE_EXPR_MAX_LENGTH + 8], printed[1 << 17];
    if (size < 4 || size > ATTUNE_EXPR_MAX_LENGTH + 4)
        return 0;
    uint32_t state;
    memcpy(&state, data, sizeof state);
    memcpy(text, data + 4, size - 4);
    text[size - 4] = '\0';
    attune_expr_kind kind = state % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
    attune_expr *expr, *again;
    if (attune__expr_parse(&attune__default_allocator, kind, text, symbols, SYMBOLS, &expr) != ATTUNE_OK)
        return 0;
    size_t needed = 0;
    if (attune__expr_print(expr, ATTUNE_EXPR_TEXT, printed, sizeof printed, &needed) == ATTUNE_OK &&
        needed <= ATTUNE_EXPR_MAX_LENGTH) {
        check(attune__expr_parse(&attune__default_allocator, kind, printed, symbols, SYMBOLS, &again) == ATTUNE_OK);
        check(!memcmp(&expr->hash, &again->hash, sizeof expr->hash));
        attune__expr_release(again);
    }
    check(attune__expr_print(expr, ATTUNE_EXPR_C, printed, sizeof printed, &needed) == ATTUNE_OK);
    evaluate(expr, state);
    attune__expr_release(expr);
    return 0;
}

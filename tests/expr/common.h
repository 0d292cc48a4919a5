/* SPDX-License-Identifier: MIT */
/* Shared by the tests of expressions. */
#ifndef TESTS_EXPR_COMMON_H
#define TESTS_EXPR_COMMON_H

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "expr/expr.h"
#include "support/devices.h"
#include "support/heap.h"
#include "support/random_expr.h"

/* An expression with what it is bound to. */
typedef struct bound {
    attune_expr *expr;
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__bindings bindings;
} bound;

static inline attune_expr *parse_with(attune_expr_kind kind, const char *text, const attune_symbol *symbols,
                                      uint32_t count)
{
    attune_expr *expr;
    attune_status status = attune__expr_parse(&heap_guarded, kind, text, symbols, count, &expr);
    cr_assert(status == ATTUNE_OK, "%s\n%s", text, attune_last_error());
    return expr;
}

/* Makes, parses and binds the expression of a seed. The expression is the caller's. */
static inline void bind_random(bound *out, random_expr *e, uint64_t seed, attune_expr_kind kind, uint32_t complexity)
{
    random_expr_make(e, seed, kind, complexity);
    out->expr = parse_with(kind, e->text, e->symbols, e->symbol_count);
    out->bindings = (attune__bindings){out->arrays, out->values};
    attune_status status = attune__bindings_resolve(out->expr, e->captures, e->capture_count, e->parameters,
                                                    e->parameter_count, out->arrays, out->values);
    cr_assert(status == ATTUNE_OK, "%s\n%s", e->text, attune_last_error());
}

static inline attune_point random_point(uint64_t *state)
{
    attune_point p = {.b = (int32_t)random_expr_between(state, 0, 6),
                      .h = (int32_t)random_expr_between(state, 0, 6),
                      .q = (int32_t)random_expr_between(state, 0, 240),
                      .kv = (int32_t)random_expr_between(state, 0, 240),
                      .h_kv = (int32_t)random_expr_between(state, 0, 3),
                      .q_len = (int32_t)random_expr_between(state, 1, 240),
                      .kv_len = (int32_t)random_expr_between(state, 1, 240)};
    p.score = (float)random_expr_between(state, -3000, 3000) / 100.0f;
    if (random_expr_next(state) % 32 == 0) {
        /* the ends of the ranges that the bounds of emitted text rest on */
        p.q = INT32_MAX - (int32_t)random_expr_between(state, 0, 3);
        p.kv = random_expr_next(state) % 2 ? 0 : INT32_MAX - 64;
    }
    if (random_expr_next(state) % 32 == 0) {
        static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-42f, 3e38f};
        p.score = odd[random_expr_next(state) % 7];
    }
    return p;
}

static inline attune__row row_of(const attune_point *p)
{
    return (attune__row){p->b, p->h, p->q, p->h_kv, p->q_len, p->kv_len, 0, NULL};
}

static inline bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

#endif

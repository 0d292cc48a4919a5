/* SPDX-License-Identifier: MIT */
/* Scores that are lines in the product and in kv: the text that computes a row's coefficients, compiled by the system's
 * compiler, against the interpreter. */
#include "expr/common.h"

#include <stdio.h>

#include "expr/batch.h"
#include "expr/print.h"

#define LINES  400
#define POINTS 24
#define HEADS  7
#define ROWS   241

typedef void line_fn(int, int, int, int, int, int, float *, float *, float *, int *, const batch_view *,
                     const attune__value *);

static const attune_symbol symbols[] = {{"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                        {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                        {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};

/* Values that all keys of a row share. */
static void add_closed(attune__text *text, uint64_t *state)
{
    static const char *const closed[] = {"slope[h]",          "bias[q]",       "heat",
                                         "sqrt(q_len + 1.0)", "(h - b + 0.5)", "(q / 100.0)"};
    const uint64_t which = random_expr_next(state) % 9;
    if (which < 6)
        attune__text_add(text, "%s", closed[which]);
    else
        attune__text_add(text, "%.2f", (double)random_expr_between(state, 1, 200) / 100);
}

/* `distance` is the one that the whole expression has: two of them have no common origin. */
static void add_line(attune__text *text, uint64_t *state, const char *distance, uint32_t depth)
{
    static const char *const before[] = {"(", "(", "-(", "(", "(", "("};
    const uint64_t which = depth ? random_expr_next(state) % 6 : 6;
    if (which == 6) {
        attune__text_add(text, "score");
        return;
    }
    attune__text_add(text, "%s", before[which]);
    if (which == 3) {
        add_closed(text, state);
        attune__text_add(text, " - ");
    }
    add_line(text, state, distance, depth - 1);
    if (which == 0 || which == 1 || which == 4 || which == 5)
        attune__text_add(text, which == 0 ? " + " : which == 1 ? " * " : which == 4 ? " - " : " + ");
    if (which == 4 || which == 5)
        attune__text_add(text, "%s * ", distance);
    if (which != 2 && which != 3)
        add_closed(text, state);
    attune__text_add(text, ")");
}

static attune_expr *make(uint64_t seed, char *words, size_t size)
{
    static const char *const distances[] = {"(kv - q)", "(q - kv)", "kv"};
    uint64_t state = seed;
    attune__text text = attune__text_begin(words, size);
    add_line(&text, &state, distances[random_expr_next(&state) % 3], 1 + (uint32_t)(seed % 6));
    return parse_with(ATTUNE_EXPR_SCORE, words, symbols, 3);
}

static void bind_line(bound *x, uint64_t seed)
{
    static float slopes[HEADS], biases[ROWS];
    uint64_t state = seed;
    for (int i = 0; i < HEADS; i++)
        slopes[i] = (float)random_expr_between(&state, -100, 100) / 100;
    for (int i = 0; i < ROWS; i++)
        biases[i] = (float)random_expr_between(&state, -200, 200) / 100;
    const attune_host_capture captures[] = {
        {"slope", {.data = slopes, .dtype = ATTUNE_F32, .rank = 1, .size = {HEADS}, .stride = {1}}},
        {"bias", {.data = biases, .dtype = ATTUNE_F32, .rank = 1, .size = {ROWS}, .stride = {1}}}};
    const attune_parameter heat = {"heat", 0.75};
    x->bindings = (attune__bindings){x->arrays, x->values};
    cr_assert_eq(attune__bindings_resolve(x->expr, captures, 2, &heat, 1, x->arrays, x->values), ATTUNE_OK, "%s",
                 attune_last_error());
}

static void check_line(line_fn *f, const bound *x, const char *words, uint64_t seed, bool *sloped)
{
    batch_view views[ATTUNE_EXPR_MAX_SYMBOLS] = {{.data = NULL}};
    uint64_t state = seed * 77;
    batch_views(x->expr, x->arrays, views);
    for (int n = 0; n < POINTS; n++) {
        attune_point p = random_point(&state);
        if (p.q >= ROWS || p.kv >= ROWS || !isfinite(p.score) || fabsf(p.score) > 100)
            continue;
        float factor, slope, base;
        int origin;
        f(p.b, p.h, p.q, p.h_kv, p.q_len, p.kv_len, &factor, &slope, &base, &origin, views, x->values);
        const double a = (double)factor * (double)p.score, c = (double)slope * (p.kv - origin), g = (double)base;
        const double wanted = (double)attune__expr_point(x->expr, &x->bindings, &p).f;
        *sloped = *sloped || slope != 0;
        /* Eight roundings of what is added, and of products of rows that cancel in the text and are not in the
         * coefficients.
         */
        cr_assert(fabs(a + c + g - wanted) <= 0x1p-21 * (1000 + fabs(a) + fabs(c) + fabs(g)),
                  "%s\n%g * %g + %g + %g * (%d - %d), interpreter %g", words, (double)factor, (double)p.score,
                  (double)base, (double)slope, p.kv, origin, wanted);
    }
}

Test(linear, agrees_with_the_interpreter)
{
    static char words[LINES][1024], text[1 << 16];
    batch b;
    batch_begin(&b);
    attune__text prelude = attune__text_begin(text, sizeof text);
    attune__ctext_prelude(&prelude);
    fputs(text, b.file);
    const uint64_t seed = test_seed();
    for (int i = 0; i < LINES; i++) {
        char name[16];
        attune_expr *expr = make(seed + (uint64_t)i, words[i], sizeof words[i]);
        attune__text function = attune__text_begin(text, sizeof text);
        snprintf(name, sizeof name, "f%d", i);
        cr_assert(attune__is_linear(expr), "not linear: %s", words[i]);
        attune__ctext_linear(expr, name, &function);
        cr_assert_lt(function.length, sizeof text);
        fprintf(b.file, "%s#undef ATTUNE_LINEAR_SCORE_HAS_SLOPE\n", text);
        attune__expr_release(expr);
    }
    void **table = batch_open(&b, LINES);
    int slopes = 0;
    for (int i = 0; i < LINES; i++) {
        static bound x;
        bool sloped = false;
        x.expr = make(seed + (uint64_t)i, words[i], sizeof words[i]);
        bind_line(&x, seed + (uint64_t)i);
        check_line(*(line_fn **)&table[i], &x, words[i], seed + (uint64_t)i, &sloped);
        slopes += sloped;
        attune__expr_release(x.expr);
    }
    cr_assert(slopes > LINES / 4, "%d slopes: nothing is tested", slopes);
    batch_end(&b);
}

Test(linear, nothing_else_is_one)
{
    static const char *const others[] = {
        "score * score",
        "tanh(score)",
        "max(score, 0.0)",
        "score * (kv - q)",
        "score + bias[kv]",
        "score / heat",
        "score + kv * kv",
        "score + (kv - q) + kv",
        "score + (kv - 2 * q)",
        "score + abs(kv - q)",
        "heat",
        "kv < 5 ? score : q",
        "score + exp(kv)",
        "score + slope[h + kv]",
        "(score + 1.0) * (q - kv)",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, others[i], symbols, 3);
        cr_expect_not(attune__is_linear(expr), "%s", others[i]);
        attune__expr_release(expr);
    }
}

/* The constants of outer * tanh(inner * score), however it is written. */
Test(linear, caps)
{
    static const struct {
        const char *words;
        float inner, outer;
    } caps[] = {
        {"50 * tanh(score / 50)", 1 / 50.0f, 50},
        {"tanh(score / 20) * 20", 1 / 20.0f, 20},
        {"softcap(30)", 1 / 30.0f, 30},
        {"8 * tanh(0.5 * score)", 0.5f, 8},
    };
    static const char *const others[] = {"tanh(score) + 1.0", "50 * tanh(score / heat)", "50 * tanh(kv / 50.0)",
                                         "score"};
    float inner, outer;
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, caps[i].words, symbols, 3);
        cr_assert(attune__is_soft_cap(expr, &inner, &outer), "%s", caps[i].words);
        cr_expect_float_eq(inner, caps[i].inner, 1e-6f, "%s: %g", caps[i].words, (double)inner);
        cr_expect_float_eq(outer, caps[i].outer, 1e-5f, "%s: %g", caps[i].words, (double)outer);
        attune__expr_release(expr);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, others[i], symbols, 3);
        cr_expect_not(attune__is_soft_cap(expr, &inner, &outer), "%s", others[i]);
        attune__expr_release(expr);
    }
}

/* SPDX-License-Identifier: MIT */
/* The C text, compiled by the system's compiler in batches, against the interpreter: bit for bit. */
#include "expr/common.h"

#include <stdio.h>
#include <stdlib.h>

#include "expr/batch.h"
#include "expr/gradient.h"
#include "expr/print.h"

#define BATCH  2500
#define POINTS 6

typedef int mask_fn(int, int, int, int, int, int, int, float, const batch_view *, const attune__value *);
typedef float score_fn(int, int, int, int, int, int, int, float, const batch_view *, const attune__value *);

static attune_expr_kind kind_of(uint64_t i)
{
    return i % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
}

static void write_function(batch *b, const bound *x, uint64_t i, uint64_t first)
{
    static char text[1 << 18];
    char name[32];
    if (i == first) {
        /* the prelude comes with the whole text; the function after it is not called */
        size_t needed;
        cr_assert(attune__expr_print(x->expr, ATTUNE_EXPR_C, text, sizeof text, &needed) == ATTUNE_OK);
        cr_assert(needed == strlen(text) + 1);
        fputs(text, b->file);
    }
    snprintf(name, sizeof name, "f%llu", (unsigned long long)(i - first));
    size_t needed;
    cr_assert(attune__expr_ctext(x->expr, name, text, sizeof text, &needed) == ATTUNE_OK && needed <= sizeof text);
    fputs(text, b->file);
}

static void run_function(void *function, const bound *x, const random_expr *e, uint64_t seed, uint64_t i)
{
    batch_view views[ATTUNE_EXPR_MAX_SYMBOLS];
    batch_views(x->expr, x->arrays, views);
    uint64_t state = seed ^ i;
    for (int n = 0; n < POINTS; n++) {
        attune_point p = random_point(&state);
        attune__value wanted = attune__expr_point(x->expr, &x->bindings, &p), found = {0};
        if (e->kind == ATTUNE_EXPR_MASK) {
            mask_fn *f = *(mask_fn **)function;
            found.i = f(p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score, views, x->values);
            cr_assert(found.i == wanted.i, "%s\nC %d, interpreter %d at q %d, kv %d", e->text, found.i, wanted.i, p.q,
                      p.kv);
        } else {
            score_fn *f = *(score_fn **)function;
            found.f = f(p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score, views, x->values);
            cr_assert(same_float(found.f, wanted.f), "%s\nC %.9g, interpreter %.9g at q %d, kv %d, score %.9g", e->text,
                      (double)found.f, (double)wanted.f, p.q, p.kv, (double)p.score);
        }
    }
}

static void run_batch(uint64_t seed, uint64_t first, uint64_t count)
{
    static random_expr e;
    static bound x;
    batch b;
    batch_begin(&b);
    for (uint64_t i = first; i < first + count; i++) {
        bind_random(&x, &e, seed + i, kind_of(i), 1 + (uint32_t)(i % 17));
        write_function(&b, &x, i, first);
        attune__expr_release(x.expr);
    }
    void **table = batch_open(&b, count);
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + first + i, kind_of(first + i), 1 + (uint32_t)((first + i) % 17));
        run_function(&table[i], &x, &e, seed, first + i);
        attune__expr_release(x.expr);
    }
    batch_end(&b);
}

/* Criterion runs tests side by side: a quarter each. */
static void run_quarter(uint64_t quarter)
{
    uint64_t count = scaled(25000), seed = test_seed() + 5 + quarter * UINT64_C(1000003);
    for (uint64_t first = 0; first < count; first += BATCH)
        run_batch(seed, first, count - first < BATCH ? count - first : BATCH);
    cr_log_info("%llu functions, %llu points", (unsigned long long)count, (unsigned long long)count * POINTS);
}

Test(ctext, agrees_with_the_interpreter_1)
{
    run_quarter(0);
}

Test(ctext, agrees_with_the_interpreter_2)
{
    run_quarter(1);
}

Test(ctext, agrees_with_the_interpreter_3)
{
    run_quarter(2);
}

Test(ctext, agrees_with_the_interpreter_4)
{
    run_quarter(3);
}

/* ----------------------------------------------------------------------------------------------------------- bounds */

typedef struct range {
    int low, high;
} range;

typedef range bounds_fn(int, range, range, range, int, int, int, range, const batch_view *, const attune__value *);

static void write_bounds(batch *b, const attune_expr *expr, uint64_t i)
{
    static char buffer[1 << 18];
    char name[32];
    size_t needed;
    snprintf(name, sizeof name, "f%llu", (unsigned long long)i);
    attune__text text = attune__text_begin(buffer, sizeof buffer);
    if (!i)
        attune__ctext_prelude(&text);
    attune__text_end(&text, &needed);
    fputs(buffer, b->file);
    if (!i)
        fprintf(b->file, "#include \"%s/shaders/opencl/bounds.h\"\n", getenv("ATTUNE_SOURCE"));
    text = attune__text_begin(buffer, sizeof buffer);
    attune__ctext_mask_bounds(expr, name, &text);
    attune__text_end(&text, &needed);
    cr_assert_leq(needed, sizeof buffer);
    fputs(buffer, b->file);
}

/* A box of heads of one group, queries and keys, around a point. */
typedef struct box_of_pairs {
    int b, h_kv, q_len, kv_len;
    range h, q, kv;
} box_of_pairs;

static box_of_pairs random_box(uint64_t *state)
{
    attune_point p = random_point(state);
    p.q = p.q < INT32_MAX - 8 ? p.q : INT32_MAX - 8;
    p.kv = p.kv < INT32_MAX - 8 ? p.kv : INT32_MAX - 8;
    const int h = p.h / 2 * 2;
    return (box_of_pairs){.b = p.b,
                          .h_kv = h / 2,
                          .q_len = p.q_len,
                          .kv_len = p.kv_len,
                          .h = {h, h + (int)random_expr_between(state, 0, 1)},
                          .q = {p.q, p.q + (int)random_expr_between(state, 0, 4)},
                          .kv = {p.kv, p.kv + (int)random_expr_between(state, 0, 7)}};
}

static range call_bounds(void *function, const bound *x, const box_of_pairs *box)
{
    batch_view views[ATTUNE_EXPR_MAX_SYMBOLS];
    batch_views(x->expr, x->arrays, views);
    bounds_fn *f = *(bounds_fn **)function;
    /* A row past 2^31 is none. */
    const int64_t row0 = (int64_t)box->b * box->q_len, low = row0 + box->q.low, high = row0 + box->q.high;
    const range row = {low < INT32_MAX ? (int)low : INT32_MAX, high < INT32_MAX ? (int)high : INT32_MAX};
    return f(box->b, box->h, box->q, box->kv, box->h_kv, box->q_len, box->kv_len, row, views, x->values);
}

/* Whether a mask is true and false in a box: bits 2 and 1. */
static unsigned truths(const bound *x, const box_of_pairs *box)
{
    unsigned found = 0;
    attune_point p = {.b = box->b, .h_kv = box->h_kv, .q_len = box->q_len, .kv_len = box->kv_len};
    for (p.h = box->h.low; p.h <= box->h.high; p.h++)
        for (p.q = box->q.low; p.q <= box->q.high; p.q++)
            for (p.kv = box->kv.low; p.kv <= box->kv.high; p.kv++)
                found |= attune__expr_point(x->expr, &x->bindings, &p).i ? 2 : 1;
    return found;
}

/* Random masks: what the bounds of kernels that skip tiles say of a box holds at all of its pairs. */
Test(ctext, bounds_hold)
{
    static random_expr e;
    static bound x;
    const uint64_t count = scaled(200), seed = test_seed() + 31;
    uint64_t decided = 0;
    batch b;
    batch_begin(&b);
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 29));
        write_bounds(&b, x.expr, i);
        attune__expr_release(x.expr);
    }
    void **table = batch_open(&b, count);
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 29));
        uint64_t state = seed ^ i;
        for (int n = 0; n < POINTS; n++) {
            const box_of_pairs box = random_box(&state);
            const range found = call_bounds(&table[i], &x, &box);
            const unsigned has = truths(&x, &box);
            cr_assert(found.low >= 0 && found.low <= found.high && found.high <= 1 && !(found.low && has & 1) &&
                          !(!found.high && has & 2),
                      "%s\n  bounds %d %d, but true and false are %u at q %d kv %d", e.text, found.low, found.high, has,
                      box.q.low, box.kv.low);
            decided += found.low == found.high;
        }
        attune__expr_release(x.expr);
    }
    batch_end(&b);
    cr_assert(decided > count * POINTS / 8, "%llu of %llu boxes are decided", (unsigned long long)decided,
              (unsigned long long)(count * POINTS));
}

/* Masks that calls over a cache have: the bounds of the interpreter. */
Test(ctext, bounds_of_common_masks)
{
    static const char *const masks[] = {
        "q >= kv",
        "q >= kv && q - kv < 37",
        "q >= kv && (q - kv < 37 || kv < 5)",
        "kv < 40 || q >= kv",
        "abs(q - kv) <= 20",
        "kv / 16 == q / 16",
        "!(kv > q) && min(q - kv, 90) < 64 && max(kv, 3) * 2 < 300",
        "b == 2 ? q >= kv : kv < kv_len - q_len",
        "h_kv == 1 && q >= kv || h != 2 && -kv <= -100",
    };
    const uint64_t count = sizeof masks / sizeof masks[0];
    batch b;
    batch_begin(&b);
    for (uint64_t i = 0; i < count; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, masks[i], NULL, 0);
        write_bounds(&b, expr, i);
        attune__expr_release(expr);
    }
    void **table = batch_open(&b, count);
    for (uint64_t i = 0; i < count; i++) {
        static attune__interval scratch[ATTUNE_EXPR_MAX_NODES];
        bound x = {.expr = parse_with(ATTUNE_EXPR_MASK, masks[i], NULL, 0)};
        uint64_t state = test_seed() + i;
        for (int n = 0; n < 50; n++) {
            const box_of_pairs box = random_box(&state);
            const attune__box wanted_box = {.var = {[ATTUNE__VAR_B] = {.lo = box.b, .hi = box.b},
                                                    [ATTUNE__VAR_H] = {.lo = box.h.low, .hi = box.h.high},
                                                    [ATTUNE__VAR_H_KV] = {.lo = box.h_kv, .hi = box.h_kv},
                                                    [ATTUNE__VAR_Q] = {.lo = box.q.low, .hi = box.q.high},
                                                    [ATTUNE__VAR_KV] = {.lo = box.kv.low, .hi = box.kv.high},
                                                    [ATTUNE__VAR_Q_LEN] = {.lo = box.q_len, .hi = box.q_len},
                                                    [ATTUNE__VAR_KV_LEN] = {.lo = box.kv_len, .hi = box.kv_len}}};
            const attune__interval wanted = attune__expr_bounds(x.expr, &x.bindings, NULL, &wanted_box, scratch);
            const range found = call_bounds(&table[i], &x, &box);
            cr_assert(found.low == wanted.lo && found.high == wanted.hi,
                      "%s: bounds %d %d, expected %d %d at q %d to %d, kv %d to %d", masks[i], found.low, found.high,
                      wanted.lo, wanted.hi, box.q.low, box.q.high, box.kv.low, box.kv.high);
        }
        attune__expr_release(x.expr);
    }
    batch_end(&b);
}

static bool has(const char *text, const char *words)
{
    return strstr(text, words) != NULL;
}

/* Checks that the bounds of the variables make needless are not printed. */
Test(ctext, plain_operators_where_bounds_allow)
{
    static char text[1 << 14];
    static const struct {
        const char *expr, *has, *hasnt;
    } cases[] = {
        {"q - kv < 3", "q - kv", "attune_isub"},          {"q / 12 == kv / 12", "q / 12", "attune_idiv"},
        {"kv % q_len == 0", "kv % q_len", "attune_imod"}, {"(q - kv) % 3 == 0", "attune_imod", "attune_isub"},
        {"q + kv < 3", "attune_iadd(q, kv)", NULL},       {"q * kv < 3", "attune_imul(q, kv)", NULL},
        {"abs(q - kv) <= 8", "< 0 ? -t", "attune_isub"},  {"q / kv == 1", "attune_idiv", NULL},
        {"q % 12 * 5 < kv", "* 5", "attune_imul"},        {"(q - kv) / 64 == 1", ">> 6", "attune_idiv"},
        {"(q - kv) % 4 == 1", "& 3", "attune_imod"},      {"(q - kv) / -4 == 1", "attune_idiv", ">>"},
        {"(q - kv) / 1 == 1", "q - kv", "attune_idiv"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, cases[i].expr, NULL, 0);
        cr_assert(attune__expr_ctext(expr, "f", text, sizeof text, NULL) == ATTUNE_OK);
        cr_assert(has(text, cases[i].has) && (!cases[i].hasnt || !has(text, cases[i].hasnt)), "%s\n%s", cases[i].expr,
                  text);
        attune__expr_release(expr);
    }
}

/* Over a cache rows before key 0 are at negative q, and row is a number of its own. */
Test(ctext, ragged_rows)
{
    static char text[1 << 14], dense[1 << 14];
    attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, "q % 6 == row / 3 && q - kv < 5", NULL, 0), *ragged;
    cr_assert(attune__expr_ragged(&expr->allocator, expr, &ragged) == ATTUNE_OK);
    cr_assert(attune__expr_ctext(expr, "f", dense, sizeof dense, NULL) == ATTUNE_OK);
    cr_assert(attune__expr_ctext(ragged, "f", text, sizeof text, NULL) == ATTUNE_OK);
    cr_assert(has(dense, "q % 6") && has(dense, "= q - kv"), "%s", dense);
    cr_assert(has(text, "attune_imod(q, 6)") && has(text, "attune_isub(q, kv)") && has(text, "row / 3"), "%s", text);
    cr_assert(has(text, "const int row = ATTUNE_ROW_INDEX;") && has(dense, "const int row = ATTUNE_ROW_INDEX;"));
    attune__expr_release(expr);
    attune__expr_release(ragged);
}

/* Of operands between two numbers: plain where no result leaves i32, and divisors are positive. */
Test(ctext, plain_operators_end_with_i32)
{
    static char text[1 << 14];
    static const struct {
        const char *form, *call;
        int32_t a[2], b[2];
        bool plain;
    } cases[] = {
        {"%s + %s", "attune_iadd(", {0, 2147483000}, {0, 647}, true},
        {"%s + %s", "attune_iadd(", {0, 2147483000}, {0, 648}, false},
        {"%s + %s", "attune_iadd(", {-2147483000, 5}, {-648, 5}, true},
        {"%s + %s", "attune_iadd(", {-2147483000, 5}, {-649, 5}, false},
        {"%s - %s", "attune_isub(", {-2147483000, 5}, {-5, 648}, true},
        {"%s - %s", "attune_isub(", {-2147483000, 5}, {-5, 649}, false},
        {"%s - %s", "attune_isub(", {-5, 2147483000}, {-647, 5}, true},
        {"%s - %s", "attune_isub(", {-5, 2147483000}, {-648, 5}, false},
        {"%s * %s", "attune_imul(", {-1, 65535}, {-1, 32768}, true},
        {"%s * %s", "attune_imul(", {-1, 65536}, {-1, 32768}, false},
        {"%s * %s", "attune_imul(", {-1, 65536}, {-32768, 1}, true},
        {"%s * %s", "attune_imul(", {-1, 65537}, {-32768, 1}, false},
        {"%s * %s", "attune_imul(", {-65536, 1}, {-1, 32768}, true},
        {"%s * %s", "attune_imul(", {-65537, 1}, {-1, 32768}, false},
        {"%s * %s", "attune_imul(", {-65535, 1}, {-32768, 1}, true},
        {"%s * %s", "attune_imul(", {-65536, 1}, {-32768, 1}, false},
        {"%s / %s", "attune_idiv(", {0, 9}, {1, 9}, true},
        {"%s / %s", "attune_idiv(", {-1, 9}, {1, 9}, false},
        {"%s / %s", "attune_idiv(", {0, 9}, {0, 9}, false},
        {"%s %% %s", "attune_imod(", {0, 9}, {1, 9}, true},
        {"%s %% %s", "attune_imod(", {-1, 9}, {1, 9}, false},
        {"%s %% %s", "attune_imod(", {0, 9}, {0, 9}, false},
        {"max(-%s, %s)", "attune_isub(0", {-2147483647, 0}, {0, 0}, true},
        {"max(-(%s * 70000), %s)", "attune_isub(0", {-70000, 0}, {0, 0}, false},
        {"abs(%s) + %s", "attune_isub(0", {-2147483647, 0}, {0, 0}, true},
        {"abs(%s * 70000) + %s", "attune_isub(0", {-70000, 0}, {0, 0}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char a[64], b[64], of[256];
        snprintf(a, sizeof a, "clamp(q - kv, %d, %d)", cases[i].a[0], cases[i].a[1]);
        snprintf(b, sizeof b, "clamp(kv - h, %d, %d)", cases[i].b[0], cases[i].b[1]);
        int length = snprintf(of, sizeof of, cases[i].form, a, b);
        snprintf(of + length, sizeof of - (size_t)length, " == 3");
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, of, NULL, 0);
        cr_assert(attune__expr_ctext(expr, "f", text, sizeof text, NULL) == ATTUNE_OK);
        cr_expect_eq(has(text, cases[i].call), !cases[i].plain, "%s\n%s", of, text);
        attune__expr_release(expr);
    }
}

/* Comparisons are printed in the usual order: rows before keys, constants last. */
Test(ctext, comparisons_read_forwards)
{
    static char text[256];
    static const char *const cases[][2] = {
        {"kv <= q", "q >= kv"},       {"kv < q", "q > kv"}, {"q < kv", "q < kv"},   {"kv < q + 3", "q + 3 > kv"},
        {"3 < kv", "kv > 3"},         {"3 <= q", "q >= 3"}, {"kv < 3", "kv < 3"},   {"kv < h", "kv < h"},
        {"kv <= h", "kv <= h"},       {"h < kv", "h < kv"}, {"q <= kv", "q <= kv"}, {"kv + 1 < q", "kv + 1 < q"},
        {"kv < b + q", "b + q > kv"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, cases[i][0], NULL, 0);
        cr_assert(attune__expr_print(expr, ATTUNE_EXPR_TEXT, text, sizeof text, NULL) == ATTUNE_OK);
        cr_expect_str_eq(text, cases[i][1]);
        attune__expr_release(expr);
    }
}

/* As snprintf: what is needed is told, what does not fit is not written. */
/* Kernels sum the gradients of pairs that read one element before they are added to it. */
Test(ctext, capture_reads_say_which_pairs_share_an_element)
{
    static const attune_symbol captures[] = {{"x", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                             {"y", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2}};
    static const struct {
        const char *text;
        int sharing;
    } cases[] = {
        {"score + x[h]", ATTUNE__READ_ONE},
        {"score + x[q]", ATTUNE__READ_ROW},
        {"score + x[kv]", ATTUNE__READ_KEY},
        {"score + x[q - kv]", ATTUNE__READ_DIAGONAL},
        {"score + x[q + kv]", ATTUNE__READ_PAIR},
        {"score + y[b, h]", ATTUNE__READ_ONE},
        {"score + y[q, h]", ATTUNE__READ_ROW},
        {"score + y[h, q]", ATTUNE__READ_ROW},
        {"score + y[kv, h]", ATTUNE__READ_KEY},
        {"score + y[h, kv]", ATTUNE__READ_KEY},
        {"score + y[kv - q, h]", ATTUNE__READ_DIAGONAL},
        {"score + y[q, q - kv]", ATTUNE__READ_PAIR},
        {"score + y[q, kv]", ATTUNE__READ_PAIR},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, captures, 2);
        attune__gradient *gradient;
        cr_assert_eq(attune__gradient_create(expr, &gradient), ATTUNE_OK);
        static char text[1 << 16];
        char expected[64];
        attune__text t = attune__text_begin(text, sizeof text);
        attune__ctext_gradient(gradient, &t);
        snprintf(expected, sizeof expected, "(X) X(0, 0, %d)", cases[i].sharing);
        cr_expect(strstr(text, expected), "%s does not give %s", cases[i].text, expected);
        attune__gradient_destroy(gradient);
        attune__expr_release(expr);
    }
}

/* Captures whose reads of a row's consecutive keys are consecutive elements, all of them. */
Test(ctext, reads_in_the_order_of_keys)
{
    static const attune_symbol captures[] = {{"x", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                             {"y", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
                                             {"z", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 3}};
    static const struct {
        const char *text;
        uint32_t ordered;
    } cases[] = {
        {"score + y[q, kv]", 1},
        {"score * y[min(q, 7) + h, kv]", 1},
        {"score + z[h, q - 3, kv] * y[q, kv] + x[kv]", 6},
        {"score + y[q, kv + 1]", 0},
        {"score + y[q, 2 * kv]", 0},
        {"score + y[kv, q]", 0},
        {"score + z[q, kv, kv]", 0},
        {"score + y[h, kv]", 0},            /* not of single pairs */
        {"score + y[q, kv] * y[kv, q]", 0}, /* nor all of its reads */
        {"score + y[q, kv] + y[3, kv]", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, captures, 3);
        const uint32_t ordered = attune__ctext_ordered_captures(expr);
        cr_expect_eq(ordered, cases[i].ordered, "%s gives %#x", cases[i].text, ordered);
        cr_expect_eq(ordered & ~attune__ctext_pair_captures(expr), 0);
        attune__expr_release(expr);
    }
}

Test(ctext, buffers)
{
    attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, "causal && q > 3", NULL, 0);
    for (attune_expr_format format = ATTUNE_EXPR_TEXT; format <= ATTUNE_EXPR_C; format++) {
        static char whole[1 << 14], part[1 << 14];
        size_t needed = 0, again = 0;
        cr_assert(attune__expr_print(expr, format, NULL, 0, &needed) == ATTUNE_OK && needed > 1);
        cr_assert(attune__expr_print(expr, format, whole, sizeof whole, &again) == ATTUNE_OK);
        cr_assert(needed == again && strlen(whole) + 1 == needed);
        for (size_t size = 1; size < needed; size += 7) {
            memset(part, '#', sizeof part);
            cr_assert(attune__expr_print(expr, format, part, size, &again) == ATTUNE_OK && again == needed);
            cr_assert(strlen(part) == size - 1 && !strncmp(part, whole, size - 1) && part[size] == '#');
        }
    }
    attune__expr_release(expr);
}

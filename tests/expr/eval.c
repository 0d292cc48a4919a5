/* SPDX-License-Identifier: MIT */
/* Values: known ones, and rows against points. */
#include "expr/common.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/text.h"
#include "expr/ops.h"
#include "support/heap.h"

static float value_of(attune_expr_kind kind, const char *text, attune_point point)
{
    attune_expr *expr = parse_with(kind, text, NULL, 0);
    attune__value value = attune__expr_point(expr, &(attune__bindings){NULL, NULL}, &point);
    attune__expr_release(expr);
    return kind == ATTUNE_EXPR_MASK ? (float)value.i : value.f;
}

Test(eval, arithmetic)
{
    /* q and kv are where folding must not reach: both ways have to agree */
    static const struct {
        const char *text;
        int32_t q, kv;
        float value;
    } cases[] = {
        {"q / kv", 7, 2, 3},
        {"q / kv", -7, 2, -4},
        {"q / kv", 7, -2, -4},
        {"q / kv", -7, -2, 3},
        {"q / kv", 7, 0, 0},
        {"q % kv", 7, 0, 0},
        {"q % kv", -7, 3, 2},
        {"q % kv", 7, -3, -2},
        {"q % kv", -6, 3, 0},
        {"q + kv", INT32_MAX, 1, -2147483648.0f},
        {"q - kv", INT32_MIN, 1, 2147483648.0f},
        {"q * kv", 65536, 65536, 0},
        {"q / kv", INT32_MIN, -1, -2147483648.0f},
        {"q % kv", INT32_MIN, -1, 0},
        {"abs(q)", INT32_MIN, 0, -2147483648.0f},
        {"-q", INT32_MIN, 0, -2147483648.0f},
        {"min(q, kv)", 3, -4, -4},
        {"max(q, kv, 9)", 3, -4, 9},
        {"clamp(q, 2, 5)", 9, 0, 5},
        {"clamp(q, 2, 5)", 1, 0, 2},
        {"floor(q / 2.0)", -3, 0, -2},
        {"ceil(q / 2.0)", -3, 0, -1},
        {"(q * 1.0) % 3", -1, 0, 2},
        {"q > kv ? q : kv", 1, 2, 2},
        {"select(q == 1, 2, 3.5)", 2, 0, 3.5f},
        {"sqrt(q)", 16, 0, 4},
        {"rsqrt(q)", 16, 0, 0.25f},
        {"exp2(q)", 10, 0, 1024},
        {"pow(q, kv)", 2, 10, 1024},
        {"2 + 3 * q - 4 / 2", 5, 0, 15},
        {"10 - 3 - q", 2, 0, 5},
        {"q - -3", 1, 0, 4},
        {"+q", 4, 0, 4},
        {"1.0 / q", 0, 0, INFINITY},
        {"q * 1.0", 16777217, 0, 16777216},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_point p = {.q = cases[i].q, .kv = cases[i].kv, .q_len = 1, .kv_len = 1};
        float value = value_of(ATTUNE_EXPR_SCORE, cases[i].text, p);
        cr_assert(same_float(value, cases[i].value), "%s at q %d, kv %d: %g, not %g", cases[i].text, p.q, p.kv,
                  (double)value, (double)cases[i].value);
    }
    cr_assert(value_of(ATTUNE_EXPR_SCORE, "score != score ? 1 : 2", (attune_point){.score = NAN}) == 1);
    cr_assert(value_of(ATTUNE_EXPR_SCORE, "min(score, 3)", (attune_point){.score = NAN}) !=
              value_of(ATTUNE_EXPR_SCORE, "min(score, 3)", (attune_point){.score = NAN}));
    cr_assert(value_of(ATTUNE_EXPR_SCORE, "min(3.0, score)", (attune_point){.score = NAN}) == 3);
    cr_assert(value_of(ATTUNE_EXPR_MASK, "1 < 2 == true || q / 0 == 3 && false", (attune_point){.q = 1}) == 1);
}

Test(eval, captures_out_of_range_read_zero)
{
    static const int32_t data[6] = {1, 2, 3, 4, 5, 6};
    attune_symbol symbol = {"a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2};
    attune_host_capture capture = {"a", {data, ATTUNE_I32, 2, {2, 3}, {0}}};
    attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, "a[q, kv]", &symbol, 1);
    attune_array array;
    attune__value value;
    cr_assert(attune__bindings_resolve(expr, &capture, 1, NULL, 0, &array, &value) == ATTUNE_OK);
    for (int32_t q = -3; q < 5; q++)
        for (int32_t kv = -3; kv < 6; kv++) {
            float wanted = q >= 0 && q < 2 && kv >= 0 && kv < 3 ? (float)data[3 * q + kv] : 0;
            attune_point p = {.q = q, .kv = kv};
            cr_assert(attune__expr_point(expr, &(attune__bindings){&array, &value}, &p).f == wanted);
        }
    attune__expr_release(expr);
}

#define COLUMNS 24

Test(eval, rows_are_points)
{
    static random_expr e;
    static bound x;
    uint64_t count = scaled(120000), seed = test_seed(), checked = 0;
    size_t fixture = 0;
    void *scratch = NULL;
    for (uint64_t i = 0; i < count; i++) {
        attune_expr_kind kind = i % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
        bind_random(&x, &e, seed + i, kind, 1 + (uint32_t)(i % 23));
        size_t needed = (attune__expr_scratch_size(x.expr, COLUMNS) + 63) / 64 * 64;
        if (needed > fixture) {
            free(scratch);
            scratch = aligned_alloc(64, fixture = needed);
        }
        uint64_t state = seed ^ i;
        attune_point p = random_point(&state);
        p.kv -= (int32_t)random_expr_between(&state, 0, COLUMNS);
        attune__row row = row_of(&p);
        float score[COLUMNS], changed[COLUMNS];
        uint8_t allowed[COLUMNS];
        size_t columns = (size_t)random_expr_between(&state, 1, COLUMNS);
        for (size_t c = 0; c < columns; c++)
            score[c] = changed[c] = c ? (float)random_expr_between(&state, -3000, 3000) / 100.0f : p.score;
        if (kind == ATTUNE_EXPR_MASK)
            attune__expr_mask_row(x.expr, &x.bindings, &row, p.kv, columns, scratch, allowed);
        else
            attune__expr_score_row_f32(NULL, x.expr, &x.bindings, &row, p.kv, columns, scratch, changed);
        for (size_t c = 0; c < columns; c++) {
            attune_point at = p;
            at.kv += (int32_t)c;
            at.score = score[c];
            attune__value value = attune__expr_point(x.expr, &x.bindings, &at);
            if (kind == ATTUNE_EXPR_MASK)
                cr_assert(allowed[c] == value.i, "%s\nrow %d, point %d at q %d, kv %d", e.text, allowed[c], value.i,
                          at.q, at.kv);
            else
                cr_assert(same_float(changed[c], value.f), "%s\nrow %.9g, point %.9g at q %d, kv %d", e.text,
                          (double)changed[c], (double)value.f, at.q, at.kv);
        }
        checked += columns;
        attune__expr_release(x.expr);
    }
    free(scratch);
    cr_log_info("%llu expressions, %llu points", (unsigned long long)count, (unsigned long long)checked);
}

/* Any number of rows and columns, in any order, where q or kv wraps too; in scratch that ends where it must. */
Test(eval, tiles_are_points)
{
    static const char *const forms[] = {
        "q >= kv && (q - kv) % 3 == 0",
        "kv - q < 2000000000",
        "2 * q - 2 * kv + 7 < 9 || q == 3",
        "q + 2147483600 >= kv",
        "abs(kv / 5 - q / 5) <= 1 && q != kv",
        "1 - kv < 2 - q && kv % 4 < 3",
        "q * 3 >= kv * 3",
        "sin((q - kv) * 0.3) > 0.1 && kv > 2",
        "(3 * q - kv) % 5 == 0 || kv == q",
        "q * 65536 * 65536 == kv - q",
    };
    const uint64_t count = scaled(20000), seed = test_seed() + 31;
    static random_expr e;
    static bound x;
    heap h = {0};
    const attune_allocator memory = heap_allocator(&h);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t form = (uint32_t)(i % 20);
        if (form < sizeof forms / sizeof *forms) {
            x = (bound){0};
            snprintf(e.text, sizeof e.text, "%s", forms[form]);
            cr_assert_eq(attune__expr_parse(&memory, ATTUNE_EXPR_MASK, e.text, NULL, 0, &x.expr), ATTUNE_OK);
        } else {
            bind_random(&x, &e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 23));
        }
        uint64_t state = seed ^ i;
        attune_point p = random_point(&state);
        if (i % 7 == 0)
            p.q = INT32_MAX - (int32_t)random_expr_between(&state, 0, 40);
        if (i % 5 == 0)
            p.kv = INT32_MAX - (int32_t)random_expr_between(&state, 0, 40);
        const attune__row row = row_of(&p);
        const uint32_t rows = (uint32_t)random_expr_between(&state, 1, i % 50 ? 12 : ATTUNE__TILE_ROWS);
        const size_t columns = (size_t)random_expr_between(&state, 1, 40);
        void *const scratch = attune__alloc_raw(&memory, attune__expr_tile_size(x.expr, columns), 1);
        uint8_t *const allowed = attune__alloc(&memory, columns, 1);
        attune__expr_tile_begin(x.expr, &x.bindings, &row, rows, p.kv, columns, scratch);
        for (uint32_t n = 0; n < 2 * rows; n++) {
            const uint32_t r = (uint32_t)random_expr_between(&state, 0, rows - 1);
            (void)attune__expr_tile_row(x.expr, &x.bindings, r, scratch, allowed); /* else as it was */
            for (size_t c = 0; c < columns; c++) {
                attune_point at = p;
                at.q = attune__iadd(p.q, (int32_t)r);
                at.kv = attune__iadd(p.kv, (int32_t)c);
                const attune__value value = attune__expr_point(x.expr, &x.bindings, &at);
                cr_assert(allowed[c] == value.i, "%s\ntile %d, point %d at q %d, kv %d", e.text, allowed[c], value.i,
                          at.q, at.kv);
            }
        }
        attune__free(&memory, allowed);
        attune__free(&memory, scratch);
        attune__expr_release(x.expr);
    }
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* The array is that of the copy, which has its elements alone. */
static void *copy_array(const attune_allocator *memory, attune_array *array)
{
    const int64_t element = (int64_t)attune_dtype_size(array->dtype);
    int64_t lowest = 0, highest = 0;
    for (uint32_t d = 0; d < array->rank; d++)
        cr_assert(attune__reach(array->size[d], array->stride[d], &lowest, &highest));
    const size_t size = (size_t)((highest - lowest + 1) * element);
    char *copy = attune__alloc_raw(memory, size, 1);
    memcpy(copy, (const char *)array->data + lowest * element, size);
    array->data = copy - lowest * element;
    return copy;
}

/* Rows of any number of columns, with scratch and captures that end where they must. */
Test(eval, rows_stay_in_their_memory)
{
    static random_expr e;
    static bound x;
    heap h = {0};
    const attune_allocator memory = heap_allocator(&h);
    const uint64_t count = scaled(3000), seed = test_seed() + 9;
    for (uint64_t i = 0; i < count; i++) {
        const attune_expr_kind kind = i % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
        bind_random(&x, &e, seed + i, kind, 1 + (uint32_t)(i % 23));
        void *copies[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
        for (uint32_t s = 0; s < x.expr->symbol_count; s++)
            if (x.expr->symbols[s].kind == ATTUNE_SYMBOL_CAPTURE)
                copies[s] = copy_array(&memory, &x.arrays[s]);
        uint64_t state = seed ^ i;
        const attune_point p = random_point(&state);
        const attune__row row = row_of(&p);
        const int32_t kv0 = (int32_t)random_expr_between(&state, -3, RANDOM_EXPR_POSITIONS);
        const size_t columns = (size_t)random_expr_between(&state, 1, 70);
        const size_t element = kind == ATTUNE_EXPR_MASK ? 1 : i % 4 ? sizeof(float) : sizeof(double);
        void *const scratch = attune__alloc_raw(&memory, attune__expr_scratch_size(x.expr, columns), 1);
        void *const out = attune__alloc(&memory, columns, element);
        if (kind == ATTUNE_EXPR_MASK) {
            attune__expr_mask_row(x.expr, &x.bindings, &row, kv0, columns, scratch, out);
        } else if (i % 4) {
            attune__expr_score_row_f32(NULL, x.expr, &x.bindings, &row, kv0, columns, scratch, out);
        } else {
            attune__expr_score_row_f64(x.expr, &x.bindings, &row, kv0, columns, scratch, out);
        }
        attune__free(&memory, out);
        attune__free(&memory, scratch);
        for (uint32_t s = 0; s < x.expr->symbol_count; s++)
            attune__free(&memory, copies[s]);
        attune__expr_release(x.expr);
    }
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* Every loop over columns reads captures in place, up to their last element. */
Test(eval, columns_end_with_the_capture)
{
    static const char *const forms[] = {
        "a[kv] + c[kv]",       "a[kv] - q",     "q * a[kv]",        "a[kv] / q",
        "q / a[kv]",           "a[kv] / c[kv]", "a[kv] % q",        "q % a[kv]",
        "a[kv] % c[kv]",       "-a[kv]",        "abs(a[kv])",       "min(a[kv], q)",
        "max(c[kv], a[kv])",   "a[kv - 3]",     "a[2 * kv] + a[4]", "a[kv] < c[kv] ? a[kv] : c[kv]",
        "a[kv] <= q ? 1 : -1", "a[6 - kv]",     "sqrt(a[kv])",      "a[kv] == c[kv] ? q : a[kv]",
        "q > 0 ? a[kv] : q",   "q - a[kv]",     "exp(a[kv] / 9.0)", "a[kv] != q && c[kv] > 2 || q == 0 ? 1 : 2",
    };
    static const size_t counts[] = {1, 5, 8, 15, 16, 17, 32, 64};
    static const int32_t rows[] = {-1, 0, 1, 3};
    heap h = {0};
    const attune_allocator memory = heap_allocator(&h);
    uint64_t state = test_seed();
    for (size_t n = 0; n < sizeof forms / sizeof *forms * 8 * 4 * 2; n++) {
        const char *const form = forms[n / 64];
        const size_t count = counts[n % 8];
        const int32_t q = rows[n / 8 % 4];
        const attune_dtype dtype = n / 32 % 2 ? ATTUNE_F32 : ATTUNE_I32;
        attune_symbol symbols[] = {{"a", ATTUNE_SYMBOL_CAPTURE, dtype, 1}, {"c", ATTUNE_SYMBOL_CAPTURE, dtype, 1}};
        attune_array arrays[2];
        attune_host_capture captures[2];
        attune__value none[2];
        void *data[2];
        for (int i = 0; i < 2; i++) {
            data[i] = attune__alloc_raw(&memory, count, 4);
            for (size_t e = 0; e < count; e++) {
                const int32_t value = (int32_t)random_expr_between(&state, -4, 9);
                if (dtype == ATTUNE_I32)
                    ((int32_t *)data[i])[e] = value;
                else
                    ((float *)data[i])[e] = (float)value / 2;
            }
            captures[i] = (attune_host_capture){symbols[i].name, {data[i], dtype, 1, {(int64_t)count}, {0}}};
        }
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, form, symbols, 2);
        cr_assert(attune__bindings_resolve(expr, captures, 2, NULL, 0, arrays, none) == ATTUNE_OK);
        const attune__bindings bindings = {arrays, none};
        void *const scratch = attune__alloc_raw(&memory, attune__expr_scratch_size(expr, count), 1);
        float *const single = attune__alloc(&memory, count, sizeof *single);
        double *const real = attune__alloc(&memory, count, sizeof *real);
        attune_point p = {.q = q, .q_len = 1, .kv_len = 1};
        const attune__row row = row_of(&p);
        attune__expr_score_row_f32(NULL, expr, &bindings, &row, 0, count, scratch, single);
        attune__expr_score_row_f64(expr, &bindings, &row, 0, count, scratch, real);
        for (; (size_t)p.kv < count; p.kv++) {
            const float value = attune__expr_point(expr, &bindings, &p).f;
            cr_assert(same_float(single[p.kv], value) &&
                          (isnan(value) || isinf(value) || fabs(real[p.kv] - (double)value) < 1e-5),
                      "%s at q %d, kv %d of %zu: %g and %g, not %g", form, q, p.kv, count, (double)single[p.kv],
                      real[p.kv], (double)value);
        }
        void *const blocks[] = {data[0], data[1], scratch, single, real};
        for (int i = 0; i < 5; i++)
            attune__free(&memory, blocks[i]);
        attune__expr_release(expr);
    }
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* Operations on literals, as text and as C computes them in both precisions. */
typedef struct folded {
    char text[512];
    float single;
    double real;
} folded;

static void make_folded(uint64_t *state, int depth, folded *f)
{
    if (!depth) {
        static const double odd[] = {0.0, 1.0, 0.1, 0.99999999999, 1e-40, 3e38, 16777217.0, 0.5};
        f->real = random_expr_next(state) % 3 ? (double)random_expr_between(state, 0, 100000) / 1000
                                              : odd[random_expr_next(state) % (sizeof odd / sizeof odd[0])];
        f->single = (float)f->real;
        snprintf(f->text, sizeof f->text, "%.17e", f->real);
        return;
    }
    folded a, b;
    make_folded(state, depth - 1, &a);
    make_folded(state, random_expr_next(state) % 2 ? depth - 1 : 0, &b);
    const char *form = "";
    switch (random_expr_next(state) % 10) {
#define FOLD(n, pattern, expression, expressionf)                                                                      \
    case n:                                                                                                            \
        form = pattern;                                                                                                \
        f->real = (expression);                                                                                        \
        f->single = (expressionf);                                                                                     \
        break;
        FOLD(0, "(%s + %s)", a.real + b.real, a.single + b.single)
        FOLD(1, "(%s - %s)", a.real - b.real, a.single - b.single)
        FOLD(2, "(%s * %s)", a.real * b.real, a.single * b.single)
        FOLD(3, "(%s / %s)", a.real / b.real, a.single / b.single)
        FOLD(4, "(%s %% %s)", a.real - floor(a.real / b.real) * b.real,
             a.single - floorf(a.single / b.single) * b.single)
        FOLD(5, "min(%s, %s)", b.real < a.real ? b.real : a.real, b.single < a.single ? b.single : a.single)
        FOLD(6, "max(abs(-%s), %s)", fabs(a.real) < b.real ? b.real : fabs(a.real),
             fabsf(a.single) < b.single ? b.single : fabsf(a.single))
        FOLD(7, "(%s < %s ? 1 : 0.7)", a.real < b.real ? 1.0 : 0.7, a.single < b.single ? 1.0f : 0.7f)
        FOLD(8, "(floor(%s) + ceil(%s))", floor(a.real) + ceil(b.real), floorf(a.single) + ceilf(b.single))
        FOLD(9, "(sqrt(%s) - rsqrt(%s))", sqrt(a.real) - 1 / sqrt(b.real), sqrtf(a.single) - 1 / sqrtf(b.single))
#undef FOLD
    default:
        break;
    }
    attune__text text = attune__text_begin(f->text, sizeof f->text);
    const char *const operands[] = {a.text, b.text};
    for (int i = 0; *form; form++)
        if (form[0] == '%' && form[1] == 's') {
            attune__text_add(&text, "%s", operands[i++]);
            form++;
        } else {
            form += form[0] == '%';
            attune__text_add(&text, "%c", *form);
        }
}

Test(eval, constants_are_of_the_precision)
{
    const uint64_t count = scaled(20000);
    uint64_t state = test_seed(), kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        folded f;
        char printed[1024];
        make_folded(&state, 1 + (int)(i % 3), &f);
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, f.text, NULL, 0);
        kept += expr->node_count > 1;
        for (int again = 0; again < 2; again++) {
            _Alignas(64) unsigned char scratch[64 << 10];
            cr_assert(attune__expr_scratch_size(expr, 1) <= sizeof scratch);
            const attune_point point = {.q_len = 1, .kv_len = 1};
            const attune__row row = row_of(&point);
            float single = 5;
            double real = 5;
            attune__expr_score_row_f32(NULL, expr, &(attune__bindings){NULL, NULL}, &row, 0, 1, scratch, &single);
            attune__expr_score_row_f64(expr, &(attune__bindings){NULL, NULL}, &row, 0, 1, scratch, &real);
            const attune__value value = attune__expr_point(expr, &(attune__bindings){NULL, NULL}, &point);
            cr_assert(same_float(single, f.single) && same_float(value.f, f.single), "%s is %.9g and %.9g, not %.9g",
                      f.text, (double)single, (double)value.f, (double)f.single);
            cr_assert(!memcmp(&real, &f.real, sizeof real) || (real != real && f.real != f.real),
                      "%s is %.17g, not %.17g", f.text, real, f.real);
            cr_assert(attune__expr_print(expr, ATTUNE_EXPR_TEXT, printed, sizeof printed, NULL) == ATTUNE_OK);
            attune__expr_release(expr);
            expr = parse_with(ATTUNE_EXPR_SCORE, printed, NULL, 0);
        }
        attune__expr_release(expr);
    }
    cr_assert(kept * 10 > count && kept * 10 < count * 9, "%llu of %llu are not folded", (unsigned long long)kept,
              (unsigned long long)count);
    cr_log_info("%llu constants, %llu of them not folded", (unsigned long long)count, (unsigned long long)kept);
}

/* Keys that are not adjacent have the values that they have among adjacent ones. */
Test(eval, keys_of_columns)
{
    static const struct {
        const char *text;
        uint32_t symbol, count; /* that it reads */
    } rows[] = {
        {"score + 0.1 * (kv - q)", 0, 0},
        {"score * (kv % 7)", 0, 0},
        {"score + near[kv] * far[kv / 3, q % 5]", 0, 2},
        {"select(kv > q, score, near[3 * kv - q])", 0, 1},
        {"score + whole[q - kv + 60] / 2", 2, 1},
        {"kv < 9 ? 0.5 * kv : score", 0, 0},
    };
    static float near[40], far[20 * 5];
    static int32_t whole[90];
    static const attune_symbol symbols[] = {{"near", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"far", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
                                            {"whole", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
    const attune_array arrays[] = {
        {.data = near, .dtype = ATTUNE_F32, .rank = 1, .size = {40}, .stride = {1}},
        {.data = far, .dtype = ATTUNE_F32, .rank = 2, .size = {20, 5}, .stride = {5, 1}},
        {.data = whole, .dtype = ATTUNE_I32, .rank = 1, .size = {90}, .stride = {1}},
    };
    uint64_t state = test_seed();
    for (int i = 0; i < 40; i++)
        near[i] = (float)i / 7;
    for (int i = 0; i < 100; i++)
        far[i] = (float)(i * 13 % 29) - 8;
    for (int i = 0; i < 90; i++)
        whole[i] = i * 7 % 31;
    for (size_t t = 0; t < sizeof rows / sizeof rows[0]; t++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, rows[t].text, symbols + rows[t].symbol, rows[t].count);
        const attune__bindings bindings = {arrays + rows[t].symbol, NULL};
        void *scratch = aligned_alloc(64, (attune__expr_scratch_size(expr, COLUMNS) + 63) / 64 * 64);
        for (int i = 0; i < 500; i++) {
            attune__row row = {.q = (int32_t)random_expr_between(&state, 0, 50), .q_len = 50, .kv_len = COLUMNS};
            float all[COLUMNS], some[COLUMNS];
            double all_f64[COLUMNS], some_f64[COLUMNS];
            int32_t keys[COLUMNS];
            const size_t count = (size_t)random_expr_between(&state, 1, COLUMNS);
            for (int c = 0; c < COLUMNS; c++)
                all_f64[c] = (double)(all[c] = (float)(c * 31 % 17));
            for (size_t c = 0; c < count; c++) {
                keys[c] = (int32_t)random_expr_between(&state, 0, COLUMNS - 1);
                some_f64[c] = (double)(some[c] = all[keys[c]]);
            }
            attune__expr_score_row_f32(NULL, expr, &bindings, &row, 0, COLUMNS, scratch, all);
            attune__expr_score_row_f64(expr, &bindings, &row, 0, COLUMNS, scratch, all_f64);
            row.keys = keys;
            attune__expr_score_row_f32(NULL, expr, &bindings, &row, 0, count, scratch, some);
            attune__expr_score_row_f64(expr, &bindings, &row, 0, count, scratch, some_f64);
            for (size_t c = 0; c < count; c++) {
                cr_assert(some[c] == all[keys[c]], "%s: q %d, column %zu, key %d: %g, %g", rows[t].text, row.q, c,
                          keys[c], (double)some[c], (double)all[keys[c]]);
                cr_assert(some_f64[c] == all_f64[keys[c]], "%s: q %d, column %zu, key %d: %.17g, %.17g", rows[t].text,
                          row.q, c, keys[c], some_f64[c], all_f64[keys[c]]);
            }
        }
        free(scratch);
        attune__expr_release(expr);
    }
}

/* Smooth expressions: double differs from float by rounding alone. */
Test(eval, double_is_near_float)
{
    static const char *const texts[] = {
        "20 * tanh(score / 20)",  "score + 0.1 * (kv - q)",
        "score * sigmoid(score)", "exp(score / 10) + log(2 + kv)",
        "score % 3.5 + cos(q)",   "max(score, 0.1) / (1 + h)",
        "pow(2, score / 8)",      "select(kv > 3, score, rsqrt(1 + q))",
    };
    uint64_t state = test_seed();
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, texts[t], NULL, 0);
        void *scratch = aligned_alloc(64, (attune__expr_scratch_size(expr, COLUMNS) + 63) / 64 * 64);
        for (int i = 0; i < 2000; i++) {
            attune_point p = random_point(&state);
            attune__row row = {p.b, p.h, p.q % 300, p.h_kv, p.q_len, p.kv_len, 0, NULL};
            float f[COLUMNS];
            double d[COLUMNS];
            for (int c = 0; c < COLUMNS; c++)
                d[c] = f[c] = (float)random_expr_between(&state, -3000, 3000) / 100.3f;
            attune__expr_score_row_f32(NULL, expr, &(attune__bindings){NULL, NULL}, &row, p.kv % 300, COLUMNS, scratch,
                                       f);
            attune__expr_score_row_f64(expr, &(attune__bindings){NULL, NULL}, &row, p.kv % 300, COLUMNS, scratch, d);
            for (int c = 0; c < COLUMNS; c++) {
                double error = fabs((double)f[c] - d[c]);
                /* % jumps by its divisor where the quotient is nearly whole */
                cr_assert(error <= 1e-4 * (1 + fabs(d[c])) || (t == 4 && fabs(error - 3.5) < 1e-4), "%s: %.9g, %.17g",
                          texts[t], (double)f[c], d[c]);
            }
        }
        free(scratch);
        attune__expr_release(expr);
    }
}

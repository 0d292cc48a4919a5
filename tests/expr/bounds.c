/* SPDX-License-Identifier: MIT */
/* Bounds: sound at random points of random boxes, tight where masks need it, fast. */
#include "expr/common.h"

#include <stdlib.h>

static attune__interval random_interval(uint64_t *state, int32_t lo, int32_t hi)
{
    int32_t a = (int32_t)random_expr_between(state, lo, hi);
    int32_t width = random_expr_next(state) % 3 == 0 ? 0 : (int32_t)random_expr_between(state, 0, 40);
    return (attune__interval){.lo = a, .hi = a > hi - width ? hi : a + width};
}

static attune__box random_box(uint64_t *state)
{
    attune__box box = {0};
    box.var[ATTUNE__VAR_B] = random_interval(state, 0, 6);
    box.var[ATTUNE__VAR_H] = random_interval(state, 0, 6);
    box.var[ATTUNE__VAR_Q] = random_interval(state, 0, 240);
    box.var[ATTUNE__VAR_KV] = random_interval(state, 0, 240);
    box.var[ATTUNE__VAR_H_KV] = random_interval(state, 0, 3);
    box.var[ATTUNE__VAR_Q_LEN] = random_interval(state, 1, 240);
    box.var[ATTUNE__VAR_KV_LEN] = random_interval(state, 1, 240);
    if (random_expr_next(state) % 16 == 0)
        box.var[ATTUNE__VAR_Q] = (attune__interval){.lo = 0, .hi = INT32_MAX};
    float a = (float)random_expr_between(state, -3000, 3000) / 100.0f;
    float width = random_expr_next(state) % 3 == 0 ? 0 : (float)random_expr_between(state, 0, 400) / 100.0f;
    box.var[ATTUNE__VAR_SCORE] = (attune__interval){.flo = a, .fhi = a + width};
    if (random_expr_next(state) % 16 == 0)
        box.var[ATTUNE__VAR_SCORE] = (attune__interval){.flo = -INFINITY, .fhi = INFINITY, .may_nan = true};
    return box;
}

static int32_t pick(uint64_t *state, attune__interval range)
{
    switch (random_expr_next(state) % 4) {
    case 0:
        return range.lo;
    case 1:
        return range.hi;
    default:
        return (int32_t)random_expr_between(state, range.lo, range.hi);
    }
}

static attune_point point_in(uint64_t *state, const attune__box *box)
{
    attune_point p = {
        pick(state, box->var[0]), pick(state, box->var[1]), pick(state, box->var[2]), pick(state, box->var[3]),
        pick(state, box->var[4]), pick(state, box->var[5]), pick(state, box->var[6]), 0};
    attune__interval score = box->var[ATTUNE__VAR_SCORE];
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e30f};
    if (score.may_nan)
        p.score = odd[random_expr_next(state) % 6];
    else
        p.score = random_expr_next(state) % 3 == 0   ? score.flo
                  : random_expr_next(state) % 2 == 0 ? score.fhi
                                                     : score.flo + (score.fhi - score.flo) * 0.5f;
    return p;
}

static bool holds(attune__type type, attune__interval bounds, attune__value value)
{
    if (type != ATTUNE__FLOAT)
        return bounds.lo <= value.i && value.i <= bounds.hi;
    if (value.f != value.f)
        return bounds.may_nan;
    return bounds.flo <= value.f && value.f <= bounds.fhi;
}

Test(bounds, contain_every_value)
{
    static random_expr e;
    static bound x;
    static attune__interval scratch[ATTUNE_EXPR_MAX_NODES];
    uint64_t count = scaled(40000), seed = test_seed() + 3, boxes = 0, points = 0, decided = 0, masks = 0;
    for (uint64_t i = 0; i < count; i++) {
        attune_expr_kind kind = i % 3 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE;
        bind_random(&x, &e, seed + i, kind, 1 + (uint32_t)(i % 20));
        attune__ranges *ranges;
        cr_assert(attune__ranges_create(&attune__default_allocator, x.expr, &x.bindings, &ranges) == ATTUNE_OK);
        attune__type type = (attune__type)attune__expr_root(x.expr)->type;
        uint64_t state = seed ^ i;
        for (int b = 0; b < 4; b++) {
            attune__box box = random_box(&state);
            attune__interval bounds = attune__expr_bounds(x.expr, &x.bindings, ranges, &box, scratch);
            attune__interval blind = attune__expr_bounds(x.expr, NULL, NULL, &box, scratch);
            masks += kind == ATTUNE_EXPR_MASK;
            decided += kind == ATTUNE_EXPR_MASK && bounds.lo == bounds.hi;
            boxes++;
            for (int s = 0; s < 12; s++) {
                attune_point p = point_in(&state, &box);
                attune__value value = attune__expr_point(x.expr, &x.bindings, &p);
                bool inside = holds(type, bounds, value) && holds(type, blind, value);
                cr_assert(inside, "%s\nvalue %d %.9g, bounds %d %d %.9g %.9g %d at q %d, kv %d, score %g", e.text,
                          value.i, (double)value.f, bounds.lo, bounds.hi, (double)bounds.flo, (double)bounds.fhi,
                          bounds.may_nan, p.q, p.kv, (double)p.score);
                points++;
            }
        }
        attune__ranges_destroy(ranges);
        attune__expr_release(x.expr);
    }
    cr_log_info("%llu expressions, %llu boxes, %llu points; %.0f%% of the masks' boxes decided",
                (unsigned long long)count, (unsigned long long)boxes, (unsigned long long)points,
                100.0 * (double)decided / (double)masks);
}

/* A mask pruned in nested boxes, each by the bounds of the one around it, has the bounds of the whole mask,
 * and its values at points of the box. */
Test(bounds, of_what_is_open)
{
    static random_expr e;
    static bound x;
    static attune__interval whole[ATTUNE_EXPR_MAX_NODES], scratch[ATTUNE_EXPR_MAX_NODES];
    static uint16_t nodes[2][ATTUNE_EXPR_MAX_NODES];
    static _Alignas(64) unsigned char fixture[1 << 20];
    uint64_t count = scaled(20000), seed = test_seed() + 5, pruned = 0, left = 0, rows = 0;
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 40));
        attune__ranges *ranges;
        cr_assert(attune__ranges_create(&attune__default_allocator, x.expr, &x.bindings, &ranges) == ATTUNE_OK);
        cr_assert(attune__expr_scratch_size(x.expr, 24) <= sizeof fixture);
        uint64_t state = seed ^ i;
        attune__box box = random_box(&state);
        box.var[ATTUNE__VAR_SCORE] = (attune__interval){0};
        for (int v = 0; v < ATTUNE__VAR_SCORE; v++)
            if (v != ATTUNE__VAR_Q && v != ATTUNE__VAR_KV)
                box.var[v].hi = box.var[v].lo;
        for (uint32_t n = 0; n < x.expr->node_count; n++)
            nodes[0][n] = (uint16_t)n;
        attune__open_nodes open = {nodes[0], x.expr->node_count};
        for (int depth = 0; depth < 6; depth++) {
            uint64_t looked = 0;
            const attune__interval got =
                attune__expr_open_bounds(x.expr, &open, &x.bindings, ranges, &box, scratch, &looked);
            const attune__interval wanted = attune__expr_bounds(x.expr, &x.bindings, ranges, &box, whole);
            cr_assert(got.lo == wanted.lo && got.hi == wanted.hi, "%s", e.text);
            if (got.lo == got.hi)
                break;
            uint16_t *const to = nodes[!(depth % 2)];
            const attune__open_nodes fewer = {to, attune__expr_prune(x.expr, &open, scratch, to)};
            pruned += open.count - fewer.count;
            left += fewer.count;
            open = fewer;
            const attune__interval *q = &box.var[ATTUNE__VAR_Q], *kv = &box.var[ATTUNE__VAR_KV];
            attune_point p = point_in(&state, &box);
            const int32_t columns = kv->hi - p.kv < 23 ? kv->hi - p.kv + 1 : 24;
            const attune__row row = {p.b, p.h, p.q, p.h_kv, p.q_len, p.kv_len, 0, NULL};
            uint8_t allowed[24];
            attune__expr_open_begin(x.expr, scratch, fixture);
            attune__expr_open_row(x.expr, &open, &x.bindings, &row, p.kv, (size_t)columns, fixture, allowed);
            for (int32_t c = 0; c < columns; c++, p.kv++, rows++)
                cr_assert(allowed[c] == attune__expr_point(x.expr, &x.bindings, &p).i, "%s\nq %d, kv %d", e.text, p.q,
                          p.kv);
            const int32_t q_half = q->lo + (q->hi - q->lo) / 2, kv_half = kv->lo + (kv->hi - kv->lo) / 2;
            if (depth % 2)
                box.var[ATTUNE__VAR_Q].hi = q_half;
            else
                box.var[ATTUNE__VAR_KV].lo = kv_half;
        }
        attune__ranges_destroy(ranges);
        attune__expr_release(x.expr);
    }
    cr_log_info("%llu nodes pruned, %llu left; %llu elements", (unsigned long long)pruned, (unsigned long long)left,
                (unsigned long long)rows);
    cr_assert(pruned > left / 4 && rows > count);
}

/* The range of a capture is exact for one dimension and a few combinations of the others. */
Test(bounds, ranges_are_exact)
{
    enum { ROWS = 5, LENGTH = 1000 };
    static int32_t data[ROWS * LENGTH];
    uint64_t state = test_seed() + 4, count = scaled(40000);
    for (int i = 0; i < ROWS * LENGTH; i++)
        data[i] = (int32_t)random_expr_between(&state, -1000000, 1000000);
    attune_symbol symbol = {"a", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2};
    attune_host_capture capture = {"a", {data, ATTUNE_I32, 2, {ROWS, LENGTH}, {0}}};
    attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, "a[b, kv]", &symbol, 1);
    attune_array array;
    attune__value value;
    attune__bindings bindings = {&array, &value};
    attune__interval scratch[16];
    attune__ranges *ranges;
    cr_assert(attune__bindings_resolve(expr, &capture, 1, NULL, 0, &array, &value) == ATTUNE_OK);
    cr_assert(attune__ranges_create(&attune__default_allocator, expr, &bindings, &ranges) == ATTUNE_OK);
    for (uint64_t i = 0; i < count; i++) {
        attune__box box = {0};
        int32_t b0 = (int32_t)random_expr_between(&state, 0, ROWS), b1 = (int32_t)random_expr_between(&state, b0, ROWS);
        int32_t k0 = (int32_t)random_expr_between(&state, 0, LENGTH + 10);
        int32_t k1 = (int32_t)random_expr_between(&state, k0, LENGTH + 10);
        box.var[ATTUNE__VAR_B] = (attune__interval){.lo = b0, .hi = b1};
        box.var[ATTUNE__VAR_KV] = (attune__interval){.lo = k0, .hi = k1};
        attune__interval found = attune__expr_bounds(expr, &bindings, ranges, &box, scratch);
        int32_t lo = INT32_MAX, hi = INT32_MIN;
        for (int32_t b = b0; b <= b1; b++)
            for (int32_t k = k0; k <= k1; k++) {
                int32_t v = b < ROWS && k < LENGTH ? data[b * LENGTH + k] : 0;
                lo = v < lo ? v : lo;
                hi = v > hi ? v : hi;
            }
        cr_assert(found.flo == (float)lo && found.fhi == (float)hi);
    }
    attune__ranges_destroy(ranges);
    attune__expr_release(expr);
}

/* Bounds that decide masks. */
Test(bounds, decide_masks)
{
    static const struct {
        const char *text;
        int32_t q0, q1, kv0, kv1;
        int truth; /* 0, 1, or 2 for undecided */
    } cases[] = {
        {"causal", 128, 255, 0, 127, 1},
        {"causal", 0, 127, 128, 255, 0},
        {"causal", 0, 127, 0, 127, 2},
        {"window(64)", 256, 383, 0, 127, 0},
        {"window(512)", 256, 383, 0, 127, 1},
        {"local(10)", 0, 127, 256, 383, 0},
        {"kv % 64 < 32", 0, 0, 64, 95, 1},
        {"kv % 64 < 32", 0, 0, 96, 127, 0},
        {"kv / 16 == q / 16", 32, 47, 32, 47, 1},
        {"kv / 16 == q / 16", 32, 47, 48, 63, 0},
        {"prefix(128)", 0, 127, 0, 127, 1},
        {"kv < q_len", 0, 3, 0, 99, 1},
        {"kv % q_len < 50", 0, 0, 100, 149, 1},
        {"q * 2 >= kv", 100, 120, 0, 127, 1},
        {"causal && !causal", 0, 9, 0, 9, 0},
        {"sqrt(q) >= 4 && exp(kv) > 2", 16, 99, 3, 9, 1},
        {"kv - 3.5 < 0", 0, 0, 0, 3, 1},
        {"block_diffusion(64, 16)", 0, 15, 16, 31, 0},
        {"block_diffusion(64, 16)", 0, 15, 0, 15, 1},
        {"dilated(100, 1)", 0, 50, 0, 50, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, cases[i].text, NULL, 0);
        attune__interval scratch[64];
        attune__box box = {0};
        box.var[ATTUNE__VAR_Q] = (attune__interval){.lo = cases[i].q0, .hi = cases[i].q1};
        box.var[ATTUNE__VAR_KV] = (attune__interval){.lo = cases[i].kv0, .hi = cases[i].kv1};
        box.var[ATTUNE__VAR_Q_LEN] = (attune__interval){.lo = 100, .hi = 100};
        attune__interval found = attune__expr_bounds(expr, NULL, NULL, &box, scratch);
        int truth = found.lo == found.hi ? found.lo : 2;
        cr_assert(truth == cases[i].truth, "%s over q %d..%d, kv %d..%d: %d", cases[i].text, cases[i].q0, cases[i].q1,
                  cases[i].kv0, cases[i].kv1, truth);
        attune__expr_release(expr);
    }
}

/* ---------------------------------------------------------------------------------------------------- one operator */

/* How near the bounds come to the values: to all of them, to a library function's, to those of one place; or only the
 * values must be inside. */
typedef enum nearness { EXACT, ROUNDED, OF_A_PLACE, OUTSIDE } nearness;

/* A range of entries is an interval: it has all between its ends, zero included. */
static const float reals[] = {-INFINITY, -3, -1, -0.5f, 0, 0.5f, 2, INFINITY};
static const float with_nan[] = {-INFINITY, -3, -1, -0.5f, 0, 0.5f, 2, INFINITY, NAN};
static const float bounded[] = {-3e38f, -3, -1, -0.5f, 0, 0.5f, 2, 3e38f};
static const float positive[] = {0.25f, 0.5f, 1, 2, 6};
static const int32_t wholes[] = {-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5};
static const int32_t extremes[] = {INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX - 1, INT32_MAX};
static const uint8_t truths[] = {0, 1};

typedef struct table {
    attune__type type;
    int count; /* but for a NaN after them, which is in every range */
    bool nan;
    attune__value at[16][16];
} table;

static void take(attune__interval *all, attune__type type, attune__value v)
{
    if (type != ATTUNE__FLOAT) {
        all->lo = v.i < all->lo ? v.i : all->lo;
        all->hi = v.i > all->hi ? v.i : all->hi;
    } else if (v.f != v.f) {
        all->may_nan = true;
    } else {
        all->flo = v.f < all->flo ? v.f : all->flo;
        all->fhi = v.f > all->fhi ? v.f : all->fhi;
    }
}

static attune__interval values_in(const table *t, const int box[4])
{
    attune__interval all = t->type == ATTUNE__FLOAT ? (attune__interval){.flo = INFINITY, .fhi = -INFINITY}
                                                    : (attune__interval){.lo = INT32_MAX, .hi = INT32_MIN};
    for (int i = box[0]; i <= box[1] + t->nan; i++)
        for (int j = box[2]; j <= box[3] + t->nan; j++)
            take(&all, t->type, t->at[i > box[1] ? t->count : i][j > box[3] ? t->count : j]);
    return all;
}

static bool near_to(float a, float b)
{
    return a == b || fabsf(a - b) <= 1e-5f * fabsf(b) + 1e-40f || (fabsf(a) > 1e38f && fabsf(b) > 1e38f);
}

/* A corner that is NaN may have a limit, which the bounds may include. */
static bool has_odd_corner(const table *t, const int box[4])
{
    bool odd = false;
    for (int c = 0; c < 4; c++) {
        const float v = t->at[box[c / 2]][box[2 + c % 2]].f;
        odd |= t->type == ATTUNE__FLOAT && v != v;
    }
    return odd;
}

static void check_operator(attune_expr_kind kind, const char *text, attune_dtype dtype, const void *data, int count,
                           nearness near)
{
    const attune_symbol symbols[] = {{"a", ATTUNE_SYMBOL_CAPTURE, dtype, 1}, {"c", ATTUNE_SYMBOL_CAPTURE, dtype, 1}};
    const attune_host_capture captures[] = {{"a", {data, dtype, 1, {count}, {0}}},
                                            {"c", {data, dtype, 1, {count}, {0}}}};
    attune_expr *expr = parse_with(kind, text, symbols, 2);
    attune_array arrays[2];
    attune__value none[2];
    const attune__bindings bindings = {arrays, none};
    attune__ranges *ranges;
    attune__interval scratch[32];
    static table t;
    cr_assert(attune__bindings_resolve(expr, captures, 2, NULL, 0, arrays, none) == ATTUNE_OK);
    cr_assert(attune__ranges_create(&attune__default_allocator, expr, &bindings, &ranges) == ATTUNE_OK);
    t.type = (attune__type)attune__expr_root(expr)->type;
    t.nan = data == with_nan;
    t.count = count - t.nan;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            t.at[i][j] = attune__expr_point(expr, &bindings, &(attune_point){.q = i, .kv = j});
    const bool two = strstr(text, "kv") != NULL;
    for (int n = 0; n < t.count * t.count * t.count * t.count; n++) {
        const int box[4] = {n % t.count, n / t.count % t.count, n / t.count / t.count % t.count,
                            n / t.count / t.count / t.count};
        if (box[0] > box[1] || box[2] > box[3] || (!two && box[3]))
            continue;
        attune__box over = {0};
        over.var[ATTUNE__VAR_Q] = (attune__interval){.lo = box[0], .hi = box[1]};
        over.var[ATTUNE__VAR_KV] = (attune__interval){.lo = box[2], .hi = box[3]};
        const attune__interval got = attune__expr_bounds(expr, &bindings, ranges, &over, scratch);
        const attune__interval wanted = values_in(&t, box);
        bool sound = got.lo <= wanted.lo && got.hi >= wanted.hi, tight = got.lo == wanted.lo && got.hi == wanted.hi;
        if (t.type == ATTUNE__FLOAT) {
            const bool empty = wanted.flo > wanted.fhi;
            sound = (got.may_nan || !wanted.may_nan) && (empty || (got.flo <= wanted.flo && got.fhi >= wanted.fhi));
            tight = near == EXACT ? got.flo == wanted.flo && got.fhi == wanted.fhi
                                  : near_to(got.flo, wanted.flo) && near_to(got.fhi, wanted.fhi);
            tight = (tight || empty || has_odd_corner(&t, box)) && got.may_nan == wanted.may_nan;
        }
        tight |= near == OUTSIDE || (near == OF_A_PLACE && (box[0] < box[1] || box[2] < box[3]));
        cr_assert(sound && tight, "%s over %d..%d, %d..%d: %d %d %.9g %.9g %d, the values are in %d %d %.9g %.9g %d",
                  text, box[0], box[1], box[2], box[3], got.lo, got.hi, (double)got.flo, (double)got.fhi, got.may_nan,
                  wanted.lo, wanted.hi, (double)wanted.flo, (double)wanted.fhi, wanted.may_nan);
    }
    attune__ranges_destroy(ranges);
    attune__expr_release(expr);
}

#define CHECK(kind, text, dtype, list, near)                                                                           \
    check_operator(ATTUNE_EXPR_##kind, text, dtype, list, (int)(sizeof(list) / sizeof *(list)), near)

Test(bounds, of_each_operator)
{
    static const struct {
        const char *text;
        nearness near, near_of_positive;
    } real[] = {
        {"a[q] + c[kv]", EXACT, EXACT},
        {"a[q] - c[kv]", EXACT, EXACT},
        {"a[q] * c[kv]", EXACT, EXACT},
        {"min(a[q], c[kv])", EXACT, EXACT},
        {"max(a[q], c[kv])", EXACT, EXACT},
        {"-a[q]", EXACT, EXACT},
        {"abs(a[q])", EXACT, EXACT},
        {"floor(a[q])", EXACT, EXACT},
        {"ceil(a[q])", EXACT, EXACT},
        {"sqrt(a[q])", EXACT, EXACT},
        {"exp(a[q])", ROUNDED, ROUNDED},
        {"exp2(a[q])", ROUNDED, ROUNDED},
        {"log(a[q])", ROUNDED, ROUNDED},
        {"log2(a[q])", ROUNDED, ROUNDED},
        {"tanh(a[q])", ROUNDED, ROUNDED},
        {"sigmoid(a[q])", ROUNDED, ROUNDED},
        {"rsqrt(a[q])", OUTSIDE, EXACT},
        {"a[q] / c[kv]", OUTSIDE, EXACT},
        {"pow(a[q], c[kv])", OUTSIDE, ROUNDED},
        {"sin(a[q])", OUTSIDE, OF_A_PLACE},
        {"cos(a[q])", OUTSIDE, OF_A_PLACE},
        {"a[q] % c[kv]", OUTSIDE, OF_A_PLACE},
    };
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        CHECK(SCORE, real[i].text, ATTUNE_F32, reals, real[i].near);
        CHECK(SCORE, real[i].text, ATTUNE_F32, with_nan, real[i].near);
        CHECK(SCORE, real[i].text, ATTUNE_F32, bounded, real[i].near);
        CHECK(SCORE, real[i].text, ATTUNE_F32, positive, real[i].near_of_positive);
    }
    static const char *const whole[] = {"a[q] + c[kv]", "a[q] - c[kv]",     "a[q] * c[kv]",
                                        "a[q] / c[kv]", "min(a[q], c[kv])", "max(a[q], c[kv])",
                                        "-a[q]",        "abs(a[q])",        "a[q] % c[kv]"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        CHECK(SCORE, whole[i], ATTUNE_I32, wholes, strchr(whole[i], '%') ? OF_A_PLACE : EXACT);
        CHECK(SCORE, whole[i], ATTUNE_I32, extremes, OUTSIDE);
    }
    static const char *const compared[] = {"a[q] < c[kv]",  "a[q] <= c[kv]", "a[q] > c[kv]",
                                           "a[q] >= c[kv]", "a[q] == c[kv]", "a[q] != c[kv]"};
    for (size_t i = 0; i < sizeof compared / sizeof *compared; i++) {
        CHECK(MASK, compared[i], ATTUNE_F32, reals, EXACT);
        CHECK(MASK, compared[i], ATTUNE_F32, with_nan, EXACT);
        CHECK(MASK, compared[i], ATTUNE_I32, extremes, EXACT);
    }
    static const char *const logic[] = {"a[q] && c[kv]", "a[q] || c[kv]", "!a[q]", "a[q] == c[kv]", "a[q] != c[kv]"};
    for (size_t i = 0; i < sizeof logic / sizeof *logic; i++)
        CHECK(MASK, logic[i], ATTUNE_BOOL, truths, EXACT);
    /* Of a choice, where the condition is decided and where it is not. */
    CHECK(SCORE, "a[q] > 0 ? a[q] : c[kv]", ATTUNE_F32, bounded, OUTSIDE);
    CHECK(SCORE, "q > 3 ? c[kv] : c[kv] + 1.0", ATTUNE_F32, positive, EXACT);
    CHECK(MASK, "q > 3 ? c[kv] > 0 : c[kv] > 2", ATTUNE_I32, wholes, EXACT);
}

/* SPDX-License-Identifier: MIT */
/* The oracle against sums done by hand, and the error rule against errors that it must find. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/oracle/reference.h"

Test(reference, a_problem_done_by_hand)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    failure why;
    attention a = {.scale = 0.5};
    const int64_t size[4] = {1, 1, 2, 1};
    cr_assert(array_create(&a.q, ATTUNE_F64, 4, size, &why) && array_create(&a.k, ATTUNE_F64, 4, size, &why) &&
              array_create(&a.v, ATTUNE_F64, 4, size, &why));
    const double q[2] = {1, 2}, k[2] = {3, -1}, v[2] = {10, 20};
    memcpy(a.q.data, q, sizeof q);
    memcpy(a.k.data, k, sizeof k);
    memcpy(a.v.data, v, sizeof v);
    double o[2], lse[2], row_max[2], moved[2];
    reference_result result = {o, lse, row_max, moved};
    cr_assert(reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result, &why), "%s", why.message);
    double s0 = 1.5, s1 = -0.5, sum = exp(s0) + exp(s1);
    cr_assert_float_eq(o[0], (10 * exp(s0) + 20 * exp(s1)) / sum, 1e-14);
    cr_assert_float_eq(lse[0], log(sum), 1e-14);
    cr_assert_eq(row_max[0], 1.5);
    const double p0 = exp(s0) / sum, p1 = exp(s1) / sum, rounding = reference_epsilon(ATTUNE_F32);
    cr_assert_float_eq(moved[0], rounding * 10 * (p0 * s0 * p1 + p1 * -s1 * p0), 1e-20);

    /* Causal: the first row sees the first key alone; a score expression comes before the mask. */
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &a.mask), ATTUNE_OK);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score * 2 + kv", NULL, 0, &a.score), ATTUNE_OK);
    cr_assert(reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result, &why), "%s", why.message);
    cr_assert_eq(o[0], 10);
    cr_assert_eq(lse[0], 3);
    cr_assert_eq(moved[0], 0);
    double t0 = 6, t1 = -1;
    cr_assert_float_eq(o[1], (10 * exp(t0) + 20 * exp(t1)) / (exp(t0) + exp(t1)), 1e-14);
    const reference_row second = {0, 0, 1};
    double one_o, one_lse, one_max;
    reference_result one = {&one_o, &one_lse, &one_max, NULL};
    cr_assert(reference_compute(&a, REFERENCE_ORACLE, &second, 1, &one, &why));
    cr_assert(one_o == o[1] && one_lse == lse[1] && one_max == row_max[1]);

    /* An empty row. */
    attune_expr_destroy(a.mask);
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q < kv", NULL, 0, &a.mask), ATTUNE_OK);
    ((double *)a.v.data)[1] = NAN;
    for (int precision = REFERENCE_ORACLE; precision <= REFERENCE_NAIVE; precision++) {
        cr_assert(reference_compute(&a, (reference_precision)precision, NULL, 0, &result, &why));
        cr_assert(isnan(o[0]) && o[1] == 0 && lse[1] == -INFINITY && row_max[1] == -INFINITY);
    }
    attune_expr_destroy(a.mask);
    attune_expr_destroy(a.score);
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
    attune_instance_destroy(instance);
}

/* In 16 bits, what the largest weight's rounding moves o by; the mean's bound has half of it, and what few rows
 * scatter. */
Test(reference, the_largest_weight_may_be_rounded)
{
    failure why;
    attention a = {.scale = 1};
    const int64_t one[4] = {1, 1, 1, 1}, two[4] = {1, 1, 2, 1};
    cr_assert(array_create(&a.q, ATTUNE_BF16, 4, one, &why) && array_create(&a.k, ATTUNE_BF16, 4, two, &why) &&
              array_create(&a.v, ATTUNE_BF16, 4, two, &why));
    array_set(&a.q, 0, 1);
    for (int64_t i = 0; i < 2; i++) {
        array_set(&a.k, i, (double)(1 - i));
        array_set(&a.v, i, (double)(4 * i));
    }
    double o[2], lse[2], row_max[2], moved;
    const reference_result exact = {o, lse, row_max, &moved}, plain = {o + 1, lse + 1, row_max + 1, NULL};
    cr_assert(reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &exact, &why), "%s", why.message);
    cr_assert(reference_compute(&a, REFERENCE_NAIVE, NULL, 0, &plain, &why), "%s", why.message);
    const double largest = 1 / (1 + exp(-1));
    cr_assert_float_eq(moved, 0x1p-8 * largest * o[0], 1e-15);

    reference_error rule, with;
    const double sum = moved * (0.5 + 3 / sqrt(12));
    reference_compare(ATTUNE_BF16, 1, o, o, o + 1, &rule);
    reference_compare_o(ATTUNE_BF16, ATTUNE_BF16, 1, 1, o, &exact, &plain, &with);
    const double own = 1.1 * fabs(o[1] - o[0]);
    cr_assert_float_eq(with.bound_mean, rule.bound_mean - own + hypot(own, sum), 1e-15);
    cr_assert_eq(with.bound_max, rule.bound_max);
    /* An f32 result adds no rounding of its own: the row is one draw. */
    reference_error one_draw;
    reference_compare_o(ATTUNE_BF16, ATTUNE_F32, 1, 1, o, &exact, &plain, &one_draw);
    cr_assert_float_eq(one_draw.bound_mean, with.bound_mean + 3 * sqrt(2.0 / 3) * fabs(o[1] - o[0]), 1e-15);
    const double inside = o[0] + 0.99 * with.bound_mean, outside = o[0] + 1.01 * with.bound_mean;
    reference_compare_o(ATTUNE_BF16, ATTUNE_BF16, 1, 1, &inside, &exact, &plain, &with);
    cr_assert(with.mean > rule.bound_mean && with.mean <= with.bound_mean);
    reference_compare_o(ATTUNE_BF16, ATTUNE_BF16, 1, 1, &outside, &exact, &plain, &with);
    cr_assert(!with.pass);
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
}

/* Weights against an earlier maximum, up to 2^8 below the row's, each rounded by `round` before they are summed; rows
 * from nearly equal weights to nearly one. */
static bool earlier_maximum_passes(uint64_t seed, int64_t rows, attune_dtype round)
{
    enum { ROWS = 96, KEYS = 40, DIM = 16 };
    static double o[2][ROWS * DIM], lse[2][ROWS], row_max[2][ROWS], moved[ROWS * DIM], made[ROWS * DIM];
    failure why;
    random_state r = {seed};
    attention a = {.scale = 1, .o_dtype = ATTUNE_F32};
    const int64_t q_size[4] = {1, 1, rows, DIM}, k_size[4] = {1, 1, KEYS, DIM};
    array weight = {0};
    cr_assert(array_create(&a.q, ATTUNE_F16, 4, q_size, &why) && array_create(&a.k, ATTUNE_F16, 4, k_size, &why) &&
              array_create(&a.v, ATTUNE_F16, 4, k_size, &why) && array_create(&weight, round, 1, &k_size[2], &why));
    array_fill_normal(&a.k, &r, 1);
    array_fill_normal(&a.v, &r, 1);
    for (int64_t i = 0; i < rows; i++) {
        const double heat = exp2(5 * random_uniform(&r) - 4);
        for (int64_t k = 0; k < DIM; k++)
            array_set(&a.q, i * DIM + k, heat * random_normal(&r));
    }
    const reference_result exact = {o[0], lse[0], row_max[0], moved}, plain = {o[1], lse[1], row_max[1], NULL};
    cr_assert(reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &exact, &why), "%s", why.message);
    cr_assert(reference_compute(&a, REFERENCE_NAIVE, NULL, 0, &plain, &why), "%s", why.message);
    for (int64_t i = 0; i < rows; i++) {
        const double above = 8 * log(2) * random_uniform(&r);
        double sum = 0, *row = made + i * DIM;
        memset(row, 0, DIM * sizeof *row);
        for (int64_t kv = 0; kv < KEYS; kv++) {
            double score = above - row_max[0][i];
            for (int64_t k = 0; k < DIM; k++)
                score += array_get(&a.q, i * DIM + k) * array_get(&a.k, kv * DIM + k);
            array_set(&weight, kv, exp(score));
            sum += array_get(&weight, kv);
            for (int64_t k = 0; k < DIM; k++)
                row[k] += array_get(&weight, kv) * array_get(&a.v, kv * DIM + k);
        }
        for (int64_t k = 0; k < DIM; k++)
            row[k] /= sum;
    }
    reference_error error;
    reference_compare_o(ATTUNE_F16, ATTUNE_F32, rows, DIM, made, &exact, &plain, &error);
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
    array_free(&weight);
    return error.mean <= error.bound_mean;
}

Test(reference, weights_against_an_earlier_maximum)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cr_expect(earlier_maximum_passes(seed, 96, ATTUNE_F16), "seed %d", (int)seed);
        cr_expect(earlier_maximum_passes(seed, 6, ATTUNE_F16), "few rows, seed %d", (int)seed);
        cr_expect(!earlier_maximum_passes(seed, 96, ATTUNE_BF16), "coarse, seed %d", (int)seed);
    }
}

/* Sets up `count` values with an oracle, a naive result that is off by half a rounding, and a good result. */
enum { COUNT = 1000 };
static double oracle[COUNT], naive[COUNT], got[COUNT];

static void fill(double epsilon)
{
    random_state r = {5};
    for (int i = 0; i < COUNT; i++) {
        oracle[i] = random_normal(&r);
        naive[i] = oracle[i] * (1 + epsilon * (2 * random_uniform(&r) - 1));
        got[i] = oracle[i] * (1 + epsilon * (2 * random_uniform(&r) - 1));
    }
}

Test(reference, the_error_rule_passes_and_fails_where_it_must)
{
    static const struct {
        attune_dtype dtype;
        double epsilon;
    } kinds[] = {{ATTUNE_F16, 0x1p-11}, {ATTUNE_BF16, 0x1p-8}, {ATTUNE_F32, 0x1p-23}, {ATTUNE_F64, 0x1p-52}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        attune_dtype dtype = kinds[i].dtype;
        reference_error error;
        fill(kinds[i].epsilon);
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(error.pass, "%s: %g of %g, %g of %g", attune_dtype_string(dtype), error.max, error.bound_max,
                  error.mean, error.bound_mean);
        /* One bad element, of which the mean says nothing. */
        double keep = got[77];
        got[77] = oracle[77] + 40 * (error.naive_max + 0x1p-40);
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(!error.pass && error.worst == 77, "%s", attune_dtype_string(dtype));
        got[77] = keep;
        /* A bias within every element's bound, of which the maximum says nothing. */
        if (dtype == ATTUNE_F16 || dtype == ATTUNE_BF16) {
            fill(kinds[i].epsilon);
            for (int k = 0; k < COUNT; k++)
                got[k] = oracle[k] * (1 + 0.9 * kinds[i].epsilon);
            reference_compare(dtype, COUNT, got, oracle, naive, &error);
            cr_assert(error.max <= error.bound_max && !error.pass, "%s", attune_dtype_string(dtype));
        }
        /* NaN, infinity and masked rows are exactly where they were. */
        fill(kinds[i].epsilon);
        got[3] = NAN;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(!error.pass && error.pattern_errors == 1 && error.worst == 3);
        fill(kinds[i].epsilon);
        oracle[4] = -INFINITY;
        naive[4] = -INFINITY;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(!error.pass && error.pattern_errors == 1);
        got[4] = INFINITY;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(!error.pass);
        got[4] = -INFINITY;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(error.pass);
        oracle[5] = naive[5] = 0;
        got[5] = 1e-30;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(!error.pass && error.pattern_errors == 1 && error.worst == 5);
        got[5] = -0.0;
        reference_compare(dtype, COUNT, got, oracle, naive, &error);
        cr_assert(error.pass);
    }
}

/* One value, and a naive result that is exact by luck: one rounding is allowed, two are not. */
Test(reference, a_lucky_naive_result_asks_for_no_luck)
{
    static const struct {
        attune_dtype dtype;
        double unit; /* between neighbours just above 2 */
    } kinds[] = {{ATTUNE_F16, 0x1p-9}, {ATTUNE_BF16, 0x1p-6}, {ATTUNE_F32, 0x1p-22}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const double exact = 2 + kinds[i].unit / 2;
        for (int units = 0; units <= 8; units += 4) {
            const double value = 2 + units * kinds[i].unit;
            reference_error error;
            reference_compare(kinds[i].dtype, 1, &value, &exact, &exact, &error);
            cr_expect(units ? !error.pass : error.max <= error.bound_max, "%s: %d units: %g of %g",
                      attune_dtype_string(kinds[i].dtype), units, error.max, error.bound_max);
        }
    }
}

/* A gradient whose sum cancels may be off by the roundings of what it sums, and by no more. */
static void may_be_off(attune_dtype dtype, double cancelled, double wanted, double magnitude)
{
    const double zero = 0, inside = 0.99 * wanted, outside = 1.01 * wanted, wrong = 0.02 * magnitude;
    reference_error error;
    cr_assert_float_eq(cancelled, wanted, 1e-12 * wanted, "%s: %.17g, by hand %.17g", attune_dtype_string(dtype),
                       cancelled, wanted);
    reference_compare_gradient(dtype, 1, &inside, &zero, cancelled, &error);
    cr_assert(error.pass && error.bound_max == cancelled);
    reference_compare_gradient(dtype, 1, &outside, &zero, cancelled, &error);
    cr_assert(!error.pass);
    reference_compare_gradient(dtype, 1, &wrong, &zero, cancelled, &error);
    cr_assert(!error.pass, "%s: an error of %g passes", attune_dtype_string(dtype), wrong);
}

Test(reference, what_cancels_follows_what_was_summed)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_F64};
    const attune_symbol symbols[] = {{"t", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                     {"w", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2}};
    const float t[] = {9, 9, 1}, w[2][2] = {{0.25f, 0.5f}, {0.5f, 0.25f}};
    attune_instance *instance;
    failure why;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const attune_dtype dtype = dtypes[i];
        const double u = reference_epsilon(dtype), single = dtype == ATTUNE_F64 ? u : 0x1p-24;
        const int64_t rows[4] = {1, 1, 2, 1}, one[4] = {1, 1, 1, 1};
        attention a = {
            .scale = 0.5,
            .capture_count = 2,
            .captures = {{"t", {.data = t, .dtype = ATTUNE_F32, .rank = 1, .size = {3}, .stride = {1}}},
                         {"w", {.data = w, .dtype = ATTUNE_F32, .rank = 2, .size = {2, 2}, .stride = {2, 1}}}}};
        array d_o = {0};
        cr_assert(array_create(&a.q, dtype, 4, rows, &why) && array_create(&a.k, dtype, 4, one, &why) &&
                  array_create(&a.v, dtype, 4, one, &why) && array_create(&d_o, dtype, 4, rows, &why));
        array_set(&a.q, 0, 2);
        array_set(&a.q, 1, -4);
        array_set(&a.k, 0, 3);
        array_set(&a.v, 0, 4);
        array_set(&d_o, 0, 5);
        array_set(&d_o, 1, 7);
        cr_assert_eq(
            attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score * t[min(h + 2, 2)] + w[b, h]", symbols, 2, &a.score),
            ATTUNE_OK, "%s", attune_last_error());
        /* One key: P is 1, o is v, and dP and delta are the same sum. Scores are 3.25 and -5.75. */
        reference_cancellation c;
        cr_assert(reference_cancelled(instance, &a, &d_o, NULL, 3, &c, &why), "%s", why.message);
        const double least = dtype == ATTUNE_F16 ? 0x1p-25 : 0;
        const double first = 2 * (u * sqrt(3) * 20 + (2 + 3.25) * single * 40) + least;
        const double second = 2 * (u * sqrt(3) * 28 + (2 + 5.75) * single * 56) + least;
        /* Terms of exactly 0 leave nothing but in d_v, of 5 and 7. */
        const double summed = 3 * single * sqrt(2 * (74.0 / 2 + 144.0 / 3));
        may_be_off(dtype, c.d_q, second * 0.5 * 3 + least, 56 * 0.5 * 3);
        may_be_off(dtype, c.d_k, hypot(first * 0.5 * 2, second * 0.5 * 4) + least, 56 * 0.5 * 4);
        may_be_off(dtype, c.d_captures[0], hypot(first * 3, second * 6), 56 * 6);
        may_be_off(dtype, c.d_captures[1], hypot(first, second), 56);
        cr_assert_float_eq(
            c.d_v,
            hypot((2 * (u + (2 + 3.25) * single) + least) * 5, (2 * (u + (2 + 5.75) * single) + least) * 7) + summed +
                least,
            1e-15);
        attune_expr_destroy(a.score);

        /* Without the score's own factor dw is 0 by shift invariance; the second row sees nothing. */
        a.score = NULL;
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, "score + w[b, h]", symbols, 2, &a.score),
                     ATTUNE_OK);
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "q == 0", NULL, 0, &a.mask), ATTUNE_OK);
        cr_assert(reference_cancelled(instance, &a, &d_o, NULL, 2, &c, &why), "%s", why.message);
        may_be_off(dtype, c.d_captures[1], first, 40);
        cr_assert_eq(c.d_captures[0], 0);
        attune_expr_destroy(a.mask);
        attune_expr_destroy(a.score);
        array_free(&a.q);
        array_free(&a.k);
        array_free(&a.v);
        array_free(&d_o);
    }
    attune_instance_destroy(instance);
}

/* dV of one key, whose P is 1, is the sum of d_o over the rows: added one by one in float32 it scatters by more than
 * units of its own rounding, and by no more than its terms let it. */
Test(reference, sums_of_many_rows_scatter)
{
    enum { ROWS = 400000, COLUMNS = 8 };
    const int64_t rows[4] = {1, 1, ROWS, COLUMNS}, one[4] = {1, 1, 1, COLUMNS};
    attention a = {.scale = 1};
    array d_o = {0};
    attune_instance *instance;
    reference_cancellation c;
    reference_error error;
    failure why;
    double exact[COLUMNS] = {0}, single[COLUMNS];
    float sums[COLUMNS] = {0};
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert(array_create(&a.q, ATTUNE_F32, 4, rows, &why) && array_create(&a.k, ATTUNE_F32, 4, one, &why) &&
              array_create(&a.v, ATTUNE_F32, 4, one, &why) && array_create(&d_o, ATTUNE_F32, 4, rows, &why));
    uint64_t state = 1;
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        array_set(&d_o, i, (double)(state >> 40) * 0x1p-23 - 1);
        exact[i % COLUMNS] += array_get(&d_o, i);
        sums[i % COLUMNS] += (float)array_get(&d_o, i);
    }
    for (int i = 0; i < COLUMNS; i++)
        single[i] = (double)sums[i];
    cr_assert(reference_cancelled(instance, &a, &d_o, NULL, 0, &c, &why), "%s", why.message);
    reference_compare_gradient(ATTUNE_F32, COLUMNS, single, exact, 0, &error);
    cr_expect(!error.pass, "%g of %g", error.max, error.bound_max);
    reference_compare_gradient(ATTUNE_F32, COLUMNS, single, exact, c.d_v, &error);
    cr_expect(error.pass && error.bound_max < 16 * error.max, "%g of %g", error.max, error.bound_max);
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
    array_free(&d_o);
    attune_instance_destroy(instance);
}

/* f16 has no number between 0 and 2^-24: dQ of keys and values of 1e-6 is 0 there, and in no other type. */
Test(reference, gradients_below_the_numbers_of_f16)
{
    static const attune_dtype dtypes[] = {ATTUNE_F16, ATTUNE_BF16};
    const int64_t one[4] = {1, 1, 1, 1}, two[4] = {1, 1, 2, 1};
    attune_instance *instance;
    failure why;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    for (int i = 0; i < 2; i++) {
        attention a = {.scale = 1};
        array d_o = {0};
        reference_cancellation c;
        reference_error error;
        /* P is a half but for 1e-12, O is half of V's first element, and dS a quarter of it. */
        const double zero = 0, exact = 0x1p-21 * 0x1p-20, wrong = 0x1p-24;
        cr_assert(array_create(&a.q, dtypes[i], 4, one, &why) && array_create(&a.k, dtypes[i], 4, two, &why) &&
                  array_create(&a.v, dtypes[i], 4, two, &why) && array_create(&d_o, dtypes[i], 4, one, &why));
        array_set(&a.q, 0, 0x1p-20);
        array_set(&a.k, 0, 0x1p-20);
        array_set(&a.v, 0, 0x1p-19);
        array_set(&d_o, 0, 1);
        cr_assert(reference_cancelled(instance, &a, &d_o, NULL, 0, &c, &why), "%s", why.message);
        reference_compare_gradient(dtypes[i], 1, &zero, &exact, c.d_q, &error);
        cr_expect_eq(error.pass, dtypes[i] == ATTUNE_F16, "%g of %g", error.max, error.bound_max);
        reference_compare_gradient(dtypes[i], 1, &wrong, &exact, c.d_q, &error);
        cr_expect_not(error.pass, "%g of %g", error.max, error.bound_max);
        array_free(&a.q);
        array_free(&a.k);
        array_free(&a.v);
        array_free(&d_o);
    }
    attune_instance_destroy(instance);
}

Test(reference, shapes_that_do_not_fit_are_refused)
{
    failure why;
    double o[64], lse[8], row_max[8];
    reference_result result = {o, lse, row_max, NULL};
    const int64_t good[4] = {1, 3, 2, 8}, heads[4] = {1, 2, 2, 8}, dims[4] = {1, 3, 2, 16};
    attention a = {.scale = 1};
    cr_assert(array_create(&a.q, ATTUNE_F32, 4, good, &why) && array_create(&a.k, ATTUNE_F32, 4, heads, &why) &&
              array_create(&a.v, ATTUNE_F32, 4, heads, &why));
    cr_assert(!reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result, &why) && strstr(why.message, "do not divide"));
    array_free(&a.k);
    cr_assert(array_create(&a.k, ATTUNE_F32, 4, dims, &why));
    cr_assert(!reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result, &why) && strstr(why.message, "head_dim 16"));
    array_free(&a.k);
    cr_assert(array_create(&a.k, ATTUNE_F16, 4, good, &why));
    cr_assert(!reference_compute(&a, REFERENCE_ORACLE, NULL, 0, &result, &why) && strstr(why.message, "one dtype"));
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
}

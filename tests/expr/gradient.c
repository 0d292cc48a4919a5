/* SPDX-License-Identifier: MIT */
/* Derivatives: known ones, and random ones against two other ways to compute them: dual numbers, forwards, in float64,
 * and differences of values. */
#include "expr/common.h"

#include <stdio.h>
#include <stdlib.h>

#include "expr/capture.h"
#include "expr/gradient.h"
#include "expr/ops.h"

static attune__gradient *gradient_of(const attune_expr *expr, const char *text)
{
    attune__gradient *gradient;
    attune_status status = attune__gradient_create(expr, &gradient);
    cr_assert(status == ATTUNE_OK, "%s\n%s", text, attune_last_error());
    return gradient;
}

/* d result / d score at a score, without captures. */
static double slope_at(const char *text, double score)
{
    attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, text, NULL, 0);
    attune__gradient *gradient = gradient_of(expr, text);
    void *scratch = aligned_alloc(64, (attune__expr_scratch_size(gradient->expr, 1) + 63) / 64 * 64);
    double d = 1;
    attune__gradient_row_f64(gradient, &(attune__bindings){NULL, NULL}, &(attune__row){.q = 3, .q_len = 8, .kv_len = 8},
                             0, 1, scratch, &score, &d, NULL);
    free(scratch);
    attune__gradient_destroy(gradient);
    attune__expr_release(expr);
    return d;
}

Test(gradient, kinks_are_those_of_pytorch)
{
    static const struct {
        const char *text;
        double score, slope;
    } cases[] = {
        {"abs(score)", 0, 0},
        {"abs(score)", -2, -1},
        {"sqrt(abs(score))", 0, 0},
        {"log(abs(score) + 1.0) * sqrt(abs(score * 2.0))", 0, 0},
        {"max(score, 1.0)", 1, 0.5},
        {"max(1.0, score)", 1, 0.5},
        {"max(score, 1.0)", 2, 1},
        {"max(score, 1.0)", 0, 0},
        {"min(score, 1.0)", 1, 0.5},
        {"min(score, 1.0)", 2, 0},
        {"max(score, score * 2.0)", 0, 1.5},
        {"clamp(score, -1, 1)", -1, 1},
        {"clamp(score, -1, 1)", 1, 1},
        {"clamp(score, -1, 1)", 1.5, 0},
        {"clamp(0.5, score, 1)", 0, 0},
        {"clamp(0.5, score, 1)", 0.5, 0},
        {"clamp(0.5, score, 1)", 0.75, 1},
        {"clamp(0.5, score, 1)", 1.5, 0},
        {"clamp(0.5, 0, score)", 0.25, 1},
        {"clamp(0.5, 0, score)", -0.25, 1},
        {"floor(score) + ceil(score)", 0.5, 0},
        {"score % 3", 7, 1},
        {"7.5 % score", 2, -3},
        {"score > 0 ? score * 2 : -score", 0, -1},
        {"pow(score, 0.0)", 0, 0},
        {"pow(score, 1.0)", 0, 1},
        {"pow(score, 2.0)", 3, 6},
        {"pow(0.0, score)", 2, 0},
        {"score > 0 ? sqrt(score) : 0.0", 0, 0},
        {"score > 0 ? sqrt(score) : 0.0", -1, 0},
        {"score > 0 ? log(score) : score", -4, 1},
        {"score > 0 ? tanh(log(score)) * score : score", -4, 1},
        {"max(sqrt(score), 2.0)", 0, 0},
        {"sqrt(max(score, 4.0))", 1, 0},
        {"score > 1e30 ? 1.0 / (score * 0.0) : score", 1, 1},
        {"4.0", 1, 0},
        {"score == 2 ? 1.0 : 2.0", 2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double slope = slope_at(cases[i].text, cases[i].score);
        cr_assert(slope == cases[i].slope, "%s at %g: %.17g, not %g", cases[i].text, cases[i].score, slope,
                  cases[i].slope);
    }
}

Test(gradient, text_is_simplified)
{
    static const struct {
        const char *text, *derivatives;
    } cases[] = {
        {"50 * tanh(score / 50)", "d score = 1.0 - tanh(score / 50.0) * tanh(score / 50.0)\n"},
        {"score + slopes[h] * (kv - q)", "d score = 1.0\nd slopes[h] = kv - q\n"},
        {"score * tau[h]", "d score = tau[h]\nd tau[h] = score\n"},
        {"score + bias[q - kv + 7, h]", "d score = 1.0\nd bias[q - kv + 7, h] = 1.0\n"},
        {"score > 0 ? sqrt(score) : score", "d score = select(score > 0.0, 0.5 / sqrt(score), 0.0) + "
                                            "select(score > 0.0, 0.0, 1.0)\n"},
        {"b * 1.5", "d score = 0.0\n"},
    };
    const attune_symbol symbols[] = {{"slopes", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                     {"tau", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 1},
                                     {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, symbols, 3);
        char text[512];
        size_t needed;
        cr_assert(attune__gradient_print(expr, text, sizeof text, &needed) == ATTUNE_OK);
        cr_assert(!strcmp(text, cases[i].derivatives), "%s\n%s", cases[i].text, text);
        cr_assert(needed == strlen(text) + 1);
        attune__expr_release(expr);
    }
}

Test(gradient, refusals)
{
    attune_expr *mask = parse_with(ATTUNE_EXPR_MASK, "q >= kv", NULL, 0);
    attune__gradient *gradient;
    cr_assert(attune__gradient_create(mask, &gradient) == ATTUNE_INVALID_ARGUMENT);
    cr_assert(strstr(attune_last_error(), "mask"));
    attune__expr_release(mask);
    /* Each function doubles what its derivative needs: past the cap on nodes. */
    char text[ATTUNE_EXPR_MAX_LENGTH + 1] = "score";
    for (int i = 0; i < 160; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "+pow(score,tanh(%d.))", i);
    attune_expr *wide = parse_with(ATTUNE_EXPR_SCORE, text, NULL, 0);
    cr_assert(attune__gradient_create(wide, &gradient) == ATTUNE_UNSUPPORTED);
    cr_assert(gradient == NULL);
    cr_assert(strstr(attune_last_error(), "1024"), "%s", attune_last_error());
    attune__expr_release(wide);
}

/* --------------------------------------------------------------------------------------------------------- dual
 * numbers
 */

/* The variable of differentiation: score, or one element of a capture. */
typedef struct target {
    const void *capture; /* the array's data; NULL = score */
    int64_t offset;
} target;

typedef struct dual {
    double value, slope;
    int32_t i;
    bool wild; /* a value or a slope on the way was not finite, or so large that rounding is all that is left */
} dual;

static bool is_wild(double x)
{
    return !(fabs(x) <= 1e6);
}

/* Rules as PyTorch states them, on numbers; nothing is shared with the accumulation under test. */
static dual dual_real(attune__op op, dual a, dual b)
{
    double x = a.value, y = b.value, u = a.slope, v = b.slope;
    dual r = {.wild = a.wild || b.wild};
    switch (op) {
    case ATTUNE__OP_ADD:
        r.value = x + y, r.slope = u + v;
        break;
    case ATTUNE__OP_SUB:
        r.value = x - y, r.slope = u - v;
        break;
    case ATTUNE__OP_MUL:
        r.value = x * y, r.slope = u * y + v * x;
        break;
    case ATTUNE__OP_DIV:
        r.value = x / y, r.slope = u / y - v * x / y / y;
        break;
    case ATTUNE__OP_MOD:
        r.value = x - floor(x / y) * y, r.slope = u - v * floor(x / y);
        break;
    case ATTUNE__OP_NEG:
        r.value = -x, r.slope = -u;
        break;
    case ATTUNE__OP_ABS:
        r.value = fabs(x), r.slope = x > 0 ? u : x < 0 ? -u : 0;
        break;
    case ATTUNE__OP_MIN:
        return y < x ? b : x == y ? (dual){x, (u + v) / 2, 0, r.wild} : a;
    case ATTUNE__OP_MAX:
        return x < y ? b : x == y ? (dual){x, (u + v) / 2, 0, r.wild} : a;
    case ATTUNE__OP_EXP:
        r.value = exp(x), r.slope = u * exp(x);
        break;
    case ATTUNE__OP_EXP2:
        r.value = exp2(x), r.slope = u * exp2(x) * log(2);
        break;
    case ATTUNE__OP_LOG:
        r.value = log(x), r.slope = u / x;
        break;
    case ATTUNE__OP_LOG2:
        r.value = log2(x), r.slope = u / x / log(2);
        break;
    case ATTUNE__OP_SQRT:
        r.value = sqrt(x), r.slope = u / 2 / sqrt(x);
        break;
    case ATTUNE__OP_RSQRT:
        r.value = 1 / sqrt(x), r.slope = -u / 2 / (x * sqrt(x));
        break;
    case ATTUNE__OP_TANH:
        r.value = tanh(x), r.slope = u * (1 - tanh(x) * tanh(x));
        break;
    case ATTUNE__OP_SIGMOID:
        r.value = 1 / (1 + exp(-x)), r.slope = u * r.value * (1 - r.value);
        break;
    case ATTUNE__OP_SIN:
        r.value = sin(x), r.slope = u * cos(x);
        break;
    case ATTUNE__OP_COS:
        r.value = cos(x), r.slope = -u * sin(x);
        break;
    case ATTUNE__OP_POW:
        r.value = pow(x, y);
        r.slope = (y == 0 ? 0 : u * y * pow(x, y - 1)) + (v == 0 || (x == 0 && y >= 0) ? 0 : v * pow(x, y) * log(x));
        break;
    case ATTUNE__OP_FLOOR:
        r.value = floor(x);
        break;
    case ATTUNE__OP_CEIL:
        r.value = ceil(x);
        break;
    default:
        cr_assert_fail("operation %d", (int)op);
    }
    r.wild |= is_wild(x) || is_wild(y) || is_wild(r.value) || is_wild(r.slope);
    return r;
}

static dual clamp(dual x, dual lo, dual hi)
{
    dual value = x.value < lo.value ? lo : x;
    value = hi.value < value.value ? hi : value;
    value.slope = x.value < lo.value || hi.value < x.value ? 0 : x.slope;
    if (x.value < lo.value && !(hi.value < lo.value))
        value.slope += lo.slope;
    if (hi.value < x.value || hi.value < lo.value)
        value.slope += hi.slope;
    value.wild = x.wild || lo.wild || hi.wild;
    return value;
}

static dual dual_node(const attune_expr *expr, uint32_t n, const dual *at, const attune__bindings *bindings,
                      const attune_point *p, double score, target by)
{
    const int32_t vars[] = {p->b, p->h, p->q, p->kv, p->h_kv, p->q_len, p->kv_len};
    const attune__node *node = &expr->nodes[n];
    const dual *arg[ATTUNE_MAX_RANK] = {NULL};
    attune__value ints[ATTUNE_MAX_RANK] = {{0}};
    for (uint32_t j = 0; j < node->arg_count; j++) {
        arg[j] = &at[node->arg[j]];
        ints[j].i = arg[j]->i;
    }
    const uint8_t type = node->arg_count ? expr->nodes[node->arg[node->arg_count - 1]].type : node->type;
    switch (node->op) {
    case ATTUNE__OP_CONST:
        return node->type == ATTUNE__FLOAT ? (dual){.value = node->real, .wild = !isfinite(node->value.f)}
                                           : (dual){.i = node->value.i};
    case ATTUNE__OP_VAR:
        return node->value.i == ATTUNE__VAR_SCORE ? (dual){.value = score, .slope = by.capture == NULL}
                                                  : (dual){.i = vars[node->value.i]};
    case ATTUNE__OP_PARAM: {
        attune__value value = bindings->parameters[node->value.i];
        return node->type == ATTUNE__FLOAT ? (dual){.value = (double)value.f} : (dual){.i = value.i};
    }
    case ATTUNE__OP_CAPTURE: {
        const attune_array *array = &bindings->captures[node->value.i];
        const int32_t index[] = {ints[0].i, ints[1].i, ints[2].i, ints[3].i};
        attune__value value = attune__capture_read(array, node->arg_count, index);
        if (node->type != ATTUNE__FLOAT)
            return (dual){.i = value.i};
        int64_t offset = 0;
        bool inside = by.capture == array->data;
        for (uint32_t j = 0; j < node->arg_count && inside; j++) {
            inside = index[j] >= 0 && index[j] < array->size[j];
            offset += index[j] * array->stride[j];
        }
        return (dual){.value = (double)value.f, .slope = inside && offset == by.offset, .wild = !isfinite(value.f)};
    }
    case ATTUNE__OP_SELECT:
        return arg[0]->i ? *arg[1] : *arg[2];
    case ATTUNE__OP_FLOAT:
        return (dual){.value = arg[0]->i};
    case ATTUNE__OP_EQ:
        return (dual){.i = type == ATTUNE__FLOAT ? arg[0]->value == arg[1]->value : ints[0].i == ints[1].i};
    case ATTUNE__OP_NE:
        return (dual){.i = type == ATTUNE__FLOAT ? arg[0]->value != arg[1]->value : ints[0].i != ints[1].i};
    case ATTUNE__OP_LT:
        return (dual){.i = type == ATTUNE__FLOAT ? arg[0]->value < arg[1]->value : ints[0].i < ints[1].i};
    case ATTUNE__OP_LE:
        return (dual){.i = type == ATTUNE__FLOAT ? arg[0]->value <= arg[1]->value : ints[0].i <= ints[1].i};
    case ATTUNE__OP_MIN:
        if (type == ATTUNE__FLOAT && expr->nodes[node->arg[0]].op == ATTUNE__OP_MAX) {
            const attune__node *inner = &expr->nodes[node->arg[0]];
            return clamp(at[inner->arg[0]], at[inner->arg[1]], *arg[1]);
        }
        break;
    default:
        break;
    }
    if (type != ATTUNE__FLOAT)
        return (dual){.i = attune__apply((attune__op)node->op, (attune__type)type, ints).i};
    dual result = dual_real((attune__op)node->op, *arg[0], node->arg_count > 1 ? *arg[1] : (dual){0});
    /* An exponent that varies takes the logarithm of the base, even if it happens not to vary with this target. */
    result.wild |= node->op == ATTUNE__OP_POW && arg[0]->value < 0 && expr->nodes[node->arg[1]].op != ATTUNE__OP_CONST;
    return result;
}

static dual dual_at(const attune_expr *expr, const attune__bindings *bindings, const attune_point *p, double score,
                    target by)
{
    static dual values[ATTUNE_EXPR_MAX_NODES];
    for (uint32_t n = 0; n < expr->node_count; n++)
        values[n] = dual_node(expr, n, values, bindings, p, score, by);
    return values[expr->node_count - 1];
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * (1 + fabs(a) + fabs(b));
}

/* A difference of values at two widths, which agree where the expression is smooth. */
static bool difference_at(const attune_expr *expr, const attune__bindings *bindings, const attune_point *p,
                          double *slope)
{
    double slopes[4];
    if (fabs((double)p->score) > 100)
        return false;
    for (uint32_t n = 0; n < expr->node_count; n++) /* teeth that are finer than any difference */
        if (expr->nodes[n].op == ATTUNE__OP_MOD && expr->nodes[expr->nodes[n].arg[1]].op != ATTUNE__OP_CONST)
            return false;
    for (int i = 0; i < 4; i++) {
        const double h = ldexp(i % 2 ? 1 : -1, i < 2 ? -17 : -18);
        const dual a = dual_at(expr, bindings, p, (double)p->score + h, (target){0});
        const dual b = dual_at(expr, bindings, p, (double)p->score, (target){0});
        /* at a kink the sides may agree, and the point itself not */
        if (a.wild || b.wild || fabs(a.value) > 1e3 || fabs(a.slope - b.slope) > 1e-2)
            return false;
        slopes[i] = (a.value - b.value) / h;
    }
    *slope = 2 * (slopes[2] + slopes[3]) / 2 - (slopes[0] + slopes[1]) / 2;
    return fabs(slopes[0] - slopes[1]) <= 1e-3 && fabs(slopes[2] - slopes[3]) <= 1e-3 &&
           fabs(slopes[0] - slopes[2]) <= 1e-3 && fabs(slopes[1] - slopes[3]) <= 1e-3;
}

typedef struct tally {
    uint64_t slopes, differences, elements, wild;
} tally;

static void compare(const attune_expr *expr, const bound *x, const attune__gradient *gradient, const char *text,
                    const attune_point *p, double *const *sums, const int64_t *elements, void *scratch, uint64_t *state,
                    tally *t)
{
    const attune__row row = row_of(p);
    const double score = (double)p->score;
    double d = 1;
    for (uint32_t i = 0; i < gradient->expr->symbol_count; i++)
        if (sums[i])
            memset(sums[i], 0, (size_t)elements[i] * sizeof(double));
    const attune_array *arrays = x->arrays;
    attune__gradient_row_f64(gradient, &x->bindings, &row, p->kv, 1, scratch, &score, &d, sums);
    const dual wanted = dual_at(expr, &x->bindings, p, score, (target){NULL, 0});
    if (wanted.wild) {
        t->wild++;
        return;
    }
    cr_assert(near(d, wanted.slope), "%s\nat score %.9g, q %d, kv %d, h %d, b %d: %.17g, by dual numbers %.17g", text,
              score, p->q, p->kv, p->h, p->b, d, wanted.slope);
    t->slopes++;
    double difference;
    if (difference_at(expr, &x->bindings, p, &difference)) {
        cr_assert(fabs(d - difference) <= 2e-3 * (1 + fabs(d)), "%s\nat score %.9g: %.9g, by differences %.9g", text,
                  score, d, difference);
        t->differences++;
    }
    for (uint32_t i = 0; i < gradient->expr->symbol_count; i++) {
        if (!sums[i])
            continue;
        /* Every element that received something, and one at random: the others receive nothing. */
        for (int64_t e = 0; e < elements[i]; e++) {
            if (sums[i][e] == 0 && random_expr_next(state) % (uint64_t)elements[i])
                continue;
            int64_t offset = 0, rest = e;
            for (uint32_t k = arrays[i].rank; k-- > 0; rest /= arrays[i].size[k])
                offset += rest % arrays[i].size[k] * arrays[i].stride[k];
            const dual element = dual_at(expr, &x->bindings, p, score, (target){arrays[i].data, offset});
            if (element.wild)
                continue;
            cr_assert(near(sums[i][e], element.slope), "%s\n%s, element %lld: %.17g, by dual numbers %.17g", text,
                      gradient->expr->symbols[i].name, (long long)e, sums[i][e], element.slope);
            t->elements++;
        }
    }
}

Test(gradient, random_expressions_agree_with_dual_numbers_and_differences)
{
    static random_expr e;
    static bound x;
    static double fixture[ATTUNE_EXPR_MAX_SYMBOLS][RANDOM_EXPR_ELEMENTS];
    const uint64_t count = scaled(30000), seed = test_seed();
    tally t = {0};
    uint64_t derived = 0;
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, ATTUNE_EXPR_SCORE, 1 + (uint32_t)(i % 17));
        attune__gradient *gradient;
        attune_status status = attune__gradient_create(x.expr, &gradient);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_UNSUPPORTED, "%s\n%s", e.text, attune_last_error());
        if (status == ATTUNE_OK) {
            derived++;
            void *scratch = aligned_alloc(64, (attune__expr_scratch_size(gradient->expr, 1) + 63) / 64 * 64);
            double *sums[ATTUNE_EXPR_MAX_SYMBOLS] = {NULL};
            int64_t elements[ATTUNE_EXPR_MAX_SYMBOLS] = {0};
            for (uint32_t r = 0; r < gradient->read_count; r++) {
                const int32_t s = gradient->expr->nodes[gradient->reads[r].capture].value.i;
                sums[s] = fixture[s];
                elements[s] = 1;
                for (uint32_t k = 0; k < x.arrays[s].rank; k++)
                    elements[s] *= x.arrays[s].size[k];
                cr_assert(elements[s] <= RANDOM_EXPR_ELEMENTS);
            }
            uint64_t state = seed ^ i;
            for (int j = 0; j < 6; j++) {
                attune_point p = random_point(&state);
                if (j == 5)
                    p.score = (float)random_expr_between(&state, -3, 3); /* where kinks are */
                compare(x.expr, &x, gradient, e.text, &p, sums, elements, scratch, &state, &t);
            }
            free(scratch);
            attune__gradient_destroy(gradient);
        }
        attune__expr_release(x.expr);
    }
    cr_log_info("%llu derivatives: %llu slopes, %llu differences, %llu elements; %llu points not finite",
                (unsigned long long)derived, (unsigned long long)t.slopes, (unsigned long long)t.differences,
                (unsigned long long)t.elements, (unsigned long long)t.wild);
    cr_assert(derived * 20 > count * 19, "only %llu of %llu have derivatives", (unsigned long long)derived,
              (unsigned long long)count);
    cr_assert(t.wild * 2 < t.slopes && t.differences * 3 > t.slopes && t.elements > t.slopes / 4,
              "%llu slopes, %llu differences, %llu elements, %llu not finite", (unsigned long long)t.slopes,
              (unsigned long long)t.differences, (unsigned long long)t.elements, (unsigned long long)t.wild);
}

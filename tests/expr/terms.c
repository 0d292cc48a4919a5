/* SPDX-License-Identifier: MIT */
/* Terms of keys and rows: which nodes they are, and that they and the rest, as C text compiled by the system's
 * compiler, are the expression: bit for bit. */
#include "expr/common.h"

#include <stdio.h>

#include "expr/batch.h"
#include "expr/print.h"

#define BATCH  1500
#define POINTS 8

#define TAKEN (INT32_C(1) << 20) /* a head, for keys whose terms must not see it */

typedef void terms_fn(int, int, int, int, int, int, int *, const batch_view *, const attune__value *);
typedef int mask_fn(int, int, int, int, int, int, int, float, const int *, const int *, const batch_view *,
                    const attune__value *);
typedef float score_fn(int, int, int, int, int, int, int, float, const int *, const int *, const batch_view *,
                       const attune__value *);

static uint16_t without(uint64_t i)
{
    return i % 3 ? 0 : 1u << ATTUNE__VAR_H;
}

static attune__terms terms_of(const attune_expr *expr, uint16_t variables)
{
    const uint32_t root = expr->node_count - 1;
    return attune__expr_terms(expr, root, variables);
}

static void write_functions(batch *b, const bound *x, uint64_t i)
{
    static char text[1 << 18];
    char name[32];
    const attune__terms terms = terms_of(x->expr, without(i));
    attune__text to = attune__text_begin(text, sizeof text);
    snprintf(name, sizeof name, "x%llu", (unsigned long long)i);
    attune__ctext_terms(x->expr, name, &terms, &to);
    snprintf(name, sizeof name, "x%llu_of", (unsigned long long)i);
    attune__ctext_with_terms(x->expr, x->expr->node_count - 1, name, &terms, &to);
    cr_assert_lt(to.length, sizeof text);
    const unsigned long long n = i;
    fprintf(b->file, "%s#define f%llu x%llu_key_terms\n#define f%llu x%llu_row_terms\n#define f%llu x%llu_of\n", text,
            3 * n, n, 3 * n + 1, n, 3 * n + 2, n);
}

static void run_functions(void **functions, const bound *x, const random_expr *e, uint64_t seed, uint64_t i)
{
    batch_view views[ATTUNE_EXPR_MAX_SYMBOLS];
    batch_views(x->expr, x->arrays, views);
    terms_fn *const keys = *(terms_fn **)&functions[0], *const rows = *(terms_fn **)&functions[1];
    uint64_t state = seed ^ i;
    for (int n = 0; n < POINTS; n++) {
        const attune_point p = random_point(&state);
        const attune__value wanted = attune__expr_point(x->expr, &x->bindings, &p);
        int key[ATTUNE__TERMS], row[ATTUNE__TERMS];
        keys(p.b, without(i) ? TAKEN : p.h, p.kv, p.h_kv, p.q_len, p.kv_len, key, views, x->values);
        rows(p.b, p.h, p.q, p.h_kv, p.q_len, p.kv_len, row, views, x->values);
        if (e->kind == ATTUNE_EXPR_MASK) {
            const int found = (*(mask_fn **)&functions[2])(p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score, key,
                                                           row, views, x->values);
            cr_assert_eq(found, wanted.i, "%s\nof terms %d, interpreter %d at q %d, kv %d", e->text, found, wanted.i,
                         p.q, p.kv);
        } else {
            const float found = (*(score_fn **)&functions[2])(p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score,
                                                              key, row, views, x->values);
            cr_assert(same_float(found, wanted.f), "%s\nof terms %.9g, interpreter %.9g at q %d, kv %d, score %.9g",
                      e->text, (double)found, (double)wanted.f, p.q, p.kv, (double)p.score);
        }
    }
}

/* A term's variables, and that it reads a capture if it is not said to be computed. */
static void check_nodes(const attune_expr *expr, const attune__terms *t, uint16_t variables, const char *words)
{
    const uint16_t key = 1u << ATTUNE__VAR_KV, row = 1u << ATTUNE__VAR_Q, score = 1u << ATTUNE__VAR_SCORE;
    cr_assert(t->key_count <= ATTUNE__TERMS && t->row_count <= ATTUNE__TERMS);
    for (uint32_t i = 0; i < t->key_count; i++)
        cr_assert((expr->nodes[t->keys[i]].uses & key) && !(expr->nodes[t->keys[i]].uses & (row | score | variables)),
                  "%s: term %u of keys", words, i);
    for (uint32_t i = 0; i < t->row_count; i++)
        cr_assert(!(expr->nodes[t->rows[i]].uses & (key | score)), "%s: term %u of rows", words, i);
    bool made[ATTUNE_EXPR_MAX_NODES];
    for (uint32_t i = 0; i < t->key_count; i++) {
        bool reads = false;
        attune__ctext_needed(expr, &t->keys[i], 1, NULL, made);
        for (uint32_t n = 0; n < expr->node_count; n++)
            reads |= made[n] && expr->nodes[n].op == ATTUNE__OP_CAPTURE;
        cr_assert_eq(reads, !(t->computed >> i & 1), "%s: term %u of keys", words, i);
    }
}

Test(terms, agree_with_the_interpreter)
{
    static random_expr e;
    static bound x;
    const uint64_t seed = test_seed() + 11, count = scaled(BATCH);
    uint64_t with_keys = 0, with_rows = 0;
    static char text[1 << 16];
    batch b;
    batch_begin(&b);
    attune__text prelude = attune__text_begin(text, sizeof text);
    attune__ctext_prelude(&prelude);
    fputs(text, b.file);
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, i % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE, 1 + (uint32_t)(i % 17));
        const attune__terms terms = terms_of(x.expr, without(i));
        check_nodes(x.expr, &terms, without(i), e.text);
        with_keys += terms.key_count > 0;
        with_rows += terms.row_count > 0;
        write_functions(&b, &x, i);
        attune__expr_release(x.expr);
    }
    void **table = batch_open(&b, 3 * count);
    for (uint64_t i = 0; i < count; i++) {
        bind_random(&x, &e, seed + i, i % 2 ? ATTUNE_EXPR_MASK : ATTUNE_EXPR_SCORE, 1 + (uint32_t)(i % 17));
        run_functions(table + 3 * i, &x, &e, seed, i);
        attune__expr_release(x.expr);
    }
    batch_end(&b);
    cr_assert(with_keys > count / 20 && with_rows > count / 40, "%llu with keys, %llu with rows of %llu",
              (unsigned long long)with_keys, (unsigned long long)with_rows, (unsigned long long)count);
}

Test(terms, are_as_large_as_can_be)
{
    static const attune_symbol symbols[] = {
        {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},   {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
        {"pad", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},   {"of", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
        {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}, {"side", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    };
    static const struct {
        const char *text;
        attune_expr_kind kind;
        uint32_t keys, rows, keys_of_heads;
    } cases[] = {
        {"score + bias[kv]", ATTUNE_EXPR_SCORE, 1, 0, 1},
        {"score + bias[q] + bias[kv]", ATTUNE_EXPR_SCORE, 1, 1, 1},
        {"score + bias[doc[kv]] * heat", ATTUNE_EXPR_SCORE, 1, 0, 1},
        {"score + exp(bias[kv] * kv) / bias[b]", ATTUNE_EXPR_SCORE, 1, 0, 1},
        {"score + bias[kv] * bias[h]", ATTUNE_EXPR_SCORE, 1, 0, 1},
        {"score + of[h, kv]", ATTUNE_EXPR_SCORE, 1, 0, 0},
        {"score + bias[q - kv]", ATTUNE_EXPR_SCORE, 0, 0, 0},
        {"score + of[doc[q], doc[kv]]", ATTUNE_EXPR_SCORE, 1, 1, 1},
        {"score + bias[h] * (kv - q)", ATTUNE_EXPR_SCORE, 0, 1, 0},
        {"tanh(score) * kv", ATTUNE_EXPR_SCORE, 0, 0, 0},
        /* Parts of many instructions. */
        {"score + cos(0.1 * kv) * sin(0.1 * q)", ATTUNE_EXPR_SCORE, 1, 1, 1},
        {"score + sin(0.1 * (q - kv))", ATTUNE_EXPR_SCORE, 0, 0, 0},
        {"q / side == kv / side && q % side >= kv % side", ATTUNE_EXPR_MASK, 2, 2, 2},
        {"q % 64 / 8 == kv % 64 / 8", ATTUNE_EXPR_MASK, 0, 0, 0},
        {"doc[q] == doc[kv] && q / side >= kv / side", ATTUNE_EXPR_MASK, 2, 2, 2},
        {"pad[b, kv]", ATTUNE_EXPR_MASK, 1, 0, 1},
        {"pad[b, kv] && doc[kv] > 3 && q >= kv", ATTUNE_EXPR_MASK, 1, 0, 1},
        {"doc[q] == doc[kv]", ATTUNE_EXPR_MASK, 1, 1, 1},
        {"pad[h, kv] || kv > q", ATTUNE_EXPR_MASK, 1, 0, 0},
        {"(((score + bias[kv]) * bias[kv + 1] + bias[kv + 2]) * bias[kv + 3] + bias[kv + 4]) / bias[q]",
         ATTUNE_EXPR_SCORE, 4, 1, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(cases[i].kind, cases[i].text, symbols, 6);
        const attune__terms all = terms_of(expr, 0), of_heads = terms_of(expr, 1u << ATTUNE__VAR_H);
        check_nodes(expr, &all, 0, cases[i].text);
        cr_expect(all.key_count == cases[i].keys && all.row_count == cases[i].rows, "%s: %u of keys, %u of rows",
                  cases[i].text, all.key_count, all.row_count);
        if (cases[i].kind == ATTUNE_EXPR_SCORE)
            cr_expect_eq(attune__analyse(NULL, expr, NULL).score.terms[ATTUNE__ONE_HEAD].row_count, cases[i].rows,
                         "%s: rows", cases[i].text);
        cr_expect_eq(of_heads.key_count, cases[i].keys_of_heads, "%s: %u of keys for all heads", cases[i].text,
                     of_heads.key_count);
        const bool mask = cases[i].kind == ATTUNE_EXPR_MASK;
        const attune__analysis a = attune__analyse(mask ? expr : NULL, mask ? NULL : expr, NULL);
        const attune__terms *const terms = mask ? a.mask.terms : a.score.terms;
        cr_expect(terms[ATTUNE__ONE_HEAD].key_count == cases[i].keys &&
                      terms[ATTUNE__SEVERAL_HEADS].key_count == cases[i].keys_of_heads,
                  "%s: %u and %u", cases[i].text, terms[ATTUNE__ONE_HEAD].key_count,
                  terms[ATTUNE__SEVERAL_HEADS].key_count);
        attune__expr_release(expr);
    }
}

/* No pair of a mask whose rows are intervals is looked at, unless these rest on what a capture holds. */
Test(terms, none_of_intervals)
{
    static const attune_symbol symbols[] = {{"used", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                            {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
    static const struct {
        const char *text;
        uint32_t keys;
    } cases[] = {{"kv < used[b]", 0}, {"kv >= used[q] && q >= kv", 0}, {"doc[q] == doc[kv]", 1}, {"used[kv] > q", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, cases[i].text, symbols, 2);
        const attune__analysis a = attune__analyse(expr, NULL, NULL);
        cr_expect_eq(a.mask.terms[ATTUNE__ONE_HEAD].key_count, cases[i].keys, "%s", cases[i].text);
        cr_expect_eq(attune__analysis_row_intervals(&a), !cases[i].keys, "%s", cases[i].text);
        attune__expr_release(expr);
    }
    static const struct {
        const char *text;
        bool head;
    } heads[] = {{"q >= kv", false}, {"q >= kv + b", false}, {"q >= kv + h", true}, {"q >= kv + h_kv", true}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_MASK, heads[i].text, NULL, 0);
        cr_expect_eq(attune__analyse(expr, NULL, NULL).mask.reads_head, heads[i].head, "%s", heads[i].text);
        attune__expr_release(expr);
    }
    const attune__analysis none = attune__analyse(NULL, NULL, NULL);
    cr_expect_eq(attune__analysis_key_terms(&none, ATTUNE__ONE_HEAD), 0);
}

static uint32_t weight(const char *text)
{
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2}};
    attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, text, symbols, 1);
    const attune__analysis a = attune__analyse(NULL, expr, NULL);
    const uint32_t weight = a.score.weight;
    attune__expr_release(expr);
    return weight;
}

/* Functions may be approximate where nothing jumps with their results. */
Test(terms, smooth_scores)
{
    static const struct {
        const char *text;
        bool smooth;
    } cases[] = {
        {"score * 2", false}, /* no function */
        {"score * sigmoid(1.702 * score)", true},
        {"40 * tanh((score + q - kv) / 40)", true},
        {"max(log(1 + 0.1 * abs(q - kv)) - 0.2, 0.0) + score", true},
        {"q > kv ? exp(score) : score / 3", true},
        {"score + floor(log2(1.0 + abs(q - kv)))", false},
        {"score + ceil(score / 3)", false},
        {"exp(score) > 1 ? score : 0.0", false},
        {"score + sin(score) % 0.1", false},
        {"score + floor(0.1 * q) * exp(score)", true},
        /* At the edge of a domain a rounding makes NaN or an infinity. */
        {"sqrt(1 - sin(score) * sin(score))", false},
        {"score + log(1 - sigmoid(score))", false},
        {"score * rsqrt(3 - abs(q - kv) / 41.0)", false},
        {"pow(score / 3, 0.5)", false},
        {"score / sin(score)", false},
        {"score / (1 + exp(-score)) + log(1 + exp(score))", true},
        {"sqrt(2 - sin(score))", true},
        {"sqrt(1.0 + abs(q - kv)) / (sin(score) - 2)", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, NULL, 0);
        cr_expect_eq(attune__is_smooth(expr), cases[i].smooth, "%s", cases[i].text);
        attune__expr_release(expr);
    }
}

/* Values that a loop over pairs holds: none of rows, shared ones once, more for long expressions. */
Test(terms, weights)
{
    cr_expect_eq(weight("score"), 0);
    cr_expect_eq(weight("score + sin(0.1 * q)"), weight("score + 0.1 * q"));
    cr_expect_gt(weight("score + sin(0.1 * kv * score)"), weight("score + 0.1 * kv"));
    cr_expect_lt(weight("score + sin(0.1 * kv)"), 4); /* a term of the key */
    cr_expect_eq(weight("sqrt(score) * sqrt(score)"), weight("sqrt(score) + 1"));
    cr_expect_gt(weight("sqrt(score)"), weight("score * 3 + 1"));
    cr_expect_gt(weight("pow(score, 0.3) * sqrt(score)"), weight("sqrt(score)") + weight("pow(score, 0.3)"));
    cr_expect_gt(weight("score + bias[q, kv]"), weight("score + bias[q, h]"));
}

Test(terms, hold_no_reads_of_pairs)
{
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                            {"of", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2}};
    static const struct {
        const char *text;
        bool pairs;
    } cases[] = {{"score", false},
                 {"score * bias[q] + of[h, kv] - bias[doc[kv]]", false},
                 {"score + (q - kv) * bias[h]", false},
                 {"score + bias[q - kv]", true},
                 {"score + of[h, kv - q]", true},
                 {"score + of[q, kv]", true},
                 {"score * bias[doc[q] - doc[kv]]", true},
                 {"score + bias[score > 0.5 ? 1 : 0]", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, symbols, 3);
        cr_expect_eq(attune__expr_reads_pairs(expr), cases[i].pairs, "%s", cases[i].text);
        attune__expr_release(expr);
    }
}

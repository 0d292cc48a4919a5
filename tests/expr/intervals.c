/* SPDX-License-Identifier: MIT */
/* Masks whose rows are intervals of keys, or whose columns are intervals of rows: the text that gives an interval's
 * ends, compiled by the system's compiler, against the interpreter at every pair of a small plane. */
#include "expr/common.h"

#include <stdio.h>

#include "expr/batch.h"
#include "expr/print.h"

#define LENGTH 61 /* of both sides */
#define RANDOM 600

typedef void interval_fn(int, int, int, int, int, int, int *, int *, const batch_view *, const attune__value *);
/* Rows of keys, or keys of rows. */
typedef struct interval_kind {
    bool (*find)(const attune_expr *, uint32_t *);
    void (*write)(const attune_expr *, const char *, attune__text *);
    bool columns;
} interval_kind;

static const attune_symbol symbols[] = {{"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                        {"part", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2},
                                        {"w", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};

/* Rows and columns of all of these are intervals. */
static const char *const masks[] = {
    "q >= kv",
    "kv > q",
    "q >= kv && q - kv < 9",
    "abs(q - kv) <= w",
    "kv < w",
    "q < w && kv <= q",
    "doc[q] == doc[kv]",
    "q >= kv && doc[q] == doc[kv]",
    "part[b, q] == part[b, kv] && q >= kv",
    "kv - q <= w && q - kv < 20 && kv >= 3",
    "!(kv < q - 4)",
    "q >= kv || h % 2 == 0",
    "q / 8 >= kv / 8",
};
#define MASKS (sizeof masks / sizeof masks[0])

/* Where the elements equal to one begin and end, which the prelude leaves to a kernel. */
static const char run_text[] =
    "static inline void attune_run(const attune_view *v, int row, int i, long long *low, long long *high)\n"
    "{\n"
    "    const int32_t *ids = (const int32_t *)v->data + (row < 0 ? 0 : row * v->stride[0]);\n"
    "    int64_t n = v->size[row < 0 ? 0 : 1];\n"
    "    for (*low = i; *low > 0 && ids[*low - 1] == ids[i]; --*low) {}\n"
    "    for (*high = i; *high < n && ids[*high] == ids[i]; ++*high) {}\n"
    "}\n";

static bool write_interval(batch *b, const interval_kind *kind, const attune_expr *expr, uint64_t number,
                           uint32_t *runs)
{
    static char text[1 << 16];
    char name[16];
    attune__text function = attune__text_begin(text, sizeof text);
    snprintf(name, sizeof name, "f%llu", (unsigned long long)number);
    if (!kind->find(expr, runs))
        return false;
    kind->write(expr, name, &function);
    cr_assert_lt(function.length, sizeof text);
    fputs(text, b->file);
    return true;
}

/* Every pair of some heads. Returns how many are allowed. */
static uint64_t check_interval(interval_fn *f, const bound *x, bool columns, const char *words)
{
    batch_view views[ATTUNE_EXPR_MAX_SYMBOLS] = {{.data = NULL}};
    uint64_t allowed = 0;
    batch_views(x->expr, x->arrays, views);
    for (int at = 0; at < 4 * LENGTH; at++) {
        int low = -1, high = -1;
        const int b = at / LENGTH / 2, h = at / LENGTH % 2, across = at % LENGTH;
        f(b, h, across, h, LENGTH, LENGTH, &low, &high, views, x->values);
        cr_assert(low >= 0 && high <= LENGTH, "%s\n%d to %d", words, low, high);
        for (int along = 0; along < LENGTH; along++) {
            const attune_point p = {.b = b,
                                    .h = h,
                                    .h_kv = h,
                                    .q_len = LENGTH,
                                    .kv_len = LENGTH,
                                    .q = columns ? along : across,
                                    .kv = columns ? across : along};
            const bool wanted = attune__expr_point(x->expr, &x->bindings, &p).i;
            allowed += wanted;
            cr_assert_eq(along >= low && along < high, wanted, "%s\n%s %d allows %d to before %d, pair %d", words,
                         columns ? "key" : "row", across, low, high, along);
        }
    }
    return allowed;
}

static void bind_mask(bound *x, const char *words)
{
    static int32_t doc[LENGTH], part[2][LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        doc[i] = i < 17 ? 5 : i < 18 ? 2 : i < 40 ? 9 : 1;
        part[0][i] = i / 13;
        part[1][i] = 7 - i / 20;
    }
    const attune_host_capture captures[] = {
        {"doc", {.data = doc, .dtype = ATTUNE_I32, .rank = 1, .size = {LENGTH}, .stride = {1}}},
        {"part", {.data = part, .dtype = ATTUNE_I32, .rank = 2, .size = {2, LENGTH}, .stride = {LENGTH, 1}}}};
    const attune_parameter width = {"w", 11};
    x->expr = parse_with(ATTUNE_EXPR_MASK, words, symbols, 3);
    x->bindings = (attune__bindings){x->arrays, x->values};
    cr_assert_eq(attune__bindings_resolve(x->expr, captures, 2, &width, 1, x->arrays, x->values), ATTUNE_OK, "%s",
                 attune_last_error());
}

static void run_intervals(const interval_kind *kind)
{
    static char prelude[1 << 16];
    static bool known[RANDOM];
    static random_expr e;
    static bound x;
    batch b;
    batch_begin(&b);
    attune__text text = attune__text_begin(prelude, sizeof prelude);
    attune__ctext_prelude(&text);
    fprintf(b.file, "%s%s", prelude, run_text);
    uint32_t runs;
    for (size_t i = 0; i < MASKS; i++) {
        x.expr = parse_with(ATTUNE_EXPR_MASK, masks[i], symbols, 3);
        cr_assert(write_interval(&b, kind, x.expr, i, &runs), "no interval: %s", masks[i]);
        cr_expect_eq(runs != 0, strstr(masks[i], "[") != NULL, "%s", masks[i]);
        attune__expr_release(x.expr);
    }
    /* Random masks count if they are recognised; the arrays of random ones are not adjacent. */
    uint64_t count = MASKS, allowed = 0;
    for (uint64_t i = 0; i < RANDOM; i++) {
        bind_random(&x, &e, test_seed() + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 9));
        known[i] = kind->find(x.expr, &runs) && !runs && write_interval(&b, kind, x.expr, count, &runs);
        count += known[i];
        attune__expr_release(x.expr);
    }
    void **table = batch_open(&b, count);
    for (size_t i = 0; i < MASKS; i++) {
        bind_mask(&x, masks[i]);
        cr_expect_gt(check_interval(*(interval_fn **)&table[i], &x, kind->columns, masks[i]), 0, "%s", masks[i]);
        attune__expr_release(x.expr);
    }
    for (uint64_t i = 0, n = MASKS; i < RANDOM; i++)
        if (known[i]) {
            bind_random(&x, &e, test_seed() + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 9));
            allowed += check_interval(*(interval_fn **)&table[n++], &x, kind->columns, e.text);
            attune__expr_release(x.expr);
        }
    batch_end(&b);
    cr_log_info("%llu of %d random masks", (unsigned long long)(count - MASKS), RANDOM);
    cr_assert_gt(allowed, 0, "nothing is tested");
}

Test(intervals, of_rows_are_what_the_interpreter_allows)
{
    run_intervals(&(interval_kind){attune__interval_rows, attune__ctext_rows, false});
}

Test(intervals, of_keys_are_what_the_interpreter_allows)
{
    run_intervals(&(interval_kind){attune__interval_keys, attune__ctext_columns, true});
}

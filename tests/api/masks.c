/* SPDX-License-Identifier: MIT */
/* Which calls a mask serves: of every random mask and call, the call is refused or gives what its pairs say. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "api/flow.h"
#include "support/devices.h"
#include "support/random_expr.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())
#define DIM      8
#define Q_LEN    40
#define KV_LEN   50
#define BLOCK    16
#define MOST     6 /* batch or heads, of a mask or a call */

/* How a mask is made; the text says what it reads. */
typedef struct subject {
    const char *text;
    bool reads_b, reads_h, reads_h_kv;
} subject;

static const subject subjects[] = {
    {"kv <= q", false, false, false},
    {"kv < n[b]", true, false, false},
    {"kv < 7 + 8 * b || q == 3", true, false, false},
    {"(kv + h) % 3 > 0", false, true, false},
    {"(kv + h_kv) % 3 > 0", false, false, true},
    {"kv < n[b] + 4 * h_kv && q + h != kv", true, true, true},
};

typedef enum making { BY_EXPR, BY_LISTS, BY_SLICE, BY_AND, BY_NOT, MAKINGS } making;

typedef struct scene {
    attune_instance *instance;
    attune_device *device;
    attune_expr *expr;
    attune_host_capture capture;
    const attune_parameter *given; /* to calls */
    uint32_t given_count;
    int32_t n[MOST];
    uint64_t random;
} scene;

static int64_t between(scene *s, int64_t lo, int64_t hi)
{
    return random_expr_between(&s->random, lo, hi);
}

/* Heads that kv_heads divides. */
static void some_heads(scene *s, int64_t *heads, int64_t *kv_heads)
{
    *kv_heads = between(s, 1, 3);
    *heads = *kv_heads * between(s, 1, 2);
}

/* Every block partial, from lists that broadcast. */
static attune_status from_lists(scene *s, const attune_mask_desc *desc, attune_mask **mask)
{
    enum { ROWS = (Q_LEN + BLOCK - 1) / BLOCK, COLUMNS = (KV_LEN + BLOCK - 1) / BLOCK };
    int32_t counts[ROWS], indices[ROWS * COLUMNS];
    for (int r = 0; r < ROWS; r++) {
        counts[r] = COLUMNS;
        for (int c = 0; c < COLUMNS; c++)
            indices[r * COLUMNS + c] = c;
    }
    const attune_mask_lists lists = {
        .struct_size = sizeof lists, .batch = 1, .heads = 1, .kv_num_blocks = counts, .kv_indices = indices};
    return attune_mask_create_lists(s->instance, desc, &lists, s->expr, &s->capture, 1, NULL, 0, mask);
}

static attune_mask *make(scene *s, making how, const attune_mask_desc *desc, const attune_mask_range *range)
{
    attune_mask *built, *mask;
    if (how == BY_LISTS) {
        OK(from_lists(s, desc, &mask));
        return mask;
    }
    OK(attune_mask_create(s->instance, desc, s->expr, &s->capture, 1, NULL, 0, &built));
    if (how == BY_SLICE) {
        OK(attune_mask_slice(built, range, &mask));
    } else if (how == BY_AND) {
        OK(attune_mask_and(built, built, &mask));
    } else if (how == BY_NOT) {
        OK(attune_mask_not(built, &mask));
    } else {
        return built;
    }
    attune_mask_destroy(built);
    return mask;
}

/* Log-sum-exp of one row over the pairs that the text allows, in double. */
static double oracle_lse(const scene *s, const attune_point *row, bool negated, const float *q, const float *k)
{
    double sum = 0;
    for (int kv = 0; kv < KV_LEN; kv++) {
        attune_point point = *row;
        float allowed;
        point.kv = kv;
        OK(attune_expr_evaluate(s->expr, &point, &s->capture, 1, s->given, s->given_count, &allowed));
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (double)q[d] * k[kv * DIM + d];
        if ((allowed != 0) != negated)
            sum += exp(dot / sqrt(DIM));
    }
    return log(sum);
}

static void fill(scene *s, float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)between(s, -1000, 1000) / 500;
}

/* One mask, one call: whether it was taken. What it gives must be what the pairs say. */
static bool try_call(scene *s, const attune_mask *mask, const attune_mask_range *range, int64_t whole_group,
                     bool negated, int64_t batch, int64_t heads, int64_t kv_heads)
{
    static float q[MOST * MOST * Q_LEN * DIM], k[MOST * MOST * KV_LEN * DIM], o[MOST * MOST * Q_LEN * DIM];
    static float lse[MOST * MOST * Q_LEN];
    fill(s, q, sizeof q / sizeof *q);
    fill(s, k, sizeof k / sizeof *k);
    attune_problem problem = {.struct_size = sizeof problem,
                              .head_dim = DIM,
                              .batch = batch,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .q_len = Q_LEN,
                              .kv_len = KV_LEN,
                              .lse = true};
    attune_plan *plan;
    OK(attune_problem_set_mask(&problem, mask));
    OK(attune_plan_create(s->device, &problem, NULL, &plan));
    attune_buffer *b[4];
    OK(attune_buffer_wrap(s->device, q, sizeof q, &b[0]));
    OK(attune_buffer_wrap(s->device, k, sizeof k, &b[1]));
    OK(attune_buffer_wrap(s->device, o, sizeof o, &b[2]));
    OK(attune_buffer_wrap(s->device, lse, sizeof lse, &b[3]));
    attune_buffer *workspace = NULL;
    if (attune_plan_workspace_size(plan))
        OK(attune_buffer_create(s->device, attune_plan_workspace_size(plan), &workspace));
    const attune_tensor in_f32 = {.dtype = ATTUNE_F32, .rank = 4, .size = {batch, heads, Q_LEN, DIM}};
    const attune_tensor rows = {.dtype = ATTUNE_F32, .rank = 3, .size = {batch, heads, Q_LEN}};
    attune_forward_args args = {
        .struct_size = sizeof args, .q = in_f32, .k = in_f32, .v = in_f32, .o = in_f32, .lse = rows, .mask = mask};
    args.k.size[1] = args.v.size[1] = kv_heads;
    args.k.size[2] = args.v.size[2] = KV_LEN;
    args.q.buffer = b[0], args.k.buffer = args.v.buffer = b[1], args.o.buffer = b[2], args.lse.buffer = b[3];
    args.workspace = workspace;
    args.parameters = s->given;
    args.parameter_count = s->given_count;
    const attune_status status = attune_forward(plan, attune_device_queue(s->device), &args, NULL);
    if (status == ATTUNE_OK)
        for (int64_t i = 0; i < batch; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t r = 0; r < Q_LEN; r += 3) {
                    const int64_t whole_h = h + range->head0, group = whole_group ? whole_group : heads / kv_heads;
                    const attune_point row = {.b = (int32_t)(i + range->batch0),
                                              .h = (int32_t)whole_h,
                                              .h_kv = (int32_t)(whole_h / group),
                                              .q = (int32_t)(r + range->q_block0 * BLOCK),
                                              .q_len = Q_LEN,
                                              .kv_len = KV_LEN};
                    const int64_t at = (i * heads + h) * Q_LEN + r;
                    const double want = oracle_lse(s, &row, negated, q + at * DIM,
                                                   k + (i * kv_heads + h / (heads / kv_heads)) * KV_LEN * DIM);
                    cr_assert(isinf(want) ? isinf(lse[at]) : fabs(lse[at] - want) < 1e-4,
                              "batch %lld head %lld row %lld: %g, expected %g", (long long)i, (long long)h,
                              (long long)r, (double)lse[at], want);
                }
    for (int i = 0; i < 4; i++)
        attune_buffer_destroy(b[i]);
    attune_buffer_destroy(workspace);
    attune_plan_destroy(plan);
    return status == ATTUNE_OK;
}

static void scene_begin(scene *s)
{
    *s = (scene){.n = {5, 20, 40, 11, 33, 2}, .random = test_seed() + 21};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = 1};
    OK(attune_instance_create(&desc, &s->instance));
    OK(attune_device_open(s->instance, "cpu", &s->device));
    s->capture = (attune_host_capture){"n", {.data = s->n, .dtype = ATTUNE_I32, .rank = 1, .size = {MOST}}};
}

static void scene_text(scene *s, const char *text)
{
    const attune_symbol symbol = {"n", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1};
    OK(attune_expr_create(s->instance, ATTUNE_EXPR_MASK, text, &symbol, 1, &s->expr));
}

static void scene_end(scene *s)
{
    attune_device_destroy(s->device);
    attune_instance_destroy(s->instance);
}

Test(masks, serve_what_they_were_built_for)
{
    static scene s;
    scene_begin(&s);
    int taken = 0, refused = 0;
    const uint64_t count = scaled(400);
    for (uint64_t n = 0; n < count; n++) {
        const subject *of = &subjects[between(&s, 0, sizeof subjects / sizeof *subjects - 1)];
        const making how = (making)between(&s, 0, MAKINGS - 1);
        scene_text(&s, of->text);
        attune_mask_desc desc = {
            .struct_size = sizeof desc, .q_block = BLOCK, .kv_block = BLOCK, .q_len = Q_LEN, .kv_len = KV_LEN};
        desc.batch = between(&s, 1, 3);
        some_heads(&s, &desc.heads, &desc.kv_heads);
        attune_mask_range range = {.struct_size = sizeof range};
        int64_t whole_group = 0;
        if (how == BY_SLICE) {
            const int64_t group = desc.heads / desc.kv_heads;
            whole_group = group;
            desc.q_len += BLOCK;
            range.q_block0 = between(&s, 0, 1);
            range.batch0 = between(&s, 0, desc.batch - 1);
            range.head0 = group * between(&s, 0, desc.kv_heads - 1);
        }
        attune_mask *mask = make(&s, how, &desc, &range);
        OK(attune_mask_upload(mask, s.device));
        desc.batch -= range.batch0;
        desc.kv_heads -= range.head0 / (desc.heads / desc.kv_heads);
        desc.heads -= range.head0;
        int64_t batch = desc.batch, heads = desc.heads, kv_heads = desc.kv_heads;
        if (between(&s, 0, 2) == 0)
            batch = between(&s, 1, 3);
        if (between(&s, 0, 2) == 0)
            some_heads(&s, &heads, &kv_heads);
        const bool wanted = (batch == desc.batch || !of->reads_b) &&
                            (heads == desc.heads || !(of->reads_h || of->reads_h_kv)) &&
                            (kv_heads == desc.kv_heads || !of->reads_h_kv);
        const bool got = try_call(&s, mask, &range, whole_group, how == BY_NOT, batch, heads, kv_heads);
        cr_assert_eq(got, wanted, "%s: mask %lld x %lld/%lld, call %lld x %lld/%lld: %s", of->text,
                     (long long)desc.batch, (long long)desc.heads, (long long)desc.kv_heads, (long long)batch,
                     (long long)heads, (long long)kv_heads, got ? "taken" : attune_last_error());
        taken += got;
        refused += !got;
        attune_mask_destroy(mask);
        attune_expr_destroy(s.expr);
    }
    cr_assert(taken && refused);
    scene_end(&s);
}

/* A mask of one batch or head that reads which it is has lists of it alone. */
Test(masks, built_for_one)
{
    static scene s;
    scene_begin(&s);
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        for (int more = 0; more < 3; more++) { /* batches, heads, heads of the keys */
            const subject *of = &subjects[i];
            scene_text(&s, of->text);
            const attune_mask_desc desc = {.struct_size = sizeof desc,
                                           .q_block = BLOCK,
                                           .kv_block = BLOCK,
                                           .batch = 1,
                                           .heads = more == 2 ? 2 : 1,
                                           .kv_heads = 1,
                                           .q_len = Q_LEN,
                                           .kv_len = KV_LEN};
            const attune_mask_range all = {.struct_size = sizeof all};
            attune_mask *mask = make(&s, BY_EXPR, &desc, &all);
            OK(attune_mask_upload(mask, s.device));
            const bool refused = more == 0 ? of->reads_b : more == 1 ? of->reads_h || of->reads_h_kv : of->reads_h_kv;
            cr_assert_eq(try_call(&s, mask, &all, 0, false, more == 0 ? 2 : 1, more ? 2 : 1, more == 2 ? 2 : 1),
                         !refused, "%s: %d", of->text, more);
            const char *const words = more == 0 ? "reads b and" : of->reads_h_kv ? "reads h_kv and" : "reads h and";
            cr_assert(!refused || strstr(attune_last_error(), words), "%s", attune_last_error());
            attune_mask_destroy(mask);
            attune_expr_destroy(s.expr);
        }
    scene_end(&s);
}

/* Captures that simplification took out of the joined expression still decide the lists. */
Test(masks, combination_depends_on_what_its_sides_read)
{
    static scene s;
    scene_begin(&s);
    scene_text(&s, "kv < n[b]");
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = BLOCK, .kv_block = BLOCK, .q_len = Q_LEN, .kv_len = KV_LEN};
    attune_mask *some, *others, *all;
    OK(attune_mask_create(s.instance, &desc, s.expr, &s.capture, 1, NULL, 0, &some));
    OK(attune_mask_not(some, &others));
    OK(attune_mask_and(some, others, &all));
    OK(attune_mask_upload(all, s.device));
    const attune_mask_range whole = {.struct_size = sizeof whole};
    attune_expr_destroy(s.expr);
    scene_text(&s, "false");
    cr_assert(try_call(&s, all, &whole, 0, false, 1, 2, 1), "%s", attune_last_error());
    cr_assert_not(try_call(&s, all, &whole, 0, false, 2, 2, 1));
    cr_assert(strstr(attune_last_error(), "args.mask reads b and was built for batch 1, q has 2"), "%s",
              attune_last_error());
    attune_mask_destroy(some);
    attune_mask_destroy(others);
    attune_mask_destroy(all);
    attune_expr_destroy(s.expr);
    scene_end(&s);
}

/* A call cannot change what made the lists, nor ignore that it was asked to. */
Test(masks, parameters_are_those_of_the_build)
{
    static scene s;
    scene_begin(&s);
    const attune_symbol symbols[] = {{"width", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                     {"low", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};
    OK(attune_expr_create(s.instance, ATTUNE_EXPR_MASK, "kv <= q + 10 && q - kv < width && kv >= low", symbols, 2,
                          &s.expr));
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = BLOCK, .kv_block = BLOCK, .q_len = Q_LEN, .kv_len = KV_LEN};
    const attune_parameter built[] = {{"width", 9}, {"low", 2.1}}, wider[] = {{"low", 2.1}, {"width", 12}},
                           lower[] = {{"low", 2}}, third[] = {{"width", 9.5}}, other[] = {{"heat", 3}, {"low", 2.1}};
    const attune_mask_range whole = {.struct_size = sizeof whole};
    attune_mask *mask;
    OK(attune_mask_create(s.instance, &desc, s.expr, NULL, 0, built, 2, &mask));
    OK(attune_mask_upload(mask, s.device));
    s.given = built, s.given_count = 2;
    cr_assert(try_call(&s, mask, &whole, 0, false, 1, 2, 1), "%s", attune_last_error());
    s.given = wider;
    cr_assert_not(try_call(&s, mask, &whole, 0, false, 1, 2, 1));
    cr_assert(strstr(attune_last_error(), "\"width\" = 12, but args.mask reads it and was built with 9"), "%s",
              attune_last_error());
    s.given = lower, s.given_count = 1;
    cr_assert_not(try_call(&s, mask, &whole, 0, false, 1, 2, 1));
    s.given = third;
    cr_assert_not(try_call(&s, mask, &whole, 0, false, 1, 2, 1));
    s.given = NULL;
    cr_assert_not(try_call(&s, mask, &whole, 0, false, 1, 2, 1));
    cr_assert(strstr(attune_last_error(), "args.parameters is NULL"), "%s", attune_last_error());
    /* A table for several plans. */
    attune_expr_destroy(s.expr);
    scene_text(&s, "kv <= q + 10 && q - kv < 9 && kv >= 3");
    s.given = other, s.given_count = 2;
    cr_assert(try_call(&s, mask, &whole, 0, false, 1, 2, 1), "%s", attune_last_error());
    attune_mask_destroy(mask);
    attune_expr_destroy(s.expr);
    scene_end(&s);
}

/* The call of a mask that has grown gives what its pairs say; other masks are refused, and say why. */
Test(masks, longer_sequences)
{
    static scene s;
    scene_begin(&s);
    const attune_symbol symbols[] = {{"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
                                     {"far", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0}};
    int32_t doc[KV_LEN];
    for (int i = 0; i < KV_LEN; i++)
        doc[i] = i / 13;
    const attune_host_capture all = {"doc",
                                     {.data = doc, .dtype = ATTUNE_I32, .rank = 1, .size = {KV_LEN}, .stride = {1}}};
    attune_host_capture few = all;
    few.array.size[0] = 33;
    const attune_parameter far[] = {{"far", 20.5}};
    attune_expr_destroy(s.expr);
    OK(attune_expr_create(s.instance, ATTUNE_EXPR_MASK, "kv <= q + 10 && q - kv < far && doc[q] == doc[kv]", symbols, 2,
                          &s.expr));
    attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = BLOCK, .kv_block = BLOCK, .q_len = 20, .kv_len = 33};
    attune_mask *mask, *longer, *fresh, *other;
    OK(attune_mask_create(s.instance, &desc, s.expr, &few, 1, far, 1, &mask));
    OK(attune_mask_extend(mask, Q_LEN, KV_LEN, &all, 1, NULL, &longer));
    desc.q_len = Q_LEN, desc.kv_len = KV_LEN;
    OK(attune_mask_create(s.instance, &desc, s.expr, &all, 1, far, 1, &fresh));
    attune_mask_lists a = {.struct_size = sizeof a}, b = a;
    OK(attune_mask_lists_get(longer, &a));
    OK(attune_mask_lists_get(fresh, &b));
    for (int64_t r = 0; r < a.q_blocks; r++)
        cr_assert(a.kv_num_blocks[r] == b.kv_num_blocks[r] && a.full_kv_num_blocks[r] == b.full_kv_num_blocks[r]);
    attune_mask_stats pairs = {.struct_size = sizeof pairs}, expected = pairs;
    OK(attune_mask_stats_count(longer, NULL, &pairs));
    OK(attune_mask_stats_count(fresh, NULL, &expected));
    cr_assert(pairs.pairs == expected.pairs && pairs.pairs > 0, "%lld pairs", (long long)pairs.pairs);
    /* Without captures it keeps those that it has, whose missing elements are 0. */
    OK(attune_mask_extend(mask, Q_LEN, KV_LEN, NULL, 0, NULL, &other));
    OK(attune_mask_stats_count(other, NULL, &pairs));
    cr_assert(pairs.pairs != expected.pairs);
    attune_mask_destroy(other);

    cr_assert_eq(attune_mask_extend(longer, Q_LEN, KV_LEN - 1, NULL, 0, NULL, &other), ATTUNE_INVALID_ARGUMENT);
    cr_assert(strstr(attune_last_error(), "kv_len is 49, expected 50, the mask's, to"), "%s", attune_last_error());
    cr_assert_eq(attune_mask_extend(longer, INT64_C(1) << 31, KV_LEN, NULL, 0, NULL, &other), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_mask_extend(longer, Q_LEN, KV_LEN, NULL, 1, NULL, &other), ATTUNE_INVALID_ARGUMENT);
    attune_host_capture wrong = all;
    wrong.array.dtype = ATTUNE_F32;
    cr_assert_eq(attune_mask_extend(longer, Q_LEN, KV_LEN, &wrong, 1, NULL, &other), ATTUNE_INVALID_ARGUMENT);
    attune_mask *no;
    OK(attune_mask_not(longer, &no));
    cr_assert_eq(attune_mask_extend(no, Q_LEN, KV_LEN, NULL, 0, NULL, &other), ATTUNE_UNSUPPORTED);
    cr_assert(strstr(attune_last_error(), "build it again"), "%s", attune_last_error());
    attune_mask_destroy(no);
    attune_mask_destroy(fresh);
    attune_mask_destroy(longer);
    attune_mask_destroy(mask);
    attune_expr_destroy(s.expr);
    scene_end(&s);
}

/* SPDX-License-Identifier: MIT */
/* Spliced expressions on a device against the interpreter, at random points. */
#include "expr/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define mods_template               runnable
#define mods_template_gradient      runnable_gradient
#define mods_template_serving       runnable_serving
#define attune__spirv_backward_sums runnable_sums
#define attune__spirv_copy          runnable_copy
#include "backward_sums.h"
#include "copy.h"
#include "mods_template.h"
#include "mods_template_gradient.h"
#include "mods_template_serving.h"
#include "base/half.h"
#include "support/arena.h"
#include "vulkan/arguments.h"
#include "vulkan/fake.h"
#include "vulkan/mods.h"
#include "vulkan/mods_bounds.h"

#define POINTS 192

typedef struct gpu_point {
    int32_t b, h, q, kv;
    float score;
} gpu_point;

typedef struct push {
    uint64_t points, results, mask, score;
    uint32_t count, unused;
} push;

static attune__mods_capture place_capture(arena *a, const attune_array *array, uint64_t *state)
{
    attune__mods_capture c = {.dtype = array->dtype, .address = arena_place(a, array, state)};
    for (uint32_t d = 0; d < array->rank && c.address; d++) {
        c.size[d] = array->size[d];
        c.stride[d] = array->stride[d];
    }
    return c;
}

static uint64_t place_table(arena *a, const bound *x, attune__mods_table *table, uint64_t *state)
{
    for (uint32_t i = 0; i < x->expr->symbol_count; i++) {
        if (x->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            table->captures[i] = place_capture(a, &x->arrays[i], state);
        else
            table->parameters[i] = x->values[i];
    }
    const size_t at = arena_take(a, attune__mods_table_size(x->expr), 16);
    attune__mods_table_pack(x->expr, table, a->bytes + at);
    return a->address + at;
}

/* Indices as a kernel counts them, and now and then some that no kernel has: below 0. */
static attune_point draw_point(uint64_t *state, const attune__mods_table *table)
{
    attune_point p = random_point(state);
    if (random_expr_next(state) % 8 == 0) {
        p.b = (int32_t)random_expr_between(state, -4, 4);
        p.q = (int32_t)random_expr_between(state, -300, 300);
        p.kv = (int32_t)random_expr_between(state, -300, 300);
    }
    p.h_kv = p.h / table->group;
    p.q_len = table->q_len;
    p.kv_len = table->kv_len;
    return p;
}

typedef struct fixture {
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
} fixture;

static fixture fixture_open(void)
{
    fixture r;
    cr_assert_eq(attune_instance_create(NULL, &r.instance), ATTUNE_OK);
    r.device = vulkan_or_skip(r.instance, false);
    cr_assert_eq(attune_buffer_create(r.device, ARENA_SIZE, &r.buffer), ATTUNE_OK, "%s", attune_last_error());
    return r;
}

static void fixture_close(fixture *r)
{
    attune_buffer_destroy(r->buffer);
    attune_device_destroy(r->device);
    attune_instance_destroy(r->instance);
}

typedef struct tally {
    uint64_t masks, scores, exact, undecided, failed;
    const char *failing[2]; /* expressions that have failed, each of which is told once */
    double worst;           /* error / bound */
} tally;

__attribute__((format(printf, 3, 4))) static void fail_point(tally *t, const char *text, const char *format, ...)
{
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (t->failing[0] != text && t->failing[1] != text)
        cr_log_error("%s\n  %s", text, message);
    t->failing[t->failing[0] && t->failing[0] != text] = text;
    t->failed++;
}

static void check_mask(const bound *x, const char *text, const attune_point *p, uint32_t found, tally *t)
{
    const mods_bound wanted = mods_bound_of(x->expr, &x->bindings, p);
    if (!wanted.decided) {
        t->undecided++;
        return;
    }
    t->masks++;
    cr_assert(wanted.value.i == attune__expr_point(x->expr, &x->bindings, p).i);
    if ((int32_t)found != wanted.value.i)
        fail_point(t, text, "device %u, interpreter %d at b %d h %d q %d kv %d", found, wanted.value.i, p->b, p->h,
                   p->q, p->kv);
}

static void check_score(const bound *x, const char *text, const attune_point *p, uint32_t bits, tally *t)
{
    const mods_bound wanted = mods_bound_of(x->expr, &x->bindings, p);
    if (!wanted.decided) {
        t->undecided++;
        return;
    }
    float found;
    memcpy(&found, &bits, sizeof found);
    t->scores++;
    t->exact += wanted.error == 0;
    const float value = wanted.value.f;
    cr_assert(same_float(value, attune__expr_point(x->expr, &x->bindings, p).f));
    const double error = found == value || same_float(found, value) ? 0 : fabs((double)found - (double)value);
    if (!(error <= wanted.error))
        fail_point(t, text, "device %.9g, interpreter %.9g, bound %.3g at b %d h %d q %d kv %d score %.9g",
                   (double)found, (double)value, wanted.error, p->b, p->h, p->q, p->kv, (double)p->score);
    if (error > 0 && error / wanted.error > t->worst)
        t->worst = error / wanted.error;
}

static void run_words(attune__vulkan_device *device, const uint32_t *words, size_t count, const push *arguments)
{
    const attune__vulkan_pipeline_desc desc = {
        .name = "mods", .words = words, .word_count = count, .push_constants = sizeof(push)};
    attune__vulkan_pipeline pipeline;
    attune__vulkan_slot *slot;
    double seconds;
    cr_assert_eq(attune__vulkan_pipeline_create(device, &desc, &pipeline), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune__vulkan_begin(device, true, &slot), ATTUNE_OK, "%s", attune_last_error());
    device->vk.CmdBindPipeline(slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle);
    device->vk.CmdPushConstants(slot->commands, pipeline.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof *arguments,
                                arguments);
    device->vk.CmdDispatch(slot->commands, (POINTS + 63) / 64, 1, 1);
    cr_assert_eq(attune__vulkan_finish(device, slot, NULL, &seconds), ATTUNE_OK, "%s", attune_last_error());
    attune__vulkan_pipeline_destroy(device, &pipeline);
}

static float draw_special(uint64_t *state)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 0.0f};
    return values[random_expr_next(state) % 4];
}

/* NaN and infinity among the floats that expressions read. */
static void make_nonfinite(random_expr *e, uint64_t *state)
{
    for (uint32_t i = 0; i < e->capture_count; i++) {
        const attune_dtype dtype = e->captures[i].array.dtype;
        void *data = e->storage[i];
        for (size_t n = 0; n < sizeof e->storage[i] / attune_dtype_size(dtype); n++) {
            const float value = draw_special(state);
            if (random_expr_next(state) % 3)
                continue;
            if (dtype == ATTUNE_F32)
                ((float *)data)[n] = value;
            else if (dtype == ATTUNE_F16)
                ((uint16_t *)data)[n] = attune__f16_from_f32(value);
            else if (dtype == ATTUNE_BF16)
                ((uint16_t *)data)[n] = attune__bf16_from_f32(value);
        }
    }
}

/* special: NaN and infinity among captures and scores. */
static void run_pair(attune_device *device, attune_buffer *buffer, uint64_t seed, uint32_t complexity, bool special,
                     tally *t)
{
    static random_expr e[2];
    static bound x[2];
    static arena a;
    static attune__mods_table tables[2];
    uint64_t state = seed ^ UINT64_C(0x5851F42D4C957F2D);
    bind_random(&x[0], &e[0], seed, ATTUNE_EXPR_MASK, complexity);
    bind_random(&x[1], &e[1], seed, ATTUNE_EXPR_SCORE, complexity);
    for (int i = 0; i < 2 && special; i++)
        make_nonfinite(&e[i], &state);
    arena_reset(&a, attune__vulkan_address(buffer, 0), seed);
    push arguments = {.count = POINTS};
    for (int i = 0; i < 2; i++) {
        tables[i] = (attune__mods_table){
            .q_len = (int32_t)random_expr_between(&state, 1, 240),
            .kv_len = (int32_t)random_expr_between(&state, 1, 240),
            .group = (int32_t)random_expr_between(&state, 1, 4),
            .b0 = (int32_t)random_expr_between(&state, 0, 3),
            .h0 = (int32_t)random_expr_between(&state, 0, 3),
            .q0 = (int32_t)random_expr_between(&state, 0, 100),
        };
        if (i) { /* both see the same indices */
            tables[1].b0 = tables[0].b0;
            tables[1].h0 = tables[0].h0;
            tables[1].q0 = tables[0].q0;
            tables[1].group = tables[0].group;
        }
        *(i ? &arguments.score : &arguments.mask) = place_table(&a, &x[i], &tables[i], &state);
    }
    attune_point points[POINTS];
    const size_t at = arena_take(&a, POINTS * sizeof(gpu_point), 4);
    for (int n = 0; n < POINTS; n++) {
        attune_point p = draw_point(&state, &tables[0]);
        if (special && n % 2)
            p.score = draw_special(&state);
        points[n] = p;
        const gpu_point given = {p.b - tables[0].b0, p.h - tables[0].h0, p.q - tables[0].q0, p.kv, p.score};
        memcpy(a.bytes + at + (size_t)n * sizeof given, &given, sizeof given);
    }
    arguments.points = a.address + at;
    const size_t results = arena_take(&a, POINTS * 8, 4);
    arguments.results = a.address + results;
    cr_assert_eq(attune_buffer_write(buffer, 0, a.bytes, ARENA_SIZE), ATTUNE_OK, "%s", attune_last_error());
    uint32_t *words;
    size_t count;
    cr_assert_eq(attune__mods_splice(&attune__default_allocator, mods_template, sizeof mods_template / 4,
                                     &(attune__mods){.mask = x[0].expr, .score = x[1].expr}, &words, &count),
                 ATTUNE_OK, "%s", attune_last_error());
    run_words(attune__vulkan_of(device), words, count, &arguments);
    attune__free(&attune__default_allocator, words);
    static uint32_t found[POINTS * 2];
    cr_assert_eq(attune_buffer_read(buffer, results, found, sizeof found), ATTUNE_OK, "%s", attune_last_error());
    t->failing[0] = t->failing[1] = NULL;
    for (int n = 0; n < POINTS; n++) {
        attune_point p = points[n];
        check_mask(&x[0], e[0].text, &p, found[2 * n], t);
        p.q_len = tables[1].q_len;
        p.kv_len = tables[1].kv_len;
        check_score(&x[1], e[1].text, &p, found[2 * n + 1], t);
    }
    attune__expr_release(x[0].expr);
    attune__expr_release(x[1].expr);
}

static void run_pairs(uint64_t full, bool special)
{
    fixture r = fixture_open();
    const uint64_t count = scaled(full), seed = test_seed() + 31;
    tally t = {0};
    uint64_t pairs = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!test_part(i))
            continue;
        run_pair(r.device, r.buffer, seed + i, 1 + (uint32_t)(i % 29), special, &t);
        pairs++;
    }
    fixture_close(&r);
    if (!pairs)
        cr_skip_test("none of %llu random cases is of this part (ATTUNE_TEST_PART)", (unsigned long long)count);
    const uint64_t all = 2 * POINTS * pairs;
    cr_assert_eq(t.failed, 0, "%llu of %llu points failed", (unsigned long long)t.failed, (unsigned long long)all);
    cr_assert(t.undecided < all / 5, "%llu of %llu undecided: nothing is tested", (unsigned long long)t.undecided,
              (unsigned long long)all);
    cr_log_info(
        "%llu masks and scores, %d points each: %llu masks and %llu scores equal, %llu of them exactly; largest "
        "error %.2f of its bound; %llu undecided",
        (unsigned long long)pairs, POINTS, (unsigned long long)t.masks, (unsigned long long)t.scores,
        (unsigned long long)t.exact, t.worst, (unsigned long long)t.undecided);
}

Test(mods_run, agrees_with_the_interpreter)
{
    run_pairs(500, false);
}

Test(mods_run, agrees_on_nan_and_infinity)
{
    run_pairs(100, true);
}

/* A score expression at POINTS scores (NULL: all 0), all indices 0. */
static void run_score(fixture *r, arena *a, const attune_expr *expr, const attune__mods_table *table,
                      const float *scores, float *results)
{
    uint32_t *words;
    size_t count;
    static uint32_t found[POINTS * 2];
    cr_assert_eq(attune__mods_splice(&attune__default_allocator, runnable, sizeof runnable / 4,
                                     &(attune__mods){.score = expr}, &words, &count),
                 ATTUNE_OK, "%s", attune_last_error());
    const size_t table_at = arena_take(a, attune__mods_table_size(expr), 16);
    attune__mods_table_pack(expr, table, a->bytes + table_at);
    const size_t points = arena_take(a, POINTS * sizeof(gpu_point), 4), results_at = arena_take(a, sizeof found, 4);
    for (size_t n = 0; n < POINTS; n++) {
        const gpu_point p = {.score = scores ? scores[n] : 0};
        memcpy(a->bytes + points + n * sizeof p, &p, sizeof p);
    }
    const push arguments = {.points = a->address + points,
                            .results = a->address + results_at,
                            .score = a->address + table_at,
                            .count = POINTS};
    cr_assert_eq(attune_buffer_write(r->buffer, 0, a->bytes, ARENA_SIZE), ATTUNE_OK);
    run_words(attune__vulkan_of(r->device), words, count, &arguments);
    cr_assert_eq(attune_buffer_read(r->buffer, results_at, found, sizeof found), ATTUNE_OK);
    for (size_t n = 0; n < POINTS; n++)
        memcpy(&results[n], &found[2 * n + 1], 4);
    attune__free(&attune__default_allocator, words);
}

/* ----------------------------------------------------------------------------------------------------------- bounds */

typedef struct gpu_box {
    int32_t b, q_len, kv_len, h[2], q[2], kv[2], row[2];
} gpu_box;

/* Whether a mask is true and false in a box: bits 2 and 1. */
static unsigned truths(const bound *x, const attune__mods_table *table, const gpu_box *box)
{
    unsigned found = 0;
    attune_point p = {.b = box->b, .q_len = box->q_len, .kv_len = box->kv_len};
    for (int64_t h = box->h[0]; h <= box->h[1]; h++)
        for (int64_t q = box->q[0]; q <= box->q[1]; q++)
            for (int64_t kv = box->kv[0]; kv <= box->kv[1]; kv++) {
                p.h = (int32_t)h;
                p.h_kv = p.h / table->group;
                p.q = (int32_t)q;
                p.kv = (int32_t)kv;
                found |= attune__expr_point(x->expr, &x->bindings, &p).i ? 2 : 1;
            }
    return found;
}

static void draw_ends(uint64_t *state, int32_t first, int32_t most, int32_t ends[2])
{
    const int64_t last = (int64_t)first + random_expr_between(state, 0, most);
    ends[0] = first;
    ends[1] = last > INT32_MAX ? INT32_MAX : (int32_t)last;
}

/* Runs a mask's bounds over boxes, which are also those of the whole mask's indices. */
static void run_boxes(const fixture *r, const bound *x, const attune__mods_table *drawn, uint64_t *state,
                      const gpu_box *boxes, uint32_t *found)
{
    static arena a;
    attune__mods_table table = *drawn;
    arena_reset(&a, attune__vulkan_address(r->buffer, 0), *state);
    push arguments = {.count = POINTS, .mask = place_table(&a, x, &table, state)};
    const size_t at = arena_take(&a, POINTS * sizeof *boxes, 4), results = arena_take(&a, POINTS * 8, 4);
    for (int n = 0; n < POINTS; n++) {
        gpu_box given = boxes[n];
        given.b -= table.b0;
        for (int i = 0; i < 2; i++) {
            given.h[i] -= table.h0;
            given.q[i] -= table.q0;
        }
        memcpy(a.bytes + at + (size_t)n * sizeof given, &given, sizeof given);
    }
    arguments.points = a.address + at;
    arguments.results = a.address + results;
    cr_assert_eq(attune_buffer_write(r->buffer, 0, a.bytes, ARENA_SIZE), ATTUNE_OK, "%s", attune_last_error());
    uint32_t *words;
    size_t count;
    cr_assert_eq(attune__mods_splice(&attune__default_allocator, mods_template_serving,
                                     sizeof mods_template_serving / 4, &(attune__mods){.mask = x->expr}, &words,
                                     &count),
                 ATTUNE_OK, "%s", attune_last_error());
    run_words(attune__vulkan_of(r->device), words, count, &arguments);
    attune__free(&attune__default_allocator, words);
    cr_assert_eq(attune_buffer_read(r->buffer, results, found, POINTS * 8), ATTUNE_OK, "%s", attune_last_error());
}

static void draw_boxes(uint64_t *state, const attune__mods_table *table, gpu_box *boxes)
{
    for (int n = 0; n < POINTS; n++) {
        const attune_point p = draw_point(state, table);
        boxes[n] = (gpu_box){.b = p.b, .q_len = p.q_len, .kv_len = p.kv_len};
        draw_ends(state, p.h, 1, boxes[n].h);
        draw_ends(state, p.q, 4, boxes[n].q);
        draw_ends(state, p.kv, 7, boxes[n].kv);
    }
}

/* Random masks: what bounds say of a box holds at all of its pairs. */
Test(mods_run, bounds)
{
    fixture r = fixture_open();
    const uint64_t count = scaled(60), seed = test_seed() + 97;
    uint64_t decided = 0, boxes_of_all = 0;
    for (uint64_t i = 0; i < count; i++) {
        static random_expr e;
        static bound x;
        static uint32_t found[2 * POINTS];
        gpu_box boxes[POINTS];
        uint64_t state = (seed + i) ^ UINT64_C(0x5851F42D4C957F2D);
        if (!test_part(i))
            continue;
        bind_random(&x, &e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 29));
        const attune__mods_table table = {.q_len = 7,
                                          .kv_len = 9,
                                          .group = (int32_t)random_expr_between(&state, 1, 4),
                                          .b0 = (int32_t)random_expr_between(&state, 0, 3),
                                          .h0 = (int32_t)random_expr_between(&state, 0, 3),
                                          .q0 = (int32_t)random_expr_between(&state, 0, 100)};
        draw_boxes(&state, &table, boxes);
        run_boxes(&r, &x, &table, &state, boxes, found);
        for (int n = 0; n < POINTS; n++) {
            const uint32_t low = found[2 * n], high = found[2 * n + 1] & 1;
            const unsigned has = truths(&x, &table, &boxes[n]);
            cr_assert(low <= 1 && low <= high && !(low && has & 1) && !(!high && has & 2),
                      "%s\n  bounds %u %u, but true and false are %u at q %d kv %d", e.text, low, high, has,
                      boxes[n].q[0], boxes[n].kv[0]);
            decided += low == high;
            boxes_of_all++;
        }
        attune__expr_release(x.expr);
    }
    /* A few masks may be ones that nothing decides. */
    cr_assert(boxes_of_all < 20 * POINTS || decided > boxes_of_all / 8, "%llu of %llu boxes are decided",
              (unsigned long long)decided, (unsigned long long)boxes_of_all);
    fixture_close(&r);
}

/* Masks that calls over a cache have: the bounds of the interpreter. */
Test(mods_run, bounds_of_common_masks)
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
    fixture r = fixture_open();
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        static uint32_t found[2 * POINTS];
        static attune__interval scratch[ATTUNE_EXPR_MAX_NODES];
        bound x = {.expr = parse_with(ATTUNE_EXPR_MASK, masks[i], NULL, 0)};
        gpu_box boxes[POINTS];
        uint64_t state = test_seed() + i;
        const attune__mods_table table = {.q_len = 50, .kv_len = 200, .group = 2};
        draw_boxes(&state, &table, boxes);
        run_boxes(&r, &x, &table, &state, boxes, found);
        for (int n = 0; n < POINTS; n++) {
            const gpu_box *box = &boxes[n];
            attune__box b = {.var = {[ATTUNE__VAR_B] = {.lo = box->b, .hi = box->b},
                                     [ATTUNE__VAR_H] = {.lo = box->h[0], .hi = box->h[1]},
                                     [ATTUNE__VAR_H_KV] = {.lo = box->h[0] / 2, .hi = box->h[1] / 2},
                                     [ATTUNE__VAR_Q] = {.lo = box->q[0], .hi = box->q[1]},
                                     [ATTUNE__VAR_KV] = {.lo = box->kv[0], .hi = box->kv[1]},
                                     [ATTUNE__VAR_Q_LEN] = {.lo = box->q_len, .hi = box->q_len},
                                     [ATTUNE__VAR_KV_LEN] = {.lo = box->kv_len, .hi = box->kv_len}}};
            const attune__interval wanted = attune__expr_bounds(x.expr, &x.bindings, NULL, &b, scratch);
            cr_assert(found[2 * n] == (uint32_t)wanted.lo && (found[2 * n + 1] & 1) == (uint32_t)wanted.hi,
                      "%s: bounds %u %u, expected %d %d at q %d to %d, kv %d to %d", masks[i], found[2 * n],
                      found[2 * n + 1] & 1, wanted.lo, wanted.hi, box->q[0], box->q[1], box->kv[0], box->kv[1]);
        }
        attune__expr_release(x.expr);
    }
    fixture_close(&r);
}

/* Each function over the scores where it does something. */
Test(mods_run, functions)
{
    static const struct {
        const char *text;
        float lo, hi;
        uint32_t undecided; /* at most */
    } cases[] = {
        {"exp(score)", -80, 80, 0},
        {"exp2(score)", -120, 120, 0},
        {"log(score)", 1e-3f, 8, 0},
        {"log2(score)", 1e-3f, 3e4f, 0},
        {"sqrt(score)", 0, 1e6f, 0},
        {"rsqrt(score)", 1e-3f, 1e3f, 0},
        {"tanh(score)", -1, 1, 0},
        {"tanh(score)", -12, 12, 0},
        {"tanh(score)", -1e6f, 1e6f, 0},
        {"sigmoid(score)", -20, 20, 0},
        {"sigmoid(score)", -200, 200, 0},
        {"sin(score)", -20, 20, 0},
        {"cos(score)", -2e3f, 2e3f, 0},
        {"pow(score, 2.5)", 0, 100, 0},
        {"pow(score, 3)", -50, 50, 0},
        {"pow(0 - 1.5, floor(score))", -30, 30, 0},
        {"pow(1.0001, score)", -1e3f, 1e3f, 0},
        {"score % 0.75", -10, 10, 3},
        {"floor(score) - ceil(score * 3)", -10, 10, 0},
        {"score / 3 + 1 / score", 1e-3f, 10, 0},
        {"min(score, 1) + max(score, 0 - 1) + abs(score)", -5, 5, 0},
    };
    fixture r = fixture_open();
    uint64_t state = test_seed() + 3;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static arena a;
        float scores[POINTS], found[POINTS];
        attune__mods_table table = {.group = 1};
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, cases[i].text, NULL, 0);
        for (int n = 0; n < POINTS; n++)
            scores[n] = cases[i].lo + (cases[i].hi - cases[i].lo) * (float)random_expr_between(&state, 0, 99999) / 1e5f;
        a.used = 0;
        a.address = attune__vulkan_address(r.buffer, 0);
        run_score(&r, &a, expr, &table, scores, found);
        uint32_t undecided = 0;
        double worst = 0, relative = 0;
        for (int n = 0; n < POINTS; n++) {
            const attune_point p = {.score = scores[n]};
            const mods_bound wanted = mods_bound_of(expr, NULL, &p);
            const double error = fabs((double)found[n] - (double)wanted.value.f);
            undecided += !wanted.decided;
            cr_assert(!wanted.decided || error <= wanted.error, "%s at %.9g: device %.9g, interpreter %.9g, bound %.3g",
                      cases[i].text, (double)scores[n], (double)found[n], (double)wanted.value.f, wanted.error);
            worst = wanted.decided && error > 0 ? fmax(worst, error / wanted.error) : worst;
            relative = wanted.decided && error > 0 ? fmax(relative, error / fabs((double)wanted.value.f)) : relative;
        }
        cr_assert(undecided <= cases[i].undecided, "%s: %u undecided", cases[i].text, undecided);
        cr_log_info("%s, %g ... %g: largest error %.2f of its bound, %.2g relative", cases[i].text, (double)cases[i].lo,
                    (double)cases[i].hi, worst, relative);
        attune__expr_release(expr);
    }
    fixture_close(&r);
}

/* Each rank and each dimension, at the last index, one past it, and below 0. */
Test(mods_run, edges_of_captures)
{
    static const char *const texts[] = {"c[i]", "c[i, j]", "c[i, j, k]", "c[i, j, k, l]"};
    static const int64_t size[] = {5, 3, 4, 2};
    fixture r = fixture_open();
    for (uint32_t rank = 1; rank <= 4; rank++) {
        const attune_symbol symbols[] = {{"c", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, rank},
                                         {"i", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                         {"j", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                         {"k", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                         {"l", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};
        attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, texts[rank - 1], symbols, 1 + rank);
        for (uint32_t d = 0; d < rank; d++)
            for (int32_t past = -3; past <= 3; past++) {
                static arena a;
                float found[POINTS];
                memset(a.bytes, 7, sizeof a.bytes);
                a.used = 4096;
                a.address = attune__vulkan_address(r.buffer, 0);
                attune__mods_table table = {.group = 1};
                const int32_t index =
                    past > 0 ? (int32_t)size[d] - 2 + past : past; /* -3 ... 0, size - 1 ... size + 1 */
                for (uint32_t s = 0; s < expr->symbol_count; s++) {
                    const uint32_t place = (uint32_t)expr->symbols[s].name[0] - 'i';
                    if (expr->symbols[s].kind == ATTUNE_SYMBOL_CAPTURE) {
                        attune__mods_capture *c = &table.captures[s];
                        *c = (attune__mods_capture){.dtype = ATTUNE_I32, .address = a.address + 2048};
                        memcpy(c->size, size, sizeof size);
                        memcpy(c->stride, (int64_t[]){24, 8, 2, 1}, sizeof c->stride);
                    } else {
                        table.parameters[s].i = place == d ? index : 1;
                    }
                }
                run_score(&r, &a, expr, &table, NULL, found);
                const float wanted = index >= 0 && index < size[d] ? (float)0x07070707 : 0;
                cr_assert(found[0] == wanted, "%s, dimension %u, index %d of %d: %g", texts[rank - 1], d, index,
                          (int)size[d], (double)found[0]);
            }
        attune__expr_release(expr);
    }
    fixture_close(&r);
}

/* Elements further than 4 GiB from the first, in both directions. Only one element of such a capture is there: its
 * address is counted back from that element's. */
Test(mods_run, far_captures)
{
    static const attune_symbol symbols[] = {{"far", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 4},
                                            {"i", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
                                            {"j", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0}};
    static const int64_t size[] = {INT64_C(3000000000), 70000, 1, 5};
    static const struct {
        int32_t i, j;
        int64_t stride[4]; /* elements */
        bool inside;
    } cases[] = {
        {1, 0, {INT64_C(1) << 33, 1, 1, 1}, true},
        {1, 0, {-(INT64_C(1) << 33), 1, 1, 1}, true},
        {2000000000, 69999, {3, 100003, 1, 1}, true},
        {2000000000, 69999, {-3, 100003, INT64_MAX, 1}, true},
        {2147483647, 69999, {-70001, -1, 7, -9}, true},
        {2147483647, 3, {INT64_C(123456789), INT64_C(-987654321012), 0, 0}, true},
        {2147483647, 70000, {70000, 1, 1, 1}, false},
        {-1, 3, {70000, 1, 1, 1}, false},
        {INT32_MIN, 3, {70000, 1, 1, 1}, false},
    };
    fixture r = fixture_open();
    attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, "far[i, j, 0, 4]", symbols, 3);
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        static arena a;
        static attune__mods_table table;
        memset(&a, 0, sizeof a);
        a.address = attune__vulkan_address(r.buffer, 0);
        const size_t at = arena_take(&a, 6, 2) + 4; /* aligned to 2 alone */
        const uint16_t half = attune__f16_from_f32(1.5f + (float)n);
        memcpy(a.bytes + at, &half, sizeof half);
        const uint64_t offset = (uint64_t)cases[n].i * (uint64_t)cases[n].stride[0] +
                                (uint64_t)cases[n].j * (uint64_t)cases[n].stride[1] + 4 * (uint64_t)cases[n].stride[3];
        attune__mods_capture c = {.dtype = ATTUNE_F16, .address = a.address + at - 2 * offset};
        memcpy(c.size, size, sizeof size);
        memcpy(c.stride, cases[n].stride, sizeof c.stride);
        table.group = 1;
        for (uint32_t s = 0; s < 3; s++)
            if (expr->symbols[s].kind == ATTUNE_SYMBOL_CAPTURE)
                table.captures[s] = c;
            else
                table.parameters[s].i = expr->symbols[s].name[0] == 'i' ? cases[n].i : cases[n].j;
        float found[POINTS];
        run_score(&r, &a, expr, &table, NULL, found);
        const float wanted = cases[n].inside ? 1.5f + (float)n : 0;
        cr_assert(found[0] == wanted, "case %zu: %g, not %g", n, (double)found[0], (double)wanted);
    }
    attune__expr_release(expr);
    fixture_close(&r);
}

#define SUMS 16 /* elements of a capture, of which each has POINTS / SUMS contributions */

/* Contributions to an element: random within 2^39 of one another, so that long double has their sum exactly; every
 * second one of half of the elements takes back the one before but for its last bits. The last four have infinities and
 * NaN. */
static float draw_term(uint64_t *state, uint32_t element, uint32_t n, float before)
{
    static const float special[4][2] = {{INFINITY, 0}, {-INFINITY, 0}, {INFINITY, -INFINITY}, {NAN, INFINITY}};
    if (element >= SUMS - 4 && n < 2)
        return special[element - (SUMS - 4)][n];
    const int base = -149 + 20 * (int)element;
    if (element % 2 && n % 2)
        return -before * (float)(1 - 0x1p-20);
    const float mantissa = (float)random_expr_between(state, -0xffffff, 0xffffff);
    return ldexpf(mantissa, (element < SUMS - 4 ? base : 0) + (int)random_expr_between(state, 0, 12));
}

/* Exact sums of captures' gradients, as shaders/gradient.glsl adds and shaders/backward_sums.comp rounds them. */
Test(mods_run, sums_are_exact)
{
    static const attune_symbol symbols[] = {{"c", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1}};
    static arena a;
    fixture r = fixture_open();
    attune_expr *score = parse_with(ATTUNE_EXPR_SCORE, "score * c[q]", symbols, 1);
    attune__gradient *gradient;
    cr_assert_eq(attune__gradient_create(score, &gradient), ATTUNE_OK, "%s", attune_last_error());
    for (uint64_t round = 0; round < 1 + scaled(40); round++) {
        uint64_t state = test_seed() + 11 + round;
        attune__mods_table table = {.group = 1};
        arena_reset(&a, attune__vulkan_address(r.buffer, 0), state);
        const size_t capture = arena_take(&a, SUMS * sizeof(float), 16), sums = arena_take(&a, SUMS * 64, 64);
        const size_t out = arena_take(&a, SUMS * sizeof(float), 16);
        const size_t list = arena_take(&a, sizeof(attune_vulkan_sums), 16);
        memset(a.bytes + sums, 0, (size_t)SUMS * 64);
        memset(a.bytes + out, 0, SUMS * sizeof(float));
        table.captures[0] = (attune__mods_capture){.address = a.address + capture,
                                                   .sums = a.address + sums,
                                                   .dtype = ATTUNE_F32,
                                                   .size = {SUMS},
                                                   .stride = {1}};
        const size_t table_at = arena_take(&a, attune__mods_table_size(score), 16);
        attune__mods_table_pack(score, &table, a.bytes + table_at);
        const size_t points = arena_take(&a, POINTS * sizeof(gpu_point), 4), results = arena_take(&a, POINTS * 8, 4);
        long double wanted[SUMS] = {0};
        for (uint32_t element = 0; element < SUMS; element++) {
            float term = 0;
            for (uint32_t n = 0; n < POINTS / SUMS; n++) {
                term = draw_term(&state, element, n, term);
                wanted[element] += (long double)term;
                const gpu_point p = {.q = (int32_t)element, .score = term};
                memcpy(a.bytes + points + ((size_t)n * SUMS + element) * sizeof p, &p, sizeof p);
            }
        }
        const attune_vulkan_sums job = {.sums = a.address + sums,
                                        .to = a.address + out,
                                        .size = {1, 1, 1, SUMS},
                                        .stride = {0, 0, 0, 4},
                                        .count = SUMS};
        memcpy(a.bytes + list, &job, sizeof job);
        cr_assert_eq(attune_buffer_write(r.buffer, 0, a.bytes, ARENA_SIZE), ATTUNE_OK);
        uint32_t *words;
        size_t count;
        cr_assert_eq(attune__mods_splice(&attune__default_allocator, runnable_gradient, sizeof runnable_gradient / 4,
                                         &(attune__mods){.score = score,
                                                         .gradient = gradient,
                                                         .uniform_reads = attune__gradient_uniform_reads(gradient)},
                                         &words, &count),
                     ATTUNE_OK, "%s", attune_last_error());
        const push adding = {.points = a.address + points,
                             .results = a.address + results,
                             .score = a.address + table_at,
                             .count = POINTS};
        run_words(attune__vulkan_of(r.device), words, count, &adding);
        attune__free(&attune__default_allocator, words);
        run_words(attune__vulkan_of(r.device), runnable_sums, sizeof runnable_sums / 4,
                  &(push){.points = a.address + list});
        float found[SUMS];
        cr_assert_eq(attune_buffer_read(r.buffer, out, found, sizeof found), ATTUNE_OK);
        for (uint32_t i = 0; i < SUMS; i++) {
            const float value = (float)wanted[i];
            /* A driver may flush denormals to 0. */
            cr_assert(same_float(found[i], value) || (fabsf(value) < 0x1p-126f && fabsf(found[i]) <= 0x1p-126f),
                      "round %llu, element %u: %.9g, not %.9g", (unsigned long long)round, i, (double)found[i],
                      (double)value);
        }
    }
    attune__gradient_destroy(gradient);
    attune__expr_release(score);
    fixture_close(&r);
}

/* The copy whose time is the bandwidth: all of it, and nothing past it. */
Test(mods_run, copies)
{
    enum { BYTES = (POINTS + 63) / 64 * 128 * 8 * 16 };
    static unsigned char in[BYTES], out[BYTES + 16];
    fixture r = fixture_open();
    attune_buffer *buffer;
    uint64_t state = test_seed();
    cr_assert_eq(attune_buffer_create(r.device, 2 * BYTES + 16, &buffer), ATTUNE_OK);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)random_expr_next(&state);
    memset(out, 0xa5, sizeof out);
    cr_assert_eq(attune_buffer_write(buffer, 0, in, sizeof in), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(buffer, BYTES, out, sizeof out), ATTUNE_OK);
    const push arguments = {.points = attune__vulkan_address(buffer, 0),
                            .results = attune__vulkan_address(buffer, BYTES)};
    run_words(attune__vulkan_of(r.device), runnable_copy, sizeof runnable_copy / 4, &arguments);
    cr_assert_eq(attune_buffer_read(buffer, BYTES, out, sizeof out), ATTUNE_OK);
    cr_expect_eq(memcmp(in, out, sizeof in), 0);
    for (size_t i = BYTES; i < sizeof out; i++)
        cr_expect_eq(out[i], 0xa5);
    attune_buffer_destroy(buffer);
    fixture_close(&r);
}

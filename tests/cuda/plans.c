/* SPDX-License-Identifier: MIT */
/*
 * The planner's choices against NVRTC's code, without a GPU: every kernel compiles, spills nothing,
 * has no stack frame, fits the architecture's registers and shared memory, and lays out the bytes that the planner
 * counts (a static assertion in the kernels). One test an architecture, so that they run side by side.
 *
 * A run draws from the table; ATTUNE_TEST_SCALE=100 covers most of it. Of what the planner chooses by itself in bf16 a
 * run has one of each pass, beginning where the seed says; ATTUNE_TEST_SCALE=500 is all of it, an hour or more of one
 * core for each architecture, which ATTUNE_TEST_PART shares out.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "base/alloc.h"
#include "cuda/compiler.h"
#include "support/cubin.h"
#include "support/devices.h"
#include "support/heap.h"
#include "support/random_expr.h"

#define KERNELS 8 /* of each architecture, in an ordinary run */
#define CHOSEN  5
#define SERVED  2

typedef struct dims {
    uint32_t head_dim, head_dim_v;
} dims;

static const dims all_dims[] = {{64, 64},   {80, 80},   {96, 96}, {128, 128}, {192, 128},
                                {192, 192}, {256, 256}, {72, 40}, {8, 256}};
static const attune_dtype all_dtypes[] = {ATTUNE_F16, ATTUNE_BF16, ATTUNE_F32};
/* Of a cache: k and v, 0 = the dtype of q. */
static const attune_dtype all_caches[][2] = {
    {0, 0},
    {ATTUNE_F8E4M3, ATTUNE_F8E4M3},
    {ATTUNE_Q8_0, ATTUNE_Q8_0},
    {ATTUNE_I8, ATTUNE_F8E5M2},
    {ATTUNE_Q8_0, ATTUNE_Q4_0},
    {ATTUNE_F16, ATTUNE_F16},
    {ATTUNE_Q4_0, ATTUNE_F32},
    {ATTUNE_I8, ATTUNE_F16},
};
static const dims cache_dims[] = {{64, 64},  {128, 128}, {192, 128}, {256, 256}, {96, 96},
                                  {32, 256}, {320, 256}, {512, 512}, {576, 512}, {264, 264}};
/* Masks and scores that are drawn besides none. */
static const char *const all_masks[] = {
    NULL,
    "kv <= q",
    "kv <= q && q - kv < 1024",
    "(q + kv) % 3 != 0",
    "kv <= q && pad[b, kv]",
    "doc[q] == doc[kv] && kv <= q",
};
static const char *const all_scores[] = {
    NULL,
    "50 * tanh(score / 50)",
    "score - 0.5 * (q - kv)",
    "sigmoid(score) * h",
    "score + columns[kv]",
    "score * rows[b, q] + columns[kv] - heat[h] * (q - kv)",
    "score + bias[kv - q + 4096]",
    "20 * tanh(score / 20) + columns[kv]",
    "score * heat[h] + bias[kv - q + 4096] + 0.5 * columns[kv] * rows[b, q]",
};
static const attune_symbol all_symbols[] = {
    {"heat", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 1},
    {"columns", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 1}, {"rows", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},
    {"pad", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},
};

typedef struct forced {
    const char *what;
    attune_pass_options options;
} forced;

static const forced all_forced[] = {
    {"automatic", {0}},
    {"automatic", {0}},
    {"automatic", {0}},
    {"num_stages 1", {.num_stages = 1}},
    {"num_stages 2", {.num_stages = 2}},
    {"64 x 64", {.block_m = 64, .block_n = 64}},
    {"BLOCK_N 32", {.block_n = 32}},
    {"cuda_sm80", {.kernel = "cuda_sm80"}},
    {"no decode", {.force_use_flex_attention = ATTUNE_ON}},
};

static const forced all_forced_backward[] = {
    {"automatic", {0}},
    {"automatic", {0}},
    {"automatic", {0}},
    {"num_stages 1", {.num_stages = 1}},
    {"num_stages 3", {.num_stages = 3}},
    {"BLOCK_M1 16", {.block_m1 = 16}},
    {"16 x 16", {.block_m1 = 16, .block_n1 = 16, .block_m2 = 16, .block_n2 = 16, .num_stages = 1, .num_warps = 1}},
    {"BLOCK_N1 64", {.block_n1 = 64}},
    {"BLOCK_M2 64, BLOCK_N2 32", {.block_m2 = 64, .block_n2 = 32}},
};

/* Most plans have no options. */
static const forced all_served[] = {
    {"automatic", {0}},
    {"automatic", {0}},
    {"automatic", {0}},
    {"num_stages 1", {.num_stages = 1}},
    {"num_stages 3", {.num_stages = 3}},
};

/* Its tiles are automatic. */
static const forced fixed_order = {"automatic", {.deterministic = ATTUNE_ON}};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define PICK(array)  (array)[random_expr_next(state) % COUNT(array)]

typedef struct fixture {
    heap heap;
    attune__host host;
    attune_instance *instance;
    attune_expr *masks[COUNT(all_masks)], *scores[COUNT(all_scores)];
    uint64_t compiled, misfits, draws;
    double seconds;
} fixture;

static void open_fixture(fixture *w)
{
    nvrtc_or_skip();
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    w->host = (attune__host){.allocator = heap_allocator(&w->heap)};
    cr_assert_eq(attune_instance_create(&desc, &w->instance), ATTUNE_OK);
    for (size_t i = 1; i < COUNT(all_masks); i++)
        cr_assert_eq(attune_expr_create(w->instance, ATTUNE_EXPR_MASK, all_masks[i], all_symbols, COUNT(all_symbols),
                                        &w->masks[i]),
                     ATTUNE_OK, "%s", attune_last_error());
    for (size_t i = 1; i < COUNT(all_scores); i++)
        cr_assert_eq(attune_expr_create(w->instance, ATTUNE_EXPR_SCORE, all_scores[i], all_symbols, COUNT(all_symbols),
                                        &w->scores[i]),
                     ATTUNE_OK, "%s", attune_last_error());
}

static void close_fixture(fixture *w)
{
    for (size_t i = 1; i < COUNT(all_masks); i++)
        attune_expr_destroy(w->masks[i]);
    for (size_t i = 1; i < COUNT(all_scores); i++)
        attune_expr_destroy(w->scores[i]);
    attune_instance_destroy(w->instance);
    cr_assert_eq(atomic_load(&w->heap.live), 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Every kernel must be free of spills, but what a caller forces upon it. */
static void check_cubin(const char *what, const attune_limits *limits, const attune_plan_choice *choice,
                        attune__cuda_role role, bool automatic, const void *cubin, size_t size)
{
    cubin_figures f;
    const char *wrong = cubin_read(cubin, size, &f);
    cr_assert_null(wrong, "%s: %s", what, wrong);
    if (automatic) {
        cr_expect_eq(f.spills, 0, "%s: %u instructions on local memory, %u registers", what, f.spills, f.registers);
        cr_expect_eq(f.stack, 0, "%s: %u bytes of stack", what, f.stack);
    }
    const uint32_t fixed = f.shared > limits->shared_memory_reserved ? f.shared - limits->shared_memory_reserved : 0;
    cr_expect_eq(fixed, 0, "%s: %u bytes of static shared memory, which the planner does not count", what, fixed);
    cr_expect_leq(choice->shared_memory, limits->shared_memory, "%s", what);
    cr_expect_leq(f.registers, limits->registers_per_thread, "%s", what);
    cr_expect_leq((f.registers + 7) / 8 * 8 * choice->workgroup_invocations, limits->registers, "%s: %u registers",
                  what, f.registers);
    if (role == ATTUNE__CUDA_DELTA || role == ATTUNE__CUDA_APPEND)
        cr_expect_eq(f.mma + f.wgmma, 0, "%s: no products of matrices", what);
    else if (!strcmp(choice->kernel, "cuda_sm90a") || !strcmp(choice->kernel, "cuda_serving_sm90a"))
        cr_expect_gt(f.wgmma, 0, "%s: no HGMMA", what);
    else if (!strcmp(choice->kernel, "cuda_sm100a"))
        cr_expect_gt(f.tcgen05, 0, "%s: no UTCHMMA", what);
    else
        cr_expect_gt(f.mma, 0, "%s: no HMMA", what);
}

static void compile_role(fixture *w, const attune_limits *limits, const attune__program_desc *desc,
                         attune__cuda_role role, const char *what, bool automatic)
{
    attune__cuda_kernel kernel;
    void *cubin = NULL;
    size_t size = 0;
    cr_assert_eq(attune__cuda_specialise(&w->host.allocator, desc, limits->architecture, role, &kernel), ATTUNE_OK,
                 "%s: %s", what, attune_last_error());
    const double start = now();
    const attune_status status = attune__cuda_compile(&w->host, &kernel, &cubin, &size);
    const double seconds = now() - start;
    cr_expect_eq(status, ATTUNE_OK, "%s: %s", what, attune_last_error());
    if (status == ATTUNE_OK)
        check_cubin(what, limits, desc->choice, role, automatic, cubin, size);
    cr_log_info("%5.2f s %s", seconds, what);
    w->seconds = seconds > w->seconds ? seconds : w->seconds;
    attune__free(&w->host.allocator, cubin);
    attune__free(&w->host.allocator, (void *)(uintptr_t)kernel.mods);
}

/* One of the table: indices, and what else makes a problem. */
typedef struct entry {
    bool back, gradients;
    dims dims;
    attune_dtype dtype;
    size_t mask, score;
    const forced *forced;
    int64_t kv_heads, q_len;
    bool serving, tree, split, shares;
    size_t cache;
} entry;

static entry entry_drawn(fixture *w, uint64_t *state)
{
    entry e = {.back = random_expr_next(state) % 2};
    /* Every pair of the two comes up in a run, over all architectures; the rest is drawn. */
    e.dims = all_dims[w->draws % COUNT(all_dims)];
    e.dtype = all_dtypes[w->draws++ / COUNT(all_dims) % COUNT(all_dtypes)];
    e.mask = random_expr_next(state) % COUNT(all_masks);
    e.score = random_expr_next(state) % COUNT(all_scores);
    e.forced = e.back ? &PICK(all_forced_backward) : &PICK(all_forced);
    const bool decode = random_expr_next(state) % 4 == 0;
    e.kv_heads = random_expr_next(state) % 2 ? 2 : 8;
    e.q_len = decode ? random_expr_between(state, 1, 8) : 2048;
    e.gradients = e.back && random_expr_next(state) % 2;
    return e;
}

/* The nth of those that the planner chooses by itself. */
enum { FORWARD, DECODE, BACKWARD, CAPTURES, FIXED_ORDER, PASSES };
#define CHOSEN_COUNT (PASSES * COUNT(all_masks) * COUNT(all_scores) * COUNT(all_dims))
static entry entry_chosen(uint64_t n)
{
    const uint64_t pass = n % PASSES;
    entry e = {.back = pass >= BACKWARD,
               .gradients = pass == CAPTURES,
               .q_len = pass == DECODE ? 1 : 2048,
               .dtype = ATTUNE_BF16,
               .kv_heads = 2};
    e.forced = pass == FIXED_ORDER ? &fixed_order : &all_forced[0];
    n /= PASSES;
    e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
    e.score = n % COUNT(all_scores), n /= COUNT(all_scores);
    e.dims = all_dims[n];
    return e;
}

static void compile_one(fixture *w, const attune_profile *profile, const entry *e)
{
    const bool back = e->back;
    const dims d = e->dims;
    const forced *f = e->forced;
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = e->dtype,
                              .head_dim = d.head_dim,
                              .head_dim_v = d.head_dim_v,
                              .heads = 8,
                              .kv_heads = e->kv_heads,
                              .q_len = e->q_len,
                              .kv_len = 4096,
                              .mask = w->masks[e->mask],
                              .score = w->scores[e->score],
                              .direction = back ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                              .capture_gradient_elements = e->gradients ? 10000 : 0,
                              .lse = true};
    if (e->serving) {
        problem.kv_dtype = all_caches[e->cache][0];
        problem.v_dtype = all_caches[e->cache][1];
        problem.batch = 16;
        problem.tokens = 16 * e->q_len;
        problem.page = 16;
        problem.tree = e->tree;
        problem.split_keys = e->split ? 1024 : 0;
        problem.shared_sequences = e->shares ? 16 : 0;
        problem.sinks = e->tree;
    }
    attune_kernel_options options = {.struct_size = sizeof options};
    *(back ? &options.bwd : &options.fwd) = f->options;
    attune__shape shape;
    attune__decision decision;
    cr_assert_eq(attune__shape_from_problem(&problem, &shape), ATTUNE_OK, "%s", attune_last_error());
    attune__gradient *gradient = NULL;
    if (back && problem.score)
        cr_assert_eq(attune__gradient_create(problem.score, &gradient), ATTUNE_OK, "%s", attune_last_error());
    shape.expr = attune__analyse(problem.mask, problem.score, gradient);
    const attune_status chosen = attune__plan_choose(&profile->limits, &shape, &options, &decision);
    const bool automatic = !strcmp(f->what, "automatic");
    cr_assert(chosen == ATTUNE_OK || (!automatic && chosen != ATTUNE_INTERNAL), "%s", attune_last_error());
    if (chosen != ATTUNE_OK) {
        attune__gradient_destroy(gradient);
        w->misfits++;
        return;
    }
    const attune_plan_choice *c = &decision.choice;
    /* As of ranks, whose partial results are f32. */
    shape.partial = !e->serving && (w->compiled + w->misfits) % 4 == 1;
    char what[400];
    const int length =
        snprintf(what, sizeof what,
                 "%s %s, k %s, v %s %u,%u q_len %lld%s%s, %s, %s, %s: %s%s%s %u x %u, %u x %u, stages %u, warps %u",
                 profile->name, attune_dtype_string(e->dtype), attune_dtype_string(shape.k_dtype),
                 attune_dtype_string(shape.v_dtype), d.head_dim, d.head_dim_v, (long long)problem.q_len,
                 e->split  ? e->tree ? ", a tree, split" : ", split"
                 : e->tree ? ", a tree"
                           : "",
                 e->shares ? ", shared" : "", e->mask ? all_masks[e->mask] : "no mask",
                 e->score ? all_scores[e->score] : "no score", f->what, c->kernel, shape.partial ? " of f32" : "",
                 c->decode    ? " decode"
                 : back       ? " backward"
                 : e->serving ? " serving"
                              : "",
                 back ? c->block_m1 : c->block_m, back ? c->block_n1 : c->block_n, c->block_m2, c->block_n2,
                 c->num_stages, c->num_warps);
    const attune__program_desc desc = {&shape, c, &decision.variant, problem.mask, problem.score, gradient, NULL};
    for (uint32_t role = 0; role < ATTUNE__CUDA_ROLES; role++) {
        if (!attune__cuda_has_role(&desc, (attune__cuda_role)role))
            continue;
        snprintf(what + length, sizeof what - (size_t)length, ", role %u", role);
        compile_role(w, &profile->limits, &desc, (attune__cuda_role)role, what, automatic);
    }
    attune__gradient_destroy(gradient);
    w->compiled++;
}

static void open_profile(fixture *w, const char *name, attune_profile *profile)
{
    *profile = (attune_profile){.struct_size = sizeof *profile};
    open_fixture(w);
    cr_assert_eq(attune_profile_find(name, profile), ATTUNE_OK);
}

static void compile_drawn(const char *name, uint64_t architecture)
{
    static fixture w;
    attune_profile profile;
    open_profile(&w, name, &profile);
    uint64_t state = test_seed() + profile.limits.architecture;
    const uint64_t wanted = scaled(KERNELS);
    w.draws = architecture * wanted;
    for (uint64_t tries = 0; w.compiled < wanted && tries < 4 * wanted; tries++) {
        const entry e = entry_drawn(&w, &state);
        compile_one(&w, &profile, &e);
    }
    cr_assert_eq(w.compiled, wanted, "%llu of %llu", (unsigned long long)w.compiled, (unsigned long long)wanted);
    close_fixture(&w);
}

static void compile_chosen(const char *name)
{
    static fixture w;
    attune_profile profile;
    open_profile(&w, name, &profile);
    const uint64_t wanted = scaled(CHOSEN), count = wanted < CHOSEN_COUNT ? wanted : CHOSEN_COUNT;
    const uint64_t first = test_seed() % CHOSEN_COUNT + profile.limits.architecture;
    for (uint64_t i = 0; i < count; i++) {
        if (!test_part(i))
            continue;
        /* A step without a common factor: neighbours are of different passes, masks, scores and head dimensions. */
        const entry e = entry_chosen((first + i) % CHOSEN_COUNT * 1009 % CHOSEN_COUNT);
        compile_one(&w, &profile, &e);
    }
    close_fixture(&w);
}

/* The nth of those over a cache, of which a run has some. */
#define SERVED_COUNT                                                                                                   \
    (2 * 2 * 2 * 2 * 3 * COUNT(all_served) * COUNT(all_caches) * COUNT(cache_dims) * COUNT(all_masks) *                \
     COUNT(all_scores))
static entry entry_served(uint64_t n)
{
    entry e = {.serving = true, .kv_heads = 2, .shares = n % 2};
    n /= 2;
    e.forced = &all_served[n % COUNT(all_served)], n /= COUNT(all_served);
    e.cache = n % COUNT(all_caches), n /= COUNT(all_caches);
    e.dims = cache_dims[n % COUNT(cache_dims)], n /= COUNT(cache_dims);
    if (e.dims.head_dim % 32) /* no whole blocks */
        e.cache = e.cache % 2;
    e.dtype = all_dtypes[n % 3], n /= 3;
    e.q_len = n % 2 ? 1 : 256, n /= 2;
    e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
    e.score = n % COUNT(all_scores), n /= COUNT(all_scores);
    e.tree = n % 2, n /= 2;
    e.split = n % 2;
    return e;
}

static void compile_served(const char *name)
{
    static fixture w;
    attune_profile profile;
    open_profile(&w, name, &profile);
    const uint64_t wanted = scaled(SERVED), count = wanted < SERVED_COUNT ? wanted : SERVED_COUNT;
    const uint64_t first = test_seed() % SERVED_COUNT + profile.limits.architecture;
    for (uint64_t i = 0; i < count; i++) {
        if (!test_part(i))
            continue;
        /* A step without a common factor: neighbours are of different types and expressions. */
        const entry e = entry_served((first + i) * 1009 % SERVED_COUNT);
        compile_one(&w, &profile, &e);
    }
    close_fixture(&w);
}

/* Plans that had spilled, and that no draw is sure to meet: a pass of entry_chosen, and places in the tables. */
Test(cuda_chosen, those_that_spilled)
{
    static const struct {
        const char *profile;
        uint64_t pass;
        size_t mask, score, dims;
    } were[] = {
        {"h200", CAPTURES, 5, 5, 3}, {"h200", FORWARD, 0, 1, 8},  {"h200", FIXED_ORDER, 1, 2, 3},
        {"a100", CAPTURES, 0, 6, 3}, {"a100", DECODE, 1, 0, 6},   {"b200", CAPTURES, 0, 6, 3},
        {"b200", FORWARD, 4, 0, 3},  {"b200", BACKWARD, 5, 1, 6}, {"b200", FIXED_ORDER, 4, 6, 3},
    };
    for (size_t i = 0; i < COUNT(were); i++) {
        static fixture w;
        attune_profile profile;
        open_profile(&w, were[i].profile, &profile);
        const uint64_t scores = were[i].score + COUNT(all_scores) * were[i].dims;
        const entry e = entry_chosen(were[i].pass + PASSES * (were[i].mask + COUNT(all_masks) * scores));
        compile_one(&w, &profile, &e);
        close_fixture(&w);
    }
}

#define ARCHITECTURE(name, profile, number)                                                                            \
    Test(cuda_plans, name)                                                                                             \
    {                                                                                                                  \
        compile_drawn(profile, number);                                                                                \
    }                                                                                                                  \
    Test(cuda_chosen, name)                                                                                            \
    {                                                                                                                  \
        compile_chosen(profile);                                                                                       \
    }                                                                                                                  \
    Test(cuda_served, name)                                                                                            \
    {                                                                                                                  \
        compile_served(profile);                                                                                       \
    }

ARCHITECTURE(sm_80, "a100", 0)
ARCHITECTURE(sm_86, "a6000", 1)
ARCHITECTURE(sm_89, "rtx4090", 2)
ARCHITECTURE(sm_90a, "h200", 3)
ARCHITECTURE(sm_100a, "b200", 4)
ARCHITECTURE(sm_120a, "rtx5090", 5)

/* Dense heads past 256 columns, of which each launch has half the values. */
Test(cuda_plans, wide_heads)
{
    static const dims wide[] = {{512, 512}, {264, 264}, {576, 512}, {320, 256}, {128, 384}, {504, 504}};
    static const char *const profiles[] = {"h200", "a6000", "a100", "rtx5090", "b200", "rtx4090"};
    const uint64_t all = 2 * COUNT(all_dtypes) * COUNT(wide) * COUNT(all_masks) * COUNT(all_scores) * COUNT(profiles);
    const uint64_t first = test_seed() % all;
    for (uint64_t i = 0; i < scaled(4) && i < all; i++) {
        uint64_t n = (first + i) * 1009 % all;
        if (!test_part(i))
            continue;
        static fixture w;
        attune_profile profile;
        entry e = {.kv_heads = 2, .forced = &all_forced[0]};
        e.q_len = n % 2 ? 4 : 2048, n /= 2;
        open_profile(&w, profiles[n % COUNT(profiles)], &profile), n /= COUNT(profiles);
        e.dtype = all_dtypes[n % COUNT(all_dtypes)], n /= COUNT(all_dtypes);
        e.dims = wide[n % COUNT(wide)], n /= COUNT(wide);
        e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
        e.score = n;
        compile_one(&w, &profile, &e);
        cr_assert_eq(w.misfits, 0);
        close_fixture(&w);
    }
}

/* Over a cache with wgmma, which few draws of the others have: not of the widest heads, where only calls without
 * expressions of pairs are. */
Test(cuda_served, wgmma)
{
    static const uint8_t widths[] = {0, 1, 2, 4};
    static fixture w;
    attune_profile profile;
    open_profile(&w, "h200", &profile);
    const uint64_t all = 2 * 2 * COUNT(widths) * COUNT(all_masks) * COUNT(all_scores), first = test_seed() % all;
    for (uint64_t i = 0; i < scaled(4) && i < all; i++) {
        uint64_t n = (first + i) * 1009 % all;
        if (!test_part(i))
            continue;
        entry e = {.serving = true, .kv_heads = 2, .q_len = 256, .forced = &all_served[0]};
        e.dtype = all_dtypes[n % 2], n /= 2;
        e.tree = n % 2, n /= 2;
        e.dims = cache_dims[widths[n % COUNT(widths)]], n /= COUNT(widths);
        e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
        e.score = n % COUNT(all_scores);
        compile_one(&w, &profile, &e);
    }
    close_fixture(&w);
}

/* The kernels that KERNEL alone selects, in both architectures that have tcgen05. */
Test(cuda_plans, tcgen05)
{
    static fixture w;
    static const forced named = {"automatic", {.kernel = "cuda_sm100a"}};
    static const uint32_t architectures[] = {100, 103};
    attune_profile profile;
    open_profile(&w, "b200", &profile);
    const uint64_t all = COUNT(all_masks) * COUNT(all_scores) * COUNT(all_dims) * 2, first = test_seed() % all;
    for (uint64_t i = 0; i < scaled(4) && i < all; i++) {
        uint64_t n = (first + i) * 1009 % all;
        if (!test_part(i))
            continue;
        profile.limits.architecture = architectures[n % 2], n /= 2;
        entry e = {.q_len = 2048, .dtype = all_dtypes[i % 2], .kv_heads = 2, .forced = &named};
        e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
        e.score = n % COUNT(all_scores), n /= COUNT(all_scores);
        e.dims = all_dims[n];
        compile_one(&w, &profile, &e);
    }
    cr_assert_eq(w.misfits, 0);
    close_fixture(&w);
}

/* Likewise backward: its tiles, by pairs of CTAs and without, dK and dV together and apart, one stage and two. */
Test(cuda_plans, tcgen05_backward)
{
    static fixture w;
    static const forced named[] = {{"automatic", {.kernel = "cuda_sm100a"}},
                                   {"automatic", {.kernel = "cuda_sm100a", .deterministic = ATTUNE_ON}},
                                   {"automatic", {.kernel = "cuda_sm100a", .block_n1 = 128}}};
    static const dims some_dims[] = {{128, 128}, {64, 64},   {96, 96},   {72, 40},  {64, 128},  {192, 128},
                                     {256, 256}, {192, 192}, {256, 128}, {64, 256}, {256, 136}, {136, 24}};
    static const uint32_t architectures[] = {100, 103};
    attune_profile profile;
    open_profile(&w, "b200", &profile);
    const uint64_t all = COUNT(all_masks) * COUNT(all_scores) * COUNT(some_dims) * 4, first = test_seed() % all;
    for (uint64_t i = 0; i < scaled(4) && i < all; i++) {
        uint64_t n = (first + i) * 1009 % all;
        if (!test_part(i))
            continue;
        profile.limits.architecture = architectures[n % 2], n /= 2;
        entry e = {.back = true, .q_len = 2048, .dtype = all_dtypes[i % 2], .kv_heads = 2, .forced = &named[i / 2 % 3]};
        e.mask = n % COUNT(all_masks), n /= COUNT(all_masks);
        e.score = n % COUNT(all_scores), n /= COUNT(all_scores);
        e.dims = some_dims[n % COUNT(some_dims)], n /= COUNT(some_dims);
        e.gradients = n && e.score;
        compile_one(&w, &profile, &e);
    }
    cr_assert_eq(w.misfits, 0);
    close_fixture(&w);
}

/* The reader refuses damaged cubins. */
Test(cuda_plans, the_reader_refuses_what_is_no_cubin)
{
    cubin_figures f;
    uint8_t bytes[256] = {0};
    cr_assert_not_null(cubin_read(bytes, 0, &f));
    cr_assert_not_null(cubin_read(bytes, sizeof bytes, &f));
    memcpy(bytes, "\177ELF\2", 5);
    bytes[18] = 190;
    cr_assert_not_null(cubin_read(bytes, sizeof bytes, &f));
}

/* SPDX-License-Identifier: MIT */
/* For every device, type, head dimensions, direction, mask and options: a plan within every limit, or an error that
 * says what to change, and the change works. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/alloc.h"
#include "expr/expr.h"
#include "plan/formulas.h"
#include "plan/plan.h"
#include "support/devices.h"
#if ATTUNE_HAVE_VULKAN
#include "vulkan/launch.h"
#include "vulkan/workgroup.h"
#endif

static uint64_t state;

static uint64_t next(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t pick(const uint32_t *values, size_t count)
{
    return values[next() % count];
}
#define PICK(...) pick((const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* Those with words for each key, and others. Made once, for the life of the process. */
static const attune_expr *random_expr_of(attune_expr_kind kind)
{
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"pad", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2},
                                            {"of", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 2}};
    static const char *const texts[2][5] = {
        {"q >= kv", "pad[b, kv]", "pad[h, kv] || bias[kv] > bias[q]", "bias[q] == bias[kv] || q > kv", "kv < 7"},
        {"tanh(score)", "score + bias[kv]", "score * of[h, kv]", "score * of[b, kv] + of[h, kv] - bias[2 * kv]",
         "((((score + bias[kv]) * 2 + bias[kv + 1]) * 2 + bias[kv + 2]) * 2 + of[h, kv]) * 2 + of[b, kv]"}};
    static attune_expr *made[2][5];
    const size_t i = kind == ATTUNE_EXPR_SCORE, j = next() % 5;
    if (!made[i][j])
        cr_assert_eq(attune__expr_parse(&attune__default_allocator, kind, texts[i][j], symbols, 3, &made[i][j]),
                     ATTUNE_OK, "%s", attune_last_error());
    return made[i][j];
}

static const char *describe(const attune_profile *p, const attune_problem *q)
{
    static char text[256];
    snprintf(text, sizeof text,
             "%s with %u bytes, direction %d, dtype %d, D %u/%u, B %" PRId64 ", H %" PRId64 "/%" PRId64 ", L %" PRId64
             "/%" PRId64 ", mask %d %u x %u",
             p->name, p->limits.shared_memory, q->direction, q->dtype, q->head_dim, q->head_dim_v, q->batch, q->heads,
             q->kv_heads, q->q_len, q->kv_len, q->block_mask, q->mask_q_block, q->mask_kv_block);
    return text;
}

static attune_problem random_problem(const attune_profile *profile)
{
    attune_problem q = {.struct_size = sizeof q, .direction = next() % 2 ? ATTUNE_BACKWARD : ATTUNE_FORWARD};
    q.dtype = (attune_dtype)PICK(ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16);
    if (profile->limits.backend == ATTUNE_BACKEND_CPU && next() % 4 == 0)
        q.dtype = ATTUNE_F64;
    q.head_dim = 8 + 8 * (uint32_t)(next() % 32);
    switch (next() % 5) {
    case 0:
        q.head_dim = PICK(64, 128, 192, 256);
        break;
    case 1:
        q.head_dim = 192, q.head_dim_v = 128;
        break;
    case 2:
        q.head_dim_v = PICK(8, 16, 64, 128, 256);
        break;
    case 3:
        q.head_dim_v = 8 + 8 * (uint32_t)(next() % 32);
        break;
    }
    q.batch = PICK(1, 1, 2, 7, 64);
    q.kv_heads = PICK(1, 2, 8);
    q.heads = q.kv_heads * PICK(1, 1, 3, 4, 8);
    q.q_len = PICK(1, 2, 7, 8, 9, 16, 17, 63, 64, 100, 127, 128, 1000, 4096, 100000);
    q.kv_len = PICK(0, 1, 100, 255, 256, 1000, 8192, 131072);
    if (next() % 2) {
        q.block_mask = true;
        q.mask_q_block = PICK(0, 16, 48, 64, 128, 256, 1024);
        q.mask_kv_block = PICK(0, 16, 48, 64, 96, 128, 1024);
    }
    if (q.block_mask && next() % 2)
        q.mask = random_expr_of(ATTUNE_EXPR_MASK);
    if (next() % 2)
        q.score = random_expr_of(ATTUNE_EXPR_SCORE);
    q.lse = next() % 2;
    if (q.direction == ATTUNE_FORWARD && q.dtype != ATTUNE_F64 && profile->limits.backend != ATTUNE_BACKEND_OPENCL &&
        next() % 4 == 0) {
        q.kv_dtype = (attune_dtype)PICK(0, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16);
        q.o_dtype = (attune_dtype)PICK(0, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16);
    }
    return q;
}

static void random_pass(attune_pass_options *o, bool forward, bool backward)
{
    uint64_t bits = next() & next() & next();
    if (forward) {
        o->block_m = bits & 1 ? PICK(1, 4, 8, 16, 24, 32, 48, 64, 128, 192, 256, 1024) : 0;
        o->block_n = bits & 2 ? PICK(8, 16, 32, 64, 80, 128, 256, 512) : 0;
        o->split_kv = bits & 4 ? PICK(1, 2, 7, 64, 1024) : 0;
        o->force_use_flex_attention = bits & 8 ? (attune_choice)PICK(1, 2) : 0;
        o->rows_guaranteed_safe = bits & 16 && next() % 2 ? ATTUNE_ON : 0;
    }
    if (backward) {
        o->block_m1 = bits & 32 ? PICK(16, 32, 64, 128, 100) : 0;
        o->block_n1 = bits & 64 ? PICK(16, 32, 64, 128, 256) : 0;
        o->block_m2 = bits & 128 ? PICK(16, 32, 64, 128) : 0;
        o->block_n2 = bits & 256 ? PICK(16, 32, 64, 128) : 0;
        o->write_dq = bits & 512 ? (attune_choice)PICK(1, 2) : 0;
    }
    o->num_warps = bits & 1024 ? PICK(1, 2, 3, 4, 8, 12, 16, 32) : 0;
    o->num_stages = bits & 2048 ? PICK(1, 2, 3, 4, 5, 8) : 0;
    o->prescale_qk = bits & 4096 ? (attune_choice)PICK(1, 2) : 0;
    o->use_tma = bits & 8192 && next() % 4 == 0 ? (attune_choice)PICK(1, 2) : 0;
    o->approximate_tanh = bits & 32768 ? (attune_choice)PICK(1, 2) : 0;
    static const char *const kernels[] = {
        "cpu",           "cuda_sm80_atomic", "cuda_sm80",         "cuda_sm90a",      "vulkan_portable",
        "vulkan_lanes",  "vulkan_subgroup",  "vulkan_coopmat",    "opencl_subgroup", "opencl_portable",
        "opencl_lanes",  "opencl_serving",   "cpu_bf16",          "cpu_amx",         "cuda_sm100a",
        "vulkan_decode", "opencl_decode",    "cuda_serving_sm90a"};
    if (bits & 16384 && next() % 2)
        strcpy(o->kernel, kernels[next() % (sizeof kernels / sizeof kernels[0])]);
}

#if ATTUNE_HAVE_VULKAN
static uint64_t modules_read;

/* Shared memory of the kernel's module with the plan's constants. */
static void check_module(const char *what, const attune_limits *limits, const attune_problem *q,
                         const attune_plan_choice *c)
{
    attune__shape shape;
    cr_assert_eq(attune__shape_from_problem(q, &shape), ATTUNE_OK, "%s: %s", what, attune_last_error());
    const attune__variant variant = {0};
    const attune__program_desc desc = {&shape, c, &variant, NULL, NULL, NULL, NULL};
    attune__vulkan_kernel kernel;
    const attune_status status = attune__vulkan_specialise(limits, &desc, true, &kernel);
    /* Without a glslang that knows matrices. */
    if (!ATTUNE_HAVE_COOPERATIVE_MATRIX && !strcmp(c->kernel, "vulkan_coopmat"))
        return;
    cr_assert_eq(status, ATTUNE_OK, "%s: %s", what, attune_last_error());
    const char *why;
    const uint64_t bytes =
        workgroup_bytes(kernel.words, kernel.word_count, kernel.constants, ATTUNE__VULKAN_CONSTANTS, &why);
    cr_assert_null(why, "%s: %s", c->kernel, why);
    cr_assert_eq(bytes, c->shared_memory, "%s: %s, %u x %u: the module has %" PRIu64 " bytes, the plan %u", what,
                 c->kernel, c->block_m, c->block_n, bytes, c->shared_memory);
    modules_read++;
}

/* The larger of both kernels is what the plan counts. */
static void check_modules_backward(const char *what, const attune_limits *limits, const attune_problem *q,
                                   const attune_plan_choice *c)
{
    /* Without a glslang that knows matrices. */
    if (!ATTUNE_HAVE_COOPERATIVE_MATRIX && !strcmp(c->kernel, "vulkan_coopmat"))
        return;
    attune__shape shape;
    cr_assert_eq(attune__shape_from_problem(q, &shape), ATTUNE_OK, "%s: %s", what, attune_last_error());
    const attune__variant variant = {0};
    const attune__program_desc desc = {&shape, c, &variant, NULL, NULL, NULL, NULL};
    uint64_t largest = 0;
    for (int keys = 0; keys < 2; keys++) {
        attune__vulkan_kernel kernel;
        const attune_status status = attune__vulkan_specialise_backward(limits, &desc, keys, false, &kernel);
        cr_assert_eq(status, ATTUNE_OK, "%s: %s", what, attune_last_error());
        const char *why;
        const uint64_t bytes =
            workgroup_bytes(kernel.words, kernel.word_count, kernel.constants, ATTUNE__VULKAN_CONSTANTS, &why);
        cr_assert_null(why, "%s: %s", c->kernel, why);
        largest = bytes > largest ? bytes : largest;
        modules_read++;
    }
    cr_assert_eq(largest, c->shared_memory, "%s: %s, %u x %u, %u x %u: the modules have %" PRIu64 " bytes, the plan %u",
                 what, c->kernel, c->block_m1, c->block_n1, c->block_m2, c->block_n2, largest, c->shared_memory);
}
#endif

static void check_choice(const attune_profile *p, const attune_problem *q, const attune_plan_choice *c)
{
    const attune_limits *l = &p->limits;
    const char *what = describe(p, q);
    cr_assert_eq(formula_bytes(l, q, c), c->shared_memory, "%s: %s counts %u bytes, docs/planning.md %llu", what,
                 c->kernel, c->shared_memory, (unsigned long long)formula_bytes(l, q, c));
    cr_assert(l->backend == ATTUNE_BACKEND_CPU || c->shared_memory <= l->shared_memory, "%s: %u bytes", what,
              c->shared_memory);
    cr_assert(c->workgroup_invocations >= 1 && c->workgroup_invocations <= l->workgroup_invocations, "%s", what);
    cr_assert(!l->registers_per_thread || c->registers <= l->registers_per_thread, "%s: %u", what, c->registers);
    cr_assert(!l->registers || c->registers * c->workgroup_invocations <= 2 * l->registers, "%s", what);
    cr_assert_geq(c->occupancy, 1);
    cr_assert_eq(c->workspace % 256, 0, "%s", what);
#if ATTUNE_HAVE_VULKAN
    if (l->backend == ATTUNE_BACKEND_VULKAN)
        (q->direction == ATTUNE_FORWARD ? check_module : check_modules_backward)(what, l, q, c);
#endif
    cr_assert_eq(c->direction, q->direction);
    bool back = q->direction == ATTUNE_BACKWARD;
    const uint32_t rows[2] = {back ? c->block_m1 : c->block_m, back ? c->block_m2 : c->block_m};
    const uint32_t columns[2] = {back ? c->block_n1 : c->block_n, back ? c->block_n2 : c->block_n};
    uint32_t q_block = q->mask_q_block ? q->mask_q_block : 128, kv_block = q->mask_kv_block ? q->mask_kv_block : 128;
    for (int i = 0; i < 2; i++) {
        cr_assert(rows[i] && columns[i], "%s", what);
        /* Each of Hopper's groups of 64 rows, and of Blackwell's of 128, is within one block. */
        const bool groups = q_block % 128 == 0 && ((rows[i] == 192 && !strcmp(c->kernel, "cuda_sm90a")) ||
                                                   (rows[i] == 256 && !strcmp(c->kernel, "cuda_sm100a")));
        cr_assert(!q->block_mask || c->decode || q_block % rows[i] == 0 || groups, "%s: %u rows", what, rows[i]);
        cr_assert(!q->block_mask || kv_block % columns[i] == 0, "%s: %u columns", what, columns[i]);
    }
    cr_assert(!back || !c->decode);
    cr_assert(!c->decode || (q->q_len <= 64 && c->split_kv >= 1), "%s", what);
    cr_assert(c->decode || c->split_kv == 1, "%s", what);
}

static uint64_t short_ones;

/* A forward plan also has the decode kernel of a plan for one query, if the options leave the choice.
 */
static void check_short(const attune_profile *p, const attune_problem *q, const attune_kernel_options *o,
                        attune_choice force, const attune_plan_choice *c)
{
    attune_problem step = *q;
    attune_plan one = {.device = NULL}, all = one;
    step.q_len = 1;
    step.kv_len = q->kv_len ? q->kv_len : q->q_len;
    const bool may = !c->decode && q->direction == ATTUNE_FORWARD && force == ATTUNE_AUTO;
    const bool has = attune__plan_init(&one, &p->limits, &step, o) == ATTUNE_OK && may && one.decision.choice.decode;
    cr_assert_eq(attune__plan_init(&all, &p->limits, q, o), ATTUNE_OK);
    const attune__decision d = all.decision;
    const attune__shape shape = all.shape;
    const attune_plan_choice expected = one.decision.choice;
    attune__plan_finish(&one);
    attune__plan_finish(&all);
    const int64_t most = q->batch * q->heads < p->limits.compute_units ? 16 : 8;
    cr_assert_eq(c->short_q_len,
                 !has              ? 0
                 : q->q_len < most ? q->q_len
                                   : most,
                 "%s: %lld", describe(p, q), (long long)c->short_q_len);
    cr_assert_eq(d.why_short[0] != '\0', !c->decode && q->direction == ATTUNE_FORWARD, "%s", describe(p, q));
    for (int64_t kv_len = 255; kv_len <= 256; kv_len++) {
        cr_assert_eq(attune__decision_is_short(&d, has ? c->short_q_len : 1, kv_len), has && kv_len == 256);
        cr_assert_not(attune__decision_is_short(&d, c->short_q_len + 1, kv_len));
    }
    if (!has)
        return;
    const attune_plan_choice *s = &d.short_choice;
    cr_assert(s->decode && !strcmp(s->kernel, expected.kernel) && s->block_m == expected.block_m &&
                  s->block_n == expected.block_n && s->num_stages == expected.num_stages &&
                  s->num_warps == expected.num_warps && s->split_kv == expected.split_kv &&
                  s->shared_memory == expected.shared_memory,
              "%s: not the kernel of one query", describe(p, q));
    /* The parts of every short call fit. */
    const attune__shape few = attune__shape_of_short(&shape, &d);
    const uint32_t element = q->dtype == ATTUNE_F64 ? 8 : 4;
    cr_assert_eq(few.q_len, c->short_q_len);
    cr_assert_geq(c->workspace, expected.workspace - attune__split_size(&one.shape, s->split_kv, element) +
                                    attune__split_size(&few, s->split_kv, element));
    cr_assert_eq(s->workspace, c->workspace);
    short_ones++;
}

/* The one pass of the options that the direction reads, to change them. */
static uint32_t *field(attune_pass_options *o, const char *name)
{
    const struct {
        const char *name;
        uint32_t *field;
    } table[] = {{"BLOCK_M", &o->block_m},       {"BLOCK_N", &o->block_n},     {"BLOCK_M1", &o->block_m1},
                 {"BLOCK_N1", &o->block_n1},     {"BLOCK_M2", &o->block_m2},   {"BLOCK_N2", &o->block_n2},
                 {"num_stages", &o->num_stages}, {"num_warps", &o->num_warps}, {"SPLIT_KV", &o->split_kv}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i].name, name))
            return table[i].field;
    return NULL;
}

static void clear_tiles(attune_pass_options *o)
{
    o->block_m = o->block_n = o->block_m1 = o->block_n1 = o->block_m2 = o->block_n2 = 0;
    o->num_stages = o->num_warps = 0;
}

/* Follows "the nearest ...: NAME VALUE" (and each ", or NAME VALUE"), and expects success. Returns the cures tried. */
static int follow(const attune_profile *p, const attune_problem *q, const attune_pass_options *o, const char *message,
                  const char *cure, const char *of)
{
    bool alone = strstr(message, "other tile options left out") != NULL;
    int tried = 0;
    for (; cure; cure = strstr(cure, ", or ")) {
        cure += !strncmp(cure, ", or ", 5) ? 5 : 0;
        char name[32] = "", value[32] = "";
        if (of)
            snprintf(name, sizeof name, "%s", of), sscanf(cure, "%31[0-9]", value);
        else
            cr_assert_eq(sscanf(cure, "%31s %31[^,; ]", name, value), 2, "%s", message);
        attune_kernel_options changed = {.struct_size = sizeof changed, .any = *o};
        if (alone)
            clear_tiles(&changed.any);
        if (!strcmp(name, "KERNEL"))
            snprintf(changed.any.kernel, sizeof changed.any.kernel, "%s", value);
        else
            *field(&changed.any, name) = (uint32_t)strtoul(value, NULL, 10);
        attune_plan_choice c = {.struct_size = sizeof c};
        char before[2048];
        snprintf(before, sizeof before, "%s", message);
        cr_assert_eq(attune_plan_choose(&p->limits, q, &changed, &c), ATTUNE_OK, "%s: \"%s\", but with %s %s: %s",
                     describe(p, q), before, name, value, attune_last_error());
        check_choice(p, q, &c);
        tried++;
        if (of)
            break;
    }
    return tried;
}

static attune_pass_options merged(const attune_kernel_options *o, attune_direction direction)
{
    attune_pass_options m = o->any;
    const attune_pass_options *from = direction == ATTUNE_BACKWARD ? &o->bwd : &o->fwd;
    static const char *const names[] = {"BLOCK_M",  "BLOCK_N",    "BLOCK_M1",  "BLOCK_N1", "BLOCK_M2",
                                        "BLOCK_N2", "num_stages", "num_warps", "SPLIT_KV"};
    attune_pass_options copy = *from;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (*field(&copy, names[i]))
            *field(&m, names[i]) = *field(&copy, names[i]);
    if (from->force_use_flex_attention)
        m.force_use_flex_attention = from->force_use_flex_attention;
    if (from->prescale_qk)
        m.prescale_qk = from->prescale_qk;
    if (from->use_tma)
        m.use_tma = from->use_tma;
    if (from->rows_guaranteed_safe)
        m.rows_guaranteed_safe = from->rows_guaranteed_safe;
    if (from->approximate_tanh)
        m.approximate_tanh = from->approximate_tanh;
    if (from->write_dq)
        m.write_dq = from->write_dq;
    if (from->kernel[0])
        memcpy(m.kernel, from->kernel, sizeof m.kernel);
    return m;
}

Test(property, a_plan_within_every_limit_or_an_error_with_its_cure)
{
    state = test_seed();
    uint64_t cases = scaled(60000), planned = 0, misfits = 0, invalid = 0, unsupported = 0, cures = 0;
    for (uint64_t i = 0; i < cases; i++) {
        attune_profile p = {.struct_size = sizeof p};
        cr_assert_eq(attune_profile_get((uint32_t)(i % attune_profile_count()), &p), ATTUNE_OK);
        attune_problem q = random_problem(&p);
        attune_kernel_options o = {.struct_size = sizeof o};
        bool free = next() % 4 == 0;
        if (!free) {
            /* Half of them touch only what sizes a tile, so that many reach the limits. */
            random_pass(&o.any, true, true);
            if (next() % 2) {
                attune_pass_options tiles = {.block_m = o.any.block_m, .block_n = o.any.block_n};
                tiles.block_m1 = o.any.block_m1, tiles.block_n1 = o.any.block_n1;
                tiles.block_m2 = o.any.block_m2, tiles.block_n2 = o.any.block_n2;
                tiles.num_stages = p.limits.backend == ATTUNE_BACKEND_CUDA ? PICK(0, 1, 2, 3, 4) : 0;
                o.any = tiles;
            } else if (next() % 4 == 0)
                random_pass(&o.fwd, true, false);
            if (next() % 4 == 0)
                random_pass(&o.bwd, false, true);
        }
        attune_plan_choice c = {.struct_size = sizeof c};
        attune_status status = attune_plan_choose(&p.limits, &q, free ? NULL : &o, &c);
        char message[2048];
        snprintf(message, sizeof message, "%s", attune_last_error());
        attune_pass_options m = merged(&o, q.direction);
        switch (status) {
        case ATTUNE_OK:
            planned++;
            check_choice(&p, &q, &c);
            check_short(&p, &q, &o, m.force_use_flex_attention, &c);
            break;
        case ATTUNE_DOES_NOT_FIT: {
            misfits++;
            const char *cure = strstr(message, "the nearest that fits: ");
            cr_assert(!free, "%s: %s", describe(&p, &q), message);
            cr_assert(strstr(message, "the device has ") && strstr(message, " needs "), "%s", message);
            cr_assert(cure, "%s: %s", describe(&p, &q), message);
            cures += (uint64_t)follow(&p, &q, &m, message, cure + strlen("the nearest that fits: "), NULL);
            break;
        }
        case ATTUNE_INVALID_ARGUMENT: {
            invalid++;
            cr_assert(!free, "%s: %s", describe(&p, &q), message);
            const char *cure = strstr(message, "the nearest is ");
            char name[32];
            if (cure && sscanf(message, "%31s", name) == 1)
                cures += (uint64_t)follow(&p, &q, &m, message, cure + strlen("the nearest is "), name);
            break;
        }
        case ATTUNE_UNSUPPORTED:
            unsupported++;
            cr_assert(m.kernel[0] || m.force_use_flex_attention == ATTUNE_OFF, "%s: %s", describe(&p, &q), message);
            break;
        default:
            cr_assert_fail("%s: %s: %s", describe(&p, &q), attune_status_string(status), message);
        }
    }
    cr_log_info("%" PRIu64 " cases: %" PRIu64 " planned, %" PRIu64 " do not fit, %" PRIu64 " invalid, %" PRIu64
                " unsupported; %" PRIu64 " cures followed",
                cases, planned, misfits, invalid, unsupported, cures);
#if ATTUNE_HAVE_VULKAN
    cr_log_info("%" PRIu64 " plans held against their Vulkan modules", modules_read);
    cr_assert_gt(modules_read, cases / 100);
#endif
    cr_log_info("%" PRIu64 " plans with a kernel for short calls", short_ones);
    cr_assert_gt(planned, cases / 4);
    cr_assert_gt(short_ones, cases / 30);
    cr_assert_gt(misfits, cases / 100);
    cr_assert_gt(cures, cases / 100);
}

Test(property, every_head_dimension_pair_plans_everywhere)
{
    static const uint32_t dv[] = {8, 64, 72, 128, 256};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    uint64_t cases = 0;
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (uint32_t d = 8; d <= 256; d += 8)
            for (uint32_t j = 0; j < 6 * 4 * 2 * 2 * 2; j++) {
                attune_profile p = {.struct_size = sizeof p};
                cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
                attune_problem q = {.struct_size = sizeof q, .head_dim = d, .heads = 8, .kv_heads = 2};
                q.head_dim_v = j % 6 < 5 ? dv[j % 6] : d == 192 ? 128 : 0;
                q.dtype = dtypes[j / 6 % 4];
                q.direction = j / 24 % 2 ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
                q.block_mask = j / 48 % 2;
                q.q_len = j / 96 % 2 ? 1 : 4096;
                q.kv_len = 4096;
                attune_plan_choice c = {.struct_size = sizeof c};
                attune_status status = attune_plan_choose(&p.limits, &q, NULL, &c);
                if (q.dtype == ATTUNE_F64 && !p.limits.f64) {
                    cr_assert_eq(status, ATTUNE_UNSUPPORTED);
                    cr_assert(strstr(attune_last_error(), "f64"), "%s", attune_last_error());
                    continue;
                }
                cr_assert_eq(status, ATTUNE_OK, "%s: %s", describe(&p, &q), attune_last_error());
                check_choice(&p, &q, &c);
                cases++;
            }
    cr_log_info("%" PRIu64 " plans", cases);
}

/* Heads above 256, also over a cache: a kernel has them or none, and Vulkan's have them in the least memory. */
Test(property, wide_heads_fit_everywhere)
{
    static const uint32_t dims[][2] = {{8, 512}, {256, 512}, {320, 320}, {496, 496}, {512, 512}, {576, 512}, {512, 8}};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (uint32_t j = 0; j < 7 * 3 * 2 * 2 * 2; j++) {
            attune_profile p = {.struct_size = sizeof p};
            cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
            attune_problem q = {.struct_size = sizeof q, .head_dim = dims[j % 7][0], .head_dim_v = dims[j % 7][1]};
            q.dtype = dtypes[j / 7 % 3];
            q.heads = 8;
            q.kv_heads = 2;
            q.batch = 4;
            q.q_len = j / 21 % 2 ? 1 : 300;
            q.kv_len = 4096;
            q.tokens = j / 42 % 2 ? 500 : 0;
            if (j / 84 && p.limits.backend == ATTUNE_BACKEND_VULKAN)
                p.limits.shared_memory = 16384;
            attune_plan_choice c = {.struct_size = sizeof c};
            const attune_status status = attune_plan_choose(&p.limits, &q, NULL, &c);
            /* Over a cache one driver bounds the iterations of a kernel. */
            const bool bounded = q.tokens && p.limits.backend == ATTUNE_BACKEND_OPENCL && p.limits.host;
            cr_assert(status == ATTUNE_OK || (bounded && status == ATTUNE_UNSUPPORTED), "%s: %s", describe(&p, &q),
                      attune_last_error());
            if (!q.tokens)
                check_choice(&p, &q, &c);
        }
}

Test(property, shrinking_memory_always_leaves_a_plan)
{
    static const uint32_t dims[][2] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}, {8, 256}};
    uint64_t cases = 0;
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (uint32_t j = 0; j < 5 * 2 * 2 * 2 * 2; j++)
            for (uint32_t bytes = 232448; bytes >= 16384; bytes -= 1032) {
                attune_profile p = {.struct_size = sizeof p};
                cr_assert_eq(attune_profile_get(i, &p), ATTUNE_OK);
                /* Every CUDA device has 99 KiB; a launch that asks for no more has 48. */
                if (p.limits.backend == ATTUNE_BACKEND_CUDA && bytes < 48 * 1024)
                    break;
                p.limits.shared_memory = bytes;
                p.limits.shared_memory_unit = 0;
                attune_problem q = {.struct_size = sizeof q, .head_dim = dims[j % 5][0], .head_dim_v = dims[j % 5][1]};
                q.dtype = j / 5 % 2 ? ATTUNE_F32 : ATTUNE_F16;
                q.direction = j / 10 % 2 ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
                q.block_mask = j / 20 % 2;
                q.q_len = j / 40 ? 4 : 2048;
                q.kv_len = 2048;
                attune_plan_choice c = {.struct_size = sizeof c};
                cr_assert_eq(attune_plan_choose(&p.limits, &q, NULL, &c), ATTUNE_OK, "%s: %s", describe(&p, &q),
                             attune_last_error());
                check_choice(&p, &q, &c);
                cases++;
            }
    cr_log_info("%" PRIu64 " plans", cases);
}

/* Every head dimension has a kernel in 99 KiB and in 48, whatever the type and the pass. */
Test(property, cuda_fits_its_smallest_devices)
{
    static const uint32_t bytes[] = {99 * 1024, 48 * 1024}, values[] = {0, 8, 64, 128, 200, 256};
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t d = 8; d <= 256; d += 8)
            for (uint32_t j = 0; j < 6 * 3 * 3 * 2; j++) {
                attune_profile p = {.struct_size = sizeof p};
                cr_assert_eq(attune_profile_find("a6000", &p), ATTUNE_OK);
                p.limits.shared_memory = bytes[i];
                attune_problem q = {.struct_size = sizeof q, .head_dim = d, .head_dim_v = values[j % 6]};
                q.dtype = (attune_dtype)(const uint32_t[]){ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16}[j / 6 % 3];
                q.q_len = (const int64_t[]){1, 9, 2048}[j / 18 % 3];
                q.kv_len = 2048;
                q.direction = j / 54 ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
                attune_plan_choice c = {.struct_size = sizeof c};
                cr_assert_eq(attune_plan_choose(&p.limits, &q, NULL, &c), ATTUNE_OK, "%s: %s", describe(&p, &q),
                             attune_last_error());
                const bool atomic = !strcmp(c.kernel, "cuda_sm80_atomic");
                cr_assert(atomic || !strcmp(c.kernel, "cuda_sm80"));
                cr_assert(!atomic || (q.direction == ATTUNE_BACKWARD && q.dtype != ATTUNE_F32));
                check_choice(&p, &q, &c);
            }
}

Test(property, the_same_input_gives_the_same_bytes)
{
    state = test_seed() + 1;
    for (uint64_t i = 0; i < scaled(2000); i++) {
        attune_profile p = {.struct_size = sizeof p};
        cr_assert_eq(attune_profile_get((uint32_t)(i % attune_profile_count()), &p), ATTUNE_OK);
        attune_problem q = random_problem(&p);
        attune_kernel_options o = {.struct_size = sizeof o};
        random_pass(&o.any, true, true);
        char text[2][16384];
        char errors[2][2048];
        attune_status status[2];
        for (int k = 0; k < 2; k++) {
            memset(text[k], k, sizeof text[k]);
            text[k][0] = '\0';
            status[k] = attune_plan_choose_explain(&p.limits, &q, &o, ATTUNE_JSON, text[k], sizeof text[k], NULL);
            snprintf(errors[k], sizeof errors[k], "%s", attune_last_error());
        }
        cr_assert_eq(status[0], status[1]);
        cr_assert_str_eq(text[0], text[1]);
        cr_assert_str_eq(errors[0], errors[1]);
    }
}

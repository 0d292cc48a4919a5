/* SPDX-License-Identifier: MIT */
#include "plan/formulas.h"

#include <string.h>

#include "expr/expr.h"

typedef struct numbers {
    uint64_t m, n, m1, n1, m2, n2, stages, warps, threads, d, dv, e;
    uint64_t words; /* of each key, that the expressions have in shared memory */
} numbers;

static uint64_t up(uint64_t value, uint64_t multiple)
{
    uint64_t rest = value % multiple;
    return rest ? value - rest + multiple : value;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a < b ? b : a;
}

static uint64_t cpu(const attune_plan_choice *c, numbers x, bool f64)
{
    uint64_t t = f64 ? 8 : 4, bytes = 0;
    x.d = up(x.d, 16), x.dv = up(x.dv, 16);
    if (c->direction == ATTUNE_BACKWARD) {
        const uint64_t loops[2][2] = {{up(x.m1, 16), up(x.n1, 16)}, {up(x.m2, 16), up(x.n2, 16)}};
        for (int i = 0; i < 2; i++) {
            uint64_t m = loops[i][0], n = loops[i][1];
            const uint64_t arrays[] = {m * x.d, m * x.dv, n * x.d, n * x.dv, m * n,
                                       m * n,   m * x.d,  n * x.d, n * x.dv, 2 * m};
            uint64_t sum = up(n, 64) + up(n * t, 64) + up(m * x.dv * t, 64) + up(m * n * t, 64);
            for (size_t j = 0; j < sizeof arrays / sizeof arrays[0]; j++)
                sum += up(arrays[j] * t, 64);
            bytes = most(bytes, sum);
        }
        return bytes;
    }
    uint64_t m = up(x.m, 16), n = up(x.n, 16);
    const uint64_t lds = n % 32 ? n : n + 16, ldo = x.dv % 32 ? x.dv : x.dv + 16;
    return up(m * x.d * t, 64) + up(n * x.d * t, 64) + up(n * x.dv * t, 64) + up(m * lds * t, 64) +
           up(m * ldo * t, 64) + up(3 * m * t, 64) + up(n, 64);
}

static uint64_t sm80(const attune_plan_choice *c, numbers x)
{
    if (x.dv > 256)
        x.dv -= x.dv / 2 / 8 * 8;
    x.d = up(x.d, 16), x.dv = up(x.dv, 16);
    if (c->direction == ATTUNE_BACKWARD) {
        x.n1 = x.e == 4 && x.n1 < 32 ? 0 : x.n1;
        x.m2 = x.e == 4 && x.m2 < 32 ? 0 : x.m2;
        uint64_t kv =
            x.n1 * x.d * x.e + x.n1 * x.dv * x.e + x.stages * (x.m1 * x.d * x.e + x.m1 * x.dv * x.e + 8 * x.m1);
        uint64_t descs = x.stages < 7 ? 128 : 256;
        return most(kv, (x.m2 + x.stages * x.n2) * (x.d + x.dv) * x.e) + 256 + descs;
    }
    uint64_t q = x.m * x.d * x.e, kv = x.n * x.d * x.e + x.n * x.dv * x.e, all = q + x.stages * kv + 8 * x.words * x.n;
    if (!c->decode)
        return most(all, x.m * x.dv * x.e);
    if (x.e == 4 && (x.d > 128 || x.dv > 128))
        all += 1024 * x.warps;
    uint64_t shares = x.warps * 16 / x.m;
    return most(all, shares * x.m * (x.dv + 2) * 4);
}

static uint64_t sm80_atomic(numbers x)
{
    const uint64_t sharers = 32 * x.warps / x.n1;
    x.d = up(x.d, 16 * sharers), x.dv = up(x.dv, 16 * sharers);
    const uint64_t rows = x.stages * x.m1, descs = x.stages < 7 ? 128 : 256;
    return 2 * (x.n1 + rows) * (x.d + x.dv) + 4 * x.n1 * x.m1 + 8 * rows + 256 + descs;
}

static uint64_t sm90a(const attune_plan_choice *c, numbers x)
{
    const uint64_t columns = x.d > 192 || x.dv > 192   ? 0
                             : x.d > 128 || x.dv > 128 ? up(x.d, 64)
                             : x.d > 64                ? 128
                                                       : up(x.d, x.m1 == 128 ? 16 : 32);
    const uint64_t pair = x.d > 192 && x.dv > 192 && x.n1 == 128 ? 2 : 1;
    x.d = up(x.d, 64), x.dv = up(x.dv, 64);
    if (c->direction == ATTUNE_BACKWARD)
        return x.n1 / pair * (x.d + x.dv) * 2 + x.stages * x.m1 * ((x.d + x.dv + 128) * 2 + 8) + x.m1 * columns * 4 +
               256 * pair;
    uint64_t rows = (x.d > 128 || x.dv > 128 ? 1 : 2) * x.m;
    const uint64_t words = x.words ? up(x.stages * (16 + x.words * x.n * 4), 128) : 0;
    return rows * x.d * 2 + x.stages * x.n * (x.d + x.dv) * 2 + up(272 + 56 * x.stages, 128) + words;
}

static uint64_t sm100a(const attune_plan_choice *c, numbers x)
{
    const uint64_t d = x.d;
    x.d = up(x.d, 64), x.dv = up(x.dv, 64);
    if (c->direction == ATTUNE_BACKWARD) {
        const bool narrow = x.d == 64 && x.dv == 64;
        if (x.n1 == 256) { /* a pair's CTA: half of the keys, and halves of rows and columns */
            const uint64_t stages = narrow ? x.stages : 1;
            return 256 * (x.d + x.dv) + 256 * 128 + x.stages * x.m1 * x.d + stages * x.m1 * (x.dv + 256) + 256 * x.m1 +
                   64 * x.m1 + x.stages * x.m1 * 8 + 512;
        }
        if (x.d > 128 || x.dv > 128)
            return 2 * (x.n1 * (x.d + x.dv) + x.m1 * (x.stages * (x.d + x.dv) + x.n1)) + 16 * up(d, 32) * 4 +
                   x.stages * x.m1 * 8 + 512;
        return 2 * (x.n1 * (x.d + x.dv) + x.m1 * (x.stages * x.d + (narrow ? x.stages : 1) * x.dv + x.n1)) +
               x.m1 * (narrow ? 64 : 32) * 4 + x.stages * x.m1 * 8 + 512;
    }
    const uint64_t rows = (x.d > 64 || x.dv > 64 ? 1 : 2) * x.m;
    const uint64_t words = x.words ? up(x.stages * (16 + x.words * x.n * 4), 128) : 0;
    const uint64_t all = rows * x.d * 2 + x.stages * x.n * (x.d + x.dv) * 2 + up(336 + 56 * x.stages, 128) + words;
    if (x.m != 256)
        return all;
    /* Two words for each row, and of 227 KiB tiles of O with 64 of its columns: at most four, of two groups of rows. */
    const uint64_t most_tiles = x.dv / 32 < 4 ? x.dv / 32 : 4, tiles = (232448 - all - 2048) / 16384;
    return all + 2048 + 16384 * (all + 2048 > 232448 ? 0 : tiles < most_tiles ? tiles : most_tiles);
}

static uint64_t scalar(const attune_limits *limits, const attune_plan_choice *c, numbers x, bool portable)
{
    if (c->direction == ATTUNE_BACKWARD) {
        uint64_t row = (x.d % 16 || x.dv % 16 ? 8 : 16) + 4;
        uint64_t kv = 2 * most((x.m1 + x.n1) * row, 4 * (most(x.d, x.dv) + 4)) + x.n1 * (x.m1 + 4);
        return 4 * (most(kv, 2 * most((x.m2 + x.n2) * row, 4 * (x.d + 4)) + x.m2 * (x.n2 + 4)) + 4);
    }
    uint64_t step = x.d % 16 == 0 ? 16 : 8, parts = x.threads / x.m;
    if (parts > x.n / 4)
        parts = x.n / 4;
    uint64_t slices = most((x.m + x.n) * (step + 4), 4 * (x.dv + 4)), pad = portable ? 1 : parts < 4 ? parts : 4;
    /* One half of slices where the smallest tile of two, 1 x 4, does not fit. */
    const uint64_t least = 4 * (2 * most(5 * (step + 4), 4 * (x.dv + 4)) + 4 + 4 + 1 + 1 + 4);
    const bool one = portable && limits->backend == ATTUNE_BACKEND_VULKAN && least > limits->shared_memory;
    return 4 * ((one ? 1 : 2) * slices + x.m * (x.n + 4 * pad) + x.m + (portable ? x.m * parts : 0) + 4);
}

/* Q where it is not held, of all lanes of a key; O, maxima and sums of each subgroup. */
static uint64_t few_rows(const attune_limits *l, numbers x)
{
    uint64_t lanes = 1, most_lanes = 1;
    while (2 * most_lanes <= l->subgroup_size)
        most_lanes *= 2;
    while (lanes < most_lanes && (lanes < x.d / 8 || lanes < x.dv / 8 || lanes < x.m))
        lanes *= 2;
    const uint64_t q = up(x.d / 8, lanes) * x.m;
    return 16 * (q / lanes <= 4 ? 1 : 2 * q) + x.warps * x.m * (4 * x.dv + 8);
}

static bool has_factors(attune_dtype dtype)
{
    return dtype == ATTUNE_F8E4M3 || dtype == ATTUNE_F8E5M2 || dtype == ATTUNE_I8;
}

/* Q where it is not held, of all columns; a float of each thread for each pair of a row and one of the keys that the
 * thread has a share of, or O of a row of each key's threads; the scores, maxima and sums of those; the places of two
 * tiles' keys, and their factors. */
static uint64_t opencl_few_rows(numbers x, bool factors)
{
    uint64_t lanes = 1;
    while (8 * lanes < most(x.d, x.dv))
        lanes *= 2;
    const uint64_t teams = x.threads / lanes, pairs = x.m * (x.n / teams);
    return (x.m <= 4 ? 16 : 32 * x.m * lanes) + most(up(4 * pairs * x.threads, 16), 4 * teams * x.dv) +
           16 * teams * (up(pairs, 4) / 4 | 1) + 8 * teams * x.m + 32 * x.n + (factors ? 16 * x.n : 8);
}

/* A kernel of backward: B, B2, and A, A2 where they are not held; P, dS and the rows' states. */
static uint64_t coopmat_backward(const attune_limits *l, uint64_t outer, uint64_t inner, numbers x, bool keys)
{
    const uint64_t teams = x.warps * l->matrix_m < outer ? x.warps : outer / l->matrix_m, team = x.warps / teams;
    const uint64_t each = l->matrix_m * l->matrix_n / l->subgroup_size, tiles = outer / teams / l->matrix_m;
    /* Too few columns for the team: it divides the depth of S and dP, whose parts pass through shared memory. */
    const bool by_depth = inner % (team * l->matrix_n) != 0;
    const uint64_t part = by_depth ? team : 1, scores = inner / l->matrix_n / (by_depth ? 1 : team);
    const uint64_t d = up(up(x.d, l->matrix_n) / l->matrix_n, part) / part,
                   dv = up(up(x.dv, l->matrix_n) / l->matrix_n, part) / part;
    const uint64_t x_tiles = up(up(x.d, l->matrix_n) / l->matrix_n, team) / team,
                   y_tiles = keys ? up(up(x.dv, l->matrix_n) / l->matrix_n, team) / team : 0;
    uint64_t registers = tiles * each * (x_tiles + y_tiles + 2);
    const bool is_short = l->fragment_layout != ATTUNE_FRAGMENT_QUADS;
    const bool hold2 = registers + tiles * dv * each / 2 <= 208 && (!is_short || tiles * dv <= 4);
    registers += hold2 ? tiles * dv * each / 2 : 0;
    const bool hold = registers + tiles * d * each / 2 <= 208 && (!is_short || tiles * d <= 4);
    const uint64_t row = (most(x_tiles * team, d * part) * l->matrix_n / 8) | 1,
                   row2 = (most(y_tiles * team, dv * part) * l->matrix_n / 8) | 1;
    uint64_t groups = inner * (row + row2) + (hold ? 0 : outer * row) + (hold2 ? 0 : outer * row2) +
                      (keys ? 2 : 1) * outer * (inner / 8 | 1) + (keys ? inner / 2 : 0) +
                      (by_depth ? 2 * x.warps * tiles * scores * l->matrix_m * (l->matrix_n / 4 + 1) : 0);
    groups = most(groups, outer * most(hold ? row : 0, hold2 ? row2 : 0));
    /* The least that results pass through: one matrix of each subgroup. */
    return 16 * most(groups, team * outer * (l->matrix_n / 4 + 1)) + 8;
}

static uint64_t coopmat(const attune_limits *l, const attune_plan_choice *c, numbers x)
{
    if (c->direction == ATTUNE_BACKWARD)
        return most(coopmat_backward(l, x.n1, x.m1, x, true), coopmat_backward(l, x.m2, x.n2, x, false));
    const uint64_t d = up(x.d, l->matrix_k), k_row = d / 8 | 1, v_row = up(x.dv, l->matrix_n) / 8 | 1;
    const uint64_t kv = x.n * most(k_row, v_row), q = x.m * k_row;
    if (l->fragment_layout) {
        /* Q in parts of one or more subgroups' rows. */
        uint64_t part = x.m;
        while (part * k_row > 4 * kv && part % (2 * (x.m / x.warps)) == 0)
            part /= 2;
        return 16 * most(most(4 * kv, part * k_row) + 69, x.m * (l->matrix_n / 4 + 1)) + 4;
    }
    const uint64_t groups = (d <= 128 ? most(kv, q) : kv + q) + x.m * (x.n / 4 + 1) + x.m * l->matrix_n / 4;
    return 16 * groups + 4;
}

uint64_t formula_bytes(const attune_limits *limits, const attune_problem *problem, const attune_plan_choice *c)
{
    /* The type of k and v: tiles are in it, whatever q and o are. */
    const attune_dtype dtype = problem->kv_dtype ? problem->kv_dtype : problem->dtype ? problem->dtype : ATTUNE_F32;
    const attune__analysis analysis = attune__analyse(problem->mask, problem->score, NULL);
    const numbers x = {
        .words = attune__analysis_key_terms(&analysis, c->decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD),
        .m = c->block_m,
        .n = c->block_n,
        .m1 = c->block_m1,
        .n1 = c->block_n1,
        .m2 = c->block_m2,
        .n2 = c->block_n2,
        .stages = c->num_stages,
        .warps = c->num_warps,
        .threads = c->workgroup_invocations,
        .d = problem->head_dim,
        .dv = problem->head_dim_v ? problem->head_dim_v : problem->head_dim,
        .e = attune_dtype_size(dtype),
    };
    if (!strcmp(c->kernel, "cpu") || !strcmp(c->kernel, "cpu_bf16") || !strcmp(c->kernel, "cpu_amx"))
        return cpu(c, x, dtype == ATTUNE_F64);
    if (!strcmp(c->kernel, "cuda_sm80"))
        return sm80(c, x);
    if (!strcmp(c->kernel, "cuda_sm80_atomic"))
        return sm80_atomic(x);
    if (!strcmp(c->kernel, "cuda_sm90a"))
        return sm90a(c, x);
    if (!strcmp(c->kernel, "cuda_sm100a"))
        return sm100a(c, x);
    if (!strcmp(c->kernel, "vulkan_lanes"))
        return 0;
    if (!strcmp(c->kernel, "opencl_lanes")) { /* inner rows that are converted once, or an array without content */
        const uint64_t inner = c->direction == ATTUNE_BACKWARD ? most(x.m1, x.n2) : x.n;
        return x.e < 4 && !limits->subgroup_operations ? 4 * inner * most(x.d, x.dv) : 4;
    }
    if (!strcmp(c->kernel, "vulkan_decode"))
        return few_rows(limits, x);
    if (!strcmp(c->kernel, "opencl_decode"))
        return opencl_few_rows(x, has_factors(dtype) || has_factors(problem->v_dtype));
    if (!strcmp(c->kernel, "vulkan_subgroup") || !strcmp(c->kernel, "opencl_subgroup"))
        return scalar(limits, c, x, false);
    if (!strcmp(c->kernel, "vulkan_portable") || !strcmp(c->kernel, "opencl_portable"))
        return scalar(limits, c, x, true);
    if (!strcmp(c->kernel, "vulkan_coopmat"))
        return coopmat(limits, c, x);
    return UINT64_MAX;
}

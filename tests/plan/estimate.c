/* SPDX-License-Identifier: MIT */
/*
 * The most that cuda_sm100a can reach on a B200, from the planner's choices: for each unit the cycles that a tile
 * takes, dense and without a score, of which the longest is the limit; where forward has neither two warp groups of
 * softmax nor two buffers of S, that of the products and that of the softmax one after the other. Waits come on top.
 * docs/decisions/0063 has the tables,
 * and 0064 that of mma.sync's tiles on an RTX 5090.
 */
#include "plan/plan_test.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/layout_sm100.h"
#include "plan/family_cuda.h"

/* Rates of an SM a clock: products by the data sheet, 2.25 PFLOP/s of dense bf16 on 148 SMs; shared memory as since
 * Volta; of tensor memory a column, which is assumed. */
#define FLOPS  8192.0
#define SHARED 128.0
#define TENSOR 512.0
#define CHIP   (2.25e15 / FLOPS) /* clocks a second of all SMs */

typedef struct cycles {
    double products, units, instructions, shared, tensor;
    double flops; /* that count */
} cycles;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double up_to(double value, double multiple)
{
    const double n = (double)(int64_t)((value + multiple - 1) / multiple);
    return n * multiple;
}

/* Exponentials of `pairs`, and the instructions that polynomials add. */
static void add_exponentials(cycles *c, const attune__variant *v, double pairs)
{
    c->units += pairs * (8 - v->polynomials) / 8 / ATTUNE__SM100_EXPONENTIALS;
    c->instructions += pairs * v->polynomials / 8 * attune__sm100_polynomial_instructions(v->polynomial_degree) /
                       ATTUNE__SM100_INSTRUCTIONS;
}

static cycles forward_cycles(const attune__decision *d, double head_dim, double head_dim_v)
{
    const double m = d->choice.block_m, n = d->choice.block_n, groups = m / 128;
    const double k = up_to(head_dim, 16), kv = up_to(head_dim_v, 16);
    cycles c = {.flops = 2 * m * n * (head_dim + head_dim_v)};
    c.products = 2 * m * n * (k + kv) / FLOPS;
    c.instructions = m * n * ATTUNE__SM100_FORWARD_PAIR / ATTUNE__SM100_INSTRUCTIONS;
    add_exponentials(&c, &d->variant, m * n);
    /* Q and K, and V, of each group's products; K and V are loaded. */
    c.shared = 2 * (m * k + groups * n * (k + kv) + n * (k + kv)) / SHARED;
    c.tensor = m * n * (4 + 4 + 2) / TENSOR; /* S is read twice, P stored */
    return c;
}

/* Whether products and softmax have turns, since S of the next key tile takes the place of P. */
static bool forward_in_turn(const attune__decision *d, uint32_t head_dim, uint32_t head_dim_v)
{
    const attune_cuda_tile t = {.head_dim = head_dim,
                                .head_dim_v = head_dim_v,
                                .block_m = d->choice.block_m,
                                .block_n = d->choice.block_n,
                                .stages = d->choice.num_stages,
                                .element = 2};
    return d->choice.block_m == 128 && attune_cuda_forward_sm100(t).s_buffers == 1;
}

static attune_cuda_tile backward_tile(const attune__decision *d, double head_dim, double head_dim_v)
{
    return (attune_cuda_tile){.head_dim = (unsigned)head_dim,
                              .head_dim_v = (unsigned)head_dim_v,
                              .block_m = d->choice.block_m1,
                              .block_n = d->choice.block_n1,
                              .stages = d->choice.num_stages,
                              .element = 2};
}

/*
 * Of a CTA, with the keys of its own. A pair's CTA reads half of every right operand in shared memory, which the tensor
 * cores of both use: of S and dP half of the rows, of dV and dK half of the columns, in slabs of 64, for which Q and dO
 * are loaded again. dQ is half of the rows, over the keys of both.
 */
static cycles backward_cycles(const attune__decision *d, double head_dim, double head_dim_v)
{
    const attune_cuda_tile tile = backward_tile(d, head_dim, head_dim_v);
    const attune_cuda_backward_sm100_layout l = attune_cuda_backward_sm100(tile, 0);
    const bool wide = attune_cuda_backward_sm100_wide(tile.head_dim, tile.head_dim_v),
               paired = attune_cuda_backward_sm100_paired(tile.block_n);
    const double ctas = paired ? 2 : 1, m = tile.block_m, n = tile.block_n / ctas, pairs = m * n;
    const double k = attune_cuda_backward_sm100_width(tile.head_dim, tile.block_n),
                 kv = attune_cuda_backward_sm100_width(tile.head_dim_v, tile.block_n);
    const double items = l.separate ? 2 : 1;
    const double dq_lanes = up_to(head_dim, 128); /* of dQ transposed */
    cycles c = {.flops = 2 * pairs * (3 * head_dim + 2 * head_dim_v)};
    c.products = 2 * pairs * (items * k + kv + k + kv + (wide ? dq_lanes : k)) / FLOPS;
    c.instructions = pairs * ATTUNE__SM100_BACKWARD_PAIR / ATTUNE__SM100_INSTRUCTIONS +
                     (items - 1) * pairs * ATTUNE__SM100_P_PAIR / ATTUNE__SM100_INSTRUCTIONS;
    add_exponentials(&c, &d->variant, items * pairs);
    /* Left and right operands in shared memory: S, dP, dV, dK, dQ. */
    const double right = m / ctas;
    const double operands = items * (n + right) * k + (n + right) * kv + right * kv + right * k +
                            (wide ? dq_lanes * n + dq_lanes / 128 * m * n : m * n + n * k);
    /* Q and dO are loaded, dS stored, dQ stored and read in float32. */
    const double loaded = paired ? m / 2 * (k + kv) + 2 * m * 64 : items * m * (k + kv);
    c.shared = 2 * (operands + loaded + m * n + 4 * m / ctas * k) / SHARED;
    c.tensor =
        (pairs * (items * 4 + 4 + 2 + 2) + m / ctas * k * 4) / TENSOR; /* S, dP and dQ are read, P and dS stored */
    return c;
}

static double longest(cycles c)
{
    return larger(larger(c.products, c.shared), larger(larger(c.units, c.instructions), c.tensor));
}

static attune__decision backward_of(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n)
{
    const attune_kernel_options named = {.struct_size = sizeof named,
                                         .any = {.kernel = "cuda_sm100a", .block_n1 = block_n}};
    const attune_limits b200 = device("b200");
    attune_problem p = problem_of(ATTUNE_BF16, head_dim, 8192, 8192);
    attune__shape shape;
    attune__decision d;
    p.head_dim_v = head_dim_v;
    p.direction = ATTUNE_BACKWARD;
    cr_assert_eq(attune__shape_from_problem(&p, &shape), ATTUNE_OK);
    cr_assert_eq(attune__plan_choose(&b200, &shape, &named, &d), ATTUNE_OK, "%s", attune_last_error());
    return d;
}

/* One CTA by itself, and a pair, where the planner chooses that at this length. */
static void add_pair_row(char *text, size_t size, uint32_t head_dim, uint32_t head_dim_v)
{
    const attune__decision one = backward_of(head_dim, head_dim_v, 128), two = backward_of(head_dim, head_dim_v, 256);
    const cycles alone = backward_cycles(&one, head_dim, head_dim_v),
                 both = backward_cycles(&two, head_dim, head_dim_v);
    cr_assert_eq(backward_of(head_dim, head_dim_v, 0).choice.block_n1, 256);
    const size_t at = strlen(text);
    (void)snprintf(text + at, size - at, "| %u/%u | %.0f, %.0f | %.0f, %.0f | %.0f, %.0f | %.1f, %.1f |\n", head_dim,
                   head_dim_v, alone.products, both.products, alone.shared, both.shared,
                   alone.flops / longest(alone) * CHIP * 1e-12, both.flops / longest(both) * CHIP * 1e-12,
                   one.choice.shared_memory / 1024.0, two.choice.shared_memory / 1024.0);
}

static void add_row(char *text, size_t size, attune_direction direction, uint32_t head_dim, uint32_t head_dim_v,
                    bool lse)
{
    const attune_kernel_options named = {.struct_size = sizeof named, .any = {.kernel = "cuda_sm100a"}};
    const attune_limits b200 = device("b200");
    attune_problem p = problem_of(ATTUNE_BF16, head_dim, 8192, 8192);
    attune__shape shape;
    attune__decision d;
    p.head_dim_v = head_dim_v;
    p.direction = direction;
    p.lse = lse;
    cr_assert_eq(attune__shape_from_problem(&p, &shape), ATTUNE_OK);
    cr_assert_eq(attune__plan_choose(&b200, &shape, &named, &d), ATTUNE_OK, "%s", attune_last_error());
    const bool back = direction == ATTUNE_BACKWARD;
    const cycles c = back ? backward_cycles(&d, head_dim, head_dim_v) : forward_cycles(&d, head_dim, head_dim_v);
    const double products = larger(c.products, c.shared), softmax = larger(larger(c.units, c.instructions), c.tensor);
    const bool in_turn = !back && forward_in_turn(&d, head_dim, head_dim_v);
    const double most = in_turn ? products + softmax : larger(products, softmax);
    const size_t at = strlen(text);
    (void)snprintf(text + at, size - at, "| %u/%u | %u x %u, %u | %u, %u | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n",
                   head_dim, head_dim_v, back ? d.choice.block_m1 : d.choice.block_m,
                   back ? d.choice.block_n1 : d.choice.block_n, d.choice.num_stages, d.variant.polynomials,
                   d.variant.polynomial_degree, c.products, c.units, c.instructions, c.shared, c.tensor,
                   c.flops / most * CHIP * 1e-12);
}

static void expect_in_page(const char *name, const char *expected)
{
    static char page[65536];
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/docs/decisions/%s", getenv("ATTUNE_SOURCE") ? getenv("ATTUNE_SOURCE") : ".",
                   name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    (void)fclose(file);
    cr_assert_not_null(strstr(page, expected), "%s has other figures than the planner's:\n%s", path, expected);
}

Test(estimate, of_tcgen05_is_documented)
{
    static const struct {
        const char *title;
        attune_direction direction;
        bool lse;
    } tables[] = {{"Forward, without LSE", ATTUNE_FORWARD, false},
                  {"Forward, with LSE", ATTUNE_FORWARD, true},
                  {"Backward", ATTUNE_BACKWARD, false}};
    static const uint32_t dims[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
    static char expected[8192];
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        const size_t at = strlen(expected);
        (void)snprintf(expected + at, sizeof expected - at,
                       "| %s: D/Dv | tile, stages | polynomials of 8, degree | products | special functions | "
                       "instructions | shared memory | tensor memory | at most, TFLOP/s |\n"
                       "|---|---|---|---|---|---|---|---|---|\n",
                       tables[t].title);
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
            add_row(expected, sizeof expected, tables[t].direction, dims[i][0], dims[i][1], tables[t].lse);
        strcat(expected, "\n");
    }
    expect_in_page("0063-estimate-of-sm100a.md", expected);
    strcpy(expected, "| Backward, alone and by pairs: D/Dv | products | shared memory | at most, TFLOP/s | KiB |\n"
                     "|---|---|---|---|---|\n");
    for (size_t i = 0; i < 3; i++)
        add_pair_row(expected, sizeof expected, dims[i][0], dims[i][1]);
    expect_in_page("0063-estimate-of-sm100a.md", expected);
}

/* mma.sync on the RTX 5090: 209.5 TFLOP/s of bf16 with float32 sums, of 170 compute units at 2.407 GHz. */
#define SM120_FLOPS 512.0

Test(estimate, of_sm_120_is_documented)
{
    static const uint32_t dims[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
    static char expected[4096];
    const attune_limits rtx5090 = device("rtx5090");
    strcat(expected,
           "| D/Dv | forward: tile, warps | KiB, CTAs of a unit | products | special functions | shared memory | "
           "backward: kernel, tile, stages | KiB, CTAs of a unit |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        attune_problem p = problem_of(ATTUNE_BF16, dims[i][0], 8192, 8192);
        attune_plan_choice f = {.struct_size = sizeof f}, b = {.struct_size = sizeof b};
        p.head_dim_v = dims[i][1];
        cr_assert_eq(attune_plan_choose(&rtx5090, &p, NULL, &f), ATTUNE_OK, "%s", attune_last_error());
        p.direction = ATTUNE_BACKWARD;
        cr_assert_eq(attune_plan_choose(&rtx5090, &p, NULL, &b), ATTUNE_OK, "%s", attune_last_error());
        const double m = f.block_m, n = f.block_n, d = dims[i][0], both = d + dims[i][1];
        /* Each warp reads K and V of a tile, and Q of its rows; K and V are stored once. */
        const double bytes = 2 * (f.num_warps * n * both + m * d + n * both);
        const size_t at = strlen(expected);
        (void)snprintf(expected + at, sizeof expected - at,
                       "| %u/%u | %u x %u, %u | %u, %u | %.0f | %.0f | %.0f | `%s`, %u x %u, %u | %u, %u |\n",
                       dims[i][0], dims[i][1], f.block_m, f.block_n, f.num_warps, f.shared_memory / 1024, f.occupancy,
                       2 * m * n * both / SM120_FLOPS, m * n / ATTUNE__SM100_EXPONENTIALS, bytes / SHARED, b.kernel,
                       b.block_m1, b.block_n1, b.num_stages, b.shared_memory / 1024, b.occupancy);
    }
    expect_in_page("0064-tiles-of-sm120.md", expected);
}

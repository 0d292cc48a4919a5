/* SPDX-License-Identifier: MIT */
/* The CPU: one thread per tile, whose packed operands and scores should fit the core's L2 cache. */
#include "base/round.h"
#include "plan/family.h"
#include "plan/layout_cpu.h"

static const attune__tile forward_tiles[] = {
    ATTUNE__TILE(128, 128, 1, 1), ATTUNE__TILE(64, 128, 1, 1), ATTUNE__TILE(64, 64, 1, 1), ATTUNE__TILE(32, 64, 1, 1),
    ATTUNE__TILE(32, 32, 1, 1),   ATTUNE__TILE(16, 32, 1, 1),  ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile decode_tiles[] = {
    ATTUNE__TILE(64, 128, 1, 1), ATTUNE__TILE(64, 64, 1, 1), ATTUNE__TILE(32, 64, 1, 1),
    ATTUNE__TILE(16, 64, 1, 1),  ATTUNE__TILE(16, 32, 1, 1), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile backward_tiles[] = {
    ATTUNE__TILES(128, 128, 128, 128, 1, 1), ATTUNE__TILES(64, 64, 64, 64, 1, 1), ATTUNE__TILES(32, 64, 64, 32, 1, 1),
    ATTUNE__TILES(32, 32, 32, 32, 1, 1),     ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};

static const attune__tile *tiles(const attune__search *search, uint32_t *count)
{
    switch (search->pass) {
    case ATTUNE__PASS_DECODE:
        *count = sizeof decode_tiles / sizeof decode_tiles[0];
        return decode_tiles;
    case ATTUNE__PASS_BACKWARD:
        *count = sizeof backward_tiles / sizeof backward_tiles[0];
        return backward_tiles;
    default:
        *count = sizeof forward_tiles / sizeof forward_tiles[0];
        return forward_tiles;
    }
}

static void clamp(const attune__search *search, attune__tile *tile)
{
    const attune__shape *s = search->shape;
    if (s->tokens) {
        /* A tile has the rows of a group of heads, of one sequence. */
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N, s->mask_kv_block, s->kv_len, 16);
        attune__clamp_decode(search, tile, 16);
        return;
    }
    attune__clamp_tile(search, tile, 16);
    /* The expressions' scratch is sized for the mask's block, also without a block mask. */
    if (search->pass != ATTUNE__PASS_BACKWARD)
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N, s->mask_kv_block, s->kv_len, 16);
    else {
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N1, s->mask_kv_block, s->kv_len, 16);
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N2, s->mask_kv_block, s->kv_len, 16);
    }
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__clamp_decode(search, tile, 16);
    if (search->pass != ATTUNE__PASS_FORWARD || search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M))
        return;
    /* Two tiles for each thread, for load balance. */
    uint32_t *m = &tile->value[ATTUNE__BLOCK_M];
    while (*m > 32 && s->batch * s->heads * ((s->q_len + *m - 1) / *m) < 2 * (int64_t)search->limits->compute_units)
        *m /= 2;
}

static const char *reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const char *why = attune__reject_numbers(search, tile, 16, 1024, option);
    if (why)
        return why;
    static const attune__option columns[] = {ATTUNE__BLOCK_N, ATTUNE__BLOCK_N1, ATTUNE__BLOCK_N2};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        if (tile->value[columns[i]] && search->shape->mask_kv_block % tile->value[columns[i]]) {
            *option = columns[i];
            return "it must divide the block of the mask (mask_kv_block, also without a mask)";
        }
    return NULL;
}

static attune__cost cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    attune__cost c = {.invocations = 1};
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        const uint64_t one = attune__cpu_backward_layout_make(s, v[ATTUNE__BLOCK_M1], v[ATTUNE__BLOCK_N1]).tile_bytes;
        const uint64_t two = attune__cpu_backward_layout_make(s, v[ATTUNE__BLOCK_M2], v[ATTUNE__BLOCK_N2]).tile_bytes;
        c.shared = one > two ? one : two;
    } else
        c.shared = attune__cpu_layout_make(s, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N]).tile_bytes;
    return c;
}

/* Including padding, since the caller's memory may be less aligned than the kernels need. */
static uint64_t workspace(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                          uint32_t split)
{
    (void)cost;
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, units = search->limits->compute_units;
    uint64_t bytes;
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        const uint64_t rows = (uint64_t)(s->batch * s->heads * s->q_len);
        bytes = attune__cpu_backward_workspace_make(s, rows, s->capture_gradient_elements).threads;
        bytes += units * attune__cpu_backward_thread_size(s, v[ATTUNE__BLOCK_M1], v[ATTUNE__BLOCK_N1],
                                                          v[ATTUNE__BLOCK_M2], v[ATTUNE__BLOCK_N2]);
    } else {
        bytes = attune__cpu_workspace_make(s, v[ATTUNE__BLOCK_M], split, units).threads;
        bytes += units * attune__cpu_layout_make(s, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N]).bytes;
    }
    return attune__round_up64(bytes + ATTUNE__CPU_ALIGNMENT - 1, 256);
}

static uint64_t workspace_of_matrices(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                                      uint32_t split)
{
    const uint32_t *v = tile->value;
    return workspace(search, tile, cost, split) +
           attune__cpu_packed_make(search->shape, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N]).bytes;
}

/* With 256 rows, which a mask's blocks seldom have, packing takes half of the share that it has with 128. */
static const attune__tile matrix_tiles[] = {
    ATTUNE__TILE(256, 128, 1, 1), ATTUNE__TILE(128, 128, 1, 1), ATTUNE__TILE(64, 128, 1, 1), ATTUNE__TILE(64, 64, 1, 1),
    ATTUNE__TILE(32, 64, 1, 1),   ATTUNE__TILE(32, 32, 1, 1),   ATTUNE__TILE(16, 32, 1, 1),
};

static const attune__tile *tiles_of_matrices(const attune__search *search, uint32_t *count)
{
    (void)search;
    *count = sizeof matrix_tiles / sizeof matrix_tiles[0];
    return matrix_tiles;
}

/* 16-bit matrices, in the arrays of the float kernel (cpu/matrix.h): blocks of 32 columns must not exceed them. */
static const char *reject_matrix_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    if (tile->value[ATTUNE__BLOCK_N] % 32 == 0)
        return reject_tile(search, tile, option);
    *option = ATTUNE__BLOCK_N;
    return "it must be a multiple of 32";
}

/* f16 takes two bf16 for an element. */
static const char *reject_columns(const attune__search *search)
{
    const uint32_t d = search->shape->head_dim;
    return search->shape->k_dtype == ATTUNE_F16 && attune__round_up(d, 32) > attune__round_up(d, 16)
               ? "head dimensions of f16 are at most 15 below a multiple of 32"
               : NULL;
}

#define MATRIX_FAMILY                                                                                                  \
    .backend = ATTUNE_BACKEND_CPU, .cache = true, .sinks = true, .heads_above_256 = true,                              \
    .options = {ATTUNE__FORWARD_TILE, 0, 0}, .tiles = tiles_of_matrices, .clamp = clamp,                               \
    .reject_tile = reject_matrix_tile, .cost = cost, .workspace = workspace_of_matrices

const attune__family attune__cpu_amx = {
    MATRIX_FAMILY,
    .name = "cpu_amx",
    .matrix = ATTUNE_MATRIX_AMX,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reject_problem = reject_columns,
};

const attune__family attune__cpu_bf16 = {
    MATRIX_FAMILY,
    .name = "cpu_bf16",
    .matrix = ATTUNE_MATRIX_CPU_BF16,
    .dtypes = 1u << ATTUNE_BF16,
};

const attune__family attune__cpu = {
    .name = "cpu",
    .backend = ATTUNE_BACKEND_CPU,
    .cache = true,
    .sinks = true,
    .serving = true,
    .fixed_splits = true,
    .shares = true,
    .heads_above_256 = true,
    .gradients_above_256 = true,
    .dtypes = ATTUNE__CACHE_DTYPES | 1u << ATTUNE_F64,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE | 1u << ATTUNE__PASS_BACKWARD,
    .options = {ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__PRESCALE_QK),
                ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__PRESCALE_QK) | ATTUNE__BIT(ATTUNE__SPLIT_KV),
                ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__PRESCALE_QK) | ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = tiles,
    .clamp = clamp,
    .reject_tile = reject_tile,
    .cost = cost,
    .workspace = workspace,
};

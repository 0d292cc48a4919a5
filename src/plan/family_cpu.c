/* SPDX-License-Identifier: MIT */
/* The CPU: one thread per tile, whose packed operands and scores should fit the core's L2 cache. */
#include "plan/family_cpu.h"

#include "plan/family.h"

static uint64_t array(uint64_t elements, uint64_t bytes)
{
    return attune__round_up64(elements * bytes, 64);
}

/* The most partial results of a call over a cache: a part is a tile of rows. */
#define PARTS_BYTES UINT64_C(0x800000)

static uint64_t compute_bytes(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? 8 : 4;
}

uint64_t attune__cpu_scratch_size(uint32_t block_m, uint32_t block_n, uint32_t head_dim, uint32_t head_dim_v,
                                  attune_dtype dtype)
{
    uint64_t t = compute_bytes(dtype), m = attune__round_up(block_m, 16), n = attune__round_up(block_n, 16);
    uint64_t d = attune__round_up(head_dim, 16), dv = attune__round_up(head_dim_v, 16);
    return array(m * d, t) + array(n * d, t) + array(n * dv, t) + array(m * n, t) + array(m * dv, t) + array(3 * m, t) +
           array(n, 1);
}

/* The allowed pairs of a tile: a bit each, and the columns of a row. */
static uint64_t pairs_bytes(uint32_t block_m, uint32_t block_n)
{
    const uint64_t n = attune__round_up(block_n, 16);
    return array(block_m * (n / 16), 2) + array(n, 2);
}

/* The most bits that a thread keeps. */
#define KEPT_BYTES UINT64_C(0x80000)

uint32_t attune__cpu_kept_tiles(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    if (!shape->block_mask || shape->expr.mask.reads_head || shape->heads < 2 || shape->tokens)
        return 0;
    const uint64_t most = KEPT_BYTES / pairs_bytes(block_m, block_n),
                   tiles = ((uint64_t)shape->kv_len + block_n - 1) / block_n;
    return (uint32_t)(tiles < most ? tiles : most);
}

uint64_t attune__cpu_kept_size(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    const uint64_t tiles = attune__cpu_kept_tiles(shape, block_m, block_n);
    return array(tiles, 4) + array(tiles * block_m * (attune__round_up(block_n, 16) / 16), 2);
}

uint64_t attune__cpu_thread_size(const attune__shape *shape, uint32_t block_m, uint32_t block_n)
{
    uint64_t scratch =
        attune__cpu_scratch_size(block_m, block_n, shape->head_dim, shape->head_dim_v, attune__shape_real(shape));
    if (shape->tokens) {
        const uint64_t t = compute_bytes(attune__shape_real(shape)), n = attune__round_up(block_n, 16);
        const uint32_t widest = shape->head_dim > shape->head_dim_v ? shape->head_dim : shape->head_dim_v;
        scratch += attune__round_up64(shape->bounds_scratch, 64) + array(n * widest, t) + array(n, 1) +
                   attune__cpu_part_size(shape, block_m);
    }
    return attune__round_up64(scratch + attune__round_up64(shape->expr_scratch, 64) + pairs_bytes(block_m, block_n) +
                                  attune__cpu_kept_size(shape, block_m, block_n),
                              256);
}

uint64_t attune__cpu_schedule_size(const attune__shape *shape)
{
    return shape->tokens ? attune__round_up64(64 + ((uint64_t)shape->batch + 1) * 32, 256) : 0;
}

uint32_t attune__cpu_split_keys(const attune__shape *shape)
{
    return shape->split_keys ? shape->split_keys : 1024;
}

uint64_t attune__cpu_part_size(const attune__shape *shape, uint32_t block_m)
{
    const uint64_t m = attune__round_up(block_m, 16), dv = attune__round_up(shape->head_dim_v, 16);
    return array(m * (dv + 3), compute_bytes(attune__shape_real(shape)));
}

uint64_t attune__cpu_parts(const attune__shape *shape, uint32_t block_m, uint32_t threads)
{
    const uint64_t keys = attune__cpu_split_keys(shape), splits = ((uint64_t)shape->kv_len + keys - 1) / keys;
    if (!shape->tokens || threads < 2 || splits < 2)
        return 0;
    const uint64_t most = PARTS_BYTES / attune__cpu_part_size(shape, block_m),
                   rows = (uint64_t)(shape->tokens * shape->heads);
    return rows < most / splits ? rows * splits : most;
}

uint64_t attune__cpu_backward_scratch_size(uint32_t block_m, uint32_t block_n, uint32_t head_dim, uint32_t head_dim_v,
                                           attune_dtype dtype)
{
    uint64_t t = compute_bytes(dtype), m = attune__round_up(block_m, 16), n = attune__round_up(block_n, 16);
    uint64_t d = attune__round_up(head_dim, 16), dv = attune__round_up(head_dim_v, 16);
    return 2 * array(m * d, t) + 2 * array(m * dv, t) + 2 * array(n * d, t) + 2 * array(n * dv, t) +
           3 * array(m * n, t) + array(n, t) + array(2 * m, t) + array(n, 1);
}

uint64_t attune__cpu_backward_thread_size(const attune__shape *shape, uint64_t scratch)
{
    return attune__round_up64(scratch + attune__round_up64(shape->expr_scratch, 64), 256);
}

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
        uint64_t one = attune__cpu_backward_scratch_size(v[ATTUNE__BLOCK_M1], v[ATTUNE__BLOCK_N1], s->head_dim,
                                                         s->head_dim_v, attune__shape_real(s));
        uint64_t two = attune__cpu_backward_scratch_size(v[ATTUNE__BLOCK_M2], v[ATTUNE__BLOCK_N2], s->head_dim,
                                                         s->head_dim_v, attune__shape_real(s));
        c.shared = one > two ? one : two;
    } else
        c.shared = attune__cpu_scratch_size(v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], s->head_dim, s->head_dim_v,
                                            attune__shape_real(s));
    return c;
}

/* Including padding, since the caller's memory may be less aligned than the kernels need. */
static uint64_t workspace(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                          uint32_t split)
{
    const attune__shape *s = search->shape;
    const uint64_t units = search->limits->compute_units, element = attune_dtype_size(attune__shape_real(s));
    uint64_t bytes;
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        /* delta = rowsum(dO * O) - dLSE */
        const uint64_t rows = (uint64_t)(s->batch * s->heads * s->q_len);
        bytes = attune__round_up64(rows * element, 256);
        bytes += attune__round_up64(s->capture_gradient_elements * ATTUNE__CPU_GRADIENT_SLOTS * sizeof(double), 64);
        bytes += units * attune__cpu_backward_thread_size(s, cost->shared);
    } else {
        bytes = attune__cpu_schedule_size(s) + attune__workspace_parts(search, split);
        bytes += attune__cpu_parts(s, tile->value[ATTUNE__BLOCK_M], (uint32_t)units) *
                 attune__cpu_part_size(s, tile->value[ATTUNE__BLOCK_M]);
        bytes += units * attune__cpu_thread_size(s, tile->value[ATTUNE__BLOCK_M], tile->value[ATTUNE__BLOCK_N]);
    }
    return attune__round_up64(bytes + ATTUNE__CPU_ALIGNMENT - 1, 256);
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
    .reject_tile = reject_matrix_tile, .cost = cost, .workspace = workspace

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
    .heads_above_256 = true,
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

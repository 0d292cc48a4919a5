/* SPDX-License-Identifier: MIT */
/*
 * CUDA. Shared memory is counted in elements of the input type, swizzled, so that nothing is lost to padding but the
 * head dimension's own: up to 16 elements for mma.sync, up to 64 (one 128-byte swizzle) for TMA. P stays in registers
 * in forward. num_stages counts the tiles of K and of V (in the dK/dV loop: of Q and of dO) that are in flight; with 1,
 * the copy of K overlaps P V and that of V overlaps Q K^T.
 *
 * Registers are an estimate for the busiest thread: the float32 accumulators plus what addresses, fragments and the
 * softmax take. Tiles follow FlashAttention-2 (sm80), FlashAttention-3 (sm90a) and FlashAttention-4 (sm100a) where
 * those divide a mask's block of 128.
 */
#include "plan/family_cuda.h"

#define BASE_REGISTERS 48
#define TILES          ATTUNE__CUDA_TILES

static uint32_t padded(uint32_t dim, uint32_t multiple)
{
    return attune__round_up(dim, multiple);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The registers that inlined expressions add. */
static uint32_t mod_registers(const attune__shape *s)
{
    return (s->score_expr ? 4u : 0u) + (s->mask_expr ? 3u : 0u);
}

/* ------------------------------------------------------------------------------------------------------------ sm80 */

static const attune__tile sm80_64[] = {
    ATTUNE__TILE(128, 128, 1, 4), ATTUNE__TILE(128, 64, 1, 4), ATTUNE__TILE(64, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),   ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_128[] = {
    ATTUNE__TILE(128, 64, 1, 4), ATTUNE__TILE(64, 64, 1, 4), ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),  ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_192[] = {
    ATTUNE__TILE(128, 64, 1, 8),
    ATTUNE__TILE(64, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_256[] = {
    ATTUNE__TILE(128, 64, 1, 8), ATTUNE__TILE(64, 64, 1, 4), ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),  ATTUNE__TILE(16, 16, 1, 1),
};
/* On Blackwell, and beside a score expression, 128 columns spill. */
static const attune__tile sm80_64_narrow[] = {
    ATTUNE__TILE(128, 64, 1, 4),
    ATTUNE__TILE(64, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Two workgroups on a compute unit of 100 KiB hide each other's waits better than one with a larger tile. What the
 * architecture holds says whether it is such a unit, and not a profile that was laid over a larger device. Beside a
 * score expression 64 columns spill. */
static const attune__tile sm80_128_narrow[] = {
    ATTUNE__TILE(128, 32, 1, 4), ATTUNE__TILE(64, 64, 1, 4), ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),  ATTUNE__TILE(16, 16, 1, 1),
};
/* float32: a warp's 16 rows of O leave the less room for S, the wider O is. */
static const attune__tile sm80_f32_64[] = {
    ATTUNE__TILE(128, 64, 1, 8),
    ATTUNE__TILE(64, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_f32_128[] = {
    ATTUNE__TILE(128, 32, 1, 8),
    ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_f32_256[] = {
    ATTUNE__TILE(64, 16, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Decode, by the packed rows: up to 16, 32, and more. */
static const attune__tile sm80_decode_16[] = {
    ATTUNE__TILE(16, 128, 2, 4), ATTUNE__TILE(16, 64, 3, 4), ATTUNE__TILE(16, 64, 2, 4),
    ATTUNE__TILE(16, 64, 1, 4),  ATTUNE__TILE(16, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_decode_32[] = {
    ATTUNE__TILE(32, 64, 3, 4), ATTUNE__TILE(32, 64, 2, 4), ATTUNE__TILE(32, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_decode_64[] = {
    ATTUNE__TILE(64, 64, 3, 4), ATTUNE__TILE(64, 64, 2, 4), ATTUNE__TILE(64, 32, 2, 4),
    ATTUNE__TILE(64, 32, 1, 4), ATTUNE__TILE(32, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
/* float32: 16 columns for each warp, as in forward. */
static const attune__tile sm80_decode_f32_16[] = {
    ATTUNE__TILE(16, 64, 2, 4),
    ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_decode_f32_32[] = {
    ATTUNE__TILE(32, 32, 2, 4),
    ATTUNE__TILE(32, 32, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_decode_f32_64[] = {
    ATTUNE__TILE(64, 16, 3, 4),
    ATTUNE__TILE(64, 16, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* A warp's sums of many columns leave no registers for further stages. */
static const attune__tile sm80_decode_f32_192[] = {
    ATTUNE__TILE(64, 16, 2, 4),
    ATTUNE__TILE(64, 16, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_decode_f32_256[] = {
    ATTUNE__TILE(64, 16, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
static attune__cuda_tiles sm80_decode_tiles(const attune__shape *s, bool wide)
{
    int64_t rows = s->q_len * attune__shape_packed_heads(s);
    /* Warps that share keys have no room for more than 128 columns of float32. */
    if (wide && (s->head_dim > 192 || s->head_dim_v > 192))
        return TILES(sm80_decode_f32_256);
    if (wide && (s->head_dim > 128 || s->head_dim_v > 128))
        return TILES(sm80_decode_f32_192);
    if (rows <= 16)
        return wide ? TILES(sm80_decode_f32_16) : TILES(sm80_decode_16);
    if (rows <= 32)
        return wide ? TILES(sm80_decode_f32_32) : TILES(sm80_decode_32);
    return wide ? TILES(sm80_decode_f32_64) : TILES(sm80_decode_64);
}

static bool sm80_small_unit(const attune_limits *limits)
{
    const uint32_t a = limits->architecture;
    return a == 86 || a == 89 || a / 10 == 12;
}

static const attune__tile *sm80_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    bool wide = attune__dtype_bytes(s) == 4, small = sm80_small_unit(search->limits);
    bool blackwell = search->limits->architecture / 10 == 12;
    const attune__cuda_tiles forward[4] = {blackwell || s->score_expr ? TILES(sm80_64_narrow) : TILES(sm80_64),
                                           small || s->score_expr ? TILES(sm80_128_narrow) : TILES(sm80_128),
                                           TILES(sm80_192), TILES(sm80_256)};
    const attune__cuda_tiles wide_forward[4] = {TILES(sm80_f32_64), TILES(sm80_f32_128), TILES(sm80_f32_256),
                                                TILES(sm80_f32_256)};
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm80_backward_tiles(search, count);
    attune__cuda_tiles t = search->pass == ATTUNE__PASS_DECODE
                               ? sm80_decode_tiles(s, wide)
                               : attune__cuda_by_head_dim(s, wide ? wide_forward : forward);
    *count = t.count;
    return t.tiles;
}

/* Forward: a warp owns 16 rows or a multiple. Decode: warps share the rows in sixteens, then the keys. */
static bool sm80_warps_divide(const attune__search *search, const attune__tile *tile)
{
    const uint32_t *v = tile->value;
    uint32_t warps = v[ATTUNE__NUM_WARPS];
    if (search->pass != ATTUNE__PASS_DECODE)
        return v[ATTUNE__BLOCK_M] % (16 * warps) == 0;
    uint32_t rows = v[ATTUNE__BLOCK_M] / 16;
    return rows && warps % rows == 0 && v[ATTUNE__BLOCK_N] / 16 >= warps / rows &&
           v[ATTUNE__BLOCK_N] / 16 % (warps / rows) == 0;
}

static void sm80_settle(const attune__search *search, attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        attune__cuda_sm80_backward_settle(search, tile);
        return;
    }
    attune__settle_tile(search, tile, 16);
    if (search->pass == ATTUNE__PASS_DECODE)
        attune__settle_decode(search, tile, 16);
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS];
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    while (*warps > 1 && !sm80_warps_divide(search, tile))
        *warps /= 2;
}

static const char *sm80_refuse(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm80_backward_refuse(search, tile, option);
    const char *why = attune__refuse_numbers(search, tile, 16, 256, option);
    if (why)
        return why;
    if (search->pass == ATTUNE__PASS_DECODE && tile->value[ATTUNE__BLOCK_M] > 64) {
        *option = ATTUNE__BLOCK_M;
        return "a decode tile has at most 64 rows";
    }
    if (!sm80_warps_divide(search, tile)) {
        const attune__option blame = search->pass == ATTUNE__PASS_DECODE ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : blame;
        return search->pass == ATTUNE__PASS_FORWARD ? "each of the num_warps warps takes 16 rows or a multiple"
                                                    : "the num_warps warps do not divide the tile";
    }
    return NULL;
}

static uint32_t sm80_registers(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint32_t threads = 32 * v[ATTUNE__NUM_WARPS], dv = padded(s->head_dim_v, 16);
    uint32_t base = BASE_REGISTERS + mod_registers(s);
    if (search->pass == ATTUNE__PASS_DECODE) {
        /* A warp holds 16 rows of O, and its share of the keys' scores. */
        uint32_t rows = v[ATTUNE__BLOCK_M] / 16, shares = v[ATTUNE__NUM_WARPS] / rows;
        return base + 16 * dv / 32 + 16 * v[ATTUNE__BLOCK_N] / shares / 32;
    }
    return base + v[ATTUNE__BLOCK_M] * (v[ATTUNE__BLOCK_N] + dv) / threads;
}

/*
 * With e the bytes of an element, D and Dv the padded head dimensions, S = num_stages:
 *   forward    max(Q[M][D] + S (K[N][D] + V[N][Dv]), O[M][Dv]) e              O is staged where all the others were
 *              with T words for each key of the expressions: 2 terms[T][N] 4 behind K and V
 *   decode     max(the same without O, merge[warps over keys][M][Dv + 2] 4)   O, m and l in float32, over the rest
 *              and in float32 past 128, 32 bytes of each thread behind it all
 */
static attune__cost sm80_cost(const attune__search *search, const attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm80_backward_cost(search, tile);
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint64_t e = attune__dtype_bytes(s), d = padded(s->head_dim, 16), dv = padded(s->head_dim_v, 16);
    uint64_t stages = v[ATTUNE__NUM_STAGES], warps = v[ATTUNE__NUM_WARPS];
    attune__cost c = {.invocations = 32 * v[ATTUNE__NUM_WARPS], .registers = sm80_registers(search, tile)};
    uint64_t m = v[ATTUNE__BLOCK_M], n = v[ATTUNE__BLOCK_N];
    uint64_t words = search->pass == ATTUNE__PASS_DECODE ? s->key_terms_of_heads : s->key_terms;
    uint64_t loop = (m * d + stages * n * (d + dv)) * e + 2 * words * n * 4;
    if (search->pass == ATTUNE__PASS_DECODE) {
        uint64_t shares = warps / (m / 16);
        if (e == 4 && (d > 128 || dv > 128))
            loop += 32 * (uint64_t)c.invocations;
        c.shared = larger(loop, shares * m * (dv + 2) * 4);
    } else
        c.shared = larger(loop, m * dv * e);
    return c;
}

#define CUDA_READS                                                                                                     \
    {                                                                                                                  \
        ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE),                          \
            ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),                                  \
            ATTUNE__CUDA_LOOP | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)                                 \
    }

/* Decode waits for memory, not for products: mma.sync serves every device. */
#define FORWARD_READS                                                                                                  \
    {                                                                                                                  \
        ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE), 0, 0                     \
    }

#define SM90_READS                                                                                                     \
    {                                                                                                                  \
        ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE), 0,                       \
            ATTUNE__CUDA_LOOP | ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) |                        \
                ATTUNE__BIT(ATTUNE__WRITE_DQ)                                                                          \
    }

const attune__family attune__cuda_sm80 = {
    .name = "cuda_sm80",
    .backend = ATTUNE_BACKEND_CUDA,
    .matrix = ATTUNE_MATRIX_MMA_SYNC,
    .dtypes = 1u << ATTUNE_F32 | 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reads = CUDA_READS,
    .tiles = sm80_tiles,
    .settle = sm80_settle,
    .refuse = sm80_refuse,
    .cost = sm80_cost,
};

/* ----------------------------------------------------------------------------------------------------------- sm90a */

#define PRODUCER_WARPS 4

static const attune__tile sm90_64[] = {
    ATTUNE__TILE(192, 128, 2, 16), ATTUNE__TILE(128, 128, 2, 12), ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),    ATTUNE__TILE(64, 64, 1, 8),
};
static const attune__tile sm90_128[] = {
    ATTUNE__TILE(128, 128, 2, 12),
    ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),
    ATTUNE__TILE(64, 64, 1, 8),
};
static const attune__tile sm90_192[] = {
    ATTUNE__TILE(128, 128, 2, 12), ATTUNE__TILE(128, 112, 2, 12), ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),    ATTUNE__TILE(64, 64, 1, 8),    ATTUNE__TILE(64, 32, 1, 8),
};
/* Beside a score 128 keys spill. */
static const attune__tile sm90_192_score[] = {
    ATTUNE__TILE(128, 112, 2, 12), ATTUNE__TILE(128, 64, 2, 12), ATTUNE__TILE(64, 64, 2, 8),
    ATTUNE__TILE(64, 64, 1, 8),    ATTUNE__TILE(64, 32, 1, 8),
};
static const attune__tile sm90_256[] = {
    ATTUNE__TILE(128, 80, 2, 12), ATTUNE__TILE(128, 64, 2, 12), ATTUNE__TILE(64, 64, 2, 8),
    ATTUNE__TILE(64, 32, 2, 8),   ATTUNE__TILE(64, 32, 1, 8),
};
static const attune__tile *sm90_tiles(const attune__search *search, uint32_t *count)
{
    const attune__cuda_tiles wide = search->shape->score_expr ? TILES(sm90_192_score) : TILES(sm90_192);
    const attune__cuda_tiles forward[4] = {TILES(sm90_64), TILES(sm90_128), wide, TILES(sm90_256)};
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm90_backward_tiles(search, count);
    attune__cuda_tiles t = attune__cuda_by_head_dim(search->shape, forward);
    *count = t.count;
    return t.tiles;
}

/* One warp group loads; each other one, of four warps, owns 64 rows. */
static uint32_t sm90_warps(const attune__tile *tile)
{
    return PRODUCER_WARPS + tile->value[ATTUNE__BLOCK_M] / 16;
}

/* Three warp groups, whose 160 registers hold S, P and O of small heads, and no score's values or pairs of a mask
 * beside them. The rows lie in at most two block rows of a mask, and each group's in one. */
static bool sm90_may_have_192(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return search->pass == ATTUNE__PASS_FORWARD && s->head_dim <= 64 && s->head_dim_v <= 64 && !s->score_expr &&
           (!s->mask_expr || s->mask_rows) && (!s->block_mask || s->mask_q_block % 128 == 0);
}

static void sm90_settle(const attune__search *search, attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return;
    uint32_t *v = tile->value;
    bool three = v[ATTUNE__BLOCK_M] == 192 && sm90_may_have_192(search);
    if (v[ATTUNE__BLOCK_M] == 192 && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)))
        v[ATTUNE__BLOCK_M] = 128;
    /* 80 and 112 keys fill shared memory where a mask has no blocks that they would have to divide. */
    uint32_t keys = v[ATTUNE__BLOCK_N];
    bool odd = !attune__is_power2(keys) && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N));
    if (odd)
        v[ATTUNE__BLOCK_N] = 64;
    attune__settle_tile(search, tile, 16);
    if (three && v[ATTUNE__BLOCK_M] == 128)
        v[ATTUNE__BLOCK_M] = 192;
    if (odd && !search->shape->block_mask && v[ATTUNE__BLOCK_N] == 64)
        v[ATTUNE__BLOCK_N] = keys;
    /* wgmma has 64 rows whatever the lengths; refuse sorts out masks with smaller blocks. */
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && v[ATTUNE__BLOCK_M] < 64)
        v[ATTUNE__BLOCK_M] = 64;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)))
        v[ATTUNE__NUM_WARPS] = sm90_warps(tile);
}

static const char *sm90_refuse(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm90_backward_refuse(search, tile, option);
    attune__tile blocks = *tile;
    if (sm90_may_have_192(search) && tile->value[ATTUNE__BLOCK_M] == 192)
        blocks.value[ATTUNE__BLOCK_M] = 64;
    const char *why = attune__refuse_numbers(search, &blocks, 16, 256, option);
    if (why)
        return why;
    *option = ATTUNE__BLOCK_M;
    if (tile->value[*option] % 64 || tile->value[*option] > (sm90_may_have_192(search) ? 192u : 128u))
        return "wgmma takes 64 or 128 rows";
    if (tile->value[ATTUNE__NUM_WARPS] != sm90_warps(tile)) {
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
        return "there are 4 warps that load and 4 for each 64 rows";
    }
    return NULL;
}

/*
 * As sm80, with D and Dv padded to 64 and 8 (34 + 7 S) bytes rounded up to 128 behind the tiles: barriers, the rows'
 * and the keys' notes, and the walk's steps.
 *
 *     forward       B Q[M][D] e + S (K[N][D] + V[N][Dv]) e + barriers
 *
 * and with T words for each key of the expressions S (16 + terms[T][N] 4) behind them, rounded up likewise.
 *
 * B = 2 where D and Dv are at most 128, else 1: the next rows' Q comes while these are worked on.
 */
static attune__cost sm90_cost(const attune__search *search, const attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return attune__cuda_sm90_backward_cost(search, tile);
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint32_t d = padded(s->head_dim, 64), dv = padded(s->head_dim_v, 64), stages = v[ATTUNE__NUM_STAGES];
    uint64_t e = attune__dtype_bytes(s), barriers = attune__round_up64(8 * (34 + 7 * stages), 128);
    attune__cost c = {.invocations = 32 * v[ATTUNE__NUM_WARPS]};
    uint32_t base = BASE_REGISTERS - 8 + mod_registers(s);
    c.launched_registers = c.invocations ? 65536 / c.invocations / 8 * 8 : 0;
    c.launched_registers = c.launched_registers > 248 ? 248 : c.launched_registers;
    uint64_t m = v[ATTUNE__BLOCK_M], n = v[ATTUNE__BLOCK_N], buffers = d <= 128 && dv <= 128 ? 2 : 1;
    c.shared = buffers * m * d * e + stages * n * (d + dv) * e + barriers;
    if (s->key_terms)
        c.shared += attune__round_up64(stages * (16 + n * s->key_terms * 4), 128);
    /* A warp group's 64 rows of S, P in 16 bits, and O, over 128 threads. */
    c.registers = base + v[ATTUNE__BLOCK_N] / 2 + v[ATTUNE__BLOCK_N] / 4 + dv / 2;
    return c;
}

static const char *sm90_refuses(const attune__search *search)
{
    return search->pass == ATTUNE__PASS_BACKWARD ? attune__cuda_sm90_backward_refuses(search) : NULL;
}

const attune__family attune__cuda_sm90a = {
    .name = "cuda_sm90a",
    .backend = ATTUNE_BACKEND_CUDA,
    .matrix = ATTUNE_MATRIX_WGMMA,
    .tma = true,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .refuses = sm90_refuses,
    .unordered = 1u << ATTUNE__PASS_BACKWARD,
    .orders = attune__cuda_sm90_backward_orders,
    .reads = SM90_READS,
    .tiles = sm90_tiles,
    .settle = sm90_settle,
    .refuse = sm90_refuse,
    .cost = sm90_cost,
};

const attune__family attune__cuda_sm100a = {
    .name = "cuda_sm100a",
    .backend = ATTUNE_BACKEND_CUDA,
    .matrix = ATTUNE_MATRIX_TCGEN05,
    .tma = true,
    .missing = "this version has no tcgen05 kernel",
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reads = FORWARD_READS,
    .tiles = sm90_tiles,
    .settle = sm90_settle,
    .refuse = sm90_refuse,
    .cost = sm90_cost,
};

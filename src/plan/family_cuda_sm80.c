/* SPDX-License-Identifier: MIT */
/*
 * CUDA, mma.sync: every pass, on every device since Ampere. Shared memory is swizzled, so that only the head dimension
 * is padded, to 16 elements. P stays in registers in forward. num_stages counts the tiles of K and of V (in the dK/dV
 * loop: of Q and of dO) that are in flight; with 1, the copy of K overlaps P V and that of V overlaps Q K^T. Tiles
 * follow FlashAttention-2 where those divide a mask's block of 128.
 *
 * Backward has two kernels, each of which recomputes P and dS: one keeps a tile of keys and computes dK and dV, the
 * other keeps a tile of queries and computes dQ. A single CTA sums each gradient, so that results are deterministic. A
 * warp has 16 or 32 rows of its kernel's outer tile, and all columns of the inner one: P and dS go from one product to
 * the next in registers.
 */
#include "plan/family_cuda.h"

#include "cuda/layout_sm80.h"

#define TILES        ATTUNE__CUDA_TILES
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --------------------------------------------------------------------------------------------------------- backward */

/* With which tables end. */
#define BACKWARD_SMALLEST     ATTUNE__TILES(32, 32, 32, 32, 1, 2), ATTUNE__TILES(16, 16, 16, 16, 1, 1)
#define BACKWARD_SMALLEST_F32 ATTUNE__TILES(16, 32, 32, 16, 1, 2), ATTUNE__TILES(16, 16, 16, 16, 1, 1)

/* By the larger head dimension: up to 64, 128, 192, 256; and by shared memory: from 160 KiB on, and 99 KiB. */
static const attune__tile backward_large_64[] = {
    ATTUNE__TILES(32, 128, 128, 64, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    BACKWARD_SMALLEST,
};
/* With a score expression larger tiles would spill. */
static const attune__tile backward_score_64[] = {
    ATTUNE__TILES(64, 64, 64, 64, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    BACKWARD_SMALLEST,
};
/* Where two CTAs fit a compute unit, each hides the other's latency. */
static const attune__tile backward_huge_128[] = {
    ATTUNE__TILES(64, 64, 128, 32, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    BACKWARD_SMALLEST,
};
static const attune__tile backward_large_128[] = {
    ATTUNE__TILES(64, 128, 128, 64, 2, 8),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    BACKWARD_SMALLEST,
};
/* On the B200 64 rows of Q spill. */
static const attune__tile backward_narrow_128[] = {
    ATTUNE__TILES(32, 128, 128, 64, 2, 8),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    BACKWARD_SMALLEST,
};
static const attune__tile backward_large_256[] = {
    ATTUNE__TILES(32, 128, 128, 32, 2, 8),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    BACKWARD_SMALLEST,
};
static const attune__tile backward_small_128[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    BACKWARD_SMALLEST,
};
/* float32 */
static const attune__tile backward_f32_64[] = {
    ATTUNE__TILES(16, 128, 128, 32, 1, 8),
    ATTUNE__TILES(16, 64, 64, 32, 1, 4),
    BACKWARD_SMALLEST_F32,
};
static const attune__tile backward_f32_128[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    ATTUNE__TILES(16, 64, 64, 16, 1, 4),
    BACKWARD_SMALLEST_F32,
};
static const attune__tile backward_f32_256[] = {
    ATTUNE__TILES(16, 64, 64, 16, 1, 4),
    BACKWARD_SMALLEST_F32,
};

static const attune__tile *backward_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    const bool small = search->limits->shared_memory < 160 * 1024;
    const bool huge = search->limits->shared_memory >= 200 * 1024 && !s->capture_gradient_elements;
    const bool b200 = search->limits->architecture / 10 == 10;
    const attune__cuda_tiles narrow[4] = {s->score_expr ? TILES(backward_score_64) : TILES(backward_large_64),
                                          small  ? TILES(backward_small_128)
                                          : b200 ? TILES(backward_narrow_128)
                                          : huge ? TILES(backward_huge_128)
                                                 : TILES(backward_large_128),
                                          small ? TILES(backward_small_128) : TILES(backward_large_256),
                                          small ? TILES(backward_small_128) : TILES(backward_large_256)};
    const attune__cuda_tiles f32_tiles[4] = {TILES(backward_f32_64), TILES(backward_f32_128), TILES(backward_f32_256),
                                             TILES(backward_f32_256)};
    const attune__cuda_tiles t = attune__cuda_by_head_dim(s, attune__cuda_is_f32(s) ? f32_tiles : narrow);
    *count = t.count;
    return t.tiles;
}

/* The blocks of 16 rows that a warp has. */
static uint32_t backward_share(uint32_t rows, uint32_t warps)
{
    return rows / (16 * warps);
}

static bool backward_warps_divide(const attune__tile *tile)
{
    const uint32_t *v = tile->value, rows = 16 * v[ATTUNE__NUM_WARPS];
    return v[ATTUNE__BLOCK_N1] % rows == 0 && v[ATTUNE__BLOCK_M2] % rows == 0;
}

/* When warps are taken away, the others keep the number of rows from the table. */
static void limit(const attune__search *search, attune__tile *tile, attune__option option, uint32_t most)
{
    if (!(search->forced & ATTUNE__BIT(option)) && tile->value[option] > most)
        tile->value[option] = most;
}

static void backward_clamp(const attune__search *search, attune__tile *tile)
{
    uint32_t *v = tile->value, *warps = &v[ATTUNE__NUM_WARPS];
    const uint32_t keys = backward_share(v[ATTUNE__BLOCK_N1], *warps),
                   rows = backward_share(v[ATTUNE__BLOCK_M2], *warps);
    attune__clamp_tile(search, tile, 16);
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    while (*warps > 1 && !backward_warps_divide(tile))
        *warps /= 2;
    if (keys && rows) {
        limit(search, tile, ATTUNE__BLOCK_N1, 16 * *warps * keys);
        limit(search, tile, ATTUNE__BLOCK_M2, 16 * *warps * rows);
    }
}

static const char *backward_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const char *why = attune__reject_numbers(search, tile, 16, ATTUNE__CUDA_ROW_BLOCK, option);
    if (why)
        return why;
    static const attune__option rows[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_M2};
    for (size_t i = 0; i < COUNT(rows); i++)
        if (ATTUNE__CUDA_ROW_BLOCK % tile->value[rows[i]]) {
            *option = rows[i];
            return "it must divide 128";
        }
    if (!backward_warps_divide(tile)) {
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_N1;
        return "each of the num_warps warps takes 16 rows of BLOCK_N1 and of BLOCK_M2, or a multiple";
    }
    return NULL;
}

static bool separates_dk_dv(const attune__shape *s)
{
    const uint32_t columns = attune__round_up(s->head_dim, 16) + attune__round_up(s->head_dim_v, 16);
    return columns > (attune__cuda_is_f32(s) ? 128u : 320u);
}

void attune__cuda_sm80_backward_bytes(const attune__shape *s, const attune_plan_choice *c, uint32_t bytes[2])
{
    const attune_cuda_tile keys = attune__cuda_tile(s, c->block_m1, c->block_n1, c->num_warps, c->num_stages),
                           rows = attune__cuda_tile(s, c->block_m2, c->block_n2, c->num_warps, c->num_stages);
    bytes[0] = attune_cuda_backward_sm80(keys, true).size;
    bytes[1] = attune_cuda_backward_sm80(rows, false).size;
}

static attune__cost backward_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, warps = v[ATTUNE__NUM_WARPS];
    const uint32_t d = attune__round_up(s->head_dim, 16), dv = attune__round_up(s->head_dim_v, 16);
    const attune_plan_choice choice = {.block_m1 = v[ATTUNE__BLOCK_M1],
                                       .block_n1 = v[ATTUNE__BLOCK_N1],
                                       .block_m2 = v[ATTUNE__BLOCK_M2],
                                       .block_n2 = v[ATTUNE__BLOCK_N2],
                                       .num_stages = v[ATTUNE__NUM_STAGES]};
    uint32_t bytes[2];
    attune__cuda_sm80_backward_bytes(s, &choice, bytes);
    /* S and dP in float32; dK and dV, or dQ. Where separate CTAs compute dK and dV, each has one of them. */
    const uint32_t sums = separates_dk_dv(s) ? (d > dv ? d : dv) : d + dv;
    const uint32_t keys = backward_share(v[ATTUNE__BLOCK_N1], warps) * (v[ATTUNE__BLOCK_M1] + sums / 2);
    const uint32_t rows = backward_share(v[ATTUNE__BLOCK_M2], warps) * (v[ATTUNE__BLOCK_N2] + d / 2);
    return (attune__cost){
        .shared = bytes[0] > bytes[1] ? bytes[0] : bytes[1],
        .invocations = 32 * warps,
        .registers = attune__cuda_registers(s) + (keys > rows ? keys : rows),
    };
}

/* ----------------------------------------------------------------------------------------------- forward and decode */

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
/* On Blackwell, and with a score expression, 128 columns spill. */
static const attune__tile sm80_64_narrow[] = {
    ATTUNE__TILE(128, 64, 1, 4),
    ATTUNE__TILE(64, 64, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* On a compute unit with 100 KiB two CTAs hide more latency than one with a larger tile. The architecture decides
 * whether it is such a unit: a profile may lower the limits of a larger device. With a score expression 64 columns
 * spill. */
static const attune__tile sm80_128_narrow[] = {
    ATTUNE__TILE(128, 32, 1, 4), ATTUNE__TILE(64, 64, 1, 4), ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),  ATTUNE__TILE(16, 16, 1, 1),
};
/* float32: the wider a warp's 16 rows of O, the fewer registers for S. */
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
/* Accumulators of many columns leave no registers for the addresses of more stages. */
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
/* Over a cache, by the packed rows of a sequence. */
static const attune__tile sm80_serving_16[] = {
    ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Where K and V are copied as they are, the next tile is loaded while this one is computed. With 200 KiB one CTA has
 * more bytes on their way than several, and a call fewer parts to add. */
static const attune__tile sm80_serving_ahead_16[] = {
    ATTUNE__TILE(16, 128, 2, 8), ATTUNE__TILE(16, 64, 3, 4), ATTUNE__TILE(16, 64, 2, 4),
    ATTUNE__TILE(16, 64, 1, 4),  ATTUNE__TILE(16, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_serving_copied_16[] = {
    ATTUNE__TILE(16, 64, 2, 4),
    ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Of sequences that share keys, which have few rows each: what one has for itself leaves most rows of larger tiles
 * empty. */
static const attune__tile sm80_serving_shared_16[] = {
    ATTUNE__TILE(16, 64, 3, 4), ATTUNE__TILE(16, 64, 2, 4), ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_serving_64[] = {
    ATTUNE__TILE(64, 64, 1, 4), ATTUNE__TILE(64, 32, 1, 4), ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 32, 1, 2), ATTUNE__TILE(16, 16, 1, 1),
};
static const attune__tile sm80_serving_f32_64[] = {
    ATTUNE__TILE(64, 32, 1, 4),
    ATTUNE__TILE(32, 32, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Keys of more than 128 columns, or codes and a score. */
static const attune__tile sm80_serving_f32_192[] = {
    ATTUNE__TILE(64, 16, 1, 4),
    ATTUNE__TILE(32, 16, 1, 2),
    ATTUNE__TILE(16, 16, 1, 1),
};
/* Values of more than 256 columns, or with other operands than of 16 bits 128: the warps divide them. */
static const attune__tile sm80_serving_512_16[] = {
    ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 4),
    ATTUNE__TILE(16, 16, 1, 4),
};
static const attune__tile sm80_serving_512_64[] = {
    ATTUNE__TILE(64, 32, 1, 8),
    ATTUNE__TILE(32, 32, 1, 8),
    ATTUNE__TILE(32, 16, 1, 8),
    ATTUNE__TILE(16, 16, 1, 4),
};
/* Where K and V are copied as they are. */
static const attune__tile sm80_serving_copied_512_16[] = {
    ATTUNE__TILE(16, 32, 2, 4),
    ATTUNE__TILE(16, 64, 1, 4),
    ATTUNE__TILE(16, 32, 1, 4),
    ATTUNE__TILE(16, 16, 1, 4),
};
static const attune__tile sm80_serving_copied_512_64[] = {
    ATTUNE__TILE(64, 32, 2, 8), ATTUNE__TILE(64, 32, 1, 8), ATTUNE__TILE(32, 32, 1, 8),
    ATTUNE__TILE(32, 16, 1, 8), ATTUNE__TILE(16, 16, 1, 4),
};
static const attune__tile sm80_serving_f32_512_16[] = {
    ATTUNE__TILE(16, 32, 1, 4),
    ATTUNE__TILE(16, 16, 1, 4),
};
static const attune__tile sm80_serving_f32_512_32[] = {
    ATTUNE__TILE(32, 32, 1, 8),
    ATTUNE__TILE(32, 16, 1, 8),
    ATTUNE__TILE(16, 16, 1, 4),
};

/* Whether asynchronous copies bring K and V of a cache to shared memory: neither codes nor values that are converted.
 */
static bool sm80_serving_copies(const attune__shape *s)
{
    const attune_dtype operand = attune__cuda_operand(s);
    return s->k_dtype == operand && s->v_dtype == operand;
}

static attune__cuda_tiles sm80_serving_tiles(const attune__search *search, bool is_f32)
{
    const attune__shape *s = search->shape;
    const uint32_t d = s->head_dim, dv = s->head_dim_v;
    const int64_t sequences = attune__cuda_shares(s) ? s->shared_sequences : 1;
    const bool few = s->q_len * (s->heads / s->kv_heads) * sequences <= 16, parts = is_f32 || attune__cuda_codes(s);
    /* Fixed parts, queries in three and a score leave no registers for 64 rows of wide values. */
    const bool crowded = attune__cuda_codes(s) && s->split_keys && s->q_dtype == ATTUNE_F32 && s->score_expr;
    if (parts && dv > (crowded ? 128u : 256u) && !few)
        return TILES(sm80_serving_f32_512_32);
    if (parts && dv > 128 && few)
        return TILES(sm80_serving_f32_512_16);
    /* A smaller unit has as many bytes in flight with another CTA in the place of another stage. */
    const bool stages = sm80_serving_copies(s) && search->limits->shared_memory >= 160 * 1024;
    if (dv > (parts ? 128u : 256u))
        return few && stages ? TILES(sm80_serving_copied_512_16)
               : few         ? TILES(sm80_serving_512_16)
               : stages      ? TILES(sm80_serving_copied_512_64)
                             : TILES(sm80_serving_512_64);
    if (stages && attune__cuda_shares(s) && s->q_len * (s->heads / s->kv_heads) <= ATTUNE__CUDA_SHARED_ROWS)
        return TILES(sm80_serving_shared_16);
    if (few && stages)
        return search->limits->shared_memory >= 200 * 1024 && !is_f32 ? TILES(sm80_serving_ahead_16)
                                                                      : TILES(sm80_serving_copied_16);
    if (few)
        return TILES(sm80_serving_16);
    if (!parts)
        return TILES(sm80_serving_64);
    if (attune__cuda_codes(s) && s->score_expr)
        return TILES(sm80_serving_f32_192);
    return d > 128 ? TILES(sm80_serving_f32_192) : TILES(sm80_serving_f32_64);
}

static attune__cuda_tiles sm80_decode_tiles(const attune__shape *s, bool is_f32)
{
    int64_t rows = s->q_len * attune__shape_packed_heads(s);
    /* Past 128 columns of float32 the warps cannot divide the keys: the accumulators would spill. */
    if (is_f32 && (s->head_dim > 192 || s->head_dim_v > 192))
        return TILES(sm80_decode_f32_256);
    if (is_f32 && (s->head_dim > 128 || s->head_dim_v > 128))
        return TILES(sm80_decode_f32_192);
    if (rows <= 16)
        return is_f32 ? TILES(sm80_decode_f32_16) : TILES(sm80_decode_16);
    if (rows <= 32)
        return is_f32 ? TILES(sm80_decode_f32_32) : TILES(sm80_decode_32);
    return is_f32 ? TILES(sm80_decode_f32_64) : TILES(sm80_decode_64);
}

static bool sm80_small_unit(const attune_limits *limits)
{
    const uint32_t a = limits->architecture;
    return a == 86 || a == 89 || a / 10 == 12;
}

static const attune__tile *sm80_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    bool is_f32 = attune__cuda_is_f32(s), small = sm80_small_unit(search->limits);
    bool blackwell = search->limits->architecture / 10 == 12;
    const attune__cuda_tiles forward[4] = {blackwell || s->score_expr ? TILES(sm80_64_narrow) : TILES(sm80_64),
                                           small || s->score_expr ? TILES(sm80_128_narrow) : TILES(sm80_128),
                                           TILES(sm80_192), TILES(sm80_256)};
    const attune__cuda_tiles f32_forward[4] = {TILES(sm80_f32_64), TILES(sm80_f32_128), TILES(sm80_f32_256),
                                               TILES(sm80_f32_256)};
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_tiles(search, count);
    attune__cuda_tiles t = s->tokens ? sm80_serving_tiles(search, is_f32)
                           : search->pass == ATTUNE__PASS_DECODE
                               ? sm80_decode_tiles(s, is_f32)
                               : attune__cuda_by_head_dim(s, is_f32 ? f32_forward : forward);
    *count = t.count;
    return t.tiles;
}

/* Decode, and calls over a cache: tiles of packed rows. */
static bool sm80_packs_rows(const attune__search *search)
{
    return search->pass == ATTUNE__PASS_DECODE || search->shape->tokens;
}

/* Forward: a warp computes 16 rows or a multiple. Packed rows: warps divide the rows by 16, then the keys, or over a
 * cache the columns of wide values. */
static bool sm80_warps_divide(const attune__search *search, const attune__tile *tile)
{
    const uint32_t *v = tile->value;
    uint32_t warps = v[ATTUNE__NUM_WARPS];
    if (!sm80_packs_rows(search))
        return v[ATTUNE__BLOCK_M] % (16 * warps) == 0;
    uint32_t rows = v[ATTUNE__BLOCK_M] / 16, keys = v[ATTUNE__BLOCK_N] / 16;
    if (!rows || !keys || warps % rows)
        return false;
    const attune_cuda_tile t =
        attune__cuda_tile(search->shape, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], warps, v[ATTUNE__NUM_STAGES]);
    if (search->shape->tokens && attune_cuda_serving_sm80_shares_p(t))
        return keys % attune_cuda_serving_sm80_key_groups(t) == 0;
    return keys >= warps / rows && keys % (warps / rows) == 0;
}

static void sm80_clamp(const attune__search *search, attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        backward_clamp(search, tile);
        return;
    }
    /* Over a cache a tile has the rows of a group of heads, of one sequence or of several that share keys. */
    if (search->shape->tokens)
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N, 1024, search->shape->kv_len, 16);
    else
        attune__clamp_tile(search, tile, 16);
    if (sm80_packs_rows(search))
        attune__clamp_decode(search, tile, 16);
    uint32_t *warps = &tile->value[ATTUNE__NUM_WARPS];
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    while (*warps > 1 && !sm80_warps_divide(search, tile))
        *warps /= 2;
}

static const char *sm80_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_reject_tile(search, tile, option);
    const char *why = attune__reject_numbers(search, tile, 16, 256, option);
    if (why)
        return why;
    if (sm80_packs_rows(search) && tile->value[ATTUNE__BLOCK_M] > 64) {
        *option = ATTUNE__BLOCK_M;
        return "a decode tile has at most 64 rows";
    }
    if (attune__cuda_has_parts(search->shape) && search->shape->split_keys % tile->value[ATTUNE__BLOCK_N]) {
        *option = ATTUNE__BLOCK_N;
        return "it must divide problem.split_keys";
    }
    if (search->shape->tokens && tile->value[ATTUNE__NUM_STAGES] > 1) {
        const attune_cuda_tile t = attune__cuda_tile(search->shape, tile->value[ATTUNE__BLOCK_M],
                                                     tile->value[ATTUNE__BLOCK_N], tile->value[ATTUNE__NUM_WARPS], 1);
        *option = ATTUNE__NUM_STAGES;
        if (!sm80_serving_copies(search->shape))
            return "keys and values of a cache that are converted as they are read have one stage";
        if (attune_cuda_serving_sm80_one_buffer(t))
            return "keys and values of a cache that share a buffer have one stage";
    }
    if (!sm80_warps_divide(search, tile)) {
        const attune__option reported = sm80_packs_rows(search) ? ATTUNE__BLOCK_N : ATTUNE__BLOCK_M;
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : reported;
        return sm80_packs_rows(search) ? "the num_warps warps do not divide the tile"
                                       : "each of the num_warps warps takes 16 rows or a multiple";
    }
    return NULL;
}

static uint32_t sm80_registers(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint32_t threads = 32 * v[ATTUNE__NUM_WARPS], dv = attune__round_up(attune__cuda_columns(s), 16);
    uint32_t base = attune__cuda_registers(s);
    if (sm80_packs_rows(search)) {
        /* A warp holds 16 rows of O, and their scores for its part of the keys. */
        uint32_t rows = v[ATTUNE__BLOCK_M] / 16, shares = v[ATTUNE__NUM_WARPS] / rows;
        if (s->tokens && s->head_dim_v > (attune__cuda_is_f32(s) || attune__cuda_codes(s) ? 128u : 256u))
            return base + 16 * dv / shares / 32 + v[ATTUNE__BLOCK_N];
        /* With several stages over a cache, where the keys to come are and which of them all rows of the tile see. With
         * fewer the schedule would count on CTAs that do not fit; fixed parts do not follow their number. */
        if (s->tokens && v[ATTUNE__NUM_STAGES] > 1 && !s->split_keys && !attune__cuda_shares(s))
            base += 24;
        return base + 16 * dv / 32 + 16 * v[ATTUNE__BLOCK_N] / shares / 32;
    }
    return base + v[ATTUNE__BLOCK_M] * (v[ATTUNE__BLOCK_N] + dv) / threads;
}

static attune__cost sm80_cost(const attune__search *search, const attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_cost(search, tile);
    const bool decode = search->pass == ATTUNE__PASS_DECODE;
    const uint32_t *v = tile->value;
    attune_cuda_tile t = attune__cuda_tile(search->shape, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], v[ATTUNE__NUM_WARPS],
                                           v[ATTUNE__NUM_STAGES]);
    if (!search->shape->tokens)
        t.key_terms =
            attune__analysis_key_terms(&search->shape->expr, decode ? ATTUNE__SEVERAL_HEADS : ATTUNE__ONE_HEAD);
    return (attune__cost){
        .shared = search->shape->tokens ? attune_cuda_serving_sm80(t).size
                  : decode              ? attune_cuda_decode_sm80(t).size
                                        : attune_cuda_forward_sm80(t).size,
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = sm80_registers(search, tile),
    };
}

static uint64_t sm80_workspace(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                               uint32_t split)
{
    return (search->shape->tokens ? attune__cuda_serving_workspace : attune__cuda_workspace_bytes)(search, tile, cost,
                                                                                                   split);
}

static void sm80_variant(const attune__shape *s, const attune_plan_choice *c, attune__variant *variant)
{
    static const attune__cuda_traits traits = {0};
    attune__cuda_variant(s, c, &traits, variant);
    if (c->direction == ATTUNE_BACKWARD) {
        /* Where dK, dV, S and dP fill three quarters of the registers, the operands of a long score, or of functions,
         * for all columns at once do not fit the rest. */
        const uint32_t share = backward_share(c->block_n1, c->num_warps), columns = c->block_m1;
        variant->separate_dk_dv = separates_dk_dv(s);
        variant->serial_columns = (variant->score_chunks || variant->fast_functions) && !variant->separate_dk_dv &&
                                  share * columns >= 64 &&
                                  share * (s->head_dim + s->head_dim_v + 2 * columns) / 2 >= 192;
    } else if (c->decode)
        variant->saved_state = attune_cuda_decode_sm80_saves_state(
            attune__cuda_tile(s, c->block_m, c->block_n, c->num_warps, c->num_stages));
}

/* From Hopper on. */
static uint32_t cluster_parts(const attune_limits *limits)
{
    return limits->architecture >= 90 ? ATTUNE_CUDA_CLUSTER_SPLITS : 0;
}

const attune__family attune__cuda_sm80 = {
    .name = "cuda_sm80",
    .backend = ATTUNE_BACKEND_CUDA,
    .serving = true,
    .fixed_splits = true,
    .shares = true,
    .sinks = true,
    .heads_above_256 = true,
    .short_parts = ATTUNE_CUDA_COMBINED_AT_ONCE,
    .cluster_parts = cluster_parts,
    .matrix = ATTUNE_MATRIX_MMA_SYNC,
    .dtypes = ATTUNE__CACHE_DTYPES,
    .mixes = 1u << ATTUNE__PASS_FORWARD | 1u << ATTUNE__PASS_DECODE,
    .options = {ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE),
                ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__SPLIT_KV),
                ATTUNE__CUDA_LOOP | ATTUNE__BACKWARD_TILES | ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = sm80_tiles,
    .clamp = sm80_clamp,
    .reject_tile = sm80_reject_tile,
    .cost = sm80_cost,
    .workspace = sm80_workspace,
    .variant = sm80_variant,
};

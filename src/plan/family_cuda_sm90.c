/* SPDX-License-Identifier: MIT */
/*
 * CUDA, wgmma: forward, and a backward pass of one kernel whose sums of dQ have no fixed order. Shared memory is in
 * elements of the input type. The 128-byte swizzle needs no padding but that of the head dimension to 64 elements. P
 * stays in registers in forward. num_stages counts the tiles of K and of V that are in flight. Registers are an
 * estimate for a consumer's thread: the float32 accumulators, addresses, fragments and the softmax. Tiles are
 * FlashAttention-3's where those divide a mask's block of 128.
 */
#include "plan/family_cuda.h"

#include "cuda/layout_sm90.h"

#define TILES        ATTUNE__CUDA_TILES
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --------------------------------------------------------------------------------------------------------- backward */

/* Two consumer warp groups of 64 keys each, and a producer. One kernel computes all gradients: the second tile equals
 * the first. With head dimensions up to 64 the registers suffice for 128 rows, unless there is a score expression. */
static const attune__tile backward_64[] = {ATTUNE__TILES(128, 128, 128, 128, 2, 12)};
static const attune__tile backward_128[] = {ATTUNE__TILES(64, 128, 64, 128, 2, 12)};
/* Past 128 the consumer warp groups share 64 keys. With both head dimensions past 192 a cluster of two CTAs has 128
 * keys; its shared memory has no space for capture gradients. */
static const attune__tile backward_256[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 12),
    ATTUNE__TILES(64, 64, 64, 64, 2, 12),
};

static bool backward_wide(const attune__shape *s)
{
    return attune_cuda_backward_sm90_wide(s->head_dim, s->head_dim_v);
}

static const char *backward_reject_problem(const attune__search *search)
{
    const attune__shape *s = search->shape;
    if (backward_wide(s) && (s->head_dim <= 64 || s->head_dim_v <= 64))
        return "its backward pass has no head dimension up to 64 beside one past 128";
    return NULL;
}

/* Wide heads stage dQ for its bulk addition in its own buffer, or in that of the tiles of q and d_o that have been read
 * (backward_in_place). Else threads add with atomics from registers, in no order. */
static bool backward_in_place(const attune__shape *s)
{
    const uint32_t d = attune__round_up(s->head_dim, 64), dv = attune__round_up(s->head_dim_v, 64);
    return d % 128 == 0 && dv % 128 == 0 && dv >= d;
}

static bool backward_is_deterministic(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return !backward_wide(s) || attune_cuda_backward_sm90_dq_staged(s->head_dim, s->head_dim_v) || backward_in_place(s);
}

static const attune__tile *backward_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    *count = 1;
    if (s->head_dim > 192 && s->head_dim_v > 192 && s->kv_len > 64 && !s->capture_gradient_elements) {
        *count = COUNT(backward_256);
        return backward_256;
    }
    if (backward_wide(s))
        return &backward_256[COUNT(backward_256) - 1];
    return s->head_dim <= 64 && s->head_dim_v <= 64 && !s->score_expr ? backward_64 : backward_128;
}

static const char *backward_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const attune__shape *s = search->shape;
    uint32_t count;
    const attune__tile *tiles = backward_tiles(search, &count);
    static const attune__option options[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_N1, ATTUNE__NUM_STAGES, ATTUNE__NUM_WARPS};
    for (size_t i = 0; i < COUNT(options); i++) {
        *option = options[i];
        if (tile->value[*option] != tiles[0].value[*option] && tile->value[*option] != tiles[count - 1].value[*option])
            return "the tile of wgmma's backward kernel is fixed: 64 x 128, 128 x 128 with head dimensions up to 64 "
                   "and no score, 64 x 64 past 128 (both past 192: 64 x 128 too); num_stages 2, num_warps 12";
    }
    return attune__cuda_reject_blocks(s, tile->value, option);
}

/* A split has at least this many tiles of rows: adding its dK and dV takes as long as two or three. */
#define TAIL_SPLIT_TILES 4

attune__cuda_tail attune__cuda_sm90_tail(int64_t tiles, int64_t ctas, int64_t q_len, int64_t heads, uint32_t block_m)
{
    const int64_t left = ctas ? tiles % ctas : 0, rows = (q_len + block_m - 1) / block_m;
    int64_t each = left ? ctas / left : 1;
    if (each > rows * heads / TAIL_SPLIT_TILES)
        each = rows * heads / TAIL_SPLIT_TILES;
    if (each > rows)
        each = rows;
    if (each < 2)
        return (attune__cuda_tail){.full_wave_tiles = tiles, .each = 1, .rows = q_len};
    const int64_t share = (rows + each - 1) / each;
    return (attune__cuda_tail){tiles - left, left, (rows + share - 1) / share, share * block_m};
}

uint64_t attune__cuda_sm90_tail_bytes(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n)
{
    const uint32_t pad = attune_cuda_backward_sm90_wide(head_dim, head_dim_v) ? 128 : 16;
    return (uint64_t)block_n * (attune__round_up(head_dim, pad) + attune__round_up(head_dim_v, pad)) * sizeof(float) +
           ATTUNE__CUDA_TAIL_COUNTS * sizeof(uint32_t);
}

/* The most that split tail tiles take in any call of the plan, for all lengths. */
static uint64_t most_tail_bytes(const attune__search *search, const attune__cost *cost, uint32_t n)
{
    const attune__shape *s = search->shape;
    if (s->block_mask || search->options.deterministic == ATTUNE_ON)
        return 0;
    const uint32_t occupancy = attune__occupancy(search->limits, cost);
    const bool pair = attune_cuda_backward_sm90_paired(s->head_dim, s->head_dim_v, n);
    const int64_t ctas = (int64_t)search->limits->compute_units * (occupancy ? occupancy : 1) / (pair ? 2 : 1);
    const int64_t tiles = s->kv_batch * s->kv_heads * ((s->kv_len + n - 1) / n);
    /* A tail of more than half a wave is not split: there are not two CTAs for each tile. */
    return (uint64_t)(tiles < ctas / 2 ? tiles : ctas / 2) *
           attune__cuda_sm90_tail_bytes(s->head_dim, s->head_dim_v, n);
}

static attune__cost backward_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, m = v[ATTUNE__BLOCK_M1], n = v[ATTUNE__BLOCK_N1], stages = v[ATTUNE__NUM_STAGES];
    const uint32_t d = attune__round_up(s->head_dim, 64), dv = attune__round_up(s->head_dim_v, 64);
    attune_cuda_tile t = attune__cuda_tile(s, m, n, v[ATTUNE__NUM_WARPS], stages);
    t.capture_tile = attune__cuda_capture_tile(s);
    attune__cost cost = {
        .shared = attune_cuda_backward_sm90(t, s->capture_gradient_elements > 0).size,
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = 32 + (backward_wide(s) ? (d + dv) / 4 + 64 : (d + dv) / 2 + m),
        .launched_registers = 168,
    };
    cost.workspace = attune__cuda_backward_added(s) + most_tail_bytes(search, &cost, n);
    return cost;
}

/* ---------------------------------------------------------------------------------------------------------- forward */

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
/* With a score expression 128 keys spill. */
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
        return backward_tiles(search, count);
    attune__cuda_tiles t = attune__cuda_by_head_dim(search->shape, forward);
    *count = t.count;
    return t.tiles;
}

uint32_t attune__cuda_wgmma_warps(const attune__tile *tile)
{
    return PRODUCER_WARPS + tile->value[ATTUNE__BLOCK_M] / 16;
}

const char *attune__cuda_reject_wgmma_warps(const attune__search *search, const attune__tile *tile,
                                            attune__option *option)
{
    if (tile->value[ATTUNE__NUM_WARPS] == attune__cuda_wgmma_warps(tile))
        return NULL;
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_M;
    return "there are 4 warps that load and 4 for each 64 rows";
}

/* 64 rows of S, of P in 16 bits and of O, in the registers of a warp group's 128 threads. */
uint32_t attune__cuda_wgmma_registers(const attune__shape *shape, uint32_t block_n, uint32_t width_dv)
{
    return attune__cuda_registers(shape) - 8 + block_n / 2 + block_n / 4 + width_dv / 2;
}

/* Three consumer warp groups have 160 registers for each thread. They hold S, P and O of narrow heads, but not also the
 * values of a score expression or of a mask that is evaluated for each pair. 192 rows are in at most two blocks of a
 * mask, and the 64 rows of a warp group in one. */
static bool sm90_may_have_192(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return search->pass == ATTUNE__PASS_FORWARD && s->head_dim <= 64 && s->head_dim_v <= 64 && !s->score_expr &&
           (!s->mask_expr || attune__analysis_row_intervals(&s->expr)) &&
           (!s->block_mask || s->mask_q_block % 128 == 0);
}

static void sm90_clamp(const attune__search *search, attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return;
    uint32_t *v = tile->value;
    bool three = v[ATTUNE__BLOCK_M] == 192 && sm90_may_have_192(search);
    if (v[ATTUNE__BLOCK_M] == 192 && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)))
        v[ATTUNE__BLOCK_M] = 128;
    /* 80 and 112 keys fill shared memory, but do not divide the blocks of a block mask. */
    uint32_t keys = v[ATTUNE__BLOCK_N];
    bool odd = !attune__is_power2(keys) && !(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N));
    if (odd)
        v[ATTUNE__BLOCK_N] = 64;
    attune__clamp_tile(search, tile, 16);
    if (three && v[ATTUNE__BLOCK_M] == 128)
        v[ATTUNE__BLOCK_M] = 192;
    if (odd && !search->shape->block_mask && v[ATTUNE__BLOCK_N] == 64)
        v[ATTUNE__BLOCK_N] = keys;
    /* wgmma has 64 rows whatever the lengths. sm90_reject_tile rejects masks with smaller blocks. */
    if (!(search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M)) && v[ATTUNE__BLOCK_M] < 64)
        v[ATTUNE__BLOCK_M] = 64;
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)))
        v[ATTUNE__NUM_WARPS] = attune__cuda_wgmma_warps(tile);
}

static const char *sm90_reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_reject_tile(search, tile, option);
    attune__tile blocks = *tile;
    if (sm90_may_have_192(search) && tile->value[ATTUNE__BLOCK_M] == 192)
        blocks.value[ATTUNE__BLOCK_M] = 64;
    const char *why = attune__reject_numbers(search, &blocks, 16, 256, option);
    if (why)
        return why;
    *option = ATTUNE__BLOCK_M;
    if (tile->value[*option] % 64 || tile->value[*option] > (sm90_may_have_192(search) ? 192u : 128u))
        return "wgmma takes 64 or 128 rows";
    why = attune__cuda_reject_wgmma_warps(search, tile, option);
    return why ? why : attune__cuda_reject_one_stage(search->shape, tile->value[ATTUNE__NUM_STAGES], option);
}

static attune__cost sm90_cost(const attune__search *search, const attune__tile *tile)
{
    if (search->pass == ATTUNE__PASS_BACKWARD)
        return backward_cost(search, tile);
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    attune_cuda_tile t =
        attune__cuda_tile(s, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N], v[ATTUNE__NUM_WARPS], v[ATTUNE__NUM_STAGES]);
    t.key_terms = attune__analysis_key_terms(&s->expr, ATTUNE__ONE_HEAD);
    t.capture_tile = attune__cuda_capture_tile(s);
    if (t.capture_tile)
        t.key_terms = s->expr.score.tiled.key_count + s->expr.mask.terms[ATTUNE__ONE_HEAD].key_count;
    attune__cost c = {.invocations = 32 * v[ATTUNE__NUM_WARPS]};
    c.launched_registers = attune__cuda_launched_registers(c.invocations);
    c.shared = attune_cuda_forward_sm90(t).size;
    c.registers = attune__cuda_wgmma_registers(s, v[ATTUNE__BLOCK_N], attune__round_up(s->head_dim_v, 64));
    return c;
}

static const char *sm90_reject_problem(const attune__search *search)
{
    return search->pass == ATTUNE__PASS_BACKWARD ? backward_reject_problem(search) : NULL;
}

static void sm90_variant(const attune__shape *s, const attune_plan_choice *choice, attune__variant *variant)
{
    static const attune__cuda_traits traits = {.both_masks = true,
                                               .key_intervals = true,
                                               .few_registers = true,
                                               .near_reads = true,
                                               .score_rows = true,
                                               .capture_tiles = true};
    attune__cuda_variant(s, choice, &traits, variant);
    variant->predicated_loads = choice->direction != ATTUNE_BACKWARD;
    /* Beside wide heads more than eight approximate functions at once spill. */
    const bool small = variant->fast_functions && (s->head_dim > 128 || s->head_dim_v > 128);
    attune__cuda_tma_variant(s, choice, small || choice->block_n / 2 % 16 ? 8 : 16, variant);
}

const attune__family attune__cuda_sm90a = {
    .name = "cuda_sm90a",
    .backend = ATTUNE_BACKEND_CUDA,
    .sinks = true,
    .matrix = ATTUNE_MATRIX_WGMMA,
    .tma = true,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reject_problem = sm90_reject_problem,
    .unordered = 1u << ATTUNE__PASS_BACKWARD,
    .is_deterministic = backward_is_deterministic,
    .options = {ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE), 0,
                ATTUNE__CUDA_LOOP | ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) |
                    ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = sm90_tiles,
    .clamp = sm90_clamp,
    .reject_tile = sm90_reject_tile,
    .cost = sm90_cost,
    .workspace = attune__cuda_workspace_bytes,
    .variant = sm90_variant,
};

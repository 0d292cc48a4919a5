/* SPDX-License-Identifier: MIT */
/*
 * CUDA, wgmma over a cache, for calls with more rows than decode: prompts, chunks of prompts and drafts, beside
 * sequences that are decoded. Keys and values are copied as they are, several tiles ahead, so that quantised ones, and
 * parts that are fixed or shared, are cuda_sm80's.
 */
#include "plan/family_cuda.h"

#include "cuda/layout_sm90.h"

#define TILES ATTUNE__CUDA_TILES
/* Packed rows of a sequence up to which one tile of cuda_sm80 has them all, and the call is bound by memory. */
#define FEW_ROWS 16

static const attune__tile serving_64[] = {
    ATTUNE__TILE(128, 128, 4, 12),
    ATTUNE__TILE(128, 128, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),
};
static const attune__tile serving_128[] = {
    ATTUNE__TILE(128, 128, 3, 12),
    ATTUNE__TILE(128, 128, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),
};
static const attune__tile serving_192[] = {
    ATTUNE__TILE(128, 64, 3, 12),
    ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),
};
/* Two consumer warp groups do not have the registers for O of so many columns. */
static const attune__tile serving_256[] = {
    ATTUNE__TILE(64, 64, 2, 8),
};

/* Two consumer warp groups have the same rows, divide O's columns, and have a stage each whose P they compute. */
static const attune__tile serving_wide[] = {
    ATTUNE__TILE(64, 64, 2, 12),
};

/* A tree without a mask's intervals takes a register more than there are beside 128 keys and as many columns. */
static const attune__tile tree_128[] = {
    ATTUNE__TILE(128, 64, 4, 12),
    ATTUNE__TILE(128, 64, 2, 12),
    ATTUNE__TILE(64, 64, 2, 8),
};
/* Beside expressions that are evaluated for each pair. */
static const attune__tile crowded_128[] = {
    ATTUNE__TILE(64, 64, 4, 8),
    ATTUNE__TILE(64, 64, 2, 8),
};
static const attune__tile crowded_192[] = {
    ATTUNE__TILE(64, 64, 3, 8),
    ATTUNE__TILE(64, 64, 2, 8),
};

static bool is_wide(const attune__shape *s)
{
    return attune_cuda_serving_sm90_wide(s->head_dim_v);
}

static bool is_crowded(const attune__shape *s)
{
    return s->score_expr || (s->mask_expr && !attune__analysis_row_intervals(&s->expr));
}

static const attune__tile *tiles(const attune__search *search, uint32_t *count)
{
    static const attune__cuda_tiles tables[4] = {TILES(serving_64), TILES(serving_128), TILES(serving_192),
                                                 TILES(serving_256)};
    static const attune__cuda_tiles crowded[4] = {TILES(crowded_128), TILES(crowded_128), TILES(crowded_192),
                                                  TILES(serving_256)};
    static const attune__cuda_tiles trees[4] = {TILES(serving_64), TILES(tree_128), TILES(serving_192),
                                                TILES(serving_256)};
    const attune__shape *s = search->shape;
    if (is_wide(s)) {
        *count = 1;
        return serving_wide;
    }
    const attune__cuda_tiles t = attune__cuda_by_head_dim(s, is_crowded(s)              ? crowded
                                                             : s->tree && !s->mask_expr ? trees
                                                                                        : tables);
    *count = t.count;
    return t.tiles;
}

static const char *reject_problem(const attune__search *search)
{
    const attune__shape *s = search->shape;
    if (is_wide(s) && (s->head_dim_v % 128 || s->head_dim % 64 || s->head_dim_v > s->head_dim))
        return "it takes values of more than 256 columns in the place of keys: of a multiple of 128, and keys of 64";
    if (!is_wide(s) && s->head_dim > 256)
        return "it has no more than 256 columns of keys beside as many of values";
    return NULL;
}

static const char *reject_automatic(const attune__search *search)
{
    const attune__shape *s = search->shape;
    if (is_crowded(s) && (s->head_dim > 192 || s->head_dim_v > 192))
        return "beside so wide heads there are no registers for what the expressions need";
    if (is_wide(s) && s->head_dim_v != 512)
        return "of values of more than 256 columns it has been timed for 512 alone: ask for it by name";
    /* With wide values tiles of 16 rows take longer than their loads. */
    const int64_t rows = s->q_len * (s->heads / s->kv_heads);
    const int64_t few = is_wide(s) ? FEW_ROWS - 1 : FEW_ROWS;
    return rows <= few ? "calls of few rows are bound by memory" : NULL;
}

static void clamp(const attune__search *search, attune__tile *tile)
{
    const attune__shape *s = search->shape;
    uint32_t *v = tile->value;
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, 1024, s->kv_len, 64);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_M, 1024, s->q_len * (s->heads / s->kv_heads), 64);
    if (!(search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)) && !is_wide(s))
        v[ATTUNE__NUM_WARPS] = attune__cuda_wgmma_warps(tile);
}

static uint32_t registers(const attune__shape *s, uint32_t block_n)
{
    return attune__cuda_wgmma_registers(s, block_n,
                                        attune__round_up(is_wide(s) ? s->head_dim_v / 2 : s->head_dim_v, 16));
}

static const char *reject_tile(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const uint32_t *v = tile->value;
    const char *why = attune__reject_numbers(search, tile, 64, 128, option);
    if (why)
        return why;
    *option = ATTUNE__BLOCK_M;
    if (v[*option] % 64)
        return "wgmma takes 64 or 128 rows";
    *option = ATTUNE__NUM_STAGES;
    if (v[*option] < 2)
        return "keys are loaded ahead, the least is 2";
    if (!is_wide(search->shape)) {
        *option = ATTUNE__BLOCK_M;
        if (v[*option] == 128 && registers(search->shape, v[ATTUNE__BLOCK_N]) > ATTUNE_CUDA_SERVING_SM90_PAIR_REGISTERS)
            return "two consumer warp groups do not have the registers for so many keys and columns";
        return attune__cuda_reject_wgmma_warps(search, tile, option);
    }
    for (int i = 0; i < 4; i++) {
        static const attune__option fixed[] = {ATTUNE__BLOCK_M, ATTUNE__BLOCK_N, ATTUNE__NUM_WARPS, ATTUNE__NUM_STAGES};
        *option = fixed[i];
        if (v[*option] != serving_wide[0].value[*option])
            return "with values of more than 256 columns it is 64 x 64 by 12 warps in 2 stages";
    }
    return NULL;
}

static attune__cost cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    attune__cost c = {.invocations = 32 * v[ATTUNE__NUM_WARPS]};
    c.launched_registers = attune__cuda_launched_registers(c.invocations);
    c.shared = attune_cuda_serving_sm90(attune__cuda_tile(s, v[ATTUNE__BLOCK_M], v[ATTUNE__BLOCK_N],
                                                          v[ATTUNE__NUM_WARPS], v[ATTUNE__NUM_STAGES]))
                   .size;
    c.registers = registers(s, v[ATTUNE__BLOCK_N]);
    return c;
}

static void variant(const attune__shape *s, const attune_plan_choice *choice, attune__variant *v)
{
    static const attune__cuda_traits traits = {0};
    attune__cuda_variant(s, choice, &traits, v);
}

const attune__family attune__cuda_serving_sm90a = {
    .name = "cuda_serving_sm90a",
    .backend = ATTUNE_BACKEND_CUDA,
    .serving = true,
    .serving_only = true,
    .heads_above_256 = true,
    .sinks = true,
    .tma = true,
    .matrix = ATTUNE_MATRIX_WGMMA,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .reject_problem = reject_problem,
    .reject_automatic = reject_automatic,
    .options = {ATTUNE__CUDA_LOOP | ATTUNE__FORWARD_TILE | ATTUNE__BIT(ATTUNE__ROWS_GUARANTEED_SAFE), 0, 0},
    .tiles = tiles,
    .clamp = clamp,
    .reject_tile = reject_tile,
    .cost = cost,
    .workspace = attune__cuda_serving_workspace,
    .variant = variant,
};

/* SPDX-License-Identifier: MIT */
/*
 * CUDA, backward. cuda_sm90a and cuda_sm80_atomic have one kernel, whose sums of dQ have no fixed order. cuda_sm80 has
 * two kernels over the same pairs, each of which computes P and dS again: one owns keys and gives dK and dV, the other
 * owns rows of Q and gives dQ. Nothing is added to from two sides, so that the same call gives the same bits. A warp
 * owns 16 rows of what its kernel owns, or 32, and all columns of the other side: P and dS go from one product to the
 * next in registers.
 */
#include "plan/family_cuda.h"

#include <string.h>

#define TILES        ATTUNE__CUDA_TILES
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ------------------------------------------------------------------------------------------------------------ sm80 */

/* By the larger head dimension: up to 64, 128, 192, 256; shared memory of 160 KiB and more, and of 99. */
static const attune__tile large_64[] = {
    ATTUNE__TILES(32, 128, 128, 64, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
/* Beside a score expression the sums leave no more. */
static const attune__tile score_64[] = {
    ATTUNE__TILES(64, 64, 64, 64, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
/* Where two workgroups have room, they hide each other's waits. */
static const attune__tile huge_128[] = {
    ATTUNE__TILES(64, 64, 128, 32, 2, 4),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
static const attune__tile large_128[] = {
    ATTUNE__TILES(64, 128, 128, 64, 2, 8),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
static const attune__tile large_256[] = {
    ATTUNE__TILES(32, 128, 128, 32, 2, 8),
    ATTUNE__TILES(32, 64, 64, 32, 2, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
static const attune__tile small_128[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    ATTUNE__TILES(32, 32, 32, 32, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
/* float32 */
static const attune__tile wide_64[] = {
    ATTUNE__TILES(16, 128, 128, 32, 1, 8),
    ATTUNE__TILES(16, 64, 64, 32, 1, 4),
    ATTUNE__TILES(16, 32, 32, 16, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
static const attune__tile wide_128[] = {
    ATTUNE__TILES(32, 64, 64, 32, 1, 4),
    ATTUNE__TILES(16, 64, 64, 16, 1, 4),
    ATTUNE__TILES(16, 32, 32, 16, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};
static const attune__tile wide_256[] = {
    ATTUNE__TILES(16, 64, 64, 16, 1, 4),
    ATTUNE__TILES(16, 32, 32, 16, 1, 2),
    ATTUNE__TILES(16, 16, 16, 16, 1, 1),
};

const attune__tile *attune__cuda_sm80_backward_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    const bool small = search->limits->shared_memory < 160 * 1024;
    const bool huge = search->limits->shared_memory >= 200 * 1024 && !s->capture_gradient_elements;
    const attune__cuda_tiles narrow[4] = {s->score_expr ? TILES(score_64) : TILES(large_64),
                                          small  ? TILES(small_128)
                                          : huge ? TILES(huge_128)
                                                 : TILES(large_128),
                                          small ? TILES(small_128) : TILES(large_256),
                                          small ? TILES(small_128) : TILES(large_256)};
    const attune__cuda_tiles wide[4] = {TILES(wide_64), TILES(wide_128), TILES(wide_256), TILES(wide_256)};
    const attune__cuda_tiles t = attune__cuda_by_head_dim(s, attune__dtype_bytes(s) == 4 ? wide : narrow);
    *count = t.count;
    return t.tiles;
}

/* The rows of 16 that a warp has. */
static uint32_t share(uint32_t rows, uint32_t warps)
{
    return rows / (16 * warps);
}

static bool warps_divide(const attune__tile *tile)
{
    const uint32_t *v = tile->value, rows = 16 * v[ATTUNE__NUM_WARPS];
    return v[ATTUNE__BLOCK_N1] % rows == 0 && v[ATTUNE__BLOCK_M2] % rows == 0;
}

/* Fewer warps have no more rows each than the table gives them. */
static void limit(const attune__search *search, attune__tile *tile, attune__option option, uint32_t most)
{
    if (!(search->forced & ATTUNE__BIT(option)) && tile->value[option] > most)
        tile->value[option] = most;
}

void attune__cuda_sm80_backward_settle(const attune__search *search, attune__tile *tile)
{
    uint32_t *v = tile->value, *warps = &v[ATTUNE__NUM_WARPS];
    const uint32_t keys = share(v[ATTUNE__BLOCK_N1], *warps), rows = share(v[ATTUNE__BLOCK_M2], *warps);
    attune__settle_tile(search, tile, 16);
    if (search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS))
        return;
    while (*warps > 1 && !warps_divide(tile))
        *warps /= 2;
    if (keys && rows) {
        limit(search, tile, ATTUNE__BLOCK_N1, 16 * *warps * keys);
        limit(search, tile, ATTUNE__BLOCK_M2, 16 * *warps * rows);
    }
}

const char *attune__cuda_sm80_backward_refuse(const attune__search *search, const attune__tile *tile,
                                              attune__option *option)
{
    const char *why = attune__refuse_numbers(search, tile, 16, ATTUNE__CUDA_ROW_BLOCK, option);
    if (why)
        return why;
    static const attune__option rows[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_M2};
    for (size_t i = 0; i < COUNT(rows); i++)
        if (ATTUNE__CUDA_ROW_BLOCK % tile->value[rows[i]]) {
            *option = rows[i];
            return "it must divide 128";
        }
    if (!warps_divide(tile)) {
        *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS) ? ATTUNE__NUM_WARPS : ATTUNE__BLOCK_N1;
        return "each of the num_warps warps takes 16 rows of BLOCK_N1 and of BLOCK_M2, or a multiple";
    }
    return NULL;
}

bool attune__cuda_backward_apart(const attune__shape *s)
{
    const uint32_t columns = attune__round_up(s->head_dim, 16) + attune__round_up(s->head_dim_v, 16);
    return columns > (attune__dtype_bytes(s) == 4 ? 128u : 320u);
}

/*
 * With e the bytes of an element, D and Dv padded to 16, S = num_stages:
 *   dK and dV  (K[N1][D] + V[N1][Dv] + S (Q[M1][D] + dO[M1][Dv])) e + S (lse + delta)[M1] 4 + walk
 *   dQ         (Q[M2][D] + dO[M2][Dv] + S (K[N2][D] + V[N2][Dv])) e + walk
 * where the walk has 256 bytes, and as many again for S > 6, else 128. In float32 16 keys or rows of a workgroup's own
 * are read where they lie, and take none.
 */
void attune__cuda_sm80_backward_bytes(const attune__shape *s, const attune_plan_choice *c, uint32_t bytes[2])
{
    const uint32_t e = attune__dtype_bytes(s);
    const uint32_t both = (attune__round_up(s->head_dim, 16) + attune__round_up(s->head_dim_v, 16)) * e;
    const uint32_t walk = c->num_stages > 6 ? 512 : 384;
    const uint32_t keys = e == 4 && c->block_n1 == 16 ? 0 : c->block_n1;
    const uint32_t rows = e == 4 && c->block_m2 == 16 ? 0 : c->block_m2;
    bytes[0] = (keys + c->num_stages * c->block_m1) * both + c->num_stages * c->block_m1 * 8 + walk;
    bytes[1] = (rows + c->num_stages * c->block_n2) * both + walk;
}

attune__cost attune__cuda_sm80_backward_cost(const attune__search *search, const attune__tile *tile)
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
    /* S and dP in float32; dK and dV, or dQ. Where dK and dV are apart, each workgroup has one of them. */
    const uint32_t sums = attune__cuda_backward_apart(s) ? (d > dv ? d : dv) : d + dv;
    const uint32_t keys = share(v[ATTUNE__BLOCK_N1], warps) * (v[ATTUNE__BLOCK_M1] + sums / 2);
    const uint32_t rows = share(v[ATTUNE__BLOCK_M2], warps) * (v[ATTUNE__BLOCK_N2] + d / 2);
    return (attune__cost){
        .shared = bytes[0] > bytes[1] ? bytes[0] : bytes[1],
        .invocations = 32 * warps,
        .registers = 48 + (s->score_expr ? 4u : 0u) + (s->mask_expr ? 3u : 0u) + (keys > rows ? keys : rows),
    };
}

/* ----------------------------------------------------------------------------------------------------- sm80, atomic */

/* A warp has 32 keys, and warps that have the same ones share the rows, and the columns of dK and dV. By the larger
 * head dimension: up to 64, 128, 256. */
static const attune__tile atomic_64[] = {
    ATTUNE__TILES(128, 128, 128, 128, 2, 8),
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
};
/* Beside a score's values, or what keys share of a mask, 128 rows leave no registers for sums. */
static const attune__tile atomic_64_score[] = {ATTUNE__TILES(64, 128, 64, 128, 2, 8)};
static const attune__tile atomic_128[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
    ATTUNE__TILES(64, 64, 64, 64, 1, 4),
    ATTUNE__TILES(32, 128, 32, 128, 1, 8),
};
/* Nor have four warps room for so much of dQ. */
static const attune__tile atomic_128_score[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 8),
    ATTUNE__TILES(32, 128, 32, 128, 1, 8),
};
static const attune__tile atomic_256[] = {
    ATTUNE__TILES(64, 64, 64, 64, 1, 8),
    ATTUNE__TILES(64, 32, 64, 32, 1, 4),
};

static const attune__tile *atomic_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    const attune__cuda_tiles tables[4] = {s->score_expr || s->key_terms ? TILES(atomic_64_score) : TILES(atomic_64),
                                          s->score_expr ? TILES(atomic_128_score) : TILES(atomic_128),
                                          TILES(atomic_256), TILES(atomic_256)};
    const attune__cuda_tiles t = attune__cuda_by_head_dim(s, tables);
    *count = t.count;
    return t.tiles;
}

/* The warps that have the same keys. */
static uint32_t atomic_split(const uint32_t *v)
{
    return v[ATTUNE__NUM_WARPS] * 32 / v[ATTUNE__BLOCK_N1];
}

static void atomic_settle(const attune__search *search, attune__tile *tile)
{
    (void)search;
    /* There is no second kernel. */
    tile->value[ATTUNE__BLOCK_M2] = tile->value[ATTUNE__BLOCK_M1];
    tile->value[ATTUNE__BLOCK_N2] = tile->value[ATTUNE__BLOCK_N1];
}

static const char *refuse_blocks(const attune__shape *s, const uint32_t *v, attune__option *option)
{
    const bool columns = s->mask_kv_block % v[ATTUNE__BLOCK_N1];
    *option = columns ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M1;
    if (s->block_mask && (columns || s->mask_q_block % v[ATTUNE__BLOCK_M1]))
        return "it must divide the block of the mask";
    return NULL;
}

static const char *atomic_refuse(const attune__search *search, const attune__tile *tile, attune__option *option)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value;
    uint32_t count;
    const attune__tile *tiles = atomic_tiles(search, &count);
    bool known = false;
    for (uint32_t i = 0; i < count; i++)
        known = known || (tiles[i].value[ATTUNE__BLOCK_M1] == v[ATTUNE__BLOCK_M1] &&
                          tiles[i].value[ATTUNE__BLOCK_N1] == v[ATTUNE__BLOCK_N1] &&
                          tiles[i].value[ATTUNE__NUM_WARPS] == v[ATTUNE__NUM_WARPS]);
    *option = search->forced & ATTUNE__BIT(ATTUNE__NUM_WARPS)  ? ATTUNE__NUM_WARPS
              : search->forced & ATTUNE__BIT(ATTUNE__BLOCK_N1) ? ATTUNE__BLOCK_N1
                                                               : ATTUNE__BLOCK_M1;
    if (!known)
        return "it has a few tiles, by head dimension, with warps for each: docs/planning.md";
    if (attune__round_up(s->head_dim, 16 * atomic_split(v)) * v[ATTUNE__BLOCK_M1] % (256 * v[ATTUNE__NUM_WARPS]))
        return "its warps cannot share so few columns of dQ";
    return refuse_blocks(s, v, option);
}

/* With D and Dv padded to 16 for each of the warps that share keys:
 *   (K[N1][D] + V[N1][Dv] + S (Q[M1][D] + dO[M1][Dv]) + P[N1][M1] + dS[N1][M1]) e + S (lse + delta)[M1] 4 + walk */
static attune__cost atomic_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, split = atomic_split(v), stages = v[ATTUNE__NUM_STAGES];
    const uint32_t m = v[ATTUNE__BLOCK_M1], n = v[ATTUNE__BLOCK_N1];
    const uint32_t both = attune__round_up(s->head_dim, 16 * split) + attune__round_up(s->head_dim_v, 16 * split);
    return (attune__cost){
        .shared = ((n + stages * m) * both + 2 * n * m) * 2 + stages * m * 8 + (stages > 6 ? 512 : 384),
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = 48 + (s->score_expr ? 4u : 0u) + (s->mask_expr ? 3u : 0u) + (2 * m + both) / split,
        .launched_registers = 255,
    };
}

/* A tile in 16 bits, its rows 16 bytes apart from their banks. */
uint32_t attune__cuda_sm80_backward_dq_bytes(uint32_t head_dim, uint32_t block_m, uint32_t block_n, uint32_t threads)
{
    return block_m * (attune__round_up(head_dim, 16 * threads / block_n) * 2 + 16);
}

static const char *atomic_refuses(const attune__search *search)
{
    uint32_t count;
    const attune__tile *tiles = atomic_tiles(search, &count);
    attune__tile least = tiles[count - 1];
    least.value[ATTUNE__NUM_STAGES] = 1;
    if (search->shape->capture_gradient_elements)
        return "it gives no gradients of captures";
    if (search->limits->shared_memory < atomic_cost(search, &least).shared)
        return "no tile of it fits the device's shared memory with heads this wide";
    return NULL;
}

const attune__family attune__cuda_sm80_atomic = {
    .name = "cuda_sm80_atomic",
    .backend = ATTUNE_BACKEND_CUDA,
    .matrix = ATTUNE_MATRIX_MMA_SYNC,
    .dtypes = 1u << ATTUNE_F16 | 1u << ATTUNE_BF16,
    .unordered = 1u << ATTUNE__PASS_BACKWARD,
    .refuses = atomic_refuses,
    .reads = {0, 0,
              ATTUNE__CUDA_LOOP | ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) |
                  ATTUNE__BIT(ATTUNE__WRITE_DQ)},
    .tiles = atomic_tiles,
    .settle = atomic_settle,
    .refuse = atomic_refuse,
    .cost = atomic_cost,
};

bool attune__cuda_backed(const attune_plan_choice *choice)
{
    return strcmp(choice->kernel, attune__cuda_sm80.name) != 0;
}

/* ----------------------------------------------------------------------------------------------------------- sm90a */

/* Two warp groups of 64 keys each, and one that loads. One kernel gives all: there is no second tile. With heads up to
 * 64 there is room for 128 rows, unless a score expression takes it. */
static const attune__tile sm90_64[] = {ATTUNE__TILES(128, 128, 128, 128, 2, 12)};
static const attune__tile sm90_128[] = {ATTUNE__TILES(64, 128, 64, 128, 2, 12)};
/* Past 128 the warp groups share 64 keys; with both head dimensions past 192 two workgroups 128, which have no
 * room for gradients of captures. */
static const attune__tile sm90_256[] = {
    ATTUNE__TILES(64, 128, 64, 128, 2, 12),
    ATTUNE__TILES(64, 64, 64, 64, 2, 12),
};

bool attune__cuda_sm90_backward_wide(uint32_t head_dim, uint32_t head_dim_v)
{
    return head_dim > 128 || head_dim_v > 128;
}

bool attune__cuda_sm90_backward_paired(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n)
{
    return attune__cuda_sm90_backward_wide(head_dim, head_dim_v) && block_n == 128;
}

static bool sm90_wide(const attune__shape *s)
{
    return attune__cuda_sm90_backward_wide(s->head_dim, s->head_dim_v);
}

const char *attune__cuda_sm90_backward_refuses(const attune__search *search)
{
    const attune__shape *s = search->shape;
    if (sm90_wide(s) && (s->head_dim <= 64 || s->head_dim_v <= 64))
        return "its backward pass has no head dimension up to 64 beside one past 128";
    return NULL;
}

/* Wide heads: whether a part of dQ waits in memory of its own for its addition, or over what was read of q and d_o.
 * Else threads add what they hold, in no order. */
static bool sm90_apart(const attune__shape *s)
{
    return s->head_dim <= 192 && s->head_dim_v <= 192;
}

static bool sm90_in_place(const attune__shape *s)
{
    const uint32_t d = attune__round_up(s->head_dim, 64), dv = attune__round_up(s->head_dim_v, 64);
    return d % 128 == 0 && dv % 128 == 0 && dv >= d;
}

bool attune__cuda_sm90_backward_orders(const attune__search *search)
{
    const attune__shape *s = search->shape;
    return !sm90_wide(s) || sm90_apart(s) || sm90_in_place(s);
}

const attune__tile *attune__cuda_sm90_backward_tiles(const attune__search *search, uint32_t *count)
{
    const attune__shape *s = search->shape;
    *count = 1;
    if (s->head_dim > 192 && s->head_dim_v > 192 && s->kv_len > 64 && !s->capture_gradient_elements) {
        *count = COUNT(sm90_256);
        return sm90_256;
    }
    if (sm90_wide(s))
        return &sm90_256[COUNT(sm90_256) - 1];
    return s->head_dim <= 64 && s->head_dim_v <= 64 && !s->score_expr ? sm90_64 : sm90_128;
}

const char *attune__cuda_sm90_backward_refuse(const attune__search *search, const attune__tile *tile,
                                              attune__option *option)
{
    const attune__shape *s = search->shape;
    uint32_t count;
    const attune__tile *tiles = attune__cuda_sm90_backward_tiles(search, &count);
    static const attune__option options[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_N1, ATTUNE__NUM_STAGES, ATTUNE__NUM_WARPS};
    for (size_t i = 0; i < COUNT(options); i++) {
        *option = options[i];
        if (tile->value[*option] != tiles[0].value[*option] && tile->value[*option] != tiles[count - 1].value[*option])
            return "the tile of wgmma's backward kernel is fixed: 64 x 128, 128 x 128 with head dimensions up to 64 "
                   "and no score, 64 x 64 past 128 (both past 192: 64 x 128 too); num_stages 2, num_warps 12";
    }
    return refuse_blocks(s, tile->value, option);
}

/* The columns of dQ's sums, with tiles of m rows. */
static uint32_t dq_columns(uint32_t head_dim, uint32_t head_dim_v, uint32_t m)
{
    if (head_dim > 64 || attune__cuda_sm90_backward_wide(head_dim, head_dim_v))
        return attune__round_up(head_dim, 128);
    return attune__round_up(head_dim, m == 128 ? 16 : 32);
}

/*
 * With D and Dv padded to 64 and C columns of dQ:
 *   (K[N1][D] + V[N1][Dv] + S (Q[M1][D] + dO[M1][Dv] + dS[M1][128])) e + dQ[M1][C] 4 + S (lse + delta)[M1] 4 + 256
 * Of wide heads P and dS[M1][64] take the place of dS, and C is D padded to 64, or 0 past 192. Gradients of captures
 * have 1536 more. A pair has 64 keys each, one stage of P and dS, half of the other's K in the place of the second, and
 * 256 bytes more.
 */
attune__cost attune__cuda_sm90_backward_cost(const attune__search *search, const attune__tile *tile)
{
    const attune__shape *s = search->shape;
    const uint32_t *v = tile->value, m = v[ATTUNE__BLOCK_M1], n = v[ATTUNE__BLOCK_N1], stages = v[ATTUNE__NUM_STAGES];
    const uint32_t d = attune__round_up(s->head_dim, 64), dv = attune__round_up(s->head_dim_v, 64);
    const uint32_t e = attune__dtype_bytes(s);
    const bool pair = attune__cuda_sm90_backward_paired(s->head_dim, s->head_dim_v, n);
    const uint32_t keys = pair ? n / 2 : n, columns = !sm90_wide(s)   ? dq_columns(s->head_dim, s->head_dim_v, m)
                                                      : sm90_apart(s) ? d
                                                                      : 0;
    return (attune__cost){
        .shared = (keys * (d + dv) + stages * m * (d + dv + 128)) * e + m * columns * 4 + stages * m * 8 +
                  (pair ? 512 : 256) + (s->capture_gradient_elements ? 1536 : 0),
        .invocations = 32 * v[ATTUNE__NUM_WARPS],
        .registers = 32 + (sm90_wide(s) ? (d + dv) / 4 + 64 : (d + dv) / 2 + m),
        .launched_registers = 168,
    };
}

uint32_t attune__cuda_sm90_backward_dq_bytes(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_m)
{
    const uint32_t columns = dq_columns(head_dim, head_dim_v, block_m);
    return block_m * ((attune__cuda_sm90_backward_wide(head_dim, head_dim_v) ? columns / 2 : columns) + 4) * 4;
}

uint64_t attune__cuda_backward_sums(const attune__cuda_workspace *w, int64_t batch, int64_t heads, uint32_t head_dim,
                                    uint32_t head_dim_v)
{
    return (uint64_t)(batch * heads) * w->row_stride * dq_columns(head_dim, head_dim_v, 64) * sizeof(float);
}

uint64_t attune__cuda_backward_turns(const attune__cuda_workspace *w, int64_t batch, int64_t heads)
{
    return (uint64_t)(batch * heads) * w->row_stride / 64 * 4 * sizeof(uint32_t) + 16;
}

/* ------------------------------------------------------------------------------------------------------- workspace */

attune__cuda_workspace attune__cuda_backward_workspace(int64_t batch, int64_t heads, int64_t q_len, uint64_t elements)
{
    const uint64_t rows =
        (uint64_t)(q_len + ATTUNE__CUDA_ROW_BLOCK - 1) / ATTUNE__CUDA_ROW_BLOCK * ATTUNE__CUDA_ROW_BLOCK;
    attune__cuda_workspace w = {.row_stride = rows};
    w.delta = (uint64_t)batch * (uint64_t)heads * rows * sizeof(float);
    w.sums = 2 * w.delta;
    w.size = w.sums + elements * ATTUNE__CUDA_SUM_BYTES;
    w.size = attune__round_up64(w.size, 256);
    return w;
}

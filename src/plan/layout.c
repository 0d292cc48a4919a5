/* SPDX-License-Identifier: MIT */
#include "plan/layout.h"

#include <attune/attune.h>
#include <stddef.h>

/* The limits on groups of four scores of an invocation, whose mask bits are one word, or two. */
#define MOST_ROW_GROUPS      8
#define MOST_LONG_ROW_GROUPS 16

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The sum of a shader's arrays, of the constants in `l`. */
enum { SIZE_uint = 4, SIZE_float = 4, SIZE_uvec2 = 8, SIZE_vec4 = 16, SIZE_uvec4 = 16 };
#define CONSTANT(id, type, name, value)
#define SHARED(type, name, count) bytes += UINT64_C(1) * SIZE_##type * (count);
#define OF(name)                  l->name

static uint64_t forward_bytes(const attune__forward_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_forward.h"
    return bytes;
}

static uint64_t decode_bytes(const attune__decode_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_decode.h"
    return bytes;
}

static uint64_t few_rows_bytes(const attune__few_rows_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_few_rows.h"
    return bytes;
}

static uint64_t backward_bytes(const attune__backward_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_backward.h"
    return bytes;
}

static uint64_t matrix_bytes(const attune__matrix_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_matrix.h"
    return bytes;
}

static uint64_t registers_bytes(const attune__registers_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_registers.h"
    return bytes;
}

static uint64_t backward_matrix_bytes(const attune__backward_matrix_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_backward_matrix.h"
    return bytes;
}

static uint64_t lanes_bytes(const attune__lanes_layout *l)
{
    uint64_t bytes = 0;
#include "shaders/layout_lanes.h"
    return bytes;
}

uint64_t attune__members_layout_bytes(uint32_t members)
{
    const struct {
        uint32_t MEMBERS;
    } values = {members}, *l = &values;
    uint64_t bytes = 0;
#include "shaders/layout_members.h"
    return bytes;
}

uint64_t attune__serving_layout_bytes(uint32_t block_n)
{
    const struct {
        uint32_t BLOCK_N;
    } values = {block_n}, *l = &values;
    uint64_t bytes = 0;
#include "shaders/layout_serving.h"
    return bytes;
}

#undef CONSTANT
#undef SHARED
#undef OF

const char *attune__forward_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads, uint32_t head_dim,
                                        uint32_t head_dim_v, uint32_t form, attune__forward_layout *layout)
{
    const bool subgroups = form & ATTUNE__FORWARD_SUBGROUPS, flat = form & ATTUNE__FORWARD_FLAT;
    attune__forward_layout l = {.ROWS_SIZE = block_m};
    if (block_n < 4 || threads < block_n / 4)
        return "four of its columns belong to each invocation of a row";
    if (threads < block_m || (uint64_t)block_m * block_n > (uint64_t)threads * 4 * MOST_LONG_ROW_GROUPS)
        return "an invocation has at most 64 scores, all of one row";
    /* 8 x 8 scores per invocation need two thirds of the loads of two times 8 x 4. */
    const uint64_t scores = form & ATTUNE__FORWARD_COLUMNS ? 32 : 64;
    l.TN = block_n >= 8 && (uint64_t)block_m * block_n >= threads * scores ? 2 : 1;
    l.TX = block_n / 4 / l.TN;
    l.TY = threads / l.TX;
    l.TM = most(block_m / l.TY, 1);
    l.TO = (head_dim_v / 4 + l.TX - 1) / l.TX;
    l.ACC_SIZE = l.TM * l.TN;
    l.O_SIZE = l.TM * l.TO;
    l.ROW_LANES = least(threads / block_m, block_n / 4);
    l.ROW_GROUPS = block_n / 4 / l.ROW_LANES;
    /* Rows of S that are read together begin in different banks. */
    l.S_STRIDE = block_n / 4 + (subgroups ? least(l.ROW_LANES, 4) : 1);
    l.S_SIZE = block_m * l.S_STRIDE;
    l.REDUCE_SIZE = subgroups ? 0 : block_m * l.ROW_LANES;
    /* Slices of Q and K, and the chunk of V that fits their memory. */
    l.SLICE = flat || head_dim % 16 ? 8 : 16;
    l.SLICE_STRIDE = l.SLICE / 4 + 1;
    l.CHUNK_STRIDE = head_dim_v / 4 + 1;
    l.SLICE_SIZE = most((block_m + block_n) * l.SLICE_STRIDE, 4 * l.CHUNK_STRIDE);
    l.SLICES_SIZE = form & ATTUNE__FORWARD_ONE_HALF ? l.SLICE_SIZE : 2 * l.SLICE_SIZE;
    for (l.CHUNK = 4; !flat && 2 * l.CHUNK <= block_n && 2 * l.CHUNK * l.CHUNK_STRIDE <= l.SLICE_SIZE;)
        l.CHUNK *= 2;
    l.FETCH_Q = (block_m * (l.SLICE / 8) + threads - 1) / threads;
    l.FETCH_K = (block_n * (l.SLICE / 8) + threads - 1) / threads;
    l.FETCH_V = (l.CHUNK * (head_dim_v / 8) + threads - 1) / threads;
    l.FETCH = most(l.FETCH_Q + l.FETCH_K, l.FETCH_V);
    l.bytes = forward_bytes(&l);
    *layout = l;
    return NULL;
}

#define MOST_FOUND      32 /* keys that the lanes of a subgroup find, whose bits are one word */
#define MOST_HELD_ROWS  4  /* with more, Q is read from shared memory at each use */
#define MOST_TEAM_KEYS  32 /* whose bits are one word */
#define OTHER_REGISTERS 48

const char *attune__decode_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, uint32_t lanes,
                                       uint32_t head_dim, uint32_t head_dim_v, bool is_f32,
                                       attune__decode_layout *layout)
{
    const uint32_t groups = most(head_dim, head_dim_v) / 8;
    attune__decode_layout l = {.LANES = lanes, .WARPS = warps, .KEY_LANES = 1};
    while (l.KEY_LANES < lanes && (l.KEY_LANES < groups || l.KEY_LANES < block_m))
        l.KEY_LANES *= 2;
    l.KEYS_AT_ONCE = lanes / l.KEY_LANES;
    l.KEYS = block_n / (warps * l.KEYS_AT_ONCE);
    if (block_m > l.KEY_LANES)
        return "each of its rows has a lane of those that share a key";
    if (!l.KEYS)
        return "each of the num_warps subgroups has as many of its keys as it reads at once";
    if (l.KEYS > l.KEY_LANES || l.KEYS * l.KEYS_AT_ONCE > MOST_FOUND)
        return "a subgroup has at most 32 of its keys, and no more than lanes";
    l.K_GROUPS = (head_dim / 8 + l.KEY_LANES - 1) / l.KEY_LANES;
    l.V_GROUPS = (head_dim_v / 8 + l.KEY_LANES - 1) / l.KEY_LANES;
    l.PAIRS = block_m * l.KEYS;
    l.SCORES = most(l.PAIRS / l.KEY_LANES, 1);
    l.COPIES = most(l.KEY_LANES / l.PAIRS, 1);
    l.ROW_LANES = l.KEY_LANES / block_m;
    l.HOLD_Q = block_m * l.K_GROUPS <= MOST_HELD_ROWS;
    l.HELD_COUNT = l.HOLD_Q ? block_m * l.K_GROUPS * 2 : 1;
    l.O_COUNT = block_m * l.V_GROUPS * 2;
    l.K_COUNT = l.KEYS * l.K_GROUPS;
    l.V_COUNT = l.KEYS * l.V_GROUPS;
    l.Q_SIZE = l.HOLD_Q ? 1 : block_m * l.K_GROUPS * l.KEY_LANES * 2;
    l.PARTIALS_SIZE = warps * block_m * (head_dim_v / 4);
    l.STATES_SIZE = warps * block_m;
    l.SUM_SIZE = (block_m * (head_dim_v / 4) + warps * lanes - 1) / (warps * lanes);
    l.bytes = decode_bytes(&l);
    l.registers = 4 * ((l.HOLD_Q ? l.HELD_COUNT : 0) + l.O_COUNT) + (is_f32 ? 8 : 4) * (l.K_COUNT + l.V_COUNT) +
                  l.PAIRS + OTHER_REGISTERS;
    *layout = l;
    return NULL;
}

const char *attune__few_rows_layout_make(uint32_t block_m, uint32_t block_n, uint32_t threads,
                                         attune__few_rows_shape shape, attune__few_rows_layout *layout)
{
    const uint32_t groups = most(shape.head_dim, shape.head_dim_v) / 8, columns = shape.head_dim_v / 4;
    attune__few_rows_layout l = {.KEY_LANES = 1, .ROUND_ROWS = block_m};
    while (l.KEY_LANES < groups)
        l.KEY_LANES *= 2;
    if (l.KEY_LANES > threads)
        return "eight elements of a key's row are each thread's: num_warps has too few of them";
    l.TEAMS = threads / l.KEY_LANES;
    l.KEYS = block_n / l.TEAMS;
    if (!l.KEYS)
        return "the threads of num_warps read more keys at once";
    if (l.KEYS > MOST_TEAM_KEYS)
        return "the threads that share a key have at most 32 keys";
    l.PAIRS = block_m * l.KEYS;
    l.PAIR_GROUPS = (l.PAIRS + 3) / 4;
    l.SCORES = (l.PAIRS + l.KEY_LANES - 1) / l.KEY_LANES;
    l.FINDS = (block_n + threads - 1) / threads;
    l.HOLD_Q = block_m <= MOST_HELD_ROWS;
    l.HELD_COUNT = l.HOLD_Q ? 2 * block_m : 1;
    l.Q_SIZE = l.HOLD_Q ? 1 : 2 * block_m * l.KEY_LANES;
    /* As many rows of the teams' results at once as there is memory for the shares of a tile's products. */
    const uint32_t shares = (l.PAIRS * threads + 3) / 4;
    while (l.ROUND_ROWS > 1 && l.ROUND_ROWS * l.TEAMS * columns > shares)
        l.ROUND_ROWS /= 2;
    l.POOL_SIZE = most(shares, l.ROUND_ROWS * l.TEAMS * columns);
    l.ROUND_SIZE = (l.ROUND_ROWS * columns + threads - 1) / threads;
    l.SUM_SIZE = block_m / l.ROUND_ROWS * l.ROUND_SIZE;
    l.S_STRIDE = l.PAIR_GROUPS | 1;
    l.S_SIZE = l.TEAMS * l.S_STRIDE;
    l.STATES_SIZE = l.TEAMS * block_m;
    l.KEYS_SIZE = 2 * block_n;
    l.FACTORS_SIZE = shape.has_factors ? 2 * block_n : 1;
    l.bytes = few_rows_bytes(&l);
    l.registers =
        8 * block_m * (l.HOLD_Q ? 2 : 1) + (shape.is_f32 ? 16 : 8) * l.KEYS + l.PAIRS + 2 * block_m + OTHER_REGISTERS;
    *layout = l;
    return NULL;
}

const char *attune__backward_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t threads, uint32_t head_dim,
                                         uint32_t head_dim_v, bool keys, attune__backward_layout *layout)
{
    attune__backward_layout l = {.TX = inner_rows / 4};
    if (inner_rows < 4 || threads < inner_rows / 4)
        return "four of its columns belong to each invocation of a row";
    if ((uint64_t)outer_rows * inner_rows > (uint64_t)threads * 4 * MOST_ROW_GROUPS)
        return "an invocation has at most 32 scores";
    l.TY = threads / l.TX;
    l.TM = most(outer_rows / l.TY, 1);
    l.TO = (head_dim / 4 + l.TX - 1) / l.TX;
    l.TO_V = keys ? (head_dim_v / 4 + l.TX - 1) / l.TX : 1;
    l.X_SIZE = l.TM * l.TO;
    l.Y_SIZE = l.TM * l.TO_V;
    l.SLICE = head_dim % 16 || head_dim_v % 16 ? 8 : 16;
    l.SLICE_STRIDE = l.SLICE / 4 + 1;
    l.X_STRIDE = head_dim / 4 + 1;
    l.Y_STRIDE = head_dim_v / 4 + 1;
    l.S_STRIDE = inner_rows / 4 + 1;
    l.S_SIZE = outer_rows * l.S_STRIDE;
    const uint32_t chunk_stride = keys ? most(l.X_STRIDE, l.Y_STRIDE) : l.X_STRIDE;
    l.SLICE_SIZE = most((outer_rows + inner_rows) * l.SLICE_STRIDE, 4 * chunk_stride);
    l.SLICES_SIZE = 2 * l.SLICE_SIZE;
    for (l.CHUNK = 4; 2 * l.CHUNK <= inner_rows && 2 * l.CHUNK * chunk_stride <= l.SLICE_SIZE;)
        l.CHUNK *= 2;
    l.FETCH_A = (outer_rows * (l.SLICE / 8) + threads - 1) / threads;
    l.FETCH_B = (inner_rows * (l.SLICE / 8) + threads - 1) / threads;
    l.FETCH_X = (l.CHUNK * (head_dim / 8) + threads - 1) / threads;
    l.FETCH_Y = (l.CHUNK * (head_dim_v / 8) + threads - 1) / threads;
    l.FETCH = most(l.FETCH_A + l.FETCH_B, most(l.FETCH_X, l.FETCH_Y));
    l.bytes = backward_bytes(&l);
    *layout = l;
    return NULL;
}

#define MOST_HELD  128 /* of the head dimension: longer rows of Q leave too few registers for O */
#define MOST_FETCH 8

const char *attune__matrix_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                       uint32_t head_dim, uint32_t head_dim_v, attune__matrix_layout *layout)
{
    const uint32_t lanes = matrix.lanes, threads = warps * lanes;
    attune__matrix_layout l = {
        .MATRIX_M = matrix.m, .MATRIX_N = matrix.n, .MATRIX_K = matrix.k, .ROWS = block_m / warps};
    if (block_m % warps || l.ROWS < matrix.m || l.ROWS % matrix.m)
        return "each of the num_warps subgroups has the rows of at least one matrix";
    if (l.ROWS > lanes || lanes % l.ROWS)
        return "a subgroup has at most as many rows as lanes";
    if (block_n % matrix.n || block_n % matrix.k)
        return "it must be a multiple of the device's matrices";
    l.ROW_LANES = lanes / l.ROWS;
    l.ROW_GROUPS = block_n / 4 / l.ROW_LANES;
    if (!l.ROW_GROUPS || l.ROW_GROUPS > MOST_ROW_GROUPS)
        return "a lane has 4 to 32 scores, all of one row";
    l.ROW_TILES = l.ROWS / matrix.m;
    l.S_TILES = block_n / matrix.n;
    l.Q_TILES = (head_dim + matrix.k - 1) / matrix.k;
    l.O_TILES = (head_dim_v + matrix.n - 1) / matrix.n;
    l.HOLD_Q = l.Q_TILES * matrix.k <= MOST_HELD;
    l.S_COUNT = l.ROW_TILES * l.S_TILES;
    l.HELD_COUNT = l.HOLD_Q ? l.ROW_TILES * l.Q_TILES : 1;
    l.O_COUNT = l.ROW_TILES * l.O_TILES;
    l.K_GROUPS = l.Q_TILES * matrix.k / 8;
    l.V_GROUPS = l.O_TILES * matrix.n / 8;
    /* An odd number of groups from one row to the next: eight rows lie in different banks. */
    l.K_STRIDE = l.K_GROUPS | 1;
    l.V_STRIDE = l.V_GROUPS | 1;
    l.S_STRIDE = block_n / 4 + 1;
    l.P_STRIDE = block_n / 8 + 1;
    l.EXTRA_STRIDE = matrix.n / 4;
    l.FETCH = least((block_n * most(l.K_GROUPS, l.V_GROUPS) + threads - 1) / threads, MOST_FETCH);
    const uint32_t kv_size = block_n * most(l.K_STRIDE, l.V_STRIDE), q_size = block_m * l.K_STRIDE;
    l.Q_OFFSET = l.HOLD_Q ? 0 : kv_size;
    l.WARPS_OFFSET = l.HOLD_Q ? most(kv_size, q_size) : kv_size + q_size;
    l.EXTRA_OFFSET = l.ROWS * l.S_STRIDE;
    l.WARP_SIZE = l.EXTRA_OFFSET + l.ROWS * l.EXTRA_STRIDE;
    l.MEMORY_SIZE = l.WARPS_OFFSET + warps * l.WARP_SIZE;
    l.bytes = matrix_bytes(&l);
    *layout = l;
    return NULL;
}

#define MOST_COUNTED                                                                                                   \
    128 /* keys of a tile: the largest number for which a sum of their non-finite codes is unambiguous */

#define MOST_AHEAD  128 /* of the head dimension: longer rows leave no registers for a second S */
#define RING_GROUPS 69  /* two for each of 32 tiles, or one for each of 64, and five */

const char *attune__registers_layout_make(uint32_t block_m, uint32_t block_n, uint32_t warps,
                                          attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                          attune__registers_layout *layout)
{
    const uint32_t threads = warps * matrix.lanes;
    attune__registers_layout l = {.MATRIX_M = matrix.m,
                                  .MATRIX_N = matrix.n,
                                  .LANES = matrix.lanes,
                                  .ROWS = block_m / warps,
                                  .QUADS = matrix.fragment_layout == ATTUNE_FRAGMENT_QUADS};
    if (block_m % warps || l.ROWS < matrix.m || l.ROWS % matrix.m)
        return "each of the num_warps subgroups has the rows of at least one matrix";
    if (block_n % matrix.n || block_n % matrix.k)
        return "it must be a multiple of the device's matrices";
    if (block_n > MOST_COUNTED)
        return "it must be at most 128";
    l.ROW_TILES = l.ROWS / matrix.m;
    l.S_TILES = block_n / matrix.n;
    l.Q_TILES = (head_dim + matrix.n - 1) / matrix.n;
    l.O_TILES = (head_dim_v + matrix.n - 1) / matrix.n;
    l.S_COUNT = l.ROW_TILES * l.S_TILES;
    l.AHEAD = l.Q_TILES * matrix.n <= MOST_AHEAD;
    l.HELD_COUNT = l.ROW_TILES * l.Q_TILES;
    l.O_COUNT = l.ROW_TILES * l.O_TILES;
    l.ROW_COUNT = l.QUADS ? 2 : matrix.m;
    l.ALL_ROWS = l.ROW_TILES * l.ROW_COUNT;
    l.LENGTH = matrix.m * matrix.n / matrix.lanes;
    l.K_GROUPS = l.Q_TILES * matrix.n / 8;
    l.V_GROUPS = l.O_TILES * matrix.n / 8;
    /* An odd number of groups from one row to the next: eight rows lie in different banks. */
    l.K_STRIDE = l.K_GROUPS | 1;
    l.V_STRIDE = l.V_GROUPS | 1;
    l.FETCH = least((block_n * most(l.K_GROUPS, l.V_GROUPS) + threads - 1) / threads, MOST_FETCH);
    l.SLOT = block_n * most(l.K_STRIDE, l.V_STRIDE);
    l.MEMORY_SIZE = 4 * l.SLOT;
    /* Q passes through the memory of K and V, whole or in parts of several subgroups' rows. */
    l.Q_ROWS = block_m;
    while (l.Q_ROWS * l.K_STRIDE > l.MEMORY_SIZE && l.Q_ROWS % (2 * l.ROWS) == 0)
        l.Q_ROWS /= 2;
    l.RING = most(l.MEMORY_SIZE, l.Q_ROWS * l.K_STRIDE);
    l.MEMORY_SIZE = l.RING + RING_GROUPS;
    /* O is stored in as few chunks as shared memory holds. */
    for (l.O_CHUNK = l.O_TILES;; l.O_CHUNK = (l.O_CHUNK + 1) / 2) {
        l.O_STRIDE = l.O_CHUNK * matrix.n / 4 + 1;
        if (block_m * l.O_STRIDE <= l.MEMORY_SIZE || l.O_CHUNK == 1)
            break;
    }
    l.MEMORY_SIZE = most(l.MEMORY_SIZE, block_m * l.O_STRIDE);
    l.bytes = registers_bytes(&l);
    *layout = l;
    return NULL;
}

const char *attune__backward_matrix_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t warps,
                                                attune__matrix_shape matrix, uint32_t head_dim, uint32_t head_dim_v,
                                                bool keys, attune__backward_matrix_layout *layout)
{
    const uint32_t threads = warps * matrix.lanes, teams = least(warps, outer_rows / matrix.m);
    attune__backward_matrix_layout l = {.MATRIX_M = matrix.m,
                                        .MATRIX_N = matrix.n,
                                        .LANES = matrix.lanes,
                                        .QUADS = matrix.fragment_layout == ATTUNE_FRAGMENT_QUADS};
    if (!teams || outer_rows % (teams * matrix.m))
        return "it must be a multiple of the device's matrices";
    l.TEAM = warps / teams;
    if (inner_rows % matrix.n)
        return "it must be a multiple of the device's matrices";
    /* Columns need no exchange of sums; a subgroup has at least one matrix of them. */
    l.SPLIT_DEPTH = inner_rows % (l.TEAM * matrix.n) != 0;
    const uint32_t depth_shares = l.SPLIT_DEPTH ? l.TEAM : 1;
    if (threads < inner_rows)
        return "each of its inner rows is another invocation's";
    l.ROW_COUNT = l.QUADS ? 2 : matrix.m;
    l.LENGTH = matrix.m * matrix.n / matrix.lanes;
    l.ROWS = outer_rows / teams;
    l.ROW_TILES = l.ROWS / matrix.m;
    l.ALL_ROWS = l.ROW_TILES * l.ROW_COUNT;
    l.S_TILES = inner_rows / matrix.n / (l.SPLIT_DEPTH ? 1 : l.TEAM);
    const uint32_t depth = (head_dim + matrix.n - 1) / matrix.n, depth2 = (head_dim_v + matrix.n - 1) / matrix.n;
    l.A_TILES = (depth + depth_shares - 1) / depth_shares;
    l.A2_TILES = (depth2 + depth_shares - 1) / depth_shares;
    l.X_TILES = (depth + l.TEAM - 1) / l.TEAM;
    l.Y_TILES = keys ? (depth2 + l.TEAM - 1) / l.TEAM : 0;
    l.X_COUNT = l.ROW_TILES * l.X_TILES;
    l.Y_COUNT = l.ROW_TILES * l.Y_TILES;
    /* A2 is held first: A is read where only S is in registers besides the sums. llvmpipe has no registers to save, and
     * takes seconds to compile the loops over a long A that is held. */
    const uint32_t held = l.ROW_TILES * l.A_TILES, held2 = l.ROW_TILES * l.A2_TILES;
    l.registers = (l.X_COUNT + l.Y_COUNT + 2 * l.ROW_TILES) * l.LENGTH;
    l.HOLD_A2 = l.registers + held2 * l.LENGTH / 2 <= ATTUNE__MOST_MATRIX_REGISTERS && (l.QUADS || held2 <= 4);
    l.HELD2_COUNT = l.HOLD_A2 ? held2 : 1;
    l.registers += l.HOLD_A2 ? held2 * l.LENGTH / 2 : 0;
    l.HOLD_A = l.registers + held * l.LENGTH / 2 <= ATTUNE__MOST_MATRIX_REGISTERS && (l.QUADS || held <= 4);
    l.HELD_COUNT = l.HOLD_A ? held : 1;
    l.registers += l.HOLD_A ? held * l.LENGTH / 2 : 0;
    l.B_GROUPS = most(l.A_TILES * depth_shares, l.X_TILES * l.TEAM) * matrix.n / 8;
    l.B2_GROUPS = most(l.A2_TILES * depth_shares, l.Y_TILES * l.TEAM) * matrix.n / 8;
    /* An odd number of groups from one row to the next: eight rows lie in different banks. */
    l.B_STRIDE = l.B_GROUPS | 1;
    l.B2_STRIDE = l.B2_GROUPS | 1;
    l.P_STRIDE = inner_rows / 8 | 1;
    l.FETCH = least((inner_rows * l.B_GROUPS + threads - 1) / threads, MOST_FETCH);
    l.FETCH2 = least((inner_rows * l.B2_GROUPS + threads - 1) / threads, MOST_FETCH);
    l.B2_OFFSET = inner_rows * l.B_STRIDE;
    uint32_t end = l.B2_OFFSET + inner_rows * l.B2_STRIDE;
    l.A_OFFSET = l.HOLD_A ? 0 : end;
    end += l.HOLD_A ? 0 : outer_rows * l.B_STRIDE;
    l.A2_OFFSET = l.HOLD_A2 ? 0 : end;
    end += l.HOLD_A2 ? 0 : outer_rows * l.B2_STRIDE;
    l.P_OFFSET = end;
    end += keys ? outer_rows * l.P_STRIDE : 0;
    l.DS_OFFSET = end;
    end += outer_rows * l.P_STRIDE;
    l.STATE_OFFSET = end;
    end += keys ? inner_rows / 2 : 0;
    l.SUM_STRIDE = matrix.n / 4 + 1;
    l.SUM_OFFSET = end;
    end += l.SPLIT_DEPTH ? warps * 2 * l.ROW_TILES * l.S_TILES * matrix.m * l.SUM_STRIDE : 0;
    /* Held operands pass through it before the first tile. */
    l.MEMORY_SIZE = most(end, outer_rows * most(l.HOLD_A ? l.B_STRIDE : 0, l.HOLD_A2 ? l.B2_STRIDE : 0));
    /* X and Y are stored in as few chunks as shared memory holds. */
    for (l.OUT_CHUNK = most(l.X_TILES, l.Y_TILES);; l.OUT_CHUNK = (l.OUT_CHUNK + 1) / 2) {
        l.OUT_STRIDE = l.OUT_CHUNK * matrix.n / 4 + 1;
        if (warps * l.ROWS * l.OUT_STRIDE <= l.MEMORY_SIZE || l.OUT_CHUNK == 1)
            break;
    }
    l.MEMORY_SIZE = most(l.MEMORY_SIZE, warps * l.ROWS * l.OUT_STRIDE);
    l.bytes = backward_matrix_bytes(&l);
    *layout = l;
    return NULL;
}

const char *attune__lanes_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, bool shuffles,
                                      uint32_t head_dim, uint32_t head_dim_v, uint32_t element_bytes,
                                      attune__lanes_layout *layout)
{
    attune__lanes_layout l = {.WIDTH = shuffles ? 1 : lanes,
                              .SHUFFLES = shuffles,
                              .VECTORS = (outer_rows + lanes - 1) / lanes,
                              .CHUNK = shuffles ? lanes : 1,
                              /* A driver converts one element of 16 bits as slowly as a vector of them. */
                              .STAGED = !shuffles && element_bytes < 4,
                              .INNER_SIZE = 1};
    if (l.VECTORS > 4)
        return "a lane has at most four rows";
    if (inner_rows % 8)
        return "it must be a multiple of 8";
    /* Sums in registers: of 32 where vectors have 16 floats, of 16 elsewhere. A lane of a workgroup loads one element
     * of each CHUNK columns. */
    const uint32_t sums = lanes == 16 ? 16 : 8;
    l.DEPTH = shuffles ? lanes : least(8, sums / l.VECTORS);
    if (l.STAGED)
        l.INNER_SIZE = inner_rows * most(head_dim, head_dim_v);
    l.bytes = lanes_bytes(&l);
    *layout = l;
    return NULL;
}

const char *attune__lanes_serving_layout_make(uint32_t outer_rows, uint32_t inner_rows, uint32_t width,
                                              uint32_t threads, uint32_t head_dim, uint32_t head_dim_v, bool shares,
                                              attune__lanes_layout *layout)
{
    attune__lanes_layout l = {.WIDTH = width,
                              .VECTORS = (outer_rows + width * threads - 1) / (width * threads),
                              .CHUNK = 1,
                              .STAGED = 1,
                              .INNER_SIZE = inner_rows * most(head_dim, head_dim_v)};
    if (l.VECTORS > 4)
        return "a lane has at most four rows";
    if (inner_rows % 4)
        return "it must be a multiple of 4";
    /* It divides the tile's keys and the columns. */
    l.DEPTH = least(least(8, (width == 16 ? 16 : 8) / l.VECTORS), inner_rows);
    l.bytes = lanes_bytes(&l) + attune__serving_layout_bytes(inner_rows) +
              (shares ? attune__members_layout_bytes(outer_rows) : 0);
    *layout = l;
    return NULL;
}

uint32_t attune__lanes_most_steps(uint32_t block_m, uint32_t block_n, uint32_t lanes, uint32_t head_dim,
                                  uint32_t head_dim_v, uint32_t element_bytes)
{
    const uint32_t elements = 8 / element_bytes, groups = block_n / lanes, dims = head_dim / lanes;
    const uint32_t chunks = (head_dim_v + lanes * elements - 1) / (lanes * elements);
    const uint32_t before = block_m * (dims + chunks * elements + 3) + 1;
    const uint32_t after = block_m * (chunks * (elements / 2 + 2) + 2) + 1;
    const uint32_t score = block_m * (3 * groups + 2) + 1, softmax = block_m + 1;
    const uint32_t step = 4 + dims + 1 + score + softmax + chunks * (groups + block_n + 5) + 1;
    const uint32_t all = 65535, rest = 2 * (before + after);
    return rest < all ? (all - rest) / (2 * step) : 0;
}

uint32_t attune__matrix_most_steps(uint32_t block_m, uint32_t block_n, uint32_t warps, attune__matrix_shape matrix,
                                   uint32_t head_dim, uint32_t head_dim_v)
{
    const uint32_t seen = 2048 / block_n;
    attune__registers_layout l;
    if (!matrix.fragment_layout ||
        attune__registers_layout_make(block_m, block_n, warps, matrix, head_dim, head_dim_v, &l))
        return seen;
    const uint32_t copies = block_n * (2 * l.K_STRIDE + 2 * l.V_STRIDE) / (warps * matrix.lanes) + 5;
    const uint32_t codes = l.ROW_TILES * l.O_TILES * (l.S_TILES + 2);
    const uint32_t most = 32000 / (l.Q_TILES + l.S_TILES + copies + codes + 4);
    return most < seen ? most : seen;
}

uint32_t attune__lanes_backward_most_steps(uint32_t outer_rows, uint32_t inner_rows, uint32_t lanes, uint32_t head_dim,
                                           uint32_t head_dim_v, uint32_t element_bytes)
{
    const uint32_t elements = 8 / element_bytes, groups = inner_rows / lanes, dims = (head_dim + head_dim_v) / lanes;
    const uint32_t columns = lanes * elements;
    const uint32_t chunks = (head_dim + columns - 1) / columns + (head_dim_v + columns - 1) / columns;
    const uint32_t before = outer_rows * (dims + chunks * elements + 5) + 8;
    const uint32_t after = outer_rows * (chunks * (elements / 2 + 2) + 4) + 2;
    const uint32_t score = outer_rows * (5 * groups + 2) + 1;
    const uint32_t step = 8 + dims + score + chunks * (groups + inner_rows + 5) + 2;
    const uint32_t all = 65535, rest = 2 * (before + after);
    return rest < all ? (all - rest) / (2 * step) : 0;
}

uint32_t attune__backward_matrix_most_steps(const attune__backward_matrix_layout *layout, uint32_t outer_rows,
                                            uint32_t inner_rows, uint32_t threads)
{
    const attune__backward_matrix_layout *l = layout;
    const uint32_t products = l->A_TILES + l->A2_TILES + 2 * (inner_rows / l->MATRIX_N) + 8;
    const uint32_t copies = inner_rows * (l->B_GROUPS + l->B2_GROUPS) / threads + 4;
    const uint32_t non_finite = (l->X_COUNT + l->Y_COUNT) * (inner_rows + 2);
    const uint32_t outside = outer_rows * (l->B_GROUPS + l->B2_GROUPS) / threads +
                             (l->X_TILES + l->Y_TILES) * (l->ROWS * l->MATRIX_N / 4 / l->LANES + 4);
    const uint32_t all = 65535, rest = 2 * outside;
    return rest < all ? (all - rest) / (2 * (products + copies + non_finite)) : 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The arguments of a launch: one block in device memory. Its address and the number of the first workgroup are the push
 * constants. src/vulkan/arguments.h has the same layout in C.
 */
#ifndef ATTUNE_ARGUMENTS_GLSL
#define ATTUNE_ARGUMENTS_GLSL

#include "address.glsl"

struct Tensor {
    uvec2 address;
    uvec2 stride_b, stride_h, stride_row; /* bytes */
};

uvec2 plane(const in Tensor t, const in uint b, const in uint h)
{
    return address_step(address_step(t.address, b, t.stride_b), h, t.stride_h);
}

/* A row's LSE or row maximum, where the call requests it. */
void store_row(const in Tensor t, const in uint b, const in uint h, const in uint q, const in uint bits)
{
    if (any(notEqual(t.address, uvec2(0u))))
        OutWord(address_step(plane(t, b, h), q, t.stride_row)).value = bits;
}

#define ALIGNED_Q 1u
#define ALIGNED_K 2u
#define ALIGNED_V 4u
#define ALIGNED_O 8u
#define ALIGNED_D_O 16u
#define ALIGNED_D_Q 32u
#define ALIGNED_D_K 64u
#define ALIGNED_D_V 128u
/* A merge follows: a row whose scores are all -inf keeps its O, 0 or NaN, which the merge then weighs. */
#define IS_PARTIAL 256u

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Arguments {
    Tensor q, k, v, o, lse, row_max; /* address 0: lse or row_max is not requested */
    uvec2 mask_rows;                 /* for each row of blocks: address and count of its entries */
    uvec2 mask_mod, score_mod;       /* the expressions' tables: mods.glsl */
    uvec2 partials, partials_ml;     /* of splits: O, and row maximum and sum */
    uint batch, heads, kv_heads, q_len;
    uint kv_len, splits;
    uint mask_rows_b, mask_rows_h;   /* rows of blocks from one batch or head to the next; 0 = broadcast */
    uint q_block, kv_block;          /* of the mask; without one the tile */
    uint head_step, q_step;          /* heads and queries of a tile */
    uint head_chunks, q_chunks, in_block; /* tiles of a group of heads, of the queries, of a row of blocks */
    uint flags;
    float scale;
    uint kv_batch;
    /* backward */
    Tensor d_o, d_lse, d_q, d_k, d_v; /* address 0: the loss does not use LSE */
    uvec2 delta;                      /* f32 [batch][heads][q_len] */
    uvec2 mask_columns;               /* as mask_rows, of the transposed lists */
    uint mask_columns_b, mask_columns_h;
    uint inner_q_block;               /* as kv_block, of the inner tiles of queries */
};

/* Below every score: a row that has seen no pair. Times LOG2E it is finite too: a driver may take (x - m) * LOG2E for
 * x * LOG2E - m * LOG2E. */
const float LOWEST = -2.0e38;
const float LOG2E = 1.44269504088896341;
const float LN2 = 0.693147180559945309;

layout(constant_id = 21) const bool SCORE = false;

/* Scores are in units of log2, which saves a multiplication for each. Results of a score expression stay in natural
 * units, so that the row maximum is exact. */
const float UNIT = SCORE ? 1.0 : LN2, TO_LOG2 = SCORE ? LOG2E : 1.0;

/* By their bits: a driver may assume that floats have no NaN, and then comparisons with NaN are undefined. */
bool is_zero(const in float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) == 0u;
}

bool is_nan(const in float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

uint lse_bits(const in float m, const in float l)
{
    return is_nan(l) ? 0x7fc00000u : is_zero(l) ? 0xff800000u : floatBitsToUint(m * UNIT + log2(l) * LN2);
}

/* The row maximum from m and the sum l. max() drops NaN scores, so that l alone shows them. An infinite score makes l
 * NaN too, but then m is infinite. */
uint row_max_bits(const in float m, const in float l)
{
    bool nan = is_nan(l) && floatBitsToUint(m) != 0x7f800000u;
    bool none = floatBitsToUint(m) == floatBitsToUint(LOWEST);
    return nan ? 0x7fc00000u : none ? 0xff800000u : floatBitsToUint(m * UNIT);
}

layout(push_constant) uniform Push {
    uvec2 arguments;
    uint first;
} push;

#endif

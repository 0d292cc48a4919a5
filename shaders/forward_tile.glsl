/* SPDX-License-Identifier: MIT */
/*
 * Shared by the forward kernels: the tile of a workgroup, where its operands are, and how its results are stored. State
 * that stages share is global: drivers inline functions, and then keep globals in registers, as locals.
 */
#ifndef ATTUNE_FORWARD_TILE_GLSL
#define ATTUNE_FORWARD_TILE_GLSL

#include "block_lists.glsl"
#include "elements.glsl"
#ifdef SERVING
#include "quantised.glsl"
#endif

attune_vulkan_arguments args = attune_vulkan_arguments(push.arguments);
TileCoord coord;
uvec2 q_plane, k_plane, v_plane;
uvec2 q_stride_h, q_stride, k_stride, v_stride;
bool aligned, o_aligned; /* q, k and v; o */
uint kv_len, kv_block;

#ifdef SERVING
#include "serving.glsl"
#endif

#ifndef KEYS_IN_REGISTERS
/* A tile of keys: the first; whether the mask's expression is evaluated; whether pairs may be forbidden at all. */
struct KeyTile {
    uint kv0;
    bool is_partial, masked;
};
#endif

void begin_tile()
{
    const uint inputs = ATTUNE_VULKAN_ALIGNED_Q | ATTUNE_VULKAN_ALIGNED_K | ATTUNE_VULKAN_ALIGNED_V;
    uint index = push.first + gl_WorkGroupID.x;
#ifdef SERVING
    bool has_item = begin_item(index);
#endif
    coord = tile_coord_of(args, index);
    q_plane = plane(args.q, coord.b, coord.h0);
    k_plane = plane(args.k, coord.b, coord.kv_h);
    v_plane = plane(args.v, coord.b, coord.kv_h);
    q_stride_h = args.q.stride_h;
    q_stride = args.q.stride_row;
    k_stride = args.k.stride_row;
    v_stride = args.v.stride_row;
    aligned = ALIGNED || (args.flags & inputs) == inputs;
    o_aligned = ALIGNED || (args.flags & ATTUNE_VULKAN_ALIGNED_O) != 0u;
    kv_len = args.kv_len;
    kv_block = args.kv_block;
#ifdef SERVING
    begin_sequence();
    coord.rows = has_item ? coord.rows : 0u;
#endif
}

#ifndef KEYS_IN_REGISTERS
KeyTile key_tile_of(const in BlockIterator it)
{
#ifdef SERVING
    bool is_partial = (MASK && it.kind != 0u) || sees_some(it.row0 + BLOCK_N);
    bool masked = is_partial || it.row0 < sequence.kv_first || absent[parity] != 0u;
#else
    bool is_partial = MASK && it.kind != 0u, masked = is_partial;
#endif
    return KeyTile(it.row0, is_partial, masked || it.row0 + BLOCK_N > kv_len);
}
#endif

/* Where a query's row is in q, o, lse and row_max. */
uint tensor_batch()
{
#ifdef SERVING
    return sequence.batch;
#else
    return coord.b;
#endif
}

uint tensor_row(const in uint query)
{
#ifdef SERVING
    return sequence.row0 + query;
#else
    return query;
#endif
}

/* The head and query of a row of the tile. */
uint row_head(const in uint row)
{
    return coord.h0 + head_of(row, coord.queries);
}

uint row_query(const in uint row)
{
    return coord.q0 + query_of(row, coord.queries);
}

/* Before the stores of stage 7: whether the result is a split's, and whether a row without weights keeps its O for the
 * merge that follows. */
bool split, is_partial_result;

void begin_store()
{
#ifdef SERVING
    split = slot != ATTUNE_VULKAN_NO_SLOT;
#else
    split = args.splits > 1u;
#endif
    is_partial_result = split || (args.flags & ATTUNE_VULKAN_IS_PARTIAL) != 0u;
}

uint partial_index(const in uint h, const in uint q)
{
#ifdef SERVING
#ifndef KEYS_IN_REGISTERS
    /* Of a tile whose sequences vary with the parts, by query. */
    if (SHARES)
        return slot * BLOCK_M + (q - coord.q0) * coord.heads + h - coord.h0;
#endif
    return slot * BLOCK_M + (h - coord.h0) * coord.queries + q - coord.q0;
#else
    return ((coord.b * args.heads + h) * args.q_len + q) * args.splits + coord.split;
#endif
}

/* Stage 7, of a row: LSE and row maximum where the call requests them, or the row maximum and sum of a split. Weights
 * are relative to m, and l is their sum, with the sink; row_l is the sum without it, relative to row_max. */
void store_row_state(const in uint h, const in uint q, const in float m, const in float l, const in float row_max,
                     const in float row_l)
{
    if (split) {
        uvec2 to = address_step(args.partials_ml, partial_index(h, q), uvec2(8u, 0u));
        OutWord(to).value = floatBitsToUint(row_max);
        OutWord(address_add(to, 4u)).value = floatBitsToUint(row_l);
    } else {
        store_row(args.lse, tensor_batch(), h, tensor_row(q), lse_bits(m, l));
        store_row(args.row_max, tensor_batch(), h, tensor_row(q), row_max_bits(row_max, row_l));
    }
}

/* Stage 7, of four columns of a row of O, or of a split's partial result. */
void store_columns(const in uint h, const in uint q, const in uint column, const in vec4 value)
{
    if (split)
        OutVec4(address_add(address_step(args.partials, partial_index(h, q), uvec2(HEAD_DIM_V * 4u, 0u)), column * 4u))
            .value = value;
    else
        store4(O_TYPE,
               address_add(address_step(plane(args.o, tensor_batch(), h), tensor_row(q), args.o.stride_row),
                           column * bytes_of(O_TYPE)),
               o_aligned, value);
}

#endif

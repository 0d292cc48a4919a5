/* SPDX-License-Identifier: MIT */
/*
 * New rows of a cache: normalised, rotated, rounded or quantised, and written where their keys are. The workgroups of a
 * row share its heads; a head's row is in local memory. Types and sizes are arguments, so that all plans share one
 * program (step.cl).
 */
#include "append.h"
#include "quantise.h"
#include "serving.h"

#define LANES 64u /* of a sum of squares, for any number of items */

/* Of a workgroup's row: where it is in the tensors, its position in the rotation, and its key in the cache. */
typedef struct place {
    uint batch, row, position;
    int is_there, has_key;
    uint2 key; /* 0 if there is none, so that what follows may be read */
} place;

/* The number of a sequence that has the row, the first of the item's; NO_PAGE = none. */
ATTUNE_FUNCTION uint find_sequence(const attune_opencl_append *args, sequence *s, const place *at,
                                   __global const uchar *q_start, __global const uchar *count)
{
    uint least = NO_PAGE;
    for (uint b = (uint)get_local_id(0); b < args->batch; b += THREADS) {
        s->b = b;
        begin_rows(s, args->q_len, q_start, count);
        least = s->batch == at->batch && at->row - s->row0 < s->q_len ? min(least, b) : least;
    }
    return least;
}

ATTUNE_FUNCTION __global const uchar *row_of(__global const uchar *memory, const attune_opencl_rows *rows, uint i)
{
    return memory + rows->offset + (long)i * rows->stride[0];
}

/* `found`: the sequence of the row. */
ATTUNE_FUNCTION void find_place(const attune_opencl_append *args, sequence *s, place *at, uint found,
                                __global const uchar *slots, __global const uchar *positions,
                                __global const uchar *q_start, __global const uchar *count,
                                __global const uchar *kv_lens, __global const uchar *pages,
                                __global const uchar *pages_start)
{
    const int whole = args->batch == 0u, by_slot = (args->flags & ATTUNE_OPENCL_APPEND_SLOTS) != 0u;
    s->b = found == NO_PAGE ? 0u : found;
    begin_rows(s, args->q_len, q_start, count);
    begin_table(s, pages, pages_start);
    begin_length(s, args->kv_len, kv_lens);
    const int kv = whole ? 0 : s->position + (int)(at->row - s->row0);
    at->is_there = whole || found != NO_PAGE;
    const long slot = *(__global const long *)(row_of(slots, &args->slots, at->batch) +
                                               (long)at->row * args->slots.stride[1]);
    const long page = slot < 0l ? -1l : slot / (long)s->of->page;
    const uint2 of_slot = (uint2)(page >= 0l && page < (long)s->of->pool ? (uint)page : NO_PAGE,
                                  (uint)(slot - page * (long)s->of->page));
    const uint2 key = by_slot ? of_slot : whole ? (uint2)(NO_PAGE) : key_of(s, (uint)kv);
    at->has_key = at->is_there && key.x != NO_PAGE;
    at->key = at->has_key ? key : (uint2)(0u);
    const int position = *(__global const int *)(row_of(positions, &args->positions, at->batch) +
                                                 (long)at->row * args->positions.stride[1]);
    at->position = args->flags & ATTUNE_OPENCL_APPEND_POSITIONS ? (uint)position : (uint)kv;
    if (args->flags & ATTUNE_OPENCL_APPEND_ROTATES && at->position >= args->positions_count)
        at->is_there = at->has_key = 0;
    at->position = at->is_there && args->flags & ATTUNE_OPENCL_APPEND_ROTATES ? at->position : 0u;
}

/* A driver may flush denormals of f16, which are plain numbers in f32. */
ATTUNE_FUNCTION float load_value(uint type, __global const uchar *at)
{
    if (type != F16)
        return load_element(type, at);
    const uint bits = *(__global const ushort *)at;
    const float small = convert_float(bits & 0x3ffu) * 5.9604644775390625e-8f;
    return bits & 0x7c00u ? vload_half(0, (__global const half *)at)
                          : as_float(as_uint(small) | (bits & 0x8000u) << 16);
}

ATTUNE_FUNCTION void store_value(uint type, __global uchar *to, float value)
{
    if (type == F16)
        *(__global ushort *)to = (ushort)half_bits(as_uint(value));
    else
        store_element(type, to, value);
}

/* The share of a sum of squares that each lane has. */
ATTUNE_FUNCTION void add_squares(__local float *sums, __local const float *values, uint columns)
{
    for (uint lane = (uint)get_local_id(0); lane < LANES; lane += THREADS) {
        float sum = 0.0f;
        for (uint c = lane; c < columns; c += LANES)
            sum = FMA(values[c], values[c], sum);
        sums[lane] = sum;
    }
}

/* The root mean square of the first columns becomes 1, times the weights. */
ATTUNE_FUNCTION void normalise(__local float *values, float square, const attune_opencl_norm *norm,
                               __global const uchar *weights, float epsilon)
{
    const float factor = 1.0f / sqrt(square / (float)norm->columns + epsilon);
    for (uint c = (uint)get_local_id(0); c < norm->columns; c += THREADS)
        values[c] *= factor * load_value(norm->type, weights + norm->offset + (long)c * norm->stride);
}

ATTUNE_FUNCTION void rotate_pairs(__local float *values, const attune_opencl_append *args, uint position, uint pairs,
                                  __global const uchar *cosine, __global const uchar *sine)
{
    const int pairwise = (args->flags & ATTUNE_OPENCL_APPEND_INTERLEAVED) != 0u;
    for (uint i = (uint)get_local_id(0); i < pairs; i += THREADS) {
        const uint first = args->rotary_first + (pairwise ? 2u * i : i), second = first + (pairwise ? 1u : args->pairs);
        const float c = *(__global const float *)(row_of(cosine, &args->cosine, position) +
                                                  (long)i * args->cosine.stride[1]);
        const float s = *(__global const float *)(row_of(sine, &args->sine, position) + (long)i * args->sine.stride[1]);
        const float x = values[first], y = values[second];
        values[first] = x * c - y * s;
        values[second] = x * s + y * c;
    }
}

ATTUNE_FUNCTION uint largest_of(__local const float *values, uint columns)
{
    uint largest = 0u;
    for (uint c = (uint)get_local_id(0); c < columns; c += THREADS)
        largest = max(largest, as_uint(values[c]) & MAGNITUDE);
    return largest;
}

/* A block of q8_0 or q4_0. */
ATTUNE_FUNCTION void write_block(uint type, __global uchar *to, __local const float *values)
{
    uint most = 0u, inverse;
    int finite = 1;
    for (uint j = 0u; j < 32u; j++) {
        const uint bits = as_uint(values[j]);
        finite = finite && (bits & INFINITE) != INFINITE;
        most = (bits & MAGNITUDE) > (most & MAGNITUDE) ? bits : most;
    }
    *(__global ushort *)to = (ushort)block_factors(type, most, finite, &inverse);
    for (uint j = 0u; j < (type == Q8_0 ? 32u : 16u); j++) {
        const uint low = code_in_block(type, values[j], inverse);
        const uint high = type == Q4_0 ? code_in_block(type, values[j + 16u], inverse) : 0u;
        to[2u + j] = (uchar)(low | high << 4);
    }
}

ATTUNE_FUNCTION void write_row(uint type, __global uchar *to, __local const float *values, uint columns, uint factor)
{
    const uint id = (uint)get_local_id(0);
    if (type >= Q8_0)
        for (uint i = id; i < columns / 32u; i += THREADS)
            write_block(type, to + (long)(i * (type == Q8_0 ? 34u : 18u)), values + 32u * i);
    else if (type > BF16)
        for (uint c = id; c < columns; c += THREADS)
            to[c] = (uchar)code_of(type, as_uint(values[c]), factor);
    else
        for (uint c = id; c < columns; c += THREADS)
            store_value(type, to + (long)(c * bytes_of(type)), values[c]);
}

ATTUNE_FUNCTION long place_in(const attune_opencl_tensor *t, uint b, uint h, uint row)
{
    return t->offset + (long)b * t->stride_b + (long)h * t->stride_h + (long)row * t->stride_row;
}

/* q_out may be q, and a cache's values may be among its keys. */
__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void
attune_append(const attune_opencl_append args, __global const uchar *q, __global const uchar *k,
              __global const uchar *v, __global uchar *q_out, __global uchar *cache_k, __global uchar *cache_v,
              __global const uchar *slots, __global const uchar *positions, __global const uchar *cosine,
              __global const uchar *sine, __global const uchar *q_norm, __global const uchar *k_norm,
              __global const uchar *q_start, __global const uchar *kv_lens, __global const uchar *count,
              __global const uchar *pages, __global const uchar *pages_start, __global uchar *k_scale,
              __global uchar *v_scale)
{
    __local float values[ATTUNE_OPENCL_APPEND_COLUMNS], sums[LANES];
    __local uint of_items[THREADS];
    const uint id = (uint)get_local_id(0), index = args.first + GROUP;
    sequence s;
    place at;
    s.of = &args.cache;
    at.batch = index / args.workgroups / args.rows;
    at.row = index / args.workgroups % args.rows;
    of_items[id] = find_sequence(&args, &s, &at, q_start, count);
    MEET();
    uint found = of_items[0];
    for (uint i = 1u; i < THREADS; i++)
        found = min(found, of_items[i]);
    find_place(&args, &s, &at, found, slots, positions, q_start, count, kv_lens, pages, pages_start);
    const int has_v = (args.flags & ATTUNE_OPENCL_APPEND_V) != 0u;
    const uint all = args.heads + (has_v ? 2u : 1u) * args.kv_heads;
    const uint pairs = args.flags & ATTUNE_OPENCL_APPEND_ROTATES ? args.pairs : 0u;
    for (uint i = index % args.workgroups; i < all; i += args.workgroups) {
        const int is_q = i < args.heads, is_v = !is_q && i - args.heads >= args.kv_heads;
        const uint head = is_q ? i : i - args.heads - (is_v ? args.kv_heads : 0u);
        const uint columns = is_v ? args.columns_v : args.columns_k;
        const uint type = is_q ? args.type : is_v ? args.v_type : args.k_type;
        const int writes = is_q ? at.is_there : at.has_key;
        const attune_opencl_tensor *from = is_q ? &args.q : is_v ? &args.v : &args.k;
        __global const uchar *row = (is_q ? q : is_v ? v : k) + place_in(from, at.batch, head, at.row);
        MEET();
        for (uint c = id; c < columns; c += THREADS)
            values[c] = load_value(args.type, row + (long)(c * bytes_of(args.type)));
        MEET();
        attune_opencl_norm norm = is_q ? args.q_norm : args.k_norm;
        norm.columns = is_v ? 0u : norm.columns;
        add_squares(sums, values, norm.columns);
        for (uint step = LANES / 2u; step > 0u; step /= 2u) {
            MEET();
            for (uint lane = id; lane < step; lane += THREADS)
                sums[lane] += sums[lane + step];
        }
        MEET();
        normalise(values, sums[0], &norm, is_q ? q_norm : k_norm, args.epsilon);
        MEET();
        rotate_pairs(values, &args, at.position, is_v ? 0u : pairs, cosine, sine);
        MEET();
        const uint of_row = is_v ? ATTUNE_OPENCL_APPEND_V_SCALE_ROWS : ATTUNE_OPENCL_APPEND_K_SCALE_ROWS;
        const int computes = !is_q && (args.flags & of_row) != 0u;
        of_items[id] = largest_of(values, computes ? columns : 0u);
        MEET();
        uint largest = of_items[0];
        for (uint j = 1u; j < THREADS; j++)
            largest = max(largest, of_items[j]);
        if (writes) {
            const attune_opencl_array *a = is_v ? &args.cache.v_scale : &args.cache.k_scale;
            const uint has = is_v ? ATTUNE_OPENCL_HAS_V_SCALE : ATTUNE_OPENCL_HAS_K_SCALE;
            __global uchar *scale = is_v ? v_scale : k_scale;
            s.kv_h = is_q ? 0u : head;
            const uint factor = computes ? divide(largest, largest_code(type))
                                         : as_uint(factor_of(&s, scale, a, has, at.key));
            if (computes && id == 0u)
                *(__global uint *)(scale + a->offset + (long)at.key.x * a->stride[0] + (long)head * a->stride[1] +
                                   (long)at.key.y * a->stride[2]) = factor;
            __global uchar *to = is_q   ? q_out + place_in(&args.q_out, at.batch, head, at.row)
                                 : is_v ? cache_v + place_in(&args.cache_v, at.key.x, head, at.key.y)
                                        : cache_k + place_in(&args.cache_k, at.key.x, head, at.key.y);
            write_row(type, to, values, columns, factor);
        }
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Merging, a row to a workgroup: w_i = exp(lse_i - lse), o = sum of w_i o_i; backwards d_o_i = w_i d_o and
 * d_lse_i = w_i (dot(d_o, o_i - o) + d_lse). An LSE of -inf or NaN is recognised by its bits: drivers need not preserve
 * either. A kernel takes the arguments' object and their offset, the launch's first row, the whole's four tensors, then
 * those of each part.
 */
#include "elements.h"
#include "merge.h"

#define WIDTH ATTUNE_OPENCL_MERGE_THREADS
#define PARTS ATTUNE_OPENCL_MERGE_PARTS
#define EMPTY 0xff800000u

#define PART(i) , __global uchar *o_##i, __global uchar *lse_##i, __global uchar *d_o_##i, __global uchar *d_lse_##i
#define PARAMETERS                                                                                                     \
    __global const uchar *arguments, long offset, uint first, __global uchar *o, __global uchar *lse,                  \
        __global uchar *d_o, __global uchar *d_lse PART(0) PART(1) PART(2) PART(3) PART(4) PART(5) PART(6) PART(7)
#define OF_PARTS(name)                                                                                                 \
    __global uchar *const parts_##name[PARTS] = {name##_0, name##_1, name##_2, name##_3,                               \
                                                 name##_4, name##_5, name##_6, name##_7}

typedef struct row_place {
    uint b, h, q;
} row_place;

ATTUNE_FUNCTION row_place place_of(__global const attune_opencl_merge *args, uint row)
{
    /* The first launch has none. */
    const uint q_len = max(args->q_len, 1u), heads = max(args->heads, 1u);
    row_place place;
    place.q = row % q_len;
    place.h = row / q_len % heads;
    place.b = row / q_len / heads;
    return place;
}

ATTUNE_FUNCTION __global uchar *row_of(__global uchar *memory, __global const attune_opencl_merge_view *view,
                                       row_place place)
{
    return memory + view->offset + (long)place.b * view->stride_b + (long)place.h * view->stride_h +
           (long)place.q * view->stride_row;
}

ATTUNE_FUNCTION uint bits_of(__global uchar *memory, __global const attune_opencl_merge_view *view, row_place place)
{
    return *(__global uint *)row_of(memory, view, place);
}

ATTUNE_FUNCTION int is_nan_bits(uint bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
}

ATTUNE_FUNCTION float element_of(__global uchar *memory, __global const attune_opencl_merge_view *view, row_place place,
                                 uint column)
{
    return load_element(view->type, row_of(memory, view, place) + column * bytes_of(view->type));
}

ATTUNE_FUNCTION void set_element(__global uchar *memory, __global const attune_opencl_merge_view *view, row_place place,
                                 uint column, float value)
{
    store_element(view->type, row_of(memory, view, place) + column * bytes_of(view->type), value);
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void attune_merge(PARAMETERS)
{
    __global const attune_opencl_merge *const args = (__global const attune_opencl_merge *)(arguments + offset);
    const row_place place = place_of(args, first + GROUP);
    OF_PARTS(o);
    OF_PARTS(lse);
    float weights[PARTS];
    uint bits[PARTS];
    int nan = 0;
    float m = -2.0e38f, sum = 0.0f;
    for (uint i = 0u; i < args->part_count; i++) {
        bits[i] = args->weighted ? bits_of(parts_lse[i], &args->parts[i].lse, place) : 0u;
        nan = nan || is_nan_bits(bits[i]);
        if (bits[i] != EMPTY)
            m = fmax(m, as_float(bits[i]));
    }
    for (uint i = 0u; i < args->part_count; i++) {
        weights[i] = !args->weighted ? 1.0f : bits[i] == EMPTY ? 0.0f : exp(as_float(bits[i]) - m);
        sum += weights[i];
    }
    if (!args->weighted)
        sum = 1.0f;
    const int empty = is_zero(sum);
    const float factor = empty ? 1.0f : 1.0f / sum;
    for (uint c = (uint)get_local_id(0); c < args->columns; c += WIDTH) {
        float value = 0.0f;
        for (uint i = 0u; i < args->part_count; i++)
            if (!is_zero(weights[i]) || args->strict)
                value += weights[i] * element_of(parts_o[i], &args->parts[i].o, place, c);
        value = empty && !args->partial ? 0.0f : value * factor;
        set_element(o, &args->o, place, c, nan ? ATTUNE_NAN : value);
    }
    /* The LSE may be written over that of a part, which all work-items have read by now. */
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0 && args->lse.present)
        *(__global float *)row_of(lse, &args->lse, place) = nan ? ATTUNE_NAN : empty ? -INFINITY : m + log(sum);
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void attune_merge_backward(PARAMETERS)
{
    __local float sums[WIDTH];
    __global const attune_opencl_merge *const args = (__global const attune_opencl_merge *)(arguments + offset);
    const row_place place = place_of(args, first + GROUP);
    const uint lane = (uint)get_local_id(0);
    OF_PARTS(o);
    OF_PARTS(lse);
    OF_PARTS(d_o);
    OF_PARTS(d_lse);
    const uint all = bits_of(lse, &args->lse, place);
    const float outer = args->d_lse.present ? as_float(bits_of(d_lse, &args->d_lse, place)) : 0.0f;
    for (uint i = 0u; i < args->part_count; i++) {
        __global const attune_opencl_merge_part *const part = &args->parts[i];
        const uint own = bits_of(parts_lse[i], &part->lse, place);
        const int nan = is_nan_bits(all) || is_nan_bits(own);
        const float weight = own == EMPTY || all == EMPTY ? 0.0f : exp(as_float(own) - as_float(all));
        float sum = 0.0f;
        for (uint c = lane; c < args->columns; c += WIDTH) {
            float d = 0.0f;
            if (!is_zero(weight)) {
                d = element_of(d_o, &args->d_o, place, c);
                sum += d * (element_of(parts_o[i], &part->o, place, c) - element_of(o, &args->o, place, c));
            }
            if (part->d_o.present)
                set_element(parts_d_o[i], &part->d_o, place, c, nan ? ATTUNE_NAN : weight * d);
        }
        sums[lane] = sum;
        for (uint step = WIDTH / 2u; step > 0u; step /= 2u) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (lane < step)
                sums[lane] += sums[lane + step];
        }
        if (lane == 0u && part->d_lse.present) {
            const float d = is_zero(weight) ? 0.0f : weight * (sums[0] + outer);
            *(__global float *)row_of(parts_d_lse[i], &part->d_lse, place) = nan ? ATTUNE_NAN : d;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Builds the block lists of a mask that follows a tensor. With CLASSIFY a workgroup classifies one block of the tensor;
 * an element whose bits are `forbidden` forbids its pair. Without, a workgroup has one row of blocks, or one column,
 * and lists the blocks that are not empty in ascending order, `block << 1 | partial`.
 */
#version 460
#extension GL_GOOGLE_include_directive : require

#include "address.glsl"
#include "mask_lists.h"

#define WIDTH 64u

#define SEEN_FORBIDDEN 1u
#define SEEN_ALLOWED   2u
#define PARTIAL        3u /* both */

layout(local_size_x = 64) in;

layout(push_constant) uniform Push{ATTUNE_PUSH_LAUNCH} push;

#ifdef CLASSIFY

shared uint seen_by_all;

/* Whether the first `count` elements of a word forbid or allow. */
uint see_word(const in uint word, const in uint count, const in uint bits, const in uint forbidden)
{
    uint seen = 0u, all = bits == 32u ? 0xffffffffu : (1u << bits) - 1u;
    for (uint i = 0u; i < count; i++)
        seen |= (word >> (i * bits & 31u) & all) == forbidden ? SEEN_FORBIDDEN : SEEN_ALLOWED;
    return seen;
}

void main()
{
    attune_vulkan_mask_lists f = attune_vulkan_mask_lists(push.arguments);
    const uint lane = gl_LocalInvocationID.x;
    const uint index = push.first + gl_WorkGroupID.x;
    const uint column = index % f.kv_blocks, row = index / f.kv_blocks % f.q_blocks;
    const uint plane = index / f.kv_blocks / f.q_blocks;
    const uint q0 = row * f.q_block, kv0 = column * f.kv_block;
    const uint rows = min(f.q_block, f.q_len - q0), columns = min(f.kv_block, f.kv_len - kv0);
    const uint bits = 8u * f.element;
    uvec2 first = address_step(address_step(f.tensor, plane / f.heads, f.stride_b), plane % f.heads, f.stride_h);
    first = address_step(address_step(first, q0, f.stride_q), kv0, f.stride_kv);
    if (lane == 0u)
        seen_by_all = 0u;
    barrier();
    uint seen = 0u;
    /* Whole words where rows are contiguous and begin at one; kv0 is a multiple of 16 elements. */
    const bool words = f.stride_kv == uvec2(f.element, 0u) && ((first.x | f.stride_q.x) & 3u) == 0u;
    const uint in_word = words ? 4u / f.element : 1u, steps = (columns + in_word - 1u) / in_word;
    for (uint i = lane; i < rows * steps; i += WIDTH) {
        const uint q = i / steps, kv = i % steps * in_word;
        const uvec2 at = address_step(address_step(first, q, f.stride_q), kv, f.stride_kv);
        const uint word = Word(uvec2(at.x & ~3u, at.y)).value >> ((at.x & 3u) << 3);
        seen |= see_word(word, min(in_word, columns - kv), bits, f.forbidden);
    }
    atomicOr(seen_by_all, seen);
    barrier();
    if (lane == 0u)
        OutWord(address_add(f.classes, 4u * index)).value = seen_by_all;
}

#else

shared uint taken[WIDTH];

layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer OutMaskRow
{
    attune_vulkan_mask_row value;
};

void main()
{
    attune_vulkan_mask_lists f = attune_vulkan_mask_lists(push.arguments);
    const uint lane = gl_LocalInvocationID.x;
    uint line = push.first + gl_WorkGroupID.x;
    const bool is_row = line < f.row_count;
    line -= is_row ? 0u : f.row_count;
    const uint lines = is_row ? f.q_blocks : f.kv_blocks, count = is_row ? f.kv_blocks : f.q_blocks;
    const uint plane = line / lines, step = is_row ? 1u : f.kv_blocks;
    const uint start = plane * f.q_blocks * f.kv_blocks + line % lines * (is_row ? f.kv_blocks : 1u);
    const uvec2 entries = address_step(is_row ? f.entries : f.column_entries, line, uvec2(4u * count, 0u));
    uint end = 0u;
    for (uint base = 0u; base < count; base += WIDTH) {
        const uint block = base + lane;
        uint seen = 0u;
        if (block < count)
            seen = Word(address_add(f.classes, 4u * (start + block * step))).value;
        const bool has_allowed = (seen & SEEN_ALLOWED) != 0u;
        taken[lane] = has_allowed ? 1u : 0u;
        barrier();
        uint before = 0u, all = 0u;
        for (uint i = 0u; i < WIDTH; i++) {
            all += taken[i];
            before += i < lane ? taken[i] : 0u;
        }
        if (has_allowed)
            OutWord(address_add(entries, 4u * (end + before))).value = block << 1 | (seen == PARTIAL ? 1u : 0u);
        end += all;
        barrier();
    }
    if (lane == 0u) {
        OutMaskRow row = OutMaskRow(address_step(is_row ? f.rows : f.columns, line, uvec2(16u, 0u)));
        row.value = attune_vulkan_mask_row(entries, end, 0u);
    }
}

#endif

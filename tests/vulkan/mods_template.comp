#version 450
/* SPDX-License-Identifier: MIT */
/* Evaluates both functions at a list of points: what tests/vulkan/mods.c runs. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_GOOGLE_include_directive : require
#ifdef VULKAN_MEMORY_MODEL
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
#endif
#extension GL_EXT_control_flow_attributes : require
#ifdef GRADIENT
#include "gradient.glsl"
#else
#include "mods.glsl"
#endif

layout(local_size_x = 64) in;

struct Point { int b, h, q, kv; float score; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Points { Point x[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results { uint x[]; };
layout(push_constant) uniform Arguments { uvec2 points, results, mask, score; uint count; };

#ifdef SERVING
struct Box { int b, q_len, kv_len, h[2], q[2], kv[2], row[2]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Boxes { Box x[]; };

ivec2 interval(const in int ends[2])
{
    return ivec2(ends[0], ends[1]);
}

void main()
{
    uint n = gl_GlobalInvocationID.x;
    if (n >= count)
        return;
    Box p = Boxes(points).x[n];
    ivec2 any = attune_mask_bounds(p.b, interval(p.h), interval(p.q), interval(p.kv), mask, p.q_len, p.kv_len,
                                   interval(p.row));
    bool corner = attune_mask(p.b, p.h[0], p.q[0], p.kv[0], mask, p.q_len, p.kv_len, p.row[0]);
    float same = attune_score(1.0, p.b, p.h[0], p.q[0], p.kv[0], mask, p.q_len, p.kv_len, p.row[0]);
    Results(results).x[2 * n] = uint(any.x);
    Results(results).x[2 * n + 1] = uint(any.y) | (corner ? 2 : 0) | (same == 1.0 ? 4 : 0);
}
#else
void main()
{
    uint n = gl_GlobalInvocationID.x;
    if (n >= count)
        return;
    Point p = Points(points).x[n];
    Results(results).x[2 * n] = attune_mask(p.b, p.h, p.q, p.kv, mask) ? 1 : 0;
    Results(results).x[2 * n + 1] = floatBitsToUint(attune_score(p.score, p.b, p.h, p.q, p.kv, score));
#ifdef GRADIENT
    Results(results).x[2 * n] = floatBitsToUint(attune_d_score(p.score, p.b, p.h, p.q, p.kv, score));
    attune_d_uniform_add(attune_d_uniform(p.score, p.b, p.h, p.q, p.kv, score), p.b, p.h, score);
    attune_d_add(p.score, p.b, p.h, p.q, p.kv, score, 1.0);
#endif
}
#endif

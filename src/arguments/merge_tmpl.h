/* SPDX-License-Identifier: MIT */
/* The arguments of a merge that Vulkan and OpenCL have alike (shaders/merge.h, shaders/opencl/merge.h). Included
 * with the backend's struct MERGE and its function describe, of one tensor. */
#include "backend.h"

static MERGE describe_call(const attune__merge *call)
{
    MERGE a = {
        .o = describe(&call->o),
        .lse = describe(&call->lse),
        .d_o = describe(&call->d_o),
        .d_lse = describe(&call->d_lse),
        .heads = (uint32_t)call->o.size[1],
        .q_len = (uint32_t)call->o.size[2],
        .columns = (uint32_t)call->o.size[3],
        .part_count = call->part_count,
        .weighted = call->parts[0].lse.buffer != NULL,
        .strict = call->strict,
        .partial = call->part,
    };
    for (uint32_t i = 0; i < call->part_count; i++) {
        a.parts[i].o = describe(&call->parts[i].o);
        a.parts[i].lse = describe(&call->parts[i].lse);
        a.parts[i].d_o = describe(&call->parts[i].d_o);
        a.parts[i].d_lse = describe(&call->parts[i].d_lse);
    }
    return a;
}

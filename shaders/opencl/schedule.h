/* SPDX-License-Identifier: MIT */
/* The arguments of schedule.cl, passed by value, for OpenCL C and C. */
#ifndef ATTUNE_OPENCL_SCHEDULE_H
#define ATTUNE_OPENCL_SCHEDULE_H

#include "arguments.h"

typedef struct attune_opencl_schedule {
    attune_opencl_cache cache;
    attune_opencl_parts parts;
    ATTUNE_UINT batch, kv_heads, q_len, kv_len;
    ATTUNE_UINT q_step, q_chunks, head_chunks; /* of the tiles, as in attune_opencl_arguments */
    ATTUNE_UINT block;                         /* keys of a tile */
} attune_opencl_schedule;

#endif

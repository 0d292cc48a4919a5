/* SPDX-License-Identifier: MIT */
/*
 * A probe of a device's subgroups: to[i] is the width of the subgroup of work-item i, or 0 if the items of a subgroup
 * are not neighbours, or its shuffles give other values than they should.
 */
#include "prelude.h"

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attune_subgroups(__global uint *to)
{
    const uint id = (uint)get_local_id(0), width = (uint)get_sub_group_size();
    int right = (uint)get_sub_group_local_id() == id % width;
    for (uint step = 1u; step < width; step *= 2u)
        right &= sub_group_shuffle_xor((float)id, step) == (float)(id ^ step);
    to[id] = right ? width : 0u;
}

/* SPDX-License-Identifier: MIT */
/* Shared by the families of Vulkan and OpenCL, whose kernels are in shaders/: the workspace, on which planner and calls
 * must agree, and the kernels that both have. */
#ifndef ATTUNE_PLAN_FAMILY_SHADERS_H
#define ATTUNE_PLAN_FAMILY_SHADERS_H

#include "plan/family.h"

/* The arguments of a launch, after the partial results. */
#define ATTUNE__SHADERS_ARGUMENTS UINT64_C(4096)
/* Over a cache the keys of a tile are divided into parts where that is worth it, by a schedule that the device computes
 * (shaders/serving.h). Partial results, their row maxima and sums, and the schedule are before the arguments, each
 * rounded up to 256 bytes. */
typedef struct attune__shaders_parts {
    uint32_t wanted; /* items of a call, at least, if it has the keys */
    uint32_t slots;  /* partial results at most; 0 = a tile has all of its keys, and there is no schedule */
    uint32_t items;  /* tiles and parts at most */
    uint32_t merges; /* tiles in parts at most */
    bool shares;     /* an item may have rows of several sequences */
    uint64_t partials, partials_ml, schedule; /* bytes */
} attune__shaders_parts;
/* Shorter parts would be mostly the reading of Q and the merge: as in shaders/serving.h. */
#define ATTUNE__SHADERS_PART_KEYS 256
attune__shaders_parts attune__shaders_parts_make(const attune__shape *shape, const attune_limits *limits,
                                                 uint32_t block_m);
/* In backward they are after float delta[batch][heads][q_len] and ATTUNE__SHADERS_SUM bytes for each element of a
 * capture whose gradient may be requested, each rounded up to 256. */
#define ATTUNE__SHADERS_SUM UINT64_C(64)
typedef struct attune__shaders_workspace {
    uint64_t sums, arguments, size; /* delta is at 0 */
} attune__shaders_workspace;
attune__shaders_workspace attune__shaders_backward_workspace(const attune__shape *shape);

/* The options that forward kernels read besides their tiles, and the workspace of all families. */
#define ATTUNE__SHADERS_LOOP ATTUNE__BIT(ATTUNE__PRESCALE_QK)
uint64_t attune__shaders_workspace_bytes(const attune__search *search, const attune__tile *tile,
                                         const attune__cost *cost, uint32_t split);

/* Of a subgroup. */
static inline uint32_t attune__shaders_lanes(const attune_limits *limits)
{
    return limits->subgroup_size ? limits->subgroup_size : 1;
}

/* Of the portable kernel: ATTUNE__FORWARD_COLUMNS, ATTUNE__FORWARD_ONE_HALF or 0. */
uint32_t attune__shaders_form(const attune_limits *limits, const attune__shape *shape);

/* The portable kernel and that of subgroups, which both have. */
const attune__tile *attune__shaders_tiles(const attune__search *search, uint32_t *count);
void attune__shaders_portable_clamp(const attune__search *search, attune__tile *tile);
const char *attune__shaders_portable_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option);
attune__cost attune__shaders_portable_cost(const attune__search *search, const attune__tile *tile);
void attune__shaders_subgroup_clamp(const attune__search *search, attune__tile *tile);
const char *attune__shaders_subgroup_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option);
attune__cost attune__shaders_subgroup_cost(const attune__search *search, const attune__tile *tile);

/* Kernels of few rows, for decode and calls over a cache: tiles, and why a problem and the numbers of a tile are none
 * for them. */
const attune__tile *attune__shaders_few_rows_tiles(const attune__search *search, uint32_t *count);
const char *attune__shaders_few_rows_problem(const attune__search *search);
const char *attune__shaders_few_rows_reject(const attune__search *search, const attune__tile *tile,
                                            attune__option *option);

/* The backward pass without matrix units: tiles, why a workgroup cannot have one, bytes of the larger kernel. */
const attune__tile *attune__shaders_backward_tiles(const attune__search *search, uint32_t *count);
const char *attune__shaders_backward_reject(const attune__search *search, const attune__tile *tile, uint32_t threads,
                                            attune__option *option);
uint64_t attune__shaders_backward_shared(const attune__search *search, const attune__tile *tile, uint32_t threads);

#endif

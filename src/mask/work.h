/* SPDX-License-Identifier: MIT */
/* Work that is counted, told of and stopped. */
#ifndef ATTUNE_MASK_WORK_H
#define ATTUNE_MASK_WORK_H

#include <attune/attune.h>

/* Units between two looks at the caller's wishes: some milliseconds. What is done at once is cut to as many. */
#define ATTUNE__WORK_STEP ((uint64_t)1 << 19)

/* A unit is what attune_mask_desc.max_work counts in. Zero but for `name` = neither told nor stopped. */
typedef struct attune__work {
    const char *name;    /* of the caller's struct, for messages */
    uint64_t done, next; /* next: when to look at the rest of this */
    uint64_t most;       /* 0 = no limit */
    attune_progress_fn progress;
    void *user;
    double share; /* of the blocks that are decided */
    attune_status status;
} attune__work;

/* Counts work before it is done. Not ATTUNE_OK: stop, for this reason, which is the work's status too. work may be
 * NULL. */
attune_status attune__work_add(attune__work *work, uint64_t units);

static inline bool attune__work_stopped(const attune__work *work)
{
    return work && work->status != ATTUNE_OK;
}

/* The share never falls, also where a second way begins after the first has failed. */
static inline void attune__work_share(attune__work *work, double share)
{
    if (work && share > work->share)
        work->share = share;
}

#endif

/* SPDX-License-Identifier: MIT */
/* Counts work units, reports progress, and stops at a limit. */
#ifndef ATTUNE_MASK_WORK_H
#define ATTUNE_MASK_WORK_H

#include <attune/attune.h>

/* Units between two calls of the progress callback: a few milliseconds. Larger steps are split. */
#define ATTUNE__WORK_STEP ((uint64_t)1 << 19)

/* Units are those of attune_mask_desc.max_work. Zero except for `name` = no callback and no limit. */
typedef struct attune__work {
    const char *name;    /* of the caller's struct, for messages */
    uint64_t done, next; /* next: when the callback and the limit are checked */
    uint64_t most;       /* 0 = no limit */
    attune_progress_fn progress;
    void *user;
    double share; /* of the blocks that are classified */
    attune_status status;
} attune__work;

/* Calls the callback and checks the limit. */
attune_status attune__work_check(attune__work *work);

/* Counts work before it is done. If not ATTUNE_OK, the caller stops with this status, which is also the work's. work
 * may be NULL. */
static inline attune_status attune__work_add(attune__work *work, uint64_t units)
{
    if (!work)
        return ATTUNE_OK;
    work->done += units;
    return work->done < work->next ? ATTUNE_OK : attune__work_check(work);
}

static inline bool attune__work_stopped(const attune__work *work)
{
    return work && work->status != ATTUNE_OK;
}

/* The share never decreases, even if a second method begins after the first has failed. */
static inline void attune__work_share(attune__work *work, double share)
{
    if (work && share > work->share)
        work->share = share;
}

#endif

/* SPDX-License-Identifier: MIT */
#include "mask/work.h"

#include "base/error.h"

attune_status attune__work_check(attune__work *work)
{
    if (work->status != ATTUNE_OK)
        return work->status;
    if (work->most && work->done > work->most)
        work->status = attune__fail(ATTUNE_CANCELLED,
                                    "the mask needs more work than %s.max_work allows, %llu units, with %.0f %% of its "
                                    "blocks decided: raise it, or simplify the expression",
                                    work->name, (unsigned long long)work->most, 100 * work->share);
    else if (work->progress && work->progress(work->user, work->share))
        work->status = attune__fail(ATTUNE_CANCELLED, "%s.progress stopped the mask with %.0f %% of its blocks decided",
                                    work->name, 100 * work->share);
    if (work->status != ATTUNE_OK)
        work->next = 0; /* stopped for good */
    else
        work->next =
            work->most && work->most - work->done < ATTUNE__WORK_STEP ? work->most + 1 : work->done + ATTUNE__WORK_STEP;
    return work->status;
}

/* SPDX-License-Identifier: MIT */
/*
 * cp.async: a thread's copies are complete once it has waited for their commit group, and visible to it
 * alone then; others need a barrier. Until then they may have happened or not: each is done at once or at the wait.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/model/model.h"

static void copy(pending_copy *c)
{
    unsigned char *to = model_shared_bytes(model_cta, c->to, c->size, c->pc);
    memset(to, 0, c->size);
    memcpy(to, c->from, c->valid);
    c->done = true;
}

void model_copy_async(uint32_t to, const void *from, uint32_t size, uint32_t valid)
{
    void *pc = __builtin_return_address(0);
    thread *me = model_now;
    if ((uintptr_t)from % size && valid)
        model_report(pc, "cp.async of %u bytes from %p, which is no multiple", size, from);
    if (valid)
        model_check_global(from, valid, false, pc);
    model_copying(to, size, true, pc);
    if (me->copy_count == me->copy_space) {
        me->copy_space = 2 * me->copy_space + 64;
        me->copies = realloc(me->copies, me->copy_space * sizeof *me->copies);
        if (!me->copies)
            abort();
    }
    pending_copy *c = &me->copies[me->copy_count++];
    *c = (pending_copy){.to = to, .size = size, .valid = valid, .from = from, .pc = pc, .group = me->groups};
    if (model_random() & 1)
        copy(c);
}

void model_copy_commit(void)
{
    model_now->groups++;
}

/* Completes what was committed in groups before `end`. */
static void complete(thread *t, uint64_t end)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->copy_count; i++) {
        pending_copy *c = &t->copies[i];
        if (c->group >= end) {
            t->copies[kept++] = *c;
            continue;
        }
        if (!c->done)
            copy(c);
        model_copying(c->to, c->size, false, c->pc);
    }
    t->copy_count = kept;
}

/* cp.async.wait_group: all but the last `pending` groups. */
void model_copy_wait(int pending)
{
    thread *me = model_now;
    if (me->groups > (uint64_t)pending)
        complete(me, me->groups - (uint64_t)pending);
}

/* Copies in flight when a thread ends still complete. */
void model_copies_end(thread *t)
{
    complete(t, UINT64_MAX);
}

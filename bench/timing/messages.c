/* SPDX-License-Identifier: MIT */
#include "bench/timing/messages.h"

#include <stdlib.h>
#include <string.h>

static attune_status note(messages *m, const attune_message *sends, uint32_t send_count, const attune_message *receives,
                          uint32_t receive_count, bool lent)
{
    const size_t count = (size_t)send_count + receive_count;
    messages_exchange *more = realloc(m->exchanges, (m->count + 1) * sizeof *more);
    if (!more)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    m->exchanges = more;
    messages_exchange *e = &more[m->count];
    *e = (messages_exchange){.items = calloc(count ? count : 1, sizeof *e->items)};
    if (!e->items)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    e->sends = send_count;
    e->lent = lent;
    e->receives = receive_count;
    m->count++;
    for (uint32_t i = 0; i < send_count; i++)
        e->items[i] = sends[i];
    for (uint32_t i = 0; i < receive_count; i++) {
        e->items[send_count + i] = receives[i];
        m->received += receives[i].size;
    }
    return ATTUNE_OK;
}

static attune_status gather(void *user, const void *mine, void *all, size_t size)
{
    const messages *m = user;
    return m->below.gather(m->below.user, mine, all, size);
}

static attune_status exchange(void *user, const attune_message *sends, uint32_t send_count,
                              const attune_message *receives, uint32_t receive_count, attune_queue *queue)
{
    messages *m = user;
    if (m->mode == MESSAGES_LEFT) {
        m->left++;
        return ATTUNE_OK;
    }
    const attune_status status =
        m->mode == MESSAGES_NOTED ? note(m, sends, send_count, receives, receive_count, false) : ATTUNE_OK;
    return status == ATTUNE_OK ? m->below.exchange(m->below.user, sends, send_count, receives, receive_count, queue)
                               : status;
}

/* The memory that was lent when the messages were noted, which is the same in every call. */
static attune_status leave_loan(messages *m, attune_message *receives, uint32_t receive_count)
{
    const messages_exchange *e = m->count ? &m->exchanges[m->left++ % m->count] : NULL;
    if (!e || e->receives != receive_count)
        return ATTUNE_INTERNAL;
    for (uint32_t i = 0; i < receive_count; i++)
        receives[i] = e->items[e->sends + i];
    return ATTUNE_OK;
}

static attune_status lend(void *user, const attune_message *sends, uint32_t send_count, attune_message *receives,
                          uint32_t receive_count, attune_queue *queue)
{
    messages *m = user;
    if (m->mode == MESSAGES_LEFT)
        return leave_loan(m, receives, receive_count);
    const attune_status status = m->below.lend(m->below.user, sends, send_count, receives, receive_count, queue);
    return status == ATTUNE_OK && m->mode == MESSAGES_NOTED ? note(m, sends, send_count, receives, receive_count, true)
                                                            : status;
}

static void reclaim(void *user)
{
    const messages *m = user;
    m->below.reclaim(m->below.user);
}

static attune_status finish(void *user, attune_queue *queue)
{
    const messages *m = user;
    return m->mode == MESSAGES_LEFT || !m->below.finish ? ATTUNE_OK : m->below.finish(m->below.user, queue);
}

static void abort_all(void *user)
{
    const messages *m = user;
    m->below.abort(m->below.user);
}

attune_transport messages_transport(messages *m, const attune_transport *below)
{
    *m = (messages){.below = *below};
    attune_transport made = *below;
    made.user = m;
    made.gather = gather;
    made.exchange = exchange;
    made.finish = finish;
    made.abort = abort_all;
    made.lend = below->lend ? lend : NULL;
    made.reclaim = below->reclaim ? reclaim : NULL;
    return made;
}

attune_status messages_send(const messages *m, attune_queue *queue)
{
    const attune_transport *t = &m->below;
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < m->count && status == ATTUNE_OK; i++) {
        const messages_exchange *e = &m->exchanges[i];
        status = e->lent ? t->lend(t->user, e->items, e->sends, e->items + e->sends, e->receives, queue)
                         : t->exchange(t->user, e->items, e->sends, e->items + e->sends, e->receives, queue);
        if (status == ATTUNE_OK && t->finish)
            status = t->finish(t->user, queue);
    }
    return status;
}

void messages_free(messages *m)
{
    for (uint32_t i = 0; i < m->count; i++)
        free(m->exchanges[i].items);
    free(m->exchanges);
    *m = (messages){.count = 0};
}

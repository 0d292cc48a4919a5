/* SPDX-License-Identifier: MIT */
#include "cuda/fake_nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { UINT8 = 1 };

fake_nccl_state fake_nccl = {.version = 22800};

typedef struct message {
    struct message *next;
    int from, to;
    size_t size;
    unsigned char bytes[];
} message;

/* A message of a group, until the group ends. */
typedef struct entry {
    bool receive;
    void *data;
    size_t size;
    int me, peer;
} entry;

#define MOST_ENTRIES 4096
static _Thread_local entry entries[MOST_ENTRIES];
static _Thread_local int entry_count;
static _Thread_local bool in_group;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static message *first, **last = &first;
static bool aborted; /* ncclCommAbort: calls in flight and later ones fail */

static int call(char letter)
{
    pthread_mutex_lock(&lock);
    const int at = fake_nccl.calls++;
    if (at < FAKE_NCCL_CALLS)
        fake_nccl.log[at] = letter;
    const bool fails = fake_nccl.calls == fake_nccl.fail_at;
    pthread_mutex_unlock(&lock);
    return fails ? INTERNAL_ERROR : SUCCESS;
}

static void deliver(int from, int to, const void *data, size_t size)
{
    message *m = malloc(sizeof *m + size);
    if (!m)
        abort();
    *m = (message){.from = from, .to = to, .size = size};
    memcpy(m->bytes, data, size);
    pthread_mutex_lock(&lock);
    *last = m;
    last = &m->next;
    fake_nccl.waiting++;
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&lock);
}

/* The first message between two ranks, once it is there; NULL after an abort. */
static message *take(int from, int to)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        message **at = &first;
        while (*at && ((*at)->from != from || (*at)->to != to))
            at = &(*at)->next;
        message *found = *at;
        if (!found && aborted) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        if (!found) {
            pthread_cond_wait(&arrived, &lock);
            continue;
        }
        *at = found->next;
        if (!found->next)
            last = at;
        fake_nccl.waiting--;
        pthread_mutex_unlock(&lock);
        return found;
    }
}

static int receive(int from, int to, void *data, size_t size)
{
    message *m = take(from, to);
    if (!m)
        return INTERNAL_ERROR;
    const bool fits = m->size == size;
    if (fits)
        memcpy(data, m->bytes, size);
    free(m);
    return fits ? SUCCESS : INVALID_USAGE;
}

int ncclCommInitAll(fake_nccl_comm **comms, int count, const int *devices)
{
    (void)devices;
    for (int r = 0; r < count; r++) {
        comms[r] = malloc(sizeof *comms[r]);
        if (!comms[r])
            abort();
        *comms[r] = (fake_nccl_comm){r, count};
    }
    return SUCCESS;
}

int ncclCommDestroy(fake_nccl_comm *comm)
{
    free(comm);
    return SUCCESS;
}

/* The memory is not freed: other threads may be in calls with it. */
int ncclCommAbort(fake_nccl_comm *comm)
{
    (void)comm;
    pthread_mutex_lock(&lock);
    aborted = true;
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclGetVersion(int *version)
{
    *version = fake_nccl.version;
    return SUCCESS;
}
int ncclCommCount(const fake_nccl_comm *comm, int *count)
{
    *count = comm->size;
    return SUCCESS;
}
int ncclCommUserRank(const fake_nccl_comm *comm, int *rank)
{
    *rank = comm->rank;
    return SUCCESS;
}
int ncclCommGetAsyncError(const fake_nccl_comm *comm, int *error)
{
    (void)comm;
    pthread_mutex_lock(&lock);
    *error = fake_nccl.in_progress > 0 ? (fake_nccl.in_progress--, IN_PROGRESS) : fake_nccl.async_error;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclGroupStart(void)
{
    const int result = call('(');
    if (result != SUCCESS)
        return result;
    if (in_group)
        return INVALID_USAGE;
    in_group = true;
    entry_count = 0;
    pthread_mutex_lock(&lock);
    fake_nccl.open++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static int add(const fake_nccl_comm *comm, bool is_receive, void *data, size_t size, int type, int peer,
               const void *stream)
{
    const int result = call(is_receive ? 'r' : 's');
    if (result != SUCCESS)
        return result;
    if (!in_group || peer == comm->rank || peer < 0 || peer >= comm->size || entry_count == MOST_ENTRIES)
        return INVALID_USAGE;
    if (type != UINT8 || !data || !size || !stream)
        return INVALID_ARGUMENT;
    entries[entry_count++] = (entry){is_receive, data, size, comm->rank, peer};
    return SUCCESS;
}

int ncclSend(const void *data, size_t size, int type, int peer, const fake_nccl_comm *comm, const void *stream)
{
    return add(comm, false, (void *)(size_t)data, size, type, peer, stream);
}
int ncclRecv(void *data, size_t size, int type, int peer, const fake_nccl_comm *comm, const void *stream)
{
    return add(comm, true, data, size, type, peer, stream);
}

int ncclGroupEnd(void)
{
    const int result = call(')');
    if (!in_group)
        return INVALID_USAGE;
    in_group = false;
    pthread_mutex_lock(&lock);
    fake_nccl.open--;
    const bool later = fake_nccl.in_progress > 0;
    pthread_mutex_unlock(&lock);
    if (result != SUCCESS)
        return result;
    for (int i = 0; i < entry_count; i++)
        if (!entries[i].receive)
            deliver(entries[i].me, entries[i].peer, entries[i].data, entries[i].size);
    int received = SUCCESS;
    for (int i = 0; i < entry_count && received == SUCCESS; i++)
        if (entries[i].receive)
            received = receive(entries[i].peer, entries[i].me, entries[i].data, entries[i].size);
    return received == SUCCESS && later ? IN_PROGRESS : received;
}

int ncclAllGather(const void *mine, void *all, size_t size, int type, const fake_nccl_comm *comm, const void *stream)
{
    const int result = call('g');
    if (result != SUCCESS)
        return result;
    if (in_group || type != UINT8 || !stream)
        return INVALID_USAGE;
    int received = SUCCESS;
    memcpy((char *)all + (size_t)comm->rank * size, mine, size);
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            deliver(comm->rank, r, mine, size);
    for (int r = 0; r < comm->size && received == SUCCESS; r++)
        if (r != comm->rank)
            received = receive(r, comm->rank, (char *)all + (size_t)r * size, size);
    return received;
}

/* SPDX-License-Identifier: MIT */
/* Threads, mutexes and conditions: POSIX's, or Windows' own. Windows differs here alone. None of them can fail once
 * made. */
#ifndef ATTUNE_BASE_THREAD_H
#define ATTUNE_BASE_THREAD_H

#include <stdbool.h>
#include <stddef.h>

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <float.h>
#include <windows.h>

typedef SRWLOCK attune__mutex;
typedef CONDITION_VARIABLE attune__condition;

typedef struct attune__thread {
    HANDLE handle;
    void *(*run)(void *user);
    void *user;
} attune__thread;

#define attune__mutex_init(mutex)        InitializeSRWLock(mutex)
#define attune__mutex_destroy(mutex)     ((void)(mutex))
#define attune__mutex_lock(mutex)        AcquireSRWLockExclusive(mutex)
#define attune__mutex_unlock(mutex)      ReleaseSRWLockExclusive(mutex)
#define attune__condition_init(c)        InitializeConditionVariable(c)
#define attune__condition_destroy(c)     ((void)(c))
#define attune__condition_signal(c)      WakeConditionVariable(c)
#define attune__condition_broadcast(c)   WakeAllConditionVariable(c)
#define attune__condition_wait(c, mutex) ((void)SleepConditionVariableSRW(c, mutex, INFINITE, 0))

static inline DWORD WINAPI attune__thread_begin(LPVOID user)
{
    attune__thread *thread = user;
#ifdef __MINGW32__
    /* MinGW's double functions use the x87, whose precision a thread of Windows begins with is not the main thread's:
     * f64 results would depend on the thread. */
    _fpreset();
#endif
    thread->run(thread->user);
    return 0;
}

/* The thread reads *thread, which must stay until it is joined. */
static inline bool attune__thread_create(attune__thread *thread, void *(*run)(void *user), void *user)
{
    thread->run = run;
    thread->user = user;
    thread->handle = CreateThread(NULL, 0, attune__thread_begin, thread, 0, NULL);
    return thread->handle != NULL;
}

static inline void attune__thread_join(attune__thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

#else

#include <pthread.h>

typedef pthread_mutex_t attune__mutex;
typedef pthread_cond_t attune__condition;
typedef pthread_t attune__thread;

#define attune__mutex_init(mutex)        ((void)pthread_mutex_init(mutex, NULL))
#define attune__mutex_destroy(mutex)     ((void)pthread_mutex_destroy(mutex))
#define attune__mutex_lock(mutex)        ((void)pthread_mutex_lock(mutex))
#define attune__mutex_unlock(mutex)      ((void)pthread_mutex_unlock(mutex))
#define attune__condition_init(c)        ((void)pthread_cond_init(c, NULL))
#define attune__condition_destroy(c)     ((void)pthread_cond_destroy(c))
#define attune__condition_signal(c)      ((void)pthread_cond_signal(c))
#define attune__condition_broadcast(c)   ((void)pthread_cond_broadcast(c))
#define attune__condition_wait(c, mutex) ((void)pthread_cond_wait(c, mutex))

/* *thread must stay until it is joined. */
static inline bool attune__thread_create(attune__thread *thread, void *(*run)(void *user), void *user)
{
    return !pthread_create(thread, NULL, run, user);
}

static inline void attune__thread_join(attune__thread *thread)
{
    (void)pthread_join(*thread, NULL);
}

#endif

#endif

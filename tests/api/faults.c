/* SPDX-License-Identifier: MIT */
/* Faults: every allocation failed once, fork, threads, repeats. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/flow.h"
#include "support/devices.h"
#include "support/heap.h"

Test(faults, every_allocation_fails_in_turn)
{
    static flow f;
    static float o[FLOW_ELEMENTS];
    heap h = {0};
    long long failures = 0;
    for (h.fail_at = 1;; h.fail_at++) {
        atomic_store(&h.allocations, 0);
        const attune_instance_desc desc = {
            .struct_size = sizeof desc, .cpu_threads = 2, .allocator = heap_allocator(&h)};
        attune_status status = flow_create(&f, &desc);
        if (status == ATTUNE_OK)
            status = flow_run(&f, o);
        flow_destroy(&f);
        cr_assert_eq(atomic_load(&h.live), 0, "failing allocation %lld leaks %lld", h.fail_at,
                     (long long)atomic_load(&h.live));
        if (h.fail_at > atomic_load(&h.allocations)) {
            cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
            break;
        }
        failures++;
        cr_assert(status == ATTUNE_OK || status == ATTUNE_OUT_OF_HOST_MEMORY || status == ATTUNE_OUT_OF_DEVICE_MEMORY,
                  "allocation %lld: %s, %s", h.fail_at, attune_status_string(status), attune_last_error());
    }
    cr_log_info("%lld allocations failed, one a run", failures);
    cr_assert_gt(failures, 10);
}

Test(faults, the_hot_call_allocates_nothing)
{
    static flow f;
    heap h = {0};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .allocator = heap_allocator(&h)};
    cr_assert_eq(flow_create(&f, &desc), ATTUNE_OK, "%s", attune_last_error());
    long long before = atomic_load(&h.allocations);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert_eq(atomic_load(&h.allocations), before);
    flow_destroy(&f);
}

Test(faults, repeats_are_bitwise_equal)
{
    static flow f;
    static float first[FLOW_ELEMENTS], again[FLOW_ELEMENTS];
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_run(&f, first), ATTUNE_OK);
    for (int i = 0; i < 250; i++) {
        cr_assert_eq(flow_run(&f, again), ATTUNE_OK);
        cr_assert_eq(memcmp(first, again, sizeof first), 0, "repeat %d differs", i);
    }
    flow_destroy(&f);
}

Test(faults, a_device_does_not_survive_fork)
{
    static flow f;
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    pid_t child = fork();
    if (child == 0) {
        bool said = flow_run(&f, NULL) == ATTUNE_UNAVAILABLE && strstr(attune_last_error(), "before fork");
        flow_destroy(&f);
        _exit(said ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    flow_destroy(&f);
}

/* Threads that share a device and a plan, each with its own output and workspace. */
typedef struct worker {
    flow *shared;
    attune_buffer *o, *workspace;
    const float *expected;
    attune_status status;
    bool equal;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    flow mine = *w->shared;
    static _Thread_local float o[FLOW_ELEMENTS];
    mine.o = mine.args.o.buffer = w->o;
    mine.args.workspace = w->workspace;
    mine.args.captures = mine.captures;
    mine.args.parameters = mine.parameters;
    mine.args.lse.buffer = NULL;
    w->equal = true;
    for (uint64_t i = 0; i < scaled(50) && w->status == ATTUNE_OK; i++) {
        w->status = flow_run(&mine, o);
        w->equal &= !memcmp(o, w->expected, sizeof o);
    }
    return NULL;
}

Test(faults, threads_share_a_plan)
{
    static flow f;
    static float expected[FLOW_ELEMENTS];
    cr_assert_eq(flow_create(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_run(&f, expected), ATTUNE_OK);
    enum { THREADS = 6 };
    worker workers[THREADS] = {{0}};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i].shared = &f;
        workers[i].expected = expected;
        cr_assert_eq(attune_buffer_create(f.device, FLOW_ELEMENTS * sizeof(float), &workers[i].o), ATTUNE_OK);
        if (f.workspace)
            cr_assert_eq(attune_buffer_create(f.device, attune_plan_workspace_size(f.plan), &workers[i].workspace),
                         ATTUNE_OK);
        cr_assert_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(workers[i].status, ATTUNE_OK);
        cr_assert(workers[i].equal, "thread %d differs", i);
        attune_buffer_destroy(workers[i].o);
        attune_buffer_destroy(workers[i].workspace);
    }
    flow_destroy(&f);
}

/* Two instances in two threads share nothing. */
static void *whole_flow(void *result)
{
    static _Thread_local flow f;
    for (uint64_t i = 0; i < scaled(20); i++) {
        if (flow_create(&f, NULL) != ATTUNE_OK || flow_run(&f, NULL) != ATTUNE_OK)
            *(bool *)result = false;
        flow_destroy(&f);
    }
    return NULL;
}

Test(faults, instances_are_independent)
{
    pthread_t threads[2];
    bool ok[2] = {true, true};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, whole_flow, &ok[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert(ok[0] && ok[1]);
}

static void remember(void *user, attune_log_level level, const char *message)
{
    (void)level;
    strncpy(user, message, 255);
}

Test(faults, the_last_error_is_the_threads_own)
{
    attune_instance *instance;
    char logged[256] = "";
    const attune_instance_desc desc = {.struct_size = sizeof desc, .log = remember, .log_user = logged};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    attune_device *device;
    cr_assert_eq(attune_device_open(instance, "nothing", &device), ATTUNE_INVALID_ARGUMENT);
    char mine[256];
    strncpy(mine, attune_last_error(), sizeof mine - 1);
    mine[255] = '\0';
    pthread_t thread;
    bool ok = true;
    cr_assert_eq(pthread_create(&thread, NULL, whole_flow, &ok), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(attune_last_error(), mine);
    attune_instance_destroy(instance);
}

/* SPDX-License-Identifier: MIT */
/* An engine that runs the CPU's loops: the same bits, and no thread of attune's. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <string.h>

#include "api/flow.h"

#define MAKE(call) cr_assert_eq((call), ATTUNE_OK, "%s", attune_last_error())

enum { INDICES = 4 };

typedef struct loops {
    uint32_t calls, most;
    unsigned runs[INDICES];
} loops;

/* From the last index to the first, on the thread that called attune. */
static void run_backwards(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context)
{
    loops *l = user;
    l->calls++;
    l->most = count > l->most ? count : l->most;
    while (count-- > 0) {
        l->runs[count]++;
        body(context, count);
    }
}

static int threads_of_this_process(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

Test(threads, the_engine_runs_the_loops_of_the_cpu)
{
    static flow own, engines;
    static float expected[FLOW_ELEMENTS], o[FLOW_ELEMENTS];
    loops l = {0};
    const attune_instance_desc one = {.struct_size = sizeof one, .cpu_threads = 1};
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = INDICES, .parallel_for = {run_backwards, &l}};
    MAKE(flow_create(&own, &one));
    MAKE(flow_run(&own, expected));
    const int before = threads_of_this_process();
    MAKE(flow_create(&engines, &desc));
    cr_assert_eq(threads_of_this_process(), before, "the device started threads");
    MAKE(flow_run(&engines, o));
    cr_assert_eq(memcmp(o, expected, sizeof o), 0, "other bits than one thread gives");
    cr_assert(l.calls > 0 && l.most == INDICES, "%u loops of at most %u", l.calls, l.most);
    for (int i = 0; i < INDICES; i++)
        cr_assert_gt(l.runs[i], 0);
    attune_device_info info = {.struct_size = sizeof info};
    MAKE(attune_device_info_get(engines.device, &info));
    cr_assert_eq(info.limits.compute_units, INDICES);
    flow_destroy(&engines);
    flow_destroy(&own);
}

/* A struct of a caller that was compiled before the field was there. */
Test(threads, an_older_caller_has_none)
{
    attune_instance_desc desc = {.struct_size = offsetof(attune_instance_desc, parallel_for), .cpu_threads = 2};
    static flow f;
    desc.parallel_for.run = run_backwards; /* past the struct_size that the caller gives */
    MAKE(flow_create(&f, &desc));
    MAKE(flow_run(&f, NULL));
    flow_destroy(&f);
}

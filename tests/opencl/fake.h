/* SPDX-License-Identifier: MIT */
/* An OpenCL loader with devices that compute nothing: every command is done when it is enqueued. */
#ifndef TESTS_OPENCL_FAKE_H
#define TESTS_OPENCL_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_CALLS 1024

typedef struct fake_state {
    /* The numbers of platforms, and of devices of the first one. */
    uint32_t platforms, devices;
    /* Calls are counted from 1, without releases; call fail_at gives fail_with. 0 = none fails. */
    int calls, fail_at, fail_with;
    const char *names[FAKE_CALLS];
    int live; /* references to objects */
    /* Programs made from source and from binaries; whether builds fail. */
    int sources, binaries;
    int binaries_read;
    bool binaries_are_empty; /* a program from a binary has no kernel */
    bool build_fails;
    /* Work-items that a built kernel has; 0 = as many as the device. The device has fewer after that. */
    uint32_t kernel_group;
    /* Counts of commands. */
    int launches, unchained, interleaved;
    int wide; /* launches with several workgroups in their first dimension */
    uint64_t groups;
    _Atomic int32_t event_status; /* of all events; 0 = complete */
    bool unified;
    bool subgroups;                             /* they are named, but no kernel computes: a probe finds zeros */
    uint64_t most_bytes;                        /* of a memory object */
    const char *platform_name, *driver_version; /* NULL = its own */
    /* A queue of the caller. */
    bool out_of_order;
} fake_state;

#endif

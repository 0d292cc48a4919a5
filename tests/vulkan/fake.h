/* SPDX-License-Identifier: MIT */
/*
 * A layer between attune and the driver that fails on demand. Its settings are the process's: every Criterion test has
 * one of its own.
 */
#ifndef TESTS_VULKAN_FAKE_H
#define TESTS_VULKAN_FAKE_H

#include <stdatomic.h>

#include "api/api.h"
#include "vulkan/vulkan.h"

typedef struct fake_settings {
    bool no_device_address, no_timeline; /* features that the driver denies */
    bool no_memory;                      /* vkAllocateMemory: OUT_OF_DEVICE_MEMORY */
    bool lose_submit, lose_wait;         /* vkQueueSubmit, vkWaitSemaphores: DEVICE_LOST */
    bool old;                            /* the device has Vulkan 1.1 */
    bool no_list;                        /* vkEnumeratePhysicalDevices: INITIALIZATION_FAILED */
    bool twice;                          /* the loader lists every device twice */
    int denials;                         /* looks at features that find no device address, the first ones */
    bool one_instance;                   /* all instances are one: drivers have few of them in a process */
    long fail_at;                        /* the object creation that fails, from 1; 0 = none */
    VkResult fail_code;
    atomic_long created; /* object creations so far */
    int meet;            /* vkCreateComputePipelines: waits until so many have begun; 0 = does not wait */
    atomic_int met;      /* that have begun */
    atomic_int alone;    /* that waited in vain, ten seconds */
    /* A driver that keeps what it compiled: its data are its header and `kept` more bytes. */
    uint32_t driver;         /* added to the driver's version */
    size_t kept;             /* 0 = the driver's own data */
    bool foreign;            /* data have another vendor's header */
    bool refuse_kept;        /* no pipeline is made from data */
    bool no_cache;           /* vkCreatePipelineCache: OUT_OF_HOST_MEMORY */
    atomic_int empty, given; /* caches made without and with data */
    atomic_int wrong;        /* with data that are not what the driver gave */
} fake_settings;

extern fake_settings fake;

/* Ends one_instance. */
void fake_instance_destroy(void);

/* The layer's vkGetInstanceProcAddr; skips the test if there is no loader. */
PFN_vkGetInstanceProcAddr fake_get(void);

/* Opens the index-th device, with the overrides, as attune_device_open would. */
attune_status open_with(attune_instance *instance, const attune__vulkan_overrides *overrides, attune_device **device);

/* Skips unless there is a device of ours to test with. */
attune_device *vulkan_or_skip(attune_instance *instance, bool staging_only);

#endif

/* SPDX-License-Identifier: MIT */
/* Devices that are not there, that lack something, and that fail. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/devices.h"
#include "support/heap.h"
#include "vulkan/fake.h"

static attune_instance *instance_or_fail(void)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK, "%s", attune_last_error());
    return instance;
}

/* A write and a read: it works. */
static attune_status exercise(attune_device *device)
{
    attune_buffer *buffer = NULL;
    uint32_t in[64], out[64] = {0};
    for (uint32_t i = 0; i < 64; i++)
        in[i] = i * 2654435761u;
    attune_status status = attune_buffer_create(device, sizeof in, &buffer);
    if (status == ATTUNE_OK)
        status = attune_buffer_write(buffer, 0, in, sizeof in);
    if (status == ATTUNE_OK)
        status = attune_buffer_read(buffer, 0, out, sizeof out);
    if (status == ATTUNE_OK)
        cr_assert_eq(memcmp(in, out, sizeof in), 0);
    attune_buffer_destroy(buffer);
    return status;
}

Test(device, says_what_it_is)
{
    attune_instance *instance = instance_or_fail();
    attune_device *device = device_or_skip(instance, "vulkan");
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    cr_expect_eq(info.backend, ATTUNE_BACKEND_VULKAN);
    cr_expect(info.available);
    cr_expect_str_eq(info.id, "vulkan:0");
    cr_expect_str_empty(info.reason);
    cr_expect_gt(strlen(info.name), 0);
    cr_expect_gt(strlen(info.driver), 0);
    cr_expect_eq(strlen(info.uuid), 32);
    /* The least that Vulkan 1.2 requires of a device. */
    cr_expect_geq(info.limits.shared_memory, 16384);
    cr_expect_geq(info.limits.workgroup_invocations, 128);
    cr_expect_geq(info.limits.push_constants, 128);
    cr_expect_geq(info.limits.storage_range, UINT64_C(1) << 27);
    cr_expect_geq(info.limits.compute_units, 1);
    cr_expect_geq(info.limits.subgroup_size, 1);
    cr_expect_gt(info.limits.memory, 0);
    cr_expect_eq(!info.limits.matrix, !info.limits.matrix_m);
    /* Opening the device found the fragment layout that is listed for its driver. */
    attune_device_info listed = {.struct_size = sizeof listed};
    cr_assert_eq(attune__vulkan_describe_with(&instance->host, NULL, 0, &listed), ATTUNE_OK);
    cr_expect_eq(info.limits.fragment_layout, listed.limits.fragment_layout);
    attune_plan_choice choice = {.struct_size = sizeof choice};
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .direction = ATTUNE_FORWARD,
                                    .dtype = ATTUNE_F16,
                                    .batch = 1,
                                    .heads = 1,
                                    .q_len = 64,
                                    .kv_len = 64,
                                    .head_dim = 64};
    cr_expect_eq(attune_plan_choose(&info.limits, &problem, NULL, &choice), ATTUNE_OK, "%s", attune_last_error());
    /* On the CPU it is a plan for the kernel that finds it. */
    if (info.limits.host && info.limits.fragment_layout) {
        const attune_kernel_options matrices = {.struct_size = sizeof matrices, .any.kernel = "vulkan_coopmat"};
        attune_plan *plan;
        cr_expect_eq(attune_plan_create(device, &problem, &matrices, &plan), ATTUNE_OK, "%s", attune_last_error());
        attune_plan_destroy(plan);
    }
    cr_expect_eq(exercise(device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

#if !defined(__SANITIZE_ADDRESS__) && defined(__linux__)
static double resident_mib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* Mesa's lavapipe keeps what was destroyed, 10 MB a plan, until something is submitted. */
Test(device, plans_that_never_run_leave_nothing)
{
    attune_instance *instance;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "vulkan");
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    double before = 0;
    for (int i = 0; info.limits.host && i < 10; i++) {
        const attune_problem problem = {
            .struct_size = sizeof problem, .dtype = ATTUNE_F32, .head_dim = 64, .q_len = 64 + i};
        attune_plan *plan;
        cr_assert_eq(attune_plan_create(device, &problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
        attune_plan_destroy(plan);
        if (i == 1)
            before = resident_mib();
    }
    if (info.limits.host)
        cr_expect_lt(resident_mib() - before, 32, "%.0f MiB for 8 plans", resident_mib() - before);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}
#endif

/* A program whose loader has no driver, or a broken one, lists Vulkan as unavailable and goes on. */
static void expect_unavailable(const attune__vulkan_overrides *overrides, const char *word)
{
    attune_instance *instance = instance_or_fail();
    uint32_t count = 9;
    char reason[256] = "";
    cr_expect_eq(attune__vulkan_count_with(&instance->host, overrides, &count, reason, sizeof reason), ATTUNE_OK);
    cr_expect_eq(count, 0);
    cr_expect(strstr(reason, word), "\"%s\" has no \"%s\"", reason, word);
    attune_device *device = NULL;
    cr_expect_eq(open_with(instance, overrides, &device), ATTUNE_UNAVAILABLE);
    cr_expect_null(device);
    cr_expect(strstr(attune_last_error(), word), "\"%s\" has no \"%s\"", attune_last_error(), word);
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(device, no_loader)
{
    expect_unavailable(&(attune__vulkan_overrides){.library = "libvulkan-that-is-not-here.so.1"},
                       "libvulkan-that-is-not");
    expect_unavailable(&(attune__vulkan_overrides){.library = "libvulkan-that-is-not-here.so.1"}, "Debian: libvulkan1");
}

Test(device, a_library_that_is_no_loader)
{
    expect_unavailable(&(attune__vulkan_overrides){.library = "libm.so.6"}, "vkGetInstanceProcAddr");
}

/* The driver's error is in the reason. */
Test(device, a_loader_whose_list_fails)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    fake.no_list = true;
    expect_unavailable(&overrides, "vkEnumeratePhysicalDevices: VK_ERROR_INITIALIZATION_FAILED (-3)");
}

static void with_manifest(const char *text)
{
    char folder[] = "/tmp/attune-manifest-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/driver.json", folder);
    if (text) {
        FILE *file = fopen(path, "w");
        cr_assert(file && fputs(text, file) >= 0);
        fclose(file);
    }
    setenv("VK_ICD_FILENAMES", path, 1);
    setenv("VK_DRIVER_FILES", path, 1);
    void *library;
    char reason[256];
    if (!attune__vulkan_library_open(NULL, &library, reason, sizeof reason))
        cr_skip_test("%s", reason);
    expect_unavailable(NULL, "V");
    attune_instance *instance = instance_or_fail();
    attune_device *device;
    cr_expect_eq(attune_device_open(instance, "vulkan", &device), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), "no vulkan device"), "%s", attune_last_error());
    attune_instance_destroy(instance);
    unlink(path);
    rmdir(folder);
}

Test(device, a_manifest_that_is_not_there)
{
    with_manifest(NULL);
}

Test(device, a_manifest_that_is_garbage)
{
    with_manifest("{\"file_format_version\": \"1.0.0\", \"ICD\": {\"libra");
}

Test(device, a_manifest_without_its_driver)
{
    with_manifest("{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"/nowhere/libvulkan_none.so\", "
                  "\"api_version\": \"1.3.230\"}}");
}

static void expect_refused(const attune__vulkan_overrides *overrides, const char *word)
{
    attune_instance *instance = instance_or_fail();
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune__vulkan_describe_with(&instance->host, overrides, 0, &info), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_expect(!info.available);
    cr_expect(strstr(info.reason, word), "\"%s\" has no \"%s\"", info.reason, word);
    attune_device *device;
    cr_expect_eq(open_with(instance, overrides, &device), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), word), "%s", attune_last_error());
    /* Others go on. */
    cr_assert_eq(attune_device_open(instance, "vulkan", &device), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(exercise(device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(device, without_device_addresses)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    fake.no_device_address = true;
    expect_refused(&overrides, "bufferDeviceAddress");
}

Test(device, without_timeline_semaphores)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    fake.no_timeline = true;
    expect_refused(&overrides, "timelineSemaphore");
}

Test(device, of_an_old_version)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    fake.old = true;
    expect_refused(&overrides, "1.2");
}

Test(device, listed_twice_is_one)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    attune_instance *instance = instance_or_fail();
    uint32_t once = 0, twice = 0;
    char reason[256];
    cr_assert_eq(attune__vulkan_count_with(&instance->host, &overrides, &once, reason, sizeof reason), ATTUNE_OK);
    fake.twice = true;
    cr_assert_eq(attune__vulkan_count_with(&instance->host, &overrides, &twice, reason, sizeof reason), ATTUNE_OK);
    cr_expect_eq(once, twice);
    /* Of two drivers of a chip the one that can be used, whichever the loader lists first. */
    attune_device_info info = {.struct_size = sizeof info};
    fake.denials = 1;
    cr_assert_eq(attune__vulkan_count_with(&instance->host, &overrides, &twice, reason, sizeof reason), ATTUNE_OK);
    cr_expect_eq(once, twice, "%u devices, twice %u", once, twice);
    fake.denials = 1;
    cr_assert_eq(attune__vulkan_describe_with(&instance->host, &overrides, 0, &info), ATTUNE_OK);
    cr_expect(info.available, "%s", info.reason);
    attune_instance_destroy(instance);
}

Test(device, without_memory)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    attune_instance *instance = instance_or_fail();
    attune_device *device;
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    fake.no_memory = true;
    /* More than a block: opening a device may have left one. */
    attune_buffer *buffer = NULL;
    cr_expect_eq(attune_buffer_create(device, UINT64_C(300000000), &buffer), ATTUNE_OUT_OF_DEVICE_MEMORY);
    cr_expect_null(buffer);
    cr_expect(strstr(attune_last_error(), "300000000 bytes for a buffer: vkAllocateMemory"), "%s", attune_last_error());
    fake.no_memory = false;
    cr_expect_eq(exercise(device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Lost: latched, said at once by every later call, safe to destroy, and other devices go on. */
static void expect_lost(bool *loses)
{
    const attune__vulkan_overrides overrides = {.get = fake_get(), .staging_only = true};
    attune_instance *instance = instance_or_fail();
    attune_device *device, *other;
    attune_buffer *buffer;
    char data[256] = {0};
    cr_assert_eq(attune_device_open(instance, "vulkan", &other), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_create(device, sizeof data, &buffer), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(buffer, 0, data, sizeof data), ATTUNE_OK);
    *loses = true;
    cr_expect_eq(attune_buffer_write(buffer, 0, data, sizeof data), ATTUNE_DEVICE_LOST);
    *loses = false;
    cr_expect_eq(attune_buffer_write(buffer, 0, data, sizeof data), ATTUNE_DEVICE_LOST);
    cr_expect_eq(attune_buffer_read(buffer, 0, data, sizeof data), ATTUNE_DEVICE_LOST);
    attune_buffer *more;
    cr_expect_eq(attune_buffer_create(device, 16, &more), ATTUNE_DEVICE_LOST);
    cr_expect_eq(attune_device_measure(device, ATTUNE_F32, NULL, NULL), ATTUNE_DEVICE_LOST);
    cr_expect_eq(exercise(other), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_buffer_destroy(buffer);
    cr_expect_eq(exercise(other), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(other);
    attune_instance_destroy(instance);
}

Test(device, lost_at_submission)
{
    expect_lost(&fake.lose_submit);
}

Test(device, lost_while_waiting)
{
    expect_lost(&fake.lose_wait);
}

/* Every object of Vulkan's that a device makes fails once; a sanitizer or the validation layer sees what is left. */
Test(device, every_object_fails_in_turn)
{
    const attune__vulkan_overrides overrides = {.get = fake_get(), .staging_only = true};
    static const struct {
        VkResult code;
        attune_status status;
    } codes[] = {
        {VK_ERROR_OUT_OF_HOST_MEMORY, ATTUNE_OUT_OF_HOST_MEMORY},
        {VK_ERROR_OUT_OF_DEVICE_MEMORY, ATTUNE_OUT_OF_DEVICE_MEMORY},
    };
    attune_instance *instance = instance_or_fail();
    fake.one_instance = true;
    for (size_t c = 0; c < 2; c++) {
        long failures = 0;
        fake.fail_code = codes[c].code;
        for (fake.fail_at = 1;; fake.fail_at++, failures++) {
            fake.created = 0;
            attune_device *device;
            attune_status status = open_with(instance, &overrides, &device);
            if (status == ATTUNE_OK)
                status = exercise(device);
            attune_device_destroy(device);
            if (fake.created < fake.fail_at) {
                cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
                break;
            }
            cr_assert_eq(status, codes[c].status, "object %ld: %s", fake.fail_at, attune_last_error());
        }
        cr_log_info("%ld objects failed, one a run", failures);
        cr_assert_gt(failures, 2 * ATTUNE__VULKAN_SLOTS);
    }
    fake_instance_destroy();
    attune_instance_destroy(instance);
}

/* A pipeline that the driver refuses names itself. */
Test(device, a_kernel_is_refused)
{
    const attune__vulkan_overrides overrides = {.get = fake_get()};
    attune_instance *instance = instance_or_fail();
    attune_device *device;
    cr_assert_eq(open_with(instance, &overrides, &device), ATTUNE_OK, "%s", attune_last_error());
    fake.fail_code = VK_ERROR_UNKNOWN;
    fake.created = 0;
    fake.fail_at = 3; /* module, layout, pipeline */
    double flops;
    cr_expect_eq(attune__vulkan_measure(device, ATTUNE_F32, &flops, NULL), ATTUNE_COMPILE_FAILED);
    cr_expect(strstr(attune_last_error(), "kernel measure_f32: vkCreateComputePipelines: VK_ERROR_UNKNOWN (-13)"), "%s",
              attune_last_error());
    cr_expect_eq(exercise(device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(device, every_host_allocation_fails_in_turn)
{
    (void)fake_get();
    heap h = {0};
    long long failures = 0;
    for (h.fail_at = 1;; h.fail_at++, failures++) {
        atomic_store(&h.allocations, 0);
        /* No cache: without memory for one, the instance goes on without it. */
        const attune_instance_desc desc = {
            .struct_size = sizeof desc, .allocator = heap_allocator(&h), .cache_folder = ""};
        attune_instance *instance = NULL;
        attune_device *device = NULL;
        attune_status status = attune_instance_create(&desc, &instance);
        if (status == ATTUNE_OK)
            status = open_with(instance, &(attune__vulkan_overrides){.staging_only = true}, &device);
        if (status == ATTUNE_OK)
            status = exercise(device);
        attune_device_destroy(device);
        attune_instance_destroy(instance);
        cr_assert_eq(atomic_load(&h.live), 0, "failing allocation %lld leaks", h.fail_at);
        if (h.fail_at > atomic_load(&h.allocations)) {
            cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
            break;
        }
        cr_assert_eq(status, ATTUNE_OUT_OF_HOST_MEMORY, "allocation %lld: %s", h.fail_at, attune_last_error());
    }
    cr_assert_gt(failures, 5);
}

/* Two threads, each with a device of its own and both with a common one. */
typedef struct worker {
    attune_instance *instance;
    attune_device *shared;
    attune_status status;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    for (int round = 0; round < 3 && w->status == ATTUNE_OK; round++) {
        attune_device *mine;
        w->status = attune_device_open(w->instance, "vulkan", &mine);
        for (int i = 0; i < 20 && w->status == ATTUNE_OK; i++) {
            w->status = exercise(mine);
            if (w->status == ATTUNE_OK)
                w->status = exercise(w->shared);
        }
        attune_device_destroy(mine);
    }
    return NULL;
}

Test(device, threads_and_devices)
{
    attune_instance *instance = instance_or_fail();
    attune_device *shared = vulkan_or_skip(instance, true);
    pthread_t threads[4];
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){instance, shared, ATTUNE_OK};
        cr_assert_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_expect_eq(workers[i].status, ATTUNE_OK);
    }
    attune_device_destroy(shared);
    attune_instance_destroy(instance);
}

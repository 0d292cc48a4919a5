/* SPDX-License-Identifier: MIT */
/* Memory, copies and the queue. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/devices.h"
#include "vulkan/fake.h"

#define MIB ((size_t)1 << 20)

static uint64_t next(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

typedef struct fixture {
    attune_instance *instance;
    attune_device *device;
} fixture;

static fixture fixture_open(bool staging_only)
{
    fixture r;
    cr_assert_eq(attune_instance_create(NULL, &r.instance), ATTUNE_OK);
    r.device = vulkan_or_skip(r.instance, staging_only);
    return r;
}

static void fixture_close(fixture *r)
{
    attune_device_destroy(r->device);
    attune_instance_destroy(r->instance);
}

/* Random ranges written and read back against a copy on the host, past several chunks of staging. */
static void copy_random_ranges(bool staging_only)
{
    fixture r = fixture_open(staging_only);
    const size_t size = 30 * MIB + 12345;
    unsigned char *model = malloc(size), *back = malloc(size);
    cr_assert(model && back);
    uint64_t seed = test_seed();
    for (size_t i = 0; i < size; i++)
        model[i] = (unsigned char)(i * 31 + (i >> 12));
    attune_buffer *buffer;
    cr_assert_eq(attune_buffer_create(r.device, size, &buffer), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_write(buffer, 0, model, size), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(buffer, 0, back, size), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(memcmp(model, back, size), 0);
    for (int i = 0; i < 40; i++) {
        const size_t offset = (size_t)(next(&seed) % size);
        size_t length = (size_t)(next(&seed) % (i % 4 ? 1000 : 13 * MIB)) + 1;
        length = length < size - offset ? length : size - offset;
        for (size_t j = 0; j < length; j++)
            model[offset + j] = (unsigned char)next(&seed);
        cr_assert_eq(attune_buffer_write(buffer, offset, model + offset, length), ATTUNE_OK, "%s", attune_last_error());
        const size_t first = (size_t)(next(&seed) % size);
        const size_t count = length < size - first ? length : size - first;
        cr_assert_eq(attune_buffer_read(buffer, first, back, count), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(memcmp(model + first, back, count), 0, "range %d, %zu bytes from %zu on", i, count, first);
    }
    cr_assert_eq(attune_buffer_read(buffer, 0, back, size), ATTUNE_OK);
    cr_assert_eq(memcmp(model, back, size), 0);
    attune_buffer_destroy(buffer);
    free(model);
    free(back);
    fixture_close(&r);
}

Test(buffer, copies_in_place)
{
    copy_random_ranges(false);
}

Test(buffer, copies_through_staging)
{
    copy_random_ranges(true);
}

/* The messages of a rank: many copies of several buffers together, some longer than a chunk. */
static void copy_together(bool staging_only)
{
    enum { COPIES = 300, BUFFERS = 3 };
    fixture r = fixture_open(staging_only);
    attune_queue *queue = attune_device_queue(r.device);
    const size_t size = 9 * MIB;
    unsigned char *model = malloc(size), *back = malloc(size);
    attune_buffer *buffers[BUFFERS];
    attune__copy copies[COPIES], small[COPIES];
    cr_assert(model && back);
    uint64_t seed = test_seed(), at = 0;
    for (size_t i = 0; i < size; i++)
        model[i] = (unsigned char)next(&seed);
    for (int i = 0; i < BUFFERS; i++)
        cr_assert_eq(attune_buffer_create(r.device, size, &buffers[i]), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < COPIES; i++) {
        const uint64_t length = i == 7 ? 5 * MIB : next(&seed) % 9000 + 1;
        copies[i] = (attune__copy){buffers[i % BUFFERS], at, length, model + at};
        small[i] = (attune__copy){buffers[i % BUFFERS], (uint64_t)i * 16, 3, back};
        at += length;
    }
    cr_assert_leq(at, size);
    cr_assert_eq(attune__vulkan_copy(queue, copies, COPIES, true), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < COPIES; i++)
        copies[i].memory = back + copies[i].offset;
    cr_assert_eq(attune__vulkan_copy(queue, copies, COPIES, false), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(memcmp(model, back, at), 0);
    /* Those that fit into a chunk are one submission. */
    const uint64_t before = ((attune__vulkan_device *)r.device)->queue.submitted;
    cr_assert_eq(attune__vulkan_copy(queue, small, COPIES, false), ATTUNE_OK);
    if (staging_only)
        cr_expect_eq(((attune__vulkan_device *)r.device)->queue.submitted - before, 1);
    for (int i = 0; i < BUFFERS; i++)
        attune_buffer_destroy(buffers[i]);
    free(model);
    free(back);
    fixture_close(&r);
}

Test(buffer, copies_together)
{
    copy_together(false);
    copy_together(true);
}

/* The lists of ranges have no gap, no overlap and no two free neighbours. */
static void check_blocks(const attune__vulkan_device *device)
{
    for (const attune__vulkan_block *b = device->memory.blocks; b; b = b->next) {
        uint64_t end = 0;
        for (const attune__vulkan_range *r = b->ranges; r; r = r->next) {
            cr_assert_eq(r->offset, end);
            cr_assert_eq(r->offset % 256, 0);
            cr_assert_eq(r->block, b);
            cr_assert(!r->next || r->next->previous == r);
            cr_assert(!r->next || r->used || r->next->used, "two free ranges are not joined");
            end += r->size;
        }
        cr_assert_eq(end, b->size);
    }
}

Test(buffer, many_come_and_go)
{
    enum { LIVE = 48 };
    fixture r = fixture_open(true);
    const attune__vulkan_device *device = (const attune__vulkan_device *)r.device;
    attune_buffer *buffers[LIVE] = {NULL};
    uint64_t marks[LIVE] = {0}, seed = test_seed();
    for (uint64_t i = 0; i < scaled(600); i++) {
        const size_t at = (size_t)(next(&seed) % LIVE);
        if (buffers[at]) {
            uint64_t first, last;
            cr_assert_eq(attune_buffer_read(buffers[at], 0, &first, 8), ATTUNE_OK);
            cr_assert_eq(attune_buffer_read(buffers[at], attune_buffer_size(buffers[at]) - 8, &last, 8), ATTUNE_OK);
            cr_assert(first == marks[at] && last == marks[at], "a neighbour wrote here");
            attune_buffer_destroy(buffers[at]);
            buffers[at] = NULL;
        } else {
            const uint64_t size = 16 + next(&seed) % (next(&seed) % 4 ? 5000 : 3 * MIB);
            marks[at] = next(&seed);
            cr_assert_eq(attune_buffer_create(r.device, size, &buffers[at]), ATTUNE_OK, "%s", attune_last_error());
            cr_assert_eq(((attune__vulkan_buffer *)buffers[at])->address % 256, 0);
            cr_assert_eq(attune_buffer_write(buffers[at], 0, &marks[at], 8), ATTUNE_OK);
            cr_assert_eq(attune_buffer_write(buffers[at], size - 8, &marks[at], 8), ATTUNE_OK);
        }
        check_blocks(device);
    }
    for (size_t i = 0; i < LIVE; i++)
        attune_buffer_destroy(buffers[i]);
    check_blocks(device);
    uint32_t kept = 0;
    for (const attune__vulkan_block *b = device->memory.blocks; b; b = b->next)
        kept++;
    cr_assert_leq(kept, 1, "%u empty blocks are kept", kept);
    fixture_close(&r);
}

Test(buffer, too_large_is_said)
{
    fixture r = fixture_open(false);
    attune_buffer *buffer;
    cr_expect_eq(attune_buffer_create(r.device, UINT64_MAX, &buffer), ATTUNE_OUT_OF_DEVICE_MEMORY);
    cr_expect(strstr(attune_last_error(), "allocates at once"), "%s", attune_last_error());
    cr_expect_null(buffer);
    cr_expect_eq(attune_buffer_create(r.device, UINT64_MAX - 100, &buffer), ATTUNE_OUT_OF_DEVICE_MEMORY);
    char byte = 1;
    cr_assert_eq(attune_buffer_create(r.device, 1, &buffer), ATTUNE_OK);
    cr_expect_eq(attune_buffer_write(buffer, 1, &byte, 1), ATTUNE_INVALID_ARGUMENT);
    attune_buffer *none;
    cr_expect_eq(attune_buffer_wrap(r.device, &byte, 1, &none), ATTUNE_UNSUPPORTED);
    cr_expect(strstr(attune_last_error(), "attune_vulkan_buffer_wrap"), "%s", attune_last_error());
    attune_buffer_destroy(buffer);
    fixture_close(&r);
}

/* Submits `count` fills of 16 MiB. */
static uint64_t submit_fills(attune__vulkan_device *device, attune_buffer *buffer, uint32_t count, uint32_t word)
{
    attune__vulkan_slot *slot;
    uint64_t value = 0;
    const attune__vulkan_buffer *b = (const attune__vulkan_buffer *)buffer;
    cr_assert_eq(attune__vulkan_begin(device, false, &slot), ATTUNE_OK, "%s", attune_last_error());
    for (uint32_t i = 0; i < count; i++) {
        device->vk.CmdFillBuffer(slot->commands, b->handle, b->offset, 16 * MIB, word);
        attune__vulkan_barrier(device, slot->commands);
    }
    cr_assert_eq(attune__vulkan_submit(device, slot, &value), ATTUNE_OK, "%s", attune_last_error());
    return value;
}

Test(queue, waits_and_times_out)
{
    fixture r = fixture_open(false);
    attune__vulkan_device *device = (attune__vulkan_device *)r.device;
    attune_buffer *buffer;
    cr_assert_eq(attune_buffer_create(r.device, 16 * MIB, &buffer), ATTUNE_OK);
    attune_completion done = {attune_device_queue(r.device), 0};
    cr_expect_eq(attune_completion_wait(done, 0), ATTUNE_OK);
    done.value = submit_fills(device, buffer, 400, 7);
    cr_expect_eq(attune_completion_wait(done, 0), ATTUNE_TIMEOUT, "6.4 GB were filled at once");
    cr_expect_eq(attune_completion_wait(done, 1000), ATTUNE_TIMEOUT);
    cr_expect_eq(attune_completion_wait(done, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(attune_completion_wait(done, 0), ATTUNE_OK);
    done.value++;
    cr_expect_eq(attune_completion_wait(done, 0), ATTUNE_INVALID_ARGUMENT);
    attune_buffer_destroy(buffer);
    fixture_close(&r);
}

/* More than the ring holds, then a read that no call waited for. */
Test(queue, is_in_order_past_its_ring)
{
    fixture r = fixture_open(false);
    attune__vulkan_device *device = (attune__vulkan_device *)r.device;
    attune_buffer *buffer;
    cr_assert_eq(attune_buffer_create(r.device, 16 * MIB, &buffer), ATTUNE_OK);
    uint64_t before = 0;
    for (uint32_t i = 1; i <= 3 * ATTUNE__VULKAN_SLOTS; i++) {
        const uint64_t value = submit_fills(device, buffer, 1, i);
        cr_assert_gt(value, before);
        before = value;
    }
    uint32_t word;
    cr_assert_eq(attune_buffer_read(buffer, 16 * MIB - 4, &word, 4), ATTUNE_OK);
    cr_assert_eq(word, 3 * ATTUNE__VULKAN_SLOTS);
    attune_buffer_destroy(buffer);
    fixture_close(&r);
}

/* The device's own function, until it is lost. */
static PFN_vkGetSemaphoreCounterValue counter;
static atomic_bool counter_lost;
static atomic_int beginning;

static VKAPI_ATTR VkResult VKAPI_CALL count_or_lose(VkDevice device, VkSemaphore semaphore, uint64_t *value)
{
    return counter_lost ? VK_ERROR_DEVICE_LOST : counter(device, semaphore, value);
}

static void *begin(void *device)
{
    attune__vulkan_slot *slot;
    beginning++;
    return attune__vulkan_begin(device, false, &slot) == ATTUNE_DEVICE_LOST ? NULL : device;
}

/* More threads wait for a command buffer than there are, and the device is lost: every thread returns. */
Test(queue, all_waiting_threads_learn_of_the_loss, .timeout = 60)
{
    enum { THREADS = ATTUNE__VULKAN_SLOTS + 8 };
    fixture r = fixture_open(false);
    attune__vulkan_device *device = (attune__vulkan_device *)r.device;
    attune__vulkan_slot *slots[ATTUNE__VULKAN_SLOTS];
    pthread_t threads[THREADS];
    counter = device->vk.GetSemaphoreCounterValue;
    device->vk.GetSemaphoreCounterValue = count_or_lose;
    for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++)
        cr_assert_eq(attune__vulkan_begin(device, false, &slots[i]), ATTUNE_OK, "%s", attune_last_error());
    for (uint32_t i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, begin, device), 0);
    while (beginning < THREADS)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* until they wait */
    counter_lost = true;
    for (uint32_t i = 0; i < ATTUNE__VULKAN_SLOTS; i++)
        attune__vulkan_cancel(device, slots[i]);
    for (uint32_t i = 0; i < THREADS; i++) {
        void *failed;
        cr_assert_eq(pthread_join(threads[i], &failed), 0);
        cr_expect_null(failed);
    }
    fixture_close(&r);
}

Test(queue, measures_peaks)
{
    fixture r = fixture_open(false);
    double flops = 0, bandwidth = 0;
    cr_assert_eq(attune_device_measure(r.device, ATTUNE_F32, &flops, &bandwidth), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_neq(flops, bandwidth, "one of them twice");
    cr_log_info("f32 %.1f GFLOP/s, copy %.1f GB/s", flops * 1e-9, bandwidth * 1e-9);
    /* Any processor of this century, and none of the next. */
    cr_expect(flops > 1e8 && flops < 1e16);
    cr_expect(bandwidth > 1e8 && bandwidth < 1e14);
    cr_assert_eq(attune_device_measure(r.device, ATTUNE_F16, &flops, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_log_info("f16 %.1f GFLOP/s", flops * 1e-9);
    cr_expect(flops > 1e8 && flops < 1e16);
    cr_expect_eq(attune_device_measure(r.device, ATTUNE_F64, &flops, NULL), ATTUNE_UNSUPPORTED);
    fixture_close(&r);
}

/* The device's own function, and a host that is busy meanwhile. */
static PFN_vkWaitSemaphores wait;
static PFN_vkGetQueryPoolResults results;

static VKAPI_ATTR VkResult VKAPI_CALL wait_long(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    return wait(device, info, timeout);
}

/* A tenth of the time: a device that is faster than its launches are started. */
static VKAPI_ATTR VkResult VKAPI_CALL short_times(VkDevice device, VkQueryPool pool, uint32_t first, uint32_t count,
                                                  size_t size, void *data, VkDeviceSize stride,
                                                  VkQueryResultFlags flags)
{
    const VkResult result = results(device, pool, first, count, size, data, stride, flags);
    uint64_t *times = data;
    times[1] = times[0] + (times[1] - times[0]) / 10;
    return result;
}

/* The first launch is short, and the time is over: it counts, since there is no other. */
Test(queue, measures_peaks_while_the_host_is_busy)
{
    fixture r = fixture_open(false);
    attune__vulkan_device *device = (attune__vulkan_device *)r.device;
    double flops = 0;
    wait = device->vk.WaitSemaphores;
    results = device->vk.GetQueryPoolResults;
    device->vk.WaitSemaphores = wait_long;
    device->vk.GetQueryPoolResults = short_times;
    cr_assert_eq(attune__vulkan_measure(r.device, ATTUNE_F32, &flops, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_gt(flops, 0);
    fixture_close(&r);
}

/* SPDX-License-Identifier: MIT */
/* An engine's own device, queue and buffer. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "support/devices.h"
#include "vulkan/fake.h"

/* A small engine: the first physical device, opened with what attune asks for. */
typedef struct engine {
    attune__vulkan_instance instance;
    attune__vulkan_functions vk;
    VkPhysicalDevice physical;
    VkDevice device;
    attune__vulkan_chain chain;
    attune_vulkan_device_desc desc;
    int locks, unlocks;
    bool held;
} engine;

static void lock(void *user)
{
    engine *e = user;
    cr_assert_not(e->held);
    e->held = true;
    e->locks++;
}

static void unlock(void *user)
{
    engine *e = user;
    cr_assert(e->held);
    e->held = false;
    e->unlocks++;
}

static void engine_open(engine *e)
{
    memset(e, 0, sizeof *e);
    (void)fake_get(); /* skips where there is no device */
    char reason[256];
    cr_assert(attune__vulkan_instance_create(NULL, &e->instance, reason, sizeof reason), "%s", reason);
    e->vk = e->instance.vk;
    uint32_t one = 1;
    cr_assert_geq(e->vk.EnumeratePhysicalDevices(e->instance.handle, &one, &e->physical), 0);
    attune__vulkan_chain_init(&e->chain, VK_API_VERSION_1_2, 0);
    e->chain.v12.bufferDeviceAddress = VK_TRUE;
    e->chain.v12.timelineSemaphore = VK_TRUE;
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueCount = 1,
        .pQueuePriorities = &priority,
    };
    const VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &e->chain,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &queue,
    };
    cr_assert_eq(e->vk.CreateDevice(e->physical, &info, NULL, &e->device), VK_SUCCESS);
    cr_assert_null(attune__vulkan_load_device(&e->vk, e->device));
    e->desc = (attune_vulkan_device_desc){
        .struct_size = sizeof e->desc,
        .instance = e->instance.handle,
        .physical_device = e->physical,
        .device = e->device,
        .get_instance_proc_addr = e->vk.GetInstanceProcAddr,
        .features = &e->chain,
        .lock_queue = lock,
        .unlock_queue = unlock,
        .lock_user = e,
    };
    e->vk.GetDeviceQueue(e->device, 0, 0, &e->desc.queue);
}

static void engine_close(engine *e)
{
    e->vk.DestroyDevice(e->device, NULL);
    attune__vulkan_instance_destroy(&e->instance);
}

Test(lend, lists_what_it_wants)
{
    uint32_t count = 9;
    attune_vulkan_required_extensions(&count);
    cr_expect_eq(count, 0);
    const char *const *names = attune_vulkan_recommended_extensions(&count);
    bool matrix = false;
    for (uint32_t i = 0; i < count; i++)
        matrix |= !strcmp(names[i], "VK_KHR_cooperative_matrix");
    cr_expect(matrix);
    names = attune_vulkan_required_features(&count);
    cr_assert_eq(count, 2);
    cr_expect_str_eq(names[0], "bufferDeviceAddress");
    cr_expect_str_eq(names[1], "timelineSemaphore");
    cr_expect_not_null(attune_vulkan_recommended_features(&count));
    cr_expect_gt(count, 10);
}

Test(lend, a_device_and_its_queue)
{
    static engine e;
    engine_open(&e);
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_vulkan_device_open(instance, &e.desc, &device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    cr_expect_str_eq(info.id, "vulkan");
    /* Features that the engine did not enable are not used, whatever the driver has. */
    cr_expect_not(info.limits.f16);
    cr_expect_eq(info.limits.matrix, 0);
    double flops;
    cr_assert_eq(attune_device_measure(device, ATTUNE_F32, &flops, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_gt(flops, 1e8);
    cr_expect_gt(e.locks, 0);
    cr_expect_eq(e.locks, e.unlocks);
    /* The device goes; the engine's stays. */
    attune_instance_destroy(instance);
    attune_device_destroy(device);
    engine_close(&e);
}

Test(lend, a_buffer_in_place)
{
    static engine e;
    engine_open(&e);
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_vulkan_device_open(instance, &e.desc, &device), ATTUNE_OK, "%s", attune_last_error());
    /* The engine's buffer is one of attune's blocks, seen from outside. */
    attune__vulkan_block *block;
    attune__vulkan_device *inside = (attune__vulkan_device *)device;
    cr_assert_eq(attune__vulkan_block_create(inside, 1 << 20, inside->memory.device_type, true, &block), ATTUNE_OK);
    attune_buffer *buffer;
    cr_assert_eq(attune_vulkan_buffer_wrap(device, block->buffer, 4096, 1000, &buffer), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_expect_eq(attune_buffer_size(buffer), 1000);
    unsigned char in[1000], out[1000];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7 + 1);
    memset(block->map, 0xEE, 1 << 20);
    cr_assert_eq(attune_buffer_write(buffer, 0, in, sizeof in), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(buffer, 0, out, sizeof out), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(memcmp(in, out, sizeof in), 0);
    cr_expect_eq(memcmp(in, block->map + 4096, sizeof in), 0);
    cr_expect_eq((unsigned char)block->map[4095], 0xEE);
    cr_expect_eq((unsigned char)block->map[5096], 0xEE);
    attune_buffer *none;
    cr_expect_eq(attune_vulkan_buffer_wrap(device, VK_NULL_HANDLE, 0, 16, &none), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_buffer_wrap(device, block->buffer, 8, 16, &none), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_buffer_wrap(device, block->buffer, 0, 0, &none), ATTUNE_INVALID_ARGUMENT);
    attune_device *cpu;
    cr_assert_eq(attune_device_open(instance, "cpu", &cpu), ATTUNE_OK);
    cr_expect_eq(attune_vulkan_buffer_wrap(cpu, block->buffer, 0, 16, &none), ATTUNE_INVALID_ARGUMENT);
    attune_device_destroy(cpu);
    attune_buffer_destroy(buffer);
    attune__vulkan_block_destroy(inside, block);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    engine_close(&e);
}

/* A VkBuffer made with the handles of a device that attune opened, by an engine that has nothing else. */
Test(lend, a_buffer_on_attunes_own_device)
{
    (void)fake_get();
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = vulkan_or_skip(instance, false), *cpu;
    attune_vulkan_handles h = {.struct_size = sizeof h};
    cr_assert_eq(attune_vulkan_device_handles(device, &h), ATTUNE_OK, "%s", attune_last_error());
    cr_assert(h.instance && h.physical_device && h.device && h.queue && h.get_instance_proc_addr);
    cr_assert_geq(h.api_version, VK_API_VERSION_1_2);
    attune__vulkan_functions vk = {0};
    cr_assert_null(attune__vulkan_load_loader(&vk, h.get_instance_proc_addr));
    cr_assert_null(attune__vulkan_load_instance(&vk, h.instance));
    cr_assert_null(attune__vulkan_load_device(&vk, h.device));
    VkQueue queue;
    vk.GetDeviceQueue(h.device, h.queue_family, 0, &queue);
    cr_expect_eq(queue, h.queue);

    VkBuffer theirs;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = 4096,
                                     .usage = ATTUNE__VULKAN_USAGE,
                                     .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    cr_assert_eq(vk.CreateBuffer(h.device, &info, NULL, &theirs), VK_SUCCESS);
    VkMemoryRequirements needs;
    vk.GetBufferMemoryRequirements(h.device, theirs, &needs);
    uint32_t type = 0;
    while (!(needs.memoryTypeBits >> type & 1))
        type++;
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                             .pNext = &flags,
                                             .allocationSize = needs.size,
                                             .memoryTypeIndex = type};
    VkDeviceMemory memory;
    cr_assert_eq(vk.AllocateMemory(h.device, &allocation, NULL, &memory), VK_SUCCESS);
    cr_assert_eq(vk.BindBufferMemory(h.device, theirs, memory, 0), VK_SUCCESS);

    attune_buffer *buffer;
    cr_assert_eq(attune_vulkan_buffer_wrap(device, theirs, 256, 1000, &buffer), ATTUNE_OK, "%s", attune_last_error());
    unsigned char in[1000], out[1000] = {0};
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 13 + 5);
    cr_assert_eq(attune_buffer_write(buffer, 0, in, sizeof in), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_read(buffer, 0, out, sizeof out), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(memcmp(in, out, sizeof in), 0);
    attune_buffer_destroy(buffer);
    vk.DestroyBuffer(h.device, theirs, NULL);
    vk.FreeMemory(h.device, memory, NULL);

    cr_assert_eq(attune_device_open(instance, "cpu", &cpu), ATTUNE_OK);
    cr_expect_eq(attune_vulkan_device_handles(cpu, &h), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_vulkan_device_handles(device, NULL), ATTUNE_INVALID_ARGUMENT);
    attune_device_destroy(cpu);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(lend, refuses_what_lacks_something)
{
    static engine e;
    engine_open(&e);
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_vulkan_device_desc desc = e.desc;
    desc.features = NULL;
    cr_expect_eq(attune_vulkan_device_open(instance, &desc, &device), ATTUNE_UNSUPPORTED);
    cr_expect(strstr(attune_last_error(), "bufferDeviceAddress and timelineSemaphore"), "%s", attune_last_error());
    cr_expect_null(device);
    desc = e.desc;
    desc.unlock_queue = NULL;
    cr_expect_eq(attune_vulkan_device_open(instance, &desc, &device), ATTUNE_INVALID_ARGUMENT);
    desc = e.desc;
    desc.queue_family = 1000;
    cr_expect_eq(attune_vulkan_device_open(instance, &desc, &device), ATTUNE_INVALID_ARGUMENT);
    desc = e.desc;
    desc.api_version = VK_API_VERSION_1_1;
    cr_expect_eq(attune_vulkan_device_open(instance, &desc, &device), ATTUNE_INVALID_ARGUMENT);
    desc = e.desc;
    desc.queue = NULL;
    cr_expect_eq(attune_vulkan_device_open(instance, &desc, &device), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "desc.queue"), "%s", attune_last_error());
    attune_instance_destroy(instance);
    engine_close(&e);
}

/* An engine with several threads. */
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static atomic_int wanting;

static void lock_shared(void *user)
{
    (void)user;
    wanting++;
    pthread_mutex_lock(&shared);
}

static void unlock_shared(void *user)
{
    (void)user;
    pthread_mutex_unlock(&shared);
}

static void *measure(void *device)
{
    double flops;
    return attune_device_measure(device, ATTUNE_F32, &flops, NULL) == ATTUNE_OK ? NULL : device;
}

/* A thread that has the engine's lock asks for a completion while another thread's call waits for the lock. */
Test(lend, waits_need_no_lock_of_the_queue, .timeout = 60)
{
    static engine e;
    engine_open(&e);
    e.desc.lock_queue = lock_shared;
    e.desc.unlock_queue = unlock_shared;
    attune_instance *instance;
    attune_device *device;
    pthread_t thread;
    void *failed;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_vulkan_device_open(instance, &e.desc, &device), ATTUNE_OK, "%s", attune_last_error());
    pthread_mutex_lock(&shared);
    wanting = 0;
    cr_assert_eq(pthread_create(&thread, NULL, measure, device), 0);
    while (!wanting)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    const attune_completion none = {attune_device_queue(device), 0};
    cr_expect_eq(attune_completion_wait(none, 0), ATTUNE_OK, "%s", attune_last_error());
    pthread_mutex_unlock(&shared);
    cr_assert_eq(pthread_join(thread, &failed), 0);
    cr_expect_null(failed);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    engine_close(&e);
}

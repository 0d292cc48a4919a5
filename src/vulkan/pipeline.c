/* SPDX-License-Identifier: MIT */
/* Compute pipelines whose layout is push constants only; those of kernels, with the caller's expressions. */
#include "vulkan/vulkan.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/threads.h"
#include "vulkan/launch.h"

static attune_status create_module(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                   VkShaderModule *module)
{
    const attune_allocator *allocator = &device->base.host.allocator;
    uint32_t *preserving = NULL;
    size_t count = desc->word_count;
    attune_status status = ATTUNE_OK;
    if (device->physical.preserves)
        status = attune__vulkan_preserve(allocator, desc->words, desc->word_count, &preserving, &count);
    if (status == ATTUNE_OK) {
        const VkShaderModuleCreateInfo words = {
            .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
            .codeSize = count * sizeof *desc->words,
            .pCode = preserving ? preserving : desc->words,
        };
        const VkResult result = device->vk.CreateShaderModule(device->handle, &words, NULL, module);
        if (result) {
            *module = VK_NULL_HANDLE;
            status = attune__vulkan_fail(device, result, "vkCreateShaderModule");
        }
    }
    attune__free(allocator, preserving);
    return status;
}

/* Any code but these means that the driver's compiler gave up. */
static attune_status refuse(attune__vulkan_device *device, const char *name, attune_status status)
{
    if (status != ATTUNE_OUT_OF_HOST_MEMORY && status != ATTUNE_OUT_OF_DEVICE_MEMORY && status != ATTUNE_DEVICE_LOST)
        status = ATTUNE_COMPILE_FAILED;
    return attune__fail_context(status, "the driver of device %s refuses kernel %s", device->base.info.id, name);
}

attune_status attune__vulkan_pipelines_add(attune__vulkan_device *device, attune__vulkan_pipelines *list,
                                           const attune__vulkan_pipeline_desc *desc, attune__vulkan_pipeline *pipeline)
{
    *pipeline = (attune__vulkan_pipeline){0};
    const uint32_t at = list->count++;
    list->each[at].name = desc->name;
    list->each[at].module = VK_NULL_HANDLE;
    list->each[at].cache = (attune__vulkan_cache){0};
    list->each[at].result = VK_SUCCESS;
    list->each[at].pipeline = pipeline;
    const attune_status status = create_module(device, desc, &list->each[at].module);
    if (status != ATTUNE_OK)
        return refuse(device, desc->name, status);
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = desc->push_constants};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = desc->push_constants > 0,
        .pPushConstantRanges = &range,
    };
    const VkResult result = device->vk.CreatePipelineLayout(device->handle, &layout, NULL, &pipeline->layout);
    if (result) {
        pipeline->layout = VK_NULL_HANDLE;
        return refuse(device, desc->name, attune__vulkan_fail(device, result, "vkCreatePipelineLayout"));
    }
    list->each[at].specialised = desc->constants != NULL;
    if (desc->constants)
        memcpy(list->each[at].constants, desc->constants, sizeof list->each[at].constants);
    list->each[at].subgroup_size = desc->subgroup_size;
    attune__vulkan_cache_begin(device, desc, &list->each[at].cache);
    return ATTUNE_OK;
}

/* The driver's compiler, on any thread. */
static void compile(const attune__vulkan_device *device, attune__vulkan_pipelines *list, uint32_t at)
{
    const attune__vulkan_functions *vk = &device->vk;
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = list->each[at].subgroup_size,
    };
    const bool wanted = list->each[at].subgroup_size != 0,
               sized = wanted && device->physical.features.subgroup_size_control && device->physical.required_sizes,
               full = wanted && device->physical.features.full_subgroups;
    const uint32_t *numbers = list->each[at].constants;
    VkSpecializationMapEntry entries[ATTUNE__VULKAN_CONSTANTS];
    for (uint32_t i = 0; i < ATTUNE__VULKAN_CONSTANTS; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof *numbers, sizeof *numbers};
    const VkSpecializationInfo constants = {ATTUNE__VULKAN_CONSTANTS, entries,
                                            ATTUNE__VULKAN_CONSTANTS * sizeof *numbers, numbers};
    attune__vulkan_pipeline *pipeline = list->each[at].pipeline;
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage =
            {
                .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .pNext = sized ? &size : NULL,
                .flags = full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                .module = list->each[at].module,
                .pName = "main",
                .pSpecializationInfo = list->each[at].specialised ? &constants : NULL,
            },
        .layout = pipeline->layout,
    };
    const attune__vulkan_cache *cache = &list->each[at].cache;
    VkResult result = vk->CreateComputePipelines(device->handle, cache->handle, 1, &info, NULL, &pipeline->handle);
    /* The cached data may be at fault. */
    if (result && cache->hit)
        result = vk->CreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &info, NULL, &pipeline->handle);
    list->each[at].result = result;
}

/* Shared by the compiling threads: each takes the next pipeline until none is left. */
typedef struct batch {
    const attune__vulkan_device *device;
    attune__vulkan_pipelines *list;
    atomic_uint next;
} batch;

static void compile_some(void *user, uint32_t thread)
{
    batch *b = user;
    (void)thread;
    for (uint32_t i; (i = atomic_fetch_add(&b->next, 1)) < b->list->count;)
        compile(b->device, b->list, i);
}

/* Threads are started only for pipelines that the disk does not have. */
static attune_status compile_all(attune__vulkan_device *device, attune__vulkan_pipelines *list)
{
    const attune__host *host = &device->base.host;
    uint32_t threads = 0;
    for (uint32_t i = 0; i < list->count; i++)
        threads += !list->each[i].cache.hit;
    threads = host->compile_threads < threads ? host->compile_threads : threads;
    batch b = {.device = device, .list = list};
    atomic_init(&b.next, 0);
    ATTUNE__TRY(attune__pool_once(&host->allocator, threads, compile_some, &b));
    for (uint32_t i = 0; i < list->count; i++)
        if (list->each[i].result)
            return refuse(device, list->each[i].name,
                          attune__vulkan_fail(device, list->each[i].result, "vkCreateComputePipelines"));
    return ATTUNE_OK;
}

attune_status attune__vulkan_pipelines_make(attune__vulkan_device *device, attune__vulkan_pipelines *list,
                                            attune_status status)
{
    if (status == ATTUNE_OK)
        status = compile_all(device, list);
    for (uint32_t i = 0; i < list->count; i++) {
        attune__vulkan_cache_end(device, &list->each[i].cache, status == ATTUNE_OK);
        if (list->each[i].module)
            device->vk.DestroyShaderModule(device->handle, list->each[i].module, NULL);
        if (status != ATTUNE_OK)
            attune__vulkan_pipeline_destroy(device, list->each[i].pipeline);
    }
    return status;
}

attune_status attune__vulkan_pipeline_create(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                             attune__vulkan_pipeline *pipeline)
{
    attune__vulkan_pipelines list = {.count = 0};
    const attune_status status = attune__vulkan_pipelines_add(device, &list, desc, pipeline);
    return attune__vulkan_pipelines_make(device, &list, status);
}

void attune__vulkan_pipeline_destroy(attune__vulkan_device *device, attune__vulkan_pipeline *pipeline)
{
    if (pipeline->handle) {
        device->vk.DestroyPipeline(device->handle, pipeline->handle, NULL);
        attune__vulkan_release_destroyed(device);
    }
    if (pipeline->layout)
        device->vk.DestroyPipelineLayout(device->handle, pipeline->layout, NULL);
    *pipeline = (attune__vulkan_pipeline){0};
}

attune_status attune__vulkan_pipeline_prebuilt(attune__vulkan_device *device, const char *name, const uint32_t *words,
                                               size_t bytes, attune__vulkan_pipeline *pipeline)
{
    attune__hash hash = attune__hash_begin();
    attune__hash_bytes(&hash, words, bytes);
    const attune__vulkan_pipeline_desc desc = {
        .name = name,
        .words = words,
        .word_count = bytes / sizeof *words,
        .push_constants = sizeof(attune__vulkan_push),
        .hash = &hash,
    };
    return attune__vulkan_pipeline_create(device, &desc, pipeline);
}

/* hash: of the words. */
static attune_status add_kernel(attune_device *device, attune__vulkan_pipelines *list,
                                const attune__vulkan_module *module, const attune__hash *hash, const char *name,
                                const uint32_t *constants, uint32_t subgroup_size, attune__vulkan_pipeline *pipeline)
{
    const attune__vulkan_pipeline_desc desc = {
        .name = name,
        .words = module->words,
        .word_count = module->count,
        .push_constants = sizeof(attune__vulkan_push),
        .constants = constants,
        .subgroup_size = subgroup_size,
        .hash = hash,
    };
    return attune__vulkan_pipelines_add(attune__vulkan_of(device), list, &desc, pipeline);
}

attune_status attune__vulkan_pipelines_prebuilt(attune_device *device, attune__vulkan_pipelines *list,
                                                const attune__vulkan_module *module, const char *name,
                                                const uint32_t *constants, attune__vulkan_pipeline *pipeline)
{
    attune__hash hash = attune__hash_begin();
    attune__hash_bytes(&hash, module->words, module->count * sizeof *module->words);
    return add_kernel(device, list, module, &hash, name, constants, 0, pipeline);
}

attune_status attune__vulkan_pipelines_pair(attune_device *device, attune__vulkan_pipelines *list,
                                            const attune__program_desc *desc, const attune__vulkan_kernel kernels[2],
                                            attune__vulkan_pipeline *any, attune__vulkan_pipeline *aligned)
{
    const attune__mods mods = {desc->mask, desc->score, desc->gradient, desc->variant->uniform_reads};
    /* The path for any alignment costs registers where it is not taken, and CPU drivers take both sides of a branch. */
    attune__vulkan_pipeline *const pipelines[2] = {any, aligned};
    uint32_t *words;
    size_t count;
    attune__hash hash;
    attune_status status = attune__vulkan_cache_splice(attune__vulkan_of(device), kernels->words, kernels->word_count,
                                                       &mods, &words, &count, &hash);
    ATTUNE__TRY(status);
    const attune__vulkan_module spliced = {words, count};
    for (int i = 0; i < 2 && status == ATTUNE_OK; i++)
        status = add_kernel(device, list, &spliced, &hash, desc->choice->kernel, kernels[i].constants,
                            kernels[i].subgroups ? device->info.limits.subgroup_size : 0, pipelines[i]);
    attune__free(&device->host.allocator, words);
    return status;
}

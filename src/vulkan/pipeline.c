/* SPDX-License-Identifier: MIT */
/* Compute pipelines whose layout is push constants only; those of kernels, with the caller's expressions. */
#include "vulkan/vulkan.h"

#include "base/alloc.h"
#include "base/error.h"
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
        status = result ? attune__vulkan_fail(device, result, "vkCreateShaderModule") : ATTUNE_OK;
    }
    attune__free(allocator, preserving);
    return status;
}

static attune_status create(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                            VkShaderModule *module, attune__vulkan_pipeline *pipeline)
{
    const attune__vulkan_functions *vk = &device->vk;
    ATTUNE__TRY(create_module(device, desc, module));
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = desc->push_constants};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = desc->push_constants > 0,
        .pPushConstantRanges = &range,
    };
    VkResult result = vk->CreatePipelineLayout(device->handle, &layout, NULL, &pipeline->layout);
    if (result)
        return attune__vulkan_fail(device, result, "vkCreatePipelineLayout");
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = desc->subgroup_size,
    };
    const bool sized =
        desc->subgroup_size && device->physical.features.subgroup_size_control && device->physical.required_sizes;
    const bool full = desc->subgroup_size && device->physical.features.full_subgroups;
    VkSpecializationMapEntry entries[ATTUNE__VULKAN_CONSTANTS];
    for (uint32_t i = 0; i < ATTUNE__VULKAN_CONSTANTS; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof *desc->constants, sizeof *desc->constants};
    const VkSpecializationInfo constants = {ATTUNE__VULKAN_CONSTANTS, entries,
                                            ATTUNE__VULKAN_CONSTANTS * sizeof *desc->constants, desc->constants};
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage =
            {
                .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .pNext = sized ? &size : NULL,
                .flags = full ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                .module = *module,
                .pName = "main",
                .pSpecializationInfo = desc->constants ? &constants : NULL,
            },
        .layout = pipeline->layout,
    };
    attune__vulkan_cache cache;
    attune__vulkan_cache_begin(device, desc, &cache);
    result = vk->CreateComputePipelines(device->handle, cache.handle, 1, &info, NULL, &pipeline->handle);
    /* The cached data may be at fault. */
    if (result && cache.hit)
        result = vk->CreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &info, NULL, &pipeline->handle);
    attune__vulkan_cache_end(device, &cache, !result);
    return result ? attune__vulkan_fail(device, result, "vkCreateComputePipelines") : ATTUNE_OK;
}

attune_status attune__vulkan_pipeline_create(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                             attune__vulkan_pipeline *pipeline)
{
    VkShaderModule module = VK_NULL_HANDLE;
    *pipeline = (attune__vulkan_pipeline){0};
    attune_status status = create(device, desc, &module, pipeline);
    if (module)
        device->vk.DestroyShaderModule(device->handle, module, NULL);
    if (status == ATTUNE_OK)
        return ATTUNE_OK;
    attune__vulkan_pipeline_destroy(device, pipeline);
    /* Any other code means that the driver's compiler gave up. */
    if (status != ATTUNE_OUT_OF_HOST_MEMORY && status != ATTUNE_OUT_OF_DEVICE_MEMORY && status != ATTUNE_DEVICE_LOST)
        status = ATTUNE_COMPILE_FAILED;
    return attune__fail_context(status, "the driver of device %s refuses kernel %s: ", device->base.info.id,
                                desc->name);
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

attune_status attune__vulkan_pipeline_specialise(attune_device *device, const uint32_t *words, size_t count,
                                                 const attune__hash *hash, const char *name, const uint32_t *constants,
                                                 uint32_t subgroup_size, attune__vulkan_pipeline *pipeline)
{
    attune__hash own = attune__hash_begin();
    if (!hash)
        attune__hash_bytes(&own, words, count * sizeof *words);
    const attune__vulkan_pipeline_desc desc = {
        .name = name,
        .words = words,
        .word_count = count,
        .push_constants = sizeof(attune__vulkan_push),
        .constants = constants,
        .subgroup_size = subgroup_size,
        .hash = hash ? hash : &own,
    };
    return attune__vulkan_pipeline_create(attune__vulkan_of(device), &desc, pipeline);
}

attune_status attune__vulkan_pipeline_pair(attune_device *device, const attune__program_desc *desc,
                                           const attune__vulkan_kernel kernels[2], attune__vulkan_pipeline *any,
                                           attune__vulkan_pipeline *aligned)
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
    for (int i = 0; i < 2 && status == ATTUNE_OK; i++)
        status = attune__vulkan_pipeline_specialise(
            device, words, count, &hash, desc->choice->kernel, kernels[i].constants,
            kernels[i].subgroups ? device->info.limits.subgroup_size : 0, pipelines[i]);
    attune__free(&device->host.allocator, words);
    return status;
}

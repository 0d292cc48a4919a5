/* SPDX-License-Identifier: MIT */
/* A compute pipeline whose layout is push constants only. */
#include "vulkan/vulkan.h"

#include "base/error.h"

static attune_status create(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                            VkShaderModule *module, attune__vulkan_pipeline *pipeline)
{
    const attune__vulkan_functions *vk = &device->vk;
    const VkShaderModuleCreateInfo words = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = desc->word_count * sizeof *desc->words,
        .pCode = desc->words,
    };
    VkResult result = vk->CreateShaderModule(device->handle, &words, NULL, module);
    if (result)
        return attune__vulkan_fail(device, result, "vkCreateShaderModule");
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = desc->push_constants};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = desc->push_constants > 0,
        .pPushConstantRanges = &range,
    };
    result = vk->CreatePipelineLayout(device->handle, &layout, NULL, &pipeline->layout);
    if (result)
        return attune__vulkan_fail(device, result, "vkCreatePipelineLayout");
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = desc->subgroup_size,
    };
    const bool sized =
        desc->subgroup_size && device->physical.features.subgroup_size_control && device->physical.required_sizes;
    const bool full = desc->subgroup_size && device->physical.features.full_subgroups;
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
                .pSpecializationInfo = desc->constants,
            },
        .layout = pipeline->layout,
    };
    attune__vulkan_cache cache;
    attune__vulkan_cache_begin(device, desc, &cache);
    result = vk->CreateComputePipelines(device->handle, cache.handle, 1, &info, NULL, &pipeline->handle);
    /* The fault may be of what the disk kept. */
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
    /* A driver's compiler that gives up answers with any code but these. */
    if (status != ATTUNE_OUT_OF_HOST_MEMORY && status != ATTUNE_OUT_OF_DEVICE_MEMORY && status != ATTUNE_DEVICE_LOST)
        status = ATTUNE_COMPILE_FAILED;
    return attune__fail_context(status, "the driver of device %s refuses kernel %s: ", device->base.info.id,
                                desc->name);
}

void attune__vulkan_pipeline_destroy(attune__vulkan_device *device, attune__vulkan_pipeline *pipeline)
{
    if (pipeline->handle)
        device->vk.DestroyPipeline(device->handle, pipeline->handle, NULL);
    if (pipeline->layout)
        device->vk.DestroyPipelineLayout(device->handle, pipeline->layout, NULL);
    *pipeline = (attune__vulkan_pipeline){0};
}

/* SPDX-License-Identifier: MIT */
/* Extensions and features: the ones attune uses, requests for them, and those that an engine enabled. */
#include "vulkan/vulkan.h"

#include <string.h>

const char *const attune__vulkan_extension_names[ATTUNE__VULKAN_EXTENSIONS] = {
    VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME,
    VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME,
    VK_KHR_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_EXTENSION_NAME,
    VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME,
    VK_KHR_MAINTENANCE_4_EXTENSION_NAME,
    "VK_KHR_portability_subset",
};

/* Recommended are those that an engine would choose: the portability subset is a duty, not a choice. */
#define RECOMMENDED (ATTUNE__VULKAN_EXTENSIONS - 1)

static const char *const required_features[] = {"bufferDeviceAddress", "timelineSemaphore"};

static const char *const recommended_features[] = {
    "shaderInt16",
    "shaderInt64",
    "shaderFloat16",
    "shaderInt8",
    "storageBuffer16BitAccess",
    "storagePushConstant16",
    "storageBuffer8BitAccess",
    "scalarBlockLayout",
    "vulkanMemoryModel",
    "vulkanMemoryModelDeviceScope",
    "shaderSubgroupExtendedTypes",
    "subgroupSizeControl",
    "computeFullSubgroups",
    "maintenance4",
    "workgroupMemoryExplicitLayout",
    "workgroupMemoryExplicitLayout16BitAccess",
    "cooperativeMatrix",
    "shaderBFloat16Type",
    "shaderBFloat16CooperativeMatrix",
};

static const char *const *list(const char *const *names, size_t length, uint32_t *count)
{
    if (count)
        *count = (uint32_t)length;
    return names;
}

const char *const *attune_vulkan_required_extensions(uint32_t *count)
{
    return list(attune__vulkan_extension_names, 0, count);
}

const char *const *attune_vulkan_recommended_extensions(uint32_t *count)
{
    return list(attune__vulkan_extension_names, RECOMMENDED, count);
}

const char *const *attune_vulkan_required_features(uint32_t *count)
{
    return list(required_features, sizeof required_features / sizeof *required_features, count);
}

const char *const *attune_vulkan_recommended_features(uint32_t *count)
{
    return list(recommended_features, sizeof recommended_features / sizeof *recommended_features, count);
}

void attune__vulkan_chain_init(attune__vulkan_chain *chain, uint32_t api_version, uint32_t extensions)
{
    *chain = (attune__vulkan_chain){
        .base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .size_control.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
        .maintenance4.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
        .workgroup_layout.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_FEATURES_KHR,
        .cooperative_matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
        .bfloat16.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
    };
    const bool core = api_version >= VK_API_VERSION_1_3;
    void **tail = &chain->base.pNext;
#define LINK(member, there)                                                                                            \
    if (there) {                                                                                                       \
        *tail = &chain->member;                                                                                        \
        tail = &chain->member.pNext;                                                                                   \
    }
    LINK(v11, true)
    LINK(v12, true)
    LINK(size_control, core || (extensions & ATTUNE__VULKAN_SUBGROUP_SIZE_CONTROL))
    LINK(maintenance4, core || (extensions & ATTUNE__VULKAN_MAINTENANCE4))
    LINK(workgroup_layout, extensions & ATTUNE__VULKAN_WORKGROUP_LAYOUT)
    LINK(cooperative_matrix, extensions & ATTUNE__VULKAN_COOPERATIVE_MATRIX)
    LINK(bfloat16, extensions & ATTUNE__VULKAN_BFLOAT16)
#undef LINK
}

void attune__vulkan_chain_enable(attune__vulkan_chain *chain, const attune__vulkan_features *features)
{
    const attune__vulkan_features *f = features;
    chain->base.features.shaderInt16 = f->int16;
    chain->base.features.shaderInt64 = f->int64;
    chain->v11.storageBuffer16BitAccess = f->storage16;
    chain->v11.storagePushConstant16 = f->push16;
    chain->v12.bufferDeviceAddress = f->buffer_device_address;
    chain->v12.timelineSemaphore = f->timeline_semaphore;
    chain->v12.shaderFloat16 = f->float16;
    chain->v12.shaderInt8 = f->int8;
    chain->v12.storageBuffer8BitAccess = f->storage8;
    chain->v12.scalarBlockLayout = f->scalar_layout;
    chain->v12.vulkanMemoryModel = f->memory_model;
    chain->v12.vulkanMemoryModelDeviceScope = f->memory_model_device_scope;
    chain->v12.shaderSubgroupExtendedTypes = f->subgroup_extended_types;
    chain->size_control.subgroupSizeControl = f->subgroup_size_control;
    chain->size_control.computeFullSubgroups = f->full_subgroups;
    chain->maintenance4.maintenance4 = f->maintenance4;
    chain->workgroup_layout.workgroupMemoryExplicitLayout = f->workgroup_layout;
    chain->workgroup_layout.workgroupMemoryExplicitLayout16BitAccess = f->workgroup_layout16;
    chain->cooperative_matrix.cooperativeMatrix = f->cooperative_matrix;
    chain->bfloat16.shaderBFloat16Type = f->bfloat16;
    chain->bfloat16.shaderBFloat16CooperativeMatrix = f->bfloat16_cooperative_matrix;
}

static void read_base(const VkPhysicalDeviceFeatures *base, attune__vulkan_features *f)
{
    f->int16 |= base->shaderInt16 != 0;
    f->int64 |= base->shaderInt64 != 0;
}

void attune__vulkan_chain_read(const void *chain, const VkPhysicalDeviceFeatures *base,
                               attune__vulkan_features *features)
{
    attune__vulkan_features *f = features;
    *f = (attune__vulkan_features){0};
    if (base)
        read_base(base, f);
    /* An engine may name a feature in the struct of its extension, of its own, or of the core version. */
    for (const VkBaseInStructure *link = chain; link; link = link->pNext) {
        const void *s = link;
#define IS(type, struct)                                                                                               \
    case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type##_FEATURES: {                                                        \
        const VkPhysicalDevice##struct *x = s;
#define IS_KHR(type, struct)                                                                                           \
    case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type##_FEATURES_KHR: {                                                    \
        const VkPhysicalDevice##struct *x = s;
#define READ(field, member) f->field |= x->member != 0;
#define END                                                                                                            \
    break;                                                                                                             \
    }
        /* clang-format off */
        switch ((int)link->sType) {
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2:
            read_base(&((const VkPhysicalDeviceFeatures2 *)s)->features, f);
            break;
        IS(VULKAN_1_1, Vulkan11Features)
            READ(storage16, storageBuffer16BitAccess)
            READ(push16, storagePushConstant16)
        END
        IS(VULKAN_1_2, Vulkan12Features)
            READ(buffer_device_address, bufferDeviceAddress)
            READ(timeline_semaphore, timelineSemaphore)
            READ(float16, shaderFloat16)
            READ(int8, shaderInt8)
            READ(storage8, storageBuffer8BitAccess)
            READ(scalar_layout, scalarBlockLayout)
            READ(memory_model, vulkanMemoryModel)
            READ(memory_model_device_scope, vulkanMemoryModelDeviceScope)
            READ(subgroup_extended_types, shaderSubgroupExtendedTypes)
        END
        IS(VULKAN_1_3, Vulkan13Features)
            READ(subgroup_size_control, subgroupSizeControl)
            READ(full_subgroups, computeFullSubgroups)
            READ(maintenance4, maintenance4)
        END
        IS(16BIT_STORAGE, 16BitStorageFeatures)
            READ(storage16, storageBuffer16BitAccess)
            READ(push16, storagePushConstant16)
        END
        IS(BUFFER_DEVICE_ADDRESS, BufferDeviceAddressFeatures) READ(buffer_device_address, bufferDeviceAddress) END
        IS(TIMELINE_SEMAPHORE, TimelineSemaphoreFeatures) READ(timeline_semaphore, timelineSemaphore) END
        IS(SHADER_FLOAT16_INT8, ShaderFloat16Int8Features)
            READ(float16, shaderFloat16)
            READ(int8, shaderInt8)
        END
        IS(8BIT_STORAGE, 8BitStorageFeatures) READ(storage8, storageBuffer8BitAccess) END
        IS(SCALAR_BLOCK_LAYOUT, ScalarBlockLayoutFeatures) READ(scalar_layout, scalarBlockLayout) END
        IS(VULKAN_MEMORY_MODEL, VulkanMemoryModelFeatures)
            READ(memory_model, vulkanMemoryModel)
            READ(memory_model_device_scope, vulkanMemoryModelDeviceScope)
        END
        IS(SHADER_SUBGROUP_EXTENDED_TYPES, ShaderSubgroupExtendedTypesFeatures)
            READ(subgroup_extended_types, shaderSubgroupExtendedTypes)
        END
        IS(SUBGROUP_SIZE_CONTROL, SubgroupSizeControlFeatures)
            READ(subgroup_size_control, subgroupSizeControl)
            READ(full_subgroups, computeFullSubgroups)
        END
        IS(MAINTENANCE_4, Maintenance4Features) READ(maintenance4, maintenance4) END
        IS_KHR(WORKGROUP_MEMORY_EXPLICIT_LAYOUT, WorkgroupMemoryExplicitLayoutFeaturesKHR)
            READ(workgroup_layout, workgroupMemoryExplicitLayout)
            READ(workgroup_layout16, workgroupMemoryExplicitLayout16BitAccess)
        END
        IS_KHR(COOPERATIVE_MATRIX, CooperativeMatrixFeaturesKHR) READ(cooperative_matrix, cooperativeMatrix) END
        IS_KHR(SHADER_BFLOAT16, ShaderBfloat16FeaturesKHR)
            READ(bfloat16, shaderBFloat16Type)
            READ(bfloat16_cooperative_matrix, shaderBFloat16CooperativeMatrix)
        END
        default:
            break;
        }
        /* clang-format on */
#undef IS
#undef IS_KHR
#undef READ
#undef END
    }
}

void attune__vulkan_features_meet(attune__vulkan_features *features, const attune__vulkan_features *other)
{
    bool *f = (bool *)features;
    const bool *o = (const bool *)other;
    for (size_t i = 0; i < sizeof *features / sizeof(bool); i++)
        f[i] &= o[i];
}

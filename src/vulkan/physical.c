/* SPDX-License-Identifier: MIT */
/* A physical device: its properties, corrections where drivers are known to be wrong, and the planner's limits. */
#include "vulkan/vulkan.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

#define VENDOR_AMD   0x1002
#define VENDOR_INTEL 0x8086

/* Extensions whose properties are read; they need not be enabled. */
enum { SM_BUILTINS, SHADER_CORE_AMD, SHADER_CORE_ARM, PCI_BUS, INTEGER_DOT, READ_EXTENSIONS };
static const char *const read_extensions[READ_EXTENSIONS] = {
    VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME,          VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME,
    VK_ARM_SHADER_CORE_BUILTINS_EXTENSION_NAME,       VK_EXT_PCI_BUS_INFO_EXTENSION_NAME,
    VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME,
};

static attune_status read_extension_list(const attune_allocator *allocator, const attune__vulkan_functions *vk,
                                         attune__vulkan_physical *physical, uint32_t *readable)
{
    uint32_t count = 0;
    *readable = 0;
    if (vk->EnumerateDeviceExtensionProperties(physical->handle, NULL, &count, NULL) || !count)
        return ATTUNE_OK;
    VkExtensionProperties *list = attune__alloc(allocator, count, sizeof *list);
    if (!list)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (vk->EnumerateDeviceExtensionProperties(physical->handle, NULL, &count, list) < 0)
        count = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t e = 0; e < ATTUNE__VULKAN_EXTENSIONS; e++)
            if (!strcmp(list[i].extensionName, attune__vulkan_extension_names[e]))
                physical->extensions |= 1u << e;
        for (uint32_t e = 0; e < READ_EXTENSIONS; e++)
            if (!strcmp(list[i].extensionName, read_extensions[e]))
                *readable |= 1u << e;
    }
    attune__free(allocator, list);
    return ATTUNE_OK;
}

/* A compute queue; preferably without graphics, so that work does not wait for a desktop's. */
static bool choose_family(const attune__vulkan_functions *vk, attune__vulkan_physical *physical)
{
    VkQueueFamilyProperties2 families[16];
    uint32_t count = 16;
    for (uint32_t i = 0; i < count; i++)
        families[i] = (VkQueueFamilyProperties2){.sType = VK_STRUCTURE_TYPE_QUEUE_FAMILY_PROPERTIES_2};
    vk->GetPhysicalDeviceQueueFamilyProperties2(physical->handle, &count, families);
    uint32_t best = 0;
    for (uint32_t i = 0; i < count; i++) {
        const VkQueueFamilyProperties *f = &families[i].queueFamilyProperties;
        if (!(f->queueFlags & VK_QUEUE_COMPUTE_BIT) || !f->queueCount)
            continue;
        const uint32_t score =
            1u + (f->timestampValidBits ? 2u : 0u) + (f->queueFlags & VK_QUEUE_GRAPHICS_BIT ? 0u : 1u);
        if (score <= best)
            continue;
        best = score;
        physical->family = i;
        physical->timestamp_bits = f->timestampValidBits;
    }
    return best > 0;
}

static void read_memory(const attune__vulkan_functions *vk, attune__vulkan_physical *physical)
{
    VkPhysicalDeviceMemoryProperties2 memory = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    vk->GetPhysicalDeviceMemoryProperties2(physical->handle, &memory);
    for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &memory.memoryProperties.memoryHeaps[i];
        if ((heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && heap->size > physical->heap)
            physical->heap = heap->size;
    }
}

static void read_matrices(const attune__vulkan_functions *vk, attune__vulkan_physical *physical)
{
    VkCooperativeMatrixPropertiesKHR list[ATTUNE__VULKAN_MAX_MATRICES];
    uint32_t count = ATTUNE__VULKAN_MAX_MATRICES;
    for (uint32_t i = 0; i < count; i++)
        list[i] = (VkCooperativeMatrixPropertiesKHR){.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    if (!vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR ||
        vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(physical->handle, &count, list) < 0)
        return;
    physical->matrix_count = count;
    for (uint32_t i = 0; i < count; i++)
        physical->matrices[i] = (attune__vulkan_matrix){
            .m = list[i].MSize,
            .n = list[i].NSize,
            .k = list[i].KSize,
            .a = list[i].AType,
            .b = list[i].BType,
            .c = list[i].CType,
            .result = list[i].ResultType,
            .scope = list[i].scope,
            .saturating = list[i].saturatingAccumulation,
        };
}

/*
 * Matrices that the driver reports and that are wrong or slower than without: AMD's own drivers report them for chips
 * before RDNA3, known by the missing mixed-sign dot product; Intel's 8-wide chips (Alchemist) lose by them; Qualcomm's
 * compiler gives wrong results (ncnn 6719, 6972).
 */
static bool believes_matrices(const attune__vulkan_physical *physical, bool mixed_dot)
{
    switch (physical->driver) {
    case VK_DRIVER_ID_AMD_PROPRIETARY:
    case VK_DRIVER_ID_AMD_OPEN_SOURCE:
        return mixed_dot;
    case VK_DRIVER_ID_QUALCOMM_PROPRIETARY:
        return false;
    default:
        return !(physical->vendor == VENDOR_INTEL && physical->subgroup_min < 16);
    }
}

/* Metal's shuffles and reductions through MoltenVK are wrong on AMD chips (llama.cpp 20029). */
static bool believes_subgroups(const attune__vulkan_physical *physical)
{
    return !(physical->driver == VK_DRIVER_ID_MOLTENVK && physical->vendor == VENDOR_AMD);
}

/* "1.2.3", or as the vendor packs it. */
static void read_names(attune__vulkan_physical *physical, const VkPhysicalDeviceProperties *properties,
                       const VkPhysicalDeviceVulkan12Properties *v12)
{
    attune_device_info *info = &physical->info;
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties->deviceName);
    char text[2 * VK_MAX_DRIVER_NAME_SIZE + 2] = "";
    if (v12)
        snprintf(text, sizeof text, "%s%s%s", v12->driverName, v12->driverInfo[0] ? " " : "", v12->driverInfo);
    else
        snprintf(text, sizeof text, "version 0x%x", properties->driverVersion);
    snprintf(info->driver, sizeof info->driver, "%.*s", (int)sizeof info->driver - 1, text);
}

static void read_units(attune__vulkan_physical *physical, const VkPhysicalDeviceShaderSMBuiltinsPropertiesNV *nv,
                       const VkPhysicalDeviceShaderCorePropertiesAMD *amd,
                       const VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM *arm)
{
    if (nv->shaderSMCount) {
        physical->compute_units = nv->shaderSMCount;
        physical->unit_invocations = nv->shaderWarpsPerSM * 32;
    } else if (amd->computeUnitsPerShaderArray) {
        physical->compute_units =
            amd->shaderEngineCount * amd->shaderArraysPerEngineCount * amd->computeUnitsPerShaderArray;
        physical->unit_invocations = amd->simdPerComputeUnit * amd->wavefrontsPerSimd * amd->wavefrontSize;
    } else if (arm->shaderCoreCount) {
        physical->compute_units = arm->shaderCoreCount;
    } else if (physical->type == VK_PHYSICAL_DEVICE_TYPE_CPU) {
        const long cores = sysconf(_SC_NPROCESSORS_ONLN);
        physical->compute_units = cores > 0 ? (uint32_t)cores : 1;
    }
}

static void read_properties(const attune__vulkan_functions *vk, attune__vulkan_physical *physical, uint32_t readable)
{
    VkPhysicalDeviceProperties2 base = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    VkPhysicalDeviceVulkan11Properties v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceSubgroupSizeControlProperties sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
    VkPhysicalDeviceMaintenance4Properties maintenance4 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES};
    VkPhysicalDeviceShaderIntegerDotProductProperties dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES};
    VkPhysicalDevicePCIBusInfoPropertiesEXT pci = {.sType =
                                                       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceShaderCorePropertiesAMD amd = {.sType =
                                                       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
    VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM arm = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM};
    const bool core = physical->api_version >= VK_API_VERSION_1_3;
    void **tail = &base.pNext;
#define LINK(name, there)                                                                                              \
    if (there) {                                                                                                       \
        *tail = &(name);                                                                                               \
        tail = &(name).pNext;                                                                                          \
    }
    LINK(v11, true)
    LINK(v12, true)
    LINK(sizes, core || (physical->extensions & ATTUNE__VULKAN_SUBGROUP_SIZE_CONTROL))
    LINK(maintenance4, core || (physical->extensions & ATTUNE__VULKAN_MAINTENANCE4))
    LINK(dot, core || (readable & 1u << INTEGER_DOT))
    LINK(pci, readable & 1u << PCI_BUS)
    LINK(nv, readable & 1u << SM_BUILTINS)
    LINK(amd, readable & 1u << SHADER_CORE_AMD)
    LINK(arm, readable & 1u << SHADER_CORE_ARM)
#undef LINK
    vk->GetPhysicalDeviceProperties2(physical->handle, &base);

    const VkPhysicalDeviceLimits *limits = &base.properties.limits;
    physical->driver = v12.driverID;
    memcpy(physical->uuid, v11.deviceUUID, sizeof physical->uuid);
    memcpy(physical->driver_uuid, v11.driverUUID, sizeof physical->driver_uuid);
    memcpy(physical->pipeline_cache_uuid, base.properties.pipelineCacheUUID, sizeof physical->pipeline_cache_uuid);
    physical->has_pci = readable & 1u << PCI_BUS;
    memcpy(physical->pci, (uint32_t[]){pci.pciDomain, pci.pciBus, pci.pciDevice, pci.pciFunction},
           sizeof physical->pci);
    physical->subgroup_size = v11.subgroupSize;
    physical->subgroup_min = sizes.minSubgroupSize ? sizes.minSubgroupSize : v11.subgroupSize;
    physical->subgroup_max = sizes.maxSubgroupSize ? sizes.maxSubgroupSize : v11.subgroupSize;
    physical->preserves = v12.shaderSignedZeroInfNanPreserveFloat32;
    physical->required_sizes = sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
    const VkSubgroupFeatureFlags operations = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |
                                              VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT |
                                              VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    physical->subgroup_operations = (v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
                                    (v11.subgroupSupportedOperations & operations) == operations &&
                                    believes_subgroups(physical);
    memcpy(physical->max_workgroups, limits->maxComputeWorkGroupCount, sizeof physical->max_workgroups);
    physical->max_allocation = v11.maxMemoryAllocationSize;
    physical->max_buffer = maintenance4.maxBufferSize ? maintenance4.maxBufferSize : v11.maxMemoryAllocationSize;
    physical->timestamp_period = physical->timestamp_bits ? (double)limits->timestampPeriod : 0;
    physical->max_shared_memory = limits->maxComputeSharedMemorySize;
    physical->max_invocations = limits->maxComputeWorkGroupInvocations;
    if (limits->maxComputeWorkGroupSize[0] < physical->max_invocations)
        physical->max_invocations = limits->maxComputeWorkGroupSize[0];
    physical->max_push_constants = limits->maxPushConstantsSize;
    physical->max_storage_range = limits->maxStorageBufferRange;
    read_units(physical, &nv, &amd, &arm);
    read_names(physical, &base.properties, &v12);
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        snprintf(physical->info.uuid + 2 * i, 3, "%02x", physical->uuid[i]);
    if (!believes_matrices(physical, dot.integerDotProduct4x8BitPackedMixedSignednessAccelerated))
        physical->extensions &= ~(uint32_t)ATTUNE__VULKAN_COOPERATIVE_MATRIX;
}

attune_status attune__vulkan_physical_read(const attune_allocator *allocator, const attune__vulkan_functions *vk,
                                           uint32_t instance_version, attune__vulkan_physical *physical)
{
    attune_device_info *info = &physical->info;
    *info = (attune_device_info){.struct_size = sizeof *info, .backend = ATTUNE_BACKEND_VULKAN};
    info->limits = (attune_limits){.struct_size = sizeof info->limits, .backend = ATTUNE_BACKEND_VULKAN};

    /* Structs newer than 1.1 may not be queried before the device's version is known. */
    VkPhysicalDeviceProperties2 base = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk->GetPhysicalDeviceProperties2(physical->handle, &base);
    const uint32_t version = base.properties.apiVersion;
    physical->type = base.properties.deviceType;
    physical->vendor = base.properties.vendorID;
    physical->device_id = base.properties.deviceID;
    physical->driver_version = base.properties.driverVersion;
    physical->api_version = version < instance_version ? version : instance_version;
    read_names(physical, &base.properties, NULL);
    read_memory(vk, physical);
    if (physical->api_version < VK_API_VERSION_1_2) {
        snprintf(info->reason, sizeof info->reason, "its driver has Vulkan %u.%u, 1.2 is needed: update the driver",
                 VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        return ATTUNE_OK;
    }
    uint32_t readable;
    ATTUNE__TRY(read_extension_list(allocator, vk, physical, &readable));
    const bool computes = choose_family(vk, physical);
    read_properties(vk, physical, readable);

    attune__vulkan_chain chain;
    attune__vulkan_chain_init(&chain, physical->api_version, physical->extensions);
    vk->GetPhysicalDeviceFeatures2(physical->handle, &chain.base);
    attune__vulkan_chain_read(&chain, NULL, &physical->features);
    if (physical->features.cooperative_matrix)
        read_matrices(vk, physical);

    if (!computes)
        snprintf(info->reason, sizeof info->reason, "it has no queue that computes");
    else if (!physical->features.buffer_device_address)
        snprintf(info->reason, sizeof info->reason,
                 "its driver lacks the feature bufferDeviceAddress, by which kernels reach memory");
    else if (!physical->features.timeline_semaphore)
        snprintf(info->reason, sizeof info->reason,
                 "its driver lacks the feature timelineSemaphore, by which calls are waited for");
    else
        info->available = true;
    return ATTUNE_OK;
}

/* Subgroup-scope A x B + C of 16-bit floats into f32. */
static const attune__vulkan_matrix *choose_matrix(const attune__vulkan_physical *physical, VkComponentTypeKHR type)
{
    const attune__vulkan_matrix *first = NULL;
    for (uint32_t i = 0; i < physical->matrix_count; i++) {
        const attune__vulkan_matrix *x = &physical->matrices[i];
        if (x->scope != VK_SCOPE_SUBGROUP_KHR || x->a != type || x->b != type || x->saturating ||
            x->c != VK_COMPONENT_TYPE_FLOAT32_KHR || x->result != VK_COMPONENT_TYPE_FLOAT32_KHR)
            continue;
        if (x->m == 16 && x->n == 16 && x->k == 16)
            return x;
        if (!first)
            first = x;
    }
    return first;
}

/* The fragment layouts of these drivers, which opening the device verifies. Weights are converted to f16 accumulators,
 * which the device must have too. */
static uint32_t expected_layout(const attune__vulkan_physical *physical, const attune__vulkan_matrix *matrix)
{
    const uint32_t lanes = physical->info.limits.subgroup_size;
    bool narrows = false;
    for (uint32_t i = 0; i < physical->matrix_count; i++) {
        const attune__vulkan_matrix *x = &physical->matrices[i];
        narrows = narrows || (x->scope == matrix->scope && x->m == matrix->m && x->n == matrix->n &&
                              x->k == matrix->k && x->a == matrix->a && x->result == VK_COMPONENT_TYPE_FLOAT16_KHR);
    }
    if (!narrows)
        return 0;
    if (physical->driver == VK_DRIVER_ID_NVIDIA_PROPRIETARY && lanes == 32 && matrix->m == 16 && matrix->n == 16 &&
        matrix->k == 16)
        return ATTUNE_FRAGMENT_QUADS;
    if (physical->driver == VK_DRIVER_ID_MESA_LLVMPIPE && matrix->m == lanes && matrix->n == lanes &&
        matrix->k == lanes)
        return ATTUNE_FRAGMENT_COLUMNS;
    return 0;
}

/* A lower bound where the driver does not report it: enough workgroups for decoding to split. */
static uint32_t guess_units(VkPhysicalDeviceType type)
{
    return type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 32 : 8;
}

void attune__vulkan_limits_choose(attune__vulkan_physical *physical)
{
    const attune__vulkan_features *f = &physical->features;
    attune_limits *limits = &physical->info.limits;
    *limits = (attune_limits){
        .struct_size = sizeof *limits,
        .backend = ATTUNE_BACKEND_VULKAN,
        .compute_units = physical->compute_units ? physical->compute_units : guess_units(physical->type),
        .shared_memory = physical->max_shared_memory,
        .workgroup_invocations = physical->max_invocations,
        .unit_invocations = physical->unit_invocations,
        .subgroup_size = physical->subgroup_size,
        .push_constants = physical->max_push_constants,
        .f16 = f->float16,
        .subgroup_operations = physical->subgroup_operations,
        .storage_range = physical->max_storage_range,
        .memory = physical->heap,
        .host = physical->type == VK_PHYSICAL_DEVICE_TYPE_CPU && f->int64,
    };
    /* Subgroups of more than 64 lanes are untested: where the size can be required, it is. */
    if (f->subgroup_size_control && physical->required_sizes)
        while (limits->subgroup_size > 64 && limits->subgroup_size / 2 >= physical->subgroup_min)
            limits->subgroup_size /= 2;
            /* Cooperative matrices are used in full subgroups only, under the Vulkan memory model. */
#if ATTUNE_HAVE_COOPERATIVE_MATRIX
    const bool compiled = true;
#else
    const bool compiled = false; /* the build's glslang does not know them */
#endif
    if (!compiled || !f->cooperative_matrix || !f->memory_model || !f->full_subgroups || !f->float16)
        return;
    const attune__vulkan_matrix *matrix = choose_matrix(physical, VK_COMPONENT_TYPE_FLOAT16_KHR);
    if (!matrix)
        return;
    limits->matrix = ATTUNE_MATRIX_COOPMAT;
    limits->matrix_m = matrix->m;
    limits->matrix_n = matrix->n;
    limits->matrix_k = matrix->k;
    limits->fragment_layout = expected_layout(physical, matrix);
    /* Where the kernel for f16 has the same tiles: it is compiled for both. */
    const attune__vulkan_matrix *wide = choose_matrix(physical, VK_COMPONENT_TYPE_BFLOAT16_KHR);
    limits->bf16 = f->bfloat16 && f->bfloat16_cooperative_matrix && limits->fragment_layout && wide &&
                   wide->m == matrix->m && wide->n == matrix->n && wide->k == matrix->k;
}

/* SPDX-License-Identifier: MIT */
/*
 * The table of known devices. Unit counts and memory are from data sheets; other figures are reported by drivers.
 * Shared memory of CUDA is the opt-in limit of a workgroup: that of the compute unit less 1 KiB that the driver
 * reserves for each workgroup.
 */
#include "plan/family.h"

#include <string.h>
#include <strings.h>

#include "base/desc.h"
#include "base/error.h"
#include "base/text.h"

#define KIB UINT32_C(1024)
#define GIB (UINT64_C(1) << 30)

#define CUDA_SOURCE "CUDA C++ Programming Guide, Technical Specifications per Compute Capability; vendor's data sheet"
#define MESA_SOURCE "Mesa 26.2's driver; vendor's data sheet"
#define DATABASE    "Vulkan hardware database (vulkan.gpuinfo.org); vendor's data sheet"

#define CUDA(arch, units, shared, threads, matrices, bytes)                                                            \
    {                                                                                                                  \
        .struct_size = sizeof(attune_limits), .backend = ATTUNE_BACKEND_CUDA, .architecture = (arch),                  \
        .compute_units = (units), .shared_memory = ((shared)-1) * KIB, .shared_memory_unit = (shared)*KIB,             \
        .shared_memory_reserved = 1 * KIB, .workgroup_invocations = 1024, .unit_invocations = (threads),               \
        .registers = 65536, .registers_per_thread = 255, .subgroup_size = 32, .matrix = (matrices), .f16 = true,       \
        .bf16 = true, .subgroup_operations = true, .memory = (bytes)*GIB                                               \
    }

#define SM80  ATTUNE_MATRIX_MMA_SYNC
#define SM90  (ATTUNE_MATRIX_MMA_SYNC | ATTUNE_MATRIX_WGMMA)
#define SM100 (ATTUNE_MATRIX_MMA_SYNC | ATTUNE_MATRIX_TCGEN05)

#define ADRENO_SOURCE "vendor's data sheet; llama.cpp's logs (pull requests 10693 and 25870: 1 GiB in one object)"

#define VULKAN                             .struct_size = sizeof(attune_limits), .backend = ATTUNE_BACKEND_VULKAN
#define OPENCL                             .struct_size = sizeof(attune_limits), .backend = ATTUNE_BACKEND_OPENCL
#define PROFILE(name, description, source) sizeof(attune_profile), name, description, source

static const attune_profile profiles[] = {
    {PROFILE("cpu", "8 cores with 512 KiB of second-level cache and 256-bit vectors",
             "a common desktop: AMD Zen 2 to Zen 3"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_CPU,
      .compute_units = 8,
      .shared_memory = 512 * KIB,
      .workgroup_invocations = 1,
      .subgroup_size = 8,
      .f16 = true,
      .bf16 = true,
      .f64 = true,
      .memory = 16 * GIB}},
    {PROFILE("a6000", "NVIDIA RTX A6000 (sm_86)", CUDA_SOURCE), CUDA(86, 84, 100, 1536, SM80, 48)},
    {PROFILE("a10g", "NVIDIA A10G (sm_86)", CUDA_SOURCE), CUDA(86, 80, 100, 1536, SM80, 24)},
    {PROFILE("a100", "NVIDIA A100 SXM 80 GB (sm_80)", CUDA_SOURCE), CUDA(80, 108, 164, 2048, SM80, 80)},
    {PROFILE("orin", "NVIDIA Jetson AGX Orin (sm_87)", CUDA_SOURCE), CUDA(87, 16, 164, 1536, SM80, 64)},
    {PROFILE("rtx4090", "NVIDIA GeForce RTX 4090 (sm_89)", CUDA_SOURCE), CUDA(89, 128, 100, 1536, SM80, 24)},
    {PROFILE("h100", "NVIDIA H100 SXM (sm_90)", CUDA_SOURCE), CUDA(90, 132, 228, 2048, SM90, 80)},
    {PROFILE("h200", "NVIDIA H200 (sm_90)", CUDA_SOURCE), CUDA(90, 132, 228, 2048, SM90, 141)},
    {PROFILE("b200", "NVIDIA B200 (sm_100)", CUDA_SOURCE), CUDA(100, 148, 228, 2048, SM100, 180)},
    {PROFILE("rtx5090", "NVIDIA GeForce RTX 5090 (sm_120)", CUDA_SOURCE), CUDA(120, 170, 100, 1536, SM80, 32)},
    {PROFILE("h200-vulkan", "NVIDIA H200 through Vulkan, driver 580", "vulkaninfo of the device"),
     {VULKAN, .compute_units = 132, .shared_memory = 48 * KIB, .shared_memory_unit = 228 * KIB,
      .shared_memory_reserved = 1 * KIB, .workgroup_invocations = 1024, .unit_invocations = 2048, .subgroup_size = 32,
      .matrix = ATTUNE_MATRIX_COOPMAT | ATTUNE_MATRIX_COOPMAT2, .matrix_m = 16, .matrix_n = 16, .matrix_k = 16,
      .fragment_layout = ATTUNE_FRAGMENT_QUADS, .push_constants = 256, .f16 = true, .bf16 = true,
      .subgroup_operations = true, .storage_range = 4 * GIB - 1, .memory = 141 * GIB}},
    {PROFILE("rdna3", "AMD Radeon RX 7900 XTX, RADV", MESA_SOURCE),
     {VULKAN, .compute_units = 96, .shared_memory = 64 * KIB, .workgroup_invocations = 1024, .unit_invocations = 1024,
      .subgroup_size = 64, .matrix = ATTUNE_MATRIX_COOPMAT, .matrix_m = 16, .matrix_n = 16, .matrix_k = 16,
      .push_constants = 256, .f16 = true, .bf16 = true, .subgroup_operations = true, .storage_range = 4 * GIB - 4,
      .memory = 24 * GIB}},
    {PROFILE("rdna4", "AMD Radeon RX 9070 XT, RADV", MESA_SOURCE),
     {VULKAN, .compute_units = 64, .shared_memory = 64 * KIB, .workgroup_invocations = 1024, .unit_invocations = 1024,
      .subgroup_size = 64, .matrix = ATTUNE_MATRIX_COOPMAT, .matrix_m = 16, .matrix_n = 16, .matrix_k = 16,
      .push_constants = 256, .f16 = true, .bf16 = true, .subgroup_operations = true, .storage_range = 4 * GIB - 4,
      .memory = 16 * GIB}},
    {PROFILE("arc-b580", "Intel Arc B580 (Xe2), ANV", MESA_SOURCE),
     {VULKAN, .compute_units = 20, .shared_memory = 48 * KIB, .shared_memory_unit = 128 * KIB,
      .workgroup_invocations = 1024, .unit_invocations = 1024, .subgroup_size = 16, .matrix = ATTUNE_MATRIX_COOPMAT,
      .matrix_m = 8, .matrix_n = 16, .matrix_k = 16, .push_constants = 256, .f16 = true, .bf16 = true,
      .subgroup_operations = true, .storage_range = 4 * GIB - 4, .memory = 12 * GIB}},
    {PROFILE("adreno-840",
             "Qualcomm Adreno 840; its cooperative matrices are left out: ncnn had to turn them off "
             "(ncnn issue 6719); the count of units is an estimate",
             DATABASE),
     {VULKAN, .compute_units = 12, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .subgroup_size = 64,
      .push_constants = 256, .f16 = true, .subgroup_operations = true, .storage_range = 128 * KIB * KIB,
      .memory = 12 * GIB}},
    {PROFILE("mali-g720", "Arm Immortalis-G720 MC12", DATABASE),
     {VULKAN, .compute_units = 12, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .subgroup_size = 16,
      .push_constants = 256, .f16 = true, .subgroup_operations = true, .storage_range = 256 * KIB * KIB,
      .memory = 12 * GIB}},
    {PROFILE("apple-m3", "Apple M3, 10 cores, MoltenVK", DATABASE),
     {VULKAN, .compute_units = 10, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .subgroup_size = 32,
      .push_constants = 4096, .f16 = true, .subgroup_operations = true, .storage_range = 4 * GIB - 1,
      .memory = 16 * GIB}},
    {PROFILE("v3d", "Broadcom VideoCore VII of the Raspberry Pi 5, V3DV: no subgroup arithmetic", MESA_SOURCE),
     {VULKAN, .compute_units = 12, .shared_memory = 16 * KIB, .workgroup_invocations = 256, .subgroup_size = 16,
      .push_constants = 128, .storage_range = 1 * GIB, .memory = 4 * GIB}},
    {PROFILE("lavapipe", "Mesa's CPU Vulkan, 8 cores", "vulkaninfo of Mesa 26.2.6"),
     {VULKAN, .compute_units = 8, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .subgroup_size = 8,
      .matrix = ATTUNE_MATRIX_COOPMAT, .matrix_m = 8, .matrix_n = 8, .matrix_k = 8, .push_constants = 256, .f16 = true,
      .subgroup_operations = true, .storage_range = 128 * KIB * KIB, .memory = 16 * GIB, .host = true,
      .fragment_layout = ATTUNE_FRAGMENT_COLUMNS}},
    {PROFILE("vulkan-minimum", "The least that Vulkan 1.2 allows", "Vulkan specification, Required Limits"),
     {VULKAN, .compute_units = 1, .shared_memory = 16 * KIB, .workgroup_invocations = 128, .subgroup_size = 1,
      .push_constants = 128, .storage_range = 128 * KIB * KIB}},
    {PROFILE("opencl-minimum", "The least that OpenCL's full profile allows",
             "OpenCL specification, clGetDeviceInfo: CL_DEVICE_LOCAL_MEM_SIZE, CL_DEVICE_MAX_WORK_GROUP_SIZE"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_OPENCL,
      .compute_units = 1,
      .shared_memory = 32 * KIB,
      .workgroup_invocations = 1,
      .storage_range = 128 * KIB * KIB}},
    {PROFILE("opencl-nvidia", "NVIDIA H200 through OpenCL 3.0, driver 580", "clinfo of the device"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_OPENCL,
      .compute_units = 132,
      .shared_memory = 48 * KIB,
      .workgroup_invocations = 1024,
      .unit_invocations = 2048,
      .registers = 65536,
      .subgroup_size = 32,
      .memory = 141 * GIB}},
    {PROFILE("opencl-adreno-830",
             "Qualcomm Adreno 830 through OpenCL 3.0; the compiler may give a kernel fewer invocations; the count of "
             "units is an estimate",
             ADRENO_SOURCE),
     {OPENCL, .compute_units = 12, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .f16 = true,
      .storage_range = 1 * GIB, .memory = 12 * GIB}},
    {PROFILE("opencl-adreno-x2",
             "Qualcomm Adreno X2-90 through OpenCL 3.0; the compiler may give a kernel fewer invocations; the count of "
             "units is an estimate",
             ADRENO_SOURCE),
     {OPENCL, .compute_units = 16, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .f16 = true,
      .storage_range = 1 * GIB, .memory = 32 * GIB}},
    {PROFILE("opencl-mali-g720", "Arm Immortalis-G720 MC12 through OpenCL 3.0, whose local memory is global memory",
             "vendor's data sheet; clinfo of earlier Mali devices"),
     {OPENCL, .compute_units = 12, .shared_memory = 32 * KIB, .workgroup_invocations = 1024, .f16 = true,
      .storage_range = 4 * GIB, .memory = 12 * GIB}},
    {PROFILE("opencl-xe2", "Intel Arc B580 (Xe2) through OpenCL 3.0, whose units are its vector engines",
             "vendor's data sheet; issues of intel/compute-runtime (627: more than 4 GiB in one object)"),
     {OPENCL, .compute_units = 160, .shared_memory = 128 * KIB, .workgroup_invocations = 1024, .subgroup_size = 16,
      .subgroup_operations = true, .f16 = true, .storage_range = 4 * GIB, .memory = 12 * GIB}},
    {PROFILE("pocl", "PoCL on a CPU with AVX-512, 8 cores", "clinfo of PoCL 6.0"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_OPENCL,
      .compute_units = 8,
      .shared_memory = 1024 * KIB,
      .workgroup_invocations = 4096,
      .subgroup_size = 16,
      .storage_range = 4 * GIB,
      .memory = 16 * GIB,
      .host = true}},
    {PROFILE("rusticl", "Mesa's OpenCL on a CPU, 8 cores", "clinfo of Mesa 25.0.7"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_OPENCL,
      .compute_units = 8,
      .shared_memory = 32 * KIB,
      .workgroup_invocations = 1024,
      .subgroup_size = 8,
      .subgroup_operations = true,
      .storage_range = 2 * GIB,
      .memory = 16 * GIB,
      .host = true}},
    {PROFILE("xeon", "16 cores with 2 MiB of second-level cache, 512-bit vectors and AMX",
             "a server: Intel's fifth Xeon generation"),
     {.struct_size = sizeof(attune_limits),
      .backend = ATTUNE_BACKEND_CPU,
      .compute_units = 16,
      .shared_memory = 2048 * KIB,
      .workgroup_invocations = 1,
      .subgroup_size = 16,
      .matrix = ATTUNE_MATRIX_CPU_BF16 | ATTUNE_MATRIX_AMX,
      .f16 = true,
      .bf16 = true,
      .f64 = true,
      .memory = 64 * GIB}},
};

#define COUNT ((uint32_t)(sizeof profiles / sizeof profiles[0]))

uint32_t attune_profile_count(void)
{
    return COUNT;
}

attune_status attune_profile_get(uint32_t index, attune_profile *profile)
{
    if (index >= COUNT)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "index is %u, expected less than %u", index, COUNT);
    return attune__desc_write(profile, &profiles[index], sizeof *profile, sizeof *profile, "profile");
}

attune_status attune_profile_find(const char *name, attune_profile *profile)
{
    if (!name)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "name is NULL");
    char names[512];
    attune__text text = attune__text_begin(names, sizeof names);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (!strcasecmp(profiles[i].name, name))
            return attune_profile_get(i, profile);
        attune__text_add(&text, "%s%s", i ? ", " : "", profiles[i].name);
    }
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "there is no profile \"%.64s\", expected one of %s", name, names);
}

attune_status attune__profile_apply(const char *name, attune_limits *limits)
{
    attune_profile profile = {.struct_size = sizeof profile};
    ATTUNE__TRY(attune_profile_find(name, &profile));
    const attune_limits *p = &profile.limits;
    if (p->backend != limits->backend)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "profile %s is of another backend than the device", profile.name);
    const struct {
        const char *name;
        uint32_t least, *value;
    } parts[] = {
        {"shared_memory", p->shared_memory, &limits->shared_memory},
        {"workgroup_invocations", p->workgroup_invocations, &limits->workgroup_invocations},
        {"registers", p->registers, &limits->registers},
        {"registers_per_thread", p->registers_per_thread, &limits->registers_per_thread},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (*parts[i].value && parts[i].least > *parts[i].value)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "profile %s has %u of %s, the device %u: take a smaller one",
                                profile.name, parts[i].least, parts[i].name, *parts[i].value);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].value = parts[i].least;
    limits->compute_units = p->compute_units;
    limits->shared_memory_unit = p->shared_memory_unit;
    limits->shared_memory_reserved = p->shared_memory_reserved;
    limits->unit_invocations = p->unit_invocations;
    limits->matrix &= p->matrix | ATTUNE_MATRIX_UNTRIED;
    if (!(limits->matrix & (ATTUNE_MATRIX_COOPMAT | ATTUNE_MATRIX_COOPMAT2)))
        limits->fragment_layout = 0;
    return ATTUNE_OK;
}

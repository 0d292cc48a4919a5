/* SPDX-License-Identifier: MIT */
/* The Vulkan header alone, as C99. */
#include <attune/vulkan.h>

int main(void)
{
    attune_vulkan_device_desc desc;
    uint32_t count;
    desc.struct_size = sizeof desc;
    return attune_vulkan_required_features(&count) && count && desc.struct_size == sizeof desc ? 0 : 1;
}

// SPDX-License-Identifier: MIT
// The Vulkan header alone, as C++11.
#include <attune/vulkan.h>

int main()
{
    attune_vulkan_device_desc desc = {};
    uint32_t count = 0;
    desc.struct_size = sizeof desc;
    return attune_vulkan_required_features(&count) && count ? 0 : 1;
}

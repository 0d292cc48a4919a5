/* SPDX-License-Identifier: MIT */
/* Programs in the host's disk cache: spliced modules, and the driver's pipeline cache data. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/digest.h"
#include "vulkan/mods.h"
#include "vulkan/vulkan.h"

#define IDENTITY_SIZE 192

/* Pipeline cache data begin with Vulkan's header, version one. */
#define HEADER    ((size_t)32)
#define MOST_DATA ((size_t)64 << 20)

/* ---------------------------------------------------------------------------------------------------------- modules */

static void add(attune__digest *digest, uint64_t word)
{
    attune__digest_add(digest, &word, sizeof word);
}

/* Everything that the emitter reads: nodes, and symbols without their names. */
static void add_expr(attune__digest *digest, const attune_expr *expr)
{
    add(digest, expr ? expr->node_count : 0);
    if (!expr)
        return;
    for (uint32_t i = 0; i < expr->node_count; i++) {
        const attune__node *node = &expr->nodes[i];
        add(digest, (uint64_t)node->op << 16 | (uint64_t)node->type << 8 | node->arg_count);
        add(digest, (uint32_t)node->value.i);
        for (uint32_t a = 0; a < node->arg_count; a++)
            add(digest, node->arg[a]);
    }
    add(digest, expr->symbol_count);
    for (uint32_t i = 0; i < expr->symbol_count; i++) {
        const attune__symbol *symbol = &expr->symbols[i];
        add(digest, (uint64_t)symbol->kind << 32 | (uint64_t)symbol->dtype << 16 | symbol->rank);
    }
}

static void add_gradient(attune__digest *digest, const attune__mods *mods)
{
    const attune__gradient *gradient = mods->gradient;
    add_expr(digest, gradient ? gradient->expr : NULL);
    if (!gradient)
        return;
    add(digest, gradient->score);
    add(digest, gradient->read_count);
    for (uint32_t i = 0; i < gradient->read_count; i++)
        add(digest, (uint64_t)gradient->reads[i].capture << 32 | gradient->reads[i].factor);
    add(digest, mods->uniform_reads.count);
    for (uint32_t i = 0; i < mods->uniform_reads.count; i++)
        add(digest, mods->uniform_reads.reads[i]);
}

/* From a cryptographic digest: nobody can construct an expression whose module collides with another's. The prebuilt
 * words are attune's own. */
static attune__hash hash_module(const uint32_t *words, size_t count, const attune__mods *mods)
{
    attune__hash prebuilt = attune__hash_begin();
    attune__hash_bytes(&prebuilt, words, count * sizeof *words);
    attune__digest digest = attune__digest_begin();
    add(&digest, prebuilt.lane[0]);
    add(&digest, prebuilt.lane[1]);
    add_expr(&digest, mods->mask);
    add_expr(&digest, mods->score);
    add_gradient(&digest, mods);
    return attune__digest_key(&digest);
}

attune_status attune__vulkan_cache_splice(attune__vulkan_device *device, const uint32_t *words, size_t count,
                                          const attune__mods *mods, uint32_t **spliced, size_t *spliced_count,
                                          attune__hash *hash)
{
    const attune__host *host = &device->base.host;
    char identity[IDENTITY_SIZE];
    const int length = snprintf(identity, sizeof identity, "attune %u", attune_version());
    *hash = hash_module(words, count, mods);
    const attune__cache_key key = {"vulkan-module", *hash, identity, (size_t)length};
    void *kept;
    size_t size;
    if (attune__cache_get(host->cache, &key, &kept, &size)) {
        *spliced = kept;
        *spliced_count = size / sizeof **spliced;
        return ATTUNE_OK;
    }
    const attune_status status = attune__mods_splice(&host->allocator, words, count, mods, spliced, spliced_count);
    if (status == ATTUNE_OK)
        attune__cache_put(host->cache, &key, *spliced, *spliced_count * sizeof **spliced);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- pipelines */

static int hex(char *to, size_t size, const uint8_t uuid[VK_UUID_SIZE])
{
    int length = 0;
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        length += snprintf(to + length, size - (size_t)length, "%02x", uuid[i]);
    return length;
}

static void identify(const attune__vulkan_device *device, char identity[IDENTITY_SIZE], attune__cache_key *key)
{
    const attune__vulkan_physical *p = &device->physical;
    int length = snprintf(identity, IDENTITY_SIZE, "attune %u vendor %x device %x driver %x ", attune_version(),
                          p->vendor, p->device_id, p->driver_version);
    length += hex(identity + length, IDENTITY_SIZE - (size_t)length, p->driver_uuid);
    length += hex(identity + length, IDENTITY_SIZE - (size_t)length, p->pipeline_cache_uuid);
    key->kind = "vulkan-pipeline";
    key->identity = identity;
    key->identity_size = (size_t)length;
}

/* Drivers have crashed on data of others: data is used only if its header names this driver and device. */
static bool is_of(const attune__vulkan_physical *physical, const void *data, size_t size)
{
    VkPipelineCacheHeaderVersionOne header;
    if (size < HEADER || size > MOST_DATA)
        return false;
    memcpy(&header, data, sizeof header);
    return header.headerSize >= HEADER && header.headerSize <= size &&
           header.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE && header.vendorID == physical->vendor &&
           header.deviceID == physical->device_id &&
           !memcmp(header.pipelineCacheUUID, physical->pipeline_cache_uuid, VK_UUID_SIZE);
}

static attune__hash hash_pipeline(const attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc)
{
    attune__hash hash = *desc->hash;
    attune__hash_add(&hash, device->physical.preserves);
    attune__hash_add(&hash, desc->push_constants);
    attune__hash_add(&hash, desc->subgroup_size);
    attune__hash_add(&hash, desc->constants != NULL);
    if (desc->constants)
        attune__hash_bytes(&hash, desc->constants, ATTUNE__VULKAN_CONSTANTS * sizeof *desc->constants);
    return hash;
}

void attune__vulkan_cache_begin(attune__vulkan_device *device, const attune__vulkan_pipeline_desc *desc,
                                attune__vulkan_cache *cache)
{
    const attune__host *host = &device->base.host;
    *cache = (attune__vulkan_cache){0};
    if (!host->cache || !desc->hash)
        return;
    cache->hash = hash_pipeline(device, desc);
    char identity[IDENTITY_SIZE];
    attune__cache_key key = {.hash = cache->hash};
    identify(device, identity, &key);
    void *data = NULL;
    size_t size = 0;
    cache->hit = attune__cache_get(host->cache, &key, &data, &size) && is_of(&device->physical, data, size);
    const VkPipelineCacheCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
        .initialDataSize = cache->hit ? size : 0,
        .pInitialData = cache->hit ? data : NULL,
    };
    if (device->vk.CreatePipelineCache(device->handle, &info, NULL, &cache->handle)) {
        cache->handle = VK_NULL_HANDLE;
        cache->hit = false;
    }
    attune__free(&host->allocator, data);
}

static void keep(attune__vulkan_device *device, const attune__vulkan_cache *cache)
{
    const attune__host *host = &device->base.host;
    const attune__vulkan_functions *vk = &device->vk;
    size_t size = 0;
    /* Drivers that cache nothing return a header alone. */
    if (vk->GetPipelineCacheData(device->handle, cache->handle, &size, NULL) || size <= HEADER || size > MOST_DATA)
        return;
    void *data = attune__alloc_raw(&host->allocator, size, 1);
    if (data && !vk->GetPipelineCacheData(device->handle, cache->handle, &size, data) &&
        is_of(&device->physical, data, size)) {
        char identity[IDENTITY_SIZE];
        attune__cache_key key = {.hash = cache->hash};
        identify(device, identity, &key);
        attune__cache_put(host->cache, &key, data, size);
    }
    attune__free(&host->allocator, data);
}

void attune__vulkan_cache_end(attune__vulkan_device *device, attune__vulkan_cache *cache, bool made)
{
    if (!cache->handle)
        return;
    if (made && !cache->hit)
        keep(device, cache);
    device->vk.DestroyPipelineCache(device->handle, cache->handle, NULL);
}

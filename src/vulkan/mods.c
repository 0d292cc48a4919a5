#include "vulkan/mods.h"
#include <string.h>
#include "base/alloc.h"
size_t attune__mods_table_size(const attune_expr *expr) { (void)expr; return 64; }
void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out) { (void)expr; (void)values; (void)out; }
attune_status attune__mods_splice(const attune_allocator *a, const uint32_t *words, size_t count, const attune_expr *mask,
                                  const attune_expr *score, uint32_t **spliced, size_t *spliced_count)
{ (void)mask; (void)score; *spliced = attune__alloc(a, count, 4); memcpy(*spliced, words, count*4); *spliced_count = count; return ATTUNE_OK; }

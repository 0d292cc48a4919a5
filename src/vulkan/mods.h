#ifndef ATTUNE_VULKAN_MODS_H
#define ATTUNE_VULKAN_MODS_H
#include "expr/expr.h"
typedef struct attune__mods_capture { uint64_t address; attune_dtype dtype; int64_t size[4], stride[4]; } attune__mods_capture;
typedef struct attune__mods_table { int32_t q_len, kv_len, group, b0, h0, q0; attune__value parameters[16]; attune__mods_capture captures[16]; } attune__mods_table;
size_t attune__mods_table_size(const attune_expr *expr);
void attune__mods_table_pack(const attune_expr *expr, const attune__mods_table *values, void *out);
attune_status attune__mods_splice(const attune_allocator *, const uint32_t *words, size_t count, const attune_expr *mask,
                                  const attune_expr *score, uint32_t **spliced, size_t *spliced_count);
#endif

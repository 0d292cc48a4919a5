/* SPDX-License-Identifier: MIT */
#include <attune/attune.h>

typedef struct entry {
    const char *name;
    size_t size;    /* of an element or block */
    uint32_t block; /* elements */
} entry;

static entry entry_of(attune_dtype dtype)
{
    static const entry entries[] = {
        [ATTUNE_F32] = {"f32", 4, 1},       [ATTUNE_F16] = {"f16", 2, 1},       [ATTUNE_BF16] = {"bf16", 2, 1},
        [ATTUNE_F64] = {"f64", 8, 1},       [ATTUNE_I32] = {"i32", 4, 1},       [ATTUNE_I64] = {"i64", 8, 1},
        [ATTUNE_U8] = {"u8", 1, 1},         [ATTUNE_BOOL] = {"bool", 1, 1},     [ATTUNE_F8E4M3] = {"f8e4m3", 1, 1},
        [ATTUNE_F8E5M2] = {"f8e5m2", 1, 1}, [ATTUNE_I8] = {"i8", 1, 1},         [ATTUNE_Q8_0] = {"q8_0", 34, 32},
        [ATTUNE_Q4_0] = {"q4_0", 18, 32},   [ATTUNE_MXFP4] = {"mxfp4", 17, 32}, [ATTUNE_NVFP4] = {"nvfp4", 36, 64},
    };
    const entry none = {"?", 0, 1};
    return dtype >= ATTUNE_F32 && dtype <= ATTUNE_NVFP4 ? entries[dtype] : none;
}

size_t attune_dtype_size(attune_dtype dtype)
{
    return entry_of(dtype).size;
}

uint32_t attune_dtype_block(attune_dtype dtype)
{
    return entry_of(dtype).block;
}

const char *attune_dtype_string(attune_dtype dtype)
{
    return entry_of(dtype).name;
}

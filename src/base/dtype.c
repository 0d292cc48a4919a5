/* SPDX-License-Identifier: MIT */
#include <attune/attune.h>

size_t attune_dtype_size(attune_dtype dtype)
{
    switch (dtype) {
    case ATTUNE_U8:
    case ATTUNE_BOOL:
        return 1;
    case ATTUNE_F16:
    case ATTUNE_BF16:
        return 2;
    case ATTUNE_F32:
    case ATTUNE_I32:
        return 4;
    case ATTUNE_F64:
    case ATTUNE_I64:
        return 8;
    }
    return 0;
}

const char *attune_dtype_string(attune_dtype dtype)
{
    switch (dtype) {
    case ATTUNE_F32:
        return "f32";
    case ATTUNE_F16:
        return "f16";
    case ATTUNE_BF16:
        return "bf16";
    case ATTUNE_F64:
        return "f64";
    case ATTUNE_I32:
        return "i32";
    case ATTUNE_I64:
        return "i64";
    case ATTUNE_U8:
        return "u8";
    case ATTUNE_BOOL:
        return "bool";
    }
    return "?";
}

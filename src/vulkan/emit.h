/* SPDX-License-Identifier: MIT */
/* Bodies of functions for a module whose types and helpers are known. */
#ifndef ATTUNE_VULKAN_EMIT_H
#define ATTUNE_VULKAN_EMIT_H

#include "vulkan/mods.h"
#include "vulkan/words.h"

/* The helpers of shaders/mods.glsl that emitted functions call; from SUM_1 on gradient.glsl's, and
 * from BOUND on those of modules that read caches. */
typedef enum attune__helper {
    ATTUNE__HELPER_WORD,
    ATTUNE__HELPER_IDIV,
    ATTUNE__HELPER_IMOD,
    ATTUNE__HELPER_FMOD,
    ATTUNE__HELPER_ABS,
    ATTUNE__HELPER_FLOOR,
    ATTUNE__HELPER_CEIL,
    ATTUNE__HELPER_EXP,
    ATTUNE__HELPER_EXP2,
    ATTUNE__HELPER_LOG,
    ATTUNE__HELPER_LOG2,
    ATTUNE__HELPER_SQRT,
    ATTUNE__HELPER_RSQRT,
    ATTUNE__HELPER_TANH,
    ATTUNE__HELPER_SIGMOID,
    ATTUNE__HELPER_SIN,
    ATTUNE__HELPER_COS,
    ATTUNE__HELPER_POW,
    ATTUNE__HELPER_AT_1,
    ATTUNE__HELPER_AT_2,
    ATTUNE__HELPER_AT_3,
    ATTUNE__HELPER_AT_4,
    ATTUNE__HELPER_I32,
    ATTUNE__HELPER_I64,
    ATTUNE__HELPER_U8,
    ATTUNE__HELPER_BOOL,
    ATTUNE__HELPER_F32,
    ATTUNE__HELPER_F16,
    ATTUNE__HELPER_BF16,
    ATTUNE__HELPER_SUM_1,
    ATTUNE__HELPER_SUM_2,
    ATTUNE__HELPER_SUM_3,
    ATTUNE__HELPER_SUM_4,
    ATTUNE__HELPER_ADD,
    ATTUNE__HELPER_BOUND,
    ATTUNE__HELPER_BOUND_SELECT,
    ATTUNE__HELPER_SHORT_TANH, /* the last two: of kernels that round weights to 16 bits */
    ATTUNE__HELPER_SHORT_CAP,
    ATTUNE__HELPER_COUNT
} attune__helper;

typedef struct attune__module {
    uint32_t bound; /* the next id that is free */
    uint32_t type_bool, type_int, type_float, type_uvec3;
    uint32_t type_void, type_vec4; /* 0 where gradient.glsl's stubs are not */
    uint32_t type_ivec2;           /* 0 where no bounds are */
    uint32_t helper[ATTUNE__HELPER_COUNT];
    attune__words decorations; /* added after the module's own */
    attune__words constants;
} attune__module;

/* The functions that are replaced; the bounds and those of gradient.glsl are in some modules only. */
typedef enum attune__stub_kind {
    ATTUNE__STUB_SCORE,
    ATTUNE__STUB_MASK,
    ATTUNE__STUB_MASK_BOUNDS, /* h, q, kv and row are intervals, and so is the result: of false 0 and true 1 */
    ATTUNE__STUB_D_SCORE,
    ATTUNE__STUB_D_UNIFORM,
    ATTUNE__STUB_D_UNIFORM_ADD,
    ATTUNE__STUB_D_ADD,
    ATTUNE__STUB_COUNT
} attune__stub_kind;

/* A stub's parameters; 0 = it has no such one. */
typedef struct attune__stub {
    attune__stub_kind kind;
    uint32_t score, b, h, q, kv, mod;
    uint32_t d, gradients;
    uint32_t q_len, kv_len, row; /* of a sequence, in modules that read caches */
} attune__stub;

/* Appends the body, from OpLabel to the return. Without an expression: the stub's default (attune__mods). */
void attune__mods_emit(attune__module *module, const attune__stub *stub, const attune__mods *mods, attune__words *body);

#endif

/* SPDX-License-Identifier: MIT */
#include "vulkan/workgroup.h"

#include <spirv/unified1/spirv.h>
#include <string.h>

#define MOST_IDS 65536

typedef struct id_info {
    uint64_t bytes;   /* of a type */
    uint32_t value;   /* of a constant */
    uint32_t spec;    /* SpecId + 1; 0 = none */
    uint32_t pointee; /* of a pointer type into Workgroup; 0 = another type */
} id_info;

static id_info ids[MOST_IDS];

/* OpSpecConstantOp of integers. 0, which no array has, of what sizes none in our kernels. */
static uint32_t operate(uint32_t opcode, const uint32_t *at)
{
    const uint32_t a = ids[at[0]].value, b = ids[at[1]].value;
    switch (opcode) {
    case SpvOpIAdd:
        return a + b;
    case SpvOpISub:
        return a - b;
    case SpvOpIMul:
        return a * b;
    case SpvOpUDiv:
        return b ? a / b : 0;
    case SpvOpUMod:
        return b ? a % b : 0;
    case SpvOpSelect:
        return a ? b : ids[at[2]].value;
    default:
        return 0;
    }
}

uint64_t workgroup_bytes(const uint32_t *words, size_t count, const uint32_t *constants, uint32_t constant_count,
                         const char **why)
{
    uint64_t sum = 0;
    *why = NULL;
    if (count < 5 || words[0] != SpvMagicNumber || words[3] > MOST_IDS) {
        *why = "no module, or too large a one";
        return 0;
    }
    memset(ids, 0, words[3] * sizeof *ids);
    for (size_t i = 5; i < count && words[i] >> 16; i += words[i] >> 16) {
        const uint32_t *w = words + i, opcode = w[0] & 0xffff, length = w[0] >> 16;
        switch (opcode) {
        case SpvOpDecorate:
            if (w[2] == SpvDecorationSpecId)
                ids[w[1]].spec = w[3] + 1;
            break;
        case SpvOpTypeBool:
            ids[w[1]].bytes = 4;
            break;
        case SpvOpTypeInt:
        case SpvOpTypeFloat:
            ids[w[1]].bytes = w[2] / 8;
            break;
        case SpvOpTypeVector:
            ids[w[1]].bytes = ids[w[2]].bytes * w[3];
            break;
        case SpvOpTypeArray:
            ids[w[1]].bytes = ids[w[2]].bytes * ids[w[3]].value;
            break;
        case SpvOpTypeStruct:
            for (uint32_t m = 2; m < length; m++)
                ids[w[1]].bytes += ids[w[m]].bytes;
            break;
        case SpvOpTypePointer:
            if (w[2] == SpvStorageClassWorkgroup)
                ids[w[1]].pointee = w[3];
            break;
        case SpvOpConstant:
            ids[w[2]].value = w[3];
            break;
        case SpvOpConstantTrue:
            ids[w[2]].value = 1;
            break;
        case SpvOpSpecConstantTrue:
        case SpvOpSpecConstantFalse:
        case SpvOpSpecConstant:
            ids[w[2]].value = opcode == SpvOpSpecConstant ? w[3] : opcode == SpvOpSpecConstantTrue;
            if (ids[w[2]].spec && ids[w[2]].spec <= constant_count)
                ids[w[2]].value = constants[ids[w[2]].spec - 1];
            break;
        case SpvOpSpecConstantOp:
            ids[w[2]].value = operate(w[3], w + 4);
            break;
        case SpvOpVariable:
            if (w[3] != SpvStorageClassWorkgroup)
                break;
            if (!ids[w[1]].pointee || !ids[ids[w[1]].pointee].bytes) {
                *why = "a variable of a type without a size";
                return 0;
            }
            sum += ids[ids[w[1]].pointee].bytes;
            break;
        case SpvOpFunction:
            return sum;
        default:
            break;
        }
    }
    return sum;
}

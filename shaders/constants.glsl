/* SPDX-License-Identifier: MIT */
/* Declares specialisation constants and shared memory from the lists of constants.h and layout_*.h. */
#ifndef ATTUNE_CONSTANTS_GLSL
#define ATTUNE_CONSTANTS_GLSL

#include "types.h"

#define CONSTANT(id, type, name, value) layout(constant_id = id) const type name = value;
#define SHARED(type, name, count)       shared type name[count];
#define OF(name)                        name

#include "constants.h"

#endif

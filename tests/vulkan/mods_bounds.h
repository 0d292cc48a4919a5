/* SPDX-License-Identifier: MIT */
/*
 * How far a Vulkan device may be from the interpreter at one point. The rules are those of Vulkan 1.3, "Precision and
 * Operation of SPIR-V Instructions", for binary32:
 *
 *     + - * and conversions   correctly rounded: equal, if their operands are
 *     /                       2.5 ulp; a divisor outside 2^-126 ... 2^126 is undecided
 *     exp, exp2               3 + 2 |x| ulp           log, log2   3 ulp; 2^-21 between 0.5 and 2
 *     inversesqrt             2 ulp                   sqrt        1 / inversesqrt: 5 ulp
 *     pow                     exp2(y * log2(x))       sin, cos    2^-11 between -pi and pi
 *     subnormals may be 0     tanh and sigmoid are shaders/mods.glsl's own: 8 ulp, and 8 + 2 |x| ulp
 *
 * One ulp is added for the interpreter's own libm. Errors of operands are carried through each operation by its
 * derivative. A comparison, floor or ceil whose operands may be on both sides of a tie is undecided, and so is an
 * overflow. NaN and infinity that are given, or that a function has by definition, give what IEEE arithmetic makes of
 * them.
 */
#ifndef TESTS_VULKAN_MODS_BOUNDS_H
#define TESTS_VULKAN_MODS_BOUNDS_H

#include "expr/expr.h"

typedef struct mods_bound {
    attune__value value; /* the interpreter's */
    bool decided;
    double error; /* of a float: 0 = the device must give it exactly (but for the sign of 0) */
} mods_bound;

mods_bound mods_bound_of(const attune_expr *expr, const attune__bindings *bindings, const attune_point *point);

#endif

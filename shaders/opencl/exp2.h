/* SPDX-License-Identifier: MIT */
/* Powers of two with the same bits on every device, of a number or of a vector. */
#ifndef ATTUNE_EXP2_H
#define ATTUNE_EXP2_H

#include "prelude.h"

/* 2^x, within 2 ulp, and 0 below the normal numbers; NaN stays NaN. */
#define ATTUNE_EXP2(name, T, I, AS_T, AS_I)                                                                            \
    ATTUNE_FUNCTION T name(T x)                                                                                        \
    {                                                                                                                  \
        T near = min(max(x, (T)(-127.0f)), (T)(128.0f));                                                               \
        T shifted = near + 12582912.0f, r = near - (shifted - 12582912.0f);                                            \
        T p = FMA(r, (T)(1.535336188319500e-4f), (T)(1.339887440266574e-3f));                                          \
        p = FMA(p, r, (T)(9.618437357674640e-3f));                                                                     \
        p = FMA(p, r, (T)(5.550332471162809e-2f));                                                                     \
        p = FMA(p, r, (T)(2.402264791363012e-1f));                                                                     \
        p = FMA(p, r, (T)(6.931472028550421e-1f));                                                                     \
        p = FMA(p, r, (T)(1.0f));                                                                                      \
        T y = AS_T(AS_I(p) + (AS_I(shifted) << 23));                                                                   \
        y = select(y, (T)(0.0f), x < -126.0f);                                                                         \
        y = select(y, (T)(INFINITY), x >= 128.0f);                                                                     \
        return select(y, x, (AS_I(x) & 0x7fffffff) > 0x7f800000);                                                      \
    }

#endif

/* SPDX-License-Identifier: MIT */
/*
 * The functions that generated expression code calls (docs/expressions.md), in OpenCL C 1.2. A mask may depend on the
 * last bit: no contraction, and programs are never built with relaxed or finite math.
 */
#ifndef ATTUNE_PRELUDE_H
#define ATTUNE_PRELUDE_H

#include "arguments.h"

#pragma OPENCL FP_CONTRACT OFF

/* CPU drivers gain nothing by unrolling, and their compile time grows. */
#ifdef ATTUNE_HOST
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

/* One instruction where the device has it. */
#ifdef ATTUNE_FMA
#define FMA(a, b, c) fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* The workgroup of a launch, in the one of two dimensions that the launch uses (src/opencl/queue.c). */
#define GROUP ((uint)get_group_id(0) + (uint)get_group_id(2))

/* PoCL 3.1 gives each thread local memory of its own only in a kernel's body: where a function that is called is left,
 * all threads share one array. Oclgrind, whose build options have ATTUNE_NO_INLINE, runs functions that are called. */
#if defined ATTUNE_HOST && !defined ATTUNE_NO_INLINE
#define ATTUNE_FUNCTION static inline __attribute__((always_inline))
#else
#define ATTUNE_FUNCTION static inline
#endif
#define ATTUNE_INFINITY INFINITY
#define ATTUNE_NAN      as_float(0x7fc00000)

#define ATTUNE_PARAMETER_I32(n) (table->parameters[n])
#define ATTUNE_PARAMETER_F32(n) as_float(table->parameters[n])
#define ATTUNE_TERM_I32(x)      (x)
#define ATTUNE_TERM_F32(x)      as_float(x)
#define ATTUNE_BITS_I32(x)      (x)
#define ATTUNE_BITS_F32(x)      as_int(x)

/* By their bits: a driver may assume that floats have no NaN, and then comparisons with NaN are undefined. */
ATTUNE_FUNCTION int is_zero(float x)
{
    return (as_uint(x) & 0x7fffffffu) == 0u;
}
ATTUNE_FUNCTION int is_nan(float x)
{
    return (as_uint(x) & 0x7fffffffu) > 0x7f800000u;
}
ATTUNE_FUNCTION int is_finite(float x)
{
    return (as_uint(x) & 0x7f800000u) != 0x7f800000u;
}
/* Below 0, or NaN: where logarithms and roots are NaN. */
ATTUNE_FUNCTION int is_below(float x)
{
    return as_uint(x) > 0x7f800000u && as_uint(x) != 0x80000000u;
}
ATTUNE_FUNCTION float attune_or_nan(int valid, float x)
{
    return valid ? x : ATTUNE_NAN;
}

ATTUNE_FUNCTION int attune_iadd(int a, int b)
{
    return (int)((uint)a + (uint)b);
}
ATTUNE_FUNCTION int attune_isub(int a, int b)
{
    return (int)((uint)a - (uint)b);
}
ATTUNE_FUNCTION int attune_imul(int a, int b)
{
    return (int)((uint)a * (uint)b);
}
/* Divisors 0 and -1 are not divided by: one is undefined, the other overflows. */
ATTUNE_FUNCTION int attune_idiv(int a, int b)
{
    int d = b == 0 || b == -1 ? 1 : b;
    int quotient = a / d, rest = a - quotient * d;
    quotient -= rest != 0 && (rest ^ d) < 0 ? 1 : 0;
    return b == 0 ? 0 : b == -1 ? attune_isub(0, a) : quotient;
}
ATTUNE_FUNCTION int attune_imod(int a, int b)
{
    int d = b == 0 || b == -1 ? 1 : b;
    int rest = a - a / d * d;
    return rest != 0 && (rest ^ d) < 0 ? rest + d : rest;
}
ATTUNE_FUNCTION float attune_div(float a, float b)
{
    return a / b;
}
ATTUNE_FUNCTION float attune_over(float a, float b)
{
    return a / b;
}
ATTUNE_FUNCTION float attune_fmod(float a, float b)
{
    float r = a - floor(a / b) * b;
    return attune_or_nan(is_finite(a) && is_finite(b) && !is_zero(b), r);
}
ATTUNE_FUNCTION float attune_abs(float x)
{
    return as_float(as_uint(x) & 0x7fffffffu);
}
ATTUNE_FUNCTION float attune_floor(float x)
{
    return is_finite(x) ? floor(x) : x;
}
ATTUNE_FUNCTION float attune_ceil(float x)
{
    return is_finite(x) ? ceil(x) : x;
}
ATTUNE_FUNCTION float attune_exp(float x)
{
    return attune_or_nan(!is_nan(x), exp(x));
}
ATTUNE_FUNCTION float attune_exp2(float x)
{
    return attune_or_nan(!is_nan(x), exp2(x));
}
ATTUNE_FUNCTION float attune_log(float x)
{
    return attune_or_nan(!is_below(x), log(x));
}
ATTUNE_FUNCTION float attune_log2(float x)
{
    return attune_or_nan(!is_below(x), log2(x));
}
ATTUNE_FUNCTION float attune_sqrt(float x)
{
    return attune_or_nan(!is_below(x), sqrt(x));
}
ATTUNE_FUNCTION float attune_rsqrt(float x)
{
    return attune_or_nan(!is_below(x), 1.0f / sqrt(x));
}
/* Drivers' own tanh is within 5 ulp only, and NaN past 88 on some. Past 9.1 the nearest f32 is 1. */
ATTUNE_FUNCTION float attune_tanh(float x)
{
    float a = attune_abs(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    float near = p * z * x + x;
    float far = a > 9.1f ? 1.0f : 1.0f - 2.0f / (exp(a + a) + 1.0f);
    return attune_or_nan(!is_nan(x), a < 0.625f ? near : x < 0.0f ? -far : far);
}
/* The guard keeps infinity out of the division. */
ATTUNE_FUNCTION float attune_sigmoid(float x)
{
    float r = 1.0f / (1.0f + exp(x < -87.0f ? 87.0f : -x));
    return attune_or_nan(!is_nan(x), x < -87.0f ? 0.0f : r);
}
ATTUNE_FUNCTION float attune_sin(float x)
{
    return attune_or_nan(is_finite(x), sin(x));
}
ATTUNE_FUNCTION float attune_cos(float x)
{
    return attune_or_nan(is_finite(x), cos(x));
}
ATTUNE_FUNCTION float attune_pow(float x, float y)
{
    return pow(x, y);
}
ATTUNE_FUNCTION float attune_pow_positive(float x, float y)
{
    return attune_pow(x, y);
}
ATTUNE_FUNCTION float attune_pow_half(float x)
{
    return attune_sqrt(x);
}

/* `at`: of element 0. Arrays are aligned to their elements alone. */
ATTUNE_FUNCTION int attune_get_i32(__global const uchar *at)
{
    return *(__global const int *)at;
}
/* Clamped to i32. */
ATTUNE_FUNCTION int attune_get_i64(__global const uchar *at)
{
    long x = *(__global const long *)at;
    return x < -2147483647 - 1 ? -2147483647 - 1 : x > 2147483647 ? 2147483647 : (int)x;
}
ATTUNE_FUNCTION int attune_get_u8(__global const uchar *at)
{
    return *at;
}
ATTUNE_FUNCTION int attune_get_bool(__global const uchar *at)
{
    return *at != 0;
}
ATTUNE_FUNCTION float attune_get_f32(__global const uchar *at)
{
    return *(__global const float *)at;
}
ATTUNE_FUNCTION float attune_get_f16(__global const uchar *at)
{
    return vload_half(0, (__global const half *)at);
}
ATTUNE_FUNCTION float attune_get_bf16(__global const uchar *at)
{
    return as_float((uint) * (__global const ushort *)at << 16);
}

/* ATTUNE_CAPTURE gives the first two parameters. */
#define ATTUNE_VIEW       __global const uchar *memory, __global const attune_opencl_capture *v
#define ATTUNE_IN(d, i)   ((uint)(i) < v->size[d])
#define ATTUNE_STEP(d, i) ((long)(i)*v->stride[d])
/* The load is of valid memory in either case and not in a branch: PoCL 6 over LLVM 18 ends the process on some of those
 * (docs/opencl.md). */
#define ATTUNE_LOAD(T, name, in, step)                                                                                 \
    const int valid = in;                                                                                              \
    const T value = attune_get_##name(valid ? memory + v->offset + (step) : (__global const uchar *)v);                \
    return valid ? value : 0
#define ATTUNE_LOADS(T, name)                                                                                          \
    ATTUNE_FUNCTION T attune_load_##name##_1(ATTUNE_VIEW, int i)                                                       \
    {                                                                                                                  \
        ATTUNE_LOAD(T, name, ATTUNE_IN(0, i), ATTUNE_STEP(0, i));                                                      \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_2(ATTUNE_VIEW, int i, int j)                                                \
    {                                                                                                                  \
        ATTUNE_LOAD(T, name, ATTUNE_IN(0, i) & ATTUNE_IN(1, j), ATTUNE_STEP(0, i) + ATTUNE_STEP(1, j));                \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_3(ATTUNE_VIEW, int i, int j, int k)                                         \
    {                                                                                                                  \
        ATTUNE_LOAD(T, name, ATTUNE_IN(0, i) & ATTUNE_IN(1, j) & ATTUNE_IN(2, k),                                      \
                    ATTUNE_STEP(0, i) + ATTUNE_STEP(1, j) + ATTUNE_STEP(2, k));                                        \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_4(ATTUNE_VIEW, int i, int j, int k, int l)                                  \
    {                                                                                                                  \
        ATTUNE_LOAD(T, name, ATTUNE_IN(0, i) & ATTUNE_IN(1, j) & ATTUNE_IN(2, k) & ATTUNE_IN(3, l),                    \
                    ATTUNE_STEP(0, i) + ATTUNE_STEP(1, j) + ATTUNE_STEP(2, k) + ATTUNE_STEP(3, l));                    \
    }
ATTUNE_LOADS(int, i32)
ATTUNE_LOADS(int, i64)
ATTUNE_LOADS(int, u8)
ATTUNE_LOADS(int, bool)
ATTUNE_LOADS(float, f32)
ATTUNE_LOADS(float, f16)
ATTUNE_LOADS(float, bf16)

/* An element's index in row-major order, -1 if out of range. */
typedef long attune_index;
ATTUNE_FUNCTION attune_index attune_at_1(ATTUNE_VIEW, int i)
{
    return ATTUNE_IN(0, i) ? i : -1;
}
ATTUNE_FUNCTION attune_index attune_at_2(ATTUNE_VIEW, int i, int j)
{
    return ATTUNE_IN(0, i) && ATTUNE_IN(1, j) ? (long)i * v->size[1] + j : -1;
}
ATTUNE_FUNCTION attune_index attune_at_3(ATTUNE_VIEW, int i, int j, int k)
{
    attune_index row = attune_at_2(memory, v, i, j);
    return row >= 0 && ATTUNE_IN(2, k) ? row * v->size[2] + k : -1;
}
ATTUNE_FUNCTION attune_index attune_at_4(ATTUNE_VIEW, int i, int j, int k, int l)
{
    attune_index row = attune_at_3(memory, v, i, j, k);
    return row >= 0 && ATTUNE_IN(3, l) ? row * v->size[3] + l : -1;
}

#endif

/* SPDX-License-Identifier: MIT */
/* The functions that generated expression code calls (docs/expressions.md), in CUDA C++. Compiled with --fmad=false and
 * without fast math: a mask may depend on the last bit. */
#ifndef ATTUNE_CUDA_PRELUDE_CUH
#define ATTUNE_CUDA_PRELUDE_CUH

#include "arguments.h"
#include "ptx.cuh"

#define ATTUNE_FUNCTION __device__ __forceinline__
#define ATTUNE_INFINITY __int_as_float(0x7f800000)
#define ATTUNE_NAN      __int_as_float(0x7fffffff)
/* kv0: a key of the tile. In unrolled loops kv - kv0 is a constant, which saves a conversion for each pair. row0: over
 * a cache, what the row's index among those of all sequences is more than q. */
#define ATTUNE_SYMBOLS           , const attune_cuda_symbol *symbols, int kv0 = 0, int row0 = 0
#define ATTUNE_ROW_INDEX         (q + row0)
#define ATTUNE_FLOAT_KV          ((float)kv0 + (float)(kv - kv0))
#define ATTUNE_FLOAT_KV_Q        ((float)(kv0 - q) + (float)(kv - kv0))
#define ATTUNE_FLOAT_Q_KV        ((float)(q - kv0) - (float)(kv - kv0))
#define ATTUNE_FLOAT_KV_Q_AND(n) ((float)(kv0 - q + (n)) + (float)(kv - kv0))
#define ATTUNE_FLOAT_Q_KV_AND(n) ((float)(q - kv0 + (n)) - (float)(kv - kv0))
#define ATTUNE_CAPTURE(n)        (&symbols[n])
#define ATTUNE_PARAMETER_I32(n)  (symbols[n].is.i32)
#define ATTUNE_PARAMETER_F32(n)  (symbols[n].is.f32)
#define ATTUNE_TERM_I32(x)       (x)
#define ATTUNE_TERM_F32(x)       __int_as_float(x)
#define ATTUNE_BITS_I32(x)       (x)
#define ATTUNE_BITS_F32(x)       __float_as_int(x)

ATTUNE_FUNCTION int attune_iadd(int a, int b)
{
    return (int)((unsigned)a + (unsigned)b);
}
ATTUNE_FUNCTION int attune_isub(int a, int b)
{
    return (int)((unsigned)a - (unsigned)b);
}
ATTUNE_FUNCTION int attune_imul(int a, int b)
{
    return (int)((unsigned)a * (unsigned)b);
}
ATTUNE_FUNCTION int attune_idiv(int a, int b)
{
    if (b == 0 || b == -1)
        return b ? attune_isub(0, a) : 0;
    int quotient = a / b, rest = a - quotient * b;
    return quotient - (rest != 0 && (rest ^ b) < 0);
}
ATTUNE_FUNCTION int attune_imod(int a, int b)
{
    if (b == 0 || b == -1)
        return 0;
    int rest = a % b;
    return rest + (rest != 0 && (rest ^ b) < 0 ? b : 0);
}
ATTUNE_FUNCTION float attune_fmod(float a, float b)
{
    return a - floorf(a / b) * b;
}
ATTUNE_FUNCTION float attune_div(float a, float b)
{
    return a / b;
}
/* By a constant. */
ATTUNE_FUNCTION float attune_over(float a, float b)
{
    return a / b;
}
ATTUNE_FUNCTION float attune_abs(float x)
{
    return clear_sign(x);
}
ATTUNE_FUNCTION float attune_floor(float x)
{
    return floorf(x);
}
ATTUNE_FUNCTION float attune_ceil(float x)
{
    return ceilf(x);
}
ATTUNE_FUNCTION float attune_exp(float x)
{
    return expf(x);
}
ATTUNE_FUNCTION float attune_exp2(float x)
{
    return exp2f(x);
}
ATTUNE_FUNCTION float attune_log(float x)
{
    return logf(x);
}
ATTUNE_FUNCTION float attune_log2(float x)
{
    return log2f(x);
}
ATTUNE_FUNCTION float attune_sqrt(float x)
{
    return sqrtf(x);
}
ATTUNE_FUNCTION float attune_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}
ATTUNE_FUNCTION float attune_tanh(float x)
{
    return tanhf(x);
}
/* Within 2^-11 of tanh. Replaces attune_tanh in scores with ATTUNE_APPROXIMATE_TANH. */
ATTUNE_FUNCTION float attune_tanh_approximate(float x)
{
    return tanh_fast(x);
}
/* The near-zero form for |x| <= 0.5: an odd polynomial, within 1.4e-8 of tanh before rounding. */
ATTUNE_FUNCTION float attune_tanh_near(float x)
{
    float y = x * x;
    float p = __fmaf_rn(y, 0.017141320f, -0.052989241f);
    p = __fmaf_rn(p, y, 0.13324828f);
    p = __fmaf_rn(p, y, -0.33333072f);
    p = __fmaf_rn(p, y, 1.0f);
    return x * p;
}
ATTUNE_FUNCTION float attune_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/*
 * Sine and cosine within 1.6 ulp. CUDA's own use an array in local memory for large arguments, in each copy of an
 * unrolled loop. The table has the bits of 2 / pi (Payne-Hanek reduction), after 32 zero bits.
 */
static __constant__ const unsigned attune_two_over_pi[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                                           0xf534ddc0u, 0xdb629599u, 0x3c439041u};
/* Returns x less the nearest multiple of pi / 2; *quarter is that multiple's number mod 4. */
ATTUNE_FUNCTION float attune_reduce_angle(float x, int *quarter)
{
    float n = rintf(x * 0.63661977f);
    if (fabsf(x) <= 48039.0f) {
        *quarter = (int)n;
        return __fmaf_rn(n, -5.3903030e-15f, __fmaf_rn(n, -3.1391648e-7f, __fmaf_rn(n, -1.5707960f, x)));
    }
    unsigned bits = __float_as_uint(x), mantissa = bits << 8 | 0x80000000u, at = (bits >> 23 & 255) - 128;
    if (at == 127) {
        *quarter = 0;
        return ATTUNE_NAN;
    }
    const unsigned *words = attune_two_over_pi + at / 32;
    unsigned high = __funnelshift_l(words[1], words[0], at), middle = __funnelshift_l(words[2], words[1], at),
             low = __funnelshift_l(words[3], words[2], at);
    /* Of a full turn, in units of 2^-64. */
    unsigned long long fraction =
        ((unsigned long long)(mantissa * high) << 32) + (unsigned long long)mantissa * middle + __umulhi(mantissa, low);
    int q = (int)((fraction + (1ull << 61)) >> 62);
    float rest = (float)((double)(long long)(fraction << 2) * 8.515303950216386e-20); /* pi / 2 / 2^64 */
    *quarter = x < 0.0f ? -q : q;
    return x < 0.0f ? -rest : rest;
}
ATTUNE_FUNCTION float attune_sine_series(float x, int quarter)
{
    bool even = quarter & 1; /* the cosine's series */
    float y = x * x, first = even ? 1.0f : x;
    float p = __fmaf_rn(y, even ? 2.4433157e-5f : 0.0f, even ? -1.3887316e-3f : -1.9515296e-4f);
    p = __fmaf_rn(p, y, even ? 4.1666646e-2f : 8.3321609e-3f);
    p = __fmaf_rn(p, y, even ? -0.5f : -0.16666655f);
    p = __fmaf_rn(p * y, first, first);
    return quarter & 2 ? -p : p;
}
ATTUNE_FUNCTION float attune_sin(float x)
{
    int quarter;
    float rest = attune_reduce_angle(x, &quarter);
    return x == 0.0f ? x : attune_sine_series(rest, quarter);
}
ATTUNE_FUNCTION float attune_cos(float x)
{
    int quarter;
    float rest = attune_reduce_angle(x, &quarter);
    return attune_sine_series(rest, quarter + 1);
}
/* For |x| at most pi / 2. */
ATTUNE_FUNCTION float attune_sin_small(float x)
{
    return attune_sin(x);
}
ATTUNE_FUNCTION float attune_pow(float x, float y)
{
    return powf(x, y);
}
/* For x > 0. */
ATTUNE_FUNCTION float attune_pow_positive(float x, float y)
{
    return powf(x, y);
}
/* x > 0 to the power of 0.5. */
ATTUNE_FUNCTION float attune_pow_half(float x)
{
    return sqrtf(x);
}

/*
 * Instead of the above in scores of kernels whose P has 16 bits (src/cuda/compiler.c), where the results are continuous
 * in those of the functions: without branches, and within some units of float32's rounding of the largest value.
 */
ATTUNE_FUNCTION float attune_fast_div(float a, float b)
{
    return divide_fast(a, b);
}
/* The reciprocal is shared by the pairs of a row. That of a divisor below 2^-128 is as of 2^-128. */
ATTUNE_FUNCTION float attune_fast_div_by_row(float a, float b)
{
    float inverse = 1.0f / b;
    if (fabsf(inverse) == ATTUNE_INFINITY && b != 0.0f)
        inverse = b < 0.0f ? -0x1.fffffep127f : 0x1.fffffep127f;
    return a * inverse;
}
ATTUNE_FUNCTION float attune_fused(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
ATTUNE_FUNCTION float attune_fast_over(float a, float b)
{
    return a * (1.0f / b);
}
ATTUNE_FUNCTION float attune_fast_exp2(float x)
{
    return exp2_fast(x);
}
ATTUNE_FUNCTION float attune_fast_exp(float x)
{
    return exp2_fast(x * 1.44269504f);
}
ATTUNE_FUNCTION float attune_fast_log2(float x)
{
    return log2_fast(x);
}
ATTUNE_FUNCTION float attune_fast_log(float x)
{
    return log2_fast(x) * 0.693147181f;
}
ATTUNE_FUNCTION float attune_fast_sqrt(float x)
{
    return sqrt_fast(x);
}
ATTUNE_FUNCTION float attune_fast_rsqrt(float x)
{
    return rsqrt_fast(x);
}
ATTUNE_FUNCTION float attune_fast_sigmoid(float x)
{
    return reciprocal_fast(1.0f + exp2_fast(x * -1.44269504f));
}
/* The quotient loses its digits near 0, where the series has them: within 5e-8 up to 0.25. */
ATTUNE_FUNCTION float attune_fast_tanh(float x)
{
    float y = x * x, far = __fmaf_rn(-2.0f, reciprocal_fast(1.0f + exp2_fast(x * 2.88539008f)), 1.0f);
    float near = __fmaf_rn(__fmaf_rn(__fmaf_rn(y, -0.0514300196f, 0.133242365f), y, -0.333332401f) * y, x, x);
    return y < 0.0625f ? near : far;
}
/* Near 1 the logarithm is as small as the error of log2_fast, which a large y multiplies. Of a literal it is one. */
ATTUNE_FUNCTION float attune_fast_pow_positive(float x, float y)
{
    return exp2_fast(y * log2f(x));
}
ATTUNE_FUNCTION float attune_fast_pow_half(float x)
{
    return sqrt_fast(x);
}
/* (-1)^n sin(x - n pi) for the nearest n, an integer or with `half` an integer and a half. Past 2^22 adding 1.5 * 2^23
 * does not round to integers. */
#define ATTUNE_SINE_LIMIT 4194304.0f
ATTUNE_FUNCTION float attune_sine_between(float x, bool half)
{
    float n = __fmaf_rn(x, 0.318309886f, half ? -0.5f : 0.0f) + 12582912.0f;
    int sign = (__float_as_int(n) + half) << 31;
    n = n - 12582912.0f + (half ? 0.5f : 0.0f);
    float r = __fmaf_rn(n, 8.74227766e-8f, __fmaf_rn(n, -3.14159274f, x)), y = r * r;
    float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(y, 2.60578021e-6f, -1.98096027e-4f), y, 8.33306624e-3f), y, -0.166666596f);
    r = __fmaf_rn(p * y, r, r);
    return __int_as_float(__float_as_int(r) ^ sign);
}
/* In near-zero forms, whose arguments are within that limit, or within pi / 2. */
ATTUNE_FUNCTION float attune_near_sin(float x)
{
    return attune_sine_between(x, false);
}
ATTUNE_FUNCTION float attune_near_cos(float x)
{
    return attune_sine_between(x, true);
}
ATTUNE_FUNCTION float attune_near_sin_small(float r)
{
    float y = r * r;
    float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(y, 2.60578021e-6f, -1.98096027e-4f), y, 8.33306624e-3f), y, -0.166666596f);
    return __fmaf_rn(p * y, r, r);
}
ATTUNE_FUNCTION float attune_fast_sin(float x)
{
    return fabsf(x) <= ATTUNE_SINE_LIMIT ? attune_sine_between(x, false) : attune_sin(x);
}
ATTUNE_FUNCTION float attune_fast_cos(float x)
{
    return fabsf(x) <= ATTUNE_SINE_LIMIT ? attune_sine_between(x, true) : attune_cos(x);
}

ATTUNE_FUNCTION int attune_get_i32(unsigned long long p, long long i)
{
    return ((const int *)p)[i];
}
ATTUNE_FUNCTION int attune_get_i64(unsigned long long p, long long i)
{
    long long x = ((const long long *)p)[i];
    return x < -2147483647 - 1 ? -2147483647 - 1 : x > 2147483647 ? 2147483647 : (int)x;
}
ATTUNE_FUNCTION int attune_get_u8(unsigned long long p, long long i)
{
    return ((const unsigned char *)p)[i];
}
ATTUNE_FUNCTION int attune_get_bool(unsigned long long p, long long i)
{
    return ((const unsigned char *)p)[i] != 0;
}
ATTUNE_FUNCTION float attune_get_f32(unsigned long long p, long long i)
{
    return ((const float *)p)[i];
}
ATTUNE_FUNCTION float attune_get_bf16(unsigned long long p, long long i)
{
    return __int_as_float((int)((unsigned)((const unsigned short *)p)[i] << 16));
}
ATTUNE_FUNCTION float attune_get_f16(unsigned long long p, long long i)
{
    return half_to_float(((const unsigned short *)p)[i]);
}

#ifndef ATTUNE_PREDICATED_LOADS
#define ATTUNE_PREDICATED_LOADS 0
#endif
/* Element i, or 0 where `there` is false. */
ATTUNE_FUNCTION int attune_pick_i32(unsigned long long p, long long i, bool there)
{
    return (int)load_element_32(p + i * 4, there);
}
ATTUNE_FUNCTION int attune_pick_i64(unsigned long long p, long long i, bool there)
{
    long long x = (long long)load_element_64(p + i * 8, there);
    return x < -2147483647 - 1 ? -2147483647 - 1 : x > 2147483647 ? 2147483647 : (int)x;
}
ATTUNE_FUNCTION int attune_pick_u8(unsigned long long p, long long i, bool there)
{
    return (int)load_element_8(p + i, there);
}
ATTUNE_FUNCTION int attune_pick_bool(unsigned long long p, long long i, bool there)
{
    return load_element_8(p + i, there) != 0;
}
ATTUNE_FUNCTION float attune_pick_f32(unsigned long long p, long long i, bool there)
{
    return __int_as_float((int)load_element_32(p + i * 4, there));
}
ATTUNE_FUNCTION float attune_pick_bf16(unsigned long long p, long long i, bool there)
{
    return __int_as_float((int)(load_element_16(p + i * 2, there) << 16));
}
ATTUNE_FUNCTION float attune_pick_f16(unsigned long long p, long long i, bool there)
{
    return half_to_float((unsigned short)load_element_16(p + i * 2, there));
}

#define ATTUNE_IN(v, d, i) ((i) >= 0 && (i) < (v)->size[d])
#if ATTUNE_PREDICATED_LOADS
#define ATTUNE_ELEMENT(name, v, there, i) attune_pick_##name((v)->is.address, i, there)
#else
#define ATTUNE_ELEMENT(name, v, there, i) ((there) ? attune_get_##name((v)->is.address, i) : 0)
#endif
#define ATTUNE_LOADS(T, name)                                                                                          \
    ATTUNE_FUNCTION T attune_load_##name##_1(const attune_cuda_symbol *v, int i)                                       \
    {                                                                                                                  \
        return ATTUNE_ELEMENT(name, v, ATTUNE_IN(v, 0, i), i * v->stride[0]);                                          \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_2(const attune_cuda_symbol *v, int i, int j)                                \
    {                                                                                                                  \
        return ATTUNE_ELEMENT(name, v, ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j), i * v->stride[0] + j * v->stride[1]); \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_3(const attune_cuda_symbol *v, int i, int j, int k)                         \
    {                                                                                                                  \
        return ATTUNE_ELEMENT(name, v, ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) && ATTUNE_IN(v, 2, k),                 \
                              i * v->stride[0] + j * v->stride[1] + k * v->stride[2]);                                 \
    }                                                                                                                  \
    ATTUNE_FUNCTION T attune_load_##name##_4(const attune_cuda_symbol *v, int i, int j, int k, int l)                  \
    {                                                                                                                  \
        return ATTUNE_ELEMENT(name, v,                                                                                 \
                              ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) && ATTUNE_IN(v, 2, k) && ATTUNE_IN(v, 3, l),    \
                              i * v->stride[0] + j * v->stride[1] + k * v->stride[2] + l * v->stride[3]);              \
    }
/* An element's index in row-major order, -1 if out of range. */
typedef long long attune_index;
ATTUNE_FUNCTION attune_index attune_at_1(const attune_cuda_symbol *v, int i)
{
    return ATTUNE_IN(v, 0, i) ? i : -1;
}
ATTUNE_FUNCTION attune_index attune_at_2(const attune_cuda_symbol *v, int i, int j)
{
    return ATTUNE_IN(v, 0, i) && ATTUNE_IN(v, 1, j) ? i * v->size[1] + j : -1;
}
ATTUNE_FUNCTION attune_index attune_at_3(const attune_cuda_symbol *v, int i, int j, int k)
{
    attune_index row = attune_at_2(v, i, j);
    return row >= 0 && ATTUNE_IN(v, 2, k) ? row * v->size[2] + k : -1;
}
ATTUNE_FUNCTION attune_index attune_at_4(const attune_cuda_symbol *v, int i, int j, int k, int l)
{
    attune_index row = attune_at_3(v, i, j, k);
    return row >= 0 && ATTUNE_IN(v, 3, l) ? row * v->size[3] + l : -1;
}
/* The same where rows have a multiple of four elements: those of the last dimension, and none in their place. */
#define ATTUNE_HAVE_PADDED_ROWS
template <int RANK> ATTUNE_FUNCTION attune_index attune_padded_index(const attune_cuda_symbol *v, const int (&at)[RANK])
{
    bool inside = ATTUNE_IN(v, RANK - 1, at[RANK - 1]);
    attune_index row = 0;
#pragma unroll
    for (int d = 0; d < RANK - 1; d++) {
        inside = inside && ATTUNE_IN(v, d, at[d]);
        row = row * v->size[d] + at[d];
    }
    return inside ? row * ((v->size[RANK - 1] + 3) & ~3ll) + at[RANK - 1] : -1;
}
ATTUNE_FUNCTION attune_index attune_padded_at_1(const attune_cuda_symbol *v, int i)
{
    return attune_padded_index<1>(v, {i});
}
ATTUNE_FUNCTION attune_index attune_padded_at_2(const attune_cuda_symbol *v, int i, int j)
{
    return attune_padded_index<2>(v, {i, j});
}
ATTUNE_FUNCTION attune_index attune_padded_at_3(const attune_cuda_symbol *v, int i, int j, int k)
{
    return attune_padded_index<3>(v, {i, j, k});
}
ATTUNE_FUNCTION attune_index attune_padded_at_4(const attune_cuda_symbol *v, int i, int j, int k, int l)
{
    return attune_padded_index<4>(v, {i, j, k, l});
}
/* The run of elements equal to element i of a row; row is -1 for a capture of rank 1. Elements out of range read 0, so
 * that a row out of range is a single run. */
ATTUNE_FUNCTION void attune_run(const attune_cuda_symbol *v, int row, int i, long long *low, long long *high)
{
    bool inside = row < 0 || ATTUNE_IN(v, 0, row), there = i >= 0 && i < v->size[row < 0 ? 0 : 1];
    *low = 0;
    *high = inside ? 0 : 2147483647;
    if (inside && there) {
        const int *run = (const int *)v->runs + 2 * ((row < 0 ? 0 : row * v->size[1]) + i);
        *low = run[0];
        *high = run[1];
    }
}

/* A row of a capture of which the last index is kv: the address of the element of key 0, and the elements from there, 0
 * where another index is out of range. */
struct attune_capture_row {
    unsigned long long address;
    int count;
};
template <int RANK, int BYTES>
ATTUNE_FUNCTION attune_capture_row attune_row_of(const attune_cuda_symbol *v, const int (&at)[RANK])
{
    bool inside = true;
    long long offset = 0;
#pragma unroll
    for (int d = 0; d < RANK - 1; d++) {
        inside = inside && ATTUNE_IN(v, d, at[d]);
        offset += at[d] * v->stride[d];
    }
    long long count = v->size[RANK - 1];
    return {v->is.address + offset * BYTES, !inside ? 0 : count < 2147483647 ? (int)count : 2147483647};
}
/* The bytes between a row's elements. */
template <int RANK, int BYTES> ATTUNE_FUNCTION long long attune_row_stride(const attune_cuda_symbol *v)
{
    return v->stride[RANK - 1] * BYTES;
}
/* Whether rows are contiguous and begin at multiples of 16 bytes. */
template <int RANK, int BYTES> ATTUNE_FUNCTION bool attune_rows_aligned(const attune_cuda_symbol *v)
{
    long long bits = (long long)v->is.address;
#pragma unroll
    for (int d = 0; d < RANK - 1; d++)
        bits |= v->stride[d] * BYTES;
    return bits % 16 == 0 && v->stride[RANK - 1] == 1;
}

ATTUNE_LOADS(int, i32)
ATTUNE_LOADS(int, i64)
ATTUNE_LOADS(int, u8)
ATTUNE_LOADS(int, bool)
ATTUNE_LOADS(float, f32)
ATTUNE_LOADS(float, f16)
ATTUNE_LOADS(float, bf16)

#endif

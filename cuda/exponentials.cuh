/* SPDX-License-Identifier: MIT */
/* Exponentials shared between the special-function unit and the FMA units, as in FlashAttention-4: an SM has 16 of the
 * former a clock, as many as a tile's products leave time for. The planner chooses the share and the degree
 * (src/plan/family_cuda_sm100.c). */
#ifndef ATTUNE_CUDA_EXPONENTIALS_CUH
#define ATTUNE_CUDA_EXPONENTIALS_CUH

#include "common.cuh"

/*
 * 2^x for x below 128: 2^n p(f), with n the nearest integer and |f| at most 1/2 (Cody and Waite, Software Manual for
 * the Elementary Functions, 1980, whose reduction is exact in base 2). p has the least largest relative error of the
 * polynomials of its degree with p(0) = 1, so that a row's largest weight stays 1: 2^-13.2 with degree 3, 2^-18.4 with
 * 4 and 2^-23.1 with 5, by Lawson's algorithm over 601 Chebyshev nodes. Adding 1.5 * 2^23 rounds to an integer, which
 * the low bits of the sum have; they become the exponent of 2^n. Results below 2^-126 are 0, NaN stays.
 */
template <int DEGREE> __device__ __forceinline__ float exp2_polynomial(float x)
{
    static_assert(DEGREE >= 3 && DEGREE <= 5, "the polynomials that are here");
    constexpr float SHIFT = 12582912.0f;
    x = maximum_or_nan(x, -127.0f);
    float shifted = __fadd_rn(x, SHIFT), f = __fsub_rn(x, __fsub_rn(shifted, SHIFT)), p;
    if constexpr (DEGREE == 3) {
        p = __fmaf_rn(0.0550089329f, f, 0.242210984f);
        p = __fmaf_rn(p, f, 0.693282902f);
    } else if constexpr (DEGREE == 4) {
        p = __fmaf_rn(0.00958285388f, f, 0.0559064262f);
        p = __fmaf_rn(p, f, 0.240240991f);
        p = __fmaf_rn(p, f, 0.693124175f);
    } else {
        p = __fmaf_rn(0.00132647273f, f, 0.00967151299f);
        p = __fmaf_rn(p, f, 0.0555073358f);
        p = __fmaf_rn(p, f, 0.240222424f);
        p = __fmaf_rn(p, f, 0.693147004f);
    }
    p = __fmaf_rn(p, f, 1.0f);
    return p * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
}

/* 2^x of the thread's value i, a constant: of each eight, config::POLYNOMIALS are polynomials. */
__device__ __forceinline__ float exp2_shared(float x, int i)
{
    if constexpr (config::POLYNOMIALS > 0)
        if (i * config::POLYNOMIALS % 8 < config::POLYNOMIALS)
            return exp2_polynomial<config::POLYNOMIAL_DEGREE>(x);
    return exp2_fast(x);
}

#endif

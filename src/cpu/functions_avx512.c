/* SPDX-License-Identifier: MIT */
/* The functions for x86 processors with AVX-512F. */
#include "cpu/functions.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET     __attribute__((target("avx512f")))
#define SPECIALISE TARGET static inline __attribute__((always_inline))
#define LANES      16

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef double vd __attribute__((vector_size(64)));

SPECIALISE vf fma_f(vf a, vf b, vf c)
{
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

SPECIALISE vd fma_d(vd a, vd b, vd c)
{
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}

SPECIALISE bool any(vi mask)
{
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

SPECIALISE vd widen_low(vf x)
{
    return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
}

SPECIALISE vd widen_high(vf x)
{
    return (vd)_mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)x, 1)));
}

SPECIALISE vf narrow(vd low, vd high)
{
    const __m512d first = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low)));
    return (vf)_mm512_insertf64x4(first, _mm256_castps_pd(_mm512_cvtpd_ps((__m512d)high)), 1);
}

#define FLOOR(x)  ((vf)_mm512_floor_ps((__m512)(x)))
#define CEIL(x)   ((vf)_mm512_ceil_ps((__m512)(x)))
#define FUNCTIONS attune__cpu_functions_avx512
#define RUNS      __builtin_cpu_supports("avx512f")
#include "cpu/functions_tmpl.h"

#else

const attune__functions *attune__cpu_functions_avx512(void)
{
    return NULL;
}

#endif

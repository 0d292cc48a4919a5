/* SPDX-License-Identifier: MIT */
/* The functions for x86 processors with AVX2 and FMA. */
#include "cpu/functions.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET     __attribute__((target("avx2,fma")))
#define SPECIALISE TARGET static inline __attribute__((always_inline))
#define LANES      8

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(32)));

SPECIALISE vf fma_f(vf a, vf b, vf c)
{
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

SPECIALISE vd fma_d(vd a, vd b, vd c)
{
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}

SPECIALISE bool any(vi mask)
{
    return _mm256_movemask_ps((__m256)mask) != 0;
}

SPECIALISE vd widen_low(vf x)
{
    return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
}

SPECIALISE vd widen_high(vf x)
{
    return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
}

SPECIALISE vf narrow(vd low, vd high)
{
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps((__m256d)low)),
                                    _mm256_cvtpd_ps((__m256d)high), 1);
}

#define FLOOR(x)  ((vf)_mm256_floor_ps((__m256)(x)))
#define CEIL(x)   ((vf)_mm256_ceil_ps((__m256)(x)))
#define FUNCTIONS attune__cpu_functions_avx2
#define RUNS      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#include "cpu/functions_tmpl.h"

#else

const attune__functions *attune__cpu_functions_avx2(void)
{
    return NULL;
}

#endif

/* SPDX-License-Identifier: MIT */
/* The functions for 64-bit Arm processors. */
#include "cpu/functions.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#define TARGET
#define SPECIALISE static inline __attribute__((always_inline))
#define LANES      4

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(16)));

SPECIALISE vf fma_f(vf a, vf b, vf c)
{
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

SPECIALISE vd fma_d(vd a, vd b, vd c)
{
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}

SPECIALISE bool any(vi mask)
{
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

SPECIALISE vd widen_low(vf x)
{
    return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)x));
}

SPECIALISE vd widen_high(vf x)
{
    return (vd)vcvt_high_f64_f32((float32x4_t)x);
}

SPECIALISE vf narrow(vd low, vd high)
{
    return (vf)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)low), (float64x2_t)high);
}

#define FLOOR(x)  ((vf)vrndmq_f32((float32x4_t)(x)))
#define CEIL(x)   ((vf)vrndpq_f32((float32x4_t)(x)))
#define FUNCTIONS attune__cpu_functions_neon
#define RUNS      true
#include "cpu/functions_tmpl.h"

#else

const attune__functions *attune__cpu_functions_neon(void)
{
    return NULL;
}

#endif

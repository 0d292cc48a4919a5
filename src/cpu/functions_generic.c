/* SPDX-License-Identifier: MIT */
/* The functions with 128-bit vectors, which all supported processors have. */
#include "cpu/functions.h"

#define TARGET
#define SPECIALISE static inline __attribute__((always_inline))
#define LANES      4

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(16)));

SPECIALISE vf fma_f(vf a, vf b, vf c)
{
    return a * b + c;
}

SPECIALISE vd fma_d(vd a, vd b, vd c)
{
    return a * b + c;
}

SPECIALISE bool any(vi mask)
{
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}

SPECIALISE vd widen_low(vf x)
{
    return (vd){(double)x[0], (double)x[1]};
}

SPECIALISE vd widen_high(vf x)
{
    return (vd){(double)x[2], (double)x[3]};
}

SPECIALISE vf narrow(vd low, vd high)
{
    return (vf){(float)low[0], (float)low[1], (float)high[0], (float)high[1]};
}

#define FUNCTIONS attune__cpu_functions_generic
#define RUNS      true
#include "cpu/functions_tmpl.h"

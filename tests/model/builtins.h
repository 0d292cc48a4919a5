/* SPDX-License-Identifier: MIT */
/* Declared by NVRTC itself: qualifiers, special registers, vector types, and CUDA's functions of a thread or warp.
 * The model's compiler includes it before a kernel's source. */
#ifndef TESTS_MODEL_BUILTINS_H
#define TESTS_MODEL_BUILTINS_H

#include <math.h>
#include <string.h>

#include "machine.h"

#define __CUDACC_RTC__ 1
#define __device__
#define __host__
#define __global__      __attribute__((used, noinline, visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __constant__
#define __grid_constant__
#define __shared__   thread_local
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

extern "C" {
extern model_machine model_functions; /* in the library, where no access is checked */
extern model_index threadIdx, blockIdx, gridDim, blockDim;
}
static constexpr const model_machine *model = &model_functions;

struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) uint2
{
    unsigned x, y;
};
struct __align__(16) uint4
{
    unsigned x, y, z, w;
};
struct __align__(8) int2
{
    int x, y;
};
struct __align__(16) int4
{
    int x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}

template <typename TO, typename FROM> static __forceinline__ TO model_bits(FROM x)
{
    static_assert(sizeof(TO) == sizeof(FROM));
    TO y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

static __forceinline__ float __int_as_float(int x)
{
    return model_bits<float>(x);
}
static __forceinline__ float __uint_as_float(unsigned x)
{
    return model_bits<float>(x);
}
static __forceinline__ int __float_as_int(float x)
{
    return model_bits<int>(x);
}
static __forceinline__ unsigned __float_as_uint(float x)
{
    return model_bits<unsigned>(x);
}
static __forceinline__ double __longlong_as_double(long long x)
{
    return model_bits<double>(x);
}
static __forceinline__ long long __double_as_longlong(double x)
{
    return model_bits<long long>(x);
}
static __forceinline__ float __fadd_rn(float a, float b)
{
    return a + b;
}
static __forceinline__ float __fsub_rn(float a, float b)
{
    return a - b;
}
/* A NaN that arithmetic makes is 0x7fffffff, as on the device: kernels compare its bits. On the host it is negative. */
static __forceinline__ float __fmaf_rn(float x, float y, float z)
{
    const float sum = __builtin_fmaf(x, y, z);
    return sum != sum ? model_bits<float>(0x7fffffff) : sum;
}

#define MODEL_MIN_MAX(T)                                                                                               \
    static __forceinline__ constexpr T min(T a, T b)                                                                   \
    {                                                                                                                  \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    static __forceinline__ constexpr T max(T a, T b)                                                                   \
    {                                                                                                                  \
        return a < b ? b : a;                                                                                          \
    }
MODEL_MIN_MAX(int)
MODEL_MIN_MAX(unsigned)
MODEL_MIN_MAX(long long)
MODEL_MIN_MAX(unsigned long long)
static __forceinline__ float min(float a, float b)
{
    return fminf(a, b);
}
static __forceinline__ float max(float a, float b)
{
    return fmaxf(a, b);
}
static __forceinline__ int __vimax3_s32(int a, int b, int c)
{
    return max(max(a, b), c);
}

static __forceinline__ int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static __forceinline__ int __ffs(int x)
{
    return __builtin_ffs(x);
}
static __forceinline__ int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static __forceinline__ unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
/* CUDA Math API, __funnelshift_l: the high word of (high:low) << (shift & 31). */
static __forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}

/* The same, __funnelshift_r: the low word of (high:low) >> (shift & 31). */
static __forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

static __forceinline__ size_t __cvta_generic_to_shared(const void *p)
{
    return model->to_shared(p);
}
static __forceinline__ void *__cvta_shared_to_generic(size_t address)
{
    return model->from_shared((uint32_t)address);
}

static __forceinline__ void __syncthreads()
{
    model->barrier(0, 0, 0, 0);
}
static __forceinline__ int __syncthreads_or(int x)
{
    return model->barrier(0, 0, 0, x) != 0;
}
static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu)
{
    model->collective(MODEL_SYNCWARP, mask, nullptr);
}

/* CUDA shuffles 8 bytes as two words. */
template <typename T> static __forceinline__ T model_shuffle(model_collective kind, unsigned mask, T x, int lane)
{
    static_assert(sizeof(T) % 4 == 0);
    uint32_t words[sizeof(T) / 4];
    __builtin_memcpy(words, &x, sizeof x);
    for (size_t i = 0; i < sizeof(T) / 4; i++) {
        uint32_t arguments[3] = {words[i], (uint32_t)lane, 0};
        model->collective(kind, mask, arguments);
        words[i] = arguments[2];
    }
    __builtin_memcpy(&x, words, sizeof x);
    return x;
}

template <typename T> static __forceinline__ T __shfl_sync(unsigned mask, T x, int lane)
{
    return model_shuffle(MODEL_SHUFFLE, mask, x, lane);
}

template <typename T> static __forceinline__ T __shfl_xor_sync(unsigned mask, T x, int bits)
{
    return model_shuffle(MODEL_SHUFFLE, mask, x, (int)(threadIdx.x % 32) ^ bits);
}

template <typename T> static __forceinline__ T __shfl_up_sync(unsigned mask, T x, unsigned distance)
{
    return model_shuffle(MODEL_SHUFFLE_UP, mask, x, (int)distance);
}

static __forceinline__ unsigned __ballot_sync(unsigned mask, int x)
{
    uint32_t arguments[2] = {x != 0, 0};
    model->collective(MODEL_VOTE, mask, arguments);
    return arguments[1];
}

static __forceinline__ int __all_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) == mask;
}
static __forceinline__ int __any_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) != 0;
}

static __forceinline__ void __threadfence()
{
}
static __forceinline__ void __nanosleep(unsigned)
{
}

template <typename T> static __forceinline__ T __ldcg(const T *p)
{
    return *p;
}

/* Fibers switch only in the machine's functions, so that these are atomic. */
template <typename T> static __forceinline__ T atomicAdd(T *to, T x)
{
    T old = *to;
    *to = (T)(old + x);
    return old;
}

template <typename T> static __forceinline__ T atomicOr(T *to, T x)
{
    T old = *to;
    *to = old | x;
    return old;
}

#endif

/* SPDX-License-Identifier: MIT */
/* Declarations that NVRTC has built in, so that ./dev lint reads kernels with clang and without NVIDIA's headers. */
#define __device__             __attribute__((device))
#define __global__             __attribute__((global))
#define __shared__             __attribute__((shared))
#define __constant__           __attribute__((constant))
#define __forceinline__        inline __attribute__((always_inline))
#define __noinline__           __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(bytes)       __attribute__((aligned(bytes)))
#define __grid_constant__
#define __cluster_dims__(...)

typedef __SIZE_TYPE__ size_t;
struct uint3 {
    unsigned x, y, z;
};
struct uint2 {
    unsigned x, y;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
extern const __device__ uint3 threadIdx, blockIdx, blockDim, gridDim;

__device__ uint2 make_uint2(unsigned, unsigned);
__device__ int2 make_int2(int, int);
__device__ uint4 make_uint4(unsigned, unsigned, unsigned, unsigned);
__device__ int4 make_int4(int, int, int, int);
__device__ float2 make_float2(float, float);
__device__ float4 make_float4(float, float, float, float);

__device__ float __int_as_float(int);
__device__ float __uint_as_float(unsigned);
__device__ int __float_as_int(float);
__device__ unsigned __float_as_uint(float);
__device__ double __longlong_as_double(long long);
__device__ long long __double_as_longlong(double);
__device__ float __fmaf_rn(float, float, float);
__device__ float __fadd_rn(float, float);
__device__ float __fsub_rn(float, float);
__device__ float __fmul_rn(float, float);
__device__ float __fdividef(float, float);
__device__ unsigned __funnelshift_l(unsigned, unsigned, unsigned);
__device__ unsigned __funnelshift_r(unsigned, unsigned, unsigned);
__device__ unsigned __umulhi(unsigned, unsigned);
__device__ int __vimax3_s32(int, int, int);
__device__ int __ffs(int);
__device__ int __popc(unsigned);
__device__ int __clz(int);
__device__ size_t __cvta_generic_to_shared(const void *);
__device__ void *__cvta_shared_to_generic(size_t);

__device__ void __syncthreads();
__device__ int __syncthreads_or(int);
__device__ void __syncwarp(unsigned = 0xffffffff);
__device__ void __threadfence();
__device__ void __nanosleep(unsigned);
__device__ int __any_sync(unsigned, int);
__device__ int __all_sync(unsigned, int);
__device__ unsigned __ballot_sync(unsigned, int);
template <typename T> __device__ T __shfl_sync(unsigned, T, int, int = 32);
template <typename T> __device__ T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <typename T> __device__ T __shfl_down_sync(unsigned, T, unsigned, int = 32);
template <typename T> __device__ T __shfl_xor_sync(unsigned, T, int, int = 32);
template <typename T> __device__ T __ldcg(const T *);
template <typename T> __device__ T atomicAdd(T *, T);
template <typename T> __device__ T atomicOr(T *, T);
template <typename T> __device__ T atomicMax(T *, T);

template <typename T> __device__ constexpr T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> __device__ constexpr T max(T a, T b)
{
    return a < b ? b : a;
}
__device__ bool isnan(float);
__device__ bool isinf(float);
__device__ float ceilf(float);
__device__ float cosf(float);
__device__ float exp2f(float);
__device__ float expf(float);
__device__ float fabsf(float);
__device__ float floorf(float);
__device__ float fmaf(float, float, float);
__device__ float fmaxf(float, float);
__device__ float fminf(float, float);
__device__ float log2f(float);
__device__ float logf(float);
__device__ float powf(float, float);
__device__ float rintf(float);
__device__ float roundf(float);
__device__ float rsqrtf(float);
__device__ float sinf(float);
__device__ float sqrtf(float);
__device__ float tanhf(float);
__device__ float truncf(float);

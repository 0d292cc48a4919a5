/* SPDX-License-Identifier: MIT */
/*
 * The functions of cuda/ptx.cuh on the CPU. Sections are those of NVIDIA's "Parallel Thread Execution ISA",
 * version 8.8; docs/model.md lists the instructions.
 */
#ifndef ATTUNE_CUDA_PTX_CUH
#define ATTUNE_CUDA_PTX_CUH

#include "builtins.h"

typedef unsigned u32;
typedef unsigned long long u64;

/* ------------------------------------------------------------------------------------------------------- arithmetic */

/* ex2: .ftz flushes subnormal inputs and results to zero with their sign. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

/* max.NaN. */
__device__ __forceinline__ float maximum_or_nan(float x, float y)
{
    return isnan(x) || isnan(y) ? __builtin_nanf("") : fmaxf(x, y);
}

/* lg2: within 2^-22 between 0.5 and 2, where the logarithm may be smaller than that. */
__device__ __forceinline__ float log2_fast(float x)
{
    float y = log2f(x);
    return fabsf(y) < 1.0f ? floorf(y * 4194304.0f) / 4194304.0f : y;
}

__device__ __forceinline__ u32 load_element_32(u64 at, bool there)
{
    return there ? *(const u32 *)at : 0;
}

__device__ __forceinline__ u32 load_element_16(u64 at, bool there)
{
    return there ? *(const unsigned short *)at : 0;
}

__device__ __forceinline__ u32 load_element_8(u64 at, bool there)
{
    return there ? *(const unsigned char *)at : 0;
}

__device__ __forceinline__ u64 load_element_64(u64 at, bool there)
{
    return there ? *(const u64 *)at : 0;
}

/* rcp, div.full, sqrt and rsqrt: within 3 ulp; rcp.ftz flushes as ex2 does. */
__device__ __forceinline__ float reciprocal_fast(float x)
{
    float y = 1.0f / x;
    return fabsf(y) < 1.17549435e-38f ? 0.0f : y;
}

__device__ __forceinline__ float divide_fast(float x, float y)
{
    return x / y;
}

__device__ __forceinline__ float sqrt_fast(float x)
{
    return sqrtf(x);
}

__device__ __forceinline__ float rsqrt_fast(float x)
{
    return 1.0f / sqrtf(x);
}

/* tanh: within 2^-11. */
__device__ __forceinline__ float tanh_fast(float x)
{
    return tanhf(x);
}

__device__ __forceinline__ float clear_sign(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0x7fffffffu);
}

/* cvt, from f16: exact. */
__device__ __forceinline__ float half_to_float(unsigned short bits)
{
    u32 sign = (u32)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    float x = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -x : x;
}

/* cvt.rn.f16: to nearest even; past 65504 + 16 infinity; NaN is 0x7fff. */
__device__ __forceinline__ u32 model_to_half(float x)
{
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0x7fff;
    if (magnitude >= 0x477ff000u)
        return sign | 0x7c00;
    if (magnitude < 0x38800000u) {
        /* Adding 0.5 rounds to multiples of 2^-24. */
        float y = __uint_as_float(magnitude) + 0.5f;
        return sign | (__float_as_uint(y) - 0x3f000000u);
    }
    return sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
}

/* cvt.rn.bf16: to nearest even; NaN is 0x7fff. */
__device__ __forceinline__ u32 model_to_brain(float x)
{
    u32 bits = __float_as_uint(x);
    return x != x ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* cvt with two operands: the first one is the high half. */
__device__ __forceinline__ u32 pack_f16(float low, float high)
{
    return model_to_half(low) | model_to_half(high) << 16;
}

__device__ __forceinline__ u32 pack_bf16(float low, float high)
{
    return model_to_brain(low) | model_to_brain(high) << 16;
}

/* cvt.rn.f16x2.e4m3x2: each code in the half of its byte; e4m3 has one NaN of each sign, which becomes 0x7fff. */
__device__ __forceinline__ u32 model_e4m3_to_half(u32 code)
{
    u32 exponent = code >> 3 & 15, fraction = code & 7;
    float x = exponent ? (float)(8 + fraction) * __uint_as_float((exponent + 117) << 23)
                       : (float)fraction * __uint_as_float(118u << 23);
    return (code & 127) == 127 ? 0x7fff : model_to_half(code & 128 ? -x : x);
}

__device__ __forceinline__ u32 e4m3_to_f16(unsigned short codes)
{
    return model_e4m3_to_half(codes & 0xffu) | model_e4m3_to_half(codes >> 8) << 16;
}

/* cvt.rna.tf32: to nearest, ties away from zero, to 10 bits of fraction. */
__device__ __forceinline__ u32 round_tf32(float x)
{
    u32 bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? (x != x ? 0x7fffffffu : bits) : (bits + 0x1000u) & 0xffffe000u;
}

/* ------------------------------------------------------------------------------------------------ special registers */

/* 10.1 %tid, 10.6 %ctaid, 10.7 %nctaid */
__device__ __forceinline__ int thread_index_remat()
{
    return (int)threadIdx.x;
}

__device__ __forceinline__ int opaque_zero()
{
    return 0;
}

__device__ __forceinline__ int block_here()
{
    return (int)blockIdx.x;
}

__device__ __forceinline__ int grid_here()
{
    return (int)gridDim.x;
}

template <typename T> __device__ __forceinline__ void make_opaque(T &)
{
}

/* ---------------------------------------------------------------------------------------------------- shared memory */

__device__ __forceinline__ u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

/* ld, st: vectors need their own size as alignment, which the machine checks. */
template <typename T> __device__ __forceinline__ void load_shared(T &x, u32 from)
{
    T loaded;
    model->load_shared(&loaded, from, 4);
    x = loaded;
}

__device__ __forceinline__ void load_shared_2(float &x, float &y, u32 from)
{
    float loaded[2];
    model->load_shared(loaded, from, 8);
    x = loaded[0], y = loaded[1];
}

template <typename T> __device__ __forceinline__ void load_shared_4(T &x, T &y, T &z, T &w, u32 from)
{
    T loaded[4];
    model->load_shared(loaded, from, 16);
    x = loaded[0], y = loaded[1], z = loaded[2], w = loaded[3];
}

template <typename T> __device__ __forceinline__ void load_shared_4_ordered(T &x, T &y, T &z, T &w, u32 from)
{
    load_shared_4(x, y, z, w, from);
}

__device__ __forceinline__ void store_shared(u32 to, u32 x)
{
    model->store_shared(to, &x, 4);
}

__device__ __forceinline__ void store_shared_4(u32 to, u32 x, u32 y, u32 z, u32 w)
{
    u32 stored[4] = {x, y, z, w};
    model->store_shared(to, stored, 16);
}

__device__ __forceinline__ void store_shared_4(u32 to, float x, float y, float z, float w)
{
    float stored[4] = {x, y, z, w};
    model->store_shared(to, stored, 16);
}

__device__ __forceinline__ void load_rank(float &x, u32 from, u32 rank)
{
    model->load_cluster(&x, from, 4, rank);
}

__device__ __forceinline__ void load_rank_2(float &x, float &y, u32 from, u32 rank)
{
    float loaded[2];
    model->load_cluster(loaded, from, 8, rank);
    x = loaded[0], y = loaded[1];
}

__device__ __forceinline__ void store_peer_4(u32 to, u32 x, u32 y, u32 z, u32 w)
{
    u32 stored[4] = {x, y, z, w};
    model->store_cluster(to, stored, 16);
}

/* ---------------------------------------------------------------------------------------------------- global memory */

__device__ __forceinline__ void load_global(float &x, const float *from)
{
    x = *from;
}

__device__ __forceinline__ u32 load_relaxed(const u32 *word)
{
    model->spin();
    return *word;
}

__device__ __forceinline__ u32 load_acquire(const u32 *word)
{
    return load_relaxed(word);
}

/* The model has one launch at a time: it checks that one which may begin early waits before it touches memory. */
__device__ __forceinline__ void wait_for_launches()
{
    model->wait_for_launches();
}

__device__ __forceinline__ void let_next_launch()
{
}

/* red.release.gpu.global.add */
__device__ __forceinline__ void add_release(u32 *word, u32 x)
{
    *word += x;
}

/* atom.acq_rel.gpu.global.add */
__device__ __forceinline__ u32 add_acquire_release(u32 *word, u32 x)
{
    u32 old = *word;
    *word += x;
    return old;
}

/* red.global.add */
__device__ __forceinline__ void add_global(float *to, float x)
{
    *to += x;
}

/* Vectors need their own size as alignment, which the machine checks. */
__device__ __forceinline__ void add_global_4(float *to, float x, float y, float z, float w)
{
    float added[4] = {x, y, z, w};
    model->add_vector(to, added, 4);
}

/* ------------------------------------------------------------------------------------------------------------ cp.async
 */

__device__ __forceinline__ void copy_async(u32 to, const void *from, bool valid)
{
    model->copy_async(to, from, 16, valid ? 16 : 0);
}

__device__ __forceinline__ void copy_async_some(u32 to, const void *from, u32 bytes)
{
    model->copy_async(to, from, 16, bytes);
}

__device__ __forceinline__ void copy_float(u32 to, const float *from)
{
    model->copy_async(to, from, 4, 4);
}

__device__ __forceinline__ void copy_commit()
{
    model->copy_commit();
}

template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    model->copy_wait(PENDING);
}

/* ----------------------------------------------------------------------------------------------- matrices of a warp */

__device__ __forceinline__ void model_load_matrices(model_collective kind, u32 (&r)[4], u32 address)
{
    model_matrices m = {address, {}};
    model->collective(kind, 0xffffffffu, &m);
    for (int i = 0; i < 4; i++)
        r[i] = m.r[i];
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address)
{
    model_load_matrices(MODEL_LDMATRIX, r, address);
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address)
{
    model_load_matrices(MODEL_LDMATRIX_TRANSPOSED, r, address);
}

__device__ __forceinline__ void store_transposed(u32 at, const u32 (&x)[4])
{
    model_matrices m = {at, {x[0], x[1], x[2], x[3]}};
    model->collective(MODEL_STMATRIX_TRANSPOSED, 0xffffffffu, &m);
}

/* movmatrix.trans */
__device__ __forceinline__ u32 transpose_matrix(u32 x)
{
    int lane = (int)(threadIdx.x % 32), from = lane % 4 * 8 + lane / 8, half = lane / 4 % 2 * 16;
    u32 low = __shfl_sync(0xffffffffu, x, from), high = __shfl_sync(0xffffffffu, x, from + 4);
    return (low >> half & 0xffff) | (high >> half & 0xffff) << 16;
}

__device__ __forceinline__ void model_multiply(model_collective kind, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    model_mma m = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    model->collective(kind, 0xffffffffu, &m);
    for (int i = 0; i < 4; i++)
        c[i] = m.c[i];
}

__device__ __forceinline__ void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    model_multiply(MODEL_MMA_TF32, c, a, b0, b1);
}

__device__ __forceinline__ void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    model_multiply(MODEL_MMA_F16, c, a, b0, b1);
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    model_multiply(MODEL_MMA_BF16, c, a, b0, b1);
}

/* --------------------------------------------------------------------------------------------------- named barriers */

template <int COUNT> __device__ __forceinline__ void named_sync(int barrier)
{
    model->barrier(barrier, COUNT, 0, 0);
}

template <int BARRIER, int COUNT> __device__ __forceinline__ void named_sync()
{
    model->barrier(BARRIER, COUNT, 0, 0);
}

template <int COUNT> __device__ __forceinline__ void named_arrive(int barrier)
{
    model->barrier(barrier, COUNT, 1, 0);
}

template <int BARRIER, int COUNT> __device__ __forceinline__ int named_sync_or(int value)
{
    return model->barrier(BARRIER, COUNT, 0, value) != 0;
}

/* --------------------------------------------------------------------------------------------------------- clusters */

/* 10.14 %cluster_ctarank */
__device__ __forceinline__ u32 cluster_rank()
{
    return model->cluster_rank();
}

__device__ __forceinline__ void cluster_sync()
{
    model->cluster_sync();
}

/* -------------------------------------------------------------------------------------------------------- mbarriers */

__device__ __forceinline__ void barrier_init(u64 *barrier, int count)
{
    model->barrier_init(shared_address(barrier), count);
}

__device__ __forceinline__ void fence_barrier_init()
{
    model->fence_barrier_init();
}

__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes)
{
    model->barrier_expect(shared_address(barrier), bytes, 1);
}

__device__ __forceinline__ void barrier_expect_more(u64 *barrier, u32 bytes)
{
    model->barrier_expect(shared_address(barrier), bytes, 0);
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier)
{
    model->barrier_arrive(shared_address(barrier), MODEL_OWN);
}

__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 phase)
{
    model->barrier_wait(shared_address(barrier), phase);
}

__device__ __forceinline__ void barrier_arrive_peer(u64 *barrier)
{
    model->barrier_arrive(shared_address(barrier), MODEL_PEER);
}

__device__ __forceinline__ void barrier_arrive_first(u64 *barrier)
{
    model->barrier_arrive(shared_address(barrier), MODEL_FIRST);
}

__device__ __forceinline__ void barrier_wait_peer(u64 *barrier, u32 phase)
{
    model->barrier_wait(shared_address(barrier), phase);
}

/* ------------------------------------------------------------------------------------------------------ bulk copies */

struct __align__(64) tensor_map
{
    u64 opaque[16];
};

__device__ __forceinline__ void tensor_load(u32 to, const tensor_map *map, u64 *barrier, int column, int row, int h,
                                            int b)
{
    int at[4] = {column, row, h, b};
    model->tensor_load(to, map, shared_address(barrier), MODEL_OWN, at);
}

__device__ __forceinline__ void tensor_load_slabs(u32 to, const tensor_map *map, u64 *barrier, int row, int h, int b)
{
    int at[5] = {0, row, 0, h, b};
    model->tensor_load(to, map, shared_address(barrier), MODEL_OWN, at);
}

__device__ __forceinline__ void tensor_load_pair(u32 to, const tensor_map *map, u64 *barrier, int column, int row,
                                                 int h, int b)
{
    int at[4] = {column, row, h, b};
    model->tensor_load(to, map, shared_address(barrier), MODEL_FIRST, at);
}

__device__ __forceinline__ void tensor_store(const tensor_map *map, u32 from, int column, int row, int h, int b)
{
    int at[4] = {column, row, h, b};
    model->tensor_store(map, from, at);
}

__device__ __forceinline__ void bulk_load(u32 to, const void *from, u32 bytes, u64 *barrier)
{
    model->bulk_load(to, from, bytes, shared_address(barrier));
}

__device__ __forceinline__ void bulk_add(float *to, u32 from, u32 bytes)
{
    model->bulk_add(to, from, bytes);
}

__device__ __forceinline__ void bulk_wait_read()
{
    model->bulk_wait(1);
}

__device__ __forceinline__ void bulk_wait()
{
    model->bulk_wait(0);
}

__device__ __forceinline__ void bulk_wait_release(u32 *word, int value)
{
    model->bulk_wait(0);
    *word = (u32)value;
}

__device__ __forceinline__ void copy_peer(u32 to, u32 from, u32 bytes, u64 *barrier)
{
    model->copy_peer(to, from, bytes, shared_address(barrier));
}

__device__ __forceinline__ void store_peer(int *to, int value, u64 *barrier)
{
    model->store_peer(shared_address(to), (u32)value, shared_address(barrier));
}

/* ------------------------------------------------------------------------------------------- the asynchronous proxy */

__device__ __forceinline__ void fence_async()
{
    model->fence_async();
}

__device__ __forceinline__ void fence_async_all()
{
    model->fence_async();
}

/* Global memory has no checks. */
__device__ __forceinline__ void fence_async_global()
{
}

__device__ __forceinline__ void wgmma_fence()
{
    model->collective(MODEL_WGMMA_FENCE, 0xffffffffu, nullptr);
}

__device__ __forceinline__ void wgmma_commit()
{
    model->collective(MODEL_WGMMA_COMMIT, 0xffffffffu, nullptr);
}

template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    int pending = PENDING;
    model->collective(MODEL_WGMMA_WAIT, 0xffffffffu, &pending);
}

template <int COUNT> __device__ __forceinline__ void accumulators_done(float (&)[COUNT])
{
}

/* ------------------------------------------------------------------------------------------------- registers of a role
 */

__device__ __forceinline__ void model_registers(int registers)
{
    model->collective(MODEL_SETMAXNREG, 0xffffffffu, &registers);
}

template <int REGISTERS> __device__ __forceinline__ void registers_release()
{
    model_registers(REGISTERS);
}

template <int REGISTERS> __device__ __forceinline__ void registers_take()
{
    model_registers(REGISTERS);
}

#endif

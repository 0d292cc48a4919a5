/* SPDX-License-Identifier: MIT */
/*
 * tcgen05 of sm_100a: tensor memory and its matrix products, one function for each instruction, with the semantics of
 * the PTX manual. Only kind::f16 is here. tests/model has the same functions on the CPU.
 *
 * In a kernel with clusters of two CTAs all are of cta_group::2, for the pair. A product then reads the shared memory
 * and writes the tensor memory of both, at the same addresses: the CTA of rank 0 has the first rows of a and d and the
 * first columns of b, and it alone issues products and commits. With 128 rows, of which each CTA has 64, lanes 64 to
 * 127 have the second half of their columns.
 *
 * An address of tensor memory has the lane in its upper half and the column in its lower one. A warp accesses the 32
 * lanes of its number modulo 4, a thread the lane of its own number: of a tile of 128 rows a thread has one row.
 *
 * Loads, stores and products are asynchronous. Their order among threads: the load or store has been waited for
 * (tmem_wait_load, tmem_wait_store), or a product's commit has arrived at its mbarrier; then tmem_fence_before, which a
 * commit does by itself, a barrier, and tmem_fence_after. Products of one thread are in order only if they have the
 * same accumulator and shape.
 */
#ifndef ATTUNE_CUDA_TCGEN05_CUH
#define ATTUNE_CUDA_TCGEN05_CUH

#include "common.cuh"

/* ---------------------------------------------------------------------------------------------------- tensor memory */

constexpr int TENSOR_CTAS = config::CLUSTER; /* of the cta_group */

/* By a whole warp, which also frees them: allocates a power of two of columns, at least 32. The address of the first is
 * stored at `to` in shared memory. A pair's CTAs, both of which run, do so together. */
template <int COLUMNS> __device__ __forceinline__ void tmem_allocate(u32 to)
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(COLUMNS)
                     : "memory");
    else
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(COLUMNS)
                     : "memory");
}

/* The CTA allocates no more. */
__device__ __forceinline__ void tmem_relinquish()
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    else
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

template <int COLUMNS> __device__ __forceinline__ void tmem_free(u32 address)
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COLUMNS) : "memory");
    else
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COLUMNS) : "memory");
}

/* Orders the thread's accesses to tensor memory before what a barrier orders after it; and those that a barrier orders
 * before it, before the thread's later ones. */
__device__ __forceinline__ void tmem_fence_before()
{
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void tmem_fence_after()
{
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

#define TMEM_R8(R, i)  R(r[i]), R(r[i + 1]), R(r[i + 2]), R(r[i + 3]), R(r[i + 4]), R(r[i + 5]), R(r[i + 6]), R(r[i + 7])
#define TMEM_R16(R, i) TMEM_R8(R, i), TMEM_R8(R, i + 8)
#define TMEM_R32(R, i) TMEM_R16(R, i), TMEM_R16(R, i + 16)
#define TMEM_OUT(x)    "=r"(x)
#define TMEM_IN(x)     "r"(x)

/* The thread's lane of 8, 16 or 32 columns. Its words are there after tmem_wait_load. */
__device__ __forceinline__ void tmem_load(u32 (&r)[8], u32 from)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8];"
                 : TMEM_R8(TMEM_OUT, 0)
                 : "r"(from));
}

__device__ __forceinline__ void tmem_load(u32 (&r)[16], u32 from)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, [%16];"
                 : TMEM_R16(TMEM_OUT, 0)
                 : "r"(from));
}

__device__ __forceinline__ void tmem_load(u32 (&r)[32], u32 from)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
                 : TMEM_R32(TMEM_OUT, 0)
                 : "r"(from));
}

/* Waits for all loads of the warp. r: the words of the last ones, which the compiler must not use before. */
template <int COUNT> __device__ __forceinline__ void tmem_wait_load(u32 (&r)[COUNT])
{
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(r[i])::"memory");
}

__device__ __forceinline__ void tmem_store(u32 to, const u32 (&r)[8])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};" ::"r"(to), TMEM_R8(TMEM_IN, 0)
                 : "memory");
}

__device__ __forceinline__ void tmem_store(u32 to, const u32 (&r)[16])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], "
                 "{%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16};" ::"r"(to),
                 TMEM_R16(TMEM_IN, 0)
                 : "memory");
}

__device__ __forceinline__ void tmem_store(u32 to, const u32 (&r)[32])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], "
                 "{%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,"
                 "%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32};" ::"r"(to),
                 TMEM_R32(TMEM_IN, 0)
                 : "memory");
}

/* Waits for all stores of the warp. */
__device__ __forceinline__ void tmem_wait_store()
{
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

/* --------------------------------------------------------------------------------------------------------- products */

/* "Shared memory descriptor": the fields of wgmma's with the 128-byte swizzle (hopper.cuh), and a constant. */
__device__ __forceinline__ u64 tcgen05_descriptor(u64 wgmma_descriptor)
{
    return wgmma_descriptor | 1ull << 46;
}

/* "Instruction descriptor" of kind::f16: `columns` columns and, of all CTAs, `rows` rows, float32 sums of products of
 * DTYPE. b_n_major: B is N-major; a_m_major: A is M-major. */
__device__ constexpr u32 tcgen05_instruction(int columns, bool b_n_major, bool a_m_major = false,
                                             int rows = 128 * TENSOR_CTAS)
{
    const u32 type = config::DTYPE == ATTUNE_CUDA_BF16 ? 1 : 0;
    return 1u << 4 | type << 7 | type << 10 | (a_m_major ? 1u : 0u) << 15 | (b_n_major ? 1u : 0u) << 16 |
           (u32)columns / 8 << 17 | (u32)rows / 16 << 24;
}

/* By one thread: d = a b + (add ? d : 0), with 16 columns of a. d: an address of tensor memory; a and b: descriptors.
 */
__device__ __forceinline__ void tcgen05_ss(u32 d, u64 a, u64 b, u32 instruction, int add)
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                     "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                     "l"(a), "l"(b), "r"(instruction), "r"(add)
                     : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                     "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
                     "l"(a), "l"(b), "r"(instruction), "r"(add)
                     : "memory");
}

/* The same with a in tensor memory: 8 columns of two 16-bit elements each. */
__device__ __forceinline__ void tcgen05_ts(u32 d, u32 a, u64 b, u32 instruction, int add)
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                     "tcgen05.mma.cta_group::2.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
                     "r"(a), "l"(b), "r"(instruction), "r"(add)
                     : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
                     "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
                     "r"(a), "l"(b), "r"(instruction), "r"(add)
                     : "memory");
}

/* Arrives at the barrier once all products that the thread has issued are complete. */
__device__ __forceinline__ void tcgen05_commit(u64 *barrier)
{
    if constexpr (TENSOR_CTAS == 2)
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier))
            : "memory");
    else
        asm volatile(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier))
            : "memory");
}

/* The same at the barriers of both CTAs of a pair. */
__device__ __forceinline__ void tcgen05_commit_pair(u64 *barrier)
{
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
            shared_address(barrier)),
        "h"((unsigned short)3)
        : "memory");
}

#endif

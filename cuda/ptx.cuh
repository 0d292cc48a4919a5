/* SPDX-License-Identifier: MIT */
/*
 * The PTX that kernels use: one function for each instruction, with the semantics of the PTX manual. wgmma.cuh has
 * wgmma.mma_async; no other file has inline PTX. tests/model has the same functions on the CPU.
 *
 * Loads and stores that are volatile but do not clobber memory may be moved across other accesses to memory by the
 * compiler. The _ordered ones may not.
 */
#ifndef ATTUNE_CUDA_PTX_CUH
#define ATTUNE_CUDA_PTX_CUH

typedef unsigned u32;
typedef unsigned long long u64;

/* ------------------------------------------------------------------------------------------------------- arithmetic */

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger one, or NaN. */
__device__ __forceinline__ float maximum_or_nan(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* Within 2^-22 of the logarithm, relative outside of (0.5, 2). */
__device__ __forceinline__ float log2_fast(float x)
{
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* An element of global memory that no kernel writes while this one reads it, or 0 where `there` is false: without a
 * branch, so that many loads are under way at once, and equal ones are one. */
__device__ __forceinline__ u32 load_element_32(u64 at, bool there)
{
    u32 x;
    asm("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.b32 %0, [%1]; }"
        : "=r"(x)
        : "l"(at), "r"((u32)there));
    return x;
}

__device__ __forceinline__ u32 load_element_16(u64 at, bool there)
{
    unsigned short x;
    asm("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.b16 %0, [%1]; }"
        : "=h"(x)
        : "l"(at), "r"((u32)there));
    return x;
}

__device__ __forceinline__ u32 load_element_8(u64 at, bool there)
{
    u32 x;
    asm("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.u8 %0, [%1]; }"
        : "=r"(x)
        : "l"(at), "r"((u32)there));
    return x;
}

__device__ __forceinline__ u64 load_element_64(u64 at, bool there)
{
    u64 x;
    asm("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b64 %0, 0; @p ld.global.b64 %0, [%1]; }"
        : "=l"(x)
        : "l"(at), "r"((u32)there));
    return x;
}

/* Within 1 ulp; results below 2^-126 are 0. */
__device__ __forceinline__ float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 2 ulp: as div.full.f32, whose scale and reciprocal are not shared by quotients with the same divisor. */
__device__ __forceinline__ float divide_fast(float x, float y)
{
    float scale = fabsf(y) > 0x1p126f ? 0.25f : fabsf(y) < 0x1p-126f ? 0x1p24f : 1.0f;
    return x * scale * reciprocal_fast(y * scale);
}

/* Within 3 ulp. */
__device__ __forceinline__ float sqrt_fast(float x)
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 2 ulp. */
__device__ __forceinline__ float rsqrt_fast(float x)
{
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Within 2^-11 of tanh. */
__device__ __forceinline__ float tanh_fast(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The magnitude by the bits: ptxas assumes that abs.f32 is not negative and folds |x| >= -1 to true, also for NaN. */
__device__ __forceinline__ float clear_sign(float x)
{
    float y;
    asm("and.b32 %0, %1, 0x7fffffff;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float half_to_float(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

/* Two values in f16 or in bf16, the first in the low half. */
__device__ __forceinline__ u32 pack_f16(float low, float high)
{
    u32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

__device__ __forceinline__ u32 pack_bf16(float low, float high)
{
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

/* Two codes of e4m3 in f16, exact; from sm_89 on. */
__device__ __forceinline__ u32 e4m3_to_f16(unsigned short codes)
{
    u32 two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(codes));
    return two;
}

__device__ __forceinline__ u32 round_tf32(float x)
{
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* ----------------------------------------------------------------------------------------------- special registers */

/* Volatile, so that the compiler reads them where they are used and does not keep what follows from them in registers
 * across tiles. */

/* The thread index, rematerialised. */
__device__ __forceinline__ int thread_index_remat()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* 0, since CTAs are one-dimensional, which the compiler does not know. */
__device__ __forceinline__ int opaque_zero()
{
    int zero;
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(zero));
    return zero;
}

/* The CTA index, rematerialised. */
__device__ __forceinline__ int block_here()
{
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* The CTAs of the grid, rematerialised. */
__device__ __forceinline__ int grid_here()
{
    int ctas;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
    return ctas;
}

/* Makes x opaque to the compiler: values that follow from it, such as the reciprocal for a division, are not kept in
 * registers across tiles. */
__device__ __forceinline__ void make_opaque(int &x)
{
    asm volatile("" : "+r"(x));
}

__device__ __forceinline__ void make_opaque(u32 &x)
{
    asm volatile("" : "+r"(x));
}

template <typename T> __device__ __forceinline__ void make_opaque(T *&x)
{
    asm volatile("" : "+l"(x));
}

/* ---------------------------------------------------------------------------------------------------- shared memory */

__device__ __forceinline__ u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

template <typename T> __device__ __forceinline__ void load_shared(T &x, u32 from)
{
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from));
}

__device__ __forceinline__ void load_shared_2(float &x, float &y, u32 from)
{
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(from));
}

__device__ __forceinline__ void load_shared_4(int &x, int &y, int &z, int &w, u32 from)
{
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from));
}

template <typename T> __device__ __forceinline__ void load_shared_4_ordered(T &x, T &y, T &z, T &w, u32 from)
{
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_shared_4_ordered(float &x, float &y, float &z, float &w, u32 from)
{
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(from) : "memory");
}

__device__ __forceinline__ void store_shared(u32 to, u32 x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

__device__ __forceinline__ void store_shared_4(u32 to, u32 x, u32 y, u32 z, u32 w)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void store_shared_4(u32 to, float x, float y, float z, float w)
{
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

/* ---------------------------------------------------------------------------------------------------- global memory */

/* Volatile: read again at each use. */
__device__ __forceinline__ void load_global(float &x, const float *from)
{
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(from));
}

__device__ __forceinline__ u32 load_relaxed(const u32 *word)
{
    u32 now;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now;
}

__device__ __forceinline__ u32 load_acquire(const u32 *word)
{
    u32 now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now;
}

/* A launch that may begin before the one before it has ended (attune__cuda_launch_early): what it reads of that one, or
 * of any before, is there after this. */
__device__ __forceinline__ void wait_for_launches()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next launch may begin, when all CTAs have come here. */
__device__ __forceinline__ void let_next_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Adds, after all that the thread has done before. */
__device__ __forceinline__ void add_release(u32 *word, u32 x)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}

/* Likewise, and before all that it does after. Returns what was there. */
__device__ __forceinline__ u32 add_acquire_release(u32 *word, u32 x)
{
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(word), "r"(x) : "memory");
    return old;
}

__device__ __forceinline__ void add_global(float *to, float x)
{
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

__device__ __forceinline__ void add_global_4(float *to, float x, float y, float z, float w)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

/* --------------------------------------------------------------------------------------------------------- cp.async */

/* The first `bytes` of 16, then zeros. */
__device__ __forceinline__ void copy_async_some(u32 to, const void *from, u32 bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

/* Copies 16 bytes, or zeros where they are not valid. */
__device__ __forceinline__ void copy_async(u32 to, const void *from, bool valid)
{
    copy_async_some(to, from, valid ? 16 : 0);
}

__device__ __forceinline__ void copy_float(u32 to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;");
}

template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

/* --------------------------------------------------------------------------------------------------- matrices of a
 * warp */

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Stores four 8 x 8 matrices, transposed. */
__device__ __forceinline__ void store_transposed(u32 at, const u32 (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Transposes an 8 x 8 matrix: a lane has of row lane / 4 columns lane % 4 * 2 and + 1. */
__device__ __forceinline__ u32 transpose_matrix(u32 x)
{
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* c += a b */
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* --------------------------------------------------------------------------------------------------- named barriers */

/* Waits for COUNT threads, the arrivals of named_arrive among them. */
template <int COUNT> __device__ __forceinline__ void named_sync(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

template <int BARRIER, int COUNT> __device__ __forceinline__ void named_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(COUNT) : "memory");
}

template <int COUNT> __device__ __forceinline__ void named_arrive(int barrier)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

/* Waits, and returns whether any of the threads has a `value` other than 0. */
template <int BARRIER, int COUNT> __device__ __forceinline__ int named_sync_or(int value)
{
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %0, 0;\nbar.red.or.pred q, %1, %2, p;\n"
                 "selp.b32 %0, 1, 0, q;\n}"
                 : "+r"(value)
                 : "n"(BARRIER), "n"(COUNT)
                 : "memory");
    return value;
}

/* --------------------------------------------------------------------------------------------------------- clusters */

/* Of a pair, 0 or 1. */
__device__ __forceinline__ u32 cluster_rank()
{
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address, in the peer CTA's shared memory, of the same byte. */
__device__ __forceinline__ u32 peer_address(u32 address)
{
    u32 peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(cluster_rank() ^ 1));
    return peer;
}

/* The same in that of rank 0, which may be this CTA. */
__device__ __forceinline__ u32 first_address(u32 address)
{
    u32 first;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(first) : "r"(address));
    return first;
}

/* The same in that of any rank. */
__device__ __forceinline__ u32 rank_address(u32 address, u32 rank)
{
    u32 of_rank;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(of_rank) : "r"(address), "r"(rank));
    return of_rank;
}

/* Stores 16 bytes at the same address of the peer CTA. */
__device__ __forceinline__ void store_peer_4(u32 to, u32 x, u32 y, u32 z, u32 w)
{
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(peer_address(to)), "r"(x), "r"(y), "r"(z),
                 "r"(w)
                 : "memory");
}

/* Loads what is at the same address in the shared memory of any rank. */
__device__ __forceinline__ void load_rank(float &x, u32 from, u32 rank)
{
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(rank_address(from, rank)) : "memory");
}

__device__ __forceinline__ void load_rank_2(float &x, float &y, u32 from, u32 rank)
{
    asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
                 : "=f"(x), "=f"(y)
                 : "r"(rank_address(from, rank))
                 : "memory");
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* -------------------------------------------------------------------------------------------------------- mbarriers */

__device__ __forceinline__ void barrier_init(u64 *barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

/* Makes barrier_init visible to the cluster and to asynchronous copies. */
__device__ __forceinline__ void fence_barrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival, and `bytes` that TMA has to write before the phase is complete. */
__device__ __forceinline__ void barrier_expect(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* More bytes for the phase, without an arrival. */
__device__ __forceinline__ void barrier_expect_more(u64 *barrier, u32 bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64 *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void barrier_wait(u64 *barrier, u32 phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* Arrives at the same barrier of the peer CTA. */
__device__ __forceinline__ void barrier_arrive_peer(u64 *barrier)
{
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer_address(shared_address(barrier)))
        : "memory");
}

/* Arrives at the barrier of the CTA of rank 0. */
__device__ __forceinline__ void barrier_arrive_first(u64 *barrier)
{
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(first_address(shared_address(barrier)))
        : "memory");
}

/* Waits at this CTA's barrier with acquire at cluster scope: for arrivals and writes of the peer CTA. */
__device__ __forceinline__ void barrier_wait_peer(u64 *barrier, u32 phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(shared_address(barrier)),
                 "r"(phase)
                 : "memory");
}

/* ------------------------------------------------------------------------------------------------------ bulk copies */

/* A CUtensorMap, which the host encodes. TMA needs it at a multiple of 64 bytes. */
struct __align__(64) tensor_map
{
    u64 opaque[16];
};

/* TMA: loads the map's box at [b][h][row][column] to shared memory; its bytes count at `barrier`. */
__device__ __forceinline__ void tensor_load(u32 to, const tensor_map *map, u64 *barrier, int column, int row, int h,
                                            int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(h), "r"(b)
                 : "memory");
}

/* The same of all slabs of 64 columns of rows, which are a dimension of the map. */
__device__ __forceinline__ void tensor_load_slabs(u32 to, const tensor_map *map, u64 *barrier, int row, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {0, %3, 0, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(shared_address(barrier)), "r"(row), "r"(h), "r"(b)
                 : "memory");
}

/* The same by a pair of CTAs: the bytes count at the barrier of that of rank 0. */
__device__ __forceinline__ void tensor_load_pair(u32 to, const tensor_map *map, u64 *barrier, int column, int row,
                                                 int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(first_address(shared_address(barrier))), "r"(column), "r"(row), "r"(h), "r"(b)
                 : "memory");
}

/* TMA: stores the map's box at [b][h][row][column] from shared memory; what is outside of the tensor is left out. */
__device__ __forceinline__ void tensor_store(const tensor_map *map, u32 from, int column, int row, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(from), "r"(column), "r"(row), "r"(h), "r"(b)
                 : "memory");
}

/* Loads contiguous bytes to shared memory; they count at `barrier`. */
__device__ __forceinline__ void bulk_load(u32 to, const void *from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* Adds float32 values in shared memory to global memory. */
__device__ __forceinline__ void bulk_add(float *to, u32 from, u32 bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}

/* Waits until the thread's bulk additions and stores have read their sources; and until they are complete. */
__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Stores `value` after the thread's bulk additions are complete. */
__device__ __forceinline__ void bulk_wait_release(u32 *word, int value)
{
    asm volatile("cp.async.bulk.wait_group 0;\n"
                 "fence.proxy.async.global;\n"
                 "st.release.gpu.global.u32 [%0], %1;" ::"l"(word),
                 "r"(value)
                 : "memory");
}

/* Copies to the same address of the cluster peer, whose barrier counts the bytes. */
__device__ __forceinline__ void copy_peer(u32 to, u32 from, u32 bytes, u64 *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     peer_address(to)),
                 "r"(from), "r"(bytes), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

/* The same with one word. */
__device__ __forceinline__ void store_peer(int *to, int value, u64 *barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     peer_address(shared_address(to))),
                 "r"(value), "r"(peer_address(shared_address(barrier)))
                 : "memory");
}

/* ------------------------------------------------------------------------------------------- the asynchronous proxy */

/* Orders stores to shared memory before later reads by TMA, bulk copies and wgmma. */
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void fence_async_all()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void fence_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* After wgmma_wait: keeps the compiler from moving reads of the accumulators before the wait. */
template <int COUNT> __device__ __forceinline__ void accumulators_done(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* ------------------------------------------------------------------------------------------------ registers of a role
 */

template <int REGISTERS> __device__ __forceinline__ void registers_release()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif

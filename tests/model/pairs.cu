/* SPDX-License-Identifier: MIT */
/*
 * A product by a pair of CTAs, for tests/model/pairs.c: D = A B of PAIR_ROWS x PAIR_COLUMNS x 64 in float32. Each CTA
 * fills its half of the rows of A and of the columns of B, and stores what it has of D: [CTA][lane][column].
 * PAIR_MISUSE is what is done wrong.
 */
#include "hopper.cuh"
#include "rows_sm100.cuh"

enum misuse {
    NOTHING,
    ODD_ISSUES,        /* the CTA of rank 1 issues the products */
    ONE_ALLOCATES,     /* the other CTA has no tensor memory */
    OTHERS_COLUMNS,    /* the CTAs allocate other numbers of columns */
    NO_CLUSTER_SYNC,   /* the other CTA's operands are not waited for */
    NO_PROXY_FENCE,    /* nor ordered before the asynchronous proxy */
    COMMIT_TO_ONE,     /* the commit arrives in one CTA */
    NO_WAIT,           /* D is loaded before the commit */
    NO_FENCE_AFTER,    /* ... without tcgen05.fence */
    FREES_EARLY,       /* while the other CTA loads D */
    STORES_TO_OPERANDS /* of the other CTA, while products read them */
};

constexpr int HALF_ROWS = PAIR_ROWS / 2, HALF_COLUMNS = PAIR_COLUMNS / 2, FOLDED = PAIR_ROWS == 128;
constexpr u32 B_OFFSET = 16384, BARRIER_OFFSET = 32768;

/* Row i, K-major with the 128-byte swizzle. */
__device__ __forceinline__ void fill(u32 to, const unsigned short *from, int rows)
{
    for (int i = (int)threadIdx.x; i < rows * 8; i += 128) {
        const u32 *four = (const u32 *)(from + i * 8);
        store_shared_4(to + (u32)(i / 8 * 128 + (i % 8 ^ i / 8 % 8) * 16), four[0], four[1], four[2], four[3]);
    }
}

extern "C" __global__ void ATTUNE_CLUSTER_DIMENSIONS __launch_bounds__(128, 1)
    attune_pair_product(const unsigned short *a, const unsigned short *b, float *d)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const int rank = (int)cluster_rank(), lane = (int)threadIdx.x;
    const u32 base = shared_address(memory);
    u64 *done = (u64 *)(memory + BARRIER_OFFSET);
    u32 *tmem = (u32 *)(memory + BARRIER_OFFSET + 16);
    if (lane == 0) {
        barrier_init(done, 1);
        barrier_init(done + 1, 128);
        fence_barrier_init();
    }
    cluster_sync();
    if (lane < 32 && (PAIR_MISUSE != ONE_ALLOCATES || rank == 0)) {
        if (PAIR_MISUSE == OTHERS_COLUMNS && rank)
            tmem_allocate<256>(shared_address(tmem));
        else
            tmem_allocate<128>(shared_address(tmem));
        tmem_relinquish();
    }
    fill(base, a + rank * HALF_ROWS * 64, HALF_ROWS);
    fill(base + B_OFFSET, b + rank * HALF_COLUMNS * 64, HALF_COLUMNS);
    if (PAIR_MISUSE != NO_PROXY_FENCE)
        fence_async();
    if (PAIR_MISUSE != NO_CLUSTER_SYNC)
        cluster_sync();
    else
        __syncthreads();
    if (lane == 0 && rank == (PAIR_MISUSE == ODD_ISSUES)) {
        u64 left = tcgen05_descriptor(describe_k_major(base)),
            right = tcgen05_descriptor(describe_k_major(base + B_OFFSET));
        for (int step = 0; step < 4; step++)
            tcgen05_ss(*tmem, left + step * 2, right + step * 2,
                       tcgen05_instruction(PAIR_COLUMNS, false, false, PAIR_ROWS), step);
        if (PAIR_MISUSE == COMMIT_TO_ONE)
            tcgen05_commit(done);
        else
            tcgen05_commit_pair(done);
    }
    if (PAIR_MISUSE == STORES_TO_OPERANDS && rank)
        store_peer_4(base + (u32)lane * 16, 0, 0, 0, 0);
    if (PAIR_MISUSE != NO_WAIT)
        barrier_wait_peer(done, 0);
    if (PAIR_MISUSE != NO_FENCE_AFTER)
        tmem_fence_after();
    for (int column = 0; column < PAIR_COLUMNS / (FOLDED ? 2 : 1); column += 16) {
        float x[16];
        load_columns(x, *tmem + ((u32)(lane / 32 * 32) << 16) + (u32)column);
        for (int i = 0; i < 16; i++)
            d[(rank * 128 + lane) * PAIR_COLUMNS + column + i] = x[i];
    }
    tmem_fence_before();
    if (PAIR_MISUSE == FREES_EARLY)
        __syncthreads();
    else {
        barrier_arrive_peer(done + 1);
        barrier_wait_peer(done + 1, 0);
        __syncthreads();
    }
    tmem_fence_after();
    if (lane < 32)
        tmem_free<128>(*tmem);
    cluster_sync();
}

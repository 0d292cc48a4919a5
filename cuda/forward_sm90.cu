/* SPDX-License-Identifier: MIT */
/*
 * Forward for Hopper: TMA, mbarriers and wgmma. The stages are those of docs/algorithm.md.
 *
 * The first warp group produces. One thread of it walks the work and the mask's lists, some tiles of keys ahead, so that
 * nobody waits for what it reads; another one loads, and passes on, with each tile of keys, where it stands and how it
 * is to be masked. Each other warp group owns 64 rows. It issues Q K(j + 1) before P V(j), so that the tensor cores
 * work under softmax, and the next rows' first Q K with the last P V, so that they work while O is stored; and two warp
 * groups take turns in issuing, so that one's products run under the other's softmax.
 *
 * A thread holds, of each 16 x 8 fragment of S and O, rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
 * Tiles in shared memory are slabs of 64 columns, as TMA's 128-byte swizzle lays them.
 */
#include "producer_sm90.cuh"
#include "scores_sm90.cuh"
#include "wgmma.cuh"

/* With 160 registers a mask has room only once P is gone: P V is not under it then. */
constexpr bool DRAINS = GROUPS == 3 && ATTUNE_HAVE_BLOCKS;
constexpr bool PING_PONG = GROUPS > 1 && HEAD_DIM_V <= 128;

/* Turns between two or three warp groups, in named barriers 1 and following. */
__device__ __forceinline__ void ping_pong_wait(int group)
{
    if (PING_PONG)
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void ping_pong_arrive(int group)
{
    if (PING_PONG)
        asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1 == GROUPS ? 0 : group + 1)) : "memory");
}

/* ----------------------------------------------------------------------------------------------------------- stages */

/* 3: S = Q K^T, begun. */
__device__ __forceinline__ void multiply_qk(float (&s)[BLOCK_N / 2], u64 q, u64 k)
{
#pragma unroll
    for (int step = 0; step < STEPS_D; step++)
        wgmma<BLOCK_N>::ss(s, q + (step / 4 * Q_SLAB + step % 4 * 32) / 16,
                           k + (step / 4 * KV_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* 5: online softmax; S becomes P. m and l belong to rows lane / 4 and lane / 4 + 8; l is the thread's own part. */
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], float (&m)[2], float (&l)[2], float (&alpha)[2],
                                        float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = m[half];
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        /* A row without anything yet subtracts 0, so that exp(-inf) is 0 and not NaN. */
        float base = top == -ATTUNE_INF ? 0.0f : top, shift = base * factor;
        alpha[half] = exp2_fast((m[half] - base) * factor);
        m[half] = top;
        float even = l[half] * alpha[half], odd = 0.0f;
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n++) {
            float &x = s[n * 4 + half * 2], &y = s[n * 4 + half * 2 + 1];
            x = exp2_fast(__fmaf_rn(x, factor, -shift));
            y = exp2_fast(__fmaf_rn(y, factor, -shift));
            even += x;
            odd += y;
        }
        l[half] = even + odd;
    }
}

/*
 * The same against the largest scores of before, without a look at these first: exponentials begin at once, and O needs
 * no scaling. Adds to l, makes P, and leaves S alone. False, with l as it was, if a weight would be past RESCALE_THRESHOLD, or a row
 * has had no key yet. Weights up to there lose nothing, since P, l and O are all floating-point. What is compared are
 * the bits of their logarithms: as integers negative ones are below 0, and NaN are the largest.
 */
constexpr float RESCALE_THRESHOLD = 256.0f, RESCALE_THRESHOLD_LOG2 = 8.0f;
constexpr int CHAINS = GROUPS == 3 ? 1 : 2; /* of sums, and of what is looked at: 160 registers have room for one */

__device__ __forceinline__ bool softmax_without_rescale(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2],
                                             const float (&m)[2], float (&l)[2], float factor)
{
    float shift[2] = {m[0] * factor, m[1] * factor}, sum[2][2] = {{l[0], 0.0f}, {l[1], 0.0f}};
    int top[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = __fmaf_rn(s[n * 4 + half * 2], factor, -shift[half]);
            float y = __fmaf_rn(s[n * 4 + half * 2 + 1], factor, -shift[half]);
            top[half % CHAINS] = __vimax3_s32(top[half % CHAINS], __float_as_int(x), __float_as_int(y));
            x = exp2_fast(x);
            y = exp2_fast(y);
            sum[half][0] += x;
            sum[half][1 % CHAINS] += y;
            p[n / 2][n % 2 * 2 + half] = pack(x, y);
        }
    if (__any_sync(0xffffffffu, max(top[0], top[1]) > __float_as_int(RESCALE_THRESHOLD_LOG2)))
        return false;
    l[0] = sum[0][0] + sum[0][1];
    l[1] = sum[1][0] + sum[1][1];
    return true;
}

/* P in 16 bits: the left operands of P V as they are. */
__device__ __forceinline__ void round_p(u32 (&p)[BLOCK_N / 16][4], const float (&s)[BLOCK_N / 2])
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[step][i] = pack(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
}

__device__ __forceinline__ void rescale(float (&o)[WIDTH_DV / 2], const float (&alpha)[2])
{
#pragma unroll
    for (int i = 0; i < WIDTH_DV / 2; i++)
        o[i] *= alpha[i / 2 % 2];
}

/* What the scan warps took out of V, added to the rows that may see it: its product with any weight is itself. */
__device__ __forceinline__ void add_non_finite_v(float (&o)[WIDTH_DV / 2], const attune_cuda_arguments &a, const tile_coord &p,
                                            int kv, int flags, int row)
{
    if (flags & TILE_ABSENT)
        return;
    int column = (int)threadIdx.x % 4 * 2, end = min(kv + BLOCK_N, a.kv_len);
    const element *v = (const element *)a.v.address + p.b * a.v.batch + p.h_kv * a.v.head + column;
#pragma unroll 1
    for (; kv < end; kv++) {
        bool allowed[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            allowed[half] = !(flags & TILE_PARTIAL) || pair_allowed(a, p, row + half * 8, kv);
            /* O rotates, so that the loop need not be unrolled. */
#pragma unroll 1
        for (int d = 0; d < WIDTH_DV; d += 8) {
            u32 two = d + column < HEAD_DIM_V ? *(const u32 *)(v + kv * a.v.row + d) : 0, signs = non_finite_signs(two);
            float low = signs & 0x8000u ? unpack(two) : 0.0f, high = signs >> 31 ? unpack(two >> 16) : 0.0f;
            float first[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                first[i] = o[i] + (allowed[i / 2] ? i % 2 ? high : low : 0.0f);
#pragma unroll
            for (int i = 0; i < WIDTH_DV / 2; i++)
                o[i] = i + 4 < WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - WIDTH_DV / 2];
        }
    }
}

/* Waits until the scan warps have seen the tile. `checked` has a bit for each stage: the phase to wait for. */
__device__ __forceinline__ void wait_scanned(float (&o)[WIDTH_DV / 2], control &c, const attune_cuda_arguments &a,
                                             const tile_coord &p, int kv, int flags, int row, u32 stage, u32 &scanned)
{
    if (!SCANS_V || !(flags & TILE_SCAN_V))
        return;
    barrier_wait(&c.v_scanned[stage], scanned >> stage & 1);
    scanned ^= 1u << stage;
    if (c.non_finite[stage])
        add_non_finite_v(o, a, p, kv, flags, row);
}

/* 6: O += P V, begun. */
__device__ __forceinline__ void multiply_pv(float (&o)[WIDTH_DV / 2], const u32 (&p)[BLOCK_N / 16][4], u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<WIDTH_DV>::rs(o, p[step], v + step * (16 * 128 / 16));
    wgmma_commit();
}

/* Four words of each of four lanes, transposed: a lane gets the word that has its number, of each. */
__device__ __forceinline__ void transpose_4x4(u32 (&w)[4])
{
#pragma unroll
    for (int by = 1; by <= 2; by *= 2) {
        bool upper = threadIdx.x & by;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & by)
                continue;
            u32 mine = upper ? w[i] : w[i + by], other = __shfl_xor_sync(0xffffffffu, mine, by);
            w[i] = upper ? other : w[i];
            w[i + by] = upper ? w[i + by] : other;
        }
    }
}

/* 7: store O and LSE. */
__device__ __forceinline__ void store(float (&o)[WIDTH_DV / 2], const float (&m)[2], const float (&l)[2],
                                      const attune_cuda_arguments &a, const tile_coord &p, int row, float factor)
{
    int lane = (int)threadIdx.x % 32;
    element *base = (element *)a.o.address + p.b * a.o.batch + p.h * a.o.head;
    u64 places = a.o.address | (u64)(a.o.batch | a.o.head | a.o.row) * sizeof(element);
    bool paired = places % 4 == 0, wide = places % 16 == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int q = row + half * 8;
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (sum == 0.0f && !a.part) /* 0 times NaN is NaN */
#pragma unroll
            for (int d = 0; d < WIDTH_DV / 8; d++)
                o[d * 4 + half * 2] = o[d * 4 + half * 2 + 1] = 0.0f;
        element *to = base + q * a.o.row + lane % 4 * 2;
        if (wide) {
#pragma unroll
            for (int d = 0; d + 4 <= HEAD_DIM_V / 8; d += 4) {
                u32 w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = pack(o[(d + i) * 4 + half * 2] * inverse, o[(d + i) * 4 + half * 2 + 1] * inverse);
                transpose_4x4(w);
                if (q < a.q_len)
                    *(uint4 *)(base + q * a.o.row + (d + lane % 4) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
        if (q >= a.q_len)
            continue;
        if (!wide || HEAD_DIM_V % 32) {
            /* What is seldom stored rotates, once: a loop instead of WIDTH_DV / 8 stores. */
#pragma unroll 1
            for (int d = 0; d < WIDTH_DV / 8; d++) {
                int left = HEAD_DIM_V - d * 8 - lane % 4 * 2;
                if ((!wide || d >= HEAD_DIM_V / 32 * 4) && left > 0) {
                    u32 two = pack(o[half * 2] * inverse, o[half * 2 + 1] * inverse);
                    if (paired && HEAD_DIM_V % 2 == 0) {
                        *(u32 *)(to + d * 8) = two;
                    } else {
                        to[d * 8] = (element)two;
                        if (left > 1)
                            to[d * 8 + 1] = (element)(two >> 16);
                    }
                }
                float first[4] = {o[0], o[1], o[2], o[3]};
#pragma unroll
                for (int i = 0; i < WIDTH_DV / 2; i++)
                    o[i] = i + 4 < WIDTH_DV / 2 ? o[i + 4] : first[i + 4 - WIDTH_DV / 2];
            }
        }
        if (lane % 4 == 0) {
            /* A NaN is lost in the largest score and stays in the sum; so does an infinite one, which both have. */
            float top = isnan(sum) && m[half] != ATTUNE_INF ? sum : m[half] * (factor * ATTUNE_LN2);
            bool empty = sum == 0.0f;
            if (a.lse.address)
                ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] =
                    empty ? -ATTUNE_INF : top + logf(sum);
            if (a.row_max.address)
                ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                    empty ? -ATTUNE_INF : top;
        }
    }
}

/* The same for a row that no key is there for; its four threads share it. */
__device__ __forceinline__ void store_nothing(const attune_cuda_arguments &a, const tile_coord &p, int row)
{
    int first = (int)threadIdx.x % 4;
#pragma unroll 1
    for (int q = row; q < min(row + 16, a.q_len); q += 8) {
        element *to = (element *)a.o.address + p.b * a.o.batch + p.h * a.o.head + q * a.o.row;
#pragma unroll 1
        for (int d = first; d < HEAD_DIM_V; d += 4)
            to[d] = 0;
        if (first)
            continue;
        if (a.lse.address)
            ((float *)a.lse.address)[p.b * a.lse.batch + p.h * a.lse.head + q * a.lse.row] = -ATTUNE_INF;
        if (a.row_max.address)
            ((float *)a.row_max.address)[p.b * a.row_max.batch + p.h * a.row_max.head + q * a.row_max.row] =
                -ATTUNE_INF;
    }
}

/* ------------------------------------------------------------------------------------------------------- the consumers */

/* Whether the next tile of rows has keys. */
__device__ __forceinline__ bool rows_follow(control &c, const pipeline_state &r)
{
    barrier_wait(&c.q_full[r.stage], r.phase);
    return c.work[r.stage].what == TILE_QUERIES;
}

__device__ __forceinline__ void consume(const attune_cuda_arguments &a, control &c, unsigned char *memory)
{
    int group = (int)threadIdx.x / 128 - 1;
    if (GROUPS == 3) /* known to be the same in a warp it costs no register */
        group = __shfl_sync(0xffffffffu, group, 0);
    u32 k_tiles = shared_address(memory) + RESIDENT_BYTES, v_tiles = k_tiles + STAGES * K_BYTES;
    u64 q = describe_k_major(shared_address(memory) + (u32)group * 64 * 128);
    float factor = fold_factor(a.scale);
    pipeline_state r = {0, 0}, k = {0, 0}, v = {0, 0};
    u32 scanned = 0, phases = 0;
    bool begun = false; /* S of the next rows' first keys is there */
    float s[BLOCK_N / 2], o[WIDTH_DV / 2];
    if (group == GROUPS - 1)
        ping_pong_arrive(group);
    for (;;) {
        barrier_wait(&c.q_full[r.stage], r.phase);
        int flags = c.work[r.stage].what;
        if (!flags)
            break;
        tile_coord at = c.work[r.stage].at;
        int row = at.q + group * 64 + (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4;
        if (flags & TILE_LAST) {
            warp_arrive(&c.q_empty[r.stage]);
            advance<Q_BUFFERS>(r);
            store_nothing(a, at, row);
            continue;
        }
        linear_score linear_scores[2];
        bool linear = find_linear_scores(linear_scores, a, at, row);
        int part = BLOCK_LISTS > 1 && (at.q + group * 64) / a.q_block != at.q / a.q_block ? 8 : 0;
        if (!begun) {
            barrier_wait(&c.k_full[k.stage], k.phase);
            ping_pong_wait(group);
            wgmma_fence();
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
            ping_pong_arrive(group);
            wgmma_wait<0>();
            accumulators_done(s);
        }
        float m[2] = {-ATTUNE_INF, -ATTUNE_INF}, l[2] = {0.0f, 0.0f}, alpha[2];
        u32 p[BLOCK_N / 16][4];
#pragma unroll
        for (int i = 0; i < WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        int kv = c.keys[k.stage].at;
        flags = c.keys[k.stage].flags >> part;
        warp_arrive(&c.k_empty[k.stage]);
        advance(k);
        /* V's ring is at this tile, as K's was. */
        hook_terms<true>(s, a, memory, at, kv, flags, row, linear_scores, linear, v, phases);
        softmax(s, m, l, alpha, factor);
        round_p(p, s);
        wait_scanned(o, c, a, at, kv, flags, row, v.stage, scanned);
        bool rising = false; /* the last keys' scores were far past those before: so may the next ones' be */
        while (!(flags & TILE_LAST)) {
            barrier_wait(&c.k_full[k.stage], k.phase);
            kv = c.keys[k.stage].at;
            flags = c.keys[k.stage].flags >> part;
            ping_pong_wait(group);
            wgmma_fence();
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
            barrier_wait(&c.v_full[v.stage], v.phase);
            wgmma_fence();
            multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
            ping_pong_arrive(group);
            wgmma_wait<1>();
            accumulators_done(s);
            warp_arrive(&c.k_empty[k.stage]);
            pipeline_state now = k;
            advance(k);
            if (!DRAINS)
                hook_terms<false>(s, a, memory, at, kv, flags, row, linear_scores, linear, now, phases);
            wgmma_wait<0>();
            accumulators_done(o);
            warp_arrive(&c.v_empty[v.stage]);
            advance(v);
            if (DRAINS)
                hook_terms<false>(s, a, memory, at, kv, flags, row, linear_scores, linear, now, phases);
            if (rising || a.row_max.address || !softmax_without_rescale(p, s, m, l, factor)) {
                softmax(s, m, l, alpha, factor);
                rescale(o, alpha);
                round_p(p, s);
                rising = __any_sync(0xffffffffu, fminf(alpha[0], alpha[1]) < 1.0f / RESCALE_THRESHOLD);
            }
            wait_scanned(o, c, a, at, kv, flags, row, v.stage, scanned);
        }
        warp_arrive(&c.q_empty[r.stage]);
        advance<Q_BUFFERS>(r);
        if (Q_BUFFERS > 1)
            begun = rows_follow(c, r);
        barrier_wait(&c.v_full[v.stage], v.phase);
        if (Q_BUFFERS > 1 && begun)
            barrier_wait(&c.k_full[k.stage], k.phase);
        ping_pong_wait(group);
        wgmma_fence();
        multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
        /* Where no rows follow, a product that nobody looks at: two paths would be twice the code of what follows. */
        if (Q_BUFFERS > 1)
            multiply_qk(s, q + r.stage * (Q_BYTES / 16), describe_k_major(k_tiles + k.stage * K_BYTES));
        ping_pong_arrive(group);
        wgmma_wait<Q_BUFFERS == 1 ? 0 : 1>();
        accumulators_done(o);
        warp_arrive(&c.v_empty[v.stage]);
        store(o, m, l, a, at, row, factor);
        wgmma_wait<0>();
        accumulators_done(s);
        advance(v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ tensor_map q_map,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + RESIDENT_BYTES + STAGES * (K_BYTES + V_BYTES));
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_BUFFERS; i++) {
            barrier_init(&c.q_full[i], 1);
            barrier_init(&c.q_empty[i], (GROUPS * 4 + SCAN_WARPS) * ATTUNE_ARRIVALS);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&c.k_full[i], 1);
            barrier_init(&c.k_empty[i], (GROUPS * 4 + SCAN_WARPS) * ATTUNE_ARRIVALS);
            barrier_init(&c.v_full[i], 1);
            barrier_init(&c.v_empty[i], GROUPS * 4 * ATTUNE_ARRIVALS);
            barrier_init(&c.v_scanned[i], 1);
        }
        for (int i = 0; i < AHEAD; i++) {
            barrier_init(&c.step_full[i], 1);
            barrier_init(&c.step_empty[i], 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (KEY_TERMS && threadIdx.x == 0) {
        staged &t = *(staged *)(memory + STAGED_OFFSET);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&t.full[i], SCAN_WARPS * ATTUNE_ARRIVALS);
            barrier_init(&t.empty[i], GROUPS * 4 * ATTUNE_ARRIVALS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0)
            load(a, c, shared_address(memory), &q_map, &k_map, &v_map);
        else if (threadIdx.x / 32 == 1 && threadIdx.x % 32 < BLOCK_LISTS)
            schedule_tiles(a, c);
        else if (SCAN_WARPS && threadIdx.x >= 64)
            scan_v(a, c, memory);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume(a, c, memory);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * Forward for Hopper: TMA, mbarriers and wgmma. The stages are those of docs/algorithm.md.
 *
 * The first warp group loads: one thread of it walks the work and the mask's lists, and passes on, with each tile of
 * keys, where it stands and how it is to be masked. Each other warp group owns 64 rows. It issues Q K(j + 1) before
 * P V(j), so that the tensor cores work under softmax; and two warp groups take turns in issuing, so that one's
 * products run under the other's softmax.
 *
 * A thread holds, of each 16 x 8 piece of S and O, rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the next.
 * Tiles in shared memory are slabs of 64 columns, as TMA's 128-byte swizzle lays them.
 */
#include "common.cuh"
#include "hopper.cuh"
#include "wgmma.cuh"

constexpr int GROUPS = BLOCK_M / 64; /* of consumers */
static_assert(THREADS == 128 * (GROUPS + 1), "one warp group loads, each other one owns 64 rows");
constexpr int SLABS_D = (HEAD_DIM + 63) / 64, SLABS_DV = (HEAD_DIM_V + 63) / 64;
constexpr int STEPS_D = (HEAD_DIM + 15) / 16, WIDTH_DV = round_up(HEAD_DIM_V, 16);
constexpr u32 Q_SLAB = BLOCK_M * 128, KV_SLAB = BLOCK_N * 128;
constexpr u32 Q_BYTES = SLABS_D * Q_SLAB, K_BYTES = SLABS_D * KV_SLAB, V_BYTES = SLABS_DV * KV_SLAB;
constexpr u32 RESIDENT_BYTES = SLABS_DV > SLABS_D ? SLABS_DV *Q_SLAB : Q_BYTES;
constexpr int LOADER_REGISTERS = GROUPS == 3 ? 32 : GROUPS == 2 ? 40 : 56;
constexpr int OWNER_REGISTERS = GROUPS == 3 ? 160 : GROUPS == 2 ? 232 : 248;
constexpr bool TURNS = GROUPS > 1 && HEAD_DIM_V <= 128;

/* Flags; a second set of them, 8 bits higher, is for the rows that lie in the mask's next block. */
enum { NOTE_MASK = 1, NOTE_LAST = 2, NOTE_PARTIAL = 4, NOTE_ABSENT = 8, NOTE_CHECK = 16 };
/* A tile of 192 rows may lie in two blocks of 128 rows: both are walked, and each owner takes its own block's part. */
constexpr int WALKS = ATTUNE_HAVE_BLOCKS && GROUPS == 3 ? 2 : 1;

/* Where pairs are forbidden, infinities and NaN of V must not meet their P = 0: three warps of the first group look for
 * them in such tiles, take them out, and the owners add them where they are allowed. */
constexpr bool CHECKS = HAVE_MASK || WALKS > 1;
constexpr int CHECKERS = CHECKS ? 3 : 0;

/* What follows the tiles in shared memory: at most 8 (17 + 7 STAGES) bytes. The walks and the place are here because
 * the loader has few registers, and time. */
struct control {
    u64 q_full, q_empty;
    u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], v_checked[STAGES];
    struct {
        int tile, any; /* tile -1: no more work; any 0: no keys */
    } work;
    struct {
        int kv, flags;
    } note[STAGES];
    int special[STAGES]; /* V had infinities or NaN, which are 0 there now */
    walk walks[WALKS];
    place at;
};
constexpr u32 CONTROL_BYTES = round_up(8 * (17 + 7 * STAGES), 128);
static_assert(sizeof(control) <= CONTROL_BYTES &&
              planned(RESIDENT_BYTES + STAGES * (K_BYTES + V_BYTES) + CONTROL_BYTES, 0));

/* Turns between two or three warp groups, in named barriers 1 and following. */
__device__ __forceinline__ void turn_wait(int group)
{
    if (TURNS)
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void turn_pass(int group)
{
    if (TURNS)
        asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1 == GROUPS ? 0 : group + 1)) : "memory");
}

/* -------------------------------------------------------------------------------------------------------- the loader
 */

/* The tile after this one, or -1. */
__device__ __forceinline__ int work_next(const attune_cuda_arguments &a, int tile)
{
    if (a.counter)
        tile = (int)gridDim.x + atomicAdd((int *)a.counter, 1);
    else
        tile += (int)gridDim.x;
    return tile < tile_count(a) ? tile : -1;
}

/* Whoever ends last sets the counters back. */
__device__ __forceinline__ void work_end(const attune_cuda_arguments &a)
{
    int *counter = (int *)a.counter;
    if (counter && atomicAdd(counter + 1, 1) == (int)gridDim.x - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/* The next keys that any of the walks meets, or -1. */
__device__ __forceinline__ int walks_next(const walk (&w)[WALKS])
{
    u32 next = (u32)w[0].next.kv;
    if (WALKS > 1)
        next = min(next, (u32)w[WALKS - 1].next.kv);
    return (int)next;
}

/* Goes past them and returns the note's flags. */
__device__ __forceinline__ int walks_take(walk (&w)[WALKS], const attune_cuda_arguments &a, int kv)
{
    int flags = 0;
#pragma unroll 1
    for (int i = 0; i < WALKS; i++) {
        int own = NOTE_MASK | NOTE_ABSENT;
        if (w[i].next.kv == kv) {
            keys now = walk_take(w[i], a);
            own = (keys_masked(now, a) ? NOTE_MASK : 0) | (HAVE_MASK && !now.whole ? NOTE_PARTIAL : 0);
        }
        flags |= own << 8 * i;
    }
    if (CHECKS && flags & ((NOTE_PARTIAL | NOTE_ABSENT) * (WALKS > 1 ? 0x101 : 1)))
        flags |= NOTE_CHECK | NOTE_CHECK << 8;
    return walks_next(w) < 0 ? flags | NOTE_LAST | NOTE_LAST << 8 : flags;
}

__device__ __forceinline__ void load(const attune_cuda_arguments &a, control &c, u32 memory, const tensor_map *q_map,
                                     const tensor_map *k_map, const tensor_map *v_map)
{
    u32 k_tiles = memory + RESIDENT_BYTES, v_tiles = k_tiles + STAGES * K_BYTES;
    int tile = (int)blockIdx.x < tile_count(a) ? (int)blockIdx.x : -1;
    ring r = {0, 1}; /* empty to begin with: the phase before the first */
    for (u32 round = 0;; round++) {
        if (tile < 0) {
            barrier_wait(&c.q_empty, ~round & 1);
            break;
        }
#if ATTUNE_HAVE_BLOCKS && ATTUNE_BLOCK_M == 192
        place &p = c.at;
        walk(&w)[WALKS] = c.walks;
#else
        place p;
        walk w[WALKS];
#endif
        p = tile_place(a, tile);
#pragma unroll 1
        for (int i = 0; i < WALKS; i++) {
            place rows = p;
            rows.q = i ? min(p.q + BLOCK_M, a.q_len) - 1 : p.q;
            walk_begin(w[i], a, rows);
        }
        bool any = walks_next(w) >= 0;
        barrier_wait(&c.q_empty, ~round & 1);
        c.work.tile = tile;
        c.work.any = any;
        if (any) {
            barrier_expect(&c.q_full, Q_BYTES);
#pragma unroll
            for (int slab = 0; slab < SLABS_D; slab++)
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
                    tensor_load(memory + slab * Q_SLAB + g * 64 * 128, q_map, &c.q_full, slab * 64, p.q + g * 64, p.h,
                                p.b);
        } else
            barrier_arrive(&c.q_full);
        for (int kv; (kv = walks_next(w)) >= 0;) {
            int flags = walks_take(w, a, kv);
            barrier_wait(&c.k_empty[r.stage], r.phase);
            c.note[r.stage].kv = kv;
            c.note[r.stage].flags = flags;
            barrier_expect(&c.k_full[r.stage], K_BYTES);
#pragma unroll
            for (int slab = 0; slab < SLABS_D; slab++)
                tensor_load(k_tiles + r.stage * K_BYTES + slab * KV_SLAB, k_map, &c.k_full[r.stage], slab * 64, kv,
                            p.h_kv, a.k.batch ? p.b : 0);
            barrier_wait(&c.v_empty[r.stage], r.phase);
            barrier_expect(&c.v_full[r.stage], V_BYTES);
#pragma unroll
            for (int slab = 0; slab < SLABS_DV; slab++)
                tensor_load(v_tiles + r.stage * V_BYTES + slab * KV_SLAB, v_map, &c.v_full[r.stage], slab * 64, kv,
                            p.h_kv, a.v.batch ? p.b : 0);
            ring_next(r);
        }
        tile = work_next(a, c.work.tile);
    }
    c.work.tile = -1;
    barrier_arrive(&c.q_full);
    work_end(a);
}

/* ------------------------------------------------------------------------------------------------------- the checkers
 */

constexpr u32 EXPONENTS = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x7c007c00u : 0x7f807f80u;
constexpr u32 EXPONENT_ONE = ATTUNE_DTYPE == ATTUNE_CUDA_F16 ? 0x04000400u : 0x00800080u;

/* The sign bits of those of two elements whose exponents are all ones, and other bits. */
__device__ __forceinline__ u32 special_signs(u32 two)
{
    return (two & EXPONENTS) + EXPONENT_ONE;
}

/* Sets infinities and NaN of a tile to 0. Returns whether there were any. */
__device__ __forceinline__ bool clean(u32 tile)
{
    bool any = false;
#pragma unroll 4
    for (u32 i = (threadIdx.x - 32) * 16; i < V_BYTES; i += 32 * 16 * 3) {
        u32 w[4];
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "r"(tile + i)
                     : "memory");
        if ((special_signs(w[0]) | special_signs(w[1]) | special_signs(w[2]) | special_signs(w[3])) & 0x80008000u) {
            any = true;
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] &= ~((special_signs(w[j]) >> 15 & 0x00010001u) * 0xffffu);
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(tile + i), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                         "r"(w[3])
                         : "memory");
        }
    }
    if (any)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    return any;
}

__device__ __forceinline__ void check(control &c, u32 memory)
{
    u32 v_tiles = memory + RESIDENT_BYTES + STAGES * K_BYTES;
    bool first = threadIdx.x % 32 == 0;
    ring r = {0, 0};
    for (u32 round = 0;; round++) {
        barrier_wait(&c.q_full, round & 1);
        if (c.work.tile < 0)
            break;
        int flags = c.work.any ? 0 : NOTE_LAST;
        while (!(flags & NOTE_LAST)) {
            barrier_wait(&c.k_full[r.stage], r.phase);
            flags = c.note[r.stage].flags;
            __syncwarp();
            if (first)
                barrier_arrive(&c.k_empty[r.stage]);
            if (flags & NOTE_CHECK) {
                barrier_wait(&c.v_full[r.stage], r.phase);
                int any = clean(v_tiles + r.stage * V_BYTES);
                asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %0, 0;\nbar.red.or.pred q, 7, 96, p;\n"
                             "selp.b32 %0, 1, 0, q;\n}"
                             : "+r"(any)::"memory");
                if (threadIdx.x == 32) {
                    c.special[r.stage] = any;
                    barrier_arrive(&c.v_checked[r.stage]);
                }
            }
            ring_next(r);
        }
        __syncwarp();
        if (first)
            barrier_arrive(&c.q_empty);
    }
}

/* ------------------------------------------------------------------------------------------------------------ stages
 */

/* 3: S = Q K^T, begun. */
__device__ __forceinline__ void multiply_qk(float (&s)[BLOCK_N / 2], u64 q, u64 k)
{
#pragma unroll
    for (int step = 0; step < STEPS_D; step++)
        wgmma<BLOCK_N>::ss(s, q + (step / 4 * Q_SLAB + step % 4 * 32) / 16,
                           k + (step / 4 * KV_SLAB + step % 4 * 32) / 16, step);
    wgmma_commit();
}

/* Whether the warp's scores all lie where the cheaper form of their expression holds. */
__device__ __forceinline__ bool near_zero(const float (&s)[BLOCK_N / 2], float scale)
{
#ifdef ATTUNE_SCORE_NEAR
    float top[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
        top[i % 2] = fmaxf(top[i % 2], fabsf(s[i]));
    return __all_sync(0xffffffffu, fmaxf(top[0], top[1]) * fabsf(scale) <= ATTUNE_SCORE_NEAR);
#else
    return true;
#endif
}

#if ATTUNE_HAVE_MASK
__device__ __forceinline__ bool mask_allows(const attune_cuda_arguments &a, const place &p, int q, int kv)
{
    int h = p.h + a.h0;
    return attune_mask(p.b + a.b0, h, q + a.q0, kv, h / a.mask_group, a.mask_q_len, a.mask_kv_len, 0.0f,
                       a.mask_symbols);
}
#endif

/* The keys from low to before high that row q may attend. */
__device__ __forceinline__ void mask_range(const attune_cuda_arguments &a, const place &p, int q, int &low, int &high)
{
#if ATTUNE_HAVE_MASK_RANGE
    int h = p.h + a.h0;
    attune_mask_range(p.b + a.b0, h, q + a.q0, h / a.mask_group, a.mask_q_len, a.mask_kv_len, &low, &high,
                      a.mask_symbols);
#endif
}

/* Whether ranges hold for this mask's captures; known when there is no other way. */
__device__ __forceinline__ bool mask_has_ranges(const attune_cuda_arguments &a)
{
    return ATTUNE_HAVE_MASK_RANGE && (!ATTUNE_HAVE_MASK || a.mask_ranges);
}

/* One pair of a partial block. */
__device__ __forceinline__ bool pair_allowed(const attune_cuda_arguments &a, const place &p, int q, int kv)
{
    if (mask_has_ranges(a)) {
        int low = 0, high = 0;
        mask_range(a, p, q, low, high);
        return kv >= low && kv < high;
    }
#if ATTUNE_HAVE_MASK
    return mask_allows(a, p, q, kv);
#else
    return true;
#endif
}

/* Forbids what lies outside [low, high) in one half of the thread's elements; both count from its first column. */
__device__ __forceinline__ void forbid_outside(float (&s)[BLOCK_N / 2], int half, int low, int high)
{
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (n * 8 + i < low || n * 8 + i >= high)
                s[n * 4 + half * 2 + i] = -ATTUNE_INF;
}

/* 4: the score and mask hook. row: the thread's first row of q. */
__device__ __forceinline__ void hook(float (&s)[BLOCK_N / 2], const attune_cuda_arguments &a, const place &p, int kv,
                                     int flags, int row)
{
    int column = kv + (int)threadIdx.x % 4 * 2;
    if constexpr (HAVE_SCORE) {
#if ATTUNE_HAVE_SCORE_NEAR
        if (near_zero(s, a.scale)) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++)
                s[i] = attune_score_near(p.b, p.h, row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2, p.h_kv, a.q_len,
                                         a.kv_len, s[i] * a.scale, a.score_symbols, column);
        } else
#endif
#if ATTUNE_HAVE_SCORE
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++)
                s[i] = attune_score(p.b, p.h, row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2, p.h_kv, a.q_len,
                                    a.kv_len, s[i] * a.scale, a.score_symbols);
#endif
    } else if (a.scale <= 0.0f) {
        float sign = fold_sign(a.scale);
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            s[i] *= sign;
    }
    if (!(flags & NOTE_MASK))
        return;
    /* With 160 registers a mask has room only once P is gone: P V is not under it then. */
    if (GROUPS == 3)
        wgmma_wait<0>();
    if (flags & NOTE_PARTIAL) {
        if (mask_has_ranges(a)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int low = 0, high = 0;
                mask_range(a, p, row + half * 8, low, high);
                forbid_outside(s, half, low - column, high - column);
            }
        } else {
#if ATTUNE_HAVE_MASK
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++)
                if (!mask_allows(a, p, row + i / 2 % 2 * 8, column + i / 4 * 8 + i % 2))
                    s[i] = -ATTUNE_INF;
#endif
        }
    }
    int limit = WALKS > 1 && flags & NOTE_ABSENT ? 0 : a.kv_len;
    if (kv + BLOCK_N > limit) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++)
            if (column + i / 4 * 8 + i % 2 >= limit)
                s[i] = -ATTUNE_INF;
    }
}

/* 5: online softmax; S becomes P. m and l belong to rows lane / 4 and lane / 4 + 8; l is the thread's own part. */
__device__ __forceinline__ void softmax(float (&s)[BLOCK_N / 2], float (&m)[2], float (&l)[2], float (&shrink)[2],
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
        shrink[half] = exp2_fast((m[half] - base) * factor);
        m[half] = top;
        float even = l[half] * shrink[half], odd = 0.0f;
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
 * Stands between softmax and the wait for P V: a store that never happens, since sums are not negative, and that ptxas
 * does not let the wait pass. It would else wait first and then compute the exponentials that could run under P V:
 * without masks and scores that is 1 % slower, with them 3 to 5 % faster, since the other group's products run then.
 */
__device__ __forceinline__ void stand_before_wait(const float (&l)[2], control &c)
{
    if constexpr (!ATTUNE_HAVE_BLOCKS && !HAVE_SCORE && HEAD_DIM_V > 64)
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.b32 [%1], %0;\n}" ::"f"(fminf(l[0], l[1])),
            "r"(shared_address(&c.work))
            : "memory");
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

__device__ __forceinline__ void rescale(float (&o)[WIDTH_DV / 2], const float (&shrink)[2])
{
#pragma unroll
    for (int i = 0; i < WIDTH_DV / 2; i++)
        o[i] *= shrink[i / 2 % 2];
}

/* What the checkers took out of V, added to the rows that may see it: its product with any weight is itself. */
__device__ __forceinline__ void add_special(float (&o)[WIDTH_DV / 2], const attune_cuda_arguments &a, const place &p,
                                            int kv, int flags, int row)
{
    if (flags & NOTE_ABSENT)
        return;
    int column = (int)threadIdx.x % 4 * 2, end = min(kv + BLOCK_N, a.kv_len);
    const element *v = (const element *)a.v.address + p.b * a.v.batch + p.h_kv * a.v.head + column;
#pragma unroll 1
    for (; kv < end; kv++) {
        bool allowed[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            allowed[half] = !(flags & NOTE_PARTIAL) || pair_allowed(a, p, row + half * 8, kv);
#pragma unroll
        for (int d = 0; d < WIDTH_DV / 8; d++) {
            if (d * 8 + column >= HEAD_DIM_V)
                continue;
            u32 two = *(const u32 *)(v + kv * a.v.row + d * 8), signs = special_signs(two);
            float low = signs & 0x8000u ? unpack(two) : 0.0f, high = signs >> 31 ? unpack(two >> 16) : 0.0f;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                o[d * 4 + half * 2] += allowed[half] ? low : 0.0f;
                o[d * 4 + half * 2 + 1] += allowed[half] ? high : 0.0f;
            }
        }
    }
}

/* Waits until the checkers have seen the tile. `checked` has a bit for each stage: the phase to wait for. */
__device__ __forceinline__ void wait_checked(float (&o)[WIDTH_DV / 2], control &c, const attune_cuda_arguments &a,
                                             const place &p, int kv, int flags, int row, u32 stage, u32 &checked)
{
    if (!CHECKS || !(flags & NOTE_CHECK))
        return;
    barrier_wait(&c.v_checked[stage], checked >> stage & 1);
    checked ^= 1u << stage;
    if (c.special[stage])
        add_special(o, a, p, kv, flags, row);
}

/* 6: O += P V, begun. */
__device__ __forceinline__ void multiply_pv(float (&o)[WIDTH_DV / 2], const u32 (&p)[BLOCK_N / 16][4], u64 v)
{
#pragma unroll
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma<WIDTH_DV>::rs(o, p[step], v + step * (16 * 128 / 16));
    wgmma_commit();
}

/* 7: store O and LSE. */
__device__ __forceinline__ void store(const float (&o)[WIDTH_DV / 2], const float (&m)[2], const float (&l)[2],
                                      const attune_cuda_arguments &a, const place &p, int row, float factor)
{
    int lane = (int)threadIdx.x % 32;
    element *base = (element *)a.o.address + p.b * a.o.batch + p.h * a.o.head;
    bool paired = ((a.o.address | (u64)(a.o.batch | a.o.head | a.o.row) * sizeof(element)) & 3) == 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        int q = row + half * 8;
        if (q >= a.q_len)
            continue;
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        element *to = base + q * a.o.row + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < WIDTH_DV / 8; d++) {
            if (d * 8 >= HEAD_DIM_V || (HEAD_DIM_V % 8 && d * 8 + lane % 4 * 2 >= HEAD_DIM_V))
                continue;
            u32 two = pack(o[d * 4 + half * 2] * inverse, o[d * 4 + half * 2 + 1] * inverse);
            if (paired && HEAD_DIM_V % 2 == 0) {
                *(u32 *)(to + d * 8) = two;
            } else {
                to[d * 8] = (element)two;
                if (HEAD_DIM_V % 2 == 0 || d * 8 + lane % 4 * 2 + 1 < HEAD_DIM_V)
                    to[d * 8 + 1] = (element)(two >> 16);
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

/* -------------------------------------------------------------------------------------------------------- the owners
 */

__device__ __forceinline__ void own(const attune_cuda_arguments &a, control &c, unsigned char *memory)
{
    int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 32;
    u32 k_tiles = shared_address(memory) + RESIDENT_BYTES, v_tiles = k_tiles + STAGES * K_BYTES;
    u64 q = describe_k_major(shared_address(memory) + (u32)group * 64 * 128);
    float factor = fold_factor(a.scale);
    ring k = {0, 0}, v = {0, 0};
    u32 checked = 0;
    if (group == GROUPS - 1)
        turn_pass(group);
    for (u32 round = 0;; round++) {
        barrier_wait(&c.q_full, round & 1);
        int tile = c.work.tile, flags = c.work.any ? 0 : NOTE_LAST;
        if (tile < 0)
            break;
        place at = tile_place(a, tile);
        int row = at.q + group * 64 + (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
        int part = WALKS > 1 && (at.q + group * 64) / a.q_block != at.q / a.q_block ? 8 : 0;
        float o[WIDTH_DV / 2], m[2] = {-ATTUNE_INF, -ATTUNE_INF}, l[2] = {0.0f, 0.0f}, shrink[2];
#pragma unroll
        for (int i = 0; i < WIDTH_DV / 2; i++)
            o[i] = 0.0f;
        if (!flags) {
            u32 p[BLOCK_N / 16][4];
            {
                float s[BLOCK_N / 2];
                barrier_wait(&c.k_full[k.stage], k.phase);
                flags = c.note[k.stage].flags >> part;
                int kv = c.note[k.stage].kv;
                wgmma_fence();
                multiply_qk(s, q, describe_k_major(k_tiles + k.stage * K_BYTES));
                wgmma_wait<0>();
                accumulators_done(s);
                if (lane == 0)
                    barrier_arrive(&c.k_empty[k.stage]);
                ring_next(k);
                hook(s, a, at, kv, flags, row);
                softmax(s, m, l, shrink, factor);
                round_p(p, s);
                wait_checked(o, c, a, at, kv, flags, row, v.stage, checked);
            }
            while (!(flags & NOTE_LAST)) {
                float s[BLOCK_N / 2];
                barrier_wait(&c.k_full[k.stage], k.phase);
                flags = c.note[k.stage].flags >> part;
                int kv = c.note[k.stage].kv;
                turn_wait(group);
                wgmma_fence();
                multiply_qk(s, q, describe_k_major(k_tiles + k.stage * K_BYTES));
                barrier_wait(&c.v_full[v.stage], v.phase);
                multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
                turn_pass(group);
                wgmma_wait<1>();
                accumulators_done(s);
                if (lane == 0)
                    barrier_arrive(&c.k_empty[k.stage]);
                ring_next(k);
                hook(s, a, at, kv, flags, row);
                softmax(s, m, l, shrink, factor);
                stand_before_wait(l, c);
                wgmma_wait<0>();
                accumulators_done(o);
                if (lane == 0)
                    barrier_arrive(&c.v_empty[v.stage]);
                ring_next(v);
                rescale(o, shrink);
                round_p(p, s);
                wait_checked(o, c, a, at, kv, flags, row, v.stage, checked);
            }
            if (lane == 0)
                barrier_arrive(&c.q_empty);
            barrier_wait(&c.v_full[v.stage], v.phase);
            wgmma_fence();
            multiply_pv(o, p, describe_n_major(v_tiles + v.stage * V_BYTES, KV_SLAB));
            wgmma_wait<0>();
            accumulators_done(o);
            if (lane == 0)
                barrier_arrive(&c.v_empty[v.stage]);
            ring_next(v);
        } else {
            __syncwarp();
            if (lane == 0)
                barrier_arrive(&c.q_empty);
        }
        store(o, m, l, a, at, row, factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attune_forward_sm90(const __grid_constant__ attune_cuda_arguments a, const __grid_constant__ tensor_map q_map,
                        const __grid_constant__ tensor_map k_map, const __grid_constant__ tensor_map v_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    control &c = *(control *)(memory + RESIDENT_BYTES + STAGES * (K_BYTES + V_BYTES));
    if (threadIdx.x == 0) {
        barrier_init(&c.q_full, 1);
        barrier_init(&c.q_empty, GROUPS * 4 + CHECKERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&c.k_full[i], 1);
            barrier_init(&c.k_empty[i], GROUPS * 4 + CHECKERS);
            barrier_init(&c.v_full[i], 1);
            barrier_init(&c.v_empty[i], GROUPS * 4);
            barrier_init(&c.v_checked[i], 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
        if (threadIdx.x == 0)
            load(a, c, shared_address(memory), &q_map, &k_map, &v_map);
        else if (CHECKS && threadIdx.x >= 32)
            check(c, shared_address(memory));
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(OWNER_REGISTERS));
        own(a, c, memory);
    }
}

/* SPDX-License-Identifier: MIT */
/*
 * wgmma.mma_async for each width N that a tile can have. Inline PTX names every accumulator as an operand, so each
 * width needs a text of its own. The lists of operands are built from those of 16 columns.
 *
 *     wgmma<N>::ss(d, a, b, add)  d[64 x N] = a b + (add ? d : 0); a and b in shared memory, K-major; with <1, B>
 *                                 a is M-major, with <A, 1> b is N-major
 *     wgmma<N>::rs(d, a, b)       d += a b; a in registers, b in shared memory, N-major
 *     wgmma<N>::ss4, rs4          four of them, which follow each other in a slab; K-major in ss4. For
 *                                 a kernel that defines WGMMA_FORWARD
 *
 * Every accumulator is an operand of each statement, and NVRTC's time follows the operands: as one statement, four
 * products compile faster (docs/decisions/0084-forward-kernel-compiled-faster.md).
 */
#ifndef ATTUNE_CUDA_WGMMA_CUH
#define ATTUNE_CUDA_WGMMA_CUH

#include "common.cuh"

/* Eight accumulators of a thread: 16 columns. */
#define WGMMA_D8(i)                                                                                                    \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])

/* The operands' names, WGMMA_S<k>, and the operands, WGMMA_O<k>, of 16 (k + 1) columns. */
#define WGMMA_S0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WGMMA_S1                                                                                                       \
    WGMMA_S0 ","                                                                                                       \
             "%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_S2                                                                                                       \
    WGMMA_S1 ","                                                                                                       \
             "%16,%17,%18,%19,%20,%21,%22,%23"
#define WGMMA_S3                                                                                                       \
    WGMMA_S2 ","                                                                                                       \
             "%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_S4                                                                                                       \
    WGMMA_S3 ","                                                                                                       \
             "%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_S5                                                                                                       \
    WGMMA_S4 ","                                                                                                       \
             "%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_S6                                                                                                       \
    WGMMA_S5 ","                                                                                                       \
             "%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_S7                                                                                                       \
    WGMMA_S6 ","                                                                                                       \
             "%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_S8                                                                                                       \
    WGMMA_S7 ","                                                                                                       \
             "%64,%65,%66,%67,%68,%69,%70,%71"
#define WGMMA_S9                                                                                                       \
    WGMMA_S8 ","                                                                                                       \
             "%72,%73,%74,%75,%76,%77,%78,%79"
#define WGMMA_S10                                                                                                      \
    WGMMA_S9 ","                                                                                                       \
             "%80,%81,%82,%83,%84,%85,%86,%87"
#define WGMMA_S11                                                                                                      \
    WGMMA_S10 ","                                                                                                      \
              "%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_S12                                                                                                      \
    WGMMA_S11 ","                                                                                                      \
              "%96,%97,%98,%99,%100,%101,%102,%103"
#define WGMMA_S13                                                                                                      \
    WGMMA_S12 ","                                                                                                      \
              "%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_S14                                                                                                      \
    WGMMA_S13 ","                                                                                                      \
              "%112,%113,%114,%115,%116,%117,%118,%119"
#define WGMMA_S15                                                                                                      \
    WGMMA_S14 ","                                                                                                      \
              "%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_O0  WGMMA_D8(0)
#define WGMMA_O1  WGMMA_O0, WGMMA_D8(8)
#define WGMMA_O2  WGMMA_O1, WGMMA_D8(16)
#define WGMMA_O3  WGMMA_O2, WGMMA_D8(24)
#define WGMMA_O4  WGMMA_O3, WGMMA_D8(32)
#define WGMMA_O5  WGMMA_O4, WGMMA_D8(40)
#define WGMMA_O6  WGMMA_O5, WGMMA_D8(48)
#define WGMMA_O7  WGMMA_O6, WGMMA_D8(56)
#define WGMMA_O8  WGMMA_O7, WGMMA_D8(64)
#define WGMMA_O9  WGMMA_O8, WGMMA_D8(72)
#define WGMMA_O10 WGMMA_O9, WGMMA_D8(80)
#define WGMMA_O11 WGMMA_O10, WGMMA_D8(88)
#define WGMMA_O12 WGMMA_O11, WGMMA_D8(96)
#define WGMMA_O13 WGMMA_O12, WGMMA_D8(104)
#define WGMMA_O14 WGMMA_O13, WGMMA_D8(112)
#define WGMMA_O15 WGMMA_O14, WGMMA_D8(120)

#define WGMMA_TEXT(n, k)                                                                                               \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." ATTUNE_PTX_DTYPE "." ATTUNE_PTX_DTYPE " {" WGMMA_S##k "}, "
/* One product, from the numbers of its operands. */
#define WGMMA_SS(n, k, a, b, add, A, B) WGMMA_TEXT(n, k) "%" #a ", %" #b ", " add ", 1, 1, " A ", " B ";\n"
#define WGMMA_RS(n, k, a0, a1, a2, a3, b)                                                                              \
    WGMMA_TEXT(n, k) "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b ", 1, 1, 1, 1;\n"
#define WGMMA_A(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* n: the width; k: n / 16 - 1; r0 ...: the numbers of the other operands, which follow the n / 2 accumulators. */
#ifdef WGMMA_FORWARD
#define WGMMA_FOURS(n, k, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19)    \
    static __device__ __forceinline__ void ss4(float(&d)[n / 2], u64 a, u64 b, int add)                                \
    {                                                                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r8 ", 0;\n" WGMMA_SS(n, k, r0, r1, "p", "0", "0")           \
                         WGMMA_SS(n, k, r2, r3, "1", "0", "0") WGMMA_SS(n, k, r4, r5, "1", "0", "0")                   \
                             WGMMA_SS(n, k, r6, r7, "1", "0", "0") "}"                                                 \
                     : WGMMA_O##k                                                                                      \
                     : "l"(a), "l"(b), "l"(a + 2), "l"(b + 2), "l"(a + 4), "l"(b + 4), "l"(a + 6), "l"(b + 6),         \
                       "r"(add));                                                                                      \
    }                                                                                                                  \
    static __device__ __forceinline__ void rs4(float(&d)[n / 2], const u32(*a)[4], u64 b)                              \
    {                                                                                                                  \
        asm volatile(WGMMA_RS(n, k, r0, r1, r2, r3, r4) WGMMA_RS(n, k, r5, r6, r7, r8, r9)                             \
                         WGMMA_RS(n, k, r10, r11, r12, r13, r14) WGMMA_RS(n, k, r15, r16, r17, r18, r19)               \
                     : WGMMA_O##k                                                                                      \
                     : WGMMA_A(a[0]), "l"(b), WGMMA_A(a[1]), "l"(b + 128), WGMMA_A(a[2]), "l"(b + 256), WGMMA_A(a[3]), \
                       "l"(b + 384));                                                                                  \
    }
#else
#define WGMMA_FOURS(...)
#endif

#define WGMMA_WIDTH(n, k, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19)    \
    template <> struct wgmma<n> {                                                                                      \
        template <int A = 0, int B = 0>                                                                                \
        static __device__ __forceinline__ void ss(float (&d)[n / 2], u64 a, u64 b, int add)                            \
        {                                                                                                              \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                                      \
                         ", 0;\n" WGMMA_SS(n, k, r0, r1, "p", "%" #r3, "%" #r4) "}"                                    \
                         : WGMMA_O##k                                                                                  \
                         : "l"(a), "l"(b), "r"(add), "n"(A), "n"(B));                                                  \
        }                                                                                                              \
        static __device__ __forceinline__ void rs(float (&d)[n / 2], const u32 (&a)[4], u64 b)                         \
        {                                                                                                              \
            asm volatile(WGMMA_RS(n, k, r0, r1, r2, r3, r4) : WGMMA_O##k : WGMMA_A(a), "l"(b));                        \
        }                                                                                                              \
        WGMMA_FOURS(n, k, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16, r17, r18, r19)    \
    };

template <int N> struct wgmma;

/* The forward kernels read the widths that they have alone: each takes the front end half a millisecond. Two warp
 * groups divide more than 256 columns of O. */
#ifdef WGMMA_FORWARD
#define WGMMA_SHARE   (ATTUNE_HEAD_DIM_V > 256 ? 2 : 1)
#define WGMMA_USES(n) (ATTUNE_BLOCK_N == (n) || (ATTUNE_HEAD_DIM_V / WGMMA_SHARE + 15) / 16 * 16 == (n))
#else
#define WGMMA_USES(n) 1
#endif

#if WGMMA_USES(16)
WGMMA_WIDTH(16, 0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27)
#endif
#if WGMMA_USES(32)
WGMMA_WIDTH(32, 1, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35)
#endif
#if WGMMA_USES(48)
WGMMA_WIDTH(48, 2, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43)
#endif
#if WGMMA_USES(64)
WGMMA_WIDTH(64, 3, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51)
#endif
#if WGMMA_USES(80)
WGMMA_WIDTH(80, 4, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59)
#endif
#if WGMMA_USES(96)
WGMMA_WIDTH(96, 5, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67)
#endif
#if WGMMA_USES(112)
WGMMA_WIDTH(112, 6, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75)
#endif
#if WGMMA_USES(128)
WGMMA_WIDTH(128, 7, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83)
#endif
#if WGMMA_USES(144)
WGMMA_WIDTH(144, 8, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91)
#endif
#if WGMMA_USES(160)
WGMMA_WIDTH(160, 9, 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99)
#endif
#if WGMMA_USES(176)
WGMMA_WIDTH(176, 10, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107)
#endif
#if WGMMA_USES(192)
WGMMA_WIDTH(192, 11, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115)
#endif
#if WGMMA_USES(208)
WGMMA_WIDTH(208, 12, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123)
#endif
#if WGMMA_USES(224)
WGMMA_WIDTH(224, 13, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131)
#endif
#if WGMMA_USES(240)
WGMMA_WIDTH(240, 14, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139)
#endif
#if WGMMA_USES(256)
WGMMA_WIDTH(256, 15, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147)
#endif

#endif

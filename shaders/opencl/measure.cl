/* SPDX-License-Identifier: MIT */
/*
 * Measures the device: multiply-adds that do not depend on one another, and a copy. A program defines
 *
 *     THREADS      work-items of a workgroup
 *     WIDTH        floats of a vector: 4, 8 or 16 on a CPU whose driver prefers them, else 1
 *     STEPS        of each of the chains in a round
 *     COPY_STEPS   vectors that a work-item copies
 */
#include "prelude.h"

#if WIDTH == 16u
typedef float16 vector;
#define LANES vload16(0, lanes)
#elif WIDTH == 8u
typedef float8 vector;
#define LANES vload8(0, lanes)
#elif WIDTH == 4u
typedef float4 vector;
#define LANES vload4(0, lanes)
#else
typedef float vector;
#define LANES lanes[0]
#endif

/* By name, so that no compiler can keep them in memory. src/opencl/measure.c counts 16. */
#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Lanes that begin alike could be computed once. */
__constant float lanes[16] = {0.0f, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f,
                              0.8f, 0.9f, 1.0f, 1.1f, 1.2f, 1.3f, 1.4f, 1.5f};

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attune_measure(__global vector *to, uint rounds,
                                                                                  float factor, float term)
{
    /* The factor is -1: an element alternates between x and b - x, and stays finite. */
    const vector first = LANES + 0.37f + 0.61f * (float)(get_local_id(0) % 61u), a = (vector)(factor), b = LANES + term;
#define BEGIN(c) vector x##c = first - (float)c;
#define STEP(c)  x##c = FMA(x##c, a, b);
#define ADD(c)   sum += x##c;
    CHAINS(BEGIN)
    for (uint round = 0u; round < rounds; round++) {
        UNROLL for (uint step = 0u; step < STEPS; step++)
        {
            CHAINS(STEP)
        }
    }
    vector sum = (vector)(0.0f);
    CHAINS(ADD)
    to[GROUP * THREADS + get_local_id(0)] = sum;
}

__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void attune_copy(__global const float4 *from,
                                                                               __global float4 *to)
{
    const size_t first = (size_t)GROUP * (THREADS * COPY_STEPS) + get_local_id(0);
    float4 value[COPY_STEPS];
    UNROLL for (uint i = 0u; i < COPY_STEPS; i++) value[i] = from[first + i * THREADS];
    UNROLL for (uint i = 0u; i < COPY_STEPS; i++) to[first + i * THREADS] = value[i];
}

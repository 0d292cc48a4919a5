/* SPDX-License-Identifier: MIT */
/* Sinks: a logit of each query head in the denominator of the softmax alone. */
#ifndef ATTUNE_CUDA_SINKS_CUH
#define ATTUNE_CUDA_SINKS_CUH

#include "common.cuh"

/* The numbers by which a row is normalised: O and sums relative to its own maximum are multiplied by weight, and are
 * then relative to `most`, in natural units. sum includes the sink. */
struct row_total {
    float most, sum, weight;
};

/* Of calls whose results are merged, one has sinks. */
__device__ __forceinline__ row_total row_total_of(const attune_cuda_arguments &a, int h, float row_max, float row_sum)
{
    if (!config::SINKS || !a.sinks)
        return {row_max, row_sum, 1.0f};
    float sink = ((const float *)a.sinks)[h * a.sinks_head];
    float most = fmaxf(row_max, sink), base = most == -ATTUNE_INF ? 0.0f : most;
    float weight = exp2_fast((row_max - base) * ATTUNE_LOG2E);
    return {most, row_sum * weight + exp2_fast((sink - base) * ATTUNE_LOG2E), weight};
}

#endif

/* SPDX-License-Identifier: MIT */
/*
 * How racecheck treats mbarriers, in the smallest program: thread 0 writes a word, arrives, waits for its readers and
 * writes the next. The readers are one warp, of which one thread arrives (arrival 1) or all do (arrival 32).
 *
 *     nvcc -arch=sm_90 -o arrival arrival.cu
 *     compute-sanitizer --tool racecheck ./arrival 1      3 hazards
 *     compute-sanitizer --tool racecheck ./arrival 32     none
 */
#include <cstdio>
#include <cstdlib>

static __device__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ void wait(unsigned barrier, unsigned phase)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}

static __global__ void pass(int arrivals, int *sums)
{
    __shared__ unsigned long long barriers[2];
    __shared__ int word;
    unsigned full = (unsigned)__cvta_generic_to_shared(&barriers[0]), empty = full + 8;
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "mbarrier.init.shared::cta.b64 [%1], %2;\n"
                     "fence.mbarrier_init.release.cluster;" ::"r"(full),
                     "r"(empty), "r"(arrivals)
                     : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned i = 0; i < 4; i++) {
            wait(empty, ~i & 1);
            word = (int)i;
            arrive(full);
        }
    } else if (threadIdx.x >= 32) {
        int sum = 0;
        for (unsigned i = 0; i < 4; i++) {
            wait(full, i & 1);
            sum += word;
            __syncwarp();
            if ((int)threadIdx.x % 32 < arrivals)
                arrive(empty);
        }
        sums[threadIdx.x] = sum;
    }
}

int main(int count, char **words)
{
    int *sums;
    if (cudaMalloc(&sums, 64 * sizeof *sums))
        return 77;
    pass<<<1, 64>>>(count > 1 ? atoi(words[1]) : 1, sums);
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(sums);
    return 0;
}

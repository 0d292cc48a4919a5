/* SPDX-License-Identifier: MIT */
/*
 * A fault for each tool of compute-sanitizer: one that says nothing here says nothing elsewhere.
 *
 *     nvcc -arch=sm_90 -cudart static -o faults faults.cu
 *     tests/cuda/sanitize.py build --faults ./faults
 */
#include <cstdio>
#include <cstring>

static __global__ void memcheck(int *words)
{
    words[threadIdx.x + 1] = 1; /* of 64, the last writes past the end */
}

static __global__ void initcheck(int *words)
{
    words[threadIdx.x] += 1; /* nobody wrote them */
}

static __global__ void racecheck(int *words)
{
    __shared__ int reversed[64];
    reversed[threadIdx.x] = (int)threadIdx.x;
    words[threadIdx.x] = reversed[63 - threadIdx.x]; /* another warp's */
}

static __global__ void synccheck(int *words)
{
    if (threadIdx.x < 16)
        __syncthreads();
    words[threadIdx.x] = 1;
}

int main(int count, char **words)
{
    const char *tool = count > 1 ? words[1] : "";
    int *memory;
    if (cudaMalloc(&memory, 64 * sizeof *memory))
        return 77;
    if (!strcmp(tool, "memcheck"))
        memcheck<<<1, 64>>>(memory);
    else if (!strcmp(tool, "initcheck"))
        initcheck<<<1, 64>>>(memory);
    else if (!strcmp(tool, "racecheck"))
        racecheck<<<1, 64>>>(memory);
    else if (!strcmp(tool, "synccheck"))
        synccheck<<<1, 64>>>(memory);
    else
        return 2;
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(memory);
    return 0;
}

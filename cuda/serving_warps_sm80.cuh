/* SPDX-License-Identifier: MIT */
/* How the warps of serving_sm80.cu divide a tile, and its tiles of K and V. */
#ifndef ATTUNE_CUDA_SERVING_WARPS_SM80_CUH
#define ATTUNE_CUDA_SERVING_WARPS_SM80_CUH

#include "serving_loads.cuh"
#include "serving_tile.cuh"

/* With codes: addends of Q and of P, which together have the bits of the type of q and of o; factors of a row. */
constexpr int Q_ADDENDS = !CODES || config::Q_DTYPE == ATTUNE_CUDA_BF16 ? 1
                          : config::Q_DTYPE == ATTUNE_CUDA_F16          ? 2
                                                                        : 3;
constexpr int P_ADDENDS = config::O_DTYPE == ATTUNE_CUDA_F32 ? 3 : 2;
constexpr int K_FACTORS = !CODES ? 0 : HAS_BLOCKS<K_TYPE> ? HEAD_DIM / 32 : 1;
constexpr int V_FACTORS = !CODES ? 0 : HAS_BLOCKS<V_TYPE> ? HEAD_DIM_V / 32 : 1;
constexpr attune_cuda_tile SERVED = {sizeof(element), HEAD_DIM,  HEAD_DIM_V, BLOCK_M,   BLOCK_N,   WARPS,
                                     STAGES,          KEY_TERMS, Q_ADDENDS,  K_FACTORS, V_FACTORS, SHARES};
/* GROUPS warps share rows: KEY_GROUPS of them divide the keys, and with SHARED_P all divide the columns of O. */
constexpr bool SHARED_P = attune_cuda_serving_sm80_shares_p(SERVED),
               ONE_BUFFER = attune_cuda_serving_sm80_one_buffer(SERVED);
constexpr int ROW_GROUPS = BLOCK_M / 16, GROUPS = (int)attune_cuda_serving_sm80_groups(SERVED);
constexpr int KEY_GROUPS = (int)attune_cuda_serving_sm80_key_groups(SERVED), O_GROUPS = SHARED_P ? 1 : GROUPS;
constexpr int SERVED_DV = (int)attune_cuda_serving_sm80_dv(SERVED), CHUNKS_V = SERVED_DV / PER_CHUNK;
constexpr int KEYS = BLOCK_N / KEY_GROUPS, N_TILES = KEYS / 8, DV_TILES = SERVED_DV / 8 / (SHARED_P ? GROUPS : 1);
constexpr int P_PITCH = (int)attune_cuda_serving_sm80_p_pitch(SERVED);
static_assert(!SHARES || sizeof(group_of_rows) <= attune_cuda_serving_sm80_rows(SERVED), "the layout has space for it");
static_assert(GROUPS * ROW_GROUPS == WARPS, "warps divide the rows, then the keys");
static_assert(SHARED_P || KEY_GROUPS == GROUPS, "a warp without keys has columns of O");
static_assert(KEYS % 16 == 0, "a warp computes 16 columns or a multiple");
static_assert(FLOAT32 || CODES || (K_TYPE == config::DTYPE && V_TYPE == config::DTYPE),
              "other types are converted to float32");
static_assert(STAGES == 1 || (K_TYPE == config::DTYPE && V_TYPE == config::DTYPE && !ONE_BUFFER),
              "only asynchronous copies are several tiles ahead");
/* Tiles whose keys are known, past this one; with one stage also those that are being copied. */
constexpr int AHEAD = STAGES > 1 ? STAGES - 1 : 1;

/* With several stages: whether V may be a part of K, of which each row is then copied once. The columns past V's, which
 * are not stored, are those of K. */
constexpr bool V_OF_K =
    STAGES > 1 && SHARED_P &&K_TYPE == V_TYPE &&SERVED_DV <= PAD_D &&CHUNKS_D % 8 == 0 && CHUNKS_V % 8 == 0;

/* The stages have K alone: V of a tile that is not of K is copied in its place. */
constexpr bool V_IN_K = attune_cuda_serving_sm80_v_in_k(SERVED);
static_assert(!V_IN_K || V_OF_K, "V fits in the place of K");

__device__ __forceinline__ bool v_is_of_k(const attune_cuda_arguments &a)
{
    return V_OF_K && v_begins_with_k(a);
}

/* With several stages tiles that all rows see need no mask. */
constexpr bool HAVE_INNER = STAGES > 1 && config::HAVE_MASK_RANGE && !config::TREE && !HAVE_SCORE;

/* Where the head's rows of K and V begin in a page 0. */
struct heads {
    const byte *k, *v;
};

/* K and V of a tile, as one group of copies; an empty one past the last tile. */
__device__ __forceinline__ void copy_tile(u32, u32, const attune_cuda_arguments &, const heads &, const int2 *, bool,
                                          bool)
{
}

__device__ __forceinline__ void copy_tile(u32 k, u32 v, const attune_cuda_arguments &a, const heads &from,
                                          const key_place *places, bool v_of_k, bool more)
{
    if (more) {
        copy_rows<HEAD_DIM, CHUNKS_D>(k, from.k, &places->k, view_aligned(a.k));
        if (!V_IN_K && (!V_OF_K || !v_of_k))
            copy_rows<HEAD_DIM_V, CHUNKS_V>(v, from.v, &places->v, view_aligned(a.v));
    }
    copy_commit();
}

/* V of a tile, in the place of its K. */
__device__ __forceinline__ void copy_v(u32, const attune_cuda_arguments &, const heads &, const int2 *)
{
}

__device__ __forceinline__ void copy_v(u32 v, const attune_cuda_arguments &a, const heads &from,
                                       const key_place *places)
{
    copy_rows<HEAD_DIM_V, CHUNKS_V>(v, from.v, &places->v, view_aligned(a.v));
    copy_commit();
}

/* The warp's first row and column in the tile, rematerialised. */
__device__ __forceinline__ int warp_row()
{
    return thread_index_remat() / 32 % ROW_GROUPS * 16;
}

__device__ __forceinline__ int warp_group()
{
    return thread_index_remat() / (32 * ROW_GROUPS);
}

__device__ __forceinline__ int warp_column()
{
    return warp_group() * KEYS;
}

#endif

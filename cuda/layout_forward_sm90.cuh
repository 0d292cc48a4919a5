/* SPDX-License-Identifier: MIT */
/* The barriers of the forward kernels with TMA and their tile descriptors. */
#ifndef ATTUNE_CUDA_LAYOUT_FORWARD_SM90_CUH
#define ATTUNE_CUDA_LAYOUT_FORWARD_SM90_CUH

/* The kernel's configuration, `forward`: Hopper's, unless its source has included another one. */
#ifndef ATTUNE_CUDA_CONFIG_FORWARD_SM100_CUH
#include "config_forward_sm90.cuh"
#endif
#include "hopper.cuh"
#include "terms.cuh"

/* The named barriers of bar.sync; __syncthreads has number 0. */
enum named_barrier {
    BARRIER_PING_PONG = 1, /* to 3: one for each consumer warp group */
    BARRIER_TMEM = 4,      /* tensor memory is not used any more */
    BARRIER_SCAN = 7,      /* of the scan warps */
};

/* Flags of tile descriptors. With two block lists the second list's flags are 8 bits higher. */
enum {
    TILE_MASKED = 1,   /* some pairs are forbidden: by the mask, or past the last key */
    TILE_LAST = 2,     /* the query tile's last key tile; in a query tile's descriptor: it has no keys */
    TILE_PARTIAL = 4,  /* of a partial block: the mask is evaluated */
    TILE_ABSENT = 8,   /* not in this block list: all pairs are forbidden */
    TILE_SCAN_V = 16,  /* the scan warps read its V */
    TILE_QUERIES = 32, /* a query tile, not a key tile */
};
/* index: a key tile's first key; in the scheduler's queue also a query tile's number, -1 at the end. */
struct tile_desc {
    int index, flags;
};

struct query_tile_desc {
    tile_coord coord;
    int flags; /* TILE_QUERIES: it has keys; TILE_QUERIES | TILE_LAST: it has none; 0: there are no more query tiles */
};

/* After the tiles in shared memory. */
struct control {
    pipeline<forward::Q_BUFFERS> q;
    pipeline<STAGES> k, v;
    u64 v_scanned[STAGES];
    pipeline<forward::QUEUE_STAGES> queue;
    query_tile_desc query_tiles[forward::Q_BUFFERS]; /* with q's stages */
    tile_desc key_tiles[STAGES];                     /* with k's stages */
    tile_desc queue_tiles[forward::QUEUE_STAGES];
    int non_finite[STAGES]; /* V of this stage had infinities or NaN, which the scan warps replaced by 0 */
};
static_assert(sizeof(control) <= forward::LAYOUT.control_bytes);

/* After it, the terms of the keys: this, then [STAGES][KEY_TERMS][BLOCK_N] words. */
struct key_terms_control {
    pipeline<STAGES> terms; /* with k's stages */
};
/* The number that is XORed with the offset of a capture's element in a row of a tile. A warp reads 8 bytes of 4 rows at
 * once, or 4 bytes of 8 rows: they are in different banks. */
__device__ __forceinline__ constexpr u32 capture_swizzle(u32 row)
{
    constexpr u32 BYTES = BLOCK_N * config::SCORE_TILE; /* the power of two that divides them is its limit */
    return (config::SCORE_TILE == 4 ? row % 4 * 32 : row % 8 * 16) & ((BYTES & -BYTES) - 1);
}

/* After these, with tiles of a capture: this, then of each stage [BLOCK_M][BLOCK_N] elements, whose groups of 16 bytes
 * are swizzled (capture_swizzle). */
struct alignas(16) capture_tiles_control {
    int queue_next[forward::QUEUE_STAGES], next[STAGES]; /* beside queue_tiles and key_tiles: the next tile's index */
};
static_assert(forward::QUEUE_STAGES == 4, "attune_cuda_forward_sm90 counts as many");

__device__ __forceinline__ capture_tiles_control &captures_of(control &c)
{
    return *(capture_tiles_control *)((unsigned char *)&c + (forward::CAPTURE_TILES_OFFSET - forward::CONTROL_OFFSET));
}

/* Whether a key tile has terms. The mask's are used only in partial blocks, and only where its rows have no ranges. */
__device__ __forceinline__ bool has_terms(const attune_cuda_arguments &a, int flags)
{
    return config::SCORE_KEYS || (flags & TILE_PARTIAL && !(config::HAVE_MASK_RANGE && a.mask_ranges));
}

#endif

/* SPDX-License-Identifier: MIT */
/* Shared by CUDA's families: the backward pass's workspace, and whether a tile fits a mask's blocks. */
#include "plan/family_cuda.h"

#include "cuda/layout_sm90.h"

const char *attune__cuda_reject_blocks(const attune__shape *s, const uint32_t *v, attune__option *option)
{
    const bool columns = s->mask_kv_block % v[ATTUNE__BLOCK_N1];
    *option = columns ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M1;
    if (s->block_mask && (columns || s->mask_q_block % v[ATTUNE__BLOCK_M1]))
        return "it must divide the block of the mask";
    return NULL;
}

/* Beside wide heads it would leave space for small tiles only. */
uint32_t attune__cuda_capture_tile(const attune__shape *s)
{
    return s->head_dim <= 128 && s->head_dim_v <= 128 ? s->expr.score.tiled.tile_bytes : 0;
}

attune__cuda_workspace attune__cuda_backward_workspace(int64_t batch, int64_t heads, int64_t q_len, uint64_t elements)
{
    const uint64_t rows =
        (uint64_t)(q_len + ATTUNE__CUDA_ROW_BLOCK - 1) / ATTUNE__CUDA_ROW_BLOCK * ATTUNE__CUDA_ROW_BLOCK;
    attune__cuda_workspace w = {.row_stride = rows};
    w.delta = (uint64_t)batch * (uint64_t)heads * rows * sizeof(float);
    w.sums = 2 * w.delta;
    w.size = w.sums + elements * ATTUNE__CUDA_SUM_BYTES;
    w.size = attune__round_up64(w.size, 256);
    return w;
}

uint64_t attune__cuda_backward_bytes(const attune__shape *s, const attune__cost *cost)
{
    const attune__cuda_workspace w =
        attune__cuda_backward_workspace(s->batch, s->heads, s->q_len, s->capture_gradient_elements);
    return attune__round_up64(w.size + cost->workspace, 256);
}

uint64_t attune__cuda_backward_added(const attune__shape *s)
{
    const attune__cuda_workspace w = attune__cuda_backward_workspace(s->batch, s->heads, s->q_len, 0);
    return attune__cuda_backward_sums(&w, s->batch, s->heads, s->head_dim, s->head_dim_v) +
           attune__cuda_backward_order(&w, s->batch, s->heads);
}

uint64_t attune__cuda_backward_sums(const attune__cuda_workspace *w, int64_t batch, int64_t heads, uint32_t head_dim,
                                    uint32_t head_dim_v)
{
    return (uint64_t)(batch * heads) * w->row_stride * attune_cuda_backward_sm90_dq_columns(head_dim, head_dim_v, 64) *
           sizeof(float);
}

uint64_t attune__cuda_backward_order(const attune__cuda_workspace *w, int64_t batch, int64_t heads)
{
    return (uint64_t)(batch * heads) * w->row_stride / 64 * 4 * sizeof(uint32_t) + 16;
}

uint64_t attune__cuda_workspace_bytes(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                                      uint32_t split)
{
    (void)tile;
    return search->pass == ATTUNE__PASS_BACKWARD ? attune__cuda_backward_bytes(search->shape, cost)
                                                 : attune__workspace_parts(search, split);
}

/* SPDX-License-Identifier: MIT */
/* Shared by CUDA's families: the backward pass's workspace, and whether a tile fits a mask's blocks. */
#include "plan/family_cuda.h"

const char *attune__cuda_refuse_blocks(const attune__shape *s, const uint32_t *v, attune__option *option)
{
    const bool columns = s->mask_kv_block % v[ATTUNE__BLOCK_N1];
    *option = columns ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_M1;
    if (s->block_mask && (columns || s->mask_q_block % v[ATTUNE__BLOCK_M1]))
        return "it must divide the block of the mask";
    return NULL;
}

bool attune__cuda_sm90_backward_wide(uint32_t head_dim, uint32_t head_dim_v)
{
    return head_dim > 128 || head_dim_v > 128;
}

bool attune__cuda_sm90_backward_paired(uint32_t head_dim, uint32_t head_dim_v, uint32_t block_n)
{
    return attune__cuda_sm90_backward_wide(head_dim, head_dim_v) && block_n == 128;
}

uint32_t attune__cuda_backward_dq_columns(uint32_t head_dim, uint32_t head_dim_v, uint32_t m)
{
    if (head_dim > 64 || attune__cuda_sm90_backward_wide(head_dim, head_dim_v))
        return attune__round_up(head_dim, 128);
    return attune__round_up(head_dim, m == 128 ? 16 : 32);
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
    return (uint64_t)(batch * heads) * w->row_stride * attune__cuda_backward_dq_columns(head_dim, head_dim_v, 64) *
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

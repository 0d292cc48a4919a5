/* SPDX-License-Identifier: MIT */
/* Masks that follow a tensor: the pool's threads classify rows of blocks, then one makes the lists. */
#include "cpu/cpu.h"

typedef struct update {
    attune_mask *mask;
    const char *data;
    int64_t rows;
    atomic_llong next;
} update;

static void classify_rows(void *user, uint32_t thread)
{
    (void)thread;
    update *u = user;
    for (;;) {
        const int64_t row = atomic_fetch_add_explicit(&u->next, 1, memory_order_relaxed);
        if (row >= u->rows)
            return;
        attune__mask_classify(u->mask, row, u->data);
    }
}

attune_status attune__cpu_mask_update(attune_queue *queue, attune_mask *mask, attune__device_mask *device_mask,
                                      const attune_tensor *tensor, uint64_t *value)
{
    (void)device_mask;
    attune__pool *pool = ((attune__cpu_device *)queue->device)->pool;
    update u = {
        .mask = mask,
        .data = attune__cpu_memory(tensor->buffer) + tensor->offset,
        .rows = mask->stored_batch * mask->stored_heads * mask->q_blocks,
    };
    const uint32_t most = attune__pool_threads(pool);
    attune__pool_run(pool, u.rows < (int64_t)most ? (uint32_t)u.rows : most, classify_rows, &u);
    mask->captures[0].data = u.data;
    attune__mask_fill(mask);
    *value = 0;
    return ATTUNE_OK;
}

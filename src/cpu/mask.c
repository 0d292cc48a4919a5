/* SPDX-License-Identifier: MIT */
/* Masks computed from a tensor: the pool's threads classify rows of blocks, then one thread builds the lists. */
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
    const attune__cpu_device *device = (const attune__cpu_device *)queue->device;
    update u = {
        .mask = mask,
        .data = attune__cpu_memory(tensor->buffer) + tensor->offset,
        .rows = mask->stored_batch * mask->stored_heads * mask->q_blocks,
    };
    const double elements = (double)u.rows * (double)mask->q_block * (double)mask->kv_len;
    attune__pool_run(device->pool, attune__cpu_threads(device, false, elements, 1, 0, (uint64_t)u.rows), classify_rows,
                     &u);
    mask->captures[0].data = u.data;
    attune__mask_fill(mask);
    *value = 0;
    return ATTUNE_OK;
}

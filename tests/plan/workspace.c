/* SPDX-License-Identifier: MIT */
/* The parts of the workspace of CUDA's backward pass: each fits, none overlaps another. */
#include <criterion/criterion.h>

#include "plan/family_cuda.h"
#include "support/mask_oracle.h"

Test(workspace, parts_lie_side_by_side)
{
    oracle_random random = {31};
    for (int i = 0; i < 5000; i++) {
        const int64_t batch = oracle_between(&random, 1, 5), heads = oracle_between(&random, 1, 9);
        const int64_t q_len = oracle_between(&random, 1, 1000);
        const uint64_t elements = (uint64_t)oracle_between(&random, 0, 1) * (uint64_t)oracle_between(&random, 1, 500);
        const attune__cuda_workspace w = attune__cuda_backward_workspace(batch, heads, q_len, elements);

        uint64_t rows = 0;
        while (rows < (uint64_t)q_len)
            rows += ATTUNE__CUDA_ROW_BLOCK;
        const uint64_t array = (uint64_t)batch * (uint64_t)heads * rows * 4;
        cr_assert(w.row_stride == rows && w.delta == array && w.sums == 2 * array, "%lld rows: stride %llu",
                  (long long)q_len, (unsigned long long)w.row_stride);
        const uint64_t end = w.sums + elements * ATTUNE__CUDA_SUM_BYTES;
        cr_assert(w.size >= end && w.size < end + 256 && w.size % 256 == 0);

        /* cuda_sm90 adds at the end: dQ in float32, rows of whole columns, and four counts for each 64 of them. */
        for (uint32_t d = 8; d <= 256; d += 8) {
            const uint64_t sums = attune__cuda_backward_sums(&w, batch, heads, d, d);
            const uint64_t row = (uint64_t)batch * (uint64_t)heads * rows * 4;
            cr_assert(sums % row == 0 && sums / row >= d && sums / row < d + 128 && sums / row % 32 == 0);
        }
        cr_assert(attune__cuda_backward_order(&w, batch, heads) == array / 64 * 4 + 16);
    }
}

/* SPDX-License-Identifier: MIT */
/* How a call is cut: every head and row of it is in one item, and no item is larger than a tile. */
#include "plan/partition.h"

#include <criterion/criterion.h>

#include "support/mask_oracle.h"

/* Chunks of q_step rows that begin anew at each block of the mask, counted one by one. */
static int64_t count_chunks(int64_t q_len, int64_t q_block, int64_t q_step)
{
    int64_t count = 0;
    for (int64_t block = 0; block < q_len; block += q_block)
        for (int64_t row = block; row < block + q_block && row < q_len; row += q_step)
            count++;
    return count;
}

Test(cut, is_of_tiles_within_blocks)
{
    oracle_random random = {29};
    for (int i = 0; i < 20000; i++) {
        const int64_t group = oracle_between(&random, 1, 20);
        attune__partition_desc d = {.batch = oracle_between(&random, 1, 3),
                                    .kv_heads = oracle_between(&random, 1, 3),
                                    .q_len = oracle_between(&random, 1, 300),
                                    .block_m = (uint32_t)oracle_between(&random, 1, 64),
                                    .split_kv = (uint32_t)oracle_between(&random, 0, 4),
                                    .decode = oracle_between(&random, 0, 1),
                                    .mask_q_block = 16u * (uint32_t)oracle_between(&random, 0, 5),
                                    .one_list = oracle_between(&random, 0, 1),
                                    .section_items = (uint32_t)oracle_between(&random, 0, 160)};
        d.heads = d.kv_heads * group;
        const attune__partition c = attune__partition_make(&d);

        /* All heads of a group that fit a tile, where they may stand side by side. */
        const int64_t together = !d.decode || !d.one_list ? 1 : group < d.block_m ? group : d.block_m;
        int64_t rows = d.block_m / together;
        if (d.mask_q_block && d.mask_q_block < rows)
            rows = d.mask_q_block;
        const int64_t block = d.mask_q_block ? d.mask_q_block : rows;
        const uint32_t splits = d.decode && d.split_kv ? d.split_kv : 1;
        cr_assert(c.head_step == together && c.q_step == rows && c.q_block == block && c.splits == splits);
        int64_t head_chunks = 0;
        for (int64_t h = 0; h < group; h += together)
            head_chunks++;
        cr_assert(c.head_chunks == head_chunks);
        cr_assert(c.in_block == count_chunks(block, block, rows));
        cr_assert(c.q_chunks == count_chunks(d.q_len, block, rows), "%lld rows, blocks %lld, step %lld: %lld chunks",
                  (long long)d.q_len, (long long)block, (long long)rows, (long long)c.q_chunks);
        /* As few planes as have so many items, or all; as many in each section, but for the last. */
        const int64_t planes = d.batch * d.kv_heads, in_plane = c.q_chunks * head_chunks * splits;
        int64_t least = 1;
        while (d.mask_q_block && least * in_plane < (int64_t)d.section_items)
            least++;
        int64_t sections = 1;
        while ((sections + 1) * least <= planes)
            sections++;
        int64_t section = 1;
        while (section * sections < planes)
            section++;
        cr_assert(c.section == (d.mask_q_block && d.section_items ? section : 1));
        cr_assert(c.items == d.batch * d.kv_heads * head_chunks * c.q_chunks * splits);
    }
}

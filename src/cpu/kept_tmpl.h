/* SPDX-License-Identifier: MIT */
/*
 * Bits of a mask that heads share: a thread that computes the same rows for one head after another keeps those of their
 * first partial tiles. Included by forward_tmpl.h.
 */

typedef struct kept_bits {
    uint32_t *pairs; /* of `room` tiles */
    uint16_t *bits;
    uint16_t *other_bits; /* of a tile that is not kept */
    uint32_t other_pairs;
    uint32_t split;
    size_t room, words, next, rows;
    int64_t batch, list, q0; /* of the rows, and of the block lists; list -1 = of none */
} kept_bits;

static kept_bits kept_at(const attune__cpu_run *run, const state *st)
{
    return (kept_bits){
        .pairs = st->kept_pairs,
        .bits = st->kept_bits,
        .other_bits = st->bits,
        .room = attune__cpu_kept_tiles(&run->program->shape, (uint32_t)run->block_m, (uint32_t)run->block_n),
        .words = run->block_m * st->ldb,
        .list = -1,
    };
}

/* Before the tiles of an item. */
static void kept_begin(const attune__cpu_run *run, const item *it, kept_bits *kept)
{
    const attune_mask *mask = run->call->mask;
    kept->next = 0;
    if (!mask)
        return;
    const int64_t list = attune__mask_at(mask, it->b, it->h0).row0 + it->q0 / mask->q_block;
    if (kept->list == list && kept->batch == it->b && kept->q0 == it->q0 && kept->split == it->split &&
        kept->rows == it->rows)
        return;
    kept->list = list;
    kept->batch = it->b;
    kept->q0 = it->q0;
    kept->split = it->split;
    kept->rows = it->rows;
    for (size_t i = 0; i < kept->room; i++)
        kept->pairs[i] = UNKNOWN_PAIRS;
}

/* Before a partial tile: where its bits are. */
static void kept_next(kept_bits *kept, state *st)
{
    if (kept->next < kept->room) {
        st->bits = kept->bits + kept->next * kept->words;
        st->pairs = kept->pairs + kept->next++;
    } else {
        st->bits = kept->other_bits;
        st->pairs = &kept->other_pairs;
        *st->pairs = UNKNOWN_PAIRS;
    }
}

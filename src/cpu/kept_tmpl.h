/* SPDX-License-Identifier: MIT */
/*
 * Bits of a mask that heads share: a thread that computes the same tiles for one head after another keeps those of the
 * first partial ones. Included by forward_tmpl.h and backward_tmpl.h.
 */

/* The tiles of some rows, or in backward of some keys. */
typedef struct strip {
    int64_t batch, list, first; /* list: of the mask's, which may be shared by heads; first: row or key */
    size_t count;               /* of rows or keys */
    uint32_t split;
} strip;

typedef struct kept_bits {
    uint32_t *pairs; /* of `room` tiles */
    uint16_t *bits;
    uint16_t *other_bits; /* of a tile that is not kept */
    uint32_t other_pairs;
    size_t room, words, next;
    strip of; /* list -1 = none */
} kept_bits;

/* Before the first item of a thread. */
static kept_bits kept_at(const attune__cpu_run *run, const state *st)
{
    if (attune__cpu_sorts(&run->program->shape, (uint32_t)run->block_m, (uint32_t)run->block_n))
        attune__order_begin(st->orders);
    return (kept_bits){
        .pairs = st->kept_pairs,
        .bits = st->kept_bits,
        .other_bits = st->bits,
        .room = attune__cpu_kept_tiles(&run->program->shape, (uint32_t)run->block_m, (uint32_t)run->block_n),
        .words = (size_t)attune__cpu_tile_words(&run->program->shape, (uint32_t)run->block_m, (uint32_t)run->block_n),
        .of = {.list = -1},
    };
}

/* Before the tiles of a strip of a call with a mask. */
static void kept_begin(kept_bits *kept, const strip *of)
{
    kept->next = 0;
    if (kept->of.list == of->list && kept->of.batch == of->batch && kept->of.first == of->first &&
        kept->of.count == of->count && kept->of.split == of->split)
        return;
    kept->of = *of;
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

/* SPDX-License-Identifier: MIT */
/*
 * The sequences of a batch, and the pages of their keys. What the caller's integers hold is checked here, where they
 * are read (docs/serving.md has the results). Who includes this has `args`, with the address of the block, and the most
 * rows and keys of a sequence.
 */
#ifndef ATTUNE_SEQUENCE_GLSL
#define ATTUNE_SEQUENCE_GLSL

#include "address.glsl"
#include "serving.h"

const uint NO_PAGE = 0xffffffffu;

/* The rows of a sequence are those from row0 on of `batch` of q and o, and those from token0 on of all sequences'. Row
 * i is at q = position + i of the keys. */
struct Sequence {
    uint batch, row0, token0, q_len, kv_len, kv_first;
    int position;
    uvec2 table; /* of its first entry */
    uvec2 entry_stride;
    uint entries;
};

attune_vulkan_serving serving;
Sequence sequence;

int integer_at(const in attune_vulkan_array a, const in uint i)
{
    return int(Word(address_step(a.address, i, a.stride[0])).value);
}

bool is_absent(const in attune_vulkan_array a)
{
    return all(equal(a.address, args.serving));
}

/* The block table's row. */
void begin_table(const in uint b)
{
    sequence.table = address_step(serving.pages.address, b, serving.pages.stride[0]);
    sequence.entry_stride = serving.pages.stride[1];
    sequence.entries = serving.entries;
    if (is_absent(serving.pages)) {
        sequence.entries = 1u;
    } else if (!is_absent(serving.pages_start)) {
        int first = integer_at(serving.pages_start, b), end = integer_at(serving.pages_start, b + 1u);
        bool valid = first >= 0 && first <= end && uint(end) <= serving.entries;
        sequence.entries = valid ? uint(end - first) : 0u;
        sequence.entry_stride = serving.pages.stride[0];
        sequence.table = address_step(serving.pages.address, valid ? uint(first) : 0u, sequence.entry_stride);
    }
}

void begin_rows(const in uint b)
{
    sequence.batch = b;
    sequence.row0 = 0u;
    sequence.token0 = b * args.q_len;
    sequence.q_len = args.q_len;
    if (!is_absent(serving.q_start)) {
        int first = integer_at(serving.q_start, b), end = integer_at(serving.q_start, b + 1u);
        bool valid = first >= 0 && first <= end && uint(end) <= serving.tokens && uint(end - first) <= args.q_len;
        sequence.batch = 0u;
        sequence.row0 = sequence.token0 = valid ? uint(first) : 0u;
        sequence.q_len = valid ? uint(end - first) : 0u;
    }
    if (!is_absent(serving.count) && int(b) >= integer_at(serving.count, 0u))
        sequence.q_len = 0u;
}

/* After the rows. */
void begin_length(const in uint b)
{
    begin_table(b);
    uint most = sequence.entries > args.kv_len / serving.page ? args.kv_len : sequence.entries * serving.page;
    uint length = uint(integer_at(serving.kv_len, b)); /* a negative one is above all limits */
    sequence.kv_len = length <= most ? length : 0u;
    sequence.position = int(sequence.kv_len) - int(sequence.q_len);
    sequence.kv_first = 0u;
    if (!is_absent(serving.kv_first))
        sequence.kv_first = uint(clamp(integer_at(serving.kv_first, b), 0, int(sequence.kv_len)));
}

/* The page of a key and its row there. */
uvec2 place_of(const in uint b, const in uint kv)
{
    if (is_absent(serving.pages))
        return uvec2(b, kv);
    uint index = kv / serving.page, page = NO_PAGE;
    if (index < sequence.entries)
        page = Word(address_step(sequence.table, index, sequence.entry_stride)).value;
    return uvec2(page < serving.pool ? page : NO_PAGE, kv - index * serving.page);
}

/* The factor of a key's row: 1 without factors. */
uint factor_of(const in attune_vulkan_array scale, const in uint head, const in uvec2 key)
{
    if (is_absent(scale))
        return 0x3f800000u;
    uvec2 at = address_step(address_step(scale.address, key.x, scale.stride[0]), head, scale.stride[1]);
    return Word(address_step(at, key.y, scale.stride[2])).value;
}

#endif

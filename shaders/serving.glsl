/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache: the sequence of a tile, and where its keys are. Kernels walk logical tiles of keys; pages are
 * translated for addresses alone, so that results do not depend on them. What the caller's integers hold is checked
 * here, where they are read (docs/serving.md has the results). Included by forward_tile.glsl.
 */
#ifndef ATTUNE_SERVING_GLSL
#define ATTUNE_SERVING_GLSL

#include "serving.h"

#include "layout_serving.h"

const uint NO_PAGE = 0xffffffffu;

/* The rows of a sequence are those from row0 on of `batch` of q and o, and those from token0 on of all sequences'. Row
 * i is at q = position + i of the keys. */
struct Sequence {
    uint batch, row0, token0, q_len, kv_first;
    int position;
    uvec2 table; /* of its first entry */
    uvec2 entry_stride;
    uint entries;
};

attune_vulkan_serving serving;
Sequence sequence;
uint parity = 0u; /* of the tile whose keys are loaded next */

int integer_at(const in attune_vulkan_array a, const in uint i)
{
    return int(Word(address_step(a.address, i, a.stride[0])).value);
}

bool is_absent(const in attune_vulkan_array a)
{
    return all(equal(a.address, args.serving));
}

/* The block table's row. */
void begin_table()
{
    sequence.table = address_step(serving.pages.address, coord.b, serving.pages.stride[0]);
    sequence.entry_stride = serving.pages.stride[1];
    sequence.entries = serving.entries;
    if (is_absent(serving.pages)) {
        sequence.entries = 1u;
    } else if (!is_absent(serving.pages_start)) {
        int first = integer_at(serving.pages_start, coord.b), end = integer_at(serving.pages_start, coord.b + 1u);
        bool valid = first >= 0 && first <= end && uint(end) <= serving.entries;
        sequence.entries = valid ? uint(end - first) : 0u;
        sequence.entry_stride = serving.pages.stride[0];
        sequence.table = address_step(serving.pages.address, valid ? uint(first) : 0u, sequence.entry_stride);
    }
}

void begin_rows()
{
    sequence.batch = coord.b;
    sequence.row0 = 0u;
    sequence.token0 = coord.b * args.q_len;
    sequence.q_len = args.q_len;
    if (!is_absent(serving.q_start)) {
        int first = integer_at(serving.q_start, coord.b), end = integer_at(serving.q_start, coord.b + 1u);
        bool valid = first >= 0 && first <= end && uint(end) <= serving.tokens && uint(end - first) <= args.q_len;
        sequence.batch = 0u;
        sequence.row0 = sequence.token0 = valid ? uint(first) : 0u;
        sequence.q_len = valid ? uint(end - first) : 0u;
    }
    if (!is_absent(serving.count) && int(coord.b) >= integer_at(serving.count, 0u))
        sequence.q_len = 0u;
    coord.queries = coord.q0 < sequence.q_len ? min(args.q_step, sequence.q_len - coord.q0) : 0u;
    coord.rows = coord.heads * coord.queries;
}

void begin_sequence()
{
    serving = attune_vulkan_serving(args.serving);
    begin_rows();
    begin_table();
    uint most = sequence.entries > args.kv_len / serving.page ? args.kv_len : sequence.entries * serving.page;
    uint length = uint(integer_at(serving.kv_len, coord.b)); /* a negative one is above all limits */
    kv_len = length <= most ? length : 0u;
    sequence.position = int(kv_len) - int(sequence.q_len);
    sequence.kv_first = 0u;
    if (!is_absent(serving.kv_first))
        sequence.kv_first = uint(clamp(integer_at(serving.kv_first, coord.b), 0, int(kv_len)));
    k_plane = address_step(args.k.address, coord.kv_h, args.k.stride_h);
    v_plane = address_step(args.v.address, coord.kv_h, args.v.stride_h);
}

/* The tiles of a sequence begin at multiples of BLOCK_N of its keys. */
BlockIterator begin_keys()
{
    BlockIterator it = block_iterator_begin(uvec2(0u), 0u, (kv_len + BLOCK_N - 1u) / BLOCK_N);
    it.block = sequence.kv_first / BLOCK_N;
    return it;
}

/* The page of a key and its row there. */
uvec2 key_of(const in uint kv)
{
    if (kv < sequence.kv_first || kv >= kv_len)
        return uvec2(NO_PAGE, 0u);
    if (is_absent(serving.pages))
        return uvec2(coord.b, kv);
    uint index = kv / serving.page, page = NO_PAGE;
    if (index < sequence.entries)
        page = Word(address_step(sequence.table, index, sequence.entry_stride)).value;
    return uvec2(page < serving.pool ? page : NO_PAGE, kv - index * serving.page);
}

/* Key n of the tile whose first slice of K is loaded; `first` of the invocations that load it tells the others. */
uvec2 begin_key(const in uint kv0, const in uint n, const in bool first)
{
    uvec2 key = key_of(kv0 + n);
    if (first) {
        keys[n] = key;
        if (key.x == NO_PAGE)
            absent[parity] = 1u;
    }
    return key;
}

uvec2 k_row(const in uvec2 key)
{
    return address_step(address_step(k_plane, key.x, args.k.stride_b), key.y, k_stride);
}

uvec2 v_row(const in uvec2 key)
{
    return address_step(address_step(v_plane, key.x, args.v.stride_b), key.y, v_stride);
}

/* Of a key's row: 1 without factors. */
uint factor_of(const in attune_vulkan_array scale, const in uvec2 key)
{
    if (is_absent(scale))
        return 0x3f800000u;
    uvec2 at = address_step(address_step(scale.address, key.x, scale.stride[0]), coord.kv_h, scale.stride[1]);
    return Word(address_step(at, key.y, scale.stride[2])).value;
}

/* Eight elements of a row of K or V, from `d` on. */
Group fetch_row(const in uint type, const in uvec2 row, const in uint d, const in attune_vulkan_array scale,
                const in uvec2 key)
{
    bool valid = key.x != NO_PAGE;
    if (!is_quantised(type))
        return fetch(type, address_add(row, d * bytes_of(type)), aligned, valid);
    Group group;
    group.low = uvec4(0u);
    group.high = uvec4(0u);
    if (valid) {
        group.low.xy = load_codes(type, row, d);
        group.low.z = has_blocks(type) ? block_factor(type, row, d) : factor_of(scale, key);
    }
    return group;
}

/* Whether a tile of keys that ends before `end` has drafts of a tree. */
bool sees_some(const in uint end)
{
    return !is_absent(serving.tree) && int(end) > sequence.position;
}

/* Whether a row sees a key, by the bits of its tree; keys before the drafts are seen. */
bool sees_draft(const in uint query, const in uint kv)
{
    int draft = int(kv) - sequence.position;
    if (draft < 0)
        return true;
    uint word = uint(draft) / 32u;
    if (word >= serving.tree_words)
        return false;
    uvec2 at = address_step(serving.tree.address, sequence.batch, serving.tree.stride[0]);
    at = address_step(address_step(at, sequence.row0 + query, serving.tree.stride[1]), word, serving.tree.stride[2]);
    return (Word(at).value >> (uint(draft) & 31u) & 1u) != 0u;
}

#endif

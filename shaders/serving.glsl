/* SPDX-License-Identifier: MIT */
/*
 * Calls over a cache: the sequence of a tile, and where its keys are. Kernels walk logical tiles of keys; pages are
 * translated for addresses alone, so that results do not depend on them. Included by forward_tile.glsl.
 */
#ifndef ATTUNE_SERVING_GLSL
#define ATTUNE_SERVING_GLSL

#include "sequence.glsl"

#ifndef KEYS_IN_REGISTERS
#include "layout_members.h"
#include "layout_serving.h"

const bool SHARES = MEMBERS > 1u;

uint parity = 0u; /* of the tile whose keys are loaded next */
#endif

/* Of the item: where its partial result is, its keys, and the sequences whose rows it has. */
uint slot = ATTUNE_VULKAN_NO_SLOT, first_key = 0u, end_key = 0xffffffffu, sequences = 1u;

/* From the number of a workgroup that of its tile. False where there is none; a schedule may hold anything. */
bool begin_item(inout uint index)
{
    serving = attune_vulkan_serving(args.serving);
    if (all(equal(serving.schedule, args.serving)))
        return true;
    attune_vulkan_schedule head = attune_vulkan_schedule(serving.schedule);
    uvec4 item = Uvec4(address_step(serving.schedule, min(index, serving.items - 1u) + 1u, uvec2(16u, 0u))).value;
    bool has_item = index < min(head.items, serving.items) && item.x < tile_count(args) &&
                    (item.z == ATTUNE_VULKAN_NO_SLOT || item.z < serving.slots);
    index = has_item ? item.x : 0u;
    slot = item.z;
    if (slot != ATTUNE_VULKAN_NO_SLOT) {
        first_key = item.y * head.part_keys;
        end_key = first_key + head.part_keys;
        sequences = item.w;
    }
    return has_item;
}

#ifndef KEYS_IN_REGISTERS
/* Finds the queries of a tile that has those of its sequence and of the ones after it, or those of its sequence from q0
 * on; coord then has their number. */
void gather_queries()
{
    const uint count = min(sequences, min(MEMBERS, args.batch - min(coord.b, args.batch))),
               room = min(args.q_step, MEMBERS);
    const Sequence own = sequence;
    const bool alone = count < 2u;
    for (uint j = gl_LocalInvocationIndex; j < count; j += THREADS) {
        begin_rows(coord.b + j);
        begin_length(coord.b + j);
        members[j] = uvec4(sequence.q_len, sequence.kv_len, sequence.token0, 0u);
    }
    sequence = own;
    barrier();
    uint end = 0u;
    for (uint j = 0u; j < count; j++) {
        uint first = end;
        end = min(first + min(alone ? coord.queries : members[j].x, room), room);
        for (uint i = first + gl_LocalInvocationIndex; i < end; i += THREADS)
            queries[i] = uvec2(j, (alone ? coord.q0 : 0u) + i - first);
    }
    barrier();
    coord.queries = end;
    coord.rows = coord.heads * end;
}

/* The sequence of a query of the tile; `member` receives its number after the tile's, and the row there. */
Sequence sequence_of(const in uint query, out uvec2 member)
{
    Sequence of = sequence;
    member = uvec2(0u, coord.q0 + query);
    if (SHARES) {
        member = queries[min(query, MEMBERS - 1u)];
        uvec4 lengths = members[min(member.x, MEMBERS - 1u)];
        bool packed = !is_absent(serving.q_start);
        of.batch = packed ? 0u : coord.b + member.x;
        of.q_len = lengths.x;
        of.kv_len = lengths.y;
        of.token0 = lengths.z;
        of.row0 = packed ? lengths.z : 0u;
        of.position = int(lengths.y) - int(lengths.x);
    }
    return of;
}
#endif

void begin_sequence()
{
    begin_rows(coord.b);
    begin_queries(args, coord, sequence.q_len);
    begin_length(coord.b);
    kv_len = sequence.kv_len;
    k_plane = address_step(args.k.address, coord.kv_h, args.k.stride_h);
    v_plane = address_step(args.v.address, coord.kv_h, args.v.stride_h);
#ifndef KEYS_IN_REGISTERS
    if (SHARES)
        gather_queries();
#endif
}

/* The tiles of a sequence begin at multiples of BLOCK_N of its keys. */
BlockIterator begin_keys()
{
    BlockIterator it = block_iterator_begin(uvec2(0u), 0u, (min(kv_len, end_key) + BLOCK_N - 1u) / BLOCK_N);
    it.block = max(sequence.kv_first, first_key) / BLOCK_N;
    return it;
}

/* The mask over some tiles of keys, from the first to before the last, and `count` queries of a sequence. */
ivec2 bound_member(const in uint tile, const in uint end, const in uint b, const in Sequence of, const in uint query,
                   const in uint count)
{
    int q = of.position + int(query), row = int(of.token0 + query), last = int(count) - 1;
    return attune_mask_bounds(int(b), ivec2(coord.h0, coord.h0 + coord.heads - 1u), ivec2(q, q + last),
                              ivec2(tile * BLOCK_N, min(end * BLOCK_N, kv_len) - 1u), args.mask_mod, int(of.q_len),
                              int(of.kv_len), ivec2(row, row + last));
}

/* And all queries of the tile. */
ivec2 bound_mask(const in uint tile, const in uint end)
{
#ifndef KEYS_IN_REGISTERS
    ivec2 all = ivec2(1, 0);
    for (uint i = 0u; i < coord.queries && (all.x != 0 || all.y == 0);) {
        uvec2 member;
        Sequence of = sequence_of(i, member);
        uint count = SHARES ? clamp(of.q_len - member.y, 1u, coord.queries - i) : coord.queries;
        ivec2 any = bound_member(tile, end, coord.b + member.x, of, member.y, count);
        all = ivec2(min(all.x, any.x), max(all.y, any.y));
        i += count;
    }
    return all;
#else
    return bound_member(tile, end, coord.b, sequence, coord.q0, coord.queries);
#endif
}

/* The next tile that the mask's bounds leave: of those that they do not, ever more are skipped at once. */
bool next_tile(inout BlockIterator it)
{
    bool more = block_iterator_next(it, kv_block, kv_len);
    if (!MASK)
        return more;
    bool grows = true;
    for (uint count = 1u; more;) {
        uint tile = it.row0 / BLOCK_N, end = min(tile + count, it.end);
        ivec2 any = bound_mask(tile, end);
        if (any.y != 0 && count == 1u) {
            it.kind = 1u - uint(any.x);
            break;
        }
        if (any.y != 0) {
            grows = false;
            count /= 2u;
        } else {
            it.row0 = end * BLOCK_N;
            it.block = end + 1u;
            more = end < it.end;
            count *= grows ? 2u : 1u;
        }
    }
    it.row_end = min(it.row0 + BLOCK_N, kv_len);
    return more;
}

/* The page of a key that the sequence has, and its row there. */
uvec2 key_of(const in uint kv)
{
    return kv < sequence.kv_first || kv >= kv_len ? uvec2(NO_PAGE, 0u) : place_of(coord.b, kv);
}

#ifndef KEYS_IN_REGISTERS
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
#endif

uvec2 k_row(const in uvec2 key)
{
    return address_step(address_step(k_plane, key.x, args.k.stride_b), key.y, k_stride);
}

uvec2 v_row(const in uvec2 key)
{
    return address_step(address_step(v_plane, key.x, args.v.stride_b), key.y, v_stride);
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
        group.low.z = has_blocks(type) ? block_factor(type, row, d) : factor_of(scale, coord.kv_h, key);
    }
    return group;
}

/* Whether a tile of keys that ends before `end` has drafts of a tree. */
bool sees_some(const in uint end)
{
    return !is_absent(serving.tree) && (sequence.position < 0 || end > uint(sequence.position));
}

/* Whether a row sees a key, by the bits of its tree; keys before the drafts are seen. */
bool sees_draft(const in Sequence of, const in uint query, const in uint kv)
{
    int draft = int(kv) - of.position;
    if (draft < 0)
        return true;
    uint word = uint(draft) / 32u;
    if (word >= serving.tree_words)
        return false;
    uvec2 at = address_step(serving.tree.address, of.batch, serving.tree.stride[0]);
    at = address_step(address_step(at, of.row0 + query, serving.tree.stride[1]), word, serving.tree.stride[2]);
    return (Word(at).value >> (uint(draft) & 31u) & 1u) != 0u;
}

#endif

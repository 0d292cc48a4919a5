# SPDX-License-Identifier: MIT
"""Faults that cases.py puts into kernels' sources, one at a time, each of which the model or the oracle must find: (a line as of a list of
cases, the file, its text, the text in its place, a part of what is said). tests/model/suite.c has more, of the rows of the case table."""

SHARED = 'of shared memory, which'
# Words of the oracles of the tables, of wrong values.
ORACLE = 'max error'
APPEND = r': .*, expected |other bits than|max error'
MERGE = r'case \d+: \d+ parts|in place of part|differences'

FAULTS = [
    # ------------------------------------------------------------------------------------------------------- forward
    # The scan warps look at V before it is loaded: a phase behind, their wait is over.
    ('sm=90 dtype=bf16 schedule=6 cases forward_cuda/causal_long_keys', 'config_forward_sm90.cuh', 'SCAN_RELEASES_V = SCANS_V;', 'SCAN_RELEASES_V = false;', SHARED),
    # ------------------------------------------------------------------------------------------------------- serving
    # A launch that may begin before its schedule is made does not wait for it.
    ('sm=90 case=group_5 cases serving_cases/cuda', 'serving_sm80.cu', '    wait_for_launches();\n', '', 'has not waited for the launches before'),
    # K is read before its copy is complete.
    ('case=pages_16 cases serving_cases/cuda', 'serving_sm80.cu', 'copy_wait<STAGES == 1 ? 0 : AHEAD - 1>();', '',
     'cp.async writes that its thread has not waited for'),
    # Each thread waits for its own copies and stores its own keys, and reads those of others.
    ('case=pages_16 cases serving_cases/cuda', 'serving_sm80.cu', 'absent_next[AHEAD - 1] = __syncthreads_or(some);', 'absent_next[AHEAD - 1] = some;',
     SHARED),
    # Tiles of keys take each other's places in the ring of their pages.
    ('case=window cases serving_cases/cuda', 'serving_sm80.cu', '*later = keys + ring_place(place, AHEAD);', '*later = keys + place;', SHARED),
    # A copy ahead goes to the stage that is computed.
    ('case=window cases serving_cases/cuda', 'serving_sm80.cu', 'u32 free_stage = stage == 0 ? STAGES - 1 : stage - 1;', 'u32 free_stage = stage;',
     SHARED),
    # The last tile's operands are overwritten by O while they are read.
    ('case=pages_16 cases serving_cases/cuda', 'serving_sm80.cu', '            copy_wait<0>();\n            __syncthreads();\n            save_groups(',
     '            copy_wait<0>();\n            save_groups(', SHARED),
    # P of the other warps is read before it is stored.
    ('case=absorbed cases serving_cases/cuda', 'serving_sm80.cu', '                    __syncthreads();\n                    load_p(all, p);',
     '                    load_p(all, p);', SHARED),
    # Every key is in the sequence's first page.
    ('case=pages_16 cases serving_cases/cuda', 'serving_keys.cuh', 't.table[entry * t.entry_stride]', 't.table[0]', ORACLE),
    # K and V are stored with the swizzle of the row beside.
    ('case=pages_16 cases serving_cases/cuda', 'serving_loads.cuh', 'copy_chunk(to + chunk_offset<CHUNKS>(row, chunk + i)',
     'copy_chunk(to + chunk_offset<CHUNKS>(row ^ 1, chunk + i)', ORACLE),
    # A row sees its neighbour's drafts.
    ('case=tree cases serving_cases/cuda', 'serving_tile.cuh', 'words[draft / 32 * s.tree.stride[2]] >> draft % 32', 'words[draft / 32 * s.tree.stride[2]] >> (draft + 1) % 32',
     ORACLE),
    # Blocks of 32 codes have the first one's factor.
    ('case=q8_0 cases serving_cases/cuda', 'serving_loads.cuh', 'factors[row * FACTORS + chunk / 4] = x[r][i].factor;', 'factors[row * FACTORS] = x[r][i].factor;',
     ORACLE + '|' + SHARED),
    # The CTA that is last but one adds the parts.
    ('case=split_few cases serving_cases/cuda', 'serving_parts.cuh', 'atomicAdd(counter, 1) == t.parts - 1;', 'atomicAdd(counter, 1) == t.parts - 2;', ORACLE),
    ('case=ragged cases serving_cases/cuda', 'serving_parts.cuh', '(u32 *)counter, 1) == t.parts - 1;', '(u32 *)counter, 1) == t.parts - 2;', ORACLE),
    # Counters of finished parts are left for the next call.
    ('case=split_few cases serving_cases/cuda', 'serving_parts.cuh', '        if (last)\n            *counter = 0;\n    }\n    last', '    }\n    last',
     'other bits from other pages|' + ORACLE),
    ('case=ragged cases serving_cases/cuda', 'serving_parts.cuh', '            if (last)\n                *counter = 0;', '', 'other bits from other pages|' + ORACLE),
    # Parts overwrite each other's partial results.
    ('case=split_few cases serving_cases/cuda', 'serving_parts.cuh', '(u64)(t.slot + part) * PART_BYTES', '(u64)t.slot * PART_BYTES', ORACLE),
    # A warp of the schedule reads another one's choice before it is stored.
    ('case=split_few cases serving_cases/cuda', 'serving_schedule.cuh', '        of_warps[threadIdx.x / 32] = found;\n    __syncthreads();',
     '        of_warps[threadIdx.x / 32] = found;', SHARED),
    # A CTA leaves out an item when it takes its second one.
    ('case=ragged cases serving_cases/cuda', 'serving_schedule.cuh', 'return grid + (u32)taken;', 'return grid + (u32)taken + 1;', ORACLE),
    # The items that were taken are left for the next call.
    ('case=ragged cases serving_cases/cuda', 'serving_schedule.cuh', '        schedule->taken = 0;', '        ;', 'other bits from other pages|' + ORACLE),
    # An entry of the block table is not left after its last row.
    ('case=ragged cases serving_cases/cuda', 'serving_loads.cuh', '            n.entry[i]++;', '            ;', 'other bits from pages|' + ORACLE),
    # Over a cache with wgmma: keys are copied, and no fence is between them and the products.
    ('sm=90 case=pages_1 cases serving_cases/cuda', 'producer_serving_sm90.cuh', '        fence_async();\n', '', 'without a fence of the asynchronous proxy'),
    # A stage is committed before its copies are complete.
    ('sm=90 case=pages_1 cases serving_cases/cuda', 'producer_serving_sm90.cuh', '    copy_wait<in_flight::COUNT>();\n', '', SHARED),
    # V's products do not wait for V.
    ('sm=90 case=count cases serving_cases/cuda', 'narrow_serving_sm90.cuh', '    /* 2: wait for the last V */\n    consumer_wait<&control::v>(c, v);\n', '', SHARED),
    # K is released before its product is complete.
    ('sm=90 case=prompt_window cases serving_cases/cuda', 'narrow_serving_sm90.cuh',
     '        wgmma_wait<1>(); /* S is done, O may not be */\n        accumulators_done(x);\n        consumer_release<&control::k>(c, k);',
     '        consumer_release<&control::k>(c, k);\n        wgmma_wait<1>();\n        accumulators_done(x);', SHARED),
    # Producers begin to read a tile of rows before it is stored.
    ('sm=90 case=count cases serving_cases/cuda', 'producer_serving_sm90.cuh', '        named_sync<BARRIER_PRODUCERS, sm90::PRODUCERS>();\n', '', SHARED),
    # Boxes are loaded from the page of the warp's first key.
    ('sm=90 case=count cases serving_cases/cuda', 'producer_serving_sm90.cuh', 'key.page = __shfl_sync(0xffffffffu, key.page, mine.source);',
     'key.page = __shfl_sync(0xffffffffu, key.page, 0);', ORACLE),
    # Both warp groups compute the same columns of wide values.
    ('sm=90 case=latent_prompt cases serving_cases/cuda', 'stages_serving_sm90.cuh', '/ 128 * sm90::COLUMNS : 0', '/ 128 * 0 : 0', ORACLE + '|' + SHARED),
    # They take their own sums or maxima for the other one's, or multiply its P without a fence, or keys lie as those of narrow heads.
    ('sm=90 case=latent_parts cases serving_cases/cuda', 'wide_serving_sm90.cuh', 'load_rows(other, row_places(memory, group ^ 1, 1))', 'load_rows(other, row_places(memory, group, 1))', ORACLE),
    ('sm=90 case=latent_prompt cases serving_cases/cuda', 'wide_serving_sm90.cuh', 'load_rows(most, row_places(w.memory, w.group ^ 1, 0))', 'load_rows(most, row_places(w.memory, w.group, 0))', ORACLE + '|' + SHARED),
    ('sm=90 case=latent_prompt cases serving_cases/cuda', 'wide_serving_sm90.cuh', '    fence_async();\n    named_arrive', '    named_arrive', SHARED),
    ('sm=90 case=latent_prompt cases serving_cases/cuda', 'producer_serving_sm90.cuh', 'row_offset<sm90::KV_KEYS>(first)', 'first * 128', ORACLE + '|' + SHARED),
    # Their V replaces K before S is done.
    ('sm=90 case=absorbed_apart cases serving_cases/cuda', 'producer_serving_sm90.cuh', 'v.phase ^ (u32)sm90::WIDE', 'v.phase', SHARED + '|' + ORACLE),
    # A row's drafts are those of the word beside.
    ('sm=90 case=tree cases serving_cases/cuda', 'scores_serving_sm90.cuh', '(u32)draft & 31);', '(u32)draft & 30);', ORACLE),
    # Elements that a forbidden pair made NaN are kept.
    ('sm=90 case=sinks_nan cases serving_cases/cuda', 'results_serving_sm90.cuh', '    if (!__any_sync(0xffffffffu, bad & 15))', '    if (true)', ORACLE + '|NaN|nan|pattern'),
    # Rows of a group read the queries of its first sequence.
    ('case=gather_tree cases serving_cases/cuda', 'serving_sm80.cu', 'base = rows_of_q(a, sequence_of(a, t, t.row + row));', 'base = rows_of_q(a, t);', ORACLE),
    # A sequence has the partial results of the one whose items have the parts that it shares.
    ('case=gather_tree cases serving_cases/cuda', 'serving_groups.cuh', '(query0 - of.query0) * (a.heads / a.kv_heads)', '0', ORACLE),
    # Rows that do not see a NaN, and whose own tiles do not read it, have it from those that do.
    ('case=gather_nan cases serving_cases/cuda', 'serving_groups.cuh', 'if (t.members == 1)\n            return false;', 'return false;',
     'other bits where sequences share keys'),
    # Rows of a group are looked up before they are stored.
    ('case=gather_tree cases serving_cases/cuda', 'serving_groups.cuh', '            t = found;\n        __syncthreads();', '            t = found;', SHARED),
    # ------------------------------------------------------------------------------------------------------- append
    # A warp reads what the others found before they have stored it.
    ('case=f32 cases append/cuda', 'append.cu', '        of_warps[threadIdx.x / 32] = found;\n    __syncthreads();',
     '        of_warps[threadIdx.x / 32] = found;', SHARED + '|where no buffer is'),
    # A lane rotates columns that another one has not yet loaded.
    ('case=rope_interleaved cases append/cuda', 'append.cu', '    row += a.rotary_first;\n    __syncwarp();', '    row += a.rotary_first;', SHARED),
    # Rows go to the sequence's first page.
    ('case=rope cases append/cuda', 'append.cu', 't.table[entry * t.entry_stride]', 't.table[0]', APPEND),
    # The halves of a row are rotated as if neighbours were pairs.
    ('case=rope cases append/cuda', 'append.cu', 'first + (a.interleaved ? 1 : a.pairs)', 'first + 1', APPEND + '|' + SHARED),
    # A row's factor is that of its first 32 columns.
    ('case=i8_rows cases append/cuda', 'append.cu', '            for (int c = lane; c < COUNT; c += 32)\n                most',
     '            for (int c = lane; c < 32; c += 32)\n                most', APPEND),
    # The two codes of a byte are of one element.
    ('case=q4_0 cases append/cuda', 'append.cu', '__shfl_sync(0xffffffffu, code, lane % 16 + 16)', '__shfl_sync(0xffffffffu, code, lane % 16)', APPEND),
    # ------------------------------------------------------------------------------------------------------- merge
    # The LSE overwrites that of a part before all lanes have read it.
    ('scale=0.1 api merge/cuda', 'merge.cu', '    __syncwarp();\n    if (lane == 0 && a.lse.address)', '    if (lane == 0 && a.lse.address)', MERGE),
    # Every part is the first one: rows of any layout, and vectors.
    ('scale=0.1 api merge/cuda', 'merge.cu', 'load2(a.parts[i].o, row_of(a.parts[i].o, p), c, both)', 'load2(a.parts[i].o, row_of(a.parts[0].o, p), c, both)', MERGE),
    ('scale=0.1 api merge/cuda', 'merge_forward.cu', 'chunks[i] = load_chunk<TYPE>(a.parts[i].o,', 'chunks[i] = load_chunk<TYPE>(a.parts[0].o,', MERGE),
    # A lane leaves out the last exchange of a sum.
    ('scale=0.1 api merge/backward_cuda', 'merge.cu', 'for (int step = 16; step; step /= 2)', 'for (int step = 16; step > 1; step /= 2)', MERGE),
    ('scale=0.1 api merge/backward_cuda', 'merge_backward.cu', 'for (int step = 1 << a.lane_bits >> 1; step; step /= 2)', 'for (int step = 1 << a.lane_bits >> 2; step; step /= 2)', MERGE),
    # Of splits of several devices: weights before all states are there, other splits' results, and half of their sum.
    ('distributed distributed_decode_two/model', 'merge.cu', '    __syncthreads();\n    float m = EMPTY, sum', '    float m = EMPTY, sum', SHARED),
    ('distributed distributed_decode_two/model', 'merge.cu', 'index = split - part * a.split;', 'index = 0;', 'rank'),
    ('distributed distributed_decode_two/model', 'merge.cu', 'i < SPLIT_WARPS; i++)\n        value', 'i < SPLIT_WARPS / 2; i++)\n        value', 'rank'),
    # ------------------------------------------------------------------------------------------------------- mask lists
    # A warp adds the others' counts before they are stored.
    ('scale=0.2 api mask_tensor/cuda', 'mask_lists.cu', '            of_warps[warp] = sum;\n        __syncthreads();', '            of_warps[warp] = sum;', SHARED),
    # Columns of blocks are read as rows.
    ('scale=0.2 api mask_tensor/cuda', 'mask_lists.cu', 'r.step = columns ? a.kv_blocks : 1;', 'r.step = 1;', 'differs|where no buffer is'),
    # Lanes leave gaps in a list.
    ('scale=0.2 api mask_tensor/cuda', 'mask_lists.cu', 'partial[__popc(partials & below)] = block;', 'partial[lane] = block;', 'differs|where no buffer is'),
    # Partial blocks are listed as full ones.
    ('scale=0.2 api mask_tensor/cuda', 'mask_lists.cu', 'any_forbidden ? PARTIAL : FULL', 'any_forbidden ? FULL : PARTIAL', 'differs'),
    # ------------------------------------------------------------------------------------------------------- decode
    # K is read before its copy is complete, or before those of other threads are.
    ('dtype=f16 cases forward_cuda/decode_few', 'decode_sm80.cu', 'copy_wait<STAGES == 1 ? 0 : 2 * (AHEAD - 1)>();', '',
     'cp.async writes that its thread has not waited for'),
    ('dtype=f16 cases forward_cuda/decode_few', 'decode_sm80.cu', '(AHEAD - 1)>();\n        __syncthreads();', '(AHEAD - 1)>();', SHARED),
    # The splits' rows of values past 256 columns are as far apart as one launch's columns.
    ('sm=80 dtype=f16 cases forward_cuda/head_512_split', 'decode_sm80.cu', 'o[(i64)part * config::O_COLUMNS + d]', 'o[(i64)part * HEAD_DIM_V + d]', ORACLE),
    # O overwrites operands that are read.
    ('dtype=f16 cases forward_cuda/decode_few', 'decode_sm80.cu', '    __syncthreads();\n    p = part_of(', '    p = part_of(', SHARED),
    # A split begins with blocks of the one before.
    ('dtype=f16 cases forward_cuda/lists_of_heads_full', 'decode_sm80.cu', '        list_skip(w.left.full, w.left.fulls, p.step);', '', ORACLE),
    # Splits overwrite each other's partial results.
    ('dtype=f16 cases forward_cuda/lists_of_heads_full', 'decode_sm80.cu', '* parts.split + p.index;', '* parts.split;', ORACLE),
    # Key terms of this tile are those of the next.
    ('dtype=bf16 cases forward_cuda/decode_keys', 'decode_sm80.cu', '        store_terms(next_key_terms, terms + terms_offset);', '        store_terms(next_key_terms, terms);', ORACLE + '|' + SHARED),
    # --------------------------------------------------------------------------------------------------- correction
    # P V does not wait for the correction.
    ('sm=100 kernel=cuda_sm100a dtype=f16 cases forward_cuda/dense_128', 'forward_sm100.cu', '4 * ARRIVALS + CORRECTION);', '4 * ARRIVALS);',
     'tensor memory, which|more than 4 arrivals|mbarrier'),
    # The softmax adds infinities of V to O before the correction has rescaled it.
    ('sm=100 kernel=cuda_sm100a dtype=f16 cases forward_cuda/two_block_rows_nan_seen', 'forward_sm100.cu',
     '        producer_acquire<&group_control::rows>(own, passed);\n        tmem_fence_after();', '', 'tensor memory, which'),
    # ------------------------------------------------------------------------------------------- tiles of a capture
    # Elements are read before their copies are complete, or before those of other lanes are.
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'captures_sm90.cuh', '    copy_wait<1>();', '    copy_wait<2>();',
     'cp.async writes that its thread has not waited for'),
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'captures_sm90.cuh', '    copy_wait<1>();\n    __syncwarp();', '    copy_wait<1>();', SHARED),
    # A tile is copied over the one that is read, or before other lanes have read it.
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'captures_sm90.cuh', '    advance(next);\n', '', SHARED + '|' + ORACLE),
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias_one_stage', 'captures_sm90.cuh', '    __syncwarp();\n    if (kv >= 0) {', '    if (kv >= 0) {', SHARED),
    # A tile is copied a second time in place of the next one.
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'captures_sm90.cuh', 'captures_of(c).next[k.stage], next);', 'c.key_tiles[k.stage].index, next);',
     ORACLE + '|which a cp.async writes'),
    # The rows of a lane are neighbours, or have the elements of the query tile before.
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias_masked', 'captures_sm90.cuh', 't.step = stride * ROWS_AT_ONCE;', 't.step = stride;', ORACLE),
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'forward_sm90.cu', '                find_capture_rows(captured, a, c.query_tiles[r.stage].coord);\n', '', ORACLE),
    # Elements are read where the swizzle of another row has them.
    ('sm=90 dtype=bf16 cases forward_cuda/pair_bias', 'scores_sm90.cuh', '(bytes % 128 ^ swizzle)', 'bytes % 128', ORACLE),
    # Rows that are out of range have elements.
    ('sm=90 dtype=f16 cases forward_cuda/pair_bias_unaligned', 'capture_copies.cuh', 'bool there = first + i < count;', 'bool there = true;',
     ORACLE + '|outside|where no buffer is'),
    # In a fixed order, the first rows' blocks of all heads but the last are loaded before the others.
    ('sm=90 dtype=f16 cases gradients_cuda/causal_long_keys', 'producer_backward_sm90.cuh', 'it.h < it.h_end; it.h++)\n                    load_query_tile', 'it.h < it.h_end - 1; it.h++)\n                    load_query_tile', ORACLE + '|never'),
    # A tile of keys is left out, and another one computed twice, where a mask has an order of them.
    ('sm=90 dtype=f16 cases gradients_cuda/causal_backwards', 'layout_backward_sm90.cuh', '+ block] - block) << two', '+ block] / 2 * 2 - block) << two', ORACLE),
    # Backward: elements are read before their copies are complete, or before those of other lanes are.
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_bias', 'captures_backward_sm90.cuh', '    copy_wait<0>();', '    copy_wait<1>();',
     'cp.async writes that its thread has not waited for'),
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_sums_even', 'captures_backward_sm90.cuh', '    copy_wait<0>();\n    __syncwarp();', '    copy_wait<0>();', SHARED),
    # It is the tile of the first rows again.
    ('sm=90 dtype=f16 cases gradients_cuda/pair_bias', 'captures_backward_sm90.cuh', 'desc.q + i * 32 + lane', 'desc.q % 64 + i * 32 + lane', ORACLE),
    # Elements are read from another half of a row, or from the row beside.
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_bias_masked', 'captures_backward_sm90.cuh', 'pair % 2 : pair / 2', 'pair % 2 : pair % 2', ORACLE),
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_sums_beside', 'captures_backward_sm90.cuh', 'own / 4 % 2 : 0', '0 : 0', ORACLE),
    # ------------------------------------------------------------------------------------------- backward, sums, sinks
    # Sums over rows leave out the last exchange of lanes.
    ('dtype=f32 cases gradients_cuda/head_8', 'delta.cu', 'for (int step = 16; step; step /= 2)\n            sum += __shfl_xor', 'for (int step = 16; step > 1; step /= 2)\n            sum += __shfl_xor', ORACLE),
    # A sink's gradient is added before all warps have stored theirs.
    ('dtype=f32 cases gradients_cuda/sinks_alone', 'delta.cu', '    __syncthreads();\n    if (threadIdx.x)\n        return;', '    if (threadIdx.x)\n        return;', SHARED),
    # The inner tiles' stage is overwritten while it is multiplied.
    ('kernel=cuda_sm80 dtype=f32 cases gradients_cuda/head_8', 'backward_sm80.cu', '            __syncthreads();\n            load_inner(tile, data, a, back, next);', '            load_inner(tile, data, a, back, next);', SHARED),
    # A derivative is that of the score before its expression.
    ('kernel=cuda_sm80 dtype=f32 cases gradients_cuda/many_key_terms', 'backward_sm80.cu', 'dp[r][n][i] *= attune_score_slope', 'dp[r][n][i] *= 1.0f + 0.0f * attune_score_slope', ORACLE),
    # P and dS of the other warp group are read before they are stored.
    ('sm=90 dtype=bf16 cases gradients_cuda/head_192_128', 'wide_backward_sm90.cuh', '            consumers_sync();', '', SHARED),
    # They are stored, and read by wgmma, without a fence.
    ('sm=90 dtype=bf16 cases gradients_cuda/head_192_128', 'wide_backward_sm90.cuh', '            fence_async();\n            consumers_sync();', '            consumers_sync();',
     'without a fence of the asynchronous proxy'),
    # Ordered tiles wait for the wrong one.
    ('sm=90 dtype=f16 cases gradients_cuda/causal_long_keys', 'ordered_sums.cuh', 'bulk_wait_release(word, tile + 1);', 'bulk_wait_release(word, tile);', 'never'),
    # Sums in float32 are read as exact ones.
    ('sm=90 dtype=f16 cases gradients_cuda/pair_bias', 'delta.cu', 's.to[i].is_float ?', '!s.to[i].is_float ?', ORACLE),
    # The lanes that exchange gradients of pairs have no adjacent keys, or give each other's pairs away; their rows and keys change places.
    ('sm=90 dtype=f16 cases gradients_cuda/pair_bias', 'capture_gradients_sm90.cuh', 'upper ? x[i] : x[i + 2], 8);', 'upper ? x[i] : x[i + 2], 16);', ORACLE),
    ('sm=90 dtype=f16 cases gradients_cuda/pair_sums_even', 'capture_gradients_sm90.cuh', 'odd ? x[i] : x[i + 1], 4);', 'odd ? x[i + 1] : x[i], 4);', ORACLE),
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_bias_masked', 'capture_gradients_sm90.cuh', 't.kv - own + own / 2 * 8;', 't.kv - own + own % 2 * 8;', ORACLE),
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_sums_wide', 'capture_gradients_sm90.cuh', 'i * 4) * 2 + own % 2;', 'i * 4) * 2 + own / 2;', ORACLE),
    # The vectors of a thread are its first ones again.
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_sums_long', 'capture_gradients_sm90.cuh', '        rotate_chunks<CHUNK>(d);', '        rotate_chunks<S_FRAGMENT>(d);', ORACLE),
    # Vectors are added to rows without padding, or to rows behind the capture; padding is read as elements.
    ('sm=90 dtype=bf16 cases gradients_cuda/pair_sums_odd', 'prelude.cuh', '((v->size[RANK - 1] + 3) & ~3ll)', 'v->size[RANK - 1]', 'which is no multiple of them'),
    ('sm=90 dtype=f16 cases gradients_cuda/pair_sums_narrow', 'capture_gradients_sm90.cuh', 'if (at >= 0 && (x[0]', 'if ((x[0]',
     'which is no multiple of them'),
    ('sm=90 dtype=f16 cases gradients_cuda/pair_sums_even', 'delta.cu', '.sums)[element + before]', '.sums)[element]', ORACLE),
    # Lanes of a row take each other's shares of a capture's gradient.
    ('sm=90 dtype=f16 cases gradients_cuda/half_bias', 'capture_gradients_sm90.cuh', 'upper ? x[i] : x[i + HALF], STEP', 'upper ? x[i + HALF] : x[i], STEP', ORACLE),
]

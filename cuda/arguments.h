/* SPDX-License-Identifier: MIT */
/*
 * The kernels' parameters. The C compiler of the host and NVRTC both read this file, so that it includes nothing and
 * uses only types whose layout both agree on.
 *
 *     file             entry point              family       kernel parameters, all by value
 *     forward_sm80.cu  attune_forward_sm80      cuda_sm80    attune_cuda_arguments
 *     decode_sm80.cu   attune_decode_sm80       cuda_sm80    attune_cuda_arguments, attune_cuda_parts
 *                      attune_combine_sm80      the same     the same; only with more than one part
 *     serving_sm80.cu  attune_serving_sm80      cuda_sm80    attune_cuda_arguments, attune_cuda_serving
 *                      attune_schedule          the same     the same; only with ATTUNE_PARTS
 *     serving_sm90.cu  attune_serving_sm90      cuda_serving_sm90a   the same, CUtensorMap k, v; attune_schedule too
 *     forward_sm90.cu  attune_forward_sm90      cuda_sm90a   attune_cuda_arguments, CUtensorMap q, k, v
 *     forward_sm100.cu attune_forward_sm100     cuda_sm100a  the same
 *     delta.cu         attune_delta             all          attune_cuda_arguments, attune_cuda_backward
 *                      attune_sums              the same     attune_cuda_sums; only with capture gradients
 *                      attune_sinks             the same     as attune_delta; only with gradients of sinks
 *     backward_sm80.cu attune_backward_sm80     cuda_sm80    attune_cuda_arguments, attune_cuda_backward
 *     backward_atomic_sm80.cu attune_backward_atomic_sm80, attune_backward_dq_sm80   cuda_sm80_atomic   the same
 *     backward_sm90.cu attune_backward_sm90     cuda_sm90a   the same, CUtensorMap q, k, v, d_o
 *                      attune_backward_dq_sm90  the same     attune_cuda_arguments, attune_cuda_backward; for clusters
 *     backward_sm100.cu attune_backward_sm100   cuda_sm100a  the same, CUtensorMap q, k, v, d_o
 *     append.cu        attune_append            all          attune_cuda_append, attune_cuda_serving
 *     merge*.cu        attune_merge, attune_merge_backward, and the same with _TYPE_PARTS
 *                                               all          attune_cuda_merge
 *     mask_lists.cu    attune_mask_classify, attune_mask_offsets, attune_mask_indices
 *                                               all          attune_cuda_mask_lists
 *     measure.cu       attune_measure           all          u32 iterations, u64 result
 *
 * A source is specialised with -D (config.cuh has the defaults):
 *
 *     ATTUNE_DTYPE           ATTUNE_CUDA_F16, ATTUNE_CUDA_BF16 or ATTUNE_CUDA_F32 (sm80 only)
 *                            of k and v, and of the operands of the products
 *     ATTUNE_Q_DTYPE         likewise, of q, for forward_sm80; default ATTUNE_DTYPE
 *     ATTUNE_O_DTYPE         likewise, of the outputs: o, or d_q, d_k and d_v; only ATTUNE_DTYPE, the default, or
 *                            ATTUNE_CUDA_F32 with sm90 and sm100, and in backward
 *     ATTUNE_HEAD_DIM, ATTUNE_HEAD_DIM_V     of the problem; kernels pad them
 *     ATTUNE_BLOCK_M, ATTUNE_BLOCK_N, ATTUNE_NUM_WARPS, ATTUNE_NUM_STAGES     the tile
 *     ATTUNE_PADDING         backward_atomic_sm80: head dimensions are padded to a multiple of it, in shared memory and
 *                            in the sums of dQ; default 16
 *     ATTUNE_SHARED_MEMORY   the planner's size, which the kernel asserts for its layout
 *     ATTUNE_HAVE_BLOCKS     1: the mask's lists are given; 0: every pair
 *     ATTUNE_HAVE_MASK       1: partial blocks call attune_mask (only with ATTUNE_HAVE_BLOCKS); 0: there are none
 *     ATTUNE_HAVE_MASK_RANGE 1: partial blocks call attune_mask_range instead of attune_mask; with both, where the
 *                            argument mask_ranges is set (sm90 only)
 *     ATTUNE_HAVE_MASK_COLUMNS  backward_sm90, 1: attune_mask_rows may be called where attune_mask_range may
 *     ATTUNE_DETERMINISTIC   backward_sm90, 1: dQ is accumulated in a fixed order
 *     ATTUNE_CLUSTER         backward_sm90, 2: a cluster of two CTAs computes a tile of keys; default 1
 *     ATTUNE_MASK_CHUNKS, SCORE_CHUNKS, DESCENDING, LATE_HOOK, LATE_DP, LATE_CAPTURES, LATE_DELTA, EARLY_DQ,
 *     FUSED_GRADIENTS, HALF_TILES, REMATERIALISE    how expressions are computed, and the order of stages that the
 *                            registers allow (attune__variant in src/plan/plan.h); default 0
 *     ATTUNE_SCORE_CHUNK, FIRST_SCORE_CHUNK  forward_sm90, forward_sm100: scores of a thread that are computed at once
 *                            (likewise); default 0, all, and 8
 *     ATTUNE_TREE            serving_sm80, 1: the call may have a tree over drafts
 *     ATTUNE_K_TYPE, ATTUNE_V_TYPE           serving_sm80: types of the cache; default ATTUNE_DTYPE. Others are
 *                            converted to it as they are read
 *     ATTUNE_PARTS           serving_sm80, 1: a schedule says in how many parts the keys of a sequence are computed
 *     ATTUNE_SPLIT_KEYS      serving_sm80 with ATTUNE_PARTS: parts begin at its multiples, and the schedule says which
 *                            sequences have a CTA for each; default 0
 *     ATTUNE_SHARES          serving_sm80 with ATTUNE_PARTS, 1: a tile may have rows of several sequences that share
 *                            keys; without ATTUNE_SPLIT_KEYS parts begin at multiples that the schedule says
 *     ATTUNE_SAVED_STATE     decode_sm80, 1: row maxima and sums are in shared memory while O accumulates
 *     ATTUNE_SERIAL_COLUMNS  backward_sm80 with ATTUNE_DK_DV, 1: scores are evaluated one fragment of columns after
 *                            another
 *     ATTUNE_SINKS           forward, decode and serving, 1: calls may have sinks
 *     ATTUNE_HAVE_SCORE      1: every pair calls attune_score
 *     ATTUNE_HAVE_CAPTURE_GRADIENTS     backward, 1: capture gradients may be requested
 *     ATTUNE_DK_DV           backward_sm80, 1: the kernel for dK and dV, with the tile BLOCK_M1 x BLOCK_N1;
 *                            0: the kernel for dQ and capture gradients, with the tile BLOCK_M2 x BLOCK_N2
 *     ATTUNE_SEPARATE_DK_DV  backward_sm80 with ATTUNE_DK_DV, 1: separate CTAs compute dV and dK
 *
 * With ATTUNE_HAVE_MASK, ATTUNE_HAVE_MASK_RANGE or ATTUNE_HAVE_SCORE the host gives NVRTC a header "mods.cuh": the
 * prelude and then the functions
 *
 *     int attune_mask(int b, int h, int q, int kv, int h_kv, int q_len, int kv_len, float score ATTUNE_SYMBOLS)
 *     float attune_score(the same)
 *     void attune_mask_range(int b, int h, int q, int h_kv, int q_len, int kv_len, int *low, int *high ATTUNE_SYMBOLS)
 *
 *     void attune_mask_key_terms, attune_mask_row_terms, int attune_mask_of (src/expr/print.h), and the same of
 *     attune_score and attune_score_slope, and attune_score_near_of, with ATTUNE_MASK_KEYS, ATTUNE_SCORE_KEYS and
 *     ATTUNE_SLOPE_KEYS, which are how many terms of keys there are; ATTUNE_MASK_ROWS and so on: how many of rows
 *     void attune_mask_rows(int b, int h, int kv, the same), with ATTUNE_HAVE_MASK_COLUMNS
 *
 *     float attune_score_near(as attune_score), with ATTUNE_HAVE_SCORE_NEAR: the near-zero form, valid where
 *                                              |score| <= ATTUNE_SCORE_NEAR, or always if undefined
 *
 *     float attune_score_slope(as attune_score): d attune_score / d score, in backward kernels
 *     float attune_score_slope_near(as attune_score), in backward kernels with ATTUNE_HAVE_SCORE_NEAR: likewise
 *     ATTUNE_CAPTURE_READS(X): X(i, symbol, kind) for each read of a floating-point capture, in backward kernels with
 *                      ATTUNE_HAVE_CAPTURE_GRADIENTS; then
 *     ATTUNE_CAPTURE_READS_IN_ORDER(i): whether consecutive keys of a row read consecutive elements
 *     float attune_capture_read_<i>(as attune_score): d attune_score / d element read
 *     attune_index attune_capture_read_<i>_at(as attune_score): the row-major index of the element read; -1 = none
 *     attune_index attune_capture_read_<i>_padded_at(as attune_score): likewise where rows have a multiple of four
 *                      elements
 *
 * where ATTUNE_SYMBOLS is `, const attune_cuda_symbol *symbols, int kv0 = 0, int row0 = 0`. Row q may attend low <= kv
 * < high, or to key kv the rows low <= q < high. The text must be compiled without contraction (--fmad=false): the
 * kernels name every fused operation.
 *
 * Launch of decode: a grid of split * tiles of packed rows * heads / packed * batch, the split as the fastest index;
 * combine: a grid of batch * heads * q_len, any number of threads, no shared memory. With attune_cuda_parts.clustered a
 * cluster has the CTAs of a split, and combine is not launched.
 *
 * Launch over a cache: any grid, whose CTAs take further tiles in strides of it; with ATTUNE_SPLIT_KEYS or
 * ATTUNE_SHARES at most attune_cuda_serving.resident. attune_schedule has one CTA of 256 threads.
 *
 * Launch of backward: attune_delta with a block of 256 threads for each 32 rows of [batch * heads * row_stride], which
 * also clears the sums; then the kernels: for dQ with attune_cuda_arguments.partial and full, for dK and dV with
 * tiles of keys * kv_heads * kv_batch blocks, twice as many with ATTUNE_SEPARATE_DK_DV; then attune_sums with 256
 * threads for each 256 elements, and attune_sinks with 256 threads and 64 bytes of shared memory for each head.
 *
 * Launch of forward: blocks of 32 * ATTUNE_NUM_WARPS threads, the planner's bytes of dynamic shared memory, and a grid
 * of attune_cuda_tiles(). forward_sm90 may be launched with fewer blocks, as many as are resident at once: then
 * each takes further tiles, from `counter` if it is set, else in strides of the grid.
 */
#ifndef ATTUNE_CUDA_ARGUMENTS_H
#define ATTUNE_CUDA_ARGUMENTS_H

#define ATTUNE_CUDA_F16  1
#define ATTUNE_CUDA_BF16 2
#define ATTUNE_CUDA_F32  3
/* Of keys and values in a cache. */
#define ATTUNE_CUDA_F8E4M3 4
#define ATTUNE_CUDA_F8E5M2 5
#define ATTUNE_CUDA_I8     6
#define ATTUNE_CUDA_Q8_0   7
#define ATTUNE_CUDA_Q4_0   8

#define ATTUNE_CUDA_SYMBOLS 16

/* A tensor [batch][head][row][contiguous]; strides in elements. 0 where a dimension is broadcast. */
typedef struct attune_cuda_view {
    unsigned long long address;
    long long batch, head, row;
} attune_cuda_view;

/* A capture (of rank up to 4, strides in elements), or a parameter in the first bytes of `address`. */
typedef struct attune_cuda_symbol {
    union {
        unsigned long long address;
        int i32;
        float f32;
    } is;
    long long size[4], stride[4];
    /* int32 pairs, one for each element: the run of equal elements of the last dimension that it is in. 0 if
     * equal elements are not contiguous. */
    unsigned long long runs;
} attune_cuda_symbol;

/* Block lists in compressed rows, as in src/mask: row r holds indices[offsets[r]] .. indices[offsets[r + 1] - 1],
 * ascending. Addresses of int64 and int32. */
typedef struct attune_cuda_list {
    unsigned long long offsets, indices;
} attune_cuda_list;

typedef struct attune_cuda_arguments {
    attune_cuda_view q, k, v, o;   /* k and v with kv_batch 1: stride 0 */
    attune_cuda_view lse, row_max; /* float, no last dimension; address 0 = not stored */
    int batch, heads, kv_heads, q_len, kv_len;
    float scale;

    /* The mask: row (b * batch_rows + h * head_rows + block row) of both lists. */
    attune_cuda_list partial, full;
    long long mask_batch_rows, mask_head_rows; /* 0 where the lists broadcast */
    int q_block, kv_block;                     /* multiples of the tile */
    /* attune_mask is evaluated at (b + b0, h + h0, q + q0), with the group, q_len and kv_len of the whole problem. */
    int b0, h0, q0, mask_group, mask_q_len, mask_kv_len;
    int mask_ranges; /* attune_mask_range may be called: the runs of its captures are given */
    int is_partial;  /* a merge follows: a row whose scores are all -inf keeps its unnormalised O, 0 or NaN */

    /* Optional, int32 [tiles]: the order in which tiles are taken, longest first. 0 = the last rows of each head first
     * with lists, the first rows first without. A tile is (b * heads + h) * row tiles + row tile. */
    unsigned long long order;
    /* Optional, forward_sm90: two int32, zero before the launch and again after it; one pair for each stream. */
    unsigned long long counter;

    attune_cuda_symbol mask_symbols[ATTUNE_CUDA_SYMBOLS], score_symbols[ATTUNE_CUDA_SYMBOLS];

    /* Optional, with ATTUNE_SINKS, and for attune_sinks: float, the logit of each head. */
    unsigned long long sinks;
    long long sinks_head;
} attune_cuda_arguments;

/* Decode: query heads packed into a tile, splits of the keys, and with several splits the partial results, laid out as
 * in src/plan/plan.h: float o[batch][heads][q_len][split][head_dim_v] and ml[...][split][2], m as S is. Where the CTAs
 * of a row's splits are a cluster, o and ml are not used. */
typedef struct attune_cuda_parts {
    unsigned long long o, ml;
    int packed, split, clustered;
} attune_cuda_parts;

/* A tensor of elements of four bytes, int32 but where another type is said; strides in elements. Address 0 = absent. */
typedef struct attune_cuda_array {
    unsigned long long address;
    long long stride[3];
} attune_cuda_array;

/* The cache and the batch of a call of a plan with problem.tokens. In the arguments q_len and kv_len are then limits, a
 * batch of k and v is a page, and q, o, lse and row_max have a batch of 1 if the rows are packed. */
typedef struct attune_cuda_serving {
    attune_cuda_array q_start, kv_len, kv_first, count; /* [batch + 1], [batch], [batch], [1]; q_start: packed */
    attune_cuda_array pages, pages_start;               /* [batch][entries], or [entries] with pages_start */
    attune_cuda_array tree;                             /* [batch of q][rows][words] */
    attune_cuda_array k_scale, v_scale;                 /* float [pages][kv_heads][page]; absent = 1 */
    int tokens;                                         /* rows of q, if they are packed */
    int pool, page;                                     /* pages, and keys of a page */
    int entries;                                        /* of the block table: of a row, or of the list */
    int tree_words;
    int box; /* serving_sm90: keys of a box of the tensor maps, which divides each page; 0 = TMA cannot read the cache
              */
    /* With ATTUNE_PARTS: attune_cuda_schedule, and the partial results, which there is room for `slots` of; with
     * ATTUNE_SPLIT_KEYS or ATTUNE_SHARES the sums of parts of `resident` CTAs follow. */
    unsigned long long schedule, parts;
    int slots;
    int resident;             /* CTAs that run at once */
    int schedule_key;         /* of plans that may share a schedule */
    attune_cuda_array shared; /* with ATTUNE_SHARES: [batch], the keys in common with the sequence before */
} attune_cuda_serving;

/* An exact sum: src/plan/family_cuda.h, sums.cuh. */
#define ATTUNE_CUDA_SUM_WORDS 8
/* After the sums of a split tail tile, int32 counters: how many splits each warp has added. */
#define ATTUNE_CUDA_TAIL_COUNTS 16

/* Backward, besides q, k, v, o and lse. */
typedef struct attune_cuda_backward {
    attune_cuda_view d_o, d_q, d_k, d_v;
    attune_cuda_view d_lse; /* float, no last dimension; address 0 = none */
    int kv_batch;           /* batch, or 1: d_k and d_v sum over the batch */

    /* The transposed lists: row (b * column_batch_rows + h * column_head_rows + block column) of both. */
    attune_cuda_list partial, full;
    long long column_batch_rows, column_head_rows;
    /* Optional, sm90 and sm100 without a fixed order, for lists that all heads have: int32 [b * column_batch_rows +
     * block], the order in which block columns of a head are taken, those with the most blocks first. 0 = the first
     * first. All of the lists' block columns have one tile of keys, or all have two. */
    unsigned long long column_order;

    /* The workspace: float lse[batch * heads][row_stride] as the kernels subtract it (times log2(e), except with
     * float32 inputs), +inf where a row is empty or past q_len; float delta in the same layout, 0 there. row_stride is
     * a multiple of 128. */
    unsigned long long lse, delta;
    long long row_stride;
    /* long long [elements][ATTUNE_CUDA_SUM_WORDS]: exact sums of the capture gradients; symbol_sums: the address of
     * the first by symbol of the score expression, 0 = not requested or already added. Of the symbols of float_sums, as
     * bits, they are float [elements] instead; of those of padded_sums among them, they are aligned to 16 bytes and the
     * last dimension has a multiple of four. attune_delta clears sum_words words from `sums` on. */
    unsigned long long sums, sum_words;
    unsigned long long symbol_sums[ATTUNE_CUDA_SYMBOLS];
    unsigned float_sums, padded_sums;

    /* backward_sm90, backward_atomic_sm80: `sums` are float sums of dQ, followed by redo and the capture gradients.
     * int32 *redo: non-zero makes the sm80 kernels, launched after backward_sm90, recompute all gradients. Address 0:
     * the sm80 kernels run alone. */
    unsigned long long redo;
    /* backward_sm90 with ATTUNE_DETERMINISTIC: u32 [batch * heads][row tiles][4], the last tile of keys added to each
     * fragment of dQ (ordered_sums.cuh), zero before the launch. */
    unsigned long long order_counts;
    /* backward_sm90: u32 [kv_batch * kv_heads], what has been added to the dQ of each (dq_backward_sm90.cuh), zero
     * before the launch. So is `counter`, which belongs to this call: the next tile of keys and the next ticket. */
    unsigned long long plane_counts;
    int resident_heads; /* backward_sm90: heads of k and v whose q, d_o and dQ stay in the L2 cache together */

    /* backward_sm90 without ATTUNE_HAVE_BLOCKS and ATTUNE_DETERMINISTIC: tiles of keys from full_wave_tiles on
     * are split into tail_splits of tail_split_rows query rows each, whose dK and dV are added in tail_sums
     * (src/plan/family_cuda.h), zero before the launch. */
    int full_wave_tiles, tail_splits, tail_split_rows;
    unsigned long long tail_sums;

    /* attune_sinks: float, the gradient of the sinks. */
    unsigned long long d_sinks;
    long long d_sinks_head;
} attune_cuda_backward;

/* attune_sums adds to float tensors of rank up to 4, strides in elements; 0 elements = not requested. */
typedef struct attune_cuda_sums {
    long long elements; /* of all tensors */
    int count;
    struct {
        unsigned long long address, sums; /* sums: as symbol_sums, or with is_float in floats */
        int is_float;
        long long row, pitch; /* elements of the last dimension; from one row of floats to the next */
        long long elements, size[4], stride[4];
    } to[ATTUNE_CUDA_SYMBOLS];
} attune_cuda_sums;

/* A kernel's parameters are limited to 4096 bytes: forward_sm90 has these and three CUtensorMap of 128 bytes. */
typedef char attune_cuda_arguments_fit[sizeof(attune_cuda_arguments) <= 3584 ? 1 : -1];
/* backward_sm90 has these and four CUtensorMap. */
typedef char attune_cuda_backward_fit[sizeof(attune_cuda_arguments) + sizeof(attune_cuda_backward) <= 3584 ? 1 : -1];

/*
 * The tensor maps of forward_sm90, which the host encodes for each launch (cuTensorMapEncodeTiled, rank 4, interleave
 * none, swizzle 128 bytes, out of bounds zeros): sizes {head_dim, length, heads, batch} (batch 1 for k and v that
 * broadcast, head_dim_v for v), strides of the row, head and batch in bytes, and the box {64, rows, 1, 1} with 64 rows
 * for q and ATTUNE_BLOCK_N rows for k and v. Where an address or stride is no multiple of 16 bytes, the host takes
 * the sm80 family.
 */

#endif

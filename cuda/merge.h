/* SPDX-License-Identifier: MIT */
/*
 * Arguments of merge*.cu: the entry points attune_merge and attune_merge_backward take one attune_cuda_merge by value.
 * The grid has ceil(rows / ATTUNE_CUDA_MERGE_ROWS) CTAs of ATTUNE_CUDA_MERGE_THREADS threads; a warp merges one row.
 *
 * attune_merge_TYPE_PARTS and attune_merge_backward_TYPE_PARTS, with TYPE f16, bf16, f32 or any (any mixture) and PARTS
 * 2 or 8, and attune_merge_TYPE_of_f32_2, of f32 parts to an o of f16 or bf16, access 8 columns at once. They need at
 * most ATTUNE_CUDA_MERGE_COLUMNS columns, a multiple of 8, and addresses and strides of o and d_o that are multiples of
 * 16 bytes. 1 << lane_bits lanes merge one row.
 */
#ifndef ATTUNE_CUDA_MERGE_H
#define ATTUNE_CUDA_MERGE_H

#define ATTUNE_CUDA_MERGE_THREADS 128
#define ATTUNE_CUDA_MERGE_ROWS    4
#define ATTUNE_CUDA_MERGE_PARTS   8
#define ATTUNE_CUDA_MERGE_COLUMNS 256

/* A tensor [batch][head][row][contiguous]; strides in bytes. An LSE has no last dimension and is float. */
typedef struct attune_cuda_merge_view {
    unsigned long long address; /* 0 = there is none */
    long long batch, head, row;
    int dtype;    /* 1 f16, 2 bf16, 3 f32 */
    int pair;     /* whether two elements from an even column on can be accessed at once */
    int steps[3]; /* batch, head and row in units of 16 bytes, of an LSE in units of 4; for the vector kernels */
} attune_cuda_merge_view;

/* n / d for n < 2^31: n multiplier >> (31 + shift). */
typedef struct attune_cuda_divisor {
    unsigned multiplier, shift;
} attune_cuda_divisor;

typedef struct attune_cuda_merge_part {
    attune_cuda_merge_view o, lse, d_o, d_lse;
} attune_cuda_merge_part;

typedef struct attune_cuda_merge {
    attune_cuda_merge_view o, lse, d_o, d_lse;
    long long rows;
    int heads, q_len, columns, part_count;
    int weighted;   /* 0: o is the plain sum of the parts' o */
    int strict;     /* a part of weight 0 is multiplied as well: 0 times NaN is NaN */
    int is_partial; /* another merge follows: o of a row without weights stays 0 or NaN */
    int lane_bits;
    attune_cuda_divisor by_q_len, by_heads;
    attune_cuda_merge_part parts[ATTUNE_CUDA_MERGE_PARTS];
} attune_cuda_merge;

/*
 * attune_copy_tensors takes an attune_cuda_copies by value. The grid has any number of CTAs of
 * ATTUNE_CUDA_MERGE_THREADS threads for each copy, the second dimension. Units are of 2, 4 or 16 bytes; a row's are
 * adjacent, and strides are in units.
 *
 * attune_copy_lent is the same for an attune_cuda_lent_copies, whose copies have at most ATTUNE_CUDA_COPY_UNITS:
 * without divisions of 64 bits, and with several units of a thread under way.
 */
#define ATTUNE_CUDA_COPY_UNITS (1 << 30)
typedef struct attune_cuda_copy {
    unsigned long long from, to;
    long long from_strides[3], to_strides[3]; /* batch, head and row */
    long long units;
    int heads, q_len, row_units;
} attune_cuda_copy;

typedef struct attune_cuda_lent_copy {
    attune_cuda_copy copy;
    attune_cuda_divisor by_heads, by_q_len, by_row_units;
} attune_cuda_lent_copy;

typedef struct attune_cuda_copies {
    attune_cuda_copy parts[ATTUNE_CUDA_MERGE_PARTS];
    int unit;
} attune_cuda_copies;

typedef struct attune_cuda_lent_copies {
    attune_cuda_lent_copy parts[ATTUNE_CUDA_MERGE_PARTS];
    int unit;
} attune_cuda_lent_copies;

/*
 * attune_merge_splits takes an attune_cuda_merge_splits by value: of the splits of decode_sm80.cu on several devices,
 * of which each has those of all rows, o and lse of some heads or batches. A CTA of ATTUNE_CUDA_MERGE_THREADS threads
 * has 32 columns of a row: the grid is of rows and columns.
 */
#define ATTUNE_CUDA_MERGE_SPLITS 512 /* part_count * split at most */
#define ATTUNE_CUDA_EARLY_SPLITS 32  /* of which so many are loaded before their weights are known */

typedef struct attune_cuda_split_part {
    unsigned long long o, ml; /* attune_cuda_parts, of [batch][all_heads][q_len] rows */
} attune_cuda_split_part;

typedef struct attune_cuda_merge_splits {
    attune_cuda_merge_view o, lse;
    attune_cuda_split_part parts[ATTUNE_CUDA_MERGE_PARTS];
    int part_count, split, columns;
    int heads, q_len;                       /* of o */
    int all_heads, first_batch, first_head; /* of the parts */
    float factor;                           /* a weight is exp2(factor * m) */
    attune_cuda_divisor by_split;
} attune_cuda_merge_splits;

typedef char attune_cuda_copies_fit[sizeof(attune_cuda_lent_copies) <= 4096 ? 1 : -1];
typedef char attune_cuda_merge_fits[sizeof(attune_cuda_merge) <= 4096 ? 1 : -1];

#endif

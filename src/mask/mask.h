/* SPDX-License-Identifier: MIT */
/*
 * Block masks: which blocks of the q x kv plane are empty, partial or full, as lists in compressed rows and their
 * transposes.
 *
 *     build.c    from an expression: quadtree and interval analysis    lists.c    from lists; slices
 *     extend.c   of longer sequences                                   gather.c   of some rows and keys
 *     dense.c    from dense arrays                                     tensor.c   from a tensor on a device
 *     spans.c    intervals of rows and keys as arrays
 *     combine.c  and, or, not                                          classify.c classes of regions
 *     store.c    storage, transposes                                   draw.c     statistics, text, pixels
 *     rects.h    rectangles of blocks                                  work.c     work units, progress, limits
 *     upload.c   as the kernels of shaders/ read them
 */
#ifndef ATTUNE_MASK_MASK_H
#define ATTUNE_MASK_MASK_H

#include "expr/expr.h"
#include "mask/work.h"

/* One set of lists in compressed rows: row r holds indices[offsets[r]] .. indices[offsets[r + 1] - 1], ascending. */
typedef struct attune__block_list {
    int64_t *offsets;    /* rows + 1 */
    int32_t *num_blocks; /* rows: offsets[r + 1] - offsets[r], FlexAttention's form */
    int32_t *indices;
} attune__block_list;

struct attune_mask {
    attune_allocator allocator; /* a copy */
    uint32_t q_block, kv_block;
    int64_t batch, heads;               /* of the problem */
    int64_t stored_batch, stored_heads; /* of the lists: 1 where they broadcast */
    int64_t kv_heads;
    int64_t q_len, kv_len; /* of this mask, after slicing */
    int64_t kv_start,
        kv_total; /* of a segment, whose expression has them as parameters; kv_total 0 = not of a segment */
    int64_t q_blocks, kv_blocks;
    attune__block_list kv, full_kv; /* rows: (batch * stored_heads + head) * q_blocks + block row */
    attune__block_list q, full_q;   /* rows: (batch * stored_heads + head) * kv_blocks + block column */

    /* Evaluated in partial blocks; NULL if there are none. */
    const attune_expr *expr;
    /* The expression allows each row one interval of keys, where equal elements of the captures row_runs (bits of
     * symbols) stand together: attune__interval_rows. */
    bool row_intervals;
    uint32_t row_runs;
    attune_array *captures;    /* expr->symbol_count entries; the data is the mask's own contiguous copy */
    attune__value *parameters; /* likewise */

    /* Of a slice: kernels evaluate the expression at (b + b0, h + h0, q + q0), the indices of the whole mask. */
    int32_t b0, h0, q0;
    int32_t expr_heads, expr_kv_heads; /* of the whole: h_kv = h / (expr_heads / expr_kv_heads) */
    int32_t expr_q_len, expr_kv_len;   /* the values of q_len and kv_len in the expression */
    /* Bits 1 << attune__var that the lists and the expression depend on. The expression of a combination may use fewer
     * than its sides. */
    uint16_t uses;

    /* By attune__mask_build: the class of each block is exactly the expression's. */
    bool classified;

    /* Uploads to devices (attune_mask_upload); owned by src/api. */
    struct attune__mask_upload *uploads;

    /* Set for a mask that is computed from a tensor on a device, the only one in `uploads`. The lists above are NULL
     * unless the device's kernels read the lists in host memory, and the capture's data is the tensor's. */
    bool from_tensor;
    bool updated;                    /* attune_mask_update was called */
    int64_t most_q_len, most_kv_len; /* q_len and kv_len are those of the last update */
    uint8_t *classes; /* with lists in host memory: an attune__class for each block, [plane][block row][column] */
};

/* The lists of one batch and head. */
typedef struct attune__mask_rows {
    int64_t row0; /* first row in kv and full_kv of this batch and head */
    int64_t col0; /* first row in q and full_q */
} attune__mask_rows;

static inline attune__mask_rows attune__mask_at(const attune_mask *mask, int64_t b, int64_t h)
{
    int64_t plane = (mask->stored_batch == 1 ? 0 : b) * mask->stored_heads + (mask->stored_heads == 1 ? 0 : h);
    return (attune__mask_rows){plane * mask->q_blocks, plane * mask->kv_blocks};
}

/* Arguments are checked by src/api: lengths, block sizes, divisible heads, resolved bindings. `captures` and
 * `parameters` have expr->symbol_count entries and are copied; `desc` has its defaults filled in. */
attune_status attune__mask_build(const attune_allocator *allocator, const attune_mask_desc *desc,
                                 const attune_expr *expr, const attune_array *captures, const attune__value *parameters,
                                 attune_mask **mask);
/*
 * The mask that attune__mask_build makes of the expression of `mask`, which it made too, with other lengths, none of
 * them smaller, and other captures. Blocks whose pairs have the same values in both are not classified again. desc is
 * that of `mask` but for the lengths; its limits are not read. work may be NULL.
 */
attune_status attune__mask_extend(const attune_mask *mask, const attune_mask_desc *desc, const attune_array *captures,
                                  attune__work *work, attune_mask **extended);
/* Also checks the order, range and disjointness of the lists, which only this module reads. expr may be NULL. */
attune_status attune__mask_from_lists(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      const attune_mask_lists *lists, const attune_expr *expr,
                                      const attune_array *captures, const attune__value *parameters,
                                      attune_mask **mask);
attune_status attune__mask_from_dense(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      const attune_array *dense, attune_mask **mask);
/*
 * A mask of [batch or 1, heads or 1] planes that is computed from a tensor; with host_lists, memory for the longest
 * lists is allocated. resize sets the lengths to those of a tensor. classify classifies the blocks of one block row,
 * counted over all planes, from the elements at data (strides in elements). fill computes the lists from the classes.
 * resize, classify and fill do not allocate.
 */
attune_status attune__mask_new_tensor(const attune_allocator *allocator, const attune_mask_desc *desc,
                                      attune_dtype dtype, int64_t tensor_batch, int64_t tensor_heads, bool host_lists,
                                      attune_mask **mask);
void attune__mask_resize(attune_mask *mask, const int64_t size[ATTUNE_MAX_RANK], const int64_t stride[ATTUNE_MAX_RANK]);
void attune__mask_classify(attune_mask *mask, int64_t row, const char *data);
void attune__mask_fill(attune_mask *mask);
/* The bit pattern of an element that forbids its pair. */
uint32_t attune__mask_forbidden(attune_dtype dtype);
attune_status attune__mask_slice(const attune_mask *mask, const attune_mask_range *range, attune_mask **slice);
/* Positions in the sequence of the rows or keys of a gathered mask, ascending: whole blocks, of which only the last of
 * the sequence may be shorter. */
typedef struct attune__positions {
    const int32_t *at;
    int64_t count; /* at least 1 */
} attune__positions;
/* The mask of some rows and keys. Its expression is that of attune__expr_gather, with their positions as captures. */
attune_status attune__mask_gather(const attune_mask *mask, const attune__positions *rows, const attune__positions *keys,
                                  attune_mask **gathered);
/*
 * The intervals of a mask whose rows each allow one interval of keys, alike in all batches and heads: row q allows keys
 * row[0][q] to before row[1][q]. If each key allows one interval of rows, key has them likewise; else it is NULL.
 */
typedef struct attune__spans {
    int32_t *row[2], *key[2];
} attune__spans;
/* row[0] stays NULL if there are no such intervals: then nothing else is set. Evaluates the partial blocks. */
attune_status attune__mask_find_spans(const attune_mask *mask, attune__spans *spans);
void attune__spans_free(const attune_mask *mask, attune__spans *spans);
/* Replaces the mask's expression by that of attune__expr_spans, with the spans as captures. `keys`: those of keys too.
 * If it fails, the mask can only be freed. */
attune_status attune__mask_use_spans(attune_mask *mask, const attune__spans *spans, bool keys);
/* op: ATTUNE__OP_AND, ATTUNE__OP_OR; ATTUNE__OP_NOT with b NULL. work may be NULL, here and below. */
attune_status attune__mask_combine(attune__op op, const attune_mask *a, const attune_mask *b, attune__work *work,
                                   attune_mask **mask);
void attune__mask_free(attune_mask *mask); /* accepts NULL; uploads must be gone */

/* The description of a mask, as the caller gave it. */
attune_mask_desc attune__mask_describe(const attune_mask *mask);
void attune__mask_lists(const attune_mask *mask, attune_mask_lists *lists);
attune_status attune__mask_stats(const attune_mask *mask, bool exact, attune__work *work, attune_mask_stats *stats);
void attune__mask_draw_text(const attune_mask *mask, int64_t b, int64_t h, uint32_t columns, uint32_t rows,
                            char *buffer, size_t size, size_t *needed);
void attune__mask_draw_pixels(const attune_mask *mask, int64_t b, int64_t h, uint8_t *pixels, uint32_t *width,
                              uint32_t *height);

/* Bytes of the elements of a contiguous array. */
static inline uint64_t attune__array_bytes(const attune_array *of)
{
    uint64_t bytes = attune_dtype_size(of->dtype);
    for (uint32_t i = 0; i < of->rank; i++)
        bytes *= (uint64_t)of->size[i];
    return bytes;
}

static inline bool attune__mask_has_partial(const attune_mask *mask)
{
    return mask->kv.offsets[mask->stored_batch * mask->stored_heads * mask->q_blocks] > 0;
}

/* The variables for evaluating the mask's expression in row q of batch b and head h. */
static inline attune__row attune__mask_row(const attune_mask *mask, int64_t b, int64_t h, int64_t q)
{
    int32_t whole_h = (int32_t)h + mask->h0;
    return (attune__row){
        .b = (int32_t)b + mask->b0,
        .h = whole_h,
        .q = (int32_t)q + mask->q0,
        .h_kv = whole_h / (mask->expr_heads / mask->expr_kv_heads),
        .q_len = mask->expr_q_len,
        .kv_len = mask->expr_kv_len,
    };
}

#endif

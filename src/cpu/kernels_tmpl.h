/* SPDX-License-Identifier: MIT */
/*
 * The table of inner kernels for one arithmetic type. Included by cpu/kernels.h once for float and once for double,
 * with REAL and NAME defined. Matrices are row-major, leading dimensions (ld) are in elements of REAL; storage in
 * tensors is read and written at any alignment, `stride` bytes from row to row.
 *
 * A packed matrix is a sequence of panels of ATTUNE__PANEL columns: panel j holds element (p, 16 j + c) at j *
 * panel_stride + 16 p + c, so that the innermost loop of a product reads it sequentially for any vector width.
 */

typedef struct NAME(cpu_kernels) {
    const char *name;
    uint32_t lanes; /* of one vector */

    /* to[r][c] = from[r][c] * scale. columns is a multiple of 8. */
    void (*load_rows)(REAL *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                      size_t columns, REAL scale);
    /* to[c] = scale * from[c], rounded once to float, of codes; columns is a multiple of 8 and of the type's block. */
    void (*dequantise)(REAL *to, const void *from, attune_dtype dtype, size_t columns, float scale);
    /* Packs the transpose: rows of `from` become columns of the packed matrix, zeros up to a whole panel. panel_stride
     * is 16 * columns; columns is a multiple of 8. */
    void (*pack_k)(REAL *to, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns);
    /* Packs without transposing, with zero columns up to a whole panel. False if an element is infinite or NaN. */
    bool (*pack_v)(REAL *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns);
    /* False if an element is infinite or NaN. */
    bool (*finite)(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns);
    /* to[c] = from[c] / divisor, rounded to dtype. columns is a multiple of 8. */
    void (*store_row)(void *to, attune_dtype dtype, const REAL *from, size_t columns, REAL divisor);

    /* c = scale * a b and c += a b, for a of m x k and packed b of k x 16 * panels. */
    void (*multiply)(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m, size_t k, const REAL *b,
                     size_t panel_stride, size_t panels, REAL scale);
    void (*multiply_add)(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m, size_t k, const REAL *b,
                         size_t panel_stride, size_t panels);

    /* The same products for few rows, where packing would cost more than it saves: b is rows of REAL in place.
     * s[r][c] = scale * dot(q[r], k[at[c]]) for c < count; columns is a multiple of 8. at NULL = 0, 1, ... */
    void (*dots)(REAL *s, size_t lds, const REAL *q, size_t ldq, size_t rows, const void *k, ptrdiff_t stride,
                 const uint16_t *at, size_t count, size_t columns, REAL scale);
    /* o[r] += sum of p[r][c] v[at[c]] over c < count; columns is a multiple of 8. */
    void (*axpys)(REAL *o, size_t ldo, const REAL *p, size_t ldp, size_t rows, const void *v, ptrdiff_t stride,
                  const uint16_t *at, size_t count, size_t columns);

    /* Rows of scores: n is a multiple of 16. */
    REAL (*row_max)(const REAL *s, size_t n);          /* -inf if all are NaN: the sum is then NaN */
    REAL (*row_exp)(REAL *s, size_t n, REAL m);        /* s = exp(s - m), which must be <= 0 or NaN; returns the sum */
    void (*row_scale)(REAL *o, size_t n, REAL factor); /* n is a multiple of 8 */
    /* bits = allowed, which is 0 or 1, in words of 16 columns; zeros up to a whole word. Returns their number. Any n.
     */
    size_t (*row_bits)(uint16_t *bits, const uint8_t *allowed, size_t n);
    /* s = -inf where the bit is 0. */
    void (*row_mask)(REAL *s, const uint16_t *bits, size_t n);
    /* s = p = exp(s - lse) and d = p * (d - delta), or 0 where p is 0. Both are 0 where the bit is 0; bits NULL = all
     * are
     * 1. s - lse is at most a rounding error above 0, or NaN, where the bit is 1. */
    void (*row_gradient)(REAL *s, REAL *d, const uint16_t *bits, size_t n, REAL lse, REAL delta);

    /* Runs `rounds` rounds of peak_flops independent operations each; returns a value so that they are not removed. */
    REAL (*peak)(size_t rounds);
    uint32_t peak_flops;
} NAME(cpu_kernels);

/* Fills the whole table with portable C. */
void NAME(cpu_kernels_generic)(NAME(cpu_kernels) * kernels);

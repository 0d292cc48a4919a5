/* SPDX-License-Identifier: MIT */
/*
 * Products with elements that are infinite or NaN, which must not reach a row through a weight of 0: 0 * inf is NaN.
 * They are added first, to the rows that have them, and are 0 in the product of the tile, whose sums keep their order:
 * the other elements have the same bits, whatever such an element is. Included by forward_tmpl.h and backward_tmpl.h.
 */

/* Of an operand: element (i, d) is at d / ATTUNE__PANEL * panel_stride + i * row_stride + d % ATTUNE__PANEL. */
typedef struct operand {
    REAL *elements;
    size_t rows, columns, row_stride, panel_stride;
} operand;

/* c += a b for the elements of b that are infinite or NaN, which become 0. With `bits`, of ldb words for each row of a,
 * where they are set, from bit `first` on; without, where a is not 0. */
static void take_nonfinite(REAL *c, size_t ldc, const REAL *a, size_t lda, size_t m, const operand *b,
                           const uint16_t *bits, size_t ldb, size_t first)
{
    for (size_t i = 0; i < b->rows; i++)
        for (size_t d = 0; d < b->columns; d++) {
            REAL *element = b->elements + d / ATTUNE__PANEL * b->panel_stride + i * b->row_stride + d % ATTUNE__PANEL;
            const REAL value = *element;
            if (isfinite(value))
                continue;
            for (size_t r = 0; r < m; r++)
                if (bits ? bits[r * ldb + (first + i) / ATTUNE__PANEL] >> (first + i) % ATTUNE__PANEL & 1
                         : a[r * lda + i] != 0)
                    c[r * ldc + d] += a[r * lda + i] * value;
            *element = 0;
        }
}

/* SPDX-License-Identifier: MIT */
/*
 * The product of 16-bit matrices on tile registers of 16 rows of 64 bytes: four tiles of the result, two of each
 * operand. Included with NAME, TARGET and the instructions defined, of which tests have a model:
 *
 *     TILE_ZERO(t)   TILE_LOAD(t, from, stride)   TILE_STORE(t, to, stride)   in bytes
 *     TILE_ADD(c, a, b)   c += a b, of pairs of bf16
 */

#define SPECIALISE TARGET static inline __attribute__((always_inline))

/* Rows 16 i of the result and of a. */
#define C_AT(i, j) (c + (i)*16 * ldc + (j)*16)
#define A_AT(i)    (a + (i)*16 * lda)

/* The products of one summand of a with one of b, which are in registers. */
#define ADD_TILES()                                                                                                    \
    do {                                                                                                               \
        TILE_ADD(0, 4, 6);                                                                                             \
        if (two_panels)                                                                                                \
            TILE_ADD(1, 4, 7);                                                                                         \
        if (two_rows)                                                                                                  \
            TILE_ADD(2, 5, 6);                                                                                         \
        if (two_rows && two_panels)                                                                                    \
            TILE_ADD(3, 5, 7);                                                                                         \
    } while (0)

#define LOAD_A(summand)                                                                                                \
    do {                                                                                                               \
        TILE_LOAD(4, A_AT(0) + (summand)*32, lda * 2);                                                                 \
        if (two_rows)                                                                                                  \
            TILE_LOAD(5, A_AT(1) + (summand)*32, lda * 2);                                                             \
    } while (0)

#define LOAD_B(summand)                                                                                                \
    do {                                                                                                               \
        TILE_LOAD(6, b + (summand)*512, 64);                                                                           \
        if (two_panels)                                                                                                \
            TILE_LOAD(7, b + panel_stride + (summand)*512, 64);                                                        \
    } while (0)

SPECIALISE void NAME(tiles)(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t blocks, const uint16_t *b,
                            size_t panel_stride, size_t summands, bool add, bool exact, bool two_rows, bool two_panels)
{
    if (add) {
        TILE_LOAD(0, C_AT(0, 0), ldc * 4);
        if (two_panels)
            TILE_LOAD(1, C_AT(0, 1), ldc * 4);
        if (two_rows)
            TILE_LOAD(2, C_AT(1, 0), ldc * 4);
        if (two_rows && two_panels)
            TILE_LOAD(3, C_AT(1, 1), ldc * 4);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (size_t i = 0; i < blocks; i++, a += 32 * summands, b += 512 * summands) {
        LOAD_A(0);
        LOAD_B(0);
        ADD_TILES();
        if (summands == 1)
            continue;
        LOAD_A(1);
        ADD_TILES();
        LOAD_B(1);
        if (exact)
            ADD_TILES();
        LOAD_A(0);
        ADD_TILES();
    }
    TILE_STORE(0, C_AT(0, 0), ldc * 4);
    if (two_panels)
        TILE_STORE(1, C_AT(0, 1), ldc * 4);
    if (two_rows)
        TILE_STORE(2, C_AT(1, 0), ldc * 4);
    if (two_rows && two_panels)
        TILE_STORE(3, C_AT(1, 1), ldc * 4);
}

/* Two panels of b stay in the L1 cache for all rows of a. */
SPECIALISE void NAME(product)(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t blocks,
                              const uint16_t *b, size_t panel_stride, size_t panels, size_t summands, bool add,
                              bool exact)
{
    for (size_t j = 0; j < panels; j += 2, b += 2 * panel_stride, c += 32)
        for (size_t r = 0; r < m; r += 32) {
            float *to = c + r * ldc;
            const uint16_t *rows = a + r * lda;
            if (m - r > 16 && panels - j > 1)
                NAME(tiles)(to, ldc, rows, lda, blocks, b, panel_stride, summands, add, exact, true, true);
            else if (m - r > 16)
                NAME(tiles)(to, ldc, rows, lda, blocks, b, panel_stride, summands, add, exact, true, false);
            else if (panels - j > 1)
                NAME(tiles)(to, ldc, rows, lda, blocks, b, panel_stride, summands, add, exact, false, true);
            else
                NAME(tiles)(to, ldc, rows, lda, blocks, b, panel_stride, summands, add, exact, false, false);
        }
}

TARGET static void NAME(multiply)(float *c, size_t ldc, const uint16_t *a, size_t lda, size_t m, size_t blocks,
                                  const uint16_t *b, size_t panel_stride, size_t panels, size_t summands, bool add,
                                  bool exact)
{
    if (summands == 1)
        NAME(product)(c, ldc, a, lda, m, blocks, b, panel_stride, panels, 1, add, false);
    else
        NAME(product)(c, ldc, a, lda, m, blocks, b, panel_stride, panels, 2, add, exact);
}

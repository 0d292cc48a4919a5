/* SPDX-License-Identifier: MIT */
/* Matrix products by up to six rows at a time, for kernels that keep so many in registers: AVX2 and NEON. The file that
 * includes it has SPECIALISE, PRODUCT_TARGET (an attribute of functions, or nothing), PANEL and block_1 to block_6. */
/* A panel of b stays in the L1 cache for all rows of a. */
SPECIALISE void product(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k, const float *b,
                        size_t panel_stride, size_t panels, float scale, bool add)
{
    for (size_t j = 0; j < panels; j++, b += panel_stride, c += PANEL) {
        size_t r = 0;
        /* 7 and 8 rows are computed as 4 and the rest: one or two rows have too few independent sums to hide the
         * latency. */
        for (; m - r >= 6 && m - r != 7 && m - r != 8; r += 6)
            block_6(c + r * ldc, ldc, a + r * lda, lda, k, b, scale, add);
        if (m - r > 6) {
            block_4(c + r * ldc, ldc, a + r * lda, lda, k, b, scale, add);
            r += 4;
        }
        float *rest = c + r * ldc;
        const float *rest_a = a + r * lda;
        switch (m - r) {
        case 1:
            block_1(rest, ldc, rest_a, lda, k, b, scale, add);
            break;
        case 2:
            block_2(rest, ldc, rest_a, lda, k, b, scale, add);
            break;
        case 3:
            block_3(rest, ldc, rest_a, lda, k, b, scale, add);
            break;
        case 4:
            block_4(rest, ldc, rest_a, lda, k, b, scale, add);
            break;
        case 5:
            block_5(rest, ldc, rest_a, lda, k, b, scale, add);
            break;
        default:
            break;
        }
    }
}

PRODUCT_TARGET static void multiply(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k,
                                    const float *b, size_t panel_stride, size_t panels, float scale)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, scale, false);
}

PRODUCT_TARGET static void multiply_add(float *c, size_t ldc, const float *a, size_t lda, size_t m, size_t k,
                                        const float *b, size_t panel_stride, size_t panels)
{
    product(c, ldc, a, lda, m, k, b, panel_stride, panels, 1, true);
}

/* SPDX-License-Identifier: MIT */
/* rows_max and rows_exp of an attune__cpu_matrix, from row_max and row_exp of the file that includes this. */

static void rows_max(const float *s, size_t lds, size_t rows, size_t n, float scale, float *max)
{
    for (size_t r = 0; r < rows; r++)
        max[r] = row_max(s + r * lds, n, scale);
}

static void rows_exp(uint16_t *p, size_t ldp, const float *s, size_t lds, size_t rows, size_t n, float scale,
                     const float *m, float *sum, size_t summands)
{
    for (size_t r = 0; r < rows; r++)
        sum[r] = row_exp(p + r * ldp, s + r * lds, n, scale, m[r], summands);
}

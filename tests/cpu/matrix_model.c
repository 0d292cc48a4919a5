/* SPDX-License-Identifier: MIT */
#include "cpu/matrix_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "cpu/cpu.h"

/* --------------------------------------------------------------------------------------------- the tile instructions
 */

static _Thread_local unsigned char tiles[8][16][64];
static _Thread_local bool configured;

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void tile_zero(int t)
{
    must(configured);
    memset(tiles[t], 0, sizeof tiles[t]);
}

static void tile_load(int t, const void *from, size_t stride)
{
    must(configured);
    for (size_t r = 0; r < 16; r++)
        memcpy(tiles[t][r], (const char *)from + r * stride, 64);
}

static void tile_store(int t, void *to, size_t stride)
{
    must(configured);
    for (size_t r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, tiles[t][r], 64);
}

/* A bf16 whose subnormal values are 0. */
static float tile_element(const unsigned char *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits & 0x7f80 ? attune__f32_from_bf16(bits) : 0;
}

static void tile_add(int c, int a, int b)
{
    must(configured);
    for (size_t m = 0; m < 16; m++)
        for (size_t n = 0; n < 16; n++) {
            float sum, even = 0, odd = 0;
            memcpy(&sum, &tiles[c][m][4 * n], sizeof sum);
            for (size_t k = 0; k < 16; k++) {
                even = fmaf(tile_element(&tiles[a][m][4 * k]), tile_element(&tiles[b][k][4 * n]), even);
                odd = fmaf(tile_element(&tiles[a][m][4 * k + 2]), tile_element(&tiles[b][k][4 * n + 2]), odd);
            }
            sum += even + odd;
            memcpy(&tiles[c][m][4 * n], &sum, sizeof sum);
        }
}

#define TARGET
#define NAME(x)                    model_##x
#define TILE_ZERO(t)               tile_zero(t)
#define TILE_LOAD(t, from, stride) tile_load(t, from, stride)
#define TILE_STORE(t, to, stride)  tile_store(t, to, stride)
#define TILE_ADD(c, a, b)          tile_add(c, a, b)
#include "cpu/kernel_amx_tmpl.h"

static void begin(void)
{
    must(!configured);
    configured = true;
}

static void end(void)
{
    must(configured);
    configured = false;
}

/* ---------------------------------------------------------------------------------------------------------- packing */

static size_t summands_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F16 ? 2 : 1;
}

/* Summand `summand` of an element. */
static uint16_t summand_of(float x, size_t summand)
{
    const uint16_t nearest = attune__bf16_from_f32(x);
    return summand ? attune__bf16_from_f32(x - attune__f32_from_bf16(nearest)) : nearest;
}

/* Element (r, c) of `rows` x `columns`, 0 outside. */
static float element(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns, size_t r,
                     size_t c)
{
    uint16_t bits;
    if (r >= rows || c >= columns)
        return 0;
    memcpy(&bits, (const char *)from + (ptrdiff_t)r * stride + (ptrdiff_t)(2 * c), sizeof bits);
    return dtype == ATTUNE_F16 ? attune__f32_from_f16(bits) : attune__f32_from_bf16(bits);
}

static bool all_finite(const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            if (!isfinite(element(from, stride, dtype, rows, columns, r, c)))
                return false;
    return true;
}

static size_t round_to(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

/* Where summand `summand` of element (k, c) of a packed matrix is in its panel. */
static size_t packed_at(size_t k, size_t c, size_t summand, size_t summands)
{
    return (k / 32 * summands + summand) * 512 + k % 32 / 2 * 32 + 2 * (c % 16) + k % 2;
}

static bool pack_q(uint16_t *to, size_t ld, const void *from, ptrdiff_t stride, attune_dtype dtype, size_t rows,
                   size_t columns)
{
    const size_t summands = summands_of(dtype);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < round_to(columns, 32); c++)
            for (size_t summand = 0; summand < summands; summand++)
                to[r * ld + (c / 32 * summands + summand) * 32 + c % 32] =
                    summand_of(element(from, stride, dtype, rows, columns, r, c), summand);
    return all_finite(from, stride, dtype, rows, columns);
}

static bool pack_k(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns)
{
    const size_t summands = summands_of(dtype);
    for (size_t r = 0; r < round_to(rows, 16); r++)
        for (size_t c = 0; c < round_to(columns, 32); c++)
            for (size_t summand = 0; summand < summands; summand++)
                to[r / 16 * panel_stride + packed_at(c, r, summand, summands)] =
                    summand_of(element(from, stride, dtype, rows, columns, r, c), summand);
    return all_finite(from, stride, dtype, rows, columns);
}

static bool pack_v(uint16_t *to, size_t panel_stride, const void *from, ptrdiff_t stride, attune_dtype dtype,
                   size_t rows, size_t columns)
{
    const size_t summands = summands_of(dtype);
    for (size_t r = 0; r < round_to(rows, 32); r++)
        for (size_t c = 0; c < round_to(columns, 16); c++)
            for (size_t summand = 0; summand < summands; summand++)
                to[c / 16 * panel_stride + packed_at(r, c, summand, summands)] =
                    summand_of(element(from, stride, dtype, rows, columns, r, c), summand);
    return all_finite(from, stride, dtype, rows, columns);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

static float row_max(const float *s, size_t n, float scale)
{
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = s[i] * scale > max ? s[i] * scale : max;
    return max;
}

static float row_exp(uint16_t *p, const float *s, size_t n, float scale, float m, size_t summands)
{
    float sum = 0, x[32];
    for (size_t i = 0; i < n; i += 32) {
        for (size_t j = 0; j < 32; j++) {
            const float t = s[i + j] * scale - m;
            x[j] = t < -87.3f ? 0 : expf(t);
            sum += x[j];
        }
        for (size_t summand = 0; summand < summands; summand++)
            for (size_t j = 0; j < 32; j++)
                p[(i / 32 * summands + summand) * 32 + j] = summand_of(x[j], summand);
    }
    return sum;
}

#include "cpu/rows_tmpl.h"

attune__cpu_matrix matrix_model(void)
{
    return (attune__cpu_matrix){
        .name = "cpu_amx",
        .pack_q = pack_q,
        .pack_k = pack_k,
        .pack_v = pack_v,
        .multiply = model_multiply,
        .rows_max = rows_max,
        .rows_exp = rows_exp,
        .begin = begin,
        .end = end,
    };
}

void matrix_model_install(attune_device *device)
{
    ((attune__cpu_device *)device)->amx = matrix_model();
    device->info.limits.matrix |= ATTUNE_MATRIX_AMX;
}

/* SPDX-License-Identifier: MIT */
/* Functions that the lanes of a warp compute together, once all have come. */
#include <math.h>
#include <string.h>

#include "tests/model/model.h"

/* shfl.sync, .idx and .up: a lane whose source is not in range keeps its own value. */
static void shuffle(const warp *w)
{
    for (int lane = 0; lane < 32; lane++) {
        if (!(w->mask >> lane & 1))
            continue;
        uint32_t *own = w->arguments[lane];
        const int from = w->kind == MODEL_SHUFFLE_UP ? lane - (int)own[1] : (int)own[1] & 31;
        const int source = from < 0 ? lane : from;
        if (!(w->mask >> source & 1))
            model_report(w->pc, "lane %d shuffles from lane %d, which takes no part", lane, source);
        own[2] = *(const uint32_t *)w->arguments[source];
    }
}

/* vote.sync.ballot */
static void vote(const warp *w)
{
    uint32_t lanes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (w->mask >> lane & 1)
            lanes |= *(const uint32_t *)w->arguments[lane] << lane;
    for (int lane = 0; lane < 32; lane++)
        if (w->mask >> lane & 1)
            ((uint32_t *)w->arguments[lane])[1] = lanes;
}

/* ldmatrix, stmatrix, .m8n8.x4.b16: lane l has the address of row l % 8 of matrix l / 8. Of
 * each matrix a lane has elements 2 (l % 4) and the next one of row l / 4; with .trans, of column l / 4. */
static void matrices(const warp *w, int first)
{
    thread *caller = model_now;
    const bool store = w->kind == MODEL_STMATRIX_TRANSPOSED, transposed = w->kind != MODEL_LDMATRIX;
    uint16_t element[4][8][8];
    for (int lane = 0; lane < 32; lane++) {
        const model_matrices *m = w->arguments[lane];
        /* The lane that gives the address makes the access. */
        model_now = &model_cta->thread[first + lane];
        model_shared_access(m->address, 16, store, w->pc);
        if (!store)
            memcpy(element[lane / 8][lane % 8], model_shared_bytes(model_cta, m->address, 16, w->pc), 16);
    }
    model_now = caller;
    for (int lane = 0; lane < 32; lane++) {
        model_matrices *m = w->arguments[lane];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++) {
                const int row = transposed ? lane % 4 * 2 + j : lane / 4,
                          column = transposed ? lane / 4 : lane % 4 * 2 + j;
                if (store)
                    element[i][row][column] = (uint16_t)(m->r[i] >> 16 * j);
                else
                    m->r[i] = j ? m->r[i] | (uint32_t)element[i][row][column] << 16 : element[i][row][column];
            }
    }
    for (int lane = 0; store && lane < 32; lane++)
        memcpy(model_shared_bytes(model_cta, ((const model_matrices *)w->arguments[lane])->address, 16, w->pc),
               element[lane / 8][lane % 8], 16);
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float half_value(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 0x3ff);
    const float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                            : exponent     ? ldexpf((float)(fraction + 1024), exponent - 25)
                                           : ldexpf((float)fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static float half_table[65536];

float model_half(uint32_t bits)
{
    if (half_table[0x3c00] != 1)
        for (uint32_t i = 0; i < 65536; i++)
            half_table[i] = half_value(i);
    return half_table[bits & 0xffff];
}

/* Tensor cores keep few bits beyond float32 of a sum and truncate it. */
float model_truncated(double x)
{
    float y = (float)x;
    if (isfinite(y) && fabs((double)y) > fabs(x))
        y = nextafterf(y, 0.0f);
    return y;
}

/* mma.m16n8k16 with f16 and bf16, mma.m16n8k8 with tf32. Of the registers of lane 4 g + t: A's
 * have rows g and g + 8, first of the lower half of the columns, then of the upper one; B's have column g. */
static void multiply(const warp *w)
{
    const bool tf32 = w->kind == MODEL_MMA_TF32;
    const int each = tf32 ? 1 : 2, inner = 8 * each;
    float a[16][16], b[8][16];
    for (int lane = 0; lane < 32; lane++) {
        const model_mma *m = w->arguments[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < each; j++) {
                const uint32_t word = i < 4 ? m->a[i] : m->b[i - 4];
                const float x = tf32                       ? of_bits(word & 0xffffe000u)
                                : w->kind == MODEL_MMA_F16 ? model_half(word >> 16 * j)
                                                           : of_bits(j ? word & 0xffff0000u : word << 16);
                if (i < 4)
                    a[g + i % 2 * 8][i / 2 * inner / 2 + t * each + j] = x;
                else
                    b[g][(i - 4) * inner / 2 + t * each + j] = x;
            }
    }
    for (int lane = 0; lane < 32; lane++) {
        model_mma *m = w->arguments[lane];
        for (int i = 0; i < 4; i++) {
            const float *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            double sum = (double)m->c[i];
            for (int k = 0; k < inner; k++)
                sum += (double)row[k] * (double)column[k];
            m->c[i] = model_truncated(sum);
        }
    }
}

void model_execute(warp *w, int first)
{
    switch (w->kind) {
    case MODEL_SHUFFLE:
    case MODEL_SHUFFLE_UP:
        shuffle(w);
        break;
    case MODEL_VOTE:
        vote(w);
        break;
    case MODEL_LDMATRIX:
    case MODEL_LDMATRIX_TRANSPOSED:
    case MODEL_STMATRIX_TRANSPOSED:
        matrices(w, first);
        break;
    case MODEL_MMA_TF32:
    case MODEL_MMA_F16:
    case MODEL_MMA_BF16:
        multiply(w);
        break;
    case MODEL_WGMMA:
        model_wgmma_issue(w, first);
        break;
    case MODEL_WGMMA_FENCE:
        model_wgmma_fence(w);
        break;
    case MODEL_WGMMA_COMMIT:
        model_wgmma_commit(w);
        break;
    case MODEL_WGMMA_WAIT:
        model_wgmma_wait(w, first);
        break;
    case MODEL_TENSOR_ALLOCATE:
    case MODEL_TENSOR_RELINQUISH:
    case MODEL_TENSOR_FREE:
        model_tensor_allocation(w, first);
        break;
    case MODEL_TENSOR_LOAD:
    case MODEL_TENSOR_STORE:
        model_tensor_transfer(w, first);
        break;
    case MODEL_TENSOR_WAIT_LOAD:
    case MODEL_TENSOR_WAIT_STORE:
        model_tensor_wait(w, first);
        break;
    case MODEL_SYNCWARP:
    case MODEL_SETMAXNREG: /* machine.c */
    case MODEL_COLLECTIVES:
        break;
    }
}

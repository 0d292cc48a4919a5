/* SPDX-License-Identifier: MIT */
/* Float32 matrix products by OpenBLAS: a square one, which shows the machine's peak, and the two of attention, which
 * are 128 deep and 128 wide. Built without it, there are none. */
#include "bench/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ATTUNE_HAVE_CBLAS
#define ATTUNE_HAVE_CBLAS 0
#endif

void peer_release(peer *p)
{
    if (p->release)
        p->release(p->state);
    memset(p, 0, sizeof *p);
}

#if ATTUNE_HAVE_CBLAS
#include <cblas.h>

static const struct {
    int m, n, k;
    bool transposed; /* the second factor, as K is in Q K^T */
} products[] = {{2048, 2048, 2048, false}, {2048, 2048, 128, true}, {2048, 128, 2048, false}};

typedef struct product {
    int m, n, k;
    bool transposed;
    int threads;
    array a, b, c;
} product;

static void release_product(void *state)
{
    product *p = state;
    array_free(&p->a);
    array_free(&p->b);
    array_free(&p->c);
    free(p);
}

static bool multiply(void *state, double *seconds)
{
    product *p = state;
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(p->threads);
#endif
    double begin = measure_clock();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, p->transposed ? CblasTrans : CblasNoTrans, p->m, p->n, p->k, 1, p->a.data,
                p->k, p->b.data, p->transposed ? p->k : p->n, 0, p->c.data, p->n);
    *seconds = measure_clock() - begin;
    return true;
}

uint32_t blas_peer_count(void)
{
    return (uint32_t)(sizeof products / sizeof products[0]);
}

bool blas_peer_create(uint32_t index, uint32_t threads, uint64_t seed, peer *p, failure *why)
{
    memset(p, 0, sizeof *p);
    if (index >= blas_peer_count())
        return failure_set(why, "there is no product %u", index);
    product *made = calloc(1, sizeof *made);
    if (!made)
        return failure_set(why, "out of memory");
    made->m = products[index].m;
    made->n = products[index].n;
    made->k = products[index].k;
    made->transposed = products[index].transposed;
    made->threads = (int)(threads ? threads : 1);
    random_state r = {seed};
    int64_t m = made->m, n = made->n, k = made->k;
    if (!array_create(&made->a, ATTUNE_F32, 2, (int64_t[]){m, k}, why) ||
        !array_create(&made->b, ATTUNE_F32, 2, (int64_t[]){k, n}, why) ||
        !array_create(&made->c, ATTUNE_F32, 2, (int64_t[]){m, n}, why)) {
        release_product(made);
        return false;
    }
    array_fill_normal(&made->a, &r, 1);
    array_fill_normal(&made->b, &r, 1);
    (void)snprintf(p->name, sizeof p->name, "peer: OpenBLAS sgemm");
    (void)snprintf(p->shape, sizeof p->shape, "m%lldn%lldk%lld%s", (long long)m, (long long)n, (long long)k,
                   made->transposed ? "t" : "");
#ifdef OPENBLAS_VERSION
    const char *config = openblas_get_config(); /* "OpenBLAS 0.3.21 ...": the first two words */
    size_t words = strcspn(config, " ");
    words += config[words] ? 1 + strcspn(config + words + 1, " ") : 0;
    (void)snprintf(p->plan, sizeof p->plan, "%.*s %.24s, %u threads", (int)(words < 40 ? words : 40), config,
                   openblas_get_corename(), threads);
    p->threads = threads;
#else
    (void)snprintf(p->plan, sizeof p->plan, "cblas, its own threads");
#endif
    (void)snprintf(p->timer, sizeof p->timer, "CLOCK_MONOTONIC around the call");
    p->flop = 2.0 * (double)m * (double)n * (double)k;
    p->bytes = 4.0 * ((double)(m * k) + (double)(k * n) + (double)(m * n));
    p->call = multiply;
    p->state = made;
    p->release = release_product;
    return true;
}

#else

uint32_t blas_peer_count(void)
{
    return 0;
}

bool blas_peer_create(uint32_t index, uint32_t threads, uint64_t seed, peer *p, failure *why)
{
    (void)index, (void)threads, (void)seed;
    memset(p, 0, sizeof *p);
    return failure_set(why, "the program was built without OpenBLAS");
}

#endif

/* SPDX-License-Identifier: MIT */
/* Float32 matrix products by OpenBLAS: a square one, which shows the machine's peak, and the two of attention, with k
 * or n of 128. The library starts threads when it is loaded, so it is opened only when a peer is requested. */
#include "bench/peers/peers.h"

#include "bench/timing/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void peer_release(peer *p)
{
    if (p->release)
        p->release(p->state);
    memset(p, 0, sizeof *p);
}

/* Constants of cblas.h, for the interface with 32-bit sizes. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

typedef struct openblas {
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_num_threads)(int threads);
    char *(*get_config)(void);
    char *(*get_corename)(void);
} openblas;

/* The library is not closed: in some versions its threads outlive dlclose. */
static bool openblas_open(openblas *b)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof names[0]; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"cblas_sgemm", &b->sgemm},
                   {"openblas_set_num_threads", &b->set_num_threads},
                   {"openblas_get_config", &b->get_config},
                   {"openblas_get_corename", &b->get_corename}};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = library ? dlsym(library, symbols[i].name) : NULL;
        if (!symbol)
            return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

static const struct {
    int m, n, k;
    bool transposed; /* of the second factor, as for Q K^T */
} products[] = {{2048, 2048, 2048, false}, {2048, 2048, 128, true}, {2048, 128, 2048, false}};

typedef struct product {
    openblas blas;
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
    p->blas.set_num_threads(p->threads);
    double begin = clock_seconds();
    p->blas.sgemm(ROW_MAJOR, NO_TRANSPOSE, p->transposed ? TRANSPOSE : NO_TRANSPOSE, p->m, p->n, p->k, 1, p->a.data,
                  p->k, p->b.data, p->transposed ? p->k : p->n, 0, p->c.data, p->n);
    *seconds = clock_seconds() - begin;
    return true;
}

uint32_t blas_peer_count(void)
{
    openblas blas;
    return openblas_open(&blas) ? (uint32_t)(sizeof products / sizeof products[0]) : 0;
}

bool blas_peer_create(uint32_t index, uint32_t threads, uint64_t seed, peer *p, failure *why)
{
    memset(p, 0, sizeof *p);
    if (index >= blas_peer_count())
        return failure_set(why, "there is no product %u", index);
    product *made = calloc(1, sizeof *made);
    if (!made)
        return failure_set(why, "out of memory");
    if (!openblas_open(&made->blas)) {
        free(made);
        return failure_set(why, "libopenblas.so.0 cannot be opened");
    }
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
    const char *config = made->blas.get_config(); /* "OpenBLAS 0.3.21 ...": the first two words */
    size_t words = strcspn(config, " ");
    words += config[words] ? 1 + strcspn(config + words + 1, " ") : 0;
    (void)snprintf(p->plan, sizeof p->plan, "%.*s %.24s, %u threads", (int)(words < 40 ? words : 40), config,
                   made->blas.get_corename(), threads);
    p->threads = threads;
    (void)snprintf(p->timer, sizeof p->timer, "CLOCK_MONOTONIC around the call");
    p->flop = 2.0 * (double)m * (double)n * (double)k;
    p->bytes = 4.0 * ((double)(m * k) + (double)(k * n) + (double)(m * n));
    p->call = multiply;
    p->state = made;
    p->release = release_product;
    return true;
}

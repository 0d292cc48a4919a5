/* SPDX-License-Identifier: MIT */
/* Attention by its definition, in plain float32 loops on one thread: the lower bound of a comparison. */
#include "bench/peers/peers.h"

#include "bench/timing/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 512
#define DIM    128

typedef struct naive {
    float q[LENGTH][DIM], k[LENGTH][DIM], v[LENGTH][DIM], o[LENGTH][DIM];
    float s[LENGTH];
} naive;

static void attend(naive *n)
{
    const float scale = 1 / sqrtf((float)DIM);
    for (int i = 0; i < LENGTH; ++i) {
        float largest = -INFINITY, sum = 0;
        for (int j = 0; j < LENGTH; ++j) {
            float dot = 0;
            for (int d = 0; d < DIM; ++d)
                dot += n->q[i][d] * n->k[j][d];
            n->s[j] = dot * scale;
            largest = n->s[j] > largest ? n->s[j] : largest;
        }
        for (int j = 0; j < LENGTH; ++j) {
            n->s[j] = expf(n->s[j] - largest);
            sum += n->s[j];
        }
        memset(n->o[i], 0, sizeof n->o[i]);
        for (int j = 0; j < LENGTH; ++j)
            for (int d = 0; d < DIM; ++d)
                n->o[i][d] += n->s[j] / sum * n->v[j][d];
    }
}

static bool run(void *state, double *seconds)
{
    double begin = clock_seconds();
    attend(state);
    *seconds = clock_seconds() - begin;
    return true;
}

bool naive_peer_create(uint64_t seed, peer *p, failure *why)
{
    memset(p, 0, sizeof *p);
    naive *n = calloc(1, sizeof *n);
    if (!n)
        return failure_set(why, "out of memory");
    random_state r = {seed};
    for (int i = 0; i < LENGTH; ++i)
        for (int d = 0; d < DIM; ++d) {
            n->q[i][d] = (float)random_normal(&r);
            n->k[i][d] = (float)random_normal(&r);
            n->v[i][d] = (float)random_normal(&r);
        }
    (void)snprintf(p->name, sizeof p->name, "peer: naive loop");
    (void)snprintf(p->shape, sizeof p->shape, "b1h1:1q%dk%dd%d", LENGTH, LENGTH, DIM);
    (void)snprintf(p->plan, sizeof p->plan, "loops, 1 thread");
    (void)snprintf(p->timer, sizeof p->timer, "CLOCK_MONOTONIC around the call");
    p->threads = 1;
    p->flop = 4.0 * LENGTH * LENGTH * DIM;
    p->bytes = 4.0 * 4 * LENGTH * DIM;
    p->call = run;
    p->state = n;
    p->release = free;
    return true;
}

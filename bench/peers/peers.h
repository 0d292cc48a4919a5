/* SPDX-License-Identifier: MIT */
/* What a CPU's figures stand beside: a matrix product by OpenBLAS, which is about all that the machine can do, and
 * attention in plain loops, which is what no library at all can do. */
#ifndef BENCH_PEERS_PEERS_H
#define BENCH_PEERS_PEERS_H

#include "tests/oracle/array.h"
#include "bench/timing/row.h"

typedef struct peer {
    char name[64], shape[64], plan[96], timer[64];
    double flop, bytes; /* of one call */
    uint32_t threads;
    measure_call call; /* its context is `state` */
    void *state;
    void (*release)(void *state);
} peer;

/* The matrix products: 0 where libopenblas.so.0 cannot be opened, which this tries. */
uint32_t blas_peer_count(void);
bool blas_peer_create(uint32_t index, uint32_t threads, uint64_t seed, peer *p, failure *why);
/* float32 attention, one head, every pair, one thread, no blocking. */
bool naive_peer_create(uint64_t seed, peer *p, failure *why);
/* Describes a peer in a row, and times it. */
void peer_row(const peer *p, const row_options *options, report_row *row);
void peer_release(peer *p); /* accepts a zeroed one */

#endif

/* SPDX-License-Identifier: MIT */
/*
 * Peers for the figures of a CPU: matrix products by OpenBLAS, near the machine's peak, and attention in plain loops.
 */
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

/* The number of matrix products; 0 if libopenblas.so.0 cannot be opened. */
uint32_t blas_peer_count(void);
bool blas_peer_create(uint32_t index, uint32_t threads, uint64_t seed, peer *p, failure *why);
/* float32 attention: one head, every pair, one thread, no tiling. */
bool naive_peer_create(uint64_t seed, peer *p, failure *why);
/* Describes a peer in a row, and times it. */
void peer_row(const peer *p, const row_options *options, report_row *row);
void peer_release(peer *p); /* accepts a zeroed one */

#endif

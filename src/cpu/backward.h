/* SPDX-License-Identifier: MIT */
/* A backward call as its threads see it: backward.c cuts it, backward_tmpl.h computes it. */
#ifndef ATTUNE_CPU_BACKWARD_H
#define ATTUNE_CPU_BACKWARD_H

#include "cpu/cpu.h"

typedef struct attune__cpu_backward_run {
    attune__cpu_run base; /* its call is &call->forward; block_m and block_n are those of the present pass */
    const attune__backward *call;
    char *delta;       /* dot(o, d_o) - d_lse of each row */
    double *sums;      /* slots times the captures' elements */
    int64_t slots;     /* 0 = no gradients of captures are wanted */
    uint64_t elements; /* of these captures together */
} attune__cpu_backward_run;

/* Clears a slot's sums and gives where each symbol's begin; NULL = not wanted. */
void attune__cpu_backward_slot(const attune__cpu_backward_run *run, int64_t slot, double **sums);

/* The passes (attune__pool_fn). */
void attune__cpu_backward_delta_f32(void *run, uint32_t thread);
void attune__cpu_backward_delta_f64(void *run, uint32_t thread);
void attune__cpu_backward_rows_f32(void *run, uint32_t thread);
void attune__cpu_backward_rows_f64(void *run, uint32_t thread);
void attune__cpu_backward_keys_f32(void *run, uint32_t thread);
void attune__cpu_backward_keys_f64(void *run, uint32_t thread);

#endif

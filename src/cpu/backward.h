/* SPDX-License-Identifier: MIT */
/* The state of a backward call, which its threads share: backward.c divides it into items, backward_tmpl.h computes
 * them. */
#ifndef ATTUNE_CPU_BACKWARD_H
#define ATTUNE_CPU_BACKWARD_H

#include "cpu/cpu.h"

typedef struct attune__cpu_backward_run {
    attune__cpu_run base; /* its call is &call->forward; block_m and block_n are those of the current pass */
    const attune__backward *call;
    attune__cpu_backward_layout layout; /* likewise */
    char *delta;                        /* dot(o, d_o) - d_lse of each row */
    double *sums;                       /* [slots][elements] */
    int64_t slots;                      /* 0 = no capture gradients are requested */
    uint64_t elements;                  /* of all captures whose gradients are requested */
} attune__cpu_backward_run;

/* Clears a slot's sums, and returns a pointer to those of each symbol; NULL = not requested. */
void attune__cpu_backward_slot(const attune__cpu_backward_run *run, int64_t slot, double **sums);

/* The passes (attune__pool_fn). */
void attune__cpu_backward_delta_f32(void *run, uint32_t thread);
void attune__cpu_backward_delta_f64(void *run, uint32_t thread);
void attune__cpu_backward_sinks_f32(void *run, uint32_t thread);
void attune__cpu_backward_sinks_f64(void *run, uint32_t thread);
void attune__cpu_backward_rows_f32(void *run, uint32_t thread);
void attune__cpu_backward_rows_f64(void *run, uint32_t thread);
void attune__cpu_backward_keys_f32(void *run, uint32_t thread);
void attune__cpu_backward_keys_f64(void *run, uint32_t thread);

#endif

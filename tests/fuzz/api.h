/* SPDX-License-Identifier: MIT */
/* Shared by the files of fuzz_api: what a sequence of calls has, and the bytes that decide it. */
#ifndef TESTS_FUZZ_API_H
#define TESTS_FUZZ_API_H

#include <attune/attune.h>
#include <stdlib.h>

#define API_SLOTS 4
/* Integers that the device reads: lengths, pages, slots, trees, and tensors of masks. No call writes them, as its
 * outputs must not overlap its inputs. */
#define API_INTEGERS 4096

/* The bytes that are left of the input. */
typedef struct api_tape {
    const uint8_t *at, *end;
} api_tape;

typedef struct api_world {
    attune_instance *instances[API_SLOTS];
    attune_device *devices[API_SLOTS];
    attune_expr *exprs[API_SLOTS];
    attune_mask *masks[API_SLOTS];
    attune_plan *plans[API_SLOTS];
    attune_plan *serving[API_SLOTS];
    attune_problem problems[API_SLOTS]; /* of the serving plans, without handles */
    attune_buffer *buffers[API_SLOTS];
    attune_merger *mergers[API_SLOTS];
    attune_buffer *integers, *workspace; /* the latter of calls over a cache, which keep their schedules there */
    int32_t values[API_INTEGERS];        /* of `integers` */
} api_world;

void api_expect(bool condition);
uint32_t api_take(api_tape *t);
uint32_t api_below(api_tape *t, uint32_t count);
/* Mostly small, sometimes none that could be. */
int64_t api_length(api_tape *t);
/* A call that fails has a message, and returns no object. */
void api_failed_well(attune_status status, const void *handle);
/* A launch is waited for, as what it reads and writes may go. */
void api_launched(attune_status status, attune_completion done);
/* A tensor over one of the buffers, or over the integers; now and then of another shape or type than is asked for. */
attune_tensor api_tensor(api_world *w, api_tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype);
attune_tensor api_integers(api_world *w, api_tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype);

void api_host_captures(api_tape *t, attune_host_capture captures[2], attune_parameter *parameter);
void api_make_expr(api_world *w, api_tape *t);
void api_make_mask(api_world *w, api_tape *t);
void api_extend_mask(api_world *w, api_tape *t);
void api_make_tensor_mask(api_world *w, api_tape *t);
void api_update_mask(api_world *w, api_tape *t);
void api_look_at_mask(api_world *w, api_tape *t);

void api_make_plan(api_world *w, api_tape *t);
void api_run_plan(api_world *w, api_tape *t);
void api_run_merge(api_world *w, api_tape *t);
void api_run_merge_backward(api_world *w, api_tape *t);

void api_fill(api_world *w, api_tape *t);
void api_make_serving(api_world *w, api_tape *t);
void api_run_serving(api_world *w, api_tape *t);
void api_run_append(api_world *w, api_tape *t);

#endif

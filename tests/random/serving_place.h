/* SPDX-License-Identifier: MIT */
#ifndef TESTS_RANDOM_SERVING_PLACE_H
#define TESTS_RANDOM_SERVING_PLACE_H

#include "random/serving.h"

/* A buffer and what it must hold. */
typedef struct slab {
    attune_buffer *buffer;
    unsigned char *image;
    size_t bytes;
} slab;

/* One placement of a step. */
typedef struct fixture {
    slab k, v, workspace, schedule;
    int64_t *page_of, pages; /* [entries] */
    placed k_scale, v_scale, q, q_start, kv_len, kv_first, shared, count, table, starts, tree, sinks,
        captures[2 * SYMBOLS];
    placed out[3]; /* o, lse, row_max */
    attune_cache cache;
    attune_batch batch;
    attune_capture named[2 * SYMBOLS];
    attune_parameter parameters[2 * SYMBOLS];
    attune_forward_args args;
} fixture;

/* Full of NaN, or of any bytes. */
bool slab_create(runner *r, size_t bytes, int garbage, slab *s, finding *f);
bool slab_write(slab *s, finding *f);
void slab_destroy(slab *s);
/* The byte where a key's row begins. */
size_t cell_at(const attune_tensor *t, int64_t page, int64_t h, int64_t slot);

bool place_rows(runner *r, const serving *s, const char *name, attune_dtype dtype, const grid *v, const layout *l,
                bool output, placed *p, attune_tensor *t, finding *f);
bool fixture_create(runner *r, const serving *s, const step *c, const step_data *d, const attune_plan *plan, int which,
                    fixture *b, finding *f);
void fixture_destroy(fixture *b);
/* Whether all inputs are as they were. */
bool fixture_unchanged(const fixture *b, finding *f);

/* Appends the step's new rows and compares them with an own computation; what the cache then holds becomes the step's
 * data, or must be what it was for the placement before. */
bool append_rows(runner *r, const serving *s, const step *c, step_data *d, const attune_plan *plan, int which,
                 fixture *b, finding *f);

#endif

/* SPDX-License-Identifier: MIT */
/* C text compiled by the system's compiler into a library that the test opens. */
#ifndef TESTS_EXPR_BATCH_H
#define TESTS_EXPR_BATCH_H

#include <stdint.h>
#include <stdio.h>

#include "expr/expr.h"

/* A capture, as the prelude of the text has it. */
typedef struct batch_view {
    const void *data;
    int64_t size[4], stride[4];
} batch_view;
void batch_views(const attune_expr *expr, const attune_array *arrays, batch_view views[ATTUNE_EXPR_MAX_SYMBOLS]);

typedef struct batch {
    char directory[64], source[96], library[96];
    FILE *file;   /* of the source, between begin and open */
    void *opened; /* the library */
} batch;

void batch_begin(batch *b);
/* Writes a table of the functions f0 to before f<count>, compiles, and returns the table. A source that does not
 * compile fails the test, and is kept. */
void **batch_open(batch *b, uint64_t count);
void batch_end(batch *b);

#endif

/* SPDX-License-Identifier: MIT */
/* The names that expressions may use, with their data: of a command line or of a case folder. */
#ifndef TESTS_ORACLE_BINDINGS_H
#define TESTS_ORACLE_BINDINGS_H

#include "tests/oracle/array.h"

#define BINDINGS_MAX 32 /* of each kind */

typedef struct bindings {
    attune_symbol symbols[BINDINGS_MAX * 3];
    uint32_t symbol_count;
    uint32_t inferred; /* of these, the last: their kinds were guessed from the text */
    attune_host_capture captures[BINDINGS_MAX];
    array data[BINDINGS_MAX];
    uint32_t capture_count;
    attune_parameter parameters[BINDINGS_MAX];
    uint32_t parameter_count;
    char text[BINDINGS_MAX * 3][64]; /* the names */
} bindings;

void bindings_free(bindings *names);

#endif

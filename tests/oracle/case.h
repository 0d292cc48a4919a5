/* SPDX-License-Identifier: MIT */
/* A case folder: an attention problem and its answer as case.json and NPY files (tests/goldens/README.md). */
#ifndef TESTS_ORACLE_CASE_H
#define TESTS_ORACLE_CASE_H

#include "tests/oracle/bindings.h"
#include "tests/oracle/reference.h"

typedef struct case_folder {
    char mask[ATTUNE_EXPR_MAX_LENGTH + 1], score[ATTUNE_EXPR_MAX_LENGTH + 1];
    bool gradients;                                           /* the folder has do, dq, dk and dv */
    array d_o;                                                /* in the dtype asked for */
    array d_q, d_k, d_v, d_captures[ATTUNE_EXPR_MAX_SYMBOLS]; /* the answer, f64; by capture, empty = not in it */
    attention problem;
    array o, lse; /* the answer */
    bindings names;
} case_folder;

/* Whether the folder has a case.json that can be read. */
bool case_exists(const char *folder, failure *why);
/* Reads a folder; the JSON and the files are hostile until parsed. q, k and v are rounded to the dtype. Free with
 * case_free. */
bool case_load(attune_instance *instance, const char *folder, attune_dtype dtype, case_folder *c, failure *why);
void case_free(case_folder *c);

#endif

/* SPDX-License-Identifier: MIT */
/* Host arrays of the program: contiguous, owned, of any attune dtype; NPY files in and out. Used by the program and by
 * the tests. */
#ifndef TESTS_ORACLE_ARRAY_H
#define TESTS_ORACLE_ARRAY_H

#include <stdio.h>

#include <attune/attune.h>

typedef struct array {
    attune_dtype dtype;
    uint32_t rank; /* 0 to 4; 0 is a scalar */
    int64_t size[ATTUNE_MAX_RANK];
    void *data; /* 64-byte aligned; NULL = no array */
} array;

/* Functions that can fail return false and write a message: what, the value, the limit, the cure. */
typedef struct failure {
    char message[1024];
} failure;

void failure_write(failure *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool failure_false(void)
{
    return false;
}
/* failure_write that gives false, in a way that analysers see. */
#define failure_set(...) (failure_write(__VA_ARGS__), failure_false())

int64_t array_count(const array *a);
uint64_t array_bytes(const array *a);
bool array_create(array *a, attune_dtype dtype, uint32_t rank, const int64_t *size, failure *why); /* zeroed */
void array_free(array *a); /* accepts an empty one */
/* Element i as a double, and back with rounding to the dtype. Quantised types are codes without the factor of a row;
 * those in blocks are not set. */
double array_get(const array *a, int64_t i);
void array_set(array *a, int64_t i, double value);
bool array_convert(const array *a, attune_dtype dtype, array *out, failure *why);
/* As attune's host array. The data stays this array's. */
attune_array array_view(const array *a);

/*
 * NPY 1.0, 2.0 and 3.0. Reads <f4 <f8 <f2 <i4 <i8 |u1 |b1 (and bfloat16 as ml_dtypes writes it: |V2 or <V2 named
 * bfloat16), C order, up to 4 dimensions; whatever else is refused with the reason: the file is hostile until parsed.
 * Sizes are checked against the file's length before anything is allocated. Writes version 1.0; bf16 is written as f4.
 */
bool npy_read(const char *path, array *out, failure *why);
bool npy_parse(const void *bytes, size_t length, const char *name, array *out, failure *why);
bool npy_write(FILE *file, const array *a);
/* Integers of 1, 2, 4 or 8 bytes, signed or not, as i64. A value outside of least to most is an error. */
bool npy_read_integers(const char *path, int64_t least, int64_t most, array *out, failure *why);
bool npy_parse_integers(const void *bytes, size_t length, const char *name, int64_t least, int64_t most, array *out,
                        failure *why);

/* Deterministic random numbers: SplitMix64. */
typedef struct random_state {
    uint64_t state;
} random_state;
uint64_t random_u64(random_state *r);
double random_uniform(random_state *r); /* [0, 1) */
double random_normal(random_state *r);
/* Past 65,536 numbers they are drawn from among those; blocks of quantised types likewise. */
void array_fill_normal(array *a, random_state *r, double scale);

#endif

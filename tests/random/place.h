/* SPDX-License-Identifier: MIT */
#ifndef TESTS_RANDOM_PLACE_H
#define TESTS_RANDOM_PLACE_H

#include "random/random.h"

/* A tensor in a buffer, with bytes before, after and between that no kernel may touch. */
typedef struct placed {
    attune_tensor tensor;
    unsigned char *image;  /* what the buffer must hold outside the elements of an output */
    unsigned char *memory; /* what the CPU wraps; else NULL */
    size_t bytes;
    char name[24];
} placed;

/* `initial` NULL = an output, whose elements are canaries. `wrap`: the caller's memory, which only the CPU takes. */
attune_status place(runner *r, const char *name, attune_dtype dtype, int rank, const int64_t *size, const layout *l,
                    const double *initial, bool wrap, placed *p);
void displace(placed *p);
/* The elements as float64, and whether everything else is as it was. */
attune_status collect(const placed *p, double *elements, bool *untouched);
/* Whether the whole buffer is as it was when it was placed, or as it was at the last collect. */
attune_status unchanged(const placed *p, bool *same);
/* An element's index, in elements from the offset on. */
int64_t element_place(const attune_tensor *t, int64_t flat);
/* A host array of the same kind for masks. */
void host_array(runner *r, const char *name, attune_dtype dtype, int rank, const int64_t *size, const layout *l,
                const double *values, void **memory, attune_array *array);

/* Prints to the reproduction, if one is being written. */
void say(const runner *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails with what a call said. */
bool fail(finding *f, const char *kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The bindings of one tree on the host. Names of arrays in the reproduction are the symbols'. */
typedef struct host_bindings {
    attune_host_capture captures[SYMBOLS];
    attune_parameter parameters[SYMBOLS];
    void *memory[SYMBOLS];
    uint32_t capture_count, parameter_count;
} host_bindings;
void bind_tree(runner *r, const tree *t, const binding *bindings, const layout *layouts, const char *name,
               host_bindings *b);
void unbind(host_bindings *b);

/* Checks beside calls (checks.c). */
bool check_expressions(runner *r, const problem *p, const call *c, const call_data *d, attune_expr *const exprs[3],
                       finding *f);
bool check_mask(const problem *p, const call *c, const call_data *d, int segment, const attune_mask *mask, finding *f);
bool check_budget(runner *r, const call *c, attune_mask_desc desc, const attune_expr *expr, const host_bindings *b,
                  finding *f);
bool check_made(runner *r, const problem *p, const call *c, const call_data *d, int segment,
                const attune_mask_desc *desc, const attune_expr *expr, attune_mask *const operands[2],
                const attune_mask *mask, finding *f);
bool check_segments(runner *r, const call *c, attune_mask_desc desc, const attune_expr *expr, const host_bindings *b,
                    const attune_mask *mask, finding *f);
bool check_choice(runner *r, const attune_problem *wanted, const attune_kernel_options *options,
                  const attune_plan *plan, finding *f);

/* Masks (masks.c). Segment -1 = a call without. */
bool make_expressions(runner *r, const problem *p, attune_expr *exprs[3], finding *f);
bool make_mask(runner *r, const problem *p, const call *c, const call_data *d, int segment, attune_expr *const exprs[3],
               attune_mask **mask, finding *f);

/* The parts of a call that a mutation may change (mutate.c). */
#define TENSORS 40
/* Captures or parameters of a call: the score's, both masks', and one that nothing reads. */
#define NAMES (3 * SYMBOLS + 1)
typedef struct arguments {
    bool back; /* which of both is the call's */
    attune_forward_args forward;
    attune_backward_args backward;
    attune_segment segments[SEGMENTS];
    attune_capture captures[NAMES];
    attune_parameter parameters[NAMES];
    uint64_t workspace;
    int capture;        /* one that the call must have; -1 = none */
    int mask_parameter; /* one that the mask reads; -1 = none */
} arguments;
/* Changes one thing. True if the call must then be refused. */
bool mutate(const problem *p, const call *c, uint64_t seed, arguments *a, const char **what);

#endif

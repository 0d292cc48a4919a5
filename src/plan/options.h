/* SPDX-License-Identifier: MIT */
/* Kernel options by number, for the struct and for JSON. prefix is "", "fwd_" or "bwd_". */
#ifndef ATTUNE_PLAN_OPTIONS_H
#define ATTUNE_PLAN_OPTIONS_H

#include <attune/attune.h>

/* Kernel options by number, in the order in which error messages name them. */
typedef enum attune__option {
    ATTUNE__NUM_STAGES,
    ATTUNE__BLOCK_M,
    ATTUNE__BLOCK_N,
    ATTUNE__BLOCK_M1,
    ATTUNE__BLOCK_N1,
    ATTUNE__BLOCK_M2,
    ATTUNE__BLOCK_N2,
    ATTUNE__NUM_WARPS,
    ATTUNE__SPLIT_KV,
    ATTUNE__FORCE_USE_FLEX_ATTENTION,
    ATTUNE__PRESCALE_QK,
    ATTUNE__ROWS_GUARANTEED_SAFE,
    ATTUNE__BLOCKS_ARE_CONTIGUOUS,
    ATTUNE__WRITE_DQ,
    ATTUNE__USE_TMA,
    ATTUNE__DETERMINISTIC,
    ATTUNE__APPROXIMATE_TANH,
    ATTUNE__KERNEL,
    ATTUNE__OPTION_COUNT
} attune__option;

#define ATTUNE__BIT(option) (UINT32_C(1) << (option))
/* The name in JSON: "BLOCK_M". */
const char *attune__option_name(attune__option option);
/* Whether the option applies to a direction. */
bool attune__option_applies(attune__option option, attune_direction direction);
/* The value as a number (KERNEL: 1 if set). */
uint32_t attune__option_get(const attune_pass_options *options, attune__option option);
void attune__option_set(attune_pass_options *options, attune__option option, uint32_t value);
/* The smallest and largest value; 0 and 2 for a choice, which is a bool in JSON; largest 0 for KERNEL. */
typedef struct attune__option_range {
    uint32_t least, most;
    bool choice;
} attune__option_range;
attune__option_range attune__option_range_of(attune__option option);
/* INVALID_ARGUMENT, with the option's name, if the value is out of range. */
attune_status attune__check_option(const char *prefix, attune__option option, int64_t value);
/* INVALID_ARGUMENT if the pass of the prefix has no such option. */
attune_status attune__check_prefix(const char *prefix, attune__option option);
/* The edit distance of two texts, ignoring case; 1 if b contains a. */
size_t attune__edit_distance(const char *a, const char *b);
/* Whether a may be a misspelling of b: at most half of the longer one differs. */
bool attune__resembles(const char *a, const char *b);

/* Copies a caller's options, of any struct_size, and checks every value except kernel names. NULL = none. */
attune_status attune__options_read(const attune_kernel_options *options, attune_kernel_options *read);
/* Merges the options for one direction, and returns the bits of those that are set. */
void attune__options_merge(const attune_kernel_options *options, attune_direction direction,
                           attune_pass_options *merged, uint32_t *forced);

#endif

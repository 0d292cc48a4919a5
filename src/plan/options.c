/* SPDX-License-Identifier: MIT */
/* Kernel options by number: names, ranges, and the merge of `any` with one pass. */
#include "plan/options.h"

#include <string.h>

#include "base/desc.h"
#include "base/error.h"

#define FORWARD  1u
#define BACKWARD 2u

static const struct {
    const char *name;
    size_t offset;
    uint32_t passes, least, most;
    bool choice;
} table[ATTUNE__OPTION_COUNT] = {
#define FIELD(field) offsetof(attune_pass_options, field)
    [ATTUNE__NUM_STAGES] = {"num_stages", FIELD(num_stages), FORWARD | BACKWARD, 1, 8, false},
    [ATTUNE__BLOCK_M] = {"BLOCK_M", FIELD(block_m), FORWARD, 1, 1024, false},
    [ATTUNE__BLOCK_N] = {"BLOCK_N", FIELD(block_n), FORWARD, 1, 1024, false},
    [ATTUNE__BLOCK_M1] = {"BLOCK_M1", FIELD(block_m1), BACKWARD, 1, 1024, false},
    [ATTUNE__BLOCK_N1] = {"BLOCK_N1", FIELD(block_n1), BACKWARD, 1, 1024, false},
    [ATTUNE__BLOCK_M2] = {"BLOCK_M2", FIELD(block_m2), BACKWARD, 1, 1024, false},
    [ATTUNE__BLOCK_N2] = {"BLOCK_N2", FIELD(block_n2), BACKWARD, 1, 1024, false},
    [ATTUNE__NUM_WARPS] = {"num_warps", FIELD(num_warps), FORWARD | BACKWARD, 1, 32, false},
    [ATTUNE__SPLIT_KV] = {"SPLIT_KV", FIELD(split_kv), FORWARD, 1, 1024, false},
    [ATTUNE__FORCE_USE_FLEX_ATTENTION] = {"FORCE_USE_FLEX_ATTENTION", FIELD(force_use_flex_attention), FORWARD, 0, 2,
                                          true},
    [ATTUNE__PRESCALE_QK] = {"PRESCALE_QK", FIELD(prescale_qk), FORWARD | BACKWARD, 0, 2, true},
    [ATTUNE__ROWS_GUARANTEED_SAFE] = {"ROWS_GUARANTEED_SAFE", FIELD(rows_guaranteed_safe), FORWARD, 0, 2, true},
    [ATTUNE__BLOCKS_ARE_CONTIGUOUS] = {"BLOCKS_ARE_CONTIGUOUS", FIELD(blocks_are_contiguous), FORWARD | BACKWARD, 0, 2,
                                       true},
    [ATTUNE__WRITE_DQ] = {"WRITE_DQ", FIELD(write_dq), BACKWARD, 0, 2, true},
    [ATTUNE__USE_TMA] = {"USE_TMA", FIELD(use_tma), FORWARD | BACKWARD, 0, 2, true},
    [ATTUNE__DETERMINISTIC] = {"DETERMINISTIC", FIELD(deterministic), BACKWARD, 0, 2, true},
    [ATTUNE__APPROXIMATE_TANH] = {"APPROXIMATE_TANH", FIELD(approximate_tanh), FORWARD | BACKWARD, 0, 2, true},
    [ATTUNE__KERNEL] = {"KERNEL", FIELD(kernel), FORWARD | BACKWARD, 0, 0, false},
#undef FIELD
};

_Static_assert(sizeof(attune_choice) == sizeof(uint32_t), "choices are read as numbers");

const char *attune__option_name(attune__option option)
{
    return table[option].name;
}

bool attune__option_applies(attune__option option, attune_direction direction)
{
    return table[option].passes & (direction == ATTUNE_BACKWARD ? BACKWARD : FORWARD);
}

attune__option_range attune__option_range_of(attune__option option)
{
    return (attune__option_range){table[option].least, table[option].most, table[option].choice};
}

uint32_t attune__option_get(const attune_pass_options *options, attune__option option)
{
    if (option == ATTUNE__KERNEL)
        return options->kernel[0] != '\0';
    uint32_t value;
    memcpy(&value, (const char *)options + table[option].offset, sizeof value);
    return value;
}

void attune__option_set(attune_pass_options *options, attune__option option, uint32_t value)
{
    memcpy((char *)options + table[option].offset, &value, sizeof value);
}

/* ----------------------------------------------------------------------------------------------------- did you mean */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Whether b contains a, ignoring case. */
static bool contains(const char *b, const char *a)
{
    for (; *b; b++) {
        size_t i = 0;
        while (a[i] && lower(a[i]) == lower(b[i]))
            i++;
        if (!a[i])
            return true;
    }
    return false;
}

size_t attune__edit_distance(const char *a, const char *b)
{
    enum { MOST = 48, WORD = 3 };
    if (strlen(a) >= WORD && strlen(a) < strlen(b) && contains(b, a))
        return 1;
    size_t n = least(strlen(a), MOST), m = least(strlen(b), MOST), row[MOST + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t replaced = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
            diagonal = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

bool attune__resembles(const char *a, const char *b)
{
    const size_t longer = strlen(a) > strlen(b) ? strlen(a) : strlen(b);
    return 2 * attune__edit_distance(a, b) <= longer;
}

/* ---------------------------------------------------------------------------------------------------------- merging */

attune_status attune__check_option(const char *prefix, attune__option option, int64_t value)
{
    if (value >= table[option].least && value <= table[option].most)
        return ATTUNE_OK;
    if (table[option].choice)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s%s is %lld, expected ATTUNE_AUTO (0), ATTUNE_ON (1) or ATTUNE_OFF (2)", prefix,
                            table[option].name, (long long)value);
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s%s is %lld, expected %u to %u", prefix, table[option].name,
                        (long long)value, table[option].least, table[option].most);
}

attune_status attune__check_prefix(const char *prefix, attune__option option)
{
    bool forward = !strcmp(prefix, "fwd_");
    if (!*prefix || attune__option_applies(option, forward ? ATTUNE_FORWARD : ATTUNE_BACKWARD))
        return ATTUNE_OK;
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s%s: %s is an option of the %s pass only: write %s", prefix,
                        table[option].name, table[option].name, forward ? "backward" : "forward", table[option].name);
}

static attune_status check_pass(const char *prefix, const attune_pass_options *options)
{
    if (!memchr(options->kernel, '\0', sizeof options->kernel))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%sKERNEL has no NUL in its %zu bytes", prefix,
                            sizeof options->kernel);
    for (uint32_t i = 0; i < ATTUNE__OPTION_COUNT; i++) {
        uint32_t value = attune__option_get(options, i);
        if (!value)
            continue;
        ATTUNE__TRY(attune__check_prefix(prefix, i));
        if (i != ATTUNE__KERNEL)
            ATTUNE__TRY(attune__check_option(prefix, i, value));
    }
    return ATTUNE_OK;
}

attune_status attune__options_read(const attune_kernel_options *options, attune_kernel_options *read)
{
    *read = (attune_kernel_options){.struct_size = sizeof *read};
    if (options)
        ATTUNE__TRY(attune__desc_read(read, sizeof *read, options, sizeof *read, "options"));
    ATTUNE__TRY(check_pass("", &read->any));
    ATTUNE__TRY(check_pass("fwd_", &read->fwd));
    return check_pass("bwd_", &read->bwd);
}

void attune__options_merge(const attune_kernel_options *options, attune_direction direction,
                           attune_pass_options *merged, uint32_t *forced)
{
    const attune_pass_options *pass = direction == ATTUNE_BACKWARD ? &options->bwd : &options->fwd;
    memset(merged, 0, sizeof *merged);
    *forced = 0;
    for (uint32_t i = 0; i < ATTUNE__OPTION_COUNT; i++) {
        /* Options of the other direction are ignored. */
        if (!attune__option_applies(i, direction))
            continue;
        const attune_pass_options *from = attune__option_get(pass, i) ? pass : &options->any;
        uint32_t value = attune__option_get(from, i);
        if (!value)
            continue;
        *forced |= ATTUNE__BIT(i);
        if (i == ATTUNE__KERNEL)
            memcpy(merged->kernel, from->kernel, sizeof merged->kernel);
        else
            attune__option_set(merged, i, value);
    }
}

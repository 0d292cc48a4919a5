/* SPDX-License-Identifier: MIT */
#ifndef TESTS_PLAN_PLAN_TEST_H
#define TESTS_PLAN_PLAN_TEST_H

#include <criterion/criterion.h>
#include <string.h>

#include "plan/plan.h"

static inline attune_limits device(const char *name)
{
    attune_profile p = {.struct_size = sizeof p};
    cr_assert_eq(attune_profile_find(name, &p), ATTUNE_OK, "%s", attune_last_error());
    return p.limits;
}

/* Options from JSON, which must parse; NULL = none. A library without JSON has no such test. */
static inline attune_kernel_options options(const char *json)
{
    attune_kernel_options o = {.struct_size = sizeof o};
    if (!json)
        return o;
    const attune_status status = attune_kernel_options_parse(json, &o);
    if (status == ATTUNE_UNSUPPORTED)
        cr_skip_test("%s", attune_last_error());
    cr_assert_eq(status, ATTUNE_OK, "%s: %s", json, attune_last_error());
    return o;
}

/* The plan of a problem that must have one. json NULL = automatic. */
static inline attune_plan_choice plan(const char *name, const attune_problem *problem, const char *json)
{
    attune_limits limits = device(name);
    attune_kernel_options o = options(json);
    attune_plan_choice c = {.struct_size = sizeof c};
    cr_assert_eq(attune_plan_choose(&limits, problem, json ? &o : NULL, &c), ATTUNE_OK, "%s %s: %s", name,
                 json ? json : "", attune_last_error());
    cr_assert(limits.backend == ATTUNE_BACKEND_CPU || c.shared_memory <= limits.shared_memory);
    return c;
}

/* Eight query heads on two of keys. */
static inline attune_problem problem_of(attune_dtype dtype, uint32_t head_dim, int64_t q_len, int64_t kv_len)
{
    return (attune_problem){.struct_size = sizeof(attune_problem),
                            .dtype = dtype,
                            .head_dim = head_dim,
                            .heads = 8,
                            .kv_heads = 2,
                            .q_len = q_len,
                            .kv_len = kv_len};
}

/* Expects a status whose message has all the words, up to a NULL. */
static inline void expect_error(const char *name, const attune_problem *problem, const char *json, attune_status status,
                                const char *const *words)
{
    attune_limits limits = device(name);
    attune_kernel_options o = options(json);
    attune_plan_choice c = {.struct_size = sizeof c, .block_m = 12345};
    attune_status got = attune_plan_choose(&limits, problem, &o, &c);
    cr_assert_eq(got, status, "%s %s gives %d: %s", name, json, (int)got, got ? attune_last_error() : "");
    cr_assert_eq(c.block_m, 12345, "an error changed the output");
    for (; *words; words++)
        cr_assert(strstr(attune_last_error(), *words), "\"%s\" does not say \"%s\"", attune_last_error(), *words);
}
#define EXPECT_ERROR(name, problem, json, status, ...)                                                                 \
    expect_error(name, problem, json, status, (const char *const[]){__VA_ARGS__, NULL})

#endif

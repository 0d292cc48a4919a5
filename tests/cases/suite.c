/* SPDX-License-Identifier: MIT */
#include "cases/suite.h"

#include <criterion/hooks.h>
#include <criterion/internal/ordered-set.h>

#include "support/devices.h"

/* Whether a run is one of `share`. Successive rows begin with successive dtypes, so that a sample has all of them. */
static bool in_share(const case_suite *s, uint32_t row, uint32_t variant, uint64_t share)
{
    const uint64_t all = (uint64_t)CASE_COUNT * s->variants, step = share < all ? all / share : 1,
                   number = (uint64_t)row * s->variants + (row + variant) % s->variants;
    return number % step == test_seed() % step;
}

/* Whether this process has the run, and none before it had. */
static bool chosen(const case_suite *s, uint32_t row, uint32_t variant)
{
    const uint64_t all = (uint64_t)CASE_COUNT * s->variants;
    const bool sampled = s->sample && test_sampled();
    const uint64_t done = test_done(sampled ? s->sample : all);
    return in_share(s, row, variant, sampled ? scaled(s->sample) : all) && test_part(row) &&
           !(done && in_share(s, row, variant, sampled ? done : all));
}

static bool make(const case_row *test, uint32_t variant, case_job *job)
{
    return case_supported(&attention_cases[test->row], test->suite->backend, test->suite->gradients) &&
           chosen(test->suite, test->row, variant) && test->suite->row(test->suite, test->row, variant, job) &&
           test_dtype(job->dtype);
}

/* Rows that have nothing to run here start no process. */
ReportHook(PRE_ALL)(struct criterion_test_set *all)
{
    FOREACH_SET(struct criterion_suite_set * suite, all->suites)
    {
        FOREACH_SET(struct criterion_test * test, suite->tests)
        {
            const case_row *row = test->data->data;
            bool any = !row;
            case_job job;
            for (uint32_t variant = 0; row && variant < row->suite->variants && !any; variant++)
                any = make(row, variant, &job);
            if (!any)
                test->data->disabled = true;
        }
    }
}

static attune_device *open_device(const case_suite *s, attune_instance **instance)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cpu_threads = s->cpu_threads};
    cr_assert_eq(attune_instance_create(&desc, instance), ATTUNE_OK, "%s", attune_last_error());
    attune_device *device = device_or_skip(*instance, s->backend);
    attune_device_info info = {.struct_size = sizeof info};
    if (s->prepare)
        s->prepare(device);
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    const bool lacks_matrix = s->matrix & ~info.limits.matrix || (s->bf16 && !info.limits.bf16);
    if (lacks_matrix || (s->subgroups && !info.limits.subgroup_operations)) {
        attune_device_destroy(device);
        attune_instance_destroy(*instance);
        cr_skip_test("the first device of %s has no %s", s->backend,
                     lacks_matrix ? "cooperative matrices of the type, or they were not compiled"
                                  : "subgroups that shuffle");
    }
    return device;
}

/* Whether the case ran: else the reason is said, and in `why`. */
static bool run(const case_suite *s, attune_instance *instance, attune_device *device, const case_job *job,
                failure *why)
{
    const attention_case *c = &job->c;
    const bool passed = s->gradients ? case_run_gradients(instance, device, c, job->dtype, job->seed, why)
                                     : case_run(instance, device, c, job->dtype, job->seed, why);
    if (!passed && case_is_skipped(why)) {
        cr_log_info("%s", why->message);
        return false;
    }
    if (!passed)
        cr_expect_fail(
            "%s\n  options %s preferred %s backward %s segments %u batch %lld/%lld heads %lld/%lld lengths %lld x "
            "%lld head_dim %u/%u mask \"%s\" score \"%s\" input %d layout %d blocks %u x %u longer %lld plan for "
            "%lld queries more",
            why->message, c->options ? c->options : "", c->preferred ? c->preferred : "",
            c->backward_options ? c->backward_options : "", c->segments, (long long)c->batch, (long long)c->kv_batch,
            (long long)c->heads, (long long)c->kv_heads, (long long)c->q_len, (long long)c->kv_len, c->head_dim,
            c->head_dim_v, c->mask ? c->mask : "", c->score ? c->score : "", (int)c->input, (int)c->layout, c->q_block,
            c->kv_block, (long long)c->mask_longer, (long long)c->plan_more);
    return true;
}

void case_suite_row(const case_row *test)
{
    attune_instance *instance;
    attune_device *device = open_device(test->suite, &instance);
    failure why;
    bool ran = false, skipped = false;
    for (uint32_t variant = 0; variant < test->suite->variants; variant++) {
        case_job job;
        if (!make(test, variant, &job))
            continue;
        if (run(test->suite, instance, device, &job, &why))
            ran = true;
        else
            skipped = true;
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    if (!ran && skipped)
        cr_skip_test("%s", why.message);
}

void case_suite_random(const case_suite *suite)
{
    attune_instance *instance;
    attune_device *device = open_device(suite, &instance);
    const uint64_t count = scaled(suite->random);
    uint64_t ran = 0, skipped = 0;
    for (uint64_t i = test_done(suite->random); i < count; i++) {
        case_job job;
        if (!test_part(i) || !suite->draw(suite, i, &job))
            continue;
        job.c.sinks = job.c.sinks && case_supported(&job.c, suite->backend, suite->gradients);
        failure why;
        if (run(suite, instance, device, &job, &why))
            ran++;
        else
            skipped++;
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_log_info("%llu random cases, and %llu that the kernel of ATTUNE_TEST_KERNEL does not take",
                (unsigned long long)ran, (unsigned long long)skipped);
}

/* SPDX-License-Identifier: MIT */
#include "support/devices.h"

#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <criterion/internal/ordered-set.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool required(const char *backend)
{
    const char *list = getenv("ATTUNE_REQUIRE");
    size_t length = strlen(backend);
    while (list && *list) {
        size_t word = strcspn(list, ",");
        if (word == length && !strncmp(list, backend, length))
            return true;
        list += word + (list[word] == ',');
    }
    return false;
}

attune_device *device_or_skip(attune_instance *instance, const char *backend)
{
    attune_device *device;
    char id[64];
    const char *profile = getenv("ATTUNE_TEST_PROFILE");
    (void)snprintf(id, sizeof id, "%s%s%.32s", backend, profile ? "@" : "", profile ? profile : "");
    /* A profile is laid over the devices of its own backend. */
    attune_status status = attune_device_open(instance, id, &device);
    if (status == ATTUNE_INVALID_ARGUMENT)
        status = attune_device_open(instance, backend, &device);
    if (status == ATTUNE_OK)
        return device;
    cr_assert(status == ATTUNE_UNAVAILABLE, "%s", attune_last_error());
    cr_assert(!required(backend), "ATTUNE_REQUIRE names %s: %s", backend, attune_last_error());
    cr_skip_test("%s", attune_last_error());
    return NULL;
}

void nvrtc_or_skip(void)
{
    static const char reason[] = "libnvrtc.so.13 and libnvrtc.so.12 cannot be opened";
    if (dlopen("libnvrtc.so.13", RTLD_NOW) || dlopen("libnvrtc.so.12", RTLD_NOW))
        return;
    cr_assert(!required("nvrtc"), "ATTUNE_REQUIRE names nvrtc: %s", reason);
    cr_skip_test("%s", reason);
}

static uint64_t times(uint64_t full, const char *scale_text)
{
    double scale = scale_text ? strtod(scale_text, NULL) : 1;
    double count = (double)full * (scale > 0 ? scale : 1);
    return count < 1 ? 1 : (uint64_t)count;
}

uint64_t scaled(uint64_t full)
{
    return times(full, getenv("ATTUNE_TEST_SCALE"));
}

uint64_t test_done(uint64_t full)
{
    const char *text = getenv("ATTUNE_TEST_DONE");
    return text ? times(full, text) : 0;
}

uint64_t test_seed(void)
{
    const char *text = getenv("ATTUNE_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : UINT64_C(0x617474756e65);
}

bool test_part(uint64_t number)
{
    const char *text = getenv("ATTUNE_TEST_PART");
    char *rest = NULL;
    const uint64_t part = text ? strtoull(text, &rest, 10) : 0,
                   parts = rest && *rest == '/' ? strtoull(rest + 1, NULL, 10) : 1;
    return parts < 2 || number % parts == part;
}

static bool is_or_unset(const char *variable, const char *text)
{
    const char *chosen = getenv(variable);
    return !chosen || !*chosen || !strcmp(chosen, text);
}

bool test_case(const char *name)
{
    return is_or_unset("ATTUNE_TEST_CASE", name);
}

void test_case_found(size_t ran)
{
    cr_assert(ran || test_case(""), "no case that runs here is named %s", getenv("ATTUNE_TEST_CASE"));
}

bool test_dtype(attune_dtype dtype)
{
    return is_or_unset("ATTUNE_TEST_DTYPE", attune_dtype_string(dtype));
}

bool test_sampled(void)
{
    return getenv("ATTUNE_TEST_SAMPLE") != NULL;
}

/* Whether what a file's tests do follows from the scale, the sample or the part. A file that cannot be read may. */
static bool scales(const char *path)
{
    static const char *const words[] = {"scaled(", "test_sampled(", "test_part(", "case_suite"};
    char line[512];
    FILE *file = fopen(path, "r");
    bool found = !file;
    while (file && !found && fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof words / sizeof words[0] && !found; i++)
            found = strstr(line, words[i]) != NULL;
    if (file)
        (void)fclose(file);
    return found;
}

ReportHook(PRE_ALL)(struct criterion_test_set *all)
{
    if (!test_done(1))
        return;
    FOREACH_SET(struct criterion_suite_set * suite, all->suites)
    {
        FOREACH_SET(struct criterion_test * test, suite->tests)
        {
            if (!scales(test->data->file_))
                test->data->disabled = true;
        }
    }
}

void model_or_skip(void)
{
    const char *driver = getenv("ATTUNE_MODEL_CUDA"), *compiler = getenv("ATTUNE_MODEL_NVRTC");
    if (!driver || !compiler)
        cr_skip_test("ATTUNE_MODEL_CUDA and ATTUNE_MODEL_NVRTC are not set");
    cr_assert(dlopen(driver, RTLD_NOW | RTLD_LOCAL) && dlopen(compiler, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

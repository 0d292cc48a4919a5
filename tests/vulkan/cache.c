/* SPDX-License-Identifier: MIT */
/* The disk cache saves compilation, and nothing corrupt in it reaches a driver or fails a call. The
 * driver's data are the layer's (fake.h): Mesa's CPU driver keeps none. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/devices.h"
#include "vulkan/fake.h"

#define KEPT 1000

typedef struct fixture {
    char folder[64];
    attune__vulkan_overrides overrides;
    attune_instance *instance;
    attune_device *device;
} fixture;

static void reopen(fixture *k)
{
    attune_device_destroy(k->device);
    cr_assert_eq(open_with(k->instance, &k->overrides, &k->device), ATTUNE_OK, "%s", attune_last_error());
}

static void fixture_open(fixture *k)
{
    *k = (fixture){.overrides = {.get = fake_get()}};
    snprintf(k->folder, sizeof k->folder, "/tmp/attune-cache-XXXXXX");
    cr_assert_not_null(mkdtemp(k->folder));
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = k->folder};
    cr_assert_eq(attune_instance_create(&desc, &k->instance), ATTUNE_OK);
    fake.kept = KEPT;
    reopen(k);
}

/* Calls `visit` for each file whose name begins with the kind; returns how many there are. */
static int each(const fixture *k, const char *kind, void (*visit)(const char *path))
{
    int count = 0;
    DIR *list = opendir(k->folder);
    cr_assert_not_null(list);
    for (const struct dirent *at; (at = readdir(list));) {
        char path[400];
        if (at->d_name[0] == '.' || strncmp(at->d_name, kind, strlen(kind)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", k->folder, at->d_name);
        if (visit)
            visit(path);
        count++;
    }
    closedir(list);
    return count;
}

static void forget(const char *path)
{
    unlink(path);
}

static void fixture_close(fixture *k)
{
    attune_device_destroy(k->device);
    attune_instance_destroy(k->instance);
    each(k, "", forget);
    rmdir(k->folder);
    cr_expect_eq(fake.wrong, 0);
}

static attune_status make_plan(const fixture *k, const char *score)
{
    attune_expr *expr;
    const attune_symbol heat = {"heat", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0};
    attune_status status = attune_expr_create(k->instance, ATTUNE_EXPR_SCORE, score, &heat, 1, &expr);
    const attune_problem problem = {
        .struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = 64, .q_len = 64, .kv_len = 64, .score = expr};
    attune_plan *plan = NULL;
    if (status == ATTUNE_OK)
        status = attune_plan_create(k->device, &problem, NULL, &plan);
    attune_plan_destroy(plan);
    attune_expr_destroy(expr);
    return status;
}

/* Makes a program and expects all its pipelines to come from the disk, or none. */
static void expect(const fixture *k, const char *score, bool hit)
{
    const int given = fake.given, empty = fake.empty;
    cr_assert_eq(make_plan(k, score), ATTUNE_OK, "%s", attune_last_error());
    if (hit) {
        cr_expect_gt(fake.given, given);
        cr_expect_eq(fake.empty, empty);
    } else {
        cr_expect_eq(fake.given, given);
        cr_expect_gt(fake.empty, empty);
    }
}

Test(vulkan_cache, the_second_time_is_from_the_disk)
{
    fixture k;
    fixture_open(&k);
    expect(&k, "score * heat", false);
    const int modules = each(&k, "vulkan-module", NULL), pipelines = each(&k, "vulkan-pipeline", NULL);
    cr_expect_eq(modules, 1);
    cr_expect_geq(pipelines, 1);
    expect(&k, "score * heat", true);
    cr_expect_eq(each(&k, "", NULL), modules + pipelines);
    reopen(&k);
    expect(&k, "score * heat", true);
    /* Another expression, which differs in one number, is another module. */
    expect(&k, "score * heat * 2", false);
    expect(&k, "score * heat * 3", false);
    expect(&k, "score * heat * 2", true);
    fixture_close(&k);
}

static void flip(const char *path)
{
    FILE *file = fopen(path, "r+b");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, -5, SEEK_END), 0);
    const int byte = fgetc(file);
    cr_assert_eq(fseek(file, -5, SEEK_END), 0);
    fputc(byte ^ 16, file);
    fclose(file);
}

static void shorten(const char *path)
{
    FILE *file = fopen(path, "r+b");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    cr_assert_eq(ftruncate(fileno(file), ftell(file) / 2), 0);
    fclose(file);
}

static void empty(const char *path)
{
    cr_assert_eq(truncate(path, 0), 0);
}

Test(vulkan_cache, damage_is_a_miss_and_is_mended)
{
    fixture k;
    fixture_open(&k);
    expect(&k, "score * heat", false);
    void (*const damages[])(const char *) = {flip, shorten, empty};
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        cr_assert_gt(each(&k, "", damages[i]), 1);
        expect(&k, "score * heat", false);
        expect(&k, "score * heat", true);
    }
    fixture_close(&k);
}

Test(vulkan_cache, another_driver_is_a_miss)
{
    fixture k;
    fixture_open(&k);
    expect(&k, "score * heat", false);
    fake.driver = 1;
    reopen(&k);
    expect(&k, "score * heat", false);
    expect(&k, "score * heat", true);
    /* Each keeps its own. */
    fake.driver = 0;
    reopen(&k);
    expect(&k, "score * heat", true);
    fixture_close(&k);
}

static const fixture *forged;

/* A sound entry under the right key, with data that say they are another vendor's. */
static void forge(const char *path)
{
    uint8_t bytes[8192];
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    attune__entry entry;
    cr_assert_null(attune__entry_read(bytes, size, &entry));
    uint8_t data[4096];
    cr_assert_leq(entry.data_size, sizeof data);
    memcpy(data, entry.data, entry.data_size);
    data[8] ^= 1; /* of vendorID */
    const attune__cache_key key = {"vulkan-pipeline", entry.hash, entry.identity, entry.identity_size};
    attune__cache_put(forged->instance->host.cache, &key, data, entry.data_size);
    void *kept = NULL;
    size_t kept_size;
    cr_assert(attune__cache_get(forged->instance->host.cache, &key, &kept, &kept_size));
    cr_assert_eq(memcmp(kept, data, kept_size), 0);
    attune__free(&forged->instance->host.allocator, kept);
}

Test(vulkan_cache, data_with_another_header_never_reach_the_driver)
{
    fixture k;
    fixture_open(&k);
    expect(&k, "score * heat", false);
    forged = &k;
    cr_assert_gt(each(&k, "vulkan-pipeline", forge), 0);
    expect(&k, "score * heat", false);
    expect(&k, "score * heat", true);
    /* Nor are they kept when a driver gives them. */
    const int pipelines = each(&k, "vulkan-pipeline", NULL);
    fake.foreign = true;
    expect(&k, "score + heat", false);
    cr_expect_eq(each(&k, "vulkan-pipeline", NULL), pipelines);
    fixture_close(&k);
}

Test(vulkan_cache, never_decides_whether_a_program_is_made)
{
    fixture k;
    fixture_open(&k);
    expect(&k, "score * heat", false);
    fake.refuse_kept = true;
    expect(&k, "score * heat", true);
    fake.refuse_kept = false;
    fake.no_cache = true;
    cr_expect_eq(make_plan(&k, "score * heat"), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(make_plan(&k, "score - heat"), ATTUNE_OK, "%s", attune_last_error());
    fake.no_cache = false;
    /* The folder goes, and a file takes its place. */
    each(&k, "", forget);
    cr_assert_eq(rmdir(k.folder), 0);
    FILE *file = fopen(k.folder, "w");
    cr_assert_not_null(file);
    fclose(file);
    expect(&k, "score * heat", false);
    cr_assert_eq(unlink(k.folder), 0);
    expect(&k, "score * heat", false);
    expect(&k, "score * heat", true);
    fixture_close(&k);
}

static void *make_plans(void *fixture_)
{
    static const char *const scores[] = {"score * heat", "score + heat", "score - heat"};
    attune_status *status = calloc(1, sizeof *status);
    for (int i = 0; i < 6 && *status == ATTUNE_OK; i++)
        *status = make_plan(fixture_, scores[i % 3]);
    return status;
}

Test(vulkan_cache, two_threads)
{
    fixture k;
    fixture_open(&k);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, make_plans, &k), 0);
    for (int i = 0; i < 2; i++) {
        void *status;
        pthread_join(threads[i], &status);
        cr_expect_eq(*(attune_status *)status, ATTUNE_OK);
        free(status);
    }
    cr_expect_eq(each(&k, "vulkan-module", NULL), 3);
    expect(&k, "score - heat", true);
    fixture_close(&k);
}

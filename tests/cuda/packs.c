/* SPDX-License-Identifier: MIT */
/* Packs over a driver that is not there: made by one compiler, run where there is none, and every damage refused. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <attune/attune.h>

#include "cuda/fake.h"
#include "support/heap.h"

typedef struct fixture {
    heap heap;
    attune_instance *instance;
    char path[64];
} fixture;

static void *open_driver(void)
{
    void *driver = dlopen(getenv("ATTUNE_FAKE_CUDA"), RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(driver, "%s", dlerror());
    ((fake_state *)dlsym(driver, "fake"))->architecture = 90;
    return driver;
}

static fake_compiler *open_compiler(void)
{
    void *compiler = dlopen(getenv("ATTUNE_FAKE_NVRTC"), RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(compiler, "%s", dlerror());
    fake_compiler *state = dlsym(compiler, "compiler");
    cr_assert_not_null(state);
    return state;
}

static attune_limits limits_of_device(attune_instance *instance)
{
    attune_device *device;
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    attune_device_destroy(device);
    return info.limits;
}

static void fixture_open(fixture *r)
{
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .allocator = heap_allocator(&r->heap), .cache_folder = ""};
    if (!r->path[0]) {
        snprintf(r->path, sizeof r->path, "/tmp/attune-pack-XXXXXX");
        const int file = mkstemp(r->path);
        cr_assert_geq(file, 0);
        close(file);
    }
    cr_assert_eq(attune_instance_create(&desc, &r->instance), ATTUNE_OK);
}

static void fixture_close(fixture *r)
{
    attune_instance_destroy(r->instance);
    cr_assert_eq(atomic_load(&r->heap.live), 0);
}

static attune_problem problem_of(uint32_t head_dim, const attune_expr *score)
{
    return (attune_problem){
        .struct_size = sizeof(attune_problem), .dtype = ATTUNE_F16, .head_dim = head_dim, .q_len = 512, .score = score};
}

/* A pack for three problems, two plain and one with a score expression; each has Hopper's kernel, the one that
 * replaces it, and that of short calls. */
#define KERNELS 9

static void make_pack(fixture *r)
{
    fake_compiler *compiler = open_compiler();
    fixture_open(r);
    const attune_limits limits = limits_of_device(r->instance);
    attune_pack *pack;
    attune_expr *score;
    cr_assert_eq(attune_expr_create(r->instance, ATTUNE_EXPR_SCORE, "score * 2", NULL, 0, &score), ATTUNE_OK);
    cr_assert_eq(attune_pack_create(r->instance, &pack), ATTUNE_OK);
    attune_instance_destroy(r->instance); /* the pack keeps it */
    compiler->compiled = 0;
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 3; i++) {
            const attune_problem problem = problem_of(i ? 64 : 128, i == 2 ? score : NULL);
            cr_assert_eq(attune_pack_add(pack, &limits, &problem, NULL), ATTUNE_OK, "%s", attune_last_error());
        }
    cr_assert_eq(compiler->compiled, KERNELS, "what is in the pack is not compiled again: %d", compiler->compiled);
    uint32_t kernels;
    uint64_t bytes;
    cr_assert_eq(attune_pack_size(pack, &kernels, &bytes), ATTUNE_OK);
    cr_assert_eq(kernels, KERNELS);
    cr_assert_eq(attune_pack_write(pack, "/nowhere/pack"), ATTUNE_IO);
    cr_assert_not_null(strstr(attune_last_error(), "/nowhere/pack"), "%s", attune_last_error());
    cr_assert_eq(attune_pack_write(pack, "/dev/full"), ATTUNE_IO);
    cr_assert_not_null(strstr(attune_last_error(), "No space"), "%s", attune_last_error());
    cr_assert_eq(attune_pack_write(pack, r->path), ATTUNE_OK, "%s", attune_last_error());
    attune_expr_destroy(score);
    attune_pack_destroy(pack);
    r->instance = NULL;
    cr_assert_eq(atomic_load(&r->heap.live), 0);
}

static attune_status make_plan(attune_instance *instance, uint32_t head_dim, const char *text)
{
    attune_device *device;
    attune_expr *score = NULL;
    attune_plan *plan = NULL;
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
    if (text)
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_SCORE, text, NULL, 0, &score), ATTUNE_OK);
    const attune_problem problem = problem_of(head_dim, score);
    const attune_status status = attune_plan_create(device, &problem, NULL, &plan);
    attune_expr_destroy(score);
    attune_plan_destroy(plan);
    attune_device_destroy(device);
    return status;
}

/* The compiler counts what it compiles and can be told to be of no use, as where there is none. */
Test(cuda_packs, a_machine_without_a_compiler_runs_from_a_pack)
{
    open_driver();
    static fixture r;
    make_pack(&r);
    fake_compiler *compiler = open_compiler();
    compiler->absent = 1;
    fixture_open(&r);
    cr_assert_eq(make_plan(r.instance, 64, NULL), ATTUNE_UNAVAILABLE);
    cr_assert_not_null(strstr(attune_last_error(), "attune_instance_pack_load"), "%s", attune_last_error());
    cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(make_plan(r.instance, 64, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(make_plan(r.instance, 128, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(make_plan(r.instance, 64, "score * 2"), ATTUNE_OK, "%s", attune_last_error());
    /* A kernel that is not in it is named, with the cure. */
    cr_assert_eq(make_plan(r.instance, 64, "score * 3"), ATTUNE_UNAVAILABLE);
    cr_assert_not_null(strstr(attune_last_error(), "attune compile --arch sm_90"), "%s", attune_last_error());
    cr_assert_not_null(strstr(attune_last_error(), "9 kernels in the 1 packs"), "%s", attune_last_error());
    cr_assert_eq(make_plan(r.instance, 96, NULL), ATTUNE_UNAVAILABLE);
    /* With a compiler, the rest is compiled, and what the pack has is not. */
    compiler->absent = 0;
    compiler->compiled = 0;
    cr_assert_eq(make_plan(r.instance, 64, NULL), ATTUNE_OK);
    cr_assert_eq(compiler->compiled, 0);
    cr_assert_eq(make_plan(r.instance, 96, NULL), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(compiler->compiled, 3);
    fixture_close(&r);
    unlink(r.path);
}

/* A mask that follows a tensor has kernels of its own: the pack of a problem with a block mask has them. */
Test(cuda_packs, a_tensors_mask_runs_from_a_pack)
{
    open_driver();
    static fixture r;
    fake_compiler *compiler = open_compiler();
    fixture_open(&r);
    const attune_limits limits = limits_of_device(r.instance);
    attune_problem problem = problem_of(64, NULL);
    attune_pack *pack;
    attune_device *device;
    attune_mask *mask;
    uint32_t kernels[2];
    cr_assert_eq(attune_pack_create(r.instance, &pack), ATTUNE_OK);
    for (int i = 0; i < 2; i++) {
        problem.block_mask = i;
        cr_assert_eq(attune_pack_add(pack, &limits, &problem, NULL), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_pack_size(pack, &kernels[i], NULL), ATTUNE_OK);
    }
    cr_expect_eq(kernels[1], 2 * kernels[0] + 1);
    cr_assert_eq(attune_pack_write(pack, r.path), ATTUNE_OK, "%s", attune_last_error());
    attune_pack_destroy(pack);
    compiler->absent = 1;
    cr_assert_eq(attune_device_open(r.instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = 512, .kv_len = 512};
    cr_assert_eq(attune_mask_create_tensor(device, &desc, ATTUNE_BOOL, 1, 1, &mask), ATTUNE_UNAVAILABLE);
    cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_mask_create_tensor(device, &desc, ATTUNE_BOOL, 1, 1, &mask), ATTUNE_OK, "%s",
                 attune_last_error());
    compiler->absent = 0;
    attune_mask_destroy(mask);
    attune_device_destroy(device);
    fixture_close(&r);
    unlink(r.path);
}

/* A backward plan's kernels come from a pack as others do. */
static void run_backward_from_pack(const char *kernel, uint32_t kernels_expected)
{
    static fixture r;
    fake_compiler *compiler = open_compiler();
    fixture_open(&r);
    const attune_limits limits = limits_of_device(r.instance);
    attune_problem problem = problem_of(128, NULL);
    attune_device *device;
    attune_pack *pack;
    attune_plan *plan;
    uint32_t kernels;
    problem.direction = ATTUNE_BACKWARD;
    attune_kernel_options options = {.struct_size = sizeof options};
    snprintf(options.bwd.kernel, sizeof options.bwd.kernel, "%s", kernel);
    cr_assert_eq(attune_pack_create(r.instance, &pack), ATTUNE_OK);
    cr_assert_eq(attune_pack_add(pack, &limits, &problem, &options), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_pack_size(pack, &kernels, NULL), ATTUNE_OK);
    cr_assert_eq(kernels, kernels_expected, "%s: %u", kernel, kernels);
    cr_assert_eq(attune_pack_write(pack, r.path), ATTUNE_OK, "%s", attune_last_error());
    attune_pack_destroy(pack);
    compiler->absent = 1;
    cr_assert_eq(attune_device_open(r.instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_plan_create(device, &problem, &options, &plan), ATTUNE_UNAVAILABLE);
    cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_plan_create(device, &problem, &options, &plan), ATTUNE_OK, "%s", attune_last_error());
    compiler->absent = 0;
    attune_plan_destroy(plan);
    attune_device_destroy(device);
    fixture_close(&r);
    unlink(r.path);
}

/* Hopper's plan has sm80's two kernels beside its own and delta's: for rows, and for what TMA cannot read. */
Test(cuda_packs, backward_runs_from_a_pack)
{
    open_driver();
    run_backward_from_pack("cuda_sm80", 3);
    run_backward_from_pack("cuda_sm90a", 4);
}

static void write_bytes(const char *path, const char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

Test(cuda_packs, every_damaged_byte_and_length_is_refused)
{
    open_driver();
    static fixture r;
    static char bytes[1 << 16], again[1 << 16];
    make_pack(&r);
    FILE *file = fopen(r.path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    cr_assert(size > 300 && size < sizeof bytes);
    fixture_open(&r);
    for (size_t at = 0; at < size; at++) {
        memcpy(again, bytes, size);
        again[at] ^= (char)(1 << at % 8);
        write_bytes(r.path, again, size);
        cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_IO, "byte %zu", at);
        cr_assert_not_null(strstr(attune_last_error(), r.path), "%s", attune_last_error());
    }
    for (size_t length = 0; length < size; length++) {
        write_bytes(r.path, bytes, length);
        cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_IO, "%zu bytes", length);
    }
    memcpy(again, bytes, size);
    write_bytes(r.path, again, size + 1);
    cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_IO);
    cr_assert_eq(attune_instance_pack_load(r.instance, "/tmp"), ATTUNE_IO);
    cr_assert_eq(attune_instance_pack_load(r.instance, "/nowhere/pack"), ATTUNE_IO);
    cr_assert_eq(attune_instance_pack_load(NULL, r.path), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_instance_pack_load(r.instance, NULL), ATTUNE_INVALID_ARGUMENT);
    write_bytes(r.path, bytes, size);
    cr_assert_eq(attune_instance_pack_load(r.instance, r.path), ATTUNE_OK, "%s", attune_last_error());
    fixture_close(&r);
    unlink(r.path);
}

Test(cuda_packs, running_out_of_memory_leaves_nothing)
{
    open_driver();
    static fixture r;
    make_pack(&r);
    for (long long fail = 1;; fail++) {
        fixture_open(&r);
        r.heap.fail_at = atomic_load(&r.heap.allocations) + fail;
        const attune_status status = attune_instance_pack_load(r.instance, r.path);
        r.heap.fail_at = 0;
        fixture_close(&r);
        if (status == ATTUNE_OK)
            break;
        cr_assert_eq(status, ATTUNE_OUT_OF_HOST_MEMORY, "%s", attune_last_error());
        cr_assert_lt(fail, 20);
    }
    unlink(r.path);
}

Test(cuda_packs, only_what_compiles_ahead_goes_into_a_pack)
{
    static fixture r;
    open_compiler();
    fixture_open(&r);
    attune_pack *pack;
    const attune_problem problem = problem_of(64, NULL);
    attune_profile cpu = {.struct_size = sizeof cpu};
    cr_assert_eq(attune_profile_find("cpu", &cpu), ATTUNE_OK);
    cr_assert_eq(attune_pack_create(r.instance, &pack), ATTUNE_OK);
    cr_assert_eq(attune_pack_add(pack, &cpu.limits, &problem, NULL), ATTUNE_UNSUPPORTED);
    cr_assert_not_null(strstr(attune_last_error(), "cpu"), "%s", attune_last_error());
    cr_assert_eq(attune_pack_add(pack, NULL, &problem, NULL), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_pack_add(NULL, &cpu.limits, &problem, NULL), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_pack_write(pack, NULL), ATTUNE_INVALID_ARGUMENT);
    attune_pack_destroy(pack);
    attune_pack_destroy(NULL);
    fixture_close(&r);
    unlink(r.path);
}

typedef struct worker {
    attune_instance *instance;
    const char *path;
    int failures;
} worker;

static void *load_and_plan(void *user)
{
    worker *w = user;
    for (int i = 0; i < 20; i++) {
        w->failures += attune_instance_pack_load(w->instance, w->path) != ATTUNE_OK;
        w->failures += make_plan(w->instance, i % 2 ? 64 : 128, NULL) != ATTUNE_OK;
    }
    return NULL;
}

Test(cuda_packs, packs_are_loaded_while_plans_are_made)
{
    open_driver();
    static fixture r;
    make_pack(&r);
    open_compiler()->absent = 1;
    fixture_open(&r);
    worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){r.instance, r.path, 0};
        cr_assert_eq(pthread_create(&threads[i], NULL, load_and_plan, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(workers[i].failures, 0);
    }
    fixture_close(&r);
    unlink(r.path);
}

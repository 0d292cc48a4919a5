/* SPDX-License-Identifier: MIT */
/* The backend over a loader whose devices compute nothing: every call failed once, faults, threads, launches. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <attune/attune.h>
#include <attune/opencl.h>

#include "backend.h"
#include "opencl/driver.h"
#include "opencl/fake.h"
#include "support/heap.h"
#include "support/large_gradient.h"

#define ROWS 256
#define DIM  64

/* The loader is found by its name once a library of that name is there. */
static fake_state *open_fake(void)
{
    void *driver = dlopen(getenv("ATTUNE_FAKE_OPENCL"), RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(driver, "%s", dlerror());
    return dlsym(driver, "fake");
}

static char log_text[1024];

static void take_log(void *user, attune_log_level level, const char *message)
{
    (void)user, (void)level;
    snprintf(log_text, sizeof log_text, "%s", message);
}

typedef struct flow {
    heap heap;
    const char *cache;
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer, *workspace;
    attune_expr *mask_expr, *score;
    attune_mask *mask;
    attune_plan *plan;
    attune_completion completion;
} flow;

static attune_status flow_open(flow *f, const char *id)
{
    const attune_instance_desc desc = {.struct_size = sizeof desc,
                                       .allocator = heap_allocator(&f->heap),
                                       .cache_folder = f->cache ? f->cache : "",
                                       .log = take_log};
    attune_status status;
    if ((status = attune_instance_create(&desc, &f->instance)))
        return status;
    return attune_device_open(f->instance, id, &f->device);
}

static attune_status flow_plan(flow *f)
{
    static uint16_t data[4 * ROWS * DIM];
    const attune_mask_desc mask = {.struct_size = sizeof mask, .q_len = ROWS, .kv_len = ROWS};
    const attune_symbol symbols[] = {{.name = "slope", .kind = ATTUNE_SYMBOL_PARAMETER, .dtype = ATTUNE_F32}};
    attune_problem problem = {.struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .q_len = ROWS};
    attune_status status;
    if ((status = attune_buffer_create(f->device, sizeof data, &f->buffer)) ||
        (status = attune_buffer_write(f->buffer, 0, data, sizeof data)) ||
        (status = attune_expr_create(f->instance, ATTUNE_EXPR_MASK, "kv <= q", NULL, 0, &f->mask_expr)) ||
        (status = attune_expr_create(f->instance, ATTUNE_EXPR_SCORE, "score + slope", symbols, 1, &f->score)) ||
        (status = attune_mask_create(f->instance, &mask, f->mask_expr, NULL, 0, NULL, 0, &f->mask)) ||
        (status = attune_mask_upload(f->mask, f->device)) || (status = attune_problem_set_mask(&problem, f->mask)))
        return status;
    problem.score = f->score;
    if ((status = attune_plan_create(f->device, &problem, NULL, &f->plan)))
        return status;
    attune_plan_choice choice = {.struct_size = sizeof choice};
    if ((status = attune_plan_choice_get(f->plan, &choice)))
        return status;
    return attune_buffer_create(f->device, choice.workspace, &f->workspace);
}

static attune_status flow_run(const flow *f, attune_queue *queue, double *seconds, attune_completion *completion)
{
    attune_tensor tensors[4];
    for (int i = 0; i < 4; i++)
        tensors[i] = (attune_tensor){.buffer = f->buffer,
                                     .offset = (uint64_t)i * ROWS * DIM * 2,
                                     .dtype = ATTUNE_F16,
                                     .rank = 4,
                                     .size = {1, 1, ROWS, DIM}};
    const attune_parameter slope = {.name = "slope", .value = 0.5};
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = tensors[0],
                                      .k = tensors[1],
                                      .v = tensors[2],
                                      .o = tensors[3],
                                      .mask = f->mask,
                                      .parameters = &slope,
                                      .parameter_count = 1,
                                      .workspace = f->workspace,
                                      .seconds = seconds};
    return attune_forward(f->plan, queue, &args, completion);
}

static attune_status flow_all(flow *f)
{
    attune_status status = flow_open(f, "opencl:0");
    if (status == ATTUNE_OK)
        status = flow_plan(f);
    if (status == ATTUNE_OK)
        status = flow_run(f, attune_device_queue(f->device), NULL, &f->completion);
    return status == ATTUNE_OK ? attune_completion_wait(f->completion, UINT64_MAX) : status;
}

static void flow_destroy(flow *f)
{
    attune_plan_destroy(f->plan);
    attune_mask_destroy(f->mask);
    attune_expr_destroy(f->score);
    attune_expr_destroy(f->mask_expr);
    attune_buffer_destroy(f->workspace);
    attune_buffer_destroy(f->buffer);
    attune_device_destroy(f->device);
    attune_instance_destroy(f->instance);
}

Test(opencl_driver, every_call_failed_once)
{
    fake_state *fake = open_fake();
    flow whole = {.heap = {0}};
    cr_assert_eq(flow_all(&whole), ATTUNE_OK, "%s", attune_last_error());
    const int calls = fake->calls;
    flow_destroy(&whole);
    cr_assert_eq(fake->live, 0);
    cr_assert_eq(whole.heap.live, 0);
    cr_assert_eq(fake->interleaved, 0);
    cr_assert(calls > 50 && calls < FAKE_CALLS, "%d", calls);
    for (int at = 1; at <= calls; at++) {
        fake->calls = 0;
        fake->fail_at = at;
        fake->fail_with = at % 2 ? CL_OUT_OF_HOST_MEMORY : CL_OUT_OF_RESOURCES;
        flow f = {.heap = {0}};
        const attune_status status = flow_all(&f);
        cr_expect(status == ATTUNE_OK || attune_last_error()[0], "call %d, %s", at, fake->names[at]);
        flow_destroy(&f);
        cr_expect_eq(fake->live, 0, "call %d, %s: %d objects", at, fake->names[at], fake->live);
        cr_expect_eq(f.heap.live, 0, "call %d, %s", at, fake->names[at]);
        fake->live = 0;
    }
}

/* Those of the measurement of a copy, up to the driver's own. */
Test(opencl_driver, measuring_failed_once)
{
    fake_state *fake = open_fake();
    bool copied = false;
    for (int at = 1; at < FAKE_CALLS && !copied; at++) {
        flow f = {.heap = {0}};
        double bandwidth;
        cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
        fake->calls = 0;
        fake->fail_at = at;
        fake->fail_with = at % 2 ? CL_OUT_OF_HOST_MEMORY : CL_OUT_OF_RESOURCES;
        const attune_status status = f.device->backend->measure(f.device, ATTUNE_F16, NULL, &bandwidth);
        cr_expect(status == ATTUNE_OK || attune_last_error()[0], "call %d, %s", at, fake->names[at]);
        copied = !strcmp(fake->names[at], "clEnqueueCopyBuffer");
        cr_expect(!copied || status != ATTUNE_OK);
        fake->fail_at = 0;
        flow_destroy(&f);
        cr_expect_eq(fake->live, 0, "call %d, %s: %d objects", at, fake->names[at], fake->live);
        cr_expect_eq(f.heap.live, 0, "call %d, %s", at, fake->names[at]);
        fake->live = 0;
    }
    cr_expect(copied);
}

Test(opencl_driver, no_device)
{
    fake_state *fake = open_fake();
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    fake->platforms = 0;
    cr_expect_eq(attune_device_open(instance, "opencl:0", &device), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), "finds no driver: install"), "%s", attune_last_error());
    fake->platforms = 2;
    fake->devices = 0;
    cr_expect_eq(attune_device_open(instance, "opencl:0", &device), ATTUNE_UNAVAILABLE);
    cr_expect(strstr(attune_last_error(), "2 platforms, without a device"), "%s", attune_last_error());
    attune_instance_destroy(instance);
}

Test(opencl_driver, pocl_5_and_6_are_refused_unless_their_other_method_is_chosen)
{
    fake_state *fake = open_fake();
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    fake->platform_name = "Portable Computing Language";
    static const char *const versions[] = {"5.0+debian", "6.0+debian"};
    for (size_t i = 0; i < 2; i++) {
        fake->driver_version = versions[i];
        unsetenv("POCL_WORK_GROUP_METHOD");
        cr_expect_eq(attune_device_open(instance, "opencl:0", &device), ATTUNE_UNAVAILABLE);
        cr_expect(strstr(attune_last_error(), "set POCL_WORK_GROUP_METHOD=cbs"), "%s", attune_last_error());
        setenv("POCL_WORK_GROUP_METHOD", "cbs", 1);
        cr_assert_eq(attune_device_open(instance, "opencl:0", &device), ATTUNE_OK, "%s", attune_last_error());
        attune_device_destroy(device);
    }
    unsetenv("POCL_WORK_GROUP_METHOD");
    fake->driver_version = "7.0";
    cr_assert_eq(attune_device_open(instance, "opencl:0", &device), ATTUNE_OK, "%s", attune_last_error());
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Versions have a point, whatever the process's locale writes in numbers. */
Test(opencl_driver, another_locale)
{
    (void)open_fake();
    char folder[] = "/tmp/attune-locale-XXXXXX", command[256];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", folder);
    (void)!system(command); /* NOLINT(cert-env33-c): a folder of our own */
    setenv("LOCPATH", folder, 1);
    const char *made = setlocale(LC_NUMERIC, "de_DE.UTF-8");
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0); /* NOLINT(cert-env33-c): likewise */
    if (!made)
        cr_skip_test("localedef makes no locale here");
    char number[8];
    snprintf(number, sizeof number, "%.1f", 1.5);
    cr_assert_str_eq(number, "1,5");
    flow f = {.heap = {0}};
    cr_expect_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    flow_destroy(&f);
}

/* A driver that has no memory or resources left is not one without a device, and each message has the error's name. */
Test(opencl_driver, errors_by_name)
{
    static const struct {
        const char *call, *message;
        attune_status status;
        int32_t error;
    } table[] = {
        {"clGetPlatformIDs", "clGetPlatformIDs gave CL_OUT_OF_HOST_MEMORY (-6)", ATTUNE_UNAVAILABLE,
         CL_OUT_OF_HOST_MEMORY},
        {"clGetDeviceIDs", "clGetDeviceIDs gave CL_OUT_OF_RESOURCES (-5)", ATTUNE_UNAVAILABLE, CL_OUT_OF_RESOURCES},
        {"clCreateContext", "clCreateContext gave CL_OUT_OF_RESOURCES (-5)", ATTUNE_UNAVAILABLE, CL_OUT_OF_RESOURCES},
        {"clCreateBuffer", "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)", ATTUNE_OUT_OF_DEVICE_MEMORY,
         CL_MEM_OBJECT_ALLOCATION_FAILURE},
        {"clEnqueueWriteBuffer", "CL_OUT_OF_HOST_MEMORY (-6)", ATTUNE_OUT_OF_HOST_MEMORY, CL_OUT_OF_HOST_MEMORY},
        {"clCreateProgramWithSource", "CL_OUT_OF_RESOURCES (-5)", ATTUNE_DEVICE_LOST, CL_OUT_OF_RESOURCES},
        {"clBuildProgram", "CL_OUT_OF_HOST_MEMORY (-6)", ATTUNE_COMPILE_FAILED, CL_OUT_OF_HOST_MEMORY},
        {"clCreateKernel", "CL_OUT_OF_RESOURCES (-5)", ATTUNE_COMPILE_FAILED, CL_OUT_OF_RESOURCES},
        {"clSetKernelArg", "CL_INVALID_ARG_SIZE (-51)", ATTUNE_INTERNAL, -51},
        {"clEnqueueNDRangeKernel", "CL_OUT_OF_RESOURCES (-5)", ATTUNE_DEVICE_LOST, CL_OUT_OF_RESOURCES},
    };
    fake_state *fake = open_fake();
    flow whole = {.heap = {0}};
    cr_assert_eq(flow_all(&whole), ATTUNE_OK, "%s", attune_last_error());
    const int calls = fake->calls;
    flow_destroy(&whole);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int at = 1;
        while (at <= calls && strcmp(fake->names[at], table[i].call) != 0)
            at++;
        cr_assert(at <= calls, "%s", table[i].call);
        fake->calls = 0;
        fake->fail_at = at;
        fake->fail_with = table[i].error;
        flow f = {.heap = {0}};
        const attune_status status = flow_all(&f);
        cr_expect(status == table[i].status && strstr(attune_last_error(), table[i].message), "%s: %d, %s",
                  table[i].call, status, attune_last_error());
        flow_destroy(&f);
        /* The names of a call that went through again. */
        fake->calls = 0;
        fake->fail_at = 0;
        whole = (flow){.heap = {0}};
        cr_assert_eq(flow_all(&whole), ATTUNE_OK, "%s", attune_last_error());
        flow_destroy(&whole);
    }
    cr_expect_str_eq(attune__opencl_error_name(CL_PLATFORM_NOT_FOUND_KHR), "CL_PLATFORM_NOT_FOUND_KHR");
    cr_expect_str_eq(attune__opencl_error_name(-68), "CL_INVALID_DEVICE_PARTITION_COUNT");
    for (int32_t error = -9999; error < 9999; error++)
        cr_expect_not_null(attune__opencl_error_name(error));
}

/* A driver that works is waited for, however long that takes; one that does nothing is given up. */
Test(opencl_driver, slow_driver)
{
    char reason[512];
    setenv("FAKE_OPENCL_BUSY", "1", 1);
    cr_expect(attune__opencl_probe(getenv("ATTUNE_FAKE_OPENCL"), 2000, reason, sizeof reason), "%s", reason);
    unsetenv("FAKE_OPENCL_BUSY");
    setenv("FAKE_OPENCL_HANG", "1", 1);
    cr_expect_not(attune__opencl_probe(getenv("ATTUNE_FAKE_OPENCL"), 200, reason, sizeof reason));
    cr_expect(strstr(reason, "does not answer, for 0.2 s"), "%s", reason);
}

/* The child process crashes, this one does not. */
Test(opencl_driver, crashing_driver)
{
    char reason[256] = "";
    cr_expect(attune__opencl_probe(getenv("ATTUNE_FAKE_OPENCL"), 20000, reason, sizeof reason), "%s", reason);
    setenv("FAKE_OPENCL_CRASH", "1", 1);
    setenv("OCL_ICD_VENDORS", "/nowhere", 1);
    cr_expect_not(attune__opencl_probe(getenv("ATTUNE_FAKE_OPENCL"), 20000, reason, sizeof reason));
    cr_expect(strstr(reason, "crashes when it is loaded (Aborted)"), "%s", reason);
    char folder[] = "/tmp/attune-vendors-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/broken.icd", folder);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fclose(file);
    setenv("OCL_ICD_VENDORS", folder, 1);
    cr_expect_not(attune__opencl_probe(getenv("ATTUNE_FAKE_OPENCL"), 20000, reason, sizeof reason));
    cr_expect(strstr(reason, path), "%s", reason);
    remove(path);
    remove(folder);
}

Test(opencl_driver, allocation_past_the_limit)
{
    fake_state *fake = open_fake();
    fake->most_bytes = 1 << 20;
    flow f = {.heap = {0}};
    cr_assert_eq(flow_open(&f, "opencl"), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(attune_buffer_create(f.device, (1 << 20) + 1, &f.buffer), ATTUNE_OUT_OF_DEVICE_MEMORY);
    cr_expect(strstr(attune_last_error(), "1048577 bytes: device opencl:0 allocates at most 1048576"), "%s",
              attune_last_error());
    fake->calls = 0;
    fake->fail_at = 1;
    fake->fail_with = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    cr_expect_eq(attune_buffer_create(f.device, 1 << 20, &f.buffer), ATTUNE_OUT_OF_DEVICE_MEMORY);
    cr_expect(strstr(attune_last_error(), "1048576 bytes: device opencl:0 has no memory for a buffer"), "%s",
              attune_last_error());
    fake->fail_at = 0;
    cr_expect_eq(attune_buffer_create(f.device, 1 << 20, &f.buffer), ATTUNE_OK, "%s", attune_last_error());
    flow_destroy(&f);
}

/* The second of two copies fails: the call returns when the first is done, which uses the caller's memory. */
Test(opencl_driver, failing_copy)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    char data[2][16] = {{0}};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    const attune__copy copies[] = {{f.buffer, 0, 16, data[0]}, {f.buffer, 16, 16, data[1]}};
    fake->fail_at = 2;
    fake->fail_with = CL_OUT_OF_HOST_MEMORY;
    for (int to_device = 0; to_device < 2; to_device++) {
        fake->calls = 0;
        cr_expect_eq(f.device->backend->copy(attune_device_queue(f.device), copies, 2, to_device),
                     ATTUNE_OUT_OF_HOST_MEMORY);
        cr_expect(strstr(attune_last_error(), "no host memory for a copy"), "%s", attune_last_error());
        cr_expect_str_eq(fake->names[fake->calls], "clGetEventInfo");
    }
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

Test(opencl_driver, failing_build)
{
    fake_state *fake = open_fake();
    fake->build_fails = true;
    flow f = {.heap = {0}};
    cr_expect_eq(flow_all(&f), ATTUNE_COMPILE_FAILED);
    cr_expect(
        strstr(attune_last_error(), "does not build forward.cl: CL_BUILD_PROGRAM_FAILURE (-11): line 7: the fake"),
        "%s", attune_last_error());
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The planner takes 128 work-items; a build leaves 64. */
Test(opencl_driver, shrinking_group)
{
    fake_state *fake = open_fake();
    fake->kernel_group = 64;
    flow f = {.heap = {0}};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    attune_plan_choice choice = {.struct_size = sizeof choice};
    cr_assert_eq(attune_plan_choice_get(f.plan, &choice), ATTUNE_OK);
    cr_expect_eq(choice.workgroup_invocations, 64, "%u", choice.workgroup_invocations);
    cr_expect(strstr(log_text, "a kernel has 64 of 256 invocations: a smaller tile"), "%s", log_text);
    double bandwidth = 0;
    cr_expect_eq(f.device->backend->measure(f.device, ATTUNE_F32, NULL, &bandwidth), ATTUNE_OK, "%s",
                 attune_last_error());
    cr_expect(bandwidth > 0);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

Test(opencl_driver, lost_device)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    fake->event_status = CL_OUT_OF_RESOURCES;
    cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_expect_eq(attune_completion_wait(f.completion, UINT64_MAX), ATTUNE_DEVICE_LOST);
    cr_expect(strstr(attune_last_error(), "CL_OUT_OF_RESOURCES (-5): destroy it and open it again"), "%s",
              attune_last_error());
    fake->event_status = 0;
    cr_expect_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_DEVICE_LOST);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* A hung launch: the wait ends when the caller says. */
Test(opencl_driver, timeout)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    fake->event_status = 1; /* CL_RUNNING */
    cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_expect_eq(attune_completion_wait(f.completion, 3000000), ATTUNE_TIMEOUT);
    fake->event_status = 0;
    fake->calls = 0;
    fake->fail_at = 1;
    fake->fail_with = CL_OUT_OF_HOST_MEMORY;
    cr_expect_eq(attune_completion_wait(f.completion, 0), ATTUNE_OUT_OF_HOST_MEMORY);
    cr_expect(strstr(attune_last_error(), "clRetainEvent: CL_OUT_OF_HOST_MEMORY (-6)"), "%s", attune_last_error());
    fake->fail_at = 0;
    cr_expect_eq(attune_completion_wait(f.completion, 0), ATTUNE_OK, "%s", attune_last_error());
    double seconds = 0;
    cr_expect_eq(flow_run(&f, attune_device_queue(f.device), &seconds, &f.completion), ATTUNE_OK);
    cr_expect(seconds > 0);
    flow_destroy(&f);
}

static void *run_timed(void *user)
{
    const flow *f = user;
    attune_completion completion;
    double seconds = 0;
    return flow_run(f, attune_device_queue(f->device), &seconds, &completion) == ATTUNE_OK && seconds > 0 ? NULL : user;
}

/* While a thread waits for its call, as copies do too, others wait no longer than they say, and launch. */
Test(opencl_driver, timeout_beside_a_waiting_call, .timeout = 60)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    attune_completion completion;
    pthread_t thread;
    void *failed;
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    fake->event_status = 1; /* CL_RUNNING */
    cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_assert_eq(pthread_create(&thread, NULL, run_timed, &f), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* until it waits */
    cr_expect_eq(attune_completion_wait(f.completion, 3000000), ATTUNE_TIMEOUT);
    cr_expect_eq(flow_run(&f, attune_device_queue(f.device), NULL, &completion), ATTUNE_OK, "%s", attune_last_error());
    fake->event_status = 0;
    cr_assert_eq(pthread_join(thread, &failed), 0);
    cr_expect_null(failed);
    cr_expect_eq(attune_completion_wait(completion, UINT64_MAX), ATTUNE_OK, "%s", attune_last_error());
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

Test(opencl_driver, two_devices)
{
    fake_state *fake = open_fake();
    fake->devices = 2;
    flow f = {.heap = {0}}, g = {.heap = {0}};
    cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_plan(&f), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_open(&g, "opencl:1"), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_plan(&g), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_expect_eq(flow_run(&g, attune_device_queue(g.device), NULL, &g.completion), ATTUNE_OK);
    cr_expect_eq(flow_run(&f, attune_device_queue(g.device), NULL, &f.completion), ATTUNE_INVALID_ARGUMENT);
    flow_destroy(&g);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* An integrated GPU's launches are bounded; a second queue, of the caller and not in order, is chained. */
Test(opencl_driver, launches)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    attune_opencl_device_desc own = {.struct_size = sizeof own};
    attune_queue *queue = NULL;
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    fake->launches = 0;
    fake->groups = 0;
    cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_expect_eq(fake->launches, 1);
    cr_expect_eq(fake->groups, ROWS / 64);
    cr_assert_eq(attune_opencl_device_handles(f.device, &own), ATTUNE_OK, "%s", attune_last_error());
    fake->out_of_order = true;
    cr_assert_eq(attune_opencl_queue_wrap(f.device, own.queue, &queue), ATTUNE_OK, "%s", attune_last_error());
    fake->unchained = 0;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(flow_run(&f, queue, NULL, &f.completion), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(fake->unchained, 1, "%d", fake->unchained); /* the first */
    attune_opencl_queue_destroy(queue);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The driver names subgroups whose shuffles give nothing: plans do without. */
Test(opencl_driver, wrong_subgroups)
{
    fake_state *fake = open_fake();
    fake->subgroups = true;
    flow f = {.heap = {0}};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    attune_plan_choice choice = {.struct_size = sizeof choice};
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_plan_choice_get(f.plan, &choice), ATTUNE_OK);
    cr_expect_str_eq(choice.kernel, "opencl_portable");
    cr_assert_eq(attune_device_info_get(f.device, &info), ATTUNE_OK);
    cr_expect(!info.limits.subgroup_operations);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The shuffle that tells takes the device with it: it is not opened. */
Test(opencl_driver, lost_by_subgroups)
{
    fake_state *fake = open_fake();
    fake->subgroups = true;
    flow whole = {.heap = {0}};
    cr_assert_eq(flow_open(&whole, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    int at = 1;
    while (at <= fake->calls && strcmp(fake->names[at], "clEnqueueNDRangeKernel") != 0)
        at++;
    cr_assert(at <= fake->calls);
    flow_destroy(&whole);
    fake->calls = 0;
    fake->fail_at = at;
    fake->fail_with = CL_OUT_OF_RESOURCES;
    flow f = {.heap = {0}};
    cr_expect_eq(flow_open(&f, "opencl:0"), ATTUNE_DEVICE_LOST);
    cr_expect(strstr(attune_last_error(), "clEnqueueNDRangeKernel gave CL_OUT_OF_RESOURCES (-5)"), "%s",
              attune_last_error());
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* A device that shares the host's memory, of 4 units: a launch has the work of 1.6 GFLOP, and all launches of a merge,
 * and of a mask from a tensor, have every row and block once. */
Test(opencl_driver, bounded_merges_and_masks)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    attune_merger *merger = NULL;
    attune_completion completion;
    fake->unified = true;
    fake->most_bytes = 1 << 30;
    cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_merger_create(f.device, &merger), ATTUNE_OK, "%s", attune_last_error());
    const int64_t rows = 40000, columns = 512, bytes = rows * columns * 2;
    attune_tensor o[3], lse[2];
    for (int i = 0; i < 3; i++)
        o[i] = (attune_tensor){
            .offset = (uint64_t)(i * bytes), .dtype = ATTUNE_F16, .rank = 4, .size = {1, 1, rows, columns}};
    for (int i = 0; i < 2; i++)
        lse[i] = (attune_tensor){
            .offset = (uint64_t)(3 * bytes + 4 * i * rows), .dtype = ATTUNE_F32, .rank = 3, .size = {1, 1, rows}};
    cr_assert_eq(attune_buffer_create(f.device, (uint64_t)(4 * bytes), &f.buffer), ATTUNE_OK, "%s",
                 attune_last_error());
    const uint64_t needed = attune_merger_workspace_size(merger, &o[2], 2);
    cr_assert_eq(attune_buffer_create(f.device, needed, &f.workspace), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < 3; i++)
        o[i].buffer = f.buffer;
    lse[0].buffer = lse[1].buffer = f.buffer;
    const attune_merge_part parts[] = {{.o = o[0], .lse = lse[0]}, {.o = o[1], .lse = lse[1]}};
    const attune_merge_args args = {
        .struct_size = sizeof args, .parts = parts, .part_count = 2, .o = o[2], .workspace = f.workspace};
    fake->launches = 0;
    fake->groups = 0;
    cr_assert_eq(attune_merge(merger, attune_device_queue(f.device), &args, &completion), ATTUNE_OK, "%s",
                 attune_last_error());
    /* 64 * 512 * 3 for each row: 16,276 of them in a launch */
    cr_expect_eq(fake->launches, 3, "%d", fake->launches);
    cr_expect_eq(fake->groups, (uint64_t)rows);

    const int64_t length = 8192;
    const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = length, .kv_len = length};
    const attune_tensor dense = {.buffer = f.buffer, .dtype = ATTUNE_U8, .rank = 4, .size = {1, 1, length, length}};
    cr_assert_eq(attune_mask_create_tensor(f.device, &desc, ATTUNE_U8, 1, 1, &f.mask), ATTUNE_OK, "%s",
                 attune_last_error());
    fake->launches = 0;
    fake->groups = 0;
    cr_assert_eq(attune_mask_update(f.mask, attune_device_queue(f.device), &dense, &completion), ATTUNE_OK, "%s",
                 attune_last_error());
    /* 64 x 64 blocks of 128 x 128 elements, 1,525 of them in a launch, and one for the lists */
    cr_expect_eq(fake->launches, 4, "%d", fake->launches);
    cr_expect_eq(fake->groups, 64 * 64 + 64 + 64);
    attune_merger_destroy(merger);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The gradient of a capture of 2^32 elements: the kernels count them in 32 bits. */
Test(opencl_driver, gradient_of_too_many_elements)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    attune_buffer *huge;
    fake->most_bytes = UINT64_C(1) << 42;
    cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    large_gradient_plan(f.instance, f.device, &f.score, &f.plan);
    cr_assert_eq(attune_buffer_create(f.device, 1 << 16, &f.buffer), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_buffer_create(f.device, UINT64_C(1) << 41, &huge), ATTUNE_OK, "%s", attune_last_error());
    fake->launches = 0;
    large_gradient_refused(f.device, f.plan, f.buffer, huge);
    cr_expect_eq(fake->launches, 0);
    attune_buffer_destroy(huge);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* More calls than the queue has events: old completions can still be waited for. */
Test(opencl_driver, many_calls)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    attune_completion first;
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &first), ATTUNE_OK);
    for (int i = 0; i < 200; i++)
        cr_assert_eq(flow_run(&f, attune_device_queue(f.device), NULL, &f.completion), ATTUNE_OK);
    cr_expect_eq(attune_completion_wait(first, 0), ATTUNE_OK, "%s", attune_last_error());
    f.completion.value += 1000;
    cr_expect_eq(attune_completion_wait(f.completion, 0), ATTUNE_INVALID_ARGUMENT);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

static void *run_often(void *user)
{
    const flow *f = user;
    attune_completion completion;
    for (int i = 0; i < 100; i++)
        if (flow_run(f, attune_device_queue(f->device), NULL, &completion) != ATTUNE_OK)
            return user;
    return NULL;
}

/* One kernel object, several threads: arguments are set and launched by one of them at a time. */
Test(opencl_driver, threads)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    pthread_t threads[4];
    void *failed;
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, run_often, &f), 0);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_join(threads[i], &failed), 0);
        cr_expect_null(failed);
    }
    cr_expect_eq(fake->interleaved, 0, "%d", fake->interleaved);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The second plan builds no source. */
Test(opencl_driver, cache)
{
    fake_state *fake = open_fake();
    char folder[] = "/tmp/attune-opencl-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(folder));
    flow f = {.cache = folder}, g = {.cache = folder};
    cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
    const int built = fake->sources;
    cr_expect(built > 0 && fake->binaries == 0);
    cr_assert_eq(flow_all(&g), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(fake->sources, built);
    cr_expect_eq(fake->binaries, built);
    flow_destroy(&g);
    /* A binary that the driver takes and that has no kernel is as good as none. */
    flow h = {.cache = folder};
    fake->binaries_are_empty = true;
    cr_expect_eq(flow_all(&h), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(fake->sources, 2 * built);
    flow_destroy(&h);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0); /* NOLINT(cert-env33-c): a folder of our own */
}

/* Versions of some drivers have hundreds of characters, and differ in the last ones. */
Test(opencl_driver, long_versions)
{
    fake_state *fake = open_fake();
    char folder[] = "/tmp/attune-opencl-XXXXXX", command[64], version[301];
    cr_assert_not_null(mkdtemp(folder));
    memset(version, 'x', sizeof version - 1);
    version[300] = '\0';
    fake->driver_version = version;
    int built = 0;
    for (int i = 0; i < 3; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        flow f = {.cache = folder};
        version[299] = i < 2 ? 'x' : 'y';
        cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_device_info_get(f.device, &info), ATTUNE_OK);
        cr_expect(strstr(info.driver, "Fake xxxx"), "%s", info.driver);
        built = built ? built : fake->sources;
        cr_expect_eq(fake->sources, i < 2 ? built : 2 * built, "device %d: %d", i, fake->sources);
        flow_destroy(&f);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0); /* NOLINT(cert-env33-c): a folder of our own */
}

/* PoCL before version 6 ends the process where kernels have several grids, or binaries are asked for, while another
 * queue runs them. */
Test(opencl_driver, early_pocl)
{
    fake_state *fake = open_fake();
    static const struct {
        const char *version;
        bool early;
    } rows[] = {{"3.1", true}, {"4.0+debian", true}, {"7.0", false}, {"7.1", false}};
    fake->platform_name = "Portable Computing Language";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char folder[] = "/tmp/attune-opencl-XXXXXX", command[64];
        cr_assert_not_null(mkdtemp(folder));
        flow f = {.cache = folder};
        fake->driver_version = rows[i].version;
        fake->wide = fake->binaries_read = 0;
        fake->groups = 0;
        cr_assert_eq(flow_all(&f), ATTUNE_OK, "%s", attune_last_error());
        cr_expect(fake->groups > 4, "%llu workgroups", (unsigned long long)fake->groups);
        cr_expect_eq(fake->wide > 0, !rows[i].early, "PoCL %s: %d launches are wide", rows[i].version, fake->wide);
        cr_expect_eq(fake->binaries_read > 0, !rows[i].early, "PoCL %s: %d", rows[i].version, fake->binaries_read);
        flow_destroy(&f);
        snprintf(command, sizeof command, "rm -r %s", folder);
        cr_expect_eq(system(command), 0); /* NOLINT(cert-env33-c): a folder of our own */
    }
}

/* A device that is not one of the context is the caller's mistake. */
Test(opencl_driver, lending_another_device)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}}, g = {.heap = {0}};
    fake->devices = 2;
    cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_open(&g, "opencl:1"), ATTUNE_OK, "%s", attune_last_error());
    attune_opencl_device_desc own = {.struct_size = sizeof own}, other = {.struct_size = sizeof other};
    cr_assert_eq(attune_opencl_device_handles(f.device, &own), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune_opencl_device_handles(g.device, &other), ATTUNE_OK, "%s", attune_last_error());
    attune_device *lent = NULL;
    own.device = other.device;
    own.queue = NULL;
    cr_expect_eq(attune_opencl_device_open(f.instance, &own, &lent), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "desc.device, Fake device, is not one of desc.context"), "%s",
              attune_last_error());
    attune_device_destroy(lent);
    flow_destroy(&g);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

/* The caller's context, queue and memory. */
Test(opencl_driver, lending)
{
    fake_state *fake = open_fake();
    flow f = {.heap = {0}};
    cr_assert_eq(flow_open(&f, "opencl:0"), ATTUNE_OK, "%s", attune_last_error());
    attune_opencl_device_desc own = {.struct_size = sizeof own}, other = {.struct_size = sizeof other};
    cr_assert_eq(attune_opencl_device_handles(f.device, &own), ATTUNE_OK, "%s", attune_last_error());
    attune_device *lent = NULL;
    cr_expect_eq(attune_opencl_device_open(f.instance, &other, &lent), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_opencl_device_open(f.instance, &own, &lent), ATTUNE_OK, "%s", attune_last_error());
    attune__cl_memory (*create)(attune__cl_context, uint64_t, size_t, void *, int32_t *);
    int32_t (*release)(attune__cl_memory);
    void *library = dlopen(getenv("ATTUNE_FAKE_OPENCL"), RTLD_NOW | RTLD_LOCAL), *symbol;
    symbol = dlsym(library, "clCreateBuffer");
    memcpy(&create, &symbol, sizeof symbol);
    symbol = dlsym(library, "clReleaseMemObject");
    memcpy(&release, &symbol, sizeof symbol);
    int32_t error;
    attune__cl_memory memory = create(own.context, CL_MEM_READ_WRITE, 4096, NULL, &error);
    attune_buffer *buffer = NULL;
    cr_expect_eq(attune_opencl_buffer_wrap(lent, memory, 16, 4096, &buffer), ATTUNE_INVALID_ARGUMENT);
    cr_expect(strstr(attune_last_error(), "offset 16 + size 4096 exceeds the 4096 bytes"), "%s", attune_last_error());
    cr_expect_eq(attune_opencl_buffer_wrap(lent, memory, 8, 16, &buffer), ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_opencl_buffer_wrap(lent, memory, 1024, 1024, &buffer), ATTUNE_OK, "%s", attune_last_error());
    char text[] = "lent", back[sizeof text] = "";
    cr_expect_eq(attune_buffer_write(buffer, 8, text, sizeof text), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_eq(attune_buffer_read(buffer, 8, back, sizeof back), ATTUNE_OK, "%s", attune_last_error());
    cr_expect_str_eq(text, back);
    release(memory); /* attune has its own reference */
    attune_buffer_destroy(buffer);
    attune_device_destroy(lent);
    flow_destroy(&f);
    cr_expect_eq(fake->live, 0);
}

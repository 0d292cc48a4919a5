/* SPDX-License-Identifier: MIT */
/* The backend over a driver that is not there: every call failed once, leaks, loss, and what the hot call does. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attune/attune.h>
#include <attune/cuda.h>

#include "cuda/arguments.h"
#include "cuda/cuda.h"
#include "cuda/fake.h"
#include "support/heap.h"

#define ROWS 256
#define DIM  64

static fake_state *open_fake(void)
{
    void *driver = dlopen(getenv("ATTUNE_FAKE_CUDA"), RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(driver, "%s", dlerror());
    cr_assert_not_null(dlopen(getenv("ATTUNE_FAKE_NVRTC"), RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    return dlsym(driver, "fake");
}

typedef struct flow {
    heap heap;
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
    attune_expr *expr;
    attune_mask *mask;
    attune_plan *plan;
    attune_completion completion;
    bool unasked; /* calls ask for no completion */
} flow;

static attune_status flow_create(flow *f)
{
    static uint16_t data[4 * ROWS * DIM + 1];
    attune_status status;
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .allocator = heap_allocator(&f->heap), .cache_folder = ""};
    const attune_mask_desc mask = {.struct_size = sizeof mask, .q_len = ROWS, .kv_len = ROWS};
    attune_problem problem = {.struct_size = sizeof problem, .dtype = ATTUNE_F16, .head_dim = DIM, .q_len = ROWS};
    if ((status = attune_instance_create(&desc, &f->instance)) ||
        (status = attune_device_open(f->instance, "cuda:0", &f->device)) ||
        (status = attune_buffer_create(f->device, sizeof data, &f->buffer)) ||
        (status = attune_buffer_write(f->buffer, 0, data, sizeof data)) ||
        (status = attune_expr_create(f->instance, ATTUNE_EXPR_MASK, "kv <= q", NULL, 0, &f->expr)) ||
        (status = attune_mask_create(f->instance, &mask, f->expr, NULL, 0, NULL, 0, &f->mask)) ||
        (status = attune_mask_upload(f->mask, f->device)) || (status = attune_problem_set_mask(&problem, f->mask)) ||
        (status = attune_plan_create(f->device, &problem, NULL, &f->plan)))
        return status;
    return ATTUNE_OK;
}

static attune_status flow_run_at(flow *f, uint64_t offset, double *seconds)
{
    attune_tensor tensors[4];
    for (int i = 0; i < 4; i++)
        tensors[i] = (attune_tensor){.buffer = f->buffer,
                                     .offset = (uint64_t)i * ROWS * DIM * 2 + offset,
                                     .dtype = ATTUNE_F16,
                                     .rank = 4,
                                     .size = {1, 1, ROWS, DIM}};
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = tensors[0],
                                      .k = tensors[1],
                                      .v = tensors[2],
                                      .o = tensors[3],
                                      .mask = f->mask,
                                      .seconds = seconds};
    return attune_forward(f->plan, attune_device_queue(f->device), &args, f->unasked ? NULL : &f->completion);
}

static attune_status flow_run(flow *f, double *seconds)
{
    return flow_run_at(f, 0, seconds);
}

static void flow_destroy(flow *f)
{
    attune_plan_destroy(f->plan);
    attune_mask_destroy(f->mask);
    attune_expr_destroy(f->expr);
    attune_buffer_destroy(f->buffer);
    attune_device_destroy(f->device);
    attune_instance_destroy(f->instance);
    cr_assert_eq(atomic_load(&f->heap.live), 0);
}

static attune_status flow_whole(flow *f)
{
    double seconds;
    uint16_t back[16];
    attune_status status = flow_create(f);
    if (!status)
        status = flow_run(f, NULL);
    if (!status)
        status = attune_completion_wait(f->completion, UINT64_MAX);
    if (!status)
        status = flow_run(f, &seconds);
    if (!status)
        status = attune_buffer_read(f->buffer, 0, back, sizeof back);
    return status;
}

static void expect_nothing_left(const fake_state *fake, int at, int code)
{
    cr_assert_eq(fake->depth, 0, "call %d (%s) failing with %d: %d contexts stay pushed", at, fake->names[at - 1], code,
                 fake->depth);
    cr_assert(!fake->streams && !fake->events && !fake->modules && !fake->memories && !fake->contexts,
              "call %d (%s) failing with %d leaves %d streams, %d events, %d modules, %d memories, %d contexts", at,
              fake->names[at - 1], code, fake->streams, fake->events, fake->modules, fake->memories, fake->contexts);
    cr_assert_not(fake->lent_destroyed);
}

Test(cuda_driver, every_call_fails_in_turn)
{
    fake_state *fake = open_fake();
    const int codes[] = {1, 2, 700, 999};
    int lost = 0;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        for (int at = 1;; at++) {
            flow f = {0};
            *fake = (fake_state){.architecture = 90, .fail_at = at, .fail_with = codes[i]};
            const attune_status status = flow_whole(&f);
            const bool reached = fake->calls >= at;
            if (status == ATTUNE_DEVICE_LOST) {
                lost++;
                cr_assert_geq(codes[i], 700);
                if (f.device)
                    cr_assert_eq(attune_buffer_read(f.buffer, 0, &(uint16_t){0}, 2),
                                 f.buffer ? ATTUNE_DEVICE_LOST : ATTUNE_INVALID_ARGUMENT);
            }
            cr_assert(status == ATTUNE_OK || attune_last_error()[0]);
            flow_destroy(&f);
            /* Destroying frees by context_push: where that itself fails, what is in the context goes with it. */
            if (strcmp(fake->names[at - 1] ? fake->names[at - 1] : "", "cuCtxPushCurrent") != 0)
                expect_nothing_left(fake, at, codes[i]);
            if (!reached && fake->calls < at) {
                cr_assert_eq(status, ATTUNE_OK, "%s", attune_last_error());
                cr_assert_gt(at, 150);
                break;
            }
        }
    cr_assert_gt(lost, 20);
}

Test(cuda_driver, a_sticky_error_latches)
{
    fake_state *fake = open_fake();
    flow f = {0};
    *fake = (fake_state){.architecture = 90};
    cr_assert_eq(flow_create(&f), ATTUNE_OK, "%s", attune_last_error());
    fake->fail_at = fake->calls + 3; /* the push, the look for a capture, the launch */
    fake->fail_with = 700;
    fake->sticky = 1;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_DEVICE_LOST);
    cr_assert_not_null(strstr(attune_last_error(), "cuLaunchKernel"), "%s", attune_last_error());
    const int calls = fake->calls;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_DEVICE_LOST);
    attune_buffer *other;
    cr_assert_eq(attune_buffer_create(f.device, 16, &other), ATTUNE_DEVICE_LOST);
    cr_assert_eq(fake->calls, calls, "a lost device is not asked again");
    flow_destroy(&f);
}

Test(cuda_driver, the_hot_call_only_launches)
{
    fake_state *fake = open_fake();
    flow f = {0};
    *fake = (fake_state){.architecture = 90};
    cr_assert_eq(flow_create(&f), ATTUNE_OK, "%s", attune_last_error());
    const long long allocations = atomic_load(&f.heap.allocations);
    for (int i = 0; i < 200; i++) {
        fake->calls = 0;
        cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(f.completion.value, (uint64_t)i + 1);
        static const char *const allowed[] = {"cuCtxPushCurrent", "cuStreamIsCapturing", "cuLaunchKernel",
                                              "cuEventRecord", "cuCtxPopCurrent"};
        cr_assert_eq(fake->calls, 5);
        for (int j = 0; j < 5; j++)
            cr_assert_str_eq(fake->names[j], allowed[j]);
    }
    cr_assert_eq(atomic_load(&f.heap.allocations), allocations);
    attune_plan_choice choice = {.struct_size = sizeof choice};
    cr_assert_eq(attune_plan_choice_get(f.plan, &choice), ATTUNE_OK);
    cr_assert_eq(fake->grid, (ROWS + choice.block_m - 1) / choice.block_m);
    cr_assert_eq(fake->block, 32 * choice.num_warps);
    cr_assert_eq(fake->shared, choice.shared_memory);
    /* Any older point can be waited for, also where its event has been used again. */
    for (uint64_t value = 1; value <= 200; value++)
        cr_assert_eq(attune_completion_wait((attune_completion){f.completion.queue, value}, 0), ATTUNE_OK);
    /* Nobody waits for a call without a completion: it records no event. */
    f.unasked = true;
    fake->calls = 0;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert_eq(fake->calls, 4);
    f.unasked = false;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert_eq(f.completion.value, 201);
    /* A capture has no point to wait for, and records no event. */
    fake->capturing = 1;
    fake->calls = 0;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert_eq(fake->calls, 4);
    cr_assert_eq(f.completion.value, 0);
    cr_assert_eq(attune_completion_wait(f.completion, UINT64_MAX), ATTUNE_OK);
    flow_destroy(&f);
}

Test(cuda_driver, what_tma_cannot_read_falls_back)
{
    fake_state *fake = open_fake();
    flow f = {0};
    *fake = (fake_state){.architecture = 90};
    cr_assert_eq(flow_create(&f), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(fake->modules, 3, "Hopper's, its fallback, and that of short calls");
    const attune_cuda_arguments *arguments = (const void *)fake->arguments;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert(fake->hopper && arguments->counter);
    cr_assert_eq(flow_run_at(&f, 2, NULL), ATTUNE_OK);
    cr_assert(!fake->hopper && !arguments->counter);
    fake->capturing = 1;
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    cr_assert(fake->hopper && !arguments->counter);
    flow_destroy(&f);
    *fake = (fake_state){.architecture = 80};
    cr_assert_eq(flow_create(&f), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(fake->modules, 2);
    flow_destroy(&f);
}

/* A plan for a prompt has the kernel for steps too, and a call launches one or the other, in a captured graph as well.
 */
Test(cuda_driver, the_lengths_of_a_call_choose_its_kernel)
{
    enum { HEADS = 4, KEYS = 1200 };
    static const struct {
        int64_t q_len, kv_len;
        const char *kernel;
        int launches;
    } table[] = {{1, KEYS, "attune_combine_sm80", 2},  {16, KEYS, "attune_combine_sm80", 2},
                 {17, KEYS, "attune_forward_sm90", 1}, {ROWS, KEYS, "attune_forward_sm90", 1},
                 {1, 256, "attune_combine_sm80", 2},   {1, 255, "attune_forward_sm90", 1}};
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    heap h = {0};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .allocator = heap_allocator(&h), .cache_folder = ""};
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer, *workspace;
    attune_plan *plan;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    cr_assert_eq(attune_buffer_create(device, (uint64_t)HEADS * KEYS * DIM * 2, &buffer), ATTUNE_OK);
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_F16,
                                    .head_dim = DIM,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .q_len = ROWS,
                                    .kv_len = KEYS};
    cr_assert_eq(attune_plan_create(device, &problem, NULL, &plan), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(fake->modules, 3);
    cr_assert_eq(attune_buffer_create(device, attune_plan_workspace_size(plan), &workspace), ATTUNE_OK);
    const long long allocations = atomic_load(&h.allocations);
    for (size_t i = 0; i < 2 * sizeof table / sizeof table[0]; i++) {
        const size_t row = i / 2;
        const attune_tensor q = {buffer, 0, ATTUNE_F16, 4, {1, HEADS, table[row].q_len, DIM}, {0}};
        const attune_tensor k = {buffer, 0, ATTUNE_F16, 4, {1, 1, table[row].kv_len, DIM}, {0}};
        const attune_forward_args args = {
            .struct_size = sizeof args, .q = q, .k = k, .v = k, .o = q, .workspace = workspace};
        attune_plan_choice choice = {.struct_size = sizeof choice};
        fake->capturing = i % 2;
        fake->calls = 0;
        cr_assert_eq(attune_forward(plan, attune_device_queue(device), &args, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_expect_str_eq(fake->kernel, table[row].kernel, "%lld queries", (long long)table[row].q_len);
        int launches = 0;
        for (int j = 0; j < fake->calls; j++)
            launches += !strcmp(fake->names[j], "cuLaunchKernel");
        cr_expect_eq(launches, table[row].launches);
        cr_assert_eq(attune_plan_choice_at(plan, table[row].q_len, table[row].kv_len, &choice), ATTUNE_OK);
        cr_expect_eq(choice.decode, table[row].launches == 2);
    }
    cr_assert_eq(atomic_load(&h.allocations), allocations);
    attune_plan_destroy(plan);
    cr_assert_eq(fake->modules, 0);
    attune_buffer_destroy(workspace);
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* Backward begins with the blocks of keys that have the most blocks of queries, in each batch. */
Test(cuda_driver, the_longest_blocks_of_keys_come_first)
{
    enum { BLOCK = 128, BLOCKS = 8, KEYS = BLOCK * BLOCKS };
    static const int32_t lengths[] = {1, 5, 2}; /* of the first batch's documents, in blocks */
    static const int32_t expected[2][BLOCKS] = {{1, 2, 3, 4, 6, 0, 5, 7}, {0, 1, 2, 3, 4, 5, 6, 7}};
    static const char *const texts[] = {"docs[b, q] == docs[b, kv] && q >= kv", "q >= kv + h"};
    static int32_t documents[2][KEYS];
    for (int i = 0, kv = 0; i < 3; i++)
        for (int end = kv + lengths[i] * BLOCK; kv < end; kv++)
            documents[0][kv] = i;
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    const attune_symbol symbol = {.name = "docs", .kind = ATTUNE_SYMBOL_CAPTURE, .dtype = ATTUNE_I32, .rank = 2};
    const attune_host_capture capture = {"docs",
                                         {.data = documents, .dtype = ATTUNE_I32, .rank = 2, .size = {2, KEYS}}};
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    for (int i = 0; i < 2; i++) {
        const attune_mask_desc of = {.struct_size = sizeof of,
                                     .batch = 2,
                                     .heads = 2,
                                     .q_len = KEYS,
                                     .kv_len = KEYS,
                                     .q_block = BLOCK,
                                     .kv_block = BLOCK};
        attune_expr *expr;
        attune_mask *mask;
        cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, texts[i], &symbol, !i, &expr), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_assert_eq(attune_mask_create(instance, &of, expr, &capture, !i, NULL, 0, &mask), ATTUNE_OK, "%s",
                     attune_last_error());
        attune__device_mask *upload;
        cr_assert_eq(attune__cuda_mask_upload(device, mask, &upload), ATTUNE_OK);
        const attune__cuda_mask *made = (const attune__cuda_mask *)upload;
        if (i == 0)
            cr_expect_arr_eq((const int32_t *)(uintptr_t)made->column_order, expected, sizeof expected);
        else
            cr_expect_eq(made->column_order, 0, "an order for all heads, whose lists differ");
        attune__cuda_mask_release(upload);
        attune_mask_destroy(mask);
        attune_expr_destroy(expr);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* A tile of decode has the rows of a group's heads, but where their lists differ. The expression, which is all that the
 * plan knows of a mask, may be the same. */
Test(cuda_driver, decode_keeps_lists_of_heads_apart)
{
    enum { HEADS = 6, KV_HEADS = 2, KEYS = 300 };
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    const attune_mask_desc whole = {
        .struct_size = sizeof whole, .heads = HEADS, .kv_heads = KV_HEADS, .q_len = 1, .kv_len = KEYS};
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
    attune_expr *exprs[2];
    attune_mask *masks[3];
    attune_plan *plan;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    cr_assert_eq(attune_buffer_create(device, (uint64_t)HEADS * KEYS * DIM * 2, &buffer), ATTUNE_OK);
    /* Its own lists, which serve all heads, and those of another. */
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv < 290", NULL, 0, &exprs[0]), ATTUNE_OK);
    cr_assert_eq(
        attune_expr_create(instance, ATTUNE_EXPR_MASK, "kv < 290 && (kv / 128 + h) % 2 == 0", NULL, 0, &exprs[1]),
        ATTUNE_OK);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(attune_mask_create(instance, &whole, exprs[i], NULL, 0, NULL, 0, &masks[i]), ATTUNE_OK);
    attune_mask_lists lists = {.struct_size = sizeof lists};
    cr_assert_eq(attune_mask_lists_get(masks[1], &lists), ATTUNE_OK);
    cr_assert_eq(lists.heads, HEADS);
    cr_assert_eq(attune_mask_create_lists(instance, &whole, &lists, exprs[0], NULL, 0, NULL, 0, &masks[2]), ATTUNE_OK);
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F16,
                              .head_dim = DIM,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .q_len = 1,
                              .kv_len = KEYS};
    const attune_kernel_options options = {.struct_size = sizeof options, .fwd.split_kv = 1};
    cr_assert_eq(attune_problem_set_mask(&problem, masks[0]), ATTUNE_OK);
    cr_assert_eq(attune_plan_create(device, &problem, &options, &plan), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < 3; i += 2) {
        const attune_tensor row = {buffer, 0, ATTUNE_F16, 4, {1, HEADS, 1, DIM}, {0}};
        const attune_tensor keys = {buffer, 0, ATTUNE_F16, 4, {1, KV_HEADS, KEYS, DIM}, {0}};
        const attune_forward_args args = {
            .struct_size = sizeof args, .q = row, .k = keys, .v = keys, .o = row, .mask = masks[i]};
        cr_assert_eq(attune_mask_upload(masks[i], device), ATTUNE_OK);
        cr_assert_eq(attune_forward(plan, attune_device_queue(device), &args, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_expect_eq(fake->grid, (unsigned)(i ? HEADS : KV_HEADS), "mask %d: %u workgroups", i, fake->grid);
    }
    attune_plan_destroy(plan);
    for (int i = 0; i < 3; i++)
        attune_mask_destroy(masks[i]);
    for (int i = 0; i < 2; i++)
        attune_expr_destroy(exprs[i]);
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* Whatever stride a caller gives to the only element of a dimension, rows begin at multiples of 16 bytes. */
Test(cuda_driver, a_single_head_is_aligned)
{
    enum { HEADS = 4, KEYS = 300 };
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
    attune_plan *plan;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    cr_assert_eq(attune_buffer_create(device, (uint64_t)HEADS * KEYS * DIM * 2, &buffer), ATTUNE_OK);
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = ATTUNE_F16,
                                    .head_dim = DIM,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .q_len = 1,
                                    .kv_len = KEYS};
    const attune_kernel_options options = {.struct_size = sizeof options, .fwd.split_kv = 1};
    cr_assert_eq(attune_plan_create(device, &problem, &options, &plan), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < 2; i++) {
        /* Resolved by attune, then odd. */
        const attune_tensor row = {buffer, 0, ATTUNE_F16, 4, {1, HEADS, 1, DIM}, {i * 3, i * DIM, i * 5, i}};
        const attune_tensor keys = {buffer, 0, ATTUNE_F16, 4, {1, 1, KEYS, DIM}, {i * 3, i * 7, i * DIM, i}};
        const attune_forward_args args = {.struct_size = sizeof args, .q = row, .k = keys, .v = keys, .o = row};
        cr_assert_eq(attune_forward(plan, attune_device_queue(device), &args, NULL), ATTUNE_OK, "%s",
                     attune_last_error());
        const attune_cuda_arguments *a = (const void *)fake->arguments;
        const attune_cuda_view *const views[] = {&a->q, &a->k, &a->v, &a->o};
        for (size_t j = 0; j < sizeof views / sizeof views[0]; j++)
            cr_expect_eq((views[j]->batch | views[j]->head | views[j]->row) % 8, 0,
                         "tensor %zu: strides %lld %lld %lld", j, views[j]->batch, views[j]->head, views[j]->row);
    }
    attune_plan_destroy(plan);
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* A call over a cache is bounded by its rows and keys, not by the longest sequence times the batch. Nothing reads the
 * memory. */
Test(cuda_driver, limits_of_calls_over_a_cache)
{
    static const struct {
        int64_t heads, kv_heads, batch, q_len, kv_len, tokens, page, entries;
        bool packed;
        const char *refused;
    } table[] = {
        {64, 8, 1024, 32768, 32768, 8192, 16, 4096, true, NULL},
        {64, 1, 4, 1 << 24, 1024, 1 << 26, 16, 4096, false, NULL},
        {256, 256, 2, 1 << 30, 1024, 1 << 30, 16, 4096, true, "1073741824 rows of q make more than 21474"},
        {64, 1, 4, 8, 1024, 1 << 25, 16, 4096, true, NULL},
        {64, 1, 4, 1 << 25, 1024, 1 << 25, 16, 4096, true, "2147483648 rows of the 64 heads"},
        {64, 1, 1, 1 << 25, 1024, 1 << 25, 16, 4096, false, "2147483648 rows of the 64 heads"},
        {4, 2, 2, 8, INT32_MAX, 16, 65536, 32767, true, NULL},
        {4, 2, 2, 8, INT32_MAX, 16, 65536, 32768, true, "2147483647 keys, the kernel takes at most 2147479551"},
        {4, 2, INT32_MAX, 1, 64, 16, 16, 4096, true, "2147483647 sequences"},
    };
    static const char *const kernels[] = {"cuda_sm80", "cuda_serving_sm90a"};
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    cr_assert_eq(attune_cuda_buffer_wrap(device, 4096, UINT64_C(1) << 50, &buffer), ATTUNE_OK, "%s",
                 attune_last_error());
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    for (size_t n = 0; n < 2 * sizeof table / sizeof table[0]; n++) {
        const size_t i = n / 2;
        const bool persistent = n % 2;
        const int64_t heads = table[i].heads, kv_heads = table[i].kv_heads, batch = table[i].batch,
                      tokens = table[i].tokens, q_len = table[i].q_len, group = heads / kv_heads;
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = ATTUNE_F16,
                                        .head_dim = DIM,
                                        .batch = batch,
                                        .heads = heads,
                                        .kv_heads = kv_heads,
                                        .q_len = q_len,
                                        .kv_len = table[i].kv_len,
                                        .tokens = tokens,
                                        .page = table[i].page};
        attune_kernel_options options = {.struct_size = sizeof options};
        snprintf(options.any.kernel, sizeof options.any.kernel, "%s", kernels[persistent]);
        attune_plan *plan;
        cr_assert_eq(attune_plan_create(device, &problem, &options, &plan), ATTUNE_OK, "%zu: %s", i,
                     attune_last_error());
        const attune_tensor packed = {buffer, 0, ATTUNE_F16, 3, {tokens, heads, DIM}, {0}},
                            apart = {buffer, 0, ATTUNE_F16, 4, {batch, heads, q_len, DIM}, {0}},
                            keys = {buffer, 0, ATTUNE_F16, 4, {8, kv_heads, table[i].page, DIM}, {0}},
                            start = {buffer, 0, ATTUNE_I32, 1, {batch + 1}, {0}};
        const attune_cache cache = {.struct_size = sizeof cache,
                                    .k = keys,
                                    .v = keys,
                                    .pages = {buffer, 0, ATTUNE_I32, 1, {table[i].entries}, {0}},
                                    .pages_start = start};
        const attune_batch lengths = {.struct_size = sizeof lengths,
                                      .q_start = table[i].packed ? start : (attune_tensor){0},
                                      .kv_len = {buffer, 0, ATTUNE_I32, 1, {batch}, {0}}};
        const attune_forward_args args = {.struct_size = sizeof args,
                                          .q = table[i].packed ? packed : apart,
                                          .o = table[i].packed ? packed : apart,
                                          .workspace = buffer,
                                          .cache = &cache,
                                          .batch = &lengths};
        attune_plan_choice choice = {.struct_size = sizeof choice};
        cr_assert_eq(attune_plan_choice_get(plan, &choice), ATTUNE_OK);
        fake->kernel = NULL;
        const attune_status status = attune_forward(plan, attune_device_queue(device), &args, NULL);
        if (table[i].refused) {
            cr_expect_eq(status, ATTUNE_UNSUPPORTED, "%zu", i);
            cr_expect(strstr(attune_last_error(), table[i].refused), "%zu: %s", i, attune_last_error());
            cr_expect_null(fake->kernel, "%zu: %s", i, fake->kernel);
        } else {
            const int64_t each = (q_len * group + choice.block_m - 1) / choice.block_m * batch,
                          all = tokens * group / choice.block_m + batch,
                          grid = (table[i].packed && all < each ? all : each) * kv_heads;
            cr_expect_eq(status, ATTUNE_OK, "%zu: %s", i, attune_last_error());
            if (persistent) {
                cr_expect_eq(fake->grid, info.limits.compute_units, "%zu: %u CTAs", i, fake->grid);
                attune_plan_destroy(plan);
                continue;
            }
            /* Parts of long sequences are as many further CTAs as the device holds. */
            const int64_t further = (int64_t)fake->grid - grid;
            cr_expect_eq(further > 0, attune_plan_schedule_size(plan) > 0, "%zu: %u CTAs", i, fake->grid);
            cr_expect_eq(further % info.limits.compute_units, 0, "%zu: %u CTAs", i, fake->grid);
        }
        attune_plan_destroy(plan);
    }
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* New rows of a cache are one launch, whose CTAs share the heads of few rows, and have one row each of many. */
Test(cuda_driver, appends)
{
    static const struct {
        int64_t batch, tokens, ctas; /* batch 0: packed; ctas: of a row */
        const char *refused;
    } table[] = {
        {0, 1, 4, NULL},
        {0, 300, 4, NULL},
        {0, 600, 2, NULL},
        {0, 5000, 1, NULL},
        {2, 1 << 30, 1, "2147483648 rows, the kernel takes at most 2147483647"},
    };
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    attune_device *device;
    attune_buffer *buffer;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK);
    cr_assert_eq(attune_cuda_buffer_wrap(device, 4096, UINT64_C(1) << 50, &buffer), ATTUNE_OK);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = ATTUNE_F16,
                                        .batch = table[i].batch + !table[i].batch,
                                        .kv_dtype = ATTUNE_Q8_0,
                                        .head_dim = DIM,
                                        .heads = 16,
                                        .kv_heads = 8,
                                        .q_len = table[i].tokens,
                                        .kv_len = 1024,
                                        .tokens = table[i].tokens,
                                        .page = 16};
        attune_plan *plan;
        cr_assert_eq(attune_plan_create(device, &problem, NULL, &plan), ATTUNE_OK, "%zu: %s", i, attune_last_error());
        const int64_t tokens = table[i].tokens, batch = table[i].batch;
        const attune_tensor packed = {buffer, 0, ATTUNE_F16, 3, {tokens, 8, DIM}, {0}},
                            apart = {buffer, 0, ATTUNE_F16, 4, {batch, 8, tokens, DIM}, {0}},
                            lengths = {buffer, 0, ATTUNE_I32, 1, {batch}, {0}},
                            keys = {buffer, 0, ATTUNE_Q8_0, 4, {64, 8, 16, DIM}, {0}},
                            table_of_pages = {buffer, 0, ATTUNE_I32, 2, {batch, 64}, {0}};
        const attune_cache cache = {
            .struct_size = sizeof cache, .k = keys, .v = keys, .pages = batch ? table_of_pages : (attune_tensor){0}};
        const attune_batch sequences = {.struct_size = sizeof sequences, .kv_len = lengths};
        attune_append_args args = {.struct_size = sizeof args,
                                   .k = batch ? apart : packed,
                                   .v = batch ? apart : packed,
                                   .cache = &cache,
                                   .batch = batch ? &sequences : NULL};
        if (!batch)
            args.slots = (attune_tensor){buffer, 0, ATTUNE_I64, 1, {tokens}, {0}};
        fake->kernel = NULL;
        const attune_status status = attune_append(plan, attune_device_queue(device), &args, NULL);
        if (table[i].refused) {
            cr_expect_eq(status, ATTUNE_UNSUPPORTED, "%zu", i);
            cr_expect(strstr(attune_last_error(), table[i].refused), "%zu: %s", i, attune_last_error());
            cr_expect_null(fake->kernel, "%zu: %s", i, fake->kernel);
        } else {
            cr_expect_eq(status, ATTUNE_OK, "%zu: %s", i, attune_last_error());
            cr_expect(fake->kernel && !strcmp(fake->kernel, "attune_append"), "%zu: %s", i, fake->kernel);
            cr_expect_eq(fake->grid, tokens * table[i].ctas, "%zu: %u CTAs", i, fake->grid);
        }
        attune_plan_destroy(plan);
    }
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(cuda_driver, waits_run_out_of_time)
{
    fake_state *fake = open_fake();
    flow f = {0};
    *fake = (fake_state){.architecture = 90};
    cr_assert_eq(flow_create(&f), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(flow_run(&f, NULL), ATTUNE_OK);
    fake->not_ready = 1000000;
    cr_assert_eq(attune_completion_wait(f.completion, 0), ATTUNE_TIMEOUT);
    cr_assert_eq(attune_completion_wait(f.completion, 2000000), ATTUNE_TIMEOUT);
    fake->not_ready = 5;
    cr_assert_eq(attune_completion_wait(f.completion, UINT64_MAX), ATTUNE_OK);
    flow_destroy(&f);
}

Test(cuda_driver, an_old_gpu_is_named)
{
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 75};
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cuda", &device), ATTUNE_UNAVAILABLE);
    cr_assert_not_null(strstr(attune_last_error(), "7.5"), "%s", attune_last_error());
    attune_instance_destroy(instance);
    cr_assert_eq(fake->contexts, 0);
}

/* The environment lets the automatic choice take kernels that have never run on hardware. */
Test(cuda_driver, untried_kernels_by_the_environment)
{
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 100};
    static const char *const values[] = {NULL, "0", "1"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        attune_instance *instance;
        attune_device *device;
        const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
        if (values[i])
            setenv("ATTUNE_UNTRIED_KERNELS", values[i], 1);
        else
            unsetenv("ATTUNE_UNTRIED_KERNELS");
        cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
        cr_assert_eq(attune_device_open(instance, "cuda:0", &device), ATTUNE_OK, "%s", attune_last_error());
        cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
        cr_expect_eq((info.limits.matrix & ATTUNE_MATRIX_UNTRIED) != 0, i == 2);
        attune_device_destroy(device);
        attune_instance_destroy(instance);
    }
}

Test(cuda_driver, what_is_lent_stays_the_callers)
{
    fake_state *fake = open_fake();
    *fake = (fake_state){.architecture = 90};
    int (*retain)(void **, int) =
        (int (*)(void **, int))dlsym(dlopen(getenv("ATTUNE_FAKE_CUDA"), RTLD_NOW), "cuDevicePrimaryCtxRetain");
    void *context, *stream = &context;
    retain(&context, 0);
    heap h = {0};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .allocator = heap_allocator(&h), .cache_folder = ""};
    attune_instance *instance;
    attune_device *device;
    attune_queue *queue;
    attune_buffer *buffer;
    char memory[64] = {0}, back[64];
    char *aligned = memory + (16 - (size_t)memory % 16) % 16;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    attune_cuda_device_desc lent = {.struct_size = sizeof lent};
    cr_assert_eq(attune_cuda_device_open(instance, &lent, &device), ATTUNE_INVALID_ARGUMENT);
    lent.context = context;
    lent.stream = stream;
    for (fake->fail_at = 1;; fake->fail_at++) {
        fake->calls = 0;
        fake->fail_with = 1;
        const attune_status status = attune_cuda_device_open(instance, &lent, &device);
        if (status == ATTUNE_OK && fake->calls < fake->fail_at)
            break;
        attune_device_destroy(device);
        cr_assert(!fake->depth && !fake->streams && fake->contexts == 1, "call %d: %d %d %d", fake->fail_at,
                  fake->depth, fake->streams, fake->contexts);
    }
    fake->fail_at = 0;
    cr_assert_eq(fake->streams, 0);
    cr_assert_eq(attune_cuda_queue_wrap(device, NULL, &queue), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_cuda_queue_wrap(device, stream, &queue), ATTUNE_OK);
    cr_assert_eq(attune_cuda_buffer_wrap(device, (uint64_t)(size_t)aligned + 1, 16, &buffer), ATTUNE_INVALID_ARGUMENT);
    cr_assert_eq(attune_buffer_wrap(device, aligned, 32, &buffer), ATTUNE_UNSUPPORTED);
    cr_expect(strstr(attune_last_error(), "attune_cuda_buffer_wrap"), "%s", attune_last_error());
    cr_assert_eq(attune_cuda_buffer_wrap(device, (uint64_t)(size_t)aligned, 32, &buffer), ATTUNE_OK);
    cr_assert_eq(attune_buffer_write(buffer, 4, "attune", 6), ATTUNE_OK);
    cr_assert_eq(memcmp(aligned + 4, "attune", 6), 0);
    cr_assert_eq(attune_buffer_read(buffer, 4, back, 6), ATTUNE_OK);
    /* In any order, and the device's own queue stays. */
    attune_cuda_queue_destroy(attune_device_queue(device));
    attune_cuda_queue_destroy(NULL);
    attune_device_destroy(device);
    attune_buffer_destroy(buffer);
    attune_instance_destroy(instance);
    attune_cuda_queue_destroy(queue);
    cr_assert(!fake->depth && !fake->streams && !fake->events && !fake->memories && fake->contexts == 1);
    cr_assert_eq(atomic_load(&h.live), 0);
}

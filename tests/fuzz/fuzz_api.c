/* SPDX-License-Identifier: MIT */
/*
 * Sequences of calls of the public API on the CPU: handles made, used and destroyed in any order, with sizes, strides
 * and offsets that fit, nearly fit or make no sense. Nothing may crash, leak or be undefined; what fails says why,
 * gives no handle, and an allocator that refuses more than some megabytes is one of the reasons.
 */
#include "tests/fuzz/api.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS   64
#define LARGEST ((size_t)8 << 20)

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return bytes > LARGEST ? NULL : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static void make_instance(api_world *w, api_tape *t)
{
    const uint32_t slot = api_below(t, API_SLOTS);
    attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = "", .allocator = {allocate, release, NULL}};
    const uint32_t way = api_below(t, 16);
    if (way == 0)
        desc.struct_size = api_below(t, 2) ? 0 : (uint32_t)offsetof(attune_instance_desc, cache_folder);
    if (way == 1)
        desc.allocator.release = NULL;
    attune_instance_destroy(w->instances[slot]);
    api_failed_well(attune_instance_create(&desc, &w->instances[slot]), w->instances[slot]);
}

static void make_device(api_world *w, api_tape *t)
{
    static const char *const ids[] = {"cpu", "cpu", "cpu", "cpu", "cpu:0", "cpu:1", "", "cpu@a100", "none"};
    const uint32_t slot = api_below(t, API_SLOTS);
    attune_device_destroy(w->devices[slot]);
    api_failed_well(attune_device_open(w->instances[api_below(t, API_SLOTS)], ids[api_below(t, 9)], &w->devices[slot]),
                    w->devices[slot]);
}

static void make_buffer(api_world *w, api_tape *t)
{
    static uint64_t wrapped[1 << 13];
    const uint32_t slot = api_below(t, API_SLOTS);
    attune_device *device = w->devices[api_below(t, API_SLOTS)];
    attune_buffer_destroy(w->buffers[slot]);
    const attune_status status =
        api_below(t, 4) == 0
            ? attune_buffer_wrap(device, wrapped, sizeof wrapped, &w->buffers[slot])
            : attune_buffer_create(device, api_below(t, 8) ? (uint64_t)api_take(t) << 9 : (uint64_t)api_length(t),
                                   &w->buffers[slot]);
    api_failed_well(status, w->buffers[slot]);
    if (status == ATTUNE_OK && api_below(t, 2) == 0) {
        uint8_t bytes[64] = {0};
        const uint64_t offset = api_below(t, 8) ? 0 : (uint64_t)api_length(t),
                       count = api_below(t, 8) ? api_below(t, 65) : (uint64_t)api_length(t);
        if (count <= sizeof bytes) {
            (void)attune_buffer_write(w->buffers[slot], offset, bytes, count);
            (void)attune_buffer_read(w->buffers[slot], offset, bytes, count);
        }
    }
}

static void look(api_world *w, api_tape *t)
{
    char text[512];
    size_t needed;
    const attune_expr *expr = w->exprs[api_below(t, API_SLOTS)];
    const attune_plan *plan = w->plans[api_below(t, API_SLOTS)];
    attune_plan_choice choice = {.struct_size = sizeof choice};
    attune_host_capture captures[2];
    attune_parameter parameter;
    float value;
    const attune_point point = {
        (int32_t)api_below(t, 3), 0, (int32_t)api_below(t, 64), (int32_t)api_below(t, 64), 0, 64, 64, 1};
    api_host_captures(t, captures, &parameter);
    (void)attune_expr_print(expr, (attune_expr_format)(1 + api_below(t, 5)), text, api_below(t, 255), &needed);
    (void)attune_expr_evaluate(expr, &point, captures, 2, &parameter, 1, &value);
    (void)attune_plan_choice_get(plan, &choice);
    (void)attune_plan_choice_at(plan, api_below(t, 3), api_below(t, 255), &choice);
    (void)attune_plan_explain(plan, (attune_text_format)(1 + api_below(t, 2)), text, api_below(t, 255), &needed);
}

static void destroy(api_world *w, api_tape *t)
{
    const uint32_t slot = api_below(t, API_SLOTS);
    switch (api_below(t, 8)) {
    case 0:
        attune_instance_destroy(w->instances[slot]);
        w->instances[slot] = NULL;
        break;
    case 1:
        attune_device_destroy(w->devices[slot]);
        w->devices[slot] = NULL;
        break;
    case 2:
        attune_expr_destroy(w->exprs[slot]);
        w->exprs[slot] = NULL;
        break;
    case 3:
        attune_mask_destroy(w->masks[slot]);
        w->masks[slot] = NULL;
        break;
    case 4:
        attune_plan_destroy(w->plans[slot]);
        w->plans[slot] = NULL;
        break;
    case 5:
        attune_plan_destroy(w->serving[slot]);
        w->serving[slot] = NULL;
        break;
    case 6:
        attune_buffer_destroy(w->buffers[slot]);
        w->buffers[slot] = NULL;
        break;
    default:
        attune_merger_destroy(w->mergers[slot]);
        w->mergers[slot] = NULL;
    }
}

/* One of each, so that most calls have what they need. */
static void begin(api_world *w)
{
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = "", .allocator = {allocate, release, NULL}};
    api_expect(attune_instance_create(&desc, &w->instances[0]) == ATTUNE_OK);
    api_expect(attune_device_open(w->instances[0], "cpu", &w->devices[0]) == ATTUNE_OK);
    for (int i = 0; i < API_SLOTS; i++)
        api_expect(attune_buffer_create(w->devices[0], 1 << 18, &w->buffers[i]) == ATTUNE_OK);
    api_expect(attune_merger_create(w->devices[0], &w->mergers[0]) == ATTUNE_OK);
    api_expect(attune_buffer_create(w->devices[0], 1 << 18, &w->workspace) == ATTUNE_OK);
    api_expect(attune_buffer_wrap(w->devices[0], w->values, sizeof w->values, &w->integers) == ATTUNE_OK);
    /* One sequence of 20 keys in pages 0, 1, ... until the input says otherwise. */
    for (int i = 0; i < API_INTEGERS; i++)
        w->values[i] = i % 8 ? i % 8 : 20;
}

/* The steps of an input are drawn from these; those of plans and calls several times. */
static void (*const steps[])(api_world *, api_tape *) = {
    make_instance,
    make_device,
    api_make_expr,
    api_make_expr,
    api_make_mask,
    api_make_mask,
    api_look_at_mask,
    api_make_plan,
    api_make_plan,
    make_buffer,
    api_run_plan,
    api_run_plan,
    api_run_plan,
    api_run_merge,
    look,
    destroy,
    api_run_merge_backward,
    api_extend_mask,
    api_make_tensor_mask,
    api_update_mask,
    api_fill,
    api_fill,
    api_make_serving,
    api_make_serving,
    api_run_serving,
    api_run_serving,
    api_run_serving,
    api_run_append,
    api_run_append,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static api_world w;
    memset(&w, 0, sizeof w);
    api_tape t = {data, data + size};
    begin(&w);
    for (int step = 0; step < STEPS && t.at < t.end; step++)
        steps[api_below(&t, sizeof steps / sizeof *steps)](&w, &t);
    for (int i = 0; i < API_SLOTS; i++) {
        attune_instance_destroy(w.instances[i]);
        attune_device_destroy(w.devices[i]);
        attune_buffer_destroy(w.buffers[i]);
        attune_mask_destroy(w.masks[i]);
        attune_expr_destroy(w.exprs[i]);
        attune_merger_destroy(w.mergers[i]);
        attune_plan_destroy(w.plans[i]);
        attune_plan_destroy(w.serving[i]);
    }
    attune_buffer_destroy(w.integers);
    attune_buffer_destroy(w.workspace);
    return 0;
}

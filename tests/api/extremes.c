/* SPDX-License-Identifier: MIT */
/* Sizes, strides and offsets at the ends of 64 bits: every one is refused or harmless, and nothing overflows (the
 * sanitized build sees what does). */
#include <criterion/criterion.h>
#include <string.h>

#include "api/extremes.h"
#include "api/flow.h"
#include "support/devices.h"

#define OK(call) cr_assert_eq(call, ATTUNE_OK, "%s: %s", #call, attune_last_error())

Test(extremes, tensors_of_calls)
{
    static flow f;
    OK(flow_create(&f, NULL));
    static float before[FLOW_ELEMENTS], after[FLOW_ELEMENTS];
    OK(attune_buffer_read(f.o, 0, before, sizeof before));
    const flow good = f;
    attune_tensor *const tensors[] = {&f.args.q, &f.args.k, &f.args.v, &f.args.o, &f.args.lse, &f.captures[0].tensor};
    uint64_t state = test_seed();
    int refused = 0, taken = 0;
    for (uint64_t n = 0; n < scaled(6000); n++) {
        attune_tensor *t = tensors[random_expr_between(&state, 0, 5)];
        f = good;
        f.args.captures = f.captures;
        f.args.parameters = f.parameters;
        if (random_expr_between(&state, 0, 1)) {
            t->stride[t->rank - 1] = 1;
            for (uint32_t i = t->rank - 1; i-- > 0;)
                t->stride[i] = t->stride[i + 1] * t->size[i + 1];
        }
        distort(&state, t->rank, t->size, t->stride, &t->offset);
        const attune_status status = flow_run(&f, NULL);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_INVALID_ARGUMENT, "%s", attune_last_error());
        refused += status != ATTUNE_OK;
        taken += status == ATTUNE_OK;
        if (status != ATTUNE_OK && !taken) {
            OK(attune_buffer_read(f.o, 0, after, sizeof after));
            cr_assert_eq(memcmp(before, after, sizeof before), 0, "an error changed the output");
        }
    }
    cr_assert(refused && taken);

    /* Twice the lowest number reaches as far again as 64 bits do. */
    f = good;
    f.args.k.stride[0] = FLOW_ELEMENTS, f.args.k.stride[1] = INT64_MIN, f.args.k.stride[2] = FLOW_DIM,
    f.args.k.stride[3] = 1;
    EXPECT(flow_run(&f, NULL), ATTUNE_INVALID_ARGUMENT, "k begins 9223372036854775808 elements before its buffer");
    f = good;
    flow_destroy(&f);
}

Test(extremes, arrays_of_masks)
{
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    const attune_symbol symbol = {"seg", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 2};
    attune_expr *expr;
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "seg[b, kv] == seg[b, q]", &symbol, 1, &expr));
    static int32_t seg[4 * 40];
    static uint8_t dense[2 * 40 * 40];
    uint64_t state = test_seed();
    int refused = 0;
    for (uint64_t n = 0; n < scaled(6000); n++) {
        attune_mask_desc desc = {.struct_size = sizeof desc, .batch = 2, .q_len = 40, .kv_len = 40};
        attune_mask *mask = NULL;
        attune_status status;
        if (n % 3 == 0) {
            int64_t *const fields[] = {&desc.batch, &desc.heads, &desc.kv_heads, &desc.q_len, &desc.kv_len};
            *fields[random_expr_between(&state, 0, 4)] = extremes[random_expr_between(&state, 0, 8)];
            if (random_expr_between(&state, 0, 3) == 0)
                desc.kv_start = extreme(&state), desc.kv_total = extreme(&state);
        }
        if (n % 2) {
            attune_host_capture capture = {"seg", {seg, ATTUNE_I32, 2, {4, 40}, {40, 1}}};
            /* An array's far end is not known: any end within the address space is accepted. */
            int64_t *stride = &capture.array.stride[random_expr_between(&state, 0, 1)];
            if (n % 3)
                do
                    *stride = extreme(&state);
                while (*stride >= -(INT64_C(1) << 32) && *stride <= INT64_C(1) << 32);
            status = attune_mask_create(instance, &desc, expr, &capture, 1, NULL, 0, &mask);
        } else {
            attune_array array = {dense, ATTUNE_U8, 4, {2, 1, 40, 40}, {0}};
            if (n % 3)
                do
                    array.stride[0] = extreme(&state);
                while (array.stride[0] >= -(INT64_C(1) << 32) && array.stride[0] <= INT64_C(1) << 62);
            status = attune_mask_create_dense(instance, &desc, &array, &mask);
        }
        cr_assert(status == ATTUNE_OK || (status == ATTUNE_INVALID_ARGUMENT && !mask), "%s", attune_last_error());
        refused += status != ATTUNE_OK;
        attune_mask_destroy(mask);
    }
    cr_assert(refused);
    attune_expr_destroy(expr);
    attune_instance_destroy(instance);
}

Test(extremes, lists_of_masks)
{
    attune_instance *instance;
    OK(attune_instance_create(NULL, &instance));
    attune_expr *expr;
    OK(attune_expr_create(instance, ATTUNE_EXPR_MASK, "causal", NULL, 0, &expr));
    const attune_mask_desc desc = {
        .struct_size = sizeof desc, .q_block = 16, .kv_block = 16, .q_len = 16, .kv_len = 32};
    const int32_t indices[2] = {0, 1}, counts[1] = {2};
    attune_mask *mask;
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes; i++)
        for (size_t j = 0; j < sizeof extremes / sizeof *extremes; j++) {
            const int64_t offsets[2] = {extremes[i], extremes[j]};
            /* A start with space after it is accepted. */
            if (offsets[0] > 0 && offsets[1] > offsets[0] && offsets[1] - offsets[0] >= 2)
                continue;
            const attune_mask_lists lists = {.struct_size = sizeof lists,
                                             .batch = 1,
                                             .heads = 1,
                                             .kv_num_blocks = counts,
                                             .kv_offsets = offsets,
                                             .kv_indices = indices};
            const bool good = offsets[0] == 0 && offsets[1] >= 2;
            cr_assert_eq(attune_mask_create_lists(instance, &desc, &lists, expr, NULL, 0, NULL, 0, &mask),
                         good ? ATTUNE_OK : ATTUNE_INVALID_ARGUMENT, "%s", attune_last_error());
            attune_mask_destroy(mask);
        }
    attune_expr_destroy(expr);
    attune_instance_destroy(instance);
}

Test(extremes, merges)
{
    attune_instance *instance;
    attune_device *device;
    attune_merger *merger;
    attune_buffer *b;
    OK(attune_instance_create(NULL, &instance));
    OK(attune_device_open(instance, "cpu", &device));
    OK(attune_merger_create(device, &merger));
    OK(attune_buffer_create(device, 1 << 14, &b));
    uint64_t state = test_seed();
    int refused = 0;
    for (uint64_t n = 0; n < scaled(4000); n++) {
        attune_tensor o = {b, 0, ATTUNE_F32, 4, {1, 2, 3, 8}, {0}}, lse = {b, 1 << 12, ATTUNE_F32, 3, {1, 2, 3}, {0}};
        distort(&state, 4, o.size, o.stride, NULL);
        /* The sizes agree, so that lse is not the first to be refused. */
        memcpy(lse.size, o.size, 3 * sizeof *lse.size);
        const bool broadcast = random_expr_between(&state, 0, 1) == 0;
        if (broadcast) {
            memset(o.stride, 0, sizeof o.stride);
            memset(lse.stride, 0, sizeof lse.stride);
            o.stride[3] = 1, lse.size[2] = o.size[2] = 3, lse.stride[2] = 1;
        }
        const uint64_t bytes = attune_merger_workspace_size(merger, &o, 9);
        uint64_t wanted = 1;
        bool fits = true;
        for (int i = 0; i < 4; i++)
            fits = fits && o.size[i] > 0 && !__builtin_mul_overflow(wanted, (uint64_t)o.size[i] * (i ? 1 : 4), &wanted);
        cr_assert(!fits || bytes >= wanted, "%llu bytes for %llu", (unsigned long long)bytes,
                  (unsigned long long)wanted);
        const attune_merge_part part = {.o = o, .lse = lse};
        const attune_merge_backward_args args = {.struct_size = sizeof args,
                                                 .parts = &part,
                                                 .part_count = 1,
                                                 .o = o,
                                                 .lse = lse,
                                                 .d_o = o,
                                                 .workspace = b,
                                                 .workspace_offset = 0};
        /* A broadcast is drawn small unless it is refused or has few rows. */
        int64_t rows = 1;
        bool few = true;
        for (int i = 0; i < 3; i++)
            few = few && o.size[i] < 64 && !__builtin_mul_overflow(rows, o.size[i], &rows);
        if (broadcast && !few && o.size[0] <= INT32_MAX && o.size[1] <= INT32_MAX)
            continue;
        const attune_status status = attune_merge_backward(merger, attune_device_queue(device), &args, NULL);
        cr_assert(status == ATTUNE_OK || status == ATTUNE_INVALID_ARGUMENT, "%s", attune_last_error());
        refused += status != ATTUNE_OK;
    }
    cr_assert(refused);
    attune_buffer_destroy(b);
    attune_merger_destroy(merger);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(extremes, memory_off_its_elements)
{
    static flow f;
    OK(flow_create(&f, NULL));
    static _Alignas(8) char memory[FLOW_ELEMENTS * sizeof(float) + 8];
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (char)(i * 37 % 64);
    for (size_t past = 0; past < 8; past++) {
        attune_buffer *buffer;
        OK(attune_buffer_wrap(f.device, memory + past, sizeof memory - past, &buffer));
        const attune_tensor k = f.args.k;
        f.args.k.buffer = buffer;
        if (past % sizeof(float) == 0)
            OK(flow_run(&f, NULL));
        else
            EXPECT(flow_run(&f, NULL), ATTUNE_INVALID_ARGUMENT, "k begins at an address that is no multiple of the 4");
        f.args.k = k;
        attune_buffer_destroy(buffer);

        attune_host_capture doc = {"doc", {memory + past, ATTUNE_I32, 1, {FLOW_LENGTH}, {0}}};
        const attune_mask_desc desc = {.struct_size = sizeof desc, .q_len = FLOW_LENGTH, .kv_len = FLOW_LENGTH};
        attune_mask *mask = NULL;
        const attune_status status = attune_mask_create(f.instance, &desc, f.mask_expr, &doc, 1, NULL, 0, &mask);
        if (past % sizeof(int32_t) == 0)
            OK(status);
        else
            EXPECT(status, ATTUNE_INVALID_ARGUMENT, "is not aligned to its 4-byte i32");
        attune_mask_destroy(mask);
    }
    flow_destroy(&f);
}

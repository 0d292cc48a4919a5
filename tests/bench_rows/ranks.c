/* SPDX-License-Identifier: MIT */
/* Rows of several ranks: right, with the figures of their partition. */
#include "bench/timing/row.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* 400 tokens or more. */
#define SCALE 4e-4

static void measure(attune_instance *instance, attune_device *device, const char *name, attune_dtype dtype,
                    uint32_t ranks, attune_layout layout, row_pass pass, report_row *row)
{
    const row_options options = {.pass = pass, .measure = {.repetitions = 2}, .check = true, .seed = 3};
    workload w = workload_scaled(workload_find(name), SCALE);
    w.dtype = dtype;
    *row = (report_row){.share = 1};
    row_ranks_options over = {.count = ranks, .layout = layout};
    for (uint32_t r = 0; r < ranks; r++)
        (void)snprintf(over.devices[r], sizeof over.devices[r], "cpu");
    row_ranks(instance, device, &w, &over, &options, row);
}

/* Causal, a score expression with a capture, no mask at all, and more ranks than chunks. */
Test(ranks, rows_are_checked_and_timed)
{
    static const struct {
        const char *name;
        attune_dtype dtype;
        uint32_t ranks;
        attune_layout layout;
        row_pass pass;
    } cases[] = {{"causal", ATTUNE_F32, 2, ATTUNE_LAYOUT_BALANCED, ROW_FORWARD},
                 {"learned_relative_bias", ATTUNE_BF16, 3, ATTUNE_LAYOUT_ZIGZAG, ROW_FORWARD},
                 {"document_packing", ATTUNE_F16, 4, ATTUNE_LAYOUT_CUT, ROW_FORWARD},
                 {"dense", ATTUNE_F32, 16, ATTUNE_LAYOUT_STRIPED, ROW_FORWARD},
                 {"decode", ATTUNE_F32, 2, ATTUNE_LAYOUT_BALANCED, ROW_FORWARD},
                 {"decode", ATTUNE_BF16, 3, ATTUNE_LAYOUT_BALANCED, ROW_DECODE},
                 {"decode_batch", ATTUNE_F32, 4, ATTUNE_LAYOUT_BALANCED, ROW_DECODE},
                 {"causal", ATTUNE_F32, 1, ATTUNE_LAYOUT_BALANCED, ROW_FORWARD},
                 {"learned_relative_bias", ATTUNE_F32, 3, ATTUNE_LAYOUT_BALANCED, ROW_BACKWARD},
                 {"document_packing", ATTUNE_BF16, 4, ATTUNE_LAYOUT_CUT, ROW_BACKWARD},
                 {"dense", ATTUNE_F16, 16, ATTUNE_LAYOUT_STRIPED, ROW_BACKWARD},
                 {"causal", ATTUNE_F32, 1, ATTUNE_LAYOUT_BALANCED, ROW_BACKWARD}};
    attune_instance *instance;
    attune_device *device;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        report_row row;
        const uint32_t ranks = cases[i].ranks;
        cr_assert_not_null(workload_find(cases[i].name), "%s", cases[i].name);
        measure(instance, device, cases[i].name, cases[i].dtype, ranks, cases[i].layout, cases[i].pass, &row);
        cr_assert_eq(row.status, REPORT_OK, "%s: %s", row.name, row.message);
        cr_expect(row.checked_rows > 0 && row.naive_error > 0 && row.time.count == 2, "%s", row.name);
        cr_expect_eq(row.ranks, ranks);
        cr_expect_geq(row.imbalance, 1);
        cr_expect(row.one_seconds > 0 && report_speedup(&row) > 0);
        cr_expect(row.received_bytes <= row.ring_bytes && (ranks == 1) == (row.ring_bytes == 0), "%s", row.name);
        cr_expect(row.fetched >= 0 && row.fetched <= 1);
        /* A call sends more than it receives only in backward. */
        cr_expect(row.exchanged_bytes >= row.received_bytes &&
                      (cases[i].pass == ROW_BACKWARD || row.exchanged_bytes <= row.received_bytes),
                  "%s: %g, %g", row.name, row.exchanged_bytes, row.received_bytes);
        cr_expect((ranks > 1) == (row.exchange_seconds > 0 && row.computing_seconds > 0), "%s", row.name);
        cr_expect((row.predicted_seconds > 0 && row.link_rate > 0) ==
                      (row.exchange_seconds > 0 && row.received_bytes > 0 && cases[i].pass != ROW_DECODE),
                  "%s", row.name);
        cr_expect_not_null(strstr(row.name, ranks == 16 ? "/ranks:16" : "/ranks:"));
        cr_expect_eq(strstr(row.name, "/backward") != NULL, cases[i].pass == ROW_BACKWARD, "%s", row.name);
        statistics_free(&row.time);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

static row_ranks_options two_ranks(const char *first, const char *second)
{
    row_ranks_options o = {.count = 2};
    (void)snprintf(o.devices[0], sizeof o.devices[0], "%s", first);
    (void)snprintf(o.devices[1], sizeof o.devices[1], "%s", second);
    return o;
}

/* Devices of other backends, where there are any. */
Test(ranks, devices)
{
    static const struct {
        const char *first, *second, *name;
        row_pass pass;
    } cases[] = {{"vulkan:0", "vulkan:0", "causal", ROW_FORWARD},
                 {"opencl:0", "opencl:0", "causal", ROW_BACKWARD},
                 {"opencl:0", "cpu", "decode", ROW_DECODE}};
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const row_options options = {.pass = cases[i].pass, .measure = {.repetitions = 1}, .check = true, .seed = 3};
        const row_ranks_options over = two_ranks(cases[i].first, cases[i].second);
        workload w = workload_scaled(workload_find(cases[i].name), 1e-4);
        report_row row = {.share = 1};
        attune_device *device;
        w.dtype = ATTUNE_F32;
        w.heads = w.kv_heads = 2;
        w.head_dim = 32;
        w.kv_len = 300;
        w.q_len = w.q_len < 300 ? w.q_len : 300;
        if (attune_device_open(instance, cases[i].first, &device) != ATTUNE_OK)
            continue;
        row_ranks(instance, device, &w, &over, &options, &row);
        cr_expect_eq(row.status, REPORT_OK, "%s: %s", row.name, row.message);
        cr_expect(row.checked_rows > 0 && row.exchanged_bytes > 0 && row.one_seconds > 0, "%s", row.name);
        cr_expect_eq(row.exchange_seconds, 0, "%s", row.name);
        cr_expect_str_eq(row.plan, "transport host");
        statistics_free(&row.time);
        attune_device_destroy(device);
    }
    attune_instance_destroy(instance);
}

/* The share of messages that is hidden: all, half and none of two seconds; all and none where the three times, each of
 * samples of its own, say more or less. */
Test(ranks, hidden)
{
    report_row row = {.computing_seconds = 10, .exchange_seconds = 2, .time = {.median = 10}};
    cr_expect_float_eq(report_hidden(&row), 1, 1e-12);
    row.time.median = 11;
    cr_expect_float_eq(report_hidden(&row), 0.5, 1e-12);
    row.time.median = 12;
    cr_expect_float_eq(report_hidden(&row), 0, 1e-12);
    row.time.median = 9;
    cr_expect_eq(report_hidden(&row), 1);
    row.time.median = 13;
    cr_expect_eq(report_hidden(&row), 0);
    row.exchange_seconds = 0;
    cr_expect_float_eq(report_hidden(&row), 0, 1e-12);
}

/* Dense, on 4 ranks: each receives the keys and values of the others, as in a ring. */
Test(ranks, traffic)
{
    attune_instance *instance;
    attune_device *device;
    report_row row;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    measure(instance, device, "dense", ATTUNE_BF16, 4, ATTUNE_LAYOUT_CONTIGUOUS, ROW_FORWARD, &row);
    const workload w = workload_scaled(workload_find("dense"), SCALE);
    const int64_t bytes = w.batch * w.kv_heads * w.kv_len * 2 * w.head_dim * 2;
    cr_assert_eq(row.status, REPORT_OK, "%s", row.message);
    cr_expect_float_eq(row.received_bytes, 3.0 * (double)bytes, 1, "%g", row.received_bytes);
    cr_expect_float_eq(row.ring_bytes, row.received_bytes, 1);
    cr_expect_float_eq(row.fetched, 1, 1e-12);
    statistics_free(&row.time);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

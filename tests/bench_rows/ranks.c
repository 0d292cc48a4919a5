/* SPDX-License-Identifier: MIT */
/* Rows of several ranks: right, with the figures of their partition. */
#include "bench/timing/row.h"

#include <criterion/criterion.h>
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
    row_ranks(instance, device, &w, ranks, layout, &options, row);
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
        cr_expect_not_null(strstr(row.name, ranks == 16 ? "/ranks:16" : "/ranks:"));
        cr_expect_eq(strstr(row.name, "/backward") != NULL, cases[i].pass == ROW_BACKWARD, "%s", row.name);
        measure_free(&row.time);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
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
    measure_free(&row.time);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

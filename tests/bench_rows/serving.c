/* SPDX-License-Identifier: MIT */
/* The table of serving workloads: shapes, shrinking, the batches that are drawn, and rows on the CPU. */
#include "bench/timing/row.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static attune_instance *instance;

static void setup(void)
{
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
}

static void teardown(void)
{
    attune_instance_destroy(instance);
}

TestSuite(serving, .init = setup, .fini = teardown);

Test(serving, the_table_is_sound)
{
    cr_assert_geq(serving_workload_count(), 9);
    cr_assert_null(serving_workload_get(serving_workload_count()));
    cr_assert_null(serving_workload_find("no such workload"));
    for (uint32_t i = 0; i < serving_workload_count(); i++) {
        const serving_workload *w = serving_workload_get(i);
        cr_assert_eq(serving_workload_find(w->name), w, "names are unique: %s", w->name);
        cr_assert_null(workload_find(w->name));
        cr_assert(strlen(w->description) > 20 && strlen(w->description) < sizeof w->description - 1, "%s", w->name);
        cr_assert_eq(w->heads % w->kv_heads, 0);
        cr_assert(w->head_dim % 8 == 0 && w->head_dim_v <= w->head_dim);
        for (int g = 0; g < SERVING_GROUPS; g++)
            cr_assert(w->groups[g].keys_least >= w->groups[g].rows && w->groups[g].keys_least >= w->prefix * !g &&
                      w->groups[g].keys_most >= w->groups[g].keys_least);
    }
}

Test(serving, shrinking_keeps_the_structure)
{
    static const double scales[] = {1, 0.5, 0.1, 1.0 / 64, 1e-3, 1e-5, 1e-9};
    for (uint32_t i = 0; i < serving_workload_count(); i++)
        for (size_t k = 0; k < sizeof scales / sizeof scales[0]; k++) {
            const serving_workload *w = serving_workload_get(i), s = serving_scaled(w, scales[k]);
            cr_assert_eq(s.heads * w->kv_heads, w->heads * s.kv_heads, "%s: ratio of heads", w->name);
            cr_assert(s.head_dim == w->head_dim && s.local == w->local && s.global == w->global && s.tree == w->tree);
            cr_assert_leq(serving_flop(&s), serving_flop(w));
            /* A batch of less work has too few keys for the smallest of these. Heads that share one of keys stay, for
             * two sequences of 256 keys at the least. */
            const double least = serving_flop(w) < 0.2e9 ? 0.1 : 1e-3, most = 2 * scales[k] * serving_flop(w);
            const double fewest = w->kv_heads > 1 ? 0 : 4.0 * 256 * (double)w->heads * (w->head_dim + w->head_dim_v);
            cr_assert(scales[k] < least || serving_flop(&s) <= (most > fewest ? most : fewest), "%s at %g: %g of %g",
                      w->name, scales[k], serving_flop(&s), serving_flop(w));
            for (int g = 0; g < SERVING_GROUPS; g++) {
                const serving_group *group = &s.groups[g];
                cr_assert_eq(group->sequences > 0, w->groups[g].sequences > 0);
                cr_assert(group->keys_least >= group->rows && group->keys_most >= group->keys_least);
                cr_assert(!group->sequences || group->keys_least > s.prefix || !s.prefix);
            }
        }
}

/* Pages are of one sequence alone, but for the prefix's, and a draft sees drafts before it alone. */
Test(serving, batches_are_what_the_table_says)
{
    for (uint32_t i = 0; i < serving_workload_count(); i++) {
        const serving_workload w = serving_scaled(serving_workload_get(i), 1e-4);
        failure why;
        serving s;
        cr_assert(serving_instantiate(instance, &w, ATTUNE_F16, (attune_dtype)0, (attune_dtype)0, 5, &s, &why), "%s",
                  why.message);
        const int64_t pages = s.a.k.size[0], page = s.a.k.size[2], most = s.pages.size[1];
        int *users = calloc((size_t)pages, sizeof *users);
        double pairs = 0, layers = 0;
        cr_assert(users);
        for (int64_t b = 0; b < serving_sequences(&s); b++)
            for (int64_t j = 0; j < most; j++) {
                const int32_t entry = ((const int32_t *)s.pages.data)[b * most + j];
                cr_assert_eq(entry >= 0, j * page < serving_keys(&s, b), "%s", w.name);
                if (entry >= 0)
                    users[entry]++;
            }
        for (int64_t j = 0, shared = 0; j < pages; j++) {
            shared += users[j] > 1;
            cr_assert(users[j] == 1 || users[j] == serving_sequences(&s));
            cr_assert(j + 1 < pages || w.groups[0].sequences == 1 || shared == w.prefix / page);
        }
        /* The work is counted again, one pair at a time. */
        for (uint32_t kind = 0; kind < serving_kinds(&w); kind++)
            for (int64_t b = 0; b < serving_sequences(&s); b++)
                for (int64_t row = 0; row < serving_rows(&s, b); row++)
                    for (int64_t kv = 0; kv < serving_keys(&s, b); kv++) {
                        const int64_t q = serving_keys(&s, b) - serving_rows(&s, b) + row;
                        const int64_t draft = kv - (serving_keys(&s, b) - serving_rows(&s, b));
                        const uint32_t *bits = s.tree.data;
                        bool seen = q >= kv && (double)(q - kv) < serving_window(&w, kind);
                        if (w.tree && draft >= 0) {
                            const int64_t words = s.tree.size[1];
                            seen = bits[(b * serving_rows(&s, 0) + row) * words + draft / 32] >> draft % 32 & 1;
                            cr_assert(draft < row || seen == (draft == row));
                        }
                        pairs += seen * (double)serving_layers(&w, kind) * (double)w.heads;
                    }
        for (uint32_t kind = 0; kind < serving_kinds(&w); kind++)
            layers += serving_layers(&w, kind);
        cr_assert_float_eq(serving_measure(&w, &s).pairs, pairs / layers, 1e-6 * pairs, "%s", w.name);
        cr_assert_gt(serving_measure(&w, &s).bytes, 0);
        free(users);
        attune_expr_destroy(s.a.mask);
        serving_free(&s);
    }
}

/* Every workload on the CPU is right, with a cache of each type, and has figures of one layer. */
Test(serving, rows_are_checked_and_timed)
{
    static const attune_dtype types[] = {ATTUNE_BF16,   ATTUNE_Q8_0, ATTUNE_I8,
                                         ATTUNE_F8E4M3, ATTUNE_Q4_0, ATTUNE_F8E5M2};
    attune_device *device;
    const row_options options = {.measure = {.repetitions = 1}, .check = true, .seed = 3};
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    for (uint32_t i = 0; i < serving_workload_count(); i++) {
        const serving_workload w = serving_scaled(serving_workload_get(i), 1e-5);
        report_row row = {.share = 1};
        row_serving(instance, device, &w, ATTUNE_F32, types[i % 6], (attune_dtype)0, &options, &row);
        cr_assert_eq(row.status, REPORT_OK, "%s: %s", w.name, row.message);
        cr_assert(row.checked_rows > 0 && row.naive_error > 0 && row.time.count == 1);
        cr_assert_gt(report_tokens(&row), 0);
        cr_assert_float_eq(report_tokens(&row) * row.time.median, (double)row.tokens, 1e-6 * (double)row.tokens);
        statistics_free(&row.time);
    }
    attune_device_destroy(device);
}

/* The reference has pages, first keys and trees from the call: a call that differs in one of them is found. */
Test(serving, the_reference_sees_what_differs)
{
    const serving_workload w = serving_scaled(serving_workload_find("serve_tree"), 1e-5);
    attune_device *device;
    failure why;
    serving s;
    array o;
    int64_t count;
    cr_assert_eq(attune_device_open(instance, "cpu", &device), ATTUNE_OK);
    cr_assert(serving_instantiate(instance, &w, ATTUNE_F32, (attune_dtype)0, (attune_dtype)0, 5, &s, &why));
    cr_assert_eq(serving_forward(device, &s, NULL, &o, NULL, NULL), ATTUNE_OK);
    reference_row *rows = serving_all_rows(&s, &count);
    const int64_t width = serving_width(&s);
    double *memory = calloc((size_t)(count * (width + 2)), sizeof *memory);
    const reference_result expected = {memory, memory + count * width, memory + count * (width + 1), NULL};
    int32_t *const changed[] = {NULL, (int32_t *)s.pages.data, (int32_t *)s.tree.data, (int32_t *)s.kv_len.data};
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        double worst = 0;
        if (changed[i])
            *changed[i] ^= 1;
        cr_assert(serving_reference(instance, &s, REFERENCE_ORACLE, rows, count, &expected, &why), "%s", why.message);
        if (changed[i])
            *changed[i] ^= 1;
        for (int64_t n = 0; n < count * width; n++) {
            const double off =
                expected.o[n] - ((double *)o.data)[serving_index(&s, &rows[n / width]) * width + n % width];
            worst = off > worst ? off : worst;
        }
        cr_assert_eq(worst > 1e-4, changed[i] != NULL, "%zu: %g", i, worst);
    }
    free(memory);
    free(rows);
    array_free(&o);
    attune_expr_destroy(s.a.mask);
    serving_free(&s);
    attune_device_destroy(device);
}

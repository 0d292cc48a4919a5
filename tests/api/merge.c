/* SPDX-License-Identifier: MIT */
/* Merging against float64, with parts that are empty, backwards against differences, and its arguments. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/array.h"
#include "support/devices.h"

#define MOST_PARTS 40

/* One merge with its data: [batch, heads, rows, columns], in host memory and on the device. */
typedef struct merging {
    attune_device *device;
    attune_merger *merger;
    attune_dtype dtype, part_dtype, row_dtype;
    uint32_t count;
    int64_t size[4], gap;
    array o[MOST_PARTS], lse[MOST_PARTS];
    attune_merge_part parts[MOST_PARTS];
    attune_tensor out, out_lse;
    attune_buffer *workspace;
} merging;

static int64_t rows_of(const merging *m)
{
    return m->size[0] * m->size[1] * m->size[2];
}

static attune_tensor make_tensor(const merging *m, attune_dtype dtype, uint32_t rank, const array *contents)
{
    attune_tensor t = {.dtype = dtype, .rank = rank};
    memcpy(t.size, m->size, rank * sizeof *t.size);
    /* Rows have gaps, which is no contiguous tensor. */
    const int64_t row = rank == 4 ? m->size[3] + m->gap : 1, rows = rows_of(m);
    t.stride[0] = m->size[1] * m->size[2] * row;
    t.stride[1] = m->size[2] * row;
    t.stride[2] = row;
    t.stride[3] = 1;
    const size_t element = attune_dtype_size(dtype), bytes = (size_t)(rows * row) * element;
    cr_assert_eq(attune_buffer_create(m->device, bytes, &t.buffer), ATTUNE_OK, "%s", attune_last_error());
    char *image = calloc(bytes, 1);
    const size_t width = (rank == 4 ? (size_t)m->size[3] : 1) * element;
    for (int64_t r = 0; contents && r < rows; r++)
        memcpy(image + (size_t)(r * row) * element, (char *)contents->data + (size_t)r * width, width);
    cr_assert_eq(attune_buffer_write(t.buffer, 0, image, bytes), ATTUNE_OK);
    free(image);
    return t;
}

/* As float64, rows one after another. */
static double *fetch(const merging *m, const attune_tensor *t)
{
    const int64_t rows = rows_of(m), width = t->rank == 4 ? m->size[3] : 1;
    const size_t element = attune_dtype_size(t->dtype);
    const size_t bytes = (size_t)(rows * t->stride[2]) * element;
    char *image = malloc(bytes);
    double *values = calloc((size_t)(rows * width), sizeof *values);
    cr_assert(image && values);
    cr_assert_eq(attune_buffer_read(t->buffer, 0, image, bytes), ATTUNE_OK);
    array all = {.dtype = t->dtype, .rank = 1, .size = {rows * t->stride[2]}, .data = image};
    for (int64_t i = 0; i < rows * width; i++)
        values[i] = array_get(&all, i / width * t->stride[2] + i % width);
    free(image);
    return values;
}

/* Random parts, a third of whose rows are empty and hold NaN; every fifth row is empty in all. */
static void fill(merging *m, random_state *random)
{
    failure why;
    for (uint32_t p = 0; p < m->count; p++) {
        cr_assert(array_create(&m->o[p], m->part_dtype, 4, m->size, &why));
        cr_assert(array_create(&m->lse[p], m->row_dtype, 3, m->size, &why));
        array_fill_normal(&m->o[p], random, 1);
        array_fill_normal(&m->lse[p], random, 6);
        for (int64_t r = 0; r < rows_of(m); r++)
            if (r % 5 == 4 || random_u64(random) % 3 == 0) {
                array_set(&m->lse[p], r, -INFINITY);
                for (int64_t c = 0; c < m->size[3]; c++)
                    array_set(&m->o[p], r * m->size[3] + c, NAN);
            }
        m->parts[p].o = make_tensor(m, m->part_dtype, 4, &m->o[p]);
        m->parts[p].lse = make_tensor(m, m->row_dtype, 3, &m->lse[p]);
    }
}

static void merging_create(merging *m, attune_device *device, uint64_t seed)
{
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    random_state random = {seed};
    random_u64(&random);
    *m = (merging){.device = device, .dtype = dtypes[random_u64(&random) % (info.limits.f64 ? 4 : 3)]};
    m->row_dtype = m->dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    m->part_dtype = random_u64(&random) % 2 ? m->dtype : m->row_dtype;
    m->count = 1 + (uint32_t)(random_u64(&random) % (seed % 4 == 0 ? MOST_PARTS : 8));
    m->size[0] = 1 + (int64_t)(random_u64(&random) % 2);
    m->size[1] = 1 + (int64_t)(random_u64(&random) % 3);
    m->size[2] = 1 + (int64_t)(random_u64(&random) % 40);
    m->size[3] = 8 * (1 + (int64_t)(random_u64(&random) % 32));
    /* Rows of whole vectors, of pairs, and of neither. */
    m->gap = (const int64_t[]){8, 8, 2, 5}[random_u64(&random) % 4];
    cr_assert_eq(attune_merger_create(device, &m->merger), ATTUNE_OK, "%s", attune_last_error());
    fill(m, &random);
    m->out = make_tensor(m, m->dtype, 4, NULL);
    m->out_lse = make_tensor(m, m->row_dtype, 3, NULL);
    cr_assert_eq(
        attune_buffer_create(device, attune_merger_workspace_size(m->merger, &m->out, m->count), &m->workspace),
        ATTUNE_OK);
}

static void merging_destroy(merging *m)
{
    for (uint32_t p = 0; p < m->count; p++) {
        array_free(&m->o[p]);
        array_free(&m->lse[p]);
        attune_buffer_destroy(m->parts[p].o.buffer);
        attune_buffer_destroy(m->parts[p].lse.buffer);
        attune_buffer_destroy(m->parts[p].d_o.buffer);
        attune_buffer_destroy(m->parts[p].d_lse.buffer);
    }
    attune_buffer_destroy(m->out.buffer);
    attune_buffer_destroy(m->out_lse.buffer);
    attune_buffer_destroy(m->workspace);
    attune_merger_destroy(m->merger);
}

/* The definition. Returns the LSE of a row, and its weights. */
static double weigh(const merging *m, int64_t row, double *weights)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < m->count; p++)
        largest = fmax(largest, array_get(&m->lse[p], row));
    for (uint32_t p = 0; p < m->count; p++) {
        weights[p] = largest == -INFINITY ? 0 : exp(array_get(&m->lse[p], row) - largest);
        sum += weights[p];
    }
    for (uint32_t p = 0; p < m->count && sum != 0; p++)
        weights[p] /= sum;
    return sum == 0 ? -INFINITY : largest + log(sum);
}

static double epsilon_of(attune_dtype dtype)
{
    return dtype == ATTUNE_F64 ? 1e-14 : dtype == ATTUNE_F32 ? 1e-6 : dtype == ATTUNE_F16 ? 0x1p-11 : 0x1p-8;
}

static bool is_near(double got, double wanted, double tolerance)
{
    return got == wanted || fabs(got - wanted) <= tolerance * (1 + fabs(wanted));
}

static attune_status run(const merging *m, const attune_tensor *o, const attune_tensor *lse)
{
    const attune_merge_args args = {.struct_size = sizeof args,
                                    .parts = m->parts,
                                    .part_count = m->count,
                                    .o = *o,
                                    .lse = *lse,
                                    .workspace = m->workspace};
    attune_completion done;
    attune_status status = attune_merge(m->merger, attune_device_queue(m->device), &args, &done);
    return status == ATTUNE_OK ? attune_completion_wait(done, UINT64_MAX) : status;
}

static uint64_t check(const merging *m, const attune_tensor *o, const attune_tensor *lse)
{
    double weights[MOST_PARTS], *got = fetch(m, o), *got_lse = fetch(m, lse);
    uint64_t wrong = 0;
    /* More than 8 parts are merged in steps, each of which rounds the LSE of those before: their weights move by as
     * much, relatively, and the result by that share of what they are away from it. */
    const double steps = m->count > 8 && m->row_dtype == ATTUNE_F32 ? 1 + (m->count - 2) / 7 : 0;
    for (int64_t r = 0; r < rows_of(m); r++) {
        const double row_lse = weigh(m, r, weights);
        double largest = 0;
        for (uint32_t p = 0; p < m->count; p++)
            if (weights[p] != 0)
                largest = fmax(largest, fabs(array_get(&m->lse[p], r)) + log((double)m->count));
        wrong += !is_near(got_lse[r], row_lse, m->row_dtype == ATTUNE_F64 ? 1e-14 : 1e-6);
        for (int64_t c = 0; c < m->size[3]; c++) {
            const int64_t i = r * m->size[3] + c;
            double sum = 0, away = 0;
            for (uint32_t p = 0; p < m->count; p++)
                sum += weights[p] != 0 ? weights[p] * array_get(&m->o[p], i) : 0;
            for (uint32_t p = 0; p < m->count && steps > 0; p++)
                away += weights[p] != 0 ? weights[p] * fabs(array_get(&m->o[p], i) - sum) : 0;
            wrong += row_lse == -INFINITY
                         ? got[i] != 0
                         : !is_near(got[i], sum, epsilon_of(m->dtype) + steps * 0x1p-24 * largest * away);
        }
    }
    free(got);
    free(got_lse);
    return wrong;
}

static void run_merges(const char *backend, uint64_t full)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    for (uint64_t i = 0; i < scaled(full); i++) {
        static merging m;
        merging_create(&m, device, test_seed() * 7919 + i);
        cr_assert_eq(run(&m, &m.out, &m.out_lse), ATTUNE_OK, "%s", attune_last_error());
        cr_expect_eq(check(&m, &m.out, &m.out_lse), 0, "case %llu: %u parts of %s into %s", (unsigned long long)i,
                     m.count, attune_dtype_string(m.part_dtype), attune_dtype_string(m.dtype));
        /* In place of any part. */
        const uint32_t p = (uint32_t)i % m.count;
        if (m.part_dtype == m.dtype) {
            cr_assert_eq(run(&m, &m.parts[p].o, &m.parts[p].lse), ATTUNE_OK, "%s", attune_last_error());
            cr_expect_eq(check(&m, &m.parts[p].o, &m.parts[p].lse), 0, "case %llu, in place of part %u",
                         (unsigned long long)i, p);
        }
        merging_destroy(&m);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

/* A NaN or infinite LSE of one part makes its row NaN, and no other; no part that is not there is read. */
static void run_nan(const char *backend)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    for (uint64_t i = 0; i < 8; i++) {
        static merging m;
        merging_create(&m, device, test_seed() * 31 + i);
        const int64_t rows = rows_of(&m), row = rows / 2;
        array_set(&m.lse[0], row, i % 2 ? (double)INFINITY : (double)NAN);
        attune_buffer_destroy(m.parts[0].lse.buffer);
        m.parts[0].lse = make_tensor(&m, m.row_dtype, 3, &m.lse[0]);
        cr_assert_eq(run(&m, &m.out, &m.out_lse), ATTUNE_OK, "%s", attune_last_error());
        double *got = fetch(&m, &m.out), *lse = fetch(&m, &m.out_lse);
        for (int64_t r = 0; r < rows; r++) {
            cr_expect_eq(isnan(lse[r]) != 0, r == row);
            for (int64_t c = 0; c < m.size[3]; c++)
                cr_expect_eq(isnan(got[r * m.size[3] + c]) != 0, r == row);
        }
        free(got);
        free(lse);
        merging_destroy(&m);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(merge, nan_cpu)
{
    run_nan("cpu");
}

Test(merge, nan_vulkan)
{
    run_nan("vulkan");
}

Test(merge, nan_cuda)
{
    run_nan("cuda");
}

Test(merge, nan_opencl)
{
    run_nan("opencl");
}

Test(merge, cpu)
{
    run_merges("cpu", 300);
}

Test(merge, vulkan)
{
    run_merges("vulkan", 100);
}

Test(merge, cuda)
{
    run_merges("cuda", 300);
}

Test(merge, opencl)
{
    run_merges("opencl", 40);
}

/* --------------------------------------------------------------------------------------------------------- backward */

/* sum(o d_o) + sum(lse d_lse) of the rows that are not empty, in float64. */
static double loss_of_row(const merging *m, int64_t row, const array *d_o, const array *d_lse)
{
    double weights[MOST_PARTS], loss = 0;
    const double lse = weigh(m, row, weights);
    if (lse == -INFINITY)
        return 0;
    for (int64_t i = row * m->size[3]; i < (row + 1) * m->size[3]; i++)
        for (uint32_t p = 0; p < m->count; p++)
            if (weights[p] != 0)
                loss += weights[p] * array_get(&m->o[p], i) * array_get(d_o, i);
    return loss + (d_lse ? lse * array_get(d_lse, row) : 0);
}

static double difference(merging *m, array *of, int64_t element, int64_t row, const array *d_o, const array *d_lse)
{
    const double step = 1e-5, value = array_get(of, element);
    array_set(of, element, value + step);
    const double above = loss_of_row(m, row, d_o, d_lse);
    array_set(of, element, value - step);
    const double below = loss_of_row(m, row, d_o, d_lse);
    array_set(of, element, value);
    return (above - below) / (2 * step);
}

static void run_backward(const char *backend, uint64_t full)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    for (uint64_t i = 0; i < scaled(full); i++) {
        static merging m;
        failure why;
        merging_create(&m, device, test_seed() * 104729 + i);
        random_state random = {i};
        array d_o, d_lse;
        cr_assert(array_create(&d_o, m.dtype, 4, m.size, &why) && array_create(&d_lse, m.row_dtype, 3, m.size, &why));
        array_fill_normal(&d_o, &random, 1);
        array_fill_normal(&d_lse, &random, 1);
        for (uint32_t p = 0; p < m.count; p++) {
            m.parts[p].d_o = make_tensor(&m, m.part_dtype, 4, NULL);
            m.parts[p].d_lse = make_tensor(&m, m.row_dtype, 3, NULL);
        }
        attune_tensor up = make_tensor(&m, m.dtype, 4, &d_o), up_lse = make_tensor(&m, m.row_dtype, 3, &d_lse);
        cr_assert_eq(run(&m, &m.out, &m.out_lse), ATTUNE_OK, "%s", attune_last_error());
        const bool with_lse = i % 2;
        const attune_merge_backward_args args = {.struct_size = sizeof args,
                                                 .parts = m.parts,
                                                 .part_count = m.count,
                                                 .o = m.out,
                                                 .lse = m.out_lse,
                                                 .d_o = up,
                                                 .d_lse = with_lse ? up_lse : (attune_tensor){.buffer = NULL},
                                                 .workspace = m.workspace};
        attune_completion done;
        cr_assert_eq(attune_merge_backward(m.merger, attune_device_queue(device), &args, &done), ATTUNE_OK, "%s",
                     attune_last_error());
        cr_assert_eq(attune_completion_wait(done, UINT64_MAX), ATTUNE_OK);
        /* Differences need float64 data. */
        for (uint32_t p = 0; p < m.count; p++) {
            array in_f64, lse_in_f64;
            cr_assert(array_convert(&m.o[p], ATTUNE_F64, &in_f64, &why) &&
                      array_convert(&m.lse[p], ATTUNE_F64, &lse_in_f64, &why));
            array_free(&m.o[p]);
            array_free(&m.lse[p]);
            m.o[p] = in_f64;
            m.lse[p] = lse_in_f64;
        }
        /* o is rounded before it enters dot(d_o, o_i - o). */
        const double tolerance = m.dtype == ATTUNE_F64 ? 1e-6 : 4 * epsilon_of(m.dtype) * sqrt((double)m.size[3]);
        for (uint32_t p = 0; p < m.count; p++) {
            double *got = fetch(&m, &m.parts[p].d_o), *got_lse = fetch(&m, &m.parts[p].d_lse);
            for (int64_t r = 0; r < rows_of(&m); r++) {
                const bool empty = array_get(&m.lse[p], r) == -INFINITY;
                const int64_t e = r * m.size[3] + r % m.size[3];
                const double by_o = empty ? 0 : difference(&m, &m.o[p], e, r, &d_o, with_lse ? &d_lse : NULL);
                const double by_lse = empty ? 0 : difference(&m, &m.lse[p], r, r, &d_o, with_lse ? &d_lse : NULL);
                cr_expect(is_near(got[e], by_o, empty ? 0 : tolerance + 1e-6), "d_o: %g, differences %g", got[e], by_o);
                cr_expect(is_near(got_lse[r], by_lse, empty ? 0 : tolerance + 1e-6), "d_lse: %g, differences %g",
                          got_lse[r], by_lse);
            }
            free(got);
            free(got_lse);
        }
        attune_buffer_destroy(up.buffer);
        attune_buffer_destroy(up_lse.buffer);
        array_free(&d_o);
        array_free(&d_lse);
        merging_destroy(&m);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(merge, backward_cpu)
{
    run_backward("cpu", 100);
}

Test(merge, backward_vulkan)
{
    run_backward("vulkan", 40);
}

Test(merge, backward_cuda)
{
    run_backward("cuda", 100);
}

Test(merge, backward_opencl)
{
    run_backward("opencl", 20);
}

/* -------------------------------------------------------------------------------------------------------- arguments */

#define EXPECT(call, words)                                                                                            \
    do {                                                                                                               \
        cr_expect_eq((call), ATTUNE_INVALID_ARGUMENT, "%s", #call);                                                    \
        cr_expect(strstr(attune_last_error(), words), "\"%s\" does not say \"%s\"", attune_last_error(), words);       \
    } while (0)

#define WRONG(field, value, words)                                                                                     \
    do {                                                                                                               \
        const merging before_ = m;                                                                                     \
        m.field = value;                                                                                               \
        EXPECT(run(&m, &m.out, &m.out_lse), words);                                                                    \
        m = before_;                                                                                                   \
    } while (0)

Test(merge, arguments)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "cpu"), *other;
    cr_assert_eq(attune_device_open(instance, "cpu", &other), ATTUNE_OK);
    static merging m;
    uint64_t seed = 0;
    do {
        merging_create(&m, device, seed++);
        if (m.count > 8 && m.dtype == ATTUNE_BF16 && m.size[0] > 1 && m.size[1] > 1 && m.size[2] > 1 && m.size[3] > 1)
            break;
        merging_destroy(&m);
    } while (true);
    WRONG(count, 0, "part_count is 0");
    WRONG(out.buffer, NULL, "o.buffer is NULL");
    WRONG(out.rank, 3, "o.rank is 3, expected 4");
    WRONG(out.dtype, ATTUNE_I32, "o");
    WRONG(out.stride[2], 1, "makes elements overlap");
    WRONG(out_lse.dtype, ATTUNE_BF16, "lse.dtype is bf16 (3), expected f32");
    WRONG(out_lse.size[1], 1, "lse.size[1] is 1, expected that of o");
    for (int i = 0; i < 4; i++) {
        char words[64];
        snprintf(words, sizeof words, "args.parts[1]: part.o.size[%d] is 1, expected that of o", i);
        WRONG(parts[1].o.size[i], 1, words);
    }
    WRONG(parts[1].o.dtype, ATTUNE_F16, "args.parts[1]: part.o.dtype is f16 (2), expected bf16");
    char last[64];
    snprintf(last, sizeof last, "args.parts[%u]: part.lse.buffer is NULL", m.count - 1);
    WRONG(parts[m.count - 1].lse.buffer, NULL, last);
    WRONG(workspace, NULL, "args.workspace is NULL");
    WRONG(workspace, m.out_lse.buffer, "the merge (attune_merger_workspace_size) needs");
    const uint64_t wanted = attune_merger_workspace_size(m.merger, &m.out, m.count);
    attune_buffer *shorter;
    cr_assert_eq(attune_buffer_create(device, wanted - 1, &shorter), ATTUNE_OK);
    WRONG(workspace, shorter, "the merge (attune_merger_workspace_size) needs");
    attune_buffer_destroy(shorter);
    attune_tensor like = m.out;
    cr_expect_eq(attune_merger_workspace_size(NULL, &like, 2), 0);
    cr_expect_eq(attune_merger_workspace_size(m.merger, NULL, 2), 0);
    like.rank = 3;
    cr_expect_eq(attune_merger_workspace_size(m.merger, &like, 2), 0);
    for (int i = 0; i < 4; i++) {
        like = m.out;
        like.size[i] = 0;
        cr_expect_eq(attune_merger_workspace_size(m.merger, &like, 2), 0);
        like.size[i] = INT64_MAX;
        cr_expect_eq(attune_merger_workspace_size(m.merger, &like, 2), UINT64_MAX);
    }
    attune_buffer *foreign;
    cr_assert_eq(attune_buffer_create(other, 1 << 20, &foreign), ATTUNE_OK);
    WRONG(workspace, foreign, "args.workspace belongs to device");
    WRONG(parts[0].lse.buffer, foreign, "the merger to device");
    attune_merge_args args = {.struct_size = sizeof args, .part_count = 1};
    EXPECT(attune_merge(m.merger, attune_device_queue(device), &args, NULL), "args.parts is NULL");
    EXPECT(attune_merge(NULL, attune_device_queue(device), &args, NULL), "merger is NULL");
    EXPECT(attune_merge(m.merger, attune_device_queue(other), &args, NULL), "queue belongs to device");
    EXPECT(attune_merge(m.merger, NULL, &args, NULL), "queue is NULL");
    args.struct_size = 0;
    EXPECT(attune_merge(m.merger, attune_device_queue(device), &args, NULL), "struct_size is 0");
    attune_merge_backward_args back = {.struct_size = sizeof back,
                                       .parts = m.parts,
                                       .part_count = m.count,
                                       .o = m.out,
                                       .lse = m.out_lse,
                                       .workspace = m.workspace};
    EXPECT(attune_merge_backward(m.merger, attune_device_queue(device), &back, NULL), "d_o.buffer is NULL");
    back.d_o = m.out;
    back.lse.buffer = NULL;
    EXPECT(attune_merge_backward(m.merger, attune_device_queue(device), &back, NULL), "lse.buffer is NULL");
    back.lse = m.out_lse;
    back.workspace_offset = 3;
    EXPECT(attune_merge_backward(m.merger, attune_device_queue(device), &back, NULL), "expected a multiple of 256");
    back.workspace_offset = 0;
    m.parts[0].d_o = m.parts[0].o;
    m.parts[0].d_o.dtype = m.parts[0].o.dtype == ATTUNE_F32 ? ATTUNE_BF16 : ATTUNE_F32;
    EXPECT(attune_merge_backward(m.merger, attune_device_queue(device), &back, NULL),
           "args.parts[0]: part.d_o.dtype is");
    m.parts[0].d_o.buffer = NULL;
    attune_buffer_destroy(foreign);
    merging_destroy(&m);
    attune_device_destroy(other);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

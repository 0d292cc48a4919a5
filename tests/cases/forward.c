/* SPDX-License-Identifier: MIT */
/* Forward passes of the case table and of random cases on each backend. */
#include "cases/suite.h"

#include "cpu/matrix_model.h"
#include "support/devices.h"

/* Row `row` in dtype `variant`. */
static bool make_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    job->c = attention_cases[row];
    job->dtype = s->dtypes[variant];
    job->seed = test_seed() + row;
    return job->dtype != ATTUNE_F64 || !case_mixed(&job->c);
}

static bool draw(const case_suite *s, uint64_t number, case_job *job)
{
    job->seed = test_seed() * 1000003 + number;
    job->c = attention_case_random(job->seed, &job->storage);
    job->dtype = s->dtypes[number % s->dtype_count];
    return true;
}

/* Cooperative matrices wherever the mask's blocks allow, in decode too. A split's keys are bounded on a driver that
 * runs on the CPU: long cases take the planner's kernel. Q and O of any type. */
static void take_matrices(attention_case *c, attune_dtype kv_dtype)
{
    const bool past_256 = c->head_dim > 256 || c->head_dim_v > 256;
    c->kv_dtype = kv_dtype;
    if (!c->options && !past_256 && c->kv_len <= 2048 && (!c->mask || (c->q_block % 16 == 0 && c->kv_block % 16 == 0)))
        c->options = "{\"KERNEL\": \"vulkan_coopmat\"}";
}

static bool make_matrix_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    const bool made = make_row(s, row, variant, job);
    take_matrices(&job->c, s->bf16 ? ATTUNE_BF16 : ATTUNE_F16);
    return made;
}

static bool draw_matrix(const case_suite *s, uint64_t number, case_job *job)
{
    const bool made = draw(s, number, job);
    take_matrices(&job->c, s->bf16 ? ATTUNE_BF16 : ATTUNE_F16);
    return made;
}

/* The kernels that share memory, which the planner does not take on a driver of the CPU, with sinks. */
static bool draw_shared(const case_suite *s, uint64_t number, case_job *job)
{
    const bool made = draw(s, number, job);
    job->c.options = number % 2 ? "{\"KERNEL\": \"vulkan_portable\"}" : "{\"KERNEL\": \"vulkan_subgroup\"}";
    job->c.sinks = true;
    return made;
}

/* The kernel that the planner does not take on a driver of the CPU. */
static bool draw_subgroup(const case_suite *s, uint64_t number, case_job *job)
{
    const bool made = draw(s, number, job);
    job->c.options = "{\"KERNEL\": \"opencl_subgroup\"}";
    job->c.sinks = number % 2;
    return made;
}

/* OpenCL's kernel of few rows, by name; with parts in the row that an interpreter of kernels runs (.ci/opencl). */
static bool make_few(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    const bool made = make_row(s, row, variant, job);
    const bool splits = job->c.preferred || row == CASE_decode_dense;
    job->c.options = splits ? "{\"KERNEL\": \"opencl_decode\", \"SPLIT_KV\": 3}" : "{\"KERNEL\": \"opencl_decode\"}";
    return made;
}

/* The table's rows of few queries, one after another. */
static bool draw_few(const case_suite *s, uint64_t number, case_job *job)
{
    static const uint32_t rows[] = {
        CASE_decode,
        CASE_decode_few,
        CASE_decode_softcap,
        CASE_nan_hidden_decode,
        CASE_decode_misaligned,
        CASE_decode_misaligned_80,
        CASE_decode_keys,
        CASE_decode_keys_of_head,
        CASE_mixed_decode,
        CASE_mixed_decode_few,
        CASE_mixed_decode_output,
        CASE_decode_long,
        CASE_infinite_split,
        CASE_infinite_split_masked,
        CASE_shared_k_decode,
        CASE_nan_hidden_decode_steep,
        CASE_sinks_decode,
        CASE_sinks_decode_masked,
        CASE_head_512_decode,
        CASE_decode_256,
        CASE_o_alone_split,
    };
    const uint64_t count = sizeof rows / sizeof rows[0], at = test_seed() + number;
    return make_few(s, rows[at % count], (uint32_t)(at / count % s->dtype_count), job);
}

static bool draw_float(const case_suite *s, uint64_t number, case_job *job)
{
    const bool made = draw(s, number, job);
    if (!job->c.options)
        job->c.options = "{\"KERNEL\": \"cpu\"}";
    return made;
}

/* Of a partial tile the last row, which a product of matrices takes alone, begins in a later panel, or block. */
static bool make_last_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    static const attention_case cases[] = {{.name = "last_row_later_panel",
                                            .kv_len = 256,
                                            .mask = "q < 96 || kv >= 16",
                                            .kv_block = 256,
                                            .options = "{\"BLOCK_M\": 128, \"BLOCK_N\": 256}"},
                                           {.name = "last_row_later_block",
                                            .kv_len = 512,
                                            .mask = "q < 96 || kv >= 32",
                                            .kv_block = 512,
                                            .options = "{\"BLOCK_M\": 128, \"BLOCK_N\": 512}"}};
    job->c = cases[variant / s->dtype_count];
    job->c.batch = job->c.kv_batch = job->c.heads = job->c.kv_heads = 1;
    job->c.q_len = 97;
    job->c.head_dim = 32;
    job->seed = test_seed() + row + variant;
    job->dtype = s->dtypes[variant % s->dtype_count];
    return true;
}

/* Wide heads with as little shared memory as a device may have: one half of slices. A NaN that the mask hides takes the
 * slow path. */
static bool make_least(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    const bool made = make_row(s, row, variant % s->dtype_count, job);
    job->c.options = "{\"KERNEL\": \"vulkan_portable\"}";
    job->c.sinks = false;
    if (variant >= s->dtype_count && job->c.mask)
        job->c.input = INPUT_NAN_HIDDEN;
    return made && (variant < s->dtype_count || job->c.mask);
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
static const attune_dtype half_dtypes[] = {ATTUNE_F16, ATTUNE_BF16};
static const attune_dtype matrix_dtypes[] = {ATTUNE_F16, ATTUNE_F32}; /* of Q */
static const attune_dtype bfloat_dtypes[] = {ATTUNE_BF16, ATTUNE_F32};

static const case_suite forward_cpu = {
    .backend = "cpu", .dtypes = dtypes, .dtype_count = 4, .row = make_row, .variants = 4, .draw = draw, .random = 1200};

/* The last variants have tiles so small that threads share packed ones. */
static bool make_tiles_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    const bool made = make_row(s, row, variant % s->dtype_count, job);
    if (variant >= s->dtype_count && !job->c.options && !job->c.preferred)
        job->c.preferred = "{\"BLOCK_M\": 16, \"BLOCK_N\": 32}";
    return made;
}

/* The product of AMX with a model of its instructions, where the planner takes it. */
static const case_suite forward_tiles = {.backend = "cpu",
                                         .prepare = matrix_model_install,
                                         .dtypes = half_dtypes,
                                         .dtype_count = 2,
                                         .row = make_tiles_row,
                                         .variants = 4,
                                         .sample = 80,
                                         .draw = draw,
                                         .random = 60};

static const case_suite last_row_tiles = {.backend = "cpu",
                                          .prepare = matrix_model_install,
                                          .dtypes = half_dtypes,
                                          .dtype_count = 2,
                                          .row = make_last_row,
                                          .variants = 4};

/* The CPU's products in float, where the processor has others for the dtype. */
static const case_suite forward_float = {
    .backend = "cpu", .dtypes = half_dtypes, .dtype_count = 2, .draw = draw_float, .random = 60};

/* One thread cannot write into another's part of the workspace. */
static const case_suite forward_one_thread = {
    .backend = "cpu", .cpu_threads = 1, .dtypes = dtypes, .dtype_count = 4, .draw = draw, .random = 100};

/* A driver that compiles on the CPU takes a second for a case: every row, in one or two of its three dtypes. */
static const case_suite forward_vulkan = {.backend = "vulkan",
                                          .dtypes = dtypes,
                                          .dtype_count = 3,
                                          .row = make_row,
                                          .variants = 3,
                                          .sample = 3 * CASE_COUNT / 2,
                                          .draw = draw,
                                          .random = 30};

static const case_suite forward_least = {
    .backend = "vulkan@vulkan-minimum", .dtypes = dtypes, .dtype_count = 3, .row = make_least, .variants = 6};
ROW_TEST(forward_least, head_512)
ROW_TEST(forward_least, head_512_decode)
ROW_TEST(forward_least, head_256_512)
ROW_TEST(forward_least, head_576_512)

static const case_suite forward_shared = {
    .backend = "vulkan", .dtypes = dtypes, .dtype_count = 3, .draw = draw_shared, .random = 4};

/* lavapipe takes a minute and a half to build this kernel; tests/whole.sh runs all rows. */
static const case_suite forward_matrix = {.backend = "vulkan",
                                          .matrix = ATTUNE_MATRIX_COOPMAT,
                                          .dtypes = matrix_dtypes,
                                          .dtype_count = 2,
                                          .row = make_matrix_row,
                                          .variants = 2,
                                          .sample = 90,
                                          .draw = draw_matrix,
                                          .random = 24};

static const case_suite forward_bfloat = {.backend = "vulkan",
                                          .matrix = ATTUNE_MATRIX_COOPMAT,
                                          .bf16 = true,
                                          .dtypes = bfloat_dtypes,
                                          .dtype_count = 2,
                                          .row = make_matrix_row,
                                          .variants = 2,
                                          .sample = 90,
                                          .draw = draw_matrix,
                                          .random = 24};

static const case_suite forward_cuda = {.backend = "cuda",
                                        .dtypes = dtypes,
                                        .dtype_count = 3,
                                        .row = make_row,
                                        .variants = 3,
                                        .sample = 3 * CASE_COUNT,
                                        .draw = draw,
                                        .random = 1200};

/* A CPU driver takes seconds to build a kernel; tests/whole.sh runs all rows. */
static const case_suite forward_opencl = {.backend = "opencl",
                                          .dtypes = dtypes,
                                          .dtype_count = 3,
                                          .row = make_row,
                                          .variants = 3,
                                          .sample = 40,
                                          .draw = draw,
                                          .random = 4};

static const case_suite forward_subgroup = {
    .backend = "opencl", .subgroups = true, .dtypes = dtypes, .dtype_count = 3, .draw = draw_subgroup, .random = 8};

/* All rows in all types at scale 15. */
static const case_suite forward_few = {.backend = "opencl",
                                       .dtypes = dtypes,
                                       .dtype_count = 3,
                                       .row = make_few,
                                       .variants = 3,
                                       .draw = draw_few,
                                       .random = 4};
ROW_TEST(forward_few, decode_dense)

#define ROW(name, ...)                                                                                                 \
    ROW_TEST(forward_cpu, name)                                                                                        \
    ROW_TEST(forward_tiles, name)                                                                                      \
    ROW_TEST(forward_vulkan, name)                                                                                     \
    ROW_TEST(forward_matrix, name)                                                                                     \
    ROW_TEST(forward_bfloat, name)                                                                                     \
    ROW_TEST(forward_cuda, name)                                                                                       \
    ROW_TEST(forward_opencl, name)
#include "cases/table.h"
#undef ROW

static const case_row last_row = {&last_row_tiles, 0};
Test(forward_tiles, last_row, .data = (void *)&last_row)
{
    case_suite_row(&last_row);
}

Test(forward_random, cpu)
{
    case_suite_random(&forward_cpu);
}

Test(forward_random, cpu_tiles)
{
    case_suite_random(&forward_tiles);
}

Test(forward_random, cpu_float)
{
    case_suite_random(&forward_float);
}

Test(forward_random, cpu_one_thread)
{
    case_suite_random(&forward_one_thread);
}

Test(forward_random, vulkan)
{
    case_suite_random(&forward_vulkan);
}

Test(forward_random, vulkan_shared)
{
    case_suite_random(&forward_shared);
}

Test(forward_random, vulkan_matrix)
{
    case_suite_random(&forward_matrix);
}

Test(forward_random, vulkan_bfloat)
{
    case_suite_random(&forward_bfloat);
}

Test(forward_random, cuda)
{
    case_suite_random(&forward_cuda);
}

Test(forward_random, opencl)
{
    case_suite_random(&forward_opencl);
}

Test(forward_random, opencl_subgroup)
{
    case_suite_random(&forward_subgroup);
}

Test(forward_random, opencl_few)
{
    case_suite_random(&forward_few);
}

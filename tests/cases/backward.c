/* SPDX-License-Identifier: MIT */
/* Gradients of the case table's rows and of random cases on each backend. */
#include "cases/suite.h"

#include <string.h>

#include "support/devices.h"

/* Successive runs take successive kernels, those too that the planner does not take. */
static const char *const vulkan_kernels[] = {NULL, NULL, "{\"KERNEL\": \"vulkan_portable\"}",
                                             "{\"KERNEL\": \"vulkan_subgroup\"}"};

static const char *const cuda_kernels[] = {
    NULL, "{\"DETERMINISTIC\": true}", NULL,
    "{\"KERNEL\": \"cuda_sm80\", \"BLOCK_M1\": 16, \"BLOCK_N1\": 16, \"BLOCK_M2\": 16, \"BLOCK_N2\": 16}"};

/* On a driver of the CPU the planner has another kernel. */
static const char *const opencl_kernels[] = {"{\"KERNEL\": \"opencl_portable\"}", NULL,
                                             "{\"KERNEL\": \"opencl_portable\"}", NULL};

/* The kernel of a run on a device; NULL = the planner's. */
static const char *kernel_of(const char *backend, uint64_t number)
{
    return !strcmp(backend, "vulkan") ? vulkan_kernels[number % 4]
           : !strcmp(backend, "cuda") ? cuda_kernels[number % 4]
                                      : opencl_kernels[number % 4];
}

/* Backward passes but the CPU's have one dtype: there a mixed case runs without its others. */
static bool finish(const case_suite *s, uint64_t number, case_job *job)
{
    if (strcmp(s->backend, "cpu") != 0) {
        job->c = case_unmixed(&job->c);
        job->c.backward_options = kernel_of(s->backend, number);
    }
    return case_has_gradients(&job->c) && (job->dtype != ATTUNE_F64 || !case_mixed(&job->c));
}

/* Row `row` in dtype `variant`. */
static bool make_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    job->c = attention_cases[row];
    job->dtype = s->dtypes[variant];
    job->seed = test_seed() * 1000003 + row;
    return finish(s, (uint64_t)row * s->variants + variant, job);
}

static bool draw(const case_suite *s, uint64_t number, case_job *job)
{
    job->seed = test_seed() * 1000003 + CASE_COUNT + number;
    job->c = attention_case_random(job->seed, &job->storage);
    job->dtype = s->dtypes[number % s->dtype_count];
    return finish(s, number, job);
}

/* Cooperative matrices where the mask's blocks and the head dimensions allow them, successive runs with successive
 * tiles; other cases are left out, and those with more keys than a driver of the CPU lets a workgroup read. */
static bool take_matrices(uint64_t number, case_job *job)
{
#define MATRICES "{\"KERNEL\": \"vulkan_coopmat\""
#define TILE     MATRICES ", \"BLOCK_M1\": 16, \"BLOCK_N1\": 64, \"BLOCK_M2\": 64, \"BLOCK_N2\": 16"
    const attention_case *c = &job->c;
    const uint32_t d = c->head_dim > c->head_dim_v ? c->head_dim : c->head_dim_v;
    const uint32_t blocks = c->mask ? c->q_block | c->kv_block : 0; /* 0 stands for 128 */
    const bool fits_64 = blocks % 64 == 0;
    job->c.backward_options = number % 4 == 1 && fits_64 && d <= 64   ? TILE "}"
                              : number % 4 == 2 && fits_64 && d <= 32 ? TILE ", \"num_warps\": 4}"
                              : number % 4 == 3 && d <= 64            ? MATRICES ", \"num_warps\": 8}"
                                                                      : MATRICES "}";
#undef TILE
#undef MATRICES
    return blocks % 16 == 0 && d <= 256 && c->kv_len <= 2048;
}

static bool make_matrix_row(const case_suite *s, uint32_t row, uint32_t variant, case_job *job)
{
    return make_row(s, row, variant, job) && take_matrices(row, job);
}

static bool draw_matrix(const case_suite *s, uint64_t number, case_job *job)
{
    return draw(s, number, job) && take_matrices(number, job);
}

static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
static const attune_dtype matrix_dtypes[] = {ATTUNE_F16};

/* At the scale of the quick suite and of the sanitizers: every row, in two of its four dtypes. */
static const case_suite gradients_cpu = {.backend = "cpu",
                                         .gradients = true,
                                         .dtypes = dtypes,
                                         .dtype_count = 4,
                                         .row = make_row,
                                         .variants = 4,
                                         .sample = 40 * CASE_COUNT,
                                         .draw = draw,
                                         .random = 200};

static const case_suite gradients_vulkan = {.backend = "vulkan",
                                            .gradients = true,
                                            .dtypes = dtypes,
                                            .dtype_count = 3,
                                            .row = make_row,
                                            .variants = 3,
                                            .sample = 16,
                                            .draw = draw,
                                            .random = 4};

static const case_suite gradients_matrix = {.backend = "vulkan",
                                            .matrix = ATTUNE_MATRIX_COOPMAT,
                                            .gradients = true,
                                            .dtypes = matrix_dtypes,
                                            .dtype_count = 1,
                                            .row = make_matrix_row,
                                            .variants = 1,
                                            .sample = 12,
                                            .draw = draw_matrix,
                                            .random = 4};

static const case_suite gradients_cuda = {.backend = "cuda",
                                          .gradients = true,
                                          .dtypes = dtypes,
                                          .dtype_count = 3,
                                          .row = make_row,
                                          .variants = 3,
                                          .sample = 3 * CASE_COUNT,
                                          .draw = draw,
                                          .random = 600};

/* A driver of the CPU takes seconds to compile the two kernels of a run. */
static const case_suite gradients_opencl = {.backend = "opencl",
                                            .gradients = true,
                                            .dtypes = dtypes,
                                            .dtype_count = 3,
                                            .row = make_row,
                                            .variants = 3,
                                            .sample = 4,
                                            .draw = draw,
                                            .random = 2};

#define ROW(name, ...)                                                                                                 \
    ROW_TEST(gradients_cpu, name)                                                                                      \
    ROW_TEST(gradients_vulkan, name)                                                                                   \
    ROW_TEST(gradients_matrix, name)                                                                                   \
    ROW_TEST(gradients_cuda, name)                                                                                     \
    ROW_TEST(gradients_opencl, name)
#include "cases/table.h"
#undef ROW

Test(gradients_random, cpu)
{
    case_suite_random(&gradients_cpu);
}

Test(gradients_random, vulkan)
{
    case_suite_random(&gradients_vulkan);
}

Test(gradients_random, matrix)
{
    case_suite_random(&gradients_matrix);
}

Test(gradients_random, cuda)
{
    case_suite_random(&gradients_cuda);
}

Test(gradients_random, opencl)
{
    case_suite_random(&gradients_opencl);
}

/* Rows past the call's last, which a tile has too and whose scores are NaN, add nothing to captures: each kernel. */
static void run_rows_past(const char *backend, attune_dtype dtype, const char *const *options, int count)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, backend);
    for (int i = 0; i < count; i++) {
        attention_case c = attention_cases[CASE_rows_past_the_call];
        failure why;
        c.backward_options = options[i];
        cr_expect(case_run_gradients(instance, device, &c, dtype, test_seed() + CASE_rows_past_the_call, &why),
                  "%s: %s", options[i] ? options[i] : "", why.message);
    }
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

Test(rows_past, vulkan)
{
    run_rows_past("vulkan", ATTUNE_F32, vulkan_kernels + 2, 2);
}

Test(rows_past, cuda)
{
    run_rows_past("cuda", ATTUNE_F16, cuda_kernels, 4);
}

Test(rows_past, opencl)
{
    run_rows_past("opencl", ATTUNE_F32, opencl_kernels, 2);
}

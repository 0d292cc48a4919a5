/* SPDX-License-Identifier: MIT */
/* Products by pairs of CTAs, .cta_group::2, of the model itself: tests/model/pairs.cu, and what it says of their
 * misuse. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/sources.h"

#define DEPTH 64

#define NOTHING 0 /* of pairs.cu's misuse */

/* The model's compiler and driver, of which these functions have NVIDIA's names. */
static struct {
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *), (*log)(void *, char *);
    int (*cubin_size)(void *, size_t *), (*cubin)(void *, char *);
    int (*load)(void **, const void *), (*function)(void **, void *, const char *);
    int (*allocate)(unsigned long long *, size_t), (*error_name)(int, const char **);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
} model;

static void find(void *library, const char *name, void *to)
{
    void *const at = dlsym(library, name);
    cr_assert_not_null(at, "%s", name);
    memcpy(to, &at, sizeof at);
}

static void open_model(void)
{
    cr_assert_eq(setenv("ATTUNE_MODEL_ARCHITECTURE", "100", 1), 0);
    void *const driver = dlopen(getenv("ATTUNE_MODEL_CUDA"), RTLD_NOW | RTLD_LOCAL), *const compiler = dlopen(
                                                                                         getenv("ATTUNE_MODEL_NVRTC"),
                                                                                         RTLD_NOW | RTLD_LOCAL);
    cr_assert(driver && compiler, "%s", dlerror());
    find(compiler, "nvrtcCreateProgram", &model.create);
    find(compiler, "nvrtcCompileProgram", &model.compile);
    find(compiler, "nvrtcGetProgramLogSize", &model.log_size);
    find(compiler, "nvrtcGetProgramLog", &model.log);
    find(compiler, "nvrtcGetCUBINSize", &model.cubin_size);
    find(compiler, "nvrtcGetCUBIN", &model.cubin);
    find(driver, "cuModuleLoadData", &model.load);
    find(driver, "cuModuleGetFunction", &model.function);
    find(driver, "cuMemAlloc_v2", &model.allocate);
    find(driver, "cuGetErrorName", &model.error_name);
    find(driver, "cuLaunchKernel", &model.launch);
}

static char *source_text(void)
{
    static char text[16384];
    char path[4096];
    const char *root = getenv("ATTUNE_SOURCE");
    (void)snprintf(path, sizeof path, "%s/tests/model/pairs.cu", root ? root : ".");
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    (void)fclose(file);
    return text;
}

static void *load(int rows, int columns, int misuse)
{
    const char *texts[128], *names[128];
    int count = 0;
    for (; attune__cuda_sources[count].name; count++)
        texts[count] = attune__cuda_sources[count].text, names[count] = attune__cuda_sources[count].name;
    char own[3][32];
    (void)snprintf(own[0], sizeof own[0], "-DPAIR_ROWS=%d", rows);
    (void)snprintf(own[1], sizeof own[1], "-DPAIR_COLUMNS=%d", columns);
    (void)snprintf(own[2], sizeof own[2], "-DPAIR_MISUSE=%d", misuse);
    const char *const options[] = {"-arch=sm_100a",
                                   "-std=c++17",
                                   "-DATTUNE_DTYPE=2",
                                   "-DATTUNE_HEAD_DIM=64",
                                   "-DATTUNE_HEAD_DIM_V=64",
                                   "-DATTUNE_BLOCK_M=128",
                                   "-DATTUNE_BLOCK_N=128",
                                   "-DATTUNE_NUM_WARPS=4",
                                   "-DATTUNE_NUM_STAGES=1",
                                   "-DATTUNE_SHARED_MEMORY=40960",
                                   "-DATTUNE_HAVE_BLOCKS=0",
                                   "-DATTUNE_HAVE_MASK=0",
                                   "-DATTUNE_HAVE_SCORE=0",
                                   "-DATTUNE_CLUSTER=2",
                                   own[0],
                                   own[1],
                                   own[2]};
    void *program, *module, *kernel;
    size_t size = 0;
    static char log[65536];
    cr_assert_eq(model.create(&program, source_text(), "pairs.cu", count, texts, names), 0);
    const int failed = model.compile(program, (int)(sizeof options / sizeof options[0]), options);
    model.log_size(program, &size);
    cr_assert_lt(size, sizeof log);
    model.log(program, log);
    cr_assert(!failed, "%s", log);
    model.cubin_size(program, &size);
    char *cubin = malloc(size);
    cr_assert_not_null(cubin);
    model.cubin(program, cubin);
    cr_assert_eq(model.load(&module, cubin), 0);
    cr_assert_eq(model.function(&kernel, module, "attune_pair_product"), 0);
    free(cubin);
    return kernel;
}

/* Small integers, in bf16. */
static int element(int i, int j)
{
    return (i * 7 + j * 3) % 5 - 2;
}

static uint16_t brain(int x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t *device_matrix(int rows, int factor)
{
    unsigned long long at;
    cr_assert_eq(model.allocate(&at, (size_t)rows * DEPTH * 2), 0);
    uint16_t *made = (uint16_t *)(uintptr_t)at; /* the model's memory is the host's */
    for (int i = 0; i < rows * DEPTH; i++)
        made[i] = brain(element(i / DEPTH * factor, i % DEPTH));
    return made;
}

/* Runs the product and compares it. What is said of a launch that fails, or NULL. */
static const char *multiply(int rows, int columns, int misuse)
{
    void *const kernel = load(rows, columns, misuse);
    const uint16_t *const a = device_matrix(rows, 1), *const b = device_matrix(columns, 3);
    unsigned long long to;
    cr_assert_eq(model.allocate(&to, (size_t)(256 * columns) * sizeof(float)), 0);
    const float *const d = (const float *)(uintptr_t)to;
    void *parameters[] = {(void *)&a, (void *)&b, (void *)&d};
    const int error = model.launch(kernel, 2, 1, 1, 128, 1, 1, 40960, NULL, parameters, NULL);
    const char *why = NULL;
    if (error) {
        model.error_name(error, &why);
        return why;
    }
    const int halves = rows == 128 ? 2 : 1; /* of the columns, in lanes 0 to 63 and 64 to 127 */
    for (int rank = 0; rank < 2; rank++)
        for (int lane = 0; lane < 128; lane++)
            for (int column = 0; column < columns / halves; column++) {
                const int i = rank * rows / 2 + lane % (rows / 2), j = column + lane / (rows / 2) * (columns / halves);
                int sum = 0;
                for (int k = 0; k < DEPTH; k++)
                    sum += element(i, k) * element(j * 3, k);
                const float found = d[(rank * 128 + lane) * columns + column];
                cr_assert(found == (float)sum, "rank %d lane %d column %d: %g, expected %d", rank, lane, column,
                          (double)found, sum);
            }
    return NULL;
}

Test(pairs, products)
{
    static const int shapes[][2] = {{256, 64}, {256, 96}, {256, 128}, {128, 64}, {128, 96}};
    open_model();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const char *const why = multiply(shapes[i][0], shapes[i][1], NOTHING);
        cr_expect_null(why, "%d x %d: %s", shapes[i][0], shapes[i][1], why);
    }
}

Test(pairs, shapes_that_do_not_exist)
{
    open_model();
    const char *const why = multiply(256, 48, NOTHING);
    cr_expect(why && strstr(why, "columns are multiples of 32"), "%s", why);
}

/* Each is found under every schedule. */
Test(pairs, misuse)
{
    static const struct {
        int misuse;
        const char *report;
    } table[] = {
        {1, "the CTA of odd rank issues tcgen05 instructions of its pair"},
        {2, "the tcgen05.alloc or dealloc of the pair's other CTA"},
        {3, "the CTAs of a pair allocate or free other tensor memory"},
        {4, "of shared memory, which"},
        {5, "without a fence of the asynchronous proxy"},
        {6, "phase of an mbarrier"},
        {7, "of tensor memory, which"},
        {8, "of tensor memory, which was written without tcgen05.fence between"},
        {9, "frees lane"},
        {10, "of shared memory, which"},
    };
    open_model();
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (int seed = 1; seed <= 3; seed++) {
            char text[8];
            (void)snprintf(text, sizeof text, "%d", seed);
            cr_assert_eq(setenv("ATTUNE_MODEL_SEED", text, 1), 0);
            const char *const why = multiply(256, 64, table[i].misuse);
            cr_expect(why && strstr(why, table[i].report), "misuse %d, seed %d: %s", table[i].misuse, seed, why);
        }
}

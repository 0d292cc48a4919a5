/* SPDX-License-Identifier: MIT */
#include "tests/model/own.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/sources.h"

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

void own_open(void)
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

static char *source_text(const char *name)
{
    static char text[16384];
    char path[4096];
    const char *root = getenv("ATTUNE_SOURCE");
    (void)snprintf(path, sizeof path, "%s/tests/model/%s", root ? root : ".", name);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    (void)fclose(file);
    return text;
}

void *own_load(const char *file, const char *name, const char *const *options, int option_count)
{
    static const char *const common[] = {"-arch=sm_100a",          "-std=c++17",
                                         "-DATTUNE_DTYPE=2",       "-DATTUNE_HEAD_DIM=64",
                                         "-DATTUNE_HEAD_DIM_V=64", "-DATTUNE_BLOCK_M=128",
                                         "-DATTUNE_BLOCK_N=128",   "-DATTUNE_NUM_WARPS=4",
                                         "-DATTUNE_NUM_STAGES=1",  "-DATTUNE_SHARED_MEMORY=40960",
                                         "-DATTUNE_HAVE_BLOCKS=0", "-DATTUNE_HAVE_MASK=0",
                                         "-DATTUNE_HAVE_SCORE=0"};
    const char *texts[128], *names[128], *all[32];
    int count = 0, all_count = 0;
    for (; attune__cuda_sources[count].name; count++)
        texts[count] = attune__cuda_sources[count].text, names[count] = attune__cuda_sources[count].name;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        all[all_count++] = common[i];
    cr_assert_leq(all_count + option_count, (int)(sizeof all / sizeof all[0]));
    for (int i = 0; i < option_count; i++)
        all[all_count++] = options[i];
    void *program, *module, *kernel;
    size_t size = 0;
    static char log[65536];
    cr_assert_eq(model.create(&program, source_text(file), file, count, texts, names), 0);
    const int failed = model.compile(program, all_count, all);
    model.log_size(program, &size);
    cr_assert_lt(size, sizeof log);
    model.log(program, log);
    cr_assert(!failed, "%s", log);
    model.cubin_size(program, &size);
    char *cubin = malloc(size);
    cr_assert_not_null(cubin);
    model.cubin(program, cubin);
    cr_assert_eq(model.load(&module, cubin), 0);
    cr_assert_eq(model.function(&kernel, module, name), 0);
    free(cubin);
    return kernel;
}

void *own_memory(size_t size)
{
    unsigned long long at;
    cr_assert_eq(model.allocate(&at, size), 0);
    return (void *)(uintptr_t)at; /* the model's memory is the host's */
}

const char *own_launch(void *kernel, unsigned ctas, void **parameters)
{
    const char *why = NULL;
    const int error = model.launch(kernel, ctas, 1, 1, 128, 1, 1, 40960, NULL, parameters, NULL);
    if (error)
        model.error_name(error, &why);
    return why;
}

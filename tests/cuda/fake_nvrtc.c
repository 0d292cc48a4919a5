/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cuda/fake.h"

fake_compiler compiler = {0, 0};

static int some_object;

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 99;
    return compiler.absent ? 1 : 0;
}
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names)
{
    (void)headers;
    (void)names;
    *program = &some_object;
    const int known = (strstr(source, "attune_forward_sm80") && strcmp(name, "forward_sm80.cu") == 0) ||
                      (strstr(source, "attune_decode_sm80") && strcmp(name, "decode_sm80.cu") == 0) ||
                      (strstr(source, "attune_serving_sm80") && strcmp(name, "serving_sm80.cu") == 0) ||
                      (strstr(source, "attune_serving_sm90") && strcmp(name, "serving_sm90.cu") == 0) ||
                      (strstr(source, "attune_forward_sm90") && strcmp(name, "forward_sm90.cu") == 0) ||
                      (strstr(source, "attune_forward_sm100") && strcmp(name, "forward_sm100.cu") == 0) ||
                      (strstr(source, "attune_backward_sm80") && strcmp(name, "backward_sm80.cu") == 0) ||
                      (strstr(source, "attune_backward_sm90") && strcmp(name, "backward_sm90.cu") == 0) ||
                      (strstr(source, "attune_backward_sm100") && strcmp(name, "backward_sm100.cu") == 0) ||
                      (strstr(source, "attune_append") && strcmp(name, "append.cu") == 0) ||
                      (strstr(source, "attune_delta") && strcmp(name, "delta.cu") == 0) ||
                      (strstr(source, "attune_mask_classify") && strcmp(name, "mask_lists.cu") == 0);
    return known && count >= 4 ? 0 : 3;
}
int nvrtcDestroyProgram(void **program)
{
    *program = NULL;
    return 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options)
{
    (void)program;
    compiler.compiled++;
    return count > 1 && !strncmp(options[0], "-arch=sm_", 9) ? 0 : 5;
}
int nvrtcGetProgramLogSize(void *program, size_t *size)
{
    (void)program;
    *size = 4;
    return 0;
}
int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    memcpy(log, "bad", 4);
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *size)
{
    (void)program;
    *size = 5;
    return 0;
}
int nvrtcGetCUBIN(void *program, char *cubin)
{
    (void)program;
    memcpy(cubin, "CUBIN", 5);
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* The choice between ggml's Vulkan shader and attune in examples/ggml: by measured times, else by the kernels. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/ggml/choice.h"

static const choice_case decode = {128, 128, 32, 8, 1, 16384, "f16", "f16", true};

static choice_times *read_text(const char *text, const char *device, char *reason)
{
    char path[] = "attune-choice-XXXXXX";
    const int file = mkstemp(path);
    cr_assert(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    choice_times *times = choice_times_read(path, device, reason);
    unlink(path);
    return times;
}

static bool chosen(const choice_times *times, choice_case c)
{
    char reason[CHOICE_TEXT] = "";
    const bool attune = choice_is_attune(times, &c, CHOICE_KHR_MATRICES, "vulkan_subgroup", false, reason);
    cr_assert_neq(attune, reason[0] != 0, "a reason goes with ggml's shader alone: %s", reason);
    return attune;
}

Test(choice, by_kernels)
{
    static const struct {
        const char *kernel;
        int64_t rows;
        choice_matrices matrices;
        bool host, attune;
    } rules[] = {
        {"vulkan_coopmat", 512, CHOICE_NV_MATRICES, false, false},
        {"vulkan_subgroup", 1, CHOICE_NV_MATRICES, false, false},
        {"vulkan_coopmat", 512, CHOICE_KHR_MATRICES, false, true},
        {"vulkan_subgroup", 512, CHOICE_KHR_MATRICES, false, false},
        {"vulkan_subgroup", 1, CHOICE_KHR_MATRICES, false, false},
        {"vulkan_subgroup", 16, CHOICE_NO_MATRICES, false, true},
        {"vulkan_subgroup", 15, CHOICE_NO_MATRICES, false, false},
        {"vulkan_portable", 1, CHOICE_NO_MATRICES, false, false},
        {"vulkan_subgroup", 1, CHOICE_NO_MATRICES, true, true},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        char reason[CHOICE_TEXT] = "";
        choice_case c = decode;
        c.rows = rules[i].rows;
        cr_assert_eq(choice_is_attune(NULL, &c, rules[i].matrices, rules[i].kernel, rules[i].host, reason),
                     rules[i].attune, "rule %zu", i);
        cr_assert_neq(rules[i].attune, reason[0] != 0, "rule %zu: %s", i, reason);
    }
}

Test(choice, by_times)
{
    static const char text[] =
        "device: NVIDIA H200\n"
        "   ggml us  attune us  faster  case\n"
        "      47.0       95.0   0.49x  "
        "hsk=128,hsv=128,nh=8,nr23=[4,1],kv=16384,nb=1,mask=1,sinks=0,type_K=f16,type_V=f16,permute=[0,1,2,3]\n"
        "      20.0       10.0   2.00x  "
        "hsk=128,hsv=128,nh=8,nr23=[4,1],kv=1024,nb=1,mask=1,sinks=0,type_K=f16,type_V=f16,permute=[0,1,2,3]\n"
        "     300.0      200.0   1.50x  "
        "hsk=128,hsv=128,nh=8,nr23=[4,1],kv=4096,nb=512,mask=1,sinks=0,type_K=f16,type_V=f16,permute=[0,1,2,3]\n"
        "       no time, and no case\n";
    char reason[CHOICE_TEXT];
    choice_times *times = read_text(text, "NVIDIA H200", reason);
    cr_assert(times, "%s", reason);
    choice_case c = decode;
    cr_assert(!chosen(times, c));
    c.keys = 2000; /* nearer to 1,024 */
    cr_assert(chosen(times, c));
    c.keys = 5000; /* nearer to 16,384 */
    cr_assert(!chosen(times, c));
    c.keys = 100; /* none within four times: the rule for few rows */
    cr_assert(!chosen(times, c));
    c.keys = 8192, c.rows = 300;
    cr_assert(chosen(times, c));
    c.heads = 64; /* twice the heads for each head of keys */
    cr_assert(chosen(times, c));
    c.heads = 128; /* without times, a kernel without matrices beside one with them */
    cr_assert(!chosen(times, c));
    c = (choice_case){128, 128, 32, 8, 512, 4096, "q8_0", "q8_0", true};
    cr_assert(!chosen(times, c));
    choice_times_free(times);
}

Test(choice, files_that_are_not_used)
{
    static const char *const texts[] = {
        "", "device: NVIDIA H200\n", "device: AMD\n", "hsk=128\n",
        "device: NVIDIA H200\n 0.0 1.0 0x hsk=8,hsv=8,nh=8,nr23=[0,1],kv=1,nb=1,mask=1,type_K=f16,type_V=f16\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char reason[CHOICE_TEXT] = "";
        cr_assert_null(read_text(texts[i], "NVIDIA H200", reason), "text %zu", i);
        cr_assert(reason[0], "text %zu", i);
    }
    char reason[CHOICE_TEXT] = "";
    cr_assert_null(choice_times_read("nowhere/times.txt", "NVIDIA H200", reason));
    cr_assert(reason[0]);
    choice_times_free(NULL);
}

/* SPDX-License-Identifier: MIT */
/*
 * Whether an operation that both ggml's Vulkan shader and attune have is attune's: by times that were measured on this
 * machine (vulkan.sh perf), else by what is known of the two kernels. Nothing is launched to find out.
 */
#ifndef GGML_ATTUNE_CHOICE_H
#define GGML_ATTUNE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHOICE_TEXT = 256, CHOICE_TYPE = 16 };

/* The cooperative matrices of ggml's shader: none, VK_KHR_cooperative_matrix, VK_NV_cooperative_matrix2. */
typedef enum choice_matrices {
    CHOICE_NO_MATRICES = 0,
    CHOICE_KHR_MATRICES = 1,
    CHOICE_NV_MATRICES = 2
} choice_matrices;

/* An operation, as far as the choice depends on it. */
typedef struct choice_case {
    int64_t head_dim, head_dim_v, heads, kv_heads, rows, keys;
    char k_type[CHOICE_TYPE], v_type[CHOICE_TYPE]; /* ggml's names: "f16" */
    bool mask;
} choice_case;

/* Times of one device. */
typedef struct choice_times choice_times;

/* Reads what vulkan.sh perf wrote for the device of that name; NULL, with the reason, if there is none for it. */
choice_times *choice_times_read(const char *path, const char *device, char reason[CHOICE_TEXT]);
void choice_times_free(choice_times *times);

/*
 * Whether a case is attune's, or why ggml's shader computes it. times may be NULL. kernel is attune's, as its planner
 * names it; host: the driver runs on the CPU. A case has a time if one was measured with the same dimensions, types and
 * presence of a mask, with half to twice the heads for each head of keys, and with a quarter to four times the rows and
 * the keys; of several the nearest.
 */
bool choice_is_attune(const choice_times *times, const choice_case *c, choice_matrices matrices, const char *kernel,
                      bool host, char reason[CHOICE_TEXT]);

#ifdef __cplusplus
}
#endif

#endif /* GGML_ATTUNE_CHOICE_H */

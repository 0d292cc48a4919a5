/* SPDX-License-Identifier: MIT */
#include "support/presets.h"

const char *const preset_uses[] = {
    "causal",
    "causal_bottom_right",
    "causal(n)",
    "window(n)",
    "local(5)",
    "dilated(5, n)",
    "global_window(5, 2)",
    "sink(5, 2)",
    "prefix(5)",
    "document(i1)",
    "packed(i1)",
    "shared_prefix(i1)",
    "multi_image(i1)",
    "flamingo(i1, i1, 4)",
    "length(i1)",
    "padded(i1)",
    "neighborhood2d(9, 9, 2)",
    "block_diffusion(20, 5)",
    "dflash(20, 5, i1)",
    "dflash_batch(20, 5, i2, b2)",
    "eagle3(i1)",
    "softcap(x)",
    "alibi(g1)",
    "temperature(g1)",
    "relative_bias(f2, 20)",
};
const uint32_t preset_use_count = sizeof preset_uses / sizeof preset_uses[0];

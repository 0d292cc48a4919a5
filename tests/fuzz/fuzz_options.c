/* SPDX-License-Identifier: MIT */
/* Kernel options from hostile JSON: parsed or refused with a message; what is parsed plans or is refused as well. */
#include <attune/attune.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[4096];
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    attune_kernel_options options = {.struct_size = sizeof options};
    attune_status status = attune_kernel_options_parse(text, &options);
    if (status != ATTUNE_OK) {
        expect(status == ATTUNE_PARSE_ERROR || status == ATTUNE_INVALID_ARGUMENT);
        expect(attune_last_error()[0] != '\0');
        return 0;
    }
    /* The text's own length chooses device and direction, so that a corpus covers them. */
    attune_profile profile = {.struct_size = sizeof profile};
    expect(attune_profile_get((uint32_t)(size % attune_profile_count()), &profile) == ATTUNE_OK);
    for (int direction = 0; direction < 2; direction++) {
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .direction = (attune_direction)direction,
                                        .dtype = size % 2 ? ATTUNE_F32 : ATTUNE_F16,
                                        .head_dim = 128,
                                        .heads = 8,
                                        .kv_heads = 2,
                                        .q_len = size % 3 ? 1024 : 1,
                                        .kv_len = 1024,
                                        .block_mask = size % 5 == 0};
        char explained[16384];
        status = attune_plan_choose_explain(&profile.limits, &problem, &options, ATTUNE_JSON, explained,
                                            sizeof explained, NULL);
        expect(status == ATTUNE_OK || status == ATTUNE_INVALID_ARGUMENT || status == ATTUNE_DOES_NOT_FIT ||
               status == ATTUNE_UNSUPPORTED);
    }
    return 0;
}

/* SPDX-License-Identifier: MIT */
/* The explanation says what was chosen and why, as text and as JSON that parses. */
#include "plan/plan_test.h"

#include <jansson.h>
#include <stdio.h>

static const attune_problem problem = {.struct_size = sizeof problem,
                                       .dtype = ATTUNE_F16,
                                       .head_dim = 256,
                                       .heads = 8,
                                       .kv_heads = 2,
                                       .q_len = 4096,
                                       .block_mask = true};

Test(explain, text)
{
    attune_limits limits = device("a6000");
    attune_kernel_options o = options("{\"num_warps\": 4, \"PRESCALE_QK\": true, \"bwd_num_stages\": 1}");
    char text[8192];
    size_t needed;
    cr_assert_eq(attune_plan_choose_explain(&limits, &problem, &o, ATTUNE_TEXT, text, sizeof text, &needed), ATTUNE_OK);
    cr_assert_eq(needed, strlen(text) + 1);
    static const char *const words[] = {"forward f16",
                                        "head_dim 256",
                                        "block mask 128 x 128",
                                        "num_warps 4, PRESCALE_QK true, bwd_num_stages 1",
                                        "cuda_sm80\n",
                                        "BLOCK_M 64 x BLOCK_N 64",
                                        "98304 bytes of 101376",
                                        "registers   about",
                                        "occupancy   1",
                                        "no: q_len 4096 is more than 16",
                                        "short       cuda_sm80, decode pass: calls of at most 16 queries and",
                                        "at least 256 keys\n  tile        BLOCK_M 16 x BLOCK_N 64\n",
                                        "  split       16 parts of the keys\nworkspace   2113536 bytes",
                                        "cuda_sm90a: the device has no wgmma"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_expect(strstr(text, words[i]), "%s does not say \"%s\"", text, words[i]);
    /* Rejected tiles come with their bytes. */
    cr_assert_eq(attune_plan_choose_explain(&limits, &problem, NULL, ATTUNE_TEXT, text, sizeof text, &needed),
                 ATTUNE_OK);
    cr_expect(strstr(text, "cuda_sm80 BLOCK_M 128 BLOCK_N 64 num_stages 1 num_warps 8: needs 131072 bytes of shared "
                           "memory, the device has 101376"),
              "%s", text);
    /* Any buffer size: never past its end. */
    for (size_t size = 0; size <= needed; size += 7) {
        char part[8192];
        memset(part, '#', sizeof part);
        size_t again;
        cr_assert_eq(attune_plan_choose_explain(&limits, &problem, NULL, ATTUNE_TEXT, size ? part : NULL, size, &again),
                     ATTUNE_OK);
        cr_assert_eq(again, needed);
        cr_assert_eq(part[size], '#');
        cr_assert(!size || strlen(part) == (size < needed ? size - 1 : needed - 1));
    }
    cr_expect_eq(attune_plan_choose_explain(&limits, &problem, NULL, (attune_text_format)3, text, sizeof text, NULL),
                 ATTUNE_INVALID_ARGUMENT);
    cr_expect_eq(attune_plan_choose_explain(&limits, &problem, NULL, ATTUNE_TEXT, NULL, 5, NULL),
                 ATTUNE_INVALID_ARGUMENT);
}

static void check_json(const attune_profile *profile, const attune_problem *p, const char *json)
{
    attune_kernel_options o = options(json);
    char text[16384];
    attune_plan_choice c = {.struct_size = sizeof c};
    if (attune_plan_choose(&profile->limits, p, &o, &c) != ATTUNE_OK)
        return;
    cr_assert_eq(attune_plan_choose_explain(&profile->limits, p, &o, ATTUNE_JSON, text, sizeof text, NULL), ATTUNE_OK);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    cr_assert(root, "%s: %s in %s", profile->name, error.text, text);
    const char *kernel, *why, *decode, *why_short;
    int bytes, shared, q_len, short_q_len;
    json_t *given, *rejections, *short_choice;
    cr_assert_eq(json_unpack_ex(root, &error, 0, "{s:{s:i}, s:{s:i}, s:o, s:{s:s, s:i, s:i}, s:o, s:s, s:s, s:s, s:o}",
                                "limits", "shared_memory", &shared, "problem", "q_len", &q_len, "options", &given,
                                "choice", "kernel", &kernel, "shared_memory", &bytes, "short_q_len", &short_q_len,
                                "short_choice", &short_choice, "why", &why, "why_decode", &decode, "why_short",
                                &why_short, "rejections", &rejections),
                 0, "%s: %s", error.text, text);
    cr_assert_eq(short_q_len, c.short_q_len);
    cr_assert_eq(json_is_object(short_choice), c.short_q_len != 0);
    cr_assert_eq(json_is_true(json_object_get(short_choice, "decode")), c.short_q_len != 0);
    cr_assert_eq(why_short[0] != '\0', !c.decode && p->direction == ATTUNE_FORWARD);
    cr_assert_str_eq(kernel, c.kernel);
    cr_assert_eq((uint32_t)bytes, c.shared_memory);
    cr_assert_eq((uint32_t)shared, profile->limits.shared_memory);
    cr_assert_eq(q_len, p->q_len);
    cr_assert(why[0] && decode[0]);
    cr_assert(json_is_array(rejections));
    /* The options come back as they were given. */
    json_t *expected = json_loads(json, 0, &error);
    cr_assert(json_equal(given, expected), "%s", text);
    json_decref(expected);
    json_decref(root);
}

Test(explain, json)
{
    static const char *const sets[] = {"{}", "{\"BLOCK_M\": 16, \"fwd_PRESCALE_QK\": true, \"bwd_PRESCALE_QK\": false}",
                                       "{\"KERNEL\": \"cuda_sm80\", \"num_warps\": 4}"};
    for (uint32_t i = 0; i < attune_profile_count(); i++)
        for (size_t j = 0; j < sizeof sets / sizeof sets[0] * 4; j++) {
            attune_profile profile = {.struct_size = sizeof profile};
            cr_assert_eq(attune_profile_get(i, &profile), ATTUNE_OK);
            attune_problem p = problem;
            p.direction = j / 3 % 2 ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
            p.q_len = j / 6 ? 1 : 4096;
            p.kv_len = 4096;
            check_json(&profile, &p, sets[j % 3]);
        }
}

/* SPDX-License-Identifier: MIT */
/* Masks and score modifications with a name in the literature, written in the language itself. */
#include <attune/attune.h>

#include <string.h>

#include "base/desc.h"
#include "base/error.h"
#include "expr/names.h"

typedef struct preset {
    attune_expr_kind kind;
    const char *signature, *text, *description;
} preset;

#define MASK  ATTUNE_EXPR_MASK
#define SCORE ATTUNE_EXPR_SCORE

/* clang-format off */
static const preset presets[] = {
    {MASK, "causal", "q >= kv", "keys up to the query's own position, both counted from 0"},
    {MASK, "causal_bottom_right", "q + (kv_len - q_len) >= kv",
     "causal with the last query at the last key: decode and prefill after a cache"},
    {MASK, "causal(offset)", "q + offset >= kv",
     "causal with queries shifted by offset; kv_len - q_len aligns the last query with the last key"},
    {MASK, "window(n)", "q >= kv && q - kv < n", "causal sliding window: the last n keys, the query's own included"},
    {MASK, "local(n)", "abs(q - kv) <= n", "n keys to either side"},
    {MASK, "dilated(n, d)", "abs(q - kv) <= n && (q - kv) % d == 0", "every d-th key within n to either side"},
    {MASK, "global_window(n, g)", "abs(q - kv) <= n || q < g || kv < g",
     "n keys to either side, and g global tokens that see and are seen by all (Longformer)"},
    {MASK, "sink(n, s)", "q >= kv && (q - kv < n || kv < s)",
     "causal sliding window with s attention sinks at the start (StreamingLLM)"},
    {MASK, "prefix(n)", "kv < n || q >= kv", "prefix LM: the first n keys for all, causal after them"},
    {MASK, "document(ids)", "ids[q] == ids[kv]", "packed documents: same id only; causal && document(ids) for training"},
    {MASK, "packed(starts)", "q >= kv && kv >= starts[q]",
     "causal packed documents, from each token's document start: one interval a row"},
    {MASK, "shared_prefix(group)", "q >= kv && (group[kv] == 0 || group[q] == group[kv])",
     "causal; group 0 is a prompt that every other group continues"},
    {MASK, "multi_image(ids)", "q >= kv || (ids[q] > 0 && ids[q] == ids[kv])",
     "causal text; tokens of one image (id > 0) see each other in both directions"},
    {MASK, "flamingo(starts, ends, n)", "q >= starts[kv / n] && q < ends[kv / n]",
     "text to images of n keys: image i for queries from starts[i] to before ends[i]"},
    {MASK, "length(n)", "kv < n[b]", "the first n[b] keys: a padded KV cache"},
    {MASK, "padded(n)", "q < n[b] && kv < n[b]", "queries and keys below n[b]; later rows are fully masked"},
    {MASK, "neighborhood2d(width, height, radius)",
     "abs(clamp(q % width, radius, width - 1 - radius) - kv % width) <= radius && "
     "abs(clamp(q / width, radius, height - 1 - radius) - kv / width) <= radius",
     "NATTEN on a width x height image: (2 radius + 1)^2 keys each, the centre held inside the image"},
    {MASK, "block_diffusion(n, block)",
     "(q < n) == (kv < n) && q % n / block == kv % n / block || "
     "kv >= n && (q < n ? q % n / block > kv % n / block : q % n / block >= kv % n / block)",
     "n noised tokens, then the n clean ones: own block, and earlier clean blocks"},
    {MASK, "dflash(context, block, anchor)",
     "kv < context ? kv < anchor[q / block] : (kv - context) / block == q / block",
     "draft blocks after context keys: the context before the block's anchor, and the own block"},
    {MASK, "dflash_batch(context, block, anchor, keep)",
     "keep[b, q / block] && (kv < context ? kv < anchor[b, q / block] : (kv - context) / block == q / block)",
     "dflash with anchors for each batch, and blocks that may be dropped"},
    {MASK, "eagle3(len)",
     "(q >= kv && q < len[b] && kv < len[b]) || (kv >= q_len && kv % q_len < len[b] && (kv - q) % q_len == 0)",
     "EAGLE-3 training-time test: causal, then each later step's own key, over len[b] tokens"},
    {SCORE, "softcap(c)", "c * tanh(score / c)", "bends scores smoothly into (-c, c)"},
    {SCORE, "alibi(slopes)", "score + slopes[h] * (kv - q)", "linear bias by distance, a slope for each head"},
    {SCORE, "temperature(tau)", "score * tau[h]", "a factor for each head"},
    {SCORE, "relative_bias(bias, n)", "score + bias[q - kv + n, h]",
     "a table of biases by distance and head; distance 0 is row n"},
};
/* clang-format on */
#define PRESETS ((uint32_t)(sizeof presets / sizeof presets[0]))

uint32_t attune_preset_count(void)
{
    return PRESETS;
}

attune_status attune_preset_get(uint32_t index, attune_preset *out)
{
    if (!out)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "preset is NULL");
    if (index >= PRESETS)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "index is %u, but there are %u presets", index, PRESETS);
    const preset *p = &presets[index];
    attune_preset ours = {sizeof ours, p->kind, p->signature, p->text, p->description};
    return attune__desc_write(out, &ours, sizeof ours, sizeof ours, "attune_preset");
}

bool attune__preset_is(const attune_preset *p, const char *name)
{
    size_t length = strcspn(p->signature, "(");
    return strlen(name) == length && !strncmp(p->signature, name, length);
}

bool attune__preset_exists(const char *name)
{
    for (uint32_t i = 0; i < PRESETS; i++) {
        attune_preset p = {.signature = presets[i].signature};
        if (attune__preset_is(&p, name))
            return true;
    }
    return false;
}

uint32_t attune__preset_parameters(const attune_preset *p, char names[ATTUNE__PRESET_PARAMETERS][ATTUNE__NAME_SIZE])
{
    const char *c = p->signature + strcspn(p->signature, "(");
    uint32_t count = 0;
    while (*c && count < ATTUNE__PRESET_PARAMETERS) {
        c += strspn(c, "(, ");
        size_t length = strcspn(c, ",)");
        if (!length || length >= ATTUNE__NAME_SIZE)
            break;
        memcpy(names[count], c, length);
        names[count++][length] = '\0';
        c += length;
        if (*c == ')')
            break;
    }
    return count;
}

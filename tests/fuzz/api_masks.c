/* SPDX-License-Identifier: MIT */
/* Expressions and masks: from an expression, an array, lists, a tensor on the device, and from other masks. */
#include "tests/fuzz/api.h"

#include <string.h>

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 0},
    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 0},
    {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
};

void api_make_expr(api_world *w, api_tape *t)
{
    static const char *const texts[] = {
        "q >= kv",     "doc[q] == doc[kv]", "kv < n",          "h_kv == b % 2 || q < kv_len", "false",
        "score * 2.0", "score + bias[kv]",  "tanh(score / 3)", "score + bias[q - kv + 3, h]", "window(",
    };
    char text[64];
    const uint32_t slot = api_below(t, API_SLOTS), which = api_below(t, 12);
    const attune_expr_kind kind = api_below(t, 8) == 0 ? (attune_expr_kind)api_below(t, 4)
                                  : which < 5          ? ATTUNE_EXPR_MASK
                                                       : ATTUNE_EXPR_SCORE;
    const char *chosen = text;
    size_t count = 0;
    if (which < 10)
        chosen = texts[which];
    else
        for (; t->at < t->end && count < sizeof text - 1; count++)
            text[count] = (char)api_take(t);
    text[count] = '\0';
    attune_expr_destroy(w->exprs[slot]);
    api_failed_well(attune_expr_create(w->instances[api_below(t, API_SLOTS)], kind, chosen, symbols,
                                       3 - (api_below(t, 16) == 0), &w->exprs[slot]),
                    w->exprs[slot]);
}

static int32_t numbers[64 * 64];

void api_host_captures(api_tape *t, attune_host_capture captures[2], attune_parameter *parameter)
{
    static const char *const names[] = {"doc", "bias"};
    for (int i = 0; i < 2; i++) {
        captures[i] = (attune_host_capture){names[i], {numbers, i ? ATTUNE_F32 : ATTUNE_I32, 1, {64}, {1}}};
        attune_array *a = &captures[i].array;
        if (api_below(t, 4) == 0) {
            a->rank = 2;
            a->size[0] = 1 + api_below(t, 8);
            a->size[1] = 1 + api_below(t, 8);
            a->stride[0] = api_below(t, 8);
            a->stride[1] = api_below(t, 8);
        }
        switch (api_below(t, 32)) {
        case 0:
            a->size[0] = -1 - (int64_t)api_below(t, 4);
            break;
        case 1:
            a->data = NULL;
            break;
        case 2:
            a->rank = api_take(t);
            break;
        case 3:
            a->dtype = (attune_dtype)(100 + api_take(t));
            break;
        default:
            break;
        }
    }
    *parameter = (attune_parameter){"n", api_below(t, 16) == 0 ? 0.5 : api_take(t)};
}

static attune_mask_desc describe(api_tape *t)
{
    static const uint32_t blocks[] = {0, 16, 32, 64, 128, 1024, 8, 17, UINT32_MAX};
    attune_mask_desc desc = {.struct_size = sizeof desc,
                             .q_block = blocks[api_below(t, 9)],
                             .kv_block = blocks[api_below(t, 9)],
                             .batch = api_below(t, 3),
                             .heads = api_below(t, 5),
                             .kv_heads = api_below(t, 3),
                             .q_len = api_length(t),
                             .kv_len = api_length(t)};
    if (api_below(t, 8) == 0) {
        desc.kv_start = api_length(t);
        desc.kv_total = api_length(t);
    }
    if (api_below(t, 32) == 0)
        desc.batch = api_length(t);
    if (api_below(t, 32) == 0)
        desc.heads = api_length(t);
    return desc;
}

void api_make_mask(api_world *w, api_tape *t)
{
    attune_host_capture captures[2];
    attune_parameter parameter;
    const attune_mask_desc desc = describe(t);
    const uint32_t slot = api_below(t, API_SLOTS), from = api_below(t, API_SLOTS);
    attune_mask *made = NULL;
    attune_instance *instance = w->instances[api_below(t, API_SLOTS)];
    attune_status status;
    api_host_captures(t, captures, &parameter);
    switch (api_below(t, 8)) {
    default:
        status = attune_mask_create(instance, &desc, w->exprs[from], captures, 2, &parameter, 1, &made);
        break;
    case 1: {
        const attune_array dense = {
            numbers, api_below(t, 8) ? ATTUNE_U8 : ATTUNE_F32, 4, {1, 1, desc.q_len, desc.kv_len}, {0}};
        /* The array must be there: no more than `numbers` holds. */
        if (desc.q_len > 64 || desc.kv_len > 64)
            return;
        status = attune_mask_create_dense(instance, &desc, &dense, &made);
        break;
    }
    case 2: {
        static int32_t counts[1024], indices[1024];
        for (int i = 0; i < 1024; i++) {
            counts[i] = (int32_t)api_below(t, 2);
            indices[i] = (int32_t)api_below(t, 3) - (api_below(t, 32) == 0);
        }
        /* As many rows as the description has, of which the arrays have 1,024. */
        if (desc.batch > 4 || desc.heads > 8 || desc.q_len > 512)
            return;
        const attune_mask_lists lists = {.struct_size = sizeof lists,
                                         .batch = 1,
                                         .heads = api_below(t, 4) ? 1 : desc.heads,
                                         .kv_num_blocks = counts,
                                         .kv_indices = indices};
        status = attune_mask_create_lists(instance, &desc, &lists, w->exprs[from], captures, 2, &parameter, 1, &made);
        break;
    }
    case 3: {
        const attune_mask_range range = {.struct_size = sizeof range,
                                         .batch0 = api_below(t, 3),
                                         .batch = api_below(t, 3),
                                         .head0 = api_below(t, 4),
                                         .heads = api_below(t, 4),
                                         .q_block0 = api_below(t, 3),
                                         .q_blocks = api_below(t, 16) ? api_below(t, 3) : api_length(t)};
        status = attune_mask_slice(w->masks[from], &range, &made);
        break;
    }
    case 4:
        status = attune_mask_and(w->masks[from], w->masks[api_below(t, API_SLOTS)], &made);
        break;
    case 5:
        status = attune_mask_or(w->masks[from], w->masks[api_below(t, API_SLOTS)], &made);
        break;
    case 6:
        status = attune_mask_not(w->masks[from], &made);
        break;
    }
    api_failed_well(status, made);
    attune_mask_destroy(w->masks[slot]);
    w->masks[slot] = made;
}

void api_look_at_mask(api_world *w, api_tape *t)
{
    char text[256];
    attune_mask *mask = w->masks[api_below(t, API_SLOTS)];
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_mask_lists lists = {.struct_size = sizeof lists};
    uint8_t pixels[3 * 8 * 8];
    uint32_t width = 8, height = 8;
    const attune_mask_work work = {.struct_size = sizeof work, .max_work = api_take(t)};
    (void)attune_mask_stats_count(mask, &work, &stats);
    (void)attune_mask_stats_get(mask, api_below(t, 2), &stats);
    (void)attune_mask_lists_get(mask, &lists);
    (void)attune_mask_draw_text(mask, api_below(t, 3), api_below(t, 3), api_below(t, 9), api_below(t, 9), text,
                                api_below(t, 255), NULL);
    (void)attune_mask_draw_pixels(mask, 0, 0, pixels, &width, &height);
    (void)attune_mask_upload(mask, w->devices[api_below(t, API_SLOTS)]);
}

/* Another mask in a slot. */
static void keep(api_world *w, api_tape *t, attune_status status, attune_mask *made)
{
    attune_mask **slot = &w->masks[api_below(t, API_SLOTS)];
    api_failed_well(status, made);
    attune_mask_destroy(*slot);
    *slot = made;
}

void api_extend_mask(api_world *w, api_tape *t)
{
    attune_host_capture captures[2];
    attune_parameter parameter;
    const attune_mask *from = w->masks[api_below(t, API_SLOTS)];
    attune_mask_lists lists = {.struct_size = sizeof lists};
    attune_mask *made = NULL;
    api_host_captures(t, captures, &parameter);
    const attune_mask_work work = {.struct_size = sizeof work, .max_work = api_below(t, 2) ? 0 : api_take(t)};
    int64_t q_len = api_length(t), kv_len = api_length(t);
    /* Mostly a few keys more. */
    if (api_below(t, 4) && from && attune_mask_lists_get(from, &lists) == ATTUNE_OK) {
        q_len = lists.q_len + api_below(t, 4);
        kv_len = lists.kv_len + api_below(t, 40);
    }
    const attune_status status =
        attune_mask_extend(from, q_len, kv_len, captures, api_below(t, 3), api_below(t, 2) ? &work : NULL, &made);
    keep(w, t, status, made);
}

static const attune_dtype mask_dtypes[] = {ATTUNE_BOOL, ATTUNE_U8, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};

void api_make_tensor_mask(api_world *w, api_tape *t)
{
    attune_mask_desc desc = describe(t);
    if (api_below(t, 8))
        desc.kv_start = desc.kv_total = 0;
    attune_mask *made = NULL;
    const int64_t batch = api_below(t, 2) ? 1 : desc.batch, heads = api_below(t, 2) ? 1 : desc.heads;
    const attune_status status = attune_mask_create_tensor(w->devices[api_below(t, API_SLOTS)], &desc,
                                                           mask_dtypes[api_below(t, 6)], batch, heads, &made);
    keep(w, t, status, made);
}

void api_update_mask(api_world *w, api_tape *t)
{
    attune_device *device = w->devices[api_below(t, API_SLOTS)];
    if (!device)
        return;
    const int64_t size[] = {1 + api_below(t, 2), 1 + api_below(t, 4), api_length(t), api_length(t)};
    const attune_tensor from = api_integers(w, t, 4, size, mask_dtypes[api_below(t, 6)]);
    attune_completion done;
    const attune_status status =
        attune_mask_update(w->masks[api_below(t, API_SLOTS)], attune_device_queue(device), &from, &done);
    api_launched(status, done);
}

/* SPDX-License-Identifier: MIT */
/*
 * Sequences of calls of the public API on the CPU: handles made, used and destroyed in any order, with sizes, strides
 * and offsets that fit, nearly fit or make no sense. Nothing may crash, leak or be undefined; what fails says why,
 * gives no handle, and an allocator that refuses more than some megabytes is one of the reasons.
 */
#include <attune/attune.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SLOTS   4
#define STEPS   64
#define LARGEST ((size_t)8 << 20)

/* The bytes that are left of the input. */
typedef struct tape {
    const uint8_t *at, *end;
} tape;

typedef struct world {
    attune_instance *instances[SLOTS];
    attune_device *devices[SLOTS];
    attune_expr *exprs[SLOTS];
    attune_mask *masks[SLOTS];
    attune_plan *plans[SLOTS];
    attune_buffer *buffers[SLOTS];
    attune_merger *mergers[SLOTS];
} world;

static void expect(bool condition)
{
    if (!condition)
        abort();
}

static uint32_t take(tape *t)
{
    return t->at < t->end ? *t->at++ : 0;
}

static uint32_t below(tape *t, uint32_t count)
{
    return take(t) % count;
}

/* A length: mostly small, sometimes none that could be. */
static int64_t length(tape *t)
{
    static const int64_t odd[] = {0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 31, INT64_C(1) << 62, -128, UINT32_MAX};
    const uint32_t byte = take(t);
    return byte < 232 ? 1 + byte % 40 : byte < 248 ? 1 + (byte - 232) * 16 : odd[byte - 248];
}

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return bytes > LARGEST ? NULL : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* A call that fails has a message, and returns no object. */
static void failed_well(attune_status status, const void *handle)
{
    expect(status != ATTUNE_INTERNAL);
    expect(status == ATTUNE_OK ? handle != NULL : handle == NULL && attune_last_error()[0] != '\0');
}

static void make_instance(world *w, tape *t)
{
    const uint32_t slot = below(t, SLOTS);
    attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = "", .allocator = {allocate, release, NULL}};
    const uint32_t way = below(t, 16);
    if (way == 0)
        desc.struct_size = below(t, 2) ? 0 : (uint32_t)offsetof(attune_instance_desc, cache_folder);
    if (way == 1)
        desc.allocator.release = NULL;
    attune_instance_destroy(w->instances[slot]);
    failed_well(attune_instance_create(&desc, &w->instances[slot]), w->instances[slot]);
}

static void make_device(world *w, tape *t)
{
    static const char *const ids[] = {"cpu", "cpu", "cpu", "cpu", "cpu:0", "cpu:1", "", "cpu@a100", "none"};
    const uint32_t slot = below(t, SLOTS);
    attune_device_destroy(w->devices[slot]);
    failed_well(attune_device_open(w->instances[below(t, SLOTS)], ids[below(t, 9)], &w->devices[slot]),
                w->devices[slot]);
}

static const attune_symbol symbols[] = {
    {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 0},
    {"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 0},
    {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
};

static void make_expr(world *w, tape *t)
{
    static const char *const texts[] = {
        "q >= kv",     "doc[q] == doc[kv]", "kv < n",          "h_kv == b % 2 || q < kv_len", "false",
        "score * 2.0", "score + bias[kv]",  "tanh(score / 3)", "score + bias[q - kv + 3, h]", "window(",
    };
    char text[64];
    const uint32_t slot = below(t, SLOTS), which = below(t, 12);
    const attune_expr_kind kind = below(t, 8) == 0 ? (attune_expr_kind)below(t, 4)
                                  : which < 5      ? ATTUNE_EXPR_MASK
                                                   : ATTUNE_EXPR_SCORE;
    const char *chosen = text;
    size_t count = 0;
    if (which < 10)
        chosen = texts[which];
    else
        for (; t->at < t->end && count < sizeof text - 1; count++)
            text[count] = (char)take(t);
    text[count] = '\0';
    attune_expr_destroy(w->exprs[slot]);
    failed_well(attune_expr_create(w->instances[below(t, SLOTS)], kind, chosen, symbols, 3 - (below(t, 16) == 0),
                                   &w->exprs[slot]),
                w->exprs[slot]);
}

static int32_t numbers[64 * 64];

static void host_captures(tape *t, attune_host_capture captures[2], attune_parameter *parameter)
{
    static const char *const names[] = {"doc", "bias"};
    for (int i = 0; i < 2; i++) {
        captures[i] = (attune_host_capture){names[i], {numbers, i ? ATTUNE_F32 : ATTUNE_I32, 1, {64}, {1}}};
        attune_array *a = &captures[i].array;
        if (below(t, 4) == 0) {
            a->rank = 2;
            a->size[0] = 1 + below(t, 8);
            a->size[1] = 1 + below(t, 8);
            a->stride[0] = below(t, 8);
            a->stride[1] = below(t, 8);
        }
        switch (below(t, 32)) {
        case 0:
            a->size[0] = -1 - (int64_t)below(t, 4);
            break;
        case 1:
            a->data = NULL;
            break;
        case 2:
            a->rank = take(t);
            break;
        case 3:
            a->dtype = (attune_dtype)(100 + take(t));
            break;
        default:
            break;
        }
    }
    *parameter = (attune_parameter){"n", below(t, 16) == 0 ? 0.5 : take(t)};
}

static attune_mask_desc describe(tape *t)
{
    static const uint32_t blocks[] = {0, 16, 32, 64, 128, 1024, 8, 17, UINT32_MAX};
    attune_mask_desc desc = {.struct_size = sizeof desc,
                             .q_block = blocks[below(t, 9)],
                             .kv_block = blocks[below(t, 9)],
                             .batch = below(t, 3),
                             .heads = below(t, 5),
                             .kv_heads = below(t, 3),
                             .q_len = length(t),
                             .kv_len = length(t)};
    if (below(t, 8) == 0) {
        desc.kv_start = length(t);
        desc.kv_total = length(t);
    }
    if (below(t, 32) == 0)
        desc.batch = length(t);
    if (below(t, 32) == 0)
        desc.heads = length(t);
    return desc;
}

static void make_mask(world *w, tape *t)
{
    attune_host_capture captures[2];
    attune_parameter parameter;
    const attune_mask_desc desc = describe(t);
    const uint32_t slot = below(t, SLOTS), from = below(t, SLOTS);
    attune_mask *made = NULL;
    attune_instance *instance = w->instances[below(t, SLOTS)];
    attune_status status;
    host_captures(t, captures, &parameter);
    switch (below(t, 8)) {
    default:
        status = attune_mask_create(instance, &desc, w->exprs[from], captures, 2, &parameter, 1, &made);
        break;
    case 1: {
        const attune_array dense = {
            numbers, below(t, 8) ? ATTUNE_U8 : ATTUNE_F32, 4, {1, 1, desc.q_len, desc.kv_len}, {0}};
        /* The array must be there: no more than `numbers` holds. */
        if (desc.q_len > 64 || desc.kv_len > 64)
            return;
        status = attune_mask_create_dense(instance, &desc, &dense, &made);
        break;
    }
    case 2: {
        static int32_t counts[1024], indices[1024];
        for (int i = 0; i < 1024; i++) {
            counts[i] = (int32_t)below(t, 2);
            indices[i] = (int32_t)below(t, 3) - (below(t, 32) == 0);
        }
        /* As many rows as the description has, of which the arrays have 1,024. */
        if (desc.batch > 4 || desc.heads > 8 || desc.q_len > 512)
            return;
        const attune_mask_lists lists = {.struct_size = sizeof lists,
                                         .batch = 1,
                                         .heads = below(t, 4) ? 1 : desc.heads,
                                         .kv_num_blocks = counts,
                                         .kv_indices = indices};
        status = attune_mask_create_lists(instance, &desc, &lists, w->exprs[from], captures, 2, &parameter, 1, &made);
        break;
    }
    case 3: {
        const attune_mask_range range = {.struct_size = sizeof range,
                                         .batch0 = below(t, 3),
                                         .batch = below(t, 3),
                                         .head0 = below(t, 4),
                                         .heads = below(t, 4),
                                         .q_block0 = below(t, 3),
                                         .q_blocks = below(t, 16) ? below(t, 3) : length(t)};
        status = attune_mask_slice(w->masks[from], &range, &made);
        break;
    }
    case 4:
        status = attune_mask_and(w->masks[from], w->masks[below(t, SLOTS)], &made);
        break;
    case 5:
        status = attune_mask_or(w->masks[from], w->masks[below(t, SLOTS)], &made);
        break;
    case 6:
        status = attune_mask_not(w->masks[from], &made);
        break;
    }
    failed_well(status, made);
    attune_mask_destroy(w->masks[slot]);
    w->masks[slot] = made;
}

static void look_at_mask(world *w, tape *t)
{
    char text[256];
    attune_mask *mask = w->masks[below(t, SLOTS)];
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_mask_lists lists = {.struct_size = sizeof lists};
    uint8_t pixels[3 * 8 * 8];
    uint32_t width = 8, height = 8;
    (void)attune_mask_stats_get(mask, below(t, 2), &stats);
    (void)attune_mask_lists_get(mask, &lists);
    (void)attune_mask_draw_text(mask, below(t, 3), below(t, 3), below(t, 9), below(t, 9), text, below(t, 255), NULL);
    (void)attune_mask_draw_pixels(mask, 0, 0, pixels, &width, &height);
    (void)attune_mask_upload(mask, w->devices[below(t, SLOTS)]);
}

static void make_plan(world *w, tape *t)
{
    static const uint32_t dims[] = {8, 16, 24, 64, 256, 0, 7, 264};
    attune_kernel_options options = {
        .struct_size = sizeof options,
        .any = {.block_m = 16 * below(t, 5), .block_n = 16 * below(t, 5), .split_kv = below(t, 4)}};
    attune_problem p = {.struct_size = sizeof p,
                        .direction = (attune_direction)(below(t, 16) == 0 ? 7 : below(t, 2)),
                        .dtype = (attune_dtype)below(t, 6),
                        .head_dim = dims[below(t, 8)],
                        .head_dim_v = dims[below(t, 8)],
                        .batch = below(t, 4),
                        .kv_batch = below(t, 3),
                        .heads = below(t, 5),
                        .kv_heads = below(t, 3),
                        .q_len = length(t),
                        .kv_len = length(t),
                        .score = below(t, 2) ? w->exprs[below(t, SLOTS)] : NULL,
                        .block_mask = below(t, 8) == 0,
                        .lse = below(t, 2),
                        .row_max = below(t, 2),
                        .capture_gradient_elements = below(t, 4) ? 64 : length(t),
                        .segments = below(t, 4) ? 0 : below(t, 4)};
    const attune_mask *mask = w->masks[below(t, SLOTS)];
    if (mask && below(t, 2))
        (void)attune_problem_set_mask(&p, mask);
    const uint32_t slot = below(t, SLOTS);
    attune_plan_destroy(w->plans[slot]);
    failed_well(attune_plan_create(w->devices[below(t, SLOTS)], &p, below(t, 4) ? NULL : &options, &w->plans[slot]),
                w->plans[slot]);
}

static void make_buffer(world *w, tape *t)
{
    static uint64_t wrapped[1 << 13];
    const uint32_t slot = below(t, SLOTS);
    attune_device *device = w->devices[below(t, SLOTS)];
    attune_buffer_destroy(w->buffers[slot]);
    const attune_status status =
        below(t, 4) == 0 ? attune_buffer_wrap(device, wrapped, sizeof wrapped, &w->buffers[slot])
                         : attune_buffer_create(device, below(t, 8) ? (uint64_t)take(t) << 9 : (uint64_t)length(t),
                                                &w->buffers[slot]);
    failed_well(status, w->buffers[slot]);
    if (status == ATTUNE_OK && below(t, 2) == 0) {
        uint8_t bytes[64] = {0};
        const uint64_t offset = below(t, 8) ? 0 : (uint64_t)length(t),
                       count = below(t, 8) ? below(t, 65) : (uint64_t)length(t);
        if (count <= sizeof bytes) {
            (void)attune_buffer_write(w->buffers[slot], offset, bytes, count);
            (void)attune_buffer_read(w->buffers[slot], offset, bytes, count);
        }
    }
}

static attune_tensor tensor(world *w, tape *t, uint32_t rank, const int64_t *size, attune_dtype dtype)
{
    attune_tensor x = {.buffer = w->buffers[below(t, SLOTS)], .dtype = dtype, .rank = rank};
    memcpy(x.size, size, rank * sizeof *size);
    switch (below(t, 24)) {
    case 0:
        x.offset = (uint64_t)length(t);
        break;
    case 1:
        x.size[below(t, 4)] = length(t);
        break;
    case 2:
        x.rank = take(t);
        break;
    case 3:
        x.dtype = (attune_dtype)take(t);
        break;
    case 4:
        for (int i = 0; i < 4; i++)
            x.stride[i] = length(t);
        break;
    case 5:
        x.stride[below(t, 4)] = length(t);
        break;
    default:
        break;
    }
    return x;
}

static void run_plan(world *w, tape *t)
{
    static const uint32_t dims[] = {8, 16, 24, 64, 256};
    const attune_plan *plan = w->plans[below(t, SLOTS)];
    attune_device *device = w->devices[below(t, SLOTS)];
    if (!device)
        return;
    const attune_dtype dtype = (attune_dtype)(1 + below(t, 4)), rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const int64_t batch = 1 + below(t, 3), heads = 1 + below(t, 4), kv_heads = 1 + below(t, 2), d = dims[below(t, 5)],
                  dv = below(t, 2) ? d : dims[below(t, 5)], q_len = length(t), kv_len = length(t);
    const int64_t q[] = {batch, heads, q_len, d}, k[] = {batch, kv_heads, kv_len, d},
                  v[] = {batch, kv_heads, kv_len, dv}, o[] = {batch, heads, q_len, dv}, one[] = {64};
    attune_capture captures[] = {{"doc", tensor(w, t, 1, one, ATTUNE_I32)}, {"bias", tensor(w, t, 1, one, ATTUNE_F32)}};
    attune_capture gradients[] = {{"bias", tensor(w, t, 1, one, ATTUNE_F32)}};
    const attune_parameter parameter = {"n", take(t)};
    const attune_mask *mask = below(t, 2) ? w->masks[below(t, SLOTS)] : NULL;
    attune_segment segments[3];
    for (int i = 0; i < 3; i++)
        segments[i] = (attune_segment){tensor(w, t, 4, k, dtype), tensor(w, t, 4, v, dtype), mask,
                                       tensor(w, t, 4, k, dtype), tensor(w, t, 4, v, dtype)};
    attune_completion done;
    attune_status status;
    if (below(t, 2)) {
        attune_forward_args a = {.struct_size = sizeof a,
                                 .q = tensor(w, t, 4, q, dtype),
                                 .k = segments[0].k,
                                 .v = segments[0].v,
                                 .o = tensor(w, t, 4, o, dtype),
                                 .mask = mask,
                                 .captures = captures,
                                 .capture_count = below(t, 3),
                                 .parameters = &parameter,
                                 .parameter_count = below(t, 2),
                                 .workspace = w->buffers[below(t, SLOTS)],
                                 .workspace_offset = below(t, 4) ? 0 : (uint64_t)length(t),
                                 .segments = segments,
                                 .segment_count = below(t, 4) ? 0 : below(t, 4)};
        if (below(t, 2))
            a.lse = tensor(w, t, 3, o, rows);
        if (below(t, 2))
            a.row_max = tensor(w, t, 3, o, rows);
        status = attune_forward(plan, attune_device_queue(device), &a, &done);
    } else {
        attune_backward_args a = {.struct_size = sizeof a,
                                  .q = tensor(w, t, 4, q, dtype),
                                  .k = segments[0].k,
                                  .v = segments[0].v,
                                  .o = tensor(w, t, 4, o, dtype),
                                  .lse = tensor(w, t, 3, o, rows),
                                  .d_o = tensor(w, t, 4, o, dtype),
                                  .d_q = tensor(w, t, 4, q, dtype),
                                  .d_k = segments[0].d_k,
                                  .d_v = segments[0].d_v,
                                  .mask = mask,
                                  .captures = captures,
                                  .capture_count = below(t, 3),
                                  .capture_gradients = gradients,
                                  .capture_gradient_count = below(t, 2),
                                  .parameters = &parameter,
                                  .parameter_count = below(t, 2),
                                  .workspace = w->buffers[below(t, SLOTS)],
                                  .segments = segments,
                                  .segment_count = below(t, 4) ? 0 : below(t, 4)};
        status = attune_backward(plan, attune_device_queue(device), &a, &done);
    }
    expect(status != ATTUNE_INTERNAL && (status == ATTUNE_OK || attune_last_error()[0]));
}

static void run_merge(world *w, tape *t)
{
    const attune_merger *merger = w->mergers[below(t, SLOTS)];
    attune_device *device = w->devices[below(t, SLOTS)];
    if (!device)
        return;
    const attune_dtype dtype = (attune_dtype)(1 + below(t, 4)), rows = dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    const int64_t o[] = {1 + below(t, 2), 1 + below(t, 3), length(t), 8 * (1 + below(t, 3))};
    attune_merge_part parts[10];
    for (int i = 0; i < 10; i++)
        parts[i] = (attune_merge_part){tensor(w, t, 4, o, dtype), tensor(w, t, 3, o, rows), tensor(w, t, 4, o, dtype),
                                       tensor(w, t, 3, o, rows)};
    attune_merge_args a = {.struct_size = sizeof a,
                           .parts = parts,
                           .part_count = below(t, 11),
                           .o = tensor(w, t, 4, o, dtype),
                           .workspace = w->buffers[below(t, SLOTS)]};
    const attune_status status = attune_merge(merger, attune_device_queue(device), &a, NULL);
    expect(status != ATTUNE_INTERNAL && (status == ATTUNE_OK || attune_last_error()[0]));
}

static void look(world *w, tape *t)
{
    char text[512];
    size_t needed;
    const attune_expr *expr = w->exprs[below(t, SLOTS)];
    const attune_plan *plan = w->plans[below(t, SLOTS)];
    attune_plan_choice choice = {.struct_size = sizeof choice};
    attune_host_capture captures[2];
    attune_parameter parameter;
    float value;
    const attune_point point = {(int32_t)below(t, 3), 0, (int32_t)below(t, 64), (int32_t)below(t, 64), 0, 64, 64, 1};
    host_captures(t, captures, &parameter);
    (void)attune_expr_print(expr, (attune_expr_format)(1 + below(t, 5)), text, below(t, 255), &needed);
    (void)attune_expr_evaluate(expr, &point, captures, 2, &parameter, 1, &value);
    (void)attune_plan_choice_get(plan, &choice);
    (void)attune_plan_choice_at(plan, below(t, 3), below(t, 255), &choice);
    (void)attune_plan_explain(plan, (attune_text_format)(1 + below(t, 2)), text, below(t, 255), &needed);
}

static void destroy(world *w, tape *t)
{
    const uint32_t slot = below(t, SLOTS);
    switch (below(t, 7)) {
    case 0:
        attune_instance_destroy(w->instances[slot]);
        w->instances[slot] = NULL;
        break;
    case 1:
        attune_device_destroy(w->devices[slot]);
        w->devices[slot] = NULL;
        break;
    case 2:
        attune_expr_destroy(w->exprs[slot]);
        w->exprs[slot] = NULL;
        break;
    case 3:
        attune_mask_destroy(w->masks[slot]);
        w->masks[slot] = NULL;
        break;
    case 4:
        attune_plan_destroy(w->plans[slot]);
        w->plans[slot] = NULL;
        break;
    case 5:
        attune_buffer_destroy(w->buffers[slot]);
        w->buffers[slot] = NULL;
        break;
    default:
        attune_merger_destroy(w->mergers[slot]);
        w->mergers[slot] = NULL;
    }
}

/* One of each, so that most calls have what they need. */
static void begin(world *w)
{
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .cpu_threads = 1, .cache_folder = "", .allocator = {allocate, release, NULL}};
    expect(attune_instance_create(&desc, &w->instances[0]) == ATTUNE_OK);
    expect(attune_device_open(w->instances[0], "cpu", &w->devices[0]) == ATTUNE_OK);
    for (int i = 0; i < SLOTS; i++)
        expect(attune_buffer_create(w->devices[0], 1 << 18, &w->buffers[i]) == ATTUNE_OK);
    expect(attune_merger_create(w->devices[0], &w->mergers[0]) == ATTUNE_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world w;
    memset(&w, 0, sizeof w);
    tape t = {data, data + size};
    begin(&w);
    for (int step = 0; step < STEPS && t.at < t.end; step++) {
        switch (below(&t, 16)) {
        case 0:
            make_instance(&w, &t);
            break;
        case 1:
            make_device(&w, &t);
            break;
        case 2:
        case 3:
            make_expr(&w, &t);
            break;
        case 4:
        case 5:
            make_mask(&w, &t);
            break;
        case 6:
            look_at_mask(&w, &t);
            break;
        case 7:
        case 8:
            make_plan(&w, &t);
            break;
        case 9:
            make_buffer(&w, &t);
            break;
        case 10:
        case 11:
        case 12:
            run_plan(&w, &t);
            break;
        case 13:
            run_merge(&w, &t);
            break;
        case 14:
            look(&w, &t);
            break;
        default:
            destroy(&w, &t);
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        attune_instance_destroy(w.instances[i]);
        attune_device_destroy(w.devices[i]);
        attune_buffer_destroy(w.buffers[i]);
        attune_mask_destroy(w.masks[i]);
        attune_expr_destroy(w.exprs[i]);
        attune_merger_destroy(w.mergers[i]);
        attune_plan_destroy(w.plans[i]);
    }
    return 0;
}

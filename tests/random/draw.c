/* SPDX-License-Identifier: MIT */
/* Random problems: a plan, and calls for it. */
#include "random/random.h"

#include <string.h>

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t draw_length(rng *r, int64_t most)
{
    static const int64_t special[] = {1,  2,  3,  7,  13, 15,  16,  17,  31,  32, 33,
                                      61, 63, 64, 65, 97, 127, 128, 129, 191, 257};
    const int64_t length = rng_chance(r, 50) ? special[rng_range(r, 0, 20)] : rng_range(r, 1, most);
    return min64(length, most);
}

static void draw_layout(rng *r, bool input, bool broadcast, int rank, layout *l)
{
    *l = (layout){0};
    if (rng_chance(r, 35))
        return;
    l->order = (uint8_t)rng_range(r, 0, 5);
    l->offset = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 0, 9) : 0);
    for (int i = 0; i < rank; i++) {
        l->pad[i] = (uint8_t)(rng_chance(r, 25) ? rng_range(r, 1, 9) : 0);
        if (input && rng_chance(r, 12))
            l->negative |= (uint8_t)(1u << i);
        if (input && broadcast && rng_chance(r, 8))
            l->broadcast |= (uint8_t)(1u << i);
    }
}

static void draw_call(rng *r, const problem *p, const draw_profile *profile, call *c)
{
    *c = (call){.seed = rng_next(r), .batch = rng_range(r, 1, p->batch)};
    const int64_t data = rng_range(r, 0, 99);
    c->data = data < 60                                                  ? DATA_NORMAL
              : data < 70                                                ? DATA_LARGE
              : data < 75                                                ? DATA_EQUAL
              : data < 85 && p->mask                                     ? DATA_NAN_HIDDEN
              : p->direction == ATTUNE_FORWARD && p->dtype != ATTUNE_F64 ? DATA_NONFINITE
                                                                         : DATA_NORMAL;
    /* A dense array of one batch has another expression than that of several: its plan is another. */
    if (p->mask == MASK_DENSE && p->batch > 1 && c->batch == 1)
        c->batch = 2;
    c->q_len = rng_chance(r, 40) ? p->q_len : draw_length(r, p->q_len);
    if (p->segments) {
        c->segment_count = (int)rng_range(r, 1, p->segments);
        for (int i = 0; i < c->segment_count; i++)
            c->kv_len += c->segment[i] = draw_length(r, p->kv_len);
        c->segment_alone = p->mask == MASK_DENSE || p->mask == MASK_TENSOR || rng_chance(r, 30);
        c->segment_mixed = (p->mask == MASK_AND || p->mask == MASK_OR) && !c->segment_alone && rng_chance(r, 40);
    } else {
        c->kv_len = rng_chance(r, 40) ? p->kv_len : draw_length(r, p->kv_len);
    }
    (void)profile;
    bool lengths = false;
    for (int i = 0; i < 2; i++)
        lengths |= tree_uses(&p->masks[i], OP_Q_LEN) || tree_uses(&p->masks[i], OP_KV_LEN);
    if (!lengths && rng_chance(r, 30)) {
        c->mask_more_q = rng_range(r, 0, 70);
        c->mask_more_kv = !p->segments || c->segment_alone ? rng_range(r, 0, 70) : 0;
    }
    c->lists_broadcast_b = rng_chance(r, 40);
    c->lists_broadcast_h = rng_chance(r, 40);
    c->lists_offsets = rng_chance(r, 50);
    c->slice_batch0 = rng_range(r, 0, 2);
    c->slice_heads0 = rng_range(r, 0, 2);
    c->slice_block0 = rng_range(r, 0, 2);
    draw_layout(r, true, true, 3, &c->q);
    draw_layout(r, true, true, 3, &c->k);
    draw_layout(r, true, true, 3, &c->v);
    /* Forward's outputs are backward's inputs: never broadcast, since their rows differ. */
    draw_layout(r, p->direction == ATTUNE_BACKWARD, false, 3, &c->o);
    draw_layout(r, p->direction == ATTUNE_BACKWARD, false, 3, &c->lse);
    draw_layout(r, false, false, 3, &c->row_max);
    draw_layout(r, true, true, 3, &c->d_o);
    draw_layout(r, true, true, 3, &c->d_lse);
    draw_layout(r, false, false, 3, &c->d_q);
    draw_layout(r, false, false, 3, &c->d_k);
    draw_layout(r, false, false, 3, &c->d_v);
    for (int i = 0; i < SYMBOLS; i++) {
        draw_layout(r, true, true, 4, &c->captures[i]);
        draw_layout(r, false, false, 4, &c->d_captures[i]);
        draw_layout(r, true, true, 4, &c->host[i]);
        draw_layout(r, true, true, 4, &c->host[SYMBOLS + i]);
    }
    draw_layout(r, true, true, 4, &c->tensor);
    /* A last dimension of stride 0 could make all strides 0, which means contiguous; keys of a segment begin anew. */
    c->d_lse.broadcast &= 3;
    c->tensor.broadcast &= 7;
    for (int i = 0; i < SYMBOLS; i++) {
        c->captures[i].broadcast &= (uint8_t)((1u << p->score.symbols[i].rank) / 2 - (p->score.symbols[i].rank > 0));
        c->host[i].broadcast &= (uint8_t)((1u << p->masks[0].symbols[i].rank) / 2 - (p->masks[0].symbols[i].rank > 0));
        c->host[SYMBOLS + i].broadcast &=
            (uint8_t)((1u << p->masks[1].symbols[i].rank) / 2 - (p->masks[1].symbols[i].rank > 0));
    }
    if (p->segments) {
        c->k.broadcast &= 3;
        c->v.broadcast &= 3;
    }
    c->want_lse = p->lse && rng_chance(r, 80);
    c->want_row_max = p->row_max && rng_chance(r, 80);
    c->want_d_lse = rng_chance(r, 50);
    c->want_captures = (uint8_t)(rng_chance(r, 70) ? 15 : rng_range(r, 0, 15));
    c->shrink_captures = (int)(rng_chance(r, 25) ? rng_range(r, 0, 6) : 0);
    c->more_names = rng_chance(r, 30);
    c->repeat = rng_chance(r, 15);
    c->seconds = rng_chance(r, 5);
    c->workspace_offset = (uint32_t)(rng_chance(r, 30) ? rng_range(r, 0, 5) : 0);
    c->mutation = rng_chance(r, 15) ? (int)rng_range(r, 1, 60) : 0;
}

static uint32_t draw_head_dim(rng *r)
{
    static const uint32_t usual[] = {16, 32, 64, 128};
    if (rng_chance(r, 40))
        return usual[rng_range(r, 0, 3)];
    return 8 * (uint32_t)(rng_chance(r, 75) ? rng_range(r, 1, 12) : rng_range(r, 1, 32));
}

static attune_choice draw_choice(rng *r, int percent)
{
    return rng_chance(r, percent) ? (rng_chance(r, 50) ? ATTUNE_ON : ATTUNE_OFF) : ATTUNE_AUTO;
}

static uint32_t one_of(rng *r, int percent, int count, const uint32_t *from)
{
    return rng_chance(r, percent) ? from[rng_range(r, 0, count - 1)] : 0;
}

static void draw_options(rng *r, attune_direction direction, attune_backend backend, attune_pass_options *o)
{
    static const uint32_t tiles[] = {8, 16, 32, 64, 128, 48}, warps[] = {1, 2, 4, 8}, stages[] = {1, 2, 3, 4};
    /* In the order of attune_backend. */
    static const struct {
        int count;
        const char *names[5];
    } kernels[] = {{3, {"cpu", "cpu_bf16", "cpu_amx"}},
                   {5, {"vulkan_portable", "vulkan_subgroup", "vulkan_lanes", "vulkan_coopmat", "vulkan_decode"}},
                   {4, {"cuda_sm80", "cuda_sm90a", "cuda_sm80_atomic", "cuda_sm100a"}},
                   {5, {"opencl_portable", "opencl_lanes", "opencl_subgroup", "opencl_serving", "opencl_decode"}}};
    *o = (attune_pass_options){0};
    if (rng_chance(r, 45)) {
        const int of = (int)backend - ATTUNE_BACKEND_CPU;
        (void)snprintf(o->kernel, sizeof o->kernel, "%s", kernels[of].names[rng_range(r, 0, kernels[of].count - 1)]);
    }
    if (direction == ATTUNE_FORWARD) {
        o->block_m = one_of(r, 25, 6, tiles);
        o->block_n = one_of(r, 25, 6, tiles);
        if (rng_chance(r, 25))
            o->split_kv = (uint32_t)rng_range(r, 1, 7);
        o->force_use_flex_attention = draw_choice(r, 25);
        o->rows_guaranteed_safe = rng_chance(r, 10) ? ATTUNE_OFF : ATTUNE_AUTO;
    } else {
        o->block_m1 = one_of(r, 20, 6, tiles);
        o->block_n1 = one_of(r, 20, 6, tiles);
        o->block_m2 = one_of(r, 20, 6, tiles);
        o->block_n2 = one_of(r, 20, 6, tiles);
        o->deterministic = draw_choice(r, 40);
    }
    o->num_warps = one_of(r, 15, 4, warps);
    o->num_stages = one_of(r, 15, 4, stages);
    o->prescale_qk = draw_choice(r, 20);
    o->use_tma = backend == ATTUNE_BACKEND_CUDA ? draw_choice(r, 15) : ATTUNE_AUTO;
    o->approximate_tanh = backend == ATTUNE_BACKEND_CUDA ? draw_choice(r, 20) : ATTUNE_AUTO;
}

static void draw_masks(rng *r, problem *p, bool divide)
{
    static const mask_kind kinds[] = {MASK_NONE,  MASK_NONE,  MASK_EXPR,   MASK_EXPR,  MASK_EXPR, MASK_EXPR,
                                      MASK_DENSE, MASK_LISTS, MASK_LISTS,  MASK_AND,   MASK_OR,   MASK_NOT,
                                      MASK_SLICE, MASK_SLICE, MASK_TENSOR, MASK_TENSOR};
    static const attune_dtype tensors[] = {ATTUNE_BOOL, ATTUNE_U8, ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16};
    p->mask = kinds[rng_range(r, 0, 15)];
    if (p->segments && p->mask == MASK_SLICE)
        p->mask = MASK_EXPR;
    p->q_block = 16 * (uint32_t)rng_range(r, 1, rng_chance(r, 50) ? 4 : 8);
    p->kv_block = 16 * (uint32_t)rng_range(r, 1, rng_chance(r, 50) ? 4 : 8);
    if (rng_chance(r, 30))
        p->q_block = p->kv_block = rng_chance(r, 50) ? 128 : 64;
    p->lists_whole = p->mask == MASK_LISTS && rng_chance(r, 25);
    p->mask_by_hand = p->mask == MASK_EXPR && rng_chance(r, 25);
    p->tensor_dtype = p->mask == MASK_TENSOR ? tensors[rng_range(r, 0, 4)] : ATTUNE_BOOL;
    if (p->mask == MASK_NONE || p->mask == MASK_DENSE || p->mask == MASK_TENSOR || p->lists_whole)
        return;
    /* Those of a mask and of its slice differ. */
    const bool lengths = p->mask != MASK_SLICE;
    tree_draw_mask(r, "A", lengths, divide, false, &p->masks[0]);
    if (p->mask == MASK_AND || p->mask == MASK_OR)
        tree_draw_mask(r, "B", lengths, divide, false, &p->masks[1]);
}

/* A feature that not every backend has is drawn for the others too, where it must be refused, but less often. */
static void draw_rest(rng *r, const draw_profile *profile, problem *p)
{
    const attune_backend backend = profile->backend;
    const bool forward = p->direction == ATTUNE_FORWARD, cpu = backend == ATTUNE_BACKEND_CPU;
    const bool most = cpu || (backend == ATTUNE_BACKEND_VULKAN && forward);
    if (rng_chance(r, most ? 8 : 2)) {
        p->head_dim = 8 * (uint32_t)rng_range(r, 33, 72);
        if (rng_chance(r, 50))
            p->head_dim_v = 8 * (uint32_t)rng_range(r, 1, 64);
    }
    p->sinks = rng_chance(r, 25);
    for (int i = 0; i < p->call_count; i++) {
        draw_layout(r, true, false, 1, &p->calls[i].sinks);
        draw_layout(r, false, false, 1, &p->calls[i].d_sinks);
        p->calls[i].want_d_sinks = rng_chance(r, 80);
    }
    /* With other options most kernels are refused: some have none. */
    if (p->options.kernel[0] && rng_chance(r, 50)) {
        attune_pass_options alone = {0};
        memcpy(alone.kernel, p->options.kernel, sizeof alone.kernel);
        p->options = alone;
        p->options_of_other = (attune_pass_options){0};
    }
    if (profile->kernel) {
        p->has_options = p->options_of_pass = true;
        p->options = p->options_of_other = (attune_pass_options){0};
        (void)snprintf(p->options.kernel, sizeof p->options.kernel, "%s", profile->kernel);
        p->options.block_n1 = p->direction == ATTUNE_BACKWARD ? profile->block_n1 : 0;
    }
}

/* Types and mask blocks that kernels for matrix units take. */
static void prefer_common(uint64_t seed, uint64_t index, problem *p)
{
    rng r = {mix(mix(seed, index), 6152)};
    if (rng_chance(&r, 90))
        p->dtype = p->kv_dtype = p->o_dtype = rng_chance(&r, 50) ? ATTUNE_F16 : ATTUNE_BF16;
    if (rng_chance(&r, 75))
        p->q_block = p->kv_block = 128;
}

void problem_draw(uint64_t seed, uint64_t index, const draw_profile *profile, problem *p)
{
    rng r = {mix(seed, index)};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    static const int64_t ratios[] = {1, 1, 1, 2, 2, 3, 4, 8};
    *p = (problem){.seed = seed, .index = index};
    const bool cpu = profile->backend == ATTUNE_BACKEND_CPU;
    p->direction = rng_chance(&r, 40) ? ATTUNE_BACKWARD : ATTUNE_FORWARD;
    p->dtype = p->kv_dtype = p->o_dtype = dtypes[rng_range(&r, 0, cpu ? 3 : 2)];
    if (p->dtype != ATTUNE_F64 && rng_chance(&r, 20)) {
        p->kv_dtype = dtypes[rng_range(&r, 0, 2)];
        p->o_dtype = dtypes[rng_range(&r, 0, 2)];
    }
    p->threads = cpu && rng_chance(&r, 30) ? (loop_order)rng_range(&r, LOOPS_CALLER, LOOPS_POOL) : LOOPS_OWN;
    p->head_dim = draw_head_dim(&r);
    p->head_dim_v = rng_chance(&r, 50) ? p->head_dim : draw_head_dim(&r);
    p->batch = rng_range(&r, 1, 3);
    p->kv_batch = rng_chance(&r, 80) ? p->batch : 1;
    p->kv_heads = rng_range(&r, 1, 3);
    p->heads = p->kv_heads * ratios[rng_range(&r, 0, 7)];
    const bool decode = p->direction == ATTUNE_FORWARD && rng_chance(&r, 30);
    /* Most problems are small, so that there are many. */
    const int64_t plane = profile->work / (rng_chance(&r, 15) ? 1 : 8) / (p->batch * p->heads);
    p->q_len = decode ? rng_range(&r, 1, rng_chance(&r, 40) ? 1 : 17) : draw_length(&r, min64(300, plane));
    const int64_t most = plane / p->q_len < 1 ? 1 : plane / p->q_len;
    p->kv_len = decode ? min64(rng_range(&r, 256, 1200), most < 256 ? 256 : most) : draw_length(&r, min64(400, most));
    if (!decode && rng_chance(&r, 50)) {
        const int64_t other = p->q_len;
        p->q_len = p->kv_len;
        p->kv_len = other;
    }
    p->scale = rng_chance(&r, 70) ? 0 : (double)rng_range(&r, 1, 40) / (rng_chance(&r, 15) ? -32 : 32);
    if (rng_chance(&r, 15))
        p->segments = (uint32_t)rng_range(&r, 1, SEGMENTS);
    draw_masks(&r, p, cpu);
    if (profile->kernel)
        prefer_common(seed, index, p);
    p->has_score = rng_chance(&r, 65);
    if (p->has_score)
        tree_draw_score(&r, rng_chance(&r, 8), false, &p->score);
    p->lse = p->segments || rng_chance(&r, 80);
    p->row_max = !p->segments && rng_chance(&r, 60);
    p->has_options = rng_chance(&r, 35);
    if (p->has_options) {
        p->options_of_pass = rng_chance(&r, 40);
        draw_options(&r, p->direction, profile->backend, &p->options);
        /* Those of the other pass wait for its plan. */
        if (p->options_of_pass && rng_chance(&r, 50))
            draw_options(&r, p->direction == ATTUNE_FORWARD ? ATTUNE_BACKWARD : ATTUNE_FORWARD, profile->backend,
                         &p->options_of_other);
    }
    rng rare = {mix(mix(seed, index), 8123)};
    const bool is_rare = rng_chance(&rare, 30);
    if (is_rare)
        draw_rare_problem(&rare, profile, p);
    p->call_count = (int)rng_range(&r, profile->calls > 2 ? profile->calls / 2 : 1, profile->calls);
    for (int i = 0; i < p->call_count; i++)
        draw_call(&r, p, profile, &p->calls[i]);
    for (int i = 0; i < p->call_count && is_rare; i++)
        draw_rare_call(&rare, p, &p->calls[i]);
    /* One plan has one expression: what changes it is the same in all calls. */
    for (int i = 1; i < p->call_count; i++) {
        p->calls[i].segment_alone = p->calls[0].segment_alone;
        p->calls[i].segment_mixed = p->calls[0].segment_mixed;
        if (p->mask == MASK_DENSE || p->mask == MASK_TENSOR) {
            p->calls[i].lists_broadcast_b = p->calls[0].lists_broadcast_b;
            p->calls[i].lists_broadcast_h = p->calls[0].lists_broadcast_h;
        }
        if (!p->calls[i].segment_alone && p->segments)
            p->calls[i].mask_more_kv = 0;
    }
    /* Steps through the plan of a prompt. */
    if (decode && rng_chance(&r, 50) && p->q_len < 100)
        p->q_len = rng_range(&r, p->q_len, 100);
    rng rest = {mix(mix(seed, index), 4715)};
    draw_rest(&rest, profile, p);
    if (p->mask != MASK_TENSOR)
        return;
    /* A tensor of each batch serves calls of this batch alone. */
    for (int i = 0; i < p->call_count; i++)
        p->calls[i].batch = p->calls[0].lists_broadcast_b ? p->calls[i].batch : p->batch;
    /* A bias: what forbids is the mask's, what it adds the score's. */
    if (p->tensor_dtype != ATTUNE_BOOL && p->tensor_dtype != ATTUNE_U8 && !p->segments && rng_chance(&r, 50)) {
        p->has_score = true;
        tree_add_bias(p->tensor_dtype, !p->calls[0].lists_broadcast_b, !p->calls[0].lists_broadcast_h, &p->score);
    }
}

/* SPDX-License-Identifier: MIT */
/* Random calls over a cache: a plan, and steps for it. */
#include "random/serving.h"

#include <string.h>

#define FEW 6 /* sequences, where there are not many */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void draw_layout(rng *r, bool input, int rank, layout *l)
{
    *l = (layout){0};
    if (rng_chance(r, 50))
        return;
    l->order = (uint8_t)rng_range(r, 0, 5);
    l->offset = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 0, 9) : 0);
    for (int i = 0; i < rank; i++) {
        l->pad[i] = (uint8_t)(rng_chance(r, 25) ? rng_range(r, 1, 9) : 0);
        if (input && rng_chance(r, 12))
            l->negative |= (uint8_t)(1u << i);
    }
}

static void draw_cache(rng *r, const serving *s, cache_layout *l)
{
    *l =
        (cache_layout){.nhd = rng_chance(r, 50), .beside = !s->latent && s->k_dtype == s->v_dtype && rng_chance(r, 30)};
    if (rng_chance(r, 50))
        return;
    l->pad_row = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 1, 9) : 0);
    l->pad_plane = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 1, 40) : 0);
    l->pad_page = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 1, 200) : 0);
    l->offset = (uint8_t)(rng_chance(r, 40) ? rng_range(r, 0, 20) : 0);
}

static int64_t draw_length(rng *r, int64_t most)
{
    static const int64_t special[] = {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
    const int64_t length = rng_chance(r, 40) ? special[rng_range(r, 0, 18)] : rng_range(r, 1, max64(most, 1));
    return max64(min64(length, most), 1);
}

/* Rows and keys: a decode step, a prompt, a chunk of one, a few drafts, nothing, or more rows than keys. */
static void draw_sequence(rng *r, int64_t pairs, int64_t *rows, int64_t *keys)
{
    const int64_t kind = rng_range(r, 0, 11);
    int64_t side = 1;
    while ((side + 1) * (side + 1) <= pairs)
        side++;
    if (kind < 4 || (kind < 6 && rng_chance(r, 50))) {
        *rows = kind < 4 ? 1 : rng_range(r, 2, 6);
        *keys = rng_chance(r, 30) ? rng_range(r, 250, 1500) : draw_length(r, max64(pairs / *rows, 40));
    } else if (kind < 7) {
        *rows = *keys = draw_length(r, side);
    } else if (kind < 9) {
        *rows = draw_length(r, side);
        *keys = *rows + rng_range(r, 0, max64(pairs / *rows - *rows, 0));
    } else if (kind < 11) {
        *rows = rng_chance(r, 50) ? 0 : draw_length(r, side);
        *keys = *rows ? 0 : draw_length(r, side);
    } else {
        *rows = draw_length(r, side);
        *keys = rng_range(r, 0, *rows);
    }
}

static void draw_append(rng *r, const serving *s, appending *a)
{
    *a = (appending){.used = true,
                     .slots = rng_chance(r, 30),
                     .queries = rng_chance(r, 40),
                     .norm = rng_chance(r, 40),
                     .rotate = rng_chance(r, 50)};
    a->q_norm = a->queries && rng_chance(r, 50);
    a->own_weights = rng_chance(r, 50);
    a->norm_columns = rng_chance(r, 60) ? s->head_dim : (uint32_t)rng_range(r, 1, s->head_dim);
    if (a->rotate) {
        a->interleaved = rng_chance(r, 50);
        a->rotary_columns = 2 * (uint32_t)(rng_chance(r, 60) ? s->head_dim / 2 : rng_range(r, 1, s->head_dim / 2));
        a->rotary_first = (uint32_t)(rng_chance(r, 50) ? 0 : rng_range(r, 0, s->head_dim - a->rotary_columns));
        a->positions = rng_chance(r, 40);
        a->rotary_positions = rng_chance(r, 80) ? s->kv_len : rng_range(r, 1, s->kv_len);
    }
    layout *const all[] = {&a->k, &a->v, &a->q, &a->q_out, &a->slot, &a->position, &a->cosine};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        draw_layout(r, all[i] != &a->q_out, 3, all[i]);
}

static void draw_step(rng *r, const serving *s, int64_t pairs, step *c)
{
    *c = (step){.seed = rng_next(r), .sequences = (int)rng_range(r, 1, FEW)};
    const int64_t data = rng_range(r, 0, 99);
    c->data = data < 65   ? DATA_NORMAL
              : data < 72 ? DATA_LARGE
              : data < 77 ? DATA_EQUAL
              : data < 90 ? DATA_NAN_HIDDEN
                          : DATA_NONFINITE;
    if (rng_chance(r, 25))
        c->sequences = 1;
    if (s->many)
        c->sequences = (int)rng_range(r, FEW + 1, SEQUENCES);
    for (int b = 0; b < c->sequences; b++) {
        draw_sequence(r, pairs / c->sequences, &c->rows[b], &c->keys[b]);
        if (s->many && !rng_chance(r, 10))
            c->keys[b] = min64(c->keys[b], 70);
        if (!s->packed)
            c->rows[b] = b ? c->rows[0] : max64(s->many ? min64(c->rows[b], 4) : c->rows[b], 1);
    }
    if (s->tree && s->packed && rng_chance(r, 30)) {
        c->rows[0] = rng_range(r, 33, 80);
        c->keys[0] = c->rows[0] + rng_range(r, 0, 40);
    }
    c->has_first = rng_chance(r, 25);
    c->has_shared = c->sequences > 1 && rng_chance(r, 20);
    /* Parts that sequences share have at least 256 keys. */
    for (int b = 0; c->has_shared && s->together && b < c->sequences; b++)
        if (c->rows[b] < 20)
            c->keys[b] += rng_range(r, 256, 900);
    c->has_count = rng_chance(r, 25);
    c->count = (int)(rng_chance(r, 70) ? c->sequences : rng_range(r, 0, c->sequences));
    for (int b = 0; b < c->sequences; b++) {
        c->first[b] = c->has_first && rng_chance(r, 70) ? rng_range(r, 0, c->keys[b]) : 0;
        const int64_t most = b ? min64(c->keys[b], c->keys[b - 1]) : 0;
        c->shared[b] = !c->has_shared ? 0 : rng_chance(r, 80) ? rng_range(r, most / 2, most) : -rng_range(r, 0, 9);
    }
    c->has_tree = s->tree && rng_chance(r, 85);
    c->before = s->packed && rng_chance(r, 20) ? rng_range(r, 1, 9) : 0;
    c->after = s->packed && rng_chance(r, 30) ? rng_range(r, 1, 9) : 0;
    c->table_more = rng_chance(r, 40) ? rng_range(r, 1, 4) : 0;
    c->pool_more = rng_chance(r, 60) ? rng_range(r, 0, 6) : 0;
    c->holes = s->page && rng_chance(r, 15) ? (int)rng_range(r, 1, 40) : 0;
    int64_t rows = 0;
    for (int b = 0; b < c->sequences; b++)
        rows = max64(rows, c->rows[b]);
    /* Bits past the words are 0. */
    c->words = max64(rng_chance(r, 60) ? (rows + 31) / 32 + (rng_chance(r, 20) ? 1 : 0) : rows / 32, 1);
    c->want_lse = s->lse && rng_chance(r, 85);
    c->want_row_max = s->row_max && rng_chance(r, 85);
    c->shrink_captures = (int)(rng_chance(r, 25) ? rng_range(r, 0, 6) : 0);
    c->workspace_offset = (uint32_t)(rng_chance(r, 30) ? rng_range(r, 0, 5) : 0);
    draw_cache(r, s, &c->cache[0]);
    draw_cache(r, s, &c->cache[1]);
    draw_layout(r, true, 3, &c->q);
    draw_layout(r, false, 3, &c->o);
    draw_layout(r, false, 3, &c->lse);
    draw_layout(r, false, 3, &c->row_max);
    draw_layout(r, true, 2, &c->ints);
    for (int i = 0; i < 2 * SYMBOLS; i++)
        draw_layout(r, true, 4, &c->captures[i]);
    if (!c->has_shared && rng_chance(r, 25))
        draw_append(r, s, &c->append);
}

/* Numbers that the header says are harmless. */
static void draw_wrong(rng *r, const serving *s, step *c)
{
    for (int64_t i = rng_range(r, 1, 3); i > 0; i--) {
        const int b = (int)rng_range(r, 0, c->sequences - 1);
        switch (rng_range(r, 0, 8)) {
        case 0:
            c->keys[b] = rng_chance(r, 50) ? -rng_range(r, 1, 40) : INT32_MIN;
            break;
        case 1:
            if (c->append.used)
                break;
            c->keys[b] = rng_chance(r, 50) ? s->kv_len + rng_range(r, 1, 40) : INT32_MAX;
            break;
        case 2:
            if (!c->append.used)
                c->table_more = -rng_range(r, 1, 3);
            break;
        case 3:
        case 4:
            if (!c->append.used)
                c->nudge[b + (int)rng_range(r, 0, 1)] = rng_chance(r, 80)   ? rng_range(r, -5, 5)
                                                        : rng_chance(r, 50) ? 1000000
                                                                            : INT32_MIN / 2;
            break;
        case 5:
            if (!c->has_shared && !c->append.used)
                c->page_nudge[b + (int)rng_range(r, 0, 1)] = rng_chance(r, 80)   ? rng_range(r, -3, 3)
                                                             : rng_chance(r, 50) ? 1000000
                                                                                 : INT32_MIN / 2;
            break;
        case 6:
            c->first[b] = rng_chance(r, 50) ? -rng_range(r, 1, 1000) : INT32_MIN;
            c->has_first = true;
            break;
        case 7:
            c->first[b] = max64(c->keys[b], 0) + rng_range(r, 1, 1000);
            c->has_first = true;
            break;
        default:
            c->first[b] = INT32_MAX;
            c->has_first = true;
            break;
        }
        /* Keys in common are true where both sequences have them. */
        for (int at = 1; at < c->sequences; at++)
            c->shared[at] = min64(c->shared[at], max64(0, min64(c->keys[at], c->keys[at - 1])));
    }
}

static void draw_options(rng *r, attune_backend backend, attune_pass_options *o)
{
    static const uint32_t tiles[] = {8, 16, 32, 64, 128, 48}, stages[] = {1, 2, 3, 4};
    static const char *const kernels[] = {"cuda_sm80", "vulkan_portable", "vulkan_subgroup", "vulkan_decode"};
    *o = (attune_pass_options){0};
    if (backend == ATTUNE_BACKEND_VULKAN && rng_chance(r, 60))
        (void)snprintf(o->kernel, sizeof o->kernel, "%s", kernels[rng_range(r, 1, 3)]);
    if (backend == ATTUNE_BACKEND_OPENCL && rng_chance(r, 50))
        (void)snprintf(o->kernel, sizeof o->kernel, "opencl_decode");
    o->block_m = rng_chance(r, 40) ? tiles[rng_range(r, 0, 5)] : 0;
    o->block_n = rng_chance(r, 40) ? tiles[rng_range(r, 0, 5)] : 0;
    o->num_stages = rng_chance(r, 20) ? stages[rng_range(r, 0, 3)] : 0;
    if (rng_chance(r, 10))
        o->split_kv = (uint32_t)rng_range(r, 1, 7);
}

static void draw_types(rng *r, bool cpu, serving *s)
{
    static const attune_dtype plain[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    static const attune_dtype cached[] = {ATTUNE_F32,    ATTUNE_F16,    ATTUNE_BF16, ATTUNE_F8E4M3,
                                          ATTUNE_F8E5M2, ATTUNE_I8,     ATTUNE_I8,   ATTUNE_Q8_0,
                                          ATTUNE_Q4_0,   ATTUNE_F8E4M3, ATTUNE_Q8_0, ATTUNE_Q4_0};
    s->dtype = s->k_dtype = s->v_dtype = s->o_dtype = plain[rng_range(r, 0, cpu && rng_chance(r, 40) ? 3 : 2)];
    if (s->dtype == ATTUNE_F64)
        return;
    if (rng_chance(r, 60))
        s->k_dtype = s->v_dtype = cached[rng_range(r, 0, 11)];
    if (rng_chance(r, 25))
        s->v_dtype = cached[rng_range(r, 0, 11)];
    if (rng_chance(r, 20))
        s->o_dtype = plain[rng_range(r, 0, 2)];
}

static uint32_t draw_head_dim(rng *r, uint32_t multiple, uint32_t most)
{
    static const uint32_t usual[] = {32, 64, 128, 96};
    if (rng_chance(r, 40))
        return usual[rng_range(r, 0, 3)];
    const uint32_t largest = rng_chance(r, 15) ? most : 128;
    return multiple * (uint32_t)rng_range(r, 1, largest / multiple);
}

static bool has_factors(attune_dtype dtype)
{
    return dtype == ATTUNE_F8E4M3 || dtype == ATTUNE_F8E5M2 || dtype == ATTUNE_I8;
}

static void draw_heads(rng *r, serving *s)
{
    static const int64_t ratios[] = {1, 1, 2, 2, 3, 4, 8, 5};
    const uint32_t k = attune_dtype_block(s->k_dtype) > 1 ? 32 : 8;
    s->head_dim = draw_head_dim(r, k, 576);
    s->kv_heads = rng_range(r, 1, 3);
    s->latent = rng_chance(r, 15);
    if (s->latent) {
        s->v_dtype = s->k_dtype;
        s->kv_heads = rng_chance(r, 80) ? 1 : s->kv_heads;
        s->head_dim = rng_chance(r, 30) ? 576 : s->head_dim;
        s->head_dim_v = min64(s->head_dim, 512) < (int64_t)s->head_dim || rng_chance(r, 30)
                            ? (uint32_t)min64(s->head_dim, 512)
                            : k * (uint32_t)rng_range(r, 1, s->head_dim / k);
    } else {
        const uint32_t v = attune_dtype_block(s->v_dtype) > 1 ? 32 : 8;
        s->head_dim_v =
            rng_chance(r, 50) && s->head_dim % v == 0 && s->head_dim <= 512 ? s->head_dim : draw_head_dim(r, v, 512);
    }
    s->heads = s->kv_heads * ratios[rng_range(r, 0, 7)];
    if (s->dtype != ATTUNE_F64 && has_factors(s->k_dtype))
        s->k_scale = (scale_kind)rng_range(r, 0, 3);
    if (has_factors(s->v_dtype))
        s->v_scale = s->latent ? s->k_scale : (scale_kind)rng_range(r, 0, 3);
}

static void draw_plan(rng *r, serving *s)
{
    s->q_len = s->kv_len = s->batch = s->tokens = 1;
    for (int i = 0; i < s->step_count; i++) {
        const step *c = &s->steps[i];
        int64_t rows = c->before + c->after;
        for (int b = 0; b < c->sequences; b++) {
            s->q_len = max64(s->q_len, c->rows[b]);
            s->kv_len = max64(s->kv_len, c->keys[b]);
            rows += c->rows[b];
        }
        s->tokens = max64(s->tokens, max64(rows, 1));
        s->batch = max64(s->batch, c->sequences);
    }
    if (rng_chance(r, 40)) {
        s->q_len += rng_range(r, 0, 60);
        s->kv_len += rng_range(r, 0, 400);
        s->batch += rng_range(r, 0, 3);
        s->tokens += rng_range(r, 0, 100);
    }
}

/* More heads, more sequences and other pages than the rest, and expressions of any operands. */
static void draw_rare(rng *r, bool cpu, serving *s)
{
    static const int64_t pages[] = {4, 8, 12, 20, 24, 96, 512, 1000}, ratios[] = {6, 7, 9, 10, 12, 16, 20, 21};
    if (rng_chance(r, 30)) {
        s->heads = s->kv_heads * ratios[rng_range(r, 0, 7)];
        s->head_dim = s->latent ? s->head_dim : (uint32_t)min64(s->head_dim, 64);
        s->head_dim_v = s->latent ? s->head_dim_v : (uint32_t)min64(s->head_dim_v, 64);
    }
    if (rng_chance(r, 30))
        s->page = pages[rng_range(r, 0, 7)];
    s->many = rng_chance(r, 35);
    s->alone &= !s->many;
    if (s->has_mask && rng_chance(r, 60))
        tree_draw_served(r, false, cpu, true, &s->mask);
    if (s->has_score && rng_chance(r, 60))
        tree_draw_served(r, true, true, true, &s->score);
}

/* Lengths beside the edges of parts, one long sequence, and values far from 1. */
static void draw_rare_step(rng *r, int64_t work, const serving *s, step *c)
{
    if (c->data == DATA_NORMAL && rng_chance(r, 40))
        c->data = rng_chance(r, 50) ? DATA_SMALL : DATA_UNEVEN;
    const int b = (int)rng_range(r, 0, c->sequences - 1);
    if (c->has_shared || c->append.used || rng_chance(r, 50))
        return;
    const int64_t most = min64(2 * work / s->heads / max64(c->rows[b], 1), 9000);
    c->keys[b] = rng_chance(r, 50) ? max64(most, 1) : 256 * rng_range(r, 1, 16) + rng_range(r, -1, 1);
    c->keys[b] = max64(min64(c->keys[b], most), c->first[b]);
}

void serving_draw(uint64_t seed, uint64_t index, const draw_profile *profile, serving *s)
{
    rng r = {mix(mix(seed, index), 4711)};
    static const int64_t pages[] = {0, 1, 2, 3, 5, 16, 16, 16, 32, 64, 7, 48, 256, 128};
    static const uint32_t splits[] = {256, 512, 1024, 1 << 20};
    *s = (serving){.seed = seed, .index = index};
    const bool cpu = profile->backend == ATTUNE_BACKEND_CPU;
    draw_types(&r, cpu, s);
    s->threads = cpu && rng_chance(&r, 30) ? (loop_order)rng_range(&r, LOOPS_CALLER, LOOPS_POOL) : LOOPS_OWN;
    draw_heads(&r, s);
    s->page = rng_chance(&r, 80) ? pages[rng_range(&r, 0, 13)] : rng_range(&r, 1, 100);
    s->list = s->page && rng_chance(&r, 35);
    s->packed = rng_chance(&r, 75);
    s->tree = rng_chance(&r, 30);
    s->sinks = rng_chance(&r, 25);
    s->lse = rng_chance(&r, 80);
    s->row_max = rng_chance(&r, 60);
    s->scale = rng_chance(&r, 70) ? 0 : (double)rng_range(&r, 1, 40) / (rng_chance(&r, 15) ? -32 : 32);
    s->has_mask = rng_chance(&r, 60);
    if (s->has_mask)
        tree_draw_served(&r, false, cpu, false, &s->mask);
    s->has_score = rng_chance(&r, 45);
    if (s->has_score)
        tree_draw_served(&r, true, true, false, &s->score);
    s->split_keys = rng_chance(&r, 50) ? splits[rng_range(&r, 0, 3)] : 0;
    s->together = rng_chance(&r, 40) ? (uint32_t)rng_range(&r, 2, 8) : 0;
    s->has_options = rng_chance(&r, 25);
    if (s->has_options)
        draw_options(&r, profile->backend, &s->options);
    s->alone = rng_chance(&r, 30);
    s->layers = rng_chance(&r, 30);
    s->step_count = (int)rng_range(&r, 1, profile->calls < STEPS ? profile->calls : STEPS);
    rng rare = {mix(mix(seed, index), 8124)};
    const bool is_rare = rng_chance(&rare, 30);
    if (is_rare)
        draw_rare(&rare, cpu, s);
    const int64_t pairs = profile->work / (rng_chance(&r, 15) ? 1 : 8) / s->heads;
    s->kv_len = 300; /* the tables of rotations are as long as a plan has keys */
    for (int i = 0; i < s->step_count; i++)
        draw_step(&r, s, pairs, &s->steps[i]);
    for (int i = 0; i < s->step_count && is_rare; i++)
        draw_rare_step(&rare, profile->work, s, &s->steps[i]);
    draw_plan(&r, s);
    for (int i = 0; i < s->step_count; i++)
        if (rng_chance(&r, 15))
            draw_wrong(&r, s, &s->steps[i]);
}

void serving_print(const serving *s, FILE *out)
{
    static const char *const datas[] = {"normal", "large", "equal", "hidden NaN", "not finite", "small", "uneven"};
    static const char *const scales[] = {"none", "tensor", "heads", "keys"};
    char text[4096];
    (void)fprintf(
        out,
        "  serving %s k %s (%s) v %s (%s) o %s D %u Dv %u%s heads %lld/%lld batch %lld q_len %lld kv_len %lld "
        "tokens %lld page %lld%s scale %g split_keys %u together %u\n  %s%s%s lse %d row_max %d threads %d alone %d "
        "layers %d\n",
        attune_dtype_string(s->dtype), attune_dtype_string(s->k_dtype), scales[s->k_scale],
        attune_dtype_string(s->v_dtype), scales[s->v_scale], attune_dtype_string(s->o_dtype), s->head_dim,
        s->head_dim_v, s->latent ? " of K" : "", (long long)s->heads, (long long)s->kv_heads, (long long)s->batch,
        (long long)s->q_len, (long long)s->kv_len, (long long)s->tokens, (long long)s->page, s->list ? " in lists" : "",
        s->scale, s->split_keys, s->together, s->packed ? "packed" : "not packed", s->tree ? " tree" : "",
        s->sinks ? " sinks" : "", s->lse, s->row_max, (int)s->threads, s->alone, s->layers);
    if (s->has_mask) {
        tree_print(&s->mask, text, sizeof text);
        (void)fprintf(out, "  mask: %s\n", text);
    }
    if (s->has_score) {
        tree_print(&s->score, text, sizeof text);
        (void)fprintf(out, "  score: %s\n", text);
    }
    const attune_pass_options *o = &s->options;
    if (s->has_options)
        (void)fprintf(out, "  options: kernel \"%s\" tile %ux%u stages %u split %u\n", o->kernel, o->block_m,
                      o->block_n, o->num_stages, o->split_kv);
    for (int i = 0; i < s->step_count; i++) {
        const step *c = &s->steps[i];
        (void)fprintf(
            out, "  step %d: data %s, count %d%s, %lld rows before, %lld after, table %+lld, holes %d %%%s%s:", i,
            datas[c->data], c->count, c->has_count ? "" : " (not passed)", (long long)c->before, (long long)c->after,
            (long long)c->table_more, c->holes, c->has_tree ? ", tree" : "", c->append.used ? ", appended" : "");
        for (int b = 0; b < c->sequences; b++) {
            (void)fprintf(out, " %lld on %lld", (long long)c->rows[b], (long long)c->keys[b]);
            if (c->has_first)
                (void)fprintf(out, " from %lld", (long long)c->first[b]);
            if (c->has_shared)
                (void)fprintf(out, " shared %lld", (long long)c->shared[b]);
        }
        for (int b = 0; b <= c->sequences; b++)
            if (c->nudge[b] || c->page_nudge[b])
                (void)fprintf(out, ", start %d %+lld, pages %+lld", b, (long long)c->nudge[b],
                              (long long)c->page_nudge[b]);
        (void)fprintf(out, "\n");
    }
}

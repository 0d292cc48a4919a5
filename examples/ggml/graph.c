/* SPDX-License-Identifier: MIT */
/*
 * A prompt and decode steps of two layers of attention, one with a quantised cache, by ggml's scheduler: once with the
 * CPU backend alone, once with attune before it. The status is 0 if attune computed every attention, and the CPU
 * backend everything else, with the same results.
 */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, DIM = 64, HEADS = 8, KV_HEADS = 2, WIDTH = DIM * HEADS, KV_WIDTH = DIM * KV_HEADS };
enum { CONTEXT = 256, PROMPT = 90, STEPS = 8, NODES = 256 };

typedef struct model {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *wq[LAYERS], *wk[LAYERS], *wv[LAYERS], *wo[LAYERS], *k[LAYERS], *v[LAYERS];
} model;

typedef struct counts {
    int attention, elsewhere, others;
} counts;

static float uniform(void)
{
    return (float)rand() / (float)RAND_MAX * 2 - 1;
}

static struct ggml_tensor *weight(model *m, int64_t in, int64_t out)
{
    return ggml_new_tensor_2d(m->ctx, GGML_TYPE_F32, in, out);
}

static void model_create(model *m, ggml_backend_t cpu)
{
    m->ctx = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * 64, NULL, true});
    for (int i = 0; i < LAYERS; i++) {
        m->wq[i] = weight(m, WIDTH, WIDTH);
        m->wk[i] = weight(m, WIDTH, KV_WIDTH);
        m->wv[i] = weight(m, WIDTH, KV_WIDTH);
        m->wo[i] = weight(m, WIDTH, WIDTH);
        m->k[i] = ggml_new_tensor_2d(m->ctx, i ? GGML_TYPE_Q8_0 : GGML_TYPE_F16, KV_WIDTH, CONTEXT);
        m->v[i] = ggml_new_tensor_2d(m->ctx, i ? GGML_TYPE_Q4_0 : GGML_TYPE_F16, KV_WIDTH, CONTEXT);
    }
    m->buffer = ggml_backend_alloc_ctx_tensors(m->ctx, cpu);
    ggml_backend_buffer_clear(m->buffer, 0);
    srand(1);
    for (struct ggml_tensor *t = ggml_get_first_tensor(m->ctx); t; t = ggml_get_next_tensor(m->ctx, t))
        for (int64_t i = 0; t->type == GGML_TYPE_F32 && i < ggml_nelements(t); i++)
            ((float *)t->data)[i] = uniform() * sqrtf(3.0F / WIDTH); /* variance 1 / WIDTH */
}

static struct ggml_tensor *heads_of(struct ggml_context *ctx, struct ggml_tensor *cache, int64_t keys)
{
    const size_t head = ggml_row_size(cache->type, DIM);
    return ggml_view_3d(ctx, cache, DIM, keys, KV_HEADS, cache->nb[1], head, 0);
}

/* Rows from position `past` on; replaces x [rows, WIDTH]. */
static bool step(model *m, ggml_backend_sched_t sched, float *x, int64_t rows, int64_t past, counts *where)
{
    const int64_t keys = past + rows;
    struct ggml_init_params params = {ggml_tensor_overhead() * NODES + ggml_graph_overhead(), NULL, true};
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    struct ggml_tensor *input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, rows), *h = input;
    struct ggml_tensor *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, keys, rows);
    struct ggml_tensor *slots = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, rows);
    ggml_set_input(input);
    ggml_set_input(mask);
    ggml_set_input(slots);
    for (int i = 0; i < LAYERS; i++) {
        struct ggml_tensor *norm = ggml_rms_norm(ctx, h, 1e-5F);
        ggml_build_forward_expand(graph, ggml_set_rows(ctx, m->k[i], ggml_mul_mat(ctx, m->wk[i], norm), slots));
        ggml_build_forward_expand(graph, ggml_set_rows(ctx, m->v[i], ggml_mul_mat(ctx, m->wv[i], norm), slots));
        struct ggml_tensor *q = ggml_mul_mat(ctx, m->wq[i], norm);
        q = ggml_permute(ctx, ggml_reshape_3d(ctx, q, DIM, HEADS, rows), 0, 2, 1, 3);
        struct ggml_tensor *a = ggml_flash_attn_ext(ctx, q, heads_of(ctx, m->k[i], keys), heads_of(ctx, m->v[i], keys),
                                                    mask, 1 / sqrtf(DIM), 0, 0);
        h = ggml_add(ctx, h, ggml_mul_mat(ctx, m->wo[i], ggml_reshape_2d(ctx, a, WIDTH, rows)));
    }
    ggml_set_output(h);
    ggml_build_forward_expand(graph, h);
    bool ok = ggml_backend_sched_alloc_graph(sched, graph);
    if (ok) {
        ggml_fp16_t *bias = mask->data;
        for (int64_t r = 0; r < rows; r++) {
            ((int64_t *)slots->data)[r] = past + r;
            for (int64_t c = 0; c < keys; c++)
                bias[r * keys + c] = ggml_fp32_to_fp16(c <= past + r ? 0 : -INFINITY);
        }
        memcpy(input->data, x, ggml_nbytes(input));
        ok = ggml_backend_sched_graph_compute(sched, graph) == GGML_STATUS_SUCCESS;
    }
    for (int i = 0; ok && i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        const bool attune = !strcmp(ggml_backend_name(ggml_backend_sched_get_tensor_backend(sched, node)), "attune");
        const bool attention = node->op == GGML_OP_FLASH_ATTN_EXT;
        where->attention += attune && attention;
        where->elsewhere += !attune && attention;
        where->others += attune && node->op == GGML_OP_MUL_MAT;
    }
    if (ok)
        ggml_backend_tensor_get(h, x, 0, ggml_nbytes(h));
    ggml_backend_sched_reset(sched);
    ggml_free(ctx);
    return ok;
}

static bool run(ggml_backend_t *backends, int count, float *x, counts *where)
{
    model m;
    model_create(&m, backends[count - 1]);
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, count, NODES, false, false);
    for (int64_t i = 0; i < (PROMPT + STEPS) * WIDTH; i++)
        x[i] = uniform();
    bool ok = step(&m, sched, x, PROMPT, 0, where);
    for (int i = 0; ok && i < STEPS; i++)
        ok = step(&m, sched, x + (PROMPT + i) * WIDTH, 1, PROMPT + i, where);
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(m.buffer);
    ggml_free(m.ctx);
    return ok;
}

int main(void)
{
    static float alone[(PROMPT + STEPS) * WIDTH], both[(PROMPT + STEPS) * WIDTH];
    counts none = {0}, where = {0};
    double error = 0, square = 0;
    ggml_backend_load_all();
    ggml_backend_t backends[] = {ggml_backend_init_by_name("attune", NULL), ggml_backend_init_by_name("CPU", NULL)};
    if (!backends[0] || !backends[1])
        return fprintf(stderr, "no backend named %s\n", backends[0] ? "CPU" : "attune"), 1;
    const bool ok = run(backends + 1, 1, alone, &none) && run(backends, 2, both, &where);
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
    if (!ok)
        return fprintf(stderr, "a graph was not computed\n"), 1;
    for (int i = 0; i < (PROMPT + STEPS) * WIDTH; i++) {
        const double difference = (double)both[i] - (double)alone[i];
        error += difference * difference;
        square += (double)alone[i] * (double)alone[i];
    }
    printf("attention by attune in %d nodes, by the CPU backend in %d; error %.1e of ggml's\n", where.attention,
           where.elsewhere, error / square);
    return !(where.attention == LAYERS * (1 + STEPS) && !where.elsewhere && !where.others && error / square < 5e-4);
}

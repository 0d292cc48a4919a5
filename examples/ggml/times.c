/* SPDX-License-Identifier: MIT */
/*
 * The time of one thread for one call of ggml's attention, by the CPU backend and by attune: the processor's time, the
 * least of several calls, so that other work on the machine matters little.
 */
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A mask tensor: 0 and -inf; distances, which ggml multiplies by the slopes of ALiBi, and -inf; or finite values for
 * all pairs. */
typedef enum mask_kind { CAUSAL, ALIBI, BIAS } mask_kind;

typedef struct shape {
    int64_t dim, kv_heads, group, keys, rows;
    enum ggml_type type;
    mask_kind mask;
} shape;

/* Decode, then prompts at the end of their keys. */
static const shape shapes[] = {
    {64, 8, 8, 7680, 1, GGML_TYPE_F16},          {64, 8, 8, 7680, 1, GGML_TYPE_Q8_0},
    {64, 8, 8, 7680, 1, GGML_TYPE_Q4_0},         {64, 8, 8, 7680, 4, GGML_TYPE_F16},
    {128, 8, 1, 4096, 1, GGML_TYPE_F16},         {128, 8, 4, 16384, 1, GGML_TYPE_F16},
    {256, 2, 16, 1024, 1, GGML_TYPE_Q8_0},       {256, 2, 16, 10000, 1, GGML_TYPE_F16},
    {256, 2, 16, 10000, 1, GGML_TYPE_Q8_0},      {64, 8, 1, 1024, 512, GGML_TYPE_F16},
    {64, 8, 1, 1024, 512, GGML_TYPE_Q8_0},       {128, 8, 4, 4096, 512, GGML_TYPE_F16},
    {128, 8, 4, 4096, 512, GGML_TYPE_Q8_0},      {64, 8, 1, 1024, 512, GGML_TYPE_F16, ALIBI},
    {64, 8, 1, 1024, 512, GGML_TYPE_F16, BIAS},  {128, 8, 4, 4096, 512, GGML_TYPE_F16, ALIBI},
    {128, 8, 4, 4096, 512, GGML_TYPE_F16, BIAS}, {128, 8, 4, 4096, 512, GGML_TYPE_Q8_0, BIAS},
    {128, 8, 4, 16384, 1, GGML_TYPE_F16, ALIBI}};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of a key that is `ahead` of the row, negative for those before it. */
static float bias_of(mask_kind kind, int64_t ahead)
{
    if (kind == BIAS)
        return (float)rand() / (float)RAND_MAX * 2 - 1;
    return ahead > 0 ? -INFINITY : kind == ALIBI ? (float)ahead : 0;
}

static void fill(struct ggml_tensor *t)
{
    const size_t count = (size_t)ggml_nelements(t), bytes = ggml_nbytes(t);
    float *values = malloc(count * sizeof *values);
    void *data = malloc(bytes);
    if (!values || !data)
        exit(1);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
    if (t->type != GGML_TYPE_F32)
        ggml_quantize_chunk(t->type, values, data, 0, ggml_nrows(t), t->ne[0], NULL);
    ggml_backend_tensor_set(t, t->type == GGML_TYPE_F32 ? (void *)values : data, 0, bytes);
    free(values);
    free(data);
}

/* Seconds. */
static double time_of(ggml_backend_t backend, const shape *s)
{
    struct ggml_init_params params = {ggml_tensor_overhead() * 16 + ggml_graph_overhead(), NULL, true};
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, s->dim, s->rows, s->kv_heads * s->group);
    struct ggml_tensor *k = ggml_new_tensor_3d(ctx, s->type, s->dim, s->keys, s->kv_heads);
    struct ggml_tensor *v = ggml_new_tensor_3d(ctx, s->type, s->dim, s->keys, s->kv_heads);
    struct ggml_tensor *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, s->keys, s->rows);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    const float max_bias = s->mask == ALIBI ? 8 : 0;
    ggml_build_forward_expand(graph, ggml_flash_attn_ext(ctx, q, k, v, mask, 1 / sqrtf((float)s->dim), max_bias, 0));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    fill(q);
    fill(k);
    fill(v);
    ggml_fp16_t *bias = mask->data;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t c = 0; c < s->keys; c++)
            bias[r * s->keys + c] = ggml_fp32_to_fp16(bias_of(s->mask, c - (s->keys - s->rows + r)));
    double least = INFINITY;
    for (int i = 0; i < (s->rows > 64 ? 4 : 20); i++) {
        const double start = now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
            exit(1);
        const double seconds = now() - start;
        least = i && seconds < least ? seconds : least; /* the first call makes the plan */
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return least;
}

int main(void)
{
    static const char *const names[] = {"CPU", "attune"}, *const masks[] = {"causal", "ALiBi", "finite"};
    ggml_backend_t backends[2];
    ggml_backend_load_all();
    for (int i = 0; i < 2; i++) {
        backends[i] = ggml_backend_init_by_name(names[i], NULL);
        if (!backends[i])
            return fprintf(stderr, "no backend named %s\n", names[i]), 1;
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backends[i]));
        ggml_backend_set_n_threads_t set =
            (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
        set(backends[i], 1);
    }
    printf("| dim | heads | K, V heads | keys | rows | cache | mask | ggml, ms | attune, ms | faster |\n|%s\n",
           "---|---|---|---|---|---|---|---|---|---|");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        const double ggml = time_of(backends[0], s), attune = time_of(backends[1], s);
        printf("| %lld | %lld | %lld | %lld | %lld | %s | %s | %.2f | %.2f | %.1f |\n", (long long)s->dim,
               (long long)(s->kv_heads * s->group), (long long)s->kv_heads, (long long)s->keys, (long long)s->rows,
               ggml_type_name(s->type), masks[s->mask], ggml * 1e3, attune * 1e3, ggml / attune);
    }
    ggml_backend_free(backends[0]);
    ggml_backend_free(backends[1]);
    return 0;
}

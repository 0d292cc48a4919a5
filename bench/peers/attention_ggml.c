/* SPDX-License-Identifier: MIT */
/*
 * GGML_OP_FLASH_ATTN_EXT on a device of ggml's, timed for ggml_peers.py, which builds it against a checkout of ggml:
 *
 *   attention_ggml DEVICE KEY=VALUE...
 *
 * A graph has the operation many times over, and each waits for the one before it, as they have one result. Graphs are
 * computed until the warm-up is over, then `samples` of them: the caller has ggml print the time that the device's own
 * clock gave each (GGML_VK_PERF_LOGGER). Printed is how many there were, and the time of each sample by the host.
 */
#include <ggml-backend.h>
#include <ggml.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COMPUTED = 65536, MOST_CALLS = 1000 };

/* In the order of `names`. */
typedef struct workload {
    double batch, heads, kv_heads, q_len, kv_len, dim, dim_v; /* dim_v 0 = dim */
    double causal, window, document;                          /* 0 = none; window and document with their length */
    double softcap, scale;                                    /* scale 0 = 1 / sqrt(dim) */
    double seed, samples, min_time, warmup_time;
} workload;

static const char *const names[] = {"batch", "heads",   "kv_heads", "q_len",      "kv_len",  "dim",
                                    "dim_v", "causal",  "window",   "document",   "softcap", "scale",
                                    "seed",  "samples", "min_time", "warmup_time"};

_Static_assert(sizeof(workload) == sizeof names / sizeof *names * sizeof(double), "a name for each number");

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "attention_ggml: %s%s\n", what, which);
    return 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int parse(workload *w, int count, char **words)
{
    double *values = (double *)w;
    for (int i = 0; i < count; i++) {
        const char *equals = strchr(words[i], '=');
        size_t k = 0;
        while (equals && k < sizeof names / sizeof *names &&
               (strlen(names[k]) != (size_t)(equals - words[i]) || strncmp(names[k], words[i], strlen(names[k])) != 0))
            k++;
        char *end;
        if (!equals || k == sizeof names / sizeof *names)
            return fail("no such number: ", words[i]);
        values[k] = strtod(equals + 1, &end);
        if (*end || end == equals + 1)
            return fail("not a number: ", words[i]);
    }
    if (w->batch < 1 || w->heads < 1 || w->kv_heads < 1 || w->q_len < 1 || w->kv_len < 1 || w->dim < 1 ||
        w->samples < 1)
        return fail("batch, heads, kv_heads, q_len, kv_len, dim and samples are at least 1", "");
    return 0;
}

static uint64_t state;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

/* Normal numbers, of which the first 65,536 are computed, and the others are runs of these. */
static int fill(struct ggml_tensor *t)
{
    static float computed[COMPUTED];
    static ggml_fp16_t halves[COMPUTED];
    const size_t count = (size_t)ggml_nelements(t), element = ggml_type_size(t->type), run = 128;
    for (int i = 0; i < COMPUTED; i++)
        computed[i] = (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
    ggml_fp32_to_fp16_row(computed, halves, COMPUTED);
    const char *from = t->type == GGML_TYPE_F16 ? (const char *)halves : (const char *)computed;
    char *x = malloc(count * element);
    if (!x)
        return fail("no memory for numbers", "");
    for (size_t i = 0; i < count; i += run) {
        const size_t first = i < COMPUTED ? i : (size_t)(uniform() * (double)(COMPUTED - run));
        memcpy(x + i * element, from + first * element, (count - i < run ? count - i : run) * element);
    }
    ggml_backend_tensor_set(t, x, 0, count * element);
    free(x);
    return 0;
}

static int fill_mask(struct ggml_tensor *t, const workload *w)
{
    const int64_t kv_len = t->ne[0], q_len = t->ne[1];
    const ggml_fp16_t none = ggml_fp32_to_fp16(0), forbidden = ggml_fp32_to_fp16(-INFINITY);
    ggml_fp16_t *m = malloc(ggml_nbytes(t));
    if (!m)
        return fail("no memory for the mask", "");
    for (int64_t q = 0; q < q_len; q++)
        for (int64_t kv = 0; kv < kv_len; kv++) {
            const int64_t document = (int64_t)w->document;
            const int allowed = (w->causal == 0 || q >= kv) && (w->window == 0 || (double)(q - kv) < w->window) &&
                                (!document || q / document == kv / document);
            m[q * kv_len + kv] = allowed ? none : forbidden;
        }
    ggml_backend_tensor_set(t, m, 0, ggml_nbytes(t));
    free(m);
    return 0;
}

static double compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    const double begin = now();
    const enum ggml_status status = ggml_backend_graph_compute(backend, graph);
    ggml_backend_synchronize(backend);
    return status == GGML_STATUS_SUCCESS ? now() - begin : -1;
}

static struct ggml_cgraph *graph_of(struct ggml_context *context, struct ggml_tensor *out, int calls)
{
    struct ggml_cgraph *graph = ggml_new_graph_custom(context, MOST_CALLS + 16, false);
    ggml_build_forward_expand(graph, out);
    for (int i = 1; i < calls; i++)
        ggml_graph_add_node(graph, out);
    return graph;
}

static int measure(ggml_backend_t backend, struct ggml_context *context, struct ggml_tensor *out, const workload *w)
{
    struct ggml_cgraph *one = graph_of(context, out, 1);
    int graphs = 0;
    double once = 0;
    for (; graphs < 4; graphs++) { /* the first call compiles */
        const double seconds = compute(backend, one);
        if (seconds < 0)
            return fail("ggml could not compute the graph", "");
        once = graphs == 1 || seconds < once ? seconds : once;
    }
    const double wanted = w->min_time / w->samples / once;
    const int calls = wanted < 1 ? 1 : wanted > MOST_CALLS ? MOST_CALLS : (int)wanted;
    struct ggml_cgraph *many = graph_of(context, out, calls);
    for (double spent = 0; spent < w->warmup_time; graphs++)
        spent += compute(backend, many);
    printf("calls %d\nhost", calls);
    for (int i = 0; i < (int)w->samples; i++)
        printf(" %.9g", compute(backend, many) / calls);
    printf("\n");
    return 0;
}

static int run(ggml_backend_t backend, const workload *w)
{
    const int64_t dim = (int64_t)w->dim, dim_v = w->dim_v > 0 ? (int64_t)w->dim_v : dim;
    const int64_t kv_len = (int64_t)w->kv_len, q_len = (int64_t)w->q_len, batch = (int64_t)w->batch;
    const int64_t heads = (int64_t)w->heads, kv_heads = (int64_t)w->kv_heads;
    struct ggml_init_params params = {
        .mem_size = 16 * ggml_tensor_overhead() + 4 * ggml_graph_overhead_custom(MOST_CALLS + 16, false),
        .no_alloc = true,
    };
    struct ggml_context *context = ggml_init(params);
    if (!context)
        return fail("ggml has no context", "");
    struct ggml_tensor *q = ggml_new_tensor_4d(context, GGML_TYPE_F32, dim, q_len, heads, batch);
    struct ggml_tensor *k = ggml_new_tensor_4d(context, GGML_TYPE_F16, dim, kv_len, kv_heads, batch);
    struct ggml_tensor *v = ggml_new_tensor_4d(context, GGML_TYPE_F16, dim_v, kv_len, kv_heads, batch);
    struct ggml_tensor *mask = w->causal != 0 || w->window != 0 || w->document != 0
                                   ? ggml_new_tensor_4d(context, GGML_TYPE_F16, kv_len, q_len, 1, 1)
                                   : NULL;
    struct ggml_tensor *out = ggml_flash_attn_ext(
        context, q, k, v, mask, (float)(w->scale != 0 ? w->scale : 1 / sqrt(w->dim)), 0, (float)w->softcap);
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    ggml_backend_buffer_t buffer = NULL;
    int status = 1;
    if (!ggml_backend_supports_op(backend, out))
        fail("ggml's backend does not support the operation", "");
    else if (!(buffer = ggml_backend_alloc_ctx_tensors(context, backend)))
        fail("ggml has no memory for the tensors", "");
    else
        status = fill(q) || fill(k) || fill(v) || (mask && fill_mask(mask, w)) || measure(backend, context, out, w);
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return status;
}

int main(int argc, char **argv)
{
    workload w = {.batch = 1, .samples = 10, .min_time = 0.2, .warmup_time = 0.3, .seed = 1};
    if (argc < 2)
        return fail("usage: attention_ggml DEVICE KEY=VALUE...", "");
    if (parse(&w, argc - 2, argv + 2))
        return 1;
    state = 0x9e3779b97f4a7c15u * ((uint64_t)w.seed + 1);
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name(argv[1]);
    if (!device)
        return fail("ggml has no device ", argv[1]);
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    if (!backend)
        return fail("ggml cannot open ", argv[1]);
    printf("device %s\n", ggml_backend_dev_description(device));
    const int status = run(backend, &w);
    ggml_backend_free(backend);
    return status;
}

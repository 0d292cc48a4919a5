/* SPDX-License-Identifier: MIT */
/*
 * A ggml backend whose one operation is GGML_OP_FLASH_ATTN_EXT, computed by attune on the CPU in ggml's own memory.
 * ggml loads it from the path in GGML_BACKEND_PATH; its scheduler then gives it the attention of each graph, and the
 * CPU backend everything else. README.md has the recipe.
 *
 * GGML_ATTUNE_LOG=1 prints the reason of each refused operation to stderr.
 */
#include <attune/attune.h>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADS = 1024, MAX_BATCH = 256, LENT_BUFFERS = 64, TEXT = 512 };

/* All that a plan depends on: two operations with the same bytes share one. */
typedef struct shape {
    int64_t batch, kv_batch, heads, kv_heads, q_len, kv_len; /* lengths rounded up to powers of two */
    int64_t head_dim, head_dim_v, mask_batch, mask_heads;    /* 0 heads = no mask */
    float scale, max_bias, softcap;
    enum ggml_type k_type, v_type;
    int32_t sinks;
} shape;

typedef struct entry {
    struct entry *next;
    shape shape;
    bool serving; /* types that only a cache has: attune reads K and V as one page of each sequence */
    attune_expr *score;
    attune_plan *plan;
    attune_mask *mask;      /* the blocks of ggml's mask that are not all -inf */
    attune_buffer *slopes;  /* ALiBi: a factor of the mask for each head */
    attune_buffer *kv_len;  /* serving: the keys of each sequence */
    attune_buffer *scratch; /* the workspace */
    float slope[MAX_HEADS];
    int32_t lengths[MAX_BATCH];
} entry;

/* Memory of ggml, lent to attune. */
typedef struct lent {
    char *base;
    size_t size;
    attune_buffer *buffer;
} lent;

/* A device and its plans. Each ggml backend has one, used by one thread at a time, and the ggml device one for its
 * answers before there is a backend. */
typedef struct engine {
    attune_instance *instance;
    attune_device *device;
    int n_threads;
    entry *entries;
    lent lent[LENT_BUFFERS];
    uint32_t next_lent;
} engine;

/* ggml's own threads where both use the same OpenMP: the CPU backend's parallel regions are of the same pool. */
static void run_parallel(void *user, uint32_t count, void (*body)(void *context, uint32_t index), void *context)
{
    const engine *e = user;
    const int threads = (int)count < e->n_threads ? (int)count : e->n_threads;
    (void)threads; /* without OpenMP the calling thread does it all */
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (uint32_t i = 0; i < count; i++)
        body(context, i);
}

static int refuse(char *reason, const char *text)
{
    snprintf(reason, TEXT, "%s", text);
    return -1;
}

static void entry_destroy(entry *x)
{
    if (!x)
        return;
    attune_plan_destroy(x->plan);
    attune_mask_destroy(x->mask);
    attune_expr_destroy(x->score);
    attune_buffer_destroy(x->slopes);
    attune_buffer_destroy(x->kv_len);
    attune_buffer_destroy(x->scratch);
    free(x);
}

static void engine_destroy(engine *e)
{
    if (!e)
        return;
    for (entry *x = e->entries, *next; x; x = next) {
        next = x->next;
        entry_destroy(x);
    }
    for (uint32_t i = 0; i < LENT_BUFFERS; i++)
        attune_buffer_destroy(e->lent[i].buffer);
    attune_device_destroy(e->device);
    attune_instance_destroy(e->instance);
    free(e);
}

static engine *engine_create(void)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->n_threads = GGML_DEFAULT_N_THREADS;
    const attune_instance_desc desc = {.struct_size = sizeof desc, .parallel_for = {run_parallel, e}};
    if (attune_instance_create(&desc, &e->instance) || attune_device_open(e->instance, "cpu", &e->device)) {
        GGML_LOG_ERROR("attune: %s\n", attune_last_error());
        engine_destroy(e);
        return NULL;
    }
    return e;
}

/* ------------------------------------------------------------------------------------------------------------ shapes
 */

static attune_dtype dtype_of(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return ATTUNE_F32;
    case GGML_TYPE_F16:
        return ATTUNE_F16;
    case GGML_TYPE_BF16:
        return ATTUNE_BF16;
    case GGML_TYPE_Q8_0:
        return ATTUNE_Q8_0;
    case GGML_TYPE_Q4_0:
        return ATTUNE_Q4_0;
    default:
        return 0;
    }
}

static int64_t round_up(int64_t n)
{
    int64_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* ggml's dimensions are innermost first, its strides in bytes. False if a stride is not a whole number of blocks. */
static bool tensor_of(const struct ggml_tensor *t, attune_tensor *out)
{
    const size_t block = ggml_type_size(t->type);
    *out = (attune_tensor){.dtype = dtype_of(t->type), .rank = 4};
    for (int i = 0; i < 4; i++) {
        if (t->nb[i] % block || (i == 0 && t->nb[0] != block))
            return false;
        out->size[3 - i] = t->ne[i];
        out->stride[3 - i] = (int64_t)(t->nb[i] / block);
    }
    return true;
}

/* The shape of an operation, or why attune cannot have it. */
static int shape_of(const struct ggml_tensor *op, shape *s, char *reason)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    attune_tensor view;
    memset(s, 0, sizeof *s); /* compared by memcmp */
    memcpy(&s->scale, (const float *)op->op_params + 0, sizeof(float));
    memcpy(&s->max_bias, (const float *)op->op_params + 1, sizeof(float));
    memcpy(&s->softcap, (const float *)op->op_params + 2, sizeof(float));
    s->batch = q->ne[3], s->kv_batch = k->ne[3];
    s->heads = q->ne[2], s->kv_heads = k->ne[2];
    s->q_len = round_up(q->ne[1]), s->kv_len = round_up(k->ne[1]);
    s->head_dim = q->ne[0], s->head_dim_v = v->ne[0];
    s->k_type = k->type, s->v_type = v->type;
    s->sinks = op->src[4] != NULL;
    if (q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32)
        return refuse(reason, "q or the result is not f32");
    if (s->scale == 0)
        return refuse(reason, "a scale of 0, which is attune's for the default");
    for (int i = 1; i < 3; i++)
        if (!dtype_of(op->src[i]->type)) {
            snprintf(reason, TEXT, "no %s keys or values", ggml_type_name(op->src[i]->type));
            return -1;
        }
    if (!tensor_of(q, &view) || !tensor_of(k, &view) || !tensor_of(v, &view))
        return refuse(reason, "a row of q, k or v is not contiguous");
    if (v->ne[2] != k->ne[2] || v->ne[3] != k->ne[3])
        return refuse(reason, "k and v have different numbers of heads or sequences");
    if (s->heads > MAX_HEADS || s->batch > MAX_BATCH)
        return refuse(reason, "more heads or sequences than this example has space for");
    if (mask) {
        s->mask_batch = mask->ne[3], s->mask_heads = mask->ne[2];
        if (mask->type != GGML_TYPE_F16 || !tensor_of(mask, &view))
            return refuse(reason, "the mask is not f16 with contiguous rows");
        if (mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1])
            return refuse(reason, "the mask is smaller than q x k");
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- plans
 */

/* softcap(s) + slope[h] * mask[b, h, q, kv]. In a batch of sequences q is the position, in a call without one the row.
 */
static attune_status score_create(const engine *e, const shape *s, bool serving, attune_expr **score)
{
    const attune_symbol symbols[] = {{"m", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 4},
                                     {"slope", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1}};
    char text[TEXT] = "score";
    if (s->softcap != 0)
        snprintf(text, sizeof text, "%.9g * tanh(score / %.9g)", (double)s->softcap, (double)s->softcap);
    const size_t used = strlen(text);
    if (s->mask_heads)
        snprintf(text + used, sizeof text - used, " + %sm[b %% %lld, h %% %lld, %s, kv]",
                 s->max_bias > 0 ? "slope[h] * " : "", (long long)s->mask_batch, (long long)s->mask_heads,
                 serving ? "q - (kv_len - q_len)" : "q");
    else if (s->softcap == 0)
        return ATTUNE_OK;
    return attune_expr_create(e->instance, ATTUNE_EXPR_SCORE, text, symbols, 2, score);
}

/* ggml's: the slopes of a power of two of heads, then those between them. */
static void slopes_fill(const shape *s, float *slope)
{
    const int64_t power = (int64_t)1 << (int)floor(log2((double)s->heads));
    const float m0 = powf(2, -s->max_bias / (float)power), m1 = powf(2, -s->max_bias / 2 / (float)power);
    for (int64_t h = 0; h < s->heads; h++)
        slope[h] = h < power ? powf(m0, (float)(h + 1)) : powf(m1, (float)(2 * (h - power) + 1));
}

static attune_status entry_fill(const engine *e, entry *x)
{
    const shape *s = &x->shape;
    const attune_dtype k = dtype_of(s->k_type), v = dtype_of(s->v_type);
    attune_status status = score_create(e, s, x->serving, &x->score);
    attune_problem problem = {.struct_size = sizeof problem,
                              .dtype = ATTUNE_F32,
                              .head_dim = (uint32_t)s->head_dim,
                              .head_dim_v = (uint32_t)s->head_dim_v,
                              .batch = s->batch,
                              .kv_batch = s->kv_batch,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .q_len = s->q_len,
                              .kv_len = s->kv_len,
                              .scale = (double)s->scale,
                              .score = x->score,
                              .kv_dtype = k,
                              .sinks = s->sinks != 0};
    if (x->serving) {
        problem.tokens = s->batch * s->q_len;
        problem.v_dtype = v;
        if (!status)
            status = attune_buffer_wrap(e->device, x->lengths, sizeof x->lengths, &x->kv_len);
    } else if (s->mask_heads && (s->mask_batch == 1 || s->mask_batch == s->batch) &&
               (s->mask_heads == 1 || s->mask_heads == s->heads)) {
        const attune_mask_desc desc = {.struct_size = sizeof desc,
                                       .batch = s->batch,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .q_len = s->q_len,
                                       .kv_len = s->kv_len};
        if (!status)
            status = attune_mask_create_tensor(e->device, &desc, ATTUNE_F16, s->mask_batch, s->mask_heads, &x->mask);
        if (!status)
            status = attune_problem_set_mask(&problem, x->mask);
    }
    if (!status)
        status = attune_plan_create(e->device, &problem, NULL, &x->plan);
    if (!status && attune_plan_workspace_size(x->plan))
        status = attune_buffer_create(e->device, attune_plan_workspace_size(x->plan), &x->scratch);
    slopes_fill(s, x->slope);
    if (!status)
        status = attune_buffer_wrap(e->device, x->slope, sizeof x->slope, &x->slopes);
    return status;
}

/* The plan of an operation's shape, made where it is the first; NULL, with the reason, if attune has none. */
static entry *entry_find(engine *e, const struct ggml_tensor *op, char *reason)
{
    shape s;
    if (shape_of(op, &s, reason))
        return NULL;
    for (entry *x = e->entries; x; x = x->next)
        if (!memcmp(&x->shape, &s, sizeof s))
            return x;
    entry *x = calloc(1, sizeof *x);
    if (!x) {
        refuse(reason, "no memory");
        return NULL;
    }
    x->shape = s;
    x->serving = s.k_type != s.v_type || ggml_is_quantized(s.k_type);
    if (entry_fill(e, x)) {
        refuse(reason, attune_last_error());
        entry_destroy(x);
        return NULL;
    }
    x->next = e->entries;
    e->entries = x;
    return x;
}

/* ----------------------------------------------------------------------------------------------------------- the call
 */

/* Lends the ggml buffer of a tensor, once: tensors of a cache or of a graph share one. */
static attune_status lend(engine *e, const struct ggml_tensor *t, attune_tensor *out)
{
    ggml_backend_buffer_t owner = t->view_src ? t->view_src->buffer : t->buffer;
    char *base = owner ? ggml_backend_buffer_get_base(owner) : NULL, *data = t->data;
    size_t size = owner ? ggml_backend_buffer_get_size(owner) : 0;
    if (data < base || data + ggml_nbytes(t) > base + size) {
        base = data;
        size = ggml_nbytes(t);
    }
    lent *l = NULL;
    for (uint32_t i = 0; i < LENT_BUFFERS && !l; i++)
        if (e->lent[i].base == base && e->lent[i].size == size)
            l = &e->lent[i];
    if (!l) {
        l = &e->lent[e->next_lent++ % LENT_BUFFERS];
        attune_buffer_destroy(l->buffer);
        *l = (lent){NULL, 0, NULL};
        const attune_status status = attune_buffer_wrap(e->device, base, size, &l->buffer);
        if (status)
            return status;
        l->base = base;
        l->size = size;
    }
    tensor_of(t, out);
    out->buffer = l->buffer;
    out->offset = (uint64_t)(data - base);
    return ATTUNE_OK;
}

static attune_status attend(engine *e, entry *x, const struct ggml_tensor *op)
{
    const shape *s = &x->shape;
    const int64_t q_len = op->src[0]->ne[1], kv_len = op->src[1]->ne[1];
    attune_tensor k, v, mask = {.rank = 4};
    attune_forward_args args = {.struct_size = sizeof args, .workspace = x->scratch};
    attune_status status = lend(e, op->src[0], &args.q);
    if (!status)
        status = lend(e, op->src[1], &k);
    if (!status)
        status = lend(e, op->src[2], &v);
    if (!status)
        status = lend(e, op, &args.o);
    if (!status && op->src[3])
        status = lend(e, op->src[3], &mask);
    if (!status && op->src[4]) {
        status = lend(e, op->src[4], &args.sinks);
        args.sinks.rank = 1;
        args.sinks.size[0] = s->heads;
        args.sinks.stride[0] = 1;
    }
    if (status)
        return status;

    /* The result is [batch, q_len, heads, head_dim_v]. */
    const int64_t stride = args.o.stride[1];
    args.o.size[1] = s->heads;
    args.o.size[2] = q_len;
    args.o.stride[1] = args.o.stride[2];
    args.o.stride[2] = stride;

    const attune_tensor slopes = {x->slopes, 0, ATTUNE_F32, 1, {s->heads}, {1}};
    const attune_capture captures[] = {{"m", mask}, {"slope", slopes}};
    args.captures = captures;
    args.capture_count = 2;
    const attune_cache cache = {.struct_size = sizeof cache, .k = k, .v = v};
    const attune_batch batch = {.struct_size = sizeof batch, .kv_len = {x->kv_len, 0, ATTUNE_I32, 1, {s->batch}, {1}}};
    if (x->serving) {
        for (int64_t b = 0; b < s->batch; b++)
            x->lengths[b] = (int32_t)kv_len;
        args.cache = &cache;
        args.batch = &batch;
    } else {
        args.k = k;
        args.v = v;
        args.mask = x->mask;
    }
    if (x->mask) {
        attune_tensor lists = mask;
        lists.size[2] = q_len;
        lists.size[3] = kv_len;
        status = attune_mask_update(x->mask, attune_device_queue(e->device), &lists, NULL);
    }
    return status ? status : attune_forward(x->plan, attune_device_queue(e->device), &args, NULL);
}

/* ----------------------------------------------------------------------------------------------------- ggml's backend
 */

static const char *backend_name(ggml_backend_t backend)
{
    (void)backend;
    return "attune";
}

static void backend_free(ggml_backend_t backend)
{
    engine_destroy(backend->context);
    free(backend);
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    engine *e = backend->context;
    char reason[TEXT];
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *op = ggml_graph_node(graph, i);
        if (op->op != GGML_OP_FLASH_ATTN_EXT || ggml_is_empty(op))
            continue;
        entry *x = entry_find(e, op, reason);
        if (!x || attend(e, x, op)) {
            GGML_LOG_ERROR("attune: %s\n", x ? attune_last_error() : reason);
            return GGML_STATUS_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void backend_set_n_threads(ggml_backend_t backend, int n_threads)
{
    ((engine *)backend->context)->n_threads = n_threads;
}

static const char *device_name(ggml_backend_dev_t dev)
{
    (void)dev;
    return "attune";
}

static const char *device_description(ggml_backend_dev_t dev)
{
    (void)dev;
    return "attention by attune on the CPU";
}

static void device_memory(ggml_backend_dev_t dev, size_t *available, size_t *total)
{
    (void)dev;
    *available = *total = 0;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void device_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props)
{
    *props = (struct ggml_backend_dev_props){.name = device_name(dev),
                                             .description = device_description(dev),
                                             .type = device_type(dev),
                                             .caps = {.buffer_from_host_ptr = true, .mmap_support = true}};
}

static ggml_backend_t device_backend(ggml_backend_dev_t dev, const char *params)
{
    static ggml_guid guid = {0x61, 0x74, 0x74, 0x75, 0x6e, 0x65, 0x2d, 0x67,
                             0x67, 0x6d, 0x6c, 0x2d, 0x63, 0x70, 0x75, 0x31};
    (void)params;
    engine *e = engine_create();
    struct ggml_backend *backend = calloc(1, sizeof *backend);
    if (!e || !backend) {
        engine_destroy(e);
        free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){
        .guid = &guid,
        .iface = {.get_name = backend_name, .free = backend_free, .graph_compute = backend_compute},
        .device = dev,
        .context = e,
    };
    return backend;
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return ggml_backend_cpu_buffer_type();
}

static ggml_backend_buffer_t device_buffer(ggml_backend_dev_t dev, void *memory, size_t size, size_t max_tensor_size)
{
    (void)dev, (void)max_tensor_size;
    return ggml_backend_cpu_buffer_from_ptr(memory, size);
}

static bool device_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static engine *planner;
    char reason[TEXT];
    (void)dev;
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    case GGML_OP_FLASH_ATTN_EXT:
        break;
    default:
        return false;
    }
    pthread_mutex_lock(&lock);
    if (!planner)
        planner = engine_create();
    const bool found = planner && entry_find(planner, op, reason);
    if (planner && !found && getenv("GGML_ATTUNE_LOG"))
        fprintf(stderr, "attune refuses %s: %s\n", op->name, reason);
    pthread_mutex_unlock(&lock);
    return found;
}

static bool device_supports_buffer(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type)
{
    (void)dev;
    return ggml_backend_buft_is_host(type);
}

static const char *reg_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "attune";
}

static size_t reg_devices(ggml_backend_reg_t reg)
{
    (void)reg;
    return 1;
}

static ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t index)
{
    static struct ggml_backend_device device = {
        .iface = {.get_name = device_name,
                  .get_description = device_description,
                  .get_memory = device_memory,
                  .get_type = device_type,
                  .get_props = device_props,
                  .init_backend = device_backend,
                  .get_buffer_type = device_buffer_type,
                  .buffer_from_host_ptr = device_buffer,
                  .supports_op = device_supports_op,
                  .supports_buft = device_supports_buffer},
    };
    (void)index;
    device.reg = reg;
    return &device;
}

static void *reg_function(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    return strcmp(name, "ggml_backend_set_n_threads") ? NULL : (void *)backend_set_n_threads;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void)
{
    static struct ggml_backend_reg reg = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {.get_name = reg_name,
                  .get_device_count = reg_devices,
                  .get_device = reg_device,
                  .get_proc_address = reg_function},
    };
    return &reg;
}

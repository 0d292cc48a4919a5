/* SPDX-License-Identifier: MIT */
/*
 * A ggml backend whose one operation is GGML_OP_FLASH_ATTN_EXT, computed by attune on the CPU in ggml's own memory.
 * ggml loads it from the path in GGML_BACKEND_PATH; its scheduler then gives it the attention of each graph, and the
 * CPU backend everything else. README.md has the recipe.
 *
 * GGML_ATTUNE_LOG=1 prints the reason of each refused operation to stderr.
 */
#include "operation.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENT_BUFFERS = 64 };

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
    operation_plans *plans;
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

static void engine_destroy(engine *e)
{
    if (!e)
        return;
    operation_plans_destroy(e->plans);
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
    e->plans = operation_plans_create(e->instance, e->device, 1);
    if (!e->plans) {
        engine_destroy(e);
        return NULL;
    }
    return e;
}

/* Lends the ggml buffer of a tensor, once: tensors of a cache or of a graph share one. */
static attune_status lend(void *user, const struct ggml_tensor *t, attune_buffer **buffer, uint64_t *offset)
{
    engine *e = user;
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
        *l = (struct lent){NULL, 0, NULL};
        const attune_status status = attune_buffer_wrap(e->device, base, size, &l->buffer);
        if (status)
            return status;
        l->base = base;
        l->size = size;
    }
    *buffer = l->buffer;
    *offset = (uint64_t)(data - base);
    return ATTUNE_OK;
}

static attune_status attend(engine *e, operation *x, const struct ggml_tensor *op)
{
    operation_call call;
    const uint64_t bytes = attune_plan_workspace_size(x->plan);
    attune_status status = operation_call_fill(x, op, lend, e, &call);
    if (!status && bytes && !x->scratch)
        status = attune_buffer_create(e->device, bytes, &x->scratch);
    call.args.workspace = x->scratch;
    if (!status && x->mask)
        status = attune_mask_update(x->mask, attune_device_queue(e->device), &call.lists, NULL);
    return status ? status : attune_forward(x->plan, attune_device_queue(e->device), &call.args, NULL);
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
    char reason[OPERATION_TEXT];
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        const struct ggml_tensor *op = ggml_graph_node(graph, i);
        if (op->op != GGML_OP_FLASH_ATTN_EXT || ggml_is_empty(op))
            continue;
        operation *x = operation_find(e->plans, op, reason);
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
    char reason[OPERATION_TEXT];
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
    const bool found = planner && operation_find(planner->plans, op, reason);
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

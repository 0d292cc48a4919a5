/* SPDX-License-Identifier: MIT */
/* Attention recorded into the command buffers of ggml's Vulkan backend (vulkan-route.h). */
#include "vulkan-route.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operation.h"

enum { LENT_BUFFERS = 256, BLOCK_ROWS = 32 };

struct attune_route_device {
    attune_instance *instance;
    attune_device *device;
    pthread_mutex_t lock;   /* of answers */
    operation_plans *plans; /* those that were made for an answer: ggml has no shader for their shapes */
    choice_times *times;    /* NULL = none */
    choice_matrices matrices;
    bool host, takes_all;
};

/* A buffer of ggml's, lent to attune. One of the same handle, size and address is the same memory. */
typedef struct lent {
    attune_route_memory memory;
    attune_buffer *buffer;
} lent;

struct attune_route {
    attune_route_device *device;
    operation_plans *plans;
    lent lent[LENT_BUFFERS];
    uint32_t next_lent;
    uint64_t recorded; /* operations */
    void (*find)(void *user, const struct ggml_tensor *tensor, attune_route_memory *memory);
    void *find_user;
};

static bool is_logging(void)
{
    const char *log = getenv("GGML_ATTUNE_LOG");
    return log && *log && strcmp(log, "0") != 0;
}

static void log_refusal(const struct ggml_tensor *op, const char *reason)
{
    if (is_logging())
        fprintf(stderr, "attune refuses %s: %s\n", op->name, reason);
}

static void read_times(attune_route_device *d, const char *device)
{
    char reason[CHOICE_TEXT];
    const char *path = getenv("GGML_ATTUNE_TIMES");
    if (!path || !*path || d->takes_all)
        return;
    d->times = choice_times_read(path, device, reason);
    if (!d->times)
        fprintf(stderr, "attune: GGML_ATTUNE_TIMES=%s is not used: %s\n", path, reason);
}

attune_route_device *attune_route_device_open(const attune_vulkan_device_desc *desc, choice_matrices matrices)
{
    const char *choice = getenv("GGML_ATTUNE");
    if (choice && !strcmp(choice, "0"))
        return NULL;
    attune_route_device *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    if (pthread_mutex_init(&d->lock, NULL)) {
        free(d);
        return NULL;
    }
    const attune_instance_desc instance = {.struct_size = sizeof instance};
    if (attune_instance_create(&instance, &d->instance) || attune_vulkan_device_open(d->instance, desc, &d->device)) {
        fprintf(stderr, "attune: %s\n", attune_last_error());
        attune_route_device_close(d);
        return NULL;
    }
    attune_device_info info = {.struct_size = sizeof info};
    d->plans = operation_plans_create(d->instance, d->device, BLOCK_ROWS);
    if (!d->plans || attune_device_info_get(d->device, &info)) {
        attune_route_device_close(d);
        return NULL;
    }
    d->matrices = matrices;
    d->host = info.limits.host;
    d->takes_all = choice && !strcmp(choice, "1");
    read_times(d, info.name);
    return d;
}

void attune_route_device_close(attune_route_device *d)
{
    if (!d)
        return;
    operation_plans_destroy(d->plans);
    choice_times_free(d->times);
    attune_device_destroy(d->device);
    attune_instance_destroy(d->instance);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

bool attune_route_supports(attune_route_device *d, const struct ggml_tensor *op, bool ggml_has_shader)
{
    char reason[OPERATION_TEXT];
    if (!d)
        return false;
    pthread_mutex_lock(&d->lock);
    const bool found =
        ggml_has_shader ? operation_kernel(d->plans, op, reason) != NULL : operation_find(d->plans, op, reason) != NULL;
    pthread_mutex_unlock(&d->lock);
    if (!found)
        log_refusal(op, reason);
    return found;
}

attune_route *attune_route_create(attune_route_device *device)
{
    attune_route *r = device ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->device = device;
    r->plans = operation_plans_create(device->instance, device->device, BLOCK_ROWS);
    if (!r->plans) {
        free(r);
        return NULL;
    }
    return r;
}

void attune_route_destroy(attune_route *r)
{
    if (!r)
        return;
    if (is_logging())
        fprintf(stderr, "attune recorded %llu operations\n", (unsigned long long)r->recorded);
    operation_plans_destroy(r->plans);
    for (uint32_t i = 0; i < LENT_BUFFERS; i++)
        attune_buffer_destroy(r->lent[i].buffer);
    free(r);
}

static choice_case case_of(const struct ggml_tensor *op)
{
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2];
    choice_case c = {.head_dim = q->ne[0],
                     .head_dim_v = v->ne[0],
                     .heads = q->ne[2],
                     .kv_heads = k->ne[2],
                     .rows = q->ne[1],
                     .keys = k->ne[1],
                     .mask = op->src[3] != NULL};
    snprintf(c.k_type, sizeof c.k_type, "%s", ggml_type_name(k->type));
    snprintf(c.v_type, sizeof c.v_type, "%s", ggml_type_name(v->type));
    return c;
}

/* Whether an operation is attune's, or why it is left to ggml. */
static bool is_chosen(attune_route *r, const struct ggml_tensor *op, char reason[OPERATION_TEXT])
{
    attune_route_device *d = r->device;
    if (d->takes_all)
        return true;
    pthread_mutex_lock(&d->lock);
    const bool alone = operation_is_made(d->plans, op);
    pthread_mutex_unlock(&d->lock);
    if (alone)
        return true;
    const char *kernel = operation_kernel(r->plans, op, reason);
    const choice_case c = case_of(op);
    return kernel && choice_is_attune(d->times, &c, d->matrices, kernel, d->host, reason);
}

uint64_t attune_route_workspace(attune_route *r, const struct ggml_tensor *op)
{
    char reason[OPERATION_TEXT];
    if (!r)
        return 0;
    const operation *x = is_chosen(r, op, reason) ? operation_find(r->plans, op, reason) : NULL;
    if (!x) {
        log_refusal(op, reason);
        return 0;
    }
    const uint64_t bytes = attune_plan_workspace_size(x->plan);
    return bytes ? bytes : 1;
}

static attune_status lend_memory(attune_route *r, const attune_route_memory *m, attune_buffer **buffer)
{
    lent *l = NULL;
    for (uint32_t i = 0; i < LENT_BUFFERS && !l; i++)
        if (r->lent[i].buffer && r->lent[i].memory.buffer == m->buffer && r->lent[i].memory.size == m->size &&
            r->lent[i].memory.address == m->address)
            l = &r->lent[i];
    if (!l) {
        l = &r->lent[r->next_lent++ % LENT_BUFFERS];
        attune_buffer_destroy(l->buffer);
        l->buffer = NULL;
        /* Kernels read whole words of 64 bits: a tensor in the last bytes of an odd size is refused. */
        const attune_status status =
            attune_vulkan_buffer_wrap(r->device->device, m->buffer, 0, m->size / 8 * 8, &l->buffer);
        if (status)
            return status;
        l->memory = *m;
    }
    *buffer = l->buffer;
    return ATTUNE_OK;
}

static attune_status lend(void *user, const struct ggml_tensor *t, attune_buffer **buffer, uint64_t *offset)
{
    attune_route *r = user;
    attune_route_memory m;
    r->find(r->find_user, t, &m);
    *offset = m.offset;
    return lend_memory(r, &m, buffer);
}

bool attune_route_record(attune_route *r, const struct ggml_tensor *op, VkCommandBuffer commands,
                         const attune_route_memory *workspace,
                         void (*find)(void *user, const struct ggml_tensor *tensor, attune_route_memory *memory),
                         void *user)
{
    char reason[OPERATION_TEXT];
    operation_call call;
    const operation *x = operation_find(r->plans, op, reason);
    if (!x) {
        log_refusal(op, reason);
        return false;
    }
    r->find = find;
    r->find_user = user;
    attune_status status = operation_call_fill(x, op, lend, r, &call);
    if (!status)
        status = lend_memory(r, workspace, &call.args.workspace);
    call.args.workspace_offset = workspace->offset;
    if (!status && x->mask)
        status = attune_vulkan_mask_update_record(x->mask, commands, &call.lists);
    if (!status)
        status = attune_vulkan_forward_record(x->plan, commands, &call.args);
    if (status)
        log_refusal(op, attune_last_error());
    else
        r->recorded++;
    return !status;
}

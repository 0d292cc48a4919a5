/* SPDX-License-Identifier: MIT */
/*
 * Attention on an engine's OpenCL objects: its context, its command queue, and one cl_mem that holds q, k, v and o one
 * after the other. attune copies nothing and makes no queue of its own for the call.
 *
 *     cc -O2 lend_opencl.c $(pkg-config --cflags --libs attune) -lOpenCL -lm && ./a.out [--out-of-order]
 *
 * The exit status is 0 if o is right, and 77 if there is no OpenCL device, or only one that attune refuses.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <attune/attune.h>
#include <attune/opencl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    if ((call) != ATTUNE_OK)                                                                                           \
    return fprintf(stderr, "%s\n", attune_last_error()), false
#define TRY_CL(call)                                                                                                   \
    if ((error = (call)) != CL_SUCCESS)                                                                                \
    return fprintf(stderr, "%s gives %d\n", #call, (int)error), false

enum { HEADS = 2, LENGTH = 100, DIM = 32, ELEMENTS = HEADS * LENGTH * DIM, BYTES = 4 * ELEMENTS };
enum { Q, K, V, O, TENSORS };

static float data[TENSORS][ELEMENTS], o[ELEMENTS];

typedef struct engine {
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_mem memory;
} engine;

static bool engine_create(engine *e, bool out_of_order)
{
    cl_int error;
    e->context = clCreateContext(NULL, 1, &e->device, NULL, NULL, &error);
    TRY_CL(error);
    e->queue =
        clCreateCommandQueue(e->context, e->device, out_of_order ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &error);
    TRY_CL(error);
    e->memory = clCreateBuffer(e->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof data, data, &error);
    TRY_CL(error);
    return true;
}

/* The objects count their users: attune's copies of these handles stay valid. */
static void engine_release(engine *e)
{
    if (e->memory)
        clReleaseMemObject(e->memory);
    if (e->queue)
        clReleaseCommandQueue(e->queue);
    if (e->context)
        clReleaseContext(e->context);
}

typedef struct attention {
    attune_instance *instance;
    attune_device *device;
    attune_queue *queue;
    attune_expr *causal;
    attune_mask *mask;
    attune_plan *plan;
    attune_buffer *buffers[TENSORS], *workspace;
    bool refused; /* the device */
} attention;

static bool attention_create(attention *a, const engine *e)
{
    const attune_opencl_device_desc lent = {.struct_size = sizeof lent, .context = e->context, .device = e->device};
    const attune_mask_desc mask = {.struct_size = sizeof mask, .q_len = LENGTH, .kv_len = LENGTH};
    attune_problem problem = {.struct_size = sizeof problem, .head_dim = DIM, .heads = HEADS, .q_len = LENGTH};
    TRY(attune_instance_create(NULL, &a->instance));
    const attune_status opened = attune_opencl_device_open(a->instance, &lent, &a->device);
    a->refused = opened == ATTUNE_UNAVAILABLE;
    TRY(opened);
    TRY(attune_opencl_queue_wrap(a->device, e->queue, &a->queue));
    TRY(attune_expr_create(a->instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &a->causal));
    TRY(attune_mask_create(a->instance, &mask, a->causal, NULL, 0, NULL, 0, &a->mask));
    TRY(attune_mask_upload(a->mask, a->device));
    TRY(attune_problem_set_mask(&problem, a->mask));
    TRY(attune_plan_create(a->device, &problem, NULL, &a->plan));
    for (int i = 0; i < TENSORS; i++)
        TRY(attune_opencl_buffer_wrap(a->device, e->memory, (uint64_t)i * BYTES, BYTES, &a->buffers[i]));
    if (attune_plan_workspace_size(a->plan))
        TRY(attune_buffer_create(a->device, attune_plan_workspace_size(a->plan), &a->workspace));
    return true;
}

static void attention_destroy(attention *a)
{
    attune_buffer_destroy(a->workspace);
    for (int i = 0; i < TENSORS; i++)
        attune_buffer_destroy(a->buffers[i]);
    attune_plan_destroy(a->plan);
    attune_mask_destroy(a->mask);
    attune_expr_destroy(a->causal);
    attune_opencl_queue_destroy(a->queue);
    attune_device_destroy(a->device);
    attune_instance_destroy(a->instance);
}

static attune_tensor tensor_of(const attention *a, int i)
{
    return (attune_tensor){.buffer = a->buffers[i], .dtype = ATTUNE_F32, .rank = 4, .size = {1, HEADS, LENGTH, DIM}};
}

/* On a queue in order the read follows by itself; on another one the engine waits in between. */
static bool attend(const attention *a, const engine *e, bool out_of_order)
{
    cl_int error;
    attune_completion done;
    const attune_forward_args args = {.struct_size = sizeof args,
                                      .q = tensor_of(a, Q),
                                      .k = tensor_of(a, K),
                                      .v = tensor_of(a, V),
                                      .o = tensor_of(a, O),
                                      .mask = a->mask,
                                      .workspace = a->workspace};
    TRY(attune_forward(a->plan, a->queue, &args, &done));
    if (out_of_order)
        TRY(attune_completion_wait(done, UINT64_MAX));
    TRY_CL(clEnqueueReadBuffer(e->queue, e->memory, CL_TRUE, O * (size_t)BYTES, BYTES, o, 0, NULL, NULL));
    return true;
}

static double expected(int h, int q, int column)
{
    double sum = 0, weights = 0;
    for (int kv = 0; kv <= q; kv++) {
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)data[Q][(h * LENGTH + q) * DIM + d] * (double)data[K][(h * LENGTH + kv) * DIM + d];
        const double weight = exp(score / sqrt(DIM));
        weights += weight;
        sum += weight * (double)data[V][(h * LENGTH + kv) * DIM + column];
    }
    return sum / weights;
}

static double worst(void)
{
    double most = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        const double off = fabs((double)o[i] - expected(i / DIM / LENGTH, i / DIM % LENGTH, i % DIM));
        most = off <= most ? most : off; /* NaN too */
    }
    return most;
}

static bool find_device(cl_device_id *device)
{
    cl_platform_id platforms[16];
    cl_uint count = 0;
    if (clGetPlatformIDs(16, platforms, &count))
        return false;
    for (cl_uint i = 0; i < count && i < 16; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, device, NULL) == CL_SUCCESS)
            return true;
    return false;
}

int main(int count, char **words)
{
    const bool out_of_order = count == 2 && !strcmp(words[1], "--out-of-order");
    if (count > 1 && !out_of_order)
        return fprintf(stderr, "usage: %s [--out-of-order]\n", words[0]), 2;
    engine e = {.context = NULL};
    attention a = {.instance = NULL};
    uint32_t state = 1;
    if (!find_device(&e.device))
        return puts("there is no OpenCL device"), 77;
    for (int i = 0; i < O * ELEMENTS; i++) {
        state = state * 1664525 + 1013904223;
        data[i / ELEMENTS][i % ELEMENTS] = (float)(state >> 8) / (float)(1 << 23) - 1;
    }
    const bool done = engine_create(&e, out_of_order) && attention_create(&a, &e) && attend(&a, &e, out_of_order);
    engine_release(&e);
    attention_destroy(&a);
    if (!done)
        return a.refused ? 77 : 1;
    printf("the largest error is %.1e\n", worst());
    return worst() < 1e-5 ? 0 : 1;
}

/* SPDX-License-Identifier: MIT */
#include "bench/timing/cuda_graph.h"

#include "bench/timing/row_parts.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#if ATTUNE_HAVE_CUDA
#include <attune/cuda.h>
#else
/* The library has no device then that a graph is opened for. */
#define attune_cuda_queue_wrap(device, stream, queue) ATTUNE_UNAVAILABLE
#define attune_cuda_queue_destroy(queue)              ((void)(queue))
#endif

/* The driver's functions, which the program finds as the library does: NVIDIA's headers are not needed. */
typedef int cu_result;
struct cuda_graph {
    void *library, *context, *stream, *recorded, *made; /* CUcontext, CUstream, CUgraph, CUgraphExec */
    int device;
    bool retained;
    attune_queue *queue;
    cu_result (*device_get)(int *device, int ordinal);
    cu_result (*context_retain)(void **context, int device), (*context_release)(int device);
    cu_result (*context_push)(void *context), (*context_pop)(void **context);
    cu_result (*stream_create)(void **stream, unsigned flags), (*stream_destroy)(void *stream);
    cu_result (*stream_synchronize)(void *stream);
    cu_result (*begin)(void *stream, int mode), (*end)(void *stream, void **graph);
    cu_result (*instantiate)(void **made, void *graph, unsigned long long flags);
    cu_result (*launch)(void *made, void *stream);
    cu_result (*destroy)(void *graph), (*destroy_made)(void *made);
};

#define STREAM_NON_BLOCKING  1 /* CU_STREAM_NON_BLOCKING */
#define CAPTURE_THREAD_LOCAL 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may use the driver */

static bool find(cuda_graph *g, const char *name, void *function, report_row *row)
{
    void *symbol = dlsym(g->library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol || row_fail(row, REPORT_UNSUPPORTED, "NVIDIA's driver has no %s: update it", name);
}

static bool good(cu_result result, const char *what, report_row *row)
{
    return !result || row_fail(row, REPORT_FAILED, "%s gave CUresult %d", what, result);
}

static bool open_library(cuda_graph *g, report_row *row)
{
    g->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!g->library)
        return row_fail(row, REPORT_UNSUPPORTED, "%s", dlerror());
    return find(g, "cuDeviceGet", &g->device_get, row) &&
           find(g, "cuDevicePrimaryCtxRetain", &g->context_retain, row) &&
           find(g, "cuDevicePrimaryCtxRelease_v2", &g->context_release, row) &&
           find(g, "cuCtxPushCurrent_v2", &g->context_push, row) &&
           find(g, "cuCtxPopCurrent_v2", &g->context_pop, row) && find(g, "cuStreamCreate", &g->stream_create, row) &&
           find(g, "cuStreamDestroy_v2", &g->stream_destroy, row) &&
           find(g, "cuStreamSynchronize", &g->stream_synchronize, row) &&
           find(g, "cuStreamBeginCapture_v2", &g->begin, row) && find(g, "cuStreamEndCapture", &g->end, row) &&
           find(g, "cuGraphInstantiateWithFlags", &g->instantiate, row) && find(g, "cuGraphLaunch", &g->launch, row) &&
           find(g, "cuGraphDestroy", &g->destroy, row) && find(g, "cuGraphExecDestroy", &g->destroy_made, row);
}

/* Streams and graphs are made in the current context. The library leaves none current, and its own calls are in the
 * device's primary one. */
static bool enter(cuda_graph *g, report_row *row)
{
    return good(g->context_push(g->context), "cuCtxPushCurrent", row);
}

static bool leave(cuda_graph *g, cu_result result, const char *what, report_row *row)
{
    void *previous;
    return good(g->context_pop(&previous), "cuCtxPopCurrent", row) && good(result, what, row);
}

static bool open_stream(cuda_graph *g, int ordinal, report_row *row)
{
    if (!good(g->device_get(&g->device, ordinal), "cuDeviceGet", row) ||
        !good(g->context_retain(&g->context, g->device), "cuDevicePrimaryCtxRetain", row))
        return false;
    g->retained = true;
    return enter(g, row) && leave(g, g->stream_create(&g->stream, STREAM_NON_BLOCKING), "cuStreamCreate", row);
}

bool cuda_graph_open(attune_device *device, cuda_graph **graph, report_row *row)
{
    attune_device_info info = {.struct_size = sizeof info};
    int ordinal;
    (void)attune_device_info_get(device, &info);
    if (sscanf(info.id, "cuda:%d", &ordinal) != 1)
        return row_fail(row, REPORT_UNSUPPORTED, "%s has no CUDA graphs: --graph is for CUDA devices", info.id);
    cuda_graph *g = *graph = calloc(1, sizeof *g);
    if (!g)
        return row_fail(row, REPORT_FAILED, "out of memory");
    if (!open_library(g, row) || !open_stream(g, ordinal, row))
        return false;
    const attune_status status = attune_cuda_queue_wrap(device, g->stream, &g->queue);
    return status == ATTUNE_OK || row_fail_call(row, status, "queue");
}

void cuda_graph_close(cuda_graph *graph)
{
    cuda_graph *g = graph;
    if (!g)
        return;
    attune_cuda_queue_destroy(g->queue);
    if (g->made)
        (void)g->destroy_made(g->made);
    if (g->recorded)
        (void)g->destroy(g->recorded);
    if (g->stream)
        (void)g->stream_destroy(g->stream);
    if (g->retained)
        (void)g->context_release(g->device);
    if (g->library)
        (void)dlclose(g->library);
    free(g);
}

attune_queue *cuda_graph_queue(const cuda_graph *graph)
{
    return graph->queue;
}

bool cuda_graph_begin(cuda_graph *graph, report_row *row)
{
    return good(graph->begin(graph->stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture", row);
}

bool cuda_graph_end(cuda_graph *graph, report_row *row)
{
    return good(graph->end(graph->stream, &graph->recorded), "cuStreamEndCapture", row) && enter(graph, row) &&
           leave(graph, graph->instantiate(&graph->made, graph->recorded, 0), "cuGraphInstantiateWithFlags", row);
}

bool cuda_graph_run(cuda_graph *graph, report_row *row)
{
    return enter(graph, row) && leave(graph, graph->launch(graph->made, graph->stream), "cuGraphLaunch", row) &&
           good(graph->stream_synchronize(graph->stream), "cuStreamSynchronize", row);
}

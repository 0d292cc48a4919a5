/* SPDX-License-Identifier: MIT */
/* Streams of the model and CUDA graphs: the launches and copies of a stream that captures are kept, and done again by
 * each launch of the graph. What CUDA refuses while a stream captures is refused here. */
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"
#include "tests/model/graphs.h"

#define CU_CAPTURE_UNSUPPORTED 900
#define CU_CAPTURE_INVALID     901
#define CU_ILLEGAL_STATE       401

typedef struct node {
    launch_call launch; /* without a function: a copy */
    void *parameters[MODEL_PARAMETERS];
    unsigned long long to, from;
    size_t size;
} node;

/* Graphs that are instantiated share their nodes with the one that they are of. */
typedef struct graph {
    node *nodes;
    size_t count, space;
    int users;
} graph;

typedef struct stream {
    graph *captured; /* NULL = what is called is done at once */
} stream;

int model_stream_create(void **made)
{
    *made = calloc(1, sizeof(stream));
    return *made ? CU_SUCCESS : CU_OUT_OF_MEMORY;
}

/* NULL and the default streams, which are small integers, are never captured here. */
static stream *stream_of(void *handle)
{
    return (uintptr_t)handle < 16 ? NULL : handle;
}

bool model_stream_captures(void *handle)
{
    const stream *s = stream_of(handle);
    return s && s->captured;
}

static void release(graph *g)
{
    if (--g->users)
        return;
    for (size_t i = 0; i < g->count; i++)
        for (int j = 0; j < g->nodes[i].launch.count; j++)
            free(g->nodes[i].parameters[j]);
    free(g->nodes);
    free(g);
}

int model_stream_destroy(void *handle)
{
    stream *s = stream_of(handle);
    if (s && s->captured)
        release(s->captured);
    free(s);
    return CU_SUCCESS;
}

static node *add_node(void *handle)
{
    graph *g = stream_of(handle)->captured;
    if (g->count == g->space) {
        const size_t space = 2 * g->space + 8;
        node *grown = realloc(g->nodes, space * sizeof *grown);
        if (!grown)
            return NULL;
        g->nodes = grown;
        g->space = space;
    }
    node *n = &g->nodes[g->count++];
    memset(n, 0, sizeof *n);
    return n;
}

int model_capture_launch(void *handle, const launch_call *launch)
{
    node *n = add_node(handle);
    if (!n)
        return CU_OUT_OF_MEMORY;
    n->launch = *launch;
    for (int i = 0; i < launch->count; i++) {
        /* A multiple of the alignment, which a tensor map requires. */
        n->parameters[i] = aligned_alloc(64, (launch->sizes[i] + 63) / 64 * 64);
        if (!n->parameters[i])
            return CU_OUT_OF_MEMORY;
        memcpy(n->parameters[i], launch->parameters[i], launch->sizes[i]);
    }
    return CU_SUCCESS;
}

int model_capture_copy(void *handle, unsigned long long to, unsigned long long from, size_t size)
{
    node *n = add_node(handle);
    if (!n)
        return CU_OUT_OF_MEMORY;
    n->to = to, n->from = from, n->size = size;
    return CU_SUCCESS;
}

int cuStreamBeginCapture_v2(void *handle, int mode);
int cuStreamBeginCapture_v2(void *handle, int mode)
{
    stream *s = stream_of(handle);
    (void)mode;
    if (!s)
        return CU_CAPTURE_UNSUPPORTED;
    if (s->captured)
        return CU_ILLEGAL_STATE;
    s->captured = calloc(1, sizeof *s->captured);
    if (!s->captured)
        return CU_OUT_OF_MEMORY;
    s->captured->users = 1;
    return CU_SUCCESS;
}

int cuStreamEndCapture(void *handle, void **made);
int cuStreamEndCapture(void *handle, void **made)
{
    stream *s = stream_of(handle);
    if (!s || !s->captured)
        return CU_ILLEGAL_STATE;
    *made = s->captured;
    s->captured = NULL;
    return CU_SUCCESS;
}

int cuGraphInstantiateWithFlags(void **made, void *of, unsigned long long flags);
int cuGraphInstantiateWithFlags(void **made, void *of, unsigned long long flags)
{
    graph *g = of;
    (void)flags;
    if (!model_has_context())
        return CU_INVALID_CONTEXT;
    g->users++;
    *made = g;
    return CU_SUCCESS;
}

int cuGraphLaunch(void *made, void *handle);
int cuGraphLaunch(void *made, void *handle)
{
    const graph *g = made;
    if (!model_has_context())
        return CU_INVALID_CONTEXT;
    if (model_stream_captures(handle))
        return CU_CAPTURE_INVALID;
    int result = CU_SUCCESS;
    for (size_t i = 0; i < g->count && result == CU_SUCCESS; i++) {
        node *n = &g->nodes[i];
        n->launch.parameters = n->parameters;
        if (n->launch.function)
            result = model_launch_now(&n->launch);
        else
            memmove((void *)(uintptr_t)n->to, (const void *)(uintptr_t)n->from, n->size);
    }
    return result;
}

int cuGraphDestroy(void *of);
int cuGraphDestroy(void *of)
{
    release(of);
    return CU_SUCCESS;
}

int cuGraphExecDestroy(void *made);
int cuGraphExecDestroy(void *made)
{
    release(made);
    return CU_SUCCESS;
}

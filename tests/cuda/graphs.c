/* SPDX-License-Identifier: MIT */
#include "cuda/graphs.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <string.h>

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    cr_assert_not_null(symbol, "%s", name);
    memcpy(function, &symbol, sizeof symbol);
}

graphs graphs_find(void)
{
    graphs g;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    cr_assert_not_null(library);
    find(library, "cuStreamBeginCapture_v2", (void *)&g.begin);
    find(library, "cuStreamEndCapture", (void *)&g.end);
    find(library, "cuGraphInstantiateWithFlags", (void *)&g.instantiate);
    find(library, "cuGraphLaunch", (void *)&g.launch);
    find(library, "cuGraphDestroy", (void *)&g.destroy);
    find(library, "cuGraphExecDestroy", (void *)&g.destroy_made);
    return g;
}

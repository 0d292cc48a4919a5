/* SPDX-License-Identifier: MIT */
#include "expr/batch.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void batch_views(const attune_expr *expr, const attune_array *arrays, batch_view views[ATTUNE_EXPR_MAX_SYMBOLS])
{
    for (uint32_t s = 0; s < expr->symbol_count; s++) {
        views[s].data = arrays[s].data;
        memcpy(views[s].size, arrays[s].size, sizeof views[s].size);
        memcpy(views[s].stride, arrays[s].stride, sizeof views[s].stride);
    }
}

void batch_begin(batch *b)
{
    const char *root = getenv("TMPDIR");
    snprintf(b->directory, sizeof b->directory, "%.40s/attune-ctext-XXXXXX", root ? root : "/tmp");
    cr_assert(mkdtemp(b->directory));
    snprintf(b->source, sizeof b->source, "%s/batch.c", b->directory);
    snprintf(b->library, sizeof b->library, "%s/batch.so", b->directory);
    b->file = fopen(b->source, "w");
    cr_assert(b->file);
}

void **batch_open(batch *b, uint64_t count)
{
    fprintf(b->file, "void *const table[] = {\n");
    for (uint64_t i = 0; i < count; i++)
        fprintf(b->file, "(void *)f%llu,\n", (unsigned long long)i);
    fprintf(b->file, "};\n");
    fclose(b->file);
    char command[512];
    const char *cc = getenv("CC");
    snprintf(command, sizeof command, "%.100s -std=c99 -O0 -ffp-contract=off -w -fPIC -shared %s -o %s -lm",
             cc && *cc ? cc : "cc", b->source, b->library);
    const int failed = system(command);
    b->opened = failed ? NULL : dlopen(b->library, RTLD_NOW | RTLD_LOCAL);
    if (!b->opened) {
        fprintf(stderr, "kept: %s\n", b->source);
        cr_assert(b->opened, "%s", failed ? command : dlerror());
    }
    return dlsym(b->opened, "table");
}

void batch_end(batch *b)
{
    dlclose(b->opened);
    unlink(b->source);
    unlink(b->library);
    rmdir(b->directory);
}

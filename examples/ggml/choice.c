/* SPDX-License-Identifier: MIT */
/* Between ggml's Vulkan shader and attune, by speed (choice.h). */
#include "choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1024, MANY_ROWS = 16 };

typedef struct line {
    choice_case of;
    double ggml, attune; /* microseconds */
} line;

struct choice_times {
    size_t count;
    line *lines;
};

/* "  1760.0 us 5400.0 us  0.33x  hsk=64,hsv=64,nh=8,nr23=[4,1],kv=4096,nb=512,mask=1,...,type_K=f16,type_V=f16,..." */
static bool line_parse(const char *text, line *l)
{
    long long dim, dim_v, kv_heads, group, batch, keys, rows;
    int mask;
    const char *at = strstr(text, "hsk="), *k = strstr(text, "type_K="), *v = strstr(text, "type_V=");
    *l = (line){0};
    if (!at || !k || !v || sscanf(text, "%lf %lf", &l->ggml, &l->attune) != 2 ||
        sscanf(at, "hsk=%lld,hsv=%lld,nh=%lld,nr23=[%lld,%lld],kv=%lld,nb=%lld,mask=%d", &dim, &dim_v, &kv_heads,
               &group, &batch, &keys, &rows, &mask) != 8 ||
        sscanf(k, "type_K=%15[^,]", l->of.k_type) != 1 || sscanf(v, "type_V=%15[^,]", l->of.v_type) != 1)
        return false;
    l->of.head_dim = dim, l->of.head_dim_v = dim_v;
    l->of.heads = kv_heads * group, l->of.kv_heads = kv_heads;
    l->of.rows = rows, l->of.keys = keys;
    l->of.mask = mask != 0;
    return l->ggml > 0 && l->attune > 0 && kv_heads > 0 && group > 0 && rows > 0 && keys > 0;
}

static bool add(choice_times *times, const line *l)
{
    line *lines = realloc(times->lines, (times->count + 1) * sizeof *lines);
    if (!lines)
        return false;
    times->lines = lines;
    times->lines[times->count++] = *l;
    return true;
}

/* The first line is "device: NAME". */
static bool read_lines(FILE *file, const char *device, choice_times *times, char *reason)
{
    char text[LINE];
    line l;
    if (!fgets(text, sizeof text, file) || strncmp(text, "device: ", 8) != 0) {
        snprintf(reason, CHOICE_TEXT, "its first line is not \"device: \" and a name");
        return false;
    }
    text[strcspn(text, "\n")] = 0;
    if (strcmp(text + 8, device) != 0) {
        snprintf(reason, CHOICE_TEXT, "its times are of %.80s, not of %.80s", text + 8, device);
        return false;
    }
    while (fgets(text, sizeof text, file))
        if (line_parse(text, &l) && !add(times, &l)) {
            snprintf(reason, CHOICE_TEXT, "no memory");
            return false;
        }
    if (!times->count)
        snprintf(reason, CHOICE_TEXT, "it has no times");
    return times->count > 0;
}

choice_times *choice_times_read(const char *path, const char *device, char reason[CHOICE_TEXT])
{
    FILE *file = fopen(path, "r");
    choice_times *times = file ? calloc(1, sizeof *times) : NULL;
    if (!times)
        snprintf(reason, CHOICE_TEXT, file ? "no memory" : "it cannot be read");
    else if (!read_lines(file, device, times, reason)) {
        choice_times_free(times);
        times = NULL;
    }
    if (file)
        fclose(file);
    return times;
}

void choice_times_free(choice_times *times)
{
    if (times)
        free(times->lines);
    free(times);
}

/* In powers of two. */
static double distance(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return fabs(log2((double)a / (double)b * (double)c / (double)d));
}

static const line *nearest(const choice_times *times, const choice_case *c)
{
    const line *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; times && i < times->count; i++) {
        const line *l = &times->lines[i];
        if (l->of.head_dim != c->head_dim || l->of.head_dim_v != c->head_dim_v || l->of.mask != c->mask ||
            strcmp(l->of.k_type, c->k_type) != 0 || strcmp(l->of.v_type, c->v_type) != 0)
            continue;
        const double group = distance(l->of.heads, l->of.kv_heads, c->kv_heads, c->heads);
        const double rows = distance(l->of.rows, c->rows, 1, 1), keys = distance(l->of.keys, c->keys, 1, 1);
        if (group <= 1 && rows <= 2 && keys <= 2 && group + rows + keys < least) {
            least = group + rows + keys;
            best = l;
        }
    }
    return best;
}

static bool refuse(char *reason, const char *text)
{
    snprintf(reason, CHOICE_TEXT, "%s", text);
    return false;
}

bool choice_is_attune(const choice_times *times, const choice_case *c, choice_matrices matrices, const char *kernel,
                      bool host, char reason[CHOICE_TEXT])
{
    const line *l = nearest(times, c);
    if (l) {
        if (l->attune > l->ggml)
            snprintf(reason, CHOICE_TEXT, "ggml's shader was measured faster, %.4g us where attune takes %.4g", l->ggml,
                     l->attune);
        return l->attune <= l->ggml;
    }
    /* README.md has the measurements that these rest on. */
    if (matrices == CHOICE_NV_MATRICES)
        return refuse(reason, "ggml's shader of VK_NV_cooperative_matrix2 is faster on the GPU where both were timed");
    if (host || strstr(kernel, "coopmat"))
        return true;
    if (c->rows < MANY_ROWS)
        return refuse(reason, "attune's kernel for few rows is slower on the GPU where both were timed");
    if (matrices == CHOICE_KHR_MATRICES)
        return refuse(reason, "ggml's shader has matrices and attune's kernel has none");
    return true;
}

/* SPDX-License-Identifier: MIT */
/*
 * The model's compiler, as NVRTC: libnvrtc.so.13 that gives a kernel's unchanged source and headers, but for ptx.cuh,
 * wgmma.cuh and tcgen05.cuh, to the host's C++ compiler. What it calls a cubin is the path of a shared library, in the
 * folder ATTUNE_MODEL_CACHE (by default attune-model in the temporary folder), under a name made of all that it depends
 * on. ATTUNE_MODEL_FAULT, "FILE|TEXT|REPLACEMENT", puts a fault into a source: the model's own test.
 */
#define _GNU_SOURCE /* strndup */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_OPTIONS 128

int nvrtcVersion(int *major, int *minor);
int nvrtcCreateProgram(void **made, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names);
int nvrtcDestroyProgram(void **made);
int nvrtcCompileProgram(void *made, int count, const char *const *options);
int nvrtcGetProgramLogSize(void *made, size_t *size);
int nvrtcGetProgramLog(void *made, char *log);
int nvrtcGetCUBINSize(void *made, size_t *size);
int nvrtcGetCUBIN(void *made, char *cubin);

typedef struct program {
    char *source, *name;
    int count;
    char **texts, **names;
    char path[512], log[4096];
} program;

static char *copy_of(const char *text)
{
    char *made = strdup(text);
    if (!made)
        abort();
    return made;
}

/* Puts the fault of ATTUNE_MODEL_FAULT into a file's text. */
static char *with_fault(const char *file, const char *text)
{
    const char *fault = getenv("ATTUNE_MODEL_FAULT");
    char *made = copy_of(text);
    if (!fault || !*fault)
        return made;
    const char *old = strchr(fault, '|'), *new = old ? strchr(old + 1, '|') : NULL;
    if (!new || strncmp(fault, file, (size_t)(old - fault)) != 0 || file[old - fault])
        return made;
    char *pattern = strndup(old + 1, (size_t)(new - old - 1));
    char *at = pattern ? strstr(made, pattern) : NULL;
    if (!at) {
        fprintf(stderr, "model: %s has no \"%s\"\n", file, pattern ? pattern : "");
        abort();
    }
    char *changed = malloc(strlen(made) + strlen(new) + 1);
    if (!changed)
        abort();
    sprintf(changed, "%.*s%s%s", (int)(at - made), made, new + 1, at + strlen(pattern));
    free(pattern);
    free(made);
    return changed;
}

static uint64_t add(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return (hash ^ 0xff) * UINT64_C(1099511628211);
}

/* The model's own headers, as they are now. */
static uint64_t add_headers(uint64_t hash)
{
    static const char *const files[] = {"builtins.h", "kernel.h", "machine.h", "ptx.cuh", "wgmma.cuh", "tcgen05.cuh"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[512], line[512];
        snprintf(path, sizeof path, "%s/%s", MODEL_FOLDER, files[i]);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            hash = add(hash, line);
        if (file)
            fclose(file);
    }
    return hash;
}

static const char *cxx(void)
{
    const char *chosen = getenv("ATTUNE_MODEL_CXX");
    return chosen ? chosen : MODEL_CXX;
}

static const char *coverage_flags(void)
{
    return getenv("ATTUNE_MODEL_COVERAGE") ? "--coverage -fprofile-note=kernel.gcno" : "";
}

static const char *cache_folder(void)
{
    const char *chosen = getenv("ATTUNE_MODEL_CACHE");
    return chosen ? chosen : "/tmp/attune-model";
}

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    /* So that attune's own cache of kernels, whose key has it, has none of another compiler, model or folder, and none
     * with another fault. */
    const char *fault = getenv("ATTUNE_MODEL_FAULT");
    uint64_t hash = add(add_headers(UINT64_C(14695981039346656037)), fault ? fault : "");
    hash = add(add(add(hash, cxx()), coverage_flags()), cache_folder());
    *minor = 1000 + (int)(hash % 1000000000);
    return 0;
}

int nvrtcCreateProgram(void **made, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *names)
{
    program *p = calloc(1, sizeof *p);
    if (!p)
        return 1;
    p->source = with_fault(name, source);
    p->name = copy_of(name);
    p->texts = calloc((size_t)count + 1, sizeof *p->texts);
    p->names = calloc((size_t)count + 1, sizeof *p->names);
    if (!p->texts || !p->names)
        abort();
    p->count = count;
    for (int i = 0; i < count; i++) {
        p->texts[i] = with_fault(names[i], headers[i]);
        p->names[i] = copy_of(names[i]);
    }
    *made = p;
    return 0;
}

int nvrtcDestroyProgram(void **made)
{
    program *p = *made;
    for (int i = 0; i < p->count; i++) {
        free(p->texts[i]);
        free(p->names[i]);
    }
    free(p->texts);
    free(p->names);
    free(p->source);
    free(p->name);
    free(p);
    *made = NULL;
    return 0;
}

static bool write_file(const char *folder, const char *name, const char *text, const char *tail)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fputs(text, file);
    fputs(tail, file);
    return fclose(file) == 0;
}

/* For each kernel of the source a function that calls it with the parameters of a launch, and the arrays that stand for
 * dynamic shared memory. Kernels that a macro defines have the parameters of the file's first one. */
static void write_tail(FILE *file, const char *source)
{
    static const char global[] = "extern \"C\" __global__ void";
    fprintf(file, "#line 1 \"model\"\n#include \"kernel.h\"\n");
    bool any = false;
    for (const char *at = source; (at = strstr(at, global)); at += sizeof global) {
        const char *name = strstr(at, "attune_");
        const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (name[length] != '(')
            continue;
        fprintf(file,
                "extern \"C\" __attribute__((visibility(\"default\"))) void model_enter_%.*s(void *f, void **p)\n"
                "{ (void)f; model_call(%.*s, p); }\n"
                "extern \"C\" __attribute__((visibility(\"default\"), no_sanitize(\"thread\"))) int "
                "model_sizes_%.*s(size_t *to, int most)\n"
                "{ return model_sizes(%.*s, to, most); }\n",
                (int)length, name, (int)length, name, (int)length, name, (int)length, name);
        const char *clusters = strstr(at, "ATTUNE_CLUSTER_DIMENSIONS");
        if (clusters && clusters < name)
            fprintf(file,
                    "extern \"C\" __attribute__((visibility(\"default\"))) const int model_cluster_%.*s;\n"
                    "const int model_cluster_%.*s = ATTUNE_CLUSTER;\n",
                    (int)length, name, (int)length, name);
        if (!any)
            fprintf(file,
                    "extern \"C\" __attribute__((visibility(\"default\"))) void model_enter_any(void *f, void **p)\n"
                    "{ model_call((decltype(&%.*s))f, p); }\n"
                    "extern \"C\" __attribute__((visibility(\"default\"), no_sanitize(\"thread\"))) int "
                    "model_sizes_any(size_t *to, int most)\n"
                    "{ return model_sizes(&%.*s, to, most); }\n",
                    (int)length, name, (int)length, name);
        any = true;
    }
    static const char shared[] = "extern __shared__ ";
    char names[4][64], list[512] = "";
    int count = 0;
    for (const char *at = source; (at = strstr(at, shared)) && count < 4; at += sizeof shared) {
        const char *end = strstr(at, "[]"), *name = end;
        while (name[-1] == '_' || (name[-1] >= 'a' && name[-1] <= 'z'))
            name--;
        bool known = false;
        for (int i = 0; i < count; i++)
            known |= !strncmp(names[i], name, (size_t)(end - name)) && !names[i][end - name];
        if (known)
            continue;
        snprintf(names[count++], sizeof names[0], "%.*s", (int)(end - name), name);
        const char *declared = at + strlen("extern ");
        const char *type = strstr(declared, ") ") + 2;
        fprintf(file, "alignas(1024) %.*s[%d / sizeof(%.*s)];\n", (int)(end - declared), declared, 232448,
                (int)(name - type), type);
        snprintf(list + strlen(list), sizeof list - strlen(list), "(unsigned char *)%.*s, ", (int)(end - name), name);
    }
    fprintf(file,
            "extern \"C\" __attribute__((visibility(\"default\"), no_sanitize(\"thread\"))) unsigned char "
            "*model_shared_array(int i)\n"
            "{ unsigned char *const arrays[] = {%snullptr}; model_storage++; return arrays[i]; }\n",
            list);
}

/* The compiler's own fused operations, aliasing and calls at the ends of functions are off. */
static const char shared_flags[] =
    "-include builtins.h -std=c++17 -O1 -march=native -gdwarf-4 -fPIC -w -fno-exceptions "
    "-fvisibility=hidden -ffp-contract=off -fno-strict-aliasing -fsanitize=thread";

/* attune_append is a kernel and a function of the library, which a program may have from a shared library. */
static const char link_flags[] = "-shared -Wl,-Bsymbolic";

static const char *own_flags(void)
{
    return strstr(cxx(), "clang") ? "-gline-tables-only -fdebug-info-for-profiling -mllvm "
                                    "-tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-atomics=0"
                                  : "-g1 --param tsan-instrument-func-entry-exit=0";
}

static void run_compiler(program *p, const char *folder, const char *flags)
{
    char command[8192];
    snprintf(command, sizeof command,
             "cd '%s' && { %s -c -o kernel.o kernel.cpp -I. -I'%s' %s %s %s %s && %s %s -o kernel.so kernel.o %s; } "
             ">log 2>&1",
             folder, cxx(), MODEL_FOLDER, shared_flags, own_flags(), coverage_flags(), flags, cxx(), link_flags,
             coverage_flags());
    const int status = system(command);
    p->log[0] = '\0';
    if (!status)
        return;
    snprintf(command, sizeof command, "%s/log", folder);
    FILE *log = fopen(command, "r");
    const size_t length = log ? fread(p->log, 1, sizeof p->log - 1, log) : 0;
    p->log[length] = '\0';
    if (log)
        fclose(log);
    if (!length)
        snprintf(p->log, sizeof p->log, "the compiler gave %d", status);
}

int nvrtcCompileProgram(void *made, int count, const char *const *options)
{
    program *p = made;
    char flags[8192] = "";
    uint64_t hash = add(add_headers(UINT64_C(14695981039346656037)), p->source);
    hash = add(add(add(add(hash, p->name), cxx()), own_flags()), shared_flags);
    hash = add(add(hash, link_flags), coverage_flags());
    for (int i = 0; i < p->count; i++) {
        const size_t length = strlen(p->names[i]);
        if (length < 3 || strcmp(p->names[i] + length - 3, ".cu") != 0) /* no source includes another one */
            hash = add(hash, p->texts[i]);
    }
    for (int i = 0; i < count; i++) {
        hash = add(hash, options[i]);
        if (!strncmp(options[i], "-D", 2))
            snprintf(flags + strlen(flags), sizeof flags - strlen(flags), "'%s' ", options[i]);
        int capability;
        if (sscanf(options[i], "-arch=sm_%d", &capability) == 1)
            snprintf(flags + strlen(flags), sizeof flags - strlen(flags), "-D__CUDA_ARCH__=%d0 ", capability);
    }
    char root[256], folder[400], final[300];
    snprintf(root, sizeof root, "%s", cache_folder());
    mkdir(root, 0777);
    snprintf(final, sizeof final, "%s/%016llx", root, (unsigned long long)hash);
    snprintf(p->path, sizeof p->path, "%s/kernel.so", final);
    if (!access(p->path, R_OK))
        return 0;
    snprintf(folder, sizeof folder, "%s.%ld.%p", final, (long)getpid(), made);
    if (mkdir(folder, 0777) && errno != EEXIST)
        return 1;
    bool written = true;
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->names[i], "ptx.cuh") != 0 && strcmp(p->names[i], "wgmma.cuh") != 0 &&
            strcmp(p->names[i], "tcgen05.cuh") != 0)
            written = written && write_file(folder, p->names[i], p->texts[i], "");
    char path[500];
    snprintf(path, sizeof path, "%s/kernel.cpp", folder);
    FILE *file = fopen(path, "w");
    if (!file || !written)
        return 1;
    fprintf(file, "#line 1 \"%s\"\n%s\n", p->name, p->source);
    write_tail(file, p->source);
    fclose(file);
    run_compiler(p, folder, flags);
    if (p->log[0])
        return 6;
    /* Another process may have been first: both made the same. */
    if (rename(folder, final) && errno != EEXIST && errno != ENOTEMPTY)
        return 1;
    return 0;
}

int nvrtcGetProgramLogSize(void *made, size_t *size)
{
    *size = strlen(((program *)made)->log) + 1;
    return 0;
}
int nvrtcGetProgramLog(void *made, char *log)
{
    memcpy(log, ((program *)made)->log, strlen(((program *)made)->log) + 1);
    return 0;
}
int nvrtcGetCUBINSize(void *made, size_t *size)
{
    *size = strlen(((program *)made)->path) + 1;
    return 0;
}
int nvrtcGetCUBIN(void *made, char *cubin)
{
    memcpy(cubin, ((program *)made)->path, strlen(((program *)made)->path) + 1);
    return 0;
}

/* SPDX-License-Identifier: MIT */
#include "cuda/compiler.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/library.h"
#include "base/threads.h"
#include "cuda/append.h"
#include "cuda/arguments.h"
#include "cuda/family.h"
#include "cuda/sources.h"
#include "expr/print.h"
#include "plan/family_cuda.h"

#define MOST_HEADERS 128
#define LOG_SIZE     1200 /* bytes of the compiler's log in an error message */

#define FUNCTIONS(X)                                                                                                   \
    X(version, nvrtcVersion, (int *major, int *minor))                                                                 \
    X(create, nvrtcCreateProgram,                                                                                      \
      (void **program, const char *source, const char *name, int count, const char *const *headers,                    \
       const char *const *names))                                                                                      \
    X(destroy, nvrtcDestroyProgram, (void **program))                                                                  \
    X(compile, nvrtcCompileProgram, (void *program, int count, const char *const *options))                            \
    X(log_size, nvrtcGetProgramLogSize, (void *program, size_t *size))                                                 \
    X(log, nvrtcGetProgramLog, (void *program, char *log))                                                             \
    X(cubin_size, nvrtcGetCUBINSize, (void *program, size_t *size))                                                    \
    X(cubin, nvrtcGetCUBIN, (void *program, char *cubin))

typedef struct compiler {
    void *library;
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    FUNCTIONS(MEMBER)
#undef MEMBER
    int major, minor;
} compiler;

/* The newest first: it supports every architecture that an older one does and attune needs. */
static const char *const libraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

static attune_status compiler_open(compiler *c)
{
    char why[256];
    *c = (compiler){0};
    for (size_t i = 0; !c->library && i < sizeof libraries / sizeof libraries[0]; i++)
        c->library = attune__library_open(libraries[i], ATTUNE__LIBRARY_KEEP, why, sizeof why);
    if (!c->library)
        return attune__fail(ATTUNE_UNAVAILABLE,
                            "no kernel can be compiled: libnvrtc.so.13 and libnvrtc.so.12 cannot be "
                            "opened: install NVIDIA's NVRTC or add its folder to LD_LIBRARY_PATH");
    void *symbol;
#define FIND(name, symbol_name, parameters)                                                                            \
    symbol = attune__library_symbol(c->library, #symbol_name);                                                         \
    if (!symbol) {                                                                                                     \
        attune__library_close(c->library);                                                                             \
        return attune__fail(ATTUNE_UNAVAILABLE, "NVRTC has no %s: update it", #symbol_name);                           \
    }                                                                                                                  \
    memcpy(&c->name, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
#undef FIND
    if (c->version(&c->major, &c->minor)) {
        attune__library_close(c->library);
        return attune__fail(ATTUNE_UNAVAILABLE, "NVRTC does not say which version it is");
    }
    return ATTUNE_OK;
}

/* ---------------------------------------------------------------------------------------------------------------
 * cubins
 */

static void add_text(attune__digest *digest, const char *text)
{
    attune__digest_add(digest, text ? text : "", text ? strlen(text) + 1 : 1);
}

/* From a cryptographic digest: no expression can be constructed whose kernel collides with another's. That of the
 * sources, which is a millisecond's work, is made with the library. */
attune__hash attune__cuda_hash(const attune__cuda_kernel *kernel)
{
    attune__digest digest = attune__digest_begin();
    add_text(&digest, attune__cuda_sources_digest);
    add_text(&digest, kernel->file);
    add_text(&digest, kernel->mods);
    for (uint32_t i = 0; i < kernel->option_count; i++)
        add_text(&digest, kernel->options[i]);
    return attune__digest_key(&digest);
}

/* Reports the beginning of the log: the first error is the most useful one. */
static attune_status fail_compile(const attune_allocator *allocator, const compiler *c, void *program,
                                  const attune__cuda_kernel *kernel, int result)
{
    size_t size = 0;
    char *log = NULL;
    if (!c->log_size(program, &size) && size)
        log = attune__alloc(allocator, size + 1, 1);
    if (log && c->log(program, log))
        log[0] = '\0';
    attune__fail(ATTUNE_COMPILE_FAILED, "NVRTC %d.%d refuses %s (error %d): %.*s", c->major, c->minor, kernel->file,
                 result, LOG_SIZE, log ? log : "");
    attune__free(allocator, log);
    return ATTUNE_COMPILE_FAILED;
}

/* An NVRTC program and its kernel. */
typedef struct task {
    attune__cuda_job *job;
    attune__cache_key key;
    void *program; /* NULL = nothing to compile */
    int result;
} task;

static attune_status create(const compiler *c, const attune__cuda_kernel *kernel, void **program)
{
    const char *texts[MOST_HEADERS], *names[MOST_HEADERS], *source = NULL;
    int headers = 0;
    for (const attune__cuda_source *s = attune__cuda_sources; s->name; s++) {
        if (headers == MOST_HEADERS - 1)
            return attune__fail(ATTUNE_INTERNAL, "there are more than %d kernel sources: raise MOST_HEADERS",
                                MOST_HEADERS - 1);
        if (!strcmp(s->name, kernel->file))
            source = s->text;
        names[headers] = s->name;
        texts[headers++] = s->text;
    }
    if (kernel->mods) {
        names[headers] = "mods.cuh";
        texts[headers++] = kernel->mods;
    }
    if (!source)
        return attune__fail(ATTUNE_INTERNAL, "%s is no kernel source of this build", kernel->file);
    const int result = c->create(program, source, kernel->file, headers, texts, names);
    if (result)
        return attune__fail(ATTUNE_COMPILE_FAILED, "NVRTC %d.%d makes no program (error %d)", c->major, c->minor,
                            result);
    return ATTUNE_OK;
}

/* Shared by the compiling threads: each takes the next task until none is left. */
typedef struct batch {
    const compiler *compiler;
    task *tasks;
    uint32_t count;
    atomic_uint next;
} batch;

static void compile_some(void *user, uint32_t thread)
{
    batch *b = user;
    (void)thread;
    for (uint32_t i; (i = atomic_fetch_add(&b->next, 1)) < b->count;) {
        task *t = &b->tasks[i];
        const attune__cuda_kernel *kernel = t->job->kernel;
        const char *options[ATTUNE__CUDA_OPTIONS + 1];
        uint32_t count = kernel->option_count;
        for (uint32_t j = 0; j < count; j++)
            options[j] = kernel->options[j];
        /* NVRTC would write a cache to the user's home; only the caller decides what is cached, and where. */
        if (b->compiler->major >= 13)
            options[count++] = "--no-cache";
        t->result = b->compiler->compile(t->program, (int)count, options);
    }
}

static attune_status compile(const attune__host *host, const compiler *c, task *tasks, uint32_t count)
{
    const uint32_t threads = host->compile_threads < count ? host->compile_threads : count;
    batch b = {.compiler = c, .tasks = tasks, .count = count};
    atomic_init(&b.next, 0);
    return attune__pool_once(&host->allocator, threads, compile_some, &b);
}

static attune_status take_cubin(const attune__host *host, const compiler *c, task *t)
{
    attune__cuda_job *job = t->job;
    int result = t->result ? t->result : c->cubin_size(t->program, &job->size);
    if (!result) {
        job->cubin = attune__alloc_raw(&host->allocator, job->size, 1);
        if (!job->cubin)
            return ATTUNE_OUT_OF_HOST_MEMORY;
        result = c->cubin(t->program, job->cubin);
    }
    if (result)
        return fail_compile(&host->allocator, c, t->program, job->kernel, result);
    attune__cache_put(host->cache, &t->key, job->cubin, job->size);
    return ATTUNE_OK;
}

/* Compiles the kernels that neither a pack nor the cache has. */
static attune_status compile_missing(const attune__host *host, const compiler *c, attune__cuda_job *jobs,
                                     uint32_t count)
{
    /* The driver's version is not in the key: machine code depends on the compiler and the options alone. */
    char identity[64];
    const int length =
        snprintf(identity, sizeof identity, "attune %u nvrtc %d.%d", attune_version(), c->major, c->minor);
    task tasks[ATTUNE__CUDA_JOBS] = {0};
    uint32_t missing = 0;
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++) {
        attune__cuda_job *job = &jobs[i];
        const attune__cache_key key = {ATTUNE__CUDA_KIND, job->hash, identity, (size_t)length};
        if (job->cubin || attune__cache_get(host->cache, &key, &job->cubin, &job->size))
            continue;
        tasks[missing] = (task){.job = job, .key = key};
        status = create(c, job->kernel, &tasks[missing].program);
        missing += status == ATTUNE_OK;
    }
    if (status == ATTUNE_OK && missing)
        status = compile(host, c, tasks, missing);
    for (uint32_t i = 0; i < missing; i++) {
        if (status == ATTUNE_OK)
            status = take_cubin(host, c, &tasks[i]);
        c->destroy(&tasks[i].program);
    }
    return status;
}

/* Without a compiler only kernels compiled ahead can run: the error says so, and how to get a compiler. */
static attune_status fail_without(const attune__host *host, const attune__cuda_kernel *kernel)
{
    uint32_t packs, entries;
    attune__packs_measure(host->packs, &packs, &entries);
    if (!packs)
        return attune__fail_context(ATTUNE_UNAVAILABLE,
                                    "no pack of kernels was loaded either (attune_instance_pack_load)");
    return attune__fail_context(
        ATTUNE_UNAVAILABLE,
        "none of the %u kernels in the %u packs loaded is %s with %s, this problem's tile, types and expressions: add "
        "it to the pack with `attune compile --arch %s`",
        entries, packs, kernel->file, kernel->options[0], kernel->options[0] + strlen("-arch="));
}

static bool find_in_packs(const attune__host *host, attune__hash hash, void **cubin, size_t *size,
                          attune_status *status)
{
    const void *data;
    *status = ATTUNE_OK;
    if (!attune__packs_find(host->packs, ATTUNE__CUDA_KIND, hash, &data, size))
        return false;
    *cubin = attune__alloc_raw(&host->allocator, *size, 1);
    if (*cubin)
        memcpy(*cubin, data, *size);
    else
        *status = ATTUNE_OUT_OF_HOST_MEMORY;
    return true;
}

void attune__cuda_compiler_load(void)
{
    compiler c;
    if (compiler_open(&c) == ATTUNE_OK)
        attune__library_close(c.library);
}

attune_status attune__cuda_compile_all(const attune__host *host, attune__cuda_job *jobs, uint32_t count)
{
    attune_status status = ATTUNE_OK;
    const attune__cuda_kernel *missing = NULL;
    for (uint32_t i = 0; i < count; i++) {
        jobs[i].cubin = NULL;
        jobs[i].size = 0;
        jobs[i].hash = attune__cuda_hash(jobs[i].kernel);
    }
    for (uint32_t i = 0; i < count && status == ATTUNE_OK; i++)
        if (!find_in_packs(host, jobs[i].hash, &jobs[i].cubin, &jobs[i].size, &status) && !missing)
            missing = jobs[i].kernel;
    if (status == ATTUNE_OK && missing) {
        compiler c;
        if (compiler_open(&c) == ATTUNE_OK) {
            status = compile_missing(host, &c, jobs, count);
            attune__library_close(c.library);
        } else {
            status = fail_without(host, missing);
        }
    }
    for (uint32_t i = 0; i < count && status != ATTUNE_OK; i++) {
        attune__free(&host->allocator, jobs[i].cubin);
        jobs[i].cubin = NULL;
    }
    return status;
}

attune_status attune__cuda_compile(const attune__host *host, const attune__cuda_kernel *kernel, void **cubin,
                                   size_t *size)
{
    attune__cuda_job job = {.kernel = kernel};
    ATTUNE__TRY(attune__cuda_compile_all(host, &job, 1));
    *cubin = job.cubin;
    *size = job.size;
    return ATTUNE_OK;
}

/* -------------------------------------------------------------------------------------------------------
 * specialisation
 */

/* made: the functions that compute the terms are in the text already. */
static void add_terms(const attune_expr *expr, uint32_t root, const char *name, const char *macro,
                      const attune__terms *terms, bool made, attune__text *text)
{
    char of[32];
    if (!terms->key_count && !terms->row_count && !terms->tile_bytes)
        return;
    snprintf(of, sizeof of, "%s_of", name);
    if (!made)
        attune__ctext_terms(expr, name, terms, text);
    attune__ctext_with_terms(expr, root, of, terms, text);
    attune__text_add(text, "#define ATTUNE_%s_KEYS %u\n#define ATTUNE_%s_ROWS %u\n", macro, terms->key_count, macro,
                     terms->row_count);
    if (terms->tile_bytes)
        attune__text_add(text, "#define ATTUNE_%s_TILE %u\n", macro, terms->tile_bytes);
}

static void add_number(attune__text *text, const char *name, float value)
{
    char literal[ATTUNE__FLOAT_TEXT];
    attune__float_text(value, literal);
    attune__text_add(text, "#define ATTUNE_SCORE_%s %sf\n", name, literal);
}

static attune_status add_mask(const attune__program_desc *desc, attune__text *text)
{
    const attune__variant *v = desc->variant;
    ATTUNE__TRY(attune__ctext_function(desc->mask, "attune_mask", text));
    add_terms(desc->mask, desc->mask->node_count - 1, "attune_mask", "MASK", &v->mask, false, text);
    if (v->row_intervals)
        attune__ctext_rows(desc->mask, "attune_mask_range", text);
    if (v->key_intervals)
        attune__ctext_columns(desc->mask, "attune_mask_rows", text);
    return ATTUNE_OK;
}

static attune_status add_score_text(const attune__program_desc *desc, attune__text *text)
{
    const attune__variant *v = desc->variant;
    ATTUNE__TRY(attune__ctext_function(desc->score, "attune_score", text));
    add_terms(desc->score, desc->score->node_count - 1, "attune_score", "SCORE", &v->score, v->exact_terms, text);
    if (desc->gradient) {
        attune__ctext_gradient(desc->gradient, text);
        add_terms(desc->gradient->expr, desc->gradient->score, "attune_score_slope", "SLOPE", &v->slope, false, text);
    }
    return ATTUNE_OK;
}

/* Replaces a function by another in the text that follows. */
static void replace_function(attune__text *text, const char *name, const char *by)
{
    attune__text_add(text, "#undef attune_%s\n#define attune_%s attune_%s\n", name, name, by);
}

static void add_score_near(const attune__program_desc *desc, attune__text *text)
{
    const attune__variant *v = desc->variant;
    if (v->near_sines) {
        replace_function(text, "sin", "near_sin");
        replace_function(text, "cos", "near_cos");
        replace_function(text, "sin_small", "near_sin_small");
        attune__text_add(text, "#define ATTUNE_NEAR_SINES 1\n");
    }
    attune__ctext_near(desc->score, "attune_score_near", NULL, v->fused_sums, text);
    if (v->score.key_count || v->score.row_count || v->score.tile_bytes)
        attune__ctext_near(desc->score, "attune_score_near_of", &v->score, v->fused_sums, text);
    if (desc->gradient)
        attune__ctext_near_slope(desc->gradient, "attune_score_slope_near", NULL, text);
    if (v->slope.key_count || v->slope.row_count)
        attune__ctext_near_slope(desc->gradient, "attune_score_slope_near_of", &v->slope, text);
    if (desc->gradient && v->near_reads)
        attune__ctext_near_reads(desc->gradient, text);
    attune__text_add(text, "#define ATTUNE_HAVE_SCORE_NEAR 1\n");
    if (isfinite(v->near))
        add_number(text, "NEAR", v->near);
}

static attune_status add_score(const attune__program_desc *desc, attune__text *text)
{
    const attune__variant *v = desc->variant;
    if (v->soft_cap)
        attune__ctext_soft_cap(desc->score, "attune_score", desc->gradient ? "attune_score_slope" : NULL, text);
    else
        ATTUNE__TRY(add_score_text(desc, text));
    if (desc->gradient)
        attune__text_add(text, "#define ATTUNE_HAVE_SCORE_SLOPE 1\n");
    if (v->linear) {
        attune__ctext_linear(desc->score, "attune_linear_score", text);
        attune__text_add(text, "#define ATTUNE_HAVE_LINEAR_SCORE 1\n");
    }
    if (v->soft_cap) {
        add_number(text, "CAP_INNER", desc->shape->expr.cap_inner);
        add_number(text, "CAP_OUTER", desc->shape->expr.cap_outer);
    }
    if (v->near > 0)
        add_score_near(desc, text);
    return ATTUNE_OK;
}

/* Where P is rounded to 16 bits, the score's functions need not have all digits of float32 (docs/numerics.md). */
static void add_fast_functions(const attune__program_desc *desc, attune__text *text)
{
    static const char *const names[] = {"div",   "over", "exp",     "exp2", "log", "log2",         "sqrt",
                                        "rsqrt", "tanh", "sigmoid", "sin",  "cos", "pow_positive", "pow_half"};
    if (!desc->variant->fast_functions)
        return;
    attune__text_add(text, "#define ATTUNE_HAVE_FAST_FUNCTIONS 1\n");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        attune__text_add(text, "#undef attune_%s\n#define attune_%s attune_fast_%s\n", names[i], names[i], names[i]);
}

static attune_status add_mods(const attune__program_desc *desc, attune__text *text)
{
    attune__text_add(text, "#include \"prelude.cuh\"\n");
    if (desc->mask)
        ATTUNE__TRY(add_mask(desc, text));
    /* After the mask, which always uses the exact functions. */
    if (desc->score && desc->variant->exact_terms)
        attune__ctext_terms(desc->score, "attune_score", &desc->variant->score, text);
    if (desc->score)
        add_fast_functions(desc, text);
    if (desc->choice->approximate_tanh)
        attune__text_add(
            text,
            "#define ATTUNE_APPROXIMATE_TANH 1\n#undef attune_tanh\n#define attune_tanh attune_tanh_approximate\n");
    return desc->score ? add_score(desc, text) : ATTUNE_OK;
}

static attune_status write_mods(const attune_allocator *allocator, const attune__program_desc *desc,
                                const char **mods_text)
{
    size_t size;
    attune__text text = attune__text_begin(NULL, 0);
    ATTUNE__TRY(add_mods(desc, &text));
    attune__text_end(&text, &size);
    char *made = attune__alloc(allocator, size, 1);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    text = attune__text_begin(made, size);
    const attune_status status = add_mods(desc, &text);
    if (status == ATTUNE_OK)
        *mods_text = made;
    else
        attune__free(allocator, made);
    return status;
}

void attune__cuda_define(attune__cuda_kernel *kernel, const char *name, uint32_t value)
{
    if (kernel->option_count == ATTUNE__CUDA_OPTIONS) {
        kernel->full = true;
        return;
    }
    snprintf(kernel->options[kernel->option_count], sizeof kernel->options[0], "-DATTUNE_%s=%u", name, value);
    kernel->option_count++;
}

static bool reads_captures(const attune_expr *expr)
{
    for (uint32_t i = 0; expr && i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            return true;
    return false;
}

/* How the planner has the kernel compute the expressions, and the order of its stages. */
static void add_variant(attune__cuda_kernel *kernel, const attune__variant *v)
{
    const struct {
        const char *name;
        bool set;
    } flags[] = {
        {"MASK_CHUNKS", v->mask_chunks}, {"SCORE_CHUNKS", v->score_chunks},  {"LATE_CAPTURES", v->late_captures},
        {"LATE_DELTA", v->late_delta},   {"DESCENDING", v->descending},      {"LATE_HOOK", v->late_hook},
        {"LATE_DP", v->late_dp},         {"EARLY_DQ", v->early_dq},          {"FUSED_GRADIENTS", v->fused_gradients},
        {"HALF_TILES", v->half_tiles},   {"REMATERIALISE", v->rematerialise}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].set)
            attune__cuda_define(kernel, flags[i].name, 1);
    if (v->score_chunk)
        attune__cuda_define(kernel, "SCORE_CHUNK", v->score_chunk);
    if (v->first_score_chunk)
        attune__cuda_define(kernel, "FIRST_SCORE_CHUNK", v->first_score_chunk);
    if (v->polynomials) {
        attune__cuda_define(kernel, "POLYNOMIALS", v->polynomials);
        attune__cuda_define(kernel, "POLYNOMIAL_DEGREE", v->polynomial_degree);
    }
}

attune_status attune__cuda_entry_of(const attune__program_desc *desc, attune__cuda_role role,
                                    const attune__cuda_family **family, attune__cuda_entry *entry)
{
    const attune_plan_choice *choice = desc->choice;
    const attune__cuda_family *f = attune__cuda_family_find(choice->kernel);
    if (f)
        *entry = role == ATTUNE__CUDA_DELTA             ? (attune__cuda_entry){"delta.cu", "attune_delta"}
                 : role == ATTUNE__CUDA_APPEND          ? (attune__cuda_entry){"append.cu", "attune_append"}
                 : choice->direction == ATTUNE_BACKWARD ? f->backward
                 : choice->decode                       ? f->decode
                 : desc->shape->tokens                  ? f->serving
                                                        : f->forward;
    if (!f || !entry->file)
        return attune__fail(ATTUNE_UNSUPPORTED, "this version has no %s kernel for this pass", choice->kernel);
    *family = f;
    return ATTUNE_OK;
}

bool attune__cuda_has_role(const attune__program_desc *desc, attune__cuda_role role)
{
    const attune__cuda_family *family = attune__cuda_family_find(desc->choice->kernel);
    const bool back = desc->choice->direction == ATTUNE_BACKWARD;
    switch (role) {
    case ATTUNE__CUDA_MAIN:
        return true;
    case ATTUNE__CUDA_APPEND:
        return desc->shape->tokens != 0;
    case ATTUNE__CUDA_DELTA:
        return back;
    default:
        return back && family && !family->has_fallback;
    }
}

uint32_t attune__cuda_shared_memory(const attune__program_desc *desc, attune__cuda_role role)
{
    const attune__cuda_family *family = attune__cuda_family_find(desc->choice->kernel);
    if (role == ATTUNE__CUDA_DELTA)
        return 0;
    if (role == ATTUNE__CUDA_APPEND)
        return attune_cuda_append_shared(desc->shape->head_dim, desc->shape->head_dim_v);
    return family && family->shared_memory ? family->shared_memory(desc, role) : desc->choice->shared_memory;
}

attune_status attune__cuda_fallback(const attune_limits *limits, const attune__program_desc *desc,
                                    attune__decision *decision)
{
    attune_kernel_options options = {
        .struct_size = sizeof options,
        .any = {.approximate_tanh = desc->choice->approximate_tanh ? ATTUNE_ON : ATTUNE_AUTO},
        .fwd = {.force_use_flex_attention = ATTUNE_ON},
    };
    snprintf(options.any.kernel, sizeof options.any.kernel, "%s", attune__cuda_sm80.name);
    return attune__plan_choose(limits, desc->shape, &options, decision);
}

static attune__cuda_kernel begin_kernel(const char *file, uint32_t architecture, const char *suffix)
{
    attune__cuda_kernel kernel = {.file = file, .option_count = 3};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_%u%s", architecture, suffix);
    snprintf(kernel.options[1], sizeof kernel.options[1], "--fmad=false");
    snprintf(kernel.options[2], sizeof kernel.options[2], "-std=c++17");
    return kernel;
}

static void add_tile(attune__cuda_kernel *kernel, const attune__program_desc *desc, attune__cuda_role role)
{
    const attune_plan_choice *c = desc->choice;
    const bool back = c->direction == ATTUNE_BACKWARD;
    uint32_t m = c->block_m, n = c->block_n;
    if (back) {
        m = role == ATTUNE__CUDA_ROWS ? c->block_m2 : c->block_m1;
        n = role == ATTUNE__CUDA_ROWS ? c->block_n2 : c->block_n1;
    }
    attune__cuda_define(kernel, "BLOCK_M", m);
    attune__cuda_define(kernel, "BLOCK_N", n);
    attune__cuda_define(kernel, "NUM_WARPS", c->num_warps);
    attune__cuda_define(kernel, "NUM_STAGES", c->num_stages);
    attune__cuda_define(kernel, "SHARED_MEMORY", attune__cuda_shared_memory(desc, role));
}

uint32_t attune__cuda_dtype_number(attune_dtype dtype)
{
    static const uint8_t numbers[] = {
        [ATTUNE_F16] = ATTUNE_CUDA_F16,       [ATTUNE_BF16] = ATTUNE_CUDA_BF16,     [ATTUNE_F32] = ATTUNE_CUDA_F32,
        [ATTUNE_F8E4M3] = ATTUNE_CUDA_F8E4M3, [ATTUNE_F8E5M2] = ATTUNE_CUDA_F8E5M2, [ATTUNE_I8] = ATTUNE_CUDA_I8,
        [ATTUNE_Q8_0] = ATTUNE_CUDA_Q8_0,     [ATTUNE_Q4_0] = ATTUNE_CUDA_Q4_0};
    return numbers[dtype];
}

static void add_serving(attune__cuda_kernel *kernel, const attune__shape *s)
{
    const attune_dtype operand = attune__cuda_operand(s);
    if (s->k_dtype != operand)
        attune__cuda_define(kernel, "K_TYPE", attune__cuda_dtype_number(s->k_dtype));
    if (s->v_dtype != operand)
        attune__cuda_define(kernel, "V_TYPE", attune__cuda_dtype_number(s->v_dtype));
    if (s->tree)
        attune__cuda_define(kernel, "TREE", 1);
    if (attune__cuda_has_parts(s))
        attune__cuda_define(kernel, "PARTS", 1);
    if (attune__cuda_has_parts(s) && s->split_keys)
        attune__cuda_define(kernel, "SPLIT_KEYS", s->split_keys);
    if (attune__cuda_shares(s))
        attune__cuda_define(kernel, "SHARES", 1);
}

attune_status attune__cuda_specialise(const attune_allocator *allocator, const attune__program_desc *desc,
                                      uint32_t architecture, attune__cuda_role role, attune__cuda_kernel *kernel)
{
    const attune__shape *s = desc->shape;
    const attune__cuda_family *family = NULL;
    attune__cuda_entry entry = {0};
    ATTUNE__TRY(attune__cuda_entry_of(desc, role, &family, &entry));
    const bool own = role == ATTUNE__CUDA_DELTA || role == ATTUNE__CUDA_APPEND; /* no family's */
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): entry_of succeeded */
    *kernel = begin_kernel(entry.file, architecture, own ? "" : family->suffix);
    const attune_dtype operand = attune__cuda_operand(s);
    attune__cuda_define(kernel, "DTYPE", attune__cuda_dtype_number(operand));
    if (s->q_dtype != operand)
        attune__cuda_define(kernel, "Q_DTYPE", attune__cuda_dtype_number(s->q_dtype));
    attune__cuda_define(kernel, "HEAD_DIM", s->head_dim);
    attune__cuda_define(kernel, "HEAD_DIM_V", attune__cuda_columns(s));
    if (s->head_dim_v != attune__cuda_columns(s))
        attune__cuda_define(kernel, "O_COLUMNS", s->head_dim_v);
    if (role == ATTUNE__CUDA_DELTA)
        return ATTUNE_OK;
    if (role == ATTUNE__CUDA_APPEND) {
        attune__cuda_define(kernel, "K_TYPE", attune__cuda_dtype_number(s->k_dtype));
        attune__cuda_define(kernel, "V_TYPE", attune__cuda_dtype_number(s->v_dtype));
        attune__cuda_define(kernel, "SHARED_MEMORY", attune__cuda_shared_memory(desc, role));
        return ATTUNE_OK;
    }
    if (attune__shape_output(s) != operand)
        attune__cuda_define(kernel, "O_DTYPE", attune__cuda_dtype_number(attune__shape_output(s)));
    add_tile(kernel, desc, role);
    attune__cuda_define(kernel, "HAVE_BLOCKS", s->block_mask && !s->tokens);
    const attune__variant *variant = desc->variant;
    add_variant(kernel, variant);
    if (variant->predicated_loads && (reads_captures(desc->mask) || reads_captures(desc->score)))
        attune__cuda_define(kernel, "PREDICATED_LOADS", 1);
    attune__cuda_define(kernel, "HAVE_MASK", desc->mask && variant->mask_pairs);
    attune__cuda_define(kernel, "HAVE_MASK_RANGE", variant->row_intervals);
    attune__cuda_define(kernel, "HAVE_SCORE", desc->score != NULL);
    if (s->sinks && desc->choice->direction != ATTUNE_BACKWARD)
        attune__cuda_define(kernel, "SINKS", 1);
    if (s->tokens)
        add_serving(kernel, s);
    family->define(kernel, desc, role);
    if (kernel->full)
        return attune__fail(ATTUNE_INTERNAL, "%s has more than %d options", kernel->file, ATTUNE__CUDA_OPTIONS);
    return desc->mask || desc->score ? write_mods(allocator, desc, &kernel->mods) : ATTUNE_OK;
}

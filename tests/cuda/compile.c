/* SPDX-License-Identifier: MIT */
/* The kernels as NVRTC compiles them, for every architecture, without a GPU; and what the cache spares. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/api.h"
#include "base/alloc.h"
#include "base/digest.h"
#include "cuda/compiler.h"
#include "cuda/sources.h"
#include "support/devices.h"
#include "support/heap.h"
#include "support/random_expr.h"

typedef struct fixture {
    heap heap;
    attune__host host;
    attune_instance *instance;
} fixture;

static void fixture_open(fixture *w, attune__cache *cache)
{
    w->host = (attune__host){.allocator = heap_allocator(&w->heap), .cache = cache};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    cr_assert_eq(attune_instance_create(&desc, &w->instance), ATTUNE_OK);
}

/* Compiles the automatic plan of a profile. */
static void compile_problem(fixture *w, const char *profile_name, const attune_problem *problem)
{
    attune_profile profile = {.struct_size = sizeof profile};
    cr_assert_eq(attune_profile_find(profile_name, &profile), ATTUNE_OK);
    attune__shape shape;
    attune__decision decision;
    cr_assert_eq(attune__shape_from_problem(problem, &shape), ATTUNE_OK, "%s", attune_last_error());
    shape.expr = attune__analyse(problem->mask, problem->score, NULL);
    cr_assert_eq(attune__plan_choose(&profile.limits, &shape, NULL, &decision), ATTUNE_OK, "%s", attune_last_error());
    const attune__program_desc desc = {&shape, &decision.choice, &decision.variant, problem->mask, problem->score, NULL,
                                       NULL};
    attune__cuda_kernel kernel;
    void *cubin = NULL;
    size_t size = 0;
    cr_assert_eq(
        attune__cuda_specialise(&w->host.allocator, &desc, profile.limits.architecture, ATTUNE__CUDA_MAIN, &kernel),
        ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(attune__cuda_compile(&w->host, &kernel, &cubin, &size), ATTUNE_OK, "%s head_dim %u: %s", profile_name,
                 problem->head_dim, attune_last_error());
    cr_assert(size > 1000 && !memcmp(cubin, "\177ELF", 4));
    attune__free(&w->host.allocator, cubin);
    attune__free(&w->host.allocator, (void *)(uintptr_t)kernel.mods);
}

static void compile(fixture *w, const char *profile_name, attune_dtype dtype, uint32_t head_dim,
                    const attune_expr *mask, const attune_expr *score)
{
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .dtype = dtype,
                                    .head_dim = head_dim,
                                    .q_len = 2048,
                                    .mask = mask,
                                    .score = score,
                                    .lse = true};
    compile_problem(w, profile_name, &problem);
}

/* Q of every type that is not the products', in forward and decode, and O of every other. */
Test(cuda_compile, mixed_types)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    static const struct {
        attune_dtype q, kv, o;
        int64_t q_len;
    } mixes[] = {
        {ATTUNE_F32, ATTUNE_F16, ATTUNE_F32, 2048},  {ATTUNE_F32, ATTUNE_BF16, ATTUNE_F32, 1},
        {ATTUNE_F16, ATTUNE_BF16, ATTUNE_F16, 2048}, {ATTUNE_BF16, ATTUNE_F32, ATTUNE_BF16, 1},
        {ATTUNE_F16, ATTUNE_F32, ATTUNE_F32, 2048},  {ATTUNE_F32, ATTUNE_F32, ATTUNE_F16, 1},
    };
    attune_expr *mask;
    cr_assert_eq(attune_expr_create(w.instance, ATTUNE_EXPR_MASK, "q >= kv", NULL, 0, &mask), ATTUNE_OK);
    for (size_t i = 0; i < scaled(6) && i < sizeof mixes / sizeof mixes[0]; i++) {
        const attune_problem problem = {.struct_size = sizeof problem,
                                        .dtype = mixes[i].q,
                                        .kv_dtype = mixes[i].kv,
                                        .o_dtype = mixes[i].o,
                                        .head_dim = i % 2 ? 72 : 128,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .q_len = mixes[i].q_len,
                                        .kv_len = 2048,
                                        .mask = i % 3 ? NULL : mask,
                                        .lse = true};
        compile_problem(&w, i % 2 ? "h200" : "a6000", &problem);
    }
    attune_expr_destroy(mask);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

Test(cuda_compile, every_architecture)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    const char *const profiles[] = {"a100", "a6000", "rtx4090", "h200", "b200", "rtx5090"};
    for (size_t i = 0; i < scaled(6) && i < sizeof profiles / sizeof profiles[0]; i++)
        compile(&w, profiles[i], i % 2 ? ATTUNE_F16 : ATTUNE_BF16, i % 3 ? 128 : 64, NULL, NULL);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

/* The merging kernel comes with a plan that has segments, once. */
Test(cuda_compile, segments_bring_the_merge)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    static const char *const profiles[] = {"a100", "a6000", "rtx4090", "h200", "b200", "rtx5090"};
    for (size_t i = 0; i < scaled(6) && i < sizeof profiles / sizeof profiles[0]; i++) {
        attune_profile profile = {.struct_size = sizeof profile};
        attune_pack *pack;
        uint32_t kernels;
        cr_assert_eq(attune_profile_find(profiles[i], &profile), ATTUNE_OK);
        cr_assert_eq(attune_pack_create(w.instance, &pack), ATTUNE_OK);
        attune_problem problem = {
            .struct_size = sizeof problem, .dtype = ATTUNE_BF16, .head_dim = 64, .q_len = 1024, .segments = 2};
        const attune_kernel_options options = {.struct_size = sizeof options,
                                               .any = {.kernel = "cuda_sm80", .force_use_flex_attention = ATTUNE_ON}};
        for (int j = 0; j < 2; j++) {
            cr_assert_eq(attune_pack_add(pack, &profile.limits, &problem, &options), ATTUNE_OK, "%s",
                         attune_last_error());
            cr_assert_eq(attune_pack_size(pack, &kernels, NULL), ATTUNE_OK);
            cr_expect_eq(kernels, 4, "%s: %u kernels", profiles[i], kernels);
        }
        attune_pack_destroy(pack);
    }
    attune_instance_destroy(w.instance);
}

/* Kernels that update masks of a tensor, as src/cuda/mask_update.c asks for it. */
Test(cuda_compile, mask_lists)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    static const char *const architectures[] = {"-arch=sm_80", "-arch=sm_90", "-arch=sm_120"};
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        attune__cuda_kernel kernel = {.file = "mask_lists.cu", .option_count = 2};
        void *cubin;
        size_t size;
        strcpy(kernel.options[0], architectures[i]);
        strcpy(kernel.options[1], "-std=c++17");
        cr_assert_eq(attune__cuda_compile(&w.host, &kernel, &cubin, &size), ATTUNE_OK, "%s: %s", architectures[i],
                     attune_last_error());
        attune__free(&w.host.allocator, cubin);
    }
    attune_instance_destroy(w.instance);
}

/* The options of a kernel that includes the header. */
static void header_options(fixture *w, const char *header, const attune_expr *mask, const attune_expr *score,
                           const attune__gradient *gradient, attune__cuda_kernel *kernel)
{
    const bool hopper = strstr(header, "sm90") || strstr(header, "hopper") || strstr(header, "wgmma"),
               blackwell = strstr(header, "sm100") || strstr(header, "tcgen05"),
               cluster = strstr(header, "pair_") && !blackwell,
               back = strstr(header, "backward") || strstr(header, "gradients"), cache = strstr(header, "serving_");
    const int64_t rows = hopper && cache ? 64 : cache ? 4 : 2048; /* few are cuda_sm80's on Hopper too */
    const attune_problem problem = {.struct_size = sizeof problem,
                                    .direction = back ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                    .dtype = ATTUNE_BF16,
                                    .head_dim = strstr(header, "wide_serving")      ? 512
                                                : strstr(header, "wide") || cluster ? 256
                                                                                    : 128,
                                    .q_len = rows,
                                    .kv_len = 2048,
                                    .tokens = cache ? rows : 0,
                                    .mask = mask,
                                    .score = score,
                                    .capture_gradient_elements = back && gradient && !cluster ? 100 : 0,
                                    .lse = true};
    attune_profile profile = {.struct_size = sizeof profile};
    attune__shape shape;
    attune__decision decision;
    const char *const name = blackwell ? "cuda_sm100a" : hopper && cache ? "cuda_serving_sm90a" : "";
    attune_kernel_options options = {.struct_size = sizeof options};
    snprintf(options.any.kernel, sizeof options.any.kernel, "%s", name);
    cr_assert_eq(attune_profile_find(hopper ? "h200" : blackwell ? "b200" : "a100", &profile), ATTUNE_OK);
    cr_assert_eq(attune__shape_from_problem(&problem, &shape), ATTUNE_OK, "%s", attune_last_error());
    shape.expr = attune__analyse(mask, score, back ? gradient : NULL);
    cr_assert_eq(attune__plan_choose(&profile.limits, &shape, *name ? &options : NULL, &decision), ATTUNE_OK, "%s",
                 attune_last_error());
    const attune__program_desc desc = {&shape, &decision.choice, &decision.variant, mask, score, back ? gradient : NULL,
                                       NULL};
    cr_assert_eq(
        attune__cuda_specialise(&w->host.allocator, &desc, profile.limits.architecture, ATTUNE__CUDA_MAIN, kernel),
        ATTUNE_OK, "%s", attune_last_error());
    kernel->file = header;
}

/* A header includes what it needs, with every kind of expression and with none. */
Test(cuda_compile, every_header_alone)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    static const attune_symbol symbols[] = {{"bias", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                            {"doc", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1}};
    attune_expr *mask, *score;
    attune__gradient *gradient;
    cr_assert_eq(attune_expr_create(w.instance, ATTUNE_EXPR_MASK, "doc[q] == doc[kv]", symbols, 2, &mask), ATTUNE_OK);
    cr_assert_eq(
        attune_expr_create(w.instance, ATTUNE_EXPR_SCORE, "20 * tanh(score / 20) + bias[kv]", symbols, 2, &score),
        ATTUNE_OK);
    cr_assert_eq(attune__gradient_create(score, &gradient), ATTUNE_OK);
    size_t headers = 0;
    for (const attune__cuda_source *s = attune__cuda_sources; s->name; s++) {
        if (!strstr(s->name, ".cuh"))
            continue;
        for (int plain = 0; plain < 2; plain++) {
            attune__cuda_kernel kernel;
            void *cubin = NULL;
            size_t size;
            header_options(&w, s->name, plain ? NULL : mask, plain ? NULL : score, plain ? NULL : gradient, &kernel);
            cr_expect_eq(attune__cuda_compile(&w.host, &kernel, &cubin, &size), ATTUNE_OK, "%s %s expressions: %s",
                         s->name, plain ? "without" : "with", attune_last_error());
            attune__free(&w.host.allocator, cubin);
            attune__free(&w.host.allocator, (void *)(uintptr_t)kernel.mods);
        }
        headers++;
    }
    cr_expect_gt(headers, 20);
    attune__gradient_destroy(gradient);
    attune_expr_destroy(mask);
    attune_expr_destroy(score);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

/* Keys of the cache and of packs have the sources' digest, which is made when the library is built. */
Test(cuda_compile, the_digest_is_that_of_the_sources)
{
    attune__digest digest = attune__digest_begin();
    for (const attune__cuda_source *s = attune__cuda_sources; s->name; s++) {
        attune__digest_add(&digest, s->name, strlen(s->name) + 1);
        attune__digest_add(&digest, s->text, strlen(s->text) + 1);
    }
    uint8_t bytes[ATTUNE__DIGEST_SIZE];
    char text[2 * ATTUNE__DIGEST_SIZE + 1];
    attune__digest_end(&digest, bytes);
    for (int i = 0; i < ATTUNE__DIGEST_SIZE; i++)
        snprintf(text + (size_t)i * 2, 3, "%02x", bytes[i]);
    cr_expect_str_eq(text, attune__cuda_sources_digest);
}

Test(cuda_compile, random_expressions)
{
    nvrtc_or_skip();
    static fixture w;
    static random_expr e;
    fixture_open(&w, NULL);
    for (uint64_t i = 0; i < scaled(3); i++) {
        attune_expr *exprs[2];
        for (int j = 0; j < 2; j++) {
            random_expr_make(&e, test_seed() + 2 * i + (uint64_t)j, j ? ATTUNE_EXPR_SCORE : ATTUNE_EXPR_MASK, 12);
            cr_assert_eq(attune_expr_create(w.instance, e.kind, e.text, e.symbols, e.symbol_count, &exprs[j]),
                         ATTUNE_OK, "%s", attune_last_error());
        }
        compile(&w, i % 2 ? "a6000" : "h200", ATTUNE_BF16, 64, exprs[0], exprs[1]);
        attune_expr_destroy(exprs[0]);
        attune_expr_destroy(exprs[1]);
    }
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

/* The GPU's own tanh is asked for by name, in scores alone, and by both kernels of a plan for Hopper. */
Test(cuda_compile, approximate_tanh)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    attune_expr *mask = NULL, *score = NULL;
    cr_assert_eq(attune_expr_create(w.instance, ATTUNE_EXPR_MASK, "tanh(q * 0.01) >= tanh(kv * 0.01)", NULL, 0, &mask),
                 ATTUNE_OK);
    cr_assert_eq(attune_expr_create(w.instance, ATTUNE_EXPR_SCORE, "30 * tanh(score / 30)", NULL, 0, &score),
                 ATTUNE_OK);
    attune__gradient *gradient = NULL;
    cr_assert_eq(attune__gradient_create(score, &gradient), ATTUNE_OK);
    attune_profile profile = {.struct_size = sizeof profile};
    cr_assert_eq(attune_profile_find("h200", &profile), ATTUNE_OK);
    for (int i = 0; i < 8; i++) {
        const bool approximate = i & 1, back = i & 2, fallback = i & 4;
        attune_problem problem = {.struct_size = sizeof problem,
                                  .direction = back ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                  .dtype = ATTUNE_BF16,
                                  .head_dim = 64,
                                  .q_len = 1024,
                                  .mask = mask,
                                  .score = score};
        const attune_kernel_options options = {.struct_size = sizeof options,
                                               .any.approximate_tanh = approximate ? ATTUNE_ON : ATTUNE_AUTO};
        attune__shape shape;
        attune__decision decision, second;
        cr_assert_eq(attune__shape_from_problem(&problem, &shape), ATTUNE_OK);
        shape.expr = attune__analyse(mask, score, back ? gradient : NULL);
        cr_assert_eq(attune__plan_choose(&profile.limits, &shape, &options, &decision), ATTUNE_OK);
        attune__program_desc desc = {&shape, &decision.choice, &decision.variant, mask, score, back ? gradient : NULL,
                                     NULL};
        if (fallback) {
            cr_assert_eq(attune__cuda_fallback(&profile.limits, &desc, &second), ATTUNE_OK);
            cr_assert_str_eq(second.choice.kernel, "cuda_sm80");
            desc.choice = &second.choice;
            desc.variant = &second.variant;
        }
        attune__cuda_kernel kernel;
        cr_assert_eq(attune__cuda_specialise(&w.host.allocator, &desc, 90, ATTUNE__CUDA_MAIN, &kernel), ATTUNE_OK);
        const char *named = strstr(kernel.mods, "attune_tanh_approximate");
        cr_assert_eq(named != NULL, approximate);
        if (named)
            cr_assert(strstr(kernel.mods, "attune_mask") < named && named < strstr(kernel.mods, "attune_score"));
        void *cubin = NULL;
        size_t size = 0;
        cr_assert_eq(attune__cuda_compile(&w.host, &kernel, &cubin, &size), ATTUNE_OK, "%s", attune_last_error());
        attune__free(&w.host.allocator, cubin);
        attune__free(&w.host.allocator, (void *)(uintptr_t)kernel.mods);
    }
    attune__gradient_destroy(gradient);
    attune_expr_destroy(mask);
    attune_expr_destroy(score);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

/* Side by side or one after another: the same cubins. One that does not compile leaves none of the others. */
Test(cuda_compile, several_at_once)
{
    nvrtc_or_skip();
    static fixture w;
    fixture_open(&w, NULL);
    attune__cuda_kernel kernels[3];
    for (int i = 0; i < 3; i++) {
        kernels[i] = (attune__cuda_kernel){.file = "delta.cu", .option_count = 4};
        snprintf(kernels[i].options[0], sizeof kernels[i].options[0], "-arch=sm_80");
        snprintf(kernels[i].options[1], sizeof kernels[i].options[1], "-DATTUNE_DTYPE=%d", i + 1);
        snprintf(kernels[i].options[2], sizeof kernels[i].options[2], "-DATTUNE_HEAD_DIM=64");
        snprintf(kernels[i].options[3], sizeof kernels[i].options[3], "-DATTUNE_HEAD_DIM_V=64");
    }
    attune__cuda_job together[3], separate[3];
    for (int i = 0; i < 3; i++)
        together[i].kernel = separate[i].kernel = &kernels[i];
    w.host.compile_threads = 3;
    cr_assert_eq(attune__cuda_compile_all(&w.host, together, 3), ATTUNE_OK, "%s", attune_last_error());
    w.host.compile_threads = 0;
    cr_assert_eq(attune__cuda_compile_all(&w.host, separate, 3), ATTUNE_OK, "%s", attune_last_error());
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(together[i].size, separate[i].size);
        cr_assert_eq(memcmp(together[i].cubin, separate[i].cubin, separate[i].size), 0);
        attune__free(&w.host.allocator, together[i].cubin);
        attune__free(&w.host.allocator, separate[i].cubin);
    }
    kernels[1].file = "forward_sm80.cu";
    snprintf(kernels[1].options[2], sizeof kernels[1].options[2], "-DATTUNE_BLOCK_M=8"); /* a warp has 16 rows */
    w.host.compile_threads = 2;
    cr_assert_eq(attune__cuda_compile_all(&w.host, together, 3), ATTUNE_COMPILE_FAILED);
    cr_assert_not_null(strstr(attune_last_error(), "forward_sm80.cu"), "%s", attune_last_error());
    for (int i = 0; i < 3; i++)
        cr_assert_null(together[i].cubin);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
}

/* A source that does not compile is told so and not kept; one that does comes from the disk the second time. */
Test(cuda_compile, the_cache_spares_the_compiler)
{
    nvrtc_or_skip();
    static fixture w;
    char folder[] = "/tmp/attune-cuda-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    const attune__cache_desc desc = {.allocator = heap_allocator(&w.heap), .folder = folder};
    attune__cache *cache = attune__cache_open(&desc);
    fixture_open(&w, cache);
    attune__cuda_kernel kernel = {
        .file = "forward_sm80.cu", .mods = "#include \"prelude.cuh\"\nnot C++", .option_count = 2};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_80");
    snprintf(kernel.options[1], sizeof kernel.options[1], "-DATTUNE_HAVE_SCORE=1");
    void *cubin = NULL;
    size_t size = 0;
    cr_assert_eq(attune__cuda_compile(&w.host, &kernel, &cubin, &size), ATTUNE_COMPILE_FAILED);
    cr_assert_not_null(strstr(attune_last_error(), "error"), "%s", attune_last_error());
    struct timespec times[3];
    for (int i = 0; i < 2; i++) {
        clock_gettime(CLOCK_MONOTONIC, &times[i]);
        compile(&w, "a100", ATTUNE_F16, 64, NULL, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &times[2]);
    const double cold =
                     (double)(times[1].tv_sec - times[0].tv_sec) + (double)(times[1].tv_nsec - times[0].tv_nsec) * 1e-9,
                 warm =
                     (double)(times[2].tv_sec - times[1].tv_sec) + (double)(times[2].tv_nsec - times[1].tv_nsec) * 1e-9;
    cr_log_info("cold %.0f ms, from the cache %.1f ms", cold * 1e3, warm * 1e3);
    cr_assert_lt(warm * 5, cold);
    attune__cache_close(cache);
    cr_assert_eq(atomic_load(&w.heap.live), 0);
    attune_instance_destroy(w.instance);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

/* SPDX-License-Identifier: MIT */
/*
 * Random expressions as CUDA: their text compiled by NVRTC, many in one unit, without a GPU; and on a GPU against the
 * interpreter, at random points, none of them below 0: the text rests on it. The bounds of Vulkan's functions,
 * tests/vulkan/mods_bounds.h, are wider than CUDA's.
 */
#include "expr/common.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/arguments.h"
#include "cuda/compiler.h"
#include "cuda/cuda.h"
#include "support/arena.h"
#include "support/cubin.h"
#include "support/heap.h"
#include "vulkan/mods_bounds.h"

#define TOGETHER 100 /* expressions in one unit */
#define POINTS   192

/* ------------------------------------------------------------------------------------------------- what is compiled */

typedef struct unit {
    random_expr sources[TOGETHER];
    bound bounds[TOGETHER];
    uint32_t count;
    char *text;
    size_t size;
} unit;

static const char head[] = "#include \"prelude.cuh\"\n"
                           "struct point { int b, h, q, kv, h_kv, q_len, kv_len; float score; };\n";
static const char tail_begin[] =
    "extern \"C\" __global__ void attune_mods(const point *points, unsigned count, const unsigned long long *tables, "
    "int *results, unsigned first)\n"
    "{\n"
    "    unsigned n = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (n >= count)\n"
    "        return;\n"
    "    point p = points[blockIdx.y * count + n];\n"
    "    const attune_cuda_symbol *symbols = (const attune_cuda_symbol *)tables[blockIdx.y];\n"
    "    int *result = results + blockIdx.y * count + n;\n"
    "    switch (blockIdx.y + first) {\n";

/* Seeds first ... first + count - 1, masks and scores alternately. */
static void make_unit(unit *u, uint64_t first, uint32_t count)
{
    u->count = count;
    size_t fixture = sizeof head + sizeof tail_begin + 64;
    for (uint32_t i = 0; i < count; i++) {
        size_t size;
        char name[16];
        snprintf(name, sizeof name, "mod_%u", i);
        bind_random(&u->bounds[i], &u->sources[i], first + i, i % 2 ? ATTUNE_EXPR_SCORE : ATTUNE_EXPR_MASK,
                    1 + (uint32_t)((first + i) % 29));
        cr_assert_eq(attune__expr_ctext(u->bounds[i].expr, name, NULL, 0, &size), ATTUNE_OK, "%s", attune_last_error());
        fixture += size + 160;
    }
    u->text = malloc(fixture);
    cr_assert_not_null(u->text);
    size_t at = (size_t)snprintf(u->text, fixture, "%s", head);
    for (uint32_t i = 0; i < count; i++) {
        size_t size;
        char name[16];
        snprintf(name, sizeof name, "mod_%u", i);
        cr_assert_eq(attune__expr_ctext(u->bounds[i].expr, name, u->text + at, fixture - at, &size), ATTUNE_OK);
        at += size - 1;
    }
    at += (size_t)snprintf(u->text + at, fixture - at, "%s", tail_begin);
    for (uint32_t i = 0; i < count; i++)
        at +=
            (size_t)snprintf(u->text + at, fixture - at,
                             "    case %u: *result = %smod_%u(p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score, "
                             "symbols)%s; break;\n",
                             i, i % 2 ? "__float_as_int(" : "", i, i % 2 ? ")" : "");
    at += (size_t)snprintf(u->text + at, fixture - at, "    }\n}\n");
    cr_assert_lt(at, fixture);
}

static void free_unit(unit *u)
{
    for (uint32_t i = 0; i < u->count; i++)
        attune__expr_release(u->bounds[i].expr);
    free(u->text);
}

/* As the kernels are: without contraction or fast mathematics. */
static void compile_unit(const attune__host *host, const unit *u, uint32_t architecture, uint64_t first, void **cubin,
                         size_t *size)
{
    attune__cuda_kernel kernel = {.file = "prelude.cuh", .mods = u->text, .option_count = 4};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=sm_%u", architecture);
    snprintf(kernel.options[1], sizeof kernel.options[1], "--fmad=false");
    snprintf(kernel.options[2], sizeof kernel.options[2], "-std=c++17");
    snprintf(kernel.options[3], sizeof kernel.options[3], "--pre-include=mods.cuh");
    const attune_status status = attune__cuda_compile(host, &kernel, cubin, size);
    cr_assert(status == ATTUNE_OK, "seeds %llu and following: %s", (unsigned long long)first, attune_last_error());
}

Test(cuda_mods, random_expressions_compile)
{
    nvrtc_or_skip();
    static unit u;
    static heap h;
    const attune__host host = {.allocator = heap_allocator(&h)};
    const uint64_t count = scaled(500), seed = test_seed() + 91;
    for (uint64_t done = 0; done < count; done += u.count) {
        void *cubin;
        size_t size;
        make_unit(&u, seed + done, (uint32_t)(count - done < TOGETHER ? count - done : TOGETHER));
        compile_unit(&host, &u, done / TOGETHER % 2 ? 120 : 80, seed + done, &cubin, &size);
        cr_assert(size > 1000 && !memcmp(cubin, "\177ELF", 4));
        attune__free(&host.allocator, cubin);
        free_unit(&u);
    }
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* The comparisons that a mask of `holes` is compiled to. */
static uint32_t compares_of(const attune__host *host, attune_instance *instance, const char *text,
                            const char *architecture)
{
    static const attune_symbol holes = {"holes", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1};
    static char mods[8192];
    attune_expr *expr;
    size_t size;
    cr_assert_eq(attune_expr_create(instance, ATTUNE_EXPR_MASK, text, &holes, 1, &expr), ATTUNE_OK, "%s",
                 attune_last_error());
    size_t at = (size_t)snprintf(mods, sizeof mods, "#include \"prelude.cuh\"\n");
    cr_assert_eq(attune__expr_ctext(expr, "mod", mods + at, sizeof mods - at, &size), ATTUNE_OK);
    at += size - 1;
    snprintf(mods + at, sizeof mods - at,
             "extern \"C\" __global__ void k(const attune_cuda_symbol *symbols, int *results)\n"
             "{ results[threadIdx.x] = mod(0, 0, threadIdx.x, 0, 0, 1, 1, 0.0f, symbols); }\n");
    attune__cuda_kernel kernel = {.file = "prelude.cuh", .mods = mods, .option_count = 4};
    snprintf(kernel.options[0], sizeof kernel.options[0], "-arch=%s", architecture);
    snprintf(kernel.options[1], sizeof kernel.options[1], "--fmad=false");
    snprintf(kernel.options[2], sizeof kernel.options[2], "-std=c++17");
    snprintf(kernel.options[3], sizeof kernel.options[3], "--pre-include=mods.cuh");
    void *cubin;
    cubin_figures figures;
    cr_assert_eq(attune__cuda_compile(host, &kernel, &cubin, &size), ATTUNE_OK, "%s: %s", text, attune_last_error());
    const char *wrong = cubin_read(cubin, size, &figures);
    cr_assert_null(wrong, "%s: %s", text, wrong);
    attune__free(&host->allocator, cubin);
    attune_expr_destroy(expr);
    return figures.compares;
}

/* A magnitude may be NaN, and then it is not above a number below 0: the comparison must be there as it is with another
 * number. */
Test(cuda_mods, magnitudes_may_be_no_numbers)
{
    nvrtc_or_skip();
    static const char *const texts[][2] = {
        {"abs(holes[q]) >= -1.5", "abs(holes[q]) >= 1.5"},
        {"-abs(holes[q]) <= 1.5", "-abs(holes[q]) <= -1.5"},
        {"min(abs(holes[q]), -1.0) < -0.5", "min(abs(holes[q]), 1.0) < 0.5"},
    };
    static heap h;
    const attune__host host = {.allocator = heap_allocator(&h)};
    const attune_instance_desc desc = {.struct_size = sizeof desc, .cache_folder = ""};
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(&desc, &instance), ATTUNE_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *architecture = i % 2 ? "sm_80" : "sm_90a";
        const uint32_t found = compares_of(&host, instance, texts[i][0], architecture),
                       wanted = compares_of(&host, instance, texts[i][1], architecture);
        cr_expect(wanted && found == wanted, "%s, %s: %u comparisons, %u in %s", architecture, texts[i][0], found,
                  wanted, texts[i][1]);
    }
    attune_instance_destroy(instance);
    cr_assert_eq(atomic_load(&h.live), 0);
}

/* ------------------------------------------------------------------------------------------------------ what is run */

typedef struct gpu_point {
    int32_t b, h, q, kv, h_kv, q_len, kv_len;
    float score;
} gpu_point;

static attune_cuda_symbol place_capture(arena *a, const attune_array *array, uint64_t *state)
{
    attune_cuda_symbol c = {.is.address = arena_place(a, array, state)};
    for (uint32_t d = 0; d < array->rank && c.is.address; d++) {
        c.size[d] = array->size[d];
        c.stride[d] = array->stride[d];
    }
    return c;
}

static uint64_t place_symbols(arena *a, const bound *x, uint64_t *state)
{
    attune_cuda_symbol symbols[ATTUNE_EXPR_MAX_SYMBOLS] = {{.is.address = 0}};
    for (uint32_t i = 0; i < x->expr->symbol_count; i++) {
        if (x->expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            symbols[i] = place_capture(a, &x->arrays[i], state);
        else
            memcpy(&symbols[i].is, &x->values[i], sizeof x->values[i]);
    }
    const size_t at = arena_take(a, sizeof symbols, 8);
    memcpy(a->bytes + at, symbols, sizeof symbols);
    return a->address + at;
}

static void launch_unit(attune_device *device, const void *cubin, uint32_t count, uint64_t points, uint64_t tables,
                        uint64_t results)
{
    attune__cuda_device *mine = attune__cuda_of(device);
    const attune__cuda_driver *driver = &mine->driver;
    attune__cu_module module;
    attune__cu_function function;
    unsigned each = POINTS, first = 0;
    void *parameters[] = {&points, &each, &tables, &results, &first};
    cr_assert_eq(attune__cuda_enter(mine), ATTUNE_OK, "%s", attune_last_error());
    cr_assert_eq(driver->module_load(&module, cubin), CU_SUCCESS);
    cr_assert_eq(driver->module_function(&function, module, "attune_mods"), CU_SUCCESS);
    cr_assert_eq(driver->launch(function, 1, count, 1, POINTS, 1, 1, 0, mine->queue.stream, parameters, NULL),
                 CU_SUCCESS);
    cr_assert_eq(driver->stream_synchronize(mine->queue.stream), CU_SUCCESS);
    driver->module_unload(module);
    attune__cuda_leave(mine);
}

typedef struct tally {
    uint64_t equal, exact, undecided;
    double worst; /* error / bound */
} tally;

static void check(const bound *x, const char *text, const attune_point *p, int32_t bits, tally *t)
{
    const mods_bound wanted = mods_bound_of(x->expr, &x->bindings, p);
    float found;
    memcpy(&found, &bits, sizeof found);
    if (!wanted.decided) {
        t->undecided++;
        return;
    }
    t->equal++;
    t->exact += wanted.error == 0;
    if (x->expr->kind == ATTUNE_EXPR_MASK) {
        cr_assert((bits != 0) == (wanted.value.i != 0),
                  "%s\ndevice %d, interpreter %d at b %d h %d q %d kv %d h_kv %d q_len %d kv_len %d", text, bits,
                  wanted.value.i, p->b, p->h, p->q, p->kv, p->h_kv, p->q_len, p->kv_len);
        return;
    }
    const double error =
        same_float(found, wanted.value.f) || found == wanted.value.f ? 0 : fabs((double)found - (double)wanted.value.f);
    cr_assert(error <= wanted.error, "%s\ndevice %.9g, interpreter %.9g, bound %.3g at b %d h %d q %d kv %d score %.9g",
              text, (double)found, (double)wanted.value.f, wanted.error, p->b, p->h, p->q, p->kv, (double)p->score);
    if (error > 0 && error / wanted.error > t->worst)
        t->worst = error / wanted.error;
}

static void run_unit(attune_device *device, attune_buffer *buffer, const unit *u, uint64_t seed, tally *t)
{
    static arena a;
    static attune_point points[TOGETHER][POINTS];
    static int32_t found[TOGETHER * POINTS];
    uint64_t tables[TOGETHER], state = seed ^ UINT64_C(0x5851F42D4C957F2D);
    arena_reset(&a, attune__cuda_pointer(buffer), seed);
    for (uint32_t i = 0; i < u->count; i++)
        tables[i] = place_symbols(&a, &u->bounds[i], &state);
    const size_t tables_at = arena_take(&a, sizeof tables, 8),
                 points_at = arena_take(&a, sizeof(gpu_point) * u->count * POINTS, 8),
                 results_at = arena_take(&a, sizeof found, 8);
    memcpy(a.bytes + tables_at, tables, sizeof tables);
    for (uint32_t i = 0; i < u->count; i++)
        for (uint32_t n = 0; n < POINTS; n++) {
            const attune_point p = points[i][n] = random_point(&state);
            const gpu_point given = {p.b, p.h, p.q, p.kv, p.h_kv, p.q_len, p.kv_len, p.score};
            memcpy(a.bytes + points_at + (i * POINTS + n) * sizeof given, &given, sizeof given);
        }
    void *cubin;
    size_t size;
    attune_device_info info = {.struct_size = sizeof info};
    cr_assert_eq(attune_device_info_get(device, &info), ATTUNE_OK);
    compile_unit(&device->host, u, info.limits.architecture, seed, &cubin, &size);
    cr_assert_eq(attune_buffer_write(buffer, 0, a.bytes, ARENA_SIZE), ATTUNE_OK, "%s", attune_last_error());
    launch_unit(device, cubin, u->count, a.address + points_at, a.address + tables_at, a.address + results_at);
    cr_assert_eq(attune_buffer_read(buffer, results_at, found, sizeof found), ATTUNE_OK, "%s", attune_last_error());
    attune__free(&device->host.allocator, cubin);
    for (uint32_t i = 0; i < u->count; i++)
        for (uint32_t n = 0; n < POINTS; n++)
            check(&u->bounds[i], u->sources[i].text, &points[i][n], found[i * POINTS + n], t);
}

Test(cuda_mods, agree_with_the_interpreter)
{
    attune_instance *instance;
    cr_assert_eq(attune_instance_create(NULL, &instance), ATTUNE_OK);
    attune_device *device = device_or_skip(instance, "cuda");
    attune_buffer *buffer;
    cr_assert_eq(attune_buffer_create(device, ARENA_SIZE, &buffer), ATTUNE_OK, "%s", attune_last_error());
    static unit u;
    const uint64_t count = scaled(300), seed = test_seed() + 31;
    tally t = {0};
    for (uint64_t done = 0; done < count; done += u.count) {
        make_unit(&u, seed + done, (uint32_t)(count - done < TOGETHER ? count - done : TOGETHER));
        run_unit(device, buffer, &u, seed + done, &t);
        free_unit(&u);
    }
    const uint64_t all = POINTS * count;
    cr_assert(count < TOGETHER || t.undecided < all / 4, "%llu of %llu undecided: nothing is tested",
              (unsigned long long)t.undecided, (unsigned long long)all);
    cr_log_info("%llu expressions at %d points: %llu equal, %llu of them exactly; largest error %.2f of its bound; "
                "%llu undecided",
                (unsigned long long)count, POINTS, (unsigned long long)t.equal, (unsigned long long)t.exact, t.worst,
                (unsigned long long)t.undecided);
    attune_buffer_destroy(buffer);
    attune_device_destroy(device);
    attune_instance_destroy(instance);
}

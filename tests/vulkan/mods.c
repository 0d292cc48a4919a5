/* SPDX-License-Identifier: MIT */
/* Spliced modules: held against the validator of SPIRV-Tools, and made from damaged ones. */
#include "expr/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if MODS_SPIRV_TOOLS
#include <spirv-tools/libspirv.h>
#endif

/* These define arrays, which the library has too. */
#define attune__spirv_forward_bf16          kernel_bf16
#define attune__spirv_lanes_backward_kv_f32 kernel_lanes_kv
#define attune__spirv_lanes_backward_q_f16  kernel_lanes_q
#define attune__spirv_forward_f16           kernel_f16
#define attune__spirv_forward_f32           kernel_f32
#define attune__spirv_forward_subgroup_f16  kernel_subgroup_f16
#define attune__spirv_backward_kv_f16       kernel_backward_kv
#define attune__spirv_backward_q_f32        kernel_backward_q
#include "backward_kv_f16.h"
#include "backward_q_f32.h"
#include "forward_bf16.h"
#include "forward_f16.h"
#include "forward_f32.h"
#include "forward_subgroup_f16.h"
#include "lanes_backward_kv_f32.h"
#include "lanes_backward_q_f16.h"
#include "mods_template.h"
#include "mods_template_gradient.h"
#include "mods_template_vulkan.h"
#include "support/presets.h"
#include "vulkan/mods.h"
#include "vulkan/vulkan.h"

#define MODULE(name)                                                                                                   \
    {                                                                                                                  \
        name, sizeof name / sizeof name[0]                                                                             \
    }

typedef struct module {
    const uint32_t *words;
    size_t count;
} module;

/* The first two are small, and of either memory model; the others are kernels. */
static const module modules[] = {
    MODULE(mods_template), MODULE(mods_template_vulkan), MODULE(kernel_f32),
    MODULE(kernel_f16),    MODULE(kernel_bf16),          MODULE(kernel_subgroup_f16),
};
#define MODULES (sizeof modules / sizeof modules[0])

/* With the stubs of derivatives; the first is small. */
static const module derived[] = {MODULE(mods_template_gradient), MODULE(kernel_backward_q), MODULE(kernel_backward_kv),
                                 MODULE(kernel_lanes_q), MODULE(kernel_lanes_kv)};
#define DERIVED (sizeof derived / sizeof derived[0])

/* The library if it was there when this was built, else the program. */
static bool is_valid(const uint32_t *words, size_t count, const char *what)
{
#if MODS_SPIRV_TOOLS
    spv_context context = spvContextCreate(SPV_ENV_VULKAN_1_2);
    spv_diagnostic diagnostic = NULL;
    const bool valid = spvValidateBinary(context, words, count, &diagnostic) == SPV_SUCCESS;
    if (!valid)
        fprintf(stderr, "%s\nword %zu: %s\n", what, diagnostic->position.index, diagnostic->error);
    spvDiagnosticDestroy(diagnostic);
    spvContextDestroy(context);
    return valid;
#else
    const char *root = getenv("TMPDIR");
    char path[128], command[256];
    snprintf(path, sizeof path, "%.80s/attune-mods-XXXXXX", root ? root : "/tmp");
    int file = mkstemp(path);
    cr_assert(file >= 0 && write(file, words, count * 4) == (ssize_t)(count * 4));
    close(file);
    snprintf(command, sizeof command, "spirv-val --target-env vulkan1.2 %s", path);
    const bool valid = system(command) == 0;
    unlink(path);
    if (!valid)
        fprintf(stderr, "%s\n", what);
    return valid;
#endif
}

static void skip_without_validator(void)
{
#if !MODS_SPIRV_TOOLS
    if (system("spirv-val --version >/dev/null 2>&1"))
        cr_skip_test("no spirv-val");
#endif
}

static bool has_opcode(const uint32_t *words, size_t count, uint32_t opcode)
{
    for (size_t i = 5; i < count; i += words[i] >> 16)
        if ((words[i] & 0xffff) == opcode)
            return true;
    return false;
}

/* Emitted float operations, which have ids from `first`, are rounded one by one. */
static bool is_uncontracted(const uint32_t *words, size_t count, uint32_t first)
{
    const uint32_t ids = words[3] - first;
    bool *marked = calloc((size_t)ids + 1, sizeof *marked);
    bool all = true;
    cr_assert(marked);
    for (size_t i = 5; i < count; i += words[i] >> 16) {
        const uint32_t opcode = words[i] & 0xffff;
        if (opcode == 71 && words[i + 1] >= first && words[i + 2] == 42 /* NoContraction */)
            marked[words[i + 1] - first] = true;
        if ((opcode == 129 || opcode == 131 || opcode == 133 || opcode == 136) && words[i + 2] >= first)
            all = all && marked[words[i + 2] - first];
    }
    free(marked);
    return all;
}

static void splice_and_check(const module *m, const attune__mods *mods, const char *what)
{
    uint32_t *words;
    size_t count;
    attune_status status = attune__mods_splice(&attune__default_allocator, m->words, m->count, mods, &words, &count);
    cr_assert(status == ATTUNE_OK, "%s\n%s", what, attune_last_error());
    cr_assert(is_valid(words, count, what));
    cr_assert(is_uncontracted(words, count, m->words[3]), "%s", what);
    cr_assert(!has_opcode(words, count, 5 /* OpName */) && !has_opcode(words, count, 3 /* OpSource */));
    attune__free(&attune__default_allocator, words);
}

/* Every kernel with float controls: valid, and asking for them once. */
Test(mods, preserving)
{
    skip_without_validator();
    for (size_t i = 0; i < MODULES + DERIVED; i++) {
        const module *m = i < MODULES ? &modules[i] : &derived[i - MODULES];
        uint32_t *words, modes = 0;
        size_t count;
        cr_assert_eq(attune__vulkan_preserve(&attune__default_allocator, m->words, m->count, &words, &count),
                     ATTUNE_OK);
        for (size_t at = 5; at < count; at += words[at] >> 16)
            modes += (words[at] & 0xffff) == 16 /* OpExecutionMode */ && words[at + 2] == 4461 && words[at + 3] == 32;
        cr_assert_eq(modes, 1, "module %zu", i);
        cr_assert(is_valid(words, count, "a module with float controls"));
        attune__free(&attune__default_allocator, words);
    }
}

Test(mods, the_validator_refuses)
{
    skip_without_validator();
    static uint32_t words[sizeof mods_template / 4];
    memcpy(words, mods_template, sizeof words);
    cr_assert(is_valid(words, sizeof words / 4, "the template"));
    words[3] = 20; /* ids above the bound */
    cr_assert(!is_valid(words, sizeof words / 4, "(a module that is not valid: to be expected)"));
}

static void run_random(uint64_t quarter)
{
    skip_without_validator();
    static random_expr e;
    const uint64_t count = scaled(1500), seed = test_seed() + 77 + quarter * UINT64_C(1000003);
    for (uint64_t i = 0; i < count; i++) {
        random_expr_make(&e, seed + i, ATTUNE_EXPR_MASK, 1 + (uint32_t)(i % 41));
        attune_expr *mask = parse_with(e.kind, e.text, e.symbols, e.symbol_count);
        random_expr_make(&e, seed + i, ATTUNE_EXPR_SCORE, 1 + (uint32_t)(i % 37));
        attune_expr *score = parse_with(e.kind, e.text, e.symbols, e.symbol_count);
        /* validating a kernel takes ten times as long */
        const module *m = &modules[i % 16 ? i % 2 : i / 16 % MODULES];
        splice_and_check(m, &(attune__mods){.mask = i % 7 ? mask : NULL, .score = i % 5 ? score : NULL}, e.text);
        attune__expr_release(mask);
        attune__expr_release(score);
    }
    cr_log_info("%llu masks and scores", (unsigned long long)count);
}

/* Derivatives of random expressions, in modules that give gradients. */
static void run_random_gradients(uint64_t half)
{
    skip_without_validator();
    static random_expr e;
    const uint64_t count = scaled(1500), seed = test_seed() + 177 + half * UINT64_C(1000003);
    uint64_t refused = 0, reads = 0;
    for (uint64_t i = 0; i < count; i++) {
        random_expr_make(&e, seed + i, ATTUNE_EXPR_SCORE, 1 + (uint32_t)(i % 37));
        attune_expr *score = parse_with(e.kind, e.text, e.symbols, e.symbol_count);
        attune__gradient *gradient;
        if (attune__gradient_create(score, &gradient) == ATTUNE_OK) {
            reads += gradient->read_count;
            splice_and_check(&derived[i % 16 ? 0 : i / 16 % DERIVED],
                             &(attune__mods){.score = score,
                                             .gradient = gradient,
                                             .uniform_reads = attune__gradient_uniform_reads(gradient)},
                             e.text);
        } else {
            refused++; /* too many nodes */
        }
        attune__gradient_destroy(gradient);
        attune__expr_release(score);
    }
    cr_assert(refused < count / 20 + 1 && reads > count / 10);
    cr_log_info("%llu scores with derivatives, %llu reads of captures", (unsigned long long)(count - refused),
                (unsigned long long)reads);
}

Test(mods, valid_gradients_1)
{
    run_random_gradients(0);
}

Test(mods, valid_gradients_2)
{
    run_random_gradients(1);
}

/* Reads whose elements all pairs share, more of them than fit, and others; and none at all. */
Test(mods, gradients_of_captures)
{
    skip_without_validator();
    static const attune_symbol captures[] = {{"s1", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 1},
                                             {"s2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 2},
                                             {"p3", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 3},
                                             {"p4", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 4}};
    static const char *const texts[] = {
        "score",
        "score * s1[h]",
        "score + s1[0] * s1[1] * s1[2] * s1[3] * s1[4] + s2[b, h] * p3[b, h, q] + p4[b, h, q, kv] * s2[h, 1]",
        "tanh(score * p4[0, 0, 0, q - kv]) + p3[h, q, kv] * p3[h, kv, q]",
    };
    for (size_t i = 0; i < DERIVED; i++) {
        splice_and_check(&derived[i], &(attune__mods){.mask = NULL}, "no expression");
        for (size_t j = 0; j < sizeof texts / sizeof texts[0]; j++) {
            attune_expr *score = parse_with(ATTUNE_EXPR_SCORE, texts[j], captures, 4);
            attune__gradient *gradient;
            cr_assert_eq(attune__gradient_create(score, &gradient), ATTUNE_OK, "%s", attune_last_error());
            splice_and_check(&derived[i],
                             &(attune__mods){.score = score,
                                             .gradient = gradient,
                                             .uniform_reads = attune__gradient_uniform_reads(gradient)},
                             texts[j]);
            attune__gradient_destroy(gradient);
            attune__expr_release(score);
        }
    }
}

Test(mods, valid_1)
{
    run_random(0);
}

Test(mods, valid_2)
{
    run_random(1);
}

Test(mods, valid_3)
{
    run_random(2);
}

Test(mods, valid_4)
{
    run_random(3);
}

static const attune_symbol symbols[] = {
    {"i1", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I32, 1},  {"i2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_I64, 2},
    {"b2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BOOL, 2}, {"u3", ATTUNE_SYMBOL_CAPTURE, ATTUNE_U8, 3},
    {"f2", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F32, 2},  {"h4", ATTUNE_SYMBOL_CAPTURE, ATTUNE_F16, 4},
    {"g1", ATTUNE_SYMBOL_CAPTURE, ATTUNE_BF16, 1}, {"n", ATTUNE_SYMBOL_PARAMETER, ATTUNE_I32, 0},
    {"x", ATTUNE_SYMBOL_PARAMETER, ATTUNE_F32, 0},
};
#define SYMBOLS (sizeof symbols / sizeof symbols[0])

/* Every preset, and every dtype of captures and parameters, in every module. */
Test(mods, presets_and_dtypes)
{
    skip_without_validator();
    static const char *const more[] = {
        "score + i1[q] + i2[h, kv] + u3[b, q, kv] + f2[q, kv] + h4[b, h, q, kv] + g1[kv] * x + n",
        "b2[q, kv] ? score : x",
    };
    cr_assert_eq(attune_preset_count(), preset_use_count);
    for (size_t i = 0; i < MODULES; i++) {
        splice_and_check(&modules[i], &(attune__mods){.mask = NULL}, "no expression");
        for (uint32_t j = 0; j < attune_preset_count(); j++) {
            attune_preset preset = {.struct_size = sizeof preset};
            cr_assert(attune_preset_get(j, &preset) == ATTUNE_OK);
            attune_expr *expr = parse_with(preset.kind, preset_uses[j], symbols, SYMBOLS);
            const bool is_mask = preset.kind == ATTUNE_EXPR_MASK;
            splice_and_check(&modules[i],
                             &(attune__mods){.mask = is_mask ? expr : NULL, .score = is_mask ? NULL : expr},
                             preset_uses[j]);
            attune__expr_release(expr);
        }
        for (size_t j = 0; j < sizeof more / sizeof more[0]; j++) {
            attune_expr *expr = parse_with(ATTUNE_EXPR_SCORE, more[j], symbols, SYMBOLS);
            splice_and_check(&modules[i], &(attune__mods){.score = expr}, more[j]);
            attune__expr_release(expr);
        }
    }
}

static attune_status splice_damaged(const uint32_t *words, size_t count, const attune_expr *mask,
                                    const attune_expr *score)
{
    /* a copy of just that size, so that a word read past it is seen by AddressSanitizer */
    uint32_t *copy = malloc(count * 4 + 1), *out = NULL;
    size_t out_count = 0;
    cr_assert(copy);
    memcpy(copy, words, count * 4);
    attune_status status = attune__mods_splice(&attune__default_allocator, copy, count,
                                               &(attune__mods){.mask = mask, .score = score}, &out, &out_count);
    cr_assert((status == ATTUNE_OK) == (out != NULL));
    attune__free(&attune__default_allocator, out);
    free(copy);
    return status;
}

/* A module that was cut is refused wherever the cut is; one with other words in it is spliced or refused. */
Test(mods, damage)
{
    const size_t count = sizeof mods_template / 4;
    static uint32_t words[sizeof mods_template / 4];
    uint64_t state = test_seed() + 5;
    attune_expr *mask = parse_with(ATTUNE_EXPR_MASK, "document(i1) && causal", symbols, SYMBOLS);
    attune_expr *score = parse_with(ATTUNE_EXPR_SCORE, "x * tanh(score / x) + f2[q - kv, h]", symbols, SYMBOLS);
    for (size_t cut = 0; cut < count; cut++)
        cr_assert_eq(splice_damaged(mods_template, cut, mask, score), ATTUNE_INTERNAL, "%zu of %zu words", cut, count);
    /* between two functions of a kernel, where all that is left looks whole */
    const uint32_t *kernel = modules[2].words;
    size_t cuts = 0;
    for (size_t at = 5; at < modules[2].count; at += kernel[at] >> 16)
        if (kernel[at] == (1u << 16 | 56) && at + 1 < modules[2].count) {
            cr_assert_eq(splice_damaged(kernel, at + 1, mask, score), ATTUNE_INTERNAL, "cut at word %zu", at + 1);
            cuts++;
        }
    cr_assert(cuts > 30);
    static size_t starts[sizeof mods_template / 4]; /* of instructions */
    size_t instructions = 0;
    for (size_t at = 5; at < count; at += mods_template[at] >> 16)
        starts[instructions++] = at;
    uint64_t refused = 0, rounds = scaled(60000);
    for (uint64_t i = 0; i < rounds; i++) {
        memcpy(words, mods_template, sizeof words);
        const int64_t changes = random_expr_between(&state, 1, 6);
        for (int64_t j = 0; j < changes; j++) {
            uint32_t *word = &words[random_expr_between(&state, j ? 0 : 3, (int64_t)count - 1)];
            const uint32_t random = (uint32_t)random_expr_next(&state);
            /* what the splicer looks for: names, decorations, types, functions and their ends, calls */
            static const uint16_t opcodes[] = {5, 15, 20, 21, 22, 23, 43, 54, 55, 56, 57, 71, 248, 332};
            switch (random_expr_next(&state) % 5) {
            case 0:
                *word = random;
                break;
            case 1:
                *word ^= 1u << random % 32;
                break;
            case 2:
                *word = random % 400;
                break;
            case 3:
                words[starts[random % instructions]] =
                    (uint32_t)random_expr_between(&state, 1, 6) << 16 | opcodes[random_expr_next(&state) % 14];
                break;
            default:
                *word = words[random % count];
                break;
            }
        }
        refused += splice_damaged(words, i % 3 ? count : random_expr_next(&state) % count, mask, score) != ATTUNE_OK;
    }
    /* an instruction at the very end that is too short for what it is */
    static const uint16_t last[] = {5, 15, 54, 55, 57, 71, 332};
    for (size_t i = 0; i < sizeof last / sizeof last[0] * 3; i++) {
        static uint32_t longer[sizeof mods_template / 4 + 3];
        memcpy(longer, mods_template, sizeof mods_template);
        const uint32_t length = (uint32_t)(i % 3 + 1);
        longer[count] = length << 16 | last[i / 3];
        longer[count + 1] = longer[count + 2] = 7;
        splice_damaged(longer, count + length, mask, score);
    }
    for (int i = 0; i < 2000; i++) {
        for (size_t j = 0; j < count; j++)
            words[j] = (uint32_t)random_expr_next(&state);
        memcpy(words, mods_template, i % 2 ? 20 : 4);
        cr_assert_eq(splice_damaged(words, count, mask, score), ATTUNE_INTERNAL);
    }
    cr_assert(refused > rounds / 4 && refused < rounds);
    cr_log_info("%llu of %llu changed modules refused", (unsigned long long)refused, (unsigned long long)rounds);
    attune__expr_release(mask);
    attune__expr_release(score);
}

typedef struct short_heap {
    uint64_t left;
} short_heap;

static void *short_alloc(void *user, size_t size, size_t alignment)
{
    short_heap *few = user;
    if (!few->left)
        return NULL;
    few->left--;
    return attune__default_allocator.alloc(NULL, size, alignment);
}

static void short_release(void *user, void *memory)
{
    (void)user;
    attune__default_allocator.release(NULL, memory);
}

/* Each allocation fails once. */
Test(mods, no_memory)
{
    short_heap few = {0};
    const attune_allocator allocator = {.user = &few, .alloc = short_alloc, .release = short_release};
    attune_expr *score = parse_with(ATTUNE_EXPR_SCORE, "x * tanh(score / x) + f2[q - kv, h]", symbols, SYMBOLS);
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    uint64_t n = 0;
    for (; n < 1000 && status != ATTUNE_OK; n++) {
        uint32_t *words;
        size_t count;
        few.left = n;
        status = attune__mods_splice(&allocator, mods_template, sizeof mods_template / 4,
                                     &(attune__mods){.score = score}, &words, &count);
        cr_assert(status == (words ? ATTUNE_OK : ATTUNE_OUT_OF_HOST_MEMORY));
        attune__free(&allocator, words);
    }
    cr_assert(status == ATTUNE_OK && n > 5);
    attune__expr_release(score);
}

/* SPDX-License-Identifier: MIT */
#include "bench/program/limits_text.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
    uint32_t bit;
    const char *name;
} matrices[] = {
    {ATTUNE_MATRIX_MMA_SYNC, "mma_sync"}, {ATTUNE_MATRIX_WGMMA, "wgmma"},
    {ATTUNE_MATRIX_TCGEN05, "tcgen05"},   {ATTUNE_MATRIX_COOPMAT, "coopmat"},
    {ATTUNE_MATRIX_COOPMAT2, "coopmat2"}, {ATTUNE_MATRIX_CPU_BF16, "cpu_bf16"},
    {ATTUNE_MATRIX_AMX, "amx"},           {ATTUNE_MATRIX_UNTRIED, "untried kernels"},
};

/* "96 KiB", or bytes if no unit divides them: limits are not rounded. */
static const char *bytes_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    size_t unit = 0;
    for (; unit < 3 && bytes && bytes % 1024 == 0; unit++)
        bytes /= 1024;
    (void)snprintf(text, 32, "%" PRIu64 " %s", bytes, units[unit]);
    return text;
}

void limits_print(const attune_limits *l, const char *indent)
{
    char text[32];
    const bool cpu = l->backend == ATTUNE_BACKEND_CPU;
    (void)printf("%s%u %s, %s of %s", indent, l->compute_units, cpu ? "threads" : "compute units",
                 bytes_text(l->shared_memory, text), cpu ? "L2 per core" : "shared memory per workgroup");
    if (l->shared_memory_unit)
        (void)printf(" (%s per compute unit)", bytes_text(l->shared_memory_unit, text));
    if (cpu)
        (void)printf(", %u f32 lanes", l->subgroup_size);
    else
        (void)printf(", %u invocations, subgroups of %u%s", l->workgroup_invocations, l->subgroup_size,
                     l->subgroup_operations ? "" : " (operations not used)");
    if (l->architecture)
        (void)printf(", sm_%u", l->architecture);
    (void)printf("\n%s", indent);
    const char *gap = "";
    const struct {
        bool has;
        const char *name;
    } types[] = {{l->f16, "f16"}, {l->bf16, "bf16"}, {l->f64, "f64"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].has) {
            (void)printf("%s%s", gap, types[i].name);
            gap = " ";
        }
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (l->matrix & matrices[i].bit) {
            (void)printf("%s%s", gap, matrices[i].name);
            gap = " ";
        }
    if (l->matrix_m) {
        (void)printf("%s%ux%ux%u", gap, l->matrix_m, l->matrix_n, l->matrix_k);
        gap = " ";
    }
    if (*gap)
        gap = ", ";
    if (l->memory) {
        (void)printf("%s%.1f GiB", gap, (double)l->memory / 0x1p30);
        gap = ", ";
    }
    if (l->storage_range)
        (void)printf("%sstorage buffers of at most %s", gap,
                     l->storage_range == UINT32_MAX ? "4 GiB" : bytes_text(l->storage_range, text));
    (void)printf("\n");
}

json_t *limits_json(const attune_limits *l)
{
    json_t *names = json_array();
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (l->matrix & matrices[i].bit)
            (void)json_array_append_new(names, json_string(matrices[i].name));
    return json_pack("{sI sI sI sI sI sI sI sI sI sb sI sb sb sb sI sI sI s[III] so}", "compute_units",
                     (json_int_t)l->compute_units, "shared_memory", (json_int_t)l->shared_memory, "shared_memory_unit",
                     (json_int_t)l->shared_memory_unit, "shared_memory_reserved", (json_int_t)l->shared_memory_reserved,
                     "workgroup_invocations", (json_int_t)l->workgroup_invocations, "unit_invocations",
                     (json_int_t)l->unit_invocations, "registers", (json_int_t)l->registers, "registers_per_thread",
                     (json_int_t)l->registers_per_thread, "subgroup_size", (json_int_t)l->subgroup_size,
                     "subgroup_operations", l->subgroup_operations, "architecture", (json_int_t)l->architecture, "f16",
                     l->f16, "bf16", l->bf16, "f64", l->f64, "push_constants", (json_int_t)l->push_constants,
                     "storage_range", (json_int_t)l->storage_range, "memory", (json_int_t)l->memory, "matrix_shape",
                     (json_int_t)l->matrix_m, (json_int_t)l->matrix_n, (json_int_t)l->matrix_k, "matrix", names);
}

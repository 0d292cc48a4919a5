/* SPDX-License-Identifier: MIT */
#include "bench/limits_text.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
    uint32_t bit;
    const char *name;
} matrices[] = {
    {ATTUNE_MATRIX_MMA_SYNC, "mma_sync"}, {ATTUNE_MATRIX_WGMMA, "wgmma"},       {ATTUNE_MATRIX_TCGEN05, "tcgen05"},
    {ATTUNE_MATRIX_COOPMAT, "coopmat"},   {ATTUNE_MATRIX_COOPMAT2, "coopmat2"},
};

/* "96 KiB"; bytes where no unit divides them: these are limits, which rounding would make wrong. */
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
                 bytes_text(l->shared_memory, text), cpu ? "L2 a core" : "shared memory a workgroup");
    if (l->shared_memory_unit)
        (void)printf(" (%s a compute unit)", bytes_text(l->shared_memory_unit, text));
    if (cpu)
        (void)printf(", %u f32 lanes", l->subgroup_size);
    else
        (void)printf(", %u invocations, subgroups of %u%s", l->workgroup_invocations, l->subgroup_size,
                     l->subgroup_operations ? "" : " (operations not used)");
    if (l->architecture)
        (void)printf(", sm_%u", l->architecture);
    (void)printf("\n%s%s%s%s", indent, l->f16 ? "f16 " : "", l->bf16 ? "bf16 " : "", l->f64 ? "f64 " : "");
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (l->matrix & matrices[i].bit)
            (void)printf("%s ", matrices[i].name);
    if (l->matrix_m)
        (void)printf("%ux%ux%u ", l->matrix_m, l->matrix_n, l->matrix_k);
    if (l->memory)
        (void)printf("%.1f GiB ", (double)l->memory / 0x1p30);
    if (l->storage_range)
        (void)printf("storage buffers of at most %s ",
                     l->storage_range == UINT32_MAX ? "4 GiB" : bytes_text(l->storage_range, text));
    (void)printf("\n");
}

void limits_print_json(const attune_limits *l)
{
    (void)printf(
        "{\"compute_units\": %u, \"shared_memory\": %u, \"shared_memory_unit\": %u, \"shared_memory_reserved\": %u, "
        "\"workgroup_invocations\": %u, \"unit_invocations\": %u, \"registers\": %u, \"registers_per_thread\": %u, "
        "\"subgroup_size\": %u, \"subgroup_operations\": %s, \"architecture\": %u, \"f16\": %s, \"bf16\": %s, "
        "\"f64\": %s, \"push_constants\": %u, \"storage_range\": %" PRIu64 ", \"memory\": %" PRIu64
        ", \"matrix_shape\": [%u, %u, %u], \"matrix\": [",
        l->compute_units, l->shared_memory, l->shared_memory_unit, l->shared_memory_reserved, l->workgroup_invocations,
        l->unit_invocations, l->registers, l->registers_per_thread, l->subgroup_size,
        l->subgroup_operations ? "true" : "false", l->architecture, l->f16 ? "true" : "false",
        l->bf16 ? "true" : "false", l->f64 ? "true" : "false", l->push_constants, l->storage_range, l->memory,
        l->matrix_m, l->matrix_n, l->matrix_k);
    const char *comma = "";
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (l->matrix & matrices[i].bit) {
            (void)printf("%s\"%s\"", comma, matrices[i].name);
            comma = ", ";
        }
    (void)printf("]}");
}

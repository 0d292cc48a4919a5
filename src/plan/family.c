/* SPDX-License-Identifier: MIT */
/* The list of families, in the order of preference, and their common functions. */
#include "plan/family.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

const attune__family *const attune__families[] = {
    &attune__cpu_amx,
    &attune__cpu_bf16,
    &attune__cpu,
    &attune__cuda_sm100a,
    &attune__cuda_sm90a,
    &attune__cuda_serving_sm90a,
    &attune__cuda_sm80_atomic,
    &attune__cuda_sm80,
    &attune__vulkan_coopmat,
    &attune__vulkan_lanes,
    &attune__vulkan_few_rows,
    &attune__vulkan_subgroup,
    &attune__vulkan_portable,
    &attune__opencl_lanes,
    &attune__opencl_few_rows,
    &attune__opencl_subgroup,
    &attune__opencl_portable,
    &attune__opencl_serving,
    NULL,
};

const attune__family *attune__family_find(const char *name)
{
    for (const attune__family *const *f = attune__families; *f; f++)
        if (!strcasecmp((*f)->name, name))
            return *f;
    return NULL;
}

attune_status attune__check_kernel_name(const char *prefix, const char *name)
{
    if (attune__family_find(name))
        return ATTUNE_OK;
    char names[512];
    size_t used = 0;
    const char *nearest = NULL;
    size_t distance = SIZE_MAX;
    for (const attune__family *const *f = attune__families; *f && used < sizeof names; f++) {
        int added = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", (*f)->name);
        used += added > 0 ? (size_t)added : 0;
        const size_t here = attune__edit_distance(name, (*f)->name);
        if (attune__resembles(name, (*f)->name) &&
            (here < distance || (nearest && here == distance && strlen((*f)->name) < strlen(nearest)))) {
            distance = here;
            nearest = (*f)->name;
        }
    }
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "%sKERNEL is \"%.64s\", expected one of %s%s%s%s", prefix, name, names,
                        nearest ? ": did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static const char *reject_dtype(const attune__family *family, const attune__search *search, char *why, size_t size)
{
    const attune_limits *limits = search->limits;
    const attune__shape *s = search->shape;
    if (attune__shape_mixed(s) && !(family->mixes >> search->pass & 1)) {
        snprintf(why, size, "it has one dtype for q, k, v and o: here q is %s, k and v are %s, o is %s",
                 attune_dtype_string(s->q_dtype), attune_dtype_string(s->k_dtype), attune_dtype_string(s->o_dtype));
        return why;
    }
    const attune_dtype dtype = family->dtypes >> s->k_dtype & 1 ? s->v_dtype : s->k_dtype;
    const bool known = family->dtypes >> dtype & 1;
    /* Cooperative matrices need the 16-bit type; other Vulkan and OpenCL kernels load 16-bit floats as integers. */
    const bool lacking = (s->q_dtype == ATTUNE_F64 && !limits->f64) ||
                         (family->matrix & ATTUNE_MATRIX_COOPMAT && s->k_dtype == ATTUNE_F16 && !limits->f16) ||
                         (family->matrix & ATTUNE_MATRIX_COOPMAT && s->k_dtype == ATTUNE_BF16 && !limits->bf16);
    if (known && !lacking)
        return NULL;
    if (known) {
        snprintf(why, size, "no %s matrices or arithmetic on this device", attune_dtype_string(dtype));
        return why;
    }
    int used = snprintf(why, size, "no %s kernel: there are", attune_dtype_string(dtype));
    for (attune_dtype i = ATTUNE_F32; i <= ATTUNE_F64 && used > 0 && (size_t)used < size; i++)
        if (family->dtypes >> i & 1)
            used += snprintf(why + used, size - (size_t)used, " %s", attune_dtype_string(i));
    return why;
}

static const char *matrix_name(uint32_t missing)
{
    return missing & ATTUNE_MATRIX_TCGEN05    ? "tcgen05"
           : missing & ATTUNE_MATRIX_WGMMA    ? "wgmma"
           : missing & ATTUNE_MATRIX_MMA_SYNC ? "mma.sync"
           : missing & ATTUNE_MATRIX_AMX      ? "AMX"
           : missing & ATTUNE_MATRIX_CPU_BF16 ? "AVX512-BF16 or BFDOT"
                                              : "cooperative matrix";
}

/* The problem's features that not every family has. */
static const char *reject_feature(const attune__family *family, const attune__search *search, char *why, size_t size)
{
    const attune__shape *s = search->shape;
    if (s->sinks && !family->sinks)
        return "it adds no sinks (problem.sinks)";
    if (s->tokens && !family->serving)
        return "it reads no cache (problem.tokens)";
    if (!s->tokens && family->serving_only)
        return "it reads caches alone (problem.tokens)";
    if (s->split_keys && !family->fixed_splits)
        return "it has no fixed splits of the keys (problem.split_keys)";
    if (s->shared_sequences > 1 && !family->shares)
        return "its tiles have the rows of one sequence (problem.shared_sequences)";
    const bool back = search->pass == ATTUNE__PASS_BACKWARD;
    if ((back ? family->gradients_above_256 : family->heads_above_256) || (s->head_dim <= 256 && s->head_dim_v <= 256))
        return NULL;
    snprintf(why, size, "its head dimensions are at most 256%s: here they are %u and %u",
             family->heads_above_256 ? " in backward" : "", s->head_dim, s->head_dim_v);
    return why;
}

const char *attune__family_reject(const attune__family *family, const attune__search *search, char *why, size_t size)
{
    const attune_limits *limits = search->limits;
    uint32_t missing = family->matrix & ~limits->matrix;
    if (missing) {
        snprintf(why, size, "the device has no %s", matrix_name(missing));
        return why;
    }
    if (family->subgroups && !limits->subgroup_operations)
        return "the device has no subgroup operations";
    if (family->host && !limits->host)
        return "the device is no CPU";
    if (!family->options[search->pass])
        return "it has no such pass";
    const char *rejected = reject_feature(family, search, why, size);
    if (!rejected)
        rejected = reject_dtype(family, search, why, size);
    return !rejected && family->reject_problem ? family->reject_problem(search) : rejected;
}

void attune__tile_print(const attune__tile *tile, char *buffer, size_t size)
{
    static const attune__option order[] = {ATTUNE__BLOCK_M,  ATTUNE__BLOCK_N,  ATTUNE__BLOCK_M1,   ATTUNE__BLOCK_N1,
                                           ATTUNE__BLOCK_M2, ATTUNE__BLOCK_N2, ATTUNE__NUM_STAGES, ATTUNE__NUM_WARPS};
    size_t used = 0;
    if (size)
        buffer[0] = '\0';
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (tile->value[order[i]] && used < size) {
            int added = snprintf(buffer + used, size - used, "%s%s %u", used ? " " : "", attune__option_name(order[i]),
                                 tile->value[order[i]]);
            used += added > 0 ? (size_t)added : 0;
        }
}

uint32_t attune__occupancy(const attune_limits *limits, const attune__cost *cost)
{
    uint64_t most = 32;
    uint64_t pool = limits->shared_memory_unit ? limits->shared_memory_unit : limits->shared_memory;
    uint64_t share = cost->shared + limits->shared_memory_reserved;
    if (share && pool / share < most)
        most = pool / share;
    uint32_t threads = limits->unit_invocations ? limits->unit_invocations : limits->workgroup_invocations;
    if (threads / cost->invocations < most)
        most = threads / cost->invocations;
    uint32_t registers = cost->launched_registers ? cost->launched_registers : cost->registers;
    if (limits->registers && registers) {
        /* NVIDIA GPUs allocate registers in units of 8 per thread. */
        uint64_t taken = (uint64_t)attune__round_up(registers, 8) * attune__round_up(cost->invocations, 32);
        if (limits->registers / taken < most)
            most = limits->registers / taken;
    }
    if (cost->most_resident && cost->most_resident < most)
        most = cost->most_resident;
    return (uint32_t)most;
}

void attune__clamp_number(const attune__search *search, attune__tile *tile, attune__option option, uint32_t block,
                          int64_t length, uint32_t least)
{
    uint32_t *number = &tile->value[option];
    if (search->forced & ATTUNE__BIT(option))
        return;
    while (*number > least && (block % *number || *number / 2 >= length))
        *number /= 2;
}

void attune__clamp_tile(const attune__search *search, attune__tile *tile, uint32_t least)
{
    const attune__shape *s = search->shape;
    /* Without a block mask any power of two divides the default of 1,024. */
    uint32_t q = s->block_mask ? s->mask_q_block : 1024, kv = s->block_mask ? s->mask_kv_block : 1024;
    if (search->pass == ATTUNE__PASS_BACKWARD) {
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M1, q, s->q_len, least);
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N1, kv, s->kv_len, least);
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M2, q, s->q_len, least);
        attune__clamp_number(search, tile, ATTUNE__BLOCK_N2, kv, s->kv_len, least);
        return;
    }
    if (search->pass == ATTUNE__PASS_FORWARD)
        attune__clamp_number(search, tile, ATTUNE__BLOCK_M, q, s->q_len, least);
    attune__clamp_number(search, tile, ATTUNE__BLOCK_N, kv, s->kv_len, least);
}

void attune__clamp_decode(const attune__search *search, attune__tile *tile, uint32_t least)
{
    if (search->forced & ATTUNE__BIT(ATTUNE__BLOCK_M))
        return;
    const attune__shape *s = search->shape;
    const uint32_t sequences = s->shared_sequences > 1 ? s->shared_sequences : 1;
    const double rows = (double)s->q_len * attune__shape_packed_heads(s) * sequences;
    uint32_t *m = &tile->value[ATTUNE__BLOCK_M];
    while (*m > least && *m >= 2 * rows)
        *m /= 2;
}

static const char *reject_number(const attune__tile *tile, attune__option number, uint32_t multiple, uint32_t most,
                                 uint32_t block, attune__option *option)
{
    uint32_t value = tile->value[number];
    *option = number;
    if (multiple ? value % multiple != 0 : !attune__is_power2(value))
        return multiple == 64   ? "it must be a multiple of 64"
               : multiple == 16 ? "it must be a multiple of 16"
                                : "it must be a power of two";
    if (value > most)
        return most == 64 ? "it must be at most 64" : most == 128 ? "it must be at most 128" : "it is too large";
    if (block && block % value)
        return "it must divide the block of the mask";
    return NULL;
}

const char *attune__reject_numbers(const attune__search *search, const attune__tile *tile, uint32_t multiple,
                                   uint32_t most, attune__option *option)
{
    static const attune__option forward[] = {ATTUNE__BLOCK_M, ATTUNE__BLOCK_N};
    static const attune__option backward[] = {ATTUNE__BLOCK_M1, ATTUNE__BLOCK_N1, ATTUNE__BLOCK_M2, ATTUNE__BLOCK_N2};
    const attune__shape *s = search->shape;
    bool back = search->pass == ATTUNE__PASS_BACKWARD;
    for (uint32_t i = 0; i < (back ? 4u : 2u); i++) {
        /* Over a cache there are no blocks: the kernel evaluates the mask. */
        uint32_t block = !s->block_mask || s->tokens ? 0 : i % 2 ? s->mask_kv_block : s->mask_q_block;
        /* A decode tile has the rows of several heads, all in the mask's first block row. */
        if (search->pass == ATTUNE__PASS_DECODE && i == 0)
            block = 0;
        const char *why = reject_number(tile, back ? backward[i] : forward[i], multiple, most, block, option);
        if (why)
            return why;
    }
    return NULL;
}

uint64_t attune__workspace_parts(const attune__search *search, uint32_t split)
{
    return attune__split_size(search->shape, split, (uint32_t)attune_dtype_size(attune__shape_real(search->shape)));
}

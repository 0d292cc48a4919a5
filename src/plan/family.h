/* SPDX-License-Identifier: MIT */
/* A kernel family is a table of constants and functions: its requirements, its tiles from the fastest to the smallest,
 * and the cost of a tile. Adding a family is adding a table to the list in family.c. */
#ifndef ATTUNE_PLAN_FAMILY_H
#define ATTUNE_PLAN_FAMILY_H

#include "base/round.h"
#include "plan/options.h"
#include "plan/plan.h"

typedef enum attune__pass { ATTUNE__PASS_FORWARD, ATTUNE__PASS_DECODE, ATTUNE__PASS_BACKWARD } attune__pass;
#define ATTUNE__PASS_COUNT 3

#define ATTUNE__TILE_OPTIONS (ATTUNE__BIT(ATTUNE__NUM_WARPS + 1) - 1)
#define ATTUNE__FORWARD_TILE (ATTUNE__BIT(ATTUNE__BLOCK_M) | ATTUNE__BIT(ATTUNE__BLOCK_N))
#define ATTUNE__BACKWARD_TILES                                                                                         \
    (ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N1) | ATTUNE__BIT(ATTUNE__BLOCK_M2) |                   \
     ATTUNE__BIT(ATTUNE__BLOCK_N2))

/* The numbers of a launch, by option: value[ATTUNE__BLOCK_M] and so on; 0 for those that the pass does not have. */
typedef struct attune__tile {
    uint32_t value[ATTUNE__NUM_WARPS + 1];
} attune__tile;

/* Shorthands for tables of tiles. */
#define ATTUNE__TILE(m, n, stages, warps)                                                                              \
    {                                                                                                                  \
        .value = {                                                                                                     \
            [ATTUNE__BLOCK_M] = m,                                                                                     \
            [ATTUNE__BLOCK_N] = n,                                                                                     \
            [ATTUNE__NUM_STAGES] = stages,                                                                             \
            [ATTUNE__NUM_WARPS] = warps                                                                                \
        }                                                                                                              \
    }
#define ATTUNE__TILES(m1, n1, m2, n2, stages, warps)                                                                   \
    {                                                                                                                  \
        .value = {                                                                                                     \
            [ATTUNE__BLOCK_M1] = m1,                                                                                   \
            [ATTUNE__BLOCK_N1] = n1,                                                                                   \
            [ATTUNE__BLOCK_M2] = m2,                                                                                   \
            [ATTUNE__BLOCK_N2] = n2,                                                                                   \
            [ATTUNE__NUM_STAGES] = stages,                                                                             \
            [ATTUNE__NUM_WARPS] = warps                                                                                \
        }                                                                                                              \
    }

/* The resources of a tile. */
typedef struct attune__cost {
    uint64_t shared;             /* bytes of one workgroup */
    uint32_t invocations;        /* threads of one workgroup */
    uint32_t registers;          /* estimate for the thread that needs most; 0 = not estimated */
    uint32_t launched_registers; /* registers that the launch allocates per thread, if not `registers` */
    uint32_t most_resident;      /* workgroups that a unit has at most; 0 = as many as fit */
    uint64_t workspace;          /* CUDA, backward: bytes of a call, after those of all kernels */
} attune__cost;

/* The input of a search. */
typedef struct attune__search {
    const attune_limits *limits;
    const attune__shape *shape;
    attune_pass_options options; /* merged and checked, for the pass's direction */
    uint32_t forced;             /* bits of the options that are set */
    attune__pass pass;
} attune__search;

/* Types of keys and values besides f64: of dense ones, and of a cache. */
#define ATTUNE__DENSE_DTYPES (1u << ATTUNE_F32 | 1u << ATTUNE_F16 | 1u << ATTUNE_BF16)
#define ATTUNE__CACHE_DTYPES                                                                                           \
    (ATTUNE__DENSE_DTYPES | 1u << ATTUNE_F8E4M3 | 1u << ATTUNE_F8E5M2 | 1u << ATTUNE_I8 | 1u << ATTUNE_Q8_0 |          \
     1u << ATTUNE_Q4_0)

typedef struct attune__family {
    const char *name;
    attune_backend backend;
    uint32_t matrix;   /* ATTUNE_MATRIX_* that it needs */
    bool subgroups;    /* needs limits.subgroup_operations */
    bool host;         /* needs limits.host */
    bool cache;        /* shared_memory is a cache size, not a hard limit: the smallest tile is chosen if none fits */
    bool last_resort;  /* its failure is reported only if no other family has one */
    bool tma;          /* USE_TMA is ON here; elsewhere it is OFF */
    bool sinks;        /* it adds sinks */
    bool serving;      /* it reads caches, and batches of sequences */
    bool serving_only; /* it reads nothing else */
    bool fixed_splits; /* it splits keys where problem.split_keys says */
    bool shares;       /* a tile may have rows of several sequences, for the keys that they share */
    bool heads_above_256;     /* head dimensions above 256, but in backward */
    bool gradients_above_256; /* likewise, in backward */
    uint32_t dtypes;          /* bits 1 << attune_dtype: of k and v */
    uint32_t mixes; /* bits 1 << attune__pass: passes in which q and o may be f32, f16 or bf16 for any k and v */
    /* bits 1 << attune__pass: passes whose results depend on the order in which workgroups finish */
    uint32_t unordered;
    /* Whether DETERMINISTIC gives it a fixed order; NULL = never, and such a call skips the family. */
    bool (*is_deterministic)(const attune__search *search);
    /* Why the problem is not supported, and why an automatic choice skips the family, which KERNEL still selects. NULL,
     * or returns NULL = neither. */
    const char *(*reject_problem)(const attune__search *search);
    const char *(*reject_automatic)(const attune__search *search);
    const char *caveat;                   /* what the explanation of its choice adds, or NULL */
    uint32_t options[ATTUNE__PASS_COUNT]; /* bits of the options that its kernel uses, without those that the planner
                                             reads for all; 0 = it has no such pass */

    /* The tiles of a pass, from the fastest to the smallest. */
    const attune__tile *(*tiles)(const attune__search *search, uint32_t *count);
    /* Clamps the free numbers of a tile to the mask's blocks, the lengths and the device. */
    void (*clamp)(const attune__search *search, attune__tile *tile);
    /* Returns NULL if the kernel supports the tile, else the reason and the option. */
    const char *(*reject_tile)(const attune__search *search, const attune__tile *tile, attune__option *option);
    attune__cost (*cost)(const attune__search *search, const attune__tile *tile);
    /* Bytes of workspace of a call with `split` parts of the keys, without the part for segments. */
    uint64_t (*workspace)(const attune__search *search, const attune__tile *tile, const attune__cost *cost,
                          uint32_t split);
    /* Chooses how the kernel evaluates the expressions; NULL = pair by pair. */
    void (*variant)(const attune__shape *shape, const attune_plan_choice *choice, attune__variant *variant);
    /* Forward and decode: the limit on steps of BLOCK_N keys of a workgroup; NULL = none. */
    uint32_t (*most_steps)(const attune__search *search, const attune__tile *tile);
    /* Decode: up to so many parts, which merging has on their way at once, may have a single tile of keys, if that
     * saves more time than the merge takes; other parts have at least four. */
    uint32_t short_parts;
    /* Decode: the most parts that a cluster of workgroups merges, in less time than others; NULL = none. */
    uint32_t (*cluster_parts)(const attune_limits *limits);
} attune__family;

/* The families, in the order of preference within a backend; NULL at the end. */
extern const attune__family *const attune__families[];
extern const attune__family attune__cpu_amx, attune__cpu_bf16, attune__cpu, attune__cuda_sm100a, attune__cuda_sm90a,
    attune__cuda_serving_sm90a, attune__cuda_sm80_atomic, attune__cuda_sm80, attune__vulkan_coopmat,
    attune__vulkan_lanes, attune__vulkan_few_rows, attune__vulkan_subgroup, attune__vulkan_portable,
    attune__opencl_lanes, attune__opencl_subgroup, attune__opencl_portable, attune__opencl_serving,
    attune__opencl_few_rows;

const attune__family *attune__family_find(const char *name);
/* INVALID_ARGUMENT, with a list of the names, if there is no such family. prefix is "", "fwd_" or "bwd_". */
attune_status attune__check_kernel_name(const char *prefix, const char *name);
/* NULL if the family supports the device, dtype and pass; else the reason, written to `why`. */
const char *attune__family_reject(const attune__family *family, const attune__search *search, char *why, size_t size);
/* "BLOCK_M 64 BLOCK_N 64 num_stages 1 num_warps 4" */
void attune__tile_print(const attune__tile *tile, char *buffer, size_t size);
/* Resident workgroups of one compute unit; 0 if none fits. */
uint32_t attune__occupancy(const attune_limits *limits, const attune__cost *cost);

/* Bytes of the partial results of a split pass, at the beginning of every workspace. */
uint64_t attune__workspace_parts(const attune__search *search, uint32_t split);

/* Bytes of an element of k and v. */
static inline uint32_t attune__dtype_bytes(const attune__shape *shape)
{
    return (uint32_t)attune_dtype_size(shape->k_dtype);
}

/* For clamp functions: reduces a free tile number to a power of two that divides the mask's block and is at most the
 * smallest power of two >= `length`, and at least `least`. */
void attune__clamp_number(const attune__search *search, attune__tile *tile, attune__option option, uint32_t block,
                          int64_t length, uint32_t least);
/* The same for all tile numbers of the pass. */
void attune__clamp_tile(const attune__search *search, attune__tile *tile, uint32_t least);
/*
 * The rows of a decode tile: the smallest power of two >= the packed rows, between `least` and the tile's own number.
 */
void attune__clamp_decode(const attune__search *search, attune__tile *tile, uint32_t least);
/* Returns NULL if each tile number of the pass is in [least, most], is a multiple of `multiple` (0 = a power of two)
 * and divides the mask's block; else the reason. */
const char *attune__reject_numbers(const attune__search *search, const attune__tile *tile, uint32_t multiple,
                                   uint32_t most, attune__option *option);

/* --------------------------------------------------------------------------------------------------------- choosing */

attune_status attune__limits_check(const attune_limits *limits);

typedef enum attune__outcome {
    ATTUNE__UNMET,    /* no family supports this device, dtype or pass */
    ATTUNE__NOT_READ, /* an option that no family here reads */
    ATTUNE__REJECTED, /* an option's value that no kernel supports */
    ATTUNE__TOO_BIG,  /* supported, but exceeds a limit of the device */
    ATTUNE__FOUND
} attune__outcome;

/* The result of a search: a tile, or the most specific failure. */
typedef struct attune__found {
    attune__outcome outcome;
    const attune__family *family;
    attune__tile tile;
    attune__cost cost;
    attune__option option; /* NOT_READ, REJECTED */
    char why[192];
} attune__found;

/* Searches the families. decision may be NULL; otherwise rejections are added to it. */
void attune__search_run(const attune__search *search, attune__decision *decision, attune__found *found);
/* NULL if the cost is within the limits; else the text "needs N bytes of shared memory, the device has M" in `why`. */
const char *attune__cost_exceeds(const attune__family *family, const attune_limits *limits, const attune__cost *cost,
                                 char *why, size_t size);
/* Sets the thread's error from a failed search, with the nearest values that work. */
attune_status attune__search_fail(const attune__search *search, const attune__found *found);

/* The decode rule. forced: by the option. */
typedef enum attune__decode { ATTUNE__DECODE_NO, ATTUNE__DECODE_YES, ATTUNE__DECODE_FORCED } attune__decode;
attune_status attune__decode_rule(const attune__search *search, attune__decode *rule, char *why, size_t size);
/* The largest number of queries, and the smallest of keys, for which decode is chosen automatically. */
int64_t attune__decode_most_queries(const attune__search *search);
#define ATTUNE__DECODE_FEWEST_KEYS 256 /* fewer do not pay for the merge */
/* The automatic number of parts of the keys. */
#define ATTUNE__MOST_SPLITS 128
uint32_t attune__decode_split(const attune__search *search, const attune__found *found, uint32_t occupancy,
                              uint32_t fewest);
/* The smallest number of parts such that none has more than `most` steps of keys; UINT32_MAX if a block of the mask has
 * more. */
uint32_t attune__decode_fewest(const attune__shape *shape, uint32_t block_n, uint32_t most);
/* The number of steps of the keys, which is the limit of SPLIT_KV. */
uint32_t attune__decode_steps(const attune__shape *shape, uint32_t block_n);

#endif

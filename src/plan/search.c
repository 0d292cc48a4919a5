/* SPDX-License-Identifier: MIT */
/*
 * The search: families in the order of preference, tiles in the order of speed; the first that fits is chosen. Forced
 * options replace the tile's own numbers; then a grid of further tiles is also tried, and the largest that fits is
 * chosen.
 */
#include "plan/family.h"

#include <stdio.h>
#include <string.h>

/* Options that the planner itself reads, for all kernels. */
#define PLANNERS_OWN                                                                                                   \
    (ATTUNE__BIT(ATTUNE__FORCE_USE_FLEX_ATTENTION) | ATTUNE__BIT(ATTUNE__DETERMINISTIC) | ATTUNE__BIT(ATTUNE__KERNEL))

static void reject(attune__decision *decision, const attune__family *family, const attune__tile *tile, const char *why)
{
    if (!decision || decision->rejection_count == ATTUNE__MAX_REJECTIONS)
        return;
    attune__rejection *r = &decision->rejections[decision->rejection_count++];
    char text[sizeof r->what] = "";
    if (tile)
        attune__tile_print(tile, text, sizeof text);
    snprintf(r->what, sizeof r->what, "%s%s%.72s", family->name, tile ? " " : "", text);
    snprintf(r->why, sizeof r->why, "%.159s", why);
}

const char *attune__cost_exceeds(const attune__family *family, const attune_limits *limits, const attune__cost *cost,
                                 char *why, size_t size)
{
    uint64_t registers = cost->launched_registers ? cost->launched_registers : cost->registers;
    uint64_t all = (registers + 7) / 8 * 8 * attune__round_up(cost->invocations, 32);
    if (cost->invocations > limits->workgroup_invocations)
        snprintf(why, size, "needs %u invocations, the device has %u", cost->invocations,
                 limits->workgroup_invocations);
    else if (cost->shared > limits->shared_memory && !family->cache)
        snprintf(why, size, "needs %llu bytes of shared memory, the device has %u", (unsigned long long)cost->shared,
                 limits->shared_memory);
    else if (limits->registers_per_thread && cost->registers > limits->registers_per_thread)
        snprintf(why, size, "needs %u registers a thread, the device has %u", cost->registers,
                 limits->registers_per_thread);
    else if (limits->registers && registers && all > limits->registers)
        snprintf(why, size, "needs %llu registers, the device has %u", (unsigned long long)all, limits->registers);
    else
        return NULL;
    return why;
}

/* Sets the forced numbers of a tile; true if the tile had them already. */
static bool force(const attune__search *search, attune__tile *tile)
{
    bool same = true;
    for (uint32_t i = 0; i <= ATTUNE__NUM_WARPS; i++)
        if (search->forced & ATTUNE__BIT(i)) {
            uint32_t value = attune__option_get(&search->options, i);
            same = same && tile->value[i] == value;
            tile->value[i] = value;
        }
    return same;
}

static const char *reject_tile(const attune__search *search, const attune__family *family, const attune__tile *tile,
                               attune__option *option)
{
    const char *why = family->reject_tile(search, tile, option);
    if (!why && search->forced & ATTUNE__BIT(ATTUNE__SPLIT_KV) &&
        search->options.split_kv > attune__decode_steps(search->shape, tile->value[ATTUNE__BLOCK_N])) {
        *option = ATTUNE__SPLIT_KV;
        why = "there are fewer blocks of keys than that";
    }
    return why;
}

static uint64_t area(const attune__tile *tile)
{
    const uint32_t *v = tile->value;
    return (uint64_t)v[ATTUNE__BLOCK_M] * v[ATTUNE__BLOCK_N] + (uint64_t)v[ATTUNE__BLOCK_M1] * v[ATTUNE__BLOCK_N1] +
           (uint64_t)v[ATTUNE__BLOCK_M2] * v[ATTUNE__BLOCK_N2];
}

/* The state of the search over one family's tiles. */
typedef struct trial {
    const attune__search *search;
    const attune__family *family;
    attune__found best;     /* outcome FOUND if one fits */
    attune__found smallest; /* the supported tile with the fewest bytes; outcome TOO_BIG if there is one */
    attune__found rejected; /* outcome REJECTED if there is one */
    char why[160];          /* of the last rejected tile, the smallest of the table */
} trial;

/* Tries one tile with its free numbers clamped; the larger of it and the best is kept. */
static const char *consider(trial *t, const attune__tile *tile, char *why, size_t size)
{
    attune__option option = ATTUNE__OPTION_COUNT;
    const char *wrong = reject_tile(t->search, t->family, tile, &option);
    if (wrong) {
        /* Report the option that the caller set, not a number that the planner tried. */
        if (t->rejected.outcome != ATTUNE__REJECTED && t->search->forced & ATTUNE__BIT(option)) {
            t->rejected = (attune__found){ATTUNE__REJECTED, t->family, *tile, {0}, option, ""};
            snprintf(t->rejected.why, sizeof t->rejected.why, "%s", wrong);
        }
        snprintf(why, size, "%s: %s", attune__option_name(option), wrong);
        return why;
    }
    attune__cost cost = t->family->cost(t->search, tile);
    if (t->smallest.outcome != ATTUNE__TOO_BIG || cost.shared < t->smallest.cost.shared)
        t->smallest = (attune__found){ATTUNE__TOO_BIG, t->family, *tile, cost, ATTUNE__OPTION_COUNT, ""};
    const char *exceeds = attune__cost_exceeds(t->family, t->search->limits, &cost, why, size);
    uint32_t cache = t->search->limits->shared_memory ? t->search->limits->shared_memory : 256 * 1024;
    if (!exceeds && t->family->cache && cost.shared > cache) {
        snprintf(why, size, "%llu bytes are more than the cache of %u", (unsigned long long)cost.shared, cache);
        exceeds = why;
    }
    if (!exceeds && (t->best.outcome != ATTUNE__FOUND || area(tile) > area(&t->best.tile)))
        t->best = (attune__found){ATTUNE__FOUND, t->family, *tile, cost, ATTUNE__OPTION_COUNT, ""};
    return exceeds;
}

/* The first tile of the family's table that fits and already has the forced numbers. */
static bool first_fit(trial *t, attune__decision *decision)
{
    uint32_t count;
    const attune__tile *tiles = t->family->tiles(t->search, &count);
    attune__search free = *t->search;
    free.forced &= ~ATTUNE__TILE_OPTIONS;
    attune__tile last = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        attune__tile tile = tiles[i];
        t->family->clamp(&free, &tile);
        if (!force(t->search, &tile) || !memcmp(&tile, &last, sizeof tile))
            continue;
        last = tile;
        char why[160];
        const char *wrong = consider(t, &tile, why, sizeof why);
        if (!wrong)
            return true;
        snprintf(t->why, sizeof t->why, "%s", wrong);
        reject(decision, t->family, &tile, wrong);
    }
    return false;
}

static void consider_forced(trial *t, attune__tile tile)
{
    char why[160];
    force(t->search, &tile);
    t->family->clamp(t->search, &tile);
    consider(t, &tile, why, sizeof why);
}

/* All combinations of common numbers, with the forced ones. */
static void sweep(trial *t)
{
    static const uint32_t rows[] = {128, 64, 32, 16, 8, 4, 2, 1}, columns[] = {128, 64, 32, 16}, stages[] = {2, 1, 3},
                          warps[] = {4, 8, 2, 1};
    bool back = t->search->pass == ATTUNE__PASS_BACKWARD;
    uint32_t forced = t->search->forced, used = t->family->options[t->search->pass], count;
    const attune__tile *tiles = t->family->tiles(t->search, &count);
    for (uint32_t i = 0; i < count; i++)
        consider_forced(t, tiles[i]);
    uint32_t m_bits =
        back ? ATTUNE__BIT(ATTUNE__BLOCK_M1) | ATTUNE__BIT(ATTUNE__BLOCK_N2) : ATTUNE__BIT(ATTUNE__BLOCK_M);
    uint32_t n_bits =
        back ? ATTUNE__BIT(ATTUNE__BLOCK_N1) | ATTUNE__BIT(ATTUNE__BLOCK_M2) : ATTUNE__BIT(ATTUNE__BLOCK_N);
    bool vary_stages = used & ~forced & ATTUNE__BIT(ATTUNE__NUM_STAGES);
    bool vary_warps = used & ~forced & ATTUNE__BIT(ATTUNE__NUM_WARPS);
    uint32_t most[4] = {(forced & m_bits) == m_bits ? 1 : 8, (forced & n_bits) == n_bits ? 1 : 4, vary_stages ? 3 : 1,
                        vary_warps ? 4 : 1};
    for (uint32_t m = 0; m < most[0]; m++)
        for (uint32_t n = 0; n < most[1]; n++)
            for (uint32_t s = 0; s < most[2]; s++)
                for (uint32_t w = 0; w < most[3]; w++) {
                    attune__tile tile = {{0}};
                    tile.value[back ? ATTUNE__BLOCK_M1 : ATTUNE__BLOCK_M] = rows[m];
                    tile.value[back ? ATTUNE__BLOCK_N1 : ATTUNE__BLOCK_N] = columns[n];
                    if (back) {
                        tile.value[ATTUNE__BLOCK_M2] = columns[n];
                        tile.value[ATTUNE__BLOCK_N2] = rows[m];
                    }
                    tile.value[ATTUNE__NUM_STAGES] = vary_stages ? stages[s] : tiles[0].value[ATTUNE__NUM_STAGES];
                    tile.value[ATTUNE__NUM_WARPS] = vary_warps ? warps[w] : tiles[0].value[ATTUNE__NUM_WARPS];
                    consider_forced(t, tile);
                }
}

static bool family_fits_alone(const attune__search *search, const attune__family *family)
{
    attune__search free = *search;
    free.forced &= ~ATTUNE__TILE_OPTIONS;
    trial t = {.search = &free, .family = family};
    return first_fit(&t, NULL);
}

/* Tries one family. Returns true if the search ends here. */
static bool try_family(const attune__search *search, const attune__family *family, attune__decision *decision,
                       attune__found *found)
{
    trial t = {.search = search, .family = family};
    bool fits = first_fit(&t, decision);
    if (!fits && search->forced & ATTUNE__TILE_OPTIONS) {
        sweep(&t);
        fits = t.best.outcome == ATTUNE__FOUND;
    }
    if (!fits && family->cache && t.smallest.outcome == ATTUNE__TOO_BIG) {
        t.best = t.smallest;
        t.best.outcome = ATTUNE__FOUND;
        fits = true;
    }
    if (fits) {
        *found = t.best;
        return true;
    }
    if (t.smallest.outcome == ATTUNE__TOO_BIG) {
        *found = t.smallest;
        /* It is an error if a forced number excludes the kernel that would be chosen without it. */
        if (search->forced & ATTUNE__TILE_OPTIONS && family_fits_alone(search, family))
            return true;
    } else if (t.rejected.outcome == ATTUNE__REJECTED)
        *found = t.rejected;
    else
        snprintf(found->why, sizeof found->why, "%s", t.why);
    return false;
}

static bool unread(const attune__search *search, const attune__family *family, attune__found *found)
{
    uint32_t bits = search->forced & ~PLANNERS_OWN & ~family->options[search->pass];
    for (uint32_t i = 0; i < ATTUNE__OPTION_COUNT; i++)
        if (bits & ATTUNE__BIT(i)) {
            *found = (attune__found){.outcome = ATTUNE__NOT_READ, .family = family, .option = i};
            snprintf(found->why, sizeof found->why, "it does not read %s", attune__option_name(i));
            return true;
        }
    if (search->options.use_tma && (search->options.use_tma == ATTUNE_ON) != family->tma) {
        *found = (attune__found){.outcome = ATTUNE__REJECTED, .family = family, .option = ATTUNE__USE_TMA};
        snprintf(found->why, sizeof found->why, "%s", family->tma ? "it always uses TMA" : "it does not use TMA");
        return true;
    }
    if (search->options.deterministic == ATTUNE_ON && family->unordered >> search->pass & 1 &&
        !(family->is_deterministic && family->is_deterministic(search))) {
        *found = (attune__found){.outcome = ATTUNE__REJECTED, .family = family, .option = ATTUNE__DETERMINISTIC};
        snprintf(found->why, sizeof found->why, "its sums depend on the order in which workgroups finish");
        return true;
    }
    if (search->options.approximate_tanh == ATTUNE_ON && search->shape->k_dtype == ATTUNE_F32) {
        *found = (attune__found){.outcome = ATTUNE__REJECTED, .family = family, .option = ATTUNE__APPROXIMATE_TANH};
        snprintf(found->why, sizeof found->why,
                 "2^-11 of tanh is past the error bound of f32, f16 and bf16 may have it");
        return true;
    }
    return false;
}

void attune__search_run(const attune__search *search, attune__decision *decision, attune__found *found)
{
    attune__found failure = {.outcome = ATTUNE__UNMET};
    for (const attune__family *const *f = attune__families; *f; f++) {
        const attune__family *family = *f;
        bool named = search->options.kernel[0] != '\0';
        if (named ? family != attune__family_find(search->options.kernel) : family->backend != search->limits->backend)
            continue;
        attune__found one = {.outcome = ATTUNE__UNMET, .family = family};
        char why[160];
        const char *rejected = attune__family_reject(family, search, why, sizeof why);
        if (!rejected && !named && family->reject_automatic)
            rejected = family->reject_automatic(search);
        if (rejected) {
            snprintf(one.why, sizeof one.why, "%s", rejected);
            reject(decision, family, NULL, rejected);
        } else if (unread(search, family, &one))
            reject(decision, family, NULL, one.why);
        else if (try_family(search, family, decision, &one)) {
            *found = one;
            return;
        }
        /* The failure to report: NOT_READ of the fastest kernel, other failures of the most permissive. */
        const bool other = family->last_resort || (family->serving_only && !search->shape->tokens);
        const bool tells_more = one.outcome != ATTUNE__NOT_READ && !(other && failure.family);
        if (one.outcome > failure.outcome || (one.outcome == failure.outcome && tells_more))
            failure = one;
    }
    *found = failure;
}

/* SPDX-License-Identifier: MIT */
/*
 * The families' tables of tiles: no tile is in a table twice, and each is one that its kernel accepts unchanged on
 * some known device, with a problem whose lengths limit nothing.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "plan/family.h"
#include "plan/plan.h"

typedef struct entry {
    const attune__tile *tile; /* in its table */
    const attune__family *family;
    char why[160]; /* the last reason why not; empty = it could be had */
} entry;

static entry entries[1024];
static size_t entry_count;

static entry *entry_of(const attune__family *family, const attune__tile *tile)
{
    for (size_t i = 0; i < entry_count; i++)
        if (entries[i].tile == tile && entries[i].family == family)
            return &entries[i];
    cr_assert_lt(entry_count, sizeof entries / sizeof entries[0]);
    entries[entry_count] = (entry){tile, family, "untried"};
    return &entries[entry_count++];
}

static void try_table(const attune__family *family, const attune__search *search, const char *profile)
{
    uint32_t count = 0;
    const attune__tile *tiles = family->tiles(search, &count);
    cr_assert_gt(count, 0, "%s on %s", family->name, profile);
    for (uint32_t i = 0; i < count; i++) {
        entry *e = entry_of(family, &tiles[i]);
        for (uint32_t j = 0; j < i; j++)
            cr_expect(memcmp(&tiles[j], &tiles[i], sizeof tiles[i]), "%s on %s: tile %u is tile %u again", family->name,
                      profile, i, j);
        if (!e->why[0])
            continue;
        attune__tile tile = tiles[i];
        attune__option option;
        family->clamp(search, &tile);
        const char *rejected = family->reject_tile(search, &tile, &option);
        if (!rejected && !tile.value[ATTUNE__NUM_STAGES])
            rejected = "it has no stage";
        /* A free number, 0 in the table, follows from the others. */
        for (uint32_t n = 0; n < sizeof tile.value / sizeof tile.value[0] && !rejected; n++)
            if (tiles[i].value[n] && tile.value[n] != tiles[i].value[n])
                rejected = "it is clamped";
        snprintf(e->why, sizeof e->why, "%s%s%s", rejected ? rejected : "", rejected ? ", on " : "",
                 rejected ? profile : "");
    }
}

#define PROBLEMS ((size_t)6 * 4 * 3 * 7)

Test(tiles, can_be_had)
{
    static const uint32_t head_dims[] = {8, 64, 80, 128, 192, 256};
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64};
    for (uint32_t p = 0; p < attune_profile_count(); p++) {
        attune_profile profile = {.struct_size = sizeof profile};
        cr_assert_eq(attune_profile_get(p, &profile), ATTUNE_OK);
        attune_limits wider = profile.limits; /* on a processor with vectors twice as wide */
        wider.subgroup_size *= 2;
        for (size_t m = 0; m < 2 * PROBLEMS; m++) {
            const size_t n = m % PROBLEMS;
            const attune__pass pass = (attune__pass)(n / 24 % 3);
            const bool decode = pass == ATTUNE__PASS_DECODE;
            attune_problem q = {.struct_size = sizeof q,
                                .direction = pass == ATTUNE__PASS_BACKWARD ? ATTUNE_BACKWARD : ATTUNE_FORWARD,
                                .dtype = dtypes[n / 6 % 4],
                                .head_dim = head_dims[n % 6],
                                .batch = 64,
                                .heads = decode ? 1 << n / 72 : 64, /* the rows of a decode tile */
                                .kv_heads = decode ? 1 : 64,
                                .q_len = decode ? 1 : 2048,
                                .kv_len = 2048};
            attune__shape shape;
            if (q.dtype == ATTUNE_F64 && profile.limits.backend != ATTUNE_BACKEND_CPU)
                continue;
            cr_assert_eq(attune__shape_from_problem(&q, &shape), ATTUNE_OK, "%s", attune_last_error());
            /* Some tables are those with a score expression. */
            shape.score_expr = m >= PROBLEMS;
            const attune__search search = {
                .limits = profile.limits.host && n % 6 == 1 ? &wider : &profile.limits, .shape = &shape, .pass = pass};
            char why[160];
            for (const attune__family *const *f = attune__families; *f; f++)
                if ((*f)->backend == profile.limits.backend && !attune__family_reject(*f, &search, why, sizeof why))
                    try_table(*f, &search, profile.name);
        }
    }
    cr_assert_gt(entry_count, 100);
    for (size_t i = 0; i < entry_count; i++) {
        char text[128];
        attune__tile_print(entries[i].tile, text, sizeof text);
        cr_expect(!entries[i].why[0], "%s, tile %s: %s", entries[i].family->name, text, entries[i].why);
    }
}

/* SPDX-License-Identifier: MIT */
/* Error messages for failed searches: the option, the figures, and the nearest values with which the same search
 * succeeds. */
#include "plan/family.h"

#include <stdio.h>

#include "base/error.h"
#include "base/text.h"

static const char *pass_name(attune__pass pass)
{
    return pass == ATTUNE__PASS_BACKWARD ? "backward" : pass == ATTUNE__PASS_DECODE ? "decode" : "forward";
}

static bool succeeds(const attune__search *search)
{
    attune__found found;
    attune__search_run(search, NULL, &found);
    return found.outcome == ATTUNE__FOUND;
}

static bool is_block(attune__option option)
{
    return option >= ATTUNE__BLOCK_M && option <= ATTUNE__BLOCK_N2;
}

static bool works_with(const attune__search *search, attune__option option, uint32_t value)
{
    attune__option_range range = attune__option_range_of(option);
    if (value < range.least || value > range.most)
        return false;
    /* No kernel has other tile sizes. */
    if (is_block(option) && value % 16 && !attune__is_power2(value))
        return false;
    attune__search changed = *search;
    attune__option_set(&changed.options, option, value);
    return succeeds(&changed);
}

/* The value nearest to the forced one, smaller before larger, with which the search succeeds; 0 if none. */
static uint32_t nearest(const attune__search *search, attune__option option)
{
    uint32_t value = attune__option_get(&search->options, option), most = attune__option_range_of(option).most;
    for (uint32_t distance = 1; distance <= most; distance++) {
        if (distance < value && works_with(search, option, value - distance))
            return value - distance;
        if (works_with(search, option, value + distance))
            return value + distance;
    }
    return 0;
}

/* Over a cache there is one pass, of few families. */
static bool could_run(const attune__search *search, const attune__family *family, attune__pass pass)
{
    if (search->shape->tokens)
        return family->serving && pass == ATTUNE__PASS_FORWARD;
    return (pass == ATTUNE__PASS_BACKWARD) == (search->pass == ATTUNE__PASS_BACKWARD);
}

/* Adds the names of the backend's families (0 = all) that read the option in this direction, with the pass. */
static void add_readers(attune__text *names, const attune__search *search, attune__option option, uint32_t backend)
{
    for (const attune__family *const *f = attune__families; *f; f++)
        for (uint32_t pass = 0; pass < ATTUNE__PASS_COUNT; pass++)
            if ((*f)->options[pass] & ATTUNE__BIT(option) && (!backend || (*f)->backend == backend) &&
                could_run(search, *f, pass))
                attune__text_add(names, "%s%s (%s)", names->length ? ", " : "", (*f)->name, pass_name(pass));
}

static attune_status not_read(const attune__search *search, const attune__found *found)
{
    char text[640];
    attune__text names = attune__text_begin(text, sizeof text);
    add_readers(&names, search, found->option, search->limits->backend);
    if (!names.length)
        add_readers(&names, search, found->option, 0);
    const bool split = found->option == ATTUNE__SPLIT_KV && !search->shape->tokens;
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is given, but kernel %s (%s) does not read it%s%s: leave it out%s",
                        attune__option_name(found->option), found->family->name, pass_name(search->pass),
                        names.length ? "; kernels that do are " : "", text,
                        split ? " or force the decode kernel with FORCE_USE_FLEX_ATTENTION off" : "");
}

static attune_status rejected(const attune__search *search, const attune__found *found)
{
    const char *name = attune__option_name(found->option);
    const uint32_t value = attune__option_get(&search->options, found->option);
    if (attune__option_range_of(found->option).choice)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s %s: %s (%s): %s: leave it out%s", name,
                            value == ATTUNE_ON ? "on" : "off", found->family->name, pass_name(search->pass), found->why,
                            search->options.kernel[0] ? ", or KERNEL" : "");
    const uint32_t works = nearest(search, found->option);
    if (works)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "%s is %u, which %s (%s) cannot have: %s; the nearest is %u", name,
                            value, found->family->name, pass_name(search->pass), found->why, works);
    return attune__fail(ATTUNE_INVALID_ARGUMENT,
                        "%s is %u, which %s (%s) cannot have: %s; no other %s goes with the options beside it", name,
                        value, found->family->name, pass_name(search->pass), found->why, name);
}

/* The error if no tile of the kernel fits, with the kernel that would be chosen if none were named. */
static attune_status kernel_too_big(const attune__search *search, const attune__found *found)
{
    attune__search free = *search;
    attune__found other;
    char tile[160], exceeds[160] = "";
    attune__tile_print(&found->tile, tile, sizeof tile);
    attune__cost_exceeds(found->family, search->limits, &found->cost, exceeds, sizeof exceeds);
    free.options.kernel[0] = '\0';
    free.forced &= ~ATTUNE__BIT(ATTUNE__KERNEL);
    attune__search_run(&free, NULL, &other);
    const bool named = search->options.kernel[0], helps = other.outcome == ATTUNE__FOUND;
    return attune__fail(ATTUNE_DOES_NOT_FIT, "%s%s does not fit (%s): with its smallest tile, %s, it %s%s%s",
                        named ? "KERNEL " : "", found->family->name, pass_name(search->pass), tile, exceeds,
                        helps ? "; the nearest that fits: KERNEL " : "", helps ? other.family->name : "");
}

static attune_status too_big(const attune__search *search, const attune__found *found)
{
    char tile[160], exceeds[160] = "", text[256];
    attune__tile_print(&found->tile, tile, sizeof tile);
    attune__cost_exceeds(found->family, search->limits, &found->cost, exceeds, sizeof exceeds);
    attune__text cures = attune__text_begin(text, sizeof text);
    uint32_t first = ATTUNE__OPTION_COUNT, reported = ATTUNE__OPTION_COUNT;
    for (uint32_t i = 0; i <= ATTUNE__NUM_WARPS; i++) {
        if (!(search->forced & ATTUNE__BIT(i)))
            continue;
        reported = reported < ATTUNE__OPTION_COUNT ? reported : i;
        uint32_t value = nearest(search, i);
        if (!value)
            continue;
        attune__text_add(&cures, "%s%s %u", cures.length ? ", or " : "", attune__option_name(i), value);
        first = first < ATTUNE__OPTION_COUNT ? first : i;
    }
    if (reported == ATTUNE__OPTION_COUNT)
        return kernel_too_big(search, found);
    reported = first < ATTUNE__OPTION_COUNT ? first : reported;
    if (!cures.length) {
        attune__search alone = *search;
        alone.forced &= ~(ATTUNE__TILE_OPTIONS & ~ATTUNE__BIT(reported));
        uint32_t value = attune__option_get(&search->options, reported);
        value = succeeds(&alone) ? value : nearest(&alone, reported);
        if (!value) {
            attune__found smallest;
            alone.forced &= ~ATTUNE__TILE_OPTIONS;
            attune__search_run(&alone, NULL, &smallest);
            return kernel_too_big(&alone, smallest.outcome == ATTUNE__TOO_BIG ? &smallest : found);
        }
        attune__text_add(&cures, "%s %u with the other tile options left out", attune__option_name(reported), value);
    }
    return attune__fail(ATTUNE_DOES_NOT_FIT, "%s %u does not fit (%s): %s with %s %s; the nearest that fits: %s",
                        attune__option_name(reported), attune__option_get(&search->options, reported),
                        pass_name(search->pass), found->family->name, tile, exceeds, text);
}

attune_status attune__search_fail(const attune__search *search, const attune__found *found)
{
    switch (found->outcome) {
    case ATTUNE__NOT_READ:
        return not_read(search, found);
    case ATTUNE__REJECTED:
        return rejected(search, found);
    case ATTUNE__TOO_BIG:
        return too_big(search, found);
    case ATTUNE__UNMET:
        if (found->family)
            return attune__fail(ATTUNE_UNSUPPORTED, "%s%s cannot run this %s problem: %s",
                                search->options.kernel[0] ? "KERNEL " : "", found->family->name,
                                pass_name(search->pass), found->why);
        break;
    case ATTUNE__FOUND:
        break;
    }
    return attune__fail(ATTUNE_INTERNAL, "the planner found neither a tile nor a reason");
}

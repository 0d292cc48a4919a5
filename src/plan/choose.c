/* SPDX-License-Identifier: MIT */
/* The planner's main function: checks, the decode rule, the search, and the choice with everything that depends on the
 * tile. */
#include "plan/family.h"

#include <stdio.h>
#include <string.h>

#include "base/desc.h"
#include "base/error.h"

static uint32_t fewest_parts(const attune__search *search, const attune__found *found)
{
    const attune__family *family = found->family;
    return family->most_steps ? attune__decode_fewest(search->shape, found->tile.value[ATTUNE__BLOCK_N],
                                                      family->most_steps(search, &found->tile))
                              : 1;
}

/* The choice, without the part of the workspace for segments. */
static attune_plan_choice choice_of(const attune__search *search, const attune__found *found)
{
    const attune_pass_options *o = &search->options;
    const uint32_t *v = found->tile.value;
    bool back = search->pass == ATTUNE__PASS_BACKWARD, decode = search->pass == ATTUNE__PASS_DECODE;
    uint32_t occupancy = attune__occupancy(search->limits, &found->cost);
    uint32_t split = 1;
    if (decode)
        split = o->split_kv ? o->split_kv : attune__decode_split(search, found, occupancy, fewest_parts(search, found));
    return (attune_plan_choice){
        .struct_size = sizeof(attune_plan_choice),
        .kernel = found->family->name,
        .direction = search->shape->direction,
        .decode = decode,
        .block_m = v[ATTUNE__BLOCK_M],
        .block_n = v[ATTUNE__BLOCK_N],
        .block_m1 = v[ATTUNE__BLOCK_M1],
        .block_n1 = v[ATTUNE__BLOCK_N1],
        .block_m2 = v[ATTUNE__BLOCK_M2],
        .block_n2 = v[ATTUNE__BLOCK_N2],
        .num_warps = v[ATTUNE__NUM_WARPS],
        .num_stages = v[ATTUNE__NUM_STAGES],
        .workgroup_invocations = found->cost.invocations,
        .split_kv = split,
        .shared_memory = (uint32_t)found->cost.shared,
        .registers = found->cost.registers,
        .occupancy = occupancy ? occupancy : 1,
        .workspace = found->family->workspace(search, &found->tile, &found->cost, split),
        .prescale_qk = o->prescale_qk == ATTUNE_ON,
        .use_tma = found->family->tma,
        .blocks_are_contiguous = o->blocks_are_contiguous == ATTUNE_ON,
        .rows_guaranteed_safe = o->rows_guaranteed_safe == ATTUNE_ON,
        .write_dq = back && o->write_dq != ATTUNE_OFF,
        .deterministic = o->deterministic == ATTUNE_ON || !(found->family->unordered >> search->pass & 1),
        .approximate_tanh = o->approximate_tanh == ATTUNE_ON,
    };
}

static attune__variant variant_of(const attune__search *search, const attune__found *found,
                                  const attune_plan_choice *choice)
{
    attune__variant variant = {0};
    if (found->family->variant)
        found->family->variant(search->shape, choice, &variant);
    return variant;
}

static void fill(const attune__search *search, const attune__found *found, attune__decision *decision)
{
    decision->choice = choice_of(search, found);
    decision->variant = variant_of(search, found, &decision->choice);
    uint32_t rejected = decision->rejection_count;
    const char *caveat = found->family->caveat;
    snprintf(decision->why, sizeof decision->why, "%s%s%s",
             search->forced & ATTUNE__TILE_OPTIONS
                 ? "the largest tile of the fastest kernel with the options given that fits"
             : rejected == 0 ? "the fastest kernel of this device with its first tile"
                             : "the first, from the fastest down, that this device and problem allow",
             caveat ? "; " : "", caveat ? caveat : "");
}

static attune_status check_named_kernel(const attune_limits *limits, const attune_pass_options *options)
{
    if (!options->kernel[0])
        return ATTUNE_OK;
    const attune__family *family = attune__family_find(options->kernel);
    if (family->backend == limits->backend)
        return ATTUNE_OK;
    char names[160];
    size_t used = 0;
    for (const attune__family *const *f = attune__families; *f && used < sizeof names; f++)
        if ((*f)->backend == limits->backend) {
            int added = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", (*f)->name);
            used += added > 0 ? (size_t)added : 0;
        }
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "KERNEL %s belongs to another backend: kernels for this device are %s",
                        family->name, names);
}

static attune_status read_options(const attune_kernel_options *given, attune_kernel_options *options)
{
    ATTUNE__TRY(attune__options_read(given, options));
    const struct {
        const char *prefix, *name;
    } kernels[] = {{"", options->any.kernel}, {"fwd_", options->fwd.kernel}, {"bwd_", options->bwd.kernel}};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (kernels[i].name[0])
            ATTUNE__TRY(attune__check_kernel_name(kernels[i].prefix, kernels[i].name));
    return ATTUNE_OK;
}

static void explain_no_decode(const attune__found *found, char *why, size_t size)
{
    snprintf(why, size, "no: no decode kernel takes this: %s%s%.160s", found->family ? found->family->name : "",
             found->family ? ": " : "", found->why[0] ? found->why : "the options given do not fit");
}

/* Chooses the decode kernel of a forward plan, for its short calls. Tile and splits are those for one query, the most
 * frequent call; more queries take several tiles. */
static attune_status choose_short(const attune__search *forward, attune__decision *decision)
{
    attune__shape one = *forward->shape;
    attune__search search = *forward;
    attune__decode rule;
    attune__found found;
    one.q_len = 1;
    search.shape = &one;
    search.pass = ATTUNE__PASS_DECODE;
    ATTUNE__TRY(attune__decode_rule(&search, &rule, decision->why_short, sizeof decision->why_short));
    if (rule == ATTUNE__DECODE_NO)
        return ATTUNE_OK;
    attune__search_run(&search, NULL, &found);
    if (found.outcome != ATTUNE__FOUND) {
        explain_no_decode(&found, decision->why_short, sizeof decision->why_short);
        return ATTUNE_OK;
    }
    const int64_t most = attune__decode_most_queries(&search), q_len = forward->shape->q_len;
    decision->choice.short_q_len = most < q_len ? most : q_len;
    decision->short_choice = choice_of(&search, &found);
    decision->short_variant = variant_of(&search, &found, &decision->short_choice);
    const attune__shape all = attune__shape_of_short(forward->shape, decision);
    search.shape = &all;
    decision->short_choice.workspace =
        found.family->workspace(&search, &found.tile, &found.cost, decision->short_choice.split_kv);
    snprintf(decision->why_short, sizeof decision->why_short, "calls of at most %lld queries and at least %d keys",
             (long long)decision->choice.short_q_len, ATTUNE__DECODE_FEWEST_KEYS);
    return ATTUNE_OK;
}

/* Both kernels share one workspace, after the part for segments. */
static void share_workspace(const attune__shape *s, attune__decision *decision)
{
    const uint64_t segments = attune__segments_size(s, (uint64_t)(s->batch * s->heads * s->q_len), s->segments);
    const uint64_t own = decision->choice.workspace, other = decision->short_choice.workspace;
    decision->choice.workspace = segments + (own > other ? own : other);
    if (decision->choice.short_q_len)
        decision->short_choice.workspace = decision->choice.workspace;
}

static attune_status choose_pass(const attune_limits *limits, const attune__shape *shape,
                                 const attune_kernel_options *options, attune__decision *decision)
{
    attune__search search = {.limits = limits, .shape = shape};
    attune_kernel_options read;
    ATTUNE__TRY(read_options(options, &read));
    attune__options_merge(&read, shape->direction, &search.options, &search.forced);
    ATTUNE__TRY(check_named_kernel(limits, &search.options));
    attune__decode rule;
    ATTUNE__TRY(attune__decode_rule(&search, &rule, decision->why_decode, sizeof decision->why_decode));
    attune__found found, decode = {.outcome = ATTUNE__UNMET};
    if (rule != ATTUNE__DECODE_NO) {
        search.pass = ATTUNE__PASS_DECODE;
        attune__search_run(&search, decision, &decode);
        if (decode.outcome == ATTUNE__FOUND) {
            fill(&search, &decode, decision);
            return ATTUNE_OK;
        }
        if (rule == ATTUNE__DECODE_FORCED)
            return attune__search_fail(&search, &decode);
        explain_no_decode(&decode, decision->why_decode, sizeof decision->why_decode);
    }
    search.pass = shape->direction == ATTUNE_BACKWARD ? ATTUNE__PASS_BACKWARD : ATTUNE__PASS_FORWARD;
    attune__search_run(&search, decision, &found);
    if (found.outcome != ATTUNE__FOUND) {
        /* A kernel of decode alone is not for the forward pass, whatever its options: these are the reason to report.
         */
        const bool decodes = decode.outcome > found.outcome;
        if (decodes)
            search.pass = ATTUNE__PASS_DECODE;
        return attune__search_fail(&search, decodes ? &decode : &found);
    }
    fill(&search, &found, decision);
    return search.pass == ATTUNE__PASS_FORWARD ? choose_short(&search, decision) : ATTUNE_OK;
}

attune_status attune__plan_choose(const attune_limits *limits, const attune__shape *shape,
                                  const attune_kernel_options *options, attune__decision *decision)
{
    attune_limits l;
    ATTUNE__TRY(attune__desc_read(&l, sizeof l, limits, sizeof l, "limits"));
    ATTUNE__TRY(attune__limits_check(&l));
    attune__decision made;
    memset(&made, 0, sizeof made);
    ATTUNE__TRY(choose_pass(&l, shape, options, &made));
    share_workspace(shape, &made);
    *decision = made;
    return ATTUNE_OK;
}

/* SPDX-License-Identifier: MIT */
/* Prints a decision as text and as JSON, with the same content. */
#include "plan/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/desc.h"
#include "base/text.h"

static const char *backend_name(attune_backend backend)
{
    switch (backend) {
    case ATTUNE_BACKEND_CPU:
        return "cpu";
    case ATTUNE_BACKEND_VULKAN:
        return "vulkan";
    case ATTUNE_BACKEND_CUDA:
        return "cuda";
    case ATTUNE_BACKEND_OPENCL:
        return "opencl";
    }
    return "?";
}

static const char *direction_name(const attune__shape *s)
{
    return s->direction == ATTUNE_BACKWARD ? "backward" : "forward";
}

/* The options that are set, `"name": value` or `name value`, with their prefixes. */
static void add_options(attune__text *text, const attune_kernel_options *options, bool json)
{
    const attune_pass_options *passes[3] = {&options->any, &options->fwd, &options->bwd};
    static const char *const prefixes[3] = {"", "fwd_", "bwd_"};
    const char *separator = "";
    for (int p = 0; p < 3; p++)
        for (uint32_t i = 0; i < ATTUNE__OPTION_COUNT; i++) {
            uint32_t value = attune__option_get(passes[p], i);
            if (!value)
                continue;
            attune__text_add(text, json ? "%s\"%s%s\": " : "%s%s%s ", separator, prefixes[p], attune__option_name(i));
            if (i == ATTUNE__KERNEL && json)
                attune__text_add_json(text, passes[p]->kernel);
            else if (i == ATTUNE__KERNEL)
                attune__text_add(text, "%s", passes[p]->kernel);
            else if (attune__option_range_of(i).choice)
                attune__text_add(text, "%s", value == ATTUNE_ON ? "true" : "false");
            else
                attune__text_add(text, "%u", value);
            separator = ", ";
        }
}

/* ------------------------------------------------------------------------------------------------------------- text */

static void text_problem(attune__text *text, const attune__shape *s)
{
    char types[64];
    if (attune__shape_mixed(s))
        snprintf(types, sizeof types, "q %s, k and v %s, o %s", attune_dtype_string(s->q_dtype),
                 attune_dtype_string(s->k_dtype), attune_dtype_string(s->o_dtype));
    else
        snprintf(types, sizeof types, "%s", attune_dtype_string(s->q_dtype));
    attune__text_add(text,
                     "problem     %s %s, batch %lld, %lld heads on %lld, q_len %lld, kv_len %lld, head_dim %u, "
                     "head_dim_v %u\n",
                     direction_name(s), types, (long long)s->batch, (long long)s->heads, (long long)s->kv_heads,
                     (long long)s->q_len, (long long)s->kv_len, s->head_dim, s->head_dim_v);
    if (s->block_mask)
        attune__text_add(text, "            block mask %u x %u%s%s\n", s->mask_q_block, s->mask_kv_block,
                         s->mask_expr ? " with expression" : "", s->score_expr ? ", score expression" : "");
    else if (s->score_expr)
        attune__text_add(text, "            score expression\n");
    if (s->sinks)
        attune__text_add(text, "            sinks\n");
}

static void text_terms(attune__text *text, const attune__terms *terms)
{
    if (terms->key_count)
        attune__text_add(text, ", %u terms of a key and %u of a row computed once", terms->key_count, terms->row_count);
}

/* The order of stages that a kernel's registers allow. */
static void text_order(attune__text *text, const char *indent, const attune__variant *v)
{
    const struct {
        bool set;
        const char *is;
    } parts[] = {
        {v->descending, "keys from the last to the first"},
        {v->late_hook, "score and mask after P V"},
        {v->late_dp, "dP after P"},
        {v->early_dq, "dQ before P"},
        {v->fused_gradients, "P, dS and capture gradients in one pass"},
        {v->half_tiles, "half a query tile at a time"},
        {v->late_captures, "captures' sizes read late"},
        {v->late_delta, "delta read late"},
        {v->rematerialise, "thread coordinates rematerialised"},
        {v->saved_state, "row maxima and sums in shared memory beside O"},
        {v->serial_columns, "scores of one fragment after another"},
    };
    bool any = false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].set) {
            if (!any)
                attune__text_add(text, "%sstages      ", indent);
            attune__text_add(text, "%s%s", any ? ", " : "", parts[i].is);
            any = true;
        }
    if (any)
        attune__text_add(text, "\n");
}

/* How the kernel evaluates the expressions; for families without variants only the cost. */
static void text_variant(attune__text *text, const char *indent, const attune__shape *s, const attune__variant *v)
{
    const attune__analysis *e = &s->expr;
    if (s->mask_expr) {
        attune__text_add(text, "%smask        ", indent);
        if (v->row_intervals)
            attune__text_add(text, "a row's keys are one interval%s",
                             v->mask_pairs ? " where equal elements of captures stand together, else " : "");
        if (v->mask_pairs || !v->row_intervals)
            attune__text_add(text, "pair by pair in partial blocks, about %u instruction%s", e->mask.weight,
                             e->mask.weight == 1 ? "" : "s");
        text_terms(text, &v->mask);
        attune__text_add(text, "%s\n", v->mask_chunks ? ", a few pairs at a time" : "");
    }
    if (s->score_expr) {
        attune__text_add(text, "%sscore       %s, about %u instructions a pair", indent,
                         v->soft_cap ? "a soft-cap"
                         : v->linear ? "linear in the product and kv"
                                     : "pair by pair",
                         e->score.weight);
        if (v->near > 0 && v->near < INFINITY)
            attune__text_add(text, ", %u where the scaled product is at most %g", e->score.near_weight,
                             (double)v->near);
        if (v->fast_functions)
            attune__text_add(text, ", %u with approximate functions", e->score.fast_weight);
        text_terms(text, &v->score);
        attune__text_add(text, "%s\n", v->score_chunks ? ", a few pairs at a time" : "");
    }
    if (s->capture_gradient_elements && v->uniform_reads.count)
        attune__text_add(text, "%scaptures    gradients of %u of %u reads summed by a thread over its pairs\n", indent,
                         v->uniform_reads.count, e->capture_reads);
    if (v->polynomials)
        attune__text_add(text, "%sexp         %u of each eight as polynomials of degree %u\n", indent, v->polynomials,
                         v->polynomial_degree);
    text_order(text, indent, v);
}

/* `indent` is the prefix of each line. */
static void text_launch(attune__text *text, const char *indent, const attune_limits *l, const attune_plan_choice *c)
{
    if (c->direction == ATTUNE_BACKWARD)
        attune__text_add(text, "%stiles       dK and dV: BLOCK_M1 %u x BLOCK_N1 %u; dQ: BLOCK_M2 %u x BLOCK_N2 %u\n",
                         indent, c->block_m1, c->block_n1, c->block_m2, c->block_n2);
    else
        attune__text_add(text, "%stile        BLOCK_M %u x BLOCK_N %u\n", indent, c->block_m, c->block_n);
    attune__text_add(text, "%slaunch      num_stages %u, num_warps %u, %u invocations\n", indent, c->num_stages,
                     c->num_warps, c->workgroup_invocations);
    attune__text_add(text, "%smemory      %u bytes of %u %s\n", indent, c->shared_memory, l->shared_memory,
                     attune__family_find(c->kernel)->cache ? "in the second-level cache" : "shared");
    if (c->registers)
        attune__text_add(text, "%sregisters   about %u of %u a thread\n", indent, c->registers,
                         l->registers_per_thread);
    attune__text_add(text, "%soccupancy   %u on each of %u compute units\n", indent, c->occupancy, l->compute_units);
    if (c->decode)
        attune__text_add(text, "%ssplit       %u part%s of the keys\n", indent, c->split_kv,
                         c->split_kv == 1 ? "" : "s");
}

static void text_choice(attune__text *text, const attune_limits *l, const attune__shape *s, const attune__decision *d)
{
    const attune_plan_choice *c = &d->choice;
    attune__text_add(text, "kernel      %s%s\n", c->kernel, c->decode ? ", decode pass" : "");
    attune__text_add(text, "why         %s\n", d->why);
    attune__text_add(text, "decode      %s\n", d->why_decode);
    text_launch(text, "", l, c);
    if (c->short_q_len) {
        attune__text_add(text, "short       %s, decode pass: %s\n", d->short_choice.kernel, d->why_short);
        text_launch(text, "  ", l, &d->short_choice);
        text_variant(text, "  ", s, &d->short_variant);
    } else if (d->why_short[0]) {
        attune__text_add(text, "short       %s\n", d->why_short);
    }
    attune__text_add(text, "workspace   %llu bytes\n", (unsigned long long)c->workspace);
    if (c->blocks_are_contiguous)
        attune__text_add(text,
                         "contiguous  promised; the lists, which this kernel reads ahead, are read in any case\n");
    if (c->approximate_tanh)
        attune__text_add(text, "tanh        the device's own, within 2^-11 (APPROXIMATE_TANH)\n");
    if (c->direction == ATTUNE_BACKWARD)
        attune__text_add(text, "repeats     %s\n",
                         c->deterministic ? "give the same bits" : "may differ in the last bits (DETERMINISTIC)");
}

static void explain_text(attune__text *text, const attune_limits *l, const attune__shape *s,
                         const attune_kernel_options *options, const attune__decision *d)
{
    text_problem(text, s);
    attune__text_add(text, "options     ");
    size_t before = text->length;
    add_options(text, options, false);
    attune__text_add(text, text->length == before ? "none\n" : "\n");
    text_choice(text, l, s, d);
    text_variant(text, "", s, &d->variant);
    attune__text_add(text, "rejected    %s\n", d->rejection_count ? "" : "none");
    for (uint32_t i = 0; i < d->rejection_count; i++)
        attune__text_add(text, "            %s: %s\n", d->rejections[i].what, d->rejections[i].why);
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static void add_string(attune__text *text, const char *name, const char *value, const char *after)
{
    attune__text_add(text, "\"%s\": ", name);
    attune__text_add_json(text, value);
    attune__text_add(text, "%s", after);
}

static const char *truth(bool value)
{
    return value ? "true" : "false";
}

static void json_limits(attune__text *text, const attune_limits *l)
{
    attune__text_add(text, "  \"limits\": {");
    add_string(text, "backend", backend_name(l->backend), ", ");
    attune__text_add(text,
                     "\"architecture\": %u, \"compute_units\": %u, \"shared_memory\": %u, \"shared_memory_unit\": %u, "
                     "\"workgroup_invocations\": %u, \"subgroup_size\": %u, \"registers\": %u, "
                     "\"registers_per_thread\": %u, \"matrix\": %u},\n",
                     l->architecture, l->compute_units, l->shared_memory, l->shared_memory_unit,
                     l->workgroup_invocations, l->subgroup_size, l->registers, l->registers_per_thread, l->matrix);
}

static void json_problem(attune__text *text, const attune__shape *s)
{
    attune__text_add(text, "  \"problem\": {");
    add_string(text, "direction", direction_name(s), ", ");
    add_string(text, "dtype", attune_dtype_string(s->q_dtype), ", ");
    add_string(text, "kv_dtype", attune_dtype_string(s->k_dtype), ", ");
    add_string(text, "o_dtype", attune_dtype_string(s->o_dtype), ", ");
    attune__text_add(text,
                     "\"head_dim\": %u, \"head_dim_v\": %u, \"batch\": %lld, \"kv_batch\": %lld, \"heads\": %lld, "
                     "\"kv_heads\": %lld, \"q_len\": %lld, \"kv_len\": %lld, \"block_mask\": %s, \"mask\": %s, "
                     "\"score\": %s, \"mask_q_block\": %u, \"mask_kv_block\": %u},\n",
                     s->head_dim, s->head_dim_v, (long long)s->batch, (long long)s->kv_batch, (long long)s->heads,
                     (long long)s->kv_heads, (long long)s->q_len, (long long)s->kv_len, truth(s->block_mask),
                     truth(s->mask_expr), truth(s->score_expr), s->mask_q_block, s->mask_kv_block);
}

static void json_choice(attune__text *text, const char *name, const attune_plan_choice *c)
{
    attune__text_add(text, "  \"%s\": {", name);
    add_string(text, "kernel", c->kernel, ", ");
    attune__text_add(text, "\"decode\": %s, ", truth(c->decode));
    if (c->direction == ATTUNE_BACKWARD)
        attune__text_add(text, "\"BLOCK_M1\": %u, \"BLOCK_N1\": %u, \"BLOCK_M2\": %u, \"BLOCK_N2\": %u, ", c->block_m1,
                         c->block_n1, c->block_m2, c->block_n2);
    else
        attune__text_add(text, "\"BLOCK_M\": %u, \"BLOCK_N\": %u, ", c->block_m, c->block_n);
    attune__text_add(text,
                     "\"num_stages\": %u, \"num_warps\": %u, \"workgroup_invocations\": %u, \"SPLIT_KV\": %u, "
                     "\"shared_memory\": %u, \"registers\": %u, \"occupancy\": %u, \"workspace\": %llu, "
                     "\"PRESCALE_QK\": %s, \"USE_TMA\": %s, \"BLOCKS_ARE_CONTIGUOUS\": %s, \"ROWS_GUARANTEED_SAFE\": "
                     "%s, \"WRITE_DQ\": %s, \"DETERMINISTIC\": %s, \"APPROXIMATE_TANH\": %s, \"short_q_len\": "
                     "%lld},\n",
                     c->num_stages, c->num_warps, c->workgroup_invocations, c->split_kv, c->shared_memory, c->registers,
                     c->occupancy, (unsigned long long)c->workspace, truth(c->prescale_qk), truth(c->use_tma),
                     truth(c->blocks_are_contiguous), truth(c->rows_guaranteed_safe), truth(c->write_dq),
                     truth(c->deterministic), truth(c->approximate_tanh), (long long)c->short_q_len);
}

static void json_terms(attune__text *text, const char *name, const attune__terms *terms)
{
    attune__text_add(text, "\"%s_key_terms\": %u, \"%s_row_terms\": %u, ", name, terms->key_count, name,
                     terms->row_count);
}

static void json_variant(attune__text *text, const char *name, const attune__shape *s, const attune__variant *v)
{
    const attune__analysis *e = &s->expr;
    attune__text_add(text, "  \"%s\": {\"row_intervals\": %s, \"mask_pairs\": %s, \"key_intervals\": %s, ", name,
                     truth(v->row_intervals), truth(v->mask_pairs), truth(v->key_intervals));
    attune__text_add(text, "\"soft_cap\": %s, \"linear\": %s, \"fast_functions\": %s, ", truth(v->soft_cap),
                     truth(v->linear), truth(v->fast_functions));
    json_terms(text, "mask", &v->mask);
    json_terms(text, "score", &v->score);
    json_terms(text, "slope", &v->slope);
    if (v->near > 0 && v->near < INFINITY)
        attune__text_add(text, "\"near\": %.9g, ", (double)v->near);
    attune__text_add(
        text,
        "\"mask_chunks\": %s, \"score_chunks\": %s, \"late_captures\": %s, \"late_delta\": %s, "
        "\"descending\": %s, \"late_hook\": %s, \"late_dp\": %s, \"early_dq\": %s, \"fused_gradients\": %s, "
        "\"half_tiles\": %s, \"rematerialise\": %s, \"saved_state\": %s, \"serial_columns\": %s, "
        "\"uniform_reads\": %u, "
        "\"mask_weight\": %u, \"score_weight\": %u, \"slope_weight\": %u},\n",
        truth(v->mask_chunks), truth(v->score_chunks), truth(v->late_captures), truth(v->late_delta),
        truth(v->descending), truth(v->late_hook), truth(v->late_dp), truth(v->early_dq), truth(v->fused_gradients),
        truth(v->half_tiles), truth(v->rematerialise), truth(v->saved_state), truth(v->serial_columns),
        v->uniform_reads.count, e->mask.weight, e->score.weight, e->slope.weight);
}

static void json_choices(attune__text *text, const attune__shape *s, const attune__decision *d)
{
    json_choice(text, "choice", &d->choice);
    json_variant(text, "variant", s, &d->variant);
    if (d->choice.short_q_len) {
        json_choice(text, "short_choice", &d->short_choice);
        json_variant(text, "short_variant", s, &d->short_variant);
    } else {
        attune__text_add(text, "  \"short_choice\": null,\n");
    }
    attune__text_add(text, "  ");
    add_string(text, "why", d->why, ",\n  ");
    add_string(text, "why_decode", d->why_decode, ",\n  ");
    add_string(text, "why_short", d->why_short, ",\n");
}

static void explain_json(attune__text *text, const attune_limits *l, const attune__shape *s,
                         const attune_kernel_options *options, const attune__decision *d)
{
    attune__text_add(text, "{\n");
    json_limits(text, l);
    json_problem(text, s);
    attune__text_add(text, "  \"options\": {");
    add_options(text, options, true);
    attune__text_add(text, "},\n");
    json_choices(text, s, d);
    attune__text_add(text, "  \"rejections\": [");
    for (uint32_t i = 0; i < d->rejection_count; i++) {
        attune__text_add(text, "%s\n    {", i ? "," : "");
        add_string(text, "what", d->rejections[i].what, ", ");
        add_string(text, "why", d->rejections[i].why, "}");
    }
    attune__text_add(text, "%s]\n}\n", d->rejection_count ? "\n  " : "");
}

attune_status attune__plan_explain(const attune_limits *limits, const attune__shape *shape,
                                   const attune_kernel_options *options, const attune__decision *decision,
                                   attune_text_format format, char *buffer, size_t size, size_t *needed)
{
    attune_limits l;
    attune_kernel_options o = {.struct_size = sizeof o};
    ATTUNE__TRY(attune__desc_read(&l, sizeof l, limits, sizeof l, "limits"));
    if (options)
        ATTUNE__TRY(attune__desc_read(&o, sizeof o, options, sizeof o, "options"));
    attune__text text = attune__text_begin(buffer, size);
    if (format == ATTUNE_JSON)
        explain_json(&text, &l, shape, &o, decision);
    else
        explain_text(&text, &l, shape, &o, decision);
    attune__text_end(&text, needed);
    return ATTUNE_OK;
}

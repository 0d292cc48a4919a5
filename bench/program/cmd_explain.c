/* SPDX-License-Identifier: MIT */
/* attune explain: prints the plan for a device of this machine or for a known device. */
#include "bench/program/cli.h"

#include "bench/program/explain_ranks.h"
#include "bench/program/limits_text.h"
#include "bench/timing/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char default_heads[] = "32,8";

typedef struct explain_options {
    const char *device, *profile, *head_dim, *dtype, *kv_dtype, *o_dtype, *direction, *q_len, *kv_len, *heads,
        *kv_heads, *batch, *mask, *score, *scale, *block, *kernel_options;
    bool json, list, lse, row_max;
    cli_list declarations, captures, parameters;
    ranks_options ranks;
} explain_options;

static json_t *profile_json(const attune_profile *profile)
{
    return json_pack("{so so so so}", "name", json_text(profile->name), "description", json_text(profile->description),
                     "source", json_text(profile->source), "limits", limits_json(&profile->limits));
}

static int list_profiles(bool json)
{
    int result = EXIT_GOOD;
    json_t *list = json_array();
    for (uint32_t i = 0; result == EXIT_GOOD && i < attune_profile_count(); i++) {
        attune_profile profile = {.struct_size = sizeof profile};
        if (attune_profile_get(i, &profile) != ATTUNE_OK) {
            cli_error("%s", attune_last_error());
            result = EXIT_FAILED;
        } else if (json) {
            (void)json_array_append_new(list, profile_json(&profile));
        } else {
            (void)printf("%-16s %s\n", profile.name, profile.description);
            limits_print(&profile.limits, "                   ");
            (void)printf("                   source: %s\n", profile.source);
        }
    }
    if (result == EXIT_GOOD && json)
        cli_print_json(list);
    json_decref(list);
    return result;
}

static bool read_problem(const explain_options *o, attune_problem *p)
{
    int64_t dims[2], heads[2], block[2] = {128, 128};
    *p = (attune_problem){.struct_size = sizeof *p, .lse = o->lse, .row_max = o->row_max};
    if (!strcmp(o->direction, "backward")) {
        p->direction = ATTUNE_BACKWARD;
    } else if (strcmp(o->direction, "forward") != 0) {
        cli_error("--direction is \"%s\", expected forward or backward", o->direction);
        return false;
    }
    if (!cli_dtype("--dtype", o->dtype, &p->dtype) || !cli_optional_dtype("--kv-dtype", o->kv_dtype, &p->kv_dtype) ||
        !cli_optional_dtype("--o-dtype", o->o_dtype, &p->o_dtype) ||
        !cli_dtypes_agree(p->dtype, p->kv_dtype, p->o_dtype, false) ||
        !cli_pair("--head-dim", o->head_dim, 1, 65536, dims, 0) ||
        !cli_integer("--q-len", o->q_len, 1, INT32_MAX, &p->q_len) ||
        !cli_integer("--kv-len", *o->kv_len ? o->kv_len : o->q_len, 1, INT32_MAX, &p->kv_len) ||
        !cli_heads(o->heads, o->heads != default_heads, o->kv_heads, heads) ||
        !cli_integer("--batch", o->batch, 1, INT32_MAX, &p->batch) ||
        (*o->block && !cli_pair("--block", o->block, 16, 1024, block, 0)) || !cli_scale(o->scale, &p->scale))
        return false;
    p->head_dim = (uint32_t)dims[0];
    p->head_dim_v = (uint32_t)dims[1];
    p->heads = heads[0];
    p->kv_heads = heads[1];
    p->mask_q_block = (uint32_t)block[0];
    p->mask_kv_block = (uint32_t)block[1];
    return true;
}

/* The limits of the profile or the device, whose peak is measured where ranks need it. */
static attune_status read_limits(attune_instance *instance, const explain_options *o, const attune_problem *problem,
                                 attune_limits *limits, ranks_asked *asked)
{
    if (*o->profile) {
        attune_profile profile = {.struct_size = sizeof profile};
        attune_status status = attune_profile_find(o->profile, &profile);
        if (status != ATTUNE_OK)
            cli_error("--device-profile: %s", attune_last_error());
        if (status == ATTUNE_OK && asked->partition.ranks && !*o->ranks.flops) {
            cli_error("--ranks with --device-profile requires --tflops, the TFLOP/s of the kernel on one device");
            status = ATTUNE_INVALID_ARGUMENT;
        }
        *limits = profile.limits;
        return status;
    }
    cli_devices devices;
    attune_status status = cli_devices_open(instance, *o->device ? o->device : "cpu", &devices);
    if (status != ATTUNE_OK)
        return status;
    attune_device_info info = {.struct_size = sizeof info};
    if (devices.count != 1) {
        cli_error("--device is \"%s\", %u devices: expected one", o->device, devices.count);
        cli_devices_close(&devices);
        return ATTUNE_INVALID_ARGUMENT;
    }
    status = attune_device_info_get(devices.device[0], &info);
    if (status == ATTUNE_OK && asked->partition.ranks && !*o->ranks.flops) {
        double bandwidth;
        status = attune_device_measure(devices.device[0], problem->dtype, &asked->machine.flops, &bandwidth);
        if (status != ATTUNE_OK)
            cli_error("%s: give --tflops", attune_last_error());
    }
    cli_devices_close(&devices);
    *limits = info.limits;
    return status;
}

/* The plan with what is predicted of ranks, as one object. */
static bool print_json(const char *text, json_t *ranks)
{
    json_t *root = json_loads(text, 0, NULL);
    const bool good = root && ranks && !json_object_set(root, "ranks", ranks);
    if (good)
        cli_print_json(root);
    json_decref(root);
    json_decref(ranks);
    return good;
}

static attune_status explain(attune_instance *instance, const explain_options *o, const attune_problem *problem,
                             const attune_kernel_options *kernel_options, const bindings *names, ranks_asked *asked)
{
    attune_limits limits;
    attune_partition_stats stats;
    prediction made = {0};
    attune_status status = read_limits(instance, o, problem, &limits, asked);
    if (status != ATTUNE_OK)
        return status;
    const attune_text_format format = o->json ? ATTUNE_JSON : ATTUNE_TEXT;
    size_t needed;
    status = attune_plan_choose_explain(&limits, problem, kernel_options, format, NULL, 0, &needed);
    char *text = status == ATTUNE_OK ? malloc(needed) : NULL;
    if (text)
        status = attune_plan_choose_explain(&limits, problem, kernel_options, format, text, needed, NULL);
    if (status != ATTUNE_OK || !text) {
        cli_error("%s", status == ATTUNE_OK ? "out of memory" : attune_last_error());
        free(text);
        return status == ATTUNE_OK ? ATTUNE_OUT_OF_HOST_MEMORY : status;
    }
    if (asked->partition.ranks)
        status = ranks_predict(instance, problem, names, asked, &made, &stats);
    if (status == ATTUNE_OK && o->json && asked->partition.ranks) {
        if (!print_json(text, ranks_json(asked, &made, &stats)))
            status = ATTUNE_OUT_OF_HOST_MEMORY;
    } else if (status == ATTUNE_OK) {
        (void)printf("%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
        if (asked->partition.ranks)
            ranks_print(asked, &made, &stats);
    }
    predict_free(&made);
    free(text);
    return status;
}

/* Prints inferred names, since a misspelling is also a name. */
static void print_inferred(const bindings *names, uint32_t declared)
{
    for (uint32_t i = declared; i < names->symbol_count; i++) {
        const attune_symbol *s = &names->symbols[i];
        const bool capture = s->kind == ATTUNE_SYMBOL_CAPTURE;
        (void)printf("%s%s is a %s, %s, inferred, not declared\n", i == declared ? "names       " : "            ",
                     s->name, capture ? "capture" : "parameter", attune_dtype_string(s->dtype));
    }
}

int cmd_explain(int argc, char **argv)
{
    explain_options o = {.device = "",
                         .profile = "",
                         .head_dim = "128",
                         .dtype = "bf16",
                         .kv_dtype = "",
                         .o_dtype = "",
                         .direction = "forward",
                         .q_len = "4096",
                         .kv_len = "",
                         .heads = default_heads,
                         .kv_heads = "",
                         .batch = "1",
                         .mask = "causal",
                         .score = "",
                         .scale = "",
                         .block = "",
                         .kernel_options = "",
                         .ranks = {"", "", "", "", ""}};
    const cli_option options[] = {
        {"--device-profile", "NAME", "a known device, see --list-profiles; excludes --device", &o.profile, NULL, NULL},
        {"--list-profiles", NULL, "list the known devices with their limits", NULL, &o.list, NULL},
        {"--device", "ID", "a device of this machine; cpu if neither is given", &o.device, NULL, NULL},
        {"--head-dim", "D[,DV]", "head dimension of q and k, and of v", &o.head_dim, NULL, NULL},
        {"--dtype", "TYPE", "f32, f16, bf16 or f64", &o.dtype, NULL, NULL},
        {"--kv-dtype", "TYPE", "type of k and v; as --dtype if not given", &o.kv_dtype, NULL, NULL},
        {"--o-dtype", "TYPE", "type of o; as --dtype if not given", &o.o_dtype, NULL, NULL},
        {"--direction", "WHICH", "forward or backward", &o.direction, NULL, NULL},
        {"--q-len", "N", "queries", &o.q_len, NULL, NULL},
        {"--kv-len", "N", "keys; as --q-len if not given", &o.kv_len, NULL, NULL},
        {"--heads", "H[,KV]", "query heads, and key heads", &o.heads, NULL, NULL},
        {"--kv-heads", "N", "key heads; as in --heads if not given", &o.kv_heads, NULL, NULL},
        {"--batch", "N", "batch", &o.batch, NULL, NULL},
        {"--mask", "EXPR", "mask expression; '' for none", &o.mask, NULL, NULL},
        {"--score", "EXPR", "score expression", &o.score, NULL, NULL},
        {"--scale", "X", "factor of q k^T; 1/sqrt(D) if not given", &o.scale, NULL, NULL},
        {"--block", "Q[,KV]", "block size of the mask (default: 128)", &o.block, NULL, NULL},
        {"--declare", "NAME:DTYPE[RANK]", "type of a capture (rank 0: a parameter); repeat for more", NULL, NULL,
         &o.declarations},
        {"--capture", "NAME=FILE.npy", "a capture's data, which --ranks reads and other uses have the type of; repeat",
         NULL, NULL, &o.captures},
        {"--param", "NAME=VALUE", "a parameter's value, likewise; repeat", NULL, NULL, &o.parameters},
        {"--lse", NULL, "calls may request LSE", NULL, &o.lse, NULL},
        {"--row-max", NULL, "calls may request row maxima", NULL, &o.row_max, NULL},
        {"--kernel-options", "JSON", "forced options, {\"num_stages\": 2}", &o.kernel_options, NULL, NULL},
        {"--ranks", "N", "predict the time of a forward call whose sequence is cut over N devices", &o.ranks.ranks,
         NULL, NULL},
        {"--link-gbps", "X", "rate of a rank's link each way, in 10^9 bytes/s", &o.ranks.link, NULL, NULL},
        {"--link-us", "X", "microseconds that an exchange takes at least; 10 if not given", &o.ranks.exchange, NULL,
         NULL},
        {"--tflops", "X", "speed of one device in the kernel; the peak of --device, measured, if not given",
         &o.ranks.flops, NULL, NULL},
        {"--layout", "NAME", "balanced (if not given), cut, contiguous, zigzag or striped", &o.ranks.layout, NULL,
         NULL},
        {"--json", NULL, "as JSON", NULL, &o.json, NULL},
    };
    cli_result parsed =
        cli_parse("attune explain [OPTIONS]", options, sizeof options / sizeof options[0], argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    if (o.list)
        return list_profiles(o.json);
    if (*o.device && *o.profile) {
        cli_error("--device and --device-profile exclude each other; a profile for a device is "
                  "--device cuda:0@a6000");
        return EXIT_USAGE;
    }
    if (*o.block && !*o.mask) {
        cli_error("--block requires --mask");
        return EXIT_USAGE;
    }
    attune_problem problem;
    attune_kernel_options storage;
    const attune_kernel_options *kernel_options;
    ranks_asked asked;
    if (!read_problem(&o, &problem) || !cli_kernel_options(o.kernel_options, &storage, &kernel_options) ||
        !ranks_read(&o.ranks, &problem, &asked))
        return EXIT_USAGE;
    bindings *names = calloc(1, sizeof *names);
    attune_instance *instance = NULL;
    attune_expr *mask = NULL, *score = NULL;
    int code = EXIT_USAGE;
    if (names && cli_bindings_load(names, &o.captures, &o.parameters, &o.declarations) &&
        cli_bindings_used(names, o.mask, o.score)) {
        const uint32_t declared = names->symbol_count;
        cli_bindings_infer(names, ATTUNE_EXPR_MASK, o.mask);
        cli_bindings_infer(names, ATTUNE_EXPR_SCORE, o.score);
        if (attune_instance_create(NULL, &instance) != ATTUNE_OK) {
            cli_error("%s", attune_last_error());
        } else if (cli_expr(instance, ATTUNE_EXPR_MASK, o.mask, names, &mask) &&
                   cli_expr(instance, ATTUNE_EXPR_SCORE, o.score, names, &score) &&
                   (!asked.partition.ranks || cli_bindings_complete(names, mask))) {
            problem.mask = mask;
            problem.score = score;
            code = cli_exit_of(explain(instance, &o, &problem, kernel_options, names, &asked));
            if (code == EXIT_GOOD && !o.json)
                print_inferred(names, declared);
        }
    }
    attune_expr_destroy(mask);
    attune_expr_destroy(score);
    attune_instance_destroy(instance);
    if (names)
        bindings_free(names);
    free(names);
    return code;
}

/* SPDX-License-Identifier: MIT */
#include "bench/program/bench_options.h"

#include "bench/program/explain_ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool bad(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints an error and returns false. */
static bool bad(const char *format, ...)
{
    char text[2048];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    cli_error("%s", text);
    return false;
}

static const char usage[] = "attune bench [OPTIONS]: time named workloads, after a check against the float64 oracle";

static bool parse_number(const char *option, const char *text, double least, double most, double *value)
{
    if (!cli_number(option, text, value))
        return false;
    return (*value >= least && *value <= most) ||
           bad("%s is %s, expected a number from %g to %g", option, text, least, most);
}

static bool parse_count(const char *option, const char *text, int64_t least, uint32_t *value)
{
    int64_t count;
    if (!cli_integer(option, text, least, 100000, &count))
        return false;
    *value = (uint32_t)count;
    return true;
}

static bool parse_format(const char *text, report_format *format)
{
    if (!strcmp(text, "table"))
        *format = REPORT_TABLE;
    else if (!strcmp(text, "markdown") || !strcmp(text, "md"))
        *format = REPORT_MARKDOWN;
    else if (!strcmp(text, "csv"))
        *format = REPORT_CSV;
    else
        return bad("--format is \"%s\", expected table, markdown or csv", text);
    return true;
}

static bool parse_direction(const char *text, row_pass *pass)
{
    static const char *const names[] = {
        [ROW_FORWARD] = "forward", [ROW_BACKWARD] = "backward", [ROW_STEP] = "step", [ROW_DECODE] = "decode"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!strcmp(text, names[i])) {
            *pass = (row_pass)i;
            return true;
        }
    return bad("--direction is \"%s\", expected forward, backward, step or decode", text);
}

static bool parse_ranks(const char *text, uint32_t *ranks)
{
    int64_t count;
    if (!cli_integer("--ranks", text, 1, ROW_RANKS, &count))
        return false;
    *ranks = (uint32_t)count;
    return true;
}

static bool parse_link(const char *text, row_link *link)
{
    static const char *const names[] = {[ROW_LINK_HOST] = "host", [ROW_LINK_PEERS] = "peers", [ROW_LINK_NCCL] = "nccl"};
    for (uint32_t i = ROW_LINK_HOST; i <= ROW_LINK_NCCL; ++i)
        if (!strcmp(text, names[i])) {
            *link = (row_link)i;
            return true;
        }
    return bad("--transport is \"%s\", expected peers, nccl or host", text);
}

static bool parse_overlap(const char *text, attune_overlap *overlap)
{
    static const char *const names[] = {[ATTUNE_OVERLAP_AUTO] = "auto",
                                        [ATTUNE_OVERLAP_ON] = "on",
                                        [ATTUNE_OVERLAP_OFF] = "off",
                                        [ATTUNE_OVERLAP_HEADS] = "heads",
                                        [ATTUNE_OVERLAP_READ] = "read"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; ++i)
        if (!strcmp(text, names[i])) {
            *overlap = (attune_overlap)i;
            return true;
        }
    return bad("--overlap is \"%s\", expected auto, on, off, heads or read", text);
}

/* A device for each rank: as many ids as ranks, or one for all, or a backend's name for its first devices. */
static bool deal_devices(const char *list, row_ranks_options *o)
{
    const char *const given = list;
    uint32_t count = 0;
    char id[sizeof o->devices[0]];
    for (; cli_next_word(&list, id, sizeof id); ++count)
        if (count < o->count)
            memcpy(o->devices[count], id, sizeof id);
    if (count != 1 && count != o->count)
        return bad("--device is \"%s\", expected one id, or one for each of %u ranks", given, o->count);
    if (!strcmp(o->devices[0], "all"))
        return bad("--device is all, which --ranks does not have: name a backend, as cuda, for its first devices");
    const bool numbered = count > 1 || !strcmp(o->devices[0], "cpu") || strpbrk(o->devices[0], ":@");
    (void)snprintf(id, sizeof id, "%s", o->devices[0]);
    for (uint32_t r = 0; r < o->count && count == 1; ++r)
        (void)snprintf(o->devices[r], sizeof o->devices[r], numbered ? "%.20s" : "%.20s:%u", id, r);
    return true;
}

/* Options that rows of several ranks do not have are refused. */
static bool check_ranks(bench_options *o, bool layout, bool link, bool overlap)
{
    if (!o->ranks.count && o->row.pass == ROW_DECODE)
        return bad("--direction decode requires --ranks: on one device, decode is forward with few queries");
    if (!o->ranks.count)
        return !(layout || link || overlap || o->ranks.send) || bad("%s requires --ranks", layout    ? "--layout"
                                                                                           : link    ? "--transport"
                                                                                           : overlap ? "--overlap"
                                                                                                     : "--send");
    if (o->row.pass == ROW_STEP)
        return bad("--direction is step, but --ranks has forward, backward and decode alone");
    if (layout && o->row.pass == ROW_DECODE)
        return bad("--layout is given, but decode deals its keys in turn");
    if (overlap && o->row.pass == ROW_DECODE)
        return bad("--overlap is given, but in decode keys stay where they are");
    if (o->ranks.send && o->row.pass != ROW_DECODE)
        return bad("--send is of queries and results in decode: give --direction decode, or leave out --send");
    if (o->row.segments || o->masks || o->peers)
        return bad("%s and --ranks exclude each other", o->row.segments ? "--segments"
                                                        : o->masks      ? "--masks"
                                                                        : "--peers");
    return deal_devices(o->devices, &o->ranks);
}

/* --json without a value is --json=-. */
static void complete_json(int argc, char **argv)
{
    static char json[] = "--json=-";
    for (int i = 1; i < argc; ++i)
        if (!strcmp(argv[i], "--json") && (i + 1 == argc || !strncmp(argv[i + 1], "--", 2)))
            argv[i] = json;
}

/* Options of attention's rows, which a run of masks alone does not have. */
static bool check_masks(const bench_options *o, bool device)
{
    if (!o->masks || o->workloads || o->file || shapes_given(&o->shapes))
        return true;
    const struct {
        const char *name;
        bool given;
    } others[] = {{"--device", device},
                  {"--scale", o->scale_given},
                  {"--no-check", !o->row.check},
                  {"--dtype", o->dtypes},
                  {"--kv-dtype", o->kv_dtype_text},
                  {"--o-dtype", o->o_dtype_text},
                  {"--direction", o->row.pass != ROW_FORWARD},
                  {"--segments", o->row.segments},
                  {"--kernel-options", o->kernel},
                  {"--layers", o->row.layers},
                  {"--pack", o->packs.count}};
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; ++i)
        if (others[i].given)
            return bad("%s has no row with --masks alone, which times the building of masks: add --workload",
                       others[i].name);
    return true;
}

cli_result bench_options_parse(bench_options *o, int argc, char **argv)
{
    const char *repetitions = "10", *min_time = "0.2", *warmup = "1", *warmup_time = "0.3", *timeout = "60", *seed = "",
               *scale = "";
    const char *layers = "", *noise = "", *format = "table", *ranks = "", *layout = "", *link = "", *overlap = "";
    bool no_check = false, wide = false;
    static const char default_device[] = "cpu";
    *o = (bench_options){.devices = default_device, .direction = "forward"};
    complete_json(argc, argv);
    const cli_option options[] = {
        {.name = "--workload",
         .argument = "NAME,...",
         .help =
             "names with commas; all = every workload, and masks; serving = every batch over a cache (default: all)",
         .value = &o->workloads},
        {.name = "--file", .argument = "FILE.json", .help = "workloads from a file", .value = &o->file},
        {.name = "--q-len",
         .argument = "LIST",
         .help = "queries: numbers and sweeps with commas, 1024..65536*2 or 128..512+128; this and the next options "
                 "define a workload for each combination (4096 if only others are given)",
         .value = &o->shapes.q_len},
        {.name = "--kv-len", .argument = "LIST", .help = "keys; as --q-len if not given", .value = &o->shapes.kv_len},
        {.name = "--batch", .argument = "LIST", .help = "batch; 1 if not given", .value = &o->shapes.batch},
        {.name = "--heads", .argument = "LIST", .help = "query heads; 16 if not given", .value = &o->shapes.heads},
        {.name = "--kv-heads",
         .argument = "LIST",
         .help = "key heads; as --heads if not given",
         .value = &o->shapes.kv_heads},
        {.name = "--head-dim",
         .argument = "LIST",
         .help = "head dimension; 128 if not given",
         .value = &o->shapes.head_dim},
        {.name = "--head-dim-v",
         .argument = "LIST",
         .help = "that of v and o; as --head-dim if not given",
         .value = &o->shapes.head_dim_v},
        {.name = "--mask", .argument = "EXPR", .help = "mask expression; repeat for more", .list = &o->shapes.masks},
        {.name = "--score", .argument = "EXPR", .help = "score expression; repeat for more", .list = &o->shapes.scores},
        {.name = "--capture",
         .argument = "NAME=WHAT",
         .help = "a name in --mask and --score: FILE.npy, or a generator of --list as GENERATOR[:LENGTH]; repeat for "
                 "more",
         .list = &o->shapes.captures},
        {.name = "--param",
         .argument = "NAME=VALUE",
         .help = "a parameter's value; repeat for more",
         .list = &o->shapes.parameters},
        {.name = "--masks",
         .help = "time the building of block masks; other rows only with --workload",
         .flag = &o->masks},
        {.name = "--doc-lengths",
         .argument = "FILE",
         .help = "document lengths for mask_document, one per line (default: from the seed)",
         .value = &o->doc_lengths},
        {.name = "--scale",
         .argument = "S",
         .help = "share (0 to 1] of each workload's work (default: about a minute for all, on each device; 1 "
                 "with --q-len and the like)",
         .value = &scale},
        {.name = "--device",
         .argument = "ID,...",
         .help = "cpu, vulkan:0, ...; all = every device",
         .value = &o->devices},
        {.name = "--dtype",
         .argument = "TYPE,...",
         .help = "f32 f16 bf16 f64 (default: f32 on the CPU; elsewhere f16 if the device has it)",
         .value = &o->dtypes},
        {.name = "--kv-dtype",
         .argument = "TYPE",
         .help = "type of k and v, if it differs from --dtype: f32 f16 bf16; of caches also f8e4m3 f8e5m2 i8 q8_0 q4_0",
         .value = &o->kv_dtype_text},
        {.name = "--o-dtype",
         .argument = "TYPE",
         .help = "type of o, if it differs from --dtype",
         .value = &o->o_dtype_text},
        {.name = "--direction",
         .argument = "WHICH",
         .help = "forward, backward, step (build the mask, forward and backward), or, of ranks, decode: keys stay",
         .value = &o->direction},
        {.name = "--segments",
         .help = "run workloads with segments over them, with a mask for each",
         .flag = &o->row.segments},
        {.name = "--layers",
         .argument = "N",
         .help = "time N calls in a row by the host's clock, as a model's layers, after one schedule over a cache; "
                 "forward alone (default: single calls by the device's)",
         .value = &layers},
        {.name = "--graph",
         .help = "record the calls of --layers in a CUDA graph once, and time launches of it",
         .flag = &o->row.graph},
        {.name = "--ranks",
         .argument = "N",
         .help =
             "calls over N devices, at most 16, beside one of them alone: --device has one for each, or a backend's "
             "name, as cuda, for its first N; one id is the device of all",
         .value = &ranks},
        {.name = "--layout",
         .argument = "NAME",
         .help = "how a sequence is divided among ranks: balanced (if not given), cut, contiguous, zigzag or striped",
         .value = &layout},
        {.name = "--transport",
         .argument = "NAME",
         .help = "how messages go between ranks: peers (if not given, between CUDA devices), nccl, or host (otherwise)",
         .value = &link},
        {.name = "--overlap",
         .argument = "WHICH",
         .help = "how a rank has the keys of others: on (own keys are computed while others arrive), off (all once "
                 "they have), heads (some "
                 "heads while those of others arrive), read (off, and keys of others are read in place), or auto",
         .value = &overlap},
        {.name = "--send",
         .help = "send queries and results of decode between ranks, also where devices can read them in place",
         .flag = &o->ranks.send},
        {.name = "--kernel-options",
         .argument = "JSON",
         .help = "forced kernel options, such as {\"BLOCK_M\": 64}",
         .value = &o->kernel},
        {.name = "--repetitions", .argument = "N", .help = "samples of a row", .value = &repetitions},
        {.name = "--min-time",
         .argument = "SECONDS",
         .help = "least total time of a row's samples",
         .value = &min_time},
        {.name = "--warmup", .argument = "N", .help = "calls before the first sample", .value = &warmup},
        {.name = "--warmup-time",
         .argument = "SECONDS",
         .help = "least total time of the warm-up calls, unless --warmup is 0",
         .value = &warmup_time},
        {.name = "--timeout",
         .argument = "SECONDS",
         .help = "time after which a row begins no further call; 0 = none",
         .value = &timeout},
        {.name = "--pack", .argument = "FILE", .help = "kernels made by attune compile", .list = &o->packs},
        {.name = "--seed", .argument = "N", .help = "seed of inputs and masks (default: 1)", .value = &seed},
        {.name = "--no-check", .help = "do not compare results with the oracle", .flag = &no_check},
        {.name = "--peers", .help = "OpenBLAS and a naive loop, also without f32 rows on the CPU", .flag = &o->peers},
        {.name = "--no-peers", .help = "neither of them", .flag = &o->no_peers},
        {.name = "--no-peaks", .help = "do not measure peaks; omits shares of them", .flag = &o->no_peaks},
        {.name = "--format", .argument = "NAME", .help = "table, markdown or csv", .value = &format},
        {.name = "--wide", .help = "all columns of the table, which has 100 characters without it", .flag = &wide},
        {.name = "--json",
         .argument = "[FILE]",
         .help = "results in Google Benchmark's schema; without FILE on standard output, without the table",
         .value = &o->json},
        {.name = "--write-captures",
         .argument = "FOLDER",
         .help = "write the captures of each workload as WORKLOAD.NAME.npy, for other programs",
         .value = &o->write_captures},
        {.name = "--compare",
         .argument = "BASELINE.json",
         .help = "compare each row with an earlier --json, with its scale and seed",
         .value = &o->baseline},
        {.name = "--noise",
         .argument = "PERCENT",
         .help = "percent; a smaller change of the median is SAME (default: 2)",
         .value = &noise},
        {.name = "--fail-on-slower", .help = "exit with 1 if a row is SLOWER or LOST", .flag = &o->fail_on_slower},
        {.name = "--list",
         .help = "list the workloads, or those of --file, and the generators for files",
         .flag = &o->list},
    };
    cli_result result = cli_parse(usage, options, sizeof options / sizeof options[0], argc, argv, NULL);
    if (result != CLI_GO)
        return result;
    measure_options *m = &o->row.measure;
    int64_t number = 1;
    o->row.check = !no_check;
    o->scale_given = *scale != '\0';
    o->seed_given = *seed != '\0';
    bool good = parse_count("--repetitions", repetitions, 1, &m->repetitions) &&
                parse_count("--warmup", warmup, 0, &m->warmup) &&
                parse_number("--warmup-time", warmup_time, 0, 3600, &m->warmup_time) &&
                parse_number("--min-time", min_time, 0, 3600, &m->min_time) &&
                parse_number("--timeout", timeout, 0, 1e6, &m->timeout) &&
                parse_number("--noise", *noise ? noise : "2", 0, 100, &o->floor) &&
                parse_direction(o->direction, &o->row.pass) && parse_format(format, &o->format) &&
                (!o->scale_given || parse_number("--scale", scale, 1e-9, 1, &o->scale)) &&
                (!o->seed_given || cli_integer("--seed", seed, 1, INT64_C(1) << 52, &number));
    good = good && (!*layers || parse_count("--layers", layers, 1, &o->row.layers));
    if (good && *layers && (o->row.pass != ROW_FORWARD || *ranks || o->row.segments))
        good = bad("--layers is of a forward pass, without --ranks and --segments");
    if (good && o->row.graph && !*layers)
        good = bad("--graph requires --layers, the number of calls in the graph");
    good = good && (!*ranks || parse_ranks(ranks, &o->ranks.count)) &&
           (!*layout || ranks_layout("--layout", layout, &o->ranks.layout)) &&
           (!*link || parse_link(link, &o->ranks.link)) && (!*overlap || parse_overlap(overlap, &o->ranks.overlap)) &&
           check_ranks(o, *layout != '\0', *link != '\0', *overlap != '\0');
    if (good && wide && o->format != REPORT_TABLE)
        good = bad("--wide is for the table, but --format is %s, which has every column", format);
    if (wide)
        o->format = REPORT_WIDE;
    o->floor /= 100;
    o->row.seed = (uint64_t)number;
    if (good && o->peers && o->no_peers)
        good = bad("--peers and --no-peers exclude each other");
    if (good && o->file && o->workloads)
        good = bad("--file and --workload exclude each other");
    if (good && shapes_given(&o->shapes) && (o->file || o->workloads))
        good =
            bad("%s excludes --q-len and the other options that define workloads", o->file ? "--file" : "--workload");
    good = good && check_masks(o, o->devices != default_device);
    if (good && !o->baseline && (o->fail_on_slower || *noise))
        good = bad("%s requires --compare", *noise ? "--noise" : "--fail-on-slower");
    return good ? CLI_GO : CLI_WRONG;
}

bool bench_options_json_alone(const bench_options *o)
{
    return o->json && !strcmp(o->json, "-");
}

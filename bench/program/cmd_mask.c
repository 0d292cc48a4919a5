/* SPDX-License-Identifier: MIT */
/* attune mask: build a block mask; density, cost, lists, picture. */
#include "bench/program/mask_picture.h"
#include "bench/program/output.h"
#include "bench/program/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char default_heads[] = "1";

typedef struct mask_options {
    const char *q_len, *kv_len, *heads, *kv_heads, *batch, *block, *png, *svg, *pixels, *plane, *text;
    bool lists, exact, no_picture;
} mask_options;

/* After one second. */
static int show_building(void *user, double done)
{
    progress *p = user;
    if (progress_seconds(p) > 1)
        progress_show(p, 100 * done, 100, "per cent of the blocks are decided");
    return 0;
}

static int show_counting(void *user, double done)
{
    progress *p = user;
    if (progress_seconds(p) > 1)
        progress_show(p, 100 * done, 100, "per cent of the partial blocks are counted");
    return 0;
}

/* Statistics over all planes, exact or not. */
static attune_status read_statistics(const attune_mask *mask, bool exact, attune_mask_stats *stats)
{
    progress shown = progress_begin();
    const attune_mask_work work = {
        .struct_size = sizeof work, .progress = shown.terminal ? show_counting : NULL, .progress_user = &shown};
    const attune_status status =
        exact ? attune_mask_stats_count(mask, &work, stats) : attune_mask_stats_get(mask, false, stats);
    progress_clear(&shown);
    return status;
}

static bool read_desc(const mask_options *o, attune_mask_desc *desc, int64_t plane[2])
{
    int64_t heads[2], block[2];
    desc->struct_size = sizeof *desc;
    if (!cli_integer("--q-len", o->q_len, 1, INT32_MAX, &desc->q_len) ||
        !cli_integer("--kv-len", *o->kv_len ? o->kv_len : o->q_len, 1, INT32_MAX, &desc->kv_len) ||
        !cli_heads(o->heads, o->heads != default_heads, o->kv_heads, heads) ||
        !cli_integer("--batch", o->batch, 1, INT32_MAX, &desc->batch) ||
        !cli_pair("--block", o->block, 16, 1024, block, 0) ||
        (*o->plane && !cli_pair("--plane", o->plane, 0, INT32_MAX, plane, 0)))
        return false;
    if (plane[0] >= desc->batch || plane[1] >= heads[0]) {
        cli_error("--plane is \"%s\", expected a batch below %" PRId64 " and a head below %" PRId64, o->plane,
                  desc->batch, heads[0]);
        return false;
    }
    desc->heads = heads[0];
    desc->kv_heads = heads[1];
    desc->q_block = (uint32_t)block[0];
    desc->kv_block = (uint32_t)block[1];
    return true;
}

static void print_row(FILE *out, const char *name, int64_t row, const int64_t *offsets, const int32_t *indices)
{
    (void)fprintf(out, "  %s %" PRId64 ":", name, row);
    for (int64_t i = offsets[row]; i < offsets[row + 1]; i++)
        (void)fprintf(out, " %d", indices[i]);
    (void)fprintf(out, "\n");
}

static bool print_lists(FILE *out, const attune_mask *mask)
{
    attune_mask_lists l = {.struct_size = sizeof l};
    if (attune_mask_lists_get(mask, &l) != ATTUNE_OK)
        return false;
    for (int64_t row = 0; row < l.batch * l.heads * l.q_blocks; row++) {
        print_row(out, "full", row, l.full_kv_offsets, l.full_kv_indices);
        print_row(out, "partial", row, l.kv_offsets, l.kv_indices);
    }
    return true;
}

static uint32_t columns_of_terminal(FILE *out)
{
    struct winsize window;
    const char *variable = getenv("COLUMNS");
    const long given = variable ? strtol(variable, NULL, 10) : 0;
    if (given > 0)
        return given < 4096 ? (uint32_t)given : 4096;
    return ioctl(fileno(out), TIOCGWINSZ, &window) == 0 && window.ws_col ? window.ws_col : 80;
}

enum { PNG, SVG, PICTURES };

static bool write_picture(void *user, size_t index, FILE *stream)
{
    return index == PNG ? mask_picture_png(user, stream) : mask_picture_svg(user, stream);
}

static int show(const attune_mask *mask, const attune_mask_desc *desc, const mask_options *o, const int64_t plane[2],
                int64_t pixels, output *files, double seconds)
{
    FILE *const out = outputs_text(files, PICTURES);
    attune_mask_stats stats = {.struct_size = sizeof stats};
    attune_status status = read_statistics(mask, o->exact, &stats);
    if (status != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
        return cli_exit_of(status);
    }
    (void)fprintf(
        out, "%" PRId64 " x %" PRId64 ", blocks of %u x %u: %" PRId64 " full, %" PRId64 " partial, %" PRId64 " empty\n",
        desc->q_len, desc->kv_len, desc->q_block, desc->kv_block, stats.full_blocks, stats.partial_blocks,
        stats.blocks - stats.full_blocks - stats.partial_blocks);
    (void)fprintf(out, "density %s%.4f%%, of blocks %.4f%%; built in %.3f ms, %" PRIu64 " bytes\n",
                  o->exact ? "" : "about ", 100 * stats.density, 100 * stats.block_density, 1e3 * seconds, stats.bytes);
    if (o->lists && !print_lists(out, mask))
        return EXIT_FAILED;
    mask_picture picture = {.mask = mask,
                            .text = o->text,
                            .batch = plane[0],
                            .head = plane[1],
                            .batches = desc->batch,
                            .heads = desc->heads,
                            .q_len = desc->q_len,
                            .kv_len = desc->kv_len,
                            .q_block = desc->q_block,
                            .kv_block = desc->kv_block,
                            .density = stats.density,
                            .block_density = stats.block_density,
                            .exact = o->exact,
                            .pixels = (uint32_t)pixels};
    if (!o->no_picture &&
        !mask_picture_print(&picture, out, columns_of_terminal(out), isatty(fileno(out)) && !getenv("NO_COLOR")))
        return EXIT_FAILED;
    if (!outputs_write(files, PICTURES, write_picture, &picture))
        return EXIT_FAILED;
    return EXIT_GOOD;
}

int cmd_mask(int argc, char **argv)
{
    mask_options o = {.q_len = "1024",
                      .kv_len = "",
                      .heads = default_heads,
                      .kv_heads = "",
                      .batch = "1",
                      .block = "128",
                      .png = "",
                      .svg = "",
                      .pixels = "",
                      .plane = "",
                      .text = "causal"};
    cli_list captures = {0}, parameters = {0};
    const cli_option options[] = {
        {"--q-len", "N", "queries", &o.q_len, NULL, NULL},
        {"--kv-len", "N", "keys; as --q-len if not given", &o.kv_len, NULL, NULL},
        {"--heads", "H[,KV]", "query heads, and key heads", &o.heads, NULL, NULL},
        {"--kv-heads", "N", "key heads; as in --heads if not given", &o.kv_heads, NULL, NULL},
        {"--batch", "N", "batch", &o.batch, NULL, NULL},
        {"--block", "Q[,KV]", "block size", &o.block, NULL, NULL},
        {"--capture", "NAME=FILE.npy", "a capture's data; repeat for more", NULL, NULL, &captures},
        {"--param", "NAME=VALUE", "a parameter's value; repeat for more", NULL, NULL, &parameters},
        {"--exact", NULL, "count every pair for the density", NULL, &o.exact, NULL},
        {"--lists", NULL, "print the block lists", NULL, &o.lists, NULL},
        {"--no-picture", NULL, "do not draw in the terminal", NULL, &o.no_picture, NULL},
        {"--plane", "BATCH,HEAD", "which plane to draw (default: 0,0)", &o.plane, NULL, NULL},
        {"--png", "FILE", "save the picture, with axes in tokens and a legend", &o.png, NULL, NULL},
        {"--svg", "FILE", "the same as SVG", &o.svg, NULL, NULL},
        {"--pixels", "N", "the longer side of a saved picture, from 800 to 16384 (default: 1024)", &o.pixels, NULL,
         NULL},
    };
    cli_result parsed = cli_parse("attune mask ['EXPRESSION'] [OPTIONS]", options, sizeof options / sizeof options[0],
                                  argc, argv, &o.text);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    attune_mask_desc desc = {0};
    int64_t plane[2] = {0, 0}, pixels = 1024;
    const bool saved = *o.png || *o.svg;
    if (!saved && (*o.pixels || (*o.plane && o.no_picture))) {
        cli_error("%s requires --png or --svg: %s", *o.pixels ? "--pixels" : "--plane with --no-picture",
                  *o.pixels ? "a picture in the terminal has the terminal's width" : "nothing is drawn without them");
        return EXIT_USAGE;
    }
    if (!read_desc(&o, &desc, plane) ||
        (*o.pixels && !cli_integer("--pixels", o.pixels, PICTURE_LEAST, 16384, &pixels)))
        return EXIT_USAGE;
    output files[PICTURES] = {[PNG] = {.option = "--png", .path = o.png}, [SVG] = {.option = "--svg", .path = o.svg}};
    bindings *names = calloc(1, sizeof *names);
    if (!names || !outputs_find(files, PICTURES) ||
        !outputs_spare_list(files, PICTURES, "--capture", &captures, true) ||
        !cli_bindings_load(names, &captures, &parameters, NULL) || !cli_bindings_used(names, o.text, NULL)) {
        if (names)
            bindings_free(names);
        free(names);
        outputs_drop(files, PICTURES);
        return EXIT_USAGE;
    }
    attune_instance *instance = NULL;
    attune_expr *expr = NULL;
    attune_mask *mask = NULL;
    int code = EXIT_USAGE;
    cli_bindings_infer(names, ATTUNE_EXPR_MASK, o.text);
    attune_status status = cli_instance(NULL, &instance);
    if (status != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
    } else if (!*o.text) {
        cli_error("the expression is empty");
    } else if (cli_expr(instance, ATTUNE_EXPR_MASK, o.text, names, &expr) && cli_bindings_complete(names, expr)) {
        progress shown = progress_begin();
        desc.progress = shown.terminal ? show_building : NULL;
        desc.progress_user = &shown;
        status = attune_mask_create(instance, &desc, expr, names->captures, names->capture_count, names->parameters,
                                    names->parameter_count, &mask);
        const double seconds = progress_seconds(&shown);
        progress_clear(&shown);
        if (status == ATTUNE_OK) {
            code = show(mask, &desc, &o, plane, pixels, files, seconds);
        } else {
            cli_error("%s", attune_last_error());
            code = cli_exit_of(status);
        }
    }
    attune_mask_destroy(mask);
    attune_expr_destroy(expr);
    attune_instance_destroy(instance);
    outputs_drop(files, PICTURES);
    bindings_free(names);
    free(names);
    return code;
}

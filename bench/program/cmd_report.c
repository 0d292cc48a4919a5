/* SPDX-License-Identifier: MIT */
/* attune report: results of attune bench as one page of charts and tables, and a comparison of files. */
#include "bench/page/results.h"
#include "bench/program/output.h"

#include <stdlib.h>
#include <string.h>

typedef struct report_run {
    results files[CLI_REPEATS];
    uint32_t count;
    double noise;
} report_run;

static bool write_page(void *user, size_t index, FILE *stream)
{
    const report_run *run = user;
    (void)index;
    if (results_write_page(run->files, run->count, run->noise, stream))
        return true;
    if (!ferror(stream))
        cli_error("out of memory");
    return false;
}

static bool load(report_run *run, const cli_list *paths, bool any_device)
{
    failure why = {{0}};
    for (uint32_t i = 0; i < paths->count; i++) {
        if (!results_load(paths->value[i], any_device, &run->files[i], &why)) {
            cli_error("%s", why.message);
            return false;
        }
        run->count++;
        /* Files of one name are told apart by their folders. */
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(run->files[i].label, run->files[j].label)) {
                char *label = strdup(paths->value[i]);
                free(run->files[i].label);
                run->files[i].label = label;
                if (!label) {
                    cli_error("out of memory");
                    return false;
                }
            }
    }
    return true;
}

/* Each file against the first one. */
static int compare(const report_run *run, bool fail_on_slower, FILE *out)
{
    int code = EXIT_GOOD;
    for (uint32_t i = 1; i < run->count; i++) {
        uint32_t compared;
        (void)fprintf(out, "%s%s against %s", i > 1 ? "\n" : "", run->files[i].label, run->files[0].label);
        const uint32_t worse = results_compare(&run->files[0], &run->files[i], run->noise, out, &compared);
        if (!compared) {
            cli_error("%s and %s have no row in common: nothing was compared; rows have the device in their names "
                      "(--any-device)",
                      run->files[0].label, run->files[i].label);
            code = EXIT_FAILED;
        }
        if (worse && fail_on_slower)
            code = EXIT_FAILED;
    }
    return code;
}

int cmd_report(int argc, char **argv)
{
    const char *out = "", *noise = "";
    bool any_device = false, fail_on_slower = false;
    cli_list paths = {0};
    const cli_option options[] = {
        {"-o", "FILE.html", "the page: one file, without network", &out, NULL, NULL},
        {"--any-device", NULL, "compare rows whatever their devices", NULL, &any_device, NULL},
        {"--noise", "PERCENT", "percent; a smaller change of the median is SAME; 2 if not given", &noise, NULL, NULL},
        {"--fail-on-slower", NULL, "exit with 1 if a row is SLOWER or LOST", NULL, &fail_on_slower, NULL},
    };
    const cli_result parsed = cli_parse_words("attune report BASE.json [LATER.json ...] [-o FILE.html]", options,
                                              sizeof options / sizeof options[0], argc, argv, &paths);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    double percent = 2;
    if (*noise && !cli_number("--noise", noise, &percent))
        return EXIT_USAGE;
    if (!(percent >= 0 && percent <= 100)) {
        cli_error("--noise is %s, expected a number from 0 to 100", noise);
        return EXIT_USAGE;
    }
    if (!paths.count || (paths.count < 2 && !*out)) {
        cli_error(!paths.count ? "no file of attune bench --json is given"
                               : "nothing to do: give -o FILE.html, or a second file to compare");
        return EXIT_USAGE;
    }
    if (paths.count < 2 && (any_device || fail_on_slower || *noise)) {
        cli_error("%s requires a second file", any_device       ? "--any-device"
                                               : fail_on_slower ? "--fail-on-slower"
                                                                : "--noise");
        return EXIT_USAGE;
    }
    output page = {.option = "-o", .path = out};
    report_run *run = calloc(1, sizeof *run);
    int code = EXIT_USAGE;
    if (!run)
        cli_error("out of memory");
    else if (outputs_find(&page, 1) && outputs_spare_list(&page, 1, "the result", &paths, false) &&
             load(run, &paths, any_device)) {
        run->noise = percent / 100;
        code = compare(run, fail_on_slower, outputs_text(&page, 1));
        if (*out && !outputs_write(&page, 1, write_page, run))
            code = EXIT_FAILED;
    }
    outputs_drop(&page, 1);
    for (uint32_t i = 0; run && i < run->count; i++)
        results_free(&run->files[i]);
    free(run);
    return code;
}

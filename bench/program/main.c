/* SPDX-License-Identifier: MIT */
/* The program attune, with one command for each task. It uses only the public API, and src/base/file.c for atomic
 * writes. */
#include "bench/program/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"devices", cmd_devices, "list the devices, and the reason for each missing backend"},
    {"expr", cmd_expr, "check an expression; print its text, IR, C or gradient; list the presets"},
    {"mask", cmd_mask, "build a block mask: density, lists, picture"},
    {"compile", cmd_compile, "write a pack of kernels for machines without a compiler"},
    {"explain", cmd_explain, "explain the plan for a device of this machine or a known one"},
    {"run", cmd_run, "run attention on NPY files"},
    {"check", cmd_check, "compare a device with the float64 oracle"},
    {"bench", cmd_bench, "time named workloads"},
    {"report", cmd_report, "draw results of bench as a page, and compare files"},
};

static const char *command_name(const void *user, uint32_t index)
{
    (void)user;
    return commands[index].name;
}

static void print_usage(FILE *out)
{
    (void)fprintf(out, "usage: attune COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        (void)fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    (void)fprintf(out,
                  "\nattune COMMAND --help lists its options. Exit status: 0 good, 1 failed, 2 invalid command line, "
                  "3 no such device or feature.\n");
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stdout);
        return EXIT_GOOD;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_usage(stdout);
        return EXIT_GOOD;
    }
    if (!strcmp(argv[1], "--version")) {
        uint32_t version = attune_version();
        (void)printf("attune %u.%u.%u\n", version / 1000000, version / 1000 % 1000, version % 1000);
        return EXIT_GOOD;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    cli_unknown("command", argv[1], command_name, NULL, sizeof commands / sizeof commands[0], "attune --help");
    return EXIT_USAGE;
}

/* A failed write to standard output, as on a full disk, is a failure. */
int main(int argc, char **argv)
{
    const int code = run(argc, argv);
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    cli_error("standard output could not be written: %s", errno ? strerror(errno) : "it is full or closed");
    return code ? code : EXIT_FAILED;
}

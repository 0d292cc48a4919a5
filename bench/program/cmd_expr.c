/* SPDX-License-Identifier: MIT */
/* attune expr: checks and prints an expression; lists the presets. */
#include "bench/program/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int list_presets(void)
{
    for (uint32_t i = 0; i < attune_preset_count(); i++) {
        attune_preset preset = {.struct_size = sizeof preset};
        if (attune_preset_get(i, &preset) != ATTUNE_OK) {
            cli_error("%s", attune_last_error());
            return EXIT_FAILED;
        }
        (void)printf("%-42s %-5s %s\n    %s\n", preset.signature, preset.kind == ATTUNE_EXPR_MASK ? "mask" : "score",
                     preset.description, preset.text);
    }
    return EXIT_GOOD;
}

static int print_expr(const attune_expr *expr, attune_expr_format format)
{
    char *text;
    CLI_TEXT(text, attune_expr_print(expr, format, buffer, size, &needed));
    if (!text)
        return EXIT_FAILED;
    (void)printf("%s%s", text, format == ATTUNE_EXPR_TEXT ? "\n" : "");
    free(text);
    if (format != ATTUNE_EXPR_TEXT)
        return EXIT_GOOD;
    for (uint32_t i = 0; i < attune_expr_symbol_count(expr); i++) {
        attune_symbol symbol;
        if (attune_expr_symbol_get(expr, i, &symbol) != ATTUNE_OK)
            continue;
        if (symbol.kind == ATTUNE_SYMBOL_CAPTURE)
            (void)printf("  capture   %s: %s[%u]\n", symbol.name, attune_dtype_string(symbol.dtype), symbol.rank);
        else
            (void)printf("  parameter %s: %s\n", symbol.name, attune_dtype_string(symbol.dtype));
    }
    uint64_t hash[2];
    attune_expr_hash(expr, hash);
    (void)printf("  hash      %016" PRIx64 "%016" PRIx64 "\n", hash[0], hash[1]);
    return EXIT_GOOD;
}

int cmd_expr(int argc, char **argv)
{
    const char *text = NULL;
    bool list = false, score = false, ir = false, c = false, gradient = false;
    cli_list declarations = {0}, captures = {0}, parameters = {0};
    const cli_option options[] = {
        {"--score", NULL, "the expression is a score modification, not a mask", NULL, &score, NULL},
        {"--ir", NULL, "print the IR, one node per line", NULL, &ir, NULL},
        {"--c", NULL, "print C text", NULL, &c, NULL},
        {"--gradient", NULL, "print the derivatives of a score expression", NULL, &gradient, NULL},
        {"--list", NULL, "list the presets with their text", NULL, &list, NULL},
        {"--declare", "NAME:DTYPE[RANK]", "declare a capture (rank 0: a parameter); repeat for more", NULL, NULL,
         &declarations},
        {"--capture", "NAME=FILE.npy", "declare a capture by its file; repeat for more", NULL, NULL, &captures},
        {"--param", "NAME=VALUE", "declare a parameter by its value; repeat for more", NULL, NULL, &parameters},
    };
    cli_result parsed =
        cli_parse("attune expr 'EXPRESSION' [OPTIONS]", options, sizeof options / sizeof options[0], argc, argv, &text);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    if (list && (text || score || ir || c || gradient)) {
        cli_error("--list is of the presets, and takes neither an expression nor another option");
        return EXIT_USAGE;
    }
    if (ir + c + gradient > 1) {
        cli_error("--ir, --c and --gradient exclude each other: one of them is printed");
        return EXIT_USAGE;
    }
    if (list)
        return list_presets();
    if (!text) {
        cli_error("an expression is missing: attune expr 'q >= kv', or attune expr --list");
        return EXIT_USAGE;
    }
    bindings *names = calloc(1, sizeof *names);
    attune_instance *instance = NULL;
    attune_expr *expr = NULL;
    const attune_expr_kind kind = score || gradient ? ATTUNE_EXPR_SCORE : ATTUNE_EXPR_MASK;
    int code = EXIT_USAGE;
    if (names && cli_bindings_load(names, &captures, &parameters, &declarations)) {
        cli_bindings_infer(names, kind, text);
        if (attune_instance_create(NULL, &instance) != ATTUNE_OK)
            cli_error("%s", attune_last_error());
        else if (!*text)
            cli_error("the expression is empty");
        else if (cli_bindings_used(names, text, NULL) && cli_expr(instance, kind, text, names, &expr))
            code = print_expr(expr, ir         ? ATTUNE_EXPR_IR
                                    : c        ? ATTUNE_EXPR_C
                                    : gradient ? ATTUNE_EXPR_GRADIENT
                                               : ATTUNE_EXPR_TEXT);
        bindings_free(names);
    }
    attune_expr_destroy(expr);
    attune_instance_destroy(instance);
    free(names);
    return code;
}

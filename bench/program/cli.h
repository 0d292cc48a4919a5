/* SPDX-License-Identifier: MIT */
/* What the commands share: options, messages, names for expressions, devices. Every option has a default; an unknown
 * one is an error that names the nearest. */
#ifndef BENCH_PROGRAM_CLI_H
#define BENCH_PROGRAM_CLI_H

#include <jansson.h>

#include "tests/oracle/bindings.h"

enum {
    EXIT_GOOD = 0,
    EXIT_FAILED = 1,     /* a check or run failed */
    EXIT_USAGE = 2,      /* the words are wrong */
    EXIT_UNAVAILABLE = 3 /* the device is missing or cannot do it */
};

/* The exit status that a status of the library becomes. */
int cli_exit_of(attune_status status);

/* An instance that compiles on several threads. cache_folder as in attune_instance_desc. */
attune_status cli_instance(const char *cache_folder, attune_instance **instance);

/* "attune: ..." on the standard error. */
void cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "no WHAT WORD, did you mean NAME; LIST lists them", of `count` names. */
typedef const char *(*cli_name_fn)(const void *user, uint32_t index);
void cli_unknown(const char *what, const char *word, cli_name_fn name_of, const void *user, uint32_t count,
                 const char *list);

/* The same for a workload by name. */
void cli_unknown_workload(const char *name);

#define CLI_REPEATS BINDINGS_MAX

/* Values of an option that may be given again. */
typedef struct cli_list {
    const char *value[CLI_REPEATS];
    uint32_t count;
} cli_list;

/* One of value, flag and list is set: where what was given goes. value holds the default before. */
typedef struct cli_option {
    const char *name;     /* "--mask" */
    const char *argument; /* "EXPR"; NULL for a flag */
    const char *help;
    const char **value;
    bool *flag;
    cli_list *list;
} cli_option;

typedef enum cli_result { CLI_GO, CLI_HELPED, CLI_WRONG } cli_result;

/* Parses --name value and --name=value; only an expression's value (argument "EXPR") may be empty. The first word that
 * is no option goes to *positional, which NULL forbids. --help prints usage and the options with their defaults.
 * CLI_WRONG has complained. */
cli_result cli_parse(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                     const char **positional);

/* Parse a value or complain, naming the option. */
bool cli_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_number(const char *option, const char *text, double *value);
/* The scale of q k^T; empty gives 0, the library's default, which is not what a person who writes 0 means. */
bool cli_scale(const char *text, double *value);
/* "32,8" or "32": the second is then `second`. */
bool cli_pair(const char *option, const char *text, int64_t low, int64_t high, int64_t value[2], int64_t second);
bool cli_dtype(const char *option, const char *text, attune_dtype *dtype);
/* Copies the next word of a comma list; false at its end. */
bool cli_next_word(const char **list, char *word, size_t size);
/* Kernel options from JSON; text NULL or empty gives NULL in *out. */
bool cli_kernel_options(const char *text, attune_kernel_options *options, const attune_kernel_options **out);

/*
 * Captures "NAME=FILE.npy", parameters "NAME=VALUE" (i32 if whole, f32 if it has a point or exponent) and declarations
 * "NAME:DTYPE[RANK]" or "NAME:DTYPE". Complains and returns false. Free with bindings_free.
 */
bool cli_bindings_load(bindings *names, const cli_list *captures, const cli_list *parameters,
                       const cli_list *declarations);
/* Adds what an expression uses and nobody declared: NAME[...] and the arguments of presets become captures, other names
 * parameters, of i32 in a mask or an index and f32 elsewhere in a score expression. */
void cli_bindings_infer(bindings *names, attune_expr_kind kind, const char *text);
bool cli_expr(attune_instance *instance, attune_expr_kind kind, const char *text, const bindings *names,
              attune_expr **expr);
/* Whether everything that an expression (NULL: nothing) uses has a value; complains with the option that gives it. */
bool cli_bindings_complete(const bindings *names, const attune_expr *expr);
/* Whether every capture and parameter stands in one of two texts (NULL: nothing); complains about one that does not. */
bool cli_bindings_used(const bindings *names, const char *mask, const char *score);

/* Loads packs of kernels (--pack); complains. */
attune_status cli_packs_load(attune_instance *instance, const cli_list *packs);

/* Devices by id, or all that are available. */
#define CLI_DEVICES 16
typedef struct cli_devices {
    attune_device *device[CLI_DEVICES];
    uint32_t count;
} cli_devices;
attune_status cli_devices_open(attune_instance *instance, const char *id, cli_devices *devices); /* complains */
void cli_devices_close(cli_devices *devices);

/* Text out of a function of the library, in memory to be freed; NULL after a complaint. */
#define CLI_TEXT(out, call)                                                                                            \
    do {                                                                                                               \
        char *buffer = NULL;                                                                                           \
        size_t size = 0, needed = 0;                                                                                   \
        if ((call) == ATTUNE_OK && (buffer = malloc(size = needed)) != NULL)                                           \
            (void)(call);                                                                                              \
        else                                                                                                           \
            cli_complain("%s", attune_last_error());                                                                   \
        (out) = buffer;                                                                                                \
    } while (0)

/* A document on the standard output. */
void cli_print_json(const json_t *root);

/* An 8-bit RGB picture as PNG. */
bool png_write(FILE *file, const uint8_t *pixels, uint32_t width, uint32_t height, failure *why);

int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_compile(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_expr(int argc, char **argv);
int cmd_mask(int argc, char **argv);
int cmd_run(int argc, char **argv);

#endif

/* SPDX-License-Identifier: MIT */
/* Common code of the commands: options, messages, names in expressions, devices. Every option has a default; for an
 * unknown option the error message has the nearest one. */
#ifndef BENCH_PROGRAM_CLI_H
#define BENCH_PROGRAM_CLI_H

#include <jansson.h>

#include "bench/workloads/workload.h"
#include "tests/oracle/bindings.h"

enum {
    EXIT_GOOD = 0,
    EXIT_FAILED = 1,     /* a check or run failed */
    EXIT_USAGE = 2,      /* invalid command line */
    EXIT_UNAVAILABLE = 3 /* the device is missing or does not support it */
};

/* The exit status for a status of the library. */
int cli_exit_of(attune_status status);

/* An instance that compiles on several threads. cache_folder as in attune_instance_desc. */
attune_status cli_instance(const char *cache_folder, attune_instance **instance);

/* Prints an error, "attune: ...", to standard error. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "no WHAT WORD, did you mean NAME; LIST lists them", with the nearest of `count` names. */
typedef const char *(*cli_name_fn)(const void *user, uint32_t index);
void cli_unknown(const char *what, const char *word, cli_name_fn name_of, const void *user, uint32_t count,
                 const char *list);

/* The same for a workload by name. It says so of a block mask, and, unless `cannot` is NULL, of a batch over a cache,
 * which cannot do what the command does. */
void cli_unknown_workload(const char *name, const char *cannot);

/* Whether the expressions of workloads are right; prints an error if not, of the option, unless that is NULL. */
bool cli_workloads_right(attune_instance *instance, const workload *list, uint32_t count, const char *option);

#define CLI_REPEATS BINDINGS_MAX

/* The values of an option that may be repeated. */
typedef struct cli_list {
    const char *value[CLI_REPEATS];
    uint32_t count;
} cli_list;

/* One of value, flag and list is set, and receives what was given. value has the default before. */
typedef struct cli_option {
    const char *name;     /* "--mask" */
    const char *argument; /* "EXPR"; NULL for a flag */
    const char *help;
    const char **value;
    bool *flag;
    cli_list *list;
} cli_option;

typedef enum cli_result { CLI_GO, CLI_HELPED, CLI_WRONG } cli_result;

/*
 * Parses --name value and --name=value, each once, except flags and lists, of at most 128 options; only an expression's
 * value (argument "EXPR") may be empty. The first word that is not an option is stored in *positional; if that is NULL
 * it is an error. --help prints usage and the options with their defaults. For CLI_WRONG an error was printed.
 */
cli_result cli_parse(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                     const char **positional);

/* The same with any number of words, up to CLI_REPEATS. */
cli_result cli_parse_words(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                           cli_list *words);

/* Parse a value, or print an error with the option's name. */
bool cli_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_number(const char *option, const char *text, double *value);
/* The value of --param NAME=VALUE, where the error has the name, of `length` characters. */
bool cli_parameter(const char *name, size_t length, const char *text, double *value);
/* The scale of q k^T. Empty is 0, the library's default; an explicit 0 is an error. */
bool cli_scale(const char *text, double *value);
/* "32,8" or "32": the second is then `second`. */
bool cli_pair(const char *option, const char *text, int64_t low, int64_t high, int64_t value[2], int64_t second);
/* The same with another separator, as an element of a list with commas: "192:128". */
bool cli_pair_of(const char *option, const char *text, char separator, int64_t low, int64_t high, int64_t value[2],
                 int64_t second);
/* Query heads and key heads from --heads, whether that was given, and --kv-heads, which may be "". */
bool cli_heads(const char *heads, bool given, const char *kv_heads, int64_t value[2]);
bool cli_dtype(const char *option, const char *text, attune_dtype *dtype);
/* The same for an option that may be left out: NULL or "" changes nothing. */
bool cli_optional_dtype(const char *option, const char *text, attune_dtype *dtype);
/* Likewise, of k and v in a cache, which may be quantised. */
bool cli_cache_dtype(const char *option, const char *text, attune_dtype *dtype);
/* Whether a call may have the types of --dtype, and of --kv-dtype and --o-dtype (0 = as that); prints an error if not.
 */
bool cli_dtypes_agree(attune_dtype dtype, attune_dtype kv_dtype, attune_dtype o_dtype, bool cache);
/* Copies the next word of a comma list; false at its end. */
bool cli_next_word(const char **list, char *word, size_t size);
/* Parses kernel options from JSON; *out is NULL if text is NULL or empty. */
bool cli_kernel_options(const char *text, attune_kernel_options *options, const attune_kernel_options **out);

/* Captures "NAME=FILE.npy", parameters "NAME=VALUE" (i32 if whole, f32 if it has a point or exponent) and declarations
 * "NAME:DTYPE[RANK]" or "NAME:DTYPE". Prints an error and returns false on failure. Release with bindings_free. */
bool cli_bindings_load(bindings *names, const cli_list *captures, const cli_list *parameters,
                       const cli_list *declarations);
/* Adds the names that an expression uses without a declaration: NAME[...] and arguments of presets become captures;
 * other names become parameters, i32 in a mask or an index, f32 elsewhere in a score expression. */
void cli_bindings_infer(bindings *names, attune_expr_kind kind, const char *text);
bool cli_expr(attune_instance *instance, attune_expr_kind kind, const char *text, const bindings *names,
              attune_expr **expr);
/* Whether all symbols of an expression (NULL: none) have values; prints an error with the option that sets a missing
 * one. */
bool cli_bindings_complete(const bindings *names, const attune_expr *expr);
/* Whether every capture, parameter and declaration is used in one of two texts (NULL: none); prints an error for one
 * that is not. */
bool cli_bindings_used(const bindings *names, const char *mask, const char *score);

/* Loads packs of kernels (--pack); prints errors. */
attune_status cli_packs_load(attune_instance *instance, const cli_list *packs);

/* Devices by id, or all that are available. */
#define CLI_DEVICES 16
typedef struct cli_devices {
    attune_device *device[CLI_DEVICES];
    uint32_t count;
} cli_devices;
attune_status cli_devices_open(attune_instance *instance, const char *id, cli_devices *devices); /* complains */
void cli_devices_close(cli_devices *devices);

/* Calls a function of the library that writes text, and stores the text in memory to be freed; NULL, with an error
 * printed, on failure. */
#define CLI_TEXT(out, call)                                                                                            \
    do {                                                                                                               \
        char *buffer = NULL;                                                                                           \
        size_t size = 0, needed = 0;                                                                                   \
        if ((call) == ATTUNE_OK && (buffer = malloc(size = needed)) != NULL)                                           \
            (void)(call);                                                                                              \
        else                                                                                                           \
            cli_error("%s", attune_last_error());                                                                      \
        (out) = buffer;                                                                                                \
    } while (0)

/* Prints JSON to standard output. */
void cli_print_json(const json_t *root);

/* Writes an 8-bit RGB picture as PNG. */
bool png_write(FILE *file, const uint8_t *pixels, uint32_t width, uint32_t height, failure *why);

int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_compile(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_expr(int argc, char **argv);
int cmd_mask(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_run(int argc, char **argv);

#endif

/* SPDX-License-Identifier: MIT */
/* Options, messages, devices. */
#include "bench/program/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/workloads/serving.h"

#define COMPILE_THREADS 4 /* no plan has more kernels */

/* Prints the library's log to stderr, after the program's name. */
static void warn(void *user, attune_log_level level, const char *message)
{
    (void)user;
    (void)fprintf(stderr, "attune: %s: %s\n", level == ATTUNE_LOG_ERROR ? "error" : "warning", message);
}

attune_status cli_instance(const char *cache_folder, attune_instance **instance)
{
    const attune_instance_desc desc = {
        .struct_size = sizeof desc, .log = warn, .cache_folder = cache_folder, .compile_threads = COMPILE_THREADS};
    return attune_instance_create(&desc, instance);
}

void cli_error(const char *format, ...)
{
    const bool colour = isatty(STDERR_FILENO) && !getenv("NO_COLOR");
    va_list arguments;
    va_start(arguments, format);
    (void)fputs(colour ? "\033[1;31mattune:\033[0m " : "attune: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    va_end(arguments);
}

int cli_exit_of(attune_status status)
{
    switch (status) {
    case ATTUNE_OK:
        return EXIT_GOOD;
    case ATTUNE_UNSUPPORTED:
    case ATTUNE_UNAVAILABLE:
        return EXIT_UNAVAILABLE;
    case ATTUNE_INVALID_ARGUMENT:
    case ATTUNE_PARSE_ERROR:
    case ATTUNE_DOES_NOT_FIT:
        return EXIT_USAGE;
    default:
        return EXIT_FAILED;
    }
}

/* ---------------------------------------------------------------------------------------------------------- options */

enum { HELP_COLUMN = 31, HELP_WIDTH = 110 };

/* Prints a text that begins behind `column` characters, in lines of at most HELP_WIDTH whose words begin there. */
static void print_wrapped(int column, const char *text)
{
    int at = column;
    while (*text) {
        const int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > HELP_WIDTH) {
            (void)printf("\n%*s", HELP_COLUMN, "");
            at = column = HELP_COLUMN;
        }
        at += printf("%s%.*s", at > column ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    (void)printf("\n");
}

static void print_help(const char *usage, const cli_option *options, uint32_t count)
{
    (void)printf("usage: %s\n\n", usage);
    for (uint32_t i = 0; i < count; i++) {
        char left[64];
        (void)snprintf(left, sizeof left, "%s%s%s", options[i].name, options[i].argument ? " " : "",
                       options[i].argument ? options[i].argument : "");
        char help[512];
        const bool otherwise = options[i].value && *options[i].value && **options[i].value;
        (void)snprintf(help, sizeof help, otherwise ? "%s (default: %s)" : "%s", options[i].help,
                       otherwise ? *options[i].value : "");
        print_wrapped(printf("  %-28s ", left), help);
    }
}

/* Edit distance, for "did you mean"; long words are not compared. */
static uint32_t distance(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    size_t m = strlen(a), n = strlen(b);
    uint32_t row[LONGEST + 1];
    if (m > LONGEST || n > LONGEST)
        return UINT32_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = (uint32_t)j;
    for (size_t i = 1; i <= m; i++) {
        uint32_t diagonal = row[0];
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= n; j++) {
            uint32_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            uint32_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < least ? change : least;
        }
    }
    return row[n];
}

static const cli_option *find_option(const cli_option *options, uint32_t count, const char *name, size_t length)
{
    for (uint32_t i = 0; i < count; i++)
        if (strlen(options[i].name) == length && !strncmp(options[i].name, name, length))
            return &options[i];
    return NULL;
}

void cli_unknown(const char *what, const char *word, cli_name_fn name_of, const void *user, uint32_t count,
                 const char *list)
{
    const char *nearest = NULL;
    /* At most half of a short word differs: any command is three letters from "foo". */
    const size_t half = (strlen(word) + 1) / 2;
    uint32_t least = half < 3 ? (uint32_t)half + 1 : 4;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = distance(word, name_of(user, i));
        if (d < least) {
            least = d;
            nearest = name_of(user, i);
        }
    }
    cli_error("no %s %s%s%s; %s lists them", what, word, nearest ? ", did you mean " : "", nearest ? nearest : "",
              list);
}

static const char *workload_name(const void *user, uint32_t index)
{
    (void)user;
    if (index < workload_count())
        return workload_get(index)->name;
    return serving_workload_get(index - workload_count())->name;
}

void cli_unknown_workload(const char *name, const char *cannot)
{
    if (cannot && (serving_workload_find(name) || !strcmp(name, "serving"))) {
        cli_error("--workload %s: batches over a cache %s", name, cannot);
        return;
    }
    for (uint32_t i = 0; i < workload_mask_count(); i++)
        if (!strcmp(name, workload_mask_get(i)->name)) {
            cli_error("--workload %s: it is a block mask alone, whose building attune bench --masks times", name);
            return;
        }
    cli_unknown("workload", name, workload_name, NULL, workload_count() + serving_workload_count(),
                "attune bench --list");
}

bool cli_workloads_right(attune_instance *instance, const workload *list, uint32_t count, const char *option)
{
    failure why = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        attention a;
        if (!workload_bind_types(instance, &list[i], &a, &why)) {
            cli_error("%s%s%s", option ? option : "", option ? ": " : "", why.message);
            return false;
        }
        workload_release(&a);
    }
    return true;
}

static const char *option_name(const void *user, uint32_t index)
{
    return ((const cli_option *)user)[index].name;
}

static void complain_unknown(const char *word, const cli_option *options, uint32_t count)
{
    cli_unknown("option", word, option_name, options, count, "--help");
}

enum { OPTIONS_MOST = 128 };

static cli_result complain_twice(const cli_option *option, const char *value)
{
    const bool several = strstr(option->argument, ",...") || !strcmp(option->argument, "LIST");
    cli_error("%s is given twice, as \"%s\" and as \"%s\": expected %s", option->name, *option->value, value,
              several ? "one list with commas" : "one of them");
    return CLI_WRONG;
}

/* `most` words that are no options. */
static cli_result parse(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                        cli_list *words, uint32_t most)
{
    bool given[OPTIONS_MOST] = {false};
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            print_help(usage, options, option_count);
            return CLI_HELPED;
        }
        if (strncmp(word, "--", 2) != 0 && !find_option(options, option_count, word, strlen(word))) {
            if (words->count == most) {
                cli_error("unexpected \"%s\": usage: %s", word, usage);
                return CLI_WRONG;
            }
            words->value[words->count++] = word;
            continue;
        }
        size_t length = strcspn(word, "=");
        const cli_option *option = find_option(options, option_count, word, length);
        if (!option) {
            complain_unknown(word, options, option_count);
            return CLI_WRONG;
        }
        if (option->flag) {
            if (word[length]) {
                cli_error("%s takes no value", option->name);
                return CLI_WRONG;
            }
            *option->flag = true;
            continue;
        }
        const char *value = word[length] ? word + length + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            cli_error("%s needs a value: %s", option->name, option->argument);
            return CLI_WRONG;
        }
        if (!*value && strcmp(option->argument, "EXPR") != 0) {
            cli_error("%s is empty, expected %s", option->name, option->argument);
            return CLI_WRONG;
        }
        if (option->value) {
            const size_t index = (size_t)(option - options) % OPTIONS_MOST;
            if (given[index])
                return complain_twice(option, value);
            given[index] = true;
            *option->value = value;
        } else if (option->list->count < CLI_REPEATS) {
            option->list->value[option->list->count++] = value;
        } else {
            cli_error("%s is given more than %d times, the limit", option->name, CLI_REPEATS);
            return CLI_WRONG;
        }
    }
    return CLI_GO;
}

cli_result cli_parse(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                     const char **positional)
{
    cli_list words = {0};
    const cli_result result = parse(usage, options, option_count, argc, argv, &words, positional ? 1 : 0);
    if (positional && words.count)
        *positional = words.value[0];
    return result;
}

cli_result cli_parse_words(const char *usage, const cli_option *options, uint32_t option_count, int argc, char **argv,
                           cli_list *words)
{
    return parse(usage, options, option_count, argc, argv, words, CLI_REPEATS);
}

static bool parse_integer(const char *text, int64_t *value, const char **end)
{
    char *stop;
    errno = 0;
    long long parsed = strtoll(text, &stop, 10);
    *value = parsed;
    *end = stop;
    return stop != text && errno == 0;
}

bool cli_integer(const char *option, const char *text, int64_t low, int64_t high, int64_t *value)
{
    const char *end;
    if (!parse_integer(text, value, &end) || *end || *value < low || *value > high) {
        cli_error("%s is \"%s\", expected a whole number from %lld to %lld", option, text, (long long)low,
                  (long long)high);
        return false;
    }
    return true;
}

bool cli_number(const char *option, const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    if (end == text || *end) {
        cli_error("%s is \"%s\", expected a number", option, text);
        return false;
    }
    return true;
}

bool cli_parameter(const char *name, size_t length, const char *text, double *value)
{
    char option[96];
    (void)snprintf(option, sizeof option, "--param %.*s", (int)(length < 64 ? length : 64), name);
    return cli_number(option, text, value);
}

bool cli_scale(const char *text, double *value)
{
    *value = 0;
    if (*text && !cli_number("--scale", text, value))
        return false;
    if (*text && *value == 0)
        cli_error("--scale is \"%s\", expected a number other than 0; the default is 1/sqrt(head_dim)", text);
    return !*text || *value != 0;
}

bool cli_pair(const char *option, const char *text, int64_t low, int64_t high, int64_t value[2], int64_t second)
{
    return cli_pair_of(option, text, ',', low, high, value, second);
}

bool cli_pair_of(const char *option, const char *text, char separator, int64_t low, int64_t high, int64_t value[2],
                 int64_t second)
{
    const char *end;
    bool ok = parse_integer(text, &value[0], &end);
    value[1] = second ? second : value[0];
    if (ok && *end == separator)
        ok = parse_integer(end + 1, &value[1], &end);
    if (!ok || *end || value[0] < low || value[0] > high || value[1] < low || value[1] > high) {
        cli_error("%s is \"%s\", expected one number or two with a %s, from %lld to %lld", option, text,
                  separator == ',' ? "comma" : "colon", (long long)low, (long long)high);
        return false;
    }
    return true;
}

bool cli_heads(const char *heads, bool given, const char *kv_heads, int64_t value[2])
{
    if (given && *kv_heads && strchr(heads, ',')) {
        cli_error("--heads %s has the key heads already: leave out --kv-heads %s", heads, kv_heads);
        return false;
    }
    return cli_pair("--heads", heads, 1, INT32_MAX, value, 0) &&
           (!*kv_heads || cli_integer("--kv-heads", kv_heads, 1, INT32_MAX, &value[1]));
}

/* Those of every tensor come first. */
static bool find_dtype(const char *text, size_t count, attune_dtype *dtype)
{
    static const attune_dtype all[] = {ATTUNE_F32,    ATTUNE_F16, ATTUNE_BF16, ATTUNE_F64, ATTUNE_F8E4M3,
                                       ATTUNE_F8E5M2, ATTUNE_I8,  ATTUNE_Q8_0, ATTUNE_Q4_0};
    for (size_t i = 0; i < sizeof all / sizeof all[0] && i < count; i++)
        if (!strcmp(text, attune_dtype_string(all[i]))) {
            *dtype = all[i];
            return true;
        }
    return false;
}

bool cli_dtype(const char *option, const char *text, attune_dtype *dtype)
{
    if (find_dtype(text, 4, dtype))
        return true;
    cli_error("%s is \"%s\", expected f32, f16, bf16 or f64", option, text);
    return false;
}

bool cli_optional_dtype(const char *option, const char *text, attune_dtype *dtype)
{
    return !text || !*text || cli_dtype(option, text, dtype);
}

bool cli_cache_dtype(const char *option, const char *text, attune_dtype *dtype)
{
    if (!text || !*text || find_dtype(text, SIZE_MAX, dtype))
        return true;
    cli_error("%s is \"%s\", expected f32 f16 bf16 f64, or for caches f8e4m3 f8e5m2 i8 q8_0 q4_0", option, text);
    return false;
}

bool cli_dtypes_agree(attune_dtype dtype, attune_dtype kv_dtype, attune_dtype o_dtype, bool cache)
{
    const bool quantised = kv_dtype > ATTUNE_BOOL;
    const bool kv = kv_dtype && (kv_dtype == ATTUNE_F64) != (dtype == ATTUNE_F64),
               o = o_dtype && (o_dtype == ATTUNE_F64) != (dtype == ATTUNE_F64);
    if (quantised && !cache)
        cli_error("--kv-dtype is %s, which keys and values of a cache alone have: expected f32, f16 or bf16",
                  attune_dtype_string(kv_dtype));
    else if (kv || o)
        cli_error(
            "%s is %s, but the type of q is %s: float64 plans have one dtype: leave out %s, or give --dtype another",
            kv ? "--kv-dtype" : "--o-dtype", attune_dtype_string(kv ? kv_dtype : o_dtype), attune_dtype_string(dtype),
            kv ? "--kv-dtype" : "--o-dtype");
    return !(quantised && !cache) && !kv && !o;
}

bool cli_next_word(const char **list, char *word, size_t size)
{
    while (**list == ',')
        ++*list;
    const size_t length = strcspn(*list, ",");
    if (!length)
        return false;
    (void)snprintf(word, size, "%.*s", (int)length, *list);
    *list += length;
    return true;
}

bool cli_kernel_options(const char *text, attune_kernel_options *options, const attune_kernel_options **out)
{
    *out = NULL;
    if (!text || !*text)
        return true;
    *options = (attune_kernel_options){.struct_size = sizeof *options};
    if (attune_kernel_options_parse(text, options) != ATTUNE_OK) {
        cli_error("--kernel-options: %s", attune_last_error());
        return false;
    }
    *out = options;
    return true;
}

void cli_print_json(const json_t *root)
{
    (void)json_dumpf(root, stdout, JSON_INDENT(2));
    (void)putchar('\n');
}

/* ---------------------------------------------------------------------------------------------------------- devices */

attune_status cli_packs_load(attune_instance *instance, const cli_list *packs)
{
    attune_status status = ATTUNE_OK;
    for (uint32_t i = 0; status == ATTUNE_OK && i < packs->count; i++) {
        status = attune_instance_pack_load(instance, packs->value[i]);
        if (status != ATTUNE_OK)
            cli_error("--pack: %s", attune_last_error());
    }
    /* A file that the command line names and that cannot be read is an error of the command line. */
    return status == ATTUNE_IO ? ATTUNE_INVALID_ARGUMENT : status;
}

attune_status cli_devices_open(attune_instance *instance, const char *id, cli_devices *devices)
{
    *devices = (cli_devices){0};
    if (strcmp(id, "all") != 0) {
        attune_status status = attune_device_open(instance, id, &devices->device[0]);
        if (status != ATTUNE_OK)
            cli_error("--device: %s", attune_last_error());
        devices->count = status == ATTUNE_OK;
        return status;
    }
    uint32_t count = 0;
    attune_status status = attune_device_count(instance, &count);
    for (uint32_t i = 0; status == ATTUNE_OK && i < count && devices->count < CLI_DEVICES; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        status = attune_device_describe(instance, i, &info);
        if (status != ATTUNE_OK || !info.available)
            continue;
        /* A device that does not open is reported, and the others are used. */
        if (attune_device_open(instance, info.id, &devices->device[devices->count]) == ATTUNE_OK)
            devices->count++;
        else
            cli_error("%s: %s", info.id, attune_last_error());
    }
    if (status != ATTUNE_OK)
        cli_error("%s", attune_last_error());
    return status;
}

void cli_devices_close(cli_devices *devices)
{
    for (uint32_t i = 0; i < devices->count; i++)
        attune_device_destroy(devices->device[i]);
    devices->count = 0;
}

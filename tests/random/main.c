/* SPDX-License-Identifier: MIT */
/* The command line: draws, runs, and reports what was found. */
#include "random/serving.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: random [--device ID] [--count N] [--seed S] [--first INDEX] [--only INDEX] [--seconds T]\n"
    "              [--profile quick|whole|many] [--kernel NAME] [--block-n1 KEYS] [--out FOLDER] [--tries N] "
    "[--verbose]\n";

typedef struct options {
    const char *device, *profile, *kernel, *out;
    uint64_t count, seed, first;
    double seconds;
    uint32_t block_n1;
    int tries; /* of shrinking, at most */
    bool verbose;
} options;

static volatile sig_atomic_t at_index;
static char crash_text[160];

/* Which problem it was, before the process goes. */
static void crashed(int signal_number)
{
    char number[24];
    size_t n = sizeof number;
    unsigned long index = (unsigned long)at_index;
    do
        number[--n] = (char)('0' + index % 10);
    while ((index /= 10) > 0);
    ssize_t written = write(2, crash_text, strlen(crash_text));
    written += write(2, number + n, sizeof number - n);
    written += write(2, "\n", 1);
    (void)written;
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

/* The problem must end within so many seconds; 0: it has. Windows has no such signal. */
static void watch(unsigned seconds)
{
#if defined(_WIN32)
    (void)seconds;
#else
    (void)alarm(seconds);
#endif
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.device = "cpu", .profile = "whole", .out = ".", .count = 100, .seed = 1, .tries = 600};
    bool one = false;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--verbose")) {
            o->verbose = true;
            continue;
        }
        if (i + 1 == argc)
            return false;
        char *value = argv[++i], *end = value;
        if (!strcmp(name, "--device"))
            o->device = value;
        else if (!strcmp(name, "--profile"))
            o->profile = value;
        else if (!strcmp(name, "--kernel"))
            o->kernel = value;
        else if (!strcmp(name, "--block-n1"))
            o->block_n1 = (uint32_t)strtoul(value, &end, 10);
        else if (!strcmp(name, "--out"))
            o->out = value;
        else if (!strcmp(name, "--count"))
            o->count = strtoull(value, &end, 0);
        else if (!strcmp(name, "--seed"))
            o->seed = strtoull(value, &end, 0);
        else if (!strcmp(name, "--first"))
            o->first = strtoull(value, &end, 0);
        else if (!strcmp(name, "--tries"))
            o->tries = (int)strtol(value, &end, 10);
        else if (!strcmp(name, "--only"))
            o->first = strtoull(value, &end, 0), one = true;
        else if (!strcmp(name, "--seconds"))
            o->seconds = strtod(value, &end);
        else
            return false;
        if (end != value ? *end != '\0' : strspn(name, "-") == 2 && strchr("csft", name[2]) != NULL)
            return false;
    }
    if (one)
        o->count = 1;
    return !strcmp(o->profile, "quick") || !strcmp(o->profile, "whole") || !strcmp(o->profile, "many");
}

static draw_profile profile_of(const options *o, attune_backend backend)
{
    draw_profile p = {.backend = backend,
                      .calls = backend == ATTUNE_BACKEND_CPU ? 3 : 10,
                      .work = 40000,
                      .kernel = o->kernel,
                      .block_n1 = o->block_n1};
    if (!strcmp(o->profile, "quick")) {
        p.work = 6000;
        p.calls = 2;
    } else if (!strcmp(o->profile, "many")) {
        p.calls = CALLS;
    }
    return p;
}

/* Whether ATTUNE_REQUIRE, a list of names, has the backend of a device's id. */
static bool required(const char *id)
{
    const char *list = getenv("ATTUNE_REQUIRE");
    const size_t length = strcspn(id, ":@");
    for (; list && *list; list += strspn(list, ",")) {
        const size_t n = strcspn(list, ",");
        if (n == length && !strncmp(list, id, n))
            return true;
        list += n;
    }
    return false;
}

static void report(runner *r, const options *o, problem *p, finding *f)
{
    (void)printf("FAILED seed %llu index %llu call %d on %s, %s: %s: %s\n", (unsigned long long)p->seed,
                 (unsigned long long)p->index, f->call, r->id, f->kernel, f->kind, f->what);
    (void)fflush(stdout);
    if (o->tries > 0) {
        const double seconds = o->seconds > 0 && o->seconds < 120 ? o->seconds / 4 : 60;
        shrink_problem(r, p, f, o->tries, seconds);
        (void)printf("  smallest: %s: %s: %s\n", f->kernel, f->kind, f->what);
    }
    problem_print(p, stdout);
    char path[512];
    (void)snprintf(path, sizeof path, "%s/random-%s-%llu-%llu.c", o->out, r->id, (unsigned long long)p->seed,
                   (unsigned long long)p->index);
    for (char *at = path + strlen(o->out) + 1; *at; at++)
        *at = *at == ':' || *at == '@' ? '-' : *at;
    if (write_reproduction(r, p, path))
        (void)printf("  written: %s\n", path);
    (void)fflush(stdout);
}

/* Whether a problem's last call ran on the kernel. */
static bool ran_on(const finding *f, const char *kernel)
{
    const size_t length = strlen(kernel);
    return !strncmp(f->kernel, kernel, length) && f->kernel[length] == ' ';
}

/* A third of the problems are calls over a cache. */
static bool run_one_serving(runner *r, const options *o, const draw_profile *profile, uint64_t index)
{
    static serving s;
    finding f = {0};
    serving_draw(o->seed, index, profile, &s);
    if (o->verbose)
        serving_print(&s, stdout);
    const bool ok = run_serving(r, &s, &f);
    if (o->verbose)
        (void)printf("%llu %s\n", (unsigned long long)index, f.kernel);
    if (ok)
        return true;
    (void)printf("FAILED seed %llu index %llu step %d on %s, %s: %s: %s\n", (unsigned long long)s.seed,
                 (unsigned long long)index, f.call, r->id, f.kernel, f.kind, f.what);
    (void)fflush(stdout);
    if (o->tries > 0) {
        shrink_serving(r, &s, &f, o->tries, o->seconds > 0 && o->seconds < 120 ? o->seconds / 4 : 60);
        (void)printf("  smallest: %s: %s: %s\n", f.kernel, f.kind, f.what);
    }
    serving_print(&s, stdout);
    return false;
}

int main(int argc, char **argv)
{
    options o;
    runner r;
    if (!parse(argc, argv, &o)) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (!runner_open(o.device, &r)) {
        /* 77 is what meson takes for skipped. */
        (void)fprintf(stderr, "random: %s: %s\n", o.device, attune_last_error());
        return required(o.device) ? 1 : 77;
    }
    (void)snprintf(crash_text, sizeof crash_text, "random: crashed on %s, seed %llu, index ", o.device,
                   (unsigned long long)o.seed);
    static const int signals[] = {
        SIGSEGV,
        SIGFPE,
        SIGABRT,
        SIGILL,
#if !defined(_WIN32)
        SIGBUS,
        SIGALRM,
#endif
    };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)signal(signals[i], crashed);
    const draw_profile profile = profile_of(&o, r.backend);
    const double start = now();
    static problem p;
    uint64_t failures = 0, done = 0, on_kernel = 0;
    for (; done < o.count && (o.seconds <= 0 || now() - start < o.seconds); done++) {
        finding f = {0};
        const uint64_t index = o.first + done;
        at_index = (sig_atomic_t)index;
        watch(300);
        /* Merges and calls over a cache have kernels of their own. */
        const bool merges = index % 12 == 11 && !o.kernel, serves = index % 3 == 1 && !o.kernel;
        bool ok = merges ? run_merge(&r, o.seed, index, &f) : true;
        if (!ok)
            (void)printf("FAILED seed %llu index %llu on %s, merge: %s: %s\n", (unsigned long long)o.seed,
                         (unsigned long long)index, r.id, f.kind, f.what);
        failures += !ok;
        if (serves) {
            failures += !run_one_serving(&r, &o, &profile, index);
        } else if (!merges) {
            problem_draw(o.seed, index, &profile, &p);
            if (o.verbose)
                problem_print(&p, stdout);
            ok = run_problem(&r, &p, &f);
            failures += !ok;
            on_kernel += o.kernel && ran_on(&f, o.kernel);
            if (o.verbose)
                (void)printf("%llu %s\n", (unsigned long long)index, f.kernel);
            if (!ok)
                report(&r, &o, &p, &f);
        }
        (void)fflush(stdout);
    }
    watch(0);
    (void)printf(
        "random: %s seed %llu: %llu problems, %llu calls, %llu elements (%.2g %% not decided), %llu refused as they "
        "should be, %llu failed, %.1f s\n",
        r.id, (unsigned long long)o.seed, (unsigned long long)done, (unsigned long long)r.calls,
        (unsigned long long)r.elements, 100.0 * (double)r.undecided / (double)(r.elements + 1),
        (unsigned long long)r.refused, (unsigned long long)failures, now() - start);
    runner_close(&r);
    if (o.kernel)
        (void)printf("random: %llu problems on %s%s\n", (unsigned long long)on_kernel, o.kernel,
                     on_kernel ? "" : ": it takes none of them here");
    return failures != 0 || (o.kernel && !on_kernel);
}
